/* SPDX-License-Identifier: Apache-2.0
 * policy/shares.h - where the weights and the KV of a block of a given shape should live: a linear
 * program over the shares of the tiers.  It minimises the time of the block's passes in a simple
 * model: each lane and each shared resource takes its work over its rate, and everything overlaps.
 * The simulator says how long a program takes, and the ledger whether it fits.  Pure. */
#ifndef AQ_POLICY_SHARES_H
#define AQ_POLICY_SHARES_H

#include "policy/block.h"
#include "policy/forecast.h"

/* The shape that the shares are chosen for. */
struct aq_shares_shape {
    uint32_t micro_batch, micro_batches;
    enum aq_attention_side side; /* where KV outside the device's memory is attended */
    double split_host;           /* split attention: the host's percentage; 0: chosen */
    bool host_products;          /* the host may compute products with panels in its memory */
    double kv_disk;              /* share of that KV on disk; less than 0: chosen */
    enum aq_tier hidden;         /* home of the hidden states, all of them */
    double ring_steps;           /* as in struct aq_block_inputs */
    uint32_t prompt_tokens;      /* admitted by a micro-batch per pass; 0: by the plain rule */
};

/* Sums over the steps, counted once for many shapes. */
struct aq_shares_sums {
    double matrices, others; /* bytes: the layers' matrices; token table and head */
    double unpacked;         /* bytes of the layers' matrices in the compute type */
    double row_flops, head_flops;
};
void aq_shares_sum_up(struct aq_shares_sums *ret, const struct aq_block_inputs *in);

struct aq_shares_opts {
    const struct aq_block_inputs *in; /* with rates; a placement in it pins the shares */
    const struct aq_shares_sums *sums;
    const struct aq_forecast_work *work;
    struct aq_shares_shape shape;
    double overhead[AQ_TIER_COUNT]; /* known bytes beside weights and KV */
};

struct aq_shares_found {
    struct aq_placement placement; /* not rounded */
    double host_products;          /* percent of the host's panels */
    double split_host;             /* with split attention: the host's percentage of the KV outside
                                      the device's memory; else 0 */
    double decode_pass_s, prefill_s;
    double gen_tok_s; /* of the work: an upper bound for programs of this shape, by this model */
};

/* The inputs of a block of this shape. */
struct aq_block_inputs aq_shares_inputs(const struct aq_shares_opts *o);

/* -ERANGE: such a block does not fit, or the machine has no rate for it. */
int aq_shares_solve(struct aq_shares_found *ret, const struct aq_shares_opts *o,
                    struct aq_err *reterr);

/* Bytes of the weights, their ring and the KV by tier, as the program counts them. */
void aq_shares_used(double ret[AQ_TIER_COUNT], const struct aq_shares_opts *o,
                    const struct aq_shares_found *f);

#endif
