/* SPDX-License-Identifier: Apache-2.0 */
#include "base/characters.h"
#include "engine/chat/jinja_value.h"
#include "engine/tokenizer/unicode.h"

#include <string.h>

/* ---- stripping ---- */

static bool is_listed(struct aq_text characters, const char *c, size_t bytes)
{
    for (size_t at = 0; at < characters.count;) {
        size_t n = aq_character_bytes(characters.bytes[at]);
        if (n == bytes && !memcmp(characters.bytes + at, c, n))
            return true;
        at += n;
    }
    return false;
}

struct aq_text aq_jinja_strip(struct aq_text t, const struct aq_text *characters, bool left,
                              bool right)
{
    if (!characters) {
        size_t before = left ? aq_character_space_before(t) : 0;
        t = (struct aq_text){t.bytes + before, t.count - before};
        t.count -= right ? aq_character_space_behind(t) : 0;
        return t;
    }
    while (left && t.count) {
        size_t bytes = aq_character_bytes(t.bytes[0]);
        if (!is_listed(*characters, t.bytes, bytes))
            break;
        t = (struct aq_text){t.bytes + bytes, t.count - bytes};
    }
    while (right && t.count) {
        size_t at = t.count - 1;
        while (at && ((unsigned char)t.bytes[at] & 0xc0) == 0x80)
            at--;
        if (!is_listed(*characters, t.bytes + at, t.count - at))
            break;
        t.count = at;
    }
    return t;
}

/* ---- case ---- */

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

static char change(char c, bool upper)
{
    if (upper)
        return is_lower(c) ? (char)(c - 'a' + 'A') : c;
    return is_upper(c) ? (char)(c - 'A' + 'a') : c;
}

/* Whether the character behind `before` (NUL: there is none) is to be upper case. */
static bool wants_upper(enum aq_jinja_case to, char before)
{
    switch (to) {
    case AQ_JINJA_UPPER: return true;
    case AQ_JINJA_LOWER: return false;
    case AQ_JINJA_CAPITAL: return before == '\0';
    case AQ_JINJA_TITLE: return !is_lower(before) && !is_upper(before);
    case AQ_JINJA_TITLE_FILTER: break;
    }
    return before == '\0' || strchr("-({[<", before) ||
           aq_character_is_space((unsigned char)before);
}

/* Whether a character that is not ASCII stays as it is: those of categories without case, and what
 * is in that case already.  (Letters among numbers and symbols have case, too.) */
static bool keeps(uint32_t character, enum aq_jinja_case to)
{
    enum { LU = 1 << 0, LL = 1 << 1, LT = 1 << 2 };
    uint32_t c = aq_unicode_category((int32_t)character);
    if (to == AQ_JINJA_LOWER && c == LL)
        return true;
    bool letter = (c & AQ_CATEGORY_L) && !(c & (LU | LL | LT));
    return (to == AQ_JINJA_LOWER || to == AQ_JINJA_UPPER) && character != 0x345 &&
           (letter || (c & (AQ_CATEGORY_M | AQ_CATEGORY_ND)) || aq_character_is_space(character) ||
            (character >= 0x2010 && character <= 0x205e) ||
            (character >= 0x3001 && character <= 0x301b) || character >= 0x1f300);
}

bool aq_jinja_change_case(struct aq_jinja_run *r, struct aq_text t, enum aq_jinja_case to,
                          struct aq_jinja_value *ret)
{
    char *text = aq_jinja_work(r, t.count) ? aq_jinja_take(r, t.count) : NULL;
    if (!text)
        return false;
    for (size_t i = 0; i < t.count;) {
        uint32_t c;
        size_t bytes = aq_character_read(t.bytes + i, &c);
        if (c >= 0x80 && !keeps(c, to))
            return aq_jinja_fail(r, "another case of letters that are not ASCII is not supported");
        memcpy(text + i, t.bytes + i, bytes);
        if (bytes == 1)
            text[i] = change(t.bytes[i], wants_upper(to, i ? t.bytes[i - 1] : '\0'));
        i += bytes;
    }
    *ret = aq_jinja_string(text, t.count);
    return true;
}

/* ---- searching and replacing ---- */

size_t aq_jinja_find(struct aq_text t, struct aq_text what, size_t from)
{
    if (from > t.count)
        return SIZE_MAX;
    if (!what.count)
        return from;
    const char *at = memmem(t.bytes + from, t.count - from, what.bytes, what.count);
    return at ? (size_t)(at - t.bytes) : SIZE_MAX;
}

/* Between characters, where what is replaced is empty. */
static void insert_between(struct aq_buf *b, struct aq_text t, struct aq_text with, int64_t count)
{
    size_t at = 0;
    for (int64_t n = 0; (count < 0 || n < count) && at <= t.count; n++) {
        aq_buf_put(b, with.bytes, with.count);
        size_t bytes = at < t.count ? aq_character_bytes(t.bytes[at]) : 1;
        if (at < t.count)
            aq_buf_put(b, t.bytes + at, bytes);
        at += bytes;
        if (b->count > AQ_JINJA_OUTPUT_MAX)
            return;
    }
    if (at < t.count)
        aq_buf_put(b, t.bytes + at, t.count - at);
}

bool aq_jinja_replace(struct aq_jinja_run *r, struct aq_text t, struct aq_text old,
                      struct aq_text with, int64_t count, struct aq_jinja_value *ret)
{
    struct aq_buf b = {0};
    size_t at = 0;
    if (!aq_jinja_work(r, t.count))
        return false;
    if (!old.count) {
        insert_between(&b, t, with, count);
    } else {
        for (int64_t n = 0; (count < 0 || n < count) && b.count <= AQ_JINJA_OUTPUT_MAX; n++) {
            size_t found = aq_jinja_find(t, old, at);
            if (found == SIZE_MAX)
                break;
            aq_buf_put(&b, t.bytes + at, found - at);
            aq_buf_put(&b, with.bytes, with.count);
            at = found + old.count;
        }
        aq_buf_put(&b, t.bytes + at, t.count - at);
    }
    bool good = b.count <= AQ_JINJA_OUTPUT_MAX
                    ? aq_jinja_from_buf(r, &b, ret)
                    : aq_jinja_fail_bound(r, "replace: the text becomes too long");
    aq_buf_close(&b);
    return good;
}

/* ---- splitting and joining ---- */

static bool push_text(struct aq_jinja_run *r, struct aq_jinja_value *list, const char *begin,
                      const char *end)
{
    return aq_jinja_step(r) &&
           aq_jinja_push(r, list->list, aq_jinja_string(begin, (size_t)(end - begin)));
}

static void reverse(struct aq_jinja_list *l)
{
    for (uint32_t i = 0; i < l->count / 2; i++) {
        struct aq_jinja_value v = l->item[i];
        l->item[i] = l->item[l->count - 1 - i];
        l->item[l->count - 1 - i] = v;
    }
}

/* At white space, runs of which count once. */
static bool split_words(struct aq_jinja_run *r, struct aq_text t, int64_t count_max,
                        bool from_right, struct aq_jinja_value *ret)
{
    for (int64_t n = 0;; n++) {
        t = aq_jinja_strip(t, NULL, !from_right, from_right);
        if (!t.count)
            break;
        if (count_max >= 0 && n == count_max) {
            t = aq_jinja_strip(t, NULL, false, from_right);
            if (!push_text(r, ret, t.bytes, t.bytes + t.count))
                return false;
            break;
        }
        size_t at = from_right ? t.count : 0;
        while (from_right ? at > 0 : at < t.count) {
            size_t next = at - 1;
            uint32_t c;
            while (from_right && ((unsigned char)t.bytes[next] & 0xc0) == 0x80)
                next--;
            size_t bytes = aq_character_read(t.bytes + (from_right ? next : at), &c);
            if (aq_character_is_space(c))
                break;
            at = from_right ? next : at + bytes;
        }
        const char *cut = t.bytes + at, *end = t.bytes + t.count;
        if (!push_text(r, ret, from_right ? cut : t.bytes, from_right ? end : cut))
            return false;
        t = from_right ? (struct aq_text){t.bytes, at} : (struct aq_text){cut, t.count - at};
    }
    return true;
}

/* Where the separator is last in the text; SIZE_MAX. */
static size_t find_last(struct aq_text t, struct aq_text what)
{
    for (size_t at = t.count - what.count + 1; t.count >= what.count && at > 0; at--)
        if (!memcmp(t.bytes + at - 1, what.bytes, what.count))
            return at - 1;
    return SIZE_MAX;
}

static bool split_at(struct aq_jinja_run *r, struct aq_text t, struct aq_text separator,
                     int64_t count_max, bool from_right, struct aq_jinja_value *ret)
{
    for (int64_t n = 0; count_max < 0 || n < count_max; n++) {
        size_t at = from_right ? find_last(t, separator) : aq_jinja_find(t, separator, 0);
        if (at == SIZE_MAX)
            break;
        const char *behind = t.bytes + at + separator.count, *end = t.bytes + t.count;
        if (!push_text(r, ret, from_right ? behind : t.bytes, from_right ? end : t.bytes + at))
            return false;
        t = from_right ? (struct aq_text){t.bytes, at}
                       : (struct aq_text){behind, (size_t)(end - behind)};
    }
    return push_text(r, ret, t.bytes, t.bytes + t.count);
}

bool aq_jinja_split(struct aq_jinja_run *r, struct aq_text t, const struct aq_text *separator,
                    int64_t count_max, bool from_right, struct aq_jinja_value *ret)
{
    if (separator && !separator->count)
        return aq_jinja_fail(r, "split: the separator is empty");
    if (!aq_jinja_work(r, t.count) || !aq_jinja_new_list(r, AQ_JINJA_IS_LIST, 0, ret))
        return false;
    bool good = separator ? split_at(r, t, *separator, count_max, from_right, ret)
                          : split_words(r, t, count_max, from_right, ret);
    if (good && from_right)
        reverse(ret->list);
    return good;
}

bool aq_jinja_split_lines(struct aq_jinja_run *r, struct aq_text t, bool keep_ends,
                          struct aq_jinja_value *ret)
{
    if (!aq_jinja_work(r, t.count) || !aq_jinja_new_list(r, AQ_JINJA_IS_LIST, 0, ret))
        return false;
    const char *begin = t.bytes;
    for (size_t at = 0; at < t.count;) {
        uint32_t c;
        const char *end = t.bytes + at;
        at += aq_character_read(end, &c);
        if (!aq_character_ends_line(c))
            continue;
        at += c == '\r' && at < t.count && t.bytes[at] == '\n';
        if (!push_text(r, ret, begin, keep_ends ? t.bytes + at : end))
            return false;
        begin = t.bytes + at;
    }
    const char *end = t.bytes + t.count;
    return begin == end || push_text(r, ret, begin, end);
}

bool aq_jinja_join(struct aq_jinja_run *r, struct aq_text separator,
                   const struct aq_jinja_list *items, bool strings_only, struct aq_jinja_value *ret)
{
    struct aq_buf b = {0};
    bool good = true;
    for (uint32_t i = 0; good && i < items->count; i++) {
        const struct aq_jinja_value *v = &items->item[i];
        if (i)
            aq_buf_put(&b, separator.bytes, separator.count);
        if (strings_only && !aq_jinja_is(v, AQ_JINJA_IS_STRING))
            good = aq_jinja_fail(r, "join: expected strings, found '%s'", aq_jinja_type_name(v));
        else
            good = aq_jinja_print(r, &b, v);
        if (b.count > AQ_JINJA_OUTPUT_MAX)
            good = aq_jinja_fail_bound(r, "join: the text becomes too long");
    }
    good = good && aq_jinja_from_buf(r, &b, ret);
    aq_buf_close(&b);
    return good;
}
