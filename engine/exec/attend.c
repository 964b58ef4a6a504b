/* SPDX-License-Identifier: Apache-2.0
 * Attention of a part: new keys and values are stored, queries attend, and where the policy drops
 * keys, scores, positions and victims are updated.
 *
 * A prompt that is cut is attended in scratch, and the slots that stay are moved to the home of its
 * KV; one that is cut over all layers alone is attended at home (cross.c).  A decoded key takes the
 * slot of the victim that was chosen a step before; or, once all slots are taken, many are dropped
 * first: those that stay close up, and it comes behind them.  In one of KIVI's formats prompts are
 * attended in scratch, too, new keys join the residual in f16, and head-blocks that leave it are
 * encoded before attention.  Rows that read a part of what is held choose it once their key is
 * stored (read.c).  In sequences on disk, whose full runs are read again at every step,
 * rows that overwrite others also join a delta, which is applied before attention. */
#include "engine/exec/attend.h"

#include <assert.h>
#include <string.h>

static uint32_t seen_of(const struct exec_attend *t, uint32_t i)
{
    return t->row_kv ? t->row_seen : exec_seat_of(t, i)->seen;
}

/* The rule of rows whose keys get this score, for a seat that drops keys. */
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
        .seen = seen_of(t, i),
        .held = s->held,
        .len = s->differ ? seq->len : &s->held,
        .len_step = s->differ ? seq->len_step : 0,
        .slots = seq->slots,
    };
    seen.chosen =
        exec_read_chosen(t->x, t->op, t->seat[i], &seen.chosen_stride, &seen.chosen_count);
    x->opts.kv_seen(x->opts.kv_user, &seen);
}

/* ---- decode ------------------------------------------------------------------------------ */

/* Where positions are those in the cache, the sinks are nearer to a row than in the text. */
static struct aq_attn_turn turn_of(const struct exec_attend *t, uint32_t i)
{
    const struct aq_seat_kv *s = exec_kv_of(t, i);
    uint32_t closer = aq_kv_policy_closer(&t->policy, seen_of(t, i) - 1, s->held);
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
        q->position = seen_of(t, i) - 1;
        q->overwrite = s->overwrites;
        q->recent = s->limits.recent_decode;
        q->turn = turn_of(t, i);
        if ((s->held < s->limits.slots && !s->limits.profiled) || s->limits.bulk)
            q->slots.victim = NULL; /* no key is dropped yet, or none alone */
    }
}

struct exec_moves *exec_moves_of(const struct exec_attend *t)
{
    return &t->x->kv_moves[t->op->kind == AQ_OP_ATTN_HOST];
}

void exec_run_moves(const struct exec_attend *t, const struct aq_kv_move *moves, uint32_t count)
{
    enum aq_dtype dtype = exec_is_residual(t) ? AQ_F16 : t->a.kv_dtype; /* codes are never moved */
    struct aq_kv_moves m = {moves, count, dtype, t->a.kv_heads, t->a.head_dim};
    if (count)
        t->c->kernels->kv_move(t->c->exec, &m);
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

/* ---- residual ---- */

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

static void decode(struct exec_attend *t)
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

void exec_attend(struct aq_executor *x, const struct aq_op *op, const struct aq_compute *c,
                 const float *qkv, void *attention)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    const struct aq_model_steps *m = x->steps;
    bool prefill = op->kind == AQ_OP_ATTN_PREFILL;
    const uint32_t *range = (prefill ? b->prefill_first : b->decode_first) + op->part;
    size_t width = (size_t)m->heads * m->head_dim, kv_width = (size_t)m->kv_heads * m->head_dim;
    struct exec_attend t = {
        .x = x,
        .op = op,
        .c = c,
        .seq = (prefill ? b->prefill : b->decode) + range[0],
        .seat = (prefill ? b->prefill_seat : b->decode_seat) + range[0],
        .count = range[1] - range[0],
        .layer = m->step[op->step].layer,
    };
    t.kind = x->plan->kinds.of[t.layer];
    t.policy = aq_plan_kind_policy(x->plan, t.kind);
    for (uint32_t i = 0; i < t.count; i++) {
        /* Nothing is left of the layer before, whose sequences may hold other slots. */
        t.seq[i] = (struct aq_attn_seq){
            .head_offset = aq_kv_head_offset(x->kv),
            .len = &exec_kv_of(&t, i)->held,
            .row = t.seq[i].row,
            .rows = t.seq[i].rows,
            .plain_offset = aq_kv_plain_offset(x->kv),
        };
        if (exec_is_residual(&t))
            t.seq[i].coded = aq_kv_residual_coded(&x->plan->kv.residual, exec_kv_of(&t, i)->held);
        if (!prefill && exec_kv_of(&t, i)->limits.profiled)
            exec_profile_place(x, t.seat[i], t.layer);
        /* The number of slots that each head keeps is known once the prompt is cut. */
        if (!prefill && exec_kv_of(&t, i)->differ)
            exec_kv_ragged_table(x, op, t.seat[i], exec_kv_of(&t, i), &t.seq[i]);
        else
            t.seq[i].block = exec_kv_blocks(x, op, t.seat[i]);
    }
    t.a = (struct aq_attn){
        .seqs = t.seq,
        .seq_count = t.count,
        .q = qkv,
        .q_stride = width + 2 * kv_width,
        .out = attention,
        .out_dtype = x->plan->shape.compute,
        .out_stride = width,
        .k_new = qkv + width,
        .v_new = qkv + width + kv_width,
        .new_stride = width + 2 * kv_width,
        .kv_dtype = x->plan->shape.kv_format,
        .kv_heads = m->kv_heads,
        .q_per_kv = m->heads / m->kv_heads,
        .head_dim = m->head_dim,
        .scale = m->attention_scale,
        .window = m->step[op->step].window,
    };
    prefill ? exec_attend_prompts(&t) : decode(&t);
}
