/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/scratch.h - what each family of kernels needs of a worker's scratch area, in bytes.
 * One inline function per family; aq_kernels_scratch_bytes() takes the largest, because one kernel
 * runs at a time. */
#ifndef AQ_KERNELS_CPU_SCRATCH_H
#define AQ_KERNELS_CPU_SCRATCH_H

#include "kernels/cpu/gemm.h"
#include "kernels/kernels.h"

static inline size_t aq_scratch_product(const struct aq_scratch_need *need)
{
    (void)need;
    return AQ_GEMM_SCRATCH_BYTES;
}

enum {
    AQ_ATTN_TILE_QUERIES = 48, /* of a tile of prefill attention */
    AQ_ATTN_STATS_KEYS = 96,   /* of a tile of column sums */
};

/* Numbers that a row of K takes where many queries attend a block in f32: its codes may be two
 * parts, each of whole vectors. */
static inline size_t aq_attn_widened_floats(uint32_t head_dim)
{
    return aq_align_up(head_dim, 32);
}

/* Decode: Q and sums of its queries, their sums of weights and of minima, scores of sixteen against
 * a block; Q once more in the order of a widened block, and that block; four queries that are
 * turned back; of KIVI, of four queries 32 whole numbers of 16 bits and a number for each group.
 * Prefill: Q, sums and scores of a tile, five numbers per query, a block of K and V in f32.
 * Column sums: K of a tile, half of it in f32 or as many queries, scores of a block of queries,
 * three numbers per key, powers of the decay. */
static inline size_t aq_attn_scratch_bytes(uint32_t head_dim)
{
    size_t dim = aq_align_up(head_dim, 16), slots = AQ_HEAD_BLOCK_SLOTS;
    size_t decode = AQ_ATTN_JOINT_QUERIES * (2 * dim + 32) + 16 * slots;
    decode += 4 * dim + 4 * (slots / 2 + 1) * aq_align_up(aq_kivi_groups(head_dim), 4);
    decode += (AQ_ATTN_JOINT_QUERIES + 2 * slots) * aq_attn_widened_floats(head_dim);
    size_t prefill = AQ_ATTN_TILE_QUERIES * (2 * dim + slots + 5) + 2 * slots * dim;
    size_t half = AQ_ATTN_TILE_QUERIES, keys = AQ_ATTN_STATS_KEYS;
    size_t stats = (keys + half) * dim + half * slots + 3 * keys + 80;
    return aq_max_u64(aq_max_u64(decode, prefill), stats) * sizeof(float);
}

/* Queries of a tile of prefill attention by tiles of the CPU, a multiple of 32: fewer where heads
 * are larger, so that what it has of them lies in the second-level cache. */
static inline uint32_t aq_attn_bf16_lanes(uint32_t head_dim)
{
    return head_dim <= 64 ? 1024 : head_dim <= 128 ? 512 : 256;
}

enum {
    AQ_ATTN_BF16_KEYS = 64, /* of a block: it begins at a multiple */
    AQ_ATTN_BF16_STRETCH_MAX = 512,
};

/* Keys that become tiles together, whole blocks. */
static inline uint32_t aq_attn_bf16_stretch(uint32_t head_dim)
{
    return head_dim <= 128 ? AQ_ATTN_BF16_STRETCH_MAX : AQ_ATTN_BF16_STRETCH_MAX / 2;
}

/* Q in bf16 and sums of its queries, five numbers per query; K and V of a stretch in bf16; scores
 * of 32 queries against a block and their weights in bf16; a head-block of K or V in f32. */
static inline size_t aq_attn_bf16_scratch_bytes(uint32_t head_dim)
{
    size_t dim = aq_align_up(head_dim, 32), lanes = aq_attn_bf16_lanes(head_dim);
    return lanes * (dim * 6 + 5 * sizeof(float)) + aq_attn_bf16_stretch(head_dim) * dim * 4 +
           AQ_ATTN_BF16_KEYS * 32 * 6 + AQ_HEAD_BLOCK_SLOTS * dim * sizeof(float);
}

/* Where decode attention keeps scores, behind the above. */
enum {
    /* Weights that it keeps of the heads it attends side by side, if there are more of them than
     * one head has: what the second-level cache holds beside K and V. */
    AQ_ATTN_KEPT_FLOATS = 64 * 1024,
};

/* Per query: a weight per slot, a maximum per block. */
static inline size_t aq_attn_kept_floats(uint32_t slots)
{
    size_t blocks = aq_div_up(slots, AQ_HEAD_BLOCK_SLOTS);
    return blocks * AQ_HEAD_BLOCK_SLOTS + aq_align_up(blocks, 16);
}

/* And what the query heads of a group have come to so far, where 32 are not all of them. */
static inline size_t aq_attn_kept_bytes(uint32_t q_per_kv, uint32_t slots)
{
    if (!q_per_kv)
        return 0;
    size_t each = aq_attn_kept_floats(slots);
    size_t least = aq_min_u64(q_per_kv, AQ_ATTN_DECODE_QUERIES) * each;
    size_t most = aq_min_u64(AQ_ATTN_DECODE_QUERIES * each, AQ_ATTN_KEPT_FLOATS);
    return (aq_max_u64(least, most) + each) * sizeof(float);
}

/* Where prefill attention keeps the weights of a prompt's last queries, behind all that attention
 * itself takes. */
static inline size_t aq_attn_observed_offset(uint32_t head_dim)
{
    return aq_align_up(
        aq_max_u64(aq_attn_scratch_bytes(head_dim), aq_attn_bf16_scratch_bytes(head_dim)), 64);
}

enum {
    AQ_ATTN_OBSERVED_WEIGHTS = 1 << 20, /* that are kept at most, for the sake of memory */
    AQ_ATTN_OBSERVED_KEYS = 192, /* they are kept of a multiple of keys: whole tiles of each kind */
    AQ_ATTN_OBSERVED_SPARE = 64, /* lanes beside those of the queries: the tiles' others */
};

/* Weights of so many queries, all query heads counted, and keys. */
static inline uint64_t aq_attn_observed_weights(uint32_t queries, uint32_t keys)
{
    return ((uint64_t)queries + AQ_ATTN_OBSERVED_SPARE) * aq_align_up(keys, AQ_ATTN_OBSERVED_KEYS);
}

/* Weights; for each query a maximum for 32 of them or more, and the log of its sum.  Of more
 * queries or weights than are kept it is what those take that are. */
static inline size_t aq_attn_observed_bytes(uint32_t queries, uint32_t keys)
{
    if (!queries)
        return 0;
    uint32_t most = (uint32_t)aq_min_u64(queries, aq_attn_bf16_lanes(1));
    uint64_t weights = aq_attn_observed_weights(most, keys);
    weights = aq_min_u64(weights, AQ_ATTN_OBSERVED_WEIGHTS);
    return (weights + weights / 32 + most + AQ_ATTN_OBSERVED_SPARE) * sizeof(float);
}

static inline size_t aq_scratch_attention(const struct aq_scratch_need *need)
{
    size_t decode = aq_attn_scratch_bytes(need->head_dim_max) +
                    aq_attn_kept_bytes(need->scored_q_per_kv, need->context_max);
    size_t prefill = aq_attn_observed_offset(need->head_dim_max) +
                     aq_attn_observed_bytes(need->observed, need->context_max);
    return aq_max_u64(decode, prefill);
}

/* Choice of head-blocks: a group's queries, and for each channel where in the bounds it is; a bound
 * for each query and head-block, whole groups of them, and what each head-block is worth. */
static inline size_t aq_scratch_choice(const struct aq_scratch_need *need)
{
    size_t g = need->choosing_q_per_kv;
    if (!g)
        return 0;
    uint32_t blocks = need->context_max / AQ_HEAD_BLOCK_SLOTS;
    size_t padded = (size_t)aq_kv_bound_groups(blocks) * AQ_KV_BOUND_BLOCKS;
    return (2 * g * need->head_dim_max + (g + 1) * padded) * sizeof(float);
}

#endif
