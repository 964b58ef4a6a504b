/* SPDX-License-Identifier: Apache-2.0
 * What policies keep, by loops of their own, and how many slots sequences come to hold. */
#include "policy/kv_policy.h"

#include "base/prng.h"
#include "tests/test.h"
#include "tests/unit/policy/kv_made.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 160 };

/* ---- what queries give to keys: drawn, the same for everybody ---- */

static double given(uint64_t seed, uint32_t row, uint32_t key)
{
    double u = aq_prng_uniform(seed, row, key);
    return u * u * u; /* few keys get much */
}

/* What a key has when a prompt of n tokens has been attended. */
static double prompt_score(uint64_t seed, uint32_t n, uint32_t key)
{
    double sum = 0;
    for (uint32_t row = key; row < n; row++)
        sum += given(seed, row, key);
    return sum;
}

/* Keys in any order. */
struct set {
    uint32_t position[TOKENS_MAX + 1];
    double score[TOKENS_MAX + 1];
    uint32_t count;
};

static void put(struct set *s, uint32_t position, double score)
{
    assert_true(s->count < TOKENS_MAX + 1);
    s->position[s->count] = position;
    s->score[s->count++] = score;
}

static void attend(struct set *s, uint64_t seed, uint32_t row)
{
    for (uint32_t i = 0; i < s->count; i++)
        s->score[i] += given(seed, row, s->position[i]);
}

static bool has(const struct set *s, uint32_t position)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->position[i] == position)
            return true;
    }
    return false;
}

static void assert_same_positions(const struct set *a, const struct set *b)
{
    assert_int_equal(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++)
        assert_true(has(b, a->position[i]));
}

/* ---- the rule of kv_policy.h, as its comment says it ---- */

struct rule {
    struct aq_kv_policy policy;
    struct aq_kv_limits limits;
    struct set kept;
};

static bool better(const struct rule *r, const struct set *s, uint32_t a, uint32_t b)
{
    uint32_t pa = s->position[a], pb = s->position[b];
    bool sink_a = pa < r->limits.sinks, sink_b = pb < r->limits.sinks;
    if (sink_a != sink_b)
        return sink_a;
    if (r->policy.prompt.source != AQ_KV_SOURCE_POSITION && s->score[a] != s->score[b])
        return s->score[a] > s->score[b];
    return pa > pb;
}

static void rule_prefill(struct rule *r, uint64_t seed, uint32_t n)
{
    struct set all = {0}, kept = {0};
    for (uint32_t j = 0; j < n; j++)
        put(&all, j, prompt_score(seed, n, j));
    r->kept = all;
    if (n <= r->limits.keep_prompt)
        return;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t ahead = 0;
        for (uint32_t i = 0; i < n - r->limits.recent_prompt; i++)
            ahead += better(r, &all, i, j);
        if (j >= n - r->limits.recent_prompt || ahead < r->limits.heavy_prompt)
            put(&kept, j, all.score[j]);
    }
    r->kept = kept;
}

static uint32_t rule_victim(const struct rule *r, uint32_t row)
{
    const struct set *s = &r->kept;
    bool by_position = r->policy.decode.source == AQ_KV_SOURCE_POSITION;
    uint32_t victim = UINT32_MAX;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->position[i] < r->limits.sinks || s->position[i] + r->limits.recent_decode >= row + 1)
            continue;
        if (victim == UINT32_MAX)
            victim = i;
        else if (by_position                       ? s->position[i] > s->position[victim]
                 : s->score[i] != s->score[victim] ? s->score[i] < s->score[victim]
                                                   : s->position[i] < s->position[victim])
            victim = i;
    }
    assert_int_not_equal(victim, UINT32_MAX); /* there is always a candidate */
    return victim;
}

static void rule_step(struct rule *r, uint64_t seed, uint32_t row)
{
    if (r->kept.count == r->limits.slots) {
        uint32_t victim = rule_victim(r, row);
        r->kept.position[victim] = row;
        r->kept.score[victim] = 0;
    } else {
        put(&r->kept, row, 0);
    }
    attend(&r->kept, seed, row);
}

static struct rule rule_for(struct aq_kv_options o, uint32_t prompt, uint32_t max_new)
{
    struct rule r = {.policy = resolved(o)};
    aq_kv_policy_limits(&r.limits, &r.policy, prompt, max_new, 0, 1);
    return r;
}

/* ---- the loops of the programs that the variants repeat, as h2o.md states them ---- */

/* H2O's fork of FlexGen: slots 0..K-1 heavy, K..2K-2 a ring of the recent ones, 2K-1 the row's own.
 * After the step the weakest heavy one makes room for the oldest recent one, whatever its score. */
struct flexgen {
    uint32_t k;
    struct set slot;
};

static void flexgen_prefill(struct flexgen *f, uint64_t seed, uint32_t n)
{
    uint32_t k = f->k;
    bool taken[TOKENS_MAX] = {false};
    f->slot = (struct set){0};
    for (uint32_t h = 0; h < k; h++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t j = 0; j <= n - k; j++) { /* all but the last K - 1 */
            if (!taken[j] &&
                (best == UINT32_MAX || prompt_score(seed, n, j) > prompt_score(seed, n, best)))
                best = j;
        }
        taken[best] = true;
        put(&f->slot, best, prompt_score(seed, n, best));
    }
    for (uint32_t j = n - k + 1; j < n; j++)
        put(&f->slot, j, prompt_score(seed, n, j));
}

/* Step i = 1, 2, ...; *ret_attended: what its row saw. */
static void flexgen_step(struct flexgen *f, struct set *ret_attended, uint64_t seed, uint32_t i,
                         uint32_t row)
{
    uint32_t k = f->k, oldest = k + (i - 1) % (k - 1), victim = 0;
    f->slot.count = 2 * k - 1;
    put(&f->slot, row, 0);
    attend(&f->slot, seed, row);
    *ret_attended = f->slot;
    for (uint32_t h = 1; h < k; h++) {
        if (f->slot.score[h] < f->slot.score[victim])
            victim = h;
    }
    f->slot.position[victim] = f->slot.position[oldest];
    f->slot.score[victim] = f->slot.score[oldest];
    f->slot.position[oldest] = f->slot.position[2 * k - 1];
    f->slot.score[oldest] = f->slot.score[2 * k - 1];
}

/* H2O's "real drop" and llama-recipes: attend everything and the new key, then, if that is more
 * than heavy + recent, keep the heaviest of the older ones in their order, and the last recent. */
static void hf_drop(struct set *s, uint32_t heavy, uint32_t recent)
{
    struct set kept = {0};
    if (s->count <= heavy + recent)
        return;
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t ahead = 0;
        for (uint32_t j = 0; j < s->count - recent; j++)
            ahead += s->score[j] > s->score[i];
        if (i >= s->count - recent || ahead < heavy)
            put(&kept, s->position[i], s->score[i]);
    }
    *s = kept;
}

/* ---- tests: kept sets ---- */

static void flexgen_keeps_what_its_loop_keeps(void **state)
{
    static const uint32_t cases[][2] = {/* prompt, K */ {3, 2},
                                        {4, 2},
                                        {5, 2},
                                        {5, 3},
                                        {9, 5},
                                        {10, 5},
                                        {11, 5},
                                        {40, 4},
                                        {40, 20},
                                        {64, 7},
                                        {100, 33}};
    for (uint32_t c = 0; c < AQ_ARRAY_LEN(cases); c++) {
        uint32_t n = cases[c][0], k = cases[c][1];
        struct aq_kv_options o = {.policy = "h2o:flexgen", .heavy = slots(k)};
        struct rule r = rule_for(o, n, 40);
        struct flexgen f = {.k = k};
        struct set attended;
        rule_prefill(&r, 100 + c, n);
        flexgen_prefill(&f, 100 + c, n);
        assert_same_positions(&r.kept, &f.slot);
        for (uint32_t i = 1; i < 40; i++) {
            rule_step(&r, 100 + c, n + i - 1);
            flexgen_step(&f, &attended, 100 + c, i, n + i - 1);
            assert_same_positions(&r.kept, &attended);
        }
    }
    (void)state;
}

static void hf_keeps_what_its_loop_keeps(void **state)
{
    static const uint32_t cases[][3] = {/* prompt, heavy, recent */
                                        {1, 1, 1},   {2, 1, 1},  {3, 1, 1},    {7, 4, 4},
                                        {8, 4, 4},   {9, 4, 4},  {10, 4, 4},   {60, 0, 5},
                                        {60, 20, 1}, {60, 3, 9}, {100, 16, 16}};
    for (uint32_t c = 0; c < AQ_ARRAY_LEN(cases); c++) {
        uint32_t n = cases[c][0], heavy = cases[c][1], recent = cases[c][2];
        struct aq_kv_options o = {
            .policy = "h2o:hf", .heavy = slots(heavy), .recent = slots(recent)};
        struct rule r = rule_for(o, n, 40);
        struct set cache = {0};
        rule_prefill(&r, 200 + c, n);
        for (uint32_t j = 0; j < n; j++)
            put(&cache, j, prompt_score(200 + c, n, j));
        hf_drop(&cache, heavy, recent);
        assert_same_positions(&r.kept, &cache);
        for (uint32_t row = n; row < n + 40; row++) {
            rule_step(&r, 200 + c, row);
            put(&cache, row, 0);
            attend(&cache, 200 + c, row);
            assert_same_positions(&r.kept, &cache);
            hf_drop(&cache, heavy, recent);
        }
    }
    (void)state;
}

/* DESIGN section 7: always the H heaviest of the older ones, as far as they are still there, and
 * the R newest; room is made before the row attends. */
static void h2o_keeps_heavy_and_recent(void **state)
{
    static const uint32_t cases[][3] = {{30, 8, 8}, {30, 1, 15}, {16, 8, 8}, {17, 8, 8},
                                        {3, 4, 2},  {50, 0, 6},  {50, 9, 1}};
    for (uint32_t c = 0; c < AQ_ARRAY_LEN(cases); c++) {
        uint32_t n = cases[c][0], heavy = cases[c][1], recent = cases[c][2];
        struct aq_kv_options o = {.policy = "h2o", .heavy = slots(heavy), .recent = slots(recent)};
        struct rule r = rule_for(o, n, 40);
        struct set cache = {0};
        rule_prefill(&r, 300 + c, n);
        for (uint32_t j = 0; j < n; j++)
            put(&cache, j, prompt_score(300 + c, n, j));
        hf_drop(&cache, heavy, recent);
        assert_same_positions(&r.kept, &cache);
        for (uint32_t row = n; row < n + 40; row++) {
            rule_step(&r, 300 + c, row);
            put(&cache, row, -1); /* never a candidate, nor in a candidate's way */
            hf_drop(&cache, heavy, recent);
            cache.score[cache.count - 1] = 0;
            attend(&cache, 300 + c, row);
            assert_same_positions(&r.kept, &cache);
        }
    }
    (void)state;
}

static void a_window_is_the_first_and_the_newest(void **state)
{
    static const uint32_t prompts[] = {1, 3, 11, 12, 13, 40};
    for (uint32_t c = 0; c < AQ_ARRAY_LEN(prompts); c++) {
        uint32_t n = prompts[c];
        struct rule r =
            rule_for((struct aq_kv_options){.policy = "window", .budget = slots(12)}, n, 40);
        rule_prefill(&r, 400, n);
        for (uint32_t row = n; row < n + 40; row++) {
            rule_step(&r, 400, row);
            assert_int_equal(r.kept.count, row + 1 < 12 ? row + 1 : 12);
            for (uint32_t j = 0; j <= row; j++)
                assert_int_equal(has(&r.kept, j), row < 12 || j < 4 || j + 8 > row);
        }
    }
    (void)state;
}

static void sinks_and_young_keys_are_never_dropped(void **state)
{
    struct aq_kv_options o = {.policy = "h2o",
                              .heavy = slots(14),
                              .recent = slots(4),
                              .sinks_given = true,
                              .sinks = 3,
                              .grace = 9};
    struct rule r = rule_for(o, 40, 60);
    rule_prefill(&r, 500, 40);
    for (uint32_t row = 40; row < 100; row++) {
        rule_step(&r, 500, row);
        for (uint32_t j = 0; j < 3; j++)
            assert_true(has(&r.kept, j));
        for (uint32_t j = row - 3; j <= row; j++)
            assert_true(has(&r.kept, j));
        for (uint32_t j = row < 48 ? 40 : row - 8; j <= row; j++)
            assert_true(has(&r.kept, j)); /* generated less than nine rows ago */
    }
    (void)state;
}

/* ---- limits ---- */

static uint32_t slots_max(const struct aq_kv_policy *p, uint32_t prompt, uint32_t total,
                          uint32_t max_new)
{
    struct aq_kv_most most;
    struct aq_kv_lengths lengths = {prompt, total, max_new, 0};
    assert_false(aq_kv_policy_most(&most, p, &lengths, 1, 1));
    assert_true(most.head == most.slots && most.kept <= most.slots);
    return most.slots;
}

static void held_slots_are_those_of_the_rule(void **state)
{
    static const char *const names[] = {"full",       "h2o",         "h2o:flexgen", "h2o:hf",
                                        "window",     "heavy",       "adakv",       "snapkv",
                                        "tova",       "knorm",       "keydiff",     "pyramidkv",
                                        "ada-snapkv", "ada-pyramid", "expected"};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        for (uint32_t n = 1; n < 40; n++) {
            struct aq_kv_options o = {.policy = names[i]};
            if (i > 0)
                o.budget = slots(12);
            o.observe_given = aq_kv_policy_find(names[i])->prompt.pool != AQ_KV_POOL_NONE;
            o.observe = 4;
            struct rule r = rule_for(o, n, 30);
            uint32_t bound = aq_kv_policy_ragged(&r.policy) ? 70 : slots_max(&r.policy, 40, 70, 30);
            rule_prefill(&r, 600, n);
            assert_int_equal(aq_kv_limits_held(&r.limits, n, n), r.kept.count);
            bool dropped = r.kept.count < n;
            for (uint32_t row = n; row < n + 29; row++) {
                rule_step(&r, 600, row);
                dropped |= r.kept.count < row + 1;
                assert_int_equal(aq_kv_limits_held(&r.limits, n, row + 1), r.kept.count);
                assert_true(r.kept.count <= bound);
            }
            assert_int_equal(aq_kv_limits_drop(&r.limits, n, 30), dropped);
        }
    }
    (void)state;
}

static struct aq_kv_limits limits_of(struct aq_kv_options o, uint32_t prompt, uint32_t max_new)
{
    struct aq_kv_limits l;
    struct aq_kv_policy p = resolved(o);
    aq_kv_policy_limits(&l, &p, prompt, max_new, 0, 1);
    return l;
}

static void shares_are_of_the_whole_sequence_rounded_down(void **state)
{
    struct aq_kv_options o = {.policy = "h2o", .budget = share(0.2)};
    struct aq_kv_limits l = limits_of(o, 12, 64);
    assert_int_equal(l.slots, 15); /* floor(0.2 * 76): tiny-opt's golden h2o_greedy.json */
    assert_int_equal(l.heavy_prompt, 7);
    assert_int_equal(l.recent_prompt, 8);
    assert_int_equal(limits_of(o, 1, 2).slots, 1);
    for (uint32_t percent = 1; percent <= 100; percent++) {
        o.budget = share(percent / 100.0);
        assert_int_equal(limits_of(o, 60, 40).slots, percent);
        assert_int_equal(limits_of(o, 600, 412).slots, percent * 1012 / 100);
    }
    o.budget = share(1);
    l = limits_of(o, 60, 40);
    assert_false(aq_kv_limits_drop(&l, 60, 40));
    (void)state;
}

static void flexgen_takes_a_share_of_the_prompt_for_each_half(void **state)
{
    struct aq_kv_options o = {.policy = "h2o:flexgen", .budget = share(0.1)};
    struct aq_kv_limits l = limits_of(o, 512, 1024);
    assert_int_equal(l.slots, 2 * 51);
    assert_int_equal(l.keep_prompt, 2 * 51 - 1);
    assert_int_equal(limits_of(o, 10, 10).slots, 4); /* two at least */
    o = (struct aq_kv_options){.policy = "h2o:flexgen", .budget = slots(64)};
    assert_int_equal(limits_of(o, 512, 32).heavy_prompt, 32);
    (void)state;
}

static void parts_given_leave_the_rest_of_the_budget(void **state)
{
    struct aq_kv_options o = {.policy = "h2o", .budget = slots(128), .heavy = slots(16)};
    struct aq_kv_limits l = limits_of(o, 512, 128);
    assert_int_equal(l.heavy_prompt, 16);
    assert_int_equal(l.recent_prompt, 112);
    o = (struct aq_kv_options){.policy = "h2o", .budget = share(0.2), .recent = share(0.05)};
    l = limits_of(o, 512, 128);
    assert_int_equal(l.recent_prompt, 32);
    assert_int_equal(l.heavy_prompt, 96);
    o = (struct aq_kv_options){.policy = "heavy", .budget = slots(128)};
    l = limits_of(o, 512, 128);
    assert_int_equal(l.heavy_prompt, 127);
    assert_int_equal(l.recent_decode, 1);
    o = (struct aq_kv_options){
        .policy = "window", .recent = slots(128), .sinks_given = true, .sinks = 0};
    l = limits_of(o, 512, 128);
    assert_int_equal(l.slots, 128);
    assert_int_equal(l.heavy_prompt, 0);
    (void)state;
}

/* A run that needs one slot more than it may hold gives one up; one that fits gives up none. */
static void runs_that_just_fit_drop_nothing(void **state)
{
    for (uint32_t n = 1; n < 16; n++) {
        for (uint32_t max_new = 1; max_new < 16; max_new++) {
            struct rule r =
                rule_for((struct aq_kv_options){.policy = "h2o", .budget = slots(12)}, n, max_new);
            rule_prefill(&r, 650, n);
            bool dropped = r.kept.count < n;
            /* The last token that is generated is never attended. */
            for (uint32_t row = n; row + 1 < n + max_new; row++) {
                rule_step(&r, 650, row);
                dropped |= r.kept.count < row + 1;
            }
            assert_int_equal(aq_kv_limits_drop(&r.limits, n, max_new), dropped);
        }
    }
    (void)state;
}

/* In units of their own, parts can come to more than the budget, or to less than a slot. */
static void parts_in_other_units_are_fitted_into_the_budget(void **state)
{
    struct aq_kv_options o = {.policy = "h2o", .budget = slots(8), .recent = share(0.5)};
    struct aq_kv_limits l = limits_of(o, 60, 40);
    assert_int_equal(l.slots, 8);
    assert_int_equal(l.recent_prompt, 8);
    assert_int_equal(l.heavy_prompt, 0);
    o = (struct aq_kv_options){.policy = "h2o", .heavy = share(0.01), .recent = slots(4)};
    assert_int_equal(limits_of(o, 10, 10).heavy_prompt, 1);
    assert_int_equal(limits_of(o, 200, 100).heavy_prompt, 3);
    o = (struct aq_kv_options){
        .policy = "h2o", .budget = share(0.2), .sinks_given = true, .sinks = 4};
    l = limits_of(o, 10, 10);
    assert_int_equal(l.heavy_prompt, 2);
    assert_int_equal(l.sinks, 2); /* no more than are heavy */
    assert_int_equal(limits_of(o, 60, 40).sinks, 4);
    (void)state;
}

static void decode_steps_count_as_the_options_say(void **state)
{
    struct aq_kv_options o = {.policy = "h2o", .budget = slots(8)};
    struct rule r = rule_for(o, 20, 20);
    assert_int_equal(r.policy.decode.group, AQ_ATTN_SUM);
    assert_true(r.policy.decode.decay == 1);
    o.group_given = true;
    o.group = AQ_ATTN_MAX;
    o.decay = 0.5;
    r = rule_for(o, 20, 20);
    assert_int_equal(r.policy.decode.group, AQ_ATTN_MAX);
    assert_true(r.policy.decode.decay == 0.5f);
    assert_int_equal(r.policy.decode.stat, AQ_ATTN_PROB);
    (void)state;
}

/* Options in shares meet sequences of any length: what is too much for one is lowered. */
static void short_sequences_have_limits_too(void **state)
{
    for (uint32_t prompt = 1; prompt < 40; prompt++) {
        for (uint32_t max_new = 0; max_new < 40; max_new++) {
            struct aq_kv_options o = {.policy = "window", .budget = share(0.2)};
            assert_true(limits_of(o, prompt, max_new).recent_decode >= 1);
            o = (struct aq_kv_options){.policy = "h2o",
                                       .budget = share(0.1),
                                       .sinks_given = true,
                                       .sinks = 4,
                                       .grace = 16};
            assert_true(limits_of(o, prompt, max_new).recent_prompt >= 1);
            o = (struct aq_kv_options){.policy = "h2o", .budget = share(0.3), .heavy = slots(9)};
            assert_true(limits_of(o, prompt, max_new).recent_prompt >= 1);
        }
    }
    (void)state;
}

static void a_workload_bounds_the_slots_of_its_sequences(void **state)
{
    struct aq_kv_policy p = resolved((struct aq_kv_options){.policy = "h2o", .budget = slots(64)});
    assert_int_equal(slots_max(&p, 50, 60, 0), 60);
    assert_int_equal(slots_max(&p, 50, 600, 0), 64);
    p = (struct aq_kv_policy){0};
    assert_int_equal(slots_max(&p, 50, 600, 0), 600);
    /* Where only prompts are cut, new tokens come on top. */
    p = resolved((struct aq_kv_options){.policy = "knorm", .budget = slots(64)});
    assert_int_equal(slots_max(&p, 500, 600, 100), 164);
    assert_int_equal(slots_max(&p, 50, 600, 100), 150);
    assert_int_equal(slots_max(&p, 500, 600, 0), 600);
    for (uint32_t prompt = 1; prompt <= 60; prompt++) {
        for (uint32_t max_new = 0; max_new <= 40; max_new++) {
            struct aq_kv_limits l;
            p = resolved((struct aq_kv_options){.policy = "keydiff", .budget = share(0.3)});
            aq_kv_policy_limits(&l, &p, prompt, max_new, 0, 1);
            uint32_t seen = prompt + (max_new ? max_new - 1 : 0);
            uint32_t held = aq_kv_limits_held(&l, prompt, seen);
            assert_true(held < l.slots); /* nothing is ever given up */
            assert_true(held <= slots_max(&p, 60, 100, 40));
        }
    }
    /* Whatever the prompt's part in it. */
    static const char *const names[] = {"h2o", "h2o:flexgen", "window", "heavy"};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        p = resolved((struct aq_kv_options){.policy = names[i], .budget = share(0.3)});
        for (uint32_t prompt = 1; prompt <= 60; prompt++) {
            for (uint32_t total = prompt; total <= 90; total++) {
                struct aq_kv_limits l;
                aq_kv_policy_limits(&l, &p, prompt, total - prompt, 0, 1);
                uint32_t held = aq_kv_limits_held(&l, prompt, total);
                assert_true(held <= slots_max(&p, 60, 90, 0));
            }
        }
    }
    (void)state;
}

/* The pairs whose probabilities are computed once more: of the queries that count, with all keys
 * that they see, and only where something is ranked by them. */
static void statistics_count_the_queries_that_rank(void **state)
{
    static const struct {
        struct aq_kv_options o;
        uint32_t last; /* so many queries; 0: none */
    } cases[] = {
        {{.policy = "h2o", .budget = {AQ_KV_SLOTS, 8, 0}}, 50},
        {{.policy = "h2o", .budget = {AQ_KV_SLOTS, 90, 0}}, 50},
        {{.policy = "window", .budget = {AQ_KV_SLOTS, 8, 0}}, 0},
        {{.policy = "tova", .budget = {AQ_KV_SLOTS, 8, 0}}, 1},
        {{.policy = "tova", .budget = {AQ_KV_SLOTS, 50, 0}}, 0},
        {{.policy = "snapkv", .budget = {AQ_KV_SLOTS, 40, 0}}, 32},
        {{.policy = "snapkv", .budget = {AQ_KV_SHARE, 0, 0.2}}, 10},
        {{.policy = "snapkv", .budget = {AQ_KV_SLOTS, 50, 0}}, 0},
        {{.policy = "knorm", .budget = {AQ_KV_SLOTS, 8, 0}}, 0},
        {{.policy = "full"}, 0},
    };
    for (size_t c = 0; c < AQ_ARRAY_LEN(cases); c++) {
        struct rule r = rule_for(cases[c].o, 50, 10);
        uint64_t pairs = 0;
        for (uint32_t i = 50 - cases[c].last; i < 50; i++)
            pairs += i + 1;
        assert_int_equal(aq_kv_policy_stat_pairs(&r.policy, &r.limits, 50), pairs);
        assert_int_equal(aq_kv_policy_rank_pairs(&r.policy, &r.limits, 50, 64), pairs);
    }
    (void)state;
}

/* Of a prompt that is cut the covariance of its queries takes time, though nothing is summed over
 * pairs of a query and a key. */
static void expected_attention_takes_time_where_it_cuts(void **state)
{
    struct aq_kv_options o = {.policy = "expected", .budget = {AQ_KV_SLOTS, 40, 0}};
    struct rule r = rule_for(o, 50, 10), whole = rule_for(o, 40, 10);
    assert_int_equal(aq_kv_policy_stat_pairs(&r.policy, &r.limits, 50), 0);
    assert_int_equal(aq_kv_policy_rank_pairs(&r.policy, &r.limits, 50, 64), 3 * 64 * 50);
    assert_int_equal(aq_kv_policy_rank_pairs(&whole.policy, &whole.limits, 40, 64), 0);
    (void)state;
}

/* A share is of the prompt alone where new tokens come on top, and of both where they do not. */
static void budgets_of_prompts_leave_the_new_tokens_out(void **state)
{
    struct aq_kv_options o = {.policy = "snapkv", .budget = share(0.4)};
    struct aq_kv_limits l = limits_of(o, 100, 50);
    assert_int_equal(l.keep_prompt, 40);
    assert_int_equal(l.recent_prompt, 32);
    assert_int_equal(l.heavy_prompt, 8);
    assert_int_equal(l.slots, 90);
    l = limits_of(o, 50, 50); /* too few for those that choose: they are what stays */
    assert_int_equal(l.recent_prompt, 20);
    assert_int_equal(l.heavy_prompt, 0);
    o.policy = "tova";
    l = limits_of(o, 100, 50);
    assert_int_equal(l.heavy_prompt, 60);
    assert_int_equal(l.slots, 61);
    (void)state;
}

/* ---- the residual of KIVI's formats ---- */

/* Slots come one by one; 32 of them are encoded as the rules say.  A prompt is as if it had come
 * one by one, but that `flush` of the authors' program encodes what fills a residual at once: the
 * same before the next row. */
static void a_residual_is_what_is_left_of_slots_that_come_one_by_one(void **state)
{
    for (uint32_t tokens = 32; tokens <= 160; tokens += 32) {
        for (int flush = 0; flush < 2; flush++) {
            struct aq_kv_residual r = {tokens, flush};
            uint32_t coded = 0, plain = 0;
            assert_int_equal(aq_kv_residual_coded(&r, 0), 0);
            for (uint32_t held = 1; held < 1000; held++) {
                if (flush && plain == tokens) {
                    coded += tokens / 32;
                    plain = 0;
                }
                plain++;
                assert_in_range(plain, 1, 32 * aq_kv_residual_runs(&r)); /* there is room */
                if (!flush && plain == tokens + 32) {
                    coded++;
                    plain -= 32;
                }
                assert_int_equal(aq_kv_residual_coded(&r, held), coded);
                assert_int_equal(32 * coded + plain, held);
                uint32_t unpaged = aq_kv_residual_unpaged(&r);
                assert_true(coded <= aq_div_up(held > unpaged ? held - unpaged : 0, 32));
                assert_true(plain <= tokens + 31 && (flush || held < tokens || plain >= tokens));
            }
        }
    }
    (void)state;
}

static void sinks_are_as_near_as_the_places_between_say(void **state)
{
    struct aq_kv_options o = {.policy = "window",
                              .budget = slots(9),
                              .positions_given = true,
                              .positions = AQ_KV_POSITIONS_CACHE};
    struct aq_kv_policy p = resolved(o), text = p;
    struct aq_kv_limits l;
    text.positions = AQ_KV_POSITIONS_TEXT;
    for (uint32_t prompt = 1; prompt < 20; prompt++) {
        aq_kv_policy_limits(&l, &p, prompt, 30, 0, 1);
        for (uint32_t t = prompt; t < prompt + 30; t++) {
            uint32_t held = aq_kv_limits_held(&l, prompt, t + 1), place = 0;
            for (uint32_t j = 0; j < t; j++) /* those in front of the row's own */
                place += j < 4 || j + 5 > t;
            assert_int_equal(aq_kv_policy_closer(&p, t, held), t - place);
            assert_int_equal(aq_kv_policy_closer(&text, t, held), 0);
        }
    }
    (void)state;
}

/* Those of the text, of the prompt that is attended whole, or of the slots. */
static void sequences_come_to_as_many_positions_as_the_cache_has(void **state)
{
    struct aq_kv_options o = {.policy = "window",
                              .budget = slots(9),
                              .positions_given = true,
                              .positions = AQ_KV_POSITIONS_CACHE};
    struct aq_kv_policy p = resolved(o), text = p;
    text.positions = AQ_KV_POSITIONS_TEXT;
    assert_int_equal(aq_kv_policy_positions(&p, 4, 6), 10); /* nothing is dropped: as without */
    assert_int_equal(aq_kv_policy_positions(&p, 4, 7), 9);
    assert_int_equal(aq_kv_policy_positions(&p, 9, 1), 10);
    assert_int_equal(aq_kv_policy_positions(&p, 10, 1), 10);
    assert_int_equal(aq_kv_policy_positions(&p, 12, 1000), 12);
    assert_int_equal(aq_kv_policy_positions(&text, 12, 1000), 1012);
    (void)state;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(flexgen_keeps_what_its_loop_keeps),
    cmocka_unit_test(a_residual_is_what_is_left_of_slots_that_come_one_by_one),
    cmocka_unit_test(hf_keeps_what_its_loop_keeps),
    cmocka_unit_test(h2o_keeps_heavy_and_recent),
    cmocka_unit_test(a_window_is_the_first_and_the_newest),
    cmocka_unit_test(sinks_and_young_keys_are_never_dropped),
    cmocka_unit_test(held_slots_are_those_of_the_rule),
    cmocka_unit_test(shares_are_of_the_whole_sequence_rounded_down),
    cmocka_unit_test(flexgen_takes_a_share_of_the_prompt_for_each_half),
    cmocka_unit_test(parts_given_leave_the_rest_of_the_budget),
    cmocka_unit_test(runs_that_just_fit_drop_nothing),
    cmocka_unit_test(parts_in_other_units_are_fitted_into_the_budget),
    cmocka_unit_test(decode_steps_count_as_the_options_say),
    cmocka_unit_test(short_sequences_have_limits_too),
    cmocka_unit_test(a_workload_bounds_the_slots_of_its_sequences),
    cmocka_unit_test(statistics_count_the_queries_that_rank),
    cmocka_unit_test(expected_attention_takes_time_where_it_cuts),
    cmocka_unit_test(budgets_of_prompts_leave_the_new_tokens_out),
    cmocka_unit_test(sinks_are_as_near_as_the_places_between_say),
    cmocka_unit_test(sequences_come_to_as_many_positions_as_the_cache_has),
};

AQ_TEST_MAIN(tests)
