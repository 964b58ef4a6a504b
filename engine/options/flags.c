/* SPDX-License-Identifier: Apache-2.0
 * engine/options/flags.c - options as words of a shell, which words.c reads back. */
#include "base/json.h"
#include "engine/options/options.h"
#include "engine/options/table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* As unescape() of words.c reads it. */
static void put_escaped(struct aq_buf *out, const char *text)
{
    for (; *text; text++) {
        const char *escape = *text == '\n' ? "\\n" : *text == '\t' ? "\\t" : "\\\\";
        bool special = *text == '\n' || *text == '\t' || *text == '\\';
        aq_buf_put(out, special ? escape : text, special ? 2 : 1);
    }
}

/* One value as one word. */
static void put_word(struct aq_buf *out, const struct aq_option *option, const json_t *v)
{
    char *dumped = json_is_string(v) ? NULL : aq_json_dump(v, JSON_ENCODE_ANY);
    const char *text = json_is_string(v) ? json_string_value(v) : dumped;
    struct aq_buf word = {.failed = !text};
    if (text && (option->flags & AQ_OPTION_ESCAPES))
        put_escaped(&word, text);
    else if (text)
        aq_buf_puts(&word, text);
    out->failed |= word.failed;
    aq_buf_puts(out, " ");
    aq_buf_shell_word(out, word.data ? word.data : "");
    aq_buf_close(&word);
    free(dumped);
}

void aq_options_put_flag(struct aq_buf *out, const char *command, const char *key, const json_t *v)
{
    const struct aq_option *option;
    size_t i, count = json_is_array(v) ? json_array_size(v) : 1;
    int rc = aq_option_find(&option, aq_command_find(command), key, "--", NULL);
    assert(rc == 0); /* the command has it */
    for (i = 0; i < count; i++) {
        aq_buf_printf(out, " --%s%s", json_is_false(v) ? "no-" : "", option->name);
        if (!json_is_boolean(v))
            put_word(out, option, json_is_array(v) ? json_array_get(v, i) : v);
    }
}
