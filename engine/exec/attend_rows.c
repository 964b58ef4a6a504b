/* SPDX-License-Identifier: Apache-2.0
 * Attention of decode rows: see attend.c. */
#include "engine/exec/attend.h"

#include <assert.h>

/* Where positions are those in the cache, the sinks are nearer to a row than in the text. */
static struct aq_attn_turn turn_of(const struct exec_attend *t, uint32_t i)
{
    const struct aq_seat_kv *s = exec_kv_of(t, i);
    uint32_t closer = aq_kv_policy_closer(&t->policy, exec_seen_of(t, i) - 1, s->held);
    if (!closer || !s->limits.sinks)
        return (struct aq_attn_turn){0};
    return exec_rotary_back(t->x, t->x->seat[t->seat[i]].sequence, closer, s->limits.sinks);
}

/* Finds scores and positions of the sequences' slots, the slots that their rows take, and what the
 * rows' queries turn by. */
static void find_slots(const struct exec_attend *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const struct aq_seat_kv *s = exec_kv_of(t, i);
        struct aq_attn_seq *q = &t->seq[i];
        if (!s->drops)
            continue;
        q->slots = exec_kv_slots(t->x, t->op, t->seat[i]);
        q->position = exec_seen_of(t, i) - 1;
        q->overwrite = s->overwrites;
        q->recent = s->limits.recent_decode;
        q->turn = turn_of(t, i);
        if ((s->held < s->limits.slots && !s->limits.profiled) || s->limits.bulk)
            q->slots.victim = NULL; /* no key is dropped yet, or none alone */
    }
}

/* Copies the rows of deltas, which are not yet on disk, over the runs that were read from disk. */
static void apply_deltas(const struct exec_attend *t)
{
    struct exec_moves *m = exec_moves_of(t);
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct aq_seat_kv *s = exec_kv_of(t, i);
        if (!s->overwrites || !s->delta)
            continue;
        struct aq_kv_delta d = exec_kv_delta(t->x, t->op, t->seat[i]);
        m->run[count] = d.run;
        m->move[count] = (struct aq_kv_move){
            .from = {.block = &m->run[count],
                     .block_count = 1,
                     .head_offset = aq_kv_head_offset(t->x->kv)},
            .to = {.block = t->seq[i].block,
                   .block_count = exec_blocks_of(s->held),
                   .head_table_step = t->seq[i].head_table_step,
                   .head_offset = t->seq[i].head_offset,
                   .list = d.target,
                   .list_stride = AQ_HEAD_BLOCK_SLOTS},
            .count = &s->delta,
        };
        count++;
    }
    exec_run_moves(t, m->move, count);
}

/* Adds rows that were just stored in full runs to the delta. */
static void add_to_deltas(const struct exec_attend *t)
{
    static const uint32_t one = 1;
    struct exec_moves *m = exec_moves_of(t);
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct aq_seat_kv *s = exec_kv_of(t, i);
        if (!aq_kv_uses_delta(&t->x->plan->part[t->op->part], s) || s->rewrites)
            continue;
        struct aq_kv_delta d = exec_kv_delta(t->x, t->op, t->seat[i]);
        uint32_t whole = s->held / AQ_HEAD_BLOCK_SLOTS * AQ_HEAD_BLOCK_SLOTS;
        whole = s->differ ? UINT32_MAX : whole;
        const uint32_t *victim = t->seq[i].slots.victim;
        t->c->kernels->kv_note(
            t->c->exec, &(struct aq_kv_note){d.target + s->delta, victim, t->a.kv_heads, whole});
        m->run[count] = d.run;
        m->move[count] = (struct aq_kv_move){
            .from = {.block = t->seq[i].block,
                     .block_count = exec_blocks_of(s->held),
                     .head_table_step = t->seq[i].head_table_step,
                     .head_offset = t->seq[i].head_offset,
                     .list = victim,
                     .list_stride = 1},
            .to = {.block = &m->run[count],
                   .block_count = 1,
                   .head_offset = aq_kv_head_offset(t->x->kv),
                   .first = s->delta},
            .count = &one,
        };
        count++;
    }
    exec_run_moves(t, m->move, count);
}

/* ---- drops of many keys ---- */

/* The last run of a sequence on disk, which lies apart from the others, joins them in the stage, or
 * leaves them again: as many rows as are behind the full runs of `slots` slots. */
static void move_tail(const struct exec_attend *t, uint8_t *tail, uint8_t *const *staged,
                      uint32_t slots, bool joins)
{
    uint32_t rows = slots % AQ_HEAD_BLOCK_SLOTS;
    struct aq_kv_side apart = {
        .block = &tail, .block_count = 1, .head_offset = aq_kv_head_offset(t->x->kv)};
    struct aq_kv_side beside = {.block = staged,
                                .block_count = exec_blocks_of(slots),
                                .head_offset = apart.head_offset,
                                .first = slots - rows};
    struct aq_kv_move move = {
        .from = joins ? apart : beside, .to = joins ? beside : apart, .count = &rows};
    if (rows)
        exec_run_moves(t, &move, 1);
}

/* What the keys of the slots are worth: their scores, or those and their neighbours' pooled. */
static const float *worth_of(const struct exec_attend *t, const struct aq_attn_slots *slots,
                             uint32_t len, float *pooled)
{
    const struct aq_kv_score *by = &t->policy.decode;
    if (!by->pool)
        return slots->score;
    t->c->kernels->kv_value(t->c->exec, &(struct aq_kv_value){.sums = slots->score,
                                                              .value = pooled,
                                                              .stride = slots->stride,
                                                              .len = len,
                                                              .kv_heads = t->a.kv_heads,
                                                              .q_per_kv = 1,
                                                              .group = AQ_ATTN_SUM,
                                                              .pool = by->pool,
                                                              .pool_width = by->pool_width});
    return pooled;
}

/* All slots of a sequence are taken: those that stay close up, in their order. */
static void drop_many(const struct exec_attend *t, uint32_t i)
{
    struct aq_executor *x = t->x;
    const struct aq_seat_kv *s = exec_kv_of(t, i);
    struct aq_attn_seq *q = &t->seq[i];
    uint32_t seat = t->seat[i], left = aq_kv_limits_cut(&s->limits);
    uint32_t older = s->before - s->limits.recent_prompt;
    struct aq_kv_drop_room room = aq_kv_drop_room(x->kv, seat);
    uint8_t *tail = exec_kv_tail_apart(x, t->op, seat);
    if (tail) {
        q->block = exec_kv_staged(x, t->op, seat, exec_blocks_of(s->before));
        move_tail(t, tail, q->block, s->before, true);
    }
    struct aq_kv_select select = {
        .value = worth_of(t, &q->slots, older, room.value),
        .stride = q->slots.stride,
        .len = s->before,
        .recent = s->limits.recent_prompt,
        .heavy = s->limits.heavy_prompt,
        .sinks = s->limits.sinks,
        .keep = room.keep,
        .keep_stride = q->slots.stride,
        .count = room.count,
    };
    t->c->kernels->kv_select(t->c->exec, &(struct aq_kv_selects){&select, 1, t->a.kv_heads});
    struct aq_kv_side side = {.block = q->block,
                              .block_count = exec_blocks_of(s->before),
                              .head_offset = q->head_offset,
                              .slots = q->slots};
    struct aq_kv_move gather = {.from = side, .to = side, .count = &left};
    gather.from.list = room.keep;
    gather.from.list_stride = q->slots.stride;
    exec_run_moves(t, &gather, 1);
    if (tail) {
        move_tail(t, tail, q->block, left, false);
        q->block = exec_kv_blocks(x, t->op, seat);
    }
}

/* ---- rows ---- */

/* How the attention of a seat's row counts: always, unless many keys are dropped at a time. */
static enum aq_kv_counts counts_of(const struct aq_seat_kv *s)
{
    return s->limits.bulk && s->drops ? aq_kv_limits_counts(&s->limits, s->held) : AQ_KV_COUNTS;
}

static bool same_rule(const struct aq_seat_kv *a, const struct aq_seat_kv *b)
{
    return a->limits.sinks == b->limits.sinks && counts_of(a) == counts_of(b);
}

/* Whole blocks that a row and the one before it both begin with: prompts that begin alike have them
 * in the same pages (kv_pages.c).  Nobody who attends them has to know why. */
static uint32_t shared_of(const struct aq_attn_seq *s)
{
    const struct aq_attn_seq *before = s - 1;
    if (s->head_table_step || before->head_table_step || s->coded || before->coded)
        return 0;
    uint32_t whole = (uint32_t)aq_min_u64(*s->len, *before->len) / AQ_HEAD_BLOCK_SLOTS, b = 0;
    while (b < whole && s->block[b] == before->block[b])
        b++;
    return b;
}

static void find_shared(const struct exec_attend *t)
{
    if (aq_kv_policy_drops(&t->policy) || exec_is_residual(t))
        return;
    for (uint32_t i = 1; i < t->count; i++)
        t->seq[i].shared = shared_of(&t->seq[i]);
}

/* One call for all sequences with the same rule. */
static void attend_rows(struct exec_attend *t)
{
    struct aq_attn a = t->a;
    for (uint32_t i = 0, end; i < t->count; i = end) {
        const struct aq_seat_kv *s = exec_kv_of(t, i);
        enum aq_kv_counts counts = counts_of(s);
        for (end = i + 1; end < t->count && same_rule(exec_kv_of(t, end), s);)
            end++;
        a.seqs = t->seq + i;
        a.seq_count = end - i;
        if (aq_kv_policy_drops(&t->policy))
            a.rule = exec_rule_of(&t->policy.decode, s);
        if (counts == AQ_KV_COUNTS_NOT)
            a.rule = (struct aq_attn_rule){.victim = AQ_ATTN_NO_RULE};
        else if (counts == AQ_KV_COUNTS_FIRST)
            a.rule.decay = 0; /* what was before this row is forgotten */
        t->c->kernels->attn_decode(t->c->exec, &a);
        if (a.rule.together)
            t->c->kernels->kv_victim(t->c->exec, &a);
    }
}

/* Stores new rows in the residual, and encodes the head-blocks that leave it. */
static void append_to_residual(struct exec_attend *t)
{
    struct aq_executor *x = t->x;
    struct aq_attn a = t->a;
    struct exec_encoding e = {.t = t};
    a.kv_dtype = AQ_F16;
    t->c->kernels->kv_append(t->c->exec, &a);
    for (uint32_t i = 0; i < t->count; i++) {
        const struct aq_seat_kv *s = exec_kv_of(t, i);
        uint32_t run = aq_kv_residual_coded(&x->plan->kv.residual, s->before);
        for (; run < t->seq[i].coded; run++)
            exec_add_encoding(&e, aq_kv_residual_run(x->kv, t->seat[i], t->layer, run),
                              t->seq[i].block[run]);
    }
    exec_run_encoding(&e);
}

/* The rows of sequences that have one each. */
static void decode_single(struct exec_attend *t)
{
    bool disk = t->x->plan->part[t->op->part].tier == AQ_DISK;
    find_slots(t);
    for (uint32_t i = 0; i < t->count; i++) {
        if (exec_kv_of(t, i)->drops_many)
            drop_many(t, i);
    }
    if (disk)
        apply_deltas(t);
    if (exec_is_residual(t))
        append_to_residual(t);
    else
        t->c->kernels->kv_append(t->c->exec, &t->a);
    if (disk)
        add_to_deltas(t);
    exec_read_part(t->x, t->op, t->c, &t->a, t->seq, t->seat);
    for (uint32_t i = 0; i < t->count; i++) {
        if (exec_kv_of(t, i)->limits.profiled)
            t->seq[i].slots.victim = NULL; /* the heads' rules have others */
    }
    find_shared(t);
    attend_rows(t);
    for (uint32_t i = 0; i < t->count; i++) {
        if (exec_kv_of(t, i)->limits.profiled)
            exec_profile_row(t->x, t->seat[i], t->layer);
    }
    for (uint32_t i = 0; i < t->count; i++)
        exec_report_slots(t, i, &t->seq[i]);
}

/* The rows of given tokens, of a sequence in pages.  Where nothing is dropped all are stored, and
 * each sees what it would have seen in a pass of its own; else a row's attention decides what the
 * next one finds, so they come one after the other. */
static void decode_given(const struct exec_attend *t, uint32_t i)
{
    struct exec_attend one = *t;
    struct aq_attn_seq whole = t->seq[i], seq;
    struct aq_seat_kv kv = *exec_kv_of(t, i);
    uint32_t seen = exec_seat_of(t, i)->seen - whole.rows;
    one.seq = &seq;
    one.seat = t->seat + i;
    one.count = one.a.seq_count = 1;
    one.a.seqs = &seq;
    assert(!kv.differ);
    if (!kv.drops) {
        seq = whole;
        decode_single(&one);
        return;
    }
    one.row_kv = &kv;
    kv.held = kv.start;
    for (uint32_t row = 0; row < whole.rows; row++) {
        aq_seat_kv_step(&kv);
        one.row_seen = seen + row + 1;
        seq = whole;
        seq.row += row;
        seq.rows = 1;
        seq.len = &kv.held;
        decode_single(&one);
    }
}

void exec_attend_rows(const struct exec_attend *t)
{
    struct exec_attend some = *t;
    for (uint32_t i = 0, end; i < t->count; i = end) {
        end = i + 1;
        if (t->seq[i].rows > 1) {
            decode_given(t, i);
            continue;
        }
        while (end < t->count && t->seq[end].rows == 1)
            end++;
        some.seq = t->seq + i;
        some.seat = t->seat + i;
        some.count = some.a.seq_count = end - i;
        some.a.seqs = some.seq;
        decode_single(&some);
    }
}
