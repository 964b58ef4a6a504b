/* SPDX-License-Identifier: Apache-2.0
 * Prefill attention where the compute type is bf16, by VDPBF16PS: tiles are rows of vectors, of
 * which PART are summed at a time against two tiles side by side, in registers. */
#include "kernels/cpu/attn_bf16_simd.h"

enum { PART = 8, ROW_HALVES = 32, UNROLL = 4 }; /* rows; bf16 elements of a row; pairs */

static void products_begin(void) {}

static void products_end(void) {}

/* Adds the products of `count` pairs with PART rows of a, to both tiles. */
VEC_FN void add_pairs(vec sum[PART][2], const uint16_t *a, const uint16_t *b, size_t b_next,
                      uint32_t count)
{
#pragma GCC unroll 8
    for (uint32_t i = 0; i < count; i++) {
        __m512i left = _mm512_load_si512(b + i * ROW_HALVES);
        __m512i right = _mm512_load_si512(b + b_next + i * ROW_HALVES);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < PART; r++) {
            __m512i pair = vec_pair(a + r * ROW_HALVES + 2 * i);
            sum[r][0] = vec_dot(sum[r][0], pair, left);
            sum[r][1] = vec_dot(sum[r][1], pair, right);
        }
    }
}

/* PART rows of the two tiles at c. */
VEC_FN void multiply_part(const struct product *p, float *c, const uint16_t *a)
{
    const uint16_t *b = p->b;
    vec sum[PART][2];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < PART; r++) {
        sum[r][0] = p->adds ? vec_load(c + r * VEC_LANES) : vec_zero();
        sum[r][1] = p->adds ? vec_load(c + TILE_FLOATS + r * VEC_LANES) : vec_zero();
    }
    for (uint32_t step = 0; step < p->steps; step++, a += TILE_HALVES, b += TILE_HALVES) {
        uint32_t pairs = step + 1 < p->steps ? TILE_K / 2 : p->last, i = 0;
        for (; i + UNROLL <= pairs; i += UNROLL)
            add_pairs(sum, a + 2 * i, b + i * ROW_HALVES, p->b_next, UNROLL);
        for (; i < pairs; i++)
            add_pairs(sum, a + 2 * i, b + i * ROW_HALVES, p->b_next, 1);
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < PART; r++) {
        vec_store(c + r * VEC_LANES, sum[r][0]);
        vec_store(c + TILE_FLOATS + r * VEC_LANES, sum[r][1]);
    }
}

static inline void multiply(const struct product *p)
{
    for (uint32_t tile = 0; tile < p->tiles; tile++) {
        for (uint32_t r = 0; r < 16; r += PART)
            multiply_part(p, p->c + tile * 2 * TILE_FLOATS + r * VEC_LANES,
                          p->a + tile * p->a_next + r * ROW_HALVES);
    }
}

void aq_attn_prefill_avx512bf16(struct aq_exec *ex, const struct aq_attn *a)
{
    attend_pairs(ex, a);
}
