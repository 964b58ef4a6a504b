/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/options/options_rig.h"

#include "tests/test.h"

#include <stdio.h>
#include <string.h>

/* "a|b c|d" as the words "a", "b c", "d". */
int options_split(const char *line, char *copy, size_t bytes, char *words[WORDS_MAX])
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

int options_rc(struct aq_options **ret, const char *command, const char *line, bool *help,
               struct aq_err *err)
{
    char copy[1024], *words[WORDS_MAX];
    int count = options_split(line, copy, sizeof(copy), words);
    return aq_options_from_args(ret, command, count, words, help, err);
}

struct aq_options *options_parse(const char *command, const char *line)
{
    struct aq_options *o = NULL;
    struct aq_err err = {0};
    bool help = false;
    if (options_rc(&o, command, line, &help, &err) < 0)
        fail_msg("%s: %s", line, err.text);
    assert_false(help);
    return o;
}

void options_refuse_code(const char *command, const char *line, int code, const char *words)
{
    struct aq_options *o = NULL;
    struct aq_err err = {0};
    bool help = false;
    if (options_rc(&o, command, line, &help, &err) != code)
        fail_msg("%s: expected code %d, found %d %s", line, code, err.code, err.text);
    assert_null(o);
    if (!strstr(err.text, words))
        fail_msg("%s: expected '%s' in: %s", line, words, err.text);
}

void options_refuse(const char *command, const char *line, const char *words)
{
    options_refuse_code(command, line, -EINVAL, words);
}

void options_refuse_together(const char *command, const char *line, const char *words)
{
    struct aq_options *o = options_parse(command, line);
    struct aq_err err = {0};
    if (aq_options_check(o, &err) != -EINVAL || !strstr(err.text, words))
        fail_msg("%s: expected '%s' in: %s", line, words, err.text);
    aq_options_close(o);
}

void options_accept_together(const char *command, const char *line)
{
    struct aq_options *o = options_parse(command, line);
    struct aq_err err = {0};
    if (aq_options_check(o, &err) < 0)
        fail_msg("%s: %s", line, err.text);
    aq_options_close(o);
}
