/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/reference/prices.h"

#include "tests/test.h"

#include <math.h>
#include <string.h>

#define NEAR_TIE 1e-5 /* of two scores, relative */

bool near_tie(double a, double b)
{
    return fabs(a - b) <= NEAR_TIE * fmax(fabs(a), fabs(b));
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

uint32_t prices_of(const char *what, const struct ref_policy *p, const struct ref_head *h,
                   const bool *kept, uint32_t n, double *ret_last, double *ret_next)
{
    uint32_t older = n - p->recent, gone = 0, tail = n % 32 ? n % 32 : 32;
    double *sorted = malloc(older * sizeof(*sorted));
    assert_non_null(sorted);
    memcpy(sorted, h->score, older * sizeof(*sorted));
    qsort(sorted, older, sizeof(*sorted), rising);
    for (uint32_t j = 0; j < n; j++) {
        gone += !kept[j];
        assert_true(kept[j] || j < older);
    }
    *ret_last = gone ? sorted[gone - 1] : -INFINITY;
    uint32_t next = gone ? gone + 32 : tail;
    *ret_next = next <= older ? sorted[next - 1] : INFINITY;
    if (gone && gone % 32 != tail % 32)
        fail_msg("%s: the engine drops %u keys of %u", what, gone, n);
    for (uint32_t j = 0; j < older && gone; j++) {
        double border = kept[j] ? sorted[gone] : sorted[gone - 1];
        bool right = kept[j] ? h->score[j] >= border : h->score[j] <= border;
        if (gone < older && !right && !near_tie(h->score[j], border))
            fail_msg("%s: the engine %s key %u of score %.8g; the border is %.8g", what,
                     kept[j] ? "keeps" : "drops", j, h->score[j], border);
    }
    free(sorted);
    return gone ? (gone - tail) / 32 + 1 : 0;
}
