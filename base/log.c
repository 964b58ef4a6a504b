/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void aq_log_line(const struct aq_log *log, enum aq_log_level level, const char *format, ...)
{
    if (!log || !log->line)
        return;
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    log->line(log->user, level, text);
}
