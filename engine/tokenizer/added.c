/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/added.h"

#include "base/types.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <utf8proc.h>

void aq_added_close(struct aq_added *a)
{
    free(a->node);
    *a = (struct aq_added){0};
}

static uint32_t added_node(struct aq_added *a, unsigned char byte)
{
    if (a->count == a->capacity) {
        uint32_t capacity = a->capacity ? 2 * a->capacity : 64;
        struct aq_added_node *node = realloc(a->node, capacity * sizeof(*node));
        if (!node)
            return 0;
        a->node = node;
        a->capacity = capacity;
        if (a->count == 0)
            a->node[a->count++] = (struct aq_added_node){.id = -1}; /* 0 means none */
    }
    a->node[a->count] = (struct aq_added_node){.id = -1, .byte = byte};
    return a->count++;
}

static uint32_t added_child(const struct aq_added *a, uint32_t parent, unsigned char byte)
{
    uint32_t n = a->node[parent].child;
    while (n && a->node[n].byte != byte)
        n = a->node[n].sibling;
    return n;
}

int aq_added_put(struct aq_added *a, const char *text, size_t bytes, uint32_t id,
                 struct aq_err *reterr)
{
    if (bytes == 0 || bytes > AQ_ADDED_BYTES_MAX)
        return aq_error(reterr, -ENOEXEC, "added token %u: expected 1 to %d bytes, found %zu", id,
                        AQ_ADDED_BYTES_MAX, bytes);
    uint32_t at = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t next = i == 0 ? a->root[byte] : added_child(a, at, byte);
        if (!next) {
            next = added_node(a, byte);
            if (!next)
                return aq_error_memory(reterr, "added token %u of %zu bytes", id, bytes);
            if (i == 0) {
                a->root[byte] = next;
            } else {
                a->node[next].sibling = a->node[at].child;
                a->node[at].child = next;
            }
        }
        at = next;
    }
    if (a->node[at].id < 0)
        a->node[at].id = (int32_t)id;
    return 0;
}

bool aq_added_at(const struct aq_added *a, const char *text, size_t bytes, size_t begin,
                 struct aq_added_match *ret)
{
    uint32_t n = a->root[(unsigned char)text[begin]];
    bool found = false;
    for (size_t i = begin + 1; n; i++) {
        if (a->node[n].id >= 0) {
            *ret = (struct aq_added_match){begin, i, (uint32_t)a->node[n].id};
            found = true;
        }
        n = i < bytes ? added_child(a, n, (unsigned char)text[i]) : 0;
    }
    return found;
}

bool aq_added_find(const struct aq_added *a, const char *text, size_t bytes, size_t from,
                   struct aq_added_match *ret)
{
    if (a->count == 0)
        return false;
    for (size_t begin = from; begin < bytes; begin++)
        if (aq_added_at(a, text, bytes, begin, ret))
            return true;
    return false;
}

/* ---- edges ---- */

struct range {
    int32_t first, last;
};

static bool in_ranges(const struct range *r, size_t count, int32_t c)
{
    for (size_t i = 0; i < count; i++)
        if (c >= r[i].first && c <= r[i].last)
            return true;
    return false;
}

/* Unicode character database: Alphabetic is letters, marks in part, Nl and, of the symbols, these
 * circled and squared letters (PropList.txt, Other_Alphabetic).  All marks count anyway. */
static bool is_word(int32_t c)
{
    static const struct range lettered[] = {
        {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
    static const uint32_t word =
        AQ_CATEGORY_L | AQ_CATEGORY_M | AQ_CATEGORY_ND | AQ_CATEGORY_NL | AQ_CATEGORY_PC;
    return aq_unicode_category(c) & word || c == 0x200c || c == 0x200d ||
           in_ranges(lettered, AQ_ARRAY_LEN(lettered), c);
}

/* White_Space (PropList.txt). */
static bool is_space(int32_t c)
{
    static const struct range space[] = {
        {0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
    return in_ranges(space, AQ_ARRAY_LEN(space), c);
}

/* Bytes of the character that begins at `begin`; 0 when there is none. */
static size_t character_after(const char *text, size_t bytes, size_t begin, int32_t *ret)
{
    utf8proc_ssize_t n = begin < bytes ? utf8proc_iterate((const utf8proc_uint8_t *)text + begin,
                                                          (utf8proc_ssize_t)(bytes - begin), ret)
                                       : 0;
    return n > 0 ? (size_t)n : 0;
}

/* Bytes of the character that ends at `end`; 0 when there is none. */
static size_t character_before(const char *text, size_t end, int32_t *ret)
{
    for (size_t n = 1; n <= 4 && n <= end; n++)
        if (((unsigned char)text[end - n] & 0xc0) != 0x80)
            return character_after(text, end, end - n, ret) == n ? n : 0;
    return 0;
}

bool aq_word_before(const char *text, size_t end)
{
    int32_t c;
    return character_before(text, end, &c) && is_word(c);
}

bool aq_word_after(const char *text, size_t bytes, size_t begin)
{
    int32_t c;
    return character_after(text, bytes, begin, &c) && is_word(c);
}

size_t aq_space_before(const char *text, size_t end)
{
    int32_t c;
    size_t n;
    while ((n = character_before(text, end, &c)) && is_space(c))
        end -= n;
    return end;
}

size_t aq_space_after(const char *text, size_t bytes, size_t begin)
{
    int32_t c;
    size_t n;
    while ((n = character_after(text, bytes, begin, &c)) && is_space(c))
        begin += n;
    return begin;
}
