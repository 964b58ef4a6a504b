/* SPDX-License-Identifier: Apache-2.0
 * base/characters.h - characters of UTF-8 text known to be valid, and which of them Python takes
 * for white space (str.isspace, \s) and for the end of a line (str.splitlines). */
#ifndef AQ_BASE_CHARACTERS_H
#define AQ_BASE_CHARACTERS_H

#include "base/types.h"

/* Bytes of the character that begins with this byte. */
static inline size_t aq_character_bytes(char first)
{
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Bytes of the character; *ret is its code point. */
size_t aq_character_read(const char *text, uint32_t *ret);
bool aq_character_is_space(uint32_t character);
bool aq_character_ends_line(uint32_t character);
/* Bytes of white space that the text begins, or ends, with. */
size_t aq_character_space_before(struct aq_text t);
size_t aq_character_space_behind(struct aq_text t);

#endif
