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

struct add_job {
    float *y;
    size_t y_stride;
    const void *table;
    enum aq_dtype dtype;
    const uint32_t *index;
    uint32_t k;
};

static void add_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct add_job *job = arg;
    for (uint32_t d = 0; d < job->k; d++)
        job->y[row * job->y_stride + d] +=
            aq_element_load(job->table, job->dtype, (size_t)job->index[row] * job->k + d);
}

void aq_add_rows_ref(struct aq_exec *ex, float *y, size_t y_stride, const void *table,
                     enum aq_dtype table_dtype, const uint32_t *index, uint32_t rows, uint32_t k)
{
    struct add_job job = {.y = y, .y_stride = y_stride, .table = table, .dtype = table_dtype};
    job.index = index;
    job.k = k;
    aq_pool_run(aq_exec_pool(ex), add_row, &job, rows);
}
