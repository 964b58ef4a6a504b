/* SPDX-License-Identifier: Apache-2.0
 * The families of tests/golden/families, as test_golden.c has OPT's variants: every kind of rotary
 * positions, windows, shared and wide heads, biases, fused tensors, both forms of residual. */
#include "tests/e2e/golden_rig.h"
#include "tests/test.h"

static const char *root(void)
{
    return test_data_path("../golden/families");
}

static void every_family_agrees_with_the_formulas(void **state)
{
    golden_for_each(root(), 24, golden_on_every_isa);
}

static void every_family_agrees_from_a_packed_store(void **state)
{
    golden_for_each(root(), 24, golden_from_a_store);
}

static uint32_t windowed;

static void in_every_place(const struct golden *g)
{
    windowed += golden_with_windows_in_every_place(g);
}

static void windows_agree_wherever_their_keys_are(void **state)
{
    golden_for_each(root(), 24, in_every_place);
    assert_int_equal(windowed, 4); /* Mistral's, Phi-3's, and two of Qwen2's */
}

/* Attention is sharper here than in OPT's variants, so that roundings of scores count for more:
 * 0.23 was the largest difference seen and 0.017 the largest root mean square. */
static void in_bf16(const struct golden *g)
{
    golden_in_bf16(g, &(const struct golden_limits){0.35, 0.025});
}

static void bf16_arithmetic_stays_within_its_bounds(void **state)
{
    golden_for_each(root(), 24, in_bf16);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_family_agrees_with_the_formulas),
    cmocka_unit_test(every_family_agrees_from_a_packed_store),
    cmocka_unit_test(windows_agree_wherever_their_keys_are),
    cmocka_unit_test(bf16_arithmetic_stays_within_its_bounds),
};
AQ_TEST_MAIN(tests)
