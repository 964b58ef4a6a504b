/* SPDX-License-Identifier: Apache-2.0
 * VDPBF16PS beside FMA, in registers: on some CPUs it does a quarter of the multiplications of an
 * FMA per cycle, and products in f32 on rounded numbers are faster than those in bf16. */
#include "kernels/cpu/versions.h"

#include <immintrin.h>

enum {
    TURNS = 200,
    TRIALS = 9,
};

/* Sums have names and no array, which compilers keep in memory: then it is stores that are timed.
 * There are more than an instruction takes cycles, over two a cycle. */
#define EACH_SUM(m) m(0) m(1) m(2) m(3) m(4) m(5) m(6) m(7) m(8) m(9) m(10) m(11)
#define NEW_SUM(i)  __m512 sum##i = _mm512_setzero_ps();
#define ADD_DOT(i)  __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(sum##i) : "v"(x));
#define ADD_FMA(i)  __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(sum##i) : "v"(x));

static uint64_t dot_cycles(void)
{
    EACH_SUM(NEW_SUM)
    __m512 x = _mm512_castsi512_ps(_mm512_set1_epi16(0x3080));
    uint64_t start = __rdtsc();
    for (uint32_t t = 0; t < TURNS; t++) {
        EACH_SUM(ADD_DOT)
    }
    return __rdtsc() - start;
}

static uint64_t fma_cycles(void)
{
    EACH_SUM(NEW_SUM)
    __m512 x = _mm512_set1_ps(0x1p-30f);
    uint64_t start = __rdtsc();
    for (uint32_t t = 0; t < TURNS; t++) {
        EACH_SUM(ADD_FMA)
    }
    return __rdtsc() - start;
}

/* A dot product counts twice.  Products in f32 reach 0.85 of the FMAs' rate, since they round and
 * widen, those in bf16 nearly all of theirs: slower is what has less than 0.8 of the FMAs' rate.
 * CPUs have a half, once or twice it, so that what disturbs the least of nine trials decides
 * nothing. */
bool aq_dot_is_slow(void)
{
    uint64_t dot = UINT64_MAX, fma = UINT64_MAX;
    for (uint32_t i = 0; i < TRIALS; i++) {
        dot = aq_min_u64(dot, dot_cycles());
        fma = aq_min_u64(fma, fma_cycles());
    }
    return 2.0 * (double)fma < 0.8 * (double)dot;
}
