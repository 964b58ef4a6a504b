/* SPDX-License-Identifier: Apache-2.0
 * What is different of an engine on a GPU. */
#include "engine/compute/backend.h"
#include "engine/core/engine_state.h"
#include "engine/model/formats.h"
#include "engine/options/kv.h"

#include <string.h>

/* What is left to others of the GPU's memory where nobody says how much is meant. */
static uint64_t default_budget(const struct aq_gpu_info *info)
{
    uint64_t margin = aq_max_u64(512 * AQ_MIB, info->free_bytes / 100 * 3);
    return info->context_bytes + (info->free_bytes > margin ? info->free_bytes - margin : 0);
}

static int check_budget(struct aq_engine *e, struct aq_err *reterr)
{
    const struct aq_gpu_info *info = &e->cuda.info;
    uint64_t all = info->context_bytes + info->free_bytes;
    e->device_budget = e->opts.device_memory ? e->opts.device_memory : default_budget(info);
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
    int rc = !o->device ? 0 : aq_device_choose(&index, o->device, NULL, o->cuda_module, reterr);
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
    aq_cuda_close(&e->cuda);
}

int engine_gpu_formats(enum aq_dtype *ret_compute, struct aq_engine *e, struct aq_err *reterr)
{
    int want = e->opts.compute;
    bool bf16 = aq_gpu_has_bf16(&e->cuda.info);
    if (want >= 0 && !aq_dtype_is_float((enum aq_dtype)want))
        return aq_error(reterr, -EINVAL, "--compute: expected auto, f16, bf16 or f32");
    if (want == AQ_BF16 && !bf16)
        return aq_error(reterr, -EINVAL,
                        "--compute bf16: '%s' has compute capability %u.%u; bf16 needs 8.0",
                        e->cuda.info.name, e->cuda.info.sm / 10, e->cuda.info.sm % 10);
    *ret_compute = aq_formats_of_gpu(e->model, bf16);
    e->model->row_major = true;
    return 0;
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
        .pass_ops = count_compute_ops(&e->block.program),
        .deterministic = e->opts.deterministic,
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
    aq_gpu_sizes_count(&opts.sizes, &e->model->steps, &e->block.plan);
    rc = aq_mem_count(e->mem, AQ_DEVICE, "gpu graphs", opts.sizes.graphs_bytes, reterr);
    if (rc < 0)
        return rc;
    e->graphs_counted = opts.sizes.graphs_bytes;
    return aq_compute_cuda_open(&e->compute_cuda, &opts, reterr);
}

int engine_gpu_choices(const struct aq_engine *e, struct aq_err *reterr)
{
    if (!engine_on_gpu(e))
        return 0;
    int rc = aq_kv_policy_check_gpu(&e->info.kv, reterr);
    if (rc < 0)
        return rc;
    rc = e->host_products_auto ? 0 : aq_host_products_check_gpu(e->host_products, reterr);
    if (rc < 0)
        return rc;
    if (e->opts.deterministic && !e->attention_auto && e->attention == AQ_ATTEND_SPLIT)
        return aq_error(
            reterr, -EINVAL,
            "--attention split: the two sides' bits differ, which --deterministic rules "
            "out");
    return 0;
}
