/* SPDX-License-Identifier: Apache-2.0
 * Puts FILE.part into input order as FILE. */
#include "engine/job/lines.h"

#include "base/file.h"
#include "engine/job/rewritten.h"
#include "engine/records/spool.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    INTERRUPT_ROWS = 256, /* look for an interruption once in so many copied lines */
    COPY_BYTES = 64 << 10,
};

struct place {
    uint64_t offset, count; /* in the text; count 0: no line */
};
#define AMONG_ERRORS UINT64_MAX /* a count: the line is in --errors, and stays there */

struct places {
    uint64_t unknown;    /* lines without a sum, or that are no results */
    struct place *row;   /* [row_count] */
    struct place *stray; /* lines of no record, in the order they came */
    uint64_t stray_count, stray_capacity;
};

static int note_place(struct aq_job *j, const struct aq_job_line *f, void *user,
                      struct aq_err *reterr)
{
    struct places *p = user;
    struct place place = {f->offset, f->count};
    p->unknown += !f->known;
    if (f->row != SIZE_MAX && !p->row[f->row].count) {
        p->row[f->row] = place;
        return 0;
    }
    if (p->stray_count == p->stray_capacity) {
        uint64_t capacity = p->stray_capacity ? 2 * p->stray_capacity : 64;
        struct place *larger = realloc(p->stray, capacity * sizeof(*larger));
        if (!larger)
            return aq_error_memory(reterr, "order the results");
        p->stray = larger;
        p->stray_capacity = capacity;
    }
    p->stray[p->stray_count++] = place;
    return 0;
}

/* Records with a line among the errors: theirs may be missing in FILE.part. */
static int note_error(struct aq_job *j, const struct aq_job_line *f, void *user,
                      struct aq_err *reterr)
{
    struct places *p = user;
    if (f->row != SIZE_MAX && !p->row[f->row].count)
        p->row[f->row].count = AMONG_ERRORS;
    return 0;
}

/* One line at a time, as large as the largest so far. */
struct line_buffer {
    char *bytes;
    size_t capacity;
};

static int copy_place(struct aq_rewritten *to, int from, const struct place *p,
                      struct line_buffer *line, struct aq_err *reterr)
{
    if (line->capacity < p->count) {
        char *larger = realloc(line->bytes, p->count);
        if (!larger)
            return aq_error_memory(reterr, "a line of %" PRIu64 " bytes", p->count);
        line->bytes = larger;
        line->capacity = p->count;
    }
    int rc = aq_file_read_at(from, line->bytes, p->count, p->offset);
    if (rc < 0)
        return aq_error(reterr, -EIO, "read the lines again: %s", strerror(-rc));
    return aq_rewritten_put(to, line->bytes, p->count, reterr);
}

static int copy_places(const struct aq_job *j, const struct place *places, uint64_t count,
                       struct aq_rewritten *to, int from, struct line_buffer *line,
                       struct aq_err *reterr)
{
    int rc = 0;
    for (uint64_t i = 0; i < count && rc == 0; i++) {
        if (i % INTERRUPT_ROWS == 0 && aq_job_interrupted(j))
            return aq_error(reterr, -EINTR,
                            "interrupted while ordering the results; all of them are in '%s' and "
                            "the same command goes on",
                            j->part);
        if (places[i].count != AMONG_ERRORS)
            rc = copy_place(to, from, &places[i], line, reterr);
    }
    return rc;
}

static int copy_in_order(const struct aq_job *j, const struct places *p, struct aq_rewritten *to,
                         int from, struct aq_err *reterr)
{
    struct line_buffer line = {0};
    int rc = copy_places(j, p->row, j->row_count, to, from, &line, reterr);
    if (rc == 0)
        rc = copy_places(j, p->stray, p->stray_count, to, from, &line, reterr);
    free(line.bytes);
    return rc;
}

/* FILE.part goes away after this, so it must hold every record. */
static int check_places(const struct aq_job *j, const struct places *p, struct aq_err *reterr)
{
    for (uint64_t i = 0; i < j->row_count; i++)
        if (!p->row[i].count)
            return aq_error(reterr, -EIO,
                            "order the results: '%s' does not hold every record: the one of input "
                            "line %u is missing",
                            j->part, j->rows[i].line);
    return 0;
}

/* The text of FILE.part: itself, or a temporary file where it is compressed, as lines are read in
 * another order than they are packed in.  A descriptor. */
static int open_text(const struct aq_job *j, struct aq_err *reterr)
{
    enum aq_compression compression = aq_job_compression(j->part);
    int fd = aq_file_open(j->part, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return aq_error(reterr, aq_err_of_io(-fd), "order the results of '%s': %s", j->part,
                        strerror(-fd));
    if (compression == AQ_PLAIN)
        return fd;
    struct aq_members *members = NULL;
    char *folder = aq_file_folder(j->part), bytes[COPY_BYTES];
    int to = folder ? aq_spool_open(folder, reterr) : aq_error_memory(reterr, "order the results");
    int rc = to < 0 ? to : aq_members_open(&members, fd, compression, NULL, NULL, reterr);
    while (rc == 0) {
        ssize_t n = aq_members_read(members, bytes, sizeof(bytes));
        rc = n > 0 ? aq_file_write(to, bytes, (size_t)n) : (int)n;
        if (rc < 0)
            rc = aq_error(reterr, rc, "unpack '%s' to put its lines in order: %s", j->part,
                          strerror(-rc));
        if (n <= 0)
            break;
    }
    aq_members_close(members);
    free(folder);
    aq_file_close(fd);
    if (rc < 0 && to >= 0)
        aq_file_close(to);
    return rc < 0 ? rc : to;
}

/* The lines at their places, into a file beside the output that then takes its name. */
static int write_in_order(struct aq_job *j, void *user, struct aq_err *reterr)
{
    const struct places *places = user;
    struct aq_rewritten to;
    int from = open_text(j, reterr);
    if (from < 0)
        return from;
    int rc = aq_rewritten_open(&to, j->output, j->part, aq_job_compression(j->output), reterr);
    if (rc == 0) {
        rc = copy_in_order(j, places, &to, from, reterr);
        rc = aq_rewritten_close(&to, rc, reterr);
    }
    close(from);
    return rc < 0 && rc != -EINTR ? aq_error_prefix(reterr, "order the results") : rc;
}

/* Where the lines are; -EIO when they are not what was written: they have waited on a disk for as
 * long as the run took.  By now every line has its sum. */
static int find_places(struct aq_job *j, struct places *places, struct aq_job_walk *w,
                       struct aq_err *reterr)
{
    struct aq_sums *sums = NULL;
    uint64_t damaged;
    int rc = aq_sums_open(&sums, reterr);
    if (rc == 0 && aq_file_size(j->sums) >= 0)
        rc = aq_sums_read(sums, j->sums, &damaged, reterr);
    if (rc == 0)
        rc = aq_job_lines(j, j->part, sums, note_place, places, w, reterr);
    if (rc == 0 && j->errors && aq_file_size(j->errors) > 0)
        rc = aq_job_lines(j, j->errors, sums, note_error, places, &(struct aq_job_walk){0}, reterr);
    uint64_t bad = places->unknown + (w->good_end < w->end);
    bool rotten = rc == 0 && bad && (aq_sums_missing(sums) || w->unread.code);
    if (rotten && aq_file_size(j->sums) < 0)
        rc = aq_error(reterr, -EIO, "order the results: %s", w->unread.text);
    else if (rotten)
        rc = aq_error(reterr, -EIO,
                      "order the results: %" PRIu64 " %s of '%s' %s not in '%s', which has others "
                      "instead: the results have changed on the disk; the same command sets aside "
                      "what cannot be vouched for and runs those records again",
                      bad, aq_job_plural(bad, "line", "lines"), j->part,
                      aq_job_plural(bad, "is", "are"), j->sums);
    aq_sums_close(sums);
    return rc;
}

int aq_job_order(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_job_walk w = {0};
    struct places places = {.row = calloc(j->row_count + 1, sizeof(struct place))};
    int rc = places.row ? find_places(j, &places, &w, reterr)
                        : aq_error_memory(reterr, "order the results");
    if (rc == 0)
        rc = check_places(j, &places, reterr);
    if (rc == 0)
        rc = aq_job_patiently(j, write_in_order, &places, w.end, reterr);
    if (rc == 0) {
        unlink(j->part);
        rc = aq_file_sync_folder(j->output, reterr);
    }
    free(places.row);
    free(places.stray);
    return rc;
}
