/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/normalizer.h"

#include "engine/tokenizer/unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    SORT_SMALL = 32,           /* runs of combining marks up to here are sorted in place */
    DECOMPOSED_MAX = 8,        /* code points a character decomposes into; canonically at most 4 */
    KEEP_CHARACTERS = 1 << 18, /* a larger buffer is given back after use */
};

void aq_normalizer_close(struct aq_normalizer *n)
{
    for (unsigned i = 0; i < n->step_count; i++) {
        aq_buf_close(&n->step[i].from);
        aq_buf_close(&n->step[i].to);
    }
    *n = (struct aq_normalizer){0};
}

int aq_normalizer_add(struct aq_normalizer *n, enum aq_normalizer_kind kind, const char *from,
                      const char *to, struct aq_err *reterr)
{
    if (n->step_count == AQ_NORMALIZER_STEPS_MAX)
        return aq_error(reterr, -ENOEXEC, "expected at most %d steps", AQ_NORMALIZER_STEPS_MAX);
    if (from && !*from)
        return aq_error(reterr, -ENOEXEC, "expected a text to look for, found an empty one");
    struct aq_normalizer_step *step = &n->step[n->step_count++];
    *step = (struct aq_normalizer_step){.kind = kind};
    aq_buf_puts(&step->from, from ? from : "");
    aq_buf_puts(&step->to, to ? to : "");
    return step->from.failed || step->to.failed ? aq_error_memory(reterr, "a step of a normaliser")
                                                : 0;
}

void aq_normalizer_scratch_close(struct aq_normalizer_scratch *s)
{
    aq_buf_close(&s->out[0]);
    aq_buf_close(&s->out[1]);
    free(s->character);
    *s = (struct aq_normalizer_scratch){0};
}

/* ---- NFC ---- */

static unsigned combining_class(int32_t character)
{
    return (unsigned char)utf8proc_get_property(character)->combining_class;
}

/* Sorts a run of combining marks by class, equals in order (the canonical ordering algorithm).
 * utf8proc_decompose() does the same in quadratic time, which a text of marks alone would feel. */
static bool sort_marks(int32_t *mark, size_t n)
{
    if (n <= SORT_SMALL) {
        for (size_t i = 1; i < n; i++) {
            int32_t c = mark[i];
            size_t j = i;
            for (; j > 0 && combining_class(mark[j - 1]) > combining_class(c); j--)
                mark[j] = mark[j - 1];
            mark[j] = c;
        }
        return true;
    }
    size_t begin[257] = {0};
    for (size_t i = 0; i < n; i++)
        begin[combining_class(mark[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        begin[i] += begin[i - 1];
    int32_t *sorted = malloc(n * sizeof(*sorted));
    if (!sorted)
        return false;
    for (size_t i = 0; i < n; i++)
        sorted[begin[combining_class(mark[i])]++] = mark[i];
    memcpy(mark, sorted, n * sizeof(*mark));
    free(sorted);
    return true;
}

static bool order_marks(int32_t *character, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t begin = i;
        while (i < n && combining_class(character[i]) != 0)
            i++;
        if (i - begin > 1 && !sort_marks(character + begin, i - begin))
            return false;
        i += i == begin;
    }
    return true;
}

static bool reserve_characters(struct aq_normalizer_scratch *s, size_t count)
{
    if (count <= s->character_capacity)
        return true;
    size_t capacity = s->character_capacity ? s->character_capacity : 256;
    while (capacity < count)
        capacity *= 2;
    int32_t *character = realloc(s->character, capacity * sizeof(*character));
    if (!character)
        return false;
    s->character = character;
    s->character_capacity = capacity;
    return true;
}

/* Appends the composed form of decomposed characters. */
static bool put_composed(struct aq_normalizer_scratch *s, struct aq_buf *out, size_t count)
{
    if (!order_marks(s->character, count))
        return false;
    /* STABLE keeps the composition exclusions out, as NFC asks. */
    utf8proc_ssize_t left = utf8proc_normalize_utf32(s->character, (utf8proc_ssize_t)count,
                                                     UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    assert(left >= 0);
    for (utf8proc_ssize_t i = 0; i < left; i++) {
        utf8proc_uint8_t c[4];
        utf8proc_ssize_t n = utf8proc_encode_char(s->character[i], c);
        aq_buf_put(out, c, (size_t)n);
    }
    return true;
}

/* Appends the composed form of valid UTF-8.  utf8proc knows more characters with each of its
 * versions; those that are newer than our version of NFC stay as they are, and nothing moves or
 * composes across them.  What Unicode says of the others never changes (its stability policies). */
static bool compose(struct aq_normalizer_scratch *s, struct aq_buf *out, const char *text,
                    size_t bytes)
{
    size_t count = 0;
    struct aq_unicode_span span = {0};
    for (size_t i = 0; i < bytes;) {
        int32_t c;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &c);
        assert(n > 0);
        if (!aq_unicode_known_to_nfc(c, &span)) {
            if (!put_composed(s, out, count))
                return false;
            count = 0;
            aq_buf_put(out, text + i, (size_t)n);
            i += (size_t)n;
            continue;
        }
        i += (size_t)n;
        if (!reserve_characters(s, count + DECOMPOSED_MAX))
            return false;
        n = utf8proc_decompose_char(c, s->character + count, DECOMPOSED_MAX, UTF8PROC_COMPOSE,
                                    NULL);
        assert(n > 0 && n <= DECOMPOSED_MAX);
        count += (size_t)n;
    }
    return put_composed(s, out, count);
}

/* Characters below U+0300 (first byte below 0xcc) are composed already and take part in nothing but
 * as the base of marks that follow. */
static bool needs_care(char c)
{
    return (unsigned char)c >= 0xcc;
}

static size_t valid_end(const char *text, size_t bytes)
{
    return aq_utf8_invalid_at(text, bytes);
}

/* Where the stretch of active characters, or of others, that begins at i ends; *ret_last: where its
 * last character begins. */
static size_t stretch_end(const char *text, size_t bytes, size_t i, bool active,
                          struct aq_unicode_span *span, size_t *ret_last)
{
    *ret_last = i;
    while (i < bytes) {
        int32_t c;
        size_t n = aq_unicode_read(text + i, &c);
        if ((needs_care(text[i]) && aq_unicode_active_in_nfc(c, span)) != active)
            break;
        *ret_last = i;
        i += n;
    }
    return i;
}

/* Valid UTF-8: copies what is plain and composes each stretch that is not, with the character
 * before it. */
static bool nfc_valid(struct aq_normalizer_scratch *s, struct aq_buf *out, const char *text,
                      size_t bytes)
{
    struct aq_unicode_span span = {0};
    for (size_t i = 0; i < bytes;) {
        size_t base, last, end = stretch_end(text, bytes, i, false, &span, &base);
        if (end == bytes)
            base = end;
        aq_buf_put(out, text + i, base - i);
        i = stretch_end(text, bytes, end, true, &span, &last);
        if (i > base && !compose(s, out, text + base, i - base))
            return false;
    }
    return true;
}

static bool nfc(struct aq_normalizer_scratch *s, struct aq_buf *out, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        size_t n = valid_end(text + i, bytes - i);
        if (!nfc_valid(s, out, text + i, n))
            return false;
        i += n;
        if (i < bytes)
            aq_buf_put(out, text + i++, 1);
    }
    if (s->character_capacity > KEEP_CHARACTERS) {
        free(s->character);
        s->character = NULL;
        s->character_capacity = 0;
    }
    return !out->failed;
}

static bool nfc_needed(const char *text, size_t bytes)
{
    unsigned char high = 0;
    for (size_t i = 0; i < bytes; i++)
        high = (unsigned char)text[i] > high ? (unsigned char)text[i] : high;
    return needs_care((char)high);
}

/* ---- spaces ---- */

static bool begins_with(const char *text, size_t bytes, const struct aq_buf *what)
{
    return bytes >= what->count && memcmp(text, what->data, what->count) == 0;
}

static void replace(struct aq_buf *out, const struct aq_normalizer_step *step, const char *text,
                    size_t bytes)
{
    const char *end = text + bytes, *at;
    while (text < end &&
           (at = memmem(text, (size_t)(end - text), step->from.data, step->from.count))) {
        aq_buf_put(out, text, (size_t)(at - text));
        aq_buf_put(out, step->to.data, step->to.count);
        text = at + step->from.count;
    }
    aq_buf_put(out, text, (size_t)(end - text));
}

static void squeeze(struct aq_buf *out, const char *text, size_t bytes)
{
    bool behind_space = true;
    aq_buf_put(out, "", 0); /* a text, if all of it goes */
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != ' ' || !behind_space)
            aq_buf_put(out, text + i, 1);
        behind_space = text[i] == ' ';
    }
}

/* Does the step leave this text as it is?  It may say no and do so. */
static bool is_idle(const struct aq_normalizer_step *step, const char *text, size_t bytes,
                    bool first)
{
    if (step->first_only && !first)
        return true;
    switch (step->kind) {
    case AQ_NORMALIZER_NFC: return !nfc_needed(text, bytes);
    case AQ_NORMALIZER_BEGIN: return bytes == 0 || begins_with(text, bytes, &step->to);
    default: return bytes == 0;
    }
}

static bool run_step(const struct aq_normalizer_step *step, struct aq_normalizer_scratch *s,
                     struct aq_buf *out, const char *text, size_t bytes)
{
    switch (step->kind) {
    case AQ_NORMALIZER_NFC: return nfc(s, out, text, bytes);
    case AQ_NORMALIZER_REPLACE: replace(out, step, text, bytes); break;
    case AQ_NORMALIZER_SQUEEZE: squeeze(out, text, bytes); break;
    case AQ_NORMALIZER_PREPEND:
    case AQ_NORMALIZER_BEGIN:
        aq_buf_put(out, step->to.data, step->to.count);
        aq_buf_put(out, text, bytes);
        break;
    case AQ_NORMALIZER_TRIM:
        while (bytes >= step->from.count &&
               begins_with(text + bytes - step->from.count, step->from.count, &step->from))
            bytes -= step->from.count;
        aq_buf_put(out, text, bytes);
        break;
    }
    return !out->failed;
}

int aq_normalize(const struct aq_normalizer *n, struct aq_normalizer_scratch *s, const char *text,
                 size_t bytes, bool first, const char **ret, size_t *ret_bytes,
                 struct aq_err *reterr)
{
    struct aq_buf *out = &s->out[1];
    for (unsigned i = 0; i < n->step_count; i++) {
        if (is_idle(&n->step[i], text, bytes, first))
            continue;
        out = &s->out[out == &s->out[0]]; /* text is in the other one */
        aq_buf_clear(out);
        if (!run_step(&n->step[i], s, out, text, bytes))
            return aq_error_memory(reterr, "normalise %zu bytes of text", bytes);
        text = out->data;
        bytes = out->count;
    }
    *ret = text;
    *ret_bytes = bytes;
    return 0;
}
