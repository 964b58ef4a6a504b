/* SPDX-License-Identifier: Apache-2.0
 * Options as words of a shell: of every row of the table what is written is read back the same, and
 * a command takes from another one what both have. */
#include "engine/options/options.h"
#include "engine/options/table.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 512 };

/* A text that shells, escapes and JSON have something to say about. */
static const char hard[] = "it's \"$HOME\" `x`\\n\n\t!\\";

static const struct {
    const char *name, *value;
} checked[] = {
    {"shard", "1/2"},
    {"chat-time", "2026-01-31"},
    {"prompt-len", "4-8"},
    {"gen-len", "4"},
    {"device", "cpu"},
    {"placement", "weights=0/50/50 kv=0/100/0"},
    {"attention", "host"},
    {"host-products", "25%"},
    {"kv-floor", "mix:20%"},
    {"kv-pool", "max:3"},
    {"kv-layers", "pyramid:20"},
    {"numa", "off"},
    {"emulate-link", "12/12"},
};

static json_t *checked_value(const char *name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(checked); i++) {
        if (strcmp(checked[i].name, name) == 0)
            return json_string(checked[i].value);
    }
    return json_string("20%");
}

/* Its last choice. */
static json_t *choice_of(const struct aq_option *o)
{
    const char *last = strrchr(o->choices, '|');
    return json_string(last ? last + 1 : o->choices);
}

/* A value that the row takes; `on` of what is on or off.  NULL: it takes none on a command line. */
static json_t *value_of(const struct aq_option *o, bool on)
{
    if (o->flags & (AQ_OPTION_API_ONLY | AQ_OPTION_POSITIONAL))
        return NULL;
    switch (o->kind) {
    case AQ_OPTION_BOOL: return json_boolean(on);
    case AQ_OPTION_NO_BOS: return on ? json_true() : NULL;
    case AQ_OPTION_STRING: return json_string(hard);
    case AQ_OPTION_STRINGS:
        return o->check ? json_pack("[s, s]", "t4-208gb=$0.50/h", "l4-24gb=1 EUR/h")
                        : json_pack("[s, s]", hard, "b");
    case AQ_OPTION_LIST: return json_pack("[s, s]", "a'b", "c");
    case AQ_OPTION_U32_LIST: return json_pack("[i, i]", 3, 5);
    case AQ_OPTION_REAL:
    case AQ_OPTION_DURATION: return json_real(o->min + 0.25);
    case AQ_OPTION_U32:
    case AQ_OPTION_U64:
    case AQ_OPTION_INT: return json_integer((json_int_t)o->min + (o->max != o->min));
    case AQ_OPTION_SIZE: return json_integer(1 << 20);
    case AQ_OPTION_DTYPE:
    case AQ_OPTION_CHOICE:
    case AQ_OPTION_ENUM:
    case AQ_OPTION_CHOICE_ON: return choice_of(o);
    case AQ_OPTION_CHECKED: return checked_value(o->name);
    case AQ_OPTION_LATER:
    case AQ_OPTION_LATER_FLAG: break;
    }
    return NULL;
}

static struct aq_options *read_json(const char *command, const json_t *object)
{
    struct aq_options *o;
    struct aq_err err;
    if (aq_options_from_json(&o, command, object, &err) < 0)
        fail_msg("%s: %s", command, err.text);
    return o;
}

/* Every option of a command. */
static struct aq_options *all_of(const struct aq_command *command, bool on)
{
    json_t *object = json_object();
    for (uint32_t i = 0; i < aq_option_count; i++) {
        json_t *v =
            aq_option_table[i].commands & command->bit ? value_of(&aq_option_table[i], on) : NULL;
        if (v)
            json_object_set_new(object, aq_option_table[i].name, v);
    }
    struct aq_options *o = read_json(command->name, object);
    json_decref(object);
    return o;
}

/* What a shell makes of the line: words between NULs. */
static int split_by_shell(const char *line, char *text, size_t bytes, char *words[WORDS_MAX])
{
    struct aq_buf script = {0};
    int count = 0;
    aq_buf_printf(&script, "printf '%%s\\0' %s", line);
    FILE *f = popen(script.data, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, bytes, f);
    assert_int_equal(pclose(f), 0);
    assert_true(n < bytes);
    for (char *at = text; at < text + n; at += strlen(at) + 1) {
        assert_true(count < WORDS_MAX);
        words[count++] = at;
    }
    aq_buf_close(&script);
    return count;
}

static void check_command(const struct aq_command *command, bool on)
{
    struct aq_options *given = all_of(command, on), *read = NULL;
    json_t *values = aq_options_to_json(given), *again, *v;
    static char text[1 << 16];
    char *words[WORDS_MAX];
    struct aq_buf line = {0};
    struct aq_err err;
    const char *key;
    bool help;
    json_object_del(values, "command");
    json_object_foreach(values, key, v) aq_options_put_flag(&line, command->name, key, v);
    assert_false(line.failed);
    int count = split_by_shell(line.data ? line.data : "", text, sizeof(text), words);
    if (aq_options_from_args(&read, command->name, count, words, &help, &err) < 0)
        fail_msg("%s: %s", command->name, err.text);
    again = aq_options_to_json(read);
    json_object_foreach(values, key, v)
    {
        if (!json_equal(v, json_object_get(again, key)))
            fail_msg("%s: --%s came back as another value", command->name, key);
    }
    json_decref(values);
    json_decref(again);
    aq_buf_close(&line);
    aq_options_close(given);
    aq_options_close(read);
}

static void what_is_written_for_a_shell_is_read_back(void **state)
{
    for (uint32_t c = 0; c < aq_command_count; c++) {
        check_command(&aq_command_table[c], false);
        check_command(&aq_command_table[c], true);
    }
}

static void a_command_takes_what_it_shares_with_another(void **state)
{
    const struct aq_command *plan = aq_command_find("plan"), *run = aq_command_find("generate");
    struct aq_options *o = all_of(plan, true);
    json_t *shared = aq_options_shared(o, "generate", NULL);
    for (uint32_t i = 0; i < aq_option_count; i++) {
        const struct aq_option *row = &aq_option_table[i];
        json_t *v = row->commands & plan->bit ? value_of(row, true) : NULL;
        bool both = row->commands & run->bit && row->group != AQ_GROUP_REPORT;
        char key[64];
        if (!v)
            continue;
        snprintf(key, sizeof(key), "%s", row->name);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        if (both != (json_object_get(shared, key) != NULL))
            fail_msg("--%s: expected it %s generate", row->name, both ? "in" : "out of");
        json_decref(v);
    }
    assert_null(json_object_get(shared, "tokenizer")); /* of plan alone */
    assert_null(json_object_get(shared, "json"));
    assert_non_null(json_object_get(shared, "device"));
    aq_options_close(read_json("generate", shared));
    json_decref(shared);
    shared = aq_options_shared(o, "generate", "bench");
    assert_null(json_object_get(shared, "micro_batch")); /* a list there */
    assert_null(json_object_get(shared, "prompt_template"));
    assert_non_null(json_object_get(shared, "kv_read_dense"));
    aq_options_close(read_json("bench", shared));
    json_decref(shared);
    aq_options_close(o);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_is_written_for_a_shell_is_read_back),
    cmocka_unit_test(a_command_takes_what_it_shares_with_another),
};

AQ_TEST_MAIN(tests)
