/* SPDX-License-Identifier: Apache-2.0
 * Kernels with a planted fault, for tests/cuda_emu/test_watch.c alone: see planted.h. */
#include "tests/cuda_emu/planted.h"

#include "kernels/cuda/mma.cuh"

struct plant {
    const float *from;
    float *to;
    bool fault;
};

__global__ void barrier(struct plant p)
{
    AQ_SHARED(float, s);
    uint32_t t = threadIdx.x;
    s[t] = p.from[t];
    if (!p.fault)
        __syncthreads();
    float v = s[(t + AQ_CU_WARP) % PLANTED_THREADS];
    p.to[t] = v;
}

/* Thread 0 overwrites what all have read; whoever comes late reads the same. */
__global__ void same(struct plant p)
{
    AQ_SHARED(float, s);
    uint32_t t = threadIdx.x;
    if (t == 0)
        s[0] = p.from[0];
    __syncthreads();
    p.to[t] = s[0];
    if (!p.fault)
        __syncthreads();
    if (t == 0)
        s[0] = p.from[0];
}

__global__ void syncwarp(struct plant p)
{
    AQ_SHARED(float, s);
    uint32_t t = threadIdx.x;
    s[t] = p.from[t];
    if (!p.fault)
        __syncwarp();
    p.to[t] = s[t ^ 1];
}

__global__ void blocks_add(struct plant p)
{
    if (threadIdx.x)
        return;
    if (p.fault)
        p.to[0] += 1;
    else
        atomicAdd(&p.to[0], 1.0f);
}

__global__ void mixed(struct plant p)
{
    if (threadIdx.x)
        return;
    if (p.fault && blockIdx.x == 1)
        p.to[0] = 1;
    else
        atomicAdd(&p.to[0], 1.0f);
}

__global__ void copy(struct plant p)
{
    AQ_SHARED(float, s);
    uint32_t t = threadIdx.x;
    if (t < PLANTED_THREADS / 4)
        aq_cu_copy16(&s[4 * t], &p.from[4 * t], true);
    aq_cu_copy_commit();
    aq_cu_copy_wait<0>();
    if (!p.fault)
        __syncthreads();
    p.to[t] = s[PLANTED_THREADS - 1 - t];
}

__global__ void past(struct plant p)
{
    uint32_t t = threadIdx.x;
    p.to[t] = p.from[p.fault ? t + 1 : t];
}

__global__ void before(struct plant p)
{
    uint32_t t = threadIdx.x;
    float *to = p.fault ? p.to - 1 : p.to;
    to[t] = p.from[t];
}

static float of_the_host = 1;

__global__ void host(struct plant p)
{
    uint32_t t = threadIdx.x;
    const float *from = p.fault ? &of_the_host : p.from;
    p.to[t] = *from;
}

__global__ void odd(struct plant p)
{
    uint32_t t = threadIdx.x;
    const uint64_t *pairs = reinterpret_cast<const uint64_t *>(p.from + (p.fault ? 1 : 0));
    p.to[t] = static_cast<float>(pairs[t % 8]);
}

int planted_run(const struct aq_cuda_exec *ex, enum planted which, bool fault, const float *from,
                float *to)
{
    static void (*const kernels[PLANTED_COUNT])(struct plant) = {
        barrier, same, syncwarp, blocks_add, mixed, copy, past, before, host, odd};
    bool many = which == PLANTED_BLOCKS_ADD || which == PLANTED_MIXED;
    struct plant p = {from, to, fault};
    return AQ_LAUNCH(ex, kernels[which], many ? PLANTED_BLOCKS : 1, PLANTED_THREADS,
                     PLANTED_THREADS * sizeof(float), p);
}
