/* SPDX-License-Identifier: Apache-2.0
 * Statistics of logits and their weights, reference: f64 sums. */
#include "kernels/cpu/versions.h"
#include "kernels/exp.h"

#include <math.h>

static void stat_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct aq_logits *l = arg;
    const float *x = l->logits + row * l->stride;
    struct aq_logits_stat s = {.max = -INFINITY, .log_sum_exp = -INFINITY};
    double sum = 0;
    for (uint32_t i = 0; i < l->vocab; i++) {
        s.bad_count += !isfinite(x[i]);
        if (isfinite(x[i]) && x[i] > s.max) {
            s.max = x[i];
            s.argmax = i;
        }
    }
    for (uint32_t i = 0; i < l->vocab; i++)
        sum += isfinite(x[i]) ? exp((double)x[i] - s.max) : 0;
    if (s.bad_count < l->vocab)
        s.log_sum_exp = (float)(s.max + log(sum));
    l->stat[row] = s;
}

void aq_logits_stat_ref(struct aq_exec *ex, const struct aq_logits *l)
{
    aq_pool_run(aq_exec_pool(ex), stat_row, (void *)l, l->rows);
}

uint64_t aq_weigh_ref(const struct aq_candidates *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        float far = (c->best - c->logits[i]) * c->inverse;
        c->weight[i] = aq_exp(-far);
        sum += far <= c->reach ? (uint64_t)(int64_t)(c->weight[i] * c->unit) : 0;
    }
    return sum;
}

uint32_t aq_weights_between_ref(uint32_t *id, const float *weight, uint32_t count, float least,
                                float most)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (weight[i] >= least && weight[i] <= most)
            id[found++] = i;
    }
    return found;
}
