/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
    if (n >= 0 && (size_t)n < sizeof(text) - 3) {
        snprintf(text + n, sizeof(text) - (size_t)n, ": %.*s", (int)(sizeof(text) - (size_t)n - 3),
                 err->text);
        memcpy(err->text, text, sizeof(text));
    }
    return err->code;
}
