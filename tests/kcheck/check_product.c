/* SPDX-License-Identifier: Apache-2.0
 * Products: against the reference, and a row alone against the same row in batches. */
#include "kernels/cpu/panel.h"
#include "tests/kcheck/kcheck.h"
#include "tests/kcheck/peer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const enum aq_dtype w_dtypes[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};
enum { OLD_MAX = 8 }; /* of what y was: normal numbers, not so many of them */

static const enum aq_dtype compute_dtypes[] = {AQ_F32, AQ_BF16};

/* Sizes around every border the versions have: pairs, 32-wide tiles and 64-wide panels, blocks of
 * 512 and 1024 along K, 6, 8, 16 and 24 rows. */
static const struct shape {
    uint32_t m, k, n;
} shapes[] = {
    {1, 1, 1},     {1, 2, 64},     {2, 31, 65},   {3, 127, 100},  {5, 64, 63},
    {6, 512, 192}, {7, 1025, 70},  {8, 513, 128}, {13, 2050, 64}, {16, 32, 17},
    {17, 96, 130}, {33, 130, 129}, {48, 80, 64},  {64, 47, 200},  {100, 33, 64},
    {1, 4099, 80}, {4, 16384, 16}, {130, 66, 65}, {24, 257, 66},  {25, 257, 66},
};

struct problem {
    struct aq_product p;
    struct aq_segment segment[3];
    size_t slot;
    const void *w; /* rows [n][k], of which the panels were made */
    uint32_t n;
};

static aq_product_fn *version(const struct aq_kernels *k, enum aq_dtype compute)
{
    return compute == AQ_F32 ? k->product_f32 : k->product_bf16;
}

/* Splits the n rows of W among up to three segments, each at its own columns of y. */
static uint32_t make_segments(struct kc *kc, struct problem *q, enum aq_dtype w_dtype)
{
    uint32_t column = 0, first = 0, count = 0;
    enum aq_dtype source = kc_source(w_dtype);
    size_t row_bytes = (size_t)q->p.k * aq_dtype_bytes(source);
    while (first < q->n) {
        uint32_t rows = count == 2 ? q->n - first : 1 + kc_below(kc, q->n - first);
        const char *w = (const char *)q->w + first * row_bytes;
        q->segment[count++] =
            (struct aq_segment){.panels = kc_panels(kc, w, source, w_dtype, rows, q->p.k),
                                .column = column,
                                .rows = rows};
        first += rows;
        column += rows + kc_below(kc, 3);
    }
    q->p.segments = q->segment;
    q->p.segment_count = count;
    return column;
}

/* Inputs of one product; returns the columns of y. */
static uint32_t make_problem(struct kc *kc, struct problem *q, enum aq_dtype compute,
                             enum aq_dtype w_dtype, enum kc_fill fill, const struct shape *s)
{
    *q = (struct problem){.n = s->n};
    struct aq_product *p = &q->p;
    p->m = s->m;
    p->k = s->k;
    p->x_dtype = compute;
    p->x_stride = s->k + kc_below(kc, 4);
    p->x = kc_in(kc, compute, fill == KC_DENORMAL ? KC_NORMAL : fill, s->m, s->k, p->x_stride);
    p->w_dtype = w_dtype;
    p->w_layout = aq_layout_cpu(w_dtype);
    q->w = kc_in(kc, kc_source(w_dtype), fill, s->n, s->k, s->k);
    uint32_t columns = make_segments(kc, q, w_dtype);
    p->bias = kc_below(kc, 2) ? kc_in(kc, AQ_F32, KC_NORMAL, 1, columns, columns) : NULL;
    p->activation = (enum aq_activation)kc_below(kc, AQ_ACT_SILU + 1);
    p->y_dtype = kc_below(kc, 3) ? AQ_F32 : AQ_BF16;
    p->combine = (enum aq_combine)kc_below(kc, AQ_COMBINE_MULTIPLY + 1);
    if (p->combine == AQ_COMBINE_ADD && p->y_dtype != AQ_F32)
        p->combine = AQ_COMBINE_SET;
    p->y_stride = columns + kc_below(kc, 5);
    return columns;
}

/* scale[r][c] = sum over k of |x| |w|, + |bias|: what rounding errors are a share of, times |old|
 * where the product multiplies what y was. */
static double *make_scale(const struct aq_product *p, const void *old, uint32_t columns)
{
    double *scale = calloc((size_t)p->m * columns, sizeof(*scale));
    for (uint32_t i = 0; i < p->segment_count; i++) {
        for (uint32_t n = 0; n < p->segments[i].rows; n++) {
            uint32_t column = p->segments[i].column + n;
            const char *panel = (const char *)p->segments[i].panels +
                                n / AQ_PANEL_ROWS * aq_panel_bytes(p->w_dtype, p->k);
            for (uint32_t r = 0; r < p->m; r++) {
                double sum = p->bias ? fabs(p->bias[column]) : 0;
                for (uint32_t k = 0; k < p->k; k++)
                    sum += fabs(
                        (double)aq_element_load(p->x, p->x_dtype, r * p->x_stride + k) *
                        aq_panel_load(panel, p->w_dtype, p->w_layout, p->k, n % AQ_PANEL_ROWS, k));
                if (p->combine == AQ_COMBINE_MULTIPLY)
                    sum *= fabs(aq_element_load(old, p->y_dtype, r * p->y_stride + column));
                scale[(size_t)r * columns + column] = sum;
            }
        }
    }
    return scale;
}

/* One accumulator and k roundings: the error is at most k * 2^-24 of the sum of magnitudes, and
 * about sqrt(k) of that where roundings are independent; equal terms round the same way each time.
 * No activation is steeper than 1.13. */
static struct kc_limit limit_of(const struct aq_product *p, enum kc_fill fill)
{
    double k = p->k, steps = fill == KC_CONSTANT ? k + 2 : 2 * sqrt(k) + 4;
    if (steps > k + 2)
        steps = k + 2;
    struct kc_limit limit = {.rel = 1.13 * steps * 0x1p-24,
                             .ulp = p->y_dtype == AQ_BF16 ? 1 : 4,
                             .why = fill == KC_CONSTANT ? "k roundings of 2^-24, all alike"
                                                        : "2 sqrt(k) + 4 roundings"};
    /* bf16 dot products take subnormal factors and sums for zero. */
    limit.abs = p->x_dtype == AQ_BF16 ? 8 * k * 0x1p-126 : 0x1p-126;
    if (p->combine == AQ_COMBINE_MULTIPLY) { /* by numbers below OLD_MAX, rounding once more */
        limit.abs *= OLD_MAX;
        limit.ulp += p->y_dtype == AQ_F32;
    }
    return limit;
}

static void expect_parity(struct kc *kc, struct aq_product p, uint32_t columns, enum kc_fill fill)
{
    struct kc_out y = kc_out(kc, p.y_dtype, p.m, columns, p.y_stride);
    const void *old = kc_in(kc, p.y_dtype, KC_NORMAL, p.m, columns, p.y_stride);
    if (p.combine != AQ_COMBINE_SET)
        kc_out_set(&y, old);
    p.y = y.ref;
    version(kc_ref(kc), p.x_dtype)(kc_exec(kc, 0), &p);
    p.y = y.got;
    version(kc_new(kc), p.x_dtype)(kc_exec(kc, 0), &p);
    double *scale = make_scale(&p, old, columns);
    kc_near(kc, &y, scale, limit_of(&p, fill));
    free(scale);
}

static void check_parity(struct kc *kc, enum aq_dtype compute, enum aq_dtype w_dtype,
                         enum kc_fill fill, const struct shape *s)
{
    struct problem q;
    uint32_t columns = make_problem(kc, &q, compute, w_dtype, fill, s);
    expect_parity(kc, q.p, columns, fill);
}

/* ---- activations ---- */

/* That another activation would not pass for this one: of many numbers it is several times the
 * limit away. */
static void expect_apart(struct kc *kc, struct aq_product p, uint32_t columns,
                         enum aq_activation other)
{
    struct kc_limit limit = limit_of(&p, KC_NORMAL);
    double step = p.y_dtype == AQ_BF16 ? 0x1p-7 : 0x1p-23; /* at most, as a share */
    uint32_t count = p.m * columns, apart = 0;
    float *one = kc_bytes(kc, count * sizeof(*one)), *two = kc_bytes(kc, count * sizeof(*two));
    p.combine = AQ_COMBINE_SET;
    p.y_dtype = AQ_F32;
    p.y = one;
    kc_ref(kc)->product_f32(kc_exec(kc, 0), &p);
    p.activation = other;
    p.y = two;
    kc_ref(kc)->product_f32(kc_exec(kc, 0), &p);
    double *scale = make_scale(&p, NULL, columns);
    for (uint32_t i = 0; i < count; i++) {
        double room = limit.abs + limit.rel * scale[i] + limit.ulp * step * fabs((double)one[i]);
        apart += fabs((double)one[i] - two[i]) > 4 * room;
    }
    free(scale);
    kc_expect(kc, apart > count / 20, "of %u numbers only %u tell the activations apart", count,
              apart);
}

/* Products of one x and one w, so that y is the activation of numbers from one of its tails to the
 * other. */
static void check_activation(struct kc *kc, enum aq_activation activation, enum aq_dtype y_dtype,
                             enum aq_combine combine)
{
    enum { ROWS = 40, COLUMNS = 61 };
    float *x = kc_bytes(kc, ROWS * sizeof(*x)), *w = kc_bytes(kc, COLUMNS * sizeof(*w));
    for (uint32_t r = 0; r < ROWS; r++)
        x[r] = (float)(r + 1) / ROWS;
    for (uint32_t n = 0; n < COLUMNS; n++)
        w[n] = ((float)n - COLUMNS / 2) * 0.5f;
    struct aq_segment segment = {.panels = kc_panels(kc, w, AQ_F32, AQ_F32, COLUMNS, 1),
                                 .rows = COLUMNS};
    struct aq_product p = {.x = x,
                           .x_dtype = AQ_F32,
                           .m = ROWS,
                           .k = 1,
                           .x_stride = 1,
                           .segments = &segment,
                           .segment_count = 1,
                           .w_dtype = AQ_F32,
                           .w_layout = aq_layout_cpu(AQ_F32),
                           .activation = activation,
                           .combine = combine,
                           .y_dtype = y_dtype,
                           .y_stride = COLUMNS};
    expect_parity(kc, p, COLUMNS, KC_NORMAL);
    if (activation == AQ_ACT_GELU)
        expect_apart(kc, p, COLUMNS, AQ_ACT_GELU_TANH);
}

static void check_activations(struct kc *kc)
{
    static const char *const names[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};
    static const char *const combines[] = {"set", "add", "multiply"};
    for (uint32_t a = 0; a < AQ_ARRAY_LEN(names); a++) {
        for (uint32_t c = 0; c < AQ_ARRAY_LEN(combines); c++) {
            if (kc_begin(kc, KC_SLOT(product_f32), "product_act_%s_f32_%s", names[a], combines[c]))
                check_activation(kc, (enum aq_activation)a, AQ_F32, (enum aq_combine)c);
            if (c != AQ_COMBINE_ADD &&
                kc_begin(kc, KC_SLOT(product_f32), "product_act_%s_bf16_%s", names[a], combines[c]))
                check_activation(kc, (enum aq_activation)a, AQ_BF16, (enum aq_combine)c);
        }
    }
}

/* ---- batches, unpacked weights ---- */

/* Rows [first, first + m) of the batch's result, computed alone, are the batch's bits. */
static void expect_rows(struct kc *kc, const struct problem *batch, const struct kc_out *whole,
                        uint32_t first, uint32_t m, uint32_t threads)
{
    struct aq_product p = batch->p;
    struct kc_out y = kc_out(kc, p.y_dtype, m, whole->cols, whole->stride);
    size_t size = aq_dtype_bytes(p.y_dtype);
    kc_out_set(&y, (const char *)whole->ref + first * whole->stride * size);
    p.x = (const char *)p.x + first * p.x_stride * aq_dtype_bytes(p.x_dtype);
    p.m = m;
    p.y = y.got;
    kc_out_reset(&y);
    version(kc_new(kc), p.x_dtype)(kc_exec(kc, threads), &p);
    if (!kc_same(kc, &y))
        kc_expect(kc, false, "rows %u to %u of %u with %u threads", first, first + m - 1,
                  batch->p.m, threads);
}

static void check_batches(struct kc *kc, enum aq_dtype compute, enum aq_dtype w_dtype, uint32_t k,
                          uint32_t n)
{
    static const uint32_t batch_sizes[] = {1, 2, 3, 7, 16, 33, 64};
    struct problem q;
    const struct shape s = {.m = 64, .k = k, .n = n};
    uint32_t columns = make_problem(kc, &q, compute, w_dtype, KC_NORMAL, &s);
    q.p.combine = AQ_COMBINE_SET;
    struct kc_out whole = kc_out(kc, q.p.y_dtype, s.m, columns, q.p.y_stride);
    q.p.y = whole.ref;
    version(kc_new(kc), compute)(kc_exec(kc, 1), &q.p);
    for (size_t i = 0; i < AQ_ARRAY_LEN(batch_sizes); i++) {
        uint32_t m = batch_sizes[i];
        for (uint32_t threads = 1; threads <= 3; threads++)
            expect_rows(kc, &q, &whole, kc_below(kc, s.m - m + 1), m, threads);
    }
}

/* Unpacking every panel is what the reference does, bit by bit; and a product with the unpacked
 * panels gives the bits of the product that converts on its way. */
static void check_unpacked(struct kc *kc, enum aq_dtype compute, enum aq_dtype w_dtype,
                           enum kc_fill fill, const struct shape *s)
{
    struct problem q;
    uint32_t columns = make_problem(kc, &q, compute, w_dtype, fill, s);
    q.p.combine = AQ_COMBINE_SET;
    struct kc_out y = kc_out(kc, q.p.y_dtype, s->m, columns, q.p.y_stride);
    q.p.y = y.ref;
    version(kc_new(kc), compute)(kc_exec(kc, 0), &q.p);
    size_t panel_bytes = aq_panel_bytes(compute, s->k);
    uint32_t used = (uint32_t)(aq_panel_offset(compute, (uint32_t)aq_align_up(s->k, 2)) /
                               aq_dtype_bytes(compute));
    for (uint32_t i = 0; i < q.p.segment_count; i++) {
        struct aq_unpack u = {
            .src = q.segment[i].panels, .src_dtype = w_dtype, .dst_dtype = compute};
        u.panels = aq_panel_count(q.segment[i].rows);
        u.k = s->k;
        struct kc_out w =
            kc_out(kc, compute, u.panels, used, panel_bytes / aq_dtype_bytes(compute));
        u.dst = w.ref;
        kc_ref(kc)->unpack(kc_exec(kc, 0), &u);
        u.dst = w.got;
        kc_new(kc)->unpack(kc_exec(kc, 0), &u);
        kc_same(kc, &w);
        q.segment[i].panels = w.got;
    }
    q.p.w_dtype = compute;
    q.p.w_layout = aq_layout_cpu(compute);
    q.p.y = y.got;
    version(kc_new(kc), compute)(kc_exec(kc, 0), &q.p);
    kc_same(kc, &y);
}

static void check_pair(struct kc *kc, enum aq_dtype compute, enum aq_dtype w_dtype)
{
    size_t slot = compute == AQ_F32 ? KC_SLOT(product_f32) : KC_SLOT(product_bf16);
    char name[40];
    snprintf(name, sizeof(name), "product_%s_w_%s", aq_dtype_name(compute), aq_dtype_name(w_dtype));
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];
        for (uint32_t fill = 0; fill < KC_FINITE_COUNT; fill++) {
            bool small = (uint64_t)s->m * s->k * s->n < 200000;
            if (fill != KC_NORMAL && !small)
                continue;
            if (kc_begin(kc, slot, "%s_%s_m%u_k%u_n%u", name, kc_fill_name(fill), s->m, s->k, s->n))
                check_parity(kc, compute, w_dtype, fill, s);
        }
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];
        /* Not subnormals: rounding to bf16 may take them for zero, as the product would. */
        enum kc_fill fill = i < KC_FINITE_COUNT && i != KC_DENORMAL ? (enum kc_fill)i : KC_NORMAL;
        if (kc_begin(kc, KC_SLOT(unpack), "unpack_%s_%s_%s_m%u_k%u_n%u", aq_dtype_name(w_dtype),
                     aq_dtype_name(compute), kc_fill_name(fill), s->m, s->k, s->n))
            check_unpacked(kc, compute, w_dtype, fill, s);
    }
    static const uint32_t batch_k[] = {63, 1090};
    for (size_t i = 0; i < AQ_ARRAY_LEN(batch_k); i++) {
        if (kc_begin(kc, slot, "%s_batches_k%u", name, batch_k[i]))
            check_batches(kc, compute, w_dtype, batch_k[i], 130);
    }
}

static void check(struct kc *kc)
{
    check_activations(kc);
    for (size_t c = 0; c < AQ_ARRAY_LEN(compute_dtypes); c++) {
        for (size_t w = 0; w < AQ_ARRAY_LEN(w_dtypes); w++)
            check_pair(kc, compute_dtypes[c], w_dtypes[w]);
    }
}

/* ---- benchmarks ---- */

/* opt-1.3b's matrices and three of opt-6.7b's size. */
static const struct matrix {
    uint32_t n, k;
} matrices[] = {
    {2048, 2048}, {8192, 2048}, {2048, 8192}, {4096, 4096}, {16384, 4096}, {4096, 16384},
};
static const uint32_t bench_rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};

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
    version(kc_new(b->kc), b->p.x_dtype)(kc_exec(b->kc, 0), &b->p);
}

static void bench_one(struct kc *kc, enum aq_dtype compute, enum aq_dtype w_dtype,
                      const struct matrix *w, uint32_t m)
{
    size_t cold_bytes, x_size = aq_dtype_bytes(compute);
    struct bench b = {.kc = kc, .cold = kc_cold(kc, &cold_bytes)};
    b.w_bytes = aq_panel_count(w->n) * aq_panel_bytes(w_dtype, w->k);
    b.copies = cold_bytes / b.w_bytes;
    b.segment = (struct aq_segment){.rows = w->n};
    b.p = (struct aq_product){.x_dtype = compute,
                              .m = m,
                              .k = w->k,
                              .x_stride = aq_row_stride(w->k, compute),
                              .segments = &b.segment,
                              .segment_count = 1,
                              .w_dtype = w_dtype,
                              .w_layout = aq_layout_cpu(w_dtype),
                              .y = kc_hot(kc, (size_t)m * w->n * 4),
                              .y_dtype = AQ_F32,
                              .y_stride = w->n};
    void *x = kc_hot(kc, m * b.p.x_stride * x_size);
    memcpy(x, b.cold, m * b.p.x_stride * x_size);
    b.p.x = x;
    struct kc_bench line = {.call = bench_call,
                            .arg = &b,
                            .bytes = (double)b.w_bytes,
                            .flops = 2.0 * m * w->n * w->k,
                            .bound = m < 8               ? KC_BOUND_READ
                                     : compute == AQ_F32 ? KC_BOUND_F32
                                                         : KC_BOUND_BF16};
    const struct kc_peer *peer = w_dtype == compute ? kc_load_peer(kc) : NULL;
    if (peer) {
        const struct kc_peer_shape shape = {
            .bf16 = compute == AQ_BF16, .m = m, .n = w->n, .k = w->k, .cold_bytes = cold_bytes};
        line.peer_arg = peer->product_open(&shape);
        line.peer = line.peer_arg ? peer->product_call : NULL;
    }
    kc_bench(kc, &line);
    if (line.peer_arg)
        peer->product_close(line.peer_arg);
}

struct unpack_bench {
    struct kc *kc;
    struct aq_unpack u;
    const char *cold;
    size_t bytes;
    uint64_t copies;
};

static void unpack_call(void *arg, uint64_t i)
{
    struct unpack_bench *b = arg;
    b->u.src = b->cold + i % b->copies * b->bytes;
    kc_new(b->kc)->unpack(kc_exec(b->kc, 0), &b->u);
}

/* A matrix of 4096 x 4096 read cold, written where it was written before. */
static void bench_unpack(struct kc *kc, enum aq_dtype src, enum aq_dtype dst)
{
    size_t cold_bytes;
    struct unpack_bench b = {.kc = kc, .cold = kc_cold(kc, &cold_bytes)};
    b.u = (struct aq_unpack){.src_dtype = src, .dst_dtype = dst, .panels = 64, .k = 4096};
    b.bytes = b.u.panels * aq_panel_bytes(src, b.u.k);
    b.copies = cold_bytes / b.bytes;
    size_t dst_bytes = b.u.panels * aq_panel_bytes(dst, b.u.k);
    b.u.dst = kc_hot(kc, dst_bytes);
    kc_bench(kc, &(struct kc_bench){.call = unpack_call,
                                    .arg = &b,
                                    .bytes = (double)(b.bytes + dst_bytes),
                                    .bound = KC_BOUND_READ});
}

static void bench_unpacks(struct kc *kc)
{
    for (size_t d = 0; d < AQ_ARRAY_LEN(w_dtypes); d++) {
        for (size_t c = 0; c < AQ_ARRAY_LEN(compute_dtypes); c++) {
            if (w_dtypes[d] != compute_dtypes[c] &&
                kc_bench_begin(kc, KC_SLOT(unpack), "unpack_%s_%s", aq_dtype_name(w_dtypes[d]),
                               aq_dtype_name(compute_dtypes[c])))
                bench_unpack(kc, w_dtypes[d], compute_dtypes[c]);
        }
    }
}

static void bench(struct kc *kc)
{
    if (kc_new(kc) == kc_ref(kc))
        return; /* seconds a call */
    bench_unpacks(kc);
    for (size_t c = 0; c < AQ_ARRAY_LEN(compute_dtypes); c++) {
        enum aq_dtype compute = compute_dtypes[c];
        size_t slot = compute == AQ_F32 ? KC_SLOT(product_f32) : KC_SLOT(product_bf16);
        for (size_t d = 0; d < AQ_ARRAY_LEN(w_dtypes); d++) {
            for (size_t i = 0; i < AQ_ARRAY_LEN(matrices); i++) {
                const struct matrix *w = &matrices[i];
                if (w_dtypes[d] != compute && (w->n != 8192 || w->k != 2048))
                    continue; /* one shape tells what converting costs */
                for (size_t r = 0; r < AQ_ARRAY_LEN(bench_rows); r++) {
                    if (kc_bench_begin(kc, slot, "product_%s_w_%s_n%u_k%u_m%u",
                                       aq_dtype_name(compute), aq_dtype_name(w_dtypes[d]), w->n,
                                       w->k, bench_rows[r]))
                        bench_one(kc, compute, w_dtypes[d], w, bench_rows[r]);
                }
            }
        }
    }
}

const struct kc_check kc_check_product = {.name = "product", .check = check, .bench = bench};
