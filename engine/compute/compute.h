/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/compute.h - where the ops of a lane compute: on the CPU, at once, by its kernel
 * table (compute_cpu.c), or on a GPU, by putting launches on the op's stream (compute_cuda.c).
 *
 * What describes the work is the host's memory, may change as soon as the call returns, and means
 * the same to both: struct aq_norm and the like, arrays of sequences with their tables of blocks
 * and lengths, of moves and selections, ids, positions and row_index.  What is worked on is memory
 * of the lane's side: rows, weights, K and V, scores, positions, victims, and the lists of slots
 * that kernels write (keep, list, and count where count_step is 1). */
#ifndef AQ_ENGINE_COMPUTE_COMPUTE_H
#define AQ_ENGINE_COMPUTE_COMPUTE_H

#include "kernels/kernels.h"

/* target[h * AQ_HEAD_BLOCK_SLOTS] = victim[h], or UINT32_MAX where that is not below `whole`. */
struct aq_kv_note {
    uint32_t *target;
    const uint32_t *victim;
    uint32_t kv_heads, whole;
};

struct aq_kv_blocks {
    uint32_t from, to;
};

struct aq_compute;

/* As the kernels of the same names (kernels/kernels.h), and as they say for matrices of the layout
 * that the lane's weights have. */
struct aq_compute_ops {
    void (*norm)(struct aq_compute *c, const struct aq_norm *n);
    void (*embed)(struct aq_compute *c, const struct aq_embed *e);
    void (*add_rows)(struct aq_compute *c, float *y, size_t y_stride, const void *table,
                     enum aq_dtype table_dtype, const uint32_t *index, uint32_t rows, uint32_t k);
    void (*product)(struct aq_compute *c, const struct aq_product *p);
    void (*unpack)(struct aq_compute *c, const struct aq_unpack *u);
    void (*attn_decode)(struct aq_compute *c, const struct aq_attn *a);
    void (*attn_prefill)(struct aq_compute *c, const struct aq_attn *a);
    void (*attn_stats)(struct aq_compute *c, const struct aq_attn *a,
                       const struct aq_attn_pairs *pairs);
    void (*kv_append)(struct aq_compute *c, const struct aq_attn *a, const float *k_new,
                      const float *v_new, size_t stride);
    void (*kv_victim)(struct aq_compute *c, const struct aq_attn *a);
    void (*kv_select)(struct aq_compute *c, const struct aq_kv_select *selects,
                      uint32_t select_count, uint32_t kv_heads);
    /* blocks: how many entries the tables of each move's two sides have. */
    void (*kv_move)(struct aq_compute *c, const struct aq_kv_move *moves,
                    const struct aq_kv_blocks *blocks, uint32_t move_count, enum aq_dtype kv_dtype,
                    uint32_t kv_heads, uint32_t head_dim);
    void (*kv_note)(struct aq_compute *c, const struct aq_kv_note *n);
    void (*logits_stat)(struct aq_compute *c, struct aq_logits_stat *stat, const float *logits,
                        size_t stride, uint32_t rows, uint32_t vocab);
};

struct aq_compute {
    const struct aq_compute_ops *ops;
};

struct aq_compute_cpu {
    struct aq_compute c;
    const struct aq_kernels *kernels;
    struct aq_exec *exec;
};
/* Borrows both. */
void aq_compute_cpu_make(struct aq_compute_cpu *ret, const struct aq_kernels *kernels,
                         struct aq_exec *exec);

#endif
