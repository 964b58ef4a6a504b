/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/args.c - aquifer_parse_args(): the words of a command line in, the options of a
 * command or a text to print out. */
#include "base/json.h"
#include "engine/hooks.h"
#include "engine/machine/hw_file.h"
#include "engine/options/options.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_command(const char *command, int arg_count, char **args, char **ret_json,
                         char **ret_text, struct aq_err *reterr)
{
    struct aq_options *o = NULL;
    bool help = false;
    int rc = aq_options_from_args(&o, command, arg_count, args, &help, reterr);
    if (rc < 0)
        return rc;
    if (help) {
        *ret_text = aq_options_help(command);
        return *ret_text ? 0 : aq_error_memory(reterr, "help");
    }
    rc = aq_options_check(o, reterr);
    if (rc == 0) {
        json_t *object = aq_options_to_json(o);
        *ret_json = object ? aq_json_dump(object, JSON_COMPACT) : NULL;
        json_decref(object);
        if (!*ret_json)
            rc = aq_error_memory(reterr, "options");
    }
    aq_options_close(o);
    return rc;
}

static int give_help(const char *command, char **ret_text, struct aq_err *reterr)
{
    struct aq_options *o = NULL;
    struct aq_buf hardware = {0};
    bool topic = !command || strcmp(command, "kv") == 0, help;
    if (command && strcmp(command, "hardware") == 0) {
        aq_hw_help(&hardware);
        *ret_text = aq_buf_take(&hardware);
        return *ret_text ? 0 : aq_error_memory(reterr, "help");
    }
    /* Reading no words says what is wrong with the name. */
    int rc = topic ? 0 : aq_options_from_args(&o, command, 0, NULL, &help, reterr);
    aq_options_close(o);
    if (rc < 0)
        return rc;
    *ret_text = aq_options_help(command);
    return *ret_text ? 0 : aq_error_memory(reterr, "help");
}

static int give_version(char **ret_text, struct aq_err *reterr)
{
    if (asprintf(ret_text, "aquifer %s\n", aquifer_version()) < 0) {
        *ret_text = NULL;
        return aq_error_memory(reterr, "version");
    }
    return 0;
}

static int parse_line(int arg_count, char **args, char **ret_json, char **ret_text,
                      struct aq_err *reterr)
{
    const char *first = arg_count > 0 ? args[0] : "help";
    if (strcmp(first, "--version") == 0 || strcmp(first, "-V") == 0 ||
        strcmp(first, "version") == 0)
        return give_version(ret_text, reterr);
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0)
        return give_help(NULL, ret_text, reterr);
    if (strcmp(first, "help") == 0)
        return give_help(arg_count > 1 ? args[1] : NULL, ret_text, reterr);
    if (first[0] == '-')
        return aq_error(reterr, -EINVAL,
                        "expected a command before its options, found '%s'; aquifer --help lists "
                        "them",
                        first);
    return parse_command(first, arg_count - 1, args + 1, ret_json, ret_text, reterr);
}

int aquifer_parse_args(int arg_count, char **args, char **ret_json, char **ret_text,
                       struct aquifer_error *reterr)
{
    assert(ret_json && ret_text && arg_count >= 0);
    struct aq_err err;
    char *json = NULL, *text = NULL;
    int rc = parse_line(arg_count, args, &json, &text, &err);
    if (rc < 0) {
        aq_err_publish(reterr, &err);
        return rc;
    }
    *ret_json = json;
    *ret_text = text;
    return 0;
}
