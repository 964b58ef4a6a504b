/* SPDX-License-Identifier: Apache-2.0
 * Norms: against the reference, in place, gathered, and a row alone against the same in batches. */
#include "kernels/cpu/panel.h"
#include "tests/kcheck/kcheck.h"

#include <math.h>
#include <stdlib.h>

static const uint32_t dims[] = {1, 2, 3, 8, 15, 16, 17, 31, 64, 65, 127, 128, 513, 2048, 5120};
static const char *const kind_names[] = {"layer", "rms", "cast"};

/* What rounding errors of y are a share of: those of x - mean (which the mean's own error and the
 * size of x decide), those of the result, and those of b's sum. */
static double *make_scale(const struct aq_norm *n)
{
    double *scale = calloc((size_t)n->rows * n->dim, sizeof(*scale));
    for (uint32_t r = 0; r < n->rows; r++) {
        const float *x = n->x + (n->row_index ? n->row_index[r] : r) * n->x_stride;
        double mean = 0, magnitude = 0, square = 0;
        for (uint32_t d = 0; d < n->dim; d++) {
            mean += x[d];
            magnitude += fabs(x[d]);
        }
        mean = n->kind == AQ_NORM_LAYER ? mean / n->dim : 0;
        magnitude = n->kind == AQ_NORM_LAYER ? magnitude / n->dim : 0;
        for (uint32_t d = 0; d < n->dim; d++)
            square += (x[d] - mean) * (x[d] - mean);
        double factor = 1 / sqrt(square / n->dim + n->eps);
        for (uint32_t d = 0; d < n->dim; d++) {
            double w = n->w ? fabs(n->w[d]) : 1, b = n->b ? fabs(n->b[d]) : 0;
            scale[(size_t)r * n->dim + d] =
                (magnitude + fabs(x[d] - mean) + fabs(mean)) * factor * w + b;
        }
    }
    return scale;
}

static struct kc_limit limit_of(const struct aq_norm *n, enum kc_fill fill)
{
    if (n->kind == AQ_NORM_CAST)
        return (struct kc_limit){.ulp = 0, .why = "a cast is exact, or rounds once"};
    /* 4 vectors of sums: dim / 32 roundings in each at least, alike where all x are. */
    double steps = fill == KC_CONSTANT ? n->dim / 32.0 + 8 : 2 * sqrt(n->dim / 32.0) + 8;
    return (struct kc_limit){
        .rel = steps * 0x1p-24,
        .ulp = n->y_dtype == AQ_BF16 ? 1 : 2,
        .abs = 0x1p-126,
        .why = "roundings of mean and variance, in 32 sums at least",
    };
}

static struct aq_norm make_norm(struct kc *kc, enum aq_norm_kind kind, enum aq_dtype y_dtype,
                                enum kc_fill fill, uint32_t rows, uint32_t dim)
{
    struct aq_norm n = {.kind = kind, .rows = rows, .dim = dim, .y_dtype = y_dtype};
    uint32_t x_rows = rows + kc_below(kc, 3);
    n.eps = 1e-5f;
    n.x_stride = dim + kc_below(kc, 4);
    n.y_stride = dim + kc_below(kc, 4);
    n.x = kc_in(kc, AQ_F32, fill, x_rows, dim, n.x_stride);
    n.w = kc_below(kc, 4) ? kc_in(kc, AQ_F32, KC_NORMAL, 1, dim, dim) : NULL;
    n.b = kc_below(kc, 4) ? kc_in(kc, AQ_F32, KC_NORMAL, 1, dim, dim) : NULL;
    if (kc_below(kc, 2)) {
        uint32_t *index = kc_bytes(kc, rows * sizeof(*index));
        for (uint32_t r = 0; r < rows; r++)
            index[r] = kc_below(kc, x_rows);
        n.row_index = index;
    }
    return n;
}

static void check_parity(struct kc *kc, struct aq_norm n, enum kc_fill fill)
{
    struct kc_out y = kc_out(kc, n.y_dtype, n.rows, n.dim, n.y_stride);
    n.y = y.ref;
    kc_ref(kc)->norm(kc_exec(kc, 0), &n);
    n.y = y.got;
    kc_new(kc)->norm(kc_exec(kc, 0), &n);
    if (n.kind == AQ_NORM_CAST) {
        kc_same(kc, &y);
        return;
    }
    double *scale = make_scale(&n);
    kc_near(kc, &y, scale, limit_of(&n, fill));
    free(scale);
}

/* Each row alone, in place, and with other numbers of threads is the row of the batch. */
static void check_rows(struct kc *kc, struct aq_norm n)
{
    n.row_index = NULL;
    n.y_stride = n.x_stride;
    struct kc_out y = kc_out(kc, n.y_dtype, n.rows, n.dim, n.y_stride);
    n.y = y.ref;
    kc_new(kc)->norm(kc_exec(kc, 1), &n);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        kc_out_reset(&y);
        for (uint32_t r = 0; r < n.rows;) {
            struct aq_norm part = n;
            part.rows = 1 + kc_below(kc, n.rows - r);
            part.x = n.x + r * n.x_stride;
            part.y = (char *)y.got + r * y.stride * aq_dtype_bytes(y.dtype);
            kc_new(kc)->norm(kc_exec(kc, threads), &part);
            r += part.rows;
        }
        kc_same(kc, &y);
    }
    if (n.y_dtype != AQ_F32)
        return;
    for (uint32_t r = 0; r < n.rows; r++) {
        for (uint32_t d = 0; d < n.dim; d++)
            ((float *)y.got)[r * y.stride + d] = n.x[r * n.x_stride + d];
    }
    n.x = y.got;
    n.y = y.got;
    kc_new(kc)->norm(kc_exec(kc, 0), &n);
    kc_same(kc, &y);
}

static void check(struct kc *kc)
{
    for (uint32_t kind = 0; kind < AQ_ARRAY_LEN(kind_names); kind++) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
            for (uint32_t fill = 0; fill <= KC_NONFINITE; fill++) {
                enum aq_dtype y_dtype = (i + fill) & 1 ? AQ_BF16 : AQ_F32;
                if (!kc_begin(kc, KC_SLOT(norm), "norm_%s_%s_%u_%s", kind_names[kind],
                              aq_dtype_name(y_dtype), dims[i], kc_fill_name(fill)))
                    continue;
                uint32_t rows = 1 + kc_below(kc, 20);
                struct aq_norm n = make_norm(kc, kind, y_dtype, fill, rows, dims[i]);
                check_parity(kc, n, fill);
                check_rows(kc, n);
            }
        }
    }
}

const struct kc_check kc_check_norm = {.name = "norm", .check = check};
