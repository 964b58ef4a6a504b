/* SPDX-License-Identifier: Apache-2.0
 * One budget for the heads of all layers: which keys each head gives up, beside the schedule as
 * KV-Compress describes it, and how many runs a sequence takes, before its prompt has run and
 * after. */
#include "base/prng.h"
#include "policy/admit.h"
#include "policy/kv_cross.h"
#include "tests/test.h"
#include "tests/unit/policy/kv_made.h"

#include <string.h>

enum { BLOCK = AQ_HEAD_BLOCK_SLOTS, LAYERS = 4, HEADS = 5, TOKENS = 400 };

/* Heads of a prompt: what their keys are worth, and what stays. */
struct heads {
    uint32_t layers, kv_heads, prompt;
    struct aq_kv_limits limits;
    float value[LAYERS][HEADS][TOKENS];
    bool kept[LAYERS][HEADS][TOKENS];
    uint32_t gone[LAYERS][HEADS], freed[LAYERS][HEADS];
};

static struct heads *draw_heads(uint64_t seed)
{
    static struct heads h;
    uint64_t draw = 0;
#define DRAW(n) ((uint32_t)aq_prng_below(seed, 5, ++draw, (n)))
    struct aq_kv_options o = {.policy = "kvcompress", .recent = slots(1 + DRAW(100))};
    uint32_t room = (uint32_t)aq_align_up(o.recent.slots, BLOCK);
    static const double shares[] = {0, 1, 1.3, 2, 4};
    o.budget = slots(room + (DRAW(2) ? DRAW(120) : 0));
    o.cross_layer_given = true;
    o.cross_layer = shares[DRAW(AQ_ARRAY_LEN(shares))];
    h.layers = 1 + DRAW(LAYERS);
    h.kv_heads = 1 + DRAW(HEADS);
    h.prompt = o.budget.slots + 1 + DRAW(TOKENS - o.budget.slots);
    uint32_t values = DRAW(2) ? 7 : 1 << 20; /* few: most are equal */
    struct aq_kv_policy p = resolved(o);
    aq_kv_policy_limits(&h.limits, &p, h.prompt, 1 + DRAW(50), 0, h.layers);
    for (uint32_t l = 0; l < h.layers; l++) {
        for (uint32_t a = 0; a < h.kv_heads; a++) {
            float scale = (float)(1u << DRAW(9)) / (float)values; /* some are worth more */
            for (uint32_t j = 0; j < h.prompt; j++)
                h.value[l][a][j] = (float)DRAW(values) * scale;
        }
    }
#undef DRAW
    return &h;
}

/* By policy/kv_cross.c, as an executor calls it. */
static void cut(struct heads *h)
{
    static uint32_t rank[LAYERS][HEADS][TOKENS], cost[LAYERS][HEADS][TOKENS], work[2 * TOKENS];
    const uint32_t *costs[LAYERS], *gone[LAYERS];
    uint32_t *freed[LAYERS], list[TOKENS];
    for (uint32_t l = 0; l < h->layers; l++) {
        costs[l] = cost[l][0];
        gone[l] = h->gone[l];
        freed[l] = h->freed[l];
        for (uint32_t a = 0; a < h->kv_heads; a++) {
            aq_kv_cross_ranks(rank[l][a], h->value[l][a], h->prompt);
            aq_kv_cross_costs(cost[l][a], rank[l][a], work, &h->limits, h->prompt);
        }
    }
    for (uint32_t l = 0; l < h->layers; l++)
        aq_kv_cross_cut_layer(h->gone[l], costs[l], TOKENS, h->kv_heads, &h->limits, h->prompt);
    struct aq_kv_cross_heads heads = {h->layers, h->kv_heads, costs, TOKENS, gone, freed};
    aq_kv_cross_cut(&heads, &h->limits, h->prompt);
    for (uint32_t l = 0; l < h->layers; l++) {
        for (uint32_t a = 0; a < h->kv_heads; a++) {
            uint32_t x = h->freed[l][a], left = aq_kv_cross_left(h->prompt, x);
            aq_kv_cross_keep(list, rank[l][a], &h->limits, h->prompt, x, cost[l][a]);
            memset(h->kept[l][a], 0, sizeof(h->kept[l][a]));
            for (uint32_t i = 0; i < left; i++) {
                assert_true(i == 0 || list[i] > list[i - 1]);
                h->kept[l][a][list[i]] = true;
            }
        }
    }
}

/* The position of the lowest value that is still there and not among the newest, the lower of
 * equals; prompt: there is none. */
static uint32_t weakest(const struct heads *h, uint32_t l, uint32_t a, const bool *there)
{
    uint32_t at = h->prompt;
    for (uint32_t j = 0; j < h->prompt - h->limits.recent_prompt; j++) {
        if (there[j] && (at == h->prompt || h->value[l][a][j] < h->value[l][a][at]))
            at = j;
    }
    return at;
}

/* What is left, and how much. */
static struct left {
    bool kept[LAYERS][HEADS][TOKENS];
    uint64_t held[LAYERS][HEADS];
} left;

/* One head-block after the other: the one whose dearest key is cheapest, where a head's next block
 * is as many of its lowest keys as its last block holds; as long as one fewer is enough for so many
 * slots of each head. */
static void give_up_literally(const struct heads *h, uint32_t first, uint32_t end, uint64_t slots)
{
    static bool next[TOKENS], then[LAYERS][HEADS][TOKENS];
    uint64_t budget = slots * (end - first) * h->kv_heads, blocks = 0;
    for (uint32_t l = first; l < end; l++) {
        for (uint32_t a = 0; a < h->kv_heads; a++)
            blocks += (left.held[l][a] + BLOCK - 1) / BLOCK;
    }
    for (; BLOCK * (blocks - 1) >= budget; blocks--) {
        uint32_t layer = h->layers, head = 0;
        float cheapest = 0;
        for (uint32_t l = first; l < end; l++) {
            for (uint32_t a = 0; a < h->kv_heads; a++) {
                uint64_t last = left.held[l][a] % BLOCK ? left.held[l][a] % BLOCK : BLOCK;
                uint32_t at = 0;
                memcpy(next, left.kept[l][a], sizeof(next));
                for (uint64_t i = 0; i < last && at < h->prompt; i++) {
                    at = weakest(h, l, a, next);
                    if (at < h->prompt)
                        next[at] = false;
                }
                if (at == h->prompt) /* a key that stays in any case */
                    continue;
                if (layer == h->layers || h->value[l][a][at] < cheapest) {
                    cheapest = h->value[l][a][at];
                    layer = l;
                    head = a;
                    memcpy(then[l][a], next, sizeof(next));
                }
            }
        }
        assert_true(layer < h->layers);
        memcpy(left.kept[layer][head], then[layer][head], sizeof(then[layer][head]));
        uint64_t last = left.held[layer][head] % BLOCK ? left.held[layer][head] % BLOCK : BLOCK;
        left.held[layer][head] -= last;
    }
}

/* Each layer on its own first, where it may not keep as much. */
static void cut_literally(const struct heads *h)
{
    for (uint32_t l = 0; l < h->layers; l++) {
        for (uint32_t a = 0; a < h->kv_heads; a++) {
            memset(left.kept[l][a], 1, sizeof(left.kept[l][a]));
            left.held[l][a] = h->prompt;
        }
    }
    for (uint32_t l = 0; l < h->layers && h->prompt > h->limits.layer_prompt; l++)
        give_up_literally(h, l, l + 1, h->limits.layer_prompt);
    give_up_literally(h, 0, h->layers, h->limits.keep_prompt);
}

static void heads_of_all_layers_give_up_what_kv_compress_does(void **state)
{
    const uint64_t draws = TEST_SLOW ? 60 : 300;
    uint64_t given_up = 0, whole = 0, gone = 0, more = 0;
    for (uint64_t seed = 0; seed < draws; seed++) {
        struct heads *h = draw_heads(seed);
        cut(h);
        cut_literally(h);
        for (uint32_t l = 0; l < h->layers; l++) {
            for (uint32_t a = 0; a < h->kv_heads; a++) {
                if (memcmp(left.kept[l][a], h->kept[l][a], h->prompt * sizeof(bool)) != 0)
                    fail_msg("seed %u, layer %u, head %u", (unsigned)seed, l, a);
                given_up += h->freed[l][a];
                whole += h->freed[l][a] == 0;
                gone += h->gone[l][a];
                more += h->gone[l][a] && h->freed[l][a] > h->gone[l][a];
            }
        }
    }
    assert_true(given_up > 4 * draws && whole > draws / 6 && gone > draws && more > draws / 15);
}

/* Packed runs of a layer whose heads have given up so many head-blocks. */
static uint32_t packed_of_layer(const struct heads *h, const uint32_t *freed)
{
    uint32_t filled = 0;
    for (uint32_t a = 0; a < h->kv_heads; a++)
        filled += aq_kv_cross_left(h->prompt, freed[a]) / BLOCK;
    return (filled + h->kv_heads - 1) / h->kv_heads;
}

static uint64_t packed_runs(const struct heads *h, uint64_t *ret_blocks, uint64_t *ret_whole)
{
    uint64_t runs = 0, all = 0, whole = 0;
    for (uint32_t l = 0; l < h->layers; l++) {
        for (uint32_t a = 0; a < h->kv_heads; a++) {
            all += (aq_kv_cross_left(h->prompt, h->freed[l][a]) + BLOCK - 1) / BLOCK;
            whole += h->freed[l][a] == 0;
        }
        runs += packed_of_layer(h, h->freed[l]);
    }
    *ret_blocks = all;
    *ret_whole = whole;
    return runs;
}

/* Counted before the prompt has run: never too few, and too many by less than a run of each layer,
 * and a head-block of each head that is left whole and has a tail. */
static void what_is_counted_is_what_is_held_within_a_run_a_layer(void **state)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct heads *h = draw_heads(seed);
        cut(h);
        uint64_t blocks, whole, held = packed_runs(h, &blocks, &whole);
        uint64_t target = aq_kv_cross_target(&h->limits, h->kv_heads, h->layers);
        uint64_t all = (uint64_t)h->layers * h->kv_heads * ((h->prompt + BLOCK - 1) / BLOCK);
        assert_int_equal(blocks, target < all ? target : all);
        uint64_t counted = aq_kv_cross_packed(&h->limits, h->kv_heads, h->layers, h->prompt);
        uint64_t tails = h->prompt % BLOCK ? (whole + h->kv_heads - 1) / h->kv_heads : 0;
        assert_true(counted >= held && counted - held <= h->layers + tails);
        /* Before, there is room for what layers keep, and for what stays of it, and the tail. */
        uint64_t before =
            aq_kv_cross_runs(&h->limits, h->kv_heads, h->layers, h->prompt, h->prompt);
        uint32_t whole_runs = aq_kv_cross_whole(&h->limits, h->kv_heads, h->prompt);
        uint32_t tail = h->prompt % BLOCK > 0;
        assert_int_equal(before, h->layers * whole_runs);
        assert_true(whole_runs <= (h->prompt + BLOCK - 1) / BLOCK);
        assert_true(counted + h->layers * tail <= before);
        if (!aq_kv_cross_cuts_layers(&h->limits, h->prompt))
            assert_int_equal(before, all / h->kv_heads);
        for (uint32_t l = 0; l < h->layers; l++)
            assert_true(packed_of_layer(h, h->gone[l]) + tail <= whole_runs);
    }
}

static void a_nan_and_a_negative_zero_have_a_rank(void **state)
{
    const float value[] = {0, -0.0f, 1e-30f, 1, __builtin_inff(), __builtin_nanf("")};
    uint32_t rank[6];
    aq_kv_cross_ranks(rank, value, 6);
    assert_int_equal(rank[0], rank[1]);
    for (int i = 2; i < 6; i++)
        assert_true(rank[i] > rank[i - 1]);
}

static void limits_have_room_for_what_is_never_given_up(void **state)
{
    struct aq_kv_policy p = resolved((struct aq_kv_options){
        .policy = "kvcompress", .budget = {.unit = AQ_KV_SHARE, .share = 0.25}});
    struct aq_kv_limits l;
    aq_kv_policy_limits(&l, &p, 1000, 10, 0, 4);
    assert_int_equal(l.keep_prompt, 250);
    assert_int_equal(l.recent_prompt, 64);
    assert_int_equal(l.layer_prompt, 500);
    assert_int_equal(aq_kv_limits_held(&l, 1000, 1000), 500);
    assert_int_equal(aq_kv_limits_held(&l, 400, 400), 400);
    assert_int_equal(aq_kv_limits_held(&l, 1000, 1001), 251);
    assert_true(aq_kv_cross_cuts(&l, 1000) && !aq_kv_cross_cuts(&l, 250));
    aq_kv_policy_limits(&l, &p, 100, 10, 0, 4); /* a quarter would be less than 64 */
    assert_int_equal(l.keep_prompt, 64);
    assert_int_equal(aq_kv_limits_held(&l, 60, 60), 60);
    aq_kv_policy_limits(&l, &p, 1000, 10, 0, 2);
    /* 250 slots of 2 layers of 4 heads: 63 head-blocks in at most 17 runs, with a tail of 8. */
    assert_int_equal(aq_kv_cross_target(&l, 4, 2), 63);
    assert_int_equal(aq_kv_cross_runs(&l, 4, 2, 1000, 1000), 2 * (16 + 1));
    assert_int_equal(aq_kv_cross_runs(&l, 4, 2, 1000, 1024), 17 + 2);
    assert_int_equal(aq_kv_cross_runs(&l, 4, 2, 1000, 1025), 17 + 4);
    p.cross_layer = 0;
    aq_kv_policy_limits(&l, &p, 1000, 10, 0, 2);
    assert_int_equal(aq_kv_limits_held(&l, 1000, 1000), 1000);
    assert_int_equal(aq_kv_cross_runs(&l, 4, 2, 1000, 1000), 64);
}

/* ---- admission ---- */

enum { BATCHES = 3, EACH = 6, SEATS = BATCHES * EACH, OF_LAYERS = 2, OF_HEADS = 3 };

struct turn_seat {
    bool taken, whole;
    uint32_t prompt, rows, left;
    struct aq_kv_limits limits;
};

static uint64_t pages_of(const struct turn_seat *s)
{
    uint32_t seen = s->prompt + (s->whole ? 0 : s->rows);
    if (!s->taken)
        return 0;
    /* Cut, and no row since: as many as with one row, or fewer. */
    if (!s->whole && s->rows == 0)
        seen++;
    return aq_kv_cross_runs(&s->limits, OF_HEADS, OF_LAYERS, s->prompt, seen);
}

static uint64_t pages_of_all(const struct turn_seat *seat)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < SEATS; i++)
        pages += pages_of(&seat[i]);
    return pages;
}

static struct aq_admit_length length_of(const struct turn_seat *s, bool seated)
{
    return aq_admit_length_cross(&s->limits, OF_HEADS, OF_LAYERS, s->prompt,
                                 seated ? s->rows + 1 : 0, s->left, s->whole);
}

/* Micro-batches take turns: prompts are whole from their seat's turn to its next one, and pages of
 * one are not given back before another has taken some. */
static void pages_last_while_prompts_are_whole_in_turns(void **state)
{
    enum { PAGES = 70 };
    static const struct aq_kv_kinds kinds = {
        .count = 1, .layers = OF_LAYERS, .kind = {[0] = {.layers = OF_LAYERS}}};
    struct aq_kv_policy p = resolved(
        (struct aq_kv_options){.policy = "kvcompress", .budget = slots(64), .recent = slots(32)});
    struct aq_admit_limits limits = {.pages = PAGES,
                                     .page_slots = BLOCK,
                                     .seats_free = 1,
                                     .prompt_tokens = 4096,
                                     .kinds = &kinds};
    struct aq_admit_length lengths[SEATS + 1];
    struct turn_seat seat[SEATS] = {0};
    uint64_t admitted = 0, most = 0;
    for (uint64_t turn = 0; turn < 20000; turn++) {
        uint32_t first = turn % BATCHES * EACH;
        for (uint32_t i = first; i < first + EACH; i++) {
            seat[i].taken = seat[i].taken && seat[i].left > 0;
            seat[i].whole = false;
        }
        for (uint32_t i = first; i < first + EACH; i++) {
            seat[i].rows += seat[i].taken;
            seat[i].left -= seat[i].taken;
            assert_true(pages_of_all(seat) <= PAGES);
        }
        for (uint32_t i = first; i < first + EACH; i++) {
            if (seat[i].taken)
                continue;
            uint32_t count = 0;
            struct turn_seat s = {.taken = true, .whole = true};
            s.prompt = 65 + (uint32_t)aq_prng_below(10, turn, i, 500);
            s.left = (uint32_t)aq_prng_below(11, turn, i, 90);
            aq_kv_policy_limits(&s.limits, &p, s.prompt, s.left + 1, 0, OF_LAYERS);
            for (uint32_t j = 0; j < SEATS; j++) {
                if (seat[j].taken)
                    lengths[count++] = length_of(&seat[j], true);
            }
            lengths[count] = length_of(&s, false);
            if (!aq_admit_one(&limits, lengths, count, 0, s.prompt))
                break;
            seat[i] = s;
            admitted++;
        }
        uint64_t pages = pages_of_all(seat);
        assert_true(pages <= PAGES);
        most = aq_max_u64(most, pages);
    }
    assert_true(admitted > 1000);
    assert_true(most > PAGES * 9 / 10);
}

/* ---- options ---- */

static void rows_say_what_they_are(void **state)
{
    struct aq_kv_options o = {.policy = "kvcompress", .budget = slots(128)};
    char text[160];
    struct aq_kv_policy p = resolved(o);
    assert_string_equal(aq_kv_policy_text(text, sizeof(text), &p),
                        "kvcompress: budget 128, recent 64, observe 32, pool max:7, cross-layer 2");
    assert_true(aq_kv_policy_grows(&p) && aq_kv_policy_ragged(&p) && aq_kv_policy_cross(&p));
}

static void refused(struct aq_kv_options o, const char *with)
{
    struct aq_kv_policy p;
    struct aq_err err = {0};
    o.policy = "kvcompress";
    assert_int_equal(aq_kv_policy_resolve(&p, &o, &err), -EINVAL);
    if (!strstr(err.text, with))
        fail_msg("expected '%s' in '%s'", with, err.text);
}

static void options_that_do_not_go_with_one_budget_are_refused(void **state)
{
    struct aq_kv_options o = {.budget = slots(128)};
    refused((struct aq_kv_options){0}, "--kv-policy kvcompress: expected --kv-budget");
    refused((struct aq_kv_options){.budget = slots(63)},
            "--kv-budget 63: each head keeps the newest 64 tokens, in whole head-blocks of 32; "
            "expected 64 or more");
    refused((struct aq_kv_options){.budget = slots(95), .recent = slots(65)},
            "expected 96 or more");
    o.heavy = slots(8);
    refused(o, "--kv-heavy does not go with it");
    o = (struct aq_kv_options){.budget = slots(128), .sinks_given = true, .sinks = 4};
    refused(o, "--kv-sinks does not go with it");
    o = (struct aq_kv_options){.budget = slots(128), .decay = 0.5};
    refused(o, "--kv-decay does not go with it");
    o = (struct aq_kv_options){.budget = slots(128), .floor = slots(4)};
    refused(o, "--kv-floor does not go with it: the heads of all layers share one budget");
    o = (struct aq_kv_options){.budget = slots(128), .cross_layer_given = true, .cross_layer = 0.5};
    refused(o, "--kv-cross-layer 0.5: even shares that a layer keeps until all are ranked; "
               "expected 1 or more, or 0");
    o = (struct aq_kv_options){.budget = slots(128), .heads_given = true};
    refused(o, "--kv-heads does not go with it: the heads of all layers share one budget");
    o = (struct aq_kv_options){
        .budget = slots(128), .layers_given = true, .layers = AQ_KV_LAYERS_PYRAMID, .beta = 20};
    refused(o, "--kv-layers does not go with it: its layers share one budget");
    o = (struct aq_kv_options){
        .budget = slots(128), .decode_given = true, .decode = AQ_KV_DECODE_BULK};
    refused(o, "--kv-decode bulk does not go with it: only scores of attention that go on after "
               "the prompt, in heads that keep as many tokens");
    o = (struct aq_kv_options){.budget = slots(128), .drop = slots(32)};
    refused(o, "--kv-drop does not go with it: it is of --kv-decode bulk");
    (void)state;
}

/* What drops keys in bulk moves the slots of one layer, and counts no pages of others. */
static void no_policy_drops_in_bulk_what_all_layers_share(void **state)
{
    uint32_t in_bulk = 0;
    const struct aq_kv_policy_desc *desc;
    for (uint32_t i = 0; (desc = aq_kv_policy_at(i)); i++) {
        struct aq_kv_options o = {.policy = desc->name,
                                  .budget = slots(128),
                                  .decode_given = true,
                                  .decode = AQ_KV_DECODE_BULK};
        struct aq_kv_policy p;
        struct aq_kv_limits l;
        struct aq_err err = {0};
        if (aq_kv_policy_resolve(&p, &o, &err) < 0)
            continue;
        in_bulk++;
        aq_kv_policy_limits(&l, &p, 1000, 100, 1, 4);
        assert_true(l.bulk && !l.cross && !aq_kv_policy_cross(&p));
        assert_false(aq_kv_cross_cuts(&l, 1000));
        o.cross_layer_given = true;
        o.cross_layer = 2;
        assert_int_equal(aq_kv_policy_resolve(&p, &o, &err), -EINVAL);
        assert_non_null(strstr(err.text, "--kv-cross-layer does not go with it"));
    }
    assert_int_equal(in_bulk, 4);
    (void)state;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(heads_of_all_layers_give_up_what_kv_compress_does),
    cmocka_unit_test(what_is_counted_is_what_is_held_within_a_run_a_layer),
    cmocka_unit_test(a_nan_and_a_negative_zero_have_a_rank),
    cmocka_unit_test(limits_have_room_for_what_is_never_given_up),
    cmocka_unit_test(pages_last_while_prompts_are_whole_in_turns),
    cmocka_unit_test(rows_say_what_they_are),
    cmocka_unit_test(options_that_do_not_go_with_one_budget_are_refused),
    cmocka_unit_test(no_policy_drops_in_bulk_what_all_layers_share),
};

AQ_TEST_MAIN(tests)
