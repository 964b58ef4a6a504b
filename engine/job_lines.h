/* SPDX-License-Identifier: Apache-2.0
 * engine/job_lines.h - the lines of a result file and the records they belong to, for what resumes
 * and what orders.  Only engine/job_*.c include it. */
#ifndef AQ_ENGINE_JOB_LINES_H
#define AQ_ENGINE_JOB_LINES_H

#include "engine/job.h"

/* A line of a result file; row SIZE_MAX where it belongs to no record of this input. */
struct aq_job_line {
    const char *bytes; /* newline included where it has one */
    size_t count;
    uint64_t offset, row;
    bool error;
};

/* Sees every whole line in order; an error ends the walk. */
typedef int aq_job_line_fn(struct aq_job *j, const struct aq_job_line *l, void *user,
                           struct aq_err *reterr);

/* Walks over a result file.  A last line that cannot be read is torn and left out; one before it is
 * somebody else's: -EINVAL. */
int aq_job_lines(struct aq_job *j, const char *path, aq_job_line_fn *fn, void *user,
                 struct aq_job_walk *ret, struct aq_err *reterr);

#endif
