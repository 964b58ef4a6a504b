/* SPDX-License-Identifier: Apache-2.0
 * base/kv_block.h - how keys and values lie: 32 slots of one KV head are a head-block.  Owns its
 * sizes; knows no sequence and no page. */
#ifndef AQ_BASE_KV_BLOCK_H
#define AQ_BASE_KV_BLOCK_H

#include "base/types.h"

enum { AQ_HEAD_BLOCK_SLOTS = 32 };
/* Column sums of attention add up windows of so many queries, from query 0 on: rows in front of
 * whole windows may be left out, and the bits of the others' sums stay. */
enum { AQ_ATTN_STATS_ROWS = 64 };
/* Query rows of a KV head that decode attention on a CPU serves with one reading of K and V: of a
 * sequence, and of several that have them in common. */
enum { AQ_ATTN_DECODE_QUERIES = 32, AQ_ATTN_JOINT_QUERIES = 128 };

/* KIVI's groups: keys have one for each channel, over the 32 tokens of a head-block; values one for
 * each token and 32 channels. */
enum { AQ_KIVI_GROUP = 32 };

static inline uint32_t aq_kivi_groups(uint32_t head_dim)
{
    return (uint32_t)aq_div_up(head_dim, AQ_KIVI_GROUP);
}

/* Bytes of the scales and minima of the keys of a KIVI head-block: f16 [2][head_dim]. */
static inline size_t aq_kivi_key_bytes(uint32_t head_dim)
{
    return aq_align_up(4ull * head_dim, 64);
}

/* Codes of KIVI lie in runs of up to 32 numbers of eight vectors at once: of eight channels the 32
 * tokens of K, of eight tokens the channels of a group of V.  A run of n numbers has so many words
 * of eight bytes, one for each of its vectors: number i is in word i % words, and i / words codes
 * are in front of it in its byte. */
enum { AQ_KIVI_RUN = 8 };

static inline uint32_t aq_kivi_words(enum aq_dtype t, uint32_t n)
{
    return (uint32_t)aq_div_up(n, t == AQ_KIVI2 ? 4 : 2);
}

/* A K or V row of a head-block: its elements, or its codes, of which byte d of n has in its lowest
 * bits that of d, then that of d + n.  Of KIVI, a thirty-second part of the codes of K or of V: the
 * runs of K channel by channel, those of V group by group and in each of them token by token. */
static inline size_t aq_kv_row_bytes(enum aq_dtype t, uint32_t head_dim)
{
    if (t == AQ_Q8)
        return head_dim;
    if (aq_dtype_is_kivi(t))
        return aq_kivi_words(t, (uint32_t)aq_align_up(head_dim, AQ_KIVI_RUN));
    return t == AQ_Q4 ? aq_div_up(head_dim, 2) : head_dim * aq_dtype_bytes(t);
}

/* Bytes in front of the K rows of a head-block: f16 [4][32] if it is quantised (scales of K, minima
 * of K, scales of V, minima of V); of KIVI f16 [2][head_dim] for K and, on a cache line of their
 * own, f16 [2][groups][32] for V; else 0. */
static inline size_t aq_kv_head_bytes(enum aq_dtype t, uint32_t head_dim)
{
    if (aq_dtype_is_kivi(t))
        return aq_kivi_key_bytes(head_dim) + 4ull * AQ_HEAD_BLOCK_SLOTS * aq_kivi_groups(head_dim);
    return aq_dtype_is_quantised(t) ? 8 * AQ_HEAD_BLOCK_SLOTS : 0;
}

/* A head-block: 32 slots of one KV head, K rows, then V rows.  A multiple of 64. */
static inline size_t aq_kv_block_bytes(enum aq_dtype t, uint32_t head_dim)
{
    return aq_kv_head_bytes(t, head_dim) + 2 * AQ_HEAD_BLOCK_SLOTS * aq_kv_row_bytes(t, head_dim);
}

/* Bounds of keys: of each channel the least and the greatest of the 32 keys of a head-block, in
 * f16.  Those of 16 head-blocks lie together, channel by channel, as f16 [head_dim][2][16], so that
 * a vector is the same channel of so many head-blocks. */
enum { AQ_KV_BOUND_BLOCKS = 16 };

static inline uint32_t aq_kv_bound_groups(uint32_t blocks)
{
    return (uint32_t)aq_div_up(blocks, AQ_KV_BOUND_BLOCKS);
}

/* Numbers of the bounds of so many groups of head-blocks of one KV head. */
static inline size_t aq_kv_bound_numbers(uint32_t head_dim, uint32_t groups)
{
    return (size_t)groups * head_dim * 2 * AQ_KV_BOUND_BLOCKS;
}

#endif
