/* SPDX-License-Identifier: Apache-2.0
 * Products on codes with AVX-512: VPMADDWD multiplies pairs of 16-bit codes and adds both; 6 rows
 * by 64 columns in 24 of the 32 registers. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#define CODE_BYTES 2
enum { STEP_VECS = 4 };

VEC_FN vec_int codes_dot(vec_int sum, vec_int x, vec_int w)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(x, w));
}

VEC_FN void codes_store(char *p, vec_int v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(v));
}

/* 64 bytes to 16 bits each. */
VEC_FN void spread(uint8_t *dst, const uint8_t *src)
{
    for (uint32_t i = 0; i < 64; i += 32)
        _mm512_storeu_si512(dst + 2 * (size_t)i, _mm512_cvtepu8_epi16(_mm256_loadu_si256(
                                                     (const __m256i *)(const void *)(src + i))));
}

/* Four bits of the even and the odd columns of 8 rows, side by side. */
VEC_FN void nibbles(uint8_t *dst, const uint8_t *src, uint32_t shift)
{
    __m512i v = _mm512_srli_epi32(_mm512_loadu_si512(src), shift);
    _mm256_storeu_si256((__m256i *)(void *)dst,
                        _mm512_cvtepi32_epi16(_mm512_and_si512(v, _mm512_set1_epi32(0xf))));
}

VEC_FN vec_int codes_load8(const uint8_t *src, uint32_t i, uint32_t column)
{
    const uint8_t *at = src + ((size_t)i * AQ_PANEL_ROWS + column) * 2;
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
#include "kernels/cpu/codes_wide_simd.h"

#define BLOCK_K AQ_GEMM_BLOCK_K_F32
#define FINISH  aq_gemm_finish_avx512
#include "kernels/cpu/codes_simd.h"

void aq_product_codes_avx512(struct aq_exec *ex, const struct aq_product *p)
{
    aq_codes_run(ex, p, &ops, make_rows);
}
