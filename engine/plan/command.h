/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/command.h - a plan as words for a shell, or as a config, that generate and bench run.
 * Knows no documents and no pages. */
#ifndef AQ_ENGINE_PLAN_COMMAND_H
#define AQ_ENGINE_PLAN_COMMAND_H

#include "engine/plan/planning.h"

/* A line to type: of a checkpoint for its records, of a shape for a benchmark.  A new reference;
 * NULL: memory is out. */
json_t *aq_plan_command_json(const struct aq_planning *p);
int aq_plan_config_write(const struct aq_planning *p, const char *path, struct aq_err *reterr);

#endif
