/* SPDX-License-Identifier: Apache-2.0
 * engine/core/engine_hw.c - the rates that an engine plans and predicts with: of a profile that was
 * named or kept, else measured in a moment. */
#include "engine/core/engine_state.h"

#include "base/mem.h"
#include "engine/core/planned.h"
#include "engine/machine/hw_keys.h"

#include <stdio.h>

/* A smaller model is done before it pays to measure the machine. */
#define MEASURED_PARAMETERS (100 * 1000 * 1000)

static bool given(const struct aq_hw_profile *p, const char *key)
{
    return p->note[aq_hw_key_find(key)].origin == AQ_HW_GIVEN;
}

/* Of a profile without a disk, which a run may need all the same. */
static void assume_disk(struct aq_engine *e)
{
    struct aq_hardware usual;
    aq_hardware_default(&usual, e->cores, e->info.threads, e->info.threads);
    e->hw.disk_read_bytes_per_s = usual.disk_read_bytes_per_s;
    e->hw.disk_write_bytes_per_s = usual.disk_write_bytes_per_s;
    e->hw.disk_duplex = usual.disk_duplex;
    e->hw.disk_in_flight = usual.disk_in_flight;
    e->hw.disk_core_s_per_byte = usual.disk_core_s_per_byte;
    e->hw.overhead_s[AQ_LANE_DISK_READ] = usual.overhead_s[AQ_LANE_DISK_READ];
    e->hw.overhead_s[AQ_LANE_DISK_WRITE] = usual.overhead_s[AQ_LANE_DISK_WRITE];
    e->hw.overhead_s[AQ_LANE_READ_WEIGHTS] = usual.overhead_s[AQ_LANE_READ_WEIGHTS];
}

/* Of the products that the run does. */
static const char *product_key(const struct aq_engine *e)
{
    static const char *const of_gpu[AQ_DTYPE_COUNT] = {
        [AQ_F32] = "device.product_f32_tflop_s",
        [AQ_F16] = "device.product_f16_tflop_s",
        [AQ_BF16] = "device.product_bf16_tflop_s",
    };
    return engine_on_gpu(e)             ? of_gpu[e->info.compute]
           : e->info.compute == AQ_BF16 ? "host.product_bf16_tflop_s"
                                        : "host.product_f32_tflop_s";
}

static int take_profile(struct aq_engine *e, const struct aq_hw_profile *p, struct aq_err *reterr)
{
    bool gpu = engine_on_gpu(e);
    if (p->hw.device_on_host == gpu)
        return aq_error(
            reterr, -EINVAL,
            "--hardware: this run computes on %s: expected a machine %s a device, found "
            "'%s' with '%s'",
            gpu ? "a GPU" : "the cpu", gpu ? "with" : "without", p->name,
            p->device[0] ? p->device : "none");
    snprintf(e->hw_name, sizeof(e->hw_name), "%s", p->name);
    snprintf(e->hw_told, sizeof(e->hw_told), "%s", p->told);
    if (p->kept) /* what was measured now has been told */
        aq_log_line(&e->log, AQ_LOG_INFO, "hardware: %s", p->told);
    e->hw = aq_hw_for_formats(p, e->info.compute, e->info.weight_format, e->info.kv_format);
    if (!p->capacity[AQ_DISK])
        assume_disk(e);
    e->measured = (struct aq_rates_measured){
        .products = given(p, product_key(e)),
        .memory = given(p, "host.memory_gb_s"),
        .disk = p->capacity[AQ_DISK] > 0,
    };
    return 0;
}

/* *ret_found: the rates are those of --hardware, or of what `local` kept. */
static int look_up(struct aq_engine *e, bool *ret_found, struct aq_err *reterr)
{
    struct aq_hw_profile p;
    uint64_t now = aq_mem_process_now();
    struct aq_hw_local_opts local = {
        .cache_dir = e->cache_dir,
        .disk_dir = e->opts.disk_dir_count ? e->disk_dir[0] : NULL,
        .threads = e->opts.threads,
        .isa = e->opts.isa,
        .cuda = engine_on_gpu(e) ? &e->cuda : NULL,
        .memory = e->budget > now ? e->budget - now : 1,
        .log = &e->log,
    };
    *ret_found = true;
    if (e->hardware) {
        int rc = aq_hw_find(&p, e->hardware, &local, reterr);
        return rc < 0 ? rc : take_profile(e, &p, reterr);
    }
    bool tested = e->seams.timeline || e->seams.open_io; /* by what is not this machine */
    *ret_found = !tested && aq_hw_local_kept(&p, &local);
    return *ret_found ? take_profile(e, &p, reterr) : 0;
}

static int measure(struct aq_engine *e, struct aq_err *reterr)
{
    uint64_t now = aq_mem_process_now(), all = engine_host_bytes(e);
    struct aq_rates_opts opts = {
        .kernels = &e->kernels,
        .cores = e->cores,
        .threads = e->info.threads,
        .compute = e->info.compute,
        .weight_format = e->info.weight_format,
        .memory = all > now ? (all - now) / 4 : 0,
    };
    return aq_rates_measure(&e->hw, &e->measured, &opts, reterr);
}

int engine_rate_machine(struct aq_engine *e, struct aq_err *reterr)
{
    bool worth = e->opts.predict || e->info.parameters >= MEASURED_PARAMETERS, found = false;
    if (e->rated || (!worth && !e->hardware))
        return 0;
    int rc = look_up(e, &found, reterr);
    if (rc == 0 && !found && engine_on_gpu(e))
        return 0; /* in a moment, a GPU is not measured */
    rc = rc < 0 || found ? rc : measure(e, reterr);
    if (rc < 0)
        return rc;
    /* Emulated links are as fast as they were asked to be, or as a copy in memory goes, and
     * independent of each other but for the memory and cores that both take. */
    double copy = e->hw.host_memory_bytes_per_s / e->hw.copy_host_bytes_per_byte;
    if (!found)
        e->hw.h2d_bytes_per_s = e->hw.d2h_bytes_per_s = copy;
    aq_planned_links(&e->hw, &e->opts);
    e->rated = true;
    return 0;
}

struct aq_disks_data engine_store_data(const struct aq_store *s)
{
    return (struct aq_disks_data){aq_store_paths(s), aq_store_dir_count(s), aq_store_bytes(s)};
}

/* The read rate of the store's files.  A store too small to be measured leaves the assumption. */
int engine_rate_disk(struct aq_engine *e, const struct aq_store *store, struct aq_err *reterr)
{
    if (!e->rated || e->measured.disk || !store || e->seams.timeline || e->seams.open_io)
        return 0;
    uint64_t allowed = e->planned ? engine_host_ledger(e) : e->budget;
    if (allowed < aq_mem_process_now() + 2 * AQ_RATES_DISK_MEMORY)
        return 0; /* too little of it to spend some on a guess */
    struct aq_disks_opts opts = {
        .data = engine_store_data(store), .io = e->opts.io, .io_direct = e->opts.io_direct};
    int rc = aq_rates_disk(&e->hw.disk_read_bytes_per_s, &opts, reterr);
    e->measured.disk = rc == 0;
    return rc == -ERANGE ? 0 : rc;
}
