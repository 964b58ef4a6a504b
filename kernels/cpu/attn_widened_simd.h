/* SPDX-License-Identifier: Apache-2.0
 * A whole block that many queries attend, on vec.h; included by attn_decode_simd.h.
 *
 * K and V become f32 once, K by columns: lanes are slots then, a query's numbers are broadcast, and
 * no sum goes across lanes.  What would be added up in lane l of a score (dot_at) is a vector of
 * its own here, of all slots, and these are added in the order in which vec_sum() adds lanes, so a
 * score has the bits that attend_step gives it; so has all that follows. */

enum {
    QUERIES_WIDENED = 16,           /* from so many on the widening is worth it */
    SCORE_QUERIES = QUERIES_WIDE,   /* whose scores are made together, */
    SCORE_VECS = 2 * SCORE_QUERIES, /* each for two vectors of slots */
    VALUE_VECS = 4,
};

/* Numbers of a row of K as they are added: whole vectors of units, and the parts of each. */
VEC_FN uint32_t widened_row(struct form f)
{
    return (uint32_t)aq_align_up(row_units(f), VEC_LANES) * (uint32_t)unit_numbers(f);
}

/* Sets `lanes` units from unit d on of VEC_LANES slots: t->wide [widened_row()][BLOCK_SLOTS]. */
VEC_FN void widen_keys_at(const struct decode *t, const struct step *x, struct form f,
                          uint32_t slot, uint32_t d, uint32_t lanes)
{
    for (int part = 0; part < unit_numbers(f); part++) {
        float *to =
            t->wide + (size_t)slot +
            (size_t)(d * (uint32_t)unit_numbers(f) + (uint32_t)part * VEC_LANES) * BLOCK_SLOTS;
        vec rows[VEC_LANES];
        AQ_UNROLL(16)
        for (uint32_t s = 0; s < VEC_LANES; s++) {
            const uint8_t *row = aq_kv_row(x->block, f.dtype, f.dim, slot + s);
            rows[s] = number_of(load_units(row, f, d, lanes), f, part);
        }
        vec_transpose(rows);
        AQ_UNROLL(16)
        for (uint32_t l = 0; l < VEC_LANES; l++)
            vec_store(to + l * BLOCK_SLOTS, rows[l]);
    }
}

/* Where V lies in t->wide: [BLOCK_SLOTS][dim_pad]. */
VEC_FN float *widened_values(const struct decode *t)
{
    return t->wide + BLOCK_SLOTS * aq_attn_widened_floats(t->dim);
}

/* The block of a step in t->wide; asks for the next one meanwhile. */
VEC_FN void widen_for_many(const struct decode *t, const struct step *x, struct form f)
{
    uint32_t units = row_units(f), whole = units / VEC_LANES * VEC_LANES;
    size_t row_bytes = aq_kv_row_bytes(f.dtype, f.dim);
    if (x->next_slots)
        vec_prefetch(x->next, aq_kv_head_bytes(f.dtype, f.dim));
    for (uint32_t slot = 0; slot < BLOCK_SLOTS; slot += VEC_LANES) {
        for (uint32_t s = slot; s < slot + VEC_LANES; s++)
            ask(x, f, s, 0, row_bytes);
        for (uint32_t d = 0; d < whole; d += VEC_LANES)
            widen_keys_at(t, x, f, slot, d, VEC_LANES);
        if (whole < units)
            widen_keys_at(t, x, f, slot, whole, units - whole);
    }
    for (uint32_t slot = 0; slot < BLOCK_SLOTS; slot++) {
        const uint8_t *row = aq_kv_row(x->block, f.dtype, f.dim, BLOCK_SLOTS + slot);
        float *to = widened_values(t) + (size_t)slot * t->dim_pad;
        ask(x, f, BLOCK_SLOTS + slot, 0, row_bytes);
        if (t->dim_pad > t->dim)
            vec_store(to + t->dim_pad - VEC_LANES, vec_zero());
        for (uint32_t d = 0; d < units; d += VEC_LANES) {
            uint32_t lanes = (uint32_t)aq_min_u64(VEC_LANES, units - d);
            union units u = load_units(row, f, d, lanes);
            for (int part = 0; part < unit_numbers(f); part++)
                store_part(to, f, d, lanes, part, number_of(u, f, part));
        }
    }
}

/* The queries of a tile in the order of widened_row(). */
static void order_queries(const struct decode *t, struct form f)
{
    uint32_t units = row_units(f);
    float *to = t->q_ordered;
    for (uint32_t i = 0; i < t->heads * t->count; i++) {
        const float *from = t->q + (size_t)i * t->dim_pad;
        for (uint32_t d = 0; d < units; d += VEC_LANES) {
            uint32_t lanes = (uint32_t)aq_min_u64(VEC_LANES, units - d);
            for (int part = 0; part < unit_numbers(f); part++, to += VEC_LANES)
                vec_store(to, load_part(from, f, d, lanes, part));
        }
    }
}

VEC_FN void add_scores(vec to[SCORE_VECS], const vec other[SCORE_VECS])
{
    AQ_UNROLL(8)
    for (int n = 0; n < SCORE_VECS; n++)
        to[n] = vec_add(to[n], other[n]);
}

/* Lane l of the scores of some queries for two vectors of slots, and the one half of all lanes
 * further, added up. */
VEC_FN void score_lanes(const float *key, const float *q, uint32_t width, uint32_t lane,
                        vec ret[SCORE_VECS])
{
    vec other[SCORE_VECS];
    AQ_UNROLL(8)
    for (int n = 0; n < SCORE_VECS; n++)
        ret[n] = other[n] = vec_zero();
    for (uint32_t d = lane; d < width; d += VEC_LANES) {
        const float *k = key + (size_t)d * BLOCK_SLOTS, *far = k + VEC_LANES / 2 * BLOCK_SLOTS;
        vec first = vec_held(vec_load(k)), second = vec_held(vec_load(k + VEC_LANES));
        AQ_UNROLL(4)
        for (int i = 0; i < SCORE_QUERIES; i++) {
            vec y = vec_set(q[i * width + d]);
            ret[2 * i] = vec_fma(first, y, ret[2 * i]);
            ret[2 * i + 1] = vec_fma(second, y, ret[2 * i + 1]);
        }
        first = vec_held(vec_load(far));
        second = vec_held(vec_load(far + VEC_LANES));
        AQ_UNROLL(4)
        for (int i = 0; i < SCORE_QUERIES; i++) {
            vec y = vec_set(q[i * width + d + VEC_LANES / 2]);
            other[2 * i] = vec_fma(first, y, other[2 * i]);
            other[2 * i + 1] = vec_fma(second, y, other[2 * i + 1]);
        }
    }
    add_scores(ret, other);
}

/* The same for lanes a quarter of all apart: l, l + 4, l + 8 and l + 12 of sixteen. */
VEC_FN void score_four(const float *key, const float *q, uint32_t width, uint32_t lane,
                       vec ret[SCORE_VECS])
{
    vec other[SCORE_VECS];
    score_lanes(key, q, width, lane, ret);
    score_lanes(key, q, width, lane + VEC_LANES / 4, other);
    add_scores(ret, other);
}

/* And for every second lane. */
VEC_FN void score_half(const float *key, const float *q, uint32_t width, uint32_t lane,
                       vec ret[SCORE_VECS])
{
    vec other[SCORE_VECS];
    score_four(key, q, width, lane, ret);
    if (VEC_LANES == 8)
        return;
    score_four(key, q, width, lane + 2, other);
    add_scores(ret, other);
}

/* p[i][slot] = q[i] . K[slot] of SCORE_QUERIES queries. */
VEC_FN void score_some(const struct decode *t, uint32_t query, uint32_t width, float *p)
{
    const float *q = t->q_ordered + (size_t)query * width;
    AQ_UNROLL(2)
    for (uint32_t slot = 0; slot < BLOCK_SLOTS; slot += 2 * VEC_LANES) {
        vec even[SCORE_VECS], odd[SCORE_VECS];
        score_half(t->wide + slot, q, width, 0, even);
        score_half(t->wide + slot, q, width, 1, odd);
        AQ_UNROLL(8)
        for (uint32_t n = 0; n < SCORE_VECS; n++)
            vec_store(p + n / 2 * BLOCK_SLOTS + slot + n % 2 * VEC_LANES, vec_add(even[n], odd[n]));
    }
}

/* Turns the scores of up to VEC_LANES queries into weights of V's codes, as scale_keys, weigh and
 * scale_values do one query after the other: here their chains of sums and products overlap. */
VEC_FN void weigh_many(struct decode *t, const struct step *x, struct form f, uint32_t count,
                       float correction[VEC_LANES])
{
    const vec lowest = vec_set(-INFINITY);
    vec scale[BLOCK_VECS], minimum[BLOCK_VECS], most[VEC_LANES];
    float base[VEC_LANES];
    bool coded = aq_dtype_is_quantised(f.dtype);
    for (uint32_t v = 0; coded && v < BLOCK_VECS; v++) {
        scale[v] = vec_load_f16(aq_kv_scales(x->block, false) + v * VEC_LANES);
        minimum[v] = vec_load_f16(aq_kv_scales(x->block, false) + BLOCK_SLOTS + v * VEC_LANES);
    }
    for (uint32_t i = 0; i < VEC_LANES; i++) {
        float *p = x->p + i * BLOCK_SLOTS;
        most[i] = lowest;
        for (uint32_t v = 0; i < count && v < BLOCK_VECS; v++) {
            vec s = vec_load(p + v * VEC_LANES);
            if (coded) {
                s = vec_fma(s, scale[v], vec_mul(minimum[v], vec_set(t->q_sum[x->query + i])));
                vec_store(p + v * VEC_LANES, s);
            }
            most[i] = vec_max(most[i], s);
        }
    }
    vec old = vec_load_n(t->max + x->query, count), max = vec_max(old, vec_max_rows(most));
    vec from = vec_zero_where(vec_equal(max, lowest), max);
    vec_store_n(t->max + x->query, max, count);
    vec_store(base, from);
    vec_store(correction, vec_exp(vec_sub(old, from)));
    for (uint32_t v = 0; coded && v < BLOCK_VECS; v++) {
        scale[v] = vec_load_f16(aq_kv_scales(x->block, true) + v * VEC_LANES);
        minimum[v] = vec_load_f16(aq_kv_scales(x->block, true) + BLOCK_SLOTS + v * VEC_LANES);
    }
    AQ_UNROLL(2)
    for (uint32_t i = 0; i < count; i++) {
        float *p = x->p + i * BLOCK_SLOTS;
        float *weight = t->weight + (size_t)(x->query + i) * VEC_LANES;
        float *to = t->offset + (size_t)(x->query + i) * VEC_LANES;
        vec by = vec_set(correction[i]), added = vec_zero(), offset = vec_zero();
        if (coded)
            offset = vec_mul(vec_load(to), by);
        AQ_UNROLL(4)
        for (uint32_t v = 0; v < BLOCK_VECS; v++) {
            vec e = vec_exp(vec_sub(vec_load(p + v * VEC_LANES), vec_set(base[i])));
            added = vec_add(added, e);
            if (coded)
                offset = vec_fma(e, minimum[v], offset);
            vec_store(p + v * VEC_LANES, coded ? vec_mul(e, scale[v]) : e);
        }
        vec_store(weight, vec_fma(vec_load(weight), by, added));
        if (coded)
            vec_store(to, offset);
    }
}

/* sum[i][d..] = sum[i][d..] * correction[i] + sum over slots of p[i][slot] * V[slot][d..], for
 * QUERIES_WIDE queries and `vecs` vectors. */
VEC_FN void add_widened_at(const struct decode *t, float *to, const float *p,
                           const float *correction, uint32_t d, int vecs)
{
    const float *value = widened_values(t) + d;
    vec sum[QUERIES_WIDE][VALUE_VECS];
    to += d;
    AQ_UNROLL(4)
    for (int i = 0; i < QUERIES_WIDE; i++) {
        AQ_UNROLL(4)
        for (int v = 0; v < vecs; v++)
            sum[i][v] = vec_mul(vec_load(to + (size_t)i * t->dim_pad + v * VEC_LANES),
                                vec_set(correction[i]));
    }
    AQ_UNROLL(2)
    for (uint32_t slot = 0; slot < BLOCK_SLOTS; slot++, value += t->dim_pad) {
        vec y[VALUE_VECS];
        AQ_UNROLL(4)
        for (int v = 0; v < vecs; v++)
            y[v] = vec_held(vec_load(value + v * VEC_LANES));
        AQ_UNROLL(4)
        for (int i = 0; i < QUERIES_WIDE; i++) {
            vec weight = vec_set(p[i * BLOCK_SLOTS + slot]);
            AQ_UNROLL(4)
            for (int v = 0; v < vecs; v++)
                sum[i][v] = vec_fma(weight, y[v], sum[i][v]);
        }
    }
    AQ_UNROLL(4)
    for (int i = 0; i < QUERIES_WIDE; i++) {
        AQ_UNROLL(4)
        for (int v = 0; v < vecs; v++)
            vec_store(to + (size_t)i * t->dim_pad + v * VEC_LANES, sum[i][v]);
    }
}

/* The next `count` queries, at most VEC_LANES in whole steps, against the block in t->wide, which
 * was of this format. */
VEC_FN void attend_widened(struct decode *t, const struct step *x, struct form f, uint32_t count)
{
    uint32_t width = widened_row(f), dims = (uint32_t)aq_align_up(f.dim, VEC_LANES);
    float correction[VEC_LANES];
    for (uint32_t i = 0; i < count; i += SCORE_QUERIES)
        score_some(t, x->query + i, width, x->p + (size_t)i * BLOCK_SLOTS);
    weigh_many(t, x, f, count, correction);
    for (uint32_t i = 0; i < count; i += QUERIES_WIDE) {
        float *to = t->sum + (size_t)(x->query + i) * t->dim_pad;
        const float *p = x->p + (size_t)i * BLOCK_SLOTS;
        uint32_t d = 0;
        for (; d + VALUE_VECS * VEC_LANES <= dims; d += VALUE_VECS * VEC_LANES)
            add_widened_at(t, to, p, correction + i, d, VALUE_VECS);
        for (; d < dims; d += VEC_LANES)
            add_widened_at(t, to, p, correction + i, d, 1);
    }
}

typedef void widen_fn(const struct decode *t, const struct step *x);
typedef void widened_fn(struct decode *t, struct step *x, struct span of);

#define WIDEN(dtype)                                                                               \
    static                                                                                         \
        __attribute__((noinline)) void widen_##dtype(const struct decode *t, const struct step *x) \
    {                                                                                              \
        widen_for_many(t, x, (struct form){AQ_##dtype, t->dim});                                   \
    }
WIDEN(F32)
WIDEN(F16)
WIDEN(BF16)
WIDEN(Q8)
WIDEN(Q4)

#define WIDENED(name, dtype, head_dim)                                                             \
    static __attribute__((noinline)) void name(struct decode *t, struct step *x, struct span of)   \
    {                                                                                              \
        for (x->query = of.begin; x->query < of.end; x->query += VEC_LANES)                        \
            attend_widened(t, x, (struct form){dtype, head_dim},                                   \
                           (uint32_t)aq_min_u64(VEC_LANES, of.end - x->query));                    \
    }
#if AQ_UNROLLS
#define WIDENED_SIZES(name, dtype)                                                                 \
    WIDENED(name, dtype, t->dim)                                                                   \
    WIDENED(name##_64, dtype, 64)                                                                  \
    WIDENED(name##_128, dtype, 128)
#else
#define WIDENED_SIZES(name, dtype) WIDENED(name, dtype, t->dim)
#endif
WIDENED_SIZES(widened_number, AQ_F32)
WIDENED_SIZES(widened_q8, AQ_Q8)
WIDENED_SIZES(widened_q4, AQ_Q4)

/* Of a format: NULL of KIVI, whose queries and weights are other ones in each block.  Once widened,
 * all floats are alike. */
static const struct {
    widen_fn *widen;
    widened_fn *attend[3]; /* for rare head sizes, for 64, for 128 */
} widened_fns[AQ_DTYPE_COUNT] = {
    [AQ_F32] = {widen_F32, {ATTEND_ALL(widened_number)}},
    [AQ_F16] = {widen_F16, {ATTEND_ALL(widened_number)}},
    [AQ_BF16] = {widen_BF16, {ATTEND_ALL(widened_number)}},
    [AQ_Q8] = {widen_Q8, {ATTEND_ALL(widened_q8)}},
    [AQ_Q4] = {widen_Q4, {ATTEND_ALL(widened_q4)}},
};

/* Attends block b with those of a span of queries that make whole steps, if they are enough and
 * all see the whole block; returns the others. */
static inline struct span attend_many(struct decode *t, const struct decode_run *run,
                                      struct step *x, struct span of, uint32_t b)
{
    enum aq_dtype dtype = run->a->kv_dtype;
    struct span many = {of.begin, of.end - (of.end - of.begin) % QUERIES_WIDE};
    if (!widened_fns[dtype].widen || many.end - many.begin < QUERIES_WIDENED)
        return of;
    for (uint32_t i = many.begin; i < many.end; i++) {
        struct span seen = slots_seen(t, i, i, b);
        if (seen.begin > 0 || seen.end < BLOCK_SLOTS)
            return of;
    }
    x->number = b;
    x->begin = 0;
    x->slots = BLOCK_SLOTS;
    widened_fns[dtype].widen(t, x);
    widened_fns[dtype].attend[size_number(t->dim)](t, x, many);
    x->next_slots = 0;
    return (struct span){many.end, of.end};
}
