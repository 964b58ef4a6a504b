/* SPDX-License-Identifier: Apache-2.0
 * offload/device.c - what real and virtual time have in common: memory, checks, submission. */
#include "offload/device.h"

#include "base/panel.h"
#include "base/types.h"
#include "offload/device_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool aq_device_separate(const struct aq_device *d)
{
    return d->separate;
}

bool aq_device_is_gpu(const struct aq_device *d)
{
    return d->opts.kind == AQ_DEVICE_GPU;
}

uint64_t aq_device_now(const struct aq_device *d)
{
    return d->ops->now(d);
}

/* ---- memory ---- */

/* The first range that ends behind p; range_count when there is none. */
static uint32_t find_range(const struct aq_device *d, uintptr_t p)
{
    uint32_t low = 0, high = d->range_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (d->range[middle].end > p)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int add_range(struct aq_device *d, void *p, size_t bytes, bool device, struct aq_err *reterr)
{
    if (d->range_count == d->range_capacity) {
        uint32_t capacity = d->range_capacity ? 2 * d->range_capacity : 64;
        void *more = realloc(d->range, capacity * sizeof(*d->range));
        if (!more)
            return aq_error_memory(reterr, "device: list of %u buffers", capacity);
        d->range = more;
        d->range_capacity = capacity;
    }
    uintptr_t base = (uintptr_t)p;
    uint32_t at = find_range(d, base);
    assert(at == d->range_count || d->range[at].base >= base + bytes);
    memmove(&d->range[at + 1], &d->range[at], (d->range_count - at) * sizeof(*d->range));
    d->range[at] = (struct aq_device_memory_range){base, base + bytes, device};
    d->range_count++;
    return 0;
}

static void remove_range(struct aq_device *d, void *p, bool device)
{
    uint32_t at = find_range(d, (uintptr_t)p);
    assert(at < d->range_count && d->range[at].base == (uintptr_t)p);
    assert(d->range[at].device == device);
    d->range_count--;
    memmove(&d->range[at], &d->range[at + 1], (d->range_count - at) * sizeof(*d->range));
}

/* Does all of [p, p + bytes) lie in one range of that sort?  With `partly`: does any of it? */
static bool lies_in(const struct aq_device *d, const void *p, uint64_t bytes, bool device,
                    bool partly)
{
    uintptr_t base = (uintptr_t)p;
    for (uint32_t at = find_range(d, base); at < d->range_count; at++) {
        const struct aq_device_memory_range *r = &d->range[at];
        if (r->base >= base + bytes)
            break;
        if (r->device == device && (partly || (r->base <= base && base + bytes <= r->end)))
            return true;
    }
    return false;
}

enum aq_tier aq_device_tier(const struct aq_device *d, enum aq_device_memory memory)
{
    return memory == AQ_MEMORY_DEVICE && d->separate ? AQ_DEVICE : AQ_HOST;
}

/* Drivers pin whole pages, and none twice: what is pinned shares none. */
static size_t pinned_bytes(const struct aq_device *d, enum aq_device_memory memory, size_t bytes)
{
    return memory == AQ_MEMORY_PINNED && d->ops->pin ? aq_max_u64(bytes, AQ_PANEL_ALIGN) : bytes;
}

/* What of a buffer groups of workers share. */
struct shares {
    struct aq_device *d;
    const struct aq_device_shared *shared;
    uint32_t count;
};

static void place_shares(void *user, void *p, size_t bytes)
{
    const struct shares *s = user;
    const struct aq_numa *numa = s->d->opts.numa;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct aq_device_shared *a = &s->shared[i];
        assert(a->offset + a->count * a->unit <= bytes);
        aq_numa_bind_parts(numa, (uint8_t *)p + a->offset, a->count, a->unit);
        for (uint32_t g = 0; g < numa->groups.count; g++)
            s->d->group_bytes[g] += (aq_groups_first(&numa->groups, g + 1, a->count) -
                                     aq_groups_first(&numa->groups, g, a->count)) *
                                    a->unit;
    }
}

/* Host memory, on the node that it is for. */
static int take_host(struct aq_device *d, void **ret, enum aq_device_memory memory,
                     const char *purpose, size_t bytes, struct shares *shares,
                     struct aq_err *reterr)
{
    enum aq_tier tier = aq_device_tier(d, memory);
    const struct aq_numa *numa = d->opts.numa;
    bool staged = memory == AQ_MEMORY_PINNED || (memory == AQ_MEMORY_DEVICE && d->separate);
    struct aq_numa_target target = {AQ_NUMA_ANYWHERE, 0};
    struct aq_numa_scope scope;
    bool parts = numa && numa->large.kind == AQ_NUMA_PARTS && shares->count;
    if (numa)
        target = staged && !parts ? numa->staged : numa->large;
    aq_numa_enter(&scope, &target);
    bytes = pinned_bytes(d, memory, bytes);
    int rc = aq_mem_alloc_placed(ret, d->opts.mem, tier, purpose, bytes,
                                 parts ? place_shares : NULL, shares, reterr);
    aq_numa_leave(&scope);
    if (rc == 0 && memory == AQ_MEMORY_PINNED && d->ops->pin) {
        rc = d->ops->pin(d, *ret, bytes, reterr);
        if (rc < 0)
            aq_mem_free(d->opts.mem, tier, purpose, *ret, bytes);
    }
    return rc;
}

static void give(struct aq_device *d, enum aq_device_memory memory, const char *purpose, void *p,
                 size_t bytes)
{
    if (memory == AQ_MEMORY_DEVICE && d->ops->give) {
        d->ops->give(d, purpose, p, bytes);
        return;
    }
    if (memory == AQ_MEMORY_PINNED && d->ops->unpin)
        d->ops->unpin(d, p);
    bytes = pinned_bytes(d, memory, bytes);
    aq_mem_free(d->opts.mem, aq_device_tier(d, memory), purpose, p, bytes);
}

int aq_device_alloc(void **ret, struct aq_device *d, enum aq_device_memory memory,
                    const char *purpose, size_t bytes, struct aq_err *reterr)
{
    return aq_device_alloc_shared(ret, d, memory, purpose, bytes, NULL, 0, reterr);
}

const struct aq_groups *aq_device_groups(const struct aq_device *d)
{
    static const struct aq_groups one = {.count = 1, .end = {1}};
    bool parts = d->opts.numa && d->opts.numa->large.kind == AQ_NUMA_PARTS;
    return parts ? &d->opts.numa->groups : &one;
}

uint64_t aq_device_group_bytes(const struct aq_device *d, uint32_t group)
{
    return d->group_bytes[group];
}

int aq_device_alloc_shared(void **ret, struct aq_device *d, enum aq_device_memory memory,
                           const char *purpose, size_t bytes, const struct aq_device_shared *shared,
                           uint32_t shared_count, struct aq_err *reterr)
{
    assert(memory < AQ_MEMORY_COUNT);
    struct shares shares = {d, shared, shared_count};
    void *p;
    int rc = memory == AQ_MEMORY_DEVICE && d->ops->take
                 ? d->ops->take(d, &p, purpose, bytes, reterr)
                 : take_host(d, &p, memory, purpose, bytes, &shares, reterr);
    if (rc < 0)
        return rc;
    if (memory != AQ_MEMORY_HOST) {
        rc = add_range(d, p, bytes, memory == AQ_MEMORY_DEVICE, reterr);
        if (rc < 0) {
            give(d, memory, purpose, p, bytes);
            return rc;
        }
    }
    *ret = p;
    return 0;
}

void aq_device_free(struct aq_device *d, enum aq_device_memory memory, const char *purpose, void *p,
                    size_t bytes)
{
    if (!p)
        return;
    if (memory != AQ_MEMORY_HOST)
        remove_range(d, p, memory == AQ_MEMORY_DEVICE);
    give(d, memory, purpose, p, bytes);
}

int aq_device_pin(struct aq_device *d, void *p, size_t bytes, struct aq_err *reterr)
{
    int rc = d->ops->pin ? d->ops->pin(d, p, bytes, reterr) : 0;
    if (rc < 0)
        return rc;
    rc = add_range(d, p, bytes, false, reterr);
    if (rc < 0 && d->ops->unpin)
        d->ops->unpin(d, p);
    return rc;
}

void aq_device_unpin(struct aq_device *d, void *p)
{
    remove_range(d, p, false);
    if (d->ops->unpin)
        d->ops->unpin(d, p);
}

int aq_device_write(struct aq_device *d, void *p, const void *from, size_t bytes,
                    struct aq_err *reterr)
{
    if (d->ops->write)
        return d->ops->write(d, p, from, bytes, reterr);
    memcpy(p, from, bytes); /* the device's memory is the host's */
    return 0;
}

bool aq_device_reaches(const struct aq_device *d, const void *p, uint64_t bytes)
{
    return lies_in(d, p, bytes, true, false) || lies_in(d, p, bytes, false, false);
}

/* ---- streams ---- */

int aq_device_stream_open(struct aq_device_stream **ret, struct aq_device *d,
                          const struct aq_device_stream_opts *opts, struct aq_err *reterr)
{
    assert(ret && opts->name && opts->depth >= 1 && opts->depth <= AQ_DEVICE_DEPTH_MAX);
    assert(opts->width <= 1 || d->opts.timeline);
    assert(d->stream_count < AQ_DEVICE_STREAMS_MAX);
    struct aq_device_stream *s = calloc(1, sizeof(*s));
    struct aq_entry *ring = calloc(opts->depth, sizeof(*ring));
    if (!s || !ring) {
        free(s);
        free(ring);
        return aq_error_memory(reterr, "stream '%s' of %u entries", opts->name, opts->depth);
    }
    s->d = d;
    s->opts = *opts;
    s->ring = ring;
    if (s->opts.width == 0)
        s->opts.width = 1;
    int rc = d->ops->stream_open(s, reterr);
    if (rc < 0) {
        free(ring);
        free(s);
        return rc;
    }
    pthread_mutex_lock(&d->lock);
    d->stream[d->stream_count++] = s;
    pthread_mutex_unlock(&d->lock);
    *ret = s;
    return 0;
}

/* s has finished all it had: whoever would wait for it need not look at it any more.  Under the
 * lock. */
static void forget(struct aq_device_stream *waiting, const struct aq_device_stream *s)
{
    struct aq_stream_waits *waits = &waiting->waits;
    for (uint32_t i = 0; i < waits->count; i++) {
        if (waits->at[i].other == s)
            waits->at[i--] = waits->at[--waits->count];
    }
    for (uint64_t t = atomic_load(&waiting->finished); t < waiting->submitted; t++) {
        waits = &aq_entry_at(waiting, t)->waits;
        for (uint32_t i = 0; i < waits->count; i++) {
            if (waits->at[i].other == s)
                waits->at[i].other = NULL; /* its thread may be looking at this one */
        }
    }
}

void aq_device_stream_close(struct aq_device_stream *s)
{
    if (!s)
        return;
    struct aq_device *d = s->d;
    d->ops->stream_close(s);
    pthread_mutex_lock(&d->lock);
    uint32_t at = 0;
    for (uint32_t i = 0; i < d->stream_count; i++) {
        struct aq_device_stream *other = d->stream[i];
        if (other == s)
            at = i;
        forget(other, s);
    }
    d->stream_count--;
    memmove(&d->stream[at], &d->stream[at + 1], (d->stream_count - at) * sizeof(d->stream[0]));
    pthread_mutex_unlock(&d->lock);
    free(s->ring);
    free(s);
}

/* The entry to fill next, cleared; NULL when the stream is full. */
static struct aq_entry *next_entry(struct aq_device_stream *s, enum aq_entry_kind kind)
{
    if (s->submitted - atomic_load_explicit(&s->finished, memory_order_acquire) == s->opts.depth)
        return NULL;
    struct aq_entry *e = aq_entry_at(s, s->submitted);
    *e = (struct aq_entry){.kind = kind, .waits = s->waits};
    s->waits.count = 0;
    return e;
}

int aq_device_run(struct aq_device_stream *s, const struct aq_device_job *job)
{
    assert(job->fn && (job->done || job->token == AQ_TOKEN_NONE));
    struct aq_entry *e = next_entry(s, AQ_ENTRY_JOB);
    if (!e)
        return -EAGAIN;
    e->job = *job;
    s->d->ops->submit(s);
    return 0;
}

/* Adds up a copy's bytes; asserts that they go between the right memories. */
static void weigh_copy(const struct aq_device *d, struct aq_entry *e)
{
    const struct aq_device_copy *c = &e->copy;
    bool to_device = c->direction == AQ_H2D || c->direction == AQ_D2D;
    bool from_device = c->direction == AQ_D2H || c->direction == AQ_D2D;
    for (uint32_t i = 0; i < c->piece_count; i++) {
        const struct aq_copy_piece *p = &c->pieces[i];
        e->bytes += p->bytes;
        assert(p->dst != p->src || p->bytes == 0);
        if (!d->separate || p->bytes == 0)
            continue;
        assert(lies_in(d, p->dst, p->bytes, true, !to_device) == to_device);
        assert(lies_in(d, p->src, p->bytes, true, !from_device) == from_device);
        if (to_device != from_device &&
            !lies_in(d, to_device ? p->src : p->dst, p->bytes, false, false))
            e->pageable_bytes += p->bytes;
    }
}

int aq_device_copy(struct aq_device_stream *s, const struct aq_device_copy *copy)
{
    assert(copy->direction < AQ_DIRECTION_COUNT && s->opts.side == AQ_STREAM_DEVICE);
    assert(copy->done || copy->token == AQ_TOKEN_NONE);
    struct aq_entry *e = next_entry(s, AQ_ENTRY_COPY);
    if (!e)
        return -EAGAIN;
    e->copy = *copy;
    weigh_copy(s->d, e);
    s->d->ops->submit(s);
    return 0;
}

uint64_t aq_device_mark(const struct aq_device_stream *s)
{
    return s->submitted;
}

bool aq_device_finished(struct aq_device_stream *s, uint64_t ticket)
{
    assert(ticket <= s->submitted);
    return atomic_load_explicit(&s->finished, memory_order_acquire) >= ticket;
}

bool aq_device_chains(const struct aq_device_stream *s, const struct aq_device_stream *other)
{
    assert(s->d == other->d);
    return !s->d->ops->chains || s->d->ops->chains(s, other);
}

void aq_device_follow(struct aq_device_stream *s, const struct aq_device_stream *other,
                      uint64_t ticket)
{
    struct aq_stream_waits *waits = &s->waits;
    assert(s->d == other->d && ticket <= other->submitted);
    assert(aq_device_chains(s, other));
    if (atomic_load_explicit(&other->finished, memory_order_acquire) >= ticket)
        return;
    uint32_t i = 0;
    while (i < waits->count && waits->at[i].other != other)
        i++;
    if (i == waits->count) {
        assert(i < AQ_DEVICE_STREAMS_MAX);
        waits->at[waits->count++] = (struct aq_stream_wait){other, ticket};
    }
    waits->at[i].ticket = aq_max_u64(waits->at[i].ticket, ticket);
}

void aq_entry_report(const struct aq_entry *e)
{
    bool copy = e->kind == AQ_ENTRY_COPY;
    uint64_t token = copy ? e->copy.token : e->job.token;
    struct aq_device_span *span = copy ? e->copy.span : e->job.span;
    if (span)
        *span = (struct aq_device_span){e->start_ns, e->end_ns};
    if (token != AQ_TOKEN_NONE)
        aq_completions_push(copy ? e->copy.done : e->job.done, token, e->result);
}

/* ---- failure ---- */

void aq_device_fail(struct aq_device *d, int code)
{
    assert(code < 0);
    pthread_mutex_lock(&d->lock);
    if (!d->failed)
        d->failed = code;
    pthread_mutex_unlock(&d->lock);
}

int aq_device_failed(struct aq_device *d)
{
    pthread_mutex_lock(&d->lock);
    int failed = d->failed;
    pthread_mutex_unlock(&d->lock);
    return failed;
}

const char *aq_device_failure(struct aq_device *d)
{
    pthread_mutex_lock(&d->lock);
    const char *failure = d->failure;
    pthread_mutex_unlock(&d->lock);
    return failure;
}

void aq_device_clear(struct aq_device *d)
{
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->stream_count; i++)
        assert(aq_stream_empty(d->stream[i]));
    d->failed = 0;
    d->failure = NULL;
    pthread_mutex_unlock(&d->lock);
}

void aq_device_drain(struct aq_device *d)
{
    d->ops->drain(d);
}

void aq_device_stats(struct aq_device *d, struct aq_device_stats *ret)
{
    pthread_mutex_lock(&d->lock);
    *ret = d->stats;
    pthread_mutex_unlock(&d->lock);
}
