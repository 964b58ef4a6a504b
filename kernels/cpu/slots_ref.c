/* SPDX-License-Identifier: Apache-2.0
 * Victims and selection, reference: every slot is compared with every other. */
#include "kernels/cpu/slots.h"
#include "kernels/cpu/versions.h"

static void victim_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_attn *a = arg;
    const struct aq_attn_seq *seq = aq_slots_victim_alone(a, tile);
    uint32_t head = tile % a->kv_heads;
    if (seq)
        seq->slots.victim[head] = aq_slots_victim(a, seq, head);
}

void aq_kv_victim_ref(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_assert(a);
    aq_pool_run(aq_exec_pool(ex), victim_tile, (void *)a, a->seq_count * a->kv_heads);
}

/* ---- selection ---- */

static uint32_t candidates(const struct aq_kv_select *s)
{
    return s->recent < s->len ? s->len - s->recent : 0;
}

/* Whether slot j of head g is worth more than slot i of head h. */
static bool beats(const struct aq_kv_select *s, uint32_t g, uint32_t j, uint32_t h, uint32_t i)
{
    bool sink_j = j < s->sinks, sink_i = i < s->sinks;
    if (sink_j != sink_i)
        return sink_j;
    if (!sink_j && !s->value && i != j)
        return j < i;
    if (!sink_j && s->value) {
        float x = aq_slots_rank(s->value[(size_t)g * s->stride + j]);
        float y = aq_slots_rank(s->value[(size_t)h * s->stride + i]);
        if (x != y)
            return x > y;
    }
    return i != j ? j > i : g < h;
}

/* Slots of the same head that are worth more than slot i of head h. */
static uint32_t rank_in_head(const struct aq_kv_select *s, uint32_t h, uint32_t i)
{
    uint32_t rank = 0;
    for (uint32_t j = 0; j < candidates(s); j++)
        rank += beats(s, h, j, h, i);
    return rank;
}

/* Slots of all heads that are neither among the `floor` best of theirs nor worth less. */
static uint32_t rank_in_layer(const struct aq_kv_select *s, uint32_t kv_heads, uint32_t floor,
                              uint32_t h, uint32_t i)
{
    uint32_t rank = 0;
    for (uint32_t g = 0; g < kv_heads; g++) {
        for (uint32_t j = 0; j < candidates(s); j++)
            rank += beats(s, g, j, h, i) && rank_in_head(s, g, j) >= floor;
    }
    return rank;
}

/* How many slots of head h would stay, if heads had no floor. */
static uint32_t count_in_layer(const struct aq_kv_select *s, uint32_t kv_heads, uint32_t h)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < candidates(s); i++)
        count += rank_in_layer(s, kv_heads, 0, h, i) < (uint64_t)s->heavy * kv_heads;
    return count;
}

/* mixed: what the head keeps where numbers are mixed. */
static bool stays(const struct aq_kv_select *s, uint32_t kv_heads, uint32_t h, uint32_t i,
                  uint32_t mixed)
{
    if (i >= candidates(s))
        return true;
    if (s->layer && s->mix)
        return rank_in_head(s, h, i) < mixed;
    if (!s->layer)
        return rank_in_head(s, h, i) < s->heavy;
    uint32_t floor = (uint32_t)aq_min_u64(s->floor, s->heavy);
    if (rank_in_head(s, h, i) < floor)
        return true;
    uint64_t rest = (uint64_t)(s->heavy - floor) * kv_heads;
    return rank_in_layer(s, kv_heads, floor, h, i) < rest;
}

/* A tile is one KV head of one sequence. */
static void select_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_kv_selects *job = arg;
    const struct aq_kv_select *s = &job->selects[tile / job->kv_heads];
    uint32_t head = tile % job->kv_heads, count = 0, mixed = 0;
    if (s->layer && s->mix)
        mixed = aq_slots_mixed(s, count_in_layer(s, job->kv_heads, head));
    for (uint32_t i = 0; i < s->len; i++) {
        if (stays(s, job->kv_heads, head, i, mixed))
            s->keep[(size_t)head * s->keep_stride + count++] = i;
    }
    s->count[head] = count;
}

void aq_kv_select_ref(struct aq_exec *ex, const struct aq_kv_selects *s)
{
    aq_pool_run(aq_exec_pool(ex), select_tile, (void *)s, s->count * s->kv_heads);
}
