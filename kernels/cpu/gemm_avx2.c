/* SPDX-License-Identifier: Apache-2.0
 * Products with AVX2 and FMA: 6 rows by 16 columns in 12 of the 16 registers.  bf16 products run as
 * f32 ones, on operands widened block by block. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { STEP_VECS = 2, STEP_PAIRS_ROWS = 24 };

VEC_FN vec vec_pair_even(const uint16_t *pairs)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)pairs);
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}
VEC_FN vec vec_pair_odd(const uint16_t *pairs)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)pairs);
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
}

/* Pairs of the upper halves of a and b. */
VEC_FN void vec_store_pairs(uint16_t *p, vec a, vec b)
{
    __m256i low = _mm256_srli_epi32(_mm256_castps_si256(a), 16);
    __m256i high = _mm256_castps_si256(b);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_or_si256(low, high));
}
VEC_FN void codes_pair(const uint8_t *p, vec v[2])
{
    __m128i both = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i even = _mm_and_si128(both, _mm_set1_epi16(0xff)), odd = _mm_srli_epi16(both, 8);
    v[0] = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(even));
    v[1] = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(odd));
}
VEC_FN void codes_words(const uint8_t *p, vec_int w[2])
{
    const __m256i lanes = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
    a = _mm256_permutevar8x32_epi32(a, lanes);
    b = _mm256_permutevar8x32_epi32(b, lanes);
    w[0] = _mm256_permute2x128_si256(a, b, 0x20);
    w[1] = _mm256_permute2x128_si256(a, b, 0x31);
}
#define STEP_CODES_ROWS 1
#include "kernels/cpu/unpack_simd.h"

#include "kernels/cpu/gemm_simd.h"

void aq_gemm_finish_avx2(const struct aq_gemm_finish *f)
{
    finish(f);
}

void aq_product_f32_avx2(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->x_dtype == AQ_F32);
    aq_gemm_run(ex, p, &ops);
}

void aq_product_bf16_avx2(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->x_dtype == AQ_BF16);
    aq_gemm_run(ex, p, &ops);
}

void aq_unpack_avx2(struct aq_exec *ex, const struct aq_unpack *u)
{
    aq_gemm_unpack(ex, u, &ops);
}
