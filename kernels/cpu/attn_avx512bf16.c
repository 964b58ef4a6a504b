/* SPDX-License-Identifier: Apache-2.0
 * Prefill attention where the compute type is bf16, by VDPBF16PS: tiles are rows of vectors, of
 * which PART are summed at a time against two tiles side by side, in registers. */
#include "kernels/cpu/attn_bf16_simd.h"

enum { PART = 8, ROW_HALVES = 32 }; /* rows; bf16 elements of a row */

static void products_begin(void) {}

static void products_end(void) {}

/* PART rows of the two tiles at c, and at c + TILE_FLOATS. */
VEC_FN void multiply_part(float *c, bool adds, const uint16_t *a, const uint16_t *b, size_t b_next,
                          uint32_t steps)
{
    vec sum[PART][2];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < PART; r++) {
        sum[r][0] = adds ? vec_load(c + r * VEC_LANES) : vec_zero();
        sum[r][1] = adds ? vec_load(c + TILE_FLOATS + r * VEC_LANES) : vec_zero();
    }
    for (; steps; steps--, a += TILE_HALVES, b += TILE_HALVES) {
#pragma GCC unroll 2
        for (uint32_t k = 0; k < TILE_K; k += 2) {
            __m512i left = _mm512_load_si512(b + k / 2 * ROW_HALVES);
            __m512i right = _mm512_load_si512(b + b_next + k / 2 * ROW_HALVES);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < PART; r++) {
                __m512i pair = vec_pair(a + r * ROW_HALVES + k);
                sum[r][0] = vec_dot(sum[r][0], pair, left);
                sum[r][1] = vec_dot(sum[r][1], pair, right);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < PART; r++) {
        vec_store(c + r * VEC_LANES, sum[r][0]);
        vec_store(c + TILE_FLOATS + r * VEC_LANES, sum[r][1]);
    }
}

static inline void multiply(float *c, bool adds, const uint16_t *a, size_t a_next,
                            const uint16_t *b, size_t b_next, uint32_t steps)
{
    for (uint32_t tile = 0; tile < 2; tile++, a += a_next, c += 2 * TILE_FLOATS) {
        for (uint32_t r = 0; r < 16; r += PART)
            multiply_part(c + r * VEC_LANES, adds, a + r * ROW_HALVES, b, b_next, steps);
    }
}

void aq_attn_prefill_avx512bf16(struct aq_exec *ex, const struct aq_attn *a)
{
    attend_pairs(ex, a);
}
