/* SPDX-License-Identifier: Apache-2.0
 * A plan as JSON, piece by piece. */
#include "engine/plan/planning.h"

#include "base/json.h"
#include "base/units.h"
#include "engine/core/forecast_json.h"
#include "engine/options/kv.h"
#include "engine/options/notation.h"
#include "policy/error_band.h"
#include "policy/gpu_sizes.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the plan ---- */

/* "h2o 20%", "full, read 2048": the policy in a few words, by which lossy plans are told apart. */
static json_t *policy_json(const struct aq_kv_policy *kv)
{
    char text[96], amount[32];
    size_t used = (size_t)snprintf(text, sizeof(text), "%s", aq_kv_policy_desc(kv)->name);
    if (kv->budget.unit != AQ_KV_UNSET && aq_kv_policy_drops(kv))
        used += (size_t)snprintf(text + used, sizeof(text) - used, " %s",
                                 aq_kv_amount_text(amount, &kv->budget));
    if (kv->read)
        snprintf(text + used, sizeof(text) - used, ", read %u", kv->read);
    return json_string(text);
}

json_t *aq_planning_plan_json(const struct aq_planning *p)
{
    const struct aq_plan *plan = &p->block.plan;
    const struct aq_block_shape *s = &plan->shape;
    char placement[160], attention[32], windows[80], layers[120];
    aq_placement_text(placement, &plan->placement);
    aq_attention_text(attention, plan);
    json_t *o = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:b, s:s}", "placement", placement,
        "micro_batch", (int)s->micro_batch, "micro_batches", (int)s->micro_batches, "seats",
        (int)(s->micro_batch * s->micro_batches), "micro_batch_tokens", (int)s->prompt_tokens,
        "compute", aq_dtype_name(p->formats.compute), "weight_format",
        aq_dtype_name(p->formats.weights), "kv_format", aq_dtype_name(p->formats.kv), "kv_policy",
        aq_kv_policy_desc(&p->choices.kv)->name, "refill", p->in.refill, "attention", attention);
    aq_json_put(&o, "policy", policy_json(&p->choices.kv));
    if (aq_kv_policy_lossy(&p->choices.kv) || p->choices.kv.residual.tokens)
        aq_json_put(&o, "kv", aq_kv_policy_json(&p->choices.kv));
    if (aq_kv_policy_drops(&p->choices.kv))
        aq_json_put(&o, "kv_slots", json_integer(s->keys_max));
    if (aq_kv_windows_text(windows, sizeof(windows), p->in.steps))
        aq_json_put(&o, "kv_windows", json_string(windows));
    if (aq_kv_layers_differ_text(layers, sizeof(layers), &plan->kinds, s->run_bytes))
        aq_json_put(&o, "kv_layers", json_string(layers));
    aq_json_put(&o, "host_products", aq_json_real(plan->host_products / 100));
    if (plan->side_by_side)
        aq_json_put(&o, "side_by_side", json_true());
    if (p->block.stream.chunk_count)
        aq_json_put(&o, "ring_bytes",
                    json_integer((json_int_t)(p->block.stream.ring * p->block.stream.chunk_bytes)));
    return o;
}

/* ---- memory ---- */

static json_t *items_json(const struct aq_ledger *l, enum aq_tier tier)
{
    json_t *items = json_object();
    for (uint32_t i = 0; i < l->count; i++) {
        if (l->item[i].tier == tier && l->item[i].bytes)
            aq_json_put(&items, l->item[i].purpose, json_integer((json_int_t)l->item[i].bytes));
    }
    return items;
}

static bool is_there(const struct aq_planning *p, enum aq_tier tier)
{
    return tier == AQ_HOST || (tier == AQ_DEVICE && p->in.separate) ||
           (tier == AQ_DISK && aq_ledger_total(&p->block.ledger, tier) > 0);
}

json_t *aq_planning_memory_json(const struct aq_planning *p)
{
    json_t *o = json_object();
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        enum aq_tier tier = (enum aq_tier)t;
        if (!is_there(p, tier))
            continue;
        json_t *m = json_pack("{s:I, s:I, s:o}", "budget", (json_int_t)p->in.budget[t], "used",
                              (json_int_t)aq_ledger_total(&p->block.ledger, tier), "items",
                              items_json(&p->block.ledger, tier));
        if (t == AQ_HOST)
            aq_json_put(&m, "limited_by", aq_json_string(p->host_limited_by));
        aq_json_put(&o, aq_tier_name(tier), m);
    }
    return o;
}

static json_t *short_json(uint64_t needed, uint64_t budget, json_t *items)
{
    return json_pack("{s:I, s:I, s:I, s:o}", "needed", (json_int_t)needed, "budget",
                     (json_int_t)budget, "missing", (json_int_t)(needed - budget), "items", items);
}

json_t *aq_planning_shortfall_json(const struct aq_planning *p)
{
    json_t *o = json_object();
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        enum aq_tier tier = (enum aq_tier)t;
        uint64_t needed = aq_ledger_total(&p->block.ledger, tier), budget = p->in.budget[t];
        json_t *items = items_json(&p->block.ledger, tier);
        if (tier == AQ_DISK && p->disk_short) { /* with what usually lies beside the ledger */
            needed = aq_planning_disk_needed(p);
            budget = p->disk.budget;
            aq_json_put(&items, "packed weights", json_integer((json_int_t)p->disk.store));
        }
        if (needed > budget)
            aq_json_put(&o, aq_tier_name(tier), short_json(needed, budget, items));
        else
            json_decref(items);
    }
    return o;
}

/* ---- what it will do ---- */

json_t *aq_planning_predicted_json(const struct aq_planning *p)
{
    const struct aq_forecast *f = &p->forecast;
    json_t *o = aq_predict_times_json(f);
    aq_json_put(&o, "blocks", f->blocks > 0 ? aq_json_real(f->blocks) : json_null());
    aq_planning_put_cost(&o, p);
    return o;
}

void aq_planning_put_cost(json_t **object, const struct aq_planning *p)
{
    struct aq_planning_cost cost = aq_planning_cost(p);
    const char *currency = p->price.per_hour.currency;
    char hour[AQ_MONEY_TEXT_MAX];
    double total = aq_planning_total_s(p);
    aq_json_put(object, "hours",
                p->feasible && total > 0 ? aq_json_real(total / 3600) : json_null());
    aq_json_put(object, "money", aq_json_real(cost.job));
    aq_json_put(object, "money_per_million", aq_json_real(cost.million));
    aq_json_put(object, "currency", *currency ? json_string(currency) : json_null());
    aq_json_put(object, "price_per_hour",
                p->price.given ? json_string(aq_money_exact(hour, &p->price.per_hour))
                               : json_null());
}

json_t *aq_planning_range_json(const struct aq_planning *p)
{
    const struct aq_error_band *b = aq_error_band(&p->hw, p->forecast.binding);
    double now = p->forecast.gen_tok_s;
    char from[256];
    if (!b)
        return json_pack("{s:n, s:s}", "gen_tok_s", "from",
                         "not measured: no run on a GPU was compared with its prediction");
    snprintf(from, sizeof(from), "%u of %u measured runs bound by %s", b->inside, b->runs,
             b->bound);
    return json_pack("{s:[o, o], s:s, s:s}", "gen_tok_s", aq_json_real(b->low * now),
                     aq_json_real(b->high * now), "from", from, "source", aq_error_band_source);
}

/* ---- words ---- */

static void say(json_t **lines, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(json_t **lines, const char *format, ...)
{
    char text[AQ_HW_TOLD_MAX + 32];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    aq_json_add(lines, aq_json_string(text));
}

/* More than the machine has, as the options want it. */
static bool is_larger_disk(const struct aq_planning *p)
{
    return !p->local && p->o->disk_memory > aq_planned_usable(AQ_DISK, p->disk.there);
}

static void assume_disk(json_t **lines, const struct aq_planning *p)
{
    const struct aq_planning_disk *d = &p->disk;
    char budget[AQ_SIZE_TEXT_MAX], there[AQ_SIZE_TEXT_MAX];
    aq_format_size(budget, d->budget);
    aq_format_size(there, d->there);
    if (d->dir)
        say(lines, "the disk has what is free on '%.200s' now: %s", d->dir, there);
    else if (is_larger_disk(p))
        say(lines,
            "the disk has room for %s, packed weights and scratch, as --disk-memory says, and not "
            "the %s of '%s'",
            budget, there, p->machine.name);
}

json_t *aq_planning_assumptions_json(const struct aq_planning *p)
{
    char size[AQ_SIZE_TEXT_MAX];
    json_t *derived = aq_hw_assumptions_json(&p->machine), *v;
    json_t *lines = derived ? json_array() : NULL;
    size_t i;
    if (*p->machine.told)
        say(&lines, "hardware: %s", p->machine.told);
    json_array_foreach(derived, i, v)
    {
        const char *source = json_string_value(json_object_get(v, "source"));
        say(&lines, "%s: %s = %g: %s", p->machine.name,
            json_string_value(json_object_get(v, "key")),
            json_number_value(json_object_get(v, "value")), source ? source : "derived");
    }
    json_decref(derived);
    if (p->tokens_estimated)
        say(&lines,
            "lengths of texts are estimated at %d bytes a token, as a shape has no tokenizer; "
            "--tokenizer DIR counts them",
            AQ_PLANNING_TOKEN_BYTES);
    bool differ = p->prompt[0] < p->prompt[1] || p->gen[0] < p->gen[1];
    say(&lines, "%s: %g prompt tokens, %g generated",
        differ ? "the block is chosen for sequences of the mean length, and timed with their own"
               : "all sequences have the mean length",
        p->work.prompt, p->work.total - p->work.prompt);
    if (p->work.shared > 0)
        say(&lines,
            "prompts begin alike: of the mean one %g tokens need not be computed or held again",
            p->work.shared);
    if (p->requests_assumed)
        say(&lines, "%llu requests, as --requests was not given",
            (unsigned long long)p->in.sequences);
    if (p->feasible && aq_error_band(&p->hw, p->forecast.binding))
        say(&lines,
            "the range is that of runs predicted from a probe just before them (%s): rates of "
            "another day or machine add their own error",
            aq_error_band_source);
    say(&lines, "the process itself takes %s of host memory",
        aq_format_size(size, p->in.process_bytes));
    uint64_t tables = aq_gpu_driver_bytes(aq_ledger_total(&p->block.ledger, AQ_HOST), 0);
    if (!p->machine.hw.device_on_host)
        say(&lines,
            "what the device's driver and libraries take lies outside its budget: a context, "
            "kernels, and up to %s for page tables of pinned host memory",
            aq_format_size(size, tables));
    if (p->block.stream.bytes[AQ_DISK])
        say(&lines,
            p->disk.store ? "the packed weights (%s) lie on the disk beside the scratch"
                          : "the packed weights (%s) are on the disk already",
            aq_format_size(size, p->store_bytes));
    assume_disk(&lines, p);
    return lines;
}

static void warn_lossy(json_t **lines, const struct aq_planning *p)
{
    const char *from = aq_model_rounded_from(p->model, p->formats.weights);
    char policy[160], windows[80];
    if (from)
        say(lines, "lossy: %s weights rounded to %s", from, aq_dtype_name(p->formats.weights));
    if (!aq_dtype_is_quantised(p->formats.weights) && p->formats.compute != p->formats.weights &&
        p->formats.compute != AQ_F32)
        say(lines, "lossy: %s weights rounded to %s in the products",
            aq_dtype_name(p->formats.weights), aq_dtype_name(p->formats.compute));
    if (p->formats.compute == AQ_Q8)
        say(lines, "lossy: activations rounded to int8 in groups of 64 in the products");
    if (aq_dtype_is_quantised(p->formats.kv) || aq_dtype_is_kivi(p->formats.kv))
        say(lines, "lossy: keys and values rounded to %s", aq_dtype_name(p->formats.kv));
    struct aq_kv_policy dropping = p->choices.kv; /* what is not read is not dropped */
    dropping.read = 0;
    if (p->choices.kv.read)
        say(lines,
            "lossy: new tokens read at most %u of the slots held, but in the first %u layers; "
            "prompts are attended whole",
            p->choices.kv.read, p->choices.kv.read_dense);
    if (aq_kv_policy_drops(&p->choices.kv))
        say(lines, "lossy: keys and values beyond %s are dropped%s%s",
            aq_kv_policy_text(policy, sizeof(policy), &dropping),
            aq_kv_windows_text(windows, sizeof(windows), p->in.steps) ? "; " : "", windows);
}

/* The bytes that --disk-memory asks for and the disk has no room for. */
static void warn_disk(json_t **lines, const struct aq_planning *p)
{
    uint64_t wanted = p->o->disk_memory;
    char store[AQ_SIZE_TEXT_MAX], budget[AQ_SIZE_TEXT_MAX];
    aq_format_size(store, p->disk.store);
    if (p->disk.small && p->disk.there)
        say(lines,
            "the disk's budget, %s, has no room for the packed weights, %s: nothing streams from "
            "it",
            aq_format_size(budget, p->disk.budget), store);
    else if (wanted > p->in.budget[AQ_DISK] && !is_larger_disk(p))
        say(lines, "--disk-memory: beside the packed weights (%s) there is room for %s only", store,
            aq_format_size(budget, p->in.budget[AQ_DISK]));
}

/* Those of the job, whatever the machine. */
static void warn_work(json_t **lines, const struct aq_planning *p)
{
    if (p->o->deadline_s > 0 && !p->in.sequences)
        say(lines, "--deadline says nothing without --requests");
    if (p->records_invalid)
        say(lines, "%llu of the %llu records of the input are invalid and left out",
            (unsigned long long)p->records_invalid, (unsigned long long)p->records);
}

json_t *aq_planning_work_warnings_json(const struct aq_planning *p)
{
    json_t *lines = json_array();
    warn_work(&lines, p);
    return lines;
}

json_t *aq_planning_warnings_json(const struct aq_planning *p)
{
    json_t *lines = json_array();
    double total = aq_planning_total_s(p), seats = p->forecast.prompts;
    char have[AQ_SIZE_TEXT_MAX], want[AQ_SIZE_TEXT_MAX];
    warn_lossy(&lines, p);
    warn_disk(&lines, p);
    warn_work(&lines, p);
    if (p->feasible && p->o->deadline_s > 0 && total > p->o->deadline_s)
        say(&lines, "%s, later than the deadline of %s", aq_format_duration(have, total),
            aq_format_duration(want, p->o->deadline_s));
    if (p->feasible && p->block.tight)
        say(&lines,
            "only the smallest buffers fit: prompts one at a time and products in small tiles "
            "take longer than predicted");
    if (p->feasible && p->in.refill && p->in.sequences && (double)p->in.sequences < 3 * seats)
        say(&lines,
            "%llu requests are less than three times the %g seats: filling and draining the block "
            "take a good part of the time, which the prediction does not see",
            (unsigned long long)p->in.sequences, seats);
    if (p->local && !p->o->host_memory)
        say(&lines, "the host's budget is what is free now; --host-memory fixes it");
    return lines;
}

json_t *aq_planning_records_json(const struct aq_planning *p)
{
    json_t *errors = json_object();
    for (int c = 1; c < AQ_RECORD_CODE_COUNT; c++) {
        const struct aq_planning_invalid *kind = &p->invalid[c];
        if (kind->count)
            aq_json_put(&errors, aq_record_code_name((enum aq_record_code)c),
                        json_pack("{s:I, s:I, s:o}", "count", (json_int_t)kind->count, "line",
                                  (json_int_t)kind->line, "message",
                                  aq_json_string(kind->message)));
    }
    return json_pack("{s:I, s:I, s:o}", "records", (json_int_t)p->records, "invalid",
                     (json_int_t)p->records_invalid, "errors", errors);
}

json_t *aq_planning_workload_json(const struct aq_planning *p)
{
    json_t *o = json_pack("{s:[i, i], s:[i, i]}", "prompt_len", (int)p->prompt[0],
                          (int)p->prompt[1], "gen_len", (int)p->gen[0], (int)p->gen[1]);
    aq_json_put(&o, "requests",
                p->in.sequences ? json_integer((json_int_t)p->in.sequences) : json_null());
    aq_json_put(&o, "prompt_mean", aq_json_real(p->work.prompt));
    aq_json_put(&o, "gen_mean", aq_json_real(p->work.total - p->work.prompt));
    if (p->o->input)
        aq_json_put(&o, "prompt_shared_mean", aq_json_real(p->work.shared));
    if (p->o->lengths)
        aq_json_put(&o, "lengths", aq_json_string(p->o->lengths));
    if (p->o->input)
        aq_json_put(&o, "input", json_string(p->o->input));
    if (p->o->input)
        aq_json_put(&o, "read", aq_planning_records_json(p));
    return o;
}

/* ---- the config ---- */

static void set_size(json_t **o, const char *key, uint64_t bytes)
{
    if (bytes)
        aq_json_put(o, key, json_integer((json_int_t)bytes));
}

json_t *aq_planning_config_json(const struct aq_planning *p)
{
    const struct aq_options *given = p->o;
    json_t *o = aq_options_shared(given, "generate", "bench"), *plan = aq_planning_plan_json(p);
    if (!plan)
        aq_json_put(&o, "", NULL);
    if (!given->model)
        aq_json_put(&o, "random_weights", json_integer(0));
    static const char *const planned[] = {"placement", "micro_batch",       "micro_batches",
                                          "compute",   "weight_format",     "kv_format",
                                          "attention", "micro_batch_tokens"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(planned); i++)
        aq_json_put(&o, planned[i], json_incref(json_object_get(plan, planned[i])));
    if (p->in.separate) {
        char share[32];
        snprintf(share, sizeof(share), "%g%%", p->block.plan.host_products);
        aq_json_put(&o, "host_products", json_string(share));
    }
    if (p->block.plan.side_by_side)
        aq_json_put(&o, "side_by_side", json_string("on"));
    if (p->block.plan.ring_steps > 0)
        set_size(&o, "prefetch", p->block.plan.ring_chunks * p->block.plan.chunk_bytes);
    set_size(&o, "kv_stage", p->block.plan.stage_bytes);
    uint64_t emulated = given->emulate_device;
    set_size(&o, "host_memory", p->in.budget[AQ_HOST] + emulated);
    set_size(&o, "disk_memory", given->disk_memory);
    set_size(&o, "emulate_device", emulated);
    if (!p->machine.hw.device_on_host)
        set_size(&o, "device_memory", p->in.budget[AQ_DEVICE]);
    if (!p->in.refill)
        aq_json_put(&o, "refill", json_false());
    if (!p->choices.share_prefixes)
        aq_json_put(&o, "share_prefixes", json_string("off"));
    json_decref(plan);
    return o;
}
