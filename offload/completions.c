/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/completions.h"

#include "base/types.h"
#include "offload/timeline.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct aq_completions {
    pthread_mutex_t lock;
    struct aq_timeline *timeline; /* NULL: real time */
    int fd;                       /* eventfd; readable exactly while count > 0 */
    uint32_t capacity, head, count;
    struct aq_completion ring[];
};

int aq_completions_open(struct aq_completions **ret, uint32_t capacity,
                        struct aq_timeline *timeline, struct aq_err *reterr)
{
    assert(ret && capacity >= 1);
    struct aq_completions *c = calloc(1, sizeof(*c) + (size_t)capacity * sizeof(c->ring[0]));
    if (!c)
        return aq_error_memory(reterr, "completion queue of %u", capacity);
    c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->fd < 0) {
        int rc = aq_error(reterr, -errno, "completion queue: eventfd: %s", strerror(errno));
        free(c);
        return rc;
    }
    pthread_mutex_init(&c->lock, NULL);
    c->capacity = capacity;
    c->timeline = timeline;
    *ret = c;
    return 0;
}

void aq_completions_close(struct aq_completions *c)
{
    if (!c)
        return;
    pthread_mutex_destroy(&c->lock);
    close(c->fd);
    free(c);
}

void aq_completions_push(struct aq_completions *c, uint64_t token, int result)
{
    assert(token != AQ_TOKEN_NONE);
    pthread_mutex_lock(&c->lock);
    assert(c->count < c->capacity);
    uint32_t tail = (uint32_t)(((uint64_t)c->head + c->count) % c->capacity);
    c->ring[tail] = (struct aq_completion){token, result};
    if (c->count++ == 0 && !c->timeline) {
        uint64_t one = 1;
        ssize_t n = write(c->fd, &one, sizeof(one));
        assert(n == (ssize_t)sizeof(one)); /* its counter is 0 or 1: it cannot be full */
    }
    pthread_mutex_unlock(&c->lock);
}

static uint32_t take(struct aq_completions *c, struct aq_completion *out, uint32_t max)
{
    pthread_mutex_lock(&c->lock);
    uint32_t n = c->count < max ? c->count : max;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = c->ring[c->head];
        c->head = c->head + 1 == c->capacity ? 0 : c->head + 1;
    }
    c->count -= n;
    if (n > 0 && c->count == 0 && !c->timeline) {
        uint64_t value;
        ssize_t got = read(c->fd, &value, sizeof(value));
        assert(got == (ssize_t)sizeof(value));
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

/* Sleeps until the descriptor is readable; false when the time has passed or a signal came. */
static bool wait_readable(const struct aq_completions *c, uint64_t timeout_ns)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000),
                          .tv_nsec = (long)(timeout_ns % 1000000000)};
    return ppoll(&p, 1, timeout_ns == AQ_WAIT_FOREVER ? NULL : &ts, NULL) > 0;
}

static int wait_virtual(struct aq_completions *c, struct aq_completion *out, uint32_t max,
                        uint64_t timeout_ns)
{
    uint64_t now = aq_timeline_now(c->timeline);
    uint64_t end = timeout_ns > AQ_TIMELINE_NEVER - now ? AQ_TIMELINE_NEVER : now + timeout_ns;
    for (;;) {
        uint32_t n = take(c, out, max);
        if (n > 0 || timeout_ns == 0)
            return (int)n;
        if (!aq_timeline_step(c->timeline, end))
            return end == AQ_TIMELINE_NEVER ? -EDEADLK : 0;
    }
}

int aq_completions_wait(struct aq_completions *c, struct aq_completion *out, uint32_t max,
                        uint64_t timeout_ns)
{
    assert(max >= 1 && max <= INT32_MAX);
    if (c->timeline)
        return wait_virtual(c, out, max, timeout_ns);
    uint32_t n = take(c, out, max);
    /* Only this thread takes: what made the descriptor readable is still there. */
    if (n == 0 && timeout_ns > 0 && wait_readable(c, timeout_ns))
        n = take(c, out, max);
    return (int)n;
}

int aq_completions_fd(const struct aq_completions *c)
{
    return c->fd;
}
