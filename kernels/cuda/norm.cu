/* SPDX-License-Identifier: Apache-2.0
 * Norms and casts, and what follows a product: bias, activation, residual.
 * A block of threads per row; a row is read twice more from the cache for the mean and the variance
 * (two passes, as the reference).  Bound by reading x and writing y. */
#include "kernels/cuda/device.cuh"

enum {
    NORM_THREADS = 256,
    FINISH_THREADS = 256,
    FLIGHT = 4, /* numbers that a thread has asked for before it looks at the first */
};

/* A thread's numbers [FLIGHT] of one turn over a vector, 0 past its end; NULL: `otherwise`. */
AQ_DEVICE_FN void load_flight(float *to, const float *x, uint32_t first, uint32_t end,
                              float otherwise)
{
#pragma unroll
    for (uint32_t n = 0; n < FLIGHT; n++) {
        uint32_t d = first + n * blockDim.x;
        to[n] = !x ? otherwise : d < end ? x[d] : 0;
    }
}

__global__ void __launch_bounds__(NORM_THREADS) norm_row(struct aq_norm n)
{
    AQ_SHARED(float, partial);
    uint32_t row = blockIdx.x;
    const float *x = n.x + (n.row_index ? n.row_index[row] : row) * n.x_stride;
    float mean = 0, factor = 1;
    if (n.kind == AQ_NORM_LAYER) {
        float sum = 0, v[FLIGHT];
        for (uint32_t d = threadIdx.x; d < n.dim; d += FLIGHT * blockDim.x) {
            load_flight(v, x, d, n.dim, 0);
#pragma unroll
            for (uint32_t i = 0; i < FLIGHT; i++)
                sum += v[i];
        }
        mean = aq_cu_block_sum(sum, partial) / static_cast<float>(n.dim);
    }
    if (n.kind != AQ_NORM_CAST) {
        float square = 0, v[FLIGHT];
        for (uint32_t d = threadIdx.x; d < n.dim; d += FLIGHT * blockDim.x) {
            load_flight(v, x, d, n.dim, 0);
#pragma unroll
            for (uint32_t i = 0; i < FLIGHT; i++) {
                float apart = d + i * blockDim.x < n.dim ? v[i] - mean : 0;
                square = fmaf(apart, apart, square);
            }
        }
        square = aq_cu_block_sum(square, partial);
        factor = 1 / sqrtf(square / static_cast<float>(n.dim) + n.eps);
    }
    const float *w = n.kind != AQ_NORM_CAST ? n.w : NULL;
    const float *b = n.kind == AQ_NORM_LAYER ? n.b : NULL;
    for (uint32_t d = threadIdx.x; d < n.dim; d += FLIGHT * blockDim.x) {
        float v[FLIGHT], by[FLIGHT], more[FLIGHT];
        load_flight(v, x, d, n.dim, 0);
        load_flight(by, w, d, n.dim, 1);
        load_flight(more, b, d, n.dim, 0);
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++) {
            uint32_t at = d + i * blockDim.x;
            float y = (v[i] - mean) * factor;
            y = w ? y * by[i] : y;
            y = b ? y + more[i] : y;
            if (at < n.dim)
                aq_cu_store(n.y, n.y_dtype, row * n.y_stride + at, y);
        }
    }
}

/* The formulas of the reference (kernels/cpu/gemm_ref.c), in f32. */
AQ_DEVICE_FN float activate(enum aq_activation a, float v)
{
    const float root_half = 0.70710678f, two_root_2_pi = 1.59576912f; /* 2 sqrt(2 / pi) */
    switch (a) {
    case AQ_ACT_RELU: return v > 0 || isnan(v) ? v : 0;
    case AQ_ACT_GELU: return 0.5f * v * erfcf(-v * root_half);
    case AQ_ACT_GELU_TANH: return v / (1 + expf(-two_root_2_pi * fmaf(0.044715f * v * v, v, v)));
    case AQ_ACT_SILU: return v / (1 + expf(-v));
    default: return v;
    }
}

__global__ void __launch_bounds__(FINISH_THREADS) finish_row(struct aq_cuda_finish f)
{
    uint32_t row = blockIdx.x, step = gridDim.y * blockDim.x;
    for (uint32_t c = blockIdx.y * blockDim.x + threadIdx.x; c < f.columns; c += step) {
        float v = aq_cu_load(f.x, f.x_dtype, row * f.x_stride + c);
        if (f.bias)
            v += f.bias[c];
        v = activate(f.activation, v);
        size_t at = row * f.y_stride + c;
        if (f.combine == AQ_COMBINE_ADD)
            v += aq_cu_load(f.y, f.y_dtype, at);
        else if (f.combine == AQ_COMBINE_MULTIPLY)
            v *= aq_cu_load(f.y, f.y_dtype, at);
        aq_cu_store(f.y, f.y_dtype, at, v);
    }
}

int aq_cuda_norm(const struct aq_cuda_exec *ex, const struct aq_norm *n)
{
    assert(n->dim >= 1 && aq_dtype_is_float(n->y_dtype));
    if (!n->rows)
        return 0;
    uint32_t threads = aq_cu_row_threads(n->dim, NORM_THREADS);
    return AQ_LAUNCH(ex, norm_row, n->rows, threads, AQ_CU_WARP * sizeof(float), *n);
}

int aq_cuda_finish(const struct aq_cuda_exec *ex, const struct aq_cuda_finish *f)
{
    assert(aq_dtype_is_float(f->x_dtype) && aq_dtype_is_float(f->y_dtype));
    if (!f->rows || !f->columns)
        return 0;
    uint32_t threads = aq_cu_row_threads(f->columns, FINISH_THREADS);
    dim3 grid(f->rows, aq_cu_div_up(f->columns, 4 * threads));
    return AQ_LAUNCH(ex, finish_row, grid, threads, 0, *f);
}
