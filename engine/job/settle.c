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

/* ---- FILE.damaged ---- */

/* *fd: opened when it is needed first. */
static int put_damaged(const struct aq_job *j, int *fd, const char *bytes, size_t count,
                       struct aq_err *reterr)
{
    if (*fd < 0)
        *fd = aq_file_open(j->damaged, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    int rc = *fd < 0 ? *fd : aq_file_write(*fd, bytes, count);
    return rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "write '%s': %s", j->damaged, strerror(-rc))
                  : 0;
}

/* What it holds is safe before it is taken out of the results. */
static int close_damaged(const struct aq_job *j, int fd, int rc, struct aq_err *reterr)
{
    if (fd < 0)
        return rc;
    int synced = rc == 0 ? aq_file_sync(fd) : 0;
    aq_file_close(fd);
    if (synced < 0)
        return aq_error(reterr, aq_err_of_io(-synced), "sync '%s': %s", j->damaged,
                        strerror(-synced));
    return rc < 0 ? rc : aq_file_sync_folder(j->damaged, reterr);
}

/* The bytes behind the last whole line. */
static int keep_torn(const struct aq_job *j, const char *path, const struct aq_job_walk *w,
                     struct aq_err *reterr)
{
    char bytes[COPY_BYTES];
    int to = -1, from = aq_file_open(path, O_RDONLY | O_CLOEXEC, 0), rc = from < 0 ? from : 0;
    if (rc < 0)
        return aq_error(reterr, aq_err_of_io(-rc), "open '%s': %s", path, strerror(-rc));
    for (uint64_t at = w->good_end, count; rc == 0 && at < w->end; at += count) {
        count = aq_min_u64(w->end - at, sizeof(bytes));
        rc = aq_file_read_at(from, bytes, count, at);
        rc = rc < 0 ? aq_error(reterr, aq_err_of_io(-rc), "read '%s': %s", path, strerror(-rc))
                    : put_damaged(j, &to, bytes, count, reterr);
    }
    if (rc == 0)
        rc = put_damaged(j, &to, "\n", 1, reterr);
    close(from);
    return close_damaged(j, to, rc, reterr);
}

/* ---- repair ---- */

/* Cuts a torn line off, or ends a whole one that only lacks its newline.  Lines that are to get
 * their sums are on the disk when this returns. */
static int repair(struct aq_job *j, const char *path, const struct aq_job_walk *w,
                  struct aq_err *reterr)
{
    if (w->good_end == w->end && !w->newline_missing && !j->old.added)
        return 0;
    int fd = aq_file_open(path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    int rc = fd < 0 ? fd : 0;
    if (rc == 0 && w->good_end < w->end)
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
    if (w->good_end < w->end)
        aq_job_note(j, AQUIFER_WARNING,
                    "'%s': the last line was torn; cut back by %" PRIu64 " bytes%s%s", path,
                    w->end - w->good_end, j->old.suspicious ? ", which are in " : "",
                    j->old.suspicious ? j->damaged : "");
    return 0;
}

/* ---- taking lines out: --retry-errors, and what is not as it was written ---- */

struct copy {
    struct aq_replacement to;
    struct aq_sums *kept; /* of the lines copied */
    int damaged;          /* FILE.damaged; -1: not opened */
    uint64_t dropped;     /* error records */
};

static int copy_good(struct aq_job *j, const struct aq_job_line *f, void *user,
                     struct aq_err *reterr)
{
    struct copy *c = user;
    bool newline = f->bytes[f->count - 1] == '\n';
    if (!f->known) {
        int rc = put_damaged(j, &c->damaged, f->bytes, f->count, reterr);
        return rc < 0 || newline ? rc : put_damaged(j, &c->damaged, "\n", 1, reterr);
    }
    if (f->error && j->o->retry_errors) {
        c->dropped++;
        return 0;
    }
    int rc = aq_sums_add(c->kept, f->sum, reterr);
    if (rc == 0)
        rc = aq_replacement_put(&c->to, f->bytes, f->count, reterr);
    return rc < 0 || newline ? rc : aq_replacement_put(&c->to, "\n", 1, reterr);
}

static int rewrite(struct aq_job *j, const char *path, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    struct copy c = {.damaged = -1};
    struct aq_job_walk w;
    int rc = aq_sums_open(&c.kept, reterr);
    if (rc == 0)
        rc = aq_replacement_open(&c.to, path, NULL, reterr);
    if (rc < 0) {
        aq_sums_close(c.kept);
        return rc;
    }
    rc = aq_job_lines(j, path, old->sums, copy_good, &c, &w, reterr);
    rc = close_damaged(j, c.damaged, rc, reterr);
    if (rc == 0 && w.good_end < w.end) /* a damaged line that became the last one by the repair */
        rc = keep_torn(j, path, &w, reterr);
    rc = aq_replacement_close(&c.to, rc, true, reterr);
    if (rc < 0) {
        aq_sums_close(c.kept);
        return rc;
    }
    aq_sums_close(old->sums);
    old->sums = c.kept;
    if (old->suspects)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " lines moved to '%s'", path, old->suspects,
                    j->damaged);
    if (c.dropped)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " error records taken out to be tried again",
                    path, c.dropped);
    return 0;
}

/* Results and sums are two files, and a power cut may come between any two steps.  So that sums
 * accuse no line: they have those of all lines before the results are replaced, and lose those of
 * lines taken out only after.  So that they hide none: a sum whose line is missing stays until the
 * lines that it makes suspect are out. */
static int mend(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    bool rewriting = old->retried || old->suspects;
    bool behind = old->added || old->sums_damaged || !old->sums_there;
    int rc = 0;
    if (old->suspicious && old->walk.good_end < old->walk.end)
        rc = keep_torn(j, old->path, &old->walk, reterr);
    if (rc == 0)
        rc = repair(j, old->path, &old->walk, reterr);
    if (rc == 0 && rewriting && behind)
        rc = aq_sums_write(old->sums, j->sums, true, reterr);
    if (rc == 0 && rewriting)
        rc = rewrite(j, old->path, reterr);
    if (rc == 0 && (rewriting || behind || aq_sums_missing(old->sums)))
        rc = aq_sums_write(old->sums, j->sums, false, reterr);
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

/* ---- --overwrite ---- */

static int move(const char *from, const char *to, struct aq_err *reterr)
{
    int rc = aq_file_rename(from, to);
    return rc < 0 ? aq_error(reterr, -EIO, "rename '%s' to '%s': %s", from, to, strerror(-rc))
                  : aq_file_sync_folder(to, reterr);
}

static int rename_old(struct aq_job *j, const char *path, const char *ending, struct aq_err *reterr)
{
    if (aq_file_size(path) < 0)
        return 0;
    char *to = aq_file_name(path, ending);
    int rc = to ? move(path, to, reterr) : aq_error_memory(reterr, "rename '%s'", path);
    if (rc == 0)
        aq_job_note(j, AQUIFER_INFO, "--overwrite: '%s' is now '%s'", path, to);
    free(to);
    return rc;
}

/* Renames results, sums and manifest to the first ".old.N" that is free for all of them.  The
 * manifest goes first: cut off in between, results without one are left alone by the next run, but
 * a manifest or sums without results would be replaced. */
static int set_aside(struct aq_job *j, struct aq_err *reterr)
{
    const char *const paths[] = {j->manifest, j->sums, j->output, j->part};
    for (int n = 1; n < OLD_NAMES_MAX; n++) {
        char ending[24];
        snprintf(ending, sizeof(ending), ".old.%d", n);
        bool taken = false;
        for (size_t i = 0; i < AQ_ARRAY_LEN(paths); i++) {
            char *name = aq_file_name(paths[i], ending);
            taken |= !name || aq_file_size(name) >= 0;
            free(name);
        }
        int rc = 0;
        for (size_t i = 0; !taken && rc == 0 && i < AQ_ARRAY_LEN(paths); i++)
            rc = rename_old(j, paths[i], ending, reterr);
        if (!taken)
            return rc;
    }
    return aq_error(reterr, -EINVAL, "--overwrite: '%s.old.1' to '.old.%d' all exist", j->output,
                    OLD_NAMES_MAX - 1);
}

/* ---- ready to go on ---- */

int aq_job_settle(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    if (!j->manifest)
        return 0;
    int rc = j->o->overwrite ? set_aside(j, reterr) : 0;
    if (rc == 0 && old->path)
        rc = mend(j, reterr);
    if (rc < 0 || j->o->overwrite)
        return rc;
    /* A part beside a complete file was sorted into it before the last run was cut off; an empty
     * one was left by a run that wrote nothing. */
    if (old->both || aq_file_size(j->part) == 0)
        unlink(j->part);
    bool to_part = j->o->ordered && (j->pending || old->mixed);
    if (old->path == j->output && to_part)
        return move(j->output, j->part, reterr);
    if (old->path == j->part && !j->o->ordered)
        return move(j->part, j->output, reterr);
    return 0;
}
