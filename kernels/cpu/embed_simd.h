/* SPDX-License-Identifier: Apache-2.0
 * Embedding rows, on vec.h; included once by each version's file.
 *
 * A row of a panel lies strided (64 elements, or 64 pairs, apart), so each of its cache lines
 * brings one element or pair: the rows are few and the reads many at a time, which is what gathers
 * do. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

enum { TILE_ELEMENTS = 8192 };

/* VEC_LANES elements of a row of the table from d on, d a multiple of VEC_LANES; lanes past n are
 * 0. */
VEC_FN vec table_vec(const char *panel, enum aq_dtype dtype, enum aq_layout layout, uint32_t k,
                     uint32_t row, uint32_t d, uint32_t n)
{
    if (layout == AQ_LAYOUT_ROWS) {
        size_t index = (size_t)row * k + d;
        return n == VEC_LANES ? vec_load_as(panel, dtype, index)
                              : vec_load_as_n(panel, dtype, index, n);
    }
    if (dtype == AQ_F32) {
        const float *from = (const float *)panel + aq_panel_index(layout, k, row, d);
        /* PAIR64 of f32 is a layout that nobody makes: element by element. */
        if (layout == AQ_LAYOUT_COL64 && n == VEC_LANES)
            return vec_gather(from, AQ_PANEL_ROWS);
        float x[VEC_LANES] = {0};
        for (uint32_t i = 0; i < n; i++)
            x[i] = ((const float *)panel)[aq_panel_index(layout, k, row, d + i)];
        return vec_load(x);
    }
    uint16_t x[VEC_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        x[i] = ((const uint16_t *)panel)[aq_panel_index(layout, k, row, d + i)];
    return vec_load_as(x, dtype, 0);
}

/* The same of codes in groups: their numbers, gathered one by one, then one fma. */
VEC_FN vec table_codes(const char *panel, enum aq_dtype dtype, uint32_t k_count, uint32_t row,
                       uint32_t d, uint32_t n)
{
    struct aq_group g = aq_group_at(panel, dtype, k_count, d);
    float code[VEC_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        code[i] = (float)aq_group_code(&g, dtype, row, d % AQ_GROUP_K + i);
    return vec_fma(vec_load(code), vec_set(aq_f32_from_f16(g.scale[row])),
                   vec_set(aq_f32_from_f16(g.minimum[row])));
}

VEC_FN void embed_row(const struct aq_embed *e, enum aq_dtype dtype, enum aq_layout layout,
                      uint32_t row)
{
    uint32_t panel_row = e->id[row] % AQ_PANEL_ROWS;
    const char *panel =
        (const char *)e->table + e->id[row] / AQ_PANEL_ROWS * aq_panel_bytes(dtype, e->k);
    for (uint32_t d = 0; d < e->k; d += VEC_LANES) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, e->k - d);
        vec y = layout == AQ_LAYOUT_GROUP64
                    ? table_codes(panel, dtype, e->k, panel_row, d, n)
                    : table_vec(panel, dtype, layout, e->k, panel_row, d, n);
        if (e->positions) {
            size_t index = (size_t)e->position[row] * e->k + d;
            y = vec_add(y, n == VEC_LANES
                               ? vec_load_as(e->positions, e->positions_dtype, index)
                               : vec_load_as_n(e->positions, e->positions_dtype, index, n));
        }
        vec_store_as_n(e->y, e->y_dtype, row * e->y_stride + d, y, n);
    }
}

VEC_FN void embed_row_dtype(const struct aq_embed *e, enum aq_dtype dtype, uint32_t row)
{
    switch (e->table_layout) {
    case AQ_LAYOUT_ROWS: embed_row(e, dtype, AQ_LAYOUT_ROWS, row); break;
    case AQ_LAYOUT_PAIR64: embed_row(e, dtype, AQ_LAYOUT_PAIR64, row); break;
    case AQ_LAYOUT_COL64: embed_row(e, dtype, AQ_LAYOUT_COL64, row); break;
    default: assert(!"a known layout");
    }
}

struct embed_job {
    const struct aq_embed *e;
    uint32_t tile_rows;
};

static void embed_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct embed_job *job = arg;
    uint32_t row = tile * job->tile_rows;
    uint32_t end = (uint32_t)aq_min_u64((uint64_t)row + job->tile_rows, job->e->rows);
    for (; row < end; row++) {
        switch (job->e->table_dtype) {
        case AQ_F32: embed_row_dtype(job->e, AQ_F32, row); break;
        case AQ_F16: embed_row_dtype(job->e, AQ_F16, row); break;
        case AQ_BF16: embed_row_dtype(job->e, AQ_BF16, row); break;
        case AQ_Q8: embed_row(job->e, AQ_Q8, AQ_LAYOUT_GROUP64, row); break;
        case AQ_Q4: embed_row(job->e, AQ_Q4, AQ_LAYOUT_GROUP64, row); break;
        default: assert(!"a format of weights");
        }
    }
}

void VEC_VERSION(embed)(struct aq_exec *ex, const struct aq_embed *e)
{
    assert(e->k >= 1 && (e->y_dtype == AQ_F32 || (e->y_dtype == AQ_BF16 && !e->positions)));
    assert(aq_dtype_is_quantised(e->table_dtype) == (e->table_layout == AQ_LAYOUT_GROUP64));
    struct embed_job job = {.e = e, .tile_rows = (uint32_t)aq_max_u64(1, TILE_ELEMENTS / e->k)};
    aq_pool_run(aq_exec_pool(ex), embed_tile, &job, (uint32_t)aq_div_up(e->rows, job.tile_rows));
}

VEC_FN void add_row_dtype(const struct aq_add_rows *a, enum aq_dtype dtype, uint32_t row)
{
    float *y = a->y + row * a->y_stride;
    size_t from = (size_t)a->index[row] * a->k;
    uint32_t d = 0;
    for (; d + VEC_LANES <= a->k; d += VEC_LANES)
        vec_store(y + d, vec_add(vec_load(y + d), vec_load_as(a->table, dtype, from + d)));
    if (d < a->k) {
        uint32_t n = a->k - d;
        vec x = vec_load_as_n(a->table, dtype, from + d, n);
        vec_store_n(y + d, vec_add(vec_load_n(y + d, n), x), n);
    }
}

static void add_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct aq_add_rows *a = arg;
    switch (a->table_dtype) {
    case AQ_F32: add_row_dtype(a, AQ_F32, row); break;
    case AQ_F16: add_row_dtype(a, AQ_F16, row); break;
    case AQ_BF16: add_row_dtype(a, AQ_BF16, row); break;
    default: assert(!"a dtype that is computed with");
    }
}

void VEC_VERSION(add_rows)(struct aq_exec *ex, const struct aq_add_rows *a)
{
    aq_pool_run(aq_exec_pool(ex), add_row, (void *)a, a->rows);
}
