/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan/sizes.h"

#include "base/json.h"
#include "base/kv_block.h"
#include "base/units.h"
#include "engine/model/arch/arch.h"
#include "engine/plan/machines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const enum aq_dtype weight_formats[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};
static const enum aq_dtype kv_formats[] = {AQ_F32, AQ_F16,   AQ_BF16, AQ_Q8,
                                           AQ_Q4,  AQ_KIVI4, AQ_KIVI2};

/* ---- the model ---- */

static uint64_t weight_bytes(const struct aq_model *m, enum aq_dtype format)
{
    struct aq_block_inputs in = {
        .steps = &m->steps, .weight_format = format, .table_format = aq_model_table_dtype(m)};
    uint64_t matrices, vectors;
    aq_block_weight_bytes(&in, &matrices, &vectors);
    return matrices + vectors;
}

/* Of all layers; those with a window hold no more than it. */
static double kv_bytes(const struct aq_model_steps *m, enum aq_dtype format)
{
    return (double)aq_kv_block_bytes(format, m->head_dim) * m->kv_heads * m->layers /
           AQ_HEAD_BLOCK_SLOTS;
}

/* Those of a run of this model where nothing else is asked for. */
static enum aq_dtype own_weights(const struct aq_model *m)
{
    int store = aq_model_store_format(m);
    return store >= 0 ? (enum aq_dtype)store : m->checkpoint_dtype;
}

static enum aq_dtype own_kv(const struct aq_model *m)
{
    return m->checkpoint_dtype == AQ_BF16 ? AQ_BF16 : AQ_F16;
}

static json_t *model_json(const struct aq_model *m)
{
    const struct aq_model_steps *s = &m->steps;
    char windows[80];
    json_t *weights = json_object(), *kv = json_object();
    for (size_t i = 0; i < AQ_ARRAY_LEN(weight_formats); i++)
        aq_json_put(&weights, aq_dtype_name(weight_formats[i]),
                    json_integer((json_int_t)weight_bytes(m, weight_formats[i])));
    for (size_t i = 0; i < AQ_ARRAY_LEN(kv_formats); i++)
        aq_json_put(&kv, aq_dtype_name(kv_formats[i]), aq_json_real(kv_bytes(s, kv_formats[i])));
    json_t *o = json_pack(
        "{s:i, s:o, s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:o, s:o}", "schema", 1,
        "model", aq_json_string(m->name), "architecture", m->config.arch->name, "parameters",
        (json_int_t)s->parameters, "layers", (int)s->layers, "hidden", (int)s->hidden, "heads",
        (int)s->heads, "kv_heads", (int)s->kv_heads, "head_dim", (int)s->head_dim, "vocab",
        (int)s->vocab, "context", (int)s->context, "weight_format", aq_dtype_name(own_weights(m)),
        "kv_format", aq_dtype_name(own_kv(m)), "weights", weights, "kv_bytes_per_token", kv);
    if (*m->quantised)
        aq_json_put(&o, "quantised", aq_json_string(m->quantised));
    if (aq_kv_windows_text(windows, sizeof(windows), s))
        aq_json_put(&o, "kv_windows", json_string(windows));
    return o;
}

/* ---- machines ---- */

/* Where the weights lie at best, and how many tokens' KV the memory beside them has room for. */
static json_t *fit_json(const uint64_t budget[AQ_TIER_COUNT], bool streams, uint64_t weights,
                        double token)
{
    double device = (double)budget[AQ_DEVICE], memory = device + (double)budget[AQ_HOST],
           size = (double)weights;
    bool disk = streams && weights <= budget[AQ_DISK];
    const char *where = budget[AQ_DEVICE] && size <= device ? "device"
                        : size <= memory                    ? "host"
                        : disk                              ? "disk"
                                                            : NULL;
    double left = size <= memory ? memory - size : where ? memory : 0;
    double near = where && size <= device ? device - size : 0;
    return json_pack("{s:s?, s:I, s:I}", "where", where, "kv_tokens", (json_int_t)(left / token),
                     "device_kv_tokens", (json_int_t)(near / token));
}

static json_t *machine_json(const struct aq_hw_profile *p, const char *hardware,
                            const struct aq_model *m)
{
    uint64_t budget[AQ_TIER_COUNT];
    json_t *fits = json_object();
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        budget[t] = aq_planned_usable((enum aq_tier)t, p->capacity[t]);
    for (size_t i = 0; i < AQ_ARRAY_LEN(weight_formats); i++)
        aq_json_put(&fits, aq_dtype_name(weight_formats[i]),
                    fit_json(budget, p->hw.disk_read_bytes_per_s > 0,
                             weight_bytes(m, weight_formats[i]), kv_bytes(&m->steps, own_kv(m))));
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:o}", "hardware", hardware, "name", p->name,
                     "device", (json_int_t)budget[AQ_DEVICE], "host", (json_int_t)budget[AQ_HOST],
                     "disk", (json_int_t)budget[AQ_DISK], "fits", fits);
}

static int machines_json(json_t **ret, const struct aq_options *o, const struct aq_model *m,
                         struct aq_err *reterr)
{
    struct aq_plan_names names = {0};
    struct aq_hw_profile *p = malloc(sizeof(*p));
    json_t *rows = json_array();
    int rc = p ? aq_plan_names(&names, o->hardware ? o->hardware : "all", reterr)
               : aq_error_memory(reterr, "info");
    for (uint32_t i = 0; i < names.count && rc == 0; i++) {
        if (strcmp(names.name[i], "local") == 0)
            rc = aq_error(reterr, -EINVAL,
                          "--hardware local: aquifer plan measures this machine; aquifer info "
                          "without --model has its limits");
        else
            rc = aq_hw_find(p, names.name[i], NULL, reterr);
        if (rc == 0)
            aq_json_add(&rows, machine_json(p, names.name[i], m));
    }
    free(names.owned);
    free(p);
    if (rc < 0)
        json_decref(rows);
    else
        *ret = rows;
    return rc;
}

int aq_plan_sizes(json_t **ret, const struct aq_options *o, const struct aq_log *log,
                  struct aq_err *reterr)
{
    struct aq_model *m = NULL;
    struct aq_model_opts opts = {.dir = o->model, .shape = o->model ? NULL : o->shape, .log = log};
    json_t *rows, *doc = NULL;
    int rc = aq_model_open(&m, &opts, reterr);
    if (rc < 0)
        return rc;
    rc = machines_json(&rows, o, m, reterr);
    if (rc == 0) {
        doc = model_json(m);
        aq_json_put(&doc, "machines", rows);
        rc = doc ? 0 : aq_error_memory(reterr, "info");
    }
    aq_model_close(m);
    if (rc == 0)
        *ret = doc;
    return rc;
}

/* ---- as text ---- */

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "-";
}

static void put_sizes(const char *title, const json_t *sizes, const char *unit,
                      const struct aquifer_hooks *hooks)
{
    const char *format, *join = " ";
    json_t *bytes;
    char size[AQ_SIZE_TEXT_MAX];
    aq_hooks_outputf(hooks, "  %-9s", title);
    json_object_foreach((json_t *)sizes, format, bytes)
    {
        aq_format_size(size, (uint64_t)json_number_value(bytes));
        aq_hooks_outputf(hooks, "%s%s %s", join, format, size);
        join = ", ";
    }
    aq_hooks_outputf(hooks, "%s\n", unit);
}

/* "12.3k" */
static const char *count_text(char text[16], double count)
{
    const char *unit = count >= 1e6 ? "M" : count >= 1e3 ? "k" : "";
    snprintf(text, 16, "%.3g%s",
             count >= 1e6   ? count / 1e6
             : count >= 1e3 ? count / 1e3
                            : count,
             unit);
    return text;
}

/* "device 1.2k + 12k": where the weights lie, and tokens of KV that the device's memory has room
 * for beside them, and the host's; elsewhere of both together. */
static void cell_text(char text[48], const json_t *fit)
{
    double tokens = number(fit, "kv_tokens"), near = number(fit, "device_kv_tokens");
    const char *where = json_string_value(json_object_get(fit, "where"));
    char a[16], b[16];
    snprintf(text, 48, "-");
    if (where && strcmp(where, "device") == 0)
        snprintf(text, 48, "%s %s + %s", where, count_text(a, near), count_text(b, tokens - near));
    else if (where)
        snprintf(text, 48, "%s %s", where, count_text(b, tokens));
}

static void put_head(const json_t *doc, const struct aquifer_hooks *hooks)
{
    const char *quantised = json_string_value(json_object_get(doc, "quantised"));
    double parameters = number(doc, "parameters");
    bool billions = parameters >= 1e9;
    aq_hooks_outputf(hooks, "%s (%s%s%s): %.4g %s parameters, %.0f layers of %.0f\n",
                     text_of(doc, "model"), text_of(doc, "architecture"),
                     quantised ? ", quantised as " : "", quantised ? quantised : "",
                     parameters / (billions ? 1e9 : 1e6), billions ? "billion" : "million",
                     number(doc, "layers"), number(doc, "hidden"));
    aq_hooks_outputf(hooks, "  %-9s %.0f heads of %.0f, %.0f of keys and values; %.0f positions\n",
                     "attention", number(doc, "heads"), number(doc, "head_dim"),
                     number(doc, "kv_heads"), number(doc, "context"));
}

static void put_machines(const json_t *doc, const char *const *formats, uint32_t count,
                         const struct aquifer_hooks *hooks)
{
    size_t i;
    json_t *row;
    char cell[48];
    aq_hooks_outputf(
        hooks,
        "where the weights lie at best, and tokens of KV (%s) that memory has room for "
        "beside them\n  %-16s",
        text_of(doc, "kv_format"), "");
    for (uint32_t f = 0; f < count; f++)
        aq_hooks_outputf(hooks, f + 1 < count ? "  %-22s" : "  %s\n", formats[f]);
    json_array_foreach(json_object_get(doc, "machines"), i, row)
    {
        aq_hooks_outputf(hooks, "  %-16s", text_of(row, "hardware"));
        for (uint32_t f = 0; f < count; f++) {
            cell_text(cell, json_object_get(json_object_get(row, "fits"), formats[f]));
            aq_hooks_outputf(hooks, f + 1 < count ? "  %-22s" : "  %s\n", cell);
        }
    }
}

void aq_plan_sizes_text(const json_t *doc, const struct aquifer_hooks *hooks)
{
    const char *own = text_of(doc, "weight_format");
    const char *const formats[] = {own, "int8", "int4"};
    uint32_t first = strcmp(own, "int8") == 0 ? 1 : strcmp(own, "int4") == 0 ? 2 : 0;
    put_head(doc, hooks);
    put_sizes("weights", json_object_get(doc, "weights"), "", hooks);
    put_sizes("KV", json_object_get(doc, "kv_bytes_per_token"), " a token", hooks);
    if (json_object_get(doc, "kv_windows"))
        aq_hooks_outputf(hooks, "            %s\n", text_of(doc, "kv_windows"));
    put_machines(doc, formats + first, AQ_ARRAY_LEN(formats) - first, hooks);
    aq_hooks_outputf(hooks, "a run takes buffers as well: aquifer plan says what fits it\n");
}
