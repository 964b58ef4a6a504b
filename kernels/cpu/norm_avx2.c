/* SPDX-License-Identifier: Apache-2.0
 * Norms on AVX2, FMA and F16C. */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/norm_simd.h"

void aq_norm_avx2(struct aq_exec *ex, const struct aq_norm *n)
{
    norm(ex, n);
}
