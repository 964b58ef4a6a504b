/* SPDX-License-Identifier: Apache-2.0
 * Once the run can go ahead, what earlier runs left is made ready for it: a torn end is repaired,
 * lines that are not as they were written and error records to be tried again are taken out, lines
 * move to where new ones will be appended, and FILE.sums has the sums of what is left. */
#include "engine/job/lines.h"

#include "base/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OLD_NAMES_MAX = 10000, COPY_BYTES = 64 << 10 };

/* ---- FILE.damaged, FILE.stale ---- */

/* A file that lines taken out of the results are appended to. */
struct aside {
    const char *path;
    int fd;         /* -1: not needed so far */
    uint64_t begin; /* its size before this run */
};

static int put_aside(const struct aq_job *j, struct aside *d, const char *bytes, size_t count,
                     struct aq_err *reterr)
{
    if (d->fd < 0) {
        int64_t size = aq_file_size(d->path);
        d->begin = size < 0 ? 0 : (uint64_t)size;
        d->fd = aq_file_open_like(d->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, j->old.path);
    }
    int rc = d->fd < 0 ? d->fd : aq_file_write(d->fd, bytes, count);
    return rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "write '%s': %s", d->path, strerror(-rc))
                  : 0;
}

/* The file is synced before its lines are taken out of the results; where that fails it is as
 * before, so that the step can be begun again. */
static int close_aside(struct aside *d, int rc, struct aq_err *reterr)
{
    if (d->fd < 0)
        return rc;
    int synced = rc == 0 ? aq_file_sync(d->fd) : 0;
    if (synced < 0)
        rc = aq_error(reterr, aq_err_of_io(-synced), "sync '%s': %s", d->path, strerror(-synced));
    if (rc < 0)
        (void)aq_file_truncate(d->fd, d->begin);
    if (rc < 0 && !d->begin)
        unlink(d->path);
    aq_file_close(d->fd);
    return rc < 0 ? rc : aq_file_sync_folder(d->path, reterr);
}

/* The bytes behind the last whole line. */
static int keep_torn(struct aq_job *j, void *user, struct aq_err *reterr)
{
    const struct aq_job_walk *w = &j->old.walk;
    const char *path = j->old.path;
    struct aside d = {j->damaged, .fd = -1};
    char bytes[COPY_BYTES];
    int from = aq_file_open(path, O_RDONLY | O_CLOEXEC, 0), rc = from < 0 ? from : 0;
    if (rc < 0)
        return aq_error(reterr, aq_err_of_io(-rc), "open '%s': %s", path, strerror(-rc));
    for (uint64_t at = w->good_end, count; rc == 0 && at < w->end; at += count) {
        count = aq_min_u64(w->end - at, sizeof(bytes));
        rc = aq_file_read_at(from, bytes, count, at);
        rc = rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "read '%s': %s", path, strerror(-rc))
                    : put_aside(j, &d, bytes, count, reterr);
    }
    if (rc == 0)
        rc = put_aside(j, &d, "\n", 1, reterr);
    close(from);
    return close_aside(&d, rc, reterr);
}

/* A torn end is only kept where it may have been a whole line. */
static bool keeps_torn(const struct aq_job_old *old)
{
    return old->walk.good_end < old->walk.end && (old->unread || aq_sums_missing(old->sums));
}

/* ---- repair ---- */

static void say_torn(const struct aq_job *j)
{
    const struct aq_job_walk *w = &j->old.walk;
    uint64_t bytes = w->end - w->good_end;
    bool kept = keeps_torn(&j->old);
    aq_job_note(j, AQUIFER_WARNING, "'%s': the last line was torn; cut back by %" PRIu64 " %s%s%s",
                j->old.path, bytes, aq_job_plural(bytes, "byte", "bytes"),
                !kept        ? ""
                : bytes == 1 ? ", which is in "
                             : ", which are in ",
                kept ? j->damaged : "");
}

/* Cuts a torn line off, or ends a whole one that only lacks its newline.  Lines that are to get
 * their sums are on the disk when this returns. */
static int repair(struct aq_job *j, void *user, struct aq_err *reterr)
{
    const struct aq_job_walk *w = &j->old.walk;
    const char *path = j->old.path;
    bool torn = w->good_end < w->end;
    if (!torn && !w->newline_missing && !j->old.added)
        return 0;
    int fd = aq_file_open(path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    int rc = fd < 0 ? fd : 0;
    if (rc == 0 && (torn || w->newline_missing)) /* an earlier attempt may have written it */
        rc = aq_file_truncate(fd, w->good_end);
    if (rc == 0 && w->newline_missing)
        rc = aq_file_write(fd, "\n", 1);
    if (rc == 0)
        rc = aq_file_sync(fd);
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        return aq_error(reterr, aq_err_of_io(-rc), "repair the end of '%s': %s", path,
                        strerror(-rc));
    if (torn)
        say_torn(j);
    return 0;
}

/* ---- taking lines out: --retry-errors, and what is not as it was written ---- */

struct copy {
    struct aq_replacement to;
    struct aq_sums *kept; /* of the lines copied */
    struct aside damaged, stale;
    uint64_t dropped; /* error records */
};

static int copy_good(struct aq_job *j, const struct aq_job_line *f, void *user,
                     struct aq_err *reterr)
{
    struct copy *c = user;
    if (!f->known)
        return put_aside(j, &c->damaged, f->bytes, f->count, reterr);
    if (f->error && j->o->retry_errors) {
        c->dropped++;
        return 0;
    }
    if (f->row == SIZE_MAX && j->old.input_changed)
        return put_aside(j, &c->stale, f->bytes, f->count, reterr);
    int rc = aq_sums_add(c->kept, f->sum, reterr);
    return rc < 0 ? rc : aq_replacement_put(&c->to, f->bytes, f->count, reterr);
}

static void say_taken_out(const struct aq_job *j, uint64_t dropped)
{
    const struct aq_job_old *old = &j->old;
    uint64_t moved = old->suspects + old->unread;
    if (moved)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " %s moved to '%s'", old->path, moved,
                    aq_job_plural(moved, "line", "lines"), j->damaged);
    if (old->stale)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " %s moved to '%s'", old->path, old->stale,
                    aq_job_plural(old->stale, "line", "lines"), j->stale);
    if (dropped)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " error %s taken out to be tried again",
                    old->path, dropped, aq_job_plural(dropped, "record", "records"));
}

/* After the repair: every line has its newline. */
static int rewrite(struct aq_job *j, void *user, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    struct copy c = {.damaged = {j->damaged, .fd = -1}, .stale = {j->stale, .fd = -1}};
    struct aq_job_walk w;
    int rc = aq_sums_open(&c.kept, reterr);
    if (rc < 0)
        return rc;
    rc = aq_replacement_open(&c.to, old->path, NULL, reterr);
    if (rc == 0) {
        rc = aq_job_lines(j, old->path, old->sums, copy_good, &c, &w, reterr);
        rc = close_aside(&c.damaged, rc, reterr);
        rc = close_aside(&c.stale, rc, reterr);
        rc = aq_replacement_close(&c.to, rc, true, reterr);
    }
    if (rc < 0) {
        aq_sums_close(c.kept);
        return rc;
    }
    aq_sums_close(old->sums);
    old->sums = c.kept;
    say_taken_out(j, c.dropped);
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
    uint64_t all = old->walk.end; /* bytes; of the sums a fraction */
    bool rewriting = old->retried || old->suspects || old->unread || old->stale;
    bool behind = old->added || old->sums_damaged || !old->sums_there;
    int rc = 0;
    if (keeps_torn(old))
        rc = aq_job_patiently(j, keep_torn, NULL, old->walk.end - old->walk.good_end, reterr);
    if (rc == 0)
        rc = aq_job_patiently(j, repair, NULL, 1, reterr);
    if (rc == 0 && rewriting && behind)
        rc = aq_job_patiently(j, write_all_sums, NULL, all, reterr);
    if (rc == 0 && rewriting)
        rc = aq_job_patiently(j, rewrite, NULL, all, reterr);
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

/* ---- setting aside ---- */

static int move(const char *from, const char *to, struct aq_err *reterr)
{
    int rc = aq_file_rename(from, to);
    return rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "rename '%s' to '%s': %s", from, to,
                             strerror(-rc))
                  : aq_file_sync_folder(to, reterr);
}

static int rename_old(struct aq_job *j, const char *path, const char *ending, struct aq_err *reterr)
{
    if (aq_file_size(path) < 0)
        return 0;
    char *to = aq_file_name(path, ending);
    int rc = to ? move(path, to, reterr) : aq_error_memory(reterr, "rename '%s'", path);
    if (rc == 0)
        aq_job_note(j, AQUIFER_INFO, "%s'%s' is now '%s'", j->o->overwrite ? "--overwrite: " : "",
                    path, to);
    free(to);
    return rc;
}

/* Renames files to the first ".old.N" that is free for all of them, in this order. */
static int set_aside(struct aq_job *j, const char *const *paths, size_t count,
                     struct aq_err *reterr)
{
    for (int n = 1; n < OLD_NAMES_MAX; n++) {
        char ending[24];
        snprintf(ending, sizeof(ending), ".old.%d", n);
        bool taken = false;
        for (size_t i = 0; i < count; i++) {
            char *name = aq_file_name(paths[i], ending);
            taken |= !name || aq_file_size(name) >= 0;
            free(name);
        }
        int rc = 0;
        for (size_t i = 0; !taken && rc == 0 && i < count; i++)
            rc = rename_old(j, paths[i], ending, reterr);
        if (!taken)
            return rc;
    }
    return aq_error(reterr, -EINVAL, "'%s.old.1' to '.old.%d' all exist; move some of them away",
                    j->output, OLD_NAMES_MAX - 1);
}

/* The manifest goes first: cut off in between, results without one are left alone by the next run,
 * but a manifest or sums without results would be replaced. */
static int set_all_aside(struct aq_job *j, struct aq_err *reterr)
{
    const char *const paths[] = {j->manifest, j->sums, j->damaged, j->stale, j->output, j->part};
    return set_aside(j, paths, AQ_ARRAY_LEN(paths), reterr);
}

/* ---- ready to go on ---- */

/* Of a file and a part only the one that is gone on with stays: a part beside a complete file was
 * sorted into it before the last run was cut off; a file that is not complete was damaged since. */
static int settle_both(struct aq_job *j, struct aq_err *reterr)
{
    if (j->old.path == j->part)
        return set_aside(j, (const char *const[]){j->output}, 1, reterr);
    unlink(j->part);
    return 0;
}

int aq_job_settle(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    if (!j->manifest)
        return 0;
    int rc = j->o->overwrite ? set_all_aside(j, reterr) : 0;
    if (rc == 0 && old->path)
        rc = mend(j, reterr);
    if (rc < 0 || j->o->overwrite)
        return rc;
    if (old->both)
        rc = settle_both(j, reterr);
    else if (aq_file_size(j->part) == 0) /* left by a run that wrote nothing */
        unlink(j->part);
    if (rc < 0)
        return rc;
    bool to_part = j->o->ordered && (j->pending || old->mixed);
    if (old->path == j->output && to_part)
        return move(j->output, j->part, reterr);
    if (old->path == j->part && !j->o->ordered)
        return move(j->part, j->output, reterr);
    return 0;
}
