/* SPDX-License-Identifier: Apache-2.0
 * Norms and casts, and what follows a product: bias, activation, residual.
 * A block of threads per row; a row is read twice more from the cache for the mean and the variance
 * (two passes, as the reference).  Bound by reading x and writing y. */
#include "kernels/cuda/device.cuh"

enum {
    NORM_THREADS = 256,
    FINISH_THREADS = 256,
    /* Numbers of a vector that a thread has asked for before it looks at the first: of one, and
     * where it reads three side by side. */
    FLIGHT = 16,
    FLIGHT_OF_THREE = 8,
    EIGHT = 8, /* neighbours that it takes at once where rows are whole units of so many */
};

/* A thread's numbers of one turn over a vector, 0 past its end; NULL: `otherwise`. */
template <uint32_t COUNT>
AQ_DEVICE_FN void load_flight(float (&to)[COUNT], const float *x, uint32_t first, uint32_t end,
                              float otherwise)
{
#pragma unroll
    for (uint32_t n = 0; n < COUNT; n++) {
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
    for (uint32_t d = threadIdx.x; d < n.dim; d += FLIGHT_OF_THREE * blockDim.x) {
        float v[FLIGHT_OF_THREE], by[FLIGHT_OF_THREE], more[FLIGHT_OF_THREE];
        load_flight(v, x, d, n.dim, 0);
        load_flight(by, w, d, n.dim, 1);
        load_flight(more, b, d, n.dim, 0);
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT_OF_THREE; i++) {
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

AQ_DEVICE_FN float finished(const struct aq_cuda_finish *f, float x, float bias, float y)
{
    float v = activate(f->activation, f->bias ? x + bias : x);
    return f->combine == AQ_COMBINE_ADD ? v + y : f->combine == AQ_COMBINE_MULTIPLY ? v * y : v;
}

/* Eight neighbours that are on their way, as they lie in memory. */
struct eight {
    uint4 u[2];
};

AQ_DEVICE_FN struct eight ask_for(const void *data, enum aq_dtype t, size_t index)
{
    const uint4 *from = static_cast<const uint4 *>(data) + index / (t == AQ_F32 ? 4 : 8);
    struct eight e = {{from[0], {}}};
    if (t == AQ_F32)
        e.u[1] = from[1];
    return e;
}

AQ_DEVICE_FN float element(const struct eight *e, enum aq_dtype t, uint32_t i)
{
    const uint32_t words[] = {e->u[0].x, e->u[0].y, e->u[0].z, e->u[0].w,
                              e->u[1].x, e->u[1].y, e->u[1].z, e->u[1].w};
    if (t == AQ_F32)
        return __uint_as_float(words[i]);
    uint16_t bits = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    return t == AQ_F16 ? aq_cu_from_f16(bits) : aq_cu_from_bf16(bits);
}

AQ_DEVICE_FN void put(void *data, enum aq_dtype t, size_t index, const float v[EIGHT])
{
    uint4 *to = static_cast<uint4 *>(data) + index / (t == AQ_F32 ? 4 : 8);
    uint32_t words[EIGHT] = {};
#pragma unroll
    for (uint32_t i = 0; i < EIGHT; i++) {
        if (t == AQ_F32)
            words[i] = __float_as_uint(v[i]);
        else
            words[i / 2] |=
                static_cast<uint32_t>(t == AQ_F16 ? aq_cu_to_f16(v[i]) : aq_cu_to_bf16(v[i]))
                << i % 2 * 16;
    }
    to[0] = {words[0], words[1], words[2], words[3]};
    if (t == AQ_F32)
        to[1] = {words[4], words[5], words[6], words[7]};
}

/* A grid of (rows, parts of them): eight columns a thread, where all rows are `whole` units of
 * eight that begin at 16 bytes. */
__global__ void __launch_bounds__(FINISH_THREADS) finish_row(struct aq_cuda_finish f, bool whole)
{
    uint32_t c = EIGHT * (blockIdx.y * blockDim.x + threadIdx.x);
    size_t from = blockIdx.x * f.x_stride + c, to = blockIdx.x * f.y_stride + c;
    if (whole && c < f.columns) {
        struct eight x = ask_for(f.x, f.x_dtype, from), bias = {}, y = {};
        if (f.bias)
            bias = ask_for(f.bias, AQ_F32, c);
        if (f.combine != AQ_COMBINE_SET)
            y = ask_for(f.y, f.y_dtype, to);
        float v[EIGHT];
#pragma unroll
        for (uint32_t i = 0; i < EIGHT; i++)
            v[i] = finished(&f, element(&x, f.x_dtype, i), element(&bias, AQ_F32, i),
                            element(&y, f.y_dtype, i));
        put(f.y, f.y_dtype, to, v);
        return;
    }
    for (uint32_t i = 0; i < EIGHT && c + i < f.columns; i++) {
        float bias = f.bias ? f.bias[c + i] : 0;
        float y = f.combine != AQ_COMBINE_SET ? aq_cu_load(f.y, f.y_dtype, to + i) : 0;
        aq_cu_store(f.y, f.y_dtype, to + i,
                    finished(&f, aq_cu_load(f.x, f.x_dtype, from + i), bias, y));
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
    uint64_t places = reinterpret_cast<uintptr_t>(f->x) | reinterpret_cast<uintptr_t>(f->y) |
                      reinterpret_cast<uintptr_t>(f->bias);
    bool whole = !(places % 16 || (f->columns | f->x_stride | f->y_stride) % EIGHT);
    uint32_t units = aq_cu_div_up(f->columns, EIGHT);
    uint32_t threads = aq_cu_row_threads(units, FINISH_THREADS);
    dim3 grid(f->rows, aq_cu_div_up(units, threads));
    return AQ_LAUNCH(ex, finish_row, grid, threads, 0, *f, whole);
}
