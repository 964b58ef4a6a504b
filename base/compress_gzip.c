/* SPDX-License-Identifier: Apache-2.0 */
#include "base/compress_codec.h"

#include <limits.h>
#include <stdlib.h>
#include <zlib.h>

/* A window of 32 KiB, and a gzip header and trailer around it (zlib.h, deflateInit2). */
enum { WINDOW_BITS = 15 + 16, MEMORY_LEVEL = 8 };

static int gzip_compress(struct aq_buf *dst, const char *text, size_t bytes)
{
    z_stream z = {0};
    if (bytes > UINT_MAX / 2 || deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, WINDOW_BITS,
                                             MEMORY_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK)
        return -ENOMEM;
    size_t bound = deflateBound(&z, (uLong)bytes);
    z.next_out = (Bytef *)aq_codec_room(dst, bound);
    z.avail_out = (uInt)bound;
    z.next_in = (Bytef *)text;
    z.avail_in = (uInt)bytes;
    bool good = z.next_out && deflate(&z, Z_FINISH) == Z_STREAM_END;
    if (good)
        dst->count += bound - z.avail_out;
    deflateEnd(&z);
    return good ? 0 : -ENOMEM;
}

static void *gzip_open(void)
{
    z_stream *z = calloc(1, sizeof(*z));
    if (z && inflateInit2(z, WINDOW_BITS) != Z_OK) {
        free(z);
        return NULL;
    }
    return z;
}

static void gzip_close(void *state)
{
    inflateEnd(state);
    free(state);
}

static void gzip_begin(void *state)
{
    inflateReset(state);
}

static int gzip_expand(void *state, const char **in, size_t *in_bytes, char *dst, size_t capacity,
                       size_t *ret_bytes)
{
    z_stream *z = state;
    uInt given = *in_bytes < UINT_MAX ? (uInt)*in_bytes : UINT_MAX;
    uInt room = capacity < UINT_MAX ? (uInt)capacity : UINT_MAX;
    z->next_in = (Bytef *)*in;
    z->avail_in = given;
    z->next_out = (Bytef *)dst;
    z->avail_out = room;
    int rc = inflate(z, Z_NO_FLUSH);
    *in += given - z->avail_in;
    *in_bytes -= given - z->avail_in;
    *ret_bytes = room - z->avail_out;
    switch (rc) {
    case Z_STREAM_END: return 1;
    case Z_OK:
    case Z_BUF_ERROR: return 0; /* it could do nothing: it wants more */
    case Z_MEM_ERROR: return -ENOMEM;
    default: return -EBADMSG;
    }
}

const struct aq_codec aq_codec_gzip = {gzip_compress, gzip_open, gzip_close, gzip_begin,
                                       gzip_expand};
