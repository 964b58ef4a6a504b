/* SPDX-License-Identifier: Apache-2.0
 * base/compress_codec.h - what compress.c knows of a compression: a row, made by the file that
 * includes its library.  Only base/compress*.c include it. */
#ifndef AQ_BASE_COMPRESS_CODEC_H
#define AQ_BASE_COMPRESS_CODEC_H

#include "base/compress.h"

#include <stdlib.h>

struct aq_codec {
    int (*compress)(struct aq_buf *dst, const char *text, size_t bytes);
    void *(*open)(void); /* state of unpacking; NULL: out of memory */
    void (*close)(void *state);
    void (*begin)(void *state);
    int (*expand)(void *state, const char **in, size_t *in_bytes, char *dst, size_t capacity,
                  size_t *ret_bytes);
};

extern const struct aq_codec aq_codec_gzip, aq_codec_zstd;

/* Makes room for `bytes` more behind what the buffer holds; NULL: out of memory.  Whoever fills
 * them adds to dst->count. */
static inline char *aq_codec_room(struct aq_buf *dst, size_t bytes)
{
    if (dst->failed || bytes > SIZE_MAX / 2 - dst->count)
        return NULL;
    size_t need = dst->count + bytes + 1;
    if (need > dst->capacity) {
        char *larger = realloc(dst->data, need);
        if (!larger)
            return NULL;
        dst->data = larger;
        dst->capacity = need;
    }
    return dst->data + dst->count;
}

#endif
