/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/admit.h"

#include "policy/kv_cross.h"

/* Pages of a sequence in all layers, after `passes` more passes. */
static uint64_t pages_at(const struct aq_admit_limits *l, const struct aq_admit_length *of,
                         uint32_t passes)
{
    uint64_t sum = 0;
    for (uint32_t k = 0; k < l->kinds->count; k++) {
        uint64_t slots = aq_min_u64((uint64_t)of[k].now + passes, of[k].slots);
        uint64_t layers = l->kinds->kind[k].layers;
        uint64_t pages =
            of[k].packed + layers * aq_div_up(aq_kv_kinds_paged(l->kinds, slots), l->page_slots);
        if (passes == 0)
            pages = aq_max_u64(pages, layers * of[k].whole);
        sum += pages;
    }
    return sum;
}

/* Pages of a prefix of so many slots. */
static uint64_t prefix_pages(const struct aq_admit_limits *l, uint32_t slots)
{
    return (uint64_t)l->kinds->layers * (slots / l->page_slots);
}

static uint32_t passes_left(const struct aq_admit_length *of)
{
    return of->last - of->now;
}

uint64_t aq_admit_peak_pages(const struct aq_admit_limits *limits,
                             const struct aq_admit_length *seated, uint32_t count)
{
    /* The number of pages in use falls only when a sequence ends, or after the coming pass, when
     * prompts are cut: the peak is in that pass, or in the last one of some sequence, after last -
     * now more passes. */
    uint32_t kinds = limits->kinds->count;
    uint64_t peak = 0;
    for (uint32_t e = 0; e <= count; e++) {
        uint32_t passes = e < count ? passes_left(seated + (size_t)e * kinds) : 0;
        uint64_t pages = 0;
        uint32_t prefix = 0; /* what all since the last one that is left have of its pages */
        for (uint32_t i = 0; i < count; i++) {
            const struct aq_admit_length *of = seated + (size_t)i * kinds;
            prefix = of->prefix < prefix ? of->prefix : prefix;
            if (passes_left(of) < passes)
                continue;
            pages += pages_at(limits, of, passes) - prefix_pages(limits, prefix);
            prefix = UINT32_MAX;
        }
        peak = aq_max_u64(peak, pages);
    }
    return peak;
}

bool aq_admit_one(const struct aq_admit_limits *limits, const struct aq_admit_length *seated,
                  uint32_t count, uint32_t admitted_tokens, uint32_t prompt_tokens)
{
    if (limits->seats_free == 0)
        return false;
    if (admitted_tokens > 0 && (uint64_t)admitted_tokens + prompt_tokens > limits->prompt_tokens)
        return false;
    /* The common case: all sequences fit at their longest, so no peak needs to be computed.  What
     * they hold at any time is a part of all pages that they ever hold, each counted once. */
    uint64_t most = 0;
    for (uint32_t i = 0; i <= count; i++) {
        const struct aq_admit_length *of = seated + (size_t)i * limits->kinds->count;
        most += aq_max_u64(pages_at(limits, of, 0), pages_at(limits, of, passes_left(of)));
        most -= i ? prefix_pages(limits, of->prefix) : 0;
    }
    return most <= limits->pages || aq_admit_peak_pages(limits, seated, count + 1) <= limits->pages;
}

/* Slots that runs have room for are counted as held.  most: slots that the sequence comes to hold
 * unless it drops keys. */
static struct aq_admit_length length_of(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                        uint32_t prompt_tokens, uint32_t now, uint32_t left,
                                        uint32_t most)
{
    uint32_t slots = limits->slots < most ? limits->slots : most;
    uint32_t spare = aq_kv_limits_spare(limits, kv_heads, prompt_tokens);
    now += spare;
    return (struct aq_admit_length){.now = now, .last = now + left, .slots = slots + spare};
}

struct aq_admit_length aq_admit_length_seated(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                              uint32_t prompt_tokens, uint32_t held, uint32_t left)
{
    return length_of(limits, kv_heads, prompt_tokens, held + 1, left, held + left);
}

struct aq_admit_length aq_admit_length_cross(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                             uint32_t layers, uint32_t prompt_tokens, uint32_t rows,
                                             uint32_t left, bool whole)
{
    uint32_t now = aq_kv_cross_tail(prompt_tokens) + rows;
    return (struct aq_admit_length){
        .now = now,
        .last = now + left,
        .slots = now + left - (rows > 0),
        .whole = whole ? aq_kv_cross_whole(limits, kv_heads, prompt_tokens) : 0,
        .packed = aq_kv_cross_packed(limits, kv_heads, layers, prompt_tokens),
    };
}

struct aq_admit_length aq_admit_length_apart(uint32_t begun, uint64_t packed, uint32_t rows,
                                             uint32_t left)
{
    uint32_t now = begun + rows;
    return (struct aq_admit_length){
        .now = now, .last = now + left, .slots = now + left - 1, .packed = packed};
}

struct aq_admit_length aq_admit_length_of(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                          uint32_t prompt_tokens, uint32_t max_new)
{
    /* The key of the last token is never computed. */
    uint32_t held = aq_kv_limits_held(limits, prompt_tokens, prompt_tokens);
    uint32_t left = max_new ? max_new - 1 : 0;
    return length_of(limits, kv_heads, prompt_tokens, held, left, held + left);
}
