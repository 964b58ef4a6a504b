/* SPDX-License-Identifier: Apache-2.0
 * offload/device_internal.h - what device*.c share: entries of streams, and the two ways in which
 * time passes.  device.c checks and counts, device_real.c has a thread per stream, device_virtual.c
 * plays the streams on a timeline, device_copy.c moves bytes. */
#ifndef AQ_OFFLOAD_DEVICE_INTERNAL_H
#define AQ_OFFLOAD_DEVICE_INTERNAL_H

#include "offload/device.h"

#include <pthread.h>
#include <stdatomic.h>

enum aq_entry_kind { AQ_ENTRY_JOB, AQ_ENTRY_COPY };

/* A wait until another stream has finished everything up to the ticket. */
struct aq_stream_wait {
    const struct aq_device_stream *other; /* NULL: the stream was closed, so it has finished */
    uint64_t ticket;
};

/* At most one wait for each other stream. */
struct aq_stream_waits {
    uint32_t count;
    struct aq_stream_wait at[AQ_DEVICE_STREAMS_MAX];
};

struct aq_entry {
    enum aq_entry_kind kind;
    union {
        struct aq_device_job job;
        struct aq_device_copy copy;
    };
    struct aq_stream_waits waits;
    uint64_t submit_ns, start_ns, end_ns;
    uint64_t bytes, pageable_bytes; /* of a copy */
    int result;
    bool worked; /* virtual: the work was done when it started, or is skipped */
    bool done;
};

struct aq_device_stream {
    struct aq_device *d;
    struct aq_device_stream_opts opts;
    struct aq_entry *ring; /* [depth]: the entry after ticket t lies in ring[t % depth] */
    /* Tickets: finished <= started <= submitted <= finished + depth.  The issuer alone writes
     * submitted; finished is written under the device's lock and may be read without. */
    uint64_t submitted, started;
    _Atomic uint64_t finished;
    struct aq_stream_waits waits; /* of the next entry; the issuer's */

    /* real time */
    pthread_t thread;
    pthread_cond_t wake;
    bool stop, idles;                       /* idles: its thread is in opts.idle.fn */
    const struct aq_device_stream *awaited; /* the stream that its thread sleeps for, or NULL */
    uint64_t ready_ns; /* earliest time at which the next copy could have begun */

    /* GPU: the driver's stream, and events for begin and end of each entry */
    void *native;
    void **event; /* [2 * depth] */

    /* virtual time */
    uint32_t active; /* entries that have started and not ended */
};

/* Implementation of streams: real time, virtual time or a GPU. */
struct aq_device_ops {
    void (*open)(struct aq_device *d); /* NULL: nothing to do; so is close */
    void (*close)(struct aq_device *d);
    uint64_t (*now)(const struct aq_device *d);
    int (*stream_open)(struct aq_device_stream *s, struct aq_err *reterr);
    void (*stream_close)(struct aq_device_stream *s); /* returns when the stream is empty */
    /* Submits the entry behind the last submitted one; its fields have been filled. */
    void (*submit)(struct aq_device_stream *s);
    void (*drain)(struct aq_device *d);
    bool (*chains)(const struct aq_device_stream *s, const struct aq_device_stream *other);
    /* Device memory, and pinning; NULL: host memory that needs nothing. */
    int (*take)(struct aq_device *d, void **ret, const char *purpose, size_t bytes,
                struct aq_err *reterr);
    void (*give)(struct aq_device *d, const char *purpose, void *p, size_t bytes);
    int (*pin)(struct aq_device *d, void *p, size_t bytes, struct aq_err *reterr);
    void (*unpin)(struct aq_device *d, void *p);
    int (*write)(struct aq_device *d, void *p, const void *from, size_t bytes,
                 struct aq_err *reterr);
};

struct aq_device_memory_range {
    uintptr_t base, end;
    bool device; /* else pinned */
};

struct aq_device {
    const struct aq_device_ops *ops;
    struct aq_device_opts opts;
    bool separate;
    pthread_mutex_t lock; /* of all that follows, and of the streams */
    pthread_cond_t idle;  /* a stream has become empty */
    struct aq_device_stream *stream[AQ_DEVICE_STREAMS_MAX];
    uint32_t stream_count;
    int failed;
    const char *failure;                  /* the driver's text for it */
    uint64_t link_free_ns[AQ_LINK_COUNT]; /* when the link will have carried all its copies */
    struct aq_device_stats stats;
    struct aq_device_memory_range *range; /* sorted by base, disjoint; the issuer's */
    uint32_t range_count, range_capacity;
    uint64_t group_bytes[AQ_GROUPS_MAX]; /* aq_device_group_bytes() */
};

static inline struct aq_entry *aq_entry_at(const struct aq_device_stream *s, uint64_t ticket)
{
    return &s->ring[ticket % s->opts.depth];
}

static inline bool aq_stream_empty(const struct aq_device_stream *s)
{
    return atomic_load_explicit(&s->finished, memory_order_acquire) == s->submitted;
}

/* Sleeps until the stream has an entry; false: it is empty and stops.  Under the lock. */
static inline bool aq_stream_await(struct aq_device_stream *s)
{
    while (aq_stream_empty(s) && !s->stop)
        pthread_cond_wait(&s->wake, &s->d->lock);
    return !aq_stream_empty(s);
}

/* Is the wait over?  Under the lock. */
static inline bool aq_wait_over(const struct aq_stream_wait *w)
{
    return !w->other ||
           atomic_load_explicit(&w->other->finished, memory_order_acquire) >= w->ticket;
}

/* device_real.c: starts the thread of a stream; ends the entry at its head (under the lock). */
int aq_stream_start(struct aq_device_stream *s, void *(*fn)(void *), struct aq_err *reterr);
void aq_stream_finish_head(struct aq_device_stream *s);

/* Duration of a copy, by its link or by its own cost. */
uint64_t aq_copy_cost_ns(const struct aq_device *d, const struct aq_entry *e);
/* Moves the bytes at once. */
void aq_copy_move(const struct aq_device_copy *copy);
/* Moves the bytes at the link's speed, in real time; returns when the last byte may have
 * arrived. */
void aq_copy_throttled(struct aq_device *d, struct aq_device_stream *s, const struct aq_entry *e);
/* Adds a finished copy to the totals.  Under the lock. */
void aq_copy_count(struct aq_device *d, const struct aq_entry *e);
/* Fills the span and pushes the token of a job or copy that has ended. */
void aq_entry_report(const struct aq_entry *e);

extern const struct aq_device_ops aq_device_real, aq_device_virtual, aq_device_gpu;

#endif
