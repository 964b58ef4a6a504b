/* SPDX-License-Identifier: Apache-2.0
 * kernels/exp.h - exp() of one number, step by step as vec_exp() of kernels/cpu/vec.h has it and
 * with its bits: for the reference, and for GPUs. */
#ifndef AQ_KERNELS_EXP_H
#define AQ_KERNELS_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define AQ_EXP_FN __device__ __forceinline__ static
#else
#define AQ_EXP_FN static inline
#endif

/* As vec_exp(): for x <= 0, and up to 80. */
AQ_EXP_FN float aq_exp(float x)
{
    if (!(x >= -0x1.5d589ep+6f))
        return x < 0 ? 0 : x; /* NaN stays NaN */
    float n = rintf(x * 0x1.715476p+0f);
    float r = fmaf(-n, 0x1.62e43p-1f, x);
    r = fmaf(-n, -0x1.05c61p-29f, r);
    float p = 0x1.6d117cp-10f;
    p = fmaf(p, r, 0x1.120be2p-7f);
    p = fmaf(p, r, 0x1.555518p-5f);
    p = fmaf(p, r, 0x1.5554dcp-3f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t bits;
    memcpy(&bits, &p, sizeof(bits));
    bits += (uint32_t)(int32_t)n << 23;
    memcpy(&p, &bits, sizeof(p));
    return p;
}

#endif
