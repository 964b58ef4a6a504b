/* SPDX-License-Identifier: Apache-2.0
 * Small linear programs whose answers are known. */
#include "policy/lp.h"
#include "tests/test.h"

#include "base/prng.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static void a_corner_is_found(void **state)
{
    /* max 3 a + 5 b, a <= 4, 2 b <= 12, 3 a + 2 b <= 18: 36 at (2, 6). */
    struct aq_lp lp = {.columns = 2,
                       .rows = 2,
                       .cost = {-3, -5},
                       .high = {4, INFINITY},
                       .row_low = {-INFINITY, -INFINITY},
                       .row_high = {12, 18},
                       .at = {{0, 2}, {3, 2}}};
    double x[2], cost;
    assert_int_equal(aq_lp_solve(x, &cost, &lp, NULL), 0);
    assert_true(fabs(cost + 36) < 1e-9 && fabs(x[0] - 2) < 1e-9 && fabs(x[1] - 6) < 1e-9);
}

/* The least time of two that share work, the rows as the planner has them. */
static void work_is_shared_by_speed(void **state)
{
    struct aq_lp lp = {.columns = 3,
                       .rows = 3,
                       .cost = {0, 0, 1},
                       .high = {1, 1, INFINITY},
                       .row_low = {-INFINITY, -INFINITY, 1},
                       .row_high = {0, 0, 1},
                       .at = {{6, 0, -1}, {0, 3, -1}, {1, 1, 0}}};
    double x[3], cost;
    assert_int_equal(aq_lp_solve(x, &cost, &lp, NULL), 0);
    assert_true(fabs(x[0] - 1.0 / 3) < 1e-9 && fabs(cost - 2) < 1e-9);
    lp.high[0] = 0.25; /* a capacity */
    assert_int_equal(aq_lp_solve(x, &cost, &lp, NULL), 0);
    assert_true(fabs(x[0] - 0.25) < 1e-9 && fabs(cost - 2.25) < 1e-9);
}

static void what_cannot_be_is_said(void **state)
{
    struct aq_err err = {0};
    double x[1] = {7}, cost = 7;
    struct aq_lp none = {
        .columns = 1, .rows = 1, .high = {1}, .row_low = {2}, .row_high = {INFINITY}, .at = {{1}}};
    assert_int_equal(aq_lp_solve(x, &cost, &none, &err), -ERANGE);
    assert_non_null(strstr(err.text, "no solution"));
    struct aq_lp endless = {.columns = 1, .cost = {-1}, .high = {INFINITY}};
    assert_int_equal(aq_lp_solve(x, &cost, &endless, &err), -ERANGE);
    assert_true(x[0] == 7 && cost == 7);
}

/* Against all corners of random programs of two columns, and the same twice. */
static void random_programs_have_their_best_corner(void **state)
{
    uint32_t solved = 0;
    for (uint64_t i = 0; i < 200; i++) {
        struct aq_lp lp = {.columns = 2, .rows = 4, .high = {1, 1}};
        for (uint32_t c = 0; c < 2; c++)
            lp.cost[c] = (double)aq_prng_below(1, i, c, 21) - 10;
        for (uint32_t r = 0; r < 4; r++) {
            for (uint32_t c = 0; c < 2; c++)
                lp.at[r][c] = (double)aq_prng_below(1, i, 10 + 2 * r + c, 21) - 10;
            lp.row_low[r] = -INFINITY;
            lp.row_high[r] = (double)aq_prng_below(1, i, 30 + r, 12) - 3;
        }
        double x[2], again[2], cost, best = INFINITY;
        int rc = aq_lp_solve(x, &cost, &lp, NULL);
        for (double a = 0; a <= 1; a += 0.01) {
            for (double b = 0; b <= 1; b += 0.01) {
                bool in = true;
                for (uint32_t r = 0; r < 4; r++)
                    in &= lp.at[r][0] * a + lp.at[r][1] * b <= lp.row_high[r];
                best = in ? fmin(best, lp.cost[0] * a + lp.cost[1] * b) : best;
            }
        }
        if (rc < 0) {
            assert_true(isinf(best));
            continue;
        }
        solved++;
        assert_true(cost <= best + 1e-9);
        assert_true(isinf(best) || cost >= best - 0.5);
        for (uint32_t r = 0; r < 4; r++)
            assert_true(lp.at[r][0] * x[0] + lp.at[r][1] * x[1] <= lp.row_high[r] + 1e-6);
        assert_int_equal(aq_lp_solve(again, &cost, &lp, NULL), 0);
        assert_memory_equal(x, again, sizeof(x));
    }
    assert_true(solved > 50 && solved < 200);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_corner_is_found),
    cmocka_unit_test(work_is_shared_by_speed),
    cmocka_unit_test(what_cannot_be_is_said),
    cmocka_unit_test(random_programs_have_their_best_corner),
};

AQ_TEST_MAIN(tests)
