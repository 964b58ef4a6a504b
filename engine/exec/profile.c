/* SPDX-License-Identifier: Apache-2.0
 * Heads that each have a rule (policy/kv_profile.h).  A prompt is attended in scratch, where two
 * sums over its queries lie, of all pairs and of near ones; each head finds its rule and keeps what
 * that says.  From then on every row has a slot in every head: of one that gives way, or one more.
 * Tokens that a rule keeps for their class have an infinite score, so that none of them gives
 * way. */
#include "engine/exec/exec.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* The heads of a (seat, layer). */
struct profile {
    struct aq_executor *x;
    const struct aq_sequence *sequence;
    const struct aq_seat *seat;
    const struct aq_kv_limits *limits;
    struct aq_attn_slots slots;
    uint32_t heads;
    uint32_t *rule, *kept, *grown; /* [heads] */
    struct aq_rule_stats *stats;   /* [heads] */
};

int exec_profile_open(struct aq_executor *x, struct aq_err *reterr)
{
    size_t heads = (size_t)x->steps->layers * x->steps->kv_heads;
    if (!aq_kv_policy_profiled(&x->plan->kv))
        return 0;
    x->rules = calloc(heads, sizeof(*x->rules));
    return x->rules ? 0 : aq_error_memory(reterr, "rules of %zu heads", heads);
}

const struct aq_rule_stats *aq_executor_rules(const struct aq_executor *x)
{
    return x->rules;
}

static struct profile profile_of(struct aq_executor *x, uint32_t seat, uint32_t layer)
{
    const struct aq_seat *s = &x->seats.seat[seat];
    return (struct profile){
        .x = x,
        .sequence = x->seat[seat].sequence,
        .seat = s,
        .limits = &s->kv[x->plan->kinds.of[layer]].limits,
        .slots = aq_kv_slots(x->kv, seat, layer),
        .heads = x->steps->kv_heads,
        .rule = aq_kv_rules(x->kv, seat, layer),
        .kept = aq_kv_lens(x->kv, seat, layer),
        .grown = aq_kv_grown(x->kv, seat, layer),
        .stats = x->rules + (size_t)layer * x->steps->kv_heads,
    };
}

static uint8_t class_at(const struct profile *p, uint32_t position)
{
    const struct aq_sequence *s = p->sequence;
    uint32_t prompt = p->seat->prompt;
    uint32_t id = position < prompt ? s->prompt[position] : s->tokens[position - prompt];
    return aq_kv_class_of(&p->x->opts.classes, id);
}

void exec_profile_prompt(struct aq_executor *x, uint32_t seat, uint32_t layer)
{
    struct profile p = profile_of(x, seat, layer);
    const struct aq_kv_prefill_layout *layout = &x->prompt_layout;
    uint8_t *scratch = x->prompt_room[0].scratch, *classes = scratch + layout->classes;
    const float *all = (const float *)(scratch + layout->value);
    const float *band = (const float *)(scratch + layout->sums);
    uint32_t *keep = (uint32_t *)(scratch + layout->keep);
    uint32_t *count = (uint32_t *)(scratch + layout->count);
    for (uint32_t j = 0; j < p.seat->prompt; j++)
        classes[j] = class_at(&p, j);
    for (uint32_t h = 0; h < p.heads; h++) {
        struct aq_kv_sums sums = {.all = all + (size_t)h * layout->stride,
                                  .band = band + (size_t)h * layout->stride,
                                  .classes = classes,
                                  .prompt = p.seat->prompt};
        p.rule[h] = aq_kv_profile_choose(&sums, p.limits);
        count[h] = aq_kv_profile_keep(keep + (size_t)h * p.slots.stride, &sums, p.limits,
                                      (enum aq_kv_profile)p.rule[h]);
        p.grown[h] = 0;
        p.stats[h].had[p.rule[h]]++;
        p.stats[h].prompt_tokens += p.seat->prompt;
        p.stats[h].prompt_slots += count[h];
    }
}

/* Finds which slot of each head gives way to the next row. */
static void find_victims(const struct profile *p)
{
    for (uint32_t h = 0; h < p->heads; h++) {
        size_t row = (size_t)h * p->slots.stride;
        p->slots.victim[h] = aq_kv_profile_victim(p->slots.score + row, p->slots.position + row,
                                                  p->kept[h] + p->grown[h], p->limits,
                                                  (enum aq_kv_profile)p->rule[h], p->seat->seen);
    }
}

/* A key that a head keeps for its class. */
static void keep_class(const struct profile *p, uint32_t head, uint32_t slot)
{
    size_t at = (size_t)head * p->slots.stride + slot;
    if (aq_kv_profile_safe((enum aq_kv_profile)p->rule[head], class_at(p, p->slots.position[at])))
        p->slots.score[at] = INFINITY;
}

void exec_profile_kept(struct aq_executor *x, uint32_t seat, uint32_t layer)
{
    struct profile p = profile_of(x, seat, layer);
    for (uint32_t h = 0; h < p.heads; h++) {
        for (uint32_t i = 0; i < p.kept[h]; i++)
            keep_class(&p, h, i);
    }
    find_victims(&p);
}

void exec_profile_place(struct aq_executor *x, uint32_t seat, uint32_t layer)
{
    struct profile p = profile_of(x, seat, layer);
    for (uint32_t h = 0; h < p.heads; h++) {
        if (p.slots.victim[h] == UINT32_MAX)
            p.slots.victim[h] = p.kept[h] + p.grown[h]++;
    }
}

void exec_profile_row(struct aq_executor *x, uint32_t seat, uint32_t layer)
{
    struct profile p = profile_of(x, seat, layer);
    for (uint32_t h = 0; h < p.heads; h++) {
        struct aq_rule_stats *stats = &p.stats[h];
        uint32_t slots = p.kept[h] + p.grown[h];
        stats->rows++;
        stats->row_slots += slots;
        stats->slots_max = slots > stats->slots_max ? slots : stats->slots_max;
        keep_class(&p, h, p.slots.victim[h]);
    }
    find_victims(&p);
}
