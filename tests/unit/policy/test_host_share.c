/* SPDX-License-Identifier: Apache-2.0
 * Shares of products for the host, chosen by the simulator: where the link is what holds passes up
 * and the host has time, and nowhere else; within the budgets, and never slower. */
#include "base/prng.h"
#include "policy/host_product.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"
#include "tests/unit/policy/same_plans.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct aq_placement placement = {
    {{0, 100, 0}}, {{100, 0, 0}}, {{100, 0, 0}}, AQ_DEVICE};

static struct aq_block_inputs inputs(const struct aq_model_steps *m, const struct aq_hardware *hw)
{
    struct aq_block_inputs in = plans_inputs(m);
    in.micro_batch = 16;
    in.micro_batches = 2;
    in.prompt_max = 32;
    in.total_max = 96;
    in.placement = &placement;
    in.attention_auto = in.can_stream = false;
    in.separate = true;
    in.hw = hw;
    return in;
}

/* A device with memory of its own, ten times as fast as the host, behind a link. */
static struct aq_hardware machine(double link)
{
    struct aq_hardware hw;
    aq_hardware_default(&hw, 8, 8, 8);
    hw.device_on_host = false;
    hw.device_memory_bytes_per_s = 500e9;
    hw.device.threads = 0;
    hw.device.product_flops_per_s[AQ_BF16] *= 10;
    hw.device.product_bytes_per_s = hw.device.attention_bytes_per_s = 500e9;
    hw.h2d_bytes_per_s = hw.d2h_bytes_per_s = link;
    hw.copy_core_s_per_byte = 0; /* DMA */
    hw.copy_host_bytes_per_byte = 1;
    hw.host_memory_bytes_per_s = link + 50e9;
    return hw;
}

static void choose(struct aq_block *ret, const struct aq_block_inputs *in)
{
    struct aq_err err;
    if (aq_block_choose(ret, in, &err) < 0)
        fail_msg("%s", err.text);
    plans_check_block(ret, in);
}

static void a_slow_link_gives_products_to_the_host(void **state)
{
    struct aq_model_steps m = plans_model(4, 1024, 16, 4096);
    struct aq_hardware hw = machine(5e9);
    struct aq_block_inputs in = inputs(&m, &hw);
    struct aq_block none = {0}, shared = {0}, again = {0};
    choose(&none, &in);
    assert_false(aq_program_host_products(&none.program));
    in.host_products_auto = true;
    choose(&shared, &in);
    choose(&again, &in);
    assert_true(plans_are_same(&shared.plan, &again.plan));
    assert_true(aq_program_host_products(&shared.program));
    assert_true(shared.stream.bytes[AQ_HOST] < none.stream.bytes[AQ_HOST]);
    struct aq_forecast f = plans_forecast(&none, &in, &hw), g = plans_forecast(&shared, &in, &hw);
    print_message("link 5 GB/s: decode pass %.3f ms, with %g %% of the products on the host "
                  "%.3f ms\n",
                  1e3 * f.decode_pass_s, shared.plan.host_products, 1e3 * g.decode_pass_s);
    assert_true(g.gen_tok_s > 1.2 * f.gen_tok_s);
    assert_true(g.lane[AQ_LANE_HOST_COMPUTE].busy_s > 0 &&
                f.lane[AQ_LANE_HOST_COMPUTE].busy_s == 0);
    /* The host's memory holds the weights either way; the rows and columns have their lines. */
    assert_int_equal(aq_ledger_line(&shared.ledger, AQ_HOST, "weights"),
                     aq_ledger_line(&none.ledger, AQ_HOST, "weights"));
    static const char *const lines[] = {"product rows (host)", "product columns (host)",
                                        "tiles (host)"};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(lines); i++)
        assert_true(aq_ledger_line(&shared.ledger, AQ_HOST, lines[i]) > 0);
    assert_true(aq_ledger_line(&shared.ledger, AQ_DEVICE, "product columns") > 0);
    aq_block_close(&none);
    aq_block_close(&shared);
    aq_block_close(&again);
    aq_steps_close(&m);
}

static void a_fast_link_keeps_them_on_the_device(void **state)
{
    struct aq_model_steps m = plans_model(4, 1024, 16, 4096);
    struct aq_hardware hw = machine(1e12);
    struct aq_block_inputs in = inputs(&m, &hw);
    struct aq_block none = {0}, shared = {0};
    choose(&none, &in);
    in.host_products_auto = true;
    choose(&shared, &in);
    assert_true(plans_are_same(&shared.plan, &none.plan));
    in.hw = NULL; /* and without rates nobody can tell */
    choose(&shared, &in);
    assert_true(plans_are_same(&shared.plan, &none.plan));
    aq_block_close(&none);
    aq_block_close(&shared);
    aq_steps_close(&m);
}

static void what_is_given_is_taken(void **state)
{
    struct aq_model_steps m = plans_model(2, 1024, 16, 4096);
    struct aq_hardware hw = machine(1e12);
    struct aq_block_inputs in = inputs(&m, &hw);
    struct aq_block b = {0};
    uint64_t all = 0, before = UINT64_MAX;
    for (in.host_products = 0; in.host_products <= 100; in.host_products += 12.5) {
        choose(&b, &in);
        uint64_t streamed = b.stream.bytes[AQ_HOST];
        all = in.host_products > 0 ? all : streamed;
        double exact = (double)all * (1 - in.host_products / 100);
        assert_true(fabs((double)streamed - exact) < 0.02 * (double)all);
        assert_true(streamed < before);
        before = streamed;
    }
    assert_int_equal(before, 0);
    in.host_products = 50;
    in.separate = false; /* one memory: nothing is brought anywhere */
    choose(&b, &in);
    assert_false(aq_program_host_products(&b.program));
    aq_block_close(&b);
    aq_steps_close(&m);
}

static void random_machines_are_never_slower_for_it(void **state)
{
    struct aq_model_steps m = plans_model(3, 512, 8, 1024);
    uint32_t taken = 0, left = 0;
    for (uint64_t i = 0; i < 24; i++) {
        struct aq_hardware hw = machine(1e9 * (double)(1 + aq_prng_below(9, i, 0, 60)));
        struct aq_block_inputs in = inputs(&m, &hw);
        struct aq_block none = {0}, shared = {0};
        in.micro_batches = 1 + (uint32_t)aq_prng_below(9, i, 1, 3);
        in.attention = aq_prng_below(9, i, 2, 2) ? AQ_ATTEND_HOST : AQ_ATTEND_DEVICE;
        choose(&none, &in);
        if (aq_prng_below(9, i, 3, 2)) /* hardly room for more */
            in.budget[AQ_DEVICE] =
                aq_ledger_total(&none.ledger, AQ_DEVICE) + aq_prng_below(9, i, 4, 2 * AQ_MIB);
        in.host_products_auto = true;
        choose(&shared, &in);
        assert_true(plans_forecast(&shared, &in, &hw).gen_tok_s >=
                    plans_forecast(&none, &in, &hw).gen_tok_s);
        *(aq_program_host_products(&shared.program) ? &taken : &left) += 1;
        aq_block_close(&none);
        aq_block_close(&shared);
    }
    print_message("%u with a share for the host, %u without\n", taken, left);
    assert_true(taken >= 3 && left >= 3);
    aq_steps_close(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_slow_link_gives_products_to_the_host),
    cmocka_unit_test(a_fast_link_keeps_them_on_the_device),
    cmocka_unit_test(what_is_given_is_taken),
    cmocka_unit_test(random_machines_are_never_slower_for_it),
};

AQ_TEST_MAIN(tests)
