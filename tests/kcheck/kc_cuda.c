/* SPDX-License-Identifier: Apache-2.0
 * kcheck_cuda and kcheck_gpu: the CUDA kernels in a table of their own, with the checks of the
 * CPU's tables as far as they hold for a device, and with those of kc_cuda.h.  What a device would
 * be told of how far arrays reach is read from the arrays. */
#include "tests/kcheck/kc_cuda.h"

#include "kernels/cpu/attn.h"
#include "tests/kcheck/kc_internal.h"

extern const struct kc_check kc_check_attn;
extern const struct kc_check kc_check_cuda_attn;
extern const struct kc_check kc_check_cuda_rows;
extern const struct kc_check kc_check_cuda_sample;
extern const struct kc_check kc_check_cuda_tiles;
extern const struct kc_check kc_check_embed;
extern const struct kc_check kc_check_kv;
extern const struct kc_check kc_check_logits;
extern const struct kc_check kc_check_norm;
extern const struct kc_check kc_check_scores;
extern const struct kc_check kc_check_slots;

const struct kc_check *const kc_checks[] = {
    &kc_check_norm,      &kc_check_embed,      &kc_check_logits,      &kc_check_cuda_rows,
    &kc_check_slots,     &kc_check_kv,         &kc_check_attn,        &kc_check_scores,
    &kc_check_cuda_attn, &kc_check_cuda_tiles, &kc_check_cuda_sample, NULL,
};

static void norm(struct aq_exec *ex, const struct aq_norm *n)
{
    kc_cuda_done(kc_cuda_kernels()->norm(kc_cuda(), n));
}

static void embed(struct aq_exec *ex, const struct aq_embed *e)
{
    kc_cuda_done(kc_cuda_kernels()->embed(kc_cuda(), e));
}

static void add_rows(struct aq_exec *ex, float *y, size_t y_stride, const void *table,
                     enum aq_dtype table_dtype, const uint32_t *index, uint32_t rows, uint32_t k)
{
    kc_cuda_done(
        kc_cuda_kernels()->add_rows(kc_cuda(), y, y_stride, table, table_dtype, index, rows, k));
}

static void logits_stat(struct aq_exec *ex, struct aq_logits_stat *stat, const float *logits,
                        size_t stride, uint32_t rows, uint32_t vocab)
{
    kc_cuda_done(kc_cuda_kernels()->logits_stat(kc_cuda(), stat, logits, stride, rows, vocab));
}

struct aq_cuda_reach kc_cuda_reach(const struct aq_attn *a)
{
    struct aq_cuda_reach reach = {0};
    for (uint32_t i = 0; i < a->seq_count; i++) {
        reach.rows = (uint32_t)aq_max_u64(reach.rows, a->seqs[i].rows);
        for (uint32_t h = 0; h < a->kv_heads; h++)
            reach.len = (uint32_t)aq_max_u64(reach.len, aq_attn_len(&a->seqs[i], h));
    }
    return reach;
}

/* With room for what it could want, or with none: the bits are the same. */
static void attn_decode(struct aq_exec *ex, const struct aq_attn *a)
{
    struct aq_cuda_reach reach = kc_cuda_reach(a);
    struct aq_cuda_exec with = *kc_cuda();
    with.workspace_bytes = kc_cuda_kernels()->attn_decode_workspace(a, reach);
    with.workspace = kc_cuda_take(with.workspace_bytes);
    /* Sometimes a device so small that no splitting is worth its while. */
    static uint32_t turn;
    with.multiprocessors = turn++ % 2 ? 100 : 0;
    kc_cuda_done(kc_cuda_kernels()->attn_decode(&with, a, reach));
    kc_cuda_give(with.workspace);
}

/* What tensor cores compute has a check of its own, with wider limits (check_cuda_tiles.c). */
static void attn_prefill(struct aq_exec *ex, const struct aq_attn *a)
{
    kc_cuda_done(kc_cuda_kernels()->attn_prefill_plain(kc_cuda(), a, kc_cuda_reach(a)));
}

static void attn_stats(struct aq_exec *ex, const struct aq_attn *a,
                       const struct aq_attn_pairs *pairs)
{
    kc_cuda_done(kc_cuda_kernels()->attn_stats(kc_cuda(), a, pairs, kc_cuda_reach(a)));
}

static void kv_append(struct aq_exec *ex, const struct aq_attn *a, const float *k_new,
                      const float *v_new, size_t stride)
{
    kc_cuda_done(
        kc_cuda_kernels()->kv_append(kc_cuda(), a, k_new, v_new, stride, kc_cuda_reach(a)));
}

static void kv_victim(struct aq_exec *ex, const struct aq_attn *a)
{
    kc_cuda_done(kc_cuda_kernels()->kv_victim(kc_cuda(), a));
}

static void kv_select(struct aq_exec *ex, const struct aq_kv_select *selects, uint32_t select_count,
                      uint32_t kv_heads)
{
    kc_cuda_done(kc_cuda_kernels()->kv_select(kc_cuda(), selects, select_count, kv_heads));
}

static void kv_move(struct aq_exec *ex, const struct aq_kv_move *moves, uint32_t move_count,
                    enum aq_dtype kv_dtype, uint32_t kv_heads, uint32_t head_dim)
{
    kc_cuda_done(
        kc_cuda_kernels()->kv_move(kc_cuda(), moves, move_count, kv_dtype, kv_heads, head_dim));
}

uint32_t kc_make_tables(struct aq_kernels *tables, struct kc_traits *traits,
                        struct kc_options *options)
{
    options->table_first = 1; /* the reference has been through in kcheck */
    aq_kernels_cpu(&tables[0], 0);
    tables[1] = (struct aq_kernels){
        .norm = norm,
        .embed = embed,
        .add_rows = add_rows,
        .attn_decode = attn_decode,
        .attn_prefill = attn_prefill,
        .attn_stats = attn_stats,
        .kv_append = kv_append,
        .kv_victim = kv_victim,
        .kv_select = kv_select,
        .kv_move = kv_move,
        .logits_stat = logits_stat,
    };
    traits[0] = (struct kc_traits){.name = "ref"};
    traits[1] = (struct kc_traits){.name = kc_cuda_prepare(options), .rows_only = true};
    return 2;
}
