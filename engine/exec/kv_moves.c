/* SPDX-License-Identifier: Apache-2.0
 * Addresses of a part's KV while an op works on it, and lists of the bytes that link and disk lanes
 * move: runs of 32 slots, and rows of single keys. */
#include "engine/exec/exec.h"

#include <assert.h>

/* Runs that a seat has room for in a stage: those of the layers that hold most. */
static uint32_t runs_max(const struct aq_executor *x)
{
    return x->plan->kinds.runs;
}

static uint32_t layer_of(const struct aq_executor *x, const struct aq_op *op)
{
    return x->steps->step[op->step].layer;
}

/* The moves of a seat's KV of the op's layer in this pass. */
static struct aq_kv_traffic traffic_of(const struct aq_executor *x, const struct aq_op *op,
                                       uint32_t seat)
{
    struct aq_kv_traffic t;
    aq_kv_traffic_of(&t, x->plan, &x->plan->part[op->part], &x->seats.seat[seat],
                     x->plan->kinds.of[layer_of(x, op)]);
    return t;
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

/* Run `run` of a seat on the host: in its pages; or, of a seat on disk, a full run in the host's
 * stage, or the tail. */
static uint8_t *home_run(const struct aq_executor *x, const struct aq_op *op, uint32_t layer,
                         uint32_t seat, uint32_t run, uint32_t whole)
{
    if (x->plan->part[op->part].tier != AQ_DISK)
        return aq_kv_blocks(x->kv, seat, layer)[run];
    return run < whole ? stage_run(x, AQ_SLOT_KV_HOST, op->workspace, op->part, seat, run)
                       : aq_kv_tail(x->kv, seat, layer, run);
}

/* Puts the first runs of a seat, which lie in a stage in the places of lower seats, into its table.
 * What one of those has of another is less than what is shared with it. */
static void put_brought(const struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                        uint8_t **table)
{
    const struct aq_seat *of = x->seats.seat;
    uint32_t from = seat;
    for (uint32_t run = of[seat].brought / AQ_HEAD_BLOCK_SLOTS; run-- > 0;) {
        while (run * AQ_HEAD_BLOCK_SLOTS < of[from].brought)
            from = of[from].via;
        table[run] = stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, from, run);
    }
}

uint8_t *const *exec_kv_blocks(struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    uint32_t layer = layer_of(x, op);
    const struct aq_part *part = &x->plan->part[op->part];
    bool on_host = op->kind == AQ_OP_ATTN_HOST;
    bool disk = part->tier == AQ_DISK;
    if (on_host ? !disk : !part->staged)
        return aq_kv_blocks(x->kv, seat, layer);
    uint8_t *stage =
        stage_run(x, on_host ? AQ_SLOT_KV_HOST : AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, 0);
    uint8_t **table;
    if (!on_host && x->plan->separate) {
        table =
            x->stage_block +
            ((size_t)op->stage * x->sizes.stage_seats + place_in(x, op->part, seat)) * runs_max(x);
        for (uint32_t run = 0; run < runs_max(x); run++) /* the last seat here had others' */
            table[run] = stage + run * aq_kv_run_stride(x->kv);
    } else {
        /* The full runs of a prompt, and those of codes, are made in the stage; a decoded key joins
         * the tail or the residual. */
        table = aq_kv_place(x->kv, seat, layer, stage, traffic_of(x, op, seat).left);
    }
    if (!on_host)
        put_brought(x, op, seat, table);
    return table;
}

uint8_t *exec_kv_tail_apart(struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    bool away = x->plan->separate && op->kind != AQ_OP_ATTN_HOST;
    if (x->plan->part[op->part].tier != AQ_DISK || away)
        return NULL;
    return aq_kv_tail(x->kv, seat, layer_of(x, op), 0);
}

uint8_t *const *exec_kv_staged(struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                               uint32_t runs)
{
    bool on_host = op->kind == AQ_OP_ATTN_HOST;
    return aq_kv_place(
        x->kv, seat, layer_of(x, op),
        stage_run(x, on_host ? AQ_SLOT_KV_HOST : AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, 0),
        runs);
}

static struct aq_kv_growth growth_of(const struct aq_executor *x, uint32_t seat, uint32_t layer,
                                     const struct aq_seat_kv *s)
{
    bool disk = x->plan->part[aq_seats_part(x->plan, seat)].tier == AQ_DISK;
    bool apart = s->differ && (s->limits.cross || (s->limits.profiled && !disk));
    uint32_t packed = apart ? aq_kv_packed(x->kv, seat, layer) : aq_seat_kv_packed(s);
    const uint32_t *each = s->limits.profiled ? aq_kv_grown(x->kv, seat, layer) : NULL;
    return (struct aq_kv_growth){packed, aq_seat_kv_grown(s), each};
}

void exec_kv_ragged_table(struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                          const struct aq_seat_kv *kv, struct aq_attn_seq *seq)
{
    uint32_t layer = layer_of(x, op);
    struct aq_kv_growth g = growth_of(x, seat, layer, kv);
    aq_kv_ragged_table(x->kv, seq, seat, layer, &g, exec_attending_lane(op),
                       exec_kv_blocks(x, op, seat));
}

/* A seat's scores, positions, victims and delta in a stage of a separate device. */
static uint8_t *stage_piece(const struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    size_t runs = (size_t)x->sizes.stage_seats * runs_max(x) * aq_kv_run_stride(x->kv);
    return exec_slot(x, AQ_SLOT_KV_DEVICE, op->stage) + runs +
           place_in(x, op->part, seat) * x->transfer_bytes;
}

struct aq_attn_slots exec_kv_slots(struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    const struct aq_part *part = &x->plan->part[op->part];
    /* Prompts are attended on the device even if decode rows are not. */
    if (part->side == AQ_ATTEND_HOST && op->kind == AQ_OP_ATTN_PREFILL)
        return aq_kv_slots_at(x->kv, layer_of(x, op), stage_piece(x, op, seat));
    return aq_kv_slots(x->kv, seat, layer_of(x, op));
}

struct aq_kv_delta exec_kv_delta(struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    bool away = x->plan->separate && op->kind != AQ_OP_ATTN_HOST;
    return aq_kv_delta_at(x->kv, away ? stage_piece(x, op, seat)
                                      : aq_kv_delta_home(x->kv, seat, layer_of(x, op)));
}

/* ---- disk -------------------------------------------------------------------------------- */

/* The stage that disk transfers of KV use: the one that a unified device attends from, or the
 * host's. */
static uint8_t *disk_stage(const struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    bool link = x->plan->separate;
    return stage_run(x, link ? AQ_SLOT_KV_HOST : AQ_SLOT_KV_DEVICE,
                     link ? op->workspace : op->stage, op->part, seat, 0);
}

/* Lists runs of a seat: each range that lies in one piece on disk. */
static void add_ranges(struct aq_executor *x, uint32_t op_index, uint32_t seat, struct aq_runs runs)
{
    const struct aq_op *op = &x->program->op[op_index];
    uint32_t layer = layer_of(x, op);
    uint64_t stride = aq_kv_run_stride(x->kv);
    for (uint32_t first = runs.first, end; first < runs.end; first = end) {
        uint64_t at = aq_kv_disk_offset(x->kv, seat, layer, first), bytes = stride;
        for (end = first + 1; end < runs.end; end++, bytes += stride) {
            if (aq_kv_disk_offset(x->kv, seat, layer, end) != at + bytes)
                break;
        }
        exec_add_transfer(x, op_index, x->opts.scratch_set, at, bytes,
                          disk_stage(x, op, seat) + first * stride);
    }
}

/* Lists the transfers of a seat: full runs of a stage; for decoded keys the tail, once it is
 * full. */
static void list_seat(struct aq_executor *x, uint32_t op_index, uint32_t seat)
{
    const struct aq_op *op = &x->program->op[op_index];
    uint32_t layer = layer_of(x, op);
    struct aq_kv_traffic t = traffic_of(x, op, seat);
    add_ranges(x, op_index, seat, op->kind == AQ_OP_READ ? t.read : t.write);
    if (op->kind == AQ_OP_WRITE && t.write_tail)
        exec_add_transfer(x, op_index, x->opts.scratch_set,
                          aq_kv_disk_offset(x->kv, seat, layer, t.left), aq_kv_run_stride(x->kv),
                          aq_kv_tail(x->kv, seat, layer, t.left));
}

void exec_list_kv(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct exec_batch *b = &x->batch[op->micro_batch];
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++)
        list_seat(x, op_index, b->decode_seat[i]);
    for (uint32_t i = b->prefill_first[op->part]; i < b->prefill_first[op->part + 1]; i++)
        list_seat(x, op_index, b->prefill_seat[i]);
}

/* ---- links ------------------------------------------------------------------------------- */

/* Lists runs of a seat between its stage on the device and the host; from `whole` on, the host's
 * runs are not in a stage. */
static void add_runs(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                     uint32_t seat, struct aq_runs runs, uint32_t whole)
{
    uint32_t layer = layer_of(x, op);
    for (uint32_t run = runs.first; run < runs.end; run++)
        exec_add_piece(l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, run),
                       home_run(x, op, layer, seat, run, whole), x->plan->shape.run_bytes);
}

static void add_delta(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                      uint32_t seat)
{
    exec_add_piece(l, stage_piece(x, op, seat), aq_kv_delta_home(x->kv, seat, layer_of(x, op)),
                   aq_kv_delta_bytes(x->kv));
}

/* Lists the rows of one slot of the head-block at offset `at`; the whole head-block if its format
 * does not allow to copy single rows. */
static void add_row(struct aq_executor *x, struct exec_pieces *l, uint8_t *device, uint8_t *host,
                    size_t at, uint32_t slot)
{
    enum aq_dtype t = x->plan->shape.kv_format;
    size_t row = x->steps->head_dim * aq_dtype_bytes(t), half = AQ_HEAD_BLOCK_SLOTS * row;
    if (!aq_kv_rows_apart(t)) {
        exec_add_piece(l, device + at, host + at, aq_kv_head_offset(x->kv));
        return;
    }
    at += slot * row;
    exec_add_piece(l, device + at, host + at, row);
    exec_add_piece(l, device + at + half, host + at + half, row);
}

/* Lists the rows of a seat's new key in every head: in the victims' slots, or in the last slot. */
static void add_key(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                    uint32_t seat, uint32_t whole)
{
    uint32_t layer = layer_of(x, op);
    const struct aq_seat_kv *s = &x->seats.seat[seat].kv[x->plan->kinds.of[layer]];
    const uint32_t *victim = s->overwrites ? aq_kv_victims(x->kv, seat, layer) : NULL;
    struct aq_kv_growth g = growth_of(x, seat, layer, s);
    uint32_t run = (s->held - 1) / AQ_HEAD_BLOCK_SLOTS;
    if (!victim && !s->differ && !aq_kv_rows_apart(x->plan->shape.kv_format)) {
        add_runs(x, op, l, seat, (struct aq_runs){run, run + 1}, whole);
        return;
    }
    for (uint32_t h = 0; h < x->steps->kv_heads; h++) {
        uint32_t last = s->differ ? aq_kv_lens(x->kv, seat, layer)[h] + g.grown : s->held;
        uint32_t slot = victim ? victim[h] : last - 1;
        struct aq_kv_spot at = {slot / AQ_HEAD_BLOCK_SLOTS, h * aq_kv_head_offset(x->kv)};
        assert(slot < last);
        if (s->differ)
            at = aq_kv_spot(x->kv, seat, layer, &g, h, slot);
        add_row(x, l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, at.run),
                home_run(x, op, layer, seat, at.run, whole), at.offset, slot % AQ_HEAD_BLOCK_SLOTS);
    }
}

static void add_victims(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                        uint32_t seat)
{
    uint32_t layer = layer_of(x, op);
    exec_add_piece(l, aq_kv_slots(x->kv, seat, layer).victim, aq_kv_victims(x->kv, seat, layer),
                   x->steps->kv_heads * sizeof(uint32_t));
}

/* Lists the pieces of a seat: its KV to the device; or from the device the new rows, and scores,
 * positions and victims if the host needs them. */
static void link_seat(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                      uint32_t seat)
{
    struct aq_kv_traffic t = traffic_of(x, op, seat);
    uint32_t layer = layer_of(x, op);
    add_runs(x, op, l, seat, l->to_device ? t.load : t.store, l->to_device ? t.whole : t.left);
    if (l->to_device ? t.load_delta : t.store_delta)
        add_delta(x, op, l, seat);
    if (l->to_device)
        return;
    if (t.store_key)
        add_key(x, op, l, seat, t.whole);
    if (t.store_victims)
        add_victims(x, op, l, seat);
    if (t.store_slots)
        exec_add_piece(l, stage_piece(x, op, seat), aq_kv_slots_home(x->kv, seat, layer),
                       aq_kv_slots_bytes(x->kv, layer));
}

void exec_link_kv(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++)
        link_seat(x, op, l, b->decode_seat[i]);
    for (uint32_t i = b->prefill_first[op->part]; i < b->prefill_first[op->part + 1]; i++)
        link_seat(x, op, l, b->prefill_seat[i]);
}
