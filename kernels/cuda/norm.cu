/* SPDX-License-Identifier: Apache-2.0
 * Norms and casts, and what follows a product: bias, activation, residual.
 * A block of threads per row; a row is read twice more from the cache for the mean and the variance
 * (two passes, as the reference).  Bound by reading x and writing y. */
#include "kernels/cuda/device.cuh"

enum { NORM_THREADS = 256, FINISH_THREADS = 256 };

__global__ void __launch_bounds__(NORM_THREADS) norm_row(struct aq_norm n)
{
    AQ_SHARED(float, partial);
    uint32_t row = blockIdx.x;
    const float *x = n.x + (n.row_index ? n.row_index[row] : row) * n.x_stride;
    float mean = 0, factor = 1;
    if (n.kind == AQ_NORM_LAYER) {
        float sum = 0;
        for (uint32_t d = threadIdx.x; d < n.dim; d += blockDim.x)
            sum += x[d];
        mean = aq_cu_block_sum(sum, partial) / static_cast<float>(n.dim);
    }
    if (n.kind != AQ_NORM_CAST) {
        float square = 0;
        for (uint32_t d = threadIdx.x; d < n.dim; d += blockDim.x)
            square = fmaf(x[d] - mean, x[d] - mean, square);
        square = aq_cu_block_sum(square, partial);
        factor = 1 / sqrtf(square / static_cast<float>(n.dim) + n.eps);
    }
    bool affine = n.kind != AQ_NORM_CAST;
    for (uint32_t d = threadIdx.x; d < n.dim; d += blockDim.x) {
        float y = (x[d] - mean) * factor;
        if (affine && n.w)
            y *= n.w[d];
        if (n.kind == AQ_NORM_LAYER && n.b)
            y += n.b[d];
        aq_cu_store(n.y, n.y_dtype, row * n.y_stride + d, y);
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
