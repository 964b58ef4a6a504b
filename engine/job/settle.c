/* SPDX-License-Identifier: Apache-2.0
 * Once the run can go ahead, what earlier runs left is made ready for it: a torn end is repaired,
 * lines that are not as they were written and error records to be tried again are taken out, lines
 * move to where new ones will be appended, and FILE.sums has the sums of what is left. */
#include "engine/job/lines.h"

#include "base/file.h"
#include "engine/job/aside.h"
#include "engine/job/rewritten.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_BYTES = 64 << 10 };

/* ---- FILE.damaged, FILE.stale ---- */

/* A file that lines taken out of the results are appended to. */
struct aside {
    const char *path;
    const char *like; /* the file whose permissions it gets */
    int fd;           /* -1: not needed so far */
    uint64_t begin;   /* its size before this run */
};

static int put_aside(const struct aq_job *j, struct aside *d, const char *bytes, size_t count,
                     struct aq_err *reterr)
{
    if (d->fd < 0) {
        int64_t size = aq_file_size(d->path);
        d->begin = size < 0 ? 0 : (uint64_t)size;
        d->fd = aq_file_open_like(d->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, d->like);
    }
    int rc = d->fd < 0 ? d->fd : aq_file_write(d->fd, bytes, count);
    return rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "write '%s': %s", d->path, strerror(-rc))
                  : 0;
}

/* The file is synced before its lines are taken out of the results. */
static int sync_aside(const struct aside *d, int rc, struct aq_err *reterr)
{
    if (d->fd < 0 || rc < 0)
        return rc;
    rc = aq_file_sync(d->fd);
    return rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "sync '%s': %s", d->path, strerror(-rc))
                  : aq_file_sync_folder(d->path, reterr);
}

/* rc < 0: the lines are in the results still, and the file becomes as it was before, so that the
 * step can be begun again. */
static void close_aside(const struct aside *d, int rc)
{
    if (d->fd < 0)
        return;
    if (rc < 0)
        (void)aq_file_truncate(d->fd, d->begin);
    if (rc < 0 && !d->begin)
        unlink(d->path);
    aq_file_close(d->fd);
}

static int copy_torn(const struct aq_job *j, int from, const struct aq_job_old_file *file,
                     struct aside *d, struct aq_err *reterr)
{
    const struct aq_job_walk *w = &file->walk;
    const char *path = file->path;
    char bytes[COPY_BYTES];
    int rc = 0;
    for (uint64_t at = w->good_end, count; rc == 0 && at < w->end; at += count) {
        count = aq_min_u64(w->end - at, sizeof(bytes));
        rc = aq_file_read_at(from, bytes, count, at);
        rc = rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "read '%s': %s", path, strerror(-rc))
                    : put_aside(j, d, bytes, count, reterr);
    }
    return rc < 0 ? rc : put_aside(j, d, "\n", 1, reterr);
}

/* What can be read of a damaged or torn member, with a newline at its end. */
struct salvaging {
    const struct aq_job *job;
    struct aside *aside;
    char last;
    struct aq_err err;
};

static int put_salvaged(void *user, const char *bytes, size_t count)
{
    struct salvaging *s = user;
    s->last = bytes[count - 1];
    return put_aside(s->job, s->aside, bytes, count, &s->err);
}

static int salvage(const struct aq_job *j, int from, const char *path, uint64_t begin, uint64_t end,
                   struct aside *d, struct aq_err *reterr)
{
    struct salvaging s = {.job = j, .aside = d, .last = '\n'};
    int rc = put_aside(j, d, "", 0, reterr); /* the file is there, also where nothing can be read */
    if (rc < 0)
        return rc;
    rc = aq_members_salvage(from, aq_job_compression(path), begin, end, put_salvaged, &s);
    if (rc < 0)
        return s.err.code ? aq_error(reterr, s.err.code, "%s", s.err.text)
                          : aq_error(reterr, rc, "unpack '%s' from byte %" PRIu64 ": %s", path,
                                     begin, strerror(-rc));
    return s.last == '\n' ? 0 : put_aside(j, d, "\n", 1, reterr);
}

/* The bytes behind the last whole line. */
static int keep_torn(struct aq_job *j, void *user, struct aq_err *reterr)
{
    const struct aq_job_old_file *file = user;
    struct aside d = {j->damaged, file->path, .fd = -1};
    int from = aq_file_open(file->path, O_RDONLY | O_CLOEXEC, 0), rc = from < 0 ? from : 0;
    if (rc < 0)
        return aq_error(reterr, aq_err_of_io(-rc), "open '%s': %s", file->path, strerror(-rc));
    rc = aq_job_compression(file->path) == AQ_PLAIN
             ? copy_torn(j, from, file, &d, reterr)
             : salvage(j, from, file->path, file->walk.good_end, file->walk.end, &d, reterr);
    close(from);
    rc = sync_aside(&d, rc, reterr);
    close_aside(&d, rc);
    return rc;
}

/* A torn end is only kept where it may have been a whole line. */
static bool keeps_torn(const struct aq_job_old *old, const struct aq_job_old_file *file)
{
    return file->walk.good_end < file->walk.end && (old->unread || aq_sums_missing(old->sums));
}

/* ---- repair ---- */

static void say_torn(const struct aq_job *j, const struct aq_job_old_file *file)
{
    const struct aq_job_walk *w = &file->walk;
    uint64_t bytes = w->end - w->good_end;
    bool kept = keeps_torn(&j->old, file);
    aq_job_note(j, AQUIFER_WARNING, "'%s': the last line was torn; cut back by %" PRIu64 " %s%s%s",
                file->path, bytes, aq_job_plural(bytes, "byte", "bytes"),
                !kept        ? ""
                : bytes == 1 ? ", which is in "
                             : ", which are in ",
                kept ? j->damaged : "");
}

/* The missing newline of the last line; in a compressed file a member of its own. */
static int end_line(int fd, enum aq_compression compression)
{
    if (compression == AQ_PLAIN)
        return aq_file_write(fd, "\n", 1);
    struct aq_buf member = {0};
    int rc = aq_compress(&member, compression, "\n", 1);
    if (rc == 0)
        rc = aq_file_write(fd, member.data, member.count);
    aq_buf_close(&member);
    return rc;
}

/* Cuts a torn line off, or ends a whole one that only lacks its newline.  Lines that are to get
 * their sums are on the disk when this returns. */
static int repair(struct aq_job *j, void *user, struct aq_err *reterr)
{
    const struct aq_job_old_file *file = user;
    const struct aq_job_walk *w = &file->walk;
    const char *path = file->path;
    bool torn = w->good_end < w->end;
    if (!torn && !w->newline_missing && !j->old.added)
        return 0;
    int fd = aq_file_open(path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    int rc = fd < 0 ? fd : 0;
    if (rc == 0 && (torn || w->newline_missing)) /* an earlier attempt may have written it */
        rc = aq_file_truncate(fd, w->good_end);
    if (rc == 0 && w->newline_missing)
        rc = end_line(fd, aq_job_compression(path));
    if (rc == 0)
        rc = aq_file_sync(fd);
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        return aq_error(reterr, aq_err_of_io(-rc), "repair the end of '%s': %s", path,
                        strerror(-rc));
    if (torn)
        say_torn(j, file);
    return 0;
}

/* ---- taking lines out: --retry-errors, and what is not as it was written ---- */

struct copy {
    const char *path;
    bool writing; /* false: lines are only looked at */
    struct aq_rewritten to;
    struct aq_sums *kept; /* of the lines that stay, in all files */
    struct aside damaged, stale;
    uint64_t dropped; /* error records */
};

static int copy_salvaged(const struct aq_job *j, struct copy *c, const struct aq_job_line *f,
                         struct aq_err *reterr)
{
    int from = aq_file_open(c->path, O_RDONLY | O_CLOEXEC, 0);
    if (from < 0)
        return aq_error(reterr, aq_err_of_io(-from), "open '%s': %s", c->path, strerror(-from));
    int rc = salvage(j, from, c->path, f->offset, f->offset + f->packed, &c->damaged, reterr);
    aq_file_close(from);
    return rc;
}

static int copy_good(struct aq_job *j, const struct aq_job_line *f, void *user,
                     struct aq_err *reterr)
{
    struct copy *c = user;
    if (f->packed)
        return copy_salvaged(j, c, f, reterr);
    if (!f->known)
        return put_aside(j, &c->damaged, f->bytes, f->count, reterr);
    if (f->error && f->row != SIZE_MAX && j->o->retry_errors) {
        c->dropped++;
        return 0;
    }
    if (f->row == SIZE_MAX && j->old.input_changed)
        return put_aside(j, &c->stale, f->bytes, f->count, reterr);
    int rc = aq_sums_add(c->kept, f->sum, reterr);
    return rc < 0 || !c->writing ? rc : aq_rewritten_put(&c->to, f->bytes, f->count, reterr);
}

static void say_taken_out(const struct aq_job *j, const struct aq_job_old_file *file,
                          uint64_t dropped)
{
    uint64_t moved = file->suspects + file->unread;
    if (moved)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " %s moved to '%s'", file->path, moved,
                    aq_job_plural(moved, "line", "lines"), j->damaged);
    if (file->stale)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " %s moved to '%s'", file->path, file->stale,
                    aq_job_plural(file->stale, "line", "lines"), j->stale);
    if (dropped)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " error %s taken out to be tried again",
                    file->path, dropped, aq_job_plural(dropped, "record", "records"));
}

static bool needs_rewriting(const struct aq_job_old_file *file)
{
    return file->retried || file->suspects || file->unread || file->stale;
}

/* A file, and where the sums of its lines go. */
struct rewriting {
    const struct aq_job_old_file *file;
    struct aq_sums *kept;
};

/* 0: there is no such file. */
static ino_t inode(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* After the repair: every line has its newline.  Begun again after a failure it adds the same sums
 * again, which is nothing to a set. */
static int rewrite(struct aq_job *j, void *user, struct aq_err *reterr)
{
    const struct rewriting *r = user;
    const char *path = r->file->path;
    struct copy c = {.path = path,
                     .writing = needs_rewriting(r->file),
                     .kept = r->kept,
                     .damaged = {j->damaged, path, .fd = -1},
                     .stale = {j->stale, path, .fd = -1}};
    struct aq_job_walk w;
    int rc = c.writing ? aq_rewritten_open(&c.to, path, NULL, aq_job_compression(path), reterr) : 0;
    if (rc < 0)
        return rc;
    rc = aq_job_lines(j, path, j->old.sums, copy_good, &c, &w, reterr);
    rc = sync_aside(&c.damaged, rc, reterr);
    rc = sync_aside(&c.stale, rc, reterr);
    ino_t before = inode(path);
    if (c.writing)
        rc = aq_rewritten_close(&c.to, rc, reterr);
    bool replaced = inode(path) != before; /* also where only the folder was not synced */
    close_aside(&c.damaged, replaced ? 0 : rc);
    close_aside(&c.stale, replaced ? 0 : rc);
    if (rc == 0)
        say_taken_out(j, r->file, c.dropped);
    return rc;
}

/* Takes lines out of the files that have some to be taken out; j->old.sums then has the sums of
 * those that stay. */
static int rewrite_all(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    struct rewriting r;
    int rc = aq_sums_open(&r.kept, reterr);
    if (rc < 0)
        return rc;
    for (int f = 0; rc == 0 && f < AQ_JOB_FILES; f++) {
        r.file = &old->file[f];
        if (r.file->path)
            rc = aq_job_patiently(j, rewrite, &r, r.file->walk.end, reterr);
    }
    if (rc < 0) {
        aq_sums_close(r.kept);
        return rc;
    }
    aq_sums_close(old->sums);
    old->sums = r.kept;
    return 0;
}

static int write_all_sums(struct aq_job *j, void *user, struct aq_err *reterr)
{
    return aq_sums_write(j->old.sums, j->sums, true, reterr);
}

static int write_seen_sums(struct aq_job *j, void *user, struct aq_err *reterr)
{
    return aq_sums_write(j->old.sums, j->sums, false, reterr);
}

/* Results and sums are two files, and a power cut may come between any two steps.  So that sums
 * accuse no line: they have those of all lines before the results are replaced, and lose those of
 * lines taken out only after.  So that they hide none: a sum whose line is missing stays until the
 * lines that it makes suspect are out. */
static int mend(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    uint64_t all = 0; /* bytes; of the sums a fraction */
    bool rewriting = false;
    bool behind = old->added || old->sums_damaged || !old->sums_there;
    int rc = 0;
    for (int f = 0; rc == 0 && f < AQ_JOB_FILES; f++) {
        struct aq_job_old_file *file = &old->file[f];
        if (!file->path)
            continue;
        all += file->walk.end;
        rewriting |= needs_rewriting(file);
        if (keeps_torn(old, file))
            rc = aq_job_patiently(j, keep_torn, file, file->walk.end - file->walk.good_end, reterr);
        if (rc == 0)
            rc = aq_job_patiently(j, repair, file, 1, reterr);
    }
    if (rc == 0 && rewriting && behind)
        rc = aq_job_patiently(j, write_all_sums, NULL, all, reterr);
    if (rc == 0 && rewriting)
        rc = rewrite_all(j, reterr);
    if (rc == 0 && (rewriting || behind || aq_sums_missing(old->sums)))
        rc = aq_job_patiently(j, write_seen_sums, NULL, all, reterr);
    aq_sums_close(old->sums); /* tens of bytes a line, which the run can use */
    old->sums = NULL;
    return rc;
}

int aq_job_begin_sums(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_sums *none;
    int rc = aq_sums_open(&none, reterr);
    if (rc < 0)
        return rc;
    rc = aq_sums_write(none, j->sums, false, reterr);
    aq_sums_close(none);
    return rc;
}

/* ---- ready to go on ---- */

/* Of a file and a part only the one that is gone on with stays: a part beside a complete file was
 * sorted into it before the last run was cut off; a file that is not complete was damaged since.
 * Before lines are taken out: without its error records neither of them would be complete. */
static int settle_both(struct aq_job *j, struct aq_err *reterr)
{
    if (j->old.file[AQ_JOB_RESULTS].path == j->part)
        return aq_set_aside((const char *const[]){j->output}, 1, "", j->hooks, reterr);
    unlink(j->part);
    return 0;
}

int aq_job_settle(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    if (!j->manifest)
        return 0;
    int rc = 0;
    if (old->found) /* else it may be anybody's */
        aq_output_files_clean(&j->files, j->errors);
    if (j->o->overwrite)
        rc = aq_output_files_set_aside(&j->files, j->errors, "--overwrite: ", j->hooks, reterr);
    const char *path = old->file[AQ_JOB_RESULTS].path;
    if (rc == 0 && old->both)
        rc = settle_both(j, reterr);
    if (rc == 0 && old->found)
        rc = mend(j, reterr);
    if (rc < 0 || j->o->overwrite)
        return rc;
    if (aq_job_file_bytes(j->part) == 0) /* left by a run that wrote nothing */
        unlink(j->part);
    bool to_part = j->o->ordered && (j->pending || old->mixed);
    if (path && path == j->output && to_part)
        return aq_move_file(j->output, j->part, reterr);
    if (path && path == j->part && !j->o->ordered)
        return aq_move_file(j->part, j->output, reterr);
    return 0;
}
