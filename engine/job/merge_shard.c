/* SPDX-License-Identifier: Apache-2.0
 * One shard of a merge: what its manifest and FILE.records say, and whether its results are just
 * what these promise. */
#include "engine/job/merge_state.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/job/line_walk.h"
#include "engine/job/lock.h"
#include "engine/job/manifest_file.h"
#include "engine/job/sums.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_LINES = 8 };

/* ---- what it says of itself ---- */

int aq_merge_shard_name(struct aq_merge *m, uint32_t at, struct aq_err *reterr)
{
    struct aq_merge_shard *s = &m->shard[at];
    s->given = m->o->shards[at];
    int rc = aq_output_files_open(&s->files, "shard", s->given, reterr);
    if (rc < 0)
        return rc;
    struct aq_merge_source *results = &s->source[AQ_MERGE_RESULTS];
    bool only_part = aq_file_size(s->files.output) <= 0 && aq_file_size(s->files.part) > 0;
    results->path = only_part ? s->files.part : s->files.output;
    results->compression = aq_compression_of_name(s->files.output);
    return aq_compression_check(results->compression, s->given, reterr);
}

/* The head of FILE.records, and how many records it lists.  *ret: it can be believed. */
static int read_head(bool *ret, struct aq_merge *m, struct aq_merge_shard *s, struct aq_err *reterr)
{
    struct aq_roster *roster = NULL;
    struct aq_err err;
    int rc = aq_roster_open(&roster, s->files.roster, &err);
    *ret = rc == 0;
    if (rc == -ENOMEM)
        return aq_error(reterr, rc, "%s", err.text);
    if (rc == -ENOENT)
        aq_merge_problem(m,
                         "'%s' is not of a shard: '%s' does not exist, which a run with --shard "
                         "writes",
                         s->given, s->files.roster);
    else if (rc < 0)
        aq_merge_problem(m, "'%s': %s; the shard's command makes it anew", s->given, err.text);
    if (rc == 0) {
        s->head = *aq_roster_head(roster);
        s->count = aq_roster_count(roster);
    }
    aq_roster_close(roster);
    return 0;
}

/* Where its errors are, by its manifest: a name beside FILE, or from the root on. */
static int name_errors(struct aq_merge_shard *s, struct aq_err *reterr)
{
    const char *name = json_string_value(json_object_get(s->values, "errors_file"));
    struct aq_merge_source *errors = &s->source[AQ_MERGE_ERRORS];
    struct aq_buf path = {0};
    if (!name)
        return 0;
    char *folder = aq_file_folder(s->files.output);
    aq_buf_printf(&path, "%s%s%s",
                  name[0] == '/' ? ""
                  : folder       ? folder
                                 : "",
                  name[0] == '/' ? "" : "/", name);
    free(folder);
    s->errors = aq_buf_take(&path);
    if (!folder || !s->errors)
        return aq_error_memory(reterr, "'%s'", s->given);
    if (aq_file_size(s->errors) < 0) /* which matters only where it had lines: see judge() */
        return 0;
    errors->path = s->errors;
    errors->compression = aq_compression_of_name(s->errors);
    return aq_compression_check(errors->compression, s->errors, reterr);
}

/* A run that is cut off when it begins may have written its manifest and not yet its list, which is
 * then of the input before. */
static void check_input(struct aq_merge *m, const struct aq_merge_shard *s)
{
    const char *hash = json_string_value(json_object_get(s->values, "input_hash"));
    if (s->values && (!hash || strtoull(hash, NULL, 16) != s->head.input_hash))
        aq_merge_problem(m,
                         "'%s' is not of the input that '%s' is of; the shard's command makes both "
                         "anew",
                         s->files.roster, s->files.manifest);
}

int aq_merge_shard_open(struct aq_merge *m, uint32_t at, struct aq_err *reterr)
{
    struct aq_merge_shard *s = &m->shard[at];
    struct aq_err err;
    bool listed;
    if (aq_file_size(s->source[AQ_MERGE_RESULTS].path) < 0) {
        aq_merge_problem(m, "'%s' does not exist", s->given);
        return 0;
    }
    int rc = read_head(&listed, m, s, reterr);
    if (rc < 0 || !listed)
        return rc;
    rc = aq_lock_check(s->files.lock, &err);
    if (rc < 0) {
        aq_merge_problem(m, "'%s': its run is not over: %s", s->given, err.text);
        return 0;
    }
    rc = aq_manifest_read(&s->values, &s->sums_promised, s->files.manifest, &err);
    if (rc == -ENOMEM)
        return aq_error(reterr, rc, "%s", err.text);
    if (rc < 0)
        aq_merge_problem(m,
                         "'%s': %s; with --allow-change manifest the shard's command makes it anew",
                         s->given, err.text);
    check_input(m, s);
    return name_errors(s, reterr);
}

void aq_merge_shard_close(struct aq_merge_shard *s)
{
    aq_output_files_close(&s->files);
    free(s->errors);
    json_decref(s->values);
}

/* ---- its results ---- */

struct reading {
    struct aq_merge *m;
    uint32_t at, which; /* the shard, and its file that is read */
    struct aq_roster *roster;
    struct aq_sums *sums;
    uint64_t sums_damaged; /* lines of FILE.sums */
    uint64_t *seen;        /* [count of the roster]: its line, as place_of; 0: none */
    /* Lines that must not be there, by what is wrong with them; of the first of each place_of. */
    uint64_t strays, first_stray, doubles, double_first, double_second;
    uint64_t unknown, first_unknown; /* results without a sum */
    bool torn;
};

static uint64_t place_of(const struct reading *r, const struct aq_job_line *l)
{
    return AQ_MERGE_SOURCES * l->number + r->which;
}

static uint64_t number_at(uint64_t place)
{
    return place / AQ_MERGE_SOURCES;
}

static const char *path_at(const struct reading *r, uint64_t place)
{
    return r->m->shard[r->at].source[place % AQ_MERGE_SOURCES].path;
}

static uint64_t find(const void *user, const struct aq_result_mark *mark)
{
    return aq_roster_find(((const struct reading *)user)->roster, mark);
}

static bool interrupted(const void *user)
{
    return aq_merge_interrupted(((const struct reading *)user)->m);
}

static int see_line(void *user, const struct aq_job_line *l, struct aq_err *reterr)
{
    struct reading *r = user;
    struct aq_merge *m = r->m;
    uint64_t here = place_of(r, l);
    if (l->unread)
        return 0; /* the walk keeps the first of them */
    if (!l->known && !r->unknown++)
        r->first_unknown = here;
    if (l->row == SIZE_MAX) {
        r->first_stray = r->strays++ ? r->first_stray : here;
        return 0;
    }
    if (r->seen[l->row]) {
        r->double_first = r->doubles ? r->double_first : r->seen[l->row];
        r->double_second = r->doubles++ ? r->double_second : here;
        return 0;
    }
    r->seen[l->row] = here;
    uint32_t index = aq_roster_record(r->roster, l->row)->index;
    uint64_t at = m->o->ordered ? index : m->line_count;
    if (at < m->total) /* more lines than records: lists that overlap, which is a problem */
        m->line[at] = (struct aq_merge_line){l->offset, l->count, l->sum,
                                             AQ_MERGE_SOURCES * r->at + r->which};
    m->line_count++;
    m->result.errors += l->error;
    return 0;
}

/* Records that another shard has, too: every hash of a record names one shard, so this says that
 * a list is of something else than it says. */
static void take_records(struct reading *r)
{
    struct aq_merge *m = r->m;
    uint64_t twice = 0;
    for (uint64_t i = 0; i < aq_roster_count(r->roster); i++) {
        uint32_t index = aq_roster_record(r->roster, i)->index;
        twice += m->taken[index / 8] >> index % 8 & 1;
        m->taken[index / 8] |= (uint8_t)(1u << index % 8);
    }
    if (twice)
        aq_merge_problem(m, "'%s' lists %" PRIu64 " %s that another shard has, too",
                         m->shard[r->at].given, twice, twice == 1 ? "record" : "records");
}

static void say_missing(const struct reading *r, uint64_t missing)
{
    const struct aq_merge_shard *s = &r->m->shard[r->at];
    struct aq_buf lines = {0};
    char shard[AQ_SHARD_TEXT_MAX];
    uint64_t shown = 0;
    for (uint64_t i = 0; i < s->count && shown < SHOWN_LINES; i++)
        if (!r->seen[i])
            aq_buf_printf(&lines, "%s%" PRIu32, shown++ ? ", " : "",
                          aq_roster_record(r->roster, i)->line);
    aq_merge_problem(r->m,
                     "'%s', shard %s, is not complete: %" PRIu64 " of %" PRIu64
                     " records have no result (input lines %s%s); its command goes on with them",
                     s->given, aq_shard_text(shard, s->head.shard), missing, s->count,
                     lines.data ? lines.data : "?", missing > shown ? ", ..." : "");
    aq_buf_close(&lines);
}

/* Lines without a sum.  Where there are sums without a line they are what a resumed run calls
 * damaged (engine/job/resume.c); else nothing says that they are as they were written, and the
 * merged file's sums would vouch for them all the same. */
static void judge_unknown(const struct reading *r)
{
    const struct aq_merge_shard *s = &r->m->shard[r->at];
    if (r->unknown > aq_sums_illegible(r->sums) && aq_sums_missing(r->sums))
        aq_merge_problem(r->m,
                         "'%s': %" PRIu64 " %s not in '%s', which has others instead (the first is "
                         "line %" PRIu64
                         " of '%s'): damaged on the disk, or edited; the shard's own "
                         "command runs their records again",
                         s->given, r->unknown, r->unknown == 1 ? "line is" : "lines are",
                         s->files.sums, number_at(r->first_unknown), path_at(r, r->first_unknown));
    else if (r->unknown && s->sums_promised)
        aq_merge_problem(r->m,
                         "'%s': nothing says that %" PRIu64 " %s as written (the first is line "
                         "%" PRIu64
                         " of '%s'): '%s' %s; the shard's own command takes lines by their form "
                         "and makes it anew",
                         s->given, r->unknown, r->unknown == 1 ? "line is" : "lines are",
                         number_at(r->first_unknown), path_at(r, r->first_unknown), s->files.sums,
                         aq_file_size(s->files.sums) < 0 ? "does not exist"
                         : r->sums_damaged               ? "is damaged"
                                                         : "has no sum of them");
}

static void judge_lines(struct reading *r)
{
    struct aq_merge *m = r->m;
    const struct aq_merge_shard *s = &m->shard[r->at];
    if (r->doubles)
        aq_merge_problem(m,
                         "'%s': %" PRIu64 " %s of a record that has one already (line %" PRIu64
                         " of '%s' and line %" PRIu64 " of '%s')",
                         s->given, r->doubles, r->doubles == 1 ? "line is" : "lines are",
                         number_at(r->double_first), path_at(r, r->double_first),
                         number_at(r->double_second), path_at(r, r->double_second));
    if (r->strays && aq_manifest_allowed(m->o->allow_change, "input"))
        m->result.left_out += r->strays;
    else if (r->strays)
        aq_merge_problem(m,
                         "'%s': %" PRIu64 " %s to no record of this shard (the first is line "
                         "%" PRIu64
                         " of '%s'); --allow-change input leaves out what an earlier input had",
                         s->given, r->strays, r->strays == 1 ? "line belongs" : "lines belong",
                         number_at(r->first_stray), path_at(r, r->first_stray));
}

static void judge(struct reading *r)
{
    const struct aq_merge_shard *s = &r->m->shard[r->at];
    uint64_t missing = 0;
    for (uint64_t i = 0; i < s->count; i++)
        missing += !r->seen[i];
    if (missing && s->errors && !s->source[AQ_MERGE_ERRORS].path)
        aq_merge_problem(r->m,
                         "'%s' does not exist, where '%s' has its errors (--errors); put it "
                         "there, or the shard's command runs their records again",
                         s->errors, s->given);
    if (missing)
        say_missing(r, missing);
    if (r->torn && !missing)
        aq_merge_problem(r->m, "'%s': the last line is torn; the shard's own command mends it",
                         s->given);
    judge_lines(r);
    judge_unknown(r);
}

/* The lines of one of its files. */
static int read_source(struct reading *r, uint32_t which, struct aq_err *reterr)
{
    const struct aq_merge_source *source = &r->m->shard[r->at].source[which];
    struct aq_job_walk walk;
    if (!source->path)
        return 0;
    r->which = which;
    int rc = aq_line_walk(&(struct aq_line_walk){.path = source->path,
                                                 .compression = source->compression,
                                                 .sums = r->sums,
                                                 .find = find,
                                                 .line = see_line,
                                                 .interrupted = interrupted,
                                                 .user = r},
                          &walk, reterr);
    if (rc < 0)
        return rc;
    if (walk.unread.code)
        aq_merge_problem(r->m,
                         "%s.  The shard's own command sets damaged lines aside and runs "
                         "their records again",
                         walk.unread.text);
    r->torn |= walk.good_end < walk.end;
    return 0;
}

static int read_lines(struct reading *r, struct aq_err *reterr)
{
    const struct aq_merge_shard *s = &r->m->shard[r->at];
    r->seen = calloc(s->count + 1, sizeof(*r->seen));
    int rc = r->seen ? aq_sums_open(&r->sums, reterr) : aq_error_memory(reterr, "'%s'", s->given);
    if (rc == 0 && aq_file_size(s->files.sums) >= 0)
        rc = aq_sums_read(r->sums, s->files.sums, &r->sums_damaged, reterr);
    for (uint32_t i = 0; rc == 0 && i < AQ_MERGE_SOURCES; i++)
        rc = read_source(r, i, reterr);
    if (rc == 0)
        judge(r);
    return rc;
}

int aq_merge_shard_read(struct aq_merge *m, uint32_t at, struct aq_err *reterr)
{
    struct aq_merge_shard *s = &m->shard[at];
    struct reading r = {.m = m, .at = at};
    int rc = aq_roster_open(&r.roster, s->files.roster, reterr);
    if (rc == 0 && aq_roster_count(r.roster) != s->count)
        rc = aq_error(reterr, -EIO, "'%s' has changed while it was read: its run is not over",
                      s->files.roster);
    if (rc == 0) {
        take_records(&r);
        rc = read_lines(&r, reterr);
    }
    aq_roster_close(r.roster);
    aq_sums_close(r.sums);
    free(r.seen);
    return rc;
}
