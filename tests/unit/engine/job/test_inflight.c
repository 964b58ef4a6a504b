/* SPDX-License-Identifier: Apache-2.0
 * FILE.inflight: written and read, damaged, of other values, and whole jobs that are stopped and go
 * on from it. */
#include "engine/job/inflight.h"

#include "base/file.h"
#include "engine/job/sums.h"
#include "engine/records/record_state.h"
#include "tests/test.h"
#include "tests/unit/engine/job/job_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VALUES = 4711, VOCAB = 512, RECORDS = 5 };

/* ---- the file alone ---------------------------------------------------------------------- */

static const struct aq_record_rules rules = {.id_end = VOCAB};

/* Record i has i tokens of its first choice. */
static struct aq_record *make_record(uint64_t i)
{
    struct aq_request *r = calloc(1, sizeof(*r));
    r->prompts = calloc(1, sizeof(*r->prompts));
    r->prompts[0] =
        (struct aq_prompt){.ids = calloc(1, sizeof(uint32_t)), .count = 1, .max_tokens = 20};
    r->owned = NULL;
    r->prompt_count = 1;
    r->id_hash = 1000 - i;
    r->key = 7 * i;
    r->params = (struct aq_params){.n = 1, .logprobs = -1, .ignore_eos = true};
    struct aq_record *rec;
    assert_int_equal(aq_record_open(&rec, r, &rules, NULL), 0);
    for (uint32_t t = 0; t < i; t++)
        rec->choices[0].sequence.tokens[rec->choices[0].sequence.token_count++] = 10 * t + 1;
    aq_record_know(rec);
    return rec;
}

static void free_record(struct aq_record *rec)
{
    free(rec->request->prompts[0].ids);
    free(rec->request->prompts);
    free(rec->request);
    free(rec->memory);
}

struct flying {
    struct aq_record *rec[RECORDS];
    struct aq_flight flight;
};

static void take_off(struct flying *f)
{
    *f = (struct flying){.flight = {.count = RECORDS}};
    for (uint64_t i = 0; i < RECORDS; i++) {
        f->rec[i] = make_record(i);
        f->rec[i]->next = f->flight.first;
        f->flight.first = f->rec[i];
    }
}

static void land(struct flying *f)
{
    for (uint64_t i = 0; i < RECORDS; i++)
        free_record(f->rec[i]);
}

static struct aq_inflight *open_good(const char *path)
{
    struct aq_inflight *f;
    struct aq_err err = {0};
    if (aq_inflight_open(&f, path, VALUES, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

static void states_come_back_by_id_and_key(void **state)
{
    const char *path = job_rig_path(*state, "x.inflight");
    struct flying f;
    struct aq_inflight_count count;
    struct aq_buf bytes = {0}, want = {0};
    take_off(&f);
    assert_int_equal(aq_inflight_write(path, VALUES, &f.flight, NULL, &count, NULL), 0);
    assert_int_equal(count.records, RECORDS - 1); /* one has no token */
    assert_int_equal(count.tokens, 1 + 2 + 3 + 4);
    struct aq_inflight *in = open_good(path);
    assert_int_equal(aq_inflight_wanted(in).records, 0);
    aq_inflight_want(in, 1000 - 3, 7 * 3, true);
    aq_inflight_want(in, 1000 - 2, 7 * 3, true); /* the id of one, the key of another */
    assert_int_equal(aq_inflight_wanted(in).records, 1);
    assert_int_equal(aq_inflight_wanted(in).tokens, 3);
    assert_int_equal(aq_inflight_take(in, 1000 - 1, 7, &bytes), 0); /* not wanted */
    assert_int_equal(aq_inflight_take(in, 1000 - 3, 7 * 3, &bytes), 3);
    aq_record_state_put(&want, f.rec[3]);
    assert_int_equal(bytes.count, want.count);
    assert_memory_equal(bytes.data, want.data, want.count);
    assert_int_equal(aq_inflight_take(in, 1000 - 3, 7 * 3, &bytes), 0); /* only once */
    assert_int_equal(bytes.count, 0);
    aq_inflight_close(in);
    aq_buf_close(&bytes);
    aq_buf_close(&want);
    land(&f);
}

static void entries_that_are_still_wanted_are_carried_over(void **state)
{
    const char *path = job_rig_path(*state, "x.inflight");
    struct flying f;
    struct aq_flight none = {0};
    struct aq_inflight_count count;
    struct aq_buf bytes = {0};
    take_off(&f);
    assert_int_equal(aq_inflight_write(path, VALUES, &f.flight, NULL, &count, NULL), 0);
    struct aq_inflight *in = open_good(path);
    aq_inflight_want(in, 1000 - 4, 7 * 4, true);
    aq_inflight_want(in, 1000 - 2, 7 * 2, true);
    assert_int_equal(aq_inflight_take(in, 1000 - 2, 7 * 2, &bytes), 2);
    assert_int_equal(aq_inflight_write(path, VALUES, &none, in, &count, NULL), 0);
    assert_int_equal(count.records, 1);
    assert_int_equal(count.tokens, 4);
    aq_inflight_close(in);
    in = open_good(path);
    aq_inflight_want(in, 1000 - 4, 7 * 4, true);
    assert_int_equal(aq_inflight_take(in, 1000 - 4, 7 * 4, &bytes), 4);
    assert_true(aq_record_state_take(f.rec[0], bytes.data, bytes.count)); /* of the same form */
    assert_int_equal(f.rec[0]->choices[0].sequence.given_count, 4);
    /* Nothing is left: no file. */
    assert_int_equal(aq_inflight_write(path, VALUES, &none, in, &count, NULL), 0);
    assert_int_equal(count.records, 0);
    assert_false(job_rig_exists(*state, "x.inflight"));
    assert_false(job_rig_exists(*state, "x.inflight.tmp"));
    aq_inflight_close(in);
    aq_buf_close(&bytes);
    land(&f);
}

static void assert_unusable(const char *path, const char *why)
{
    struct aq_inflight *in = NULL;
    struct aq_err err = {0};
    assert_int_equal(aq_inflight_open(&in, path, VALUES, &err), -EINVAL);
    assert_null(in);
    if (!strstr(err.text, why))
        fail_msg("'%s' does not say '%s'", err.text, why);
}

static void a_file_that_is_not_as_written_is_not_used(void **state)
{
    struct job_rig *rig = *state;
    const char *path = job_rig_path(rig, "x.inflight");
    struct flying f;
    struct aq_inflight_count count;
    struct aq_inflight *in;
    take_off(&f);
    assert_int_equal(aq_inflight_open(&in, path, VALUES, NULL), -ENOENT);
    assert_int_equal(aq_inflight_write(path, VALUES + 1, &f.flight, NULL, &count, NULL), 0);
    assert_unusable(path, "other values");
    assert_int_equal(aq_inflight_write(path, VALUES, &f.flight, NULL, &count, NULL), 0);
    off_t size = job_rig_size(rig, "x.inflight");
    for (off_t i = 0; i < size; i++) {
        job_rig_change_byte(rig, "x.inflight", i, 64);
        assert_unusable(path, i < 16 ? "not a file of" : i < 24 ? "another version" : "");
        job_rig_change_byte(rig, "x.inflight", i, 64);
    }
    aq_inflight_close(open_good(path));
    while (size > 0) {
        job_rig_cut(rig, "x.inflight", --size);
        assert_unusable(path, "");
    }
    land(&f);
}

/* ---- whole jobs -------------------------------------------------------------------------- */

static struct job_rig *stopped_rig;
static uint64_t stop_pass;

static void stop_in_pass(uint64_t pass)
{
    if (pass == stop_pass)
        stopped_rig->interrupt = true;
    if (pass >= stop_pass) /* the watcher looks every 50 ms */
        fake_engine.pass_s = 0.1;
}

/* Runs until pass `pass`; more: options. */
static void run_until(struct job_rig *rig, uint64_t pass, const char *more)
{
    stopped_rig = rig;
    stop_pass = fake_engine.passes + pass;
    fake_engine.on_pass = stop_in_pass;
    assert_int_equal(job_rig_run(rig, more), -EINTR);
    fake_engine.on_pass = NULL;
    fake_engine.pass_s = 0;
    rig->interrupt = false;
}

/* What a run that nobody stops writes; the folder is left without results. */
static char *undisturbed(struct job_rig *rig)
{
    char *want = job_rig_full_run(rig), path[128];
    static const char *const names[] = {"", ".manifest.json", ".sums", ".status.json"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/out.jsonl%s", rig->dir, names[i]);
        unlink(path);
    }
    fake_engine.given_tokens = 0;
    return want;
}

static void a_stopped_job_goes_on_in_the_middle_of_its_records(void **state)
{
    struct job_rig *rig = *state;
    char *want = undisturbed(rig);
    for (uint64_t stops = 0; stops < 4; stops++) {
        run_until(rig, 5, "");
        assert_true(job_rig_said(rig, "records in flight are kept in"));
        assert_true(job_rig_exists(rig, "out.jsonl.inflight"));
    }
    assert_true(job_rig_said(rig, "records in flight go on from"));
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(fake_engine.given_tokens > 20);
    job_rig_assert_results(rig, want);
    assert_false(job_rig_exists(rig, "out.jsonl.inflight"));
    free(want);
}

static void fewer_seats_leave_some_of_them_for_the_run_after_next(void **state)
{
    struct job_rig *rig = *state;
    char *want = undisturbed(rig);
    fake_engine.seats = 12;
    run_until(rig, 4, "");
    fake_engine.seats = 1; /* one waits beside it: ten are not even read */
    run_until(rig, 2, "");
    fake_engine.given_tokens = 0;
    fake_engine.seats = 12;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(fake_engine.given_tokens > 20);
    job_rig_assert_results(rig, want);
    free(want);
}

/* A limited run knows nothing of the records behind its limit, and must not cost them anything. */
static void records_beyond_a_limit_stay_in_the_file(void **state)
{
    struct job_rig *rig = *state;
    char *want = undisturbed(rig);
    fake_engine.seats = 12;
    run_until(rig, 4, "");
    fake_engine.given_tokens = 0;
    for (int again = 0; again < 2; again++) { /* the second one has nothing to do */
        assert_int_equal(job_rig_run(rig, "\"limit\": 5"), 0);
        assert_true(job_rig_exists(rig, "out.jsonl.inflight"));
    }
    uint64_t first = fake_engine.given_tokens;
    run_until(rig, 1, "\"limit\": 7");
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(first > 0 && fake_engine.given_tokens > first + 20);
    job_rig_assert_results(rig, want);
    assert_false(job_rig_exists(rig, "out.jsonl.inflight"));
    free(want);
}

/* Without a limit what no record asks for is of no use. */
static void records_that_are_gone_do_not_stay_in_the_file(void **state)
{
    struct job_rig *rig = *state;
    free(undisturbed(rig));
    fake_engine.seats = 12;
    run_until(rig, 4, "");
    job_rig_records(rig, 5);
    assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"input\"]"), 0);
    assert_false(job_rig_exists(rig, "out.jsonl.inflight"));
}

static void a_damaged_file_costs_work_and_nothing_else(void **state)
{
    struct job_rig *rig = *state;
    char *want = undisturbed(rig);
    run_until(rig, 5, "");
    job_rig_change_byte(rig, "out.jsonl.inflight", 100, 1);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(job_rig_said(rig, "is damaged or was cut off"));
    assert_int_equal(fake_engine.given_tokens, 0);
    job_rig_assert_results(rig, want);
    assert_false(job_rig_exists(rig, "out.jsonl.inflight"));
    free(want);
}

static void other_values_begin_records_again(void **state)
{
    struct job_rig *rig = *state;
    free(undisturbed(rig));
    run_until(rig, 5, "");
    assert_int_equal(job_rig_run(rig, "\"seed\": 9, \"allow_change\": [\"seed\"]"), 0);
    assert_true(job_rig_said(rig, "was written with other values"));
    assert_int_equal(fake_engine.given_tokens, 0);
}

static uint64_t kept_passes;

static void look_for_the_file(uint64_t pass)
{
    kept_passes += job_rig_exists(stopped_rig, "out.jsonl.inflight");
}

static void records_in_flight_are_kept_while_the_job_runs(void **state)
{
    struct job_rig *rig = stopped_rig = *state;
    char *want = undisturbed(rig);
    fake_engine.on_pass = look_for_the_file;
    kept_passes = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(kept_passes, 0);
    fake_engine.pass_s = 0.002; /* longer than between two times */
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true, \"checkpoint_every\": 0.001"), 0);
    assert_true(kept_passes > 10);
    job_rig_assert_results(rig, want);
    assert_false(job_rig_exists(rig, "out.jsonl.inflight"));
    free(want);
}

enum { ENTRIES_MAX = 256 };
static struct {
    uint64_t id_hash[ENTRIES_MAX];
    unsigned count, gone_max, unsafe;
} seen;

/* Each record that the file has had and has no longer has its result on the disk by now. */
static void look_for_what_is_gone(uint64_t pass)
{
    char *bytes;
    size_t count, at = 32; /* as engine/job/inflight.h has it */
    unsigned now = 0;
    uint64_t head[4], damaged;
    struct aq_sums *sums;
    if (aq_read_file(&bytes, &count, job_rig_path(stopped_rig, "out.jsonl.inflight"), 1 << 20,
                     NULL) < 0)
        return;
    for (; at + 16 < count; at += sizeof(head) + head[3]) {
        memcpy(head, bytes + at, sizeof(head));
        now++;
        unsigned i = 0;
        while (i < seen.count && seen.id_hash[i] != head[0])
            i++;
        seen.id_hash[i] = head[0]; /* RIG_RECORDS at most */
        seen.count += i == seen.count;
    }
    free(bytes);
    if (aq_sums_open(&sums, NULL) < 0)
        return;
    (void)aq_sums_read(sums, job_rig_path(stopped_rig, "out.jsonl.sums"), &damaged, NULL);
    seen.unsafe += aq_sums_missing(sums) < seen.count - now; /* all that are in the file */
    aq_sums_close(sums);
    seen.gone_max = seen.count - now;
}

static void a_record_leaves_the_file_when_its_result_is_safe(void **state)
{
    struct job_rig *rig = stopped_rig = *state;
    char *want = undisturbed(rig);
    memset(&seen, 0, sizeof(seen));
    fake_engine.on_pass = look_for_what_is_gone;
    fake_engine.pass_s = 0.002; /* longer than between two times */
    assert_int_equal(job_rig_run(rig, "\"checkpoint_every\": 0.001"), 0);
    assert_true(seen.gone_max > 20);
    assert_int_equal(seen.unsafe, 0);
    job_rig_assert_results(rig, want);
    free(want);
}

static void that_the_file_cannot_be_written_is_a_warning(void **state)
{
    struct job_rig *rig = *state;
    char *want = undisturbed(rig);
    assert_int_equal(mkdir(job_rig_path(rig, "out.jsonl.inflight"), 0700), 0);
    fake_engine.pass_s = 0.002;
    assert_int_equal(job_rig_run(rig, "\"checkpoint_every\": 0.001"), 0);
    assert_true(job_rig_said(rig, "records in flight are not kept"));
    job_rig_assert_results(rig, want);
    rmdir(job_rig_path(rig, "out.jsonl.inflight"));
    free(want);
}

static void overwrite_sets_the_file_aside(void **state)
{
    struct job_rig *rig = *state;
    free(undisturbed(rig));
    run_until(rig, 5, "");
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true"), 0);
    assert_int_equal(fake_engine.given_tokens, 0);
    assert_true(job_rig_exists(rig, "out.jsonl.inflight.old.1"));
    assert_false(job_rig_exists(rig, "out.jsonl.inflight"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, job_rig_setup, job_rig_teardown)
static const struct CMUnitTest tests[] = {
    TEST(states_come_back_by_id_and_key),
    TEST(entries_that_are_still_wanted_are_carried_over),
    TEST(a_file_that_is_not_as_written_is_not_used),
    TEST(a_stopped_job_goes_on_in_the_middle_of_its_records),
    TEST(fewer_seats_leave_some_of_them_for_the_run_after_next),
    TEST(records_beyond_a_limit_stay_in_the_file),
    TEST(records_that_are_gone_do_not_stay_in_the_file),
    TEST(a_damaged_file_costs_work_and_nothing_else),
    TEST(other_values_begin_records_again),
    TEST(records_in_flight_are_kept_while_the_job_runs),
    TEST(a_record_leaves_the_file_when_its_result_is_safe),
    TEST(that_the_file_cannot_be_written_is_a_warning),
    TEST(overwrite_sets_the_file_aside),
};

AQ_TEST_MAIN(tests)
