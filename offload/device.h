/* SPDX-License-Identifier: Apache-2.0
 * offload/device.h - a device: memory of its own, streams that carry out jobs and copies in order,
 * and links of a certain speed.  A device moves bytes and runs functions without knowing their
 * purpose.
 *
 *   UNIFIED   the CPU itself: device memory is host memory, copies are plain ones
 *   EMULATED  the CPU as if it were a separate device: an arena of its own with an absolute limit,
 *             links throttled to a rate each way
 *   GPU       a GPU behind offload/gpu.h: memory of its own that the host cannot touch, and the
 *             driver's streams
 *
 * Time is real, with a thread per stream, or virtual (a timeline is given): then there are no
 * threads, each job takes the time of its cost, and aq_completions_wait makes time pass.
 *
 * One thread, the issuer, opens, submits and waits.  Submission never blocks, allocates or waits.
 * Everything submitted finishes: a stream can wait only for what was submitted before. */
#ifndef AQ_OFFLOAD_DEVICE_H
#define AQ_OFFLOAD_DEVICE_H

#include "base/err.h"
#include "base/mem.h"
#include "base/types.h"
#include "offload/completions.h"
#include "offload/gpu.h"
#include "offload/numa.h"
#include "offload/timeline.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    AQ_DEVICE_STREAMS_MAX = 16,
    AQ_DEVICE_DEPTH_MAX = 1 << 16,
};

enum aq_device_kind { AQ_DEVICE_UNIFIED, AQ_DEVICE_EMULATED, AQ_DEVICE_GPU, AQ_DEVICE_KIND_COUNT };

/* H2D and D2H are the two links, independent of each other; the others are plain copies inside one
 * memory, as fast as they go. */
enum aq_direction {
    AQ_H2D,
    AQ_D2H,
    AQ_LINK_COUNT, /* links are indexed by the two above */
    AQ_H2H = AQ_LINK_COUNT,
    AQ_D2D,
    AQ_DIRECTION_COUNT,
};

struct aq_device_link {
    uint64_t bytes_per_s; /* 0: not throttled; takes no virtual time */
    uint64_t latency_ns;  /* per copy, on top of its bytes */
};

struct aq_device_opts {
    enum aq_device_kind kind;
    struct aq_mem *mem; /* accounts for all memory; the AQ_DEVICE tier's limit is the arena's */
    struct aq_device_link link[AQ_LINK_COUNT]; /* EMULATED; unlimited otherwise */
    const struct aq_numa *numa;                /* on which nodes memory goes; NULL: anywhere */
    struct aq_timeline *timeline;              /* NULL: real time.  Outlives the device */
    const struct aq_gpu_ops *gpu_ops;          /* GPU alone, and then in real time */
    struct aq_gpu *gpu;
    /* Puts a kernel on the stream `native` that copies pieces; the list is read at the call.  NULL:
     * the driver copies the pieces one by one, slowly if they are small.  0 or a driver's code. */
    int (*gpu_pieces)(void *user, void *native, const struct aq_copy_piece *pieces, uint32_t count);
    void *gpu_pieces_user;

    /* Virtual time only. */
    bool poison; /* from the start of a copy until its end its destination holds NaNs (0xff bytes),
                    and so do a job's outputs: a reader that does not wait gets NaNs */
    bool eager;  /* a draw decides whether a job's work is done when it starts or when it ends, as
                    both may happen on a real device; otherwise always when it ends */
    uint32_t jitter_permille; /* costs vary by up to this much, up and down (<= 1000) */
};

struct aq_device;

/* All pointers in opts outlive the device. */
int aq_device_open(struct aq_device **ret, const struct aq_device_opts *opts,
                   struct aq_err *reterr);
/* Streams are closed and memory freed before (asserted).  NULL is fine. */
void aq_device_close(struct aq_device *d);

/* Does the device have memory of its own, behind links? */
bool aq_device_separate(const struct aq_device *d);
/* Is it a GPU: does the host have no way to its memory but copies, and do jobs of its streams run
 * in the submitting call (aq_device_fn)? */
bool aq_device_is_gpu(const struct aq_device *d);
/* Nanoseconds on the device's clock: monotonic, or virtual. */
uint64_t aq_device_now(const struct aq_device *d);

/* ---- memory: taken and given back only while nothing runs ---- */

enum aq_device_memory {
    AQ_MEMORY_DEVICE, /* a separate device's own; accounted to AQ_DEVICE, on UNIFIED to AQ_HOST */
    AQ_MEMORY_PINNED, /* host memory that copies use: asynchronous on every kind of device */
    AQ_MEMORY_HOST,   /* pageable host memory; copies that use it may be slow and synchronous */
    AQ_MEMORY_COUNT,
};

/* The tier that such memory is accounted to. */
enum aq_tier aq_device_tier(const struct aq_device *d, enum aq_device_memory memory);
/* As aq_mem_alloc: zeroed, purpose a string literal, -ENOMEM with both figures at the limit.
 * Memory of a separate device may be touched by jobs of device streams and by copies alone; the
 * host does not read or write it, even where it could. */
int aq_device_alloc(void **ret, struct aq_device *d, enum aq_device_memory memory,
                    const char *purpose, size_t bytes, struct aq_err *reterr);
/* The same of a buffer that holds, from `offset` on, `count` things of `unit` bytes each which all
 * workers share, in one or several places: where the host's memory is in parts (offload/numa.h),
 * each group's things lie near it. */
struct aq_device_shared {
    uint64_t offset, count;
    size_t unit;
};
int aq_device_alloc_shared(void **ret, struct aq_device *d, enum aq_device_memory memory,
                           const char *purpose, size_t bytes, const struct aq_device_shared *shared,
                           uint32_t shared_count, struct aq_err *reterr);
/* The groups that share such buffers; their count is 1 where memory is not in parts. */
const struct aq_groups *aq_device_groups(const struct aq_device *d);
/* Bytes that a group has of all that was taken so. */
uint64_t aq_device_group_bytes(const struct aq_device *d, uint32_t group);
/* p NULL is fine; the other arguments as given to alloc. */
void aq_device_free(struct aq_device *d, enum aq_device_memory memory, const char *purpose, void *p,
                    size_t bytes);
/* Pins host memory that was taken elsewhere, so that copies may use it.  Unpin before it is freed.
 */
int aq_device_pin(struct aq_device *d, void *p, size_t bytes, struct aq_err *reterr);
void aq_device_unpin(struct aq_device *d, void *p);

/* A copy to device memory that returns when the bytes are there, from any thread.  For the time
 * before jobs run. */
int aq_device_write(struct aq_device *d, void *p, const void *from, size_t bytes,
                    struct aq_err *reterr);
/* Can kernels touch all of these bytes (device memory, or pinned)?  For the issuer. */
bool aq_device_reaches(const struct aq_device *d, const void *p, uint64_t bytes);

/* ---- streams ---- */

/* Where a stream's jobs run.  Copies go to DEVICE streams. */
enum aq_stream_side {
    AQ_STREAM_DEVICE, /* on the device: kernels and copies */
    AQ_STREAM_HOST,   /* on a thread of the host, also when the device is a GPU */
};

/* What a stream's thread does in real time while none of its jobs may start, instead of sleeping:
 * fn(user), which returns soon after call(user), or at once if that came before.  call is called by
 * any thread. */
struct aq_stream_idle {
    void (*fn)(void *user), (*call)(void *user);
    void *user;
};

struct aq_device_stream_opts {
    const char *name; /* static string: "compute", "h2d" ... (the first 15 bytes name the thread) */
    enum aq_stream_side side;
    uint32_t depth; /* jobs and copies that may be submitted and unfinished */
    uint32_t width; /* jobs in flight at once, 0: 1.  More than 1 in virtual time only: jobs start
                       in order and end in any order, as on a disk with a queue */
    int nice;       /* of the thread, 0..19, on top of the process's */
    bool first;     /* of a GPU's streams: what copies by kernels must not wait for products */
    struct aq_stream_idle idle; /* fn NULL: sleeps; not of a GPU's device */
    bool bind; /* the thread runs on CPU number `cpu` alone, where that is allowed */
    uint32_t cpu;
};

struct aq_device_stream;

int aq_device_stream_open(struct aq_device_stream **ret, struct aq_device *d,
                          const struct aq_device_stream_opts *opts, struct aq_err *reterr);
/* Waits until all its jobs and copies have finished.  NULL is fine. */
void aq_device_stream_close(struct aq_device_stream *s);

/* When a job or copy began and ended, on the device's clock. */
struct aq_device_span {
    uint64_t start_ns, end_ns;
};

/* The function of a job; returns 0 or -errno.  On a CPU stream the function does the work, on the
 * stream's thread, when its turn has come.  On a GPU stream the function runs at once, in the
 * submitting call, and enqueues the work on `native` (the cudaStream_t; NULL on a CPU).  So it may
 * read only its arg, and values that the host knew at submission; memory that other jobs write is
 * for the kernels.  A job's function neither submits nor waits. */
typedef int aq_device_fn(void *arg, void *native);

struct aq_device_range {
    void *base;
    uint64_t bytes;
};

struct aq_device_job {
    aq_device_fn *fn;
    void *arg;        /* the caller's until the job has finished */
    uint64_t cost_ns; /* duration in virtual time */
    uint64_t token;   /* pushed to `done` when the job has finished, unless AQ_TOKEN_NONE */
    struct aq_completions *done;
    struct aq_device_span *span; /* NULL, or filled before the token is pushed */
    /* Bytes that the job overwrites without reading them, to be poisoned; the caller's until the
     * end. */
    const struct aq_device_range *outputs;
    uint32_t output_count;
};

struct aq_device_copy {
    enum aq_direction direction;
    const struct aq_copy_piece *pieces; /* the caller's until the copy has finished */
    uint32_t piece_count;
    uint64_t cost_ns; /* virtual time of H2H and D2D copies; links have times of their own */
    uint64_t token;
    struct aq_completions *done;
    struct aq_device_span *span;
};

/* Submit a job, or a copy; the struct is copied.  0; -EAGAIN when the stream holds `depth` jobs and
 * copies: wait for a completion of one of them and try again (if none has a token, none will come).
 * A job or copy starts when everything before it in the stream has finished.  Sides are checked: a
 * copy between the wrong memories of an EMULATED device is a programmer error (asserted). */
int aq_device_run(struct aq_device_stream *s, const struct aq_device_job *job);
int aq_device_copy(struct aq_device_stream *s, const struct aq_device_copy *copy);

/* A ticket stands for everything submitted to a stream so far.  It is a number that rises with each
 * submission, and costs nothing to take or keep. */
uint64_t aq_device_mark(const struct aq_device_stream *s);
/* Has everything up to the ticket finished?  For the issuer; its results are then visible. */
bool aq_device_finished(struct aq_device_stream *s, uint64_t ticket);

/* Can s follow the other stream without the host in between?  Not if one is a GPU's stream and the
 * other a host's: such dependencies go through a completion. */
bool aq_device_chains(const struct aq_device_stream *s, const struct aq_device_stream *other);
/* Jobs and copies submitted to s from now on start only when the other stream has finished
 * everything up to the ticket (marked there before).  Cannot fail and takes no place in the
 * stream. */
void aq_device_follow(struct aq_device_stream *s, const struct aq_device_stream *other,
                      uint64_t ticket);

/* ---- failure: once, and quickly over ---- */

/* A job that fails fails the device: jobs and copies that have not started, on any stream, are
 * skipped and end with -ECANCELED; running ones end by themselves.  So every token still comes,
 * soon, and one of them carries the cause.  aq_device_fail does the same for a cause from elsewhere
 * (code < 0).  Clear makes the device usable again, when all streams are empty (asserted). */
void aq_device_fail(struct aq_device *d, int code);
int aq_device_failed(struct aq_device *d); /* 0, or the first cause */
/* The driver's text for the cause; NULL when the cause was not the driver's. */
const char *aq_device_failure(struct aq_device *d);
void aq_device_clear(struct aq_device *d);

/* Returns when all streams are empty.  Completions are pushed on the way, as always. */
void aq_device_drain(struct aq_device *d);

/* ---- bytes moved ---- */

struct aq_device_stats {
    struct {
        uint64_t copies, bytes;
        uint64_t busy_ns;        /* sum over its copies of their time on the link */
        uint64_t pageable_bytes; /* of `bytes`: to or from host memory that is not pinned */
    } link[AQ_LINK_COUNT];
    uint64_t plain_bytes; /* H2H and D2D */
};
/* Copies that have finished. */
void aq_device_stats(struct aq_device *d, struct aq_device_stats *ret);

#endif
