/* SPDX-License-Identifier: Apache-2.0
 * engine/measure/eval_sweep.h - the runs that one `eval` makes over the same windows: --sweep
 * "kv-policy=h2o,window kv-budget=10%,20%" stands for four.  Owns the options of each. */
#ifndef AQ_ENGINE_MEASURE_EVAL_SWEEP_H
#define AQ_ENGINE_MEASURE_EVAL_SWEEP_H

#include "engine/options/options.h"

struct aq_eval_run {
    struct aq_options *options;
    char *text; /* "kv-policy=h2o kv-budget=10%"; "" without a sweep */
};

struct aq_eval_sweep {
    struct aq_eval_run *run;
    uint32_t count; /* at least 1 */
};

/* Every --sweep adds the combinations of its lists, the last key changing fastest; other options
 * are as in o.  Only options of the KV cache can be swept.  -EINVAL names the combination. */
int aq_eval_sweep_open(struct aq_eval_sweep *ret, const struct aq_options *o,
                       struct aq_err *reterr);
void aq_eval_sweep_close(struct aq_eval_sweep *s);

/* The options of the same run with the full KV cache, formats unchanged. */
int aq_eval_full_options(struct aq_options **ret, const struct aq_options *o,
                         struct aq_err *reterr);

#endif
