/* SPDX-License-Identifier: Apache-2.0
 * policy/simulate.h - plays an annotated program on a machine given as numbers: how long passes
 * take, which lanes are busy, what binds.  Pure and deterministic.
 *
 * The rules are those of the executor: lanes start their ops in array order, pass after pass; an op
 * starts when its deps have ended; a lane runs one op at a time, a disk lane several; ops without
 * work end as they start.  Moves of weights run ahead into the next pass as far as their slots
 * allow; all other ops wait until the pass before has ended.  Ops that run at the same time divide
 * shared resources max-min fair. */
#ifndef AQ_POLICY_SIMULATE_H
#define AQ_POLICY_SIMULATE_H

#include "policy/hw.h"

struct aq_simulate_opts {
    uint32_t passes; /* 3 or more show a steady one between the first and the last */
    bool serial;     /* one op after the other, in array order */
    bool timeline;   /* keep the start and end of every op that has work */
    enum aq_dtype compute;
    /* [op_count] costs of pass p from cost + p * cost_stride on; stride 0: of every pass. */
    const struct aq_op_cost *cost;
    size_t cost_stride;
};

struct aq_sim_lane {
    double busy_s, bytes;      /* in a steady pass of pass_s seconds */
    double share, bytes_per_s; /* busy_s and bytes, over pass_s */
    enum aq_resource limit;    /* the resource that slowed the lane most while it was busy */
};

struct aq_sim_event {
    uint32_t op, pass;
    double start_s, end_s;
};

struct aq_sim_result {
    double *end_s; /* [passes] when each pass has ended */
    uint32_t passes;
    /* A steady pass: the mean over passes with one before and one after; else the last pass. */
    double pass_s;
    struct aq_sim_lane lane[AQ_LANE_COUNT];
    /* The busiest lane and its limit.  If its share is near 1, more of this resource makes passes
     * shorter; if not, lanes wait for each other: slots, parts or micro-batches are too few. */
    enum aq_lane binding_lane;
    enum aq_resource binding;
    struct aq_sim_event *event; /* [event_count], by end; only with opts->timeline */
    uint32_t event_count;
};

/* -EINVAL: the machine has no rate for an op; -EDEADLK: no op can start (the checker refuses such a
 * program); -ENOMEM. */
int aq_simulate(struct aq_sim_result *ret, const struct aq_program *p, const struct aq_hardware *hw,
                const struct aq_simulate_opts *opts, struct aq_err *reterr);
void aq_sim_result_close(struct aq_sim_result *r);

#endif
