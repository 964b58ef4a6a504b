/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/cases.h - plans side by side: what is allowed beside what was asked for, an option's
 * values in a table, what would make an impossible plan possible, and what more of the machine
 * would buy.  Each is planned like any other. */
#ifndef AQ_ENGINE_PLAN_CASES_H
#define AQ_ENGINE_PLAN_CASES_H

#include "engine/plan/planning.h"

/* Options and their plan; zero-initialise. */
struct aq_plan_case {
    struct aq_options *o;
    struct aq_planning *p;
};
void aq_plan_case_close(struct aq_plan_case *c);

/* The options with some of them changed (a JSON object of keys; null: not given), planned; 0 also
 * where nothing fits. */
int aq_plan_case_changed(struct aq_plan_case *ret, const struct aq_options *o,
                         const json_t *changes, struct aq_planning_env *env, struct aq_err *reterr);

/* The options that --allow may set: by these, and no others, what it opens differs. */
enum aq_plan_opens {
    AQ_PLAN_OPENS_WEIGHTS,
    AQ_PLAN_OPENS_KV,
    AQ_PLAN_OPENS_POLICY,
    AQ_PLAN_OPENS_BUDGET,
    AQ_PLAN_OPENS_READ,
    AQ_PLAN_OPENS_COUNT,
};
extern const char *const aq_plan_opens_key[AQ_PLAN_OPENS_COUNT];

/* What --allow opens, each alone: [{"name", "changes"}, ...].  A new reference. */
int aq_plan_allowed(json_t **ret, const struct aq_options *o, struct aq_err *reterr);

/* The options with some of them changed likewise, and with the best of what --allow opens: the
 * fastest, or the least lossy that meets --deadline.  0 also where nothing fits: then what was
 * asked for itself. */
int aq_plan_case_open(struct aq_plan_case *ret, const struct aq_options *o, const json_t *changes,
                      struct aq_planning_env *env, struct aq_err *reterr);

/* [{"change", "gen_tok_s"}, ...] of a plan that fits.  New references, all of these. */
int aq_plan_sensitivity(json_t **ret, const struct aq_planning *p, struct aq_err *reterr);
/* One that does not: {"micro_batch", "micro_batches", "gen_tok_s"} of the fastest block, or null;
 * [{"change", "feasible", "gen_tok_s", "lossy"}, ...]. */
int aq_plan_largest(json_t **ret, const struct aq_planning *p, struct aq_planning_env *env,
                    struct aq_err *reterr);
int aq_plan_fixes(json_t **ret, const struct aq_planning *p, struct aq_planning_env *env,
                  struct aq_err *reterr);
/* A plan as a row of a table: the changes, as strings, and what came of them. */
json_t *aq_plan_row_json(const json_t *changes, const struct aq_planning *p);
/* A row for every combination of the values of --sweep. */
int aq_plan_sweep(json_t **ret, const struct aq_options *o, struct aq_planning_env *env,
                  struct aq_err *reterr);

#endif
