/* SPDX-License-Identifier: Apache-2.0
 * policy/flexgen_loop.h - private to flexgen_model.c: one phase of a run of FlexGen's or H2O's
 * program, as a program of policy/program.h and the costs of its ops. */
#ifndef AQ_POLICY_FLEXGEN_LOOP_H
#define AQ_POLICY_FLEXGEN_LOOP_H

#include "policy/flexgen_model.h"

/* A program without slots and uses: it is played, never executed. */
struct aq_flexgen_loop {
    struct aq_program program;
    struct aq_op_cost *cost; /* [program.op_count] */
};

int aq_flexgen_loop_build(struct aq_flexgen_loop *ret, const struct aq_flexgen_run *run,
                          bool prefill, struct aq_err *reterr);
void aq_flexgen_loop_close(struct aq_flexgen_loop *l);

#endif
