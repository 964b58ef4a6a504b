/* SPDX-License-Identifier: Apache-2.0
 * Statistics of logits: a block of threads per row, which is read twice (the second time mostly
 * from the L2 cache): the largest and its place, then the sum of exp. */
#include "kernels/cuda/device.cuh"

enum {
    LOGITS_THREADS = 512,
    FLIGHT = 20, /* logits that a thread has asked for before it looks at the first */
};

/* A thread's logits [FLIGHT] of one turn; -INFINITY past the last, which `bad` does not count. */
AQ_DEVICE_FN void load_flight(float *to, const struct aq_logits *l, const float *x, uint32_t first)
{
#pragma unroll
    for (uint32_t n = 0; n < FLIGHT; n++) {
        uint32_t i = first + n * blockDim.x;
        to[n] = i < l->vocab ? x[i] : -INFINITY;
    }
}

/* The larger one; of equal ones the lower index. */
AQ_DEVICE_FN void take_larger(float *max, uint32_t *at, float other, uint32_t other_at)
{
    if (other > *max || (other == *max && other_at < *at)) {
        *max = other;
        *at = other_at;
    }
}

/* Of all threads, for all threads: shared memory for a number and an index per warp. */
AQ_DEVICE_FN void block_largest(float *max, uint32_t *at, float *shared)
{
    uint32_t *shared_at = reinterpret_cast<uint32_t *>(shared + AQ_CU_WARP);
    for (uint32_t step = AQ_CU_WARP / 2; step; step /= 2) {
        float other = __shfl_xor_sync(AQ_CU_ALL, *max, step);
        uint32_t other_at = __shfl_xor_sync(AQ_CU_ALL, *at, step);
        take_larger(max, at, other, other_at);
    }
    if (aq_cu_lane() == 0) {
        shared[threadIdx.x / AQ_CU_WARP] = *max;
        shared_at[threadIdx.x / AQ_CU_WARP] = *at;
    }
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x / AQ_CU_WARP; i++)
        take_larger(max, at, shared[i], shared_at[i]);
}

__global__ void __launch_bounds__(LOGITS_THREADS) stat_row(struct aq_logits l)
{
    AQ_SHARED(float, shared);
    const float *x = l.logits + blockIdx.x * l.stride;
    float max = -INFINITY;
    uint32_t at = UINT32_MAX, bad = 0;
    float v[FLIGHT];
    for (uint32_t first = threadIdx.x; first < l.vocab; first += FLIGHT * blockDim.x) {
        load_flight(v, &l, x, first);
#pragma unroll
        for (uint32_t n = 0; n < FLIGHT; n++) {
            uint32_t i = first + n * blockDim.x;
            bool finite = isfinite(v[n]);
            bad += i < l.vocab && !finite;
            if (finite && v[n] > max) {
                max = v[n];
                at = i;
            }
        }
    }
    block_largest(&max, &at, shared);
    float sum = 0;
    for (uint32_t first = threadIdx.x; first < l.vocab; first += FLIGHT * blockDim.x) {
        load_flight(v, &l, x, first);
#pragma unroll
        for (uint32_t n = 0; n < FLIGHT; n++)
            sum += isfinite(v[n]) ? expf(v[n] - max) : 0.0f;
    }
    sum = aq_cu_block_sum(sum, shared);
    /* Counts are small enough to be exact as f32 per thread and as their sum: below 2^24. */
    bad = static_cast<uint32_t>(aq_cu_block_sum(static_cast<float>(bad), shared));
    if (threadIdx.x == 0) {
        struct aq_logits_stat s = {max, at == UINT32_MAX ? 0 : at, -INFINITY, bad};
        if (bad < l.vocab)
            s.log_sum_exp = max + logf(sum);
        l.stat[blockIdx.x] = s;
    }
}

int aq_cuda_logits_stat(const struct aq_cuda_exec *ex, const struct aq_logits *l)
{
    assert(l->vocab < 1u << 24);
    if (!l->rows)
        return 0;
    return AQ_LAUNCH(ex, stat_row, l->rows, aq_cu_row_threads(l->vocab, LOGITS_THREADS),
                     2 * AQ_CU_WARP * sizeof(float), *l);
}
