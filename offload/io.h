/* SPDX-License-Identifier: Apache-2.0
 * offload/io.h - disk transfers in flight: queue, commit, reap, close.  An engine moves bytes
 * between a fixed set of open files and memory, many requests at a time, and reports what happened:
 * short transfers, EINTR, EAGAIN and EIO are results here, which xfer.h handles once for all
 * engines.  Knows no stripes, layers or tensors.
 *
 *   uring    io_uring; the default where the kernel allows it
 *   threads  a pool of threads that call pread and pwrite; the fallback
 *   mem      files in memory: tests, and benchmarks of everything but the disk
 *   fault    wraps another engine: seeded latency, reordering and faults in virtual time
 *
 * One thread calls queue, commit and reap: the first thread that calls any of the three.  Any
 * thread may call aq_io_wake.  Nothing is allocated after open.  From queue until reap returns the
 * request, a destination is garbage, and a source must not change. */
#ifndef AQ_OFFLOAD_IO_H
#define AQ_OFFLOAD_IO_H

#include "base/err.h"
#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    AQ_IO_ALIGN = 4096, /* of offset, bytes and buffer of requests to files opened O_DIRECT */
    AQ_IO_DEPTH_MAX = 1024,
    AQ_IO_FILES_MAX = 1024,
    AQ_IO_REQUEST_BYTES_MAX = 1 << 30,
};

/* A timeout that never comes. */
#define AQ_IO_FOREVER UINT64_MAX

enum aq_io_op { AQ_IO_READ, AQ_IO_WRITE, AQ_IO_OP_COUNT };

/* Embedded in the caller's own struct, which is found by the request's address. */
struct aq_io_request {
    /* the caller's; the engine does not change them */
    enum aq_io_op op;
    uint32_t file;  /* index in the engine's set of files */
    uint32_t bytes; /* 1 .. AQ_IO_REQUEST_BYTES_MAX */
    uint64_t offset;
    void *buffer;
    /* the engine's */
    int32_t result; /* after reap: bytes moved (0 at the end of a file) or -errno */
    bool out;       /* from queue until reap */
    struct aq_io_request *next;
};

struct aq_io_caps {
    const char *name;     /* "uring", "threads", "mem", "fault" */
    uint32_t align_bytes; /* AQ_IO_ALIGN when any file is opened O_DIRECT, else 1 */
    uint32_t depth_max;   /* requests queued and in flight together */
    bool direct;          /* every file bypasses the page cache */
    bool fixed_buffers;   /* every region is registered with the kernel */
    bool fixed_files;
    bool virtual_time; /* aq_io_now() is not real time */
};

struct aq_io_file {
    int fd;           /* the caller's; outlives the engine */
    const char *name; /* for messages; outlives the engine */
    bool direct;      /* opened with O_DIRECT */
    bool forget;      /* buffered: drop the pages from the page cache after each request */
};

/* Memory that requests mostly use, registered with the kernel where it permits. */
struct aq_io_region {
    void *base;
    uint64_t bytes;
};

enum aq_io_kind { AQ_IO_AUTO, AQ_IO_URING, AQ_IO_THREADS, AQ_IO_KIND_COUNT };
const char *aq_io_kind_name(enum aq_io_kind kind);

struct aq_io_opts {
    enum aq_io_kind kind; /* AUTO: uring, or threads with a line in the log that says why */
    const struct aq_io_file *files;
    uint32_t file_count;
    const struct aq_io_region *regions;
    uint32_t region_count;
    uint32_t depth;           /* 1 .. AQ_IO_DEPTH_MAX */
    uint32_t threads;         /* of the thread pool; 0: as many as the depth, at most 8 */
    const struct aq_log *log; /* NULL: silent; the struct itself is copied */
};

struct aq_io;

/* -ENODEV: the engine opts->kind cannot be used here. */
int aq_io_open(struct aq_io **ret, const struct aq_io_opts *opts, struct aq_err *reterr);

/* Waits for requests in flight, so that no buffer is written to afterwards.  Requests not yet
 * reaped are lost; queued ones may or may not be carried out.  If the disk does not answer for ten
 * seconds, the wait ends with a warning, and the engine's memory is leaked; the caller should leak
 * the buffers too.  The same happens at once when requests are out and another thread queued them,
 * because only that thread can collect them.  NULL is fine. */
void aq_io_close(struct aq_io *io);

const struct aq_io_caps *aq_io_caps(const struct aq_io *io);
/* The name of a file of the set, for messages. */
const char *aq_io_file_name(const struct aq_io *io, uint32_t file);
/* Requests between queue and reap. */
uint32_t aq_io_out(const struct aq_io *io);
/* Nanoseconds on the engine's clock: monotonic, or virtual. */
uint64_t aq_io_now(const struct aq_io *io);
/* In virtual time: when the next of the outstanding requests finishes; UINT64_MAX: none will, or
 * time is real. */
uint64_t aq_io_next(const struct aq_io *io);

/* Takes a request; nothing happens to it before commit.  -EAGAIN: not now; commit, reap some and
 * try again.  Offset, bytes and buffer are multiples of align_bytes when the file is direct. */
int aq_io_queue(struct aq_io *io, struct aq_io_request *request);

/* Starts all queued requests, in one system call where the engine can.  Requests that the kernel
 * does not accept now (EAGAIN, EBUSY, EINTR) are started by the next commit or reap.  An error
 * means that the engine is broken. */
int aq_io_commit(struct aq_io *io, struct aq_err *reterr);

struct aq_io_reaped {
    struct aq_io_request *list; /* in the order in which they finished */
    uint32_t count;
    bool woken; /* aq_io_wake was called, or a signal came */
};

/* Finished requests; commits first.  Waits until `min` requests have finished (or all, if fewer are
 * in flight), until the timeout, or until aq_io_wake.  With nothing in flight and min > 0 only a
 * wake or the timeout ends the wait; min 0 does not wait.  An error means that the engine is
 * broken; ret is then untouched. */
int aq_io_reap(struct aq_io *io, uint32_t min, uint64_t timeout_ns, struct aq_io_reaped *ret,
               struct aq_err *reterr);

/* Ends the present wait in reap, or else the next one, once however often it was called.  From any
 * thread, also from a signal handler. */
void aq_io_wake(struct aq_io *io);

/* ---- files in memory ---- */

struct aq_io_mem_file {
    void *data; /* the caller's */
    uint64_t bytes;
    const char *name; /* NULL: "memory" */
};

struct aq_io_mem_opts {
    const struct aq_io_mem_file *files;
    uint32_t file_count;
    uint32_t depth;
    uint32_t align_bytes; /* required of requests, as if files were direct; 0: 1 */
    bool null;            /* every request succeeds and moves nothing */
};

/* Reads past the end are short, writes past it -ENOSPC.  Bytes move in reap. */
int aq_io_open_mem(struct aq_io **ret, const struct aq_io_mem_opts *opts, struct aq_err *reterr);

/* ---- what can be used here ---- */

struct aq_io_description {
    enum aq_io_kind kind;     /* the engine that AQ_IO_AUTO chooses */
    const char *uring_reason; /* why io_uring cannot be used; NULL: it can */
};
void aq_io_describe(struct aq_io_description *ret);

#endif
