/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/reference/kivi.h"

#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* x[i * stride], i < 32: to the nearest of the values that codes stand for.  The scale is rounded
 * up to f16; the minimum is f16 as it is. */
static void quantise_group(double *x, size_t stride, uint32_t n, double codes)
{
    double lo = x[0], hi = x[0];
    for (uint32_t i = 1; i < n; i++) {
        lo = fmin(lo, x[i * stride]);
        hi = fmax(hi, x[i * stride]);
    }
    double exact = (hi - lo) / codes, scale = ref_round_f16(exact);
    if (scale < exact)
        scale = ref_round_f16(scale * (1 + 0x1p-10));
    for (uint32_t i = 0; i < n && scale > 0; i++)
        x[i * stride] = nearbyint((x[i * stride] - lo) / scale) * scale + lo;
}

void ref_kivi_quantise(struct ref_head *h, uint32_t coded, double codes)
{
    uint32_t dim = h->dim, at[32], count = 0, kept = 0;
    double *k = calloc((size_t)32 * dim, sizeof(*k));
    for (uint32_t j = 0; j < h->room && count < 32; j++) {
        if (h->kept[j] && kept++ >= coded)
            at[count++] = j;
    }
    assert_int_equal(count, 32);
    for (uint32_t i = 0; i < 32; i++)
        memcpy(k + (size_t)i * dim, h->k + (size_t)at[i] * dim, dim * sizeof(*k));
    for (uint32_t d = 0; d < dim; d++)
        quantise_group(k + d, dim, 32, codes);
    for (uint32_t i = 0; i < 32; i++) {
        memcpy(h->k + (size_t)at[i] * dim, k + (size_t)i * dim, dim * sizeof(*k));
        for (uint32_t d = 0; d < dim; d += 32)
            quantise_group(h->v + (size_t)at[i] * dim + d, 1, dim - d < 32 ? dim - d : 32, codes);
    }
    free(k);
}
