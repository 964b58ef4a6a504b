/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/offload/device_rig.h - a device of one kind, in one sort of time, with memory account
 * and completion queue. */
#ifndef AQ_TESTS_DEVICE_RIG_H
#define AQ_TESTS_DEVICE_RIG_H

#include "base/mem.h"
#include "offload/device.h"
#include "tests/test.h"

#include <string.h>

#define GB_S 1000000000ull

struct rig {
    struct aq_mem *mem;
    struct aq_timeline *timeline; /* NULL in real time */
    struct aq_device *d;
    struct aq_completions *done;
};

struct rig_opts {
    bool real;
    uint64_t seed, device_bytes; /* device_bytes 0: no limit */
    struct aq_device_opts device;
};

static inline void rig_open(struct rig *r, struct rig_opts o)
{
    memset(r, 0, sizeof(*r));
    uint64_t limits[AQ_TIER_COUNT] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    if (o.device_bytes)
        limits[AQ_DEVICE] = o.device_bytes;
    assert_int_equal(aq_mem_open(&r->mem, limits, NULL), 0);
    if (!o.real)
        assert_int_equal(aq_timeline_open(&r->timeline, o.seed, NULL), 0);
    assert_int_equal(aq_completions_open(&r->done, 4096, r->timeline, NULL), 0);
    o.device.mem = r->mem;
    o.device.timeline = r->timeline;
    assert_int_equal(aq_device_open(&r->d, &o.device, NULL), 0);
}

static inline void rig_close(struct rig *r)
{
    aq_device_close(r->d);
    aq_completions_close(r->done);
    aq_timeline_close(r->timeline);
    aq_mem_close(r->mem);
}

static inline struct aq_device_stream *rig_stream(struct rig *r, const char *name, uint32_t depth,
                                                  uint32_t width)
{
    struct aq_device_stream *s;
    struct aq_device_stream_opts o = {.name = name, .depth = depth, .width = width};
    assert_int_equal(aq_device_stream_open(&s, r->d, &o, NULL), 0);
    return s;
}

static inline void *rig_take(struct rig *r, enum aq_device_memory memory, size_t bytes)
{
    void *p;
    assert_int_equal(aq_device_alloc(&p, r->d, memory, "test", bytes, NULL), 0);
    return p;
}

static inline void rig_give(struct rig *r, enum aq_device_memory memory, void *p, size_t bytes)
{
    aq_device_free(r->d, memory, "test", p, bytes);
}

/* Waits for one completion. */
static inline struct aq_completion rig_next(struct rig *r)
{
    struct aq_completion c;
    int n;
    do {
        n = aq_completions_wait(r->done, &c, 1, AQ_WAIT_FOREVER);
    } while (n == 0);
    assert_int_equal(n, 1);
    return c;
}

static inline void rig_expect(struct rig *r, uint64_t token, int result)
{
    struct aq_completion c = rig_next(r);
    assert_int_equal(c.token, token);
    assert_int_equal(c.result, result);
}

/* Lets so much virtual time pass, in which nothing may finish. */
static inline void rig_pass(struct rig *r, uint64_t ns)
{
    struct aq_completion c;
    assert_int_equal(aq_completions_wait(r->done, &c, 1, ns), 0);
}

#endif
