/* SPDX-License-Identifier: Apache-2.0
 * offload/device_copy.c - copies: their time on a link, and their bytes. */
#include "offload/device_internal.h"

#include "base/clock.h"
#include "base/sanitized.h"
#include "base/types.h"

#include <string.h>
#include <time.h>

/* Sanitizers do not see streaming stores. */
#if defined(__x86_64__) && !AQ_SANITIZED
#include <emmintrin.h>
#define STREAMING_STORES 1
#else
#define STREAMING_STORES 0
#endif

enum {
    /* Bytes go in slices of about this much link time, so that the memory traffic of a copy is
     * spread over it, and a core is not woken more often than that. */
    SLICE_NS = 500 * 1000,
    SLICE_BYTES_MIN = 64 * 1024,
    SLICE_BYTES_MAX = 4 * 1024 * 1024,
    STREAM_BYTES_MIN = 64 * 1024,
    /* Less than this is not slept for: waking takes about as long.  The link keeps the debt, so the
     * copies behind pay for it. */
    EARLY_NS = 25 * 1000,
    /* A thread that was held up (the cores are shared) catches up this much of its link's time:
     * what it lost to the scheduler is not the link's fault. */
    CATCH_UP_NS = 5 * 1000 * 1000,
};

static uint64_t link_ns(const struct aq_device_link *link, uint64_t bytes)
{
    if (link->bytes_per_s == 0)
        return 0;
    return (uint64_t)((unsigned __int128)bytes * 1000000000 / link->bytes_per_s);
}

static const struct aq_device_link *link_of(const struct aq_device *d, enum aq_direction direction)
{
    return d->separate && direction < AQ_LINK_COUNT ? &d->opts.link[direction] : NULL;
}

uint64_t aq_copy_cost_ns(const struct aq_device *d, const struct aq_entry *e)
{
    const struct aq_device_link *link = link_of(d, e->copy.direction);
    return link ? link->latency_ns + link_ns(link, e->bytes) : e->copy.cost_ns;
}

void aq_copy_move(const struct aq_device_copy *copy)
{
    for (uint32_t i = 0; i < copy->piece_count; i++) {
        const struct aq_copy_piece *p = &copy->pieces[i];
        if (p->bytes > 0)
            memcpy(p->dst, p->src, p->bytes);
    }
}

/* Copies past the caches, as a link does: the destination is not read first (which costs a third of
 * the traffic, and about a quarter of the core's time), and what computation holds in its caches
 * stays there. */
static void move_past_caches(char *dst, const char *src, size_t bytes)
{
#if STREAMING_STORES
    if (bytes >= STREAM_BYTES_MIN) {
        size_t head = -(uintptr_t)dst % 64, at = head;
        memcpy(dst, src, head);
        for (; at + 64 <= bytes; at += 64) {
            const __m128i *from = (const void *)(src + at);
            __m128i *to = (void *)(dst + at);
            __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1),
                    c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
            _mm_stream_si128(to, a);
            _mm_stream_si128(to + 1, b);
            _mm_stream_si128(to + 2, c);
            _mm_stream_si128(to + 3, d);
        }
        _mm_sfence();
        dst += at;
        src += at;
        bytes -= at;
    }
#endif
    memcpy(dst, src, bytes);
}

/* A place in the bytes of a copy. */
struct cursor {
    const struct aq_device_copy *copy;
    uint32_t piece;
    uint64_t at; /* in the piece */
};

/* Moves the next `bytes` bytes. */
static void move_some(struct cursor *c, uint64_t bytes)
{
    while (bytes > 0) {
        const struct aq_copy_piece *p = &c->copy->pieces[c->piece];
        uint64_t n = aq_min_u64(p->bytes - c->at, bytes);
        if (n > 0)
            move_past_caches((char *)p->dst + c->at, (const char *)p->src + c->at, n);
        bytes -= n;
        c->at += n;
        if (c->at == p->bytes) {
            c->piece++;
            c->at = 0;
        }
    }
}

static void sleep_until(uint64_t ns)
{
    if (ns < aq_clock_ns() + EARLY_NS)
        return;
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        continue;
}

/* The link's time for so many bytes, from `from` on, or once it is free; returns when it ends. */
static uint64_t take_link(struct aq_device *d, const struct aq_entry *e, uint64_t from, uint64_t ns)
{
    pthread_mutex_lock(&d->lock);
    uint64_t *free_ns = &d->link_free_ns[e->copy.direction];
    *free_ns = aq_max_u64(from, *free_ns) + ns;
    uint64_t end = *free_ns;
    pthread_mutex_unlock(&d->lock);
    return end;
}

void aq_copy_throttled(struct aq_device *d, struct aq_device_stream *s, const struct aq_entry *e)
{
    const struct aq_device_link *link = link_of(d, e->copy.direction);
    if (!link || link->bytes_per_s == 0) {
        aq_copy_move(&e->copy);
        return;
    }
    /* Copies that follow each other at once get the link from where the last one left it, not from
     * when a thread woke up: what is lost in waking does not add up. */
    uint64_t now = aq_clock_ns(), at_ns = aq_max_u64(e->submit_ns, s->ready_ns);
    if (now > CATCH_UP_NS)
        at_ns = aq_max_u64(at_ns, now - CATCH_UP_NS);
    at_ns = take_link(d, e, at_ns, link->latency_ns);

    /* Slice by slice, so that streams of one direction share it and none waits for a large copy of
     * another. */
    uint64_t slice = aq_max_u64(link->bytes_per_s / (1000000000 / SLICE_NS), SLICE_BYTES_MIN);
    slice = aq_min_u64(slice, SLICE_BYTES_MAX);
    struct cursor at = {.copy = &e->copy};
    for (uint64_t moved = 0; moved < e->bytes;) {
        uint64_t n = aq_min_u64(slice, e->bytes - moved);
        at_ns = take_link(d, e, at_ns, link_ns(link, moved + n) - link_ns(link, moved));
        move_some(&at, n);
        moved += n;
        sleep_until(at_ns);
    }
    s->ready_ns = at_ns;
}

void aq_copy_count(struct aq_device *d, const struct aq_entry *e)
{
    if (e->result < 0)
        return;
    if (e->copy.direction >= AQ_LINK_COUNT) {
        d->stats.plain_bytes += e->bytes;
        return;
    }
    d->stats.link[e->copy.direction].copies++;
    d->stats.link[e->copy.direction].bytes += e->bytes;
    d->stats.link[e->copy.direction].busy_ns += e->end_ns - e->start_ns;
    d->stats.link[e->copy.direction].pageable_bytes += e->pageable_bytes;
}
