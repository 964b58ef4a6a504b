/* SPDX-License-Identifier: Apache-2.0
 * cuBLASLt, played by scalars: products of rows in f32, k ascending.  Of the two algorithms that it
 * offers the first wants workspace, the second none; one used against what it was offered for, or
 * an address that is not aligned, ends the program. */
#include "base/half.h"
#include "tests/cuda_emu/emu_stream.cuh"
#include "tests/cuda_emu/include/cublasLt.h"

#include <algorithm>
#include <vector>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 4096, ALIGN = 16 };

struct cublas_handle {
    int unused;
};

[[noreturn]] static void misuse(const char *what)
{
    fprintf(stderr, "cuBLASLt emulation: %s\n", what);
    abort();
}

cublas_status cublasLtCreate(cublas_handle **ret)
{
    *ret = new cublas_handle();
    return CUBLAS_STATUS_SUCCESS;
}

cublas_status cublasLtDestroy(cublas_handle *handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublas_status status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}

cublas_status cublasLtMatmulDescInit(cublas_desc *d, cublas_compute compute, cuda_type)
{
    *d = {CUBLAS_OP_N, compute};
    return CUBLAS_STATUS_SUCCESS;
}

cublas_status cublasLtMatmulDescSetAttribute(cublas_desc *d, cublas_desc_attribute,
                                             const void *value, size_t bytes)
{
    memcpy(&d->a, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublas_status cublasLtMatrixLayoutInit(cublas_layout *l, cuda_type type, uint64_t rows,
                                       uint64_t cols, int64_t ld)
{
    *l = {type, rows, cols, ld};
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublas_status cublasLtMatmulPreferenceInit(cublas_wish *w)
{
    *w = {0};
    return CUBLAS_STATUS_SUCCESS;
}

cublas_status cublasLtMatmulPreferenceSetAttribute(cublas_wish *w, cublas_wish_attribute a,
                                                   const void *value, size_t bytes)
{
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&w->workspace_bytes, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublas_status cublasLtMatmulAlgoCheck(cublas_handle *, cublas_desc *d, cublas_layout *a,
                                      cublas_layout *b, cublas_layout *, cublas_layout *y,
                                      const cublas_algo *algo, cublas_found *ret)
{
    if (d->a != CUBLAS_OP_T || a->rows != b->rows || y->rows != a->cols || y->cols != b->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    *ret = {*algo, algo->data[0] == 1 ? (size_t)WORKSPACE_BYTES : 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublas_status cublasLtMatmulAlgoGetHeuristic(cublas_handle *, cublas_desc *d, cublas_layout *a,
                                             cublas_layout *b, cublas_layout *c, cublas_layout *y,
                                             cublas_wish *w, int, cublas_found *ret, int *ret_count)
{
    int n = 0;
    for (uint64_t kind = w->workspace_bytes >= WORKSPACE_BYTES ? 1 : 2; kind <= 2; kind++) {
        cublas_algo algo = {{kind}};
        if (cublasLtMatmulAlgoCheck(NULL, d, a, b, c, y, &algo, &ret[n]))
            return CUBLAS_STATUS_INVALID_VALUE;
        n++;
    }
    *ret_count = n;
    return CUBLAS_STATUS_SUCCESS;
}

static float element(const void *data, cuda_type t, size_t i)
{
    if (t == CUDA_R_32F)
        return static_cast<const float *>(data)[i];
    uint16_t bits = static_cast<const uint16_t *>(data)[i];
    return t == CUDA_R_16F ? aq_f32_from_f16(bits) : aq_f32_from_bf16(bits);
}

/* Weights of some columns side by side, so that the sums of a row are worked on together. */
static void multiply(const void *w, cublas_layout wl, const void *x, cublas_layout xl, float *y,
                     cublas_layout yl)
{
    enum { COLUMNS = 64 };
    size_t k = wl.rows;
    std::vector<float> side(k * COLUMNS), row(k);
    for (size_t first = 0; first < wl.cols; first += COLUMNS) {
        size_t n = std::min(wl.cols - first, (uint64_t)COLUMNS);
        for (size_t c = 0; c < n; c++) {
            for (size_t i = 0; i < k; i++)
                side[i * COLUMNS + c] = element(w, wl.type, (first + c) * (size_t)wl.ld + i);
        }
        for (size_t r = 0; r < xl.cols; r++) {
            float sum[COLUMNS] = {0};
            for (size_t i = 0; i < k; i++)
                row[i] = element(x, xl.type, r * (size_t)xl.ld + i);
            for (size_t i = 0; i < k; i++) {
                for (size_t c = 0; c < COLUMNS; c++)
                    sum[c] += row[i] * side[i * COLUMNS + c];
            }
            memcpy(y + r * (size_t)yl.ld + first, sum, n * sizeof(*sum));
        }
    }
}

cublas_status cublasLtMatmul(cublas_handle *, cublas_desc *d, const void *alpha, const void *a,
                             cublas_layout *al, const void *b, cublas_layout *bl, const void *beta,
                             const void *c, cublas_layout *, void *y, cublas_layout *yl,
                             const cublas_algo *algo, void *workspace, size_t workspace_bytes,
                             cudaStream_t stream)
{
    cublas_found how;
    if (cublasLtMatmulAlgoCheck(NULL, d, al, bl, yl, yl, algo, &how))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((uintptr_t)a % ALIGN || (uintptr_t)b % ALIGN || (uintptr_t)y % ALIGN)
        misuse("an address that is not aligned");
    if (how.workspaceSize > workspace_bytes || (how.workspaceSize && !workspace))
        misuse("an algorithm without the workspace that it wants");
    if (*static_cast<const float *>(alpha) != 1 || *static_cast<const float *>(beta) != 0 || c != y)
        misuse("only y = w x is played");
    cublas_layout w = *al, x = *bl, out = *yl;
    int rc = aq_emu_enqueue(stream, [=] {
        if (how.workspaceSize)
            memset(workspace, 0xff, how.workspaceSize);
        multiply(a, w, b, x, static_cast<float *>(y), out);
    });
    return rc ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}
