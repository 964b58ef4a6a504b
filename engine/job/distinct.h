/* SPDX-License-Identifier: Apache-2.0
 * engine/job/distinct.h - the lengths of a job's sequences in the order in which they run, and what
 * each prompt has in common with the one before it: plans are made for distinct tokens. */
#ifndef AQ_ENGINE_JOB_DISTINCT_H
#define AQ_ENGINE_JOB_DISTINCT_H

#include "engine/job/alike.h"
#include "engine/options/options.h"
#include "policy/lengths.h"

struct aq_request;

/* Tokens that each sequence of a request shares with the one before it; of a single one as many as
 * it may share with any.  Those whose logits are asked for are computed by each. */
uint32_t aq_distinct_within(const struct aq_request *r);

/* Fewest tokens of prompts, of so many in all, that another order must save. */
uint64_t aq_distinct_least(enum aq_share_prefixes when, uint64_t tokens);
/* The order in which the prompts run, items [0, count): those that begin alike together, where that
 * saves `least` tokens or more, and any.  *ret_alike: the tokens saved.  NULL: as they are, also
 * where there is no memory for the order. */
uint64_t *aq_distinct_order(const struct aq_alike *a, uint64_t count, uint64_t least,
                            bool (*wants)(void *user, uint64_t item), void *user,
                            uint64_t *ret_alike);

/* A list of lengths that is being made. */
struct aq_distinct {
    struct aq_lengths *lengths;
    const struct aq_alike *alike; /* NULL: nothing is shared */
    uint64_t shared_sum;          /* tokens that need not be computed */
    bool begun;
    uint64_t item; /* the last one */
    uint32_t ends; /* the last sequence begins with the first so many of its item's first prompt */
};

/* Adds so many sequences of an item, whose sequences may come in several calls; each.shared:
 * aq_distinct_within.  Without the memory the list is empty.  Returns whether there was. */
bool aq_distinct_add(struct aq_distinct *d, uint64_t item, struct aq_length each,
                     uint32_t sequences);

#endif
