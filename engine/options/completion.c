/* SPDX-License-Identifier: Apache-2.0
 * engine/options/completion.c - scripts that complete words of the command line, for bash and zsh.
 * What does not depend on the table is text here; the rest is written row by row. */
#include "engine/options/pages.h"

#include "base/buf.h"
#include "engine/embedded.h"
#include "engine/options/help_topics.h"
#include "engine/options/table.h"

#include <stdio.h>
#include <string.h>

enum { SUMMARY_BYTES = 90 };

/* Options whose values may be files of configs/ that the library carries. */
static const struct {
    const char *option;
    const struct aq_embedded *files;
    const uint32_t *count;
} carried[] = {
    {"hardware", aq_embedded_hardware, &aq_embedded_hardware_count},
    {"shape", aq_embedded_models, &aq_embedded_models_count},
};

/* Words that some commands alone take for an option that they share. */
static const struct {
    unsigned commands;
    const char *option, *words;
} special[] = {
    {AQ_CMD_RUN | AQ_CMD_PLAN, "hardware", "local"},
    {AQ_CMD_PLAN | AQ_CMD_INFO, "hardware", "all"},
    {AQ_CMD_PLAN, "hardware", "list"},
};

/* What may be offered for a value besides words. */
enum files { FILES_NONE, FILES_ANY, FILES_FOLDERS };

static enum files files_of(const struct aq_option *option)
{
    const char *argument = option->argument ? option->argument : "";
    if (strstr(argument, "FILE"))
        return FILES_ANY;
    return strncmp(argument, "DIR", 3) == 0 || strncmp(argument, "STORE", 5) == 0 ? FILES_FOLDERS
                                                                                  : FILES_NONE;
}

/* "a|b|c" as words, each behind a blank; ':' with `colon` before it. */
static void put_words(struct aq_buf *b, const char *words, const char *colon)
{
    if (*words)
        aq_buf_puts(b, " ");
    for (; *words; words++) {
        if (*words == ':')
            aq_buf_puts(b, colon);
        aq_buf_put(b, *words == '|' ? " " : words, 1);
    }
}

/* Every word that may be a value of the option of all these commands. */
static void put_values(struct aq_buf *b, const struct aq_option *option, unsigned commands,
                       const char *colon)
{
    if (option->choices)
        put_words(b, option->choices, colon);
    else if (option->suggest)
        put_words(b, option->suggest, colon);
    else if (option->flags & AQ_OPTION_AUTO)
        aq_buf_puts(b, " auto");
    for (size_t i = 0; i < AQ_ARRAY_LEN(special); i++) {
        if (strcmp(special[i].option, option->name) == 0 &&
            (special[i].commands & commands) == commands)
            put_words(b, special[i].words, colon);
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(carried); i++) {
        if (strcmp(carried[i].option, option->name) != 0)
            continue;
        for (uint32_t k = 0; k < *carried[i].count; k++)
            aq_buf_printf(b, " %s", carried[i].files[k].name);
    }
}

static bool has_values(const struct aq_option *option, unsigned commands)
{
    struct aq_buf b = {0};
    put_values(&b, option, commands, "");
    bool found = b.count > 0;
    aq_buf_close(&b);
    return found;
}

static bool is_shown(const struct aq_option *option, const struct aq_command *command)
{
    return aq_option_is_shown(option, command, option->group);
}

static bool is_positional(const struct aq_option *option)
{
    return option->flags & AQ_OPTION_POSITIONAL;
}

/* A switch that is on unless it is switched off. */
static bool is_on_at_first(const struct aq_option *option)
{
    return option->kind == AQ_OPTION_BOOL && option->deflt && strcmp(option->deflt, "on") == 0;
}

/* ---- bash -------------------------------------------------------------------------------- */

static const char bash_begin[] =
    "# SPDX-License-Identifier: Apache-2.0\n"
    "# Completion of aquifer for bash, made from the table of options: aquifer help bash\n"
    "_aquifer()\n"
    "{\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} value=${COMP_WORDS[COMP_CWORD]} i=$COMP_CWORD\n"
    "    local command=${COMP_WORDS[1]} option= words= files= all= skip word\n"
    "    COMPREPLY=()\n"
    "    # bash cuts words at ':' and '='; what is replaced is the last part alone.\n"
    "    [[ $cur == [:=] ]] && cur=\n"
    "    while ((i > 2)) && [[ $value == :* || ${COMP_WORDS[i - 1]} == : ]]; do\n"
    "        value=${COMP_WORDS[--i]}$value\n"
    "    done\n"
    "    if [[ $value == = ]]; then\n"
    "        value= option=${COMP_WORDS[i - 1]}\n"
    "    elif [[ ${COMP_WORDS[i - 1]} == = ]]; then\n"
    "        option=${COMP_WORDS[i - 2]}\n"
    "    else\n"
    "        option=${COMP_WORDS[i - 1]}\n"
    "    fi\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        command= option=\n"
    "    fi\n";

static const char bash_end[] =
    "    if [[ $option != known ]]; then\n"
    "        [[ $value == -* ]] && words=$all files=\n"
    "    fi\n"
    "    skip=$((${#value} - ${#cur}))\n"
    "    ((skip < 0)) && skip=0\n"
    "    for word in $words; do\n"
    "        [[ $word == \"$value\"* ]] && COMPREPLY+=(\"${word:skip}\")\n"
    "    done\n"
    "    if [[ $files ]]; then\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        while IFS= read -r word; do\n"
    "            COMPREPLY+=(\"$word\")\n"
    "        done < <(compgen \"$files\" -- \"$cur\")\n"
    "    fi\n"
    "}\n"
    "complete -F _aquifer aquifer\n";

/* All options of the command, and what stands without one. */
static void put_bash_command(struct aq_buf *b, const struct aq_command *command)
{
    const char *files = "";
    aq_buf_printf(b, "    %s)\n        all='--config --help", command->name);
    for (uint32_t i = 0; i < aq_option_count; i++) {
        const struct aq_option *option = &aq_option_table[i];
        if (!is_shown(option, command))
            continue;
        if (is_positional(option))
            files = files_of(option) == FILES_FOLDERS ? "-d" : "-f";
        else
            aq_buf_printf(b, " --%s", option->name);
        if (is_on_at_first(option))
            aq_buf_printf(b, " --no-%s", option->name);
    }
    aq_buf_printf(b, "'\n        files=%s\n        ;;\n", files);
}

/* Whether its words differ from command to command. */
static bool is_special(const struct aq_option *option)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(special); i++) {
        if (strcmp(special[i].option, option->name) == 0)
            return true;
    }
    return false;
}

/* "generate:--model | generate:-m | eval:...", of these commands. */
static void put_bash_names(struct aq_buf *b, const struct aq_option *option, unsigned commands)
{
    const char *join = "    ";
    for (uint32_t c = 0; c < aq_command_count; c++) {
        const struct aq_command *command = &aq_command_table[c];
        if (!is_shown(option, command) || !(command->bit & commands))
            continue;
        aq_buf_printf(b, "%s%s:--%s", join, command->name, option->name);
        join = " | ";
        if (option->short_name)
            aq_buf_printf(b, " | %s:-%c", command->name, option->short_name);
    }
    aq_buf_puts(b, ")\n");
}

static bool is_shown_anywhere(const struct aq_option *option)
{
    for (uint32_t c = 0; c < aq_command_count; c++) {
        if (is_shown(option, &aq_command_table[c]))
            return true;
    }
    return false;
}

static void put_bash_case(struct aq_buf *b, const struct aq_option *option, unsigned commands)
{
    static const char *const kinds[] = {
        [FILES_NONE] = "", [FILES_ANY] = "-f", [FILES_FOLDERS] = "-d"};
    put_bash_names(b, option, commands);
    aq_buf_puts(b, "        option=known words='");
    put_values(b, option, commands, "");
    aq_buf_printf(b, "' files=%s\n        ;;\n", kinds[files_of(option)]);
}

static void put_bash_option(struct aq_buf *b, const struct aq_option *option)
{
    if (is_positional(option) || aq_option_is_flag(option) || !is_shown_anywhere(option))
        return;
    if (!is_special(option))
        put_bash_case(b, option, AQ_CMD_ALL);
    for (uint32_t c = 0; c < aq_command_count && is_special(option); c++) {
        if (is_shown(option, &aq_command_table[c]))
            put_bash_case(b, option, aq_command_table[c].bit);
    }
}

char *aq_options_bash(void)
{
    struct aq_buf b = {0};
    aq_buf_puts(&b, bash_begin);
    aq_buf_puts(&b, "    case $command in\n    '')\n        words='help --help --version");
    for (uint32_t i = 0; i < aq_command_count; i++)
        aq_buf_printf(&b, " %s", aq_command_table[i].name);
    aq_buf_puts(&b, "' all=$words\n        ;;\n    help)\n        words='");
    for (uint32_t i = 0; i < aq_help_topic_count; i++)
        aq_buf_printf(&b, " %s", aq_help_topics[i].name);
    for (uint32_t i = 0; i < aq_command_count; i++)
        aq_buf_printf(&b, " %s", aq_command_table[i].name);
    aq_buf_puts(&b, "'\n        ;;\n");
    for (uint32_t i = 0; i < aq_command_count; i++)
        put_bash_command(&b, &aq_command_table[i]);
    aq_buf_puts(&b, "    esac\n    case $command:$option in\n"
                    "    *:--config)\n        option=known words= files=-f\n        ;;\n");
    for (uint32_t i = 0; i < aq_option_count; i++)
        put_bash_option(&b, &aq_option_table[i]);
    aq_buf_puts(&b, "    esac\n");
    aq_buf_puts(&b, bash_end);
    return aq_buf_take(&b);
}

/* ---- zsh --------------------------------------------------------------------------------- */

/* Text between single quotes, as _arguments reads it: ':' and brackets separate there. */
static void put_zsh(struct aq_buf *b, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            aq_buf_puts(b, "'\\'");
        else if (strchr(":[]\\", *text))
            aq_buf_puts(b, "\\");
        aq_buf_put(b, text, 1);
    }
}

/* The first clause of the option's help, whole words of it. */
static void put_zsh_summary(struct aq_buf *b, const struct aq_option *option)
{
    char text[AQ_OPTION_TEXT_BYTES];
    aq_option_describe(text, sizeof(text), option);
    text[strcspn(text, ";")] = '\0';
    if (strlen(text) > SUMMARY_BYTES) {
        size_t end = SUMMARY_BYTES;
        while (end > 0 && text[end] != ' ')
            end--;
        memcpy(text + end, " ...", sizeof(" ..."));
    }
    put_zsh(b, text);
}

/* ":NAME:what to offer" of a value. */
static void put_zsh_value(struct aq_buf *b, const struct aq_option *option, unsigned command)
{
    static const char *const files[] = {
        [FILES_NONE] = "", [FILES_ANY] = "_files", [FILES_FOLDERS] = "_files -/"};
    enum files kind = files_of(option);
    bool values = has_values(option, command);
    aq_buf_puts(b, ":");
    put_zsh(b, option->argument ? option->argument : "value");
    if (values && kind != FILES_NONE) { /* one of several: {code} is evaluated */
        aq_buf_puts(b, ":{ compadd --");
        put_values(b, option, command, "");
        aq_buf_printf(b, "; %s }", files[kind]);
    } else if (values) {
        aq_buf_puts(b, ":(");
        put_values(b, option, command, "\\");
        aq_buf_puts(b, ")");
    } else {
        aq_buf_printf(b, ":%s", files[kind]);
    }
}

/* One way to write the option; `other` is the second one, which it excludes. */
static void put_zsh_name(struct aq_buf *b, const struct aq_option *option, unsigned command,
                         const char *name, const char *other)
{
    bool many = option->kind == AQ_OPTION_STRINGS, flag = aq_option_is_flag(option);
    aq_buf_puts(b, "      '");
    if (many)
        aq_buf_puts(b, "*");
    else if (other)
        aq_buf_printf(b, "(%s %s)", name, other);
    aq_buf_printf(b, "%s%s[", name, flag ? "" : name[1] == '-' ? "=" : "+");
    put_zsh_summary(b, option);
    aq_buf_puts(b, "]");
    if (!flag)
        put_zsh_value(b, option, command);
    aq_buf_puts(b, "'\n");
}

static void put_zsh_option(struct aq_buf *b, const struct aq_option *option, unsigned command)
{
    char letter[3] = {'-', option->short_name, '\0'}, name[64], negated[64];
    if (is_positional(option)) {
        aq_buf_puts(b, "      '1");
        put_zsh_value(b, option, command);
        aq_buf_puts(b, "'\n");
        return;
    }
    snprintf(name, sizeof(name), "--%s", option->name);
    snprintf(negated, sizeof(negated), "--no-%s", option->name);
    if (is_on_at_first(option)) {
        put_zsh_name(b, option, command, name, negated);
        put_zsh_name(b, option, command, negated, name);
        return;
    }
    put_zsh_name(b, option, command, name, option->short_name ? letter : NULL);
    if (option->short_name)
        put_zsh_name(b, option, command, letter, name);
}

static void put_zsh_command(struct aq_buf *b, const struct aq_command *command)
{
    aq_buf_printf(b, "  %s)\n    specs+=(\n", command->name);
    for (uint32_t i = 0; i < aq_option_count; i++) {
        if (is_shown(&aq_option_table[i], command))
            put_zsh_option(b, &aq_option_table[i], command->bit);
    }
    aq_buf_puts(b, "    )\n    ;;\n");
}

char *aq_options_zsh(void)
{
    struct aq_buf b = {0};
    aq_buf_puts(&b, "#compdef aquifer\n"
                    "# SPDX-License-Identifier: Apache-2.0\n"
                    "# Completion of aquifer for zsh, made from the table of options: aquifer help "
                    "zsh\n"
                    "_aquifer() {\n"
                    "  local curcontext=$curcontext command\n"
                    "  local -a commands specs\n"
                    "  commands=(\n");
    for (uint32_t i = 0; i < aq_command_count; i++) {
        aq_buf_printf(&b, "    '%s:", aq_command_table[i].name);
        put_zsh(&b, aq_command_table[i].summary);
        aq_buf_puts(&b, "'\n");
    }
    aq_buf_puts(&b, "    'help:the options of a command'\n"
                    "  )\n"
                    "  if ((CURRENT == 2)); then\n"
                    "    _describe -t commands command commands\n"
                    "    return\n"
                    "  fi\n"
                    "  command=$words[2]\n"
                    "  shift words\n"
                    "  ((CURRENT--))\n"
                    "  if [[ $command == help ]]; then\n"
                    "    commands+=(\n");
    for (uint32_t i = 0; i < aq_help_topic_count; i++) {
        aq_buf_printf(&b, "      '%s:", aq_help_topics[i].name);
        put_zsh(&b, aq_help_topics[i].summary);
        aq_buf_puts(&b, "'\n");
    }
    aq_buf_puts(&b, "    )\n"
                    "    _describe -t commands command commands\n"
                    "    return\n"
                    "  fi\n"
                    "  specs=(\n"
                    "      '(- *)'{-h,--help}'[print the options]'\n"
                    "      '*--config=[read options from a YAML file]:FILE:_files'\n"
                    "  )\n"
                    "  case $command in\n");
    for (uint32_t i = 0; i < aq_command_count; i++)
        put_zsh_command(&b, &aq_command_table[i]);
    aq_buf_puts(&b, "  esac\n"
                    "  _arguments -s -S $specs\n"
                    "}\n"
                    "_aquifer \"$@\"\n");
    return aq_buf_take(&b);
}
