/* SPDX-License-Identifier: Apache-2.0
 * engine/options/man.c - manual pages, in the macros that man(7) describes: both groff and mandoc
 * read them. */
#include "engine/options/pages.h"

#include "base/buf.h"
#include "engine/build_info.h"
#include "engine/options/help_topics.h"
#include "engine/options/table.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static void put_char(struct aq_buf *b, char c)
{
    if (c == '\\')
        aq_buf_puts(b, "\\e");
    else if (c == '-') /* else it may be typeset as a hyphen, which cannot be pasted */
        aq_buf_puts(b, "\\-");
    else if (c == '|') /* a line may end behind it: lists of choices are long */
        aq_buf_puts(b, "|\\:");
    else
        aq_buf_put(b, &c, 1);
}

/* Text as it stands. */
static void put_text(struct aq_buf *b, const char *text)
{
    for (; *text; text++)
        put_char(b, *text);
}

/* A paragraph on a line of its own.  A first '.' or '\'' would be a request. */
static void put_line(struct aq_buf *b, const char *text)
{
    if (*text == '.' || *text == '\'')
        aq_buf_puts(b, "\\&");
    put_text(b, text);
    aq_buf_puts(b, "\n");
}

static void put_upper(struct aq_buf *b, const char *text)
{
    for (; *text; text++)
        put_char(b, (char)toupper((unsigned char)*text));
}

static void put_header(struct aq_buf *b, const struct aq_command *command)
{
    /* No date: the same sources give the same page. */
    aq_buf_puts(b, ".\\\" Made from the table of options: aquifer help man\n.TH AQUIFER");
    if (command) {
        aq_buf_puts(b, "\\-");
        put_upper(b, command->name);
    }
    aq_buf_puts(b, " 1 \"\" \"Aquifer ");
    put_text(b, aq_build_version());
    /* Words of a command line are neither hyphenated nor spread over the line. */
    aq_buf_puts(b, "\" \"Aquifer manual\"\n.nh\n.ad l\n.SH NAME\naquifer");
    if (command) {
        aq_buf_puts(b, "\\-");
        put_text(b, command->name);
    }
    aq_buf_puts(b, " \\- ");
    put_line(b, command ? command->summary : "large batches of prompts through language models");
}

/* .TP: its first line is the tag. */
static void put_row(struct aq_buf *b, const char *tag, const char *text)
{
    aq_buf_puts(b, ".TP\n\\fB");
    put_text(b, tag);
    aq_buf_puts(b, "\\fR\n");
    put_line(b, text);
}

static void put_option(struct aq_buf *b, const struct aq_option *option)
{
    char text[AQ_OPTION_TEXT_BYTES];
    const char *argument = aq_option_argument(option);
    aq_buf_puts(b, ".TP\n");
    if (option->flags & AQ_OPTION_POSITIONAL) {
        aq_buf_puts(b, "\\fI");
        put_text(b, option->argument);
        aq_buf_puts(b, "\\fR\n");
    } else {
        if (option->short_name)
            aq_buf_printf(b, "\\fB\\-%c\\fR, ", option->short_name);
        aq_buf_puts(b, "\\fB\\-\\-");
        put_text(b, option->name);
        aq_buf_puts(b, "\\fR");
        if (argument) {
            aq_buf_puts(b, " \\fI");
            put_text(b, argument);
            aq_buf_puts(b, "\\fR");
        }
        aq_buf_puts(b, "\n");
    }
    aq_option_describe(text, sizeof(text), option);
    put_line(b, text);
}

static void put_options(struct aq_buf *b, const struct aq_command *command)
{
    aq_buf_puts(b, ".SH OPTIONS\n");
    put_line(b, aq_options_notation);
    for (int group = 0; group < AQ_GROUP_COUNT; group++) {
        bool titled = false;
        for (uint32_t i = 0; i < aq_option_count; i++) {
            const struct aq_option *option = &aq_option_table[i];
            if (!aq_option_is_shown(option, command, (enum aq_option_group)group))
                continue;
            if (!titled)
                aq_buf_printf(b, ".SS %s\n", aq_option_group_titles[group]);
            titled = true;
            put_option(b, option);
        }
    }
    aq_buf_puts(b, ".SS Every command\n");
    put_row(b, "--config FILE",
            "read options from a YAML file, 'name: value'; the command line wins");
    put_row(b, "-h, --help", "print the options");
}

static void put_exit_status(struct aq_buf *b)
{
    aq_buf_puts(b, ".SH EXIT STATUS\n");
    for (uint32_t i = 0; i < AQ_EXIT_MEANING_COUNT; i++)
        put_row(b, aq_exit_meanings[i].status, aq_exit_meanings[i].means);
}

/* A reference as ".BR aquifer\-plan (1),". */
static void put_reference(struct aq_buf *b, const char *command, const char *behind)
{
    aq_buf_puts(b, ".BR aquifer");
    if (command) {
        aq_buf_puts(b, "\\-");
        put_text(b, command);
    }
    aq_buf_printf(b, " (1)%s\n", behind);
}

static void put_command_page(struct aq_buf *b, const struct aq_command *command)
{
    put_header(b, command);
    aq_buf_puts(b, ".SH SYNOPSIS\n");
    put_line(b, command->usage);
    aq_buf_puts(b, ".SH DESCRIPTION\n");
    put_line(b, command->description);
    put_options(b, command);
    put_exit_status(b);
    aq_buf_puts(b, ".SH SEE ALSO\n");
    put_reference(b, NULL, "");
}

static void put_program_page(struct aq_buf *b)
{
    put_header(b, NULL);
    aq_buf_puts(b, ".SH SYNOPSIS\n.B aquifer\n.I command\n.RI [ options ]\n.br\n"
                   ".B aquifer help\n.RI [ command ]\n.SH DESCRIPTION\n");
    put_line(b, aq_options_purpose);
    put_line(b, "Each command has a page of its own, whose options `aquifer help COMMAND` shows "
                "too.");
    aq_buf_puts(b, ".SH COMMANDS\n");
    for (uint32_t i = 0; i < aq_command_count; i++) {
        const struct aq_command *command = &aq_command_table[i];
        aq_buf_puts(b, ".TP\n");
        put_reference(b, command->name, "");
        put_line(b, command->summary);
    }
    for (uint32_t i = 0; i < aq_help_topic_count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "help %s", aq_help_topics[i].name);
        put_row(b, name, aq_help_topics[i].summary);
    }
    put_exit_status(b);
    aq_buf_puts(b, ".SH SIGNALS\n");
    put_line(b, aq_options_signals);
    aq_buf_puts(b, ".SH ENVIRONMENT\n");
    put_row(b, "XDG_CACHE_HOME",
            "where the cache directory is, with packed weights and the machine's measured rates: "
            "its folder aquifer; otherwise that of ~/.cache");
    put_row(b, "HF_HUB_CACHE, HF_HOME", "where models named org/name are looked up");
    aq_buf_puts(b, ".SH SEE ALSO\n");
    for (uint32_t i = 0; i < aq_command_count; i++)
        put_reference(b, aq_command_table[i].name, i + 1 < aq_command_count ? "," : "");
}

char *aq_options_man(const char *command)
{
    struct aq_buf b = {0};
    const struct aq_command *c = command ? aq_command_find(command) : NULL;
    assert(!command || c);
    if (c)
        put_command_page(&b, c);
    else
        put_program_page(&b);
    return aq_buf_take(&b);
}
