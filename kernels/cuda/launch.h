/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/launch.h - the CUDA versions of the kernels in kernels/kernels.h: the same maths,
 * shapes and tie rules, except for what is said here.  Launchers never allocate and never wait:
 * they put work on the stream and return.
 *
 * What the arguments point to (rows, tables, blocks, and the arrays of sequences, moves and
 * selections) is read by the device and has to stay as it is until the work is done; only the outer
 * struct, and the rule of attention, are read at the call.  Host code cannot look into the arrays:
 * how far they reach is an argument of its own (struct aq_cuda_reach).
 *
 * A launcher returns 0, a positive cudaError_t, or a negative errno where the context cannot serve
 * the call: -ENOSPC, the workspace is too small. */
#ifndef AQ_KERNELS_CUDA_LAUNCH_H
#define AQ_KERNELS_CUDA_LAUNCH_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where work goes.  Owned by the caller. */
struct aq_cuda_exec {
    void *stream;    /* cudaStream_t */
    void *workspace; /* device memory, aligned to 256, for one call at a time on this stream */
    size_t workspace_bytes;
    uint32_t sm;              /* compute capability times ten: 75, 80, 90 */
    uint32_t multiprocessors; /* of the device */
};

/* At least the largest of what the arrays of a call hold.  Decode attention takes keys in splits of
 * so many slots: a reach rounded up to them is the same launch. */
enum { AQ_CUDA_DECODE_SPLIT = 256 };
struct aq_cuda_reach {
    uint32_t rows; /* query rows of a sequence */
    uint32_t len;  /* keys of a head */
};

/* ---- row operations: a block of threads per row ---- */

/* y may be f16 as well. */
int aq_cuda_norm(const struct aq_cuda_exec *ex, const struct aq_norm *n);
/* Tables are panels in the layout rows, or GROUP64 where they are quantised.  y may be f16 as well.
 */
int aq_cuda_embed(const struct aq_cuda_exec *ex, const struct aq_embed *e);
int aq_cuda_add_rows(const struct aq_cuda_exec *ex, float *y, size_t y_stride, const void *table,
                     enum aq_dtype table_dtype, const uint32_t *index, uint32_t rows, uint32_t k);

/* y[r][c] = act(x[r][c] + bias[c]) (+ y as it was, if accumulate): what follows a product that
 * leaves its sums in x.
 *   x     f32, f16 or bf16 [rows][columns], row stride x_stride
 *   bias  f32 [columns]; NULL for none
 *   y     f32, f16 or bf16, row stride y_stride; x == y is allowed where dtypes and strides are the
 *         same, and accumulate is not set
 * Computed in f32, rounded once. */
struct aq_cuda_finish {
    const void *x;
    enum aq_dtype x_dtype;
    size_t x_stride;
    const float *bias;
    enum aq_activation activation;
    bool accumulate;
    void *y;
    enum aq_dtype y_dtype;
    size_t y_stride;
    uint32_t rows, columns;
};
int aq_cuda_finish(const struct aq_cuda_exec *ex, const struct aq_cuda_finish *f);

/* dst[r][j] = row r of src, each number as a product takes it: a row-major matrix for cuBLASLt.
 *   src  panels of src_dtype: f32, f16, bf16 in the layout rows; int8, int4 in GROUP64
 *   dst  f32, f16 or bf16 [rows][k], row stride dst_stride; rounded once, to nearest even
 * Panels of a float dtype whose panel has no padding (k a multiple of 32) are such a matrix
 * already.  Reads and writes each byte once. */
struct aq_cuda_unpack {
    const void *src;
    void *dst;
    enum aq_dtype src_dtype, dst_dtype;
    size_t dst_stride;
    uint32_t rows, k;
};
int aq_cuda_unpack(const struct aq_cuda_exec *ex, const struct aq_cuda_unpack *u);

/* y[r][n] = sum over k of x[r][k] * w(n, k), few rows of x against quantised weights that nobody
 * unpacks: each number of W as aq_cuda_unpack to x_dtype has it, products exact, sums f32 in an
 * order that depends on k only (product_codes.cu).  Bias, activation and residual: aq_cuda_finish.
 *   x  f16 or bf16 [m][k], row stride x_stride;  m <= AQ_CUDA_PRODUCT_ROWS_MAX
 *   w  panels in GROUP64, int8 or int4, of `rows` rows
 *   y  f32 [m][rows], row stride y_stride
 * Reads W once.  -EINVAL: the device's tensor cores do not take x_dtype. */
enum { AQ_CUDA_PRODUCT_ROWS_MAX = 16 };
struct aq_cuda_codes_product {
    const void *x;
    enum aq_dtype x_dtype;
    size_t x_stride;
    const void *w;
    enum aq_dtype w_dtype;
    float *y;
    size_t y_stride;
    uint32_t m, rows, k;
};
int aq_cuda_product_codes(const struct aq_cuda_exec *ex, const struct aq_cuda_codes_product *p);

/* ---- logits ---- */

int aq_cuda_logits_stat(const struct aq_cuda_exec *ex, struct aq_logits_stat *stat,
                        const float *logits, size_t stride, uint32_t rows, uint32_t vocab);

struct aq_cuda_top {
    uint32_t id;
    float logprob;
};
/* What is wanted of a row, and how its token is drawn: what engine/compute/sample.c takes from a
 * sequence. */
struct aq_cuda_draw {
    uint32_t given;     /* this token, which is only scored; AQ_CUDA_CHOOSE: one is chosen */
    float temperature;  /* 0: the largest logit, of equal ones the lowest id */
    float top_p, min_p; /* 1, 0: off */
    uint32_t top_k;     /* 0: off */
    uint64_t seed, counter_low, counter_high; /* the draw is aq_prng_uniform() of them */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    const uint32_t *seen; /* the prompt's ids, then those generated: below vocab */
    uint32_t prompt_count, seen_count;
    const uint32_t *masked; /* ids that may not come now */
    uint32_t masked_count;
    float *before; /* [masked_count + seen_count] by penalise: the logits that it replaced */
    struct aq_cuda_top *tops; /* [top_count] */
    uint32_t top_count;
};
#define AQ_CUDA_CHOOSE UINT32_MAX

struct aq_cuda_choice {
    uint32_t token, bad_count; /* as struct aq_logits_stat has it of the row */
    float logprob;             /* ln softmax of the row as the model gave it */
};

struct aq_cuda_rows {
    const struct aq_cuda_draw *draws; /* [rows] */
    const struct aq_logits_stat *raw; /* [rows] of the logits as the model gave them */
    float *logits;
    size_t stride;
    uint32_t rows, vocab;
};

/* Masks and penalties, in place: the bits of engine/compute/sample.c. */
int aq_cuda_penalise(const struct aq_cuda_exec *ex, const struct aq_cuda_rows *r);
/* choices[row]: the given token, or the next one; penalties and masks are as penalise has left
 * them.
 *   stats  [rows] of the logits as they are now: r->raw where nothing was penalised
 * The token is that of aq_sample_token() unless the draw, or the share that top_p keeps, comes
 * within 2^-31 (vocab 2^16; 2^-39 up to 2^12) of the border between two candidates, as a share of
 * all weight: weights are rounded to integers, once each.  A weight as near to min_p as f64's exp
 * is off may stay or go.  What is not finite is no candidate. */
int aq_cuda_sample(const struct aq_cuda_exec *ex, struct aq_cuda_choice *choices,
                   const struct aq_cuda_rows *r, const struct aq_logits_stat *stats);
/* The best of each row, best first, as aq_sample_tops() to the bit; a pass over the row for each.
 * Before anything is penalised. */
int aq_cuda_tops(const struct aq_cuda_exec *ex, const struct aq_cuda_rows *r);

/* ---- KV ---- */

/* reach.rows is used. */
int aq_cuda_kv_append(const struct aq_cuda_exec *ex, const struct aq_attn *a, const float *k_new,
                      const float *v_new, size_t stride, struct aq_cuda_reach reach);
int aq_cuda_kv_victim(const struct aq_cuda_exec *ex, const struct aq_attn *a);
/* At most 512 KV heads. */
int aq_cuda_kv_select(const struct aq_cuda_exec *ex, const struct aq_kv_select *selects,
                      uint32_t select_count, uint32_t kv_heads);
/* A move whose two sides are the same blocks has to be a gather (struct aq_kv_move). */
int aq_cuda_kv_move(const struct aq_cuda_exec *ex, const struct aq_kv_move *moves,
                    uint32_t move_count, enum aq_dtype kv_dtype, uint32_t kv_heads,
                    uint32_t head_dim);

/* target[h * AQ_HEAD_BLOCK_SLOTS] = victim[h], or UINT32_MAX where that is not below `whole`. */
int aq_cuda_kv_note(const struct aq_cuda_exec *ex, uint32_t *target, const uint32_t *victim,
                    uint32_t kv_heads, uint32_t whole);

/* Copies pieces between any memories that the device reaches: pinned memory of the host's at its
 * own address.  They do not overlap.  The list is read at the call. */
int aq_cuda_copy_pieces(const struct aq_cuda_exec *ex, const struct aq_copy_piece *pieces,
                        uint32_t count);

/* ---- attention ---- */

/* Head sizes up to 256; out may be f16 as well.  Both members of reach are used.  The bits do not
 * depend on the workspace, nor on how many sequences there are; with fewer bytes of it than this
 * says few sequences are slower, and a rule that needs it, for long caches or many query rows, is
 * refused with -ENOSPC. */
size_t aq_cuda_attn_decode_workspace(const struct aq_attn *a, struct aq_cuda_reach reach);
int aq_cuda_attn_decode(const struct aq_cuda_exec *ex, const struct aq_attn *a,
                        struct aq_cuda_reach reach);
/* out_dtype says in what the passes compute.  Where it is f16 or bf16, the head size 64, 80, 96 or
 * 128 and the cache not f32, tensor cores do the products (bf16 caches need compute capability
 * 8.0): q times scale, the weights and the values of codes are rounded to f16 (bf16 where the cache
 * is), once each; all sums are f32.  There, an infinity or a NaN in V reaches, within its own
 * sequence, earlier rows that do not see it.  Otherwise as the next one. */
int aq_cuda_attn_prefill(const struct aq_cuda_exec *ex, const struct aq_attn *a,
                         struct aq_cuda_reach reach);
/* Without tensor cores: every format and head size, the bits of decode; K and V are read once per 4
 * query rows of a KV head. */
int aq_cuda_attn_prefill_plain(const struct aq_cuda_exec *ex, const struct aq_attn *a,
                               struct aq_cuda_reach reach);
/* pairs is read at the call.  On tensor cores where aq_cuda_attn_prefill is, with its rounding of q
 * and K; exp and sums are f32. */
int aq_cuda_attn_stats(const struct aq_cuda_exec *ex, const struct aq_attn *a,
                       const struct aq_attn_pairs *pairs, struct aq_cuda_reach reach);

#ifdef __cplusplus
}
#endif

#endif
