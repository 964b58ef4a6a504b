/* SPDX-License-Identifier: Apache-2.0
 * Products with AVX-512: 6 rows by 64 columns in 24 of the 32 registers.  bf16 products run as f32
 * ones, on operands widened block by block. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { STEP_VECS = 4, STEP_PAIRS_ROWS = 24 };

VEC_FN vec vec_pair_even(const uint16_t *pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
}
VEC_FN vec vec_pair_odd(const uint16_t *pairs)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), high));
}

/* Pairs of the upper halves of a and b. */
VEC_FN void vec_store_pairs(uint16_t *p, vec a, vec b)
{
    __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_castps_si512(b)));
}
VEC_FN void codes_pair(const uint8_t *p, vec v[2])
{
    __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i even = _mm256_and_si256(both, _mm256_set1_epi16(0xff)),
            odd = _mm256_srli_epi16(both, 8);
    v[0] = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(even));
    v[1] = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(odd));
}
VEC_FN void codes_words(const uint8_t *p, vec_int w[2])
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    w[0] = _mm512_permutex2var_epi32(a, even, b);
    w[1] = _mm512_permutex2var_epi32(a, odd, b);
}
#define STEP_CODES_ROWS 4
#include "kernels/cpu/unpack_simd.h"

#include "kernels/cpu/gemm_simd.h"

void aq_gemm_finish_avx512(const struct aq_gemm_finish *f)
{
    finish(f);
}

void aq_product_f32_avx512(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->x_dtype == AQ_F32);
    aq_gemm_run(ex, p, &ops);
}

void aq_product_bf16_avx512(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->x_dtype == AQ_BF16);
    aq_gemm_run(ex, p, &ops);
}

void aq_unpack_avx512(struct aq_exec *ex, const struct aq_unpack *u)
{
    aq_gemm_unpack(ex, u, &ops);
}
