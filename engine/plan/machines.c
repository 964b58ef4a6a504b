/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan/machines.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/threads.h"
#include "engine/machine/limits.h"
#include "engine/options/notation.h"
#include "engine/plan/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A machine and its plan. */
struct machine {
    const char *hardware;
    json_t *row;  /* NULL: it could not be planned, as err says */
    double order; /* of times: seconds of all requests, or of a token; infinite: does not fit */
    double money; /* of prices, likewise; NAN: unknown */
    char currency[AQ_CURRENCY_MAX];
    struct aq_err err;
};

struct comparison {
    const struct aq_options *o;
    struct aq_planning_env *env; /* [threads] */
    struct machine *machine;     /* [count] */
    uint32_t count;
    struct aq_plan_names names;
    json_t *model, *workload, *warnings; /* of the job */
};

/* ---- names ---- */

static int put_name(struct aq_plan_names *n, const char *name, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (strcmp(n->name[i], name) == 0)
            return 0; /* "all,l4-24gb" */
    }
    if (n->count == AQ_PLAN_NAMES_MAX)
        return aq_error(reterr, -EINVAL, "--hardware: more than %d machines", AQ_PLAN_NAMES_MAX);
    n->name[n->count++] = name;
    return 0;
}

int aq_plan_names(struct aq_plan_names *ret, const char *hardware, struct aq_err *reterr)
{
    struct aq_plan_names n = {.owned = strdup(hardware)};
    int rc = n.owned ? 0 : aq_error_memory(reterr, "--hardware");
    for (char *save = NULL, *name = n.owned ? strtok_r(n.owned, ",", &save) : NULL; name && rc == 0;
         name = strtok_r(NULL, ",", &save)) {
        bool all = strcmp(name, "all") == 0;
        for (uint32_t i = 0; all && aq_hw_built_in(i) && rc == 0; i++)
            rc = put_name(&n, aq_hw_built_in(i), reterr);
        if (!all)
            rc = aq_hw_check_name(name, "--hardware", reterr);
        if (!all && rc == 0)
            rc = put_name(&n, name, reterr);
    }
    if (rc == 0 && !n.count)
        rc = aq_error(reterr, -EINVAL, "--hardware: expected names with commas, found '%s'",
                      hardware);
    if (rc < 0)
        free(n.owned);
    else
        *ret = n;
    return rc;
}

/* What --hardware names, or a --sweep over it. */
static int planned_names(struct aq_plan_names *ret, const struct aq_options *o,
                         struct aq_err *reterr)
{
    static const char sweep[] = "hardware=";
    struct aq_buf all = {0};
    aq_buf_puts(&all, o->hardware ? o->hardware : "local");
    for (uint32_t i = 0; i < o->sweep.count; i++) {
        if (strncmp(o->sweep.item[i], sweep, sizeof(sweep) - 1) == 0)
            aq_buf_printf(&all, ",%s", o->sweep.item[i] + sizeof(sweep) - 1);
    }
    int rc = all.failed ? aq_error_memory(reterr, "--price") : aq_plan_names(ret, all.data, reterr);
    aq_buf_close(&all);
    return rc;
}

static int check_planned(const struct aq_plan_names *n, const char *hardware, struct aq_err *reterr)
{
    char list[400] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        if (strcmp(n->name[i], hardware) == 0)
            return 0;
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "",
                                     n->name[i]);
    }
    return aq_error(reterr, -EINVAL, "--price: expected a machine that is planned (%s), found '%s'",
                    list, hardware);
}

int aq_plan_check_prices(const struct aq_options *o, struct aq_err *reterr)
{
    struct aq_plan_names planned = {0};
    struct aq_price_choice price;
    int rc = o->price.count ? planned_names(&planned, o, reterr) : 0;
    for (uint32_t i = 0; i < o->price.count && rc == 0; i++) {
        rc = aq_price_parse(&price, "--price", o->price.item[i], reterr);
        rc = rc < 0 ? rc : aq_hw_check_name(price.hardware, "--price", reterr);
        rc = rc < 0 ? rc : check_planned(&planned, price.hardware, reterr);
    }
    free(planned.owned);
    return rc;
}

/* ---- plans ---- */

static json_t *changes_of(const char *hardware)
{
    return json_pack("{s:s}", "hardware", hardware);
}

static void fill_row(struct machine *m, const struct aq_planning *p)
{
    json_t *changes = changes_of(m->hardware);
    double total = aq_planning_total_s(p), rate = p->forecast.gen_tok_s;
    struct aq_planning_cost cost = aq_planning_cost(p);
    m->row = aq_plan_row_json(changes, p);
    json_decref(changes);
    aq_json_put(&m->row, "name", json_string(p->machine.name));
    aq_json_put(&m->row, "price", aq_hw_price_json(&p->price));
    if (!p->feasible) {
        aq_json_put(&m->row, "reason", aq_json_string(p->why_not.text));
        return;
    }
    m->order = total > 0 ? total : rate > 0 ? 1 / rate : INFINITY;
    m->money = total > 0 ? cost.job : cost.million;
    snprintf(m->currency, sizeof(m->currency), "%s", p->price.per_hour.currency);
    if (p->o->deadline_s > 0)
        aq_json_put(&m->row, "met",
                    total > 0 ? json_boolean(total <= p->o->deadline_s) : json_null());
}

static void plan_one(void *arg, uint32_t tile, uint32_t worker)
{
    struct comparison *c = arg;
    struct machine *m = &c->machine[tile];
    struct aq_plan_case plan = {0};
    json_t *changes = changes_of(m->hardware);
    int rc = changes ? aq_plan_case_open(&plan, c->o, changes, &c->env[worker], &m->err)
                     : aq_error_memory(&m->err, "plan");
    json_decref(changes);
    if (rc == 0)
        fill_row(m, plan.p);
    if (rc == 0 && !m->row)
        aq_error_memory(&m->err, "plan");
    aq_plan_case_close(&plan);
}

/* The work is the same on all machines, and files are read once: *ret is the first plan that can be
 * opened, whose work the others take.  This machine is measured before any other plan computes. */
static int read_work(struct aq_planning **ret, struct aq_options **ret_options,
                     struct comparison *c, struct aq_err *reterr)
{
    struct aq_err first = {0};
    for (uint32_t i = 0; i < c->count; i++) {
        bool local = strcmp(c->machine[i].hardware, "local") == 0;
        struct aq_planning *p = NULL;
        struct aq_options *o = NULL;
        struct aq_err err;
        if (*ret && !local)
            continue;
        json_t *options = aq_options_to_json(c->o);
        aq_json_put(&options, "hardware", json_string(c->machine[i].hardware));
        int rc = options ? aq_options_from_json(&o, "plan", options, &err)
                         : aq_error_memory(&err, "plan");
        json_decref(options);
        rc = rc < 0 ? rc : aq_planning_open(&p, o, &c->env[0], &err);
        first = rc < 0 && !first.code ? err : first;
        if (rc == 0 && !*ret) {
            *ret = p;
            *ret_options = o;
            continue;
        }
        aq_planning_close(p);
        aq_options_close(o);
    }
    return *ret ? 0 : aq_error(reterr, first.code, "%s", first.text);
}

static int plan_all(struct comparison *c, uint32_t threads, struct aq_err *reterr)
{
    struct aq_planning *like = NULL;
    struct aq_options *like_options = NULL;
    struct aq_pool *pool = NULL;
    int rc = read_work(&like, &like_options, c, reterr);
    if (rc == 0) {
        c->model = aq_json_string(like->model->name);
        c->workload = aq_planning_workload_json(like);
        c->warnings = aq_planning_work_warnings_json(like);
    }
    rc = rc < 0 ? rc : aq_pool_open(&pool, threads, reterr);
    for (uint32_t i = 0; i < threads && rc == 0; i++) {
        c->env[i] = c->env[0];
        c->env[i].like = like;
        c->env[i].log = NULL; /* what they have to say stands in the rows */
    }
    if (rc == 0)
        aq_pool_run(pool, plan_one, c, c->count);
    aq_pool_close(pool);
    aq_planning_close(like);
    aq_options_close(like_options);
    return rc;
}

/* ---- the document ---- */

static int by_time(const void *a, const void *b)
{
    const struct machine *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return strcmp(x->hardware, y->hardware);
}

/* Names of one currency from the cheapest on; amounts of different currencies are not compared. */
static void put_money(json_t **ranking, const struct comparison *c)
{
    json_t *money = json_object();
    bool done[AQ_PLAN_NAMES_MAX] = {0};
    for (uint32_t n = 0; n < c->count; n++) {
        const struct machine *best = NULL;
        for (uint32_t i = 0; i < c->count; i++) {
            const struct machine *m = &c->machine[i];
            if (!done[i] && !isnan(m->money) && (!best || m->money < best->money))
                best = m;
        }
        if (!best)
            break;
        json_t *names = json_object_get(money, best->currency);
        if (!names)
            aq_json_put(&money, best->currency, json_array());
        names = json_object_get(money, best->currency);
        if (names && json_array_append_new(names, json_string(best->hardware)) < 0)
            aq_json_put(&money, "", NULL);
        done[best - c->machine] = true;
    }
    aq_json_put(ranking, "money", money);
}

/* Whether any machine is in time; null where of none it is known. */
static json_t *met_json(const struct comparison *c)
{
    bool met = false, late = false;
    for (uint32_t i = 0; i < c->count; i++) {
        const json_t *of = json_object_get(c->machine[i].row, "met");
        met |= json_is_true(of);
        late |= json_is_false(of);
    }
    return met || late ? json_boolean(met) : json_null();
}

static json_t *document(struct comparison *c)
{
    json_t *rows = json_array(), *time = json_array(), *ranking = json_object();
    bool feasible = false;
    qsort(c->machine, c->count, sizeof(*c->machine), by_time);
    for (uint32_t i = 0; i < c->count; i++) {
        struct machine *m = &c->machine[i];
        if (!m->row)
            m->row = json_pack("{s:s, s:b, s:o}", "hardware", m->hardware, "feasible", 0, "reason",
                               aq_json_string(m->err.text));
        feasible |= isfinite(m->order);
        if (isfinite(m->order))
            aq_json_add(&time, json_string(m->hardware));
        aq_json_add(&rows, m->row);
    }
    aq_json_put(&ranking, "time", time);
    put_money(&ranking, c);
    json_t *doc = json_pack("{s:i, s:b, s:O, s:O, s:O, s:o, s:o}", "schema", 1, "feasible",
                            feasible, "model", c->model, "workload", c->workload, "warnings",
                            c->warnings, "machines", rows, "ranking", ranking);
    if (c->o->deadline_s > 0)
        aq_json_put(
            &doc, "deadline",
            json_pack("{s:o, s:o}", "seconds", aq_json_real(c->o->deadline_s), "met", met_json(c)));
    return doc;
}

/* What says that the job itself is wrong: no machine could be planned for. */
static int check_any(const struct comparison *c, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->machine[i].err.code == -ENOMEM)
            return aq_error(reterr, -ENOMEM, "%s", c->machine[i].err.text);
    }
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->machine[i].row)
            return 0;
    }
    return aq_error(reterr, c->machine[0].err.code, "%s", c->machine[0].err.text);
}

int aq_plan_machines(json_t **ret, const struct aq_options *o, const struct aq_log *log,
                     struct aq_err *reterr)
{
    struct aq_cpu_limits cpu;
    struct comparison c = {.o = o};
    aq_limits_cpu(&cpu, NULL);
    int rc = aq_plan_names(&c.names, o->hardware, reterr);
    if (rc < 0)
        return rc;
    c.count = c.names.count;
    c.machine = calloc(c.count, sizeof(*c.machine));
    for (uint32_t i = 0; c.machine && i < c.count; i++)
        c.machine[i] =
            (struct machine){.hardware = c.names.name[i], .order = INFINITY, .money = NAN};
    uint32_t threads = (uint32_t)aq_min_u64(cpu.threads, c.count);
    c.env = calloc(threads, sizeof(*c.env));
    if (!c.env || !c.machine)
        rc = aq_error_memory(reterr, "plan");
    if (rc == 0) {
        c.env[0].log = log;
        rc = plan_all(&c, threads, reterr);
    }
    rc = rc < 0 ? rc : check_any(&c, reterr);
    json_t *doc = rc == 0 ? document(&c) : NULL;
    for (uint32_t i = 0; c.machine && i < c.count && rc < 0; i++)
        json_decref(c.machine[i].row);
    if (rc == 0 && !doc)
        rc = aq_error_memory(reterr, "plan");
    json_decref(c.model);
    json_decref(c.workload);
    json_decref(c.warnings);
    free(c.env);
    free(c.machine);
    free(c.names.owned);
    if (rc == 0)
        *ret = doc;
    return rc;
}

int aq_plan_list(json_t **ret, struct aq_err *reterr)
{
    struct aq_hw_profile *p = malloc(sizeof(*p));
    json_t *rows = json_array();
    int rc = p ? 0 : aq_error_memory(reterr, "plan");
    for (uint32_t i = 0; aq_hw_built_in(i) && rc == 0; i++) {
        rc = aq_hw_find(p, aq_hw_built_in(i), NULL, reterr);
        json_t *row = rc == 0 ? aq_hw_json(p) : NULL;
        aq_json_put(&row, "hardware", json_string(aq_hw_built_in(i)));
        aq_json_add(&rows, row);
    }
    free(p);
    json_t *doc = json_pack("{s:i, s:o}", "schema", 1, "hardware", rows);
    if (rc == 0 && !doc)
        rc = aq_error_memory(reterr, "plan");
    if (rc < 0)
        json_decref(doc);
    else
        *ret = doc;
    return rc;
}
