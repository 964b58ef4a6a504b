/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/commands.h - the commands behind aquifer_run, one file each.  A command returns
 * its exit status (0, 3, ...) or a negative errno with a sentence in reterr; results go to
 * hooks->output, notes to hooks->line. */
#ifndef AQ_ENGINE_COMMANDS_COMMANDS_H
#define AQ_ENGINE_COMMANDS_COMMANDS_H

#include "engine/core/opts_from.h"
#include "engine/hooks.h"

typedef int aq_command_fn(const struct aq_options *o, const struct aquifer_hooks *hooks,
                          struct aq_err *reterr);

aq_command_fn aq_cmd_generate, aq_cmd_eval, aq_cmd_bench, aq_cmd_pack, aq_cmd_tokenize, aq_cmd_info,
    aq_cmd_status, aq_cmd_probe, aq_cmd_plan, aq_cmd_published, aq_cmd_merge;

#endif
