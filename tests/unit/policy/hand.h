/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/policy/hand.h - programs made by hand: slots, ops, uses and deps one by one.  Out of
 * memory ends the test. */
#ifndef AQ_TESTS_UNIT_POLICY_HAND_H
#define AQ_TESTS_UNIT_POLICY_HAND_H

#include "policy/program.h"

/* Before the first use. */
void hand_slots(struct aq_program *p, enum aq_slot_class c, uint32_t count, enum aq_tier tier,
                uint64_t bytes);
/* Appends an op and returns its index; uses and deps of an op follow it before the next op. */
uint32_t hand_op(struct aq_program *p, enum aq_op_kind kind, enum aq_lane lane, uint32_t step,
                 uint32_t k);
void hand_use(struct aq_program *p, enum aq_slot_class c, uint32_t index, enum aq_use_mode mode,
              struct aq_tag need, struct aq_tag leave);
void hand_dep(struct aq_program *p, uint32_t on, uint8_t back);
struct aq_tag hand_tag(enum aq_object object, uint32_t index, uint32_t k, int pass);

/* Gives every op the deps that its uses ask for in the order of the array, none left out. */
void hand_derive_deps(struct aq_program *p);
void hand_copy(struct aq_program *ret, const struct aq_program *p);
bool hand_equal(const struct aq_program *a, const struct aq_program *b);

/* A small decoder on a separate device: a step a layer, of PRE, attention on the host and POST for
 * each micro-batch, with one chunk of weights through a ring; deps as hand_derive_deps gives them.
 */
struct hand_model {
    uint32_t layers, micro_batches, ring;
    bool staged; /* chunks come from disk through two staging slots */
};
void hand_build(struct aq_program *ret, const struct hand_model *m);

#endif
