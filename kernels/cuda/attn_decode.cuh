/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/attn_decode.cuh - what both ways of decode attention share: the queries that one
 * reading of K and V serves, how splits are joined, and what is remembered of slots.
 *
 * A split ends in its largest score, its sum of weights and its sum of weighted values; splits are
 * joined in ascending order, by a block of threads that sees to all of them or from the workspace:
 * the same arithmetic in the same order.
 *
 * Where sequences share their first blocks and splits have blocks of threads of their own, one such
 * block takes a split that neighbours share for several of them: their rows follow each other, so
 * that they are as one sequence of that many rows, each of which sees the whole split.  What a
 * query comes to does not depend on what shares the reading, so that bits are those of each alone.
 */
#ifndef AQ_KERNELS_CUDA_ATTN_DECODE_CUH
#define AQ_KERNELS_CUDA_ATTN_DECODE_CUH

#include "kernels/cuda/attn.cuh"

enum {
    AQ_CU_SPLIT_SLOTS = AQ_CUDA_DECODE_SPLIT, /* promise 1 of the design: fixed splits */
    AQ_CU_SPLIT_BLOCKS = AQ_CU_SPLIT_SLOTS / AQ_HEAD_BLOCK_SLOTS,
};

/* The queries of a KV head are its rows' query heads, row after row: query n is head n % q_per_kv
 * of row n / q_per_kv. */
struct aq_cu_decode {
    struct aq_attn a;
    uint32_t warps, cap;      /* cap: slots of a query's scores, a multiple of AQ_CU_SPLIT_SLOTS */
    uint32_t splits, queries; /* at most, of a head: strides of the workspace */
    uint32_t joint;           /* sequences that may take a split together; 1: each alone */
    bool keeps;               /* there is a rule */
    float *scores;            /* [seqs][kv_heads][queries][cap] */
    float *parts; /* [seqs][kv_heads][queries][splits][head_dim + 2]: values, max, sum */
};

/* The queries a block of threads sees to. */
struct aq_cu_batch {
    const struct aq_attn_seq *s;
    uint32_t head, len, first, count; /* queries */
    uint32_t begin;                   /* the first slot that one of them sees */
    bool joint; /* of several sequences, whose first one s is, a row each; len: the split's end */
};

AQ_DEVICE_FN uint32_t aq_cu_keys_of(const struct aq_cu_batch *b, uint32_t q_per_kv, uint32_t q)
{
    return b->joint ? b->len : aq_cu_visible(b->len, b->s->rows, (b->first + q) / q_per_kv);
}

/* Slots that a query sees: [first, end). */
struct aq_cu_span {
    uint32_t first, end;
};

AQ_DEVICE_FN struct aq_cu_span aq_cu_span_of(const struct aq_attn *a, const struct aq_cu_batch *b,
                                             uint32_t q)
{
    struct aq_cu_span s = {0, q < b->count ? aq_cu_keys_of(b, a->q_per_kv, q) : 0};
    s.first = aq_cu_first(a, s.end);
    return s;
}

AQ_DEVICE_FN struct aq_cu_batch aq_cu_batch_of(const struct aq_cu_decode *p, uint32_t seq,
                                               uint32_t head, uint32_t first, uint32_t nq)
{
    const struct aq_attn_seq *s = &p->a.seqs[seq];
    struct aq_cu_batch b = {s, head, aq_cu_len(s, head), first, 0, 0, false};
    uint32_t queries = s->rows * p->a.q_per_kv;
    b.count = first < queries ? aq_cu_min(nq, queries - first) : 0;
    b.begin = aq_cu_span_of(&p->a, &b, 0).first;
    return b;
}

/* The first slot of the first split with what one of the queries sees: splits before it would
 * change nothing. */
AQ_DEVICE_FN uint32_t aq_cu_begin_split(const struct aq_cu_batch *b)
{
    return b->begin / AQ_CU_SPLIT_SLOTS * AQ_CU_SPLIT_SLOTS;
}

/* Whether a sequence takes this split together with the one before it. */
AQ_DEVICE_FN bool aq_cu_follows(const struct aq_cu_decode *p, uint32_t seq, uint32_t split)
{
    if (split >= p->a.reach.shared || seq >= p->a.seq_count || seq % p->joint == 0)
        return false;
    const struct aq_attn_seq *s = &p->a.seqs[seq], *before = s - 1;
    return s->shared / AQ_CU_SPLIT_BLOCKS > split && s->rows == 1 && before->rows == 1 &&
           s->row == before->row + 1;
}

/* The queries of one split; none where another sequence's batch has them. */
AQ_DEVICE_FN struct aq_cu_batch aq_cu_split_batch_of(const struct aq_cu_decode *p, uint32_t seq,
                                                     uint32_t head, uint32_t first, uint32_t nq,
                                                     uint32_t split)
{
    struct aq_cu_batch b = aq_cu_batch_of(p, seq, head, first, nq);
    uint32_t members = 1;
    if (p->joint > 1 && aq_cu_follows(p, seq, split))
        b.count = 0;
    while (p->joint > 1 && b.count && aq_cu_follows(p, seq + members, split))
        members++;
    if (members > 1) {
        b.joint = true;
        b.len = (split + 1) * AQ_CU_SPLIT_SLOTS;
        b.count = members * p->a.q_per_kv;
    }
    return b;
}

AQ_DEVICE_FN size_t aq_cu_head_index(const struct aq_cu_decode *p, uint32_t seq, uint32_t head)
{
    return (static_cast<size_t>(seq) * p->a.kv_heads + head) * p->queries;
}

/* Of query q of a batch. */
AQ_DEVICE_FN size_t aq_cu_query_index(const struct aq_cu_decode *p, const struct aq_cu_batch *b,
                                      uint32_t seq, uint32_t q)
{
    uint32_t member = b->joint ? q / p->a.q_per_kv : 0;
    return aq_cu_head_index(p, seq + member, b->head) + b->first + q - member * p->a.q_per_kv;
}

/* ---- joining ---- */

/* The sums of two parts on the scale of the larger of their largest scores. */
struct aq_cu_joint {
    float max, scale, other_scale;
};

AQ_DEVICE_FN struct aq_cu_joint aq_cu_join(float max, float other_max)
{
    struct aq_cu_joint j = {fmaxf(max, other_max), 0, 0};
    float base = j.max == -INFINITY ? 0 : j.max;
    j.scale = expf(max - base);
    j.other_scale = expf(other_max - base);
    return j;
}

AQ_DEVICE_FN float aq_cu_log_sum_of(float max, float sum)
{
    return (max == -INFINITY ? 0 : max) + logf(sum);
}

/* Where query q of a batch lies in q, out and log_sum_exp. */
struct aq_cu_place {
    size_t row, q_head;
};

AQ_DEVICE_FN struct aq_cu_place aq_cu_place_of(const struct aq_attn *a, const struct aq_cu_batch *b,
                                               uint32_t q)
{
    uint32_t n = b->first + q;
    struct aq_cu_place at = {b->s->row + static_cast<size_t>(n / a->q_per_kv),
                             static_cast<size_t>(b->head) * a->q_per_kv + n % a->q_per_kv};
    return at;
}

AQ_DEVICE_FN void aq_cu_store_out(const struct aq_attn *a, struct aq_cu_place at, uint32_t d,
                                  float o, float sum, uint32_t keys)
{
    size_t index = at.row * a->out_stride + at.q_head * a->head_dim + d;
    aq_cu_store(a->out, a->out_dtype, index, keys ? o / sum : 0.0f);
}

/* ---- what is remembered ---- */

AQ_DEVICE_FN float aq_cu_counted(const struct aq_attn_rule *rule, float score, float log_sum,
                                 uint32_t keys)
{
    float w = expf(score - log_sum);
    if (rule->stat == AQ_ATTN_PROB_SQUARED)
        return w * w;
    if (rule->stat == AQ_ATTN_LOW)
        return w < rule->threshold / static_cast<float>(keys) ? -1.0f : 0.0f;
    return w;
}

/* Adds the rows of a head to its scores and chooses the victim.  scores [queries][stride] of all
 * queries of the head, log_sums of them. */
AQ_DEVICE_FN void aq_cu_remember(const struct aq_cu_decode *p, const struct aq_cu_batch *b,
                                 const float *scores, size_t stride, const float *log_sums,
                                 uint32_t *shared)
{
    const struct aq_attn_rule *rule = &p->a.rule;
    const struct aq_attn_slots *slots = &b->s->slots;
    uint32_t group = p->a.q_per_kv, heads = rule->group == AQ_ATTN_FIRST ? 1 : group;
    bool choose = slots->victim && !rule->together;
    size_t row = static_cast<size_t>(b->head) * slots->stride;
    struct aq_cu_victim victim = aq_cu_victim_start(rule, b->s);
    for (uint32_t j = threadIdx.x; j < b->len; j += blockDim.x) {
        float v = slots->score ? slots->score[row + j] : 0;
        for (uint32_t i = 0; slots->score && i < b->s->rows; i++) {
            uint32_t keys = aq_cu_visible(b->len, b->s->rows, i);
            uint32_t from = aq_cu_first(&p->a, keys);
            if (j >= keys)
                continue;
            float c = 0;
            for (uint32_t g = 0; g < heads && j >= from; g++) {
                uint32_t n = i * group + g;
                float f = aq_cu_counted(rule, scores[n * stride + j], log_sums[n], keys - from);
                c = rule->group == AQ_ATTN_MAX && g ? fmaxf(c, f) : c + f;
            }
            c = rule->group == AQ_ATTN_MEAN ? c / static_cast<float>(group) : c;
            v = fmaf(rule->decay, v, c);
        }
        if (slots->score)
            slots->score[row + j] = v;
        if (choose)
            aq_cu_victim_consider(&victim, rule, v, slots->position[row + j], j);
    }
    if (!choose)
        return;
    uint32_t slot = aq_cu_victim_of_block(victim, shared);
    if (threadIdx.x == 0)
        slots->victim[b->head] = slot;
}

#endif
