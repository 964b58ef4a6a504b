/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "base/prng.h"
#include "base/types.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

/* jansson's memory: the fail_at-th request from 1 is refused, with `on` every later one too. */
static struct {
    unsigned calls, fail_at;
    bool on;
} memory;

static void *give(size_t bytes)
{
    memory.calls++;
    if (memory.fail_at &&
        (memory.on ? memory.calls >= memory.fail_at : memory.calls == memory.fail_at)) {
        errno = ENOMEM;
        return NULL;
    }
    return malloc(bytes);
}

static void refuse(unsigned fail_at, bool on)
{
    memory.calls = 0;
    memory.fail_at = fail_at;
    memory.on = on;
}

static const char *const texts[] = {
    "{\"prompt\": \"a text that is longer than what jansson starts with\", \"n\": "
    "123456789012345678,"
    " \"list\": [1.25, true, null, \"exactly fifteen\", \"sixteen letters!\"], \"\": {}}",
    " \n[\"\\u00e9 \\ud83d\\ude00 escapes beyond sixteen bytes \\\"quoted\\\" \\\\\", {\"a key of "
    "some length\": 0}]",
    "{\"short\": 1}",
    "[]",
    "{\n \"a\": \"0123456789012345678901234567890123456789012345678901234567890123456789\"\n}\n",
    "\"a string alone\"",
};

static void refused_memory_is_told_and_costs_no_byte_of_a_value(void **state)
{
    for (size_t t = 0; t < AQ_ARRAY_LEN(texts); t++) {
        size_t bytes = strlen(texts[t]);
        json_t *want = json_loadb(texts[t], bytes, JSON_DECODE_ANY, NULL);
        assert_non_null(want);
        for (unsigned pass = 0; pass < 2; pass++) {
            bool refused = true;
            for (unsigned k = 1; refused; k++) {
                json_t *got = NULL;
                struct aq_err err;
                refuse(k, pass == 1);
                int rc = aq_json_parse(&got, texts[t], bytes, true, &err);
                refused = memory.calls >= k;
                refuse(0, false);
                if (rc == 0)
                    assert_true(json_equal(got, want));
                else
                    assert_int_equal(rc, -ENOMEM);
                assert_true(rc == 0 || refused);
                json_decref(got);
            }
        }
        json_decref(want);
    }
}

/* Both verdicts on one text; jansson is the reference. */
static void compare_with_jansson(const char *text, size_t bytes, bool reject_duplicates)
{
    json_error_t why;
    json_t *got = NULL;
    struct aq_err err;
    char line[300], quoted[200];
    size_t flags =
        JSON_DECODE_ANY | JSON_ALLOW_NUL | (reject_duplicates ? JSON_REJECT_DUPLICATES : 0);
    json_t *want = json_loadb(text, bytes, flags, &why);
    int rc = aq_json_parse(&got, text, bytes, reject_duplicates, &err);
    assert_int_equal(rc, want ? 0 : -ENOEXEC);
    if (want) {
        assert_true(json_equal(want, got));
    } else {
        snprintf(line, sizeof(line), "line %d column %d: %s", why.line, why.column,
                 aq_quote(quoted, sizeof(quoted), why.text, strlen(why.text)));
        assert_string_equal(err.text, line);
    }
    json_decref(want);
    json_decref(got);
}

static void errors_are_where_they_are_in_the_text(void **state)
{
    static const char *const broken[] = {
        "{\"a long enough string\": }",
        " {\"a long enough string\" 1}",
        "\n\n  [\"a long enough string\", tru]",
        "[\"a long enough string\",\n 12 x]",
        "[\"a long enough string\"",
        "{\"a long enough string\": 1",
        "{\"a long enough string\": 1} 2",
        "{\"a long enough string",
        "{,\"a long enough string\": 1}",
        "[,\"a long enough string\"]",
        "[ }\"a long enough string\"",
        "{\"a long enough string\": 1, \"a long enough string\": 2}",
        "{\"a long enough string\": \"a\nb\"}",
        "{\"a long enough string\": \"\\q\"}",
        "{\"a long enough string\": 1234567890123456789012}",
        "{\"a long enough string\": \"\xff\"}",
        "[\xff\"a long enough string\"]",
    };
    for (size_t t = 0; t < AQ_ARRAY_LEN(broken); t++) {
        struct aq_err err;
        json_t *none = NULL;
        assert_int_equal(aq_json_parse(&none, broken[t], strlen(broken[t]), true, &err), -ENOEXEC);
        compare_with_jansson(broken[t], strlen(broken[t]), true);
    }
}

static void any_text_reads_as_jansson_reads_it(void **state)
{
    static const char pieces[] =
        "{}[]:,\"\"\\\\u0dDc8fn-+.e019 \n\ttrfalsn\xc3\xa9\xff\xf0\x9f\x98\x80";
    for (unsigned i = 0; i < (TEST_SLOW ? 20000 : 200000); i++) {
        uint64_t draws = 0;
        char text[256];
        const char *from = texts[aq_prng_below(5, i, draws++, AQ_ARRAY_LEN(texts))];
        size_t bytes = strlen(from);
        memcpy(text, from, bytes);
        for (uint64_t n = 1 + aq_prng_below(5, i, draws++, 4); n; n--) {
            size_t at = aq_prng_below(5, i, draws++, bytes);
            text[at] = pieces[aq_prng_below(5, i, draws++, sizeof(pieces) - 1)];
            if (aq_prng_below(5, i, draws++, 4) == 0)
                bytes = 1 + at;
        }
        compare_with_jansson(text, bytes, i % 2);
    }
}

static void deep_documents_are_refused_as_by_jansson(void **state)
{
    char text[5000];
    for (size_t depth = 2047; depth <= 2049; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        compare_with_jansson(text, 2 * depth, false);
    }
}

static void a_document_that_lost_a_member_is_none(void **state)
{
    for (unsigned k = 1;; k++) {
        refuse(k, false);
        json_t *o = json_object(), *list = json_array();
        for (int i = 0; i < 20; i++)
            aq_json_add(&list, json_integer(i));
        aq_json_put(&o, "list", list);
        aq_json_put(&o, "text", json_string("a"));
        bool refused = memory.calls >= k;
        refuse(0, false);
        if (refused)
            assert_null(o);
        else
            assert_int_equal(json_array_size(json_object_get(o, "list")), 20);
        json_decref(o);
        if (!refused)
            return;
    }
}

static void text_that_is_not_utf8_is_a_string_all_the_same(void **state)
{
    static const char *const text[][2] = {
        {"", ""},
        {"a \xc3\xa4 b", "a \xc3\xa4 b"},
        {"/cache\xff/x", "/cache\xef\xbf\xbd/x"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
        {"cut \xe2\x82", "cut \xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        json_t *v = aq_json_string(text[i][0]);
        char *dump = aq_json_dump(v, JSON_ENCODE_ANY);
        assert_non_null(dump);
        assert_string_equal(json_string_value(v), text[i][1]);
        free(dump);
        json_decref(v);
    }
}

static int take_over_memory(void **state)
{
    json_set_alloc_funcs(give, free);
    return 0;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(refused_memory_is_told_and_costs_no_byte_of_a_value, take_over_memory),
    cmocka_unit_test(any_text_reads_as_jansson_reads_it),
    cmocka_unit_test(deep_documents_are_refused_as_by_jansson),
    cmocka_unit_test(errors_are_where_they_are_in_the_text),
    cmocka_unit_test(text_that_is_not_utf8_is_a_string_all_the_same),
    cmocka_unit_test_setup(a_document_that_lost_a_member_is_none, take_over_memory),
};

AQ_TEST_MAIN(tests)
