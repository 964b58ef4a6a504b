/* SPDX-License-Identifier: Apache-2.0
 * base/log.h - a callback sink; nothing below the command line prints. */
#ifndef AQ_BASE_LOG_H
#define AQ_BASE_LOG_H

enum aq_log_level { AQ_LOG_WARNING, AQ_LOG_INFO, AQ_LOG_DEBUG };

struct aq_log {
    void (*line)(void *user, enum aq_log_level level, const char *text); /* NULL: silent */
    void *user;
};

/* Formats one line (no newline) and hands it to the sink.  log NULL is silent. */
void aq_log_line(const struct aq_log *log, enum aq_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
