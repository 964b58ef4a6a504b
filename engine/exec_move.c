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

static uint32_t runs_max(const struct aq_executor *x)
{
    return (uint32_t)aq_div_up(x->plan->shape.keys_max, AQ_HEAD_BLOCK_SLOTS);
}

/* The most transfers, or pieces of a copy, that a move is cut into: of KV a piece for each run on
 * the way, and for each row of a head where single rows come home. */
static uint32_t pieces_max(const struct aq_executor *x, const struct aq_op *op)
{
    uint32_t seats = x->plan->part[op->part].count;
    uint32_t runs = runs_max(x), rows = 2 * x->steps->kv_heads;
    switch ((enum aq_object)op->object) {
    case AQ_OBJECT_WEIGHTS: return x->stream->chunk[op->chunk].piece_count;
    case AQ_OBJECT_KV: return is_disk(op) ? seats : seats * (runs > rows ? runs : rows);
    default: return 1;
    }
}

/* The addresses of every run in every stage of the device: they never change. */
static int open_stages(struct aq_executor *x, struct aq_err *reterr)
{
    const struct aq_program *p = x->program;
    uint32_t stages = p->first[AQ_SLOT_KV_DEVICE + 1] - p->first[AQ_SLOT_KV_DEVICE];
    uint32_t seats = 0, runs = runs_max(x);
    if (!x->plan->separate || !stages)
        return 0;
    for (uint32_t i = 0; i < x->plan->part_count; i++)
        seats = x->plan->part[i].count > seats ? x->plan->part[i].count : seats;
    x->stage_seats = seats;
    x->stage_block = calloc((size_t)stages * seats * runs, sizeof(*x->stage_block));
    if (!x->stage_block)
        return aq_error(reterr, -ENOMEM, "stages of %u seats", seats);
    for (uint32_t i = 0; i < stages; i++) {
        for (uint32_t n = 0; n < seats * runs; n++)
            x->stage_block[(size_t)i * seats * runs + n] =
                exec_slot(x, AQ_SLOT_KV_DEVICE, i) + n * aq_kv_run_stride(x->kv);
    }
    return 0;
}

int exec_moves_open(struct aq_executor *x, struct aq_err *reterr)
{
    size_t transfers = 0, pieces = 0;
    int rc = open_stages(x, reterr);
    if (rc < 0)
        return rc;
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
    free(x->stage_block);
}

/* ---- KV ---------------------------------------------------------------------------------- */

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
               ((size_t)op->stage * x->stage_seats + place_in(x, op->part, seat)) * runs_max(x);
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
            add_transfer(x, op_index, x->opts.scratch_set, aq_kv_disk_offset(x->kv, seat, layer),
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
            add_transfer(x, op_index, x->opts.scratch_set,
                         aq_kv_disk_offset(x->kv, seat, layer) + before * run, run,
                         aq_kv_tail(x->kv, seat, layer));
    }
    for (uint32_t i = b->prefill_first[op->part]; i < b->prefill_first[op->part + 1]; i++) {
        uint32_t seat = b->prefill_seat[i], whole = whole_after(&x->seat[seat]);
        if (whole)
            add_transfer(x, op_index, x->opts.scratch_set, aq_kv_disk_offset(x->kv, seat, layer),
                         whole * run, disk_stage(x, op, seat));
    }
}

static void list_hidden(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint64_t at = x->slot_offset[x->program->first[AQ_SLOT_HIDDEN_DISK] + op->micro_batch];
    uint64_t bytes = aq_align_up((uint64_t)b->row_count * x->steps->hidden * 4, AQ_PANEL_ALIGN);
    add_transfer(x, op_index, x->opts.scratch_set, aq_kv_disk_bytes(x->kv) + at, bytes,
                 exec_slot(x, x->plan->separate ? AQ_SLOT_HIDDEN_HOST : AQ_SLOT_HIDDEN, op->stage));
}

static void start_disk(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    struct exec_move *m = &x->move[op_index];
    m->group.transfer = m->transfer;
    m->group.count = 0;
    m->group.token = op_index;
    switch ((enum aq_object)op->object) {
    case AQ_OBJECT_WEIGHTS: list_weights(x, op_index); break;
    case AQ_OBJECT_KV: (op->kind == AQ_OP_READ ? list_kv_read : list_kv_write)(x, op_index); break;
    case AQ_OBJECT_HIDDEN: list_hidden(x, op_index); break;
    default: assert(!"an object that goes to disk");
    }
    assert(m->group.count <= pieces_max(x, op));
    aq_disk_lane_submit(x->disk, &m->group);
}

/* ---- links ------------------------------------------------------------------------------- */

/* A list of pieces being made; there and back is the caller's to say. */
struct pieces {
    struct aq_copy_piece *piece;
    uint32_t count;
    bool to_device;
};

static void add_piece(struct pieces *l, void *device, void *host, uint64_t bytes)
{
    l->piece[l->count++] = l->to_device ? (struct aq_copy_piece){device, host, bytes}
                                        : (struct aq_copy_piece){host, device, bytes};
}

static void link_weights(struct aq_executor *x, const struct aq_op *op, struct pieces *l)
{
    const struct aq_chunk *chunk = &x->stream->chunk[op->chunk];
    uint8_t *slot = exec_slot(x, AQ_SLOT_RING, chunk->slot);
    for (uint32_t i = 0; i < chunk->piece_count; i++) {
        const struct aq_piece *p = &x->stream->piece[chunk->piece_first + i];
        uint32_t resident = x->stream->split[op->step][p->matrix].panels[AQ_DEVICE];
        uint8_t *from = x->opts.model->weight[op->step][p->matrix].host;
        from = chunk->tier == AQ_DISK ? exec_slot(x, AQ_SLOT_STAGING, chunk->staging) + p->offset
                                      : from + (p->first - resident) * (p->bytes / p->count);
        add_piece(l, slot + p->offset, from, p->bytes);
    }
}

/* Runs of a part's sequences to the device before they are attended there. */
static void link_kv_out(struct aq_executor *x, const struct aq_op *op, struct pieces *l)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint32_t layer = x->steps->step[op->step].layer;
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++) {
        uint32_t seat = b->decode_seat[i];
        const struct exec_seat *s = &x->seat[seat];
        for (uint32_t run = 0; run < runs_before(s); run++)
            add_piece(l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, run),
                      home_run(x, op, layer, seat, run, whole_before(s)), x->plan->shape.run_bytes);
    }
}

/* The rows of the new key of every head of a run, or the run where they cannot be told apart. */
static void add_key(struct aq_executor *x, struct pieces *l, uint8_t *device, uint8_t *host,
                    uint32_t slot)
{
    enum aq_dtype t = x->plan->shape.kv_format;
    if (!exec_kv_rows_apart(t)) {
        add_piece(l, device, host, x->plan->shape.run_bytes);
        return;
    }
    size_t row = x->steps->head_dim * aq_dtype_bytes(t), half = AQ_HEAD_BLOCK_SLOTS * row;
    for (uint32_t h = 0; h < x->steps->kv_heads; h++) {
        size_t at = h * aq_kv_head_offset(x->kv) + slot * row;
        add_piece(l, device + at, host + at, row);
        add_piece(l, device + at + half, host + at + half, row);
    }
}

/* What the device added comes home: prompts in whole, of decoded keys the new rows. */
static void link_kv_home(struct aq_executor *x, const struct aq_op *op, struct pieces *l)
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
            add_piece(l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, run),
                      home_run(x, op, layer, seat, run, whole_after(s)), x->plan->shape.run_bytes);
    }
}

static void link_rows(struct aq_executor *x, const struct aq_op *op, struct pieces *l)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    const struct aq_model_steps *m = x->steps;
    size_t width = (size_t)m->heads * m->head_dim, kv_width = (size_t)m->kv_heads * m->head_dim;
    size_t qkv = (width + 2 * kv_width) * 4, out = width * aq_dtype_bytes(x->plan->shape.compute);
    uint32_t first = b->decode_first[op->part], rows = b->decode_first[op->part + 1] - first;
    uint32_t at = op->workspace * x->plan->part_count + op->part;
    if (op->object == AQ_OBJECT_QKV)
        add_piece(l, exec_slot(x, AQ_SLOT_QKV, op->workspace) + first * qkv,
                  exec_slot(x, AQ_SLOT_QKV_HOST, at), rows * qkv);
    else
        add_piece(
            l, exec_slot(x, AQ_SLOT_ATTENTION, op->workspace * x->plan->part_count) + first * out,
            exec_slot(x, AQ_SLOT_ATTENTION_HOST, at), rows * out);
}

static int start_link(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    struct pieces l = {x->move[op_index].piece, 0, op->kind == AQ_OP_H2D};
    switch ((enum aq_object)op->object) {
    case AQ_OBJECT_WEIGHTS: link_weights(x, op, &l); break;
    case AQ_OBJECT_KV: (l.to_device ? link_kv_out : link_kv_home)(x, op, &l); break;
    case AQ_OBJECT_HIDDEN:
        add_piece(&l, exec_slot(x, AQ_SLOT_HIDDEN, op->stage),
                  exec_slot(x, AQ_SLOT_HIDDEN_HOST, op->workspace),
                  (uint64_t)x->batch[op->micro_batch].row_count * x->steps->hidden * 4);
        break;
    default: link_rows(x, op, &l);
    }
    assert(l.count <= pieces_max(x, op));
    struct aq_device_copy copy = {
        .direction = l.to_device ? AQ_H2D : AQ_D2H,
        .pieces = l.piece,
        .piece_count = l.count,
        .token = op_index,
        .done = x->completions,
        .span = &x->job[op_index].span,
    };
    return aq_device_copy(x->lane[op->lane].stream, &copy);
}

int exec_start_move(struct aq_executor *x, uint32_t op_index)
{
    if (is_link(&x->program->op[op_index]))
        return start_link(x, op_index);
    start_disk(x, op_index);
    return 0;
}
