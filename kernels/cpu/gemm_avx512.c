/* SPDX-License-Identifier: Apache-2.0
 * Products with AVX-512: 6 rows by 64 columns in 24 of the 32 registers.  bf16 products run as f32
 * ones, on operands widened block by block. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { STEP_VECS = 4 };

VEC_FN vec vec_pair_even(const uint16_t *pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
}
VEC_FN vec vec_pair_odd(const uint16_t *pairs)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), high));
}

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
