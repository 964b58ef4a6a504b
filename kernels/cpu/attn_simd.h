/* SPDX-License-Identifier: Apache-2.0
 * Attention, on vec.h: what its files share stands in the ones before. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/slots.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/attn_lanes_simd.h"
#include "kernels/cpu/attn_slots_simd.h"

#include "kernels/cpu/attn_decode_simd.h"
#include "kernels/cpu/attn_prefill_simd.h"

#include "kernels/cpu/attn_stats_f32_simd.h"
