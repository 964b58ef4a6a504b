/* SPDX-License-Identifier: Apache-2.0
 * One block of K and V against the queries at work, on vec.h; a part of attn_decode_simd.h, which
 * says in which order blocks, heads and queries follow each other.
 *
 * Scores are dot products along the dimension of the head, under an online softmax per block
 * (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018); then the weighted
 * sum of V goes to the accumulators of the query.
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
 * Blocks of KIVI are multiplied in whole numbers (attn_kivi_simd.h).
 *
 * Every query is scaled once, in f32, and its sums are formed in one order whatever shares its
 * tile: lane l of a score adds d = l, l + VEC_LANES, ..., then lanes in vec_sum()'s order; blocks
 * and slots ascend, from the first block with a slot that the query sees; slots that it does not
 * see take no part. */

enum {
    BLOCK_VECS = BLOCK_SLOTS / VEC_LANES,
    QUERIES_MAX = AQ_ATTN_JOINT_QUERIES,
    /* Queries worked on together at most, so that each vector of K and V is loaded once for all. */
    QUERIES_WIDE = VEC_LANES / 4,
    /* Vectors of outputs kept in registers at a time: of one query, and of several in all. */
    VECS_ONE = 8,
    VECS_WIDE = VEC_LANES * VEC_LANES / 16,
    SUMS_MAX = 16,
};

/* The queries at work: `count` of each of `heads` KV heads, at most QUERIES_MAX in all. */
struct decode {
    uint32_t heads, count, dim, dim_pad;
    float *q;        /* [heads][count][dim_pad], scaled, zero-padded */
    float *sum;      /* [heads][count][dim_pad] */
    float *weight;   /* [heads][count][VEC_LANES]: sums of exp(), by lane */
    float *p;        /* [VEC_LANES][BLOCK_SLOTS]: scores of a step, then their exp() */
    float *offset;   /* [heads][count][VEC_LANES]: sums of weight times V's minimum, by lane */
    float *q_turned; /* [dim_pad]: a query that is turned back */
    /* Of KIVI, of QUERIES_WIDE queries and each group: what codes are multiplied by, up to two
     * bytes for each of 32, and what is added to sums of V's codes (groups in fours). */
    int8_t *whole;
    float *group_offset;
    bool fused;       /* the CPU has AVX512-VNNI */
    float *q_ordered; /* the queries as a widened block is multiplied (attn_widened_simd.h) */
    float *wide;      /* a widened block; of KIVI, scales and queries on their way */
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

/* Up to QUERIES_WIDE queries that see the same slots, against a block. */
struct step {
    const uint8_t *block;
    uint32_t number;                /* of the block */
    uint32_t query;                 /* the first one */
    uint32_t begin, slots;          /* what is seen of the block: slots [begin, slots) */
    const uint8_t *next;            /* the block to ask for meanwhile: */
    uint32_t next_slots;            /* this many slots of it */
    const float *q;                 /* [queries][dim_pad] */
    float *p;                       /* of the queries: [BLOCK_SLOTS] of each */
    float correction[QUERIES_WIDE]; /* what the sums so far must be multiplied by */
    vec_mask seen[BLOCK_VECS];      /* what is seen, by lane */
};

/* Bounds that let the compiler lay the loops out: constants, but for head sizes that are rare.
 */
struct form {
    enum aq_dtype dtype;
    uint32_t dim;
};

/* The unit of a load: an element, or a byte with one code or two. */
VEC_FN size_t unit_bytes(struct form f)
{
    return aq_dtype_is_quantised(f.dtype) ? 1 : aq_dtype_bytes(f.dtype);
}
VEC_FN uint32_t row_units(struct form f)
{
    return (uint32_t)(aq_kv_row_bytes(f.dtype, f.dim) / unit_bytes(f));
}
/* Numbers in a unit: number n of unit d is that of d + n * row_units(). */
VEC_FN int unit_numbers(struct form f)
{
    return f.dtype == AQ_Q4 ? 2 : 1;
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
    if (aq_dtype_is_quantised(f.dtype))
        return (union units){.codes = vec_load_u8(row + d, lanes)};
    if (lanes == VEC_LANES)
        return (union units){.number = vec_load_as(row, f.dtype, d)};
    return (union units){.number = vec_load_as_n(row, f.dtype, d, lanes)};
}

/* Number `part` of each unit. */
VEC_FN vec number_of(union units u, struct form f, int part)
{
    if (!aq_dtype_is_quantised(f.dtype))
        return u.number;
    if (f.dtype == AQ_Q8)
        return vec_from_int(u.codes);
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

/* sum[i][s] += q[i][d..] * K[slot + s][d..] for four slots; sums of a query are `each` apart. */
VEC_FN void dot_at(const struct decode *t, const struct step *x, struct form f, uint32_t slot,
                   uint32_t d, uint32_t lanes, int queries, int each, vec *sum)
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
                sum[i * each + s] = vec_fma(k[s], y, sum[i * each + s]);
        }
    }
}

/* Sums of a query that lie side by side in a vector of sums of several: 1, 2 or 4 shares of it. */
VEC_FN int sums_each(int queries)
{
    return queries == 1 ? VEC_LANES : queries == 2 ? VEC_LANES / 2 : VEC_LANES / 4;
}

/* p[i][slot] = q[i] . K[slot] in whole shares of a vector from slot 0 on: what is not of slots in
 * use is of no use. */
VEC_FN void score(const struct decode *t, const struct step *x, struct form f, int queries)
{
    const int each = sums_each(queries);
    uint32_t units = row_units(f), whole = units / VEC_LANES * VEC_LANES;
    for (uint32_t slot = 0; slot < x->slots; slot += (uint32_t)each) {
        vec sum[VEC_LANES];
        AQ_UNROLL(16)
        for (int i = 0; i < VEC_LANES; i++)
            sum[i] = vec_zero();
        AQ_UNROLL(4)
        for (int s = 0; s < each; s += 4) {
            uint32_t at = slot + (uint32_t)s;
            for (uint32_t d = 0; d < whole; d += VEC_LANES)
                dot_at(t, x, f, at, d, VEC_LANES, queries, each, sum + s);
            if (whole < units)
                dot_at(t, x, f, at, whole, units - whole, queries, each, sum + s);
        }
        vec_store_shares(x->p + slot, BLOCK_SLOTS, each, vec_sum_rows(sum));
    }
}

/* Notes which slots are seen. */
VEC_FN void see(struct step *x, uint32_t begin, uint32_t end)
{
    x->begin = begin;
    x->slots = end;
    for (uint32_t v = 0; v < BLOCK_VECS; v++) {
        uint32_t first = v * VEC_LANES;
        x->seen[v] = vec_first(end > first ? end - first : 0);
        if (begin > first) /* seldom */
            x->seen[v] =
                vec_both(x->seen[v], vec_int_greater(vec_int_lanes(),
                                                     vec_int_set((int32_t)(begin - first) - 1)));
    }
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
        vec_mask seen = x->seen[v / VEC_LANES];
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

/* Turns the scores of `queries` queries of each of `blocks` steps, QUERIES_WIDE at most, into
 * exp(score - max), 0 but of the slots in use, and keeps their maxima, their sums of weights and
 * their corrections.  Item k * queries + i is query i of step k. */
VEC_FN void weigh(struct decode *t, struct step *x, int blocks, int queries)
{
    const vec lowest = vec_set(-INFINITY);
    const int items = blocks * queries;
    vec s[QUERIES_WIDE][BLOCK_VECS], most[QUERIES_WIDE], old = lowest;
    AQ_UNROLL(4)
    for (int item = 0; item < items; item++) {
        const struct step *of = &x[item / queries];
        const int i = item % queries;
        old = vec_select(vec_fourth(item), vec_set(t->max[of->query + (uint32_t)i]), old);
        most[item] = lowest;
        AQ_UNROLL(4)
        for (int v = 0; v < BLOCK_VECS; v++) {
            const float *p = of->p + i * BLOCK_SLOTS + v * VEC_LANES;
            s[item][v] = vec_select(of->seen[v], vec_load(p), lowest);
            most[item] = vec_max(most[item], s[item][v]);
        }
    }
    vec max = vec_max(vec_max_each(most, items), old);
    /* While all scores are -inf, subtracting 0 gives weights of 0 instead of NaN. */
    vec base = vec_zero_where(vec_equal(max, lowest), max);
    float maxima[VEC_LANES], bases[VEC_LANES], corrections[VEC_LANES];
    vec_store(maxima, max);
    vec_store(bases, base);
    vec_store(corrections, vec_exp(vec_sub(old, base)));
    AQ_UNROLL(4)
    for (int item = 0; item < items; item++) {
        struct step *of = &x[item / queries];
        const int i = item % queries;
        const uint32_t query = of->query + (uint32_t)i;
        float *weight = t->weight + (size_t)query * VEC_LANES;
        vec added = vec_zero();
        AQ_UNROLL(4)
        for (int v = 0; v < BLOCK_VECS; v++) {
            s[item][v] = vec_exp(vec_sub(s[item][v], vec_set(bases[4 * item])));
            vec_store(of->p + i * BLOCK_SLOTS + v * VEC_LANES, s[item][v]);
            added = vec_add(added, s[item][v]);
        }
        of->correction[i] = corrections[4 * item];
        vec_store(weight, vec_fma(vec_load(weight), vec_set(corrections[4 * item]), added));
        t->max[query] = maxima[4 * item];
        if (t->kept)
            keep_weights(t, of, query, s[item]);
    }
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
                *to = vec_fma(vec_set(x->p[(uint32_t)i * BLOCK_SLOTS + slot]), y, *to);
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
            sum[i * each + n] = vec_mul(before, vec_set(x->correction[i]));
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

VEC_FN void add_values(const struct decode *t, const struct step *x, struct form f, int queries)
{
    uint32_t d = 0, units = row_units(f), whole = units / VEC_LANES * VEC_LANES;
    int vecs = queries == 1 ? VECS_ONE : VECS_WIDE / (queries == 2 ? 2 : 4);
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

/* The slot of block b that a border between keys comes before; 0 and 32 where it is outside. */
static inline uint32_t border_in(uint32_t key, uint32_t b)
{
    uint32_t first = b * BLOCK_SLOTS;
    return key <= first ? 0 : (uint32_t)aq_min_u64(key - first, BLOCK_SLOTS);
}

#include "kernels/cpu/attn_turned_simd.h"

/* The step of so many queries: a constant. */
VEC_FN void attend_step(struct decode *t, struct step *x, struct form f, int queries)
{
    if (aq_dtype_is_kivi(f.dtype)) {
        attend_codes(t, x, f, 1, queries);
        return;
    }
    ask_rest(x, f);
    x->q = t->q + (size_t)x->query * t->dim_pad;
    score(t, x, f, queries);
    if (is_turned(t, x))
        score_turned(t, x, (struct form){f.dtype, t->dim}, (uint32_t)queries);
    for (uint32_t i = 0; i < (uint32_t)queries && aq_dtype_is_quantised(f.dtype); i++)
        scale_keys(t, x, i);
    weigh(t, x, 1, queries);
    for (uint32_t i = 0; i < (uint32_t)queries && aq_dtype_is_quantised(f.dtype); i++)
        scale_values(t, x, i);
    add_values(t, x, f, queries);
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

/* Queries of the next step, of those from `query` on: as many as see the same, in steps of about
 * the same size.  The sums of KIVI are made of one, two or four. */
static inline uint32_t step_queries(const struct decode *t, struct form f, uint32_t query,
                                    uint32_t end, uint32_t b)
{
    while (end - query > 1 && !sees_alike(t, query, end - 1, b))
        end--;
    uint32_t n = end - query, most = QUERIES_WIDE;
    if (aq_dtype_is_kivi(f.dtype))
        return n >= most ? most : n >= 2 ? 2 : 1;
    return n <= most ? n : n >= 2 * most ? most : (n + 1) / 2;
}
