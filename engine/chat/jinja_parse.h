/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/jinja_parse.h - tokens into the tree: what statements and expressions share. */
#ifndef AQ_ENGINE_CHAT_JINJA_PARSE_H
#define AQ_ENGINE_CHAT_JINJA_PARSE_H

#include "base/err.h"
#include "engine/chat/jinja_lex.h"
#include "engine/chat/jinja_tree.h"

struct aq_jinja_parser {
    struct aq_jinja *t;
    struct aq_jinja_token *token; /* the current one */
    uint32_t depth, loops, macros;
    struct aq_err *err;
    int rc; /* once it is not 0, what is parsed is not used */
};

/* A chain of nodes that grows at its end. */
struct aq_jinja_chain {
    uint32_t first, last;
};

/* Statements into p->t->body, up to the end. */
int aq_jinja_parse(struct aq_jinja *t, struct aq_jinja_token *tokens, struct aq_err *reterr);

/* ---- jinja_nodes.c ---- */
bool aq_jinja_parse_fail(struct aq_jinja_parser *p, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "found 'x'": the current token, for messages. */
const char *aq_jinja_found(const struct aq_jinja_parser *p, char dst[48]);
/* 0 when memory ran out. */
uint32_t aq_jinja_add(struct aq_jinja_parser *p, enum aq_jinja_kind kind, uint32_t line);
struct aq_jinja_node *aq_jinja_at(const struct aq_jinja_parser *p, uint32_t node);
void aq_jinja_append(const struct aq_jinja_parser *p, struct aq_jinja_chain *c, uint32_t node);
bool aq_jinja_is_sign(const struct aq_jinja_parser *p, const char *sign);
bool aq_jinja_is_name(const struct aq_jinja_parser *p, const char *name);
bool aq_jinja_skip_sign(struct aq_jinja_parser *p, const char *sign);
bool aq_jinja_skip_name(struct aq_jinja_parser *p, const char *name);
bool aq_jinja_expect_sign(struct aq_jinja_parser *p, const char *sign);
bool aq_jinja_expect_name(struct aq_jinja_parser *p, struct aq_text *ret);

/* ---- jinja_parse_expression.c ---- */
uint32_t aq_jinja_parse_expression(struct aq_jinja_parser *p);
/* As parse_expression, but "a, b" is a tuple; with `conditional` false without "a if b". */
uint32_t aq_jinja_parse_tuple(struct aq_jinja_parser *p, bool conditional);
/* What a set or a loop assigns to; members: of namespaces, too. */
uint32_t aq_jinja_parse_target(struct aq_jinja_parser *p, bool members);
/* "|filter(...)" and more of them behind `operand`, which may be none: then the first filter comes
 * without its bar. */
uint32_t aq_jinja_parse_filters(struct aq_jinja_parser *p, uint32_t operand, bool bare);

#endif
