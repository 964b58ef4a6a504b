/* SPDX-License-Identifier: Apache-2.0
 * Statistics of logits, reference: f64 sums. */
#include "kernels/cpu/versions.h"

#include <math.h>

struct job {
    struct aq_logits_stat *stat;
    const float *logits;
    size_t stride;
    uint32_t vocab;
};

static void stat_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct job *job = arg;
    const float *x = job->logits + row * job->stride;
    struct aq_logits_stat s = {.max = -INFINITY, .log_sum_exp = -INFINITY};
    double sum = 0;
    for (uint32_t i = 0; i < job->vocab; i++) {
        s.bad_count += !isfinite(x[i]);
        if (isfinite(x[i]) && x[i] > s.max) {
            s.max = x[i];
            s.argmax = i;
        }
    }
    for (uint32_t i = 0; i < job->vocab; i++)
        sum += isfinite(x[i]) ? exp((double)x[i] - s.max) : 0;
    if (s.bad_count < job->vocab)
        s.log_sum_exp = (float)(s.max + log(sum));
    job->stat[row] = s;
}

void aq_logits_stat_ref(struct aq_exec *ex, struct aq_logits_stat *stat, const float *logits,
                        size_t stride, uint32_t rows, uint32_t vocab)
{
    struct job job = {.stat = stat, .logits = logits, .stride = stride, .vocab = vocab};
    aq_pool_run(aq_exec_pool(ex), stat_row, &job, rows);
}
