/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void aq_buf_close(struct aq_buf *b)
{
    free(b->data);
    *b = (struct aq_buf){0};
}

void aq_buf_clear(struct aq_buf *b)
{
    b->count = 0;
    b->failed = false;
}

char *aq_buf_take(struct aq_buf *b)
{
    aq_buf_put(b, "", 0);
    char *data = b->failed ? NULL : b->data;
    if (!data)
        free(b->data);
    *b = (struct aq_buf){0};
    return data;
}

/* Makes room for `extra` bytes and a NUL. */
static bool buf_reserve(struct aq_buf *b, size_t extra)
{
    if (b->failed)
        return false;
    if (extra < b->capacity - b->count && b->capacity)
        return true;
    size_t want = b->capacity ? b->capacity : 64;
    while (want - b->count <= extra) {
        if (want > SIZE_MAX / 2) {
            b->failed = true;
            return false;
        }
        want *= 2;
    }
    char *data = realloc(b->data, want);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = want;
    return true;
}

void aq_buf_put(struct aq_buf *b, const void *bytes, size_t count)
{
    if (!buf_reserve(b, count))
        return;
    if (count)
        memcpy(b->data + b->count, bytes, count);
    b->count += count;
    b->data[b->count] = '\0';
}

void aq_buf_puts(struct aq_buf *b, const char *text)
{
    aq_buf_put(b, text, strlen(text));
}

void aq_buf_printf(struct aq_buf *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !buf_reserve(b, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(b->data + b->count, (size_t)n + 1, format, args);
    va_end(args);
    b->count += (size_t)n;
}

void aq_buf_shell_word(struct aq_buf *b, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:=,%+-";
    if (*text && !text[strspn(text, plain)]) {
        aq_buf_puts(b, text);
    } else if (!strpbrk(text, "\"$`\\!")) {
        aq_buf_printf(b, "\"%s\"", text);
    } else {
        aq_buf_puts(b, "'");
        for (; *text; text++)
            aq_buf_printf(b, *text == '\'' ? "'\\''" : "%c", *text);
        aq_buf_puts(b, "'");
    }
}

/* What the byte after the first may be (Unicode 15, table 3-7): the bounds keep out overlong forms,
 * surrogates and what lies beyond U+10FFFF. */
static size_t utf8_shape(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef) {
        *low = first == 0xe0 ? 0xa0 : 0x80;
        *high = first == 0xed ? 0x9f : 0xbf;
        return 3;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        *low = first == 0xf0 ? 0x90 : 0x80;
        *high = first == 0xf4 ? 0x8f : 0xbf;
        return 4;
    }
    return 0;
}

size_t aq_utf8_step(const char *bytes, size_t count, bool *ret_valid)
{
    assert(count >= 1);
    unsigned char low, high;
    size_t want = utf8_shape((unsigned char)bytes[0], &low, &high);
    size_t have = 1;
    while (have < want && have < count) {
        unsigned char c = (unsigned char)bytes[have];
        if (c < low || c > high)
            break;
        low = 0x80;
        high = 0xbf;
        have++;
    }
    *ret_valid = have == want;
    return have;
}

size_t aq_utf8_count(const char *bytes, size_t count)
{
    size_t characters = 0;
    bool valid;
    for (size_t i = 0; i < count; characters++)
        i += aq_utf8_step(bytes + i, count - i, &valid);
    return characters;
}

size_t aq_utf8_invalid_at(const char *bytes, size_t count)
{
    bool valid;
    for (size_t i = 0; i < count;) {
        size_t n = aq_utf8_step(bytes + i, count - i, &valid);
        if (!valid)
            return i;
        i += n;
    }
    return count;
}

static bool json_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

static void json_escape(struct aq_buf *b, unsigned char c)
{
    switch (c) {
    case '"': aq_buf_put(b, "\\\"", 2); break;
    case '\\': aq_buf_put(b, "\\\\", 2); break;
    case '\n': aq_buf_put(b, "\\n", 2); break;
    case '\r': aq_buf_put(b, "\\r", 2); break;
    case '\t': aq_buf_put(b, "\\t", 2); break;
    default: aq_buf_printf(b, "\\u%04x", c);
    }
}

void aq_buf_json_string(struct aq_buf *b, const char *bytes, size_t count)
{
    aq_buf_put(b, "\"", 1);
    for (size_t i = 0; i < count;) {
        size_t run = i;
        while (run < count && json_plain((unsigned char)bytes[run]))
            run++;
        aq_buf_put(b, bytes + i, run - i);
        i = run;
        if (i == count)
            break;
        unsigned char c = (unsigned char)bytes[i];
        if (c < 0x80) {
            json_escape(b, c);
            i++;
            continue;
        }
        bool valid;
        size_t n = aq_utf8_step(bytes + i, count - i, &valid);
        if (valid)
            aq_buf_put(b, bytes + i, n);
        else
            aq_buf_put(b, "\xef\xbf\xbd", 3);
        i += n;
    }
    aq_buf_put(b, "\"", 1);
}

void aq_buf_json_u64(struct aq_buf *b, uint64_t x)
{
    char text[20];
    size_t at = sizeof(text);
    do {
        text[--at] = (char)('0' + x % 10);
        x /= 10;
    } while (x);
    aq_buf_put(b, text + at, sizeof(text) - at);
}

/* Prints with the first of the digit counts that reads back as x; single says as which type. */
static void json_real(struct aq_buf *b, double x, bool single)
{
    if (!isfinite(x)) {
        aq_buf_puts(b, "null");
        return;
    }
    char text[40];
    for (int digits = single ? 7 : 15; digits <= (single ? 9 : 17); digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, x);
        if (single ? strtof(text, NULL) == (float)x : strtod(text, NULL) == x)
            break;
    }
    char *comma = strchr(text, ','); /* a host program may have chosen such a locale */
    if (comma)
        *comma = '.';
    if (!text[strcspn(text, ".e")])
        aq_buf_printf(b, "%s.0", text);
    else
        aq_buf_puts(b, text);
}

void aq_buf_json_float(struct aq_buf *b, float x)
{
    json_real(b, (double)x, true);
}

void aq_buf_json_double(struct aq_buf *b, double x)
{
    json_real(b, x, false);
}

void aq_buf_json_u32s(struct aq_buf *b, const uint32_t *x, size_t count)
{
    aq_buf_put(b, "[", 1);
    for (size_t i = 0; i < count; i++) {
        if (i)
            aq_buf_put(b, ",", 1);
        aq_buf_json_u64(b, x[i]);
    }
    aq_buf_put(b, "]", 1);
}
