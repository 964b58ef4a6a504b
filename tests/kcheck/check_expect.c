/* SPDX-License-Identifier: Apache-2.0
 * What keys are worth to queries that are expected: the CPU's tables alone. */
#include "tests/kcheck/kcheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    uint32_t dim, dims, g, len, skip;
};

/* What is made for the kernel, its queries before they were turned among it. */
struct made {
    struct aq_kv_expected e;
    double *still; /* [len][heads][dim] */
};

/* x turned by row `turn` of cosines and sines. */
static void turned(double *to, const double *x, const float *turn, uint32_t dims, uint32_t dim)
{
    uint32_t half = dims / 2;
    memcpy(to, x, dim * sizeof(*to));
    for (uint32_t d = 0; d < half; d++) {
        to[d] = x[d] * turn[d] - x[half + d] * turn[half + d];
        to[half + d] = x[half + d] * turn[d] + x[d] * turn[half + d];
    }
}

/* exp(k.m + k.C k / 2) of each query head by its formula, with queries before they turned. */
static void set_formula(const struct made *m, struct kc_out *y)
{
    const struct aq_kv_expected *e = &m->e;
    uint32_t dim = e->head_dim, heads = e->kv_heads * e->q_per_kv, n = e->len - e->skip;
    double *mean = calloc(dim, sizeof(*mean)), *get = calloc(e->len, sizeof(*get));
    double *ahead = calloc((size_t)n * dim, sizeof(*ahead));
    for (uint32_t h = 0; h < e->kv_heads; h++)
        memset((float *)y->ref + (size_t)h * y->stride, 0, e->len * sizeof(float));
    for (uint32_t q = 0; q < heads; q++) {
        uint32_t h = q / e->q_per_kv;
        double most = -INFINITY, sum = 0;
        memset(mean, 0, dim * sizeof(*mean));
        for (uint32_t i = 0; i < n; i++) {
            turned(ahead + (size_t)i * dim, m->still + ((size_t)(e->skip + i) * heads + q) * dim,
                   e->ahead, e->dims, dim);
            for (uint32_t d = 0; d < dim; d++)
                mean[d] += ahead[(size_t)i * dim + d] / n;
        }
        for (uint32_t j = e->skip; j < e->len; j++) {
            const float *k = e->k + j * e->kv_stride + (size_t)h * dim;
            double first = 0, second = 0;
            for (uint32_t d = 0; d < dim; d++)
                first += k[d] * mean[d];
            for (uint32_t i = 0; i < n; i++) {
                double each = 0;
                for (uint32_t d = 0; d < dim; d++)
                    each += k[d] * (ahead[(size_t)i * dim + d] - mean[d]);
                second += each * each / n;
            }
            get[j] = e->scale * first + e->scale * e->scale / 2 * second;
            most = fmax(most, get[j]);
        }
        for (uint32_t j = e->skip; j < e->len; j++)
            sum += exp(get[j] - most);
        for (uint32_t j = e->skip; j < e->len; j++) {
            const float *v = e->v + j * e->kv_stride + (size_t)h * dim;
            double square = 0;
            for (uint32_t d = 0; d < dim; d++)
                square += (double)v[d] * v[d];
            ((float *)y->ref)[(size_t)h * y->stride + j] +=
                (float)(exp(get[j] - most) / sum / e->q_per_kv * sqrt(square));
        }
    }
    free(mean);
    free(get);
    free(ahead);
}

/* Queries and their table, which they are turned by in f64. */
static void make_queries(struct kc *kc, struct made *m, float *q, float *turn, float factor)
{
    struct aq_kv_expected *e = &m->e;
    uint32_t heads = e->kv_heads * e->q_per_kv, half = e->dims / 2;
    double *to = calloc(e->head_dim, sizeof(*to));
    for (uint32_t i = 0; i < e->len; i++) {
        uint32_t row = e->turn_first + i;
        float *at =
            turn + row / AQ_PANEL_ROWS * e->turn_panel + (size_t)(row % AQ_PANEL_ROWS) * e->dims;
        for (uint32_t d = 0; d < half; d++) {
            double angle = kc_below(kc, 6283) / 1000.0;
            at[d] = (float)cos(angle) * factor;
            at[half + d] = (float)sin(angle) * factor;
        }
        for (uint32_t h = 0; h < heads; h++) {
            double *still = m->still + ((size_t)i * heads + h) * e->head_dim;
            float *x = q + i * e->q_stride + (size_t)h * e->head_dim;
            for (uint32_t d = 0; d < e->head_dim; d++)
                still[d] = (double)x[d];
            turned(to, still, at, e->dims, e->head_dim);
            for (uint32_t d = 0; d < e->head_dim; d++)
                x[d] = (float)to[d];
        }
    }
    free(to);
}

static void check_shape(struct kc *kc, const struct shape *s)
{
    uint32_t kv_heads = 1 + kc_below(kc, 3), heads = kv_heads * s->g;
    float factor = kc_below(kc, 2) ? 1 : 1.25F;
    struct made m = {.e = {.q_stride = heads * s->dim + kc_below(kc, 5),
                           .kv_stride = kv_heads * s->dim + kc_below(kc, 5),
                           .turn_first = kc_below(kc, 100),
                           .turn_panel = AQ_PANEL_ROWS * s->dims + 3,
                           .dims = s->dims,
                           .stride = s->len + kc_below(kc, 40),
                           .len = s->len,
                           .skip = s->skip,
                           .kv_heads = kv_heads,
                           .q_per_kv = s->g,
                           .head_dim = s->dim,
                           .scale = 1 / sqrtf((float)s->dim),
                           .unscale = 1 / (factor * factor)}};
    struct aq_kv_expected *e = &m.e;
    uint32_t panels = (e->turn_first + s->len) / AQ_PANEL_ROWS + 1;
    float *q = kc_in(kc, AQ_F32, KC_NORMAL, s->len, heads * s->dim, e->q_stride);
    float *turn = kc_in(kc, AQ_F32, KC_NORMAL, panels, (uint32_t)e->turn_panel, e->turn_panel);
    float *ahead = kc_in(kc, AQ_F32, KC_NORMAL, 1, s->dim, s->dim);
    m.still = calloc((size_t)s->len * heads * s->dim, sizeof(*m.still));
    e->q = q;
    e->turn = turn;
    e->ahead = ahead;
    e->k = kc_in(kc, AQ_F32, KC_NORMAL, s->len, kv_heads * s->dim, e->kv_stride);
    e->v = kc_in(kc, AQ_F32, KC_NORMAL, s->len, kv_heads * s->dim, e->kv_stride);
    for (uint32_t d = 0; d < s->dim; d++) /* means of cosines are at most 1 */
        ahead[d] = fmaxf(-1, fminf(1, ahead[d]));
    make_queries(kc, &m, q, turn, factor);
    e->worth = calloc((size_t)heads * e->stride, sizeof(*e->worth));
    e->room = calloc((size_t)heads * (s->dim + AQ_KV_EXPECTED_ROWS) * s->dim, sizeof(*e->room));
    struct kc_out y = kc_out(kc, AQ_F32, kv_heads, s->len, e->stride);
    set_formula(&m, &y);
    e->value = y.got;
    kc_new(kc)->kv_expected(kc_exec(kc, 0), e);
    kc_near(kc, &y, NULL,
            (struct kc_limit){.rel = 2e-6,
                              .why = "the exponential of a sum of some ten, which is rounded as "
                                     "often as there are channels and rows in 64"});
    e->value = y.ref;
    kc_ref(kc)->kv_expected(kc_exec(kc, 1), e);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        kc_out_reset(&y);
        e->value = y.got;
        kc_new(kc)->kv_expected(kc_exec(kc, threads), e);
        kc_same(kc, &y);
    }
    free(m.still);
    free(e->worth);
    free(e->room);
}

static void check(struct kc *kc)
{
    static const struct shape shapes[] = {
        {1, 0, 1, 2, 1},     {7, 2, 3, 33, 4},   {16, 16, 1, 1, 0},     {24, 0, 2, 150, 4},
        {64, 64, 4, 130, 4}, {80, 20, 2, 65, 0}, {128, 128, 1, 301, 4}, {33, 32, 2, 70, 3},
    };
    if (!kc_new(kc)->kv_expected)
        return;
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];
        if (kc_begin(kc, KC_SLOT(kv_expected), "kv_expected_d%u_r%u_x%u_%u", s->dim, s->dims, s->g,
                     s->len))
            check_shape(kc, s);
    }
}

const struct kc_check kc_check_expect = {.name = "expect", .check = check};
