/* SPDX-License-Identifier: Apache-2.0
 * What a decoded token's queries read, from its description.  The kept keys, in the order of their
 * positions, are cut into pages of 32, of which the last may be open.  If there are no more than
 * `read` keys all are read.  Else the open page is, and so are the first and the last full one; and
 * as long as one more page does not exceed `read` keys, the full page that is worth most of those
 * left, of two that are worth the same the later.  A page's worth: for each query of the group the
 * sum over channels of the larger of q times the least and q times the greatest key of the page,
 * rounded outwards to f16, is no less than q times any key of it; exp of that, less the same of the
 * best full page, is summed over the queries. */
#include "tests/reference/reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 32 };

/* The f16 below or above x (or x), of numbers within f16's range. */
static double outwards(double x, bool up)
{
    int exponent;
    frexp(x, &exponent);
    double step = ldexp(1, (exponent < -13 ? -13 : exponent) - 11);
    return (up ? ceil(x / step) : floor(x / step)) * step;
}

/* Would a number that f32 has a little below or above x become another f16? */
static double step_in_doubt(double x, bool up)
{
    double off = 1e-5 * fabs(x) + 1e-9;
    return fabs(outwards(x + off, up) - outwards(x - off, up));
}

struct page {
    uint32_t key[PAGE]; /* positions */
};

/* The upper bound of q times the keys of a page; *doubt grows by what f32 may have otherwise. */
static double bound_of(const struct ref_head *h, const struct page *page, const double *q,
                       double *doubt)
{
    double sum = 0;
    for (uint32_t d = 0; d < h->dim; d++) {
        double least = INFINITY, greatest = -INFINITY;
        for (uint32_t i = 0; i < PAGE; i++) {
            double k = h->k[(size_t)page->key[i] * h->dim + d];
            least = fmin(least, k);
            greatest = fmax(greatest, k);
        }
        sum += fmax(q[d] * outwards(least, false), q[d] * outwards(greatest, true));
        *doubt += fabs(q[d]) * fmax(step_in_doubt(least, false), step_in_doubt(greatest, true));
    }
    return sum;
}

static void value_pages(struct ref_head *h, const struct page *page, uint32_t full, const double *q)
{
    double *bound = calloc(full, sizeof(*bound));
    assert(bound);
    memset(h->worth, 0, full * sizeof(*h->worth));
    h->doubt_of_worth = 0;
    for (uint32_t g = 0; g < h->group; g++) {
        double most = -INFINITY;
        for (uint32_t b = 0; b < full; b++) {
            double doubt = 0;
            bound[b] = bound_of(h, &page[b], q + (size_t)g * h->dim, &doubt);
            most = fmax(most, bound[b]);
            h->doubt_of_worth = fmax(h->doubt_of_worth, 2 * doubt);
        }
        for (uint32_t b = 0; b < full; b++)
            h->worth[b] += exp(bound[b] - most);
    }
    free(bound);
}

bool ref_read(const struct ref_policy *p, struct ref_head *h, const double *q, uint32_t t)
{
    uint32_t count = 0;
    memset(h->left, 0, h->room * sizeof(*h->left));
    for (uint32_t j = 0; j <= t; j++)
        count += h->kept[j];
    if (!p->read || count <= p->read)
        return false;
    struct page *page = calloc(count / PAGE + 1, sizeof(*page));
    bool *taken = calloc(count / PAGE + 1, sizeof(*taken));
    assert(page && taken);
    for (uint32_t j = 0, n = 0; j <= t; j++) {
        if (h->kept[j]) {
            page[n / PAGE].key[n % PAGE] = j;
            n++;
        }
    }
    uint32_t full = count / PAGE, reads = count % PAGE + 2 * PAGE;
    value_pages(h, page, full, q);
    taken[0] = taken[full - 1] = true;
    for (; reads + PAGE <= p->read; reads += PAGE) {
        uint32_t best = UINT32_MAX;
        for (uint32_t b = 0; b < full; b++) {
            if (!taken[b] && (best == UINT32_MAX || h->worth[b] >= h->worth[best]))
                best = b;
        }
        taken[best] = true;
    }
    for (uint32_t b = 0; b < full; b++) {
        for (uint32_t i = 0; i < PAGE && !taken[b]; i++)
            h->left[page[b].key[i]] = true;
    }
    free(page);
    free(taken);
    return true;
}
