/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/jinja_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 1 << 22 };

bool aq_jinja_parse_fail(struct aq_jinja_parser *p, uint32_t line, const char *format, ...)
{
    if (p->rc < 0)
        return false;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    p->rc = aq_error(p->err, -ENOEXEC, "line %u: %s", line, text);
    return false;
}

const char *aq_jinja_found(const struct aq_jinja_parser *p, char dst[48])
{
    char word[40];
    if (p->token->kind == AQ_JINJA_TOKEN_END)
        return "the end";
    snprintf(dst, 48, "'%s'",
             aq_quote(word, sizeof(word), p->token->text.bytes, p->token->text.count));
    return dst;
}

uint32_t aq_jinja_add(struct aq_jinja_parser *p, enum aq_jinja_kind kind, uint32_t line)
{
    struct aq_jinja *t = p->t;
    if (t->node_count == NODES_MAX) {
        aq_jinja_parse_fail(p, line, "the template is too large");
        return 0;
    }
    if (t->node_count >= t->node_capacity) {
        uint32_t capacity = t->node_capacity ? 2 * t->node_capacity : 256;
        struct aq_jinja_node *node = realloc(t->node, capacity * sizeof(*node));
        if (!node) {
            p->rc = p->rc < 0 ? p->rc : aq_error_memory(p->err, "tree of a chat template");
            return 0;
        }
        t->node = node;
        t->node_capacity = capacity;
        if (!t->node_count) /* index 0 is none */
            t->node[t->node_count++] = (struct aq_jinja_node){0};
    }
    t->node[t->node_count] = (struct aq_jinja_node){.kind = (uint8_t)kind, .line = line};
    return t->node_count++;
}

struct aq_jinja_node *aq_jinja_at(const struct aq_jinja_parser *p, uint32_t node)
{
    return &p->t->node[node];
}

void aq_jinja_append(const struct aq_jinja_parser *p, struct aq_jinja_chain *c, uint32_t node)
{
    if (!node)
        return;
    if (c->last)
        aq_jinja_at(p, c->last)->next = node;
    else
        c->first = node;
    c->last = node;
}

bool aq_jinja_is_sign(const struct aq_jinja_parser *p, const char *sign)
{
    return p->token->kind == AQ_JINJA_TOKEN_SIGN && aq_text_is(p->token->text, sign);
}

bool aq_jinja_is_name(const struct aq_jinja_parser *p, const char *name)
{
    return p->token->kind == AQ_JINJA_TOKEN_NAME && aq_text_is(p->token->text, name);
}

bool aq_jinja_skip_sign(struct aq_jinja_parser *p, const char *sign)
{
    bool is = aq_jinja_is_sign(p, sign);
    p->token += is;
    return is;
}

bool aq_jinja_skip_name(struct aq_jinja_parser *p, const char *name)
{
    bool is = aq_jinja_is_name(p, name);
    p->token += is;
    return is;
}

bool aq_jinja_expect_sign(struct aq_jinja_parser *p, const char *sign)
{
    char found[48];
    return aq_jinja_skip_sign(p, sign) ||
           aq_jinja_parse_fail(p, p->token->line, "expected '%s', found %s", sign,
                               aq_jinja_found(p, found));
}

bool aq_jinja_expect_name(struct aq_jinja_parser *p, struct aq_text *ret)
{
    char found[48];
    if (p->token->kind != AQ_JINJA_TOKEN_NAME)
        return aq_jinja_parse_fail(p, p->token->line, "expected a name, found %s",
                                   aq_jinja_found(p, found));
    *ret = p->token++->text;
    return true;
}
