/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/policy/same_plans.h - do two plans say the same? */
#ifndef AQ_TESTS_SAME_PLANS_H
#define AQ_TESTS_SAME_PLANS_H

#include "policy/plan.h"

/* Member by member: bytes between members have no meaning. */
bool plans_are_same(const struct aq_plan *a, const struct aq_plan *b);

#endif
