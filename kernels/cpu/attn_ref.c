/* SPDX-License-Identifier: Apache-2.0
 * Attention, reference: one query at a time in f64, the keys passed over twice (for the largest
 * score, then for the sums), nothing shared between queries. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/versions.h"

#include <math.h>

struct query {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq;
    const float *q;
    uint32_t head, keys;
};

static double score(const struct query *x, uint32_t key)
{
    const struct aq_attn *a = x->a;
    const uint8_t *block = aq_attn_block(x->seq, x->head, key / AQ_HEAD_BLOCK_SLOTS);
    uint32_t row = key % AQ_HEAD_BLOCK_SLOTS;
    double sum = 0;
    for (uint32_t d = 0; d < a->head_dim; d++)
        sum += (double)x->q[d] * aq_kv_load(block, a->kv_dtype, a->head_dim, row, d);
    return sum * a->scale;
}

/* sum[d] += p * V[key][d] */
static void add_value(const struct query *x, uint32_t key, double p, double *sum)
{
    const struct aq_attn *a = x->a;
    const uint8_t *block = aq_attn_block(x->seq, x->head, key / AQ_HEAD_BLOCK_SLOTS);
    uint32_t row = AQ_HEAD_BLOCK_SLOTS + key % AQ_HEAD_BLOCK_SLOTS;
    for (uint32_t d = 0; d < a->head_dim; d++)
        sum[d] += p * aq_kv_load(block, a->kv_dtype, a->head_dim, row, d);
}

/* Returns the log of the sum of exp(score); sum[d] becomes the output. */
static double attend(const struct query *x, double *sum)
{
    uint32_t dim = x->a->head_dim;
    for (uint32_t d = 0; d < dim; d++)
        sum[d] = 0;
    if (!x->keys)
        return -INFINITY;
    double max = -INFINITY, weight = 0;
    for (uint32_t key = 0; key < x->keys; key++)
        max = fmax(max, score(x, key));
    double base = max == -INFINITY ? 0 : max; /* all scores -inf: weights of 0, not NaN */
    for (uint32_t key = 0; key < x->keys; key++) {
        double p = exp(score(x, key) - base);
        weight += p;
        add_value(x, key, p, sum);
    }
    for (uint32_t d = 0; d < dim; d++)
        sum[d] /= weight;
    return base + log(weight);
}

struct job {
    struct aq_exec *ex;
    const struct aq_attn *a;
};

/* A tile is one KV head of one sequence. */
static void attend_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct job *job = arg;
    const struct aq_attn *a = job->a;
    double *sum = aq_exec_scratch(job->ex, worker);
    const struct aq_attn_seq *seq = &a->seqs[tile / a->kv_heads];
    uint32_t head = tile % a->kv_heads, len = aq_attn_len(seq, head);
    for (uint32_t i = 0; i < seq->rows; i++) {
        for (uint32_t g = 0; g < a->q_per_kv; g++) {
            size_t row = (size_t)seq->row + i, q_head = (size_t)head * a->q_per_kv + g;
            struct query x = {.a = a, .seq = seq, .head = head};
            x.q = a->q + row * a->q_stride + q_head * a->head_dim;
            x.keys = aq_attn_visible(len, seq->rows, i);
            double log_sum = attend(&x, sum);
            size_t at = row * a->out_stride + q_head * a->head_dim;
            for (uint32_t d = 0; d < a->head_dim; d++)
                aq_element_store(a->out, a->out_dtype, at + d, (float)sum[d]);
            if (a->log_sum_exp)
                a->log_sum_exp[row * a->kv_heads * a->q_per_kv + q_head] = (float)log_sum;
        }
    }
}

void aq_attn_decode_ref(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_assert(a);
    assert(a->head_dim * sizeof(double) <= aq_exec_scratch_size(ex));
    struct job job = {.ex = ex, .a = a};
    aq_pool_run(aq_exec_pool(ex), attend_tile, &job, a->seq_count * a->kv_heads);
}

void aq_attn_prefill_ref(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_decode_ref(ex, a);
}
