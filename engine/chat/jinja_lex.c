/* SPDX-License-Identifier: Apache-2.0
 * The rules are those of jinja2/lexer.py (3.1). */
#include "engine/chat/jinja_lex.h"

#include "base/characters.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BRACKETS_MAX = 256, NUMBER_BYTES_MAX = 400 };

struct lexer {
    const char *text; /* line ends are all \n */
    size_t count, at;
    uint32_t line;
    bool line_begins; /* what was read last ended a line */
    char bracket[BRACKETS_MAX];
    uint32_t brackets;
    struct aq_arena *arena;
    struct aq_jinja_tokens *tokens;
    struct aq_err *err;
    int rc;
};

static bool fail(struct lexer *l, const char *what)
{
    l->rc = aq_error(l->err, -ENOEXEC, "line %u: %s", l->line, what);
    return false;
}

static bool no_memory(struct lexer *l)
{
    l->rc = aq_error_memory(l->err, "tokens of a chat template");
    return false;
}

static struct aq_jinja_token *put(struct lexer *l, enum aq_jinja_token_kind kind,
                                  struct aq_text text)
{
    struct aq_jinja_tokens *t = l->tokens;
    if (t->count == t->capacity) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : 256;
        struct aq_jinja_token *item = realloc(t->item, capacity * sizeof(*item));
        if (!item) {
            no_memory(l);
            return NULL;
        }
        t->item = item;
        t->capacity = capacity;
    }
    t->item[t->count] = (struct aq_jinja_token){.kind = kind, .line = l->line, .text = text};
    return &t->item[t->count++];
}

/* ---- the text as a whole ---- */

/* \r\n and \r become \n, and one line end at the end is left out. */
static bool normalise(struct lexer *l, struct aq_text text)
{
    char *to = aq_arena_take(l->arena, text.count + 1);
    if (!to)
        return no_memory(l);
    l->text = to;
    for (size_t i = 0; i < text.count; i++) {
        char c = text.bytes[i];
        if (c == '\r' && i + 1 < text.count && text.bytes[i + 1] == '\n')
            continue;
        to[l->count++] = c == '\r' ? '\n' : c;
    }
    if (l->count && to[l->count - 1] == '\n')
        l->count--;
    to[l->count] = '\0';
    return true;
}

static bool looks_at(const struct lexer *l, size_t at, const char *word)
{
    size_t n = strlen(word);
    return l->count - at >= n && !memcmp(l->text + at, word, n);
}

static struct aq_text rest(const struct lexer *l, size_t at)
{
    return (struct aq_text){l->text + at, l->count - at};
}

static void move_to(struct lexer *l, size_t to)
{
    for (size_t i = l->at; i < to; i++)
        l->line += l->text[i] == '\n';
    if (to > l->at)
        l->line_begins = l->text[to - 1] == '\n';
    l->at = to;
}

/* Behind `end` (as "%}") at `at`, with the white space that a '-' in front of it takes away; 0: it
 * is not there.  trims: one line end behind it is taken away. */
static size_t tag_end(const struct lexer *l, size_t at, const char *end, bool trims, bool plus)
{
    char sign = at < l->count ? l->text[at] : '\0';
    bool signed_end = (sign == '-' || (plus && sign == '+')) && looks_at(l, at + 1, end);
    if (signed_end && sign == '+')
        return at + 3;
    if (signed_end)
        return at + 3 + aq_character_space_before(rest(l, at + 3));
    if (!looks_at(l, at, end))
        return 0;
    return at + 2 + (trims && at + 2 < l->count && l->text[at + 2] == '\n');
}

/* ---- outside of tags ---- */

/* What stands before a tag, less the white space that the tag takes away. */
static struct aq_text before_tag(const struct lexer *l, size_t end, char sign, bool variable)
{
    struct aq_text t = {l->text + l->at, end - l->at};
    if (sign == '-') {
        t.count -= aq_character_space_behind(t);
        return t;
    }
    if (sign == '+' || variable)
        return t;
    const char *newline = t.count ? memrchr(t.bytes, '\n', t.count) : NULL;
    size_t line = newline ? (size_t)(newline - t.bytes) + 1 : 0;
    struct aq_text last = {t.bytes + line, t.count - line};
    if ((newline || l->line_begins) && aq_character_space_before(last) == last.count)
        t.count = line;
    return t;
}

static bool put_data(struct lexer *l, struct aq_text t)
{
    return !t.count || put(l, AQ_JINJA_TOKEN_DATA, t);
}

/* Behind "{%- WORD -%}" at `at`, 0: it is not there. */
static size_t word_tag(const struct lexer *l, size_t at, const char *word, bool trims)
{
    if (!looks_at(l, at, "{%"))
        return 0;
    at += 2;
    at += at < l->count && (l->text[at] == '-' || l->text[at] == '+');
    at += aq_character_space_before(rest(l, at));
    if (!looks_at(l, at, word))
        return 0;
    at += strlen(word);
    at += aq_character_space_before(rest(l, at));
    return tag_end(l, at, "%}", trims, trims);
}

static char sign_at(const struct lexer *l, size_t at)
{
    char c = at < l->count ? l->text[at] : '\0';
    return c == '-' || c == '+' ? c : '\0';
}

static bool lex_raw(struct lexer *l, size_t begin)
{
    move_to(l, begin);
    for (size_t at = begin; at < l->count; at++) {
        size_t end = word_tag(l, at, "endraw", true);
        if (!end)
            continue;
        if (!put_data(l, before_tag(l, at, sign_at(l, at + 2), false)))
            return false;
        move_to(l, end);
        return true;
    }
    return fail(l, "{% raw %} without {% endraw %}");
}

static bool lex_comment(struct lexer *l, size_t begin)
{
    for (size_t at = begin; at < l->count; at++) {
        size_t end = tag_end(l, at, "#}", true, true);
        if (!end)
            continue;
        move_to(l, end);
        return true;
    }
    return fail(l, "a comment without its end #}");
}

/* ---- inside of tags ---- */

static void put_utf8(char *to, size_t *count, uint32_t c)
{
    if (c < 0x80) {
        to[(*count)++] = (char)c;
        return;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
    to[(*count)++] = (char)(first[more] | c >> (6 * more));
    while (more--)
        to[(*count)++] = (char)(0x80 | ((c >> (6 * more)) & 0x3f));
}

/* The character of an escape with digits; false where there is none. */
static bool read_code(const char *at, const char *end, int base, int digits_max, bool all,
                      uint32_t *ret, int *ret_digits)
{
    uint32_t x = 0;
    int n = 0;
    for (; n < digits_max && at + n < end; n++) {
        unsigned char c = (unsigned char)at[n];
        int digit = isdigit(c) ? c - '0' : isxdigit(c) ? tolower(c) - 'a' + 10 : 99;
        if (digit >= base)
            break;
        x = x * (uint32_t)base + (uint32_t)digit;
    }
    *ret = x;
    *ret_digits = n;
    return n && (!all || n == digits_max) && x <= 0x10ffff && (x < 0xd800 || x > 0xdfff);
}

/* One escape behind its backslash, as Python's unicode-escape has it.  Characters read, 0: it is
 * none of those known here. */
static int unescape(const char *at, const char *end, char *to, size_t *count)
{
    static const char from[] = "\\'\"abfnrtv", is[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = *at ? strchr(from, *at) : NULL;
    uint32_t code = 0;
    int digits = 0;
    if (known) {
        to[(*count)++] = is[known - from];
        return 1;
    }
    if (*at == '\n')
        return 1;
    if (*at >= '0' && *at <= '7') {
        read_code(at, end, 8, 3, false, &code, &digits);
        put_utf8(to, count, code);
        return digits;
    }
    if (*at == 'x' || *at == 'u' || *at == 'U') {
        int want = *at == 'x' ? 2 : *at == 'u' ? 4 : 8;
        if (!read_code(at + 1, end, 16, want, true, &code, &digits))
            return 0;
        put_utf8(to, count, code);
        return 1 + digits;
    }
    if (*at == 'N' || (unsigned char)*at >= 0x80)
        return 0;
    to[(*count)++] = '\\'; /* Python keeps what it does not know */
    to[(*count)++] = *at;
    return 1;
}

static bool lex_string(struct lexer *l)
{
    char quote = l->text[l->at];
    const char *begin = l->text + l->at + 1, *end = begin, *limit = l->text + l->count;
    while (end < limit && *end != quote)
        end += 1 + (*end == '\\' && end + 1 < limit);
    if (end >= limit)
        return fail(l, "a string without its end");
    char *to = aq_arena_take(l->arena, 2 * (size_t)(end - begin) + 1);
    if (!to)
        return no_memory(l);
    size_t count = 0;
    for (const char *at = begin; at < end; at++) {
        if (*at != '\\') {
            to[count++] = *at;
            continue;
        }
        int read = unescape(at + 1, end, to, &count);
        if (!read)
            return fail(l, "a string with an escape that is not supported (expected \\n, \\t, "
                           "\\xHH, \\uHHHH and the like)");
        at += read;
    }
    if (!put(l, AQ_JINJA_TOKEN_STRING, (struct aq_text){to, count}))
        return false;
    move_to(l, (size_t)(end + 1 - l->text));
    return true;
}

static size_t digits_at(const struct lexer *l, size_t at)
{
    size_t n = 0;
    while (at + n < l->count &&
           (isdigit((unsigned char)l->text[at + n]) || (n && l->text[at + n] == '_')))
        n++;
    return n;
}

/* Digits, with a fraction or an exponent a real number. */
static bool lex_number(struct lexer *l)
{
    size_t at = l->at + digits_at(l, l->at), n;
    bool real = false;
    if (at < l->count && l->text[at] == '.' && (n = digits_at(l, at + 1))) {
        at += 1 + n;
        real = true;
    }
    if (at < l->count && (l->text[at] | 0x20) == 'e') {
        size_t sign = at + 1 < l->count && strchr("+-", l->text[at + 1]) && l->text[at + 1];
        if ((n = digits_at(l, at + 1 + sign))) {
            at += 1 + sign + n;
            real = true;
        }
    }
    char digits[NUMBER_BYTES_MAX], *end;
    size_t count = 0;
    if (at - l->at >= sizeof(digits))
        return fail(l, "a number that is too long");
    for (size_t i = l->at; i < at; i++)
        if (l->text[i] != '_')
            digits[count++] = l->text[i];
    digits[count] = '\0';
    struct aq_jinja_token *t = put(l, real ? AQ_JINJA_TOKEN_REAL : AQ_JINJA_TOKEN_INTEGER,
                                   (struct aq_text){l->text + l->at, at - l->at});
    if (!t)
        return false;
    errno = 0;
    if (real)
        t->real = strtod(digits, &end);
    else
        t->integer = strtoll(digits, &end, 10);
    if (!real && errno)
        return fail(l, "an integer beyond 64 bits");
    move_to(l, at);
    if (l->at < l->count && (isalnum((unsigned char)l->text[l->at]) || l->text[l->at] == '_'))
        return fail(l, "a number that is followed by letters (expected decimal digits)");
    return true;
}

static bool lex_name(struct lexer *l)
{
    size_t at = l->at;
    while (at < l->count && (isalnum((unsigned char)l->text[at]) || l->text[at] == '_'))
        at++;
    if (!put(l, AQ_JINJA_TOKEN_NAME, (struct aq_text){l->text + l->at, at - l->at}))
        return false;
    move_to(l, at);
    return true;
}

/* Brackets are counted: a tag's end inside of them is none. */
static bool balance(struct lexer *l, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    const char *opens = strchr(open, c), *closes = strchr(close, c);
    if (opens) {
        if (l->brackets == BRACKETS_MAX)
            return fail(l, "too many brackets in one another");
        l->bracket[l->brackets++] = close[opens - open];
    }
    if (!closes)
        return true;
    if (!l->brackets || l->bracket[--l->brackets] != c)
        return fail(l, "a closing bracket without its opening one");
    return true;
}

static bool lex_sign(struct lexer *l)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    size_t bytes = 0;
    for (size_t i = 0; i < AQ_ARRAY_LEN(two); i++)
        if (looks_at(l, l->at, two[i]))
            bytes = 2;
    char c = l->text[l->at];
    if (!bytes && c && strchr("+-/*%~[](){}><=.:|,;", c))
        bytes = 1;
    if (!bytes) {
        char what[64], shown[16];
        snprintf(what, sizeof(what), "unexpected character '%s'",
                 aq_quote(shown, sizeof(shown), &c, 1));
        return fail(l, what);
    }
    if (bytes == 1 && !balance(l, c))
        return false;
    if (!put(l, AQ_JINJA_TOKEN_SIGN, (struct aq_text){l->text + l->at, bytes}))
        return false;
    move_to(l, l->at + bytes);
    return true;
}

static bool lex_inside(struct lexer *l, bool block)
{
    l->brackets = 0;
    for (;;) {
        move_to(l, l->at + aq_character_space_before(rest(l, l->at)));
        if (l->at == l->count)
            return fail(l, block ? "a tag without its end %}" : "a tag without its end }}");
        size_t end = l->brackets ? 0 : tag_end(l, l->at, block ? "%}" : "}}", block, block);
        if (end) {
            bool good = put(l, block ? AQ_JINJA_TOKEN_BLOCK_END : AQ_JINJA_TOKEN_VARIABLE_END,
                            (struct aq_text){block ? "%}" : "}}", 2}) != NULL;
            move_to(l, end);
            return good;
        }
        unsigned char c = (unsigned char)l->text[l->at];
        bool good = c == '"' || c == '\''    ? lex_string(l)
                    : isdigit(c)             ? lex_number(l)
                    : isalpha(c) || c == '_' ? lex_name(l)
                                             : lex_sign(l);
        if (!good)
            return false;
    }
}

/* ---- the whole ---- */

/* The next "{{", "{%" or "{#"; the end where there is none. */
static size_t next_tag(const struct lexer *l)
{
    for (size_t at = l->at; at + 1 < l->count; at++) {
        const char *brace = memchr(l->text + at, '{', l->count - 1 - at);
        if (!brace)
            break;
        at = (size_t)(brace - l->text);
        if (brace[1] == '{' || brace[1] == '%' || brace[1] == '#')
            return at;
    }
    return l->count;
}

static bool lex_all(struct lexer *l)
{
    while (l->at < l->count) {
        size_t tag = next_tag(l);
        if (tag == l->count) {
            if (!put_data(l, rest(l, l->at)))
                return false;
            break;
        }
        char kind = l->text[tag + 1], sign = sign_at(l, tag + 2);
        size_t raw = kind == '%' ? word_tag(l, tag, "raw", false) : 0;
        if (!put_data(l, before_tag(l, tag, sign, kind == '{')))
            return false;
        move_to(l, tag);
        bool good = true;
        if (raw) {
            good = lex_raw(l, raw);
        } else if (kind == '#') {
            good = lex_comment(l, tag + 2 + (sign != '\0'));
        } else {
            good = put(l, kind == '%' ? AQ_JINJA_TOKEN_BLOCK_BEGIN : AQ_JINJA_TOKEN_VARIABLE_BEGIN,
                       (struct aq_text){l->text + tag, 2}) != NULL;
            move_to(l, tag + 2 + (sign != '\0'));
            good = good && lex_inside(l, kind == '%');
        }
        if (!good)
            return false;
    }
    return put(l, AQ_JINJA_TOKEN_END, (struct aq_text){"", 0}) != NULL;
}

int aq_jinja_lex(struct aq_jinja_tokens *ret, struct aq_arena *arena, struct aq_text text,
                 struct aq_err *reterr)
{
    struct lexer l = {.line = 1, .line_begins = true, .arena = arena, .tokens = ret, .err = reterr};
    if (normalise(&l, text))
        lex_all(&l);
    return l.rc;
}

void aq_jinja_tokens_close(struct aq_jinja_tokens *t)
{
    free(t->item);
    *t = (struct aq_jinja_tokens){0};
}
