/* SPDX-License-Identifier: Apache-2.0
 * engine/core/engine_state.h - an engine's insides, shared by engine.c (open, load, run) and
 * engine_plan.c (the plan, its ledger and its forecast). */
#ifndef AQ_ENGINE_CORE_ENGINE_STATE_H
#define AQ_ENGINE_CORE_ENGINE_STATE_H

#include "engine/compute/cuda.h"
#include "engine/compute/cuda_lane.h"
#include "engine/core/engine.h"
#include "engine/core/engine_seams.h"
#include "engine/exec/attention_stats.h"
#include "engine/exec/executor.h"
#include "engine/exec/trace.h"
#include "engine/machine/hw_file.h"
#include "engine/machine/rates.h"
#include "engine/model/formats.h"
#include "engine/model/model.h"
#include "kernels/kernels.h"
#include "offload/disks.h"
#include "policy/forecast.h"

struct aq_engine {
    struct aq_engine_opts opts;
    struct aq_engine_info info;
    struct aq_model *model;
    struct aq_kernels kernels;
    bool cpu_bf16; /* products on the CPU are to compute in bf16 unless something else is said */
    struct aq_block_inputs inputs;
    struct aq_block block;
    struct aq_formats formats;
    struct aq_numa numa;
    bool planned, loaded;
    struct aq_hardware hw;
    char hw_name[AQ_HW_NAME_MAX]; /* of the profile; "": measured at start */
    char hw_told[AQ_HW_TOLD_MAX]; /* of this machine's: struct aq_hw_profile */
    struct aq_rates_measured measured;
    uint32_t cores;
    bool rated, forecasted;
    struct aq_forecast_work work;
    struct aq_length *length; /* [length_count] of the workload's sequences; NULL: unknown */
    uint32_t length_count;
    struct aq_forecast forecast;
    uint64_t budget;
    /* Copies of the caller's strings that are needed until load or close. */
    uint8_t *classes; /* of tokens, from the tokenizer; NULL: not needed */
    char *model_dir, *cache_dir, *hardware, *trace_path, **disk_dir;
    char lossy_text[5][256];
    struct aq_log log;

    struct aq_mem *mem;
    struct aq_device *device;
    struct aq_store *store; /* that weights stream from */
    bool store_borrowed;
    struct aq_disks *disks;
    uint64_t store_bytes; /* on disk, where weights stream from there */
    double pack_s;
    struct aq_pool *pool;
    struct aq_exec *exec;
    void *scratch;
    size_t scratch_bytes; /* of all workers */
    /* Of the host lane, where it has something to attend. */
    struct aq_pool *host_pool;
    struct aq_exec *host_exec;
    void *host_scratch;
    void *codes, *host_codes; /* of rows, where products are computed on codes */
    struct aq_compute compute, host_compute;
    struct aq_cuda cuda; /* all zero: none */
    struct aq_compute_cuda *compute_cuda;
    uint64_t device_budget; /* of a GPU, the driver's context included */
    bool context_counted;
    uint64_t graphs_counted, driver_counted;
    struct aq_trace *trace;
    struct aq_attention_stats *attention_stats;
    struct aq_executor *executor;
    void (*observe)(void *user, bool running);
    void *observe_user;
    bool (*stop)(void *user);
    void *stop_user;
    struct aq_engine_seams seams;
};

static inline bool engine_on_gpu(const struct aq_engine *e)
{
    return e->cuda.gpu;
}

/* Budgets of a separate device, which lies inside the host's memory where it is emulated, and of
 * the host without it. */
static inline uint64_t engine_device_bytes(const struct aq_engine *e)
{
    return engine_on_gpu(e) ? e->device_budget : e->opts.emulate_device;
}

static inline uint64_t engine_host_bytes(const struct aq_engine *e)
{
    return e->budget - e->opts.emulate_device;
}

/* Of the process: an emulated device's memory lies inside the host's. */
static inline uint64_t engine_host_ledger(const struct aq_engine *e)
{
    const struct aq_ledger *l = &e->block.ledger;
    return aq_ledger_total(l, AQ_HOST) + (engine_on_gpu(e) ? 0 : aq_ledger_total(l, AQ_DEVICE));
}

/* ---- engine_gpu.c ---- */
/* Opens the GPU that the options ask for, if any, and says what cannot be had on one. */
int engine_gpu_open(struct aq_engine *e, struct aq_err *reterr);
void engine_gpu_close(struct aq_engine *e);
/* After the device is open: its workspaces. */
int engine_gpu_load(struct aq_engine *e, struct aq_err *reterr);
/* Of the GPU's memory, what is gone since it was opened and was not asked for by us: the driver's,
 * or another process's. */
uint64_t engine_gpu_beside(const struct aq_engine *e);
/* After everything else is loaded: that, against its line of the ledger and what is left of the
 * budget. */
int engine_gpu_check(const struct aq_engine *e, struct aq_err *reterr);

/* ---- engine_hw.c ---- */
/* Once, before the first plan: where --hardware says so, of models large enough for it to pay, or
 * where somebody asks. */
int engine_rate_machine(struct aq_engine *e, struct aq_err *reterr);
/* The rate of a store's files replaces what was assumed, once there is one. */
/* The store's files, as the disks take them. */
struct aq_disks_data engine_store_data(const struct aq_store *s);
int engine_rate_disk(struct aq_engine *e, const struct aq_store *store, struct aq_err *reterr);

/* ---- engine_plan.c ---- */
int engine_make_forecast(struct aq_engine *e, struct aq_err *reterr);
struct aq_attention_stats_opts engine_stats_opts(const struct aq_engine *e);

#endif
