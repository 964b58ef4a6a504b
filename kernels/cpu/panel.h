/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/panel.h - where an element of a panel lies, and scalar reads of any dtype. */
#ifndef AQ_KERNELS_CPU_PANEL_H
#define AQ_KERNELS_CPU_PANEL_H

#include "base/half.h"
#include "base/panel.h"
#include "base/types.h"
#include "kernels/cpu/quant.h"

#include <assert.h>

/* Index of element k of row `row` (0..63) in a panel whose rows are k_count long; not in GROUP64.
 * */
static inline size_t aq_panel_index(enum aq_layout layout, uint32_t k_count, uint32_t row,
                                    uint32_t k)
{
    switch (layout) {
    case AQ_LAYOUT_ROWS: return (size_t)row * k_count + k;
    case AQ_LAYOUT_PAIR64: return ((size_t)(k / 2) * AQ_PANEL_ROWS + row) * 2 + (k & 1);
    case AQ_LAYOUT_COL64: return (size_t)k * AQ_PANEL_ROWS + row;
    default: assert(!"a known layout"); return 0;
    }
}

/* Element `index` of an array of f32, f16 or bf16, widened exactly. */
static inline float aq_element_load(const void *data, enum aq_dtype dtype, size_t index)
{
    switch (dtype) {
    case AQ_F32: return ((const float *)data)[index];
    case AQ_F16: return aq_f32_from_f16(((const uint16_t *)data)[index]);
    case AQ_BF16: return aq_f32_from_bf16(((const uint16_t *)data)[index]);
    default: assert(!"a dtype that is computed with"); return 0;
    }
}

/* Stores v as element `index`, rounded to nearest even. */
static inline void aq_element_store(void *data, enum aq_dtype dtype, size_t index, float v)
{
    switch (dtype) {
    case AQ_F32: ((float *)data)[index] = v; break;
    case AQ_F16: ((uint16_t *)data)[index] = aq_f16_from_f32(v); break;
    case AQ_BF16: ((uint16_t *)data)[index] = aq_bf16_from_f32(v); break;
    default: assert(!"a dtype that is computed with");
    }
}

/* Element (row, k) of a panel, widened exactly; code * scale + minimum of a quantised one. */
static inline float aq_panel_load(const void *panel, enum aq_dtype dtype, enum aq_layout layout,
                                  uint32_t k_count, uint32_t row, uint32_t k)
{
    if (layout == AQ_LAYOUT_GROUP64)
        return aq_group_load(panel, dtype, k_count, row, k);
    return aq_element_load(panel, dtype, aq_panel_index(layout, k_count, row, k));
}

#endif
