/* SPDX-License-Identifier: Apache-2.0
 * VDPBF16PS beside FMA, in registers: on some CPUs it does a quarter of the multiplications of an
 * FMA per cycle, and products in f32 on rounded numbers are faster than those in bf16. */
#include "kernels/cpu/versions.h"

#include <immintrin.h>

enum {
    SUMS = 12, /* more than an instruction takes cycles, over two a cycle */
    TURNS = 200,
    TRIALS = 9,
};

#define KEEP(v) __asm__ volatile("" : "+v"(v))

static uint64_t dot_cycles(void)
{
    __m512 sum[SUMS];
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x30803080);
    for (uint32_t i = 0; i < SUMS; i++)
        sum[i] = _mm512_setzero_ps();
    uint64_t start = __rdtsc();
    for (uint32_t t = 0; t < TURNS; t++) {
#pragma GCC unroll 12
        for (uint32_t i = 0; i < SUMS; i++) {
            sum[i] = _mm512_dpbf16_ps(sum[i], x, x);
            KEEP(sum[i]);
        }
    }
    return __rdtsc() - start;
}

static uint64_t fma_cycles(void)
{
    __m512 sum[SUMS], x = _mm512_set1_ps(0x1p-30f);
    for (uint32_t i = 0; i < SUMS; i++)
        sum[i] = _mm512_setzero_ps();
    uint64_t start = __rdtsc();
    for (uint32_t t = 0; t < TURNS; t++) {
#pragma GCC unroll 12
        for (uint32_t i = 0; i < SUMS; i++) {
            sum[i] = _mm512_fmadd_ps(x, x, sum[i]);
            KEEP(sum[i]);
        }
    }
    return __rdtsc() - start;
}

/* A dot product counts twice.  Products in f32 reach 0.65 of the FMAs' rate, since they round and
 * widen, those in bf16 nearly all of theirs: slower is what has less than 0.7 of the FMAs' rate.
 * CPUs have a half, once or twice it, so that what disturbs the least of nine trials decides
 * nothing. */
bool aq_dot_is_slow(void)
{
    uint64_t dot = UINT64_MAX, fma = UINT64_MAX;
    for (uint32_t i = 0; i < TRIALS; i++) {
        dot = aq_min_u64(dot, dot_cycles());
        fma = aq_min_u64(fma, fma_cycles());
    }
    return 2.0 * (double)fma < 0.7 * (double)dot;
}
