/* SPDX-License-Identifier: Apache-2.0
 * policy/admit.h - whether a sequence may take a seat: a pure function of lengths, seats and pages,
 * so that generate, planner and simulator count the same passes.  Lengths are bounded (prompt + max
 * new tokens), so admission can prove that the pages of all seated sequences never exceed the
 * pool. */
#ifndef AQ_POLICY_ADMIT_H
#define AQ_POLICY_ADMIT_H

#include "policy/kv_kinds.h"

/* The keys of one sequence over time, in a layer of one kind: `now` slots after the coming pass,
 * one more with each later pass, but never more than `slots`, until last - now more passes are
 * over; then the pages are free.  now <= last; last - now is the same for all kinds. */
struct aq_admit_length {
    uint32_t now, last;
    uint32_t slots; /* fewer than `last` where keys are dropped; UINT32_MAX: no limit */
    /* The first slots, in whole pages, lie in pages of the entry before as well: the same in all
     * kinds, where no key is dropped. */
    uint32_t prefix;
    /* Where layers have packed runs of their own: these pages in all layers of the kind together,
     * beside the slots above, which are of growth.  Where heads of all layers share
     * (policy/kv_cross.h): `whole` pages of a layer in the coming pass, in which the prompt is not
     * cut yet (0: it is). */
    uint32_t whole;
    uint64_t packed;
};

struct aq_admit_limits {
    uint64_t pages;                  /* of the pool */
    uint32_t page_slots;             /* tokens of one layer that a page holds */
    uint32_t seats_free;             /* in this micro-batch */
    uint32_t prompt_tokens;          /* new prompt tokens this micro-batch may take in this pass */
    const struct aq_kv_kinds *kinds; /* of the model's layers */
};

/* Most pages that are ever in use at once, in all layers together.
 *   seated [count][kinds]; sequences end at the latest when they reach `last`, and a page stays
 * until the last of those whose prefix lies in it has ended.  O(count^2). */
uint64_t aq_admit_peak_pages(const struct aq_admit_limits *limits,
                             const struct aq_admit_length *seated, uint32_t count);

/* May the newcomer, one entry of `seated`, take a seat, given the `count` others, the sequences
 * seated in the whole block, and the prompt tokens already admitted to this micro-batch for the
 * pass?  prompt_tokens: its own that are to be computed.  More than the limit are admitted alone.
 * seated [count + 1][kinds]. */
bool aq_admit_one(const struct aq_admit_limits *limits, const struct aq_admit_length *seated,
                  uint32_t count, uint32_t admitted_tokens, uint32_t prompt_tokens);
/* Lengths of a sequence from its prompt on, under the limits of its KV policy and in a model with
 * kv_heads heads. */
struct aq_admit_length aq_admit_length_of(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                          uint32_t prompt_tokens, uint32_t max_new);
/* The same of one whose prompt is cut over all layers, of which the kind has so many: `rows` new
 * rows after the coming pass, `left` in later ones; whole: until then the prompt is held whole.
 * Its seat turns before it takes another row, so no other seat's count goes beyond the coming pass
 * while the prompt is whole. */
struct aq_admit_length aq_admit_length_cross(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                             uint32_t layers, uint32_t prompt_tokens, uint32_t rows,
                                             uint32_t left, bool whole);
/* The same of one whose prompt is cut and has `packed` runs in all layers of the kind: behind these
 * each layer has runs for growth, which begin with up to `begun` slots. */
struct aq_admit_length aq_admit_length_apart(uint32_t begun, uint64_t packed, uint32_t rows,
                                             uint32_t left);
/* The same of a seated sequence that has pages for `held` slots and generates `left` tokens more.
 * The one rule is an upper bound for two kinds of seats: a seat whose micro-batch has begun the
 * coming pass already holds one slot fewer than the result says; a seat that turns after the
 * newcomer's frees its pages one turn after the newcomer's pass has begun, so one pass later than
 * its own count. */
struct aq_admit_length aq_admit_length_seated(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                              uint32_t prompt_tokens, uint32_t held, uint32_t left);

#endif
