/* SPDX-License-Identifier: Apache-2.0
 * The dialect of tokenizer.json's patterns (Oniguruma, Ruby syntax: its doc/RE) rewritten for
 * PCRE2. Most is the same in both.  What differs is rewritten where that is exact and refused where
 * it is not: a pattern that silently means something else would give wrong tokens.  Oniguruma also
 * folds some characters to two when it ignores case (ss and U+00DF); that is not imitated. */
#include "engine/tokenizer/splitter.h"

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
    size_t class_begin;
    bool caseless;                  /* within a group that ignores case, or behind (?i) */
    unsigned depth, caseless_depth; /* of groups; of that group, 0 for (?i) */
    enum aq_unicode_spelling spelling;
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

/* A class that stands alone keeps to what it says where case is ignored; one within brackets takes
 * the other cases in, as in Oniguruma. */
static void put_property(struct reader *r, const struct aq_unicode_property *p, bool complement)
{
    if (r->in_class) {
        aq_unicode_put_class(r->out, p, complement, r->spelling);
        return;
    }
    aq_buf_puts(r->out, r->caseless ? "(?-i:[" : "[");
    aq_buf_puts(r->out, complement ? "^" : "");
    aq_unicode_put_class(r->out, p, false, r->spelling);
    aq_buf_puts(r->out, r->caseless ? "])" : "]");
}

/* \p{L}, \p{Lu}, \p{Han}, \p{^L}, \P{L} */
static int read_property(struct reader *r)
{
    size_t i = r->at + 2;
    if (i >= r->bytes || r->text[i] != '{')
        return refuse(r, "a property without braces");
    bool complement = r->text[r->at + 1] == 'P';
    if (i + 1 < r->bytes && r->text[i + 1] == '^') {
        complement = !complement;
        i++;
    }
    size_t begin = i + 1;
    for (i = begin; i < r->bytes && r->text[i] != '}'; i++)
        if (!((r->text[i] | 32) >= 'a' && (r->text[i] | 32) <= 'z') && r->text[i] != '_')
            return refuse(r, "a property with other than letters in its name");
    if (i == r->bytes)
        return refuse(r, "a property without its closing brace");
    const char *name = r->text + begin;
    size_t n = i - begin;
    struct aq_unicode_property p;
    if (aq_unicode_find(name, n, &p) < 0)
        return refuse(r, "a property that is neither a general category nor a script");
    if (n == 2 && (name[0] | 32) == 'l' && strchr("ult", name[1] | 32) && r->caseless)
        return refuse(r, "a cased property where case is ignored");
    put_property(r, &p, complement);
    r->at = i + 1;
    return 0;
}

/* \xHH is a character up to 7f and a byte beyond in Oniguruma; \x{H...} a character. */
static int read_hex(struct reader *r)
{
    size_t i = r->at + 2, digits = 0;
    bool braces = i < r->bytes && r->text[i] == '{';
    unsigned value = 0;
    for (i += braces; i < r->bytes && digits < (braces ? 6 : 2); i++, digits++) {
        char c = r->text[i];
        if (c >= '0' && c <= '9')
            value = value * 16 + (unsigned)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            value = value * 16 + (unsigned)((c | 32) - 'a' + 10);
        else
            break;
    }
    if (digits == 0 || (!braces && value > 0x7f) ||
        (braces && (i >= r->bytes || r->text[i++] != '}')))
        return refuse(r, "\\x other than \\x00 to \\x7f and \\x{...}");
    aq_buf_printf(r->out, "\\x{%x}", value);
    r->at = i;
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
    case 'd':
    case 'D':
        put_property(r, &(struct aq_unicode_property){.categories = AQ_CATEGORY_ND}, c == 'D');
        r->at += 2;
        return 0;
    case 'p':
    case 'P': return read_property(r);
    case 'u': return read_unicode(r);
    case 'x': return read_hex(r);
    default: break;
    }
    /* \w, \b, \h, \v, \R and the like differ or are no business of a splitter. */
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (((unsigned char)c & 0x80) || (letter && !strchr("nrtf", c))) {
        char what[16] = {'\\', c >= 0 ? c : '?'};
        return refuse(r, what);
    }
    aq_buf_put(r->out, r->text + r->at, 2);
    r->at += 2;
    return 0;
}

static int read_class_character(struct reader *r)
{
    if (looking_at(r, "&&"))
        return refuse(r, "'&&' in a class");
    if (r->text[r->at] == '[')
        return refuse(r, "'[' within a class");
    if (r->text[r->at] == ']') {
        if (r->at == r->class_begin)
            return refuse(r, "']' as the first character of a class");
        r->in_class = false;
    }
    aq_buf_put(r->out, r->text + r->at++, 1);
    return 0;
}

/* Groups that mean the same in both dialects. */
static bool plain_group(struct reader *r)
{
    static const char *const known[] = {
        "(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (!looking_at(r, "(?"))
        return !looking_at(r, "(*");
    /* (?i) reaches to the end of the group, or of the pattern when it stands in front */
    bool whole = r->at == 0 && looking_at(r, "(?i)"), plain = whole;
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        plain = plain || looking_at(r, known[i]);
    if (!r->caseless && (whole || looking_at(r, "(?i:"))) {
        r->caseless = true;
        r->caseless_depth = whole ? 0 : r->depth + 1;
    }
    return plain;
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

static int read_outside(struct reader *r)
{
    switch (r->text[r->at]) {
    case '(':
        if (!plain_group(r))
            return refuse(r, "this kind of group");
        r->depth++;
        break;
    case ')':
        if (r->caseless && r->depth == r->caseless_depth)
            r->caseless = false;
        r->depth -= r->depth > 0; /* one too many: PCRE2 says so */
        break;
    case '{': return read_brace(r);
    case '[':
        aq_buf_put(r->out, r->text + r->at++, 1);
        if (r->at < r->bytes && r->text[r->at] == '^')
            aq_buf_put(r->out, r->text + r->at++, 1);
        r->in_class = true;
        r->class_begin = r->at;
        return 0;
    default: break;
    }
    aq_buf_put(r->out, r->text + r->at++, 1);
    return 0;
}

int aq_split_translate(const char *pattern, size_t bytes, enum aq_unicode_spelling spelling,
                       struct aq_buf *out, struct aq_err *reterr)
{
    struct reader r = {
        .text = pattern, .bytes = bytes, .spelling = spelling, .out = out, .reterr = reterr};
    int rc = 0;
    if (bytes > AQ_SPLIT_PATTERN_BYTES_MAX)
        return aq_error(reterr, -ENOEXEC, "pattern: expected at most %d bytes, found %zu",
                        AQ_SPLIT_PATTERN_BYTES_MAX, bytes);
    while (rc == 0 && r.at < bytes) {
        if (pattern[r.at] == '\\')
            rc = read_escape(&r);
        else if (r.in_class)
            rc = read_class_character(&r);
        else
            rc = read_outside(&r);
    }
    if (rc == 0 && out->failed)
        rc = aq_error_memory(reterr, "pattern of %zu bytes", bytes);
    return rc;
}
