/* SPDX-License-Identifier: Apache-2.0
 * Ends, admission and rows: what TURN does to a micro-batch, and what the start of a pass adds. */
#include "engine/exec.h"

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

static void finish(struct aq_executor *x, uint32_t seat_index)
{
    struct exec_seat *seat = &x->seat[seat_index];
    struct aq_sequence *s = seat->sequence;
    aq_kv_release(x->kv, seat_index);
    *seat = (struct exec_seat){0};
    s->seat = -1;
    x->seated--;
    x->filling = x->filling || x->seated == 0;
    x->stats.finished++;
    push(&x->finished, s);
}

static bool is_stop_id(const struct aq_sequence *s, uint32_t id)
{
    for (uint32_t i = 0; i < s->stop_id_count; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    return false;
}

/* Appends the chosen token; returns how the sequence ends, or NONE. */
static enum aq_finish append_token(struct aq_executor *x, struct exec_seat *seat)
{
    struct aq_sequence *s = seat->sequence;
    if (seat->bad || seat->bad_prompt)
        return AQ_FINISH_ERROR;
    if (s->max_tokens == 0)
        return AQ_FINISH_LENGTH;
    s->tokens[s->token_count++] = seat->chosen;
    x->stats.generated_tokens++;
    if (is_stop_id(s, seat->chosen) && s->token_count > s->min_tokens) {
        s->finish_id = seat->chosen;
        return AQ_FINISH_STOP_ID;
    }
    if (s->on_token && s->on_token(s))
        return AQ_FINISH_CALLER;
    return s->token_count >= s->max_tokens ? AQ_FINISH_LENGTH : AQ_FINISH_NONE;
}

static void retire(struct aq_executor *x, uint32_t k)
{
    uint32_t first = k * x->plan->shape.micro_batch;
    for (uint32_t i = first; i < first + x->plan->shape.micro_batch; i++) {
        struct exec_seat *seat = &x->seat[i];
        if (!seat->sequence || !seat->has_chosen)
            continue;
        seat->has_chosen = false;
        enum aq_finish how = append_token(x, seat);
        if (how != AQ_FINISH_NONE) {
            seat->sequence->finish = how;
            finish(x, i);
        }
    }
}

uint32_t exec_part_of(const struct aq_executor *x, uint32_t seat)
{
    uint32_t place = seat % x->plan->shape.micro_batch, part = 0;
    while (place >= x->plan->part[part].first + x->plan->part[part].count)
        part++;
    assert(part < x->plan->part_count);
    return part;
}

static enum aq_tier tier_of(const struct aq_executor *x, uint32_t seat)
{
    return (enum aq_tier)x->plan->part[exec_part_of(x, seat)].tier;
}

/* What admission knows of those seated in a tier: each may hold one more key than now, and leave
 * one pass later than it thinks, because micro-batches turn one after the other.  Who has sat down
 * in this very turn holds nothing yet, and a prompt after it. */
static uint32_t list_lengths(struct aq_executor *x, enum aq_tier tier)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < x->seat_count; i++) {
        const struct exec_seat *seat = &x->seat[i];
        const struct aq_sequence *q = seat->sequence;
        if (!q || tier_of(x, i) != tier)
            continue;
        x->lengths[count++] =
            seat->seen ? aq_admit_length_seated(&seat->limits, x->steps->kv_heads, q->prompt_count,
                                                seat->held, seat->last - seat->seen)
                       : aq_admit_length_of(&seat->limits, x->steps->kv_heads, q->prompt_count,
                                            q->max_tokens);
    }
    return count;
}

/* What the policy lets a sequence keep, or lets the one keep that it stands for. */
static void limits_of(struct aq_kv_limits *ret, const struct aq_executor *x,
                      const struct aq_sequence *q)
{
    bool other = q->kv_prompt > 0;
    aq_kv_policy_limits(ret, &x->plan->kv, other ? q->kv_prompt : q->prompt_count,
                        other ? q->kv_new : q->max_tokens);
}

/* May q sit down in a seat of this tier?  On disk every seat has room for its longest. */
static bool may_sit(struct aq_executor *x, const struct aq_sequence *q, enum aq_tier tier,
                    uint32_t tokens)
{
    const struct aq_block_shape *s = &x->plan->shape;
    struct aq_kv_limits kv;
    limits_of(&kv, x, q);
    struct aq_admit_limits limits = {
        .pages = tier == AQ_DISK ? UINT32_MAX : s->page_count[tier] / x->steps->layers,
        .page_slots = s->page_slots,
        .prompt_tokens = s->prompt_tokens,
        .seats_free = 1,
    };
    uint32_t count = tier == AQ_DISK ? 0 : list_lengths(x, tier);
    return aq_admit_one(
        &limits, x->lengths, count, tokens, q->prompt_count,
        aq_admit_length_of(&kv, x->steps->kv_heads, q->prompt_count, q->max_tokens));
}

/* Of a newly seated sequence. */
static void limit(const struct aq_executor *x, struct exec_seat *seat)
{
    const struct aq_sequence *q = seat->sequence;
    limits_of(&seat->limits, x, q);
    if (aq_kv_limits_differ(&seat->limits, q->prompt_count))
        seat->shared_runs =
            aq_kv_limits_runs(&seat->limits, x->steps->kv_heads, q->prompt_count, q->prompt_count);
    seat->drops = aq_kv_limits_drop(&seat->limits, q->prompt_count, q->max_tokens) ||
                  (q->kv_prompt && aq_kv_limits_drop(&seat->limits, q->kv_prompt, q->kv_new));
}

/* Seats waiting sequences in micro-batch k, in order.  Without refill only an empty block is
 * filled. */
static void admit(struct aq_executor *x, uint32_t k)
{
    const struct aq_block_shape *s = &x->plan->shape;
    if (!x->waiting.first || (!x->opts.refill && !x->filling))
        return;
    uint32_t tokens = x->batch[k].prefill_rows, first = k * s->micro_batch;
    bool full[AQ_TIER_COUNT] = {false};
    for (uint32_t i = first; i < first + s->micro_batch && x->waiting.first; i++) {
        struct aq_sequence *q = x->waiting.first;
        enum aq_tier tier = tier_of(x, i);
        if (x->seat[i].sequence || full[tier])
            continue;
        uint32_t last = q->prompt_count + (q->max_tokens ? q->max_tokens - 1 : 0);
        if (!may_sit(x, q, tier, tokens)) {
            full[tier] = true; /* it waits for the next one: order is kept */
            continue;
        }
        pop(&x->waiting);
        tokens += q->prompt_count;
        x->seat[i] = (struct exec_seat){.sequence = q, .last = last};
        limit(x, &x->seat[i]);
        q->seat = (int32_t)i;
        x->seated++;
    }
}

static void add_logit_row(struct exec_batch *b, uint32_t row, uint32_t seat, int32_t prompt_index)
{
    b->logit_index[b->logit_count] = row;
    b->logit_row[b->logit_count++] = (struct exec_logit_row){seat, prompt_index};
}

static void grow(struct aq_executor *x, uint32_t seat_index)
{
    const struct exec_seat *s = &x->seat[seat_index];
    uint32_t runs = (uint32_t)aq_div_up(s->held, AQ_HEAD_BLOCK_SLOTS);
    aq_kv_grow(x->kv, seat_index, s->shared_runs ? s->shared_runs : runs);
}

/* One more position for a seat that decodes. */
static void step_seat(struct aq_executor *x, uint32_t seat_index)
{
    struct exec_seat *seat = &x->seat[seat_index];
    seat->rows = 1;
    seat->seen++;
    seat->before = seat->held;
    seat->overwrites = seat->held == seat->limits.slots;
    seat->held += !seat->overwrites;
    seat->delta = seat->delta_next;
    seat->rewrites = false;
    if (exec_uses_delta(x, seat_index)) {
        /* Every 32 steps, but seats that sat down together not all in the same pass. */
        seat->rewrites = seat->delta && (seat->seen + seat_index) % AQ_HEAD_BLOCK_SLOTS == 0;
        seat->delta_next = seat->rewrites ? 0 : seat->delta + 1;
        assert(seat->delta_next <= AQ_HEAD_BLOCK_SLOTS);
    }
    grow(x, seat_index);
}

static void bind_decode(struct aq_executor *x, struct exec_batch *b, uint32_t seat_index)
{
    struct exec_seat *seat = &x->seat[seat_index];
    const struct aq_sequence *s = seat->sequence;
    uint32_t row = b->row_count++;
    b->id[row] = s->tokens[s->token_count - 1];
    b->position[row] = seat->seen + x->steps->position_offset;
    step_seat(x, seat_index);
    b->decode_seat[b->decode_count] = seat_index;
    b->decode[b->decode_count++] = (struct aq_attn_seq){
        .head_offset = aq_kv_head_offset(x->kv), .len = &seat->held, .row = row, .rows = 1};
    add_logit_row(b, row, seat_index, -1);
}

static void bind_prefill(struct aq_executor *x, struct exec_batch *b, uint32_t seat_index)
{
    struct exec_seat *seat = &x->seat[seat_index];
    const struct aq_sequence *s = seat->sequence;
    uint32_t first = b->row_count, n = s->prompt_count;
    for (uint32_t i = 0; i < n; i++) {
        b->id[first + i] = s->prompt[i];
        b->position[first + i] = i + x->steps->position_offset;
        if (s->prompt_logprobs && i + 1 < n)
            add_logit_row(b, first + i, seat_index, (int32_t)i);
    }
    add_logit_row(b, first + n - 1, seat_index, -1);
    b->row_count += n;
    b->prefill_rows += n;
    seat->seen = n;
    seat->held = aq_kv_limits_held(&seat->limits, n, n);
    seat->rows = n;
    grow(x, seat_index);
    b->prefill_seat[b->prefill_count] = seat_index;
    b->prefill[b->prefill_count++] = (struct aq_attn_seq){
        .head_offset = aq_kv_head_offset(x->kv), .len = &seat->held, .row = first, .rows = n};
}

/* Rows of micro-batch k for its next pass: one for each sequence that decodes... */
static void bind_seated(struct aq_executor *x, uint32_t k)
{
    struct exec_batch *b = &x->batch[k];
    uint32_t first = k * x->plan->shape.micro_batch, end = first + x->plan->shape.micro_batch;
    b->row_count = b->logit_count = b->decode_count = b->prefill_count = b->prefill_rows = 0;
    if (!x->opts.refill && x->filling)
        return;
    for (uint32_t i = first; i < end; i++) {
        if (x->seat[i].sequence)
            bind_decode(x, b, i);
    }
}

/* ... and then the prompts of those who find a seat now. */
static void admit_and_bind(struct aq_executor *x, uint32_t k)
{
    struct exec_batch *b = &x->batch[k];
    uint32_t first = k * x->plan->shape.micro_batch, end = first + x->plan->shape.micro_batch;
    admit(x, k);
    for (uint32_t i = first; i < end; i++) {
        if (x->seat[i].sequence && x->seat[i].seen == 0)
            bind_prefill(x, b, i);
    }
    assert(b->row_count <= x->plan->shape.rows_max);
}

void exec_turn(struct aq_executor *x, uint32_t k)
{
    retire(x, k);
    bind_seated(x, k);
    admit_and_bind(x, k);
}

/* Entries of sequences in the order of their parts: seats ascend within a part by insertion. */
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
        while (at < count && exec_part_of(x, seat[at]) < part)
            at++;
        first[part] = at;
    }
}

/* What micro-batch k will do in the pass, part by part. */
static void count_rows(struct aq_executor *x, uint32_t k)
{
    struct exec_batch *b = &x->batch[k];
    struct aq_pass_shape *s = &x->pass_shape[k];
    *s = (struct aq_pass_shape){
        .decode_rows = b->decode_count,
        .prefill_rows = b->prefill_rows,
        .logit_rows = b->logit_count,
    };
    sort_by_seat(b->prefill, b->prefill_seat, b->prefill_count);
    find_parts(x, b->prefill_seat, b->prefill_count, b->prefill_first);
    find_parts(x, b->decode_seat, b->decode_count, b->decode_first);
    for (uint32_t part = 0; part < x->plan->part_count; part++) {
        struct aq_part_shape *p = &s->part[part];
        bool scores = aq_kv_policy_scores(&x->plan->kv);
        /* The host's part of the rows travels by itself. */
        bool on_host = x->plan->part[part].side == AQ_ATTEND_HOST;
        for (uint32_t i = b->decode_first[part]; i < b->decode_first[part + 1]; i++) {
            b->decode[i].row = on_host ? i - b->decode_first[part] : i;
            p->decode_rows++;
            p->decode_keys += x->seat[b->decode_seat[i]].held;
            p->decode_slots += aq_align_up(x->seat[b->decode_seat[i]].held, AQ_HEAD_BLOCK_SLOTS);
        }
        for (uint32_t i = b->prefill_first[part]; i < b->prefill_first[part + 1]; i++) {
            const struct exec_seat *seat = &x->seat[b->prefill_seat[i]];
            uint64_t pairs = (uint64_t)seat->seen * (seat->seen + 1) / 2;
            p->prefill_rows += seat->seen;
            p->prefill_key_pairs += pairs;
            p->stat_key_pairs += seat->drops && scores ? pairs : 0;
        }
        exec_count_kv(x, k, part);
    }
}

/* ---- passes ------------------------------------------------------------------------------ */

void exec_begin_pass(struct aq_executor *x, uint32_t *ret_prefill, uint32_t *ret_decode)
{
    uint32_t prefill = 0, decode = 0, batches = x->plan->shape.micro_batches;
    for (uint32_t k = 0; k < batches; k++) {
        admit_and_bind(x, k);
        prefill += x->batch[k].prefill_rows;
    }
    if (!x->opts.refill && x->filling && !prefill && x->seated) {
        x->filling = false;
        for (uint32_t k = 0; k < batches; k++)
            bind_seated(x, k);
    }
    for (uint32_t k = 0; k < batches; k++) {
        decode += x->batch[k].decode_count;
        count_rows(x, k);
    }
    *ret_prefill = prefill;
    *ret_decode = decode;
}

void aq_executor_submit(struct aq_executor *x, struct aq_sequence *s)
{
    uint32_t last = s->prompt_count + (s->max_tokens ? s->max_tokens - 1 : 0);
    struct aq_kv_limits kv;
    limits_of(&kv, x, s);
    assert(s->prompt_count >= 1 && aq_min_u64(last, kv.slots) <= x->plan->shape.keys_max);
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
