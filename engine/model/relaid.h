/* SPDX-License-Identifier: Apache-2.0
 * engine/model/relaid.h - how far weights of a quantised checkpoint are from what it holds, once
 * they lie in a format of this engine.  Adds up what threads measure; knows no tensor. */
#ifndef AQ_ENGINE_MODEL_RELAID_H
#define AQ_ENGINE_MODEL_RELAID_H

#include "base/panel.h"

#include <pthread.h>

struct aq_relaid {
    pthread_mutex_t lock;
    uint64_t values;        /* 0: nothing yet */
    double largest;         /* error, as a share of the largest value of the 64 along K around it */
    double errors, squares; /* sums of squared errors and values */
};

/* A panel of the first `rows` of 64 rows. */
struct aq_laid_out {
    const void *panel;
    enum aq_dtype dtype;
    enum aq_layout layout;
    uint32_t rows, k;
};

void aq_relaid_open(struct aq_relaid *r);
void aq_relaid_close(struct aq_relaid *r);
/* values: f32 [rows][k]. */
void aq_relaid_measure(struct aq_relaid *r, const struct aq_laid_out *p, const float *values);
/* The sums so far, from which it begins anew; false when there is nothing. */
bool aq_relaid_take(struct aq_relaid *r, double *ret_largest, double *ret_rms);

#endif
