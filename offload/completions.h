/* SPDX-License-Identifier: Apache-2.0
 * offload/completions.h - the queue through which the one thread that issues work learns what has
 * finished: any thread pushes a token, one thread takes them.  Nobody polls: the taker sleeps on an
 * eventfd.  In virtual time there are no other threads, and waiting is what makes time pass.
 * Knows neither devices nor disks. */
#ifndef AQ_OFFLOAD_COMPLETIONS_H
#define AQ_OFFLOAD_COMPLETIONS_H

#include "base/err.h"

#include <stdint.h>

struct aq_timeline;

/* The token of work whose end nobody wants to hear of: never pushed. */
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
/* Nobody pushes any more; what was not taken is forgotten.  NULL is fine. */
void aq_completions_close(struct aq_completions *c);

/* From any thread; never blocks for long and never allocates.  What the pusher wrote before is
 * visible to the taker.  More than `capacity` untaken completions are a programmer error
 * (asserted). */
void aq_completions_push(struct aq_completions *c, uint64_t token, int result);

/* Takes up to max (>= 1) completions, in the order in which they were pushed.  With none there it
 * waits for the first, at most timeout_ns (0: does not wait; in virtual time: of virtual time).
 * Returns how many; 0 when the time has passed or a signal came.  -EDEADLK, in virtual time only:
 * nothing is due any more, so that the wait would never end. */
int aq_completions_wait(struct aq_completions *c, struct aq_completion *out, uint32_t max,
                        uint64_t timeout_ns);

/* Readable while there is something to take (for poll, or an io_uring poll request); owned by the
 * queue, not to be read from.  Means nothing in virtual time. */
int aq_completions_fd(const struct aq_completions *c);

#endif
