/* SPDX-License-Identifier: Apache-2.0
 * policy/planner_search.h - private to planner.c (the search) and planner_small.c (its last stage,
 * where few seats fit): what is searched and what is known so far. */
#ifndef AQ_POLICY_PLANNER_SEARCH_H
#define AQ_POLICY_PLANNER_SEARCH_H

#include "policy/planner.h"
#include "policy/shares.h"

enum {
    AQ_SEARCH_SEATS_MAX = 1024,
    AQ_SEARCH_BATCHES_MAX = 3,
    AQ_SEARCH_ARMS_MAX = 64,
    AQ_SEARCH_SEATS_TRIED_MAX = 48,
};

/* What candidates have in common but for their seats. */
struct aq_search_arm {
    struct aq_shares_shape shape; /* without seats */
    /* What the ledger of a candidate of so many seats said beside weights and KV; 0 seats: none
     * yet. */
    double overhead[AQ_TIER_COUNT];
    uint32_t overhead_seats;
    uint32_t unfit; /* so many seats and more do not fit */
    uint32_t tried[AQ_SEARCH_SEATS_TRIED_MAX];
    double bound[AQ_SEARCH_SEATS_TRIED_MAX]; /* 0 and less: done with */
    double disk[AQ_SEARCH_SEATS_TRIED_MAX];  /* share of the KV there that gives this bound */
    uint32_t count;
};

struct aq_search {
    const struct aq_block_inputs *given;
    struct aq_forecast_work work;
    struct aq_shares_sums sums;
    struct aq_search_arm arm[AQ_SEARCH_ARMS_MAX];
    uint32_t arm_count;
    uint64_t ops, ops_max; /* of this stage */
    struct aq_block now, best;
    int best_arm;         /* -1: what the caller came with */
    double rate, fastest; /* tokens per second generated: by the best, by any so far */
    double last;          /* by the one judged last */
    bool no_memory;       /* some candidate could not be built for want of memory */
};

/* Rates s->now; keeps it if it is the best. */
int aq_search_judge(struct aq_search *s, int arm, struct aq_err *reterr);
/* Shares that can be written down. */
void aq_search_round(struct aq_shares_found *f, const struct aq_shares_opts *o);
/* Makes s->now of them; false: it does not fit. */
bool aq_search_make_fits(struct aq_search *s, const struct aq_shares_opts *o,
                         const struct aq_shares_found *f);
struct aq_shares_found aq_search_shares(const struct aq_plan *p);

/* ---- planner_small.c ---- */

/* Where the best has few seats: the fastest that steps from it and from others like it lead to, as
 * far as s->ops_max goes. */
int aq_search_few_seats(struct aq_search *s, struct aq_err *reterr);

#endif
