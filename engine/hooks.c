/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/hooks.h"

#include "base/file.h"
#include "base/json.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool aq_hooks_interrupted(void *hooks)
{
    const struct aquifer_hooks *h = hooks;
    return h && h->interrupted && h->interrupted(h->user);
}

static void log_to_hooks(void *user, enum aq_log_level level, const char *text)
{
    static const enum aquifer_level map[] = {[AQ_LOG_WARNING] = AQUIFER_WARNING,
                                             [AQ_LOG_INFO] = AQUIFER_INFO,
                                             [AQ_LOG_DEBUG] = AQUIFER_DEBUG};
    const struct aquifer_hooks *hooks = user;
    if (hooks && hooks->line)
        hooks->line(hooks->user, map[level], text);
}

struct aq_log aq_log_from_hooks(const struct aquifer_hooks *hooks)
{
    return (struct aq_log){log_to_hooks, (void *)hooks};
}

void aq_hooks_line(const struct aquifer_hooks *hooks, enum aquifer_level level, const char *format,
                   ...)
{
    if (!hooks || !hooks->line)
        return;
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    hooks->line(hooks->user, level, text);
}

void aq_hooks_output(const struct aquifer_hooks *hooks, const char *bytes, size_t count)
{
    if (hooks && hooks->output && count)
        hooks->output(hooks->user, bytes, count);
}

void aq_hooks_outputf(const struct aquifer_hooks *hooks, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (n > 0)
        aq_hooks_output(hooks, text, (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1);
}

int aq_hooks_json(const struct aquifer_hooks *hooks, json_t *document, struct aq_err *reterr)
{
    char *text =
        aq_json_dump(document, JSON_INDENT(1) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    json_decref(document);
    if (!text)
        return aq_error_memory(reterr, "result as JSON");
    if (hooks && hooks->output) {
        hooks->output(hooks->user, text, strlen(text));
        hooks->output(hooks->user, "\n", 1);
    }
    free(text);
    return 0;
}

void aq_hooks_report(const struct aquifer_hooks *hooks, const char *path, const json_t *report)
{
    char *text = aq_json_dump(report, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    struct aq_err err = {.text = "out of memory"};
    if (!text || aq_file_replace(path, text, strlen(text), false, &err) < 0)
        aq_hooks_line(hooks, AQUIFER_WARNING, "report: %s", err.text);
    free(text);
}

void aq_err_publish(struct aquifer_error *ret, const struct aq_err *err)
{
    _Static_assert(sizeof(ret->text) == sizeof(err->text), "both hold one sentence");
    assert(err->code < 0);
    if (!ret)
        return;
    ret->code = err->code;
    ret->exit_status = aq_err_exit_status(err->code);
    memcpy(ret->text, err->text, sizeof(ret->text));
}
