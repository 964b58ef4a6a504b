/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/planning.h"

#include "base/mem.h"
#include "engine/device.h"
#include "engine/machine_limits.h"
#include "engine/options_kv.h"
#include "engine/pack.h"
#include "engine/placement.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a process holds beside its plan: libraries, queues, records; with a device's driver. */
#define PROCESS_BYTES        (64 * AQ_MIB)
#define DEVICE_PROCESS_BYTES (512 * AQ_MIB)
/* Requests of a range of lengths where nobody says how many: enough for a mean. */
enum { REQUESTS_OF_RANGE = 1000 };

/* ---- choices ---- */

static bool has_device(const struct aq_planning *p)
{
    return !p->machine.hw.device_on_host;
}

/* The narrowest type that products are fastest in. */
static void choose_compute(struct aq_planning *p)
{
    const double *rate = p->machine.hw.device.product_flops_per_s;
    enum aq_dtype half = has_device(p) && rate[AQ_F16] > rate[AQ_BF16] ? AQ_F16 : AQ_BF16;
    bool bf16 = p->model->original_dtype == AQ_BF16 && rate[AQ_BF16] >= 0.9 * rate[half];
    half = bf16 ? AQ_BF16 : half;
    p->compute = rate[half] > rate[AQ_F32] ? half : AQ_F32;
}

static int choose_formats(struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    const struct aq_model *m = p->model;
    int store = aq_model_store_format(m);
    choose_compute(p);
    if (o->compute >= 0)
        p->compute = (enum aq_dtype)o->compute;
    if (p->compute == AQ_F16 && !has_device(p))
        return aq_error(reterr, -EINVAL,
                        "--compute f16: the cpu backend computes in f32 or bf16, and '%s' has no "
                        "device",
                        p->machine.name);
    if (store >= 0 && o->weight_format >= 0 && o->weight_format != store)
        return aq_error(
            reterr, -EINVAL,
            "--weight-format %s: the packed store holds %s; pack again for another format",
            aq_dtype_name((enum aq_dtype)o->weight_format), aq_dtype_name((enum aq_dtype)store));
    p->weight_format = m->checkpoint_dtype;
    if (!aq_dtype_is_quantised(p->weight_format) &&
        aq_dtype_bytes(p->compute) <= aq_dtype_bytes(p->weight_format))
        p->weight_format = p->compute;
    if (o->weight_format >= 0)
        p->weight_format = (enum aq_dtype)o->weight_format;
    p->kv_format = o->compute == AQ_F32 ? AQ_F32 : m->original_dtype == AQ_BF16 ? AQ_BF16 : AQ_F16;
    if (o->kv_format >= 0)
        p->kv_format = (enum aq_dtype)o->kv_format;
    int rc = aq_options_kv_policy(&p->kv, o, reterr);
    return rc == 0 && has_device(p) ? aq_kv_policy_check_gpu(&p->kv, reterr) : rc;
}

/* ---- machine ---- */

static int read_machine(struct aq_planning *p, const struct aq_log *log, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    struct aq_cuda cuda = {0};
    p->local = !o->hardware || strcmp(o->hardware, "local") == 0;
    if (o->device && !p->local)
        return aq_error(reterr, -EINVAL,
                        "--device: it chooses of this machine; expected --hardware local, found "
                        "'%s'",
                        o->hardware);
    int rc = p->local ? aq_device_open_gpu(&cuda, o->device, reterr) : 0;
    struct aq_hw_local_opts local = {
        .cache_dir = o->cache_dir,
        .threads = o->threads,
        .cuda = cuda.module ? &cuda : NULL,
        .log = log,
    };
    rc = rc < 0 ? rc : aq_hw_find(&p->machine, o->hardware, &local, reterr);
    aq_cuda_close(&cuda);
    if (rc < 0)
        return rc;
    if (o->emulate_device && has_device(p))
        return aq_error(reterr, -EINVAL, "--emulate-device: '%s' has a device of its own",
                        p->machine.name);
    if (o->device_memory && !has_device(p))
        return aq_error(reterr, -EINVAL,
                        "--device-memory: '%s' has no device; --host-memory bounds the process",
                        p->machine.name);
    return 0;
}

static int choose_links(struct aq_planning *p, struct aq_err *reterr)
{
    uint64_t link[2];
    p->hw = aq_hw_for_formats(&p->machine, p->weight_format, p->kv_format);
    if (!p->o->emulate_link)
        return 0;
    int rc = aq_link_parse(link, "--emulate-link", p->o->emulate_link, reterr);
    if (rc < 0)
        return rc;
    p->hw.h2d_bytes_per_s = (double)link[0];
    p->hw.d2h_bytes_per_s = (double)link[1];
    return 0;
}

static uint64_t less(uint64_t bytes, uint64_t by)
{
    return bytes > by ? bytes - by : 0;
}

/* Budgets by the rules of the options, of what a machine has where it is not this one. */
static int choose_budgets(struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    const uint64_t *has = p->machine.capacity;
    uint64_t *budget = p->in.budget;
    int rc;
    budget[AQ_HOST] = o->host_memory;
    p->host_limited_by = "option";
    if (!o->host_memory && p->local) {
        struct aq_host_limits host;
        rc = aq_limits_host(&host, NULL, reterr);
        if (rc < 0)
            return rc;
        budget[AQ_HOST] = host.budget + aq_mem_process_now();
        p->host_limited_by = host.limited_by;
    } else if (!o->host_memory) {
        budget[AQ_HOST] = less(has[AQ_HOST], aq_max_u64(2 * AQ_GIB, has[AQ_HOST] / 20));
        p->host_limited_by = "machine";
    }
    if (has_device(p)) {
        uint64_t kept = aq_max_u64(512 * AQ_MIB, has[AQ_DEVICE] * 3 / 100);
        budget[AQ_DEVICE] = o->device_memory ? o->device_memory : less(has[AQ_DEVICE], kept);
    } else if (o->emulate_device) {
        if (o->emulate_device >= budget[AQ_HOST])
            return aq_error(reterr, -EINVAL,
                            "--emulate-device: its %llu bytes lie inside the host's, whose budget "
                            "is %llu",
                            (unsigned long long)o->emulate_device,
                            (unsigned long long)budget[AQ_HOST]);
        budget[AQ_DEVICE] = o->emulate_device;
        budget[AQ_HOST] -= o->emulate_device;
    }
    rc = aq_pack_store_bytes(&p->store_bytes, p->model, p->weight_format, reterr);
    if (rc < 0)
        return rc;
    uint64_t room = less(has[AQ_DISK] / 20 * 19, p->store_bytes);
    p->in.can_stream = p->hw.disk_read_bytes_per_s > 0 && room > 0;
    budget[AQ_DISK] = o->disk_memory ? o->disk_memory : room;
    return 0;
}

/* ---- work ---- */

/* Prompts all as long, or evenly from one length to another. */
static int read_lengths(struct aq_planning *p, uint32_t context, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    int rc = aq_length_parse(&p->prompt[0], &p->prompt[1], "--prompt-len", o->prompt_range, reterr);
    rc = rc < 0 ? rc : aq_length_parse(&p->gen[0], &p->gen[1], "--gen-len", o->gen_range, reterr);
    if (rc < 0)
        return rc;
    if ((uint64_t)p->prompt[1] + p->gen[1] > context)
        return aq_error(reterr, -EINVAL,
                        "workload: prompts of %u and %u generated tokens do not fit a context of "
                        "%u",
                        p->prompt[1], p->gen[1], context);
    uint64_t requests = o->requests;
    bool range = p->prompt[0] < p->prompt[1] || p->gen[0] < p->gen[1];
    uint64_t seats = (uint64_t)o->micro_batch * (o->micro_batches ? o->micro_batches : 1);
    p->requests_assumed = !requests && range;
    if (p->requests_assumed)
        requests =
            aq_max_u64(REQUESTS_OF_RANGE, 3 * seats); /* the block is full most of the time */
    uint64_t prompt2 = (uint64_t)p->prompt[0] + p->prompt[1],
             gen2 = (uint64_t)p->gen[0] + p->gen[1];
    p->in.sequences = requests;
    p->in.prompt_sum = requests * prompt2 / 2;
    p->in.total_sum = requests * (prompt2 + gen2) / 2;
    p->in.prompt_max = p->prompt[1];
    p->in.total_max = p->prompt[1] + p->gen[1];
    return 0;
}

static int read_work(struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    const struct aq_model_steps *m = &p->model->steps;
    uint32_t context = o->context ? o->context : m->context;
    if (context > m->context)
        return aq_error(reterr, -EINVAL, "--context %u: the model knows %u positions", context,
                        m->context);
    int rc =
        o->input ? aq_planning_read_input(p, context, reterr) : read_lengths(p, context, reterr);
    if (rc < 0)
        return rc;
    uint64_t seats = (uint64_t)o->micro_batch * (o->micro_batches ? o->micro_batches : 1);
    if (p->in.sequences && seats > p->in.sequences)
        return aq_error(reterr, -EINVAL,
                        "block: %u seats x %u micro-batches are more than the %llu requests",
                        o->micro_batch, o->micro_batches ? o->micro_batches : 1,
                        (unsigned long long)p->in.sequences);
    return aq_kv_policy_check_context(&p->kv, context, reterr);
}

/* What options fix of the plan. */
static int fill_choices(struct aq_planning *p, struct aq_placement *placement,
                        struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    struct aq_block_inputs *in = &p->in;
    int rc = 0;
    in->micro_batch = o->micro_batch;
    in->micro_batches = o->micro_batches;
    in->prompt_tokens = o->micro_batch_tokens;
    in->prefetch_bytes = o->prefetch;
    in->chunk_bytes = o->chunk;
    in->fuse_layer = o->fuse_layer;
    in->alternate = o->alternate;
    in->refill = o->refill;
    in->serial = o->executor && strcmp(o->executor, "serial") == 0;
    in->attention_auto = !o->attention || strcmp(o->attention, "auto") == 0;
    if (!in->attention_auto && aq_attention_parse(&in->attention, &in->split_host, "--attention",
                                                  o->attention, reterr) < 0)
        return -EINVAL;
    in->one_side = has_device(p) && o->deterministic;
    in->gpu = has_device(p);
    bool products_auto = !o->host_products || strcmp(o->host_products, "auto") == 0;
    in->host_products_auto = products_auto && !in->gpu; /* where engine_gpu.c refuses them */
    if (!products_auto)
        rc =
            aq_host_products_parse(&in->host_products, "--host-products", o->host_products, reterr);
    if (rc == 0 && in->gpu)
        rc = aq_host_products_check_gpu(in->host_products, reterr);
    if (rc == 0 && o->placement && strcmp(o->placement, "auto")) {
        rc = aq_placement_parse(placement, "--placement", o->placement, reterr);
        in->placement = placement;
    }
    return rc;
}

static void fill_bytes(struct aq_planning *p)
{
    const struct aq_model_steps *m = &p->model->steps;
    struct aq_scratch_need need = {
        .k_max = (uint32_t)aq_max_u64(aq_max_u64(m->inner, m->hidden), m->embed_width),
        .head_dim_max = m->head_dim,
        .context_max = p->o->context ? p->o->context : m->context,
        .scored_q_per_kv = aq_kv_policy_scores(&p->kv) ? m->heads / m->kv_heads : 0,
    };
    p->in.scratch_bytes_per_thread = aq_kernels_scratch_bytes(&need);
    p->in.process_bytes = has_device(p) ? DEVICE_PROCESS_BYTES : PROCESS_BYTES;
}

int aq_planning_open(struct aq_planning **ret, const struct aq_options *o, const struct aq_log *log,
                     struct aq_err *reterr)
{
    struct {
        struct aq_planning p;
        struct aq_placement placement; /* what p.in.placement points to */
    } *both = calloc(1, sizeof(*both));
    if (!both)
        return aq_error_memory(reterr, "plan");
    struct aq_planning *p = &both->p;
    p->o = o;
    struct aq_model_opts model = {o->model, o->model ? NULL : o->shape, 0};
    int rc = aq_model_open(&p->model, &model, reterr);
    rc = rc < 0 ? rc : read_machine(p, log, reterr);
    rc = rc < 0 ? rc : choose_formats(p, reterr);
    rc = rc < 0 ? rc : choose_links(p, reterr);
    if (rc == 0) {
        p->in.steps = &p->model->steps;
        p->in.compute = p->compute;
        p->in.weight_format = p->weight_format;
        p->in.kv_format = p->kv_format;
        p->in.table_format = aq_model_table_dtype(p->model);
        p->in.kv = p->kv;
        p->in.threads = o->threads ? o->threads : (uint32_t)fmax(1, p->hw.cores);
        p->in.separate = has_device(p) || o->emulate_device;
        p->in.hw = &p->hw;
        fill_bytes(p);
        rc = choose_budgets(p, reterr);
    }
    rc = rc < 0 ? rc : read_work(p, reterr);
    rc = rc < 0 ? rc : fill_choices(p, &both->placement, reterr);
    if (rc < 0) {
        aq_planning_close(p);
        return rc;
    }
    p->work = (struct aq_forecast_work){.steps = p->in.steps,
                                        .sequences = p->in.sequences,
                                        .refill = p->in.refill,
                                        .serial = p->in.serial};
    aq_forecast_mean(&p->work, &p->in);
    *ret = p;
    return 0;
}

void aq_planning_close(struct aq_planning *p)
{
    if (!p)
        return;
    aq_block_close(&p->block);
    aq_model_close(p->model);
    aq_lengths_close(&p->lengths);
    free(p);
}

/* ---- the plan ---- */

/* If lanes waited for each other all the time, and if the busiest never did. */
static int fill_range(struct aq_planning *p, struct aq_err *reterr)
{
    struct aq_forecast_work serial = p->work;
    struct aq_forecast f;
    serial.serial = true;
    int rc = aq_forecast_make(&f, &p->block, &serial, &p->hw, reterr);
    if (rc < 0)
        return rc;
    const struct aq_forecast *now = &p->forecast;
    double decode_s = now->block_s - now->prefill_s;
    double busy = fmin(1, now->lane[now->binding_lane].share);
    p->range[0] = fmin(f.gen_tok_s, now->gen_tok_s);
    p->range[1] = now->gen_tok_s * now->block_s / (now->prefill_s + decode_s * busy);
    return 0;
}

/* Where no records were read: lengths of the ranges, each as often as any other, in no order; the
 * fractional parts of multiples of these two irrational numbers are spread evenly over the square
 * (Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018). */
static int spread_lengths(struct aq_planning *p, struct aq_err *reterr)
{
    bool range = p->prompt[0] < p->prompt[1] || p->gen[0] < p->gen[1];
    uint32_t count = range ? 1024 : 1;
    bool good = true;
    if (p->lengths.count)
        return 0;
    for (uint32_t i = 0; i < count && good; i++) {
        double a = 0.5 + 0.7548776662466927 * i, b = 0.5 + 0.5698402909980532 * i;
        struct aq_length l = {
            p->prompt[0] + (uint32_t)((a - floor(a)) * (p->prompt[1] - p->prompt[0] + 1)),
            p->gen[0] + (uint32_t)((b - floor(b)) * (p->gen[1] - p->gen[0] + 1)),
        };
        good = aq_lengths_add(&p->lengths, l, 1);
    }
    return good ? 0 : aq_error_memory(reterr, "plan");
}

int aq_planning_run(struct aq_planning *p, struct aq_err *reterr)
{
    int rc = aq_block_choose(&p->block, &p->in, &p->why_not);
    p->feasible = rc == 0;
    if (rc == -ENOMEM) {
        aq_error_prefix(&p->why_not, "%s", p->model->name);
        return aq_block_least(&p->block, &p->in, reterr);
    }
    if (rc < 0)
        return aq_error(reterr, rc, "%s: %s", p->model->name, p->why_not.text);
    rc = aq_forecast_make(&p->forecast, &p->block, &p->work, &p->hw, reterr);
    rc = rc < 0 ? rc : fill_range(p, reterr);
    rc = rc < 0 ? rc : spread_lengths(p, reterr);
    if (rc < 0)
        return rc;
    double block = p->forecast.gen_tok_s;
    rc = aq_forecast_job(&p->forecast, &p->block, &p->work, p->lengths.item, p->lengths.count,
                         &p->hw, reterr);
    for (int i = 0; rc == 0 && i < 2; i++)
        p->range[i] *= block > 0 ? p->forecast.gen_tok_s / block : 1;
    return rc;
}

double aq_planning_total_s(const struct aq_planning *p)
{
    return p->forecast.all_prefill_s + p->forecast.all_decode_s;
}
