/* SPDX-License-Identifier: Apache-2.0
 * tests/cuda_emu/cuda_emu.cuh - what our .cu files use of CUDA, on the CPU: included ahead of each
 * of them when it is compiled as C++.  Without a stream a launch runs at once; the runtime that has
 * streams and memory of its own is emu_runtime.cc.
 *
 * Blocks run one after the other; the threads of a block are fibers that give way at barriers and
 * at warp operations only.  A warp runs ahead of the others, to its next barrier; in which order
 * warps, lanes and blocks run is drawn (aq_emu_seed), so that a result that depends on it, a race,
 * is wrong or not the same twice.  Stricter than
 * a device: every thread of a block must come to each barrier, in the same line of the source, warp
 * operations take whole warps, a block has at most 48 KiB of shared memory if its kernel was not
 * allowed more, and what it finds there is NaN.  Anything else ends the program with a message. */
#ifndef AQ_TESTS_CUDA_EMU_CUDA_EMU_CUH
#define AQ_TESTS_CUDA_EMU_CUDA_EMU_CUH

#include "tests/cuda_emu/emu_stream.cuh"
#include "tests/cuda_emu/watch.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __device__
#define __host__
#define __global__      static
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __trap() abort()

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

/* ---- runs of blocks ---- */

/* The order of threads and blocks of the launches that follow: 0 is ascending. */
extern "C" void aq_emu_seed(uint64_t seed);
/* Launches since the program began. */
extern "C" uint64_t aq_emu_launches(void);
/* The compute capability times ten that the launch under way was told of: code that nvcc chooses by
 * __CUDA_ARCH__ is chosen by it. */
extern unsigned aq_emu_sm;

/* Blocks of a kernel may have so much shared memory: 0, or an error where those of a device do not
 * (CUDA C++ programming guide, technical specifications per compute capability). */
int aq_emu_allow_shared(unsigned sm, const void *kernel, size_t bytes);
size_t aq_emu_allowed_shared(const void *kernel);

/* What a launch takes: blocks, their threads, and shared memory of at most shared_max. */
struct aq_emu_grid {
    dim3 grid, block;
    size_t shared_bytes, shared_max;
};
/* Runs fn(arg) as every thread of the grid; returns 0 (cudaSuccess). */
int aq_emu_launch(const struct aq_emu_grid *g, void (*fn)(void *), void *arg, size_t arg_bytes);

/* Runs a kernel in its turn on a stream, with its arguments as they are now; at once where the
 * stream is NULL. */
template <typename K, typename... A>
static inline int aq_emu_run(void *stream, unsigned sm, dim3 grid, dim3 block, size_t shared_bytes,
                             K kernel, A... args)
{
    const void *which = reinterpret_cast<const void *>(kernel);
    struct aq_emu_grid g = {grid, block, shared_bytes, aq_emu_allowed_shared(which)};
    return aq_emu_enqueue_kernel(stream, which, [=] {
        auto thread = [=] { kernel(args...); };
        aq_emu_sm = sm;
        aq_emu_launch(
            &g, [](void *arg) { (*static_cast<decltype(thread) *>(arg))(); }, &thread,
            sizeof(thread));
    });
}

/* ---- what a thread sees ---- */

struct aq_emu_place {
    uint3 thread, block;
    dim3 grid_dim, block_dim;
    unsigned lane;
};
extern struct aq_emu_place aq_emu_here;
void *aq_emu_shared(void);

#define threadIdx (aq_emu_here.thread)
#define blockIdx  (aq_emu_here.block)
#define blockDim  (aq_emu_here.block_dim)
#define gridDim   (aq_emu_here.grid_dim)

/* Waits for all threads of the block; returns how many brought something other than 0. */
int aq_emu_barrier(int value, int line);
/* Waits for the warp; what each lane brought (at most 64 bytes, lane by lane) is there until the
 * warp's next operation but one.  `last`, if given, is called once with all of it. */
void *aq_emu_gather(const void *value, size_t bytes, int line, void (*last)(void *all));

#define __syncthreads()              ((void)aq_emu_barrier(0, __LINE__))
#define __syncthreads_or(value)      (aq_emu_barrier((value) != 0, __LINE__) != 0)
#define __syncthreads_count(value)   (aq_emu_barrier((value) != 0, __LINE__))
#define __syncwarp()                 ((void)aq_emu_gather(NULL, 0, __LINE__, NULL))
#define __shfl_sync(mask, v, from)   aq_emu_shuffle(mask, v, (from)&31u, __LINE__)
#define __shfl_xor_sync(mask, v, x)  aq_emu_shuffle(mask, v, aq_emu_here.lane ^ (x), __LINE__)
#define __shfl_up_sync(mask, v, n)   aq_emu_shuffle_by(mask, v, -(int)(n), __LINE__)
#define __shfl_down_sync(mask, v, n) aq_emu_shuffle_by(mask, v, (int)(n), __LINE__)
#define __ballot_sync(mask, v)       aq_emu_ballot(mask, (v) != 0, __LINE__)
#define __any_sync(mask, v)          (aq_emu_ballot(mask, (v) != 0, __LINE__) != 0)
#define __all_sync(mask, v)          (aq_emu_ballot(mask, (v) != 0, __LINE__) == 0xffffffffu)

void aq_emu_check_mask(unsigned mask, int line);

template <typename T> static inline T aq_emu_shuffle(unsigned mask, T v, unsigned from, int line)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
    aq_emu_check_mask(mask, line);
    const T *all = static_cast<const T *>(aq_emu_gather(&v, sizeof(v), line, NULL));
    return all[from & 31];
}

template <typename T> static inline T aq_emu_shuffle_by(unsigned mask, T v, int by, int line)
{
    int from = (int)aq_emu_here.lane + by;
    return aq_emu_shuffle(mask, v, from < 0 || from > 31 ? aq_emu_here.lane : (unsigned)from, line);
}

static inline unsigned aq_emu_ballot(unsigned mask, unsigned v, int line)
{
    aq_emu_check_mask(mask, line);
    const unsigned *all = static_cast<const unsigned *>(aq_emu_gather(&v, sizeof(v), line, NULL));
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; i++)
        bits |= (all[i] & 1) << i;
    return bits;
}

/* What the compiler tells watch.cc nothing of. */
#if defined(AQ_EMU_WATCHED)
#define AQ_EMU_UNSEEN __attribute__((no_sanitize_thread, noinline)) static
#else
#define AQ_EMU_UNSEEN static inline
#endif

/* Threads give way at barriers only: nothing comes between a read and a write. */
template <typename T> AQ_EMU_UNSEEN T atomicAdd(T *to, T v)
{
    AQ_WATCH(aq_watch_access(to, sizeof(T), AQ_WATCH_ATOMIC, __builtin_return_address(0)));
    T old = *to;
    *to = old + v;
    return old;
}

template <typename T> AQ_EMU_UNSEEN T atomicMax(T *to, T v)
{
    AQ_WATCH(aq_watch_access(to, sizeof(T), AQ_WATCH_ATOMIC, __builtin_return_address(0)));
    T old = *to;
    *to = old > v ? old : v;
    return old;
}

template <typename T> AQ_EMU_UNSEEN T atomicMin(T *to, T v)
{
    AQ_WATCH(aq_watch_access(to, sizeof(T), AQ_WATCH_ATOMIC, __builtin_return_address(0)));
    T old = *to;
    *to = old < v ? old : v;
    return old;
}

static inline unsigned __popc(unsigned v)
{
    return (unsigned)__builtin_popcount(v);
}

static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which)
{
    unsigned bytes = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned from = which >> 4 * i & 7;
        bytes |= ((from < 4 ? low : high) >> from % 4 * 8 & 255) << 8 * i;
    }
    return bytes;
}

static inline unsigned __float_as_uint(float f)
{
    unsigned bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline float __uint_as_float(unsigned bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* ---- tensor cores, by scalars ---- */

/* c += a b of a warp: a [16][k] and b [k][8] in f16 or bf16, c [16][8] in f32, spread over the
 * lanes as mma.m16n8k16 or, where k is 8, mma.m16n8k8 have them; k ascends.  A lane has k / 4 words
 * of a and k / 8 of b. */
void aq_emu_mma(float c[4], const uint32_t *a, const uint32_t *b, unsigned k, bool bf16, int line);
/* Four 8 x 8 matrices of 16 bits; lane i of 8 j .. 8 j + 7 has the address of a row of matrix j. */
void aq_emu_ldmatrix(uint32_t r[4], const void *row, bool transposed, int line);

/* ---- two f16 in a register ---- */

/* Two codes times scale plus minimum as fma.rn.f16x2 rounds them, once, and min.NaN.f16x2 bounds
 * them. */
uint32_t aq_emu_pair_of_codes(uint32_t codes, uint32_t scales, uint32_t minima);

/* ---- copies that run on their own ---- */

/* cp.async of 16 bytes of shared memory, of which the first `bytes` come from `from` and the others
 * are 0; nothing moves until the group it is committed to is waited for: what reads or overwrites
 * too early shows. */
void aq_emu_copy_async(void *to, const void *from, unsigned bytes, int line);
void aq_emu_copy_commit(void);
void aq_emu_copy_wait(unsigned left);

#endif
