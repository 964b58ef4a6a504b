/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/line_walk.h"

#include "base/file.h"
#include "engine/job/sums.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

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
    if (w->unread.code)
        return;
    if (f->packed)
        aq_error(&w->unread, -EINVAL,
                 "'%s' is damaged: its bytes %" PRIu64 " to %" PRIu64
                 " cannot be unpacked; --overwrite renames the file out of the way",
                 path, f->offset, f->offset + f->packed - 1);
    else
        aq_error(&w->unread, -EINVAL,
                 "'%s' line %" PRIu64 " is no result: %s; take it out, or --overwrite renames the "
                 "file out of the way",
                 path, f->number, why);
}

struct walk {
    const struct aq_line_walk *of;
    int fd;
    struct aq_members *members; /* NULL: the file is not compressed */
    struct aq_line_reader reader;
    struct aq_job_walk *walk;
    uint64_t number, text_end;
    int rc; /* of what was done about damage while a line was read */
    struct aq_err err;
};

/* Bytes that cannot be unpacked are given out like a line that cannot be read; those at the end
 * were torn, and are left out as that line would be. */
static void see_damage(void *user, uint64_t begin, uint64_t end, bool last)
{
    struct walk *walk = user;
    if (last || walk->rc < 0)
        return;
    struct aq_job_line f = {.bytes = "",
                            .offset = begin,
                            .packed = end - begin,
                            .number = walk->number + 1,
                            .row = SIZE_MAX,
                            .unread = true};
    note_unread(walk->walk, walk->of->path, &f, &(struct aq_err){0});
    walk->rc = walk->of->line(walk->of->user, &f, &walk->err);
}

/* The next line; 0: there is none. */
static int take_line(struct walk *walk, struct aq_job_line *f, struct aq_err *reterr)
{
    *f = (struct aq_job_line){.offset = walk->text_end, .number = walk->number + 1};
    int rc = aq_line_read(&walk->reader, &f->bytes, &f->count);
    if (walk->rc < 0) {
        if (reterr)
            *reterr = walk->err;
        return walk->rc;
    }
    return rc < 0 ? aq_error(reterr, rc, "read '%s': %s", walk->of->path, strerror(-rc)) : rc;
}

static int walk_file(struct walk *walk, struct aq_err *reterr)
{
    struct aq_job_walk *w = walk->walk;
    for (;;) {
        struct aq_job_line f;
        struct aq_err why;
        int rc = take_line(walk, &f, reterr);
        if (rc <= 0)
            return rc;
        rc = read_line(walk->of, &f, &why);
        if (rc < 0)
            return aq_error_memory(reterr, "'%s' line %" PRIu64, walk->of->path, f.number);
        bool ended = f.bytes[f.count - 1] == '\n';
        if (f.unread && !ended && !walk->members) /* lines are written whole, it at their end */
            return 0;
        if (f.unread)
            note_unread(w, walk->of->path, &f, &why);
        f.sum = aq_sums_of(f.bytes, f.count);
        f.known = !f.unread && aq_sums_see(walk->of->sums, f.sum);
        walk->number++;
        walk->text_end += f.count;
        w->newline_missing = !ended;
        rc = walk->of->line(walk->of->user, &f, reterr);
        if (rc == 0 && walk->of->interrupted(walk->of->user))
            rc = aq_error(reterr, -EINTR, "interrupted while reading '%s'", walk->of->path);
        if (rc < 0)
            return rc;
    }
}

/* A file whose content is not what its name says was put there by somebody else. */
static int check_content(const struct walk *walk, struct aq_err *reterr)
{
    char head[4];
    ssize_t n = TEMP_FAILURE_RETRY(pread(walk->fd, head, sizeof(head), 0));
    enum aq_compression found = aq_compression_of_bytes(head, n > 0 ? (size_t)n : 0);
    if (walk->of->compression == AQ_PLAIN && found != AQ_PLAIN)
        return aq_error(reterr, -EINVAL,
                        "'%s' is %s-compressed, and its name does not say so: unpack it, or rename "
                        "it and what lies beside it",
                        walk->of->path, aq_compression_name(found));
    if (walk->of->compression != AQ_PLAIN && n > 0 && head[0] == '{')
        return aq_error(reterr, -EINVAL,
                        "'%s' is not %s-compressed, as its name says: compress it, or rename it "
                        "and what lies beside it",
                        walk->of->path, aq_compression_name(walk->of->compression));
    return 0;
}

static int walk_open_file(struct walk *walk, struct aq_err *reterr)
{
    int rc = check_content(walk, reterr);
    if (rc == 0 && walk->of->compression != AQ_PLAIN) {
        rc = aq_members_open(&walk->members, walk->fd, walk->of->compression, see_damage, walk,
                             reterr);
        walk->reader.read = aq_members_read;
        walk->reader.source = walk->members;
    }
    if (rc == 0)
        rc = walk_file(walk, reterr);
    walk->walk->good_end = walk->members ? aq_members_end(walk->members) : walk->text_end;
    aq_members_close(walk->members);
    aq_line_reader_close(&walk->reader);
    return rc;
}

int aq_line_walk(const struct aq_line_walk *of, struct aq_job_walk *ret, struct aq_err *reterr)
{
    *ret = (struct aq_job_walk){0};
    int64_t size = aq_file_size(of->path);
    int fd = aq_file_open(of->path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0 || size < 0) {
        int code = fd < 0 ? -fd : EIO;
        if (fd >= 0)
            close(fd);
        return aq_error(reterr, -EIO, "open '%s': %s", of->path, strerror(code));
    }
    ret->end = (uint64_t)size;
    struct walk walk = {.of = of, .fd = fd, .reader = {.fd = fd}, .walk = ret};
    int rc = walk_open_file(&walk, reterr);
    close(fd);
    return rc;
}
