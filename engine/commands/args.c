/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/args.c - aquifer_parse_args(): the words of a command line in, the options of a
 * command or a text to print out. */
#include "base/json.h"
#include "engine/hooks.h"
#include "engine/machine/hw_file.h"
#include "engine/options/help_topics.h"
#include "engine/options/options.h"
#include "engine/options/pages.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_arg(int arg_count, char **args, const char *word)
{
    for (int i = 0; i < arg_count; i++) {
        if (strcmp(args[i], word) == 0)
            return true;
    }
    return false;
}

/* Behind the sentence, where it may be as long as it is. */
static void add_native_line(const struct aq_options *o, struct aq_err *reterr)
{
    const char *line = strstr(o->notes, "native command: ");
    if (line)
        aq_error_append(reterr, " (%.*s)", (int)strcspn(line, "\n"), line);
}

static int parse_command(const char *command, int arg_count, char **args, char **ret_json,
                         char **ret_text, struct aq_err *reterr)
{
    struct aq_options *o = NULL;
    bool help = false;
    int rc = aq_options_from_args(&o, command, arg_count, args, &help, reterr);
    if (rc < 0)
        return rc;
    if (help) {
        *ret_text = aq_options_help(command, has_arg(arg_count, args, "--help-all"));
        return *ret_text ? 0 : aq_error_memory(reterr, "help");
    }
    rc = aq_options_check(o, reterr);
    if (rc < 0 && o->notes) /* what is wrong is easier seen in our own words */
        add_native_line(o, reterr);
    if (rc == 0) {
        json_t *object = aq_options_to_json(o);
        if (o->notes)
            aq_json_put(&object, "notes", aq_json_string(o->notes));
        *ret_json = object ? aq_json_dump(object, JSON_COMPACT) : NULL;
        json_decref(object);
        if (!*ret_json)
            rc = aq_error_memory(reterr, "options");
    }
    aq_options_close(o);
    return rc;
}

/* Reading no words says what is wrong with a command's name. */
static int check_command(const char *command, struct aq_err *reterr)
{
    struct aq_options *o = NULL;
    bool help;
    int rc = aq_options_from_args(&o, command, 0, NULL, &help, reterr);
    aq_options_close(o);
    return rc;
}

static char *hardware_help(void)
{
    struct aq_buf text = {0};
    aq_hw_help(&text);
    return aq_buf_take(&text);
}

/* of: the command whose manual page it is; NULL: the program's. */
static char *topic_text(const struct aq_help_topic *topic, const char *of)
{
    switch (topic->id) {
    case AQ_HELP_KV:
    case AQ_HELP_WORDS: return aq_options_help(topic->name, false);
    case AQ_HELP_HARDWARE: return hardware_help();
    case AQ_HELP_MAN: return aq_options_man(of);
    case AQ_HELP_BASH: return aq_options_bash();
    case AQ_HELP_ZSH: return aq_options_zsh();
    }
    return NULL;
}

/* `help TOPIC [OF]`: of a command, or of what is not one.  all: every option. */
static int give_help(const char *topic, const char *of, bool all, char **ret_text,
                     struct aq_err *reterr)
{
    const struct aq_help_topic *known = topic ? aq_help_topic_find(topic) : NULL;
    const char *command = !known ? topic : known->id == AQ_HELP_MAN ? of : NULL;
    int rc = command ? check_command(command, reterr) : 0;
    if (rc < 0)
        return rc;
    char *text = known ? topic_text(known, command) : aq_options_help(command, all);
    *ret_text = text;
    return text ? 0 : aq_error_memory(reterr, "help");
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
        return give_help(NULL, NULL, false, ret_text, reterr);
    if (strcmp(first, "help") == 0) {
        const char *word[2] = {NULL, NULL};
        for (int i = 1, count = 0; i < arg_count && count < 2; i++) {
            if (strcmp(args[i], "--all") != 0)
                word[count++] = args[i];
        }
        return give_help(word[0], word[1], has_arg(arg_count, args, "--all"), ret_text, reterr);
    }
    if (first[0] == '-')
        return aq_error(reterr, -EINVAL,
                        "expected a command before its options, found '%s'; aquifer --help lists "
                        "them",
                        first);
    return parse_command(first, arg_count - 1, args + 1, ret_json, ret_text, reterr);
}

int aquifer_flag(const char *options_json, const char *name)
{
    assert(options_json && name);
    json_t *object = NULL;
    if (aq_json_parse(&object, options_json, strlen(options_json), true, NULL) < 0)
        return 0;
    int set = json_is_true(json_object_get(object, name));
    json_decref(object);
    return set;
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
