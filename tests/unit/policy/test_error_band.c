/* SPDX-License-Identifier: Apache-2.0
 * Which runs an error band speaks of; its figures are compared with the measured runs by
 * tests/e2e/bench_scripts.py. */
#include "policy/error_band.h"
#include "tests/test.h"

#include <string.h>

static void nothing_is_said_of_an_accelerator(void **state)
{
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 1, 1);
    for (int r = 0; r < AQ_RESOURCE_COUNT; r++) {
        hw.device_on_host = true;
        assert_non_null(aq_error_band(&hw, (enum aq_resource)r));
        hw.device_on_host = false;
        assert_null(aq_error_band(&hw, (enum aq_resource)r));
    }
}

static void a_band_is_of_runs_that_the_same_binds(void **state)
{
    static const struct {
        enum aq_resource binding;
        const char *bound;
    } cases[] = {
        {AQ_RESOURCE_FLOPS, "computing"},  {AQ_RESOURCE_MEMORY, "computing"},
        {AQ_RESOURCE_CORES, "computing"},  {AQ_RESOURCE_HOST_MEMORY, "computing"},
        {AQ_RESOURCE_H2D, "a link"},       {AQ_RESOURCE_LINK, "a link"},
        {AQ_RESOURCE_DISK_READ, "a disk"}, {AQ_RESOURCE_DISK_WRITE, "a disk"},
        {AQ_RESOURCE_DISK, "a disk"},      {AQ_RESOURCE_D2H, "a link"},
    };
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 1, 1);
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++)
        assert_string_equal(aq_error_band(&hw, cases[i].binding)->bound, cases[i].bound);
}

static void nine_of_ten_runs_and_the_prediction_lie_in_a_band(void **state)
{
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 1, 1);
    for (int r = 0; r < AQ_RESOURCE_COUNT; r++) {
        const struct aq_error_band *b = aq_error_band(&hw, (enum aq_resource)r);
        assert_true(b->low > 0 && b->low <= 1 && b->high >= 1);
        assert_true(b->inside <= b->runs && 10 * b->inside >= 9 * b->runs);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(nothing_is_said_of_an_accelerator),
    cmocka_unit_test(a_band_is_of_runs_that_the_same_binds),
    cmocka_unit_test(nine_of_ten_runs_and_the_prediction_lie_in_a_band),
};

AQ_TEST_MAIN(tests)
