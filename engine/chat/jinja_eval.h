/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/jinja_eval.h - nodes of the tree into values and text. */
#ifndef AQ_ENGINE_CHAT_JINJA_EVAL_H
#define AQ_ENGINE_CHAT_JINJA_EVAL_H

#include "engine/chat/jinja_value.h"

/* ---- jinja_expressions.c ---- */

bool aq_jinja_eval(struct aq_jinja_run *r, uint32_t node, struct aq_jinja_value *ret);
/* The filters of a block, the innermost of which has no operand: `self` is it. */
bool aq_jinja_eval_filters(struct aq_jinja_run *r, uint32_t node, const struct aq_jinja_value *self,
                           struct aq_jinja_value *ret);

/* ---- jinja_statements.c ---- */

/* A list of statements; what they print goes to r->out. */
bool aq_jinja_execute(struct aq_jinja_run *r, uint32_t first);
bool aq_jinja_call_macro(struct aq_jinja_run *r, const struct aq_jinja_macro *m,
                         const struct aq_jinja_arguments *a, struct aq_jinja_value *ret);
bool aq_jinja_call_loop(struct aq_jinja_run *r, const struct aq_jinja_loop *loop,
                        const struct aq_jinja_value *items, struct aq_jinja_value *ret);

#endif
