/* SPDX-License-Identifier: Apache-2.0
 * offload/device_real.c - streams in real time: a thread each, which sleeps when it has nothing to
 * do or waits for another. */
#include "offload/device_internal.h"

#include "base/clock.h"
#include "base/threads.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the options wish for the thread; where it is not allowed the stream works all the same. */
static void dress_thread(const struct aq_device_stream_opts *opts)
{
    char name[16];
    snprintf(name, sizeof(name), "%s", opts->name);
    pthread_setname_np(pthread_self(), name);
    /* Throttled copies sleep for fractions of a millisecond; 50 us of slack would show. */
    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    if (opts->nice > 0) {
        id_t self = (id_t)syscall(SYS_gettid);
        setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + opts->nice);
    }
    if (opts->bind) {
        cpu_set_t set;
        CPU_ZERO(&set);
        if (opts->cpu < CPU_SETSIZE)
            CPU_SET(opts->cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
    }
}

/* May the entry at its head start, or is the stream to stop?  Under the lock. */
static bool is_ready(const struct aq_device_stream *s)
{
    if (aq_stream_empty(s))
        return s->stop;
    const struct aq_entry *e = aq_entry_at(s, atomic_load(&s->finished));
    for (uint32_t i = 0; i < e->waits.count; i++) {
        if (!aq_wait_over(&e->waits.at[i]))
            return false;
    }
    return true;
}

/* Something has changed that the stream's thread may be waiting for.  Under the lock. */
static void rouse(struct aq_device_stream *s)
{
    const struct aq_stream_idle *idle = &s->opts.idle;
    if (!idle->fn)
        pthread_cond_signal(&s->wake);
    else if (s->idles && is_ready(s))
        idle->call(idle->user);
}

void aq_stream_finish_head(struct aq_device_stream *s)
{
    struct aq_device *d = s->d;
    uint64_t finished = atomic_load_explicit(&s->finished, memory_order_relaxed) + 1;
    atomic_store_explicit(&s->finished, finished, memory_order_release);
    for (uint32_t i = 0; i < d->stream_count; i++) {
        if (d->stream[i]->awaited == s || d->stream[i]->idles)
            rouse(d->stream[i]);
    }
    if (finished == s->submitted)
        pthread_cond_broadcast(&d->idle);
}

/* Sleeps until the entry may start.  Under the lock. */
static void wait_for_others(struct aq_device_stream *s, const struct aq_entry *e)
{
    bool slept = false;
    for (uint32_t i = 0; i < e->waits.count; i++) {
        const struct aq_stream_wait *w = &e->waits.at[i];
        for (; !aq_wait_over(w); slept = true) {
            s->awaited = w->other;
            pthread_cond_wait(&s->wake, &s->d->lock);
        }
    }
    s->awaited = NULL;
    if (slept)
        s->ready_ns = aq_clock_ns();
}

/* As aq_stream_await and wait_for_others, doing something else meanwhile. */
static bool idle(struct aq_device_stream *s)
{
    bool idled = false;
    for (; !is_ready(s); idled = true) {
        s->idles = true;
        pthread_mutex_unlock(&s->d->lock);
        s->opts.idle.fn(s->opts.idle.user);
        pthread_mutex_lock(&s->d->lock);
        s->idles = false;
    }
    if (idled)
        s->ready_ns = aq_clock_ns();
    return !aq_stream_empty(s);
}

/* Carries out a job or copy, without the lock. */
static void work(struct aq_device_stream *s, struct aq_entry *e)
{
    e->start_ns = aq_clock_ns();
    if (e->kind == AQ_ENTRY_COPY) {
        aq_copy_throttled(s->d, s, e);
        e->end_ns = aq_clock_ns();
    } else {
        e->result = e->job.fn(e->job.arg, NULL);
        assert(e->result <= 0);
        e->end_ns = aq_clock_ns();
        s->ready_ns = e->end_ns;
    }
}

static void *stream_main(void *arg)
{
    struct aq_device_stream *s = arg;
    struct aq_device *d = s->d;
    dress_thread(&s->opts);
    pthread_mutex_lock(&d->lock);
    while (s->opts.idle.fn ? idle(s) : aq_stream_await(s)) {
        struct aq_entry *e = aq_entry_at(s, atomic_load(&s->finished));
        if (!s->opts.idle.fn)
            wait_for_others(s, e);
        bool skip = d->failed != 0;
        pthread_mutex_unlock(&d->lock);
        if (skip) {
            e->result = -ECANCELED;
            e->start_ns = e->end_ns = aq_clock_ns();
        } else {
            work(s, e);
        }
        /* Once it counts as finished the issuer may reuse the entry. */
        struct aq_entry ended = *e;
        pthread_mutex_lock(&d->lock);
        if (ended.result < 0 && !d->failed)
            d->failed = ended.result;
        if (ended.kind == AQ_ENTRY_COPY)
            aq_copy_count(d, &ended);
        aq_stream_finish_head(s);
        aq_entry_report(&ended);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

int aq_stream_start(struct aq_device_stream *s, void *(*fn)(void *), struct aq_err *reterr)
{
    pthread_cond_init(&s->wake, NULL);
    int rc = aq_thread_start(&s->thread, NULL, fn, s);
    if (!rc)
        return 0;
    pthread_cond_destroy(&s->wake);
    char what[64];
    snprintf(what, sizeof(what), "the thread of stream '%s'", s->opts.name);
    return aq_thread_error(reterr, what, rc);
}

static int real_stream_open(struct aq_device_stream *s, struct aq_err *reterr)
{
    return aq_stream_start(s, stream_main, reterr);
}

static void real_submit(struct aq_device_stream *s)
{
    aq_entry_at(s, s->submitted)->submit_ns = aq_clock_ns();
    pthread_mutex_lock(&s->d->lock);
    s->submitted++;
    if (!s->awaited)
        rouse(s);
    pthread_mutex_unlock(&s->d->lock);
}

static void real_stream_close(struct aq_device_stream *s)
{
    pthread_mutex_lock(&s->d->lock);
    s->stop = true;
    rouse(s);
    pthread_mutex_unlock(&s->d->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
}

static void real_drain(struct aq_device *d)
{
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->stream_count; i++) {
        while (!aq_stream_empty(d->stream[i]))
            pthread_cond_wait(&d->idle, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
}

static uint64_t real_now(const struct aq_device *d)
{
    (void)d;
    return aq_clock_ns();
}

const struct aq_device_ops aq_device_real = {
    .now = real_now,
    .stream_open = real_stream_open,
    .stream_close = real_stream_close,
    .submit = real_submit,
    .drain = real_drain,
};
