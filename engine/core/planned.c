/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/planned.h"

#include "base/mem.h"
#include "engine/exec/trace.h"
#include "engine/machine/limits.h"
#include "engine/options/kv.h"
#include "kernels/kernels.h"

#include <assert.h>

/* What a process on another machine is taken to need beside its plan: libraries, queues, records;
 * with a device's driver. */
#define PROCESS_BYTES     (64 * AQ_MIB)
#define GPU_PROCESS_BYTES (512 * AQ_MIB)
/* What one here may need beyond what it holds by then and what is counted line by line: allocator
 * slack, stacks, library state. */
#define PROCESS_SLACK_BYTES (12 * AQ_MIB)

static int check_compute(int want, const struct aq_planned_products *p, struct aq_err *reterr)
{
    assert(want < 0 || want == AQ_Q8 || aq_dtype_is_float((enum aq_dtype)want));
    if (p->gpu && want == AQ_Q8)
        return aq_error(reterr, -EINVAL,
                        "--compute int8: a GPU's products are computed in f16, bf16 or f32; leave "
                        "it out there");
    if (!p->gpu && want == AQ_F16)
        return aq_error(
            reterr, -EINVAL, "--compute f16: the cpu backend computes in f32, bf16 or int8%s%s%s",
            p->name ? ", and '" : "", p->name ? p->name : "", p->name ? "' has no device" : "");
    if (p->gpu && want == AQ_BF16 && p->sm && !p->bf16)
        return aq_error(reterr, -EINVAL,
                        "--compute bf16: '%s' has compute capability %u.%u; bf16 needs 8.0",
                        p->name, p->sm / 10, p->sm % 10);
    return 0;
}

int aq_planned_formats(struct aq_formats *ret, const struct aq_model *m,
                       const struct aq_engine_opts *choices, const struct aq_planned_products *p,
                       struct aq_err *reterr)
{
    struct aq_formats_wanted wanted = {choices->compute, choices->weight_format,
                                       choices->kv_format};
    enum aq_dtype by_itself = p->gpu ? aq_formats_of_gpu(m, p->bf16) : p->bf16 ? AQ_BF16 : AQ_F32;
    int rc = check_compute(choices->compute, p, reterr);
    return rc < 0 ? rc : aq_formats_choose(ret, m, &wanted, by_itself, reterr);
}

int aq_planned_check_gpu(const struct aq_engine_opts *choices, struct aq_err *reterr)
{
    const struct aq_attention_choice *a = &choices->attention;
    int rc = aq_kv_policy_check_gpu(&choices->kv, reterr);
    if (rc == 0 && choices->kv.residual.tokens)
        rc = aq_kv_format_refused((enum aq_dtype)choices->kv_format, reterr);
    if (rc == 0 && choices->host_products.percent > 0)
        rc = aq_error(reterr, -EINVAL,
                      "--host-products: the cuda backend computes no products on the host; "
                      "expected auto or 0, found %g%%",
                      choices->host_products.percent);
    if (rc == 0 && choices->deterministic && a->given && a->side == AQ_ATTEND_SPLIT)
        rc = aq_error(reterr, -EINVAL,
                      "--attention split: the two sides' bits differ, which --deterministic rules "
                      "out");
    return rc;
}

int aq_planned_context(uint32_t *ret, const struct aq_model_steps *steps,
                       const struct aq_engine_opts *choices, struct aq_err *reterr)
{
    *ret = choices->context ? choices->context : steps->context;
    int rc = aq_kv_policy_check_layers(&choices->kv, steps, reterr);
    return rc < 0 ? rc : aq_kv_policy_check_context(&choices->kv, *ret, steps->context, reterr);
}

int aq_planned_check_prompt(uint64_t prompt, uint32_t positions, uint32_t context,
                            struct aq_err *reterr)
{
    if (prompt <= positions)
        return 0;
    return aq_error(reterr, -EINVAL,
                    "prompts of %llu tokens are attended whole, and the model knows %u positions; "
                    "--context %u goes on behind them with new tokens alone",
                    (unsigned long long)prompt, positions, context);
}

uint64_t aq_planned_usable(enum aq_tier tier, uint64_t bytes)
{
    uint64_t margin = tier == AQ_DEVICE ? aq_max_u64(512 * AQ_MIB, bytes * 3 / 100)
                      : tier == AQ_HOST ? aq_max_u64(2 * AQ_GIB, bytes / 20)
                                        : bytes - bytes / 20 * 19;
    return bytes > margin ? bytes - margin : 0;
}

int aq_planned_host_budget(uint64_t *ret, const char **ret_limited_by,
                           const struct aq_engine_opts *choices, uint64_t elsewhere,
                           struct aq_err *reterr)
{
    struct aq_host_limits host;
    int rc = 0;
    *ret = choices->host_memory ? choices->host_memory : aq_planned_usable(AQ_HOST, elsewhere);
    *ret_limited_by = choices->host_memory ? "option" : "machine";
    if (!choices->host_memory && !elsewhere) {
        rc = aq_limits_host(&host, NULL, reterr);
        if (rc < 0)
            return rc;
        /* The rule speaks of what is free; the budget is of the whole process, which is here
         * already. */
        *ret = host.budget + aq_mem_process_now();
        *ret_limited_by = host.limited_by;
    }
    if (choices->emulate_device >= *ret)
        rc =
            aq_error(reterr, -EINVAL,
                     "--emulate-device: its %llu bytes lie inside the host's, whose budget is %llu",
                     (unsigned long long)choices->emulate_device, (unsigned long long)*ret);
    return rc;
}

void aq_planned_links(struct aq_hardware *hw, const struct aq_engine_opts *choices)
{
    const uint64_t *link = choices->emulate_link.bytes_per_s;
    if (link[AQ_H2D])
        hw->h2d_bytes_per_s = (double)link[AQ_H2D];
    if (link[AQ_D2H])
        hw->d2h_bytes_per_s = (double)link[AQ_D2H];
}

static void count_process(struct aq_block_inputs *in, const struct aq_planned_request *r)
{
    const struct aq_model_steps *m = r->steps;
    struct aq_scratch_need need = {
        .k_max = aq_steps_widest_row(m),
        .head_dim_max = m->head_dim,
        .context_max = r->context,
        .scored_q_per_kv = aq_kv_policy_scores(&in->kv) ? m->heads / m->kv_heads : 0,
        .choosing_q_per_kv = in->kv.read ? m->heads / m->kv_heads : 0,
    };
    if (in->kv.prompt.source == AQ_KV_SOURCE_COLUMNS && !r->gpu)
        need.observed = (uint32_t)aq_min_u64(
            (uint64_t)in->kv.prompt.rows * (m->heads / m->kv_heads), UINT32_MAX);
    in->scratch_bytes_per_thread = aq_kernels_scratch_bytes(&need);
    in->codes_bytes = in->products == AQ_Q8 ? aq_kernels_codes_bytes(need.k_max) : 0;
    in->process_bytes = r->held  ? r->held + PROCESS_SLACK_BYTES
                        : r->gpu ? GPU_PROCESS_BYTES
                                 : PROCESS_BYTES;
    in->process_bytes += r->decoding;
}

bool aq_planned_shares(const struct aq_engine_opts *choices)
{
    return choices->share_prefixes && !choices->attention_stats;
}

void aq_planned_inputs(struct aq_block_inputs *ret, struct aq_forecast_work *ret_work,
                       const struct aq_planned_request *r)
{
    const struct aq_engine_opts *c = r->choices;
    const struct aq_workload *w = r->work;
    *ret = (struct aq_block_inputs){
        .steps = r->steps,
        .compute = aq_compute_rows(r->formats.compute),
        .products = r->formats.compute,
        .weight_format = r->formats.weights,
        .kv_format = r->formats.kv,
        .table_format = r->table_format,
        .threads = r->threads,
        .micro_batch = c->micro_batch,
        .micro_batches = c->micro_batches,
        .prompt_tokens = c->micro_batch_tokens,
        .prefetch_bytes = c->prefetch,
        .chunk_bytes = c->chunk,
        .stage_bytes = c->kv_stage,
        .separate = r->gpu || c->emulate_device,
        .gpu = r->gpu,
        .context_bytes = r->context_bytes,
        .side_by_side = c->side_by_side == AQ_BESIDE_ON,
        .side_by_side_auto = c->side_by_side == AQ_BESIDE_AUTO,
        .fuse_layer = c->fuse_layer,
        .alternate = c->alternate,
        .attention = c->attention.side,
        .attention_auto = !c->attention.given,
        .split_host = c->attention.split_host,
        .one_side = r->gpu && c->deterministic,
        .host_products = c->host_products.percent,
        .host_products_auto = !c->host_products.given && !r->gpu,
        .placement = c->placement.given ? &c->placement.at : NULL,
        .can_stream = r->can_stream,
        .hw = r->hw,
        .refill = c->refill,
        .serial = c->serial,
        .sequences = w->sequences,
        .total_sum = w->total_sum,
        .prompt_sum = w->prompt_sum,
        .shared_sum = aq_planned_shares(c) ? w->shared_sum : 0,
        .prompt_max = w->prompt_max,
        .total_max = w->total_max,
        .new_max = w->new_max,
        .kv = c->kv,
        .queue_bytes = w->queue_bytes,
        .trace_bytes_per_op = c->trace ? aq_trace_bytes(1) : 0,
        .scratch_sums = c->verify_store == AQ_VERIFY_ALWAYS,
    };
    if (ret->side_by_side && !ret->micro_batches)
        ret->micro_batches = 2;
    if (c->kv.read && ret->separate && ret->attention_auto) { /* nobody else can: aq_block_make */
        ret->attention = AQ_ATTEND_HOST;
        ret->attention_auto = false;
    }
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        ret->budget[t] = r->budget[t];
    if (r->context)
        count_process(ret, r);
    *ret_work = (struct aq_forecast_work){
        .steps = r->steps, .sequences = w->sequences, .refill = c->refill, .serial = c->serial};
    aq_forecast_mean(ret_work, ret);
}

int aq_planned_forecast(struct aq_forecast *ret, const struct aq_block *b,
                        const struct aq_forecast_work *work, const struct aq_length *length,
                        uint32_t length_count, const struct aq_hardware *hw, struct aq_err *reterr)
{
    int rc = aq_forecast_make(ret, b, work, hw, reterr);
    return rc < 0 || !length ? rc : aq_forecast_job(ret, b, work, length, length_count, hw, reterr);
}
