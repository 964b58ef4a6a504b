/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/writer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/threads.h"
#include "base/types.h"
#include "engine/job/sums.h"

#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SYNC_NS = 1000000000,
    POLL_MS = 100,
    OPEN_MODE = 0666,
    SUMS_MAX = 64 * AQ_SUMS_PER_LINE, /* lines that may be unsynced */
};

struct line {
    struct line *next;
    bool error;
    char *bytes; /* newline included */
    size_t count;
};

/* A file that grows by whole lines. */
struct growing {
    const char *path;
    int fd;
    off_t size;  /* of the whole lines in it */
    bool stream; /* a pipe or device: does not block, cannot be cut back */
    bool dirty;  /* something in it is not synced */
    enum aq_compression compression;
    /* Where it is compressed: lines of the member that comes next, and how many they are. */
    struct aq_buf text, member;
    uint64_t held;
};

struct aq_writer {
    struct aq_writer_opts opts;
    struct growing results, errors, sums; /* path NULL: there is none */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;

    /* under the mutex */
    struct line *first, *last;
    size_t queued_bytes;
    uint64_t lines;
    bool closing, hurry;
    bool wanted; /* somebody waits for all lines to be in their files */
    bool full;   /* it waits for space */
    /* Lines that were put, that the thread has taken, that are on the disk; and how many somebody
     * waits for to be there. */
    uint64_t put, taken, safe, safe_wanted;
    uint64_t hurry_ns; /* since when */
    struct aq_err err; /* code != 0: the writer has ended */

    /* the thread's own */
    uint64_t synced_ns;
    uint64_t sum[SUMS_MAX]; /* of result lines whose sums are not in their file yet */
    size_t sum_count;
};

/* ---- the thread ---- */

static void writer_fail(struct aq_writer *w, const struct growing *g, int code, const char *what)
{
    /* -EINTR of a stream is our own: told to wait for its reader no longer. */
    int known = g->stream && code == -EINTR ? code : aq_err_of_io(-code);
    pthread_mutex_lock(&w->mutex);
    if (!w->err.code)
        aq_error(&w->err, known, "%s '%s': %s%s", what, g->path, strerror(-code),
                 g->stream ? ""
                           : "; the results stay as far as they were written, and the same "
                             "command goes on from there");
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

/* Waits until `until` or for a change; returns whether the writer is told to give up waiting. */
static bool pause_until(struct aq_writer *w, uint64_t until_ns)
{
    struct timespec t = {.tv_sec = (time_t)(until_ns / 1000000000),
                         .tv_nsec = (long)(until_ns % 1000000000)};
    pthread_mutex_lock(&w->mutex);
    while (!w->hurry && aq_clock_ns() < until_ns)
        pthread_cond_timedwait(&w->changed, &w->mutex, &t);
    bool hurry = w->hurry;
    pthread_mutex_unlock(&w->mutex);
    return hurry;
}

static void set_full(struct aq_writer *w, bool full)
{
    pthread_mutex_lock(&w->mutex);
    w->full = full;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

/* Waits until a pipe takes bytes again; false: nobody reads, and the run wants to end. */
static bool wait_for_reader(struct aq_writer *w)
{
    poll(&(struct pollfd){.fd = w->results.fd, .events = POLLOUT}, 1, POLL_MS);
    pthread_mutex_lock(&w->mutex);
    bool late = w->hurry && aq_clock_ns() - w->hurry_ns > AQ_WRITER_HURRY_S * 1000000000ull;
    pthread_mutex_unlock(&w->mutex);
    return !late;
}

/* One line, from its first byte.  Returns the errno of a failure after cutting back what was
 * written of it. */
static int append(struct aq_writer *w, struct growing *g, const char *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t n = TEMP_FAILURE_RETRY(w->opts.write(g->fd, bytes + done, count - done));
        if (n < 0 && errno == EAGAIN && g->stream) {
            if (!wait_for_reader(w))
                return -EINTR;
            continue;
        }
        if (n <= 0) {
            int code = n < 0 ? -errno : -EIO;
            if (done && !g->stream && aq_file_truncate(g->fd, (uint64_t)g->size) < 0)
                return -EIO;
            return code;
        }
        done += (size_t)n;
    }
    g->size += (off_t)count;
    g->dirty = true;
    return 0;
}

static bool sync_file(struct aq_writer *w, struct growing *g)
{
    int rc = g->dirty ? aq_file_sync_by(g->fd, w->opts.sync) : 0;
    g->dirty = false;
    if (rc < 0)
        writer_fail(w, g, rc, "sync");
    return rc == 0;
}

/* append, again and again while the disk is full; other errors end the writer, and a device that
 * says so has no space that anybody could make. */
static bool append_again(struct aq_writer *w, struct growing *g, const char *bytes, size_t count)
{
    uint64_t begin_ns = aq_clock_ns(), wait_ns = (uint64_t)(w->opts.disk_full_wait_s * 1e9);
    uint64_t retry_ns = (uint64_t)(w->opts.retry_s * 1e9);
    for (bool told = false;; told = true) {
        int code = append(w, g, bytes, count);
        if (code == 0) {
            if (told)
                aq_log_line(w->opts.log, AQ_LOG_INFO, "'%s': there is space again, going on",
                            g->path);
            return true;
        }
        uint64_t now_ns = aq_clock_ns();
        if (g->stream || !aq_file_is_full(code) || now_ns - begin_ns >= wait_ns) {
            writer_fail(w, g, code, "write");
            return false;
        }
        if (!told) {
            set_full(w, true);
            aq_log_line(w->opts.log, AQ_LOG_WARNING,
                        "write '%s': %s; waiting up to %.0f s for space", g->path, strerror(-code),
                        w->opts.disk_full_wait_s);
        }
        /* the wait is longer than results may stay in memory */
        if (!told && !sync_file(w, &w->results))
            return false;
        if (pause_until(w, now_ns + retry_ns)) {
            writer_fail(w, g, code, "write");
            return false;
        }
    }
}

static bool append_patiently(struct aq_writer *w, struct growing *g, const char *bytes,
                             size_t count)
{
    bool good = append_again(w, g, bytes, count);
    if (w->full) /* which this thread alone sets */
        set_full(w, false);
    return good;
}

static void lines_done(struct aq_writer *w, uint64_t lines, size_t bytes)
{
    pthread_mutex_lock(&w->mutex);
    w->queued_bytes -= bytes;
    w->lines += lines;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

/* The lines that are held become a member of their file. */
static bool end_member(struct aq_writer *w, struct growing *g)
{
    if (!g->held)
        return true;
    aq_buf_clear(&g->member);
    int rc = g->text.failed ? -ENOMEM
                            : aq_compress(&g->member, g->compression, g->text.data, g->text.count);
    if (rc < 0) {
        writer_fail(w, g, rc, "compress");
        return false;
    }
    bool good = append_patiently(w, g, g->member.data, g->member.count);
    lines_done(w, good ? g->held : 0, g->text.count);
    aq_buf_clear(&g->text);
    g->held = 0;
    return good;
}

/* A compressed file without a line has a member without text: no bytes at all are no such file. */
static bool end_empty(struct aq_writer *w, struct growing *g)
{
    if (!g->path || g->compression == AQ_PLAIN || g->size || g->held)
        return true;
    aq_buf_clear(&g->member);
    int rc = aq_compress(&g->member, g->compression, "", 0);
    if (rc == 0)
        return append_patiently(w, g, g->member.data, g->member.count);
    writer_fail(w, g, rc, "compress");
    return false;
}

/* Results first, then what says that they are on the disk. */
static bool sync_all(struct aq_writer *w)
{
    char text[AQ_SUMS_LINE_BYTES];
    w->synced_ns = aq_clock_ns();
    if (!end_member(w, &w->results) || !end_member(w, &w->errors))
        return false;
    if (!sync_file(w, &w->results) || !sync_file(w, &w->errors))
        return false;
    for (size_t done = 0, count; done < w->sum_count; done += count) {
        count = aq_min_u64(w->sum_count - done, AQ_SUMS_PER_LINE);
        size_t bytes = aq_sums_format(text, w->sum + done, count);
        if (!append_patiently(w, &w->sums, text, bytes))
            return false;
    }
    w->sum_count = 0;
    if (!sync_file(w, &w->sums))
        return false;
    pthread_mutex_lock(&w->mutex);
    w->safe = w->taken;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return true;
}

/* A line into its file, or to the lines of its next member. */
static bool append_line(struct aq_writer *w, struct growing *g, const struct line *l)
{
    if (g->compression == AQ_PLAIN) {
        bool good = append_patiently(w, g, l->bytes, l->count);
        lines_done(w, good, l->count);
        return good;
    }
    aq_buf_put(&g->text, l->bytes, l->count);
    g->held++;
    return g->text.count < AQ_MEMBER_BYTES || end_member(w, g);
}

static bool append_result(struct aq_writer *w, const struct line *l)
{
    if (!append_line(w, l->error && w->errors.path ? &w->errors : &w->results, l))
        return false;
    if (w->sums.path)
        w->sum[w->sum_count++] = aq_sums_of(l->bytes, l->count);
    return w->sum_count < SUMS_MAX || sync_all(w);
}

/* Whether lines wait for the next sync. */
static bool is_behind(const struct aq_writer *w)
{
    return w->results.dirty || w->errors.dirty || w->results.held || w->errors.held;
}

/* Whether somebody waits for lines that only a sync gets to where they are to be. */
static bool is_asked(const struct aq_writer *w)
{
    return (w->wanted && (w->results.held || w->errors.held)) || w->safe_wanted > w->safe;
}

/* The next line, or NULL when it is time to sync or to end. */
static struct line *take_line(struct aq_writer *w, bool *ret_end, bool *ret_sync)
{
    uint64_t due_ns = w->synced_ns + SYNC_NS;
    struct timespec due = {.tv_sec = (time_t)(due_ns / 1000000000),
                           .tv_nsec = (long)(due_ns % 1000000000)};
    pthread_mutex_lock(&w->mutex);
    while (!w->first && !w->closing && !is_asked(w) && !(is_behind(w) && aq_clock_ns() >= due_ns)) {
        if (is_behind(w))
            pthread_cond_timedwait(&w->changed, &w->mutex, &due);
        else
            pthread_cond_wait(&w->changed, &w->mutex);
    }
    struct line *l = w->first;
    if (l) {
        w->first = l->next;
        if (!w->first)
            w->last = NULL;
        w->taken++;
    }
    *ret_end = !l && w->closing;
    *ret_sync = *ret_end || (!l && is_asked(w));
    pthread_mutex_unlock(&w->mutex);
    return l;
}

static void *writer_main(void *arg)
{
    struct aq_writer *w = arg;
    w->synced_ns = aq_clock_ns();
    for (;;) {
        bool end, sync;
        struct line *l = take_line(w, &end, &sync);
        bool good = true;
        if (l) {
            good = append_result(w, l);
            free(l->bytes);
            free(l);
        }
        if (good && end)
            good = end_empty(w, &w->results) && end_empty(w, &w->errors);
        if (good && (sync || aq_clock_ns() - w->synced_ns >= SYNC_NS))
            good = sync_all(w);
        if (!good || end)
            return NULL;
    }
}

/* ---- the outside ---- */

static void free_lines(struct aq_writer *w)
{
    for (struct line *l = w->first, *next; l; l = next) {
        next = l->next;
        free(l->bytes);
        free(l);
    }
}

/* 0, or the code of a failed close. */
static int drop(struct growing *g)
{
    aq_buf_close(&g->text);
    aq_buf_close(&g->member);
    return g->fd >= 0 ? aq_file_close(g->fd) : 0;
}

static int adopt(struct growing *g, const char *path, int fd, enum aq_compression compression,
                 struct aq_err *reterr)
{
    struct stat st;
    *g = (struct growing){.path = path, .fd = fd, .compression = compression};
    if (fstat(fd, &st) < 0)
        return aq_error(reterr, -EIO, "look at '%s': %s", path, strerror(errno));
    g->size = st.st_size;
    g->stream = !S_ISREG(st.st_mode);
    return 0;
}

/* Opens without waiting: a pipe nobody reads would hold the caller up for as long as that is so. */
static int open_target(struct aq_writer *w, struct aq_err *reterr)
{
    enum { flags = O_WRONLY | O_APPEND | O_CLOEXEC | O_CREAT | O_NONBLOCK };
    const struct aq_writer_opts *o = &w->opts;
    struct stat st;
    int fd;
    for (bool told = false;; told = true) {
        fd = aq_file_open(o->path, flags, OPEN_MODE);
        bool waits = fd == -ENXIO && stat(o->path, &st) == 0 && S_ISFIFO(st.st_mode);
        if (!waits)
            break;
        if (o->interrupted && o->interrupted(o->user))
            return aq_error(reterr, -EINTR, "interrupted: no one has opened '%s' for reading",
                            o->path);
        if (!told)
            aq_log_line(o->log, AQ_LOG_WARNING, "'%s' is a pipe: waiting for a reader", o->path);
        poll(NULL, 0, POLL_MS);
    }
    if (fd < 0)
        return aq_error(reterr, aq_file_is_full(fd) ? fd : -EINVAL, "open the output '%s': %s",
                        o->path, strerror(-fd));
    return adopt(&w->results, o->path, fd, o->compression, reterr);
}

/* A file beside the results. */
static int open_beside(struct growing *g, const char *path, int flags,
                       enum aq_compression compression, struct aq_err *reterr)
{
    int fd = aq_file_open(path, O_WRONLY | O_APPEND | O_CLOEXEC | flags, OPEN_MODE);
    return fd < 0 ? aq_error(reterr, aq_err_of_io(-fd), "open '%s': %s", path, strerror(-fd))
                  : adopt(g, path, fd, compression, reterr);
}

static int open_all(struct aq_writer *w, struct aq_err *reterr)
{
    const struct aq_writer_opts *o = &w->opts;
    int rc = open_target(w, reterr);
    if (rc == 0 && o->errors)
        rc = open_beside(&w->errors, o->errors, O_CREAT, o->errors_compression, reterr);
    if (rc == 0 && o->sums)
        rc = open_beside(&w->sums, o->sums, 0, AQ_PLAIN, reterr);
    if (rc == 0 && !w->results.stream)
        rc = aq_file_sync_folder(o->path, reterr);
    if (rc == 0 && o->errors)
        rc = aq_file_sync_folder(o->errors, reterr);
    return rc;
}

static int writer_begin(struct aq_writer *w, struct aq_err *reterr)
{
    pthread_mutex_init(&w->mutex, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    int failed = pthread_create(&w->thread, NULL, writer_main, w);
    return failed ? aq_thread_error(reterr, "the writer's thread", failed) : 0;
}

int aq_writer_open(struct aq_writer **ret, const struct aq_writer_opts *opts, struct aq_err *reterr)
{
    assert(ret && opts && opts->path);
    struct aq_writer *w = calloc(1, sizeof(*w));
    if (!w)
        return aq_error_memory(reterr, "writer of '%s'", opts->path);
    w->opts = *opts;
    w->opts.write = opts->write ? opts->write : write;
    w->opts.sync = opts->sync ? opts->sync : fdatasync;
    w->opts.retry_s = opts->retry_s > 0 ? opts->retry_s : 1;
    w->results.fd = w->errors.fd = w->sums.fd = -1;
    int rc = open_all(w, reterr);
    if (rc == 0)
        rc = writer_begin(w, reterr);
    if (rc == 0) {
        *ret = w;
        return 0;
    }
    drop(&w->results);
    drop(&w->errors);
    drop(&w->sums);
    free(w);
    return rc;
}

/* Hands out the error that ended the writer. */
static int writer_state(const struct aq_writer *w, struct aq_err *reterr)
{
    if (w->err.code && reterr)
        *reterr = w->err;
    return w->err.code;
}

int aq_writer_put(struct aq_writer *w, char *line, size_t bytes, bool error, struct aq_err *reterr)
{
    struct line *l = malloc(sizeof(*l));
    char *whole = l ? realloc(line, bytes + 1) : NULL;
    if (!whole) {
        free(l);
        free(line);
        return aq_error_memory(reterr, "a result line of %zu bytes", bytes);
    }
    whole[bytes] = '\n';
    *l = (struct line){.error = error, .bytes = whole, .count = bytes + 1};
    pthread_mutex_lock(&w->mutex);
    while (!w->err.code && w->queued_bytes && w->queued_bytes + l->count > w->opts.queue_bytes)
        pthread_cond_wait(&w->changed, &w->mutex);
    int rc = writer_state(w, reterr);
    if (rc == 0) {
        if (w->last)
            w->last->next = l;
        else
            w->first = l;
        w->last = l;
        w->queued_bytes += l->count;
        w->put++;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    if (rc < 0) {
        free(whole);
        free(l);
    }
    return rc;
}

bool aq_writer_idle(struct aq_writer *w, uint64_t ns)
{
    uint64_t due_ns = aq_clock_ns() + ns;
    struct timespec due = {.tv_sec = (time_t)(due_ns / 1000000000),
                           .tv_nsec = (long)(due_ns % 1000000000)};
    int late = 0;
    pthread_mutex_lock(&w->mutex);
    w->wanted = true;
    pthread_cond_broadcast(&w->changed);
    while (w->queued_bytes && !w->err.code && !late)
        late = pthread_cond_timedwait(&w->changed, &w->mutex, &due);
    w->wanted = false;
    bool idle = !w->queued_bytes || w->err.code;
    pthread_mutex_unlock(&w->mutex);
    return idle;
}

bool aq_writer_make_safe(struct aq_writer *w, uint64_t ns)
{
    uint64_t due_ns = aq_clock_ns() + ns;
    struct timespec due = {.tv_sec = (time_t)(due_ns / 1000000000),
                           .tv_nsec = (long)(due_ns % 1000000000)};
    int late = 0;
    pthread_mutex_lock(&w->mutex);
    uint64_t goal = w->safe_wanted = w->put;
    pthread_cond_broadcast(&w->changed);
    while (w->safe < goal && !w->full && !w->hurry && !w->err.code && !late)
        late = pthread_cond_timedwait(&w->changed, &w->mutex, &due);
    w->safe_wanted = 0;
    bool safe = w->safe >= goal && !w->err.code;
    pthread_mutex_unlock(&w->mutex);
    return safe;
}

uint64_t aq_writer_lines(struct aq_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    uint64_t lines = w->lines;
    pthread_mutex_unlock(&w->mutex);
    return lines;
}

void aq_writer_hurry(struct aq_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    if (!w->hurry)
        w->hurry_ns = aq_clock_ns();
    w->hurry = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

int aq_writer_close(struct aq_writer *w, uint64_t *ret_lines, struct aq_err *reterr)
{
    if (!w)
        return 0;
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    int rc = writer_state(w, reterr);
    if (ret_lines)
        *ret_lines = w->lines;
    free_lines(w);
    int closed = drop(&w->results);
    if (closed < 0 && rc == 0)
        rc = aq_error(reterr, aq_err_of_io(-closed), "close '%s': %s", w->opts.path,
                      strerror(-closed));
    drop(&w->errors); /* synced, as sums are: nothing can be lost here */
    drop(&w->sums);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->changed);
    free(w);
    return rc;
}
