/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/chat_messages.h - messages as chat interfaces have them, checked and made ready for a
 * template. */
#ifndef AQ_ENGINE_CHAT_CHAT_MESSAGES_H
#define AQ_ENGINE_CHAT_CHAT_MESSAGES_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

/* Stands behind the content of a last message that is to be continued, with one blank behind it. */
#define AQ_CHAT_END_MARK "CONTINUE_FINAL_MESSAGE_TAG"

/* A list of the same messages: contents that are lists of texts become one text, a line each,
 * unless the template goes through lists by itself; arguments of tool calls, which interfaces have
 * as JSON text, become values; continues: the last content ends in the mark.  -EBADMSG. */
int aq_chat_messages(json_t **ret, const json_t *messages, bool lists, bool continues,
                     struct aq_err *reterr);

#endif
