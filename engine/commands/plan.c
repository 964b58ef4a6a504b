/* SPDX-License-Identifier: Apache-2.0
 * aquifer plan: what fits, where it goes, how fast it will be and what binds. */
#include "engine/commands/commands.h"

#include "base/json.h"
#include "base/units.h"
#include "engine/core/forecast_json.h"
#include "engine/plan/cases.h"
#include "engine/plan/command.h"
#include "engine/plan/machines.h"
#include "engine/plan/points.h"
#include "engine/plan/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the document ---- */

static int add_feasible(json_t **doc, const struct aq_planning *p, struct aq_err *reterr)
{
    json_t *sensitivity;
    int rc = aq_plan_sensitivity(&sensitivity, p, reterr);
    if (rc < 0)
        return rc;
    aq_json_put(doc, "plan", aq_planning_plan_json(p));
    aq_json_put(doc, "memory", aq_planning_memory_json(p));
    aq_json_put(doc, "links", aq_predict_lanes_json(&p->forecast));
    aq_json_put(doc, "predicted", aq_planning_predicted_json(p));
    aq_json_put(doc, "range", aq_planning_range_json(p));
    aq_json_put(doc, "bound_by", json_string(aq_resource_name(p->forecast.binding)));
    aq_json_put(doc, "bound_lane", json_string(aq_lane_name(p->forecast.binding_lane)));
    aq_json_put(doc, "sensitivity", sensitivity);
    aq_json_put(doc, "command", aq_plan_command_json(p));
    return 0;
}

static int add_infeasible(json_t **doc, const struct aq_planning *p, struct aq_planning_env *env,
                          struct aq_err *reterr)
{
    json_t *largest, *fixes;
    int rc = aq_plan_largest(&largest, p, env, reterr);
    if (rc < 0)
        return rc;
    aq_json_put(doc, "largest", largest);
    rc = aq_plan_fixes(&fixes, p, env, reterr);
    if (rc < 0)
        return rc;
    aq_json_put(doc, "shortfall", aq_planning_shortfall_json(p));
    aq_json_put(doc, "fixes", fixes);
    aq_json_put(doc, "reason", aq_json_string(p->why_not.text));
    static const char *const none[] = {"plan",  "memory",      "links",    "predicted",
                                       "range", "sensitivity", "bound_by", "command"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(none); i++)
        aq_json_put(doc, none[i], json_null());
    return 0;
}

static int make_document(json_t **ret, const struct aq_planning *p, const struct aq_options *o,
                         struct aq_planning_env *env, struct aq_err *reterr)
{
    json_t *doc =
        json_pack("{s:i, s:b, s:o, s:o, s:o}", "schema", 1, "feasible", p->feasible, "model",
                  aq_json_string(p->model->name), "hardware", aq_json_string(p->machine.name),
                  "workload", aq_planning_workload_json(p));
    aq_json_put(&doc, "price", aq_hw_price_json(&p->price));
    int rc = p->feasible ? add_feasible(&doc, p, reterr) : add_infeasible(&doc, p, env, reterr);
    double total = aq_planning_total_s(p);
    if (o->deadline_s > 0)
        aq_json_put(&doc, "deadline",
                    json_pack("{s:o, s:o}", "seconds", aq_json_real(o->deadline_s), "met",
                              p->feasible && total > 0 ? json_boolean(total <= o->deadline_s)
                                                       : json_null()));
    aq_json_put(&doc, "assumptions", aq_planning_assumptions_json(p));
    aq_json_put(&doc, "warnings", aq_planning_warnings_json(p));
    if (rc == 0 && o->sweep.count) {
        json_t *sweep;
        rc = aq_plan_sweep(&sweep, o, env, reterr);
        if (rc == 0)
            aq_json_put(&doc, "sweep", sweep);
    }
    if (rc == 0 && !doc)
        rc = aq_error_memory(reterr, "plan");
    if (rc < 0)
        json_decref(doc);
    else
        *ret = doc;
    return rc;
}

static bool any_feasible(const json_t *doc)
{
    size_t i;
    json_t *row;
    bool any = json_is_true(json_object_get(doc, "feasible"));
    json_array_foreach(json_object_get(doc, "sweep"), i, row)
    {
        any |= json_is_true(json_object_get(row, "feasible"));
    }
    return any;
}

static int write_page(const json_t *doc, const struct aq_options *o, const struct aq_plan_case *c,
                      struct aq_planning_env *env, struct aq_err *reterr)
{
    json_t *points = NULL;
    int rc = o->html_points ? aq_plan_points(&points, o, c, env, reterr) : 0;
    rc = rc < 0 ? rc : aq_plan_html_write(doc, points, c->p, o->html, reterr);
    json_decref(points);
    return rc;
}

/* The document to hooks, as JSON or as `text` shows it. */
static int show(json_t *doc, const struct aq_options *o, const struct aquifer_hooks *hooks,
                void (*text)(const json_t *doc, const struct aquifer_hooks *hooks),
                struct aq_err *reterr)
{
    if (o->json)
        return aq_hooks_json(hooks, doc, reterr);
    text(doc, hooks);
    json_decref(doc);
    return 0;
}

static int plan_machines(const struct aq_options *o, const struct aquifer_hooks *hooks,
                         const struct aq_log *log, struct aq_err *reterr)
{
    json_t *doc;
    int rc = aq_plan_machines(&doc, o, log, reterr);
    if (rc < 0)
        return rc;
    bool late = json_is_false(json_object_get(json_object_get(doc, "deadline"), "met"));
    int status = json_is_true(json_object_get(doc, "feasible")) && !late ? 0 : 2;
    rc = show(doc, o, hooks, aq_plan_machines_text, reterr);
    return rc < 0 ? rc : status;
}

static int plan_machine(const struct aq_options *o, const struct aquifer_hooks *hooks,
                        const struct aq_log *log, struct aq_err *reterr)
{
    struct aq_plan_case c = {0};
    struct aq_planning_env *env = calloc(1, sizeof(*env));
    if (!env)
        return aq_error_memory(reterr, "plan");
    env->log = log;
    json_t *none = json_pack("{s:n}", "sweep"), *doc = NULL;
    int rc = aq_plan_case_open(&c, o, none, env, reterr);
    json_decref(none);
    rc = rc < 0 ? rc : make_document(&doc, c.p, o, env, reterr);
    if (rc == 0 && o->write_config && c.p->feasible)
        rc = aq_plan_config_write(c.p, o->write_config, reterr);
    if (rc == 0 && o->html)
        rc = write_page(doc, o, &c, env, reterr);
    free(env);
    if (rc < 0) {
        json_decref(doc);
        aq_plan_case_close(&c);
        return rc;
    }
    bool late = json_is_false(json_object_get(json_object_get(doc, "deadline"), "met"));
    int status = any_feasible(doc) && !late ? 0 : 2;
    if (!c.p->feasible)
        aq_hooks_line(hooks, status ? AQUIFER_ERROR : AQUIFER_WARNING, "%s", c.p->why_not.text);
    aq_plan_case_close(&c);
    rc = show(doc, o, hooks, aq_plan_text, reterr);
    return rc < 0 ? rc : status;
}

/* The machine that is planned before the rows of a sweep over machines, so that this one is not
 * measured for them: the first of its names.  NULL: none is swept over. */
static json_t *first_machine(const struct aq_options *o)
{
    static const char sweep[] = "hardware=";
    for (uint32_t i = 0; i < o->sweep.count; i++) {
        const char *item = o->sweep.item[i];
        if (strncmp(item, sweep, strlen(sweep)) == 0)
            return json_stringn(item + strlen(sweep), strcspn(item + strlen(sweep), ","));
    }
    return NULL;
}

static int plan(const struct aq_options *o, const struct aquifer_hooks *hooks,
                struct aq_err *reterr)
{
    struct aq_log log = aq_log_from_hooks(hooks);
    json_t *list;
    if (o->hardware && strcmp(o->hardware, "list") == 0) {
        int rc = aq_plan_list(&list, reterr);
        return rc < 0 ? rc : show(list, o, hooks, aq_plan_list_text, reterr);
    }
    int rc = aq_plan_check_prices(o, reterr);
    if (rc < 0)
        return rc;
    return aq_options_several_machines(o) ? plan_machines(o, hooks, &log, reterr)
                                          : plan_machine(o, hooks, &log, reterr);
}

int aq_cmd_plan(const struct aq_options *o, const struct aquifer_hooks *hooks,
                struct aq_err *reterr)
{
    json_t *first = o->hardware ? NULL : first_machine(o);
    if (!first)
        return plan(o, hooks, reterr);
    json_t *options = aq_options_to_json(o);
    struct aq_options *chosen = NULL;
    aq_json_put(&options, "hardware", first);
    int rc = aq_options_from_json(&chosen, "plan", options, reterr);
    json_decref(options);
    rc = rc < 0 ? rc : aq_options_check(chosen, reterr);
    rc = rc < 0 ? rc : plan(chosen, hooks, reterr);
    aq_options_close(chosen);
    return rc;
}
