/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/planning.h - one plan for a model on a machine that need not be this one: the choices
 * of the options, what the planner makes of them, and what that will do.  Reads no weights, runs
 * nothing. */
#ifndef AQ_ENGINE_PLAN_PLANNING_H
#define AQ_ENGINE_PLAN_PLANNING_H

#include "engine/core/planned.h"
#include "engine/machine/hw_file.h"
#include "engine/model/model.h"
#include "engine/options/options.h"
#include "engine/records/request.h"
#include "policy/forecast.h"

struct aq_planning;

/* The state that plans of one command share. */
struct aq_planning_env {
    const struct aq_log *log;
    struct aq_hw_profile measured; /* this machine, once it was; zero before */
    uint64_t held;                 /* bytes, once counted: what a run's process holds on it */
    uint64_t disk_more;            /* bytes to plan as if they were free as well on its disk */
    const struct aq_planning
        *like; /* whose work is also that of further plans; NULL: each its own */
};

/* The disk of packed weights and scratch; all zero: there is none. */
struct aq_planning_disk {
    char *dir;       /* on this machine: a directory of it; else NULL */
    uint64_t there;  /* bytes: free now on this machine, else all */
    uint64_t budget; /* less 5 %, or as --disk-memory says */
    uint64_t store;  /* that the packed weights will take; 0: they are there already */
    bool small;      /* has no room for them, so that nothing streams from it */
    bool streams;    /* it has a rate, and room for them */
};

struct aq_planning {
    const struct aq_options *o;    /* borrowed */
    struct aq_engine_opts choices; /* of them, as a run would take them */
    struct aq_model *model;
    struct aq_hw_profile machine;
    struct aq_hw_price price;       /* --price, or of the profile */
    struct aq_hardware hw;          /* of the machine, for these weights and links */
    bool local;                     /* budgets are those of this process */
    uint64_t held;                  /* of it, with the device open; 0: the machine is another one */
    struct aq_gpu_info gpu;         /* its own, which was asked; all zero: it was not */
    uint64_t budget[AQ_TIER_COUNT]; /* as struct aq_planned_request has them */
    const char *host_limited_by;
    uint64_t store_bytes; /* of the packed weights, on disk where some stream */
    struct aq_planning_disk disk;
    struct aq_formats formats;
    uint32_t context, positions; /* positions: that the model knows */
    uint32_t prompt[2], gen[2];  /* lengths from, to */
    bool requests_assumed;
    uint64_t records, records_invalid; /* of --input */
    /* Of those, by what is wrong: how many, and the first. */
    struct aq_planning_invalid {
        uint64_t count, line;
        char message[200];
    } invalid[AQ_RECORD_CODE_COUNT];
    bool tokens_estimated; /* of texts, without a tokenizer */
    struct aq_workload workload;
    struct aq_lengths lengths; /* of its sequences, or of such ones */
    struct aq_block_inputs in;
    struct aq_forecast_work work;
    bool feasible;
    struct aq_err why_not;
    struct aq_block block; /* feasible: the plan; else the least that was asked for */
    /* Not feasible: of a disk that is large enough and memory that is, either would do.  The one
     * that is told is the block's (disk_short: the disk, which lacks room for the block and the
     * packed weights), the least with the other one is kept beside it; empty: there is no such. */
    bool disk_short;
    struct aq_block other;
    struct aq_forecast forecast;
};

static inline bool aq_planning_has_device(const struct aq_planning *p)
{
    return !p->machine.hw.device_on_host;
}

/* Reads model, machine and choices.  -EINVAL and others: what was asked for makes no sense. */
int aq_planning_open(struct aq_planning **ret, const struct aq_options *o,
                     struct aq_planning_env *env, struct aq_err *reterr);
void aq_planning_close(struct aq_planning *p);
/* Plans; 0 also where nothing fits. */
int aq_planning_run(struct aq_planning *p, struct aq_err *reterr);

/* Seconds for all requests; 0 where their number is unknown. */
double aq_planning_total_s(const struct aq_planning *p);
/* What a plan that fits costs, in the currency of p->price; NAN: nobody says what an hour costs, or
 * how many requests there are. */
struct aq_planning_cost {
    double job;     /* all requests */
    double million; /* a million generated tokens */
};
struct aq_planning_cost aq_planning_cost(const struct aq_planning *p);

/* ---- planning_machine.c ---- */

/* Profile; then, with formats and rates chosen, budgets by the rules of the options, of what a
 * machine has where it is not this one. */
int aq_planning_read_machine(struct aq_planning *p, struct aq_planning_env *env,
                             struct aq_err *reterr);
int aq_planning_choose_budgets(struct aq_planning *p, const struct aq_planning_env *env,
                               struct aq_err *reterr);
/* Of a block that streams from a disk with too little room for that: the disk is the reason why it
 * does not fit. */
void aq_planning_blame_disk(struct aq_planning *p);
/* Of the least block, which does not fit: looks for the least with a disk that is large enough.  A
 * disk too small for the packed weights becomes the reason, where a larger one would take fewer
 * bytes than more memory. */
int aq_planning_weigh_disk(struct aq_planning *p, struct aq_err *reterr);
/* Bytes of p->block on disk, where that is short with the packed weights. */
uint64_t aq_planning_disk_needed(const struct aq_planning *p);

/* ---- planning_input.c ---- */

/* Bytes of English text that a token of GPT-2's vocabulary or one like it has, about: OpenAI, "What
 * are tokens and how to count them?". */
enum { AQ_PLANNING_TOKEN_BYTES = 4 };
/* On this machine: adds what the model's tokenizer takes, which a run opens before it plans.  One
 * that cannot be opened is for the run to refuse. */
void aq_planning_count_process(struct aq_planning *p, struct aq_planning_env *env);
/* Lengths and number of the sequences of --input, for planning.c; -EINVAL where more than half of
 * the records are invalid: then the log has each kind of what is wrong with them. */
int aq_planning_read_input(struct aq_planning *p, const struct aq_log *log, struct aq_err *reterr);

/* ---- lengths.c ---- */

/* Lengths and number of the sequences of --lengths. */
int aq_planning_read_lengths(struct aq_planning *p, struct aq_err *reterr);

/* ---- planning_json.c: new references ---- */

json_t *aq_planning_plan_json(const struct aq_planning *p);
json_t *aq_planning_memory_json(const struct aq_planning *p);
json_t *aq_planning_shortfall_json(const struct aq_planning *p);
json_t *aq_planning_predicted_json(const struct aq_planning *p);
/* Adds {"hours", "money", "money_per_million", "currency", "price_per_hour"}, the last as it was
 * typed; null where unknown. */
void aq_planning_put_cost(json_t **object, const struct aq_planning *p);
/* Between which tokens a second measured runs of the same kind lay; null: none was compared. */
json_t *aq_planning_range_json(const struct aq_planning *p);
json_t *aq_planning_assumptions_json(const struct aq_planning *p);
json_t *aq_planning_warnings_json(const struct aq_planning *p);
/* Those of them that are about the job, and alike on all machines. */
json_t *aq_planning_work_warnings_json(const struct aq_planning *p);
/* {"records", "invalid", "errors": {code: {"count", "line", "message"}}} of --input. */
json_t *aq_planning_records_json(const struct aq_planning *p);
/* {"prompt_len", "gen_len", "prompt_mean", "gen_mean", "requests"}, and of a file its name and
 * records. */
json_t *aq_planning_workload_json(const struct aq_planning *p);
/* The options, as keys of a config, that make generate and bench run this plan. */
json_t *aq_planning_config_json(const struct aq_planning *p);

#endif
