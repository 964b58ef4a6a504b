/* SPDX-License-Identifier: Apache-2.0
 * Results that are compressed, and error records in a file of their own: the same lines, gone on
 * with, mended and put in order as those of one plain file are; and metrics beside them. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/compress.h"
#include "base/file.h"
#include "base/prng.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORDS = 40, FIRST = 25, BAD_EVERY = 9 };

/* The text of a file, unpacked where its name says so; malloc'd. */
static char *text_of(struct job_rig *rig, const char *name)
{
    enum aq_compression c = aq_compression_of_name(name);
    if (c == AQ_PLAIN)
        return job_rig_read(rig, name);
    struct aq_buf text = {0};
    struct aq_members *m;
    char some[4096];
    ssize_t n;
    int fd = aq_file_open(job_rig_path(rig, name), O_RDONLY, 0);
    assert_true(fd >= 0);
    assert_int_equal(aq_members_open(&m, fd, c, NULL, NULL, NULL), 0);
    while ((n = aq_members_read(m, some, sizeof(some))) > 0)
        aq_buf_put(&text, some, (size_t)n);
    assert_int_equal(n, 0);
    assert_int_equal(aq_members_end(m), job_rig_size(rig, name)); /* and nothing else */
    aq_members_close(m);
    aq_file_close(fd);
    aq_buf_puts(&text, "");
    return aq_buf_take(&text);
}

/* The lines of a file, sorted; malloc'd. */
static char *lines_of(struct job_rig *rig, const char *name)
{
    char *text = text_of(rig, name);
    job_rig_write(rig, "unpacked", text ? text : "");
    free(text);
    return job_rig_sorted(rig, "unpacked");
}

static void assert_lines(struct job_rig *rig, const char *name, const char *want)
{
    char *got = lines_of(rig, name);
    assert_string_equal(got, want);
    free(got);
}

static int run_to(struct job_rig *rig, const char *name, const char *more)
{
    char options[1024];
    snprintf(options, sizeof(options), "\"output\": \"%s\"%s%s", job_rig_path(rig, name),
             *more ? ", " : "", more);
    return job_rig_run(rig, options);
}

/* Records of which some are errors. */
static void write_records(struct job_rig *rig)
{
    struct aq_buf b = {0};
    for (unsigned i = 0; i < RECORDS; i++)
        aq_buf_printf(&b, "{\"id\": \"r%u\", \"prompt\": [%u, 9], \"max_tokens\": %d}\n", i,
                      10 + i % 50, i % BAD_EVERY == 4 ? -1 : 1 + (int)(i * 7 % 23));
    job_rig_write(rig, "in.jsonl", b.data);
    aq_buf_close(&b);
}

static const char *const packed_names[] = {"out.jsonl.gz", "out.jsonl.zst"};

typedef void check_fn(struct job_rig *rig, const char *name, const char *want);

/* Over each compression that this build has; want: the sorted lines. */
static void with_each(struct job_rig *rig, check_fn *check)
{
    write_records(rig);
    assert_int_equal(run_to(rig, "plain.jsonl", ""), 3);
    char *want = job_rig_sorted(rig, "plain.jsonl");
    for (size_t i = 0; i < AQ_ARRAY_LEN(packed_names); i++)
        if (aq_compression_check(aq_compression_of_name(packed_names[i]), "f", NULL) == 0)
            check(rig, packed_names[i], want);
    free(want);
}

/* ---- compressed results ---- */

static void check_same(struct job_rig *rig, const char *name, const char *want)
{
    assert_int_equal(run_to(rig, name, ""), 3);
    assert_lines(rig, name, want);
    fake_engine.submitted = 0;
    assert_int_equal(run_to(rig, name, ""), 0);
    assert_true(job_rig_said(rig, "nothing to do"));
    assert_int_equal(fake_engine.submitted, 0);
    char *first = text_of(rig, name), *ordered;
    assert_int_equal(run_to(rig, name, "\"ordered\": true, \"overwrite\": true"), 3);
    ordered = text_of(rig, name);
    assert_non_null(strstr(ordered, "\"id\":\"r1\""));
    assert_true(strstr(ordered, "\"id\":\"r1\"") < strstr(ordered, "\"id\":\"r10\""));
    assert_int_equal(strlen(ordered), strlen(first));
    free(first);
    free(ordered);
    assert_lines(rig, name, want);
}

static void compressed_results_are_the_same_lines(void **state)
{
    with_each(*state, check_same);
}

/* Two members, the second of which is cut at each byte in turn. */
static void check_torn(struct job_rig *rig, const char *name, const char *want)
{
    char limit[32], sums[64], *whole;
    size_t bytes;
    snprintf(limit, sizeof(limit), "\"limit\": %d", FIRST);
    snprintf(sums, sizeof(sums), "%s.sums", name);
    assert_int_equal(run_to(rig, name, limit), 3);
    off_t first = job_rig_size(rig, name);
    char *first_sums = job_rig_read(rig, sums);
    assert_int_equal(run_to(rig, name, ""), 3);
    assert_int_equal(aq_read_file(&whole, &bytes, job_rig_path(rig, name), 1 << 20, NULL), 0);
    for (off_t at = first + 1; at < (off_t)bytes; at += 31) {
        assert_int_equal(aq_file_replace(job_rig_path(rig, name), whole, (size_t)at, false, NULL),
                         0);
        job_rig_write(rig, sums, first_sums);
        fake_engine.submitted = 0;
        assert_int_equal(run_to(rig, name, ""), 3);
        assert_true(job_rig_said(rig, "torn"));
        assert_in_range(fake_engine.submitted, 1, RECORDS - FIRST);
        assert_lines(rig, name, want);
    }
    free(whole);
    free(first_sums);
    assert_false(job_rig_exists(rig, "out.jsonl.gz.damaged"));
    assert_false(job_rig_exists(rig, "out.jsonl.zst.damaged"));
}

static void a_torn_member_is_cut_off_and_its_records_run_again(void **state)
{
    with_each(*state, check_torn);
}

static void check_damage(struct job_rig *rig, const char *name, const char *want)
{
    char limit[32], damaged[64];
    unsigned harmless = 0;
    snprintf(limit, sizeof(limit), "\"limit\": %d", FIRST);
    snprintf(damaged, sizeof(damaged), "%s.damaged", name);
    for (uint32_t round = 0; round < 40; round++) {
        assert_true(run_to(rig, name, "\"overwrite\": true, \"limit\": 20") >= 0);
        off_t first = job_rig_size(rig, name);
        assert_int_equal(run_to(rig, name, ""), 3);
        off_t at = (off_t)aq_prng_below(5, round, 0, (uint64_t)first);
        job_rig_change_byte(rig, name, at, (char)(1 << aq_prng_below(5, round, 1, 8)));
        fake_engine.submitted = 0;
        int rc = run_to(rig, name, "");
        assert_true(rc == 0 || rc == 3);
        assert_lines(rig, name, want);
        if (rc == 0 && !fake_engine.submitted) {
            harmless++;
            continue;
        }
        assert_true(job_rig_said(rig, "is not as it was written"));
        assert_true(job_rig_exists(rig, damaged) || at < 16); /* of no header nothing is left */
    }
    assert_true(harmless < 5);
}

static void a_changed_byte_costs_its_member_and_is_said(void **state)
{
    with_each(*state, check_damage);
}

/* What compressors make of nothing is a file that they take; no bytes at all are none. */
static void assert_empty(struct job_rig *rig, const char *name)
{
    struct aq_buf none = {0};
    char *found;
    size_t bytes;
    assert_int_equal(aq_compress(&none, aq_compression_of_name(name), "", 0), 0);
    assert_int_equal(aq_read_file(&found, &bytes, job_rig_path(rig, name), 1 << 20, NULL), 0);
    assert_int_equal(bytes, none.count);
    assert_memory_equal(found, none.data, bytes);
    free(found);
    aq_buf_close(&none);
}

static void check_empty(struct job_rig *rig, const char *name, const char *want)
{
    (void)want;
    char errors[300], options[400], *ending = strrchr(name, '.');
    snprintf(errors, sizeof(errors), "bad.jsonl%s", ending);
    const char *const orders[] = {"", ", \"ordered\": true"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(orders); i++) {
        snprintf(options, sizeof(options), "\"overwrite\": true, \"errors\": \"%s\"%s",
                 job_rig_path(rig, errors), orders[i]);
        job_rig_records(rig, 3);
        assert_int_equal(run_to(rig, name, options), 0);
        assert_empty(rig, errors);
        fake_engine.bad_token = 10; /* the prompt of r0 begins with it */
        job_rig_records(rig, 1);
        assert_int_equal(run_to(rig, name, options), 3);
        assert_empty(rig, name);
        /* It is gone on with, and what comes goes behind it. */
        fake_engine.bad_token = UINT64_MAX;
        snprintf(options, sizeof(options), "\"retry_errors\": true, \"errors\": \"%s\"%s",
                 job_rig_path(rig, errors), orders[i]);
        assert_int_equal(run_to(rig, name, options), 0);
        assert_false(job_rig_said(rig, "torn"));
        assert_empty(rig, errors);
        char *text = text_of(rig, name);
        assert_int_equal(strncmp(text, "{\"id\":\"r0\"", 10), 0);
        free(text);
    }
    /* Files without a line are nobody's results. */
    snprintf(options, sizeof(options), "%s.manifest.json", name);
    unlink(job_rig_path(rig, options));
    unlink(job_rig_path(rig, name));
    snprintf(options, sizeof(options), "\"errors\": \"%s\"", job_rig_path(rig, errors));
    assert_int_equal(run_to(rig, name, options), 0);
}

static void a_compressed_file_without_a_line_is_one(void **state)
{
    with_each(*state, check_empty);
}

enum { LARGE_BYTES = 64 << 20, LITTLE_KIB = 24 << 10 };

/* A whole member but for its checksum, of much text; made by a process of its own, so that this one
 * has never had so much memory. */
static void write_large(struct job_rig *rig, const char *name, const char *behind, size_t bytes)
{
    pid_t child = fork();
    if (child == 0) {
        struct aq_buf text = {0}, file = {0};
        while (text.count < LARGE_BYTES)
            aq_buf_puts(&text, "a line of somebody's who has packed all of them together\n");
        bool good = aq_compress(&file, AQ_GZIP, text.data, text.count) == 0;
        file.data[file.count - 6] ^= 1;
        aq_buf_put(&file, behind, bytes);
        good &= aq_file_replace(job_rig_path(rig, name), file.data, file.count, false, NULL) == 0;
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static long peak_kib(void)
{
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return u.ru_maxrss;
}

static void what_is_saved_of_a_large_member_takes_little_memory(void **state)
{
    struct job_rig *rig = *state;
    if (aq_compression_check(AQ_GZIP, "f", NULL) < 0)
        skip();
    char *whole;
    size_t bytes;
    write_records(rig);
    assert_int_equal(run_to(rig, "out.jsonl.gz", ""), 3);
    char *want = lines_of(rig, "out.jsonl.gz");
    assert_int_equal(aq_read_file(&whole, &bytes, job_rig_path(rig, "out.jsonl.gz"), 1 << 20, NULL),
                     0);
    long before = peak_kib();
    for (int torn = 0; torn < 2; torn++) { /* in front of the others, and alone */
        write_large(rig, "out.jsonl.gz", whole, torn ? 0 : bytes);
        fake_engine.submitted = 0;
        assert_int_equal(run_to(rig, "out.jsonl.gz", ""), torn ? 3 : 0);
        assert_int_equal(fake_engine.submitted > 0, torn);
        assert_true(job_rig_size(rig, "out.jsonl.gz.damaged") >= LARGE_BYTES);
        unlink(job_rig_path(rig, "out.jsonl.gz.damaged"));
    }
    long more = peak_kib() - before;
    if (more > LITTLE_KIB)
        fail_msg("it took %ld KiB", more);
    assert_lines(rig, "out.jsonl.gz", want);
    free(whole);
    free(want);
}

static void check_content(struct job_rig *rig, const char *name, const char *want)
{
    char *text = job_rig_read(rig, "plain.jsonl");
    assert_int_equal(run_to(rig, name, ""), 3);
    job_rig_write(rig, name, text); /* somebody has unpacked it under its own name */
    assert_int_equal(run_to(rig, name, ""), -EINVAL);
    assert_non_null(strstr(rig->err.text, "as its name says"));
    free(text);
    char member[64];
    snprintf(member, sizeof(member), "%s.manifest.json", name);
    for (size_t i = 0; i < 2; i++) { /* and renamed: the manifest tells */
        const char *const ends[] = {"", ".manifest.json"};
        char to[64];
        snprintf(member, sizeof(member), "%s%s", name, ends[i]);
        snprintf(to, sizeof(to), "renamed.jsonl%s", ends[i]);
        assert_int_equal(rename(job_rig_path(rig, member), job_rig_path(rig, to)), 0);
    }
    assert_int_equal(run_to(rig, "renamed.jsonl", ""), -EINVAL);
    assert_true(job_rig_said(rig, "compression"));
    assert_int_equal(run_to(rig, "renamed.jsonl", "\"allow_change\": [\"compression\"]"), 0);
    assert_lines(rig, "renamed.jsonl", want);
    unlink(job_rig_path(rig, "renamed.jsonl.sums"));
}

static void a_name_that_says_otherwise_is_refused(void **state)
{
    with_each(*state, check_content);
}

/* ---- errors in a file of their own ---- */

static const char *errors_option(struct job_rig *rig, const char *name, const char *more)
{
    static char text[512];
    snprintf(text, sizeof(text), "\"errors\": \"%s\"%s%s", job_rig_path(rig, name),
             *more ? ", " : "", more);
    return text;
}

static unsigned count_errors(const char *lines, unsigned *ret_others)
{
    unsigned errors = 0;
    *ret_others = 0;
    for (const char *at = lines; *at; at = strchr(at, '\n') + 1) {
        char *line = strndup(at, strcspn(at, "\n"));
        bool error = strstr(line, "\"error\":{") != NULL;
        errors += error;
        *ret_others += !error;
        free(line);
    }
    return errors;
}

/* The results have no error and the errors nothing else, and together they are these lines. */
static void assert_apart(struct job_rig *rig, const char *results, const char *errors,
                         const char *want)
{
    unsigned others;
    char *a = lines_of(rig, results), *b = lines_of(rig, errors), *both = NULL;
    assert_int_equal(count_errors(a, &others), 0);
    assert_int_equal(count_errors(b, &others), (RECORDS + BAD_EVERY - 5) / BAD_EVERY);
    assert_int_equal(others, 0);
    assert_true(asprintf(&both, "%s%s", a, b) > 0);
    job_rig_write(rig, "both", both);
    free(a);
    free(b);
    free(both);
    a = job_rig_sorted(rig, "both");
    assert_string_equal(a, want);
    free(a);
}

static void errors_go_to_their_file_and_stay_done(void **state)
{
    struct job_rig *rig = *state;
    write_records(rig);
    assert_int_equal(run_to(rig, "plain.jsonl", ""), 3);
    char *want = job_rig_sorted(rig, "plain.jsonl");
    static const char *const more[] = {"", "\"ordered\": true"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(more); i++) {
        char overwrite[64];
        snprintf(overwrite, sizeof(overwrite), "\"overwrite\": true%s%s", *more[i] ? ", " : "",
                 more[i]);
        assert_int_equal(job_rig_run(rig, errors_option(rig, "err.jsonl", overwrite)), 3);
        assert_apart(rig, "out.jsonl", "err.jsonl", want);
        fake_engine.submitted = 0;
        assert_int_equal(job_rig_run(rig, errors_option(rig, "err.jsonl", more[i])), 0);
        assert_true(job_rig_said(rig, "nothing to do"));
        assert_int_equal(fake_engine.submitted, 0);
    }
    assert_true(job_rig_exists(rig, "err.jsonl.old.1")); /* set aside, not deleted */
    free(want);
}

static void errors_are_tried_again_alone(void **state)
{
    struct job_rig *rig = *state;
    write_records(rig);
    assert_int_equal(run_to(rig, "plain.jsonl", ""), 3);
    char *want = job_rig_sorted(rig, "plain.jsonl");
    assert_int_equal(job_rig_run(rig, errors_option(rig, "err.jsonl.gz", "")), 3);
    char *before = job_rig_read(rig, "out.jsonl");
    fake_engine.submitted = 0;
    assert_int_equal(job_rig_run(rig, errors_option(rig, "err.jsonl.gz", "\"retry_errors\": true")),
                     3);
    assert_int_equal(fake_engine.submitted, 0); /* they are invalid: the same errors again */
    assert_true(job_rig_said(rig, "taken out to be tried again"));
    assert_apart(rig, "out.jsonl", "err.jsonl.gz", want);
    char *after = job_rig_read(rig, "out.jsonl");
    assert_string_equal(before, after);
    assert_int_equal(job_rig_run(rig, errors_option(rig, "err.jsonl.gz", "")), 0);
    assert_false(job_rig_said(rig, "no longer there"));
    free(before);
    free(after);
    free(want);
}

static void damage_to_either_file_is_found(void **state)
{
    struct job_rig *rig = *state;
    write_records(rig);
    assert_int_equal(run_to(rig, "plain.jsonl", ""), 3);
    char *want = job_rig_sorted(rig, "plain.jsonl");
    static const char *const names[] = {"out.jsonl", "err.jsonl"};
    assert_int_equal(job_rig_run(rig, errors_option(rig, "err.jsonl", "")), 3);
    for (uint32_t round = 0; round < 40; round++) {
        const char *name = names[round % 2];
        off_t size = job_rig_size(rig, name);
        if (round % 4 < 2)
            job_rig_change_byte(rig, name, (off_t)aq_prng_below(3, round, 0, (uint64_t)size - 1),
                                1);
        else
            job_rig_cut(rig, name, size - 1 - (off_t)aq_prng_below(3, round, 0, 40));
        int rc = job_rig_run(rig, errors_option(rig, "err.jsonl", ""));
        assert_true(rc == 0 || rc == 3);
        assert_true(job_rig_said(rig, "not as it was written") || job_rig_said(rig, "torn") ||
                    job_rig_said(rig, "not as they were written"));
        assert_apart(rig, "out.jsonl", "err.jsonl", want);
    }
    free(want);
}

static void another_file_of_errors_is_refused(void **state)
{
    struct job_rig *rig = *state;
    write_records(rig);
    job_rig_write(rig, "mine.txt", "this is not a result\n");
    job_rig_assert_refused(rig, errors_option(rig, "mine.txt", ""), "manifest");
    assert_int_equal(job_rig_run(rig, errors_option(rig, "err.jsonl", "")), 3);
    job_rig_assert_refused(rig, errors_option(rig, "mine.txt", ""), "errors_file");
    job_rig_assert_refused(rig, "", "errors_file");
    char *mine = job_rig_read(rig, "mine.txt");
    assert_string_equal(mine, "this is not a result\n");
    free(mine);
    assert_int_equal(job_rig_run(rig, "\"allow_change\": [\"errors_file\"]"), 3);
    char *all = job_rig_sorted(rig, "out.jsonl");
    unsigned others, errors = count_errors(all, &others);
    assert_int_equal(errors + others, RECORDS);
    free(all);
}

static void names_that_are_taken_are_refused(void **state)
{
    struct job_rig *rig = *state;
    write_records(rig);
    static const char *const taken[] = {"out.jsonl",      "out.jsonl.sums", "out.jsonl.lock",
                                        "out.jsonl.part", "in.jsonl",       "out.jsonl.tmp"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(taken); i++) {
        char metrics[256];
        snprintf(metrics, sizeof(metrics), "\"metrics_file\": \"%s\"", job_rig_path(rig, taken[i]));
        assert_int_equal(job_rig_run(rig, errors_option(rig, taken[i], "")), -EINVAL);
        assert_non_null(strstr(rig->err.text, "is also"));
        assert_int_equal(job_rig_run(rig, metrics), -EINVAL);
        assert_non_null(strstr(rig->err.text, "is also"));
    }
    assert_int_equal(job_rig_run(rig, errors_option(rig, "e", "\"output\": \"-\"")), -EINVAL);
    int fd = open(job_rig_path(rig, "err.lock"), O_CREAT | O_RDWR, 0666); /* another run's */
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_true(job_rig_run(rig, errors_option(rig, "err", "")) < 0);
    assert_non_null(strstr(rig->err.text, "err.lock"));
    close(fd);
}

/* ---- metrics ---- */

static void metrics_that_cannot_be_written_stop_nothing(void **state)
{
    struct job_rig *rig = *state;
    write_records(rig);
    assert_int_equal(job_rig_run(rig, "\"metrics_file\": \"/no/such/folder/m.prom\""), 3);
    assert_true(job_rig_said(rig, "metrics: write '/no/such/folder/m.prom'"));
    const char *first = strstr(rig->lines.data, "metrics: ");
    assert_null(strstr(first + 1, "metrics: ")); /* said once */
}

static void metrics_count_what_the_results_have(void **state)
{
    struct job_rig *rig = *state;
    char option[256];
    write_records(rig);
    snprintf(option, sizeof(option), "\"metrics_file\": \"%s\"", job_rig_path(rig, "m.prom"));
    assert_int_equal(job_rig_run(rig, option), 3);
    char *text = job_rig_read(rig, "m.prom");
    assert_non_null(strstr(text, "# TYPE aquifer_records_finished_total counter\n"));
    assert_non_null(strstr(text, "out.jsonl\",result=\"ok\"} 36\n"));
    assert_non_null(strstr(text, "out.jsonl\",result=\"error\"} 4\n"));
    assert_non_null(strstr(text, "state=\"done\"} 1\n"));
    assert_non_null(strstr(text, "state=\"running\"} 0\n"));
    for (char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n') + 1;
        assert_true(!strncmp(line, "# HELP aquifer_", 15) ||
                    !strncmp(line, "# TYPE aquifer_", 15) ||
                    (!strncmp(line, "aquifer_", 8) && strstr(line, "{output=\"")));
    }
    free(text);
    assert_false(job_rig_exists(rig, "m.prom.tmp"));
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    T(compressed_results_are_the_same_lines),
    T(a_torn_member_is_cut_off_and_its_records_run_again),
    T(a_changed_byte_costs_its_member_and_is_said),
    T(a_compressed_file_without_a_line_is_one),
    T(what_is_saved_of_a_large_member_takes_little_memory),
    T(a_name_that_says_otherwise_is_refused),
    T(errors_go_to_their_file_and_stay_done),
    T(errors_are_tried_again_alone),
    T(damage_to_either_file_is_found),
    T(another_file_of_errors_is_refused),
    T(names_that_are_taken_are_refused),
    T(metrics_that_cannot_be_written_stop_nothing),
    T(metrics_count_what_the_results_have),
};

AQ_TEST_MAIN(tests)
