/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nearest.h"
#include "base/prng.h"
#include "base/types.h"
#include "tests/test.h"

#include <string.h>

static void each_kind_of_edit_counts_once(void **state)
{
    assert_int_equal(aq_edit_distance("seed", "seed"), 0);
    assert_int_equal(aq_edit_distance("sed", "seed"), 1);
    assert_int_equal(aq_edit_distance("seeed", "seed"), 1);
    assert_int_equal(aq_edit_distance("feed", "seed"), 1);
    assert_int_equal(aq_edit_distance("sede", "seed"), 1);
    assert_int_equal(aq_edit_distance("", "seed"), 4);
}

static void case_and_dashes_do_not_matter(void **state)
{
    assert_int_equal(aq_edit_distance("Max_Tokens", "max-tokens"), 0);
}

static void the_distance_is_symmetric(void **state)
{
    assert_int_equal(aq_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(aq_edit_distance("sitting", "kitten"), 3);
}

static void long_words_are_cut_not_overrun(void **state)
{
    char a[300], b[300];
    memset(a, 'a', sizeof(a));
    memset(b, 'b', sizeof(b));
    a[299] = b[299] = '\0';
    assert_int_equal(aq_edit_distance(a, b), 63);
}

static void the_nearest_name_is_found(void **state)
{
    static const char *const names[] = {"temperature", NULL, "top-p", "top-k", "threads"};
    assert_string_equal(aq_nearest("temprature", names, AQ_ARRAY_LEN(names)), "temperature");
    assert_string_equal(aq_nearest("top_x", names, AQ_ARRAY_LEN(names)), "top-p");
    assert_null(aq_nearest("x", names, 0));
}

static void what_is_near_to_none_has_no_nearest_name(void **state)
{
    static const char *const names[] = {"shape", "attention", "compute", "limit", "bos"};
    static const char *const words[] = {
        "hh-ratio", "quantization", "compress-cache", "load-in-4bit", "verbose", "x", ""};
    for (size_t i = 0; i < AQ_ARRAY_LEN(words); i++)
        assert_null(aq_nearest(words[i], names, AQ_ARRAY_LEN(names)));
    assert_string_equal(aq_nearest("shpae", names, AQ_ARRAY_LEN(names)), "shape");
    assert_string_equal(aq_nearest("atention", names, AQ_ARRAY_LEN(names)), "attention");
}

static void an_unfinished_name_is_near_to_the_whole(void **state)
{
    static const char *const names[] = {"bench", "generate"};
    assert_string_equal(aq_nearest("gen", names, AQ_ARRAY_LEN(names)), "generate");
}

/* aq_nearest gives a name up as soon as it cannot win. */
static void the_nearest_name_is_the_one_of_the_whole_search(void **state)
{
    enum { NAMES = 12, DRAWS = 20000 };
    char text[NAMES + 1][10];
    const char *names[NAMES];
    for (uint64_t draw = 0; draw < DRAWS; draw++) {
        const char *want = NULL;
        uint32_t want_edits;
        for (uint64_t i = 0; i <= NAMES; i++) {
            uint64_t count = aq_prng_below(1, draw, i, sizeof(text[0]));
            for (uint64_t k = 0; k < count; k++)
                text[i][k] = "abc"[aq_prng_below(2, draw, 16 * i + k, 3)];
            text[i][count] = '\0';
        }
        const char *word = text[NAMES];
        want_edits = aq_nearest_limit(word) + 1;
        for (uint32_t i = 0; i < NAMES; i++) {
            uint32_t edits = aq_edit_distance(word, names[i] = text[i]);
            if (edits > 1 && strlen(word) >= 2 && strncmp(text[i], word, strlen(word)) == 0)
                edits = 1;
            if (edits < want_edits) {
                want = text[i];
                want_edits = edits;
            }
        }
        assert_ptr_equal(aq_nearest(word, names, NAMES), want);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(each_kind_of_edit_counts_once),
    cmocka_unit_test(case_and_dashes_do_not_matter),
    cmocka_unit_test(the_distance_is_symmetric),
    cmocka_unit_test(long_words_are_cut_not_overrun),
    cmocka_unit_test(the_nearest_name_is_found),
    cmocka_unit_test(what_is_near_to_none_has_no_nearest_name),
    cmocka_unit_test(an_unfinished_name_is_near_to_the_whole),
    cmocka_unit_test(the_nearest_name_is_the_one_of_the_whole_search),
};

AQ_TEST_MAIN(tests)
