/* SPDX-License-Identifier: Apache-2.0
 * Rotation of heads: against the formula in f64, against the bits of the reference where no norm is
 * given, and a row alone against the same in batches. */
#include "tests/kcheck/kcheck.h"

#include <math.h>
#include <stdlib.h>

static const struct shape {
    uint32_t q_heads, k_heads, head_dim, rotary_dim;
} shapes[] = {
    {1, 1, 64, 64}, {32, 8, 128, 128}, {7, 1, 80, 80},  {3, 1, 96, 24},  {5, 3, 256, 256},
    {2, 2, 80, 20}, {9, 1, 128, 96},   {1, 0, 2, 2},    {0, 3, 40, 38},  {4, 1, 7, 6},
    {3, 3, 1, 0},   {2, 1, 64, 0},     {1, 1, 129, 66}, {16, 4, 12, 10}, {3, 2, 33, 2},
};
static const char *const norm_names[] = {"plain", "q", "k", "norms"};

struct problem {
    struct aq_rotate r;
    const float *x;   /* what r.x begins as */
    uint32_t columns; /* of a row, what lies behind the heads included */
    enum kc_fill fill;
};

static struct problem make_problem(struct kc *kc, const struct shape *s, uint32_t norms,
                                   enum kc_fill fill)
{
    struct problem p = {.fill = fill};
    uint32_t rows = 1 + kc_below(kc, 12), behind = kc_below(kc, 2) * s->k_heads * s->head_dim;
    p.columns = (s->q_heads + s->k_heads) * s->head_dim + behind;
    p.r = (struct aq_rotate){.x_stride = p.columns + kc_below(kc, 4),
                             .eps = 1e-6f,
                             .rows = rows,
                             .q_heads = s->q_heads,
                             .k_heads = s->k_heads,
                             .head_dim = s->head_dim,
                             .rotary_dim = s->rotary_dim};
    p.x = kc_in(kc, AQ_F32, fill, rows, p.columns, p.r.x_stride);
    if (s->rotary_dim)
        p.r.turn = kc_in(kc, AQ_F32, KC_NORMAL, rows, s->rotary_dim, s->rotary_dim);
    if (norms & 1)
        p.r.w_q = kc_in(kc, AQ_F32, KC_NORMAL, 1, s->head_dim, s->head_dim);
    if (norms & 2)
        p.r.w_k = kc_in(kc, AQ_F32, KC_NORMAL, 1, s->head_dim, s->head_dim);
    return p;
}

/* A head in f64, and what its rounding errors are a share of. */
static void rotate_head(const struct aq_rotate *r, const float *x, const float *w,
                        const float *turn, float *to, double *scale)
{
    double n[256], square = 0;
    uint32_t half = r->rotary_dim / 2;
    for (uint32_t d = 0; d < r->head_dim; d++)
        square += (double)x[d] * x[d];
    double factor = 1 / sqrt(square / r->head_dim + (double)r->eps);
    for (uint32_t d = 0; d < r->head_dim; d++) {
        n[d] = w ? x[d] * factor * w[d] : x[d];
        to[d] = (float)n[d];
        scale[d] = fabs(n[d]);
    }
    for (uint32_t d = 0; d < half; d++) {
        double a = n[d], b = n[d + half], c = turn[d], s = turn[d + half];
        to[d] = (float)(a * c - b * s);
        to[d + half] = (float)(b * c + a * s);
        scale[d] = fabs(a * c) + fabs(b * s);
        scale[d + half] = fabs(b * c) + fabs(a * s);
    }
}

static void expect_formula(struct kc *kc, const struct problem *p, struct kc_out *y)
{
    const struct aq_rotate *r = &p->r;
    double *scale = calloc((size_t)r->rows * p->columns, sizeof(*scale));
    for (uint32_t i = 0; i < r->rows * (r->q_heads + r->k_heads); i++) {
        uint32_t row = i / (r->q_heads + r->k_heads), head = i % (r->q_heads + r->k_heads);
        size_t at = (size_t)head * r->head_dim;
        rotate_head(r, p->x + row * r->x_stride + at, head < r->q_heads ? r->w_q : r->w_k,
                    r->turn ? r->turn + (size_t)row * r->rotary_dim : NULL,
                    (float *)y->ref + row * y->stride + at, scale + row * p->columns + at);
    }
    /* Sums of squares in 32 parts at least, which are alike where all numbers are. */
    double steps = p->fill == KC_CONSTANT ? r->head_dim / 32.0 : 2 * sqrt(r->head_dim / 32.0);
    bool norms = r->w_q || r->w_k;
    kc_near(kc, y, scale,
            (struct kc_limit){.rel = 0x1p-24 * (2 + (norms ? steps + 8 : 0)),
                              .ulp = 1,
                              .abs = 0x1p-126,
                              .why = norms ? "roundings of the mean square, of two products"
                                           : "a product rounded, then one fma"});
    free(scale);
}

static void check_problem(struct kc *kc, const struct problem *p)
{
    struct aq_rotate r = p->r;
    struct kc_out y = kc_out(kc, AQ_F32, r.rows, p->columns, r.x_stride);
    kc_out_set(&y, p->x);
    r.x = y.got;
    kc_new(kc)->rotate(kc_exec(kc, 0), &r);
    expect_formula(kc, p, &y);
    if (r.w_q || r.w_k || p->fill == KC_NONFINITE)
        return;
    kc_out_set(&y, p->x);
    r.x = y.ref;
    kc_ref(kc)->rotate(kc_exec(kc, 0), &r);
    r.x = y.got;
    kc_new(kc)->rotate(kc_exec(kc, 0), &r);
    kc_same(kc, &y);
}

/* Rows in parts, with other numbers of threads, are the rows of the batch. */
static void check_rows(struct kc *kc, const struct problem *p)
{
    struct aq_rotate r = p->r;
    struct kc_out y = kc_out(kc, AQ_F32, r.rows, p->columns, r.x_stride);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        kc_out_set(&y, p->x);
        r = p->r;
        r.x = y.ref;
        kc_new(kc)->rotate(kc_exec(kc, 1), &r);
        for (uint32_t row = 0; row < p->r.rows; row += r.rows) {
            r.rows = 1 + kc_below(kc, p->r.rows - row);
            r.x = (float *)y.got + row * y.stride;
            r.turn = p->r.turn ? p->r.turn + (size_t)row * r.rotary_dim : NULL;
            kc_new(kc)->rotate(kc_exec(kc, threads), &r);
        }
        kc_same(kc, &y);
    }
}

static void check(struct kc *kc)
{
    static const enum kc_fill fills[] = {KC_NORMAL, KC_HEAVY,    KC_OUTLIER,  KC_CONSTANT,
                                         KC_ZERO,   KC_DENORMAL, KC_NONFINITE};
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        for (uint32_t norms = 0; norms < AQ_ARRAY_LEN(norm_names); norms++) {
            for (size_t f = 0; f < AQ_ARRAY_LEN(fills); f++) {
                const struct shape *s = &shapes[i];
                if (!kc_begin(kc, KC_SLOT(rotate), "rotate_%s_h%u_%u_d%u_r%u_%s", norm_names[norms],
                              s->q_heads, s->k_heads, s->head_dim, s->rotary_dim,
                              kc_fill_name(fills[f])))
                    continue;
                struct problem p = make_problem(kc, s, norms, fills[f]);
                check_problem(kc, &p);
                check_rows(kc, &p);
            }
        }
    }
}

const struct kc_check kc_check_rotate = {.name = "rotate", .check = check};
