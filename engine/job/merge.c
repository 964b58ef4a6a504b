/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/merge.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/job/lock.h"
#include "engine/job/manifest_file.h"
#include "engine/job/merge_state.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the output's name ---- */

/* No file of the shard is one of the output's. */
static int check_apart(const struct aq_merge *m, const struct aq_merge_shard *s,
                       struct aq_err *reterr)
{
    const char *theirs[AQ_OUTPUT_FILES];
    int rc = 0;
    aq_output_files_list(&s->files, theirs);
    for (size_t i = 0; rc == 0 && i < AQ_OUTPUT_FILES; i++)
        rc = aq_output_files_apart(&m->files, "shard's file", theirs[i], reterr);
    return rc;
}

/* Nor is the file of its errors, which its manifest names. */
static int check_errors_apart(const struct aq_merge *m, const struct aq_merge_shard *s,
                              struct aq_err *reterr)
{
    return s->errors
               ? aq_output_files_apart(&m->files, "file of a shard's errors", s->errors, reterr)
               : 0;
}

static int check_shards_apart(const struct aq_merge *m, struct aq_err *reterr)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->shard_count; i++) {
        const struct aq_merge_shard *s = &m->shard[i];
        rc = check_apart(m, s, reterr);
        for (uint32_t k = 0; rc == 0 && k < i; k++)
            if (aq_file_same(s->files.output, m->shard[k].files.output))
                rc = aq_error(reterr, -EINVAL, "'%s' is given twice", s->given);
    }
    return rc;
}

static int name_output(struct aq_merge *m, struct aq_err *reterr)
{
    const char *given = m->o->output;
    struct stat st;
    if (!strcmp(given, "-") || (stat(given, &st) == 0 && !S_ISREG(st.st_mode)))
        return aq_error(reterr, -EINVAL, "the output '%s': expected the name of a file", given);
    int rc = aq_output_files_open(&m->files, "output", given, reterr);
    return rc < 0 ? rc
                  : aq_compression_check(aq_compression_of_name(m->files.output), given, reterr);
}

static int check_room(const struct aq_merge *m, struct aq_err *reterr)
{
    const struct aq_output_files *f = &m->files;
    if (m->o->overwrite || !aq_output_files_hold(f))
        return 0;
    return aq_error(reterr, -EINVAL,
                    "the output '%s' exists%s; --overwrite renames it out of the way", f->output,
                    aq_file_size(f->output) < 0 ? ", as results that are not in order yet (.part)"
                                                : "");
}

/* What lies beside a file that is gone speaks of another one, too. */
static int make_room(const struct aq_merge *m, struct aq_err *reterr)
{
    int rc = check_room(m, reterr);
    return rc < 0
               ? rc
               : aq_output_files_set_aside(&m->files, NULL, m->o->overwrite ? "--overwrite: " : "",
                                           m->o->hooks, reterr);
}

/* ---- the shards together ---- */

/* What the files of a shard are, whatever is in them. */
static bool is_of_files(const char *key)
{
    return !strcmp(key, "shard") || !strcmp(key, "compression") || !strcmp(key, "errors_file");
}

/* Keys of either side that differ, as rows of a table in one problem. */
static void compare(struct aq_merge *m, struct aq_merge_shard *s)
{
    const struct aq_merge_shard *first = m->first;
    json_t *all = json_deep_copy(s->values);
    const char *key;
    json_t *unused;
    unsigned forbidden = 0;
    if (!all || json_object_update_missing(all, first->values) < 0)
        m->no_memory = true;
    json_object_foreach(all, key, unused)
    {
        const json_t *a = json_object_get(first->values, key), *b = json_object_get(s->values, key);
        char was[AQ_MANIFEST_VALUE_BYTES], now[AQ_MANIFEST_VALUE_BYTES];
        if (is_of_files(key) || aq_manifest_same(a, b))
            continue;
        aq_manifest_text(was, a);
        aq_manifest_text(now, b);
        if (aq_manifest_may_differ(key) || aq_manifest_allowed(m->o->allow_change, key)) {
            aq_hooks_line(m->o->hooks, AQUIFER_WARNING, "%s is %s in '%s' and %s in '%s'", key, was,
                          first->given, now, s->given);
            continue;
        }
        if (!forbidden++)
            aq_merge_problem(m,
                             "'%s' was made with other values than '%s'; they are not of one "
                             "run:",
                             s->given, first->given);
        aq_merge_problem(m, "%-28s | %-*s | %s", key, AQ_MANIFEST_VALUE_BYTES - 1, was, now);
    }
    s->foreign = forbidden > 0;
    json_decref(all);
}

/* Whether it is a shard of as many as the first, of the same records. */
static void compare_heads(struct aq_merge *m, const struct aq_merge_shard *s)
{
    const struct aq_merge_shard *first = m->first;
    if (s->head.shard.count != first->head.shard.count)
        aq_merge_problem(m, "'%s' is one of %" PRIu32 " shards, '%s' one of %" PRIu32, s->given,
                         s->head.shard.count, first->given, first->head.shard.count);
    if (s->head.total != first->head.total)
        aq_merge_problem(m,
                         "'%s' is of an input with %" PRIu64 " records, '%s' of one with %" PRIu64
                         " (--limit counts before records are divided)",
                         s->given, s->head.total, first->given, first->head.total);
}

static void say_numbers(struct aq_merge *m, const char *what, const struct aq_buf *numbers,
                        uint64_t found)
{
    if (found)
        aq_merge_problem(m, "%s %s of %" PRIu32 " %s", found == 1 ? "shard" : "shards",
                         numbers->data ? numbers->data : "?", m->first->head.shard.count, what);
}

/* All of 0 to N - 1, each once. */
static int check_numbers(struct aq_merge *m, struct aq_err *reterr)
{
    enum { SHOWN = 50 };
    uint32_t count = m->first->head.shard.count;
    uint8_t *times = calloc(count, 1);
    if (!times)
        return aq_error_memory(reterr, "%" PRIu32 " shards", count);
    for (uint32_t i = 0; i < m->shard_count; i++) {
        struct aq_shard s = m->shard[i].head.shard; /* known even where the manifest is not */
        if (s.count != count)
            continue;
        m->shard[i].foreign |= times[s.index] > 0;
        times[s.index] = times[s.index] ? 2 : 1;
    }
    for (int wrong = 0; wrong <= 2; wrong += 2) {
        struct aq_buf numbers = {0};
        uint64_t found = 0;
        for (uint32_t i = 0; i < count; i++)
            if (times[i] == wrong && found++ < SHOWN)
                aq_buf_printf(&numbers, "%s%" PRIu32, numbers.count ? ", " : "", i);
        if (found > SHOWN)
            aq_buf_printf(&numbers, ", ... (%" PRIu64 ")", found);
        const char *one = wrong ? "is given more than once" : "is missing";
        const char *more = wrong ? "are given more than once" : "are missing";
        say_numbers(m, found == 1 ? one : more, &numbers, found);
        aq_buf_close(&numbers);
    }
    free(times);
    return 0;
}

static int open_shards(struct aq_merge *m, struct aq_err *reterr)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->shard_count; i++)
        rc = aq_merge_shard_name(m, i, reterr);
    if (rc == 0) /* else the output's lock is taken for that of a shard's run */
        rc = check_shards_apart(m, reterr);
    for (uint32_t i = 0; rc == 0 && i < m->shard_count; i++) {
        rc = aq_merge_shard_open(m, i, reterr);
        if (rc == 0)
            rc = check_errors_apart(m, &m->shard[i], reterr);
        if (!m->first && m->shard[i].values)
            m->first = &m->shard[i];
    }
    return rc;
}

/* Whether they are shards of one input, divided in the same way; else their records cannot be put
 * side by side. */
static bool belong_together(struct aq_merge *m)
{
    size_t before = aq_merge_problems(m);
    for (uint32_t i = 0; i < m->shard_count; i++)
        if (m->shard[i].values && &m->shard[i] != m->first)
            compare_heads(m, &m->shard[i]);
    return aq_merge_problems(m) == before;
}

static int read_shards(struct aq_merge *m, struct aq_err *reterr)
{
    m->total = m->first->head.total;
    m->line = calloc(m->total + 1, sizeof(*m->line));
    m->taken = calloc(m->total / 8 + 1, 1);
    if (!m->line || !m->taken)
        return aq_error_memory(reterr, "%" PRIu64 " records", m->total);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->shard_count; i++)
        if (m->shard[i].values && !m->shard[i].foreign)
            rc = aq_merge_shard_read(m, i, reterr);
    return rc;
}

/* Everything that is wrong, so that one attempt tells all of it. */
static int check(struct aq_merge *m, struct aq_err *reterr)
{
    int rc = open_shards(m, reterr);
    if (rc == 0 && m->first && belong_together(m)) {
        for (uint32_t i = 0; i < m->shard_count; i++)
            if (m->shard[i].values && &m->shard[i] != m->first)
                compare(m, &m->shard[i]);
        rc = check_numbers(m, reterr);
        rc = rc == 0 ? read_shards(m, reterr) : rc;
    }
    if (rc == 0 && !aq_merge_problems(m) && m->line_count != m->total)
        aq_merge_problem(m, "the shards' records are %" PRIu64 ", the input's %" PRIu64,
                         m->line_count, m->total);
    if (rc == 0 && m->no_memory)
        rc = aq_error_memory(reterr, "merge");
    return rc;
}

/* ---- the whole ---- */

static int judged(const struct aq_merge *m, struct aq_err *reterr)
{
    return aq_merge_problems(m)
               ? aq_error(reterr, -EINVAL,
                          "'%s' was not written: the shards do not make up one run (see above)",
                          m->files.output)
               : 0;
}

static int merge(struct aq_merge *m, struct aq_err *reterr)
{
    int rc = check(m, reterr);
    rc = rc == 0 ? judged(m, reterr) : rc;
    rc = rc == 0 ? make_room(m, reterr) : rc;
    if (rc < 0)
        return rc;
    m->result.records = m->line_count;
    if (m->result.left_out)
        aq_hooks_line(m->o->hooks, AQUIFER_WARNING,
                      "%" PRIu64 " lines of records that the input no longer has are left out",
                      m->result.left_out);
    return aq_merge_write(m, reterr);
}

/* One writer of the output, as for a run. */
static int merge_locked(struct aq_merge *m, struct aq_err *reterr)
{
    struct aq_lock *lock = NULL;
    int rc = name_output(m, reterr);
    if (rc == 0)
        rc = aq_lock_open(&lock, m->files.lock, reterr);
    if (rc == 0)
        rc = check_room(m, reterr); /* before hours of reading */
    if (rc == 0)
        rc = merge(m, reterr);
    aq_lock_close(lock);
    return rc;
}

int aq_merge(struct aq_merge_result *ret, const struct aq_merge_opts *opts, struct aq_err *reterr)
{
    assert(ret && opts->shard_count > 0);
    struct aq_merge m = {.o = opts, .shard_count = opts->shard_count};
    m.shard = calloc(m.shard_count, sizeof(*m.shard));
    m.result.problems = json_array();
    int rc =
        m.shard && m.result.problems ? merge_locked(&m, reterr) : aq_error_memory(reterr, "merge");
    for (uint32_t i = 0; m.shard && i < m.shard_count; i++)
        aq_merge_shard_close(&m.shard[i]);
    free(m.shard);
    free(m.line);
    free(m.taken);
    aq_output_files_close(&m.files);
    *ret = m.result;
    return rc;
}
