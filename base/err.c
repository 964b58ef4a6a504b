/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Names and values from outside end up in texts: none of them shall move a terminal's cursor or
 * make one sentence look like two. */
static void hide_controls(char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
    }
}

int aq_error_at(struct aq_err *reterr, int code, const char *file, int line, const char *format,
                ...)
{
    assert(code < 0);
    if (!reterr)
        return code;
    reterr->code = code;
    reterr->file = file;
    reterr->line = line;
    va_list args;
    va_start(args, format);
    vsnprintf(reterr->text, sizeof(reterr->text), format, args);
    va_end(args);
    hide_controls(reterr->text);
    return code;
}

int aq_error_prefix(struct aq_err *err, const char *format, ...)
{
    if (!err)
        return -EIO;
    char text[sizeof(err->text)];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    hide_controls(text);
    if (n >= 0 && (size_t)n < sizeof(text) - 3) {
        snprintf(text + n, sizeof(text) - (size_t)n, ": %.*s", (int)(sizeof(text) - (size_t)n - 3),
                 err->text);
        memcpy(err->text, text, sizeof(text));
    }
    return err->code;
}

void aq_error_append(struct aq_err *err, const char *format, ...)
{
    if (!err)
        return;
    size_t used = strlen(err->text);
    va_list args;
    va_start(args, format);
    vsnprintf(err->text + used, sizeof(err->text) - used, format, args);
    va_end(args);
    hide_controls(err->text + used);
}

int aq_error_named(struct aq_err *err, int rc, const char *option)
{
    if (rc >= 0 || rc == -ENOMEM)
        return rc;
    if (err) {
        aq_error_prefix(err, "%s", option);
        err->code = -EINVAL;
    }
    return -EINVAL;
}

const char *aq_quote(char *dst, size_t dst_bytes, const void *src, size_t src_bytes)
{
    assert(dst && dst_bytes >= 8);
    const unsigned char *from = src;
    size_t n = src_bytes < dst_bytes ? src_bytes : dst_bytes - 4;
    for (size_t i = 0; i < n; i++)
        dst[i] = from[i] >= 0x20 && from[i] < 0x7f ? (char)from[i] : '?';
    memcpy(dst + n, n < src_bytes ? "..." : "", n < src_bytes ? 4 : 1);
    return dst;
}

int aq_err_of_place(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT: return -ENOMEM;
    case ENOENT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EIO: return -errnum;
    default: return -ENODEV;
    }
}

int aq_err_of_io(int errnum)
{
    return aq_err_exit_status(-errnum) == 4 ? -errnum : -EIO;
}

int aq_err_exit_status(int code)
{
    switch (code) {
    case 0: return 0;
    case -EINVAL:
    case -ERANGE: return 1;
    case -ENOEXEC:
    case -ENOBUFS:
    case -ENOMEM:
    case -EAGAIN: /* no more threads: pthread_create(3) */
    case -EMFILE: /* no more descriptors: ulimit -n */
    case -ENFILE:
    case -ENODEV:
    case -ENOENT:
    case -EOPNOTSUPP:
    case -ENOSYS: return 2;
    case -EINTR: return 130;
    default: return 4;
    }
}
