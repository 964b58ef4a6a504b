/* SPDX-License-Identifier: Apache-2.0
 * What attention remembers of its probabilities: the scores that decode attention adds to and the
 * victims it names, the column sums of a prompt, each against the reference, alone against in
 * batches, and one against the other. */
#include "kernels/cpu/attn.h"
#include "tests/kcheck/kc_attn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum aq_dtype kv_dtypes[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};

static const struct size {
    uint32_t kv_heads, q_per_kv, head_dim;
} sizes[] = {
    {3, 1, 64}, {1, 1, 128}, {2, 1, 80}, {1, 1, 1},   {2, 1, 7},   {1, 2, 12},
    {2, 3, 40}, {3, 4, 64},  {1, 5, 24}, {2, 8, 128}, {1, 40, 16}, {1, 1, 250},
};

enum { NO_WINDOW = KC_ATTN_WINDOWS };

/* Sequences whose slots are remembered. */
struct scored {
    struct kc_attn t;
    struct aq_attn_rule rule;
    struct kc_out score;        /* [sequences * kv_heads][stride] */
    struct kc_out out, log_sum; /* of attention */
    const float *start;         /* what scores begin as, in the shape of score */
    uint32_t *victim[2];        /* [sequences * kv_heads]: of ref, of got */
};

static struct aq_attn_rule draw_rule(struct kc *kc)
{
    return (struct aq_attn_rule){.stat = (enum aq_attn_stat)(AQ_ATTN_PROB + kc_below(kc, 3)),
                                 .group = (enum aq_attn_group)kc_below(kc, 4),
                                 .threshold = 0.7f,
                                 .decay = kc_below(kc, 2) ? 1 : 0.875f,
                                 .victim = kc_below(kc, 4) ? AQ_ATTN_BY_SCORE : AQ_ATTN_BY_POSITION,
                                 .sinks = kc_below(kc, 6)};
}

static void place_slots(struct kc *kc, struct scored *x, uint32_t stride)
{
    uint32_t heads = x->t.a.kv_heads, rows = x->t.a.seq_count * heads;
    float *start = kc_bytes(kc, (size_t)rows * stride * sizeof(*start));
    uint32_t *position = kc_bytes(kc, (size_t)rows * stride * sizeof(*position));
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t *p = position + (size_t)r * stride;
        for (uint32_t j = 0; j < stride; j++) { /* any order; scores that are close to each other */
            uint32_t other = kc_below(kc, j + 1);
            p[j] = p[other];
            p[other] = j;
            start[(size_t)r * stride + j] = (float)kc_below(kc, 4);
        }
    }
    x->score = kc_out(kc, AQ_F32, rows, stride, stride);
    x->start = start;
    for (int i = 0; i < 2; i++)
        x->victim[i] = kc_bytes(kc, rows * sizeof(uint32_t));
    for (uint32_t i = 0; i < x->t.a.seq_count; i++) {
        struct aq_attn_seq *s = &x->t.seq[i];
        s->slots.stride = stride;
        s->slots.position = position + (size_t)i * heads * stride;
        s->position = kc_below(kc, stride);
        s->recent = kc_below(kc, stride / 2);
    }
}

/* window: its number, NO_WINDOW for none. */
static void make_scored(struct kc *kc, struct scored *x, const struct kc_attn_shape *shape,
                        uint32_t window)
{
    kc_attn_make(kc, &x->t, shape);
    if (window != NO_WINDOW) {
        kc_attn_set_window(&x->t, window);
        kc_attn_spoil(&x->t);
    }
    x->rule = draw_rule(kc);
    uint32_t stride = (uint32_t)aq_align_up(shape->len_max + kc_below(kc, 40), 32);
    place_slots(kc, x, stride);
    uint32_t heads = shape->kv_heads * shape->q_per_kv;
    x->out = kc_out(kc, shape->out_dtype, x->t.rows, x->t.columns, x->t.columns);
    x->log_sum = kc_out(kc, AQ_F32, x->t.rows, heads, heads);
}

static void start_scores(struct scored *x, bool into_ref)
{
    size_t count = (size_t)x->score.rows * x->score.stride;
    memcpy(into_ref ? x->score.ref : x->score.got, x->start, count * sizeof(float));
    memset(x->victim[!into_ref], 0x77, x->score.rows * sizeof(uint32_t));
}

/* The call for sequences [first, first + count), into one half of the outputs. */
static struct aq_attn call_of(struct scored *x, uint32_t first, uint32_t count, bool into_ref)
{
    struct aq_attn a = x->t.a;
    float *score = into_ref ? x->score.ref : x->score.got;
    for (uint32_t i = 0; i < a.seq_count; i++) {
        struct aq_attn_slots *slots = &x->t.seq[i].slots;
        slots->score = score + (size_t)i * a.kv_heads * slots->stride;
        slots->victim = x->victim[!into_ref] + (size_t)i * a.kv_heads;
    }
    a.seqs = x->t.seq + first;
    a.seq_count = count;
    a.out = into_ref ? x->out.ref : x->out.got;
    a.out_stride = x->out.stride;
    a.log_sum_exp = into_ref ? x->log_sum.ref : x->log_sum.got;
    a.rule = x->rule;
    return a;
}

/* ---- limits ---- */

/* What a vector unit may take for 0, of every probability or square: each subnormal one. */
#define FLUSHED 0x1p-125

/* Adds what rounding may do to c(row, j) for every key, times `times`. */
static void add_scales(double *scale, const struct scored *x, const struct aq_attn_seq *s,
                       uint32_t head, uint32_t row, bool alike, double times)
{
    const struct aq_attn *a = &x->t.a;
    uint32_t keys = aq_attn_visible(aq_attn_len(s, head), s->rows, row);
    for (uint32_t g = 0; g < a->q_per_kv; g++) {
        struct kc_attn_bound b;
        const float *q = a->q + ((size_t)s->row + row) * a->q_stride +
                         ((size_t)head * a->q_per_kv + g) * a->head_dim;
        kc_attn_bound(&b, &x->t, s, head, q, keys, alike);
        for (uint32_t j = 0; j < keys; j++) {
            double p = b.p[j], border = x->rule.threshold / (double)(keys - b.first);
            switch (x->rule.stat) {
            case AQ_ATTN_NONE: break;
            case AQ_ATTN_PROB: scale[j] += times * ((b.share + 0x1p-22) * p + FLUSHED); break;
            case AQ_ATTN_PROB_SQUARED:
                scale[j] += times * ((b.share + 0x1p-22) * 2 * p * p + FLUSHED);
                break;
            /* One that is that close to the border may count or not. */
            case AQ_ATTN_LOW: scale[j] += fabs(p - border) <= 2 * b.share * p ? times : 0; break;
            }
        }
    }
}

/* Adds what rounding may do to sums that keys of low attention lower: they pass through numbers
 * that are larger than what is left, twice in each row. */
static void add_sums(double *scale, const struct scored *x, const struct aq_attn_seq *s,
                     const float *start)
{
    double most = (double)s->rows * x->t.a.q_per_kv;
    for (uint32_t j = 0; j < x->score.cols; j++)
        scale[j] += s->rows * 0x1p-23 * (fabs((double)start[j]) + most);
}

static double *scales_of(const struct scored *x, bool alike)
{
    double *scale = calloc((size_t)x->score.rows * x->score.cols, sizeof(*scale));
    uint32_t heads = x->t.a.kv_heads;
    for (uint32_t i = 0; i < x->t.a.seq_count; i++) {
        for (uint32_t head = 0; head < heads; head++) {
            size_t at = (size_t)i * heads + head;
            double *of = scale + at * x->score.cols;
            for (uint32_t row = 0; row < x->t.seq[i].rows; row++)
                add_scales(of, x, &x->t.seq[i], head, row, alike, 1);
            if (x->rule.stat == AQ_ATTN_LOW)
                add_sums(of, x, &x->t.seq[i], x->start + at * x->score.stride);
        }
    }
    return scale;
}

static void expect_near(struct kc *kc, const struct scored *x, bool alike, double ulp)
{
    double *scale = scales_of(x, alike);
    kc_near(kc, &x->score, scale,
            (struct kc_limit){.rel = 1,
                              .ulp = ulp,
                              .why = "rounding of probabilities, as in attention, and of sums"});
    free(scale);
}

/* ---- decode ---- */

/* Victims are those of the scores as they came out. */
static void expect_victims(struct kc *kc, struct scored *x)
{
    struct aq_attn a = call_of(x, 0, x->t.a.seq_count, false);
    uint32_t bytes = (uint32_t)(x->score.rows * sizeof(uint32_t));
    memcpy(x->victim[0], x->victim[1], bytes);
    kc_ref(kc)->kv_victim(kc_exec(kc, 0), &a);
    for (uint32_t i = 0; i < x->score.rows; i++)
        kc_expect(kc, x->victim[0][i] == x->victim[1][i], "head %u: slot %d goes, expected %d", i,
                  (int)x->victim[0][i], (int)x->victim[1][i]);
}

static void check_decode(struct kc *kc, const struct kc_attn_shape *shape, uint32_t window)
{
    static struct scored x;
    make_scored(kc, &x, shape, window);
    for (int into_ref = 0; into_ref < 2; into_ref++) {
        const struct aq_kernels *k = into_ref ? kc_ref(kc) : kc_new(kc);
        start_scores(&x, into_ref);
        struct aq_attn a = call_of(&x, 0, shape->seqs, into_ref);
        k->attn_decode(kc_exec(kc, 0), &a);
    }
    expect_near(kc, &x, shape->k == KC_CONSTANT, 2.0 * shape->rows_max);
    expect_victims(kc, &x);
    /* What attention gives is the same with and without. */
    struct aq_attn a = call_of(&x, 0, shape->seqs, true);
    a.rule.victim = AQ_ATTN_NO_RULE;
    kc_new(kc)->attn_decode(kc_exec(kc, 0), &a);
    kc_same(kc, &x.out);
    kc_same(kc, &x.log_sum);
}

/* Sequences one by one, with several threads, against all of them with one. */
static void check_decode_alone(struct kc *kc, const struct kc_attn_shape *shape, uint32_t window)
{
    static struct scored x;
    make_scored(kc, &x, shape, window);
    start_scores(&x, true);
    struct aq_attn a = call_of(&x, 0, shape->seqs, true);
    kc_new(kc)->attn_decode(kc_exec(kc, 1), &a);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        start_scores(&x, false);
        for (uint32_t i = 0; i < shape->seqs; i++) {
            a = call_of(&x, i, 1, false);
            kc_new(kc)->attn_decode(kc_exec(kc, threads), &a);
        }
        kc_same(kc, &x.score);
        kc_expect(kc, memcmp(x.victim[0], x.victim[1], x.score.rows * sizeof(uint32_t)) == 0,
                  "victims with %u threads", threads);
    }
}

/* Rules that need no scores: positions alone. */
static void check_decode_window(struct kc *kc, const struct kc_attn_shape *shape)
{
    static struct scored x;
    make_scored(kc, &x, shape, NO_WINDOW);
    x.rule.victim = AQ_ATTN_BY_POSITION;
    start_scores(&x, false);
    struct aq_attn a = call_of(&x, 0, shape->seqs, false);
    for (uint32_t i = 0; i < shape->seqs; i++)
        x.t.seq[i].slots.score = NULL;
    kc_new(kc)->attn_decode(kc_exec(kc, 0), &a);
    expect_victims(kc, &x);
    x.t.seq[0].slots.victim = NULL; /* is passed over */
    kc_new(kc)->attn_decode(kc_exec(kc, 0), &a);
}

/* ---- column sums ---- */

static void save_log_sums(struct kc *kc, struct scored *x)
{
    struct aq_attn a = call_of(x, 0, x->t.a.seq_count, true);
    kc_new(kc)->attn_prefill(kc_exec(kc, 0), &a);
    kc_out_set(&x->log_sum, x->log_sum.ref);
}

static void check_stats(struct kc *kc, const struct kc_attn_shape *shape, uint32_t window)
{
    static struct scored x, of; /* what the reference is of */
    make_scored(kc, &x, shape, window);
    save_log_sums(kc, &x);
    of = x;
    if (kc_attn_rounds(kc, &x.t))
        kc_attn_round(kc, &of.t, &x.t);
    struct aq_attn_pairs pairs = {.rows = kc_below(kc, 2) * kc_below(kc, shape->rows_max),
                                  .min_dist = kc_below(kc, 2) * kc_below(kc, 20),
                                  .band = kc_below(kc, 2) * kc_below(kc, 60)};
    for (int into_ref = 0; into_ref < 2; into_ref++) {
        const struct aq_kernels *k = into_ref ? kc_ref(kc) : kc_new(kc);
        start_scores(&x, into_ref);
        struct aq_attn a = call_of(into_ref ? &of : &x, 0, shape->seqs, into_ref);
        a.pairs = pairs;
        k->attn_stats(kc_exec(kc, 0), &a);
    }
    expect_near(kc, &of, shape->k == KC_CONSTANT, shape->rows_max);
}

/* Sums that come with attention, whose own results are what they are without. */
static void check_observed(struct kc *kc, const struct kc_attn_shape *shape, uint32_t window)
{
    static struct scored x, of; /* what the reference is of */
    make_scored(kc, &x, shape, window);
    save_log_sums(kc, &x);
    of = x;
    if (kc_attn_rounds(kc, &x.t))
        kc_attn_round(kc, &of.t, &x.t);
    struct aq_attn_pairs pairs = {.rows = 1 + kc_below(kc, shape->rows_max),
                                  .min_dist = kc_below(kc, 2) * kc_below(kc, 20),
                                  .band = kc_below(kc, 2) * kc_below(kc, 60)};
    start_scores(&x, true);
    struct aq_attn a = call_of(&of, 0, shape->seqs, true);
    a.pairs = pairs;
    kc_ref(kc)->attn_stats(kc_exec(kc, 0), &a);
    start_scores(&x, false);
    a = call_of(&x, 0, shape->seqs, false);
    a.pairs = pairs;
    kc_new(kc)->attn_prefill(kc_exec(kc, 0), &a);
    expect_near(kc, &of, shape->k == KC_CONSTANT, shape->rows_max);
    kc_same(kc, &x.out);
    kc_same(kc, &x.log_sum);
}

/* Sums that come with attention, of sequences one by one with several threads, against those of all
 * of them with one. */
static void check_observed_alone(struct kc *kc, const struct kc_attn_shape *shape)
{
    static struct scored x;
    make_scored(kc, &x, shape, NO_WINDOW);
    struct aq_attn_pairs pairs = {.rows = 1 + kc_below(kc, 64)};
    start_scores(&x, true);
    struct aq_attn a = call_of(&x, 0, shape->seqs, true);
    a.pairs = pairs;
    kc_new(kc)->attn_prefill(kc_exec(kc, 1), &a);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        start_scores(&x, false);
        for (uint32_t i = 0; i < shape->seqs; i++) {
            a = call_of(&x, i, 1, false);
            a.pairs = pairs;
            kc_new(kc)->attn_prefill(kc_exec(kc, threads), &a);
        }
        kc_same(kc, &x.score);
    }
}

/* Queries or keys that are too many for attention to keep their weights: sums are those of the
 * kernel that makes them alone.  Returns how many sequences had so many. */
static uint32_t observe_many(struct kc *kc, const struct kc_attn_shape *shape)
{
    static struct scored x;
    make_scored(kc, &x, shape, NO_WINDOW);
    save_log_sums(kc, &x);
    uint32_t many = 0;
    size_t each = (size_t)shape->kv_heads * x.score.stride;
    for (uint32_t i = 0; i < shape->seqs; i++) {
        struct aq_attn a = call_of(&x, i, 1, true);
        a.pairs.rows = shape->rows_max;
        if (aq_attn_observed(&a, a.seqs))
            continue;
        many++;
        start_scores(&x, true);
        kc_new(kc)->attn_stats(kc_exec(kc, 0), &a);
        a = call_of(&x, 0, shape->seqs, false);
        a.pairs.rows = shape->rows_max;
        start_scores(&x, false);
        kc_new(kc)->attn_prefill(kc_exec(kc, 0), &a);
        float *got = x.score.got;
        memcpy(got, x.start, i * each * sizeof(*got));
        memcpy(got + (i + 1) * each, x.start + (i + 1) * each,
               (shape->seqs - i - 1) * each * sizeof(*got));
        kc_same(kc, &x.score);
    }
    return many;
}

static void check_observed_many(struct kc *kc, const struct kc_attn_shape *shape)
{
    uint32_t many = 0;
    for (uint32_t draw = 0; draw < 5 && !many; draw++)
        many = observe_many(kc, shape);
    kc_expect(kc, many > 0, "a sequence with weights that are not kept");
}

static void check_stats_alone(struct kc *kc, const struct kc_attn_shape *shape, uint32_t window)
{
    static struct scored x;
    make_scored(kc, &x, shape, window);
    save_log_sums(kc, &x);
    start_scores(&x, true);
    struct aq_attn a = call_of(&x, 0, shape->seqs, true);
    kc_new(kc)->attn_stats(kc_exec(kc, 1), &a);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        start_scores(&x, false);
        for (uint32_t i = 0; i < shape->seqs; i++) {
            a = call_of(&x, i, 1, false);
            kc_new(kc)->attn_stats(kc_exec(kc, threads), &a);
        }
        kc_same(kc, &x.score);
    }
}

/* Column sums of a prompt are what decode attention adds up, row after row, from nothing; and the
 * probabilities of a row add up to 1 per query head. */
static void check_stats_as_decode(struct kc *kc, const struct kc_attn_shape *shape, uint32_t window)
{
    static struct scored x;
    make_scored(kc, &x, shape, window);
    save_log_sums(kc, &x);
    struct aq_attn a = call_of(&x, 0, shape->seqs, true);
    float *score = x.score.ref;
    memset(x.score.got, 0, (size_t)x.score.rows * x.score.stride * sizeof(float));
    memset(score, 0, (size_t)x.score.rows * x.score.stride * sizeof(float));
    kc_new(kc)->attn_decode(kc_exec(kc, 0), &a);
    a = call_of(&x, 0, shape->seqs, false);
    kc_new(kc)->attn_stats(kc_exec(kc, 0), &a);
    double *scale = scales_of(&x, false);
    if (!kc_attn_rounds(kc, &x.t)) /* as decode attention never does */
        kc_near(kc, &x.score, scale,
                (struct kc_limit){.rel = 2, /* what rounding may do to either of them */
                                  .ulp = 2.0 * shape->rows_max,
                                  .why = "rounding of probabilities and of sums, twice"});
    free(scale);
    a.rule.stat = AQ_ATTN_PROB;
    a.rule.group = AQ_ATTN_SUM;
    a.rule.decay = 1;
    kc_new(kc)->attn_stats(kc_exec(kc, 0), &a);
    for (uint32_t r = 0; r < x.score.rows; r++) {
        const struct aq_attn_seq *s = &x.t.seq[r / shape->kv_heads];
        double sum = 0, expected = (double)s->rows * shape->q_per_kv;
        for (uint32_t j = 0; j < aq_attn_len(s, r % shape->kv_heads); j++)
            sum += ((float *)x.score.got)[(size_t)r * x.score.stride + j];
        /* Logs of sums, below 32 here, are rounded by 2^-20 at most, and so is what exp() makes of
         * them: ten times that. */
        kc_expect(kc, fabs(sum - expected) < 1e-5 * expected,
                  "head %u: the probabilities of %g rows come to %g", r, expected, sum);
    }
}

/* Column sums of each query head, made alone or with attention, are those of the first one alone,
 * the others being left out in front of it. */
static void check_each_head(struct kc *kc, const struct kc_attn_shape *shape, uint32_t window,
                            bool observed)
{
    static struct scored x;
    aq_attn_stats_fn *fn = observed ? kc_new(kc)->attn_prefill : kc_new(kc)->attn_stats;
    make_scored(kc, &x, shape, window);
    save_log_sums(kc, &x);
    struct aq_attn_pairs pairs = {.rows = kc_below(kc, 2) * kc_below(kc, shape->rows_max)};
    if (observed)
        pairs.rows = 1 + kc_below(kc, shape->rows_max);
    uint32_t heads = shape->kv_heads * shape->q_per_kv, stride = x.t.seq[0].slots.stride;
    struct kc_out each = kc_out(kc, AQ_F32, shape->seqs * heads, stride, stride);
    struct aq_attn a = call_of(&x, 0, shape->seqs, false);
    a.pairs = pairs;
    a.rule.group = AQ_ATTN_EACH;
    memset(each.got, 0, (size_t)each.rows * stride * sizeof(float));
    memset(each.ref, 0, (size_t)each.rows * stride * sizeof(float));
    for (uint32_t i = 0; i < shape->seqs; i++)
        x.t.seq[i].slots.score = (float *)each.got + (size_t)i * heads * stride;
    fn(kc_exec(kc, 0), &a);
    /* Attention reads the heads behind the last row's first ones. */
    size_t width = (size_t)heads * shape->head_dim, last = (size_t)(x.t.rows - 1) * a.q_stride;
    float *q = kc_bytes(kc, (last + 2 * width) * sizeof(*q));
    memcpy(q, a.q, (last + width) * sizeof(*q));
    for (uint32_t g = 0; g < shape->q_per_kv; g++) {
        memset(x.score.got, 0, (size_t)x.score.rows * stride * sizeof(float));
        a = call_of(&x, 0, shape->seqs, false);
        a.pairs = pairs;
        a.rule.group = AQ_ATTN_FIRST;
        a.q = q + (size_t)g * shape->head_dim;
        a.log_sum_exp += observed ? 0 : g;
        fn(kc_exec(kc, 0), &a);
        for (uint32_t r = 0; r < x.score.rows; r++)
            memcpy((float *)each.ref + ((size_t)r * shape->q_per_kv + g) * stride,
                   (float *)x.score.got + (size_t)r * stride, stride * sizeof(float));
    }
    kc_same(kc, &each);
}

/* Weights in no more scratch than there is for so many queries and keys. */
static void check_observed_room(struct kc *kc, const struct kc_attn_shape *shape)
{
    static struct scored x;
    make_scored(kc, &x, shape, NO_WINDOW);
    struct aq_attn_pairs pairs = {.rows = 32};
    const struct aq_scratch_need need = {.k_max = shape->head_dim,
                                         .head_dim_max = shape->head_dim,
                                         .context_max = shape->len_max,
                                         .observed = 32 * shape->q_per_kv};
    size_t bytes = aq_kernels_scratch_bytes(&need);
    struct aq_exec *exec;
    struct aq_err err;
    assert(aq_exec_open(&exec, aq_exec_pool(kc_exec(kc, 1)), kc_bytes(kc, bytes), bytes, &err) ==
           0);
    start_scores(&x, true);
    struct aq_attn a = call_of(&x, 0, shape->seqs, true);
    a.pairs = pairs;
    kc_new(kc)->attn_prefill(exec, &a);
    aq_exec_close(exec);
    start_scores(&x, false);
    a = call_of(&x, 0, shape->seqs, false);
    a.pairs = pairs;
    kc_new(kc)->attn_prefill(kc_exec(kc, 0), &a);
    kc_same(kc, &x.score);
}

static void run_stats(void *user, struct aq_attn *a)
{
    kc_new(user)->attn_stats(kc_exec(user, 2), a);
}

/* The queries of a prompt in several calls against all of them in one. */
static void check_stats_begun(struct kc *kc, const struct kc_attn_shape *shape)
{
    static struct scored x;
    const struct aq_kernels *k = kc_new(kc);
    make_scored(kc, &x, shape, NO_WINDOW);
    save_log_sums(kc, &x);
    struct aq_attn_pairs pairs = {.min_dist = kc_below(kc, 2) * kc_below(kc, 20),
                                  .band = kc_below(kc, 2) * kc_below(kc, 90)};
    start_scores(&x, true);
    struct aq_attn a = call_of(&x, 0, 1, true);
    a.pairs = pairs;
    k->attn_stats(kc_exec(kc, 1), &a);
    start_scores(&x, false);
    a = call_of(&x, 0, 1, false);
    a.pairs = pairs;
    kc_attn_stats_in_calls(kc, &a, run_stats, kc);
    kc_same(kc, &x.score);
}

/* ---- cases ---- */

static struct kc_attn_shape shape_of(struct kc *kc, const struct size *size, size_t dtype,
                                     bool stats)
{
    static const enum kc_fill fills[] = {KC_NORMAL, KC_NORMAL, KC_HEAVY, KC_CONSTANT, KC_OUTLIER};
    /* The reference and the limits of column sums take rows x keys x dimensions. */
    bool large = stats && size->kv_heads * size->q_per_kv * size->head_dim > 200;
    return (struct kc_attn_shape){
        .seqs = stats ? 2 : 3,
        .kv_heads = size->kv_heads,
        .q_per_kv = size->q_per_kv,
        .head_dim = size->head_dim,
        .kv_dtype = kv_dtypes[dtype],
        /* The compute type of prompts: what is rounded is compared with a reference of rounded
         * keys and queries. */
        .out_dtype = stats && kc_attn_may_round(kc) && kc_below(kc, 2) ? AQ_BF16 : AQ_F32,
        .rows_max = large   ? 20
                    : stats ? 130
                            : 3,
        .len_max = 200,
        .ragged = kc_below(kc, 2),
        .holds_rows = stats,
        .q = fills[kc_below(kc, AQ_ARRAY_LEN(fills))],
        .k = fills[kc_below(kc, AQ_ARRAY_LEN(fills))]};
}

static void check_sizes(struct kc *kc, const struct size *size, size_t d)
{
    const char *dtype = aq_dtype_name(kv_dtypes[d]);
    for (uint32_t draw = 0; draw < 3; draw++) {
        if (kc_begin(kc, KC_SLOT(attn_decode), "attn_scores_%s_h%ux%u_d%u_%u", dtype,
                     size->kv_heads, size->q_per_kv, size->head_dim, draw)) {
            struct kc_attn_shape shape = shape_of(kc, size, d, false);
            check_decode(kc, &shape, NO_WINDOW);
        }
        if (draw < 2 && kc_begin(kc, KC_SLOT(attn_stats), "attn_stats_%s_h%ux%u_d%u_%u", dtype,
                                 size->kv_heads, size->q_per_kv, size->head_dim, draw)) {
            struct kc_attn_shape shape = shape_of(kc, size, d, true);
            check_stats(kc, &shape, NO_WINDOW);
        }
        if (!draw && kc_begin(kc, KC_SLOT(attn_prefill), "attn_observed_%s_h%ux%u_d%u", dtype,
                              size->kv_heads, size->q_per_kv, size->head_dim)) {
            struct kc_attn_shape shape = shape_of(kc, size, d, true);
            check_observed(kc, &shape, NO_WINDOW);
        }
    }
}

/* The head sizes and groups of models, each in another format and in another window. */
static void check_heads(struct kc *kc)
{
    for (uint32_t i = 0; i < KC_ATTN_DIMS * KC_ATTN_GROUPS; i++) {
        struct size size = {2, kc_attn_groups[i % KC_ATTN_GROUPS],
                            kc_attn_dims[i / KC_ATTN_GROUPS]};
        size_t d = i % AQ_ARRAY_LEN(kv_dtypes);
        for (uint32_t stats = 0; stats < 2; stats++) {
            uint32_t window = (i + i / KC_ATTN_GROUPS + 3 * stats) % (NO_WINDOW + 1);
            const char *name = window == NO_WINDOW ? "none" : kc_attn_window_names[window];
            size_t slot = stats ? KC_SLOT(attn_stats) : KC_SLOT(attn_decode);
            if (!kc_begin(kc, slot, "attn_%s_heads_x%u_d%u_window_%s", stats ? "stats" : "scores",
                          size.q_per_kv, size.head_dim, name))
                continue;
            struct kc_attn_shape shape = shape_of(kc, &size, d, stats);
            if (stats)
                check_stats(kc, &shape, window);
            else
                check_decode(kc, &shape, window);
        }
    }
}

/* Groups of every size, in every format in turn. */
static void check_each(struct kc *kc)
{
    for (uint32_t g = 1; g <= 16; g++) {
        struct size size = {1 + g % 3, g, g % 2 ? 24 : 64};
        size_t d = g % AQ_ARRAY_LEN(kv_dtypes);
        if (!kc_begin(kc, KC_SLOT(attn_stats), "attn_stats_each_%s_x%u",
                      aq_dtype_name(kv_dtypes[d]), g))
            continue;
        struct kc_attn_shape shape = shape_of(kc, &size, d, true);
        check_each_head(kc, &shape, g % 4 ? NO_WINDOW : g / 4 % KC_ATTN_WINDOWS, false);
    }
}

/* Windows in every format, of heads that the reference is quick with. */
static void check_windows(struct kc *kc, size_t d)
{
    static const struct size size = {2, 3, 24};
    for (uint32_t window = 0; window < KC_ATTN_WINDOWS; window++) {
        const char *dtype = aq_dtype_name(kv_dtypes[d]), *name = kc_attn_window_names[window];
        if (kc_begin(kc, KC_SLOT(attn_decode), "attn_scores_in_window_%s_%s", name, dtype)) {
            struct kc_attn_shape shape = shape_of(kc, &size, d, false);
            check_decode(kc, &shape, window);
        }
        if (kc_begin(kc, KC_SLOT(attn_stats), "attn_stats_in_window_%s_%s", name, dtype)) {
            struct kc_attn_shape shape = shape_of(kc, &size, d, true);
            check_stats(kc, &shape, window);
        }
        if (kc_begin(kc, KC_SLOT(attn_prefill), "attn_observed_in_window_%s_%s", name, dtype)) {
            struct kc_attn_shape shape = shape_of(kc, &size, d, true);
            check_observed(kc, &shape, window);
        }
        if (kc_begin(kc, KC_SLOT(attn_stats), "attn_stats_as_decode_in_window_%s_%s", name,
                     dtype)) {
            struct kc_attn_shape shape = shape_of(kc, &size, d, true);
            shape.q = shape.k = KC_NORMAL;
            check_stats_as_decode(kc, &shape, window);
        }
    }
}

static void check_alone(struct kc *kc, size_t d)
{
    static const struct size parts[] = {{9, 1, 64}, {2, 4, 40}, {3, 5, 128}};
    const char *dtype = aq_dtype_name(kv_dtypes[d]);
    for (size_t i = 0; i < AQ_ARRAY_LEN(parts); i++) {
        struct kc_attn_shape shape;
        if (kc_begin(kc, KC_SLOT(attn_decode), "attn_scores_alone_%s_x%u", dtype,
                     parts[i].q_per_kv)) {
            shape = shape_of(kc, &parts[i], d, false);
            shape.seqs = 12;
            check_decode_alone(kc, &shape, i ? NO_WINDOW : d);
        }
        if (kc_begin(kc, KC_SLOT(attn_decode), "attn_window_%s_x%u", dtype, parts[i].q_per_kv)) {
            shape = shape_of(kc, &parts[i], d, false);
            check_decode_window(kc, &shape);
        }
        if (kc_begin(kc, KC_SLOT(attn_stats), "attn_stats_alone_%s_x%u", dtype,
                     parts[i].q_per_kv)) {
            shape = shape_of(kc, &parts[i], d, true);
            shape.seqs = 6;
            shape.rows_max = 130; /* no reference needed, but for the sums of exp() */
            check_stats_alone(kc, &shape, i ? NO_WINDOW : d);
        }
        if (kc_begin(kc, KC_SLOT(attn_prefill), "attn_observed_alone_%s_x%u", dtype,
                     parts[i].q_per_kv)) {
            shape = shape_of(kc, &parts[i], d, true);
            shape.seqs = 6;
            shape.rows_max = 130;
            check_observed_alone(kc, &shape);
        }
        if (kc_begin(kc, KC_SLOT(attn_stats), "attn_stats_as_decode_%s_x%u", dtype,
                     parts[i].q_per_kv)) {
            shape = shape_of(kc, &parts[i], d, true);
            shape.q = shape.k = KC_NORMAL;
            check_stats_as_decode(kc, &shape, NO_WINDOW);
        }
    }
}

/* Long rows of keys, and weights of several heads that are more than are kept at a time: in no more
 * scratch than such a model has, against sequences alone, whose heads are attended one by one. */
static void check_room(struct kc *kc)
{
    static struct scored x;
    static const struct size size = {16, 4, 8};
    struct kc_attn_shape shape = shape_of(kc, &size, 1, false);
    shape.seqs = 12;
    shape.len_max = 6000; /* the products need less scratch than that */
    make_scored(kc, &x, &shape, NO_WINDOW);
    const struct aq_scratch_need need = {.k_max = size.head_dim,
                                         .head_dim_max = size.head_dim,
                                         .context_max = shape.len_max,
                                         .scored_q_per_kv = size.q_per_kv};
    size_t bytes = aq_kernels_scratch_bytes(&need);
    struct aq_exec *exec;
    struct aq_err err;
    assert(aq_exec_open(&exec, aq_exec_pool(kc_exec(kc, 1)), kc_bytes(kc, bytes), bytes, &err) ==
           0);
    start_scores(&x, true);
    struct aq_attn a = call_of(&x, 0, shape.seqs, true);
    kc_new(kc)->attn_decode(exec, &a);
    aq_exec_close(exec);
    start_scores(&x, false);
    for (uint32_t i = 0; i < shape.seqs; i++) {
        a = call_of(&x, i, 1, false);
        kc_new(kc)->attn_decode(kc_exec(kc, 1), &a);
    }
    kc_same(kc, &x.score);
    kc_expect(kc, memcmp(x.victim[0], x.victim[1], x.score.rows * sizeof(uint32_t)) == 0,
              "victims");
}

/* The head sizes and groups of models, each in another format. */
static void check_observed_heads(struct kc *kc)
{
    for (uint32_t i = 0; i < KC_ATTN_DIMS * KC_ATTN_GROUPS; i++) {
        struct size size = {2, kc_attn_groups[i % KC_ATTN_GROUPS],
                            kc_attn_dims[i / KC_ATTN_GROUPS]};
        if (!kc_begin(kc, KC_SLOT(attn_prefill), "attn_observed_heads_x%u_d%u", size.q_per_kv,
                      size.head_dim))
            continue;
        struct kc_attn_shape shape = shape_of(kc, &size, i % AQ_ARRAY_LEN(kv_dtypes), true);
        check_observed(kc, &shape, NO_WINDOW);
    }
    for (uint32_t g = 1; g <= 16; g++) {
        struct size size = {1 + g % 3, g, g % 2 ? 24 : 64};
        size_t d = (g + 2) % AQ_ARRAY_LEN(kv_dtypes);
        if (!kc_begin(kc, KC_SLOT(attn_prefill), "attn_observed_each_%s_x%u",
                      aq_dtype_name(kv_dtypes[d]), g))
            continue;
        struct kc_attn_shape shape = shape_of(kc, &size, d, true);
        check_each_head(kc, &shape, NO_WINDOW, true);
    }
}

static void check_observed_long(struct kc *kc)
{
    static const struct size far = {1, 3, 64};
    for (size_t d = 0; d < AQ_ARRAY_LEN(kv_dtypes); d++) {
        if (!kc_begin(kc, KC_SLOT(attn_prefill), "attn_observed_long_%s",
                      aq_dtype_name(kv_dtypes[d])))
            continue;
        struct kc_attn_shape shape = shape_of(kc, &far, d, true);
        shape.rows_max = 20;
        shape.len_max = KC_ATTN_LEN_MAX;
        check_observed(kc, &shape, NO_WINDOW);
    }
}

/* Weights that scratch only just has room for, or none. */
static void check_observed_limits(struct kc *kc)
{
    static const struct {
        const char *name;
        void (*check)(struct kc *kc, const struct kc_attn_shape *shape);
        struct size size;
        size_t dtype;
        uint32_t rows, len;
    } cases[] = {
        {"room", check_observed_room, {2, 8, 64}, 1, 40, 3200},
        {"many_queries", check_observed_many, {2, 16, 250}, 2, 64, 200},
        {"many_keys", check_observed_many, {1, 16, 8}, 1, 32, 8000},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        if (!kc_begin(kc, KC_SLOT(attn_prefill), "attn_observed_%s", cases[i].name))
            continue;
        struct kc_attn_shape shape = shape_of(kc, &cases[i].size, cases[i].dtype, true);
        shape.seqs = 6;
        shape.rows_max = cases[i].rows;
        shape.len_max = cases[i].len;
        cases[i].check(kc, &shape);
    }
}

static void check_begun(struct kc *kc)
{
    static const struct size size = {2, 3, 24};
    for (uint32_t i = 0; i < 4 * AQ_ARRAY_LEN(kv_dtypes); i++) {
        size_t d = i % AQ_ARRAY_LEN(kv_dtypes);
        if (!kc_begin(kc, KC_SLOT(attn_stats), "attn_stats_begun_%s_%u",
                      aq_dtype_name(kv_dtypes[d]), i))
            continue;
        struct kc_attn_shape shape = shape_of(kc, &size, d, true);
        shape.seqs = 1;
        shape.ragged = false;
        shape.rows_max = 330;
        shape.len_max = 400;
        check_stats_begun(kc, &shape);
    }
}

static void check_long(struct kc *kc)
{
    static const struct size size = {3, 8, 64};
    if (kc_begin(kc, KC_SLOT(attn_decode), "attn_scores_long")) {
        struct kc_attn_shape shape = shape_of(kc, &size, 1, false);
        shape.len_max = KC_ATTN_LEN_MAX;
        check_decode(kc, &shape, NO_WINDOW);
    }
    if (kc_begin(kc, KC_SLOT(attn_decode), "attn_scores_room"))
        check_room(kc);
}

static void check(struct kc *kc)
{
    for (size_t d = 0; d < AQ_ARRAY_LEN(kv_dtypes); d++) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(sizes); i++)
            check_sizes(kc, &sizes[i], d);
        check_alone(kc, d);
        check_windows(kc, d);
    }
    check_heads(kc);
    check_observed_heads(kc);
    check_observed_long(kc);
    check_observed_limits(kc);
    check_each(kc);
    check_begun(kc);
    check_long(kc);
}

const struct kc_check kc_check_scores = {.name = "scores", .check = check};
