/* SPDX-License-Identifier: Apache-2.0
 * policy/checker.h - proves a program without trusting its builder.
 *
 * Order follows from deps and lanes alone, over unrolled passes: an op starts after its deps have
 * ended and after the op before it on its lane has started (ended, where lanes run in order).  The
 * checker shows that
 *   - two uses of a slot of which one writes are always ordered, and in the order of the array;
 *   - so every legal execution leaves the slots as the array does when its ops are played one after
 *     the other.  In that play every READ and UPDATE finds the tag it needs, in the first pass,
 *     when only rows and KV are there, and in later ones; and no WRITE overwrites data that no op
 *     has read;
 *   - of a step and part, where sequences share pages of KV, prompts are attended one micro-batch
 *     after the other, and all of them before the next pass's, in ascending order unless the plan
 *     visits micro-batches up and down: which is when aq_seats_lends lets a sequence begin with
 *     pages of another.  That of another part or micro-batch behind a link it lets begin by turns,
 *     which hold all KV of their micro-batch;
 *   - no op waits for itself: deps, lane order and the end of a pass all point from an earlier
 *     (pass, index) to a later one, once same-pass deps point to smaller indices.
 * Pure.  Used by tests and by --dry-run. */
#ifndef AQ_POLICY_CHECKER_H
#define AQ_POLICY_CHECKER_H

#include "policy/program.h"

/* Further facts that the program must agree with; each may be absent. */
struct aq_check_opts {
    /* The chunks: their number, bytes, slots and routes must be the program's.  With the steps too,
     * products must find all their chunks. */
    const struct aq_stream *stream;
    const struct aq_model_steps *steps;
    const struct aq_plan *plan;
    const uint64_t *slot_bytes; /* [AQ_TIER_COUNT]: bytes that a tier's slots must add up to */
    uint64_t weight_bytes;      /* streamed per pass; 0: not compared */
};

/* Form, then flow.  opts may be NULL.  -EPROTO: the sentence names the op, its step, micro-batch
 * and part, and the slot; or -ENOMEM. */
int aq_program_check(const struct aq_program *p, const struct aq_check_opts *opts,
                     struct aq_err *reterr);

/* Form, which one op or one table shows: ranges, lanes, deps that point back, slots that fit the
 * op's kind, moves that leave the object that they took, every chunk loaded once a pass, bytes. */
int aq_program_check_form(const struct aq_program *p, const struct aq_check_opts *opts,
                          struct aq_err *reterr);

/* Flow: order and tags, as above; where prompts share pages, of a plan alone.  The program's form
 * must have been checked. */
int aq_program_check_flow(const struct aq_program *p, const struct aq_check_opts *opts,
                          struct aq_err *reterr);

/* "ATTN_HOST of step 3, micro-batch 1, part 0 (op 57)", for messages.  Returns dst. */
const char *aq_op_describe(char *dst, size_t dst_bytes, const struct aq_program *p, uint32_t op);

#endif
