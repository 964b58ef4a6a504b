/* SPDX-License-Identifier: Apache-2.0
 * The CPU's kernels as a lane calls them: at once, in the calling thread and its pool. */
#include "engine/compute/compute.h"

static const struct aq_compute_cpu *cpu_of(const struct aq_compute *c)
{
    return (const struct aq_compute_cpu *)c;
}

static void cpu_norm(struct aq_compute *c, const struct aq_norm *n)
{
    cpu_of(c)->kernels->norm(cpu_of(c)->exec, n);
}

static void cpu_embed(struct aq_compute *c, const struct aq_embed *e)
{
    cpu_of(c)->kernels->embed(cpu_of(c)->exec, e);
}

static void cpu_add_rows(struct aq_compute *c, float *y, size_t y_stride, const void *table,
                         enum aq_dtype table_dtype, const uint32_t *index, uint32_t rows,
                         uint32_t k)
{
    cpu_of(c)->kernels->add_rows(cpu_of(c)->exec, y, y_stride, table, table_dtype, index, rows, k);
}

static void cpu_product(struct aq_compute *c, const struct aq_product *p)
{
    const struct aq_kernels *k = cpu_of(c)->kernels;
    (p->x_dtype == AQ_BF16 ? k->product_bf16 : k->product_f32)(cpu_of(c)->exec, p);
}

static void cpu_unpack(struct aq_compute *c, const struct aq_unpack *u)
{
    cpu_of(c)->kernels->unpack(cpu_of(c)->exec, u);
}

static void cpu_attn_decode(struct aq_compute *c, const struct aq_attn *a)
{
    cpu_of(c)->kernels->attn_decode(cpu_of(c)->exec, a);
}

static void cpu_attn_prefill(struct aq_compute *c, const struct aq_attn *a)
{
    cpu_of(c)->kernels->attn_prefill(cpu_of(c)->exec, a);
}

static void cpu_attn_stats(struct aq_compute *c, const struct aq_attn *a,
                           const struct aq_attn_pairs *pairs)
{
    cpu_of(c)->kernels->attn_stats(cpu_of(c)->exec, a, pairs);
}

static void cpu_kv_append(struct aq_compute *c, const struct aq_attn *a, const float *k_new,
                          const float *v_new, size_t stride)
{
    cpu_of(c)->kernels->kv_append(cpu_of(c)->exec, a, k_new, v_new, stride);
}

static void cpu_kv_victim(struct aq_compute *c, const struct aq_attn *a)
{
    cpu_of(c)->kernels->kv_victim(cpu_of(c)->exec, a);
}

static void cpu_kv_select(struct aq_compute *c, const struct aq_kv_select *selects,
                          uint32_t select_count, uint32_t kv_heads)
{
    cpu_of(c)->kernels->kv_select(cpu_of(c)->exec, selects, select_count, kv_heads);
}

static void cpu_kv_move(struct aq_compute *c, const struct aq_kv_move *moves,
                        const struct aq_kv_blocks *blocks, uint32_t move_count,
                        enum aq_dtype kv_dtype, uint32_t kv_heads, uint32_t head_dim)
{
    (void)blocks;
    cpu_of(c)->kernels->kv_move(cpu_of(c)->exec, moves, move_count, kv_dtype, kv_heads, head_dim);
}

static void cpu_kv_note(struct aq_compute *c, const struct aq_kv_note *n)
{
    (void)c;
    for (uint32_t h = 0; h < n->kv_heads; h++)
        n->target[h * AQ_HEAD_BLOCK_SLOTS] = n->victim[h] < n->whole ? n->victim[h] : UINT32_MAX;
}

static void cpu_logits_stat(struct aq_compute *c, struct aq_logits_stat *stat, const float *logits,
                            size_t stride, uint32_t rows, uint32_t vocab)
{
    cpu_of(c)->kernels->logits_stat(cpu_of(c)->exec, stat, logits, stride, rows, vocab);
}

static const struct aq_compute_ops cpu_ops = {
    .norm = cpu_norm,
    .embed = cpu_embed,
    .add_rows = cpu_add_rows,
    .product = cpu_product,
    .unpack = cpu_unpack,
    .attn_decode = cpu_attn_decode,
    .attn_prefill = cpu_attn_prefill,
    .attn_stats = cpu_attn_stats,
    .kv_append = cpu_kv_append,
    .kv_victim = cpu_kv_victim,
    .kv_select = cpu_kv_select,
    .kv_move = cpu_kv_move,
    .kv_note = cpu_kv_note,
    .logits_stat = cpu_logits_stat,
};

void aq_compute_cpu_make(struct aq_compute_cpu *ret, const struct aq_kernels *kernels,
                         struct aq_exec *exec)
{
    *ret = (struct aq_compute_cpu){{&cpu_ops}, kernels, exec};
}
