/* SPDX-License-Identifier: Apache-2.0
 * tests/amx_emu/amx_emu.h - kernels of the level amx, compiled with tiles that are emulated: on any
 * CPU the sums that the instructions give. */
#ifndef AQ_TESTS_AMX_EMU_AMX_EMU_H
#define AQ_TESTS_AMX_EMU_AMX_EMU_H

#include "kernels/kernels.h"

aq_product_fn aq_product_bf16_amx_emulated;
aq_attn_prefill_fn aq_attn_prefill_amx_emulated; /* needs AVX-512 */

#endif
