/* SPDX-License-Identifier: Apache-2.0
 * policy/registers.h - the registers of primitives: their sizes, and which of them a list of
 * primitives reads from ops before it and leaves for ops after it.  The builder's uses of slots,
 * the executor's buffers and the costs of ops follow from these.  Pure. */
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
    bool leaves[AQ_REG_COUNT]; /* written, and not for the list's own later primitives alone */
};

/* A register of one row tile that the list writes and reads itself is neither taken nor left. */
struct aq_list_io aq_list_io(const struct aq_prim_list *list);

#endif
