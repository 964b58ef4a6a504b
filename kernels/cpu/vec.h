/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/vec.h - one vocabulary of f32 vectors over AVX2 (8 lanes) and AVX-512 (16 lanes), so
 * that a kernel is written once (*_simd.h) and compiled for each (simd.c.in).  Everything is
 * inlined and private to the including file, which must be compiled for one of the two; kernels are
 * functions of the name VEC_VERSION(norm).
 *
 * Orders that results rest on are fixed per width: vec_sum() and vec_sum_rows() add the same lanes
 * in the same order for every vector. */
#ifndef AQ_KERNELS_CPU_VEC_H
#define AQ_KERNELS_CPU_VEC_H

#include "base/types.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define VEC_FN static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#include "kernels/cpu/vec_avx512.h"
#else
#include "kernels/cpu/vec_avx2.h"
#endif

/* ---- elements of any computed dtype, widened exactly or rounded to nearest even.  dtype is a
 * constant where speed matters: the switch then folds away. ---- */

VEC_FN vec vec_load_as(const void *data, enum aq_dtype dtype, size_t index)
{
    switch (dtype) {
    case AQ_F32: return vec_load((const float *)data + index);
    case AQ_F16: return vec_load_f16((const uint16_t *)data + index);
    case AQ_BF16: return vec_load_bf16((const uint16_t *)data + index);
    default: assert(!"a dtype that is computed with"); return vec_zero();
    }
}

/* The first n (1..VEC_LANES) elements; the other lanes are 0, and nothing past n is read. */
VEC_FN vec vec_load_as_n(const void *data, enum aq_dtype dtype, size_t index, uint32_t n)
{
    switch (dtype) {
    case AQ_F32: return vec_load_n((const float *)data + index, n);
    case AQ_F16: return vec_load_f16_n((const uint16_t *)data + index, n);
    case AQ_BF16: return vec_load_bf16_n((const uint16_t *)data + index, n);
    default: assert(!"a dtype that is computed with"); return vec_zero();
    }
}

VEC_FN void vec_store_as(void *data, enum aq_dtype dtype, size_t index, vec v)
{
    switch (dtype) {
    case AQ_F32: vec_store((float *)data + index, v); break;
    case AQ_F16: vec_store_f16((uint16_t *)data + index, v); break;
    case AQ_BF16: vec_store_bf16((uint16_t *)data + index, v); break;
    default: assert(!"a dtype that is computed with");
    }
}

VEC_FN void vec_store_as_n(void *data, enum aq_dtype dtype, size_t index, vec v, uint32_t n)
{
    uint16_t half[VEC_LANES];
    switch (dtype) {
    case AQ_F32: vec_store_n((float *)data + index, v, n); return;
    case AQ_F16: vec_store_f16(half, v); break;
    case AQ_BF16: vec_store_bf16(half, v); break;
    default: assert(!"a dtype that is computed with"); return;
    }
    memcpy((uint16_t *)data + index, half, n * sizeof(*half));
}

/* ---- across lanes: lane i of the result is of row[i] ---- */

VEC_FN vec vec_sum_rows(const vec row[VEC_LANES])
{
    return vec_join_rows(row, vec_add);
}
VEC_FN vec vec_max_rows(const vec row[VEC_LANES])
{
    return vec_join_rows(row, vec_max);
}

/* a in a register: a compiler that makes a load part of each product loads as often as it
 * multiplies, and loads are what a core runs out of. */
VEC_FN vec vec_held(vec a)
{
    __asm__("" : "+v"(a));
    return a;
}

/* ---- exp ---- */

/* exp(x) for x <= 0 (and for x up to 80).  Error below 1 ulp, measured over every float in
 * [-87.33654, 0]; below that, where the result would be subnormal, it is 0.  exp(-inf) = 0,
 * exp(0) = 1 exactly, NaN stays NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2 in two exact steps (Cody and Waite, "Software Manual for the
 * Elementary Functions", 1980); exp(r) = 1 + r + r^2 q(r), q interpolating at Chebyshev nodes,
 * relative error 1.1e-8; then n is added to the exponent. */
VEC_FN vec vec_exp(vec x)
{
    vec_mask tiny = vec_less(x, vec_set(-0x1.5d589ep+6f));
    vec n = vec_round(vec_mul(x, vec_set(0x1.715476p+0f)));
    vec r = vec_fnma(n, vec_set(0x1.62e43p-1f), x);
    r = vec_fnma(n, vec_set(-0x1.05c61p-29f), r);
    vec p = vec_set(0x1.6d117cp-10f);
    p = vec_fma(p, r, vec_set(0x1.120be2p-7f));
    p = vec_fma(p, r, vec_set(0x1.555518p-5f));
    p = vec_fma(p, r, vec_set(0x1.5554dcp-3f));
    p = vec_fma(p, r, vec_set(0.5f));
    p = vec_fma(p, r, vec_set(1.0f));
    p = vec_fma(p, r, vec_set(1.0f));
    return vec_zero_where(tiny, vec_scale_exponent(p, n));
}

/* Ranges of bytes asked for ahead of their use, into the second-level cache. */
VEC_FN void vec_prefetch(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

#endif
