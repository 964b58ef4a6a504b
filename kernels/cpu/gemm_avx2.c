/* SPDX-License-Identifier: Apache-2.0
 * Products with AVX2 and FMA: 6 rows by 16 columns in 12 of the 16 registers.  bf16 products run as
 * f32 ones, on operands widened block by block. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { STEP_VECS = 2 };

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

#include "kernels/cpu/gemm_simd.h"

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
