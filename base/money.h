/* SPDX-License-Identifier: Apache-2.0
 * base/money.h - amounts of money as people write them: "1.20", "$1.20", "1.20 EUR", "EUR 1.20".
 * The currency is a word that is carried along as it was typed; nothing is converted. */
#ifndef AQ_BASE_MONEY_H
#define AQ_BASE_MONEY_H

#include <stdbool.h>
#include <stddef.h>

enum { AQ_CURRENCY_MAX = 16, AQ_MONEY_TEXT_MAX = 64 };

struct aq_money {
    double amount;                  /* at least 0 */
    char currency[AQ_CURRENCY_MAX]; /* "": none was typed */
    bool before, spaced;            /* how it stands beside the amount */
};

/* One amount of at most 1e9 in digits with a point, and a currency of letters and signs (UTF-8)
 * before or behind it; false: it is none. */
bool aq_money_parse(struct aq_money *ret, const char *text);
/* Another amount of this currency, written likewise, but with a space beside letters: with cents,
 * or of less than one with three digits. */
const char *aq_money_text(char text[AQ_MONEY_TEXT_MAX], const struct aq_money *like, double amount);
/* The amount itself, with up to six decimals. */
const char *aq_money_exact(char text[AQ_MONEY_TEXT_MAX], const struct aq_money *m);

#endif
