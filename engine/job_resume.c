/* SPDX-License-Identifier: Apache-2.0
 * What an existing output holds: its lines are matched with the records of the input by id and key.
 * Only when the run can go ahead is anything changed: a torn end is repaired, error records are
 * taken out to be tried again, lines move to where new ones will be appended. */
#include "engine/job_lines.h"

#include "engine/files.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OLD_NAMES_MAX = 10000 };

/* ---- looking ---- */

static void see_order(struct aq_job_old *old, uint64_t row, bool stray)
{
    if (stray) {
        old->stray = true;
        return;
    }
    old->mixed |= old->stray || row < old->next_row;
    old->next_row = row + 1;
}

static int mark_line(struct aq_job *j, const struct aq_job_line *l, void *user,
                     struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    struct aq_row *row = l->row == SIZE_MAX ? NULL : &j->rows[l->row];
    if (l->error && j->o->retry_errors) {
        old->retried++;
        if (row)
            row->retried = true;
        return 0;
    }
    bool stray = !row || row->done;
    see_order(old, l->row, stray);
    if (stray) {
        j->stray_lines++;
        return 0;
    }
    row->done = true;
    j->done_before++;
    j->errors_before += l->error;
    return 0;
}

static bool is_complete(const struct aq_job *j)
{
    for (uint64_t i = 0; i < j->row_count; i++)
        if (!j->rows[i].done && !j->rows[i].retried)
            return false;
    return true;
}

static void say_found(const struct aq_job *j)
{
    const struct aq_job_old *old = &j->old;
    aq_job_note(j, AQUIFER_INFO,
                "resume: '%s' holds %" PRIu64 " of %" PRIu64 " records (%" PRIu64 " error records)",
                j->output, j->done_before, j->row_count, j->errors_before);
    if (old->retried)
        aq_job_note(j, AQUIFER_INFO, "resume: %" PRIu64 " error records will be tried again",
                    old->retried);
    if (j->stray_lines)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " lines belong to no record of this input (id or content "
                    "differ), or to one that has a line already; they stay",
                    j->stray_lines);
}

int aq_job_resume(struct aq_job *j, struct aq_err *reterr)
{
    assert(j->manifest);
    struct aq_job_old *old = &j->old;
    bool have_file = aq_file_size(j->output) > 0, have_part = aq_file_size(j->part) > 0;
    if (j->o->overwrite || (!have_file && !have_part))
        return 0;
    old->path = have_file ? j->output : j->part;
    int rc = aq_job_manifest_check(j, reterr);
    if (rc == 0)
        rc = aq_job_lines(j, old->path, mark_line, NULL, &old->walk, reterr);
    old->both = have_file && have_part;
    if (rc == 0 && old->both && !is_complete(j))
        rc = aq_error(reterr, -EINVAL,
                      "both '%s' and '%s' hold results and the first is not complete; move one of "
                      "them away",
                      j->output, j->part);
    if (rc == 0)
        say_found(j);
    return rc;
}

/* ---- repair ---- */

/* Cuts a torn line off, or ends a whole one that only lacks its newline. */
static int repair(struct aq_job *j, const char *path, const struct aq_job_walk *w,
                  struct aq_err *reterr)
{
    if (w->good_end == w->end && !w->newline_missing)
        return 0;
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    int rc = fd < 0 ? -errno : 0;
    if (rc == 0 && w->good_end < w->end && ftruncate(fd, (off_t)w->good_end) < 0)
        rc = -errno;
    if (rc == 0 && w->newline_missing)
        rc = aq_file_write(fd, "\n", 1);
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        return aq_error(reterr, rc, "repair the end of '%s': %s", path, strerror(-rc));
    if (w->good_end < w->end)
        aq_job_note(j, AQUIFER_WARNING,
                    "'%s': the last line was torn; cut back by %" PRIu64 " bytes", path,
                    w->end - w->good_end);
    return 0;
}

/* ---- --retry-errors ---- */

struct copy {
    FILE *to;
    uint64_t dropped;
};

static int put_bytes(FILE *to, const struct aq_job_line *f, struct aq_err *reterr)
{
    bool good = fwrite(f->bytes, 1, f->count, to) == f->count;
    if (good && f->bytes[f->count - 1] != '\n')
        good = fputc('\n', to) != EOF;
    return good ? 0 : aq_error(reterr, -errno, "write a copy of the results: %s", strerror(errno));
}

static int copy_good(struct aq_job *j, const struct aq_job_line *f, void *user,
                     struct aq_err *reterr)
{
    struct copy *c = user;
    if (f->error) {
        c->dropped++;
        return 0;
    }
    return put_bytes(c->to, f, reterr);
}

static int drop_errors(struct aq_job *j, const char *path, struct aq_err *reterr)
{
    char *beside = aq_file_name(path, ".tmp");
    struct copy c = {.to = beside ? fopen(beside, "we") : NULL};
    int rc = c.to ? 0
                  : aq_error(reterr, beside ? -errno : -ENOMEM, "write beside '%s': %s", path,
                             strerror(errno));
    if (rc == 0) {
        struct aq_job_walk w;
        rc = aq_job_lines(j, path, copy_good, &c, &w, reterr);
        rc = aq_job_publish(c.to, beside, path, rc, reterr);
    }
    if (rc == 0)
        aq_job_note(j, AQUIFER_INFO, "'%s': %" PRIu64 " error records taken out to be tried again",
                    path, c.dropped);
    free(beside);
    return rc;
}

/* ---- --overwrite ---- */

static int rename_old(struct aq_job *j, const char *path, const char *ending, struct aq_err *reterr)
{
    if (aq_file_size(path) < 0)
        return 0;
    char *to = aq_file_name(path, ending);
    int rc = to ? 0 : aq_error_memory(reterr, "rename '%s'", path);
    if (rc == 0 && rename(path, to) < 0)
        rc = aq_error(reterr, -errno, "rename '%s' to '%s': %s", path, to, strerror(errno));
    if (rc == 0)
        aq_job_note(j, AQUIFER_INFO, "--overwrite: '%s' is now '%s'", path, to);
    free(to);
    return rc;
}

/* Renames results and manifest to the first ".old.N" that is free for all of them.  The manifest
 * goes first: cut off in between, results without one are left alone by the next run, but a
 * manifest without results would be replaced. */
static int set_aside(struct aq_job *j, struct aq_err *reterr)
{
    const char *const paths[] = {j->manifest, j->output, j->part};
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

static int move(const char *from, const char *to, struct aq_err *reterr)
{
    if (rename(from, to) < 0)
        return aq_error(reterr, -EIO, "rename '%s' to '%s': %s", from, to, strerror(errno));
    aq_file_sync_folder(to);
    return 0;
}

int aq_job_settle(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    if (!j->manifest)
        return 0;
    if (j->o->overwrite)
        return set_aside(j, reterr);
    int rc = 0;
    if (old->path)
        rc = old->retried ? drop_errors(j, old->path, reterr)
                          : repair(j, old->path, &old->walk, reterr);
    if (rc < 0)
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
