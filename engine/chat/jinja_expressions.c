/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/jinja_eval.h"

#include <string.h>

static const struct aq_jinja_node *at(const struct aq_jinja_run *r, uint32_t node)
{
    return &r->t->node[node];
}

/* ---- names ---- */

static void look_up(struct aq_jinja_run *r, struct aq_text name, struct aq_jinja_value *ret)
{
    for (struct aq_jinja_scope *s = r->scope; s; s = s->parent) {
        r->steps += s->names.count / 8;
        const struct aq_jinja_value *have = aq_jinja_get(&s->names, name);
        if (have) {
            *ret = *have;
            return;
        }
    }
    if (!aq_jinja_function_of(name, ret))
        *ret = aq_jinja_undefined(name, NULL);
}

/* ---- literals ---- */

static bool eval_items(struct aq_jinja_run *r, uint32_t first, enum aq_jinja_type type,
                       struct aq_jinja_value *ret)
{
    struct aq_jinja_value v;
    if (!aq_jinja_new_list(r, type, 0, ret))
        return false;
    for (uint32_t i = first; i; i = at(r, i)->next)
        if (!aq_jinja_eval(r, i, &v) || !aq_jinja_push(r, ret->list, v))
            return false;
    return true;
}

static bool eval_dict(struct aq_jinja_run *r, uint32_t first, struct aq_jinja_value *ret)
{
    struct aq_jinja_value key, v;
    struct aq_text text;
    if (!aq_jinja_new_dict(r, AQ_JINJA_IS_DICT, ret))
        return false;
    for (uint32_t i = first; i; i = at(r, i)->next)
        if (!aq_jinja_eval(r, at(r, i)->first, &key) ||
            !aq_jinja_want_string(r, "a key of a dict", &key, &text) ||
            !aq_jinja_eval(r, at(r, i)->second, &v) || !aq_jinja_put(r, ret->dict, text, v))
            return false;
    return true;
}

/* ---- calls ---- */

static bool eval_arguments(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                           struct aq_jinja_arguments *ret)
{
    struct aq_jinja_value items;
    *ret = (struct aq_jinja_arguments){0};
    if (!n->second && !n->third)
        return true;
    if (!eval_items(r, n->second, AQ_JINJA_IS_LIST, &items))
        return false;
    ret->item = items.list->item;
    ret->count = items.list->count;
    uint32_t count = 0;
    for (uint32_t i = n->third; i; i = at(r, i)->next)
        count++;
    if (!count)
        return true;
    struct aq_jinja_named_value *named = aq_jinja_take(r, count * sizeof(*named));
    ret->named = named;
    for (uint32_t i = n->third; named && i; i = at(r, i)->next) {
        named[ret->named_count].name = at(r, i)->text;
        if (!aq_jinja_eval(r, at(r, i)->first, &named[ret->named_count++].value))
            return false;
    }
    return named != NULL;
}

static bool call(struct aq_jinja_run *r, const struct aq_jinja_node *n, struct aq_jinja_value *ret)
{
    struct aq_jinja_value callee;
    struct aq_jinja_arguments a;
    if (!aq_jinja_eval(r, n->first, &callee) || !eval_arguments(r, n, &a))
        return false;
    r->line = n->line;
    switch ((enum aq_jinja_type)callee.type) {
    case AQ_JINJA_IS_METHOD: return aq_jinja_method(r, &callee, &a, ret);
    case AQ_JINJA_IS_FUNCTION: return aq_jinja_function(r, &callee, &a, ret);
    case AQ_JINJA_IS_MACRO: return r->call_macro(r, callee.macro, &a, ret);
    case AQ_JINJA_IS_LOOP:
        if (a.count != 1 || a.named_count || !callee.loop->node)
            return aq_jinja_fail(r, "loop(): expected one argument, in a loop that is recursive");
        return r->call_loop(r, callee.loop, &a.item[0], ret);
    case AQ_JINJA_IS_UNDEFINED: return aq_jinja_fail_undefined(r, &callee);
    default: return aq_jinja_fail(r, "'%s' cannot be called", aq_jinja_type_name(&callee));
    }
}

/* ---- filters and tests ---- */

bool aq_jinja_eval_filters(struct aq_jinja_run *r, uint32_t node, const struct aq_jinja_value *self,
                           struct aq_jinja_value *ret)
{
    const struct aq_jinja_node *n = at(r, node);
    struct aq_jinja_value operand;
    struct aq_jinja_arguments a;
    if (r->depth++ >= AQ_JINJA_DEPTH_MAX)
        return aq_jinja_fail_bound(r, "more than %d evaluations in one another",
                                   AQ_JINJA_DEPTH_MAX);
    bool good = n->first && at(r, n->first)->kind == AQ_JINJA_FILTER
                    ? aq_jinja_eval_filters(r, n->first, self, &operand)
                    : true;
    if (good && !n->first)
        operand = *self;
    else if (good && at(r, n->first)->kind != AQ_JINJA_FILTER)
        good = aq_jinja_eval(r, n->first, &operand);
    good = good && eval_arguments(r, n, &a);
    r->line = n->line;
    good = good && aq_jinja_filter(r, n->which, &operand, &a, ret);
    r->depth--;
    return good;
}

static bool test(struct aq_jinja_run *r, const struct aq_jinja_node *n, struct aq_jinja_value *ret)
{
    struct aq_jinja_value operand;
    struct aq_jinja_arguments a;
    bool is;
    if (!aq_jinja_eval(r, n->first, &operand) || !eval_arguments(r, n, &a))
        return false;
    r->line = n->line;
    if (!aq_jinja_test(r, n->which, &operand, &a, &is))
        return false;
    *ret = aq_jinja_bool(is);
    return true;
}

/* ---- operators ---- */

static bool item(struct aq_jinja_run *r, const struct aq_jinja_node *n, struct aq_jinja_value *ret)
{
    struct aq_jinja_value object, key, part[3];
    const struct aq_jinja_node *k = at(r, n->second);
    if (!aq_jinja_eval(r, n->first, &object))
        return false;
    if (k->kind != AQ_JINJA_SLICE) {
        bool good = aq_jinja_eval(r, n->second, &key);
        r->line = n->line;
        return good && aq_jinja_item(r, &object, &key, ret);
    }
    const uint32_t nodes[3] = {k->first, k->second, k->third};
    for (int i = 0; i < 3; i++) {
        part[i] = aq_jinja_of_type(AQ_JINJA_IS_ABSENT);
        if (nodes[i] && !aq_jinja_eval(r, nodes[i], &part[i]))
            return false;
    }
    r->line = n->line;
    return aq_jinja_slice(r, &object, part, ret);
}

static bool compare_once(struct aq_jinja_run *r, enum aq_jinja_operator which,
                         const struct aq_jinja_value *a, const struct aq_jinja_value *b, bool *ret)
{
    int order = 0;
    if (which == AQ_JINJA_IN || which == AQ_JINJA_NOT_IN) {
        bool good = aq_jinja_contains(r, b, a, ret);
        *ret = *ret != (which == AQ_JINJA_NOT_IN);
        return good;
    }
    if (which == AQ_JINJA_EQ || which == AQ_JINJA_NE) {
        bool good = aq_jinja_equal(r, a, b, ret);
        *ret = *ret != (which == AQ_JINJA_NE);
        return good;
    }
    if (!aq_jinja_compare(r, a, b, &order))
        return false;
    *ret = which == AQ_JINJA_LT   ? order < 0
           : which == AQ_JINJA_LE ? order <= 0
           : which == AQ_JINJA_GT ? order > 0
                                  : order >= 0;
    return true;
}

/* a < b < c: each with the next, until one does not hold. */
static bool compare(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                    struct aq_jinja_value *ret)
{
    struct aq_jinja_value left, right;
    bool is = true;
    if (!aq_jinja_eval(r, n->first, &left))
        return false;
    for (uint32_t i = n->second; i && is; i = at(r, i)->next) {
        if (!aq_jinja_eval(r, at(r, i)->first, &right))
            return false;
        r->line = n->line;
        if (!compare_once(r, (enum aq_jinja_operator)at(r, i)->which, &left, &right, &is))
            return false;
        left = right;
    }
    *ret = aq_jinja_bool(is);
    return true;
}

static bool concat(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                   struct aq_jinja_value *ret)
{
    struct aq_jinja_value v;
    *ret = aq_jinja_string("", 0);
    for (uint32_t i = n->first; i; i = at(r, i)->next) {
        struct aq_jinja_value text = aq_jinja_string("", 0), before = *ret;
        if (!aq_jinja_eval(r, i, &v))
            return false;
        if (!aq_jinja_is(&v, AQ_JINJA_IS_UNDEFINED) && !aq_jinja_str(r, &v, &text))
            return false;
        text.which = 0; /* escapes nothing here */
        if (!aq_jinja_operate(r, AQ_JINJA_ADD, &before, &text, ret))
            return false;
    }
    return true;
}

static bool logic(struct aq_jinja_run *r, const struct aq_jinja_node *n, struct aq_jinja_value *ret)
{
    if (!aq_jinja_eval(r, n->first, ret))
        return false;
    if (n->kind == AQ_JINJA_NOT) {
        *ret = aq_jinja_bool(!aq_jinja_truth(ret));
        return true;
    }
    return aq_jinja_truth(ret) == (n->kind == AQ_JINJA_OR) || aq_jinja_eval(r, n->second, ret);
}

static bool conditional(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                        struct aq_jinja_value *ret)
{
    struct aq_jinja_value is;
    if (!aq_jinja_eval(r, n->first, &is))
        return false;
    if (aq_jinja_truth(&is))
        return aq_jinja_eval(r, n->second, ret);
    if (n->third)
        return aq_jinja_eval(r, n->third, ret);
    static const char name[] = "the inline if without else";
    *ret = aq_jinja_undefined((struct aq_text){name, sizeof(name) - 1}, NULL);
    return true;
}

static bool eval_operator(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                          struct aq_jinja_value *ret)
{
    struct aq_jinja_value a, b;
    if (n->kind == AQ_JINJA_ITEM)
        return item(r, n, ret);
    if (!aq_jinja_eval(r, n->first, &a))
        return false;
    if (n->kind == AQ_JINJA_BINARY && !aq_jinja_eval(r, n->second, &b))
        return false;
    r->line = n->line;
    switch ((enum aq_jinja_kind)n->kind) {
    case AQ_JINJA_ATTRIBUTE: return aq_jinja_attribute(r, &a, n->text, ret);
    case AQ_JINJA_BINARY: return aq_jinja_operate(r, (enum aq_jinja_operator)n->which, &a, &b, ret);
    default: return aq_jinja_negate(r, &a, n->kind == AQ_JINJA_MINUS, ret);
    }
}

static bool eval_node(struct aq_jinja_run *r, uint32_t node, struct aq_jinja_value *ret)
{
    const struct aq_jinja_node *n = at(r, node);
    r->line = n->line;
    switch ((enum aq_jinja_kind)n->kind) {
    case AQ_JINJA_NONE: *ret = aq_jinja_of_type(AQ_JINJA_IS_NONE); return true;
    case AQ_JINJA_BOOL: *ret = aq_jinja_bool(n->integer); return true;
    case AQ_JINJA_INTEGER: *ret = aq_jinja_integer(n->integer); return true;
    case AQ_JINJA_REAL: *ret = aq_jinja_real(n->real); return true;
    case AQ_JINJA_STRING: *ret = aq_jinja_string(n->text.bytes, n->text.count); return true;
    case AQ_JINJA_NAME: look_up(r, n->text, ret); return true;
    case AQ_JINJA_LIST: return eval_items(r, n->first, AQ_JINJA_IS_LIST, ret);
    case AQ_JINJA_TUPLE: return eval_items(r, n->first, AQ_JINJA_IS_TUPLE, ret);
    case AQ_JINJA_DICT: return eval_dict(r, n->first, ret);
    case AQ_JINJA_CALL: return call(r, n, ret);
    case AQ_JINJA_FILTER: return aq_jinja_eval_filters(r, node, NULL, ret);
    case AQ_JINJA_TEST: return test(r, n, ret);
    case AQ_JINJA_COND: return conditional(r, n, ret);
    case AQ_JINJA_OR:
    case AQ_JINJA_AND:
    case AQ_JINJA_NOT: return logic(r, n, ret);
    case AQ_JINJA_COMPARE: return compare(r, n, ret);
    case AQ_JINJA_CONCAT: return concat(r, n, ret);
    default: return eval_operator(r, n, ret);
    }
}

bool aq_jinja_eval(struct aq_jinja_run *r, uint32_t node, struct aq_jinja_value *ret)
{
    if (!aq_jinja_step(r))
        return false;
    if (r->depth++ >= AQ_JINJA_DEPTH_MAX)
        return aq_jinja_fail_bound(r, "more than %d evaluations in one another",
                                   AQ_JINJA_DEPTH_MAX);
    bool good = eval_node(r, node, ret);
    r->depth--;
    return good;
}
