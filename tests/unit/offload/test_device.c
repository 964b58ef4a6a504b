/* SPDX-License-Identifier: Apache-2.0
 * The device: every claim that holds in both times is tested in both.  No time decides a test but
 * virtual time. */
#include "base/types.h"
#include "tests/unit/offload/device_rig.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Runs a test in virtual time, then in real time. */
static void in_both_times(void (*test)(bool real))
{
    test(false);
    test(true);
}

/* ---- jobs ---- */

struct log {
    uint32_t count, value[4096];
};

struct note {
    struct log *log;
    uint32_t value;
    int result;
};

static int write_note(void *arg, void *native)
{
    struct note *n = arg;
    assert_null(native);
    n->log->value[n->log->count++] = n->value;
    return n->result;
}

static void jobs_run_in_order(bool real)
{
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = real});
    struct aq_device_stream *s = rig_stream(&r, "compute", 512, 1);
    static struct log log;
    static struct note note[500];
    log.count = 0;
    for (uint32_t i = 0; i < 500; i++) {
        note[i] = (struct note){&log, i, 0};
        struct aq_device_job job = {.fn = write_note, .arg = &note[i], .cost_ns = 100 - i % 7 * 10};
        job.token = i;
        job.done = r.done;
        assert_int_equal(aq_device_run(s, &job), 0);
    }
    for (uint32_t i = 0; i < 500; i++)
        rig_expect(&r, i, 0);
    assert_int_equal(log.count, 500);
    for (uint32_t i = 0; i < 500; i++)
        assert_int_equal(log.value[i], i);
    aq_device_stream_close(s);
    rig_close(&r);
}

static void jobs_of_a_stream_run_in_the_order_of_submission(void **state)
{
    (void)state;
    in_both_times(jobs_run_in_order);
}

static void full_stream(bool real)
{
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = real});
    struct aq_device_stream *s = rig_stream(&r, "compute", 3, 1);
    static struct log log;
    static struct note note;
    note = (struct note){&log, 7, 0};
    log.count = 0;
    struct aq_device_job job = {.fn = write_note, .arg = &note, .cost_ns = 10, .done = r.done};
    uint32_t taken = 0, refused = 0;
    /* Refused exactly while depth entries are unfinished; nothing that was taken is lost. */
    for (job.token = 0; job.token < 1000;) {
        int rc = aq_device_run(s, &job);
        if (rc == -EAGAIN) {
            refused++;
            rig_expect(&r, taken++, 0);
        } else {
            assert_int_equal(rc, 0);
            job.token++;
        }
    }
    for (; taken < 1000; taken++)
        rig_expect(&r, taken, 0);
    assert_int_equal(log.count, 1000);
    if (!real)
        assert_int_equal(refused, 997);
    aq_device_stream_close(s);
    rig_close(&r);
}

static void a_full_stream_says_so_and_loses_nothing(void **state)
{
    (void)state;
    in_both_times(full_stream);
}

static void spans_and_tickets(bool real)
{
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = real});
    struct aq_device_stream *s = rig_stream(&r, "compute", 8, 1);
    struct log log = {0};
    struct note note = {&log, 1, 0};
    struct aq_device_span span[2];
    struct aq_device_job job = {.fn = write_note, .arg = &note, .cost_ns = 250};
    job.token = AQ_TOKEN_NONE;
    job.span = &span[0];
    assert_int_equal(aq_device_run(s, &job), 0);
    uint64_t first = aq_device_mark(s);
    job.token = 9;
    job.done = r.done;
    job.span = &span[1];
    assert_int_equal(aq_device_run(s, &job), 0);
    assert_true(aq_device_mark(s) > first);
    rig_expect(&r, 9, 0); /* the first one's token was not asked for */
    assert_true(aq_device_finished(s, first));
    assert_true(aq_device_finished(s, aq_device_mark(s)));
    assert_true(span[0].start_ns <= span[0].end_ns);
    assert_true(span[0].end_ns <= span[1].start_ns);
    assert_true(span[1].end_ns <= aq_device_now(r.d));
    if (!real) {
        assert_int_equal(span[0].end_ns, 250);
        assert_int_equal(span[1].end_ns, 500);
    }
    aq_device_stream_close(s);
    rig_close(&r);
}

static void a_finished_job_has_its_span_and_its_ticket(void **state)
{
    (void)state;
    in_both_times(spans_and_tickets);
}

/* ---- streams that follow each other ---- */

/* A counter that is passed from stream to stream without a lock: only the chain orders it. */
struct hop {
    uint64_t *counter;
    uint64_t expected;
};

static int do_hop(void *arg, void *native)
{
    struct hop *h = arg;
    (void)native;
    if (*h->counter != h->expected)
        return -EPROTO;
    ++*h->counter;
    return 0;
}

static void chain(bool real)
{
    enum { STREAMS = 3, HOPS = 3000, BATCH = 300 };
    static struct hop hop[HOPS];
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = real, .device.jitter_permille = real ? 0 : 900});
    struct aq_device_stream *s[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        s[i] = rig_stream(&r, "chain", 2 * BATCH, 1);
    uint64_t counter = 0;
    for (uint64_t i = 0; i < HOPS; i++) {
        struct aq_device_stream *here = s[i % STREAMS], *before = s[(i + STREAMS - 1) % STREAMS];
        hop[i] = (struct hop){&counter, i};
        assert_true(aq_device_chains(here, before));
        aq_device_follow(here, before, aq_device_mark(before));
        struct aq_device_job job = {.fn = do_hop, .arg = &hop[i], .cost_ns = 100, .done = r.done};
        job.token = i;
        assert_int_equal(aq_device_run(here, &job), 0);
        for (uint64_t j = 0; i % BATCH == BATCH - 1 && j < BATCH; j++)
            rig_expect(&r, i - BATCH + 1 + j, 0);
    }
    assert_int_equal(counter, HOPS);
    for (int i = 0; i < STREAMS; i++)
        aq_device_stream_close(s[i]);
    rig_close(&r);
}

static void a_chain_over_streams_needs_no_host(void **state)
{
    (void)state;
    in_both_times(chain);
}

static void independent_streams_overlap(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){0});
    struct aq_device_stream *a = rig_stream(&r, "a", 8, 1), *b = rig_stream(&r, "b", 8, 1);
    struct log log = {0};
    struct note note = {&log, 0, 0};
    struct aq_device_job job = {.fn = write_note, .arg = &note, .done = r.done};
    job.cost_ns = 1000;
    for (job.token = 0; job.token < 3; job.token++)
        assert_int_equal(aq_device_run(a, &job), 0);
    job.cost_ns = 1500;
    for (job.token = 10; job.token < 12; job.token++)
        assert_int_equal(aq_device_run(b, &job), 0);
    rig_expect(&r, 0, 0);
    assert_int_equal(aq_device_now(r.d), 1000);
    rig_expect(&r, 10, 0);
    assert_int_equal(aq_device_now(r.d), 1500);
    rig_expect(&r, 1, 0);
    assert_int_equal(aq_device_now(r.d), 2000);
    rig_next(&r);
    rig_next(&r);
    assert_int_equal(aq_device_now(r.d), 3000);
    aq_device_stream_close(a);
    aq_device_stream_close(b);
    rig_close(&r);
}

static void a_stream_closes_while_others_still_follow_it(bool real)
{
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = real});
    struct aq_device_stream *a = rig_stream(&r, "a", 4, 1), *b = rig_stream(&r, "b", 64, 1);
    static struct log log;
    static struct note note;
    log.count = 0;
    note = (struct note){&log, 0, 0};
    struct aq_device_job job = {.fn = write_note, .arg = &note, .cost_ns = 10, .done = r.done};
    job.token = AQ_TOKEN_NONE;
    for (int i = 0; i < 20; i++)
        assert_int_equal(aq_device_run(b, &job), 0);
    struct log other = {0};
    struct note first = {&other, 1, 0};
    job.arg = &first;
    assert_int_equal(aq_device_run(a, &job), 0);
    aq_device_follow(b, a, aq_device_mark(a));
    job.arg = &note;
    job.token = 5;
    assert_int_equal(aq_device_run(b, &job), 0);
    aq_device_stream_close(a);
    rig_expect(&r, 5, 0);
    assert_int_equal(log.count, 21);
    aq_device_stream_close(b);
    rig_close(&r);
}

static void closing_a_stream_releases_its_followers(void **state)
{
    (void)state;
    in_both_times(a_stream_closes_while_others_still_follow_it);
}

/* ---- memory and copies ---- */

static void arena_has_an_absolute_limit(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){.device_bytes = 8 * AQ_MIB, .device.kind = AQ_DEVICE_EMULATED});
    struct aq_err err;
    void *p, *q = rig_take(&r, AQ_MEMORY_DEVICE, 6 * AQ_MIB);
    int rc = aq_device_alloc(&p, r.d, AQ_MEMORY_DEVICE, "one too many", 3 * AQ_MIB, &err);
    assert_int_equal(rc, -ENOMEM);
    assert_non_null(strstr(err.text, "device memory: one too many"));
    assert_non_null(strstr(err.text, "6291456 of 8388608"));
    void *rest = rig_take(&r, AQ_MEMORY_DEVICE, 2 * AQ_MIB);
    assert_int_equal(aq_device_alloc(&p, r.d, AQ_MEMORY_DEVICE, "one byte", 1, &err), -ENOMEM);
    /* Host memory, pinned or not, is another account. */
    void *pinned = rig_take(&r, AQ_MEMORY_PINNED, 16 * AQ_MIB);
    assert_int_equal(aq_mem_used(r.mem, AQ_DEVICE), 8 * AQ_MIB);
    assert_int_equal(aq_mem_used(r.mem, AQ_HOST), 16 * AQ_MIB);
    rig_give(&r, AQ_MEMORY_PINNED, pinned, 16 * AQ_MIB);
    rig_give(&r, AQ_MEMORY_DEVICE, rest, 2 * AQ_MIB);
    rig_give(&r, AQ_MEMORY_DEVICE, q, 6 * AQ_MIB);
    assert_int_equal(aq_mem_used(r.mem, AQ_DEVICE), 0);
    rig_close(&r);
}

static void unified_device_memory_is_host_memory(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = true, .device_bytes = 1});
    assert_false(aq_device_separate(r.d));
    void *p = rig_take(&r, AQ_MEMORY_DEVICE, AQ_MIB);
    assert_int_equal(aq_mem_used(r.mem, AQ_HOST), AQ_MIB);
    rig_give(&r, AQ_MEMORY_DEVICE, p, AQ_MIB);
    rig_close(&r);
}

/* Host -> device -> host through pieces of all sizes, scattered the other way round. */
static void copies_there_and_back(bool real)
{
    enum { PIECES = 40 };
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = real,
                                   .device = {.kind = AQ_DEVICE_EMULATED,
                                              .link = {{4 * GB_S, 1000}, {2 * GB_S, 0}}}});
    size_t bytes = 3 * AQ_MIB;
    unsigned char *src = rig_take(&r, AQ_MEMORY_PINNED, bytes),
                  *dev = rig_take(&r, AQ_MEMORY_DEVICE, bytes),
                  *dst = rig_take(&r, AQ_MEMORY_HOST, bytes);
    for (size_t i = 0; i < bytes; i++)
        src[i] = (unsigned char)(i * 2654435761u >> 13);
    struct aq_copy_piece in[PIECES], out[PIECES];
    size_t at = 0;
    for (uint32_t i = 0; i < PIECES; i++) {
        size_t n = i + 1 == PIECES ? bytes - at : i % 5 == 0 ? 0 : i * i * 7 + i * 911 % 4096;
        in[i] = (struct aq_copy_piece){dev + bytes - at - n, src + at, n};
        out[PIECES - 1 - i] = (struct aq_copy_piece){dst + at, dev + bytes - at - n, n};
        at += n;
    }
    struct aq_device_stream *h2d = rig_stream(&r, "h2d", 4, 1), *d2h = rig_stream(&r, "d2h", 4, 1);
    struct aq_device_copy copy = {
        .direction = AQ_H2D, .pieces = in, .piece_count = PIECES, .token = 1, .done = r.done};
    assert_int_equal(aq_device_copy(h2d, &copy), 0);
    aq_device_follow(d2h, h2d, aq_device_mark(h2d));
    copy.direction = AQ_D2H;
    copy.pieces = out;
    copy.token = 2;
    assert_int_equal(aq_device_copy(d2h, &copy), 0);
    rig_expect(&r, 1, 0);
    rig_expect(&r, 2, 0);
    assert_memory_equal(dst, src, bytes);
    struct aq_device_stats stats;
    aq_device_stats(r.d, &stats);
    assert_int_equal(stats.link[AQ_H2D].bytes, bytes);
    assert_int_equal(stats.link[AQ_H2D].pageable_bytes, 0);
    assert_int_equal(stats.link[AQ_D2H].bytes, bytes);
    assert_int_equal(stats.link[AQ_D2H].pageable_bytes, bytes);
    if (!real) {
        assert_int_equal(stats.link[AQ_H2D].busy_ns, 1000 + bytes / 4);
        assert_int_equal(stats.link[AQ_D2H].busy_ns, bytes / 2);
    }
    aq_device_stream_close(h2d);
    aq_device_stream_close(d2h);
    rig_give(&r, AQ_MEMORY_PINNED, src, bytes);
    rig_give(&r, AQ_MEMORY_DEVICE, dev, bytes);
    rig_give(&r, AQ_MEMORY_HOST, dst, bytes);
    rig_close(&r);
}

static void copies_gather_and_scatter(void **state)
{
    (void)state;
    in_both_times(copies_there_and_back);
}

static void pinning_makes_foreign_memory_fit_for_copies(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_opts){.device.kind = AQ_DEVICE_EMULATED});
    static char foreign[4096];
    char *dev = rig_take(&r, AQ_MEMORY_DEVICE, 4096);
    struct aq_device_stream *s = rig_stream(&r, "h2d", 4, 1);
    struct aq_copy_piece piece = {dev, foreign, 4096};
    struct aq_device_copy copy = {
        .direction = AQ_H2D, .pieces = &piece, .piece_count = 1, .done = r.done};
    struct aq_device_stats stats;
    assert_int_equal(aq_device_copy(s, &copy), 0);
    rig_next(&r);
    assert_int_equal(aq_device_pin(r.d, foreign, sizeof(foreign), NULL), 0);
    assert_int_equal(aq_device_copy(s, &copy), 0);
    rig_next(&r);
    aq_device_unpin(r.d, foreign);
    aq_device_stats(r.d, &stats);
    assert_int_equal(stats.link[AQ_H2D].bytes, 8192);
    assert_int_equal(stats.link[AQ_H2D].pageable_bytes, 4096);
    aq_device_stream_close(s);
    rig_give(&r, AQ_MEMORY_DEVICE, dev, 4096);
    rig_close(&r);
}

/* ---- failure ---- */

static void failing(bool real)
{
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = real});
    struct aq_device_stream *a = rig_stream(&r, "a", 16, 1), *b = rig_stream(&r, "b", 16, 1);
    struct log log = {0}, other = {0};
    struct note good = {&log, 1, 0}, bad = {&log, 2, -EIO}, after = {&other, 3, 0};
    struct aq_device_job job = {.fn = write_note, .cost_ns = 10, .done = r.done};
    job.arg = &good;
    assert_int_equal(aq_device_run(a, &job), 0);
    job.arg = &bad;
    job.token = 1;
    assert_int_equal(aq_device_run(a, &job), 0);
    aq_device_follow(b, a, aq_device_mark(a));
    job.arg = &after;
    for (job.token = 2; job.token < 5; job.token++)
        assert_int_equal(aq_device_run(b, &job), 0);
    rig_expect(&r, 0, 0);
    rig_expect(&r, 1, -EIO);
    for (uint64_t token = 2; token < 5; token++)
        rig_expect(&r, token, -ECANCELED);
    assert_int_equal(other.count, 0);
    assert_int_equal(aq_device_failed(r.d), -EIO);
    aq_device_drain(r.d);
    aq_device_clear(r.d);
    assert_int_equal(aq_device_run(b, &job), 0);
    rig_expect(&r, 5, 0);
    aq_device_fail(r.d, -EINTR);
    assert_int_equal(aq_device_run(b, &job), 0);
    rig_expect(&r, 5, -ECANCELED);
    assert_int_equal(aq_device_failed(r.d), -EINTR);
    aq_device_stream_close(a);
    aq_device_stream_close(b);
    rig_close(&r);
}

static void a_failed_job_ends_everything_once(void **state)
{
    (void)state;
    in_both_times(failing);
}

static void drained(bool real)
{
    struct rig r;
    rig_open(&r, (struct rig_opts){.real = real});
    struct aq_device_stream *a = rig_stream(&r, "a", 512, 1), *b = rig_stream(&r, "b", 512, 1);
    static struct log log[2];
    static struct note note[2];
    for (int i = 0; i < 2; i++) {
        log[i].count = 0;
        note[i] = (struct note){&log[i], 0, 0};
    }
    struct aq_device_job job = {.fn = write_note, .cost_ns = 10, .done = r.done};
    for (int i = 0; i < 200; i++) {
        job.arg = &note[0];
        assert_int_equal(aq_device_run(a, &job), 0);
        job.arg = &note[1];
        assert_int_equal(aq_device_run(b, &job), 0);
    }
    aq_device_drain(r.d);
    assert_int_equal(log[0].count + log[1].count, 400);
    struct aq_completion out[512];
    assert_int_equal(aq_completions_wait(r.done, out, 512, 0), 400);
    aq_device_stream_close(a);
    aq_device_stream_close(b);
    rig_close(&r);
}

static void drain_leaves_nothing_unfinished_or_untold(void **state)
{
    (void)state;
    in_both_times(drained);
}

/* ---- threads ---- */

struct whereabouts {
    int cpu, nice;
};

static int look_around(void *arg, void *native)
{
    struct whereabouts *w = arg;
    (void)native;
    w->cpu = sched_getcpu();
    w->nice = getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid));
    return 0;
}

static void a_thread_runs_where_and_how_it_is_told(void **state)
{
    (void)state;
    struct rig r;
    cpu_set_t set;
    int last = -1, here = getpriority(PRIO_PROCESS, 0);
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    for (int i = 0; i < CPU_SETSIZE; i++)
        last = CPU_ISSET(i, &set) ? i : last;
    rig_open(&r, (struct rig_opts){.real = true});
    struct aq_device_stream *s;
    struct aq_device_stream_opts o = {.name = "bound",
                                      .side = AQ_STREAM_HOST,
                                      .depth = 4,
                                      .nice = 3,
                                      .bind = true,
                                      .cpu = (uint32_t)last};
    assert_int_equal(aq_device_stream_open(&s, r.d, &o, NULL), 0);
    struct whereabouts w = {-1, -1};
    struct aq_device_job job = {.fn = look_around, .arg = &w, .done = r.done};
    assert_int_equal(aq_device_run(s, &job), 0);
    rig_expect(&r, 0, 0);
    assert_int_equal(w.cpu, last);
    assert_int_equal(w.nice, here + 3 > 19 ? 19 : here + 3);
    aq_device_stream_close(s);
    rig_close(&r);
}

/* A thread that has something else to do is called when a job may start, and not before: neither
 * when the stream is empty nor while its first job waits for another stream. */
struct elsewhere {
    sem_t called;
    atomic_uint went, calls;
};

static void go_elsewhere(void *arg)
{
    struct elsewhere *e = arg;
    atomic_fetch_add(&e->went, 1);
    while (sem_wait(&e->called))
        ;
}

static void call_back(void *arg)
{
    struct elsewhere *e = arg;
    atomic_fetch_add(&e->calls, 1);
    sem_post(&e->called);
}

static int hold(void *arg, void *native)
{
    (void)native;
    while (sem_wait(arg))
        ;
    return 0;
}

static void an_idle_thread_is_called_when_a_job_may_start(void **state)
{
    (void)state;
    enum { JOBS = 200 };
    struct rig r;
    struct elsewhere e = {0};
    sem_t held;
    static struct log log;
    static struct note note;
    rig_open(&r, (struct rig_opts){.real = true});
    sem_init(&e.called, 0, 0);
    sem_init(&held, 0, 0);
    struct aq_device_stream *other = rig_stream(&r, "h2d", 8, 1), *s;
    struct aq_device_stream_opts o = {.name = "compute",
                                      .side = AQ_STREAM_DEVICE,
                                      .depth = 8,
                                      .idle = {go_elsewhere, call_back, &e}};
    assert_int_equal(aq_device_stream_open(&s, r.d, &o, NULL), 0);
    note = (struct note){&log, 7, 0};
    log.count = 0;
    for (uint32_t i = 0; i < JOBS; i++) {
        struct aq_device_job wait = {
            .fn = hold, .arg = &held, .token = AQ_TOKEN_NONE, .cost_ns = 1};
        struct aq_device_job job = {
            .fn = write_note, .arg = &note, .token = i, .cost_ns = 1, .done = r.done};
        if (i % 2) {
            assert_int_equal(aq_device_run(other, &wait), 0);
            aq_device_follow(s, other, aq_device_mark(other));
        }
        while (!i && !atomic_load(&e.went))
            usleep(50);
        uint32_t calls = atomic_load(&e.calls);
        assert_int_equal(aq_device_run(s, &job), 0);
        if (i % 8 == 1) { /* the job waits, and so its thread is left alone */
            usleep(300);
            assert_int_equal(atomic_load(&e.calls), calls);
        }
        if (i % 2)
            sem_post(&held);
        rig_expect(&r, i, 0);
    }
    assert_int_equal(log.count, JOBS);
    assert_true(e.went >= 1 && e.calls >= 1);
    aq_device_stream_close(s);
    aq_device_stream_close(other);
    sem_destroy(&e.called);
    sem_destroy(&held);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(jobs_of_a_stream_run_in_the_order_of_submission),
    cmocka_unit_test(a_full_stream_says_so_and_loses_nothing),
    cmocka_unit_test(a_finished_job_has_its_span_and_its_ticket),
    cmocka_unit_test(a_chain_over_streams_needs_no_host),
    cmocka_unit_test(independent_streams_overlap),
    cmocka_unit_test(closing_a_stream_releases_its_followers),
    cmocka_unit_test(arena_has_an_absolute_limit),
    cmocka_unit_test(unified_device_memory_is_host_memory),
    cmocka_unit_test(copies_gather_and_scatter),
    cmocka_unit_test(pinning_makes_foreign_memory_fit_for_copies),
    cmocka_unit_test(a_failed_job_ends_everything_once),
    cmocka_unit_test(a_thread_runs_where_and_how_it_is_told),
    cmocka_unit_test(an_idle_thread_is_called_when_a_job_may_start),
    cmocka_unit_test(drain_leaves_nothing_unfinished_or_untold),
};
AQ_TEST_MAIN(tests)
