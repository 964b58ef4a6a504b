/* SPDX-License-Identifier: Apache-2.0
 * policy/planner.h - private to block.c (one block, the plain rule) and planner.c (the fastest of
 * many on a machine whose rates are known). */
#ifndef AQ_POLICY_PLANNER_H
#define AQ_POLICY_PLANNER_H

#include "policy/block.h"

/* ---- block.c ---- */

/* Fills b for this many seats and this placement: -EINVAL or -ENOMEM where there is no such
 * program. */
int aq_block_make(struct aq_block *b, const struct aq_block_inputs *in,
                  const struct aq_placement *placement, uint32_t seats, struct aq_err *reterr);
/* Bytes of each tier over its budget; none above 0: it fits. */
void aq_block_excess(double ret[AQ_TIER_COUNT], const struct aq_block *b,
                     const struct aq_block_inputs *in);
/* Seats of a micro-batch that the inputs ask for or can use. */
uint32_t aq_block_seats_wanted(const struct aq_block_inputs *in);

/* ---- planner.c ---- */

/* Replaces *best, a block that fits or an empty one, by the fastest that is found on the machine
 * in->hw, if that is clearly faster.  Shapes (seats, micro-batches, where KV is attended, whether
 * the host shares in products) are tried in the order of what a linear program says that they
 * could reach at best; it also says where their weights and KV live.  Shares are rounded, made to
 * fit by what the ledger says, and what fits is ranked by the simulator.  Placement or shape that
 * the inputs fix stay as they are.  0, also where nothing was found; -ENOMEM (of this process). */
int aq_planner_search(struct aq_block *best, const struct aq_block_inputs *in,
                      struct aq_err *reterr);
/* The same with everything as *best, a block that fits, has it, but for what the host takes over
 * where the inputs leave that free: its share of products, and of attention that is split. */
int aq_planner_share_work(struct aq_block *best, const struct aq_block_inputs *in,
                          struct aq_err *reterr);

#endif
