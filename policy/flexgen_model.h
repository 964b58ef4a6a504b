/* SPDX-License-Identifier: Apache-2.0
 * policy/flexgen_model.h - a model of the engine of FlexGen and H2O: its loop over (token, step,
 * micro-batch) as a program that policy/simulate.h plays, so that published figures can be
 * predicted, and each rule of its schedule switched off to see what the rule costs.  With every
 * rule off the program is this engine's: the same order of visits, rings of two, no barriers.
 * Pure.
 *
 * Facts: Sheng et al., "FlexGen", ICML 2023, and FMInference/FlexLLMGen at 004ffef; Zhang et al.,
 * "H2O", NeurIPS 2023, and FMInference/H2O at ac75c2a.  Its loop asks for the next token's
 * first weights during the last step, as this engine does, so there is no rule for that. */
#ifndef AQ_POLICY_FLEXGEN_MODEL_H
#define AQ_POLICY_FLEXGEN_MODEL_H

#include "policy/simulate.h"

/* In the order in which a staircase from their schedule to ours switches them off. */
enum aq_flexgen_rule {
    AQ_FLEXGEN_PADDING,       /* every prompt is as long as the longest */
    AQ_FLEXGEN_ALL_LOGITS,    /* prefill makes the logits of every prompt token */
    AQ_FLEXGEN_WHOLE_TENSORS, /* a tensor lives where its midpoint falls: "20 %" is 8.3 % */
    AQ_FLEXGEN_TABLE_TWICE, /* the token table is kept twice, and both go to the device each pass */
    AQ_FLEXGEN_FIRST_SLOT,  /* the next step's weights move in the first micro-batch's slot only */
    AQ_FLEXGEN_BARRIER,     /* all ends before the next (step, micro-batch) begins */
    AQ_FLEXGEN_ONE_QUEUE,   /* copies to the device queue behind weights, and the device waits for
                               hidden states that it does not need yet */
    AQ_FLEXGEN_WHOLE_READS, /* a tensor is read from disk to its end before the link sees it */
    AQ_FLEXGEN_PAGEABLE,    /* KV and unpinned weights pass through pageable memory */
    AQ_FLEXGEN_SERIAL_HOST, /* the device waits while the host attends */
    AQ_FLEXGEN_SLOW_HOST,   /* the host attends at their rate */
    AQ_FLEXGEN_UNPACK_EACH, /* packed weights and KV are unpacked in memory for every micro-batch */
    AQ_FLEXGEN_SLOW_DEVICE, /* the device computes at their rates, and attends to masked keys too */
    AQ_FLEXGEN_RULE_COUNT,
};
#define AQ_FLEXGEN_RULES_ALL ((1u << AQ_FLEXGEN_RULE_COUNT) - 1)

/* The name of a rule in tables ("whole-tensors"), and a sentence about it. */
const char *aq_flexgen_rule_name(enum aq_flexgen_rule h);
const char *aq_flexgen_rule_text(enum aq_flexgen_rule h);

/* Rates of FlexGen's kernels and copies on a machine; 0: the machine's own rate. */
struct aq_flexgen_rates {
    double prefill_flops_per_s, decode_flops_per_s; /* products on the device */
    double prefill_attention_flops_per_s;
    double decode_attention_bytes_per_s; /* KV in f16, on the device */
    double host_attention_bytes_per_s;   /* KV in f16 */
    double kv_store_bytes_per_s;         /* of a prompt, device to host */
    double pageable_bytes_per_s;
    double unpack_bytes_per_s; /* packed bytes, on the device */
};

/* A run of FlexGen: one block, prefilled and decoded to its end. */
struct aq_flexgen_run {
    const struct aq_model_steps *steps;
    const struct aq_hardware *hw; /* with a device of its own */
    struct aq_flexgen_rates rates;
    uint32_t rules;                      /* bits 1 << enum aq_flexgen_rule */
    uint32_t micro_batch, micro_batches; /* gpu-batch-size, num-gpu-batches */
    uint32_t prompt, gen;                /* tokens; prompt: of the longest */
    double prompt_mean;                  /* tokens of a mean prompt; 0: all are of one length */
    struct aq_shares weights, kv, hidden;
    bool host_attention;
    bool pack_weights, pack_kv; /* 4 bits in groups of 64: 9/32 of f16 */
    bool pageable_weights;
    bool serial;     /* overlap off: one op after the other */
    uint32_t kept;   /* slots that H2O holds of a sequence; 0: all of them */
    bool first_step; /* decode projected from its first step, as in most published figures */
};

struct aq_flexgen_times {
    double prefill_s, decode_s, total_s;
    double decode_pass_s;
    double prefill_tok_s, decode_tok_s, gen_tok_s; /* gen_tok_s, as published: over both phases */
    struct aq_sim_lane lane[AQ_LANE_COUNT];        /* of a decode pass */
    enum aq_lane binding_lane;
    enum aq_resource binding;
};

/* The tier of a tensor whose middle lies at this percent of its step, tensors laid out over disk,
 * host and device in that order. */
enum aq_tier aq_flexgen_tensor_tier(const struct aq_shares *shares, double middle);

/* Has the rule any effect on this run? */
bool aq_flexgen_rule_matters(const struct aq_flexgen_run *run, enum aq_flexgen_rule h);

/* -EINVAL: a run that FlexGen refuses (hidden states on disk or on two tiers, packed KV on two
 * tiers), or a machine without a rate; -ENOMEM. */
int aq_flexgen_play(struct aq_flexgen_times *ret, const struct aq_flexgen_run *run,
                    struct aq_err *reterr);

#endif
