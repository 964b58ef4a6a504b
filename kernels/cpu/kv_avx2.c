/* SPDX-License-Identifier: Apache-2.0
 * KV append on AVX2, FMA and F16C. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/kv_simd.h"

void aq_kv_append_avx2(struct aq_exec *ex, const struct aq_attn *a, const float *k_new,
                       const float *v_new, size_t stride)
{
    kv_append(ex, a, k_new, v_new, stride);
}
