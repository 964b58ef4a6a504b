/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_text.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- members ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Index just behind the string that starts at text[at] == '"'. */
static size_t skip_string(struct aq_text t, size_t at)
{
    for (at++; at < t.count && t.bytes[at] != '"'; at++)
        if (t.bytes[at] == '\\')
            at++;
    return at + 1;
}

/* Index just behind the value that starts at text[at]. */
static size_t skip_value(struct aq_text t, size_t at)
{
    size_t depth = 0;
    do {
        char c = t.bytes[at];
        if (c == '"') {
            at = skip_string(t, at);
            continue;
        }
        if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (!depth) { /* a number or word: up to what cannot be part of it */
            while (at < t.count && !is_space(t.bytes[at]) && !strchr(",]}", t.bytes[at]))
                at++;
            return at;
        }
        at++;
    } while (at < t.count && depth);
    return at;
}

static size_t skip_space(struct aq_text t, size_t at)
{
    while (at < t.count && is_space(t.bytes[at]))
        at++;
    return at;
}

bool aq_json_member_text(struct aq_text *ret, struct aq_text object, const char *name)
{
    size_t name_count = strlen(name);
    size_t at = skip_space(object, 0);
    assert(at < object.count && object.bytes[at] == '{');
    at = skip_space(object, at + 1);
    while (at < object.count && object.bytes[at] == '"') {
        size_t key = at + 1, key_end = skip_string(object, at) - 1;
        at = skip_space(object, key_end + 1);
        size_t value = skip_space(object, at + 1); /* behind the colon */
        at = skip_value(object, value);
        if (key_end - key == name_count && !memcmp(object.bytes + key, name, name_count)) {
            *ret = (struct aq_text){object.bytes + value, at - value};
            return true;
        }
        at = skip_space(object, at);
        if (at < object.count && object.bytes[at] == ',')
            at = skip_space(object, at + 1);
    }
    return false;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool aq_json_member_integer(struct aq_text *ret, struct aq_text object, const char *name)
{
    struct aq_text t;
    if (!aq_json_member_text(&t, object, name))
        return false;
    for (size_t i = t.count && t.bytes[0] == '-'; i < t.count; i++)
        if (!is_digit(t.bytes[i]))
            return false;
    *ret = t;
    return t.count > 0;
}

bool aq_json_text_is_deep(struct aq_text t, size_t depth_max)
{
    size_t depth = 0;
    for (size_t at = 0; at < t.count && depth <= depth_max;) {
        char c = t.bytes[at];
        if (c == '"') {
            at = skip_string(t, at);
            continue;
        }
        if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && depth)
            depth--;
        at++;
    }
    return depth > depth_max;
}

/* ---- numbers out of range ---- */

enum { REAL_DIGITS_MAX = 308 }; /* an integer of so many digits is within a double */

/* Whether the digits of an integer, without its sign, are beyond 64 bits. */
static bool is_beyond_i64(const char *digits, size_t count, bool negative)
{
    static const char most[] = "9223372036854775807", least[] = "9223372036854775808";
    size_t limit = sizeof(most) - 1;
    if (count != limit)
        return count > limit;
    return memcmp(digits, negative ? least : most, limit) > 0;
}

/* 1e308, the exponent filled up with zeros in front. */
static void put_largest(char *at, size_t count)
{
    static const char begin[] = "1e", end[] = "308";
    assert(count >= sizeof(begin) + sizeof(end) - 2);
    memset(at, '0', count);
    memcpy(at, begin, sizeof(begin) - 1);
    memcpy(at + count - (sizeof(end) - 1), end, sizeof(end) - 1);
}

static void narrow_number(char *at, size_t count)
{
    bool negative = at[0] == '-', whole = true;
    char *digits = at + negative;
    size_t digit_count = count - negative;
    for (size_t i = 0; i < digit_count && whole; i++)
        whole = is_digit(digits[i]);
    if (whole && !is_beyond_i64(digits, digit_count, negative))
        return;
    if (whole && digit_count <= REAL_DIGITS_MAX)
        memcpy(digits + digit_count - 2, "e2", 2); /* the last two count for nothing in a double */
    else if (whole || (digit_count > 4 && isinf(strtod(at, NULL))))
        put_largest(digits, digit_count);
}

void aq_json_text_narrow(char *text, size_t bytes)
{
    struct aq_text t = {text, bytes};
    assert(text[bytes] == '\0');
    for (size_t at = 0; at < bytes;) {
        size_t end = at + 1;
        if (text[at] == '"') {
            end = skip_string(t, at);
        } else if (text[at] == '-' || is_digit(text[at])) {
            while (end < bytes &&
                   (is_digit(text[end]) || (text[end] && strchr("+-.eE", text[end]))))
                end++;
            narrow_number(text + at, end - at);
        }
        at = end;
    }
}
