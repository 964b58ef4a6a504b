/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/vec_bf16.h - vectors of 32 numbers in bf16, beside vec.h on AVX-512: by AVX512-BF16,
 * or without it, for tests on other CPUs, by what gives the same. */
#ifndef AQ_KERNELS_CPU_VEC_BF16_H
#define AQ_KERNELS_CPU_VEC_BF16_H

#include "kernels/cpu/vec.h"

#if defined(__AVX512BF16__)

/* low and high side by side, to nearest even. */
VEC_FN __m512i vec_halves(vec low, vec high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Element i of low and of high as pair i. */
VEC_FN __m512i vec_pairs(vec low, vec high)
{
    const __m512i weave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(weave, vec_halves(low, high));
}

/* sum + a * b of both elements of each pair, products exact; subnormal factors and sums are 0. */
VEC_FN vec vec_dot(vec sum, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

#else

/* As the instruction rounds: subnormal numbers are 0. */
VEC_FN __m512i vec_half_bits(vec a)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    __mmask16 tiny = _mm512_cmp_ps_mask(_mm512_abs_ps(a), vec_set(0x1p-126f), _CMP_LT_OQ);
    __m512i bits = _mm512_castps_si512(vec_round_bf16(a));
    return _mm512_mask_and_epi32(bits, tiny, _mm512_castps_si512(a), sign);
}

VEC_FN __m512i vec_halves(vec low, vec high)
{
    __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(vec_half_bits(low), 16));
    __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(vec_half_bits(high), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

VEC_FN __m512i vec_pairs(vec low, vec high)
{
    return _mm512_or_si512(_mm512_srli_epi32(vec_half_bits(low), 16), vec_half_bits(high));
}

/* 0 for subnormal numbers. */
VEC_FN vec vec_flush(vec a)
{
    return vec_zero_where(_mm512_cmp_ps_mask(_mm512_abs_ps(a), vec_set(0x1p-126f), _CMP_LT_OQ), a);
}

/* The elements of index 1 first, as the instruction adds (SDM, volume 2, VDPBF16PS). */
VEC_FN vec vec_dot(vec sum, __m512i a, __m512i b)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    for (int index = 1; index >= 0; index--) {
        __m512i x = index ? _mm512_and_si512(a, high) : _mm512_slli_epi32(a, 16);
        __m512i y = index ? _mm512_and_si512(b, high) : _mm512_slli_epi32(b, 16);
        sum = vec_fma(vec_flush(_mm512_castsi512_ps(x)), vec_flush(_mm512_castsi512_ps(y)), sum);
        sum = vec_flush(sum);
    }
    return sum;
}

#endif

/* The pair at p in all places. */
VEC_FN __m512i vec_pair(const uint16_t *p)
{
    int bits;
    memcpy(&bits, p, sizeof(bits));
    return _mm512_set1_epi32(bits);
}

#endif
