/* SPDX-License-Identifier: Apache-2.0
 * Attention, decode and prefill: against the reference, a sequence alone against the same in
 * batches, its last rows alone against all of them, and prefill against decode. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "tests/kcheck/kc_attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LEN_MAX = KC_ATTN_LEN_MAX };

static const enum aq_dtype kv_dtypes[] = {AQ_F32, AQ_F16,   AQ_BF16, AQ_Q8,
                                          AQ_Q4,  AQ_KIVI4, AQ_KIVI2};

/* How many of them: KIVI's blocks are for decode, and of the CPU. */
static size_t dtypes_of(const struct kc *kc, bool prefill)
{
    bool kivi = !prefill && kc_new(kc)->kv_encode;
    return AQ_ARRAY_LEN(kv_dtypes) - (kivi ? 0 : 2);
}

static const struct fills {
    enum kc_fill q, k, v;
} fills[] = {
    {KC_NORMAL, KC_NORMAL, KC_NORMAL},     {KC_HEAVY, KC_NORMAL, KC_HEAVY},
    {KC_NORMAL, KC_HEAVY, KC_OUTLIER},     {KC_OUTLIER, KC_OUTLIER, KC_NORMAL},
    {KC_CONSTANT, KC_CONSTANT, KC_NORMAL}, {KC_CONSTANT, KC_CONSTANT, KC_CONSTANT},
    {KC_ZERO, KC_NORMAL, KC_ZERO},         {KC_NORMAL, KC_DENORMAL, KC_DENORMAL},
    {KC_NORMAL, KC_LARGE, KC_LARGE},       {KC_NORMAL, KC_NORMAL, KC_NONFINITE},
    {KC_NORMAL, KC_NONFINITE, KC_NORMAL},
};

/* Head sizes around the borders of 4, 8 and 16 lanes and of 128 elements; query groups around 4. */
static const struct size {
    uint32_t kv_heads, q_per_kv, head_dim;
} sizes[] = {
    {3, 1, 64}, {2, 1, 128}, {1, 1, 80}, {2, 1, 96}, {2, 1, 32}, {1, 1, 1},   {2, 1, 7},
    {1, 2, 12}, {2, 3, 40},  {1, 4, 64}, {1, 5, 24}, {2, 8, 16}, {1, 7, 136}, {1, 1, 250},
};

/* Outputs, which say the compute type of prefill: a case for each of them there, one for decode. */
static const enum aq_dtype outs[] = {AQ_F32, AQ_BF16};

static uint32_t out_count(bool prefill)
{
    return prefill ? AQ_ARRAY_LEN(outs) : 1;
}

static aq_attn_decode_fn *version(const struct aq_kernels *k, bool prefill)
{
    return prefill ? k->attn_prefill : k->attn_decode;
}

/* ---- limits ---- */

/* Calls what for every query with its bound. */
struct scales {
    double *out;     /* [rows][columns] */
    double *log_sum; /* [rows][kv_heads * q_per_kv] */
};

static void add_scales(struct scales *scales, const struct kc_attn *t, const struct aq_attn_seq *s,
                       uint32_t head, uint32_t row, uint32_t group, bool alike)
{
    const struct aq_attn *a = &t->a;
    struct kc_attn_bound b;
    uint32_t keys = aq_attn_visible(aq_attn_len(s, head), s->rows, row);
    assert(keys <= LEN_MAX);
    size_t r = s->row + (size_t)row, q_head = (size_t)head * a->q_per_kv + group;
    const float *q = a->q + r * a->q_stride + q_head * a->head_dim;
    kc_attn_bound(&b, t, s, head, q, keys, alike);
    /* Of compute type bf16 with rounded factors: exp() is off by 2^-18.4, twice in a quotient, and
     * each weight is rounded once more, by 2^-8 of itself; their sum is of those that are not. */
    double exp_off = t->weights_rounded ? 0x1p-17 : 0;
    scales->log_sum[r * a->kv_heads * a->q_per_kv + q_head] =
        b.scores + exp_off + 0x1p-24 * fabs(b.log_sum);
    b.share += t->weights_rounded ? exp_off + 0x1p-8 : 0;
    double *out = scales->out + r * t->columns + q_head * a->head_dim, large[KC_ATTN_DIM_MAX];
    double by_weights[KC_ATTN_DIM_MAX] = {0}, largest[KC_ATTN_DIM_MAX] = {0};
    for (uint32_t j = b.first; j < keys; j++) { /* what is in front may be NaN */
        const uint8_t *block = aq_attn_block(s, head, j / AQ_HEAD_BLOCK_SLOTS);
        enum aq_dtype dtype = aq_attn_block_dtype(a, s, j / AQ_HEAD_BLOCK_SLOTS);
        uint32_t value_row = AQ_HEAD_BLOCK_SLOTS + j % AQ_HEAD_BLOCK_SLOTS;
        kc_attn_sizes_of(large, block, dtype, a->head_dim, value_row);
        bool begins = j == b.first || j % AQ_HEAD_BLOCK_SLOTS == 0;
        double moved = begins ? b.moved[j / AQ_HEAD_BLOCK_SLOTS] : 0;
        for (uint32_t d = 0; d < a->head_dim; d++) {
            out[d] += moved;
            by_weights[d] += b.share * b.p[j] * large[d];
            largest[d] = large[d] > largest[d] ? large[d] : largest[d];
        }
    }
    /* Weights sum up to 1, however far they are off: the output is a mean of values. */
    for (uint32_t d = 0; d < a->head_dim; d++)
        out[d] += by_weights[d] > 2 * largest[d] ? 2 * largest[d] : by_weights[d];
}

static struct scales make_scales(const struct kc_attn *t, bool alike)
{
    const struct aq_attn *a = &t->a;
    struct scales scales = {
        .out = calloc((size_t)t->rows * t->columns, sizeof(double)),
        .log_sum = calloc((size_t)t->rows * a->kv_heads * a->q_per_kv, sizeof(double)),
    };
    for (uint32_t i = 0; i < a->seq_count; i++) {
        for (uint32_t head = 0; head < a->kv_heads; head++) {
            for (uint32_t row = 0; row < t->seq[i].rows; row++) {
                for (uint32_t group = 0; group < a->q_per_kv; group++)
                    add_scales(&scales, t, &t->seq[i], head, row, group, alike);
            }
        }
    }
    return scales;
}

static struct kc_limit limit_of(const struct kc_attn *t, double factor)
{
    return (struct kc_limit){
        .rel = factor,
        .ulp = t->a.out_dtype == AQ_BF16 ? 1 : 2,
        .abs = 0x1p-126 * LEN_MAX, /* weights and products below the normal range */
        .why = "roundings of a score's dot product, of exp and of the sums over keys",
    };
}

/* ---- parity ---- */

struct outputs {
    struct kc_out y, log_sum;
};

static struct outputs make_outputs(struct kc *kc, const struct kc_attn *t)
{
    uint32_t heads = t->a.kv_heads * t->a.q_per_kv;
    return (struct outputs){
        .y = kc_out(kc, t->a.out_dtype, t->rows, t->columns, t->columns + kc_below(kc, 4)),
        .log_sum = kc_out(kc, AQ_F32, t->rows, heads, heads),
    };
}

/* Runs fn into one half of the outputs. */
static void run(struct kc *kc, const struct kc_attn *t, const struct outputs *o, bool into_ref,
                aq_attn_decode_fn *fn, uint32_t threads)
{
    struct aq_attn a = t->a;
    a.out = into_ref ? o->y.ref : o->y.got;
    a.out_stride = o->y.stride;
    a.log_sum_exp = into_ref ? o->log_sum.ref : o->log_sum.got;
    fn(kc_exec(kc, threads), &a);
}

/* factor: of what rounding may do to one of them. */
static void expect_near(struct kc *kc, const struct kc_attn *t, const struct outputs *o, bool alike,
                        double factor)
{
    struct scales scales = make_scales(t, alike);
    kc_near(kc, &o->y, scales.out, limit_of(t, factor));
    kc_near(kc, &o->log_sum, scales.log_sum,
            (struct kc_limit){.rel = factor, .ulp = 2, .why = "scores"});
    free(scales.out);
    free(scales.log_sum);
}

static struct outputs expect_parity(struct kc *kc, const struct kc_attn *t, bool prefill,
                                    bool alike)
{
    struct outputs o = make_outputs(kc, t);
    struct kc_attn of = *t; /* what the reference is of */
    if (prefill && kc_attn_rounds(kc, t)) {
        kc_attn_round(kc, &of, t);
        of.weights_rounded = true;
    }
    run(kc, &of, &o, true, version(kc_ref(kc), prefill), 0);
    run(kc, t, &o, false, version(kc_new(kc), prefill), 0);
    expect_near(kc, &of, &o, alike, 1);
    const struct aq_kernels *real = kc_instructions(kc);
    if (prefill && kc_attn_rounds(kc, t) && real) {
        /* They give the same numbers; the sign of a NaN may be another. */
        struct kc_limit none = {.why = "no difference"};
        run(kc, t, &o, true, real->attn_prefill, 0);
        kc_near(kc, &o.y, NULL, none);
        kc_near(kc, &o.log_sum, NULL, none);
    }
    return o;
}

static void check_parity(struct kc *kc, const struct kc_attn_shape *shape, bool prefill)
{
    struct kc_attn t;
    kc_attn_make(kc, &t, shape);
    expect_parity(kc, &t, prefill, shape->k == KC_CONSTANT);
}

/* Both versions under test, on the same rows and keys. */
static void check_agreement(struct kc *kc, const struct kc_attn_shape *shape)
{
    struct kc_attn t;
    kc_attn_make(kc, &t, shape);
    struct outputs o = make_outputs(kc, &t);
    run(kc, &t, &o, true, kc_new(kc)->attn_decode, 0);
    run(kc, &t, &o, false, kc_new(kc)->attn_prefill, 0);
    expect_near(kc, &t, &o, false, 2);
}

/* ---- independence ---- */

/* The last `rows` rows of sequences [first, first + count), computed alone, are the bits that
 * they are in `whole`. */
static void expect_part(struct kc *kc, const struct kc_attn *whole, const struct outputs *all,
                        uint32_t first, uint32_t count, uint32_t rows_max, bool prefill,
                        uint32_t threads)
{
    struct kc_attn part = *whole;
    struct outputs o = {.y = all->y, .log_sum = all->log_sum};
    o.y.got = all->y.got;
    for (uint32_t i = 0; i < count; i++) {
        part.seq[i] = whole->seq[first + i];
        uint32_t skip = part.seq[i].rows > rows_max ? part.seq[i].rows - rows_max : 0;
        part.seq[i].row += skip;
        part.seq[i].rows -= skip;
    }
    part.a.seqs = part.seq;
    part.a.seq_count = count;
    kc_out_set(&o.y, all->y.ref); /* rows of others stay as they are */
    kc_out_set(&o.log_sum, all->log_sum.ref);
    for (uint32_t i = 0; i < count; i++) { /* these are to be computed anew */
        for (uint32_t r = 0; r < part.seq[i].rows; r++) {
            for (uint32_t c = 0; c < part.columns; c++)
                aq_element_store(o.y.got, o.y.dtype, (part.seq[i].row + r) * o.y.stride + c, 77);
        }
    }
    run(kc, &part, &o, false, version(kc_new(kc), prefill), threads);
    if (!kc_same(kc, &o.y) || !kc_same(kc, &o.log_sum))
        kc_expect(kc, false, "sequences %u to %u, at most %u rows, %u threads", first,
                  first + count - 1, rows_max, threads);
}

static void check_parts(struct kc *kc, const struct kc_attn_shape *shape, bool prefill,
                        uint32_t window)
{
    static const uint32_t counts[] = {1, 2, 7, 32};
    struct kc_attn t;
    kc_attn_make(kc, &t, shape);
    t.a.window = window;
    struct outputs o = make_outputs(kc, &t);
    run(kc, &t, &o, true, version(kc_new(kc), prefill), 1);
    for (size_t i = 0; i < AQ_ARRAY_LEN(counts); i++) {
        for (uint32_t threads = 1; threads <= 3; threads++) {
            uint32_t first = kc_below(kc, shape->seqs - counts[i] + 1);
            expect_part(kc, &t, &o, first, counts[i], UINT32_MAX, prefill, threads);
            first = kc_below(kc, shape->seqs - counts[i] + 1);
            expect_part(kc, &t, &o, first, counts[i], 1 + kc_below(kc, shape->rows_max), prefill,
                        threads);
        }
    }
}

/* ---- windows ---- */

/* One sequence of a row, whose window begins at a border of blocks, gives what the sequence gives
 * that begins there and has none. */
static void check_cut(struct kc *kc, struct kc_attn_shape shape, bool prefill)
{
    struct kc_attn t;
    shape.seqs = shape.rows_max = 1;
    shape.holds_rows = true;
    shape.ragged = false;
    kc_attn_make(kc, &t, &shape);
    struct outputs o = make_outputs(kc, &t);
    uint32_t whole = *t.seq[0].len, blocks = (whole - 1) / AQ_HEAD_BLOCK_SLOTS;
    blocks = kc_below(kc, blocks + 1);
    uint32_t cut = whole - blocks * AQ_HEAD_BLOCK_SLOTS;
    t.a.window = cut;
    run(kc, &t, &o, false, version(kc_new(kc), prefill), 0);
    t.a.window = 0;
    t.seq[0].block += blocks;
    t.seq[0].coded -= (uint32_t)aq_min_u64(t.seq[0].coded, blocks);
    t.seq[0].len = &cut;
    run(kc, &t, &o, true, version(kc_new(kc), prefill), 0);
    t.weights_rounded = prefill && kc_attn_rounds(kc, &t);
    expect_near(kc, &t, &o, false, 2);
}

static void check_window(struct kc *kc, const struct kc_attn_shape *shape, bool prefill,
                         uint32_t number)
{
    struct kc_attn t;
    kc_attn_make(kc, &t, shape);
    kc_attn_set_window(&t, number);
    kc_attn_spoil(&t);
    struct outputs o = expect_parity(kc, &t, prefill, false);
    if (number + 2 < KC_ATTN_WINDOWS)
        return;
    t.a.window = 0; /* it left nothing out */
    run(kc, &t, &o, true, version(kc_new(kc), prefill), 0);
    kc_same(kc, &o.y);
    kc_same(kc, &o.log_sum);
}

static void check_windows(struct kc *kc, bool prefill)
{
    static const struct size windowed[] = {{2, 1, 64}, {1, 3, 80}, {1, 8, 128}, {2, 4, 12}};
    size_t slot = prefill ? KC_SLOT(attn_prefill) : KC_SLOT(attn_decode);
    for (uint32_t i = 0; i < KC_ATTN_WINDOWS * AQ_ARRAY_LEN(windowed); i++) {
        const struct size *size = &windowed[i / KC_ATTN_WINDOWS];
        struct kc_attn_shape shape = {.seqs = 3,
                                      .kv_heads = size->kv_heads,
                                      .q_per_kv = size->q_per_kv,
                                      .head_dim = size->head_dim,
                                      .rows_max = prefill ? 90 : 4,
                                      .len_max = 150};
        for (size_t n = 0; n < dtypes_of(kc, prefill) * out_count(prefill); n++) {
            shape.kv_dtype = kv_dtypes[n % dtypes_of(kc, prefill)];
            shape.out_dtype = outs[n / dtypes_of(kc, prefill)];
            if (!kc_begin(kc, slot, "attn_%s_in_window_%s_%s_x%u_d%u_to_%s",
                          prefill ? "prefill" : "decode", kc_attn_window_names[i % KC_ATTN_WINDOWS],
                          aq_dtype_name(shape.kv_dtype), size->q_per_kv, size->head_dim,
                          aq_dtype_name(shape.out_dtype)))
                continue;
            shape.ragged = kc_below(kc, 2);
            check_window(kc, &shape, prefill, i % KC_ATTN_WINDOWS);
            check_cut(kc, shape, prefill);
        }
    }
}

/* ---- cases ---- */

/* The head sizes and groups of models, each in another format. */
static void check_heads(struct kc *kc, bool prefill)
{
    size_t slot = prefill ? KC_SLOT(attn_prefill) : KC_SLOT(attn_decode);
    for (uint32_t n = 0; n < KC_ATTN_DIMS * KC_ATTN_GROUPS * out_count(prefill); n++) {
        uint32_t i = n % (KC_ATTN_DIMS * KC_ATTN_GROUPS);
        struct kc_attn_shape shape = {.seqs = 2,
                                      .kv_heads = 2,
                                      .q_per_kv = kc_attn_groups[i % KC_ATTN_GROUPS],
                                      .head_dim = kc_attn_dims[i / KC_ATTN_GROUPS],
                                      .kv_dtype = kv_dtypes[i % dtypes_of(kc, prefill)],
                                      .out_dtype = outs[n != i],
                                      .rows_max = prefill ? 20 : 2,
                                      .len_max = 130};
        if (!kc_begin(kc, slot, "attn_%s_heads_x%u_d%u_to_%s", prefill ? "prefill" : "decode",
                      shape.q_per_kv, shape.head_dim, aq_dtype_name(shape.out_dtype)))
            continue;
        shape.ragged = kc_below(kc, 2);
        check_parity(kc, &shape, prefill);
    }
}

static void check_sizes(struct kc *kc, bool prefill, const struct size *size)
{
    const char *name = prefill ? "attn_prefill" : "attn_decode";
    size_t slot = prefill ? KC_SLOT(attn_prefill) : KC_SLOT(attn_decode);
    for (size_t d = 0; d < dtypes_of(kc, prefill); d++) {
        for (size_t f = 0; f < AQ_ARRAY_LEN(fills); f++) {
            /* Every fill at the first size, and one of them at each other. */
            if (size != sizes && f && f != (size_t)(size - sizes) % AQ_ARRAY_LEN(fills))
                continue;
            if (!kc_begin(kc, slot, "%s_%s_h%ux%u_d%u_%s_%s_%s", name, aq_dtype_name(kv_dtypes[d]),
                          size->kv_heads, size->q_per_kv, size->head_dim, kc_fill_name(fills[f].q),
                          kc_fill_name(fills[f].k), kc_fill_name(fills[f].v)))
                continue;
            /* What tensor cores compute has a check of its own, with wider limits. */
            bool rounds = kc_rows_only(kc) && !prefill;
            struct kc_attn_shape shape = {
                .seqs = 3,
                .kv_heads = size->kv_heads,
                .q_per_kv = size->q_per_kv,
                .head_dim = size->head_dim,
                .kv_dtype = kv_dtypes[d],
                .out_dtype = f % 3 == 1 && !rounds ? AQ_BF16 : AQ_F32,
                .rows_max = prefill ? 130 : 4,
                .len_max = 200,
                .ragged = kc_below(kc, 2),
                .q = fills[f].q,
                .k = fills[f].k,
                .v = fills[f].v,
            };
            check_parity(kc, &shape, prefill);
        }
    }
}

/* Longer rows of keys, more queries than one reading of K and V serves. */
static void check_long(struct kc *kc, bool prefill)
{
    size_t slot = prefill ? KC_SLOT(attn_prefill) : KC_SLOT(attn_decode);
    struct kc_attn_shape shape = {.seqs = 2,
                                  .kv_heads = 1,
                                  .q_per_kv = 7,
                                  .head_dim = 64,
                                  .kv_dtype = AQ_F16,
                                  .rows_max = 9,
                                  .len_max = LEN_MAX,
                                  .q = KC_NORMAL,
                                  .k = KC_NORMAL,
                                  .v = KC_NORMAL};
    for (uint32_t i = 0; i < out_count(prefill); i++) {
        shape.out_dtype = outs[i];
        if (kc_begin(kc, slot, "%s_long_to_%s", prefill ? "attn_prefill" : "attn_decode",
                     aq_dtype_name(outs[i])))
            check_parity(kc, &shape, prefill);
    }
}

static void check_independence(struct kc *kc, bool prefill)
{
    static const struct size parts[] = {{2, 1, 64}, {1, 4, 40}, {1, 5, 128}};
    const char *name = prefill ? "attn_prefill" : "attn_decode";
    size_t slot = prefill ? KC_SLOT(attn_prefill) : KC_SLOT(attn_decode);
    for (size_t i = 0; i < AQ_ARRAY_LEN(parts); i++) {
        for (size_t n = 0; n < dtypes_of(kc, prefill) * out_count(prefill); n++) {
            size_t d = n % dtypes_of(kc, prefill);
            enum aq_dtype out = outs[n / dtypes_of(kc, prefill)];
            if (!kc_begin(kc, slot, "%s_parts_%s_x%u_d%u_to_%s", name, aq_dtype_name(kv_dtypes[d]),
                          parts[i].q_per_kv, parts[i].head_dim, aq_dtype_name(out)))
                continue;
            struct kc_attn_shape shape = {
                .seqs = 32,
                .kv_heads = parts[i].kv_heads,
                .q_per_kv = parts[i].q_per_kv,
                .head_dim = parts[i].head_dim,
                .kv_dtype = kv_dtypes[d],
                .out_dtype = out,
                .rows_max = prefill ? 60 : 5,
                .len_max = 150,
                .ragged = i & 1,
                /* What lies in a row that others do not see must not reach them. */
                .v = prefill && i == 1 ? KC_NONFINITE : KC_NORMAL,
            };
            check_parts(kc, &shape, prefill, d % 2 ? 0 : 20 + 30 * (uint32_t)i);
        }
    }
}

/* ---- queries that are turned back ---- */

/* A row of a rotary table at an angle that grows from pair to pair. */
static const float *make_turn(struct kc *kc, uint32_t dim, double angle, double factor)
{
    float *turn = kc_bytes(kc, dim * sizeof(*turn));
    for (uint32_t d = 0; d < dim / 2; d++) {
        turn[d] = (float)(cos(angle * (1 + d)) * factor);
        turn[dim / 2 + d] = (float)(sin(angle * (1 + d)) * factor);
    }
    return turn;
}

/* Some of the sequences, each by an angle of its own: beside the reference, and alone beside all
 * together.  By no angle the bits are those of a query that is not turned. */
static void check_turned(struct kc *kc, const struct kc_attn_shape *shape, uint32_t dim,
                         uint32_t slots)
{
    struct kc_attn t;
    double factor = kc_below(kc, 2) ? 1.25 : 1;
    kc_attn_make(kc, &t, shape);
    const float *none = make_turn(kc, dim, 0, 1);
    for (uint32_t i = 0; i < shape->seqs; i++)
        t.seq[i].turn = (struct aq_attn_turn){.turn = none, .scale = 1, .slots = slots, .dim = dim};
    struct outputs o = make_outputs(kc, &t);
    run(kc, &t, &o, false, kc_new(kc)->attn_decode, 1);
    for (uint32_t i = 0; i < shape->seqs; i++)
        t.seq[i].turn.turn = NULL;
    run(kc, &t, &o, true, kc_new(kc)->attn_decode, 1);
    kc_same(kc, &o.y);
    kc_same(kc, &o.log_sum);
    for (uint32_t i = 0; i < shape->seqs; i++) {
        t.seq[i].turn.turn = i % 3 ? make_turn(kc, dim, 0.1 + i, factor) : NULL;
        t.seq[i].turn.scale = (float)(1 / factor);
    }
    expect_parity(kc, &t, false, false);
    run(kc, &t, &o, true, kc_new(kc)->attn_decode, 1);
    for (uint32_t i = 0; i < shape->seqs; i++)
        expect_part(kc, &t, &o, i, 1, 1, false, 1 + i % 3);
}

static void check_turns(struct kc *kc)
{
    static const struct size turned[] = {{3, 1, 64}, {2, 1, 128}, {2, 3, 40}, {1, 4, 64},
                                         {1, 5, 24}, {2, 8, 16},  {1, 1, 250}};
    static const uint32_t slots[] = {1, 4, 32, 45};
    bool on_cpu = kc_new(kc)->kv_encode;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(turned) * AQ_ARRAY_LEN(slots) && on_cpu; i++) {
        const struct size *size = &turned[i % AQ_ARRAY_LEN(turned)];
        uint32_t count = slots[i / AQ_ARRAY_LEN(turned)], part = i % 2;
        struct kc_attn_shape shape = {.seqs = 4 + 28 * (kc_new(kc) != kc_ref(kc)),
                                      .kv_heads = size->kv_heads,
                                      .q_per_kv = size->q_per_kv,
                                      .head_dim = size->head_dim,
                                      .kv_dtype = kv_dtypes[i % 3],
                                      .rows_max = 1,
                                      .len_max = 150,
                                      .holds_rows = true};
        if (kc_begin(kc, KC_SLOT(attn_decode), "attn_turned_h%ux%u_d%u_%s_%u_%s", size->kv_heads,
                     size->q_per_kv, size->head_dim, part ? "part" : "whole", count,
                     aq_dtype_name(kv_dtypes[i % 3])))
            check_turned(kc, &shape, part ? size->head_dim / 4 * 2 : size->head_dim, count);
    }
}

static void check(struct kc *kc)
{
    check_turns(kc);
    for (int prefill = 0; prefill < 2; prefill++) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(sizes); i++)
            check_sizes(kc, prefill, &sizes[i]);
        check_heads(kc, prefill);
        check_windows(kc, prefill);
        check_long(kc, prefill);
        check_independence(kc, prefill);
    }
    for (size_t d = 0; d < dtypes_of(kc, true); d++) {
        struct kc_attn_shape shape = {.seqs = 4,
                                      .kv_heads = 2,
                                      .q_per_kv = 2,
                                      .head_dim = 64,
                                      .kv_dtype = kv_dtypes[d],
                                      .rows_max = 70,
                                      .len_max = 300};
        if (kc_begin(kc, KC_SLOT(attn_prefill), "attn_prefill_as_decode_%s",
                     aq_dtype_name(kv_dtypes[d])))
            check_agreement(kc, &shape);
    }
}

/* ---- benchmarks ---- */

static const struct bench_shape {
    struct size size;
    enum aq_dtype kv_dtype;
    uint32_t seqs, len;
    enum aq_dtype compute;
} decode_shapes[] =
    {
        {{32, 1, 64}, AQ_F16, 32, 512},     {{32, 1, 64}, AQ_F16, 32, 2048},
        {{32, 1, 128}, AQ_F16, 32, 512},    {{32, 1, 128}, AQ_F16, 32, 2048},
        {{32, 1, 64}, AQ_F16, 1, 512},      {{32, 1, 80}, AQ_F16, 32, 512},
        {{32, 1, 64}, AQ_F32, 32, 512},     {{32, 1, 64}, AQ_BF16, 32, 512},
        {{8, 4, 64}, AQ_F16, 32, 512},      {{4, 7, 64}, AQ_F16, 32, 512},
        {{8, 8, 64}, AQ_F16, 32, 512},      {{4, 16, 64}, AQ_F16, 32, 512},
        {{8, 4, 128}, AQ_F16, 32, 512},     {{4, 7, 128}, AQ_F16, 32, 512},
        {{8, 8, 128}, AQ_F16, 32, 512},     {{4, 16, 128}, AQ_F16, 32, 512},
        {{32, 1, 64}, AQ_Q8, 32, 2048},     {{32, 1, 128}, AQ_Q8, 32, 2048},
        {{32, 1, 64}, AQ_Q4, 32, 2048},     {{32, 1, 128}, AQ_Q4, 32, 2048},
        {{8, 4, 128}, AQ_Q8, 32, 512},      {{8, 4, 128}, AQ_Q4, 32, 512},
        {{32, 1, 128}, AQ_KIVI4, 32, 2048}, {{32, 1, 128}, AQ_KIVI2, 32, 2048},
        {{8, 4, 128}, AQ_KIVI4, 32, 2048},  {{8, 4, 128}, AQ_KIVI2, 32, 2048},
        {{32, 1, 64}, AQ_KIVI2, 32, 2048},
},
  prefill_shapes[] = {
      {{32, 1, 64}, AQ_F16, 4, 128},
      {{32, 1, 64}, AQ_F16, 1, 512},
      {{32, 1, 64}, AQ_F16, 1, 2048},
      {{32, 1, 128}, AQ_F16, 1, 512},
      {{16, 1, 128}, AQ_F16, 1, 2048},
      {{32, 1, 80}, AQ_F16, 1, 512},
      {{32, 1, 64}, AQ_F32, 1, 512},
      {{32, 1, 64}, AQ_BF16, 1, 512},
      {{4, 8, 128}, AQ_F16, 1, 512},
      {{32, 1, 64}, AQ_Q8, 1, 512},
      {{32, 1, 64}, AQ_Q4, 1, 512},
      {{8, 4, 64}, AQ_BF16, 32, 128, AQ_BF16},
      {{8, 4, 64}, AQ_BF16, 1, 512, AQ_BF16},
      {{8, 4, 64}, AQ_BF16, 1, 1024, AQ_BF16},
      {{8, 4, 64}, AQ_BF16, 1, 2048, AQ_BF16},
      {{32, 1, 64}, AQ_F16, 1, 2048, AQ_BF16},
      {{8, 4, 128}, AQ_BF16, 1, 2048, AQ_BF16},
      {{32, 1, 128}, AQ_BF16, 1, 2048, AQ_BF16},
      {{32, 1, 80}, AQ_BF16, 1, 2048, AQ_BF16},
      {{4, 8, 256}, AQ_BF16, 1, 2048, AQ_BF16},
      {{8, 4, 64}, AQ_Q8, 1, 2048, AQ_BF16},
      {{8, 4, 64}, AQ_Q4, 1, 2048, AQ_BF16},
};

/* Scores, positions and victims of all sequences, in turns: none is in a cache when its turn comes
 * again. */
enum { SLOT_TURNS = 3 };

struct bench {
    struct kc *kc;
    struct aq_attn a;
    aq_attn_decode_fn *fn;
    struct aq_attn_seq seq[KC_ATTN_SEQS_MAX];
    uint32_t len, pages; /* of every sequence; of all */
    const uint8_t *cold; /* page i of call n is page n * pages + i of the cold memory, */
    uint64_t cold_pages; /* modulo these */
    size_t page_bytes;
    uint8_t *block[KC_ATTN_SEQS_MAX * LEN_MAX * 2 / AQ_HEAD_BLOCK_SLOTS];
    struct aq_attn_slots slots[SLOT_TURNS];
};

/* Attention as b->a has it. */
static void bench_call(void *arg, uint64_t i)
{
    struct bench *b = arg;
    for (uint32_t p = 0; p < b->pages; p++)
        b->block[p] = (uint8_t *)b->cold + (i * b->pages + p) % b->cold_pages * b->page_bytes;
    b->fn(kc_exec(b->kc, 0), &b->a);
}

/* Attention alone, in turns with what is remembered: half of the cold memory away from it, so that
 * neither finds in a cache what the other has read. */
static void bench_alone(void *arg, uint64_t i)
{
    struct bench *b = arg;
    bench_call(b, i + b->cold_pages / b->pages / 2);
}

static void take_slots(struct bench *b, uint64_t i)
{
    uint32_t heads = b->a.kv_heads;
    for (uint32_t s = 0; s < b->a.seq_count; s++) {
        struct aq_attn_slots slots = b->slots[i % SLOT_TURNS];
        slots.score += (size_t)s * heads * slots.stride;
        slots.position += (size_t)s * heads * slots.stride;
        slots.victim += (size_t)s * heads;
        b->seq[s].slots = slots;
    }
}

static const struct aq_attn_rule bench_rule = {
    .victim = AQ_ATTN_BY_SCORE, .stat = AQ_ATTN_PROB, .decay = 1};

/* Decode attention with scores and victims. */
static void bench_scored(void *arg, uint64_t i)
{
    struct bench *b = arg;
    take_slots(b, i);
    b->a.rule = bench_rule;
    bench_call(b, i);
    b->a.rule.victim = AQ_ATTN_NO_RULE;
}

/* Prefill attention and the column sums of all queries. */
static void bench_stats(void *arg, uint64_t i)
{
    struct bench *b = arg;
    bench_call(b, i);
    take_slots(b, i);
    struct aq_attn a = b->a;
    a.rule = bench_rule;
    kc_new(b->kc)->attn_stats(kc_exec(b->kc, 0), &a);
}

/* Query rows that rows such as snapkv rank a prompt's keys by. */
enum { OBSERVED_ROWS = 32 };

/* Prefill attention, with which the column sums of its last queries come. */
static void bench_observed(void *arg, uint64_t i)
{
    struct bench *b = arg;
    take_slots(b, i);
    b->a.rule = bench_rule;
    b->a.pairs.rows = OBSERVED_ROWS;
    bench_call(b, i);
    b->a.rule.victim = AQ_ATTN_NO_RULE;
    b->a.pairs.rows = 0;
}

static void make_slots(struct kc *kc, struct bench *b)
{
    uint32_t heads = b->a.kv_heads * b->a.seq_count;
    for (uint32_t t = 0; t < SLOT_TURNS; t++) {
        struct aq_attn_slots *s = &b->slots[t];
        s->stride = (uint32_t)aq_align_up(b->len, AQ_HEAD_BLOCK_SLOTS);
        s->score = kc_hot(kc, (size_t)heads * s->stride * sizeof(float));
        s->position = kc_hot(kc, (size_t)heads * s->stride * sizeof(uint32_t));
        s->victim = kc_hot(kc, heads * sizeof(uint32_t));
        for (size_t i = 0; i < (size_t)heads * s->stride; i++) {
            s->score[i] = (float)kc_below(kc, 1 << 20) * 1e-6f;
            s->position[i] = (uint32_t)(i % s->stride);
        }
    }
}

enum bench_what { DECODE, PREFILL, SCORED, STATS, OBSERVED };

static bool is_prefill(enum bench_what what)
{
    return what == PREFILL || what == STATS || what == OBSERVED;
}

static bool is_remembering(enum bench_what what)
{
    return what != DECODE && what != PREFILL;
}

static void bench_open(struct kc *kc, struct bench *b, const struct bench_shape *s,
                       enum bench_what what)
{
    bool prefill = is_prefill(what);
    *b = (struct bench){.kc = kc, .fn = version(kc_new(kc), prefill), .len = s->len};
    size_t cold_bytes, head_bytes = aq_kv_block_bytes(s->kv_dtype, s->size.head_dim);
    uint32_t blocks = (uint32_t)aq_div_up(s->len, AQ_HEAD_BLOCK_SLOTS);
    b->cold = kc_cold(kc, &cold_bytes);
    b->page_bytes = head_bytes * s->size.kv_heads;
    b->cold_pages = cold_bytes / b->page_bytes;
    b->pages = s->seqs * blocks;
    assert(b->pages <= AQ_ARRAY_LEN(b->block));
    uint32_t rows = prefill ? s->len : 1;
    for (uint32_t i = 0; i < s->seqs; i++)
        b->seq[i] = (struct aq_attn_seq){.block = b->block + i * blocks,
                                         .head_offset = head_bytes,
                                         .coded = aq_dtype_is_kivi(s->kv_dtype) ? blocks : 0,
                                         .len = &b->len,
                                         .row = i * rows,
                                         .rows = rows,
                                         .position = s->len - rows,
                                         .recent = s->len / 2};
    uint32_t columns = s->size.kv_heads * s->size.q_per_kv * s->size.head_dim;
    size_t out_bytes = (size_t)s->seqs * rows * columns * sizeof(float);
    b->a = (struct aq_attn){.seqs = b->seq,
                            .seq_count = s->seqs,
                            .q = (const float *)b->cold,
                            .q_stride = columns,
                            .out = kc_hot(kc, out_bytes),
                            .out_dtype = s->compute,
                            .out_stride = columns,
                            .kv_dtype = s->kv_dtype,
                            .kv_heads = s->size.kv_heads,
                            .q_per_kv = s->size.q_per_kv,
                            .head_dim = s->size.head_dim,
                            .scale = kc_attn_bench_scale(s->kv_dtype)};
    assert(out_bytes <= cold_bytes);
    if (what == STATS || what == OBSERVED)
        b->a.log_sum_exp = kc_hot(kc, out_bytes / s->size.head_dim);
    if (is_remembering(what))
        make_slots(kc, b);
}

/* What is remembered is timed in turns with attention alone: "of peer" is its time over that of
 * both. */
static void bench_one(struct kc *kc, const struct bench_shape *s, enum bench_what what)
{
    static struct bench b;
    bool prefill = is_prefill(what);
    bench_open(kc, &b, s, what);
    double pairs = prefill ? 0.5 * s->len * (s->len + 1.0) : s->len; /* of a query and a key */
    double summed = what == STATS ? pairs : 0;
    double slot_bytes = what == SCORED ? 3.0 * sizeof(float) * s->size.kv_heads : 0;
    struct kc_bench line = {
        .call = what == SCORED     ? bench_scored
                : what == STATS    ? bench_stats
                : what == OBSERVED ? bench_observed
                                   : bench_call,
        .arg = &b,
        .bytes =
            (double)s->seqs * s->len * ((double)b.page_bytes / AQ_HEAD_BLOCK_SLOTS + slot_bytes),
        .flops = (4 * pairs + 2 * summed) * s->seqs * (double)b.a.q_stride,
        .bound = !prefill                ? KC_BOUND_READ
                 : s->compute == AQ_BF16 ? KC_BOUND_BF16
                                         : KC_BOUND_F32,
        .peer = is_remembering(what) ? bench_alone : NULL,
        .peer_arg = &b,
    };
    kc_bench(kc, &line);
}

static void bench_shapes(struct kc *kc, const struct bench_shape *shapes, size_t count,
                         enum bench_what what)
{
    static const char *const names[] = {"decode", "prefill", "scores", "stats", "observed"};
    static const size_t slots[] = {KC_SLOT(attn_decode), KC_SLOT(attn_prefill),
                                   KC_SLOT(attn_decode), KC_SLOT(attn_stats),
                                   KC_SLOT(attn_prefill)};
    for (size_t i = 0; i < count; i++) {
        const struct bench_shape *s = &shapes[i];
        if (what == SCORED && aq_dtype_is_kivi(s->kv_dtype))
            continue; /* no policy that keeps scores has them */
        if (kc_bench_begin(kc, slots[what], "attn_%s_%s%s_b%u_h%ux%u_d%u_s%u", names[what],
                           s->compute == AQ_BF16 ? "in_bf16_" : "", aq_dtype_name(s->kv_dtype),
                           s->seqs, s->size.kv_heads, s->size.q_per_kv, s->size.head_dim, s->len))
            bench_one(kc, s, what);
    }
}

static void bench(struct kc *kc)
{
    if (kc_new(kc) == kc_ref(kc))
        return; /* seconds a call */
    bench_shapes(kc, decode_shapes, AQ_ARRAY_LEN(decode_shapes), DECODE);
    bench_shapes(kc, prefill_shapes, AQ_ARRAY_LEN(prefill_shapes), PREFILL);
    bench_shapes(kc, decode_shapes, AQ_ARRAY_LEN(decode_shapes), SCORED);
    bench_shapes(kc, prefill_shapes, AQ_ARRAY_LEN(prefill_shapes), STATS);
    bench_shapes(kc, prefill_shapes, AQ_ARRAY_LEN(prefill_shapes), OBSERVED);
}

const struct kc_check kc_check_attn = {.name = "attn", .check = check, .bench = bench};
