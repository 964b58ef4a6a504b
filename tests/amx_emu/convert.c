/* SPDX-License-Identifier: Apache-2.0
 * What kernels on emulated tiles take from AVX-512, in plain C; meson.build renames it. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/panel.h"

#include <string.h>

void aq_gemm_convert_avx512bf16(void *dst, const void *src, enum aq_dtype dtype, bool round,
                                uint32_t k)
{
    uint16_t *to = dst;
    assert(round);
    memset(to, 0, aq_panel_offset(AQ_BF16, aq_align_up(k, 2)));
    for (uint32_t row = 0; row < AQ_PANEL_ROWS; row++) {
        for (uint32_t i = 0; i < k; i++)
            to[aq_panel_index(AQ_LAYOUT_PAIR64, k, row, i)] =
                aq_bf16_from_f32(aq_panel_load(src, dtype, aq_layout_cpu(dtype), k, row, i));
    }
}
