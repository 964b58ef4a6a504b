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
#include "engine/exec/exec.h"

#include <assert.h>
#include <string.h>

/* The state of an op that attends: a part's prompts, or its decode rows. */
struct attend {
    struct aq_executor *x;
    const struct aq_op *op;
    const struct aq_compute *c;
    struct aq_attn a;        /* of all its sequences */
    struct aq_attn_seq *seq; /* [count] */
    const uint32_t *seat;    /* [count] */
    uint32_t count, layer, kind;
    struct aq_kv_policy policy; /* of the layer */
    /* Of one row of given tokens: its sequence's KV then, and the positions seen with it; NULL:
     * those of the pass. */
    const struct aq_seat_kv *row_kv;
    uint32_t row_seen;
};

static const struct aq_seat *seat_of(const struct attend *t, uint32_t i)
{
    return &t->x->seats.seat[t->seat[i]];
}

static const struct aq_seat_kv *kv_of(const struct attend *t, uint32_t i)
{
    return t->row_kv ? t->row_kv : &seat_of(t, i)->kv[t->kind];
}

static uint32_t seen_of(const struct attend *t, uint32_t i)
{
    return t->row_kv ? t->row_seen : seat_of(t, i)->seen;
}

/* The rule of rows whose keys get this score, for a seat that drops keys. */
static struct aq_attn_rule rule_of(const struct aq_kv_score *score, const struct aq_seat_kv *s)
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

static void report_slots(const struct attend *t, uint32_t i, const struct aq_attn_seq *seq)
{
    const struct aq_executor *x = t->x;
    const struct aq_seat_kv *s = kv_of(t, i);
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
static struct aq_attn_turn turn_of(const struct attend *t, uint32_t i)
{
    const struct aq_seat_kv *s = kv_of(t, i);
    uint32_t closer = aq_kv_policy_closer(&t->policy, seen_of(t, i) - 1, s->held);
    if (!closer || !s->limits.sinks)
        return (struct aq_attn_turn){0};
    return exec_rotary_back(t->x, t->x->seat[t->seat[i]].sequence, closer, s->limits.sinks);
}

/* Finds scores and positions of the sequences' slots, the slots that their rows take, and what the
 * rows' queries turn by. */
static void find_slots(const struct attend *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const struct aq_seat_kv *s = kv_of(t, i);
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

/* Head-blocks of `slots` slots. */
static uint32_t blocks_of(uint32_t slots)
{
    return (uint32_t)aq_div_up(slots, AQ_HEAD_BLOCK_SLOTS);
}

static struct exec_moves *moves_of(const struct attend *t)
{
    return &t->x->kv_moves[t->op->kind == AQ_OP_ATTN_HOST];
}

/* Are keys and values codes once they have left the residual? */
static bool is_residual(const struct attend *t)
{
    return t->x->plan->kv.residual.tokens > 0;
}

static void run_moves(const struct attend *t, const struct aq_kv_move *moves, uint32_t count)
{
    enum aq_dtype dtype = is_residual(t) ? AQ_F16 : t->a.kv_dtype; /* codes are never moved */
    struct aq_kv_moves m = {moves, count, dtype, t->a.kv_heads, t->a.head_dim};
    if (count)
        t->c->kernels->kv_move(t->c->exec, &m);
}

/* Copies the rows of deltas, which are not yet on disk, over the runs that were read from disk. */
static void apply_deltas(const struct attend *t)
{
    struct exec_moves *m = moves_of(t);
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct aq_seat_kv *s = kv_of(t, i);
        if (!s->overwrites || !s->delta)
            continue;
        struct aq_kv_delta d = exec_kv_delta(t->x, t->op, t->seat[i]);
        m->run[count] = d.run;
        m->move[count] = (struct aq_kv_move){
            .from = {.block = &m->run[count],
                     .block_count = 1,
                     .head_offset = aq_kv_head_offset(t->x->kv)},
            .to = {.block = t->seq[i].block,
                   .block_count = blocks_of(s->held),
                   .head_table_step = t->seq[i].head_table_step,
                   .head_offset = t->seq[i].head_offset,
                   .list = d.target,
                   .list_stride = AQ_HEAD_BLOCK_SLOTS},
            .count = &s->delta,
        };
        count++;
    }
    run_moves(t, m->move, count);
}

/* Adds rows that were just stored in full runs to the delta. */
static void add_to_deltas(const struct attend *t)
{
    static const uint32_t one = 1;
    struct exec_moves *m = moves_of(t);
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct aq_seat_kv *s = kv_of(t, i);
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
                     .block_count = blocks_of(s->held),
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
    run_moves(t, m->move, count);
}

/* ---- drops of many keys ---- */

/* The last run of a sequence on disk, which lies apart from the others, joins them in the stage, or
 * leaves them again: as many rows as are behind the full runs of `slots` slots. */
static void move_tail(const struct attend *t, uint8_t *tail, uint8_t *const *staged, uint32_t slots,
                      bool joins)
{
    uint32_t rows = slots % AQ_HEAD_BLOCK_SLOTS;
    struct aq_kv_side apart = {
        .block = &tail, .block_count = 1, .head_offset = aq_kv_head_offset(t->x->kv)};
    struct aq_kv_side beside = {.block = staged,
                                .block_count = blocks_of(slots),
                                .head_offset = apart.head_offset,
                                .first = slots - rows};
    struct aq_kv_move move = {
        .from = joins ? apart : beside, .to = joins ? beside : apart, .count = &rows};
    if (rows)
        run_moves(t, &move, 1);
}

/* What the keys of the slots are worth: their scores, or those and their neighbours' pooled. */
static const float *worth_of(const struct attend *t, const struct aq_attn_slots *slots,
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
static void drop_many(const struct attend *t, uint32_t i)
{
    struct aq_executor *x = t->x;
    const struct aq_seat_kv *s = kv_of(t, i);
    struct aq_attn_seq *q = &t->seq[i];
    uint32_t seat = t->seat[i], left = aq_kv_limits_cut(&s->limits);
    uint32_t older = s->before - s->limits.recent_prompt;
    struct aq_kv_drop_room room = aq_kv_drop_room(x->kv, seat);
    uint8_t *tail = exec_kv_tail_apart(x, t->op, seat);
    if (tail) {
        q->block = exec_kv_staged(x, t->op, seat, blocks_of(s->before));
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
                              .block_count = blocks_of(s->before),
                              .head_offset = q->head_offset,
                              .slots = q->slots};
    struct aq_kv_move gather = {.from = side, .to = side, .count = &left};
    gather.from.list = room.keep;
    gather.from.list_stride = q->slots.stride;
    run_moves(t, &gather, 1);
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

static void find_shared(const struct attend *t)
{
    if (aq_kv_policy_drops(&t->policy) || is_residual(t))
        return;
    for (uint32_t i = 1; i < t->count; i++)
        t->seq[i].shared = shared_of(&t->seq[i]);
}

/* One call for all sequences with the same rule. */
static void attend_rows(struct attend *t)
{
    struct aq_attn a = t->a;
    for (uint32_t i = 0, end; i < t->count; i = end) {
        const struct aq_seat_kv *s = kv_of(t, i);
        enum aq_kv_counts counts = counts_of(s);
        for (end = i + 1; end < t->count && same_rule(kv_of(t, end), s);)
            end++;
        a.seqs = t->seq + i;
        a.seq_count = end - i;
        if (aq_kv_policy_drops(&t->policy))
            a.rule = rule_of(&t->policy.decode, s);
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

/* Runs that are to be encoded, some at a time. */
struct encoding {
    const struct attend *t;
    uint32_t count;
    struct aq_kv_encode run[64];
};

static void run_encoding(struct encoding *e)
{
    const struct aq_attn *a = &e->t->a;
    struct aq_kv_encodes job = {e->run, e->count, a->kv_dtype, a->kv_heads, a->head_dim};
    if (e->count)
        e->t->c->kernels->kv_encode(e->t->c->exec, &job);
    e->count = 0;
}

static void add_encoding(struct encoding *e, const uint8_t *from, uint8_t *to)
{
    if (e->count == AQ_ARRAY_LEN(e->run))
        run_encoding(e);
    e->run[e->count++] = (struct aq_kv_encode){from, to};
}

/* Stores new rows in the residual, and encodes the head-blocks that leave it. */
static void append_to_residual(struct attend *t)
{
    struct aq_executor *x = t->x;
    struct aq_attn a = t->a;
    struct encoding e = {.t = t};
    a.kv_dtype = AQ_F16;
    t->c->kernels->kv_append(t->c->exec, &a);
    for (uint32_t i = 0; i < t->count; i++) {
        const struct aq_seat_kv *s = kv_of(t, i);
        uint32_t run = aq_kv_residual_coded(&x->plan->kv.residual, s->before);
        for (; run < t->seq[i].coded; run++)
            add_encoding(&e, aq_kv_residual_run(x->kv, t->seat[i], t->layer, run),
                         t->seq[i].block[run]);
    }
    run_encoding(&e);
}

/* The rows of sequences that have one each. */
static void decode_single(struct attend *t)
{
    bool disk = t->x->plan->part[t->op->part].tier == AQ_DISK;
    find_slots(t);
    for (uint32_t i = 0; i < t->count; i++) {
        if (kv_of(t, i)->drops_many)
            drop_many(t, i);
    }
    if (disk)
        apply_deltas(t);
    if (is_residual(t))
        append_to_residual(t);
    else
        t->c->kernels->kv_append(t->c->exec, &t->a);
    if (disk)
        add_to_deltas(t);
    exec_read_part(t->x, t->op, t->c, &t->a, t->seq, t->seat);
    for (uint32_t i = 0; i < t->count; i++) {
        if (kv_of(t, i)->limits.profiled)
            t->seq[i].slots.victim = NULL; /* the heads' rules have others */
    }
    find_shared(t);
    attend_rows(t);
    for (uint32_t i = 0; i < t->count; i++) {
        if (kv_of(t, i)->limits.profiled)
            exec_profile_row(t->x, t->seat[i], t->layer);
    }
    for (uint32_t i = 0; i < t->count; i++)
        report_slots(t, i, &t->seq[i]);
}

/* The rows of given tokens, of a sequence in pages.  Where nothing is dropped all are stored, and
 * each sees what it would have seen in a pass of its own; else a row's attention decides what the
 * next one finds, so they come one after the other. */
static void decode_given(const struct attend *t, uint32_t i)
{
    struct attend one = *t;
    struct aq_attn_seq whole = t->seq[i], seq;
    struct aq_seat_kv kv = *kv_of(t, i);
    uint32_t seen = seat_of(t, i)->seen - whole.rows;
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

static void decode(struct attend *t)
{
    struct attend some = *t;
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

/* ---- prompts ----------------------------------------------------------------------------- */

/* The prompt of one sequence that drops keys or has a residual. */
struct prompt {
    const struct aq_seat_kv *s;
    const uint32_t *tokens; /* of the prompt */
    struct aq_attn a;
    struct aq_attn_seq seq;
    struct aq_attn_seq home; /* home of the slots that stay, with their scores and positions */
    uint8_t *const *kept;    /* the runs of the slots that stay, which are to be encoded */
    uint8_t *scratch;
    uint32_t lends; /* sums of its first so many queries are kept for the next prompt; 0: none */
};

/* Sums of the queries of a prompt's beginning, of which the first ones are there already if they
 * were copied, are kept for the prompt that begins as it does; *io and *seq are of the rest. */
static void keep_begun(const struct attend *t, const struct prompt *p, struct aq_attn *io,
                       struct aq_attn_seq *seq)
{
    const struct aq_kv_prefill_layout *layout = &t->x->prompt_layout;
    float *begun = (float *)(p->scratch + layout->begun);
    uint32_t known = seq->position, rows = p->lends > known ? p->lends - known : 0;
    if (known)
        io->begun = (struct aq_attn_begun){begun, layout->stride, known};
    if (!rows)
        return;
    struct aq_attn a = *io;
    struct aq_attn_seq first = *seq;
    first.rows = rows;
    first.len = &p->lends;
    first.slots = (struct aq_attn_slots){.score = begun, .stride = layout->stride};
    a.seqs = &first;
    t->c->kernels->attn_stats(t->c->exec, &a);
    seq->row += rows;
    seq->rows -= rows;
    seq->position += rows;
    io->begun = (struct aq_attn_begun){begun, layout->stride, p->lends};
}

/* Column sums of the prompt's probabilities, into its slots' scores: to cut it by, or as scores to
 * go on from. */
static void sum_columns(const struct attend *t, const struct prompt *p, bool cut)
{
    struct aq_attn_seq seq = p->seq;
    const struct aq_kv_policy *kv = &t->policy;
    struct aq_attn a = p->a;
    a.rule = rule_of(cut ? &kv->prompt : &kv->decode, p->s);
    a.pairs.rows = aq_kv_policy_prompt_rows(kv, &p->s->limits, *p->tokens);
    if (cut && aq_kv_policy_each(kv))
        a.rule.group = AQ_ATTN_EACH;
    a.seqs = &seq;
    if (aq_kv_policy_sums_all(kv, &p->s->limits, *p->tokens))
        keep_begun(t, p, &a, &seq);
    t->c->kernels->attn_stats(t->c->exec, &a);
}

/* The same of pairs of a query and one of the newest tokens that it sees. */
static void sum_near(const struct attend *t, const struct prompt *p)
{
    struct aq_attn a = p->a;
    a.rule = rule_of(&t->policy.prompt, p->s);
    a.pairs.band = p->s->limits.local;
    t->c->kernels->attn_stats(t->c->exec, &a);
}

/* What the keys of a prompt that is cut are worth, into its slots' scores: made of column sums that
 * lie beside them, of the keys alone, or column sums as they are. */
static void rank_keys(const struct attend *t, struct prompt *p, uint32_t seat)
{
    const struct aq_kv_prefill_layout *layout = &t->x->prompt_layout;
    const struct aq_kv_score *by = &t->policy.prompt;
    bool each = aq_kv_policy_each(&t->policy);
    /* KV-Compress's program pools over all keys, those that stay in any case among them. */
    uint32_t unranked = p->s->whole ? 0 : p->s->limits.recent_prompt;
    float *value = (float *)(p->scratch + layout->value);
    p->seq.slots = (struct aq_attn_slots){.score = value, .stride = layout->stride};
    if (by->source == AQ_KV_SOURCE_EXPECTED) {
        exec_expect(t->x, t->c, seat, &p->a, p->s->limits.sinks);
        return;
    }
    if (by->source != AQ_KV_SOURCE_COLUMNS) {
        /* Of keys that are copied the lengths are there, too. */
        uint32_t copied = t->x->seats.seat[seat].copied;
        t->c->kernels->kv_key_value(
            t->c->exec, &(struct aq_kv_key_value){.k = p->a.k_new,
                                                  .k_stride = p->a.new_stride,
                                                  .value = value + copied,
                                                  .stride = layout->stride,
                                                  .len = *p->tokens - copied,
                                                  .kv_heads = p->a.kv_heads,
                                                  .head_dim = p->a.head_dim,
                                                  .diff = by->source == AQ_KV_SOURCE_KEY_DIFF});
        return;
    }
    if (p->s->limits.profiled) {
        p->seq.slots.score = (float *)(p->scratch + layout->sums);
        sum_near(t, p);
        p->seq.slots.score = value;
    }
    if (!aq_kv_policy_values(&t->policy)) {
        sum_columns(t, p, true);
        return;
    }
    p->seq.slots.score = (float *)(p->scratch + layout->sums);
    sum_columns(t, p, true);
    p->seq.slots.score = value;
    t->c->kernels->kv_value(t->c->exec,
                            &(struct aq_kv_value){.sums = (float *)(p->scratch + layout->sums),
                                                  .value = value,
                                                  .stride = layout->stride,
                                                  .len = *p->tokens - unranked,
                                                  .kv_heads = p->a.kv_heads,
                                                  .q_per_kv = each ? p->a.q_per_kv : 1,
                                                  .group = each ? by->group : AQ_ATTN_SUM,
                                                  .pool = by->pool,
                                                  .pool_width = by->pool_width,
                                                  .pool_first = by->pool_first,
                                                  .together = by->together});
}

/* Moves the slots that stay of a prompt from scratch to their home, or to where they are encoded
 * from. */
static void keep(const struct attend *t, struct prompt *p, uint32_t seat)
{
    struct aq_executor *x = t->x;
    const struct aq_kv_prefill_layout *layout = &x->prompt_layout;
    const struct aq_kv_limits *l = &p->s->limits;
    uint32_t *list = (uint32_t *)(p->scratch + layout->keep), stride = p->home.slots.stride;
    uint32_t *count = (uint32_t *)(p->scratch + layout->count);
    struct aq_kv_select select = {
        .value = p->seq.slots.score,
        .stride = p->seq.slots.stride,
        .len = *p->tokens,
        .recent = l->recent_prompt,
        .heavy = l->heavy_prompt,
        .sinks = l->sinks,
        .layer = l->shared,
        .floor = l->floor_prompt,
        .mix = l->mix,
        .keep = list,
        .keep_stride = stride,
        .count = count,
    };
    if (l->profiled)
        exec_profile_prompt(x, seat, t->layer);
    else
        t->c->kernels->kv_select(t->c->exec, &(struct aq_kv_selects){&select, 1, t->a.kv_heads});
    if (p->s->differ) {
        /* The host may read this memory: it is not a GPU's (aq_executor_open). */
        memcpy(aq_kv_lens(x->kv, seat, t->layer), count, t->a.kv_heads * sizeof(*count));
        exec_kv_ragged_table(x, t->op, seat, p->s, &p->home);
    }
    const struct aq_attn_seq *to = is_residual(t) ? &p->seq : &p->home;
    uint8_t *const *home = is_residual(t) ? x->kept_block : p->home.block;
    struct aq_kv_move gather = {
        .from = {.block = p->seq.block,
                 .block_count = blocks_of(*p->tokens),
                 .head_offset = p->seq.head_offset,
                 .slots = p->seq.slots,
                 .list = list,
                 .list_stride = stride},
        .to = {.block = home,
               .block_count = blocks_of(p->s->held),
               .head_table_step = to->head_table_step,
               .head_offset = to->head_offset,
               .slots = p->home.slots},
        .count = count,
        .count_step = 1,
    };
    run_moves(t, &gather, 1);
    p->kept = home;
    if (l->profiled)
        exec_profile_kept(x, seat, t->layer);
}

/* Takes the slots that stay of a prompt to their home: codes, and behind them the residual. */
static void encode_prompt(const struct attend *t, const struct prompt *p)
{
    struct encoding e = {.t = t};
    uint32_t first = p->home.coded * AQ_HEAD_BLOCK_SLOTS, newest = p->s->held - first;
    for (uint32_t run = 0; run < p->home.coded; run++)
        add_encoding(&e, p->kept[run], p->home.block[run]);
    run_encoding(&e);
    struct aq_kv_side side = {
        .block_count = blocks_of(p->s->held), .head_offset = p->home.plain_offset, .first = first};
    struct aq_kv_move rest = {.from = side, .to = side, .count = &newest};
    rest.from.block = p->kept;
    rest.to.block = p->home.block;
    run_moves(t, &rest, 1);
}

/* The part's arrays from the sequence's first row on, so that its rows count from 0. */
static struct aq_attn rows_of(const struct attend *t, uint32_t i)
{
    struct aq_attn a = t->a;
    uint32_t row = t->seq[i].row;
    a.q += row * a.q_stride;
    a.out = (uint8_t *)a.out + row * a.out_stride * aq_dtype_bytes(a.out_dtype);
    a.k_new += row * a.new_stride;
    a.v_new += row * a.new_stride;
    a.seq_count = 1;
    return a;
}

/* Is this the last layer of its kind? */
static bool is_last(const struct attend *t)
{
    const struct aq_kv_kinds *kinds = &t->x->plan->kinds;
    uint32_t layer = kinds->layers - 1;
    while (kinds->of[layer] != t->kind)
        layer--;
    return layer == t->layer;
}

/* Copies the first keys of a prompt that owns all its slots, where its table leads, from a prompt
 * that was attended before it in this op: from that one's home, or from the scratch, in which they
 * may lie already. */
static void copy_prefix(const struct attend *t, uint32_t i, const struct aq_attn_seq *to)
{
    struct aq_executor *x = t->x;
    const struct aq_seat *s = seat_of(t, i), *from = &x->seats.seat[s->from];
    bool scratch = is_residual(t) || from->prompt > from->kv[t->kind].limits.keep_prompt;
    if (!s->copied || (scratch && to->block == x->prompt_block))
        return;
    struct aq_kv_side side = {.block_count = blocks_of(s->copied), .head_offset = to->head_offset};
    struct aq_kv_move move = {.from = side, .to = side, .count = &s->copied};
    move.from.block = scratch ? x->prompt_block : exec_kv_blocks(x, t->op, s->from);
    move.to.block = to->block;
    move.to.slots = to->slots;
    run_moves(t, &move, 1);
}

/* Of how many of a prompt's first queries the next one needs the sums. */
static uint32_t lent_sums(const struct attend *t, uint32_t i)
{
    for (uint32_t next = i + 1; next < t->count; next++) {
        const struct aq_seat *s = seat_of(t, next);
        const struct aq_seat_kv *kv = kv_of(t, next);
        if (s->copied && s->from == t->seat[i] && kv->drops &&
            aq_kv_policy_sums_all(&t->policy, &kv->limits, s->prompt))
            return s->copied;
    }
    return 0;
}

/* In scratch, unless a prompt stays whole, for now at least, that has no residual. */
static void attend_alone(const struct attend *t, uint32_t i)
{
    struct aq_executor *x = t->x;
    const struct aq_seat_kv *s = kv_of(t, i);
    const uint32_t *tokens = &seat_of(t, i)->seen;
    struct prompt p = {.s = s, .tokens = tokens, .a = rows_of(t, i), .seq = t->seq[i]};
    const struct aq_kv_policy *kv = &t->policy;
    bool cut = *tokens > s->limits.keep_prompt && !s->whole, residual = is_residual(t);
    bool sums = aq_kv_policy_stat_pairs(kv, &s->limits, *tokens) > 0;
    p.seq.recent = s->limits.recent_decode;
    p.seq.slots = exec_kv_slots(x, t->op, t->seat[i]);
    p.seq.row = 0;
    p.seq.position = seat_of(t, i)->copied;
    if (s->limits.bulk || s->limits.profiled)
        p.seq.slots.victim = NULL;
    p.lends = lent_sums(t, i);
    p.home = p.seq; /* of s->held slots */
    p.scratch = exec_slot(x, AQ_SLOT_KV_PREFILL, 0);
    p.seq.len = tokens;
    p.a.seqs = &p.seq;
    if (sums)
        p.a.log_sum_exp = (float *)(p.scratch + x->prompt_layout.log_sum_exp);
    if (residual) {
        p.a.kv_dtype = AQ_F16;
        p.seq.head_offset = p.seq.plain_offset;
        p.seq.coded = 0;
    }
    if (cut || residual || (s->whole && aq_kv_cross_cuts_layers(&s->limits, *tokens)))
        p.seq.block = x->prompt_block;
    p.kept = p.seq.block;
    if (cut || s->whole)
        p.seq.slots = (struct aq_attn_slots){0};
    copy_prefix(t, i, &p.seq);
    t->c->kernels->kv_append(t->c->exec, &p.a);
    t->c->kernels->attn_prefill(t->c->exec, &p.a);
    if (s->whole || (cut && kv->prompt.source != AQ_KV_SOURCE_POSITION))
        rank_keys(t, &p, t->seat[i]);
    else if (sums)
        sum_columns(t, &p, false);
    if (cut)
        keep(t, &p, t->seat[i]);
    if (residual)
        encode_prompt(t, &p);
    if (s->whole) {
        exec_cross_rank(x, t->c, t->seat[i], t->layer, p.seq.slots.score);
        if (is_last(t))
            exec_cross_cut(x, t->c, t->seat[i], t->kind);
        return;
    }
    if (s->held == s->limits.slots && !s->limits.bulk) {
        p.a.seqs = &p.home;
        p.a.rule = rule_of(&kv->decode, s);
        t->c->kernels->kv_victim(t->c->exec, &p.a);
    }
    report_slots(t, i, &p.home);
}

/* Copies what a prompt begins with beyond whole pages from a lower seat, whose rows have been
 * stored: whole runs, and the prompt's own rows in them once more. */
static void copy_tail(const struct attend *t, uint32_t i)
{
    const struct aq_seat *s = seat_of(t, i);
    uint32_t first = aq_seat_shared_slots(t->x->plan, s) / AQ_HEAD_BLOCK_SLOTS;
    uint32_t end = (uint32_t)aq_div_up(s->prefix, AQ_HEAD_BLOCK_SLOTS);
    if (s->takes || first >= end)
        return;
    struct aq_attn a = t->a;
    a.seqs = t->seq + i;
    a.seq_count = 1;
    aq_kv_copy(t->x->kv, t->seat[i], s->from, t->layer, first, end);
    t->c->kernels->kv_append(t->c->exec, &a);
}

/* Attends the prompts: those that keep every key in one call, up to one that copies some, and the
 * others one by one, because there is scratch for one. */
static void prompts(struct attend *t)
{
    for (uint32_t i = 0, end; i < t->count; i = end) {
        end = i + 1;
        if (kv_of(t, i)->drops || is_residual(t)) {
            attend_alone(t, i);
            continue;
        }
        /* What one copies must be there before it is attended. */
        while (end < t->count && !kv_of(t, end)->drops && !seat_of(t, end)->copied)
            end++;
        copy_prefix(t, i, &t->seq[i]);
        struct aq_attn a = t->a;
        a.seqs = t->seq + i;
        a.seq_count = end - i;
        t->c->kernels->kv_append(t->c->exec, &a);
        for (uint32_t n = i; n < end; n++)
            copy_tail(t, n);
        t->c->kernels->attn_prefill(t->c->exec, &a);
        for (uint32_t n = i; n < end; n++)
            report_slots(t, n, &t->seq[n]);
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
    struct attend t = {
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
            .len = &kv_of(&t, i)->held,
            .row = t.seq[i].row,
            .rows = t.seq[i].rows,
            .plain_offset = aq_kv_plain_offset(x->kv),
        };
        if (is_residual(&t))
            t.seq[i].coded = aq_kv_residual_coded(&x->plan->kv.residual, kv_of(&t, i)->held);
        if (!prefill && kv_of(&t, i)->limits.profiled)
            exec_profile_place(x, t.seat[i], t.layer);
        /* The number of slots that each head keeps is known once the prompt is cut. */
        if (!prefill && kv_of(&t, i)->differ)
            exec_kv_ragged_table(x, op, t.seat[i], kv_of(&t, i), &t.seq[i]);
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
    (prefill ? prompts : decode)(&t);
}
