/* SPDX-License-Identifier: Apache-2.0
 * offload/disks.h - the files of a run that moves bytes to and from disk: the data files of the
 * store that weights stream from, and the scratch of KV cache and hidden states.  Owns files, io
 * engine and the account of both sets; the executor gets a lane over them. */
#ifndef AQ_OFFLOAD_DISKS_H
#define AQ_OFFLOAD_DISKS_H

#include "base/log.h"
#include "offload/disk.h"
#include "offload/disk_lane.h"

struct aq_disks;

/* The files that weights stream from, and the bytes striped over them; borrowed. */
struct aq_disks_data {
    const char *const *paths;
    uint32_t count;
    uint64_t bytes;
};

struct aq_disks_opts {
    struct aq_disks_data data; /* no files: no weights stream */
    uint64_t scratch_bytes;    /* 0: no scratch */
    const char *const *dirs;   /* of the scratch */
    uint32_t dir_count;
    bool any; /* tmpfs and network file systems are allowed */
    enum aq_io_kind io;
    enum aq_direct io_direct;
    const struct aq_log *log;
    /* Tests: a replacement of aq_io_open, virtual time, and the deadline of a request. */
    int (*open_io)(void *user, struct aq_io **ret, const struct aq_io_opts *opts,
                   struct aq_err *reterr);
    void *open_io_user;
    struct aq_timeline *timeline;
    uint64_t deadline_ns; /* of one request; 0: the default */
};

enum { AQ_DISKS_STORE_SET, AQ_DISKS_SCRATCH_SET };

/* Opens the files and allocates the scratch in full. */
int aq_disks_open(struct aq_disks **ret, const struct aq_disks_opts *opts, struct aq_err *reterr);
/* After the lane.  NULL is fine. */
void aq_disks_close(struct aq_disks *d);

/* Opens the io engine and the lane: struct aq_executor_opts.open_disk, disk_user is the aq_disks.
 * regions: memory that transfers use, registered with the kernel where it permits.  check: NULL, or
 * the check of groups that have `check` set. */
int aq_disks_start(void *user, struct aq_disk_lane **ret, const struct aq_io_region *regions,
                   uint32_t region_count, const struct aq_disk_check *check,
                   struct aq_completions *done, struct aq_err *reterr);
/* Closes the io engine, after the lane and before the buffers are freed: until then a request
 * without an answer may still write to a buffer. */
void aq_disks_stop(void *user);
const char *aq_disks_engine(const struct aq_disks *d); /* "uring", "threads"; after start */
bool aq_disks_direct(const struct aq_disks *d);
/* Bytes on disk of the store's data files, or of the scratch. */
uint64_t aq_disks_allocated(const struct aq_disks *d, int set);

#endif
