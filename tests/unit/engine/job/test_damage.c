/* SPDX-License-Identifier: Apache-2.0
 * Results and sums that rot on the disk, and results that somebody edits: what changed is found,
 * kept aside and run again, and what did not change stays. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/prng.h"
#include "engine/job/sums.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORDS = RIG_RECORDS, MANY = 200 };

/* In place of the C library's: so often the results, written anew, find a full disk at the end. */
static unsigned full_renames;

int rename(const char *from, const char *to)
{
    if (full_renames && strstr(from, "out.jsonl.tmp")) {
        full_renames--;
        errno = ENOSPC;
        return -1;
    }
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

/* Of a line of the results (from 0): where it begins. */
static size_t begin_of(const char *text, unsigned line)
{
    const char *at = text;
    for (; line; line--)
        at = strchr(at, '\n') + 1;
    return (size_t)(at - text);
}

/* FILE.sums with the sums of the first lines alone. */
static void write_sums(struct job_rig *rig, const char *text, unsigned count)
{
    struct aq_sums *s;
    assert_int_equal(aq_sums_open(&s, NULL), 0);
    for (unsigned i = 0; i < count; i++) {
        size_t begin = begin_of(text, i), bytes = begin_of(text, i + 1) - begin;
        assert_int_equal(aq_sums_add(s, aq_sums_of(text + begin, bytes), NULL), 0);
    }
    assert_int_equal(aq_sums_write(s, job_rig_path(rig, "out.jsonl.sums"), false, NULL), 0);
    aq_sums_close(s);
}

static void write_bytes(struct job_rig *rig, const char *name, const char *text, size_t bytes)
{
    job_rig_cut(rig, name, 0);
    job_rig_append(rig, name, text, bytes);
}

/* Runs again: the results are these, and so many records were run for them. */
static void assert_mended(struct job_rig *rig, const char *want, uint64_t records)
{
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, records);
    job_rig_assert_results(rig, want);
}

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
        assert_true(job_rig_said(rig, "not as it was written") ||
                    job_rig_said(rig, "not as they were written") || job_rig_said(rig, "torn"));
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
    assert_true(job_rig_said(rig, "1 line that was written to"));
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

/* A power cut may lose a page of the last second and keep later ones: what is there of those lines
 * is set aside, though no sum accuses them. */
static void a_page_that_was_lost_behind_the_last_sum_is_set_aside(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig), *text = job_rig_read(rig, "out.jsonl");
    size_t bytes = strlen(text), begin = begin_of(text, 30), end = begin_of(text, 32);
    write_sums(rig, text, 20);
    memset(text + begin + 9, 0, begin_of(text, 31) - begin); /* with a newline, then: one line */
    write_bytes(rig, "out.jsonl", text, bytes);
    assert_int_equal(job_rig_run(rig, "\"dry_run\": true"), 0);
    assert_true(job_rig_said(rig, "out.jsonl' line 31 (bytes"));
    assert_mended(rig, want, 2);
    assert_true(job_rig_said(rig, "1 line is not as it was written"));
    assert_false(job_rig_said(rig, "no longer there"));
    assert_int_equal(job_rig_size(rig, "out.jsonl.damaged"), (off_t)(end - begin));
    free(text);
    free(want);
}

/* The end beside it is torn, and may have been more than that. */
static void a_torn_end_is_kept_beside_a_lost_page(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig), *text = job_rig_read(rig, "out.jsonl");
    size_t bytes = strlen(text);
    write_sums(rig, text, 20);
    text[begin_of(text, 30) + 9] = '\0';
    write_bytes(rig, "out.jsonl", text, bytes - 5);
    assert_mended(rig, want, 2);
    assert_true(job_rig_said(rig, "which are in"));
    free(text);
    free(want);
}

static void a_damaged_last_line_with_its_newline_is_not_torn(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    job_rig_change_byte(rig, "out.jsonl", job_rig_size(rig, "out.jsonl") - 9, 0);
    assert_mended(rig, want, 1);
    assert_true(job_rig_said(rig, "1 line is not as it was written"));
    assert_true(job_rig_said(rig, "1 line moved to"));
    assert_false(job_rig_said(rig, "torn"));
    assert_false(job_rig_said(rig, "no longer there"));
    free(want);
}

/* ---- results and sums that rot together ---- */

/* Many results with all sums, of which one line loses `bytes` at its beginning: one that the sum of
 * result line `but_not` is not in.  Returns the results' text. */
static char *damage_sums(struct job_rig *rig, unsigned but_not, size_t bytes)
{
    char *text = job_rig_read(rig, "out.jsonl"), digits[17];
    write_sums(rig, text, MANY);
    char *sums = job_rig_read(rig, "out.jsonl.sums"), *first = strchr(sums, '\n') + 1;
    size_t begin = begin_of(text, but_not), count = begin_of(text, but_not + 1) - begin;
    snprintf(digits, sizeof(digits), "%016llx",
             (unsigned long long)aq_sums_of(text + begin, count));
    char *found = strstr(first, digits), *second = strchr(first, '\n') + 1;
    assert_non_null(found);
    off_t at = (found < second ? second : first) - sums;
    for (size_t i = 0; i < bytes; i++)
        job_rig_change_byte(rig, "out.jsonl.sums", at + (off_t)i, 0);
    free(sums);
    return text;
}

/* A damaged line of sums still vouches for the results whose sums can be read in it: of the others
 * nobody knows which one was changed. */
static void a_changed_result_costs_those_whose_sums_cannot_be_read(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, MANY);
    assert_int_equal(job_rig_run(rig, ""), 0);
    char *want = job_rig_sorted(rig, "out.jsonl"), *text = damage_sums(rig, 100, 1);
    memcpy(strstr(text + begin_of(text, 100), "\"finish_reason\""), "\"finish_reasoN\"", 15);
    job_rig_write(rig, "out.jsonl", text);
    assert_mended(rig, want, 2);
    assert_true(job_rig_said(rig, "2 lines cannot be vouched for"));
    assert_false(job_rig_said(rig, "as they were written"));
    free(text);
    free(want);
}

/* A line that cannot be read is the one that was changed. */
static void a_broken_result_costs_no_other(void **state)
{
    static const size_t bytes[] = {1, 64 * 17}; /* a digit, all sums of the line */
    struct job_rig *rig = *state;
    job_rig_records(rig, MANY);
    assert_int_equal(job_rig_run(rig, ""), 0);
    char *want = job_rig_sorted(rig, "out.jsonl");
    for (size_t i = 0; i < AQ_ARRAY_LEN(bytes); i++) {
        char *text = damage_sums(rig, 100, bytes[i]);
        job_rig_change_byte(rig, "out.jsonl", (off_t)begin_of(text, 100) + 9, 0);
        assert_mended(rig, want, 1);
        assert_true(job_rig_said(rig, "1 line is not as it was written"));
        assert_true(job_rig_said(rig, "cannot be vouched for, and are known by their form"));
        free(text);
    }
    free(want);
}

/* ---- what else is there ---- */

static void mending_keeps_permissions(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    assert_int_equal(chmod(job_rig_path(rig, "out.jsonl"), 0602), 0);
    job_rig_change_byte(rig, "out.jsonl", 9, 0);
    assert_mended(rig, want, 1);
    assert_int_equal(job_rig_mode(rig, "out.jsonl"), 0602);
    assert_int_equal(job_rig_mode(rig, "out.jsonl.damaged"), 0602);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    assert_int_equal(job_rig_mode(rig, "out.jsonl"), 0602);
    free(want);
}

static void a_damaged_file_gives_way_to_its_whole_part(void **state)
{
    static const char *const options[] = {"\"ordered\": true", ""};
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, options[0]), 0);
    char *text = job_rig_read(rig, "out.jsonl"), *aside;
    for (size_t i = 0; i < AQ_ARRAY_LEN(options); i++) {
        job_rig_write(rig, "out.jsonl.part", text); /* cut off between rename and removal */
        job_rig_change_byte(rig, "out.jsonl", (off_t)begin_of(text, 5) + 9, 0);
        fake_engine.submitted = 0;
        assert_int_equal(job_rig_run(rig, options[i]), 0);
        assert_int_equal(fake_engine.submitted, 0);
        assert_false(job_rig_exists(rig, "out.jsonl.part"));
        char *after = job_rig_read(rig, "out.jsonl");
        assert_string_equal(after, text);
        free(after);
    }
    aside = job_rig_read(rig, "out.jsonl.old.2"); /* nothing is thrown away */
    assert_non_null(aside);
    assert_int_equal(strlen(aside), begin_of(text, 5) + 9); /* as far as the byte that is 0 */
    free(aside);
    free(text);
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

static size_t count_lines(struct job_rig *rig, const char *name)
{
    size_t lines = 0;
    char *text = job_rig_read(rig, name);
    for (const char *c = text; c && *c; c++)
        lines += *c == '\n';
    free(text);
    return lines;
}

/* However often the disk is full when the results without them are written. */
static void lines_are_set_aside_once(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    job_rig_records(rig, RECORDS - 2);
    for (unsigned wait = 1; wait <= 2; wait++) {
        job_rig_change_byte(rig, "out.jsonl", 9, 1);
        full_renames = 2;
        assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"input\"]"), 0);
        assert_true(job_rig_said(rig, "waiting up to"));
        assert_int_equal(full_renames, 0);
        assert_int_equal(count_lines(rig, "out.jsonl.stale"), 2);
        assert_int_equal(count_lines(rig, "out.jsonl.damaged"), wait);
        assert_int_equal(count_lines(rig, "out.jsonl"), RECORDS - 2);
    }
    /* Where nobody waits they stay where they are. */
    job_rig_change_byte(rig, "out.jsonl", 9, 1);
    unlink(job_rig_path(rig, "out.jsonl.damaged"));
    full_renames = 1;
    assert_int_equal(job_rig_run(rig, "\"disk_full_wait\": 0"), -ENOSPC);
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    assert_int_equal(count_lines(rig, "out.jsonl"), RECORDS - 2);
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    T(a_changed_byte_of_the_results_is_found),
    T(a_changed_byte_of_the_sums_is_found_and_costs_nothing),
    T(results_may_be_sorted_and_taken_out),
    T(an_edited_line_is_set_aside_and_said),
    T(an_output_of_before_there_were_sums_gets_them),
    T(lines_that_are_ahead_of_their_sums_are_good),
    T(a_page_that_was_lost_behind_the_last_sum_is_set_aside),
    T(a_torn_end_is_kept_beside_a_lost_page),
    T(a_damaged_last_line_with_its_newline_is_not_torn),
    T(a_changed_result_costs_those_whose_sums_cannot_be_read),
    T(a_broken_result_costs_no_other),
    T(mending_keeps_permissions),
    T(a_damaged_file_gives_way_to_its_whole_part),
    T(a_part_that_rots_is_not_put_in_order),
    T(damage_is_found_where_errors_are_retried),
    T(lines_are_set_aside_once),
};

AQ_TEST_MAIN(tests)
