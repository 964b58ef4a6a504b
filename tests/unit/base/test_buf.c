/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_json_string(const char *bytes, size_t count, const char *want)
{
    struct aq_buf b = {0};
    aq_buf_json_string(&b, bytes, count);
    assert_false(b.failed);
    assert_string_equal(b.data, want);
    aq_buf_close(&b);
}

static void strings_are_escaped_as_json(void **state)
{
    assert_json_string("a\"b\\c\n\r\t\x01\x7f", 10, "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f\"");
    assert_json_string("\0", 1, "\"\\u0000\"");
    assert_json_string("h\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82", 10,
                       "\"h\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\"");
    assert_json_string("", 0, "\"\"");
}

/* The example of the Unicode standard 15.0, table 3-8: one replacement per maximal subpart. */
static void bytes_that_are_not_utf8_become_replacement_characters(void **state)
{
    const char in[] = "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64";
    assert_json_string(in, sizeof(in) - 1,
                       "\"a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                       "b\xef\xbf\xbd"
                       "c\xef\xbf\xbd\xef\xbf\xbd"
                       "d\"");
    assert_int_equal(aq_utf8_count(in, sizeof(in) - 1), 10);
    assert_int_equal(aq_utf8_invalid_at(in, sizeof(in) - 1), 1);
    assert_json_string("\xed\xa0\x80", 3,
                       "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");    /* surrogate */
    assert_json_string("\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""); /* overlong */
    assert_json_string("\xf4\x90\x80\x80", 4,
                       "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

static void a_shell_takes_a_word_as_it_is(void **state)
{
    static const char *const words[][2] = {
        {"a/b-c.d=1", "a/b-c.d=1"}, {"", "\"\""},       {"a b", "\"a b\""},
        {"it's", "\"it's\""},       {"$x y", "'$x y'"}, {"it's $x", "'it'\\''s $x'"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct aq_buf b = {0};
        aq_buf_shell_word(&b, words[i][0]);
        assert_string_equal(b.data, words[i][1]);
        aq_buf_close(&b);
    }
}

static void floats_read_back_as_themselves(void **state)
{
    static const float x[] = {0.0f, -1.5f, 0.1f, -12.3456789f, 1e-30f, 3.4e38f, -0.69314718f};
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        struct aq_buf b = {0};
        aq_buf_json_float(&b, x[i]);
        assert_true(strtof(b.data, NULL) == x[i]);
        aq_buf_close(&b);
    }
}

static void reals_are_written_with_a_point_and_no_needless_digits(void **state)
{
    struct aq_buf b = {0};
    aq_buf_json_double(&b, 0.1);
    aq_buf_puts(&b, " ");
    aq_buf_json_double(&b, 3);
    aq_buf_puts(&b, " ");
    aq_buf_json_double(&b, 1.0 / 3);
    aq_buf_puts(&b, " ");
    aq_buf_json_double(&b, -1e300);
    aq_buf_puts(&b, " ");
    aq_buf_json_float(&b, 0.1f);
    assert_string_equal(b.data, "0.1 3.0 0.3333333333333333 -1e+300 0.1");
    aq_buf_close(&b);
}

static void a_float_that_is_not_finite_becomes_null(void **state)
{
    struct aq_buf b = {0};
    aq_buf_json_float(&b, NAN);
    aq_buf_json_float(&b, -INFINITY);
    assert_string_equal(b.data, "nullnull");
    aq_buf_close(&b);
}

static void numbers_lists_and_formats_append(void **state)
{
    struct aq_buf b = {0};
    uint32_t x[] = {0, 7, 4294967295u};
    aq_buf_json_u32s(&b, x, 3);
    aq_buf_json_u64(&b, UINT64_MAX);
    aq_buf_printf(
        &b, "|%s|",
        "a longer piece of text than the first allocation can possibly hold, so it grows");
    assert_int_equal(strncmp(b.data, "[0,7,4294967295]18446744073709551615|a longer", 45), 0);
    assert_int_equal(b.count, strlen(b.data));
    char *taken = aq_buf_take(&b);
    assert_null(b.data);
    free(taken);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(strings_are_escaped_as_json),
    cmocka_unit_test(bytes_that_are_not_utf8_become_replacement_characters),
    cmocka_unit_test(a_shell_takes_a_word_as_it_is),
    cmocka_unit_test(floats_read_back_as_themselves),
    cmocka_unit_test(reals_are_written_with_a_point_and_no_needless_digits),
    cmocka_unit_test(a_float_that_is_not_finite_becomes_null),
    cmocka_unit_test(numbers_lists_and_formats_append),
};

AQ_TEST_MAIN(tests)
