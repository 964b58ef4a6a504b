/* SPDX-License-Identifier: Apache-2.0
 * What the ops of the link and disk lanes move: which bytes from where to where, worked out when an
 * op is issued, because by then lengths are known. */
#include "engine/exec.h"

#include <assert.h>
#include <stdlib.h>

/* ---- room ------------------------------------------------------------------------------- */

static bool is_disk(const struct aq_op *op)
{
    return op->kind == AQ_OP_READ || op->kind == AQ_OP_WRITE;
}

static bool is_link(const struct aq_op *op)
{
    return op->kind == AQ_OP_H2D || op->kind == AQ_OP_D2H;
}

/* The most transfers, or pieces of a copy, that a move is cut into. */
static uint32_t pieces_max(const struct aq_executor *x, const struct aq_op *op)
{
    switch ((enum aq_object)op->object) {
    case AQ_OBJECT_WEIGHTS: return x->stream->chunk[op->chunk].piece_count;
    case AQ_OBJECT_KV: return x->plan->part[op->part].count;
    default: return 1;
    }
}

int exec_moves_open(struct aq_executor *x, struct aq_err *reterr)
{
    size_t transfers = 0, pieces = 0;
    for (uint32_t i = 0; i < x->program->op_count; i++) {
        const struct aq_op *op = &x->program->op[i];
        transfers += is_disk(op) ? pieces_max(x, op) : 0;
        pieces += is_link(op) ? pieces_max(x, op) : 0;
    }
    if (!transfers && !pieces)
        return 0;
    x->move = calloc(x->program->op_count, sizeof(*x->move));
    x->move_buffer = calloc(1, transfers * sizeof(struct aq_disk_transfer) +
                                   pieces * sizeof(struct aq_copy_piece));
    if (!x->move || !x->move_buffer)
        return aq_error(reterr, -ENOMEM, "moves of %u ops", x->program->op_count);
    struct aq_disk_transfer *t = x->move_buffer;
    struct aq_copy_piece *p = (struct aq_copy_piece *)(t + transfers);
    for (uint32_t i = 0; i < x->program->op_count; i++) {
        const struct aq_op *op = &x->program->op[i];
        if (is_disk(op)) {
            x->move[i].transfer = t;
            t += pieces_max(x, op);
        } else if (is_link(op)) {
            x->move[i].piece = p;
            p += pieces_max(x, op);
        }
    }
    return 0;
}

void exec_moves_close(struct aq_executor *x)
{
    free(x->move);
    free(x->move_buffer);
}

/* ---- KV ---------------------------------------------------------------------------------- */

/* Whole runs of a seat before the keys of this pass are added, and after. */
static uint32_t whole_before(const struct exec_seat *s)
{
    return (s->keys - s->rows) / AQ_HEAD_BLOCK_SLOTS;
}

static uint32_t whole_after(const struct exec_seat *s)
{
    return s->keys / AQ_HEAD_BLOCK_SLOTS;
}

/* A seat's place in a stage. */
static uint8_t *stage_of(const struct aq_executor *x, enum aq_slot_class c, uint32_t stage,
                         uint32_t part, uint32_t seat)
{
    uint32_t place = seat % x->plan->shape.micro_batch - x->plan->part[part].first;
    uint64_t runs = aq_div_up(x->plan->shape.keys_max, AQ_HEAD_BLOCK_SLOTS);
    return exec_slot(x, c, stage) + place * runs * aq_kv_run_stride(x->kv);
}

uint8_t *const *exec_kv_blocks(struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    uint32_t layer = x->steps->step[op->step].layer;
    const struct aq_part *part = &x->plan->part[op->part];
    if (!part->staged)
        return aq_kv_blocks(x->kv, seat, layer);
    const struct exec_seat *s = &x->seat[seat];
    uint8_t *stage = stage_of(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat);
    /* A prompt's whole runs are made in the stage; a decoded key joins the tail. */
    uint32_t whole = op->kind == AQ_OP_ATTN_PREFILL ? whole_after(s) : whole_before(s);
    return aq_kv_place(x->kv, seat, layer, stage, whole);
}

void exec_count_kv(struct aq_executor *x, uint32_t k, uint32_t part)
{
    const struct exec_batch *b = &x->batch[k];
    struct aq_part_shape *p = &x->pass_shape[k].part[part];
    if (x->plan->part[part].tier != AQ_DISK)
        return;
    uint64_t run = aq_kv_run_stride(x->kv), load = 0, store = 0;
    for (uint32_t i = b->decode_first[part]; i < b->decode_first[part + 1]; i++) {
        const struct exec_seat *s = &x->seat[b->decode_seat[i]];
        load += whole_before(s);
        store += whole_after(s) - whole_before(s);
    }
    for (uint32_t i = b->prefill_first[part]; i < b->prefill_first[part + 1]; i++)
        store += whole_after(&x->seat[b->prefill_seat[i]]);
    p->load_bytes = load * run;
    p->store_bytes = store * run;
}

/* ---- disk -------------------------------------------------------------------------------- */

static void add_transfer(struct aq_executor *x, uint32_t op_index, uint32_t set, uint64_t offset,
                         uint64_t bytes, void *buffer)
{
    struct exec_move *m = &x->move[op_index];
    const struct aq_op *op = &x->program->op[op_index];
    m->transfer[m->group.count++].t = (struct aq_transfer){
        .op = op->kind == AQ_OP_READ ? AQ_IO_READ : AQ_IO_WRITE,
        .set = set,
        .offset = offset,
        .bytes = bytes,
        .buffer = buffer,
    };
}

static void list_weights(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct aq_chunk *chunk = &x->stream->chunk[op->chunk];
    bool staged = x->plan->separate;
    uint8_t *slot = exec_slot(x, staged ? AQ_SLOT_STAGING : AQ_SLOT_RING,
                              staged ? chunk->staging : chunk->slot);
    for (uint32_t i = 0; i < chunk->piece_count; i++) {
        const struct aq_piece *p = &x->stream->piece[chunk->piece_first + i];
        const struct aq_weight *w = &x->opts.model->weight[op->step][p->matrix];
        add_transfer(x, op_index, x->opts.store_set,
                     w->store_offset + p->first * (p->bytes / p->count), p->bytes,
                     slot + p->offset);
    }
}

static void list_kv_read(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint32_t layer = x->steps->step[op->step].layer;
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++) {
        uint32_t seat = b->decode_seat[i], whole = whole_before(&x->seat[seat]);
        if (whole)
            add_transfer(x, op_index, x->opts.scratch_set, aq_kv_disk_offset(x->kv, seat, layer),
                         whole * aq_kv_run_stride(x->kv),
                         stage_of(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat));
    }
}

/* Runs that this pass has filled: those of prompts lie in the stage, those of decoded keys are
 * tails. */
static void list_kv_write(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint32_t layer = x->steps->step[op->step].layer;
    uint64_t run = aq_kv_run_stride(x->kv);
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++) {
        uint32_t seat = b->decode_seat[i], before = whole_before(&x->seat[seat]);
        if (whole_after(&x->seat[seat]) > before)
            add_transfer(x, op_index, x->opts.scratch_set,
                         aq_kv_disk_offset(x->kv, seat, layer) + before * run, run,
                         aq_kv_tail(x->kv, seat, layer));
    }
    for (uint32_t i = b->prefill_first[op->part]; i < b->prefill_first[op->part + 1]; i++) {
        uint32_t seat = b->prefill_seat[i], whole = whole_after(&x->seat[seat]);
        if (whole)
            add_transfer(x, op_index, x->opts.scratch_set, aq_kv_disk_offset(x->kv, seat, layer),
                         whole * run, stage_of(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat));
    }
}

static void list_hidden(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint64_t at = x->slot_offset[x->program->first[AQ_SLOT_HIDDEN_DISK] + op->micro_batch];
    uint64_t bytes = aq_align_up((uint64_t)b->row_count * x->steps->hidden * 4, AQ_PANEL_ALIGN);
    add_transfer(x, op_index, x->opts.scratch_set, aq_kv_disk_bytes(x->kv) + at, bytes,
                 exec_slot(x, AQ_SLOT_HIDDEN, op->stage));
}

int exec_start_move(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    struct exec_move *m = &x->move[op_index];
    assert(is_disk(op));
    m->group.transfer = m->transfer;
    m->group.count = 0;
    m->group.token = op_index;
    switch ((enum aq_object)op->object) {
    case AQ_OBJECT_WEIGHTS: list_weights(x, op_index); break;
    case AQ_OBJECT_KV: (op->kind == AQ_OP_READ ? list_kv_read : list_kv_write)(x, op_index); break;
    case AQ_OBJECT_HIDDEN: list_hidden(x, op_index); break;
    default: assert(!"an object that moves");
    }
    assert(m->group.count <= pieces_max(x, op));
    aq_disk_lane_submit(x->disk, &m->group);
    return 0;
}
