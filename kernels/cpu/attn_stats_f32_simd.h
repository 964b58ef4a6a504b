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
