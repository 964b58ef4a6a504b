/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/formats.h"

#include <errno.h>

enum aq_dtype aq_formats_of_gpu(const struct aq_model *m, bool bf16)
{
    return m->original_dtype == AQ_BF16 && bf16 ? AQ_BF16 : AQ_F16;
}

int aq_formats_choose(struct aq_formats *ret, const struct aq_model *m,
                      const struct aq_formats_wanted *wanted, enum aq_dtype by_itself,
                      struct aq_err *reterr)
{
    int store = aq_model_store_format(m);
    enum aq_dtype checkpoint = m->checkpoint_dtype;
    if (store >= 0 && wanted->weights >= 0 && wanted->weights != store)
        return aq_error(
            reterr, -EINVAL,
            "--weight-format %s: the packed store holds %s; pack again for another format",
            aq_dtype_name((enum aq_dtype)wanted->weights), aq_dtype_name((enum aq_dtype)store));
    struct aq_formats f = {
        .compute = wanted->compute >= 0 ? (enum aq_dtype)wanted->compute : by_itself,
        .weights = checkpoint,
    };
    if (!aq_dtype_is_quantised(checkpoint) &&
        aq_dtype_bytes(f.compute) <= aq_dtype_bytes(checkpoint))
        f.weights = f.compute; /* no larger, and ready for the products */
    if (store >= 0)
        f.weights = (enum aq_dtype)store;
    if (wanted->weights >= 0)
        f.weights = (enum aq_dtype)wanted->weights;
    /* Who asks for f32 arithmetic by name wants f32 results: rounding K and V would undo it. */
    f.kv = wanted->compute == AQ_F32 ? AQ_F32 : m->original_dtype == AQ_BF16 ? AQ_BF16 : AQ_F16;
    if (wanted->kv >= 0)
        f.kv = (enum aq_dtype)wanted->kv;
    *ret = f;
    return 0;
}
