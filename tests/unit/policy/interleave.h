/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/policy/interleave.h - an oracle for the checker that shares no reasoning with it: it
 * plays three passes in some legal order of starts and ends and watches the slots. */
#ifndef AQ_TESTS_UNIT_POLICY_INTERLEAVE_H
#define AQ_TESTS_UNIT_POLICY_INTERLEAVE_H

#include "policy/program.h"

struct interleaving {
    uint64_t seed; /* of the draws */
    /* This op of this pass never ends once it has started, until nothing else can go on; UINT32_MAX
     * for none. */
    uint32_t frozen_op, frozen_pass;
    bool serial; /* the array, one op after the other */
};

/* False: an op found another tag than it needs, used a slot beside one that writes it (or wrote it
 * beside one that uses it), or overwrote what nobody had read; or nothing could go on. */
bool interleave(const struct aq_program *p, const struct interleaving *how);

/* The serial order, the freezing of every op of every pass, and `samples` random orders. */
bool interleave_all(const struct aq_program *p, uint64_t seed, uint32_t samples);

#endif
