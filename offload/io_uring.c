/* SPDX-License-Identifier: Apache-2.0
 * offload/io_uring.c - the io_uring engine.  Requests go to the kernel in batches, one system call
 * for all of them; completions are read off the shared ring.  Buffers and files are registered
 * where the kernel permits it, which saves the pinning of pages on every request. */
#include "offload/io_engine.h"

#include "base/types.h"
#include "config.h"

#if AQ_HAVE_IO_URING

#include <assert.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    /* The kernel takes at most 1 GiB as one registered buffer, and 16384 of them. */
    SLICE_BYTES = 1 << 30,
    SLICES_MAX = 16384,
};

/* Waiting with a timeout without a request for it: Linux 5.11. */
#define NEEDED_FEATURES (IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP)

struct slice {
    char *base;
    uint64_t bytes;
};

struct uring {
    struct aq_io io;
    struct io_uring ring;
    bool open, enabled;
    struct slice *slice; /* registered buffers, ascending; index = the kernel's */
    uint32_t slice_count;
    struct aq_io_bell bell;
    bool bell_armed; /* a poll for the bell is in the ring */
};

/* What the completion of the bell's poll carries instead of a request. */
static const char bell_tag;

static struct uring *uring_of(struct aq_io *io)
{
    return (struct uring *)io;
}

/* ---- set-up ---- */

/* Cheaper ways of completing, dropped one by one by kernels that do not know them: deferred task
 * work (6.1), a single submitter (6.0), no interrupts for completions (5.19), going on after a
 * refused request (5.18).  R_DISABLED lets another thread than the one that opens be the submitter.
 */
static const unsigned set_up_flags[] = {
    IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN |
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN |
        IORING_SETUP_SINGLE_ISSUER,
    IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_R_DISABLED,
};

/* 0 or -errno. */
static int set_up(struct io_uring *ring, uint32_t entries, unsigned *ret_features)
{
    int rc = -EINVAL;
    for (size_t i = 0; i < AQ_ARRAY_LEN(set_up_flags) && rc == -EINVAL; i++) {
        struct io_uring_params params = {.flags = set_up_flags[i]};
        rc = io_uring_queue_init_params(entries, ring, &params);
        *ret_features = params.features;
    }
    return rc;
}

static const char *set_up_reason(int code)
{
    switch (code) {
    case -ENOSYS: return "the kernel has none";
    case -EPERM:
    case -EACCES: return "forbidden here, as containers often do";
    case -ENOMEM: return "the locked-memory limit is too low";
    case -EMFILE:
    case -ENFILE: return "too many files are open";
    case -EINVAL:
    case -EOPNOTSUPP: return "the kernel's is too old: Linux 5.11 is needed";
    default: return "io_uring_setup failed";
    }
}

const char *aq_io_uring_reason(void)
{
    struct io_uring ring;
    unsigned features;
    int rc = set_up(&ring, 1, &features);
    if (rc < 0)
        return set_up_reason(rc);
    io_uring_queue_exit(&ring);
    return (features & NEEDED_FEATURES) == NEEDED_FEATURES ? NULL : set_up_reason(-EINVAL);
}

static int slice_order(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    return x->base < y->base ? -1 : x->base > y->base;
}

/* Regions in pieces that the kernel takes. */
static int make_slices(struct uring *u, const struct aq_io_opts *opts)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < opts->region_count; i++)
        count += aq_div_up(opts->regions[i].bytes, SLICE_BYTES);
    if (count == 0 || count > SLICES_MAX)
        return count ? -E2BIG : 0;
    u->slice = calloc(count, sizeof(*u->slice));
    if (!u->slice)
        return -ENOMEM;
    for (uint32_t i = 0; i < opts->region_count; i++) {
        const struct aq_io_region *r = &opts->regions[i];
        for (uint64_t at = 0; at < r->bytes; at += SLICE_BYTES)
            u->slice[u->slice_count++] =
                (struct slice){(char *)r->base + at, aq_min_u64(SLICE_BYTES, r->bytes - at)};
    }
    qsort(u->slice, u->slice_count, sizeof(*u->slice), slice_order);
    return 0;
}

static void drop_slices(struct uring *u)
{
    free(u->slice);
    u->slice = NULL;
    u->slice_count = 0;
}

/* Registration is an economy: without it every request pins its pages, and all else is the same. */
static void register_buffers(struct uring *u, const struct aq_io_opts *opts)
{
    int rc = make_slices(u, opts);
    if (rc == 0 && u->slice_count == 0)
        return;
    struct iovec *vec = rc == 0 ? calloc(u->slice_count, sizeof(*vec)) : NULL;
    uint64_t bytes = 0;
    for (uint32_t i = 0; vec && i < u->slice_count; i++) {
        vec[i] = (struct iovec){u->slice[i].base, u->slice[i].bytes};
        bytes += u->slice[i].bytes;
    }
    if (vec)
        rc = io_uring_register_buffers(&u->ring, vec, u->slice_count);
    else if (rc == 0)
        rc = -ENOMEM;
    free(vec);
    u->io.caps.fixed_buffers = rc == 0;
    if (rc == 0)
        return;
    drop_slices(u);
    struct rlimit limit = {0};
    if (rc == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < bytes)
        aq_log_line(&u->io.log, AQ_LOG_INFO,
                    "io: %llu MiB of buffers are not registered with io_uring: the locked-memory "
                    "limit (ulimit -l) is %llu KiB; costs a little CPU",
                    (unsigned long long)(bytes / AQ_MIB),
                    (unsigned long long)limit.rlim_cur / 1024);
    else
        aq_log_line(&u->io.log, AQ_LOG_INFO,
                    "io: buffers are not registered with io_uring: %s; costs a little CPU",
                    strerror(-rc));
}

static int register_files(struct uring *u)
{
    int *fds = calloc(u->io.file_count, sizeof(*fds));
    if (!fds)
        return -ENOMEM;
    for (uint32_t i = 0; i < u->io.file_count; i++)
        fds[i] = u->io.files[i].fd;
    int rc = io_uring_register_files(&u->ring, fds, u->io.file_count);
    free(fds);
    return rc;
}

/* The calling thread becomes the submitter. */
static int enable(struct uring *u, struct aq_err *reterr)
{
    if (u->enabled)
        return 0;
    /* Not io_uring_enable_rings(), which liburing 2.3's shared library does not export. */
    int rc = io_uring_register((unsigned)u->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    if (rc < 0)
        return aq_error(reterr, rc, "io_uring: enable: %s", strerror(-rc));
    u->enabled = true;
    return 0;
}

/* ---- requests ---- */

/* Index of the registered buffer that holds the whole request; -1: none does. */
static int find_slice(const struct uring *u, const struct aq_io_request *r)
{
    const char *at = r->buffer;
    uint32_t low = 0, high = u->slice_count; /* slices below `low` begin at or below `at` */
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (u->slice[mid].base <= at)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0)
        return -1;
    const struct slice *s = &u->slice[low - 1];
    uint64_t from = (uint64_t)(at - s->base);
    return from <= s->bytes && r->bytes <= s->bytes - from ? (int)(low - 1) : -1;
}

static int uring_queue(struct aq_io *io, struct aq_io_request *r)
{
    struct uring *u = uring_of(io);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    assert(sqe); /* the ring has room for depth_max requests and the bell's poll */
    const struct aq_io_file *file = &io->files[r->file];
    int slice = find_slice(u, r);
    int fd = io->caps.fixed_files ? (int)r->file : file->fd;
    if (r->op == AQ_IO_READ && slice >= 0)
        io_uring_prep_read_fixed(sqe, fd, r->buffer, r->bytes, r->offset, slice);
    else if (r->op == AQ_IO_READ)
        io_uring_prep_read(sqe, fd, r->buffer, r->bytes, r->offset);
    else if (slice >= 0)
        io_uring_prep_write_fixed(sqe, fd, r->buffer, r->bytes, r->offset, slice);
    else
        io_uring_prep_write(sqe, fd, r->buffer, r->bytes, r->offset);
    /* Through the page cache the copying would be done by the thread that submits: a kernel worker
     * does it instead. */
    unsigned flags =
        (io->caps.fixed_files ? IOSQE_FIXED_FILE : 0) | (file->direct ? 0 : IOSQE_ASYNC);
    io_uring_sqe_set_flags(sqe, flags);
    io_uring_sqe_set_data(sqe, r);
    return 0;
}

static bool is_not_now(int code)
{
    return code == -EAGAIN || code == -EBUSY || code == -EINTR;
}

static int uring_commit(struct aq_io *io, struct aq_err *reterr)
{
    struct uring *u = uring_of(io);
    int rc = enable(u, reterr);
    if (rc < 0)
        return rc;
    if (io_uring_sq_ready(&u->ring) == 0)
        return 0;
    rc = io_uring_submit(&u->ring);
    if (rc < 0 && !is_not_now(rc))
        return aq_error(reterr, rc, "io_uring: submit %u requests: %s", io_uring_sq_ready(&u->ring),
                        strerror(-rc));
    return 0;
}

static void collect(struct uring *u, struct aq_io_reaped *ret)
{
    struct io_uring_cqe *cqe;
    unsigned head, count = 0;
    io_uring_for_each_cqe(&u->ring, head, cqe)
    {
        count++;
        if (io_uring_cqe_get_data(cqe) == &bell_tag) {
            u->bell_armed = false;
            aq_io_bell_quiet(&u->bell);
            continue;
        }
        struct aq_io_request *r = io_uring_cqe_get_data(cqe);
        if (cqe->res > 0)
            aq_io_forget(&u->io.files[r->file], r->offset, (uint64_t)cqe->res);
        aq_io_finish(&u->io, ret, r, cqe->res);
    }
    io_uring_cq_advance(&u->ring, count);
    if (aq_io_bell_take(&u->bell))
        ret->woken = true;
}

static void arm_bell(struct uring *u)
{
    if (u->bell_armed)
        return;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    assert(sqe);
    io_uring_prep_poll_add(sqe, u->bell.fd, POLLIN);
    io_uring_sqe_set_data(sqe, (void *)(uintptr_t)&bell_tag);
    u->bell_armed = true;
}

/* Hands over what is queued and waits for one completion, of a request or of the bell.  0, or
 * -errno of a ring that is broken. */
static int wait_one(struct uring *u, uint64_t timeout_ns, struct aq_io_reaped *ret)
{
    struct __kernel_timespec ts = {.tv_sec = (long long)(timeout_ns / 1000000000),
                                   .tv_nsec = (long long)(timeout_ns % 1000000000)};
    struct io_uring_cqe *cqe;
    arm_bell(u);
    int rc = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1,
                                              timeout_ns == AQ_IO_FOREVER ? NULL : &ts, NULL);
    if (rc == -EAGAIN || rc == -EBUSY) {
        /* The kernel lacks memory for more: wait for what it has, and come back soon. */
        ts = (struct __kernel_timespec){.tv_nsec = (long long)aq_min_u64(timeout_ns, 1000000)};
        rc = io_uring_wait_cqe_timeout(&u->ring, &cqe, &ts);
    }
    if (rc == -EINTR)
        ret->woken = true;
    return rc >= 0 || rc == -ETIME || is_not_now(rc) ? 0 : rc;
}

static int uring_reap(struct aq_io *io, uint32_t min, uint64_t timeout_ns, struct aq_io_reaped *ret,
                      struct aq_err *reterr)
{
    struct uring *u = uring_of(io);
    int rc = uring_commit(io, reterr);
    if (rc < 0)
        return rc;
    /* With deferred task work nothing arrives in the ring unless it is asked for. */
    if (io->in_flight > 0)
        (void)io_uring_get_events(&u->ring);
    uint64_t start = aq_io_now(io);
    /* At most one turn a completion, wake, or millisecond in which the kernel has no memory. */
    for (;;) {
        collect(u, ret);
        uint64_t spent = aq_io_now(io) - start;
        if (ret->count >= min || ret->woken || spent >= timeout_ns)
            return 0;
        rc = wait_one(u, timeout_ns == AQ_IO_FOREVER ? AQ_IO_FOREVER : timeout_ns - spent, ret);
        if (rc < 0)
            return aq_error(reterr, rc, "io_uring: wait: %s", strerror(-rc));
    }
}

static void uring_wake(struct aq_io *io)
{
    aq_io_bell_ring(&uring_of(io)->bell);
}

static void uring_close(struct aq_io *io, bool abandon)
{
    struct uring *u = uring_of(io);
    if (abandon)
        return; /* the kernel still has the ring and the buffers */
    if (u->open)
        io_uring_queue_exit(&u->ring);
    drop_slices(u);
    aq_io_bell_close(&u->bell);
    aq_io_fini(io);
    free(u);
}

static const struct aq_io_ops uring_ops = {
    .queue = uring_queue,
    .commit = uring_commit,
    .reap = uring_reap,
    .wake = uring_wake,
    .close = uring_close,
};

int aq_io_open_uring(struct aq_io **ret, const struct aq_io_opts *opts, struct aq_err *reterr)
{
    struct uring *u = calloc(1, sizeof(*u));
    if (!u)
        return aq_error_memory(reterr, "io engine 'uring'");
    u->bell.fd = -1;
    if (opts->log)
        u->io.log = *opts->log;
    unsigned features = 0;
    int rc =
        aq_io_init(&u->io, &uring_ops, "uring", opts->files, opts->file_count, opts->depth, reterr);
    if (rc < 0)
        goto fail;
    /* One entry more for the bell.  The completion ring is twice as large, and at most depth + 1
     * completions can be outstanding: it cannot overflow. */
    rc = set_up(&u->ring, opts->depth + 1, &features);
    if (rc < 0) {
        aq_error(reterr, rc, "io_uring cannot be used: %s (%s)", set_up_reason(rc), strerror(-rc));
        goto fail;
    }
    u->open = true;
    if ((features & NEEDED_FEATURES) != NEEDED_FEATURES) {
        rc = aq_error(reterr, -EINVAL, "io_uring cannot be used: %s", set_up_reason(-EINVAL));
        goto fail;
    }
    rc = aq_io_bell_open(&u->bell, reterr);
    if (rc < 0)
        goto fail;
    rc = register_files(u);
    u->io.caps.fixed_files = rc == 0;
    if (rc < 0)
        aq_log_line(&u->io.log, AQ_LOG_INFO, "io: files are not registered with io_uring: %s",
                    strerror(-rc));
    register_buffers(u, opts);
    *ret = &u->io;
    return 0;
fail:
    uring_close(&u->io, false);
    return rc;
}

#else

#define WITHOUT "this build has no liburing"

const char *aq_io_uring_reason(void)
{
    return WITHOUT;
}

int aq_io_open_uring(struct aq_io **ret, const struct aq_io_opts *opts, struct aq_err *reterr)
{
    (void)ret;
    (void)opts;
    return aq_error(reterr, -ENOSYS, "io_uring cannot be used: " WITHOUT);
}

#endif
