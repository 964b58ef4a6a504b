/* SPDX-License-Identifier: Apache-2.0
 * Products by cuBLASLt.  It sees columns first: y transposed = w times x transposed, where w and x,
 * being row-major, are w transposed and x transposed already. */
#include "kernels/cuda/dense.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <string.h>

enum {
    BLAS_CODES = 10000, /* a cublasStatus_t among cudaError_t */
    NOTHING_OFFERED = 9001,
    NOTHING_USABLE,
    CANDIDATES = 64, /* for a deterministic algorithm, which has to do every size */
    CANDIDATES_FEW = 16,
    /* The shape that a deterministic algorithm is chosen for: a whole tile of rows. */
    USUAL_M = 256,
    USUAL_N = 4096,
};

_Static_assert(sizeof(cublasLtMatmulAlgo_t) <= sizeof(((struct aq_cuda_blas_plan *)0)->algo),
               "algorithms are kept as they are");

struct problem {
    cublasLtMatmulDescOpaque_t what;
    cublasLtMatrixLayoutOpaque_t w, x, y;
};

const char *aq_cuda_error_text(int code)
{
    if (code < 0)
        return strerrorname_np(-code);
    if (code == NOTHING_OFFERED)
        return "cuBLASLt has no algorithm for this product";
    if (code == NOTHING_USABLE)
        return "no algorithm that cuBLASLt offers for this product is usable within the workspace";
    return code >= BLAS_CODES ? cublasLtGetStatusString((cublasStatus_t)(code - BLAS_CODES))
                              : cudaGetErrorString((cudaError_t)code);
}

static int result(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? 0 : BLAS_CODES + (int)status;
}

int aq_cuda_blas_open(struct aq_cuda_blas *b, bool deterministic)
{
    cublasLtHandle_t handle;
    memset(b, 0, sizeof(*b));
    b->deterministic = deterministic;
    int rc = result(cublasLtCreate(&handle));
    if (!rc)
        b->handle = handle;
    return rc;
}

void aq_cuda_blas_close(struct aq_cuda_blas *b)
{
    if (b->handle)
        cublasLtDestroy(b->handle);
    b->handle = NULL;
}

static cudaDataType_t type_of(enum aq_dtype t)
{
    return t == AQ_F32 ? CUDA_R_32F : t == AQ_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static int describe(struct problem *q, const struct aq_cuda_dense *p, uint32_t m, uint32_t n)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t type = type_of(p->dtype);
    int rc = result(cublasLtMatmulDescInit(&q->what, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    rc = rc ? rc
            : result(cublasLtMatmulDescSetAttribute(&q->what, CUBLASLT_MATMUL_DESC_TRANSA,
                                                    &transposed, sizeof(transposed)));
    rc = rc ? rc : result(cublasLtMatrixLayoutInit(&q->w, type, p->k, n, (int64_t)p->w_stride));
    rc = rc ? rc : result(cublasLtMatrixLayoutInit(&q->x, type, p->k, m, (int64_t)p->x_stride));
    return rc ? rc
              : result(cublasLtMatrixLayoutInit(&q->y, CUDA_R_32F, n, m, (int64_t)p->y_stride));
}

/* The alignment of all pointers; the library would take 256 for granted. */
static int wish_for_alignment(cublasLtMatmulPreferenceOpaque_t *wish)
{
    static const cublasLtMatmulPreferenceAttributes_t which[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint32_t bytes = AQ_CUDA_DENSE_ALIGN;
    int rc = 0;
    for (int i = 0; i < 4 && !rc; i++)
        rc = result(cublasLtMatmulPreferenceSetAttribute(wish, which[i], &bytes, sizeof(bytes)));
    return rc;
}

/* Candidates for a shape, the best ones first. */
static int candidates(cublasLtMatmulHeuristicResult_t *found, int *ret_count,
                      const struct aq_cuda_blas *b, struct problem *q, size_t workspace_bytes)
{
    cublasLtMatmulPreferenceOpaque_t wish;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    int rc = result(cublasLtMatmulPreferenceInit(&wish));
    rc = rc ? rc : wish_for_alignment(&wish);
    rc = rc ? rc
            : result(cublasLtMatmulPreferenceSetAttribute(
                  &wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                  sizeof(workspace_bytes)));
    if (!rc && b->deterministic)
        rc = result(cublasLtMatmulPreferenceSetAttribute(
            &wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof(none)));
    if (rc)
        return rc;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        b->handle, &q->what, &q->w, &q->x, &q->y, &q->y, &wish,
        b->deterministic ? CANDIDATES : CANDIDATES_FEW, found, ret_count);
    bool empty = status == CUBLAS_STATUS_NOT_SUPPORTED || (!result(status) && *ret_count < 1);
    return empty ? NOTHING_OFFERED : result(status);
}

/* Whether the library itself thinks that a candidate works, and it asks for no more workspace than
 * it was told of. */
static bool is_usable(const cublasLtMatmulHeuristicResult_t *how, size_t workspace_bytes)
{
    return how->state == CUBLAS_STATUS_SUCCESS && how->workspaceSize <= workspace_bytes;
}

/* Does the algorithm do all sizes? */
static bool does_all(const struct aq_cuda_blas *b, const struct aq_cuda_dense *p,
                     const cublasLtMatmulAlgo_t *algo, size_t workspace_bytes)
{
    static const uint32_t sizes[][2] = {
        {1, AQ_PANEL_ROWS}, {1, USUAL_N}, {USUAL_M, AQ_PANEL_ROWS}, {3, AQ_PANEL_ROWS + 1}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct problem q;
        cublasLtMatmulHeuristicResult_t how;
        if (describe(&q, p, sizes[i][0], sizes[i][1]) ||
            cublasLtMatmulAlgoCheck(b->handle, &q.what, &q.w, &q.x, &q.y, &q.y, algo, &how) !=
                CUBLAS_STATUS_SUCCESS ||
            how.workspaceSize > workspace_bytes)
            return false;
    }
    return true;
}

static int choose(struct aq_cuda_blas_plan *plan, const struct aq_cuda_blas *b,
                  const struct aq_cuda_dense *p, uint32_t m, size_t workspace_bytes)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    struct problem q;
    int count = 0;
    /* The strides of rows of y may be short for the shape that is asked about. */
    struct aq_cuda_dense usual = *p;
    usual.y_stride = aq_max_u64(p->y_stride, USUAL_N);
    int rc = b->deterministic ? describe(&q, &usual, USUAL_M, USUAL_N) : describe(&q, p, m, p->n);
    rc = rc ? rc : candidates(found, &count, b, &q, workspace_bytes);
    int best = 0;
    while (!rc && best < count &&
           (!is_usable(&found[best], workspace_bytes) ||
            (b->deterministic && !does_all(b, &usual, &found[best].algo, workspace_bytes))))
        best++;
    if (rc || best >= count)
        return rc ? rc : NOTHING_USABLE;
    memcpy(plan->algo, &found[best].algo, sizeof(found[best].algo));
    return 0;
}

static uint64_t mix(uint64_t key, uint64_t v)
{
    key = (key ^ v) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

/* Rows are rounded up to a power of two: batches grow and shrink by a row at a time. */
static uint32_t bucket_of(uint32_t m)
{
    uint32_t b = 1;
    while (b < m)
        b *= 2;
    return b;
}

static int find_plan(struct aq_cuda_blas_plan **ret, struct aq_cuda_blas *b,
                     const struct aq_cuda_dense *p, size_t workspace_bytes)
{
    uint32_t m = bucket_of(p->m);
    uint64_t key = mix(mix(1, p->k), (uint64_t)p->dtype);
    if (!b->deterministic)
        key = mix(mix(mix(key, m), p->n), p->y_stride);
    key |= 1;
    struct aq_cuda_blas_plan *plan = &b->plan[key >> 32 & (AQ_CUDA_PLANS - 1)];
    if (plan->key != key) {
        int rc = choose(plan, b, p, m, workspace_bytes);
        plan->key = rc ? 0 : key;
        if (rc)
            return rc;
    }
    *ret = plan;
    return 0;
}

int aq_cuda_dense(const struct aq_cuda_exec *ex, const struct aq_cuda_dense *p)
{
    const float one = 1, zero = 0;
    struct aq_cuda_blas *b = ex->blas;
    struct aq_cuda_blas_plan *plan = NULL;
    struct problem q;
    cublasLtMatmulAlgo_t algo;
    if (!p->m || !p->n)
        return 0;
    int rc = find_plan(&plan, b, p, ex->workspace_bytes);
    rc = rc ? rc : describe(&q, p, p->m, p->n);
    if (rc)
        return rc;
    memcpy(&algo, plan->algo, sizeof(algo));
    cublasStatus_t status =
        cublasLtMatmul(b->handle, &q.what, &one, p->w, &q.w, p->x, &q.x, &zero, p->y, &q.y, p->y,
                       &q.y, &algo, ex->workspace, ex->workspace_bytes, ex->stream);
    /* On a GPU that has failed the library fails too; the runtime knows why. */
    rc = status == CUBLAS_STATUS_SUCCESS ? 0 : (int)cudaGetLastError();
    return rc ? rc : result(status);
}
