/* SPDX-License-Identifier: Apache-2.0
 * bench/disk.c - one pass over a file, as weights are streamed: by the transfers of offload/, or by
 * a bare loop over liburing that does nothing else.  bench/disk.py runs both in turn, and fio
 * beside them.  Prints one JSON object. */
#include "offload/disk.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/prng.h"
#include "config.h"
#include "offload/xfer.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#if AQ_HAVE_IO_URING
#include <liburing.h>
#endif

enum { CHUNKS = 12, DEPTH_MAX = 256 };

struct options {
    const char *reader; /* "xfer", "bare"; "create" writes the file */
    const char *path;
    enum aq_io_kind io;
    enum aq_direct direct;
    uint64_t bytes;         /* of the file, 0: as it is */
    uint32_t request_bytes; /* 0: as xfer has it by default */
    uint32_t depth;         /* likewise */
    uint32_t chunk_bytes;   /* of one transfer: a slot of the weight ring */
};

struct result {
    uint64_t bytes;
    double seconds, cpu_seconds, depth;
    uint64_t huge_bytes, buffer_bytes; /* backed by huge pages; in all */
    uint64_t check;                    /* of one word in 4096: who reads, has read the same */
    bool direct, fixed_buffers;
    const char *engine;
};

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Bytes of a map that are backed by huge pages. */
static uint64_t huge_bytes_of(const void *p)
{
    char line[512];
    uint64_t from, to, kib, found = 0;
    bool inside = false;
    FILE *f = fopen("/proc/self/smaps", "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%llx-%llx ", (unsigned long long *)&from, (unsigned long long *)&to) == 2)
            inside = from <= (uintptr_t)p && (uintptr_t)p < to;
        else if (inside && sscanf(line, "AnonHugePages: %llu", (unsigned long long *)&kib) == 1)
            found = kib * 1024;
    }
    if (f)
        fclose(f);
    return found;
}

static uint64_t checksum(uint64_t sum, const void *buffer, uint64_t offset, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += 4096) {
        uint64_t word;
        memcpy(&word, (const char *)buffer + at, 8);
        sum += word * (2 * ((offset + at) / 4096) + 1);
    }
    return sum;
}

/* Pages that an earlier buffered reader left. */
static void drop_cache(int fd)
{
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* ---- transfers ---- */

static void start_chunk(struct aq_xfer *x, struct aq_transfer *t, uint64_t *cursor, uint64_t total,
                        uint64_t chunk_bytes)
{
    if (*cursor == total)
        return;
    t->offset = *cursor;
    t->bytes = aq_min_u64(chunk_bytes, total - *cursor);
    *cursor += t->bytes;
    aq_xfer_start(x, t);
}

/* A ring of chunks: one that has arrived is asked for again at once, so that the queue never runs
 * dry. */
static int stream(struct aq_xfer *x, enum aq_io_op op, void *ring, const struct options *o,
                  struct result *r, struct aq_err *err)
{
    struct aq_transfer t[CHUNKS];
    uint64_t cursor = 0, done = 0;
    memset(t, 0, sizeof(t));
    for (int i = 0; i < CHUNKS; i++) {
        t[i].op = op;
        t[i].buffer = (char *)ring + (size_t)i * o->chunk_bytes;
        start_chunk(x, &t[i], &cursor, o->bytes, o->chunk_bytes);
    }
    while (done < o->bytes) {
        struct aq_transfer *next;
        for (struct aq_transfer *at = aq_xfer_poll(x, AQ_IO_FOREVER); at; at = next) {
            next = at->next;
            if (at->status < 0)
                return aq_xfer_error(x, at, err);
            done += at->bytes;
            if (op == AQ_IO_READ)
                r->check = checksum(r->check, at->buffer, at->offset, at->bytes);
            start_chunk(x, at, &cursor, o->bytes, o->chunk_bytes);
        }
    }
    return 0;
}

static int run_xfer(const struct options *o, enum aq_io_op op, const struct aq_io_file *file,
                    struct result *r, struct aq_err *err)
{
    uint64_t limit[AQ_TIER_COUNT] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    struct aq_mem *mem;
    struct aq_io *io = NULL;
    struct aq_xfer *x = NULL;
    void *ring = NULL;
    r->buffer_bytes = (uint64_t)CHUNKS * o->chunk_bytes;
    int rc = aq_mem_open(&mem, limit, err);
    if (rc < 0)
        return rc;
    rc = aq_mem_alloc(&ring, mem, AQ_HOST, "ring", r->buffer_bytes, err);
    if (rc < 0)
        goto out;
    if (op == AQ_IO_WRITE) {
        for (uint64_t at = 0; at < r->buffer_bytes; at += 8)
            *(uint64_t *)((char *)ring + at) = (at + 1) * 0x9e3779b97f4a7c15ull;
    }
    struct aq_io_region region = {ring, r->buffer_bytes};
    struct aq_io_opts io_opts = {.kind = o->io,
                                 .files = file,
                                 .file_count = 1,
                                 .regions = &region,
                                 .region_count = 1,
                                 .depth = DEPTH_MAX};
    struct aq_xfer_set set = {0, 1, o->bytes};
    struct aq_xfer_opts opts = aq_xfer_defaults();
    rc = aq_io_open(&io, &io_opts, err);
    if (rc < 0)
        goto out;
    opts.io = io;
    opts.sets = &set;
    opts.set_count = 1;
    opts.request_bytes = o->request_bytes ? o->request_bytes : opts.request_bytes;
    opts.depth = o->depth ? o->depth : opts.depth;
    rc = aq_xfer_open(&x, &opts, err);
    if (rc < 0)
        goto out;
    r->huge_bytes = huge_bytes_of(ring);
    drop_cache(file->fd);
    double cpu = cpu_seconds(), start = aq_clock_s();
    rc = stream(x, op, ring, o, r, err);
    r->seconds = aq_clock_s() - start;
    r->cpu_seconds = cpu_seconds() - cpu;
    r->bytes = o->bytes;
    r->depth = aq_xfer_stats(x).depth;
    r->engine = aq_io_caps(io)->name;
    r->direct = aq_io_caps(io)->direct;
    r->fixed_buffers = aq_io_caps(io)->fixed_buffers;
out:
    aq_xfer_close(x);
    aq_io_close(io);
    aq_mem_free(mem, AQ_HOST, "ring", ring, r->buffer_bytes);
    aq_mem_close(mem);
    return rc;
}

/* ---- the bare loop ---- */

#if AQ_HAVE_IO_URING

struct bare {
    struct io_uring ring;
    char *buffers;
    uint32_t request_bytes;
};

static void bare_read(struct bare *b, uint64_t index, uint64_t *offsets, uint64_t offset,
                      uint64_t total)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
    uint32_t bytes = (uint32_t)aq_min_u64(b->request_bytes, total - offset);
    assert(sqe);
    offsets[index] = offset;
    io_uring_prep_read_fixed(sqe, 0, b->buffers + index * b->request_bytes, bytes, offset, 0);
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, index);
}

/* Keeps `depth` reads in flight; a short one is an error. */
static int bare_loop(struct bare *b, const struct options *o, struct result *r, struct aq_err *err)
{
    uint64_t offsets[DEPTH_MAX], cursor = 0, done = 0;
    for (uint64_t i = 0; i < o->depth && cursor < o->bytes; i++) {
        bare_read(b, i, offsets, cursor, o->bytes);
        cursor += aq_min_u64(b->request_bytes, o->bytes - cursor);
    }
    while (done < o->bytes) {
        int rc = io_uring_submit_and_wait(&b->ring, 1);
        if (rc < 0 && rc != -EINTR)
            return aq_error(err, rc, "submit: %s", strerror(-rc));
        struct io_uring_cqe *cqe;
        unsigned head, count = 0;
        io_uring_for_each_cqe(&b->ring, head, cqe)
        {
            uint64_t index = cqe->user_data, offset = offsets[index];
            uint64_t want = aq_min_u64(b->request_bytes, o->bytes - offset);
            if (cqe->res < 0 || (uint64_t)cqe->res != want)
                return aq_error(err, -EIO, "read at %llu: %d", (unsigned long long)offset,
                                cqe->res);
            done += want;
            r->check = checksum(r->check, b->buffers + index * b->request_bytes, offset, want);
            count++;
            if (cursor == o->bytes)
                continue;
            bare_read(b, index, offsets, cursor, o->bytes);
            cursor += aq_min_u64(b->request_bytes, o->bytes - cursor);
        }
        io_uring_cq_advance(&b->ring, count);
    }
    return 0;
}

static int run_bare(const struct options *o, int fd, struct result *r, struct aq_err *err)
{
    uint64_t limit[AQ_TIER_COUNT] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    struct bare b = {.request_bytes = o->request_bytes};
    struct aq_mem *mem;
    r->buffer_bytes = (uint64_t)o->depth * o->request_bytes;
    int rc = aq_mem_open(&mem, limit, err);
    if (rc < 0)
        return rc;
    rc = aq_mem_alloc((void **)&b.buffers, mem, AQ_HOST, "bare", r->buffer_bytes, err);
    if (rc < 0) {
        aq_mem_close(mem);
        return rc;
    }
    struct iovec vec = {b.buffers, r->buffer_bytes};
    rc = io_uring_queue_init(o->depth, &b.ring,
                             IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (rc == 0) {
        rc = io_uring_register_buffers(&b.ring, &vec, 1);
        rc = rc < 0 ? rc : io_uring_register_files(&b.ring, &fd, 1);
        if (rc < 0)
            io_uring_queue_exit(&b.ring);
    }
    if (rc < 0) {
        aq_error(err, rc, "the bare reader: %s", strerror(-rc));
    } else {
        r->huge_bytes = huge_bytes_of(b.buffers);
        drop_cache(fd);
        double cpu = cpu_seconds(), start = aq_clock_s();
        rc = bare_loop(&b, o, r, err);
        r->seconds = aq_clock_s() - start;
        r->cpu_seconds = cpu_seconds() - cpu;
        r->bytes = o->bytes;
        r->depth = o->depth;
        r->engine = "uring";
        r->direct = true;
        r->fixed_buffers = true;
        io_uring_queue_exit(&b.ring);
    }
    aq_mem_free(mem, AQ_HOST, "bare", b.buffers, r->buffer_bytes);
    aq_mem_close(mem);
    return rc;
}

#else

static int run_bare(const struct options *o, int fd, struct result *r, struct aq_err *err)
{
    (void)o;
    (void)fd;
    (void)r;
    return aq_error(err, -ENODEV, "the bare reader: this build has no liburing");
}

#endif

/* ---- the program ---- */

static uint64_t parse_size(const char *text)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    static const char units[] = "KMG";
    const char *unit = *end ? strchr(units, *end) : NULL;
    return unit ? n << 10 * (unit - units + 1) : n;
}

static bool parse_io(enum aq_io_kind *ret, const char *text)
{
    for (*ret = 0; *ret < AQ_IO_KIND_COUNT; ++*ret) {
        if (strcmp(text, aq_io_kind_name(*ret)) == 0)
            return true;
    }
    return false;
}

static bool parse_direct(enum aq_direct *ret, const char *text)
{
    static const char *const name[AQ_DIRECT_COUNT] = {
        [AQ_DIRECT_AUTO] = "auto", [AQ_DIRECT_ON] = "on", [AQ_DIRECT_OFF] = "off"};
    for (*ret = 0; *ret < AQ_DIRECT_COUNT; ++*ret) {
        if (strcmp(text, name[*ret]) == 0)
            return true;
    }
    return false;
}

static bool parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--reader") == 0)
            o->reader = value;
        else if (strcmp(name, "--file") == 0)
            o->path = value;
        else if (strcmp(name, "--size") == 0)
            o->bytes = parse_size(value);
        else if (strcmp(name, "--request") == 0)
            o->request_bytes = (uint32_t)parse_size(value);
        else if (strcmp(name, "--depth") == 0)
            o->depth = (uint32_t)parse_size(value);
        else if (strcmp(name, "--chunk") == 0)
            o->chunk_bytes = (uint32_t)parse_size(value);
        else if (!(strcmp(name, "--io") == 0 && parse_io(&o->io, value)) &&
                 !(strcmp(name, "--io-direct") == 0 && parse_direct(&o->direct, value)))
            return false;
    }
    bool bare = strcmp(o->reader, "bare") == 0;
    return argc % 2 == 1 && o->path && o->depth <= DEPTH_MAX && o->bytes % 4096 == 0 &&
           o->request_bytes % 4096 == 0 && o->chunk_bytes >= 4096 && o->chunk_bytes % 4096 == 0 &&
           (!bare || (o->depth && o->request_bytes));
}

static void warn(void *user, enum aq_log_level level, const char *text)
{
    (void)user;
    if (level == AQ_LOG_WARNING)
        fprintf(stderr, "disk: %s\n", text);
}

static int run(struct options *o, struct result *r, struct aq_err *err)
{
    bool create = strcmp(o->reader, "create") == 0;
    struct aq_log log = {warn, NULL};
    struct aq_disk_data_opts opts = {
        .paths = &o->path, .count = 1, .direct = o->direct, .log = &log};
    struct aq_disk *disk;
    struct stat st;
    if (create) {
        int fd = open(o->path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
        if (fd < 0)
            return aq_error(err, -errno, "create '%s': %s", o->path, strerror(errno));
        struct aq_io_file file = {.fd = fd, .name = o->path, .direct = true};
        int rc = run_xfer(o, AQ_IO_WRITE, &file, r, err);
        if (rc == 0 && fsync(fd) < 0)
            rc = aq_error(err, -errno, "fsync '%s': %s", o->path, strerror(errno));
        close(fd);
        return rc;
    }
    int rc = aq_disk_open_data(&disk, &opts, err);
    if (rc < 0)
        return rc;
    const struct aq_io_file *file = aq_disk_files(disk);
    if (fstat(file->fd, &st) < 0 || st.st_size < 4096)
        rc = aq_error(err, -EINVAL, "'%s': expected at least 4096 bytes", o->path);
    else if (o->bytes == 0 || o->bytes > (uint64_t)st.st_size)
        o->bytes = (uint64_t)st.st_size / 4096 * 4096;
    if (rc == 0)
        rc = strcmp(o->reader, "bare") == 0 ? run_bare(o, file->fd, r, err)
                                            : run_xfer(o, AQ_IO_READ, file, r, err);
    aq_disk_close(disk);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o = {.reader = "xfer", .chunk_bytes = 16 * AQ_MIB};
    struct result r = {0};
    struct aq_err err = {0};
    if (!parse(&o, argc, argv)) {
        fprintf(stderr, "usage: disk --file PATH [--reader xfer|bare|create] [--size BYTES]\n"
                        "            [--request BYTES] [--depth N] [--chunk BYTES]\n"
                        "            [--io auto|uring|threads] [--io-direct auto|on|off]\n"
                        "sizes may end in K, M or G\n");
        return 1;
    }
    if (run(&o, &r, &err) < 0) {
        fprintf(stderr, "disk: %s\n", err.text);
        return 4;
    }
    printf("{\"reader\": \"%s\", \"engine\": \"%s\", \"direct\": %s, \"fixed_buffers\": %s, "
           "\"bytes\": %llu, \"seconds\": %.6f, \"gb_per_s\": %.4f, \"cpu_seconds\": %.4f, "
           "\"depth\": %.2f, \"buffer_bytes\": %llu, \"huge_bytes\": %llu, "
           "\"check\": \"%016llx\"}\n",
           o.reader, r.engine, r.direct ? "true" : "false", r.fixed_buffers ? "true" : "false",
           (unsigned long long)r.bytes, r.seconds, 1e-9 * (double)r.bytes / r.seconds,
           r.cpu_seconds, r.depth, (unsigned long long)r.buffer_bytes,
           (unsigned long long)r.huge_bytes, (unsigned long long)r.check);
    return 0;
}
