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

/* What the library is asked to write: y itself, with bias and what y was, or f32 sums alone. */
struct output {
    void *y;
    size_t stride;
    enum aq_dtype dtype;
    const void *bias; /* in dtype */
    enum aq_activation activation;
    float beta; /* of what y was */
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

/* Does nothing follow the product, whose sums are y? */
static bool is_plain(const struct aq_cuda_dense *p)
{
    return p->y_dtype == AQ_F32 && !p->bias && p->activation == AQ_ACT_NONE &&
           p->combine == AQ_COMBINE_SET;
}

static bool is_aligned(const struct aq_cuda_dense *p)
{
    size_t each = aq_dtype_bytes(p->y_dtype);
    return (uintptr_t)p->y % AQ_CUDA_DENSE_ALIGN == 0 &&
           p->y_stride * each % AQ_CUDA_DENSE_ALIGN == 0 &&
           ((uintptr_t)p->bias | (uintptr_t)p->bias_y) % AQ_CUDA_DENSE_ALIGN == 0;
}

/* Its ReLU and its GELU come behind bias and residual (cuBLAS documentation, cublasLtEpilogue_t),
 * so that they are ours where there is no residual.  That its GELU is the tanh one is not said
 * there: it is tried (engine/compute/cuda_prove.h). */
static bool knows_activation(const struct aq_cuda_dense *p)
{
    return p->activation == AQ_ACT_NONE ||
           (p->combine == AQ_COMBINE_SET &&
            (p->activation == AQ_ACT_RELU || p->activation == AQ_ACT_GELU_TANH));
}

/* What one kernel of the library may be asked for.  It takes a bias in y's dtype (table of
 * supported types, cuBLAS documentation, cublasLtMatmul). */
static bool may_fuse(const struct aq_cuda_blas *b, const struct aq_cuda_dense *p)
{
    bool bias = !p->bias || p->y_dtype == AQ_F32 || p->bias_y;
    return !b->deterministic && is_aligned(p) && knows_activation(p) && bias &&
           (p->combine == AQ_COMBINE_SET || p->combine == AQ_COMBINE_ADD) &&
           (p->y_dtype == AQ_F32 || p->y_dtype == p->dtype);
}

static struct output output_of(const struct aq_cuda_dense *p, bool fused)
{
    struct output o = {.y = p->y, .stride = p->y_stride, .dtype = p->y_dtype};
    if (fused) {
        o.bias = p->y_dtype == AQ_F32 || !p->bias ? (const void *)p->bias : p->bias_y;
        o.activation = p->activation;
        o.beta = p->combine == AQ_COMBINE_ADD;
    } else if (!is_plain(p) || !is_aligned(p)) {
        o = (struct output){.y = p->sums, .stride = aq_align_up(p->n, 4), .dtype = AQ_F32};
    }
    return o;
}

static int set_what(struct problem *q, cublasLtMatmulDescAttributes_t which, const void *value,
                    size_t bytes)
{
    return result(cublasLtMatmulDescSetAttribute(&q->what, which, value, bytes));
}

static cublasLtEpilogue_t epilogue_of(const struct output *o)
{
    switch (o->activation) {
    case AQ_ACT_RELU: return o->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case AQ_ACT_GELU_TANH: return o->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default: return o->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static int describe_epilogue(struct problem *q, const struct output *o)
{
    cublasLtEpilogue_t epilogue = epilogue_of(o);
    cudaDataType_t type = type_of(o->dtype);
    int rc = set_what(q, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    if (rc || !o->bias)
        return rc;
    rc = set_what(q, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
    return rc ? rc : set_what(q, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o->bias, sizeof(o->bias));
}

static int describe(struct problem *q, const struct aq_cuda_dense *p, const struct output *o,
                    uint32_t m, uint32_t n)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t type = type_of(p->dtype);
    int rc = result(cublasLtMatmulDescInit(&q->what, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    rc = rc ? rc : set_what(q, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    if (!rc && epilogue_of(o) != CUBLASLT_EPILOGUE_DEFAULT)
        rc = describe_epilogue(q, o);
    rc = rc ? rc : result(cublasLtMatrixLayoutInit(&q->w, type, p->k, n, (int64_t)p->w_stride));
    rc = rc ? rc : result(cublasLtMatrixLayoutInit(&q->x, type, p->k, m, (int64_t)p->x_stride));
    return rc ? rc
              : result(
                    cublasLtMatrixLayoutInit(&q->y, type_of(o->dtype), n, m, (int64_t)o->stride));
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
                     const struct output *o, const cublasLtMatmulAlgo_t *algo,
                     size_t workspace_bytes)
{
    static const uint32_t sizes[][2] = {
        {1, AQ_PANEL_ROWS}, {1, USUAL_N}, {USUAL_M, AQ_PANEL_ROWS}, {3, AQ_PANEL_ROWS + 1}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct problem q;
        cublasLtMatmulHeuristicResult_t how;
        if (describe(&q, p, o, sizes[i][0], sizes[i][1]) ||
            cublasLtMatmulAlgoCheck(b->handle, &q.what, &q.w, &q.x, &q.y, &q.y, algo, &how) !=
                CUBLAS_STATUS_SUCCESS ||
            how.workspaceSize > workspace_bytes)
            return false;
    }
    return true;
}

/* Rows are rounded up to a power of two: batches grow and shrink by a row at a time. */
static uint32_t bucket_of(uint32_t m)
{
    uint32_t b = 1;
    while (b < m)
        b *= 2;
    return b;
}

static uint64_t mix(uint64_t key, uint64_t v)
{
    key = (key ^ v) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

/* The kernel that an algorithm is, as far as what follows the sums goes. */
static uint64_t kind_of(const struct aq_cuda_blas_plan *plan, const struct output *o)
{
    uint64_t kind = mix(mix(1, (uint64_t)epilogue_of(o)), (uint64_t)o->dtype);
    for (size_t i = 0; i < sizeof(plan->algo) / sizeof(plan->algo[0]); i++)
        kind = mix(kind, plan->algo[i]);
    return kind;
}

static bool is_trusted(const struct aq_cuda_blas *b, uint64_t kind)
{
    for (uint32_t i = 0; i < b->trusted_count; i++) {
        if (b->trusted[i] == kind)
            return true;
    }
    return false;
}

/* An algorithm whose activation is not to be trusted is none that is usable, unless it is only
 * tried. */
static int choose(struct aq_cuda_blas_plan *plan, const struct aq_cuda_blas *b,
                  const struct aq_cuda_dense *p, bool fused, bool tried, size_t workspace_bytes)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES] = {0}; /* all of an algorithm names it */
    struct problem q;
    struct output o = output_of(p, fused);
    int count = 0;
    /* The library takes a bias to be aligned as this address is, which it does not read; an
     * algorithm serves those of all layers. */
    if (o.bias)
        o.bias = (const void *)(uintptr_t)AQ_CUDA_DENSE_ALIGN;
    /* The strides of rows of y may be short for the shape that is asked about. */
    if (b->deterministic)
        o.stride = aq_max_u64(o.stride, USUAL_N);
    int rc = b->deterministic ? describe(&q, p, &o, USUAL_M, USUAL_N)
                              : describe(&q, p, &o, bucket_of(p->m), p->n);
    rc = rc ? rc : candidates(found, &count, b, &q, workspace_bytes);
    int best = 0;
    while (!rc && best < count &&
           (!is_usable(&found[best], workspace_bytes) ||
            (b->deterministic && !does_all(b, p, &o, &found[best].algo, workspace_bytes))))
        best++;
    if (rc || best >= count)
        return rc ? rc : NOTHING_USABLE;
    memcpy(plan->algo, &found[best].algo, sizeof(found[best].algo));
    plan->fused = fused;
    return !o.activation || tried || is_trusted(b, kind_of(plan, &o)) ? 0 : NOTHING_USABLE;
}

/* Of everything that an algorithm was asked for. */
static uint64_t key_of(const struct aq_cuda_blas *b, const struct aq_cuda_dense *p, bool fused)
{
    struct output o = output_of(p, fused);
    uint64_t key = mix(mix(1, p->k), (uint64_t)p->dtype);
    if (b->deterministic)
        return key | 1;
    key = mix(mix(mix(key, bucket_of(p->m)), p->n), o.stride);
    key = mix(mix(key, (uint64_t)o.dtype),
              (uint64_t)fused << 10 | (uint64_t)epilogue_of(&o) << 1 | (o.beta != 0));
    return key | 1;
}

static int find_plan(struct aq_cuda_blas_plan **ret, struct aq_cuda_blas *b,
                     const struct aq_cuda_dense *p, size_t workspace_bytes)
{
    bool fused = may_fuse(b, p);
    uint64_t key = key_of(b, p, fused);
    uint32_t set = key >> 32 & (AQ_CUDA_PLAN_SETS - 1);
    struct aq_cuda_blas_plan *ways = b->plan[set];
    for (uint32_t i = 0; i < AQ_CUDA_PLAN_WAYS; i++) {
        if (ways[i].key == key) {
            *ret = &ways[i];
            return 0;
        }
    }
    struct aq_cuda_blas_plan *plan = &ways[b->oldest[set]];
    plan->key = 0;
    int rc = choose(plan, b, p, fused, false, workspace_bytes);
    if ((rc == NOTHING_OFFERED || rc == NOTHING_USABLE) && fused && !is_plain(p))
        rc = choose(plan, b, p, false, false, workspace_bytes);
    if (rc)
        return rc;
    plan->key = key;
    b->oldest[set] = (b->oldest[set] + 1) % AQ_CUDA_PLAN_WAYS;
    *ret = plan;
    return 0;
}

/* What the library left undone. */
static int finish(const struct aq_cuda_exec *ex, const struct aq_cuda_dense *p,
                  const struct output *o)
{
    struct aq_cuda_finish f = {
        .x = o->y,
        .x_dtype = o->dtype,
        .x_stride = o->stride,
        .bias = p->bias,
        .activation = p->activation,
        .combine = p->combine,
        .y = p->y,
        .y_dtype = p->y_dtype,
        .y_stride = p->y_stride,
        .rows = p->m,
        .columns = p->n,
    };
    return aq_cuda_finish(ex, &f);
}

/* By the algorithm of a plan, up to what it leaves undone. */
static int multiply(const struct aq_cuda_exec *ex, const struct aq_cuda_dense *p,
                    const struct aq_cuda_blas_plan *plan, const struct output *o)
{
    const float one = 1;
    const struct aq_cuda_blas *b = ex->blas;
    struct problem q;
    cublasLtMatmulAlgo_t algo;
    int rc = describe(&q, p, o, p->m, p->n);
    if (rc)
        return rc;
    memcpy(&algo, plan->algo, sizeof(algo));
    cublasStatus_t status =
        cublasLtMatmul(b->handle, &q.what, &one, p->w, &q.w, p->x, &q.x, &o->beta, o->y, &q.y, o->y,
                       &q.y, &algo, ex->workspace, ex->workspace_bytes, ex->stream);
    /* On a GPU that has failed the library fails too; the runtime knows why. */
    rc = status == CUBLAS_STATUS_SUCCESS ? 0 : (int)cudaGetLastError();
    return rc ? rc : result(status);
}

int aq_cuda_dense(const struct aq_cuda_exec *ex, const struct aq_cuda_dense *p)
{
    struct aq_cuda_blas_plan *plan = NULL;
    if (!p->m || !p->n)
        return 0;
    int rc = find_plan(&plan, ex->blas, p, ex->workspace_bytes);
    if (rc)
        return rc;
    struct output o = output_of(p, plan->fused);
    rc = multiply(ex, p, plan, &o);
    return rc || o.y == p->y ? rc : finish(ex, p, &o);
}

int aq_cuda_dense_try(const struct aq_cuda_exec *ex, const struct aq_cuda_dense *p, uint32_t m,
                      uint32_t n, struct aq_cuda_trial *ret)
{
    struct aq_cuda_blas_plan plan;
    struct aq_cuda_dense part = *p;
    part.m = m;
    part.n = n;
    part.y_stride = n;
    if (!may_fuse(ex->blas, p))
        return NOTHING_OFFERED;
    int rc = choose(&plan, ex->blas, p, true, true, ex->workspace_bytes);
    if (rc)
        return rc;
    struct output o = output_of(&part, true);
    ret->kind = kind_of(&plan, &o);
    ret->trusted = is_trusted(ex->blas, ret->kind);
    return ret->trusted ? 0 : multiply(ex, &part, &plan, &o);
}

void aq_cuda_dense_trust(struct aq_cuda_blas *b, uint64_t kind)
{
    if (!is_trusted(b, kind) && b->trusted_count < AQ_CUDA_TRUSTED_MAX)
        b->trusted[b->trusted_count++] = kind;
}
