/* SPDX-License-Identifier: Apache-2.0
 * offload/device_virtual.c - streams in virtual time: a job takes what its cost says, bytes move
 * when it ends, and until then their destination holds poison. */
#include "offload/device_internal.h"

#include "base/types.h"

#include <assert.h>
#include <string.h>

enum { POISON = 0xff };

/* The cost with its share of chance. */
static uint64_t jitter(struct aq_device *d, uint64_t cost_ns)
{
    uint64_t j = d->opts.jitter_permille;
    if (j == 0 || cost_ns == 0)
        return cost_ns;
    uint64_t permille = 1000 - j + aq_timeline_draw(d->opts.timeline, 2 * j + 1);
    return (uint64_t)((unsigned __int128)cost_ns * permille / 1000);
}

static void poison(const struct aq_entry *e)
{
    if (e->kind == AQ_ENTRY_COPY) {
        for (uint32_t i = 0; i < e->copy.piece_count; i++) {
            if (e->copy.pieces[i].bytes > 0)
                memset(e->copy.pieces[i].dst, POISON, e->copy.pieces[i].bytes);
        }
    } else {
        for (uint32_t i = 0; i < e->job.output_count; i++) {
            if (e->job.outputs[i].bytes > 0)
                memset(e->job.outputs[i].base, POISON, e->job.outputs[i].bytes);
        }
    }
}

static void work(struct aq_entry *e)
{
    e->worked = true;
    if (e->kind == AQ_ENTRY_COPY) {
        aq_copy_move(&e->copy);
    } else {
        e->result = e->job.fn(e->job.arg, NULL);
        assert(e->result <= 0);
    }
}

static void start(struct aq_device *d, struct aq_entry *e)
{
    uint64_t now = aq_timeline_now(d->opts.timeline), begin = now;
    e->start_ns = e->end_ns = now;
    if (d->failed) {
        e->result = -ECANCELED;
        e->worked = true;
        return;
    }
    bool copy = e->kind == AQ_ENTRY_COPY;
    uint64_t cost = jitter(d, copy ? aq_copy_cost_ns(d, e) : e->job.cost_ns);
    if (copy && d->separate && e->copy.direction < AQ_LINK_COUNT) {
        uint64_t *free_ns = &d->link_free_ns[e->copy.direction];
        begin = aq_max_u64(begin, *free_ns);
        *free_ns = begin + cost;
    }
    e->end_ns = begin + cost;
    if (d->opts.poison)
        poison(e);
    if (d->opts.eager && !copy && aq_timeline_draw(d->opts.timeline, 2) == 0)
        work(e);
}

/* Counts what has ended at the head of s as finished. */
static void advance(struct aq_device_stream *s)
{
    uint64_t finished = atomic_load_explicit(&s->finished, memory_order_relaxed);
    while (finished < s->started && aq_entry_at(s, finished)->done)
        finished++;
    atomic_store_explicit(&s->finished, finished, memory_order_release);
}

static bool may_start(const struct aq_entry *e)
{
    for (uint32_t i = 0; i < e->waits.count; i++) {
        if (!aq_wait_over(&e->waits.at[i]))
            return false;
    }
    return true;
}

/* Starts everything that can start now.  Starting ends nothing, so once through is enough. */
static void settle(struct aq_device *d)
{
    for (uint32_t i = 0; i < d->stream_count; i++) {
        struct aq_device_stream *s = d->stream[i];
        while (s->started < s->submitted && s->active < s->opts.width) {
            struct aq_entry *e = aq_entry_at(s, s->started);
            if (!may_start(e))
                break;
            start(d, e);
            s->started++;
            s->active++;
        }
    }
}

static uint64_t source_next(void *arg)
{
    const struct aq_device *d = arg;
    uint64_t first = AQ_TIMELINE_NEVER;
    for (uint32_t i = 0; i < d->stream_count; i++) {
        const struct aq_device_stream *s = d->stream[i];
        for (uint64_t t = atomic_load(&s->finished); s->active && t < s->started; t++) {
            const struct aq_entry *e = aq_entry_at(s, t);
            if (!e->done)
                first = aq_min_u64(first, e->end_ns);
        }
    }
    return first;
}

static void end(struct aq_device_stream *s, struct aq_entry *e)
{
    struct aq_device *d = s->d;
    if (!e->worked)
        work(e);
    e->done = true;
    s->active--;
    struct aq_entry ended = *e;
    if (ended.result < 0 && !d->failed)
        d->failed = ended.result;
    if (ended.kind == AQ_ENTRY_COPY)
        aq_copy_count(d, &ended);
    advance(s);
    aq_entry_report(&ended);
}

/* One of the entries that end now does so; a draw says which. */
static void source_fire(void *arg, uint64_t now_ns)
{
    struct aq_device *d = arg;
    uint64_t due = 0;
    for (int turn = 0; turn < 2; turn++) {
        uint64_t which = turn && due > 1 ? aq_timeline_draw(d->opts.timeline, due) : 0, seen = 0;
        for (uint32_t i = 0; i < d->stream_count; i++) {
            struct aq_device_stream *s = d->stream[i];
            for (uint64_t t = atomic_load(&s->finished); s->active && t < s->started; t++) {
                struct aq_entry *e = aq_entry_at(s, t);
                if (e->done || e->end_ns > now_ns)
                    continue;
                if (turn && seen == which) {
                    end(s, e);
                    settle(d);
                    return;
                }
                seen++;
            }
        }
        due = seen;
    }
    assert(!"the timeline fires when something is due");
}

static void virtual_open(struct aq_device *d)
{
    struct aq_timeline_source source = {.next = source_next, .fire = source_fire, .arg = d};
    aq_timeline_add(d->opts.timeline, &source);
}

static void virtual_close(struct aq_device *d)
{
    aq_timeline_remove(d->opts.timeline, d);
}

static void virtual_submit(struct aq_device_stream *s)
{
    aq_entry_at(s, s->submitted)->submit_ns = aq_timeline_now(s->d->opts.timeline);
    s->submitted++;
    settle(s->d);
}

static bool all_empty(const struct aq_device *d)
{
    for (uint32_t i = 0; i < d->stream_count; i++) {
        if (!aq_stream_empty(d->stream[i]))
            return false;
    }
    return true;
}

/* Streams wait only for what was submitted before: there is always something due. */
static void step(struct aq_device *d)
{
    bool moved = aq_timeline_step(d->opts.timeline, AQ_TIMELINE_NEVER);
    assert(moved);
}

static void virtual_drain(struct aq_device *d)
{
    while (!all_empty(d))
        step(d);
}

static int virtual_stream_open(struct aq_device_stream *s, struct aq_err *reterr)
{
    (void)s;
    (void)reterr;
    return 0;
}

static void virtual_stream_close(struct aq_device_stream *s)
{
    while (!aq_stream_empty(s))
        step(s->d);
}

static uint64_t virtual_now(const struct aq_device *d)
{
    return aq_timeline_now(d->opts.timeline);
}

const struct aq_device_ops aq_device_virtual = {
    .open = virtual_open,
    .close = virtual_close,
    .now = virtual_now,
    .stream_open = virtual_stream_open,
    .stream_close = virtual_stream_close,
    .submit = virtual_submit,
    .drain = virtual_drain,
};
