/* SPDX-License-Identifier: Apache-2.0
 * tests/amx_emu/amx_emu.h - kernels of the levels avx512bf16 and amx, compiled with emulated
 * products of bf16: on any CPU, or any with AVX-512, the sums that the instructions give. */
#ifndef AQ_TESTS_AMX_EMU_AMX_EMU_H
#define AQ_TESTS_AMX_EMU_AMX_EMU_H

#include "kernels/kernels.h"

aq_product_fn aq_product_bf16_amx_emulated;
/* These need AVX-512. */
aq_attn_prefill_fn aq_attn_prefill_amx_emulated, aq_attn_prefill_avx512bf16_emulated;
aq_attn_stats_fn aq_attn_stats_avx512bf16_emulated;

#endif
