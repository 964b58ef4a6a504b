/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/dense.h - products on a GPU, by cuBLASLt: one matrix of weights, row-major in the
 * compute type.  What is put together of it (columns from several places, bias, activation) is the
 * caller's, with the launchers of launch.h. */
#ifndef AQ_KERNELS_CUDA_DENSE_H
#define AQ_KERNELS_CUDA_DENSE_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_CUDA_PLANS = 256, AQ_CUDA_DENSE_ALIGN = 16 };

/* Algorithms that were chosen for shapes; owned by the caller, used by one thread at a time. */
struct aq_cuda_blas {
    void *handle;
    bool deterministic;
    struct aq_cuda_blas_plan {
        uint64_t key; /* of the shape; 0: none */
        uint64_t algo[8];
    } plan[AQ_CUDA_PLANS];
};

/* deterministic: of each (k, dtype) one algorithm for all m and n, without split-K, so that a row's
 * bits should not depend on the rows and columns beside it.  The library promises nothing of the
 * kind: engine/compute/cuda_prove.h finds out.  0 or a code for aq_cuda_error_text(). */
int aq_cuda_blas_open(struct aq_cuda_blas *b, bool deterministic);
void aq_cuda_blas_close(struct aq_cuda_blas *b);

/* y[r][c] = sum over k of x[r][k] * w[c][k]
 *   x  [m][k] f32, f16 or bf16, row stride x_stride elements
 *   w  [n][k] in the same dtype, row stride w_stride
 *   y  f32 [m][n], row stride y_stride
 * x, w and y are aligned to 16 bytes.  f32 accumulation (of f32: no TF32).  Needs ex->stream,
 * ex->blas, and the workspace, always the same of a blas, as algorithms are kept. */
AQ_NO_HOLES_BEGIN
struct aq_cuda_dense {
    const void *x, *w;
    size_t x_stride, w_stride;
    float *y;
    size_t y_stride;
    enum aq_dtype dtype;
    uint32_t m, n, k;
};
AQ_NO_HOLES_END

/* Of codes that launchers and products return. */
const char *aq_cuda_error_text(int code);

#ifdef __cplusplus
}
#endif

#endif
