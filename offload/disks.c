/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/disks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 32 };

struct aq_disks {
    struct aq_disks_opts opts;
    struct aq_disk *store, *scratch;
    struct aq_io_file *file;
    struct aq_xfer_set set[2];
    struct aq_io *io;
};

static uint32_t files_of(const struct aq_disk *d)
{
    return d ? aq_disk_file_count(d) : 0;
}

static int open_store(struct aq_disks *d, struct aq_err *reterr)
{
    struct aq_disk_data_opts opts = {d->opts.data.paths, d->opts.data.count, d->opts.io_direct,
                                     d->opts.log};
    return aq_disk_open_data(&d->store, &opts, reterr);
}

static int open_scratch(struct aq_disks *d, struct aq_err *reterr)
{
    struct aq_disk_scratch_opts opts = {
        .what = "KV cache and hidden states",
        .dirs = d->opts.dirs,
        .dir_count = d->opts.dir_count,
        .bytes = d->opts.scratch_bytes,
        .direct = d->opts.io_direct,
        .allow_memory = d->opts.any,
        .log = d->opts.log,
    };
    return aq_disk_open_scratch(&d->scratch, &opts, reterr);
}

/* One set of files for the engine: the store's, then the scratch's. */
static int join_files(struct aq_disks *d, struct aq_err *reterr)
{
    uint32_t store = files_of(d->store), scratch = files_of(d->scratch);
    d->file = calloc(store + scratch, sizeof(*d->file));
    if (!d->file)
        return aq_error_memory(reterr, "%u files", store + scratch);
    if (store)
        memcpy(d->file, aq_disk_files(d->store), store * sizeof(*d->file));
    if (scratch)
        memcpy(d->file + store, aq_disk_files(d->scratch), scratch * sizeof(*d->file));
    d->set[AQ_DISKS_STORE_SET] = (struct aq_xfer_set){
        .first_file = 0,
        .file_count = store,
        .bytes = store ? d->opts.data.bytes : 0,
    };
    d->set[AQ_DISKS_SCRATCH_SET] = (struct aq_xfer_set){
        .first_file = store,
        .file_count = scratch,
        .bytes = d->opts.scratch_bytes,
    };
    return 0;
}

int aq_disks_open(struct aq_disks **ret, const struct aq_disks_opts *opts, struct aq_err *reterr)
{
    assert(opts->data.count || opts->scratch_bytes);
    struct aq_disks *d = calloc(1, sizeof(*d));
    if (!d)
        return aq_error_memory(reterr, "disks");
    d->opts = *opts;
    int rc = opts->data.count ? open_store(d, reterr) : 0;
    if (rc == 0 && opts->scratch_bytes)
        rc = open_scratch(d, reterr);
    if (rc == 0)
        rc = join_files(d, reterr);
    if (rc < 0) {
        aq_disks_close(d);
        return rc;
    }
    *ret = d;
    return 0;
}

void aq_disks_close(struct aq_disks *d)
{
    if (!d)
        return;
    aq_io_close(d->io);
    aq_disk_close(d->store);
    aq_disk_close(d->scratch);
    free(d->file);
    free(d);
}

int aq_disks_start(void *user, struct aq_disk_lane **ret, const struct aq_io_region *regions,
                   uint32_t region_count, const struct aq_disk_check *check,
                   struct aq_completions *done, struct aq_err *reterr)
{
    struct aq_disks *d = user;
    struct aq_io_opts io = {
        .kind = d->opts.io,
        .files = d->file,
        .file_count = files_of(d->store) + files_of(d->scratch),
        .regions = regions,
        .region_count = region_count,
        .depth = DEPTH,
        .log = d->opts.log,
    };
    int rc = d->opts.open_io ? d->opts.open_io(d->opts.open_io_user, &d->io, &io, reterr)
                             : aq_io_open(&d->io, &io, reterr);
    if (rc < 0)
        return rc;
    struct aq_disk_lane_opts lane = {
        .io = d->io, .xfer = aq_xfer_defaults(), .done = done, .timeline = d->opts.timeline};
    /* A set without files is not there: its neighbour takes its place in front. */
    lane.xfer.io = d->io;
    lane.xfer.sets = d->set;
    lane.xfer.set_count = 2;
    if (d->opts.deadline_ns)
        lane.xfer.deadline_ns = d->opts.deadline_ns;
    if (check)
        lane.check = *check;
    return aq_disk_lane_open(ret, &lane, reterr);
}

void aq_disks_stop(void *user)
{
    struct aq_disks *d = user;
    aq_io_close(d->io);
    d->io = NULL;
}

const char *aq_disks_engine(const struct aq_disks *d)
{
    return d->io ? aq_io_caps(d->io)->name : "none";
}

bool aq_disks_direct(const struct aq_disks *d)
{
    return (!d->store || aq_disk_is_direct(d->store)) &&
           (!d->scratch || aq_disk_is_direct(d->scratch));
}

uint64_t aq_disks_allocated(const struct aq_disks *d, int set)
{
    const struct aq_disk *of = set == AQ_DISKS_STORE_SET ? d->store : d->scratch;
    return of ? aq_disk_allocated(of) : 0;
}
