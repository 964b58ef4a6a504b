/* SPDX-License-Identifier: Apache-2.0
 * Panels, reference: element by element. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/versions.h"

#include <string.h>

void aq_pack_panel_ref(void *dst, enum aq_dtype dst_dtype, enum aq_layout dst_layout,
                       const void *src, enum aq_dtype src_dtype, uint32_t rows, uint32_t k)
{
    assert(rows <= AQ_PANEL_ROWS);
    size_t size = src_dtype == dst_dtype ? aq_dtype_bytes(src_dtype) : 0;
    memset(dst, 0, aq_panel_bytes(dst_dtype, k));
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
