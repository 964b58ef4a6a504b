/* SPDX-License-Identifier: Apache-2.0
 * Decode attention, on vec.h; included once by each version's file.
 *
 * A tile is a few KV heads of one sequence, attended side by side: block by block, in each block
 * head by head, which is how they lie in memory (one head after the other took 73 % of the read
 * bandwidth of a Zen 5 where this takes 85 %).  Each block of a head is read once, for all queries
 * of that head (the query heads of the group, times the rows of the sequence): scores as dot
 * products along the dimension of the head, an online softmax per block (Milakov and Gimelshein,
 * "Online normalizer calculation for softmax", 2018), then the weighted sum of V into the
 * accumulators of the query.
 *
 * With every few vectors of a block as many of the next one are asked for, into the
 * second-level cache: the hardware's own prefetcher starts afresh at every page and block.  (Asked
 * into the first-level cache, lines in flight hold up the loads of the present block: 60-75 % of
 * read bandwidth instead of 82-90 %.)
 *
 * Codes (int8, int4) are dotted and added up as numbers; the scale and minimum of a K row go to the
 * score, once a block, since q . (c s + m) = s (q . c) + m (sum of q); those of a V row to its
 * weight and to a sum of its own, which is added to the output at the end.
 *
 * Blocks of KIVI have a scale and a minimum for each channel of K: a query is multiplied by the
 * scales once a block, and its product with the minima is added to the scores.  V's are for 32
 * channels of a row: a weight becomes one for each group of channels, and the minima are added to
 * the sums once a block.  Head sizes whose rows are not whole vectors of codes are widened to f32.
 *
 * Every query is scaled once, in f32, and its sums are formed in one order whatever shares its
 * tile: lane l of a score adds d = l, l + VEC_LANES, ..., then lanes in vec_sum()'s order; blocks
 * and slots ascend, from the first block with a slot that the query sees; slots that it does not
 * see take no part. */

enum {
    BLOCK_VECS = BLOCK_SLOTS / VEC_LANES,
    QUERIES_MAX = AQ_ATTN_JOINT_QUERIES,
    /* Queries worked on together, so that each vector of K and V is loaded once for all of them. */
    QUERIES_WIDE = VEC_LANES / 4,
    /* Vectors of an output kept in registers at a time: for one query, and for each of several. */
    VECS_ONE = 8,
    VECS_WIDE = VEC_LANES / 4,
    SUMS_MAX = 16,
};

/* The queries at work: `count` of each of `heads` KV heads, at most QUERIES_MAX in all. */
struct decode {
    uint32_t heads, count, dim, dim_pad;
    float *q;      /* [heads][count][dim_pad], scaled, zero-padded */
    float *sum;    /* [heads][count][dim_pad] */
    float *weight; /* [heads][count][VEC_LANES]: sums of exp(), by lane */
    float *p;      /* [VEC_LANES][BLOCK_SLOTS]: scores of a step, then their exp() */
    float *offset; /* [heads][count][VEC_LANES]: sums of weight times V's minimum, by lane */
    /* Of KIVI, each [QUERIES_WIDE][..]: the queries times the scales of K, weights times the scales
     * of V [groups][BLOCK_SLOTS], and the sums of weights times V's minima [groups]. */
    float *q_scaled, *group_p, *group_offset; /* q_scaled: else queries that are turned back */
    float *q_ordered; /* the queries as a widened block is multiplied (attn_widened_simd.h) */
    float *wide;      /* a block in f32: of KIVI [2 * BLOCK_SLOTS][dim], or widened */
    /* The arrays for scores; NULL where there are none. */
    float *kept;     /* [heads][count][kept_slots]: exp(score - maximum of then) */
    float *kept_max; /* [heads][count][kept_blocks]: these maxima, per block */
    float *partial;  /* [kept_slots], of one head */
    uint32_t kept_slots, kept_blocks;
    struct aq_attn_turn turn; /* of the sequence */
    float max[QUERIES_MAX];
    float q_sum[QUERIES_MAX]; /* sums of q: what K's minima are multiplied by */
    /* The keys that each query sees: [first, visible). */
    uint32_t first[QUERIES_MAX], visible[QUERIES_MAX];
};

/* One query, or QUERIES_WIDE of them that see the same slots, against a block. */
struct step {
    const uint8_t *block;
    uint32_t number; /* of the block */
    uint32_t query;
    uint32_t begin, slots; /* what is seen of the block: slots [begin, slots) */
    bool wide;
    const uint8_t *next;            /* the block to ask for meanwhile: */
    uint32_t next_slots;            /* this many slots of it */
    const float *q;                 /* [QUERIES_WIDE][dim_pad]: what K is multiplied by */
    float *p;                       /* of the queries: [BLOCK_SLOTS] of each */
    float correction[QUERIES_WIDE]; /* what the sums so far must be multiplied by */
    float key_offset[QUERIES_WIDE]; /* of KIVI: products with K's minima */
};

/* Bounds that let the compiler lay the loops out: constants, but for head sizes that are rare.
 */
struct form {
    enum aq_dtype dtype;
    uint32_t dim;
};

VEC_FN bool is_coded(struct form f)
{
    return aq_dtype_is_quantised(f.dtype) || aq_dtype_is_kivi(f.dtype);
}

/* The unit of a load: an element, or a byte with one code, two or four. */
VEC_FN size_t unit_bytes(struct form f)
{
    return is_coded(f) ? 1 : aq_dtype_bytes(f.dtype);
}
VEC_FN uint32_t row_units(struct form f)
{
    return (uint32_t)(aq_kv_row_bytes(f.dtype, f.dim) / unit_bytes(f));
}
/* Numbers in a unit: number n of unit d is that of d + n * row_units(). */
VEC_FN int unit_numbers(struct form f)
{
    if (f.dtype == AQ_KIVI2)
        return 4;
    return f.dtype == AQ_Q4 || f.dtype == AQ_KIVI4 ? 2 : 1;
}

/* Asks for `bytes` from an offset in a row of the next block on: 32 rows of K, 32 of V. */
VEC_FN void ask(const struct step *x, struct form f, uint32_t row, size_t offset, size_t bytes)
{
    if (row % BLOCK_SLOTS < x->next_slots)
        vec_prefetch(aq_kv_row(x->next, f.dtype, f.dim, row) + offset, bytes);
}

/* Asks for what no row of the present block, which may be shorter, stands for. */
VEC_FN void ask_rest(const struct step *x, struct form f)
{
    size_t row_bytes = aq_kv_row_bytes(f.dtype, f.dim);
    uint32_t first = (uint32_t)aq_align_up(x->slots, 4);
    if (x->next_slots)
        vec_prefetch(x->next, aq_kv_head_bytes(f.dtype, f.dim));
    for (uint32_t slot = first; slot < x->next_slots; slot++) {
        ask(x, f, slot, 0, row_bytes);
        ask(x, f, BLOCK_SLOTS + slot, 0, row_bytes);
    }
    for (uint32_t slot = 0; slot < x->begin; slot++) /* K is read from slot 0 on */
        ask(x, f, BLOCK_SLOTS + slot, 0, row_bytes);
}

/* VEC_LANES units of a row from unit d on, only `lanes` of them unless that is VEC_LANES: as they
 * are, or as bytes in lanes of integers. */
union units {
    vec number;
    vec_int codes;
};
VEC_FN union units load_units(const uint8_t *row, struct form f, uint32_t d, uint32_t lanes)
{
    if (is_coded(f))
        return (union units){.codes = vec_load_u8(row + d, lanes)};
    if (lanes == VEC_LANES)
        return (union units){.number = vec_load_as(row, f.dtype, d)};
    return (union units){.number = vec_load_as_n(row, f.dtype, d, lanes)};
}

/* Number `part` of each unit. */
VEC_FN vec number_of(union units u, struct form f, int part)
{
    if (!is_coded(f))
        return u.number;
    if (f.dtype == AQ_Q8)
        return vec_from_int(u.codes);
    if (f.dtype == AQ_KIVI2)
        return vec_two_bits(part ? vec_int_shift_right(u.codes, 2u * (uint32_t)part) : u.codes);
    return vec_nibble(part ? vec_int_shift_right(u.codes, 4) : u.codes);
}

/* A vector of a query, or of sums, at the numbers `part` of units d, d + 1, ...: as many as the
 * row has there. */
VEC_FN uint32_t lanes_of(struct form f, uint32_t d, uint32_t lanes, int part)
{
    uint32_t first = d + (uint32_t)part * row_units(f);
    return (uint32_t)aq_min_u64(lanes, f.dim - first);
}
VEC_FN vec load_part(const float *from, struct form f, uint32_t d, uint32_t lanes, int part)
{
    from += d + (size_t)part * row_units(f);
    return lanes == VEC_LANES ? vec_load(from) : vec_load_n(from, lanes_of(f, d, lanes, part));
}
VEC_FN void store_part(float *to, struct form f, uint32_t d, uint32_t lanes, int part, vec v)
{
    to += d + (size_t)part * row_units(f);
    if (lanes == VEC_LANES)
        vec_store(to, v);
    else
        vec_store_n(to, v, lanes_of(f, d, lanes, part));
}

/* sum[i][s] += q[i][d..] * K[slot + s][d..] for four slots. */
VEC_FN void dot_at(const struct decode *t, const struct step *x, struct form f, uint32_t slot,
                   uint32_t d, uint32_t lanes, int queries, vec *sum)
{
    const uint8_t *rows = aq_kv_row(x->block, f.dtype, f.dim, slot);
    size_t size = unit_bytes(f);
    union units units[4];
    ask(x, f, slot, 4 * d * size, 4 * VEC_LANES * size);
    AQ_UNROLL(4)
    for (uint32_t s = 0; s < 4; s++)
        units[s] = load_units(rows + s * aq_kv_row_bytes(f.dtype, f.dim), f, d, lanes);
    AQ_UNROLL(4)
    for (int part = 0; part < unit_numbers(f); part++) {
        vec k[4];
        AQ_UNROLL(4)
        for (int s = 0; s < 4; s++)
            k[s] = number_of(units[s], f, part);
        AQ_UNROLL(4)
        for (int i = 0; i < queries; i++) {
            vec y = load_part(x->q + (size_t)i * t->dim_pad, f, d, lanes, part);
            AQ_UNROLL(4)
            for (int s = 0; s < 4; s++)
                sum[i * 4 + s] = vec_fma(k[s], y, sum[i * 4 + s]);
        }
    }
}

/* sum[i][s] = lane sums of q[i] . K[slot + s] for four slots. */
VEC_FN void dot_four(const struct decode *t, const struct step *x, struct form f, uint32_t slot,
                     int queries, vec *sum)
{
    for (int i = 0; i < 4 * queries; i++)
        sum[i] = vec_zero();
    uint32_t d = 0, units = row_units(f);
    for (; d + VEC_LANES <= units; d += VEC_LANES)
        dot_at(t, x, f, slot, d, VEC_LANES, queries, sum);
    if (d < units)
        dot_at(t, x, f, slot, d, units - d, queries, sum);
}

/* p[i][slot] = q[i] . K[slot] in whole fours or vectors from slot 0 on: what is not of slots in use
 * is of no use. */
VEC_FN void score_one(const struct decode *t, const struct step *x, struct form f)
{
    for (uint32_t slot = 0; slot < x->slots; slot += VEC_LANES) {
        vec sum[VEC_LANES];
        AQ_UNROLL(4)
        for (uint32_t s = 0; s < VEC_LANES; s += 4) {
            dot_four(t, x, f, slot + s, 1, sum + s);
        }
        vec_store(x->p + slot, vec_sum_rows(sum));
    }
}

VEC_FN void score_wide(const struct decode *t, const struct step *x, struct form f)
{
    for (uint32_t slot = 0; slot < x->slots; slot += 4) {
        vec sum[VEC_LANES];
        dot_four(t, x, f, slot, QUERIES_WIDE, sum);
        vec_store_fours(x->p + slot, BLOCK_SLOTS, vec_sum_rows(sum));
    }
}

/* Of slots v, v + 1, ...: those that are seen. */
VEC_FN vec_mask seen_lanes(const struct step *x, uint32_t v)
{
    vec_mask seen = vec_first(x->slots > v ? x->slots - v : 0);
    if (x->begin <= v) /* nearly always */
        return seen;
    return vec_both(seen,
                    vec_int_greater(vec_int_lanes(), vec_int_set((int32_t)(x->begin - v) - 1)));
}

/* Scores of codes become scores of keys; what is not of slots in use is of no use. */
VEC_FN void scale_keys(const struct decode *t, const struct step *x, uint32_t i)
{
    const uint16_t *scales = aq_kv_scales(x->block, false);
    vec q_sum = vec_set(t->q_sum[x->query + i]);
    for (uint32_t v = 0; v < BLOCK_SLOTS; v += VEC_LANES) {
        float *p = x->p + i * BLOCK_SLOTS + v;
        vec minimum = vec_mul(vec_load_f16(scales + BLOCK_SLOTS + v), q_sum);
        vec_store(p, vec_fma(vec_load(p), vec_load_f16(scales + v), minimum));
    }
}

/* Weights of values become weights of their codes; the minima go to the query's offset. */
VEC_FN void scale_values(const struct decode *t, const struct step *x, uint32_t i)
{
    const uint16_t *scales = aq_kv_scales(x->block, true);
    float *to = t->offset + (size_t)(x->query + i) * VEC_LANES;
    vec offset = vec_mul(vec_load(to), vec_set(x->correction[i]));
    for (uint32_t v = 0; v < BLOCK_SLOTS && v < x->slots; v += VEC_LANES) {
        float *p = x->p + i * BLOCK_SLOTS + v;
        vec_mask seen = seen_lanes(x, v);
        vec weight = vec_load(p), minimum = vec_load_f16(scales + BLOCK_SLOTS + v);
        offset = vec_fma_where(seen, weight, minimum, offset);
        vec_store(p, vec_mul(weight, vec_load_f16(scales + v)));
    }
    vec_store(to, offset);
}

/* Keeps what scores are made of once all blocks have been seen. */
VEC_FN void keep_weights(const struct decode *t, const struct step *x, uint32_t query,
                         const vec e[BLOCK_VECS])
{
    float *to = t->kept + (size_t)query * t->kept_slots + x->number * BLOCK_SLOTS;
    for (uint32_t v = 0; v < BLOCK_VECS; v++)
        vec_store(to + v * VEC_LANES, e[v]);
    t->kept_max[(size_t)query * t->kept_blocks + x->number] = t->max[query];
}

/* Turns the scores of a step's query i into exp(score - max), 0 but of the slots in use, and keeps
 * its maximum, its sum of weights and its correction. */
static inline void weigh(struct decode *t, struct step *x, uint32_t i)
{
    const vec lowest = vec_set(-INFINITY);
    uint32_t query = x->query + i;
    float *p = x->p + i * BLOCK_SLOTS, *weight = t->weight + (size_t)query * VEC_LANES;
    vec s[BLOCK_VECS], old = vec_set(t->max[query]), max = old;
    for (uint32_t v = 0; v < BLOCK_VECS; v++) {
        uint32_t first = v * VEC_LANES;
        s[v] = vec_select(seen_lanes(x, first), vec_load(p + first), lowest);
        max = vec_max(max, s[v]);
    }
    max = vec_max_all(max);
    /* While all scores are -inf, subtracting 0 gives weights of 0 instead of NaN. */
    vec base = vec_zero_where(vec_equal(max, lowest), max);
    vec correction = vec_exp(vec_sub(old, base)), added = vec_zero();
    for (uint32_t v = 0; v < BLOCK_VECS; v++) {
        s[v] = vec_exp(vec_sub(s[v], base));
        vec_store(p + v * VEC_LANES, s[v]);
        added = vec_add(added, s[v]);
    }
    vec_store(weight, vec_fma(vec_load(weight), correction, added));
    t->max[query] = vec_first_lane(max);
    if (t->kept)
        keep_weights(t, x, query, s);
    x->correction[i] = vec_first_lane(correction);
}

/* The group of V, counted over queries, of the numbers `part` of units d, d + 1, ... */
VEC_FN size_t group_of(struct form f, int query, uint32_t d, int part)
{
    return (size_t)query * aq_kivi_groups(f.dim) +
           (d + (uint32_t)part * row_units(f)) / AQ_KIVI_GROUP;
}

/* sum[i][v] += p[i][slot] * V[slot][d..] */
VEC_FN void add_slot(const struct decode *t, const struct step *x, struct form f, uint32_t slot,
                     uint32_t d, uint32_t lanes, int queries, int vecs, vec *sum)
{
    const uint8_t *row = aq_kv_row(x->block, f.dtype, f.dim, BLOCK_SLOTS + slot);
    size_t size = unit_bytes(f);
    int numbers = unit_numbers(f);
    ask(x, f, BLOCK_SLOTS + slot, d * size, (size_t)vecs * VEC_LANES * size);
    AQ_UNROLL(8)
    for (int v = 0; v < vecs; v++) {
        uint32_t at = d + (uint32_t)v * VEC_LANES;
        union units units = load_units(row, f, at, lanes);
        AQ_UNROLL(4)
        for (int part = 0; part < numbers; part++) {
            vec y = number_of(units, f, part);
            AQ_UNROLL(4)
            for (int i = 0; i < queries; i++) {
                vec *to = &sum[(i * vecs + v) * numbers + part];
                const float *p = aq_dtype_is_kivi(f.dtype)
                                     ? t->group_p + group_of(f, i, at, part) * BLOCK_SLOTS
                                     : x->p + i * BLOCK_SLOTS;
                *to = vec_fma(vec_set(p[slot]), y, *to);
            }
        }
    }
}

/* sum[i][d..] = sum[i][d..] * correction[i] + sum over slots of p[i][slot] * V[slot][d..]
 * for `queries` queries and `vecs` vectors of units along d, each of `lanes` lanes. */
VEC_FN void add_values_at(const struct decode *t, const struct step *x, struct form f, uint32_t d,
                          uint32_t lanes, int queries, int vecs)
{
    float *to = t->sum + (size_t)x->query * t->dim_pad;
    int numbers = unit_numbers(f), each = vecs * numbers;
    vec sum[SUMS_MAX];
    AQ_UNROLL(4)
    for (int i = 0; i < queries; i++) {
        AQ_UNROLL(8)
        for (int n = 0; n < each; n++) {
            uint32_t at = d + (uint32_t)(n / numbers) * VEC_LANES;
            vec before = load_part(to + (size_t)i * t->dim_pad, f, at, lanes, n % numbers);
            vec correction = vec_set(x->correction[i]);
            if (aq_dtype_is_kivi(f.dtype))
                sum[i * each + n] = vec_fma(
                    before, correction, vec_set(t->group_offset[group_of(f, i, at, n % numbers)]));
            else
                sum[i * each + n] = vec_mul(before, correction);
        }
    }
    uint32_t slot = x->begin;
    for (; slot + 4 <= x->slots; slot += 4) {
        AQ_UNROLL(4)
        for (uint32_t s = 0; s < 4; s++)
            add_slot(t, x, f, slot + s, d, lanes, queries, vecs, sum);
    }
    for (; slot < x->slots; slot++)
        add_slot(t, x, f, slot, d, lanes, queries, vecs, sum);
    AQ_UNROLL(4)
    for (int i = 0; i < queries; i++) {
        AQ_UNROLL(8)
        for (int n = 0; n < each; n++) {
            uint32_t at = d + (uint32_t)(n / numbers) * VEC_LANES;
            store_part(to + (size_t)i * t->dim_pad, f, at, lanes, n % numbers, sum[i * each + n]);
        }
    }
}

VEC_FN void add_values(const struct decode *t, const struct step *x, struct form f, int queries,
                       int vecs)
{
    uint32_t d = 0, units = row_units(f), whole = units / VEC_LANES * VEC_LANES;
    vecs = vecs > unit_numbers(f) ? vecs / unit_numbers(f) : 1;
    for (; d + vecs * VEC_LANES <= whole; d += vecs * VEC_LANES)
        add_values_at(t, x, f, d, VEC_LANES, queries, vecs);
    for (; vecs > 4 && d + 4 * VEC_LANES <= whole; d += 4 * VEC_LANES)
        add_values_at(t, x, f, d, VEC_LANES, queries, 4);
    for (; vecs > 2 && d + 2 * VEC_LANES <= whole; d += 2 * VEC_LANES)
        add_values_at(t, x, f, d, VEC_LANES, queries, 2);
    for (; d < whole; d += VEC_LANES)
        add_values_at(t, x, f, d, VEC_LANES, queries, 1);
    if (d < units)
        add_values_at(t, x, f, d, units - d, queries, 1);
}

#include "kernels/cpu/attn_kivi_simd.h"

/* Chooses what K is multiplied by. */
VEC_FN void set_queries(const struct decode *t, struct step *x, struct form f, int queries)
{
    if (aq_dtype_is_kivi(f.dtype))
        scale_queries(t, x, f, queries);
    else
        x->q = t->q + (size_t)x->query * t->dim_pad;
}

VEC_FN void weigh_codes(struct decode *t, struct step *x, struct form f, uint32_t i)
{
    if (aq_dtype_is_quantised(f.dtype))
        scale_keys(t, x, i);
    if (aq_dtype_is_kivi(f.dtype))
        add_key_offset(x, i);
    weigh(t, x, i);
    if (aq_dtype_is_quantised(f.dtype))
        scale_values(t, x, i);
    if (aq_dtype_is_kivi(f.dtype))
        spread_weights(t, x, f, i);
}

/* The slot of block b that a border between keys comes before; 0 and 32 where it is outside. */
static inline uint32_t border_in(uint32_t key, uint32_t b)
{
    uint32_t first = b * BLOCK_SLOTS;
    return key <= first ? 0 : (uint32_t)aq_min_u64(key - first, BLOCK_SLOTS);
}

#include "kernels/cpu/attn_turned_simd.h"

VEC_FN void attend_one(struct decode *t, struct step *x, struct form f)
{
    ask_rest(x, f);
    set_queries(t, x, f, 1);
    score_one(t, x, f);
    if (is_turned(t, x))
        score_turned(t, x, (struct form){f.dtype, t->dim}, 1);
    weigh_codes(t, x, f, 0);
    add_values(t, x, f, 1, VECS_ONE);
}

VEC_FN void attend_wide(struct decode *t, struct step *x, struct form f)
{
    ask_rest(x, f);
    set_queries(t, x, f, QUERIES_WIDE);
    score_wide(t, x, f);
    if (is_turned(t, x))
        score_turned(t, x, (struct form){f.dtype, t->dim}, QUERIES_WIDE);
    for (uint32_t i = 0; i < QUERIES_WIDE; i++)
        weigh_codes(t, x, f, i);
    add_values(t, x, f, QUERIES_WIDE, VECS_WIDE);
}

/* Slots of block b that queries [query, last] of a head see between them: rows ascend, and so does
 * what they see. */
static inline struct span slots_seen(const struct decode *t, uint32_t query, uint32_t last,
                                     uint32_t b)
{
    return (struct span){border_in(t->first[query], b), border_in(t->visible[last], b)};
}

static inline bool sees_alike(const struct decode *t, uint32_t query, uint32_t other, uint32_t b)
{
    struct span x = slots_seen(t, query, query, b), y = slots_seen(t, other, other, b);
    return x.begin == y.begin && x.end == y.end;
}

struct decode_job {
    struct aq_exec *ex;
    const struct aq_attn *a;
    uint32_t tile_heads, tiles_per_seq; /* KV heads of a tile, the last tile maybe fewer */
    uint32_t members_max;               /* sequences that share blocks, of a tile */
};

/* The heads [head, head_end) of a sequence, of which `heads` from `head` on are at work, and which
 * of its queries: numbered by row, then by query head of the group.  Of several sequences of a row
 * each, which share blocks, one head is at work: rows are numbered through all of them. */
struct decode_run {
    const struct aq_attn *a;
    const struct aq_attn_seq *seq; /* the first of `members` */
    uint32_t members;
    uint32_t head, heads, head_end;
    uint32_t query;
};

/* The sequence of a row, and the row's number in it. */
static inline const struct aq_attn_seq *row_seq(const struct decode_run *run, uint32_t *row)
{
    const struct aq_attn_seq *seq = run->seq;
    if (run->members > 1) {
        seq += *row;
        *row = 0;
    }
    return seq;
}

/* Keys of the longest of the heads [head, end). */
static inline uint32_t longest(const struct aq_attn_seq *seq, uint32_t head, uint32_t end)
{
    uint32_t len = 0;
    for (; head < end; head++)
        len = (uint32_t)aq_max_u64(len, aq_attn_len(seq, head));
    return len;
}

/* Lays the scratch area out for this many queries, and for what is kept of this many slots. */
static struct decode decode_open(struct aq_exec *ex, uint32_t worker, uint32_t dim, uint32_t heads,
                                 uint32_t count, uint32_t kept_slots)
{
    struct decode t = {.heads = heads, .count = count, .dim = dim};
    uint32_t queries = heads * count;
    assert(queries <= QUERIES_MAX);
    t.dim_pad = (uint32_t)aq_align_up(dim, VEC_LANES);
    t.p = aq_exec_scratch(ex, worker);
    t.weight = t.p + VEC_LANES * BLOCK_SLOTS;
    t.offset = t.weight + (size_t)queries * VEC_LANES;
    t.q = t.offset + (size_t)queries * VEC_LANES;
    t.sum = t.q + (size_t)queries * t.dim_pad;
    t.q_scaled = t.sum + (size_t)queries * t.dim_pad;
    t.group_p = t.q_scaled + (size_t)QUERIES_WIDE * t.dim_pad;
    t.q_ordered = t.group_p + (size_t)QUERIES_WIDE * aq_kivi_groups(dim) * BLOCK_SLOTS;
    size_t widened = aq_attn_widened_floats(dim);
    t.wide = t.q_ordered + QUERIES_MAX * widened;
    t.group_offset = t.wide + 2 * BLOCK_SLOTS * widened;
    if (kept_slots) {
        t.kept_blocks = (uint32_t)aq_align_up(aq_div_up(kept_slots, BLOCK_SLOTS), 16);
        t.kept_slots = (uint32_t)aq_align_up(kept_slots, BLOCK_SLOTS);
        /* The part that lasts from one set of queries to the next comes first. */
        t.partial = t.p + aq_attn_scratch_bytes(dim) / sizeof(float);
        t.kept = t.partial + t.kept_slots;
        t.kept_max = t.kept + (size_t)queries * t.kept_slots;
        assert(t.kept_max + (size_t)queries * t.kept_blocks <=
               t.p + aq_exec_scratch_size(ex) / sizeof(float));
    }
    return t;
}

static void load_queries(struct decode *t, const struct decode_run *run)
{
    const struct aq_attn *a = run->a;
    uint32_t queries = t->heads * t->count;
    t->turn = run->seq->turn;
    for (uint32_t i = 0; i < queries; i++) {
        uint32_t head = run->head + i / t->count, query = run->query + i % t->count;
        uint32_t row = query / a->q_per_kv, group = query % a->q_per_kv;
        const struct aq_attn_seq *seq = row_seq(run, &row);
        uint32_t len = aq_attn_len(seq, head);
        const float *from = a->q + (seq->row + (size_t)row) * a->q_stride +
                            ((size_t)head * a->q_per_kv + group) * a->head_dim;
        float *to = t->q + (size_t)i * t->dim_pad;
        t->q_sum[i] = 0;
        for (uint32_t d = 0; d < t->dim_pad; d++) {
            to[d] = d < t->dim ? from[d] * a->scale : 0;
            t->q_sum[i] += to[d];
        }
        t->visible[i] = aq_attn_visible(len, seq->rows, row);
        t->first[i] = aq_attn_first(a->window, t->visible[i]);
        t->max[i] = -INFINITY;
        vec_store(t->weight + (size_t)i * VEC_LANES, vec_zero());
        vec_store(t->offset + (size_t)i * VEC_LANES, vec_zero());
    }
    memset(t->sum, 0, (size_t)queries * t->dim_pad * sizeof(*t->sum));
}

static void store_outputs(const struct decode *t, const struct decode_run *run)
{
    const struct aq_attn *a = run->a;
    bool quantised = aq_dtype_is_quantised(a->kv_dtype);
    for (uint32_t i = 0; i < t->heads * t->count; i++) {
        uint32_t query = run->query + i % t->count;
        uint32_t of_seq = query / a->q_per_kv;
        const struct aq_attn_seq *seq = row_seq(run, &of_seq);
        size_t row = seq->row + (size_t)of_seq;
        size_t head = (size_t)(run->head + i / t->count) * a->q_per_kv + query % a->q_per_kv;
        size_t to = row * a->out_stride + head * a->head_dim;
        float weight = vec_sum(vec_load(t->weight + (size_t)i * VEC_LANES));
        vec divisor = vec_set(t->visible[i] ? weight : 1); /* sees nothing: 0 / 1 */
        vec offset = vec_set(vec_sum(vec_load(t->offset + (size_t)i * VEC_LANES)));
        for (uint32_t d = 0; d < t->dim; d += VEC_LANES) {
            vec sum = vec_load(t->sum + (size_t)i * t->dim_pad + d);
            vec y = vec_div(quantised ? vec_add(sum, offset) : sum, divisor);
            vec_store_as_n(a->out, a->out_dtype, to + d, y,
                           (uint32_t)aq_min_u64(VEC_LANES, t->dim - d));
        }
        if (a->log_sum_exp)
            a->log_sum_exp[row * a->kv_heads * a->q_per_kv + head] = t->max[i] + logf(weight);
    }
}

/* Sets the block after block b of this head (counted from run->head) as the one to ask for: the
 * next head's, the first head's next one, or at the end the first of the heads that follow.
 * Memory is read front to back where heads lie side by side. */
static void find_next(struct step *x, const struct decode_run *run, uint32_t head, uint32_t b,
                      uint32_t blocks)
{
    uint32_t next = run->head;
    enum aq_dtype dtype = aq_attn_block_dtype(run->a, run->seq, b);
    bool others = head + 1 == run->heads && ++b >= blocks;
    if (head + 1 < run->heads)
        next += head + 1;
    else if (others)
        next += run->heads;
    uint32_t len = next < run->head_end ? aq_attn_len(run->seq, next) : 0;
    if (others)
        b = aq_attn_first(run->a->window, aq_attn_visible(len, run->seq->rows, 0)) / BLOCK_SLOTS;
    x->next_slots = 0; /* rows of another format lie elsewhere */
    if (len > b * BLOCK_SLOTS && aq_attn_block_dtype(run->a, run->seq, b) == dtype) {
        x->next = aq_attn_block(run->seq, next, b);
        x->next_slots = (uint32_t)aq_min_u64(len - b * BLOCK_SLOTS, BLOCK_SLOTS);
    }
}

/* Sanitizers instrument every copy of what is inlined: in their builds there is one of the
 * following, which asks for its form as it goes. */
#if AQ_UNROLLS
#define ATTEND_FN VEC_FN
#else
#define ATTEND_FN static __attribute__((noinline))
#endif

/* Attends block b with a span of queries of a head, several together where they see the same of it;
 * the first step asks for the next block. */
ATTEND_FN void attend_block(struct decode *t, struct step *x, struct form f, struct span of,
                            uint32_t b)
{
    uint32_t end = of.end;
    for (uint32_t query = of.begin; query < end; query += x->wide ? QUERIES_WIDE : 1) {
        uint32_t last = query + QUERIES_WIDE - 1;
        struct span seen = slots_seen(t, query, query, b);
        x->query = query;
        x->number = b;
        x->begin = seen.begin;
        x->slots = seen.end;
        x->wide = last < end && sees_alike(t, query, last, b);
        if (seen.begin >= seen.end)
            continue;
        if (x->wide)
            attend_wide(t, x, f);
        else
            attend_one(t, x, f);
        x->next_slots = 0;
    }
}

/* Attends block b, once it and the next one are set: one function a format and head size, for what
 * attends a block with many queries (attend_jointly) or seldom. */
typedef void attend_fn(struct decode *t, const struct step *step, struct span of, uint32_t b);

#define ATTEND(name, how, dtype, head_dim)                                                         \
    static __attribute__((noinline)) void name(struct decode *t, const struct step *step,          \
                                               struct span of, uint32_t b)                         \
    {                                                                                              \
        struct step x = *step;                                                                     \
        how(t, &x, (struct form){dtype, head_dim}, of, b);                                         \
    }

/* Head sizes that most models have are constants to the compiler. */
#if AQ_UNROLLS
#define ATTEND_SIZES(name, how, dtype)                                                             \
    ATTEND(name, how, dtype, t->dim)                                                               \
    ATTEND(name##_64, how, dtype, 64)                                                              \
    ATTEND(name##_128, how, dtype, 128)
#define ATTEND_ALL(name) name, name##_64, name##_128
#else
#define ATTEND_SIZES(name, how, dtype) ATTEND(name, how, dtype, t->dim)
#define ATTEND_ALL(name)               name, name, name
#endif

ATTEND_SIZES(attend_f32, attend_block, AQ_F32)
ATTEND_SIZES(attend_f16, attend_block, AQ_F16)
ATTEND_SIZES(attend_bf16, attend_block, AQ_BF16)
ATTEND_SIZES(attend_q8, attend_block, AQ_Q8)
ATTEND_SIZES(attend_q4, attend_block, AQ_Q4)

/* The same for KIVI's codes: a block whose rows are not whole vectors is widened to f32 first. */
VEC_FN void attend_codes(struct decode *t, struct step *x, struct form f, struct span of,
                         uint32_t b)
{
    if (!is_direct(f)) {
        if (x->next_slots)
            vec_prefetch(x->next, aq_kv_block_bytes(f.dtype, f.dim));
        x->next_slots = 0;
        x->block = widen_block(t, x->block, f);
        attend_f32(t, x, of, b);
    } else {
        attend_block(t, x, f, of, b);
    }
}

ATTEND_SIZES(attend_kivi4, attend_codes, AQ_KIVI4)
ATTEND_SIZES(attend_kivi2, attend_codes, AQ_KIVI2)

/* For a block of this format: for rare head sizes, for 64, for 128. */
static attend_fn *const attend_fns[AQ_DTYPE_COUNT][3] = {
    [AQ_F32] = {ATTEND_ALL(attend_f32)},     [AQ_F16] = {ATTEND_ALL(attend_f16)},
    [AQ_BF16] = {ATTEND_ALL(attend_bf16)},   [AQ_Q8] = {ATTEND_ALL(attend_q8)},
    [AQ_Q4] = {ATTEND_ALL(attend_q4)},       [AQ_KIVI4] = {ATTEND_ALL(attend_kivi4)},
    [AQ_KIVI2] = {ATTEND_ALL(attend_kivi2)},
};

static inline int size_number(uint32_t dim)
{
    return dim == 64 ? 1 : dim == 128 ? 2 : 0;
}

/* Block b of a sequence. */
static inline void attend(struct decode *t, const struct decode_run *run,
                          const struct aq_attn_seq *seq, const struct step *x, struct span of,
                          uint32_t b)
{
    attend_fns[aq_attn_block_dtype(run->a, seq, b)][size_number(t->dim)](t, x, of, b);
}

/* Asks for what is remembered of slots, which is wanted when all blocks have been seen: during the
 * last quarter of them, for four blocks each, or K and V would have driven it out by then. */
VEC_FN void ask_slots(const struct decode_run *run, uint32_t head, uint32_t b, uint32_t blocks)
{
    const struct aq_attn_slots *s = &run->seq->slots;
    uint32_t late = blocks - (uint32_t)aq_div_up(blocks, 4), len = blocks * BLOCK_SLOTS;
    if (b < late)
        return;
    uint32_t slot = (b - late) * 4 * BLOCK_SLOTS;
    size_t at = (size_t)(run->head + head) * s->stride + slot;
    size_t slots = slot < len ? aq_min_u64(len - slot, 4 * BLOCK_SLOTS) : 0;
    vec_prefetch(s->score + at, slots * sizeof(*s->score));
    if (s->victim)
        vec_prefetch(s->position + at, slots * sizeof(*s->position));
}

VEC_FN void attend_blocks(struct decode *t, const struct decode_run *run, struct form f)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < t->heads * t->count; i++) {
        least = (uint32_t)aq_min_u64(least, t->first[i]);
        most = (uint32_t)aq_max_u64(most, t->visible[i]);
    }
    uint32_t blocks = (uint32_t)aq_div_up(most, BLOCK_SLOTS);
    struct step x = {.p = t->p};
    for (uint32_t b = least / BLOCK_SLOTS; b < blocks; b++) {
        for (uint32_t head = 0; head < t->heads; head++) {
            struct span seen = slots_seen(t, head * t->count, (head + 1) * t->count - 1, b);
            if (seen.begin >= seen.end)
                continue;
            x.block = aq_attn_block(run->seq, run->head + head, b);
            find_next(&x, run, head, b, blocks);
            if (t->kept)
                ask_slots(run, head, b, blocks);
            struct span of = {head * t->count, (head + 1) * t->count};
            if (!aq_dtype_is_kivi(f.dtype))
                attend_block(t, &x, f, of, b);
            else if (b >= run->seq->coded)
                attend(t, run, run->seq, &x, of, b);
            else
                attend_codes(t, &x, f, of, b);
        }
    }
}

/* All blocks of a sequence, once for each format and head size: a call for each block is 5 % of
 * the time of int8. */
typedef void attend_all_fn(struct decode *restrict t, const struct decode_run *run);

#define ATTEND_BLOCKS(name, dtype, head_dim)                                                       \
    static __attribute__((noinline)) void name(struct decode *restrict t,                          \
                                               const struct decode_run *run)                       \
    {                                                                                              \
        attend_blocks(t, run, (struct form){dtype, head_dim});                                     \
    }
#if AQ_UNROLLS
#define BLOCKS_SIZES(name, dtype)                                                                  \
    ATTEND_BLOCKS(name, dtype, t->dim)                                                             \
    ATTEND_BLOCKS(name##_64, dtype, 64)                                                            \
    ATTEND_BLOCKS(name##_128, dtype, 128)
#else
#define BLOCKS_SIZES(name, dtype) ATTEND_BLOCKS(name, dtype, t->dim)
#endif

BLOCKS_SIZES(blocks_f32, AQ_F32)
BLOCKS_SIZES(blocks_f16, AQ_F16)
BLOCKS_SIZES(blocks_bf16, AQ_BF16)
BLOCKS_SIZES(blocks_q8, AQ_Q8)
BLOCKS_SIZES(blocks_q4, AQ_Q4)
BLOCKS_SIZES(blocks_kivi4, AQ_KIVI4)
BLOCKS_SIZES(blocks_kivi2, AQ_KIVI2)

static attend_all_fn *const blocks_fns[AQ_DTYPE_COUNT][3] = {
    [AQ_F32] = {ATTEND_ALL(blocks_f32)},     [AQ_F16] = {ATTEND_ALL(blocks_f16)},
    [AQ_BF16] = {ATTEND_ALL(blocks_bf16)},   [AQ_Q8] = {ATTEND_ALL(blocks_q8)},
    [AQ_Q4] = {ATTEND_ALL(blocks_q4)},       [AQ_KIVI4] = {ATTEND_ALL(blocks_kivi4)},
    [AQ_KIVI2] = {ATTEND_ALL(blocks_kivi2)},
};

#include "kernels/cpu/attn_widened_simd.h"

#include "kernels/cpu/attn_joint_simd.h"

/* Adds what these queries saw to the scores of their heads. */
static void remember(struct decode *t, const struct decode_run *run)
{
    const struct aq_attn *a = run->a;
    const struct aq_attn_slots *slots = &run->seq->slots;
    uint32_t row = run->query / a->q_per_kv, first = run->query % a->q_per_kv;
    for (uint32_t i = 0; i < t->heads * t->count; i++) {
        vec weight = vec_set(vec_sum(vec_load(t->weight + (size_t)i * VEC_LANES)));
        vec max = vec_set(t->max[i]);
        float *m = t->kept_max + (size_t)i * t->kept_blocks;
        uint32_t b = t->first[i] / BLOCK_SLOTS / VEC_LANES * VEC_LANES;
        for (; b * BLOCK_SLOTS < t->visible[i]; b += VEC_LANES)
            vec_store(m + b, vec_div(vec_exp(vec_sub(vec_load(m + b), max)), weight));
    }
    for (uint32_t head = 0; head < t->heads; head++) {
        uint32_t query = head * t->count;
        struct slot_pass x = {
            .a = a,
            .seq = run->seq,
            .rule = a->rule,
            .score = slots->score + (size_t)(run->head + head) * slots->stride,
            .head = run->head + head,
            .q_per_kv = a->q_per_kv,
            .first = t->first[query],
            .keys = t->visible[query],
            .queries = t->count,
            .begins = first == 0,
            .ends = first + t->count == a->q_per_kv,
            .kept = t->kept + (size_t)query * t->kept_slots,
            .kept_stride = t->kept_slots,
            .factor = t->kept_max + (size_t)query * t->kept_blocks,
            .factor_stride = t->kept_blocks,
            .partial = t->partial,
        };
        x.choose = x.ends && row + 1 == run->seq->rows && slots->victim && !x.rule.together;
        slots_pass(x);
    }
}

/* KV heads attended side by side. */
static inline uint32_t heads_together(uint32_t queries, uint32_t kept_slots)
{
    uint64_t heads = aq_max_u64(1, AQ_ATTN_DECODE_QUERIES / queries);
    if (kept_slots)
        heads =
            aq_min_u64(heads, AQ_ATTN_KEPT_FLOATS / (queries * aq_attn_kept_floats(kept_slots)));
    return (uint32_t)aq_max_u64(1, heads);
}

static void decode_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct decode_job *job = arg;
    const struct aq_attn *a = job->a;
    uint32_t number = tile / job->tiles_per_seq;
    const struct aq_attn_seq *seq = &a->seqs[number];
    uint32_t head = tile % job->tiles_per_seq * job->tile_heads;
    struct decode_run run = {.a = a, .seq = seq, .head = head};
    run.members = joint_members(a, job->members_max, number);
    if (!run.members)
        return;
    run.head_end = (uint32_t)aq_min_u64(head + job->tile_heads, a->kv_heads);
    uint32_t kept = a->rule.victim && seq->slots.score ? longest(seq, head, run.head_end) : 0;
    /* Scores are of one row after the other. */
    uint32_t queries = seq->rows * run.members * a->q_per_kv, wave = kept ? a->q_per_kv : queries;
    uint32_t together = run.members > 1 ? 1 : heads_together(wave, kept);
    uint32_t most = run.members > 1 ? AQ_ATTN_JOINT_QUERIES : AQ_ATTN_DECODE_QUERIES;
    for (; run.head < run.head_end; run.head += run.heads) {
        run.heads = (uint32_t)aq_min_u64(together, run.head_end - run.head);
        uint32_t count;
        for (run.query = 0; run.query < queries; run.query += count) {
            count = (uint32_t)aq_min_u64(most, wave - run.query % wave);
            struct decode t = decode_open(job->ex, worker, a->head_dim, run.heads, count, kept);
            load_queries(&t, &run);
            if (run.members > 1)
                attend_jointly(&t, &run);
            else
                blocks_fns[a->kv_dtype][size_number(t.dim)](&t, &run);
            store_outputs(&t, &run);
            if (kept)
                remember(&t, &run);
        }
    }
    bool choose = a->rule.victim && seq->slots.victim && !a->rule.together;
    for (; !kept && choose && head < run.head_end; head++)
        slots_victim(a, seq, head);
}

void VEC_VERSION(attn_decode)(struct aq_exec *ex, const struct aq_attn *a)
{
    aq_attn_decode_assert(a);
    assert(aq_attn_scratch_bytes(a->head_dim) <= aq_exec_scratch_size(ex));
    struct aq_pool *pool = aq_exec_pool(ex);
    struct decode_job job = {.ex = ex, .a = a};
    /* Larger tiles ask ahead across heads; enough of them must be left for balance. */
    job.members_max = joint_members_max(a, aq_pool_threads(pool));
    uint64_t heads = (uint64_t)joint_tiles(a, job.members_max) * a->kv_heads;
    uint64_t tile_heads = heads / (16ull * aq_pool_threads(pool));
    job.tile_heads = (uint32_t)aq_max_u64(1, aq_min_u64(tile_heads, 8));
    job.tiles_per_seq = (uint32_t)aq_div_up(a->kv_heads, job.tile_heads);
    aq_pool_run(pool, decode_tile, &job, a->seq_count * job.tiles_per_seq);
}
