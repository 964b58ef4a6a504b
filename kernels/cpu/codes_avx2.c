/* SPDX-License-Identifier: Apache-2.0
 * Products on codes with AVX2: VPMADDWD multiplies pairs of 16-bit codes and adds both; 6 rows by
 * 16 columns in 12 of the 16 registers. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#define CODE_BYTES 2
enum { STEP_VECS = 2 };

VEC_FN vec_int codes_dot(vec_int sum, vec_int x, vec_int w)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, w));
}

VEC_FN __m128i narrow(__m256i v)
{
    return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

VEC_FN void codes_store(char *p, vec_int v)
{
    _mm_storeu_si128((__m128i *)(void *)p, narrow(v));
}

/* 64 bytes to 16 bits each. */
VEC_FN void spread(uint8_t *dst, const uint8_t *src)
{
    for (uint32_t i = 0; i < 64; i += 16)
        _mm256_storeu_si256(
            (__m256i *)(void *)(dst + 2 * (size_t)i),
            _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
}

/* Four bits of the even and the odd columns of 8 rows, side by side. */
VEC_FN void nibbles(uint8_t *dst, const uint8_t *src, uint32_t shift)
{
    for (uint32_t i = 0; i < 2; i++) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(src + 32 * (size_t)i));
        v = _mm256_and_si256(_mm256_srl_epi32(v, _mm_cvtsi32_si128((int)shift)),
                             _mm256_set1_epi32(0xf));
        _mm_storeu_si128((__m128i *)(void *)(dst + 16 * (size_t)i), narrow(v));
    }
}

VEC_FN vec_int codes_load8(const uint8_t *src, uint32_t i, uint32_t column)
{
    const uint8_t *at = src + ((size_t)i * AQ_PANEL_ROWS + column) * 2;
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at));
}
#include "kernels/cpu/codes_wide_simd.h"

#define BLOCK_K AQ_GEMM_BLOCK_K_F32
#define FINISH  aq_gemm_finish_avx2
#include "kernels/cpu/codes_simd.h"

void aq_product_codes_avx2(struct aq_exec *ex, const struct aq_product *p)
{
    aq_codes_run(ex, p, &ops, make_rows);
}
