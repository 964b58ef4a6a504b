/* SPDX-License-Identifier: Apache-2.0
 * Bounds of head-blocks and the choice by them: against the formulas in f64, and every version
 * against the bits of the reference, with one thread and with many.  The benchmark reads a part of
 * long sequences, in turns with reading all of them. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "tests/kcheck/kc_attn.h"
#include "tests/kcheck/kcheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS_MAX = 3, BLOCKS_MAX = 70 };

struct made {
    uint32_t seqs, heads, q_per_kv, dim, groups;
    enum aq_dtype dtype;
    uint32_t blocks[SEQS_MAX], keep[SEQS_MAX];
    uint8_t *table[SEQS_MAX][BLOCKS_MAX];
    size_t head_offset, bounds_numbers; /* of a sequence */
    const float *q;
    size_t q_stride;
    float scale;
};

static void store_keys(struct kc *kc, const struct made *m, uint8_t *block, enum kc_fill fill)
{
    enum aq_dtype source = kc_source(m->dtype);
    const uint8_t *from = kc_in(kc, source, fill, AQ_KV_ROWS, m->dim, m->dim);
    for (uint32_t row = 0; row < AQ_KV_ROWS; row++, from += m->dim * aq_dtype_bytes(source)) {
        if (aq_dtype_is_quantised(m->dtype))
            aq_kv_store_row(block, m->dtype, m->dim, row, (const float *)(const void *)from);
        else
            memcpy(aq_kv_row(block, m->dtype, m->dim, row), from,
                   aq_kv_row_bytes(m->dtype, m->dim));
    }
}

static void make(struct kc *kc, struct made *m, enum kc_fill fill)
{
    size_t block_bytes = aq_kv_block_bytes(m->dtype, m->dim);
    m->seqs = 1 + kc_below(kc, SEQS_MAX);
    m->heads = 1 + kc_below(kc, 3);
    m->head_offset = block_bytes;
    m->scale = 1 / sqrtf((float)m->dim);
    uint32_t most = 0, pool = 2 + kc_below(kc, 4);
    uint8_t *page = kc_bytes(kc, pool * m->heads * block_bytes);
    for (uint32_t i = 0; i < pool * m->heads; i++)
        store_keys(kc, m, page + i * block_bytes, fill);
    for (uint32_t s = 0; s < m->seqs; s++) {
        m->blocks[s] = 2 + kc_below(kc, BLOCKS_MAX - 2);
        m->keep[s] = 2 + kc_below(kc, m->blocks[s] - 1);
        most = m->blocks[s] > most ? m->blocks[s] : most;
        /* The same pages come again: equal worths, and more head-blocks than are drawn. */
        for (uint32_t b = 0; b < m->blocks[s]; b++)
            m->table[s][b] = page + kc_below(kc, pool) * m->heads * block_bytes;
    }
    m->groups = aq_kv_bound_groups(most) + kc_below(kc, 2);
    m->bounds_numbers = aq_kv_bound_numbers(m->dim, m->groups) * m->heads;
    uint32_t columns = m->heads * m->q_per_kv * m->dim;
    m->q_stride = columns + kc_below(kc, 5);
    m->q =
        kc_in(kc, AQ_F32, fill == KC_NONFINITE ? KC_NORMAL : fill, m->seqs, columns, m->q_stride);
}

/* In two calls, as keys come: the second begins inside of a group. */
static void run_bounds(const struct made *m, const struct aq_kernels *k, struct aq_exec *ex,
                       uint16_t *bounds)
{
    struct aq_kv_bound job[SEQS_MAX];
    struct aq_kv_bounds all = {job, m->seqs, m->dtype, m->heads, m->dim};
    for (int part = 0; part < 2; part++) {
        for (uint32_t s = 0; s < m->seqs; s++) {
            uint32_t middle = m->blocks[s] / 3;
            job[s] =
                (struct aq_kv_bound){m->table[s], m->head_offset,    bounds + s * m->bounds_numbers,
                                     m->groups,   part ? middle : 0, part ? m->blocks[s] : middle};
        }
        k->kv_bounds(ex, &all);
    }
}

static void run_choose(const struct made *m, const struct aq_kernels *k, struct aq_exec *ex,
                       const uint16_t *bounds, uint32_t *chosen)
{
    struct aq_kv_choice job[SEQS_MAX];
    struct aq_kv_choices all = {job,         m->q,   m->q_stride, m->seqs, m->heads,
                                m->q_per_kv, m->dim, m->scale,    0};
    for (uint32_t s = 0; s < m->seqs; s++)
        job[s] = (struct aq_kv_choice){bounds + s * m->bounds_numbers,
                                       m->groups,
                                       m->blocks[s],
                                       m->keep[s],
                                       s,
                                       chosen + (size_t)s * m->heads * BLOCKS_MAX,
                                       BLOCKS_MAX};
    k->kv_choose(ex, &all);
}

static float bound_of(const struct made *m, const uint16_t *bounds, uint32_t s, uint32_t h,
                      uint32_t b, uint32_t d, bool greatest)
{
    size_t at = ((((size_t)h * m->groups + b / AQ_KV_BOUND_BLOCKS) * m->dim + d) * 2 + greatest) *
                    AQ_KV_BOUND_BLOCKS +
                b % AQ_KV_BOUND_BLOCKS;
    return aq_f32_from_f16(bounds[s * m->bounds_numbers + at]);
}

/* fmax(), which is a call. */
static inline double larger(double a, double b)
{
    return b > a || isnan(a) ? b : a;
}

/* Literally: no key is outside, and none of f16 is far inside. */
static void check_bounds(struct kc *kc, const struct made *m, const uint16_t *bounds)
{
    for (uint32_t s = 0; s < m->seqs; s++) {
        for (uint32_t i = 0; i < m->heads * m->blocks[s] * m->dim; i++) {
            uint32_t h = i / m->dim % m->heads, b = i / m->dim / m->heads, d = i % m->dim;
            double lo = INFINITY, hi = -INFINITY;
            for (uint32_t j = 0; j < AQ_HEAD_BLOCK_SLOTS; j++) {
                double k =
                    (double)aq_kv_load(m->table[s][b] + h * m->head_offset, m->dtype, m->dim, j, d);
                lo = -larger(-lo, -k);
                hi = larger(hi, k);
            }
            double least = (double)bound_of(m, bounds, s, h, b, d, false);
            double greatest = (double)bound_of(m, bounds, s, h, b, d, true);
            double slack = m->dtype == AQ_F16 ? 0 : 0x1p-10;
            bool tight = least >= lo - slack * fabs(lo) - 0x1p-24 &&
                         greatest <= hi + slack * fabs(hi) + 0x1p-24;
            bool beyond = lo < -65504 || hi > 65504;
            if (!kc_expect(kc, least <= lo && greatest >= hi && (tight || beyond),
                           "channel %u of head-block %u, head %u: bounds %g and %g of keys from %g "
                           "to %g",
                           d, b, h, least, greatest, lo, hi))
                return;
        }
    }
}

/* What the head-blocks of a head are worth. */
static void worth_of(const struct made *m, const uint16_t *bounds, uint32_t s, uint32_t h,
                     double *worth)
{
    static double u[BLOCKS_MAX];
    for (uint32_t b = 0; b < m->blocks[s]; b++)
        worth[b] = 0;
    for (uint32_t g = 0; g < m->q_per_kv; g++) {
        const float *q = m->q + s * m->q_stride + ((size_t)h * m->q_per_kv + g) * m->dim;
        double most = -INFINITY;
        for (uint32_t b = 0; b < m->blocks[s]; b++) {
            u[b] = 0;
            for (uint32_t d = 0; d < m->dim; d++) {
                double x = (double)(q[d] * m->scale);
                u[b] += larger(x * (double)bound_of(m, bounds, s, h, b, d, false),
                               x * (double)bound_of(m, bounds, s, h, b, d, true));
            }
            most = fmax(most, u[b]);
        }
        for (uint32_t b = 0; b < m->blocks[s]; b++)
            worth[b] += exp(u[b] - most);
    }
}

/* Literally: who is not chosen is worth no more than who is, and of equal ones is the earlier. */
static void check_choice(struct kc *kc, const struct made *m, const uint16_t *bounds,
                         const uint32_t *chosen)
{
    static double worth[BLOCKS_MAX];
    for (uint32_t i = 0; i < m->seqs * m->heads; i++) {
        uint32_t s = i / m->heads, h = i % m->heads, blocks = m->blocks[s], at = 0;
        const uint32_t *list = chosen + (size_t)i * BLOCKS_MAX;
        bool in[BLOCKS_MAX] = {false};
        double least = INFINITY;
        worth_of(m, bounds, s, h, worth);
        for (uint32_t n = 0; n < m->keep[s]; n++) {
            kc_expect(kc, list[n] < blocks && (!n || list[n] > list[n - 1]),
                      "choice %u is head-block %u", n, list[n]);
            in[list[n] < blocks ? list[n] : 0] = true;
        }
        kc_expect(kc, in[0] && in[blocks - 1], "the first or the last head-block is not chosen");
        for (uint32_t b = 1; b + 1 < blocks; b++) {
            if (in[b] && worth[b] < least)
                least = worth[b], at = b;
        }
        for (uint32_t b = 1; b + 1 < blocks; b++) {
            double near = 2e-5 * least + 1e-36; /* of exponents that are sums of `dim` roundings */
            bool earlier = worth[b] == least && b < at;
            kc_expect(kc, in[b] || worth[b] < least + near || earlier,
                      "head-block %u is worth %.9g and not chosen; %u is worth %.9g", b, worth[b],
                      at, least);
        }
    }
}

static void check_one(struct kc *kc, struct made *m, enum kc_fill fill)
{
    make(kc, m, fill);
    size_t numbers = m->seqs * m->bounds_numbers, list = (size_t)m->seqs * m->heads * BLOCKS_MAX;
    uint16_t *ref = kc_bytes(kc, numbers * 2), *got = kc_bytes(kc, numbers * 2);
    uint32_t *chosen = kc_bytes(kc, list * 4), *other = kc_bytes(kc, list * 4);
    run_bounds(m, kc_ref(kc), kc_exec(kc, 1), ref);
    run_choose(m, kc_ref(kc), kc_exec(kc, 1), ref, chosen);
    if (fill != KC_NONFINITE)
        check_bounds(kc, m, ref);
    if (fill == KC_NORMAL || fill == KC_POSITIVE)
        check_choice(kc, m, ref, chosen);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        memset(got, 0, numbers * 2);
        memset(other, 0, list * 4);
        run_bounds(m, kc_new(kc), kc_exec(kc, threads), got);
        run_choose(m, kc_new(kc), kc_exec(kc, threads), got, other);
        kc_expect(kc, memcmp(got, ref, numbers * 2) == 0, "bounds differ from the reference's");
        kc_expect(kc, memcmp(other, chosen, list * 4) == 0,
                  "other head-blocks are chosen than by the reference");
    }
}

static void check(struct kc *kc)
{
    static const enum aq_dtype dtypes[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};
    static const uint32_t dims[] = {64, 128, 80, 1, 7, 24, 33}, group[] = {1, 3, 4, 9};
    static struct made m;
    if (!kc_new(kc)->kv_bounds)
        return;
    for (size_t i = 0; i < AQ_ARRAY_LEN(dims) * AQ_ARRAY_LEN(dtypes); i++) {
        for (uint32_t fill = 0; fill <= KC_NONFINITE; fill++) {
            m = (struct made){.dim = dims[i / AQ_ARRAY_LEN(dtypes)],
                              .dtype = dtypes[i % AQ_ARRAY_LEN(dtypes)],
                              .q_per_kv = group[(i + fill) % AQ_ARRAY_LEN(group)]};
            if (kc_begin(kc, KC_SLOT(kv_choose), "kv_choose_%s_d%u_g%u_%s", aq_dtype_name(m.dtype),
                         m.dim, m.q_per_kv, kc_fill_name(fill)))
                check_one(kc, &m, fill);
        }
    }
}

/* ---- benchmark ---- */

static const struct bench_shape {
    uint32_t seqs, heads, q_per_kv, dim;
    enum aq_dtype dtype;
    uint32_t len, read;
} shapes[] = {
    {2, 8, 1, 128, AQ_F16, 16384, 2048}, {2, 8, 4, 128, AQ_F16, 16384, 2048},
    {2, 8, 1, 64, AQ_F16, 16384, 2048},  {2, 8, 4, 64, AQ_F16, 16384, 2048},
    {2, 8, 4, 128, AQ_Q8, 16384, 2048},  {2, 8, 4, 128, AQ_Q4, 16384, 2048},
};

enum { BENCH_SEQS = 2, BENCH_HEADS = 8, BENCH_BLOCKS = 16384 / AQ_HEAD_BLOCK_SLOTS };

struct bench {
    struct kc *kc;
    struct aq_attn a;
    struct aq_attn_seq seq[BENCH_SEQS];
    struct aq_kv_choice choice[BENCH_SEQS];
    uint32_t len, keep, part[BENCH_HEADS];
    uint8_t *block[BENCH_SEQS][BENCH_BLOCKS];
    uint8_t *table[BENCH_SEQS][BENCH_HEADS * BENCH_BLOCKS];
    uint32_t chosen[BENCH_SEQS][BENCH_HEADS * BENCH_BLOCKS];
    const uint8_t *cold;
    size_t page_bytes;
    uint64_t cold_pages;
};

static void next_pages(struct bench *b, uint64_t i)
{
    uint32_t blocks = b->len / AQ_HEAD_BLOCK_SLOTS, seqs = b->a.seq_count;
    for (uint32_t p = 0; p < seqs * blocks; p++)
        b->block[p / blocks][p % blocks] =
            (uint8_t *)b->cold + (i * seqs * blocks + p) % b->cold_pages * b->page_bytes;
}

static void read_all(void *arg, uint64_t i)
{
    struct bench *b = arg;
    next_pages(b, i);
    for (uint32_t s = 0; s < b->a.seq_count; s++) {
        b->seq[s].block = b->block[s];
        b->seq[s].head_table_step = b->seq[s].len_step = 0;
        b->seq[s].head_offset = b->page_bytes / b->a.kv_heads;
        b->seq[s].len = &b->len;
    }
    kc_new(b->kc)->attn_decode(kc_exec(b->kc, 0), &b->a);
}

/* The choice, the tables of what is chosen, and attention over that.  Bounds are made once in 32
 * rows; they are others than those of the keys, which makes no difference to the time. */
static void read_part(void *arg, uint64_t i)
{
    struct bench *b = arg;
    struct aq_kv_choices c = {.choices = b->choice,
                              .q = b->a.q,
                              .q_stride = b->a.q_stride,
                              .count = b->a.seq_count,
                              .kv_heads = b->a.kv_heads,
                              .q_per_kv = b->a.q_per_kv,
                              .head_dim = b->a.head_dim,
                              .scale = b->a.scale};
    next_pages(b, i);
    kc_new(b->kc)->kv_choose(kc_exec(b->kc, 0), &c);
    for (uint32_t s = 0; s < b->a.seq_count; s++) {
        for (uint32_t n = 0; n < b->a.kv_heads * b->keep; n++)
            b->table[s][n] =
                b->block[s][b->chosen[s][n]] + n / b->keep * (b->page_bytes / b->a.kv_heads);
        b->seq[s].block = b->table[s];
        b->seq[s].head_table_step = b->keep;
        b->seq[s].head_offset = 0;
        b->seq[s].len = b->part;
        b->seq[s].len_step = 1;
    }
    kc_new(b->kc)->attn_decode(kc_exec(b->kc, 0), &b->a);
}

static void bench_one(struct kc *kc, const struct bench_shape *s)
{
    static struct bench b;
    size_t cold_bytes, head_bytes = aq_kv_block_bytes(s->dtype, s->dim);
    uint32_t blocks = s->len / AQ_HEAD_BLOCK_SLOTS, groups = aq_kv_bound_groups(blocks);
    b = (struct bench){.kc = kc, .len = s->len, .keep = s->read / AQ_HEAD_BLOCK_SLOTS};
    b.cold = kc_cold(kc, &cold_bytes);
    b.page_bytes = head_bytes * s->heads;
    b.cold_pages = cold_bytes / b.page_bytes;
    size_t numbers = aq_kv_bound_numbers(s->dim, groups) * s->heads;
    uint16_t *bounds = kc_hot(kc, s->seqs * numbers * sizeof(*bounds));
    for (size_t i = 0; i < s->seqs * numbers; i++)
        bounds[i] = aq_f16_from_f32((float)kc_below(kc, 1 << 16) * 0x1p-16f);
    for (uint32_t h = 0; h < s->heads; h++)
        b.part[h] = s->read;
    for (uint32_t i = 0; i < s->seqs; i++) {
        b.seq[i] = (struct aq_attn_seq){.row = i, .rows = 1};
        b.choice[i] = (struct aq_kv_choice){bounds + i * numbers, groups, blocks, b.keep, i,
                                            b.chosen[i],          b.keep};
    }
    uint32_t columns = s->heads * s->q_per_kv * s->dim;
    b.a = (struct aq_attn){.seqs = b.seq,
                           .seq_count = s->seqs,
                           .q = (const float *)(const void *)b.cold,
                           .q_stride = columns,
                           .out = kc_hot(kc, (size_t)s->seqs * columns * sizeof(float)),
                           .out_stride = columns,
                           .kv_dtype = s->dtype,
                           .kv_heads = s->heads,
                           .q_per_kv = s->q_per_kv,
                           .head_dim = s->dim,
                           .scale = kc_attn_bench_scale(s->dtype)};
    struct kc_bench line = {
        .call = read_part,
        .arg = &b,
        .bytes = s->seqs * ((double)s->read * (double)b.page_bytes / AQ_HEAD_BLOCK_SLOTS +
                            (double)numbers * sizeof(*bounds)),
        .bound = KC_BOUND_READ,
        .peer = read_all,
        .peer_arg = &b,
    };
    kc_bench(kc, &line);
}

/* "of peer" is how many times faster a part is read than all. */
static void bench(struct kc *kc)
{
    if (kc_new(kc) == kc_ref(kc) || !kc_new(kc)->kv_choose)
        return;
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        const struct bench_shape *s = &shapes[i];
        if (kc_bench_begin(kc, KC_SLOT(kv_choose), "attn_read_%s_b%u_h%ux%u_d%u_s%u_of%u",
                           aq_dtype_name(s->dtype), s->seqs, s->heads, s->q_per_kv, s->dim, s->read,
                           s->len))
            bench_one(kc, s);
    }
}

const struct kc_check kc_check_read = {.name = "read", .check = check, .bench = bench};
