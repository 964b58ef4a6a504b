/* SPDX-License-Identifier: Apache-2.0
 * Every OPT variant and file layout of tests/golden against transformers' numbers: greedy tokens
 * equal, log-probabilities of the best 20 tokens at every position within 1e-4, read from the
 * checkpoint and from a packed store of it, on every instruction set this machine has; and how far
 * bf16 arithmetic is from them. */
#include "tests/e2e/golden_rig.h"
#include "tests/test.h"

static const char *root(void)
{
    return test_data_path("../golden/data");
}

static void every_variant_agrees_with_transformers(void **state)
{
    golden_for_each(root(), 16, golden_on_every_isa);
}

static void every_variant_agrees_from_a_packed_store(void **state)
{
    golden_for_each(root(), 16, golden_from_a_store);
}

/* bf16 rounds by up to 2^-9 of the value, at each of some ten places: as shares of the logits'
 * deviation, 0.032 was the largest difference seen and 0.008 the largest root mean square. */
static void in_bf16(const struct golden *g)
{
    golden_in_bf16(g, &(const struct golden_limits){0.06, 0.012});
}

static void bf16_arithmetic_stays_within_its_bounds(void **state)
{
    golden_for_each(root(), 16, in_bf16);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_variant_agrees_with_transformers),
    cmocka_unit_test(every_variant_agrees_from_a_packed_store),
    cmocka_unit_test(bf16_arithmetic_stays_within_its_bounds),
};
AQ_TEST_MAIN(tests)
