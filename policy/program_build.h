/* SPDX-License-Identifier: Apache-2.0
 * policy/program_build.h - private to the files that make a program: program.c (slots,
 * dependencies), program_ops.c (the ops and their order), program_host.c (ops of products that the
 * host shares) and program_build.c (single ops and uses). */
#ifndef AQ_POLICY_PROGRAM_BUILD_H
#define AQ_POLICY_PROGRAM_BUILD_H

#include "policy/program.h"

struct aq_builder {
    struct aq_program *p;
    const struct aq_model_steps *steps;
    const struct aq_plan *plan;
    const struct aq_stream *stream;
    bool failed; /* out of memory */
    struct aq_op none;

    uint32_t workspaces, inner_slots;
    /* Slots of KV_DEVICE and KV_HOST by the side that attends: slots for parts of the host, then
     * for parts of the device.  Each side has its own, so that KV is fetched ahead for both. */
    struct aq_build_stages {
        uint32_t count[2], visit[2]; /* by enum aq_attention_side; visit: counts */
    } on_device, on_host;
    bool host_parts; /* some part is attended on the host */
    bool beside;     /* a lane of its own attends decode rows: the host's, or side by side */
    /* HIDDEN slots: homes of residual streams, then working slots.  HIDDEN_HOST slots: homes, then
     * slots for streams on their way to and from disk. */
    uint32_t hidden_resident, hidden_work, hidden_host, hidden_transit;
    uint32_t *hidden_home; /* [k] index of its home in the class of its tier */
    uint32_t *hidden_now;  /* [k] the HIDDEN slot of the stream while ops work on it */
    uint32_t *hidden_step; /* [k] the last step that wrote the stream; UINT32_MAX: none yet */

    uint32_t visit, hidden_visit, transit_visit, host_visit; /* counters of round-robins */
    uint32_t host_slots; /* of INPUT_HOST, COLUMNS_HOST and COLUMNS each */
};

static inline struct aq_tag aq_build_tag(enum aq_object object, uint32_t index, uint32_t k,
                                         uint32_t part, int pass)
{
    return (struct aq_tag){(uint8_t)object, (int8_t)pass, (uint16_t)k, (uint16_t)part, index};
}

/* Room for one more item behind `count`; false: out of memory. */
bool aq_build_grow(void **p, uint32_t *max, uint32_t count, size_t size);

/* Appends an op; its uses must follow before the next one. */
struct aq_op *aq_build_op(struct aq_builder *b, enum aq_op_kind kind, enum aq_lane lane,
                          uint32_t step, uint32_t k, uint32_t part);
void aq_build_use(struct aq_builder *b, struct aq_op *op, enum aq_slot_class c, uint32_t index,
                  enum aq_use_mode mode, struct aq_tag need, struct aq_tag leave);

/* An op's use of a register that holds all rows: of its slot, or of the slots of all parts.  The
 * register is whole before and after the op; with `partial` the host's columns are missing: the op
 * leaves it so, and MERGE needs it so. */
void aq_build_register(struct aq_builder *b, struct aq_op *op, enum aq_register r,
                       enum aq_use_mode mode, bool partial);

/* An op whose product the host may compute columns of. */
struct aq_op_of {
    enum aq_op_kind kind;
    uint32_t step, k;
    uint32_t workspace; /* of the input or output that is not the residual stream */
    uint32_t slot;      /* set by aq_build_on_host() */
};
/* Emitted before the op: moves its rows to the host, computes there and moves the columns back.
 * false: the op computes all columns itself. */
bool aq_build_on_host(struct aq_builder *b, struct aq_op_of *o);
/* Emitted after an op that left its output register PARTIAL: MERGE makes the register whole. */
void aq_build_merge(struct aq_builder *b, const struct aq_op_of *o, enum aq_register output);

/* Emits all ops in serial order.  -ENOBUFS: the weight ring is too small. */
int aq_build_ops(struct aq_builder *b, struct aq_err *reterr);

#endif
