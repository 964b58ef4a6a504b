/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/seats.h"

#include "policy/traffic.h"

#include <assert.h>

void aq_seats_open(struct aq_seats *s, const struct aq_seats_opts *opts, struct aq_seat *seat,
                   struct aq_admit_length *lengths, uint32_t *prompt_rows)
{
    *s = (struct aq_seats){
        .opts = *opts,
        .seat = seat,
        .lengths = lengths,
        .prompt_rows = prompt_rows,
        .count = opts->plan->shape.micro_batch * opts->plan->shape.micro_batches,
        .filling = true,
        .window = aq_steps_window(opts->steps),
    };
    aq_kv_sizes_of(&s->sizes, opts->plan, opts->steps->kv_heads, opts->steps->head_dim);
}

uint32_t aq_seats_part(const struct aq_plan *plan, uint32_t seat)
{
    uint32_t place = seat % plan->shape.micro_batch, part = 0;
    while (place >= plan->part[part].first + plan->part[part].count)
        part++;
    assert(part < plan->part_count);
    return part;
}

static const struct aq_part *part_of(const struct aq_seats *s, uint32_t seat)
{
    return &s->opts.plan->part[aq_seats_part(s->opts.plan, seat)];
}

/* ---- admission --------------------------------------------------------------------------- */

/* Lengths of the sequences seated in a tier, for admission: each may hold one more key than now,
 * and leave one pass later than its length says, because micro-batches turn one after the other.  A
 * sequence seated in this very turn holds no slots yet, and its prompt after the pass. */
static uint32_t list_lengths(struct aq_seats *s, enum aq_tier tier)
{
    uint32_t count = 0, heads = s->opts.steps->kv_heads;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct aq_seat *t = &s->seat[i];
        if (!t->taken || part_of(s, i)->tier != tier)
            continue;
        s->lengths[count++] =
            t->seen
                ? aq_admit_length_seated(&t->limits, heads, t->prompt, t->held, t->last - t->seen)
                : aq_admit_length_of(&t->limits, heads, t->prompt, t->max_new);
    }
    return count;
}

/* May the sequence take a seat of this tier?  On disk every seat has pages for the longest
 * sequence. */
static bool may_sit(struct aq_seats *s, const struct aq_seat *t, enum aq_tier tier, uint32_t rows)
{
    const struct aq_block_shape *shape = &s->opts.plan->shape;
    uint32_t heads = s->opts.steps->kv_heads;
    struct aq_admit_limits limits = {
        .pages = tier == AQ_DISK ? UINT32_MAX : shape->page_count[tier] / s->opts.steps->layers,
        .page_slots = shape->page_slots,
        .prompt_tokens = shape->prompt_tokens,
        .seats_free = 1,
    };
    uint32_t count = tier == AQ_DISK ? 0 : list_lengths(s, tier);
    s->steps += (uint64_t)(count + 1) * (count + 1);
    return aq_admit_one(&limits, s->lengths, count, rows, t->prompt,
                        aq_admit_length_of(&t->limits, heads, t->prompt, t->max_new));
}

struct aq_seat aq_seats_seat(const struct aq_seats *s, const struct aq_sitter *who)
{
    struct aq_seat t = {.taken = true, .prompt = who->prompt, .max_new = who->max_new};
    bool other = who->kv_prompt > 0;
    /* The key of the last token is never computed. */
    t.last = who->prompt + (who->max_new ? who->max_new - 1 : 0);
    aq_kv_policy_limits(&t.limits, &s->opts.plan->kv, other ? who->kv_prompt : who->prompt,
                        other ? who->kv_new : who->max_new, 0, s->opts.steps->layers);
    if (aq_kv_limits_differ(&t.limits, who->prompt))
        t.shared_runs =
            aq_kv_limits_runs(&t.limits, s->opts.steps->kv_heads, who->prompt, who->prompt);
    t.drops = aq_kv_limits_drop(&t.limits, who->prompt, who->max_new) ||
              (other && aq_kv_limits_drop(&t.limits, who->kv_prompt, who->kv_new));
    return t;
}

static void bind_prompt(struct aq_seats *s, uint32_t i)
{
    struct aq_seat *t = &s->seat[i];
    t->rows = t->seen = t->prompt;
    t->held = aq_kv_limits_held(&t->limits, t->prompt, t->prompt);
    s->prompt_rows[i / s->opts.plan->shape.micro_batch] += t->prompt;
    if (s->opts.ops->bound)
        s->opts.ops->bound(s->opts.user, i);
}

/* Gives seats of micro-batch k to waiting sequences, in order.  Without refill only an empty block
 * is filled. */
static void admit(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch, rows = s->prompt_rows[k];
    struct aq_sitter who;
    bool full[AQ_TIER_COUNT] = {false};
    if (!s->opts.refill && !s->filling)
        return;
    for (uint32_t i = k * each; i < (k + 1) * each && s->opts.ops->next(s->opts.user, &who); i++) {
        enum aq_tier tier = (enum aq_tier)part_of(s, i)->tier;
        if (s->seat[i].taken || full[tier])
            continue;
        struct aq_seat t = aq_seats_seat(s, &who);
        if (!may_sit(s, &t, tier, rows)) {
            full[tier] = true; /* later sequences must not overtake this one */
            continue;
        }
        s->seat[i] = t;
        s->seated++;
        rows += t.prompt;
        s->opts.ops->sat(s->opts.user, i);
    }
}

static void admit_and_bind(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch;
    admit(s, k);
    for (uint32_t i = k * each; i < (k + 1) * each; i++) {
        if (s->seat[i].taken && !s->seat[i].seen)
            bind_prompt(s, i);
    }
}

/* ---- passes ------------------------------------------------------------------------------ */

/* One more position for a seat that decodes. */
static void step(struct aq_seats *s, uint32_t i)
{
    struct aq_seat *t = &s->seat[i];
    t->rows = 1;
    t->seen++;
    t->before = t->held;
    t->overwrites = t->held == t->limits.slots;
    t->held += !t->overwrites;
    t->delta = t->delta_next;
    t->rewrites = false;
    if (aq_kv_uses_delta(part_of(s, i), t)) {
        /* Every 32 steps, but seats that sat down together not all in the same pass. */
        t->rewrites = t->delta && (t->seen + i) % AQ_HEAD_BLOCK_SLOTS == 0;
        t->delta_next = t->rewrites ? 0 : t->delta + 1;
        assert(t->delta_next <= AQ_HEAD_BLOCK_SLOTS);
    }
    if (s->opts.ops->bound)
        s->opts.ops->bound(s->opts.user, i);
}

/* Without refill no sequence decodes while the block is being filled. */
static void step_all(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch;
    s->prompt_rows[k] = 0;
    for (uint32_t i = k * each; i < (k + 1) * each; i++) {
        s->seat[i].rows = 0;
        if (s->seat[i].taken && (s->opts.refill || !s->filling))
            step(s, i);
    }
}

void aq_seats_turn(struct aq_seats *s, uint32_t k)
{
    uint32_t each = s->opts.plan->shape.micro_batch;
    for (uint32_t i = k * each; i < (k + 1) * each; i++) {
        if (!s->seat[i].taken || !s->opts.ops->ended(s->opts.user, i))
            continue;
        s->seat[i] = (struct aq_seat){0};
        s->seated--;
        s->filling = s->filling || s->seated == 0;
    }
    step_all(s, k);
    admit_and_bind(s, k);
}

void aq_seats_begin_pass(struct aq_seats *s)
{
    uint32_t batches = s->opts.plan->shape.micro_batches, prompt_rows = 0;
    for (uint32_t k = 0; k < batches; k++) {
        admit_and_bind(s, k);
        prompt_rows += s->prompt_rows[k];
    }
    if (s->opts.refill || !s->filling || prompt_rows || !s->seated)
        return;
    s->filling = false;
    for (uint32_t k = 0; k < batches; k++)
        step_all(s, k);
}

/* ---- counts ------------------------------------------------------------------------------ */

/* The same work where a query sees its window alone: all keys are kept, and whole head-blocks are
 * read. */
static void count_window(const struct aq_seats *s, const struct aq_seat *t,
                         struct aq_part_shape *io)
{
    uint64_t w = s->window;
    if (!w)
        return;
    if (t->seen > t->prompt) {
        uint64_t before = t->held > w ? t->held - w : 0;
        io->window_keys += t->held - before;
        io->window_slots += aq_align_up(t->held, AQ_HEAD_BLOCK_SLOTS) -
                            before / AQ_HEAD_BLOCK_SLOTS * AQ_HEAD_BLOCK_SLOTS;
    } else {
        uint64_t whole = aq_min_u64(t->prompt, w); /* queries that see all keys before them */
        io->window_pairs += whole * (whole + 1) / 2 + (t->prompt - whole) * w;
    }
}

void aq_seats_count(const struct aq_seats *s, uint32_t seat, struct aq_part_shape *io)
{
    const struct aq_plan *plan = s->opts.plan;
    const struct aq_seat *t = &s->seat[seat];
    struct aq_kv_traffic traffic;
    assert(t->rows);
    if (t->seen > t->prompt) {
        io->decode_rows++;
        io->decode_keys += t->held;
        io->decode_slots += aq_align_up(t->held, AQ_HEAD_BLOCK_SLOTS);
    } else {
        uint64_t pairs = (uint64_t)t->prompt * (t->prompt + 1) / 2;
        io->prefill_rows += t->prompt;
        io->prefill_key_pairs += pairs;
        if (t->drops)
            io->stat_key_pairs += aq_kv_policy_stat_pairs(&plan->kv, &t->limits, t->prompt);
    }
    count_window(s, t, io);
    aq_kv_traffic_of(&traffic, plan, part_of(s, seat), t);
    aq_kv_traffic_add(io, &traffic, &s->sizes);
}
