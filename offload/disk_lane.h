/* SPDX-License-Identifier: Apache-2.0
 * offload/disk_lane.h - a disk kept busy by a thread of its own: transfers come in groups, and each
 * group ends in one completion.  Owns the thread; borrows engine, transfers and completions.  Knows
 * neither the meaning of the bytes nor the receiver of the completions.
 *
 * A group may have a check between its last transfer and its completion.  Checks run in a thread of
 * their own, one after the other, so that the disk is kept busy meanwhile.
 *
 * In virtual time there is no thread: the lane is a source of events on the timeline, and
 * aq_completions_wait makes them happen. */
#ifndef AQ_OFFLOAD_DISK_LANE_H
#define AQ_OFFLOAD_DISK_LANE_H

#include "offload/completions.h"
#include "offload/timeline.h"
#include "offload/xfer.h"

struct aq_disk_lane;
struct aq_disk_group;

struct aq_disk_transfer {
    struct aq_transfer t; /* the caller's fields as xfer.h says */
    struct aq_disk_group *group;
};

/* Transfers that finish together.  The group is the caller's again when its token has come. */
struct aq_disk_group {
    struct aq_disk_transfer *transfer;
    uint32_t count; /* 0: finishes at once */
    uint64_t token;
    bool check; /* run the lane's check once all transfers have succeeded */
    /* disk_lane.c's */
    uint32_t left;
    int status;
    struct aq_disk_group *next;
};

/* A check of a group's bytes: returns 0, or -errno and a sentence, which becomes the group's
 * result. */
struct aq_disk_check {
    int (*fn)(void *user, const struct aq_disk_group *g, struct aq_err *reterr);
    void *user;
};

struct aq_disk_lane_opts {
    struct aq_io *io; /* used by the disk's thread alone from now on; closed by the caller later */
    struct aq_xfer_opts xfer; /* io and sets filled in */
    struct aq_completions *done;
    struct aq_disk_check check;   /* fn NULL: no group has `check` set */
    struct aq_timeline *timeline; /* NULL: real time; else the engine's and the completions' too */
};

int aq_disk_lane_open(struct aq_disk_lane **ret, const struct aq_disk_lane_opts *opts,
                      struct aq_err *reterr);
/* Ends the threads; waits for transfers in flight, at most until their deadlines.  In virtual time
 * there must be none (asserted).  NULL is fine. */
void aq_disk_lane_close(struct aq_disk_lane *d);

/* Groups start in the order of submission and are in flight together.  Never blocks for long. */
void aq_disk_lane_submit(struct aq_disk_lane *d, struct aq_disk_group *g);

/* The sentence of the first failure so far; returns its status, 0 if no group has failed. */
int aq_disk_lane_error(struct aq_disk_lane *d, struct aq_err *reterr);
struct aq_xfer_stats aq_disk_lane_stats(struct aq_disk_lane *d);

#endif
