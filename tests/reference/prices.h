/* SPDX-License-Identifier: Apache-2.0
 * tests/reference/prices.h - what an engine paid for the head-blocks that a head gave up, where the
 * heads of all layers share (policy/kv_cross.h), by the reference's scores. */
#ifndef AQ_TESTS_REFERENCE_PRICES_H
#define AQ_TESTS_REFERENCE_PRICES_H

#include "tests/reference/reference.h"

#include <stdbool.h>
#include <stdint.h>

/* Scores that may change places: f32 in another order. */
bool near_tie(double a, double b);
/* How many blocks a head of a prompt of n tokens gave up, what the last of them cost, and what the
 * next one would.  Fails, with the text before it, unless its set is right for these scores, but
 * for near ties. */
uint32_t prices_of(const char *what, const struct ref_policy *p, const struct ref_head *h,
                   const bool *kept, uint32_t n, double *ret_last, double *ret_next);

#endif
