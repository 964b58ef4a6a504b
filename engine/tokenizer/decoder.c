/* SPDX-License-Identifier: Apache-2.0
 * Ids to bytes, whole or one by one as they are generated. */
#include "engine/tokenizer/internal.h"

#include <assert.h>
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

enum {
    REPLACEMENT_BYTES = 3,
    HELD_MAX = 3, /* bytes of an unfinished character */
};

const char *aq_tokenizer_next_text(const struct aq_tokenizer *t, uint32_t id, bool skip_special,
                                   bool *begun, size_t *ret_bytes)
{
    const struct aq_token *token = aq_vocab_token(&t->vocab, id);
    enum aq_decoder_strip strip = t->decoder.strip;
    *ret_bytes = 0;
    if (!token || (skip_special && (token->flags & AQ_TOKEN_SPECIAL)) || !token->data_bytes)
        return "";
    const char *data = t->vocab.data.data + token->data_at;
    *ret_bytes = token->data_bytes;
    if (!*begun && strip != AQ_STRIP_NOTHING && *data == ' ' &&
        (strip == AQ_STRIP_SPACE || !(token->flags & AQ_TOKEN_BYTE))) {
        --*ret_bytes;
        *begun = strip != AQ_STRIP_EACH_TOKEN || *ret_bytes > 0;
        return data + 1;
    }
    *begun = true;
    return data;
}

size_t aq_tokenizer_step(const struct aq_tokenizer *t, const char *bytes, size_t count,
                         bool *ret_valid)
{
    size_t n = aq_utf8_step(bytes, count, ret_valid);
    return *ret_valid || t->decoder.of_bytes ? n : 1;
}

void aq_tokenizer_repair(const struct aq_tokenizer *t, struct aq_buf *out, size_t begin)
{
    if (t->decoder.of_bytes || out->failed || !out->data)
        return;
    size_t good = aq_utf8_invalid_at(out->data + begin, out->count - begin);
    if (begin + good == out->count)
        return;
    struct aq_buf repaired = {0};
    bool valid;
    aq_buf_put(&repaired, out->data, begin + good);
    for (size_t i = begin + good, n; i < out->count; i += n) {
        n = aq_tokenizer_step(t, out->data + i, out->count - i, &valid);
        aq_buf_put(&repaired, valid ? out->data + i : replacement, valid ? n : REPLACEMENT_BYTES);
    }
    aq_buf_close(out);
    *out = repaired;
}

void aq_tokenizer_decode(const struct aq_tokenizer *t, const uint32_t *ids, size_t count,
                         bool skip_special, struct aq_buf *out)
{
    size_t begin = out->count, bytes;
    bool begun = false;
    for (size_t i = 0; i < count; i++) {
        const char *data = aq_tokenizer_next_text(t, ids[i], skip_special, &begun, &bytes);
        if (bytes)
            aq_buf_put(out, data, bytes);
    }
    aq_tokenizer_repair(t, out, begin);
}

void aq_detok_start(struct aq_detok *d, const struct aq_tokenizer *t, bool skip_special)
{
    *d = (struct aq_detok){.t = t, .skip_special = skip_special};
}

size_t aq_detok_bytes_max(const struct aq_tokenizer *t)
{
    /* every byte may turn out to be none of a character */
    return ((size_t)t->vocab.data_bytes_max + HELD_MAX) * REPLACEMENT_BYTES;
}

/* Writes text[0..bytes) with replacements; returns how many bytes at its end may be the beginning
 * of a character and are left out. */
static size_t put_characters(const struct aq_tokenizer *t, const char *text, size_t bytes,
                             char *out, size_t *written)
{
    for (size_t i = 0; i < bytes;) {
        bool valid;
        size_t n = aq_utf8_step(text + i, bytes - i, &valid);
        unsigned char first = (unsigned char)text[i];
        if (!valid && i + n == bytes && first >= 0xc2 && first <= 0xf4)
            return n;
        n = aq_tokenizer_step(t, text + i, bytes - i, &valid);
        memcpy(out + *written, valid ? text + i : replacement, valid ? n : REPLACEMENT_BYTES);
        *written += valid ? n : REPLACEMENT_BYTES;
        i += n;
    }
    return 0;
}

size_t aq_detok_push(struct aq_detok *d, uint32_t id, char *out)
{
    size_t bytes, used = 0, written = 0;
    const char *data = aq_tokenizer_next_text(d->t, id, d->skip_special, &d->begun, &bytes);
    /* A character begun earlier takes one byte at a time, until it is whole or broken. */
    while (d->pending_count && used < bytes) {
        d->pending[d->pending_count++] = data[used++];
        size_t held = put_characters(d->t, d->pending, d->pending_count, out, &written);
        memmove(d->pending, d->pending + d->pending_count - held, held);
        d->pending_count = (uint8_t)held;
    }
    size_t held = put_characters(d->t, data + used, bytes - used, out, &written);
    assert(d->pending_count + held <= HELD_MAX);
    memcpy(d->pending + d->pending_count, data + bytes - held, held);
    d->pending_count = (uint8_t)(d->pending_count + held);
    return written;
}

size_t aq_detok_flush(struct aq_detok *d, char *out)
{
    size_t written = 0, n;
    bool valid;
    for (size_t i = 0; i < d->pending_count; i += n) { /* what is held is one beginning */
        n = aq_tokenizer_step(d->t, d->pending + i, d->pending_count - i, &valid);
        memcpy(out + written, replacement, REPLACEMENT_BYTES);
        written += REPLACEMENT_BYTES;
    }
    d->pending_count = 0;
    return written;
}
