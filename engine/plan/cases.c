/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan/cases.h"

#include "base/json.h"
#include "base/units.h"
#include "engine/options/kv.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SWEEP_ROWS_MAX = 1000, SWEEP_KEYS_MAX = 8, SENSITIVITY_OPS = 1000 * 1000 };

void aq_plan_case_close(struct aq_plan_case *c)
{
    aq_planning_close(c->p);
    aq_options_close(c->o);
    *c = (struct aq_plan_case){0};
}

/* ---- what is allowed ---- */

int aq_plan_case_changed(struct aq_plan_case *ret, const struct aq_options *o,
                         const json_t *changes, struct aq_planning_env *env, struct aq_err *reterr)
{
    struct aq_plan_case c = {0};
    const char *key;
    json_t *value, *options = changes ? aq_options_to_json(o) : NULL;
    json_object_foreach((json_t *)changes, key, value)
    {
        if (json_is_null(value))
            json_object_del(options, key);
        else
            aq_json_put(&options, key, json_incref(value));
    }
    int rc = options ? aq_options_from_json(&c.o, "plan", options, reterr)
                     : aq_error_memory(reterr, "plan");
    json_decref(options);
    rc = rc < 0 ? rc : aq_planning_open(&c.p, c.o, env, reterr);
    rc = rc < 0 ? rc : aq_planning_run(c.p, reterr);
    if (rc < 0) {
        aq_plan_case_close(&c);
        return rc;
    }
    aq_plan_case_close(ret);
    *ret = c;
    return 0;
}

/* Which of two plans is to be had, the first being less lossy. */
static bool is_better(const struct aq_planning *now, const struct aq_planning *best)
{
    double deadline = now->o->deadline_s, total = aq_planning_total_s(best);
    if (!best->feasible || !now->feasible)
        return now->feasible;
    if (deadline > 0 && total > 0 && total <= deadline)
        return false;
    return now->forecast.gen_tok_s > best->forecast.gen_tok_s;
}

/* Values of one kind that --allow opens, from the least lossy on; "" is what was asked for.  Of KV
 * policies with their names, or with that of the option to read a part of what is kept. */
static const char read_option[] = "kv-read";
enum { OPENED_MAX = 24 };
struct opened {
    const char *value[OPENED_MAX], *policy[OPENED_MAX];
    uint32_t count;
};

/* The policy of "NAME=BUDGET", one that has a budget, and the budget; NULL: it is none. */
static const char *policy_of(const char *item, const char **ret_budget)
{
    const char *equals = strchr(item, '=');
    for (uint32_t i = 1; equals && aq_kv_policy_at(i); i++) { /* 0 keeps everything */
        const char *name = aq_kv_policy_at(i)->name;
        if (strlen(name) == (size_t)(equals - item) && strncmp(item, name, strlen(name)) == 0) {
            *ret_budget = equals + 1;
            return name;
        }
    }
    return NULL;
}

/* "kv-read=N": N; NULL: it is none. */
static const char *read_of(const char *item)
{
    size_t n = sizeof(read_option) - 1;
    return strncmp(item, read_option, n) == 0 && item[n] == '=' ? item + n + 1 : NULL;
}

static int check_read(const char *value, struct aq_err *reterr)
{
    uint64_t slots;
    return aq_parse_u64(value, &slots) && slots <= INT32_MAX
               ? 0
               : aq_error(reterr, -EINVAL,
                          "--allow: kv-read: expected a number of slots, such as kv-read=2048, "
                          "found '%s'",
                          value);
}

static int wrong_item(const char *item, struct aq_err *reterr)
{
    char names[256] = "";
    size_t used = 0;
    for (uint32_t i = 1; aq_kv_policy_at(i) && used < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i > 1 ? ", " : "",
                                 aq_kv_policy_at(i)->name);
    return aq_error(
        reterr, -EINVAL,
        "--allow: expected int8, int4, kv-int8, kv-int4, kivi4, kivi2, kv-read=N or a KV "
        "policy with its budget, such as h2o=20%% or snapkv=2048 (of %s), found '%s'",
        names, item);
}

static bool is_kivi(const char *item)
{
    return strcmp(item, "kivi4") == 0 || strcmp(item, "kivi2") == 0;
}

/* A key cannot leave its group of codes, and heads have one residual. */
static bool goes_with_kivi(const char *policy)
{
    const struct aq_kv_policy_desc *d = policy ? aq_kv_policy_find(policy) : NULL;
    if (policy == read_option)
        return false;
    return !d || (d->decode.source == AQ_KV_SOURCE_NONE && d->heads == AQ_KV_HEADS_UNIFORM);
}

static int open_item(struct opened ret[3], const char *item, struct aq_err *reterr)
{
    const char *read = read_of(item), *budget = read;
    const char *policy = read ? read_option : policy_of(item, &budget);
    bool kv = strncmp(item, "kv-", 3) == 0;
    const char *value = policy ? budget : kv ? item + 3 : item;
    bool format = is_kivi(item) || strcmp(value, "int8") == 0 || strcmp(value, "int4") == 0;
    struct opened *of = &ret[policy ? 2 : kv || is_kivi(item) ? 1 : 0];
    struct aq_kv_amount amount;
    int rc = read     ? check_read(value, reterr)
             : policy ? aq_kv_amount_parse(&amount, "--allow", value, false, reterr)
                      : 0;
    if (rc < 0)
        return rc;
    if (!policy && !format)
        return wrong_item(item, reterr);
    if (of->count == OPENED_MAX)
        return aq_error(reterr, -EINVAL, "--allow: '%s': too many of a kind", item);
    of->policy[of->count] = policy;
    of->value[of->count++] = value;
    return 0;
}

static int read_allowed(struct opened ret[3], const struct aq_options *o, struct aq_err *reterr)
{
    int rc = 0;
    for (int i = 0; i < 3; i++)
        ret[i] = (struct opened){.value = {""}, .count = 1};
    for (uint32_t i = 0; i < o->allow.count && rc == 0; i++)
        rc = open_item(ret, o->allow.item[i], reterr);
    return rc;
}

const char *const aq_plan_opens_key[AQ_PLAN_OPENS_COUNT] = {
    [AQ_PLAN_OPENS_WEIGHTS] = "weight_format", [AQ_PLAN_OPENS_KV] = "kv_format",
    [AQ_PLAN_OPENS_POLICY] = "kv_policy",      [AQ_PLAN_OPENS_BUDGET] = "kv_budget",
    [AQ_PLAN_OPENS_READ] = "kv_read",
};

static void put_opens(json_t **changes, enum aq_plan_opens option, json_t *value)
{
    aq_json_put(changes, aq_plan_opens_key[option], value);
}

/* The options that item i of a kind sets: 0 weights, 1 KV, 2 policies and what is read. */
static void put_opened(json_t **changes, int kind, const struct opened *of, uint32_t i)
{
    const char *value = of->value[i];
    if (kind == 0) {
        put_opens(changes, AQ_PLAN_OPENS_WEIGHTS, json_string(value));
    } else if (kind == 1) {
        put_opens(changes, AQ_PLAN_OPENS_KV, json_string(value));
    } else if (of->policy[i] == read_option) {
        put_opens(changes, AQ_PLAN_OPENS_READ, json_integer(atoll(value)));
    } else {
        put_opens(changes, AQ_PLAN_OPENS_POLICY, json_string(of->policy[i]));
        put_opens(changes, AQ_PLAN_OPENS_BUDGET, json_string(value));
    }
}

int aq_plan_allowed(json_t **ret, const struct aq_options *o, struct aq_err *reterr)
{
    json_t *list = json_array();
    int rc = 0;
    for (uint32_t i = 0; i < o->allow.count && rc == 0; i++) {
        struct opened opened[3] = {0};
        json_t *changes = json_object();
        rc = open_item(opened, o->allow.item[i], reterr);
        for (int kind = 0; kind < 3; kind++) {
            if (opened[kind].count)
                put_opened(&changes, kind, &opened[kind], 0);
        }
        aq_json_add(&list, json_pack("{s:s, s:o}", "name", o->allow.item[i], "changes", changes));
    }
    if (rc == 0 && !list)
        rc = aq_error_memory(reterr, "--allow");
    if (rc < 0)
        json_decref(list);
    else
        *ret = list;
    return rc;
}

int aq_plan_case_open(struct aq_plan_case *ret, const struct aq_options *o, const json_t *changes,
                      struct aq_planning_env *env, struct aq_err *reterr)
{
    struct aq_plan_case best = {0}, now = {0};
    struct opened opened[3];
    int rc = read_allowed(opened, o, reterr);
    for (uint32_t h = 0; h < opened[2].count && rc == 0; h++) {
        for (uint32_t w = 0; w < opened[0].count && rc == 0; w++) {
            for (uint32_t k = 0; k < opened[1].count && rc == 0; k++) {
                if (is_kivi(opened[1].value[k]) && !goes_with_kivi(opened[2].policy[h]))
                    continue;
                json_t *all = changes ? aq_json_copy(changes) : json_object();
                if (w)
                    put_opened(&all, 0, &opened[0], w);
                if (k)
                    put_opened(&all, 1, &opened[1], k);
                if (h)
                    put_opened(&all, 2, &opened[2], h);
                rc = aq_plan_case_changed(best.p ? &now : &best, o, all, env, reterr);
                json_decref(all);
                if (rc == 0 && now.p && is_better(now.p, best.p)) {
                    struct aq_plan_case better = now;
                    now = best;
                    best = better;
                }
            }
        }
    }
    aq_plan_case_close(&now);
    if (rc < 0) {
        aq_plan_case_close(&best);
        return rc;
    }
    *ret = best;
    return 0;
}

/* ---- what more would buy ---- */

static const char *const more[] = {
    "device memory",  "host memory",     "link both ways",
    "disk both ways", "device products", "host attention and products",
};

/* A tenth more of a resource; false where the machine has none of its own. */
static bool add_tenth(struct aq_planning *p, uint32_t of)
{
    struct aq_hardware *hw = &p->hw;
    struct aq_hw_side *side = of == 4 ? &hw->device : &hw->host;
    const double times = 1.1;
    switch (of) {
    case 0: p->in.budget[AQ_DEVICE] += p->in.budget[AQ_DEVICE] / 10; return p->in.separate;
    case 1: p->in.budget[AQ_HOST] += p->in.budget[AQ_HOST] / 10; return true;
    case 2:
        hw->h2d_bytes_per_s *= times;
        hw->d2h_bytes_per_s *= times;
        return p->in.separate;
    case 3:
        hw->disk_read_bytes_per_s *= times;
        hw->disk_write_bytes_per_s *= times;
        return p->in.can_stream;
    case 4:
        for (int t = 0; t < AQ_DTYPE_COUNT; t++)
            side->product_flops_per_s[t] *= times;
        aq_hardware_scale_attention(side, 1, times);
        return true;
    default:
        for (int t = 0; t < AQ_DTYPE_COUNT; t++)
            side->product_flops_per_s[t] *= times;
        for (size_t i = 0; i < AQ_ARRAY_LEN(side->code_bytes_per_s); i++)
            side->code_bytes_per_s[i] *= times;
        side->product_bytes_per_s *= times;
        aq_hardware_scale_attention(side, times, times);
        hw->host_memory_bytes_per_s *= times;
        return p->in.separate;
    }
}

/* The same kind of block, placed anew; with other memory also other seats.  What else could be is
 * not worth its time here. */
static void keep_kind(struct aq_planning *q, const struct aq_planning *p, bool seats_free)
{
    const struct aq_plan *plan = &p->block.plan;
    q->in.micro_batches = plan->shape.micro_batches;
    if (!seats_free)
        q->in.micro_batch = plan->shape.micro_batch;
    if (q->in.attention_auto && aq_plan_attention(&q->in.attention, plan))
        q->in.attention_auto = false;
    q->in.host_products_auto = false;
    q->in.side_by_side = plan->side_by_side;
    q->in.side_by_side_auto = false;
    q->in.host_products = plan->host_products;
    q->in.plan_ops = SENSITIVITY_OPS;
}

int aq_plan_sensitivity(json_t **ret, const struct aq_planning *p, struct aq_err *reterr)
{
    json_t *rows = json_array();
    int rc = 0;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(more) && rc == 0; i++) {
        struct aq_planning *q = malloc(sizeof(*q));
        if (!q) {
            rc = aq_error_memory(reterr, "plan");
            break;
        }
        *q = *p;
        q->block = (struct aq_block){0};
        q->in.hw = &q->hw;
        keep_kind(q, p, i < 2);
        if (add_tenth(q, i)) {
            rc = aq_planning_run(q, reterr);
            bool better = rc == 0 && q->feasible && q->forecast.gen_tok_s > p->forecast.gen_tok_s;
            char change[64];
            snprintf(change, sizeof(change), "+10 %% %s", more[i]);
            aq_json_add(&rows, json_pack("{s:s, s:o}", "change", change, "gen_tok_s",
                                         aq_json_real((better ? q : p)->forecast.gen_tok_s)));
        }
        aq_block_close(&q->block);
        aq_block_close(&q->other);
        free(q);
    }
    if (rc == 0 && !rows)
        rc = aq_error_memory(reterr, "plan");
    if (rc < 0)
        json_decref(rows);
    else
        *ret = rows;
    return rc;
}

/* ---- what would help ---- */

int aq_plan_largest(json_t **ret, const struct aq_planning *p, struct aq_planning_env *env,
                    struct aq_err *reterr)
{
    struct aq_plan_case c = {0};
    *ret = json_null();
    if (!p->o->micro_batch)
        return 0; /* nobody asked for more than the least */
    json_t *changes = json_pack("{s:n, s:n}", "micro_batch", "allow");
    int rc = aq_plan_case_changed(&c, p->o, changes, env, reterr);
    json_decref(changes);
    if (rc == 0 && c.p->feasible)
        *ret = json_pack("{s:i, s:i, s:o}", "micro_batch", (int)c.p->block.plan.shape.micro_batch,
                         "micro_batches", (int)c.p->block.plan.shape.micro_batches, "gen_tok_s",
                         aq_json_real(c.p->forecast.gen_tok_s));
    aq_plan_case_close(&c);
    return rc;
}

static int try_fix(json_t **fixes, const struct aq_planning *p, const char *change, bool lossy,
                   json_t *changes, struct aq_planning_env *env, struct aq_err *reterr)
{
    struct aq_plan_case c = {0};
    struct aq_err err;
    aq_json_put(&changes, "allow", json_null());
    int rc = aq_plan_case_changed(&c, p->o, changes, env, &err);
    json_decref(changes);
    if (rc == -ENOMEM)
        return aq_error(reterr, rc, "%s", err.text);
    bool feasible = rc == 0 && c.p->feasible; /* or it does not go with another choice */
    aq_json_add(fixes, json_pack("{s:s, s:b, s:o, s:b}", "change", change, "feasible", feasible,
                                 "gen_tok_s",
                                 feasible ? aq_json_real(c.p->forecast.gen_tok_s) : json_null(),
                                 "lossy", lossy));
    aq_plan_case_close(&c);
    return 0;
}

/* Options, and what they are called, that would make room. */
struct room {
    json_t *changes;
    struct aq_buf text;
    uint64_t disk_more; /* bytes to be freed on this machine's disk */
};

static void put_room(struct room *r, const char *key, uint64_t bytes)
{
    aq_json_put(&r->changes, key, json_integer((json_int_t)bytes));
    aq_buf_puts(&r->text, r->text.count ? " --" : "--");
    for (const char *c = key; *c; c++)
        aq_buf_printf(&r->text, "%c", *c == '_' ? '-' : *c);
    aq_buf_printf(&r->text, " %lluMiB", (unsigned long long)(bytes / AQ_MIB));
}

/* On a machine that is here, files have to go; on another one, the disk may be a larger one. */
static void put_disk_room(struct room *r, const struct aq_planning *p, uint64_t scratch)
{
    const struct aq_planning_disk *d = &p->disk;
    uint64_t all = d->store + aq_max_u64(scratch, 64 * AQ_MIB), tenth = AQ_GIB / 10;
    if (all <= d->budget || !p->local)
        put_room(r, "disk_memory", all <= d->budget ? scratch : aq_align_up(all, 64 * AQ_MIB));
    if (all <= d->budget || !p->local)
        return;
    uint64_t free = all / 19 * 20 + 20; /* less 5 % it is enough */
    r->disk_more = aq_div_up(free - d->there, tenth) * tenth;
    if (p->o->disk_memory && p->o->disk_memory < scratch)
        put_room(r, "disk_memory", scratch);
    aq_buf_printf(&r->text, "%sfree %.1f GiB on '%s'", r->text.count ? ", " : "",
                  (double)r->disk_more / (double)AQ_GIB, d->dir);
}

/* Budgets that would do for the least that was asked for, a little above it. */
static int try_budgets(json_t **fixes, const struct aq_planning *p, const struct aq_block *least,
                       struct aq_planning_env *env, struct aq_err *reterr)
{
    bool on_disk = (least == &p->block) == p->disk_short;
    static const char *const key[] = {"device_memory", "host_memory"};
    struct room r = {.changes = json_object()};
    uint64_t emulated = p->o->emulate_device;
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        uint64_t needed = aq_ledger_total(&least->ledger, (enum aq_tier)t);
        uint64_t enough = aq_align_up(needed + needed / 50, 64 * AQ_MIB);
        bool disk_short = t == AQ_DISK && p->disk.small && on_disk;
        if (needed <= p->in.budget[t] && !disk_short)
            continue;
        if (t == AQ_HOST && emulated) /* whose memory lies inside */
            enough += aq_max_u64(emulated, aq_ledger_total(&least->ledger, AQ_DEVICE) * 11 / 10);
        if (t == AQ_DISK)
            put_disk_room(&r, p, enough);
        else
            put_room(&r, t == AQ_DEVICE && emulated ? "emulate_device" : key[t], enough);
    }
    int rc = 0;
    env->disk_more = r.disk_more;
    if (r.text.failed || !r.changes)
        rc = aq_error_memory(reterr, "plan");
    else if (r.text.count)
        rc = try_fix(fixes, p, r.text.data, false, json_incref(r.changes), env, reterr);
    env->disk_more = 0;
    json_decref(r.changes);
    aq_buf_close(&r.text);
    return rc;
}

int aq_plan_fixes(json_t **ret, const struct aq_planning *p, struct aq_planning_env *env,
                  struct aq_err *reterr)
{
    static const struct {
        const char *change, *key, *value, *key2, *value2;
    } lossy[] = {
        {"--kv-format int8", "kv_format", "int8", NULL, NULL},
        {"--weight-format int8", "weight_format", "int8", NULL, NULL},
        {"--weight-format int4", "weight_format", "int4", NULL, NULL},
        {"--kv-policy h2o --kv-budget 20%", "kv_policy", "h2o", "kv_budget", "20%"},
    };
    json_t *fixes = json_array();
    int rc = try_budgets(&fixes, p, &p->block, env, reterr);
    if (rc == 0 && p->other.program.op_count)
        rc = try_budgets(&fixes, p, &p->other, env, reterr);
    if (rc == 0 && p->in.placement)
        rc = try_fix(&fixes, p, "--placement auto", false, json_pack("{s:n}", "placement"), env,
                     reterr);
    if (rc == 0 && p->o->micro_batch)
        rc = try_fix(&fixes, p, "--micro-batch auto", false, json_pack("{s:n}", "micro_batch"), env,
                     reterr);
    if (rc == 0 && p->o->micro_batches)
        rc = try_fix(&fixes, p, "--micro-batches auto", false, json_pack("{s:n}", "micro_batches"),
                     env, reterr);
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(lossy) && rc == 0; i++) {
        json_t *changes = json_pack("{s:s}", lossy[i].key, lossy[i].value);
        if (lossy[i].key2)
            aq_json_put(&changes, lossy[i].key2, json_string(lossy[i].value2));
        rc = try_fix(&fixes, p, lossy[i].change, true, changes, env, reterr);
    }
    if (rc == 0 && !fixes)
        rc = aq_error_memory(reterr, "plan");
    if (rc < 0)
        json_decref(fixes);
    else
        *ret = fixes;
    return rc;
}

/* ---- tables ---- */

struct axis {
    char *key; /* malloc'd, with the values behind it */
    const char *value[64];
    uint32_t count;
};

static int read_axis(struct axis *ret, const char *text, struct aq_err *reterr)
{
    char *at = strchr(text, '=') ? strdup(text) : NULL;
    *ret = (struct axis){.key = at};
    if (!at && strchr(text, '='))
        return aq_error_memory(reterr, "--sweep %s", text);
    if (!at)
        return aq_error(reterr, -EINVAL, "--sweep: expected KEY=A,B,..., found '%s'", text);
    at = strchr(at, '=');
    *at++ = '\0';
    for (char *c = ret->key; *c; c++)
        *c = *c == '-' ? '_' : *c;
    for (char *save = NULL, *v = strtok_r(at, ",", &save); v; v = strtok_r(NULL, ",", &save)) {
        if (ret->count == AQ_ARRAY_LEN(ret->value))
            return aq_error(reterr, -EINVAL, "--sweep %s: more than %zu values", ret->key,
                            AQ_ARRAY_LEN(ret->value));
        ret->value[ret->count++] = v;
    }
    return ret->count ? 0 : aq_error(reterr, -EINVAL, "--sweep %s: no values", ret->key);
}

json_t *aq_plan_row_json(const json_t *changes, const struct aq_planning *p)
{
    json_t *row = aq_json_copy(changes);
    aq_json_put(&row, "feasible", json_boolean(p->feasible));
    aq_json_put(&row, "gen_tok_s", p->feasible ? aq_json_real(p->forecast.gen_tok_s) : json_null());
    double total = aq_planning_total_s(p);
    aq_json_put(&row, "total_s", p->feasible && total > 0 ? aq_json_real(total) : json_null());
    aq_planning_put_cost(&row, p);
    if (p->feasible) {
        aq_json_put(&row, "plan", aq_planning_plan_json(p));
        aq_json_put(&row, "bound_by", json_string(aq_resource_name(p->forecast.binding)));
    } else {
        aq_json_put(&row, "shortfall", aq_planning_shortfall_json(p));
    }
    return row;
}

static int plan_row(json_t **rows, const struct aq_options *o, const struct axis *axis,
                    const uint32_t *at, uint32_t axes, struct aq_planning_env *env,
                    struct aq_err *reterr)
{
    json_t *changes = json_object(), *all;
    struct aq_plan_case c = {0};
    for (uint32_t i = 0; i < axes; i++)
        aq_json_put(&changes, axis[i].key, json_string(axis[i].value[at[i]]));
    all = aq_json_copy(changes);
    aq_json_put(&all, "sweep", json_null());
    int rc = aq_plan_case_open(&c, o, all, env, reterr);
    if (rc == 0)
        aq_json_add(rows, aq_plan_row_json(changes, c.p));
    else
        aq_error_prefix(reterr, "--sweep");
    aq_plan_case_close(&c);
    json_decref(all);
    json_decref(changes);
    return rc;
}

int aq_plan_sweep(json_t **ret, const struct aq_options *o, struct aq_planning_env *env,
                  struct aq_err *reterr)
{
    struct axis *axis = calloc(SWEEP_KEYS_MAX, sizeof(*axis));
    uint32_t at[SWEEP_KEYS_MAX] = {0}, axes = 0;
    uint64_t rows = 1;
    json_t *table = json_array();
    int rc = axis ? 0 : aq_error_memory(reterr, "--sweep");
    if (rc == 0 && o->sweep.count > SWEEP_KEYS_MAX)
        rc = aq_error(reterr, -EINVAL, "--sweep: at most %d keys", SWEEP_KEYS_MAX);
    for (; axes < o->sweep.count && rc == 0; axes++) {
        rc = read_axis(&axis[axes], o->sweep.item[axes], reterr);
        for (uint32_t i = 0; i < axes && rc == 0; i++) {
            if (strcmp(axis[i].key, axis[axes].key) == 0)
                rc = aq_error(reterr, -EINVAL, "--sweep: %s is given twice", axis[i].key);
        }
        rows *= rc == 0 ? axis[axes].count : 1;
    }
    if (rc == 0 && rows > SWEEP_ROWS_MAX)
        rc = aq_error(reterr, -EINVAL, "--sweep: %llu rows are more than %d",
                      (unsigned long long)rows, SWEEP_ROWS_MAX);
    for (uint64_t row = 0; row < rows && rc == 0; row++) {
        rc = plan_row(&table, o, axis, at, axes, env, reterr);
        for (uint32_t i = axes; i-- > 0;) { /* the last key runs fastest */
            if (++at[i] < axis[i].count)
                break;
            at[i] = 0;
        }
    }
    for (uint32_t i = 0; i < axes; i++)
        free(axis[i].key);
    free(axis);
    if (rc == 0 && !table)
        rc = aq_error_memory(reterr, "--sweep");
    if (rc < 0)
        json_decref(table);
    else
        *ret = table;
    return rc;
}
