/* SPDX-License-Identifier: Apache-2.0
 * A run that streams from disk is stopped (SIGSTOP, as batch systems suspend) for longer than a
 * disk may be silent, and goes on: it must end with the results of a run that nobody disturbed.
 *
 * The child runs crowds until it is told to end; the parent stops it in the middle.  The deadline
 * is two seconds instead of a minute. */
#include "tests/choices.h"
#include "tests/sim/drawn.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CROWD = 3, PROMPT = 20, TOKENS = 12, VOCAB = 4096, STOPS = 3, STOP_MS = 3000 };
#define DEADLINE_NS (2ull * 1000 * 1000 * 1000)

static char cache[TEMP_PATH_MAX];

static struct aq_engine *open_engine(struct crowd *c, enum aq_io_kind io)
{
    struct aq_engine *e;
    struct aq_err err;
    struct aq_engine_opts o = {
        .model_dir = test_data_path("tiny-opt"),
        .compute = -1,
        .weight_format = -1,
        .kv_format = -1,
        .threads = 1,
        .host_memory = 2 * AQ_GIB,
        .placement = placed("weights=0/0/100 kv=0/0/100 hidden=0/0/100"),
        .cache_dir = cache,
        .disk_dir_any = true,
        .io = io,
        .refill = true,
    };
    struct aq_engine_seams seams = {.disk_deadline_ns = DEADLINE_NS};
    int rc = aq_engine_open(&e, &o, &err);
    rc = rc < 0 ? rc : aq_engine_plan(e, &c->work, &err);
    if (rc == 0) {
        aq_engine_set_seams(e, &seams);
        rc = aq_engine_load(e, &err);
    }
    if (rc < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return e;
}

/* Runs one crowd after the other until `until` ends; says `started` once it streams. */
static _Noreturn void child(enum aq_io_kind io, int started, int until)
{
    struct crowd *want = calloc(1, sizeof(*want)), *got = calloc(1, sizeof(*got));
    struct aq_err err = {0};
    char difference[256] = "";
    int rc = 0;
    crowd_draw(want, 1, CROWD, PROMPT, TOKENS, VOCAB);
    struct aq_engine *e = open_engine(want, io);
    rc = crowd_run(want, e, &err);
    ssize_t n = write(started, "x", 1);
    struct pollfd end = {.fd = until, .events = POLLIN};
    while (n == 1 && rc == 0 && poll(&end, 1, 0) == 0) {
        crowd_draw(got, 1, CROWD, PROMPT, TOKENS, VOCAB);
        rc = crowd_run(got, e, &err);
        if (rc == 0 && !crowd_same(want, got, difference, sizeof(difference)))
            rc = 1;
    }
    if (rc)
        fprintf(stderr, "%s%s\n", err.text, difference);
    aq_engine_close(e);
    free(want);
    free(got);
    exit(rc ? 1 : 0);
}

static void stop_and_go_on(enum aq_io_kind io)
{
    int started[2], until[2], status;
    char byte;
    assert_int_equal(pipe2(started, O_CLOEXEC) | pipe2(until, O_CLOEXEC), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        close(started[0]);
        close(until[1]);
        child(io, started[1], until[0]);
    }
    close(started[1]);
    close(until[0]);
    assert_int_equal(read(started[0], &byte, 1), 1);
    for (int i = 0; i < STOPS; i++) {
        usleep(100 * 1000 + (useconds_t)i * 37 * 1000);
        assert_int_equal(kill(pid, SIGSTOP), 0);
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
        if (!WIFSTOPPED(status))
            fail_msg("%s: ended before stop %d, status %d", io, i, status);
        usleep(STOP_MS * 1000);
        assert_int_equal(kill(pid, SIGCONT), 0);
    }
    usleep(200 * 1000);
    close(until[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(started[0]);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: status %d after %d stops", io, status, STOPS);
}

static void a_run_over_a_pool_of_threads_goes_on_after_stops(void **state)
{
    (void)state;
    stop_and_go_on(AQ_IO_THREADS);
}

/* io_uring where the machine has it. */
static void a_run_over_the_usual_engine_goes_on_after_stops(void **state)
{
    (void)state;
    stop_and_go_on(AQ_IO_AUTO);
}

static int set_up(void **state)
{
    (void)state;
    temp_dir(cache, "stopped");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return temp_remove(cache);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_run_over_a_pool_of_threads_goes_on_after_stops),
    cmocka_unit_test(a_run_over_the_usual_engine_goes_on_after_stops),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
