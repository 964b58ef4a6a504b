/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/formats.h"

#include <errno.h>

enum aq_dtype aq_formats_of_gpu(const struct aq_model *m, bool bf16)
{
    return m->original_dtype == AQ_BF16 && bf16 ? AQ_BF16 : AQ_F16;
}

/* The format of a checkpoint's weights where no option names one: the compute type where that is no
 * larger, ready for the products.  A store holds what its checkpoint held, since it may be run with
 * another compute type elsewhere; its products round as they read, and the vocabulary's rows, which
 * are looked up as well, as they are loaded.  Decoded weights are rounded to the checkpoint's type,
 * as those of its store are, and not past it: f32 rounded to bf16 is not f16 rounded to it. */
static enum aq_dtype weights_by_themselves(const struct aq_model *m, enum aq_dtype compute)
{
    enum aq_dtype source = m->checkpoint_dtype;
    if (m->quantised[0] && aq_dtype_bytes(source) == 2)
        return source;
    bool fits = !aq_dtype_is_quantised(source) && aq_dtype_bytes(compute) <= aq_dtype_bytes(source);
    return fits ? compute : source;
}

int aq_formats_choose(struct aq_formats *ret, const struct aq_model *m,
                      const struct aq_formats_wanted *wanted, enum aq_dtype by_itself,
                      struct aq_err *reterr)
{
    int store = aq_model_store_format(m);
    if (store >= 0 && wanted->weights >= 0 && wanted->weights != store)
        return aq_error(
            reterr, -EINVAL,
            "--weight-format %s: the packed store holds %s; pack again for another format",
            aq_dtype_name((enum aq_dtype)wanted->weights), aq_dtype_name((enum aq_dtype)store));
    struct aq_formats f = {
        .compute = wanted->compute >= 0 ? (enum aq_dtype)wanted->compute : by_itself,
        .values = AQ_F32,
    };
    f.weights = wanted->weights >= 0 ? (enum aq_dtype)wanted->weights
                                     : weights_by_themselves(m, aq_compute_rows(f.compute));
    if (store >= 0) {
        f.values = aq_dtype_is_quantised(f.weights) ? AQ_F32 : f.weights;
        f.weights = (enum aq_dtype)store;
    }
    if (f.compute == AQ_Q8 && !aq_dtype_is_quantised(f.weights))
        return aq_error(reterr, -EINVAL,
                        "--compute int8 takes weights in int8 or int4, found %s; add "
                        "--weight-format int8%s",
                        aq_dtype_name(f.weights), store >= 0 ? " and pack again" : "");
    /* f32 arithmetic asked for by name means f32 results: rounding K and V would undo it. */
    f.kv = wanted->compute == AQ_F32 ? AQ_F32 : m->original_dtype == AQ_BF16 ? AQ_BF16 : AQ_F16;
    if (wanted->kv >= 0)
        f.kv = (enum aq_dtype)wanted->kv;
    *ret = f;
    return 0;
}
