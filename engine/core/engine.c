/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/engine_state.h"

#include "base/mem.h"
#include "base/paths.h"
#include "base/threads.h"
#include "engine/machine/limits.h"
#include "engine/model/arch/arch.h"
#include "engine/model/formats.h"
#include "engine/model/weight_store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct aq_formats_wanted wanted = {o->compute, o->weight_format, o->kv_format};
    struct aq_formats f;
    bool fast_bf16 = e->kernels.isa & (AQ_ISA_AVX512BF16 | AQ_ISA_AMX);
    enum aq_dtype by_itself = fast_bf16 ? AQ_BF16 : AQ_F32;
    if (engine_on_gpu(e)) {
        int rc = engine_gpu_formats(&by_itself, e, reterr);
        if (rc < 0)
            return rc;
    }
    if (!engine_on_gpu(e) && o->compute == AQ_F16)
        return aq_error(reterr, -EINVAL, "--compute f16: the cpu backend computes in f32 or bf16");
    if (!engine_on_gpu(e) && o->compute >= 0 && o->compute != AQ_F32 && o->compute != AQ_BF16)
        return aq_error(reterr, -EINVAL, "--compute: expected auto, f32 or bf16");
    if (!is_format(o->weight_format) || !is_format(o->kv_format))
        return aq_error(reterr, -EINVAL,
                        "formats: expected f32, f16, bf16, int8 or int4 for weights and KV");
    int rc = aq_formats_choose(&f, e->model, &wanted, by_itself, reterr);
    if (rc < 0)
        return rc;
    i->checkpoint_dtype = e->model->checkpoint_dtype;
    i->compute = f.compute;
    i->weight_format = f.weights;
    i->kv_format = f.kv;
    e->model->vocabulary_values = f.values;
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
                 "compute: %s weights and f32 activations rounded to %s in the products%s",
                 aq_dtype_name(i->weight_format), aq_dtype_name(i->compute),
                 aq_model_store_format(e->model) >= 0 &&
                         !holds(i->weight_format, e->model->vocabulary_values)
                     ? ", the token table's too"
                     : "");
    else if (i->compute != AQ_F32)
        snprintf(e->lossy_text[i->lossy_count++], sizeof(e->lossy_text[0]),
                 "compute: activations rounded to %s in the products", aq_dtype_name(i->compute));
    if (i->kv_format != AQ_F32)
        snprintf(e->lossy_text[i->lossy_count++], sizeof(e->lossy_text[0]),
                 "kv: keys and values rounded to %s%s", aq_dtype_name(i->kv_format),
                 aq_dtype_is_quantised(i->kv_format) ? " by row and head" : "");
    char policy[160];
    if (aq_kv_policy_drops(&i->kv))
        snprintf(e->lossy_text[i->lossy_count++], sizeof(e->lossy_text[0]),
                 "kv policy %s: keys and values beyond that are dropped",
                 aq_kv_policy_text(policy, sizeof(policy), &i->kv));
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
    i->add_bos = m->config.arch->add_bos;
    i->eos_count = m->config.eos_count;
    memcpy(i->eos_id, m->config.eos_id, sizeof(i->eos_id));
    i->backend = engine_on_gpu(e) ? "cuda" : "cpu";
    i->parameters = m->steps.parameters;
    i->model_hash = m->hash;
    i->random_weights = m->random;
    i->packed = aq_model_store_format(m) >= 0;
    i->kv = e->opts.kv;
    return aq_kv_policy_check_context(&i->kv, i->context, reterr);
}

static int read_limits(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_cpu_limits cpu;
    aq_limits_cpu(&cpu, NULL);
    e->info.threads = e->opts.threads ? e->opts.threads : cpu.threads;
    e->cores = cpu.threads;
    aq_hardware_default(&e->hw, e->cores, e->info.threads, e->info.threads);
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

static int keep(char **ret, const char *text, struct aq_err *reterr)
{
    *ret = text ? strdup(text) : NULL;
    return !text || *ret ? 0 : aq_error_memory(reterr, "engine");
}

/* Copies what plan and load will ask for. */
static int keep_choices(struct aq_engine *e, struct aq_err *reterr)
{
    const struct aq_engine_opts *o = &e->opts;
    int rc = keep(&e->model_dir, o->model_dir, reterr);
    rc = rc < 0 ? rc : keep(&e->io, o->io, reterr);
    rc = rc < 0 ? rc : keep(&e->io_direct, o->io_direct, reterr);
    rc = rc < 0 ? rc : keep(&e->cache_dir, o->cache_dir, reterr);
    rc = rc < 0 ? rc : keep(&e->hardware, o->hardware, reterr);
    rc = rc < 0 ? rc : keep(&e->trace_path, o->trace, reterr);
    e->disk_dir = calloc(o->disk_dir_count + 1, sizeof(*e->disk_dir));
    if (!e->disk_dir)
        return aq_error_memory(reterr, "engine");
    for (uint32_t i = 0; i < o->disk_dir_count && rc == 0; i++)
        rc = keep(&e->disk_dir[i], o->disk_dirs[i], reterr);
    if (rc == 0 && o->placement && strcmp(o->placement, "auto")) {
        rc = aq_placement_parse(&e->placement, "--placement", o->placement, reterr);
        e->placed = rc == 0;
    }
    e->host_products_auto = !o->host_products || strcmp(o->host_products, "auto") == 0;
    if (rc == 0 && !e->host_products_auto)
        rc = aq_host_products_parse(&e->host_products, "--host-products", o->host_products, reterr);
    e->attention_auto = !o->attention || strcmp(o->attention, "auto") == 0;
    if (rc == 0 && !e->attention_auto)
        rc = aq_attention_parse(&e->attention, &e->split_host, "--attention", o->attention, reterr);
    if (o->numa && !aq_numa_parse(o->numa, &e->numa_choice))
        rc = aq_error(reterr, -EINVAL, "--numa: expected auto, off or a node's number, found '%s'",
                      o->numa);
    if (rc == 0 && o->emulate_link)
        rc = aq_link_parse(e->link, "--emulate-link", o->emulate_link, reterr);
    if (rc == 0 && o->emulate_device >= e->budget)
        rc = aq_error(reterr, -EINVAL,
                      "--emulate-device: its %llu bytes lie inside the host's, whose budget is "
                      "%llu",
                      (unsigned long long)o->emulate_device, (unsigned long long)e->budget);
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
    e->refill = opts->refill;
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
    if (rc == 0)
        rc = engine_gpu_open(e, reterr);
    if (rc == 0)
        rc = aq_model_open(&e->model, &model, reterr);
    if (rc == 0)
        rc = choose_formats(e, reterr);
    if (rc == 0)
        rc = fill_info(e, reterr);
    if (rc == 0)
        rc = read_limits(e, reterr);
    if (rc == 0)
        rc = keep_choices(e, reterr);
    if (rc == 0)
        rc = engine_gpu_choices(e, reterr);
    if (rc < 0) {
        aq_engine_close(e);
        return rc;
    }
    note_lossy(e);
    /* The strings belong to the caller; what is needed again has been copied. */
    e->opts.model_dir = e->opts.shape = e->opts.isa = e->opts.placement = NULL;
    e->opts.attention = e->opts.emulate_link = e->opts.trace = e->opts.numa = NULL;
    e->opts.io = e->opts.io_direct = e->opts.cache_dir = e->opts.host_products = NULL;
    e->opts.hardware = NULL;
    e->opts.disk_dirs = NULL;
    e->opts.device = e->opts.cuda_module = NULL;
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
    free(e->io);
    free(e->io_direct);
    free(e->cache_dir);
    free(e->hardware);
    free(e->trace_path);
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
        .io = e->io,
        .io_direct = e->io_direct,
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

static int take_scratch(struct aq_engine *e, struct aq_err *reterr)
{
    size_t each = e->inputs.scratch_bytes_per_thread, bytes = each * e->info.threads;
    int rc = aq_mem_alloc(&e->scratch, e->mem, AQ_HOST, "scratch", bytes, reterr);
    if (rc < 0)
        return rc;
    e->scratch_bytes = bytes;
    rc = aq_exec_open(&e->exec, e->pool, e->scratch, each, reterr);
    const uint32_t *qkv = &e->block.program.first[AQ_SLOT_QKV_HOST];
    if (rc < 0 || (qkv[0] == qkv[1] && !aq_program_host_products(&e->block.program)))
        return rc;
    rc = aq_mem_alloc(&e->host_scratch, e->mem, AQ_HOST, "scratch (host lane)", bytes, reterr);
    rc = rc < 0 ? rc : aq_pool_open(&e->host_pool, e->info.threads, reterr);
    return rc < 0 ? rc : aq_exec_open(&e->host_exec, e->host_pool, e->host_scratch, each, reterr);
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
        .link = {[AQ_H2D] = {e->link[AQ_H2D], e->seams.link_latency_ns},
                 [AQ_D2H] = {e->link[AQ_D2H], e->seams.link_latency_ns}},
        .timeline = e->seams.timeline,
        .poison = e->seams.poison,
        .eager = e->seams.eager,
        .jitter_permille = e->seams.jitter_permille,
    };
    struct aq_numa_topology topology;
    aq_numa_read(&topology);
    aq_numa_decide(&e->numa, &topology, e->numa_choice,
                   engine_on_gpu(e) ? e->cuda.info.numa_node : -1);
    device.numa = &e->numa;
    int rc = aq_pool_open(&e->pool, e->info.threads, reterr);
    rc = rc < 0 ? rc : open_disks(e, reterr);
    rc = rc < 0 ? rc : aq_mem_open(&e->mem, limit, reterr);
    device.mem = e->mem;
    rc = rc < 0 ? rc : aq_device_open(&e->device, &device, reterr);
    rc = rc < 0 ? rc : engine_gpu_load(e, reterr);
    rc = rc < 0 ? rc : take_scratch(e, reterr);
    rc = rc < 0 ? rc : load_weights(e, reterr);
    if (rc == 0 && e->trace_path)
        rc = aq_trace_open(&e->trace, e->mem, &e->block.program, reterr);
    e->compute = (struct aq_compute){&e->kernels, e->exec};
    e->host_compute = (struct aq_compute){&e->kernels, e->host_exec};
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
        .block = &e->block,
        .refill = e->refill,
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
        .kv_seen = e->seams.kv_seen,
        .kv_user = e->seams.kv_user,
        .trace = e->trace,
        .attention_stats = e->attention_stats,
    };
    if (rc == 0 && e->host_exec && !e->opts.serial && !engine_on_gpu(e)) {
        opts.compute_cpu = aq_pool_bind(e->pool);
        opts.host_compute_cpu = aq_pool_bind(e->host_pool);
    }
    rc = rc < 0 ? rc : aq_executor_open(&e->executor, &opts, reterr);
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

uint64_t aq_engine_kv_bytes(const struct aq_engine *e, uint32_t slots, bool differ)
{
    if (differ)
        slots = AQ_HEAD_BLOCK_SLOTS * aq_kv_shared_runs(slots, e->model->steps.kv_heads);
    return aq_block_pages(&e->block.plan.shape, e->model->steps.layers, slots) *
           e->block.plan.shape.page_bytes;
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
    ret->lane[AQ_LANE_H2D].ceiling_bytes_per_s = (double)e->link[AQ_H2D];
    ret->lane[AQ_LANE_H2D_WEIGHTS].ceiling_bytes_per_s = (double)e->link[AQ_H2D];
    ret->lane[AQ_LANE_D2H].ceiling_bytes_per_s = (double)e->link[AQ_D2H];
    double disk = e->measured.disk ? e->hw.disk_read_bytes_per_s : 0;
    ret->lane[AQ_LANE_DISK_READ].ceiling_bytes_per_s = disk;
    ret->lane[AQ_LANE_READ_WEIGHTS].ceiling_bytes_per_s = disk;
}
