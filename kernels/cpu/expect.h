/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/expect.h - what keys are worth by the attention that queries to come are expected to
 * give them, in plain C: compiled for each instruction set.  Every loop runs over channels, whose
 * sums stay apart, or keeps eight sums, so that all versions give the same bits. */
#ifndef AQ_KERNELS_CPU_EXPECT_H
#define AQ_KERNELS_CPU_EXPECT_H

#include "kernels/cpu/versions.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { EXPECT_PARTS = 8, EXPECT_WINDOW = 64, EXPECT_ROWS = 4 };

struct expect_job {
    const struct aq_kv_expected *e;
};

/* Turned back by the angles of a row of `dims` cosines and sines, and multiplied by `by` there. */
static inline void expect_back(const struct aq_kv_expected *e, float *restrict to,
                               const float *restrict x, const float *restrict turn, float by)
{
    uint32_t half = e->dims / 2;
    for (uint32_t d = 0; d < half; d++) {
        float c = turn[d] * by, s = turn[half + d] * by;
        to[d] = x[d] * c + x[half + d] * s;
        to[half + d] = x[half + d] * c - x[d] * s;
    }
    for (uint32_t d = e->dims; d < e->head_dim; d++)
        to[d] = x[d];
}

/* A query as it was before its position turned it. */
static inline void expect_query(const struct aq_kv_expected *e, float *to, uint32_t head,
                                uint32_t i)
{
    const float *q = e->q + i * e->q_stride + (size_t)head * e->head_dim, *turn = NULL;
    uint32_t row = e->turn_first + i;
    if (e->dims)
        turn =
            e->turn + row / AQ_PANEL_ROWS * e->turn_panel + (size_t)(row % AQ_PANEL_ROWS) * e->dims;
    expect_back(e, to, q, turn, e->unscale);
}

static inline float expect_dot(const float *x, const float *y, uint32_t dim)
{
    float part[EXPECT_PARTS] = {0};
    uint32_t d = 0;
    for (; d + EXPECT_PARTS <= dim; d += EXPECT_PARTS) {
        for (uint32_t i = 0; i < EXPECT_PARTS; i++)
            part[i] += x[d + i] * y[d + i];
    }
    for (uint32_t i = 0; d + i < dim; i++)
        part[i] += x[d + i] * y[d + i];
    for (uint32_t half = EXPECT_PARTS / 2; half; half /= 2) {
        for (uint32_t i = 0; i < half; i++)
            part[i] += part[i + half];
    }
    return part[0];
}

/* mean = the mean of queries [skip, len); row and window are room. */
static inline void expect_mean(const struct aq_kv_expected *e, uint32_t head, float *restrict mean,
                               float *restrict row, float *restrict window)
{
    memset(mean, 0, e->head_dim * sizeof(*mean));
    for (uint32_t first = e->skip; first < e->len; first += EXPECT_WINDOW) {
        uint32_t end = (uint32_t)aq_min_u64((uint64_t)first + EXPECT_WINDOW, e->len);
        memset(window, 0, e->head_dim * sizeof(*window));
        for (uint32_t i = first; i < end; i++) {
            expect_query(e, row, head, i);
            for (uint32_t d = 0; d < e->head_dim; d++)
                window[d] += row[d];
        }
        for (uint32_t d = 0; d < e->head_dim; d++)
            mean[d] += window[d];
    }
    for (uint32_t d = 0; d < e->head_dim; d++)
        mean[d] /= (float)(e->len - e->skip);
}

/* cov[a][b] = the mean of the products of channels, less their means; c is room for four rows. */
static inline void expect_covariance(const struct aq_kv_expected *e, uint32_t head,
                                     const float *restrict mean, float *restrict cov,
                                     float *restrict c)
{
    uint32_t dim = e->head_dim;
    memset(cov, 0, (size_t)dim * dim * sizeof(*cov));
    for (uint32_t i = e->skip; i < e->len; i += EXPECT_ROWS) {
        for (uint32_t r = 0; r < EXPECT_ROWS; r++) {
            float *row = c + (size_t)r * dim;
            if (i + r < e->len)
                expect_query(e, row, head, i + r);
            for (uint32_t d = 0; d < dim; d++)
                row[d] = i + r < e->len ? row[d] - mean[d] : 0;
        }
        const float *c0 = c, *c1 = c + dim, *c2 = c + 2 * (size_t)dim, *c3 = c + 3 * (size_t)dim;
        for (uint32_t a = 0; a < dim; a++) {
            float *restrict to = cov + (size_t)a * dim;
            for (uint32_t b = 0; b < dim; b++)
                to[b] += (c0[a] * c0[b] + c1[a] * c1[b]) + (c2[a] * c2[b] + c3[a] * c3[b]);
        }
    }
    for (size_t i = 0; i < (size_t)dim * dim; i++)
        cov[i] /= (float)(e->len - e->skip);
}

/* The logarithms of what keys are expected to get, up to what is the same for all. */
static inline void expect_logits(const struct aq_kv_expected *e, uint32_t head,
                                 const float *restrict mean, const float *restrict cov,
                                 float *restrict t, float *restrict y, float *restrict worth)
{
    uint32_t dim = e->head_dim;
    const float *k = e->k + (size_t)(head / e->q_per_kv) * dim;
    for (uint32_t j = e->skip; j < e->len; j += EXPECT_ROWS) {
        uint32_t rows = e->len - j < EXPECT_ROWS ? e->len - j : EXPECT_ROWS;
        for (uint32_t r = 0; r < EXPECT_ROWS; r++) /* behind the last one it is that once more */
            expect_back(e, t + (size_t)r * dim, k + (j + (r < rows ? r : 0)) * e->kv_stride,
                        e->ahead, 1);
        memset(y, 0, (size_t)EXPECT_ROWS * dim * sizeof(*y));
        float *restrict y0 = y, *restrict y1 = y + dim, *restrict y2 = y + 2 * (size_t)dim,
                        *restrict y3 = y + 3 * (size_t)dim;
        for (uint32_t a = 0; a < dim; a++) {
            const float *from = cov + (size_t)a * dim;
            float t0 = t[a], t1 = t[dim + a], t2 = t[2 * (size_t)dim + a],
                  t3 = t[3 * (size_t)dim + a];
            for (uint32_t b = 0; b < dim; b++) {
                y0[b] += t0 * from[b];
                y1[b] += t1 * from[b];
                y2[b] += t2 * from[b];
                y3[b] += t3 * from[b];
            }
        }
        for (uint32_t r = 0; r < rows; r++) {
            const float *key = t + (size_t)r * dim;
            worth[j + r] = e->scale * expect_dot(mean, key, dim) +
                           e->scale * e->scale / 2 * expect_dot(key, y + (size_t)r * dim, dim);
        }
    }
}

static inline void expect_softmax(const struct aq_kv_expected *e, float *worth)
{
    float most = -INFINITY, sum = 0;
    for (uint32_t j = e->skip; j < e->len; j++)
        most = worth[j] > most ? worth[j] : most;
    for (uint32_t first = e->skip; first < e->len; first += EXPECT_WINDOW) {
        uint32_t end = (uint32_t)aq_min_u64((uint64_t)first + EXPECT_WINDOW, e->len);
        float window = 0;
        for (uint32_t j = first; j < end; j++)
            window += worth[j] = expf(worth[j] - most);
        sum += window;
    }
    for (uint32_t j = e->skip; j < e->len; j++)
        worth[j] /= sum;
}

/* A tile is a query head. */
static void expect_head(void *arg, uint32_t head, uint32_t worker)
{
    const struct aq_kv_expected *e = ((const struct expect_job *)arg)->e;
    size_t dim = e->head_dim;
    float *cov = e->room + head * (dim + AQ_KV_EXPECTED_ROWS) * dim, *mean = cov + dim * dim;
    float *worth = e->worth + (size_t)head * e->stride;
    (void)worker;
    expect_mean(e, head, mean, mean + dim, mean + 2 * dim);
    expect_covariance(e, head, mean, cov, mean + dim);
    expect_logits(e, head, mean, cov, mean + dim, mean + (1 + EXPECT_ROWS) * dim, worth);
    expect_softmax(e, worth);
}

/* A tile is a KV head. */
static void expect_group(void *arg, uint32_t head, uint32_t worker)
{
    const struct aq_kv_expected *e = ((const struct expect_job *)arg)->e;
    const float *worth = e->worth + (size_t)head * e->q_per_kv * e->stride;
    float *value = e->value + (size_t)head * e->stride;
    (void)worker;
    for (uint32_t j = 0; j < e->len; j++) {
        const float *v = e->v + j * e->kv_stride + (size_t)head * e->head_dim;
        float sum = 0;
        for (uint32_t g = 0; j >= e->skip && g < e->q_per_kv; g++)
            sum += worth[(size_t)g * e->stride + j];
        value[j] = sum / (float)e->q_per_kv * sqrtf(expect_dot(v, v, e->head_dim));
    }
}

static inline void expect_all(struct aq_exec *ex, const struct aq_kv_expected *e)
{
    struct expect_job job = {e};
    assert(e->skip < e->len && e->len <= e->stride && e->dims <= e->head_dim && e->q_per_kv >= 1);
    aq_pool_run(aq_exec_pool(ex), expect_head, &job, e->kv_heads * e->q_per_kv);
    aq_pool_run(aq_exec_pool(ex), expect_group, &job, e->kv_heads);
}

#endif
