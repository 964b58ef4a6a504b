/* SPDX-License-Identifier: Apache-2.0 */
#include "base/yaml.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct aq_yaml *parse(const char *text)
{
    struct aq_yaml *y = NULL;
    struct aq_err err = {0};
    if (aq_yaml_parse(&y, "test.yaml", text, strlen(text), &err) < 0)
        fail_msg("%s", err.text);
    return y;
}

/* Parses what must be refused, with a message that holds `words`. */
static void refuse(const char *text, const char *words)
{
    struct aq_yaml *y = NULL;
    struct aq_err err = {0};
    if (aq_yaml_parse(&y, "test.yaml", text, strlen(text), &err) != -EINVAL)
        fail_msg("was taken: %s", text);
    assert_null(y);
    if (!strstr(err.text, words))
        fail_msg("expected '%s' in: %s", words, err.text);
    assert_non_null(strstr(err.text, "test.yaml"));
}

static void a_map_keeps_order_lines_and_the_text_of_its_scalars(void **state)
{
    struct aq_yaml *y = parse("# settings\nmodel: some/dir\n\nkv-budget: 1.0\nseed: 007\n");
    const struct aq_yaml_node *root = aq_yaml_root(y), *n = root->first;
    assert_int_equal(root->kind, AQ_YAML_MAP);
    assert_int_equal(root->count, 3);
    assert_string_equal(n->key, "model");
    assert_string_equal(n->text, "some/dir");
    assert_int_equal(n->line, 2);
    n = n->next;
    assert_string_equal(n->text, "1.0");
    assert_int_equal(n->line, 4);
    assert_string_equal(n->next->text, "007");
    assert_null(n->next->next);
    aq_yaml_close(y);
}

static void lists_and_maps_nest(void **state)
{
    struct aq_yaml *y = parse("rows:\n  - {a: 1, b: [x, y]}\n  - plain\n");
    const struct aq_yaml_node *rows = aq_yaml_get(aq_yaml_root(y), "rows");
    assert_int_equal(rows->kind, AQ_YAML_LIST);
    assert_int_equal(rows->count, 2);
    const struct aq_yaml_node *b = aq_yaml_get(rows->first, "b");
    assert_int_equal(b->count, 2);
    assert_string_equal(b->first->next->text, "y");
    assert_string_equal(rows->first->next->text, "plain");
    assert_int_equal(rows->first->next->line, 3);
    assert_null(aq_yaml_get(rows, "a"));
    aq_yaml_close(y);
}

static void quotes_make_text_of_what_looks_like_nothing(void **state)
{
    struct aq_yaml *y = parse("a: ~\nb: null\nc:\nd: \"\"\ne: 'null'\n");
    const struct aq_yaml_node *root = aq_yaml_root(y);
    assert_int_equal(aq_yaml_get(root, "a")->kind, AQ_YAML_NULL);
    assert_int_equal(aq_yaml_get(root, "b")->kind, AQ_YAML_NULL);
    assert_int_equal(aq_yaml_get(root, "c")->kind, AQ_YAML_NULL);
    assert_int_equal(aq_yaml_get(root, "d")->kind, AQ_YAML_SCALAR);
    assert_string_equal(aq_yaml_get(root, "d")->text, "");
    assert_true(aq_yaml_get(root, "e")->quoted);
    assert_string_equal(aq_yaml_get(root, "e")->text, "null");
    aq_yaml_close(y);
}

static void escapes_and_blocks_are_read(void **state)
{
    struct aq_yaml *y = parse("a: \"tab\\tq\\u00e9\"\nb: |\n  one\n  two\n");
    assert_string_equal(aq_yaml_get(aq_yaml_root(y), "a")->text, "tab\tq\xc3\xa9");
    assert_string_equal(aq_yaml_get(aq_yaml_root(y), "b")->text, "one\ntwo\n");
    aq_yaml_close(y);
}

static void an_empty_file_is_nothing(void **state)
{
    static const char *const empty[] = {"", "\n\n", "# only a comment\n", "---\n"};
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
        struct aq_yaml *y = parse(empty[i]);
        assert_int_equal(aq_yaml_root(y)->kind, AQ_YAML_NULL);
        aq_yaml_close(y);
    }
}

static void syntax_errors_name_line_and_reason(void **state)
{
    refuse("a: 1\nb: [1, 2\n", "test.yaml:3");
    refuse("a: 'x\n", "quote");
    refuse("a: b: c\n", "test.yaml:1");
}

static void doubles_are_refused_with_both_lines(void **state)
{
    refuse("a: 1\nb: 2\na: 3\n", "test.yaml:3: 'a' was already given in line 1");
}

static void what_settings_do_not_need_is_refused(void **state)
{
    refuse("a: &x 1\n", "test.yaml:1: anchors");
    refuse("b: *x\n", "aliases");
    refuse("a: !!python/object:os.system 1\n", "tags");
    refuse("# x\n%YAML 1.2\n---\na: 1\n", "test.yaml:2: directives");
    refuse("a: 1\n---\nb: 2\n", "one document");
    refuse("? [x]\n: 1\n", "a name as key");
    refuse("a: \"x\\0y\"\n", "NUL");
}

static void a_nul_byte_is_refused(void **state)
{
    struct aq_yaml *y = NULL;
    struct aq_err err;
    assert_int_equal(aq_yaml_parse(&y, "test.yaml", "a: \0b", 5, &err), -EINVAL);
    assert_non_null(strstr(err.text, "NUL"));
}

static void depth_is_bounded(void **state)
{
    refuse("[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]", "at most 16 levels");
    struct aq_yaml *y = parse("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]");
    aq_yaml_close(y);
}

static void keys_of_a_map_are_bounded(void **state)
{
    static char text[AQ_YAML_KEYS_MAX * 16 + 32];
    char *at = text;
    for (int i = 0; i <= AQ_YAML_KEYS_MAX; i++)
        at += sprintf(at, "k%d: 1\n", i);
    refuse(text, "at most 4096 keys");
}

static void values_are_described_for_messages(void **state)
{
    char text[64];
    struct aq_yaml *y = parse("a: [1]\nb: {c: d}\ne: word\nf:\n");
    const struct aq_yaml_node *root = aq_yaml_root(y);
    assert_string_equal(aq_yaml_describe(aq_yaml_get(root, "a"), text, sizeof(text)), "a list");
    assert_string_equal(aq_yaml_describe(aq_yaml_get(root, "b"), text, sizeof(text)), "a map");
    assert_string_equal(aq_yaml_describe(aq_yaml_get(root, "e"), text, sizeof(text)), "'word'");
    assert_string_equal(aq_yaml_describe(aq_yaml_get(root, "f"), text, sizeof(text)), "nothing");
    aq_yaml_close(y);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_map_keeps_order_lines_and_the_text_of_its_scalars),
    cmocka_unit_test(lists_and_maps_nest),
    cmocka_unit_test(quotes_make_text_of_what_looks_like_nothing),
    cmocka_unit_test(escapes_and_blocks_are_read),
    cmocka_unit_test(an_empty_file_is_nothing),
    cmocka_unit_test(syntax_errors_name_line_and_reason),
    cmocka_unit_test(doubles_are_refused_with_both_lines),
    cmocka_unit_test(what_settings_do_not_need_is_refused),
    cmocka_unit_test(a_nul_byte_is_refused),
    cmocka_unit_test(depth_is_bounded),
    cmocka_unit_test(keys_of_a_map_are_bounded),
    cmocka_unit_test(values_are_described_for_messages),
};

AQ_TEST_MAIN(tests)
