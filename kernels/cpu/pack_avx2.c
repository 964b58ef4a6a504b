/* SPDX-License-Identifier: Apache-2.0
 * Panels with AVX2. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

VEC_FN vec halves_load(const uint16_t *p, uint32_t n)
{
    uint16_t part[VEC_LANES] = {0};
    if (n < VEC_LANES) {
        memcpy(part, p, n * sizeof(*p));
        p = part;
    }
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_cvtepu16_epi32(h));
}
VEC_FN void halves_store(uint16_t *p, vec v)
{
    __m256i i = _mm256_castps_si256(v);
    __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storeu_si128((__m128i *)(void *)p, h);
}
VEC_FN vec halves_pair(vec a, vec b)
{
    __m256i high = _mm256_slli_epi32(_mm256_castps_si256(b), 16);
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_castps_si256(a), high));
}

#include "kernels/cpu/pack_simd.h"

void aq_pack_panel_avx2(void *dst, enum aq_dtype dst_dtype, enum aq_layout dst_layout,
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
