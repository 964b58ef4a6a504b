/* SPDX-License-Identifier: Apache-2.0
 * Products on codes, reference: the codes of x as codes.h defines them, those of W where they lie,
 * sums over groups in f64. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/versions.h"

#include <assert.h>

static float x_at(const struct aq_product *p, uint32_t row, uint32_t k)
{
    return aq_element_load(p->x, p->x_dtype, row * p->x_stride + k);
}

static struct aq_x_scale scale_at(const struct aq_product *p, uint32_t row, uint32_t k, uint32_t n)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        float v = fabsf(x_at(p, row, k + i));
        uint32_t bits;
        memcpy(&bits, &v, sizeof(bits));
        largest = bits > largest ? bits : largest;
    }
    return aq_x_scale_of(largest);
}

/* The sum of a group: rows `row` of x and n of a panel. */
static double group_sum(const struct aq_product *p, const void *panel, uint32_t row, uint32_t n,
                        uint32_t k)
{
    uint32_t count = (uint32_t)aq_min_u64(AQ_GROUP_K, p->k - k);
    struct aq_x_scale s = scale_at(p, row, k, count);
    struct aq_group g = aq_group_at(panel, p->w_dtype, p->k, k);
    double products = 0, codes = 0;
    for (uint32_t i = 0; i < count; i++) {
        double code = rintf(x_at(p, row, k + i) * s.inverse);
        products += code * aq_group_code(&g, p->w_dtype, n, i);
        codes += code;
    }
    return s.scale *
           (aq_f32_from_f16(g.scale[n]) * products + aq_f32_from_f16(g.minimum[n]) * codes);
}

struct ref_tile {
    const struct aq_product *p;
    const struct aq_segment *segment;
};

static void run_panel(const struct ref_tile *t, uint32_t panel)
{
    const struct aq_product *p = t->p;
    const char *w = (const char *)t->segment->panels + panel * aq_panel_bytes(p->w_dtype, p->k);
    uint32_t first = panel * AQ_PANEL_ROWS;
    uint32_t columns = (uint32_t)aq_min_u64(AQ_PANEL_ROWS, t->segment->rows - first);
    for (uint32_t r = 0; r < p->m; r++) {
        for (uint32_t n = 0; n < columns; n++) {
            double sum = 0;
            for (uint32_t k = 0; k < p->k; k += AQ_GROUP_K)
                sum += group_sum(p, w, r, n, k);
            aq_gemm_finish_one(p, r, t->segment->column + first + n, sum);
        }
    }
}

static void run_tile(void *arg, uint32_t tile, uint32_t worker)
{
    struct ref_tile t = {.p = arg};
    for (t.segment = t.p->segments; tile >= aq_panel_count(t.segment->rows); t.segment++)
        tile -= aq_panel_count(t.segment->rows);
    run_panel(&t, tile);
}

void aq_product_codes_ref(struct aq_exec *ex, const struct aq_product *p)
{
    assert(aq_dtype_is_quantised(p->w_dtype));
    uint32_t panels = 0;
    for (uint32_t i = 0; i < p->segment_count; i++)
        panels += aq_panel_count(p->segments[i].rows);
    aq_pool_run(aq_exec_pool(ex), run_tile, (void *)p, panels);
}
