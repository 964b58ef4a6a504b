/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/lines.h"

#include <xxhash.h>

struct walk {
    struct aq_job *job;
    aq_job_line_fn *fn;
    void *user;
};

static uint64_t row_of(const void *user, const struct aq_result_mark *m)
{
    const struct aq_job *j = ((const struct walk *)user)->job;
    uint64_t row = SIZE_MAX;
    if (m->has_id)
        row = aq_job_find_id(j, XXH3_64bits(m->id, m->id_bytes));
    else if (m->has_index)
        row = aq_job_find_index(j, m->index);
    else if (m->has_line)
        row = j->row_count
                  ? aq_find_ascending(&j->rows->line, sizeof(*j->rows), j->row_count, m->line)
                  : SIZE_MAX;
    return row != SIZE_MAX && j->rows[row].key == m->key ? row : SIZE_MAX;
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
    struct walk walk = {j, fn, user};
    return aq_line_walk(&(struct aq_line_walk){.path = path,
                                               .compression = aq_job_compression(path),
                                               .sums = sums,
                                               .find = row_of,
                                               .line = see_line,
                                               .interrupted = interrupted,
                                               .user = &walk},
                        ret, reterr);
}
