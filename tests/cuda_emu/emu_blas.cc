/* SPDX-License-Identifier: Apache-2.0
 * cuBLASLt, played by scalars: products of rows in f32, k ascending.  Of the two algorithms that it
 * offers the first wants workspace, the second none; one used against what it was offered for, or
 * an address that is not aligned, ends the program.  It may be told to misbehave (control.h). */
#include "base/half.h"
#include "tests/cuda_emu/control.h"
#include "tests/cuda_emu/emu_stream.cuh"
#include "tests/cuda_emu/include/cublasLt.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 4096, ALIGN = 16 };
/* Algorithms, by the number that they begin with. */
enum { WANTS_WORKSPACE = 1, WANTS_NONE = 2, BROKEN = 3, GREEDY = 4 };

static std::atomic<aq_emu_manner> behaviour{AQ_EMU_BLAS_RIGHT};

void aq_emu_blas(enum aq_emu_manner how)
{
    behaviour = how;
}

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
    switch (status) {
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "CUBLAS_STATUS_INVALID_VALUE";
    }
}

cublas_status cublasLtMatmulDescInit(cublas_desc *d, cublas_compute compute, cuda_type)
{
    *d = {CUBLAS_OP_N, compute, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F, NULL};
    return CUBLAS_STATUS_SUCCESS;
}

cublas_status cublasLtMatmulDescSetAttribute(cublas_desc *d, cublas_desc_attribute which,
                                             const void *value, size_t bytes)
{
    void *place = which == CUBLASLT_MATMUL_DESC_TRANSA         ? static_cast<void *>(&d->a)
                  : which == CUBLASLT_MATMUL_DESC_EPILOGUE     ? static_cast<void *>(&d->epilogue)
                  : which == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? static_cast<void *>(&d->bias)
                                                               : &d->bias_type;
    memcpy(place, value, bytes);
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

/* Types of y and of a bias beside the operands' (table of cublasLtMatmul in its documentation). */
static bool supports(const cublas_desc *d, const cublas_layout *a, const cublas_layout *y)
{
    if (y->type != CUDA_R_32F && y->type != a->type)
        return false;
    return d->epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
           (behaviour != AQ_EMU_BLAS_PLAIN &&
            (!(d->epilogue & CUBLASLT_EPILOGUE_BIAS) || (d->bias && d->bias_type == y->type)));
}

cublas_status cublasLtMatmulAlgoCheck(cublas_handle *, cublas_desc *d, cublas_layout *a,
                                      cublas_layout *b, cublas_layout *, cublas_layout *y,
                                      const cublas_algo *algo, cublas_found *ret)
{
    if (d->a != CUBLAS_OP_T || a->rows != b->rows || y->rows != a->cols || y->cols != b->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->data[0] == BROKEN || !supports(d, a, y))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *ret = {*algo,
            algo->data[0] == WANTS_WORKSPACE ? (size_t)WORKSPACE_BYTES
            : algo->data[0] == GREEDY        ? SIZE_MAX / 2
                                             : 0,
            CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}

cublas_status cublasLtMatmulAlgoGetHeuristic(cublas_handle *, cublas_desc *d, cublas_layout *a,
                                             cublas_layout *b, cublas_layout *c, cublas_layout *y,
                                             cublas_wish *w, int, cublas_found *ret, int *ret_count)
{
    enum aq_emu_manner how = behaviour;
    std::vector<uint64_t> kinds;
    if (how == AQ_EMU_BLAS_REFUSES || !supports(d, a, y))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (how == AQ_EMU_BLAS_BROKEN_FIRST || how == AQ_EMU_BLAS_BROKEN)
        kinds.push_back(BROKEN);
    if (how == AQ_EMU_BLAS_GREEDY)
        kinds.push_back(GREEDY);
    if (how != AQ_EMU_BLAS_BROKEN && how != AQ_EMU_BLAS_GREEDY &&
        how != AQ_EMU_BLAS_OFFERS_NOTHING) {
        if (w->workspace_bytes >= WORKSPACE_BYTES)
            kinds.push_back(WANTS_WORKSPACE);
        kinds.push_back(WANTS_NONE);
    }
    for (size_t i = 0; i < kinds.size(); i++) {
        cublas_algo algo = {{kinds[i]}};
        ret[i] = {algo, 0, CUBLAS_STATUS_NOT_SUPPORTED};
        if (kinds[i] != BROKEN && cublasLtMatmulAlgoCheck(NULL, d, a, b, c, y, &algo, &ret[i]))
            return CUBLAS_STATUS_INVALID_VALUE;
    }
    *ret_count = (int)kinds.size();
    return CUBLAS_STATUS_SUCCESS;
}

static float element(const void *data, cuda_type t, size_t i)
{
    if (t == CUDA_R_32F)
        return static_cast<const float *>(data)[i];
    uint16_t bits = static_cast<const uint16_t *>(data)[i];
    return t == CUDA_R_16F ? aq_f32_from_f16(bits) : aq_f32_from_bf16(bits);
}

/* Where sums go: y = act(sums + beta * y + bias), rounded once. */
struct output {
    void *y;
    cublas_layout layout;
    float beta;
    const void *bias;
    int activation; /* of the epilogue, without its bias; 0: none */
    aq_emu_manner behaves;

    float activated(float v) const
    {
        if (std::isnan(v))
            return activation && behaves == AQ_EMU_BLAS_LOSES_NAN ? 0 : v;
        if (activation == CUBLASLT_EPILOGUE_RELU)
            return std::max(v, 0.f);
        float inner = 0.7978845608f * (v + 0.044715f * v * v * v); /* sqrt(2 / pi) */
        float off = behaves == AQ_EMU_BLAS_COARSE ? 0.0005f * v : 0;
        return activation ? 0.5f * v * (1 + std::tanh(inner)) + off : v;
    }

    void put(size_t at, size_t column, float sum) const
    {
        if (beta != 0)
            sum += beta * element(y, layout.type, at);
        if (bias)
            sum += element(bias, layout.type, column);
        sum = activated(sum);
        if (layout.type == CUDA_R_32F)
            static_cast<float *>(y)[at] = sum;
        else
            static_cast<uint16_t *>(y)[at] =
                layout.type == CUDA_R_16F ? aq_f16_from_f32(sum) : aq_bf16_from_f32(sum);
    }
};

/* Weights of some columns side by side, so that the sums of a row are worked on together.  split: in
 * two halves of k, which are added in the end. */
static void multiply(const void *w, cublas_layout wl, const void *x, cublas_layout xl,
                     const output &y, bool split)
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
            float sum[COLUMNS] = {0}, half[COLUMNS] = {0};
            for (size_t i = 0; i < k; i++)
                row[i] = element(x, xl.type, r * (size_t)xl.ld + i);
            for (size_t i = 0; i < k; i++) {
                for (size_t c = 0; c < COLUMNS; c++)
                    sum[c] += row[i] * side[i * COLUMNS + c];
                if (split && i + 1 == k / 2)
                    std::swap(sum, half);
            }
            for (size_t c = 0; c < COLUMNS && split; c++)
                sum[c] += half[c];
            for (size_t c = 0; c < n; c++)
                y.put(r * (size_t)y.layout.ld + first + c, first + c, sum[c]);
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
    enum aq_emu_manner behaves = behaviour;
    if (algo->data[0] == BROKEN)
        misuse("an algorithm whose state was an error");
    if (cublasLtMatmulAlgoCheck(NULL, d, al, bl, yl, yl, algo, &how))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (behaves == AQ_EMU_BLAS_FAILS)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if ((uintptr_t)a % ALIGN || (uintptr_t)b % ALIGN || (uintptr_t)y % ALIGN ||
        (uintptr_t)d->bias % ALIGN)
        misuse("an address that is not aligned");
    if (how.workspaceSize > workspace_bytes || (how.workspaceSize && !workspace))
        misuse("an algorithm without the workspace that it wants");
    if (*static_cast<const float *>(alpha) != 1 || c != y)
        misuse("only y = act(w x + beta y + bias) is played");
    cublas_layout w = *al, x = *bl;
    output out = {y,
                  *yl,
                  *static_cast<const float *>(beta),
                  d->epilogue & CUBLASLT_EPILOGUE_BIAS ? d->bias : NULL,
                  d->epilogue & (CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_GELU),
                  behaves};
    bool split = (behaves == AQ_EMU_BLAS_SPLITS && x.cols > 16) ||
                 (behaves == AQ_EMU_BLAS_SPLITS_NARROW && w.cols < 65);
    static const char kernels[GREEDY + 1] = {};
    aq_emu_load(&kernels[algo->data[0]]);
    int rc = aq_emu_enqueue(stream, [=] {
        if (how.workspaceSize)
            memset(workspace, 0xff, how.workspaceSize);
        multiply(a, w, b, x, out, split);
    });
    return rc ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}
