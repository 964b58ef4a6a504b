/* SPDX-License-Identifier: Apache-2.0
 * Products, reference: one output after the other, sums in f64, any layout; and the unpacking of
 * panels, element by element. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/versions.h"

#include <math.h>

/* GELU as in Hendrycks, Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415: exact, and its
 * tanh approximation; SiLU is x * sigmoid(x). */
static double activate(enum aq_activation a, double v)
{
    switch (a) {
    case AQ_ACT_NONE: return v;
    case AQ_ACT_RELU: return v > 0 || isnan(v) ? v : 0;
    case AQ_ACT_GELU: return 0.5 * v * erfc(-v * M_SQRT1_2);
    case AQ_ACT_GELU_TANH:
        /* 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)), without cancellation for very negative u */
        return v / (1.0 + exp(-2.0 * sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v)));
    case AQ_ACT_SILU: return v / (1.0 + exp(-v));
    }
    assert(!"a known activation");
    return v;
}

void aq_gemm_finish_one(const struct aq_product *p, uint32_t row, uint32_t column, double sum)
{
    float v = (float)activate(p->activation, p->bias ? sum + p->bias[column] : sum);
    size_t at = row * p->y_stride + column;
    if (p->combine == AQ_COMBINE_ADD)
        v += ((const float *)p->y)[at];
    else if (p->combine == AQ_COMBINE_MULTIPLY)
        v *= aq_element_load(p->y, p->y_dtype, at);
    aq_element_store(p->y, p->y_dtype, at, v);
}

void aq_gemm_finish_ref(const struct aq_gemm_finish *f)
{
    for (uint32_t r = 0; r < f->rows; r++) {
        for (uint32_t c = 0; c < f->columns; c++)
            aq_gemm_finish_one(f->p, f->row + r, f->column + c, f->sums[r * AQ_PANEL_ROWS + c]);
    }
}

static void run_panel(const struct aq_product *p, const struct aq_segment *s, uint32_t panel)
{
    const char *w = (const char *)s->panels + panel * aq_panel_bytes(p->w_dtype, p->k);
    uint32_t first = panel * AQ_PANEL_ROWS;
    for (uint32_t n = 0; n < AQ_PANEL_ROWS && first + n < s->rows; n++) {
        for (uint32_t r = 0; r < p->m; r++) {
            double sum = 0;
            for (uint32_t k = 0; k < p->k; k++) {
                float wk = aq_panel_load(w, p->w_dtype, p->w_layout, p->k, n, k);
                if (p->x_dtype == AQ_BF16)
                    wk = aq_f32_from_bf16(aq_bf16_from_f32(wk));
                sum += (double)aq_element_load(p->x, p->x_dtype, r * p->x_stride + k) * wk;
            }
            aq_gemm_finish_one(p, r, s->column + first + n, sum);
        }
    }
}

static void run_tile(void *arg, uint32_t tile, uint32_t worker)
{
    const struct aq_product *p = arg;
    const struct aq_segment *s = p->segments;
    while (tile >= aq_panel_count(s->rows)) {
        tile -= aq_panel_count(s->rows);
        s++;
    }
    run_panel(p, s, tile);
}

static void run(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->combine != AQ_COMBINE_ADD || p->y_dtype == AQ_F32);
    uint32_t panels = 0;
    for (uint32_t i = 0; i < p->segment_count; i++)
        panels += aq_panel_count(p->segments[i].rows);
    aq_pool_run(aq_exec_pool(ex), run_tile, (void *)p, panels);
}

void aq_product_f32_ref(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->x_dtype == AQ_F32);
    run(ex, p);
}

void aq_product_bf16_ref(struct aq_exec *ex, const struct aq_product *p)
{
    assert(p->x_dtype == AQ_BF16);
    run(ex, p);
}

static void unpack_panel(void *arg, uint32_t panel, uint32_t worker)
{
    const struct aq_unpack *u = arg;
    const char *src = (const char *)u->src + panel * aq_panel_bytes(u->src_dtype, u->k);
    char *dst = (char *)u->dst + panel * aq_panel_bytes(u->dst_dtype, u->k);
    enum aq_layout from = aq_layout_cpu(u->src_dtype), to = aq_layout_cpu(u->dst_dtype);
    for (uint32_t row = 0; row < AQ_PANEL_ROWS; row++) {
        for (uint32_t k = 0; k < u->k; k++)
            aq_element_store(dst, u->dst_dtype, aq_panel_index(to, u->k, row, k),
                             aq_panel_load(src, u->src_dtype, from, u->k, row, k));
        if (u->k % 2 && u->dst_dtype == AQ_BF16)
            aq_element_store(dst, AQ_BF16, aq_panel_index(to, u->k, row, u->k), 0);
    }
}

void aq_unpack_ref(struct aq_exec *ex, const struct aq_unpack *u)
{
    assert(u->dst_dtype == AQ_F32 || u->dst_dtype == AQ_BF16);
    aq_pool_run(aq_exec_pool(ex), unpack_panel, (void *)u, u->panels);
}
