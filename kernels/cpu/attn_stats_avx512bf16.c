/* SPDX-License-Identifier: Apache-2.0
 * Column sums where the compute type is bf16: K and scaled queries are rounded as prefill attention
 * rounds them, and VDPBF16PS multiplies. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/vec_bf16.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/attn_lanes_simd.h"
#include "kernels/cpu/attn_stats_simd.h"

/* Elements of a row of queries: whole vectors. */
static inline uint32_t row_halves(const struct stats *s)
{
    return (uint32_t)aq_align_up(s->dim, 2 * VEC_LANES);
}

/* Elements `at` to at + 31 of numbers of this dtype, n of them at most. */
VEC_FN __m512i load_halves(const void *from, enum aq_dtype dtype, size_t at, uint32_t n)
{
    if (dtype == AQ_BF16)
        return _mm512_maskz_loadu_epi16(n < 32 ? (1u << n) - 1 : UINT32_MAX,
                                        (const uint16_t *)from + at);
    if (n >= 2 * VEC_LANES)
        return vec_halves(vec_load_as(from, dtype, at), vec_load_as(from, dtype, at + VEC_LANES));
    uint32_t first = (uint32_t)aq_min_u64(n, VEC_LANES);
    vec low = vec_load_as_n(from, dtype, at, first), high = vec_zero();
    if (n > VEC_LANES)
        high = vec_load_as_n(from, dtype, at + VEC_LANES, n - VEC_LANES);
    return vec_halves(low, high);
}

/* keys[half][d / 2][i][2] = elements d and d + 1 of row i. */
static inline void put_keys(const struct stats *s, uint32_t half, uint32_t lane, const void *rows,
                            enum aq_dtype dtype, uint32_t n)
{
    float *to = s->keys[half] + lane;
    for (uint32_t d = 0; d < s->dim; d += 2 * VEC_LANES, to += VEC_LANES * TILE_LANES) {
        vec x[VEC_LANES];
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            size_t at = (size_t)i * s->dim + d;
            x[i] =
                i < n ? _mm512_castsi512_ps(load_halves(rows, dtype, at, s->dim - d)) : vec_zero();
        }
        vec_transpose(x);
        for (uint32_t i = 0; i < VEC_LANES; i++)
            vec_store(to + i * TILE_LANES, x[i]);
    }
}

static inline void put_query(const struct stats *s, uint32_t i, const float *from, vec scale)
{
    uint16_t *to = (uint16_t *)(void *)s->wide + (size_t)i * row_halves(s);
    for (uint32_t d = 0; d < s->dim; d += 2 * VEC_LANES) {
        uint32_t n = s->dim - d;
        vec low = vec_mul(vec_load_n(from + d, n), scale), high = vec_zero();
        if (n > VEC_LANES)
            high = vec_mul(vec_load_n(from + d + VEC_LANES, n - VEC_LANES), scale);
        _mm512_storeu_si512(to + d, vec_halves(low, high));
    }
}

/* BLOCK_ROWS queries from `query` on. */
VEC_FN void multiply_rows(const struct stats *s, uint32_t half, uint32_t v, uint32_t query)
{
    uint32_t stride = row_halves(s), pairs = (s->dim + 1) / 2;
    const uint16_t *q = (const uint16_t *)(const void *)s->wide + (size_t)query * stride;
    const float *k = s->keys[half] + v * VEC_LANES;
    vec sum[BLOCK_ROWS][BLOCK_WIDTH];
    for (int r = 0; r < BLOCK_ROWS; r++) {
        for (int w = 0; w < BLOCK_WIDTH; w++)
            sum[r][w] = vec_zero();
    }
    for (uint32_t i = 0; i < pairs; i++, k += TILE_LANES) {
        __m512i x[BLOCK_WIDTH];
        for (int w = 0; w < BLOCK_WIDTH; w++)
            x[w] = _mm512_loadu_si512(k + w * VEC_LANES);
        for (uint32_t r = 0; r < BLOCK_ROWS; r++) {
            __m512i pair = vec_pair(q + r * stride + 2 * i);
            for (int w = 0; w < BLOCK_WIDTH; w++)
                sum[r][w] = vec_dot(sum[r][w], pair, x[w]);
        }
    }
    float *p = s->p + (size_t)query * TILE_LANES + v * VEC_LANES;
    for (int r = 0; r < BLOCK_ROWS; r++) {
        for (int w = 0; w < BLOCK_WIDTH; w++)
            vec_store(p + r * TILE_LANES + w * VEC_LANES, sum[r][w]);
    }
}

static inline void multiply_keys(const struct stats *s, uint32_t half, uint32_t v, uint32_t n)
{
    for (uint32_t query = 0; query < n; query += BLOCK_ROWS)
        multiply_rows(s, half, v, query);
}

void aq_attn_stats_avx512bf16(struct aq_exec *ex, const struct aq_attn *a)
{
    if (a->out_dtype == AQ_BF16)
        sum_columns(ex, a);
    else
        aq_attn_stats_avx512(ex, a);
}
