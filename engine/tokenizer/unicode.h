/* SPDX-License-Identifier: Apache-2.0
 * engine/tokenizer/unicode.h - what a character is: the one answer on every machine, whatever the
 * versions of its libraries.  The answers are those of the tokenizers library, whose ids are the
 * measure: Unicode 16.0 for categories and scripts, 9.0 for normalisation.  Knows code points and
 * the syntax of PCRE2's classes; no tokens. */
#ifndef AQ_ENGINE_TOKENIZER_UNICODE_H
#define AQ_ENGINE_TOKENIZER_UNICODE_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AQ_UNICODE_VERSION     "16.0.0"
#define AQ_UNICODE_VERSION_NFC "9.0.0"

/* General categories as bits: a letter is c & AQ_CATEGORY_L. */
enum aq_unicode_category {
    AQ_CATEGORY_L = 0x1f,      /* Lu Ll Lt Lm Lo */
    AQ_CATEGORY_M = 0x7 << 5,  /* Mn Mc Me */
    AQ_CATEGORY_ND = 0x1 << 8, /* then Nl, No */
    AQ_CATEGORY_NL = 0x1 << 9,
    AQ_CATEGORY_PC = 0x1 << 11, /* then the other P, S, Z, C: the order of the table's maker */
};

uint32_t aq_unicode_category(int32_t character);

/* Characters in a row of which the same is true; {0} to start.  Text keeps to few of them. */
struct aq_unicode_span {
    uint32_t first, end, value;
};

/* Bytes of the character that valid UTF-8 begins with. */
static inline size_t aq_unicode_read(const char *text, int32_t *ret)
{
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < 0x80) {
        *ret = c[0];
        return 1;
    }
    if (c[0] < 0xe0) {
        *ret = (c[0] & 0x1f) << 6 | (c[1] & 0x3f);
        return 2;
    }
    if (c[0] < 0xf0) {
        *ret = (c[0] & 0xf) << 12 | (c[1] & 0x3f) << 6 | (c[2] & 0x3f);
        return 3;
    }
    *ret = (c[0] & 0x7) << 18 | (c[1] & 0x3f) << 12 | (c[2] & 0x3f) << 6 | (c[3] & 0x3f);
    return 4;
}

/* Does the character move, change or compose with one before it?  The others begin a stretch of
 * text that NFC treats by itself (class 0, and Yes in NFC_Quick_Check). */
bool aq_unicode_active_in_nfc(int32_t character, struct aq_unicode_span *span);
/* Was the character assigned in AQ_UNICODE_VERSION_NFC?  One that was not neither composes nor
 * decomposes nor moves.  span: where to look first. */
bool aq_unicode_known_to_nfc(int32_t character, struct aq_unicode_span *span);
/* Has the valid UTF-8 a character whose category is another one in Unicode 14.0? */
bool aq_unicode_has_newer(const char *text, size_t bytes);

/* Characters as a regular expression has them. */
struct aq_unicode_property {
    uint32_t categories; /* 0: a script */
    uint32_t script;
};

/* "L", "lu", "Han", "hani": -ENOENT where no category and no script has this name.  Case and
 * underscores are not looked at. */
int aq_unicode_find(const char *name, size_t bytes, struct aq_unicode_property *ret);
enum aq_unicode_spelling {
    AQ_UNICODE_NAMES,  /* categories by name, as PCRE2 knows them */
    AQ_UNICODE_NEWER,  /* the same and what is newer than 14.0; ranges where that is not all */
    AQ_UNICODE_RANGES, /* ranges alone; they are long */
};

/* The names of a PCRE2 with this version of Unicode ("14.0.0") mean what they do here, for text
 * without newer characters. */
bool aq_unicode_names_agree(const char *version);
/* Appends what stands for the property between the brackets of a class of PCRE2; complement: for
 * all other characters. */
void aq_unicode_put_class(struct aq_buf *out, const struct aq_unicode_property *property,
                          bool complement, enum aq_unicode_spelling spelling);

#endif
