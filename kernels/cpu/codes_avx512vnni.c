/* SPDX-License-Identifier: Apache-2.0
 * Products on codes with AVX512-VNNI: VPDPBUSD multiplies four unsigned codes of W by four signed
 * ones of x and adds all to 32 bits; 6 rows by 64 columns in 24 of the 32 registers. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#define CODE_BYTES 1
enum { STEP_VECS = 4 };

VEC_FN vec_int codes_dot(vec_int sum, vec_int x, vec_int w)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}

VEC_FN void codes_store(char *p, vec_int v)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(v));
}

/* The two pairs of 16 rows, [16][2] each, to [16][4]. */
VEC_FN __m512i weave(__m512i a, __m512i b, bool upper)
{
    const __m512i lower =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return _mm512_permutex2var_epi16(
        a, upper ? _mm512_add_epi16(lower, _mm512_set1_epi16(16)) : lower, b);
}

VEC_FN vec_int codes_load8(const uint8_t *src, uint32_t i, uint32_t column)
{
    const uint8_t *at = src + ((size_t)2 * i * AQ_PANEL_ROWS + column / 32 * 32) * 2;
    return weave(_mm512_loadu_si512(at), _mm512_loadu_si512(at + 2 * AQ_PANEL_ROWS), column % 32);
}

VEC_FN void codes_spread8(uint8_t *dst, const uint8_t *src, uint32_t n)
{
    uint32_t pairs = (uint32_t)aq_div_up(n, 2);
    for (uint32_t i = 0; i < AQ_GROUP_K / 2; i += 2) {
        for (uint32_t half = 0; half < 2; half++) {
            const uint8_t *at = src + ((size_t)i * AQ_PANEL_ROWS + 32 * half) * 2;
            __m512i a = i < pairs ? _mm512_loadu_si512(at) : _mm512_setzero_si512();
            __m512i b =
                i + 1 < pairs ? _mm512_loadu_si512(at + 2 * AQ_PANEL_ROWS) : _mm512_setzero_si512();
            _mm512_storeu_si512(dst, weave(a, b, false));
            _mm512_storeu_si512(dst + 64, weave(a, b, true));
            dst += 128;
        }
    }
}

/* Words of the even and the odd columns of a row lie side by side: byte t of each has the columns
 * 4t, 4t + 2 of the even one, 4t + 1, 4t + 3 of the odd one. */
VEC_FN void codes_spread4(uint8_t *dst, const uint8_t *src, uint32_t n)
{
    const __m512i low = _mm512_set1_epi32(0xf), high = _mm512_set1_epi32(0xf0000);
    uint32_t words = (uint32_t)aq_div_up(n, 16);
    for (uint32_t j = 0; j < AQ_GROUP_K / 16; j++) {
        for (uint32_t row = 0; row < AQ_PANEL_ROWS; row += 8) {
            __m512i v = j < words ? _mm512_loadu_si512(src + ((size_t)j * AQ_PANEL_ROWS + row) * 8)
                                  : _mm512_setzero_si512();
            for (uint32_t t = 0; t < 4; t++) {
                __m512i b = _mm512_srli_epi32(v, 8 * t);
                __m512i z = _mm512_or_si512(_mm512_and_si512(b, low),
                                            _mm512_and_si512(_mm512_slli_epi32(b, 12), high));
                z = _mm512_or_si512(z, _mm512_srli_epi64(z, 24));
                uint8_t *to = dst + (((size_t)j * 4 + t) * AQ_PANEL_ROWS + row) * 4;
                _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi64_epi32(z));
            }
        }
    }
}

#define BLOCK_K AQ_GEMM_BLOCK_K_BF16
#define FINISH  aq_gemm_finish_avx512
#include "kernels/cpu/codes_simd.h"

void aq_product_codes_avx512vnni(struct aq_exec *ex, const struct aq_product *p)
{
    aq_codes_run(ex, p, &ops, make_rows);
}
