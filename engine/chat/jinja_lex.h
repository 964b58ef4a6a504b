/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/jinja_lex.h - the text of a template into tokens: what stands outside of tags, with
 * white space already taken away as trim_blocks, lstrip_blocks and '-' want it, and the words and
 * signs inside of them. */
#ifndef AQ_ENGINE_CHAT_JINJA_LEX_H
#define AQ_ENGINE_CHAT_JINJA_LEX_H

#include "base/err.h"
#include "base/types.h"
#include "engine/chat/arena.h"

enum aq_jinja_token_kind {
    AQ_JINJA_TOKEN_DATA,
    AQ_JINJA_TOKEN_VARIABLE_BEGIN,
    AQ_JINJA_TOKEN_VARIABLE_END,
    AQ_JINJA_TOKEN_BLOCK_BEGIN,
    AQ_JINJA_TOKEN_BLOCK_END,
    AQ_JINJA_TOKEN_NAME,
    AQ_JINJA_TOKEN_STRING,
    AQ_JINJA_TOKEN_INTEGER,
    AQ_JINJA_TOKEN_REAL,
    AQ_JINJA_TOKEN_SIGN, /* text: one or two characters */
    AQ_JINJA_TOKEN_END,
};

struct aq_jinja_token {
    enum aq_jinja_token_kind kind;
    uint32_t line;
    struct aq_text text;
    int64_t integer;
    double real;
};

struct aq_jinja_tokens {
    struct aq_jinja_token *item; /* the last is END */
    uint32_t count, capacity;
};

/* Texts of the tokens live in the arena.  -ENOEXEC: "line N: ...". */
int aq_jinja_lex(struct aq_jinja_tokens *ret, struct aq_arena *arena, struct aq_text text,
                 struct aq_err *reterr);
void aq_jinja_tokens_close(struct aq_jinja_tokens *t);

#endif
