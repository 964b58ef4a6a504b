/* SPDX-License-Identifier: Apache-2.0
 * What tests/cuda_emu/watch.h promises: each planted fault is found and named, the same kernel
 * without it is not, and of a real kernel every barrier that is needed is missed. */
#include "tests/cuda_emu/planted.h"
#include "tests/cuda_emu/watch.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM = 8, DIM = 200 }; /* ROOM: numbers in front of an array, and behind it */

static struct {
    float *from, *to;
    uint32_t found[AQ_WATCH_FINDINGS];
    char text[2048]; /* of the last finding */
} rig;

static const struct aq_cuda_exec device = {.sm = 90, .multiprocessors = 2};

static void listen_to(enum aq_watch_finding what, const char *text)
{
    rig.found[what]++;
    snprintf(rig.text, sizeof(rig.text), "%s", text);
}

static float *make_array(void)
{
    float *room = aligned_alloc(32, (PLANTED_THREADS + 2 * ROOM) * sizeof(*room));
    assert_non_null(room);
    for (uint32_t i = 0; i < PLANTED_THREADS + 2 * ROOM; i++)
        room[i] = 1;
    aq_watch_array(room + ROOM, PLANTED_THREADS * sizeof(*room));
    return room + ROOM;
}

static void drop_array(float *array)
{
    aq_watch_forget(array);
    free(array - ROOM);
}

static void open_rig(void)
{
    memset(&rig, 0, sizeof(rig));
    rig.from = make_array();
    rig.to = make_array();
    aq_watch_listen(listen_to);
}

static void close_rig(void)
{
    aq_watch_listen(NULL);
    drop_array(rig.from);
    drop_array(rig.to);
}

static uint32_t all_found(void)
{
    return rig.found[AQ_WATCH_RACE] + rig.found[AQ_WATCH_REACH] + rig.found[AQ_WATCH_ALIGNMENT];
}

/* Without the fault nothing is found, with it something of this kind alone, which says so. */
static void expect_found(enum planted which, enum aq_watch_finding what, const char *says)
{
    open_rig();
    uint64_t before = aq_watch_accesses();
    assert_int_equal(planted_run(&device, which, false, rig.from, rig.to), 0);
    assert_true(aq_watch_accesses() > before);
    assert_int_equal(all_found(), 0);
    assert_int_equal(planted_run(&device, which, true, rig.from, rig.to), 0);
    assert_true(rig.found[what] > 0);
    assert_int_equal(all_found(), rig.found[what]);
    assert_non_null(strstr(rig.text, says));
    close_rig();
}

static void a_missing_barrier_is_a_race(void **state)
{
    (void)state;
    expect_found(PLANTED_BARRIER, AQ_WATCH_RACE, "shared memory");
}

static void a_race_that_changes_no_value_is_found(void **state)
{
    (void)state;
    expect_found(PLANTED_SAME, AQ_WATCH_RACE, "shared memory");
}

static void lanes_of_a_warp_race_without_syncwarp(void **state)
{
    (void)state;
    expect_found(PLANTED_SYNCWARP, AQ_WATCH_RACE, "shared memory");
}

static void blocks_race_for_a_number_that_they_add_to(void **state)
{
    (void)state;
    expect_found(PLANTED_BLOCKS_ADD, AQ_WATCH_RACE, "global memory");
}

static void atomic_operations_race_with_others(void **state)
{
    (void)state;
    expect_found(PLANTED_MIXED, AQ_WATCH_RACE, "global memory");
}

static void copies_that_run_alone_are_writes(void **state)
{
    (void)state;
    expect_found(PLANTED_COPY, AQ_WATCH_RACE, "shared memory");
}

static void one_number_behind_an_array_is_out_of_reach(void **state)
{
    (void)state;
    expect_found(PLANTED_PAST, AQ_WATCH_REACH, "reads 4 bytes");
}

static void one_number_in_front_of_an_array_is_out_of_reach(void **state)
{
    (void)state;
    expect_found(PLANTED_BEFORE, AQ_WATCH_REACH, "writes 4 bytes");
}

static void variables_of_the_host_are_out_of_reach(void **state)
{
    (void)state;
    expect_found(PLANTED_HOST, AQ_WATCH_REACH, "reads 4 bytes");
}

static void a_load_that_is_not_aligned_is_found(void **state)
{
    (void)state;
    expect_found(PLANTED_ODD, AQ_WATCH_ALIGNMENT, "8 bytes");
}

/* The mean, then the variance, over shared memory that both use: the barrier in front of the first
 * sum is needed by nobody, each of the others is. */
static void each_barrier_that_a_norm_needs_is_missed(void **state)
{
    static float x[2 * DIM], y[2 * DIM];
    struct aq_norm n = {.kind = AQ_NORM_LAYER,
                        .rows = 2,
                        .dim = DIM,
                        .eps = 1e-5f,
                        .x = x,
                        .x_stride = DIM,
                        .y = y,
                        .y_stride = DIM,
                        .y_dtype = AQ_F32};
    (void)state;
    open_rig();
    aq_watch_array(x, sizeof(x));
    aq_watch_array(y, sizeof(y));
    for (uint32_t skipped = 0; skipped <= 5; skipped++) {
        bool needed = skipped >= 2 && skipped <= 4;
        aq_watch_listen(listen_to);
        memset(rig.found, 0, sizeof(rig.found));
        aq_watch_skip_barrier(skipped);
        assert_int_equal(aq_cuda_norm(&device, &n), 0);
        assert_int_equal(all_found() > 0, needed);
        assert_int_equal(all_found(), rig.found[AQ_WATCH_RACE]);
    }
    aq_watch_skip_barrier(0);
    aq_watch_forget(x);
    aq_watch_forget(y);
    close_rig();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_missing_barrier_is_a_race),
    cmocka_unit_test(a_race_that_changes_no_value_is_found),
    cmocka_unit_test(lanes_of_a_warp_race_without_syncwarp),
    cmocka_unit_test(blocks_race_for_a_number_that_they_add_to),
    cmocka_unit_test(atomic_operations_race_with_others),
    cmocka_unit_test(copies_that_run_alone_are_writes),
    cmocka_unit_test(one_number_behind_an_array_is_out_of_reach),
    cmocka_unit_test(one_number_in_front_of_an_array_is_out_of_reach),
    cmocka_unit_test(variables_of_the_host_are_out_of_reach),
    cmocka_unit_test(a_load_that_is_not_aligned_is_found),
    cmocka_unit_test(each_barrier_that_a_norm_needs_is_missed),
};

AQ_TEST_MAIN(tests)
