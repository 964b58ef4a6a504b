/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/host_product.h"
#include "policy/hw.h"
#include "policy/registers.h"

#include <assert.h>
#include <stdlib.h>

/* Numbers of one pass that the costs of a micro-batch's ops follow from. */
struct pass {
    const struct aq_model_steps *steps;
    const struct aq_plan *plan;
    const struct aq_stream *stream;
    const struct aq_pass_shape *shape; /* [micro_batches] */
    uint64_t width, kv_width;          /* elements of q, and of k or v, of a row */
};

/* Bytes of a row of a register, weighted by time: list_row_bytes() counts writes twice, and
 * choosing a token from logits takes as long as 12 bytes more of each. */
static uint64_t register_bytes(const struct pass *p, enum aq_register r)
{
    uint64_t bytes = aq_register_row_bytes(p->steps, r, p->plan->shape.compute);
    return r == AQ_REG_LOGITS ? 3 * bytes : bytes;
}

/* Bytes of a row that ROTATE reads and writes: q and k in place, and a row of the rotary table that
 * is copied first. */
static uint64_t rotate_bytes(const struct pass *p)
{
    return 2 * (p->width + p->kv_width) * 4 + 4 * p->steps->rotary.dims * 4ull;
}

/* Bytes that the primitives of a list read and write for a row.  A write counts twice, because its
 * cache lines are read first; so it makes no difference what is done with the content. */
static uint64_t list_row_bytes(const struct pass *p, uint32_t step, const struct aq_prim_list *list)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *prim = &list->prim[i];
        if (prim->kind == AQ_PRIM_ROTATE) {
            bytes += rotate_bytes(p);
            continue;
        }
        const struct aq_matrix_desc *m = &p->steps->step[step].matrix[prim->matrix[0]];
        uint32_t first, rows;
        if (prim->kind == AQ_PRIM_PRODUCT &&
            aq_stream_host_rows(p->stream, p->steps, step, prim->matrix[0], &first, &rows) &&
            rows == m->rows)
            continue; /* the host's */
        bytes += register_bytes(p, prim->src) + 2 * register_bytes(p, prim->dst);
    }
    return bytes;
}

/* The format in which a step's products read its matrices. */
static enum aq_dtype read_format(const struct pass *p, const struct aq_step_desc *d)
{
    bool unpacked = p->plan->unpack && aq_step_is_layer(d);
    return unpacked ? p->plan->shape.compute : p->plan->shape.weight_format;
}

static void add_flops(struct aq_op_cost *c, uint64_t flops, uint32_t k)
{
    c->flops += flops;
    c->short_flops += (uint64_t)((double)flops * aq_hardware_shortness(k));
}

/* Bytes of the matrices of a step's products in a format, and flops of a row: for the side where
 * products run, so without the columns that the host computes. */
static struct aq_op_cost list_cost(const struct pass *p, uint32_t step,
                                   const struct aq_prim_list *list, enum aq_dtype format)
{
    const struct aq_step_desc *d = &p->steps->step[step];
    struct aq_op_cost c = {.weights = format};
    for (uint32_t i = 0; i < list->count; i++) {
        const struct aq_prim *prim = &list->prim[i];
        for (uint32_t n = 0; prim->kind == AQ_PRIM_PRODUCT && n < prim->matrix_count; n++) {
            uint32_t matrix = prim->matrix[n], first, rows = 0;
            const struct aq_matrix_desc *m = &d->matrix[matrix];
            if (!aq_stream_host_rows(p->stream, p->steps, step, matrix, &first, &rows))
                rows = 0;
            add_flops(&c, 2ull * (m->rows - rows) * m->k, m->k);
            c.memory_bytes +=
                aq_matrix_bytes(m, format) -
                aq_panel_count(rows) * aq_panel_bytes(aq_matrix_format(m, format), m->k);
        }
    }
    return c;
}

/* Bytes of K and V of `keys` keys of one layer, rounded up to pages. */
static uint64_t kv_bytes(const struct pass *p, uint64_t keys)
{
    const struct aq_block_shape *s = &p->plan->shape;
    return keys * s->page_bytes / s->page_slots;
}

/* Bytes that a row reads and writes beside `keys` keys: scores are read and written, and positions
 * are read to choose the key to drop. */
static uint64_t slot_bytes(const struct pass *p, uint32_t kind, uint64_t keys)
{
    struct aq_kv_policy room;
    const struct aq_kv_policy *policy = aq_plan_kind_policy_in(&room, p->plan, kind);
    uint32_t bytes = aq_kv_policy_scores(policy) ? 12 : aq_kv_policy_drops(policy) ? 4 : 0;
    return keys * p->steps->kv_heads * bytes;
}

/* Statistics of a prompt read its keys, not its values, a second time. */
static uint64_t stat_bytes(const struct pass *p, const struct aq_part_shape *part,
                           const struct aq_kv_work *kv)
{
    return kv->stat_key_pairs ? kv_bytes(p, part->prefill_rows) / 2 : 0;
}

/* A row's q, k and v, and the output of its heads. */
static uint64_t attended_bytes(const struct pass *p)
{
    return register_bytes(p, AQ_REG_QKV) + 2 * register_bytes(p, AQ_REG_ATTENTION);
}

static struct aq_op_cost products(const struct pass *p, const struct aq_op *op, uint32_t rows)
{
    const struct aq_step_desc *d = &p->steps->step[op->step];
    enum aq_op_kind kind = (enum aq_op_kind)op->kind;
    struct aq_prim_list room;
    const struct aq_prim_list *prims = aq_op_prims(&room, kind, d);
    struct aq_op_cost c = {0};
    struct aq_host_product h;
    if (aq_host_product_find(&h, p->stream, p->steps, p->plan, kind, op->step)) {
        room = *prims;
        room.count = aq_host_product_end(&h); /* MERGE runs the rest */
        prims = &room;
    }
    if (rows)
        c = list_cost(p, op->step, prims, read_format(p, d));
    c.flops *= rows;
    c.short_flops *= rows;
    c.rows = rows;
    c.row_bytes = rows * list_row_bytes(p, op->step, prims);
    return c;
}

/* The cost of an op that serves a product with columns of the host. */
static struct aq_op_cost shared_product(const struct pass *p, const struct aq_op *op, uint32_t rows)
{
    const struct aq_step_desc *d = &p->steps->step[op->step];
    struct aq_op_cost c = {.weights = p->plan->shape.weight_format};
    struct aq_host_product h;
    bool there =
        aq_host_product_find(&h, p->stream, p->steps, p->plan, (enum aq_op_kind)op->of, op->step);
    assert(there);
    if (op->kind == AQ_OP_D2H || op->kind == AQ_OP_H2D) {
        c.move_bytes = rows * (op->kind == AQ_OP_D2H ? h.input_bytes : h.columns * h.column_bytes);
        return c;
    }
    c.rows = rows;
    struct aq_prim_list prims = d->half[aq_op_half((enum aq_op_kind)op->of)];
    if (op->kind == AQ_OP_MERGE) { /* read, and added to or written */
        aq_host_product_rest(&prims, &h);
        c.row_bytes = rows * (3 * h.columns * h.column_bytes + list_row_bytes(p, op->step, &prims));
        return c;
    }
    c.row_bytes = rows * (h.input_bytes + h.products.count * 2 * h.columns * h.column_bytes);
    for (uint32_t i = 0; i < h.products.count * h.range_count && rows; i++) {
        const struct aq_host_range *r = &h.range[i % h.range_count];
        const struct aq_prim *prim = &prims.prim[h.products.first + i / h.range_count];
        const struct aq_matrix_desc *m = &d->matrix[prim->matrix[r->place]];
        add_flops(&c, 2ull * rows * r->rows * m->k, m->k);
        c.memory_bytes += aq_panel_count(r->rows) *
                          aq_panel_bytes(aq_matrix_format(m, p->plan->shape.weight_format), m->k);
    }
    return c;
}

/* The kind of the layer whose KV an op attends or moves; 0 of other ops. */
static uint32_t kind_of(const struct pass *p, const struct aq_op *op)
{
    const struct aq_step_desc *d = &p->steps->step[op->step];
    return d->kind == AQ_STEP_ATTENTION ? p->plan->kinds.of[d->layer] : 0;
}

static struct aq_op_cost move_cost(const struct pass *p, const struct aq_op *op, uint64_t rows)
{
    const struct aq_part_shape *part = &p->shape[op->micro_batch].part[op->part];
    const struct aq_kv_work *kv = &part->kv[kind_of(p, op)];
    struct aq_op_cost c = {0};
    bool home = op->kind == AQ_OP_WRITE || op->kind == AQ_OP_D2H;
    switch ((enum aq_object)op->object) {
    case AQ_OBJECT_WEIGHTS: c.move_bytes = p->stream->chunk[op->chunk].bytes; break;
    case AQ_OBJECT_HIDDEN: c.move_bytes = rows * p->steps->hidden * 4; break;
    case AQ_OBJECT_QKV: c.move_bytes = part->decode_rows * (p->width + 2 * p->kv_width) * 4; break;
    case AQ_OBJECT_ATTENTION:
        c.move_bytes = part->decode_rows * p->width * aq_dtype_bytes(p->plan->shape.compute);
        break;
    case AQ_OBJECT_KV:
        if (op->kind == AQ_OP_READ || op->kind == AQ_OP_WRITE)
            c.move_bytes = home ? kv->write_bytes : kv->read_bytes;
        else
            c.move_bytes = home ? kv->store_bytes : kv->load_bytes;
        break;
    default: assert(!"an object that moves");
    }
    return c;
}

static struct aq_op_cost cost_of(const struct pass *p, const struct aq_op *op)
{
    const struct aq_pass_shape *s = &p->shape[op->micro_batch];
    const struct aq_part_shape *part = &s->part[op->part];
    const struct aq_step_desc *step = &p->steps->step[op->step];
    uint32_t kind = kind_of(p, op);
    const struct aq_kv_work *kv = &part->kv[kind];
    enum aq_dtype format = p->plan->shape.weight_format;
    uint32_t rows = s->decode_rows + s->prefill_rows;
    if (op->of)
        return shared_product(p, op, rows);
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_READ:
    case AQ_OP_WRITE:
    case AQ_OP_H2D:
    case AQ_OP_D2H: return move_cost(p, op, rows);
    case AQ_OP_UNPACK:
        return (struct aq_op_cost){
            .rows = 1,
            .memory_bytes = list_cost(p, op->step, &step->half[0], format).memory_bytes +
                            list_cost(p, op->step, &step->half[1], format).memory_bytes,
            .weights = format,
        };
    case AQ_OP_ATTN_PREFILL:
        return (struct aq_op_cost){
            .rows = part->prefill_rows,
            .flops = (4 * kv->prefill_key_pairs + 2 * kv->stat_key_pairs) * p->width,
            .memory_bytes = kv_bytes(p, part->prefill_rows) + stat_bytes(p, part, kv),
            .row_bytes = part->prefill_rows * attended_bytes(p),
            .heads = (uint64_t)part->prefill_rows * p->steps->heads,
            .head_dim = p->steps->head_dim,
            .group = p->steps->heads / p->steps->kv_heads,
        };
    case AQ_OP_ATTN_DEVICE:
    case AQ_OP_ATTN_HOST:
        return (struct aq_op_cost){
            .rows = part->decode_rows,
            .flops = 4 * kv->decode_keys * p->width,
            .memory_bytes = kv_bytes(p, kv->decode_slots) + slot_bytes(p, kind, kv->decode_keys),
            .joint_bytes = kv_bytes(p, kv->decode_joint),
            .row_bytes = part->decode_rows * attended_bytes(p),
            .heads = (uint64_t)part->decode_rows * p->steps->heads,
            .head_dim = p->steps->head_dim,
            .group = p->steps->heads / p->steps->kv_heads,
        };
    case AQ_OP_HEAD: return products(p, op, s->logit_rows);
    case AQ_OP_TURN: return (struct aq_op_cost){.rows = s->logit_rows};
    default: return products(p, op, rows);
    }
}

struct aq_pass_shape *aq_pass_shapes_new(const struct aq_plan *plan)
{
    uint32_t count = plan->shape.micro_batches, kinds = plan->kinds.count;
    size_t each = (size_t)plan->part_count * kinds;
    struct aq_pass_shape *shape =
        calloc(1, count * (sizeof(*shape) + each * sizeof(struct aq_kv_work)));
    for (uint32_t k = 0; shape && k < count; k++) {
        struct aq_kv_work *work = (struct aq_kv_work *)(shape + count) + k * each;
        for (uint32_t i = 0; i < plan->part_count; i++)
            shape[k].part[i].kv = work + (size_t)i * kinds;
    }
    return shape;
}

void aq_pass_shape_clear(struct aq_pass_shape *s, const struct aq_plan *plan)
{
    s->decode_rows = s->prefill_rows = s->logit_rows = 0;
    for (uint32_t i = 0; i < plan->part_count; i++) {
        struct aq_part_shape *part = &s->part[i];
        part->decode_rows = part->prefill_rows = 0;
        for (uint32_t k = 0; k < plan->kinds.count; k++)
            part->kv[k] = (struct aq_kv_work){0};
    }
}

void aq_program_annotate(struct aq_op_cost *cost, const struct aq_program *program,
                         const struct aq_model_steps *steps, const struct aq_plan *plan,
                         const struct aq_stream *stream, const struct aq_pass_shape *shape)
{
    struct pass p = {
        .steps = steps,
        .plan = plan,
        .stream = stream,
        .shape = shape,
        .width = (uint64_t)steps->heads * steps->head_dim,
        .kv_width = (uint64_t)steps->kv_heads * steps->head_dim,
    };
    for (uint32_t i = 0; i < program->op_count; i++)
        cost[i] = cost_of(&p, &program->op[i]);
}
