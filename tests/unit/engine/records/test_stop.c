/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records/stop.h"

#include "base/prng.h"
#include "base/types.h"
#include "engine/records/request.h"
#include "tests/test.h"

#include <string.h>

static char scratch[4096];

static void start(struct aq_stop *s, const struct aq_text *strings, uint32_t count)
{
    assert_true(aq_stop_scratch_bytes(strings, count) <= sizeof(scratch));
    aq_stop_init(s, strings, count, scratch);
}

static void a_string_cut_between_pieces_matches(void **state)
{
    struct aq_text strings[] = {{"###", 3}};
    struct aq_stop s;
    start(&s, strings, 1);
    assert_false(aq_stop_feed(&s, "text #", 6, true));
    assert_false(aq_stop_feed(&s, "#", 1, true));
    assert_true(aq_stop_feed(&s, "# more ###", 10, true));
    assert_int_equal(s.matched, 0);
    assert_int_equal(s.begin, 5);
    assert_int_equal(s.end, 8);
}

static void a_false_start_does_not_hide_the_match_behind_it(void **state)
{
    struct aq_text strings[] = {{"aab", 3}};
    struct aq_stop s;
    start(&s, strings, 1);
    assert_true(aq_stop_feed(&s, "aaaab", 5, true));
    assert_int_equal(s.begin, 2);
}

static void the_match_complete_first_wins(void **state)
{
    struct aq_text strings[] = {{"abcd", 4}, {"bc", 2}};
    struct aq_stop s;
    start(&s, strings, 2);
    assert_true(aq_stop_feed(&s, "xabcd", 5, true));
    assert_int_equal(s.matched, 1);
    assert_int_equal(s.begin, 2);
}

static void of_matches_complete_together_the_longest_wins(void **state)
{
    struct aq_text strings[] = {{"\n", 1}, {"\n\n", 2}, {"end\n\n", 5}};
    struct aq_stop s;
    start(&s, strings + 1, 2);
    assert_true(aq_stop_feed(&s, "the end\n\n", 9, true));
    assert_int_equal(s.matched, 1);
    assert_int_equal(s.begin, 4);
}

static void matches_before_they_are_allowed_do_not_count(void **state)
{
    struct aq_text strings[] = {{"ab", 2}};
    struct aq_stop s;
    start(&s, strings, 1);
    assert_false(aq_stop_feed(&s, "abab", 4, false));
    assert_false(aq_stop_feed(&s, "xa", 2, false));
    assert_true(aq_stop_feed(&s, "b", 1, true)); /* complete only now */
    assert_int_equal(s.begin, 5);
}

static void no_strings_never_match(void **state)
{
    struct aq_stop s;
    aq_stop_init(&s, NULL, 0, NULL);
    assert_int_equal(aq_stop_scratch_bytes(NULL, 0), 0);
    assert_false(aq_stop_feed(&s, "anything", 8, true));
}

static void zero_bytes_match_like_any_other(void **state)
{
    struct aq_text strings[] = {{"\0b", 2}};
    struct aq_stop s;
    start(&s, strings, 1);
    assert_true(aq_stop_feed(&s, "a\0b", 3, true));
    assert_int_equal(s.begin, 1);
}

/* Where the pieces were cut never matters: compared with a search in the whole text. */
static void random_cuts_find_what_a_plain_search_finds(void **state)
{
    struct aq_text strings[] = {{"aba", 3}, {"bb", 2}, {"ccccc", 5}, {"cabbac", 6}};
    uint32_t found = 0;
    for (uint32_t round = 0; round < 3000; round++) {
        char text[64];
        uint32_t words[16][4];
        for (uint32_t i = 0; i < AQ_ARRAY_LEN(words); i++)
            aq_philox(words[i], 7, round, i);
        for (uint32_t i = 0; i < sizeof(text); i++)
            text[i] = (char)('a' + words[i / 4][i % 4] % 3);
        uint64_t want_end = UINT64_MAX, want_begin = 0;
        for (uint32_t k = 0; k < AQ_ARRAY_LEN(strings); k++) {
            char *at = memmem(text, sizeof(text), strings[k].bytes, strings[k].count);
            uint64_t begin = at ? (uint64_t)(at - text) : UINT64_MAX / 2;
            uint64_t end = begin + strings[k].count;
            if (end < want_end || (end == want_end && begin < want_begin)) {
                want_end = end;
                want_begin = begin;
            }
        }
        struct aq_stop s;
        start(&s, strings, AQ_ARRAY_LEN(strings));
        uint32_t at = 0;
        for (uint32_t i = 0; at < sizeof(text); i++) {
            uint32_t n = 1 + (words[i % 16][i / 16 % 4] >> 16) % 9;
            n = n < sizeof(text) - at ? n : (uint32_t)sizeof(text) - at;
            if (aq_stop_feed(&s, text + at, n, true))
                break;
            at += n;
        }
        assert_int_equal(s.matched >= 0, want_end <= sizeof(text));
        if (s.matched >= 0) {
            found++;
            assert_int_equal(s.begin, want_begin);
            assert_int_equal(s.end, want_end);
        }
    }
    assert_true(found > 1000);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_string_cut_between_pieces_matches),
    cmocka_unit_test(a_false_start_does_not_hide_the_match_behind_it),
    cmocka_unit_test(the_match_complete_first_wins),
    cmocka_unit_test(of_matches_complete_together_the_longest_wins),
    cmocka_unit_test(matches_before_they_are_allowed_do_not_count),
    cmocka_unit_test(no_strings_never_match),
    cmocka_unit_test(zero_bytes_match_like_any_other),
    cmocka_unit_test(random_cuts_find_what_a_plain_search_finds),
};

AQ_TEST_MAIN(tests)
