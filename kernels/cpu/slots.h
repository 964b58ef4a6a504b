/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/slots.h - what is remembered of slots: the order of scores and the choice of a
 * victim, one slot after the other. */
#ifndef AQ_KERNELS_CPU_SLOTS_H
#define AQ_KERNELS_CPU_SLOTS_H

#include "kernels/cpu/attn.h"

#include <math.h>

/* A score by which slots are compared: a NaN counts as infinite. */
static inline float aq_slots_rank(float score)
{
    return isnan(score) ? INFINITY : score;
}

/* Slots that a head keeps of which `count` are among the best of its layer: struct aq_kv_select. */
static inline uint32_t aq_slots_mixed(const struct aq_kv_select *s, uint64_t count)
{
    const uint64_t one = 1000000000;
    uint64_t exact = count * (one - s->mix) + s->floor * one, part = exact % one;
    uint64_t whole = exact / one, sinks = s->sinks < s->heavy ? s->sinks : s->heavy;
    whole += part > one / 2 || (part == one / 2 && whole % 2);
    return (uint32_t)(whole > sinks ? whole : sinks);
}

static inline void aq_slots_assert(const struct aq_attn *a, const struct aq_attn_seq *s)
{
    assert(a->rule.victim && s->slots.position && s->slots.victim);
    assert(a->rule.victim == AQ_ATTN_BY_POSITION || s->slots.score);
}

/* The score of a slot of a head; of all heads where they choose together. */
static inline float aq_slots_score(const struct aq_attn *a, const struct aq_attn_seq *s,
                                   uint32_t head, uint32_t slot)
{
    const float *score = s->slots.score + slot;
    float sum = score[(a->rule.together ? 0 : (size_t)head) * s->slots.stride];
    for (uint32_t h = 1; a->rule.together && h < a->kv_heads; h++)
        sum += score[(size_t)h * s->slots.stride];
    return aq_slots_rank(sum);
}

/* See aq_kv_victim_fn. */
static inline uint32_t aq_slots_victim(const struct aq_attn *a, const struct aq_attn_seq *s,
                                       uint32_t head)
{
    aq_slots_assert(a, s);
    uint32_t len = aq_attn_len(s, head), end = aq_attn_victim_end(s), best = UINT32_MAX;
    const uint32_t *position = s->slots.position + (size_t)head * s->slots.stride;
    float lowest = 0;
    for (uint32_t j = 0; j < len; j++) {
        if (position[j] < a->rule.sinks || position[j] >= end)
            continue;
        bool better = best == UINT32_MAX;
        if (a->rule.victim == AQ_ATTN_BY_POSITION) {
            best = better || position[j] > position[best] ? j : best;
            continue;
        }
        float score = aq_slots_score(a, s, head, j);
        better = better || score < lowest || (score == lowest && position[j] < position[best]);
        best = better ? j : best;
        lowest = better ? score : lowest;
    }
    return best;
}

/* The victim of all heads of a sequence, where they choose together. */
static inline void aq_slots_victim_together(const struct aq_attn *a, const struct aq_attn_seq *s)
{
    assert(!s->len_step);
    uint32_t victim = aq_slots_victim(a, s, 0);
    for (uint32_t h = 0; h < a->kv_heads; h++)
        s->slots.victim[h] = victim;
}

/* Of a tile of a call for victims, a sequence and KV head: the sequence, where the head's victim is
 * its own.  NULL: there is none to find, or the one of all heads, which is found here. */
static inline const struct aq_attn_seq *aq_slots_victim_alone(const struct aq_attn *a,
                                                              uint32_t tile)
{
    const struct aq_attn_seq *seq = &a->seqs[tile / a->kv_heads];
    if (!seq->slots.victim)
        return NULL;
    if (!a->rule.together)
        return seq;
    if (tile % a->kv_heads == 0)
        aq_slots_victim_together(a, seq);
    return NULL;
}

#endif
