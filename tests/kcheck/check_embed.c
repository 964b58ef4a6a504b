/* SPDX-License-Identifier: Apache-2.0
 * Embedding rows: copies, and one sum rounded once, so every bit is that of the reference. */
#include "kernels/cpu/panel.h"
#include "tests/kcheck/kcheck.h"

static const enum aq_dtype dtypes[] = {AQ_F32, AQ_F16, AQ_BF16};
static const enum aq_dtype formats[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4}; /* of a table */
static const uint32_t k_values[] = {1, 2, 7, 8, 15, 16, 17, 33, 64, 130, 768};

static uint32_t *draw_indices(struct kc *kc, uint32_t count, uint32_t below)
{
    uint32_t *index = kc_bytes(kc, count * sizeof(*index));
    for (uint32_t i = 0; i < count; i++)
        index[i] = kc_below(kc, below);
    return index;
}

/* The same rows, of which a device finds some ids in `chosen`. */
static void hide_ids(struct kc *kc, struct aq_embed *e)
{
    uint32_t *chosen = kc_bytes(kc, e->rows * sizeof(*chosen));
    uint32_t *id = kc_bytes(kc, e->rows * sizeof(*id));
    for (uint32_t r = 0; r < e->rows; r++) {
        uint32_t at = e->rows - 1 - r;
        chosen[at] = e->id[r];
        id[r] = kc_below(kc, 2) ? AQ_ID_CHOSEN + at : e->id[r];
    }
    e->id = id;
    e->chosen = chosen;
}

static void check_embed(struct kc *kc, enum aq_dtype dtype, enum aq_layout layout,
                        enum kc_fill fill, uint32_t k)
{
    uint32_t vocab = 1 + kc_below(kc, 150), rows = 1 + kc_below(kc, 40), places = 20;
    size_t panel_bytes = aq_panel_bytes(dtype, k);
    enum aq_dtype source = kc_source(dtype);
    const char *w = kc_in(kc, source, fill, vocab, k, k);
    char *panels = kc_bytes(kc, aq_panel_count(vocab) * panel_bytes);
    for (uint32_t i = 0; i < aq_panel_count(vocab); i++) {
        uint32_t n = (uint32_t)aq_min_u64(AQ_PANEL_ROWS, vocab - i * AQ_PANEL_ROWS);
        kc_ref(kc)->pack_panel(panels + i * panel_bytes, dtype, layout,
                               w + (size_t)i * AQ_PANEL_ROWS * k * aq_dtype_bytes(source), source,
                               n, k);
    }
    struct aq_embed e = {.table = panels, .table_dtype = dtype, .table_layout = layout};
    e.id = draw_indices(kc, rows, vocab);
    e.rows = rows;
    e.k = k;
    e.y_dtype = kc_below(kc, 3) ? AQ_F32 : AQ_BF16;
    e.y_stride = k + kc_below(kc, 5);
    if (e.y_dtype == AQ_F32 && kc_below(kc, 3)) {
        e.positions_dtype = dtypes[kc_below(kc, AQ_ARRAY_LEN(dtypes))];
        e.positions = kc_in(kc, e.positions_dtype, KC_NORMAL, places, k, k);
        e.position = draw_indices(kc, rows, places);
    }
    struct kc_out y = kc_out(kc, e.y_dtype, rows, k, e.y_stride);
    e.y = y.ref;
    kc_ref(kc)->embed(kc_exec(kc, 0), &e);
    if (kc_rows_only(kc) && kc_below(kc, 2))
        hide_ids(kc, &e);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        kc_out_reset(&y);
        e.y = y.got;
        kc_new(kc)->embed(kc_exec(kc, threads), &e);
        kc_same(kc, &y);
    }
}

static void check_add(struct kc *kc, enum aq_dtype dtype, enum kc_fill fill, uint32_t k)
{
    uint32_t rows = 1 + kc_below(kc, 40), places = 1 + kc_below(kc, 30);
    size_t stride = k + kc_below(kc, 5);
    const void *table = kc_in(kc, dtype, fill, places, k, k);
    const uint32_t *index = draw_indices(kc, rows, places);
    const float *before = kc_in(kc, AQ_F32, KC_NORMAL, rows, k, stride);
    struct kc_out y = kc_out(kc, AQ_F32, rows, k, stride);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        kc_out_set(&y, before);
        struct aq_add_rows a = {y.ref, stride, table, index, dtype, rows, k, 0};
        kc_ref(kc)->add_rows(kc_exec(kc, 0), &a);
        a.y = y.got;
        kc_new(kc)->add_rows(kc_exec(kc, threads), &a);
        kc_same(kc, &y);
    }
}

static void check(struct kc *kc)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(k_values); i++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(formats); d++) {
            enum kc_fill fill = (i + d) % KC_FINITE_COUNT;
            for (uint32_t layout = 0; layout < AQ_LAYOUT_COUNT; layout++) {
                if (aq_dtype_is_quantised(formats[d]) != (layout == AQ_LAYOUT_GROUP64))
                    continue;
                if (kc_rows_only(kc) && layout != AQ_LAYOUT_ROWS && layout != AQ_LAYOUT_GROUP64)
                    continue;
                if (kc_begin(kc, KC_SLOT(embed), "embed_%s_%s_k%u_%s", aq_dtype_name(formats[d]),
                             aq_layout_name(layout), k_values[i], kc_fill_name(fill)))
                    check_embed(kc, formats[d], layout, fill, k_values[i]);
            }
        }
        for (size_t d = 0; d < AQ_ARRAY_LEN(dtypes); d++) {
            enum kc_fill fill = (i + d) % KC_FINITE_COUNT;
            if (kc_begin(kc, KC_SLOT(add_rows), "add_rows_%s_k%u_%s", aq_dtype_name(dtypes[d]),
                         k_values[i], kc_fill_name(fill)))
                check_add(kc, dtypes[d], fill, k_values[i]);
        }
    }
}

const struct kc_check kc_check_embed = {.name = "embed", .check = check};
