/* SPDX-License-Identifier: Apache-2.0 */
#include "base/prng.h"
#include "engine/kv.h"
#include "tests/test.h"

#include <stdlib.h>

enum { SEATS = 5, LAYERS = 3, HEADS = 2, DIM = 8, KEYS_MAX = 320 };

struct rig {
    struct aq_mem *mem;
    struct aq_device *device;
    struct aq_kv *kv;
    struct aq_plan plan;
};

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
    assert_int_equal(aq_mem_open(&r.mem, limit, NULL), 0);
    struct aq_device_opts device = {.kind = AQ_DEVICE_UNIFIED, .mem = r.mem};
    assert_int_equal(aq_device_open(&r.device, &device, NULL), 0);
    struct aq_kv_opts opts = {r.device, &r.plan, LAYERS, HEADS, DIM};
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
            aq_kv_grow(r.kv, seat, keys[seat]);
            mark(&r, seat, (keys[seat] + 31) / 32, (uint8_t)(seat * 40), false);
        }
        close_rig(&r);
    }
}

static void every_page_comes_back(void **state)
{
    struct rig r = open_rig(2);
    for (uint32_t seat = 0; seat < SEATS; seat++)
        aq_kv_grow(r.kv, seat, KEYS_MAX);
    assert_int_equal(aq_kv_pages_free(r.kv, AQ_HOST), 0);
    for (uint32_t seat = 0; seat < SEATS; seat++)
        aq_kv_release(r.kv, seat);
    assert_int_equal(aq_kv_pages_free(r.kv, AQ_HOST), r.plan.shape.page_count[AQ_HOST]);
    close_rig(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_run_ever_has_two_owners),
    cmocka_unit_test(every_page_comes_back),
};

AQ_TEST_MAIN(tests)
