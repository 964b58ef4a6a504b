/* SPDX-License-Identifier: Apache-2.0
 * The op TURN: ends of sequences, admission and rows of a micro-batch; and the start of a pass. */
#include "engine/exec/exec.h"

#include <assert.h>

static void push(struct exec_list *l, struct aq_sequence *s)
{
    s->next = NULL;
    if (l->last)
        l->last->next = s;
    else
        l->first = s;
    l->last = s;
    l->count++;
}

static struct aq_sequence *pop(struct exec_list *l)
{
    struct aq_sequence *s = l->first;
    if (!s)
        return NULL;
    l->first = s->next;
    if (!l->first)
        l->last = NULL;
    l->count--;
    s->next = NULL;
    return s;
}

static bool is_stop_id(const struct aq_sequence *s, uint32_t id)
{
    for (uint32_t i = 0; i < s->stop_id_count; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    return false;
}

/* Appends a token; returns how the sequence ends, or NONE. */
static enum aq_finish append_token(struct aq_executor *x, struct aq_sequence *s, uint32_t token,
                                   bool bad)
{
    if (bad)
        return AQ_FINISH_ERROR;
    if (s->max_tokens == 0)
        return AQ_FINISH_LENGTH;
    if (s->token_count < s->given_count) { /* it is there already */
        s->token_count++;
        return AQ_FINISH_NONE;
    }
    s->tokens[s->token_count++] = token;
    x->stats.generated_tokens++;
    if (is_stop_id(s, token) && s->token_count > s->min_tokens) {
        s->finish_id = token;
        return AQ_FINISH_STOP_ID;
    }
    if (s->on_token && s->on_token(s))
        return AQ_FINISH_CALLER;
    return s->token_count >= s->max_tokens ? AQ_FINISH_LENGTH : AQ_FINISH_NONE;
}

static void finish(struct aq_executor *x, struct aq_sequence *s, enum aq_finish how)
{
    s->finish = how;
    s->seat = -1;
    x->stats.finished++;
    push(&x->finished, s);
}

/* The sequence has ended, and its next row is on its way: it leaves at the next turn.  Until then
 * its last token does not count, so that who keeps its tokens meanwhile keeps those of a sequence
 * that goes on. */
static void stay_over(struct exec_seat *seat, enum aq_finish how)
{
    seat->over = how;
    seat->sequence->token_count -= how != AQ_FINISH_ERROR;
}

void exec_answered(struct aq_executor *x, struct aq_sequence *s, uint32_t token, bool bad)
{
    enum aq_finish how = append_token(x, s, token, bad);
    if (s->seat < 0) { /* it has left */
        assert(how != AQ_FINISH_NONE);
        finish(x, s, how);
        return;
    }
    x->seat[s->seat].asked = false;
    if (how != AQ_FINISH_NONE)
        stay_over(&x->seat[s->seat], how);
}

/* ---- seats ------------------------------------------------------------------------------- */

static struct aq_sitter sitter_of(const struct aq_sequence *s)
{
    return (struct aq_sitter){.prompt = s->prompt_count,
                              .max_new = s->max_tokens,
                              .kv_prompt = s->kv_prompt,
                              .kv_new = s->kv_new,
                              .given = s->given_count};
}

/* Most tokens at the beginning of a prompt that need not be computed: the others' logits are asked
 * for. */
static uint32_t longest_prefix(const struct aq_sequence *q)
{
    uint32_t most = q->prompt_count - 1;
    if (q->prompt_logprobs && q->prompt_from <= most)
        most = q->prompt_from ? q->prompt_from - 1 : 0;
    return most;
}

static bool next_waiting(void *user, struct aq_sitter *ret)
{
    const struct aq_executor *x = user;
    if (!x->waiting.first)
        return false;
    *ret = sitter_of(x->waiting.first);
    ret->shares = x->opts.share_prefixes ? longest_prefix(x->waiting.first) : 0;
    return true;
}

/* That they are more than `known` is told by one look where another has as many. */
static uint32_t begins_alike(void *user, uint32_t from, uint32_t known)
{
    const struct aq_executor *x = user;
    const struct aq_sequence *q = x->waiting.first, *s = x->seat[from].sequence;
    uint32_t n = 0, most = s->prompt_count < q->prompt_count ? s->prompt_count : q->prompt_count;
    if (known >= most || q->prompt[known] != s->prompt[known])
        return 0;
    while (n < most && q->prompt[n] == s->prompt[n])
        n++;
    return n;
}

static void has_sat(void *user, uint32_t seat)
{
    struct aq_executor *x = user;
    struct aq_sequence *q = pop(&x->waiting);
    const struct aq_seat *at = &x->seats.seat[seat];
    if (at->takes) {
        aq_kv_take(x->kv, seat, at->from, (uint32_t)aq_div_up(at->prefix, AQ_HEAD_BLOCK_SLOTS));
        x->seat[at->from] = (struct exec_seat){0};
    }
    x->seat[seat] = (struct exec_seat){.sequence = q};
    q->seat = (int32_t)seat;
}

static bool leave_seat(struct exec_seat *seat)
{
    *seat = (struct exec_seat){.sequence = seat->sequence}; /* for begins_alike(), in this turn */
    return true;
}

/* Appends the token that HEAD has chosen; without one, the sequence's rows are still to come.  In
 * an early turn a token may be still to come, too: then who leaves is who has no room for
 * another. */
static bool has_ended(void *user, uint32_t seat_index)
{
    struct aq_executor *x = user;
    struct exec_seat *seat = &x->seat[seat_index];
    struct aq_sequence *s = seat->sequence;
    bool last = s->token_count + 1 >= s->max_tokens;
    enum aq_finish how = seat->over;
    if (how != AQ_FINISH_NONE) {
        s->token_count += how != AQ_FINISH_ERROR;
        finish(x, s, how);
        return leave_seat(seat);
    }
    if (seat->asked) {
        s->seat = last ? -1 : s->seat;
        return last && leave_seat(seat);
    }
    if (!seat->has_chosen)
        return false;
    seat->has_chosen = false;
    how = append_token(x, s, seat->chosen, seat->bad || seat->bad_prompt);
    if (how == AQ_FINISH_NONE)
        return false;
    if (x->early.turning && !last) {
        stay_over(seat, how);
        return false;
    }
    finish(x, s, how);
    return leave_seat(seat);
}

static void is_gone(void *user, uint32_t seat)
{
    struct aq_executor *x = user;
    aq_kv_release(x->kv, seat);
    x->seat[seat] = (struct exec_seat){0};
}

static void add_logit_row(struct exec_batch *b, uint32_t row, uint32_t seat, int32_t prompt_index)
{
    b->logit_index[b->logit_count] = row;
    b->logit_row[b->logit_count++] = (struct exec_logit_row){seat, prompt_index};
}

static void bind_decode(struct aq_executor *x, struct exec_batch *b, uint32_t seat)
{
    struct aq_sequence *s = x->seat[seat].sequence;
    struct aq_seat *at = &x->seats.seat[seat];
    uint32_t first = b->row_count, seen = at->seen - at->rows;
    bool asked = x->seat[seat].asked, over = x->seat[seat].over != AQ_FINISH_NONE;
    for (uint32_t i = 0; i < at->rows; i++) {
        b->id[first + i] = asked  ? AQ_ID_CHOSEN + seat
                           : over ? 0 /* nobody looks at the row */
                                  : s->tokens[seen - at->prompt + i];
        b->position[first + i] = seen + i + exec_position_first(x, s);
    }
    assert(at->rows == 1 || (!asked && seen + at->rows <= at->prompt + s->given_count));
    if (!asked && !over)
        s->token_count = at->seen - at->prompt;
    b->row_count += at->rows;
    b->given_rows += at->rows - 1;
    b->decode_seat[b->decode_count] = seat;
    b->decode[b->decode_count++] = (struct aq_attn_seq){.row = first, .rows = at->rows};
    add_logit_row(b, first + at->rows - 1, seat, -1);
}

static void bind_prefill(struct aq_executor *x, struct exec_batch *b, uint32_t seat)
{
    const struct aq_sequence *s = x->seat[seat].sequence;
    uint32_t first = b->row_count, n = s->prompt_count, position = exec_position_first(x, s);
    uint32_t from = aq_seat_shared(&x->seats.seat[seat]);
    for (uint32_t i = from; i < n; i++) {
        uint32_t row = first + i - from;
        b->id[row] = s->prompt[i];
        b->position[row] = position + i;
        if (s->prompt_logprobs && i + 1 < n && i + 1 >= s->prompt_from)
            add_logit_row(b, row, seat, (int32_t)i);
    }
    add_logit_row(b, first + n - from - 1, seat, -1);
    b->row_count += n - from;
    b->prefill_rows += n - from;
    x->stats.shared_tokens += from;
    b->prefill_seat[b->prefill_count] = seat;
    b->prefill[b->prefill_count++] = (struct aq_attn_seq){.row = first, .rows = n - from};
}

/* Makes a seat's rows for the coming pass: one decode row or those of given tokens, or its prompt.
 * Decode rows come first. */
static void bind(void *user, uint32_t seat)
{
    struct aq_executor *x = user;
    const struct aq_seat *at = &x->seats.seat[seat];
    struct exec_batch *b = &x->batch[seat / x->plan->shape.micro_batch];
    if (at->prefix && !at->takes && at->seen == at->prompt)
        aq_kv_share(x->kv, seat, at->from, aq_seat_shared_slots(x->plan, at) / AQ_HEAD_BLOCK_SLOTS);
    for (uint32_t k = 0; k < x->plan->kinds.count; k++) {
        const struct aq_seat_kv *kv = &at->kv[k];
        if (x->plan->kv.residual.tokens) {
            uint32_t runs = (uint32_t)aq_div_up(kv->held, AQ_HEAD_BLOCK_SLOTS);
            uint32_t coded = aq_kv_residual_coded(&x->plan->kv.residual, kv->held);
            aq_kv_grow(x->kv, seat, k, coded);
            aq_kv_place_residual(x->kv, seat, k, coded, runs);
            continue;
        }
        aq_kv_grow(x->kv, seat, k, aq_seat_kv_runs(kv, kv->most));
    }
    (at->seen > at->prompt ? bind_decode : bind_prefill)(x, b, seat);
    assert(b->row_count <= x->plan->shape.rows_max);
}

static uint64_t give_pages(void *user, uint32_t seat, uint32_t kind)
{
    struct aq_executor *x = user;
    const struct aq_seat_kv *kv = &x->seats.seat[seat].kv[kind];
    return aq_kv_shrink(x->kv, seat, kind, aq_seat_kv_runs(kv, kv->held));
}

const struct aq_seats_ops exec_seats_ops = {.next = next_waiting,
                                            .alike = begins_alike,
                                            .sat = has_sat,
                                            .ended = has_ended,
                                            .gone = is_gone,
                                            .bound = bind,
                                            .cut = give_pages};

void exec_turn(struct aq_executor *x, uint32_t k)
{
    struct exec_batch *b = &x->batch[k];
    exec_early_begin_turn(x, k);
    b->row_count = b->logit_count = b->decode_count = b->prefill_count = b->prefill_rows = 0;
    b->given_rows = 0;
    aq_seats_turn(&x->seats, k);
    exec_early_end_turn(x, k);
}

/* ---- passes ------------------------------------------------------------------------------ */

/* Sorts entries of sequences by seat, so that parts are in order (insertion sort). */
static void sort_by_seat(struct aq_attn_seq *seq, uint32_t *seat, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        struct aq_attn_seq s = seq[i];
        uint32_t at = i, of = seat[i];
        for (; at > 0 && seat[at - 1] > of; at--) {
            seq[at] = seq[at - 1];
            seat[at] = seat[at - 1];
        }
        seq[at] = s;
        seat[at] = of;
    }
}

static void find_parts(const struct aq_executor *x, const uint32_t *seat, uint32_t count,
                       uint32_t *first)
{
    uint32_t at = 0;
    for (uint32_t part = 0; part <= x->plan->part_count; part++) {
        while (at < count && aq_seats_part(x->plan, seat[at]) < part)
            at++;
        first[part] = at;
    }
}

/* Counts the work of micro-batch k in the pass, part by part. */
static void count_rows(struct aq_executor *x, uint32_t k)
{
    struct exec_batch *b = &x->batch[k];
    struct aq_pass_shape *s = &x->pass_shape[k];
    aq_pass_shape_clear(s, x->plan);
    s->decode_rows = b->decode_count + b->given_rows;
    s->prefill_rows = b->prefill_rows;
    s->logit_rows = b->logit_count;
    sort_by_seat(b->prefill, b->prefill_seat, b->prefill_count);
    find_parts(x, b->prefill_seat, b->prefill_count, b->prefill_first);
    find_parts(x, b->decode_seat, b->decode_count, b->decode_first);
    for (uint32_t part = 0; part < x->plan->part_count; part++) {
        struct aq_part_shape *p = &s->part[part];
        /* Rows of a part on the host are moved to a buffer of their own, so they count from 0; each
         * sequence has one (aq_seats_feeds_many). */
        bool on_host = x->plan->part[part].side == AQ_ATTEND_HOST;
        for (uint32_t i = b->decode_first[part]; i < b->decode_first[part + 1]; i++) {
            if (on_host)
                b->decode[i].row = i - b->decode_first[part];
            aq_seats_count(&x->seats, b->decode_seat[i], p);
        }
        for (uint32_t i = b->prefill_first[part]; i < b->prefill_first[part + 1]; i++)
            aq_seats_count(&x->seats, b->prefill_seat[i], p);
    }
}

void exec_begin_pass(struct aq_executor *x, uint32_t *ret_prefill, uint32_t *ret_decode)
{
    uint32_t prefill = 0, decode = 0, batches = x->plan->shape.micro_batches;
    aq_seats_begin_pass(&x->seats);
    for (uint32_t k = 0; k < batches; k++) {
        prefill += x->batch[k].prefill_rows + x->batch[k].given_rows;
        decode += x->batch[k].decode_count;
        count_rows(x, k);
    }
    *ret_prefill = prefill;
    *ret_decode = decode;
}

void aq_executor_submit(struct aq_executor *x, struct aq_sequence *s)
{
    const struct aq_kv_kinds *kinds = &x->plan->kinds;
    struct aq_sitter who = sitter_of(s);
    struct aq_seat seat = aq_seats_seat(&x->seats, &who, x->seats.asks);
    assert(s->prompt_count >= 1 && (!s->given_count || s->given_count < s->max_tokens));
    for (uint32_t k = 0; k < kinds->count; k++)
        assert(aq_min_u64(seat.last, seat.kv[k].limits.slots) <= kinds->kind[k].slots);
    assert(!x->rotary_table || seat.last <= x->plan->shape.positions_max);
    assert(s->prompt_count + x->plan->shape.micro_batch <= x->plan->shape.rows_max);
    s->token_count = 0;
    s->finish = AQ_FINISH_NONE;
    s->seat = -1;
    push(&x->waiting, s);
}

struct aq_sequence *aq_executor_finished(struct aq_executor *x)
{
    return pop(&x->finished);
}
