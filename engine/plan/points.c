/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan/points.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/units.h"
#include "engine/plan/command.h"
#include "engine/plan/grid.h"

#include <stdio.h>
#include <string.h>

/* ---- variants: what may be lossy ---- */

/* What the search of --allow changed. */
static json_t *chosen_changes(const struct aq_options *o, const struct aq_plan_case *asked)
{
    json_t *before = aq_options_to_json(o), *after = aq_options_to_json(asked->o);
    json_t *changes = before && after ? json_object() : NULL;
    for (size_t i = 0; i < AQ_PLAN_OPENS_COUNT; i++) {
        json_t *v = json_object_get(after, aq_plan_opens_key[i]);
        if (v && !json_equal(v, json_object_get(before, aq_plan_opens_key[i])))
            aq_json_put(&changes, aq_plan_opens_key[i], json_incref(v));
    }
    json_decref(before);
    json_decref(after);
    return changes;
}

/* A name for a choice of several things, such as "int8 + h2o=20%". */
static json_t *combined_name(const json_t *list, const json_t *changes)
{
    struct aq_buf text = {0};
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item)
    {
        const char *key;
        json_t *v;
        bool part = true;
        json_object_foreach(json_object_get(item, "changes"), key, v) part &=
            json_equal(v, json_object_get(changes, key)) == 1;
        if (part && i) /* the first is what was asked for */
            aq_buf_printf(&text, "%s%s", text.count ? " + " : "",
                          json_string_value(json_object_get(item, "name")));
    }
    json_t *name = text.failed ? NULL : aq_json_string(text.data ? text.data : "");
    aq_buf_close(&text);
    return name;
}

/* What was asked for, what --allow opens one by one, and what it chose; the place of that. */
static int make_variants(json_t **ret, uint32_t *ret_chosen, const struct aq_options *o,
                         const struct aq_plan_case *asked, struct aq_err *reterr)
{
    json_t *allowed, *list = json_array(), *changes = chosen_changes(o, asked), *item;
    size_t i;
    int rc = aq_plan_allowed(&allowed, o, reterr);
    if (rc < 0)
        goto out;
    aq_json_add(&list, json_pack("{s:s, s:{}}", "name", "as asked for", "changes"));
    json_array_foreach(allowed, i, item) aq_json_add(&list, json_incref(item));
    json_decref(allowed);
    *ret_chosen = UINT32_MAX;
    json_array_foreach(list, i, item)
    {
        if (json_equal(json_object_get(item, "changes"), changes))
            *ret_chosen = (uint32_t)i;
    }
    if (*ret_chosen == UINT32_MAX) {
        *ret_chosen = (uint32_t)json_array_size(list);
        aq_json_add(&list, json_pack("{s:o, s:O}", "name", combined_name(list, changes), "changes",
                                     changes));
    }
    if (!list || !changes)
        rc = aq_error_memory(reterr, "--html");
out:
    json_decref(changes);
    if (rc < 0)
        json_decref(list);
    else
        *ret = list;
    return rc;
}

/* ---- the grid ---- */

static void make_grid(struct aq_plan_grid *g, const struct aq_planning *p, uint64_t points_max)
{
    uint64_t emulated = p->o->emulate_device;
    uint64_t host = p->in.budget[AQ_HOST] + emulated, device = p->in.budget[AQ_DEVICE];
    aq_plan_grid_add(
        g, &(struct aq_plan_axis){.key = "host_memory", .name = "Host memory", .unit = AQ_MIB},
        (struct aq_plan_level){host, host});
    if (!p->o->input && !p->o->lengths) { /* else a file says them */
        aq_plan_grid_add(g,
                         &(struct aq_plan_axis){.key = "prompt_len",
                                                .name = "Prompt length",
                                                .unit = 1,
                                                .length = true,
                                                .most = p->positions},
                         (struct aq_plan_level){p->prompt[0], p->prompt[1]});
        aq_plan_grid_add(
            g,
            &(struct aq_plan_axis){
                .key = "gen_len", .name = "Generated tokens", .unit = 1, .length = true},
            (struct aq_plan_level){p->gen[0], p->gen[1]});
    }
    if (aq_planning_has_device(p)) /* an emulated one lies inside the host's budget */
        aq_plan_grid_add(
            g,
            &(struct aq_plan_axis){.key = "device_memory", .name = "Device memory", .unit = AQ_MIB},
            (struct aq_plan_level){device, device});
    aq_plan_grid_grow(g, points_max, p->context);
}

static json_t *axes_json(const struct aq_plan_grid *g)
{
    json_t *axes = json_array();
    for (uint32_t i = 0; i < g->count; i++) {
        const struct aq_plan_axis *a = &g->axis[i];
        json_t *low = json_array(), *high = json_array();
        for (uint32_t l = 0; l < a->count; l++) {
            aq_json_add(&low, json_integer((json_int_t)a->level[l].low));
            aq_json_add(&high, json_integer((json_int_t)a->level[l].high));
        }
        aq_json_add(&axes, json_pack("{s:s, s:s, s:s, s:i, s:o, s:o}", "key", a->key, "name",
                                     a->name, "unit", a->length ? "tokens" : "bytes", "asked",
                                     (int)a->at, "low", low, "high", high));
    }
    return axes;
}

/* ---- points ---- */

static json_t *memory_json(const struct aq_planning *p)
{
    json_t *all = aq_planning_memory_json(p), *short_of = json_object(), *m;
    const char *tier;
    json_object_foreach(all, tier, m)
    {
        json_object_del(m, "items");
        aq_json_put(&short_of, tier, json_incref(m));
    }
    json_decref(all);
    return short_of;
}

static json_t *point_json(const struct aq_planning *p)
{
    const struct aq_forecast *f = &p->forecast;
    if (!p->feasible)
        return json_pack("{s:b, s:o}", "feasible", false, "reason",
                         aq_json_string(p->why_not.text));
    json_t *o = json_pack("{s:b, s:o, s:o, s:o, s:o, s:o, s:s}", "feasible", true, "predicted",
                          aq_planning_predicted_json(p), "plan", aq_planning_plan_json(p), "memory",
                          memory_json(p), "range", aq_planning_range_json(p), "command",
                          aq_plan_command_json(p), "bound_by", aq_resource_name(f->binding));
    aq_json_put(&o, "gen_mean", aq_json_real(p->work.total - p->work.prompt));
    return o;
}

static json_t *level_json(const struct aq_plan_axis *a, uint32_t at)
{
    const struct aq_plan_level *l = &a->level[at];
    char text[48];
    if (!a->length)
        return json_integer((json_int_t)l->high);
    if (l->low == l->high)
        snprintf(text, sizeof(text), "%llu", (unsigned long long)l->high);
    else
        snprintf(text, sizeof(text), "%llu-%llu", (unsigned long long)l->low,
                 (unsigned long long)l->high);
    return json_string(text);
}

/* Options that belong to the page and the search, not to a point. */
static const char *const not_of_points[] = {"allow", "sweep",        "html", "html_points",
                                            "json",  "write_config", NULL};

static int add_point(json_t **points, const struct aq_options *o, const struct aq_plan_grid *g,
                     const uint32_t *at, const json_t *variant, struct aq_planning_env *env,
                     struct aq_err *reterr)
{
    struct aq_plan_case c = {0};
    struct aq_err err;
    json_t *changes = aq_json_copy(json_object_get(variant, "changes"));
    for (uint32_t i = 0; not_of_points[i]; i++)
        aq_json_put(&changes, not_of_points[i], json_null());
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->axis[i].count > 1)
            aq_json_put(&changes, g->axis[i].key, level_json(&g->axis[i], at[i]));
    }
    int rc =
        changes ? aq_plan_case_changed(&c, o, changes, env, &err) : aq_error_memory(&err, "--html");
    json_decref(changes);
    if (rc == -ENOMEM)
        return aq_error(reterr, rc, "%s", err.text);
    /* An error else: what was changed does not go with another choice. */
    aq_json_add(points, rc == 0 ? point_json(c.p)
                                : json_pack("{s:b, s:o}", "feasible", false, "reason",
                                            aq_json_string(err.text)));
    aq_plan_case_close(&c);
    return 0;
}

static bool is_asked(const struct aq_plan_grid *g, const uint32_t *at)
{
    for (uint32_t i = 0; i < g->count; i++) {
        if (at[i] != g->axis[i].at)
            return false;
    }
    return true;
}

static int make_points(json_t **ret, const struct aq_options *o, const struct aq_plan_case *asked,
                       const struct aq_plan_grid *g, const json_t *variants, uint32_t chosen,
                       struct aq_planning_env *env, struct aq_err *reterr)
{
    json_t *points = json_array(), *variant;
    size_t v;
    int rc = 0;
    json_array_foreach((json_t *)variants, v, variant)
    {
        for (uint64_t i = 0; i < aq_plan_grid_points(g) && rc == 0; i++) {
            uint32_t at[AQ_PLAN_AXES_MAX];
            aq_plan_grid_at(at, g, i);
            if (v == chosen && is_asked(g, at))
                aq_json_add(&points, point_json(asked->p)); /* which is planned already */
            else
                rc = add_point(&points, o, g, at, variant, env, reterr);
        }
    }
    if (rc == 0 && !points)
        rc = aq_error_memory(reterr, "--html");
    if (rc < 0)
        json_decref(points);
    else
        *ret = points;
    return rc;
}

/* ---- commands ---- */

static json_t *words_json(const json_t *options)
{
    struct aq_buf out = {.failed = !options};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)options, key, v) aq_options_put_flag(&out, "plan", key, v);
    json_t *ret = out.failed ? NULL : aq_json_string(out.data ? out.data : "");
    aq_buf_close(&out);
    return ret;
}

/* The options of a plan without those that the page chooses: its script adds them. */
static json_t *plan_words(const struct aq_options *o, const struct aq_plan_grid *g)
{
    json_t *options = aq_options_to_json(o);
    for (uint32_t i = 0; not_of_points[i]; i++)
        json_object_del(options, not_of_points[i]);
    for (size_t i = 0; i < AQ_PLAN_OPENS_COUNT; i++)
        json_object_del(options, aq_plan_opens_key[i]);
    for (uint32_t i = 0; i < g->count; i++)
        json_object_del(options, g->axis[i].key);
    json_object_del(options, "command");
    json_object_del(options, "requests");
    json_t *words = words_json(options);
    json_decref(options);
    return words;
}

/* Each variant's options as words, also those that were given for all. */
static json_t *variants_json(const struct aq_options *o, const json_t *variants)
{
    json_t *list = json_array(), *given = aq_options_to_json(o), *variant;
    size_t v;
    json_array_foreach((json_t *)variants, v, variant)
    {
        json_t *options = given ? json_object() : NULL;
        for (size_t i = 0; i < AQ_PLAN_OPENS_COUNT; i++) {
            json_t *value =
                json_object_get(json_object_get(variant, "changes"), aq_plan_opens_key[i]);
            value = value ? value : json_object_get(given, aq_plan_opens_key[i]);
            if (value)
                aq_json_put(&options, aq_plan_opens_key[i], json_incref(value));
        }
        aq_json_add(&list, json_pack("{s:O, s:o}", "name", json_object_get(variant, "name"),
                                     "words", words_json(options)));
        json_decref(options);
    }
    json_decref(given);
    return list;
}

int aq_plan_points(json_t **ret, const struct aq_options *o, const struct aq_plan_case *asked,
                   struct aq_planning_env *env, struct aq_err *reterr)
{
    struct aq_plan_grid g = {0};
    json_t *variants = NULL, *points = NULL;
    uint32_t chosen = 0;
    double start_s = aq_clock_s();
    int rc = make_variants(&variants, &chosen, o, asked, reterr);
    if (rc < 0)
        return rc;
    uint32_t count = (uint32_t)json_array_size(variants);
    if (count > o->html_points) {
        json_decref(variants);
        return aq_error(reterr, -EINVAL,
                        "--html-points %u: expected at least %u, one for each thing that --allow "
                        "opens and for what was asked, or 0 for no sliders",
                        o->html_points, count);
    }
    make_grid(&g, asked->p, o->html_points / count);
    /* The work that a file says is that of all points, and is read once. */
    const struct aq_planning *like = env->like;
    if (o->input || o->lengths)
        env->like = asked->p;
    aq_log_line(env->log, AQ_LOG_INFO, "--html: planning %llu points for the sliders",
                (unsigned long long)(count * aq_plan_grid_points(&g)));
    rc = make_points(&points, o, asked, &g, variants, chosen, env, reterr);
    env->like = like;
    if (rc == 0) {
        uint64_t requests = asked->p->requests_assumed ? 0 : asked->p->in.sequences;
        char took[AQ_SIZE_TEXT_MAX];
        json_t *doc = json_pack(
            "{s:o, s:o, s:i, s:o, s:o, s:o, s:o}", "axes", axes_json(&g), "variants",
            variants_json(o, variants), "variant", (int)chosen, "requests",
            requests ? json_integer((json_int_t)requests) : json_null(), "price",
            aq_hw_price_json(&asked->p->price), "plan_words", plan_words(o, &g), "points", points);
        if (doc)
            *ret = doc;
        else
            rc = aq_error_memory(reterr, "--html");
        aq_log_line(env->log, AQ_LOG_INFO,
                    "--html: that took %s; --html-points takes fewer or more, 0 none",
                    aq_format_duration(took, aq_clock_s() - start_s));
    }
    json_decref(variants);
    return rc;
}
