/* SPDX-License-Identifier: Apache-2.0
 * engine/options/pages.h - what an installation offers beside `aquifer help`, made from the same
 * table: manual pages, and scripts that complete words in a shell.  Knows nothing of where they are
 * installed. */
#ifndef AQ_ENGINE_OPTIONS_PAGES_H
#define AQ_ENGINE_OPTIONS_PAGES_H

/* A page in the macros of man(7), malloc'd: of a command, or of the program (NULL).  NULL: out of
 * memory. */
char *aq_options_man(const char *command);
/* Scripts for bash (`complete`) and zsh (`#compdef`), malloc'd. */
char *aq_options_bash(void);
char *aq_options_zsh(void);

#endif
