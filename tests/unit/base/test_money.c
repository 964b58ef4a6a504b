/* SPDX-License-Identifier: Apache-2.0
 * Amounts of money: what is read, and written back as it was typed. */
#include "base/money.h"
#include "base/types.h"
#include "tests/test.h"

#include <string.h>

static struct aq_money money(const char *text)
{
    struct aq_money m;
    if (!aq_money_parse(&m, text))
        fail_msg("'%s' was refused", text);
    return m;
}

static void a_currency_stays_as_it_was_typed_and_letters_have_a_space(void **state)
{
    static const struct {
        const char *typed, *currency, *job;
    } cases[] = {{"1.20", "", "42.50"},
                 {"$1.20", "$", "$42.50"},
                 {"1.2 EUR", "EUR", "42.50 EUR"},
                 {"EUR 1.2", "EUR", "EUR 42.50"},
                 {"1.2USD", "USD", "42.50 USD"},
                 {"\u20ac1", "\u20ac", "\u20ac42.50"},
                 {"3\u00a5", "\u00a5", "42.50\u00a5"},
                 {"US$ 2", "US$", "US$ 42.50"},
                 {"US$2", "US$", "US$42.50"}};
    char text[AQ_MONEY_TEXT_MAX];
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct aq_money m = money(cases[i].typed);
        assert_string_equal(m.currency, cases[i].currency);
        assert_string_equal(aq_money_text(text, &m, 42.499), cases[i].job);
    }
}

static void amounts_are_exact(void **state)
{
    char text[AQ_MONEY_TEXT_MAX];
    struct aq_money m = money("$0.526");
    assert_true(m.amount == 0.526);
    assert_string_equal(aq_money_exact(text, &m), "$0.526");
    assert_string_equal(aq_money_text(text, &m, 0.01234), "$0.0123");
    assert_string_equal(aq_money_text(text, &m, 0), "$0.00");
    m = money("12.00 EUR");
    assert_string_equal(aq_money_exact(text, &m), "12 EUR");
    m = money("1000000000");
    assert_string_equal(aq_money_exact(text, &m), "1000000000");
}

static void what_is_no_amount_is_refused(void **state)
{
    static const char *const wrong[] = {"",
                                        "$",
                                        "EUR",
                                        "-1",
                                        "+1",
                                        "1,20",
                                        "1e3",
                                        "$1$",
                                        "USD 1 EUR",
                                        "1 ",
                                        " 1",
                                        "1.2.3",
                                        "0x1",
                                        "nan",
                                        "1/2",
                                        "1 \"x\"",
                                        ".",
                                        "2000000000",
                                        "1 %",
                                        "1\n",
                                        "\xff"
                                        "1",
                                        "1\xc3",
                                        "1 E U R",
                                        "1 abcdefghijklmnop"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(wrong); i++) {
        struct aq_money m = {.amount = 7};
        if (aq_money_parse(&m, wrong[i]))
            fail_msg("'%s' was taken for %g", wrong[i], m.amount);
        assert_true(m.amount == 7);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_currency_stays_as_it_was_typed_and_letters_have_a_space),
    cmocka_unit_test(amounts_are_exact),
    cmocka_unit_test(what_is_no_amount_is_refused),
};
AQ_TEST_MAIN(tests)
