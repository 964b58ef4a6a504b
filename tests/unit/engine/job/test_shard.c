/* SPDX-License-Identifier: Apache-2.0
 * --shard: which records a shard has, what it keeps beside its results, and how it resumes. */
#include "tests/unit/engine/job/job_rig.h"

#include "engine/job/roster.h"
#include "engine/options/shard.h"
#include "tests/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECORDS = 300, SHARDS = 5 };

/* ---- as text ---- */

static void assert_refused(const char *text, const char *why)
{
    struct aq_shard s;
    struct aq_err err;
    assert_int_equal(aq_shard_find(&s, text, &err), -EINVAL);
    if (!strstr(err.text, why))
        fail_msg("'%s': %s", text, err.text);
}

static void texts_are_a_number_of_a_count(void **state)
{
    struct aq_shard s;
    assert_int_equal(aq_shard_find(&s, NULL, NULL), 0);
    assert_int_equal(s.count, 0);
    assert_int_equal(aq_shard_find(&s, "7/8", NULL), 0);
    assert_int_equal(s.index, 7);
    assert_int_equal(s.count, 8);
    assert_int_equal(aq_shard_find(&s, "0/1000000", NULL), 0);
    static const char *const bad[] = {"",     "1",     "1/",  "/8",    "1/8 ",  " 1/8",
                                      "-1/8", "1/8/8", "a/b", "0x1/8", "1.0/8", "99999999999/8"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(bad); i++)
        assert_refused(bad[i], "expected K/N");
    assert_refused("8/8", "from 0 to N - 1");
    assert_refused("0/0", "from 1 to");
    assert_refused("0/1000001", "from 1 to 1000000");
}

static void set_array(const char *id, const char *count, const char *first, const char *last,
                      const char *step)
{
    const char *const name[] = {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT",
                                "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX",
                                "SLURM_ARRAY_TASK_STEP"};
    const char *const value[] = {id, count, first, last, step};
    for (size_t i = 0; i < AQ_ARRAY_LEN(name); i++) {
        if (value[i])
            setenv(name[i], value[i], 1);
        else
            unsetenv(name[i]);
    }
}

static void assert_slurm(uint32_t index, uint32_t count)
{
    struct aq_shard s;
    struct aq_err err = {0};
    if (aq_shard_find(&s, "slurm", &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(s.index, index);
    assert_int_equal(s.count, count);
}

static void slurm_s_variables_give_the_rank_in_the_array(void **state)
{
    set_array("3", "8", "0", "7", "1");
    assert_slurm(3, 8);
    set_array("8", "8", "1", "8", NULL);
    assert_slurm(7, 8);
    set_array("12", "8", "0", "14", "2");
    assert_slurm(6, 8);
    set_array("5", "1", "5", "5", "1");
    assert_slurm(0, 1);
    set_array("1", "3", "1", "5", "1"); /* --array=1,4,5 */
    assert_refused("slurm", "equal steps");
    set_array("9", "8", "0", "7", "1");
    assert_refused("slurm", "equal steps");
    set_array("3", "8", "0", "14", "2");
    assert_refused("slurm", "equal steps");
    set_array("3", "8", "0", "7", "0");
    assert_refused("slurm", "equal steps");
    set_array("x", "8", "0", "7", "1");
    assert_refused("slurm", "SLURM_ARRAY_TASK_ID: expected a number, found 'x'");
    set_array(NULL, NULL, NULL, NULL, NULL);
    assert_refused("slurm", "SLURM_ARRAY_TASK_ID is not set");
}

/* Shards of several versions are merged: who has which record is part of the format. */
static void hashes_name_the_same_shards_for_ever(void **state)
{
    assert_int_equal(aq_shard_of(0, 0, 1), 0);
    assert_int_equal(aq_shard_of(1, 2, 1000003), 179878);
    assert_int_equal(aq_shard_of(2, 1, 1000003), 807328);
    assert_int_equal(aq_shard_of(0x123456789abcdef0, 0xfedcba9876543210, 1000003), 768816);
}

/* ---- runs ---- */

static int run(struct job_rig *rig, const char *output, unsigned shard, unsigned count,
               const char *more)
{
    char options[512];
    snprintf(options, sizeof(options), "\"output\": \"%s\", \"shard\": \"%u/%u\"%s%s",
             job_rig_path(rig, output), shard, count, more[0] ? ", " : "", more);
    return job_rig_run(rig, options);
}

static void shards_have_every_record_once_and_all_of_them_some(void **state)
{
    struct job_rig *rig = *state;
    bool seen[RECORDS] = {false};
    unsigned total = 0;
    job_rig_records(rig, RECORDS);
    for (unsigned k = 0; k < SHARDS; k++) {
        assert_int_equal(run(rig, "s.jsonl", k, SHARDS, k ? "\"overwrite\": true" : ""), 0);
        json_t *results = job_rig_results(rig, "s.jsonl"), *r;
        size_t i;
        assert_in_range(json_array_size(results), RECORDS / SHARDS / 2, 2 * RECORDS / SHARDS);
        json_array_foreach(results, i, r)
        {
            json_int_t index = json_integer_value(json_object_get(r, "index"));
            char id[16];
            assert_in_range(index, 0, RECORDS - 1);
            assert_false(seen[index]);
            seen[index] = true;
            snprintf(id, sizeof(id), "r%d", (int)index);
            assert_string_equal(json_string_value(json_object_get(r, "id")), id);
        }
        total += (unsigned)json_array_size(results);
        json_decref(results);
    }
    assert_int_equal(total, RECORDS);
}

static void a_result_is_the_one_of_a_whole_run(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(run(rig, "s.jsonl", 1, 3, ""), 0);
    char *whole = job_rig_sorted(rig, "out.jsonl"), *shard = job_rig_read(rig, "s.jsonl");
    char *rest = shard;
    for (char *line; (line = strsep(&rest, "\n")) && *line;)
        assert_non_null(strstr(whole, line));
    free(whole);
    free(shard);
}

static void its_records_are_listed_in_the_order_of_the_input(void **state)
{
    struct job_rig *rig = *state;
    struct aq_roster *r;
    job_rig_records(rig, RECORDS);
    assert_int_equal(run(rig, "out.jsonl", 2, 3, "\"limit\": 100"), 0);
    assert_int_equal(aq_roster_open(&r, job_rig_path(rig, "out.jsonl.records"), NULL), 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(aq_roster_count(r), json_array_size(results));
    assert_int_equal(aq_roster_head(r)->total, 100);
    assert_int_equal(aq_roster_head(r)->shard.index, 2);
    json_decref(results);
    aq_roster_close(r);
    /* A later limit has more of them. */
    assert_int_equal(run(rig, "out.jsonl", 2, 3, ""), 0);
    assert_int_equal(aq_roster_open(&r, job_rig_path(rig, "out.jsonl.records"), NULL), 0);
    assert_int_equal(aq_roster_head(r)->total, RECORDS);
    aq_roster_close(r);
}

static void a_shard_resumes_alone_and_as_no_other(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(run(rig, "out.jsonl", 1, 4, ""), 0);
    char *want = job_rig_sorted(rig, "out.jsonl");
    job_rig_cut(rig, "out.jsonl", job_rig_size(rig, "out.jsonl") / 2);
    fake_engine.submitted = 0;
    assert_int_equal(run(rig, "out.jsonl", 1, 4, ""), 0);
    assert_in_range(fake_engine.submitted, 1, RECORDS / 4);
    job_rig_assert_results(rig, want);
    job_rig_assert_refused(rig, "\"shard\": \"2/4\"", "shard                        | \"1/4\"");
    job_rig_assert_refused(rig, "\"shard\": \"1/5\"", "\"1/5\"");
    job_rig_assert_refused(rig, "", "| null");
    job_rig_assert_results(rig, want);
    free(want);
}

static void a_run_without_shards_is_not_gone_on_with_as_a_shard(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 20);
    assert_int_equal(job_rig_run(rig, ""), 0);
    job_rig_assert_refused(rig, "\"shard\": \"0/1\"", "shard                        | null");
    assert_false(job_rig_exists(rig, "out.jsonl.records"));
}

static void ordered_shards_are_ordered(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(run(rig, "out.jsonl", 0, 2, "\"ordered\": true"), 0);
    json_t *results = job_rig_results(rig, "out.jsonl"), *r;
    size_t i;
    json_int_t last = -1;
    json_array_foreach(results, i, r)
    {
        json_int_t index = json_integer_value(json_object_get(r, "index"));
        assert_true(index > last);
        last = index;
    }
    json_decref(results);
}

static void a_shard_without_records_leaves_an_empty_file_and_succeeds(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 1);
    unsigned empty = 0;
    for (unsigned k = 0; k < 3; k++) {
        for (unsigned again = 0; again < 2; again++)
            assert_int_equal(run(rig, "out.jsonl", k, 3, again ? "" : "\"overwrite\": true"), 0);
        empty += job_rig_size(rig, "out.jsonl") == 0;
        assert_true(job_rig_exists(rig, "out.jsonl.records"));
        assert_true(job_rig_exists(rig, "out.jsonl.sums"));
        assert_true(job_rig_exists(rig, "out.jsonl.manifest.json"));
    }
    assert_int_equal(empty, 2);
}

/* The only bad record is one shard's, which has no other: judged alone it would refuse to run, and
 * the job would never be complete. */
static void every_shard_judges_the_whole_input(void **state)
{
    struct job_rig *rig = *state;
    const char *input =
        "{\"id\": \"a\", \"prompt\": [5, 6]}\n{\"id\": \"b\", \"prompt\": [5, 7]}\n"
        "{\"id\": \"c\", \"prompt\": [5, 8]}\n{\"id\": \"d\", \"temperature\": -1}\n";
    job_rig_write(rig, "in.jsonl", input);
    unsigned lines = 0, with_errors = 0;
    for (unsigned k = 0; k < 40; k++) {
        int rc = run(rig, "out.jsonl", k, 40, "\"overwrite\": true");
        assert_true(rc == 0 || rc == 3);
        with_errors += rc == 3;
        json_t *results = job_rig_results(rig, "out.jsonl");
        lines += (unsigned)json_array_size(results);
        json_decref(results);
        job_rig_assert_refused(rig, "\"shard\": \"0/40\", \"strict\": true, \"overwrite\": true",
                               "1 of 4 records are invalid");
    }
    assert_int_equal(lines, 4);
    assert_int_equal(with_errors, 1);
}

static void two_records_with_one_id_stop_every_shard(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl",
                  "{\"id\": \"a\", \"prompt\": [5, 6]}\n"
                  "{\"id\": \"a\", \"prompt\": [5, 7]}\n");
    for (unsigned k = 0; k < 4; k++) {
        assert_int_equal(run(rig, "out.jsonl", k, 4, ""), -EINVAL);
        assert_non_null(strstr(rig->err.text, "same id"));
    }
}

static void results_of_a_shard_may_go_to_a_stream_in_order(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(run(rig, "out.jsonl", 1, 3, "\"ordered\": true"), 0);
    char *want = job_rig_read(rig, "out.jsonl");
    assert_int_equal(job_rig_run(rig, "\"output\": \"-\", \"shard\": \"1/3\", \"ordered\": true"),
                     0);
    assert_string_equal(rig->output.data, want);
    free(want);
}

#define RIG(test) cmocka_unit_test_setup_teardown(test, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(texts_are_a_number_of_a_count),
    cmocka_unit_test(slurm_s_variables_give_the_rank_in_the_array),
    cmocka_unit_test(hashes_name_the_same_shards_for_ever),
    RIG(shards_have_every_record_once_and_all_of_them_some),
    RIG(a_result_is_the_one_of_a_whole_run),
    RIG(its_records_are_listed_in_the_order_of_the_input),
    RIG(a_shard_resumes_alone_and_as_no_other),
    RIG(a_run_without_shards_is_not_gone_on_with_as_a_shard),
    RIG(ordered_shards_are_ordered),
    RIG(a_shard_without_records_leaves_an_empty_file_and_succeeds),
    RIG(every_shard_judges_the_whole_input),
    RIG(two_records_with_one_id_stop_every_shard),
    RIG(results_of_a_shard_may_go_to_a_stream_in_order),
};

AQ_TEST_MAIN(tests)
