/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/unicode.h"

#include "base/types.h"
#include "engine/tokenizer/unicode_table.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The order of the maker's CATEGORIES. */
static const char category_names[][3] = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

static const uint32_t surrogates = 1u << 27, unassigned = 1u << 29;
/* One character (U+1171E) went from Mn to Mc between Unicode 14.0 and 16.0; no other moved. */
static const uint32_t moved = 1u << 5 | 1u << 6;

static uint32_t row_first(uint32_t row)
{
    return row >> 8;
}

static uint32_t row_category(uint32_t row)
{
    return 1u << (row & AQ_UNICODE_CATEGORY_BITS);
}

struct table {
    const uint32_t *row;
    uint32_t count; /* with the last row, which is beyond all characters */
};

static struct table categories(void)
{
    return (struct table){aq_unicode_categories, aq_unicode_categories_count};
}

static void find_span(struct table t, int32_t character, struct aq_unicode_span *ret)
{
    assert(character >= 0 && character < AQ_UNICODE_END);
    uint32_t low = 0, high = t.count - 1;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (row_first(t.row[middle]) <= (uint32_t)character)
            low = middle;
        else
            high = middle;
    }
    *ret = (struct aq_unicode_span){row_first(t.row[low]), row_first(t.row[low + 1]), t.row[low]};
}

static uint32_t value_of(struct table t, int32_t character, struct aq_unicode_span *span)
{
    uint32_t c = (uint32_t)character;
    if (c < span->first || c >= span->end)
        find_span(t, character, span);
    return span->value;
}

uint32_t aq_unicode_category(int32_t character)
{
    return row_category(value_of(categories(), character, &(struct aq_unicode_span){0}));
}

bool aq_unicode_active_in_nfc(int32_t character, struct aq_unicode_span *span)
{
    return value_of(categories(), character, span) & AQ_UNICODE_NFC_ACTIVE;
}

bool aq_unicode_known_to_nfc(int32_t character, struct aq_unicode_span *span)
{
    return value_of(categories(), character, span) & AQ_UNICODE_ASSIGNED_NFC;
}

/* The first of the newer characters is U+0897: three bytes, the first one e0. */
bool aq_unicode_has_newer(const char *text, size_t bytes)
{
    const struct table newer = {aq_unicode_newer, aq_unicode_newer_count};
    struct aq_unicode_span span = {0};
    for (size_t i = 0; i < bytes;) {
        int32_t character;
        uint64_t eight;
        if (bytes - i >= sizeof(eight)) {
            memcpy(&eight, text + i, sizeof(eight));
            if (!(eight & 0x8080808080808080)) {
                i += sizeof(eight);
                continue;
            }
        }
        if ((unsigned char)text[i] < 0xe0) {
            i++;
            continue;
        }
        i += aq_unicode_read(text + i, &character);
        if (value_of(newer, character, &span) & 1)
            return true;
    }
    return false;
}

/* ---- names ---- */

/* Is the name `want`, of want_bytes without underscores? */
static bool is_name(const char *name, size_t bytes, const char *want, size_t want_bytes)
{
    size_t i = 0, k = 0;
    for (;; i++, k++) {
        while (i < bytes && name[i] == '_')
            i++;
        while (k < want_bytes && want[k] == '_')
            k++;
        if (i == bytes || k == want_bytes)
            return i == bytes && k == want_bytes;
        if ((name[i] | 32) != (want[k] | 32))
            return false;
    }
}

int aq_unicode_find(const char *name, size_t bytes, struct aq_unicode_property *ret)
{
    uint32_t categories = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(category_names); i++)
        if (is_name(name, bytes, category_names[i], 1) ||
            is_name(name, bytes, category_names[i], 2))
            categories |= 1u << i;
    if (categories) {
        *ret = (struct aq_unicode_property){.categories = categories};
        return 0;
    }
    for (uint32_t i = 0; aq_unicode_script_names[i]; i++) {
        const char *code = aq_unicode_script_names[i], *space = strchr(code, ' ');
        if (is_name(name, bytes, code, (size_t)(space - code)) ||
            is_name(name, bytes, space + 1, strlen(space + 1))) {
            *ret = (struct aq_unicode_property){.script = i};
            return 0;
        }
    }
    return -ENOENT;
}

/* ---- classes ---- */

static bool is_surrogate(const struct aq_unicode_property *p, uint32_t row)
{
    return p->categories ? row_category(row) == surrogates
                         : (row & AQ_UNICODE_SCRIPT_BITS) == AQ_UNICODE_NO_SCRIPT;
}

static bool has_row(const struct aq_unicode_property *p, uint32_t row)
{
    return p->categories ? (p->categories & row_category(row)) != 0
                         : (row & AQ_UNICODE_SCRIPT_BITS) == p->script;
}

/* Ranges of the characters that have the property, or have it not; surrogates are no characters.
 * newer: only those that are newer than Unicode 14.0. */
static void put_ranges(struct aq_buf *out, const struct aq_unicode_property *p, bool complement,
                       bool newer)
{
    const struct table t =
        p->categories ? categories() : (struct table){aq_unicode_scripts, aq_unicode_scripts_count};
    for (uint32_t i = 0, end; i + 1 < t.count; i = end) {
        end = i;
        while (end + 1 < t.count && !is_surrogate(p, t.row[end]) &&
               has_row(p, t.row[end]) != complement &&
               (!newer || t.row[end] & AQ_UNICODE_NEWER_BIT))
            end++;
        if (end == i)
            end++;
        else
            aq_buf_printf(out, "\\x{%x}-\\x{%x}", row_first(t.row[i]), row_first(t.row[end]) - 1);
    }
}

/* Long lists of ranges are slow in PCRE2 before 10.45, and may exceed what one pattern can be. */
bool aq_unicode_names_agree(const char *version)
{
    unsigned major = 0, minor = 0;
    return sscanf(version, "%u.%u", &major, &minor) == 2 &&
           (major == 14 || major == 15 || (major == 16 && minor == 0));
}

/* Is the category by its name, and what is newer, all of it and no more? */
static bool name_and_newer(const struct aq_unicode_property *p, bool complement)
{
    bool has_moved = (p->categories & moved) != 0 && (p->categories & moved) != moved;
    return p->categories && !complement && !has_moved && !(p->categories & unassigned);
}

void aq_unicode_put_class(struct aq_buf *out, const struct aq_unicode_property *p, bool complement,
                          enum aq_unicode_spelling spelling)
{
    bool newer = spelling == AQ_UNICODE_NEWER && name_and_newer(p, complement);
    bool name = newer || (spelling == AQ_UNICODE_NAMES && p->categories);
    if (name) {
        bool single = (p->categories & (p->categories - 1)) == 0; /* else all of one letter */
        const char *category = category_names[__builtin_ctz(p->categories)];
        aq_buf_printf(out, "\\%c{%.*s}", complement ? 'P' : 'p', single ? 2 : 1, category);
    }
    if (newer || !name)
        put_ranges(out, p, complement, newer);
}
