/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/help_topics.h"
#include "engine/options/pages.h"
#include "engine/options/table.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In pages of man(7) every '-' is escaped. */
static void man_name(char *dst, const char *name)
{
    for (; *name; name++) {
        if (*name == '-')
            *dst++ = '\\';
        *dst++ = *name;
    }
    *dst = '\0';
}

static void manual_pages_and_completions_name_every_option(void **state)
{
    char *bash = aq_options_bash(), *zsh = aq_options_zsh();
    for (uint32_t c = 0; c < aq_command_count; c++) {
        const struct aq_command *command = &aq_command_table[c];
        char line[128], flag[64], escaped[256], *page = aq_options_man(command->name);
        for (uint32_t i = 0; i < aq_option_count; i++) {
            const struct aq_option *o = &aq_option_table[i];
            if (!aq_option_is_shown(o, command, o->group))
                continue;
            bool positional = o->flags & AQ_OPTION_POSITIONAL;
            snprintf(flag, sizeof(flag), positional ? "%s" : "--%s",
                     positional ? o->argument : o->name);
            man_name(escaped, flag);
            assert_non_null(strstr(page, escaped));
            assert_non_null(strstr(zsh, positional ? "'1:FILE" : flag));
            snprintf(line, sizeof(line), "%s:%s", command->name, flag);
            if (!positional)
                assert_non_null(strstr(bash, aq_option_is_flag(o) ? flag : line));
        }
        free(page);
    }
    char *program = aq_options_man(NULL);
    assert_non_null(strstr(program, ".BR aquifer\\-generate (1)"));
    free(program);
    free(bash);
    free(zsh);
}

/* As the overview has them, too. */
static void pages_and_completions_name_every_topic_of_help(void **state)
{
    char *bash = aq_options_bash(), *zsh = aq_options_zsh(), *page = aq_options_man(NULL);
    char *overview = aq_options_help(NULL, false), line[64];
    const char *at = strstr(bash, "    help)\n        words='");
    assert_non_null(at);
    at += strlen("    help)\n        words='");
    for (uint32_t i = 0; i < aq_help_topic_count; i++) {
        const char *name = aq_help_topics[i].name;
        assert_null(aq_command_find(name)); /* help of a command */
        snprintf(line, sizeof(line), " %s ", name);
        assert_memory_equal(at, line, strlen(line)); /* one behind the other */
        at += strlen(line) - 1;
        snprintf(line, sizeof(line), "      '%s:", name);
        assert_non_null(strstr(zsh, line));
        snprintf(line, sizeof(line), "\\fBhelp %s\\fR\n", name);
        assert_non_null(strstr(page, line));
        snprintf(line, sizeof(line), "\n  %-10s", name);
        assert_non_null(strstr(overview, line));
    }
    free(bash);
    free(zsh);
    free(page);
    free(overview);
}

/* `info` has no machine here, and only `plan` lists them or ranks them by commas. */
static void machines_are_offered_where_the_command_takes_them(void **state)
{
    static const struct {
        const char *command, *words;
    } table[] = {{"generate", " local "}, {"plan", " local all list "}, {"info", " all "}};
    char *bash = aq_options_bash();
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        char line[128];
        snprintf(line, sizeof(line), "%s:--hardware)\n        option=known words='%s",
                 table[i].command, table[i].words);
        if (!strstr(bash, line))
            fail_msg("%s: expected --hardware with%s", table[i].command, table[i].words);
    }
    free(bash);
}

static void lines_of_a_manual_page_are_no_requests_by_accident(void **state)
{
    static const char *const requests[] = {".\\\"", ".TH", ".nh", ".ad",
                                           ".SH",   ".SS", ".TP", ".BR"};
    for (uint32_t c = 0; c < aq_command_count; c++) {
        char *page = aq_options_man(aq_command_table[c].name);
        for (const char *at = page; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
            assert_true(*at != '\'');
            size_t name = strcspn(at, " \n");
            bool known = false;
            for (size_t i = 0; i < AQ_ARRAY_LEN(requests); i++)
                known |= strlen(requests[i]) == name && strncmp(at, requests[i], name) == 0;
            assert_true(*at != '.' || known);
        }
        free(page);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(manual_pages_and_completions_name_every_option),
    cmocka_unit_test(pages_and_completions_name_every_topic_of_help),
    cmocka_unit_test(machines_are_offered_where_the_command_takes_them),
    cmocka_unit_test(lines_of_a_manual_page_are_no_requests_by_accident),
};

AQ_TEST_MAIN(tests)
