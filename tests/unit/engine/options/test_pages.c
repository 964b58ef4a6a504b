/* SPDX-License-Identifier: Apache-2.0 */
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
    cmocka_unit_test(lines_of_a_manual_page_are_no_requests_by_accident),
};

AQ_TEST_MAIN(tests)
