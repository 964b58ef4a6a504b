/* SPDX-License-Identifier: Apache-2.0
 * policy/search.h - private to block.c (one candidate, the plain rule) and search.c (candidates
 * ranked by the simulator). */
#ifndef AQ_POLICY_SEARCH_H
#define AQ_POLICY_SEARCH_H

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

/* ---- share.c ---- */

/* Replaces *best, a block that fits, by one of the same seats and placement whose host computes a
 * share of the products with what streams from its memory, if the simulator finds one of a few that
 * fit clearly faster; where the machine's rates are known.  0, also where none is; -ENOMEM (of this
 * process). */
int aq_block_share_products(struct aq_block *best, const struct aq_block_inputs *in,
                            struct aq_err *reterr);

/* ---- search.c ---- */

/* Replaces *best, a block that fits or an empty one, by the fastest of a small grid of others that
 * fit, if that is clearly faster: micro-batches, seats, where the KV lives and is attended; of the
 * weights as much near the products as there is room for.  in->hw is there.  0, also where nothing
 * was found; -ENOMEM (of this process). */
int aq_block_search(struct aq_block *best, const struct aq_block_inputs *in, struct aq_err *reterr);

#endif
