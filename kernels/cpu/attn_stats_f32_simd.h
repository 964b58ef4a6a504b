/* SPDX-License-Identifier: Apache-2.0
 * Column sums with the products of attn_prefill_simd.h, after which this is included. */

#include "kernels/cpu/attn_stats_simd.h"

/* keys[half][d][i] = element d of row i. */
static inline void put_keys(const struct stats *s, uint32_t half, uint32_t lane, const void *rows,
                            enum aq_dtype dtype, uint32_t n)
{
    for (uint32_t d = 0; d < s->dim; d += VEC_LANES) {
        vec x[VEC_LANES];
        uint32_t count = (uint32_t)aq_min_u64(VEC_LANES, s->dim - d);
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            size_t at = (size_t)i * s->dim + d;
            if (i >= n)
                x[i] = vec_zero();
            else if (count == VEC_LANES)
                x[i] = vec_load_as(rows, dtype, at);
            else
                x[i] = vec_load_as_n(rows, dtype, at, count);
        }
        vec_transpose(x);
        for (uint32_t i = 0; i < VEC_LANES; i++)
            vec_store(s->keys[half] + (size_t)(d + i) * TILE_LANES + lane, x[i]);
    }
}

static inline void put_query(const struct stats *s, uint32_t i, const float *from, vec scale)
{
    uint32_t dim = s->dim, d = 0;
    float *to = s->wide + (size_t)i * dim;
    for (; d + VEC_LANES <= dim; d += VEC_LANES)
        vec_store(to + d, vec_mul(vec_load(from + d), scale));
    if (d < dim)
        vec_store_n(to + d, vec_mul(vec_load_n(from + d, dim - d), scale), dim - d);
}

static inline void multiply_keys(const struct stats *s, uint32_t half, uint32_t v, uint32_t n)
{
    struct prefill t = {.dim = s->dim, .q = s->keys[half], .p = s->p, .k = s->wide, .slots = n};
    score_columns(&t, v, BLOCK_WIDTH);
}

void VEC_VERSION(attn_stats)(struct aq_exec *ex, const struct aq_attn *a)
{
    sum_columns(ex, a);
}

/* ---- of weights that attention has kept ---- */

/* Weights become probabilities, and tiles [key][lane] of a vector's size [lane][key]. */
static void turn_weights(const struct aq_attn_weights *o, uint32_t len)
{
    for (uint32_t lane = 0; lane < o->lanes; lane += VEC_LANES) {
        float *at = o->weight + (size_t)lane * o->keys;
        const float *max = o->max + (size_t)lane * (o->keys / o->block);
        vec log_sum = vec_load(o->log_sum + lane);
        for (uint32_t key = 0; key < len; key += o->block, max += VEC_LANES) {
            vec factor = vec_exp(vec_sub(vec_load(max), log_sum));
            for (uint32_t tile = 0; tile < o->block; tile += VEC_LANES) {
                vec x[VEC_LANES];
                for (uint32_t i = 0; i < VEC_LANES; i++)
                    x[i] = vec_mul(vec_load(at + i * VEC_LANES), factor);
                vec_transpose(x);
                for (uint32_t i = 0; i < VEC_LANES; i++, at += VEC_LANES)
                    vec_store(at, x[i]);
            }
        }
    }
}

static void kept_rows(struct stats *s, const struct stats_run *run, uint32_t row, uint32_t n)
{
    join_rows(s, run, row, n, true);
}

void VEC_VERSION(attn_sum_observed)(struct aq_exec *ex, uint32_t worker, const struct aq_attn *a,
                                    const struct aq_attn_seq *seq, uint32_t head,
                                    const struct aq_attn_weights *o)
{
    uint32_t each = aq_attn_stats_rows(a) / a->kv_heads, len = aq_attn_len(seq, head);
    struct stats s = stats_open(ex, worker, a->head_dim);
    s.kept = o;
    take_powers(&s, a->rule.decay);
    turn_weights(o, len);
    for (uint32_t row = head * each; row < (head + 1) * each; row++) {
        for (uint32_t key = 0; key < len; key += AQ_ATTN_STATS_KEYS) {
            struct stats_run run = stats_run_of(a, seq, row, key);
            sum_rows(&s, &run, kept_rows);
        }
    }
}
