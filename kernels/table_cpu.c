/* SPDX-License-Identifier: Apache-2.0
 * The CPU's table, filled upward: the reference first, then what each level replaces, so that any
 * mask gives a complete table. */
#include "kernels/cpu/versions.h"

void aq_kernels_cpu(struct aq_kernels *k, unsigned isa)
{
    *k = (struct aq_kernels){
        .isa = isa,
        .product_f32 = aq_product_f32_ref,
        .product_bf16 = aq_product_bf16_ref,
        .product_codes = aq_product_codes_ref,
        .pack_panel = aq_pack_panel_ref,
        .kv_encode = aq_kv_encode_ref,
        .kv_bounds = aq_kv_bounds_ref,
        .kv_choose = aq_kv_choose_ref,
        .kv_expected = aq_kv_expected_ref,
        .weigh = aq_weigh_ref,
        .weights_between = aq_weights_between_ref,
        .unpack = aq_unpack_ref,
    };
#define REFERENCE(name, params) k->name = aq_##name##_ref;
    AQ_KERNELS(REFERENCE)
#undef REFERENCE
#if AQ_HAVE_AVX2
    if (isa & AQ_ISA_AVX2) {
        k->norm = aq_norm_avx2;
        k->embed = aq_embed_avx2;
        k->add_rows = aq_add_rows_avx2;
        k->rotate = aq_rotate_avx2;
        k->attn_decode = aq_attn_decode_avx2;
        k->attn_prefill = aq_attn_prefill_avx2;
        k->attn_stats = aq_attn_stats_avx2;
        k->kv_append = aq_kv_append_avx2;
        k->kv_victim = aq_kv_victim_avx2;
        k->kv_select = aq_kv_select_avx2;
        k->logits_stat = aq_logits_stat_avx2;
        k->product_f32 = aq_product_f32_avx2;
        k->product_bf16 = aq_product_bf16_avx2;
        k->product_codes = aq_product_codes_avx2;
        k->pack_panel = aq_pack_panel_avx2;
        k->kv_encode = aq_kv_encode_avx2;
        k->kv_bounds = aq_kv_bounds_avx2;
        k->kv_choose = aq_kv_choose_avx2;
        k->kv_expected = aq_kv_expected_avx2;
        k->weigh = aq_weigh_avx2;
        k->weights_between = aq_weights_between_avx2;
        k->unpack = aq_unpack_avx2;
    }
#endif
#if AQ_HAVE_AVX512
    if (isa & AQ_ISA_AVX512) {
        k->norm = aq_norm_avx512;
        k->embed = aq_embed_avx512;
        k->add_rows = aq_add_rows_avx512;
        k->rotate = aq_rotate_avx512;
        k->attn_decode = aq_attn_decode_avx512;
        k->attn_prefill = aq_attn_prefill_avx512;
        k->attn_stats = aq_attn_stats_avx512;
        k->kv_append = aq_kv_append_avx512;
        k->kv_victim = aq_kv_victim_avx512;
        k->logits_stat = aq_logits_stat_avx512;
        k->product_f32 = aq_product_f32_avx512;
        k->product_bf16 = aq_product_bf16_avx512;
        k->product_codes = aq_product_codes_avx512;
        k->pack_panel = aq_pack_panel_avx512;
        k->kv_encode = aq_kv_encode_avx512;
        k->kv_bounds = aq_kv_bounds_avx512;
        k->kv_choose = aq_kv_choose_avx512;
        k->kv_expected = aq_kv_expected_avx512;
        k->weigh = aq_weigh_avx512;
        k->weights_between = aq_weights_between_avx512;
        k->unpack = aq_unpack_avx512;
    }
#endif
#if AQ_HAVE_AVX512VNNI
    if (isa & AQ_ISA_AVX512VNNI) {
        k->attn_decode = aq_attn_decode_avx512vnni;
        k->product_codes = aq_product_codes_avx512vnni;
    }
#endif
#if AQ_HAVE_AVX512BF16
    if (isa & AQ_ISA_AVX512BF16) {
        k->attn_prefill = aq_attn_prefill_avx512bf16;
        k->attn_stats = aq_attn_stats_avx512bf16;
        k->product_bf16 = aq_product_bf16_avx512bf16;
        k->unpack = aq_unpack_avx512bf16;
    }
#endif
#if AQ_HAVE_AMX
    if (isa & AQ_ISA_AMX) {
        k->attn_prefill = aq_attn_prefill_amx;
        k->product_bf16 = aq_product_bf16_amx;
    }
#endif
}
