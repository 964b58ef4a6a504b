/* SPDX-License-Identifier: Apache-2.0
 * The single measurements of a machine, of one whose products take exactly as long as they
 * should. */
#include "engine/machine/rates_parts.h"
#include "tests/test.h"

#include <math.h>

enum { PANELS = 16 };
static const double flops_per_s = 1e11, bytes_per_s = 4e8;

static double now_s; /* of the clock, which the linker puts in the real one's place (--wrap) */
double __wrap_aq_clock_s(void);

double __wrap_aq_clock_s(void)
{
    return now_s;
}

/* Of the products since it was cleared: the largest one. */
static double flops_seen;

/* As long as arithmetic or memory takes, whichever is longer: all of the other is hidden. */
static void product(struct aq_exec *ex, const struct aq_product *p)
{
    double rows = p->segments->rows;
    double flops = 2.0 * p->m * rows * p->k;
    double bytes = rows / AQ_PANEL_ROWS * (double)aq_panel_bytes(p->w_dtype, p->k);
    flops_seen = fmax(flops_seen, flops);
    now_s += fmax(flops / flops_per_s, bytes / bytes_per_s);
}

static void shares(struct aq_sample ret[AQ_HW_ROWS], double flops_max)
{
    static uint8_t weights[1];
    struct aq_kernels kernels = {.isa = AQ_ISA_AVX2, .product_f32 = product};
    struct aq_rates_rig rig = {
        .kernels = &kernels, .threads = 1, .long_s = 0.02, .flops_max = flops_max};
    size_t bytes = PANELS * aq_panel_bytes(AQ_F32, AQ_RATES_K);
    struct aq_rates_products p = {.rig = &rig, .weights = weights, .weight_bytes = bytes};
    flops_seen = 0;
    aq_rates_product_shares(ret, &p, AQ_F32, AQ_F32, bytes, 1);
}

static void a_machine_that_does_as_promised_has_whole_shares(void **state)
{
    const double whole = 2.0 * AQ_RATES_ROWS * PANELS * AQ_PANEL_ROWS * AQ_RATES_K;
    for (int cut = 0; cut < 2; cut++) {
        struct aq_sample share[AQ_HW_ROWS];
        shares(share, cut ? 0.4 * whole : 0);
        for (int i = 0; i < AQ_HW_ROWS; i++) {
            if (!(fabs(share[i].median - 1) < 1e-6))
                fail_msg("%u rows reach %g of what was promised", aq_hw_rows[i], share[i].median);
        }
        /* Half of it are the columns whose computing is timed beside them. */
        assert_true(cut ? flops_seen <= 0.5 * whole : flops_seen == whole);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_machine_that_does_as_promised_has_whole_shares),
};

AQ_TEST_MAIN(tests)
