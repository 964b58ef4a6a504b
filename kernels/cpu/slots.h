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

static inline void aq_slots_assert(const struct aq_attn *a, const struct aq_attn_seq *s)
{
    assert(a->rule.victim && s->slots.position && s->slots.victim);
    assert(a->rule.victim == AQ_ATTN_BY_POSITION || s->slots.score);
}

/* See aq_kv_victim_fn. */
static inline uint32_t aq_slots_victim(const struct aq_attn *a, const struct aq_attn_seq *s,
                                       uint32_t head)
{
    aq_slots_assert(a, s);
    uint32_t len = aq_attn_len(s, head), end = aq_attn_victim_end(s), best = UINT32_MAX;
    const uint32_t *position = s->slots.position + (size_t)head * s->slots.stride;
    const float *score = s->slots.score + (size_t)head * s->slots.stride;
    for (uint32_t j = 0; j < len; j++) {
        if (position[j] < a->rule.sinks || position[j] >= end)
            continue;
        bool better = best == UINT32_MAX;
        if (!better && a->rule.victim == AQ_ATTN_BY_POSITION)
            better = position[j] > position[best];
        else if (!better) {
            float x = aq_slots_rank(score[j]), y = aq_slots_rank(score[best]);
            better = x < y || (x == y && position[j] < position[best]);
        }
        best = better ? j : best;
    }
    return best;
}

#endif
