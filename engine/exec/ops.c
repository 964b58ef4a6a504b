/* SPDX-License-Identifier: Apache-2.0
 * Runs the ops of the compute lanes. */
#include "engine/exec/exec.h"
#include "policy/registers.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The state of an op that computes rows. */
struct work {
    struct aq_executor *x;
    const struct aq_op *op;
    struct exec_batch *b;
    const struct aq_compute *c;
    bool inner_between; /* INNER holds all rows, between the two halves of MLP */
};

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

static enum aq_slot_class class_of(enum aq_register r)
{
    switch (r) {
    case AQ_REG_HIDDEN: return AQ_SLOT_HIDDEN;
    case AQ_REG_QKV: return AQ_SLOT_QKV;
    case AQ_REG_ATTENTION: return AQ_SLOT_ATTENTION;
    case AQ_REG_INNER: return AQ_SLOT_INNER;
    case AQ_REG_LOGITS: return AQ_SLOT_LOGITS;
    default: assert(!"a register with a slot"); return AQ_SLOT_HIDDEN;
    }
}

/* Index of the register's slot in its class, by the op's numbers (struct aq_op). */
static uint32_t slot_of(const struct aq_executor *x, const struct aq_op *op, enum aq_register r)
{
    switch (r) {
    case AQ_REG_HIDDEN: return op->of ? op->workspace : op->stage;
    case AQ_REG_ATTENTION: return op->workspace * x->plan->part_count;
    case AQ_REG_LOGITS: return 0;
    default: return op->workspace;
    }
}

uint8_t *exec_register(const struct aq_executor *x, const struct aq_op *op, enum aq_register r)
{
    return exec_slot(x, class_of(r), slot_of(x, op, r));
}

static struct view view_of(const struct work *o, enum aq_register r, uint32_t row)
{
    const struct aq_executor *x = o->x;
    struct view v = {.dtype = aq_register_dtype(r, x->plan->shape.compute),
                     .stride = aq_register_width(x->steps, r)};
    switch (r) {
    case AQ_REG_NORM: v.data = x->tile_norm; return v;
    case AQ_REG_EMBED: v.data = x->tile_embed; return v;
    case AQ_REG_LOGITS: v.data = exec_register(x, o->op, r); return v;
    case AQ_REG_INNER:
        if (!o->inner_between) {
            v.data = x->tile_inner;
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
        .dim = (uint32_t)from.stride,
    };
    o->c->kernels->norm(o->c->exec, &norm);
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

static void run_unpack(const struct work *o)
{
    struct aq_executor *x = o->x;
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
        .accumulate = p->accumulate,
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
        }
    }
}

static void run_tiles(const struct work *o, const struct aq_prim_list *list)
{
    uint32_t tile = o->x->plan->shape.tile_rows, count = o->b->row_count;
    for (uint32_t row = 0; row < count; row += tile)
        run_list(o, list, row, (uint32_t)aq_min_u64(tile, count - row), NULL);
}

static struct aq_device_range whole_slot(const struct aq_executor *x, enum aq_slot_class c,
                                         uint32_t index)
{
    return (struct aq_device_range){exec_slot(x, c, index),
                                    x->program->slot[x->program->first[c] + index].bytes};
}

/* The bytes that an op with primitives overwrites without reading them. */
static struct aq_device_range rows_output(const struct aq_executor *x, const struct aq_op *op)
{
    struct aq_prim_list list = aq_op_prims((enum aq_op_kind)op->kind, &x->steps->step[op->step]);
    struct aq_list_io io = aq_list_io(&list);
    for (uint32_t r = 0; r < AQ_REG_COUNT; r++) {
        if (io.leaves[r] && !io.takes[r])
            return whole_slot(x, class_of((enum aq_register)r),
                              slot_of(x, op, (enum aq_register)r));
    }
    return (struct aq_device_range){0};
}

struct aq_device_range exec_output(const struct aq_executor *x, const struct aq_op *op)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    const uint32_t *unpacked = &x->program->first[AQ_SLOT_UNPACKED];
    uint32_t at = op->workspace * x->plan->part_count;
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_EMBED:
    case AQ_OP_PRE:
    case AQ_OP_POST:
    case AQ_OP_MLP:
    case AQ_OP_MLP_UP:
    case AQ_OP_MLP_DOWN:
    case AQ_OP_HEAD: return rows_output(x, op);
    case AQ_OP_ATTN_HOST: return whole_slot(x, AQ_SLOT_ATTENTION_HOST, at + op->part);
    case AQ_OP_PRODUCT_HOST: return whole_slot(x, AQ_SLOT_COLUMNS_HOST, op->stage);
    case AQ_OP_UNPACK: return whole_slot(x, AQ_SLOT_UNPACKED, op->step % (unpacked[1] - *unpacked));
    case AQ_OP_ATTN_DEVICE: {
        /* Decode rows come first in a micro-batch, in the order of their parts. */
        size_t row = aq_register_row_bytes(x->steps, AQ_REG_ATTENTION, x->plan->shape.compute);
        uint32_t first = b->decode_first[op->part], end = b->decode_first[op->part + 1];
        return (struct aq_device_range){exec_register(x, op, AQ_REG_ATTENTION) + first * row,
                                        (end - first) * row};
    }
    default: return (struct aq_device_range){0};
    }
}

/* All rows of a prompt are in one pass, so its keys are the k of its rows. */
static void watch_prompts(const struct work *o)
{
    const struct aq_model_steps *m = o->x->steps;
    const struct exec_batch *b = o->b;
    size_t width = aq_register_width(m, AQ_REG_ATTENTION);
    size_t stride = aq_register_width(m, AQ_REG_QKV);
    const float *qkv = (const float *)exec_register(o->x, o->op, AQ_REG_QKV);
    for (uint32_t i = b->prefill_first[o->op->part]; i < b->prefill_first[o->op->part + 1]; i++) {
        const float *q = qkv + b->prefill[i].row * stride;
        struct aq_attention_rows rows = {
            .layer = m->step[o->op->step].layer,
            .n = b->prefill[i].rows,
            .q = q,
            .k = q + width,
            .stride = stride,
            .ids = o->x->seat[b->prefill_seat[i]].sequence->prompt,
        };
        aq_attention_stats_add(o->x->opts.attention_stats, o->x->opts.pool, &rows);
    }
}

void exec_logits(struct aq_executor *x, const struct aq_op *op, uint32_t first, uint32_t rows)
{
    struct work o = {.x = x, .op = op, .b = &x->batch[op->micro_batch], .c = x->opts.compute};
    run_list(&o, &x->steps->step[op->step].half[0], 0, rows, o.b->logit_index + first);
}

static void attend_on_host(struct aq_executor *x, const struct aq_op *op)
{
    uint32_t at = op->workspace * x->plan->part_count + op->part;
    exec_attend(x, op, x->opts.host_compute, (float *)exec_slot(x, AQ_SLOT_QKV_HOST, at),
                exec_slot(x, AQ_SLOT_ATTENTION_HOST, at));
}

void exec_compute(struct aq_executor *x, const struct aq_op *op)
{
    struct work o = {.x = x, .op = op, .b = &x->batch[op->micro_batch], .c = x->opts.compute};
    const struct aq_step_desc *step = &x->steps->step[op->step];
    if (x->opts.replay) {
        if (op->kind == AQ_OP_HEAD)
            exec_head_replay(x, op);
        return;
    }
    if (x->opts.attention_stats && op->kind == AQ_OP_ATTN_PREFILL)
        watch_prompts(&o);
    struct aq_prim_list prims = aq_op_prims((enum aq_op_kind)op->kind, step);
    o.inner_between = op->kind == AQ_OP_MLP_UP || op->kind == AQ_OP_MLP_DOWN;
    struct aq_host_product h;
    if (aq_host_product_find(&h, x->stream, x->steps, x->plan, (enum aq_op_kind)op->kind, op->step))
        prims.count = h.prim + 1; /* MERGE runs the primitives behind the product */
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_PRODUCT_HOST: exec_product_host(x, op); break;
    case AQ_OP_MERGE: prims = exec_merge(x, op); /* fall through */
    case AQ_OP_EMBED:
    case AQ_OP_PRE:
    case AQ_OP_POST:
    case AQ_OP_MLP:
    case AQ_OP_MLP_UP:
    case AQ_OP_MLP_DOWN: run_tiles(&o, &prims); break;
    case AQ_OP_ATTN_PREFILL:
    case AQ_OP_ATTN_DEVICE:
        exec_attend(x, op, o.c, (float *)exec_register(x, op, AQ_REG_QKV),
                    exec_register(x, op, AQ_REG_ATTENTION));
        break;
    case AQ_OP_ATTN_HOST: attend_on_host(x, op); break;
    case AQ_OP_HEAD: exec_head(x, op); break;
    case AQ_OP_UNPACK: run_unpack(&o); break;
    default: assert(!"an op that computes");
    }
}

int exec_enqueue(struct aq_executor *x, const uint32_t *ops, uint32_t count, bool together,
                 void *stream)
{
    const char *what, *why;
    uint32_t failed;
    aq_compute_cuda_begin(x->opts.cuda, stream, x->bundles ? AQ_GPU_BUNDLE_DESKS : 1, together);
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_op *op = &x->program->op[ops[i]];
        aq_compute_cuda_next(x->opts.cuda, i);
        if (aq_op_has_work(op, &x->cost[ops[i]]))
            exec_compute(x, op);
    }
    int rc = aq_compute_cuda_end(x->opts.cuda, &failed, &what, &why);
    if (rc < 0 && !x->failure[0]) {
        const struct aq_op *op = &x->program->op[ops[failed]];
        snprintf(x->failure, sizeof(x->failure), "%s of step %u ('%s'): %s",
                 aq_op_name((enum aq_op_kind)op->kind), op->step, what, why);
    }
    return rc;
}
