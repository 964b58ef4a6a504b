/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/machines.h - one job on several machines, side by side and ranked by time and by
 * money; and the list of the machines that are known by name.  Every machine is planned as if it
 * were the only one. */
#ifndef AQ_ENGINE_PLAN_MACHINES_H
#define AQ_ENGINE_PLAN_MACHINES_H

#include "engine/plan/planning.h"

enum { AQ_PLAN_NAMES_MAX = 64 };

/* "all" and names with commas as a list of names, each once; free owned. */
struct aq_plan_names {
    const char *name[AQ_PLAN_NAMES_MAX];
    uint32_t count;
    char *owned;
};
int aq_plan_names(struct aq_plan_names *ret, const char *hardware, struct aq_err *reterr);

/* The document {"machines": [row, ...] from the fastest on, "ranking": {"time": [name, ...],
 * "money": {currency: [name, ...]}}, "warnings": [line, ...], ...}.  Machines are planned on as
 * many threads as this process may use.  -EINVAL: the job makes no sense on any of them. */
int aq_plan_machines(json_t **ret, const struct aq_options *o, const struct aq_log *log,
                     struct aq_err *reterr);

/* --hardware list: {"hardware": [{"hardware": name, and as aq_hw_json() has it}, ...]}. */
int aq_plan_list(json_t **ret, struct aq_err *reterr);

/* -EINVAL: --price is of a machine that is not planned. */
int aq_plan_check_prices(const struct aq_options *o, struct aq_err *reterr);

#endif
