/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include "base/mem.h"
#include "base/threads.h"
#include "engine/executor.h"
#include "engine/machine_limits.h"
#include "engine/model.h"
#include "kernels/kernels.h"
#include "policy/block.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the process may need beyond what is counted line by line: allocator slack, stacks, library
 * state. */
#define PROCESS_SLACK_BYTES (12 * AQ_MIB)

struct aq_engine {
    struct aq_engine_opts opts;
    struct aq_engine_info info;
    struct aq_model *model;
    struct aq_kernels kernels;
    struct aq_block_inputs inputs;
    struct aq_block_shape shape;
    struct aq_ledger ledger;
    bool planned, loaded;
    bool refill;
    uint64_t budget;
    char lossy_text[4][160];
    struct aq_log log;

    struct aq_mem *mem;
    struct aq_pool *pool;
    struct aq_exec *exec;
    void *scratch;
    size_t scratch_bytes; /* of all workers */
    struct aq_executor *executor;
    void (*observe)(void *user, bool running);
    void *observe_user;
};

/* ---- open: resolve what is automatic ----------------------------------------------------- */

static int choose_isa(struct aq_engine *e, struct aq_err *reterr)
{
    unsigned have = aq_isa_detect(), want = have;
    if (e->opts.isa) {
        if (!aq_isa_parse(e->opts.isa, &want))
            return aq_error(reterr, -EINVAL,
                            "--isa: expected ref, avx2, avx512, avx512bf16 or amx, found '%s'",
                            e->opts.isa);
        if (want & ~have)
            return aq_error(reterr, -ENODEV, "--isa %s: this CPU (or build) only has '%s'",
                            e->opts.isa, aq_isa_name(have));
    }
    aq_kernels_cpu(&e->kernels, want);
    e->info.isa = aq_isa_name(want);
    return 0;
}

/* A format of weights and KV; -1 is auto. */
static bool is_format(int dtype)
{
    return dtype < 0 || aq_dtype_is_float((enum aq_dtype)dtype) ||
           aq_dtype_is_quantised((enum aq_dtype)dtype);
}

static int choose_formats(struct aq_engine *e, struct aq_err *reterr)
{
    const struct aq_engine_opts *o = &e->opts;
    struct aq_engine_info *i = &e->info;
    enum aq_dtype checkpoint = e->model->checkpoint_dtype;
    bool fast_bf16 = e->kernels.isa & (AQ_ISA_AVX512BF16 | AQ_ISA_AMX);
    if (o->compute == AQ_F16)
        return aq_error(reterr, -EINVAL, "--compute f16: the cpu backend computes in f32 or bf16");
    if (o->compute >= 0 && o->compute != AQ_F32 && o->compute != AQ_BF16)
        return aq_error(reterr, -EINVAL, "--compute: expected auto, f32 or bf16");
    i->compute = o->compute >= 0 ? (enum aq_dtype)o->compute : fast_bf16 ? AQ_BF16 : AQ_F32;
    if (!is_format(o->weight_format) || !is_format(o->kv_format))
        return aq_error(reterr, -EINVAL,
                        "formats: expected f32, f16, bf16, int8 or int4 for weights and KV");
    int store = aq_model_store_format(e->model);
    if (store >= 0 && o->weight_format >= 0 && o->weight_format != store)
        return aq_error(
            reterr, -EINVAL,
            "--weight-format %s: the packed store holds %s; pack again for another format",
            aq_dtype_name((enum aq_dtype)o->weight_format), aq_dtype_name((enum aq_dtype)store));
    i->checkpoint_dtype = checkpoint;
    i->weight_format = checkpoint;
    if (!aq_dtype_is_quantised(checkpoint) &&
        aq_dtype_bytes(i->compute) <= aq_dtype_bytes(checkpoint))
        i->weight_format = i->compute; /* no larger, and ready for the products */
    if (store >= 0)
        i->weight_format = (enum aq_dtype)store;
    if (o->weight_format >= 0)
        i->weight_format = (enum aq_dtype)o->weight_format;
    /* Who asks for f32 arithmetic by name wants f32 results: rounding K and V would undo it. */
    enum aq_dtype kv = o->compute == AQ_F32                  ? AQ_F32
                       : e->model->original_dtype == AQ_BF16 ? AQ_BF16
                                                             : AQ_F16;
    i->kv_format = o->kv_format >= 0 ? (enum aq_dtype)o->kv_format : kv;
    return 0;
}

/* Does format b hold every value of format a? */
static bool holds(enum aq_dtype a, enum aq_dtype b)
{
    return a == b || b == AQ_F32;
}

/* In a packed store weights may have been rounded before: against what it was packed from. */
static void note_weights(struct aq_engine *e)
{
    struct aq_engine_info *i = &e->info;
    enum aq_dtype from = e->model->original_dtype;
    if (holds(from, i->weight_format))
        return;
    char *text = e->lossy_text[i->lossy_count++];
    bool q4 = i->weight_format == AQ_Q4, quantised = q4 || i->weight_format == AQ_Q8;
    snprintf(text, sizeof(e->lossy_text[0]), "weights: %s rounded to %s%s%s", aq_dtype_name(from),
             aq_dtype_name(i->weight_format), quantised ? " in groups of 64" : "",
             q4 ? ", token table and head to int8" : "");
}

static void note_lossy(struct aq_engine *e)
{
    struct aq_engine_info *i = &e->info;
    note_weights(e);
    if (!holds(i->weight_format, i->compute))
        snprintf(e->lossy_text[i->lossy_count++], sizeof(e->lossy_text[0]),
                 "compute: %s weights and f32 activations rounded to %s in the products",
                 aq_dtype_name(i->weight_format), aq_dtype_name(i->compute));
    else if (i->compute != AQ_F32)
        snprintf(e->lossy_text[i->lossy_count++], sizeof(e->lossy_text[0]),
                 "compute: activations rounded to %s in the products", aq_dtype_name(i->compute));
    if (i->kv_format != AQ_F32)
        snprintf(e->lossy_text[i->lossy_count++], sizeof(e->lossy_text[0]),
                 "kv: keys and values rounded to %s%s", aq_dtype_name(i->kv_format),
                 aq_dtype_is_quantised(i->kv_format) ? " by row and head" : "");
    for (uint32_t n = 0; n < i->lossy_count; n++)
        i->lossy[n] = e->lossy_text[n];
}

static int fill_info(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_engine_info *i = &e->info;
    const struct aq_model *m = e->model;
    i->name = m->name;
    i->vocab = m->steps.vocab;
    i->context = m->steps.context;
    if (e->opts.context > i->context)
        return aq_error(reterr, -EINVAL, "--context %u: the model knows %u positions",
                        e->opts.context, i->context);
    if (e->opts.context)
        i->context = e->opts.context;
    i->layers = m->steps.layers;
    i->hidden = m->steps.hidden;
    i->bos_id = m->config.bos_id;
    i->pad_id = m->config.pad_id;
    i->eos_count = m->config.eos_count;
    memcpy(i->eos_id, m->config.eos_id, sizeof(i->eos_id));
    i->backend = "cpu";
    i->parameters = m->steps.parameters;
    i->model_hash = m->hash;
    i->random_weights = m->random;
    return 0;
}

static int read_limits(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_cpu_limits cpu;
    aq_limits_cpu(&cpu, NULL);
    e->info.threads = e->opts.threads ? e->opts.threads : cpu.threads;
    e->budget = e->opts.host_memory;
    e->info.host_limited_by = "option";
    if (!e->budget) {
        struct aq_host_limits host;
        int rc = aq_limits_host(&host, NULL, reterr);
        if (rc < 0)
            return rc;
        /* The rule speaks of what is free; the budget is of the whole process, which is here
         * already. */
        e->budget = host.budget + aq_mem_process_now();
        e->info.host_limited_by = host.limited_by;
    }
    e->info.host_budget = e->budget;
    return 0;
}

int aq_engine_open(struct aq_engine **ret, const struct aq_engine_opts *opts, struct aq_err *reterr)
{
    assert(ret && (opts->model_dir || opts->shape));
    if (!opts->model_dir && !opts->random_weights)
        return aq_error(reterr, -EINVAL, "--shape %s has no weights: add --random-weights SEED",
                        opts->shape);
    struct aq_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return aq_error(reterr, -ENOMEM, "engine");
    e->opts = *opts;
    e->refill = opts->refill;
    if (opts->log)
        e->log = *opts->log;
    struct aq_model_opts model = {opts->model_dir, opts->model_dir ? NULL : opts->shape,
                                  opts->random_seed};
    int rc = choose_isa(e, reterr);
    if (rc == 0)
        rc = aq_model_open(&e->model, &model, reterr);
    if (rc == 0)
        rc = choose_formats(e, reterr);
    if (rc == 0)
        rc = fill_info(e, reterr);
    if (rc == 0)
        rc = read_limits(e, reterr);
    if (rc < 0) {
        aq_engine_close(e);
        return rc;
    }
    note_lossy(e);
    /* The strings belong to the caller and are not needed again. */
    e->opts.model_dir = e->opts.shape = e->opts.isa = NULL;
    *ret = e;
    return 0;
}

void aq_engine_close(struct aq_engine *e)
{
    if (!e)
        return;
    aq_executor_close(e->executor);
    aq_exec_close(e->exec);
    aq_model_close(e->model);
    if (e->mem)
        aq_mem_free(e->mem, AQ_HOST, "scratch", e->scratch, e->scratch_bytes);
    aq_pool_close(e->pool);
    aq_mem_close(e->mem);
    free(e);
}

const struct aq_engine_info *aq_engine_info(const struct aq_engine *e)
{
    return &e->info;
}

/* ---- plan -------------------------------------------------------------------------------- */

static uint32_t widest_row(const struct aq_model_steps *m)
{
    return (uint32_t)aq_max_u64(aq_max_u64(m->inner, m->hidden), m->embed_width);
}

int aq_engine_plan(struct aq_engine *e, const struct aq_workload *w, struct aq_err *reterr)
{
    assert(!e->loaded);
    const struct aq_model_steps *m = &e->model->steps;
    uint32_t total = w->total_max, prompt = w->prompt_max;
    if (total > e->info.context || prompt > total || prompt < 1)
        return aq_error(
            reterr, -EINVAL,
            "workload: prompts of %u and totals of %u tokens do not fit a context of %u", prompt,
            total, e->info.context);
    struct aq_scratch_need need = {widest_row(m), m->head_dim, e->info.context};
    e->inputs = (struct aq_block_inputs){
        .steps = m,
        .compute = e->info.compute,
        .weight_format = e->info.weight_format,
        .kv_format = e->info.kv_format,
        .table_format = aq_model_table_dtype(e->model),
        .threads = e->info.threads,
        .micro_batch = e->opts.micro_batch,
        .micro_batches = e->opts.micro_batches,
        .prompt_tokens = e->opts.micro_batch_tokens,
        .sequences = w->sequences,
        .total_sum = w->total_sum,
        .prompt_sum = w->prompt_sum,
        .prompt_max = prompt,
        .total_max = total,
        .scratch_bytes_per_thread = aq_kernels_scratch_bytes(&need),
        .queue_bytes = w->queue_bytes,
        .process_bytes = aq_mem_process_now() + PROCESS_SLACK_BYTES,
        .host_budget = e->budget,
    };
    int rc = aq_block_choose(&e->shape, &e->ledger, &e->inputs, reterr);
    if (rc < 0) {
        aq_error_prefix(reterr, "%s", e->info.name);
        return rc;
    }
    e->planned = true;
    return 0;
}

static json_t *ledger_json(const struct aq_ledger *l)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < l->count; i++)
        json_array_append_new(
            rows, json_pack("{s:s, s:s, s:I}", "tier", aq_tier_name(l->item[i].tier), "purpose",
                            l->item[i].purpose, "bytes", (json_int_t)l->item[i].bytes));
    return rows;
}

json_t *aq_engine_plan_json(const struct aq_engine *e)
{
    if (!e->planned)
        return json_null();
    const struct aq_block_shape *s = &e->shape;
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:b, s:{s:i, s:I, s:I}, s:o, s:{s:{s:I, "
        "s:I, s:s}}}",
        "placement", "weights=0/100/0 kv=0/100/0 hidden=0/100/0 head=host", "micro_batch",
        (int)s->micro_batch, "micro_batches", (int)s->micro_batches, "micro_batch_tokens",
        (int)s->prompt_tokens, "rows_max", (int)s->rows_max, "compute",
        aq_dtype_name(e->info.compute), "weight_format", aq_dtype_name(e->info.weight_format),
        "kv_format", aq_dtype_name(e->info.kv_format), "kv_policy", "full", "refill", e->refill,
        "kv_pages", "page_tokens", (int)s->page_slots, "page_bytes", (json_int_t)s->page_bytes,
        "pages", (json_int_t)s->page_count, "ledger", ledger_json(&e->ledger), "memory", "host",
        "budget", (json_int_t)e->budget, "ledger", (json_int_t)aq_ledger_total(&e->ledger, AQ_HOST),
        "limited_by", e->info.host_limited_by);
}

json_t *aq_engine_memory_json(const struct aq_engine *e)
{
    return json_pack("{s:{s:I, s:I, s:I}}", "host", "budget", (json_int_t)e->budget, "ledger",
                     (json_int_t)aq_ledger_total(&e->ledger, AQ_HOST), "measured",
                     (json_int_t)aq_mem_process_peak());
}

/* ---- load -------------------------------------------------------------------------------- */

static int load_weights(struct aq_engine *e, struct aq_err *reterr)
{
    size_t each = aq_panel_bytes(AQ_F32, widest_row(&e->model->steps));
    size_t bytes = each * e->info.threads;
    void *staging;
    int rc = aq_mem_alloc(&staging, e->mem, AQ_HOST, "loading", bytes, reterr);
    if (rc < 0)
        return rc;
    rc = aq_model_load(e->model, e->mem, e->info.weight_format, &e->kernels, e->pool, staging, each,
                       reterr);
    aq_mem_free(e->mem, AQ_HOST, "loading", staging, bytes);
    return rc;
}

void aq_engine_observe(struct aq_engine *e, void (*observe)(void *user, bool running), void *user)
{
    assert(!e->loaded);
    e->observe = observe;
    e->observe_user = user;
}

int aq_engine_load(struct aq_engine *e, struct aq_err *reterr)
{
    assert(e->planned && !e->loaded);
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = aq_ledger_total(&e->ledger, AQ_HOST)};
    int rc = aq_mem_open(&e->mem, limit, reterr);
    if (rc == 0)
        rc = aq_pool_open(&e->pool, e->info.threads, reterr);
    size_t each = e->inputs.scratch_bytes_per_thread;
    if (rc == 0)
        rc = aq_mem_alloc(&e->scratch, e->mem, AQ_HOST, "scratch", each * e->info.threads, reterr);
    if (rc < 0)
        return rc;
    e->scratch_bytes = each * e->info.threads;
    rc = aq_exec_open(&e->exec, e->pool, e->scratch, each, reterr);
    if (rc == 0)
        rc = load_weights(e, reterr);
    struct aq_executor_opts opts = {
        .mem = e->mem,
        .model = e->model,
        .kernels = &e->kernels,
        .exec = e->exec,
        .shape = e->shape,
        .keys_max = e->inputs.total_max,
        .refill = e->refill,
        .observe = e->observe,
        .observe_user = e->observe_user,
    };
    if (rc == 0)
        rc = aq_executor_open(&e->executor, &opts, reterr);
    if (rc < 0)
        return rc;
    e->loaded = true;
    return 0;
}

/* ---- run --------------------------------------------------------------------------------- */

uint64_t aq_engine_kv_bytes(const struct aq_engine *e, uint32_t keys)
{
    return aq_block_pages(&e->shape, e->model->steps.layers, keys) * e->shape.page_bytes;
}

void aq_engine_submit(struct aq_engine *e, struct aq_sequence *s)
{
    aq_executor_submit(e->executor, s);
}

uint32_t aq_engine_waiting(const struct aq_engine *e)
{
    return aq_executor_stats(e->executor).waiting;
}

uint32_t aq_engine_seats(const struct aq_engine *e)
{
    return e->shape.micro_batch * e->shape.micro_batches;
}

int aq_engine_pass(struct aq_engine *e, bool *ret_worked, struct aq_err *reterr)
{
    return aq_executor_pass(e->executor, ret_worked, reterr);
}

struct aq_sequence *aq_engine_finished(struct aq_engine *e)
{
    return aq_executor_finished(e->executor);
}

void aq_engine_stats(const struct aq_engine *e, struct aq_engine_stats *ret)
{
    *ret = e->executor ? aq_executor_stats(e->executor) : (struct aq_engine_stats){0};
}
