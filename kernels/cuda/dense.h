/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/dense.h - products on a GPU, by cuBLASLt: one matrix of weights, row-major in the
 * compute type, with what follows the product.  Columns from several places are put together by
 * the caller. */
#ifndef AQ_KERNELS_CUDA_DENSE_H
#define AQ_KERNELS_CUDA_DENSE_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AQ_CUDA_PLAN_SETS = 64,
    AQ_CUDA_PLAN_WAYS = 4,
    AQ_CUDA_TRUSTED_MAX = 256,
    AQ_CUDA_DENSE_ALIGN = 16,
};

/* Algorithms that were chosen for shapes; owned by the caller, used by one thread at a time. */
struct aq_cuda_blas {
    void *handle;
    bool deterministic;
    struct aq_cuda_blas_plan {
        uint64_t key; /* of the shape; 0: none */
        uint64_t algo[8];
        bool fused; /* bias, activation, residual and rounding are the algorithm's work, too */
    } plan[AQ_CUDA_PLAN_SETS][AQ_CUDA_PLAN_WAYS];
    uint8_t oldest[AQ_CUDA_PLAN_SETS];     /* the way of a set that the next new plan takes */
    uint64_t trusted[AQ_CUDA_TRUSTED_MAX]; /* kinds of algorithms with an activation */
    uint32_t trusted_count;
};

/* deterministic: of each (k, dtype) one algorithm for all m and n, without split-K, so that a row's
 * bits should not depend on the rows and columns beside it.  The library promises nothing of the
 * kind: engine/compute/cuda_prove.h finds out.  0 or a code for aq_cuda_error_text(). */
int aq_cuda_blas_open(struct aq_cuda_blas *b, bool deterministic);
void aq_cuda_blas_close(struct aq_cuda_blas *b);

/* y[r][c] = act(sum over k of x[r][k] * w[c][k] + bias[c]) (+ or * y as it was, by combine)
 *   x     [m][k] f32, f16 or bf16, row stride x_stride elements
 *   w     [n][k] in the same dtype, row stride w_stride
 *   bias  f32 [n]; NULL for none
 *   bias_y  the same numbers in y's dtype where that is not f32 and has them all; else NULL
 *   y     f32, f16 or bf16 [m][n], row stride y_stride
 *   sums  f32 [m][n rounded up to 4], written where the library cannot do all of it in one kernel:
 *         then finish (launch.h) makes y of the sums.  May be NULL where y is f32 and aligned, and
 *         nothing follows the product
 * x, w and sums are aligned to 16 bytes.  f32 accumulation (of f32: no TF32), rounded to y once.
 * The library is asked for an activation where its kernel is trusted with one: whether a ReLU
 * keeps a NaN, by which a broken model is noticed, is not documented.  Where the blas is
 * deterministic, all goes by way of sums, the product alone being what is proved
 * (engine/compute/cuda_prove.h).  Needs ex->stream, ex->blas, and the workspace, always the same
 * of a blas, as algorithms are kept. */
AQ_NO_HOLES_BEGIN
struct aq_cuda_dense {
    const void *x, *w;
    const float *bias;
    const void *bias_y;
    float *sums;
    void *y;
    size_t x_stride, w_stride, y_stride;
    enum aq_dtype dtype, y_dtype;
    enum aq_activation activation;
    uint32_t combine; /* enum aq_combine */
    uint32_t m, n, k, reserved;
};
AQ_NO_HOLES_END

/* The algorithm that p would have with its activation, on its first m rows and n columns (a
 * multiple of 8) alone, which y then has without gaps, so that nothing needs more room than
 * that.  It does not run where its kernel is trusted already.  0, or a code: then there is no
 * such kernel. */
struct aq_cuda_trial {
    uint64_t kind; /* names the kernel */
    bool trusted;
};
int aq_cuda_dense_try(const struct aq_cuda_exec *ex, const struct aq_cuda_dense *p, uint32_t m,
                      uint32_t n, struct aq_cuda_trial *ret);
/* Products may have this kernel's activation from now on; of more kinds than there is room for the
 * others stay as they are. */
void aq_cuda_dense_trust(struct aq_cuda_blas *b, uint64_t kind);

/* Of codes that launchers and products return. */
const char *aq_cuda_error_text(int code);

#ifdef __cplusplus
}
#endif

#endif
