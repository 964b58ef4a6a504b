/* SPDX-License-Identifier: Apache-2.0
 * Rotation of heads, reference: norms with f64 sums, pair after pair. */
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/versions.h"

#include <math.h>

static void norm_head(float *x, const float *w, const struct aq_rotate *r)
{
    double square = 0;
    for (uint32_t d = 0; d < r->head_dim; d++)
        square += (double)x[d] * x[d];
    double factor = 1 / sqrt(square / r->head_dim + (double)r->eps);
    for (uint32_t d = 0; d < r->head_dim; d++)
        x[d] = (float)(x[d] * factor * w[d]);
}

static void turn_head(float *x, const float *turn, uint32_t half)
{
    for (uint32_t d = 0; d < half; d++) {
        float a = x[d], b = x[d + half], c = turn[d], s = turn[d + half];
        x[d] = fmaf(c, a, -(s * b));
        x[d + half] = fmaf(c, b, s * a);
    }
}

static void rotate_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct aq_rotate *r = arg;
    for (uint32_t head = 0; head < r->q_heads + r->k_heads; head++) {
        float *x = r->x + row * r->x_stride + (size_t)head * r->head_dim;
        const float *w = head < r->q_heads ? r->w_q : r->w_k;
        if (w)
            norm_head(x, w, r);
        if (r->rotary_dim)
            turn_head(x, r->turn + (size_t)row * r->rotary_dim, r->rotary_dim / 2);
    }
}

void aq_rotate_ref(struct aq_exec *ex, const struct aq_rotate *r)
{
    aq_rotate_assert(r);
    aq_pool_run(aq_exec_pool(ex), rotate_row, (void *)r, r->rows);
}
