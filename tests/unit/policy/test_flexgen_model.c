/* SPDX-License-Identifier: Apache-2.0
 * The engine model of FlexGen and H2O: sums that can be made by hand, its last stair against this
 * engine's own program, and figures that they published. */
#include "policy/flexgen_model.h"
#include "policy/forecast.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A T4 on a host with 208 GB: data sheet; link, and rates of FlexGen's kernels, from its
 * experimental/cost_model.py. */
static struct aq_hardware t4(void)
{
    struct aq_hardware hw;
    aq_hardware_default(&hw, 16, 1, 16);
    hw.device_on_host = false;
    hw.device.threads = 0;
    hw.device.overlap = 1;
    hw.device.product_flops_per_s[AQ_F16] = 30e12;
    hw.device.attention_flops_per_s = 20e12;
    hw.device.product_bytes_per_s = hw.device.attention_bytes_per_s = 0.8 * 320e9;
    hw.device.unpack_bytes_per_s = 60e9;
    hw.device_memory_bytes_per_s = 320e9;
    hw.host_memory_bytes_per_s = 80e9;
    hw.host.attention_bytes_per_s = 60e9;
    hw.host.attention_flops_per_s = 1e12;
    hw.h2d_bytes_per_s = hw.d2h_bytes_per_s = 12.89e9;
    hw.disk_read_bytes_per_s = 1.6e9;
    hw.disk_write_bytes_per_s = 1.3e9;
    hw.copy_core_s_per_byte = 0;
    hw.copy_host_bytes_per_byte = 1;
    return hw;
}

static struct aq_flexgen_rates flexgen_rates(void)
{
    return (struct aq_flexgen_rates){
        .prefill_flops_per_s = 21.24e12,
        .decode_flops_per_s = 4.3e12,
        .prefill_attention_flops_per_s = 9.97e12,
        .decode_attention_bytes_per_s = 79e9,
        .host_attention_bytes_per_s = 12.3e9,
        .kv_store_bytes_per_s = 0.97e9,
        .pageable_bytes_per_s = 4.82e9,
        .unpack_bytes_per_s = 7.2e9,
    };
}

static struct aq_flexgen_run opt_30b(const struct aq_model_steps *m, const struct aq_hardware *hw)
{
    return (struct aq_flexgen_run){
        .steps = m,
        .hw = hw,
        .rates = flexgen_rates(),
        .rules = AQ_FLEXGEN_RULES_ALL,
        .micro_batch = 48,
        .micro_batches = 3,
        .prompt = 512,
        .gen = 32,
        .weights = {{20, 80, 0}},
        .kv = {{0, 100, 0}},
        .hidden = {{0, 100, 0}},
        .host_attention = true,
        .first_step = true,
    };
}

static struct aq_flexgen_times play(const struct aq_flexgen_run *run)
{
    struct aq_flexgen_times t;
    struct aq_err err;
    if (aq_flexgen_play(&t, run, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

/* Their own figures, from bench_suite.py's policies and h2o_suite.py's logs. */
static void published_opt_30b_rows_are_met(void **state)
{
    static const struct {
        const char *name;
        uint32_t micro_batch, micro_batches, prompt, gen, kept;
        double device;
        bool host_attention;
        double published;
    } rows[] = {
        {"FlexGen 512+32", 48, 3, 512, 32, 0, 20, true, 7.32},
        {"FlexGen 1024+32", 20, 4, 1024, 32, 0, 4, true, 3.50},
        {"FlexGen 256+32", 160, 2, 256, 32, 0, 10, true, 16.01},
        {"FlexGen 512+32, no CPU attention", 48, 3, 512, 32, 0, 20, false, 4.03},
        {"FlexGen 512+512", 40, 2, 512, 512, 0, 20, true, 8.5},
        {"FlexGen 512+1024", 48, 1, 512, 1024, 0, 20, true, 7.1},
        {"H2O 512+32", 52, 14, 512, 32, 102, 0, true, 12.655},
        {"H2O 512+512", 52, 8, 512, 512, 204, 0, true, 18.825},
        {"H2O 512+1024", 44, 6, 512, 1024, 306, 0, true, 13.821},
    };
    struct aq_model_steps m = plans_model(48, 7168, 56, 50272);
    struct aq_hardware hw = t4();
    for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
        struct aq_flexgen_run run = opt_30b(&m, &hw);
        run.micro_batch = rows[i].micro_batch;
        run.micro_batches = rows[i].micro_batches;
        run.prompt = rows[i].prompt;
        run.gen = rows[i].gen;
        run.kept = rows[i].kept;
        run.weights = (struct aq_shares){{rows[i].device, 100 - rows[i].device, 0}};
        run.host_attention = rows[i].host_attention;
        struct aq_flexgen_times t = play(&run);
        double ratio = t.gen_tok_s / rows[i].published;
        print_message("%s: %.2f tok/s, published %.2f, ratio %.2f; prefill %.1f s, pass %.2f s\n",
                      rows[i].name, t.gen_tok_s, rows[i].published, ratio, t.prefill_s,
                      t.decode_pass_s);
        assert_true(ratio > 0.74 && ratio < 1.25); /* 0.746: 256+32 */
    }
    aq_steps_close(&m);
}

/* FlexGen's rule at the six steps of a decoder layer, as its code lays tensors out. */
static void midpoints_decide_where_tensors_live(void **state)
{
    static const struct {
        double asked, found; /* percent of a layer's weights on the device */
    } rows[] = {{0, 0},           {12, 0},  {13, 100 / 12.0}, {20, 100 / 12.0},  {25, 100 / 12.0},
                {26, 500 / 12.0}, {50, 50}, {63, 700 / 12.0}, {80, 1100 / 12.0}, {88, 100}};
    static const double middle[] = {12.499, 37.499, 62.499, 87.499, 24.999, 74.999},
                        size[] = {1, 1, 1, 1, 4, 4};
    for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
        struct aq_shares s = {{rows[i].asked, 100 - rows[i].asked, 0}};
        double sum = 0;
        for (size_t t = 0; t < AQ_ARRAY_LEN(middle); t++)
            sum += aq_flexgen_tensor_tier(&s, middle[t]) == AQ_DEVICE ? size[t] : 0;
        assert_true(fabs(100 * sum / 12 - rows[i].found) < 1e-9);
    }
    struct aq_shares half = {{0, 50, 50}};
    assert_int_equal(aq_flexgen_tensor_tier(&half, 25), AQ_DISK);
    assert_int_equal(aq_flexgen_tensor_tier(&half, 75), AQ_HOST);
}

/* Everything but one thing costs nothing: times are sums that can be made by hand. */
static struct aq_hardware only(double h2d, double host_attention)
{
    struct aq_hardware hw = t4();
    hw.device.product_flops_per_s[AQ_F16] = hw.device.attention_flops_per_s = INFINITY;
    hw.device.product_bytes_per_s = hw.device.attention_bytes_per_s = INFINITY;
    hw.device_memory_bytes_per_s = hw.host_memory_bytes_per_s = INFINITY;
    hw.host.attention_flops_per_s = INFINITY;
    hw.h2d_bytes_per_s = h2d;
    hw.d2h_bytes_per_s = INFINITY;
    hw.host.attention_bytes_per_s = host_attention;
    memset(hw.overhead_s, 0, sizeof(hw.overhead_s));
    return hw;
}

static struct aq_flexgen_run small(const struct aq_model_steps *m, const struct aq_hardware *hw)
{
    return (struct aq_flexgen_run){
        .steps = m,
        .hw = hw,
        .micro_batch = 4,
        .micro_batches = 3,
        .prompt = 64,
        .gen = 3,
        .weights = {{0, 100, 0}},
        .kv = {{0, 100, 0}},
        .hidden = {{100, 0, 0}},
        .host_attention = true,
    };
}

static void near(double found, double want, double within)
{
    if (!(fabs(found - want) <= within * want))
        fail_msg("expected %g, found %g", want, found);
}

static void weights_bind_a_slow_link(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 2048);
    struct aq_hardware hw = only(1e6, INFINITY);
    struct aq_flexgen_run run = small(&m, &hw);
    double layers = 4 * 12 * 256 * 256 * 2, table = 2048 * 256 * 2;
    /* What attention sends back is all else that the link carries. */
    double more = 4.0 * 12 * 256 * 2;
    near(play(&run).decode_pass_s, (layers + table + more) / 1e6, 0.01);
    run.rules = 1u << AQ_FLEXGEN_TABLE_TWICE;
    near(play(&run).decode_pass_s, (layers + 2 * table + more) / 1e6, 0.01);
    /* A half of all tensors, and no table: 41.7 % on the device. */
    run.rules = 1u << AQ_FLEXGEN_WHOLE_TENSORS;
    run.weights = (struct aq_shares){{26, 74, 0}};
    near(play(&run).decode_pass_s, (7 / 12.0 * layers + table + more) / 1e6, 0.01);
    run.rules = 0;
    near(play(&run).decode_pass_s, (0.74 * (layers + table) + more) / 1e6, 0.01);
    aq_steps_close(&m);
}

static void packed_weights_move_9_of_32_bytes(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 2048);
    struct aq_hardware hw = only(1e6, INFINITY);
    struct aq_flexgen_run run = small(&m, &hw);
    double bytes = 4 * 12 * 256 * 256 * 2 + 2048 * 256 * 2;
    run.pack_weights = true;
    near(play(&run).decode_pass_s, (bytes * 9 / 32 + 4.0 * 12 * 256 * 2) / 1e6, 0.01);
    aq_steps_close(&m);
}

static void attention_binds_a_slow_host(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 2048);
    struct aq_hardware hw = only(INFINITY, 1e6);
    struct aq_flexgen_run run = small(&m, &hw);
    double keys = 4.0 * 12 * 4 * 256;
    near(play(&run).decode_pass_s, keys * (64 + 1.5) / 1e6, 0.01);
    run.first_step = true;
    near(play(&run).decode_pass_s, keys * 65 / 1e6, 0.01);
    run.kept = 16;
    near(play(&run).decode_pass_s, keys * 16 / 1e6, 0.01);
    run.rates.host_attention_bytes_per_s = 1e5;
    near(play(&run).decode_pass_s, keys * 16 / 1e6, 0.01);
    run.rules = 1u << AQ_FLEXGEN_SLOW_HOST;
    near(play(&run).decode_pass_s, keys * 16 / 1e5, 0.01);
    aq_steps_close(&m);
}

/* Weights in the first of three slots: the link is busy in one, the host in all. */
static void a_barrier_keeps_weights_in_one_slot(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 64);
    double step = 4 * 256 * 256 * 2, layers = 12 * step;
    struct aq_hardware hw = only(1e6, 4.0 * 4 * 256 * 65 / (step / 1e6 / 2));
    struct aq_flexgen_run run = small(&m, &hw);
    run.first_step = true;
    double attention = 3 * 4 * step / 1e6 / 2;
    /* Without rules both run side by side. */
    near(play(&run).decode_pass_s, layers / 1e6, 0.02);
    /* Attention of half a step's time: beside MLP's weights, twice as many, in one slot of three,
     * and in two slots alone. */
    run.rules = 1u << AQ_FLEXGEN_FIRST_SLOT | 1u << AQ_FLEXGEN_BARRIER;
    near(play(&run).decode_pass_s, (layers + 4 * step) / 1e6, 0.02);
    /* Its output behind the weights on the link: no longer, for they end later anyway.  With hidden
     * states on the host nothing overlaps. */
    run.rules |= 1u << AQ_FLEXGEN_ONE_QUEUE;
    run.hidden = (struct aq_shares){{0, 100, 0}};
    double hidden = 3.0 * 9 * 4 * 256 * 2 / 1e6;
    near(play(&run).decode_pass_s, layers / 1e6 + attention + hidden, 0.02);
    aq_steps_close(&m);
}

static void all_prompts_count_as_the_longest(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 2048);
    struct aq_hardware hw = t4();
    struct aq_flexgen_run run = small(&m, &hw), even = run;
    run.prompt_mean = 32;
    even.prompt = 32;
    assert_true(aq_flexgen_rule_matters(&run, AQ_FLEXGEN_PADDING));
    near(play(&run).total_s, play(&even).total_s, 1e-9);
    even.prompt = 64;
    run.rules = even.rules = 1u << AQ_FLEXGEN_PADDING;
    near(play(&run).total_s, play(&even).total_s, 1e-9);
    assert_false(aq_flexgen_rule_matters(&even, AQ_FLEXGEN_PADDING));
    aq_steps_close(&m);
}

/* From their schedule to ours: no stair goes down, but for the latency of smaller reads. */
static void no_rule_pays(void **state)
{
    struct aq_model_steps m = plans_model(48, 7168, 56, 50272);
    struct aq_hardware hw = t4();
    struct aq_flexgen_run run = opt_30b(&m, &hw);
    run.prompt_mean = 400;
    run.weights = (struct aq_shares){{20, 60, 20}};
    double before = play(&run).total_s, first = before;
    for (int h = 0; h < AQ_FLEXGEN_RULE_COUNT; h++) {
        run.rules &= ~(1u << h);
        double now = play(&run).total_s;
        if (now > before * 1.01)
            fail_msg("without %s: %g s, with it %g s",
                     aq_flexgen_rule_name((enum aq_flexgen_rule)h), now, before);
        if (!aq_flexgen_rule_matters(&run, (enum aq_flexgen_rule)h))
            near(now, before, 1e-9);
        before = now;
    }
    assert_true(before < first / 2);
    aq_steps_close(&m);
}

/* The last stair is this engine: its builder's program for the same block on the same machine. */
static void without_rules_it_is_this_engine(void **state)
{
    static const struct {
        struct aq_shares weights, kv;
        bool host;
    } rows[] = {
        {{{20, 80, 0}}, {{0, 100, 0}}, true},
        {{{0, 100, 0}}, {{100, 0, 0}}, false},
        {{{0, 40, 60}}, {{0, 100, 0}}, true},
        {{{0, 100, 0}}, {{0, 100, 0}}, false},
    };
    struct aq_model_steps m = plans_model(24, 2048, 32, 512);
    struct aq_hardware hw = t4();
    for (size_t i = 0; i < AQ_ARRAY_LEN(rows); i++) {
        struct aq_placement p = {rows[i].weights, rows[i].kv, {{100, 0, 0}}, AQ_DEVICE};
        struct aq_block_inputs in = plans_inputs(&m);
        in.compute = in.products = in.weight_format = in.table_format = AQ_F16;
        in.micro_batch = 32;
        in.micro_batches = 2;
        in.placement = &p;
        in.separate = true;
        in.attention_auto = in.refill = false;
        in.attention = rows[i].host ? AQ_ATTEND_HOST : AQ_ATTEND_DEVICE;
        in.prompt_max = 512;
        in.total_max = 544;
        in.budget[AQ_DEVICE] = in.budget[AQ_HOST] = in.budget[AQ_DISK] = 64 * AQ_GIB;
        struct aq_block b = {0};
        struct aq_err err;
        if (aq_block_choose(&b, &in, &err) < 0)
            fail_msg("%s", err.text);
        struct aq_forecast f = plans_forecast(&b, &in, &hw);
        struct aq_flexgen_run run = {
            .steps = &m,
            .hw = &hw,
            .micro_batch = 32,
            .micro_batches = 2,
            .prompt = 512,
            .gen = 32,
            .weights = rows[i].weights,
            .kv = rows[i].kv,
            .hidden = {{100, 0, 0}},
            .host_attention = rows[i].host,
        };
        struct aq_flexgen_times t = play(&run);
        print_message("%zu: pass %.4f s, this engine's %.4f; prefill %.3f s, %.3f\n", i,
                      t.decode_pass_s, f.decode_pass_s, t.prefill_s, f.prefill_s);
        near(t.decode_pass_s, f.decode_pass_s, 0.05);
        aq_block_close(&b);
    }
    aq_steps_close(&m);
}

static void what_their_program_refuses_is_refused(void **state)
{
    struct aq_model_steps m = plans_model(2, 256, 4, 2048);
    struct aq_hardware hw = t4();
    struct aq_flexgen_run run = small(&m, &hw);
    struct aq_flexgen_times t;
    struct aq_err err;
    run.hidden = (struct aq_shares){{50, 50, 0}};
    assert_int_equal(aq_flexgen_play(&t, &run, &err), -EINVAL);
    assert_non_null(strstr(err.text, "hidden=50/50/0"));
    run = small(&m, &hw);
    run.pack_kv = true;
    assert_int_equal(aq_flexgen_play(&t, &run, &err), -EINVAL);
    assert_non_null(strstr(err.text, "packed KV"));
    run.host_attention = false;
    run.kv = (struct aq_shares){{50, 50, 0}};
    assert_int_equal(aq_flexgen_play(&t, &run, &err), -EINVAL);
    assert_non_null(strstr(err.text, "kv=50/50/0"));
    run.kv = (struct aq_shares){{50, 40, 0}};
    assert_int_equal(aq_flexgen_play(&t, &run, &err), -EINVAL);
    assert_non_null(strstr(err.text, "adds up to 90"));
    run = small(&m, &hw);
    hw.h2d_bytes_per_s = 0;
    assert_int_equal(aq_flexgen_play(&t, &run, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no rate"));
    aq_steps_close(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(published_opt_30b_rows_are_met),
    cmocka_unit_test(midpoints_decide_where_tensors_live),
    cmocka_unit_test(weights_bind_a_slow_link),
    cmocka_unit_test(packed_weights_move_9_of_32_bytes),
    cmocka_unit_test(attention_binds_a_slow_host),
    cmocka_unit_test(a_barrier_keeps_weights_in_one_slot),
    cmocka_unit_test(all_prompts_count_as_the_longest),
    cmocka_unit_test(no_rule_pays),
    cmocka_unit_test(without_rules_it_is_this_engine),
    cmocka_unit_test(what_their_program_refuses_is_refused),
};

AQ_TEST_MAIN(tests)
