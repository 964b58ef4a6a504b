/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan/planning.h"

#include "engine/core/opts_from.h"
#include "engine/options/notation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Requests of a range of lengths where nobody says how many: enough for a mean. */
enum { REQUESTS_OF_RANGE = 1000 };

/* ---- choices ---- */

/* What products are computed on.  Where only rates are known: a GPU without bf16 has it from f32
 * units, at a small part of the rate of f16; a cpu without it, no faster than f32. */
static struct aq_planned_products products_of(const struct aq_planning *p)
{
    const double *rate = p->machine.hw.device.product_flops_per_s;
    bool gpu = aq_planning_has_device(p);
    return (struct aq_planned_products){
        .gpu = gpu,
        .bf16 = p->gpu.sm ? aq_gpu_has_bf16(&p->gpu)
                : gpu     ? rate[AQ_BF16] >= rate[AQ_F16] / 2
                          : rate[AQ_BF16] > rate[AQ_F32],
        .name = p->machine.name,
        .sm = p->gpu.sm,
    };
}

static int choose_formats(struct aq_planning *p, struct aq_err *reterr)
{
    struct aq_planned_products products = products_of(p);
    int rc = aq_planned_formats(&p->formats, p->model, &p->choices, &products, reterr);
    if (rc == 0 && products.gpu)
        rc = aq_planned_check_gpu(&p->choices, reterr);
    p->positions = p->model->steps.context;
    return rc < 0 ? rc : aq_planned_context(&p->context, &p->model->steps, &p->choices, reterr);
}

/* ---- work ---- */

/* Prompts all as long, or evenly from one length to another. */
static int read_lengths(struct aq_planning *p, struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    int rc = aq_length_parse(&p->prompt[0], &p->prompt[1], "--prompt-len", o->prompt_range, reterr);
    rc = rc < 0 ? rc : aq_length_parse(&p->gen[0], &p->gen[1], "--gen-len", o->gen_range, reterr);
    if (rc < 0)
        return rc;
    if ((uint64_t)p->prompt[1] + p->gen[1] > p->context)
        return aq_error(reterr, -EINVAL,
                        "workload: prompts of %u and %u generated tokens do not fit a context of "
                        "%u",
                        p->prompt[1], p->gen[1], p->context);
    rc = aq_planned_check_prompt(p->prompt[1], p->positions, p->context, reterr);
    if (rc < 0)
        return aq_error_prefix(reterr, "workload");
    uint64_t requests = o->requests;
    bool range = p->prompt[0] < p->prompt[1] || p->gen[0] < p->gen[1];
    uint64_t seats = (uint64_t)o->micro_batch * (o->micro_batches ? o->micro_batches : 1);
    p->requests_assumed = !requests && range;
    if (p->requests_assumed)
        requests =
            aq_max_u64(REQUESTS_OF_RANGE, 3 * seats); /* the block is full most of the time */
    uint64_t prompt2 = (uint64_t)p->prompt[0] + p->prompt[1],
             gen2 = (uint64_t)p->gen[0] + p->gen[1];
    p->workload = (struct aq_workload){
        .sequences = requests,
        .prompt_sum = requests * prompt2 / 2,
        .total_sum = requests * (prompt2 + gen2) / 2,
        .prompt_max = p->prompt[1],
        .total_max = p->prompt[1] + p->gen[1],
        .new_max = p->gen[1],
    };
    return 0;
}

/* The same job as of another plan, with a list of lengths of its own. */
static int take_work(struct aq_planning *p, const struct aq_planning *like, struct aq_err *reterr)
{
    bool good = true;
    memcpy(p->prompt, like->prompt, sizeof(p->prompt));
    memcpy(p->gen, like->gen, sizeof(p->gen));
    memcpy(p->invalid, like->invalid, sizeof(p->invalid));
    p->requests_assumed = like->requests_assumed;
    p->records = like->records;
    p->records_invalid = like->records_invalid;
    p->tokens_estimated = like->tokens_estimated;
    p->workload = like->workload;
    for (uint32_t i = 0; i < like->lengths.count && good; i++)
        good = aq_lengths_add(&p->lengths, like->lengths.item[i], 1);
    return good ? 0 : aq_error_memory(reterr, "plan");
}

static int read_work(struct aq_planning *p, const struct aq_planning_env *env,
                     struct aq_err *reterr)
{
    const struct aq_options *o = p->o;
    int rc = env->like    ? take_work(p, env->like, reterr)
             : o->input   ? aq_planning_read_input(p, env->log, reterr)
             : o->lengths ? aq_planning_read_lengths(p, reterr)
                          : read_lengths(p, reterr);
    uint64_t requests = p->workload.sequences;
    uint32_t micro_batches = o->micro_batches ? o->micro_batches : 1;
    if (rc == 0 && requests && (uint64_t)o->micro_batch * micro_batches > requests)
        return aq_error(reterr, -EINVAL,
                        "block: %u seats x %u micro-batches are more than the %llu requests",
                        o->micro_batch, micro_batches, (unsigned long long)requests);
    return rc;
}

static void fill_inputs(struct aq_planning *p)
{
    struct aq_planned_request request = {
        .choices = &p->choices,
        .steps = &p->model->steps,
        .formats = p->formats,
        .table_format = aq_model_table_dtype(p->model),
        .work = &p->workload,
        .hw = &p->hw,
        .threads = p->choices.threads ? p->choices.threads : (uint32_t)fmax(1, p->hw.cores),
        .gpu = aq_planning_has_device(p),
        .can_stream = p->disk.streams,
        .context = p->context,
        .held = p->held,
    };
    request.decoding = aq_model_decoding_bytes(p->model, request.threads);
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        request.budget[t] = p->budget[t];
    aq_planned_inputs(&p->in, &p->work, &request);
}

int aq_planning_open(struct aq_planning **ret, const struct aq_options *o,
                     struct aq_planning_env *env, struct aq_err *reterr)
{
    struct aq_planning *p = calloc(1, sizeof(*p));
    if (!p)
        return aq_error_memory(reterr, "plan");
    p->o = o;
    struct aq_model_opts model = {
        .dir = o->model, .shape = o->model ? NULL : o->shape, .log = env->log};
    int rc = aq_engine_opts_from(&p->choices, o, env->log, reterr);
    rc = rc < 0 ? rc : aq_model_open(&p->model, &model, reterr);
    rc = rc < 0 ? rc : aq_planning_read_machine(p, env, reterr);
    rc = rc < 0 ? rc : choose_formats(p, reterr);
    if (rc == 0) {
        p->hw =
            aq_hw_for_formats(&p->machine, p->formats.compute, p->formats.weights, p->formats.kv);
        aq_planned_links(&p->hw, &p->choices);
        aq_planning_count_process(p, env);
        rc = aq_planning_choose_budgets(p, env, reterr);
    }
    rc = rc < 0 ? rc : read_work(p, env, reterr);
    if (rc < 0) {
        aq_planning_close(p);
        return rc;
    }
    fill_inputs(p);
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
    int rc = spread_lengths(p, reterr);
    if (rc < 0)
        return rc;
    p->in.length = p->lengths.item;
    p->in.length_count = p->lengths.count;
    rc = aq_block_choose(&p->block, &p->in, &p->why_not);
    p->feasible = rc == 0;
    if (rc == -ENOBUFS) {
        aq_error_prefix(&p->why_not, "%s", p->model->name);
        rc = aq_block_least(&p->block, &p->in, reterr);
        if (rc < 0 && rc != -ENOMEM) /* none with this ring or chunk: a run says no more either */
            return aq_error(reterr, -ENOBUFS, "%s", p->why_not.text);
        return rc < 0 ? rc : aq_planning_weigh_disk(p, reterr);
    }
    bool small_disk = p->disk.small && p->hw.disk_read_bytes_per_s > 0;
    if (rc == 0 && small_disk && p->block.stream.bytes[AQ_DISK]) {
        aq_planning_blame_disk(p);
        return 0;
    }
    if (rc < 0)
        return aq_error(reterr, rc, "%s: %s", p->model->name, p->why_not.text);
    return aq_planned_forecast(&p->forecast, &p->block, &p->work, p->lengths.item, p->lengths.count,
                               &p->hw, reterr);
}

double aq_planning_total_s(const struct aq_planning *p)
{
    return p->forecast.all_prefill_s + p->forecast.all_decode_s;
}

struct aq_planning_cost aq_planning_cost(const struct aq_planning *p)
{
    double hour = p->price.per_hour.amount, total = aq_planning_total_s(p);
    struct aq_planning_cost ret = {NAN, NAN};
    if (!p->price.given || !p->feasible)
        return ret;
    if (total > 0)
        ret.job = hour * total / 3600;
    if (p->forecast.gen_tok_s > 0)
        ret.million = hour * 1e6 / (3600 * p->forecast.gen_tok_s);
    return ret;
}
