/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/device.cuh - what every .cu file shares: the launch macro, dtypes, reductions.
 * Compiled by nvcc, or as C++ behind an emulation of CUDA that is included first
 * (tests/cuda_emu). */
#ifndef AQ_KERNELS_CUDA_DEVICE_CUH
#define AQ_KERNELS_CUDA_DEVICE_CUH

#include "base/half.h"
#include "kernels/cuda/launch.h"

#include <assert.h>
#include <errno.h>

enum {
    AQ_CU_WARP = 32,
    AQ_CU_SHARED_MAX = 48 * 1024, /* without asking for more */
    AQ_CU_GRID_YZ_MAX = 65535,
};
#define AQ_CU_ALL 0xffffffffu

#if defined(__CUDACC__)

#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* Puts a kernel on the stream; 0 or a cudaError_t. */
#define AQ_LAUNCH(ex, kernel, grid, block, shared_bytes, ...)                                      \
    (kernel<<<(grid), (block), (shared_bytes), static_cast<cudaStream_t>((ex)->stream)>>>(         \
         __VA_ARGS__),                                                                             \
     static_cast<int>(cudaGetLastError()))
/* Blocks of the kernel may have so much shared memory; 0 or a cudaError_t. */
template <typename K>
static inline int aq_cu_allow_shared(const struct aq_cuda_exec *, K kernel, size_t bytes)
{
    if (bytes <= AQ_CU_SHARED_MAX)
        return 0;
    return static_cast<int>(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}
/* The block's dynamic shared memory, aligned to 16. */
#define AQ_SHARED(type, name)                                                                      \
    extern __shared__ uint4 aq_shared_bytes[];                                                     \
    type *name = reinterpret_cast<type *>(aq_shared_bytes)

#else

#define AQ_LAUNCH(ex, kernel, grid, block, shared_bytes, ...)                                      \
    aq_emu_run((ex)->stream, (ex)->sm, (grid), (block), (shared_bytes), kernel, __VA_ARGS__)
template <typename K>
static inline int aq_cu_allow_shared(const struct aq_cuda_exec *ex, K kernel, size_t bytes)
{
    return bytes <= AQ_CU_SHARED_MAX
               ? 0
               : aq_emu_allow_shared(ex->sm, reinterpret_cast<const void *>(kernel), bytes);
}
#define AQ_SHARED(type, name) type *name = static_cast<type *>(aq_emu_shared())

#endif

#define AQ_DEVICE_FN __device__ __forceinline__ static

/* An address of global memory: what is loaded by it might else lie in shared memory, and would wait
 * for what is stored there. */
template <typename T> AQ_DEVICE_FN T *aq_cu_global(T *at)
{
#ifdef __CUDACC__
    __builtin_assume(__isGlobal(at));
#endif
    return at;
}

/* ---- 16-bit floats: the bits of base/half.h ---- */

AQ_DEVICE_FN float aq_cu_from_f16(uint16_t h)
{
#if defined(__CUDACC__)
    return __half2float(__ushort_as_half(h));
#else
    return aq_f32_from_f16(h);
#endif
}

AQ_DEVICE_FN float aq_cu_from_bf16(uint16_t h)
{
    return __uint_as_float(static_cast<uint32_t>(h) << 16);
}

AQ_DEVICE_FN uint16_t aq_cu_to_f16(float f)
{
#if defined(__CUDACC__)
    uint32_t bits = __float_as_uint(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) /* a NaN keeps what it says */
        return static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
    return __half_as_ushort(__float2half_rn(f));
#else
    return aq_f16_from_f32(f);
#endif
}

AQ_DEVICE_FN uint16_t aq_cu_to_bf16(float f)
{
    uint32_t bits = __float_as_uint(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return static_cast<uint16_t>(bits >> 16 | 0x0040u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* ---- elements of a dtype that is known at run time ---- */

AQ_DEVICE_FN float aq_cu_load(const void *data, enum aq_dtype t, size_t index)
{
    if (t == AQ_F32)
        return static_cast<const float *>(data)[index];
    uint16_t bits = static_cast<const uint16_t *>(data)[index];
    return t == AQ_F16 ? aq_cu_from_f16(bits) : aq_cu_from_bf16(bits);
}

AQ_DEVICE_FN void aq_cu_store(void *data, enum aq_dtype t, size_t index, float v)
{
    if (t == AQ_F32)
        static_cast<float *>(data)[index] = v;
    else
        static_cast<uint16_t *>(data)[index] = t == AQ_F16 ? aq_cu_to_f16(v) : aq_cu_to_bf16(v);
}

/* Eight floats from where they are aligned to 16 bytes. */
AQ_DEVICE_FN void aq_cu_floats8(float x[8], const float *from)
{
    const uint4 *units = reinterpret_cast<const uint4 *>(from);
    for (uint32_t i = 0; i < 2; i++) {
        uint4 u = units[i];
        x[4 * i] = __uint_as_float(u.x);
        x[4 * i + 1] = __uint_as_float(u.y);
        x[4 * i + 2] = __uint_as_float(u.z);
        x[4 * i + 3] = __uint_as_float(u.w);
    }
}

/* ---- reductions; the order of the sums depends on the number of threads only ---- */

AQ_DEVICE_FN uint32_t aq_cu_lane()
{
    return threadIdx.x % AQ_CU_WARP;
}

AQ_DEVICE_FN float aq_cu_warp_sum(float v)
{
    for (uint32_t step = AQ_CU_WARP / 2; step; step /= 2)
        v += __shfl_xor_sync(AQ_CU_ALL, v, step);
    return v;
}

AQ_DEVICE_FN float aq_cu_warp_max(float v)
{
    for (uint32_t step = AQ_CU_WARP / 2; step; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(AQ_CU_ALL, v, step));
    return v;
}

/* Of all threads; to[] is shared memory for a number per warp. */
AQ_DEVICE_FN float aq_cu_block_sum(float v, float *to)
{
    v = aq_cu_warp_sum(v);
    __syncthreads(); /* to[] may still be read from before */
    if (aq_cu_lane() == 0)
        to[threadIdx.x / AQ_CU_WARP] = v;
    __syncthreads();
    v = 0;
    for (uint32_t i = 0; i < blockDim.x / AQ_CU_WARP; i++)
        v += to[i];
    return v;
}

AQ_DEVICE_FN float aq_cu_block_max(float v, float *to)
{
    v = aq_cu_warp_max(v);
    __syncthreads();
    if (aq_cu_lane() == 0)
        to[threadIdx.x / AQ_CU_WARP] = v;
    __syncthreads();
    v = -INFINITY;
    for (uint32_t i = 0; i < blockDim.x / AQ_CU_WARP; i++)
        v = fmaxf(v, to[i]);
    return v;
}

/* ---- quantised groups: kernels/cpu/quant.h in f32 ---- */

/* code * scale + minimum */
AQ_DEVICE_FN float aq_cu_code_value(uint32_t code, float scale, float minimum)
{
    return fmaf(static_cast<float>(code), scale, minimum);
}

AQ_DEVICE_FN uint32_t aq_cu_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

AQ_DEVICE_FN bool aq_cu_is_quantised(enum aq_dtype t)
{
    return t == AQ_Q8 || t == AQ_Q4;
}

/* Rounded up, of two numbers that are known to the host at the launch. */
static inline uint32_t aq_cu_div_up(uint64_t a, uint64_t b)
{
    return static_cast<uint32_t>((a + b - 1) / b);
}

/* Threads for a row of so many elements: whole warps, 32 to max. */
static inline uint32_t aq_cu_row_threads(uint32_t elements, uint32_t max)
{
    uint32_t threads = AQ_CU_WARP;
    while (threads < elements && threads < max)
        threads *= 2;
    return threads;
}

#endif
