/* SPDX-License-Identifier: Apache-2.0
 * The values that the page's sliders stop at. */
#include "engine/plan/grid.h"
#include "tests/test.h"

enum { GIB = 1 << 30, MIB = 1 << 20 };

static const struct aq_plan_axis memory = {.key = "host_memory", .name = "Memory", .unit = MIB},
                                 prompt = {.key = "prompt_len", .unit = 1, .length = true},
                                 gen = {.key = "gen_len", .unit = 1, .length = true};

static struct aq_plan_grid grid_of(uint64_t bytes, uint64_t prompt_tokens, uint64_t gen_tokens,
                                   uint64_t points, uint64_t context)
{
    struct aq_plan_grid g = {0};
    aq_plan_grid_add(&g, &memory, (struct aq_plan_level){bytes, bytes});
    aq_plan_grid_add(&g, &prompt, (struct aq_plan_level){prompt_tokens, prompt_tokens});
    aq_plan_grid_add(&g, &gen, (struct aq_plan_level){gen_tokens, gen_tokens});
    aq_plan_grid_grow(&g, points, context);
    return g;
}

static void there_are_never_more_points_than_allowed(void **state)
{
    (void)state;
    for (uint64_t points = 1; points <= 300; points++) {
        struct aq_plan_grid g = grid_of(8ull * GIB, 100, 50, points, 100000);
        assert_in_range(aq_plan_grid_points(&g), 1, points);
    }
    struct aq_plan_grid g = grid_of(8ull * GIB, 100, 50, 1000, 100000);
    assert_int_equal(aq_plan_grid_points(&g), 125); /* every level of each */
    g = grid_of(8ull * GIB, 100, 50, 24, 100000);
    assert_int_equal(aq_plan_grid_points(&g), 24);
}

static void levels_rise_and_hold_what_was_asked_for(void **state)
{
    (void)state;
    uint64_t odd = 8ull * GIB + 12345; /* no multiple of the unit, yet kept as it is */
    struct aq_plan_grid g = grid_of(odd, 100, 50, 1000, 100000);
    assert_int_equal(g.axis[0].level[g.axis[0].at].high, odd);
    assert_int_equal(g.axis[1].level[g.axis[1].at].high, 100);
    for (uint32_t a = 0; a < g.count; a++) {
        for (uint32_t l = 1; l < g.axis[a].count; l++) {
            uint64_t before = g.axis[a].level[l - 1].high;
            assert_in_range(g.axis[a].level[l].high, before * 5 / 4, UINT64_MAX);
        }
        for (uint32_t l = 0; l < g.axis[a].count; l++)
            assert_true(l == g.axis[a].at || g.axis[a].level[l].high % g.axis[a].unit == 0);
    }
}

static void lengths_stay_within_the_context(void **state)
{
    (void)state;
    for (uint64_t context = 150; context < 700; context += 7) {
        struct aq_plan_grid g = grid_of(GIB, 100, 50, 1000, context);
        uint64_t sum =
            g.axis[1].level[g.axis[1].count - 1].high + g.axis[2].level[g.axis[2].count - 1].high;
        assert_in_range(sum, 150, context);
    }
}

/* A context goes on behind the longest prompt. */
static void an_axis_has_a_longest_level_of_its_own(void **state)
{
    (void)state;
    for (uint64_t most = 100; most < 450; most += 7) {
        struct aq_plan_grid g = {0};
        struct aq_plan_axis axis = prompt;
        axis.most = most;
        aq_plan_grid_add(&g, &axis, (struct aq_plan_level){100, 100});
        aq_plan_grid_add(&g, &gen, (struct aq_plan_level){50, 50});
        aq_plan_grid_grow(&g, 1000, 100000);
        uint32_t last = g.axis[0].count - 1;
        assert_int_equal(g.axis[0].level[last].high, most < 200 ? 100 : most < 400 ? 200 : 400);
        assert_int_equal(g.axis[1].count, 5);
    }
}

static void small_lengths_give_fewer_levels_and_none_of_nothing(void **state)
{
    (void)state;
    struct aq_plan_grid g = grid_of(GIB, 1, 2, 1000, 100000);
    assert_int_equal(g.axis[1].level[0].high, 1);
    assert_int_equal(g.axis[1].count, 3); /* 1, 2 and 4 */
    assert_int_equal(g.axis[2].level[0].high, 1);
    assert_int_equal(g.axis[2].count, 4);
}

static void both_ends_of_a_range_are_scaled(void **state)
{
    (void)state;
    struct aq_plan_grid g = {0};
    aq_plan_grid_add(&g, &prompt, (struct aq_plan_level){100, 300});
    aq_plan_grid_grow(&g, 3, 600);
    assert_int_equal(g.axis[0].count, 3);
    assert_int_equal(g.axis[0].level[0].low, 50);
    assert_int_equal(g.axis[0].level[0].high, 150);
    assert_int_equal(g.axis[0].level[2].low, 200);
    assert_int_equal(g.axis[0].level[2].high, 600);
}

static void every_combination_comes_once_the_last_axis_fastest(void **state)
{
    (void)state;
    struct aq_plan_grid g = grid_of(8ull * GIB, 100, 50, 24, 100000);
    uint64_t count = aq_plan_grid_points(&g);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t at[AQ_PLAN_AXES_MAX];
        uint64_t back = 0;
        aq_plan_grid_at(at, &g, i);
        for (uint32_t a = 0; a < g.count; a++) {
            assert_in_range(at[a], 0, g.axis[a].count - 1);
            back = back * g.axis[a].count + at[a];
        }
        assert_int_equal(back, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_are_never_more_points_than_allowed),
        cmocka_unit_test(levels_rise_and_hold_what_was_asked_for),
        cmocka_unit_test(lengths_stay_within_the_context),
        cmocka_unit_test(an_axis_has_a_longest_level_of_its_own),
        cmocka_unit_test(small_lengths_give_fewer_levels_and_none_of_nothing),
        cmocka_unit_test(both_ends_of_a_range_are_scaled),
        cmocka_unit_test(every_combination_comes_once_the_last_axis_fastest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
