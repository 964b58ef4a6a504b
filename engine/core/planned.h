/* SPDX-License-Identifier: Apache-2.0
 * engine/core/planned.h - the one place where choices, a model, a workload and a machine become
 * what the planner is asked: for runs (engine_plan.c), for plans of machines that need not be here
 * (engine/plan) and for figures that others published (engine/measure).  They differ in where rates
 * and budgets come from, and in nothing else.  Knows no option's text, measures nothing. */
#ifndef AQ_ENGINE_CORE_PLANNED_H
#define AQ_ENGINE_CORE_PLANNED_H

#include "engine/core/engine.h"
#include "engine/model/formats.h"
#include "policy/block.h"

/* What products are computed on. */
struct aq_planned_products {
    bool gpu, bf16;   /* bf16: it has products of its own for them */
    const char *name; /* of the GPU or of a machine that is not here; NULL: this machine's cpu */
    unsigned sm;      /* compute capability, 75: 7.5; 0: unknown */
};
/* The types of weights, KV and products; refuses those that there are no products of. */
int aq_planned_formats(struct aq_formats *ret, const struct aq_model *m,
                       const struct aq_engine_opts *choices,
                       const struct aq_planned_products *products, struct aq_err *reterr);

/* -EINVAL: a choice that no run on a GPU takes. */
int aq_planned_check_gpu(const struct aq_engine_opts *choices, struct aq_err *reterr);

/* The context limit of model and choices. */
int aq_planned_context(uint32_t *ret, const struct aq_model_steps *steps,
                       const struct aq_engine_opts *choices, struct aq_err *reterr);
/* -EINVAL: a prompt is longer than the positions that the model knows, which a context may be
 * above. */
int aq_planned_check_prompt(uint64_t prompt, uint32_t positions, uint32_t context,
                            struct aq_err *reterr);

/* What is left of a tier with so many bytes, where nobody says how much is meant. */
uint64_t aq_planned_usable(enum aq_tier tier, uint64_t bytes);
/* The budget of the whole process, and what limits it.  elsewhere: host memory of a machine that is
 * not this one; 0: it is.  -EINVAL: it has no room for the emulated device. */
int aq_planned_host_budget(uint64_t *ret, const char **ret_limited_by,
                           const struct aq_engine_opts *choices, uint64_t elsewhere,
                           struct aq_err *reterr);
/* Emulated links are as fast as the choices say, where they say it. */
void aq_planned_links(struct aq_hardware *hw, const struct aq_engine_opts *choices);

struct aq_planned_request {
    const struct aq_engine_opts *choices; /* outlives the inputs, which point into it */
    const struct aq_model_steps *steps;
    struct aq_formats formats;
    enum aq_dtype table_format;
    const struct aq_workload *work;
    /* The machine: rates (NULL: unknown), and the budgets of a separate device, of the host without
     * one that is emulated in it, and of the disk. */
    const struct aq_hardware *hw;
    uint32_t threads;
    bool gpu, can_stream;
    uint64_t context_bytes; /* that the GPU's driver holds of its memory */
    uint64_t budget[AQ_TIER_COUNT];
    /* What is taken beside what is counted line by line: kernels' working memory, and the process.
     * held: bytes of one on this machine when it plans; 0: it is elsewhere, and takes what is
     * usual. */
    uint32_t context; /* 0: neither counts */
    uint64_t held;
    uint64_t decoding; /* and to decode a quantised checkpoint (aq_model_decoding_bytes) */
};
/* Do sequences share what they begin with alike?  Statistics are of whole prompts. */
bool aq_planned_shares(const struct aq_engine_opts *choices);
/* What the planner is asked, and the work as forecasts want it. */
void aq_planned_inputs(struct aq_block_inputs *ret, struct aq_forecast_work *ret_work,
                       const struct aq_planned_request *r);
/* Of a plan's passes, and of the whole job where its lengths are known. */
int aq_planned_forecast(struct aq_forecast *ret, const struct aq_block *b,
                        const struct aq_forecast_work *work, const struct aq_length *length,
                        uint32_t length_count, const struct aq_hardware *hw, struct aq_err *reterr);

#endif
