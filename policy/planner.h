/* SPDX-License-Identifier: Apache-2.0
 * policy/planner.h - private to block.c (one block, by the plain rule) and planner.c (the fastest
 * of many blocks, on a machine whose rates are known). */
#ifndef AQ_POLICY_PLANNER_H
#define AQ_POLICY_PLANNER_H

#include "policy/block.h"

/* ---- block.c ---- */

/* Fills b for this many seats and this placement.  -EINVAL, -ENOMEM: no program can be built. */
int aq_block_make(struct aq_block *b, const struct aq_block_inputs *in,
                  const struct aq_placement *placement, uint32_t seats, struct aq_err *reterr);
/* Bytes of each tier over its budget; the block fits if none is above 0. */
void aq_block_excess(double ret[AQ_TIER_COUNT], const struct aq_block *b,
                     const struct aq_block_inputs *in);
/* Seats of a micro-batch that the inputs ask for or can use. */
uint32_t aq_block_seats_wanted(const struct aq_block_inputs *in);

/* ---- planner.c ---- */

/* Replaces *best, a block that fits or an empty one, by the fastest block found for the machine
 * in->hw, if that is clearly faster.  For each shape (seats, micro-batches, side of attention,
 * products on the host or not) a linear program gives an upper bound of the rate, and where weights
 * and KV should live; shapes are tried in the order of this bound.  Shares are rounded and made to
 * fit the ledger, and blocks that fit are ranked by the simulator.  A placement or shape that the
 * inputs fix stays.  0, also where nothing was found; -ENOMEM (of this process). */
int aq_planner_search(struct aq_block *best, const struct aq_block_inputs *in,
                      struct aq_err *reterr);
/* The same search over two choices only, where the inputs leave them free: the host's share of
 * products, and of split attention.  All else stays as in *best, a block that fits. */
int aq_planner_share_work(struct aq_block *best, const struct aq_block_inputs *in,
                          struct aq_err *reterr);

/* Replaces *best, a block that fits, by one with attention beside products (struct aq_plan) and
 * the same placement, for about as many seats in as many micro-batches or more, if that is
 * faster.  Only where the inputs leave it to the planner and it is known how attention gains from
 * threads. */
int aq_planner_beside(struct aq_block *best, const struct aq_block_inputs *in,
                      struct aq_err *reterr);

/* Tokens generated per second that a block for these inputs is predicted to reach: by blocks of
 * sequences of their mean lengths, 0 where in->hw has no rate for one of its ops; and where seats
 * are refilled and all lengths are known by the whole work played with these, 0 where it was not,
 * or is too long for that.  Orders its program. */
struct aq_planner_rate {
    double mean, played;
};
int aq_planner_rate(struct aq_planner_rate *ret, struct aq_block *b,
                    const struct aq_block_inputs *in, struct aq_err *reterr);
/* How many times as fast a is as b; 0 where a has no rate. */
double aq_planner_gain(const struct aq_planner_rate *a, const struct aq_planner_rate *b);

/* Sizes of a staging slot of KV that are tried where much of the prompts is shared, which crosses
 * the link, or is read from disk, once for each part: in->stage_bytes, the usual one first. */
enum { AQ_PLANNER_STAGES = 3 };
extern const uint64_t aq_planner_stages[AQ_PLANNER_STAGES];
/* Are others than the first worth trying for the inputs of this block? */
bool aq_planner_tries_stages(const struct aq_block *b, const struct aq_block_inputs *in);

#endif
