/* SPDX-License-Identifier: Apache-2.0 */
#include "base/prng.h"
#include "engine/exec/kv_pages.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

enum { SEATS = 5, LAYERS = 3, HEADS = 2, DIM = 8, KEYS_MAX = 320 };

struct rig {
    struct aq_mem *mem;
    struct aq_device *device;
    struct aq_kv *kv;
    struct aq_plan plan;
};

/* The kinds of LAYERS layers with these windows (NULL: none has one), for sequences of up to
 * `total` tokens. */
static void set_kinds(struct aq_plan *plan, const uint32_t *windows, uint32_t total)
{
    struct aq_step_desc step[LAYERS];
    struct aq_model_steps m = {
        .step = step, .step_count = LAYERS, .layers = LAYERS, .kv_heads = HEADS};
    for (uint32_t i = 0; i < LAYERS; i++)
        step[i] = (struct aq_step_desc){
            .kind = AQ_STEP_ATTENTION, .layer = i, .window = windows ? windows[i] : 0};
    aq_kv_kinds_of(&plan->kinds, &plan->kv, &m,
                   &(struct aq_kv_lengths){plan->shape.prompt_max, total, 0});
}

static struct rig open_rig(uint32_t page_runs)
{
    struct rig r = {0};
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = AQ_GIB};
    uint64_t run = 2ull * 32 * DIM * 2 * HEADS;
    r.plan.shape = (struct aq_block_shape){
        .micro_batch = SEATS,
        .micro_batches = 1,
        .page_slots = 32 * page_runs,
        .run_bytes = run,
        .page_bytes = run * page_runs,
        .keys_max = KEYS_MAX,
        .kv_format = AQ_F16,
    };
    r.plan.shape.page_count[AQ_HOST] =
        SEATS * LAYERS * aq_div_up(KEYS_MAX, r.plan.shape.page_slots);
    r.plan.part[0] = (struct aq_part){.count = SEATS, .tier = AQ_HOST};
    r.plan.part_count = 1;
    set_kinds(&r.plan, NULL, KEYS_MAX);
    assert_int_equal(aq_mem_open(&r.mem, limit, NULL), 0);
    struct aq_device_opts device = {.kind = AQ_DEVICE_UNIFIED, .mem = r.mem};
    assert_int_equal(aq_device_open(&r.device, &device, NULL), 0);
    struct aq_kv_opts opts = {r.device, &r.plan, HEADS};
    assert_int_equal(aq_kv_open(&r.kv, &opts, NULL), 0);
    return r;
}

static void close_rig(struct rig *r)
{
    aq_kv_close(r->kv);
    aq_device_close(r->device);
    aq_mem_close(r->mem);
}

/* Writes the owner's mark over each run it holds and later finds it unchanged: no run has two
 * owners. */
static void mark(struct rig *r, uint32_t seat, uint32_t runs, uint8_t value, bool check)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t b = 0; b < runs; b++) {
            uint8_t *p = aq_kv_blocks(r->kv, seat, layer)[b];
            for (size_t i = 0; i < HEADS * aq_kv_head_offset(r->kv); i++) {
                uint8_t want = (uint8_t)(value + layer * 7 + b);
                if (check)
                    assert_int_equal(p[i], want);
                else
                    p[i] = want;
            }
        }
    }
}

static void no_run_ever_has_two_owners(void **state)
{
    for (uint32_t page_runs = 1; page_runs <= 3; page_runs++) {
        struct rig r = open_rig(page_runs);
        uint32_t keys[SEATS] = {0};
        for (uint64_t round = 0; round < 400; round++) {
            uint32_t seat = (uint32_t)aq_prng_below(page_runs, round, 0, SEATS);
            mark(&r, seat, (keys[seat] + 31) / 32, (uint8_t)(seat * 40), true);
            if (keys[seat] && aq_prng_below(page_runs, round, 1, 4) == 0) {
                aq_kv_release(r.kv, seat);
                keys[seat] = 0;
                continue;
            }
            keys[seat] += (uint32_t)aq_prng_below(page_runs, round, 2, KEYS_MAX - keys[seat] + 1);
            aq_kv_grow(r.kv, seat, 0, (keys[seat] + 31) / 32);
            mark(&r, seat, (keys[seat] + 31) / 32, (uint8_t)(seat * 40), false);
        }
        close_rig(&r);
    }
}

static void every_page_comes_back(void **state)
{
    struct rig r = open_rig(2);
    for (uint32_t seat = 0; seat < SEATS; seat++)
        aq_kv_grow(r.kv, seat, 0, KEYS_MAX / 32);
    assert_int_equal(aq_kv_pages_free(r.kv, AQ_HOST), 0);
    for (uint32_t seat = 0; seat < SEATS; seat++)
        aq_kv_release(r.kv, seat);
    assert_int_equal(aq_kv_pages_free(r.kv, AQ_HOST), r.plan.shape.page_count[AQ_HOST]);
    close_rig(&r);
}

/* ---- what is remembered beside K and V ---- */

/* One seat in every place that KV can have, on a separate device. */
static void open_everywhere(struct rig *r, const struct aq_kv_options *options,
                            const uint32_t *windows)
{
    static const struct aq_part parts[SEATS] = {
        {0, 1, AQ_DEVICE, AQ_ATTEND_DEVICE, false}, {1, 1, AQ_HOST, AQ_ATTEND_DEVICE, true},
        {2, 1, AQ_HOST, AQ_ATTEND_HOST, true},      {3, 1, AQ_DISK, AQ_ATTEND_DEVICE, true},
        {4, 1, AQ_DISK, AQ_ATTEND_HOST, true},
    };
    *r = (struct rig){0};
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = AQ_GIB, [AQ_DEVICE] = AQ_GIB};
    uint64_t run = 2ull * 32 * DIM * 2 * HEADS;
    r->plan.shape = (struct aq_block_shape){
        .micro_batch = SEATS,
        .micro_batches = 1,
        .page_slots = 32,
        .run_bytes = run,
        .page_bytes = run,
        .prompt_max = KEYS_MAX,
        .kv_format = AQ_F16,
    };
    assert_int_equal(aq_kv_policy_resolve(&r->plan.kv, options, NULL), 0);
    set_kinds(&r->plan, windows, KEYS_MAX);
    uint64_t runs = aq_kv_kinds_runs(&r->plan.kinds);
    r->plan.shape.page_count[AQ_DEVICE] = runs;
    r->plan.shape.page_count[AQ_HOST] = 2 * runs;
    memcpy(r->plan.part, parts, sizeof(parts));
    r->plan.part_count = SEATS;
    r->plan.separate = true;
    assert_int_equal(aq_mem_open(&r->mem, limit, NULL), 0);
    struct aq_device_opts device = {.kind = AQ_DEVICE_EMULATED, .mem = r->mem};
    assert_int_equal(aq_device_open(&r->device, &device, NULL), 0);
    struct aq_kv_opts opts = {r->device, &r->plan, HEADS};
    assert_int_equal(aq_kv_open(&r->kv, &opts, NULL), 0);
}

struct stretch {
    const uint8_t *from;
    size_t bytes;
};

static bool overlap(struct stretch a, struct stretch b)
{
    return a.from < b.from + b.bytes && b.from < a.from + a.bytes;
}

/* The arrays of a piece, within it and apart from one another. */
static void check_slots(const struct rig *r, uint32_t seat, uint32_t layer, bool scores,
                        uint32_t stride)
{
    struct aq_attn_slots s = aq_kv_slots(r->kv, seat, layer);
    size_t row = (size_t)HEADS * s.stride * 4;
    struct stretch all = {aq_kv_slots_home(r->kv, seat, layer), aq_kv_slots_bytes(r->kv, layer)};
    struct stretch part[] = {{(const uint8_t *)s.score, scores ? row : 0},
                             {(const uint8_t *)s.position, row},
                             {(const uint8_t *)s.victim, HEADS * sizeof(uint32_t)}};
    assert_int_equal(s.stride, stride);
    assert_int_equal(s.score != NULL, scores);
    for (size_t i = 0; i < AQ_ARRAY_LEN(part); i++) {
        if (part[i].bytes)
            assert_true(part[i].from >= all.from &&
                        part[i].from + part[i].bytes <= all.from + all.bytes);
        for (size_t n = 0; n < i; n++)
            assert_false(part[i].bytes && part[n].bytes && overlap(part[i], part[n]));
    }
}

/* Windows of layers: all as the policy says; or one that drops without scores, one as the policy
 * says, and one that never drops. */
static void what_is_remembered_has_a_place_of_its_own(void **state)
{
    static const uint32_t windows[][LAYERS] = {{0, 0, 0}, {70, 0, KEYS_MAX}};
    static const struct aq_kv_options options[] = {
        {.policy = "h2o", .budget = {.unit = AQ_KV_SLOTS, .slots = 50}},
        {.policy = "window", .budget = {.unit = AQ_KV_SLOTS, .slots = 50}},
        {.policy = "adakv", .budget = {.unit = AQ_KV_SLOTS, .slots = 50}},
    };
    for (size_t c = 0; c < 2 * AQ_ARRAY_LEN(options); c++) {
        struct rig r;
        size_t o = c / 2;
        const uint32_t *window = windows[c % 2];
        open_everywhere(&r, &options[o], window);
        struct stretch list[SEATS * LAYERS * 3];
        size_t count = 0;
        for (uint32_t seat = 0; seat < SEATS; seat++) {
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                bool disk = seat >= 3, copied = seat == 1;
                if (window[layer] == KEYS_MAX) {
                    assert_int_equal(aq_kv_slots_bytes(r.kv, layer), 0);
                    continue;
                }
                /* 50 slots, or of two heads that share as many each all but what the other keeps;
                 * or those of the window. */
                uint32_t stride = window[layer] ? 96 : aq_kv_policy_ragged(&r.plan.kv) ? 128 : 64;
                check_slots(&r, seat, layer, o != 1 && !window[layer], stride);
                list[count++] = (struct stretch){aq_kv_slots_home(r.kv, seat, layer),
                                                 aq_kv_slots_bytes(r.kv, layer)};
                if (copied)
                    list[count++] =
                        (struct stretch){(uint8_t *)aq_kv_victims(r.kv, seat, layer), HEADS * 4};
                if (disk)
                    list[count++] = (struct stretch){aq_kv_delta_home(r.kv, seat, layer),
                                                     aq_kv_delta_bytes(r.kv)};
                if (disk)
                    list[count++] =
                        (struct stretch){aq_kv_tail(r.kv, seat, layer, 0), aq_kv_run_stride(r.kv)};
            }
        }
        for (size_t i = 0; i < count; i++) {
            for (size_t n = 0; n < i; n++)
                assert_false(overlap(list[i], list[n]));
        }
        close_rig(&r);
    }
}

static void the_full_cache_remembers_nothing(void **state)
{
    struct rig r;
    open_everywhere(&r, &(struct aq_kv_options){.policy = "full"}, NULL);
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        struct aq_attn_slots s = aq_kv_slots(r.kv, seat, LAYERS - 1);
        assert_true(!s.score && !s.position && !s.victim);
    }
    assert_int_equal(aq_kv_slots_bytes(r.kv, 0) + aq_kv_delta_bytes(r.kv), 0);
    close_rig(&r);
}

/* ---- heads that hold different numbers of slots ---- */

/* The place of a slot, found by laying out the head-blocks one after the other: first the full ones
 * of each head, then, behind the runs that are left for such, one of each head and run. */
static struct aq_kv_spot spot_by_hand(const struct rig *r, const uint32_t kept[HEADS],
                                      uint32_t packed, uint32_t head, uint32_t slot)
{
    size_t bytes = aq_kv_head_offset(r->kv);
    uint32_t run = 0, place = 0, own = kept[head] / 32;
    if (slot / 32 >= own)
        return (struct aq_kv_spot){packed + slot / 32 - own, head * bytes};
    for (uint32_t h = 0; h < HEADS; h++) {
        for (uint32_t b = 0; b < kept[h] / 32; b++) {
            if (h == head && b == slot / 32)
                return (struct aq_kv_spot){run, place * bytes};
            run += place + 1 == HEADS;
            place = (place + 1) % HEADS;
        }
    }
    fail();
    return (struct aq_kv_spot){0};
}

/* Every head-block of a seat's layer lies in its runs, apart from the others, and slots are found
 * where the tables have them. */
static void check_heads(const struct rig *r, uint32_t seat, uint32_t layer, uint8_t *const *run,
                        const uint32_t kept[HEADS], const struct aq_kv_growth *g)
{
    const uint8_t *block[32];
    uint32_t count = 0;
    struct aq_attn_seq seq[2] = {{.row = 7}, {.row = 8}};
    memcpy(aq_kv_lens(r->kv, seat, layer), kept, HEADS * sizeof(*kept));
    for (uint32_t lane = 0; lane < 2; lane++)
        aq_kv_ragged_table(r->kv, &seq[lane], seat, layer, g, lane, run);
    for (uint32_t h = 0; h < HEADS; h++) {
        uint32_t held = kept[h] + g->grown;
        assert_int_equal(seq[0].len[h * seq[0].len_step], held);
        for (uint32_t b = 0; b < (held + 31) / 32; b++) {
            uint32_t last = b * 32 + 31 < held ? b * 32 + 31 : held - 1;
            struct aq_kv_spot spot = aq_kv_spot(r->kv, seat, layer, g, h, last);
            struct aq_kv_spot want = spot_by_hand(r, kept, g->packed, h, last);
            assert_true(spot.run == want.run && spot.offset == want.offset);
            block[count] = seq[0].block[h * seq[0].head_table_step + b] + h * seq[0].head_offset;
            assert_ptr_equal(seq[1].block[h * seq[1].head_table_step + b], block[count]);
            assert_ptr_equal(run[spot.run] + spot.offset, block[count]);
            assert_true(spot.offset + aq_kv_head_offset(r->kv) <= r->plan.shape.run_bytes);
            count++;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t n = 0; n < i; n++)
            assert_false(overlap((struct stretch){block[i], aq_kv_head_offset(r->kv)},
                                 (struct stretch){block[n], aq_kv_head_offset(r->kv)}));
    }
    assert_ptr_not_equal(seq[0].block, seq[1].block);
    assert_ptr_not_equal(seq[0].len, seq[1].len);
    assert_true(seq[0].row == 7 && seq[1].row == 8);
}

static void heads_that_differ_have_packed_blocks_and_then_one_each(void **state)
{
    static const struct aq_kv_options adakv = {.policy = "adakv",
                                               .budget = {.unit = AQ_KV_SLOTS, .slots = 50}};
    struct rig r;
    uint8_t stage[3][2 * 32 * DIM * 2 * HEADS];
    uint8_t *const staged[] = {stage[2], stage[0], stage[1]};
    open_everywhere(&r, &adakv, NULL);
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        aq_kv_grow(r.kv, seat, 0, 3); /* 3 full head-blocks of 100 slots, and one run more */
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (uint32_t n = 1; n < 100; n++)
                check_heads(&r, seat, layer, seat >= 3 ? staged : aq_kv_blocks(r.kv, seat, layer),
                            (uint32_t[HEADS]){n, 100 - n}, &(struct aq_kv_growth){2, 0});
        }
    }
    assert_int_equal(aq_kv_pages_free(r.kv, AQ_DEVICE) + aq_kv_pages_free(r.kv, AQ_HOST), 0);
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(aq_kv_lens(r.kv, seat, layer)[0], 99); /* nobody else wrote there */
        aq_kv_release(r.kv, seat);
    }
    close_rig(&r);
}

/* With every way to share, and after every number of new rows: slots stay where they are, new rows
 * lie in at most the two last runs, which are then no more than were announced; and runs that count
 * as full are. */
static void heads_that_differ_grow_by_runs(void **state)
{
    enum { KEPT = 50, GROWN = 100 };
    static const struct aq_kv_options ada = {.policy = "ada-snapkv",
                                             .budget = {.unit = AQ_KV_SLOTS, .slots = KEPT},
                                             .observe_given = true,
                                             .observe = 4};
    struct rig r;
    open_everywhere(&r, &ada, NULL);
    for (uint32_t n = 4; n <= 2 * KEPT - 3; n++) {
        uint32_t kept[HEADS] = {n, 2 * KEPT + 1 - n}; /* half a slot a head above the budget */
        uint32_t packed = aq_kv_packed_runs(KEPT, true, HEADS);
        for (uint32_t grown = 0; grown <= GROWN; grown++) {
            struct aq_kv_growth g = {packed, grown}, next = {packed, grown + 1};
            uint32_t runs = packed + (31 + grown + 31) / 32, whole = packed + grown / 32;
            uint32_t filled[16] = {0};
            aq_kv_grow(r.kv, 0, 0, runs);
            check_heads(&r, 0, 0, aq_kv_blocks(r.kv, 0, 0), kept, &g);
            for (uint32_t h = 0; h < HEADS; h++) {
                for (uint32_t i = 0; i < kept[h] + grown; i++) {
                    struct aq_kv_spot now = aq_kv_spot(r.kv, 0, 0, &g, h, i);
                    struct aq_kv_spot then = aq_kv_spot(r.kv, 0, 0, &next, h, i);
                    assert_true(now.run == then.run && now.offset == then.offset);
                    assert_true(now.run < runs);
                    filled[now.run]++;
                }
                uint32_t run = aq_kv_spot(r.kv, 0, 0, &next, h, kept[h] + grown).run;
                assert_in_range(run, whole, whole + 1);
            }
            for (uint32_t run = packed; run < whole; run++)
                assert_int_equal(filled[run], 32 * HEADS);
        }
        aq_kv_release(r.kv, 0);
    }
    close_rig(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_run_ever_has_two_owners),
    cmocka_unit_test(every_page_comes_back),
    cmocka_unit_test(what_is_remembered_has_a_place_of_its_own),
    cmocka_unit_test(the_full_cache_remembers_nothing),
    cmocka_unit_test(heads_that_differ_have_packed_blocks_and_then_one_each),
    cmocka_unit_test(heads_that_differ_grow_by_runs),
};

AQ_TEST_MAIN(tests)
