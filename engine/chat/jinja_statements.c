/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/jinja_eval.h"

#include <string.h>

static const struct aq_jinja_node *at(const struct aq_jinja_run *r, uint32_t node)
{
    return &r->t->node[node];
}

/* ---- scopes ---- */

static struct aq_jinja_scope *open_scope(struct aq_jinja_run *r, struct aq_jinja_scope *parent)
{
    struct aq_jinja_scope *s = aq_jinja_take(r, sizeof(*s));
    if (s)
        *s = (struct aq_jinja_scope){.parent = parent};
    return s;
}

/* Statements in a scope of their own, which is given back as the current one afterwards. */
static bool execute_in(struct aq_jinja_run *r, struct aq_jinja_scope *scope, uint32_t first)
{
    struct aq_jinja_scope *before = r->scope;
    r->scope = scope;
    bool good = aq_jinja_execute(r, first);
    r->scope = before;
    return good;
}

/* What statements print, as a string. */
static bool capture(struct aq_jinja_run *r, struct aq_jinja_scope *scope, uint32_t first,
                    struct aq_jinja_value *ret)
{
    struct aq_buf text = {0}, *before = r->out;
    r->out = &text;
    bool good = execute_in(r, scope, first) && aq_jinja_from_buf(r, &text, ret);
    r->out = before;
    aq_buf_close(&text);
    return good;
}

static bool print(struct aq_jinja_run *r, struct aq_text t)
{
    aq_buf_put(r->out, t.bytes, t.count);
    if (r->out->failed)
        return aq_jinja_fail_memory(r);
    if (r->out->count > AQ_JINJA_OUTPUT_MAX)
        return aq_jinja_fail_bound(r, "the text becomes longer than %d MiB",
                                   AQ_JINJA_OUTPUT_MAX >> 20);
    return aq_jinja_work(r, t.count);
}

/* ---- assignment ---- */

static bool assign(struct aq_jinja_run *r, uint32_t target, struct aq_jinja_value v);

static bool assign_member(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                          struct aq_jinja_value v)
{
    for (struct aq_jinja_scope *s = r->scope; s; s = s->parent) {
        struct aq_jinja_value *owner = aq_jinja_get(&s->names, n->text);
        if (owner && aq_jinja_is(owner, AQ_JINJA_IS_NAMESPACE))
            return aq_jinja_put(r, owner->dict, at(r, n->first)->text, v);
        if (owner)
            break;
    }
    return aq_jinja_fail(r, "set: '%.*s' is no namespace", (int)n->text.count, n->text.bytes);
}

static bool unpack(struct aq_jinja_run *r, const struct aq_jinja_node *n, struct aq_jinja_value v)
{
    struct aq_jinja_list items;
    uint32_t want = 0;
    for (uint32_t i = n->first; i; i = at(r, i)->next)
        want++;
    if (!aq_jinja_iterate(r, &v, &items))
        return false;
    if (items.count != want)
        return aq_jinja_fail(r, "%u values for %u names", items.count, want);
    want = 0;
    for (uint32_t i = n->first; i; i = at(r, i)->next)
        if (!assign(r, i, items.item[want++]))
            return false;
    return true;
}

static bool assign(struct aq_jinja_run *r, uint32_t target, struct aq_jinja_value v)
{
    const struct aq_jinja_node *n = at(r, target);
    if (n->kind == AQ_JINJA_NAME)
        return aq_jinja_put(r, &r->scope->names, n->text, v);
    return n->kind == AQ_JINJA_MEMBER ? assign_member(r, n, v) : unpack(r, n, v);
}

static bool set(struct aq_jinja_run *r, const struct aq_jinja_node *n)
{
    struct aq_jinja_value v;
    if (n->kind == AQ_JINJA_SET)
        return aq_jinja_eval(r, n->second, &v) && assign(r, n->first, v);
    struct aq_jinja_scope *scope = open_scope(r, r->scope);
    struct aq_jinja_value text;
    if (!scope || !capture(r, scope, n->second, &text))
        return false;
    if (!n->third)
        return assign(r, n->first, text);
    return aq_jinja_eval_filters(r, n->third, &text, &v) && assign(r, n->first, v);
}

/* ---- loops ---- */

/* The items for which the loop's filter holds. */
static bool filter_items(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                         struct aq_jinja_list *items)
{
    struct aq_jinja_value kept, is;
    struct aq_jinja_scope *before = r->scope, *scope = open_scope(r, before);
    if (!scope || !aq_jinja_new_list(r, AQ_JINJA_IS_LIST, 0, &kept))
        return false;
    bool good = true;
    r->scope = scope;
    for (uint32_t i = 0; good && i < items->count; i++) {
        good = assign(r, n->first, items->item[i]) && aq_jinja_eval(r, n->fifth, &is) &&
               (!aq_jinja_truth(&is) || aq_jinja_push(r, kept.list, items->item[i]));
    }
    r->scope = before;
    *items = *kept.list;
    return good;
}

/* One round.  *ret_whole: its body came to its end. */
static bool iterate_once(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                         struct aq_jinja_scope *scope, struct aq_jinja_loop *loop, bool *ret_whole)
{
    const struct aq_jinja_value v = {.type = AQ_JINJA_IS_LOOP, .loop = loop};
    struct aq_jinja_scope *before = r->scope;
    r->scope = scope;
    bool good = aq_jinja_step(r) &&
                aq_jinja_put(r, &scope->names, (struct aq_text){"loop", 4}, v) &&
                assign(r, n->first, loop->items->item[loop->index]);
    good = good && aq_jinja_execute(r, n->third);
    r->scope = before;
    *ret_whole |= !r->leave;
    return good;
}

static bool iterate(struct aq_jinja_run *r, uint32_t node, struct aq_jinja_scope *outer,
                    const struct aq_jinja_value *iterated, uint32_t depth)
{
    const struct aq_jinja_node *n = at(r, node);
    struct aq_jinja_list *items = aq_jinja_take(r, sizeof(*items));
    struct aq_jinja_loop *loop = aq_jinja_take(r, sizeof(*loop));
    struct aq_jinja_scope *scope = open_scope(r, outer);
    bool whole = false;
    if (!items || !loop || !scope || !aq_jinja_iterate(r, iterated, items) ||
        (n->fifth && !filter_items(r, n, items)))
        return false;
    *loop = (struct aq_jinja_loop){
        .items = items, .depth = depth, .node = n->which ? node : 0, .outer = outer};
    for (; loop->index < items->count; loop->index++) {
        if (!iterate_once(r, n, scope, loop, &whole))
            return false;
        bool left = r->leave == AQ_JINJA_BREAK;
        r->leave = 0;
        if (left)
            break;
        scope->names.count = scope->captured ? scope->names.count : 0;
        if (scope->captured && !(scope = open_scope(r, outer)))
            return false;
    }
    /* as in jinja2, rounds that were left do not count */
    if (whole || !n->fourth)
        return true;
    scope = open_scope(r, outer);
    return scope && execute_in(r, scope, n->fourth);
}

static bool for_loop(struct aq_jinja_run *r, uint32_t node)
{
    struct aq_jinja_value iterated;
    return aq_jinja_eval(r, at(r, node)->second, &iterated) &&
           iterate(r, node, r->scope, &iterated, 0);
}

bool aq_jinja_call_loop(struct aq_jinja_run *r, const struct aq_jinja_loop *loop,
                        const struct aq_jinja_value *items, struct aq_jinja_value *ret)
{
    struct aq_buf text = {0}, *out = r->out;
    struct aq_jinja_scope *before = r->scope;
    r->out = &text;
    r->scope = loop->outer;
    bool good = iterate(r, loop->node, loop->outer, items, loop->depth + 1) &&
                aq_jinja_from_buf(r, &text, ret);
    r->scope = before;
    r->out = out;
    aq_buf_close(&text);
    return good;
}

/* ---- macros ---- */

static bool define(struct aq_jinja_run *r, uint32_t node)
{
    struct aq_jinja_macro *m = aq_jinja_take(r, sizeof(*m));
    if (!m)
        return false;
    *m = (struct aq_jinja_macro){.node = node, .scope = r->scope};
    for (struct aq_jinja_scope *s = r->scope; s; s = s->parent)
        s->captured = true;
    const struct aq_jinja_value v = {.type = AQ_JINJA_IS_MACRO, .macro = m};
    return aq_jinja_put(r, &r->scope->names, at(r, node)->text, v);
}

/* The named argument of a parameter; NULL. */
static const struct aq_jinja_value *named(const struct aq_jinja_arguments *a, struct aq_text name)
{
    for (uint32_t i = 0; i < a->named_count; i++)
        if (a->named[i].name.count == name.count &&
            !memcmp(a->named[i].name.bytes, name.bytes, name.count))
            return &a->named[i].value;
    return NULL;
}

/* Parameters into r->scope, the macro's own: a default may name those before it. */
static bool bind(struct aq_jinja_run *r, const struct aq_jinja_node *n,
                 const struct aq_jinja_arguments *a)
{
    uint32_t place = 0, used = 0;
    for (uint32_t i = n->first; i; i = at(r, i)->next, place++) {
        const struct aq_jinja_node *p = at(r, i);
        const struct aq_jinja_value *given = named(a, p->text);
        struct aq_jinja_value v = aq_jinja_undefined(p->text, NULL);
        if (given && place < a->count)
            return aq_jinja_fail(r, "macro '%.*s': argument '%.*s' is given twice",
                                 (int)n->text.count, n->text.bytes, (int)p->text.count,
                                 p->text.bytes);
        used += given != NULL;
        if (place < a->count)
            v = a->item[place];
        else if (given)
            v = *given;
        else if (p->first && !aq_jinja_eval(r, p->first, &v))
            return false;
        if (!aq_jinja_put(r, &r->scope->names, p->text, v))
            return false;
    }
    if (a->count > place || used < a->named_count)
        return aq_jinja_fail(r, "macro '%.*s' has other parameters than these arguments",
                             (int)n->text.count, n->text.bytes);
    return true;
}

bool aq_jinja_call_macro(struct aq_jinja_run *r, const struct aq_jinja_macro *m,
                         const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    const struct aq_jinja_node *n = at(r, m->node);
    struct aq_jinja_scope *before = r->scope, *scope = open_scope(r, m->scope);
    if (!scope)
        return false;
    r->scope = scope;
    bool good = bind(r, n, a);
    r->scope = before;
    return good && capture(r, scope, n->second, ret);
}

/* ---- the others ---- */

static bool if_else(struct aq_jinja_run *r, const struct aq_jinja_node *n)
{
    struct aq_jinja_value is;
    for (;;) {
        if (!aq_jinja_eval(r, n->first, &is))
            return false;
        if (aq_jinja_truth(&is))
            return aq_jinja_execute(r, n->second);
        const struct aq_jinja_node *other = at(r, n->third);
        if (!n->third)
            return true;
        if (other->kind != AQ_JINJA_IF || other->next) /* an else */
            return aq_jinja_execute(r, n->third);
        n = other;
    }
}

/* with: values are read outside of the new scope. */
static bool in_scope(struct aq_jinja_run *r, const struct aq_jinja_node *n)
{
    struct aq_jinja_value v;
    struct aq_jinja_scope *scope = open_scope(r, r->scope);
    for (uint32_t i = n->first; scope && i; i = at(r, i)->next)
        if (!aq_jinja_eval(r, at(r, i)->second, &v) ||
            !aq_jinja_put(r, &scope->names, at(r, at(r, i)->first)->text, v))
            return false;
    return scope && execute_in(r, scope, n->second);
}

static bool filter_block(struct aq_jinja_run *r, const struct aq_jinja_node *n)
{
    struct aq_jinja_value text, v;
    struct aq_jinja_scope *scope = open_scope(r, r->scope);
    return scope && capture(r, scope, n->second, &text) &&
           aq_jinja_eval_filters(r, n->first, &text, &v) && aq_jinja_str(r, &v, &v) &&
           print(r, aq_jinja_text(&v));
}

static bool output(struct aq_jinja_run *r, const struct aq_jinja_node *n)
{
    struct aq_jinja_value v;
    if (!aq_jinja_eval(r, n->first, &v))
        return false;
    if (aq_jinja_is(&v, AQ_JINJA_IS_STRING))
        return print(r, aq_jinja_text(&v));
    return aq_jinja_print(r, r->out, &v) && print(r, (struct aq_text){"", 0});
}

static bool execute_one(struct aq_jinja_run *r, uint32_t node)
{
    const struct aq_jinja_node *n = at(r, node);
    r->line = n->line;
    switch ((enum aq_jinja_kind)n->kind) {
    case AQ_JINJA_TEXT: return print(r, n->text);
    case AQ_JINJA_OUTPUT: return output(r, n);
    case AQ_JINJA_IF: return if_else(r, n);
    case AQ_JINJA_FOR: return for_loop(r, node);
    case AQ_JINJA_SET:
    case AQ_JINJA_SET_BLOCK: return set(r, n);
    case AQ_JINJA_MACRO: return define(r, node);
    case AQ_JINJA_BREAK:
    case AQ_JINJA_CONTINUE: r->leave = n->kind; return true;
    case AQ_JINJA_FILTER_BLOCK: return filter_block(r, n);
    default: return in_scope(r, n);
    }
}

bool aq_jinja_execute(struct aq_jinja_run *r, uint32_t first)
{
    if (r->depth++ >= AQ_JINJA_DEPTH_MAX)
        return aq_jinja_fail_bound(r, "more than %d evaluations in one another",
                                   AQ_JINJA_DEPTH_MAX);
    bool good = true;
    for (uint32_t i = first; good && i && !r->leave; i = at(r, i)->next)
        good = aq_jinja_step(r) && execute_one(r, i);
    r->depth--;
    return good;
}
