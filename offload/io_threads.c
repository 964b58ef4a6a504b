/* SPDX-License-Identifier: Apache-2.0
 * offload/io_threads.c - a pool of threads that call pread and pwrite: for kernels and containers
 * without io_uring.  Each thread has one request at a time, so the pool's size is the depth that
 * the disk sees. */
#include "offload/io_engine.h"

#include "base/threads.h"
#include "base/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORKERS_DEFAULT = 8, WORKER_STACK_BYTES = 128 * 1024 };

/* A worker touches its job and never the request: when the engine is abandoned the request may be
 * gone before a hung read returns. */
struct job {
    struct aq_io_request *request;
    enum aq_io_op op;
    uint32_t file, bytes;
    uint64_t offset;
    void *buffer;
    int32_t result;
    struct job *next;
};

struct list {
    struct job *head, *tail;
};

struct threads {
    struct aq_io io;
    struct job *jobs; /* [depth] */
    struct job *spare;
    struct list staged; /* queued; the caller's thread only */
    struct aq_io_bell bell;
    atomic_bool woken;
    pthread_t *worker;
    uint32_t worker_count;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work;
    struct list todo, finished;
    bool stop;
};

static struct threads *threads_of(struct aq_io *io)
{
    return (struct threads *)io;
}

static void push(struct list *l, struct job *j)
{
    j->next = NULL;
    if (l->tail)
        l->tail->next = j;
    else
        l->head = j;
    l->tail = j;
}

static struct job *pop(struct list *l)
{
    struct job *j = l->head;
    if (j) {
        l->head = j->next;
        if (!l->head)
            l->tail = NULL;
    }
    return j;
}

static void carry_out(const struct threads *t, struct job *j)
{
    const struct aq_io_file *file = &t->io.files[j->file];
    ssize_t n = j->op == AQ_IO_READ ? pread(file->fd, j->buffer, j->bytes, (off_t)j->offset)
                                    : pwrite(file->fd, j->buffer, j->bytes, (off_t)j->offset);
    j->result = n < 0 ? -errno : (int32_t)n;
    if (n > 0)
        aq_io_forget(file, j->offset, (uint64_t)n);
}

static void *worker_main(void *arg)
{
    struct threads *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) { /* until close */
        struct job *j = pop(&t->todo);
        if (!j && t->stop)
            break;
        if (!j) {
            pthread_cond_wait(&t->work, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        carry_out(t, j);
        pthread_mutex_lock(&t->lock);
        push(&t->finished, j);
        aq_io_bell_ring(&t->bell);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int threads_queue(struct aq_io *io, struct aq_io_request *r)
{
    struct threads *t = threads_of(io);
    struct job *j = t->spare;
    assert(j); /* one a request, and io.c counts those */
    t->spare = j->next;
    *j = (struct job){.request = r,
                      .op = r->op,
                      .file = r->file,
                      .bytes = r->bytes,
                      .offset = r->offset,
                      .buffer = r->buffer};
    push(&t->staged, j);
    return 0;
}

static int threads_commit(struct aq_io *io, struct aq_err *reterr)
{
    struct threads *t = threads_of(io);
    (void)reterr;
    if (!t->staged.head)
        return 0;
    pthread_mutex_lock(&t->lock);
    for (struct job *j; (j = pop(&t->staged));)
        push(&t->todo, j);
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

static void collect(struct threads *t, struct aq_io_reaped *ret)
{
    pthread_mutex_lock(&t->lock);
    struct job *j = t->finished.head;
    t->finished = (struct list){0};
    pthread_mutex_unlock(&t->lock);
    while (j) {
        struct job *next = j->next;
        aq_io_finish(&t->io, ret, j->request, j->result);
        j->next = t->spare;
        t->spare = j;
        j = next;
    }
    if (atomic_exchange(&t->woken, false))
        ret->woken = true;
}

static int threads_reap(struct aq_io *io, uint32_t min, uint64_t timeout_ns,
                        struct aq_io_reaped *ret, struct aq_err *reterr)
{
    struct threads *t = threads_of(io);
    (void)threads_commit(io, reterr); /* cannot fail */
    uint64_t start = aq_io_now(io);
    /* At most one turn a completion or wake, and one for a stale bell. */
    for (;;) {
        aq_io_bell_quiet(&t->bell);
        collect(t, ret);
        uint64_t spent = aq_io_now(io) - start;
        if (ret->count >= min || ret->woken || spent >= timeout_ns)
            return 0;
        if (!aq_io_bell_wait(&t->bell,
                             timeout_ns == AQ_IO_FOREVER ? AQ_IO_FOREVER : timeout_ns - spent))
            ret->woken = true;
    }
}

static void threads_wake(struct aq_io *io)
{
    struct threads *t = threads_of(io);
    atomic_store(&t->woken, true);
    aq_io_bell_ring(&t->bell);
}

static void threads_close(struct aq_io *io, bool abandon)
{
    struct threads *t = threads_of(io);
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->worker_count; i++) {
        if (abandon)
            pthread_detach(t->worker[i]);
        else
            pthread_join(t->worker[i], NULL);
    }
    if (abandon)
        return; /* a worker in a hung read still has the jobs and the bell */
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->work);
    aq_io_bell_close(&t->bell);
    aq_io_fini(io);
    free(t->worker);
    free(t->jobs);
    free(t);
}

static const struct aq_io_ops threads_ops = {
    .queue = threads_queue,
    .commit = threads_commit,
    .reap = threads_reap,
    .wake = threads_wake,
    .close = threads_close,
};

static int start_workers(struct threads *t, uint32_t count, struct aq_err *reterr)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
    int rc = 0;
    while (t->worker_count < count && rc == 0) {
        rc = aq_thread_start(&t->worker[t->worker_count], &attr, worker_main, t);
        if (rc == 0)
            t->worker_count++;
    }
    pthread_attr_destroy(&attr);
    if (rc == 0)
        return 0;
    if (t->worker_count == 0)
        return aq_thread_error(reterr, "the first thread of io engine 'threads'", rc);
    aq_log_line(&t->io.log, AQ_LOG_WARNING, "io: %u threads instead of %u: %s", t->worker_count,
                count, strerror(rc));
    return 0;
}

int aq_io_open_threads(struct aq_io **ret, const struct aq_io_opts *opts, struct aq_err *reterr)
{
    struct threads *t = calloc(1, sizeof(*t));
    if (!t)
        return aq_error_memory(reterr, "io engine 'threads'");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    t->bell.fd = -1;
    if (opts->log)
        t->io.log = *opts->log;
    uint32_t count = opts->threads ? opts->threads : WORKERS_DEFAULT;
    count = (uint32_t)aq_min_u64(count, opts->depth);
    int rc = aq_io_init(&t->io, &threads_ops, "threads", opts->files, opts->file_count, opts->depth,
                        reterr);
    if (rc < 0)
        goto fail;
    t->jobs = calloc(opts->depth, sizeof(*t->jobs));
    t->worker = calloc(count, sizeof(*t->worker));
    if (!t->jobs || !t->worker) {
        rc = aq_error_memory(reterr, "io engine 'threads': depth %u", opts->depth);
        goto fail;
    }
    for (uint32_t i = 0; i < opts->depth; i++) {
        t->jobs[i].next = t->spare;
        t->spare = &t->jobs[i];
    }
    rc = aq_io_bell_open(&t->bell, reterr);
    if (rc == 0)
        rc = start_workers(t, count, reterr);
    if (rc < 0)
        goto fail;
    *ret = &t->io;
    return 0;
fail:
    threads_close(&t->io, false);
    return rc;
}
