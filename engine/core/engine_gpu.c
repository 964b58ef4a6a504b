/* SPDX-License-Identifier: Apache-2.0
 * The parts of an engine that differ on a GPU. */
#include "engine/compute/backend.h"
#include "engine/core/engine_state.h"
#include "engine/core/planned.h"

#include <string.h>

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static int check_budget(struct aq_engine *e, struct aq_err *reterr)
{
    const struct aq_gpu_info *info = &e->cuda.info;
    uint64_t all = info->context_bytes + info->free_bytes;
    e->device_budget = e->opts.device_memory;
    if (!e->device_budget)
        e->device_budget = info->context_bytes + aq_planned_usable(AQ_DEVICE, info->free_bytes);
    if (e->device_budget <= all)
        return 0;
    return aq_error(reterr, -ENOMEM,
                    "--device-memory: %llu bytes, but of the %llu of '%s' only %llu are free, and "
                    "%llu are the driver's own",
                    (unsigned long long)e->device_budget, (unsigned long long)info->total_bytes,
                    info->name, (unsigned long long)info->free_bytes,
                    (unsigned long long)info->context_bytes);
}

int engine_gpu_open(struct aq_engine *e, struct aq_err *reterr)
{
    const struct aq_engine_opts *o = &e->opts;
    int index = -1;
    int rc = aq_device_choose(&index, o->device, NULL, o->cuda_module, reterr);
    if (rc < 0 || index < 0) {
        if (rc == 0 && o->device_memory)
            rc = aq_error(reterr, -EINVAL,
                          "--device-memory: the cpu backend has no device tier; --host-memory "
                          "bounds the whole process");
        return rc;
    }
    if (o->emulate_device)
        return aq_error(reterr, -EINVAL, "--emulate-device: there is a GPU; --device cpu emulates");
    if (o->attention_stats)
        return aq_error(reterr, -EINVAL, "attention statistics are the cpu backend's");
    rc = aq_cuda_open(&e->cuda, o->cuda_module, (uint32_t)index, reterr);
    if (rc < 0)
        return rc;
    e->info.gpu = e->cuda.info.name;
    return check_budget(e, reterr);
}

void engine_gpu_close(struct aq_engine *e)
{
    if (e->context_counted)
        aq_mem_uncount(e->mem, AQ_DEVICE, "context", e->cuda.info.context_bytes);
    if (e->graphs_counted)
        aq_mem_uncount(e->mem, AQ_DEVICE, "gpu graphs", e->graphs_counted);
    if (e->driver_counted)
        aq_mem_uncount(e->mem, AQ_DEVICE, "gpu driver", e->driver_counted);
    aq_cuda_close(&e->cuda);
}

/* Each may be a list of launches by itself. */
static uint32_t count_compute_ops(const struct aq_program *p)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->op_count; i++)
        count += p->op[i].lane == AQ_LANE_COMPUTE;
    return count;
}

int engine_gpu_load(struct aq_engine *e, struct aq_err *reterr)
{
    struct aq_compute_cuda_opts opts = {
        .cuda = &e->cuda,
        .device = e->device,
        .seats = e->block.plan.shape.micro_batch,
        .pass_ops = count_compute_ops(&e->block.program),
        .deterministic = e->opts.deterministic,
        .steps = &e->model->steps,
        .compute = e->block.plan.shape.compute,
        .launches_max = e->seams.gpu_launches,
    };
    int rc = 0;
    if (!engine_on_gpu(e))
        return 0;
    if (e->cuda.info.context_bytes)
        rc = aq_mem_count(e->mem, AQ_DEVICE, "context", e->cuda.info.context_bytes, reterr);
    if (rc < 0)
        return rc;
    e->context_counted = e->cuda.info.context_bytes;
    aq_gpu_sizes_count(&opts.sizes, &e->model->steps, &e->block.plan, e->cuda.info.context_bytes);
    rc = aq_mem_count(e->mem, AQ_DEVICE, "gpu graphs", opts.sizes.graphs_bytes, reterr);
    if (rc < 0)
        return rc;
    e->graphs_counted = opts.sizes.graphs_bytes;
    uint64_t driver = aq_ledger_line(&e->block.ledger, AQ_DEVICE, "gpu driver");
    if (driver)
        rc = aq_mem_count(e->mem, AQ_DEVICE, "gpu driver", driver, reterr);
    if (rc < 0)
        return rc;
    e->driver_counted = driver;
    return aq_compute_cuda_open(&e->compute_cuda, &opts, reterr);
}

uint64_t engine_gpu_beside(const struct aq_engine *e)
{
    uint64_t free_bytes = 0, total;
    uint64_t context = e->context_counted ? e->cuda.info.context_bytes : 0;
    uint64_t counted = aq_mem_rounded(context) + aq_mem_rounded(e->graphs_counted) +
                       aq_mem_rounded(e->driver_counted);
    if (!e->mem || e->cuda.module->gpu->memory(e->cuda.gpu, &free_bytes, &total))
        return 0; /* a GPU that has failed says nothing */
    uint64_t ours = aq_mem_used(e->mem, AQ_DEVICE) - counted;
    return less(e->cuda.info.free_bytes, free_bytes + ours);
}

int engine_gpu_check(const struct aq_engine *e, struct aq_err *reterr)
{
    if (!engine_on_gpu(e))
        return 0;
    const struct aq_gpu_info *info = &e->cuda.info;
    /* A budget that nobody gave is a guess of how much to leave alone. */
    uint64_t all =
        e->opts.device_memory ? e->device_budget : info->context_bytes + info->free_bytes;
    uint64_t beside = engine_gpu_beside(e), line = e->driver_counted + e->graphs_counted;
    uint64_t room = less(all, aq_ledger_total(&e->block.ledger, AQ_DEVICE));
    if (less(beside, line) <= room)
        return 0;
    return aq_error(
        reterr, -ENOMEM,
        "device memory: beside what was asked for, %llu bytes of '%s' are gone since it "
        "was opened, to its driver or another process, where the ledger has %llu for "
        "the driver and %llu are left: end the other process, or give a %s",
        (unsigned long long)beside, info->name, (unsigned long long)line, (unsigned long long)room,
        e->opts.device_memory ? "larger --device-memory or a smaller --host-memory"
                              : "smaller --device-memory or --host-memory");
}
