/* SPDX-License-Identifier: Apache-2.0
 * From an op of the compute lanes to the code that runs it. */
#include "engine/exec/exec.h"
#include "policy/registers.h"

#include <assert.h>
#include <stdio.h>

/* All rows of a prompt are in one pass, so its keys are the k of its rows. */
static void watch_prompts(struct aq_executor *x, const struct aq_op *op)
{
    const struct aq_model_steps *m = x->steps;
    const struct exec_batch *b = &x->batch[op->micro_batch];
    size_t width = aq_register_width(m, AQ_REG_ATTENTION);
    size_t stride = aq_register_width(m, AQ_REG_QKV);
    const float *qkv = (const float *)exec_register(x, op, AQ_REG_QKV);
    for (uint32_t i = b->prefill_first[op->part]; i < b->prefill_first[op->part + 1]; i++) {
        const float *q = qkv + b->prefill[i].row * stride;
        struct aq_attention_rows rows = {
            .layer = m->step[op->step].layer,
            .n = b->prefill[i].rows,
            .q = q,
            .k = q + width,
            .stride = stride,
            .ids = x->seat[b->prefill_seat[i]].sequence->prompt,
            .window = m->step[op->step].window,
        };
        aq_attention_stats_add(x->opts.attention_stats, x->opts.pool, &rows);
    }
}

static void attend_on_host(struct aq_executor *x, const struct aq_op *op)
{
    uint32_t at = op->workspace * x->plan->part_count + op->part;
    exec_attend(x, op, x->opts.host_compute, (float *)exec_slot(x, AQ_SLOT_QKV_HOST, at),
                exec_slot(x, AQ_SLOT_ATTENTION_HOST, at));
}

const struct aq_compute *exec_compute_of(const struct aq_executor *x, const struct aq_op *op)
{
    return op->lane == AQ_LANE_HOST_COMPUTE ? x->opts.host_compute : x->opts.compute;
}

void exec_compute(struct aq_executor *x, const struct aq_op *op)
{
    const struct aq_step_desc *step = &x->steps->step[op->step];
    if (x->opts.replay) {
        if (op->kind == AQ_OP_HEAD)
            exec_head_replay(x, op);
        return;
    }
    if (x->opts.attention_stats && op->kind == AQ_OP_ATTN_PREFILL)
        watch_prompts(x, op);
    struct aq_prim_list room, prims = *aq_op_prims(&room, (enum aq_op_kind)op->kind, step);
    struct aq_host_product h;
    if (aq_host_product_find(&h, x->stream, x->steps, x->plan, (enum aq_op_kind)op->kind, op->step))
        prims.count = aq_host_product_end(&h); /* MERGE runs the primitives behind the product */
    switch ((enum aq_op_kind)op->kind) {
    case AQ_OP_PRODUCT_HOST: exec_product_host(x, op); break;
    case AQ_OP_MERGE: prims = exec_merge(x, op); /* fall through */
    case AQ_OP_EMBED:
    case AQ_OP_PRE:
    case AQ_OP_POST:
    case AQ_OP_MLP:
    case AQ_OP_MLP_UP:
    case AQ_OP_MLP_DOWN: exec_run_rows(x, op, &prims); break;
    case AQ_OP_ATTN_PREFILL:
    case AQ_OP_ATTN_DEVICE:
        exec_attend(x, op, exec_compute_of(x, op), (float *)exec_register(x, op, AQ_REG_QKV),
                    exec_register(x, op, AQ_REG_ATTENTION));
        break;
    case AQ_OP_ATTN_HOST: attend_on_host(x, op); break;
    case AQ_OP_HEAD: exec_head(x, op); break;
    case AQ_OP_UNPACK: exec_unpack(x, op); break;
    default: assert(!"an op that computes");
    }
}

int exec_enqueue(struct aq_executor *x, const uint32_t *ops, uint32_t count, bool together,
                 void *stream)
{
    const char *what, *why;
    uint32_t failed;
    enum aq_cuda_changes sent =
        aq_compute_cuda_begin(x->opts.cuda, stream, x->bundles ? AQ_GPU_BUNDLE_DESKS : 1, together);
    if (sent != AQ_CUDA_UNCHANGED)
        exec_early_sent(x, ops[0], sent == AQ_CUDA_CHANGED_ALL);
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_op *op = &x->program->op[ops[i]];
        aq_compute_cuda_next(x->opts.cuda, i);
        if (aq_op_has_work(op, &x->cost[ops[i]]))
            exec_compute(x, op);
    }
    int rc = aq_compute_cuda_end(x->opts.cuda, &failed, &what, &why);
    if (rc < 0 && !x->failure[0]) {
        const struct aq_op *op = &x->program->op[ops[failed]];
        snprintf(x->failure, sizeof(x->failure), "%s of step %u ('%s'): %s",
                 aq_op_name((enum aq_op_kind)op->kind), op->step, what, why);
    }
    return rc;
}
