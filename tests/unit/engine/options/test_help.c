/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/aquifer.h"
#include "engine/options/help_topics.h"
#include "engine/options/options.h"
#include "engine/options/table.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 64 };

/* "a|b c|d" as the words "a", "b c", "d". */
static int split(const char *line, char *copy, size_t bytes, char *words[WORDS_MAX])
{
    int count = 0;
    assert_true(snprintf(copy, bytes, "%s", line) < (int)bytes);
    for (char *save = NULL, *word = strtok_r(copy, "|", &save); word;
         word = strtok_r(NULL, "|", &save)) {
        assert_true(count < WORDS_MAX);
        words[count++] = word;
    }
    return count;
}

static char *text_of(const char *line)
{
    char copy[256], *words[WORDS_MAX], *json = NULL, *text = NULL;
    struct aquifer_error error;
    int count = split(line, copy, sizeof(copy), words);
    if (aquifer_parse_args(count, words, &json, &text, &error) < 0)
        fail_msg("%s: %s", line, error.text);
    assert_null(json);
    assert_non_null(text);
    return text;
}

static uint32_t lines_of(const char *text)
{
    uint32_t lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

static void short_help_has_the_basic_options_and_says_how_many_more(void **state)
{
    char *basic = text_of("help|generate"), *all = text_of("help|generate|--all");
    char *again = text_of("generate|--help-all"), *other = text_of("help|--all|generate");
    assert_true(lines_of(basic) * 2 < lines_of(all));
    assert_non_null(strstr(basic, "--max-tokens N"));
    assert_null(strstr(basic, "--kv-cross-layer"));
    assert_non_null(strstr(basic, "aquifer help generate --all shows "));
    assert_non_null(strstr(all, "--kv-cross-layer"));
    assert_null(strstr(all, "more options"));
    assert_string_equal(all, again);
    assert_string_equal(all, other);
    aquifer_free(basic);
    aquifer_free(all);
    aquifer_free(again);
    aquifer_free(other);
}

/* What stands in the help as an example is a command line of ours, two for each command. */
static void the_examples_of_help_are_taken(void **state)
{
    for (uint32_t c = 0; c < aq_command_count; c++) {
        const struct aq_command *command = &aq_command_table[c];
        for (size_t i = 0; i < AQ_ARRAY_LEN(command->examples); i++) {
            char copy[256], *words[WORDS_MAX], *json = NULL, *text = NULL, *save = NULL;
            struct aquifer_error error;
            int count = 0;
            assert_non_null(command->examples[i]);
            snprintf(copy, sizeof(copy), "%s", command->examples[i]);
            for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
                words[count++] = w;
            assert_string_equal(words[0], "aquifer");
            assert_string_equal(words[1], command->name);
            if (aquifer_parse_args(count - 1, words + 1, &json, &text, &error) < 0)
                fail_msg("%s: %s", command->examples[i], error.text);
            aquifer_free(json);
        }
    }
}

static void basic_options_are_options_of_the_command(void **state)
{
    for (uint32_t c = 0; c < aq_command_count; c++) {
        char copy[1024], *save = NULL;
        const struct aq_option *option;
        if (!aq_command_table[c].basic)
            continue;
        snprintf(copy, sizeof(copy), "%s", aq_command_table[c].basic);
        for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
            if (aq_option_find(&option, &aq_command_table[c], w, "--", NULL) < 0)
                fail_msg("%s has no option --%s", aq_command_table[c].name, w);
        }
    }
}

static void help_is_as_wide_as_the_terminal(void **state)
{
    static const struct {
        const char *columns;
        size_t width;
    } table[] = {{NULL, 80}, {"60", 60}, {"20", 60}, {"90", 90}, {"300", 100}, {"wide", 80}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        size_t widest = 0;
        unsetenv("COLUMNS");
        if (table[i].columns)
            setenv("COLUMNS", table[i].columns, 1);
        char *text = aq_options_help("generate", true);
        for (const char *at = text; *at; at += strcspn(at, "\n") + 1)
            widest = strcspn(at, "\n") > widest ? strcspn(at, "\n") : widest;
        assert_true(widest <= table[i].width && widest + 6 > table[i].width);
        free(text);
    }
    unsetenv("COLUMNS");
}

static void topics_have_help_of_their_own(void **state)
{
    char *words = text_of("help|words"), *hardware = text_of("help|hardware");
    assert_non_null(strstr(words, "\n  seat "));
    assert_non_null(strstr(words, "\n  lane "));
    assert_non_null(strstr(hardware, "\n  memory_gb_s"));
    for (const char *at = words; *at; at += strcspn(at, "\n") + 1)
        assert_true(strcspn(at, "\n") <= 80);
    aquifer_free(words);
    aquifer_free(hardware);
    for (uint32_t i = 0; i < aq_help_topic_count; i++) {
        char line[64];
        snprintf(line, sizeof(line), "help|%s", aq_help_topics[i].name);
        char *text = text_of(line);
        assert_true(lines_of(text) > 9);
        aquifer_free(text);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(short_help_has_the_basic_options_and_says_how_many_more),
    cmocka_unit_test(the_examples_of_help_are_taken),
    cmocka_unit_test(basic_options_are_options_of_the_command),
    cmocka_unit_test(help_is_as_wide_as_the_terminal),
    cmocka_unit_test(topics_have_help_of_their_own),
};

AQ_TEST_MAIN(tests)
