/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/seating.h"

#include "policy/admit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct seat {
    bool taken, new; /* new: its prompt is in the coming pass */
    uint32_t prompt, max_new, made;
    uint32_t held;
    struct aq_kv_limits limits;
};

struct aq_seating {
    struct aq_seating_opts o;
    struct seat *seat;               /* [seats] */
    struct aq_admit_length *lengths; /* [seats + 1] of those in one tier */
    uint32_t seats, seated;
    uint64_t waiting; /* the next to sit down */
    uint64_t steps;
    bool filling;
};

int aq_seating_open(struct aq_seating **ret, const struct aq_seating_opts *opts,
                    struct aq_err *reterr)
{
    struct aq_seating *s = calloc(1, sizeof(*s));
    uint32_t seats = opts->plan->shape.micro_batch * opts->plan->shape.micro_batches;
    assert(opts->length_count && opts->sequences);
    if (s) {
        s->seat = calloc(seats, sizeof(*s->seat));
        s->lengths = calloc((size_t)seats + 1, sizeof(*s->lengths));
    }
    if (!s || !s->seat || !s->lengths) {
        aq_seating_close(s);
        return aq_error_memory(reterr, "forecast of %u seats", seats);
    }
    s->o = *opts;
    s->seats = seats;
    s->filling = true;
    *ret = s;
    return 0;
}

void aq_seating_close(struct aq_seating *s)
{
    if (!s)
        return;
    free(s->seat);
    free(s->lengths);
    free(s);
}

static const struct aq_part *part_of(const struct aq_seating *s, uint32_t seat)
{
    const struct aq_plan *plan = s->o.plan;
    uint32_t at = seat % plan->shape.micro_batch, part = 0;
    while (part + 1 < plan->part_count && at >= plan->part[part + 1].first)
        part++;
    return &plan->part[part];
}

/* Those who sit in seats of this tier: now is what they hold after the coming pass. */
static uint32_t list_lengths(struct aq_seating *s, enum aq_tier tier)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->seats; i++) {
        const struct seat *t = &s->seat[i];
        if (!t->taken || part_of(s, i)->tier != tier)
            continue;
        s->lengths[count++] =
            t->new ? aq_admit_length_of(&t->limits, s->o.steps->kv_heads, t->prompt, t->max_new)
                   : aq_admit_length_seated(&t->limits, s->o.steps->kv_heads, t->prompt, t->held,
                                            t->max_new - t->made);
    }
    return count;
}

static const struct aq_length *length_of(const struct aq_seating *s, uint64_t sequence)
{
    return &s->o.length[sequence * s->o.length_count / s->o.sequences];
}

static bool may_sit(struct aq_seating *s, const struct seat *t, enum aq_tier tier, uint32_t tokens)
{
    const struct aq_block_shape *shape = &s->o.plan->shape;
    struct aq_admit_limits limits = {
        .pages = tier == AQ_DISK ? UINT32_MAX : shape->page_count[tier] / s->o.steps->layers,
        .page_slots = shape->page_slots,
        .prompt_tokens = shape->prompt_tokens,
        .seats_free = 1,
    };
    uint32_t count = tier == AQ_DISK ? 0 : list_lengths(s, tier);
    s->steps += (uint64_t)(count + 1) * (count + 1);
    return aq_admit_one(
        &limits, s->lengths, count, tokens, t->prompt,
        aq_admit_length_of(&t->limits, s->o.steps->kv_heads, t->prompt, t->max_new));
}

static void admit(struct aq_seating *s, uint32_t k)
{
    uint32_t each = s->o.plan->shape.micro_batch, tokens = 0;
    bool full[AQ_TIER_COUNT] = {false};
    if (!s->o.refill && !s->filling)
        return;
    for (uint32_t i = k * each; i < (k + 1) * each && s->waiting < s->o.sequences; i++) {
        enum aq_tier tier = part_of(s, i)->tier;
        if (s->seat[i].taken || full[tier])
            continue;
        const struct aq_length *l = length_of(s, s->waiting);
        struct seat t = {.taken = true, .new = true, .prompt = l->prompt, .max_new = l->max_new};
        aq_kv_policy_limits(&t.limits, &s->o.plan->kv, t.prompt, t.max_new);
        if (!may_sit(s, &t, tier, tokens)) {
            full[tier] = true;
            continue;
        }
        tokens += t.prompt;
        s->seat[i] = t;
        s->seated++;
        s->waiting++;
    }
}

/* What a seat does in the pass. */
static void add_seat(const struct aq_seating *s, uint32_t i, struct aq_pass_shape *shape)
{
    struct seat *t = &s->seat[i];
    struct aq_part_shape *part = &shape->part[part_of(s, i) - s->o.plan->part];
    bool drops = aq_kv_limits_drop(&t->limits, t->prompt, t->max_new);
    struct aq_forecast_rows rows = {.seats = 1};
    if (t->new) {
        rows.prompt = t->prompt;
        rows.held = t->held = aq_kv_limits_held(&t->limits, t->prompt, t->prompt);
        rows.scored = drops && aq_kv_policy_scores(&s->o.plan->kv);
        shape->prefill_rows += t->prompt;
    } else {
        rows.full = t->held == t->limits.slots;
        rows.held = t->held += !rows.full;
        shape->decode_rows++;
    }
    shape->logit_rows++;
    t->made++;
    t->new = false;
    aq_forecast_add_rows(part, s->o.steps, s->o.plan, part_of(s, i), &rows);
}

static void end_passed(struct aq_seating *s)
{
    for (uint32_t i = 0; i < s->seats; i++) {
        if (!s->seat[i].taken || s->seat[i].new || s->seat[i].made < s->seat[i].max_new)
            continue;
        s->seat[i].taken = false;
        s->seated--;
    }
    if (!s->seated)
        s->filling = true;
}

bool aq_seating_next(struct aq_seating *s, struct aq_pass_shape *shape, uint32_t *ret_prefill,
                     uint32_t *ret_decode)
{
    const struct aq_block_shape *b = &s->o.plan->shape;
    uint32_t prefill = 0, decode = 0;
    end_passed(s);
    for (uint32_t k = 0; k < b->micro_batches; k++)
        admit(s, k);
    /* Without refill nobody decodes while others still sit down. */
    bool sits = false;
    for (uint32_t i = 0; i < s->seats; i++)
        sits |= s->seat[i].taken && s->seat[i].new;
    if (!sits)
        s->filling = false;
    for (uint32_t k = 0; k < b->micro_batches; k++)
        shape[k] = (struct aq_pass_shape){0};
    for (uint32_t i = 0; i < s->seats; i++) {
        if (s->seat[i].taken && (s->seat[i].new || s->o.refill || !s->filling))
            add_seat(s, i, &shape[i / b->micro_batch]);
    }
    for (uint32_t k = 0; k < b->micro_batches; k++) {
        prefill += shape[k].prefill_rows;
        decode += shape[k].decode_rows;
    }
    *ret_prefill = prefill;
    *ret_decode = decode;
    return prefill + decode > 0;
}

uint64_t aq_seating_steps(const struct aq_seating *s)
{
    return s->steps;
}
