/* SPDX-License-Identifier: Apache-2.0
 * Rotation of heads.  A warp per head of a row, warps of a block neighbours along the row, so that
 * they share the row's cosines and sines: bound by reading and writing x.  Every number is written
 * by the lane that read it last, once all lanes have read theirs for the sum of squares. */
#include "kernels/cuda/device.cuh"

enum { ROTATE_WARPS = 8, ROTATE_THREADS = ROTATE_WARPS * AQ_CU_WARP };

/* What number d of a head becomes by its norm. */
AQ_DEVICE_FN float normed(const float *x, const float *w, float factor, uint32_t d)
{
    return w ? x[d] * factor * w[d] : x[d];
}

/* A grid of (rows, heads / ROTATE_WARPS). */
__global__ void __launch_bounds__(ROTATE_THREADS) rotate_heads(struct aq_rotate r)
{
    uint32_t head = blockIdx.y * ROTATE_WARPS + threadIdx.x / AQ_CU_WARP;
    if (head >= r.q_heads + r.k_heads)
        return;
    float *x = r.x + blockIdx.x * r.x_stride + static_cast<size_t>(head) * r.head_dim;
    const float *w = head < r.q_heads ? r.w_q : r.w_k;
    const float *turn = r.turn + static_cast<size_t>(blockIdx.x) * r.rotary_dim;
    uint32_t half = r.rotary_dim / 2;
    float factor = 1;
    if (w) {
        float square = 0;
        for (uint32_t d = aq_cu_lane(); d < r.head_dim; d += AQ_CU_WARP)
            square = fmaf(x[d], x[d], square);
        square = aq_cu_warp_sum(square);
        __syncwarp(); /* shuffles order no memory, and other lanes have read what this one writes */
        factor = 1 / sqrtf(square / static_cast<float>(r.head_dim) + r.eps);
    }
    for (uint32_t d = aq_cu_lane(); d < half; d += AQ_CU_WARP) {
        float a = normed(x, w, factor, d), b = normed(x, w, factor, d + half);
        float c = turn[d], s = turn[d + half];
        x[d] = fmaf(c, a, -(s * b));
        x[d + half] = fmaf(c, b, s * a);
    }
    for (uint32_t d = r.rotary_dim + aq_cu_lane(); w && d < r.head_dim; d += AQ_CU_WARP)
        x[d] = normed(x, w, factor, d);
}

int aq_cuda_rotate(const struct aq_cuda_exec *ex, const struct aq_rotate *r)
{
    assert(r->rotary_dim <= r->head_dim && r->rotary_dim % 2 == 0);
    uint32_t heads = r->q_heads + r->k_heads;
    if (!r->rows || !heads)
        return 0;
    uint32_t warps = static_cast<uint32_t>(aq_min_u64(heads, ROTATE_WARPS));
    dim3 grid(r->rows, aq_cu_div_up(heads, ROTATE_WARPS));
    return AQ_LAUNCH(ex, rotate_heads, grid, warps * AQ_CU_WARP, 0, *r);
}
