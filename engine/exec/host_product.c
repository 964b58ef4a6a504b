/* SPDX-License-Identifier: Apache-2.0
 * Columns of products that the host computes with the panels that rest in its memory: from rows
 * that come over the link, with the kernels and the order of sums of the compute lane; and their
 * merge into the op's output (policy/host_product.h). */
#include "engine/exec/exec.h"
#include "policy/registers.h"

#include <assert.h>
#include <string.h>

/* The state of such a product. */
struct share {
    struct aq_executor *x;
    const struct aq_op *op;
    struct aq_host_product h;
    struct aq_prim_list list;
    uint32_t rows;
    size_t row_bytes; /* of the columns of a row */
};

static struct share share_of(struct aq_executor *x, const struct aq_op *op)
{
    enum aq_op_kind of = (enum aq_op_kind)op->of;
    struct share s = {
        .x = x,
        .op = op,
        .list = x->steps->step[op->step].half[aq_op_half(of)],
        .rows = x->batch[op->micro_batch].row_count,
    };
    bool there = aq_host_product_find(&s.h, x->stream, x->steps, x->plan, of, op->step);
    assert(there);
    s.row_bytes = s.h.columns * s.h.column_bytes;
    return s;
}

/* ---- memory ------------------------------------------------------------------------------ */

int exec_host_open(struct aq_executor *x, struct aq_err *reterr)
{
    if (!aq_program_host_products(x->program))
        return 0;
    struct aq_device *d = x->opts.device;
    const struct aq_block_shape *s = &x->plan->shape;
    size_t tile = (size_t)s->tile_rows * x->steps->hidden * aq_dtype_bytes(s->compute);
    int rc = aq_device_alloc(&x->host_tile, d, AQ_MEMORY_HOST, "tiles (host)", tile, reterr);
    if (rc < 0)
        return rc;
    x->host_tile_bytes = tile;
    size_t vectors = x->opts.model->vectors_bytes;
    if (!vectors)
        return 0;
    rc = aq_device_alloc((void **)&x->host_vectors, d, AQ_MEMORY_HOST, "vectors (host)", vectors,
                         reterr);
    if (rc < 0)
        return rc;
    x->host_vectors_bytes = vectors;
    memcpy(x->host_vectors, x->opts.model->vectors_buffer, vectors);
    return 0;
}

void exec_host_close(struct aq_executor *x)
{
    struct aq_device *d = x->opts.device;
    aq_device_free(d, AQ_MEMORY_HOST, "tiles (host)", x->host_tile, x->host_tile_bytes);
    aq_device_free(d, AQ_MEMORY_HOST, "vectors (host)", x->host_vectors, x->host_vectors_bytes);
}

/* ---- the product ------------------------------------------------------------------------- */

/* A vector of the op's step in the host's memory. */
static const float *vector_of(const struct share *s, int8_t index)
{
    const struct aq_model *m = s->x->opts.model;
    if (index < 0)
        return NULL;
    uint32_t at = aq_vector_index(s->x->steps, s->op->step, (uint32_t)index);
    return s->x->host_vectors + (m->vector[at] - m->vectors_buffer);
}

/* Rows of the input as the product takes them. */
static const void *prepare(const struct share *s, const uint8_t *input, uint32_t rows)
{
    const struct aq_executor *x = s->x;
    if (s->h.products.first == 0)
        return input;
    const struct aq_prim *p = &s->list.prim[0];
    assert(s->h.products.first == 1 && p->kind == AQ_PRIM_NORM && p->src == AQ_REG_HIDDEN &&
           p->dst == AQ_REG_NORM);
    const struct aq_compute *c = x->opts.host_compute;
    struct aq_norm norm = {
        .kind = p->norm,
        .x = (const float *)input,
        .x_stride = x->steps->hidden,
        .y = x->host_tile,
        .y_dtype = x->plan->shape.compute,
        .y_stride = x->steps->hidden,
        .w = vector_of(s, p->weight),
        .b = vector_of(s, p->bias),
        .eps = p->eps,
        .rows = rows,
        .dim = x->steps->hidden,
    };
    c->kernels->norm(c->exec, &norm);
    return x->host_tile;
}

/* One product's columns of a range.  Where several make them, all but the first add to or multiply
 * what the one before has left; a single product is added by MERGE. */
static void run_range(const struct share *s, const struct aq_prim *p, bool first,
                      const struct aq_host_range *r, const void *from, uint8_t *to, uint32_t rows)
{
    const struct aq_executor *x = s->x;
    uint32_t index = aq_matrix_index(x->steps, s->op->step, p->matrix[r->place]);
    const struct aq_weight *w = &x->opts.model->weight[index];
    enum aq_dtype compute = x->plan->shape.compute;
    const uint8_t *panels = aq_weight_panel(w, r->first / AQ_PANEL_ROWS);
    const float *bias = vector_of(s, p->bias);
    struct aq_product product = {
        .x = from,
        .x_dtype = compute,
        .m = rows,
        .k = w->desc->k,
        .x_stride = w->desc->k,
        .segments = &(struct aq_segment){panels, 0, r->rows},
        .segment_count = 1,
        .w_dtype = w->dtype,
        .w_layout = w->layout,
        .bias = bias ? bias + r->column : NULL,
        .activation = p->activation,
        .combine = first ? AQ_COMBINE_SET : p->combine,
        .y = to + r->at * s->h.column_bytes,
        .y_dtype = aq_register_dtype(p->dst, compute),
        .y_stride = s->h.columns,
    };
    aq_compute_product(x->opts.host_compute, &product);
}

void exec_product_host(struct aq_executor *x, const struct aq_op *op)
{
    struct share s = share_of(x, op);
    const uint8_t *input = exec_slot(x, AQ_SLOT_INPUT_HOST, op->stage);
    uint8_t *columns = exec_slot(x, AQ_SLOT_COLUMNS_HOST, op->stage);
    uint32_t tile = x->plan->shape.tile_rows;
    for (uint32_t row = 0; row < s.rows; row += tile) {
        uint32_t rows = (uint32_t)aq_min_u64(tile, s.rows - row);
        const void *from = prepare(&s, input + row * s.h.input_bytes, rows);
        for (uint32_t i = 0; i < s.h.products.count * s.h.range_count; i++) {
            uint32_t n = i / s.h.range_count;
            run_range(&s, &s.list.prim[s.h.products.first + n], n == 0,
                      &s.h.range[i % s.h.range_count], from, columns + row * s.row_bytes, rows);
        }
    }
}

/* ---- the merge --------------------------------------------------------------------------- */

struct merge {
    const struct share *s;
    const uint8_t *columns;
    uint8_t *output;
    size_t stride; /* bytes of a row of the output */
    bool add;
};

static void merge_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct merge *m = arg;
    const struct aq_host_product *h = &m->s->h;
    (void)worker;
    for (uint32_t i = 0; i < h->range_count; i++) {
        const struct aq_host_range *r = &h->range[i];
        const uint8_t *from = m->columns + row * m->s->row_bytes + r->at * h->column_bytes;
        uint8_t *to = m->output + row * m->stride + r->column * h->column_bytes;
        if (!m->add) {
            memcpy(to, from, r->rows * h->column_bytes);
            continue;
        }
        const float *sum = (const float *)from;
        float *y = (float *)to;
        for (uint32_t n = 0; n < r->rows; n++)
            y[n] += sum[n];
    }
}

struct aq_prim_list exec_merge(struct aq_executor *x, const struct aq_op *op)
{
    struct share s = share_of(x, op);
    const struct aq_prim *p = &s.list.prim[s.h.products.first];
    struct merge merge = {
        .s = &s,
        .columns = exec_slot(x, AQ_SLOT_COLUMNS, op->stage),
        .output = exec_register(x, op, p->dst),
        .stride = aq_register_row_bytes(x->steps, p->dst, x->plan->shape.compute),
        .add = p->combine == AQ_COMBINE_ADD,
    };
    aq_pool_run(x->opts.pool, merge_row, &merge, s.rows);
    aq_host_product_rest(&s.list, &s.h);
    return s.list;
}

/* ---- links ------------------------------------------------------------------------------- */

void exec_link_share(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    struct share s = share_of(x, op);
    if (op->object == AQ_OBJECT_COLUMNS) {
        exec_add_piece(l, exec_slot(x, AQ_SLOT_COLUMNS, op->stage),
                       exec_slot(x, AQ_SLOT_COLUMNS_HOST, op->stage), s.rows * s.row_bytes);
        return;
    }
    uint8_t *from = exec_register(x, op, s.h.input);
    exec_add_piece(l, from, exec_slot(x, AQ_SLOT_INPUT_HOST, op->stage), s.rows * s.h.input_bytes);
}
