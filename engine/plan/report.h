/* SPDX-License-Identifier: Apache-2.0
 * engine/plan/report.h - a plan's document (engine/commands/plan.c) for people. */
#ifndef AQ_ENGINE_PLAN_REPORT_H
#define AQ_ENGINE_PLAN_REPORT_H

#include "base/money.h"
#include "engine/hooks.h"
#include "engine/plan/planning.h"

/* An amount, the value of `key`, in the currency of the object's price; "" where it is unknown. */
const char *aq_plan_money(char text[AQ_MONEY_TEXT_MAX], const json_t *o, const char *key);
void aq_plan_text(const json_t *doc, const struct aquifer_hooks *hooks);
/* The documents of engine/plan/machines.h. */
void aq_plan_machines_text(const json_t *doc, const struct aquifer_hooks *hooks);
void aq_plan_list_text(const json_t *doc, const struct aquifer_hooks *hooks);
/* Replaces the file by one page that needs no other and no network; points as of
 * engine/plan/points.h, NULL: no sliders. */
int aq_plan_html_write(const json_t *doc, const json_t *points, const struct aq_planning *p,
                       const char *path, struct aq_err *reterr);

#endif
