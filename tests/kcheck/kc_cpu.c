/* SPDX-License-Identifier: Apache-2.0
 * kcheck: the CPU's tables, rising. */
#include "kernels/cpu/versions.h"
#include "tests/amx_emu/amx_emu.h"
#include "tests/kcheck/kc_internal.h"

#include <stdlib.h>

/* The levels avx512bf16 (its attention) and amx, which give the instructions' sums. */
static uint32_t emulated_tables(struct aq_kernels *tables, struct kc_traits *traits, unsigned limit,
                                unsigned have)
{
    uint32_t count = 0;
#if KC_EMULATES_ATTENTION
    if ((limit & AQ_ISA_AVX512BF16) && (have & AQ_ISA_AVX512)) {
        traits[count].name = "bf16-emulated";
        traits[count].emulates = "avx512bf16";
        aq_kernels_cpu(&tables[count], 0);
        tables[count].isa |= AQ_ISA_AVX512BF16;
        tables[count].attn_prefill = aq_attn_prefill_avx512bf16_emulated;
        tables[count].attn_stats = aq_attn_stats_avx512bf16_emulated;
        count++;
    }
#endif
    if (!(limit & AQ_ISA_AMX))
        return count;
    traits[count].name = "amx-emulated";
    traits[count].emulates = "amx";
    aq_kernels_cpu(&tables[count], 0);
    tables[count].product_bf16 = aq_product_bf16_amx_emulated;
#if KC_EMULATES_ATTENTION
    if (have & AQ_ISA_AVX512) {
        tables[count].isa |= AQ_ISA_AMX;
        tables[count].attn_prefill = aq_attn_prefill_amx_emulated;
        tables[count].attn_stats = aq_attn_stats_avx512bf16_emulated;
    }
#endif
    return count + 1;
}

uint32_t kc_make_tables(struct aq_kernels *tables, struct kc_traits *traits,
                        struct kc_options *options)
{
    unsigned limit = ~0u;
    if (options->isa && !aq_isa_parse(options->isa, &limit)) {
        fprintf(stderr,
                "kcheck: --isa: '%s' is not one of ref, avx2, avx512, avx512vnni, "
                "avx512bf16, amx\n",
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
    if (!options->bench)
        count += emulated_tables(tables + count, traits + count, limit, have);
    return count;
}
