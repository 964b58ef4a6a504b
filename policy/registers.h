/* SPDX-License-Identifier: Apache-2.0
 * policy/registers.h - what the registers of primitives hold, and what a list of primitives takes
 * from outside and leaves there: the builder's uses of slots, the executor's buffers and the costs
 * follow from these.  Pure. */
#ifndef AQ_POLICY_REGISTERS_H
#define AQ_POLICY_REGISTERS_H

#include "policy/steps.h"

/* Numbers of a row. */
uint32_t aq_register_width(const struct aq_model_steps *m, enum aq_register r);
enum aq_dtype aq_register_dtype(enum aq_register r, enum aq_dtype compute);
static inline uint64_t aq_register_row_bytes(const struct aq_model_steps *m, enum aq_register r,
                                             enum aq_dtype compute)
{
    return (uint64_t)aq_register_width(m, r) * aq_dtype_bytes(aq_register_dtype(r, compute));
}

/* Sets of registers. */
struct aq_list_io {
    bool takes[AQ_REG_COUNT];  /* read before the list has written it */
    bool leaves[AQ_REG_COUNT]; /* written, and not only for the list's own later primitives */
};

/* A register that holds one row tile and is read by the list that wrote it is nobody else's. */
struct aq_list_io aq_list_io(const struct aq_prim_list *list);

#endif
