/* SPDX-License-Identifier: Apache-2.0
 * offload/stripe.h - one logical address space over n files: unit u (4 MiB) lies in file u % n at
 * offset (u / n) * 4 MiB.  Pure arithmetic, for packed stores and scratch alike. */
#ifndef AQ_OFFLOAD_STRIPE_H
#define AQ_OFFLOAD_STRIPE_H

#include "base/types.h"

#include <assert.h>

enum { AQ_STRIPE_UNIT_BYTES = 4 * 1024 * 1024, AQ_STRIPE_FILES_MAX = 64 };

struct aq_stripe_piece {
    uint32_t file; /* 0 .. count - 1 */
    uint64_t offset, bytes;
};

/* The place of logical byte `offset`, and how many of the next `bytes` bytes follow there in one
 * piece. */
static inline struct aq_stripe_piece aq_stripe_locate(uint32_t count, uint64_t offset,
                                                      uint64_t bytes)
{
    assert(count >= 1 && count <= AQ_STRIPE_FILES_MAX);
    if (count == 1) /* units of one file follow each other */
        return (struct aq_stripe_piece){.file = 0, .offset = offset, .bytes = bytes};
    uint64_t unit = offset / AQ_STRIPE_UNIT_BYTES, within = offset % AQ_STRIPE_UNIT_BYTES;
    return (struct aq_stripe_piece){
        .file = (uint32_t)(unit % count),
        .offset = unit / count * AQ_STRIPE_UNIT_BYTES + within,
        .bytes = aq_min_u64(bytes, AQ_STRIPE_UNIT_BYTES - within),
    };
}

/* Bytes of file `file` of `count`, for a logical space of this size. */
static inline uint64_t aq_stripe_file_bytes(uint64_t bytes, uint32_t count, uint32_t file)
{
    assert(file < count && count <= AQ_STRIPE_FILES_MAX);
    uint64_t units = bytes / AQ_STRIPE_UNIT_BYTES, rest = bytes % AQ_STRIPE_UNIT_BYTES;
    uint64_t whole = units / count + (file < units % count);
    return whole * AQ_STRIPE_UNIT_BYTES + (file == units % count ? rest : 0);
}

#endif
