/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/policy/mutate.h - programs broken on purpose, one small change each. */
#ifndef AQ_TESTS_UNIT_POLICY_MUTATE_H
#define AQ_TESTS_UNIT_POLICY_MUTATE_H

#include "policy/program.h"

enum mutation {
    MUTATE_DROP_DEP,
    MUTATE_REDIRECT_DEP,
    MUTATE_FLIP_BACK,
    MUTATE_SWAP_SLOTS, /* of two uses of one class */
    MUTATE_ANY_SLOT,
    MUTATE_SKIP_OP,
    MUTATE_SKIP_LOAD,
    MUTATE_SWAP_NEIGHBOURS, /* in the array */
    MUTATE_MOVE_OP,
    MUTATE_MOVE_IN_LANE, /* past the next op of its lane */
    MUTATE_TAG,
    MUTATE_LANE,
    MUTATE_MODE,
    MUTATE_DROP_USE,
    MUTATE_IDENTITY, /* step, micro-batch, part, chunk, workspace or stage of an op */
    MUTATE_SHRINK_RING,
    MUTATION_COUNT,
};

const char *mutation_name(enum mutation m);

/* Changes p, drawing by seed; false: it has nothing to change in this way, or the draw changed
 * nothing. */
bool mutate(struct aq_program *p, enum mutation m, uint64_t seed);

/* Takes op `from` out and puts it back so that it is op `to`; deps follow their ops. */
void mutate_move(struct aq_program *p, uint32_t from, uint32_t to);

#endif
