/* SPDX-License-Identifier: Apache-2.0
 * policy/habits_loop.h - private to habits.c: one phase of a run of theirs as a program and the
 * costs of its ops. */
#ifndef AQ_POLICY_HABITS_LOOP_H
#define AQ_POLICY_HABITS_LOOP_H

#include "policy/habits.h"

/* A program without slots and uses: it is played, never executed. */
struct aq_habit_loop {
    struct aq_program program;
    struct aq_op_cost *cost; /* [program.op_count] */
};

int aq_habit_loop_build(struct aq_habit_loop *ret, const struct aq_habit_run *run, bool prefill,
                        struct aq_err *reterr);
void aq_habit_loop_close(struct aq_habit_loop *l);

#endif
