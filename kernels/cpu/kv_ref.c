/* SPDX-License-Identifier: Apache-2.0
 * KV append, reference: element by element. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/versions.h"

struct job {
    const struct aq_attn *a;
    const float *k_new, *v_new;
    size_t stride;
};

/* A tile is one KV head of one sequence. */
static void append_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct job *job = arg;
    const struct aq_attn *a = job->a;
    const struct aq_attn_seq *seq = &a->seqs[tile / a->kv_heads];
    uint32_t head = tile % a->kv_heads, dim = a->head_dim;
    uint32_t first = aq_attn_new_first(seq, head);
    for (uint32_t i = 0; i < seq->rows; i++) {
        uint32_t slot = (first + i) % AQ_HEAD_BLOCK_SLOTS;
        uint8_t *block = aq_attn_block(seq, head, (first + i) / AQ_HEAD_BLOCK_SLOTS);
        size_t from = (seq->row + (size_t)i) * job->stride + (size_t)head * dim;
        aq_kv_store_row(block, a->kv_dtype, dim, slot, job->k_new + from);
        aq_kv_store_row(block, a->kv_dtype, dim, AQ_HEAD_BLOCK_SLOTS + slot, job->v_new + from);
    }
}

void aq_kv_append_ref(struct aq_exec *ex, const struct aq_attn *a, const float *k_new,
                      const float *v_new, size_t stride)
{
    aq_attn_assert(a);
    struct job job = {.a = a, .k_new = k_new, .v_new = v_new, .stride = stride};
    aq_pool_run(aq_exec_pool(ex), append_tile, &job, a->seq_count * a->kv_heads);
}
