/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/launch.h - the CUDA versions of the kernels in kernels/kernels.h: the same maths,
 * shapes and tie rules, except for what is said here.  Launchers never allocate and never wait:
 * they put work on the stream and return.
 *
 * The arrays that a struct points to (rows, tables, blocks, and the arrays of sequences, moves and
 * selections) are read by the device and have to stay as they are until the work is done; only the
 * struct itself is read at the call.  Host code cannot look into the arrays: how far they reach is
 * said beside them (struct aq_attn_reach).
 *
 * A launcher returns 0, a positive cudaError_t, or a negative errno where the context cannot serve
 * the call: -ENOSPC, the workspace is too small. */
#ifndef AQ_KERNELS_CUDA_LAUNCH_H
#define AQ_KERNELS_CUDA_LAUNCH_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_cuda_blas;  /* kernels/cuda/dense.h */
struct aq_cuda_dense; /* likewise */

/* Where work goes.  Owned by the caller. */
struct aq_cuda_exec {
    void *stream;    /* cudaStream_t */
    void *workspace; /* device memory, aligned to 256, for one call at a time on this stream */
    size_t workspace_bytes;
    struct aq_cuda_blas *blas; /* of dense */
    uint32_t sm;               /* that the code was made for, times ten: 75, 80, 90 */
    uint32_t multiprocessors;  /* of the device */
};

/* Differences from kernels/kernels.h:
 *   norm, embed  y may be f16 as well; tables are panels in the layout rows, or GROUP64 where they
 *                are quantised
 *   kv_append    reach.rows is used
 *   kv_select    at most 512 KV heads
 *   kv_move      a move whose two sides are the same blocks has to be a gather
 *   attn_...     head sizes up to 256; out may be f16 as well; all members of reach are used */

/* Decode attention takes keys in splits of so many slots: a reach rounded up to them is the same
 * launch. */
enum { AQ_CUDA_DECODE_SPLIT = 256 };
/* The workspace that attn_decode wants.  Its bits do not depend on the workspace, nor on how many
 * sequences there are; with fewer bytes of it than this says few sequences are slower, and a rule
 * that needs it, for long caches or many query rows, is refused with -ENOSPC. */
size_t aq_cuda_attn_decode_workspace(const struct aq_attn *a);
/* attn_prefill: out_dtype says in what the passes compute.  Where it is f16 or bf16, the head size
 * 64, 80, 96 or 128 and the cache not f32, tensor cores do the products (bf16 caches need compute
 * capability 8.0): q times scale, the weights and the values of codes are rounded to f16 (bf16
 * where the cache is), once each; all sums are f32.  There, an infinity or a NaN in V reaches,
 * within its own sequence, rows near it that do not see it.  Otherwise as attn_prefill_plain.
 *   attn_decode: likewise, with the same roundings: K and V are read once per 16 query rows of a KV
 * head.  What is remembered of slots comes from those scores, in f32.  Otherwise in f32 over the
 * cache's format; K and V are read once per 4 query rows.  Which of the two does not depend on how
 * many rows a sequence has.  Either reads splits that sequences share (seqs' `shared`, and reach)
 * for as many of their query rows at once.
 *   attn_prefill_plain: without tensor cores: every format and head size, the bits of decode where
 * that is without them; K and V are read once per 4 query rows of a KV head.
 *   attn_stats: on tensor cores where attn_prefill is, with its rounding of q and K; exp and sums
 * are f32. */

/* ---- machines ---- */

/* Compute capabilities times 100 that there is code for, 0 behind the last; the first entry 0: code
 * for any (an emulation).  Code for the largest can be translated for later machines. */
extern const uint32_t aq_cuda_made_for[];

/* ---- products: dense (kernels/cuda/dense.h) and what goes with it ---- */

/* y[r][c] = act(x[r][c] + bias[c]) (+ or * y as it was, by combine): what follows a product that
 * leaves its sums in x.
 *   x     f32, f16 or bf16 [rows][columns], row stride x_stride
 *   bias  f32 [columns]; NULL for none
 *   y     f32, f16 or bf16, row stride y_stride; x == y is allowed where dtypes and strides are the
 *         same, and combine is SET
 * Computed in f32, rounded once. */
AQ_NO_HOLES_BEGIN
struct aq_cuda_finish {
    const void *x;
    size_t x_stride;
    const float *bias;
    void *y;
    size_t y_stride;
    enum aq_dtype x_dtype, y_dtype;
    enum aq_activation activation;
    uint32_t combine; /* enum aq_combine */
    uint32_t rows, columns;
};

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

/* y[r][n] = sum over k of x[r][k] * w(n, k), few rows of x against quantised weights that nobody
 * unpacks: each number of W as unpack to x_dtype has it, products exact, sums f32 in an
 * order that depends on k only (product_codes.cu).  Bias, activation and residual: finish.
 *   x  f16 or bf16 [m][k], row stride x_stride;  m <= AQ_CUDA_PRODUCT_ROWS_MAX
 *   w  panels in GROUP64, int8 or int4, of `rows` rows
 *   y  f32 [m][rows], row stride y_stride
 * Reads W once.  -EINVAL: the device's tensor cores do not take x_dtype. */
enum { AQ_CUDA_PRODUCT_ROWS_MAX = 64 };
struct aq_cuda_codes_product {
    const void *x;
    size_t x_stride;
    const void *w;
    float *y;
    size_t y_stride;
    enum aq_dtype x_dtype, w_dtype;
    uint32_t m, rows, k, reserved;
};
AQ_NO_HOLES_END

/* ---- logits ---- */

struct aq_cuda_top {
    uint32_t id;
    float logprob;
};
/* The choice that a row asks for, and how its token is drawn: what engine/compute/sample.c takes
 * from a sequence. */
struct aq_cuda_draw {
    uint32_t given;  /* this token, which is only scored; AQ_CUDA_CHOOSE: one is chosen ... */
    uint32_t id_end; /* ... below this one */
    float inverse;   /* 1 / temperature; 0: the largest logit, of equal ones the lowest id */
    float reach;     /* by min_p: (largest - logit) * inverse of a candidate; INFINITY: off */
    float top_p;     /* 1: off */
    uint32_t top_k;  /* 0: off */
    uint64_t seed, counter_low, counter_high; /* the draw is aq_prng_uniform() of them */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    const uint32_t *seen; /* the prompt's ids, then those generated: below vocab */
    uint32_t prompt_count, seen_count;
    const uint32_t *masked; /* ids that may not come now */
    uint32_t masked_count;
    float *before; /* [masked_count + seen_count] by penalise: the logits that it replaced */
    struct aq_cuda_top *tops; /* [top_count] */
    uint32_t top_count;
    uint32_t *chosen; /* where the token stays for struct aq_embed; NULL: nowhere */
};
#define AQ_CUDA_CHOOSE UINT32_MAX

struct aq_cuda_choice {
    uint32_t token, bad_count; /* as struct aq_logits_stat has it of the row */
    float logprob;             /* ln softmax of the row as the model gave it */
};

AQ_NO_HOLES_BEGIN
/* Rows of logits:
 *   penalise  masks and penalties, in place: the bits of engine/compute/sample.c
 *   tops      the best of each row, best first, as aq_sample_tops() to the bit; a pass over the row
 *             for each.  Before anything is penalised
 *   sample    choices[row]: the given token, or the next one; penalties and masks are as penalise
 *             has left them
 * The token is that of aq_sample_token(), in every case.  What is not finite is no candidate. */
struct aq_cuda_rows {
    const struct aq_cuda_draw *draws; /* [rows] */
    const struct aq_logits_stat *raw; /* [rows] of the logits as the model gave them */
    const struct aq_logits_stat *now; /* [rows], of sample: as they are now; raw where nothing was
                                         penalised */
    struct aq_cuda_choice *choices;   /* [rows], of sample */
    float *logits;
    size_t stride;
    uint32_t rows, vocab;
};
AQ_NO_HOLES_END

/* ---- launchers ---- */

/* All that take a struct: those of every backend, and their own. */
#define AQ_CUDA_KERNELS(ROW)                                                                       \
    AQ_KERNELS(ROW)                                                                                \
    ROW(attn_prefill_plain, aq_attn)                                                               \
    ROW(dense, aq_cuda_dense)                                                                      \
    ROW(finish, aq_cuda_finish)                                                                    \
    ROW(unpack, aq_cuda_unpack)                                                                    \
    ROW(product_codes, aq_cuda_codes_product)                                                      \
    ROW(penalise, aq_cuda_rows)                                                                    \
    ROW(sample, aq_cuda_rows)                                                                      \
    ROW(tops, aq_cuda_rows)

#define AQ_CUDA_LAUNCHER(name, params)                                                             \
    int aq_cuda_##name(const struct aq_cuda_exec *ex, const struct params *p);
AQ_CUDA_KERNELS(AQ_CUDA_LAUNCHER)
#undef AQ_CUDA_LAUNCHER

/* Copies pieces between any memories that the device reaches: pinned memory of the host's at its
 * own address.  They do not overlap.  The list is read at the call. */
int aq_cuda_copy_pieces(const struct aq_cuda_exec *ex, const struct aq_copy_piece *pieces,
                        uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
