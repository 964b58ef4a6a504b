/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"

#include "base/err.h"
#include "base/types.h"

#include <assert.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool aq_parse_u64(const char *text, uint64_t *ret)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || aq_mul_overflows(value, 10u, &value) ||
            aq_add_overflows(value, (uint64_t)(*text - '0'), &value))
            return false;
    }
    *ret = value;
    return true;
}

bool aq_parse_real(const char *text, double *ret)
{
    /* strtod alone would take "inf", "0x1p3", leading blanks and, in some locales, only a comma. */
    if (!*text || text[strspn(text, "0123456789+-.eE")])
        return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return false;
    char *end;
    double value = strtod_l(text, &end, c);
    freelocale(c);
    if (end == text || *end || !isfinite(value))
        return false;
    *ret = value;
    return true;
}

/* A decimal number without sign or exponent, as whole + fraction * 10^-digits.  Fraction digits
 * beyond the ninth are read and dropped.  NULL when there is none or it is too large, else the byte
 * behind it. */
struct decimal {
    uint64_t whole, fraction, scale;
};

static const char *parse_decimal(const char *at, struct decimal *ret)
{
    struct decimal d = {.scale = 1};
    const char *start = at;
    uint32_t digits = 0;
    for (; *at >= '0' && *at <= '9'; at++, digits++) {
        if (aq_mul_overflows(d.whole, 10u, &d.whole) ||
            aq_add_overflows(d.whole, (uint64_t)(*at - '0'), &d.whole))
            return NULL;
    }
    if (*at == '.') {
        for (at++; *at >= '0' && *at <= '9'; at++, digits++) {
            if (d.scale < 1000000000u) {
                d.fraction = d.fraction * 10 + (uint64_t)(*at - '0');
                d.scale *= 10;
            }
        }
    }
    if (digits == 0)
        return NULL;
    assert(at > start);
    *ret = d;
    return at;
}

/* Factor of a size's unit; 0 when unknown. */
static uint64_t size_unit(const char *unit)
{
    static const char letters[] = "kmgtp";
    if (!*unit || strcasecmp(unit, "b") == 0)
        return 1;
    const char *letter = strchr(letters, *unit | 0x20);
    if (!letter || !*letter)
        return 0;
    bool plain = !unit[1] || strcasecmp(unit + 1, "b") == 0;
    bool binary = strcasecmp(unit + 1, "i") == 0 || strcasecmp(unit + 1, "ib") == 0;
    if (!plain && !binary)
        return 0;
    uint64_t factor = 1;
    for (long i = 0; i <= letter - letters; i++)
        factor *= binary ? 1024 : 1000;
    return factor;
}

int aq_parse_size(const char *text, uint64_t *ret, struct aq_err *reterr)
{
    struct decimal d;
    const char *unit = parse_decimal(text, &d);
    if (unit && *unit == ' ')
        unit++;
    uint64_t factor = unit ? size_unit(unit) : 0;
    if (!factor)
        return aq_error(reterr, -EINVAL,
                        "expected a size such as 16GiB, 15.5GB, 512M or bytes, found '%s'", text);
    unsigned __int128 bytes =
        (unsigned __int128)d.whole * factor + (unsigned __int128)d.fraction * factor / d.scale;
    if (bytes > UINT64_MAX)
        return aq_error(reterr, -EINVAL, "expected a size below 16 EiB, found '%s'", text);
    *ret = (uint64_t)bytes;
    return 0;
}

/* Seconds of the unit at *at, which is moved behind it; 0 when unknown. */
static double duration_unit(const char **at)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(units); i++) {
        size_t n = strlen(units[i].name);
        if (strncasecmp(*at, units[i].name, n) == 0) {
            *at += n;
            return units[i].seconds;
        }
    }
    return 0;
}

int aq_parse_duration(const char *text, double *ret_s, struct aq_err *reterr)
{
    double sum = 0, above = INFINITY;
    const char *at = text;
    while (*at || at == text) {
        struct decimal d;
        const char *next = parse_decimal(at, &d);
        if (!next)
            goto malformed;
        bool bare = !*next && at == text; /* plain seconds */
        double unit = bare ? 1 : duration_unit(&next);
        if (unit == 0 || unit >= above)
            goto malformed;
        sum += ((double)d.whole + (double)d.fraction / (double)d.scale) * unit;
        above = unit;
        at = next;
    }
    if (sum > 1e10)
        return aq_error(reterr, -EINVAL, "expected a time below 300 years, found '%s'", text);
    *ret_s = sum;
    return 0;
malformed:
    return aq_error(reterr, -EINVAL,
                    "expected a time such as 90s, 10m, 1h30m, 1.5d or seconds, found '%s'", text);
}

const char *aq_format_size(char text[AQ_SIZE_TEXT_MAX], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double x = (double)bytes;
    size_t unit = 0;
    /* 1023.95 would be printed as "1024.0". */
    while (unit + 1 < AQ_ARRAY_LEN(units) && x >= (unit ? 1023.95 : 1024)) {
        x /= 1024;
        unit++;
    }
    snprintf(text, AQ_SIZE_TEXT_MAX, unit ? "%.1f %s" : "%.0f %s", x, units[unit]);
    return text;
}

const char *aq_format_duration(char text[AQ_SIZE_TEXT_MAX], double seconds)
{
    if (!(seconds >= 0) || seconds > 1e12) {
        snprintf(text, AQ_SIZE_TEXT_MAX, "?");
        return text;
    }
    unsigned long long s = (unsigned long long)(seconds + 0.5);
    if (seconds < 0.9995)
        snprintf(text, AQ_SIZE_TEXT_MAX, "%.0f ms", seconds * 1000);
    else if (s < 60)
        snprintf(text, AQ_SIZE_TEXT_MAX, "%llu s", s);
    else if (s < 3600)
        snprintf(text, AQ_SIZE_TEXT_MAX, "%llu m %02llu s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(text, AQ_SIZE_TEXT_MAX, "%llu h %02llu m", s / 3600, s / 60 % 60);
    else
        snprintf(text, AQ_SIZE_TEXT_MAX, "%llu d %02llu h", s / 86400, s / 3600 % 24);
    return text;
}
