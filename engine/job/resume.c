/* SPDX-License-Identifier: Apache-2.0
 * The content of an existing output: its lines are matched with the records of the input by id and
 * key, and with the sums that were kept of them.  Nothing is changed here. */
#include "engine/job/lines.h"

#include "base/file.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

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

static void see_suspect(struct aq_job_old *old, struct aq_job_old_file *file,
                        const struct aq_job_line *l)
{
    old->unread += l->unread;
    file->unread += l->unread;
    old->suspects += !l->unread;
    file->suspects += !l->unread;
    old->members += l->packed > 0;
    if (old->shown_count < AQ_JOB_SHOWN_SUSPECTS)
        old->shown[old->shown_count++] =
            (struct aq_job_suspect){.path = file->path,
                                    .number = l->number,
                                    .offset = l->offset,
                                    .count = l->packed ? l->packed : l->count,
                                    .unread = l->unread,
                                    .member = l->packed > 0};
}

static int mark_line(struct aq_job *j, const struct aq_job_line *l, void *user,
                     struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    struct aq_job_old_file *file = user;
    struct aq_row *row = l->row == SIZE_MAX ? NULL : &j->rows[l->row];
    if (l->unread || (!l->known && old->suspicious)) {
        see_suspect(old, file, l);
        return 0;
    }
    old->added += !l->known;
    int rc = l->known ? 0 : aq_sums_add(old->sums, l->sum, reterr);
    if (rc < 0)
        return rc;
    if (l->error && row && j->o->retry_errors) {
        old->retried++;
        file->retried++;
        row->retried = true;
        return 0;
    }
    bool stray = !row || row->done;
    if (!row && old->input_changed) { /* its record is gone, or asks for something else now */
        old->stale++;
        file->stale++;
        return 0;
    }
    if (file == &old->file[AQ_JOB_RESULTS])
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

/* ---- words ---- */

static void say_found(const struct aq_job *j)
{
    const struct aq_job_old *old = &j->old;
    aq_job_note(j, AQUIFER_INFO,
                "resume: '%s' holds %" PRIu64 " of %" PRIu64 " records (%" PRIu64 " error %s)",
                j->output, j->done_before, j->row_count, j->errors_before,
                aq_job_plural(j->errors_before, "record", "records"));
    if (old->retried)
        aq_job_note(j, AQUIFER_INFO, "resume: %" PRIu64 " error %s will be tried again",
                    old->retried, aq_job_plural(old->retried, "record", "records"));
    if (old->stale)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " %s to no record of this input any more (id or content "
                    "differ), and %s to '%s'",
                    old->stale, aq_job_plural(old->stale, "line belongs", "lines belong"),
                    aq_job_plural(old->stale, "moves", "move"), j->stale);
    if (j->stray_lines)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " %s to no record of this input (id or content differ), or "
                    "to one that has a line already; %s",
                    j->stray_lines, aq_job_plural(j->stray_lines, "line belongs", "lines belong"),
                    aq_job_plural(j->stray_lines, "it stays", "they stay"));
}

/* Whether all results that will be set aside were changed: no sum is illegible that they may have
 * had, nor are they more than the lines that are missing, as those of the last second would be. */
static bool are_changed(const struct aq_job_old *old)
{
    return !old->sums_damaged && old->suspects + old->unread <= aq_sums_missing(old->sums);
}

static void say_shown(const struct aq_job *j, const struct aq_job_suspect *s, uint64_t doubtful)
{
    char what[48] = "", *end = what;
    if (!s->member)
        end += snprintf(what, sizeof(what), "line %" PRIu64 " (", s->number);
    aq_job_note(j, AQUIFER_WARNING, "resume: '%s' %sbytes %" PRIu64 " to %" PRIu64 "%s %s", s->path,
                what, s->offset, s->offset + s->count - 1, end > what ? ")" : "",
                s->member                ? "cannot be unpacked"
                : s->unread || !doubtful ? "is not as it was written"
                                         : "cannot be vouched for");
}

static void say_set_aside(const struct aq_job *j)
{
    const struct aq_job_old *old = &j->old;
    uint64_t missing = aq_sums_missing(old->sums);
    uint64_t changed = old->unread - old->members + (are_changed(old) ? old->suspects : 0);
    uint64_t doubtful = old->unread - old->members + old->suspects - changed;
    for (uint32_t i = 0; i < old->shown_count; i++)
        say_shown(j, &old->shown[i], doubtful);
    if (old->members)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " compressed %s: damaged on the disk.  What can still be "
                    "read of %s moves to '%s', and records without a line run again",
                    old->members,
                    aq_job_plural(old->members, "part is not as it was written",
                                  "parts are not as they were written"),
                    aq_job_plural(old->members, "it", "them"), j->damaged);
    if (changed)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " %s: damaged on the disk, or edited (a damaged letter "
                    "cannot be told from an edit).  %s to '%s' and %s again; to keep edits, stop, "
                    "put the lines back and remove '%s'",
                    changed,
                    aq_job_plural(changed, "line is not as it was written",
                                  "lines are not as they were written"),
                    aq_job_plural(changed, "It moves", "They move"), j->damaged,
                    aq_job_plural(changed, "its record runs", "their records run"), j->sums);
    if (doubtful)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " %s be vouched for: '%s' has no sum of %s, and %" PRIu64
                    " of the lines that it knows %s missing or changed.  %s to '%s' and %s again",
                    doubtful, aq_job_plural(doubtful, "line cannot", "lines cannot"), j->sums,
                    aq_job_plural(doubtful, "it", "them"), missing,
                    aq_job_plural(missing, "is", "are"),
                    aq_job_plural(doubtful, "It moves", "They move"), j->damaged,
                    aq_job_plural(doubtful, "its record runs", "their records run"));
}

/* The verdict of the sums, and the remedy. */
static void say_sums(const struct aq_job *j)
{
    const struct aq_job_old *old = &j->old;
    uint64_t missing = aq_sums_missing(old->sums);
    uint64_t found = old->suspects + old->unread;
    const char *path = old->file[AQ_JOB_RESULTS].path ? old->file[AQ_JOB_RESULTS].path : j->output;
    for (int f = 0; f < AQ_JOB_FILES; f++)
        found += old->file[f].walk.good_end < old->file[f].walk.end;
    if (old->sums_expected && !old->sums_there)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: '%s' is not there: the lines of '%s' are known by their form alone",
                    j->sums, path);
    if (old->sums_damaged)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " %s of '%s' %s torn or damaged: results whose sums cannot "
                    "be read any more cannot be vouched for, and are known by their form alone; "
                    "the file is made anew",
                    old->sums_damaged, aq_job_plural(old->sums_damaged, "line", "lines"), j->sums,
                    aq_job_plural(old->sums_damaged, "is", "are"));
    say_set_aside(j);
    if (missing > found) {
        uint64_t gone = missing - found;
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " %s written to '%s' %s no longer there; records without a "
                    "line run again",
                    gone, aq_job_plural(gone, "line that was", "lines that were"), path,
                    aq_job_plural(gone, "is", "are"));
    }
}

/* ---- looking, as a whole ---- */

static int open_sums(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    aq_sums_close(old->sums);
    old->sums = NULL;
    old->sums_there = aq_file_size(j->sums) >= 0;
    old->sums_damaged = 0;
    int rc = aq_sums_open(&old->sums, reterr);
    if (rc == 0 && old->sums_there)
        rc = aq_sums_read(old->sums, j->sums, &old->sums_damaged, reterr);
    return rc;
}

static void forget_marks(struct aq_job *j)
{
    struct aq_job_old *old = &j->old;
    for (uint64_t i = 0; i < j->row_count; i++)
        j->rows[i].done = j->rows[i].retried = false;
    j->done_before = j->errors_before = j->stray_lines = 0;
    old->added = old->suspects = old->unread = old->retried = old->stale = old->next_row = 0;
    for (int f = 0; f < AQ_JOB_FILES; f++)
        old->file[f] = (struct aq_job_old_file){.path = old->file[f].path};
    old->members = old->shown_count = 0;
    old->stray = old->mixed = false;
}

static int walk(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    forget_marks(j);
    int rc = open_sums(j, reterr);
    for (int f = 0; rc == 0 && f < AQ_JOB_FILES; f++) {
        struct aq_job_old_file *file = &old->file[f];
        if (file->path)
            rc = aq_job_lines(j, file->path, old->sums, mark_line, file, &file->walk, reterr);
    }
    return rc;
}

/* One walk, and a second one where sums without a line make lines without a sum suspect: one of
 * these lines may be what became of one of those, unless as many sums have become illegible. */
static int look(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    old->suspicious = false;
    int rc = walk(j, reterr);
    old->suspicious =
        rc == 0 && aq_sums_missing(old->sums) && old->added > aq_sums_illegible(old->sums);
    if (old->suspicious)
        rc = walk(j, reterr);
    for (int f = 0; rc == 0 && !old->sums_there && f < AQ_JOB_FILES; f++) {
        const struct aq_err *unread = &old->file[f].walk.unread;
        if (unread->code)
            rc = aq_error(reterr, unread->code, "%s", unread->text);
    }
    return rc;
}

/* A run that is cut off when it has put FILE.part in order leaves FILE beside it.  The one that has
 * every record is gone on with: FILE, unless it was damaged since. */
static int look_at_both(struct aq_job *j, struct aq_err *reterr)
{
    const char *const paths[] = {j->output, j->part};
    for (size_t i = 0; i < AQ_ARRAY_LEN(paths); i++) {
        j->old.file[AQ_JOB_RESULTS].path = paths[i];
        int rc = look(j, reterr);
        if ((rc < 0 && rc != -EINVAL) || (rc == 0 && is_complete(j)))
            return rc;
    }
    return aq_error(reterr, -EINVAL,
                    "both '%s' and '%s' hold results and neither has every record; move one of "
                    "them away",
                    j->output, j->part);
}

int aq_job_resume(struct aq_job *j, struct aq_err *reterr)
{
    assert(j->manifest);
    struct aq_job_old *old = &j->old;
    bool have_file = aq_job_file_bytes(j->output) > 0, have_part = aq_job_file_bytes(j->part) > 0;
    bool have_errors = j->errors && aq_job_file_bytes(j->errors) > 0;
    old->found = !j->o->overwrite && (have_file || have_part || have_errors);
    if (!old->found)
        return 0;
    old->file[AQ_JOB_RESULTS].path = have_file ? j->output : have_part ? j->part : NULL;
    old->file[AQ_JOB_ERRORS].path = have_errors ? j->errors : NULL;
    old->both = have_file && have_part;
    int rc = aq_job_manifest_check(j, reterr);
    if (rc == 0)
        rc = old->both ? look_at_both(j, reterr) : look(j, reterr);
    if (rc == 0) {
        say_found(j);
        say_sums(j);
    }
    return rc;
}
