/* SPDX-License-Identifier: Apache-2.0
 * tests/cuda_emu/include/cublasLt.h - what kernels/cuda/dense.c uses of cuBLASLt, as emu_blas.cc
 * plays it. */
#ifndef AQ_TESTS_CUDA_EMU_INCLUDE_CUBLASLT_H
#define AQ_TESTS_CUDA_EMU_INCLUDE_CUBLASLT_H

#include "tests/cuda_emu/include/cuda_runtime_api.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cublas_status {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum cublas_operation { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublas_compute { CUBLAS_COMPUTE_32F = 68 };
enum cuda_type { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum cublas_desc_attribute {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
};
enum cublas_epilogue {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_RELU = 2,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_RELU_BIAS = 6,
    CUBLASLT_EPILOGUE_GELU = 32,
    CUBLASLT_EPILOGUE_GELU_BIAS = 36,
};
enum { CUBLASLT_REDUCTION_SCHEME_NONE = 0 };
enum cublas_wish_attribute {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
};
struct cublas_handle;
struct cublas_desc {
    enum cublas_operation a;
    enum cublas_compute compute;
    enum cublas_epilogue epilogue;
    enum cuda_type bias_type;
    const void *bias;
};
struct cublas_layout {
    enum cuda_type type;
    uint64_t rows, cols;
    int64_t ld;
};
struct cublas_wish {
    uint64_t workspace_bytes;
};
struct cublas_algo {
    uint64_t data[8];
};
struct cublas_found {
    struct cublas_algo algo;
    size_t workspaceSize;
    enum cublas_status state;
};
/* The library's names for them. */
#define cublasStatus_t                       enum cublas_status
#define cublasOperation_t                    enum cublas_operation
#define cudaDataType_t                       enum cuda_type
#define cublasLtHandle_t                     struct cublas_handle *
#define cublasLtMatmulDescOpaque_t           struct cublas_desc
#define cublasLtMatmulDescAttributes_t       enum cublas_desc_attribute
#define cublasLtEpilogue_t                   enum cublas_epilogue
#define cublasLtMatrixLayoutOpaque_t         struct cublas_layout
#define cublasLtMatmulPreferenceOpaque_t     struct cublas_wish
#define cublasLtMatmulPreferenceAttributes_t enum cublas_wish_attribute
#define cublasLtMatmulAlgo_t                 struct cublas_algo
#define cublasLtMatmulHeuristicResult_t      struct cublas_found

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
const char *cublasLtGetStatusString(cublasStatus_t status);
cublasStatus_t cublasLtMatmulDescInit(struct cublas_desc *d, enum cublas_compute compute,
                                      cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescSetAttribute(struct cublas_desc *d, enum cublas_desc_attribute a,
                                              const void *value, size_t bytes);
cublasStatus_t cublasLtMatrixLayoutInit(struct cublas_layout *l, cudaDataType_t type, uint64_t rows,
                                        uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatmulPreferenceInit(struct cublas_wish *w);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(struct cublas_wish *w,
                                                    enum cublas_wish_attribute a, const void *value,
                                                    size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, struct cublas_desc *d,
                                              struct cublas_layout *a, struct cublas_layout *b,
                                              struct cublas_layout *c, struct cublas_layout *y,
                                              struct cublas_wish *w, int count,
                                              struct cublas_found *ret, int *ret_count);
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, struct cublas_desc *d,
                                       struct cublas_layout *a, struct cublas_layout *b,
                                       struct cublas_layout *c, struct cublas_layout *y,
                                       const struct cublas_algo *algo, struct cublas_found *ret);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, struct cublas_desc *d, const void *alpha,
                              const void *a, struct cublas_layout *al, const void *b,
                              struct cublas_layout *bl, const void *beta, const void *c,
                              struct cublas_layout *cl, void *y, struct cublas_layout *yl,
                              const struct cublas_algo *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
