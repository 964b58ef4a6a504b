/* SPDX-License-Identifier: Apache-2.0
 * base/json_read.c - JSON text into jansson's values, with its messages.  jansson has a reader
 * itself, but (2.14, src/load.c) does not look whether the buffer of a token could grow: where
 * memory is out, bytes are missing from values, strings are read past their end, and assertions
 * fail.  The one here either has the whole value or says -ENOMEM. */
#include "base/buf.h"
#include "base/json.h"
#include "base/json_text.h"

#include <assert.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 2048, /* jansson's own: documents are closed by recursion */
    CONTEXT_MAX = 20, /* tokens up to here are shown in messages */
};

enum token { END, STRING, INTEGER, REAL, WORD_TRUE, WORD_FALSE, WORD_NULL, MARK, INVALID };

struct reader {
    const char *text;
    size_t bytes, begin, at;                         /* the token is text[begin, at) */
    bool reject_duplicates, no_memory, out_of_range; /* a number was */
    unsigned depth;
    enum token token;
    struct aq_buf value; /* a string's bytes, or a number's characters */
    json_int_t integer;
    double real;
    char why[JSON_ERROR_TEXT_LENGTH]; /* empty: nothing was wrong */
};

/* The first thing wrong, with the token where it is short; the text is at fault, not memory. */
static void wrong(struct reader *r, const char *what)
{
    if (r->why[0] || r->no_memory)
        return;
    size_t bytes = r->at - r->begin;
    bool undecodable = strncmp(what, "unable", 6) == 0;
    if ((bytes == 0 || !r->text[r->begin]) && !undecodable)
        snprintf(r->why, sizeof(r->why), "%s near end of file", what);
    else if (bytes == 0 || bytes > CONTEXT_MAX)
        snprintf(r->why, sizeof(r->why), "%s", what);
    else
        snprintf(r->why, sizeof(r->why), "%s near '%.*s'", what, (int)bytes, r->text + r->begin);
}

/* The byte at hand; -1 at the end. */
static int peek(const struct reader *r)
{
    return r->at < r->bytes ? (unsigned char)r->text[r->at] : -1;
}

/* Bytes of the character at hand; 0 at the end, and where the bytes are none. */
static size_t char_bytes(struct reader *r)
{
    int c = peek(r);
    if (c < 0x80)
        return c >= 0;
    bool valid;
    size_t n = aq_utf8_step(r->text + r->at, r->bytes - r->at, &valid);
    if (valid)
        return n;
    char what[48];
    snprintf(what, sizeof(what), "unable to decode byte 0x%x", (unsigned)c);
    wrong(r, what);
    return 0;
}

static bool step(struct reader *r)
{
    size_t n = char_bytes(r);
    r->at += n;
    return n;
}

/* Only the first byte of the character: messages about escapes end there. */
static bool step_byte(struct reader *r)
{
    bool any = char_bytes(r);
    r->at += any;
    return any;
}

/* ---- tokens ------------------------------------------------------------------------------ */

/* Finds the end of a string, behind its quote. */
static bool pass_string(struct reader *r)
{
    for (int c = peek(r); c != '"'; c = peek(r)) {
        if (c >= 0 && c < 0x20) {
            char what[48] = "unexpected newline";
            if (c != '\n')
                snprintf(what, sizeof(what), "control character 0x%x", (unsigned)c);
            wrong(r, what);
            return false;
        }
        if (!step(r)) {
            wrong(r, "premature end of input");
            return false;
        }
        if (c != '\\')
            continue;
        c = peek(r);
        unsigned digits = c == 'u' ? 4 : 0;
        bool known = c > 0 && strchr("\"\\/bfnrtu", c);
        if (!step_byte(r) && r->why[0])
            return false;
        for (; known && digits; digits--) {
            c = peek(r);
            known = c >= 0 && c < 0x80 && strchr("0123456789abcdefABCDEF", c) && c;
            if (!step_byte(r) && r->why[0])
                return false;
        }
        if (!known) {
            wrong(r, "invalid escape");
            return false;
        }
    }
    r->at++;
    return true;
}

static unsigned hex4(const char *at)
{
    char digits[5] = {at[0], at[1], at[2], at[3]};
    return (unsigned)strtoul(digits, NULL, 16);
}

static void put_utf8(struct aq_buf *b, unsigned x)
{
    char c[4];
    size_t n = x < 0x80 ? 1 : x < 0x800 ? 2 : x < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, x >>= 6)
        c[i] = (char)(0x80 | (x & 0x3f));
    c[0] = (char)(n == 1 ? x : (0xf00u >> n & 0xff) | x);
    aq_buf_put(b, c, n);
}

/* \uXXXX at `at`, or a pair of them; where it ends, NULL when the halves of a pair do not meet. */
static const char *take_unicode(struct reader *r, const char *at)
{
    char what[48];
    unsigned x = hex4(at + 2), low = 0;
    bool pair = x >= 0xd800 && x <= 0xdbff && at[6] == '\\' && at[7] == 'u';
    if (pair)
        low = hex4(at + 8);
    if (pair && low >= 0xdc00 && low <= 0xdfff) {
        put_utf8(&r->value, 0x10000 + ((x - 0xd800) << 10) + (low - 0xdc00));
        return at + 12;
    }
    if (x < 0xd800 || x > 0xdfff) {
        put_utf8(&r->value, x);
        return at + 6;
    }
    if (pair)
        snprintf(what, sizeof(what), "invalid Unicode '\\u%04X\\u%04X'", x, low);
    else
        snprintf(what, sizeof(what), "invalid Unicode '\\u%04X'", x);
    wrong(r, what);
    return NULL;
}

/* Behind the opening quote. */
static enum token scan_string(struct reader *r)
{
    static const char *const escapes = "\"\\/bfnrt", *const meant = "\"\\/\b\f\n\r\t";
    if (!pass_string(r))
        return INVALID;
    const char *at = r->text + r->begin + 1, *end = r->text + r->at - 1;
    while (at && at < end) {
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        const char *plain_end = escape ? escape : end;
        aq_buf_put(&r->value, at, (size_t)(plain_end - at));
        at = plain_end;
        if (escape && escape[1] == 'u') {
            at = take_unicode(r, at);
        } else if (escape) {
            aq_buf_put(&r->value, &meant[strchr(escapes, escape[1]) - escapes], 1);
            at += 2;
        }
    }
    aq_buf_put(&r->value, "", 0);
    return at ? STRING : INVALID;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static void pass_digits(struct reader *r)
{
    while (is_digit(peek(r)))
        r->at++;
}

static enum token take_integer(struct reader *r)
{
    errno = 0;
    long long x = strtoll(r->value.data, NULL, 10);
    if (errno == ERANGE) {
        r->out_of_range = !r->why[0];
        wrong(r, x < 0 ? "too big negative integer" : "too big integer");
        return INVALID;
    }
    r->integer = x;
    return INTEGER;
}

static enum token take_real(struct reader *r)
{
    char *point = strchr(r->value.data, '.');
    if (point)
        *point = *localeconv()->decimal_point; /* a host program may have chosen such a locale */
    double x = strtod(r->value.data, NULL);
    if (isinf(x)) {
        r->out_of_range = !r->why[0];
        wrong(r, "real number overflow");
        return INVALID;
    }
    r->real = x;
    return REAL;
}

/* Steps over a number; false when it is none. */
static bool pass_number(struct reader *r, bool *ret_whole)
{
    *ret_whole = true;
    r->at = r->begin + (r->text[r->begin] == '-');
    if (!is_digit(peek(r)))
        return false;
    bool zero = peek(r) == '0';
    r->at++;
    if (zero && is_digit(peek(r)))
        return false;
    pass_digits(r);
    if (peek(r) == '.') {
        *ret_whole = false;
        r->at++;
        if (!is_digit(peek(r)))
            return false;
        pass_digits(r);
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        *ret_whole = false;
        r->at++;
        if (peek(r) == '+' || peek(r) == '-')
            r->at++;
        if (!is_digit(peek(r)))
            return false;
        pass_digits(r);
    }
    return true;
}

static enum token scan_number(struct reader *r)
{
    bool whole, good = pass_number(r, &whole);
    char_bytes(r);
    if (!good)
        return INVALID;
    aq_buf_put(&r->value, r->text + r->begin, r->at - r->begin);
    if (r->value.failed)
        return INVALID;
    return whole ? take_integer(r) : take_real(r);
}

static bool is_letter(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static enum token scan_word(struct reader *r)
{
    static const struct {
        const char *word;
        enum token token;
    } words[] = {{"true", WORD_TRUE}, {"false", WORD_FALSE}, {"null", WORD_NULL}};
    while (is_letter(peek(r)))
        r->at++;
    char_bytes(r);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strlen(words[i].word) == r->at - r->begin &&
            memcmp(words[i].word, r->text + r->begin, r->at - r->begin) == 0)
            return words[i].token;
    }
    return INVALID;
}

static enum token scan(struct reader *r)
{
    while (r->at < r->bytes && memchr(" \t\r\n", r->text[r->at], 4))
        r->at++;
    r->begin = r->at;
    aq_buf_clear(&r->value);
    int c = peek(r);
    if (c < 0)
        return END;
    if (!step(r))
        return INVALID;
    if (c == '"')
        return scan_string(r);
    if (is_digit(c) || c == '-')
        return scan_number(r);
    if (is_letter(c))
        return scan_word(r);
    return c && strchr("{}[]:,", c) ? MARK : INVALID;
}

static void next(struct reader *r)
{
    r->token = scan(r);
    if (r->value.failed) {
        r->no_memory = true;
        r->token = INVALID;
    }
}

static bool is_mark(const struct reader *r, char mark)
{
    return r->token == MARK && r->text[r->begin] == mark;
}

/* ---- values ------------------------------------------------------------------------------ */

static json_t *read_value(struct reader *r);

/* The token is the key of a member: it and its value go into the object. */
static bool read_member(struct reader *r, json_t *object)
{
    if (r->token != STRING) {
        wrong(r, "string or '}' expected");
        return false;
    }
    if (memchr(r->value.data, '\0', r->value.count)) {
        wrong(r, "NUL byte in object key not supported");
        return false;
    }
    if (r->reject_duplicates && json_object_get(object, r->value.data)) {
        wrong(r, "duplicate object key");
        return false;
    }
    char *key = aq_buf_take(&r->value);
    next(r);
    if (!is_mark(r, ':'))
        wrong(r, "':' expected");
    else
        next(r);
    json_t *value = r->why[0] || r->no_memory ? NULL : read_value(r);
    bool kept = value && json_object_set_new_nocheck(object, key, value) == 0;
    r->no_memory |= value && !kept;
    free(key);
    return kept;
}

static json_t *read_object(struct reader *r)
{
    json_t *object = json_object();
    bool good = object;
    r->no_memory |= !object;
    next(r);
    if (good && is_mark(r, '}'))
        return object;
    while (good) {
        good = read_member(r, object);
        if (!good)
            break;
        next(r);
        if (!is_mark(r, ','))
            break;
        next(r);
    }
    if (good && is_mark(r, '}'))
        return object;
    wrong(r, "'}' expected");
    json_decref(object);
    return NULL;
}

static json_t *read_array(struct reader *r)
{
    json_t *array = json_array();
    bool good = array;
    r->no_memory |= !array;
    next(r);
    if (good && is_mark(r, ']'))
        return array;
    while (good && r->token != END) {
        json_t *value = read_value(r);
        good = value && json_array_append_new(array, value) == 0;
        r->no_memory |= value && !good;
        if (!good)
            break;
        next(r);
        if (!is_mark(r, ','))
            break;
        next(r);
    }
    if (good && is_mark(r, ']'))
        return array;
    wrong(r, "']' expected");
    json_decref(array);
    return NULL;
}

static json_t *read_scalar(struct reader *r)
{
    switch (r->token) {
    case STRING: return json_stringn_nocheck(r->value.data, r->value.count);
    case INTEGER: return json_integer(r->integer);
    case REAL: return json_real(r->real);
    case WORD_TRUE: return json_true();
    case WORD_FALSE: return json_false();
    case WORD_NULL: return json_null();
    default: break;
    }
    wrong(r, r->token == INVALID ? "invalid token" : "unexpected token");
    return NULL;
}

/* The value that begins with the token; NULL when something is wrong or memory is out. */
static json_t *read_value(struct reader *r)
{
    if (r->depth == DEPTH_MAX) {
        wrong(r, "maximum parsing depth reached");
        return NULL;
    }
    r->depth++;
    json_t *value = is_mark(r, '{')   ? read_object(r)
                    : is_mark(r, '[') ? read_array(r)
                                      : read_scalar(r);
    r->depth--;
    r->no_memory |= !value && !r->why[0];
    return value;
}

/* Line from 1, and characters of it that were read. */
static int explain(const struct reader *r, struct aq_err *reterr)
{
    unsigned line = 1, column = 0;
    for (size_t i = 0; i < r->at; i++) {
        unsigned char c = (unsigned char)r->text[i];
        line += c == '\n';
        column = c == '\n' ? 0 : column + (c < 0x80 || c >= 0xc0);
    }
    char quoted[JSON_ERROR_TEXT_LENGTH + 8]; /* the text quotes the input */
    return aq_error(reterr, -ENOEXEC, "line %u column %u: %s", line, column,
                    aq_quote(quoted, sizeof(quoted), r->why, strlen(r->why)));
}

/* As aq_json_parse; also whether what is wrong is a number out of range. */
static int parse(json_t **ret, bool *ret_out_of_range, const char *text, size_t bytes,
                 bool reject_duplicates, struct aq_err *reterr)
{
    struct reader r = {.text = text, .bytes = bytes, .reject_duplicates = reject_duplicates};
    next(&r);
    json_t *value = r.no_memory ? NULL : read_value(&r);
    if (value) {
        next(&r);
        if (r.token != END)
            wrong(&r, "end of file expected");
    }
    aq_buf_close(&r.value);
    *ret_out_of_range = r.out_of_range;
    if (!r.no_memory && !r.why[0]) {
        *ret = value;
        return 0;
    }
    json_decref(value);
    return r.no_memory ? aq_error_memory(reterr, "%zu bytes of JSON", bytes) : explain(&r, reterr);
}

int aq_json_parse(json_t **ret, const char *text, size_t bytes, bool reject_duplicates,
                  struct aq_err *reterr)
{
    assert(ret && text);
    bool out_of_range;
    return parse(ret, &out_of_range, text, bytes, reject_duplicates, reterr);
}

int aq_json_parse_wide(json_t **ret, bool *ret_wide, const char *text, size_t bytes,
                       bool reject_duplicates, struct aq_err *reterr)
{
    assert(ret && ret_wide && text);
    bool wide, still;
    int rc = parse(ret, &wide, text, bytes, reject_duplicates, reterr);
    if (rc == -ENOEXEC && wide) {
        char *narrow = malloc(bytes + 1);
        if (!narrow)
            return aq_error_memory(reterr, "%zu bytes of JSON", bytes);
        memcpy(narrow, text, bytes);
        narrow[bytes] = '\0';
        aq_json_text_narrow(narrow, bytes);
        rc = parse(ret, &still, narrow, bytes, reject_duplicates, reterr);
        free(narrow);
    }
    if (rc == 0)
        *ret_wide = wide;
    return rc;
}
