/* SPDX-License-Identifier: Apache-2.0
 * Attention on tensor cores: prefill, column sums and decode of groups of query heads against the
 * reference, alone against in a batch, one way of launching against another, and what goes to the
 * plain versions.  Queries are rounded to the cache's 16-bit dtype beforehand, and the scale is a
 * power of two, so that what is left is the rounding of weights and of codes; cases of their own
 * leave the rounding of queries in. */
#include "base/half.h"
#include "kernels/cpu/attn.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/panel.h"
#include "tests/kcheck/kc_attn.h"
#include "tests/kcheck/kc_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum aq_dtype kv_dtypes[] = {AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};
static const uint32_t dims[] = {64, 80, 96, 128};
enum { GROUP_MOST = 16 };

/* One rounding to the tensor cores' dtype. */
static double unit_of(enum aq_dtype kv)
{
    return kv == AQ_BF16 ? 0x1p-8 : 0x1p-11;
}

static enum aq_dtype tile_dtype(enum aq_dtype kv)
{
    return kv == AQ_BF16 ? AQ_BF16 : AQ_F16;
}

struct rig {
    struct kc_attn t;
    struct aq_attn_rule rule;
    struct kc_out y, log_sum, score;
    double *y_scale, *log_sum_scale, *score_scale;
    bool exact; /* queries are representable */
    struct aq_cuda_exec ex;
    uint32_t *victim[2]; /* of decode, by whether it is the reference's */
};

/* ---- sequences ---- */

static void round_queries(struct kc_attn *t)
{
    float *q = (float *)t->a.q;
    for (uint32_t r = 0; r < t->rows; r++) {
        for (uint32_t c = 0; c < t->columns; c++) {
            uint32_t bits;
            size_t at = r * t->a.q_stride + c;
            aq_element_store(&bits, tile_dtype(t->a.kv_dtype), 0, q[at]);
            q[at] = aq_element_load(&bits, tile_dtype(t->a.kv_dtype), 0);
        }
    }
}

static void make_rig(struct kc *kc, struct rig *x, const struct kc_attn_shape *shape, bool exact)
{
    memset(x, 0, sizeof(*x));
    kc_attn_make(kc, &x->t, shape);
    if (kc_below(kc, 3) == 0)
        kc_attn_set_window(&x->t, kc_below(kc, KC_ATTN_WINDOWS));
    x->ex = *kc_cuda();
    x->ex.sm = shape->kv_dtype != AQ_BF16 && kc_below(kc, 2) ? 75 : kc_cuda()->sm;
    x->exact = exact;
    if (exact) {
        x->t.a.scale = 0.125f;
        round_queries(&x->t);
    }
    uint32_t heads = shape->kv_heads * shape->q_per_kv, columns = x->t.columns;
    uint32_t stride = (uint32_t)aq_align_up(shape->len_max, 32);
    x->y = kc_out(kc, shape->out_dtype, x->t.rows, columns, columns + kc_below(kc, 4));
    x->log_sum = kc_out(kc, AQ_F32, x->t.rows, heads, heads);
    x->score = kc_out(kc, AQ_F32, shape->seqs * shape->kv_heads, stride, stride);
    x->rule = (struct aq_attn_rule){.victim = AQ_ATTN_BY_SCORE,
                                    .stat = (enum aq_attn_stat)(AQ_ATTN_PROB + kc_below(kc, 3)),
                                    .group = (enum aq_attn_group)kc_below(kc, 4),
                                    .threshold = 0.7f,
                                    .decay = kc_below(kc, 2) ? 1 : 0.875f};
    x->t.a.rule = x->rule;
    for (uint32_t i = 0; i < shape->seqs; i++)
        x->t.seq[i].slots.stride = stride;
}

/* The call with one half of the outputs. */
static struct aq_attn call_of(struct rig *x, bool into_ref)
{
    struct aq_attn a = x->t.a;
    float *score = into_ref ? x->score.ref : x->score.got;
    for (uint32_t i = 0; i < a.seq_count; i++) {
        struct aq_attn_slots *slots = &x->t.seq[i].slots;
        slots->score = score + (size_t)i * a.kv_heads * x->score.stride;
        slots->victim = slots->position ? x->victim[into_ref] + (size_t)i * a.kv_heads : NULL;
    }
    a.out = into_ref ? x->y.ref : x->y.got;
    a.out_stride = x->y.stride;
    a.log_sum_exp = into_ref ? x->log_sum.ref : x->log_sum.got;
    return a;
}

/* The reference gives no f16. */
static void run_reference(struct kc *kc, struct rig *x, aq_attn_decode_fn *fn)
{
    struct aq_attn a = call_of(x, true);
    float *wide = kc_bytes(kc, (size_t)x->t.rows * x->t.columns * sizeof(*wide) + 64);
    a.out = wide;
    a.out_dtype = AQ_F32;
    a.out_stride = x->t.columns;
    fn(kc_exec(kc, 0), &a);
    for (uint32_t r = 0; r < x->t.rows; r++) {
        for (uint32_t c = 0; c < x->t.columns; c++)
            aq_element_store(x->y.ref, x->y.dtype, r * x->y.stride + c,
                             wide[(size_t)r * x->t.columns + c]);
    }
}

/* Scores begin below this. */
#define START_MOST 1.0

/* ---- limits ---- */

/* How far the rounding of queries and of codes may move a score: a rounding each, all the same way
 * at worst. */
static double score_slack(const struct rig *x, const struct aq_attn_seq *s, uint32_t head,
                          const float *q, uint32_t keys)
{
    const struct aq_attn *a = &x->t.a;
    uint32_t roundings = !x->exact + aq_dtype_is_quantised(a->kv_dtype);
    double most = 0, sizes[KC_ATTN_DIM_MAX];
    for (uint32_t j = 0; j < keys && roundings; j++) {
        const uint8_t *block = aq_attn_block(s, head, j / AQ_HEAD_BLOCK_SLOTS);
        double size = 0;
        kc_attn_sizes_of(sizes, block, a->kv_dtype, a->head_dim, j % AQ_HEAD_BLOCK_SLOTS);
        for (uint32_t d = 0; d < a->head_dim; d++)
            size += fabs((double)q[d] * a->scale) * sizes[d];
        most = fmax(most, size);
    }
    return roundings * unit_of(a->kv_dtype) * most;
}

/* A query head of a row: adds its scales. */
static void add_scales(struct rig *x, const struct aq_attn_seq *s, uint32_t seq, uint32_t head,
                       uint32_t row, uint32_t group, bool alike)
{
    const struct aq_attn *a = &x->t.a;
    struct kc_attn_bound b;
    double unit = unit_of(a->kv_dtype);
    uint32_t keys = aq_attn_visible(aq_attn_len(s, head), s->rows, row);
    size_t r = s->row + (size_t)row, q_head = (size_t)head * a->q_per_kv + group;
    const float *q = a->q + r * a->q_stride + q_head * a->head_dim;
    kc_attn_bound(&b, &x->t, s, head, q, keys, alike);
    double slack = score_slack(x, s, head, q, keys), moved = expm1(2 * slack) + b.share + 0x1p-20;
    x->log_sum_scale[r * a->kv_heads * a->q_per_kv + q_head] =
        slack + b.share + 0x1p-22 * (1 + fabs(b.log_sum));
    /* A weight below f16's normal range is off by a share of the largest one. */
    double value = moved + unit + (aq_dtype_is_quantised(a->kv_dtype) ? unit : 0);
    double tiny = a->kv_dtype == AQ_BF16 ? 0 : 0x1p-25;
    double *out = x->y_scale + r * x->t.columns + q_head * a->head_dim, sizes[KC_ATTN_DIM_MAX];
    for (uint32_t j = b.first; j < keys; j++) { /* what is in front may be NaN */
        const uint8_t *block = aq_attn_block(s, head, j / AQ_HEAD_BLOCK_SLOTS);
        uint32_t value_row = AQ_HEAD_BLOCK_SLOTS + j % AQ_HEAD_BLOCK_SLOTS;
        kc_attn_sizes_of(sizes, block, a->kv_dtype, a->head_dim, value_row);
        for (uint32_t d = 0; d < a->head_dim; d++)
            out[d] += (value * b.p[j] + tiny) * sizes[d];
        double p = b.p[j], border = x->rule.threshold / (double)(keys - b.first);
        double *score = x->score_scale + (size_t)(seq * a->kv_heads + head) * x->score.cols + j;
        switch (x->rule.stat) {
        case AQ_ATTN_NONE: break;
        case AQ_ATTN_PROB: *score += moved * p; break;
        case AQ_ATTN_PROB_SQUARED: *score += 2 * moved * p * p; break;
        /* Sums that are lowered pass through numbers that are larger than what is left. */
        case AQ_ATTN_LOW:
            *score += (fabs(p - border) <= 2 * moved * p) +
                      0x1p-24 * (START_MOST / a->q_per_kv + s->rows);
            break;
        }
    }
}

static void make_scales(struct rig *x, bool alike)
{
    const struct aq_attn *a = &x->t.a;
    uint32_t heads = a->kv_heads * a->q_per_kv;
    x->y_scale = calloc((size_t)x->t.rows * x->t.columns, sizeof(double));
    x->log_sum_scale = calloc((size_t)x->t.rows * heads, sizeof(double));
    x->score_scale = calloc((size_t)x->score.rows * x->score.cols, sizeof(double));
    for (uint32_t i = 0; i < a->seq_count; i++) {
        for (uint32_t h = 0; h < heads; h++) {
            for (uint32_t row = 0; row < x->t.seq[i].rows; row++)
                add_scales(x, &x->t.seq[i], i, h / a->q_per_kv, row, h % a->q_per_kv, alike);
        }
    }
}

static void free_scales(struct rig *x)
{
    free(x->y_scale);
    free(x->log_sum_scale);
    free(x->score_scale);
}

/* ---- parity ---- */

static void expect_near(struct kc *kc, struct rig *x)
{
    struct kc_limit limit = {.rel = 1,
                             .ulp = 1,
                             .abs = 0x1p-100,
                             .why = "weights (and what else says) rounded to 16 bits"};
    kc_near(kc, &x->y, x->y_scale, limit);
    kc_near(kc, &x->log_sum, x->log_sum_scale, (struct kc_limit){.rel = 1, .why = "scores"});
}

static void expect_near_scores(struct kc *kc, struct rig *x, uint32_t rows_max)
{
    kc_near(kc, &x->score, x->score_scale,
            (struct kc_limit){.rel = 2,
                              .ulp = rows_max,
                              .abs = 0x1p-100,
                              .why = "scores from rounded queries and codes; sums in f32"});
}

static void check_parity(struct kc *kc, const struct kc_attn_shape *shape, bool exact)
{
    static struct rig x;
    make_rig(kc, &x, shape, exact);
    run_reference(kc, &x, kc_ref(kc)->attn_prefill);
    struct aq_attn a = call_of(&x, false);
    kc_cuda_done(kc_cuda_kernels()->attn_prefill(&x.ex, kc_cuda_reached(&a)));
    make_scales(&x, shape->k == KC_CONSTANT);
    expect_near(kc, &x);
    free_scales(&x);
}

/* Probabilities from the logs of sums of the very same products: those of the tensor cores. */
static void check_sums(struct kc *kc, const struct kc_attn_shape *shape, bool exact)
{
    static struct rig x;
    make_rig(kc, &x, shape, exact);
    struct aq_attn_pairs pairs = {.rows = kc_below(kc, 2) * kc_below(kc, shape->rows_max),
                                  .min_dist = kc_below(kc, 2) * kc_below(kc, 20),
                                  .band = kc_below(kc, 2) * kc_below(kc, 60)};
    run_reference(kc, &x, kc_ref(kc)->attn_prefill);
    struct aq_attn a = call_of(&x, true);
    memset(x.score.ref, 0, (size_t)x.score.rows * x.score.stride * sizeof(float));
    memset(x.score.got, 0, (size_t)x.score.rows * x.score.stride * sizeof(float));
    a.out_dtype = AQ_F32; /* is not used, but f16 is none of the reference's */
    a.pairs = pairs;
    kc_ref(kc)->attn_stats(kc_exec(kc, 0), &a);
    a = call_of(&x, false);
    a.pairs = pairs;
    kc_cuda_done(kc_cuda_kernels()->attn_prefill(&x.ex, kc_cuda_reached(&a)));
    kc_cuda_done(kc_cuda_kernels()->attn_stats(&x.ex, kc_cuda_reached(&a)));
    make_scales(&x, shape->k == KC_CONSTANT);
    expect_near_scores(kc, &x, shape->rows_max);
    free_scales(&x);
}

/* Sums of each query head are those of the first one, the others being left out in front of it. */
static void check_each(struct kc *kc, const struct kc_attn_shape *shape)
{
    static struct rig x;
    make_rig(kc, &x, shape, false);
    uint32_t heads = shape->kv_heads * shape->q_per_kv, stride = x.score.stride;
    struct kc_out each = kc_out(kc, AQ_F32, shape->seqs * heads, stride, stride);
    struct aq_attn a = call_of(&x, false);
    memset(each.got, 0, (size_t)each.rows * stride * sizeof(float));
    memset(each.ref, 0, (size_t)each.rows * stride * sizeof(float));
    kc_cuda_done(kc_cuda_kernels()->attn_prefill(&x.ex, kc_cuda_reached(&a)));
    for (uint32_t i = 0; i < shape->seqs; i++)
        x.t.seq[i].slots.score = (float *)each.got + (size_t)i * heads * stride;
    a.rule.group = AQ_ATTN_EACH;
    kc_cuda_done(kc_cuda_kernels()->attn_stats(&x.ex, kc_cuda_reached(&a)));
    for (uint32_t g = 0; g < shape->q_per_kv; g++) {
        memset(x.score.got, 0, (size_t)x.score.rows * stride * sizeof(float));
        a = call_of(&x, false);
        a.rule.group = AQ_ATTN_FIRST;
        a.q += g * shape->head_dim;
        a.log_sum_exp += g;
        kc_cuda_done(kc_cuda_kernels()->attn_stats(&x.ex, kc_cuda_reached(&a)));
        for (uint32_t r = 0; r < x.score.rows; r++)
            memcpy((float *)each.ref + ((size_t)r * shape->q_per_kv + g) * stride,
                   (float *)x.score.got + (size_t)r * stride, stride * sizeof(float));
    }
    kc_same(kc, &each);
}

static void run_stats(void *user, struct aq_attn *a)
{
    const struct rig *x = user;
    kc_cuda_done(kc_cuda_kernels()->attn_stats(&x->ex, kc_cuda_reached(a)));
}

/* The queries of a prompt in several calls against all of them in one. */
static void check_begun(struct kc *kc, const struct kc_attn_shape *shape)
{
    static struct rig x;
    make_rig(kc, &x, shape, false);
    struct aq_attn a = call_of(&x, true);
    struct aq_attn_pairs pairs = {.min_dist = kc_below(kc, 2) * kc_below(kc, 20),
                                  .band = kc_below(kc, 2) * kc_below(kc, 90)};
    a.pairs = pairs;
    kc_cuda_done(kc_cuda_kernels()->attn_prefill(&x.ex, kc_cuda_reached(&a)));
    run_stats(&x, &a);
    kc_out_set(&x.score, x.score.ref);
    a = call_of(&x, false);
    a.pairs = pairs;
    a.log_sum_exp = x.log_sum.ref;
    for (uint32_t h = 0; h < shape->kv_heads; h++)
        memset((float *)x.score.got + (size_t)h * x.score.stride, 0x77,
               aq_attn_len(&x.t.seq[0], h) * sizeof(float));
    kc_attn_stats_in_calls(kc, &a, run_stats, &x);
    kc_same(kc, &x.score);
}

/* ---- independence ---- */

/* The last rows of one sequence, computed alone, are the bits that they are among all; so are the
 * column sums of a sequence. */
static void check_alone(struct kc *kc, const struct kc_attn_shape *shape)
{
    static struct rig x;
    make_rig(kc, &x, shape, false);
    struct aq_attn a = call_of(&x, true);
    kc_cuda_done(kc_cuda_kernels()->attn_prefill(&x.ex, kc_cuda_reached(&a)));
    kc_cuda_done(kc_cuda_kernels()->attn_stats(&x.ex, kc_cuda_reached(&a)));
    kc_out_set(&x.score, x.score.ref);
    kc_out_set(&x.log_sum, x.log_sum.ref);
    for (uint32_t i = 0; i < shape->seqs; i++) {
        kc_out_set(&x.y, x.y.ref);
        a = call_of(&x, false);
        struct aq_attn_seq one = x.t.seq[i];
        a.seqs = &one;
        a.seq_count = 1;
        memset(one.slots.score, 0x77, aq_attn_len(&one, 0) * sizeof(float));
        kc_cuda_done(kc_cuda_kernels()->attn_stats(&x.ex, kc_cuda_reached(&a)));
        uint32_t skip = kc_below(kc, one.rows);
        one.row += skip;
        one.rows -= skip;
        for (uint32_t c = 0; c < one.rows * x.t.columns; c++)
            aq_element_store(x.y.got, x.y.dtype,
                             (one.row + c / x.t.columns) * x.y.stride + c % x.t.columns, 77);
        kc_cuda_done(kc_cuda_kernels()->attn_prefill(&x.ex, kc_cuda_reached(&a)));
        if (!kc_same(kc, &x.y) || !kc_same(kc, &x.log_sum) || !kc_same(kc, &x.score))
            kc_expect(kc, false, "sequence %u without its first %u rows", i, skip);
    }
}

/* ---- decode of groups ---- */

/* Scores to begin with, positions and room for victims; or no rule at all. */
static void make_group(struct kc *kc, struct rig *x, const struct kc_attn_shape *shape, bool exact,
                       bool keeps)
{
    make_rig(kc, x, shape, exact);
    if (x->t.a.window)
        kc_attn_spoil(&x->t);
    uint32_t heads = shape->seqs * shape->kv_heads, stride = x->score.stride;
    uint32_t *position = kc_bytes(kc, (size_t)heads * stride * sizeof(*position));
    for (size_t i = 0; i < (size_t)heads * stride; i++) {
        position[i] = (uint32_t)(i % stride);
        ((float *)x->score.ref)[i] = ((float *)x->score.got)[i] =
            (float)kc_below(kc, 1 << 10) * 0x1p-10f;
    }
    for (uint32_t i = 0; i < 2; i++)
        x->victim[i] = kc_bytes(kc, heads * sizeof(*x->victim[i]));
    for (uint32_t i = 0; i < shape->seqs; i++) {
        x->t.seq[i].slots.position = position + (size_t)i * shape->kv_heads * stride;
        x->t.seq[i].position = shape->len_max;
        x->t.seq[i].recent = 5;
    }
    x->t.a.rule.sinks = 2;
    if (!keeps)
        x->t.a.rule.victim = AQ_ATTN_NO_RULE;
}

/* On a device of so many multiprocessors: few of them share no head's splits out. */
static void run_group(struct kc *kc, const struct rig *x, struct aq_attn *a,
                      uint32_t multiprocessors)
{
    struct aq_cuda_exec ex = x->ex;
    ex.workspace_bytes = kc_cuda_kernels()->attn_decode_workspace(kc_cuda_reached(a));
    ex.workspace = kc_bytes(kc, ex.workspace_bytes / 64 * 64 + 64);
    ex.multiprocessors = multiprocessors;
    kc_cuda_done(kc_cuda_kernels()->attn_decode(&ex, a));
}

/* Victims are those of the scores as they came out. */
static void expect_victims(struct kc *kc, struct rig *x)
{
    size_t bytes = x->score.rows * sizeof(uint32_t);
    struct aq_attn a = call_of(x, false);
    memcpy(x->victim[1], x->victim[0], bytes);
    kc_ref(kc)->kv_victim(kc_exec(kc, 0), &a);
    kc_expect(kc, memcmp(x->victim[0], x->victim[1], bytes) == 0, "other victims");
}

/* The largest codes of V mean a little more than f16 has. */
static void end_values(const struct kc_attn *t)
{
    enum aq_dtype dtype = t->a.kv_dtype;
    float scale = dtype == AQ_Q8 ? 257 : 4372, minimum = 65532 - scale * aq_code_max(dtype);
    struct aq_quant q = {aq_f16_from_f32(scale), aq_f16_from_f32(minimum)};
    for (uint32_t i = 0; i < t->a.seq_count; i++) {
        const struct aq_attn_seq *s = &t->seq[i];
        for (uint32_t h = 0; h < t->a.kv_heads; h++) {
            for (uint32_t j = 0; j < aq_attn_len(s, h); j++)
                aq_kv_quant_set(aq_attn_block(s, h, j / AQ_HEAD_BLOCK_SLOTS),
                                AQ_HEAD_BLOCK_SLOTS + j % AQ_HEAD_BLOCK_SLOTS, q);
        }
    }
}

static void check_group(struct kc *kc, const struct kc_attn_shape *shape, bool exact, bool keeps,
                        bool end)
{
    static struct rig x;
    make_group(kc, &x, shape, exact, keeps);
    if (end)
        end_values(&x.t);
    run_reference(kc, &x, kc_ref(kc)->attn_decode);
    struct aq_attn a = call_of(&x, false);
    run_group(kc, &x, &a, kc_below(kc, 2) * 100);
    make_scales(&x, shape->k == KC_CONSTANT);
    expect_near(kc, &x);
    if (keeps) {
        expect_near_scores(kc, &x, 2 * shape->rows_max);
        expect_victims(kc, &x);
    }
    free_scales(&x);
}

/* One block of threads for all splits, or one each; then the last rows of one sequence alone. */
static void check_group_ways(struct kc *kc, const struct kc_attn_shape *shape, bool keeps)
{
    static struct rig x;
    make_group(kc, &x, shape, false, keeps);
    struct aq_attn a = call_of(&x, true);
    run_group(kc, &x, &a, 0);
    a = call_of(&x, false);
    run_group(kc, &x, &a, 1000);
    kc_same(kc, &x.y);
    kc_same(kc, &x.log_sum);
    kc_same(kc, &x.score);
    size_t bytes = x.score.rows * sizeof(uint32_t);
    kc_expect(kc, !keeps || memcmp(x.victim[0], x.victim[1], bytes) == 0, "victims differ");
    x.t.a.rule.victim = AQ_ATTN_NO_RULE;
    for (uint32_t i = 0; i < shape->seqs; i++) {
        kc_out_set(&x.y, x.y.ref);
        a = call_of(&x, false);
        struct aq_attn_seq one = x.t.seq[i];
        a.seqs = &one;
        a.seq_count = 1;
        uint32_t skip = kc_below(kc, one.rows);
        one.row += skip;
        one.rows -= skip;
        for (uint32_t c = 0; c < one.rows * x.t.columns; c++)
            aq_element_store(x.y.got, x.y.dtype,
                             (one.row + c / x.t.columns) * x.y.stride + c % x.t.columns, 77);
        run_group(kc, &x, &a, kc_below(kc, 2) * 1000);
        if (!kc_same(kc, &x.y) || !kc_same(kc, &x.log_sum))
            kc_expect(kc, false, "sequence %u without its first %u rows", i, skip);
    }
}

/* ---- what is not for tensor cores ---- */

static void check_plain(struct kc *kc, struct kc_attn_shape *shape, uint32_t sm, bool decode)
{
    static struct rig x;
    make_rig(kc, &x, shape, false);
    x.ex.sm = sm;
    x.t.a.rule.victim = AQ_ATTN_NO_RULE;
    struct aq_attn a = call_of(&x, true);
    kc_cuda_done(kc_cuda_kernels()->attn_prefill_plain(&x.ex, kc_cuda_reached(&a)));
    a = call_of(&x, false);
    if (decode)
        run_group(kc, &x, &a, 0);
    else
        kc_cuda_done(kc_cuda_kernels()->attn_prefill(&x.ex, kc_cuda_reached(&a)));
    kc_same(kc, &x.y);
    kc_same(kc, &x.log_sum);
}

/* ---- cases ---- */

static struct kc_attn_shape shape_with(struct kc *kc, enum aq_dtype kv, uint32_t dim,
                                       uint32_t group)
{
    return (struct kc_attn_shape){.seqs = 2,
                                  .kv_heads = 1 + kc_below(kc, 2),
                                  .q_per_kv = group,
                                  .head_dim = dim,
                                  .kv_dtype = kv,
                                  .out_dtype = kc_below(kc, 2) ? AQ_F16 : AQ_BF16,
                                  .rows_max = group > 2 ? 30 : 75,
                                  .len_max = 140,
                                  .ragged = kc_below(kc, 2)};
}

static struct kc_attn_shape shape_of(struct kc *kc, enum aq_dtype kv, uint32_t dim)
{
    static const uint32_t groups[] = {1, 1, 2, 3, 5, 8};
    return shape_with(kc, kv, dim, groups[kc_below(kc, AQ_ARRAY_LEN(groups))]);
}

static const struct fills {
    enum kc_fill q, k, v;
} fills[] = {
    {KC_NORMAL, KC_NORMAL, KC_NORMAL},       {KC_HEAVY, KC_NORMAL, KC_HEAVY},
    {KC_NORMAL, KC_HEAVY, KC_OUTLIER},       {KC_OUTLIER, KC_NORMAL, KC_NORMAL},
    {KC_CONSTANT, KC_CONSTANT, KC_CONSTANT}, {KC_ZERO, KC_NORMAL, KC_ZERO},
    {KC_NORMAL, KC_DENORMAL, KC_LARGE},      {KC_NORMAL, KC_NONFINITE, KC_NORMAL},
};

static void check_dim(struct kc *kc, enum aq_dtype kv, uint32_t dim)
{
    const char *name = aq_dtype_name(kv);
    for (uint32_t f = 0; f < AQ_ARRAY_LEN(fills); f++) {
        /* Every fill at one head size, and at the others the first one. */
        if (f && dims[f % AQ_ARRAY_LEN(dims)] != dim)
            continue;
        if (!kc_begin(kc, KC_CUDA_SLOT, "tiles_%s_d%u_%s_%s_%s", name, dim,
                      kc_fill_name(fills[f].q), kc_fill_name(fills[f].k), kc_fill_name(fills[f].v)))
            continue;
        struct kc_attn_shape shape = shape_of(kc, kv, dim);
        shape.q = fills[f].q;
        shape.k = fills[f].k;
        shape.v = fills[f].v;
        check_parity(kc, &shape, true);
    }
    if (kc_begin(kc, KC_CUDA_SLOT, "tiles_rounded_%s_d%u", name, dim)) {
        struct kc_attn_shape shape = shape_of(kc, kv, dim);
        check_parity(kc, &shape, false);
    }
    if (kc_begin(kc, KC_CUDA_SLOT, "tiles_alone_%s_d%u", name, dim)) {
        struct kc_attn_shape shape = shape_of(kc, kv, dim);
        shape.seqs = 3;
        shape.holds_rows = true;
        check_alone(kc, &shape);
    }
    if (kc_begin(kc, KC_CUDA_SLOT, "tiles_sums_each_%s_d%u", name, dim)) {
        struct kc_attn_shape shape = shape_of(kc, kv, dim);
        shape.holds_rows = true;
        check_each(kc, &shape);
    }
    for (uint32_t draw = 0; draw < 2; draw++) {
        if (!kc_begin(kc, KC_CUDA_SLOT, "tiles_begun_%s_d%u_%u", name, dim, draw))
            continue;
        struct kc_attn_shape shape = shape_of(kc, kv, dim);
        shape.seqs = 1;
        shape.ragged = false;
        shape.holds_rows = true;
        shape.rows_max = 330;
        shape.len_max = 400;
        check_begun(kc, &shape);
    }
    for (uint32_t g = 0; g < KC_ATTN_GROUPS; g++) {
        if (kc_begin(kc, KC_CUDA_SLOT, "tiles_heads_%s_x%u_d%u", name, kc_attn_groups[g], dim)) {
            struct kc_attn_shape shape = shape_with(kc, kv, dim, kc_attn_groups[g]);
            check_parity(kc, &shape, true);
        }
    }
    for (uint32_t draw = 0; draw < 3; draw++) {
        if (!kc_begin(kc, KC_CUDA_SLOT, "tiles_sums_%s_d%u_%u", name, dim, draw))
            continue;
        struct kc_attn_shape shape = shape_of(kc, kv, dim);
        shape.holds_rows = kc_below(kc, 2);
        check_sums(kc, &shape, draw < 2);
    }
}

/* Few rows over keys of up to three splits. */
static struct kc_attn_shape group_shape(struct kc *kc, enum aq_dtype kv, uint32_t dim,
                                        uint32_t group, uint32_t rows)
{
    struct kc_attn_shape shape = shape_with(kc, kv, dim, group);
    shape.rows_max = rows;
    shape.len_max = 270 + 250 * kc_below(kc, 2);
    return shape;
}

/* Every group, of one to three rows. */
static void check_groups(struct kc *kc, enum aq_dtype kv, uint32_t dim)
{
    const char *name = aq_dtype_name(kv);
    for (uint32_t group = 1; group <= GROUP_MOST; group++) {
        if (kc_begin(kc, KC_CUDA_SLOT, "groups_%s_x%u_d%u", name, group, dim)) {
            struct kc_attn_shape shape = group_shape(kc, kv, dim, group, 1 + kc_below(kc, 3));
            check_group(kc, &shape, kc_below(kc, 2), kc_below(kc, 2), false);
        }
        if (kc_begin(kc, KC_CUDA_SLOT, "groups_ways_%s_x%u_d%u", name, group, dim)) {
            struct kc_attn_shape shape = group_shape(kc, kv, dim, group, 1 + kc_below(kc, 3));
            shape.seqs = 3;
            shape.holds_rows = true;
            check_group_ways(kc, &shape, kc_below(kc, 2));
        }
    }
    for (uint32_t f = 1; f < AQ_ARRAY_LEN(fills); f++) {
        if (dims[f % AQ_ARRAY_LEN(dims)] != dim ||
            !kc_begin(kc, KC_CUDA_SLOT, "groups_%s_d%u_%s_%s_%s", name, dim,
                      kc_fill_name(fills[f].q), kc_fill_name(fills[f].k), kc_fill_name(fills[f].v)))
            continue;
        struct kc_attn_shape shape = group_shape(kc, kv, dim, 4 + kc_below(kc, 13), 2);
        shape.q = fills[f].q;
        shape.k = fills[f].k;
        shape.v = fills[f].v;
        check_group(kc, &shape, true, false, false);
    }
    if (aq_dtype_is_quantised(kv) && kc_begin(kc, KC_CUDA_SLOT, "groups_end_%s_d%u", name, dim)) {
        struct kc_attn_shape shape = group_shape(kc, kv, dim, 8, 2);
        shape.out_dtype = AQ_BF16; /* has room for what the reference says */
        check_group(kc, &shape, true, false, true);
    }
}

static void check(struct kc *kc)
{
    for (size_t t = 0; t < AQ_ARRAY_LEN(kv_dtypes); t++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(dims); d++) {
            check_dim(kc, kv_dtypes[t], dims[d]);
            check_groups(kc, kv_dtypes[t], dims[d]);
        }
        check_groups(kc, kv_dtypes[t], 256); /* not on tensor cores */
    }
    static const struct {
        enum aq_dtype kv, out;
        uint32_t dim, sm;
    } plain[] = {{AQ_F32, AQ_F16, 64, 90},
                 {AQ_F16, AQ_F32, 64, 90},
                 {AQ_F16, AQ_F16, 72, 90},
                 {AQ_BF16, AQ_BF16, 64, 75},
                 {AQ_Q8, AQ_F16, 48, 80}};
    for (size_t i = 0; i < 2 * AQ_ARRAY_LEN(plain); i++) {
        size_t of = i / 2;
        bool decode = i % 2;
        if (!kc_begin(kc, KC_CUDA_SLOT, "%s_plain_%s_%s_d%u", decode ? "groups" : "tiles",
                      aq_dtype_name(plain[of].kv), aq_dtype_name(plain[of].out), plain[of].dim))
            continue;
        struct kc_attn_shape shape = shape_of(kc, plain[of].kv, plain[of].dim);
        shape.out_dtype = plain[of].out;
        shape.rows_max = 5;
        check_plain(kc, &shape, plain[of].sm, decode);
    }
}

const struct kc_check kc_check_cuda_tiles = {.name = "cuda-tiles", .check = check};
