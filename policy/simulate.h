/* SPDX-License-Identifier: Apache-2.0
 * policy/simulate.h - plays an annotated program on a machine of numbers: how long passes take,
 * which lanes are busy, what binds.  Pure and deterministic.
 *
 * Rules of the executor: lanes start their ops in array order, pass after pass; an op starts when
 * its deps have ended; one op at a time on a lane, but several on a disk lane; ops without work end
 * as they start.  Moves of weights run ahead into the next pass as far as their slots allow;
 * everything else waits until all ops of the pass before have ended.  Ops that run side by side
 * share what is shared, max-min fair. */
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
    double busy_s, bytes;      /* of a steady pass, which takes pass_s */
    double share, bytes_per_s; /* busy_s and bytes, over pass_s */
    enum aq_resource limit;    /* what held it up most while it was busy */
};

struct aq_sim_event {
    uint32_t op, pass;
    double start_s, end_s;
};

struct aq_sim_result {
    double *end_s; /* [passes] when each pass has ended */
    uint32_t passes;
    /* A steady pass: the mean of those that have one before and one after them, or the last. */
    double pass_s;
    struct aq_sim_lane lane[AQ_LANE_COUNT];
    /* The busiest lane and its limit: what more of would make passes shorter, if its share is near
     * 1; if it is not, lanes wait for each other: slots, parts or micro-batches are too few. */
    enum aq_lane binding_lane;
    enum aq_resource binding;
    struct aq_sim_event *event; /* [event_count], by end; only with opts->timeline */
    uint32_t event_count;
};

/* -EINVAL: the machine has no rate for an op; -EDEADLK: nothing can go on (the checker would have
 * said so); -ENOMEM. */
int aq_simulate(struct aq_sim_result *ret, const struct aq_program *p, const struct aq_hardware *hw,
                const struct aq_simulate_opts *opts, struct aq_err *reterr);
void aq_sim_result_close(struct aq_sim_result *r);

#endif
