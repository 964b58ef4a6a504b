/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/relaid.h"

#include "kernels/cpu/panel.h"

#include <math.h>

void aq_relaid_open(struct aq_relaid *r)
{
    *r = (struct aq_relaid){0};
    pthread_mutex_init(&r->lock, NULL);
}

void aq_relaid_close(struct aq_relaid *r)
{
    pthread_mutex_destroy(&r->lock);
}

/* Compiled for each layout by itself: every weight of a model passes here. */
__attribute__((always_inline)) static inline void measure(struct aq_relaid *sum,
                                                          const struct aq_laid_out *p,
                                                          const float *values, enum aq_dtype dtype,
                                                          enum aq_layout layout)
{
    for (uint32_t first = 0; first < p->k; first += AQ_GROUP_K) { /* 64 x 64 stay in the cache */
        uint32_t end = (uint32_t)aq_min_u64(p->k, first + AQ_GROUP_K);
        for (uint32_t row = 0; row < p->rows; row++) {
            const float *want = values + (size_t)row * p->k;
            float size = 0, worst = 0, errors = 0, squares = 0;
            for (uint32_t k = first; k < end; k++) {
                float off = aq_panel_load(p->panel, dtype, layout, p->k, row, k) - want[k];
                float far = fabsf(off), wide = fabsf(want[k]);
                size = wide > size ? wide : size;
                worst = far > worst ? far : worst;
                errors += off * off;
                squares += want[k] * want[k];
            }
            if (size > 0)
                sum->largest = fmax(sum->largest, (double)worst / (double)size);
            sum->errors += (double)errors;
            sum->squares += (double)squares;
        }
    }
}

void aq_relaid_measure(struct aq_relaid *r, const struct aq_laid_out *p, const float *values)
{
    struct aq_relaid sum = {.values = (uint64_t)p->rows * p->k};
    if (p->dtype == AQ_BF16 && p->layout == AQ_LAYOUT_PAIR64)
        measure(&sum, p, values, AQ_BF16, AQ_LAYOUT_PAIR64);
    else if (p->dtype == AQ_F16 && p->layout == AQ_LAYOUT_COL64)
        measure(&sum, p, values, AQ_F16, AQ_LAYOUT_COL64);
    else if (p->dtype == AQ_Q8)
        measure(&sum, p, values, AQ_Q8, AQ_LAYOUT_GROUP64);
    else if (p->dtype == AQ_Q4)
        measure(&sum, p, values, AQ_Q4, AQ_LAYOUT_GROUP64);
    else
        measure(&sum, p, values, p->dtype, p->layout);
    pthread_mutex_lock(&r->lock);
    r->values += sum.values;
    r->largest = fmax(r->largest, sum.largest);
    r->errors += sum.errors;
    r->squares += sum.squares;
    pthread_mutex_unlock(&r->lock);
}

bool aq_relaid_take(struct aq_relaid *r, double *ret_largest, double *ret_rms)
{
    pthread_mutex_lock(&r->lock);
    bool any = r->values > 0;
    *ret_largest = r->largest;
    *ret_rms = r->squares > 0 ? sqrt(r->errors / r->squares) : 0;
    r->values = 0;
    r->largest = r->errors = r->squares = 0;
    pthread_mutex_unlock(&r->lock);
    return any;
}
