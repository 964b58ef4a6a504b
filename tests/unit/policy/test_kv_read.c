/* SPDX-License-Identifier: Apache-2.0
 * Rows that read a part of what is held: how much, against counters; which layers they are of; and
 * what plans count for them. */
#include "policy/kv_read.h"

#include "policy/kv_layout.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <errno.h>
#include <string.h>

static void no_more_is_read_than_was_asked_for(void **state)
{
    (void)state;
    for (uint32_t read = AQ_KV_READ_MIN; read < 300; read++) {
        for (uint32_t held = 1; held < 700; held++) {
            uint32_t slots = aq_kv_read_slots(read, held), full = held / 32, open = held % 32;
            if (held <= read) {
                assert_false(aq_kv_read_chooses(read, held));
                assert_int_equal(slots, held);
                continue;
            }
            uint32_t blocks = aq_kv_read_blocks(read, held);
            assert_true(aq_kv_read_chooses(read, held));
            assert_int_equal(slots, 32 * blocks + open);
            assert_in_range(blocks, 2, full - 1);
            assert_in_range(slots, read - 31, read);
        }
    }
    assert_false(aq_kv_read_chooses(0, UINT32_MAX));
}

/* Row by row: whatever a row chooses among has its bounds by then, each made once. */
static void bounds_are_made_once(void **state)
{
    (void)state;
    for (uint32_t prompt = 1; prompt < 260; prompt += 3) {
        for (uint32_t read = AQ_KV_READ_MIN; read < 230; read += 7) {
            uint32_t made = 0;
            for (uint32_t held = prompt + 1; held < prompt + 200; held++) {
                uint32_t first = aq_kv_read_bounded(read, held - 1, held == prompt + 1);
                if (!aq_kv_read_chooses(read, held))
                    continue;
                assert_int_equal(first, made);
                made = held / 32;
            }
        }
    }
}

static void a_window_and_the_first_layers_never_choose(void **state)
{
    (void)state;
    struct aq_model_steps m = plans_model(6, 64, 4, 4096);
    struct aq_kv_policy p = {.read = 512, .read_dense = 2};
    struct aq_kv_kinds kinds;
    uint32_t at = 0;
    for (uint32_t j = 0; j < m.step_count; j++) {
        if (m.step[j].kind == AQ_STEP_ATTENTION && at++ == 3)
            m.step[j].window = 1000;
    }
    /* Longer and shorter than the window: its layer is another kind, or one of those that read
     * all. */
    for (uint32_t total = 600; total <= 2000; total += 200) {
        struct aq_kv_lengths lengths = {.prompt_max = 500, .total_max = total};
        aq_kv_kinds_of(&kinds, &p, &m, &lengths);
        for (uint32_t layer = 0; layer < 6; layer++) {
            const struct aq_kv_kind *k = aq_kv_kinds_at(&kinds, layer);
            assert_int_equal(k->chooses, layer >= 2 && layer != 3);
            assert_int_equal(aq_kv_kind_policy(k, &p).read, k->chooses ? 512 : 0);
        }
        assert_int_equal(kinds.count, total > 1000 ? 3 : 2);
    }
    struct aq_kv_lengths brief = {.prompt_max = 500, .total_max = 512};
    aq_kv_kinds_of(&kinds, &p, &m, &brief);
    assert_int_equal(kinds.count, 1);
    assert_false(kinds.kind[0].chooses);
    aq_steps_close(&m);
}

static void refused(const struct aq_kv_policy *p, const struct aq_model_steps *m, const char *says)
{
    struct aq_err err = {0};
    assert_int_equal(aq_kv_policy_check_layers(p, m, &err), -EINVAL);
    assert_non_null(strstr(err.text, says));
}

static void where_no_layer_would_choose_it_is_refused(void **state)
{
    (void)state;
    struct aq_model_steps m = plans_model(6, 64, 4, 4096);
    struct aq_kv_policy all = {.read = 0}, p = {.read = 512, .read_dense = 2};
    assert_int_equal(aq_kv_policy_check_layers(&p, &m, NULL), 0);
    p.read_dense = 6;
    refused(&p, &m, "--kv-read-dense 6");
    refused(&(struct aq_kv_policy){.positions = AQ_KV_POSITIONS_CACHE}, &m,
            "--kv-positions cache: the model adds positions to the embedding");
    p.read_dense = 2;
    for (uint32_t j = 0; j < m.step_count; j++) {
        if (m.step[j].kind == AQ_STEP_ATTENTION && m.step[j].layer != 1)
            m.step[j].window = 1000;
    }
    refused(&p, &m, "has a window of its own");
    p.read_dense = 1; /* the one that has none */
    assert_int_equal(aq_kv_policy_check_layers(&p, &m, NULL), 0);
    assert_int_equal(aq_kv_policy_check_layers(&all, &m, NULL), 0);
    aq_steps_close(&m);
}

/* Of 16384 keys of 128 numbers in f16 2048 are read, and bounds of 512 bytes a head-block, which
 * are a thirty-second part. */
static void plans_count_what_is_read(void **state)
{
    (void)state;
    struct aq_block_shape s = {.run_bytes = 8 * aq_kv_block_bytes(AQ_F16, 128),
                               .bound_bytes = 8 * 4 * 128};
    struct aq_kv_residual none = {0};
    struct aq_kv_reads all = aq_kv_reads_of(&s, &none, 0, 16384);
    struct aq_kv_reads part = aq_kv_reads_of(&s, &none, 2048, 16384);
    assert_int_equal(all.slots, 16384);
    assert_int_equal(all.keys, 16384);
    assert_int_equal(part.slots, 2048 + 16384 / 32);
    assert_int_equal(part.keys, 2048 + 512 / 2);
    assert_int_equal(aq_kv_reads_of(&s, &none, 2048, 2048).slots, 2048);
    struct aq_kv_kind kind = {.chooses = true, .head_slots = 16384 + 31, .layers = 30};
    assert_int_equal(aq_kv_bound_groups_of(&kind), 32);
    assert_int_equal(aq_kv_bounds_bytes(&s, &kind), 16384 / 32 * s.bound_bytes);
    struct aq_kv_kinds kinds = {.count = 2, .kind = {kind, {.layers = 2, .head_slots = 16384}}};
    assert_int_equal(aq_kv_kinds_bounds_bytes(&s, &kinds), 30 * 16384 / 32 * s.bound_bytes);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_more_is_read_than_was_asked_for),
    cmocka_unit_test(bounds_are_made_once),
    cmocka_unit_test(a_window_and_the_first_layers_never_choose),
    cmocka_unit_test(where_no_layer_would_choose_it_is_refused),
    cmocka_unit_test(plans_count_what_is_read),
};

AQ_TEST_MAIN(tests)
