/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/attn.h - where the blocks of a head are and what its rows see: shared by every
 * version of attention and of the KV append. */
#ifndef AQ_KERNELS_CPU_ATTN_H
#define AQ_KERNELS_CPU_ATTN_H

#include "kernels/cpu/scratch.h"

#include <assert.h>

static inline uint8_t *aq_attn_block(const struct aq_attn_seq *s, uint32_t head, uint32_t b)
{
    size_t offset = s->plain_offset && b >= s->coded ? s->plain_offset : s->head_offset;
    return s->block[(size_t)head * s->head_table_step + b] + head * offset;
}

/* The format of block b. */
static inline enum aq_dtype aq_attn_block_dtype(const struct aq_attn *a,
                                                const struct aq_attn_seq *s, uint32_t b)
{
    return aq_dtype_is_kivi(a->kv_dtype) && b >= s->coded ? AQ_F16 : a->kv_dtype;
}

static inline uint32_t aq_attn_len(const struct aq_attn_seq *s, uint32_t head)
{
    return s->len[(size_t)head * s->len_step];
}

/* Keys that query row `row` (0 .. rows - 1) of a head with len keys sees; 0 where even its own key
 * is not kept. */
static inline uint32_t aq_attn_visible(uint32_t len, uint32_t rows, uint32_t row)
{
    uint64_t end = (uint64_t)len + row + 1;
    return end > rows ? (uint32_t)(end - rows) : 0;
}

/* The first key that a query sees of those before `end` (aq_attn_visible). */
static inline uint32_t aq_attn_first(uint32_t window, uint32_t end)
{
    return window && end > window ? end - window : 0;
}

/* Column sums count the keys less far than this behind their query, which is at distance 0; 0: all
 * of them.  What a window leaves out counts no more than what lies behind the band. */
static inline uint32_t aq_attn_band(const struct aq_attn *a)
{
    if (!a->window || !a->pairs.band)
        return a->window + a->pairs.band;
    return (uint32_t)aq_min_u64(a->window, a->pairs.band);
}

/* Slot of the first of a sequence's new rows. */
static inline uint32_t aq_attn_new_first(const struct aq_attn_seq *s, uint32_t head)
{
    uint32_t len = aq_attn_len(s, head);
    assert(len >= s->rows);
    return len - s->rows;
}

/* Slot of new row i of a head, where it is stored. */
static inline uint32_t aq_attn_new_slot(const struct aq_attn_seq *s, uint32_t head, uint32_t i)
{
    if (!s->overwrite)
        return aq_attn_new_first(s, head) + i;
    assert(s->rows == 1 && s->slots.victim);
    assert(s->slots.victim[head] < aq_attn_len(s, head));
    return s->slots.victim[head];
}

/* Notes the position of a new row, and that nobody has looked at it yet. */
static inline void aq_attn_note_row(const struct aq_attn_seq *s, uint32_t head, uint32_t i,
                                    uint32_t slot)
{
    size_t at = (size_t)head * s->slots.stride + slot;
    if (s->slots.position)
        s->slots.position[at] = s->position + i;
    if (s->slots.position && s->slots.score)
        s->slots.score[at] = 0;
}

/* The positions that the next victim comes from: [sinks, this). */
static inline uint32_t aq_attn_victim_end(const struct aq_attn_seq *s)
{
    uint64_t end = (uint64_t)s->position + s->rows + 1;
    end = end > s->recent ? end - s->recent : 0;
    return (uint32_t)aq_min_u64(end, INT32_MAX);
}

/* Asserts what every version of attention takes for granted, and what all but decode attention
 * does. */
static inline void aq_attn_turn_assert(const struct aq_attn *a, const struct aq_attn_seq *s)
{
    const struct aq_attn_turn *t = &s->turn;
    assert(!t->turn || (s->rows == 1 && !a->window && aq_dtype_is_float(a->kv_dtype)));
    assert(!t->turn || (t->dim >= 2 && t->dim % 2 == 0 && t->dim <= a->head_dim));
}
static inline void aq_attn_shared_assert(const struct aq_attn *a, const struct aq_attn_seq *s)
{
    const struct aq_attn_seq *before = s - 1;
    for (uint32_t h = 0; h < a->kv_heads; h++) {
        uint64_t keys = (uint64_t)s->shared * AQ_HEAD_BLOCK_SLOTS;
        assert(keys <= aq_attn_len(s, h) && keys <= aq_attn_len(before, h));
        assert(aq_attn_block(s, h, s->shared - 1) == aq_attn_block(before, h, s->shared - 1));
    }
    if (aq_dtype_is_kivi(a->kv_dtype))
        assert(s->shared <= s->coded && s->shared <= before->coded);
}
static inline void aq_attn_decode_assert(const struct aq_attn *a)
{
    assert(aq_dtype_is_float(a->kv_dtype) || aq_dtype_is_quantised(a->kv_dtype) ||
           aq_dtype_is_kivi(a->kv_dtype));
    assert(aq_dtype_is_float(a->out_dtype));
    assert(a->kv_heads >= 1 && a->q_per_kv >= 1 && a->head_dim >= 1);
    assert(a->seqs || a->seq_count == 0);
    for (uint32_t i = 0; i < a->seq_count; i++)
        aq_attn_turn_assert(a, &a->seqs[i]);
    for (uint32_t i = 1; i < a->seq_count; i++) {
        if (a->seqs[i].shared)
            aq_attn_shared_assert(a, &a->seqs[i]);
    }
}
static inline void aq_attn_assert(const struct aq_attn *a)
{
    aq_attn_decode_assert(a);
    assert(!aq_dtype_is_kivi(a->kv_dtype));
}
static inline void aq_attn_stats_assert(const struct aq_attn *a)
{
    aq_attn_assert(a);
    assert(!a->begun.len || (a->seq_count == 1 && a->begun.sums));
    assert(a->rule.victim && a->q && a->log_sum_exp && a->rule.group != AQ_ATTN_MAX_OF_SUMS);
    for (uint32_t i = 0; i < a->seq_count; i++)
        assert(a->seqs[i].slots.score);
}
static inline void aq_attn_prefill_assert(const struct aq_attn *a)
{
    aq_attn_assert(a);
    if (!a->pairs.rows)
        return;
    aq_attn_stats_assert(a);
    assert(!a->begun.len);
}

/* Rows of sums that column sums make of a sequence, and the query heads that each is of. */
static inline uint32_t aq_attn_stats_rows(const struct aq_attn *a)
{
    return a->rule.group == AQ_ATTN_EACH ? a->kv_heads * a->q_per_kv : a->kv_heads;
}
static inline uint32_t aq_attn_stats_group(const struct aq_attn *a)
{
    return a->rule.group == AQ_ATTN_EACH || a->rule.group == AQ_ATTN_FIRST ? 1 : a->q_per_kv;
}

/* What a key has got from queries in front of the call's, in a row of sums. */
static inline float aq_attn_begun_sum(const struct aq_attn *a, uint32_t row, uint32_t key)
{
    return key < a->begun.len ? a->begun.sums[(size_t)row * a->begun.stride + key] : 0;
}

/* ---- sums that come with prefill attention ---- */

/* The query rows of a sequence whose columns are summed. */
static inline uint32_t aq_attn_observed_rows(const struct aq_attn *a, const struct aq_attn_seq *s)
{
    return (uint32_t)aq_min_u64(a->pairs.rows, s->rows);
}

/* How many queries of a KV head prefill attention keeps the weights of, for their sums: these rows
 * of all query heads, or none. */
static inline uint32_t aq_attn_observed(const struct aq_attn *a, const struct aq_attn_seq *s)
{
    uint64_t queries = (uint64_t)aq_attn_observed_rows(a, s) * a->q_per_kv;
    uint32_t keys = 0;
    if (!queries || a->window || queries > aq_attn_bf16_lanes(a->head_dim))
        return 0;
    for (uint32_t h = 0; h < (s->len_step ? a->kv_heads : 1); h++)
        keys = (uint32_t)aq_max_u64(keys, aq_attn_len(s, h));
    uint32_t n = (uint32_t)queries;
    return aq_attn_observed_weights(n, keys) <= AQ_ATTN_OBSERVED_WEIGHTS ? n : 0;
}

/* The sums of sequences of which attention has kept no weights. */
static inline void aq_attn_sum_others(struct aq_exec *ex, const struct aq_attn *a,
                                      aq_attn_stats_fn *stats)
{
    for (uint32_t i = 0; a->pairs.rows && i < a->seq_count; i++) {
        struct aq_attn one = *a;
        one.seqs = &a->seqs[i];
        one.seq_count = 1;
        if (!aq_attn_observed(a, one.seqs))
            stats(ex, &one);
    }
}

/* Weights of a KV head's last queries, exp(score - a maximum), as prefill attention leaves them. A
 * lane is a query, all query heads counted, row by row. */
struct aq_attn_weights {
    uint32_t keys;  /* from 0 on, whole tiles of every kind */
    uint32_t lanes; /* whole vectors */
    uint32_t first; /* the lane of the first of the queries, up to which lanes are spare */
    uint32_t block; /* keys that have a maximum in common */
    float *weight;  /* [lanes / vector][keys][vector of lanes] */
    float *max;     /* [lanes / vector][keys / block][vector of lanes] */
    float *log_sum; /* [lanes]: log of the sum of exp(score) */
};

static inline struct aq_attn_weights aq_attn_weights_open(struct aq_exec *ex, uint32_t worker,
                                                          uint32_t head_dim, uint32_t keys,
                                                          uint32_t lanes, uint32_t block)
{
    struct aq_attn_weights o = {.lanes = lanes, .block = block};
    size_t offset = aq_attn_observed_offset(head_dim);
    o.keys = (uint32_t)aq_align_up(keys, AQ_ATTN_OBSERVED_KEYS);
    o.weight = (float *)(void *)((uint8_t *)aq_exec_scratch(ex, worker) + offset);
    o.max = o.weight + (size_t)lanes * o.keys;
    o.log_sum = o.max + (size_t)lanes * (o.keys / block);
    assert(offset + (size_t)((uint8_t *)(o.log_sum + lanes) - (uint8_t *)o.weight) <=
           aq_exec_scratch_size(ex));
    return o;
}

#endif
