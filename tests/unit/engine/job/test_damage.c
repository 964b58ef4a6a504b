/* SPDX-License-Identifier: Apache-2.0
 * Results and sums that rot on the disk, and results that somebody edits: what changed is found,
 * kept aside and run again, and what did not change stays. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/prng.h"
#include "tests/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORDS = RIG_RECORDS };

/* ---- files that rot, and files that are edited ---- */

/* Bits flipped and bytes zeroed anywhere: what it hits is run again, the rest is not, and the line
 * as it was found is kept. */
static void a_changed_byte_of_the_results_is_found(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    for (uint32_t round = 0; round < 100; round++) {
        off_t size = job_rig_size(rig, "out.jsonl");
        off_t at = (off_t)aq_prng_below(17, round, 0, (uint64_t)size);
        char change = round % 3 ? (char)(1 << aq_prng_below(17, round, 1, 8)) : 0;
        job_rig_change_byte(rig, "out.jsonl", at, change);
        unlink(job_rig_path(rig, "out.jsonl.damaged"));
        fake_engine.submitted = 0;
        assert_int_equal(job_rig_run(rig, ""), 0);
        job_rig_assert_results(rig, want);
        if (at == size - 1 && !fake_engine.submitted) /* the last newline: nothing is lost */
            continue;
        assert_true(job_rig_said(rig, "not as they were written") || job_rig_said(rig, "torn"));
        assert_true(fake_engine.submitted == 1 || fake_engine.submitted == 2);
        assert_true(job_rig_size(rig, "out.jsonl.damaged") > 0);
    }
    free(want);
}

static void a_changed_byte_of_the_sums_is_found_and_costs_nothing(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    fake_engine.submitted = 0;
    for (uint32_t round = 0; round < 40; round++) {
        off_t at =
            (off_t)aq_prng_below(23, round, 0, (uint64_t)job_rig_size(rig, "out.jsonl.sums"));
        char change = round % 3 ? (char)(1 << aq_prng_below(23, round, 1, 8)) : 0;
        job_rig_change_byte(rig, "out.jsonl.sums", at, change);
        assert_int_equal(job_rig_run(rig, ""), 0);
        assert_true(job_rig_said(rig, "torn or damaged"));
        job_rig_assert_results(rig, want);
        assert_int_equal(job_rig_run(rig, ""), 0); /* made anew */
        assert_false(job_rig_said(rig, "torn or damaged"));
    }
    assert_int_equal(fake_engine.submitted, 0);
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    free(want);
}

static void results_may_be_sorted_and_taken_out(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig), *sorted = strdup(want);
    sorted[strlen(sorted) - 1] = '\0';
    strrchr(sorted, '\n')[1] = '\0'; /* without the last line */
    job_rig_write(rig, "out.jsonl", sorted);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 1);
    assert_true(job_rig_said(rig, "1 lines that were written to"));
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    job_rig_assert_results(rig, want);
    free(sorted);
    free(want);
}

static void an_edited_line_is_set_aside_and_said(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig), *text = job_rig_read(rig, "out.jsonl");
    char *edit = strstr(strchr(text, '\n'), "\"finish_reason\"");
    memcpy(edit, "\"finish_reasoN\"", 15);
    job_rig_write(rig, "out.jsonl", text);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, "\"dry_run\": true"), 0);
    assert_true(job_rig_said(rig, "out.jsonl' line 2 (bytes"));
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(job_rig_said(rig, "to keep edits"));
    assert_int_equal(fake_engine.submitted, 1);
    job_rig_assert_results(rig, want);
    char *damaged = job_rig_read(rig, "out.jsonl.damaged");
    assert_non_null(strstr(damaged, "finish_reasoN"));
    job_rig_write(rig, "out.jsonl", text); /* wanted so: without its sums it stays */
    unlink(job_rig_path(rig, "out.jsonl.sums"));
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(job_rig_said(rig, "by their form alone"));
    char *after = job_rig_read(rig, "out.jsonl");
    assert_string_equal(after, text);
    free(after);
    free(damaged);
    free(text);
    free(want);
}

/* What an earlier version left has neither sums nor a checksum in its manifest. */
static void an_output_of_before_there_were_sums_gets_them(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    job_rig_old_manifest(rig, job_rig_manifest(rig));
    unlink(job_rig_path(rig, "out.jsonl.sums"));
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 0);
    assert_false(job_rig_said(rig, "sums"));
    job_rig_change_byte(rig, "out.jsonl", job_rig_size(rig, "out.jsonl") / 2, 1);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(fake_engine.submitted > 0);
    job_rig_assert_results(rig, want);
    free(want);
}

/* Killed before the last lines were synced: they have no sums yet and are good all the same. */
static void lines_that_are_ahead_of_their_sums_are_good(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig), *sums = job_rig_read(rig, "out.jsonl.sums");
    sums[strcspn(sums, "\n") + 1] = '\0';
    job_rig_write(rig, "out.jsonl.sums", sums);
    job_rig_append(rig, "out.jsonl", "{\"torn", 6);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 0);
    job_rig_assert_results(rig, want);
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    free(sums);
    free(want);
}

static struct job_rig *rotting;

static void rot_in_pass_5(uint64_t pass)
{
    if (pass == 5)
        job_rig_change_byte(rotting, "out.jsonl.part", 5, 4);
}

static void a_part_that_rots_is_not_put_in_order(void **state)
{
    struct job_rig *rig = rotting = *state;
    job_rig_records(rig, RECORDS);
    fake_engine.on_pass = rot_in_pass_5;
    fake_engine.pass_s = 0.05; /* so that there are lines in pass 5 */
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), -EIO);
    assert_non_null(strstr(rig->err.text, "the same command"));
    assert_false(job_rig_exists(rig, "out.jsonl"));
    fake_engine.on_pass = NULL;
    fake_engine.pass_s = 0;
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    assert_int_equal(fake_engine.submitted, 1);
    char *got = job_rig_read(rig, "out.jsonl");
    assert_int_equal(job_rig_run(rig, "\"ordered\": true, \"overwrite\": true"), 0);
    char *want = job_rig_read(rig, "out.jsonl");
    assert_string_equal(got, want);
    free(want);
    free(got);
}

/* Damage and errors that are tried again, in one rewriting. */
static void damage_is_found_where_errors_are_retried(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 10);
    fake_engine.bad_token = 13;
    assert_int_equal(job_rig_run(rig, ""), 3);
    fake_engine.bad_token = UINT64_MAX;
    job_rig_change_byte(rig, "out.jsonl", 30, 2);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, "\"retry_errors\": true"), 0);
    assert_int_equal(fake_engine.submitted, 2);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 10);
    json_decref(results);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 2);
    assert_false(job_rig_said(rig, "no longer there"));
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    T(a_changed_byte_of_the_results_is_found),
    T(a_changed_byte_of_the_sums_is_found_and_costs_nothing),
    T(results_may_be_sorted_and_taken_out),
    T(an_edited_line_is_set_aside_and_said),
    T(an_output_of_before_there_were_sums_gets_them),
    T(lines_that_are_ahead_of_their_sums_are_good),
    T(a_part_that_rots_is_not_put_in_order),
    T(damage_is_found_where_errors_are_retried),
};

AQ_TEST_MAIN(tests)
