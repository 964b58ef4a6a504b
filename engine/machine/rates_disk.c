/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/machine/rates.h"
#include "engine/machine/rates_parts.h"

#include "base/clock.h"

#include <assert.h>
#include <math.h>

enum {
    GROUP_BYTES = 64 << 20,
    PIECE = 1 << 20,
    BUFFER = 16 << 20,
    PIECES = GROUP_BYTES / PIECE,
    GROUPS_MAX = 64,
};
/* Reading, writing and both together are each left off after so long. */
static const double long_s = 1.5;

/* Files, a lane over them and a buffer that all transfers share. */
struct disk_rig {
    struct aq_mem *mem;
    void *buffer;
    struct aq_disks *disks;
    struct aq_completions *done;
    struct aq_disk_lane *lane;
    struct aq_disk_transfer transfer[PIECES];
};

static void close_rig(struct disk_rig *r)
{
    aq_disk_lane_close(r->lane);
    aq_completions_close(r->done);
    aq_disks_close(r->disks); /* before the buffer: what had no answer may still write to it */
    if (r->mem)
        aq_mem_free(r->mem, AQ_HOST, "rates", r->buffer, BUFFER);
    aq_mem_close(r->mem);
}

static int open_rig(struct disk_rig *r, const struct aq_disks_opts *opts, struct aq_err *reterr)
{
    static const uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = AQ_RATES_DISK_MEMORY};
    struct aq_io_region region = {.bytes = BUFFER};
    int rc = aq_mem_open(&r->mem, limit, reterr);
    rc = rc < 0 ? rc : aq_mem_alloc(&r->buffer, r->mem, AQ_HOST, "rates", BUFFER, reterr);
    rc = rc < 0 ? rc : aq_disks_open(&r->disks, opts, reterr);
    rc = rc < 0 ? rc : aq_completions_open(&r->done, 4, NULL, reterr);
    region.base = r->buffer;
    return rc < 0 ? rc : aq_disks_start(r->disks, &r->lane, &region, 1, NULL, r->done, reterr);
}

/* The pieces of a group: `step` apart from `offset` on.  Every second one writes with AQ_MIXED. */
enum { AQ_MIXED = AQ_IO_OP_COUNT };

static void fill(struct disk_rig *r, int op, uint32_t set, uint64_t offset, uint64_t places,
                 uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        r->transfer[i].t = (struct aq_transfer){
            .op = op == AQ_MIXED ? (i % 2 ? AQ_IO_WRITE : AQ_IO_READ) : (enum aq_io_op)op,
            .set = set,
            .offset = offset + i * places / count * PIECE,
            .bytes = PIECE,
            .buffer = (uint8_t *)r->buffer + (uint64_t)i * PIECE % BUFFER,
        };
}

/* Seconds until the first `count` transfers are done; a negative errno. */
static double run(struct disk_rig *r, uint32_t count, struct aq_err *reterr)
{
    struct aq_disk_group group = {.transfer = r->transfer, .count = count};
    struct aq_completion c = {0};
    double start = aq_clock_s();
    int rc;
    aq_disk_lane_submit(r->lane, &group);
    do
        rc = aq_completions_wait(r->done, &c, 1, AQ_WAIT_FOREVER);
    while (rc == 0);
    double s = aq_clock_s() - start;
    rc = rc < 0 ? rc : c.result;
    if (rc < 0)
        aq_disk_lane_error(r->lane, reterr);
    return rc < 0 ? rc : s;
}

int aq_rates_disk(double *ret_bytes_per_s, const struct aq_disks_opts *opts, struct aq_err *reterr)
{
    struct aq_disks_opts only = {.data = opts->data, .io = opts->io, .io_direct = opts->io_direct};
    struct disk_rig r = {0};
    uint64_t bytes = opts->data.bytes;
    uint32_t count = (uint32_t)aq_min_u64(PIECES, bytes / PIECE);
    double s = 0;
    if (!count)
        return aq_error(reterr, -ERANGE, "rates: a store of %llu bytes is too small to be measured",
                        (unsigned long long)bytes);
    int rc = open_rig(&r, &only, reterr);
    if (rc == 0) {
        fill(&r, AQ_IO_READ, AQ_DISKS_STORE_SET, 0, bytes / PIECE, count); /* all over the store */
        s = run(&r, count, reterr);
        rc = s < 0 ? (int)s : 0;
    }
    close_rig(&r);
    if (rc == 0 && s > 0)
        *ret_bytes_per_s = (double)count * PIECE / s;
    return rc;
}

/* ---- scratch ----------------------------------------------------------------------------- */

/* Passes over the file's groups, as far as they are written, until time is up. */
static int sweep(struct disk_rig *r, int op, uint32_t groups, struct aq_sample *ret,
                 uint32_t *ret_groups, struct aq_err *reterr)
{
    double rate[GROUPS_MAX], begin = aq_clock_s();
    uint32_t count = 0;
    while (count < groups && (count < 2 || aq_clock_s() - begin < long_s)) {
        fill(r, op, AQ_DISKS_SCRATCH_SET, (uint64_t)count * GROUP_BYTES, PIECES, PIECES);
        double s = run(r, PIECES, reterr);
        if (s < 0)
            return (int)s;
        rate[count++] = s > 0 ? GROUP_BYTES / s : 0;
    }
    *ret = aq_sample_of(rate, count);
    *ret_groups = count;
    return 0;
}

static int measure(struct disk_rig *r, uint32_t groups, struct aq_rates_disk *ret,
                   struct aq_err *reterr)
{
    struct aq_sample mixed = {0};
    uint32_t written = 0, reread = 0, both = 0;
    double cpu_s = aq_rates_cpu_s();
    int rc = sweep(r, AQ_IO_WRITE, groups, &ret->write, &written, reterr);
    /* What was never written is not read from the disk either. */
    rc = rc < 0 ? rc : sweep(r, AQ_IO_READ, written, &ret->read, &reread, reterr);
    if (rc < 0)
        return rc;
    ret->core_s = (aq_rates_cpu_s() - cpu_s) / ((double)(written + reread) * GROUP_BYTES);
    rc = sweep(r, AQ_MIXED, written, &mixed, &both, reterr);
    if (rc == 0 && ret->read.median > 0 && ret->write.median > 0) {
        /* Half of the bytes each way; apart, they would take so long: */
        double apart = 0.5 / ret->read.median + 0.5 / ret->write.median;
        ret->together = fmin(2, fmax(1, mixed.median * apart));
    }
    ret->engine = aq_disks_engine(r->disks);
    ret->direct = aq_disks_direct(r->disks);
    return rc;
}

int aq_rates_scratch(struct aq_rates_disk *ret, const char *dir, uint64_t bytes, enum aq_io_kind io,
                     enum aq_direct io_direct, const struct aq_log *log, struct aq_err *reterr)
{
    uint32_t groups = (uint32_t)aq_min_u64(GROUPS_MAX, bytes / GROUP_BYTES);
    struct aq_disks_opts opts = {
        .scratch_bytes = (uint64_t)groups * GROUP_BYTES,
        .dirs = &dir,
        .dir_count = 1,
        .any = true,
        .io = io,
        .io_direct = io_direct,
        .log = log,
    };
    struct disk_rig r = {0};
    struct aq_rates_disk found = {.together = 1};
    assert(groups > 0);
    int rc = open_rig(&r, &opts, reterr);
    rc = rc < 0 ? rc : measure(&r, groups, &found, reterr);
    close_rig(&r);
    if (rc == 0)
        *ret = found;
    return rc;
}
