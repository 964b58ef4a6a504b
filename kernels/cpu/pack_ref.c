/* SPDX-License-Identifier: Apache-2.0
 * Panels, reference: element by element. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/versions.h"

#include <string.h>

/* The codes, scale and minimum of one row. */
static void quantise_row(const struct aq_group *g, enum aq_dtype dtype, uint32_t row,
                         const float *v, uint32_t n)
{
    struct aq_quant q = aq_quant_of(v, n, dtype);
    g->scale[row] = q.scale;
    g->minimum[row] = q.minimum;
    for (uint32_t i = 0; i < n; i++)
        aq_group_set(g, dtype, row, i, aq_quant_code(q, v[i], dtype));
}

static void pack_groups(void *dst, enum aq_dtype dst_dtype, const void *src,
                        enum aq_dtype src_dtype, uint32_t rows, uint32_t k)
{
    for (uint32_t first = 0; first < k; first += AQ_GROUP_K) {
        struct aq_group g = aq_group_at(dst, dst_dtype, k, first);
        uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, k - first);
        for (uint32_t r = 0; r < rows; r++) {
            float v[AQ_GROUP_K];
            for (uint32_t i = 0; i < n; i++)
                v[i] = aq_element_load(src, src_dtype, (size_t)r * k + first + i);
            quantise_row(&g, dst_dtype, r, v, n);
        }
    }
}

void aq_pack_panel_ref(void *dst, enum aq_dtype dst_dtype, enum aq_layout dst_layout,
                       const void *src, enum aq_dtype src_dtype, uint32_t rows, uint32_t k)
{
    assert(rows <= AQ_PANEL_ROWS);
    size_t size = src_dtype == dst_dtype ? aq_dtype_bytes(src_dtype) : 0;
    assert(aq_dtype_is_quantised(dst_dtype) == (dst_layout == AQ_LAYOUT_GROUP64));
    memset(dst, 0, aq_panel_bytes(dst_dtype, k));
    if (dst_layout == AQ_LAYOUT_GROUP64) {
        pack_groups(dst, dst_dtype, src, src_dtype, rows, k);
        return;
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < k; i++) {
            size_t from = (size_t)r * k + i, to = aq_panel_index(dst_layout, k, r, i);
            if (size) /* same dtype: bits, so that no NaN changes */
                memcpy((char *)dst + to * size, (const char *)src + from * size, size);
            else
                aq_element_store(dst, dst_dtype, to, aq_element_load(src, src_dtype, from));
        }
    }
}
