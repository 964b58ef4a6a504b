/* SPDX-License-Identifier: Apache-2.0
 * Heads of a layer that share their slots: how much room they take together, what they keep of a
 * prompt, and what each may drop after that. */
#include "base/prng.h"
#include "policy/kv_policy.h"
#include "tests/test.h"
#include "tests/unit/policy/kv_made.h"

#include <math.h>
#include <string.h>

enum { HEADS_MAX = 6, TOKENS_MAX = 64 };

/* Options of adakv, drawn; those of h2o with them are the same but for the floor. */
static struct aq_kv_options drawn(uint64_t seed)
{
#define DRAW(n) ((uint32_t)aq_prng_below(seed, 77, ++draw, (n)))
    uint64_t draw = 0;
    struct aq_kv_options o = {.policy = "adakv"};
    if (DRAW(3))
        o.floor = DRAW(2) ? share(DRAW(101) / 100.0) : slots(DRAW(6));
    if (DRAW(2)) {
        o.budget = DRAW(2) ? share((1 + DRAW(100)) / 100.0) : slots(2 + DRAW(40));
    } else {
        o.heavy = slots(6 + DRAW(30));
        o.recent = slots(1 + DRAW(30));
        o.sinks_given = true;
        o.sinks = DRAW(6);
        uint32_t own = o.floor.unit == AQ_KV_SLOTS ? o.floor.slots : 0;
        o.grace = DRAW(o.recent.slots + 1 + (own > o.sinks ? own - o.sinks : 0));
    }
    return o;
#undef DRAW
}

/* ---- room -------------------------------------------------------------------------------- */

/* Head-blocks that heads fill whole. */
static uint32_t whole_blocks(const uint32_t *held, uint32_t heads)
{
    uint32_t blocks = 0;
    for (uint32_t h = 0; h < heads; h++)
        blocks += held[h] / 32;
    return blocks;
}

/* However a layer's slots are shared out; and there is a way that takes all of that room. */
static void packed_runs_are_bounded_and_the_bound_is_reached(void **state)
{
    for (uint32_t heads = 1; heads <= HEADS_MAX; heads++) {
        for (uint32_t each = 1; each <= 130; each++) {
            uint32_t held[HEADS_MAX], all = heads * each;
            uint32_t runs = aq_kv_packed_runs(each, false, heads);
            for (uint32_t draw = 0; draw < 20; draw++) {
                uint32_t left = all - heads;
                for (uint32_t h = 0; h < heads; h++) {
                    bool last = h + 1 == heads;
                    uint32_t n =
                        last ? left : (uint32_t)aq_prng_below(each, draw, h, (uint64_t)left + 1);
                    held[h] = 1 + n;
                    left -= n;
                }
                assert_true(whole_blocks(held, heads) <= runs * heads);
            }
            memset(held, 0, sizeof(held));
            held[0] = all;
            assert_int_equal((whole_blocks(held, heads) + heads - 1) / heads, runs);
            /* Half a slot more in each head, as numbers that are mixed may have. */
            held[0] += heads / 2;
            assert_int_equal((whole_blocks(held, heads) + heads - 1) / heads,
                             aq_kv_packed_runs(each, true, heads));
        }
    }
}

static void what_is_shared_takes_at_most_one_run_more(void **state)
{
    struct aq_kv_policy even =
        resolved((struct aq_kv_options){.policy = "h2o", .budget = slots(9)});
    struct aq_kv_policy p = resolved((struct aq_kv_options){.policy = "adakv", .budget = slots(9)});
    for (uint32_t heads = 1; heads <= 64; heads++) {
        for (uint32_t each = 1; each <= 200; each++) {
            struct aq_kv_most most = {.kept = each, .slots = each};
            uint32_t runs = aq_kv_policy_runs(&p, &most, heads);
            assert_int_equal(aq_kv_policy_runs(&even, &most, heads), (each + 31) / 32);
            assert_in_range(runs, (each + 31) / 32, (each + 31) / 32 + 1);
        }
    }
    /* 12 heads of 128 slots: 4 head-blocks each, and one for what they leave over. */
    assert_int_equal(aq_kv_policy_runs(&p, &(struct aq_kv_most){.kept = 128, .slots = 128}, 12), 5);
    assert_int_equal(aq_kv_policy_runs(&p, &(struct aq_kv_most){.kept = 129, .slots = 129}, 12), 5);
}

/* Most that one head keeps of a prompt, all other heads having what they keep for themselves. */
static uint32_t most_of(const struct aq_kv_limits *l, uint32_t heads, uint32_t n)
{
    uint32_t heavy = l->floor_prompt + heads * (l->heavy_prompt - l->floor_prompt);
    if (l->mix)
        heavy = l->floor_prompt + (uint32_t)ceil(heads * l->heavy_prompt * (1 - l->mix * 1e-9));
    return l->recent_prompt + (uint32_t)aq_min_u64(heavy, n - l->recent_prompt);
}

/* The same with heads that grow: those of adakv, and of ada-snapkv with the same budget. */
static struct aq_kv_policy drawn_policy(uint64_t seed)
{
    struct aq_kv_options o = drawn(seed);
    if (seed % 2 && o.budget.unit != AQ_KV_UNSET) {
        o = (struct aq_kv_options){.policy = seed % 4 == 1 ? "ada-snapkv" : "ada-pyramid",
                                   .budget = o.budget,
                                   .observe_given = true,
                                   .observe = 1,
                                   .floor = share(0.2 * (double)(seed % 5)),
                                   .floor_kind = seed % 3 ? AQ_KV_FLOOR_MIX : AQ_KV_FLOOR_RESERVE};
    }
    return resolved(o);
}

static void a_workload_bounds_heads_and_runs_of_its_sequences(void **state)
{
    enum { PROMPT = 60, TOTAL = 90, LAYERS = 3 };
    uint32_t grown = 0;
    for (uint64_t seed = 0; seed < 120; seed++) {
        struct aq_kv_policy p = drawn_policy(seed);
        struct aq_kv_most most[LAYERS];
        uint32_t heads = 1 + (uint32_t)seed % 6, fed = seed % 3 ? 12 : TOTAL;
        aq_kv_policy_most(most, &p, &(struct aq_kv_lengths){PROMPT, TOTAL, fed, 0}, LAYERS, heads);
        for (uint32_t n = 0; n < PROMPT * LAYERS; n++) {
            uint32_t layer = n % LAYERS, prompt = 1 + n / LAYERS;
            for (uint32_t total = prompt; total <= TOTAL && total <= prompt + fed; total++) {
                struct aq_kv_limits l;
                aq_kv_policy_limits(&l, &p, prompt, total - prompt, layer, LAYERS);
                uint32_t grow =
                    aq_kv_limits_held(&l, prompt, total) - aq_kv_limits_held(&l, prompt, prompt);
                uint32_t runs = aq_kv_limits_runs(&l, heads, prompt, total);
                assert_true(runs <= aq_kv_policy_runs(&p, &most[layer], heads));
                bool differ = aq_kv_limits_differ(&l, prompt);
                uint32_t held = differ ? most_of(&l, heads, prompt) + grow
                                       : aq_kv_limits_held(&l, prompt, total);
                assert_true(held <= most[layer].head);
                grown += differ && grow > 0;
            }
        }
    }
    assert_true(grown > 1000);
}

/* ---- what is kept ------------------------------------------------------------------------ */

/* Of prompts in which few keys get much, and many the same. */
static double score(uint64_t seed, uint32_t head, uint32_t position)
{
    double u = aq_prng_uniform(seed, head, position);
    return (double)(uint32_t)(u * u * u * (2 + seed % 3) * 10);
}

struct layer {
    uint32_t heads, n;
    bool kept[HEADS_MAX][TOKENS_MAX];
};

/* Ada-KV as its safeguard is written in kvpress: what a head keeps for itself is worth more than
 * anything; then the lowest values of the layer are dropped, one after the other. */
static void keep_like_ada_kv(struct layer *l, const struct aq_kv_limits *k, uint64_t seed)
{
    double value[HEADS_MAX][TOKENS_MAX];
    uint32_t old = l->n - k->recent_prompt;
    for (uint32_t h = 0; h < l->heads; h++) {
        for (uint32_t j = 0; j < l->n; j++) {
            l->kept[h][j] = true;
            value[h][j] = j < k->sinks ? 1e9 : score(seed, h, j);
        }
        for (uint32_t i = 0; i < k->floor_prompt; i++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t j = 0; j < old; j++) {
                if (value[h][j] < 1e12 && (best == UINT32_MAX || value[h][j] >= value[h][best]))
                    best = j;
            }
            value[h][best] = 1e12;
        }
    }
    for (uint32_t left = l->heads * old; left > l->heads * k->heavy_prompt; left--) {
        uint32_t drop[2] = {UINT32_MAX, 0};
        for (uint32_t j = 0; j < old; j++) {
            for (uint32_t h = 0; h < l->heads; h++) {
                double least = drop[0] == UINT32_MAX ? 1e30 : value[drop[0]][drop[1]];
                if (l->kept[h][j] &&
                    (value[h][j] < least || (value[h][j] == least && j == drop[1]))) {
                    drop[0] = h;
                    drop[1] = j;
                }
            }
        }
        l->kept[drop[0]][drop[1]] = false;
    }
}

/* Is (h, j) worth more than (g, i)?  As kv_policy.h says it. */
static bool better(const struct aq_kv_limits *k, uint64_t seed, uint32_t h, uint32_t j, uint32_t g,
                   uint32_t i)
{
    if ((j < k->sinks) != (i < k->sinks))
        return j < k->sinks;
    if (j >= k->sinks && score(seed, h, j) != score(seed, g, i))
        return score(seed, h, j) > score(seed, g, i);
    return j != i ? j > i : h < g;
}

static uint32_t rank_of(const struct aq_kv_limits *k, uint64_t seed, uint32_t old, uint32_t h,
                        uint32_t j)
{
    uint32_t rank = 0;
    for (uint32_t i = 0; i < old; i++)
        rank += better(k, seed, h, i, h, j);
    return rank;
}

/* The rule of kv_policy.h, as its comment says it. */
static bool rule_keeps(const struct aq_kv_limits *k, const struct layer *l, uint64_t seed,
                       uint32_t h, uint32_t j)
{
    uint32_t old = l->n - k->recent_prompt, ahead = 0;
    if (j >= old || rank_of(k, seed, old, h, j) < k->floor_prompt)
        return true;
    for (uint32_t g = 0; g < l->heads; g++) {
        for (uint32_t i = 0; i < old; i++)
            ahead += rank_of(k, seed, old, g, i) >= k->floor_prompt && better(k, seed, g, i, h, j);
    }
    return ahead < l->heads * (k->heavy_prompt - k->floor_prompt);
}

static void heads_share_a_prompt_as_ada_kv_does(void **state)
{
    uint32_t cut = 0, uneven = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct layer l = {.heads = 1 + (uint32_t)seed % 5, .n = 24 + (uint32_t)seed % 20};
        struct aq_kv_policy p = resolved(drawn(seed));
        struct aq_kv_limits limits;
        aq_kv_policy_limits(&limits, &p, l.n, 16, 0, 1);
        if (!aq_kv_limits_differ(&limits, l.n))
            continue;
        keep_like_ada_kv(&l, &limits, seed);
        uint32_t all = 0;
        for (uint32_t h = 0; h < l.heads; h++) {
            uint32_t held = 0;
            for (uint32_t j = 0; j < l.n; j++) {
                assert_int_equal(rule_keeps(&limits, &l, seed, h, j), l.kept[h][j]);
                held += l.kept[h][j];
            }
            assert_true(held >= limits.recent_prompt + limits.floor_prompt);
            assert_true(held <= most_of(&limits, l.heads, l.n));
            uneven += held != limits.slots;
            all += held;
        }
        assert_int_equal(all, l.heads * limits.slots);
        assert_int_equal(limits.slots, aq_kv_limits_held(&limits, l.n, l.n));
        cut++;
    }
    assert_true(cut > 20 && uneven > 20);
}

/* The smallest head: what it keeps for itself, all of it sinks or old, and its recent ones. */
static void the_smallest_head_has_a_victim_at_every_step(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct aq_kv_policy p = resolved(drawn(seed));
        struct aq_kv_limits l;
        uint32_t n = 60, position[TOKENS_MAX + TOKENS_MAX], held = 0;
        aq_kv_policy_limits(&l, &p, n, 40, 0, 1);
        for (uint32_t j = 0; j < l.floor_prompt; j++)
            position[held++] = j;
        for (uint32_t j = n - l.recent_prompt; j < n; j++)
            position[held++] = j;
        for (uint32_t row = n; row < n + 40 && aq_kv_limits_differ(&l, n); row++) {
            uint32_t victim = UINT32_MAX;
            for (uint32_t i = 0; i < held; i++) { /* it may be any candidate: take the newest */
                bool candidate = position[i] >= l.sinks && position[i] + l.recent_decode < row + 1;
                if (candidate && (victim == UINT32_MAX || position[i] > position[victim]))
                    victim = i;
            }
            assert_int_not_equal(victim, UINT32_MAX);
            position[victim] = row;
        }
    }
}

/* Nothing is left to share where each head keeps all of its own. */
static void a_whole_floor_is_h2o(void **state)
{
    struct aq_kv_options o = {.policy = "adakv", .budget = share(0.3), .floor = share(1)};
    struct aq_kv_policy p = resolved(o);
    o = (struct aq_kv_options){.policy = "h2o", .budget = share(0.3)};
    struct aq_kv_policy h2o = resolved(o);
    for (uint32_t n = 1; n < 80; n++) {
        struct aq_kv_limits a, b;
        aq_kv_policy_limits(&a, &p, n, 20, 0, 1);
        aq_kv_policy_limits(&b, &h2o, n, 20, 0, 1);
        assert_int_equal(a.floor_prompt, a.heavy_prompt);
        a.shared = false;
        a.floor_prompt = 0;
        assert_memory_equal(&a, &b, sizeof(a));
    }
}

/* ---- options ----------------------------------------------------------------------------- */

static void the_floor_is_a_share_of_the_heavy_slots(void **state)
{
    struct aq_kv_options o = {.policy = "adakv", .budget = slots(40)};
    struct aq_kv_policy p = resolved(o);
    struct aq_kv_limits l;
    char text[128];
    aq_kv_policy_limits(&l, &p, 100, 20, 0, 1);
    assert_int_equal(l.heavy_prompt, 20);
    assert_int_equal(l.floor_prompt, 4);
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p), "adakv: budget 40, floor 20%");
    o.floor = slots(25); /* of fewer heavy ones all */
    p = resolved(o);
    aq_kv_policy_limits(&l, &p, 100, 20, 0, 1);
    assert_int_equal(l.floor_prompt, 20);
    o.floor = share(0);
    o.sinks_given = true;
    o.sinks = 3; /* they stay in any case */
    p = resolved(o);
    aq_kv_policy_limits(&l, &p, 100, 20, 0, 1);
    assert_int_equal(l.floor_prompt, 3);
}

static void expect_text(struct aq_kv_options o, const char *want)
{
    struct aq_kv_policy p = resolved(o);
    char text[160];
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p), want);
}

static void rows_say_how_their_heads_share(void **state)
{
    struct aq_kv_options o = {.policy = "ada-snapkv", .budget = slots(64)};
    struct aq_kv_limits l;
    expect_text(o, "ada-snapkv: budget 64, floor mix:20%, observe 32, pool max:7 group-first");
    struct aq_kv_policy p = resolved(o);
    aq_kv_policy_limits(&l, &p, 100, 20, 0, 1);
    assert_true(l.shared && l.mix == 200000000);
    assert_int_equal(l.floor_prompt, 6); /* floor(0.2 * (64 - 32)) */
    assert_int_equal(l.slots, 84);
    o.policy = "ada-pyramid";
    expect_text(o, "ada-pyramid: budget 64, floor mix:20%, observe 32, pool max:7 group-first, "
                   "layers pyramid:20");
    o.heads_given = true;
    expect_text(o, "ada-pyramid: budget 64, observe 32, pool max:7 group-first, layers pyramid:20, "
                   "heads uniform");
    o = (struct aq_kv_options){
        .policy = "h2o", .budget = slots(64), .heads_given = true, .heads = AQ_KV_HEADS_SHARED};
    expect_text(o, "h2o: budget 64, floor 20%, heads shared");
    o.policy = "knorm";
    o.floor = share(0.5);
    expect_text(o, "knorm: budget 64, floor 50%, heads shared");
}

static void refused(struct aq_kv_options o, const char *with)
{
    struct aq_kv_policy p;
    struct aq_err err = {0};
    assert_int_equal(aq_kv_policy_resolve(&p, &o, &err), -EINVAL);
    if (!strstr(err.text, with))
        fail_msg("expected '%s' in '%s'", with, err.text);
}

static void options_that_do_not_go_with_sharing_are_refused(void **state)
{
    refused((struct aq_kv_options){.policy = "adakv"}, "--kv-policy adakv: expected --kv-budget");
    refused((struct aq_kv_options){.policy = "h2o", .budget = slots(8), .floor = share(.2)},
            "heads do not share their slots; --kv-policy adakv lets them");
    refused((struct aq_kv_options){.policy = "snapkv", .budget = slots(64), .floor = share(.2)},
            "--kv-heads shared");
    refused(
        (struct aq_kv_options){
            .policy = "tova", .budget = slots(8), .heads_given = true, .heads = AQ_KV_HEADS_SHARED},
        "--kv-policy tova: --kv-heads shared does not go with it");
    refused((struct aq_kv_options){.policy = "ada-snapkv",
                                   .budget = slots(64),
                                   .floor = slots(9),
                                   .floor_kind = AQ_KV_FLOOR_MIX},
            "--kv-floor mix:9: expected a share");
    refused((struct aq_kv_options){.policy = "full", .floor = share(.2)}, "--kv-floor");
    refused((struct aq_kv_options){.policy = "adakv", .budget = slots(8), .floor = share(1.2)},
            "--kv-floor: expected a share of at most 100%");
    refused(
        (struct aq_kv_options){
            .policy = "adakv", .heavy = slots(8), .recent = slots(8), .floor = slots(9)},
        "--kv-floor 9 is above --kv-heavy 8");
    struct aq_kv_options young = {.policy = "adakv",
                                  .heavy = slots(8),
                                  .recent = slots(8),
                                  .floor = slots(3),
                                  .sinks_given = true,
                                  .sinks = 1,
                                  .grace = 11};
    refused(young, "no more than its 8 recent tokens and a floor of 3; with 1 sinks expected at "
                   "most 10");
    young.grace = 10;
    resolved(young);
    struct aq_kv_policy p = resolved(
        (struct aq_kv_options){.policy = "adakv", .budget = slots(80), .floor = slots(90)});
    struct aq_err err = {0};
    assert_int_equal(aq_kv_policy_check_context(&p, 85, 85, &err), -EINVAL);
    assert_non_null(strstr(err.text, "--kv-floor 90: above the 85 tokens"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(packed_runs_are_bounded_and_the_bound_is_reached),
    cmocka_unit_test(what_is_shared_takes_at_most_one_run_more),
    cmocka_unit_test(a_workload_bounds_heads_and_runs_of_its_sequences),
    cmocka_unit_test(heads_share_a_prompt_as_ada_kv_does),
    cmocka_unit_test(the_smallest_head_has_a_victim_at_every_step),
    cmocka_unit_test(a_whole_floor_is_h2o),
    cmocka_unit_test(the_floor_is_a_share_of_the_heavy_slots),
    cmocka_unit_test(rows_say_how_their_heads_share),
    cmocka_unit_test(options_that_do_not_go_with_sharing_are_refused),
};

AQ_TEST_MAIN(tests)
