/* SPDX-License-Identifier: Apache-2.0 */
#include "base/characters.h"

size_t aq_character_read(const char *text, uint32_t *ret)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t bytes = aq_character_bytes(text[0]);
    static const unsigned char mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t x = c[0] & mask[bytes];
    for (size_t i = 1; i < bytes; i++)
        x = x << 6 | (c[i] & 0x3f);
    *ret = x;
    return bytes;
}

/* Bidirectional classes WS, B and S, and category Zs, as Python's str.isspace has it. */
bool aq_character_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool aq_character_ends_line(uint32_t c)
{
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

size_t aq_character_space_before(struct aq_text t)
{
    size_t at = 0;
    uint32_t c;
    while (at < t.count) {
        size_t bytes = aq_character_read(t.bytes + at, &c);
        if (!aq_character_is_space(c))
            break;
        at += bytes;
    }
    return at;
}

size_t aq_character_space_behind(struct aq_text t)
{
    size_t end = t.count;
    while (end) {
        size_t begin = end - 1;
        uint32_t c;
        while (begin && ((unsigned char)t.bytes[begin] & 0xc0) == 0x80)
            begin--;
        aq_character_read(t.bytes + begin, &c);
        if (!aq_character_is_space(c))
            break;
        end = begin;
    }
    return t.count - end;
}
