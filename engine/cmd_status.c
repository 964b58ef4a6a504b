/* SPDX-License-Identifier: Apache-2.0
 * engine/cmd_status.c - `aquifer status FILE`: what a run says about itself in FILE.status.json. */
#include "engine/commands.h"

#include "base/clock.h"
#include "base/json.h"
#include "engine/files.h"
#include "engine/units.h"

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

/* A scalar in words; false for lists and objects. */
static bool value_text(const char *key, const json_t *value, char *text, size_t bytes)
{
    size_t n = strlen(key);
    bool seconds = n > 2 && strcmp(key + n - 2, "_s") == 0 && strstr(key, "tok_s") == NULL;
    char amount[AQ_SIZE_TEXT_MAX];
    switch (json_typeof(value)) {
    case JSON_STRING: snprintf(text, bytes, "%s", json_string_value(value)); return true;
    case JSON_TRUE: snprintf(text, bytes, "yes"); return true;
    case JSON_FALSE: snprintf(text, bytes, "no"); return true;
    case JSON_NULL: snprintf(text, bytes, "-"); return true;
    case JSON_INTEGER:
    case JSON_REAL:
        if (seconds)
            snprintf(text, bytes, "%s", aq_format_duration(amount, json_number_value(value)));
        else if (json_is_integer(value))
            snprintf(text, bytes, "%lld", (long long)json_integer_value(value));
        else
            snprintf(text, bytes, "%.1f", json_real_value(value));
        return true;
    default: return false;
    }
}

/* {"budget", "ledger", "measured"} of one tier: bytes read better as MiB. */
static void print_memory(const struct aquifer_hooks *hooks, const json_t *tiers)
{
    const char *tier, *name;
    json_t *row, *value;
    json_object_foreach((json_t *)tiers, tier, row)
    {
        aq_hooks_outputf(hooks, "%-12s %s", "memory", tier);
        json_object_foreach(row, name, value)
        {
            char amount[AQ_SIZE_TEXT_MAX];
            if (json_is_integer(value) && json_integer_value(value) >= 0)
                aq_hooks_outputf(hooks, ", %s %s", name,
                                 aq_format_size(amount, (uint64_t)json_integer_value(value)));
        }
        aq_hooks_outputf(hooks, "\n");
    }
}

/* Objects such as the lanes: one line each, their scalars behind them. */
static void print_object(const struct aquifer_hooks *hooks, const char *key, const json_t *object)
{
    const char *name, *field;
    json_t *row, *value;
    json_object_foreach((json_t *)object, name, row)
    {
        char text[256];
        if (value_text(name, row, text, sizeof(text))) {
            aq_hooks_outputf(hooks, "%-12s %s %s\n", key, name, text);
            continue;
        }
        aq_hooks_outputf(hooks, "%-12s %s", key, name);
        json_object_foreach(row, field, value)
        {
            if (!json_is_null(value) && value_text(field, value, text, sizeof(text)))
                aq_hooks_outputf(hooks, ", %s %s", field, text);
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
        char text[1024];
        if (strcmp(key, "schema") == 0 || strcmp(key, "updated") == 0)
            continue; /* the file's own time says the latter */
        if (strcmp(key, "memory") == 0)
            print_memory(hooks, value);
        else if (json_is_object(value))
            print_object(hooks, key, value);
        else if (value_text(key, value, text, sizeof(text)))
            aq_hooks_outputf(hooks, "%-12s %s\n", key, text);
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
        aq_hooks_outputf(hooks, "%-12s %s ago\n", "written",
                         aq_format_duration(age, seconds > 0 ? (double)seconds : 0));
    }
    print_document(hooks, document);
    if (process_is_gone(document))
        aq_hooks_outputf(hooks,
                         "%-12s there is no such process on this machine: the run has "
                         "stopped, and the same command goes on\n",
                         "note");
out:
    json_decref(document);
    free(text);
    free(path);
    return rc;
}
