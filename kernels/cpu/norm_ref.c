/* SPDX-License-Identifier: Apache-2.0
 * Norms, reference: f64 sums, two passes. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/versions.h"

#include <math.h>

static void norm_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct aq_norm *n = arg;
    const float *x = n->x + (n->row_index ? n->row_index[row] : row) * n->x_stride;
    double mean = 0, square = 0;
    if (n->kind == AQ_NORM_LAYER) {
        for (uint32_t d = 0; d < n->dim; d++)
            mean += x[d];
        mean /= n->dim;
    }
    for (uint32_t d = 0; d < n->dim; d++)
        square += (x[d] - mean) * (x[d] - mean);
    double factor = n->kind == AQ_NORM_CAST ? 1 : 1 / sqrt(square / n->dim + (double)n->eps);
    bool affine = n->kind != AQ_NORM_CAST;
    for (uint32_t d = 0; d < n->dim; d++) {
        double y = (x[d] - mean) * factor;
        if (affine && n->w)
            y *= n->w[d];
        if (n->kind == AQ_NORM_LAYER && n->b)
            y += n->b[d];
        aq_element_store(n->y, n->y_dtype, row * n->y_stride + d, (float)y);
    }
}

void aq_norm_ref(struct aq_exec *ex, const struct aq_norm *n)
{
    assert(n->dim >= 1 && (n->y_dtype == AQ_F32 || n->y_dtype == AQ_BF16));
    aq_pool_run(aq_exec_pool(ex), norm_row, (void *)n, n->rows);
}
