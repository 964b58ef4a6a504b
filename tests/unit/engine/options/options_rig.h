/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/engine/options/options_rig.h - words of a command line as one text, "a|b c|d" for "a",
 * "b c" and "d", and what is expected of them.  What does not hold fails the test. */
#ifndef AQ_TESTS_OPTIONS_RIG_H
#define AQ_TESTS_OPTIONS_RIG_H

#include "engine/options/options.h"

#include <stdbool.h>
#include <stddef.h>

enum { WORDS_MAX = 64 };

/* How many words; `copy` holds them. */
int options_split(const char *line, char *copy, size_t bytes, char *words[WORDS_MAX]);
int options_rc(struct aq_options **ret, const char *command, const char *line, bool *help,
               struct aq_err *err);
struct aq_options *options_parse(const char *command, const char *line);
/* The line cannot be read, and the message has these words; -EINVAL in the second. */
void options_refuse_code(const char *command, const char *line, int code, const char *words);
void options_refuse(const char *command, const char *line, const char *words);
/* Each option can be read, but not (or so) together. */
void options_refuse_together(const char *command, const char *line, const char *words);
void options_accept_together(const char *command, const char *line);

#endif
