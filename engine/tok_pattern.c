/* SPDX-License-Identifier: Apache-2.0
 * The dialect of tokenizer.json's patterns (Oniguruma, Ruby syntax: its doc/RE) rewritten for
 * PCRE2. Most is the same in both.  What differs is rewritten where that is exact and refused where
 * it is not: a pattern that silently means something else would give wrong tokens. */
#include "engine/tok_splitter.h"

#include <string.h>

/* White_Space of the Unicode character database (PropList.txt).  PCRE2's \s has U+180E in addition,
 * which Unicode took out of the spaces in version 6.3. */
#define WHITE_SPACE                                                                                \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"        \
    "\\x{205f}\\x{3000}"

const char aq_split_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct reader {
    const char *text;
    size_t bytes, at;
    bool in_class;
    struct aq_buf *out;
    struct aq_err *reterr;
};

static int refuse(struct reader *r, const char *what)
{
    return aq_error(r->reterr, -ENOEXEC, "pattern, byte %zu: %s is not supported", r->at, what);
}

static bool looking_at(const struct reader *r, const char *what)
{
    size_t n = strlen(what);
    return r->bytes - r->at >= n && memcmp(r->text + r->at, what, n) == 0;
}

/* A property \p{...} is the same in both as long as it is a plain name. */
static int read_property(struct reader *r)
{
    size_t i = r->at + 2;
    if (i >= r->bytes || r->text[i] != '{')
        return refuse(r, "a property without braces");
    for (i++; i < r->bytes && r->text[i] != '}'; i++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_^", r->text[i]))
            return refuse(r, "a property with other than letters in its name");
    if (i == r->bytes)
        return refuse(r, "a property without its closing brace");
    aq_buf_put(r->out, r->text + r->at, i + 1 - r->at);
    r->at = i + 1;
    return 0;
}

/* \uHHHH */
static int read_unicode(struct reader *r)
{
    if (r->bytes - r->at < 6)
        return refuse(r, "\\u without four digits");
    for (size_t i = 2; i < 6; i++)
        if (!strchr("0123456789abcdefABCDEF", r->text[r->at + i]) || !r->text[r->at + i])
            return refuse(r, "\\u without four digits");
    aq_buf_printf(r->out, "\\x{%.4s}", r->text + r->at + 2);
    r->at += 6;
    return 0;
}

static int read_escape(struct reader *r)
{
    if (r->at + 1 >= r->bytes)
        return refuse(r, "a backslash at the end");
    char c = r->text[r->at + 1];
    switch (c) {
    case 's':
        aq_buf_puts(r->out, r->in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
        r->at += 2;
        return 0;
    case 'S':
        if (r->in_class)
            return refuse(r, "\\S within a class");
        aq_buf_puts(r->out, "[^" WHITE_SPACE "]");
        r->at += 2;
        return 0;
    case 'p':
    case 'P': return read_property(r);
    case 'u': return read_unicode(r);
    default: break;
    }
    /* \d is \p{Nd} in both; \w, \b, \h, \v, \R and the like differ or are no business of a
     * splitter.  \x is two digits in both, or more in braces. */
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (((unsigned char)c & 0x80) || (letter && !strchr("dDnrtfx", c))) {
        char what[16] = {'\\', c >= 0 ? c : '?'};
        return refuse(r, what);
    }
    aq_buf_put(r->out, r->text + r->at, 2);
    r->at += 2;
    return 0;
}

static int read_class_character(struct reader *r, size_t begin)
{
    if (looking_at(r, "&&"))
        return refuse(r, "'&&' in a class");
    if (r->text[r->at] == '[')
        return refuse(r, "'[' within a class");
    if (r->text[r->at] == ']') {
        if (r->at == begin)
            return refuse(r, "']' as the first character of a class");
        r->in_class = false;
    }
    aq_buf_put(r->out, r->text + r->at++, 1);
    return 0;
}

/* Groups that mean the same in both dialects. */
static bool plain_group(const struct reader *r)
{
    static const char *const known[] = {
        "(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (!looking_at(r, "(?"))
        return !looking_at(r, "(*");
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (looking_at(r, known[i]))
            return true;
    /* (?i) reaches to the end of the group, or of the pattern when it stands in front */
    return r->at == 0 && looking_at(r, "(?i)");
}

/* x{1,3} is one thing in both; x{1,3}+ is possessive in PCRE2 and a repeated repeat in Ruby. */
static int read_brace(struct reader *r)
{
    size_t i = r->at + 1;
    while (i < r->bytes && strchr("0123456789,", r->text[i]) && r->text[i])
        i++;
    if (i == r->at + 1 || i == r->bytes || r->text[i] != '}' || r->text[r->at + 1] == ',')
        return refuse(r, "'{' that begins no repeat {n}, {n,} or {n,m}");
    if (i + 1 < r->bytes && strchr("+?", r->text[i + 1]) && r->text[i + 1])
        return refuse(r, "a repeat of a repeat");
    aq_buf_put(r->out, r->text + r->at, i + 1 - r->at);
    r->at = i + 1;
    return 0;
}

static int read_outside(struct reader *r, size_t *class_begin)
{
    switch (r->text[r->at]) {
    case '(':
        if (!plain_group(r))
            return refuse(r, "this kind of group");
        break;
    case '{': return read_brace(r);
    case '[':
        aq_buf_put(r->out, r->text + r->at++, 1);
        if (r->at < r->bytes && r->text[r->at] == '^')
            aq_buf_put(r->out, r->text + r->at++, 1);
        r->in_class = true;
        *class_begin = r->at;
        return 0;
    default: break;
    }
    aq_buf_put(r->out, r->text + r->at++, 1);
    return 0;
}

int aq_split_translate(const char *pattern, size_t bytes, struct aq_buf *out, struct aq_err *reterr)
{
    struct reader r = {.text = pattern, .bytes = bytes, .out = out, .reterr = reterr};
    size_t class_begin = 0;
    int rc = 0;
    if (bytes > AQ_SPLIT_PATTERN_BYTES_MAX)
        return aq_error(reterr, -ENOEXEC, "pattern: expected at most %d bytes, found %zu",
                        AQ_SPLIT_PATTERN_BYTES_MAX, bytes);
    while (rc == 0 && r.at < bytes) {
        if (pattern[r.at] == '\\')
            rc = read_escape(&r);
        else if (r.in_class)
            rc = read_class_character(&r, class_begin);
        else
            rc = read_outside(&r, &class_begin);
    }
    if (rc == 0 && out->failed)
        rc = aq_error(reterr, -ENOMEM, "pattern of %zu bytes", bytes);
    return rc;
}
