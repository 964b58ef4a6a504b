/* SPDX-License-Identifier: Apache-2.0
 * offload/io_fault.h - an io engine that wraps another and makes disks late, disorderly and faulty,
 * from a seed.  It has no threads, and no clock but a virtual one: its own, which advances in reap,
 * or a timeline that it shares with other simulated parts.  The same calls with the same seed give
 * the same events.  A finite timeout passes at once.
 *
 * A request's fate is drawn at queue and applied when it completes.  Until then a destination holds
 * 0xff bytes (a NaN in f32, f16 and bf16) and a source is not read: code that does not wait for a
 * read, or reuses a buffer too early, produces other tokens.  Two requests out at once that overlap
 * in a file or in memory, one of them changing the bytes, are a programmer error (asserted).
 * Requests complete in the order of their virtual times, that is, out of order. */
#ifndef AQ_OFFLOAD_IO_FAULT_H
#define AQ_OFFLOAD_IO_FAULT_H

#include "offload/io.h"
#include "offload/timeline.h"

enum { AQ_FAULT_SECTOR_BYTES = 4096, AQ_FAULT_FORCED_MAX = 64 };

enum aq_fault_kind {
    AQ_FAULT_NONE,
    /* drawn for each request */
    AQ_FAULT_BUSY,     /* queue returns -EAGAIN */
    AQ_FAULT_EAGAIN,   /* the request ends in -EAGAIN, nothing moved */
    AQ_FAULT_EINTR,    /* ... in -EINTR */
    AQ_FAULT_SHORT,    /* a part of it is moved, at least one byte and not all */
    AQ_FAULT_EIO_ONCE, /* ... in -EIO; the next try draws anew */
    AQ_FAULT_STALL,    /* the request never comes back */
    /* drawn for each request, and silent: the request reports that it was done in full */
    AQ_FAULT_LOST,  /* nothing is moved: a destination stays 0xff, the disk's bytes stay old */
    AQ_FAULT_TORN,  /* the first sectors are moved, and not all */
    AQ_FAULT_STRAY, /* the bytes go to, or come from, a neighbouring sector */
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

/* A range where faults may strike: sectors that lie wholly in it, requests that touch it. */
struct aq_fault_extent {
    uint32_t file;
    uint32_t kinds; /* bit (1 << kind) */
    uint64_t offset, bytes;
};

struct aq_fault_opts {
    uint64_t seed;
    /* Virtual nanoseconds from queue to completion: exponential above a floor. */
    uint64_t latency_ns_min, latency_ns_mean;
    uint64_t reap_ns; /* duration of a call of reap (with a timeline: of a request); 0: 1000 */
    struct aq_timeline *timeline; /* NULL: a clock of its own; outlives the engine */
    struct aq_ratio ratio[AQ_FAULT_KIND_COUNT];
    const struct aq_fault_extent *map; /* copied; NULL: everywhere */
    uint32_t map_count;
};

/* Takes `inner` over, also when it fails.  The inner engine does one request at a time. */
int aq_io_open_fault(struct aq_io **ret, struct aq_io *inner, const struct aq_fault_opts *opts,
                     struct aq_err *reterr);

/* The rest is for engines of aq_io_open_fault alone. */

/* Forces the fate of the nth request given to queue from now on (0: the next). */
void aq_io_fault_at(struct aq_io *io, uint64_t nth, enum aq_fault_kind kind);
/* Simulates a stopped process: time passes without calls, and outstanding requests finish as much
 * later.  Not with a timeline. */
void aq_io_fault_stop(struct aq_io *io, uint64_t for_ns);
/* From now on no request fails; stalled ones stay stalled. */
void aq_io_fault_heal(struct aq_io *io);

struct aq_fault_stats {
    uint64_t struck[AQ_FAULT_KIND_COUNT]; /* NONE: requests without any */
    uint64_t event_hash;                  /* of every completion: when, which, how */
    uint64_t events;
};
struct aq_fault_stats aq_io_fault_stats(const struct aq_io *io);

#endif
