/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan/planning.h"

#include "engine/model/formats.h"
#include "engine/options/kv.h"
#include "engine/options/notation.h"
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

/* Whether the GPU has bf16 products of its own.  Where only its rates are known: those without
 * have them from f32 units, at a small part of the rate of f16. */
static bool has_bf16(const struct aq_planning *p)
{
    const double *rate = p->machine.hw.device.product_flops_per_s;
    return p->gpu_known ? p->gpu_bf16 : rate[AQ_BF16] >= rate[AQ_F16] / 2;
}

/* What runs on that machine compute in where nobody says. */
static enum aq_dtype compute_by_itself(const struct aq_planning *p)
{
    const double *rate = p->machine.hw.device.product_flops_per_s;
    if (aq_planning_has_device(p))
        return aq_formats_of_gpu(p->model, has_bf16(p));
    return rate[AQ_BF16] > rate[AQ_F32] ? AQ_BF16 : AQ_F32;
}

static int choose_formats(struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    struct aq_formats_wanted wanted = {o->compute, o->weight_format, o->kv_format};
    struct aq_formats f;
    int rc = aq_formats_choose(&f, p->model, &wanted, compute_by_itself(p), reterr);
    if (rc < 0)
        return rc;
    p->compute = f.compute;
    p->weight_format = f.weights;
    p->kv_format = f.kv;
    if (p->compute == AQ_F16 && !aq_planning_has_device(p))
        return aq_error(reterr, -EINVAL,
                        "--compute f16: the cpu backend computes in f32 or bf16, and '%s' has no "
                        "device",
                        p->machine.name);
    rc = aq_options_kv_policy(&p->kv, o, reterr);
    return rc == 0 && aq_planning_has_device(p) ? aq_kv_policy_check_gpu(&p->kv, reterr) : rc;
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

static int read_work(struct aq_planning *p, const struct aq_log *log, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    const struct aq_model_steps *m = &p->model->steps;
    uint32_t context = o->context ? o->context : m->context;
    if (context > m->context)
        return aq_error(reterr, -EINVAL, "--context %u: the model knows %u positions", context,
                        m->context);
    int rc = o->input ? aq_planning_read_input(p, log, context, reterr)
                      : read_lengths(p, context, reterr);
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
    in->one_side = aq_planning_has_device(p) && o->deterministic;
    in->gpu = aq_planning_has_device(p);
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
        .k_max = aq_steps_widest_row(m),
        .head_dim_max = m->head_dim,
        .context_max = p->o->context ? p->o->context : m->context,
        .scored_q_per_kv = aq_kv_policy_scores(&p->kv) ? m->heads / m->kv_heads : 0,
    };
    p->in.scratch_bytes_per_thread = aq_kernels_scratch_bytes(&need);
    p->in.process_bytes = aq_planning_has_device(p) ? DEVICE_PROCESS_BYTES : PROCESS_BYTES;
}

int aq_planning_open(struct aq_planning **ret, const struct aq_options *o,
                     struct aq_planning_env *env, struct aq_err *reterr)
{
    struct {
        struct aq_planning p;
        struct aq_placement placement; /* what p.in.placement points to */
    } *both = calloc(1, sizeof(*both));
    if (!both)
        return aq_error_memory(reterr, "plan");
    struct aq_planning *p = &both->p;
    p->o = o;
    struct aq_model_opts model = {
        .dir = o->model, .shape = o->model ? NULL : o->shape, .log = env->log};
    int rc = aq_model_open(&p->model, &model, reterr);
    rc = rc < 0 ? rc : aq_planning_read_machine(p, env, reterr);
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
        p->in.separate = aq_planning_has_device(p) || o->emulate_device;
        p->in.hw = &p->hw;
        fill_bytes(p);
        rc = aq_planning_choose_budgets(p, env, reterr);
    }
    rc = rc < 0 ? rc : read_work(p, env->log, reterr);
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
    aq_block_close(&p->other);
    free(p->disk.dir);
    aq_model_close(p->model);
    aq_lengths_close(&p->lengths);
    free(p);
}

/* ---- the plan ---- */

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
    if (rc == -ENOBUFS) {
        aq_error_prefix(&p->why_not, "%s", p->model->name);
        rc = aq_block_least(&p->block, &p->in, reterr);
        return rc < 0 ? rc : aq_planning_weigh_disk(p, reterr);
    }
    bool small_disk = p->disk.small && p->hw.disk_read_bytes_per_s > 0;
    if (rc == 0 && small_disk && p->block.stream.bytes[AQ_DISK]) {
        aq_planning_blame_disk(p);
        return 0;
    }
    if (rc < 0)
        return aq_error(reterr, rc, "%s: %s", p->model->name, p->why_not.text);
    rc = aq_forecast_make(&p->forecast, &p->block, &p->work, &p->hw, reterr);
    rc = rc < 0 ? rc : spread_lengths(p, reterr);
    if (rc < 0)
        return rc;
    return aq_forecast_job(&p->forecast, &p->block, &p->work, p->lengths.item, p->lengths.count,
                           &p->hw, reterr);
}

double aq_planning_total_s(const struct aq_planning *p)
{
    return p->forecast.all_prefill_s + p->forecast.all_decode_s;
}
