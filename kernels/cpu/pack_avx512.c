/* SPDX-License-Identifier: Apache-2.0
 * Panels with AVX-512. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

VEC_FN vec halves_load(const uint16_t *p, uint32_t n)
{
    __m256i h = n == VEC_LANES ? _mm256_loadu_si256((const __m256i *)(const void *)p)
                               : _mm256_maskz_loadu_epi16(vec_first(n), p);
    return _mm512_castsi512_ps(_mm512_cvtepu16_epi32(h));
}
VEC_FN void halves_store(uint16_t *p, vec v)
{
    __m256i h = _mm512_cvtepi32_epi16(_mm512_castps_si512(v));
    _mm256_storeu_si256((__m256i *)(void *)p, h);
}
VEC_FN vec halves_pair(vec a, vec b)
{
    __m512i high = _mm512_slli_epi32(_mm512_castps_si512(b), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), high));
}

#include "kernels/cpu/pack_simd.h"

void aq_pack_panel_avx512(void *dst, enum aq_dtype dst_dtype, enum aq_layout dst_layout,
                          const void *src, enum aq_dtype src_dtype, uint32_t rows, uint32_t k)
{
    assert(rows <= AQ_PANEL_ROWS);
    assert(aq_dtype_is_quantised(dst_dtype) == (dst_layout == AQ_LAYOUT_GROUP64));
    if (pack_is_odd(dst_dtype, dst_layout)) {
        aq_pack_panel_ref(dst, dst_dtype, dst_layout, src, src_dtype, rows, k);
        return;
    }
    pack_panel(&(struct pack){dst, src, dst_dtype, src_dtype, dst_layout, rows, k});
}
