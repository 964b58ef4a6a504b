/* SPDX-License-Identifier: Apache-2.0 */
#include "base/money.h"

#include "base/buf.h"
#include "base/units.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char digits[] = "0123456789.";
static const double amount_max = 1e9;

/* Letters, the signs of currencies, and whatever lies beyond ASCII. */
static bool is_currency(const char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)at[i];
        bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!letter && c != '$' && c < 0x80)
            return false;
    }
    return bytes < AQ_CURRENCY_MAX && aq_utf8_invalid_at(at, bytes) == bytes;
}

bool aq_money_parse(struct aq_money *ret, const char *text)
{
    struct aq_money m = {0};
    char number[32];
    size_t before = strcspn(text, " 0123456789.");
    const char *at = text + before;
    at += before ? strspn(at, " ") : 0;
    m.before = before > 0;
    m.spaced = before && at > text + before;
    size_t n = strspn(at, digits);
    if (!n || n >= sizeof(number))
        return false;
    snprintf(number, sizeof(number), "%.*s", (int)n, at);
    at += n;
    const char *behind = at + strspn(at, " ");
    size_t left = strlen(behind);
    m.spaced |= left && behind > at;
    if ((before && left) || (behind > at && !left))
        return false; /* two currencies, or blanks at the end */
    if (!is_currency(text, before) || !is_currency(behind, left) ||
        !aq_parse_real(number, &m.amount) || m.amount > amount_max)
        return false;
    memcpy(m.currency, before ? text : behind, before ? before : left);
    *ret = m;
    return true;
}

static const char *put(char text[AQ_MONEY_TEXT_MAX], const struct aq_money *like,
                       const char *number)
{
    const char *currency = like->currency;
    size_t beside = like->before && *currency ? strlen(currency) - 1 : 0;
    const char *space = like->spaced || isalpha((unsigned char)currency[beside]) ? " " : "";
    if (like->before)
        snprintf(text, AQ_MONEY_TEXT_MAX, "%s%s%s", currency, space, number);
    else
        snprintf(text, AQ_MONEY_TEXT_MAX, "%s%s%s", number, space, currency);
    return text;
}

const char *aq_money_text(char text[AQ_MONEY_TEXT_MAX], const struct aq_money *like, double amount)
{
    char number[40];
    snprintf(number, sizeof(number), amount >= 1 || amount == 0 ? "%.2f" : "%.3g", amount);
    return put(text, like, number);
}

const char *aq_money_exact(char text[AQ_MONEY_TEXT_MAX], const struct aq_money *m)
{
    char number[40];
    int n = snprintf(number, sizeof(number), "%.6f", m->amount);
    while (number[n - 1] == '0')
        number[--n] = '\0';
    if (number[n - 1] == '.')
        number[n - 1] = '\0';
    return put(text, m, number);
}
