/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/io.h"

#include "base/clock.h"
#include "base/types.h"
#include "offload/io_engine.h"

#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* How long close waits for a disk that does not answer, and between two looks at the clock: time in
 * which nobody looked, the process being stopped, counts as one such wait. */
#define CLOSE_WAIT_NS (10ull * 1000 * 1000 * 1000)
#define CLOSE_LOOK_NS (CLOSE_WAIT_NS / 40)

static const char *const kind_names[AQ_IO_KIND_COUNT] = {
    [AQ_IO_AUTO] = "auto",
    [AQ_IO_URING] = "uring",
    [AQ_IO_THREADS] = "threads",
};

const char *aq_io_kind_name(enum aq_io_kind kind)
{
    return kind < AQ_IO_KIND_COUNT ? kind_names[kind] : "?";
}

int aq_io_init(struct aq_io *io, const struct aq_io_ops *ops, const char *name,
               const struct aq_io_file *files, uint32_t file_count, uint32_t depth,
               struct aq_err *reterr)
{
    io->ops = ops;
    io->files = calloc(file_count, sizeof(*io->files));
    if (!io->files)
        return aq_error_memory(reterr, "io engine '%s': %u files", name, file_count);
    memcpy(io->files, files, file_count * sizeof(*files));
    io->file_count = file_count;
    io->caps =
        (struct aq_io_caps){.name = name, .align_bytes = 1, .depth_max = depth, .direct = true};
    for (uint32_t i = 0; i < file_count; i++) {
        if (files[i].direct)
            io->caps.align_bytes = AQ_IO_ALIGN;
        else
            io->caps.direct = false;
    }
    return 0;
}

void aq_io_fini(struct aq_io *io)
{
    free(io->files);
    io->files = NULL;
}

/* Waits for what is in flight.  False: the disk does not answer. */
static bool drain(struct aq_io *io)
{
    uint64_t waited_ns = 0;
    while (io->in_flight) {
        struct aq_io_reaped reaped;
        uint64_t begin = aq_clock_ns();
        if (waited_ns >= CLOSE_WAIT_NS ||
            aq_io_reap(io, io->in_flight, CLOSE_LOOK_NS, &reaped, NULL) < 0)
            return false;
        waited_ns += aq_min_u64(aq_clock_ns() - begin, CLOSE_LOOK_NS);
    }
    return true;
}

void aq_io_close(struct aq_io *io)
{
    if (!io)
        return;
    /* In virtual time nothing is really in flight. */
    bool home = io->caps.virtual_time || drain(io);
    if (!home)
        aq_log_line(&io->log, AQ_LOG_WARNING,
                    "io: the disk does not answer; %u requests are left behind", io->in_flight);
    io->ops->close(io, !home);
}

const struct aq_io_caps *aq_io_caps(const struct aq_io *io)
{
    return &io->caps;
}

const char *aq_io_file_name(const struct aq_io *io, uint32_t file)
{
    assert(file < io->file_count);
    return io->files[file].name ? io->files[file].name : "?";
}

uint32_t aq_io_out(const struct aq_io *io)
{
    return io->queued + io->in_flight;
}

uint64_t aq_io_now(const struct aq_io *io)
{
    return io->ops->now ? io->ops->now(io) : aq_clock_ns();
}

uint64_t aq_io_next(const struct aq_io *io)
{
    return io->ops->next ? io->ops->next(io) : UINT64_MAX;
}

/* ---- the four verbs, with their counts ---- */

int aq_io_queue(struct aq_io *io, struct aq_io_request *r)
{
    assert(!r->out && r->file < io->file_count && r->buffer && r->op < AQ_IO_OP_COUNT);
    assert(r->bytes >= 1 && r->bytes <= AQ_IO_REQUEST_BYTES_MAX);
    if (io->files[r->file].direct) {
        uint32_t mask = io->caps.align_bytes - 1;
        assert((r->offset & mask) == 0 && (r->bytes & mask) == 0);
        assert(((uintptr_t)r->buffer & mask) == 0);
    }
    assert(io->queued + io->in_flight <= io->caps.depth_max);
    if (io->queued + io->in_flight == io->caps.depth_max)
        return -EAGAIN;
    r->next = NULL;
    r->result = 0;
    int rc = io->ops->queue(io, r);
    assert(rc == 0 || rc == -EAGAIN);
    if (rc == 0) {
        r->out = true;
        io->queued++;
    }
    return rc;
}

/* From here on the engine sees to it that they get done. */
static void take_queued(struct aq_io *io)
{
    io->in_flight += io->queued;
    io->queued = 0;
}

int aq_io_commit(struct aq_io *io, struct aq_err *reterr)
{
    take_queued(io);
    return io->ops->commit(io, reterr);
}

int aq_io_reap(struct aq_io *io, uint32_t min, uint64_t timeout_ns, struct aq_io_reaped *ret,
               struct aq_err *reterr)
{
    struct aq_io_reaped reaped = {0};
    take_queued(io);
    if (timeout_ns == 0)
        min = 0;
    if (min > io->in_flight)
        min = io->in_flight ? io->in_flight : 1;
    io->tail = NULL;
    int rc = io->ops->reap(io, min, timeout_ns, &reaped, reterr);
    /* What was finished before an engine broke is lost with it. */
    assert(reaped.count <= io->in_flight);
    io->in_flight -= reaped.count;
    io->done += reaped.count;
    if (rc == 0)
        *ret = reaped;
    return rc;
}

void aq_io_wake(struct aq_io *io)
{
    io->ops->wake(io);
}

void aq_io_finish(struct aq_io *io, struct aq_io_reaped *ret, struct aq_io_request *r,
                  int32_t result)
{
    assert(r->out && (result < 0 || (uint32_t)result <= r->bytes));
    r->out = false;
    r->result = result;
    r->next = NULL;
    if (io->tail)
        io->tail->next = r;
    else
        ret->list = r;
    io->tail = r;
    ret->count++;
}

void aq_io_forget(const struct aq_io_file *file, uint64_t offset, uint64_t bytes)
{
    if (file->forget)
        (void)posix_fadvise(file->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
}

/* ---- the bell ---- */

int aq_io_bell_open(struct aq_io_bell *bell, struct aq_err *reterr)
{
    atomic_init(&bell->rung, false);
    bell->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (bell->fd < 0)
        return aq_error(reterr, -errno, "eventfd: %s", strerror(errno));
    return 0;
}

void aq_io_bell_close(struct aq_io_bell *bell)
{
    if (bell->fd >= 0)
        close(bell->fd);
    bell->fd = -1;
}

void aq_io_bell_ring(struct aq_io_bell *bell)
{
    int saved = errno;
    uint64_t one = 1;
    atomic_store(&bell->rung, true);
    /* Fails only when the counter is full, that is, when it is readable anyway. */
    ssize_t n = write(bell->fd, &one, sizeof(one));
    (void)n;
    errno = saved;
}

void aq_io_bell_quiet(struct aq_io_bell *bell)
{
    uint64_t count;
    ssize_t n = read(bell->fd, &count, sizeof(count));
    (void)n;
}

/* The descriptor is quieted first: a ring between the two is then still seen in `rung`. */
bool aq_io_bell_take(struct aq_io_bell *bell)
{
    if (!atomic_load(&bell->rung))
        return false;
    aq_io_bell_quiet(bell);
    return atomic_exchange(&bell->rung, false);
}

bool aq_io_bell_wait(struct aq_io_bell *bell, uint64_t timeout_ns)
{
    struct pollfd p = {.fd = bell->fd, .events = POLLIN};
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000),
                          .tv_nsec = (long)(timeout_ns % 1000000000)};
    return ppoll(&p, 1, timeout_ns == AQ_IO_FOREVER ? NULL : &ts, NULL) >= 0;
}
