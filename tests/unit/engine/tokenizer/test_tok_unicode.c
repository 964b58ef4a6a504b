/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/splitter.h"
#include "engine/tokenizer/unicode.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { CHARACTERS = 0x110000 };

static size_t put_utf8(char *dst, uint32_t c)
{
    if (c < 0x80) {
        dst[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        dst[i] = (char)(0x80 | (c & 0x3f));
    dst[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

/* Every character, surrogates left out. */
static char *all_characters(size_t *ret_bytes)
{
    char *text = malloc((size_t)CHARACTERS * 4);
    assert_non_null(text);
    size_t n = 0;
    for (uint32_t c = 0; c < CHARACTERS; c++)
        if (c < 0xd800 || c >= 0xe000)
            n += put_utf8(text + n, c);
    *ret_bytes = n;
    return text;
}

/* Which characters the pattern, of one character, matches. */
static bool *matched(const char *pattern, enum aq_unicode_spelling spelling)
{
    struct aq_buf translated = {0};
    struct aq_err err = {0};
    if (aq_split_translate(pattern, strlen(pattern), spelling, &translated, &err) < 0)
        fail_msg("%s", err.text);
    int code;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)translated.data, translated.count,
                                   PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    assert_non_null(re);
    aq_buf_close(&translated);
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    bool *found = calloc(CHARACTERS, sizeof(*found));
    size_t bytes;
    char *text = all_characters(&bytes);
    assert_non_null(found);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    for (size_t i = 0; i < bytes;) {
        if (pcre2_match(re, (PCRE2_SPTR)text, bytes, i, PCRE2_NO_UTF_CHECK, match, NULL) < 0)
            break;
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
        int32_t c;
        assert_int_equal(aq_unicode_read(text + range[0], &c), range[1] - range[0]);
        found[c] = true;
        i = range[1];
    }
    pcre2_match_data_free(match);
    pcre2_code_free(re);
    free(text);
    return found;
}

static void assert_matches(const char *pattern, enum aq_unicode_spelling spelling, uint32_t want)
{
    bool *found = matched(pattern, spelling);
    for (int32_t c = 0; c < CHARACTERS; c++)
        if ((c < 0xd800 || c >= 0xe000) && found[c] != ((aq_unicode_category(c) & want) != 0))
            fail_msg("%s: U+%04X is %smatched", pattern, (unsigned)c, found[c] ? "" : "not ");
    free(found);
}

/* Bits of the categories in the order of the standard's table. */
enum {
    LU = 1 << 0,
    LL = 1 << 1,
    LO = 1 << 4,
    MN = 1 << 5,
    MC = 1 << 6,
    N = 7 << 8,
    Z = 7 << 22,
    CN = 1 << 29,
    ALL = (1 << 30) - 1,
};

static void classes_are_the_tables_however_they_are_spelled(void **state)
{
    static const struct {
        const char *pattern;
        uint32_t want;
    } cases[] = {
        {"\\p{L}", AQ_CATEGORY_L},
        {"\\P{L}", ALL & ~AQ_CATEGORY_L},
        {"[^\\p{L}\\p{N}]", ALL & ~(AQ_CATEGORY_L | N)},
        {"[\\p{^Lo}]", ALL & ~LO},
        {"\\p{lu}", LU},
        {"[\\p{Lu}\\p{Ll}]", LU | LL},
        {"\\p{M}", AQ_CATEGORY_M},
        {"\\p{Mn}", MN},
        {"[\\p{Mc}]", MC},
        {"\\d", AQ_CATEGORY_ND},
        {"[\\D]", ALL & ~AQ_CATEGORY_ND},
        {"\\p{Cn}", CN},
        {"\\p{Z}", Z},
        {"(?i:\\p{M})", AQ_CATEGORY_M},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char version[64];
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
        assert_matches(cases[i].pattern, AQ_UNICODE_RANGES, cases[i].want);
        if (aq_unicode_names_agree(version))
            assert_matches(cases[i].pattern, AQ_UNICODE_NEWER, cases[i].want);
    }
}

/* What splits most text is right for it: names differ by newer characters alone. */
static void names_agree_on_text_without_newer_characters(void **state)
{
    char version[64], text[4];
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    if (!aq_unicode_names_agree(version))
        skip();
    static const char *const patterns[] = {"\\p{L}", "\\p{Lo}", "\\p{Mn}",     "\\P{Nd}",
                                           "\\p{P}", "\\p{Cn}", "[^\\s\\p{N}]"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++) {
        bool *named = matched(patterns[i], AQ_UNICODE_NAMES);
        bool *exact = matched(patterns[i], AQ_UNICODE_RANGES);
        for (uint32_t c = 0; c < CHARACTERS; c++) {
            bool surrogate = c >= 0xd800 && c < 0xe000;
            if (!surrogate && !aq_unicode_has_newer(text, put_utf8(text, c)))
                assert_int_equal(named[c], exact[c]);
        }
        free(named);
        free(exact);
    }
}

static void scripts_are_found_by_name_and_code(void **state)
{
    struct aq_unicode_property han, hani, old;
    assert_int_equal(aq_unicode_find("Han", 3, &han), 0);
    assert_int_equal(aq_unicode_find("hani", 4, &hani), 0);
    assert_int_equal(han.script, hani.script);
    assert_int_equal(han.categories, 0);
    assert_int_equal(aq_unicode_find("OldItalic", 9, &old), 0);
    assert_int_equal(aq_unicode_find("Old_Italic", 10, &hani), 0);
    assert_int_equal(old.script, hani.script);
    assert_true(aq_unicode_find("Hanx", 4, &han) < 0);
    assert_true(aq_unicode_find("L", 1, &han) == 0 && han.categories == AQ_CATEGORY_L);
    assert_true(aq_unicode_find("", 0, &han) < 0);
    bool *found = matched("\\p{Han}", AQ_UNICODE_NAMES);
    assert_true(found[0x4e00] && found[0x2ebf0] && found[0x31350]); /* extensions I and H */
    assert_false(found[0x3042] || found[0x323b0]);                  /* J is of Unicode 17 */
    free(found);
}

static void only_versions_that_differ_by_newer_characters_agree(void **state)
{
    assert_true(aq_unicode_names_agree("14.0.0"));
    assert_true(aq_unicode_names_agree("15.1.0"));
    assert_true(aq_unicode_names_agree("16.0.0"));
    assert_false(aq_unicode_names_agree("13.0.0"));
    assert_false(aq_unicode_names_agree("16.1.0"));
    assert_false(aq_unicode_names_agree("17.0.0"));
    assert_false(aq_unicode_names_agree("Unicode not supported"));
}

static void newer_characters_are_seen_wherever_they_stand(void **state)
{
    static const char text[] = "plain text, caf\xc3\xa9, \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80";
    char with[64];
    assert_false(aq_unicode_has_newer(text, strlen(text)));
    for (size_t i = 0; i < 20; i++) {
        memset(with, 'a', sizeof(with));
        memcpy(with + i, "\xe1\xb2\x8a", 3); /* U+1C8A */
        assert_true(aq_unicode_has_newer(with, i + 3));
        assert_true(aq_unicode_has_newer(with, sizeof(with)));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(classes_are_the_tables_however_they_are_spelled),
    cmocka_unit_test(names_agree_on_text_without_newer_characters),
    cmocka_unit_test(scripts_are_found_by_name_and_code),
    cmocka_unit_test(only_versions_that_differ_by_newer_characters_agree),
    cmocka_unit_test(newer_characters_are_seen_wherever_they_stand),
};

AQ_TEST_MAIN(tests)
