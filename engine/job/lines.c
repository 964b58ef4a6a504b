/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/lines.h"

struct walk {
    struct aq_job *job;
    struct aq_record_list records;
    aq_job_line_fn *fn;
    void *user;
};

static uint64_t row_of(const void *user, const struct aq_result_mark *m)
{
    return aq_record_list_find(&((const struct walk *)user)->records, m);
}

static int see_line(void *user, const struct aq_job_line *l, struct aq_err *reterr)
{
    const struct walk *w = user;
    return w->fn(w->job, l, w->user, reterr);
}

static bool interrupted(const void *user)
{
    return aq_job_interrupted(((const struct walk *)user)->job);
}

int aq_job_lines(struct aq_job *j, const char *path, struct aq_sums *sums, aq_job_line_fn *fn,
                 void *user, struct aq_job_walk *ret, struct aq_err *reterr)
{
    struct walk walk = {j, aq_job_records(j), fn, user};
    return aq_line_walk(&(struct aq_line_walk){.path = path,
                                               .compression = aq_job_compression(path),
                                               .sums = sums,
                                               .find = row_of,
                                               .line = see_line,
                                               .interrupted = interrupted,
                                               .user = &walk},
                        ret, reterr);
}
