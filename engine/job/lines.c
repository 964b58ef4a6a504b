/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/lines.h"

#include "base/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static uint64_t row_of_line(const struct aq_job *j, uint64_t line)
{
    uint64_t low = 0, high = j->row_count; /* rows are in the order of their lines */
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (j->rows[middle].line < line)
            low = middle + 1;
        else
            high = middle;
    }
    return low < j->row_count && j->rows[low].line == line ? low : SIZE_MAX;
}

static uint64_t row_of(const struct aq_job *j, const struct aq_result_mark *m)
{
    uint64_t row = SIZE_MAX;
    if (m->has_id)
        row = aq_job_find_id(j, XXH3_64bits(m->id, m->id_bytes));
    else if (m->has_index && m->index < j->row_count)
        row = m->index;
    else if (m->has_line)
        row = row_of_line(j, m->line);
    return row != SIZE_MAX && j->rows[row].key == m->key ? row : SIZE_MAX;
}

/* -ENOMEM: nobody knows what this line is. */
static int read_line(struct aq_job *j, struct aq_job_line *f, struct aq_err *ret_why)
{
    struct aq_result_mark mark;
    size_t bytes = f->count - (f->count && f->bytes[f->count - 1] == '\n');
    f->row = SIZE_MAX;
    int rc = aq_result_read(&mark, f->bytes, bytes, ret_why);
    f->unread = rc < 0;
    if (f->unread)
        return rc == -ENOMEM ? rc : 0;
    f->row = row_of(j, &mark);
    f->error = mark.error;
    aq_result_mark_close(&mark);
    return 0;
}

static void note_unread(struct aq_job_walk *w, const char *path, const struct aq_job_line *f,
                        const struct aq_err *err)
{
    const char *why = err->text; /* the parser was given one line, and calls it the first */
    why += strncmp(why, "line 1 ", 7) ? 0 : 7;
    if (!w->unread.code)
        aq_error(&w->unread, -EINVAL,
                 "'%s' line %" PRIu64 " is no result: %s; take it out, or --overwrite renames the "
                 "file out of the way",
                 path, f->number, why);
}

struct walk {
    struct aq_line_reader reader;
    struct aq_sums *sums;
    aq_job_line_fn *fn;
    void *user;
};

static int walk_file(struct aq_job *j, const char *path, struct walk *walk, struct aq_job_walk *w,
                     struct aq_err *reterr)
{
    for (uint64_t number = 1;; number++) {
        struct aq_job_line f = {.offset = w->good_end, .number = number};
        struct aq_err why;
        int rc = aq_line_read(&walk->reader, &f.bytes, &f.count);
        if (rc < 0)
            return aq_error(reterr, rc, "read '%s': %s", path, strerror(-rc));
        if (rc == 0)
            return 0;
        rc = read_line(j, &f, &why);
        if (rc < 0)
            return aq_error_memory(reterr, "'%s' line %" PRIu64, path, number);
        if (f.unread && f.bytes[f.count - 1] != '\n') /* lines are written whole, it at their end */
            return 0;
        if (f.unread)
            note_unread(w, path, &f, &why);
        f.sum = aq_sums_of(f.bytes, f.count);
        f.known = !f.unread && aq_sums_see(walk->sums, f.sum);
        w->good_end += f.count;
        w->newline_missing = f.bytes[f.count - 1] != '\n';
        rc = walk->fn(j, &f, walk->user, reterr);
        if (rc == 0 && aq_job_interrupted(j))
            rc = aq_error(reterr, -EINTR, "interrupted while reading '%s'", path);
        if (rc < 0)
            return rc;
    }
}

int aq_job_lines(struct aq_job *j, const char *path, struct aq_sums *sums, aq_job_line_fn *fn,
                 void *user, struct aq_job_walk *w, struct aq_err *reterr)
{
    *w = (struct aq_job_walk){0};
    int64_t size = aq_file_size(path);
    int fd = aq_file_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0 || size < 0) {
        int code = fd < 0 ? -fd : EIO;
        if (fd >= 0)
            close(fd);
        return aq_error(reterr, -EIO, "open '%s': %s", path, strerror(code));
    }
    w->end = (uint64_t)size;
    struct walk walk = {.reader = {.fd = fd}, .sums = sums, .fn = fn, .user = user};
    int rc = walk_file(j, path, &walk, w, reterr);
    aq_line_reader_close(&walk.reader);
    close(fd);
    return rc;
}
