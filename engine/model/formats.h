/* SPDX-License-Identifier: Apache-2.0
 * engine/model/formats.h - the types that a run computes and keeps its weights and KV in, where
 * options leave them open: one rule, for runs of this machine and for plans of any. */
#ifndef AQ_ENGINE_MODEL_FORMATS_H
#define AQ_ENGINE_MODEL_FORMATS_H

#include "engine/model/model.h"

struct aq_formats {
    /* compute is what products are computed in; AQ_Q8: on int8 codes of rows and weights. */
    enum aq_dtype compute, weights, kv;
    /* The type that values of a store's vocabulary matrices are rounded to as they are loaded
     * (model.h: vocabulary_values), so that a store gives the results of its checkpoint. */
    enum aq_dtype values;
};

/* As the options say it; -1 is auto. */
struct aq_formats_wanted {
    int compute, weights, kv;
};

/* The compute type of a GPU where no option names one: f16; bf16 where the checkpoint is bf16 and
 * the GPU has it (bf16), so that the weights need not be rounded. */
enum aq_dtype aq_formats_of_gpu(const struct aq_model *m, bool bf16);

/* The rest, `by_itself` being what products are computed in where nobody says.  -EINVAL: a packed
 * store holds another format than the one wanted, or compute int8 has no codes to work on. */
int aq_formats_choose(struct aq_formats *ret, const struct aq_model *m,
                      const struct aq_formats_wanted *wanted, enum aq_dtype by_itself,
                      struct aq_err *reterr);

#endif
