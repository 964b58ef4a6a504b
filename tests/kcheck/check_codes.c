/* SPDX-License-Identifier: Apache-2.0
 * Products on codes: against the reference, against the lower versions bit by bit (their sums are
 * exact and their f32 operations the same), and a row alone against the same row in batches. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/panel.h"
#include "tests/kcheck/kcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const enum aq_dtype w_dtypes[] = {AQ_Q8, AQ_Q4}, x_dtypes[] = {AQ_F32, AQ_BF16};

/* Sizes around every border: pairs, quads, groups of 64, blocks of 512 and 1024, 6 rows, rows that
 * are codes at a time. */
static const struct shape {
    uint32_t m, k, n;
} shapes[] = {
    {1, 1, 1},      {2, 31, 65},    {3, 127, 100},  {5, 64, 63},    {6, 512, 192},   {7, 1025, 70},
    {8, 577, 128},  {13, 2050, 64}, {17, 96, 130},  {33, 130, 129}, {100, 33, 64},   {1, 4099, 80},
    {4, 16384, 16}, {130, 66, 65},  {257, 200, 70}, {520, 65, 3},   {1030, 130, 10},
};

struct problem {
    struct aq_product p;
    struct aq_segment segment[2];
    uint32_t columns;
};

/* W in one segment or two, the second one at columns of its own. */
static void make_problem(struct kc *kc, struct problem *q, enum aq_dtype x, enum aq_dtype w,
                         enum kc_fill fill, const struct shape *s)
{
    *q = (struct problem){.columns = s->n + 2};
    uint32_t first = s->n > 1 ? 1 + kc_below(kc, s->n - 1) : 1, count = s->n > first ? 2 : 1;
    const uint32_t rows[] = {first, s->n - first}, column[] = {0, first + 2};
    for (uint32_t i = 0; i < count; i++) {
        const void *numbers = kc_in(kc, kc_source(w), fill, rows[i], s->k, s->k);
        q->segment[i] =
            (struct aq_segment){.panels = kc_panels(kc, numbers, kc_source(w), w, rows[i], s->k),
                                .column = column[i],
                                .rows = rows[i]};
    }
    q->p = (struct aq_product){.x_dtype = x,
                               .m = s->m,
                               .k = s->k,
                               .x_stride = s->k + kc_below(kc, 4),
                               .segments = q->segment,
                               .segment_count = count,
                               .w_dtype = w,
                               .w_layout = aq_layout_cpu(w),
                               .activation = (enum aq_activation)kc_below(kc, AQ_ACT_SILU + 1),
                               .combine = (enum aq_combine)kc_below(kc, AQ_COMBINE_MULTIPLY + 1),
                               .y_dtype = kc_below(kc, 3) ? AQ_F32 : AQ_BF16,
                               .y_stride = q->columns + kc_below(kc, 5)};
    q->p.x = kc_in(kc, x, fill, s->m, s->k, q->p.x_stride);
    if (kc_below(kc, 2))
        q->p.bias = kc_in(kc, AQ_F32, KC_NORMAL, 1, q->columns, q->columns);
    if (q->p.combine == AQ_COMBINE_ADD && q->p.y_dtype != AQ_F32)
        q->p.combine = AQ_COMBINE_SET;
}

/* Sum over k of |x| (|scale * code| + |minimum|), half a code of x more: what roundings are a share
 * of.  x [k]: their sizes, with that half. */
static double magnitude(const struct aq_product *p, const void *panel, const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t k = 0; k < p->k; k++) {
        struct aq_group g = aq_group_at(panel, p->w_dtype, p->k, k);
        uint32_t code = aq_group_code(&g, p->w_dtype, n, k % AQ_GROUP_K);
        sum +=
            x[k] * (fabs(aq_f32_from_f16(g.scale[n])) * code + fabs(aq_f32_from_f16(g.minimum[n])));
    }
    return sum;
}

/* to [k]: the sizes of a row of x, a group at a time. */
static void sizes_of(const struct aq_product *p, uint32_t row, double *to)
{
    for (uint32_t first = 0; first < p->k; first += AQ_GROUP_K) {
        uint32_t end = (uint32_t)aq_min_u64(p->k, first + AQ_GROUP_K);
        double largest = 0;
        for (uint32_t k = first; k < end; k++) {
            to[k] = fabs(aq_element_load(p->x, p->x_dtype, row * p->x_stride + k));
            largest = to[k] > largest ? to[k] : largest;
        }
        for (uint32_t k = first; k < end; k++)
            to[k] += largest / 254;
    }
}

static double *make_scale(const struct problem *q, const void *old)
{
    const struct aq_product *p = &q->p;
    double *scale = calloc((size_t)p->m * q->columns, sizeof(*scale));
    double *x = calloc((size_t)p->m * p->k, sizeof(*x));
    for (uint32_t r = 0; r < p->m; r++)
        sizes_of(p, r, x + (size_t)r * p->k);
    for (uint32_t i = 0; i < p->segment_count; i++) {
        for (uint32_t n = 0; n < p->segments[i].rows; n++) {
            const char *panel = (const char *)p->segments[i].panels +
                                n / AQ_PANEL_ROWS * aq_panel_bytes(p->w_dtype, p->k);
            uint32_t column = p->segments[i].column + n;
            for (uint32_t r = 0; r < p->m; r++) {
                double sum = magnitude(p, panel, x + (size_t)r * p->k, n % AQ_PANEL_ROWS);
                sum += p->bias ? fabs(p->bias[column]) : 0;
                if (p->combine == AQ_COMBINE_MULTIPLY)
                    sum *= fabs(aq_element_load(old, p->y_dtype, r * p->y_stride + column));
                scale[(size_t)r * q->columns + column] = sum;
            }
        }
    }
    free(x);
    return scale;
}

static void check_parity(struct kc *kc, enum aq_dtype x, enum aq_dtype w, enum kc_fill fill,
                         const struct shape *s)
{
    struct problem q;
    make_problem(kc, &q, x, w, fill, s);
    struct aq_product p = q.p;
    struct kc_out y = kc_out(kc, p.y_dtype, p.m, q.columns, p.y_stride);
    const void *old = kc_in(kc, p.y_dtype, KC_NORMAL, p.m, q.columns, p.y_stride);
    kc_out_set(&y, old);
    p.y = y.ref;
    kc_ref(kc)->product_codes(kc_exec(kc, 0), &p);
    p.y = y.got;
    kc_new(kc)->product_codes(kc_exec(kc, 0), &p);
    double *scale = make_scale(&q, old);
    double groups = (double)aq_div_up(p.k, AQ_GROUP_K);
    kc_near(kc, &y, scale,
            (struct kc_limit){.rel = 1.13 * (2 * groups + 6) * 0x1p-24,
                              .abs = 0x1p-100,
                              .ulp = p.y_dtype == AQ_BF16 ? 1 : 5,
                              .why = "of each group two products and two sums are rounded"});
    free(scale);
}

/* The versions' bits are the same. */
static void check_versions(struct kc *kc, enum aq_dtype x, enum aq_dtype w, const struct shape *s)
{
    const struct aq_kernels *lower = kc_table(kc, "avx2");
    if (!lower)
        return;
    struct problem q;
    make_problem(kc, &q, x, w, KC_NORMAL, s);
    q.p.combine = AQ_COMBINE_SET;
    q.p.activation = AQ_ACT_NONE;
    struct kc_out y = kc_out(kc, q.p.y_dtype, s->m, q.columns, q.p.y_stride);
    q.p.y = y.ref;
    lower->product_codes(kc_exec(kc, 0), &q.p);
    q.p.y = y.got;
    kc_new(kc)->product_codes(kc_exec(kc, 0), &q.p);
    kc_same(kc, &y);
}

/* Rows of the batch's result, computed alone, are the batch's bits. */
static void check_batches(struct kc *kc, enum aq_dtype x, enum aq_dtype w, uint32_t k)
{
    static const uint32_t batch_sizes[] = {1, 2, 3, 7, 16, 33, 64};
    struct problem q;
    const struct shape s = {.m = 64, .k = k, .n = 130};
    make_problem(kc, &q, x, w, KC_NORMAL, &s);
    q.p.combine = AQ_COMBINE_SET;
    struct kc_out whole = kc_out(kc, q.p.y_dtype, s.m, q.columns, q.p.y_stride);
    q.p.y = whole.ref;
    kc_new(kc)->product_codes(kc_exec(kc, 1), &q.p);
    for (size_t i = 0; i < AQ_ARRAY_LEN(batch_sizes) * 3; i++) {
        struct aq_product p = q.p;
        p.m = batch_sizes[i / 3];
        uint32_t first = kc_below(kc, s.m - p.m + 1);
        struct kc_out y = kc_out(kc, p.y_dtype, p.m, whole.cols, whole.stride);
        kc_out_set(&y, (const char *)whole.ref + first * whole.stride * aq_dtype_bytes(p.y_dtype));
        p.x = (const char *)p.x + first * p.x_stride * aq_dtype_bytes(p.x_dtype);
        p.y = y.got;
        kc_out_reset(&y);
        kc_new(kc)->product_codes(kc_exec(kc, (uint32_t)(1 + i % 3)), &p);
        if (!kc_same(kc, &y))
            kc_expect(kc, false, "rows from %u of %u", first, p.m);
    }
}

static void check_numbers(struct kc *kc, enum aq_dtype x, enum aq_dtype w, const char *name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];
        for (uint32_t fill = 0; fill < KC_FINITE_COUNT; fill++) {
            bool small = (uint64_t)s->m * s->k * s->n < 200000;
            if ((fill == KC_NORMAL || small) &&
                kc_begin(kc, KC_SLOT(product_codes), "%s_%s_m%u_k%u_n%u", name, kc_fill_name(fill),
                         s->m, s->k, s->n))
                check_parity(kc, x, w, fill, s);
        }
        if (kc_begin(kc, KC_SLOT(product_codes), "%s_versions_m%u_k%u_n%u", name, s->m, s->k, s->n))
            check_versions(kc, x, w, s);
    }
    static const uint32_t batch_k[] = {63, 1090};
    for (size_t i = 0; i < AQ_ARRAY_LEN(batch_k); i++) {
        if (kc_begin(kc, KC_SLOT(product_codes), "%s_batches_k%u", name, batch_k[i]))
            check_batches(kc, x, w, batch_k[i]);
    }
}

/* An infinity or a NaN makes NaN of its row alone. */
static void check_not_finite(struct kc *kc, float value)
{
    enum { M = 3, K = 130, N = 5 };
    struct problem q;
    const struct shape s = {M, K, N};
    make_problem(kc, &q, AQ_F32, AQ_Q8, KC_NORMAL, &s);
    q.p.combine = AQ_COMBINE_SET;
    q.p.activation = AQ_ACT_NONE;
    q.p.y_dtype = AQ_F32;
    float *x = kc_bytes(kc, M * q.p.x_stride * sizeof(*x)),
          *y = kc_bytes(kc, M * q.p.y_stride * sizeof(*y));
    memcpy(x, q.p.x, ((M - 1) * q.p.x_stride + K) * sizeof(*x));
    x[q.p.x_stride + 70] = value;
    q.p.x = x;
    q.p.y = y;
    kc_new(kc)->product_codes(kc_exec(kc, 0), &q.p);
    for (uint32_t r = 0; r < M; r++)
        kc_expect(kc, isnan(y[r * q.p.y_stride]) == (r == 1), "row %u: %g", r,
                  (double)y[r * q.p.y_stride]);
}

static void check(struct kc *kc)
{
    for (size_t x = 0; x < AQ_ARRAY_LEN(x_dtypes); x++) {
        for (size_t w = 0; w < AQ_ARRAY_LEN(w_dtypes); w++) {
            char name[40];
            snprintf(name, sizeof(name), "codes_%s_w_%s", aq_dtype_name(x_dtypes[x]),
                     aq_dtype_name(w_dtypes[w]));
            check_numbers(kc, x_dtypes[x], w_dtypes[w], name);
        }
    }
    if (kc_begin(kc, KC_SLOT(product_codes), "codes_infinity"))
        check_not_finite(kc, INFINITY);
    if (kc_begin(kc, KC_SLOT(product_codes), "codes_nan"))
        check_not_finite(kc, NAN);
}

/* ---- benchmarks ---- */

struct bench {
    struct kc *kc;
    struct aq_product p;
    struct aq_segment segment;
    const char *cold;
    size_t w_bytes;
    uint64_t copies;
};

static void bench_call(void *arg, uint64_t i)
{
    struct bench *b = arg;
    b->segment.panels = b->cold + i % b->copies * b->w_bytes;
    kc_new(b->kc)->product_codes(kc_exec(b->kc, 0), &b->p);
}

/* The same product in bf16, on the same codes. */
static void bf16_call(void *arg, uint64_t i)
{
    struct bench *b = arg;
    b->segment.panels = b->cold + i % b->copies * b->w_bytes;
    kc_new(b->kc)->product_bf16(kc_exec(b->kc, 0), &b->p);
}

static void bench_one(struct kc *kc, enum aq_dtype w, uint32_t n, uint32_t k, uint32_t m)
{
    size_t cold_bytes;
    struct bench b = {.kc = kc, .cold = kc_cold(kc, &cold_bytes)};
    b.w_bytes = aq_panel_count(n) * aq_panel_bytes(w, k);
    b.copies = cold_bytes / b.w_bytes;
    b.segment = (struct aq_segment){.rows = n};
    b.p = (struct aq_product){.x_dtype = AQ_BF16,
                              .m = m,
                              .k = k,
                              .x_stride = k,
                              .segments = &b.segment,
                              .segment_count = 1,
                              .w_dtype = w,
                              .w_layout = aq_layout_cpu(w),
                              .y = kc_hot(kc, (size_t)m * n * 4),
                              .y_dtype = AQ_F32,
                              .y_stride = n};
    b.p.x = kc_in(kc, AQ_BF16, KC_NORMAL, m, k, k);
    kc_bench(kc, &(struct kc_bench){.call = bench_call,
                                    .arg = &b,
                                    .bytes = (double)b.w_bytes,
                                    .flops = 2.0 * m * n * k,
                                    .bound = m < 8 ? KC_BOUND_READ : KC_BOUND_INT8,
                                    .peer = bf16_call,
                                    .peer_arg = &b});
}

static void bench(struct kc *kc)
{
    static const uint32_t rows[] = {1, 4, 16, 32, 128, 512};
    if (kc_new(kc) == kc_ref(kc))
        return; /* seconds a call */
    for (size_t w = 0; w < AQ_ARRAY_LEN(w_dtypes); w++) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
            if (kc_bench_begin(kc, KC_SLOT(product_codes), "codes_w_%s_n8192_k2048_m%u",
                               aq_dtype_name(w_dtypes[w]), rows[i]))
                bench_one(kc, w_dtypes[w], 8192, 2048, rows[i]);
        }
    }
}

const struct kc_check kc_check_codes = {.name = "codes", .check = check, .bench = bench};
