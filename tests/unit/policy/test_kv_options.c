/* SPDX-License-Identifier: Apache-2.0
 * Which options a policy takes, alone and with a model's context, and what it is called then. */
#include "policy/kv_policy.h"

#include "tests/test.h"
#include "tests/unit/policy/kv_made.h"

#include <errno.h>
#include <string.h>

static void refused(struct aq_kv_options o, const char *with)
{
    struct aq_kv_policy p, untouched;
    struct aq_err err = {0};
    memset(&p, 0x5a, sizeof(p));
    untouched = p;
    assert_int_equal(aq_kv_policy_resolve(&p, &o, &err), -EINVAL);
    assert_memory_equal(&p, &untouched, sizeof(p));
    if (!strstr(err.text, with))
        fail_msg("expected '%s' in '%s'", with, err.text);
}

static void options_that_contradict_each_other_are_refused(void **state)
{
    refused((struct aq_kv_options){.policy = "h2p"}, "expected full, h2o");
    refused((struct aq_kv_options){.policy = "h2o"}, "--kv-budget");
    refused((struct aq_kv_options){.policy = "h2o", .heavy = slots(4)}, "--kv-recent");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(0)}, "no token");
    refused((struct aq_kv_options){.policy = "h2o", .budget = share(0)}, "no token");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(1)}, "100 % or one token?");
    refused((struct aq_kv_options){.policy = "h2o", .budget = share(1.5)}, "at most 100%");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(8), .recent = slots(0)},
            "--kv-recent 0");
    refused(
        (struct aq_kv_options){
            .policy = "h2o", .budget = slots(8), .heavy = slots(5), .recent = slots(4)},
        "together are above --kv-budget 8");
    refused(
        (struct aq_kv_options){
            .policy = "h2o", .budget = share(.2), .heavy = share(.15), .recent = share(.06)},
        "together are above --kv-budget 20%");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(8), .heavy = slots(8)},
            "leaves nothing");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(8), .recent = slots(9)},
            "above --kv-budget 8");
    refused(
        (struct aq_kv_options){
            .policy = "h2o", .budget = slots(8), .sinks_given = true, .sinks = 5},
        "among the heavy tokens");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(8), .grace = 9}, "at most 8");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(8), .decay = 1.5},
            "--kv-decay 1.5");
    refused((struct aq_kv_options){.policy = "heavy", .budget = slots(8), .heavy = slots(7)},
            "--kv-heavy");
    refused((struct aq_kv_options){.policy = "heavy"}, "--kv-budget");
    refused((struct aq_kv_options){.policy = "window"}, "--kv-recent");
    refused((struct aq_kv_options){.policy = "window", .budget = slots(4)},
            "window smaller than its 4 sinks");
    refused((struct aq_kv_options){.policy = "window", .budget = slots(8), .recent = slots(5)},
            "together are above --kv-budget 8");
    refused((struct aq_kv_options){.policy = "window", .budget = slots(8), .decay = 0.9},
            "--kv-decay");
    refused((struct aq_kv_options){.policy = "window", .budget = slots(8), .heavy = slots(2)},
            "--kv-heavy");
    (void)state;
}

static void ranks_of_prompts_take_options_of_their_own(void **state)
{
    struct aq_kv_options o = {.policy = "snapkv", .budget = slots(64)};
#define WITH(...) ((struct aq_kv_options){.policy = "snapkv", .budget = slots(64), __VA_ARGS__})
    refused((struct aq_kv_options){.policy = "snapkv"}, "snapkv: expected --kv-budget");
    refused((struct aq_kv_options){.policy = "snapkv", .budget = slots(32)}, "the last 32 tokens");
    refused(WITH(.observe_given = true), "--kv-observe 0");
    refused(WITH(.observe_given = true, .observe = 64), "--kv-observe below it");
    refused(WITH(.pool_given = true, .pool = AQ_KV_POOL_AVG, .pool_width = 4), "odd width");
    refused(WITH(.pool_given = true, .pool_order_given = true), "--kv-pool none");
    refused(WITH(.group_given = true, .group = AQ_ATTN_MAX), "--kv-pool-order group-first");
    refused(WITH(.heavy = slots(9)), "--kv-heavy");
    refused(WITH(.decay = 0.5), "--kv-decay");
    refused(WITH(.sinks_given = true, .sinks = 33), "of which there are 32");
    refused(WITH(.layers_given = true, .layers = AQ_KV_LAYERS_PYRAMID), "from 1 on");
#undef WITH
    refused((struct aq_kv_options){.policy = "pyramidkv", .budget = slots(32)},
            "nothing is left to choose");
    refused((struct aq_kv_options){.policy = "h2o",
                                   .budget = slots(64),
                                   .layers_given = true,
                                   .layers = AQ_KV_LAYERS_RISING,
                                   .beta = 20},
            "--kv-policy h2o: --kv-layers does not go with it");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(64), .observe_given = true},
            "--kv-policy h2o: --kv-observe");
    refused((struct aq_kv_options){.policy = "window", .budget = slots(64), .pool_given = true},
            "--kv-policy window: --kv-pool");
    refused((struct aq_kv_options){.policy = "tova", .budget = slots(64), .pool_order_given = true},
            "--kv-policy tova: --kv-pool-order");
    refused((struct aq_kv_options){.policy = "h2o",
                                   .budget = slots(64),
                                   .group_given = true,
                                   .group = AQ_ATTN_MAX_OF_SUMS},
            "--kv-group max-of-sums");
    refused((struct aq_kv_options){.policy = "tova", .budget = slots(64), .group_given = true},
            "--kv-group");
    refused((struct aq_kv_options){.policy = "knorm", .budget = slots(64), .group_given = true},
            "--kv-group");
    refused((struct aq_kv_options){.policy = "expected"},
            "--kv-policy expected: expected --kv-budget");
    refused((struct aq_kv_options){.policy = "expected", .budget = slots(9), .ahead_given = true},
            "--kv-ahead 0: positions behind the prompt");
    refused((struct aq_kv_options){.policy = "expected",
                                   .budget = slots(9),
                                   .ahead_given = true,
                                   .ahead = AQ_KV_AHEAD_MAX + 1},
            "expected 1 to 1048576");
    refused((struct aq_kv_options){.policy = "expected", .budget = slots(3)},
            "--kv-sinks 4: sinks");
    refused(
        (struct aq_kv_options){.policy = "expected", .budget = slots(9), .group_given = true},
        "--kv-policy expected: --kv-group does not go with it: it ranks a prompt by what queries");
    refused((struct aq_kv_options){.policy = "expected",
                                   .budget = slots(9),
                                   .decode_given = true,
                                   .decode = AQ_KV_DECODE_BULK},
            "--kv-policy expected: --kv-decode bulk does not go with it");
    refused(
        (struct aq_kv_options){
            .policy = "snapkv", .budget = slots(90), .ahead_given = true, .ahead = 9},
        "--kv-policy snapkv: --kv-ahead does not go with it: it expects no queries");
    refused((struct aq_kv_options){.policy = "keydiff", .budget = slots(64), .recent = slots(4)},
            "--kv-recent");
    o.group_given = o.pool_given = o.pool_order_given = o.observe_given = true;
    o.group = AQ_ATTN_MAX;
    o.pool = AQ_KV_POOL_MAX;
    o.pool_width = 7;
    o.observe = 16;
    struct aq_kv_policy p = resolved(o);
    char text[160];
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "snapkv: budget 64, observe 16, pool max:7 group-first, group max");
    assert_true(aq_kv_policy_values(&p) && !aq_kv_policy_each(&p));
    o.group = AQ_ATTN_MAX_OF_SUMS;
    p = resolved(o);
    assert_true(aq_kv_policy_each(&p) && aq_kv_policy_grows(&p));
    p = resolved((struct aq_kv_options){.policy = "snapkv", .budget = share(0.5)});
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "snapkv: budget 50%, observe 32, pool avg:5");
    p = resolved((struct aq_kv_options){.policy = "pyramidkv", .budget = slots(99)});
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "pyramidkv: budget 99, observe 32, pool avg:5, layers pyramid:20");
    (void)state;
}

static void variants_and_full_take_no_more_than_they_know(void **state)
{
    refused((struct aq_kv_options){.policy = "full", .budget = share(.2)}, "keeps every token");
    refused((struct aq_kv_options){.budget = slots(64)}, "--kv-policy full: --kv-budget");
    refused((struct aq_kv_options){.sinks_given = true}, "--kv-sinks");
    refused((struct aq_kv_options){.group_given = true}, "--kv-group");
    refused((struct aq_kv_options){.policy = "h2o:hf", .budget = share(.2)}, "counts in slots");
    refused((struct aq_kv_options){.policy = "h2o:hf", .budget = slots(9), .grace = 3},
            "--kv-grace");
    refused((struct aq_kv_options){.policy = "h2o:flexgen"}, "--kv-budget or --kv-heavy");
    refused((struct aq_kv_options){.policy = "h2o:flexgen", .budget = slots(3)}, "2 heavy tokens");
    refused(
        (struct aq_kv_options){.policy = "h2o:flexgen", .budget = share(.2), .recent = share(.1)},
        "--kv-recent");
    assert_false(aq_kv_policy_drops(&(struct aq_kv_policy){0}));
    struct aq_kv_policy p = resolved((struct aq_kv_options){.policy = "full", .budget = share(1)});
    assert_false(aq_kv_policy_drops(&p));
    (void)state;
}

static void budgets_above_the_context_are_refused(void **state)
{
    struct aq_err err = {0};
    struct aq_kv_policy p =
        resolved((struct aq_kv_options){.policy = "h2o", .budget = slots(1024)});
    assert_int_equal(aq_kv_policy_check_context(&p, 1024, 1024, &err), 0);
    assert_int_equal(aq_kv_policy_check_context(&p, 1023, 1023, &err), -EINVAL);
    assert_non_null(strstr(err.text, "1023 tokens of the model's context"));
    p = resolved(
        (struct aq_kv_options){.policy = "h2o", .heavy = slots(600), .recent = slots(600)});
    assert_int_equal(aq_kv_policy_check_context(&p, 1024, 1024, &err), -EINVAL);
    p = resolved((struct aq_kv_options){.policy = "h2o", .budget = share(1)});
    assert_int_equal(aq_kv_policy_check_context(&p, 16, 16, &err), 0);
    (void)state;
}

/* Sequences that go on behind the model's positions. */
static void longer_contexts_need_positions_in_the_cache(void **state)
{
    struct aq_err err = {0};
    struct aq_kv_options o = {.policy = "window", .budget = slots(64)};
    struct aq_kv_policy p = resolved(o);
    assert_int_equal(aq_kv_policy_check_context(&p, 4096, 1024, &err), -EINVAL);
    assert_non_null(strstr(err.text, "--context 4096: the model knows 1024 positions; only"));
    o.positions_given = true;
    o.positions = AQ_KV_POSITIONS_CACHE;
    p = resolved(o);
    assert_int_equal(aq_kv_policy_check_context(&p, 4096, 1024, &err), 0);
    assert_int_equal(aq_kv_policy_check_context(&p, 4096, 64, &err), 0);
    assert_int_equal(aq_kv_policy_check_context(&p, 4096, 63, &err), -EINVAL);
    assert_non_null(strstr(err.text, "4 sinks and the newest 60 tokens need more"));
    o.budget = share(0.5);
    p = resolved(o);
    assert_int_equal(aq_kv_policy_check_context(&p, 1024, 1024, &err), 0);
    assert_int_equal(aq_kv_policy_check_context(&p, 1025, 1024, &err), -EINVAL);
    assert_non_null(strstr(err.text, "in slots"));
    (void)state;
}

/* Of a literal cache of positions: how much nearer its first one is to the row than in the text. */
static void the_text_says_what_was_resolved(void **state)
{
    char text[160];
    struct aq_kv_policy p = resolved((struct aq_kv_options){.policy = "h2o",
                                                            .budget = share(0.2),
                                                            .heavy = slots(16),
                                                            .sinks_given = true,
                                                            .sinks = 4,
                                                            .decay = 0.98,
                                                            .group_given = true,
                                                            .group = AQ_ATTN_MAX});
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "h2o: budget 20%, heavy 16, sinks 4, decay 0.98, group max");
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &(struct aq_kv_policy){0}), "full");
    assert_string_equal(aq_kv_policy_text(text, 6, &p), "h2o: ");
    (void)state;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ranks_of_prompts_take_options_of_their_own),
    cmocka_unit_test(options_that_contradict_each_other_are_refused),
    cmocka_unit_test(variants_and_full_take_no_more_than_they_know),
    cmocka_unit_test(budgets_above_the_context_are_refused),
    cmocka_unit_test(longer_contexts_need_positions_in_the_cache),
    cmocka_unit_test(the_text_says_what_was_resolved),
};

AQ_TEST_MAIN(tests)
