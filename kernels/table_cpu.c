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
        .pack_panel = aq_pack_panel_ref,
    };
#if AQ_HAVE_AVX2
    if (isa & AQ_ISA_AVX2) {}
#endif
#if AQ_HAVE_AVX512
    if (isa & AQ_ISA_AVX512) {}
#endif
#if AQ_HAVE_AVX512BF16
    if (isa & AQ_ISA_AVX512BF16) {}
#endif
#if AQ_HAVE_AMX
    if (isa & AQ_ISA_AMX) {}
#endif
}
