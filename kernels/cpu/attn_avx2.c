/* SPDX-License-Identifier: Apache-2.0
 * Attention on AVX2, FMA and F16C. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/slots.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/attn_slots_simd.h"

#include "kernels/cpu/attn_decode_simd.h"
#include "kernels/cpu/attn_prefill_simd.h"

#include "kernels/cpu/attn_stats_simd.h"

void aq_attn_decode_avx2(struct aq_exec *ex, const struct aq_attn *a)
{
    attn_decode(ex, a);
}

void aq_attn_prefill_avx2(struct aq_exec *ex, const struct aq_attn *a)
{
    attn_prefill(ex, a);
}

void aq_attn_stats_avx2(struct aq_exec *ex, const struct aq_attn *a,
                        const struct aq_attn_pairs *pairs)
{
    attn_stats(ex, a, pairs);
}

void aq_kv_victim_avx2(struct aq_exec *ex, const struct aq_attn *a)
{
    kv_victim(ex, a);
}
