/* SPDX-License-Identifier: Apache-2.0
 * Where the KV of a part is while an op works on it, and which of its bytes the link and disk lanes
 * move: runs of 32 slots, and rows of single keys. */
#include "engine/exec.h"

#include <assert.h>

static uint32_t runs_max(const struct aq_executor *x)
{
    return (uint32_t)aq_div_up(x->plan->shape.keys_max, AQ_HEAD_BLOCK_SLOTS);
}

/* The addresses of every run in every stage of the device: they never change. */
void exec_stages_open(struct aq_executor *x)
{
    uint32_t each = x->room.stage_seats * runs_max(x);
    for (uint64_t i = 0; i < x->room.blocks; i++)
        x->stage_block[i] = exec_slot(x, AQ_SLOT_KV_DEVICE, (uint32_t)(i / each)) +
                            i % each * aq_kv_run_stride(x->kv);
}

/* Whole runs of a seat before the keys of this pass are added, and after; and all its runs. */
static uint32_t whole_before(const struct exec_seat *s)
{
    return (s->keys - s->rows) / AQ_HEAD_BLOCK_SLOTS;
}

static uint32_t whole_after(const struct exec_seat *s)
{
    return s->keys / AQ_HEAD_BLOCK_SLOTS;
}

static uint32_t runs_before(const struct exec_seat *s)
{
    return (uint32_t)aq_div_up(s->keys - s->rows, AQ_HEAD_BLOCK_SLOTS);
}

static uint32_t runs_after(const struct exec_seat *s)
{
    return (uint32_t)aq_div_up(s->keys, AQ_HEAD_BLOCK_SLOTS);
}

static uint32_t place_in(const struct aq_executor *x, uint32_t part, uint32_t seat)
{
    return seat % x->plan->shape.micro_batch - x->plan->part[part].first;
}

/* Run `run` of a seat in a stage. */
static uint8_t *stage_run(const struct aq_executor *x, enum aq_slot_class c, uint32_t stage,
                          uint32_t part, uint32_t seat, uint32_t run)
{
    return exec_slot(x, c, stage) +
           ((size_t)place_in(x, part, seat) * runs_max(x) + run) * aq_kv_run_stride(x->kv);
}

/* Run `run` of a seat on the host: in its pages, or of a seat on disk in the host's stage while
 * it is whole, else its tail. */
static uint8_t *home_run(const struct aq_executor *x, const struct aq_op *op, uint32_t layer,
                         uint32_t seat, uint32_t run, uint32_t whole)
{
    if (x->plan->part[op->part].tier != AQ_DISK)
        return aq_kv_blocks(x->kv, seat, layer)[run];
    return run < whole ? stage_run(x, AQ_SLOT_KV_HOST, op->workspace, op->part, seat, run)
                       : aq_kv_tail(x->kv, seat, layer);
}

uint8_t *const *exec_kv_blocks(struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    uint32_t layer = x->steps->step[op->step].layer;
    const struct aq_part *part = &x->plan->part[op->part];
    const struct exec_seat *s = &x->seat[seat];
    bool on_host = op->kind == AQ_OP_ATTN_HOST;
    bool disk = part->tier == AQ_DISK;
    if (on_host ? !disk : !part->staged)
        return aq_kv_blocks(x->kv, seat, layer);
    if (!on_host && x->plan->separate)
        return x->stage_block +
               ((size_t)op->stage * x->room.stage_seats + place_in(x, op->part, seat)) *
                   runs_max(x);
    uint8_t *stage =
        stage_run(x, on_host ? AQ_SLOT_KV_HOST : AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, 0);
    /* A prompt's whole runs are made in the stage; a decoded key joins the tail. */
    uint32_t whole = op->kind == AQ_OP_ATTN_PREFILL ? whole_after(s) : whole_before(s);
    return aq_kv_place(x->kv, seat, layer, stage, whole);
}

/* Bytes of one new key in all heads, as it comes home from the device: its rows, or its run where
 * rows cannot be told apart. */
static uint64_t key_bytes(const struct aq_executor *x)
{
    enum aq_dtype t = x->plan->shape.kv_format;
    return exec_kv_rows_apart(t)
               ? 2ull * x->steps->kv_heads * x->steps->head_dim * aq_dtype_bytes(t)
               : x->plan->shape.run_bytes;
}

void exec_count_kv(struct aq_executor *x, uint32_t k, uint32_t part)
{
    const struct exec_batch *b = &x->batch[k];
    const struct aq_part *p = &x->plan->part[part];
    struct aq_part_shape *shape = &x->pass_shape[k].part[part];
    if (!p->staged)
        return;
    bool disk = p->tier == AQ_DISK, link = x->plan->separate, host = p->side == AQ_ATTEND_HOST;
    uint64_t stride = aq_kv_run_stride(x->kv), run = x->plan->shape.run_bytes;
    for (uint32_t i = b->decode_first[part]; i < b->decode_first[part + 1]; i++) {
        const struct exec_seat *s = &x->seat[b->decode_seat[i]];
        shape->read_bytes += disk ? whole_before(s) * stride : 0;
        shape->write_bytes += disk ? (whole_after(s) - whole_before(s)) * stride : 0;
        shape->load_bytes += link && !host ? runs_before(s) * run : 0;
        shape->store_bytes += link && !host ? key_bytes(x) : 0;
    }
    for (uint32_t i = b->prefill_first[part]; i < b->prefill_first[part + 1]; i++) {
        const struct exec_seat *s = &x->seat[b->prefill_seat[i]];
        shape->write_bytes += disk ? whole_after(s) * stride : 0;
        shape->store_bytes += link ? runs_after(s) * run : 0;
    }
}

/* ---- disk -------------------------------------------------------------------------------- */

/* The stage that disk transfers of KV use: what a unified device attends from, or the host's. */
static uint8_t *disk_stage(const struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    bool link = x->plan->separate;
    return stage_run(x, link ? AQ_SLOT_KV_HOST : AQ_SLOT_KV_DEVICE,
                     link ? op->workspace : op->stage, op->part, seat, 0);
}

static void list_kv_read(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint32_t layer = x->steps->step[op->step].layer;
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++) {
        uint32_t seat = b->decode_seat[i], whole = whole_before(&x->seat[seat]);
        if (whole)
            exec_add_transfer(x, op_index, x->opts.scratch_set,
                              aq_kv_disk_offset(x->kv, seat, layer),
                              whole * aq_kv_run_stride(x->kv), disk_stage(x, op, seat));
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
            exec_add_transfer(x, op_index, x->opts.scratch_set,
                              aq_kv_disk_offset(x->kv, seat, layer) + before * run, run,
                              aq_kv_tail(x->kv, seat, layer));
    }
    for (uint32_t i = b->prefill_first[op->part]; i < b->prefill_first[op->part + 1]; i++) {
        uint32_t seat = b->prefill_seat[i], whole = whole_after(&x->seat[seat]);
        if (whole)
            exec_add_transfer(x, op_index, x->opts.scratch_set,
                              aq_kv_disk_offset(x->kv, seat, layer), whole * run,
                              disk_stage(x, op, seat));
    }
}

void exec_list_kv(struct aq_executor *x, uint32_t op_index)
{
    (x->program->op[op_index].kind == AQ_OP_READ ? list_kv_read : list_kv_write)(x, op_index);
}

/* ---- links ------------------------------------------------------------------------------- */

/* Runs of a part's sequences to the device before they are attended there. */
static void link_kv_out(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint32_t layer = x->steps->step[op->step].layer;
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++) {
        uint32_t seat = b->decode_seat[i];
        const struct exec_seat *s = &x->seat[seat];
        for (uint32_t run = 0; run < runs_before(s); run++)
            exec_add_piece(l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, run),
                           home_run(x, op, layer, seat, run, whole_before(s)),
                           x->plan->shape.run_bytes);
    }
}

/* The rows of the new key of every head of a run, or the run where they cannot be told apart. */
static void add_key(struct aq_executor *x, struct exec_pieces *l, uint8_t *device, uint8_t *host,
                    uint32_t slot)
{
    enum aq_dtype t = x->plan->shape.kv_format;
    if (!exec_kv_rows_apart(t)) {
        exec_add_piece(l, device, host, x->plan->shape.run_bytes);
        return;
    }
    size_t row = x->steps->head_dim * aq_dtype_bytes(t), half = AQ_HEAD_BLOCK_SLOTS * row;
    for (uint32_t h = 0; h < x->steps->kv_heads; h++) {
        size_t at = h * aq_kv_head_offset(x->kv) + slot * row;
        exec_add_piece(l, device + at, host + at, row);
        exec_add_piece(l, device + at + half, host + at + half, row);
    }
}

/* What the device added comes home: prompts in whole, of decoded keys the new rows. */
static void link_kv_home(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint32_t layer = x->steps->step[op->step].layer;
    bool on_host = x->plan->part[op->part].side == AQ_ATTEND_HOST;
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1] && !on_host;
         i++) {
        uint32_t seat = b->decode_seat[i];
        const struct exec_seat *s = &x->seat[seat];
        uint32_t run = (s->keys - 1) / AQ_HEAD_BLOCK_SLOTS;
        add_key(x, l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, run),
                home_run(x, op, layer, seat, run, whole_before(s)),
                (s->keys - 1) % AQ_HEAD_BLOCK_SLOTS);
    }
    for (uint32_t i = b->prefill_first[op->part]; i < b->prefill_first[op->part + 1]; i++) {
        uint32_t seat = b->prefill_seat[i];
        const struct exec_seat *s = &x->seat[seat];
        for (uint32_t run = 0; run < runs_after(s); run++)
            exec_add_piece(l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, run),
                           home_run(x, op, layer, seat, run, whole_after(s)),
                           x->plan->shape.run_bytes);
    }
}

void exec_link_kv(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    (l->to_device ? link_kv_out : link_kv_home)(x, op, l);
}
