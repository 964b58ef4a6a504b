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
aq_pack_panel_fn aq_pack_panel_ref;
aq_pack_panel_fn aq_pack_panel_avx2;
aq_pack_panel_fn aq_pack_panel_avx512;
aq_unpack_fn aq_unpack_ref, aq_unpack_avx2, aq_unpack_avx512, aq_unpack_avx512bf16;

/* Attention. */
aq_attn_decode_fn aq_attn_decode_ref, aq_attn_decode_avx2, aq_attn_decode_avx512;
aq_attn_prefill_fn aq_attn_prefill_ref, aq_attn_prefill_avx2, aq_attn_prefill_avx512;
aq_attn_stats_fn aq_attn_stats_ref, aq_attn_stats_avx2, aq_attn_stats_avx512;

/* Row operations, KV append, logits. */
aq_kv_append_fn aq_kv_append_ref, aq_kv_append_avx2, aq_kv_append_avx512;
aq_kv_victim_fn aq_kv_victim_ref, aq_kv_victim_avx2, aq_kv_victim_avx512;
aq_kv_select_fn aq_kv_select_ref, aq_kv_select_avx2;
aq_kv_move_fn aq_kv_move_ref;
aq_norm_fn aq_norm_ref, aq_norm_avx2, aq_norm_avx512;
aq_embed_fn aq_embed_ref, aq_embed_avx2, aq_embed_avx512;
aq_add_rows_fn aq_add_rows_ref, aq_add_rows_avx2, aq_add_rows_avx512;
aq_logits_stat_fn aq_logits_stat_ref, aq_logits_stat_avx2, aq_logits_stat_avx512;

#endif
