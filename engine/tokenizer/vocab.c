/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer/vocab.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

/* ---- bytes as characters: '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves; the
 * other bytes, in ascending order, are U+0100, U+0101, ... ---- */

size_t aq_byte_spell(char dst[2], unsigned char byte)
{
    unsigned c = byte;
    if (byte <= 32)
        c = 256u + byte;
    else if (byte >= 127 && byte <= 160)
        c = 256u + 33 + (byte - 127u);
    else if (byte == 173)
        c = 256u + 33 + 34;
    if (c < 0x80) {
        dst[0] = (char)c;
        return 1;
    }
    dst[0] = (char)(0xc0 | c >> 6);
    dst[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

int aq_byte_spelled(int32_t c)
{
    if ((c > 32 && c < 127) || (c > 160 && c < 256 && c != 173))
        return c;
    if (c >= 256 && c < 256 + 33)
        return c - 256;
    if (c >= 256 + 33 && c < 256 + 33 + 34)
        return 127 + (c - 256 - 33);
    return c == 256 + 33 + 34 ? 173 : -1;
}

/* ---- tokens ---- */

void aq_vocab_close(struct aq_vocab *v)
{
    for (size_t i = 0; i < AQ_VOCAB_PAGES; i++)
        free(v->page[i]);
    aq_buf_close(&v->text);
    aq_buf_close(&v->data);
    free(v->slot);
    *v = (struct aq_vocab){0};
}

static const char *token_spelling(const struct aq_vocab *v, uint32_t id, uint32_t *ret_bytes)
{
    const struct aq_token *t = aq_vocab_token(v, id);
    assert(t);
    *ret_bytes = t->text_bytes;
    return v->text.data + t->text_at;
}

/* Slot of this spelling, or the empty one where it belongs. */
static uint32_t vocab_slot(const struct aq_vocab *v, const char *text, size_t bytes)
{
    uint32_t mask = v->slot_count - 1, i = (uint32_t)XXH3_64bits(text, bytes) & mask;
    for (; v->slot[i]; i = (i + 1) & mask) {
        uint32_t have;
        const char *spelling = token_spelling(v, v->slot[i] - 1, &have);
        if (have == bytes && memcmp(spelling, text, bytes) == 0)
            break;
    }
    return i;
}

static bool vocab_grow_slots(struct aq_vocab *v)
{
    if (v->slot && v->token_count < v->slot_count / 2)
        return true;
    uint32_t old_count = v->slot_count;
    uint32_t *old = v->slot;
    v->slot_count = old_count ? 2 * old_count : 1024;
    v->slot = calloc(v->slot_count, sizeof(*v->slot));
    if (!v->slot) {
        v->slot = old;
        v->slot_count = old_count;
        return false;
    }
    for (uint32_t i = 0; i < old_count; i++) {
        if (!old[i])
            continue;
        uint32_t bytes;
        const char *spelling = token_spelling(v, old[i] - 1, &bytes);
        v->slot[vocab_slot(v, spelling, bytes)] = old[i];
    }
    free(old);
    return true;
}

int32_t aq_vocab_find(const struct aq_vocab *v, const char *text, size_t bytes)
{
    return v->slot ? (int32_t)v->slot[vocab_slot(v, text, bytes)] - 1 : -1;
}

/* The id is in range, the spelling not empty, and neither is taken. */
static int vocab_check(const struct aq_vocab *v, int64_t id, const char *text, size_t bytes,
                       struct aq_err *reterr)
{
    char q[80], q2[80];
    aq_quote(q, sizeof(q), text, bytes);
    if (id < 0 || id >= AQ_TOKEN_ID_MAX)
        return aq_error(reterr, -ENOEXEC, "token '%s': expected an id from 0 to %d, found %lld", q,
                        AQ_TOKEN_ID_MAX - 1, (long long)id);
    if (bytes == 0)
        return aq_error(reterr, -ENOEXEC, "id %lld: expected a token, found empty text",
                        (long long)id);
    const struct aq_token *t = aq_vocab_token(v, (uint32_t)id);
    if (t)
        return aq_error(reterr, -ENOEXEC, "id %lld: expected one token, found '%s' and '%s'",
                        (long long)id,
                        aq_quote(q2, sizeof(q2), v->text.data + t->text_at, t->text_bytes), q);
    int32_t have = aq_vocab_find(v, text, bytes);
    if (have >= 0)
        return aq_error(reterr, -ENOEXEC, "token '%s': expected one id, found %d and %lld", q, have,
                        (long long)id);
    return 0;
}

int aq_vocab_add(struct aq_vocab *v, int64_t id64, const char *text, size_t bytes, unsigned flags,
                 struct aq_err *reterr)
{
    int rc = vocab_check(v, id64, text, bytes, reterr);
    if (rc < 0)
        return rc;
    uint32_t id = (uint32_t)id64;
    struct aq_token **page = &v->page[id / AQ_VOCAB_PAGE_TOKENS];
    if (!*page)
        *page = calloc(AQ_VOCAB_PAGE_TOKENS, sizeof(**page));
    size_t at = v->text.count;
    aq_buf_put(&v->text, text, bytes);
    aq_buf_put(&v->text, "", 1);
    if (!*page || v->text.failed || v->text.count > UINT32_MAX || !vocab_grow_slots(v))
        return aq_error_memory(reterr, "vocabulary of %u tokens", v->token_count);
    uint32_t slot = vocab_slot(v, text, bytes);
    (*page)[id % AQ_VOCAB_PAGE_TOKENS] = (struct aq_token){
        .text_at = (uint32_t)at, .text_bytes = (uint32_t)bytes, .flags = flags | AQ_TOKEN_PRESENT};
    v->slot[slot] = id + 1;
    v->token_count++;
    if (id >= v->id_end)
        v->id_end = id + 1;
    return 0;
}

/* Appends what the spelling stands for; a token with a character that spells no byte stands for
 * itself, as in the ByteLevel decoder of the tokenizers library. */
static void decode_spelling(struct aq_buf *out, const char *text, size_t bytes)
{
    size_t begin = out->count;
    for (size_t i = 0; i < bytes;) {
        int32_t character;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + i,
                                              (utf8proc_ssize_t)(bytes - i), &character);
        int byte = n > 0 ? aq_byte_spelled(character) : -1;
        if (byte < 0) {
            if (!out->failed)
                out->count = begin;
            aq_buf_put(out, text, bytes);
            return;
        }
        aq_buf_put(out, &(char){(char)byte}, 1);
        i += (size_t)n;
    }
}

/* "<0xE2>": the byte; -1 for other texts.  As the tokenizers library reads it (its ByteFallback
 * decoder): a digit may be a sign. */
static int fallback_byte(const char *text, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    int value = 0;
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (size_t i = 3 + (text[3] == '+'); i < 5; i++) {
        char c = (char)(text[i] >= 'A' && text[i] <= 'F' ? text[i] | 32 : text[i]);
        const char *digit = c ? strchr(digits, c) : NULL;
        if (!digit)
            return -1;
        value = value * 16 + (int)(digit - digits);
    }
    return value;
}

static int put_data(struct aq_vocab *v, const struct aq_decoder *d,
                    struct aq_normalizer_scratch *scratch, struct aq_token *t,
                    struct aq_err *reterr)
{
    const char *text = v->text.data + t->text_at;
    size_t bytes = t->text_bytes;
    if (d->of_bytes) {
        if (t->flags & AQ_TOKEN_ADDED)
            aq_buf_put(&v->data, text, bytes);
        else
            decode_spelling(&v->data, text, bytes);
        return 0;
    }
    int rc = aq_normalize(&d->respell, scratch, text, bytes, false, &text, &bytes, reterr);
    int byte = rc == 0 && d->byte_fallback ? fallback_byte(text, bytes) : -1;
    if (byte >= 0)
        t->flags |= AQ_TOKEN_BYTE;
    if (rc == 0)
        aq_buf_put(&v->data, byte >= 0 ? &(char){(char)byte} : text, byte >= 0 ? 1 : bytes);
    return rc;
}

int aq_vocab_finish(struct aq_vocab *v, const struct aq_decoder *d, struct aq_err *reterr)
{
    struct aq_normalizer_scratch scratch = {0};
    int rc = 0;
    aq_buf_clear(&v->data);
    for (uint32_t id = 0; rc == 0 && id < v->id_end; id++) {
        struct aq_token *t = aq_vocab_token(v, id);
        if (!t) {
            if (!v->page[id / AQ_VOCAB_PAGE_TOKENS])
                id |= AQ_VOCAB_PAGE_TOKENS - 1; /* the whole page is a hole */
            continue;
        }
        size_t at = v->data.count;
        rc = put_data(v, d, &scratch, t, reterr);
        if (rc == 0 && (v->data.failed || v->data.count > UINT32_MAX))
            rc = aq_error_memory(reterr, "vocabulary of %u tokens", v->token_count);
        t->data_at = (uint32_t)at;
        t->data_bytes = (uint32_t)(v->data.count - at);
        if (t->data_bytes > v->data_bytes_max)
            v->data_bytes_max = t->data_bytes;
    }
    aq_normalizer_scratch_close(&scratch);
    return rc;
}

uint64_t aq_vocab_memory(const struct aq_vocab *v)
{
    uint64_t bytes = v->text.capacity + v->data.capacity + v->slot_count * sizeof(*v->slot);
    for (size_t i = 0; i < AQ_VOCAB_PAGES; i++)
        if (v->page[i])
            bytes += AQ_VOCAB_PAGE_TOKENS * sizeof(**v->page);
    return bytes;
}
