/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/unicode_table.h - the data behind tok_unicode.h, made by tok_unicode.py; for
 * tok_unicode.c alone.  A row holds for the characters from its own up to the next row's: the first
 * character in bits 8 and up, its value in bits 0 to 7.  The last row begins at U+110000. */
#ifndef AQ_ENGINE_TOKENIZER_UNICODE_TABLE_H
#define AQ_ENGINE_TOKENIZER_UNICODE_TABLE_H

#include <stdint.h>

enum {
    AQ_UNICODE_CATEGORY_BITS = 0x1f, /* of a value of aq_unicode_categories: Lu, Ll, ... Cn */
    AQ_UNICODE_NFC_ACTIVE = 0x20,    /* see aq_unicode_active_in_nfc */
    AQ_UNICODE_NEWER_BIT = 0x40,     /* another category than in Unicode 14.0 */
    AQ_UNICODE_ASSIGNED_NFC = 0x80,  /* assigned in Unicode 9.0 */
    AQ_UNICODE_SCRIPT_BITS = 0xff,   /* of a value of aq_unicode_scripts */
    AQ_UNICODE_NO_SCRIPT = 255,      /* a surrogate's value there */
    AQ_UNICODE_END = 0x110000,
};

extern const uint32_t aq_unicode_categories[], aq_unicode_categories_count;
/* Value 1 where aq_unicode_categories has AQ_UNICODE_NEWER_BIT: fewer rows to look through. */
extern const uint32_t aq_unicode_newer[], aq_unicode_newer_count;
extern const uint32_t aq_unicode_scripts[], aq_unicode_scripts_count;
/* "Hani Han": code and name of each value of aq_unicode_scripts; NULL behind the last. */
extern const char *const aq_unicode_script_names[];

#endif
