/* SPDX-License-Identifier: Apache-2.0
 * Blocks chosen by the simulator: never slower than the plain rule's, always within the budgets,
 * the same for the same machine, and different where machines differ. */
#include "base/prng.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct aq_hardware machine(double disk)
{
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 2, 2);
    hw.disk_read_bytes_per_s = disk;
    return hw;
}

/* Plain rule and search on the same inputs; true when both found a block. */
static bool compare(struct aq_block_inputs in, const struct aq_hardware *hw, uint32_t *ret_gained)
{
    struct aq_block plain = {0}, found = {0}, again = {0};
    int rc = aq_block_choose(&plain, &in, NULL);
    in.hw = hw;
    int rc_found = aq_block_choose(&found, &in, NULL);
    assert_true(rc_found == 0 || rc < 0);
    if (rc_found == 0) {
        plans_check_block(&found, &in);
        assert_int_equal(aq_block_choose(&again, &in, NULL), 0);
        assert_memory_equal(&found.plan, &again.plan, sizeof(found.plan));
    }
    if (rc == 0) {
        double a = plans_forecast(&plain, &in, hw).gen_tok_s;
        double b = plans_forecast(&found, &in, hw).gen_tok_s;
        assert_true(b >= a * 0.99);
        *ret_gained += b > a * 1.02;
    }
    aq_block_close(&plain);
    aq_block_close(&found);
    aq_block_close(&again);
    return rc == 0;
}

static void it_is_never_slower_than_the_plain_rule(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 512);
    uint32_t found = 0, gained = 0;
    for (uint64_t i = 0; i < 24; i++) {
        struct aq_block_inputs in = plans_inputs(&m);
        struct aq_hardware hw = machine(1e8 * (double)(1 + aq_prng_below(3, i, 0, 80)));
        in.separate = i % 2;
        in.budget[AQ_HOST] = (4 + aq_prng_below(3, i, 1, 40)) * AQ_MIB;
        in.budget[AQ_DEVICE] = in.separate ? (3 + aq_prng_below(3, i, 2, 20)) * AQ_MIB : 0;
        in.micro_batch = aq_prng_below(3, i, 3, 3) ? 0 : 4;
        found += compare(in, &hw, &gained);
    }
    assert_true(found >= 8 && gained >= 2); /* or else nothing was compared */
    free(m.step);
}

static void what_fits_whole_stays_as_it_is(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 512);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_hardware hw = machine(1e9);
    struct aq_block plain = {0}, found = {0};
    assert_int_equal(aq_block_choose(&plain, &in, NULL), 0);
    in.hw = &hw;
    assert_int_equal(aq_block_choose(&found, &in, NULL), 0);
    assert_memory_equal(&plain.plan, &found.plan, sizeof(plain.plan));
    aq_block_close(&plain);
    aq_block_close(&found);
    free(m.step);
}

/* Room for all weights beside few seats, or for many seats beside few weights. */
static void the_disk_decides_between_weights_and_seats(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 512);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_block b = {0};
    struct aq_hardware slow = machine(1e6), fast = machine(1e12);
    in.micro_batch = 3;
    assert_int_equal(aq_block_choose(&b, &in, NULL), 0);
    in.budget[AQ_HOST] = aq_ledger_total(&b.ledger, AQ_HOST);
    in.micro_batch = 0;
    in.hw = &slow;
    assert_int_equal(aq_block_choose(&b, &in, NULL), 0);
    assert_true(b.stream.bytes[AQ_DISK] == 0);
    assert_int_equal(b.plan.shape.micro_batch * b.plan.shape.micro_batches, 3);
    in.hw = &fast;
    assert_int_equal(aq_block_choose(&b, &in, NULL), 0);
    assert_true(b.stream.bytes[AQ_DISK] > 0);
    assert_true(b.plan.shape.micro_batch * b.plan.shape.micro_batches > 3);
    aq_block_close(&b);
    free(m.step);
}

static void weights_beyond_a_separate_devices_host_stream_from_disk(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 512);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_hardware hw = machine(1e9);
    struct aq_block b = {0};
    in.separate = true;
    in.budget[AQ_DEVICE] = 8 * AQ_MIB;
    in.budget[AQ_HOST] = 7 * AQ_MIB;
    assert_int_equal(aq_block_choose(&b, &in, NULL), -ENOMEM); /* the plain rule knows two tiers */
    in.hw = &hw;
    struct aq_err err = {0};
    if (aq_block_choose(&b, &in, &err) < 0)
        fail_msg("%s", err.text);
    plans_check_block(&b, &in);
    assert_true(b.stream.bytes[AQ_DISK] > 0);
    aq_block_close(&b);
    in.budget[AQ_HOST] = AQ_MIB / 2; /* and where nothing fits, that is said as before */
    assert_int_equal(aq_block_choose(&b, &in, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "host memory"));
    free(m.step);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(it_is_never_slower_than_the_plain_rule),
    cmocka_unit_test(what_fits_whole_stays_as_it_is),
    cmocka_unit_test(the_disk_decides_between_weights_and_seats),
    cmocka_unit_test(weights_beyond_a_separate_devices_host_stream_from_disk),
};

AQ_TEST_MAIN(tests)
