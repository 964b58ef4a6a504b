/* SPDX-License-Identifier: Apache-2.0
 * Statements; the grammar is that of jinja2/parser.py (3.1). */
#include "engine/chat/jinja_parse.h"

#include "engine/chat/jinja.h"

#include <string.h>

/* Statements until a tag that begins with one of these words, which becomes the current token. */
static uint32_t parse_body(struct aq_jinja_parser *p, const char *const *ends);

static bool expect_block_end(struct aq_jinja_parser *p)
{
    char found[48];
    if (p->rc == 0 && p->token->kind != AQ_JINJA_TOKEN_BLOCK_END)
        return aq_jinja_parse_fail(p, p->token->line, "expected '%%}', found %s",
                                   aq_jinja_found(p, found));
    p->token += p->rc == 0;
    return p->rc == 0;
}

/* A body between the end of its tag and the tag that ends it, that tag's word skipped. */
static uint32_t parse_block(struct aq_jinja_parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    if (!expect_block_end(p))
        return 0;
    uint32_t body = parse_body(p, ends);
    if (p->rc == 0)
        p->token++;
    return body;
}

static uint32_t add(struct aq_jinja_parser *p, enum aq_jinja_kind kind, uint32_t line)
{
    return p->rc == 0 ? aq_jinja_add(p, kind, line) : 0;
}

/* ---- statements, behind their first word ---- */

/* The rest of an if, or of an elif, which is an if in the place of its else. */
static uint32_t parse_if(struct aq_jinja_parser *p, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    uint32_t whole = 0, before = 0;
    for (;;) {
        uint32_t test = aq_jinja_parse_tuple(p, false);
        uint32_t body = test && expect_block_end(p) ? parse_body(p, ends) : 0;
        uint32_t node = add(p, AQ_JINJA_IF, line);
        if (!node)
            return 0;
        aq_jinja_at(p, node)->first = test;
        aq_jinja_at(p, node)->second = body;
        if (before)
            aq_jinja_at(p, before)->third = node;
        else
            whole = node;
        before = node;
        line = p->token->line;
        if (aq_jinja_skip_name(p, "elif"))
            continue;
        if (aq_jinja_skip_name(p, "else") && expect_block_end(p)) {
            uint32_t other = parse_body(p, last);
            aq_jinja_at(p, node)->third = other;
        }
        p->token += p->rc == 0;
        return p->rc == 0 ? whole : 0;
    }
}

static uint32_t parse_for(struct aq_jinja_parser *p, uint32_t line)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    char found[48];
    uint32_t target = aq_jinja_parse_target(p, false), filter = 0, other = 0;
    if (p->rc == 0 && !aq_jinja_skip_name(p, "in"))
        aq_jinja_parse_fail(p, line, "for: expected 'in', found %s", aq_jinja_found(p, found));
    uint32_t iterated = p->rc == 0 ? aq_jinja_parse_tuple(p, false) : 0;
    if (p->rc == 0 && aq_jinja_skip_name(p, "if"))
        filter = aq_jinja_parse_expression(p);
    bool recursive = p->rc == 0 && aq_jinja_skip_name(p, "recursive");
    p->loops++;
    uint32_t body = expect_block_end(p) ? parse_body(p, ends) : 0;
    p->loops--;
    if (p->rc == 0 && aq_jinja_skip_name(p, "else") && expect_block_end(p))
        other = parse_body(p, last);
    p->token += p->rc == 0;
    uint32_t node = add(p, AQ_JINJA_FOR, line);
    if (!node)
        return 0;
    struct aq_jinja_node *n = aq_jinja_at(p, node);
    n->first = target;
    n->second = iterated;
    n->third = body;
    n->fourth = other;
    n->fifth = filter;
    n->which = recursive;
    return node;
}

static uint32_t parse_set(struct aq_jinja_parser *p, uint32_t line)
{
    uint32_t target = aq_jinja_parse_target(p, true), filter = 0, value;
    if (p->rc < 0)
        return 0;
    bool block = !aq_jinja_skip_sign(p, "=");
    if (!block) {
        value = aq_jinja_parse_tuple(p, true);
    } else {
        if (aq_jinja_is_sign(p, "|"))
            filter = aq_jinja_parse_filters(p, 0, false);
        value = p->rc == 0 ? parse_block(p, "endset") : 0;
    }
    uint32_t node = add(p, block ? AQ_JINJA_SET_BLOCK : AQ_JINJA_SET, line);
    if (!node)
        return 0;
    aq_jinja_at(p, node)->first = target;
    aq_jinja_at(p, node)->second = value;
    aq_jinja_at(p, node)->third = filter;
    return node;
}

static uint32_t parse_parameters(struct aq_jinja_parser *p)
{
    struct aq_jinja_chain parameters = {0};
    bool defaults = false;
    struct aq_text name;
    if (!aq_jinja_expect_sign(p, "("))
        return 0;
    while (p->rc == 0 && !aq_jinja_is_sign(p, ")")) {
        uint32_t line = p->token->line, deflt = 0;
        if (parameters.first && !aq_jinja_expect_sign(p, ","))
            return 0;
        if (!aq_jinja_expect_name(p, &name))
            return 0;
        if (aq_jinja_skip_sign(p, "="))
            deflt = aq_jinja_parse_expression(p);
        else if (defaults)
            aq_jinja_parse_fail(p, line, "a parameter without a default behind one with");
        defaults = deflt != 0;
        uint32_t node = add(p, AQ_JINJA_PARAMETER, line);
        if (!node)
            return 0;
        aq_jinja_at(p, node)->first = deflt;
        aq_jinja_at(p, node)->text = name;
        aq_jinja_append(p, &parameters, node);
    }
    return aq_jinja_expect_sign(p, ")") ? parameters.first : 0;
}

static uint32_t parse_macro(struct aq_jinja_parser *p, uint32_t line)
{
    struct aq_text name;
    if (!aq_jinja_expect_name(p, &name))
        return 0;
    uint32_t loops = p->loops;
    p->loops = 0;
    p->macros++;
    uint32_t parameters = parse_parameters(p);
    uint32_t body = p->rc == 0 ? parse_block(p, "endmacro") : 0;
    p->macros--;
    p->loops = loops;
    uint32_t node = add(p, AQ_JINJA_MACRO, line);
    if (!node)
        return 0;
    aq_jinja_at(p, node)->first = parameters;
    aq_jinja_at(p, node)->second = body;
    aq_jinja_at(p, node)->text = name;
    return node;
}

/* {% with a = 1, b = 2 %}: each value is read outside of the new scope. */
static uint32_t parse_with(struct aq_jinja_parser *p, uint32_t line)
{
    struct aq_jinja_chain settings = {0};
    while (p->rc == 0 && p->token->kind != AQ_JINJA_TOKEN_BLOCK_END) {
        if (settings.first && !aq_jinja_expect_sign(p, ","))
            return 0;
        uint32_t at = p->token->line;
        struct aq_text name;
        if (!aq_jinja_expect_name(p, &name) || !aq_jinja_expect_sign(p, "="))
            return 0;
        uint32_t value = aq_jinja_parse_expression(p), target = add(p, AQ_JINJA_NAME, at);
        uint32_t node = add(p, AQ_JINJA_SET, at);
        if (!node)
            return 0;
        aq_jinja_at(p, target)->text = name;
        aq_jinja_at(p, node)->first = target;
        aq_jinja_at(p, node)->second = value;
        aq_jinja_append(p, &settings, node);
    }
    uint32_t body = parse_block(p, "endwith"), node = add(p, AQ_JINJA_SCOPE, line);
    if (!node)
        return 0;
    aq_jinja_at(p, node)->first = settings.first;
    aq_jinja_at(p, node)->second = body;
    return node;
}

/* transformers' tag around what an assistant says: its body is rendered in a scope of its own. */
static uint32_t parse_generation(struct aq_jinja_parser *p, uint32_t line)
{
    uint32_t body = parse_block(p, "endgeneration"), node = add(p, AQ_JINJA_SCOPE, line);
    if (node)
        aq_jinja_at(p, node)->second = body;
    return node;
}

static uint32_t parse_filter_block(struct aq_jinja_parser *p, uint32_t line)
{
    uint32_t filter = aq_jinja_parse_filters(p, 0, true);
    uint32_t body = filter ? parse_block(p, "endfilter") : 0;
    uint32_t node = add(p, AQ_JINJA_FILTER_BLOCK, line);
    if (!node)
        return 0;
    aq_jinja_at(p, node)->first = filter;
    aq_jinja_at(p, node)->second = body;
    return node;
}

static uint32_t parse_leave(struct aq_jinja_parser *p, enum aq_jinja_kind kind, uint32_t line)
{
    if (!p->loops)
        aq_jinja_parse_fail(p, line, "'%s' outside of a loop",
                            kind == AQ_JINJA_BREAK ? "break" : "continue");
    return add(p, kind, line);
}

static uint32_t parse_statement(struct aq_jinja_parser *p)
{
    struct aq_text word;
    char shown[48];
    uint32_t line = p->token->line;
    if (!aq_jinja_expect_name(p, &word))
        return 0;
    if (aq_text_is(word, "if"))
        return parse_if(p, line);
    if (aq_text_is(word, "for"))
        return parse_for(p, line);
    if (aq_text_is(word, "set"))
        return parse_set(p, line);
    if (aq_text_is(word, "macro"))
        return parse_macro(p, line);
    if (aq_text_is(word, "break"))
        return parse_leave(p, AQ_JINJA_BREAK, line);
    if (aq_text_is(word, "continue"))
        return parse_leave(p, AQ_JINJA_CONTINUE, line);
    if (aq_text_is(word, "generation"))
        return parse_generation(p, line);
    if (aq_text_is(word, "with"))
        return parse_with(p, line);
    if (aq_text_is(word, "filter"))
        return parse_filter_block(p, line);
    bool end = word.count > 3 && !memcmp(word.bytes, "end", 3);
    bool stray = end || aq_text_is(word, "else") || aq_text_is(word, "elif");
    aq_jinja_parse_fail(p, line, stray ? "'%s' without its beginning" : "tag '%s' is not supported",
                        aq_quote(shown, sizeof(shown), word.bytes, word.count));
    return 0;
}

/* ---- bodies ---- */

static bool ends_here(const struct aq_jinja_parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (aq_jinja_is_name(p, *ends))
            return true;
    return false;
}

/* One piece of a body.  *ret_end: it was the tag that ends it. */
static uint32_t parse_piece(struct aq_jinja_parser *p, const char *const *ends, bool *ret_end)
{
    const struct aq_jinja_token *t = p->token++;
    char found[48];
    uint32_t node;
    *ret_end = false;
    if (t->kind == AQ_JINJA_TOKEN_DATA) {
        node = add(p, AQ_JINJA_TEXT, t->line);
        if (node)
            aq_jinja_at(p, node)->text = t->text;
        return node;
    }
    if (t->kind == AQ_JINJA_TOKEN_VARIABLE_BEGIN) {
        uint32_t value = aq_jinja_parse_tuple(p, true);
        if (p->rc == 0 && p->token->kind != AQ_JINJA_TOKEN_VARIABLE_END)
            aq_jinja_parse_fail(p, p->token->line, "expected '}}', found %s",
                                aq_jinja_found(p, found));
        p->token += p->rc == 0;
        node = add(p, AQ_JINJA_OUTPUT, t->line);
        if (node)
            aq_jinja_at(p, node)->first = value;
        return node;
    }
    *ret_end = ends_here(p, ends);
    if (*ret_end)
        return 0;
    node = parse_statement(p);
    expect_block_end(p);
    return node;
}

static uint32_t parse_body(struct aq_jinja_parser *p, const char *const *ends)
{
    struct aq_jinja_chain body = {0};
    uint32_t line = p->token->line;
    bool end = false;
    if (p->depth++ >= AQ_JINJA_NESTING_MAX)
        aq_jinja_parse_fail(p, line, "more than %d expressions or statements in one another",
                            AQ_JINJA_NESTING_MAX);
    while (p->rc == 0 && !end && p->token->kind != AQ_JINJA_TOKEN_END)
        aq_jinja_append(p, &body, parse_piece(p, ends, &end));
    p->depth--;
    if (p->rc == 0 && !end && ends[0]) {
        const char *last = ends[0];
        for (; *ends; ends++)
            last = *ends;
        aq_jinja_parse_fail(p, line, "a block without its '%s'", last);
    }
    return p->rc == 0 ? body.first : 0;
}

int aq_jinja_parse(struct aq_jinja *t, struct aq_jinja_token *tokens, struct aq_err *reterr)
{
    static const char *const none[] = {NULL};
    struct aq_jinja_parser p = {.t = t, .token = tokens, .err = reterr};
    t->body = parse_body(&p, none);
    return p.rc;
}
