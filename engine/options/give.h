/* SPDX-License-Identifier: Apache-2.0
 * engine/options/give.h - struct aq_options while it is being filled: texts become values, by the
 * table.  Used by options.c (JSON) and args.c (words, YAML); everyone else reads
 * engine/options/options.h.
 */
#ifndef AQ_ENGINE_OPTIONS_GIVE_H
#define AQ_ENGINE_OPTIONS_GIVE_H

#include "engine/options/table.h"

/* Options of a command with every default set; -EINVAL names the nearest command. */
int aq_options_open(struct aq_options **ret, const char *command, struct aq_err *reterr);
const struct aq_command *aq_options_command(const struct aq_options *o);

/* Sets one value from its text.  `source` > 0 numbers where it comes from: a list begun by one
 * source is replaced by the next one and grows within the same.  `label` names the option in
 * messages. */
int aq_options_give(struct aq_options *o, const struct aq_option *option, uint32_t source,
                    const char *label, const char *text, struct aq_err *reterr);
bool aq_options_was_given(const struct aq_options *o, const struct aq_option *option);

/* Whether it may be given several times, or as a list. */
bool aq_option_is_list(const struct aq_option *option);

#endif
