/* SPDX-License-Identifier: Apache-2.0
 * The primitives of steps, over the rows of a micro-batch. */
#include "engine/exec/exec.h"
#include "policy/registers.h"

#include <assert.h>
#include <string.h>

/* The state of an op that computes rows. */
struct work {
    struct aq_executor *x;
    const struct aq_op *op;
    struct exec_batch *b;
    const struct aq_compute *c;
    bool inner_between; /* INNER holds all rows, between the two halves of MLP */
};

static struct work work_of(struct aq_executor *x, const struct aq_op *op)
{
    return (struct work){
        .x = x,
        .op = op,
        .b = &x->batch[op->micro_batch],
        .c = x->opts.compute,
        .inner_between = op->kind == AQ_OP_MLP_UP || op->kind == AQ_OP_MLP_DOWN,
    };
}

/* A matrix of the op's step. */
static const struct aq_weight *weight_of(const struct work *o, uint32_t matrix)
{
    return &o->x->opts.model->weight[aq_matrix_index(o->x->steps, o->op->step, matrix)];
}

/* A register as memory: rows from `row` on. */
struct view {
    void *data;
    enum aq_dtype dtype;
    size_t stride; /* elements */
};

static struct view view_of(const struct work *o, enum aq_register r, uint32_t row)
{
    const struct aq_executor *x = o->x;
    struct view v = {.dtype = aq_register_dtype(r, x->plan->shape.compute),
                     .stride = aq_register_width(x->steps, r)};
    switch (r) {
    case AQ_REG_NORM:
        v.data = x->tile_norm;
        v.stride = aq_row_stride(x->steps->hidden, v.dtype);
        return v;
    case AQ_REG_EMBED: v.data = x->tile_embed; return v;
    case AQ_REG_LOGITS: v.data = exec_register(x, o->op, r); return v;
    case AQ_REG_INNER:
        if (!o->inner_between) {
            v.data = x->tile_inner;
            v.stride = aq_row_stride(x->steps->inner, v.dtype);
            return v;
        } /* fall through */
    default: v.data = exec_register(x, o->op, r) + row * v.stride * aq_dtype_bytes(v.dtype);
    }
    return v;
}

static void run_gather(const struct work *o, const struct aq_prim *p, uint32_t row, uint32_t rows)
{
    const struct aq_weight *w = weight_of(o, p->matrix[0]);
    struct view y = view_of(o, p->dst, row);
    struct aq_add_rows positions = {
        .y = y.data,
        .y_stride = y.stride,
        .table = w->data,
        .table_dtype = w->dtype,
        .index = o->b->position + row,
        .rows = rows,
        .k = w->desc->k,
    };
    struct aq_embed embed = {
        .table = w->data,
        .table_dtype = w->dtype,
        .table_layout = w->layout,
        .id = o->b->id + row,
        .y = y.data,
        .y_dtype = y.dtype,
        .y_stride = y.stride,
        .rows = rows,
        .k = w->desc->k,
    };
    if (p->kind == AQ_PRIM_POSITION)
        o->c->kernels->add_rows(o->c->exec, &positions);
    else
        o->c->kernels->embed(o->c->exec, &embed);
}

static const float *vector_of(const struct work *o, int8_t index)
{
    const struct aq_executor *x = o->x;
    return index < 0
               ? NULL
               : x->opts.model->vector[aq_vector_index(x->steps, o->op->step, (uint32_t)index)];
}

static void run_norm(const struct work *o, const struct aq_prim *p, uint32_t row, uint32_t rows,
                     const uint32_t *row_index)
{
    struct view from = view_of(o, p->src, row_index ? 0 : row), to = view_of(o, p->dst, row);
    struct aq_norm norm = {
        .kind = p->norm,
        .x = from.data,
        .x_stride = from.stride,
        .row_index = row_index,
        .y = to.data,
        .y_dtype = to.dtype,
        .y_stride = to.stride,
        .w = vector_of(o, p->weight),
        .b = vector_of(o, p->bias),
        .eps = p->eps,
        .rows = rows,
        .dim = aq_register_width(o->x->steps, p->src),
    };
    o->c->kernels->norm(o->c->exec, &norm);
}

/* The rows' cosines and sines are gathered from the rotary table into a tile, then their q and k
 * are normed and turned in place. */
static void run_rotate(const struct work *o, const struct aq_prim *p, uint32_t row, uint32_t rows)
{
    const struct aq_model_steps *m = o->x->steps;
    uint32_t dims = m->rotary.dims;
    struct view qkv = view_of(o, p->dst, row);
    struct aq_embed turn = {
        .table = o->x->rotary_table,
        .table_dtype = AQ_F32,
        .table_layout = AQ_LAYOUT_ROWS,
        .id = o->b->position + row,
        .y = o->x->tile_rotary,
        .y_dtype = AQ_F32,
        .y_stride = dims,
        .rows = rows,
        .k = dims,
    };
    struct aq_rotate rotate = {
        .x = qkv.data,
        .x_stride = qkv.stride,
        .turn = o->x->tile_rotary,
        .w_q = vector_of(o, p->weight),
        .w_k = vector_of(o, p->bias),
        .eps = p->eps,
        .rows = rows,
        .q_heads = m->heads,
        .k_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .rotary_dim = dims,
    };
    if (dims)
        o->c->kernels->embed(o->c->exec, &turn);
    o->c->kernels->rotate(o->c->exec, &rotate);
}

/* Adds the panels of a matrix, resident ones and those in the ring, as segments of a product;
 * `column` is the first column. */
static uint32_t add_segments(const struct work *o, uint32_t matrix, uint32_t column,
                             struct aq_segment *to)
{
    const struct aq_executor *x = o->x;
    uint32_t index = aq_matrix_index(x->steps, o->op->step, matrix), count = x->run_count[index];
    const struct aq_weight *w = &x->opts.model->weight[index];
    const struct exec_run *run = x->run + x->run_first[index];
    for (uint32_t i = 0; i < count; i++, run++) {
        const uint8_t *panels =
            run->chunk == UINT32_MAX
                ? aq_weight_panel(w, run->first)
                : exec_slot(x, AQ_SLOT_RING, x->stream->chunk[run->chunk].slot) + run->offset;
        uint32_t row = run->first * AQ_PANEL_ROWS;
        to[i] = (struct aq_segment){
            .panels = panels,
            .column = column + row,
            .rows = (uint32_t)aq_min_u64(run->count * AQ_PANEL_ROWS, w->desc->rows - row),
        };
    }
    return count;
}

/* Are the matrices of the op's step unpacked before its products? */
static bool is_unpacked(const struct work *o)
{
    return o->x->plan->unpack && aq_step_is_layer(&o->x->steps->step[o->op->step]);
}

/* The address of the unpacked matrix `matrix`: in the step's slot, behind the matrices before
 * it. */
static uint8_t *unpacked_matrix(const struct work *o, uint32_t matrix)
{
    const struct aq_executor *x = o->x;
    const struct aq_step_desc *step = &x->steps->step[o->op->step];
    const uint32_t *first = &x->program->first[AQ_SLOT_UNPACKED];
    uint8_t *at = exec_slot(x, AQ_SLOT_UNPACKED, o->op->step % (first[1] - first[0]));
    for (uint32_t i = 0; i < matrix; i++)
        at += aq_matrix_bytes(&step->matrix[i], x->plan->shape.compute);
    return at;
}

/* Adds an unpacked matrix as segments, without the host's panels. */
static uint32_t add_unpacked(const struct work *o, uint32_t matrix, uint32_t column,
                             struct aq_segment *to)
{
    const struct aq_executor *x = o->x;
    const struct aq_matrix_desc *d = &x->steps->step[o->op->step].matrix[matrix];
    size_t panel = aq_panel_bytes(x->plan->shape.compute, d->k);
    const uint8_t *panels = unpacked_matrix(o, matrix);
    uint32_t first = d->rows, rows = 0, count = 0;
    aq_stream_host_rows(x->stream, x->steps, o->op->step, matrix, &first, &rows);
    if (first)
        to[count++] = (struct aq_segment){panels, column, first};
    uint32_t after = first + rows;
    if (after < d->rows)
        to[count++] = (struct aq_segment){panels + after / AQ_PANEL_ROWS * panel, column + after,
                                          d->rows - after};
    return count;
}

void exec_unpack(struct aq_executor *x, const struct aq_op *op)
{
    struct work work = work_of(x, op), *o = &work;
    for (uint32_t i = 0; i < x->steps->step[o->op->step].matrix_count; i++) {
        const struct aq_weight *w = weight_of(o, i);
        uint32_t count = add_segments(o, i, 0, x->segment);
        enum aq_dtype compute = x->plan->shape.compute;
        size_t panel = aq_panel_bytes(compute, w->desc->k);
        for (uint32_t n = 0; n < count; n++) {
            const struct aq_segment *s = &x->segment[n];
            struct aq_unpack unpack = {
                .src = s->panels,
                .src_dtype = w->dtype,
                .dst = unpacked_matrix(o, i) + s->column / AQ_PANEL_ROWS * panel,
                .dst_dtype = compute,
                .panels = aq_panel_count(s->rows),
                .k = w->desc->k,
            };
            o->c->kernels->unpack(o->c->exec, &unpack);
        }
    }
}

static void run_product(const struct work *o, const struct aq_prim *p, uint32_t row, uint32_t rows)
{
    struct aq_segment *segment = o->x->segment;
    uint32_t column = 0, count = 0;
    const struct aq_weight *w = NULL;
    bool unpacked = is_unpacked(o);
    for (uint32_t i = 0; i < p->matrix_count; i++) {
        w = weight_of(o, p->matrix[i]);
        count += (unpacked ? add_unpacked : add_segments)(o, p->matrix[i], column, segment + count);
        column += w->desc->rows;
    }
    assert(count <= o->x->segment_max);
    if (!count) /* the host computes all of it */
        return;
    struct view from = view_of(o, p->src, row), to = view_of(o, p->dst, row);
    enum aq_dtype w_dtype = unpacked ? o->x->plan->shape.compute : w->dtype;
    struct aq_product product = {
        .x = from.data,
        .x_dtype = from.dtype,
        .m = rows,
        .k = w->desc->k,
        .x_stride = from.stride,
        .segments = segment,
        .segment_count = count,
        .w_dtype = w_dtype,
        .w_layout = !unpacked         ? w->layout
                    : o->x->opts.cuda ? AQ_LAYOUT_ROWS
                                      : aq_layout_cpu(w_dtype),
        .bias = vector_of(o, p->bias),
        .activation = p->activation,
        .combine = p->combine,
        .y = to.data,
        .y_dtype = to.dtype,
        .y_stride = to.stride,
    };
    aq_compute_product(o->c, &product);
}

/* Runs a list of primitives over rows [row, row + rows).  row_index: the rows of HIDDEN that the
 * first primitive gathers (HEAD), else NULL. */
static void run_list(const struct work *o, const struct aq_prim_list *list, uint32_t row,
                     uint32_t rows, const uint32_t *row_index)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *p = &list->prim[i];
        switch (p->kind) {
        case AQ_PRIM_GATHER:
        case AQ_PRIM_POSITION: run_gather(o, p, row, rows); break;
        case AQ_PRIM_NORM: run_norm(o, p, row, rows, i == 0 ? row_index : NULL); break;
        case AQ_PRIM_PRODUCT: run_product(o, p, row, rows); break;
        case AQ_PRIM_ROTATE: run_rotate(o, p, row, rows); break;
        }
    }
}

void exec_run_rows(struct aq_executor *x, const struct aq_op *op, const struct aq_prim_list *list)
{
    struct work o = work_of(x, op);
    uint32_t tile = x->plan->shape.tile_rows, count = o.b->row_count;
    for (uint32_t row = 0; row < count; row += tile)
        run_list(&o, list, row, (uint32_t)aq_min_u64(tile, count - row), NULL);
}

void exec_logits(struct aq_executor *x, const struct aq_op *op, uint32_t first, uint32_t rows)
{
    struct work o = work_of(x, op);
    run_list(&o, &x->steps->step[op->step].half[0], 0, rows, o.b->logit_index + first);
}
