/* SPDX-License-Identifier: Apache-2.0
 * offload/completions.h - the queue that brings finished work to the one thread that issues work:
 * any thread pushes a token, one thread takes tokens.  The taker does not poll, but sleeps on an
 * eventfd.  In virtual time there are no other threads, and waiting makes time pass.  Knows neither
 * devices nor disks. */
#ifndef AQ_OFFLOAD_COMPLETIONS_H
#define AQ_OFFLOAD_COMPLETIONS_H

#include "base/err.h"

#include <stdint.h>

struct aq_timeline;

/* The token of work whose end is not reported: never pushed. */
#define AQ_TOKEN_NONE UINT64_MAX
/* A timeout that never comes. */
#define AQ_WAIT_FOREVER UINT64_MAX

struct aq_completion {
    uint64_t token;
    int result; /* 0 or -errno */
};

struct aq_completions;

/* capacity (>= 1): the most completions that can be outstanding.  timeline NULL: real time; else
 * it outlives the queue. */
int aq_completions_open(struct aq_completions **ret, uint32_t capacity,
                        struct aq_timeline *timeline, struct aq_err *reterr);
/* No thread may push any more; untaken completions are lost.  NULL is fine. */
void aq_completions_close(struct aq_completions *c);

/* From any thread; never blocks for long and never allocates.  The pusher's earlier writes are
 * visible to the taker.  More than `capacity` untaken completions are a programmer error
 * (asserted). */
void aq_completions_push(struct aq_completions *c, uint64_t token, int result);

/* Takes up to max (>= 1) completions, in the order in which they were pushed.  If there are none,
 * waits for the first, at most timeout_ns (0: does not wait; in virtual time: virtual nanoseconds).
 * Returns their number; 0 after the timeout or a signal.  -EDEADLK, in virtual time only: no event
 * is due any more, so that the wait would never end. */
int aq_completions_wait(struct aq_completions *c, struct aq_completion *out, uint32_t max,
                        uint64_t timeout_ns);

/* A descriptor that is readable while there are completions (for poll, or an io_uring poll
 * request); owned by the queue, not to be read from.  Without meaning in virtual time. */
int aq_completions_fd(const struct aq_completions *c);

#endif
