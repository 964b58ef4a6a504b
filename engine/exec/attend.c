/* SPDX-License-Identifier: Apache-2.0
 * Attention of a part: new keys and values are stored, queries attend, and where the policy drops
 * keys, scores, positions and victims are updated.
 *
 * A prompt that is cut is attended in scratch, and the slots that stay are moved to the home of its
 * KV; one that is cut over all layers alone is attended at home (cross.c).  A decoded key takes the
 * slot of the victim that was chosen a step before; or, once all slots are taken, many are dropped
 * first: those that stay close up, and it comes behind them.  In one of KIVI's formats prompts are
 * attended in scratch, too, new keys join the residual in f16, and head-blocks that leave it are
 * encoded before attention.  Rows that read a part of what is held choose it once their key is
 * stored (read.c).  In sequences on disk, whose full runs are read again at every step,
 * rows that overwrite others also join a delta, which is applied before attention. */
#include "engine/exec/attend.h"

void exec_attend(struct aq_executor *x, const struct aq_op *op, const struct aq_compute *c,
                 const float *qkv, void *attention)
{
    const struct exec_batch *b = &x->batch[op->micro_batch];
    const struct aq_model_steps *m = x->steps;
    bool prefill = op->kind == AQ_OP_ATTN_PREFILL;
    const uint32_t *range = (prefill ? b->prefill_first : b->decode_first) + op->part;
    size_t width = (size_t)m->heads * m->head_dim, kv_width = (size_t)m->kv_heads * m->head_dim;
    struct exec_attend t = {
        .x = x,
        .op = op,
        .c = c,
        .seq = (prefill ? b->prefill : b->decode) + range[0],
        .seat = (prefill ? b->prefill_seat : b->decode_seat) + range[0],
        .count = range[1] - range[0],
        .layer = m->step[op->step].layer,
    };
    t.kind = x->plan->kinds.of[t.layer];
    t.policy = aq_plan_kind_policy(x->plan, t.kind);
    for (uint32_t i = 0; i < t.count; i++) {
        /* Nothing is left of the layer before, whose sequences may hold other slots. */
        t.seq[i] = (struct aq_attn_seq){
            .head_offset = aq_kv_head_offset(x->kv),
            .len = &exec_kv_of(&t, i)->held,
            .row = t.seq[i].row,
            .rows = t.seq[i].rows,
            .plain_offset = aq_kv_plain_offset(x->kv),
        };
        if (exec_is_residual(&t))
            t.seq[i].coded = aq_kv_residual_coded(&x->plan->kv.residual, exec_kv_of(&t, i)->held);
        if (!prefill && exec_kv_of(&t, i)->limits.profiled)
            exec_profile_place(x, t.seat[i], t.layer);
        /* The number of slots that each head keeps is known once the prompt is cut. */
        if (!prefill && exec_kv_of(&t, i)->differ)
            exec_kv_ragged_table(x, op, t.seat[i], exec_kv_of(&t, i), &t.seq[i]);
        else
            t.seq[i].block = exec_kv_blocks(x, op, t.seat[i]);
    }
    t.a = (struct aq_attn){
        .seqs = t.seq,
        .seq_count = t.count,
        .q = qkv,
        .q_stride = width + 2 * kv_width,
        .out = attention,
        .out_dtype = x->plan->shape.compute,
        .out_stride = width,
        .k_new = qkv + width,
        .v_new = qkv + width + kv_width,
        .new_stride = width + 2 * kv_width,
        .kv_dtype = x->plan->shape.kv_format,
        .kv_heads = m->kv_heads,
        .q_per_kv = m->heads / m->kv_heads,
        .head_dim = m->head_dim,
        .scale = m->attention_scale,
        .window = m->step[op->step].window,
    };
    prefill ? exec_attend_prompts(&t) : exec_attend_rows(&t);
}
