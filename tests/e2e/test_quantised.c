/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints in the quantised forms that are read (tests/golden/quantised), as test_families.c has
 * those of each family.  The goldens are of the decoded weights, so those runs keep them in f32. */
#include "tests/e2e/golden_rig.h"
#include "tests/test.h"

enum { FORMS = 12 };

static const char *root(void)
{
    return test_data_path("../golden/quantised");
}

static void decoded_on_every_isa(const struct golden *g)
{
    struct golden f = *g;
    f.weights = AQ_F32;
    golden_on_every_isa(&f);
}

static void every_form_agrees_with_its_decoded_weights(void **state)
{
    golden_for_each(root(), FORMS, decoded_on_every_isa);
}

static void decoded_from_a_store(const struct golden *g)
{
    struct golden f = *g;
    f.weights = AQ_F32;
    golden_from_a_store(&f);
}

static void every_form_agrees_from_a_packed_store(void **state)
{
    golden_for_each(root(), FORMS, decoded_from_a_store);
}

static void as_bf16_or_f16(const struct golden *g)
{
    golden_wherever_weights_live(g, AQ_F32, -1);
    golden_wherever_weights_live(g, AQ_BF16, -1);
}

static void as_int8(const struct golden *g)
{
    golden_wherever_weights_live(g, AQ_F32, AQ_Q8);
}

static void as_int4(const struct golden *g)
{
    golden_wherever_weights_live(g, AQ_F32, AQ_Q4);
}

static void every_form_gives_the_same_bits_wherever_weights_live(void **state)
{
    golden_for_each(root(), FORMS, as_bf16_or_f16);
    golden_for_each(root(), FORMS, as_int8);
    golden_for_each(root(), FORMS, as_int4);
}

/* As test_families.c: rounding the decoded weights is no more than rounding any. */
static void in_bf16(const struct golden *g)
{
    golden_in_bf16(g, &(const struct golden_limits){0.35, 0.025});
}

static void bf16_arithmetic_stays_within_its_bounds(void **state)
{
    golden_for_each(root(), FORMS, in_bf16);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_form_agrees_with_its_decoded_weights),
    cmocka_unit_test(every_form_agrees_from_a_packed_store),
    cmocka_unit_test(every_form_gives_the_same_bits_wherever_weights_live),
    cmocka_unit_test(bf16_arithmetic_stays_within_its_bounds),
};
AQ_TEST_MAIN(tests)
