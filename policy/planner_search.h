/* SPDX-License-Identifier: Apache-2.0
 * policy/planner_search.h - private to planner.c (the search), planner_small.c (its last stage,
 * where few seats fit) and planner_try.c (one candidate): the candidates of the search and what is
 * known of them so far. */
#ifndef AQ_POLICY_PLANNER_SEARCH_H
#define AQ_POLICY_PLANNER_SEARCH_H

#include "policy/planner.h"
#include "policy/shares.h"

enum {
    AQ_SEARCH_SEATS_MAX = 1024,
    AQ_SEARCH_BATCHES_MAX = 3,
    AQ_SEARCH_ARMS_MAX = 64,
    AQ_SEARCH_SEATS_TRIED_MAX = 48,
    /* Blocks that the work makes; more are alike in how they end. */
    AQ_SEARCH_BLOCKS_MAX = 4,
    AQ_SEARCH_KINDS = AQ_SEARCH_BATCHES_MAX * AQ_SEARCH_BLOCKS_MAX,
};

/* An arm of the search: candidates that differ in their seats only. */
struct aq_search_arm {
    struct aq_shares_shape shape; /* without seats */
    /* Bytes beside weights and KV on the ledger of a candidate with overhead_seats seats; 0 seats:
     * no ledger yet. */
    double overhead[AQ_TIER_COUNT];
    uint32_t overhead_seats;
    uint32_t unfit; /* this many seats and more do not fit */
    uint32_t tried[AQ_SEARCH_SEATS_TRIED_MAX];
    double bound[AQ_SEARCH_SEATS_TRIED_MAX];   /* of the rate; 0 and less: tried already */
    double disk[AQ_SEARCH_SEATS_TRIED_MAX];    /* share of the KV on disk that gives this bound */
    double reached[AQ_SEARCH_SEATS_TRIED_MAX]; /* of this bound, by the simulator; 0: not rated */
    uint32_t count;
};

/* The fastest candidate of a kind: of a number of micro-batches, and of blocks that the work
 * makes. */
struct aq_search_finalist {
    struct aq_shares_shape shape;
    struct aq_shares_found found;
    double rate; /* 0: there is none */
};

struct aq_search {
    const struct aq_block_inputs *given;
    struct aq_forecast_work work;
    struct aq_shares_sums sums;
    struct aq_search_arm arm[AQ_SEARCH_ARMS_MAX];
    uint32_t arm_count;
    uint64_t ops, ops_max; /* of this stage */
    double least;          /* of the best rate: candidates with a lower bound are not tried */
    struct aq_search_finalist finalist[AQ_SEARCH_KINDS];
    struct aq_block now, best;
    int best_arm;         /* -1: the caller's block is still the best */
    double rate, fastest; /* tokens generated per second: of the best block, of any block so far */
    double last;          /* the same of the block judged last */
    bool no_memory;       /* some candidate could not be built for want of memory */
};

/* ---- planner_try.c ---- */

/* Rates s->now, and keeps the block if none was better. */
int aq_search_judge(struct aq_search *s, int arm, struct aq_err *reterr);
/* Rounds shares to what the notation of --placement can say. */
void aq_search_round(struct aq_shares_found *f, const struct aq_shares_opts *o);
/* A share of split attention rounded so that both sides have whole seats. */
double aq_search_round_split(double percent, const struct aq_shares *kv, uint32_t seats);
/* Where the kind of a block of this shape stands among the finalists. */
uint32_t aq_search_kind(const struct aq_search *s, const struct aq_block_shape *b);
/* Makes s->now with these shares, fitting or not; negative: it cannot be built. */
int aq_search_make(struct aq_search *s, const struct aq_shares_opts *o,
                   const struct aq_shares_found *f);
/* Does a block fit the budgets; does s->now? */
bool aq_search_block_fits(const struct aq_block *b, const struct aq_block_inputs *in);
bool aq_search_fits(const struct aq_search *s);
/* Makes s->now with these shares; false: the block does not fit. */
bool aq_search_make_fits(struct aq_search *s, const struct aq_shares_opts *o,
                         const struct aq_shares_found *f);
struct aq_shares_found aq_search_shares(const struct aq_plan *p);

/* ---- planner_small.c ---- */

/* Where the best block has few seats: searches in steps from this block and from similar ones, as
 * long as s->ops_max allows. */
int aq_search_few_seats(struct aq_search *s, struct aq_err *reterr);

#endif
