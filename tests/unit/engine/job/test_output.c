/* SPDX-License-Identifier: Apache-2.0
 * Outputs and reports that are no plain new files: links, pipes, devices, folders, and names that
 * stand for something else already. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/file.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORDS = 12 };

/* Runs with this output, all else as the text says; %s stands for the rig's folder. */
static int run_to(struct job_rig *rig, const char *output, const char *more)
{
    char options[1024];
    snprintf(options, sizeof(options), "\"output\": \"%s\"%s%s", job_rig_path(rig, output),
             *more ? ", " : "", more);
    return job_rig_run(rig, options);
}

static void link_to(struct job_rig *rig, const char *target, const char *name)
{
    assert_int_equal(symlink(target, job_rig_path(rig, name)), 0);
}

static bool is_link(struct job_rig *rig, const char *name)
{
    struct stat st;
    return lstat(job_rig_path(rig, name), &st) == 0 && S_ISLNK(st.st_mode);
}

static void assert_lines(struct job_rig *rig, const char *name, size_t count)
{
    json_t *results = job_rig_results(rig, name);
    assert_int_equal(json_array_size(results), count);
    json_decref(results);
}

static void assert_says(const struct job_rig *rig, const char *text)
{
    if (!strstr(rig->err.text, text))
        fail_msg("expected '%s', found '%s'", text, rig->err.text);
}

/* ---- links ---- */

static void everything_lies_beside_what_a_link_leads_to(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    link_to(rig, "second", "first");
    link_to(rig, job_rig_path(rig, "real"), "second"); /* nothing there yet */
    assert_int_equal(run_to(rig, "first", ""), 0);
    assert_lines(rig, "real", RECORDS);
    assert_true(is_link(rig, "first") && is_link(rig, "second"));
    assert_true(job_rig_exists(rig, "real.manifest.json"));
    assert_true(job_rig_exists(rig, "real.status.json"));
    assert_false(job_rig_exists(rig, "first.manifest.json"));
    assert_false(job_rig_exists(rig, "real.lock"));
    fake_engine.loads = 0;
    assert_int_equal(run_to(rig, "real", ""), 0);
    assert_int_equal(fake_engine.loads, 0); /* by its own name it is the same output */
}

static void a_link_stays_a_link(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    fake_engine.bad_token = 13;
    link_to(rig, "real", "link");
    assert_int_equal(run_to(rig, "link", "\"ordered\": true"), 3);
    assert_int_equal(run_to(rig, "link", "\"ordered\": true, \"retry_errors\": true"), 3);
    assert_int_equal(run_to(rig, "link", "\"overwrite\": true"), 3);
    assert_true(is_link(rig, "link"));
    assert_false(is_link(rig, "real.old.1"));
    assert_lines(rig, "real", RECORDS);
    assert_lines(rig, "real.old.1", RECORDS);
}

static void two_names_of_a_file_have_one_lock(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    link_to(rig, "real", "link");
    int fd = open(job_rig_path(rig, "real.lock"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(run_to(rig, "link", ""), -EINVAL);
    assert_says(rig, "real.lock");
    close(fd);
    assert_int_equal(run_to(rig, "link", ""), 0); /* its holder is dead now */
}

static void links_in_a_circle_are_an_error(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    link_to(rig, "b", "a");
    link_to(rig, "a", "b");
    assert_int_equal(run_to(rig, "a", ""), -EINVAL);
    assert_says(rig, strerror(ELOOP));
}

/* ---- what is no file ---- */

static void a_folder_is_refused(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, "\"output\": \"/tmp\""), -EINVAL);
    assert_says(rig, "directory");
    assert_int_equal(run_to(rig, "nowhere/out", ""), -EINVAL);
    assert_says(rig, "cannot be written");
    assert_int_equal(run_to(rig, "in.jsonl/out", ""), -EINVAL);
    assert_says(rig, strerror(ENOTDIR));
}

static void a_pipe_gets_lines_and_nothing_beside_it(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, RECORDS);
    assert_int_equal(mkfifo(job_rig_path(rig, "pipe"), 0600), 0);
    int fd = open(job_rig_path(rig, "pipe"), O_RDWR | O_NONBLOCK);
    assert_int_equal(run_to(rig, "pipe", "\"ordered\": true"), -EINVAL);
    assert_int_equal(run_to(rig, "pipe", "\"overwrite\": true"), -EINVAL);
    assert_int_equal(run_to(rig, "pipe", ""), 0);
    char text[1 << 16];
    ssize_t n = read(fd, text, sizeof(text));
    size_t lines = 0;
    for (ssize_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    assert_int_equal(lines, RECORDS);
    assert_false(job_rig_exists(rig, "pipe.manifest.json"));
    assert_false(job_rig_exists(rig, "pipe.lock"));
    close(fd);
}

/* ---- names that clash ---- */

static void assert_clash(struct job_rig *rig, const char *options)
{
    char *input = job_rig_read(rig, "in.jsonl"), *output = job_rig_read(rig, "out.jsonl");
    assert_int_equal(job_rig_run(rig, options), -EINVAL);
    assert_says(rig, "is also");
    char *input_after = job_rig_read(rig, "in.jsonl"), *after = job_rig_read(rig, "out.jsonl");
    assert_string_equal(input_after, input);
    assert_string_equal(after, output);
    free(after);
    free(input_after);
    free(output);
    free(input);
}

static void a_report_and_a_trace_replace_nothing_of_the_job(void **state)
{
    static const char *const names[] = {"in.jsonl", "out.jsonl", "out.jsonl.manifest.json",
                                        "out.jsonl.status.json", "out.jsonl.part"};
    struct job_rig *rig = *state;
    char options[1024];
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, ""), 0);
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        for (int trace = 0; trace < 2; trace++) {
            snprintf(options, sizeof(options), "\"%s\": \"%s/../%s/%s\"",
                     trace ? "trace" : "report", rig->dir, strrchr(rig->dir, '/') + 1, names[i]);
            assert_clash(rig, options);
        }
    }
    snprintf(options, sizeof(options), "\"report\": \"%s/told\", \"trace\": \"%s/./told\"",
             rig->dir, rig->dir);
    assert_clash(rig, options);
}

/* Where files are written before they get their names. */
static void temporary_files_replace_nothing_of_the_job(void **state)
{
    static const char *const outputs[] = {"out", "out.part", "out.manifest.json", "out.status.json",
                                          "out.sums"};
    struct job_rig *rig = *state;
    char options[900], name[64];
    for (size_t i = 0; i < AQ_ARRAY_LEN(outputs); i++) {
        snprintf(name, sizeof(name), "%s.tmp", outputs[i]);
        job_rig_write(rig, name, "{\"prompt\": [5]}\n");
        snprintf(options, sizeof(options), "\"input\": \"%s\"", job_rig_path(rig, name));
        assert_int_equal(run_to(rig, "out", options), -EINVAL);
        assert_says(rig, "is also");
        assert_false(job_rig_exists(rig, "out"));
    }
    snprintf(options, sizeof(options), "\"input\": \"%s\", \"report\": \"%s\"",
             job_rig_path(rig, "out.tmp"), job_rig_path(rig, "out"));
    assert_int_equal(run_to(rig, "other", options), -EINVAL); /* the report's */
    assert_says(rig, "is also the input");
    snprintf(options, sizeof(options), "\"report\": \"%s\"", job_rig_path(rig, "out.sums.tmp"));
    assert_int_equal(run_to(rig, "out", options), -EINVAL);
    assert_says(rig, "is also");
}

static void the_input_is_not_written_over(void **state)
{
    struct job_rig *rig = *state;
    char options[1024];
    job_rig_records(rig, RECORDS);
    assert_int_equal(job_rig_run(rig, ""), 0);
    link_to(rig, "in.jsonl", "other");
    snprintf(options, sizeof(options), "\"output\": \"%s\", \"overwrite\": true",
             job_rig_path(rig, "other"));
    assert_clash(rig, options);
    assert_int_equal(link(job_rig_path(rig, "in.jsonl"), job_rig_path(rig, "hard")), 0);
    snprintf(options, sizeof(options), "\"output\": \"%s\", \"overwrite\": true",
             job_rig_path(rig, "hard"));
    assert_clash(rig, options);
}

/* The lock of a file of errors is created and removed again. */
static void the_lock_of_the_errors_is_none_of_the_other_files(void **state)
{
    struct job_rig *rig = *state;
    char options[900];
    job_rig_records(rig, RECORDS);
    assert_int_equal(run_to(rig, "x.lock", ""), 0);
    assert_int_equal(job_rig_run(rig, ""), 0);
    snprintf(options, sizeof(options), "\"errors\": \"%s\", \"allow_change\": [\"errors_file\"]",
             job_rig_path(rig, "x"));
    assert_int_equal(run_to(rig, "x.lock", options), -EINVAL);
    assert_says(rig, "is also the output's file");
    assert_lines(rig, "x.lock", RECORDS);
    assert_int_equal(link(job_rig_path(rig, "in.jsonl"), job_rig_path(rig, "d.lock")), 0);
    snprintf(options, sizeof(options), "\"input\": \"%s\", \"errors\": \"%s\"",
             job_rig_path(rig, "d.lock"), job_rig_path(rig, "d"));
    assert_clash(rig, options);
    static const char *const others[] = {"report", "metrics_file", "trace"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(others); i++) {
        snprintf(options, sizeof(options), "\"%s\": \"%s\", \"errors\": \"%s\"", others[i],
                 job_rig_path(rig, "e.lock"), job_rig_path(rig, "e"));
        assert_int_equal(run_to(rig, "out", options), -EINVAL);
        assert_says(rig, "is also the");
    }
    snprintf(options, sizeof(options), "\"errors\": \"%s\"", job_rig_path(rig, "out.part"));
    link_to(rig, "in.jsonl", "out.part.lock"); /* the output's own part is named first */
    assert_int_equal(run_to(rig, "out", options), -EINVAL);
    assert_lines(rig, "in.jsonl", RECORDS);
}

/* What no run has written is not emptied, whatever its name says. */
static void a_lock_that_is_no_lock_stays_as_it_is(void **state)
{
    static const char *const contents[] = {"{\"prompt\": [1]}\n", "12 a\n13 b\n", "notes",
                                           "12 a\r\n", "12a\n"};
    struct job_rig *rig = *state;
    char options[256];
    snprintf(options, sizeof(options), "\"errors\": \"%s\"", job_rig_path(rig, "bad"));
    job_rig_records(rig, RECORDS);
    for (size_t i = 0; i < AQ_ARRAY_LEN(contents); i++) {
        for (int errors = 0; errors < 2; errors++) {
            const char *name = errors ? "bad.lock" : "out.lock";
            job_rig_write(rig, name, contents[i]);
            assert_int_equal(run_to(rig, "out", options), -EINVAL);
            assert_says(rig, "not a lock");
            char *text = job_rig_read(rig, name);
            assert_string_equal(text, contents[i]);
            free(text);
            unlink(job_rig_path(rig, name));
        }
    }
    /* What a killed run leaves, and what a power cut makes of it, is in nobody's way. */
    job_rig_write(rig, "out.lock", "4711 some-host\n");
    job_rig_write(rig, "bad.lock", "");
    job_rig_append(rig, "bad.lock", "\0\0\0\0\0", 5);
    assert_int_equal(run_to(rig, "out", options), 0);
    assert_false(job_rig_exists(rig, "out.lock") || job_rig_exists(rig, "bad.lock"));
}

/* ---- files that are replaced ---- */

static void a_report_goes_through_links_and_pipes(void **state)
{
    struct job_rig *rig = *state;
    char options[1024], text[1 << 16];
    job_rig_records(rig, RECORDS);
    link_to(rig, "report.real", "report");
    snprintf(options, sizeof(options), "\"report\": \"%s\"", job_rig_path(rig, "report"));
    assert_int_equal(job_rig_run(rig, options), 0);
    assert_true(is_link(rig, "report"));
    assert_false(is_link(rig, "report.real"));
    assert_int_equal(mkfifo(job_rig_path(rig, "pipe"), 0600), 0);
    snprintf(options, sizeof(options), "\"report\": \"%s\"", job_rig_path(rig, "pipe"));
    assert_int_equal(job_rig_run(rig, options), 0); /* nobody reads: a warning, and no wait */
    assert_non_null(strstr(rig->lines.data, "report"));
    int fd = open(job_rig_path(rig, "pipe"), O_RDWR | O_NONBLOCK);
    assert_int_equal(job_rig_run(rig, options), 0);
    ssize_t n = read(fd, text, sizeof(text));
    assert_true(n > 2 && text[0] == '{' && text[n - 1] == '}');
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    close(fd);
}

static void the_same_file_is_seen_through_every_name(void **state)
{
    struct job_rig *rig = *state;
    char around[256];
    job_rig_write(rig, "here", "");
    link_to(rig, "here", "link");
    link_to(rig, "away", "dangling");
    snprintf(around, sizeof(around), "%s/../%s/away", rig->dir, strrchr(rig->dir, '/') + 1);
    assert_true(aq_file_same(job_rig_path(rig, "here"), job_rig_path(rig, "link")));
    assert_true(aq_file_same(job_rig_path(rig, "dangling"), around)); /* neither is there */
    assert_false(aq_file_same(job_rig_path(rig, "here"), around));
    assert_false(aq_file_same("/nowhere/x", "/nowhere/x"));
    char *name = aq_file_resolve("no-link");
    assert_string_equal(name, "no-link");
    free(name);
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    T(everything_lies_beside_what_a_link_leads_to),
    T(a_link_stays_a_link),
    T(two_names_of_a_file_have_one_lock),
    T(links_in_a_circle_are_an_error),
    T(a_folder_is_refused),
    T(a_pipe_gets_lines_and_nothing_beside_it),
    T(a_report_and_a_trace_replace_nothing_of_the_job),
    T(temporary_files_replace_nothing_of_the_job),
    T(the_input_is_not_written_over),
    T(the_lock_of_the_errors_is_none_of_the_other_files),
    T(a_lock_that_is_no_lock_stays_as_it_is),
    T(a_report_goes_through_links_and_pipes),
    T(the_same_file_is_seen_through_every_name),
};

AQ_TEST_MAIN(tests)
