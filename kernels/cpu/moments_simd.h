/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/moments_simd.h - sums over a row for norms, on vec.h: in SUMS vectors, vector i of
 * the row into vector i % SUMS, so that their order depends on the row's length only. */
#ifndef AQ_KERNELS_CPU_MOMENTS_SIMD_H
#define AQ_KERNELS_CPU_MOMENTS_SIMD_H

#include "kernels/cpu/vec.h"

enum { SUMS = 4 };

/* Sum over d of (x[d] - mean)^power, power 1 or 2. */
VEC_FN float sum_powers(const float *x, uint32_t dim, float mean, int power)
{
    vec sum[SUMS], shift = vec_set(mean);
    for (int i = 0; i < SUMS; i++)
        sum[i] = vec_zero();
    uint32_t d = 0;
    for (; d + SUMS * VEC_LANES <= dim; d += SUMS * VEC_LANES) {
        for (int i = 0; i < SUMS; i++) {
            vec v = vec_sub(vec_load(x + d + i * VEC_LANES), shift);
            sum[i] = power == 2 ? vec_fma(v, v, sum[i]) : vec_add(sum[i], v);
        }
    }
    for (int i = 0; d < dim; d += VEC_LANES, i++) {
        uint32_t n = (uint32_t)aq_min_u64(VEC_LANES, dim - d);
        vec v = vec_select(vec_first(n), vec_sub(vec_load_n(x + d, n), shift), vec_zero());
        sum[i] = power == 2 ? vec_fma(v, v, sum[i]) : vec_add(sum[i], v);
    }
    return vec_sum(vec_add(vec_add(sum[0], sum[1]), vec_add(sum[2], sum[3])));
}

#endif
