/* SPDX-License-Identifier: Apache-2.0
 * Forecasts: what a mean sequence does to a block, against sums that can be made by hand. */
#include "policy/forecast.h"
#include "policy/seating.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct aq_block_inputs inputs(const struct aq_model_steps *m)
{
    struct aq_block_inputs in = plans_inputs(m);
    in.micro_batch = 8;
    in.micro_batches = 2;
    return in;
}

static struct aq_hardware machine(void)
{
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 2, 2);
    return hw;
}

static struct aq_forecast forecast(const struct aq_block *b, const struct aq_block_inputs *in,
                                   const struct aq_hardware *hw, bool refill, bool serial)
{
    struct aq_block_inputs as = *in;
    as.refill = refill;
    as.serial = serial;
    return plans_forecast(b, &as, hw);
}

static void a_slow_disk_decides(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 512);
    struct aq_block_inputs in = inputs(&m);
    struct aq_placement p = {{{0, 50, 50}}, {{0, 100, 0}}, {{0, 100, 0}}, AQ_HOST};
    in.placement = &p;
    struct aq_block b = plans_choose(&in);
    struct aq_hardware hw = machine();
    hw.disk_read_bytes_per_s = 1e6;
    struct aq_forecast f = forecast(&b, &in, &hw, true, false);
    double bytes = (double)b.stream.bytes[AQ_DISK];
    assert_true(bytes > 0);
    assert_true(fabs(f.decode_pass_s - bytes / 1e6) < 0.01 * bytes / 1e6);
    assert_true(fabs(f.lane[AQ_LANE_READ_WEIGHTS].bytes - bytes) < 1);
    assert_int_equal(f.binding_lane, AQ_LANE_READ_WEIGHTS);
    assert_int_equal(f.binding, AQ_RESOURCE_DISK_READ);
    hw.disk_read_bytes_per_s = 2e6;
    struct aq_forecast fast = forecast(&b, &in, &hw, true, false);
    assert_true(fabs(f.decode_pass_s / fast.decode_pass_s - 2) < 0.02);
    assert_true(forecast(&b, &in, &hw, true, true).decode_pass_s > fast.decode_pass_s);
    aq_block_close(&b);
    aq_steps_close(&m);
}

static void work_adds_up(void **state)
{
    struct aq_model_steps m = plans_model(2, 128, 2, 512);
    struct aq_block_inputs in = inputs(&m);
    struct aq_block b = plans_choose(&in);
    struct aq_hardware hw = machine();
    for (in.sequences = 1; in.sequences <= 70; in.sequences += 3) {
        double seats = in.sequences < 16 ? (double)in.sequences : 16;
        struct aq_forecast with = forecast(&b, &in, &hw, true, false);
        struct aq_forecast without = forecast(&b, &in, &hw, false, false);
        assert_true(with.prompts == seats && with.tokens == seats * 64);
        assert_true(fabs(with.block_s - with.prefill_s - 63 * with.decode_pass_s) < 1e-9);
        assert_true(fabs(with.blocks - (double)in.sequences / seats) < 1e-9);
        assert_true(without.blocks == ceil(with.blocks));
        double all = (double)in.sequences * 64;
        double all_s = without.all_prefill_s + without.all_decode_s;
        assert_true(fabs(without.gen_tok_s * all_s - all) < 1e-6 * all);
        assert_true(with.gen_tok_s >= without.gen_tok_s * (1 - 1e-12));
        /* The last block is as long as the others, or shorter where few are in it. */
        uint64_t rest = in.sequences % 16, whole = in.sequences / 16;
        struct aq_block_inputs few = in;
        few.sequences = rest;
        double last_s = rest ? forecast(&b, &few, &hw, false, false).block_s : 0;
        double full_s = whole ? (double)whole * without.block_s : 0;
        assert_true(fabs(all_s - full_s - last_s) < 1e-9);
        assert_true(!rest || last_s <= without.block_s * (1 + 1e-12));
    }
    in.sequences = 0;
    struct aq_forecast f = forecast(&b, &in, &hw, true, false);
    assert_true(f.blocks == 0 && fabs(f.gen_tok_s - f.tokens / f.block_s) < 1e-9);
    aq_block_close(&b);
    aq_steps_close(&m);
}

static void prompts_beyond_a_pass_take_several(void **state)
{
    struct aq_model_steps m = plans_model(2, 128, 2, 512);
    struct aq_block_inputs in = inputs(&m);
    in.prompt_tokens = 250; /* two prompts of 100 */
    struct aq_block b = plans_choose(&in);
    struct aq_hardware hw = machine();
    struct aq_forecast f = forecast(&b, &in, &hw, true, false);
    assert_int_equal(f.prefill_passes, 4);
    assert_true(f.prefill_s >= 3.9 * f.prefill_pass_s);
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* Rows and keys of all parts are those of the micro-batch, and only what is staged moves. */
static void parts_add_up_to_the_micro_batch(void **state)
{
    struct aq_model_steps m = plans_model(2, 128, 2, 512);
    struct aq_block_inputs in = inputs(&m);
    struct aq_placement p = {{{50, 50, 0}}, {{30, 40, 30}}, {{100, 0, 0}}, AQ_HOST};
    in.placement = &p;
    in.separate = true;
    struct aq_block b = plans_choose(&in);
    for (uint32_t rows = 0; rows <= 8; rows++) {
        for (int prefill = 0; prefill < 2; prefill++) {
            struct aq_pass_shape *s = aq_pass_shapes_new(&b.plan);
            struct aq_forecast_held held = {.slots = 70};
            uint32_t sum = 0;
            uint64_t keys = 0;
            assert_non_null(s);
            aq_forecast_shape(s, &m, &b.plan,
                              &(struct aq_forecast_rows){
                                  .seats = rows, .prompt = prefill ? 70 : 0, .held = &held});
            for (uint32_t i = 0; i < b.plan.part_count; i++) {
                const struct aq_part_shape *part = &s->part[i];
                const struct aq_kv_work *kv = &part->kv[0];
                sum += prefill ? part->prefill_rows / 70 : part->decode_rows;
                keys += prefill ? kv->prefill_key_pairs : kv->decode_keys;
                bool disk = b.plan.part[i].tier == AQ_DISK;
                bool some = part->prefill_rows + part->decode_rows > 0;
                assert_int_equal(kv->write_bytes > 0, disk && some);
                assert_int_equal(kv->read_bytes > 0, disk && some && !prefill);
                assert_true(b.plan.part[i].staged || kv->store_bytes + kv->load_bytes == 0);
            }
            assert_int_equal(sum, rows);
            assert_int_equal(keys, prefill ? rows * 70 * 71 / 2 : rows * 70);
            assert_int_equal(s->logit_rows, rows);
            free(s);
        }
    }
    aq_block_close(&b);
    aq_steps_close(&m);
}

static struct aq_kv_policy h2o(double share)
{
    struct aq_kv_policy p = {0};
    struct aq_kv_options o = {.policy = "h2o", .budget = {.unit = AQ_KV_SHARE, .share = share}};
    assert_int_equal(aq_kv_policy_resolve(&p, &o, NULL), 0);
    return p;
}

/* KV that comes over a slow link with every pass: its bytes are those of the slots held, and a
 * prompt's way home is that of what is kept of it. */
static void what_is_held_moves(void **state)
{
    struct aq_model_steps m = plans_model(2, 128, 2, 512);
    struct aq_block_inputs in = inputs(&m);
    struct aq_placement p = {{{100, 0, 0}}, {{0, 100, 0}}, {{100, 0, 0}}, AQ_DEVICE};
    in.placement = &p;
    in.separate = true;
    in.attention_auto = false;
    in.attention = AQ_ATTEND_DEVICE;
    in.prompt_max = 1000;
    in.total_max = 1600;
    struct aq_hardware hw = machine();
    hw.h2d_bytes_per_s = hw.d2h_bytes_per_s = 1e6;
    struct aq_block b = plans_choose(&in);
    struct aq_forecast full = forecast(&b, &in, &hw, true, false);
    aq_block_close(&b);
    in.kv = h2o(0.2);
    b = plans_choose(&in);
    struct aq_forecast small = forecast(&b, &in, &hw, true, false);
    double run = (double)b.plan.shape.run_bytes, seats = 16, layers = 2;
    assert_true(fabs(full.lane[AQ_LANE_H2D].bytes - seats * layers * 41 * run) < 1);  /* 1299 */
    assert_true(fabs(small.lane[AQ_LANE_H2D].bytes - seats * layers * 10 * run) < 1); /* 320 */
    assert_true(small.decode_pass_s < 0.3 * full.decode_pass_s);
    assert_true(small.prefill_s < 0.4 * full.prefill_s);
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* Sequences on disk that overwrite slots write their runs again in 32 passes. */
static void slots_taken_over_are_written_again(void **state)
{
    struct aq_model_steps m = plans_model(2, 128, 2, 512);
    struct aq_block_inputs in = inputs(&m);
    struct aq_placement p = {{{0, 100, 0}}, {{0, 0, 100}}, {{0, 100, 0}}, AQ_HOST};
    in.placement = &p;
    struct aq_block b = plans_choose(&in);
    struct aq_pass_shape *shape = aq_pass_shapes_new(&b.plan);
    struct aq_forecast_held held = {.slots = 128};
    struct aq_forecast_rows rows = {.seats = 8, .held = &held};
    assert_non_null(shape);
    aq_forecast_shape(shape, &m, &b.plan, &rows);
    struct aq_kv_work grows = *shape->part[0].kv;
    held.full = true;
    aq_forecast_shape(shape, &m, &b.plan, &rows);
    assert_int_equal(grows.read_bytes / 3, shape->part[0].kv->read_bytes / 4);
    assert_int_equal(shape->part[0].kv->write_bytes, 5 * grows.write_bytes);
    free(shape);
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* Prompts that own their slots and begin alike: the first pass of a mean micro-batch has the work
 * of the same pass as seats play it. */
static void what_prompts_copy_counts_as_it_is_played(void **state)
{
    static const struct owner {
        struct aq_kv_options kv;
        enum aq_dtype format;
        bool beside; /* a host attends beside a device */
        uint32_t alike, copied;
    } owners[] = {
        {{.policy = "h2o", .budget = {.unit = AQ_KV_SLOTS, .slots = 64}}, AQ_F16, false, 144, 128},
        {{.policy = "snapkv", .budget = {.unit = AQ_KV_SLOTS, .slots = 64}},
         AQ_F16,
         false,
         144,
         128},
        {{.policy = "keydiff", .budget = {.unit = AQ_KV_SLOTS, .slots = 64}},
         AQ_F16,
         false,
         144,
         0},
        {{.policy = "full"}, AQ_KIVI4, false, 144, 144},
        {{.policy = "full"}, AQ_F16, true, 128, 128},
    };
    struct aq_model_steps m = plans_model(2, 128, 2, 512);
    for (size_t i = 0; i < AQ_ARRAY_LEN(owners); i++) {
        struct aq_block_inputs in = inputs(&m);
        struct aq_placement p = {{{0, 100, 0}}, {{0, 100, 0}}, {{0, 100, 0}}, AQ_HOST};
        if (owners[i].beside)
            p = (struct aq_placement){{{100, 0, 0}}, {{0, 100, 0}}, {{100, 0, 0}}, AQ_DEVICE};
        in.placement = &p;
        in.separate = owners[i].beside;
        in.attention_auto = false;
        in.attention = owners[i].beside ? AQ_ATTEND_HOST : AQ_ATTEND_DEVICE;
        in.prompt_max = 200;
        in.total_max = 240;
        in.sequences = 16;
        in.prompt_sum = 16ull * in.prompt_max;
        in.total_sum = 16ull * in.total_max;
        in.shared_sum = 16ull * owners[i].alike;
        in.prompt_tokens = 2048;
        in.kv_format = owners[i].format;
        assert_int_equal(aq_kv_policy_resolve(&in.kv, &owners[i].kv, NULL), 0);
        if (aq_dtype_is_kivi(in.kv_format))
            in.kv.residual = (struct aq_kv_residual){.tokens = 32};
        struct aq_block b = plans_choose(&in);
        struct aq_length length[16];
        for (uint32_t n = 0; n < 16; n++)
            length[n] = (struct aq_length){200, 40, n ? owners[i].alike : 0};
        struct aq_seating_opts o = {&m, &b, length, 16, 16, true, 0};
        struct aq_seating *seating;
        struct aq_pass_shape *played = aq_pass_shapes_new(&b.plan);
        struct aq_pass_shape *mean = aq_pass_shapes_new(&b.plan);
        struct aq_forecast_held held[AQ_KV_KINDS_MAX];
        struct aq_forecast_work work = {.steps = &m};
        uint32_t prefill, decode;
        aq_forecast_mean(&work, &in);
        aq_forecast_held_of(held, &b.plan.kinds, &b.plan.kv, m.head_dim, length, in.prompt_max);
        struct aq_forecast_rows rows = {.seats = 8, .prompt = in.prompt_max, .held = held};
        rows.copied = aq_forecast_copied(&work, &b.plan.kinds, &b.plan.kv);
        assert_int_equal(rows.copied, owners[i].copied);
        assert_non_null(played);
        assert_non_null(mean);
        aq_forecast_shape(mean, &m, &b.plan, &rows);
        assert_int_equal(aq_seating_open(&seating, &o, NULL), 0);
        assert_true(aq_seating_next(seating, &prefill, &decode));
        aq_seating_shape(seating, played);
        assert_int_equal(prefill, 2 * (8 * 200 - 7 * owners[i].copied));
        for (uint32_t part = 0; part < b.plan.part_count; part++)
            assert_memory_equal(mean->part[part].kv, played->part[part].kv,
                                b.plan.kinds.count * sizeof(struct aq_kv_work));
        aq_seating_close(seating);
        free(played);
        free(mean);
        aq_block_close(&b);
    }
    aq_steps_close(&m);
}

/* Each part has a prompt that is computed whole in each pass, so that fewer fit. */
static void parts_that_own_their_slots_lead_in_each_pass(void **state)
{
    struct aq_model_steps m = plans_model(2, 128, 2, 512);
    struct aq_block_inputs in = inputs(&m);
    struct aq_placement p = {{{100, 0, 0}}, {{30, 40, 30}}, {{100, 0, 0}}, AQ_DEVICE};
    in.placement = &p;
    in.separate = true;
    in.attention_auto = false;
    in.attention = AQ_ATTEND_DEVICE;
    in.prompt_max = 200;
    in.total_max = 240;
    in.sequences = 16;
    in.prompt_sum = 16ull * in.prompt_max;
    in.total_sum = 16ull * in.total_max;
    in.shared_sum = 16 * 144; /* 128 in whole windows of sums */
    in.prompt_tokens = 600;
    in.kv = h2o(0.4);
    struct aq_block b = plans_choose(&in);
    assert_int_equal(b.plan.part_count, 3);
    struct aq_hardware hw = machine();
    struct aq_forecast f = forecast(&b, &in, &hw, true, false);
    struct aq_length length[16];
    for (uint32_t n = 0; n < 16; n++)
        length[n] = (struct aq_length){200, 40, n ? 144 : 0};
    struct aq_seating_opts o = {&m, &b, length, 16, 16, true, 0};
    struct aq_seating *seating;
    uint32_t prefill, decode, passes = 0;
    double rows = 0;
    assert_int_equal(aq_seating_open(&seating, &o, NULL), 0);
    for (; rows < f.prompt_tokens && aq_seating_next(seating, &prefill, &decode); passes++)
        rows += prefill;
    assert_true(rows == f.prompt_tokens && f.prompt_tokens > 0);
    assert_int_equal(passes, f.prefill_passes);
    assert_true(passes > 1);
    aq_seating_close(seating);
    aq_block_close(&b);
    aq_steps_close(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_slow_disk_decides),
    cmocka_unit_test(work_adds_up),
    cmocka_unit_test(prompts_beyond_a_pass_take_several),
    cmocka_unit_test(parts_add_up_to_the_micro_batch),
    cmocka_unit_test(what_is_held_moves),
    cmocka_unit_test(slots_taken_over_are_written_again),
    cmocka_unit_test(what_prompts_copy_counts_as_it_is_played),
    cmocka_unit_test(parts_that_own_their_slots_lead_in_each_pass),
};

AQ_TEST_MAIN(tests)
