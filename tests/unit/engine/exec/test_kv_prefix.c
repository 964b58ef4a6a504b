/* SPDX-License-Identifier: Apache-2.0
 * Prompts that begin alike, over random jobs in pools that are too small for all seats: sequences
 * share pages that hold the same tokens and no others, admission takes as many as fit when each
 * page counts once, and there is always a page. */
#include "base/mem.h"
#include "base/prng.h"
#include "engine/exec/kv_pages.h"
#include "policy/seats.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <stdlib.h>
#include <string.h>

enum { DRAWS = TEST_SLOW ? 60 : 400, SEQUENCES = 60, PROMPT = 560, NEW = 140, LAYERS = 2 };

struct rig {
    uint64_t seed;
    bool share;
    uint32_t longest; /* tokens of a sequence: of so many that pages have several runs, or one */
    struct aq_model_steps steps;
    struct aq_block block;
    struct aq_mem *mem;
    struct aq_device *device;
    struct aq_kv *kv;
    struct aq_seats seats;
    struct aq_seats_arrays at;
    struct one {
        uint32_t prompt, max_new, token[PROMPT];
    } one[SEQUENCES];
    uint32_t waiting, ended, now[SEQUENCES]; /* the next one; how many are over; by seat */
    uint32_t passes;
    uint64_t shared; /* tokens that were not computed */
};

static uint32_t roll(const struct rig *r, uint64_t what, uint64_t i, uint32_t below)
{
    return (uint32_t)aq_prng_below(r->seed, what, i, below);
}

/* Most begin as an earlier one does, some as far as that goes. */
static void draw_one(struct rig *r, uint32_t i)
{
    struct one *o = &r->one[i];
    o->prompt = 1 + roll(r, 1, i, r->longest - NEW);
    o->max_new = 1 + roll(r, 2, i, NEW);
    const struct one *from = &r->one[i && roll(r, 3, i, 5) ? roll(r, 4, i, i) : i];
    uint32_t same = from->prompt < o->prompt ? from->prompt : o->prompt;
    same = from == o ? 0 : roll(r, 5, i, 2) ? same : roll(r, 6, i, same + 1);
    memcpy(o->token, from->token, same * sizeof(*o->token));
    for (uint32_t t = same; t < o->prompt; t++)
        o->token[t] = i * 1000 + t;
}

static uint32_t alike(const struct one *a, const struct one *b)
{
    uint32_t n = 0;
    while (n < a->prompt && n < b->prompt && a->token[n] == b->token[n])
        n++;
    return n;
}

static bool next_waiting(void *user, uint32_t seat, struct aq_sitter *ret)
{
    const struct rig *r = user;
    if (r->waiting == SEQUENCES)
        return false;
    const struct one *o = &r->one[r->waiting];
    *ret = (struct aq_sitter){.prompt = o->prompt, .max_new = o->max_new};
    if (roll(r, 9, r->waiting, 4) == 0) /* it goes on from tokens of an earlier run */
        ret->given = roll(r, 10, r->waiting, o->max_new);
    for (uint32_t i = 0; r->share && i < r->seats.count; i++) {
        uint32_t n = aq_seats_lends(&r->seats, i, seat) ? alike(o, &r->one[r->now[i]]) : 0;
        if (n > ret->prefix) {
            ret->prefix = n;
            ret->from = i;
        }
    }
    return true;
}

static void has_sat(void *user, uint32_t seat)
{
    struct rig *r = user;
    r->now[seat] = r->waiting++;
    r->shared += r->seats.seat[seat].prefix;
}

/* Some end before their time. */
static bool has_ended(void *user, uint32_t seat)
{
    struct rig *r = user;
    const struct aq_seat *t = &r->seats.seat[seat];
    if (!t->seen || (t->seen < t->last && roll(r, 7, r->now[seat] * 1000ull + t->seen, 40)))
        return false;
    aq_kv_release(r->kv, seat);
    r->ended++;
    return true;
}

static void bound(void *user, uint32_t seat)
{
    struct rig *r = user;
    const struct aq_seat *t = &r->seats.seat[seat];
    if (t->prefix && t->seen == t->prompt)
        aq_kv_share(r->kv, seat, t->from, t->prefix / AQ_HEAD_BLOCK_SLOTS);
    for (uint32_t k = 0; k < r->block.plan.kinds.count; k++)
        aq_kv_grow(r->kv, seat, k, aq_seat_kv_runs(&t->kv[k], t->kv[k].most));
}

static void open_rig(struct rig *r, uint64_t seed, bool share)
{
    static const struct aq_seats_ops ops = {next_waiting, has_sat, has_ended, bound, NULL};
    *r = (struct rig){.seed = seed, .share = share, .longest = seed % 2 ? PROMPT + NEW : 3 * NEW};
    r->steps = plans_model(LAYERS, 64, 4, 128);
    struct aq_block_inputs in = plans_inputs(&r->steps);
    struct aq_placement place = {{{0, 100, 0}}, {{0, 100, 0}}, {{0, 100, 0}}, AQ_HOST};
    for (uint32_t i = 0; i < SEQUENCES; i++)
        draw_one(r, i);
    in.sequences = SEQUENCES;
    in.prompt_max = r->longest - NEW;
    in.total_max = r->longest;
    in.prompt_sum = SEQUENCES * in.prompt_max / 2;
    in.total_sum = SEQUENCES * in.total_max / 2;
    in.micro_batch = 1 + roll(r, 8, 0, 12);
    in.micro_batches = 1 + roll(r, 8, 1, 3);
    in.alternate = roll(r, 8, 2, 2);
    in.placement = &place;
    r->block = plans_choose(&in);
    struct aq_block_shape *s = &r->block.plan.shape;
    uint64_t seats = (uint64_t)s->micro_batch * s->micro_batches;
    uint64_t longest = (uint64_t)LAYERS * aq_div_up(r->longest, s->page_slots);
    s->page_count[AQ_HOST] = longest * (4 + roll(r, 8, 3, 4 * (uint32_t)seats)) / 4;
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = AQ_GIB};
    assert_int_equal(aq_mem_open(&r->mem, limit, NULL), 0);
    struct aq_device_opts device = {.kind = AQ_DEVICE_UNIFIED, .mem = r->mem};
    assert_int_equal(aq_device_open(&r->device, &device, NULL), 0);
    struct aq_kv_opts kv = {r->device, &r->block.plan, r->steps.kv_heads};
    assert_int_equal(aq_kv_open(&r->kv, &kv, NULL), 0);
    size_t kinds = r->block.plan.kinds.count;
    r->at = (struct aq_seats_arrays){.seat = calloc(seats, sizeof(*r->at.seat)),
                                     .kv = calloc((seats + 1) * kinds, sizeof(*r->at.kv)),
                                     .lengths = calloc((seats + 1) * kinds, sizeof(*r->at.lengths)),
                                     .prompt_rows = calloc(s->micro_batches, sizeof(uint32_t)),
                                     .order = calloc(seats, sizeof(*r->at.order))};
    assert_true(seats <= SEQUENCES && r->at.seat && r->at.kv && r->at.lengths &&
                r->at.prompt_rows && r->at.order);
    struct aq_seats_opts opts = {&r->steps, &r->block.plan, roll(r, 8, 4, 4) > 0, &ops, r};
    aq_seats_open(&r->seats, &opts, &r->at);
}

static void close_rig(struct rig *r)
{
    assert_int_equal(aq_kv_pages_free(r->kv, AQ_HOST), r->block.plan.shape.page_count[AQ_HOST]);
    aq_kv_close(r->kv);
    aq_device_close(r->device);
    aq_mem_close(r->mem);
    aq_block_close(&r->block);
    aq_steps_close(&r->steps);
    free(r->at.seat);
    free(r->at.kv);
    free(r->at.lengths);
    free(r->at.prompt_rows);
    free(r->at.order);
}

/* Of two seats: what lies in the same page is the same tokens of both prompts, in the same run. */
static void check_pair(const struct rig *r, uint32_t a, uint32_t b, uint32_t layer)
{
    const struct aq_seat *s = &r->seats.seat[a], *t = &r->seats.seat[b];
    uint32_t same = alike(&r->one[r->now[a]], &r->one[r->now[b]]);
    uint8_t *const *x = aq_kv_blocks(r->kv, a, layer), *const *y = aq_kv_blocks(r->kv, b, layer);
    uint32_t of_a = (s->seen + 31) / 32, of_b = (t->seen + 31) / 32;
    for (uint32_t i = 0; i < of_a; i++) {
        for (uint32_t j = 0; j < of_b; j++)
            assert_true(x[i] != y[j] || (i == j && 32 * (i + 1) <= same));
    }
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

/* The pages in use are those that seats have in their tables, each once. */
static void check_pages(const struct rig *r)
{
    const struct aq_block_shape *shape = &r->block.plan.shape;
    uint32_t each = shape->page_slots / 32, count = 0, pages = 0;
    uintptr_t *all = calloc((size_t)r->seats.count * LAYERS * (PROMPT + NEW), sizeof(*all));
    assert_non_null(all);
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *t = &r->seats.seat[i];
        for (uint32_t layer = 0; layer < LAYERS && t->taken && t->seen; layer++) {
            for (uint32_t run = 0; run * 32 < t->seen; run += each)
                all[count++] = (uintptr_t)aq_kv_blocks(r->kv, i, layer)[run];
        }
    }
    qsort(all, count, sizeof(*all), by_address);
    for (uint32_t i = 0; i < count; i++)
        pages += i == 0 || all[i] != all[i - 1];
    assert_int_equal(pages, shape->page_count[AQ_HOST] - aq_kv_pages_free(r->kv, AQ_HOST));
    free(all);
}

static void check_pass(const struct rig *r)
{
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *s = &r->seats.seat[i];
        assert_true(!s->rows || s->seen > s->prompt || s->rows == s->prompt - s->prefix);
        for (uint32_t j = 0; j < i && s->taken && s->seen; j++) {
            if (r->seats.seat[j].taken && r->seats.seat[j].seen)
                check_pair(r, i, j, r->passes % LAYERS);
        }
    }
    check_pages(r);
}

static void run(struct rig *r)
{
    for (bool begun = false; r->ended < SEQUENCES; begun = true, r->passes++) {
        for (uint32_t k = 0; begun && k < r->block.plan.shape.micro_batches; k++)
            aq_seats_turn(&r->seats, k);
        aq_seats_begin_pass(&r->seats);
        check_pass(r);
        assert_true(r->seats.seated > 0 || r->ended == SEQUENCES);
    }
}

static void pages_are_shared_by_the_same_tokens_alone(void **state)
{
    uint64_t shared = 0, with = 0, without = 0, several = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= DRAWS; seed++) {
        struct rig r;
        for (int share = 0; share < 2; share++) {
            open_rig(&r, seed, share);
            run(&r);
            *(share ? &with : &without) += r.passes;
            shared += r.shared;
            several += r.block.plan.shape.page_slots > AQ_HEAD_BLOCK_SLOTS;
            close_rig(&r);
        }
    }
    print_message("%llu tokens shared; %llu passes, %llu without; %llu jobs with pages of several "
                  "runs\n",
                  (unsigned long long)shared, (unsigned long long)with, (unsigned long long)without,
                  (unsigned long long)several);
    assert_true(shared > 1000ull * DRAWS);
    assert_true(2 * several >= DRAWS);
    assert_true(with < without); /* what shares pages leaves room for more */
}

/* Sequences that have a prefix in common fit as long as its pages, once, and their own do; and
 * longer than the one they took it from. */
static void a_prefix_counts_once_until_its_last_user_ends(void **state)
{
    struct aq_kv_kinds kinds = {.count = 1, .layers = 3, .kind = {{.layers = 3}}};
    struct aq_admit_limits limits = {
        .page_slots = 32, .seats_free = 1, .prompt_tokens = 4096, .kinds = &kinds};
    struct aq_admit_length of[3] = {{.now = 100, .last = 101, .slots = UINT32_MAX},
                                    {.now = 100, .last = 128, .slots = UINT32_MAX, .prefix = 96},
                                    {.now = 65, .last = 128, .slots = UINT32_MAX, .prefix = 64}};
    (void)state;
    /* Four pages of the first, one of the second, one of the third; then the second has four, and
     * two of the third are its own. */
    assert_int_equal(aq_admit_peak_pages(&limits, of, 3), 3 * 6);
    limits.pages = 3 * 6;
    assert_true(aq_admit_one(&limits, of, 2, 0, 1));
    limits.pages--;
    assert_false(aq_admit_one(&limits, of, 2, 0, 1));
    of[1].prefix = of[2].prefix = 0;
    assert_int_equal(aq_admit_peak_pages(&limits, of, 3), 3 * 11);
    /* The one between the two ends first: what the outer ones share is what both share with it. */
    struct aq_admit_length late[3] = {{.now = 128, .last = 160, .slots = UINT32_MAX},
                                      {.now = 128, .last = 128, .slots = UINT32_MAX, .prefix = 64},
                                      {.now = 128, .last = 160, .slots = UINT32_MAX, .prefix = 96}};
    assert_int_equal(aq_admit_peak_pages(&limits, late, 3), 3 * 8);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pages_are_shared_by_the_same_tokens_alone),
    cmocka_unit_test(a_prefix_counts_once_until_its_last_user_ends),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
