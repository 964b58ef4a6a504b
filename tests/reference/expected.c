/* SPDX-License-Identifier: Apache-2.0
 * expected: what queries to come may give (Expected Attention, arXiv 2510.00636).  The prompt's
 * queries, but those of the first tokens, are taken for a sample of normal vectors, which later
 * positions turn.  A key gets exp(k.m + k.C k / 2) of such queries, all keys together 1; what it
 * gets counts by the length of its value.  The first tokens stay, and the `heavy` best. */
#include "tests/reference/reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static double length_of(const double *x, uint32_t dim)
{
    double square = 0;
    for (uint32_t d = 0; d < dim; d++)
        square += x[d] * x[d];
    return sqrt(square);
}

/* m and C of a query head, turned as positions to come do. */
static void look_at_queries(const struct ref_policy *p, const struct ref_head *h, uint32_t n,
                            uint32_t q, double *m, double *c)
{
    uint32_t d = h->dim;
    double *turned = calloc((size_t)n * d, sizeof(*turned));
    assert(turned);
    for (uint32_t i = p->sinks; i < n; i++) {
        const double *x = h->asked + ((size_t)i * h->group + q) * d;
        for (uint32_t a = 0; a < d; a++) {
            for (uint32_t b = 0; b < d; b++)
                turned[i * d + b] += x[a] * h->to_come[a * d + b];
        }
        for (uint32_t a = 0; a < d; a++)
            m[a] += turned[i * d + a] / (n - p->sinks);
    }
    for (uint32_t i = p->sinks; i < n; i++) {
        for (uint32_t a = 0; a < d; a++) {
            for (uint32_t b = 0; b < d; b++)
                c[a * d + b] +=
                    (turned[i * d + a] - m[a]) * (turned[i * d + b] - m[b]) / (n - p->sinks);
        }
    }
    free(turned);
}

void ref_expected_valued(const struct ref_policy *p, struct ref_head *h, uint32_t n)
{
    uint32_t d = h->dim;
    double *gets = calloc(n, sizeof(*gets));
    assert(gets);
    for (uint32_t j = 0; j < n; j++)
        h->score[j] = 0;
    for (uint32_t q = 0; q < h->group; q++) {
        double *m = calloc(d, sizeof(*m)), *c = calloc((size_t)d * d, sizeof(*c)), most = -1e300;
        double sum = 0;
        assert(m && c);
        look_at_queries(p, h, n, q, m, c);
        for (uint32_t j = p->sinks; j < n; j++) {
            const double *k = h->k + (size_t)j * d;
            gets[j] = 0;
            for (uint32_t a = 0; a < d; a++) {
                gets[j] += k[a] * m[a];
                for (uint32_t b = 0; b < d; b++)
                    gets[j] += k[a] * c[a * d + b] * k[b] / 2;
            }
            most = gets[j] > most ? gets[j] : most;
        }
        for (uint32_t j = p->sinks; j < n; j++)
            sum += exp(gets[j] - most);
        for (uint32_t j = p->sinks; j < n; j++)
            h->score[j] +=
                exp(gets[j] - most) / sum / h->group * length_of(h->v + (size_t)j * d, d);
        free(m);
        free(c);
    }
    free(gets);
}
