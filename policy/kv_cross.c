/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv_cross.h"

#include <assert.h>
#include <string.h>

enum { BLOCK = AQ_HEAD_BLOCK_SLOTS };

/* ---- how much is held -------------------------------------------------------------------- */

uint64_t aq_kv_cross_target(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t layers)
{
    uint64_t budget = (uint64_t)l->heavy_prompt + l->recent_prompt;
    return aq_div_up(budget * kv_heads * layers, BLOCK);
}

/* The same of a layer that is cut before all are ranked. */
static uint64_t layer_target(const struct aq_kv_limits *l, uint32_t kv_heads)
{
    return aq_div_up((uint64_t)l->layer_prompt * kv_heads, BLOCK);
}

/* Each layer's head-blocks are rounded up to a run, and no head has more than the prompt fills. */
static uint64_t packed_runs(uint64_t blocks, uint32_t kv_heads, uint32_t layers, uint32_t prompt)
{
    uint64_t rounded = blocks + layers * (kv_heads - 1ull);
    return aq_min_u64(rounded / kv_heads, (uint64_t)layers * (prompt / BLOCK));
}

uint64_t aq_kv_cross_packed(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t layers,
                            uint32_t prompt)
{
    uint64_t runs = packed_runs(aq_kv_cross_target(l, kv_heads, layers), kv_heads, layers, prompt);
    if (!aq_kv_cross_cuts_layers(l, prompt))
        return runs;
    return aq_min_u64(runs, layers * packed_runs(layer_target(l, kv_heads), kv_heads, 1, prompt));
}

uint32_t aq_kv_cross_whole(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t prompt)
{
    assert(aq_kv_cross_cuts(l, prompt));
    if (!aq_kv_cross_cuts_layers(l, prompt))
        return (uint32_t)aq_div_up(prompt, BLOCK);
    return (uint32_t)packed_runs(layer_target(l, kv_heads), kv_heads, 1, prompt) +
           (aq_kv_cross_tail(prompt) > 0);
}

uint64_t aq_kv_cross_runs(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t layers,
                          uint32_t prompt, uint32_t seen)
{
    assert(aq_kv_cross_cuts(l, prompt) && seen >= prompt);
    if (seen == prompt)
        return (uint64_t)layers * aq_kv_cross_whole(l, kv_heads, prompt);
    uint64_t growth = aq_div_up((uint64_t)aq_kv_cross_tail(prompt) + (seen - prompt), BLOCK);
    return aq_kv_cross_packed(l, kv_heads, layers, prompt) + layers * growth;
}

/* ---- the cut ------------------------------------------------------------------------------- */

/* Slots of the last head-block of a prompt, which may be full. */
static uint32_t last_block(uint32_t prompt)
{
    return prompt - (uint32_t)(aq_div_up(prompt, BLOCK) - 1) * BLOCK;
}

/* The lowest keys that a head loses with so many head-blocks. */
static uint32_t lost(uint32_t prompt, uint32_t freed)
{
    return freed ? (freed - 1) * BLOCK + last_block(prompt) : 0;
}

void aq_kv_cross_ranks(uint32_t *rank, const float *value, uint32_t count)
{
    memcpy(rank, value, count * sizeof(*rank));
    for (uint32_t i = 0; i < count; i++)
        rank[i] &= INT32_MAX;
}

uint32_t aq_kv_cross_most_freed(const struct aq_kv_limits *l, uint32_t prompt)
{
    uint32_t last = last_block(prompt), free = prompt - l->recent_prompt;
    assert(prompt > l->recent_prompt);
    return free < last ? 0 : (free - last) / BLOCK + 1;
}

/* Sorts numbers below 2^31 by three digits of eleven bits; other: as much memory.  Returns where
 * they are. */
static const uint32_t *sort(uint32_t *number, uint32_t *other, uint32_t count)
{
    enum { BITS = 11, DIGITS = 1 << BITS };
    for (uint32_t shift = 0; shift < 32; shift += BITS) {
        uint32_t first[DIGITS] = {0}, sum = 0;
        for (uint32_t i = 0; i < count; i++)
            first[number[i] >> shift & (DIGITS - 1)]++;
        for (uint32_t d = 0; d < DIGITS; d++) {
            uint32_t of = first[d];
            first[d] = sum;
            sum += of;
        }
        for (uint32_t i = 0; i < count; i++)
            other[first[number[i] >> shift & (DIGITS - 1)]++] = number[i];
        uint32_t *sorted = other;
        other = number;
        number = sorted;
    }
    return number;
}

void aq_kv_cross_costs(uint32_t *cost, const uint32_t *rank, uint32_t *work,
                       const struct aq_kv_limits *l, uint32_t prompt)
{
    uint32_t count = prompt - l->recent_prompt, most = aq_kv_cross_most_freed(l, prompt);
    memcpy(work, rank, count * sizeof(*rank));
    const uint32_t *rising = sort(work, work + prompt, count);
    for (uint32_t i = 0; i < most; i++)
        cost[i] = rising[lost(prompt, i + 1) - 1];
}

/* How many of the rising costs are below a limit. */
static uint32_t below(const uint32_t *cost, uint32_t count, uint64_t limit)
{
    uint32_t low = 0;
    while (low < count) {
        uint32_t middle = low + (count - low) / 2;
        if (cost[middle] < limit)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* The same of a head, which has given up some already. */
static uint32_t head_below(const struct aq_kv_cross_heads *h, uint32_t layer, uint32_t head,
                           uint32_t most, uint64_t limit)
{
    uint32_t gone = h->gone[layer][head];
    uint32_t count = below(h->cost[layer] + (size_t)head * h->cost_stride, most, limit);
    return count > gone ? count : gone;
}

static uint64_t all_below(const struct aq_kv_cross_heads *h, uint32_t most, uint64_t limit)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < h->layers; i++) {
        for (uint32_t a = 0; a < h->kv_heads; a++)
            sum += head_below(h, i, a, most, limit);
    }
    return sum;
}

/* The heads give up the cheapest head-blocks until so many are left. */
static void give_up(const struct aq_kv_cross_heads *h, const struct aq_kv_limits *l,
                    uint32_t prompt, uint64_t target)
{
    uint64_t heads = (uint64_t)h->layers * h->kv_heads;
    uint64_t now = heads * aq_div_up(prompt, BLOCK);
    uint64_t count = now > target ? now - target : 0;
    uint32_t most = aq_kv_cross_most_freed(l, prompt);
    assert(count <= heads * most); /* a budget has room for what is never given up */
    /* The lowest limit that enough costs are below: all below it less one go, and of those that
     * are as much as many as are missing. */
    uint64_t low = 0, high = 1ull << 31;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (all_below(h, most, middle) < count)
            low = middle + 1;
        else
            high = middle;
    }
    uint64_t limit = low ? low - 1 : 0, less = all_below(h, most, limit);
    uint64_t equal = count > less ? count - less : 0;
    for (uint32_t i = 0; i < h->layers; i++) {
        for (uint32_t a = 0; a < h->kv_heads; a++) {
            uint32_t of_head = head_below(h, i, a, most, limit);
            uint64_t ties = head_below(h, i, a, most, limit + 1) - of_head;
            ties = aq_min_u64(ties, equal);
            equal -= ties;
            h->freed[i][a] = of_head + (uint32_t)ties;
        }
    }
    assert(equal == 0);
}

void aq_kv_cross_cut(const struct aq_kv_cross_heads *h, const struct aq_kv_limits *l,
                     uint32_t prompt)
{
    give_up(h, l, prompt, aq_kv_cross_target(l, h->kv_heads, h->layers));
}

void aq_kv_cross_cut_layer(uint32_t *gone, const uint32_t *cost, uint32_t cost_stride,
                           uint32_t kv_heads, const struct aq_kv_limits *l, uint32_t prompt)
{
    const uint32_t *none = gone;
    struct aq_kv_cross_heads heads = {.layers = 1,
                                      .kv_heads = kv_heads,
                                      .cost = &cost,
                                      .cost_stride = cost_stride,
                                      .gone = &none,
                                      .freed = &gone};
    memset(gone, 0, kv_heads * sizeof(*gone));
    if (aq_kv_cross_cuts_layers(l, prompt))
        give_up(&heads, l, prompt, layer_target(l, kv_heads));
}

uint32_t aq_kv_cross_left(uint32_t prompt, uint32_t freed)
{
    return prompt - lost(prompt, freed);
}

void aq_kv_cross_keep(uint32_t *position, const uint32_t *rank, const struct aq_kv_limits *l,
                      uint32_t prompt, uint32_t freed, const uint32_t *cost)
{
    uint32_t older = freed ? prompt - l->recent_prompt : 0, equal = lost(prompt, freed), count = 0;
    uint32_t border = freed ? cost[freed - 1] : 0;
    for (uint32_t j = 0; j < older; j++)
        equal -= rank[j] < border;
    for (uint32_t j = 0; j < prompt; j++) {
        bool lower = j < older && rank[j] < border;
        bool tie = j < older && rank[j] == border && equal > 0;
        equal -= tie;
        if (!lower && !tie)
            position[count++] = j;
    }
    assert(count == aq_kv_cross_left(prompt, freed));
}
