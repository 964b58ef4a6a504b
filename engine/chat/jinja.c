/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/jinja.h"

#include "base/buf.h"
#include "engine/chat/jinja_eval.h"
#include "engine/chat/jinja_parse.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TREE_BYTES_MAX = 64 << 20 };

void aq_jinja_close(struct aq_jinja *t)
{
    if (!t)
        return;
    aq_arena_close(&t->arena);
    free(t->name);
    free(t->node);
    free(t);
}

static int check_text(struct aq_text text, struct aq_err *reterr)
{
    if (text.count > AQ_JINJA_TEXT_MAX)
        return aq_error(reterr, -ENOEXEC, "expected at most %d bytes, found %zu", AQ_JINJA_TEXT_MAX,
                        text.count);
    size_t bad = aq_utf8_invalid_at(text.bytes, text.count);
    if (bad < text.count)
        return aq_error(reterr, -ENOEXEC, "byte %zu is not UTF-8", bad);
    return 0;
}

int aq_jinja_open(struct aq_jinja **ret, const char *name, struct aq_text text,
                  struct aq_err *reterr)
{
    assert(ret && name && text.bytes);
    struct aq_err unused, *err = reterr ? reterr : &unused;
    struct aq_jinja *t = calloc(1, sizeof(*t));
    if (!t)
        return aq_error_memory(err, "chat template '%s'", name);
    t->arena.bytes_max = TREE_BYTES_MAX;
    t->name = strdup(name);
    struct aq_jinja_tokens tokens = {0};
    int rc = t->name ? check_text(text, err) : aq_error_memory(err, "a name");
    if (rc == 0)
        rc = aq_jinja_lex(&tokens, &t->arena, text, err);
    if (rc == 0)
        rc = aq_jinja_parse(t, tokens.item, err);
    aq_jinja_tokens_close(&tokens);
    if (rc < 0) {
        aq_jinja_close(t);
        char shown[200];
        return aq_error_prefix(err, "chat template '%s'",
                               aq_quote(shown, sizeof(shown), name, strlen(name)));
    }
    *ret = t;
    return 0;
}

bool aq_jinja_names(const struct aq_jinja *t, const char *name)
{
    for (uint32_t i = 1; i < t->node_count; i++)
        if (t->node[i].kind == AQ_JINJA_NAME && aq_text_is(t->node[i].text, name))
            return true;
    return false;
}

/* Behind filters, conditions and slices: what a value is taken from. */
static const struct aq_jinja_node *source_of(const struct aq_jinja *t, uint32_t node)
{
    const struct aq_jinja_node *n = &t->node[node];
    for (;;) {
        bool slice = n->kind == AQ_JINJA_ITEM && t->node[n->second].kind == AQ_JINJA_SLICE;
        if (n->kind == AQ_JINJA_COND)
            n = &t->node[n->second];
        else if (n->kind == AQ_JINJA_FILTER || slice)
            n = &t->node[n->first];
        else
            return n;
    }
}

static bool is_member(const struct aq_jinja *t, const struct aq_jinja_node *n, const char *name)
{
    if (n->kind == AQ_JINJA_ATTRIBUTE)
        return aq_text_is(n->text, name);
    const struct aq_jinja_node *key = &t->node[n->second];
    return n->kind == AQ_JINJA_ITEM && key->kind == AQ_JINJA_STRING && aq_text_is(key->text, name);
}

/* Whether some assignment gives the member to the variable. */
static bool holds_member(const struct aq_jinja *t, struct aq_text variable, const char *name)
{
    for (uint32_t i = 1; i < t->node_count; i++) {
        const struct aq_jinja_node *n = &t->node[i], *target = &t->node[n->first];
        if (n->kind == AQ_JINJA_SET && target->kind == AQ_JINJA_NAME &&
            target->text.count == variable.count &&
            !memcmp(target->text.bytes, variable.bytes, variable.count) &&
            is_member(t, source_of(t, n->second), name))
            return true;
    }
    return false;
}

bool aq_jinja_iterates_member(const struct aq_jinja *t, const char *name)
{
    for (uint32_t i = 1; i < t->node_count; i++) {
        if (t->node[i].kind != AQ_JINJA_FOR)
            continue;
        const struct aq_jinja_node *n = source_of(t, t->node[i].second);
        if (is_member(t, n, name) || (n->kind == AQ_JINJA_NAME && (aq_text_is(n->text, name) ||
                                                                   holds_member(t, n->text, name))))
            return true;
    }
    return false;
}

/* Bytes of all strings, which bound what a rendering may take. */
static uint64_t text_bytes(const json_t *v)
{
    uint64_t bytes = 16;
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_string(v))
        bytes += json_string_length(v);
    json_array_foreach(v, i, item) bytes += text_bytes(item);
    json_object_foreach((json_t *)v, key, item) bytes += strlen(key) + text_bytes(item);
    return bytes;
}

int aq_jinja_render(struct aq_buf *out, const struct aq_jinja *t,
                    const struct aq_jinja_input *input, struct aq_err *reterr)
{
    assert(out && t && input && json_is_object(input->variables));
    struct aq_err unused, *err = reterr ? reterr : &unused;
    struct aq_jinja_scope context = {0}, root = {.parent = &context};
    struct aq_buf text = {0};
    struct aq_jinja_run r = {
        .t = t,
        .input = input,
        .arena.bytes_max =
            AQ_JINJA_MEMORY_MIN + AQ_JINJA_MEMORY_PER_TEXT_BYTE * text_bytes(input->variables),
        .scope = &root,
        .out = &text,
        .line = 1,
        .call_macro = aq_jinja_call_macro,
        .call_loop = aq_jinja_call_loop,
        .err = err,
    };
    struct aq_jinja_value variables;
    if (aq_jinja_from_json(&r, input->variables, &variables)) {
        context.names = *variables.dict;
        aq_jinja_execute(&r, t->body);
    }
    if (r.rc == 0 && text.count)
        aq_buf_put(out, text.data, text.count);
    if (r.rc == 0 && (text.failed || out->failed))
        aq_jinja_fail_memory(&r);
    aq_buf_close(&text);
    aq_arena_close(&r.arena);
    if (r.rc < 0 && r.rc != -ENOMEM)
        aq_error_prefix(err, "chat template '%s'", t->name);
    return r.rc;
}
