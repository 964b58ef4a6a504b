/* SPDX-License-Identifier: Apache-2.0
 * Where the KV of a part is while an op works on it, and which of its bytes the link and disk lanes
 * move: runs of 32 slots, and rows of single keys. */
#include "engine/exec.h"

#include <assert.h>

static uint32_t runs_max(const struct aq_executor *x)
{
    return aq_kv_policy_runs(&x->plan->kv, x->plan->shape.keys_max, x->steps->kv_heads);
}

/* The addresses of every run in every stage of the device: they never change. */
void exec_stages_open(struct aq_executor *x)
{
    uint32_t each = x->room.stage_seats * runs_max(x);
    for (uint64_t i = 0; i < x->room.blocks; i++)
        x->stage_block[i] = exec_slot(x, AQ_SLOT_KV_DEVICE, (uint32_t)(i / each)) +
                            i % each * aq_kv_run_stride(x->kv);
}

/* Whole runs of a seat before the pass, and after; and all its runs.  Where heads share them all
 * are whole: nothing is added to them. */
static uint32_t whole_before(const struct exec_seat *s)
{
    return s->shared_runs ? s->shared_runs : s->before / AQ_HEAD_BLOCK_SLOTS;
}

static uint32_t whole_after(const struct exec_seat *s)
{
    return s->shared_runs ? s->shared_runs : s->held / AQ_HEAD_BLOCK_SLOTS;
}

static uint32_t runs_before(const struct exec_seat *s)
{
    return s->shared_runs ? s->shared_runs : (uint32_t)aq_div_up(s->before, AQ_HEAD_BLOCK_SLOTS);
}

static uint32_t runs_after(const struct exec_seat *s)
{
    return s->shared_runs ? s->shared_runs : (uint32_t)aq_div_up(s->held, AQ_HEAD_BLOCK_SLOTS);
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

void exec_kv_spread(struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                    struct aq_attn_seq *seq)
{
    aq_kv_spread(x->kv, seq, seat, x->steps->step[op->step].layer, op->kind == AQ_OP_ATTN_HOST,
                 exec_kv_blocks(x, op, seat));
}

/* What travels with a seat's KV, in a stage of a separate device. */
static uint8_t *stage_piece(const struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    size_t runs = (size_t)x->room.stage_seats * runs_max(x) * aq_kv_run_stride(x->kv);
    return exec_slot(x, AQ_SLOT_KV_DEVICE, op->stage) + runs +
           place_in(x, op->part, seat) * x->travel_bytes;
}

struct aq_attn_slots exec_kv_slots(struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    const struct aq_part *part = &x->plan->part[op->part];
    /* Prompts are attended on the device also where decode rows are not. */
    if (part->side == AQ_ATTEND_HOST && op->kind == AQ_OP_ATTN_PREFILL)
        return aq_kv_slots_at(x->kv, stage_piece(x, op, seat));
    return aq_kv_slots(x->kv, seat, x->steps->step[op->step].layer);
}

struct aq_kv_delta exec_kv_delta(struct aq_executor *x, const struct aq_op *op, uint32_t seat)
{
    bool away = x->plan->separate && op->kind != AQ_OP_ATTN_HOST;
    return aq_kv_delta_at(x->kv,
                          away ? stage_piece(x, op, seat)
                               : aq_kv_delta_home(x->kv, seat, x->steps->step[op->step].layer));
}

bool exec_uses_delta(const struct aq_executor *x, uint32_t seat)
{
    /* What lies in the tail is there when it is needed. */
    const struct exec_seat *s = &x->seat[seat];
    return s->overwrites && whole_after(s) > 0 &&
           x->plan->part[exec_part_of(x, seat)].tier == AQ_DISK;
}

/* ---- counts ------------------------------------------------------------------------------ */

/* Are the seat's next victims known after the pass? */
static bool has_victims(const struct exec_seat *s)
{
    return s->drops && s->held == s->limits.slots;
}

static uint64_t victims_bytes(const struct aq_executor *x, const struct exec_seat *s)
{
    return has_victims(s) ? x->steps->kv_heads * sizeof(uint32_t) : 0;
}

/* Bytes that a decoded key brings home from the device: its rows, or its run where rows cannot be
 * told apart; of a seat on disk whose slots are overwritten what may have changed. */
static uint64_t key_bytes(const struct aq_executor *x, uint32_t seat, bool disk)
{
    const struct exec_seat *s = &x->seat[seat];
    enum aq_dtype t = x->plan->shape.kv_format;
    uint64_t run = x->plan->shape.run_bytes;
    if (disk && s->overwrites)
        return s->rewrites ? runs_before(s) * run
                           : (exec_uses_delta(x, seat) ? aq_kv_delta_bytes(x->kv) : 0) +
                                 (runs_before(s) - whole_before(s)) * run;
    uint64_t rows = 2ull * x->steps->kv_heads * x->steps->head_dim * aq_dtype_bytes(t);
    return (exec_kv_rows_apart(t) ? rows : run) + (disk ? 0 : victims_bytes(x, s));
}

static void count_decoding(const struct aq_executor *x, const struct aq_part *p, uint32_t seat,
                           struct aq_part_shape *shape)
{
    const struct exec_seat *s = &x->seat[seat];
    bool disk = p->tier == AQ_DISK, link = x->plan->separate && p->side == AQ_ATTEND_DEVICE;
    uint64_t stride = aq_kv_run_stride(x->kv), whole = whole_before(s);
    if (disk) {
        shape->read_bytes += whole * stride;
        shape->write_bytes += (s->rewrites ? whole : whole_after(s) - whole) * stride;
    }
    if (link) {
        shape->load_bytes += runs_before(s) * x->plan->shape.run_bytes +
                             (s->delta && s->overwrites ? aq_kv_delta_bytes(x->kv) : 0);
        shape->store_bytes += key_bytes(x, seat, disk);
    }
}

static void count_prompt(const struct aq_executor *x, const struct aq_part *p, uint32_t seat,
                         struct aq_part_shape *shape)
{
    const struct exec_seat *s = &x->seat[seat];
    bool disk = p->tier == AQ_DISK, host = p->side == AQ_ATTEND_HOST;
    shape->write_bytes += disk ? whole_after(s) * aq_kv_run_stride(x->kv) : 0;
    if (!x->plan->separate)
        return;
    shape->store_bytes += runs_after(s) * x->plan->shape.run_bytes;
    shape->store_bytes += !s->drops ? 0
                          : host    ? aq_kv_slots_bytes(x->kv)
                          : disk    ? 0
                                    : victims_bytes(x, s);
}

void exec_count_kv(struct aq_executor *x, uint32_t k, uint32_t part)
{
    const struct exec_batch *b = &x->batch[k];
    const struct aq_part *p = &x->plan->part[part];
    struct aq_part_shape *shape = &x->pass_shape[k].part[part];
    if (!p->staged)
        return;
    for (uint32_t i = b->decode_first[part]; i < b->decode_first[part + 1]; i++)
        count_decoding(x, p, b->decode_seat[i], shape);
    for (uint32_t i = b->prefill_first[part]; i < b->prefill_first[part + 1]; i++)
        count_prompt(x, p, b->prefill_seat[i], shape);
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
 * tails.  And all whole runs of a seat whose delta is written back, as the stage has them. */
static void list_kv_write(struct aq_executor *x, uint32_t op_index)
{
    const struct aq_op *op = &x->program->op[op_index];
    const struct exec_batch *b = &x->batch[op->micro_batch];
    uint32_t layer = x->steps->step[op->step].layer;
    uint64_t run = aq_kv_run_stride(x->kv);
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++) {
        uint32_t seat = b->decode_seat[i], before = whole_before(&x->seat[seat]);
        uint64_t at = aq_kv_disk_offset(x->kv, seat, layer);
        if (x->seat[seat].rewrites)
            exec_add_transfer(x, op_index, x->opts.scratch_set, at, before * run,
                              disk_stage(x, op, seat));
        else if (whole_after(&x->seat[seat]) > before)
            exec_add_transfer(x, op_index, x->opts.scratch_set, at + before * run, run,
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

/* Runs [0, end) of a seat between its stage on the device and the host, where those from `whole`
 * on are not in a stage. */
static void add_runs(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                     uint32_t seat, uint32_t first, uint32_t end, uint32_t whole)
{
    uint32_t layer = x->steps->step[op->step].layer;
    for (uint32_t run = first; run < end; run++)
        exec_add_piece(l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, run),
                       home_run(x, op, layer, seat, run, whole), x->plan->shape.run_bytes);
}

static void add_delta(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                      uint32_t seat)
{
    exec_add_piece(l, stage_piece(x, op, seat),
                   aq_kv_delta_home(x->kv, seat, x->steps->step[op->step].layer),
                   aq_kv_delta_bytes(x->kv));
}

/* Runs of a part's sequences to the device before they are attended there. */
static void link_kv_out(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1]; i++) {
        uint32_t seat = b->decode_seat[i];
        const struct exec_seat *s = &x->seat[seat];
        add_runs(x, op, l, seat, 0, runs_before(s), whole_before(s));
        if (s->delta && s->overwrites)
            add_delta(x, op, l, seat);
    }
}

/* The rows of one slot of the head-block `at` bytes from there, or all of it where they cannot be
 * told apart. */
static void add_row(struct aq_executor *x, struct exec_pieces *l, uint8_t *device, uint8_t *host,
                    size_t at, uint32_t slot)
{
    enum aq_dtype t = x->plan->shape.kv_format;
    size_t row = x->steps->head_dim * aq_dtype_bytes(t), half = AQ_HEAD_BLOCK_SLOTS * row;
    if (!exec_kv_rows_apart(t)) {
        exec_add_piece(l, device + at, host + at, aq_kv_head_offset(x->kv));
        return;
    }
    at += slot * row;
    exec_add_piece(l, device + at, host + at, row);
    exec_add_piece(l, device + at + half, host + at + half, row);
}

/* The new key of a seat in every head: in the slots that were given up, or in the last one. */
static void add_key(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                    uint32_t seat)
{
    const struct exec_seat *s = &x->seat[seat];
    uint32_t layer = x->steps->step[op->step].layer;
    const uint32_t *victim = s->overwrites ? aq_kv_victims(x->kv, seat, layer) : NULL;
    uint32_t run = (s->held - 1) / AQ_HEAD_BLOCK_SLOTS;
    if (!victim && !exec_kv_rows_apart(x->plan->shape.kv_format)) {
        add_runs(x, op, l, seat, run, run + 1, whole_before(s));
        return;
    }
    for (uint32_t h = 0; h < x->steps->kv_heads; h++) {
        uint32_t slot = victim ? victim[h] : s->held - 1;
        struct aq_kv_spot at = {slot / AQ_HEAD_BLOCK_SLOTS, h * aq_kv_head_offset(x->kv)};
        assert(s->shared_runs || slot < s->held);
        if (s->shared_runs)
            at = aq_kv_spot(x->kv, seat, layer, h, slot);
        add_row(x, l, stage_run(x, AQ_SLOT_KV_DEVICE, op->stage, op->part, seat, at.run),
                home_run(x, op, layer, seat, at.run, whole_before(s)), at.offset,
                slot % AQ_HEAD_BLOCK_SLOTS);
    }
}

static void add_victims(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                        uint32_t seat)
{
    uint32_t layer = x->steps->step[op->step].layer;
    exec_add_piece(l, aq_kv_slots(x->kv, seat, layer).victim, aq_kv_victims(x->kv, seat, layer),
                   x->steps->kv_heads * sizeof(uint32_t));
}

/* What the device changed of a seat that decodes. */
static void take_home(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l,
                      uint32_t seat)
{
    const struct exec_seat *s = &x->seat[seat];
    bool disk = x->plan->part[op->part].tier == AQ_DISK;
    if (!disk || !s->overwrites)
        add_key(x, op, l, seat);
    if (!disk && has_victims(s))
        add_victims(x, op, l, seat);
    if (!disk || !s->overwrites)
        return;
    uint32_t whole = whole_before(s), runs = runs_before(s);
    add_runs(x, op, l, seat, s->rewrites ? 0 : whole, runs, whole);
    if (!s->rewrites && exec_uses_delta(x, seat))
        add_delta(x, op, l, seat);
}

/* What the device added comes home: prompts in whole, with what is remembered of them where that
 * is needed there; of decoded keys the new rows. */
static void link_kv_home(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    const struct aq_part *part = &x->plan->part[op->part];
    uint32_t layer = x->steps->step[op->step].layer;
    bool on_host = part->side == AQ_ATTEND_HOST;
    for (uint32_t i = b->decode_first[op->part]; i < b->decode_first[op->part + 1] && !on_host; i++)
        take_home(x, op, l, b->decode_seat[i]);
    for (uint32_t i = b->prefill_first[op->part]; i < b->prefill_first[op->part + 1]; i++) {
        uint32_t seat = b->prefill_seat[i];
        const struct exec_seat *s = &x->seat[seat];
        add_runs(x, op, l, seat, 0, runs_after(s), whole_after(s));
        if (on_host && s->drops)
            exec_add_piece(l, stage_piece(x, op, seat), aq_kv_slots_home(x->kv, seat, layer),
                           aq_kv_slots_bytes(x->kv));
        else if (part->tier == AQ_HOST && has_victims(s))
            add_victims(x, op, l, seat);
    }
}

void exec_link_kv(struct aq_executor *x, const struct aq_op *op, struct exec_pieces *l)
{
    (l->to_device ? link_kv_out : link_kv_home)(x, op, l);
}
