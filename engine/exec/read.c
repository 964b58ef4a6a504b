/* SPDX-License-Identifier: Apache-2.0
 * Decoded rows that read a part of the keys held (policy/kv_read.h): bounds of the head-blocks that
 * have become full are made where these lie, from whatever stage or page they are attended in; then
 * each head chooses, and attention gets a table of what was chosen.  So prompts need nothing, and
 * bounds never move. */
#include "engine/exec/exec.h"

#include "policy/kv_read.h"

/* Rows that choose together. */
struct reading {
    struct aq_executor *x;
    const struct aq_op *op;
    const struct aq_compute *c;
    const struct aq_attn *a;
    uint32_t count;
    struct aq_kv_bound bound[32];
    struct aq_kv_choice choice[32];
    struct aq_attn_seq *seq[32];
    uint32_t seat[32], held[32];
};

static void run(struct reading *r)
{
    const struct aq_attn *a = r->a;
    struct aq_kv_bounds bounds = {r->bound, r->count, a->kv_dtype, a->kv_heads, a->head_dim};
    struct aq_kv_choices choices = {.choices = r->choice,
                                    .q = a->q,
                                    .q_stride = a->q_stride,
                                    .count = r->count,
                                    .kv_heads = a->kv_heads,
                                    .q_per_kv = a->q_per_kv,
                                    .head_dim = a->head_dim,
                                    .scale = a->scale};
    if (!r->count)
        return;
    r->c->kernels->kv_bounds(r->c->exec, &bounds);
    r->c->kernels->kv_choose(r->c->exec, &choices);
    for (uint32_t i = 0; i < r->count; i++)
        aq_kv_read_table(r->x->kv, r->seq[i], r->seat[i], exec_attending_lane(r->op),
                         r->choice[i].keep, r->held[i]);
    r->count = 0;
}

static void add(struct reading *r, struct aq_attn_seq *seq, uint32_t seat, uint32_t layer,
                uint32_t read)
{
    const struct aq_kv_kinds *kinds = &r->x->plan->kinds;
    const struct aq_seat *s = &r->x->seats.seat[seat];
    const struct aq_seat_kv *kv = &s->kv[kinds->of[layer]];
    uint32_t i = r->count++, stride, full = kv->held / AQ_HEAD_BLOCK_SLOTS;
    uint32_t groups = aq_kv_bound_groups_of(aq_kv_kinds_at(kinds, layer));
    uint16_t *bounds = aq_kv_bounds(r->x->kv, seat, layer);
    uint32_t *chosen = aq_kv_chosen(r->x->kv, seat, exec_attending_lane(r->op), &stride);
    r->seq[i] = seq;
    r->seat[i] = seat;
    r->held[i] = kv->held;
    r->bound[i] = (struct aq_kv_bound){
        .block = seq->block,
        .head_offset = seq->head_offset,
        .bounds = bounds,
        .groups = groups,
        .first = aq_kv_read_bounded(read, kv->before, s->seen == s->prompt + 1),
        .end = full,
    };
    r->choice[i] = (struct aq_kv_choice){
        .bounds = bounds,
        .groups = groups,
        .blocks = full,
        .keep = aq_kv_read_blocks(read, kv->held),
        .row = seq->row,
        .chosen = chosen,
        .stride = stride,
    };
}

void exec_read_part(struct aq_executor *x, const struct aq_op *op, const struct aq_compute *c,
                    const struct aq_attn *a, struct aq_attn_seq *seq, const uint32_t *seat)
{
    uint32_t layer = x->steps->step[op->step].layer, kind = x->plan->kinds.of[layer];
    uint32_t read = aq_plan_kind_policy(x->plan, kind).read;
    struct reading r = {.x = x, .op = op, .c = c, .a = a};
    for (uint32_t i = 0; i < a->seq_count && read; i++) {
        if (!aq_kv_read_chooses(read, x->seats.seat[seat[i]].kv[kind].held))
            continue;
        add(&r, &seq[i], seat[i], layer, read);
        if (r.count == AQ_ARRAY_LEN(r.bound))
            run(&r);
    }
    run(&r);
}

const uint32_t *exec_read_chosen(struct aq_executor *x, const struct aq_op *op, uint32_t seat,
                                 uint32_t *ret_stride, uint32_t *ret_count)
{
    uint32_t kind = x->plan->kinds.of[x->steps->step[op->step].layer];
    uint32_t read = aq_plan_kind_policy(x->plan, kind).read,
             held = x->seats.seat[seat].kv[kind].held;
    if (op->kind == AQ_OP_ATTN_PREFILL || !aq_kv_read_chooses(read, held))
        return NULL;
    *ret_count = aq_kv_read_blocks(read, held);
    return aq_kv_chosen(x->kv, seat, exec_attending_lane(op), ret_stride);
}
