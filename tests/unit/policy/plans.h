/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/policy/plans.h - a small decoder as data, and plans for it drawn at random: every
 * placement, side, ring, part and loop direction the builder knows. */
#ifndef AQ_TESTS_UNIT_POLICY_PLANS_H
#define AQ_TESTS_UNIT_POLICY_PLANS_H

#include "policy/checker.h"
#include "policy/forecast.h"

struct plan_limits {
    uint32_t layers_max, micro_batches_max, parts_max, chunks_max; /* chunks a step */
};

/* A model, a plan, its stream and its program. */
struct planned {
    struct aq_model_steps steps;
    struct aq_plan plan;
    struct aq_stream stream;
    struct aq_program program;
};

/* OPT's steps: q, k, v, out, fc1, fc2 and a head, one of each a step as the architecture has it. */
struct aq_model_steps plans_model(uint32_t layers, uint32_t hidden, uint32_t heads, uint32_t vocab);

/* LLaMA's: two heads of q share one of k and v, which are turned by their positions, and fc1 is the
 * gate of a product of as many rows. */
struct aq_model_steps plans_gated_model(uint32_t layers, uint32_t hidden, uint32_t heads,
                                        uint32_t vocab);
/* GPT-NeoX's: a layer is one step, whose second half has the MLP, too. */
struct aq_model_steps plans_parallel_model(uint32_t layers, uint32_t hidden, uint32_t heads,
                                           uint32_t vocab);

/* A plan for one of the three models, by the seed.  False: the draw was a plan that is refused (a
 * ring too small for a step), by a sentence. */
bool plans_draw(struct planned *ret, const struct plan_limits *limits, uint64_t seed);
/* The same plans for another model of the same size. */
bool plans_draw_for(struct planned *ret,
                    struct aq_model_steps (*model)(uint32_t layers, uint32_t hidden, uint32_t heads,
                                                   uint32_t vocab),
                    const struct plan_limits *limits, uint64_t seed);
/* Parts, stream and program of p->steps and p->plan, which must be possible. */
void plans_build(struct planned *p, enum aq_attention_side side, uint32_t part_seats);
void plans_close(struct planned *p);

/* A small shape with everything in f32: prompts of up to 64 tokens, sequences of up to 128. */
struct aq_block_shape plans_shape(uint32_t micro_batch, uint32_t micro_batches);
/* All that the checker can be told of a plan; the second fails unless the program is right. */
struct aq_check_opts plans_check_opts(const struct planned *p);
void plans_check(const struct planned *p);

/* What a run of 64 prompts of 100 tokens, each generating 64, on two threads and with a GiB in
 * every tier, asks of a block. */
struct aq_block_inputs plans_inputs(const struct aq_model_steps *m);
/* The block that is chosen for them; fails where there is none. */
struct aq_block plans_choose(const struct aq_block_inputs *in);
/* The forecast of a block for its inputs on a machine. */
struct aq_forecast plans_forecast(const struct aq_block *b, const struct aq_block_inputs *in,
                                  const struct aq_hardware *hw);
/* Fails unless the block is within its budgets, and its program and placement are right. */
void plans_check_block(const struct aq_block *b, const struct aq_block_inputs *in);

#endif
