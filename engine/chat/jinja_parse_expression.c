/* SPDX-License-Identifier: Apache-2.0
 * The grammar is that of jinja2/parser.py (3.1).  A function returns 0 when something is wrong;
 * p->rc then says what. */
#include "engine/chat/jinja.h"
#include "engine/chat/jinja_builtins.h"
#include "engine/chat/jinja_parse.h"

/* Counts nesting; false: too deep. */
static bool enter(struct aq_jinja_parser *p)
{
    if (p->depth++ < AQ_JINJA_NESTING_MAX)
        return p->rc == 0;
    return aq_jinja_parse_fail(p, p->token->line,
                               "more than %d expressions or statements in one "
                               "another",
                               AQ_JINJA_NESTING_MAX);
}

static uint32_t add1(struct aq_jinja_parser *p, enum aq_jinja_kind kind, uint32_t line,
                     uint32_t first)
{
    uint32_t node = p->rc == 0 ? aq_jinja_add(p, kind, line) : 0;
    if (node)
        aq_jinja_at(p, node)->first = first;
    return node;
}

static uint32_t add2(struct aq_jinja_parser *p, enum aq_jinja_kind kind, uint32_t line,
                     uint32_t first, uint32_t second)
{
    uint32_t node = add1(p, kind, line, first);
    if (node)
        aq_jinja_at(p, node)->second = second;
    return node;
}

static uint32_t add_text(struct aq_jinja_parser *p, enum aq_jinja_kind kind, uint32_t line,
                         uint32_t first, struct aq_text text)
{
    uint32_t node = add1(p, kind, line, first);
    if (node)
        aq_jinja_at(p, node)->text = text;
    return node;
}

/* ---- literals ---- */

/* "a" "b": one string. */
static uint32_t parse_strings(struct aq_jinja_parser *p)
{
    uint32_t line = p->token->line;
    struct aq_text text = p->token++->text;
    while (p->token->kind == AQ_JINJA_TOKEN_STRING) {
        struct aq_text more = p->token++->text;
        char *both = aq_arena_take(&p->t->arena, text.count + more.count + 1);
        if (!both) {
            p->rc = aq_error_memory(p->err, "a string of a chat template");
            return 0;
        }
        for (size_t i = 0; i < text.count + more.count; i++)
            both[i] = i < text.count ? text.bytes[i] : more.bytes[i - text.count];
        text = (struct aq_text){both, text.count + more.count};
    }
    return add_text(p, AQ_JINJA_STRING, line, 0, text);
}

static uint32_t parse_name(struct aq_jinja_parser *p)
{
    const struct aq_jinja_token *t = p->token++;
    bool is_true = aq_text_is(t->text, "true") || aq_text_is(t->text, "True");
    if (is_true || aq_text_is(t->text, "false") || aq_text_is(t->text, "False")) {
        uint32_t node = add1(p, AQ_JINJA_BOOL, t->line, 0);
        if (node)
            aq_jinja_at(p, node)->integer = is_true;
        return node;
    }
    if (aq_text_is(t->text, "none") || aq_text_is(t->text, "None"))
        return add1(p, AQ_JINJA_NONE, t->line, 0);
    static const char *const refused[] = {"lipsum", "cycler", "joiner",  "self",
                                          "super",  "caller", "varargs", "kwargs"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(refused); i++)
        if (aq_text_is(t->text, refused[i]) && (i < 5 || p->macros)) {
            aq_jinja_parse_fail(p, t->line, "'%s' is not supported", refused[i]);
            return 0;
        }
    return add_text(p, AQ_JINJA_NAME, t->line, 0, t->text);
}

static uint32_t parse_list(struct aq_jinja_parser *p)
{
    uint32_t line = p->token++->line;
    struct aq_jinja_chain items = {0};
    while (p->rc == 0 && !aq_jinja_is_sign(p, "]")) {
        if (items.first && !aq_jinja_expect_sign(p, ","))
            return 0;
        if (aq_jinja_is_sign(p, "]"))
            break;
        aq_jinja_append(p, &items, aq_jinja_parse_expression(p));
    }
    return aq_jinja_expect_sign(p, "]") ? add1(p, AQ_JINJA_LIST, line, items.first) : 0;
}

static uint32_t parse_dict(struct aq_jinja_parser *p)
{
    uint32_t line = p->token++->line;
    struct aq_jinja_chain pairs = {0};
    while (p->rc == 0 && !aq_jinja_is_sign(p, "}")) {
        if (pairs.first && !aq_jinja_expect_sign(p, ","))
            return 0;
        if (aq_jinja_is_sign(p, "}"))
            break;
        uint32_t at = p->token->line, key = aq_jinja_parse_expression(p);
        if (!key || !aq_jinja_expect_sign(p, ":"))
            return 0;
        uint32_t value = aq_jinja_parse_expression(p);
        aq_jinja_append(p, &pairs, value ? add2(p, AQ_JINJA_PAIR, at, key, value) : 0);
    }
    return aq_jinja_expect_sign(p, "}") ? add1(p, AQ_JINJA_DICT, line, pairs.first) : 0;
}

/* ---- tuples ---- */

static bool ends_tuple(const struct aq_jinja_parser *p, const char *word)
{
    return p->token->kind == AQ_JINJA_TOKEN_VARIABLE_END ||
           p->token->kind == AQ_JINJA_TOKEN_BLOCK_END || aq_jinja_is_sign(p, ")") ||
           (word && aq_jinja_is_name(p, word));
}

static uint32_t parse_or(struct aq_jinja_parser *p);
static uint32_t parse_primary(struct aq_jinja_parser *p);

/* "a", or "a, b" as a tuple; parse reads an item.  parenthesised: () is an empty one. */
static uint32_t parse_items(struct aq_jinja_parser *p, uint32_t (*parse)(struct aq_jinja_parser *),
                            const char *end_word, bool parenthesised)
{
    uint32_t line = p->token->line;
    struct aq_jinja_chain items = {0};
    bool tuple = false;
    while (p->rc == 0) {
        if (items.first && !aq_jinja_expect_sign(p, ","))
            return 0;
        if (ends_tuple(p, end_word))
            break;
        aq_jinja_append(p, &items, parse(p));
        if (!aq_jinja_is_sign(p, ","))
            break;
        tuple = true;
    }
    if (p->rc == 0 && !tuple && items.first)
        return items.first;
    char found[48];
    if (!tuple && !parenthesised) {
        aq_jinja_parse_fail(p, line, "expected an expression, found %s", aq_jinja_found(p, found));
        return 0;
    }
    return add1(p, AQ_JINJA_TUPLE, line, items.first);
}

uint32_t aq_jinja_parse_tuple(struct aq_jinja_parser *p, bool conditional)
{
    return parse_items(p, conditional ? aq_jinja_parse_expression : parse_or, NULL, false);
}

/* ---- targets ---- */

static uint32_t parse_target_item(struct aq_jinja_parser *p)
{
    struct aq_text name;
    uint32_t line = p->token->line;
    if (aq_jinja_skip_sign(p, "(")) {
        uint32_t node = enter(p) ? parse_items(p, parse_target_item, NULL, true) : 0;
        p->depth--;
        return node && aq_jinja_expect_sign(p, ")") ? node : 0;
    }
    static const char *const constant[] = {"true", "True", "false", "False",
                                           "none", "None", "loop"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(constant); i++)
        if (aq_jinja_is_name(p, constant[i]))
            aq_jinja_parse_fail(p, line, "cannot assign to '%s'", constant[i]);
    if (p->rc < 0 || !aq_jinja_expect_name(p, &name))
        return 0;
    return add_text(p, AQ_JINJA_NAME, line, 0, name);
}

static uint32_t parse_target_member(struct aq_jinja_parser *p)
{
    struct aq_text member;
    uint32_t node = parse_target_item(p);
    if (!node || aq_jinja_at(p, node)->kind != AQ_JINJA_NAME || !aq_jinja_skip_sign(p, "."))
        return node;
    uint32_t line = p->token->line;
    if (!aq_jinja_expect_name(p, &member))
        return 0;
    struct aq_text owner = aq_jinja_at(p, node)->text;
    uint32_t name = add_text(p, AQ_JINJA_NAME, line, 0, member);
    return name ? add_text(p, AQ_JINJA_MEMBER, line, name, owner) : 0;
}

uint32_t aq_jinja_parse_target(struct aq_jinja_parser *p, bool members)
{
    return parse_items(p, members ? parse_target_member : parse_target_item, "in", false);
}

/* ---- calls, subscripts, filters, tests ---- */

/* "(a, b=c)" into the second and third of the node. */
static bool parse_arguments(struct aq_jinja_parser *p, uint32_t node)
{
    struct aq_jinja_chain items = {0}, named = {0};
    bool comma = false;
    if (!aq_jinja_expect_sign(p, "("))
        return false;
    while (p->rc == 0 && !aq_jinja_is_sign(p, ")")) {
        if (comma && !aq_jinja_expect_sign(p, ","))
            return false;
        if (comma && aq_jinja_is_sign(p, ")"))
            break;
        comma = true;
        uint32_t line = p->token->line;
        if (aq_jinja_is_sign(p, "*") || aq_jinja_is_sign(p, "**"))
            return aq_jinja_parse_fail(p, line, "arguments by '*' are not supported");
        if (p->token->kind == AQ_JINJA_TOKEN_NAME && p->token[1].kind == AQ_JINJA_TOKEN_SIGN &&
            aq_text_is(p->token[1].text, "=")) {
            struct aq_text name = p->token->text;
            p->token += 2;
            uint32_t value = aq_jinja_parse_expression(p);
            aq_jinja_append(p, &named, value ? add_text(p, AQ_JINJA_NAMED, line, value, name) : 0);
            continue;
        }
        if (named.first)
            return aq_jinja_parse_fail(p, line, "an argument without a name behind one with");
        aq_jinja_append(p, &items, aq_jinja_parse_expression(p));
    }
    if (!aq_jinja_expect_sign(p, ")"))
        return false;
    aq_jinja_at(p, node)->second = items.first;
    aq_jinja_at(p, node)->third = named.first;
    return true;
}

/* A method nobody knows is refused here, where its line is known. */
static bool check_callee(struct aq_jinja_parser *p, uint32_t callee)
{
    const struct aq_jinja_node *n = aq_jinja_at(p, callee);
    char name[64];
    if (n->kind != AQ_JINJA_ATTRIBUTE || aq_jinja_method_known(n->text))
        return true;
    return aq_jinja_parse_fail(p, n->line, "method '%s' is not supported",
                               aq_quote(name, sizeof(name), n->text.bytes, n->text.count));
}

static uint32_t parse_call(struct aq_jinja_parser *p, uint32_t callee)
{
    uint32_t line = p->token->line;
    uint32_t node = check_callee(p, callee) ? add1(p, AQ_JINJA_CALL, line, callee) : 0;
    return node && parse_arguments(p, node) ? node : 0;
}

/* What stands in brackets: an expression or a slice. */
static uint32_t parse_key(struct aq_jinja_parser *p)
{
    uint32_t line = p->token->line, part[3] = {0};
    int colons = 0;
    for (; p->rc == 0 && colons < 3; colons++) {
        if (!aq_jinja_is_sign(p, ":") && !aq_jinja_is_sign(p, "]"))
            part[colons] = aq_jinja_parse_expression(p);
        if (colons == 2 || !aq_jinja_skip_sign(p, ":"))
            break;
    }
    char found[48];
    if (p->rc == 0 && aq_jinja_is_sign(p, ",")) {
        aq_jinja_parse_fail(p, line, "keys of more than one part are not supported");
        return 0;
    }
    if (!colons && !part[0]) {
        aq_jinja_parse_fail(p, line, "expected a key, found %s", aq_jinja_found(p, found));
        return 0;
    }
    if (!colons || p->rc < 0)
        return part[0];
    uint32_t node = add2(p, AQ_JINJA_SLICE, line, part[0], part[1]);
    if (node)
        aq_jinja_at(p, node)->third = part[2];
    return node;
}

static uint32_t parse_subscript(struct aq_jinja_parser *p, uint32_t object)
{
    uint32_t line = p->token->line;
    char found[48], name[64];
    if (aq_jinja_skip_sign(p, "[")) {
        uint32_t key = parse_key(p);
        return key && aq_jinja_expect_sign(p, "]") ? add2(p, AQ_JINJA_ITEM, line, object, key) : 0;
    }
    p->token++; /* the dot */
    const struct aq_jinja_token *t = p->token++;
    if (t->kind == AQ_JINJA_TOKEN_INTEGER) {
        uint32_t key = add1(p, AQ_JINJA_INTEGER, t->line, 0);
        if (key)
            aq_jinja_at(p, key)->integer = t->integer;
        return key ? add2(p, AQ_JINJA_ITEM, line, object, key) : 0;
    }
    if (t->kind != AQ_JINJA_TOKEN_NAME) {
        p->token--;
        aq_jinja_parse_fail(p, line, "expected a name behind '.', found %s",
                            aq_jinja_found(p, found));
        return 0;
    }
    if (t->text.count > 1 && t->text.bytes[0] == '_' && t->text.bytes[1] == '_') {
        aq_jinja_parse_fail(p, line, "attribute '%s': the sandbox forbids it",
                            aq_quote(name, sizeof(name), t->text.bytes, t->text.count));
        return 0;
    }
    return add_text(p, AQ_JINJA_ATTRIBUTE, line, object, t->text);
}

static uint32_t parse_postfix(struct aq_jinja_parser *p, uint32_t node)
{
    while (node && p->rc == 0) {
        if (aq_jinja_is_sign(p, ".") || aq_jinja_is_sign(p, "["))
            node = parse_subscript(p, node);
        else if (aq_jinja_is_sign(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return p->rc == 0 ? node : 0;
}

/* Name and arguments of a filter or a test. */
static uint32_t parse_named(struct aq_jinja_parser *p, enum aq_jinja_kind kind, uint32_t operand)
{
    uint32_t line = p->token->line;
    struct aq_text name;
    char shown[64];
    if (!aq_jinja_expect_name(p, &name))
        return 0;
    bool filter = kind == AQ_JINJA_FILTER;
    int which = filter ? aq_jinja_filter_find(name) : aq_jinja_test_find(name);
    if (which < 0) {
        aq_jinja_parse_fail(p, line, "%s '%s' is not supported", filter ? "filter" : "test",
                            aq_quote(shown, sizeof(shown), name.bytes, name.count));
        return 0;
    }
    uint32_t node = add1(p, kind, line, operand);
    if (!node)
        return 0;
    aq_jinja_at(p, node)->which = (uint8_t)which;
    if (aq_jinja_is_sign(p, "(") && !parse_arguments(p, node))
        return 0;
    return node;
}

uint32_t aq_jinja_parse_filters(struct aq_jinja_parser *p, uint32_t operand, bool bare)
{
    uint32_t node = operand;
    while (p->rc == 0 && (bare || aq_jinja_skip_sign(p, "|"))) {
        bare = false;
        node = parse_named(p, AQ_JINJA_FILTER, node);
    }
    return p->rc == 0 ? node : 0;
}

/* Whether a test's only argument follows without brackets. */
static bool begins_argument(const struct aq_jinja_parser *p)
{
    switch (p->token->kind) {
    case AQ_JINJA_TOKEN_STRING:
    case AQ_JINJA_TOKEN_INTEGER:
    case AQ_JINJA_TOKEN_REAL: return true;
    case AQ_JINJA_TOKEN_SIGN: return aq_jinja_is_sign(p, "[") || aq_jinja_is_sign(p, "{");
    case AQ_JINJA_TOKEN_NAME:
        return !aq_jinja_is_name(p, "else") && !aq_jinja_is_name(p, "or") &&
               !aq_jinja_is_name(p, "and");
    default: return false;
    }
}

static uint32_t parse_test(struct aq_jinja_parser *p, uint32_t operand)
{
    uint32_t line = p->token->line;
    bool negated = aq_jinja_skip_name(p, "not");
    uint32_t node = parse_named(p, AQ_JINJA_TEST, operand);
    if (node && !aq_jinja_at(p, node)->second && !aq_jinja_at(p, node)->third &&
        begins_argument(p)) {
        if (aq_jinja_is_name(p, "is")) {
            aq_jinja_parse_fail(p, line, "two tests in a row: write 'and' between them");
            return 0;
        }
        uint32_t argument = parse_postfix(p, parse_primary(p));
        if (!argument)
            return 0;
        aq_jinja_at(p, node)->second = argument;
    }
    return node && negated ? add1(p, AQ_JINJA_NOT, line, node) : node;
}

/* ---- operators, from those that bind most ---- */

static uint32_t parse_parenthesised(struct aq_jinja_parser *p)
{
    p->token++;
    uint32_t node = enter(p) ? parse_items(p, aq_jinja_parse_expression, NULL, true) : 0;
    p->depth--;
    return node && aq_jinja_expect_sign(p, ")") ? node : 0;
}

static uint32_t parse_primary(struct aq_jinja_parser *p)
{
    const struct aq_jinja_token *t = p->token;
    char found[48];
    uint32_t node;
    switch (t->kind) {
    case AQ_JINJA_TOKEN_NAME: return parse_name(p);
    case AQ_JINJA_TOKEN_STRING: return parse_strings(p);
    case AQ_JINJA_TOKEN_INTEGER:
    case AQ_JINJA_TOKEN_REAL:
        p->token++;
        node =
            add1(p, t->kind == AQ_JINJA_TOKEN_REAL ? AQ_JINJA_REAL : AQ_JINJA_INTEGER, t->line, 0);
        if (node && t->kind == AQ_JINJA_TOKEN_REAL)
            aq_jinja_at(p, node)->real = t->real;
        else if (node)
            aq_jinja_at(p, node)->integer = t->integer;
        return node;
    default: break;
    }
    if (aq_jinja_is_sign(p, "("))
        return parse_parenthesised(p);
    if (aq_jinja_is_sign(p, "["))
        return parse_list(p);
    if (aq_jinja_is_sign(p, "{"))
        return parse_dict(p);
    aq_jinja_parse_fail(p, t->line, "expected an expression, found %s", aq_jinja_found(p, found));
    return 0;
}

static uint32_t parse_unary(struct aq_jinja_parser *p, bool filters)
{
    uint32_t line = p->token->line, node;
    bool minus = aq_jinja_is_sign(p, "-");
    if (minus || aq_jinja_is_sign(p, "+")) {
        p->token++;
        node = enter(p) ? parse_unary(p, false) : 0;
        p->depth--;
        node = node ? add1(p, minus ? AQ_JINJA_MINUS : AQ_JINJA_PLUS, line, node) : 0;
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    while (filters && node && p->rc == 0) {
        if (aq_jinja_is_sign(p, "|"))
            node = aq_jinja_parse_filters(p, node, false);
        else if (aq_jinja_skip_name(p, "is"))
            node = parse_test(p, node);
        else if (aq_jinja_is_sign(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return p->rc == 0 ? node : 0;
}

struct level {
    const char *sign;
    enum aq_jinja_operator which;
};

/* left SIGN right SIGN ..., from left to right. */
static uint32_t parse_binary(struct aq_jinja_parser *p, const struct level *signs, size_t count,
                             uint32_t (*operand)(struct aq_jinja_parser *p))
{
    uint32_t left = operand(p);
    for (size_t i = 0; left && p->rc == 0 && i < count;) {
        uint32_t line = p->token->line;
        if (!aq_jinja_skip_sign(p, signs[i].sign)) {
            i++;
            continue;
        }
        uint32_t right = operand(p);
        left = right ? add2(p, AQ_JINJA_BINARY, line, left, right) : 0;
        if (left)
            aq_jinja_at(p, left)->which = (uint8_t)signs[i].which;
        i = 0;
    }
    return p->rc == 0 ? left : 0;
}

static uint32_t parse_unary_with_filters(struct aq_jinja_parser *p)
{
    return parse_unary(p, true);
}

static uint32_t parse_power(struct aq_jinja_parser *p)
{
    static const struct level signs[] = {{"**", AQ_JINJA_POW}};
    return parse_binary(p, signs, AQ_ARRAY_LEN(signs), parse_unary_with_filters);
}

static uint32_t parse_product(struct aq_jinja_parser *p)
{
    static const struct level signs[] = {
        {"*", AQ_JINJA_MUL}, {"/", AQ_JINJA_DIV}, {"//", AQ_JINJA_FLOORDIV}, {"%", AQ_JINJA_MOD}};
    return parse_binary(p, signs, AQ_ARRAY_LEN(signs), parse_power);
}

static uint32_t parse_concat(struct aq_jinja_parser *p)
{
    uint32_t line = p->token->line, first = parse_product(p);
    struct aq_jinja_chain items = {0};
    if (!first || !aq_jinja_is_sign(p, "~"))
        return first;
    aq_jinja_append(p, &items, first);
    while (p->rc == 0 && aq_jinja_skip_sign(p, "~"))
        aq_jinja_append(p, &items, parse_product(p));
    return add1(p, AQ_JINJA_CONCAT, line, items.first);
}

static uint32_t parse_sum(struct aq_jinja_parser *p)
{
    static const struct level signs[] = {{"+", AQ_JINJA_ADD}, {"-", AQ_JINJA_SUB}};
    return parse_binary(p, signs, AQ_ARRAY_LEN(signs), parse_concat);
}

/* The comparison that begins here. */
static bool skip_comparison(struct aq_jinja_parser *p, enum aq_jinja_operator *ret)
{
    static const struct level signs[] = {{"==", AQ_JINJA_EQ}, {"!=", AQ_JINJA_NE},
                                         {"<", AQ_JINJA_LT},  {"<=", AQ_JINJA_LE},
                                         {">", AQ_JINJA_GT},  {">=", AQ_JINJA_GE}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(signs); i++)
        if (aq_jinja_skip_sign(p, signs[i].sign)) {
            *ret = signs[i].which;
            return true;
        }
    *ret = AQ_JINJA_IN;
    if (aq_jinja_skip_name(p, "in"))
        return true;
    *ret = AQ_JINJA_NOT_IN;
    if (aq_jinja_is_name(p, "not") && p->token[1].kind == AQ_JINJA_TOKEN_NAME &&
        aq_text_is(p->token[1].text, "in")) {
        p->token += 2;
        return true;
    }
    return false;
}

static uint32_t parse_comparison(struct aq_jinja_parser *p)
{
    uint32_t line = p->token->line, left = parse_sum(p);
    struct aq_jinja_chain operands = {0};
    enum aq_jinja_operator which;
    while (left && p->rc == 0 && skip_comparison(p, &which)) {
        uint32_t right = parse_sum(p), node = right ? add1(p, AQ_JINJA_OPERAND, line, right) : 0;
        if (node)
            aq_jinja_at(p, node)->which = (uint8_t)which;
        aq_jinja_append(p, &operands, node);
    }
    return operands.first ? add2(p, AQ_JINJA_COMPARE, line, left, operands.first) : left;
}

static uint32_t parse_not(struct aq_jinja_parser *p)
{
    uint32_t line = p->token->line;
    if (!aq_jinja_skip_name(p, "not"))
        return parse_comparison(p);
    uint32_t node = enter(p) ? parse_not(p) : 0;
    p->depth--;
    return node ? add1(p, AQ_JINJA_NOT, line, node) : 0;
}

static uint32_t parse_and(struct aq_jinja_parser *p)
{
    uint32_t left = parse_not(p);
    for (uint32_t line = p->token->line; left && aq_jinja_skip_name(p, "and");
         line = p->token->line) {
        uint32_t right = parse_not(p);
        left = right ? add2(p, AQ_JINJA_AND, line, left, right) : 0;
    }
    return left;
}

static uint32_t parse_or(struct aq_jinja_parser *p)
{
    uint32_t left = parse_and(p);
    for (uint32_t line = p->token->line; left && aq_jinja_skip_name(p, "or");
         line = p->token->line) {
        uint32_t right = parse_and(p);
        left = right ? add2(p, AQ_JINJA_OR, line, left, right) : 0;
    }
    return left;
}

uint32_t aq_jinja_parse_expression(struct aq_jinja_parser *p)
{
    uint32_t node = enter(p) ? parse_or(p) : 0;
    for (uint32_t line = p->token->line; node && aq_jinja_skip_name(p, "if");
         line = p->token->line) {
        uint32_t test = parse_or(p), other = 0;
        if (test && aq_jinja_skip_name(p, "else") && !(other = aq_jinja_parse_expression(p)))
            test = 0;
        node = test ? add2(p, AQ_JINJA_COND, line, test, node) : 0;
        if (node)
            aq_jinja_at(p, node)->third = other;
    }
    p->depth--;
    return p->rc == 0 ? node : 0;
}
