/* SPDX-License-Identifier: Apache-2.0
 * The writer: whole lines only, a full disk waited for, errors handed back; and the lock beside it.
 */
#include "engine/job/writer.h"

#include "base/clock.h"
#include "engine/job/lock.h"
#include "engine/job/reorder.h"
#include "engine/job/sums.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[64], path[96];

static int setup(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/aq-writer-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof(path), "%s/out", dir);
    return 0;
}

static int teardown(void **state)
{
    unlink(path);
    return rmdir(dir);
}

static char *content(void)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    return text;
}

static struct aq_writer *start(struct aq_writer_opts opts)
{
    struct aq_writer *w;
    opts.path = path;
    if (!opts.queue_bytes)
        opts.queue_bytes = 1 << 20;
    assert_int_equal(aq_writer_open(&w, &opts, NULL), 0);
    return w;
}

static int put(struct aq_writer *w, const char *line, struct aq_err *err)
{
    return aq_writer_put(w, strdup(line), strlen(line), false, err);
}

/* ---- a disk that fills up ---- */

static size_t disk_free;         /* bytes that still fit */
static int full_errno;           /* what the disk says then */
static atomic_uint full_answers; /* how often it has said so */
static unsigned frees_after;     /* after so many there is space again; 0: never */

static ssize_t small_disk(int fd, const void *bytes, size_t count)
{
    if (!disk_free && frees_after && full_answers >= frees_after)
        disk_free = 1 << 20;
    if (!disk_free) {
        full_answers++;
        errno = full_errno;
        return -1;
    }
    count = count < disk_free ? count : disk_free;
    disk_free -= count;
    return write(fd, bytes, count);
}

static void fill_disk(size_t bytes, int code, unsigned frees)
{
    disk_free = bytes;
    full_errno = code;
    full_answers = 0;
    frees_after = frees;
}

static void lines_are_appended_in_order(void **state)
{
    struct aq_writer *w = start((struct aq_writer_opts){0});
    assert_int_equal(put(w, "one", NULL), 0);
    assert_int_equal(put(w, "two", NULL), 0);
    uint64_t lines;
    assert_int_equal(aq_writer_close(w, &lines, NULL), 0);
    assert_int_equal(lines, 2);
    w = start((struct aq_writer_opts){0});
    assert_int_equal(put(w, "three", NULL), 0);
    assert_int_equal(aq_writer_close(w, NULL, NULL), 0);
    assert_string_equal(content(), "one\ntwo\nthree\n");
}

static void a_small_queue_loses_nothing(void **state)
{
    struct aq_writer *w = start((struct aq_writer_opts){.queue_bytes = 8});
    for (int i = 0; i < 2000; i++)
        assert_int_equal(put(w, i % 7 ? "short" : "a line longer than the queue", NULL), 0);
    uint64_t lines;
    assert_int_equal(aq_writer_close(w, &lines, NULL), 0);
    assert_int_equal(lines, 2000);
}

static void a_line_is_on_its_way_without_waiting_for_the_next(void **state)
{
    struct aq_writer *w = start((struct aq_writer_opts){0});
    assert_int_equal(put(w, "one", NULL), 0);
    for (int i = 0; i < 1000 && aq_writer_lines(w) < 1; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_int_equal(aq_writer_lines(w), 1);
    assert_string_equal(content(), "one\n");
    assert_int_equal(aq_writer_close(w, NULL, NULL), 0);
}

static void a_full_disk_is_waited_for(void **state)
{
    fill_disk(6, ENOSPC, 3);
    struct aq_writer *w = start(
        (struct aq_writer_opts){.write = small_disk, .retry_s = 0.01, .disk_full_wait_s = 60});
    assert_int_equal(put(w, "one", NULL), 0);
    assert_int_equal(put(w, "two", NULL), 0); /* only half of it fits at first */
    assert_int_equal(aq_writer_close(w, NULL, NULL), 0);
    assert_string_equal(content(), "one\ntwo\n");
    assert_true(full_answers >= 3);
}

static void a_disk_that_stays_full_ends_with_whole_lines(void **state)
{
    fill_disk(6, ENOSPC, 0);
    struct aq_writer *w = start(
        (struct aq_writer_opts){.write = small_disk, .retry_s = 0.01, .disk_full_wait_s = 0.05});
    struct aq_err err;
    uint64_t lines;
    assert_int_equal(put(w, "one", NULL), 0);
    assert_int_equal(put(w, "two", NULL), 0);
    assert_int_equal(aq_writer_close(w, &lines, &err), -ENOSPC);
    assert_int_equal(lines, 1);
    assert_non_null(strstr(err.text, path));
    assert_string_equal(content(), "one\n");
}

static void hurry_ends_the_wait_for_a_full_disk(void **state)
{
    fill_disk(0, EDQUOT, 0);
    double begin_s = aq_clock_s();
    struct aq_writer *w =
        start((struct aq_writer_opts){.write = small_disk, .disk_full_wait_s = 600});
    assert_int_equal(put(w, "one", NULL), 0);
    aq_writer_hurry(w);
    assert_int_equal(aq_writer_close(w, NULL, NULL), -EDQUOT);
    assert_true(aq_clock_s() - begin_s < 30);
}

static unsigned syncs;
static int sync_errno = EIO;

static int failing_sync(int fd)
{
    syncs++;
    errno = sync_errno;
    return -1;
}

static void a_sync_that_fails_ends_the_writer(void **state)
{
    syncs = 0;
    struct aq_writer *w = start((struct aq_writer_opts){.sync = failing_sync});
    struct aq_err err = {0};
    uint64_t lines;
    assert_int_equal(put(w, "one", NULL), 0);
    for (int i = 0; i < 2000 && put(w, "more", &err) == 0; i++) /* it syncs once a second */
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_int_equal(err.code, -EIO);
    assert_non_null(strstr(err.text, "sync"));
    assert_int_equal(aq_writer_close(w, &lines, NULL), -EIO);
    assert_true(lines >= 1); /* what is in the file is told, and stays */
    assert_int_equal(strncmp(content(), "one\nmore\n", 9), 0);
    assert_int_equal(syncs, 1); /* a second try would wrongly succeed: fsync(2), NOTES */
}

/* A file system that a failing disk has made read-only says EROFS, and the results are not safe. */
static void a_sync_that_fails_is_an_io_failure_whatever_it_says(void **state)
{
    static const int errors[] = {EROFS, EIO, ENOSPC, ENODEV, ENOENT};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        sync_errno = errors[i];
        struct aq_writer *w = start((struct aq_writer_opts){.sync = failing_sync});
        struct aq_err err = {0};
        assert_int_equal(put(w, "one", NULL), 0);
        assert_true(aq_writer_close(w, NULL, &err) < 0);
        assert_int_equal(aq_err_exit_status(err.code), 4);
        assert_non_null(strstr(err.text, "goes on"));
    }
    sync_errno = EIO;
}

static void what_has_nothing_to_sync_is_fine(void **state)
{
    static const int errors[] = {EINVAL, ENOTSUP, ENOSYS};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        sync_errno = errors[i];
        struct aq_writer *w = start((struct aq_writer_opts){.sync = failing_sync});
        assert_int_equal(put(w, "one", NULL), 0);
        assert_int_equal(aq_writer_close(w, NULL, NULL), 0);
    }
    sync_errno = EIO;
}

/* A file of sums beside the output, and what it has in the end: how many of the lines written. */
static struct aq_writer *start_with_sums(struct aq_writer_opts opts, char name[112])
{
    struct aq_sums *none;
    snprintf(name, 112, "%s.sums", path);
    assert_int_equal(aq_sums_open(&none, NULL), 0);
    assert_int_equal(aq_sums_write(none, name, false, NULL), 0);
    aq_sums_close(none);
    opts.sums = name;
    return start(opts);
}

static unsigned count_sums(const char *name, const char *const *lines, unsigned count)
{
    struct aq_sums *s;
    uint64_t damaged;
    unsigned seen = 0;
    assert_int_equal(aq_sums_open(&s, NULL), 0);
    assert_int_equal(aq_sums_read(s, name, &damaged, NULL), 0);
    assert_int_equal(damaged, 0);
    for (unsigned i = 0; i < count; i++)
        seen += aq_sums_see(s, aq_sums_of(lines[i], strlen(lines[i])));
    assert_int_equal(aq_sums_missing(s), 0);
    aq_sums_close(s);
    unlink(name);
    return seen;
}

static void each_line_has_its_sum(void **state)
{
    static const char *const lines[] = {"one", "two\n", "", "three"};
    char name[112];
    struct aq_writer *w = start_with_sums((struct aq_writer_opts){0}, name);
    for (int i = 0; i < 4; i++)
        assert_int_equal(aq_writer_put(w, strdup(lines[i]), strcspn(lines[i], "\n"), false, NULL),
                         0);
    assert_int_equal(aq_writer_close(w, NULL, NULL), 0);
    assert_int_equal(count_sums(name, lines, 4), 4);
}

/* A sum says that its line is on the disk. */
static void what_is_not_synced_has_no_sum(void **state)
{
    static const char *const lines[] = {"one", "two"};
    char name[112];
    struct aq_writer *w = start_with_sums((struct aq_writer_opts){.sync = failing_sync}, name);
    for (int i = 0; i < 2; i++)
        assert_int_equal(put(w, lines[i], NULL), 0);
    assert_int_equal(aq_writer_close(w, NULL, NULL), -EIO);
    assert_string_equal(content(), "one\ntwo\n");
    assert_int_equal(count_sums(name, lines, 2), 0);
}

static unsigned interruptions;

static int interrupted_sync(int fd)
{
    errno = EINTR;
    return interruptions++ % 2 ? 0 : -1;
}

static ssize_t interrupted_write(int fd, const void *bytes, size_t count)
{
    errno = EINTR;
    return interruptions++ % 2 ? write(fd, bytes, count) : -1;
}

static void signals_do_not_end_it(void **state)
{
    interruptions = 0;
    struct aq_writer *w =
        start((struct aq_writer_opts){.sync = interrupted_sync, .write = interrupted_write});
    assert_int_equal(put(w, "one", NULL), 0);
    assert_int_equal(aq_writer_close(w, NULL, NULL), 0);
    assert_int_equal(interruptions, 4);
    assert_string_equal(content(), "one\n");
}

static int counting_sync(int fd)
{
    syncs++;
    return 0;
}

static void what_is_written_is_synced_before_a_long_wait(void **state)
{
    syncs = 0;
    fill_disk(4, ENOSPC, 0);
    struct aq_writer *w = start((struct aq_writer_opts){
        .write = small_disk, .sync = counting_sync, .disk_full_wait_s = 600});
    assert_int_equal(put(w, "one", NULL), 0);
    assert_int_equal(put(w, "two", NULL), 0);
    for (int i = 0; i < 2000 && !full_answers; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    aq_writer_hurry(w);
    assert_int_equal(aq_writer_close(w, NULL, NULL), -ENOSPC);
    assert_int_equal(syncs, 1);
}

static void lines_are_made_safe_on_request(void **state)
{
    static const char *const lines[] = {"one", "two", "three"};
    char name[112];
    syncs = 0;
    struct aq_writer *w = start_with_sums((struct aq_writer_opts){.sync = counting_sync}, name);
    double begin_s = aq_clock_s();
    assert_true(aq_writer_make_safe(w, 60000000000)); /* nothing to do */
    assert_int_equal(syncs, 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(put(w, lines[i], NULL), 0);
        assert_true(aq_writer_make_safe(w, 60000000000));
        assert_int_equal(syncs, 2 * (i + 1)); /* of the line, and of its sum */
        assert_true(aq_writer_make_safe(w, 0));
    }
    assert_true(aq_clock_s() - begin_s < 30);
    assert_string_equal(content(), "one\ntwo\nthree\n");
    assert_int_equal(count_sums(name, lines, 3), 3);
    assert_int_equal(aq_writer_close(w, NULL, NULL), 0);
}

static void nobody_waits_for_lines_that_do_not_become_safe(void **state)
{
    double begin_s = aq_clock_s();
    fill_disk(4, ENOSPC, 0);
    struct aq_writer *w =
        start((struct aq_writer_opts){.write = small_disk, .disk_full_wait_s = 600});
    assert_int_equal(put(w, "one", NULL), 0);
    assert_int_equal(put(w, "two", NULL), 0);
    assert_false(aq_writer_make_safe(w, 600000000000)); /* it waits for space */
    assert_false(aq_writer_make_safe(w, 600000000000));
    aq_writer_hurry(w);
    assert_false(aq_writer_make_safe(w, 600000000000));
    assert_int_equal(aq_writer_close(w, NULL, NULL), -ENOSPC);
    w = start((struct aq_writer_opts){.sync = failing_sync});
    assert_int_equal(put(w, "one", NULL), 0);
    assert_false(aq_writer_make_safe(w, 600000000000)); /* it has ended */
    assert_int_equal(aq_writer_close(w, NULL, NULL), -EIO);
    assert_true(aq_clock_s() - begin_s < 60);
}

/* ---- pipes ---- */

static void a_pipe_nobody_reads_is_given_up_after_a_hurry(void **state)
{
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    struct aq_writer *w = start((struct aq_writer_opts){.queue_bytes = 1 << 16});
    char line[1000];
    memset(line, 'x', sizeof(line) - 1);
    line[sizeof(line) - 1] = '\0';
    for (int i = 0; i < 100; i++) /* more than a pipe holds, less than pipe and queue do */
        assert_int_equal(put(w, line, NULL), 0);
    aq_writer_hurry(w);
    uint64_t lines;
    assert_int_equal(aq_writer_close(w, &lines, NULL), -EINTR);
    assert_true(lines > 0 && lines < 100);
    close(reader);
}

static int interrupt_asked;

static int interrupted_soon(void *user)
{
    return ++interrupt_asked > 2;
}

static void waiting_for_a_reader_can_be_interrupted(void **state)
{
    assert_int_equal(mkfifo(path, 0600), 0);
    struct aq_writer *w = NULL;
    struct aq_err err;
    const struct aq_writer_opts opts = {.path = path, .interrupted = interrupted_soon};
    interrupt_asked = 0;
    assert_int_equal(aq_writer_open(&w, &opts, &err), -EINTR);
    assert_null(w);
    assert_int_equal(interrupt_asked, 3);
}

/* ---- other errors ---- */

static void other_errors_come_back_to_whoever_puts(void **state)
{
    fill_disk(0, EIO, 0);
    struct aq_writer *w =
        start((struct aq_writer_opts){.write = small_disk, .disk_full_wait_s = 600});
    struct aq_err err = {0};
    int rc = 0;
    for (int i = 0; i < 1000 && rc == 0; i++) {
        rc = put(w, "one", &err);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_int_equal(rc, -EIO);
    assert_int_equal(aq_writer_close(w, NULL, NULL), -EIO);
}

static void an_output_that_cannot_be_opened_is_named(void **state)
{
    struct aq_writer *w;
    struct aq_err err;
    struct aq_writer_opts opts = {.path = "/tmp/there/is/no/such/folder/out"};
    assert_int_equal(aq_writer_open(&w, &opts, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no/such/folder"));
}

/* ---- the lock ---- */

static void a_second_holder_is_refused_with_the_first_ones_id(void **state)
{
    struct aq_lock *lock;
    assert_int_equal(aq_lock_open(&lock, path, NULL), 0);
    pid_t child = fork();
    if (child == 0) {
        struct aq_lock *second;
        struct aq_err err = {0};
        char id[32];
        snprintf(id, sizeof(id), "process %ld", (long)getppid());
        int rc = aq_lock_open(&second, path, &err);
        _exit(rc == -EINVAL && strstr(err.text, id) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    aq_lock_close(lock);
    assert_int_equal(access(path, F_OK), -1);
}

static void a_dead_holders_lock_is_taken_over(void **state)
{
    pid_t child = fork();
    if (child == 0) {
        struct aq_lock *lock;
        _exit(aq_lock_open(&lock, path, NULL) == 0 ? 0 : 1); /* without letting go */
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(access(path, F_OK), 0);
    struct aq_lock *lock;
    assert_int_equal(aq_lock_open(&lock, path, NULL), 0);
    aq_lock_close(lock);
}

/* ---- order ---- */

static void collect(void *user, const char *bytes, size_t count)
{
    strncat(user, bytes, count);
}

static void pieces_go_out_in_the_order_of_their_index(void **state)
{
    struct aq_reorder *r;
    char out[64] = "";
    assert_int_equal(aq_reorder_open(&r, 5, collect, out, NULL), 0);
    assert_int_equal(aq_reorder_put(r, 2, "two ", 4, NULL), 0);
    assert_int_equal(aq_reorder_put(r, 1, "one ", 4, NULL), 0);
    assert_string_equal(out, "");
    assert_int_equal(aq_reorder_put(r, 0, "zero ", 5, NULL), 0);
    assert_string_equal(out, "zero one two ");
    assert_int_equal(aq_reorder_put(r, 4, "four", 4, NULL), 0);
    assert_int_equal(aq_reorder_put(r, 3, "", 0, NULL), 0);
    assert_string_equal(out, "zero one two four");
    aq_reorder_close(r);
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)

static const struct CMUnitTest tests[] = {
    T(lines_are_appended_in_order),
    T(a_small_queue_loses_nothing),
    T(a_line_is_on_its_way_without_waiting_for_the_next),
    T(a_full_disk_is_waited_for),
    T(a_disk_that_stays_full_ends_with_whole_lines),
    T(hurry_ends_the_wait_for_a_full_disk),
    T(a_sync_that_fails_ends_the_writer),
    T(a_sync_that_fails_is_an_io_failure_whatever_it_says),
    T(what_has_nothing_to_sync_is_fine),
    T(each_line_has_its_sum),
    T(what_is_not_synced_has_no_sum),
    T(signals_do_not_end_it),
    T(what_is_written_is_synced_before_a_long_wait),
    T(lines_are_made_safe_on_request),
    T(nobody_waits_for_lines_that_do_not_become_safe),
    T(a_pipe_nobody_reads_is_given_up_after_a_hurry),
    T(waiting_for_a_reader_can_be_interrupted),
    T(other_errors_come_back_to_whoever_puts),
    T(an_output_that_cannot_be_opened_is_named),
    T(a_second_holder_is_refused_with_the_first_ones_id),
    T(a_dead_holders_lock_is_taken_over),
    T(pieces_go_out_in_the_order_of_their_index),
};

AQ_TEST_MAIN(tests)
