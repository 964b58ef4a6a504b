/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kcheck/kc_attn.h"

#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"

#include <math.h>
#include <string.h>

const uint32_t kc_attn_dims[KC_ATTN_DIMS] = {64, 80, 96, 128, 256};
const uint32_t kc_attn_groups[KC_ATTN_GROUPS] = {1, 3, 4, 7, 8, 16};
const char *const kc_attn_window_names[KC_ATTN_WINDOWS] = {"1", "31", "32", "33", "n", "n1"};

static uint32_t draw_len(struct kc *kc, const struct kc_attn_shape *shape, uint32_t rows)
{
    uint32_t least = shape->holds_rows ? rows : 0;
    /* Lengths at the border of a block, and none at all, come often. */
    switch (kc_below(kc, 4)) {
    case 0: {
        uint32_t len = least + kc_below(kc, shape->len_max - least + 1);
        len = (uint32_t)aq_align_up(len, AQ_HEAD_BLOCK_SLOTS);
        return len <= shape->len_max ? len : shape->len_max;
    }
    case 1: return least;
    default: return least + kc_below(kc, shape->len_max - least + 1);
    }
}

/* Chooses rows and lengths; returns how many blocks they take. */
static uint32_t draw_seqs(struct kc *kc, struct kc_attn *t, const struct kc_attn_shape *shape)
{
    uint32_t heads = shape->kv_heads, blocks = 0;
    uint32_t *len = kc_bytes(kc, (size_t)shape->seqs * heads * sizeof(*len));
    for (uint32_t i = 0; i < shape->seqs; i++) {
        struct aq_attn_seq *s = &t->seq[i];
        s->rows = 1 + kc_below(kc, shape->rows_max);
        s->row = t->rows;
        t->rows += s->rows;
        s->len = len + (size_t)i * heads;
        s->len_step = shape->ragged;
        uint32_t longest = 0;
        for (uint32_t h = 0; h < heads; h++) {
            uint32_t n = h && !shape->ragged ? s->len[0] : draw_len(kc, shape, s->rows);
            len[i * heads + h] = n;
            longest = n > longest ? n : longest;
        }
        uint32_t used = (uint32_t)aq_div_up(longest, AQ_HEAD_BLOCK_SLOTS);
        s->head_table_step = shape->ragged ? used : 0;
        blocks += used * heads;
    }
    return blocks;
}

/* A random order of 0 .. count - 1. */
static uint32_t *shuffled(struct kc *kc, uint32_t count)
{
    uint32_t *order = kc_bytes(kc, (count + 1) * sizeof(*order));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = kc_below(kc, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

/* Chooses how many blocks of a sequence are codes, as many for all heads. */
static uint32_t draw_coded(struct kc *kc, const struct kc_attn_shape *shape,
                           const struct aq_attn_seq *s)
{
    uint32_t whole = UINT32_MAX;
    for (uint32_t h = 0; h < shape->kv_heads; h++)
        whole = (uint32_t)aq_min_u64(whole, aq_attn_len(s, h) / AQ_HEAD_BLOCK_SLOTS);
    return kc_below(kc, whole + 1);
}

/* Hands blocks out: pages of one block per head where the heads share a table. */
static void place_blocks(struct kc *kc, struct kc_attn *t, const struct kc_attn_shape *shape,
                         uint32_t blocks, size_t block_bytes)
{
    uint32_t heads = shape->kv_heads, page_blocks = shape->ragged ? 1 : heads, next = 0;
    uint32_t *order = shuffled(kc, blocks / page_blocks);
    uint8_t **table = kc_bytes(kc, (blocks + 1) * sizeof(*table));
    for (uint32_t i = 0; i < shape->seqs; i++) {
        struct aq_attn_seq *s = &t->seq[i];
        s->block = table + next;
        s->head_offset = shape->ragged ? 0 : aq_kv_block_bytes(shape->kv_dtype, shape->head_dim);
        if (aq_dtype_is_kivi(shape->kv_dtype)) {
            s->plain_offset = shape->ragged ? 0 : block_bytes;
            s->coded = draw_coded(kc, shape, s);
        }
        uint32_t longest = 0;
        for (uint32_t h = 0; h < heads; h++)
            longest = (uint32_t)aq_max_u64(longest, aq_attn_len(s, h));
        uint32_t rows = shape->ragged ? heads : 1;
        uint32_t entries = rows * (uint32_t)aq_div_up(longest, AQ_HEAD_BLOCK_SLOTS);
        for (uint32_t b = 0; b < entries; b++, next++)
            table[next] = t->pool + (size_t)order[next] * page_blocks * block_bytes;
    }
}

/* Bits as they are, f32 quantised. */
static void store_row(const struct kc_attn_shape *shape, uint8_t *block, uint32_t row,
                      const char *from)
{
    uint32_t dim = shape->head_dim;
    enum aq_dtype dtype = aq_dtype_is_kivi(shape->kv_dtype) ? AQ_F16 : shape->kv_dtype;
    if (aq_dtype_is_quantised(dtype))
        aq_kv_store_row(block, dtype, dim, row, (const float *)(const void *)from);
    else
        memcpy(aq_kv_row(block, dtype, dim, row), from, aq_kv_row_bytes(dtype, dim));
}

/* The codes of a block of f16. */
static void encode(struct kc *kc, const struct kc_attn_shape *shape, uint8_t *to,
                   const uint8_t *from)
{
    struct aq_kv_encode run = {from, to};
    kc_ref(kc)->kv_encode(kc_exec(kc, 0),
                          &(struct aq_kv_encodes){&run, 1, shape->kv_dtype, 1, shape->head_dim});
}

static void fill_blocks(struct kc *kc, struct kc_attn *t, const struct kc_attn_shape *shape)
{
    enum aq_dtype source = kc_source(shape->kv_dtype);
    size_t row_bytes = shape->head_dim * aq_dtype_bytes(source);
    uint32_t keys = 0;
    for (uint32_t i = 0; i < shape->seqs; i++) {
        for (uint32_t h = 0; h < shape->kv_heads; h++)
            keys += aq_attn_len(&t->seq[i], h);
    }
    const char *k = kc_in(kc, source, shape->k, keys, shape->head_dim, shape->head_dim);
    const char *v = kc_in(kc, source, shape->v, keys, shape->head_dim, shape->head_dim);
    uint8_t *plain = kc_bytes(kc, aq_kv_block_bytes(AQ_F16, shape->head_dim));
    memset(t->pool, 0xff, t->pool_bytes); /* NaN in every dtype, also as scales */
    for (uint32_t i = 0; i < shape->seqs; i++) {
        for (uint32_t h = 0; h < shape->kv_heads; h++) {
            for (uint32_t j = 0; j < aq_attn_len(&t->seq[i], h); j++) {
                uint8_t *block = aq_attn_block(&t->seq[i], h, j / AQ_HEAD_BLOCK_SLOTS);
                uint32_t slot = j % AQ_HEAD_BLOCK_SLOTS;
                bool coded =
                    aq_dtype_is_kivi(shape->kv_dtype) && j / AQ_HEAD_BLOCK_SLOTS < t->seq[i].coded;
                uint8_t *to = coded ? plain : block;
                store_row(shape, to, slot, k);
                store_row(shape, to, AQ_HEAD_BLOCK_SLOTS + slot, v);
                k += row_bytes;
                v += row_bytes;
                if (coded && slot + 1 == AQ_HEAD_BLOCK_SLOTS)
                    encode(kc, shape, block, plain);
            }
        }
    }
}

void kc_attn_make(struct kc *kc, struct kc_attn *t, const struct kc_attn_shape *shape)
{
    assert(shape->seqs <= KC_ATTN_SEQS_MAX && shape->len_max >= shape->rows_max);
    *t = (struct kc_attn){0};
    uint32_t blocks = draw_seqs(kc, t, shape);
    bool kivi = aq_dtype_is_kivi(shape->kv_dtype);
    size_t block_bytes = aq_kv_block_bytes(shape->kv_dtype, shape->head_dim);
    if (kivi) /* for either */
        block_bytes = aq_max_u64(block_bytes, aq_kv_block_bytes(AQ_F16, shape->head_dim));
    t->pool_bytes = blocks * block_bytes;
    t->pool = kc_bytes(kc, t->pool_bytes);
    place_blocks(kc, t, shape, blocks, block_bytes);
    fill_blocks(kc, t, shape);
    t->columns = shape->kv_heads * shape->q_per_kv * shape->head_dim;
    size_t stride = t->columns + kc_below(kc, 5);
    t->a = (struct aq_attn){
        .seqs = t->seq,
        .seq_count = shape->seqs,
        .q = kc_in(kc, AQ_F32, shape->q, t->rows, t->columns, stride),
        .q_stride = stride,
        .out_dtype = shape->out_dtype,
        .kv_dtype = shape->kv_dtype,
        .kv_heads = shape->kv_heads,
        .q_per_kv = shape->q_per_kv,
        .head_dim = shape->head_dim,
        .scale = 1 / sqrtf((float)shape->head_dim),
    };
}

void kc_attn_set_window(struct kc_attn *t, uint32_t number)
{
    static const uint32_t near_block[] = {1, 31, 32, 33};
    uint32_t longest = 1;
    for (uint32_t i = 0; i < t->a.seq_count; i++) {
        for (uint32_t h = 0; h < t->a.kv_heads; h++)
            longest = (uint32_t)aq_max_u64(longest, aq_attn_len(&t->seq[i], h));
    }
    uint32_t more = number - AQ_ARRAY_LEN(near_block);
    t->a.window = number < AQ_ARRAY_LEN(near_block) ? near_block[number] : longest + more;
}

void kc_attn_spoil(struct kc_attn *t)
{
    const struct aq_attn *a = &t->a;
    for (uint32_t i = 0; i < a->seq_count * a->kv_heads; i++) {
        const struct aq_attn_seq *s = &t->seq[i / a->kv_heads];
        uint32_t head = i % a->kv_heads;
        uint32_t seen = aq_attn_visible(aq_attn_len(s, head), s->rows, 0);
        for (uint32_t j = 0; j < aq_attn_first(a->window, seen); j++) {
            uint8_t *block = aq_attn_block(s, head, j / AQ_HEAD_BLOCK_SLOTS);
            enum aq_dtype dtype = aq_attn_block_dtype(a, s, j / AQ_HEAD_BLOCK_SLOTS);
            if (aq_dtype_is_kivi(dtype))
                break; /* tokens share what a block has */
            for (uint32_t row = j % AQ_HEAD_BLOCK_SLOTS; row < AQ_KV_ROWS;
                 row += AQ_HEAD_BLOCK_SLOTS) {
                memset(aq_kv_row(block, dtype, a->head_dim, row), 0xff,
                       aq_kv_row_bytes(dtype, a->head_dim));
                if (aq_dtype_is_quantised(dtype))
                    aq_kv_quant_set(block, row, (struct aq_quant){0xffff, 0xffff});
            }
        }
    }
}

bool kc_attn_may_round(const struct kc *kc)
{
    return kc_new(kc)->isa & (AQ_ISA_AVX512BF16 | AQ_ISA_AMX);
}

bool kc_attn_rounds(const struct kc *kc, const struct kc_attn *t)
{
    return kc_attn_may_round(kc) && t->a.out_dtype == AQ_BF16;
}

static float rounded(float v)
{
    return aq_f32_from_bf16(aq_bf16_from_f32(v));
}

/* A block in f32, rounded, of the one at `from`. */
static void round_block(float *to, const uint8_t *from, const struct aq_attn *a)
{
    for (uint32_t row = 0; row < AQ_KV_ROWS; row++) {
        for (uint32_t d = 0; d < a->head_dim; d++)
            *to++ = rounded(aq_kv_load(from, a->kv_dtype, a->head_dim, row, d));
    }
}

void kc_attn_round(struct kc *kc, struct kc_attn *ret, const struct kc_attn *t)
{
    size_t from_bytes = aq_kv_block_bytes(t->a.kv_dtype, t->a.head_dim);
    size_t to_bytes = aq_kv_block_bytes(AQ_F32, t->a.head_dim), count = t->pool_bytes / from_bytes;
    *ret = *t;
    ret->pool_bytes = count * to_bytes;
    ret->pool = kc_bytes(kc, ret->pool_bytes);
    for (size_t i = 0; i < count; i++)
        round_block((float *)(void *)(ret->pool + i * to_bytes), t->pool + i * from_bytes, &t->a);
    for (uint32_t i = 0; i < t->a.seq_count; i++) {
        struct aq_attn_seq *s = &ret->seq[i];
        uint32_t longest = 0, rows = s->head_table_step ? t->a.kv_heads : 1;
        for (uint32_t h = 0; h < t->a.kv_heads; h++)
            longest = (uint32_t)aq_max_u64(longest, aq_attn_len(s, h));
        uint32_t entries = rows * (uint32_t)aq_div_up(longest, AQ_HEAD_BLOCK_SLOTS);
        uint8_t **table = kc_bytes(kc, (entries + 1) * sizeof(*table));
        for (uint32_t b = 0; b < entries; b++)
            table[b] = ret->pool + (size_t)(s->block[b] - t->pool) / from_bytes * to_bytes;
        s->block = table;
        s->head_offset = s->head_offset / from_bytes * to_bytes;
    }
    float *q = kc_bytes(kc, (size_t)t->rows * t->columns * sizeof(*q));
    for (uint32_t r = 0; r < t->rows; r++) {
        for (uint32_t c = 0; c < t->columns; c++)
            q[(size_t)r * t->columns + c] = rounded(t->a.q[r * t->a.q_stride + c] * t->a.scale);
    }
    ret->a.seqs = ret->seq;
    ret->a.q = q;
    ret->a.q_stride = t->columns;
    ret->a.scale = 1;
    ret->a.kv_dtype = AQ_F32;
}

static double roundings(uint32_t n, bool alike)
{
    double steps = 2 * sqrt(n) + 4;
    return alike || steps > n ? n + 2.0 : steps;
}

static inline double size_of(const uint8_t *block, enum aq_dtype dtype, uint32_t dim, uint32_t row,
                             uint32_t d)
{
    if (aq_dtype_is_float(dtype))
        return fabs((double)aq_kv_load(block, dtype, dim, row, d));
    bool kivi = aq_dtype_is_kivi(dtype);
    struct aq_quant q = kivi ? aq_kivi_quant(block, dim, row, d) : aq_kv_quant(block, row);
    uint32_t code =
        kivi ? aq_kivi_code(block, dtype, dim, row, d) : aq_kv_code(block, dtype, dim, row, d);
    return (double)aq_f32_from_f16(q.scale) * code + fabs((double)aq_f32_from_f16(q.minimum));
}

/* One loop a dtype, in which the compiler knows it. */
void kc_attn_stats_in_calls(struct kc *kc, const struct aq_attn *whole, kc_attn_stats_fn *stats,
                            void *user)
{
    const struct aq_attn_seq *all = whole->seqs;
    struct aq_attn a = *whole;
    a.seq_count = 1;
    for (uint32_t first = 0, len, end; first < all->rows; first = end) {
        end = first + AQ_ATTN_STATS_ROWS * (1 + kc_below(kc, 2));
        end = (uint32_t)aq_min_u64(end, all->rows);
        len = *all->len - (all->rows - end);
        struct aq_attn_seq some = *all;
        some.row += first;
        some.rows = end - first;
        some.len = &len;
        a.seqs = &some;
        stats(user, &a);
        a.begun = (struct aq_attn_begun){all->slots.score, all->slots.stride, len};
    }
}

void kc_attn_sizes_of(double *to, const uint8_t *block, enum aq_dtype dtype, uint32_t dim,
                      uint32_t row)
{
#define SIZES_OF(known)                                                                            \
    case known:                                                                                    \
        for (uint32_t d = 0; d < dim; d++)                                                         \
            to[d] = size_of(block, known, dim, row, d);                                            \
        break
    switch (dtype) {
        SIZES_OF(AQ_F32);
        SIZES_OF(AQ_F16);
        SIZES_OF(AQ_BF16);
        SIZES_OF(AQ_Q8);
        SIZES_OF(AQ_Q4);
        SIZES_OF(AQ_KIVI4);
        SIZES_OF(AQ_KIVI2);
    default: assert(!"a dtype of KV");
    }
#undef SIZES_OF
}

/* Number d of a query, times the scale, in front of a key; and how large its terms are. */
static double query_at(const struct aq_attn *a, const struct aq_attn_turn *turn, const float *q,
                       uint32_t key, uint32_t d, double *ret_size)
{
    double x = (double)q[d] * a->scale;
    uint32_t half = turn->dim / 2;
    *ret_size = fabs(x);
    if (!turn->turn || key >= turn->slots || d >= turn->dim)
        return x;
    double other = (double)q[d < half ? d + half : d - half] * a->scale;
    x *= (double)turn->turn[d % half] * (double)turn->scale;
    other *= (double)turn->turn[half + d % half] * (double)turn->scale;
    *ret_size = fabs(x) + fabs(other);
    return d < half ? x + other : x - other;
}

/* A query as keys get it, and how large its terms are. */
struct seen {
    double x[KC_ATTN_DIM_MAX], size[KC_ATTN_DIM_MAX];
};

static void see(struct seen *to, const struct aq_attn *a, const struct aq_attn_turn *turn,
                const float *q, uint32_t key)
{
    for (uint32_t d = 0; d < a->head_dim; d++)
        to->x[d] = query_at(a, turn, q, key, d, &to->size[d]);
}

/* How far a sum of n codes times rounded factors may be off, for 1 as the largest factor: codes are
 * at most so far from the middle one. */
static double factors_off(enum aq_dtype dtype, uint32_t n, bool alike)
{
    double step = dtype == AQ_KIVI4 ? 1.0 / 127 / 256 : 1.0 / 127;
    return 0.5 * step * (dtype == AQ_KIVI2 ? 1.5 : 7.5) * roundings(n, alike);
}

/* The largest factor of a query's codes of K: of x times their scales.  Steps are no finer than
 * those of 2^-64. */
static double key_factor(const struct seen *by, const uint8_t *block, uint32_t dim)
{
    double largest = 0x1p-64;
    for (uint32_t d = 0; d < dim; d++) {
        double factor = by->size[d] * (double)aq_f32_from_f16(aq_kivi_keys(block)[d]);
        largest = factor > largest ? factor : largest;
    }
    return largest;
}

/* The same of V: the heaviest weight times the largest scale. */
static double value_factor(const double *p, uint32_t keys, const uint8_t *block, uint32_t dim)
{
    double heaviest = 0, largest = 0x1p-64;
    for (uint32_t i = 0; i < keys && i < AQ_HEAD_BLOCK_SLOTS; i++)
        heaviest = fmax(heaviest, p[i]);
    for (uint32_t i = 0; i < aq_kivi_groups(dim) * AQ_HEAD_BLOCK_SLOTS; i++)
        largest = fmax(largest, (double)aq_f32_from_f16(aq_kivi_values(block, dim)[i]));
    return heaviest * largest;
}

void kc_attn_bound(struct kc_attn_bound *b, const struct kc_attn *t, const struct aq_attn_seq *s,
                   uint32_t head, const float *q, uint32_t keys, bool alike)
{
    const struct aq_attn *a = &t->a;
    double max = -INFINITY, magnitude = 0, sum = 0, score_off = 0;
    struct seen turned, plain; /* by the keys in front of turn.slots, and by the others */
    float k[KC_ATTN_DIM_MAX];
    double sizes[KC_ATTN_DIM_MAX];
    assert(a->head_dim <= KC_ATTN_DIM_MAX);
    see(&turned, a, &s->turn, q, 0);
    see(&plain, a, &s->turn, q, s->turn.slots);
    b->first = aq_attn_first(a->window, keys);
    for (uint32_t j = 0; j < b->first; j++)
        b->p[j] = 0;
    for (uint32_t j = b->first; j < keys; j++) {
        const uint8_t *block = aq_attn_block(s, head, j / AQ_HEAD_BLOCK_SLOTS);
        enum aq_dtype dtype = aq_attn_block_dtype(a, s, j / AQ_HEAD_BLOCK_SLOTS);
        uint32_t key_row = j % AQ_HEAD_BLOCK_SLOTS;
        const struct seen *by = j < s->turn.slots ? &turned : &plain;
        double dot = 0, size = 0;
        aq_kv_load_row(k, block, dtype, a->head_dim, key_row);
        kc_attn_sizes_of(sizes, block, dtype, a->head_dim, key_row);
        for (uint32_t d = 0; d < a->head_dim; d++) {
            dot += by->x[d] * k[d];
            size += by->size[d] * sizes[d];
        }
        bool begins = j == b->first || key_row == 0 || j == s->turn.slots; /* a block, or `by` */
        if (aq_dtype_is_kivi(dtype) && begins)
            score_off = fmax(score_off, key_factor(by, block, a->head_dim) *
                                            factors_off(dtype, a->head_dim, alike));
        b->p[j] = dot;
        max = fmax(max, dot);
        magnitude = fmax(magnitude, size);
    }
    for (uint32_t j = b->first; j < keys; j++) {
        b->p[j] = exp(b->p[j] - max);
        sum += b->p[j];
    }
    for (uint32_t j = b->first; j < keys; j++)
        b->p[j] /= sum;
    b->log_sum = max + log(sum);
    double rounded = 0x1p-24 * (2 * magnitude * (roundings(a->head_dim, alike) + 2) +
                                2 * roundings(keys - b->first, alike) + 6);
    b->scores = rounded + 2 * score_off;
    b->share = rounded + fmin(expm1(2 * score_off), 1e300); /* heavy keys make it large */
    for (uint32_t i = 0; i * AQ_HEAD_BLOCK_SLOTS < keys; i++) {
        enum aq_dtype dtype = aq_attn_block_dtype(a, s, i);
        const uint8_t *block = aq_attn_block(s, head, i);
        const double *p = b->p + i * AQ_HEAD_BLOCK_SLOTS;
        b->moved[i] = 0;
        if (aq_dtype_is_kivi(dtype))
            b->moved[i] = value_factor(p, keys - i * AQ_HEAD_BLOCK_SLOTS, block, a->head_dim) *
                          factors_off(dtype, AQ_HEAD_BLOCK_SLOTS, alike);
    }
}

float kc_attn_bench_scale(enum aq_dtype dtype)
{
    float code = aq_dtype_is_float(dtype) ? 1 : dtype == AQ_Q8 ? 128 : 8;
    return 0.125f / code;
}
