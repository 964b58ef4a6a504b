/* SPDX-License-Identifier: Apache-2.0
 * offload/device_gpu.c - streams of a GPU.  What is submitted goes to the driver at once, between
 * two events; a thread per stream sleeps until the second of the oldest entry is over and reports
 * it.  (The driver could call a function of ours in the stream instead; but it calls none once
 * something has failed, and who waits would wait for ever.)  Streams of the host are threads, as
 * without a GPU. */
#include "offload/device_internal.h"

#include "base/clock.h"
#include "base/types.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct aq_gpu_ops *ops_of(const struct aq_device *d)
{
    return d->opts.gpu_ops;
}

static bool is_native(const struct aq_device_stream *s)
{
    return s->opts.side == AQ_STREAM_DEVICE;
}

/* The first failure of the driver is the one that is told. */
static void record_failure(struct aq_device *d, int code)
{
    pthread_mutex_lock(&d->lock);
    if (!d->failed)
        d->failed = -EIO;
    if (!d->failure)
        d->failure = ops_of(d)->error_text(code);
    pthread_mutex_unlock(&d->lock);
}

/* ---- memory ---- */

/* The ledger has room: then so should the GPU, unless somebody else took it. */
static int gpu_take(struct aq_device *d, void **ret, const char *purpose, size_t bytes,
                    struct aq_err *reterr)
{
    const struct aq_gpu_ops *ops = ops_of(d);
    uint64_t free_bytes = 0, total = 0;
    int rc = aq_mem_count(d->opts.mem, AQ_DEVICE, purpose, bytes, reterr);
    if (rc < 0)
        return rc;
    rc = ops->take(d->opts.gpu, ret, bytes);
    if (!rc)
        return 0;
    aq_mem_uncount(d->opts.mem, AQ_DEVICE, purpose, bytes);
    const char *why = ops->error_text(rc);
    ops->memory(d->opts.gpu, &free_bytes, &total);
    return aq_error(reterr, -ENOMEM,
                    "device memory: %zu bytes for %s are within the budget, but the GPU says '%s': "
                    "%llu of its %llu bytes are free; another process may have taken them: end it, "
                    "or give a smaller --device-memory",
                    bytes, purpose, why, (unsigned long long)free_bytes, (unsigned long long)total);
}

static void gpu_give(struct aq_device *d, const char *purpose, void *p, size_t bytes)
{
    ops_of(d)->give(d->opts.gpu, p);
    aq_mem_uncount(d->opts.mem, AQ_DEVICE, purpose, bytes);
}

static int gpu_pin(struct aq_device *d, void *p, size_t bytes, struct aq_err *reterr)
{
    int rc = ops_of(d)->pin(d->opts.gpu, p, bytes);
    return !rc ? 0
               : aq_error(reterr, -ENOMEM,
                          "the GPU's driver cannot pin %zu bytes of host memory: %s", bytes,
                          ops_of(d)->error_text(rc));
}

static void gpu_unpin(struct aq_device *d, void *p)
{
    ops_of(d)->unpin(d->opts.gpu, p);
}

static int gpu_write(struct aq_device *d, void *p, const void *from, size_t bytes,
                     struct aq_err *reterr)
{
    int rc = ops_of(d)->copy_now(d->opts.gpu, p, from, bytes, AQ_GPU_H2D);
    return !rc ? 0
               : aq_error(reterr, -EIO, "copying %zu bytes to the GPU: %s", bytes,
                          ops_of(d)->error_text(rc));
}

/* ---- reports ---- */

/* Sleeps until the entry is over on the GPU, and finds out when it was. */
static void await(struct aq_device_stream *s, struct aq_entry *e, uint64_t ticket)
{
    const struct aq_gpu_ops *ops = ops_of(s->d);
    void **event = s->event + 2 * (ticket % s->opts.depth);
    uint64_t took_ns = 0;
    int rc = e->result == -ECANCELED ? 0 : ops->wait(s->d->opts.gpu, event[1]);
    e->end_ns = aq_clock_ns();
    if (!rc && !e->result)
        rc = ops->elapsed(s->d->opts.gpu, &took_ns, event[0], event[1]);
    if (rc) {
        record_failure(s->d, rc);
        e->result = e->result ? e->result : -EIO;
    }
    /* The GPU's clock says how long it took, and the host's when it ended: an entry does not begin
     * before the one in front of it has ended, nor before it was there. */
    e->start_ns = aq_max_u64(e->end_ns - aq_min_u64(took_ns, e->end_ns),
                             aq_max_u64(e->submit_ns, s->ready_ns));
    e->start_ns = aq_min_u64(e->start_ns, e->end_ns);
    s->ready_ns = e->end_ns;
}

/* The oldest entry is over.  Under the lock. */
static void finish_head(struct aq_device_stream *s, const struct aq_entry *ended)
{
    if (ended->kind == AQ_ENTRY_COPY)
        aq_copy_count(s->d, ended);
    aq_stream_finish_head(s);
    aq_entry_report(ended);
}

static void *reporter_main(void *arg)
{
    struct aq_device_stream *s = arg;
    struct aq_device *d = s->d;
    char name[16];
    snprintf(name, sizeof(name), "%s", s->opts.name);
    pthread_setname_np(pthread_self(), name);
    pthread_mutex_lock(&d->lock);
    while (aq_stream_await(s)) {
        pthread_mutex_unlock(&d->lock);
        uint64_t ticket = atomic_load(&s->finished);
        struct aq_entry ended = *aq_entry_at(s, ticket);
        await(s, &ended, ticket);
        pthread_mutex_lock(&d->lock);
        finish_head(s, &ended);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- streams ---- */

static void close_native(struct aq_device_stream *s)
{
    const struct aq_gpu_ops *ops = ops_of(s->d);
    for (uint32_t i = 0; s->event && i < 2 * s->opts.depth; i++) {
        if (s->event[i])
            ops->event_close(s->d->opts.gpu, s->event[i]);
    }
    if (s->native)
        ops->stream_close(s->d->opts.gpu, s->native);
    free(s->event);
}

static int open_native(struct aq_device_stream *s, struct aq_err *reterr)
{
    const struct aq_gpu_ops *ops = ops_of(s->d);
    s->event = calloc(2ul * s->opts.depth, sizeof(*s->event));
    if (!s->event)
        return aq_error_memory(reterr, "stream '%s' of %u entries", s->opts.name, s->opts.depth);
    int rc = ops->stream_open(s->d->opts.gpu, &s->native, s->opts.first);
    for (uint32_t i = 0; i < 2 * s->opts.depth && !rc; i++)
        rc = ops->event_open(s->d->opts.gpu, &s->event[i]);
    if (!rc)
        return 0;
    close_native(s);
    return aq_error(reterr, -EIO, "stream '%s' of the GPU: %s", s->opts.name, ops->error_text(rc));
}

static int gpu_stream_open(struct aq_device_stream *s, struct aq_err *reterr)
{
    if (!is_native(s))
        return aq_device_real.stream_open(s, reterr);
    int rc = open_native(s, reterr);
    if (rc < 0)
        return rc;
    rc = aq_stream_start(s, reporter_main, reterr);
    if (rc < 0)
        close_native(s);
    return rc;
}

static void gpu_stream_close(struct aq_device_stream *s)
{
    aq_device_real.stream_close(s); /* both have a thread that ends when all is done */
    if (is_native(s))
        close_native(s);
}

static bool gpu_chains(const struct aq_device_stream *s, const struct aq_device_stream *other)
{
    return is_native(s) == is_native(other);
}

/* ---- submission ---- */

enum {
    SMALL_BYTES =
        4096,      /* single keys and what is remembered of them; not runs of keys or weights */
    SMALL_MIN = 8, /* fewer than this are not worth a kernel */
};

/* How many small pieces there are from `first` on, if a kernel is to copy them; else 0. */
static uint32_t count_small(const struct aq_device *d, const struct aq_entry *e, uint32_t first)
{
    const struct aq_device_copy *c = &e->copy;
    uint32_t end = first;
    if (!d->opts.gpu_pieces || e->pageable_bytes || c->direction >= AQ_LINK_COUNT)
        return 0;
    while (end < c->piece_count && c->pieces[end].bytes <= SMALL_BYTES)
        end++;
    return end - first >= SMALL_MIN ? end - first : 0;
}

/* Pieces that go on where the last one ended are one copy. */
static int enqueue_copy(struct aq_device_stream *s, const struct aq_entry *e)
{
    static const enum aq_gpu_copy way[AQ_DIRECTION_COUNT] = {
        [AQ_H2D] = AQ_GPU_H2D, [AQ_D2H] = AQ_GPU_D2H, [AQ_H2H] = AQ_GPU_H2H, [AQ_D2D] = AQ_GPU_D2D};
    const struct aq_device_opts *o = &s->d->opts;
    const struct aq_device_copy *c = &e->copy;
    int rc = 0;
    for (uint32_t i = 0, end; i < c->piece_count && !rc; i = end) {
        struct aq_copy_piece whole = c->pieces[i];
        uint32_t small = count_small(s->d, e, i);
        end = i + small;
        if (small) {
            rc = o->gpu_pieces(o->gpu_pieces_user, s->native, c->pieces + i, small);
            continue;
        }
        for (end = i + 1; end < c->piece_count; end++) {
            const struct aq_copy_piece *p = &c->pieces[end];
            if ((char *)p->dst != (char *)whole.dst + whole.bytes ||
                (const char *)p->src != (const char *)whole.src + whole.bytes)
                break;
            whole.bytes += p->bytes;
        }
        if (whole.bytes)
            rc = ops_of(s->d)->copy(s->d->opts.gpu, s->native, whole.dst, whole.src, whole.bytes,
                                    way[c->direction]);
    }
    return rc;
}

static int follow_all(struct aq_device_stream *s, const struct aq_entry *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < e->waits.count && !rc; i++) {
        const struct aq_stream_wait *w = &e->waits.at[i];
        if (!aq_wait_over(w))
            rc = ops_of(s->d)->follow(
                s->d->opts.gpu, s->native,
                w->other->event[2 * ((w->ticket - 1) % w->other->opts.depth) + 1]);
    }
    return rc;
}

/* Hands the entry to the driver; returns how that went, and the job's own result. */
static int enqueue(struct aq_device_stream *s, struct aq_entry *e, int *ret_result)
{
    const struct aq_gpu_ops *ops = ops_of(s->d);
    void **event = s->event + 2 * (s->submitted % s->opts.depth);
    int rc = follow_all(s, e);
    rc = rc ? rc : ops->record(s->d->opts.gpu, event[0], s->native);
    if (rc)
        return rc;
    if (e->kind == AQ_ENTRY_COPY)
        rc = enqueue_copy(s, e);
    else
        *ret_result = e->job.fn(e->job.arg, s->native);
    assert(*ret_result <= 0);
    /* Also behind what failed half-way: what it did enqueue still runs. */
    int end = ops->record(s->d->opts.gpu, event[1], s->native);
    return rc ? rc : end;
}

static void gpu_submit(struct aq_device_stream *s)
{
    struct aq_device *d = s->d;
    struct aq_entry *e = aq_entry_at(s, s->submitted);
    if (!is_native(s)) {
        aq_device_real.submit(s);
        return;
    }
    e->submit_ns = aq_clock_ns();
    if (aq_device_failed(d)) {
        e->result = -ECANCELED;
    } else {
        int rc = enqueue(s, e, &e->result);
        if (rc)
            record_failure(d, rc);
        if (rc && !e->result)
            e->result = -EIO;
    }
    pthread_mutex_lock(&d->lock);
    if (e->result < 0 && e->result != -ECANCELED && !d->failed)
        d->failed = e->result;
    s->submitted++;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&d->lock);
}

static uint64_t gpu_now(const struct aq_device *d)
{
    return aq_device_real.now(d);
}

static void gpu_drain(struct aq_device *d)
{
    aq_device_real.drain(d);
}

const struct aq_device_ops aq_device_gpu = {
    .now = gpu_now,
    .stream_open = gpu_stream_open,
    .stream_close = gpu_stream_close,
    .submit = gpu_submit,
    .drain = gpu_drain,
    .chains = gpu_chains,
    .take = gpu_take,
    .give = gpu_give,
    .pin = gpu_pin,
    .unpin = gpu_unpin,
    .write = gpu_write,
};
