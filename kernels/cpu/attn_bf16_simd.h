/* SPDX-License-Identifier: Apache-2.0
 * Prefill attention where the compute type is bf16, on AVX-512; included once by the file of each
 * instruction that multiplies pairs of bf16.
 *
 * Q times scale, K, V and the weights of the softmax are rounded to bf16, products are exact, sums,
 * maxima and exp() f32.  A lane is a query from beginning to end, as in attn_prefill_simd.h: tiles
 * of scores are [key][query], of sums [d][query], so the softmax works down columns of vectors,
 * and a query's result does not depend on who shares its tile.
 *
 *     scores  [16 keys][16 queries] += K [16 keys][32 d] . Q [32 d / 2][16 queries][2]
 *     sums    [16 d][16 queries]    += V [16 d][32 keys] . P [32 keys / 2][16 queries][2]
 *
 * An item of work is a few hundred queries of one KV head, all of its query heads among them.
 * Blocks of KEYS keys ascend, from the one of the first key that a query sees; they begin at
 * multiples, so a query's bits do not depend on where a prompt was cut.  K and V of some hundred
 * keys, a stretch, become tiles once for the item, and stay in the second-level cache; then its
 * queries follow by 32, a unit, whose sums stay in the first: scores of a block, their weights,
 * sums.
 *
 * A maximum is raised only where a score is RAISE above it: weights stay below e^RAISE, and sums
 * are seldom multiplied.  Keys that a query does not see have weight 0; so that an infinity or NaN
 * in a later token's V stays there all the same, such elements of V are 0 in the tiles and are
 * added to the queries that see them by themselves. */

#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/vec_bf16.h"
#include "kernels/cpu/versions.h"

#include "kernels/cpu/attn_lanes_simd.h"

enum {
    KEYS = AQ_ATTN_BF16_KEYS,
    GROUPS = KEYS / BLOCK_SLOTS, /* head-blocks of a block */
    GROUPS_MAX = AQ_ATTN_BF16_STRETCH_MAX / BLOCK_SLOTS,
    UNIT = 32,   /* queries: two tiles side by side */
    TILE_K = 32, /* elements that a row of a tile has of what is summed over */
    TILE_FLOATS = 256,
    TILE_HALVES = 512, /* bf16 elements of a tile */
};
#define RAISE 8.0f

/* Which keys of a piece some query does not see: none, some at the end, some at the beginning too,
 * where a window begins. */
enum mask { MASK_NONE, MASK_END, MASK_BOTH };

struct prefill {
    struct prefill_run run;
    uint32_t lanes, units;      /* queries, units of them; spare lanes are zero */
    uint32_t depth, height;     /* tiles of K along d, of V: head_dim padded to 32 */
    uint16_t *q;                /* [units][2][depth] tiles, scaled */
    float *sum;                 /* [units][height][2] tiles */
    float *max, *base, *weight; /* [lanes]: base is the maximum times log2(e), or 0 */
    int32_t *before, *visible;  /* [lanes]: each query sees the keys between the two */
    float *score;               /* [KEYS / 16][2] tiles: of a unit and a block */
    uint16_t *p;                /* [2][GROUPS] tiles: their weights */
    /* Where weights are kept before they are rounded, of units from this one on. */
    struct aq_attn_weights observed;
    uint32_t observed_unit;
    /* The stretch at work. */
    uint16_t *k;        /* [blocks][KEYS / 16][depth] tiles */
    uint16_t *v;        /* [blocks][height][GROUPS] tiles */
    float *wide;        /* [BLOCK_SLOTS][head_dim]: K or V that is neither f32 nor bf16 */
    uint32_t first_key; /* number of its first key */
    uint32_t blocks;
    uint32_t spoilt[GROUPS_MAX]; /* of a head-block: a bit for each key with an element of V that
                                    bf16 does not hold */
};

/* ---- what the including file defines, behind this ---- */

/* Around the products of an item. */
static void products_begin(void);
static void products_end(void);

/* 2 x 2 tiles of sums, side by side at c, become, or grow by, the products of two tiles of a and
 * two of b, and of the `steps` - 1 that follow each of them. */
struct product {
    float *c;
    const uint16_t *a, *b;
    size_t a_next, b_next; /* from the first tile to the second */
    uint32_t steps;
    uint32_t last;  /* pairs of the last step: the others, up to 16, are zero on one side */
    uint32_t tiles; /* of a that anybody reads the sums of: 1 or 2 */
    bool adds;
};
static inline void multiply(const struct product *p);

/* ---- pieces ---- */

/* A unit against a block. */
struct piece {
    uint32_t unit, block;
    uint32_t first_key, groups; /* head-blocks of keys that any query sees */
    enum mask mask;
};

/* Scores of a piece, a head-block at a time. */
static void make_scores(const struct prefill *t, const struct piece *x)
{
    size_t depth = (size_t)t->depth * TILE_HALVES;
    struct product p = {.c = t->score,
                        .a = t->k + (size_t)2 * x->block * GROUPS * depth,
                        .b = t->q + 2 * x->unit * depth,
                        .a_next = depth,
                        .b_next = depth,
                        .steps = t->depth,
                        .last = (t->run.a->head_dim - 1) % TILE_K / 2 + 1,
                        .tiles = 2};
    for (uint32_t group = 0; group < x->groups; group++) {
        multiply(&p);
        p.a += 2 * depth;
        p.c += 4 * TILE_FLOATS;
    }
}

/* Sums of a piece, 32 of its head_dim at a time. */
static void add_values(const struct prefill *t, const struct piece *x)
{
    const size_t row = (size_t)GROUPS * TILE_HALVES;
    uint32_t tiles = (uint32_t)aq_div_up(t->run.a->head_dim, TILE_K / 2);
    struct product p = {.c = t->sum + (size_t)x->unit * t->height * 2 * TILE_FLOATS,
                        .a = t->v + (size_t)x->block * t->height * row,
                        .b = t->p,
                        .a_next = row,
                        .b_next = row,
                        .steps = x->groups,
                        .last = TILE_K / 2,
                        .adds = true};
    for (uint32_t tile = 0; tile < tiles; tile += 2) {
        p.tiles = tiles - tile == 1 ? 1 : 2;
        multiply(&p);
        p.a += 2 * row;
        p.c += 4 * TILE_FLOATS;
    }
}

/* ---- softmax ---- */

/* 2^x for x <= RAISE log2(e), 0 for what is far below: 2^r for |r| <= 1/2 by a polynomial that is
 * 1 at 0 (least relative error, 2^-18.4: a thousandth of what bf16 rounds), and the exponent.
 * A NaN stays one. */
VEC_FN vec exp2_near(vec x)
{
    vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vec n = vec_sub(x, r);
    vec p = vec_set(0x1.3a02ccp-7f);
    p = vec_fma(p, r, vec_set(0x1.c9fc46p-5f));
    p = vec_fma(p, r, vec_set(0x1.ec0378p-3f));
    p = vec_fma(p, r, vec_set(0x1.62e12cp-1f));
    p = vec_fma(p, r, vec_set(1));
    return vec_scale_exponent(p, n);
}

static const float log2_e = 0x1.715476p+0f;

/* A score of a slot of the block, -inf where its query does not see it. */
VEC_FN vec load_score(const struct prefill *t, const struct piece *x, const float *from,
                      uint32_t lane, uint32_t slot, enum mask mask)
{
    vec s = vec_load(from);
    if (mask == MASK_NONE)
        return s;
    vec_int key = vec_int_set((int32_t)(x->first_key + slot));
    vec_mask seen = vec_int_greater(vec_int_load(t->visible + lane), key);
    if (mask == MASK_BOTH)
        seen = vec_both(seen, vec_int_greater(key, vec_int_load(t->before + lane)));
    return vec_select(seen, s, vec_set(-INFINITY));
}

/* The largest scores of a tile of queries: column 0 or 1 of the piece. */
VEC_FN vec column_max(const struct prefill *t, const struct piece *x, uint32_t column,
                      enum mask mask)
{
    enum { CHAINS = 8 };
    uint32_t lane = x->unit * UNIT + column * VEC_LANES, slot = 0;
    const float *s = t->score + (size_t)column * TILE_FLOATS;
    vec max[CHAINS];
    for (uint32_t c = 0; c < CHAINS; c++)
        max[c] = vec_set(-INFINITY);
    for (; slot < x->groups * BLOCK_SLOTS; s += 2 * TILE_FLOATS) {
        for (uint32_t i = 0; i < 16; i += CHAINS, slot += CHAINS) {
            for (uint32_t c = 0; c < CHAINS; c++)
                max[c] = vec_max(max[c],
                                 load_score(t, x, s + (i + c) * VEC_LANES, lane, slot + c, mask));
        }
    }
    for (uint32_t half = CHAINS / 2; half; half /= 2) {
        for (uint32_t c = 0; c < half; c++)
            max[c] = vec_max(max[c], max[c + half]);
    }
    return max[0];
}

/* Multiplies weights and sums so far of a tile of queries. */
static void scale_column(const struct prefill *t, const struct piece *x, uint32_t column,
                         vec factor)
{
    uint32_t lane = x->unit * UNIT + column * VEC_LANES;
    float *sum = t->sum + ((size_t)x->unit * t->height * 2 + column) * TILE_FLOATS;
    vec_store(t->weight + lane, vec_mul(vec_load(t->weight + lane), factor));
    for (uint32_t tile = 0; tile < t->height; tile++, sum += 2 * TILE_FLOATS) {
        for (uint32_t i = 0; i < TILE_FLOATS; i += VEC_LANES)
            vec_store(sum + i, vec_mul(vec_load(sum + i), factor));
    }
}

/* The lane in what is kept of a column's first. */
VEC_FN size_t observed_lane(const struct prefill *t, const struct piece *x, uint32_t column)
{
    return (size_t)(x->unit - t->observed_unit) * UNIT + column * VEC_LANES;
}

/* Weights of a column, and their sum. */
VEC_FN void weigh_column(const struct prefill *t, const struct piece *x, uint32_t column,
                         enum mask mask, bool keeps)
{
    const struct aq_attn_weights *o = &t->observed;
    float *kept = NULL;
    if (keeps)
        kept = o->weight + observed_lane(t, x, column) * o->keys + (size_t)x->first_key * VEC_LANES;
    uint32_t lane = x->unit * UNIT + column * VEC_LANES, slot = 0;
    const float *s = t->score + (size_t)column * TILE_FLOATS;
    uint16_t *p = t->p + (size_t)column * GROUPS * TILE_HALVES;
    const vec base = vec_load(t->base + lane), scale = vec_set(log2_e);
    vec weight = vec_load(t->weight + lane);
    for (; slot < x->groups * BLOCK_SLOTS; s += 2 * TILE_FLOATS) {
        for (uint32_t i = 0; i < TILE_FLOATS; i += 2 * VEC_LANES, slot += 2, p += 2 * VEC_LANES) {
            vec a = load_score(t, x, s + i, lane, slot, mask);
            vec b = load_score(t, x, s + i + VEC_LANES, lane, slot + 1, mask);
            a = exp2_near(vec_fms(a, scale, base));
            b = exp2_near(vec_fms(b, scale, base));
            _mm512_store_si512(p, vec_pairs(a, b));
            if (keeps) {
                vec_store(kept, a);
                vec_store(kept + VEC_LANES, b);
                kept += 2 * VEC_LANES;
            }
            weight = vec_add(weight, vec_add(a, b));
        }
    }
    vec_store(t->weight + lane, weight);
}

/* Raises the maxima of a tile of queries where their scores are far above; weights and sums so far
 * are multiplied by what that makes of them. */
VEC_FN void raise_column(const struct prefill *t, const struct piece *x, uint32_t column,
                         enum mask mask)
{
    uint32_t lane = x->unit * UNIT + column * VEC_LANES;
    vec old = vec_load(t->max + lane), block = column_max(t, x, column, mask);
    vec_mask raised = vec_less(vec_add(old, vec_set(RAISE)), block);
    if (!vec_any(raised))
        return;
    vec max = vec_select(raised, block, old);
    vec_store(t->max + lane, max);
    vec base = vec_mul(max, vec_set(log2_e)); /* 0 while all are -inf: weights of 0, not NaN */
    vec_store(t->base + lane, vec_zero_where(vec_equal(max, vec_set(-INFINITY)), base));
    raised = vec_both(raised, vec_less(vec_set(-INFINITY), old)); /* the others have no sums yet */
    vec factor = exp2_near(vec_mul(vec_sub(old, max), vec_set(log2_e)));
    if (vec_any(raised))
        scale_column(t, x, column, vec_select(raised, factor, vec_set(1)));
}

/* Keeps the maximum that a column's weights are made with. */
VEC_FN void keep_max(const struct prefill *t, const struct piece *x, uint32_t column)
{
    const struct aq_attn_weights *o = &t->observed;
    float *to = o->max + observed_lane(t, x, column) * (o->keys / KEYS);
    vec_store(to + (size_t)x->first_key / KEYS * VEC_LANES,
              vec_load(t->max + x->unit * UNIT + column * VEC_LANES));
}

VEC_FN void weigh_masked(const struct prefill *t, const struct piece *x, enum mask mask, bool keeps)
{
    for (uint32_t column = 0; column < 2; column++) {
        raise_column(t, x, column, mask);
        if (keeps)
            keep_max(t, x, column);
        weigh_column(t, x, column, mask, keeps);
    }
}

VEC_FN void weigh_unit(const struct prefill *t, const struct piece *x, bool keeps)
{
    switch (x->mask) {
    case MASK_NONE: weigh_masked(t, x, MASK_NONE, keeps); break;
    case MASK_END: weigh_masked(t, x, MASK_END, keeps); break;
    case MASK_BOTH: weigh_masked(t, x, MASK_BOTH, keeps); break;
    }
}

static void weigh(const struct prefill *t, const struct piece *x)
{
    if (x->unit < t->observed_unit)
        weigh_unit(t, x, false);
    else
        weigh_unit(t, x, true);
}

/* ---- a stretch ---- */

/* A row of K into its place in tiles. */
VEC_FN void take_key(uint16_t *to, const float *from, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 2 * VEC_LANES, to += TILE_HALVES) {
        vec low = vec_load_n(from + d, dim - d), high = vec_zero();
        if (d + VEC_LANES < dim)
            high = vec_load_n(from + d + VEC_LANES, dim - d - VEC_LANES);
        _mm512_store_si512(to, vec_halves(low, high));
    }
}

VEC_FN void take_key_bf16(uint16_t *to, const uint16_t *from, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 32, to += TILE_HALVES) {
        __mmask32 first = dim - d >= 32 ? UINT32_MAX : (1u << (dim - d)) - 1;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(first, from + d));
    }
}

/* Elements d to d + 15 of two rows of V, the second of which may be past the last. */
VEC_FN __m512i value_pairs(const void *rows, enum aq_dtype dtype, uint32_t dim, uint32_t row,
                           uint32_t d, bool both)
{
    size_t at = (size_t)row * dim + d;
    uint32_t n = dim - d;
    if (dtype == AQ_BF16) {
        const uint16_t *from = (const uint16_t *)rows + at;
        __m256i low = _mm256_maskz_loadu_epi16(vec_first(n), from), high = _mm256_setzero_si256();
        if (both)
            high = _mm256_maskz_loadu_epi16(vec_first(n), from + dim);
        __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16);
        return _mm512_or_si512(wide, _mm512_cvtepu16_epi32(low));
    }
    const float *from = (const float *)rows + at;
    return vec_pairs(vec_load_n(from, n), both ? vec_load_n(from + dim, n) : vec_zero());
}

/* V of a head-block, `slots` rows, into tiles: rows of keys become columns.  Returns a bit for each
 * row with an element that is infinite or NaN in bf16, which is 0 in the tile. */
VEC_FN uint32_t take_values(uint16_t *to, const void *rows, enum aq_dtype dtype, uint32_t slots,
                            uint32_t dim)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    uint32_t spoilt = 0;
    for (uint32_t d = 0; d < dim; d += VEC_LANES, to += (size_t)GROUPS * TILE_HALVES) {
        vec row[VEC_LANES];
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            __m512i v = _mm512_setzero_si512();
            if (2 * i < slots)
                v = value_pairs(rows, dtype, dim, 2 * i, d, 2 * i + 1 < slots);
            __mmask32 bad = _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent);
            if (bad) {
                spoilt |= (uint32_t)((bad & 0x55555555) != 0) << (2 * i);
                spoilt |= (uint32_t)((bad & 0xaaaaaaaa) != 0) << (2 * i + 1);
                v = _mm512_maskz_mov_epi16(~bad, v);
            }
            row[i] = _mm512_castsi512_ps(v);
        }
        vec_transpose(row);
        for (uint32_t i = 0; i < VEC_LANES; i++)
            vec_store((float *)(void *)to + i * VEC_LANES, row[i]);
    }
    return spoilt;
}

/* Rows [first, first + slots) of a head-block in bf16, if it is, or f32. */
VEC_FN const void *wide_rows(const struct prefill *t, const uint8_t *block, uint32_t first,
                             uint32_t slots, enum aq_dtype dtype, uint32_t dim)
{
    if (dtype == AQ_BF16 || dtype == AQ_F32)
        return block + first * aq_kv_row_bytes(dtype, dim);
    if (aq_dtype_is_quantised(dtype))
        widen_codes(t->wide, block, dtype, first, slots, dim);
    else
        widen(t->wide, block, dtype, (size_t)first * dim, (size_t)slots * dim);
    return t->wide;
}

/* Head-block `group` of the stretch. */
VEC_FN void take_group(struct prefill *t, enum aq_dtype dtype, uint32_t group, uint32_t slots)
{
    uint32_t dim = t->run.a->head_dim, number = t->first_key / BLOCK_SLOTS + group;
    const uint8_t *block = aq_attn_block(t->run.seq, t->run.head, number);
    const void *rows = wide_rows(t, block, 0, slots, dtype, dim);
    uint16_t *k = t->k + (size_t)2 * group * t->depth * TILE_HALVES;
    for (uint32_t i = 0; i < slots; i++) {
        uint16_t *to = k + (size_t)(i / 16) * t->depth * TILE_HALVES + i % 16 * TILE_K;
        if (dtype == AQ_BF16)
            take_key_bf16(to, (const uint16_t *)rows + (size_t)i * dim, dim);
        else
            take_key(to, (const float *)rows + (size_t)i * dim, dim);
    }
    rows = wide_rows(t, block, BLOCK_SLOTS, slots, dtype, dim);
    size_t v = (size_t)(group / GROUPS) * t->height * GROUPS + group % GROUPS;
    t->spoilt[group] = take_values(t->v + v * TILE_HALVES, rows, dtype, slots, dim);
}

/* Keys [first, end) into tiles. */
VEC_FN void take_stretch(struct prefill *t, enum aq_dtype dtype, uint32_t first, uint32_t end)
{
    size_t bytes = aq_kv_block_bytes(dtype, t->run.a->head_dim);
    t->first_key = first;
    t->blocks = (uint32_t)aq_div_up(end - first, KEYS);
    for (uint32_t group = 0, key = first; key < end; group++, key += BLOCK_SLOTS) {
        if (key + BLOCK_SLOTS < end)
            vec_prefetch(aq_attn_block(t->run.seq, t->run.head, key / BLOCK_SLOTS + 1), bytes);
        take_group(t, dtype, group, (uint32_t)aq_min_u64(BLOCK_SLOTS, end - key));
    }
}

/* Adds the elements of V that bf16 does not hold to the sums of the queries that see them: of the
 * keys with a bit in `left`, in a head-block of the piece. */
static void add_spoilt(const struct prefill *t, const struct piece *x, uint32_t group,
                       uint32_t left)
{
    const struct aq_attn *a = t->run.a;
    uint32_t first = x->first_key + group * BLOCK_SLOTS;
    const uint8_t *block = aq_attn_block(t->run.seq, t->run.head, first / BLOCK_SLOTS);
    for (; left; left &= left - 1) {
        uint32_t slot = (uint32_t)__builtin_ctz(left);
        int32_t key = (int32_t)(first + slot);
        for (uint32_t d = 0; d < a->head_dim; d++) {
            float v = aq_kv_load(block, a->kv_dtype, a->head_dim, BLOCK_SLOTS + slot, d);
            if (fabsf(v) < 0x1.ffp127f)
                continue;
            for (uint32_t i = 0; i < UNIT; i++) {
                uint32_t lane = x->unit * UNIT + i, column = i / VEC_LANES;
                if (key <= t->before[lane] || key >= t->visible[lane])
                    continue;
                size_t p = (column * GROUPS + group) * TILE_HALVES + slot / 2 * 32 +
                           i % VEC_LANES * 2 + slot % 2;
                size_t sum = ((size_t)x->unit * t->height + d / 16) * 2 + column;
                t->sum[sum * TILE_FLOATS + d % 16 * VEC_LANES + i % VEC_LANES] +=
                    aq_f32_from_bf16(t->p[p]) * v;
            }
        }
    }
}

static struct piece piece_of(const struct prefill *t, uint32_t unit, uint32_t block)
{
    const int32_t *before = t->before + unit * UNIT, *visible = t->visible + unit * UNIT;
    struct piece x = {.unit = unit, .block = block, .first_key = t->first_key + block * KEYS};
    uint32_t keys = (uint32_t)visible[UNIT - 1] - x.first_key;
    x.groups = (uint32_t)aq_div_up(aq_min_u64(keys, KEYS), BLOCK_SLOTS);
    if (visible[0] < (int32_t)(x.first_key + x.groups * BLOCK_SLOTS))
        x.mask = MASK_END;
    if (before[UNIT - 1] >= (int32_t)x.first_key)
        x.mask = MASK_BOTH;
    return x;
}

/* The stretch at work against a unit. */
static void attend_unit(const struct prefill *t, uint32_t unit)
{
    int32_t first = (int32_t)t->first_key, begin = t->before[unit * UNIT] + 1 - first;
    int32_t end = t->visible[unit * UNIT + UNIT - 1] - first;
    for (uint32_t block = begin > 0 ? (uint32_t)begin / KEYS : 0;
         block < t->blocks && (int32_t)(block * KEYS) < end; block++) {
        struct piece x = piece_of(t, unit, block);
        make_scores(t, &x);
        weigh(t, &x);
        add_values(t, &x);
        for (uint32_t group = 0; group < x.groups; group++)
            add_spoilt(t, &x, group, t->spoilt[block * GROUPS + group]);
    }
}

/* Asks for a unit's share of the stretch that follows: head-blocks of the keys from `key` on. */
VEC_FN void ask_keys(const struct prefill *t, enum aq_dtype dtype, uint32_t unit, uint32_t key,
                     uint32_t end)
{
    uint32_t dim = t->run.a->head_dim, stretch = aq_attn_bf16_stretch(dim);
    uint32_t each = (uint32_t)aq_div_up(stretch / BLOCK_SLOTS, t->units), first = unit * each;
    for (uint32_t group = first; group < first + each && group < stretch / BLOCK_SLOTS; group++) {
        uint32_t at = key + group * BLOCK_SLOTS;
        if (at < end)
            vec_prefetch(aq_attn_block(t->run.seq, t->run.head, at / BLOCK_SLOTS),
                         aq_kv_block_bytes(dtype, dim));
    }
}

/* ---- in and out of an item ---- */

/* Where 16 queries lie in rows of this stride; lanes to spare are the last one's. */
static void place_lanes(const struct prefill *t, uint32_t lane, size_t stride, size_t *at)
{
    const struct aq_attn *a = t->run.a;
    uint32_t group = (t->run.query + lane) % a->q_per_kv;
    at[0] = lane_offset(&t->run, lane, stride);
    for (uint32_t i = 1; i < VEC_LANES; i++) {
        at[i] = at[i - 1];
        if (lane + i >= t->lanes)
            continue;
        at[i] += a->head_dim;
        if (++group == a->q_per_kv) {
            group = 0;
            at[i] += stride - (size_t)a->q_per_kv * a->head_dim;
        }
    }
}

/* Asks for where a unit's results go, to write them. */
static void ask_outputs(const struct prefill *t, uint32_t unit)
{
    const struct aq_attn *a = t->run.a;
    for (uint32_t lane = unit * UNIT; lane < (unit + 1) * UNIT && lane < t->lanes;
         lane += VEC_LANES) {
        size_t at[VEC_LANES];
        place_lanes(t, lane, a->out_stride, at);
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            const uint16_t *out = (const uint16_t *)a->out + at[i];
            for (uint32_t d = 0; d < a->head_dim; d += 32)
                __builtin_prefetch(out + d, 1);
        }
    }
}

/* Q of 16 lanes into tiles: rows of queries become columns of pairs. */
VEC_FN void take_queries(const struct prefill *t, uint32_t lane)
{
    const struct aq_attn *a = t->run.a;
    const vec scale = vec_set(a->scale);
    float *to = (float *)(void *)(t->q + (size_t)lane / VEC_LANES * t->depth * TILE_HALVES);
    size_t at[VEC_LANES];
    /* Rows lie far apart: those of the next lanes are asked for. */
    if (lane + VEC_LANES < t->lanes) {
        place_lanes(t, lane + VEC_LANES, a->q_stride, at);
        for (uint32_t i = 0; i < VEC_LANES; i++)
            vec_prefetch(a->q + at[i], a->head_dim * sizeof(float));
    }
    place_lanes(t, lane < t->lanes ? lane : t->lanes - 1, a->q_stride, at);
    for (uint32_t d = 0; d < a->head_dim; d += 2 * VEC_LANES, to += TILE_FLOATS) {
        vec row[VEC_LANES];
        uint32_t n = a->head_dim - d;
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            const float *q = a->q + at[i] + d;
            vec low = vec_mul(vec_load_n(q, n), scale), high = vec_zero();
            if (n > VEC_LANES)
                high = vec_mul(vec_load_n(q + VEC_LANES, n - VEC_LANES), scale);
            row[i] = _mm512_castsi512_ps(vec_halves(low, high));
        }
        vec_transpose(row);
        for (uint32_t i = 0; i < VEC_LANES; i++)
            vec_store(to + i * VEC_LANES, row[i]);
    }
}

static void begin_lanes(const struct prefill *t, enum aq_dtype dtype, uint32_t key, uint32_t end)
{
    struct span keys = {0, 0};
    uint32_t group = t->run.query % t->run.a->q_per_kv;
    for (uint32_t lane = 0; lane < t->units * UNIT; lane++) {
        t->max[lane] = -INFINITY;
        t->base[lane] = t->weight[lane] = 0;
        /* Spare lanes are as the last one, so that they ask for no masks of their own. */
        if (lane == 0 || (lane < t->lanes && group == 0))
            keys = keys_seen(&t->run, t->run.query + lane);
        t->before[lane] = (int32_t)keys.begin - 1;
        t->visible[lane] = (int32_t)keys.end;
        if (++group == t->run.a->q_per_kv)
            group = 0;
    }
    for (uint32_t lane = 0; lane < t->units * UNIT; lane += VEC_LANES) {
        if (lane % UNIT == 0)
            ask_keys(t, dtype, lane / UNIT, key, end);
        take_queries(t, lane);
    }
    memset(t->sum, 0, (size_t)t->units * t->height * 2 * TILE_FLOATS * sizeof(*t->sum));
}

/* Sums of 16 lanes over their weights become rows. */
VEC_FN void store_lanes(const struct prefill *t, uint32_t lane)
{
    const struct aq_attn *a = t->run.a;
    vec weight = vec_load(t->weight + lane);
    vec_mask blind = vec_int_greater(vec_int_set(1), vec_int_load(t->visible + lane));
    vec factor = vec_div(vec_set(1), vec_select(blind, vec_set(1), weight)); /* 0 / 1: sees none */
    size_t first = (size_t)lane / UNIT * t->height * 2 + lane % UNIT / VEC_LANES, at[VEC_LANES];
    const float *sum = t->sum + first * TILE_FLOATS;
    place_lanes(t, lane, a->out_stride, at);
    for (uint32_t d = 0; d < a->head_dim; d += 2 * VEC_LANES, sum += 4 * TILE_FLOATS) {
        vec low[VEC_LANES], high[VEC_LANES];
        uint32_t n = a->head_dim - d;
        __mmask32 stored = n >= 32 ? UINT32_MAX : (1u << n) - 1;
        for (uint32_t i = 0; i < VEC_LANES; i++) {
            low[i] = vec_mul(vec_load(sum + i * VEC_LANES), factor);
            high[i] = vec_mul(vec_load(sum + 2 * TILE_FLOATS + i * VEC_LANES), factor);
        }
        vec_transpose(low);
        vec_transpose(high);
        for (uint32_t i = 0; i < VEC_LANES && lane + i < t->lanes; i++)
            _mm512_mask_storeu_epi16((uint16_t *)a->out + at[i] + d, stored,
                                     vec_halves(low[i], high[i]));
    }
}

static struct prefill prefill_begin(struct aq_exec *ex, const struct prefill_run *run,
                                    uint32_t lanes, uint32_t worker)
{
    struct prefill t = {.run = *run, .lanes = lanes, .observed_unit = UINT32_MAX};
    t.units = (uint32_t)aq_div_up(lanes, UNIT);
    t.depth = (uint32_t)aq_div_up(run->a->head_dim, TILE_K);
    t.height = 2 * t.depth;
    size_t q_tiles = (size_t)t.units * 2 * t.depth;
    size_t key_tiles = (size_t)aq_attn_bf16_stretch(run->a->head_dim) / 16 * t.depth;
    size_t piece_tiles = (size_t)KEYS / 16 * 2;
    t.sum = aq_exec_scratch(ex, worker);
    t.score = t.sum + q_tiles * 2 * TILE_FLOATS;
    t.q = (uint16_t *)(void *)(t.score + piece_tiles * TILE_FLOATS);
    t.p = t.q + q_tiles * TILE_HALVES;
    t.k = t.p + piece_tiles / 2 * TILE_HALVES;
    t.v = t.k + key_tiles * TILE_HALVES;
    t.wide = (float *)(void *)(t.v + key_tiles * TILE_HALVES);
    t.max = t.wide + (size_t)BLOCK_SLOTS * t.depth * TILE_K;
    t.base = t.max + (size_t)t.units * UNIT;
    t.weight = t.base + (size_t)t.units * UNIT;
    t.before = (int32_t *)(t.weight + (size_t)t.units * UNIT);
    t.visible = t.before + (size_t)t.units * UNIT;
    /* Past head_dim no row is ever put. */
    if (run->a->head_dim % TILE_K)
        memset(t.k, 0, 2 * key_tiles * TILE_HALVES * sizeof(*t.k));
    return t;
}

/* Weights are kept of the last `observed` of the item's queries. */
static void observe(struct prefill *t, struct aq_exec *ex, uint32_t observed, uint32_t worker)
{
    const struct prefill_run *run = &t->run;
    uint32_t first = t->lanes - observed;
    t->observed_unit = first / UNIT;
    t->observed =
        aq_attn_weights_open(ex, worker, run->a->head_dim, aq_attn_len(run->seq, run->head),
                             (t->units - t->observed_unit) * UNIT, KEYS);
    t->observed.first = first % UNIT;
}

static void store_log_sums(const struct prefill *t)
{
    for (uint32_t lane = 0; lane < t->lanes; lane++)
        t->run.a->log_sum_exp[lane_head(&t->run, lane)] = t->max[lane] + logf(t->weight[lane]);
    for (uint32_t i = 0; i < t->observed.lanes; i++) {
        uint32_t lane = t->observed_unit * UNIT + i;
        t->observed.log_sum[i] = t->max[lane] + logf(t->weight[lane]);
    }
}

/* An item: `lanes` queries, of the last of which, `observed`, the columns are summed. */
VEC_FN void prefill_queries(struct aq_exec *ex, const struct prefill_run *run, enum aq_dtype dtype,
                            uint32_t lanes, uint32_t observed, uint32_t worker)
{
    struct prefill t = prefill_begin(ex, run, lanes, worker);
    uint32_t key = keys_seen(run, run->query).begin / KEYS * KEYS;
    uint32_t end = keys_seen(run, run->query + lanes - 1).end;
    if (observed)
        observe(&t, ex, observed, worker);
    begin_lanes(&t, dtype, key, end);
    products_begin();
    for (uint32_t stretch = aq_attn_bf16_stretch(run->a->head_dim); key < end; key += stretch) {
        take_stretch(&t, dtype, key, (uint32_t)aq_min_u64(end, (uint64_t)key + stretch));
        for (uint32_t unit = 0; unit < t.units; unit++) {
            ask_keys(&t, dtype, unit, key + stretch, end);
            if (end - key <= stretch)
                ask_outputs(&t, unit);
            attend_unit(&t, unit);
        }
    }
    products_end();
    for (uint32_t lane = 0; lane < lanes; lane += VEC_LANES)
        store_lanes(&t, lane);
    if (run->a->log_sum_exp)
        store_log_sums(&t);
    if (observed)
        aq_attn_sum_observed_avx512(ex, worker, run->a, run->seq, run->head, &t.observed);
}

/* ---- items ---- */

struct prefill_job {
    struct aq_exec *ex;
    const struct aq_attn *a;
    uint32_t lanes; /* queries of an item */
};

/* Queries of a head's first item, its last ones: all those whose columns are summed. */
static uint32_t first_item(const struct prefill_job *job, const struct aq_attn_seq *seq)
{
    uint64_t lanes = aq_max_u64(job->lanes, aq_attn_observed(job->a, seq));
    return (uint32_t)aq_min_u64(lanes, (uint64_t)seq->rows * job->a->q_per_kv);
}

static uint32_t items_of(const struct prefill_job *job, const struct aq_attn_seq *seq)
{
    uint32_t first = first_item(job, seq), others = seq->rows * job->a->q_per_kv - first;
    return (first > 0) + (uint32_t)aq_div_up(others, job->lanes);
}

static uint32_t all_items(const struct prefill_job *job)
{
    uint32_t items = 0;
    for (uint32_t i = 0; i < job->a->seq_count; i++)
        items += items_of(job, &job->a->seqs[i]) * job->a->kv_heads;
    return items;
}

/* Items are numbered by sequence, then from its last queries (which see most) to its first, then by
 * head: the last items of a run are short, so that workers end together. */
VEC_FN void prefill_item(const struct prefill_job *job, enum aq_dtype dtype, uint32_t item,
                         uint32_t worker)
{
    const struct aq_attn *a = job->a;
    const struct aq_attn_seq *seq = a->seqs;
    uint32_t items = items_of(job, seq);
    while (item >= items * a->kv_heads) {
        item -= items * a->kv_heads;
        items = items_of(job, ++seq);
    }
    struct prefill_run run = {.a = a, .seq = seq, .head = item % a->kv_heads};
    uint32_t lanes = first_item(job, seq), queries = seq->rows * a->q_per_kv, observed = 0;
    uint32_t number = item / a->kv_heads;
    if (number) {
        queries -= lanes + (number - 1) * job->lanes;
        lanes = (uint32_t)aq_min_u64(job->lanes, queries);
    } else {
        observed = aq_attn_observed(a, seq);
    }
    run.query = queries - lanes;
    prefill_queries(job->ex, &run, dtype, lanes, observed, worker);
}

static void prefill_item_f32(void *job, uint32_t item, uint32_t worker)
{
    prefill_item(job, AQ_F32, item, worker);
}

static void prefill_item_f16(void *job, uint32_t item, uint32_t worker)
{
    prefill_item(job, AQ_F16, item, worker);
}

static void prefill_item_bf16(void *job, uint32_t item, uint32_t worker)
{
    prefill_item(job, AQ_BF16, item, worker);
}

static void prefill_item_q8(void *job, uint32_t item, uint32_t worker)
{
    prefill_item(job, AQ_Q8, item, worker);
}

static void prefill_item_q4(void *job, uint32_t item, uint32_t worker)
{
    prefill_item(job, AQ_Q4, item, worker);
}

static void attend_pairs(struct aq_exec *ex, const struct aq_attn *a)
{
    if (a->out_dtype != AQ_BF16) {
        aq_attn_prefill_avx512(ex, a);
        return;
    }
    aq_attn_prefill_assert(a);
    assert(aq_attn_bf16_scratch_bytes(a->head_dim) <= aq_exec_scratch_size(ex));
    struct prefill_job job = {.ex = ex, .a = a, .lanes = aq_attn_bf16_lanes(a->head_dim)};
    uint32_t items = all_items(&job), enough = 4 * aq_pool_threads(aq_exec_pool(ex));
    while (items < enough && job.lanes > 2 * UNIT) { /* some work for every thread */
        job.lanes /= 2;
        items = all_items(&job);
    }
    static aq_tile_fn *const fns[AQ_DTYPE_COUNT] = {
        [AQ_F32] = prefill_item_f32, [AQ_F16] = prefill_item_f16, [AQ_BF16] = prefill_item_bf16,
        [AQ_Q8] = prefill_item_q8,   [AQ_Q4] = prefill_item_q4,
    };
    aq_pool_run(aq_exec_pool(ex), fns[a->kv_dtype], &job, items);
    aq_attn_sum_others(ex, a, aq_attn_stats_avx512bf16);
}
