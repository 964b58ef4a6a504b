/* SPDX-License-Identifier: Apache-2.0
 * policy/forecast.h - what a block will do on a machine: the passes of a mean sequence, annotated
 * and simulated.  Pure.
 *
 * The forecast of a block assumes that all seats hold sequences of the mean length and that prefill
 * has passes of its own; blocks are ranked by this forecast.  The forecast of a job plays the seats
 * pass by pass, with the lengths of its sequences. */
#ifndef AQ_POLICY_FORECAST_H
#define AQ_POLICY_FORECAST_H

#include "policy/block.h"
#include "policy/lengths.h"
#include "policy/simulate.h"

struct aq_forecast_work {
    const struct aq_model_steps *steps;
    uint64_t sequences;   /* 0: unknown */
    double prompt, total; /* tokens of a mean sequence: prompt; prompt and generated */
    double shared;        /* of its prompt: in common with the one before it, in steps of 32 */
    bool refill, serial;
    bool alike; /* every sequence has the mean's lengths, as far as is known */
};

struct aq_forecast {
    double prefill_pass_s;   /* a pass with as many prompts as fit */
    uint32_t prefill_passes; /* until all seats are taken */
    double prefill_s;        /* all of these passes */
    double decode_pass_s;    /* a steady decode pass */
    /* Of a steady decode pass. */
    struct aq_sim_lane lane[AQ_LANE_COUNT];
    enum aq_lane binding_lane;
    enum aq_resource binding;
    double prompts, prompt_tokens, tokens; /* of a block */
    double block_s; /* prefill, and decode passes until the mean sequence has ended */
    double blocks;  /* of the whole work; 0: unknown */
    /* Of the whole work, whose last block has fewer seats taken (aq_forecast_rest).  Passes with
     * prompt and decode rows count as decode.  0: unknown. */
    double all_prefill_s, all_decode_s;
    double gen_tok_s; /* of the whole work, or of one block after the other */
};

/* The sums of a workload, or its longest sequences where they are unknown. */
void aq_forecast_mean(struct aq_forecast_work *w, const struct aq_block_inputs *in);
/* Sequences of the last block of the work, which runs as long as any other: what whole blocks of
 * `seats` leave over, or, where seats are refilled and lengths differ, half the seats, as one after
 * the other ends and finds no sequence that waits. */
double aq_forecast_rest(const struct aq_forecast_work *w, double seats);

/* What a sequence holds in the layers of one kind. */
struct aq_forecast_held {
    uint32_t slots; /* after the pass */
    bool drops;     /* the sequence will drop keys */
    bool full;      /* decode: the new key takes the slot of a dropped one */
    /* Of keys that are dropped in bulk: once in so many passes so many slots close up (0: never),
     * and `slots` is the mean between two drops. */
    uint32_t drop_every, drop_leaves;
    uint64_t stat_pairs; /* aq_kv_policy_rank_pairs of a prompt whose sequence drops keys; else 0 */
    bool sums_all;       /* likewise aq_kv_policy_sums_all: some of its sums may be there */
};
/* Of a sequence in each kind of layers of a plan, after its first `seen` positions. */
void aq_forecast_held_of(struct aq_forecast_held ret[AQ_KV_KINDS_MAX],
                         const struct aq_kv_kinds *kinds, const struct aq_kv_policy *user,
                         uint32_t head_dim, const struct aq_length *length, uint32_t seen);

/* Tokens of a mean prompt that are not computed where sequences share pages of so many slots:
 * pages that steps do not fill are lost, less than one of each. */
uint32_t aq_forecast_shared(const struct aq_forecast_work *w, uint32_t page_slots);
/* Tokens of a mean prompt that are not computed where a sequence owns its slots, because a policy
 * drops keys, a format's prompts see no codes, or a host attends (aq_seats_copies): of all but the
 * first sequence of a part in each pass. */
uint32_t aq_forecast_copied(const struct aq_forecast_work *w, const struct aq_kv_kinds *kinds,
                            const struct aq_kv_policy *user);

/* Rows of a micro-batch in a pass, where its first `seats` seats all do the same. */
struct aq_forecast_rows {
    uint32_t seats;
    uint32_t prompt; /* tokens of each seat's prompt; 0: the seats decode */
    uint32_t shared; /* the first so many of them are not computed, or moved, */
    bool leads;      /* but by the first seat of each part, which has them; always in decode */
    uint32_t copied; /* where sequences own their slots: the first so many are not computed, but by
                        the first seat of each part, whatever `leads` says */
    const struct aq_forecast_held *held; /* [kinds] */
};
/* *ret: an element of aq_pass_shapes_new(). */
void aq_forecast_shape(struct aq_pass_shape *ret, const struct aq_model_steps *steps,
                       const struct aq_plan *plan, const struct aq_forecast_rows *rows);

/* -EINVAL: the machine has no rate for an op; -ENOMEM. */
int aq_forecast_make(struct aq_forecast *ret, const struct aq_block *block,
                     const struct aq_forecast_work *work, const struct aq_hardware *hw,
                     struct aq_err *reterr);

/* Makes the forecast of the whole work exact for sequences of these lengths (sequence i of the work
 * has length[i * count / sequences]) by playing the job: all passes where they are few, a sample
 * where they are many.  Leaves *io as it is where the number of sequences is unknown. */
int aq_forecast_job(struct aq_forecast *io, const struct aq_block *block,
                    const struct aq_forecast_work *work, const struct aq_length *length,
                    uint32_t count, const struct aq_hardware *hw, struct aq_err *reterr);

/* Steady decode passes as the forecast sees them, with every op's start and end.  Close *ret. */
int aq_forecast_timeline(struct aq_sim_result *ret, const struct aq_block *block,
                         const struct aq_forecast_work *work, const struct aq_hardware *hw,
                         uint32_t passes, struct aq_err *reterr);

#endif
