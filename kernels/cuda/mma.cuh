/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/mma.cuh - tensor cores and copies that run on their own, by PTX; or by what
 * tests/cuda_emu has for them.  Layouts of fragments: PTX ISA, "Matrix Fragments for mma.m16n8k16"
 * and "mma.m16n8k8".  Compute capability 7.5 has neither the longer shape, nor bf16, nor such
 * copies. */
#ifndef AQ_KERNELS_CUDA_MMA_CUH
#define AQ_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#endif

/* Whether tensor cores take this dtype. */
static inline bool aq_cu_has_mma(const struct aq_cuda_exec *ex, enum aq_dtype t)
{
    return t == AQ_F16 ? ex->sm >= 75 : t == AQ_BF16 && ex->sm >= 80;
}

/* ---- products ---- */

/* c += a b: a [16][16] and b [16][8] of dtype T, c [16][8] in f32, of a whole warp.  With
 * g = lane / 4 and t = 2 (lane % 4), a lane has, two by two,
 *   a  (row g, k t), (g + 8, t), (g, t + 8), (g + 8, t + 8)      b  (k t, column g), (t + 8, g)
 *   c  (row g, columns t, t + 1), (g + 8, t, t + 1) */
template <enum aq_dtype T>
AQ_DEVICE_FN void aq_cu_mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#if !defined(__CUDACC__)
    if (aq_emu_sm >= 80) {
        aq_emu_mma(c, a, b, 16, T == AQ_BF16, __LINE__);
    } else {
        aq_emu_mma(c, a, b, 8, T == AQ_BF16, __LINE__);
        aq_emu_mma(c, a + 2, b + 1, 8, T == AQ_BF16, __LINE__);
    }
#elif __CUDA_ARCH__ >= 800
    if constexpr (T == AQ_F16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    if constexpr (T == AQ_F16) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(b[0]));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[2]), "r"(a[3]), "r"(b[1]));
    } else {
        __trap(); /* aq_cu_has_mma() says no */
    }
#endif
}

/* Four 8 x 8 matrices of 16-bit elements out of shared memory: lane 8 j + i gives the address of
 * row i of matrix j, 16 bytes; it gets elements (row lane / 4, columns 2 (lane % 4) and the next)
 * of each, or of each transposed. */
AQ_DEVICE_FN void aq_cu_ldmatrix(uint32_t r[4], const void *row)
{
#if defined(__CUDACC__)
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#else
    aq_emu_ldmatrix(r, row, false, __LINE__);
#endif
}

AQ_DEVICE_FN void aq_cu_ldmatrix_transposed(uint32_t r[4], const void *row)
{
#if defined(__CUDACC__)
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#else
    aq_emu_ldmatrix(r, row, true, __LINE__);
#endif
}

/* Two numbers as T, rounded to nearest even; the first one in the low half. */
template <enum aq_dtype T> AQ_DEVICE_FN uint32_t aq_cu_pair(float low, float high)
{
#if defined(__CUDACC__)
    if constexpr (T == AQ_F16) {
        __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    } else {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
#else
    uint32_t low_bits = T == AQ_F16 ? aq_cu_to_f16(low) : aq_cu_to_bf16(low);
    uint32_t high_bits = T == AQ_F16 ? aq_cu_to_f16(high) : aq_cu_to_bf16(high);
    return low_bits | high_bits << 16;
#endif
}

/* ---- codes ---- */

/* A code of 8 bits in the low byte of an f16 that has this in its high one is 1024 + code. */
#define AQ_CU_CODE 0x64646464u

/* Two such codes times scale plus minimum, rounded to f16 once; a value beyond f16 becomes its
 * largest.  None is below the minimum, so that what is infinite without being a NaN is positive. */
AQ_DEVICE_FN uint32_t aq_cu_pair_of_codes(uint32_t codes, uint32_t scales, uint32_t minima)
{
#if !defined(__CUDACC__)
    return aq_emu_pair_of_codes(codes & 0x00ff00ffu, scales, minima);
#else
    uint32_t v;
    asm("{\n\t.reg .b32 t;\n\tsub.rn.f16x2 t, %1, %4;\n\tfma.rn.f16x2 %0, t, %2, %3;\n\t}"
        : "=r"(v)
        : "r"(codes), "r"(scales), "r"(minima), "r"(0x64006400u));
#if __CUDA_ARCH__ >= 800
    asm("min.NaN.f16x2 %0, %0, %1;" : "+r"(v) : "r"(0x7bff7bffu));
#else
    uint32_t infinite; /* 1.0 where it is, of which one bit is taken from it */
    asm("set.eq.f16x2.f16x2 %0, %1, %2;" : "=r"(infinite) : "r"(v), "r"(0x7c007c00u));
    v -= infinite >> 10 & 0x00010001u;
#endif
    return v;
#endif
}

/* The codes of four bytes, one each: of int4 the low ones or the high ones. */
template <enum aq_dtype T> AQ_DEVICE_FN uint32_t aq_cu_codes_of(uint32_t bytes, bool high)
{
    return T == AQ_Q8 ? bytes : bytes >> (high ? 4 : 0) & 0x0f0f0f0fu;
}

/* Of such four, those at byte `at` and the next, as aq_cu_pair_of_codes() takes them. */
AQ_DEVICE_FN uint32_t aq_cu_two_codes(uint32_t bytes, uint32_t at)
{
    return __byte_perm(bytes, AQ_CU_CODE, 0x4040 + at + (at + 1) * 0x100);
}

/* ---- exponentials ---- */

/* 2^x, off by 2 steps at most; results below the normal range are 0. */
AQ_DEVICE_FN float aq_cu_exp2(float x)
{
#if defined(__CUDACC__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* ---- copies into shared memory ---- */

/* Copies into shared memory need no registers and no waiting thread (cp.async). */
AQ_DEVICE_FN bool aq_cu_copies_alone()
{
#if !defined(__CUDACC__)
    return aq_emu_sm >= 80;
#elif __CUDA_ARCH__ >= 800
    return true;
#else
    return false;
#endif
}

/* 16 bytes, both sides aligned to 16; zeros where not valid (`from` is then not read).  A copy is
 * there, for the thread that began it, when its group has been waited for. */
AQ_DEVICE_FN void aq_cu_copy16(void *to, const void *from, bool valid)
{
#if !defined(__CUDACC__)
    if (aq_emu_sm >= 80)
        aq_emu_copy_async(to, from, valid ? 16 : 0, __LINE__);
    else
        *static_cast<uint4 *>(to) = valid ? *static_cast<const uint4 *>(from) : uint4{};
#elif __CUDA_ARCH__ >= 800
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
#else
    *static_cast<uint4 *>(to) = valid ? *static_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
#endif
}

/* The copies since the last one of these are a group. */
AQ_DEVICE_FN void aq_cu_copy_commit()
{
#if !defined(__CUDACC__)
    aq_emu_copy_commit();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits for all groups of this thread but the latest `left`. */
template <uint32_t left> AQ_DEVICE_FN void aq_cu_copy_wait()
{
#if !defined(__CUDACC__)
    aq_emu_copy_wait(left);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

#endif
