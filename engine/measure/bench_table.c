/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/bench_table.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/build_info.h"
#include "engine/job/lock.h"
#include "engine/measure/bench.h"
#include "engine/measure/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define STATE_BYTES_MAX (256 * AQ_MIB)

struct run {
    struct aq_options *options;
    char key[24]; /* equal options, equal key */
};

struct aq_bench_table {
    struct aq_table *table;
    struct run *run;  /* [table->row_count] */
    char *state_path; /* NULL: nothing is kept */
    struct aq_lock *lock;
    json_t *done; /* {key: row} */
};

/* Options of the command line, which hold for all rows. */
static json_t *common_options(const struct aq_options *o)
{
    static const char *const of_the_command[] = {"command", "table",  "output", "format",
                                                 "json",    "report", "quiet",  "progress"};
    json_t *object = aq_options_to_json(o);
    for (size_t i = 0; object && i < AQ_ARRAY_LEN(of_the_command); i++)
        json_object_del(object, of_the_command[i]);
    return object;
}

static bool one_run(const struct aq_options *o)
{
    return o->prompt_len_count == 1 && o->gen_len_count == 1 && o->bench_micro_batch_count <= 1;
}

static bool key_of(char key[24], const json_t *options)
{
    char *text = aq_json_dump(options, JSON_COMPACT | JSON_SORT_KEYS);
    XXH64_hash_t hash = text ? XXH3_64bits(text, strlen(text)) : 0;
    const char *version = aq_build_version();
    hash ^= XXH3_64bits(version, strlen(version));
    snprintf(key, 24, "%016llx", (unsigned long long)hash);
    bool known = text;
    free(text);
    return known;
}

static int open_run(struct run *run, const struct aq_table_row *row, const json_t *common,
                    struct aq_err *reterr)
{
    json_t *options = aq_json_copy(row->options);
    if (!options || json_object_update(options, (json_t *)common) < 0 ||
        !key_of(run->key, options)) {
        json_decref(options);
        return aq_error_memory(reterr, "row '%s'", row->name);
    }
    int rc = aq_options_from_json(&run->options, "bench", options, reterr);
    json_decref(options);
    rc = rc < 0 ? rc : aq_options_check(run->options, reterr);
    if (rc == 0 && !one_run(run->options))
        return aq_error(reterr, -EINVAL,
                        "expected one prompt-len, gen-len and micro-batch, found a list");
    return rc;
}

static int open_runs(struct aq_bench_table *t, const struct aq_options *o, struct aq_err *reterr)
{
    json_t *common = common_options(o);
    int rc = 0;
    t->run = calloc(t->table->row_count, sizeof(*t->run));
    if (!t->run || !common)
        rc = aq_error_memory(reterr, "table '%s'", o->table);
    for (uint32_t i = 0; i < t->table->row_count && rc == 0; i++) {
        const struct aq_table_row *row = &t->table->row[i];
        rc = open_run(&t->run[i], row, common, reterr);
        if (rc < 0)
            aq_error_prefix(reterr, "%s:%u: row '%s'", o->table, row->line, row->name);
    }
    json_decref(common);
    return rc;
}

/* The rows that earlier runs kept.  A file that is not ours is nothing to go on from and not
 * replaced. */
static int open_state(struct aq_bench_table *t, const char *output,
                      const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    json_t *document = NULL;
    char *lock_path = aq_file_name(output, ".lock");
    t->state_path = aq_file_name(output, ".rows.json");
    int rc = lock_path && t->state_path ? 0 : aq_error_memory(reterr, "'%s'", output);
    rc = rc < 0 ? rc : aq_lock_open(&t->lock, lock_path, reterr);
    free(lock_path);
    if (rc < 0 || aq_file_size(t->state_path) < 0)
        return rc;
    rc = aq_json_read_file(&document, t->state_path, STATE_BYTES_MAX, reterr);
    json_t *rows = json_object_get(document, "rows");
    if (rc == 0 && !json_is_object(rows))
        rc = aq_error(reterr, -EINVAL, "'%s': expected rows that aquifer bench has kept",
                      t->state_path);
    if (rc == 0) {
        if (json_object_update(t->done, rows) < 0)
            rc = aq_error_memory(reterr, "'%s'", t->state_path);
        aq_hooks_line(hooks, AQUIFER_INFO, "table: %zu rows are kept in '%s'",
                      json_object_size(t->done), t->state_path);
    }
    json_decref(document);
    return rc;
}

int aq_bench_table_open(struct aq_bench_table **ret, const struct aq_options *o,
                        const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    if (o->trace)
        return aq_error(reterr, -EINVAL, "--trace tells of one run: expected no --table beside it");
    struct aq_bench_table *t = calloc(1, sizeof(*t));
    if (!t)
        return aq_error_memory(reterr, "table '%s'", o->table);
    t->done = json_object();
    int rc = t->done ? aq_error_named(reterr, aq_table_read(&t->table, o->table, reterr), "--table")
                     : aq_error_memory(reterr, "table '%s'", o->table);
    rc = rc < 0 ? rc : open_runs(t, o, reterr);
    if (rc == 0 && o->output && !o->dry_run)
        rc = open_state(t, o->output, hooks, reterr);
    if (rc < 0)
        aq_bench_table_close(t);
    else
        *ret = t;
    return rc;
}

void aq_bench_table_close(struct aq_bench_table *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; t->run && i < t->table->row_count; i++)
        aq_options_close(t->run[i].options);
    free(t->run);
    aq_table_close(t->table);
    aq_lock_close(t->lock);
    free(t->state_path);
    json_decref(t->done);
    free(t);
}

uint32_t aq_bench_table_count(const struct aq_bench_table *t)
{
    return t->table->row_count;
}

/* ---- one row ----------------------------------------------------------------------------- */

static void add_published(json_t **r, const struct aq_table_row *row)
{
    json_t *measured = json_object_get(*r, "gen_tok_s");
    aq_json_put(r, "name", json_string(row->name));
    if (row->published > 0)
        aq_json_put(r, "published",
                    json_pack("{s:f, s:s}", "gen_tok_s", row->published, "source", row->source));
    else
        aq_json_put(r, "published", json_null());
    bool both = row->published > 0 && json_is_number(measured);
    aq_json_put(r, "published_ratio",
                both ? aq_json_real(json_number_value(measured) / row->published) : json_null());
    aq_json_put(r, "note", row->note ? json_string(row->note) : json_null());
}

static int run_row(json_t **ret, const struct aq_options *o, const struct aquifer_hooks *hooks,
                   struct aq_err *reterr)
{
    struct aq_bench_row row = {
        .prompt_len = o->prompt_len[0],
        .gen_len = o->gen_len[0],
        .micro_batch = o->bench_micro_batch_count ? o->bench_micro_batch[0] : o->micro_batch,
        .requests = o->requests,
    };
    return aq_bench_run_row(ret, o, &row, hooks, reterr);
}

/* Only this row cannot be: it does not fit, there is no such model, no room in its context. */
static bool others_can(int rc)
{
    int status = aq_err_exit_status(rc);
    return status == 1 || status == 2;
}

static int keep(struct aq_bench_table *t, const char *key, json_t *row, struct aq_err *reterr)
{
    if (!t->state_path)
        return 0;
    if (json_object_set(t->done, key, row) < 0)
        return aq_error_memory(reterr, "'%s'", t->state_path);
    json_t *document =
        json_pack("{s:i, s:s, s:O}", "schema", 1, "table", t->table->name, "rows", t->done);
    char *text = document ? aq_json_dump(document, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    int rc = text ? aq_file_replace(t->state_path, text, strlen(text), true, reterr)
                  : aq_error_memory(reterr, "'%s'", t->state_path);
    free(text);
    json_decref(document);
    return rc;
}

int aq_bench_table_row(json_t **ret, struct aq_bench_table *t, uint32_t i, bool *ret_failed,
                       const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    const struct aq_table_row *row = &t->table->row[i];
    const struct run *run = &t->run[i];
    const json_t *kept = json_object_get(t->done, run->key);
    json_t *r = aq_json_copy(kept);
    struct aq_err err = {0};
    int rc = 0;
    bool failed = false;
    if (kept) {
        aq_hooks_line(hooks, AQUIFER_INFO, "row %u of %u, '%s': done before", i + 1,
                      t->table->row_count, row->name);
    } else {
        aq_hooks_line(hooks, AQUIFER_INFO, "row %u of %u, '%s'", i + 1, t->table->row_count,
                      row->name);
        rc = run_row(&r, run->options, hooks, &err);
        failed = rc < 0 && others_can(rc);
        if (failed) {
            aq_hooks_line(hooks, AQUIFER_WARNING, "row '%s': %s", row->name, err.text);
            r = json_pack("{s:i, s:{s:o, s:i}}", "schema", 1, "error", "message",
                          aq_json_string(err.text), "exit_status", aq_err_exit_status(rc));
        } else if (rc < 0) {
            aq_error(reterr, rc, "row '%s': %s", row->name, err.text);
            return rc;
        } else {
            rc = keep(t, run->key, r, reterr);
        }
    }
    if (rc < 0 && !failed) {
        json_decref(r);
        return rc;
    }
    add_published(&r, row);
    if (!r)
        return aq_error_memory(reterr, "row '%s'", row->name);
    *ret_failed = failed;
    *ret = r;
    return 0;
}
