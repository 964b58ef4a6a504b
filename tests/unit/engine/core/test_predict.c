/* SPDX-License-Identifier: Apache-2.0
 * What a plan says it will do: the rates it rests on, its lanes, its program proved, and the same
 * as text. */
#include "base/clock.h"
#include "base/json.h"
#include "engine/core/engine.h"
#include "engine/core/forecast_json.h"
#include "engine/machine/rates_parts.h"
#include "tests/choices.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct aq_engine *plan(bool predict, uint64_t memory)
{
    struct aq_engine_opts opts = {
        .model_dir = test_data_path("tiny-opt"),
        .compute = AQ_F32,
        .weight_format = -1,
        .kv_format = -1,
        .threads = 2,
        .host_memory = memory,
        .cache_dir = "/nonexistent", /* what was kept of this machine is not what is tested */
        .emulate_device = 200 * AQ_MIB,
        .emulate_link = linked("0.005/3"),
        .placement = placed("weights=20/80/0 kv=0/100/0 hidden=100/0/0 head=host"),
        .attention = attended("host"),
        .micro_batch = 4,
        .micro_batches = 2,
        .predict = predict,
    };
    struct aq_workload w = {.sequences = 16, .prompt_max = 30, .total_max = 50};
    struct aq_engine *e;
    struct aq_err err;
    if (aq_engine_open(&e, &opts, &err) < 0 || aq_engine_plan(e, &w, &err) < 0)
        fail_msg("%s", err.text);
    return e;
}

static double number(const json_t *o, const char *key)
{
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

static bool is_measured(const json_t *rates, const char *key)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(rates, "measured"), i, v)
    {
        if (!strcmp(json_string_value(v), key))
            return true;
    }
    return false;
}

static void a_slow_link_is_seen_to_bind(void **state)
{
    struct aq_engine *e = plan(true, AQ_GIB);
    json_t *p = aq_engine_predicted_json(e), *planned = aq_engine_plan_json(e);
    double streamed = number(json_object_get(planned, "weight_stream"), "host_bytes_per_pass");
    const json_t *rates = json_object_get(p, "rates"), *lanes = json_object_get(p, "lanes");
    const json_t *link = json_object_get(lanes, "h2d_weights");
    assert_true(number(rates, "h2d_gb_s") == 0.005 && number(rates, "d2h_gb_s") == 3);
    assert_true(is_measured(rates, "product_gflop_s") && is_measured(rates, "memory_gb_s"));
    assert_false(is_measured(rates, "disk_read_gb_s"));
    assert_true(number(rates, "product_gflop_s") > 0 && number(rates, "memory_gb_s") > 0);
    assert_true(number(link, "bytes_per_pass") == streamed);
    assert_true(number(p, "decode_pass_s") >= streamed / 0.005e9);
    assert_true(number(p, "prefill_pass_s") >= streamed / 0.005e9);
    assert_string_equal(json_string_value(json_object_get(p, "bound_lane")), "h2d_weights");
    assert_string_equal(json_string_value(json_object_get(p, "bound_by")), "h2d link");
    assert_true(number(link, "busy") > 0.9 && number(link, "busy") <= 1.000001);
    assert_true(number(p, "gen_tok_s") > 0);
    assert_true(fabs(number(p, "total_s") - number(p, "prefill_s") - number(p, "decode_s")) < 1e-6);
    assert_int_equal(aq_engine_check(e, NULL), 0);
    json_decref(planned);
    json_decref(p);
    aq_engine_close(e);
}

static void nobody_measures_what_nobody_asks_for(void **state)
{
    struct aq_engine *e = plan(false, AQ_GIB); /* a small model */
    json_t *p = aq_engine_predicted_json(e);
    assert_true(json_is_null(p));
    json_decref(p);
    aq_engine_close(e);
}

struct lines {
    uint32_t count;
    char text[16][256];
};

static void keep_line(void *user, const char *text)
{
    struct lines *l = user;
    assert_true(l->count < 16);
    snprintf(l->text[l->count++], sizeof(l->text[0]), "%s", text);
}

static void a_prediction_reads_as_text(void **state)
{
    struct aq_forecast f = {
        .prefill_pass_s = 2,
        .prefill_passes = 1,
        .prefill_s = 2,
        .decode_pass_s = 0.5,
        .binding_lane = AQ_LANE_READ_WEIGHTS,
        .binding = AQ_RESOURCE_DISK_READ,
        .prompts = 8,
        .prompt_tokens = 80,
        .tokens = 88,
        .block_s = 7,
        .gen_tok_s = 88.0 / 7,
        .lane = {[AQ_LANE_COMPUTE] = {.busy_s = 0.2, .share = 0.4},
                 [AQ_LANE_READ_WEIGHTS] = {.busy_s = 0.5, .share = 1, .bytes = 1e9}},
    };
    struct aq_hardware hw;
    struct aq_rates_measured measured = {.disk = true};
    struct lines l = {0};
    aq_hardware_default(&hw, 2, 2, 2);
    json_t *p = aq_predict_json(&f, &hw, &measured, AQ_BF16);
    assert_true(json_is_null(json_object_get(p, "total_s"))); /* how many there are is unknown */
    assert_true(number(p, "prefill_tok_s") == 40 && number(p, "decode_tok_s") == 16);
    aq_predict_lines(p, keep_line, &l);
    assert_int_equal(l.count, 4);
    assert_string_equal(l.text[0], "predicted: prefill 2 s a pass, decode 0.5 s a pass, 12.6 "
                                   "tok/s; bound by disk read (disk_read_weights)");
    assert_non_null(strstr(l.text[2], "100 % busy, 1 GB a decode pass at 2 GB/s"));
    assert_non_null(strstr(l.text[3], "GFLOP/s (assumed)"));
    assert_non_null(strstr(l.text[3], "disk 3.7 GB/s (measured)"));
    json_decref(p);
    l.count = 0;
    p = json_null();
    aq_predict_lines(p, keep_line, &l);
    assert_int_equal(l.count, 0);
}

static void without_memory_to_measure_in_the_defaults_stand(void **state)
{
    struct aq_kernels kernels;
    struct aq_hardware hw, defaults;
    struct aq_rates_measured measured;
    aq_kernels_cpu(&kernels, aq_isa_detect());
    aq_hardware_default(&defaults, 2, 2, 2);
    struct aq_rates_opts opts = {.kernels = &kernels,
                                 .cores = 2,
                                 .threads = 2,
                                 .compute = AQ_F32,
                                 .weight_format = AQ_F16,
                                 .memory = 1000};
    assert_int_equal(aq_rates_measure(&hw, &measured, &opts, NULL), 0);
    assert_false(measured.products || measured.memory || measured.disk);
    assert_true(hw.device.product_bytes_per_s == defaults.device.product_bytes_per_s);
    for (int t = 0; t < AQ_DTYPE_COUNT; t++) { /* every format of weights can be measured */
        if (!aq_dtype_is_float((enum aq_dtype)t) && !aq_dtype_is_quantised((enum aq_dtype)t))
            continue;
        opts.memory = 8 * AQ_MIB;
        opts.weight_format = (enum aq_dtype)t;
        assert_int_equal(aq_rates_measure(&hw, &measured, &opts, NULL), 0);
        assert_true(measured.products && !measured.memory);
        assert_true(isfinite(hw.device.product_flops_per_s[AQ_F32]) &&
                    hw.device.product_flops_per_s[AQ_F32] > 0);
    }
}

/* Every other call takes ten times as long. */
static void uneven(void *arg)
{
    uint32_t *calls = arg;
    double until = aq_clock_s() + ((*calls)++ % 2 ? 2e-3 : 2e-4);
    while (aq_clock_s() < until)
        continue;
}

static void what_varies_is_measured_for_longer(void **state)
{
    struct aq_rates_rig rig = {.long_s = 0.02};
    uint32_t calls = 0;
    double begin = aq_clock_s();
    struct aq_sample s = aq_rates_repeat(&rig, uneven, &calls, 1);
    assert_true(s.spread > 0.2 && s.median > 0);
    assert_true(aq_clock_s() - begin >= 4 * rig.long_s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_varies_is_measured_for_longer),
    cmocka_unit_test(a_slow_link_is_seen_to_bind),
    cmocka_unit_test(nobody_measures_what_nobody_asks_for),
    cmocka_unit_test(a_prediction_reads_as_text),
    cmocka_unit_test(without_memory_to_measure_in_the_defaults_stand),
};

AQ_TEST_MAIN(tests)
