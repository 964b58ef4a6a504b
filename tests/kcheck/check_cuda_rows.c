/* SPDX-License-Identifier: Apache-2.0
 * Row operations that only a device has: what follows a product, weights to row-major matrices, and
 * results in f16. */
#include "kernels/cpu/panel.h"
#include "tests/kcheck/kc_cuda.h"

#include <math.h>
#include <stdlib.h>

static const enum aq_dtype dtypes[] = {AQ_F32, AQ_F16, AQ_BF16};
static const enum aq_dtype formats[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};

/* ---- bias, activation, residual ---- */

/* In f64: the formulas of kernels/cpu/gemm_ref.c, stated again. */
static double activated(enum aq_activation a, double v)
{
    switch (a) {
    case AQ_ACT_RELU: return v < 0 ? 0 : v;
    case AQ_ACT_GELU: return v * 0.5 * erfc(-v / sqrt(2));
    case AQ_ACT_GELU_TANH: return v * 0.5 * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case AQ_ACT_SILU: return v / (1 + exp(-v));
    default: return v;
    }
}

static void check_finish(struct kc *kc, struct aq_cuda_finish f, enum kc_fill fill)
{
    uint32_t step = kc_below(kc, 2) ? 8 : 1; /* in units that are read at once, and not */
    f.x_stride = f.columns + step * kc_below(kc, 4);
    f.y_stride = f.columns + step * kc_below(kc, 4);
    f.x = kc_in(kc, f.x_dtype, fill, f.rows, f.columns, f.x_stride);
    f.bias = kc_below(kc, 3) ? kc_in(kc, AQ_F32, KC_NORMAL, 1, f.columns, f.columns) : NULL;
    struct kc_out y = kc_out(kc, f.y_dtype, f.rows, f.columns, f.y_stride);
    kc_out_set(&y, kc_in(kc, f.y_dtype, KC_NORMAL, f.rows, f.columns, f.y_stride));
    f.y = y.got;
    double *scale = calloc((size_t)f.rows * f.columns, sizeof(*scale));
    for (uint32_t r = 0; r < f.rows; r++) {
        for (uint32_t c = 0; c < f.columns; c++) {
            double x = (double)aq_element_load(f.x, f.x_dtype, r * f.x_stride + c);
            double bias = f.bias ? f.bias[c] : 0, v = activated(f.activation, x + bias);
            double before = aq_element_load(y.ref, f.y_dtype, r * f.y_stride + c);
            double times = f.combine == AQ_COMBINE_MULTIPLY ? before : 1;
            double more = f.combine == AQ_COMBINE_ADD ? before : 0;
            aq_element_store(y.ref, f.y_dtype, r * f.y_stride + c, (float)(v * times + more));
            /* A tail of exp moves by its argument's roundings. */
            scale[(size_t)r * f.columns + c] =
                (fabs(x) + fabs(bias)) * (f.activation > AQ_ACT_RELU ? 4 : 1) * fabs(times) +
                fabs(more);
        }
    }
    kc_cuda_done(kc_cuda_kernels()->finish(kc_cuda(), &f));
    kc_near(
        kc, &y, scale,
        (struct kc_limit){.rel = 0x1p-23, .ulp = 1, .why = "sums and exp of f32, rounded once"});
    free(scale);
}

static void check_finishes(struct kc *kc)
{
    static const uint32_t columns[] = {1, 31, 32, 33, 200, 1500};
    static const char *const names[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};
    for (uint32_t act = 0; act < AQ_ARRAY_LEN(names); act++) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(columns); i++) {
            for (size_t d = 0; d < 9; d++) {
                struct aq_cuda_finish f = {.x_dtype = dtypes[d / 3],
                                           .y_dtype = dtypes[d % 3],
                                           .activation = (enum aq_activation)act,
                                           .columns = columns[i],
                                           .combine = (uint32_t)((act + i + d) % 3)};
                static const enum kc_fill fills[] = {KC_NORMAL, KC_HEAVY, KC_ZERO, KC_NORMAL};
                enum kc_fill fill = fills[(act + i + d) % 4];
                if (!kc_begin(kc, KC_CUDA_SLOT, "finish_%s_%s_%s_%u_%s", names[act],
                              aq_dtype_name(f.x_dtype), aq_dtype_name(f.y_dtype), columns[i],
                              kc_fill_name(fill)))
                    continue;
                f.rows = 1 + kc_below(kc, 6);
                check_finish(kc, f, fill);
            }
        }
    }
}

/* ---- weights ---- */

static void check_unpack(struct kc *kc, enum aq_dtype src, enum aq_dtype dst, uint32_t k)
{
    enum aq_layout layout = aq_dtype_is_quantised(src) ? AQ_LAYOUT_GROUP64 : AQ_LAYOUT_ROWS;
    struct aq_cuda_unpack u = {.src_dtype = src, .dst_dtype = dst, .k = k};
    u.rows = 1 + kc_below(kc, 150);
    u.dst_stride = k + kc_below(kc, 5);
    size_t panel_bytes = aq_panel_bytes(src, k);
    enum aq_dtype source = kc_source(src);
    enum kc_fill fill = (enum kc_fill)kc_below(kc, KC_FINITE_COUNT);
    const char *w = kc_in(kc, source, fill, u.rows, k, k);
    char *panels = kc_bytes(kc, aq_panel_count(u.rows) * panel_bytes);
    struct kc_out y = kc_out(kc, dst, u.rows, k, u.dst_stride);
    for (uint32_t r = 0; r < u.rows; r += AQ_PANEL_ROWS) {
        char *panel = panels + r / AQ_PANEL_ROWS * panel_bytes;
        uint32_t n = (uint32_t)aq_min_u64(AQ_PANEL_ROWS, u.rows - r);
        kc_ref(kc)->pack_panel(panel, src, layout, w + (size_t)r * k * aq_dtype_bytes(source),
                               source, n, k);
        for (uint32_t i = 0; i < n * k; i++)
            aq_element_store(y.ref, dst, (r + i / k) * u.dst_stride + i % k,
                             aq_panel_load(panel, src, layout, k, i / k, i % k));
    }
    u.src = panels;
    u.dst = y.got;
    kc_cuda_done(kc_cuda_kernels()->unpack(kc_cuda(), &u));
    kc_same(kc, &y);
}

static void check_unpacks(struct kc *kc)
{
    static const uint32_t k_values[] = {1, 2, 15, 16, 33, 63, 64, 65, 130, 256, 328};
    for (size_t s = 0; s < AQ_ARRAY_LEN(formats); s++) {
        for (size_t d = 0; d < AQ_ARRAY_LEN(dtypes); d++) {
            for (size_t k = 0; k < AQ_ARRAY_LEN(k_values); k++) {
                if (kc_begin(kc, KC_CUDA_SLOT, "rows_%s_%s_k%u", aq_dtype_name(formats[s]),
                             aq_dtype_name(dtypes[d]), k_values[k]))
                    check_unpack(kc, formats[s], dtypes[d], k_values[k]);
            }
        }
    }
}

/* ---- a few rows against quantised weights ---- */

static void check_product(struct kc *kc, enum aq_dtype x_dtype, enum aq_dtype w_dtype, uint32_t m,
                          uint32_t k)
{
    static const enum kc_fill fills[] = {KC_NORMAL, KC_HEAVY, KC_POSITIVE, KC_OUTLIER, KC_ZERO};
    struct aq_cuda_exec ex = *kc_cuda();
    ex.sm = x_dtype == AQ_F16 && kc_below(kc, 2) ? 75 : kc_cuda()->sm;
    struct aq_cuda_codes_product p = {.x_dtype = x_dtype, .w_dtype = w_dtype, .m = m, .k = k};
    p.rows = 1 + kc_below(kc, 150);
    p.x_stride = k + kc_below(kc, 4);
    p.y_stride = p.rows + kc_below(kc, 4);
    enum kc_fill fill = fills[kc_below(kc, AQ_ARRAY_LEN(fills))];
    p.x = kc_in(kc, x_dtype, fill, m, k, p.x_stride);
    const float *w = kc_in(kc, AQ_F32, fills[kc_below(kc, 4)], p.rows, k, k);
    p.w = kc_panels(kc, w, AQ_F32, w_dtype, p.rows, k);
    struct kc_out y = kc_out(kc, AQ_F32, m, p.rows, p.y_stride);
    double *scale = calloc((size_t)m * p.rows, sizeof(*scale));
    for (uint32_t i = 0; i < m * p.rows; i++) {
        uint32_t r = i / p.rows, n = i % p.rows;
        const char *panel = (const char *)p.w + n / AQ_PANEL_ROWS * aq_panel_bytes(w_dtype, k);
        double sum = 0;
        for (uint32_t j = 0; j < k; j++) {
            uint32_t bits; /* as unpacked */
            aq_element_store(&bits, x_dtype, 0,
                             aq_panel_load(panel, w_dtype, AQ_LAYOUT_GROUP64, k, n % 64, j));
            double term = (double)aq_element_load(&bits, x_dtype, 0) *
                          aq_element_load(p.x, x_dtype, r * p.x_stride + j);
            sum += term;
            scale[i] += fabs(term);
        }
        aq_element_store(y.ref, AQ_F32, r * p.y_stride + n, (float)sum);
    }
    p.y = y.got;
    kc_cuda_done(kc_cuda_kernels()->product_codes(&ex, &p));
    kc_near(kc, &y, scale,
            (struct kc_limit){.rel = 0x1p-24 * (k / 8.0 + 16), .ulp = 1, .why = "f32 sums of k"});
    free(scale);
    struct kc_out one = kc_out(kc, AQ_F32, 1, p.rows, p.y_stride); /* a row alone: the same bits */
    uint32_t r = kc_below(kc, m);
    kc_out_set(&one, (float *)y.got + r * p.y_stride);
    p.x = (const uint16_t *)p.x + r * p.x_stride;
    p.m = 1;
    kc_out_reset(&one);
    p.y = one.got;
    kc_cuda_done(kc_cuda_kernels()->product_codes(&ex, &p));
    kc_same(kc, &one);
}

static void check_products(struct kc *kc)
{
    static const uint32_t m_values[] = {1, 7, 8, 9, 16, 17, 31, 33, 64};
    static const uint32_t k_values[] = {1, 15, 16, 17, 64, 65, 200, 513, 1100};
    for (size_t d = 0; d < 4; d++) {
        for (size_t m = 0; m < AQ_ARRAY_LEN(m_values); m++) {
            for (size_t k = 0; k < AQ_ARRAY_LEN(k_values); k++) {
                enum aq_dtype x = dtypes[1 + d % 2], w = formats[3 + d / 2];
                if (x == AQ_BF16 && kc_cuda()->sm < 80)
                    continue; /* its tensor cores do not multiply bf16 */
                if (kc_begin(kc, KC_CUDA_SLOT, "product_codes_%s_%s_m%u_k%u", aq_dtype_name(x),
                             aq_dtype_name(w), m_values[m], k_values[k]))
                    check_product(kc, x, w, m_values[m], k_values[k]);
            }
        }
    }
}

/* ---- f16 ---- */

/* A kernel that rounds its result once gives in f16 what rounding its f32 result gives. */
static void check_norm_f16(struct kc *kc, enum aq_norm_kind kind, uint32_t dim)
{
    struct aq_norm n = {.kind = kind, .rows = 3, .dim = dim, .eps = 1e-5f};
    n.x_stride = n.y_stride = dim;
    n.x = kc_in(kc, AQ_F32, KC_HEAVY, n.rows, dim, dim);
    n.w = kc_in(kc, AQ_F32, KC_NORMAL, 1, dim, dim);
    struct kc_out y = kc_out(kc, AQ_F16, n.rows, dim, dim);
    float *wide = kc_bytes(kc, (size_t)n.rows * dim * sizeof(*wide));
    n.y = wide;
    n.y_dtype = AQ_F32;
    kc_cuda_done(kc_cuda_kernels()->norm(kc_cuda(), &n));
    for (uint32_t i = 0; i < n.rows * dim; i++)
        aq_element_store(y.ref, AQ_F16, i, wide[i]);
    n.y = y.got;
    n.y_dtype = AQ_F16;
    kc_cuda_done(kc_cuda_kernels()->norm(kc_cuda(), &n));
    kc_same(kc, &y);
}

static void check_halves(struct kc *kc)
{
    static const uint32_t dims[] = {1, 31, 64, 300};
    for (uint32_t kind = 0; kind <= AQ_NORM_CAST; kind++) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
            if (kc_begin(kc, KC_CUDA_SLOT, "norm_f16_%u_%u", kind, dims[i]))
                check_norm_f16(kc, (enum aq_norm_kind)kind, dims[i]);
        }
    }
}

/* ---- pieces ---- */

/* In an order of their own, with gaps between them that stay as they are. */
static void check_pieces(struct kc *kc, uint32_t count, uint32_t unit, uint32_t most)
{
    struct aq_copy_piece *piece = kc_bytes(kc, count * sizeof(*piece));
    uint32_t room = (most + 2) * unit, bytes = count * room;
    const uint8_t *from = kc_in(kc, AQ_F32, KC_NORMAL, 1, bytes / 4 + 4, bytes / 4 + 4);
    struct kc_out to = kc_out(kc, AQ_F32, 1, bytes / 4 + 4, bytes / 4 + 4);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (i * 7 % count) * room + kc_below(kc, 2) * unit;
        uint32_t src = i * room + kc_below(kc, 2) * unit;
        piece[i] = (struct aq_copy_piece){(uint8_t *)to.got + at, from + src,
                                          kc_below(kc, most + 1) * unit};
        memcpy((uint8_t *)to.ref + at, from + src, piece[i].bytes);
    }
    kc_cuda_done(kc_cuda_kernels()->copy_pieces(kc_cuda(), piece, count));
    kc_same(kc, &to);
}

static void check_all_pieces(struct kc *kc)
{
    static const uint32_t counts[] = {1, 2, 9, 65, 5000}, units[] = {16, 4, 1, 2};
    for (size_t c = 0; c < AQ_ARRAY_LEN(counts); c++) {
        for (size_t u = 0; u < AQ_ARRAY_LEN(units); u++) {
            if (kc_begin(kc, KC_CUDA_SLOT, "pieces_%u_of_%u", counts[c], units[u]))
                check_pieces(kc, counts[c], units[u], counts[c] > 100 ? 3 : 70);
        }
    }
}

static void check(struct kc *kc)
{
    check_all_pieces(kc);
    check_finishes(kc);
    check_unpacks(kc);
    check_products(kc);
    check_halves(kc);
}

const struct kc_check kc_check_cuda_rows = {.name = "cuda-rows", .check = check};
