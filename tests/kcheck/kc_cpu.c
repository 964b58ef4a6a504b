/* SPDX-License-Identifier: Apache-2.0
 * kcheck: the CPU's tables, rising. */
#include "kernels/cpu/versions.h"
#include "tests/amx_emu/amx_emu.h"
#include "tests/kcheck/kc_internal.h"

#include <stdlib.h>

uint32_t kc_make_tables(struct aq_kernels *tables, struct kc_traits *traits,
                        struct kc_options *options)
{
    unsigned limit = ~0u;
    if (options->isa && !aq_isa_parse(options->isa, &limit)) {
        fprintf(stderr, "kcheck: --isa: '%s' is not ref, avx2, avx512, avx512bf16 or amx\n",
                options->isa);
        exit(1);
    }
    unsigned have = aq_isa_detect() & limit, mask = 0;
    uint32_t count = 0;
    traits[count].name = aq_isa_name(0);
    aq_kernels_cpu(&tables[count++], 0);
    for (unsigned bit = 1; bit <= AQ_ISA_AMX; bit <<= 1) {
        if (!(have & bit))
            continue;
        mask |= bit;
        traits[count].name = aq_isa_name(mask);
        aq_kernels_cpu(&tables[count++], mask);
    }
    /* On any CPU: the level amx on emulated tiles, which give the instructions' sums. */
    if ((limit & AQ_ISA_AMX) && !options->bench) {
        traits[count].name = "amx-emulated";
        aq_kernels_cpu(&tables[count], 0);
        tables[count].product_bf16 = aq_product_bf16_amx_emulated;
#if KC_EMULATES_ATTENTION
        if (have & AQ_ISA_AVX512) {
            tables[count].isa |= AQ_ISA_AMX;
            tables[count].attn_prefill = aq_attn_prefill_amx_emulated;
            tables[count].attn_stats = aq_attn_stats_rounded_avx512;
        }
#endif
        count++;
    }
    return count;
}
