/* SPDX-License-Identifier: Apache-2.0
 * Embedding rows, reference: element by element; the one sum is rounded once. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/versions.h"

static void embed_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct aq_embed *e = arg;
    uint32_t panel_row = e->id[row] % AQ_PANEL_ROWS;
    const char *panel =
        (const char *)e->table + e->id[row] / AQ_PANEL_ROWS * aq_panel_bytes(e->table_dtype, e->k);
    for (uint32_t d = 0; d < e->k; d++) {
        float y = aq_panel_load(panel, e->table_dtype, e->table_layout, e->k, panel_row, d);
        if (e->positions)
            y += aq_element_load(e->positions, e->positions_dtype,
                                 (size_t)e->position[row] * e->k + d);
        aq_element_store(e->y, e->y_dtype, row * e->y_stride + d, y);
    }
}

void aq_embed_ref(struct aq_exec *ex, const struct aq_embed *e)
{
    assert(e->y_dtype == AQ_F32 || (e->y_dtype == AQ_BF16 && !e->positions));
    aq_pool_run(aq_exec_pool(ex), embed_row, (void *)e, e->rows);
}

static void add_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct aq_add_rows *a = arg;
    for (uint32_t d = 0; d < a->k; d++)
        a->y[row * a->y_stride + d] +=
            aq_element_load(a->table, a->table_dtype, (size_t)a->index[row] * a->k + d);
}

void aq_add_rows_ref(struct aq_exec *ex, const struct aq_add_rows *a)
{
    aq_pool_run(aq_exec_pool(ex), add_row, (void *)a, a->rows);
}
