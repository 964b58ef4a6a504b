/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/chat_files.h - the chat templates of a model directory and the variables that its
 * files set. */
#ifndef AQ_ENGINE_CHAT_CHAT_FILES_H
#define AQ_ENGINE_CHAT_CHAT_FILES_H

#include "engine/chat/jinja.h"

#include <xxhash.h>

enum { AQ_CHAT_TEMPLATES_MAX = 16 };

struct aq_chat_files {
    struct aq_jinja *deflt, *tool_use; /* NULL: there is none */
    json_t *tokens;                    /* bos_token, eos_token, ... as strings */
    uint64_t hash;                     /* of all texts and names */
};

/* -ENOENT: the directory has no chat template; -ENOEXEC: it cannot be used. */
int aq_chat_files_open(struct aq_chat_files *ret, const char *dir, struct aq_err *reterr);
void aq_chat_files_close(struct aq_chat_files *f);

#endif
