/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/engine_state.h"

#include "base/mem.h"
#include "base/paths.h"
#include "base/threads.h"
#include "engine/core/classes.h"
#include "engine/core/planned.h"
#include "engine/machine/limits.h"
#include "engine/model/arch/arch.h"
#include "engine/model/weight_store.h"
#include "policy/kv_cross.h"
#include "policy/kv_read.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open: resolve what is automatic ----------------------------------------------------- */

static int choose_isa(struct aq_engine *e, struct aq_err *reterr)
{
    unsigned have = aq_isa_detect();
    unsigned want = aq_isa_chosen(&e->opts.isa, have, &e->cpu_bf16);
    if (want & ~have)
        return aq_error(reterr, -ENODEV, "--isa %s: this CPU (or build) only has '%s'",
                        aq_isa_name(want), aq_isa_name(have));
    aq_kernels_cpu(&e->kernels, want);
    e->info.isa = aq_isa_name(want);
    return 0;
}

static int choose_formats(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_engine_info *i = &e->info;
    bool gpu = engine_on_gpu(e);
    struct aq_planned_products products = {
        .gpu = gpu,
        .bf16 = gpu ? aq_gpu_has_bf16(&e->cuda.info) : e->cpu_bf16,
        .name = gpu ? e->cuda.info.name : NULL,
        .sm = e->cuda.info.sm,
    };
    int rc = aq_planned_formats(&e->formats, e->model, &e->opts, &products, reterr);
    if (rc < 0)
        return rc;
    i->checkpoint_dtype = e->model->checkpoint_dtype;
    i->compute = e->formats.compute;
    i->weight_format = e->formats.weights;
    i->kv_format = e->formats.kv;
    e->model->vocabulary_values = e->formats.values;
    e->model->row_major = gpu;
    return 0;
}

/* Does format b hold every value of format a? */
static bool holds(enum aq_dtype a, enum aq_dtype b)
{
    return a == b || b == AQ_F32;
}

static void note(struct aq_engine *e, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void note(struct aq_engine *e, const char *format, ...)
{
    assert(e->info.lossy_count < AQ_ARRAY_LEN(e->lossy_text));
    char *text = e->lossy_text[e->info.lossy_count];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(e->lossy_text[0]), format, args);
    va_end(args);
    e->info.lossy[e->info.lossy_count++] = text;
}

/* In a packed store weights may have been rounded before: against what it was packed from. */
static void note_lossy(struct aq_engine *e)
{
    const struct aq_formats *f = &e->formats;
    const char *weights = aq_dtype_name(f->weights), *compute = aq_dtype_name(f->compute);
    const char *from = aq_model_rounded_from(e->model, f->weights);
    bool table = e->info.packed && !holds(f->weights, f->values);
    char policy[160], windows[80];
    if (from)
        note(e, "weights: %s rounded to %s%s%s", from, weights,
             aq_dtype_is_quantised(f->weights) ? " in groups of 64" : "",
             f->weights == AQ_Q4 ? ", token table and head to int8" : "");
    if (f->compute == AQ_Q8)
        note(e,
             "compute: activations rounded to bf16, and in the products to int8 in groups of 64");
    else if (!holds(f->weights, f->compute))
        note(e, "compute: %s weights and f32 activations rounded to %s in the products%s", weights,
             compute, table ? ", the token table's too" : "");
    else if (f->compute != AQ_F32)
        note(e, "compute: activations rounded to %s in the products", compute);
    if (aq_dtype_is_kivi(f->kv))
        note(e, "kv: keys rounded to %s by channel, values by token, the newest %u tokens to f16",
             aq_dtype_name(f->kv), e->info.kv.residual.tokens);
    else if (f->kv != AQ_F32)
        note(e, "kv: keys and values rounded to %s%s", aq_dtype_name(f->kv),
             aq_dtype_is_quantised(f->kv) ? " by row and head" : "");
    struct aq_kv_policy dropping = e->info.kv; /* what is not read is not dropped */
    dropping.read = 0;
    if (e->info.kv.read)
        note(e, "kv read: new tokens read at most %u of the slots held, but in the first %u layers",
             e->info.kv.read, e->info.kv.read_dense);
    if (aq_kv_policy_drops(&e->info.kv))
        note(e, "kv policy %s: keys and values beyond that are dropped%s%s",
             aq_kv_policy_text(policy, sizeof(policy), &dropping),
             aq_kv_windows_text(windows, sizeof(windows), &e->model->steps) ? "; " : "", windows);
}

static int fill_info(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_engine_info *i = &e->info;
    const struct aq_model *m = e->model;
    i->name = m->name;
    i->vocab = m->steps.vocab;
    i->positions = m->steps.context;
    i->layers = m->steps.layers;
    i->hidden = m->steps.hidden;
    i->bos_id = m->config.bos_id;
    i->pad_id = m->config.pad_id;
    i->add_bos = m->config.arch->add_bos;
    i->eos_count = m->config.eos_count;
    memcpy(i->eos_id, m->config.eos_id, sizeof(i->eos_id));
    i->backend = engine_on_gpu(e) ? "cuda" : "cpu";
    i->parameters = m->steps.parameters;
    i->model_hash = m->hash;
    i->random_weights = m->random;
    i->packed = aq_model_store_format(m) >= 0;
    i->kv = e->opts.kv;
    return aq_planned_context(&i->context, &m->steps, &e->opts, reterr);
}

static int read_limits(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_cpu_limits cpu;
    aq_limits_cpu(&cpu, NULL);
    /* A GPU's ops are issued, and their ends reported, by threads that must not wait for a core. */
    enum { FEW_CORES = 8, LEFT_FREE = 2 };
    uint32_t left = engine_on_gpu(e) && cpu.threads >= FEW_CORES ? LEFT_FREE : 0;
    e->info.threads = e->opts.threads ? e->opts.threads : cpu.threads - left;
    e->cores = cpu.threads;
    aq_hardware_default(&e->hw, e->cores, e->info.threads, e->info.threads);
    int rc = aq_planned_host_budget(&e->budget, &e->info.host_limited_by, &e->opts, 0, reterr);
    e->info.host_budget = e->budget;
    return rc;
}

static int keep(char **ret, const char *text, struct aq_err *reterr)
{
    *ret = text ? strdup(text) : NULL;
    return !text || *ret ? 0 : aq_error_memory(reterr, "engine");
}

/* Copies the caller's names and paths that plan and load will ask for; the others are forgotten. */
static int keep_names(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_engine_opts *o = &e->opts;
    int rc = keep(&e->model_dir, o->model_dir, reterr);
    rc = rc < 0 ? rc : keep(&e->cache_dir, o->cache_dir, reterr);
    rc = rc < 0 ? rc : keep(&e->hardware, o->hardware, reterr);
    rc = rc < 0 ? rc : keep(&e->trace_path, o->trace, reterr);
    e->disk_dir = calloc(o->disk_dir_count + 1, sizeof(*e->disk_dir));
    if (!e->disk_dir)
        return aq_error_memory(reterr, "engine");
    for (uint32_t i = 0; i < o->disk_dir_count && rc == 0; i++)
        rc = keep(&e->disk_dir[i], o->disk_dirs[i], reterr);
    o->model_dir = o->shape = o->cuda_module = o->cache_dir = o->hardware = NULL;
    o->trace = e->trace_path;
    o->disk_dirs = NULL;
    return rc;
}

/* The classes of tokens, where the policy's heads have rules that ask for them. */
static int take_classes(struct aq_engine *e, const struct aq_engine_opts *opts,
                        struct aq_err *reterr)
{
    const struct aq_kv_policy *kv = &opts->kv;
    bool all = kv->mass >= 1 && kv->budget.unit == AQ_KV_UNSET; /* no rule but to keep all */
    if (!aq_kv_policy_profiled(kv) || all || opts->classes.of)
        return 0;
    int rc = aq_token_classes(&e->classes, opts->model_dir, &e->info, reterr);
    if (rc == 0)
        e->opts.classes = (struct aq_kv_classes){e->classes, e->info.vocab};
    return rc;
}

int aq_engine_open(struct aq_engine **ret, const struct aq_engine_opts *opts, struct aq_err *reterr)
{
    assert(ret && (opts->model_dir || opts->shape));
    if (!opts->model_dir && !opts->random_weights)
        return aq_error(reterr, -EINVAL, "--shape %s has no weights: add --random-weights SEED",
                        opts->shape);
    struct aq_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return aq_error_memory(reterr, "engine");
    e->opts = *opts;
    if (opts->log)
        e->log = *opts->log;
    struct aq_model_opts model = {
        .dir = opts->model_dir,
        .shape = opts->model_dir ? NULL : opts->shape,
        .random_seed = opts->random_seed,
        .verify = opts->verify_store != AQ_VERIFY_OFF,
        .log = &e->log,
    };
    int rc = choose_isa(e, reterr);
    rc = rc < 0 ? rc : engine_gpu_open(e, reterr);
    rc = rc < 0 ? rc : aq_model_open(&e->model, &model, reterr);
    rc = rc < 0 ? rc : choose_formats(e, reterr);
    rc = rc < 0 ? rc : fill_info(e, reterr);
    rc = rc < 0 ? rc : read_limits(e, reterr);
    rc = rc < 0 ? rc : keep_names(e, reterr);
    rc = rc < 0 ? rc : take_classes(e, opts, reterr);
    if (rc == 0 && engine_on_gpu(e))
        rc = aq_planned_check_gpu(&e->opts, reterr);
    if (rc < 0) {
        aq_engine_close(e);
        return rc;
    }
    note_lossy(e);
    *ret = e;
    return 0;
}

/* A trace that cannot be written is a warning: the run itself is over. */
static void write_trace(const struct aq_engine *e)
{
    struct aq_err err;
    struct aq_trace_write_opts opts = {
        .path = e->trace_path,
        .hw = &e->hw,
        .compute = e->info.compute,
        .serial = e->opts.serial,
    };
    if (e->trace && aq_trace_write(e->trace, &opts, &err) < 0)
        aq_log_line(&e->log, AQ_LOG_WARNING, "%s", err.text);
}

void aq_engine_close(struct aq_engine *e)
{
    if (!e)
        return;
    aq_executor_close(e->executor);
    write_trace(e);
    aq_trace_close(e->trace);
    aq_attention_stats_close(e->attention_stats);
    aq_disks_close(e->disks);
    aq_exec_close(e->exec);
    aq_exec_close(e->host_exec);
    if (!e->store_borrowed)
        aq_store_close(e->store);
    aq_model_close(e->model);
    if (e->mem)
        aq_mem_free(e->mem, AQ_HOST, "scratch", e->scratch, e->scratch_bytes);
    if (e->mem)
        aq_mem_free(e->mem, AQ_HOST, "scratch (host lane)", e->host_scratch, e->scratch_bytes);
    if (e->mem)
        aq_mem_free(e->mem, AQ_HOST, "codes", e->codes, e->inputs.codes_bytes);
    if (e->mem)
        aq_mem_free(e->mem, AQ_HOST, "codes (host lane)", e->host_codes, e->inputs.codes_bytes);
    aq_pool_close(e->pool);
    aq_pool_close(e->host_pool);
    aq_compute_cuda_close(e->compute_cuda);
    aq_device_close(e->device);
    engine_gpu_close(e);
    aq_mem_close(e->mem);
    aq_block_close(&e->block);
    free(e->length);
    for (char **dir = e->disk_dir; dir && *dir; dir++)
        free(*dir);
    free(e->disk_dir);
    free(e->model_dir);
    free(e->cache_dir);
    free(e->hardware);
    free(e->trace_path);
    free(e->classes);
    free(e);
}

const struct aq_engine_info *aq_engine_info(const struct aq_engine *e)
{
    return &e->info;
}

/* ---- load -------------------------------------------------------------------------------- */

static int load_weights(struct aq_engine *e, struct aq_err *reterr)
{
    /* A GPU's panels are made in host memory and copied. */
    size_t each = aq_panel_bytes(AQ_F32, aq_steps_widest_row(&e->model->steps));
    each *= engine_on_gpu(e) ? 2 : 1;
    size_t bytes = each * e->info.threads;
    void *staging;
    int rc = aq_mem_alloc(&staging, e->mem, AQ_HOST, "loading", bytes, reterr);
    if (rc < 0)
        return rc;
    e->model->unfilled = e->opts.replay && e->info.random_weights;
    rc = aq_model_load(e->model, e->device, &e->block.stream, e->block.plan.placement.head,
                       e->info.weight_format, &e->kernels, e->pool, staging, each, reterr);
    aq_mem_free(e->mem, AQ_HOST, "loading", staging, bytes);
    if (rc == 0)
        aq_model_say_relaid(e->model, e->info.weight_format, &e->log);
    if (rc == 0 && e->store)
        aq_model_stream_from(e->model, e->store);
    return rc;
}

/* Of an earlier version: its sums are of whole tensors, and neither what streams nor what is read
 * in parts at start can be compared with them. */
static void note_old_store(const struct aq_engine *e)
{
    const struct aq_store *s = e->store ? e->store : aq_model_store(e->model);
    if (!s || aq_store_has_tile_sums(s) || e->opts.verify_store == AQ_VERIFY_OFF)
        return;
    aq_log_line(&e->log, AQ_LOG_INFO,
                "'%s' was packed by an earlier version, without checksums of what is read at a "
                "time: 'aquifer pack --model %s --verify' checks it now; removed and packed again "
                "it has them",
                aq_store_dir(s, 0), aq_store_dir(s, 0));
}

/* Makes sure that weights can stream, and that scratch is there, before memory is taken. */
static int open_disks(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_disks_opts opts = {
        .scratch_bytes = aq_ledger_total(&e->block.ledger, AQ_DISK),
        .dirs = (const char *const *)e->disk_dir,
        .dir_count = e->opts.disk_dir_count,
        .any = e->opts.disk_dir_any,
        .io = e->opts.io,
        .io_direct = e->opts.io_direct,
        .log = &e->log,
        .open_io = e->seams.open_io,
        .open_io_user = e->seams.user,
        .timeline = e->seams.timeline,
        .deadline_ns = e->seams.disk_deadline_ns,
    };
    int rc = 0;
    if (e->block.stream.bytes[AQ_DISK]) {
        /* Nothing of the plan is taken yet: packing has what that will take. */
        uint64_t now = aq_mem_process_now(), ledger = engine_host_ledger(e);
        struct aq_weight_store_opts store = {
            .model = e->model,
            .model_dir = e->model_dir,
            .cache_dir = e->cache_dir,
            .format = e->info.weight_format,
            .kernels = &e->kernels,
            .pool = e->pool,
            .memory = ledger > now ? ledger - now : 1,
            .log = &e->log,
            .stop = e->stop,
            .stop_user = e->stop_user,
        };
        rc = aq_weight_store_open(&e->store, &e->store_borrowed, &e->pack_s, &store, reterr);
        if (rc == 0)
            opts.data = engine_store_data(e->store);
        rc = rc < 0 ? rc : engine_rate_disk(e, e->store, reterr);
        rc = rc < 0 ? rc : engine_make_forecast(e, reterr);
    }
    if (rc == 0)
        note_old_store(e);
    if (rc < 0 || (!opts.data.count && !opts.scratch_bytes))
        return rc;
    char *cache = NULL;
    const char *dir;
    if (opts.scratch_bytes && !opts.dir_count) {
        cache = aq_path_cache(e->cache_dir, reterr);
        rc = !cache ? -ENOENT : aq_path_make(cache, reterr);
        dir = cache;
        opts.dirs = &dir;
        opts.dir_count = 1;
    }
    rc = rc < 0 ? rc : aq_disks_open(&e->disks, &opts, reterr);
    free(cache);
    return rc;
}

void aq_engine_observe(struct aq_engine *e, void (*observe)(void *user, bool running), void *user)
{
    assert(!e->loaded);
    e->observe = observe;
    e->observe_user = user;
}

void aq_engine_stop_when(struct aq_engine *e, bool (*stop)(void *user), void *user)
{
    assert(!e->loaded);
    e->stop = stop;
    e->stop_user = user;
}

/* Memory for the codes of rows, where products are computed on codes. */
static int take_codes(struct aq_engine *e, void **ret, const char *purpose, struct aq_exec *exec,
                      struct aq_err *reterr)
{
    size_t bytes = e->inputs.codes_bytes;
    int rc = bytes ? aq_mem_alloc(ret, e->mem, AQ_HOST, purpose, bytes, reterr) : 0;
    if (rc == 0 && bytes)
        aq_exec_lend_codes(exec, *ret, bytes);
    return rc;
}

static int take_scratch(struct aq_engine *e, struct aq_err *reterr)
{
    size_t each = e->inputs.scratch_bytes_per_thread, bytes = each * e->info.threads;
    int rc = aq_mem_alloc(&e->scratch, e->mem, AQ_HOST, "scratch", bytes, reterr);
    if (rc < 0)
        return rc;
    e->scratch_bytes = bytes;
    rc = aq_exec_open(&e->exec, e->pool, e->scratch, each, reterr);
    rc = rc < 0 ? rc : take_codes(e, &e->codes, "codes", e->exec, reterr);
    if (rc < 0 || !aq_block_host_lane(&e->block))
        return rc;
    rc = aq_mem_alloc(&e->host_scratch, e->mem, AQ_HOST, "scratch (host lane)", bytes, reterr);
    bool shared = e->block.plan.side_by_side;
    if (rc == 0 && !shared)
        rc = aq_pool_open(&e->host_pool, e->info.threads, reterr);
    struct aq_pool *pool = shared ? aq_pool_aside(e->pool) : e->host_pool;
    rc = rc < 0 ? rc : aq_exec_open(&e->host_exec, pool, e->host_scratch, each, reterr);
    if (rc < 0 || !aq_program_host_products(&e->block.program))
        return rc;
    return take_codes(e, &e->host_codes, "codes (host lane)", e->host_exec, reterr);
}

/* Where memory goes, and where products and attention run in it the workers, too: a part of both on
 * each node, if there are several. */
static void choose_nodes(struct aq_engine *e, enum aq_device_kind kind)
{
    struct aq_numa *n = &e->numa;
    struct aq_numa_topology topology;
    aq_numa_read(&topology);
    if (e->seams.topology)
        topology = *e->seams.topology;
    aq_numa_choose(n, &topology, e->opts.numa, engine_on_gpu(e) ? e->cuda.info.numa_node : -1,
                   kind == AQ_DEVICE_UNIFIED ? e->pool : NULL);
    if (e->opts.numa.mode == AQ_NUMA_NODE && n->large.kind == AQ_NUMA_ANYWHERE)
        aq_log_line(&e->log, AQ_LOG_WARNING,
                    "--numa %u: memory goes where the kernel puts it: %s; 'aquifer info --json' "
                    "lists the nodes",
                    e->opts.numa.node, n->why);
    n->bind = e->seams.bind;
    n->bind_user = e->seams.bind_user;
}

/* Attention beside products has threads of the same pool, as many as reach its rate. */
static void pair_lanes(struct aq_engine *e)
{
    struct aq_hw_side side = e->rated ? e->hw.device : (struct aq_hw_side){0};
    side.threads = e->info.threads;
    aq_pool_pair(e->pool, aq_hardware_aside(&side));
}

int aq_engine_load(struct aq_engine *e, struct aq_err *reterr)
{
    assert(e->planned && !e->loaded);
    uint64_t limit[AQ_TIER_COUNT];
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        limit[t] = aq_ledger_total(&e->block.ledger, (enum aq_tier)t);
    struct aq_device_opts device = {
        .kind = engine_on_gpu(e)         ? AQ_DEVICE_GPU
                : e->opts.emulate_device ? AQ_DEVICE_EMULATED
                                         : AQ_DEVICE_UNIFIED,
        .gpu_ops = engine_on_gpu(e) ? e->cuda.module->gpu : NULL,
        .gpu = e->cuda.gpu,
        .gpu_pieces = engine_on_gpu(e) ? aq_cuda_pieces : NULL,
        .gpu_pieces_user = &e->cuda,
        .link = {[AQ_H2D] = {e->opts.emulate_link.bytes_per_s[AQ_H2D], e->seams.link_latency_ns},
                 [AQ_D2H] = {e->opts.emulate_link.bytes_per_s[AQ_D2H], e->seams.link_latency_ns}},
        .timeline = e->seams.timeline,
        .poison = e->seams.poison,
        .eager = e->seams.eager,
        .jitter_permille = e->seams.jitter_permille,
    };
    int rc = aq_pool_open(&e->pool, e->info.threads, reterr);
    if (rc == 0)
        choose_nodes(e, device.kind);
    device.numa = &e->numa;
    rc = rc < 0 ? rc : open_disks(e, reterr);
    rc = rc < 0 ? rc : aq_mem_open(&e->mem, limit, reterr);
    device.mem = e->mem;
    rc = rc < 0 ? rc : aq_device_open(&e->device, &device, reterr);
    rc = rc < 0 ? rc : engine_gpu_load(e, reterr);
    rc = rc < 0 ? rc : take_scratch(e, reterr);
    rc = rc < 0 ? rc : load_weights(e, reterr);
    if (rc == 0 && e->compute_cuda)
        rc = aq_compute_cuda_biases(e->compute_cuda, e->model->vector, reterr);
    if (rc == 0 && e->trace_path)
        rc = aq_trace_open(&e->trace, e->mem, &e->block.program, reterr);
    bool on_codes = e->formats.compute == AQ_Q8;
    e->compute = (struct aq_compute){&e->kernels, e->exec, on_codes};
    e->host_compute = (struct aq_compute){&e->kernels, e->host_exec, on_codes};
    struct aq_attention_stats_opts stats = engine_stats_opts(e);
    if (rc == 0 && e->opts.attention_stats)
        rc = aq_attention_stats_open(&e->attention_stats, &stats, reterr);
    struct aq_executor_opts opts = {
        .device = e->device,
        .model = e->model,
        .compute = e->compute_cuda ? aq_compute_cuda_base(e->compute_cuda) : &e->compute,
        .cuda = e->compute_cuda,
        .host_compute = e->host_exec ? &e->host_compute : NULL,
        .pool = e->pool,
        .kernels = &e->kernels,
        .block = &e->block,
        .refill = e->opts.refill,
        .share_prefixes = aq_planned_shares(&e->opts),
        .replay = e->opts.replay,
        .serial = e->opts.serial,
        .open_disk = aq_disks_start,
        .close_disk = aq_disks_stop,
        .disk_user = e->disks,
        .store_set = AQ_DISKS_STORE_SET,
        .scratch_set = AQ_DISKS_SCRATCH_SET,
        .store = e->store,
        .verify = e->opts.verify_store,
        .observe = e->observe,
        .observe_user = e->observe_user,
        .timeline = e->seams.timeline,
        .cost_ns = e->seams.cost_ns,
        .cost_user = e->seams.user,
        .classes = e->opts.classes,
        .kv_seen = e->seams.kv_seen,
        .kv_user = e->seams.kv_user,
        .trace = e->trace,
        .attention_stats = e->attention_stats,
    };
    if (rc == 0 && e->host_exec && !e->opts.serial && !engine_on_gpu(e)) {
        opts.compute_cpu = aq_pool_bind(e->pool);
        opts.host_compute_cpu = aq_pool_bind(aq_exec_pool(e->host_exec));
    }
    if (rc == 0 && e->block.plan.side_by_side)
        pair_lanes(e);
    rc = rc < 0 ? rc : aq_executor_open(&e->executor, &opts, reterr);
    rc = rc < 0 ? rc : engine_gpu_check(e, reterr);
    e->loaded = rc == 0;
    return rc;
}

/* ---- seams ------------------------------------------------------------------------------- */

void aq_engine_set_seams(struct aq_engine *e, const struct aq_engine_seams *seams)
{
    assert(!e->loaded);
    e->seams = *seams;
}

const struct aq_block *aq_engine_block(const struct aq_engine *e)
{
    assert(e->planned);
    return &e->block;
}

const struct aq_model_steps *aq_engine_steps(const struct aq_engine *e)
{
    return &e->model->steps;
}

struct aq_mem *aq_engine_mem(const struct aq_engine *e)
{
    return e->mem;
}

/* ---- run --------------------------------------------------------------------------------- */

struct aq_engine_held aq_engine_held(const struct aq_engine *e, uint32_t prompt, uint32_t max_new,
                                     uint32_t seen)
{
    const struct aq_plan *p = &e->block.plan;
    struct aq_engine_held sum = {0};
    for (uint32_t i = 0; i < p->kinds.count; i++) {
        const struct aq_kv_kind *k = &p->kinds.kind[i];
        struct aq_kv_limits l;
        aq_kv_kind_limits(&l, &p->kinds, i, &p->kv, prompt, max_new);
        uint32_t slots = aq_kv_limits_held(&l, prompt, seen), heads = e->model->steps.kv_heads;
        uint64_t runs = aq_kv_limits_runs(&l, heads, prompt, seen);
        sum.slots += (double)k->layers * slots / p->kinds.layers;
        sum.slots_max = slots > sum.slots_max ? slots : sum.slots_max;
        uint32_t read = aq_plan_kind_policy(p, i).read;
        sum.read += (double)k->layers * aq_kv_read_slots(read, slots) / p->kinds.layers;
        sum.chooses |= aq_kv_read_chooses(read, slots);
        uint64_t paged = runs * AQ_HEAD_BLOCK_SLOTS;
        if (p->kv.residual.tokens)
            paged = AQ_HEAD_BLOCK_SLOTS * aq_kv_residual_coded(&p->kv.residual, slots);
        uint64_t pages = aq_block_pages(&p->shape, k->layers, paged);
        if (aq_kv_cross_cuts(&l, prompt))
            pages = aq_kv_cross_runs(&l, heads, k->layers, prompt, seen);
        sum.bytes += pages * p->shape.page_bytes +
                     aq_kv_residual_bytes(&p->shape, &p->kv.residual, k->layers) +
                     k->layers * aq_kv_bounds_bytes(&p->shape, k);
        sum.drops |= !k->own && aq_kv_limits_drop(&l, prompt, max_new);
    }
    return sum;
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
    return e->block.plan.shape.micro_batch * e->block.plan.shape.micro_batches;
}

int aq_engine_pass(struct aq_engine *e, bool *ret_worked, struct aq_err *reterr)
{
    return aq_executor_pass(e->executor, ret_worked, reterr);
}

struct aq_sequence *aq_engine_finished(struct aq_engine *e)
{
    return aq_executor_finished(e->executor);
}

bool aq_engine_emulated(const struct aq_engine *e)
{
    return e->opts.emulate_device > 0;
}

void aq_engine_stats(const struct aq_engine *e, struct aq_engine_stats *ret)
{
    *ret = e->executor ? aq_executor_stats(e->executor) : (struct aq_engine_stats){0};
    ret->pack_s = e->pack_s;
    ret->lane[AQ_LANE_H2D].ceiling_bytes_per_s = (double)e->opts.emulate_link.bytes_per_s[AQ_H2D];
    ret->lane[AQ_LANE_H2D_WEIGHTS].ceiling_bytes_per_s =
        (double)e->opts.emulate_link.bytes_per_s[AQ_H2D];
    ret->lane[AQ_LANE_D2H].ceiling_bytes_per_s = (double)e->opts.emulate_link.bytes_per_s[AQ_D2H];
    double disk = e->measured.disk ? e->hw.disk_read_bytes_per_s : 0;
    ret->lane[AQ_LANE_DISK_READ].ceiling_bytes_per_s = disk;
    ret->lane[AQ_LANE_READ_WEIGHTS].ceiling_bytes_per_s = disk;
}

const struct aq_rule_stats *aq_engine_rules(const struct aq_engine *e, uint32_t *ret_heads)
{
    *ret_heads = e->model->steps.kv_heads;
    return e->executor ? aq_executor_rules(e->executor) : NULL;
}
