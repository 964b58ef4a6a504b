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

/* NULL for a hole and for what is to be skipped. */
static const char *token_output(const struct aq_tokenizer *t, uint32_t id, bool skip_special,
                                size_t *ret_bytes)
{
    const struct aq_token *token = aq_vocab_token(&t->vocab, id);
    if (!token || (skip_special && (token->flags & AQ_TOKEN_SPECIAL)))
        return NULL;
    *ret_bytes = token->data_bytes;
    return t->vocab.data.data + token->data_at;
}

void aq_tokenizer_decode(const struct aq_tokenizer *t, const uint32_t *ids, size_t count,
                         bool skip_special, struct aq_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        const char *data = token_output(t, ids[i], skip_special, &bytes);
        if (data)
            aq_buf_put(out, data, bytes);
    }
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
static size_t put_characters(const char *text, size_t bytes, char *out, size_t *written)
{
    for (size_t i = 0; i < bytes;) {
        bool valid;
        size_t n = aq_utf8_step(text + i, bytes - i, &valid);
        unsigned char first = (unsigned char)text[i];
        if (!valid && i + n == bytes && first >= 0xc2 && first <= 0xf4)
            return n;
        memcpy(out + *written, valid ? text + i : replacement, valid ? n : REPLACEMENT_BYTES);
        *written += valid ? n : REPLACEMENT_BYTES;
        i += n;
    }
    return 0;
}

size_t aq_detok_push(struct aq_detok *d, uint32_t id, char *out)
{
    size_t bytes = 0, used = 0, written = 0;
    const char *data = token_output(d->t, id, d->skip_special, &bytes);
    if (!data)
        return 0;
    /* A character begun earlier takes one byte at a time, until it is whole or broken. */
    while (d->pending_count && used < bytes) {
        d->pending[d->pending_count++] = data[used++];
        size_t held = put_characters(d->pending, d->pending_count, out, &written);
        memmove(d->pending, d->pending + d->pending_count - held, held);
        d->pending_count = (uint8_t)held;
    }
    size_t held = put_characters(data + used, bytes - used, out, &written);
    assert(d->pending_count + held <= HELD_MAX);
    memcpy(d->pending + d->pending_count, data + bytes - held, held);
    d->pending_count = (uint8_t)(d->pending_count + held);
    return written;
}

size_t aq_detok_flush(struct aq_detok *d, char *out)
{
    size_t written = d->pending_count ? REPLACEMENT_BYTES : 0;
    memcpy(out, replacement, written); /* what is held is one beginning: one replacement */
    d->pending_count = 0;
    return written;
}
