/* SPDX-License-Identifier: Apache-2.0
 * The plan of an engine, made once the workload is known, and its report. */
#include "engine/core/engine_state.h"

#include "base/json.h"
#include "base/mem.h"
#include "engine/core/forecast_json.h"
#include "engine/core/planned.h"
#include "engine/model/pack.h"
#include "engine/options/kv.h"
#include "policy/checker.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The peak of the quick probe belongs to the ledger too, where the plan itself
 * takes less. */
static void count_measuring(struct aq_engine *e)
{
    struct aq_ledger *l = &e->block.ledger;
    uint64_t peak = aq_mem_process_peak();
    uint64_t total = engine_host_ledger(e);
    if (e->rated && peak > total)
        aq_ledger_add(l, AQ_HOST, "measuring", peak - total);
}

int engine_make_forecast(struct aq_engine *e, struct aq_err *reterr)
{
    e->forecasted = false;
    if (!e->rated)
        return 0;
    int rc = aq_planned_forecast(&e->forecast, &e->block, &e->work, e->length, e->length_count,
                                 &e->hw, reterr);
    e->forecasted = rc == 0;
    return rc;
}

static int keep_lengths(struct aq_engine *e, const struct aq_workload *w, struct aq_err *reterr)
{
    size_t bytes = w->length_count * sizeof(*w->length);
    free(e->length);
    e->length = NULL;
    e->length_count = 0;
    if (!w->length || !bytes)
        return 0;
    e->length = malloc(bytes);
    if (!e->length)
        return aq_error_memory(reterr, "plan");
    memcpy(e->length, w->length, bytes);
    for (uint32_t i = 0; i < w->length_count && !aq_planned_shares(&e->opts); i++)
        e->length[i].shared = 0;
    e->length_count = w->length_count;
    return 0;
}

int aq_engine_check(const struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_check_opts opts = {
        .stream = &e->block.stream,
        .steps = &e->model->steps,
        .plan = &e->block.plan,
        .weight_bytes = e->block.stream.bytes[AQ_HOST] + e->block.stream.bytes[AQ_DISK],
    };
    if (!e->planned)
        return 0;
    int rc = aq_program_check(&e->block.program, &opts, reterr);
    if (rc < 0)
        aq_error_prefix(reterr, "internal error: the program of this plan is wrong");
    return rc == -ENOMEM ? rc : rc < 0 ? -EPROTO : 0;
}

json_t *aq_engine_predicted_json(const struct aq_engine *e)
{
    if (!e->forecasted)
        return json_null();
    json_t *o = aq_predict_json(&e->forecast, &e->hw, &e->measured, e->info.compute);
    aq_json_put(&o, "hardware", e->hw_name[0] ? aq_json_string(e->hw_name) : json_null());
    if (e->hw_told[0])
        aq_json_put(&o, "hardware_profile", aq_json_string(e->hw_told));
    return o;
}

struct aq_attention_stats_opts engine_stats_opts(const struct aq_engine *e)
{
    const struct aq_model_steps *m = &e->model->steps;
    return (struct aq_attention_stats_opts){
        .layers = m->layers,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .vocab = m->vocab,
        .prompt_max = e->inputs.prompt_max,
        .threads = e->info.threads,
        .scale = m->attention_scale,
    };
}

int aq_engine_plan(struct aq_engine *e, const struct aq_workload *w, struct aq_err *reterr)
{
    assert(!e->loaded);
    uint32_t total = w->total_max, prompt = w->prompt_max;
    if (total - 1 > e->info.context || prompt > aq_min_u64(total, e->info.context) || prompt < 1)
        return aq_error(
            reterr, -EINVAL,
            "workload: prompts of %u and totals of %u tokens do not fit a context of %u", prompt,
            total, e->info.context);
    int rc = aq_planned_check_prompt(prompt, e->info.positions, e->info.context, reterr);
    if (rc < 0)
        return aq_error_prefix(reterr, "workload");
    rc = engine_rate_machine(e, reterr);
    rc = rc < 0 ? rc : engine_rate_disk(e, aq_model_store(e->model), reterr);
    if (rc < 0)
        return rc;
    struct aq_planned_request request = {
        .choices = &e->opts,
        .steps = &e->model->steps,
        .formats = e->formats,
        .table_format = aq_model_table_dtype(e->model),
        .work = w,
        .hw = e->rated ? &e->hw : NULL,
        .threads = e->info.threads,
        .gpu = engine_on_gpu(e),
        .can_stream = true,
        .context_bytes = e->cuda.info.context_bytes,
        .budget = {[AQ_DEVICE] = engine_device_bytes(e),
                   [AQ_HOST] = engine_host_bytes(e),
                   [AQ_DISK] = e->opts.disk_memory ? e->opts.disk_memory : UINT64_MAX},
        .context = e->info.context,
        .held = aq_mem_process_now(),
        .decoding = aq_model_decoding_bytes(e->model, e->info.threads),
    };
    aq_planned_inputs(&e->inputs, &e->work, &request);
    struct aq_attention_stats_opts stats = engine_stats_opts(e);
    if (e->opts.attention_stats)
        e->inputs.queue_bytes += aq_attention_stats_bytes(&stats);
    rc = keep_lengths(e, w, reterr);
    e->inputs.length = e->length;
    e->inputs.length_count = e->length_count;
    rc = rc < 0 ? rc : aq_block_choose(&e->block, &e->inputs, reterr);
    if (rc < 0) {
        aq_error_prefix(reterr, "%s", e->info.name);
        return rc;
    }
    if (e->block.stream.bytes[AQ_DISK] &&
        aq_pack_store_bytes(&e->store_bytes, e->model, e->info.weight_format, reterr) < 0)
        return -ENOMEM;
    count_measuring(e);
    e->planned = true;
    return engine_make_forecast(e, reterr);
}

json_t *aq_engine_attention_json(const struct aq_engine *e)
{
    return e->attention_stats ? aq_attention_stats_json(e->attention_stats) : json_null();
}

static json_t *ledger_json(const struct aq_ledger *l)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < l->count; i++)
        aq_json_add(&rows,
                    json_pack("{s:s, s:s, s:I}", "tier", aq_tier_name(l->item[i].tier), "purpose",
                              l->item[i].purpose, "bytes", (json_int_t)l->item[i].bytes));
    return rows;
}

static void set_bytes(json_t **o, const char *key, uint64_t bytes)
{
    aq_json_put(o, key, json_integer((json_int_t)bytes));
}

static json_t *tier_json(uint64_t budget, uint64_t ledger)
{
    json_t *o = json_object();
    aq_json_put(&o, "budget", budget ? json_integer((json_int_t)budget) : json_null());
    set_bytes(&o, "ledger", ledger);
    return o;
}

/* Scratch, and the store that weights stream from: of the scratch the budget speaks. */
static json_t *disk_json(const struct aq_engine *e, bool measured)
{
    json_t *o = tier_json(e->opts.disk_memory, aq_ledger_total(&e->block.ledger, AQ_DISK));
    if (measured)
        set_bytes(&o, "measured",
                  e->disks ? aq_disks_allocated(e->disks, AQ_DISKS_SCRATCH_SET) : 0);
    if (!e->block.stream.bytes[AQ_DISK])
        return o;
    set_bytes(&o, "store", e->store_bytes);
    if (measured)
        set_bytes(&o, "store_measured",
                  e->disks ? aq_disks_allocated(e->disks, AQ_DISKS_STORE_SET) : 0);
    return o;
}

/* The parts of memory that workers share, by node (offload/numa.h). */
static json_t *nodes_json(const struct aq_engine *e)
{
    const struct aq_groups *g = aq_device_groups(e->device);
    json_t *nodes = json_array();
    for (uint32_t i = 0; i < g->count; i++)
        aq_json_add(&nodes, json_pack("{s:i, s:i, s:I}", "node", (int)e->numa.node[i], "workers",
                                      (int)(g->end[i] - (i ? g->end[i - 1] : 0)), "bytes",
                                      (json_int_t)aq_device_group_bytes(e->device, i)));
    return nodes;
}

/* Lists of launches that became one call, and whether others could not for want of memory. */
static json_t *graphs_json(const struct aq_engine *e)
{
    struct aq_cuda_graphs g = aq_compute_cuda_graphs(e->compute_cuda);
    return json_pack("{s:i, s:I, s:b}", "count", (int)g.count, "bytes", (json_int_t)g.bytes, "full",
                     g.full);
}

static json_t *memory_json(const struct aq_engine *e, bool measured)
{
    json_t *o = json_object(), *tier = tier_json(e->budget, engine_host_ledger(e));
    aq_json_put(&tier, "limited_by", aq_json_string(e->info.host_limited_by));
    if (measured)
        set_bytes(&tier, "measured", aq_mem_process_peak());
    if (measured && e->device && aq_device_groups(e->device)->count > 1)
        aq_json_put(&tier, "nodes", nodes_json(e));
    aq_json_put(&o, "host", tier);
    if (engine_device_bytes(e)) {
        tier = tier_json(engine_device_bytes(e), aq_ledger_total(&e->block.ledger, AQ_DEVICE));
        if (measured)
            set_bytes(&tier, "measured", e->mem ? aq_mem_peak(e->mem, AQ_DEVICE) : 0);
        if (measured && engine_on_gpu(e))
            set_bytes(&tier, "driver", engine_gpu_beside(e));
        if (measured && e->compute_cuda)
            aq_json_put(&tier, "graphs", graphs_json(e));
        aq_json_put(&o, "device", tier);
    }
    if (aq_ledger_total(&e->block.ledger, AQ_DISK) || e->block.stream.bytes[AQ_DISK])
        aq_json_put(&o, "disk", disk_json(e, measured));
    return o;
}

json_t *aq_engine_plan_json(const struct aq_engine *e)
{
    if (!e->planned)
        return json_null();
    const struct aq_plan *p = &e->block.plan;
    const struct aq_block_shape *s = &p->shape;
    char placement[160], attention[32], windows[80], layers[120];
    aq_placement_text(placement, &p->placement);
    aq_attention_text(attention, p);
    json_t *o = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:b, s:{s:i, s:I, s:I}, s:o, s:o}",
        "placement", placement, "attention", attention, "micro_batch", (int)s->micro_batch,
        "micro_batches", (int)s->micro_batches, "micro_batch_tokens", (int)s->prompt_tokens,
        "rows_max", (int)s->rows_max, "compute", aq_dtype_name(e->info.compute), "weight_format",
        aq_dtype_name(e->info.weight_format), "kv_format", aq_dtype_name(e->info.kv_format),
        "kv_policy", aq_kv_policy_desc(&p->kv)->name, "refill", e->opts.refill, "kv_pages",
        "page_tokens", (int)s->page_slots, "page_bytes", (json_int_t)s->page_bytes, "pages",
        (json_int_t)(s->page_count[AQ_DEVICE] + s->page_count[AQ_HOST]), "ledger",
        ledger_json(&e->block.ledger), "memory", memory_json(e, false));
    if (aq_kv_policy_lossy(&p->kv) || p->kv.residual.tokens)
        aq_json_put(&o, "kv", aq_kv_policy_json(&p->kv));
    if (aq_kv_policy_drops(&p->kv)) {
        aq_json_put(&o, "kv_slots", json_integer(s->keys_max));
    }
    if (aq_kv_windows_text(windows, sizeof(windows), &e->model->steps))
        aq_json_put(&o, "kv_windows", json_string(windows));
    if (aq_kv_layers_differ_text(layers, sizeof(layers), &p->kinds, s->run_bytes))
        aq_json_put(&o, "kv_layers", json_string(layers));
    const struct aq_stream *w = &e->block.stream;
    if (p->side_by_side)
        aq_json_put(&o, "side_by_side", json_true());
    if (aq_program_host_products(&e->block.program))
        aq_json_put(&o, "host_products", json_real(p->host_products / 100));
    if (w->chunk_count)
        aq_json_put(&o, "weight_stream",
                    json_pack("{s:I, s:I, s:i, s:i, s:I}", "disk_bytes_per_pass",
                              (json_int_t)w->bytes[AQ_DISK], "host_bytes_per_pass",
                              (json_int_t)w->bytes[AQ_HOST], "chunks", (int)w->chunk_count, "ring",
                              (int)w->ring, "chunk_bytes", (json_int_t)w->chunk_bytes));
    return o;
}

json_t *aq_engine_memory_json(const struct aq_engine *e)
{
    return memory_json(e, true);
}
