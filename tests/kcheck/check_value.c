/* SPDX-License-Identifier: Apache-2.0
 * What a prompt's keys are worth: against the formulas in f64, and every version against the bits
 * of the reference, with one thread and with many. */
#include "tests/kcheck/kcheck.h"

#include <math.h>
#include <stdlib.h>

/* ---- from column sums ---- */

/* The sum of query head g at key i, pooled as the call says: literally, in f64. */
static double pooled(const struct aq_kv_value *v, const double *x, uint32_t key)
{
    int64_t reach = v->pool_width / 2;
    double sum = 0, most = -INFINITY;
    if (!v->pool)
        return x[key];
    for (int64_t i = (int64_t)key - reach; i <= (int64_t)key + reach; i++) {
        double there = i < 0 || i >= v->len ? 0 : x[i];
        sum += there;
        if (i >= 0 && i < v->len)
            most = fmax(most, there);
    }
    return v->pool == AQ_KV_POOL_MAX ? most : sum / v->pool_width;
}

static double grouped(const struct aq_kv_value *v, const double *x, size_t stride)
{
    double sum = 0, most = -INFINITY;
    for (uint32_t g = 0; g < v->q_per_kv; g++) {
        sum += x[g * stride];
        most = fmax(most, x[g * stride]);
    }
    return v->group == AQ_ATTN_MAX_OF_SUMS ? most
           : v->group == AQ_ATTN_MEAN      ? sum / v->q_per_kv
                                           : sum;
}

/* to [len]: the values of a KV head. */
static void head_formula(const struct aq_kv_value *v, uint32_t head, double *to)
{
    size_t len = v->len;
    double *x = calloc(len * (v->q_per_kv + 1), sizeof(*x)), *one = x + len * v->q_per_kv;
    for (uint32_t g = 0; g < v->q_per_kv; g++) {
        for (uint32_t j = 0; j < len; j++)
            x[g * len + j] = v->sums[((size_t)head * v->q_per_kv + g) * v->stride + j];
    }
    if (v->pool_first) {
        double *p = calloc(len * v->q_per_kv, sizeof(*p));
        for (uint32_t g = 0; g < v->q_per_kv; g++) {
            for (uint32_t j = 0; j < len; j++)
                p[g * len + j] = pooled(v, x + g * len, j);
        }
        for (uint32_t j = 0; j < len; j++)
            to[j] = grouped(v, p + j, len);
        free(p);
    } else {
        for (uint32_t j = 0; j < len; j++)
            one[j] = grouped(v, x + j, len);
        for (uint32_t j = 0; j < len; j++)
            to[j] = pooled(v, one, j);
    }
    free(x);
}

static void set_formula(const struct aq_kv_value *v, struct kc_out *y)
{
    double *all = calloc((size_t)v->kv_heads * v->len, sizeof(*all));
    for (uint32_t h = 0; h < v->kv_heads; h++)
        head_formula(v, h, all + (size_t)h * v->len);
    for (uint32_t h = 0; h < v->kv_heads; h++) {
        for (uint32_t j = 0; j < v->len; j++) {
            double sum = 0;
            for (uint32_t i = 0; i < v->kv_heads; i++)
                sum += all[(size_t)i * v->len + j];
            double value = v->together ? sum : all[(size_t)h * v->len + j];
            ((float *)y->ref)[h * y->stride + j] = (float)value;
        }
    }
    free(all);
}

static struct aq_kv_value draw_value(struct kc *kc, uint32_t g, uint32_t len, enum kc_fill fill)
{
    static const enum aq_attn_group groups[] = {AQ_ATTN_SUM, AQ_ATTN_MEAN, AQ_ATTN_MAX_OF_SUMS};
    struct aq_kv_value v = {.stride = len + kc_below(kc, 40),
                            .len = len,
                            .kv_heads = 1 + kc_below(kc, 3),
                            .q_per_kv = g,
                            .group = groups[kc_below(kc, 3)],
                            .pool = (enum aq_kv_pool)kc_below(kc, 3),
                            .pool_width = 1 + 2 * kc_below(kc, kc_below(kc, 3) ? 5 : 64),
                            .pool_first = kc_below(kc, 2),
                            .together = kc_below(kc, 3) == 0};
    v.sums = kc_in(kc, AQ_F32, fill, v.kv_heads * g, len, v.stride);
    return v;
}

static void check_value(struct kc *kc, uint32_t g, uint32_t len)
{
    for (uint32_t draw = 0; draw < 8; draw++) {
        /* Sums of probabilities; of other numbers, too, some of them no numbers. */
        enum kc_fill fill = draw < 6 ? KC_POSITIVE : draw == 6 ? KC_DENORMAL : KC_NONFINITE;
        struct aq_kv_value v = draw_value(kc, g, len, fill);
        struct kc_out y = kc_out(kc, AQ_F32, v.kv_heads, len, v.stride);
        v.value = y.got;
        kc_new(kc)->kv_value(kc_exec(kc, 0), &v);
        if (fill == KC_POSITIVE) {
            set_formula(&v, &y);
            kc_near(kc, &y, NULL,
                    (struct kc_limit){.ulp = v.pool_width + 16 * 3,
                                      .why = "as many roundings of sums that only grow"});
        }
        v.value = y.ref;
        kc_ref(kc)->kv_value(kc_exec(kc, 1), &v);
        for (uint32_t threads = 1; threads <= 3; threads++) {
            kc_out_reset(&y);
            v.value = y.got;
            kc_new(kc)->kv_value(kc_exec(kc, threads), &v);
            if (fill == KC_NONFINITE) /* one NaN is like another */
                kc_near(kc, &y, NULL, (struct kc_limit){.why = "the same numbers"});
            else
                kc_same(kc, &y);
        }
    }
}

/* ---- from keys alone ---- */

static void set_key_formula(const struct aq_kv_key_value *v, struct kc_out *y, double *scale)
{
    double *sum = calloc(2 * v->head_dim, sizeof(*sum)), *size = sum + v->head_dim;
    for (uint32_t h = 0; h < v->kv_heads; h++) {
        const float *k = v->k + (size_t)h * v->head_dim;
        for (uint32_t d = 0; d < v->head_dim; d++)
            sum[d] = size[d] = 0;
        for (uint32_t pass = 0; pass < 2; pass++) {
            for (uint32_t j = 0; j < v->len; j++) {
                const float *key = k + j * v->k_stride;
                double square = 0, like = 0, most = 0;
                for (uint32_t d = 0; d < v->head_dim; d++)
                    square += (double)key[d] * key[d];
                double n = fmax(sqrt(square), 1e-12);
                for (uint32_t d = 0; d < v->head_dim; d++) {
                    sum[d] += pass ? 0 : key[d] / n;
                    size[d] += pass ? 0 : fabs(key[d] / n);
                    like += key[d] * sum[d];
                    most += fabs(key[d]) * size[d];
                }
                ((float *)y->ref)[h * y->stride + j] = (float)(v->diff ? -like / n : -n);
                scale[h * y->cols + j] = v->diff ? most / n : n;
            }
        }
    }
    free(sum);
}

static void check_keys(struct kc *kc, uint32_t dim, uint32_t len)
{
    static const enum kc_fill fills[] = {KC_NORMAL, KC_HEAVY, KC_OUTLIER, KC_CONSTANT, KC_ZERO};
    for (uint32_t draw = 0; draw < 2 * AQ_ARRAY_LEN(fills); draw++) {
        uint32_t heads = 1 + kc_below(kc, 3), columns = heads * dim;
        struct aq_kv_key_value v = {.k_stride = columns + kc_below(kc, 5),
                                    .stride = len + kc_below(kc, 40),
                                    .len = len,
                                    .kv_heads = heads,
                                    .head_dim = dim,
                                    .diff = draw % 2};
        v.k = kc_in(kc, AQ_F32, fills[draw / 2], len, columns, v.k_stride);
        struct kc_out y = kc_out(kc, AQ_F32, heads, len, v.stride);
        double *scale = calloc((size_t)heads * len, sizeof(*scale));
        v.value = y.got;
        kc_new(kc)->kv_key_value(kc_exec(kc, 0), &v);
        set_key_formula(&v, &y, scale);
        kc_near(kc, &y, scale,
                (struct kc_limit){.rel = (dim / 8 + 64 + len / 64 + 8) * 0x1p-23,
                                  .why = "as many roundings of partial sums"});
        free(scale);
        v.value = y.ref;
        kc_ref(kc)->kv_key_value(kc_exec(kc, 1), &v);
        for (uint32_t threads = 1; threads <= 3; threads++) {
            kc_out_reset(&y);
            v.value = y.got;
            kc_new(kc)->kv_key_value(kc_exec(kc, threads), &v);
            kc_same(kc, &y);
        }
    }
}

static void check(struct kc *kc)
{
    static const uint32_t lens[] = {1, 2, 33, 150, 512, 1300};
    for (uint32_t g = 1; g <= 16; g++) {
        uint32_t len = lens[g % AQ_ARRAY_LEN(lens)];
        if (kc_begin(kc, KC_SLOT(kv_value), "kv_value_x%u_%u", g, len))
            check_value(kc, g, len);
    }
    static const uint32_t dims[] = {1, 7, 16, 40, 64, 80, 128, 250};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
        uint32_t len = lens[(i + 2) % AQ_ARRAY_LEN(lens)];
        if (kc_begin(kc, KC_SLOT(kv_key_value), "kv_key_value_d%u_%u", dims[i], len))
            check_keys(kc, dims[i], len);
    }
}

const struct kc_check kc_check_value = {.name = "value", .check = check};
