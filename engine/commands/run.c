/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/run.c - aquifer_run(): JSON in, a command done, an exit status out. */
#include "base/json.h"
#include "engine/commands/commands.h"
#include "engine/compute/backend.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    aq_command_fn *fn;
    bool computes; /* runs a model: a device must be chosen */
} commands[] = {
    {.name = "bench", .fn = aq_cmd_bench, .computes = true},
    {.name = "eval", .fn = aq_cmd_eval, .computes = true},
    {.name = "generate", .fn = aq_cmd_generate, .computes = true},
    {.name = "info", .fn = aq_cmd_info},
    {.name = "merge", .fn = aq_cmd_merge},
    {.name = "pack", .fn = aq_cmd_pack},
    {.name = "plan", .fn = aq_cmd_plan},
    {.name = "probe", .fn = aq_cmd_probe},
    {.name = "published", .fn = aq_cmd_published},
    {.name = "status", .fn = aq_cmd_status},
    {.name = "tokenize", .fn = aq_cmd_tokenize},
};

static aq_command_fn *find(const char *name, bool *ret_computes)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            *ret_computes = commands[i].computes;
            return commands[i].fn;
        }
    }
    return NULL;
}

/* Hooks of a --quiet run: errors and warnings still come through. */
static void quiet_line(void *user, enum aquifer_level level, const char *text)
{
    const struct aquifer_hooks *outer = user;
    if (outer->line && (level == AQUIFER_ERROR || level == AQUIFER_WARNING))
        outer->line(outer->user, level, text);
}

static void quiet_output(void *user, const char *bytes, size_t count)
{
    const struct aquifer_hooks *outer = user;
    if (outer->output)
        outer->output(outer->user, bytes, count);
}

static int quiet_interrupted(void *user)
{
    const struct aquifer_hooks *outer = user;
    return outer->interrupted && outer->interrupted(outer->user);
}

static struct aquifer_hooks quiet_hooks(const struct aquifer_hooks *outer)
{
    return (struct aquifer_hooks){.user = (void *)outer,
                                  .line = quiet_line,
                                  .output = quiet_output,
                                  .interrupted = quiet_interrupted,
                                  .output_is_terminal = outer->output_is_terminal,
                                  .lines_are_terminal = outer->lines_are_terminal,
                                  .line_columns = outer->line_columns};
}

/* What the command line said that is no option: a line each. */
static void say_notes(const json_t *object, const struct aquifer_hooks *hooks)
{
    const char *at = json_string_value(json_object_get(object, "notes"));
    while (at && *at) {
        int n = (int)strcspn(at, "\n");
        aq_hooks_line(hooks, AQUIFER_INFO, "%.*s", n, at);
        at += n + (at[n] == '\n');
    }
}

static int run(const json_t *object, const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    const json_t *command = json_object_get(object, "command");
    if (!json_is_string(command))
        return aq_error(reterr, -EINVAL, "options: expected an object with \"command\"");
    struct aq_options *o;
    int rc = aq_options_from_json(&o, json_string_value(command), object, reterr);
    if (rc < 0)
        return rc;
    struct aquifer_hooks quiet;
    if (o->quiet && hooks) {
        quiet = quiet_hooks(hooks);
        hooks = &quiet;
    }
    say_notes(object, hooks);
    bool computes = false;
    aq_command_fn *fn = find(o->command, &computes);
    rc = aq_options_check(o, reterr);
    if (rc == 0 && !fn)
        rc = aq_error(reterr, -EINVAL, "'%s' is not built yet in this version", o->command);
    int gpu;
    if (rc == 0 && computes) /* before any file is read */
        rc = aq_device_choose(&gpu, aq_options_device(o), NULL, NULL, reterr);
    if (rc == 0)
        rc = fn(o, hooks, reterr);
    aq_options_close(o);
    return rc;
}

int aquifer_run(const char *options_json, const struct aquifer_hooks *hooks)
{
    struct aq_err err = {0};
    json_t *object = NULL;
    int rc = aq_json_parse(&object, options_json, strlen(options_json), true, &err);
    if (rc < 0 && rc != -ENOMEM)
        rc = aq_error(&err, -EINVAL, "options: expected one JSON object");
    if (rc == 0)
        rc = run(object, hooks, &err);
    json_decref(object);
    if (rc < 0) {
        aq_hooks_line(hooks, AQUIFER_ERROR, "%s", err.text);
        return aq_err_exit_status(rc);
    }
    return rc;
}

void aquifer_free(void *p)
{
    free(p);
}
