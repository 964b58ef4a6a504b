/* SPDX-License-Identifier: Apache-2.0
 * offload/io_fault.h - an io engine that wraps another and makes disks late, disorderly and faulty,
 * from a seed.  It has no threads, and no clock but a virtual one: its own, which advances in reap,
 * or a timeline that it shares with other simulated parts.  The same calls with the same seed give
 * the same events.  A finite timeout passes at once.
 *
 * A request's fate is drawn at queue and applied when it completes.  Until then a destination holds
 * 0xff bytes (a NaN in f32, f16 and bf16) and a source is not looked at: who does not wait for a
 * read, or reuses a buffer too early, gets other tokens.  Requests that overlap in a file or in
 * memory while both are out, one of them changing the bytes, are a programmer error and asserted
 * against.  Requests complete in the order of their virtual times, that is, out of order. */
#ifndef AQ_OFFLOAD_IO_FAULT_H
#define AQ_OFFLOAD_IO_FAULT_H

#include "offload/io.h"
#include "offload/timeline.h"

enum { AQ_FAULT_SECTOR_BYTES = 4096, AQ_FAULT_FORCED_MAX = 64 };

enum aq_fault_kind {
    AQ_FAULT_NONE,
    /* drawn for each request */
    AQ_FAULT_BUSY,     /* queue says -EAGAIN */
    AQ_FAULT_EAGAIN,   /* the request ends in -EAGAIN, nothing moved */
    AQ_FAULT_EINTR,    /* ... in -EINTR */
    AQ_FAULT_SHORT,    /* a part of it is moved, at least one byte and not all */
    AQ_FAULT_EIO_ONCE, /* ... in -EIO; the next try draws anew */
    AQ_FAULT_STALL,    /* it never comes back */
    /* the same, and nobody is told: the request is said to be done in full */
    AQ_FAULT_LOST,  /* nothing is moved: what is read stays 0xff, what is on disk stays old */
    AQ_FAULT_TORN,  /* the first sectors are moved, and not all */
    AQ_FAULT_STRAY, /* it goes to, or comes from, a sector before its place, or behind */
    /* drawn for each sector of each file, once and for all: retries see the same */
    AQ_FAULT_EIO_STICKY, /* requests that touch the sector end in -EIO */
    AQ_FAULT_FLIP,       /* one bit of the sector is read wrong */
    AQ_FAULT_MISDIRECT,  /* the sector before it (behind it, for the first) is read instead */
    AQ_FAULT_KIND_COUNT,
};
const char *aq_fault_kind_name(enum aq_fault_kind kind);

/* num of den: integers, so that every machine draws the same.  {0, 0} is never. */
struct aq_ratio {
    uint32_t num, den;
};

/* Where faults may strike: the sectors that lie wholly in it, the requests that touch it. */
struct aq_fault_extent {
    uint32_t file;
    uint32_t kinds; /* bit (1 << kind) */
    uint64_t offset, bytes;
};

struct aq_fault_opts {
    uint64_t seed;
    /* Virtual nanoseconds from queue to completion: exponential above a floor. */
    uint64_t latency_ns_min, latency_ns_mean;
    uint64_t reap_ns; /* what a call of reap takes, or with a timeline a request; 0: 1000 */
    struct aq_timeline *timeline; /* NULL: a clock of its own; outlives the engine */
    struct aq_ratio ratio[AQ_FAULT_KIND_COUNT];
    const struct aq_fault_extent *map; /* copied; NULL: everywhere */
    uint32_t map_count;
};

/* Takes `inner` over, also when it fails.  The inner engine does one request at a time. */
int aq_io_open_fault(struct aq_io **ret, struct aq_io *inner, const struct aq_fault_opts *opts,
                     struct aq_err *reterr);

/* The rest is for engines of aq_io_open_fault alone. */

/* Forces the fate of the nth request from now that queue is asked to take (0: the next). */
void aq_io_fault_at(struct aq_io *io, uint64_t nth, enum aq_fault_kind kind);
/* The process stands still for so long: nobody looks, and what is out comes as much later.  Not
 * with a timeline. */
void aq_io_fault_stop(struct aq_io *io, uint64_t for_ns);
/* From now on nothing fails any more; what is stalled stays so. */
void aq_io_fault_heal(struct aq_io *io);

struct aq_fault_stats {
    uint64_t struck[AQ_FAULT_KIND_COUNT]; /* NONE: requests without any */
    uint64_t event_hash;                  /* of every completion: when, which, how */
    uint64_t events;
};
struct aq_fault_stats aq_io_fault_stats(const struct aq_io *io);

#endif
