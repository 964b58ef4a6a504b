/* SPDX-License-Identifier: Apache-2.0
 * Chat templates where memory runs out: whichever allocation fails, opening and rendering end in
 * -ENOMEM or in the right text, and what was taken is given back. */
#include "engine/chat/jinja.h"
#include "tests/test.h"

#include <errno.h>
#include <string.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

static long left = -1; /* allocations until one fails; < 0: none does */

static bool fails(void)
{
    return left >= 0 && left-- == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

static const char template[] =
    "{% set ns = namespace(n=0, l=[]) %}{% macro f(x, y='b') %}{{ x ~ y }}{% endmacro %}"
    "{% for m in messages|selectattr('role')|list %}{% set ns.n = ns.n + 1 %}{{ m.role|upper }}:"
    "{{ m.content.strip().replace('a', 'bb').split('b')|join('-') }}{{ f(m.role) }}"
    "{{ m|tojson(indent=2) }}{{ m.items()|list }}{% endfor %}{% set text %}{{ ns.n }}{% endset %}"
    "{{ text|indent(4, true) }}{{ ('x' * 40000)|length }}{{ {'b': 1, 'a': 2}|dictsort }}";

/* The text of one opening and rendering, or what they failed with. */
static int run(struct aq_buf *out, const json_t *variables)
{
    struct aq_jinja *t;
    struct aq_err err = {0};
    int rc = aq_jinja_open(&t, "t", (struct aq_text){template, sizeof(template) - 1}, &err);
    if (rc < 0)
        return rc;
    const struct aq_jinja_input input = {.variables = variables};
    rc = aq_jinja_render(out, t, &input, &err);
    aq_jinja_close(t);
    return rc;
}

static void any_allocation_may_fail(void **state)
{
    json_t *variables = json_pack("{s:[{s:s, s:s}, {s:s, s:s}]}", "messages", "role", "user",
                                  "content", " banana ", "role", "assistant", "content", "a");
    struct aq_buf want = {0};
    assert_int_equal(run(&want, variables), 0);
    assert_true(want.count > 100);
    int rc = -ENOMEM;
    long n = 0;
    for (; rc < 0 && n < 10000; n++) {
        struct aq_buf out = {0};
        left = n;
        rc = run(&out, variables);
        bool reached = left < 0;
        left = -1;
        if (rc < 0) {
            assert_true(reached);
            assert_int_equal(rc, -ENOMEM);
            assert_int_equal(out.count, 0);
        } else {
            assert_string_equal(out.data, want.data);
        }
        aq_buf_close(&out);
    }
    assert_int_equal(rc, 0);
    assert_true(n > 20);
    aq_buf_close(&want);
    json_decref(variables);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(any_allocation_may_fail)};

AQ_TEST_MAIN(tests)
