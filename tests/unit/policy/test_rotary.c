/* SPDX-License-Identifier: Apache-2.0
 * The rotary table against its formula, one number at a time. */
#include "policy/rotary.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 6, POSITIONS = 300 };

static float frequency[AQ_ROTARY_TABLES][DIMS / 2] = {{1, 0.31622777f, 0.01f}, {0.9f, 0.2f, 1e-3f}};

static struct aq_model_steps model(uint32_t long_from)
{
    return (struct aq_model_steps){.context = POSITIONS,
                                   .rotary = {.dims = DIMS,
                                              .long_from = long_from,
                                              .factor = {1, 1.25f},
                                              .frequency = {frequency[0], frequency[1]}}};
}

static struct aq_plan plan_of(uint32_t positions)
{
    return (struct aq_plan){.shape.positions_max = positions};
}

/* Row `at` of the whole table. */
static const float *row_of(const float *table, uint32_t at)
{
    size_t panel = aq_panel_bytes(AQ_F32, DIMS) / sizeof(float);
    return table + at / AQ_PANEL_ROWS * panel + at % AQ_PANEL_ROWS * DIMS;
}

static float *fill(const struct aq_model_steps *m, const struct aq_plan *p)
{
    size_t panel = aq_panel_bytes(AQ_F32, DIMS) / sizeof(float);
    uint64_t bytes = aq_rotary_bytes(m, p);
    float *table = calloc(1, bytes);
    assert_non_null(table);
    for (uint32_t i = 0; i < bytes / sizeof(float) / panel; i++)
        aq_rotary_fill(table + i * panel, m, p, i);
    return table;
}

static void rows_are_cosines_and_sines_of_rounded_angles(void **state)
{
    struct aq_model_steps m = model(100);
    struct aq_plan p = plan_of(POSITIONS);
    assert_int_equal(aq_rotary_rows(&m, &p), 2 * POSITIONS);
    float *table = fill(&m, &p);
    uint32_t rounded = 0;
    for (uint32_t t = 0; t < AQ_ROTARY_TABLES; t++) {
        for (uint32_t at = 0; at < POSITIONS; at++) {
            const float *row = row_of(table, t * POSITIONS + at);
            for (uint32_t d = 0; d < DIMS / 2; d++) {
                double exact = (double)at * (double)frequency[t][d];
                float angle = (float)exact; /* a product of two f32, rounded once */
                rounded += (double)angle != exact;
                float c = (float)cos((double)angle), s = (float)sin((double)angle);
                assert_true(row[d] == c * m.rotary.factor[t]);
                assert_true(row[DIMS / 2 + d] == s * m.rotary.factor[t]);
            }
        }
    }
    assert_true(rounded > 100); /* else the rounding of angles is not tested */
    free(table);
}

/* What attention sees of positions is the angle between two rows. */
static void behind_the_context_rows_are_as_far_apart_as_their_positions(void **state)
{
    enum { FAR = 1 << 20, APART = 7 };
    struct aq_model_steps m = model(0);
    struct aq_plan p = plan_of(FAR + POSITIONS);
    size_t panel = aq_panel_bytes(AQ_F32, DIMS) / sizeof(float);
    float *table = calloc(2, panel * sizeof(*table)), worst = 0;
    assert_non_null(table);
    for (uint32_t i = 0; i < 2; i++)
        aq_rotary_fill(table + i * panel, &m, &p, FAR / AQ_PANEL_ROWS + i);
    for (uint32_t at = 0; at < 64; at++) {
        const float *a = row_of(table, at), *b = row_of(table, at + APART);
        for (uint32_t d = 0; d < DIMS / 2; d++) {
            double c = (double)a[d] * b[d] + (double)a[DIMS / 2 + d] * b[DIMS / 2 + d];
            worst = fmaxf(worst, (float)fabs(c - cos(APART * (double)frequency[0][d])));
        }
    }
    assert_true(worst < 1e-6f); /* rounded angles: 0.03 */
    free(table);
}

static void the_second_frequencies_are_for_long_sequences(void **state)
{
    struct aq_model_steps m = model(100), plain = model(0), none = model(0);
    struct aq_plan p = plan_of(POSITIONS), few = plan_of(100);
    none.rotary.dims = 0;
    assert_int_equal(aq_rotary_first(&m, &p, 100), 0);
    assert_int_equal(aq_rotary_first(&m, &p, 101), POSITIONS);
    assert_int_equal(aq_rotary_first(&plain, &p, 1 << 20), 0);
    /* No sequence of this plan is long enough. */
    assert_int_equal(aq_rotary_rows(&m, &few), 100);
    assert_int_equal(aq_rotary_rows(&plain, &p), POSITIONS);
    assert_int_equal(aq_rotary_rows(&none, &p), 0);
    assert_true(aq_rotary_bytes(&none, &p) == 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rows_are_cosines_and_sines_of_rounded_angles),
    cmocka_unit_test(behind_the_context_rows_are_as_far_apart_as_their_positions),
    cmocka_unit_test(the_second_frequencies_are_for_long_sequences),
};

AQ_TEST_MAIN(tests)
