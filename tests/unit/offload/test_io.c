/* SPDX-License-Identifier: Apache-2.0
 * The contract of io.h, asked of every engine, and what only single ones have. */
#include "tests/temp.h"
#include "tests/test.h"

#include "base/prng.h"
#include "base/types.h"
#include "offload/io_fault.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- rig: two files of 1 MiB behind one engine ---- */

enum { FILES = 2, FILE_BYTES = 1 << 20, DEPTH = 8, BUFFER_BYTES = 256 * 1024 };

enum engine { URING, URING_BUFFERED, THREADS, MEM, FAULT /* without faults, over mem */ };

struct rig {
    enum engine engine;
    char path[FILES][TEMP_PATH_MAX];
    struct aq_io_file file[FILES];
    struct aq_io_mem_file mem[FILES];
    unsigned char *shadow[FILES]; /* what the files hold */
    unsigned char *buffers;       /* [DEPTH + 1][BUFFER_BYTES] */
    struct aq_io_request request[DEPTH + 1];
    struct aq_io *io;
    char log[4096];
};

static void keep_line(void *user, enum aq_log_level level, const char *text)
{
    struct rig *r = user;
    size_t used = strlen(r->log);
    (void)level;
    snprintf(r->log + used, sizeof(r->log) - used, "%s\n", text);
}

/* A scratch file; O_DIRECT where the file system has it and it is wanted. */
static void make_file(struct rig *r, int i, bool direct)
{
    int fd = temp_file(r->path[i], "io");
    assert_int_equal(pwrite(fd, r->shadow[i], FILE_BYTES, 0), FILE_BYTES);
    if (direct)
        direct = fcntl(fd, F_SETFL, O_RDWR | O_DIRECT) == 0;
    r->file[i] =
        (struct aq_io_file){.fd = fd, .name = r->path[i], .direct = direct, .forget = !direct};
}

static int rig_engine(struct rig *r, enum aq_io_kind kind, struct aq_err *err)
{
    struct aq_log log = {keep_line, r};
    struct aq_io_region region = {r->buffers, DEPTH * BUFFER_BYTES}; /* all but the last buffer */
    struct aq_io_opts opts = {
        .kind = kind,
        .files = r->file,
        .file_count = FILES,
        .regions = &region,
        .region_count = 1,
        .depth = DEPTH,
        .log = &log,
    };
    return aq_io_open(&r->io, &opts, err);
}

static struct rig *rig_files(enum engine engine)
{
    struct rig *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->engine = engine;
    assert_int_equal(posix_memalign((void **)&r->buffers, 2 * AQ_MIB, (DEPTH + 1) * BUFFER_BYTES),
                     0);
    for (int i = 0; i < FILES; i++) {
        r->shadow[i] = malloc(FILE_BYTES);
        for (uint64_t at = 0; at < FILE_BYTES; at += 8)
            *(uint64_t *)(r->shadow[i] + at) = aq_prng_u64(1, (uint64_t)i, at);
        if (engine >= MEM) {
            unsigned char *data = malloc(FILE_BYTES);
            memcpy(data, r->shadow[i], FILE_BYTES);
            r->mem[i] = (struct aq_io_mem_file){data, FILE_BYTES, NULL};
        } else {
            make_file(r, i, engine != URING_BUFFERED);
        }
    }
    return r;
}

static int rig_open(void **state, enum engine engine)
{
    struct aq_io_description here;
    struct aq_err err = {0};
    aq_io_describe(&here);
    if (engine <= URING_BUFFERED && here.uring_reason)
        return 0; /* each test then says that it is skipped */
    struct rig *r = rig_files(engine);
    int rc;
    if (engine >= MEM) {
        struct aq_io_mem_opts opts = {
            .files = r->mem, .file_count = FILES, .depth = DEPTH, .align_bytes = AQ_IO_ALIGN};
        rc = aq_io_open_mem(&r->io, &opts, &err);
        struct aq_fault_opts faults = {.seed = 3, .latency_ns_mean = 1000};
        if (rc == 0 && engine == FAULT)
            rc = aq_io_open_fault(&r->io, r->io, &faults, &err);
    } else {
        rc = rig_engine(r, engine == THREADS ? AQ_IO_THREADS : AQ_IO_URING, &err);
    }
    if (rc < 0)
        fail_msg("%s", err.text);
    *state = r;
    return 0;
}

static void rig_free(struct rig *r)
{
    aq_io_close(r->io);
    for (int i = 0; i < FILES; i++) {
        if (r->engine < MEM) {
            close(r->file[i].fd);
            unlink(r->path[i]);
        }
        free(r->mem[i].data);
        free(r->shadow[i]);
    }
    free(r->buffers);
    free(r);
}

static int rig_close(void **state)
{
    if (*state)
        rig_free(*state);
    return 0;
}

static struct rig *rig_of(void **state)
{
    if (!*state)
        skip();
    return *state;
}

static struct aq_io_request *prepare(struct rig *r, int i, enum aq_io_op op, uint32_t file,
                                     uint64_t offset, uint32_t bytes)
{
    r->request[i] = (struct aq_io_request){.op = op,
                                           .file = file,
                                           .offset = offset,
                                           .bytes = bytes,
                                           .buffer = r->buffers + (size_t)i * BUFFER_BYTES};
    return &r->request[i];
}

static int32_t do_one(struct rig *r, struct aq_io_request *q)
{
    struct aq_io_reaped reaped;
    assert_int_equal(aq_io_queue(r->io, q), 0);
    assert_int_equal(aq_io_commit(r->io, NULL), 0);
    assert_int_equal(aq_io_reap(r->io, 1, AQ_IO_FOREVER, &reaped, NULL), 0);
    assert_int_equal(reaped.count, 1);
    assert_ptr_equal(reaped.list, q);
    assert_null(q->next);
    assert_false(q->out);
    return q->result;
}

/* ---- the contract ---- */

/* The request's file, or its buffer, changes as the shadow does. */
static void check(struct rig *r, const struct aq_io_request *q)
{
    assert_int_equal(q->result, q->bytes);
    unsigned char *shadow = r->shadow[q->file] + q->offset;
    if (q->op == AQ_IO_READ)
        assert_memory_equal(q->buffer, shadow, q->bytes);
    else
        memcpy(shadow, q->buffer, q->bytes);
}

/* Request i stays within its own eighth of the files, so that those in flight do not overlap. */
static void draw(struct rig *r, int i, uint64_t turn)
{
    uint64_t key = 2, eighth = FILE_BYTES / DEPTH, pages = eighth / AQ_IO_ALIGN;
    uint64_t first = aq_prng_below(key, turn, 0, pages);
    uint64_t count = 1 + aq_prng_below(key, turn, 1, pages - first);
    struct aq_io_request *q =
        prepare(r, i, aq_prng_below(key, turn, 2, 2) ? AQ_IO_WRITE : AQ_IO_READ,
                (uint32_t)aq_prng_below(key, turn, 3, FILES),
                (uint64_t)i * eighth + first * AQ_IO_ALIGN, (uint32_t)(count * AQ_IO_ALIGN));
    for (uint64_t at = 0; at < q->bytes; at += 8)
        *(uint64_t *)((char *)q->buffer + at) = aq_prng_u64(key, turn, 4 + at);
}

static void ranges_read_back_as_they_were_written(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_reaped reaped;
    uint64_t turn = 0;
    for (int i = 0; i < DEPTH; i++) {
        draw(r, i, turn++);
        assert_int_equal(aq_io_queue(r->io, &r->request[i]), 0);
    }
    while (aq_io_out(r->io) > 0) {
        assert_int_equal(aq_io_commit(r->io, NULL), 0);
        assert_int_equal(aq_io_reap(r->io, 1 + turn % DEPTH, AQ_IO_FOREVER, &reaped, NULL), 0);
        assert_true(reaped.count > 0);
        for (struct aq_io_request *q = reaped.list, *next; q; q = next) {
            next = q->next;
            check(r, q);
            if (turn < 400) {
                int i = (int)(q - r->request);
                draw(r, i, turn++);
                assert_int_equal(aq_io_queue(r->io, q), 0);
            }
        }
    }
    assert_int_equal(turn, 400);
    for (uint32_t f = 0; f < FILES; f++) {
        for (uint64_t at = 0; at < FILE_BYTES; at += BUFFER_BYTES) {
            struct aq_io_request *q = prepare(r, DEPTH, AQ_IO_READ, f, at, BUFFER_BYTES);
            assert_int_equal(do_one(r, q), BUFFER_BYTES);
            check(r, q);
        }
    }
}

static void a_full_queue_says_not_now(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_reaped reaped;
    for (int i = 0; i < DEPTH; i++)
        assert_int_equal(aq_io_queue(r->io, prepare(r, i, AQ_IO_READ, 0, (uint64_t)i * 4096, 4096)),
                         0);
    struct aq_io_request *more = prepare(r, DEPTH, AQ_IO_READ, 1, 0, 4096);
    assert_int_equal(aq_io_queue(r->io, more), -EAGAIN);
    assert_int_equal(aq_io_commit(r->io, NULL), 0);
    assert_int_equal(aq_io_queue(r->io, more), -EAGAIN);
    assert_int_equal(aq_io_out(r->io), DEPTH);
    assert_int_equal(aq_io_reap(r->io, 1, AQ_IO_FOREVER, &reaped, NULL), 0);
    assert_int_equal(aq_io_queue(r->io, more), 0);
    while (aq_io_out(r->io) > 0)
        assert_int_equal(aq_io_reap(r->io, DEPTH, AQ_IO_FOREVER, &reaped, NULL), 0);
    assert_int_equal(more->result, 4096);
    assert_memory_equal(more->buffer, r->shadow[1], 4096);
}

static void the_end_of_a_file_is_a_short_read(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_request *q = prepare(r, 0, AQ_IO_READ, 0, FILE_BYTES - 8192, 4 * 8192);
    assert_int_equal(do_one(r, q), 8192);
    assert_memory_equal(q->buffer, r->shadow[0] + FILE_BYTES - 8192, 8192);
    assert_int_equal(do_one(r, prepare(r, 0, AQ_IO_READ, 0, 2 * FILE_BYTES, 4096)), 0);
}

static void an_error_is_the_result_of_its_request_alone(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_reaped reaped;
    if (r->engine >= MEM) {
        assert_int_equal(do_one(r, prepare(r, 0, AQ_IO_WRITE, 0, FILE_BYTES, 4096)), -ENOSPC);
        return;
    }
    /* The engine is opened again on a file that cannot be written. */
    aq_io_close(r->io);
    close(r->file[1].fd);
    r->file[1].fd = open(r->path[1], O_RDONLY | (r->file[1].direct ? O_DIRECT : 0));
    struct aq_err err;
    if (rig_engine(r, r->engine == THREADS ? AQ_IO_THREADS : AQ_IO_URING, &err) < 0)
        fail_msg("%s", err.text);
    struct aq_io_request *good = prepare(r, 0, AQ_IO_READ, 0, 0, 4096),
                         *bad = prepare(r, 1, AQ_IO_WRITE, 1, 0, 4096);
    assert_int_equal(aq_io_queue(r->io, bad), 0);
    assert_int_equal(aq_io_queue(r->io, good), 0);
    assert_int_equal(aq_io_commit(r->io, NULL), 0);
    assert_int_equal(aq_io_reap(r->io, 2, AQ_IO_FOREVER, &reaped, NULL), 0);
    assert_int_equal(reaped.count, 2);
    assert_int_equal(good->result, 4096);
    assert_int_equal(bad->result, -EBADF);
}

static void reap_commits_what_is_queued(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_reaped reaped;
    assert_int_equal(aq_io_queue(r->io, prepare(r, 0, AQ_IO_READ, 0, 0, 4096)), 0);
    assert_int_equal(aq_io_reap(r->io, 1, AQ_IO_FOREVER, &reaped, NULL), 0);
    assert_int_equal(reaped.count, 1);
}

static void reap_without_a_minimum_does_not_wait(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_reaped reaped;
    assert_int_equal(aq_io_reap(r->io, 0, AQ_IO_FOREVER, &reaped, NULL), 0);
    assert_int_equal(reaped.count, 0);
    assert_int_equal(aq_io_reap(r->io, 1, 0, &reaped, NULL), 0);
    assert_int_equal(reaped.count, 0);
    assert_null(reaped.list);
}

static void a_timeout_ends_the_wait(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_reaped reaped;
    uint64_t start = aq_io_now(r->io);
    assert_int_equal(aq_io_reap(r->io, 1, 2000000, &reaped, NULL), 0);
    assert_true(aq_io_now(r->io) - start >= 2000000);
    assert_int_equal(reaped.count, 0);
    assert_false(reaped.woken);
}

static void a_wake_before_the_wait_is_not_lost(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_reaped reaped;
    for (int i = 0; i < 3; i++) {
        aq_io_wake(r->io);
        aq_io_wake(r->io);
        assert_int_equal(aq_io_reap(r->io, 1, AQ_IO_FOREVER, &reaped, NULL), 0);
        assert_true(reaped.woken);
        assert_int_equal(aq_io_reap(r->io, 0, 0, &reaped, NULL), 0);
        assert_false(reaped.woken);
    }
    aq_io_wake(r->io);
    assert_int_equal(aq_io_reap(r->io, 0, 0, &reaped, NULL), 0);
    assert_true(reaped.woken);
}

static void *wake_soon(void *arg)
{
    usleep(2000);
    aq_io_wake(arg);
    return NULL;
}

static void a_wake_from_another_thread_ends_the_wait(void **state)
{
    struct rig *r = rig_of(state);
    struct aq_io_reaped reaped;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wake_soon, r->io), 0);
        assert_int_equal(aq_io_reap(r->io, 1, AQ_IO_FOREVER, &reaped, NULL), 0);
        assert_true(reaped.woken);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(do_one(r, prepare(r, 0, AQ_IO_READ, 0, 0, 4096)), 4096);
    }
}

/* Every wake must be seen, however the two threads fall together; a lost one hangs here. */
struct storm {
    struct aq_io *io;
    atomic_uint sent, seen;
};

static void *wake_often(void *arg)
{
    struct storm *s = arg;
    for (unsigned i = 0; i < 2000; i++) {
        atomic_fetch_add(&s->sent, 1);
        aq_io_wake(s->io);
        while (atomic_load(&s->seen) <= i)
            ;
    }
    return NULL;
}

static void no_wake_is_lost(void **state)
{
    struct rig *r = rig_of(state);
    struct storm s = {.io = r->io};
    pthread_t thread;
    struct aq_io_reaped reaped;
    assert_int_equal(pthread_create(&thread, NULL, wake_often, &s), 0);
    while (atomic_load(&s.seen) < 2000) {
        assert_int_equal(aq_io_reap(r->io, 1, AQ_IO_FOREVER, &reaped, NULL), 0);
        if (reaped.woken)
            atomic_store(&s.seen, atomic_load(&s.sent));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *read_one(void *arg)
{
    struct rig *r = arg;
    return (void *)(intptr_t)do_one(r, prepare(r, 0, AQ_IO_READ, 0, 0, 4096));
}

static void an_engine_opened_here_works_in_another_thread(void **state)
{
    struct rig *r = rig_of(state);
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, read_one, r), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal((intptr_t)result, 4096);
}

static void close_waits_for_what_is_in_flight(void **state)
{
    struct rig *r = rig_of(state);
    for (int i = 0; i < DEPTH; i++)
        assert_int_equal(aq_io_queue(r->io, prepare(r, i, AQ_IO_READ, 0, (uint64_t)i * 4096, 4096)),
                         0);
    assert_int_equal(aq_io_commit(r->io, NULL), 0);
    aq_io_close(r->io);
    r->io = NULL;
}

static void capabilities_say_what_is_in_effect(void **state)
{
    struct rig *r = rig_of(state);
    const struct aq_io_caps *caps = aq_io_caps(r->io);
    static const char *const names[] = {"uring", "uring", "threads", "mem", "fault"};
    assert_string_equal(caps->name, names[r->engine]);
    assert_int_equal(caps->depth_max, DEPTH);
    if (r->engine < MEM)
        assert_int_equal(caps->direct, r->file[0].direct);
    assert_int_equal(caps->align_bytes, caps->direct ? AQ_IO_ALIGN : 1);
    assert_int_equal(caps->virtual_time, r->engine == FAULT);
    if (caps->fixed_buffers)
        assert_int_equal(r->engine <= URING_BUFFERED, 1);
}

static int open_uring(void **state)
{
    return rig_open(state, URING);
}
static int open_uring_buffered(void **state)
{
    return rig_open(state, URING_BUFFERED);
}
static int open_threads(void **state)
{
    return rig_open(state, THREADS);
}
static int open_mem(void **state)
{
    return rig_open(state, MEM);
}
static int open_fault(void **state)
{
    return rig_open(state, FAULT);
}

/* ---- falling back ---- */

/* Runs `body` in a child; its exit status is the answer. */
static void in_a_child(int (*body)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(body());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip(); /* no seccomp here */
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* As container runtimes do by default. */
static int forbid_uring(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {AQ_ARRAY_LEN(filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int forbidden_body(void)
{
    struct aq_err err;
    struct rig *r = rig_files(THREADS);
    if (forbid_uring() < 0)
        return 77;
    if (rig_engine(r, AQ_IO_AUTO, &err) < 0)
        return 2;
    if (strcmp(aq_io_caps(r->io)->name, "threads") != 0 || !strstr(r->log, "threads"))
        return 3;
    prepare(r, 0, AQ_IO_READ, 0, 0, 4096);
    struct aq_io_reaped reaped;
    if (aq_io_queue(r->io, &r->request[0]) < 0 ||
        aq_io_reap(r->io, 1, AQ_IO_FOREVER, &reaped, NULL) < 0 || r->request[0].result != 4096 ||
        memcmp(r->request[0].buffer, r->shadow[0], 4096) != 0)
        return 4;
    aq_io_close(r->io);
    r->io = NULL;
    if (rig_engine(r, AQ_IO_URING, &err) != -ENODEV || !strstr(err.text, "uring"))
        return 5;
    struct aq_io_description d;
    aq_io_describe(&d);
    if (d.kind != AQ_IO_THREADS || !d.uring_reason)
        return 6;
    rig_free(r);
    return 0;
}

static void a_forbidden_ring_becomes_a_pool_of_threads(void **state)
{
    (void)state;
    in_a_child(forbidden_body);
}

static int locked_body(void)
{
    struct aq_err err;
    struct aq_io_description d;
    aq_io_describe(&d);
    if (d.uring_reason)
        return 0;
    struct rig *r = rig_files(URING);
    struct rlimit limit = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || (geteuid() == 0 && seteuid(65534) < 0))
        return 1;
    if (rig_engine(r, AQ_IO_AUTO, &err) < 0)
        return 2;
    if (strcmp(aq_io_caps(r->io)->name, "uring") != 0 || aq_io_caps(r->io)->fixed_buffers)
        return 3;
    if (!strstr(r->log, "locked-memory limit (ulimit -l) is 1024 KiB"))
        return 4;
    if (do_one(r, prepare(r, 0, AQ_IO_READ, 0, 0, 4096)) != 4096 ||
        memcmp(r->request[0].buffer, r->shadow[0], 4096) != 0)
        return 5;
    rig_free(r);
    return 0;
}

static void too_little_lockable_memory_means_unregistered_buffers(void **state)
{
    (void)state;
    in_a_child(locked_body);
}

static void a_null_engine_moves_nothing(void **state)
{
    (void)state;
    unsigned char page[4096] = {7};
    struct aq_io_mem_file file = {NULL, 0, NULL};
    struct aq_io_mem_opts opts = {.files = &file, .file_count = 1, .depth = 1, .null = true};
    struct aq_io *io;
    struct aq_io_reaped reaped;
    assert_int_equal(aq_io_open_mem(&io, &opts, NULL), 0);
    struct aq_io_request q = {.op = AQ_IO_READ, .bytes = 4096, .buffer = page};
    assert_int_equal(aq_io_queue(io, &q), 0);
    assert_int_equal(aq_io_reap(io, 1, AQ_IO_FOREVER, &reaped, NULL), 0);
    assert_int_equal(q.result, 4096);
    assert_int_equal(page[0], 7);
    aq_io_close(io);
}

#define ON(engine, test)                                                                           \
    {                                                                                              \
#engine ": " #test, test, open_##engine, rig_close, NULL                                   \
    }
#define CONTRACT(engine)                                                                           \
    ON(engine, ranges_read_back_as_they_were_written), ON(engine, a_full_queue_says_not_now),      \
        ON(engine, the_end_of_a_file_is_a_short_read),                                             \
        ON(engine, an_error_is_the_result_of_its_request_alone),                                   \
        ON(engine, reap_commits_what_is_queued), ON(engine, reap_without_a_minimum_does_not_wait), \
        ON(engine, a_timeout_ends_the_wait), ON(engine, a_wake_before_the_wait_is_not_lost),       \
        ON(engine, a_wake_from_another_thread_ends_the_wait), ON(engine, no_wake_is_lost),         \
        ON(engine, an_engine_opened_here_works_in_another_thread),                                 \
        ON(engine, close_waits_for_what_is_in_flight),                                             \
        ON(engine, capabilities_say_what_is_in_effect)

static const struct CMUnitTest tests[] = {
    CONTRACT(uring),
    CONTRACT(uring_buffered),
    CONTRACT(threads),
    CONTRACT(mem),
    CONTRACT(fault),
    cmocka_unit_test(a_forbidden_ring_becomes_a_pool_of_threads),
    cmocka_unit_test(too_little_lockable_memory_means_unregistered_buffers),
    cmocka_unit_test(a_null_engine_moves_nothing),
};
AQ_TEST_MAIN(tests)
