/* SPDX-License-Identifier: Apache-2.0
 * policy/checker_form.h - private to checker_form.c (ops and uses) and checker_moves.c (moves and
 * the weights that products need). */
#ifndef AQ_POLICY_CHECKER_FORM_H
#define AQ_POLICY_CHECKER_FORM_H

#include "policy/checker.h"

static inline bool aq_op_is_move(const struct aq_op *op)
{
    return op->kind == AQ_OP_READ || op->kind == AQ_OP_WRITE || op->kind == AQ_OP_H2D ||
           op->kind == AQ_OP_D2H;
}

/* -EPROTO with the op and a sentence about it. */
int aq_check_fault(const struct aq_program *p, uint32_t op, struct aq_err *reterr,
                   const char *what);

/* Moves leave the object that they took; chunks come once, by their route, and products find all
 * chunks that they need. */
int aq_check_moves(const struct aq_program *p, const struct aq_check_opts *opts,
                   struct aq_err *reterr);

#endif
