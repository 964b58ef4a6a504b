/* SPDX-License-Identifier: Apache-2.0
 * engine/commands.h - the commands behind aquifer_run, one file each.  A command returns its exit
 * status (0, 3, ...) or a negative errno with a sentence in reterr; results go to hooks->output,
 * notes to hooks->line. */
#ifndef AQ_ENGINE_COMMANDS_H
#define AQ_ENGINE_COMMANDS_H

#include "base/err.h"
#include "base/log.h"
#include "engine/aquifer.h"
#include "engine/engine.h"
#include "engine/options.h"

typedef int aq_command_fn(const struct aq_options *o, const struct aquifer_hooks *hooks,
                          struct aq_err *reterr);

aq_command_fn aq_cmd_generate, aq_cmd_eval, aq_cmd_bench, aq_cmd_pack, aq_cmd_tokenize, aq_cmd_info,
    aq_cmd_status, aq_cmd_probe, aq_cmd_plan, aq_cmd_published;

/* What commands that run a model share: options as the engine takes them (strings borrowed from o).
 */
int aq_engine_opts_from(struct aq_engine_opts *ret, const struct aq_options *o,
                        const struct aq_log *log, struct aq_err *reterr);
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
