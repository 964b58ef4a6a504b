/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/published.h"

#include "base/json.h"
#include "engine/core/planned.h"
#include "engine/machine/hw_file.h"
#include "engine/model/arch/arch.h"
#include "engine/model/shapes.h"
#include "engine/options/kv.h"
#include "engine/options/notation.h"
#include "policy/forecast.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row with everything that it is predicted from. */
struct row {
    const struct aq_table_row *row;
    const struct aq_table_engine *engine; /* NULL: the policy was not published */
    const char *machine;                  /* NULL: nor was the machine */
    struct aq_options *options;
    struct aq_model_steps steps;
    struct aq_hw_profile profile;
    struct aq_hardware hw; /* with what they measured of link and disk */
    uint32_t prompt, gen;
};

/* Theirs are checkpoints in f16, multiplied so. */
static struct aq_formats formats_of(const struct row *r)
{
    int weights = r->options->weight_format, kv = r->options->kv_format;
    return (struct aq_formats){.compute = AQ_F16,
                               .weights = weights < 0 ? AQ_F16 : (enum aq_dtype)weights,
                               .kv = kv < 0 ? AQ_F16 : (enum aq_dtype)kv};
}

static int find_machine(struct row *r, struct aq_err *reterr)
{
    const struct aq_table_engine *e = r->engine;
    int rc = aq_hw_find(&r->profile, r->machine, NULL, reterr);
    if (rc == 0 && (!r->profile.capacity[AQ_DEVICE] || r->profile.hw.device_on_host))
        rc = aq_error(reterr, -EINVAL, "hardware '%s': expected a device with memory of its own",
                      r->machine);
    if (rc < 0)
        return rc;
    struct aq_formats formats = formats_of(r);
    r->hw = aq_hw_for_formats(&r->profile, formats.compute, formats.weights, formats.kv);
    if (e && e->link_bytes_per_s > 0)
        r->hw.h2d_bytes_per_s = r->hw.d2h_bytes_per_s = e->link_bytes_per_s;
    if (e && e->disk_read_bytes_per_s > 0)
        r->hw.disk_read_bytes_per_s = e->disk_read_bytes_per_s;
    if (e && e->disk_write_bytes_per_s > 0)
        r->hw.disk_write_bytes_per_s = e->disk_write_bytes_per_s;
    return 0;
}

static int open_row(struct row *r, const struct aq_table *t, const struct aq_table_row *row,
                    struct aq_err *reterr)
{
    struct aq_model_config config;
    *r = (struct row){.row = row};
    int rc = aq_options_from_json(&r->options, "bench", row->options, reterr);
    rc = rc < 0 ? rc : aq_options_check(r->options, reterr);
    if (rc < 0)
        return rc;
    const struct aq_options *o = r->options;
    if (!o->shape || o->prompt_len_count != 1 || o->gen_len_count != 1)
        return aq_error(reterr, -EINVAL, "expected one shape, prompt-len and gen-len");
    r->prompt = o->prompt_len[0];
    r->gen = o->gen_len[0];
    r->engine = row->has_policy ? &t->engine[row->policy.engine] : NULL;
    r->machine = r->engine ? r->engine->hardware : row->machine;
    rc = aq_shape_find(&config, o->shape, reterr);
    rc = rc < 0 ? rc : aq_arch_steps(&r->steps, &config, reterr);
    return rc < 0 || !r->machine ? rc : find_machine(r, reterr);
}

static void close_row(struct row *r)
{
    aq_options_close(r->options);
    aq_steps_close(&r->steps);
}

/* ---- theirs ------------------------------------------------------------------------------ */

/* A pair of their six percentages; the rest is on disk. */
static struct aq_shares shares(const double *pair)
{
    return (struct aq_shares){{pair[0], pair[1], 100 - pair[0] - pair[1]}};
}

static struct aq_flexgen_run run_of(const struct row *r)
{
    const struct aq_table_policy *p = &r->row->policy;
    return (struct aq_flexgen_run){
        .steps = &r->steps,
        .hw = &r->hw,
        .rates = r->engine->rates,
        .rules = AQ_FLEXGEN_RULES_ALL,
        .micro_batch = p->gpu_batch_size,
        .micro_batches = p->num_gpu_batches,
        .prompt = r->prompt,
        .gen = r->gen,
        .prompt_mean = p->prompt_mean,
        .weights = shares(p->percent),
        .kv = shares(p->percent + 2),
        .hidden = shares(p->percent + 4),
        .host_attention = p->cpu_cache_compute,
        .pack_weights = p->compress_weight,
        .pack_kv = p->compress_cache,
        .pageable_weights = !p->pin_weight,
        .serial = !p->overlap,
        .kept = 2 * (uint32_t)(p->hh_ratio * r->prompt),
        .first_step = p->first_step,
    };
}

static json_t *stair(const char *without, const char *text, const struct aq_flexgen_times *t)
{
    return json_pack("{s:s?, s:s, s:o}", "without", without, "text", text, "gen_tok_s",
                     aq_json_real(t->gen_tok_s));
}

static json_t *theirs_json(const struct aq_flexgen_times *t, double published)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:s}", "gen_tok_s",
                     aq_json_real(t->gen_tok_s), "ratio", aq_json_real(t->gen_tok_s / published),
                     "prefill_s", aq_json_real(t->prefill_s), "decode_s", aq_json_real(t->decode_s),
                     "decode_pass_s", aq_json_real(t->decode_pass_s), "decode_tok_s",
                     aq_json_real(t->decode_tok_s), "bound_by", aq_resource_name(t->binding),
                     "bound_lane", aq_lane_name(t->binding_lane));
}

static int add_theirs(json_t **doc, const struct row *r, struct aq_err *reterr)
{
    struct aq_flexgen_run run = run_of(r);
    struct aq_flexgen_times t;
    int rc = aq_flexgen_play(&t, &run, reterr);
    if (rc < 0)
        return rc;
    json_t *stairs = json_array();
    aq_json_put(doc, "theirs", theirs_json(&t, r->row->published));
    aq_json_add(&stairs, stair(NULL, "their engine", &t));
    for (int h = 0; h < AQ_FLEXGEN_RULE_COUNT && rc == 0; h++) {
        enum aq_flexgen_rule rule = (enum aq_flexgen_rule)h;
        bool matters = aq_flexgen_rule_matters(&run, rule);
        run.rules &= ~(1u << h);
        rc = matters ? aq_flexgen_play(&t, &run, reterr) : 0;
        if (rc == 0 && matters)
            aq_json_add(&stairs, stair(aq_flexgen_rule_name(rule), aq_flexgen_rule_text(rule), &t));
    }
    aq_json_put(doc, "stairs", stairs);
    return rc;
}

/* ---- ours -------------------------------------------------------------------------------- */

/* Of the row's options formats and KV policy are the figure's own; everything else is free, as
 * whoever comes to the machine would leave it.  The plan alone counts, and no process. */
static int plan_ours(struct aq_block *block, struct aq_forecast *f, const struct row *r,
                     struct aq_err *reterr)
{
    struct aq_engine_opts choices = {0};
    struct aq_block_inputs in;
    struct aq_forecast_work mean;
    struct aq_workload work = {
        .prompt_max = r->prompt, .total_max = r->prompt + r->gen, .new_max = r->gen};
    struct aq_planned_request request = {
        .choices = &choices,
        .steps = &r->steps,
        .formats = formats_of(r),
        .table_format = AQ_F16,
        .work = &work,
        .hw = &r->hw,
        .threads = (uint32_t)fmax(1, r->hw.cores),
        .gpu = true,
        .can_stream = true,
    };
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        request.budget[t] = aq_planned_usable((enum aq_tier)t, r->profile.capacity[t]);
    int rc = aq_options_kv_policy(&choices.kv, r->options, reterr);
    if (rc < 0)
        return rc;
    aq_planned_inputs(&in, &mean, &request);
    rc = aq_block_choose(block, &in, reterr);
    return rc < 0 ? rc : aq_planned_forecast(f, block, &mean, NULL, 0, &r->hw, reterr);
}

/* One block, prefilled and then decoded, as they count it. */
static int add_ours(json_t **doc, const struct row *r, struct aq_err *reterr)
{
    struct aq_block block = {0};
    struct aq_forecast f;
    struct aq_err err = {0};
    char placement[160];
    int rc = plan_ours(&block, &f, r, &err);
    if (rc == -ENOBUFS || rc == -EINVAL) { /* it does not fit: that is an answer */
        aq_json_put(doc, "ours", json_pack("{s:o}", "error", aq_json_string(err.text)));
        rc = 0;
    } else if (rc < 0) {
        aq_error(reterr, rc, "%s", err.text);
    } else {
        aq_placement_text(placement, &block.plan.placement);
        aq_json_put(
            doc, "ours",
            json_pack("{s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:s, s:s, s:s}", "gen_tok_s",
                      aq_json_real(f.gen_tok_s), "times_published",
                      aq_json_real(f.gen_tok_s / r->row->published), "prefill_s",
                      aq_json_real(f.prefill_s), "decode_pass_s", aq_json_real(f.decode_pass_s),
                      "decode_tok_s", aq_json_real(f.prompts / f.decode_pass_s), "micro_batch",
                      (int)block.plan.shape.micro_batch, "micro_batches",
                      (int)block.plan.shape.micro_batches, "placement", placement, "bound_by",
                      aq_resource_name(f.binding), "bound_lane", aq_lane_name(f.binding_lane)));
    }
    aq_block_close(&block);
    return rc;
}

int aq_published_row(json_t **ret, const struct aq_table *t, const struct aq_table_row *row,
                     struct aq_err *reterr)
{
    struct row r;
    json_t *doc = NULL;
    int rc = open_row(&r, t, row, reterr);
    if (rc == 0 && !(row->published > 0))
        rc = aq_error(reterr, -EINVAL, "expected a published figure, found none");
    if (rc == 0) {
        doc =
            json_pack("{s:s, s:f, s:s, s:s?, s:s, s:s?, s:n, s:n, s:n}", "name", row->name,
                      "published", row->published, "source", row->source, "note", row->note,
                      "shape", r.options->shape, "hardware", r.machine, "theirs", "stairs", "ours");
        rc = doc ? 0 : aq_error_memory(reterr, "figure");
    }
    if (rc == 0 && row->has_policy)
        rc = add_theirs(&doc, &r, reterr);
    if (rc == 0 && r.machine)
        rc = add_ours(&doc, &r, reterr);
    close_row(&r);
    if (rc < 0) {
        aq_error_prefix(reterr, "row '%s'", row->name);
        json_decref(doc);
    } else {
        *ret = doc;
    }
    return rc;
}

/* ---- summary ----------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double ratio_of(const json_t *row)
{
    const json_t *v = json_object_get(json_object_get(row, "theirs"), "ratio");
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* Of the rows whose shape is this one; NULL: of all. */
static json_t *summary_of(const json_t *rows, const char *shape)
{
    double ratio[AQ_TABLE_ROWS_MAX];
    size_t count = 0, within = 0, i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "shape"));
        double x = ratio_of(row);
        if (!isfinite(x) || (shape && strcmp(shape, name) != 0))
            continue;
        assert(count < AQ_ARRAY_LEN(ratio));
        ratio[count++] = x;
        within += x >= 0.75 && x <= 1.25;
    }
    qsort(ratio, count, sizeof(*ratio), compare);
    return json_pack("{s:i, s:o, s:o, s:o, s:i}", "rows", (int)count, "median_ratio",
                     aq_json_real(count ? ratio[count / 2] : NAN), "least_ratio",
                     aq_json_real(count ? ratio[0] : NAN), "largest_ratio",
                     aq_json_real(count ? ratio[count - 1] : NAN), "within_25_percent",
                     (int)within);
}

json_t *aq_published_summary(const json_t *rows)
{
    json_t *o = json_object(), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *shape = json_string_value(json_object_get(row, "shape"));
        if (!json_object_get(o, shape))
            aq_json_put(&o, shape, summary_of(rows, shape));
    }
    aq_json_put(&o, "all", summary_of(rows, NULL));
    return o;
}

/* ---- text -------------------------------------------------------------------------------- */

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static void put_number(struct aq_buf *b, double x)
{
    if (isfinite(x))
        aq_buf_printf(b, " %.*f |", x < 1 ? 3 : x < 100 ? 2 : 1, x);
    else
        aq_buf_printf(b, " - |");
}

static void put_bound(struct aq_buf *b, const json_t *side)
{
    if (json_object_get(side, "bound_by"))
        aq_buf_printf(b, " %s (%s)", text_of(side, "bound_by"), text_of(side, "bound_lane"));
}

static void put_row(struct aq_buf *b, const json_t *row)
{
    const json_t *theirs = json_object_get(row, "theirs"), *ours = json_object_get(row, "ours");
    aq_buf_printf(b, "| %s |", text_of(row, "name"));
    put_number(b, number(row, "published"));
    put_number(b, number(theirs, "gen_tok_s"));
    put_number(b, ratio_of(row));
    put_bound(b, theirs);
    aq_buf_printf(b, " |");
    put_number(b, number(ours, "gen_tok_s"));
    put_number(b, number(ours, "times_published"));
    if (isfinite(number(ours, "gen_tok_s")))
        aq_buf_printf(b, " %d x %d, %s;", (int)number(ours, "micro_batch"),
                      (int)number(ours, "micro_batches"), text_of(ours, "placement"));
    else
        aq_buf_printf(b, " %s", text_of(ours, "error"));
    put_bound(b, ours);
    aq_buf_printf(b, " |\n");
}

static void put_stairs(struct aq_buf *b, const json_t *rows)
{
    size_t i, s;
    json_t *row, *step;
    aq_buf_printf(b, "\n## From their schedule to ours\n\nGenerated tok/s of the same block, "
                     "placement and machine, one rule after the other switched off.\n\n");
    json_array_foreach(rows, i, row)
    {
        const json_t *stairs = json_object_get(row, "stairs");
        if (!json_is_array(stairs))
            continue;
        aq_buf_printf(b, "- %s:", text_of(row, "name"));
        json_array_foreach(stairs, s, step)
        {
            const char *without = text_of(step, "without");
            aq_buf_printf(b, "%s %s %.4g", s ? "," : "", s ? without : "theirs",
                          number(step, "gen_tok_s"));
        }
        aq_buf_printf(b, "\n");
    }
    aq_buf_printf(b, "\nRules:\n\n");
    for (int h = 0; h < AQ_FLEXGEN_RULE_COUNT; h++)
        aq_buf_printf(b, "- %s: %s\n", aq_flexgen_rule_name((enum aq_flexgen_rule)h),
                      aq_flexgen_rule_text((enum aq_flexgen_rule)h));
}

void aq_published_markdown(struct aq_buf *ret, const struct aq_table *t, const json_t *rows)
{
    size_t i;
    json_t *row, *summary = aq_published_summary(rows);
    const char *shape;
    aq_buf_printf(ret, "# %s: published and predicted\n\n%s%s", t->name, t->about ? t->about : "",
                  t->about ? "\n\n" : "");
    aq_buf_printf(ret,
                  "Theirs: the engine model with all rules, on their policy and machine. Ours: "
                  "the plan this engine makes on the same machine, one block prefilled and then "
                  "decoded. tok/s generated.\n\n"
                  "| row | published | theirs, predicted | ratio | bound by | ours, predicted | x "
                  "published | our plan; bound by |\n|---|---|---|---|---|---|---|---|\n");
    json_array_foreach(rows, i, row) put_row(ret, row);
    aq_buf_printf(ret, "\n| shape | rows | within 25 %% | median ratio | least | largest |\n"
                       "|---|---|---|---|---|---|\n");
    json_object_foreach(summary, shape, row)
    {
        aq_buf_printf(ret, "| %s | %d | %d |", shape, (int)number(row, "rows"),
                      (int)number(row, "within_25_percent"));
        put_number(ret, number(row, "median_ratio"));
        put_number(ret, number(row, "least_ratio"));
        put_number(ret, number(row, "largest_ratio"));
        aq_buf_printf(ret, "\n");
    }
    put_stairs(ret, rows);
    json_decref(summary);
}
