/* SPDX-License-Identifier: Apache-2.0
 * Embedding rows: a gather from panels, with the row of another table added.  A block of threads
 * per row, neighbours along the row: bound by reading the rows. */
#include "kernels/cuda/panel.cuh"

enum { EMBED_THREADS = 256 };

__global__ void __launch_bounds__(EMBED_THREADS) embed_row(struct aq_embed e, size_t panel_bytes)
{
    uint32_t row = blockIdx.x, id = e.id[row];
    if (e.chosen && id >= AQ_ID_CHOSEN)
        id = e.chosen[id - AQ_ID_CHOSEN];
    const uint8_t *panel = static_cast<const uint8_t *>(e.table) + id / AQ_PANEL_ROWS * panel_bytes;
    size_t place = e.positions ? static_cast<size_t>(e.position[row]) * e.k : 0;
    for (uint32_t d = threadIdx.x; d < e.k; d += blockDim.x) {
        float y = aq_cu_panel_load(panel, e.table_dtype, e.k, id % AQ_PANEL_ROWS, d);
        if (e.positions)
            y += aq_cu_load(e.positions, e.positions_dtype, place + d);
        aq_cu_store(e.y, e.y_dtype, row * e.y_stride + d, y);
    }
}

__global__ void __launch_bounds__(EMBED_THREADS) add_row(struct aq_add_rows a)
{
    uint32_t row = blockIdx.x;
    size_t from = static_cast<size_t>(a.index[row]) * a.k;
    for (uint32_t d = threadIdx.x; d < a.k; d += blockDim.x)
        a.y[row * a.y_stride + d] += aq_cu_load(a.table, a.table_dtype, from + d);
}

int aq_cuda_embed(const struct aq_cuda_exec *ex, const struct aq_embed *e)
{
    assert(aq_dtype_is_float(e->y_dtype) && (e->y_dtype == AQ_F32 || !e->positions));
    assert(e->table_layout ==
           (aq_dtype_is_quantised(e->table_dtype) ? AQ_LAYOUT_GROUP64 : AQ_LAYOUT_ROWS));
    if (!e->rows)
        return 0;
    return AQ_LAUNCH(ex, embed_row, e->rows, aq_cu_row_threads(e->k, EMBED_THREADS), 0, *e,
                     aq_panel_bytes(e->table_dtype, e->k));
}

int aq_cuda_add_rows(const struct aq_cuda_exec *ex, const struct aq_add_rows *a)
{
    if (!a->rows)
        return 0;
    return AQ_LAUNCH(ex, add_row, a->rows, aq_cu_row_threads(a->k, EMBED_THREADS), 0, *a);
}
