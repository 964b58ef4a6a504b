/* SPDX-License-Identifier: Apache-2.0
 * Layers whose budgets differ: what each of them holds, and what a workload is said to need. */
#include "policy/kv_policy.h"

#include "base/prng.h"
#include "tests/test.h"
#include "tests/unit/policy/kv_made.h"

#include <stdlib.h>
#include <string.h>

static struct aq_kv_policy spread(struct aq_kv_amount budget, uint32_t window,
                                  enum aq_kv_layers layers, uint32_t beta)
{
    return resolved((struct aq_kv_options){.policy = "pyramidkv",
                                           .budget = budget,
                                           .observe_given = true,
                                           .observe = window,
                                           .layers_given = true,
                                           .layers = layers,
                                           .beta = beta});
}

/* Worked out by hand from the authors' program (KVCache-Factory, pyramidkv_utils.py). */
static void pyramids_are_those_of_their_authors(void **state)
{
    static const struct {
        uint32_t budget, window, prompt, layers, layer, kept;
    } cases[] =
        {
            {1024, 32, 4096, 32, 0, 1967},
            {1024, 32, 4096, 32, 1, 1907},
            {1024, 32, 4096, 32, 30, 167},
            {1024, 32, 4096, 32, 31, 107},
            {2048, 32, 8192, 32, 0, 3964},
            {2048, 32, 8192, 32, 1, 3841},
            {2048, 32, 8192, 32, 30, 274},
            {2048, 32, 8192, 32, 31, 151},
            {64, 16, 150, 4, 0, 110},
            {64, 16, 150, 4, 1, 80},
            {64, 16, 150, 4, 2, 50},
            {64, 16, 150, 4, 3, 20},
            {32, 8, 150, 4, 0, 55},
            {32, 8, 150, 4, 1, 40},
            {32, 8, 150, 4, 2, 25},
            {32, 8, 150, 4, 3, 10},
            {64, 16, 100, 4, 0, 100}, /* 94 > 100 - 16: 84 down to 12, by 24 */
            {64, 16, 100, 4, 1, 76},
            {64, 16, 100, 4, 2, 52},
            {64, 16, 100, 4, 3, 28},
            {64, 16, 96, 4, 0, 96}, /* 2 * (64 - 16): 80 down to 16, by 21 */
            {64, 16, 96, 4, 3, 33},
            {64, 16, 95, 4, 0, 64}, /* shorter: the same in each layer */
            {64, 16, 95, 4, 3, 64},
            {64, 16, 64, 4, 0, 64},
            {64, 16, 60, 4, 3, 60},
            {64, 16, 150, 1, 0, 110}, /* one layer is the first */
        };
    for (size_t c = 0; c < AQ_ARRAY_LEN(cases); c++) {
        uint32_t n = cases[c].prompt, last = cases[c].layers - 1 - cases[c].layer;
        struct aq_kv_limits l, mirrored;
        struct aq_kv_policy p =
            spread(slots(cases[c].budget), cases[c].window, AQ_KV_LAYERS_PYRAMID, 20);
        aq_kv_policy_limits(&l, &p, n, 10, cases[c].layer, cases[c].layers);
        assert_int_equal(aq_kv_limits_held(&l, n, n), cases[c].kept);
        assert_int_equal(aq_kv_limits_held(&l, n, n + 9), cases[c].kept + 9);
        assert_int_equal(l.recent_prompt, cases[c].window);
        p.layers = AQ_KV_LAYERS_RISING;
        aq_kv_policy_limits(&mirrored, &p, n, 10, last, cases[c].layers);
        assert_memory_equal(&mirrored, &l, sizeof(l));
    }
    (void)state;
}

/* The division makes them hold more than the budget on average, which is counted, not hidden. */
static void what_layers_hold_is_summed_layer_by_layer(void **state)
{
    struct aq_kv_policy p = spread(slots(1024), 32, AQ_KV_LAYERS_PYRAMID, 20);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 32; i++) {
        struct aq_kv_limits l;
        aq_kv_policy_limits(&l, &p, 4096, 10, i, 32);
        sum += aq_kv_limits_held(&l, 4096, 4096);
    }
    assert_int_equal(sum, 32 * 1037);
    (void)state;
}

/* Of each layer, over all prompts: found without trying them all. */
static void a_workload_bounds_the_slots_of_each_layer(void **state)
{
    enum { LAYERS_MAX = 9 };
    uint32_t uneven = 0;
    for (uint64_t draw = 0; draw < 400; draw++) {
#define DRAW(n) ((uint32_t)aq_prng_below(700, draw, ++at, (n)))
        uint64_t at = 0;
        uint32_t layers = 1 + DRAW(LAYERS_MAX), longest = 1 + DRAW(400), window = 1 + DRAW(20);
        uint32_t most[LAYERS_MAX] = {0}, fed = 1 + DRAW(9);
        struct aq_kv_most found[LAYERS_MAX];
        struct aq_kv_amount budget = slots(window + 2 + DRAW(80));
        enum aq_kv_layers how = DRAW(2) ? AQ_KV_LAYERS_PYRAMID : AQ_KV_LAYERS_RISING;
        uint32_t beta = 1 + DRAW(30), percent = 1 + DRAW(100);
        uint32_t shortest = DRAW(2) ? longest : 1 + DRAW(longest);
        if (DRAW(2))
            budget = share(percent / 100.0);
        struct aq_kv_policy p = spread(budget, window, how, beta);
#undef DRAW
        bool differ = false;
        for (uint32_t n = shortest; n <= longest; n++) {
            uint32_t first = 0;
            for (uint32_t i = 0; i < layers; i++) {
                struct aq_kv_limits l;
                aq_kv_policy_limits(&l, &p, n, fed, i, layers);
                most[i] = l.slots > most[i] ? l.slots : most[i];
                first = i ? first : l.slots;
                differ |= l.slots != first;
            }
        }
        struct aq_kv_lengths lengths = {longest, longest + fed, fed, shortest};
        bool told = aq_kv_policy_most(found, &p, &lengths, layers, 2);
        for (uint32_t i = 0; i < layers; i++) {
            assert_int_equal(found[i].slots, most[i]);
            assert_int_equal(found[i].kept, most[i] - fed);
        }
        assert_true(told || !differ);
        uneven += differ;
    }
    assert_true(uneven > 100);
    (void)state;
}

static struct aq_kv_amount drawn_amount(uint64_t draw, uint64_t at, uint32_t kind)
{
    uint32_t n = (uint32_t)aq_prng_below(701, draw, at, 100);
    return kind == 0   ? (struct aq_kv_amount){0}
           : kind == 1 ? slots(1 + n * 7 / 10)
                       : share((1 + n) / 100.0);
}

/* A policy whose layers differ, from options as a user gives them; false: they are refused. */
static bool drawn_layers(struct aq_kv_policy *ret, uint64_t draw)
{
    static const char *const names[] = {"h2o", "scissorhands", "snapkv", "pyramidkv", "knorm"};
#define DRAW(at, n) ((uint32_t)aq_prng_below(702, draw, (at), (n)))
    uint32_t which = DRAW(0, AQ_ARRAY_LEN(names));
    struct aq_kv_options o = {.policy = names[which],
                              .budget = drawn_amount(draw, 0, 1 + DRAW(1, 2)),
                              .layers_given = true,
                              .layers = DRAW(2, 2) ? AQ_KV_LAYERS_PYRAMID : AQ_KV_LAYERS_RISING,
                              .beta = 1 + DRAW(3, 20)};
    if (which < 2 || (which < 4 && DRAW(4, 2))) {
        o.decode_given = true;
        o.decode = AQ_KV_DECODE_BULK;
        o.drop = drawn_amount(draw, 1, DRAW(5, 3));
        o.recent = drawn_amount(draw, 2, DRAW(6, 3));
        if (which == 0)
            o.heavy = drawn_amount(draw, 3, DRAW(7, 3));
    }
#undef DRAW
    return aq_kv_policy_resolve(ret, &o, NULL) == 0;
}

/* Where keys are dropped many at a time, what is left may follow shares of each length: no sequence
 * has more slots in a layer than the workload is said to. */
static void no_sequence_has_more_slots_than_its_workload(void **state)
{
    enum { LAYERS_MAX = 10 };
    uint32_t drawn = 0, shares = 0;
    char text[160];
    (void)state;
    for (uint64_t draw = 0; draw < 600; draw++) {
        struct aq_kv_policy p;
        struct aq_kv_most found[LAYERS_MAX];
        if (!drawn_layers(&p, draw))
            continue;
        uint32_t layers = 2 + (uint32_t)aq_prng_below(703, draw, 0, LAYERS_MAX - 1);
        uint32_t total = 2 + (uint32_t)aq_prng_below(703, draw, 1, 150);
        uint32_t prompt = 1 + (uint32_t)aq_prng_below(703, draw, 2, total - 1);
        uint32_t shortest = 1 + (uint32_t)aq_prng_below(703, draw, 3, prompt);
        struct aq_kv_lengths lengths = {prompt, total, total, shortest};
        aq_kv_policy_most(found, &p, &lengths, layers, 2);
        for (uint32_t n = shortest; n <= prompt; n++) {
            for (uint32_t fed = 1; n + fed <= total; fed++) {
                for (uint32_t i = 0; i < layers; i++) {
                    struct aq_kv_limits l;
                    aq_kv_policy_limits(&l, &p, n, fed, i, layers);
                    if (aq_min_u64(l.slots, n + fed - 1) > found[i].slots)
                        fail_msg(
                            "draw %u, %s, %u + %u tokens: layer %u of %u has %u slots, %u told",
                            (unsigned)draw, aq_kv_policy_text(text, sizeof(text), &p), n, fed, i,
                            layers, l.slots, found[i].slots);
                }
            }
        }
        drawn++;
        shares += p.bulk && (p.recent.unit == AQ_KV_SHARE || p.heavy.unit == AQ_KV_SHARE);
    }
    assert_true(drawn > 200 && shares > 20);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pyramids_are_those_of_their_authors),
    cmocka_unit_test(what_layers_hold_is_summed_layer_by_layer),
    cmocka_unit_test(a_workload_bounds_the_slots_of_each_layer),
    cmocka_unit_test(no_sequence_has_more_slots_than_its_workload),
};

AQ_TEST_MAIN(tests)
