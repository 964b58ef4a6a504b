/* SPDX-License-Identifier: Apache-2.0
 * Ops in words, for faults that the checker finds. */
#include "policy/checker_form.h"

#include <stdio.h>

const char *aq_op_describe(char *dst, size_t dst_bytes, const struct aq_program *p, uint32_t op)
{
    const struct aq_op *o = &p->op[op];
    bool move = o->kind <= AQ_OP_D2H;
    bool weights = move && o->object == AQ_OBJECT_WEIGHTS;
    char what[48] = "", where[48] = "";
    if (weights)
        snprintf(what, sizeof(what), " %s chunk %u", aq_object_name(o->object), o->chunk);
    else if (move)
        snprintf(what, sizeof(what), " %s", aq_object_name(o->object));
    if (o->of)
        snprintf(what, sizeof(what), "%s%s for %s", move ? " " : "",
                 move ? aq_object_name(o->object) : "", aq_op_name(o->of));
    bool part = (move && !weights) || (o->kind >= AQ_OP_ATTN_PREFILL && o->kind <= AQ_OP_ATTN_HOST);
    if (part)
        snprintf(where, sizeof(where), ", micro-batch %u, part %u", o->micro_batch, o->part);
    else if (!weights && o->kind != AQ_OP_UNPACK)
        snprintf(where, sizeof(where), ", micro-batch %u", o->micro_batch);
    snprintf(dst, dst_bytes, "%s%s of step %u%s (op %u)", aq_op_name(o->kind), what, o->step, where,
             op);
    return dst;
}

int aq_check_fault(const struct aq_program *p, uint32_t op, struct aq_err *reterr, const char *what)
{
    char who[160];
    aq_op_describe(who, sizeof(who), p, op);
    return aq_error(reterr, -EPROTO, "program: %s: %s", who, what);
}
