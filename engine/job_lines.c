/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job_lines.h"

#include "engine/files.h"

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

/* A line at the very end that cannot be read is torn; one in the middle is somebody else's. */
static int read_line(struct aq_job *j, const char *path, uint64_t number, bool last,
                     struct aq_job_line *f, bool *ret_torn, struct aq_err *reterr)
{
    struct aq_result_mark mark;
    struct aq_err err;
    size_t bytes = f->count - (f->count && f->bytes[f->count - 1] == '\n');
    *ret_torn = false;
    int rc = aq_result_read(&mark, f->bytes, bytes, &err);
    if (rc == -ENOMEM) /* nobody knows what this line is */
        return aq_error_memory(reterr, "'%s' line %" PRIu64, path, number);
    if (rc < 0) {
        const char *why = err.text; /* the parser was given one line, and calls it the first */
        why += strncmp(why, "line 1 ", 7) ? 0 : 7;
        *ret_torn = last;
        return last ? 0
                    : aq_error(reterr, -EINVAL,
                               "'%s' line %" PRIu64 " is no result: %s; --overwrite renames the "
                               "file out of the way",
                               path, number, why);
    }
    f->row = row_of(j, &mark);
    f->error = mark.error;
    aq_result_mark_close(&mark);
    return 0;
}

static int walk_stream(struct aq_job *j, const char *path, FILE *file, aq_job_line_fn *fn,
                       void *user, struct aq_job_walk *w, struct aq_err *reterr)
{
    char *line = NULL;
    size_t capacity = 0;
    int rc = 0;
    for (uint64_t number = 1; rc == 0; number++) {
        ssize_t n = getline(&line, &capacity, file);
        if (n < 0 && !feof(file) && !ferror(file)) /* what follows must not be taken for torn */
            rc = aq_error_memory(reterr, "'%s' line %" PRIu64, path, number);
        if (n < 0)
            break;
        struct aq_job_line f = {.bytes = line, .count = (size_t)n, .offset = w->good_end};
        bool torn, newline = line[n - 1] == '\n';
        bool last = w->good_end + (uint64_t)n >= w->end;
        rc = read_line(j, path, number, last, &f, &torn, reterr);
        if (rc == 0 && torn)
            break;
        w->good_end += (uint64_t)n;
        w->newline_missing = !newline;
        if (rc == 0)
            rc = fn(j, &f, user, reterr);
        if (rc == 0 && aq_job_interrupted(j))
            rc = aq_error(reterr, -EINTR, "interrupted while reading '%s'", path);
    }
    if (rc == 0 && ferror(file))
        rc = aq_error(reterr, -EIO, "read '%s': %s", path, strerror(errno));
    free(line);
    return rc;
}

int aq_job_lines(struct aq_job *j, const char *path, aq_job_line_fn *fn, void *user,
                 struct aq_job_walk *w, struct aq_err *reterr)
{
    *w = (struct aq_job_walk){0};
    int64_t size = aq_file_size(path);
    FILE *file = fopen(path, "re");
    if (!file || size < 0) {
        if (file)
            fclose(file);
        return aq_error(reterr, -EIO, "open '%s': %s", path, strerror(errno));
    }
    w->end = (uint64_t)size;
    int rc = walk_stream(j, path, file, fn, user, w, reterr);
    fclose(file);
    return rc;
}

int aq_job_publish(FILE *file, const char *from, const char *to, int rc, struct aq_err *reterr)
{
    if (rc == 0 && (fflush(file) != 0 || fsync(fileno(file)) < 0))
        rc = aq_error(reterr, -errno, "write '%s': %s", from, strerror(errno));
    if (fclose(file) != 0 && rc == 0)
        rc = aq_error(reterr, -errno, "write '%s': %s", from, strerror(errno));
    if (rc == 0 && rename(from, to) < 0)
        rc = aq_error(reterr, -errno, "rename '%s' to '%s': %s", from, to, strerror(errno));
    if (rc < 0)
        unlink(from);
    else
        aq_file_sync_folder(to);
    return rc;
}
