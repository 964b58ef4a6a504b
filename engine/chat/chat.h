/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/chat.h - conversations into prompts by a model's own chat template: where the
 * template is, and what it is given.  Knows the files of a model directory that have to do with it
 * and the messages of chat interfaces; nothing of tokens or records.
 *
 * The template: chat_template.jinja with additional_chat_templates/NAME.jinja, else chat_template
 * of tokenizer_config.json (a text, or a list of names with texts).  Of several, `tool_use` is
 * taken where a conversation has tools, and `default` otherwise. */
#ifndef AQ_ENGINE_CHAT_CHAT_H
#define AQ_ENGINE_CHAT_CHAT_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdint.h>

struct aq_chat;

enum { AQ_CHAT_TIME_BYTES = 20 }; /* "2026-01-31T12:00:00" */

/* A model without a usable template is none to refuse: aq_chat_problem() says why there will be no
 * prompts.  -ENOMEM.  time as aq_chat_time_now() writes it, or its date alone; NULL: now. */
int aq_chat_open(struct aq_chat **ret, const char *dir, const char *time, struct aq_err *reterr);
void aq_chat_close(struct aq_chat *c);
/* A sentence; NULL: conversations can be rendered. */
const char *aq_chat_problem(const struct aq_chat *c);
/* xxh3-64 of all templates. */
uint64_t aq_chat_hash(const struct aq_chat *c);

/* What the templates take for the present time, where one of them asks for it; else NULL. */
const char *aq_chat_time(const struct aq_chat *c);
/* The local time. */
void aq_chat_time_now(char ret[AQ_CHAT_TIME_BYTES]);
bool aq_chat_time_valid(const char *time);

struct aq_chat_request {
    const json_t *messages; /* list of objects */
    const json_t *tools;    /* list; NULL: none */
    const json_t *kwargs;   /* object: more variables; NULL: none */
    bool add_generation_prompt;
    bool continue_final_message; /* the prompt ends inside of the last message */
};

/* Appends the prompt.  -EBADMSG: these messages cannot be rendered; *ret_param is the field at
 * fault; -ENOMEM. */
int aq_chat_render(struct aq_buf *out, const struct aq_chat *c, const struct aq_chat_request *r,
                   const char **ret_param, struct aq_err *reterr);

#endif
