/* SPDX-License-Identifier: Apache-2.0
 * What an existing output holds: its lines are matched with the records of the input by id and key,
 * and with the sums that were kept of them.  Nothing is changed here. */
#include "engine/job/lines.h"

#include "base/file.h"

#include <assert.h>
#include <inttypes.h>

enum { SUSPECTS_SHOWN = 5 };

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

/* Lines whose sums are not among those that were kept. */
static int see_unknown(struct aq_job *j, const struct aq_job_line *l, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    if (!old->suspicious) {
        old->added++;
        return aq_sums_add(old->sums, l->sum, reterr);
    }
    if (old->suspects++ < SUSPECTS_SHOWN)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: '%s' line %" PRIu64 " (bytes %" PRIu64 " to %" PRIu64
                    ") is not as it was written",
                    old->path, l->number, l->offset, l->offset + l->count - 1);
    return 0;
}

static int mark_line(struct aq_job *j, const struct aq_job_line *l, void *user,
                     struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    struct aq_row *row = l->row == SIZE_MAX ? NULL : &j->rows[l->row];
    int rc = l->known ? 0 : see_unknown(j, l, reterr);
    if (rc < 0 || (!l->known && old->suspicious))
        return rc;
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

/* What the sums have to say, and what will be done about it. */
static void say_sums(const struct aq_job *j)
{
    const struct aq_job_old *old = &j->old;
    uint64_t missing = aq_sums_missing(old->sums);
    if (old->sums_expected && !old->sums_there)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: '%s' is not there: the lines of '%s' are known by their form alone",
                    j->sums, old->path);
    if (old->sums_damaged)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " lines of '%s' are torn or damaged: the results they were "
                    "made of are known by their form alone; it is made anew",
                    old->sums_damaged, j->sums);
    if (old->suspects)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " lines of '%s' are not as they were written: damaged on "
                    "the disk, or edited (a damaged letter cannot be told from an edit).  They "
                    "move to '%s' and their records run again; to keep edits, stop, put the lines "
                    "back and remove '%s'",
                    old->suspects, old->path, j->damaged, j->sums);
    if (missing > old->suspects)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " lines that were written to '%s' are no longer there; "
                    "records without a line run again",
                    missing - old->suspects, old->path);
}

/* ---- looking, as a whole ---- */

static int open_sums(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    aq_sums_close(old->sums);
    old->sums = NULL;
    old->sums_there = aq_file_size(j->sums) >= 0;
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
    old->added = old->retried = old->next_row = 0;
    old->stray = old->mixed = false;
}

/* One walk, and a second one where sums without a line make lines without a sum suspect. */
static int look(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_old *old = &j->old;
    struct aq_job_walk *w = &old->walk;
    int rc = open_sums(j, reterr);
    if (rc == 0)
        rc = aq_job_lines(j, old->path, old->sums, mark_line, NULL, w, reterr);
    bool unknown = old->added || w->good_end < w->end;
    old->suspicious = rc == 0 && unknown && aq_sums_missing(old->sums);
    if (old->suspicious) {
        forget_marks(j);
        rc = open_sums(j, reterr);
        if (rc == 0)
            rc = aq_job_lines(j, old->path, old->sums, mark_line, NULL, w, reterr);
    } else if (rc == 0 && w->unread.code) {
        rc = aq_error(reterr, w->unread.code, "%s", w->unread.text);
    }
    return rc;
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
        rc = look(j, reterr);
    old->both = have_file && have_part;
    if (rc == 0 && old->both && !is_complete(j))
        rc = aq_error(reterr, -EINVAL,
                      "both '%s' and '%s' hold results and the first is not complete; move one of "
                      "them away",
                      j->output, j->part);
    if (rc == 0) {
        say_found(j);
        say_sums(j);
    }
    return rc;
}
