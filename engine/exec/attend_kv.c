/* SPDX-License-Identifier: Apache-2.0
 * What attention of prompts and of decode rows both do with KV: see attend.h. */
#include "engine/exec/attend.h"

struct aq_attn_rule exec_rule_of(const struct aq_kv_score *score, const struct aq_seat_kv *s)
{
    bool columns = score->source == AQ_KV_SOURCE_COLUMNS;
    if (score->source == AQ_KV_SOURCE_NONE)
        return (struct aq_attn_rule){.victim = AQ_ATTN_NO_RULE};
    return (struct aq_attn_rule){
        .stat = columns ? score->stat : AQ_ATTN_PROB, /* the kernels' shortest way */
        .group = score->group,
        .threshold = score->threshold,
        .decay = score->decay,
        .victim = columns ? AQ_ATTN_BY_SCORE : AQ_ATTN_BY_POSITION,
        .sinks = s->limits.sinks,
        .together = score->together,
    };
}

void exec_report_slots(const struct exec_attend *t, uint32_t i, const struct aq_attn_seq *seq)
{
    const struct aq_executor *x = t->x;
    const struct aq_seat_kv *s = exec_kv_of(t, i);
    if (!x->opts.kv_seen)
        return;
    struct aq_kv_seen seen = {
        .sequence = x->seat[t->seat[i]].sequence,
        .layer = t->layer,
        .kv_heads = t->a.kv_heads,
        .seen = exec_seen_of(t, i),
        .held = s->held,
        .len = s->differ ? seq->len : &s->held,
        .len_step = s->differ ? seq->len_step : 0,
        .slots = seq->slots,
    };
    seen.chosen =
        exec_read_chosen(t->x, t->op, t->seat[i], &seen.chosen_stride, &seen.chosen_count);
    x->opts.kv_seen(x->opts.kv_user, &seen);
}

struct exec_moves *exec_moves_of(const struct exec_attend *t)
{
    return &t->x->kv_moves[exec_attending_lane(t->op)];
}

void exec_run_moves(const struct exec_attend *t, const struct aq_kv_move *moves, uint32_t count)
{
    enum aq_dtype dtype = exec_is_residual(t) ? AQ_F16 : t->a.kv_dtype; /* codes are never moved */
    struct aq_kv_moves m = {moves, count, dtype, t->a.kv_heads, t->a.head_dim};
    if (count)
        t->c->kernels->kv_move(t->c->exec, &m);
}

void exec_run_encoding(struct exec_encoding *e)
{
    const struct aq_attn *a = &e->t->a;
    struct aq_kv_encodes job = {e->run, e->count, a->kv_dtype, a->kv_heads, a->head_dim};
    if (e->count)
        e->t->c->kernels->kv_encode(e->t->c->exec, &job);
    e->count = 0;
}

void exec_add_encoding(struct exec_encoding *e, const uint8_t *from, uint8_t *to)
{
    if (e->count == AQ_ARRAY_LEN(e->run))
        exec_run_encoding(e);
    e->run[e->count++] = (struct aq_kv_encode){from, to};
}
