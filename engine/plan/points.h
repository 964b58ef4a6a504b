/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/points.h - what the sliders of the page choose among: plans over a grid of budgets,
 * lengths and of what --allow opens.  Each point is planned like any other plan. */
#ifndef AQ_ENGINE_PLAN_POINTS_H
#define AQ_ENGINE_PLAN_POINTS_H

#include "engine/plan/cases.h"

/* {"axes", "variants", "variant", "requests", "plan_words", "points"}, around the case that was
 * made of the options; docs/planning.md has the fields.  At most --html-points of them.  A new
 * reference. */
int aq_plan_points(json_t **ret, const struct aq_options *o, const struct aq_plan_case *asked,
                   struct aq_planning_env *env, struct aq_err *reterr);

#endif
