/* SPDX-License-Identifier: Apache-2.0
 * What an existing output holds: its lines are matched with the records of the input by id and key,
 * a torn end is repaired, and error records can be taken out to be tried again. */
#include "engine/job.h"

#include "engine/files.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    OLD_NAMES_MAX = 10000,
    INTERRUPT_ROWS = 256, /* look for an interruption once in so many copied lines */
};

/* ---- reading result files ---- */

/* A line of a result file; row SIZE_MAX where it belongs to no record of this input. */
struct found {
    const char *bytes; /* newline included where it has one */
    size_t count;
    uint64_t offset, row;
    bool error;
};

/* Sees every whole line in order; an error ends the walk. */
typedef int found_fn(struct aq_job *j, const struct found *f, void *user, struct aq_err *reterr);

struct walk {
    uint64_t good_end;    /* offset behind the last whole line */
    uint64_t end;         /* size of the file */
    bool newline_missing; /* the last whole line lacks it */
};

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
                     struct found *f, bool *ret_torn, struct aq_err *reterr)
{
    struct aq_result_mark mark;
    struct aq_err err;
    size_t bytes = f->count - (f->count && f->bytes[f->count - 1] == '\n');
    *ret_torn = false;
    if (aq_result_read(&mark, f->bytes, bytes, &err) < 0) {
        *ret_torn = last;
        return last ? 0
                    : aq_error(reterr, -EINVAL,
                               "'%s' line %" PRIu64 ": %s; --overwrite renames the file out of the "
                               "way",
                               path, number, err.text);
    }
    f->row = row_of(j, &mark);
    f->error = mark.error;
    aq_result_mark_close(&mark);
    return 0;
}

static int walk_stream(struct aq_job *j, const char *path, FILE *file, found_fn *fn, void *user,
                       struct walk *w, struct aq_err *reterr)
{
    char *line = NULL;
    size_t capacity = 0;
    int rc = 0;
    for (uint64_t number = 1; rc == 0; number++) {
        ssize_t n = getline(&line, &capacity, file);
        if (n < 0)
            break;
        struct found f = {.bytes = line, .count = (size_t)n, .offset = w->good_end};
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

static int walk_file(struct aq_job *j, const char *path, found_fn *fn, void *user, struct walk *w,
                     struct aq_err *reterr)
{
    *w = (struct walk){0};
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

/* ---- marking what is done ---- */

static int mark_done(struct aq_job *j, const struct found *f, void *user, struct aq_err *reterr)
{
    if (f->row == SIZE_MAX || j->rows[f->row].done) {
        j->stray_lines++;
        return 0;
    }
    j->rows[f->row].done = true;
    j->done_before++;
    j->errors_before += f->error;
    return 0;
}

/* Cuts a torn line off, or ends a whole one that only lacks its newline. */
static int repair(struct aq_job *j, const char *path, const struct walk *w, struct aq_err *reterr)
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

static int scan(struct aq_job *j, const char *path, bool dry, struct aq_err *reterr)
{
    struct walk w;
    int rc = walk_file(j, path, mark_done, NULL, &w, reterr);
    return rc == 0 && !dry ? repair(j, path, &w, reterr) : rc;
}

/* ---- --retry-errors ---- */

struct copy {
    FILE *to;
    uint64_t dropped;
};

static int put_bytes(FILE *to, const struct found *f, struct aq_err *reterr)
{
    bool good = fwrite(f->bytes, 1, f->count, to) == f->count;
    if (good && f->bytes[f->count - 1] != '\n')
        good = fputc('\n', to) != EOF;
    return good ? 0 : aq_error(reterr, -errno, "write a copy of the results: %s", strerror(errno));
}

static int copy_good(struct aq_job *j, const struct found *f, void *user, struct aq_err *reterr)
{
    struct copy *c = user;
    if (f->error) {
        c->dropped++;
        return 0;
    }
    return put_bytes(c->to, f, reterr);
}

/* Syncs, closes and gives the file its name; removes it when anything failed before. */
static int publish(FILE *file, const char *from, const char *to, int rc, struct aq_err *reterr)
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

static int drop_errors(struct aq_job *j, const char *path, struct aq_err *reterr)
{
    char *beside = aq_file_name(path, ".tmp");
    struct copy c = {.to = beside ? fopen(beside, "we") : NULL};
    int rc = c.to ? 0
                  : aq_error(reterr, beside ? -errno : -ENOMEM, "write beside '%s': %s", path,
                             strerror(errno));
    if (rc == 0) {
        struct walk w;
        rc = publish(c.to, beside, path, walk_file(j, path, copy_good, &c, &w, reterr), reterr);
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
    int rc = to ? 0 : aq_error(reterr, -ENOMEM, "rename '%s'", path);
    if (rc == 0 && rename(path, to) < 0)
        rc = aq_error(reterr, -errno, "rename '%s' to '%s': %s", path, to, strerror(errno));
    if (rc == 0)
        aq_job_note(j, AQUIFER_INFO, "--overwrite: '%s' is now '%s'", path, to);
    free(to);
    return rc;
}

/* Renames results and manifest to the first ".old.N" that is free for all of them. */
static int set_aside(struct aq_job *j, const char *part, struct aq_err *reterr)
{
    const char *const paths[] = {j->output, part, j->manifest};
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

/* ---- the whole ---- */

static int move(const char *from, const char *to, struct aq_err *reterr)
{
    if (rename(from, to) < 0)
        return aq_error(reterr, -EIO, "rename '%s' to '%s': %s", from, to, strerror(errno));
    aq_file_sync_folder(to);
    return 0;
}

static bool all_done(const struct aq_job *j)
{
    return j->done_before == j->row_count;
}

/* Where lines of earlier runs lie and where new ones go: FILE, or FILE.part until all are there
 * when they are to be in order.  A run may also change from one way to the other. */
static int settle(struct aq_job *j, const char *part, bool have_file, bool have_part, bool dry,
                  struct aq_err *reterr)
{
    if (dry || (have_file && all_done(j) && !have_part))
        return 0;
    if (have_file && have_part) {
        if (!all_done(j))
            return aq_error(reterr, -EINVAL,
                            "both '%s' and '%s' hold results and the first is not complete; move "
                            "one of them away",
                            j->output, part);
        unlink(part); /* it was sorted into the whole file before the last run was cut off */
        return 0;
    }
    if (j->o->ordered && have_file)
        return move(j->output, part, reterr);
    if (!j->o->ordered && have_part)
        return move(part, j->output, reterr);
    return 0;
}

static int resume_from(struct aq_job *j, const char *part, bool dry, struct aq_err *reterr)
{
    bool have_file = aq_file_size(j->output) > 0, have_part = aq_file_size(part) > 0;
    if (!have_file && !have_part)
        return 0;
    int rc = aq_job_manifest_check(j, reterr);
    if (rc == 0 && j->o->retry_errors && !dry && have_file)
        rc = drop_errors(j, j->output, reterr);
    if (rc == 0 && j->o->retry_errors && !dry && have_part)
        rc = drop_errors(j, part, reterr);
    if (rc == 0 && have_file)
        rc = scan(j, j->output, dry, reterr);
    if (rc == 0 && have_part && !(have_file && all_done(j)))
        rc = have_file ? 0 : scan(j, part, dry, reterr);
    if (rc == 0 && !dry && aq_file_size(part) == 0)
        unlink(part); /* left by a run that wrote nothing */
    if (rc == 0)
        rc = settle(j, part, have_file, have_part, dry, reterr);
    if (rc < 0)
        return rc;
    aq_job_note(j, AQUIFER_INFO,
                "resume: '%s' holds %" PRIu64 " of %" PRIu64 " records (%" PRIu64 " error records)",
                j->output, j->done_before, j->row_count, j->errors_before);
    if (j->stray_lines)
        aq_job_note(j, AQUIFER_WARNING,
                    "resume: %" PRIu64 " lines belong to no record of this input (id or content "
                    "differ); they stay",
                    j->stray_lines);
    return 0;
}

int aq_job_resume(struct aq_job *j, bool dry, struct aq_err *reterr)
{
    assert(j->output);
    char *part = aq_file_name(j->output, ".part");
    if (!part)
        return aq_error(reterr, -ENOMEM, "'%s': out of memory", j->output);
    int rc = 0;
    if (j->o->overwrite && !dry)
        rc = set_aside(j, part, reterr);
    else if (!j->o->overwrite)
        rc = resume_from(j, part, dry, reterr);
    free(part);
    return rc;
}

/* ---- --ordered ---- */

struct place {
    uint64_t offset, count; /* count 0: no line */
};

struct places {
    struct place *row;   /* [row_count] */
    struct place *stray; /* lines of no record, in the order they came */
    uint64_t stray_count, stray_capacity;
};

static int note_place(struct aq_job *j, const struct found *f, void *user, struct aq_err *reterr)
{
    struct places *p = user;
    struct place place = {f->offset, f->count};
    if (f->row != SIZE_MAX && !p->row[f->row].count) {
        p->row[f->row] = place;
        return 0;
    }
    if (p->stray_count == p->stray_capacity) {
        uint64_t capacity = p->stray_capacity ? 2 * p->stray_capacity : 64;
        struct place *larger = realloc(p->stray, capacity * sizeof(*larger));
        if (!larger)
            return aq_error(reterr, -ENOMEM, "order the results: out of memory");
        p->stray = larger;
        p->stray_capacity = capacity;
    }
    p->stray[p->stray_count++] = place;
    return 0;
}

/* One line at a time, as large as the largest so far. */
struct line_buffer {
    char *bytes;
    size_t capacity;
};

static int copy_place(FILE *to, FILE *from, const struct place *p, struct line_buffer *line,
                      struct aq_err *reterr)
{
    if (line->capacity < p->count) {
        char *larger = realloc(line->bytes, p->count);
        if (!larger)
            return aq_error(reterr, -ENOMEM, "order the results: out of memory");
        line->bytes = larger;
        line->capacity = p->count;
    }
    if (fseeko(from, (off_t)p->offset, SEEK_SET) < 0 ||
        fread(line->bytes, 1, p->count, from) != p->count)
        return aq_error(reterr, -EIO, "order the results: read: %s", strerror(errno));
    if (fwrite(line->bytes, 1, p->count, to) != p->count)
        return aq_error(reterr, -errno, "order the results: write: %s", strerror(errno));
    return 0;
}

static int copy_places(const struct aq_job *j, const struct place *places, uint64_t count, FILE *to,
                       FILE *from, struct line_buffer *line, struct aq_err *reterr)
{
    int rc = 0;
    for (uint64_t i = 0; i < count && rc == 0; i++) {
        if (i % INTERRUPT_ROWS == 0 && aq_job_interrupted(j))
            return aq_error(reterr, -EINTR,
                            "interrupted while ordering the results; all of them are in '%s' and "
                            "the same command goes on",
                            j->part);
        rc = copy_place(to, from, &places[i], line, reterr);
    }
    return rc;
}

static int copy_in_order(const struct aq_job *j, const struct places *p, FILE *to, FILE *from,
                         struct aq_err *reterr)
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

int aq_job_order(struct aq_job *j, struct aq_err *reterr)
{
    struct walk w;
    struct places places = {.row = calloc(j->row_count + 1, sizeof(struct place))};
    char *beside = aq_file_name(j->output, ".tmp");
    int rc = places.row && beside ? walk_file(j, j->part, note_place, &places, &w, reterr)
                                  : aq_error(reterr, -ENOMEM, "order the results: out of memory");
    if (rc == 0)
        rc = check_places(j, &places, reterr);
    FILE *from = rc == 0 ? fopen(j->part, "re") : NULL, *to = from ? fopen(beside, "we") : NULL;
    if (rc == 0 && !to)
        rc = aq_error(reterr, -errno, "order the results into '%s': %s", beside, strerror(errno));
    if (rc == 0)
        rc = publish(to, beside, j->output, copy_in_order(j, &places, to, from, reterr), reterr);
    if (rc == 0) {
        unlink(j->part);
        aq_file_sync_folder(j->output);
    }
    if (from)
        fclose(from);
    free(places.row);
    free(places.stray);
    free(beside);
    return rc;
}
