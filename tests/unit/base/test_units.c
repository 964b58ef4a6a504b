/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"
#include "engine/options/options.h"
#include "tests/test.h"

#include <locale.h>
#include <math.h>
#include <string.h>

static uint64_t size_of(const char *text)
{
    uint64_t bytes = 0;
    struct aq_err err = {0};
    if (aq_parse_size(text, &bytes, &err) < 0)
        fail_msg("'%s': %s", text, err.text);
    return bytes;
}

static void sizes_are_decimal_or_binary_by_their_unit(void **state)
{
    assert_int_equal(size_of("0"), 0);
    assert_int_equal(size_of("123"), 123);
    assert_int_equal(size_of("7B"), 7);
    assert_int_equal(size_of("3k"), 3000);
    assert_int_equal(size_of("3KB"), 3000);
    assert_int_equal(size_of("3KiB"), 3 * 1024);
    assert_int_equal(size_of("512M"), 512000000);
    assert_int_equal(size_of("16GiB"), 16ull << 30);
    assert_int_equal(size_of("16gib"), 16ull << 30);
    assert_int_equal(size_of("16Gi"), 16ull << 30);
    assert_int_equal(size_of("2TB"), 2000000000000);
    assert_int_equal(size_of("1 PiB"), 1ull << 50);
}

static void fractions_of_a_size_are_exact(void **state)
{
    assert_int_equal(size_of("15.5GB"), 15500000000);
    assert_int_equal(size_of("0.1GB"), 100000000);
    assert_int_equal(size_of("1.000000001GB"), 1000000001);
    assert_int_equal(size_of(".5KiB"), 512);
    /* Above 2^53, where a double would round. */
    assert_int_equal(size_of("9007199254740993"), 9007199254740993);
}

static void what_is_no_size_is_refused_by_name(void **state)
{
    static const char *const wrong[] = {"",       "G",    "-1",    "1e9",   "16XB",
                                        "16GiBs", "1,5G", "0x10",  "nan",   "16 GiB ",
                                        "16  G",  ".",    "1.2.3", "20EiB", "99999999999999999999"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(wrong); i++) {
        uint64_t bytes = 77;
        struct aq_err err = {0};
        if (aq_parse_size(wrong[i], &bytes, &err) != -EINVAL)
            fail_msg("'%s' was taken for %llu bytes", wrong[i], (unsigned long long)bytes);
        assert_int_equal(bytes, 77);
        assert_non_null(strstr(err.text, wrong[i]));
    }
}

static void a_size_beyond_64_bits_is_refused(void **state)
{
    uint64_t bytes;
    assert_int_equal(aq_parse_size("17000PiB", &bytes, NULL), -EINVAL);
    assert_int_equal(size_of("16383PiB"), 16383ull << 50);
}

static double seconds_of(const char *text)
{
    double s = -1;
    struct aq_err err = {0};
    if (aq_parse_duration(text, &s, &err) < 0)
        fail_msg("'%s': %s", text, err.text);
    return s;
}

static void durations_take_units_alone_or_falling(void **state)
{
    assert_true(seconds_of("90") == 90);
    assert_true(seconds_of("1.5") == 1.5);
    assert_true(seconds_of("90s") == 90);
    assert_true(seconds_of("250ms") == 0.25);
    assert_true(seconds_of("10m") == 600);
    assert_true(seconds_of("72h") == 72 * 3600);
    assert_true(seconds_of("1.5d") == 129600);
    assert_true(seconds_of("1h30m") == 5400);
}

static void what_is_no_duration_is_refused(void **state)
{
    static const char *const wrong[] = {"",     "s",   "-5",  "10x",    "30m1h",
                                        "1h30", "5 m", "1e3", "400000d"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(wrong); i++) {
        double s = 77;
        if (aq_parse_duration(wrong[i], &s, NULL) != -EINVAL)
            fail_msg("'%s' was taken for %g s", wrong[i], s);
        assert_true(s == 77);
    }
}

static void numbers_are_plain_decimals(void **state)
{
    double x;
    uint64_t u;
    assert_true(aq_parse_real("-1.5e-3", &x) && x == -1.5e-3);
    assert_true(aq_parse_u64("18446744073709551615", &u) && u == UINT64_MAX);
    static const char *const no_real[] = {"",      " 1",    "1 ", "inf", "nan",
                                          "0x1p3", "1e999", "1-", "e"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(no_real); i++)
        assert_false(aq_parse_real(no_real[i], &x));
    static const char *const no_integer[] = {"", "-1", "+1", "1.0", "18446744073709551616"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(no_integer); i++)
        assert_false(aq_parse_u64(no_integer[i], &u));
}

/* Without a locale that writes commas installed, the claim cannot be put to the test. */
static void numbers_do_not_depend_on_the_locale(void **state)
{
    static const char *const commas[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < AQ_ARRAY_LEN(commas) && !found; i++)
        found = setlocale(LC_NUMERIC, commas[i]);
    if (!found)
        skip();
    double x = 0;
    bool ok = aq_parse_real("0.25", &x);
    setlocale(LC_NUMERIC, "C");
    assert_true(ok && x == 0.25);
}

static void sizes_read_well(void **state)
{
    char text[AQ_SIZE_TEXT_MAX];
    assert_string_equal(aq_format_size(text, 0), "0 B");
    assert_string_equal(aq_format_size(text, 1023), "1023 B");
    assert_string_equal(aq_format_size(text, 1024), "1.0 KiB");
    assert_string_equal(aq_format_size(text, 1536ull << 20), "1.5 GiB");
    assert_string_equal(aq_format_size(text, (1ull << 30) - 1), "1.0 GiB");
    assert_string_equal(aq_format_size(text, UINT64_MAX), "16.0 EiB");
}

static void durations_read_well(void **state)
{
    char text[AQ_SIZE_TEXT_MAX];
    assert_string_equal(aq_format_duration(text, 0.25), "250 ms");
    assert_string_equal(aq_format_duration(text, 0.9999), "1 s");
    assert_string_equal(aq_format_duration(text, 59.4), "59 s");
    assert_string_equal(aq_format_duration(text, 200), "3 m 20 s");
    assert_string_equal(aq_format_duration(text, 3720), "1 h 02 m");
    assert_string_equal(aq_format_duration(text, 3 * 86400 + 4 * 3600), "3 d 04 h");
    assert_string_equal(aq_format_duration(text, (double)NAN), "?");
    assert_string_equal(aq_format_duration(text, -1), "?");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sizes_are_decimal_or_binary_by_their_unit),
    cmocka_unit_test(fractions_of_a_size_are_exact),
    cmocka_unit_test(what_is_no_size_is_refused_by_name),
    cmocka_unit_test(a_size_beyond_64_bits_is_refused),
    cmocka_unit_test(durations_take_units_alone_or_falling),
    cmocka_unit_test(what_is_no_duration_is_refused),
    cmocka_unit_test(numbers_are_plain_decimals),
    cmocka_unit_test(numbers_do_not_depend_on_the_locale),
    cmocka_unit_test(sizes_read_well),
    cmocka_unit_test(durations_read_well),
};

AQ_TEST_MAIN(tests)
