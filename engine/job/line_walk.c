/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/line_walk.h"

#include "base/file.h"
#include "engine/job/sums.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

uint64_t aq_find_ascending(const uint32_t *first, size_t stride, uint64_t count, uint64_t value)
{
    uint64_t low = 0, high = count;
    uint32_t found = 0;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        memcpy(&found, (const char *)first + middle * stride, sizeof(found));
        if (found == value)
            return middle;
        if (found < value)
            low = middle + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

/* -ENOMEM: nobody knows what this line is. */
static int read_line(const struct aq_line_walk *walk, struct aq_job_line *f, struct aq_err *ret_why)
{
    struct aq_result_mark mark;
    size_t bytes = f->count - (f->count && f->bytes[f->count - 1] == '\n');
    f->row = SIZE_MAX;
    int rc = aq_result_read(&mark, f->bytes, bytes, ret_why);
    f->unread = rc < 0;
    if (f->unread)
        return rc == -ENOMEM ? rc : 0;
    f->row = walk->find(walk->user, &mark);
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

static int walk_file(const struct aq_line_walk *walk, struct aq_line_reader *reader,
                     struct aq_job_walk *w, struct aq_err *reterr)
{
    const char *path = walk->path;
    for (uint64_t number = 1;; number++) {
        struct aq_job_line f = {.offset = w->good_end, .number = number};
        struct aq_err why;
        int rc = aq_line_read(reader, &f.bytes, &f.count);
        if (rc < 0)
            return aq_error(reterr, rc, "read '%s': %s", path, strerror(-rc));
        if (rc == 0)
            return 0;
        rc = read_line(walk, &f, &why);
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
        rc = walk->line(walk->user, &f, reterr);
        if (rc == 0 && walk->interrupted(walk->user))
            rc = aq_error(reterr, -EINTR, "interrupted while reading '%s'", path);
        if (rc < 0)
            return rc;
    }
}

int aq_line_walk(const struct aq_line_walk *walk, struct aq_job_walk *ret, struct aq_err *reterr)
{
    *ret = (struct aq_job_walk){0};
    int64_t size = aq_file_size(walk->path);
    int fd = aq_file_open(walk->path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0 || size < 0) {
        int code = fd < 0 ? -fd : EIO;
        if (fd >= 0)
            close(fd);
        return aq_error(reterr, -EIO, "open '%s': %s", walk->path, strerror(code));
    }
    ret->end = (uint64_t)size;
    struct aq_line_reader reader = {.fd = fd};
    int rc = walk_file(walk, &reader, ret, reterr);
    aq_line_reader_close(&reader);
    close(fd);
    return rc;
}
