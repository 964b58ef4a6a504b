/* SPDX-License-Identifier: Apache-2.0
 * A job started again: whatever the first run left, the second makes the same results of it, and
 * refuses what does not belong together. */
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

enum { RECORDS = 60 };

/* Runs all records and returns the sorted results. */
static char *full_run(struct job_rig *rig)
{
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, ""), 0);
    return job_rig_sorted(rig, "out.jsonl");
}

static void assert_results(struct job_rig *rig, const char *want)
{
    char *got = job_rig_sorted(rig, "out.jsonl");
    assert_string_equal(got, want);
    free(got);
}

static void cut(struct job_rig *rig, const char *name, off_t bytes)
{
    assert_int_equal(truncate(job_rig_path(rig, name), bytes), 0);
}

static off_t size_of(struct job_rig *rig, const char *name)
{
    struct stat st;
    assert_int_equal(stat(job_rig_path(rig, name), &st), 0);
    return st.st_size;
}

static void append(struct job_rig *rig, const char *name, const char *bytes, size_t count)
{
    FILE *f = fopen(job_rig_path(rig, name), "a");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
}

static void assert_refused(struct job_rig *rig, const char *options, const char *text)
{
    char *before = job_rig_read(rig, "out.jsonl");
    fake_engine.loads = 0;
    assert_int_equal(job_rig_run(rig, options), -EINVAL);
    if (!strstr(rig->err.text, text) && !strstr(rig->lines.data, text))
        fail_msg("expected '%s', found '%s' and\n%s", text, rig->err.text, rig->lines.data);
    char *after = job_rig_read(rig, "out.jsonl");
    if (before)
        assert_string_equal(after, before);
    assert_int_equal(fake_engine.loads, 0);
    free(before);
    free(after);
}

/* ---- cut off anywhere ---- */

static void cut_off_anywhere_it_ends_with_the_same_results(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
    off_t size = size_of(rig, "out.jsonl");
    for (uint32_t round = 0; round < 40; round++) {
        off_t at = (off_t)aq_prng_below(11, round, 0, (uint64_t)size + 1);
        cut(rig, "out.jsonl", at);
        assert_int_equal(job_rig_run(rig, ""), 0);
        assert_results(rig, want);
    }
    free(want);
}

static void only_what_is_missing_is_run_again(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig), *text = job_rig_read(rig, "out.jsonl"), *line = text;
    for (int i = 0; i < 25; i++)
        line = strchr(line, '\n') + 1;
    cut(rig, "out.jsonl", line - text);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, RECORDS - 25);
    assert_results(rig, want);
    free(text);
    free(want);
}

static void a_whole_last_line_without_newline_is_kept(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
    cut(rig, "out.jsonl", size_of(rig, "out.jsonl") - 1);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 0);
    assert_results(rig, want);
    free(want);
}

static void a_tail_of_zero_bytes_is_cut_off(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
    cut(rig, "out.jsonl", size_of(rig, "out.jsonl") * 2 / 3);
    append(rig, "out.jsonl", (char[4096]){0}, 4096); /* what a power cut may leave */
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_results(rig, want);
    free(want);
}

static void a_line_torn_inside_a_character_is_cut_off(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
    append(rig, "out.jsonl", "{\"id\":\"r0\",\"text\":\"\xe2\x82", 22);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_non_null(strstr(rig->lines.data, "torn"));
    assert_results(rig, want);
    append(rig, "out.jsonl", "\xf0", 1);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_results(rig, want);
    free(want);
}

static void an_emptied_file_is_filled_again(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
    cut(rig, "out.jsonl", 0);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_results(rig, want);
    free(want);
}

static void nothing_to_do_loads_nothing(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
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
    assert_results(rig, want);
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
        cut(rig, "out.jsonl.part",
            (off_t)aq_prng_below(5, round, 0, (uint64_t)size_of(rig, "out.jsonl.part")));
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
    char *want = full_run(rig);
    cut(rig, "out.jsonl", size_of(rig, "out.jsonl") / 2);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), RECORDS);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(results, 17), "index")), 17);
    json_decref(results);
    assert_int_equal(rename(job_rig_path(rig, "out.jsonl"), job_rig_path(rig, "out.jsonl.part")),
                     0);
    cut(rig, "out.jsonl.part", size_of(rig, "out.jsonl.part") / 2);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_false(job_rig_exists(rig, "out.jsonl.part"));
    assert_results(rig, want);
    free(want);
}

static void a_whole_file_is_put_in_order_on_request(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig), *text = job_rig_read(rig, "out.jsonl");
    fake_engine.loads = 0;
    append(rig, "out.jsonl", text, strcspn(text, "\n") + 1); /* a line that is there twice */
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

/* ---- what must agree ---- */

static void other_values_are_refused_with_a_table(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    assert_refused(rig, "\"max_tokens\": 7", "max_tokens");
    assert_refused(rig, "\"seed\": 7", "| 0 ");
    assert_refused(rig, "\"temperature\": 0.5", "0.5");
    assert_refused(rig, "\"bos\": \"never\"", "bos");
    assert_refused(rig, "\"stop\": [\"x\"]", "[\"x\"]");
    fake_engine.model_hash++;
    assert_refused(rig, "", "model_hash");
}

/* What the cache keeps decides tokens: policy and budget are values like the seed. */
static void another_kv_policy_is_another_run(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    assert_refused(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.2", "kv_policy");
    assert_int_equal(job_rig_run(rig, "\"kv_policy\": \"full\", \"kv_budget\": 1.0"), 0);
    assert_int_equal(job_rig_run(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": \"20%\", "
                                      "\"overwrite\": true"),
                     0);
    assert_int_equal(job_rig_run(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.2"), 0);
    assert_refused(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.1", "kv_budget");
    assert_refused(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.2, \"kv_sinks\": 1", "kv_sinks");
    assert_refused(rig, "", "kv_policy");
    assert_int_equal(job_rig_run(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.1, "
                                      "\"allow_change\": [\"kv-budget\"]"),
                     0);
}

static void allowed_changes_go_on(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    cut(rig, "out.jsonl", size_of(rig, "out.jsonl") / 2);
    assert_int_equal(job_rig_run(rig, "\"seed\": 7, \"max_tokens\": 9, \"allow_change\": "
                                      "[\"max-tokens\"]"),
                     -EINVAL);
    assert_int_equal(job_rig_run(rig, "\"seed\": 7, \"max_tokens\": 9, \"allow_change\": "
                                      "[\"seed\", \"max-tokens\"]"),
                     0);
    assert_refused(rig, "\"allow_change\": [\"sead\"]", "'sead' is not a key");
}

static void version_backend_and_isa_only_warn(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    json_t *m;
    assert_int_equal(
        aq_json_read_file(&m, job_rig_path(rig, "out.jsonl.manifest.json"), 1 << 20, NULL), 0);
    json_object_set_new(json_object_get(m, "values"), "version", json_string("0.0.1"));
    json_object_set_new(json_object_get(m, "values"), "isa", json_string("abacus"));
    json_object_del(m, "sums"); /* a manifest of before there were checksums */
    json_object_del(m, "xxh3");
    assert_int_equal(json_dump_file(m, job_rig_path(rig, "out.jsonl.manifest.json"), 0), 0);
    json_decref(m);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_non_null(strstr(rig->lines.data, "version was \"0.0.1\""));
    assert_non_null(strstr(rig->lines.data, "isa was \"abacus\""));
}

static void what_may_change_changes_silently(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    assert_int_equal(job_rig_run(rig, "\"micro_batch\": 3, \"threads\": 2, \"host_memory\": "
                                      "\"1GiB\", \"progress\": 5, \"refill\": false"),
                     0);
}

static void more_records_go_on_when_the_input_may_change(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    job_rig_records(rig, RECORDS + 5);
    assert_refused(rig, "", "input_hash");
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"input\"]"), 0);
    assert_int_equal(fake_engine.submitted, 5);
}

static void a_changed_record_is_run_again_and_the_old_line_stays(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl", "{\"id\": 1, \"prompt\": [5]}\n{\"id\": 2, \"prompt\": [6]}\n");
    assert_int_equal(job_rig_run(rig, ""), 0);
    job_rig_write(rig, "in.jsonl", "{\"id\": 1, \"prompt\": [5]}\n{\"id\": 2, \"prompt\": [7]}\n");
    assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"input\"]"), 0);
    assert_non_null(strstr(rig->lines.data, "1 lines belong to no record"));
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 3);
    json_decref(results);
}

/* ---- files that are somebody else's ---- */

static void results_without_a_manifest_are_left_alone(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    unlink(job_rig_path(rig, "out.jsonl.manifest.json"));
    assert_refused(rig, "", "manifest");
    job_rig_write(rig, "out.jsonl", "my diary\n");
    assert_refused(rig, "", "--overwrite");
}

static void an_empty_output_is_no_obstacle(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 3);
    job_rig_write(rig, "out.jsonl", "");
    assert_int_equal(job_rig_run(rig, ""), 0);
}

static void a_line_in_the_middle_that_is_no_result_is_named(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    char *text = job_rig_read(rig, "out.jsonl");
    job_rig_write(rig, "out.jsonl", "not ours\n");
    append(rig, "out.jsonl", text, strlen(text));
    assert_refused(rig, "", "line 1");
    free(text);
}

static void a_manifest_that_cannot_be_read_is_an_error(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    job_rig_write(rig, "out.jsonl.manifest.json", "{\"values\"");
    assert_refused(rig, "", "manifest");
    job_rig_write(rig, "out.jsonl.manifest.json", "{\"schema\": 1}");
    assert_refused(rig, "", "values");
    job_rig_write(rig, "out.jsonl.manifest.json", "{\"schema\": 2, \"values\": {}}");
    assert_refused(rig, "", "another version");
    cut(rig, "out.jsonl.manifest.json", 0);
    assert_refused(rig, "", "--overwrite");
}

static void overwrite_renames_and_never_deletes(void **state)
{
    struct job_rig *rig = *state;
    free(full_run(rig));
    char *old = job_rig_read(rig, "out.jsonl");
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true, \"max_tokens\": 3"), 0);
    char *kept = job_rig_read(rig, "out.jsonl.old.1");
    assert_string_equal(kept, old);
    assert_true(job_rig_exists(rig, "out.jsonl.manifest.json.old.1"));
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true"), 0);
    assert_true(job_rig_exists(rig, "out.jsonl.old.2"));
    free(kept);
    free(old);
}

/* Cut off while it renames: whichever file has its new name, the other is not written over. */
static void an_overwrite_that_was_cut_off_loses_nothing(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig), *manifest = job_rig_read(rig, "out.jsonl.manifest.json");
    rename(job_rig_path(rig, "out.jsonl.manifest.json"),
           job_rig_path(rig, "out.jsonl.manifest.json.old.1"));
    assert_refused(rig, "", "--overwrite");
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true"), 0);
    char *old = job_rig_sorted(rig, "out.jsonl.old.2");
    assert_string_equal(old, want);
    char *old_manifest = job_rig_read(rig, "out.jsonl.manifest.json.old.1");
    assert_string_equal(old_manifest, manifest);
    free(old_manifest);
    free(old);
    free(manifest);
    free(want);
}

static void what_does_not_fit_touches_nothing(void **state)
{
    static const char *const options[] = {"\"overwrite\": true", "\"retry_errors\": true",
                                          "\"ordered\": true", ""};
    struct job_rig *rig = *state;
    job_rig_records(rig, 10);
    fake_engine.bad_token = 13;
    assert_int_equal(job_rig_run(rig, ""), 3);
    append(rig, "out.jsonl", "{\"torn", 6);
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
    free(full_run(rig));
    cut(rig, "out.jsonl", size_of(rig, "out.jsonl") - 10);
    off_t size = size_of(rig, "out.jsonl");
    assert_int_equal(job_rig_run(rig, "\"dry_run\": true"), 0);
    assert_non_null(strstr(rig->lines.data, "holds 59 of 60 records"));
    assert_int_equal(size_of(rig, "out.jsonl"), size);
}

/* ---- files that rot, and files that are edited ---- */

static void change_byte(struct job_rig *rig, const char *name, off_t at, char change)
{
    FILE *f = fopen(job_rig_path(rig, name), "r+");
    assert_non_null(f);
    fseeko(f, at, SEEK_SET);
    int byte = fgetc(f);
    fseeko(f, at, SEEK_SET);
    fputc(change ? byte ^ change : 0, f);
    fclose(f);
}

static bool said(const struct job_rig *rig, const char *text)
{
    return rig->lines.data && strstr(rig->lines.data, text);
}

/* Bits flipped and bytes zeroed anywhere: what it hits is run again, the rest is not, and the line
 * as it was found is kept. */
static void a_changed_byte_of_the_results_is_found(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
    for (uint32_t round = 0; round < 100; round++) {
        off_t size = size_of(rig, "out.jsonl");
        off_t at = (off_t)aq_prng_below(17, round, 0, (uint64_t)size);
        char change = round % 3 ? (char)(1 << aq_prng_below(17, round, 1, 8)) : 0;
        change_byte(rig, "out.jsonl", at, change);
        unlink(job_rig_path(rig, "out.jsonl.damaged"));
        fake_engine.submitted = 0;
        assert_int_equal(job_rig_run(rig, ""), 0);
        assert_results(rig, want);
        if (at == size - 1 && !fake_engine.submitted) /* the last newline: nothing is lost */
            continue;
        assert_true(said(rig, "not as they were written") || said(rig, "torn"));
        assert_true(fake_engine.submitted == 1 || fake_engine.submitted == 2);
        assert_true(size_of(rig, "out.jsonl.damaged") > 0);
    }
    free(want);
}

static void a_changed_byte_of_the_sums_is_found_and_costs_nothing(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
    fake_engine.submitted = 0;
    for (uint32_t round = 0; round < 40; round++) {
        off_t at = (off_t)aq_prng_below(23, round, 0, (uint64_t)size_of(rig, "out.jsonl.sums"));
        char change = round % 3 ? (char)(1 << aq_prng_below(23, round, 1, 8)) : 0;
        change_byte(rig, "out.jsonl.sums", at, change);
        assert_int_equal(job_rig_run(rig, ""), 0);
        assert_true(said(rig, "torn or damaged"));
        assert_results(rig, want);
        assert_int_equal(job_rig_run(rig, ""), 0); /* made anew */
        assert_false(said(rig, "torn or damaged"));
    }
    assert_int_equal(fake_engine.submitted, 0);
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    free(want);
}

static void a_changed_byte_of_the_manifest_is_found_and_has_a_cure(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig);
    for (uint32_t round = 0; round < 40; round++) {
        off_t size = size_of(rig, "out.jsonl.manifest.json");
        off_t at = (off_t)aq_prng_below(29, round, 0, (uint64_t)size);
        char change = round % 3 ? (char)(1 << aq_prng_below(29, round, 1, 8)) : 0;
        change_byte(rig, "out.jsonl.manifest.json", at, change);
        assert_refused(rig, "", "--allow-change manifest");
        assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"manifest\"]"), 0);
        assert_results(rig, want);
        job_rig_records(rig, RECORDS + 1 + round); /* so that the manifest is written again */
        assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"input\", \"manifest\"]"), 0);
        free(want);
        want = job_rig_sorted(rig, "out.jsonl");
    }
    free(want);
}

static void results_may_be_sorted_and_taken_out(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig), *sorted = strdup(want);
    sorted[strlen(sorted) - 1] = '\0';
    strrchr(sorted, '\n')[1] = '\0'; /* without the last line */
    job_rig_write(rig, "out.jsonl", sorted);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 1);
    assert_true(said(rig, "1 lines that were written to"));
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    assert_results(rig, want);
    free(sorted);
    free(want);
}

static void an_edited_line_is_set_aside_and_said(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig), *text = job_rig_read(rig, "out.jsonl");
    char *edit = strstr(strchr(text, '\n'), "\"finish_reason\"");
    memcpy(edit, "\"finish_reasoN\"", 15);
    job_rig_write(rig, "out.jsonl", text);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, "\"dry_run\": true"), 0);
    assert_true(said(rig, "out.jsonl' line 2 (bytes"));
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(said(rig, "to keep edits"));
    assert_int_equal(fake_engine.submitted, 1);
    assert_results(rig, want);
    char *damaged = job_rig_read(rig, "out.jsonl.damaged");
    assert_non_null(strstr(damaged, "finish_reasoN"));
    job_rig_write(rig, "out.jsonl", text); /* wanted so: without its sums it stays */
    unlink(job_rig_path(rig, "out.jsonl.sums"));
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(said(rig, "by their form alone"));
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
    char *want = full_run(rig);
    json_t *m;
    assert_int_equal(
        aq_json_read_file(&m, job_rig_path(rig, "out.jsonl.manifest.json"), 1 << 20, NULL), 0);
    json_object_del(m, "sums");
    json_object_del(m, "xxh3");
    assert_int_equal(json_dump_file(m, job_rig_path(rig, "out.jsonl.manifest.json"), 0), 0);
    json_decref(m);
    unlink(job_rig_path(rig, "out.jsonl.sums"));
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 0);
    assert_false(said(rig, "sums"));
    change_byte(rig, "out.jsonl", size_of(rig, "out.jsonl") / 2, 1);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(fake_engine.submitted > 0);
    assert_results(rig, want);
    free(want);
}

/* Killed before the last lines were synced: they have no sums yet and are good all the same. */
static void lines_that_are_ahead_of_their_sums_are_good(void **state)
{
    struct job_rig *rig = *state;
    char *want = full_run(rig), *sums = job_rig_read(rig, "out.jsonl.sums");
    sums[strcspn(sums, "\n") + 1] = '\0';
    job_rig_write(rig, "out.jsonl.sums", sums);
    append(rig, "out.jsonl", "{\"torn", 6);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 0);
    assert_results(rig, want);
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    free(sums);
    free(want);
}

static struct job_rig *rotting;

static void rot_in_pass_5(uint64_t pass)
{
    if (pass == 5)
        change_byte(rotting, "out.jsonl.part", 5, 4);
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
    change_byte(rig, "out.jsonl", 30, 2);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, "\"retry_errors\": true"), 0);
    assert_int_equal(fake_engine.submitted, 2);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 10);
    json_decref(results);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 2);
    assert_false(said(rig, "no longer there"));
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
    T(an_ordered_run_goes_on_from_its_part),
    T(lines_of_all_lengths_are_put_in_order),
    T(an_empty_part_does_not_replace_the_whole_file),
    T(a_part_left_beside_the_whole_file_is_removed),
    T(a_run_may_change_between_ordered_and_not),
    T(a_whole_file_is_put_in_order_on_request),
    T(other_values_are_refused_with_a_table),
    T(another_kv_policy_is_another_run),
    T(allowed_changes_go_on),
    T(version_backend_and_isa_only_warn),
    T(what_may_change_changes_silently),
    T(more_records_go_on_when_the_input_may_change),
    T(a_changed_record_is_run_again_and_the_old_line_stays),
    T(results_without_a_manifest_are_left_alone),
    T(an_empty_output_is_no_obstacle),
    T(a_line_in_the_middle_that_is_no_result_is_named),
    T(a_manifest_that_cannot_be_read_is_an_error),
    T(overwrite_renames_and_never_deletes),
    T(an_overwrite_that_was_cut_off_loses_nothing),
    T(what_does_not_fit_touches_nothing),
    T(a_dry_run_repairs_nothing),
    T(a_changed_byte_of_the_results_is_found),
    T(a_changed_byte_of_the_sums_is_found_and_costs_nothing),
    T(a_changed_byte_of_the_manifest_is_found_and_has_a_cure),
    T(results_may_be_sorted_and_taken_out),
    T(an_edited_line_is_set_aside_and_said),
    T(an_output_of_before_there_were_sums_gets_them),
    T(lines_that_are_ahead_of_their_sums_are_good),
    T(a_part_that_rots_is_not_put_in_order),
    T(damage_is_found_where_errors_are_retried),
    T(error_records_count_as_done_until_they_are_retried),
    T(errors_are_retried_where_a_part_was_left),
    T(retrying_errors_can_be_cut_off),
    T(a_resumed_run_still_tells_of_earlier_errors),
};

AQ_TEST_MAIN(tests)
