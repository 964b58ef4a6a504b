/* SPDX-License-Identifier: Apache-2.0
 * `aquifer merge`: shards become the file of one run, or nothing is written and what is wrong is
 * said. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/compress.h"
#include "engine/job/lock.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECORDS = 120, SHARDS = 3 };

/* ---- shards and merges ---- */

static int run_shard(struct job_rig *rig, const char *output, unsigned shard, const char *more)
{
    char options[512];
    snprintf(options, sizeof(options), "\"output\": \"%s\", \"shard\": \"%u/%u\"%s%s",
             job_rig_path(rig, output), shard, SHARDS, more[0] ? ", " : "", more);
    return job_rig_run(rig, options);
}

/* "s0.jsonl" to "s2.jsonl". */
static void run_shards(struct job_rig *rig, const char *more)
{
    for (unsigned k = 0; k < SHARDS; k++) {
        char name[16];
        snprintf(name, sizeof(name), "s%u.jsonl", k);
        assert_true(run_shard(rig, name, k, more) >= 0);
    }
}

/* Merges the files named in `shards`, separated by blanks. */
static int merge_into(struct job_rig *rig, const char *output, const char *shards, const char *more)
{
    char options[4096], names[512], *rest = names;
    int n = snprintf(options, sizeof(options), "{\"files\": [\"%s/%s\"", rig->dir, output);
    snprintf(names, sizeof(names), "%s", shards);
    for (char *name; (name = strsep(&rest, " "));)
        n += snprintf(options + n, sizeof(options) - (size_t)n, ", \"%s/%s\"", rig->dir, name);
    snprintf(options + n, sizeof(options) - (size_t)n, "]%s%s}", more[0] ? ", " : "", more);
    return job_rig_command(rig, "merge", aq_cmd_merge, options);
}

static int merge(struct job_rig *rig, const char *shards, const char *more)
{
    return merge_into(rig, "m.jsonl", shards, more);
}

static const char all[] = "s2.jsonl s0.jsonl s1.jsonl";

static void assert_not_merged(struct job_rig *rig, const char *shards, const char *more,
                              const char *why)
{
    static const char *const made[] = {"m.jsonl", "m.jsonl.tmp", "m.jsonl.lock",
                                       "m.jsonl.manifest.json", "m.jsonl.sums"};
    assert_int_equal(merge(rig, shards, more), -EINVAL);
    if (!job_rig_said(rig, why) && !strstr(rig->err.text, why))
        fail_msg("expected '%s', found: %s%s", why, rig->lines.data ? rig->lines.data : "",
                 rig->err.text);
    for (size_t i = 0; i < AQ_ARRAY_LEN(made); i++)
        assert_false(job_rig_exists(rig, made[i]));
}

/* The numbered line of a file, without its newline; malloc'd. */
static char *line_of(const struct job_rig *rig, const char *name, unsigned number)
{
    char *text = job_rig_read(rig, name), *rest = text, *line = strsep(&rest, "\n");
    for (unsigned i = 1; i < number; i++)
        line = strsep(&rest, "\n");
    char *copy = strdup(line);
    free(text);
    return copy;
}

static void assert_same_file(struct job_rig *rig, const char *a, const char *b)
{
    char *x = job_rig_read(rig, a), *y = job_rig_read(rig, b);
    assert_string_equal(x, y);
    free(x);
    free(y);
}

/* ---- what becomes of shards ---- */

static void shards_become_the_file_of_one_run(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, ""), 0);
    char *want = job_rig_sorted(rig, "out.jsonl");
    run_shards(rig, "");
    assert_int_equal(merge(rig, all, ""), 0);
    char *found = job_rig_sorted(rig, "m.jsonl");
    assert_string_equal(found, want);
    assert_same_file(rig, "m.jsonl.manifest.json", "out.jsonl.manifest.json");
    assert_false(job_rig_exists(rig, "m.jsonl.lock"));
    free(found);
    free(want);
}

static void a_run_goes_on_with_merged_results(void **state)
{
    struct job_rig *rig = *state;
    char options[256];
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    assert_int_equal(merge(rig, all, ""), 0);
    snprintf(options, sizeof(options), "\"output\": \"%s\"", job_rig_path(rig, "m.jsonl"));
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, options), 0);
    assert_int_equal(fake_engine.submitted, 0);
    assert_true(job_rig_said(rig, "nothing to do"));
    /* FILE.sums is of these lines: a changed letter is noticed. */
    char *text = job_rig_read(rig, "m.jsonl");
    job_rig_change_byte(rig, "m.jsonl", strstr(text, "\"text\":\"") - text + 9, 1);
    free(text);
    assert_int_equal(job_rig_run(rig, options), 0);
    assert_int_equal(fake_engine.submitted, 1);
}

static void ordered_gives_the_order_of_the_input(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    run_shards(rig, "");
    assert_int_equal(merge(rig, all, "\"ordered\": true"), 0);
    assert_same_file(rig, "m.jsonl", "out.jsonl");
}

/* Results of the batch form do not say which place in the input they are of; a record without id,
 * a line that is no JSON and errors of all kinds have places, too. */
static void records_of_all_forms_keep_their_order(void **state)
{
    struct job_rig *rig = *state;
    struct aq_buf in = {0};
    for (unsigned i = 0; i < 60; i++) {
        if (i % 6 == 0)
            aq_buf_printf(&in,
                          "{\"custom_id\": \"c%u\", \"method\": \"POST\", \"url\": "
                          "\"/v1/completions\", \"body\": {\"prompt\": [%u, 9]}}\n\n",
                          i, 10 + i);
        else if (i % 6 == 1)
            aq_buf_printf(&in, "{\"prompt\": [%u, 8]}\r\n", 10 + i);
        else if (i % 6 == 2)
            aq_buf_printf(&in,
                          "{\"request_type\": \"language-model-inference\", \"request\": "
                          "{\"prompt\": [%u, 7]}, \"n\": %u}\n",
                          10 + i, i);
        else if (i % 6 == 3)
            aq_buf_printf(&in, "{\"id\": %u, \"prompt\": [%u, 8]}\n", 1000 + i, 10 + i);
        else if (i == 10)
            aq_buf_puts(&in, "{\"broken\n");
        else if (i == 11)
            aq_buf_puts(&in,
                        "{\"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {}}\n");
        else
            aq_buf_printf(&in, "{\"id\": \"p%u\", \"prompt\": [%u, 6]}\n", i, 10 + i);
    }
    job_rig_write(rig, "in.jsonl", in.data);
    aq_buf_close(&in);
    const char *options = "\"ordered\": true, \"max_tokens\": 3, \"allow_errors\": true";
    assert_true(job_rig_run(rig, options) >= 0);
    run_shards(rig, "\"max_tokens\": 3, \"allow_errors\": true");
    assert_int_equal(merge(rig, all, "\"ordered\": true"), 0);
    json_t *want = job_rig_results(rig, "out.jsonl"), *found = job_rig_results(rig, "m.jsonl");
    json_t *const lists[] = {want, found};
    for (int l = 0; l < 2; l++) {
        size_t i;
        json_t *r;
        json_array_foreach(lists[l], i, r)
        {
            json_t *response = json_object_get(r, "response");
            json_object_del(json_object_get(response, "body"), "created");
        }
    }
    assert_int_equal(json_array_size(want), 60);
    assert_true(json_equal(want, found));
    json_decref(want);
    json_decref(found);
}

/* ---- compressed files, and errors apart ---- */

static const char *const packed_names[] = {"s0.jsonl.gz", "s1.jsonl.zst", "s2.jsonl"};
static const char packed[] = "s2.jsonl s0.jsonl.gz s1.jsonl.zst";

static void skip_without_libraries(void)
{
    if (aq_compression_check(AQ_GZIP, "", NULL) < 0 || aq_compression_check(AQ_ZSTD, "", NULL) < 0)
        skip();
}

static void run_packed_shards(struct job_rig *rig, const char *more)
{
    for (unsigned k = 0; k < SHARDS; k++)
        assert_true(run_shard(rig, packed_names[k], k, more) >= 0);
}

/* The text of a file as its name says that it is compressed; malloc'd. */
static char *text_of(const struct job_rig *rig, const char *name)
{
    struct aq_members *m;
    struct aq_buf text = {0};
    char bytes[4096];
    ssize_t n;
    int fd = open(job_rig_path(rig, name), O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(aq_members_open(&m, fd, aq_compression_of_name(name), NULL, NULL, NULL), 0);
    while ((n = aq_members_read(m, bytes, sizeof(bytes))) > 0)
        aq_buf_put(&text, bytes, (size_t)n);
    assert_int_equal(n, 0);
    aq_members_close(m);
    close(fd);
    return aq_buf_take(&text);
}

static void compressed_shards_are_merged(void **state)
{
    struct job_rig *rig = *state;
    skip_without_libraries();
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    run_packed_shards(rig, "");
    assert_int_equal(merge(rig, packed, "\"ordered\": true"), 0);
    assert_same_file(rig, "m.jsonl", "out.jsonl");
    assert_same_file(rig, "m.jsonl.manifest.json", "out.jsonl.manifest.json");
    assert_int_equal(merge(rig, packed, "\"overwrite\": true"), 0);
    char *want = job_rig_sorted(rig, "out.jsonl"), *found = job_rig_sorted(rig, "m.jsonl");
    assert_string_equal(found, want);
    free(want);
    free(found);
    job_rig_change_byte(rig, "s0.jsonl.gz", job_rig_size(rig, "s0.jsonl.gz") / 2, 1);
    assert_int_equal(merge(rig, packed, "\"overwrite\": true"), -EINVAL);
    assert_true(job_rig_said(rig, "s0.jsonl.gz', shard 0/3, is not complete"));
}

static void the_output_is_compressed_as_its_name_says(void **state)
{
    struct job_rig *rig = *state;
    char options[256];
    static const char *const names[] = {"m.jsonl.gz", "m.jsonl.zst"};
    skip_without_libraries();
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    run_shards(rig, "");
    char *want = job_rig_read(rig, "out.jsonl");
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        assert_int_equal(merge_into(rig, names[i], all, "\"ordered\": true"), 0);
        char *found = text_of(rig, names[i]);
        assert_string_equal(found, want);
        free(found);
        snprintf(options, sizeof(options), "\"output\": \"%s\"", job_rig_path(rig, names[i]));
        assert_int_equal(job_rig_run(rig, options), 0);
        assert_true(job_rig_said(rig, "nothing to do: all 120 records"));
    }
    free(want);
}

/* Every fifth record is an error. */
static void write_some_bad(const struct job_rig *rig)
{
    struct aq_buf in = {0};
    for (unsigned i = 0; i < RECORDS; i++)
        aq_buf_printf(&in, "{\"id\": \"r%u\", \"prompt\": [5, 6], \"temperature\": %d}\n", i,
                      i % 5 ? 0 : -1);
    job_rig_write(rig, "in.jsonl", in.data);
    aq_buf_close(&in);
}

/* One shard has its errors apart and compressed, one apart, one among the rest. */
static void errors_of_all_shards_are_merged_with_their_results(void **state)
{
    struct job_rig *rig = *state;
    char more[256];
    skip_without_libraries();
    write_some_bad(rig);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 3);
    snprintf(more, sizeof(more), "\"errors\": \"%s\"", job_rig_path(rig, "e0.jsonl.gz"));
    assert_true(run_shard(rig, "s0.jsonl", 0, more) >= 0);
    snprintf(more, sizeof(more), "\"errors\": \"%s\"", job_rig_path(rig, "e1.jsonl"));
    assert_true(run_shard(rig, "s1.jsonl", 1, more) >= 0);
    assert_true(run_shard(rig, "s2.jsonl", 2, "") >= 0);
    assert_true(job_rig_size(rig, "e0.jsonl.gz") > 0 && job_rig_size(rig, "e1.jsonl") > 0);
    assert_int_equal(merge(rig, all, "\"ordered\": true"), 0);
    assert_same_file(rig, "m.jsonl", "out.jsonl");
    assert_same_file(rig, "m.jsonl.manifest.json", "out.jsonl.manifest.json");
    assert_true(job_rig_said(rig, "merged: 120 records (24 errors)"));
    char *line = line_of(rig, "e1.jsonl", 1);
    job_rig_append(rig, "s1.jsonl", line, strlen(line));
    job_rig_append(rig, "s1.jsonl", "\n", 1);
    free(line);
    assert_int_equal(merge(rig, all, "\"overwrite\": true"), -EINVAL);
    assert_true(job_rig_said(rig, "e1.jsonl')"));
    unlink(job_rig_path(rig, "e1.jsonl"));
    assert_int_equal(merge(rig, all, "\"overwrite\": true"), -EINVAL);
    assert_true(job_rig_said(rig, "e1.jsonl' does not exist"));
    assert_true(run_shard(rig, "s1.jsonl", 1, more) >= 0);
    assert_int_equal(merge(rig, all, "\"overwrite\": true"), 0);
}

static void a_file_of_errors_without_any_need_not_be_there(void **state)
{
    struct job_rig *rig = *state;
    char more[256];
    skip_without_libraries();
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    snprintf(more, sizeof(more), "\"overwrite\": true, \"errors\": \"%s\"",
             job_rig_path(rig, "e0.jsonl.gz"));
    assert_int_equal(run_shard(rig, "s0.jsonl", 0, more), 0);
    assert_true(job_rig_size(rig, "e0.jsonl.gz") > 0); /* a member without text */
    assert_int_equal(merge(rig, all, ""), 0);
    unlink(job_rig_path(rig, "e0.jsonl.gz"));
    assert_int_equal(merge(rig, all, "\"overwrite\": true"), 0);
}

/* All is done, so that the shard's command has nothing to do but to note it. */
static void a_file_of_errors_may_move(void **state)
{
    struct job_rig *rig = *state;
    char more[384], from[256], to[256];
    write_some_bad(rig);
    run_shards(rig, "");
    snprintf(from, sizeof(from), "%s", job_rig_path(rig, "e1.jsonl"));
    snprintf(to, sizeof(to), "%s", job_rig_path(rig, "moved.jsonl"));
    snprintf(more, sizeof(more), "\"overwrite\": true, \"errors\": \"%s\"", from);
    assert_true(run_shard(rig, "s1.jsonl", 1, more) >= 0);
    assert_int_equal(rename(from, to), 0);
    assert_not_merged(rig, all, "", "e1.jsonl' does not exist");
    snprintf(more, sizeof(more), "\"allow_change\": [\"errors_file\"], \"errors\": \"%s\"", to);
    assert_int_equal(run_shard(rig, "s1.jsonl", 1, more), 0);
    assert_true(job_rig_said(rig, "nothing to do"));
    assert_int_equal(merge(rig, all, ""), 0);
    assert_true(job_rig_said(rig, "merged: 120 records (24 errors)"));
}

static void ordered_shards_that_were_not_put_in_order_yet_are_taken(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    char from[256], to[256];
    snprintf(from, sizeof(from), "%s", job_rig_path(rig, "s1.jsonl"));
    snprintf(to, sizeof(to), "%s", job_rig_path(rig, "s1.jsonl.part"));
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(merge(rig, all, ""), 0);
}

static void a_last_line_without_its_newline_gets_one(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    job_rig_cut(rig, "s0.jsonl", job_rig_size(rig, "s0.jsonl") - 1);
    assert_int_equal(merge(rig, "s0.jsonl s1.jsonl s2.jsonl", ""), 0);
    json_t *results = job_rig_results(rig, "m.jsonl");
    assert_int_equal(json_array_size(results), RECORDS);
    json_decref(results);
}

static void empty_shards_are_shards(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 1);
    run_shards(rig, "");
    assert_not_merged(rig, "s0.jsonl s1.jsonl", "", "shard 2 of 3 is missing");
    assert_int_equal(merge(rig, all, "\"json\": true"), 0);
    json_t *o;
    assert_int_equal(aq_json_parse(&o, rig->output.data, rig->output.count, true, NULL), 0);
    assert_int_equal(json_integer_value(json_object_get(o, "records")), 1);
    assert_true(json_is_true(json_object_get(o, "merged")));
    json_decref(o);
}

/* ---- what must be there ---- */

static void what_is_missing_is_named(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    assert_not_merged(rig, "s1.jsonl", "", "shards 0, 2 of 3 are missing");
    assert_not_merged(rig, "s0.jsonl s1.jsonl no.jsonl", "", "no.jsonl' does not exist");
    assert_true(job_rig_said(rig, "shard 2 of 3 is missing"));
    char *line = line_of(rig, "s1.jsonl", 1), *end;
    json_t *first;
    assert_int_equal(aq_json_parse(&first, line, strlen(line), true, NULL), 0);
    long input_line = json_integer_value(json_object_get(first, "index")) + 1;
    json_decref(first);
    char *text = job_rig_read(rig, "s1.jsonl");
    end = strchr(text, '\n') + 1;
    job_rig_write(rig, "s1.jsonl", end);
    char want[64];
    snprintf(want, sizeof(want), "records have no result (input lines %ld)", input_line);
    assert_not_merged(rig, all, "", want);
    /* All that is wrong is said at once. */
    assert_not_merged(rig, "s1.jsonl s0.jsonl", "", "shard 2 of 3 is missing");
    assert_true(job_rig_said(rig, want));
    free(text);
    free(line);
}

static void a_shard_that_never_wrote_is_not_complete(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    job_rig_cut(rig, "s1.jsonl", 0);
    assert_not_merged(rig, all, "", "is not complete");
}

static void a_record_with_two_lines_is_refused(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    char *line = line_of(rig, "s0.jsonl", 3);
    job_rig_append(rig, "s0.jsonl", line, strlen(line));
    job_rig_append(rig, "s0.jsonl", "\n", 1);
    assert_not_merged(rig, all, "", "1 line is of a record that has one already (line 3 of ");
    free(line);
}

static void a_shard_given_twice_is_refused(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    assert_not_merged(rig, "s0.jsonl s1.jsonl s2.jsonl s1.jsonl", "", "s1.jsonl' is given twice");
    assert_int_equal(run_shard(rig, "other.jsonl", 1, ""), 0);
    assert_not_merged(rig, "s0.jsonl s1.jsonl s2.jsonl other.jsonl", "",
                      "shard 1 of 3 is given more than once");
    assert_not_merged(rig, "s0.jsonl s1.jsonl s2.jsonl other.jsonl", "\"ordered\": true",
                      "shard 1 of 3 is given more than once");
}

static void lines_of_another_shard_are_refused(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    char *line = line_of(rig, "s0.jsonl", 2);
    job_rig_append(rig, "s1.jsonl", line, strlen(line));
    job_rig_append(rig, "s1.jsonl", "\n", 1);
    assert_not_merged(rig, all, "", "1 line belongs to no record of this shard");
    free(line);
}

static void damage_is_noticed(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    char *text = job_rig_read(rig, "s2.jsonl");
    off_t at = strstr(text, "\"text\":\"") - text + 9;
    free(text);
    job_rig_change_byte(rig, "s2.jsonl", at, 1);
    assert_not_merged(rig, all, "", "damaged on the disk, or edited");
    job_rig_change_byte(rig, "s2.jsonl", at, 1);
    job_rig_change_byte(rig, "s2.jsonl", 0, 1);
    assert_not_merged(rig, all, "", "line 1 is no result");
    job_rig_change_byte(rig, "s2.jsonl", 0, 1);
    job_rig_append(rig, "s2.jsonl", "{\"id", 4);
    assert_not_merged(rig, all, "", "the last line is torn");
    job_rig_cut(rig, "s2.jsonl", job_rig_size(rig, "s2.jsonl") - 4);
    job_rig_change_byte(rig, "s2.jsonl.records", 60, 1);
    assert_not_merged(rig, all, "", "s2.jsonl.records' is damaged");
    assert_false(job_rig_said(rig, "shard 1"));
    job_rig_change_byte(rig, "s2.jsonl.records", 60, 1);
    job_rig_change_byte(rig, "s2.jsonl.manifest.json", 60, 1);
    assert_not_merged(rig, all, "", "s2.jsonl.manifest.json");
    job_rig_change_byte(rig, "s2.jsonl.manifest.json", 60, 1);
    assert_int_equal(merge(rig, all, ""), 0);
}

/* The merged file's own sums would vouch for a line that nobody vouches for. */
static void lines_that_no_sum_vouches_for_are_refused(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    char *text = job_rig_read(rig, "s1.jsonl"), *sums = job_rig_read(rig, "s1.jsonl.sums");
    off_t at = strstr(text, "\"text\":\"") - text + 9;
    free(text);
    job_rig_change_byte(rig, "s1.jsonl", at, 1);
    unlink(job_rig_path(rig, "s1.jsonl.sums"));
    assert_not_merged(rig, all, "", "s1.jsonl.sums' does not exist; the shard's own command");
    job_rig_write(rig, "s1.jsonl.sums", "aquifer-sums 1\n");
    assert_not_merged(rig, all, "", "s1.jsonl.sums' has no sum of them");
    job_rig_write(rig, "s1.jsonl.sums", sums);
    job_rig_change_byte(rig, "s1.jsonl.sums", 20, 1);
    assert_not_merged(rig, all, "", "s1.jsonl.sums' is damaged");
    /* The cure holds what it promises. */
    assert_int_equal(run_shard(rig, "s1.jsonl", 1, ""), 0);
    assert_int_equal(merge(rig, all, ""), 0);
    free(sums);
}

static void damaged_sums_of_no_line_do_no_harm(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    job_rig_append(rig, "s1.jsonl.sums", "torn", 4);
    assert_int_equal(merge(rig, all, ""), 0);
}

static void shards_that_are_not_of_one_run_are_refused(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    assert_int_equal(run_shard(rig, "other.jsonl", 2, "\"overlong\": \"clip\""), 0);
    assert_not_merged(rig, "s0.jsonl s1.jsonl other.jsonl", "",
                      "overlong                     | \"error\"");
    assert_int_equal(run_shard(rig, "few.jsonl", 2, "\"limit\": 100"), 0);
    assert_not_merged(rig, "s0.jsonl s1.jsonl few.jsonl", "", "of an input with 100 records");
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_not_merged(rig, "s0.jsonl s1.jsonl out.jsonl", "", "is not of a shard");
    char options[256];
    snprintf(options, sizeof(options), "\"output\": \"%s\", \"shard\": \"2/4\"",
             job_rig_path(rig, "four.jsonl"));
    assert_int_equal(job_rig_run(rig, options), 0);
    assert_not_merged(rig, "s0.jsonl s1.jsonl four.jsonl", "", "is one of 4 shards");
    job_rig_records(rig, RECORDS + 1);
    assert_int_equal(run_shard(rig, "longer.jsonl", 2, "\"limit\": 120"), 0);
    assert_not_merged(rig, "s0.jsonl s1.jsonl longer.jsonl", "", "input_hash");
}

/* One record more is one shard's; the others have nothing to do, and are of the longer input. */
static void shards_that_got_none_of_the_new_records_are_of_the_longer_input(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    job_rig_records(rig, RECORDS + 1);
    run_shards(rig, "");
    assert_int_equal(merge(rig, all, ""), 0);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_same_file(rig, "m.jsonl.manifest.json", "out.jsonl.manifest.json");
    for (unsigned k = 0; k < SHARDS; k++) {
        char name[64];
        json_t *status;
        snprintf(name, sizeof(name), "s%u.jsonl.status.json", k);
        assert_int_equal(aq_json_read_file(&status, job_rig_path(rig, name), 1 << 20, NULL), 0);
        assert_int_equal(json_integer_value(json_object_get(status, "of_records")), RECORDS + 1);
        json_decref(status);
    }
}

/* As a run leaves them that is cut off between its manifest and its list. */
static void a_list_of_another_input_than_the_manifest_s_is_refused(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    char *text = job_rig_read(rig, "in.jsonl"), *list = job_rig_read(rig, "s1.jsonl.records");
    strstr(text, "0.7")[2] = '8';
    job_rig_write(rig, "in.jsonl", text);
    run_shards(rig, "\"allow_change\": [\"input\"]");
    assert_int_equal(merge(rig, all, ""), 0);
    job_rig_write(rig, "s1.jsonl.records", list);
    assert_int_equal(merge(rig, all, "\"overwrite\": true"), -EINVAL);
    assert_true(job_rig_said(rig, "s1.jsonl.records' is not of the input that"));
    assert_int_equal(run_shard(rig, "s1.jsonl", 1, ""), 0);
    assert_int_equal(merge(rig, all, "\"overwrite\": true"), 0);
    free(list);
    free(text);
}

static void values_may_differ_where_that_is_allowed(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    assert_int_equal(run_shard(rig, "other.jsonl", 2, "\"overlong\": \"clip\""), 0);
    assert_int_equal(
        merge(rig, "s0.jsonl s1.jsonl other.jsonl", "\"allow_change\": [\"overlong\"]"), 0);
    assert_true(job_rig_said(rig, "overlong is \"error\" in"));
}

/* ---- the output ---- */

static void assert_holds(struct job_rig *rig, const char *name, const char *expected)
{
    char *text = job_rig_read(rig, name);
    assert_string_equal(text, expected);
    free(text);
}

static void an_output_that_is_there_is_only_renamed(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    job_rig_write(rig, "m.jsonl", "mine\n");
    assert_int_equal(merge(rig, all, ""), -EINVAL);
    assert_non_null(strstr(rig->err.text, "exists; --overwrite"));
    assert_holds(rig, "m.jsonl", "mine\n");
    /* Not before it is sure that there will be another. */
    assert_int_equal(merge(rig, "s0.jsonl s1.jsonl", "\"overwrite\": true"), -EINVAL);
    assert_false(job_rig_exists(rig, "m.jsonl.old.1"));
    assert_int_equal(merge(rig, all, "\"overwrite\": true"), 0);
    assert_holds(rig, "m.jsonl.old.1", "mine\n");
}

/* A run with --ordered that is not over has its results in FILE.part alone. */
static void results_that_are_not_in_order_yet_are_an_output(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    job_rig_write(rig, "m.jsonl.part", "mine\n");
    job_rig_write(rig, "m.jsonl.manifest.json", "of mine\n");
    assert_int_equal(merge(rig, all, ""), -EINVAL);
    assert_non_null(strstr(rig->err.text, "exists"));
    assert_holds(rig, "m.jsonl.manifest.json", "of mine\n");
    assert_false(job_rig_exists(rig, "m.jsonl.sums"));
    assert_int_equal(merge(rig, all, "\"overwrite\": true"), 0);
    assert_holds(rig, "m.jsonl.part.old.1", "mine\n");
    assert_true(job_rig_exists(rig, "m.jsonl.manifest.json.old.1"));
}

/* With --overwrite, and where FILE itself is gone. */
static void nothing_of_the_output_before_stays_beside_the_new_one(void **state)
{
    static const char *const endings[] = {".part",  ".sums",    ".manifest.json", ".status.json",
                                          ".stale", ".records", ".inflight",      ".damaged"};
    struct job_rig *rig = *state;
    char name[64];
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    job_rig_write(rig, "m.jsonl", "mine\n");
    for (int attempt = 1; attempt <= 2; attempt++) {
        for (size_t i = 0; i < AQ_ARRAY_LEN(endings); i++) {
            snprintf(name, sizeof(name), "m.jsonl%s", endings[i]);
            job_rig_write(rig, name, i == 0 && attempt == 2 ? "" : "mine\n");
        }
        assert_int_equal(merge(rig, all, attempt == 1 ? "\"overwrite\": true" : ""), 0);
        for (size_t i = 0; i < AQ_ARRAY_LEN(endings); i++) {
            snprintf(name, sizeof(name), "m.jsonl%s.old.%d", endings[i], attempt);
            assert_true(job_rig_exists(rig, name));
            snprintf(name, sizeof(name), "m.jsonl%s", endings[i]);
            assert_true(job_rig_exists(rig, name) == (i == 1 || i == 2));
        }
        unlink(job_rig_path(rig, "m.jsonl"));
        unlink(job_rig_path(rig, "m.jsonl.manifest.json"));
        unlink(job_rig_path(rig, "m.jsonl.sums"));
    }
}

static void files_of_a_run_that_is_not_over_are_left_alone(void **state)
{
    struct job_rig *rig = *state;
    struct aq_lock *lock;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    static const char *const locks[] = {"m.jsonl.lock", "s1.jsonl.lock"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(locks); i++) {
        assert_int_equal(aq_lock_open(&lock, job_rig_path(rig, locks[i]), NULL), 0);
        assert_int_equal(merge(rig, all, "\"overwrite\": true"), -EINVAL);
        assert_true(i ? job_rig_said(rig, "s1.jsonl': its run is not over")
                      : strstr(rig->err.text, "is held by process") != NULL);
        assert_false(job_rig_exists(rig, "m.jsonl"));
        assert_true(job_rig_exists(rig, locks[i]));
        aq_lock_close(lock);
    }
    job_rig_write(rig, "s1.jsonl.lock", "99999 of a run that was killed\n");
    assert_int_equal(merge(rig, all, ""), 0);
}

static void the_output_is_no_file_of_a_shard(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    char from[256], to[256];
    snprintf(from, sizeof(from), "%s", job_rig_path(rig, "s1.jsonl"));
    snprintf(to, sizeof(to), "%s", job_rig_path(rig, "m.jsonl.sums"));
    assert_int_equal(link(from, to), 0);
    assert_int_equal(merge(rig, all, ""), -EINVAL);
    assert_non_null(strstr(rig->err.text, "is also the output's"));
    assert_int_equal(merge_into(rig, "s1.jsonl", all, "\"overwrite\": true"), -EINVAL);
    assert_non_null(strstr(rig->err.text, "is also the output's"));
    assert_int_equal(unlink(to), 0);
    snprintf(to, sizeof(to), "%s", job_rig_path(rig, "m.jsonl.tmp")); /* written before its name */
    assert_int_equal(link(from, to), 0);
    assert_int_equal(merge(rig, all, ""), -EINVAL);
    assert_non_null(strstr(rig->err.text, "is also the output's"));
    assert_true(job_rig_exists(rig, "m.jsonl.tmp"));
    assert_int_equal(unlink(to), 0);
    assert_false(job_rig_said(rig, "its run is not over"));
}

static void an_interrupted_merge_leaves_nothing(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    run_shards(rig, "");
    rig->interrupt = true;
    assert_int_equal(merge(rig, all, ""), -EINTR);
    assert_false(job_rig_exists(rig, "m.jsonl"));
    assert_false(job_rig_exists(rig, "m.jsonl.tmp"));
    assert_false(job_rig_exists(rig, "m.jsonl.manifest.json"));
    rig->interrupt = false;
    assert_int_equal(merge(rig, all, ""), 0);
}

#define RIG(test) cmocka_unit_test_setup_teardown(test, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    RIG(shards_become_the_file_of_one_run),
    RIG(a_run_goes_on_with_merged_results),
    RIG(ordered_gives_the_order_of_the_input),
    RIG(records_of_all_forms_keep_their_order),
    RIG(compressed_shards_are_merged),
    RIG(the_output_is_compressed_as_its_name_says),
    RIG(errors_of_all_shards_are_merged_with_their_results),
    RIG(a_file_of_errors_without_any_need_not_be_there),
    RIG(a_file_of_errors_may_move),
    RIG(ordered_shards_that_were_not_put_in_order_yet_are_taken),
    RIG(a_last_line_without_its_newline_gets_one),
    RIG(empty_shards_are_shards),
    RIG(what_is_missing_is_named),
    RIG(a_shard_that_never_wrote_is_not_complete),
    RIG(a_record_with_two_lines_is_refused),
    RIG(a_shard_given_twice_is_refused),
    RIG(lines_of_another_shard_are_refused),
    RIG(damage_is_noticed),
    RIG(lines_that_no_sum_vouches_for_are_refused),
    RIG(damaged_sums_of_no_line_do_no_harm),
    RIG(shards_that_are_not_of_one_run_are_refused),
    RIG(shards_that_got_none_of_the_new_records_are_of_the_longer_input),
    RIG(a_list_of_another_input_than_the_manifest_s_is_refused),
    RIG(values_may_differ_where_that_is_allowed),
    RIG(an_output_that_is_there_is_only_renamed),
    RIG(results_that_are_not_in_order_yet_are_an_output),
    RIG(nothing_of_the_output_before_stays_beside_the_new_one),
    RIG(files_of_a_run_that_is_not_over_are_left_alone),
    RIG(the_output_is_no_file_of_a_shard),
    RIG(an_interrupted_merge_leaves_nothing),
};

AQ_TEST_MAIN(tests)
