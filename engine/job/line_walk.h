/* SPDX-License-Identifier: Apache-2.0
 * engine/job/line_walk.h - the lines of a result file one by one, each with the record that it
 * belongs to and what its sum says: for runs that go on (lines.h) and for merging.  Changes
 * nothing; knows no job. */
#ifndef AQ_ENGINE_JOB_LINE_WALK_H
#define AQ_ENGINE_JOB_LINE_WALK_H

#include "base/compress.h"
#include "base/err.h"
#include "engine/records/result.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aq_sums;

/* A line of a result file; row SIZE_MAX where it belongs to no record that is looked for. */
struct aq_job_line {
    const char *bytes; /* newline included where it has one */
    size_t count;
    uint64_t offset, row, number; /* number: from 1; offset: in the text */
    uint64_t sum;
    bool known;  /* a result, and its sum is one of those that were given */
    bool unread; /* cannot be read as a result */
    bool error;
    /* Not a line, but bytes [offset, offset + packed) of a compressed file that are of no whole
     * member, and of which aq_members_salvage reads what can be read.  Such a one is unread. */
    uint64_t packed;
};

/* How far a result file can be believed.  Where it is compressed, these are places in the file, not
 * in its text. */
struct aq_job_walk {
    uint64_t good_end;    /* offset behind the last whole line, or member */
    uint64_t end;         /* size of the file */
    bool newline_missing; /* the last whole line lacks it */
    struct aq_err unread; /* of the first whole line that is no result; code 0: none */
};

struct aq_line_walk {
    const char *path;
    enum aq_compression compression; /* of the file, as its name says */
    struct aq_sums *sums;            /* those of its lines then count as seen */
    /* The row of a mark's record, SIZE_MAX: none. */
    uint64_t (*find)(const void *user, const struct aq_result_mark *m);
    /* Sees every whole line in order; an error ends the walk. */
    int (*line)(void *user, const struct aq_job_line *l, struct aq_err *reterr);
    bool (*interrupted)(const void *user);
    void *user;
};

/* The file is unpacked where it is compressed.  A last line that cannot be read and lacks its
 * newline is torn and left out, as are bytes behind the last whole member.  Others are damaged or
 * somebody else's, which sums can tell: ret->unread keeps an error for the first. */
int aq_line_walk(const struct aq_line_walk *walk, struct aq_job_walk *ret, struct aq_err *reterr);

#endif
