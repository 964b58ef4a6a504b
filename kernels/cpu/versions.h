/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/versions.h - every version of every CPU kernel, declared from the kernel's own
 * function type so that versions cannot drift apart.  Included by table_cpu.c and by the files that
 * define them; nobody else names a version. */
#ifndef AQ_KERNELS_CPU_VERSIONS_H
#define AQ_KERNELS_CPU_VERSIONS_H

#include "kernels/kernels.h"

/* Products and panels. */
aq_product_fn aq_product_f32_ref;
aq_product_fn aq_product_bf16_ref;
aq_product_fn aq_product_f32_avx2;
aq_product_fn aq_product_bf16_avx2;
aq_product_fn aq_product_f32_avx512;
aq_product_fn aq_product_bf16_avx512;
aq_product_fn aq_product_bf16_avx512bf16;
aq_product_fn aq_product_bf16_amx;
aq_product_fn aq_product_codes_ref, aq_product_codes_avx2, aq_product_codes_avx512,
    aq_product_codes_avx512vnni;
aq_pack_panel_fn aq_pack_panel_ref;
aq_pack_panel_fn aq_pack_panel_avx2;
aq_pack_panel_fn aq_pack_panel_avx512;
aq_kv_encode_fn aq_kv_encode_ref, aq_kv_encode_avx2, aq_kv_encode_avx512;
aq_kv_bounds_fn aq_kv_bounds_ref, aq_kv_bounds_avx2, aq_kv_bounds_avx512;
aq_kv_choose_fn aq_kv_choose_ref, aq_kv_choose_avx2, aq_kv_choose_avx512;
aq_kv_expected_fn aq_kv_expected_ref, aq_kv_expected_avx2, aq_kv_expected_avx512;
aq_weigh_fn aq_weigh_ref, aq_weigh_avx2, aq_weigh_avx512;
aq_weights_between_fn aq_weights_between_ref, aq_weights_between_avx2, aq_weights_between_avx512;
aq_unpack_fn aq_unpack_ref, aq_unpack_avx2, aq_unpack_avx512, aq_unpack_avx512bf16;

/* Whether tiles compute as the manual says (tiles_emulated.h): a hypervisor may have it wrong. */
bool aq_tiles_sound(void);
/* Whether VDPBF16PS is so slow that products in f32 on rounded numbers are faster; some 30 us. */
bool aq_dot_is_slow(void);

/* Versions of the kernels that every backend has; not each has one for every instruction set. */
#define AQ_KERNELS_VERSIONS(name, params)                                                          \
    aq_##name##_fn aq_##name##_ref, aq_##name##_avx2, aq_##name##_avx512;
AQ_KERNELS(AQ_KERNELS_VERSIONS)
#undef AQ_KERNELS_VERSIONS
aq_attn_decode_fn aq_attn_decode_avx512vnni;
/* Where the compute type is bf16, K, V, scaled queries and weights are rounded to it. */
aq_attn_prefill_fn aq_attn_prefill_avx512bf16, aq_attn_prefill_amx;
aq_attn_stats_fn aq_attn_stats_avx512bf16;

/* The column sums of a KV head of a sequence (aq_attn_stats_fn), of weights that prefill attention
 * has kept and that this makes probabilities of, where they lie. */
struct aq_attn_weights;
typedef void aq_attn_sum_observed_fn(struct aq_exec *ex, uint32_t worker, const struct aq_attn *a,
                                     const struct aq_attn_seq *seq, uint32_t head,
                                     const struct aq_attn_weights *o);
aq_attn_sum_observed_fn aq_attn_sum_observed_avx2, aq_attn_sum_observed_avx512;

#endif
