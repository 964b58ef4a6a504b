/* SPDX-License-Identifier: Apache-2.0
 * Keys that are dropped many at a time: how many a sequence holds after each row, which rows count,
 * and the options. */
#include "policy/kv_policy.h"
#include "tests/test.h"
#include "tests/unit/policy/kv_made.h"

#include <string.h>

static void refused(struct aq_kv_options o, const char *with)
{
    struct aq_kv_policy p;
    struct aq_err err = {0};
    assert_int_equal(aq_kv_policy_resolve(&p, &o, &err), -EINVAL);
    if (!strstr(err.text, with))
        fail_msg("expected '%s' in '%s'", with, err.text);
}

/* ---- what is held ---- */

/* A counter beside the formulas: rows come one by one, and one that finds the slots full drops. */
static void follow(const struct aq_kv_limits *l, uint32_t prompt, uint32_t max_new)
{
    static const struct aq_kv_policy all_queries = {.prompt = {.source = AQ_KV_SOURCE_COLUMNS}};
    uint32_t low = l->heavy_prompt + l->recent_prompt, held = prompt > l->slots ? low : prompt;
    uint32_t most = held, counted = 0, drops = prompt > l->slots;
    if (prompt <= l->slots)
        counted = aq_kv_policy_prompt_rows(&all_queries, l, prompt);
    assert_int_equal(aq_kv_limits_held(l, prompt, prompt), held);
    /* The last token that is generated is never attended. */
    for (uint32_t row = prompt; row + 1 < prompt + max_new; row++) {
        if (held == l->slots) { /* the last `history` rows have counted, and no others */
            assert_int_equal(counted, l->history);
            held = low;
            counted = 0;
            drops++;
        }
        held++;
        most = held > most ? held : most;
        enum aq_kv_counts counts = aq_kv_limits_counts(l, held);
        assert_int_equal(counts == AQ_KV_COUNTS_FIRST, counted == 0 && counts != AQ_KV_COUNTS_NOT);
        assert_true(counts != AQ_KV_COUNTS_NOT || counted == 0);
        counted += counts != AQ_KV_COUNTS_NOT;
        assert_int_equal(aq_kv_limits_held(l, prompt, row + 1), held);
        assert_int_equal(aq_kv_limits_most(l, prompt, row + 1), most);
    }
    assert_int_equal(aq_kv_limits_drop(l, prompt, max_new), drops > 0);
}

static void held_slots_rise_and_fall(void **state)
{
    for (uint32_t high = 2; high <= 40; high++) {
        for (uint32_t low = 1; low < high; low++) {
            for (uint32_t prompt = 1; prompt <= 40; prompt++) {
                uint32_t most = high - low;
                struct aq_kv_limits l = {.slots = high,
                                         .keep_prompt = high,
                                         .heavy_prompt = low - 1,
                                         .recent_prompt = 1,
                                         .bulk = true,
                                         .history = 1 + (prompt + low) % most};
                follow(&l, prompt, 40);
                l.history = most;
                follow(&l, prompt, 1 + prompt % 40);
            }
        }
    }
    (void)state;
}

/* Scores that are of all rows go on through drops. */
static void all_rows_count_without_a_history(void **state)
{
    struct aq_kv_limits l = {.slots = 9, .keep_prompt = 9, .heavy_prompt = 3, .bulk = true};
    for (uint32_t held = 4; held <= 9; held++)
        assert_int_equal(aq_kv_limits_counts(&l, held), AQ_KV_COUNTS);
    (void)state;
}

static struct aq_kv_limits limits_of(struct aq_kv_options o, uint32_t prompt, uint32_t max_new)
{
    struct aq_kv_limits l;
    struct aq_kv_policy p = resolved(o);
    aq_kv_policy_limits(&l, &p, prompt, max_new, 0, 1);
    return l;
}

#define H2O(...)                                                                                   \
    ((struct aq_kv_options){                                                                       \
        .policy = "h2o", .decode_given = true, .decode = AQ_KV_DECODE_BULK, __VA_ARGS__})
#define SNAPKV(...)                                                                                \
    ((struct aq_kv_options){                                                                       \
        .policy = "snapkv", .decode_given = true, .decode = AQ_KV_DECODE_BULK, __VA_ARGS__})
#define HANDS(...) ((struct aq_kv_options){.policy = "scissorhands", __VA_ARGS__})

static void expect(struct aq_kv_limits l, uint32_t most, uint32_t heavy, uint32_t recent,
                   uint32_t history)
{
    assert_true(l.bulk);
    assert_int_equal(l.slots, most);
    assert_int_equal(l.keep_prompt, most);
    assert_int_equal(l.heavy_prompt, heavy);
    assert_int_equal(l.recent_prompt, recent);
    assert_int_equal(l.history, history);
}

static void a_drop_leaves_what_the_options_say(void **state)
{
    expect(limits_of(H2O(.budget = slots(64)), 100, 50), 64, 24, 24, 0);
    expect(limits_of(H2O(.budget = share(0.2)), 400, 80), 96, 36, 36, 0);
    expect(limits_of(H2O(.budget = slots(64), .drop = slots(10), .recent = slots(8)), 9, 9), 64, 46,
           8, 0);
    expect(limits_of(
               H2O(.budget = slots(64), .heavy = slots(16), .history_given = true, .history = 99),
               100, 50),
           64, 16, 32, 16);
    expect(limits_of(SNAPKV(.budget = slots(100)), 100, 50), 100, 43, 32, 25);
    expect(limits_of(SNAPKV(.budget = slots(400)), 100, 50), 400, 268, 32, 32);
    expect(limits_of(HANDS(.budget = slots(1000)), 100, 50), 1000, 490, 10, 400);
    expect(limits_of(HANDS(.budget = slots(100)), 100, 50), 100, 40, 10, 50);
    /* Shares of little: two slots at least, of which one goes. */
    for (uint32_t n = 1; n < 60; n++) {
        for (uint32_t percent = 1; percent <= 100; percent += 3) {
            struct aq_kv_options o = n % 2 ? H2O(.budget = share(percent / 100.0))
                                           : SNAPKV(.budget = share(percent / 100.0));
            o.drop = share((1 + n * percent % 99) / 100.0);
            struct aq_kv_limits l = limits_of(o, n, n / 3);
            uint32_t left = l.heavy_prompt + l.recent_prompt;
            assert_true(l.slots >= 2 && left >= 1 && left < l.slots && l.recent_prompt >= 1);
            assert_true(l.history <= l.slots - left && l.sinks <= l.heavy_prompt);
        }
    }
    (void)state;
}

/* ---- a workload ---- */

static void a_workload_bounds_what_its_sequences_hold(void **state)
{
    static const struct {
        enum aq_kv_layers layers;
        uint32_t beta;
        const char *name;
    } cases[] = {{AQ_KV_LAYERS_UNIFORM, 0, "h2o"},
                 {AQ_KV_LAYERS_RISING, 3, "scissorhands"},
                 {AQ_KV_LAYERS_PYRAMID, 20, "h2o"},
                 {AQ_KV_LAYERS_RISING, 1, "snapkv"}};
    enum { LAYERS = 5, PROMPT = 50, TOTAL = 80 };
    for (uint32_t c = 0; c < 4 * AQ_ARRAY_LEN(cases); c++) {
        struct aq_kv_options o = {.policy = cases[c % 4].name,
                                  .decode_given = true,
                                  .decode = AQ_KV_DECODE_BULK,
                                  .layers_given = true,
                                  .layers = cases[c % 4].layers,
                                  .beta = cases[c % 4].beta};
        o.observe_given = strcmp(o.policy, "snapkv") == 0;
        o.observe = 5;
        o.budget = c < 8 ? slots(25 + c) : share(0.1 * (c - 7));
        struct aq_kv_policy p = resolved(o);
        struct aq_kv_most most[LAYERS];
        struct aq_kv_lengths lengths = {PROMPT, TOTAL, 0, 1};
        uint32_t found[LAYERS] = {0};
        bool differ = false;
        bool told = aq_kv_policy_most(most, &p, &lengths, LAYERS, 2);
        for (uint32_t prompt = 1; prompt <= PROMPT; prompt++) {
            for (uint32_t total = prompt; total <= TOTAL; total++) {
                uint32_t before = 0;
                for (uint32_t i = 0; i < LAYERS; i++) {
                    struct aq_kv_limits l;
                    aq_kv_policy_limits(&l, &p, prompt, total - prompt, i, LAYERS);
                    differ |= i > 0 && l.slots != before;
                    before = l.slots;
                    uint32_t held = aq_kv_limits_most(&l, prompt, total);
                    assert_true(held <= most[i].slots);
                    found[i] = held > found[i] ? held : found[i];
                    assert_int_equal(aq_kv_limits_runs(&l, 2, prompt, total), (held + 31) / 32);
                }
            }
        }
        assert_int_equal(told, differ);
        for (uint32_t i = 0; i < LAYERS; i++)
            assert_int_equal(most[i].slots, found[i]);
    }
    (void)state;
}

/* Layers have the budget on average, whatever the sequence's length. */
static void rising_layers_have_the_budget_on_average(void **state)
{
    struct aq_kv_policy p = resolved(HANDS(.budget = slots(200), .layers_given = true,
                                           .layers = AQ_KV_LAYERS_RISING, .beta = 20));
    /* By hand: 190 beside the recent ones; 190 / 20 = 9, 380 - 9 = 371, (371 - 9) / 3 = 120. */
    static const uint32_t want[] = {21, 141, 261, 381};
    for (uint32_t prompt = 1; prompt < 500; prompt += 83) {
        for (uint32_t i = 0; i < 4; i++) {
            struct aq_kv_limits l;
            aq_kv_policy_limits(&l, &p, prompt, 100, i, 4);
            assert_int_equal(l.slots, want[i]);
            assert_int_equal(l.recent_prompt, 10);
            assert_int_equal(l.heavy_prompt, want[i] - want[i] / 2 - 10);
        }
    }
    (void)state;
}

/* ---- what does not go together ---- */

static void absurd_values_are_refused(void **state)
{
    refused(H2O(.budget = slots(64), .drop = slots(64)), "would leave nothing");
    refused(H2O(.budget = slots(64), .drop = slots(99)), "a drop of all of --kv-budget 64");
    refused(H2O(.budget = slots(64), .drop = slots(0)), "nothing would be dropped");
    refused(H2O(.budget = slots(64), .drop = share(0)), "nothing would be dropped");
    refused(H2O(.budget = slots(64), .drop = share(1)), "everything would be dropped");
    refused(H2O(.budget = slots(64), .drop = share(1.5)), "--kv-drop: expected a share of at most");
    refused(H2O(.budget = slots(64), .drop = slots(60), .recent = slots(4)),
            "nothing is left to choose");
    refused(H2O(.budget = slots(2)), "nothing is left to choose");
    refused(H2O(.budget = slots(64), .heavy = slots(48)), "expected at most 47");
    refused(H2O(.budget = slots(64), .sinks_given = true, .sinks = 25),
            "of which a drop leaves 24");
    refused(H2O(.budget = slots(64), .grace = 3), "--kv-grace");
    refused(H2O(.budget = slots(64), .heavy = slots(9), .recent = slots(9)),
            "--kv-heavy with --kv-recent");
    refused(H2O(.budget = {0}), "expected --kv-budget");
    refused(H2O(.budget = slots(64), .heads_given = true, .heads = AQ_KV_HEADS_SHARED),
            "--kv-heads shared");
    refused(SNAPKV(.budget = slots(42)), "nothing is left to choose"); /* 42 - 10 = 32 */
    refused(SNAPKV(.budget = slots(99), .history_given = true), "--kv-history 0");
    refused(SNAPKV(.budget = slots(99), .group_given = true, .group = AQ_ATTN_MAX_OF_SUMS),
            "--kv-group max-of-sums");
    refused(SNAPKV(.budget = slots(99), .recent = slots(9)), "--kv-recent");
    refused(HANDS(.budget = slots(99), .heavy = slots(9)), "--kv-heavy");
    refused(HANDS(.budget = slots(99), .decay = 0.5), "--kv-decay");
    refused(HANDS(.budget = slots(99), .observe_given = true, .observe = 9), "--kv-history");
    refused(HANDS(.budget = slots(99), .decode_given = true, .decode = AQ_KV_DECODE_OVERWRITE),
            "(bulk)");
    refused(HANDS(.drop = slots(9)), "expected --kv-budget");
    (void)state;
}

static void only_some_policies_drop_in_bulk(void **state)
{
    static const char *const others[] = {"heavy", "window", "tova",      "h2o:hf",
                                         "adakv", "knorm",  "ada-snapkv"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(others); i++)
        refused((struct aq_kv_options){.policy = others[i],
                                       .budget = slots(64),
                                       .decode_given = true,
                                       .decode = AQ_KV_DECODE_BULK},
                "--kv-policy h2o, snapkv, pyramidkv or scissorhands");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(64), .drop = share(0.5)},
            "--kv-drop does not go with it");
    refused((struct aq_kv_options){.policy = "snapkv", .budget = slots(64), .history_given = true},
            "--kv-history does not go with it");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(64), .low = 1}, "--kv-low");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(64), .decode_given = true},
            "--kv-decode grow does not go with it");
    refused((struct aq_kv_options){.policy = "snapkv",
                                   .budget = slots(64),
                                   .decode_given = true,
                                   .decode = AQ_KV_DECODE_OVERWRITE},
            "--kv-decode overwrite does not go with it");
    struct aq_kv_policy p = resolved((struct aq_kv_options){.policy = "h2o",
                                                            .budget = slots(64),
                                                            .decode_given = true,
                                                            .decode = AQ_KV_DECODE_OVERWRITE});
    assert_false(p.bulk);
    (void)state;
}

static void the_text_says_how_much_is_dropped(void **state)
{
    char text[160];
    struct aq_kv_policy p = resolved(H2O(.budget = share(0.2)));
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "h2o: budget 20%, drop 25%, history all");
    assert_true(p.bulk && !aq_kv_policy_grows(&p) && aq_kv_policy_scores(&p));
    p = resolved(HANDS(.budget = slots(64), .low = 0.5));
    assert_string_equal(
        aq_kv_policy_text(text, sizeof(text), &p),
        "scissorhands: budget 64, recent 10, drop 50%, history 32 (not 400), low 0.5");
    p = resolved(SNAPKV(.budget = slots(128), .drop = slots(40)));
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "snapkv: budget 128, observe 32, pool avg:5, drop 40, history 32");
    (void)state;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(held_slots_rise_and_fall),
    cmocka_unit_test(all_rows_count_without_a_history),
    cmocka_unit_test(a_drop_leaves_what_the_options_say),
    cmocka_unit_test(a_workload_bounds_what_its_sequences_hold),
    cmocka_unit_test(rising_layers_have_the_budget_on_average),
    cmocka_unit_test(absurd_values_are_refused),
    cmocka_unit_test(only_some_policies_drop_in_bulk),
    cmocka_unit_test(the_text_says_how_much_is_dropped),
};

AQ_TEST_MAIN(tests)
