/* SPDX-License-Identifier: Apache-2.0
 * A job started again: whatever the first run left, the second makes the same results of it. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/prng.h"
#include "engine/records/request.h"
#include "tests/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORDS = RIG_RECORDS };

/* ---- cut off anywhere ---- */

static void cut_off_anywhere_it_ends_with_the_same_results(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    off_t size = job_rig_size(rig, "out.jsonl");
    for (uint32_t round = 0; round < 40; round++) {
        off_t at = (off_t)aq_prng_below(11, round, 0, (uint64_t)size + 1);
        job_rig_cut(rig, "out.jsonl", at);
        assert_int_equal(job_rig_run(rig, ""), 0);
        job_rig_assert_results(rig, want);
    }
    free(want);
}

static void only_what_is_missing_is_run_again(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig), *text = job_rig_read(rig, "out.jsonl"), *line = text;
    for (int i = 0; i < 25; i++)
        line = strchr(line, '\n') + 1;
    job_rig_cut(rig, "out.jsonl", line - text);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, RECORDS - 25);
    job_rig_assert_results(rig, want);
    free(text);
    free(want);
}

static void a_whole_last_line_without_newline_is_kept(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    job_rig_cut(rig, "out.jsonl", job_rig_size(rig, "out.jsonl") - 1);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 0);
    job_rig_assert_results(rig, want);
    free(want);
}

static void a_tail_of_zero_bytes_is_cut_off(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    job_rig_cut(rig, "out.jsonl", job_rig_size(rig, "out.jsonl") * 2 / 3);
    job_rig_append(rig, "out.jsonl", (char[4096]){0}, 4096); /* what a power cut may leave */
    assert_int_equal(job_rig_run(rig, ""), 0);
    job_rig_assert_results(rig, want);
    free(want);
}

static void a_line_torn_inside_a_character_is_cut_off(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    job_rig_append(rig, "out.jsonl", "{\"id\":\"r0\",\"text\":\"\xe2\x82", 22);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_non_null(strstr(rig->lines.data, "torn"));
    job_rig_assert_results(rig, want);
    job_rig_append(rig, "out.jsonl", "\xf0", 1);
    assert_int_equal(job_rig_run(rig, ""), 0);
    job_rig_assert_results(rig, want);
    free(want);
}

static void an_emptied_file_is_filled_again(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    job_rig_cut(rig, "out.jsonl", 0);
    assert_int_equal(job_rig_run(rig, ""), 0);
    job_rig_assert_results(rig, want);
    free(want);
}

static void nothing_to_do_loads_nothing(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    fake_engine.loads = 0;
    unlink(job_rig_path(rig, "out.jsonl.status.json"));
    assert_int_equal(job_rig_run(rig, "\"json\": true"), 0);
    assert_int_equal(fake_engine.loads, 0);
    assert_non_null(strstr(rig->lines.data, "nothing to do"));
    char *status = job_rig_read(rig, "out.jsonl.status.json");
    assert_non_null(status);
    assert_non_null(strstr(status, "\"state\": \"done\""));
    free(status);
    json_t *report = json_loads(rig->output.data, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(report, "resumed")), RECORDS);
    json_decref(report);
    job_rig_assert_results(rig, want);
    free(want);
}

/* What the finished run said of its speed is what somebody will want to read. */
static void nothing_to_do_leaves_the_numbers_of_the_run(void **state)
{
    struct job_rig *rig = *state;
    char options[400];
    job_rig_records(rig, RECORDS);
    snprintf(options, sizeof(options), "\"report\": \"%s\"", job_rig_path(rig, "report.json"));
    assert_int_equal(job_rig_run(rig, options), 0);
    char *status = job_rig_read(rig, "out.jsonl.status.json");
    char *report = job_rig_read(rig, "report.json");
    assert_int_equal(job_rig_run(rig, options), 0);
    assert_non_null(strstr(rig->lines.data, "nothing to do"));
    char *status_now = job_rig_read(rig, "out.jsonl.status.json");
    char *report_now = job_rig_read(rig, "report.json");
    assert_string_equal(status_now, status);
    assert_string_equal(report_now, report);
    free(status_now);
    free(report_now);
    free(report);
    char *other = job_rig_read(rig, "report.json"); /* of a job of as many records */
    static const char tokens[] = "\"prompt_tokens\": ";
    *(strstr(strstr(other, "\"preflight\""), tokens) + sizeof(tokens) - 1) = '9';
    job_rig_write(rig, "report.json", other);
    assert_int_equal(job_rig_run(rig, options), 0);
    report_now = job_rig_read(rig, "report.json");
    assert_string_not_equal(report_now, other);
    free(report_now);
    free(other);
    /* a run that was killed behind its last record could not say that it was done */
    char *state_at = strstr(status, "\"done\"");
    memcpy(state_at, "\"runs\"", 6);
    job_rig_write(rig, "out.jsonl.status.json", status);
    assert_int_equal(job_rig_run(rig, options), 0);
    status_now = job_rig_read(rig, "out.jsonl.status.json");
    assert_non_null(strstr(status_now, "\"state\": \"done\""));
    free(status_now);
    free(status);
}

static void all_forms_are_recognised(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(
        rig, "in.jsonl",
        "{\"prompt\": [5]}\n{\"request_type\": \"x\", \"prompt\": [6]}\n"
        "{\"request_type\": \"x\", \"prompt\": [6]}\n{broken\n"
        "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/completions\", "
        "\"body\": {\"prompt\": [7]}}\n"
        "{\"custom_id\": \"d\", \"method\": \"GET\"}\n{\"id\": \"e\\u0000f\", \"prompt\": "
        "[8]}\n{\"id\": 18446744073709551615, \"prompt\": [9], \"metadata\": 1e400}\n"
        "{\"url\": \"/v1/completions\", \"body\": {\"prompt\": [7]}}\n"
        "{\"url\": \"/v1/completions\", \"body\": {\"prompt\": [7]}}\n"
        "{\"custom_id\": \"8\", \"method\": \"POST\", \"url\": \"/v1/completions\", "
        "\"body\": {\"prompt\": [7]}}\n");
    assert_int_equal(job_rig_run(rig, ""), 3);
    char *text = job_rig_read(rig, "out.jsonl");
    fake_engine.loads = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.loads, 0);
    char *again = job_rig_read(rig, "out.jsonl");
    assert_string_equal(again, text);
    free(again);
    free(text);
}

static void the_deepest_request_comes_back_readable(void **state)
{
    struct job_rig *rig = *state;
    struct aq_buf b = {0};
    aq_buf_puts(&b, "{\"request_type\": \"x\", \"prompt\": [5], \"deep\": ");
    for (int i = 1; i < AQ_LINE_DEPTH_MAX; i++)
        aq_buf_puts(&b, "[");
    for (int i = 1; i < AQ_LINE_DEPTH_MAX; i++)
        aq_buf_puts(&b, "]");
    aq_buf_puts(&b, "}\n{\"prompt\": [6]}\n");
    job_rig_write(rig, "in.jsonl", b.data);
    aq_buf_close(&b);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    fake_engine.loads = 0;
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    assert_int_equal(fake_engine.loads, 0);
}

static void what_does_not_fit_touches_nothing(void **state)
{
    static const char *const options[] = {"\"overwrite\": true", "\"retry_errors\": true",
                                          "\"ordered\": true", ""};
    struct job_rig *rig = *state;
    job_rig_records(rig, 10);
    fake_engine.bad_token = 13;
    assert_int_equal(job_rig_run(rig, ""), 3);
    job_rig_append(rig, "out.jsonl", "{\"torn", 6);
    char *input = job_rig_read(rig, "in.jsonl"), *more = NULL;
    assert_true(asprintf(&more, "%s{\"id\": \"more\", \"prompt\": [5]}\n", input) > 0);
    job_rig_write(rig, "in.jsonl", more);
    char *before = job_rig_read(rig, "out.jsonl");
    fake_engine.refuse_plan = true;
    for (size_t i = 0; i < AQ_ARRAY_LEN(options); i++) {
        char text[128];
        snprintf(text, sizeof(text), "\"allow_change\": [\"input\"]%s%s", *options[i] ? ", " : "",
                 options[i]);
        assert_int_equal(job_rig_run(rig, text), -ENOBUFS);
        char *after = job_rig_read(rig, "out.jsonl");
        assert_string_equal(after, before);
        free(after);
        assert_false(job_rig_exists(rig, "out.jsonl.old.1"));
        assert_false(job_rig_exists(rig, "out.jsonl.part"));
    }
    free(before);
    free(more);
    free(input);
}

static void a_dry_run_repairs_nothing(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    job_rig_cut(rig, "out.jsonl", job_rig_size(rig, "out.jsonl") - 10);
    off_t size = job_rig_size(rig, "out.jsonl");
    assert_int_equal(job_rig_run(rig, "\"dry_run\": true"), 0);
    assert_non_null(strstr(rig->lines.data, "holds 59 of 60 records"));
    assert_int_equal(job_rig_size(rig, "out.jsonl"), size);
}

/* ---- in order ---- */

static void an_ordered_run_goes_on_from_its_part(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    char *want = job_rig_read(rig, "out.jsonl");
    for (uint32_t round = 0; round < 10; round++) {
        assert_int_equal(
            rename(job_rig_path(rig, "out.jsonl"), job_rig_path(rig, "out.jsonl.part")), 0);
        job_rig_cut(
            rig, "out.jsonl.part",
            (off_t)aq_prng_below(5, round, 0, (uint64_t)job_rig_size(rig, "out.jsonl.part")));
        assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
        char *got = job_rig_read(rig, "out.jsonl");
        assert_string_equal(got, want);
        assert_false(job_rig_exists(rig, "out.jsonl.part"));
        free(got);
    }
    free(want);
}

static void lines_of_all_lengths_are_put_in_order(void **state)
{
    static const unsigned lengths[] = {300, 9000, 20000, 40000};
    struct job_rig *rig = *state;
    struct aq_buf input = {0};
    for (size_t i = 0; i < AQ_ARRAY_LEN(lengths); i++) /* results carry the metadata */
        aq_buf_printf(&input, "{\"prompt\": [5], \"metadata\": {\"x\": \"%0*d\"}}\n",
                      (int)lengths[i], 0);
    job_rig_write(rig, "in.jsonl", input.data);
    aq_buf_close(&input);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    json_t *results = job_rig_results(rig, "out.jsonl"), *o;
    size_t i;
    assert_int_equal(json_array_size(results), AQ_ARRAY_LEN(lengths));
    json_array_foreach(results, i, o)
    {
        json_t *metadata = json_object_get(o, "metadata");
        assert_int_equal(json_integer_value(json_object_get(o, "index")), i);
        assert_int_equal(json_string_length(json_object_get(metadata, "x")), lengths[i]);
    }
    json_decref(results);
}

static void an_empty_part_does_not_replace_the_whole_file(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    char *text = job_rig_read(rig, "out.jsonl");
    job_rig_write(rig, "out.jsonl.part", "");
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    assert_false(job_rig_exists(rig, "out.jsonl.part"));
    char *after = job_rig_read(rig, "out.jsonl");
    assert_string_equal(after, text);
    free(after);
    free(text);
}

static void a_part_left_beside_the_whole_file_is_removed(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    char *text = job_rig_read(rig, "out.jsonl");
    job_rig_write(rig, "out.jsonl.part", text); /* cut off between rename and removal */
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    assert_false(job_rig_exists(rig, "out.jsonl.part"));
    char *after = job_rig_read(rig, "out.jsonl");
    assert_string_equal(after, text);
    free(after);
    free(text);
}

static void a_run_may_change_between_ordered_and_not(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    job_rig_cut(rig, "out.jsonl", job_rig_size(rig, "out.jsonl") / 2);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), RECORDS);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(results, 17), "index")), 17);
    json_decref(results);
    assert_int_equal(rename(job_rig_path(rig, "out.jsonl"), job_rig_path(rig, "out.jsonl.part")),
                     0);
    job_rig_cut(rig, "out.jsonl.part", job_rig_size(rig, "out.jsonl.part") / 2);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_false(job_rig_exists(rig, "out.jsonl.part"));
    job_rig_assert_results(rig, want);
    free(want);
}

static void a_whole_file_is_put_in_order_on_request(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig), *text = job_rig_read(rig, "out.jsonl");
    fake_engine.loads = 0;
    job_rig_append(rig, "out.jsonl", text,
                   strcspn(text, "\n") + 1); /* a line that is there twice */
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    assert_int_equal(fake_engine.loads, 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), RECORDS + 1); /* nothing is thrown away */
    for (size_t i = 0; i < RECORDS; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(results, i), "index")),
                         i);
    json_decref(results);
    assert_false(job_rig_exists(rig, "out.jsonl.part"));
    struct stat before, after;
    assert_int_equal(stat(job_rig_path(rig, "out.jsonl"), &before), 0);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0); /* is in order: left alone */
    assert_int_equal(stat(job_rig_path(rig, "out.jsonl"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    free(text);
    free(want);
}

/* ---- errors ---- */

static void error_records_count_as_done_until_they_are_retried(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 10);
    fake_engine.bad_token = 13; /* the prompt of r3 begins with it */
    assert_int_equal(job_rig_run(rig, ""), 3);
    fake_engine.bad_token = UINT64_MAX;
    fake_engine.loads = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.loads, 0);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, "\"retry_errors\": true"), 0);
    assert_int_equal(fake_engine.submitted, 1);
    json_t *results = job_rig_results(rig, "out.jsonl"), *o;
    size_t i;
    assert_int_equal(json_array_size(results), 10);
    json_array_foreach(results, i, o) assert_null(json_object_get(o, "error"));
    json_decref(results);
}

/* Cut off between sorting FILE.part into FILE and removing it, and errors are in both. */
static void errors_are_retried_where_a_part_was_left(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 10);
    fake_engine.bad_token = 13;
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 3);
    char *text = job_rig_read(rig, "out.jsonl");
    job_rig_write(rig, "out.jsonl.part", text);
    free(text);
    fake_engine.bad_token = UINT64_MAX;
    assert_int_equal(job_rig_run(rig, "\"ordered\": true, \"retry_errors\": true"), 0);
    json_t *results = job_rig_results(rig, "out.jsonl"), *o;
    size_t i;
    assert_int_equal(json_array_size(results), 10);
    json_array_foreach(results, i, o)
    {
        assert_null(json_object_get(o, "error"));
        assert_int_equal(json_integer_value(json_object_get(o, "index")), i);
    }
    json_decref(results);
}

/* Cut off while the file without them is written beside it. */
static void retrying_errors_can_be_cut_off(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 10);
    fake_engine.bad_token = 13;
    assert_int_equal(job_rig_run(rig, ""), 3);
    fake_engine.bad_token = UINT64_MAX;
    job_rig_write(rig, "out.jsonl.tmp", "{\"id\":\"r");
    assert_int_equal(job_rig_run(rig, "\"retry_errors\": true"), 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 10);
    json_decref(results);
    assert_false(job_rig_exists(rig, "out.jsonl.tmp"));
}

static size_t count_lines(struct job_rig *rig, const char *name)
{
    json_t *results = job_rig_results(rig, name);
    size_t count = json_array_size(results);
    json_decref(results);
    return count;
}

/* Nothing would come in their place. */
static void errors_that_are_not_tried_again_are_kept(void **state)
{
    struct job_rig *rig = *state;
    char errors[256];
    snprintf(errors, sizeof(errors), "\"errors\": \"%s\"", job_rig_path(rig, "bad.jsonl"));
    for (int separate = 0; separate < 2; separate++) {
        const char *options = separate ? errors : "", *file = separate ? "bad.jsonl" : "out.jsonl";
        char more[512];
        job_rig_records(rig, 10);
        fake_engine.bad_token = 18; /* the prompt of r8 begins with it */
        snprintf(more, sizeof(more), "%s%s\"overwrite\": true", options, *options ? ", " : "");
        assert_int_equal(job_rig_run(rig, more), 3);
        size_t before = count_lines(rig, file);
        /* Beyond a limit. */
        snprintf(more, sizeof(more), "%s%s\"retry_errors\": true, \"limit\": 5", options,
                 *options ? ", " : "");
        assert_true(job_rig_run(rig, more) >= 0);
        assert_false(job_rig_said(rig, "tried again"));
        assert_int_equal(count_lines(rig, file), before);
        /* No longer in the input. */
        fake_engine.bad_token = UINT64_MAX;
        job_rig_records(rig, 8);
        snprintf(more, sizeof(more), "%s%s\"retry_errors\": true, \"allow_change\": [\"input\"]",
                 options, *options ? ", " : "");
        assert_int_equal(job_rig_run(rig, more), 0);
        assert_int_equal(count_lines(rig, "out.jsonl"), 8);
        char *stale = job_rig_read(rig, "out.jsonl.stale");
        assert_non_null(stale);
        assert_non_null(strstr(stale, "\"id\":\"r8\""));
        assert_non_null(strstr(stale, "\"error\""));
        free(stale);
    }
}

static void a_resumed_run_still_tells_of_earlier_errors(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl", "{\"prompt\": [5]}\n{\"prompt\": \"\"}\n{\"prompt\": [6]}\n");
    assert_int_equal(job_rig_run(rig, "\"limit\": 2"), 3);
    assert_int_equal(job_rig_run(rig, ""), 3);
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    T(cut_off_anywhere_it_ends_with_the_same_results),
    T(only_what_is_missing_is_run_again),
    T(a_whole_last_line_without_newline_is_kept),
    T(a_tail_of_zero_bytes_is_cut_off),
    T(a_line_torn_inside_a_character_is_cut_off),
    T(an_emptied_file_is_filled_again),
    T(nothing_to_do_loads_nothing),
    T(nothing_to_do_leaves_the_numbers_of_the_run),
    T(all_forms_are_recognised),
    T(the_deepest_request_comes_back_readable),
    T(what_does_not_fit_touches_nothing),
    T(a_dry_run_repairs_nothing),
    T(an_ordered_run_goes_on_from_its_part),
    T(lines_of_all_lengths_are_put_in_order),
    T(an_empty_part_does_not_replace_the_whole_file),
    T(a_part_left_beside_the_whole_file_is_removed),
    T(a_run_may_change_between_ordered_and_not),
    T(a_whole_file_is_put_in_order_on_request),
    T(error_records_count_as_done_until_they_are_retried),
    T(errors_are_retried_where_a_part_was_left),
    T(retrying_errors_can_be_cut_off),
    T(errors_that_are_not_tried_again_are_kept),
    T(a_resumed_run_still_tells_of_earlier_errors),
};

AQ_TEST_MAIN(tests)
