/* SPDX-License-Identifier: Apache-2.0
 * offload/xfer.h - transfers: a logical range of a striped set of files to or from one buffer.
 * Cuts each transfer into requests, keeps a queue of them in the io engine, resumes short transfers
 * and retries errors that may pass, so that an executor sees whole transfers that succeeded or
 * failed.  Owns its requests, allocated at open.  Knows neither the meaning of the bytes nor their
 * checksums, which the caller compares.
 *
 * One thread calls all functions, the engine's thread; aq_io_wake(engine) from any other ends a
 * wait in poll.  An engine serves one xfer.
 *
 * The fault contract, tested by tests/unit/offload/test_xfer.c:
 *
 *   the engine reports            what happens
 *   busy, reordering, latency     nothing; requests wait their turn
 *   EAGAIN, EINTR                 tried again until the deadline
 *   a short transfer              the rest is requested, from the last whole block on
 *   EIO                           tried again `eio_retries` times, then the transfer ends in -EIO
 *   the end of a file             the transfer ends in -EIO: files have their size before they are
 *                                 read or written
 *   any other error               the transfer ends in it
 *   no answer for `deadline_ns`   the transfer ends in -ETIMEDOUT; time in which the process stood
 *                                 still (SIGSTOP, a machine that slept) does not count
 *   wrong bytes                   goes unnoticed: the caller compares checksums where there are any
 *
 * A failed transfer is reported once, after all its requests came back: its buffer is garbage, but
 * is not written to any more.  Only after -ETIMEDOUT, or when the engine itself broke, may a
 * request still be out: then the buffer, and for a write the range of the file, belong to the
 * engine until it is closed.  Other transfers are affected only by a broken engine. */
#ifndef AQ_OFFLOAD_XFER_H
#define AQ_OFFLOAD_XFER_H

#include "offload/io.h"

enum {
    AQ_XFER_REQUEST_BYTES_MIN = 4096,
    AQ_XFER_REQUEST_BYTES_MAX = 64 * 1024 * 1024,
    AQ_XFER_SETS_MAX = 64,
};

/* Files [first_file, first_file + file_count) of the engine, as one address space (stripe.h). */
struct aq_xfer_set {
    uint32_t first_file, file_count;
    uint64_t bytes;
};

struct aq_xfer_opts {
    struct aq_io *io; /* borrowed; closed by the caller, after the xfer */
    const struct aq_xfer_set *sets;
    uint32_t set_count;
    uint32_t depth;         /* requests out at a time; at most the engine's depth_max */
    uint32_t request_bytes; /* of the largest request; multiple of 4096 */
    uint32_t eio_retries;   /* of one request */
    uint64_t deadline_ns;   /* of one request, from its start or its last progress */
};

/* Depth 16, requests of 2 MiB, 3 retries, one minute; the caller adds io and sets.  A deep queue
 * bridges the moments in which the thread does not run, but delays each transfer (xfer.c). */
struct aq_xfer_opts aq_xfer_defaults(void);

/* Embedded in the caller's own struct; belongs to the caller again when poll returns it. */
struct aq_transfer {
    /* the caller's */
    enum aq_io_op op;
    uint32_t set;
    uint64_t offset, bytes; /* in the set's address space; multiples of the engine's align_bytes */
    void *buffer;           /* likewise */
    /* set by poll */
    int status;                  /* 0 or -errno */
    uint64_t began_ns, ended_ns; /* first request, last answer; on the engine's clock */
    struct aq_transfer *next;
    /* xfer.c's */
    uint64_t cut; /* bytes handed out as requests */
    uint32_t out; /* requests not back */
    bool running; /* from start until poll returns it */
    uint32_t failed_file, failed_tries;
    uint64_t failed_offset;
    uint32_t failed_bytes;
};

struct aq_xfer;

int aq_xfer_open(struct aq_xfer **ret, const struct aq_xfer_opts *opts, struct aq_err *reterr);
/* Does not wait: running transfers are lost, and their buffers belong to the engine until it is
 * closed.  NULL is fine. */
void aq_xfer_close(struct aq_xfer *x);

/* Adds a transfer behind those started before; never fails, never blocks.  Reads and writes take
 * turns at the queue, each in the order of their start.  Nothing happens before commit or poll. */
void aq_xfer_start(struct aq_xfer *x, struct aq_transfer *t);

/* Fills the engine's queue and starts its requests; does not wait.  Requests that do not fit follow
 * in poll: a thread that computes meanwhile leaves the disk idle once the queue is empty. */
void aq_xfer_commit(struct aq_xfer *x);

/* Finished transfers, as a list in the order in which they finished.  Waits until there is one;
 * NULL after the timeout (AQ_IO_FOREVER: none) or aq_io_wake.  Also waits for a wake when no
 * transfer runs.  Fills the queue before it returns. */
struct aq_transfer *aq_xfer_poll(struct aq_xfer *x, uint64_t timeout_ns);

/* In virtual time: the time of poll's next event; UINT64_MAX: none is due. */
uint64_t aq_xfer_next(const struct aq_xfer *x);

/* Transfers started and not yet returned. */
uint32_t aq_xfer_running(const struct aq_xfer *x);

/* Raises the error of a failed transfer (operation, file, place, number of tries); returns its
 * status. */
int aq_xfer_error(const struct aq_xfer *x, const struct aq_transfer *t, struct aq_err *reterr);

struct aq_xfer_stats {
    uint64_t bytes[AQ_IO_OP_COUNT];    /* moved by requests that came back */
    uint64_t requests[AQ_IO_OP_COUNT]; /* that came back, with any result */
    uint64_t busy_ns[AQ_IO_OP_COUNT];  /* with a request of this kind out */
    uint64_t any_busy_ns;              /* with any request out */
    uint64_t again, shorts, eio;       /* requests tried again, by reason */
    uint64_t failed, timed_out;        /* transfers */
    double depth;                      /* mean number of requests out while any was */
};
/* Since open, on the engine's clock. */
struct aq_xfer_stats aq_xfer_stats(const struct aq_xfer *x);

#endif
