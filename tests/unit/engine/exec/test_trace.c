/* SPDX-License-Identifier: Apache-2.0
 * Traces: which passes are kept, what the file says of an op, that nothing is allocated while
 * passes run, and that a lane does one thing at a time. */
#include "engine/core/engine.h"
#include "engine/exec/trace.h"
#include "tests/alloc_trap.h"
#include "tests/choices.h"
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- reading a trace ---- */

enum { PREDICTED = 1, ACTUAL = 2 };

static char file_name[64];

static const char *new_file(void)
{
    snprintf(file_name, sizeof(file_name), "/tmp/aq-trace-XXXXXX");
    int fd = mkstemp(file_name);
    assert_true(fd >= 0);
    close(fd);
    return file_name;
}

static json_t *read_file(void)
{
    json_error_t error;
    json_t *o = json_load_file(file_name, 0, &error);
    unlink(file_name);
    if (!o)
        fail_msg("line %d: %s", error.line, error.text);
    return o;
}

static double number(const json_t *event, const char *key)
{
    const json_t *v = json_object_get(event, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static double argument(const json_t *event, const char *key)
{
    return number(json_object_get(event, "args"), key);
}

static bool is_span(const json_t *event)
{
    return strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0;
}

static const char *thread_name(const json_t *events, int process, int thread)
{
    size_t i;
    json_t *e;
    json_array_foreach((json_t *)events, i, e)
    {
        if (!is_span(e) && number(e, "pid") == process && number(e, "tid") == thread &&
            !strcmp(json_string_value(json_object_get(e, "name")), "thread_name"))
            return json_string_value(json_object_get(json_object_get(e, "args"), "name"));
    }
    return NULL;
}

/* Spans of a process whose thread begins with this name and that belong to a pass; -1: any. */
static uint32_t count_spans(const json_t *events, int process, const char *thread, int pass)
{
    uint32_t count = 0;
    size_t i;
    json_t *e;
    json_array_foreach((json_t *)events, i, e)
    {
        if (!is_span(e) || number(e, "pid") != process ||
            (pass >= 0 && argument(e, "pass") != pass))
            continue;
        const char *name = thread_name(events, process, (int)number(e, "tid"));
        assert_non_null(name);
        count += strncmp(name, thread, strlen(thread)) == 0;
    }
    return count;
}

/* Events of a thread come in order and one after the other (to half a nanosecond). */
static void check_threads(const json_t *events)
{
    double end[3][1024];
    for (int p = 0; p < 3; p++) {
        for (int t = 0; t < 1024; t++)
            end[p][t] = -INFINITY;
    }
    size_t i;
    json_t *e;
    json_array_foreach((json_t *)events, i, e)
    {
        if (!is_span(e))
            continue;
        int pid = (int)number(e, "pid"), tid = (int)number(e, "tid");
        assert_true(pid >= 1 && pid <= 2 && tid >= 0 && tid < 1024);
        assert_true(number(e, "dur") >= 0);
        if (number(e, "ts") < end[pid][tid] - 5e-4)
            fail_msg("process %d, %s: an event at %.3f, the one before until %.3f", pid,
                     thread_name(events, pid, tid), number(e, "ts"), end[pid][tid]);
        end[pid][tid] = number(e, "ts") + number(e, "dur");
    }
}

/* ---- by hand: a load that runs ahead, a product, a turn ---- */

enum { LOAD, PRODUCT, TURN, OPS };

static struct aq_dep hand_dep[] = {{LOAD, 0}, {PRODUCT, 1}, {PRODUCT, 0}};
static struct aq_op hand_op[OPS] = {
    [LOAD] = {.kind = AQ_OP_READ,
              .lane = AQ_LANE_DISK_READ,
              .object = AQ_OBJECT_WEIGHTS,
              .step = 1,
              .dep_first = 1,
              .dep_count = 1,
              .bytes_max = 4096},
    [PRODUCT] = {.kind = AQ_OP_MLP, .lane = AQ_LANE_COMPUTE, .step = 1, .dep_count = 1},
    [TURN] =
        {.kind = AQ_OP_TURN, .lane = AQ_LANE_CONTROL, .step = 2, .dep_first = 2, .dep_count = 1},
};
static const struct aq_program hand = {
    .op = hand_op, .op_count = OPS, .dep = hand_dep, .dep_count = 3, .parts = 1};

static void record_passes(struct aq_trace *t, uint64_t passes)
{
    for (uint64_t p = 0; p < passes; p++) {
        struct aq_op_cost cost[OPS] = {[LOAD] = {.move_bytes = 4096},
                                       [PRODUCT] = {.rows = 7, .flops = 1000, .memory_bytes = 4096},
                                       [TURN] = {.rows = 7}};
        uint64_t at = 1000000 + p * 1000;
        aq_trace_begin(t, p, at, cost, p ? 0 : 7, p ? 7 : 0);
        if (p == 0)
            aq_trace_op(t, LOAD, 0, at + 1, at + 100);
        aq_trace_op(t, PRODUCT, p, at + 100, at + 600);
        aq_trace_op(t, LOAD, p + 1, at + 601, at + 1050); /* into the next pass */
        aq_trace_op(t, TURN, p, at + 900, at + 950);
        aq_trace_end(t, p, at + 960);
    }
}

static json_t *write_hand(uint64_t passes, const struct aq_hardware *hw)
{
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = aq_mem_rounded(aq_trace_bytes(OPS))};
    struct aq_mem *mem;
    struct aq_trace *t;
    struct aq_err err;
    assert_int_equal(aq_mem_open(&mem, limit, &err), 0);
    assert_int_equal(aq_trace_open(&t, mem, &hand, &err), 0);
    alloc_trap_take();
    alloc_trap_arm(NULL, true);
    record_passes(t, passes);
    alloc_trap_arm(NULL, false);
    struct aq_trace_write_opts opts = {.path = new_file(), .hw = hw, .compute = AQ_F32};
    if (aq_trace_write(t, &opts, &err) < 0)
        fail_msg("%s", err.text);
    aq_trace_close(t);
    aq_mem_close(mem);
    assert_int_equal(alloc_trap_take(), 0);
    return read_file();
}

static void first_and_last_passes_are_kept(void **state)
{
    for (int passes = 0; passes <= 30; passes++) {
        json_t *o = write_hand((uint64_t)passes, NULL), *events = json_object_get(o, "traceEvents");
        for (int p = 0; p < passes + 2; p++) {
            bool kept = p < passes && (p < AQ_TRACE_PASSES || p >= passes - AQ_TRACE_PASSES);
            assert_int_equal(count_spans(events, ACTUAL, "compute", p), kept);
            assert_int_equal(count_spans(events, ACTUAL, "control", p), kept);
            assert_int_equal(count_spans(events, ACTUAL, "passes", p), kept);
            /* What ran ahead of the last pass is shown, too. */
            assert_int_equal(count_spans(events, ACTUAL, "disk_read", p),
                             kept || (p == passes && passes));
        }
        assert_int_equal(count_spans(events, PREDICTED, "", -1), 0);
        check_threads(events);
        json_decref(o);
    }
}

static void prediction_stands_beside_what_happened(void **state)
{
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 2, 2);
    for (int passes = 1; passes <= 12; passes++) {
        json_t *o = write_hand((uint64_t)passes, &hw), *events = json_object_get(o, "traceEvents");
        for (int p = 0; p < passes; p++) {
            for (int l = 0; l < 3; l++) {
                static const char *const lane[] = {"disk_read", "compute", "control"};
                assert_int_equal(count_spans(events, PREDICTED, lane[l], p),
                                 count_spans(events, ACTUAL, lane[l], p));
            }
        }
        check_threads(events);
        json_decref(o);
    }
}

static void an_event_says_what_it_is(void **state)
{
    json_t *o = write_hand(1, NULL), *events = json_object_get(o, "traceEvents"), *e;
    size_t i;
    uint32_t seen = 0;
    json_array_foreach(events, i, e)
    {
        if (!is_span(e) || number(e, "tid") == 0 || argument(e, "op") != LOAD)
            continue;
        bool ahead = argument(e, "pass") == 1;
        assert_string_equal(json_string_value(json_object_get(e, "name")), "READ weights 1/0/0");
        assert_true(number(e, "pid") == ACTUAL && argument(e, "bytes") == 4096);
        assert_true(argument(e, "step") == 1 && argument(e, "rows") == 0);
        assert_true(fabs(number(e, "ts") - (ahead ? 0.601 : 0.001)) < 1e-9);
        assert_true(fabs(number(e, "dur") - (ahead ? 0.449 : 0.099)) < 1e-9);
        seen++;
    }
    assert_int_equal(seen, 2);
    json_decref(o);
}

static void a_path_that_cannot_be_written_is_an_error(void **state)
{
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = AQ_MIB};
    struct aq_mem *mem;
    struct aq_trace *t;
    struct aq_err err;
    assert_int_equal(aq_mem_open(&mem, limit, &err), 0);
    assert_int_equal(aq_trace_open(&t, mem, &hand, &err), 0);
    record_passes(t, 2);
    struct aq_trace_write_opts opts = {.path = "/nowhere/at/all.json"};
    assert_int_equal(aq_trace_write(t, &opts, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nowhere/at/all.json"));
    opts.path = "/dev/full";
    assert_true(aq_trace_write(t, &opts, &err) < 0);
    assert_non_null(strstr(err.text, "/dev/full"));
    aq_trace_close(t);
    aq_mem_close(mem);
}

/* ---- a run of the small model, with an emulated device ---- */

static struct aq_engine *run_model(const char *trace, bool serial, const struct aq_log *log)
{
    enum { SEQUENCES = 5, PROMPT = 20, TOKENS = 10 };
    static uint32_t prompt[PROMPT], tokens[SEQUENCES][TOKENS];
    static struct aq_sequence s[SEQUENCES];
    struct aq_engine_opts opts = {
        .model_dir = test_data_path("tiny-opt"),
        .compute = -1,
        .weight_format = -1,
        .kv_format = -1,
        .threads = 2,
        .host_memory = AQ_GIB,
        .emulate_device = 256 * AQ_MIB,
        .placement = placed("weights=25/75/0 kv=50/50/0 hidden=100/0/0 head=host"),
        .attention = attended("host"),
        .micro_batch = 2,
        .micro_batches = 2,
        .refill = true,
        .serial = serial,
        .trace = trace,
        .log = log,
    };
    struct aq_workload w = {
        .sequences = SEQUENCES, .prompt_max = PROMPT, .total_max = PROMPT + TOKENS};
    struct aq_engine *e;
    struct aq_err err;
    if (aq_engine_open(&e, &opts, &err) < 0 || aq_engine_plan(e, &w, &err) < 0)
        fail_msg("%s", err.text);
    aq_engine_observe(e, alloc_trap_arm, NULL);
    if (aq_engine_load(e, &err) < 0)
        fail_msg("%s", err.text);
    for (uint32_t t = 0; t < PROMPT; t++)
        prompt[t] = 4 + t;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        s[i] = (struct aq_sequence){
            .prompt = prompt,
            .prompt_count = PROMPT - i,
            .max_tokens = TOKENS,
            .sampling = {.top_p = 1, .repetition_penalty = 1},
            .top_count = -1,
            .tokens = tokens[i],
        };
        aq_engine_submit(e, &s[i]);
    }
    alloc_trap_take();
    for (bool worked = true; worked;) {
        if (aq_engine_pass(e, &worked, &err) < 0)
            fail_msg("%s", err.text);
    }
    assert_int_equal(alloc_trap_take(), 0);
    return e;
}

/* All bytes over the link in the first pass, as the stream has them. */
static double bytes_of(const json_t *events, int process, const char *name, int pass)
{
    double bytes = 0;
    size_t i;
    json_t *e;
    json_array_foreach((json_t *)events, i, e)
    {
        if (is_span(e) && number(e, "pid") == process && argument(e, "pass") == pass &&
            !strncmp(json_string_value(json_object_get(e, "name")), name, strlen(name)))
            bytes += argument(e, "bytes");
    }
    return bytes;
}

static void check_run(bool serial)
{
    struct aq_engine *e = run_model(new_file(), serial, NULL);
    struct aq_engine_stats stats;
    aq_engine_stats(e, &stats);
    json_t *plan = aq_engine_plan_json(e);
    double streamed = (double)json_integer_value(
        json_object_get(json_object_get(plan, "weight_stream"), "host_bytes_per_pass"));
    json_decref(plan);
    aq_engine_close(e);
    json_t *o = read_file(), *events = json_object_get(o, "traceEvents");
    assert_true(stats.passes > 2 * AQ_TRACE_PASSES && streamed > 0);
    assert_true(number(json_object_get(o, "otherData"), "passes") == (double)stats.passes);
    static const char *const lanes[] = {"compute", "host_compute", "h2d", "d2h", "control"};
    for (size_t l = 0; l < AQ_ARRAY_LEN(lanes); l++) {
        for (uint64_t p = 0; p < stats.passes; p++) {
            uint32_t actual = count_spans(events, ACTUAL, lanes[l], (int)p);
            bool kept = p < AQ_TRACE_PASSES || p >= stats.passes - AQ_TRACE_PASSES;
            assert_int_equal(actual, count_spans(events, PREDICTED, lanes[l], (int)p));
            assert_true(kept || !actual);
        }
        assert_true(count_spans(events, ACTUAL, lanes[l], -1) > 0);
    }
    for (int process = PREDICTED; process <= ACTUAL; process++) {
        assert_true(bytes_of(events, process, "H2D weights", 0) == streamed);
        assert_true(bytes_of(events, process, "H2D weights", (int)stats.passes - 1) == streamed);
    }
    check_threads(events);
    json_decref(o);
}

static void lanes_of_an_overlapped_run_do_one_thing_at_a_time(void **state)
{
    check_run(false);
}

static void a_serial_run_is_traced_as_well(void **state)
{
    check_run(true);
}

static void keep_line(void *user, enum aq_log_level level, const char *text)
{
    if (level == AQ_LOG_WARNING)
        snprintf(user, 256, "%s", text);
}

static void a_trace_that_fails_is_a_warning(void **state)
{
    char text[256] = "";
    struct aq_log log = {keep_line, text};
    struct aq_engine *e = run_model("/nowhere/at/all.json", false, &log);
    struct aq_engine_stats stats;
    aq_engine_stats(e, &stats);
    assert_int_equal(stats.finished, 5);
    aq_engine_close(e);
    assert_non_null(strstr(text, "/nowhere/at/all.json"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(first_and_last_passes_are_kept),
    cmocka_unit_test(prediction_stands_beside_what_happened),
    cmocka_unit_test(an_event_says_what_it_is),
    cmocka_unit_test(a_path_that_cannot_be_written_is_an_error),
    cmocka_unit_test(lanes_of_an_overlapped_run_do_one_thing_at_a_time),
    cmocka_unit_test(a_serial_run_is_traced_as_well),
    cmocka_unit_test(a_trace_that_fails_is_a_warning),
};

AQ_TEST_MAIN(tests)
