/* SPDX-License-Identifier: Apache-2.0
 * engine/job/lines.h - the lines of a result file and a job's records that they belong to, for what
 * resumes and what orders.  Only engine/job includes it. */
#ifndef AQ_ENGINE_JOB_LINES_H
#define AQ_ENGINE_JOB_LINES_H

#include "engine/job/job.h"

/* Sees every whole line in order; an error ends the walk. */
typedef int aq_job_line_fn(struct aq_job *j, const struct aq_job_line *l, void *user,
                           struct aq_err *reterr);

/* Walks over a result file as aq_line_walk does; rows are the job's. */
int aq_job_lines(struct aq_job *j, const char *path, struct aq_sums *sums, aq_job_line_fn *fn,
                 void *user, struct aq_job_walk *ret, struct aq_err *reterr);

#endif
