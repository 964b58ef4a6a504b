/* SPDX-License-Identifier: Apache-2.0
 * pack_panel: every bit is that of the reference. */
#include "tests/kcheck/kcheck.h"

static const enum aq_dtype dtypes[] = {AQ_F32, AQ_F16, AQ_BF16};
static const uint32_t k_values[] = {1, 2, 15, 16, 17, 31, 33, 64, 127, 512};
static const uint32_t row_counts[] = {1, 7, 16, 33, 63, 64};

static void check_one(struct kc *kc, enum aq_dtype src, enum aq_dtype dst, enum aq_layout layout,
                      uint32_t k)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(row_counts); i++) {
        uint32_t rows = row_counts[i];
        enum kc_fill fill = (enum kc_fill)kc_below(kc, KC_NONFINITE + 1);
        const void *w = kc_in(kc, src, fill, rows, k, k);
        uint32_t elements = (uint32_t)(aq_panel_bytes(dst, k) / aq_dtype_bytes(dst));
        struct kc_out out = kc_out(kc, dst, 1, elements, elements);
        kc_ref(kc)->pack_panel(out.ref, dst, layout, w, src, rows, k);
        kc_new(kc)->pack_panel(out.got, dst, layout, w, src, rows, k);
        kc_same(kc, &out);
    }
}

static void check(struct kc *kc)
{
    for (size_t s = 0; s < AQ_ARRAY_LEN(dtypes); s++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(dtypes); d++) {
            for (uint32_t l = 0; l < AQ_LAYOUT_COUNT; l++) {
                for (size_t k = 0; k < AQ_ARRAY_LEN(k_values); k++) {
                    if (kc_begin(kc, KC_SLOT(pack_panel), "pack_%s_%s_%s_k%u",
                                 aq_dtype_name(dtypes[s]), aq_dtype_name(dtypes[d]),
                                 aq_layout_name(l), k_values[k]))
                        check_one(kc, dtypes[s], dtypes[d], l, k_values[k]);
                }
            }
        }
    }
}

const struct kc_check kc_check_pack = {.name = "pack", .check = check};
