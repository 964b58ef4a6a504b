/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/scratch.h - what each family of kernels needs of a worker's scratch area, in bytes.
 * One inline function per family; aq_kernels_scratch_bytes() takes the largest, because one kernel
 * runs at a time. */
#ifndef AQ_KERNELS_CPU_SCRATCH_H
#define AQ_KERNELS_CPU_SCRATCH_H

#include "kernels/kernels.h"

static inline size_t aq_scratch_product(const struct aq_scratch_need *need)
{
    (void)need;
    return 1 * AQ_MIB;
}

/* Prefill attention: a tile of queries against a block of keys. */
static inline size_t aq_scratch_attention(const struct aq_scratch_need *need)
{
    (void)need;
    return 0;
}

#endif
