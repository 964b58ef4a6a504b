/* SPDX-License-Identifier: Apache-2.0
 * base/buf.h - a growing byte buffer for building text, above all JSON, and the one place that
 * replaces bytes that are not UTF-8.  Errors are sticky: write freely, check `failed` once at the
 * end.  Knows nothing of the text's meaning. */
#ifndef AQ_BASE_BUF_H
#define AQ_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aq_buf {
    char *data; /* NUL-terminated as soon as anything was written; NULL before */
    size_t count, capacity;
    bool failed; /* memory ran out: later text is lost */
};

/* Frees the bytes and leaves an empty buffer. */
void aq_buf_close(struct aq_buf *b);
/* Empties the buffer and keeps its memory. */
void aq_buf_clear(struct aq_buf *b);
/* Hands over the malloc'd, NUL-terminated bytes and leaves an empty buffer; NULL when it failed. */
char *aq_buf_take(struct aq_buf *b);

void aq_buf_put(struct aq_buf *b, const void *bytes, size_t count);
void aq_buf_puts(struct aq_buf *b, const char *text);
void aq_buf_printf(struct aq_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The text as one word of a shell command, in quotes only if it needs them. */
void aq_buf_shell_word(struct aq_buf *b, const char *text);

/* A JSON string with its quotes.  Bytes that are not UTF-8 become U+FFFD. */
void aq_buf_json_string(struct aq_buf *b, const char *bytes, size_t count);
void aq_buf_json_u64(struct aq_buf *b, uint64_t x);
/* Few decimals that read back as the same number, always with a point or an exponent; null when not
 * finite. */
void aq_buf_json_float(struct aq_buf *b, float x);
void aq_buf_json_double(struct aq_buf *b, double x);
void aq_buf_json_u32s(struct aq_buf *b, const uint32_t *x, size_t count);

/* Length of the UTF-8 character at bytes[0..count), count >= 1.  *ret_valid false: the length of
 * the longest start of a character that cannot continue (at least one byte); one U+FFFD replaces
 * these bytes, as the Unicode standard recommends (version 15, section 3.9, "maximal subpart"). */
size_t aq_utf8_step(const char *bytes, size_t count, bool *ret_valid);
/* Characters of bytes[0..count) after replacement. */
size_t aq_utf8_count(const char *bytes, size_t count);
/* Index of the first byte that is not UTF-8; count when there is none. */
size_t aq_utf8_invalid_at(const char *bytes, size_t count);

#endif
