/* SPDX-License-Identifier: Apache-2.0
 * engine/job/lines.h - the lines of a result file and the records they belong to, for what resumes
 * and what orders.  Only engine/job includes it. */
#ifndef AQ_ENGINE_JOB_LINES_H
#define AQ_ENGINE_JOB_LINES_H

#include "engine/job/job.h"

/* A line of a result file; row SIZE_MAX where it belongs to no record of this input. */
struct aq_job_line {
    const char *bytes; /* newline included where it has one */
    size_t count;
    uint64_t offset, row, number; /* number: from 1; offset: in the text */
    uint64_t sum;
    bool known;  /* a result, and its sum is one of those that were given */
    bool unread; /* cannot be read as a result */
    bool error;
    /* Not a line, but bytes [offset, offset + packed) of a compressed file that are of no whole
     * member; `bytes` is what can be read of them.  Such a one is unread. */
    uint64_t packed;
};

/* Sees every whole line in order; an error ends the walk. */
typedef int aq_job_line_fn(struct aq_job *j, const struct aq_job_line *l, void *user,
                           struct aq_err *reterr);

/* Walks over a result file, which is unpacked where it is compressed; sums of its lines then count
 * as seen.  A last line that cannot be read and lacks its newline is torn and left out, as are
 * bytes behind the last whole member.  Others are damaged or somebody else's, which sums can tell:
 * ret->unread keeps an error for the first. */
int aq_job_lines(struct aq_job *j, const char *path, struct aq_sums *sums, aq_job_line_fn *fn,
                 void *user, struct aq_job_walk *ret, struct aq_err *reterr);

#endif
