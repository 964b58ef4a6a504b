/* SPDX-License-Identifier: Apache-2.0
 * engine/options/help_topics.h - what `aquifer help` knows that is no command: the overview, manual
 * pages, completions and the command line itself list these.  Owns the table and text, and lays
 * nothing out. */
#ifndef AQ_ENGINE_OPTIONS_HELP_TOPICS_H
#define AQ_ENGINE_OPTIONS_HELP_TOPICS_H

#include <stdint.h>

enum aq_help_topic_id {
    AQ_HELP_KV,
    AQ_HELP_HARDWARE,
    AQ_HELP_WORDS,
    AQ_HELP_MAN,
    AQ_HELP_BASH,
    AQ_HELP_ZSH,
};

struct aq_help_topic {
    enum aq_help_topic_id id;
    const char *name, *summary;
};

extern const struct aq_help_topic aq_help_topics[];
extern const uint32_t aq_help_topic_count;

const struct aq_help_topic *aq_help_topic_find(const char *name); /* NULL: no such topic */

/* Lines; "  left  right" is a row of two columns. */
extern const char aq_help_words[];

#endif
