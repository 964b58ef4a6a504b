/* SPDX-License-Identifier: Apache-2.0
 * offload/timeline.h - virtual time for tests: one clock that all simulated parts of a run share
 * (the streams of a device, disks that io_fault delays), so that a whole overlapped pipeline runs
 * on one thread and is a pure function of its costs and a seed.
 *
 * A part is a source of events.  The clock jumps to the earliest event of all sources; of several
 * at the same time a draw from the seed picks the first, because no result may depend on their
 * order.  Single-threaded.  Knows neither bytes nor tokens. */
#ifndef AQ_OFFLOAD_TIMELINE_H
#define AQ_OFFLOAD_TIMELINE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { AQ_TIMELINE_SOURCES_MAX = 16 };

/* The time of an event that never comes. */
#define AQ_TIMELINE_NEVER UINT64_MAX

struct aq_timeline;

/* fire may make events due at any later time, or at this one. */
struct aq_timeline_source {
    uint64_t (*next)(void *arg);              /* time of its earliest event; NEVER: none is due */
    void (*fire)(void *arg, uint64_t now_ns); /* lets that event happen, at its time */
    void *arg;
};

int aq_timeline_open(struct aq_timeline **ret, uint64_t seed, struct aq_err *reterr);
/* Asserts that every source has been removed.  NULL is fine. */
void aq_timeline_close(struct aq_timeline *t);

/* At most AQ_TIMELINE_SOURCES_MAX (asserted).  A source is known by its arg. */
void aq_timeline_add(struct aq_timeline *t, const struct aq_timeline_source *source);
void aq_timeline_remove(struct aq_timeline *t, const void *arg);

uint64_t aq_timeline_now(const struct aq_timeline *t);
/* Moves the clock to the earliest event and lets it happen.  false when no event is due at or
 * before end_ns: the clock is then end_ns, or unchanged when end_ns is NEVER. */
bool aq_timeline_step(struct aq_timeline *t, uint64_t end_ns);

/* The next number below n (> 0) of the seed's sequence, for the random choices of parts. */
uint64_t aq_timeline_draw(struct aq_timeline *t, uint64_t n);

#endif
