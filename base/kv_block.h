/* SPDX-License-Identifier: Apache-2.0
 * base/kv_block.h - how keys and values lie: 32 slots of one KV head are a head-block.  Owns its
 * sizes; knows no sequence and no page. */
#ifndef AQ_BASE_KV_BLOCK_H
#define AQ_BASE_KV_BLOCK_H

#include "base/types.h"

enum { AQ_HEAD_BLOCK_SLOTS = 32 };

/* A K or V row of a head-block: its elements, or its codes (Q4: d in the low half of byte d,
 * d + ceil(head_dim / 2) in the high half). */
static inline size_t aq_kv_row_bytes(enum aq_dtype t, uint32_t head_dim)
{
    if (t == AQ_Q8)
        return head_dim;
    return t == AQ_Q4 ? aq_div_up(head_dim, 2) : head_dim * aq_dtype_bytes(t);
}

/* Bytes in front of the K rows of a head-block: f16 [4][32] if it is quantised (scales of K, minima
 * of K, scales of V, minima of V), else 0. */
static inline size_t aq_kv_head_bytes(enum aq_dtype t)
{
    return aq_dtype_is_quantised(t) ? 8 * AQ_HEAD_BLOCK_SLOTS : 0;
}

/* A head-block: 32 slots of one KV head, K rows, then V rows.  A multiple of 64. */
static inline size_t aq_kv_block_bytes(enum aq_dtype t, uint32_t head_dim)
{
    return aq_kv_head_bytes(t) + 2 * AQ_HEAD_BLOCK_SLOTS * aq_kv_row_bytes(t, head_dim);
}

#endif
