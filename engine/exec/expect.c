/* SPDX-License-Identifier: Apache-2.0
 * Prompts that are ranked by the attention that queries to come are expected to give (Expected
 * Attention, arXiv 2510.00636).  Queries have been turned by their positions; the rotary table
 * turns them back, so that nothing is kept of them before. */
#include "engine/exec/exec.h"

#include <assert.h>

void exec_expect(struct aq_executor *x, const struct aq_compute *c, uint32_t seat,
                 const struct aq_attn *a, uint32_t skip)
{
    static_assert((int)AQ_KV_MOMENT_ROWS == (int)AQ_KV_EXPECTED_ROWS, "room of the kernel");
    const struct aq_kv_prefill_layout *layout = &x->prompt_layout;
    const struct aq_rotary *r = &x->steps->rotary;
    const struct aq_sequence *s = x->seat[seat].sequence;
    uint8_t *scratch = x->prompt_room[0].scratch;
    float *ahead = (float *)(scratch + layout->moments);
    uint32_t first = exec_position_first(x, s), tokens = *a->seqs[0].len;
    struct aq_kv_expected e = {
        .q = a->q,
        .k = a->k_new,
        .v = a->v_new,
        .ahead = ahead,
        .value = a->seqs[0].slots.score,
        .worth = (float *)(scratch + layout->sums),
        .room = ahead + a->head_dim,
        .q_stride = a->q_stride,
        .kv_stride = a->new_stride,
        .stride = layout->stride,
        .len = tokens,
        .skip = skip,
        .kv_heads = a->kv_heads,
        .q_per_kv = a->q_per_kv,
        .head_dim = a->head_dim,
        .scale = a->scale,
        .unscale = 1,
    };
    if (x->rotary_table) {
        float factor = r->factor[first > 0];
        e.turn = x->rotary_table;
        e.turn_panel = aq_panel_bytes(AQ_F32, r->dims) / sizeof(float);
        e.turn_first = first;
        e.dims = r->dims;
        e.unscale = 1 / (factor * factor);
        exec_rotary_mean(x, s, tokens, x->plan->kv.ahead, ahead);
    }
    c->kernels->kv_expected(c->exec, &e);
}
