/* SPDX-License-Identifier: Apache-2.0 */
#include "base/compress_codec.h"

#include <zstd.h>
#include <zstd_errors.h>

static int zstd_compress(struct aq_buf *dst, const char *text, size_t bytes)
{
    size_t bound = ZSTD_compressBound(bytes), made = 0;
    char *room = aq_codec_room(dst, bound);
    ZSTD_CCtx *c = room ? ZSTD_createCCtx() : NULL;
    bool good = c && !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1));
    if (good) {
        made = ZSTD_compress2(c, room, bound, text, bytes);
        good = !ZSTD_isError(made);
    }
    dst->count += good ? made : 0;
    ZSTD_freeCCtx(c);
    return good ? 0 : -ENOMEM;
}

static void *zstd_open(void)
{
    return ZSTD_createDCtx();
}

static void zstd_close(void *state)
{
    ZSTD_freeDCtx(state);
}

static void zstd_begin(void *state)
{
    ZSTD_DCtx_reset(state, ZSTD_reset_session_only);
}

static int zstd_expand(void *state, const char **in, size_t *in_bytes, char *dst, size_t capacity,
                       size_t *ret_bytes)
{
    ZSTD_inBuffer from = {*in, *in_bytes, 0};
    ZSTD_outBuffer to = {dst, capacity, 0};
    size_t rc = ZSTD_decompressStream(state, &to, &from);
    *in += from.pos;
    *in_bytes -= from.pos;
    *ret_bytes = to.pos;
    if (!ZSTD_isError(rc))
        return rc == 0;
    switch (ZSTD_getErrorCode(rc)) {
    case ZSTD_error_memory_allocation: return -ENOMEM;
    case ZSTD_error_frameParameter_windowTooLarge: return -EOVERFLOW;
    default: return -EBADMSG;
    }
}

const struct aq_codec aq_codec_zstd = {zstd_compress, zstd_open, zstd_close, zstd_begin,
                                       zstd_expand};
