/* SPDX-License-Identifier: Apache-2.0
 * A job played through seat by seat: every sequence sits down once and decodes to its end, and what
 * the passes are told to do keeps the limits of the block. */
#include "policy/seating.h"

#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <math.h>
#include <stdlib.h>

enum { SEQUENCES = 57, LENGTHS = 19 };

/* Three of a length one after the other. */
static void draw_lengths(struct aq_length *length)
{
    for (uint32_t i = 0; i < LENGTHS; i++)
        length[i] = (struct aq_length){1 + i * 37 % 100, 1 + i * 23 % 64};
}

struct played {
    uint64_t prefill, decode, passes, mixed;
    struct aq_kv_work kv[2]; /* of the first kinds of layers */
};

static struct played play(const struct aq_block *b, const struct aq_model_steps *m,
                          const struct aq_length *length, uint32_t count, uint64_t sequences,
                          bool refill)
{
    const struct aq_block_shape *shape = &b->plan.shape;
    struct aq_seating_opts opts = {m, b, length, count, sequences, refill};
    struct aq_pass_shape *pass = aq_pass_shapes_new(&b->plan);
    struct played p = {0};
    struct aq_seating *s;
    struct aq_err err;
    uint32_t prefill, decode;
    assert_int_equal(aq_seating_open(&s, &opts, &err), 0);
    while (aq_seating_next(s, &prefill, &decode)) {
        uint32_t rows[2] = {0};
        aq_seating_shape(s, pass);
        for (uint32_t k = 0; k < shape->micro_batches; k++) {
            uint32_t parts[2] = {0};
            for (uint32_t i = 0; i < b->plan.part_count; i++) {
                parts[0] += pass[k].part[i].prefill_rows;
                parts[1] += pass[k].part[i].decode_rows;
                for (uint32_t n = 0; n < b->plan.kinds.count; n++) {
                    p.kv[n].prefill_key_pairs += pass[k].part[i].kv[n].prefill_key_pairs;
                    p.kv[n].decode_keys += pass[k].part[i].kv[n].decode_keys;
                    p.kv[n].decode_slots += pass[k].part[i].kv[n].decode_slots;
                }
            }
            assert_int_equal(parts[0], pass[k].prefill_rows);
            assert_int_equal(parts[1], pass[k].decode_rows);
            assert_true(pass[k].logit_rows <= shape->micro_batch);
            assert_true(pass[k].prefill_rows <= aq_max_u64(shape->prompt_tokens, 100));
            rows[0] += parts[0];
            rows[1] += parts[1];
        }
        assert_true(rows[0] == prefill && rows[1] == decode);
        p.prefill += prefill;
        p.decode += decode;
        p.passes++;
        p.mixed += prefill && decode;
    }
    aq_seating_close(s);
    free(pass);
    return p;
}

/* Adds what the queries of a sequence see through a window, key by key; of decoded ones, the
 * head-blocks that hold just these keys, too. */
static void see_through(struct aq_kv_work *to, const struct aq_length *l, uint32_t window)
{
    for (uint32_t query = 0; query + 1 < l->prompt + l->max_new; query++) {
        uint64_t seen = 0;
        for (uint32_t key = 0; key <= query; key++)
            seen += query - key < window;
        *(query < l->prompt ? &to->prefill_key_pairs : &to->decode_keys) += seen;
        to->decode_slots += query < l->prompt ? 0 : aq_align_up(seen, AQ_HEAD_BLOCK_SLOTS);
    }
}

static void windows_are_counted_key_by_key(void **state)
{
    static const uint32_t windows[] = {1, 31, 32, 33, 50, 163};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(windows); i++) {
        struct aq_model_steps m = plans_model(3, 64, 4, 128);
        struct aq_block_inputs in = plans_inputs(&m);
        struct aq_length length[LENGTHS];
        struct aq_kv_work want[2] = {{0}}; /* of a layer without a window, and with it */
        m.step[3].window = windows[i];
        in.micro_batch = 5;
        struct aq_block b = plans_choose(&in);
        draw_lengths(length);
        for (uint32_t n = 0; n < LENGTHS; n++) {
            see_through(&want[0], &length[n], UINT32_MAX);
            see_through(&want[1], &length[n], windows[i]);
        }
        struct played p = play(&b, &m, length, LENGTHS, LENGTHS, true);
        assert_int_equal(b.plan.kinds.count, 2);
        for (uint32_t layer = 0; layer < 3; layer++) {
            bool windowed = layer == 1;
            assert_int_equal(b.plan.kinds.of[layer], windowed);
            assert_memory_equal(&p.kv[windowed], &want[windowed], sizeof(*want));
        }
        aq_block_close(&b);
        aq_steps_close(&m);
    }
}

static void every_sequence_is_played_to_its_end(void **state)
{
    struct aq_model_steps m = plans_model(3, 64, 4, 128);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_length length[LENGTHS];
    uint64_t prompts = 0, decoded = 0;
    in.micro_batch = 5;
    in.micro_batches = 2;
    in.prompt_tokens = 150;
    struct aq_block b = plans_choose(&in);
    draw_lengths(length);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        prompts += length[i * LENGTHS / SEQUENCES].prompt;
        decoded += length[i * LENGTHS / SEQUENCES].max_new - 1;
    }
    for (int refill = 0; refill < 2; refill++) {
        struct played p = play(&b, &m, length, LENGTHS, SEQUENCES, refill);
        assert_int_equal(p.prefill, prompts);
        assert_int_equal(p.decode, decoded);
        assert_int_equal(p.mixed > 0, refill);
        assert_true(p.passes >= (decoded + SEQUENCES) / 10);
    }
    aq_block_close(&b);
    aq_steps_close(&m);
}

static void a_whole_block_at_a_time_fills_then_decodes(void **state)
{
    struct aq_model_steps m = plans_model(3, 64, 4, 128);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_length length = {50, 8};
    in.micro_batch = 5;
    in.micro_batches = 2;
    in.prompt_tokens = 100; /* two prompts a pass and micro-batch: three passes to fill */
    struct aq_block b = plans_choose(&in);
    struct played p = play(&b, &m, &length, 1, 20, false);
    assert_int_equal(p.passes, 2 * (3 + 7));
    assert_int_equal(p.mixed, 0);
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* Of equal sequences, all seats taken, a job is a row of blocks. */
static void a_job_of_equal_sequences_takes_as_long_as_its_blocks(void **state)
{
    struct aq_model_steps m = plans_model(3, 64, 4, 128);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_length length = {100, 64};
    struct aq_hardware hw;
    struct aq_err err;
    aq_hardware_default(&hw, 2, 2, 2);
    in.micro_batch = 8;
    in.micro_batches = 2;
    in.refill = false;
    struct aq_block b = plans_choose(&in);
    struct aq_forecast f = plans_forecast(&b, &in, &hw), job = f;
    struct aq_forecast_work work = {.steps = &m, .sequences = in.sequences};
    aq_forecast_mean(&work, &in);
    assert_int_equal(aq_forecast_job(&job, &b, &work, &length, 1, &hw, &err), 0);
    assert_true(fabs(job.gen_tok_s / f.gen_tok_s - 1) < 0.03);
    assert_true(fabs(job.all_prefill_s / f.all_prefill_s - 1) < 0.05);
    /* One seat's worth of long ones at the end leaves the others empty: it takes longer. */
    struct aq_length uneven[2] = {{100, 1}, {100, 127}};
    work.refill = true;
    assert_int_equal(aq_forecast_job(&job, &b, &work, uneven, 2, &hw, &err), 0);
    assert_true(job.gen_tok_s < f.gen_tok_s);
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* Of 200 000 lengths, three of each, those that are kept are spread evenly over all. */
static void of_very_many_lengths_some_are_kept(void **state)
{
    (void)state;
    enum { MANY = 200 * 1000 };
    struct aq_lengths l = {0};
    for (uint32_t i = 0; i < MANY / 3; i++) {
        assert_true(aq_lengths_add(&l, (struct aq_length){1 + i, 2}, 3));
        if (i < 1000)
            assert_int_equal(l.count, 3 * i + 3);
    }
    assert_true(l.count > 1 << 15 && l.count <= 1 << 16);
    for (uint64_t i = 0; i < l.count; i++) {
        int64_t at = (int64_t)(i * l.added / l.count / 3), off = (int64_t)l.item[i].prompt - 1 - at;
        assert_in_range(off + 2, 0, 4);
    }
    aq_lengths_close(&l);
    assert_int_equal(l.count, 0);
}

/* Of two kept ones, what all between them have in common. */
static void a_thinned_chain_has_the_least_of_what_is_left_out(void **state)
{
    (void)state;
    enum { MANY = 200 * 1000 };
    static uint32_t shared[MANY];
    struct aq_lengths l = {0};
    for (uint32_t i = 0; i < MANY; i++) {
        shared[i] = i * 7919ull % 1000;
        assert_true(aq_lengths_add(&l, (struct aq_length){1 + i, 2, shared[i]}, 1));
    }
    assert_true(l.shift >= 2);
    for (uint32_t i = 1; i < l.count; i++) {
        uint32_t least = UINT32_MAX;
        for (uint32_t n = l.item[i - 1].prompt; n < l.item[i].prompt; n++)
            least = shared[n] < least ? shared[n] : least;
        assert_int_equal(l.item[i].shared, least);
    }
    assert_int_equal(l.item[0].shared, 0);
    aq_lengths_close(&l);
}

/* Groups of four that begin alike, all of which sit down in one pass: the first of each computes
 * all, and what is left out or stands for others promises no more. */
static void what_is_common_is_computed_once(void **state)
{
    enum { GROUPS = 4, EACH = 4, COUNT = GROUPS * EACH, PROMPT = 100, SHARED = 70 };
    struct aq_model_steps m = plans_model(3, 64, 4, 128);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_length length[COUNT];
    in.micro_batch = COUNT;
    in.prompt_tokens = COUNT * PROMPT;
    struct aq_block b = plans_choose(&in);
    for (uint32_t i = 0; i < COUNT; i++)
        length[i] = (struct aq_length){PROMPT, 9, i % EACH ? SHARED : 0};
    uint32_t saved = SHARED; /* whole pages, and the rest is copied */
    struct played p = play(&b, &m, length, COUNT, COUNT, true);
    assert_int_equal(p.prefill, COUNT * PROMPT - GROUPS * (EACH - 1) * saved);
    assert_int_equal(p.kv[0].prefill_key_pairs,
                     COUNT * aq_seats_key_pairs(PROMPT, 0) -
                         GROUPS * (EACH - 1) * aq_seats_key_pairs(saved, 0));
    /* Of every fourth nothing is common; of eight the one in the middle of each group shares. */
    p = play(&b, &m, length, COUNT, GROUPS, true);
    assert_int_equal(p.prefill, GROUPS * PROMPT);
    p = play(&b, &m, length, COUNT, COUNT / 2, true);
    assert_int_equal(p.prefill, COUNT / 2 * PROMPT - GROUPS * saved);
    /* Two stand for each: the last one for what nobody knows. */
    p = play(&b, &m, length, COUNT / 2, COUNT, true);
    assert_int_equal(p.prefill, COUNT * PROMPT - 12 * saved);
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* Of a long job runs of neighbours are played, so that groups stay together. */
static void runs_of_neighbours_stand_for_a_long_job(void **state)
{
    enum { COUNT = 4096, SEQUENCES_PLAYED = 256, RUN = 64, EACH = 4, PROMPT = 100, SHARED = 64 };
    static struct aq_length length[COUNT];
    struct aq_seating_opts o = {.length_count = COUNT, .sequences = SEQUENCES_PLAYED, .run = RUN};
    struct aq_model_steps m = plans_model(3, 64, 4, 128);
    struct aq_block_inputs in = plans_inputs(&m);
    uint32_t prefill, decode, rows = 0;
    (void)state;
    for (uint32_t i = 0; i < COUNT; i++)
        length[i] = (struct aq_length){PROMPT, 9, i % EACH ? SHARED : 0};
    for (uint32_t i = 0; i < SEQUENCES_PLAYED; i++)
        assert_int_equal(aq_seating_item(&o, i), i / RUN * 1024 + i % RUN);
    in.micro_batch = 16;
    struct aq_block b = plans_choose(&in);
    struct aq_seating *s;
    o.steps = &m;
    o.block = &b;
    o.length = length;
    assert_int_equal(aq_seating_open(&s, &o, NULL), 0);
    while (aq_seating_next(s, &prefill, &decode))
        rows += prefill;
    assert_int_equal(rows, SEQUENCES_PLAYED * (PROMPT - SHARED * (EACH - 1) / EACH));
    aq_seating_close(s);
    aq_block_close(&b);
    aq_steps_close(&m);
}

/* A header that all have: the pool is of distinct tokens, unless sequences own their slots, and
 * mean forecast and played job agree on what prefill takes. */
static void plans_count_a_header_once(void **state)
{
    enum { COUNT = 64, PROMPT = 100, SHARED = 64, NEW = 64 };
    struct aq_model_steps m = plans_model(3, 64, 4, 128);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_length length[COUNT];
    struct aq_hardware hw;
    struct aq_err err;
    (void)state;
    aq_hardware_default(&hw, 2, 2, 2);
    in.prompt_sum = COUNT * PROMPT;
    in.total_sum = COUNT * (PROMPT + NEW);
    in.sequences = in.micro_batch = COUNT;
    for (uint32_t i = 0; i < COUNT; i++)
        length[i] = (struct aq_length){PROMPT, NEW, i ? SHARED : 0};
    for (int kivi = 0; kivi < 2; kivi++) {
        in.kv.residual.tokens = kivi ? 32 : 0;
        in.kv_format = kivi ? AQ_KIVI4 : AQ_F16;
        in.shared_sum = 0;
        struct aq_block whole = plans_choose(&in);
        struct aq_forecast all = plans_forecast(&whole, &in, &hw);
        in.shared_sum = (COUNT - 1) * SHARED;
        struct aq_block b = plans_choose(&in);
        struct aq_forecast f = plans_forecast(&b, &in, &hw), job = f;
        struct aq_forecast_work work = {.steps = &m, .sequences = COUNT, .refill = true};
        aq_forecast_mean(&work, &in);
        assert_int_equal(b.plan.shape.page_slots, 32);
        assert_int_equal(aq_forecast_job(&job, &b, &work, length, COUNT, &hw, &err), 0);
        assert_true(fabs(job.all_prefill_s / f.all_prefill_s - 1) < 0.05);
        assert_true(2 * f.prefill_s < all.prefill_s);
        if (kivi) { /* owns its slots */
            assert_int_equal(b.plan.shape.page_count[AQ_HOST],
                             whole.plan.shape.page_count[AQ_HOST]);
        } else {
            uint64_t distinct = 3 * (COUNT * 6 - (COUNT - 1) * 2); /* pages of 32 */
            assert_in_range(b.plan.shape.page_count[AQ_HOST], distinct, distinct * 13 / 10);
            assert_true(b.plan.shape.page_count[AQ_HOST] < whole.plan.shape.page_count[AQ_HOST]);
        }
        aq_block_close(&whole);
        aq_block_close(&b);
    }
    aq_steps_close(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(windows_are_counted_key_by_key),
    cmocka_unit_test(every_sequence_is_played_to_its_end),
    cmocka_unit_test(a_whole_block_at_a_time_fills_then_decodes),
    cmocka_unit_test(a_job_of_equal_sequences_takes_as_long_as_its_blocks),
    cmocka_unit_test(of_very_many_lengths_some_are_kept),
    cmocka_unit_test(a_thinned_chain_has_the_least_of_what_is_left_out),
    cmocka_unit_test(what_is_common_is_computed_once),
    cmocka_unit_test(runs_of_neighbours_stand_for_a_long_job),
    cmocka_unit_test(plans_count_a_header_once),
};

AQ_TEST_MAIN(tests)
