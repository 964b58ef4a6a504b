/* SPDX-License-Identifier: Apache-2.0
 * policy/admit.h - who may sit down: a pure function of lengths, seats and pages, so that generate,
 * planner and simulator count the same passes.  Lengths are bounded (prompt + max new tokens), so
 * it can prove that the pages of all seated sequences never exceed the pool. */
#ifndef AQ_POLICY_ADMIT_H
#define AQ_POLICY_ADMIT_H

#include "policy/kv_policy.h"

/* One sequence's keys over time: `now` slots after the coming pass, one more with each pass after
 * it, but never more than `slots`, until last - now more passes are over; then its pages are free.
 * now <= last. */
struct aq_admit_length {
    uint32_t now, last;
    uint32_t slots; /* where keys are dropped it holds fewer than `last`; UINT32_MAX: no limit */
};

/* Most pages that are ever in use at once, pages of `page_slots` slots per layer-set.
 *   seated [count]; sequences end at the latest when they reach `last`.  O(count^2). */
uint64_t aq_admit_peak_pages(const struct aq_admit_length *seated, uint32_t count,
                             uint32_t page_slots);

struct aq_admit_limits {
    uint64_t pages;         /* of the pool */
    uint32_t page_slots;    /* tokens a page holds (of each layer) */
    uint32_t seats_free;    /* in this micro-batch */
    uint32_t prompt_tokens; /* new prompt tokens this micro-batch may take in this pass */
};

/* May a sequence with this prompt and these lengths sit down, given those seated in the whole block
 * and the prompt tokens already admitted to this micro-batch for the pass?  A prompt longer than
 * the token limit is admitted alone. seated [count] with room for one more entry (it is used as
 * workspace). */
bool aq_admit_one(const struct aq_admit_limits *limits, struct aq_admit_length *seated,
                  uint32_t count, uint32_t admitted_tokens, uint32_t prompt_tokens,
                  struct aq_admit_length newcomer);
/* Lengths of a sequence from its prompt on, under the limits of its KV policy and in a model of so
 * many KV heads. */
struct aq_admit_length aq_admit_length_of(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                          uint32_t prompt_tokens, uint32_t max_new);
/* The same of one that sits: it holds `held` slots and generates `left` tokens more.  One rule for
 * seats whose micro-batch has begun the coming pass already (they hold a slot fewer than this says)
 * and for those that turn after the newcomer's (they let go of their pages a turn after its pass
 * has begun, so a pass later than they count). */
struct aq_admit_length aq_admit_length_seated(const struct aq_kv_limits *limits, uint32_t kv_heads,
                                              uint32_t prompt_tokens, uint32_t held, uint32_t left);

#endif
