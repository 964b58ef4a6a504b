/* SPDX-License-Identifier: Apache-2.0
 * Attention of prompts, and what stays of their keys: see attend.c.  Those that give up keys, or
 * have a residual, are attended in rooms of scratch, as many side by side as there are rooms. */
#include "engine/exec/attend.h"

#include <assert.h>
#include <string.h>

/* Prompts that drop keys or have a residual, attended side by side: alike in all that a call says
 * of every one of them. */
struct group {
    const struct exec_attend *t;
    struct aq_attn a; /* of all; their rows count from 0 */
    uint32_t count;
    bool cut; /* keys are given up now */
    bool sums;
    bool observed;  /* the sums that keys are given up by come with attention */
    uint32_t lends; /* of one alone: sums of so many queries are kept for the next prompt */
    struct prompt {
        const struct aq_seat_kv *s;
        uint32_t seat;
        const uint32_t *tokens; /* of the prompt */
        uint8_t *const *kept;   /* the runs of the slots that stay, which are to be encoded */
        uint8_t *scratch;       /* its room */
    } prompt[AQ_KV_PROMPT_ROOMS_MAX];
    struct aq_attn_seq seq[AQ_KV_PROMPT_ROOMS_MAX];
    /* Home of the slots that stay, with their scores and positions. */
    struct aq_attn_seq home[AQ_KV_PROMPT_ROOMS_MAX];
};

static const struct aq_kv_prefill_layout *layout_of(const struct group *g)
{
    return &g->t->x->prompt_layout;
}

/* An array of a prompt's room. */
static void *array_of(const struct prompt *p, uint64_t offset)
{
    return p->scratch + offset;
}

/* Sums of the queries of a prompt's beginning, of which the first ones are there already if they
 * were copied, are kept for the prompt that begins as it does; *io and *seq are of the rest. */
static void keep_begun(const struct group *g, struct aq_attn *io, struct aq_attn_seq *seq)
{
    const struct aq_kv_prefill_layout *layout = layout_of(g);
    float *begun = array_of(g->prompt, layout->begun);
    uint32_t known = seq->position, rows = g->lends > known ? g->lends - known : 0;
    if (known)
        io->begun = (struct aq_attn_begun){begun, layout->stride, known};
    if (!rows)
        return;
    struct aq_attn a = *io;
    struct aq_attn_seq first = *seq;
    first.rows = rows;
    first.len = &g->lends;
    first.slots = (struct aq_attn_slots){.score = begun, .stride = layout->stride};
    a.seqs = &first;
    g->t->c->kernels->attn_stats(g->t->c->exec, &a);
    seq->row += rows;
    seq->rows -= rows;
    seq->position += rows;
    io->begun = (struct aq_attn_begun){begun, layout->stride, g->lends};
}

/* Queries whose attention ranks the keys of a prompt, the last so many; ALL_ROWS: each of them. */
enum { ALL_ROWS = 0 };
static uint32_t ranking_rows(const struct exec_attend *t, const struct aq_seat_kv *s,
                             uint32_t tokens)
{
    uint32_t rows = aq_kv_policy_prompt_rows(&t->policy, &s->limits, tokens);
    return rows < tokens ? rows : ALL_ROWS;
}

/* How the prompts' probabilities are summed by columns, and of which queries: to cut them by, or as
 * scores to go on from. */
static void take_rule(const struct group *g, bool cut, struct aq_attn *io)
{
    const struct aq_kv_policy *kv = &g->t->policy;
    const struct prompt *p = g->prompt;
    io->rule = exec_rule_of(cut ? &kv->prompt : &kv->decode, p->s);
    io->pairs.rows = ranking_rows(g->t, p->s, *p->tokens);
    if (cut && aq_kv_policy_each(kv))
        io->rule.group = AQ_ATTN_EACH;
}

/* These sums, into the prompts' slots' scores. */
static void sum_columns(const struct group *g, bool cut)
{
    const struct prompt *p = g->prompt;
    struct aq_attn_seq seq[AQ_KV_PROMPT_ROOMS_MAX];
    struct aq_attn a = g->a;
    memcpy(seq, g->seq, g->count * sizeof(*seq));
    take_rule(g, cut, &a);
    a.seqs = seq;
    if (aq_kv_policy_sums_all(&g->t->policy, &p->s->limits, *p->tokens))
        keep_begun(g, &a, seq);
    g->t->c->kernels->attn_stats(g->t->c->exec, &a);
}

/* The same of pairs of a query and one of the newest tokens that it sees. */
static void sum_near(const struct group *g)
{
    struct aq_attn a = g->a;
    a.rule = exec_rule_of(&g->t->policy.prompt, g->prompt->s);
    a.pairs.band = g->prompt->s->limits.local;
    g->t->c->kernels->attn_stats(g->t->c->exec, &a);
}

/* Where the prompts' scores go: arrays of their rooms. */
static void score_into(struct group *g, uint64_t offset)
{
    for (uint32_t i = 0; i < g->count; i++)
        g->seq[i].slots = (struct aq_attn_slots){.score = array_of(&g->prompt[i], offset),
                                                 .stride = layout_of(g)->stride};
}

/* Where column sums go: beside the values that are made of them, or they are the values. */
static uint64_t sums_at(const struct group *g)
{
    const struct aq_kv_prefill_layout *layout = layout_of(g);
    return aq_kv_policy_values(&g->t->policy) ? layout->sums : layout->value;
}

/* Attention, and with it the sums of the queries that rank the prompts' keys, unless all do. */
static void attend_rows(struct group *g)
{
    struct aq_attn a = g->a;
    if (g->observed) {
        score_into(g, sums_at(g));
        take_rule(g, true, &a);
    }
    g->t->c->kernels->attn_prefill(g->t->c->exec, &a);
}

/* What keys are worth that are ranked by themselves. */
static void rank_by_keys(const struct group *g, uint32_t i)
{
    const struct exec_attend *t = g->t;
    const struct prompt *p = &g->prompt[i];
    const struct aq_attn_slots *to = &g->seq[i].slots;
    /* Of keys that are copied the lengths are there, too. */
    uint32_t copied = t->x->seats.seat[p->seat].copied;
    t->c->kernels->kv_key_value(
        t->c->exec,
        &(struct aq_kv_key_value){.k = g->a.k_new + g->seq[i].row * g->a.new_stride,
                                  .k_stride = g->a.new_stride,
                                  .value = to->score + copied,
                                  .stride = to->stride,
                                  .len = *p->tokens - copied,
                                  .kv_heads = g->a.kv_heads,
                                  .head_dim = g->a.head_dim,
                                  .diff = t->policy.prompt.source == AQ_KV_SOURCE_KEY_DIFF});
}

/* What keys are worth whose column sums lie beside that. */
static void rank_by_sums(const struct group *g, uint32_t i)
{
    const struct exec_attend *t = g->t;
    const struct prompt *p = &g->prompt[i];
    const struct aq_kv_score *by = &t->policy.prompt;
    bool each = aq_kv_policy_each(&t->policy);
    /* KV-Compress's program pools over all keys, those that stay in any case among them. */
    uint32_t unranked = p->s->whole ? 0 : p->s->limits.recent_prompt;
    t->c->kernels->kv_value(t->c->exec,
                            &(struct aq_kv_value){.sums = array_of(p, layout_of(g)->sums),
                                                  .value = g->seq[i].slots.score,
                                                  .stride = layout_of(g)->stride,
                                                  .len = *p->tokens - unranked,
                                                  .kv_heads = g->a.kv_heads,
                                                  .q_per_kv = each ? g->a.q_per_kv : 1,
                                                  .group = each ? by->group : AQ_ATTN_SUM,
                                                  .pool = by->pool,
                                                  .pool_width = by->pool_width,
                                                  .pool_first = by->pool_first,
                                                  .together = by->together});
}

/* What the keys of prompts that are cut are worth, into their slots' scores: made of column sums
 * that lie beside them, of the keys alone, or column sums as they are. */
static void rank_keys(struct group *g)
{
    const struct aq_kv_prefill_layout *layout = layout_of(g);
    const struct exec_attend *t = g->t;
    enum aq_kv_source source = t->policy.prompt.source;
    bool made = aq_kv_policy_values(&t->policy);
    if (source == AQ_KV_SOURCE_COLUMNS && g->prompt->s->limits.profiled) {
        score_into(g, layout->sums);
        sum_near(g);
    }
    score_into(g, source == AQ_KV_SOURCE_COLUMNS ? sums_at(g) : layout->value);
    if (source == AQ_KV_SOURCE_EXPECTED) {
        exec_expect(t->x, t->c, g->prompt->seat, &g->a, g->prompt->s->limits.sinks);
        return;
    }
    for (uint32_t i = 0; source != AQ_KV_SOURCE_COLUMNS && i < g->count; i++)
        rank_by_keys(g, i);
    if (source != AQ_KV_SOURCE_COLUMNS)
        return;
    if (!g->observed)
        sum_columns(g, true);
    if (!made)
        return;
    score_into(g, layout->value);
    for (uint32_t i = 0; i < g->count; i++)
        rank_by_sums(g, i);
}

/* Chooses the slots that stay of each prompt, into its room. */
static void select_slots(const struct group *g)
{
    const struct exec_attend *t = g->t;
    const struct aq_kv_prefill_layout *layout = layout_of(g);
    struct aq_kv_select select[AQ_KV_PROMPT_ROOMS_MAX];
    for (uint32_t i = 0; i < g->count; i++) {
        const struct prompt *p = &g->prompt[i];
        const struct aq_kv_limits *l = &p->s->limits;
        select[i] = (struct aq_kv_select){
            .value = g->seq[i].slots.score,
            .stride = g->seq[i].slots.stride,
            .len = *p->tokens,
            .recent = l->recent_prompt,
            .heavy = l->heavy_prompt,
            .sinks = l->sinks,
            .layer = l->shared,
            .floor = l->floor_prompt,
            .mix = l->mix,
            .keep = array_of(p, layout->keep),
            .keep_stride = g->home[i].slots.stride,
            .count = array_of(p, layout->count),
        };
    }
    t->c->kernels->kv_select(t->c->exec, &(struct aq_kv_selects){select, g->count, t->a.kv_heads});
}

/* Moves the slots that stay of the prompts from scratch to their home, or to where they are encoded
 * from. */
static void keep(struct group *g)
{
    const struct exec_attend *t = g->t;
    struct aq_executor *x = t->x;
    const struct aq_kv_prefill_layout *layout = layout_of(g);
    struct exec_moves *m = exec_moves_of(t);
    bool profiled = g->prompt->s->limits.profiled;
    if (profiled)
        exec_profile_prompt(x, g->prompt->seat, t->layer);
    else
        select_slots(g);
    for (uint32_t i = 0; i < g->count; i++) {
        struct prompt *p = &g->prompt[i];
        uint32_t *count = array_of(p, layout->count);
        if (p->s->differ) {
            /* The host may read this memory: it is not a GPU's (aq_executor_open). */
            memcpy(aq_kv_lens(x->kv, p->seat, t->layer), count, t->a.kv_heads * sizeof(*count));
            exec_kv_ragged_table(x, t->op, p->seat, p->s, &g->home[i]);
        }
        const struct aq_attn_seq *to = exec_is_residual(t) ? &g->seq[i] : &g->home[i];
        p->kept = exec_is_residual(t) ? x->prompt_room[i].kept : g->home[i].block;
        m->move[i] = (struct aq_kv_move){
            .from = {.block = g->seq[i].block,
                     .block_count = exec_blocks_of(*p->tokens),
                     .head_offset = g->seq[i].head_offset,
                     .slots = g->seq[i].slots,
                     .list = array_of(p, layout->keep),
                     .list_stride = g->home[i].slots.stride},
            .to = {.block = p->kept,
                   .block_count = exec_blocks_of(p->s->held),
                   .head_table_step = to->head_table_step,
                   .head_offset = to->head_offset,
                   .slots = g->home[i].slots},
            .count = count,
            .count_step = 1,
        };
    }
    exec_run_moves(t, m->move, g->count);
    if (profiled)
        exec_profile_kept(x, g->prompt->seat, t->layer);
}

/* Takes the slots that stay of the prompts to their home: codes, and behind them the residual. */
static void encode_prompts(const struct group *g)
{
    const struct exec_attend *t = g->t;
    struct exec_moves *m = exec_moves_of(t);
    uint32_t newest[AQ_KV_PROMPT_ROOMS_MAX];
    struct exec_encoding e = {.t = t};
    for (uint32_t i = 0; i < g->count; i++) {
        const struct prompt *p = &g->prompt[i];
        const struct aq_attn_seq *home = &g->home[i];
        uint32_t first = home->coded * AQ_HEAD_BLOCK_SLOTS;
        for (uint32_t run = 0; run < home->coded; run++)
            exec_add_encoding(&e, p->kept[run], home->block[run]);
        struct aq_kv_side side = {.block_count = exec_blocks_of(p->s->held),
                                  .head_offset = home->plain_offset,
                                  .first = first};
        newest[i] = p->s->held - first;
        m->move[i] = (struct aq_kv_move){.from = side, .to = side, .count = &newest[i]};
        m->move[i].from.block = p->kept;
        m->move[i].to.block = home->block;
    }
    exec_run_encoding(&e);
    exec_run_moves(t, m->move, g->count);
}

/* The part's arrays from the sequence's first row on, so that its rows count from 0. */
static struct aq_attn rows_of(const struct exec_attend *t, uint32_t i)
{
    struct aq_attn a = t->a;
    uint32_t row = t->seq[i].row;
    a.q += row * a.q_stride;
    a.out = (uint8_t *)a.out + row * a.out_stride * aq_dtype_bytes(a.out_dtype);
    a.k_new += row * a.new_stride;
    a.v_new += row * a.new_stride;
    return a;
}

/* Is this the last layer of its kind? */
static bool is_last(const struct exec_attend *t)
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
static void copy_prefix(const struct exec_attend *t, uint32_t i, const struct aq_attn_seq *to)
{
    struct aq_executor *x = t->x;
    const struct aq_seat *s = exec_seat_of(t, i), *from = &x->seats.seat[s->from];
    uint8_t *const *room = x->prompt_room[0].block;
    bool scratch = exec_is_residual(t) || from->prompt > from->kv[t->kind].limits.keep_prompt;
    if (!s->copied || (scratch && to->block == room))
        return;
    struct aq_kv_side side = {.block_count = exec_blocks_of(s->copied),
                              .head_offset = to->head_offset};
    struct aq_kv_move move = {.from = side, .to = side, .count = &s->copied};
    move.from.block = scratch ? room : exec_kv_blocks(x, t->op, s->from);
    move.to.block = to->block;
    move.to.slots = to->slots;
    exec_run_moves(t, &move, 1);
}

/* Of how many of a prompt's first queries the next one needs the sums. */
static uint32_t lent_sums(const struct exec_attend *t, uint32_t i)
{
    for (uint32_t next = i + 1; next < t->count; next++) {
        const struct aq_seat *s = exec_seat_of(t, next);
        const struct aq_seat_kv *kv = exec_kv_of(t, next);
        if (s->copied && s->from == t->seat[i] && kv->drops &&
            aq_kv_policy_sums_all(&t->policy, &kv->limits, s->prompt))
            return s->copied;
    }
    return 0;
}

static bool is_cut(const struct exec_attend *t, uint32_t i)
{
    const struct aq_seat_kv *s = exec_kv_of(t, i);
    return exec_seat_of(t, i)->seen > s->limits.keep_prompt && !s->whole;
}

/* Does a later prompt begin with keys of prompt i? */
static bool is_copied(const struct exec_attend *t, uint32_t i)
{
    for (uint32_t next = i + 1; next < t->count; next++) {
        const struct aq_seat *s = exec_seat_of(t, next);
        if (s->copied && s->from == t->seat[i])
            return true;
    }
    return false;
}

/* Is prompt i attended by itself?  In the room where those that copy look for keys and sums, or by
 * a policy that chooses with more than the arrays of a room. */
static bool is_alone(const struct exec_attend *t, uint32_t i)
{
    const struct aq_seat_kv *s = exec_kv_of(t, i);
    return exec_seat_of(t, i)->copied || is_copied(t, i) || s->whole || s->differ ||
           s->limits.profiled || t->policy.prompt.source == AQ_KV_SOURCE_EXPECTED;
}

/* May prompt i be attended beside those from `first` on? */
static bool joins(const struct exec_attend *t, uint32_t first, uint32_t i)
{
    const struct aq_seat_kv *a = exec_kv_of(t, first), *b = exec_kv_of(t, i);
    const struct aq_kv_policy *kv = &t->policy;
    uint32_t tokens = exec_seat_of(t, i)->seen, of_first = exec_seat_of(t, first)->seen;
    return i - first < t->x->prompt_layout.rooms && (b->drops || exec_is_residual(t)) &&
           !is_alone(t, first) && !is_alone(t, i) && a->limits.sinks == b->limits.sinks &&
           is_cut(t, first) == is_cut(t, i) &&
           ranking_rows(t, a, of_first) == ranking_rows(t, b, tokens) &&
           (aq_kv_policy_stat_pairs(kv, &a->limits, of_first) > 0) ==
               (aq_kv_policy_stat_pairs(kv, &b->limits, tokens) > 0);
}

/* Prompts [first, end) as a group: in scratch, unless they stay whole, for now at least, and have
 * no residual. */
static void gather(struct group *g, const struct exec_attend *t, uint32_t first, uint32_t end)
{
    struct aq_executor *x = t->x;
    bool residual = exec_is_residual(t);
    *g = (struct group){.t = t,
                        .a = rows_of(t, first),
                        .count = end - first,
                        .cut = is_cut(t, first),
                        .lends = lent_sums(t, first)};
    assert(g->count == 1 || !g->lends);
    g->sums = aq_kv_policy_stat_pairs(&t->policy, &exec_kv_of(t, first)->limits,
                                      exec_seat_of(t, first)->seen) > 0;
    g->a.seqs = g->seq;
    g->a.seq_count = g->count;
    if (g->sums)
        g->a.log_sum_exp =
            (float *)(exec_slot(x, AQ_SLOT_KV_PREFILL, 0) + x->prompt_layout.log_sum_exp);
    g->observed = g->sums && !exec_kv_of(t, first)->limits.profiled &&
                  (g->cut || exec_kv_of(t, first)->whole) &&
                  ranking_rows(t, exec_kv_of(t, first), exec_seat_of(t, first)->seen) != ALL_ROWS;
    if (residual)
        g->a.kv_dtype = AQ_F16;
    for (uint32_t n = 0; n < g->count; n++) {
        uint32_t i = first + n, seat = t->seat[i];
        const struct aq_seat_kv *s = exec_kv_of(t, i);
        const uint32_t *tokens = &exec_seat_of(t, i)->seen;
        struct aq_attn_seq seq = t->seq[i];
        seq.recent = s->limits.recent_decode;
        seq.slots = exec_kv_slots(x, t->op, seat);
        seq.row -= t->seq[first].row;
        seq.position = exec_seat_of(t, i)->copied;
        if (s->limits.bulk || s->limits.profiled)
            seq.slots.victim = NULL;
        g->home[n] = seq; /* of s->held slots */
        seq.len = tokens;
        if (residual) {
            seq.head_offset = seq.plain_offset;
            seq.coded = 0;
        }
        if (g->cut || residual || (s->whole && aq_kv_cross_cuts_layers(&s->limits, *tokens)))
            seq.block = x->prompt_room[n].block;
        g->prompt[n] = (struct prompt){.s = s,
                                       .seat = seat,
                                       .tokens = tokens,
                                       .kept = seq.block,
                                       .scratch = x->prompt_room[n].scratch};
        if (g->cut || s->whole)
            seq.slots = (struct aq_attn_slots){0};
        g->seq[n] = seq;
    }
}

static void attend_group(const struct exec_attend *t, uint32_t first, uint32_t end)
{
    const struct aq_kv_policy *kv = &t->policy;
    struct aq_executor *x = t->x;
    struct group g;
    gather(&g, t, first, end);
    const struct aq_seat_kv *s = g.prompt->s;
    copy_prefix(t, first, g.seq);
    t->c->kernels->kv_append(t->c->exec, &g.a);
    attend_rows(&g);
    if (s->whole || (g.cut && kv->prompt.source != AQ_KV_SOURCE_POSITION))
        rank_keys(&g);
    else if (g.sums)
        sum_columns(&g, false);
    if (g.cut)
        keep(&g);
    if (exec_is_residual(t))
        encode_prompts(&g);
    if (s->whole) {
        exec_cross_rank(x, t->c, g.prompt->seat, t->layer, g.seq->slots.score);
        if (is_last(t))
            exec_cross_cut(x, t->c, g.prompt->seat, t->kind);
        return;
    }
    g.a.seq_count = 0; /* those whose next row takes the slot of another */
    for (uint32_t i = 0; i < g.count; i++) {
        const struct aq_seat_kv *of = g.prompt[i].s;
        if (of->held == of->limits.slots && !of->limits.bulk)
            g.seq[g.a.seq_count++] = g.home[i];
    }
    g.a.rule = exec_rule_of(&kv->decode, s);
    if (g.a.seq_count)
        t->c->kernels->kv_victim(t->c->exec, &g.a);
    for (uint32_t i = 0; i < g.count; i++)
        exec_report_slots(t, first + i, &g.home[i]);
}

/* Copies what a prompt begins with beyond whole pages from a lower seat, whose rows have been
 * stored: whole runs, and the prompt's own rows in them once more. */
static void copy_tail(const struct exec_attend *t, uint32_t i)
{
    const struct aq_seat *s = exec_seat_of(t, i);
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

/* Attends the prompts: those that keep every key in one call, up to one that copies some, and of
 * the others as many side by side as there are rooms. */
void exec_attend_prompts(const struct exec_attend *t)
{
    for (uint32_t i = 0, end; i < t->count; i = end) {
        end = i + 1;
        if (exec_kv_of(t, i)->drops || exec_is_residual(t)) {
            while (end < t->count && joins(t, i, end))
                end++;
            attend_group(t, i, end);
            continue;
        }
        /* What one copies must be there before it is attended. */
        while (end < t->count && !exec_kv_of(t, end)->drops && !exec_seat_of(t, end)->copied)
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
            exec_report_slots(t, n, &t->seq[n]);
    }
}
