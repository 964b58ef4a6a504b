/* SPDX-License-Identifier: Apache-2.0
 * Templates against what jinja2 makes of them, as transformers configures it: construct by
 * construct, and published chat templates with conversations (tests/data/chat, made by its
 * make.py). */
#include "base/json.h"
#include "engine/chat/jinja.h"
#include "tests/test.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static struct aq_text text_of(const json_t *v)
{
    return (struct aq_text){json_string_value(v), json_string_length(v)};
}

static json_t *read_data(const char *name)
{
    json_t *root;
    struct aq_err err = {0};
    char path[64];
    snprintf(path, sizeof(path), "chat/%s", name);
    if (aq_json_read_file(&root, test_data_path(path), 64 << 20, &err) < 0)
        fail_msg("%s", err.text);
    return root;
}

/* The time make.py renders at. */
static struct tm fixed_time(void)
{
    struct tm t = {.tm_year = 125,
                   .tm_mon = 2,
                   .tm_mday = 4,
                   .tm_hour = 5,
                   .tm_min = 6,
                   .tm_sec = 7,
                   .tm_wday = 2,
                   .tm_yday = 62};
    return t;
}

/* 0, or what opening or rendering came back with. */
static int render(struct aq_buf *out, struct aq_text template, const json_t *variables,
                  struct aq_err *err)
{
    struct aq_jinja *t;
    *err = (struct aq_err){0};
    int rc = aq_jinja_open(&t, "test", template, err);
    if (rc < 0)
        return rc;
    const struct aq_jinja_input input = {.variables = variables, .now = fixed_time()};
    rc = aq_jinja_render(out, t, &input, err);
    aq_jinja_close(t);
    return rc;
}

/* Whether the answer is jinja2's: its text, or an error where it has one. */
static bool agrees(const char *name, struct aq_text template, const json_t *variables,
                   const json_t *want)
{
    struct aq_buf out = {0};
    struct aq_err err;
    int rc = render(&out, template, variables, &err);
    struct aq_text text = text_of(json_object_get(want, "text"));
    bool same = text.bytes ? rc == 0 && out.count == text.count &&
                                 !memcmp(out.count ? out.data : "", text.bytes, text.count)
                           : rc == -ENOEXEC || rc == -EBADMSG || rc == -E2BIG;
    if (!same)
        fprintf(stderr, "%s: %.*s\n  found: %s\n  jinja2: %s\n", name,
                (int)(template.count < 200 ? template.count : 200), template.bytes,
                rc < 0      ? err.text
                : out.count ? out.data
                            : "(empty)",
                text.bytes ? text.bytes : json_string_value(json_object_get(want, "error")));
    aq_buf_close(&out);
    return same;
}

static void every_construct_means_what_it_means_in_jinja2(void **state)
{
    json_t *root = read_data("constructs.json"), *variables = json_object_get(root, "variables");
    json_t *c;
    size_t i;
    unsigned wrong = 0;
    json_array_foreach(json_object_get(root, "answers"), i, c) wrong +=
        !agrees("construct", text_of(json_object_get(c, "template")), variables, c);
    assert_true(i > 800);
    json_decref(root);
    assert_int_equal(wrong, 0);
}

static void what_is_not_known_is_refused_by_name_and_line(void **state)
{
    json_t *root = read_data("constructs.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(root, "refused"), i, c)
    {
        struct aq_jinja *t;
        struct aq_err err = {0};
        struct aq_text template = text_of(json_object_get(c, "template"));
        const char *what = json_string_value(json_object_get(c, "what"));
        char line[64];
        snprintf(line, sizeof(line), "chat template 'a.jinja': line %d: ",
                 (int)json_integer_value(json_object_get(c, "line")));
        int rc = aq_jinja_open(&t, "a.jinja", template, &err);
        if (rc != -ENOEXEC || strncmp(err.text, line, strlen(line)) != 0 || !strstr(err.text, what))
            fail_msg("%s: expected '%s' of line %s, found rc %d: %s", template.bytes, what, line,
                     rc, err.text);
    }
    assert_true(i > 20);
    json_decref(root);
}

/* The variables that transformers gives to a template. */
static json_t *variables_of(const json_t *root, const json_t *conversation)
{
    json_t *v = json_pack("{s:n, s:n, s:b}", "tools", "documents", "add_generation_prompt", 1);
    json_object_update(v, json_object_get(root, "tokens"));
    json_object_update(v, (json_t *)conversation);
    return v;
}

static void published_templates_render_as_with_transformers(void **state)
{
    json_t *root = read_data("goldens.json"), *rows, *want;
    const char *name, *conversation;
    unsigned wrong = 0, count = 0;
    json_object_foreach(json_object_get(root, "templates"), name, rows)
    {
        char path[128], *text;
        size_t bytes;
        struct aq_err err = {0};
        snprintf(path, sizeof(path), "chat/templates/%s.jinja", name);
        if (aq_read_file(&text, &bytes, test_data_path(path), 1 << 20, &err) < 0)
            fail_msg("%s", err.text);
        json_object_foreach(rows, conversation, want)
        {
            json_t *v = variables_of(
                root, json_object_get(json_object_get(root, "conversations"), conversation));
            if (!agrees(name, (struct aq_text){text, bytes}, v, want)) {
                fprintf(stderr, "^ %s\n", conversation);
                wrong++;
            }
            json_decref(v);
        }
        free(text);
        count++;
    }
    json_decref(root);
    assert_true(count >= 12);
    assert_int_equal(wrong, 0);
}

/* ---- templates that mean harm ---- */

/* begin OPEN... middle CLOSE... end, both `times` over. */
static char *nested(const char *begin, const char *open, unsigned times, const char *middle,
                    const char *close, const char *end)
{
    struct aq_buf b = {0};
    aq_buf_puts(&b, begin);
    for (unsigned i = 0; i < times; i++)
        aq_buf_puts(&b, open);
    aq_buf_puts(&b, middle);
    for (unsigned i = 0; i < times; i++)
        aq_buf_puts(&b, close);
    aq_buf_puts(&b, end);
    return aq_buf_take(&b);
}

static char *repeated(const char *begin, const char *part, unsigned times, const char *end)
{
    return nested(begin, part, times, "", "", end);
}

static void expect_failure(char *template, int want, const char *part)
{
    struct aq_buf out = {0};
    struct aq_err err;
    json_t *none = json_object();
    int rc = render(&out, (struct aq_text){template, strlen(template)}, none, &err);
    json_decref(none);
    if (rc != want || !strstr(err.text, part) || out.count)
        fail_msg("%.60s: expected %d and '%s', found %d: %s", template, want, part, rc, err.text);
    aq_buf_close(&out);
    free(template);
}

static void deep_nesting_is_refused_at_open(void **state)
{
    enum { MANY = 50000 };
    static const char deep[] = "in one another";
    expect_failure(nested("{{ ", "(", 200, "1", ")", " }}"), -ENOEXEC, deep);
    expect_failure(repeated("{{ ", "(", MANY, "1"), -ENOEXEC, "brackets");
    expect_failure(nested("{{ ", "[", 200, "1", "]", " }}"), -ENOEXEC, deep);
    expect_failure(nested("{{ ", "{1:", 200, "1", "}", " }}"), -ENOEXEC, deep);
    expect_failure(repeated("{{ ", "not ", MANY, "1 }}"), -ENOEXEC, deep);
    expect_failure(repeated("{{ ", "-", MANY, "1 }}"), -ENOEXEC, deep);
    expect_failure(repeated("{{ ", "a if b else ", MANY, "1 }}"), -ENOEXEC, deep);
    expect_failure(repeated("", "{% if a %}", MANY, ""), -ENOEXEC, deep);
    expect_failure(repeated("", "{% for a in b %}", MANY, ""), -ENOEXEC, deep);
    expect_failure(nested("{% set ", "(", 200, "a", ")", " = 1 %}"), -ENOEXEC, deep);
    expect_failure(nested("{{ a", "[b", 200, "", "]", " }}"), -ENOEXEC, deep);
    expect_failure(repeated("", "x", AQ_JINJA_TEXT_MAX + 1, ""), -ENOEXEC, "bytes");
}

/* Chains that nest in the tree, though not in the text. */
static void long_chains_end_at_the_depth_of_evaluation(void **state)
{
    enum { MANY = 50000 };
    static const char deep[] = "in one another";
    expect_failure(repeated("{{ 1", " + 1", MANY, " }}"), -E2BIG, deep);
    expect_failure(repeated("{{ 1", "|string", MANY, " }}"), -E2BIG, deep);
    expect_failure(repeated("{{ a", "[0]", MANY, " }}"), -E2BIG, deep);
    expect_failure(repeated("{{ a", ".b", MANY, " }}"), -E2BIG, deep);
    expect_failure(repeated("{{ 1", " is defined", 2, " }}"), -ENOEXEC, "two tests");
    expect_failure(repeated("{{ 1", " and 1", MANY, " }}"), -E2BIG, deep);
    expect_failure(repeated("{% macro f(x) %}{{ f(x) }}", "", 0, "{% endmacro %}{{ f(1) }}"),
                   -E2BIG, deep);
    expect_failure(
        repeated("{% set ns = namespace() %}", "{% set ns.a = [ns.a] %}", 700, "{{ ns.a }}"),
        -E2BIG, "nested too deep");
}

static void work_memory_and_output_are_bounded(void **state)
{
    static const char loop[] = "{% for a in r %}";
    expect_failure(nested("{% set r = range(100000) %}", loop, 3, "", "{% endfor %}", ""), -E2BIG,
                   "steps");
    expect_failure(nested("", "{% for a in range(100000) %}", 3, "", "{% endfor %}", ""), -E2BIG,
                   "memory");
    expect_failure(repeated("", "{{ range(1000000000) }}", 1, ""), -E2BIG, "range");
    expect_failure(repeated("{{ 'x' * 100000000000 }}", "", 0, ""), -E2BIG, "too long");
    expect_failure(repeated("{% set a = 'x' * 10000000 %}", "{{ a }}", 100, ""), -E2BIG, "MiB");
    expect_failure(repeated("{% set a = 'x' * 1000000 %}", "{% set a = a ~ a %}", 20, "{{ a }}"),
                   -E2BIG, "");
    expect_failure(repeated("{% set a = [1] * 1000 %}", "{% set a = a + a %}", 30, ""), -E2BIG, "");
    expect_failure(repeated("{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", "", 0, ""), -E2BIG,
                   "too long");
    expect_failure(repeated("{{ ('a' * 100000)|replace('', 'b' * 100000) }}", "", 0, ""), -E2BIG,
                   "too long");
    expect_failure(repeated("{{ ([1] * 100000)|join('b' * 100000) }}", "", 0, ""), -E2BIG,
                   "too long");
    expect_failure(repeated("{{ ('a\n' * 100000)|indent(100000) }}", "", 0, ""), -E2BIG,
                   "too long");
    expect_failure(repeated("{{ ([[1] * 300] * 300)|tojson(indent=100000) }}", "", 0, ""), -E2BIG,
                   "too long");
    expect_failure(
        repeated("{% set d = namespace() %}{% for a in range(100000) %}{% set d.x = 'x' * 1000 %}",
                 "", 0, "{% endfor %}"),
        -E2BIG, "");
}

static void a_failure_says_template_line_and_what(void **state)
{
    struct aq_buf out = {0};
    struct aq_err err;
    json_t *v = json_pack("{s:{s:s}}", "message", "role", "user");
    struct aq_text text = {"a\n\n{{ message.content.text }}", 0};
    text.count = strlen(text.bytes);
    assert_int_equal(render(&out, text, v, &err), -EBADMSG);
    assert_string_equal(err.text, "chat template 'test': line 3: 'dict object' has no attribute "
                                  "'content'");
    json_decref(v);
    aq_buf_close(&out);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_construct_means_what_it_means_in_jinja2),
    cmocka_unit_test(what_is_not_known_is_refused_by_name_and_line),
    cmocka_unit_test(published_templates_render_as_with_transformers),
    cmocka_unit_test(deep_nesting_is_refused_at_open),
    cmocka_unit_test(long_chains_end_at_the_depth_of_evaluation),
    cmocka_unit_test(work_memory_and_output_are_bounded),
    cmocka_unit_test(a_failure_says_template_line_and_what),
};

AQ_TEST_MAIN(tests)
