/* SPDX-License-Identifier: Apache-2.0
 * policy/kv_cross.h - one budget for the heads of all layers (KV-Compress, arXiv 2410.00161, as
 * IsaacRe/vllm-kvcompress schedules it, with head-blocks of 32 slots).  A prompt of n tokens is
 * held whole until the keys of its last layer are ranked.  Then, with b = 32:
 *   target = ceil(budget * heads of all layers / b) head-blocks stay of ceil(n / b) a head;
 *   of a head's keys but the newest `recent_prompt`, by rising rank, the i-th head-block that it
 *   gives up costs the rank of key number i b + tail - 1, where tail = n mod b, or b;
 *   the cheapest are given up, of equal costs first those of lower layers, heads and i;
 *   a head that gives up x of them loses its (x - 1) b + tail lowest keys (of equal ranks the lower
 *   position first), so that what is left fills whole head-blocks.
 * Where a layer keeps at most `layer_prompt` slots a head until then, a longer prompt is cut so to
 * ceil(layer_prompt * heads of a layer / b) head-blocks of the layer once that is ranked, at the
 * same prices; then what is left is cut over all layers.
 * Which heads keep how much is known only then.  How much all of them keep together follows from
 * lengths: aq_kv_cross_runs() is what admission counts.  Pure. */
#ifndef AQ_POLICY_KV_CROSS_H
#define AQ_POLICY_KV_CROSS_H

#include "policy/kv_policy.h"

/* ---- how much is held ---- Head-blocks that a head fills with the prompt lie packed, layer by
 * layer; then come runs for growth of one head-block a head (policy/kv_policy.h).  Of heads that
 * gave up nothing the first of these takes the tail. */

/* Is a prompt of so many tokens cut, once all layers are ranked?  And before, in each layer?  If
 * not, it is held whole until then. */
static inline bool aq_kv_cross_cuts(const struct aq_kv_limits *l, uint32_t prompt)
{
    return l->cross && prompt > l->keep_prompt;
}
static inline bool aq_kv_cross_cuts_layers(const struct aq_kv_limits *l, uint32_t prompt)
{
    return aq_kv_cross_cuts(l, prompt) && prompt > l->layer_prompt;
}
/* Head-blocks that the heads of so many layers keep of a prompt that is cut. */
uint64_t aq_kv_cross_target(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t layers);
/* Most packed runs of a sequence in these layers together. */
uint64_t aq_kv_cross_packed(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t layers,
                            uint32_t prompt);
/* Runs of a layer until the prompt is cut over all layers: packed ones, and one for the tail. */
uint32_t aq_kv_cross_whole(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t prompt);
/* Runs of a sequence in these layers together after its first `seen` positions: at most so many,
 * and as many as that until the cut. */
uint64_t aq_kv_cross_runs(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t layers,
                          uint32_t prompt, uint32_t seen);
/* Slots of the last, partly filled head-block of a prompt; 0: it is full. */
static inline uint32_t aq_kv_cross_tail(uint32_t prompt)
{
    return prompt % AQ_HEAD_BLOCK_SLOTS;
}

/* ---- the cut ---- Ranks are compared as whole numbers of the same order: of what is not negative
 * the bits of its float, a NaN above all numbers. */

void aq_kv_cross_ranks(uint32_t *rank, const float *value, uint32_t count);
/* Head-blocks that a head may give up at most. */
uint32_t aq_kv_cross_most_freed(const struct aq_kv_limits *l, uint32_t prompt);
/* The costs of all of these of a head with these ranks.  work: u32 [2][prompt]. */
void aq_kv_cross_costs(uint32_t *cost, const uint32_t *rank, uint32_t *work,
                       const struct aq_kv_limits *l, uint32_t prompt);
/* How many head-blocks each head gives up of those that the prompt fills, and has given up when its
 * layer was cut. */
struct aq_kv_cross_heads {
    uint32_t layers, kv_heads;
    const uint32_t *const *cost; /* of each layer: u32 [kv_heads][cost_stride] */
    uint32_t cost_stride;
    const uint32_t *const *gone; /* of each layer: u32 [kv_heads] */
    uint32_t *const *freed;      /* of each layer: u32 [kv_heads] */
};
void aq_kv_cross_cut(const struct aq_kv_cross_heads *h, const struct aq_kv_limits *l,
                     uint32_t prompt);
/* The same of the heads of a layer, when it is cut, from their costs; all of them give up none
 * where layers are not cut. */
void aq_kv_cross_cut_layer(uint32_t *gone, const uint32_t *cost, uint32_t cost_stride,
                           uint32_t kv_heads, const struct aq_kv_limits *l, uint32_t prompt);
/* Slots of a head that has given up so many head-blocks. */
uint32_t aq_kv_cross_left(uint32_t prompt, uint32_t freed);
/* Their positions, rising, which may take the place of the ranks; cost: those of all
 * head-blocks. */
void aq_kv_cross_keep(uint32_t *position, const uint32_t *rank, const struct aq_kv_limits *l,
                      uint32_t prompt, uint32_t freed, const uint32_t *cost);

#endif
