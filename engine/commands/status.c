/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/status.c - `aquifer status FILE...`: what runs say about themselves in
 * FILE.status.json, one in full or several added up. */
#include "engine/commands/commands.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATUS_BYTES_MAX = 1 << 20 };

/* FILE.status.json, or FILE itself when it is one; beside what a link leads to, as `generate` does.
 * Free it. */
static char *status_path(const char *file)
{
    static const char suffix[] = ".status.json";
    size_t n = strlen(file), s = sizeof(suffix) - 1;
    if (n >= s && strcmp(file + n - s, suffix) == 0)
        return strdup(file);
    char *name = aq_file_resolve(file), *path = name ? aq_file_name(name, suffix) : NULL;
    free(name);
    return path;
}

/* The units of a status file's numbers, by their names there. */
enum unit { UNIT_NONE, UNIT_SECONDS, UNIT_BYTES, UNIT_TOK_S, UNIT_GB_S };

struct field {
    const char *key;
    enum unit unit;
    const char *title; /* of its column; NULL: not in a table */
};

static const struct field fields[] = {
    {"gen_tok_s", UNIT_TOK_S, NULL},
    {"eta_s", UNIT_SECONDS, NULL},
    {"pass_s", UNIT_SECONDS, NULL},
    {"elapsed_s", UNIT_SECONDS, NULL},
};
static const struct field lane_columns[] = {
    {"busy_s", UNIT_SECONDS, "busy"},
    {"bytes", UNIT_BYTES, "moved"},
    {"gb_s", UNIT_GB_S, "rate"},
    {"ceiling_gb_s", UNIT_GB_S, "ceiling"},
};
static const struct field memory_columns[] = {
    {"budget", UNIT_BYTES, "budget"},
    {"ledger", UNIT_BYTES, "ledger"},
    {"measured", UNIT_BYTES, "measured"},
};
enum { NAME_WIDTH = 12, ROW_WIDTH = 16, COLUMN_WIDTH = 11, COLUMNS_MAX = 8, TEXT_BYTES = 1024 };

static enum unit unit_of(const char *key)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(fields); i++)
        if (!strcmp(fields[i].key, key))
            return fields[i].unit;
    return UNIT_NONE;
}

static void number_text(char *text, size_t bytes, enum unit unit, const json_t *value)
{
    double x = json_number_value(value);
    char amount[AQ_SIZE_TEXT_MAX];
    if (unit == UNIT_SECONDS && x >= 0)
        snprintf(text, bytes, "%s", aq_format_duration(amount, x));
    else if (unit == UNIT_BYTES && x >= 0 && x < 0x1p64)
        snprintf(text, bytes, "%s", aq_format_size(amount, (uint64_t)x));
    else if (unit == UNIT_TOK_S)
        snprintf(text, bytes, "%.1f tok/s", x);
    else if (unit == UNIT_GB_S)
        snprintf(text, bytes, "%.3g GB/s", x);
    else if (json_is_integer(value))
        snprintf(text, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else
        snprintf(text, bytes, "%g", x);
}

/* A value in words; an unknown one, perhaps of a later version, as it stands. */
static void value_text(char *text, size_t bytes, enum unit unit, const json_t *value)
{
    char *dump = NULL;
    if (!value || json_is_null(value)) {
        snprintf(text, bytes, "-");
    } else if (json_is_string(value)) {
        snprintf(text, bytes, "%s", json_string_value(value));
    } else if (json_is_number(value)) {
        number_text(text, bytes, unit, value);
    } else {
        dump = aq_json_dump(value, JSON_ENCODE_ANY);
        snprintf(text, bytes, "%s", dump ? dump : "?");
    }
    free(dump);
}

static void cell_text(char *text, size_t bytes, const struct field *column, const json_t *row)
{
    value_text(text, bytes, column->unit, json_object_get(row, column->key));
}

/* The width of a column that has these cells under its title: a wide one shifts no other. */
static int widened(int width, const char *text)
{
    int n = (int)strnlen(text, TEXT_BYTES);
    return n > width ? n : width;
}

/* Lanes or tiers: a line each, under the names of the columns. */
static void print_table(const struct aquifer_hooks *hooks, const char *key, const json_t *rows,
                        const struct field *columns, size_t count)
{
    const char *name;
    json_t *row;
    char text[TEXT_BYTES];
    int names = ROW_WIDTH - 2, width[COLUMNS_MAX];
    if (!json_object_size(rows))
        return;
    for (size_t i = 0; i < count; i++)
        width[i] = widened(COLUMN_WIDTH, columns[i].title);
    json_object_foreach((json_t *)rows, name, row)
    {
        names = widened(names, name);
        for (size_t i = 0; i < count; i++) {
            cell_text(text, sizeof(text), &columns[i], row);
            width[i] = widened(width[i], text);
        }
    }
    aq_hooks_outputf(hooks, "%-*s", names + 2, key);
    for (size_t i = 0; i < count; i++)
        aq_hooks_outputf(hooks, " %*s", width[i], columns[i].title);
    aq_hooks_outputf(hooks, "\n");
    json_object_foreach((json_t *)rows, name, row)
    {
        aq_hooks_outputf(hooks, "  %-*s", names, name);
        for (size_t i = 0; i < count; i++) {
            cell_text(text, sizeof(text), &columns[i], row);
            aq_hooks_outputf(hooks, " %*s", width[i], text);
        }
        aq_hooks_outputf(hooks, "\n");
    }
}

/* A run that was killed could not say so: its process is gone and the file shows an old state.  Of
 * another machine's processes nothing is known here. */
static bool process_is_gone(const json_t *document)
{
    const char *host = json_string_value(json_object_get(document, "host"));
    char here[256] = "";
    gethostname(here, sizeof(here) - 1);
    if (host && strcmp(host, here) != 0)
        return false;
    const char *state = json_string_value(json_object_get(document, "state"));
    json_int_t pid = json_integer_value(json_object_get(document, "pid"));
    bool running = state && (strcmp(state, "running") == 0 || strcmp(state, "loading") == 0);
    return running && pid > 0 && pid <= INT_MAX && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

static void print_document(const struct aquifer_hooks *hooks, const json_t *document)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)document, key, value)
    {
        char text[TEXT_BYTES];
        if (strcmp(key, "schema") == 0 || strcmp(key, "updated") == 0)
            continue; /* the file's own time says the latter */
        bool lanes = strcmp(key, "lanes") == 0, memory = strcmp(key, "memory") == 0;
        if (lanes && json_is_object(value)) {
            print_table(hooks, key, value, lane_columns, AQ_ARRAY_LEN(lane_columns));
        } else if (memory && json_is_object(value)) {
            print_table(hooks, key, value, memory_columns, AQ_ARRAY_LEN(memory_columns));
        } else {
            value_text(text, sizeof(text), unit_of(key), value);
            aq_hooks_outputf(hooks, "%-*s %s\n", NAME_WIDTH, key, text);
        }
    }
}

/* ---- one file ---- */

/* What one run said of itself last. */
struct status {
    char *path;
    char *text; /* the file as it stands */
    size_t bytes;
    json_t *document; /* NULL: there is no such file */
};

static void status_close(struct status *s)
{
    json_decref(s->document);
    free(s->text);
    free(s->path);
}

static int status_read(struct status *s, const char *file, struct aq_err *reterr)
{
    s->path = status_path(file);
    if (!s->path)
        return aq_error_memory(reterr, "status");
    int rc = aq_read_file(&s->text, &s->bytes, s->path, STATUS_BYTES_MAX, reterr);
    if (rc == -ENOENT)
        return aq_error(reterr, -ENOENT,
                        "'%s' does not exist: expected the output of a `generate` that has begun",
                        s->path);
    if (rc < 0)
        return rc;
    rc = aq_json_parse(&s->document, s->text, s->bytes, true, reterr);
    if (rc == 0 && !json_is_object(s->document))
        rc = aq_error(reterr, -ENOEXEC, "expected one JSON object");
    return rc < 0 ? aq_error_prefix(reterr, "'%s'", s->path) : 0;
}

static int print_one(const struct aq_options *o, const struct aquifer_hooks *hooks,
                     struct aq_err *reterr)
{
    struct status s = {0};
    struct stat st;
    int rc = status_read(&s, o->status_files.item[0], reterr);
    if (rc < 0 || o->json) {
        if (rc == 0)
            aq_hooks_output(hooks, s.text, s.bytes);
        if (rc == 0 && s.bytes && s.text[s.bytes - 1] != '\n')
            aq_hooks_output(hooks, "\n", 1);
        status_close(&s);
        return rc;
    }
    if (stat(s.path, &st) == 0) {
        char age[AQ_SIZE_TEXT_MAX];
        int64_t seconds = aq_clock_unix_s() - (int64_t)st.st_mtime;
        aq_hooks_outputf(hooks, "%-*s %s ago\n", NAME_WIDTH, "written",
                         aq_format_duration(age, seconds > 0 ? (double)seconds : 0));
    }
    print_document(hooks, s.document);
    if (process_is_gone(s.document))
        aq_hooks_outputf(hooks,
                         "%-*s there is no such process on this machine: the run has "
                         "stopped, and the same command goes on\n",
                         NAME_WIDTH, "note");
    status_close(&s);
    return 0;
}

/* ---- several: the shards of a job ---- */

struct sum {
    json_int_t done, total, errors, in_flight, of_records;
    double gen_tok_s, eta_s; /* eta_s: of the last to end; below 0: not known */
    uint32_t running, finished, not_begun, stopped;
    uint32_t shards; /* in all, as those that have begun say; 0: they are no shards */
    bool alike;      /* all are shards of as many and of one input */
    json_t *rows;
};

static json_int_t count_of(const json_t *document, const char *key)
{
    return json_integer_value(json_object_get(document, key));
}

static void sum_state(struct sum *t, const json_t *document, const char *state)
{
    const json_t *rate = json_object_get(document, "gen_tok_s");
    const json_t *eta = json_object_get(document, "eta_s");
    bool running = !strcmp(state, "running") || !strcmp(state, "loading");
    t->finished += !strcmp(state, "done");
    t->not_begun += !document;
    t->stopped += document && !running && strcmp(state, "done") != 0;
    t->running += running;
    if (!running)
        return;
    t->gen_tok_s += json_number_value(rate);
    t->in_flight += count_of(document, "in_flight");
    if (!json_is_number(eta))
        t->eta_s = -1;
    else if (t->eta_s >= 0 && json_number_value(eta) > t->eta_s)
        t->eta_s = json_number_value(eta);
}

/* "K/N", and how many records the whole input has: the same of all, or nothing is known of those
 * that have not begun. */
static void sum_shard(struct sum *t, const json_t *document)
{
    const char *shard = json_string_value(json_object_get(document, "shard"));
    const char *slash = shard ? strchr(shard, '/') : NULL;
    uint32_t count = slash ? (uint32_t)strtoul(slash + 1, NULL, 10) : 0;
    json_int_t of_records = count_of(document, "of_records");
    bool first = !t->shards && !t->of_records;
    t->alike &= count > 0 && (first || (t->shards == count && t->of_records == of_records));
    t->shards = count;
    t->of_records = of_records;
}

static void sum_add(struct sum *t, const char *file, const struct status *s)
{
    static const char *const keys[] = {"shard",     "done",  "total", "errors", "in_flight",
                                       "gen_tok_s", "eta_s", "host",  "updated"};
    const json_t *d = s->document;
    const char *state = json_string_value(json_object_get(d, "state"));
    state = !d ? "not begun" : process_is_gone(d) ? "stopped" : state ? state : "?";
    json_t *row = json_pack("{s:s}", "state", state);
    aq_json_put(&row, "file", aq_json_string(file));
    for (size_t i = 0; d && i < AQ_ARRAY_LEN(keys); i++)
        if (json_object_get(d, keys[i]))
            aq_json_put(&row, keys[i], json_incref(json_object_get(d, keys[i])));
    aq_json_add(&t->rows, row);
    sum_state(t, d, state);
    if (!d)
        return;
    sum_shard(t, d);
    t->done += count_of(d, "done");
    t->total += count_of(d, "total");
    t->errors += count_of(d, "errors");
}

/* Of all records, where it is known how many there are: a shard that has not begun, or was not
 * named, tells nothing of its own. */
static bool total_known(const struct sum *t)
{
    return t->alike || !t->not_begun;
}

static json_t *sum_json(const struct sum *t, uint32_t files)
{
    bool done = t->finished == files && (!t->alike || files >= t->shards);
    json_t *o = json_pack("{s:i, s:s, s:I}", "schema", 1, "state",
                          done         ? "done"
                          : t->running ? "running"
                                       : "incomplete",
                          "done", t->done);
    json_int_t total = t->alike ? t->of_records : t->total;
    aq_json_put(&o, "total", total_known(t) ? json_integer(total) : json_null());
    aq_json_put(&o, "errors", json_integer(t->errors));
    aq_json_put(&o, "in_flight", json_integer(t->in_flight));
    aq_json_put(&o, "gen_tok_s", t->gen_tok_s > 0 ? aq_json_real(t->gen_tok_s) : json_null());
    bool known = t->running && t->eta_s >= 0 && t->running + t->finished == files;
    aq_json_put(&o, "eta_s", known ? aq_json_real(t->eta_s) : json_null());
    aq_json_put(&o, "shard_count", t->alike ? json_integer(t->shards) : json_null());
    aq_json_put(&o, "running", json_integer(t->running));
    aq_json_put(&o, "finished", json_integer(t->finished));
    aq_json_put(&o, "stopped", json_integer(t->stopped));
    aq_json_put(&o, "not_begun", json_integer(t->not_begun));
    aq_json_put(&o, "shards", json_incref(t->rows));
    return o;
}

static const struct field sum_columns[] = {
    {"shard", UNIT_NONE, "shard"},   {"state", UNIT_NONE, "state"},
    {"done", UNIT_NONE, "done"},     {"total", UNIT_NONE, "of"},
    {"errors", UNIT_NONE, "errors"}, {"gen_tok_s", UNIT_TOK_S, "generated"},
    {"eta_s", UNIT_SECONDS, "left"},
};

static void print_row(const struct aquifer_hooks *hooks, const int width[], const json_t *row,
                      const char *name)
{
    char text[TEXT_BYTES];
    for (size_t i = 0; i < AQ_ARRAY_LEN(sum_columns); i++) {
        cell_text(text, sizeof(text), &sum_columns[i], row);
        aq_hooks_outputf(hooks, "%*s ", width[i], text);
    }
    aq_hooks_outputf(hooks, " %s\n", name);
}

static void print_sum(const struct aquifer_hooks *hooks, const struct sum *t, uint32_t files,
                      json_t *document)
{
    size_t i;
    json_t *row;
    int width[AQ_ARRAY_LEN(sum_columns)];
    for (size_t c = 0; c < AQ_ARRAY_LEN(sum_columns); c++) {
        char text[TEXT_BYTES];
        cell_text(text, sizeof(text), &sum_columns[c], document);
        width[c] = widened(widened(COLUMN_WIDTH, sum_columns[c].title), text);
        json_array_foreach(t->rows, i, row)
        {
            cell_text(text, sizeof(text), &sum_columns[c], row);
            width[c] = widened(width[c], text);
        }
        aq_hooks_outputf(hooks, "%*s ", width[c], sum_columns[c].title);
    }
    aq_hooks_outputf(hooks, "\n");
    json_array_foreach(t->rows, i, row)
    {
        const char *file = json_string_value(json_object_get(row, "file"));
        print_row(hooks, width, row, file ? file : "?");
    }
    print_row(hooks, width, document, "all");
    if (t->alike && files < t->shards)
        aq_hooks_outputf(hooks, "%u of %u shards are not among these files\n", t->shards - files,
                         t->shards);
    if (t->stopped)
        aq_hooks_outputf(hooks, "%u stopped before the end: the same command goes on\n",
                         t->stopped);
}

/* A shard without a status file has not begun, unless none has one. */
static int print_several(const struct aq_options *o, const struct aquifer_hooks *hooks,
                         struct aq_err *reterr)
{
    const struct aq_strings *files = &o->status_files;
    struct sum t = {.rows = json_array(), .alike = true};
    int rc = 0;
    for (uint32_t i = 0; rc >= 0 && i < files->count; i++) {
        struct status s = {0};
        rc = status_read(&s, files->item[i], reterr);
        if (rc == -ENOENT && t.not_begun + 1 < files->count)
            rc = 0;
        if (rc == 0)
            sum_add(&t, files->item[i], &s);
        status_close(&s);
    }
    t.alike &= t.shards > 0;
    json_t *document = rc == 0 ? sum_json(&t, files->count) : NULL;
    if (rc == 0 && o->json)
        rc = aq_hooks_json(hooks, json_incref(document), reterr);
    else if (rc == 0 && document)
        print_sum(hooks, &t, files->count, document);
    else if (rc == 0)
        rc = aq_error_memory(reterr, "status");
    json_decref(document);
    json_decref(t.rows);
    return rc;
}

int aq_cmd_status(const struct aq_options *o, const struct aquifer_hooks *hooks,
                  struct aq_err *reterr)
{
    return o->status_files.count == 1 ? print_one(o, hooks, reterr)
                                      : print_several(o, hooks, reterr);
}
