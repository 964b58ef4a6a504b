/* SPDX-License-Identifier: Apache-2.0
 * Launches that are noted: what comes of them, when a list is a graph, and what ends it.  Kernels
 * and driver are functions here that write down that they were called. */
#include "engine/compute/cuda_graph.h"
#include "tests/test.h"

#include <errno.h>
#include <string.h>

enum { CALLS_MAX = 4096, SOME = 3, MANY = 200 };
enum { GRAPH = 10, ENOUGH = 1 << 20 }; /* bytes: what the GPU loses by a graph, and has */

static struct {
    uint32_t norms[CALLS_MAX], norm_count; /* rows of each norm that was launched */
    uint32_t victims;
    struct aq_attn last; /* what the last one was given */
    uint32_t begun, ended, launched, closed;
    bool capturing;
    int fails_at; /* rows of the norm that fails; 0: none */
    int capture_code;
    uint64_t free_bytes, first_launch; /* the latter goes when a graph is launched first */
} seen;

static struct aq_cuda_exec exec_of(void *stream)
{
    return (struct aq_cuda_exec){.stream = stream};
}

static int norm(const struct aq_cuda_exec *ex, const struct aq_norm *n)
{
    assert_ptr_equal(ex->stream, &seen);
    if (!seen.capturing)
        seen.norms[seen.norm_count++] = n->rows;
    return (int)n->rows == seen.fails_at ? 7 : 0;
}

static int victim(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    (void)ex;
    seen.victims++;
    seen.last = *a;
    return 0;
}

static int capture_begin(struct aq_gpu *g, void *stream)
{
    (void)g;
    (void)stream;
    seen.begun++;
    seen.capturing = !seen.capture_code;
    return seen.capture_code;
}

static int capture_end(struct aq_gpu *g, void *stream, void **ret)
{
    (void)g;
    (void)stream;
    seen.ended++;
    seen.free_bytes -= GRAPH;
    seen.capturing = false;
    *ret = &seen.ended;
    return 0;
}

static int graph_launch(struct aq_gpu *g, void *graph, void *stream)
{
    (void)g;
    (void)stream;
    assert_ptr_equal(graph, &seen.ended);
    if (seen.launched++ == 0)
        seen.free_bytes -= seen.first_launch;
    return 0;
}

static void graph_close(struct aq_gpu *g, void *graph)
{
    (void)g;
    (void)graph;
    seen.closed++;
    seen.free_bytes += GRAPH;
}

static int memory(struct aq_gpu *g, uint64_t *ret_free, uint64_t *ret_total)
{
    (void)g;
    *ret_free = seen.free_bytes;
    *ret_total = ENOUGH;
    return 0;
}

static const struct aq_gpu_ops gpu = {.memory = memory,
                                      .capture_begin = capture_begin,
                                      .capture_end = capture_end,
                                      .graph_launch = graph_launch,
                                      .graph_close = graph_close};
static const struct aq_cuda_kernels kernels = {.norm = norm, .kv_victim = victim};
static const struct aq_cuda_module module = {.gpu = &gpu, .kernels = &kernels};
static const struct aq_cuda cuda = {.module = &module};

/* ---- lists ------------------------------------------------------------------------------- */

static struct aq_cuda_record *rec;

static void open_with(uint32_t launches_max, uint32_t pass_lists_max, uint64_t graphs_bytes)
{
    struct aq_cuda_record_opts opts = {.cuda = &cuda,
                                       .launches_max = launches_max,
                                       .pass_lists_max = pass_lists_max,
                                       .graphs_bytes = graphs_bytes};
    memset(&seen, 0, sizeof(seen));
    seen.free_bytes = ENOUGH;
    assert_int_equal(aq_cuda_record_open(&rec, &opts, NULL), 0);
}

static void open_for(uint32_t launches_max, uint32_t pass_lists_max)
{
    open_with(launches_max, pass_lists_max, ENOUGH);
}

static void open_record(uint32_t launches_max)
{
    open_for(launches_max, 0);
}

static bool note_norm(uint32_t rows, uint32_t op)
{
    struct aq_norm n = {.kind = AQ_NORM_CAST,
                        .x_stride = 1,
                        .y_dtype = AQ_F16,
                        .y_stride = 2,
                        .rows = rows,
                        .dim = 3};
    return aq_cuda_record_add(rec, AQ_CUDA_KERNEL_norm, &n, op);
}

/* Norms of first, first + 1, ... rows, each of an op of its own. */
static void note_list(uint32_t first, uint32_t count)
{
    aq_cuda_record_clear(rec);
    for (uint32_t i = 0; i < count; i++)
        assert_true(note_norm(first + i, i));
}

static int launch(const char **ret_what, uint32_t *ret_op)
{
    struct aq_cuda_exec real = exec_of(&seen);
    return aq_cuda_record_launch(rec, &real, true, ret_what, ret_op);
}

static void run_list(uint32_t first, uint32_t count)
{
    const char *what;
    uint32_t op;
    note_list(first, count);
    assert_int_equal(launch(&what, &op), 0);
}

/* ---- claims ------------------------------------------------------------------------------ */

static void what_is_noted_is_launched_in_order(void **state)
{
    (void)state;
    open_record(0);
    note_list(5, SOME);
    assert_int_equal(seen.norm_count, 0);
    const char *what;
    uint32_t op;
    assert_int_equal(launch(&what, &op), 0);
    assert_int_equal(seen.norm_count, SOME);
    for (uint32_t i = 0; i < SOME; i++)
        assert_int_equal(seen.norms[i], 5 + i);
    aq_cuda_record_close(rec);
}

static void what_comes_again_is_a_graph(void **state)
{
    (void)state;
    open_record(0);
    run_list(5, SOME);
    assert_int_equal(seen.begun, 0);
    run_list(5, SOME);
    assert_int_equal(seen.begun, 1);
    assert_int_equal(seen.launched, 1);
    run_list(5, SOME);
    assert_int_equal(seen.begun, 1);
    assert_int_equal(seen.launched, 2);
    assert_int_equal(seen.norm_count, SOME); /* those of the first time */
    run_list(6, SOME);                       /* other arguments */
    run_list(5, SOME + 1);                   /* other lengths */
    assert_int_equal(seen.launched, 2);
    assert_int_equal(seen.norm_count, 3 * SOME + 1);
    aq_cuda_record_close(rec);
    assert_int_equal(seen.closed, 1);
}

static void what_is_noted_is_copied(void **state)
{
    struct aq_attn a = {.seq_count = 2, .rule = {.decay = 0.5f, .sinks = 4}, .reach = {.len = 3}};
    const struct aq_attn was = a;
    const char *what;
    uint32_t op;
    (void)state;
    open_record(0);
    assert_true(aq_cuda_record_add(rec, AQ_CUDA_KERNEL_kv_victim, &a, 0));
    a = (struct aq_attn){0};
    assert_int_equal(launch(&what, &op), 0);
    assert_int_equal(seen.victims, 1);
    assert_memory_equal(&seen.last, &was, sizeof(was));
    aq_cuda_record_close(rec);
}

/* What a shorter struct leaves of a place is what it was when the place was taken first. */
static void lists_are_known_by_what_kernels_take(void **state)
{
    struct aq_attn longer;
    (void)state;
    open_record(0);
    for (int turn = 0; turn < 3; turn++) {
        aq_cuda_record_clear(rec);
        memset(&longer, 0x11 * turn, sizeof(longer));
        for (uint32_t i = 0; i < SOME; i++)
            assert_true(aq_cuda_record_add(rec, AQ_CUDA_KERNEL_kv_victim, &longer, i));
        run_list(5, SOME);
    }
    assert_int_equal(seen.begun, 1);
    assert_int_equal(seen.launched, 2);
    aq_cuda_record_close(rec);
}

static void a_failure_is_told_with_its_op(void **state)
{
    const char *what = NULL;
    uint32_t op = 0;
    (void)state;
    open_record(0);
    seen.fails_at = 7;
    note_list(5, SOME + 2);
    assert_int_equal(launch(&what, &op), 7);
    assert_string_equal(what, "norm");
    assert_int_equal(op, 2);
    assert_int_equal(seen.norm_count, 3); /* nothing behind it */
    /* It is not a graph either. */
    note_list(5, SOME + 2);
    assert_int_equal(launch(&what, &op), 7);
    assert_int_equal(seen.launched, 0);
    assert_int_equal(seen.closed, 1);
    aq_cuda_record_close(rec);
}

static void what_cannot_be_captured_is_launched_as_ever(void **state)
{
    (void)state;
    open_record(0);
    seen.capture_code = 3;
    for (uint32_t i = 0; i < 4; i++)
        run_list(5, SOME);
    assert_int_equal(seen.begun, 1); /* tried once */
    assert_int_equal(seen.norm_count, 4 * SOME);
    aq_cuda_record_close(rec);
}

static void there_is_room_for_so_many(void **state)
{
    const char *what;
    uint32_t op;
    (void)state;
    open_record(SOME);
    note_list(5, SOME);
    assert_false(note_norm(5 + SOME, 0));
    assert_int_equal(launch(&what, &op), 0);
    assert_int_equal(seen.norm_count, SOME);
    note_list(5, SOME);
    aq_cuda_record_close(rec);
}

/* Lists that come once do not push out graphs; graphs that are not needed go in the end. */
static void graphs_are_kept_as_long_as_there_is_room(void **state)
{
    (void)state;
    open_record(0);
    run_list(1, SOME);
    run_list(1, SOME);
    for (uint32_t i = 0; i < MANY; i++)
        run_list(1000 + i, SOME);
    run_list(1, SOME);
    assert_int_equal(seen.launched, 2);
    assert_int_equal(seen.closed, 0);
    for (uint32_t i = 0; i < 4 * MANY; i++)
        run_list(2000 + i / 2, SOME);
    assert_true(seen.closed > 0);
    uint32_t made = seen.ended;
    aq_cuda_record_close(rec);
    assert_int_equal(seen.closed, made);
}

/* Passes of many lists that all come once in each, behind one whose lists never come again. */
static void lists_that_come_in_turn_are_graphs(void **state)
{
    static const uint32_t announced[] = {MANY, 0}; /* so many are known; or fewer than there are */
    (void)state;
    for (size_t n = 0; n < AQ_ARRAY_LEN(announced); n++) {
        open_for(0, announced[n]);
        for (uint32_t i = 0; i < MANY; i++)
            run_list(1000 + i, SOME);
        for (uint32_t pass = 0; pass < 5; pass++) {
            seen.launched = seen.norm_count = 0;
            for (uint32_t i = 0; i < MANY; i++)
                run_list(2000 + i, SOME);
        }
        assert_in_range(seen.launched, announced[n] ? MANY - 1 : MANY / 2, MANY);
        assert_int_equal(seen.norm_count, SOME * (MANY - seen.launched));
        assert_int_equal(seen.closed, 0);
        aq_cuda_record_close(rec);
    }
}

static void graphs_take_no_more_memory_than_is_meant_for_them(void **state)
{
    (void)state;
    open_with(0, 0, 3 * GRAPH - 1);
    for (uint32_t pass = 0; pass < 3; pass++) {
        for (uint32_t i = 0; i < 2 * SOME; i++)
            run_list(1 + 10 * i, SOME);
    }
    assert_int_equal(seen.ended, 3);
    assert_int_equal(seen.launched, 2 * 3);
    struct aq_cuda_graphs graphs = aq_cuda_record_graphs(rec);
    assert_int_equal(graphs.count, 3);
    assert_int_equal(graphs.bytes, 3 * GRAPH);
    assert_true(graphs.full);
    assert_int_equal(seen.norm_count, SOME * (2 * SOME * 3 - 2 * 3)); /* the rest as ever */
    /* Those that do not come any more go, and there is room again. */
    for (uint32_t i = 0; i < 4 * MANY; i++)
        run_list(2000 + i / 2, SOME);
    assert_true(seen.closed >= 3);
    assert_true(seen.ended > 3);
    aq_cuda_record_close(rec);
}

/* Kernels that are loaded, or another process, are no reason to make no graphs; what the driver
 * takes when one is launched is. */
static void what_others_take_of_the_gpu_ends_no_graphs(void **state)
{
    (void)state;
    open_with(0, 0, 3 * GRAPH - 1);
    for (uint32_t pass = 0; pass < 3; pass++) {
        run_list(1, SOME);
        run_list(11, SOME);
        seen.free_bytes -= 100 * GRAPH;
    }
    assert_int_equal(seen.ended, 2);
    assert_int_equal(seen.launched, 2 * 2);
    aq_cuda_record_close(rec);
    open_with(0, 0, 3 * GRAPH - 1);
    seen.first_launch = 2 * GRAPH;
    for (uint32_t pass = 0; pass < 3; pass++) {
        run_list(1, SOME);
        run_list(11, SOME);
    }
    assert_int_equal(seen.ended, 1);
    aq_cuda_record_close(rec);
}

static void lists_of_a_launch_or_two_are_launched_as_ever(void **state)
{
    (void)state;
    open_record(0);
    for (uint32_t i = 0; i < 4; i++)
        run_list(5, SOME - 1);
    assert_int_equal(seen.begun, 0);
    assert_int_equal(seen.norm_count, 4 * (SOME - 1));
    aq_cuda_record_close(rec);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_is_noted_is_launched_in_order),
    cmocka_unit_test(what_comes_again_is_a_graph),
    cmocka_unit_test(what_is_noted_is_copied),
    cmocka_unit_test(lists_are_known_by_what_kernels_take),
    cmocka_unit_test(a_failure_is_told_with_its_op),
    cmocka_unit_test(what_cannot_be_captured_is_launched_as_ever),
    cmocka_unit_test(there_is_room_for_so_many),
    cmocka_unit_test(graphs_are_kept_as_long_as_there_is_room),
    cmocka_unit_test(lists_that_come_in_turn_are_graphs),
    cmocka_unit_test(graphs_take_no_more_memory_than_is_meant_for_them),
    cmocka_unit_test(what_others_take_of_the_gpu_ends_no_graphs),
    cmocka_unit_test(lists_of_a_launch_or_two_are_launched_as_ever),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
