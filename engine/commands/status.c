/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/status.c - `aquifer status FILE`: what a run says about itself in
 * FILE.status.json. */
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
enum { NAME_WIDTH = 12, ROW_WIDTH = 16, COLUMN_WIDTH = 11, TEXT_BYTES = 1024 };

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

/* Lanes or tiers: a line each, under the names of the columns. */
static void print_table(const struct aquifer_hooks *hooks, const char *key, const json_t *rows,
                        const struct field *columns, size_t count)
{
    const char *name;
    json_t *row;
    char text[TEXT_BYTES];
    if (!json_object_size(rows))
        return;
    aq_hooks_outputf(hooks, "%-*s", ROW_WIDTH, key);
    for (size_t i = 0; i < count; i++)
        aq_hooks_outputf(hooks, " %*s", COLUMN_WIDTH, columns[i].title);
    aq_hooks_outputf(hooks, "\n");
    json_object_foreach((json_t *)rows, name, row)
    {
        aq_hooks_outputf(hooks, "  %-*s", ROW_WIDTH - 2, name);
        for (size_t i = 0; i < count; i++) {
            value_text(text, sizeof(text), columns[i].unit, json_object_get(row, columns[i].key));
            aq_hooks_outputf(hooks, " %*s", COLUMN_WIDTH, text);
        }
        aq_hooks_outputf(hooks, "\n");
    }
}

/* A run that was killed could not say so: its process is gone and the file shows an old state. */
static bool process_is_gone(const json_t *document)
{
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

int aq_cmd_status(const struct aq_options *o, const struct aquifer_hooks *hooks,
                  struct aq_err *reterr)
{
    char *path = status_path(o->status_file), *text = NULL;
    if (!path)
        return aq_error_memory(reterr, "status");
    size_t bytes;
    json_t *document = NULL;
    struct stat st;
    int rc = aq_read_file(&text, &bytes, path, STATUS_BYTES_MAX, reterr);
    if (rc == -ENOENT)
        rc = aq_error(reterr, -ENOENT,
                      "'%s' does not exist: expected the output of a `generate` that has begun",
                      path);
    if (rc < 0)
        goto out;
    rc = aq_json_parse(&document, text, bytes, true, reterr);
    if (rc == 0 && !json_is_object(document))
        rc = aq_error(reterr, -ENOEXEC, "expected one JSON object");
    if (rc < 0) {
        aq_error_prefix(reterr, "'%s'", path);
        goto out;
    }
    if (o->json) {
        aq_hooks_output(hooks, text, bytes);
        if (bytes && text[bytes - 1] != '\n')
            aq_hooks_output(hooks, "\n", 1);
        goto out;
    }
    if (stat(path, &st) == 0) {
        char age[AQ_SIZE_TEXT_MAX];
        int64_t seconds = aq_clock_unix_s() - (int64_t)st.st_mtime;
        aq_hooks_outputf(hooks, "%-*s %s ago\n", NAME_WIDTH, "written",
                         aq_format_duration(age, seconds > 0 ? (double)seconds : 0));
    }
    print_document(hooks, document);
    if (process_is_gone(document))
        aq_hooks_outputf(hooks,
                         "%-*s there is no such process on this machine: the run has "
                         "stopped, and the same command goes on\n",
                         NAME_WIDTH, "note");
out:
    json_decref(document);
    free(text);
    free(path);
    return rc;
}
