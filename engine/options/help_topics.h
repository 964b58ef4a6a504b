/* SPDX-License-Identifier: Apache-2.0
 * engine/options/help_topics.h - help about things that are no command.  Text alone: help.c lays it
 * out. */
#ifndef AQ_ENGINE_OPTIONS_HELP_TOPICS_H
#define AQ_ENGINE_OPTIONS_HELP_TOPICS_H

/* "hardware", "words"; NULL: no such topic.  Lines; "  left  right" is a row of two columns. */
const char *aq_help_topic(const char *name);

#endif
