/* SPDX-License-Identifier: Apache-2.0
 * Norms on AVX-512 F, BW, DQ and VL. */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/norm_simd.h"

void aq_norm_avx512(struct aq_exec *ex, const struct aq_norm *n)
{
    norm(ex, n);
}
