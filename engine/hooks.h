/* SPDX-License-Identifier: Apache-2.0
 * engine/hooks.h - what the library tells its caller, through the hooks of aquifer.h: lines of the
 * log, results, reports and errors. */
#ifndef AQ_ENGINE_HOOKS_H
#define AQ_ENGINE_HOOKS_H

#include "base/err.h"
#include "base/log.h"
#include "engine/aquifer.h"

#include <jansson.h>
#include <stdbool.h>

/* Whether hooks->interrupted says so; a pointer to the hooks, NULL allowed, as `user` of others. */
bool aq_hooks_interrupted(void *hooks);
/* A log that ends in hooks->line. */
struct aq_log aq_log_from_hooks(const struct aquifer_hooks *hooks);
void aq_hooks_line(const struct aquifer_hooks *hooks, enum aquifer_level level, const char *format,
                   ...) __attribute__((format(printf, 3, 4)));
/* Part of the command's result, as it stands or formatted (at most 2 KiB). */
void aq_hooks_output(const struct aquifer_hooks *hooks, const char *bytes, size_t count);
void aq_hooks_outputf(const struct aquifer_hooks *hooks, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Dumps a JSON document (indented, newline at the end) to hooks->output; takes the reference. */
int aq_hooks_json(const struct aquifer_hooks *hooks, json_t *document, struct aq_err *reterr);
/* Writes a report, which is borrowed and may be NULL: memory was out.  That it cannot be written is
 * a warning, and does not spoil the results. */
void aq_hooks_report(const struct aquifer_hooks *hooks, const char *path, const json_t *report);
/* Copies an error out to the public struct (ret NULL allowed), with its exit status. */
void aq_err_publish(struct aquifer_error *ret, const struct aq_err *err);

#endif
