/* SPDX-License-Identifier: Apache-2.0
 * A job started again with other values, or beside files that are somebody else's: what does not
 * belong together is refused, and nothing is lost. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/prng.h"
#include "tests/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECORDS = RIG_RECORDS };

/* ---- what must agree ---- */

static void other_values_are_refused_with_a_table(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    job_rig_assert_refused(rig, "\"max_tokens\": 7", "max_tokens");
    job_rig_assert_refused(rig, "\"seed\": 7", "| 0 ");
    job_rig_assert_refused(rig, "\"temperature\": 0.5", "0.5");
    job_rig_assert_refused(rig, "\"bos\": \"never\"", "bos");
    job_rig_assert_refused(rig, "\"stop\": [\"x\"]", "[\"x\"]");
    fake_engine.model_hash++;
    job_rig_assert_refused(rig, "", "model_hash");
}

/* What the cache keeps decides tokens: policy and budget are values like the seed. */
static void another_kv_policy_is_another_run(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    job_rig_assert_refused(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.2", "kv_policy");
    assert_int_equal(job_rig_run(rig, "\"kv_policy\": \"full\", \"kv_budget\": 1.0"), 0);
    assert_int_equal(job_rig_run(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": \"20%\", "
                                      "\"overwrite\": true"),
                     0);
    assert_int_equal(job_rig_run(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.2"), 0);
    job_rig_assert_refused(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.1", "kv_budget");
    job_rig_assert_refused(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.2, \"kv_sinks\": 1",
                           "kv_sinks");
    job_rig_assert_refused(rig, "", "kv_policy");
    assert_int_equal(job_rig_run(rig, "\"kv_policy\": \"h2o\", \"kv_budget\": 0.1, "
                                      "\"allow_change\": [\"kv-budget\"]"),
                     0);
}

static void allowed_changes_go_on(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    job_rig_cut(rig, "out.jsonl", job_rig_size(rig, "out.jsonl") / 2);
    assert_int_equal(job_rig_run(rig, "\"seed\": 7, \"max_tokens\": 9, \"allow_change\": "
                                      "[\"max-tokens\"]"),
                     -EINVAL);
    assert_int_equal(job_rig_run(rig, "\"seed\": 7, \"max_tokens\": 9, \"allow_change\": "
                                      "[\"seed\", \"max-tokens\"]"),
                     0);
    job_rig_assert_refused(rig, "\"allow_change\": [\"sead\"]", "'sead' is not a key");
}

static void version_backend_and_isa_only_warn(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    json_t *m = job_rig_manifest(rig);
    json_object_set_new(json_object_get(m, "values"), "version", json_string("0.0.1"));
    json_object_set_new(json_object_get(m, "values"), "isa", json_string("abacus"));
    job_rig_old_manifest(rig, m);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_non_null(strstr(rig->lines.data, "version was \"0.0.1\""));
    assert_non_null(strstr(rig->lines.data, "isa was \"abacus\""));
}

/* Earlier versions rounded int4's scales up: where this run rounds them, the results would be of
 * two kinds.  A store says by its hash how its weights were rounded. */
static void int4_of_an_earlier_version_is_another_run(void **state)
{
    static const char *const options[] = {"\"weight_format\": \"int4\"", "\"kv_format\": \"int4\""};
    static const char *const keys[] = {"weight_scales", "kv_scales"};
    struct job_rig *rig = *state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(options); i++) {
        char allowed[100];
        snprintf(allowed, sizeof(allowed), "%s, \"overwrite\": true", options[i]);
        job_rig_records(rig, RECORDS);
        assert_int_equal(job_rig_run(rig, allowed), 0);
        assert_int_equal(job_rig_run(rig, options[i]), 0);
        json_t *m = job_rig_manifest(rig);
        assert_int_equal(json_object_del(json_object_get(m, "values"), keys[i]), 0);
        job_rig_old_manifest(rig, m);
        job_rig_assert_refused(rig, options[i], keys[i]);
        snprintf(allowed, sizeof(allowed), "%s, \"allow_change\": [\"%s\"]", options[i], keys[i]);
        assert_int_equal(job_rig_run(rig, allowed), 0);
    }
    fake_engine.packed = true;
    assert_int_equal(job_rig_run(rig, "\"weight_format\": \"int4\", \"overwrite\": true"), 0);
    json_t *m = job_rig_manifest(rig);
    assert_null(json_object_get(json_object_get(m, "values"), "weight_scales"));
    json_decref(m);
}

static void what_may_change_changes_silently(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    assert_int_equal(job_rig_run(rig, "\"micro_batch\": 3, \"threads\": 2, \"host_memory\": "
                                      "\"1GiB\", \"progress\": 5, \"refill\": false"),
                     0);
}

static void records_that_are_appended_run_without_leave(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    job_rig_records(rig, RECORDS + 5);
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 5);
    assert_true(job_rig_said(rig, "the input has grown"));
    assert_false(job_rig_exists(rig, "out.jsonl.stale"));
    /* The manifest has the new input now, which a shorter one is not. */
    job_rig_records(rig, RECORDS);
    job_rig_assert_refused(rig, "", "input_hash");
    /* As Windows writes it. */
    job_rig_write(rig, "in.jsonl", "\xef\xbb\xbf{\"prompt\": [5]}\n");
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true"), 0);
    job_rig_append(rig, "in.jsonl", "{\"prompt\": [6]}\n", 16);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_true(job_rig_said(rig, "the input has grown"));
}

/* "[5]}" + "\n..." has the bytes of the old input in front, but a record of it is another one when
 * its last line goes on. */
static void a_last_line_that_goes_on_is_a_change(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl", "{\"id\": 1, \"prompt\": [5]}");
    assert_int_equal(job_rig_run(rig, ""), 0);
    job_rig_write(rig, "in.jsonl", "{\"id\": 1, \"prompt\": [5]} \n");
    job_rig_assert_refused(rig, "", "input_hash");
}

/* A copy of the rest of the file, of a run that took lines out, and of the same command again. */
static void a_changed_record_is_run_again_and_the_old_line_is_set_aside(void **state)
{
    struct job_rig *rig = *state;
    const char *allow = "\"allow_change\": [\"input\"]";
    job_rig_write(rig, "in.jsonl", "{\"id\": 1, \"prompt\": [5]}\n{\"id\": 2, \"prompt\": [6]}\n");
    assert_int_equal(job_rig_run(rig, ""), 0);
    char *before = job_rig_read(rig, "out.jsonl");
    job_rig_write(rig, "in.jsonl", "{\"id\": 1, \"prompt\": [5]}\n{\"id\": 2, \"prompt\": [7]}\n");
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, allow), 0);
    assert_int_equal(fake_engine.submitted, 1);
    assert_true(job_rig_said(rig, "1 line belongs to no record of this input any more"));
    char *stale = job_rig_read(rig, "out.jsonl.stale");
    assert_non_null(strstr(before, stale)); /* the very line */
    assert_non_null(strstr(stale, "\"id\":2"));
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 2);
    json_decref(results);
    assert_int_equal(job_rig_run(rig, ""), 0); /* nothing is left to be said or done */
    assert_false(job_rig_said(rig, "moved to"));
    free(before);
    free(stale);
}

/* Of the records beyond a limit nobody knows what became. */
static void behind_a_limit_no_line_is_stale(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl", "{\"id\": 1, \"prompt\": [5]}\n{\"id\": 2, \"prompt\": [6]}\n");
    assert_int_equal(job_rig_run(rig, ""), 0);
    job_rig_write(rig, "in.jsonl", "{\"id\": 1, \"prompt\": [5]}\n{\"id\": 2, \"prompt\": [7]}\n");
    assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"input\"], \"limit\": 2"), 0);
    assert_true(job_rig_said(rig, "1 line belongs to no record"));
    assert_false(job_rig_exists(rig, "out.jsonl.stale"));
    assert_true(job_rig_said(rig, "it stays"));
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 3);
    json_decref(results);
    /* A run without a limit finds them, as the manifest has still the input of before. */
    job_rig_assert_refused(rig, "", "input_hash");
    assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"input\"]"), 0);
    assert_true(job_rig_said(rig, "1 line belongs to no record of this input any more"));
    results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 2);
    json_decref(results);
    results = job_rig_results(rig, "out.jsonl.stale");
    assert_int_equal(json_array_size(results), 1);
    json_decref(results);
}

/* ---- files that are somebody else's ---- */

static void results_without_a_manifest_are_left_alone(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    unlink(job_rig_path(rig, "out.jsonl.manifest.json"));
    job_rig_assert_refused(rig, "", "manifest");
    job_rig_write(rig, "out.jsonl", "my diary\n");
    job_rig_assert_refused(rig, "", "--overwrite");
}

static void an_empty_output_is_no_obstacle(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 3);
    job_rig_write(rig, "out.jsonl", "");
    assert_int_equal(job_rig_run(rig, ""), 0);
}

/* Without sums nobody knows whose it is; also the last one is not taken for torn. */
static void a_line_that_is_no_result_is_named_where_there_are_no_sums(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    unlink(job_rig_path(rig, "out.jsonl.sums"));
    char *text = job_rig_read(rig, "out.jsonl");
    job_rig_write(rig, "out.jsonl", "not ours\n");
    job_rig_append(rig, "out.jsonl", text, strlen(text));
    job_rig_assert_refused(rig, "", "line 1");
    job_rig_assert_refused(rig, "", "take it out");
    job_rig_write(rig, "out.jsonl", text);
    job_rig_append(rig, "out.jsonl", "not ours\n", 9);
    job_rig_assert_refused(rig, "", "line 61");
    free(text);
}

static void a_manifest_that_cannot_be_read_is_an_error(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    job_rig_write(rig, "out.jsonl.manifest.json", "{\"values\"");
    job_rig_assert_refused(rig, "", "manifest");
    job_rig_write(rig, "out.jsonl.manifest.json", "{\"schema\": 1}");
    job_rig_assert_refused(rig, "", "values");
    job_rig_assert_refused(rig, "", "--allow-change manifest");
    job_rig_write(rig, "out.jsonl.manifest.json", "{\"schema\": 2, \"values\": {}}");
    job_rig_assert_refused(rig, "", "another version");
    job_rig_assert_refused(rig, "", "--allow-change manifest");
    job_rig_cut(rig, "out.jsonl.manifest.json", 0);
    job_rig_assert_refused(rig, "", "--overwrite");
}

static void overwrite_renames_and_never_deletes(void **state)
{
    struct job_rig *rig = *state;
    free(job_rig_full_run(rig));
    char *old = job_rig_read(rig, "out.jsonl");
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true, \"max_tokens\": 3"), 0);
    char *kept = job_rig_read(rig, "out.jsonl.old.1");
    assert_string_equal(kept, old);
    assert_true(job_rig_exists(rig, "out.jsonl.manifest.json.old.1"));
    job_rig_write(rig, "out.jsonl.damaged", "{\n"); /* of the results that are set aside now */
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true"), 0);
    assert_false(job_rig_exists(rig, "out.jsonl.damaged"));
    assert_true(job_rig_exists(rig, "out.jsonl.damaged.old.2"));
    assert_true(job_rig_exists(rig, "out.jsonl.old.2"));
    free(kept);
    free(old);
}

/* Cut off while it renames: whichever file has its new name, the other is not written over. */
static void an_overwrite_that_was_cut_off_loses_nothing(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig), *manifest = job_rig_read(rig, "out.jsonl.manifest.json");
    rename(job_rig_path(rig, "out.jsonl.manifest.json"),
           job_rig_path(rig, "out.jsonl.manifest.json.old.1"));
    job_rig_assert_refused(rig, "", "--overwrite");
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

static void a_changed_byte_of_the_manifest_is_found_and_has_a_cure(void **state)
{
    struct job_rig *rig = *state;
    char *want = job_rig_full_run(rig);
    for (uint32_t round = 0; round < 40; round++) {
        off_t size = job_rig_size(rig, "out.jsonl.manifest.json");
        off_t at = (off_t)aq_prng_below(29, round, 0, (uint64_t)size);
        char change = round % 3 ? (char)(1 << aq_prng_below(29, round, 1, 8)) : 0;
        job_rig_change_byte(rig, "out.jsonl.manifest.json", at, change);
        job_rig_assert_refused(rig, "", "--allow-change manifest");
        fake_engine.loads = 0;
        assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"manifest\"]"), 0);
        assert_int_equal(fake_engine.loads, 0); /* nothing to do, but it is written again */
        assert_int_equal(job_rig_run(rig, ""), 0);
        job_rig_assert_results(rig, want);
    }
    free(want);
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    T(other_values_are_refused_with_a_table),
    T(another_kv_policy_is_another_run),
    T(allowed_changes_go_on),
    T(version_backend_and_isa_only_warn),
    T(int4_of_an_earlier_version_is_another_run),
    T(what_may_change_changes_silently),
    T(records_that_are_appended_run_without_leave),
    T(a_last_line_that_goes_on_is_a_change),
    T(behind_a_limit_no_line_is_stale),
    T(a_changed_record_is_run_again_and_the_old_line_is_set_aside),
    T(results_without_a_manifest_are_left_alone),
    T(an_empty_output_is_no_obstacle),
    T(a_line_that_is_no_result_is_named_where_there_are_no_sums),
    T(a_manifest_that_cannot_be_read_is_an_error),
    T(overwrite_renames_and_never_deletes),
    T(an_overwrite_that_was_cut_off_loses_nothing),
    T(a_changed_byte_of_the_manifest_is_found_and_has_a_cure),
};

AQ_TEST_MAIN(tests)
