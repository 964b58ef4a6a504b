/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nearest.h"
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

static void an_unfinished_name_is_near_to_the_whole(void **state)
{
    static const char *const names[] = {"bench", "generate"};
    assert_string_equal(aq_nearest("gen", names, AQ_ARRAY_LEN(names)), "generate");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(each_kind_of_edit_counts_once),
    cmocka_unit_test(case_and_dashes_do_not_matter),
    cmocka_unit_test(the_distance_is_symmetric),
    cmocka_unit_test(long_words_are_cut_not_overrun),
    cmocka_unit_test(the_nearest_name_is_found),
    cmocka_unit_test(an_unfinished_name_is_near_to_the_whole),
};

AQ_TEST_MAIN(tests)
