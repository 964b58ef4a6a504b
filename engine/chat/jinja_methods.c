/* SPDX-License-Identifier: Apache-2.0
 * Methods of strings, dicts, lists and of the variable `loop`. */
#include "engine/chat/jinja_value.h"

#include <string.h>

typedef bool method_fn(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_value *p, struct aq_jinja_value *ret);

static bool is_given(const struct aq_jinja_value *v)
{
    return !aq_jinja_is(v, AQ_JINJA_IS_ABSENT);
}

/* ---- strings ---- */

static bool strip(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                  const struct aq_jinja_value *p, bool left, bool right, struct aq_jinja_value *ret)
{
    struct aq_text characters, t = aq_jinja_text(self);
    bool all = !is_given(&p[0]) || aq_jinja_is(&p[0], AQ_JINJA_IS_NONE);
    if (!all && !aq_jinja_want_string(r, "strip", &p[0], &characters))
        return false;
    t = aq_jinja_strip(t, all ? NULL : &characters, left, right);
    *ret = aq_jinja_string(t.bytes, t.count);
    return aq_jinja_work(r, self->count);
}

static bool string_strip(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                         const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return strip(r, self, p, true, true, ret);
}

static bool string_lstrip(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return strip(r, self, p, true, false, ret);
}

static bool string_rstrip(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return strip(r, self, p, false, true, ret);
}

static bool split(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                  const struct aq_jinja_value *p, bool from_right, struct aq_jinja_value *ret)
{
    struct aq_text separator;
    int64_t count;
    bool words = !is_given(&p[0]) || aq_jinja_is(&p[0], AQ_JINJA_IS_NONE);
    return (words || aq_jinja_want_string(r, "split", &p[0], &separator)) &&
           aq_jinja_want_integer(r, "split", &p[1], -1, &count) &&
           aq_jinja_split(r, aq_jinja_text(self), words ? NULL : &separator, count, from_right,
                          ret);
}

static bool string_split(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                         const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return split(r, self, p, false, ret);
}

static bool string_rsplit(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return split(r, self, p, true, ret);
}

static bool string_splitlines(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                              const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return aq_jinja_split_lines(r, aq_jinja_text(self), aq_jinja_truth(&p[0]), ret);
}

/* Whether the text begins (or ends) with a string, or one of a tuple of them. */
static bool has_edge(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                     const struct aq_jinja_value *what, bool end, bool *ret)
{
    struct aq_text edge, t = aq_jinja_text(self);
    *ret = false;
    if (aq_jinja_is(what, AQ_JINJA_IS_TUPLE)) {
        bool good = true;
        for (uint32_t i = 0; good && !*ret && i < what->list->count; i++)
            good = aq_jinja_want_string(r, "startswith, endswith", &what->list->item[i], &edge) &&
                   has_edge(r, self, &what->list->item[i], end, ret);
        return good;
    }
    if (!aq_jinja_want_string(r, "startswith, endswith", what, &edge))
        return false;
    *ret = t.count >= edge.count &&
           !memcmp(t.bytes + (end ? t.count - edge.count : 0), edge.bytes, edge.count);
    return aq_jinja_work(r, edge.count);
}

static bool string_startswith(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                              const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    bool is;
    if (!has_edge(r, self, &p[0], false, &is))
        return false;
    *ret = aq_jinja_bool(is);
    return true;
}

static bool string_endswith(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                            const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    bool is;
    if (!has_edge(r, self, &p[0], true, &is))
        return false;
    *ret = aq_jinja_bool(is);
    return true;
}

static bool string_removeprefix(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                                const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    bool is;
    if (!has_edge(r, self, &p[0], false, &is))
        return false;
    uint32_t cut = is ? p[0].count : 0;
    *ret = aq_jinja_string(self->text + cut, self->count - cut);
    return true;
}

static bool string_removesuffix(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                                const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    bool is;
    if (!has_edge(r, self, &p[0], true, &is))
        return false;
    *ret = aq_jinja_string(self->text, self->count - (is ? p[0].count : 0));
    return true;
}

#define CASE_METHOD(name, to)                                                                      \
    static bool name(struct aq_jinja_run *r, const struct aq_jinja_value *self,                    \
                     const struct aq_jinja_value *p, struct aq_jinja_value *ret)                   \
    {                                                                                              \
        (void)p;                                                                                   \
        return aq_jinja_change_case(r, aq_jinja_text(self), to, ret);                              \
    }

CASE_METHOD(string_upper, AQ_JINJA_UPPER)
CASE_METHOD(string_lower, AQ_JINJA_LOWER)
CASE_METHOD(string_capitalize, AQ_JINJA_CAPITAL)
CASE_METHOD(string_title, AQ_JINJA_TITLE)

static bool string_replace(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                           const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_text old, with;
    int64_t count;
    return aq_jinja_want_string(r, "replace", &p[0], &old) &&
           aq_jinja_want_string(r, "replace", &p[1], &with) &&
           aq_jinja_want_integer(r, "replace", &p[2], -1, &count) &&
           aq_jinja_replace(r, aq_jinja_text(self), old, with, count, ret);
}

/* Character index of the first (or last) place; -1. */
static bool find(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                 const struct aq_jinja_value *p, bool last, struct aq_jinja_value *ret)
{
    struct aq_text what, t = aq_jinja_text(self);
    if (!aq_jinja_want_string(r, "find", &p[0], &what) || !aq_jinja_work(r, t.count))
        return false;
    size_t at = aq_jinja_find(t, what, 0), found = at;
    if (last && !what.count)
        found = t.count;
    for (; last && what.count && at != SIZE_MAX; at = aq_jinja_find(t, what, at + 1))
        found = at;
    *ret = aq_jinja_integer(
        found == SIZE_MAX ? -1 : (int64_t)aq_jinja_characters((struct aq_text){t.bytes, found}));
    return true;
}

static bool string_find(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                        const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return find(r, self, p, false, ret);
}

static bool string_rfind(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                         const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return find(r, self, p, true, ret);
}

static bool string_count(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                         const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_text what, t = aq_jinja_text(self);
    if (!aq_jinja_want_string(r, "count", &p[0], &what) || !aq_jinja_work(r, t.count))
        return false;
    int64_t n = what.count ? 0 : (int64_t)aq_jinja_characters(t) + 1;
    for (size_t at = 0; what.count && (at = aq_jinja_find(t, what, at)) != SIZE_MAX;
         at += what.count)
        n++;
    *ret = aq_jinja_integer(n);
    return true;
}

static bool string_join(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                        const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    return aq_jinja_iterate(r, &p[0], &items) &&
           aq_jinja_join(r, aq_jinja_text(self), &items, true, ret);
}

/* All characters are of a kind, and there are some.  ASCII alone. */
static bool all_of(struct aq_jinja_run *r, const struct aq_jinja_value *self, bool digits,
                   bool letters, struct aq_jinja_value *ret)
{
    bool all = self->count != 0;
    for (uint32_t i = 0; i < self->count; i++) {
        char c = self->text[i];
        if ((unsigned char)c >= 0x80)
            return aq_jinja_fail(r, "kinds of characters that are not ASCII are not supported");
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        all = all && ((letters && letter) || (digits && c >= '0' && c <= '9'));
    }
    *ret = aq_jinja_bool(all);
    return aq_jinja_work(r, self->count);
}

static bool string_isdigit(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                           const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return all_of(r, self, true, false, ret);
}

static bool string_isalpha(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                           const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return all_of(r, self, false, true, ret);
}

static bool string_isalnum(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                           const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return all_of(r, self, true, true, ret);
}

/* ---- dicts ---- */

static bool dict_get(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                     const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    const struct aq_jinja_value *have = aq_jinja_is(&p[0], AQ_JINJA_IS_STRING)
                                            ? aq_jinja_get(self->dict, aq_jinja_text(&p[0]))
                                            : NULL;
    *ret = have ? *have : is_given(&p[1]) ? p[1] : aq_jinja_of_type(AQ_JINJA_IS_NONE);
    return aq_jinja_work(r, self->dict->count);
}

static bool view(struct aq_jinja_run *r, const struct aq_jinja_dict *d, uint8_t which,
                 struct aq_jinja_value *ret)
{
    if (!aq_jinja_work(r, d->count) || !aq_jinja_new_list(r, AQ_JINJA_IS_VIEW, d->count, ret))
        return false;
    ret->which = which;
    for (uint32_t i = 0; i < d->count; i++) {
        const struct aq_jinja_entry *e = &d->entry[i];
        struct aq_jinja_value v = e->value, key = aq_jinja_string(e->key.bytes, e->key.count);
        if (which == 1)
            v = key;
        if (which == 0 && (!aq_jinja_new_list(r, AQ_JINJA_IS_TUPLE, 2, &v) ||
                           !aq_jinja_push(r, v.list, key) || !aq_jinja_push(r, v.list, e->value)))
            return false;
        if (!aq_jinja_push(r, ret->list, v))
            return false;
    }
    return true;
}

static bool dict_items(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return view(r, self->dict, 0, ret);
}

static bool dict_keys(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                      const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return view(r, self->dict, 1, ret);
}

static bool dict_values(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                        const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return view(r, self->dict, 2, ret);
}

/* ---- lists and the loop ---- */

static bool list_count(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < self->list->count; i++) {
        bool equal;
        if (!aq_jinja_equal(r, &self->list->item[i], &p[0], &equal))
            return false;
        n += equal;
    }
    *ret = aq_jinja_integer(n);
    return true;
}

static bool list_index(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    for (uint32_t i = 0; i < self->list->count; i++) {
        bool equal;
        if (!aq_jinja_equal(r, &self->list->item[i], &p[0], &equal))
            return false;
        *ret = aq_jinja_integer(i);
        if (equal)
            return true;
    }
    return aq_jinja_fail(r, "index: the value is not in the list");
}

/* Nothing can change the original. */
static bool copies(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                   const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    *ret = *self;
    return true;
}

static bool changes(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                    const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return aq_jinja_fail(r, "the sandbox forbids to change a '%s'", aq_jinja_type_name(self));
}

static bool loop_cycle(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    if (!a->count)
        return aq_jinja_fail(r, "cycle: expected values");
    *ret = a->item[self->loop->index % a->count];
    return true;
}

static bool loop_changed(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                         const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    struct aq_jinja_value now;
    bool same = false;
    if (!aq_jinja_new_list(r, AQ_JINJA_IS_TUPLE, a->count, &now))
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        now.list->item[now.list->count++] = a->item[i];
    struct aq_jinja_value *before = &self->loop->changed;
    if (is_given(before) && !aq_jinja_equal(r, before, &now, &same))
        return false;
    *before = now;
    *ret = aq_jinja_bool(!same);
    return true;
}

/* ---- by name ---- */

enum { OF_STRING = 1, OF_DICT = 2, OF_LIST = 4, OF_LOOP = 8, OF_TUPLE = 16 };

static const struct method {
    const char *name;
    unsigned types;
    method_fn *call;
    const char *parameters;
    uint32_t required;
    /* instead of call: takes arguments as they come */
    bool (*call_any)(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                     const struct aq_jinja_arguments *a, struct aq_jinja_value *ret);
} methods[] = {
    {"capitalize", OF_STRING, string_capitalize, "", 0, NULL},
    {"count", OF_STRING, string_count, "sub", 1, NULL},
    {"endswith", OF_STRING, string_endswith, "suffix", 1, NULL},
    {"find", OF_STRING, string_find, "sub", 1, NULL},
    {"isalnum", OF_STRING, string_isalnum, "", 0, NULL},
    {"isalpha", OF_STRING, string_isalpha, "", 0, NULL},
    {"isdigit", OF_STRING, string_isdigit, "", 0, NULL},
    {"join", OF_STRING, string_join, "iterable", 1, NULL},
    {"lower", OF_STRING, string_lower, "", 0, NULL},
    {"lstrip", OF_STRING, string_lstrip, "chars", 0, NULL},
    {"removeprefix", OF_STRING, string_removeprefix, "prefix", 1, NULL},
    {"removesuffix", OF_STRING, string_removesuffix, "suffix", 1, NULL},
    {"replace", OF_STRING, string_replace, "old new count", 2, NULL},
    {"rfind", OF_STRING, string_rfind, "sub", 1, NULL},
    {"rsplit", OF_STRING, string_rsplit, "sep maxsplit", 0, NULL},
    {"rstrip", OF_STRING, string_rstrip, "chars", 0, NULL},
    {"split", OF_STRING, string_split, "sep maxsplit", 0, NULL},
    {"splitlines", OF_STRING, string_splitlines, "keepends", 0, NULL},
    {"startswith", OF_STRING, string_startswith, "prefix", 1, NULL},
    {"strip", OF_STRING, string_strip, "chars", 0, NULL},
    {"title", OF_STRING, string_title, "", 0, NULL},
    {"upper", OF_STRING, string_upper, "", 0, NULL},
    {"get", OF_DICT, dict_get, "key default", 1, NULL},
    {"items", OF_DICT, dict_items, "", 0, NULL},
    {"keys", OF_DICT, dict_keys, "", 0, NULL},
    {"values", OF_DICT, dict_values, "", 0, NULL},
    {"count", OF_LIST | OF_TUPLE, list_count, "value", 1, NULL},
    {"index", OF_LIST | OF_TUPLE, list_index, "value", 1, NULL},
    {"copy", OF_LIST | OF_DICT, copies, "", 0, NULL},
    {"cycle", OF_LOOP, NULL, "", 0, loop_cycle},
    {"changed", OF_LOOP, NULL, "", 0, loop_changed},
    {"append", OF_LIST, changes, "x", 0, NULL},
    {"clear", OF_LIST | OF_DICT, changes, "", 0, NULL},
    {"extend", OF_LIST, changes, "x", 0, NULL},
    {"insert", OF_LIST, changes, "i x", 0, NULL},
    {"pop", OF_LIST | OF_DICT, changes, "i default", 0, NULL},
    {"popitem", OF_DICT, changes, "", 0, NULL},
    {"remove", OF_LIST, changes, "x", 0, NULL},
    {"reverse", OF_LIST, changes, "", 0, NULL},
    {"setdefault", OF_DICT, changes, "key default", 0, NULL},
    {"sort", OF_LIST, changes, "key reverse", 0, NULL},
    {"update", OF_DICT, changes, "x", 0, NULL},
};

bool aq_jinja_method_known(struct aq_text name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(methods); i++)
        if (aq_text_is(name, methods[i].name))
            return true;
    return false;
}

static unsigned type_bit(const struct aq_jinja_value *v)
{
    switch ((enum aq_jinja_type)v->type) {
    case AQ_JINJA_IS_STRING: return OF_STRING;
    case AQ_JINJA_IS_DICT: return OF_DICT;
    case AQ_JINJA_IS_LIST: return OF_LIST;
    case AQ_JINJA_IS_TUPLE: return OF_TUPLE;
    case AQ_JINJA_IS_LOOP: return OF_LOOP;
    default: return 0;
    }
}

bool aq_jinja_method_of(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                        struct aq_text name, struct aq_jinja_value *ret)
{
    unsigned type = type_bit(self);
    for (size_t i = 0; type && i < AQ_ARRAY_LEN(methods); i++) {
        if (!(methods[i].types & type) || !aq_text_is(name, methods[i].name))
            continue;
        struct aq_jinja_value *owner = aq_jinja_take(r, sizeof(*owner));
        if (!owner)
            return false;
        *owner = *self;
        *ret =
            (struct aq_jinja_value){.type = AQ_JINJA_IS_METHOD, .which = (uint8_t)i, .self = owner};
        return true;
    }
    return false;
}

bool aq_jinja_method(struct aq_jinja_run *r, const struct aq_jinja_value *method,
                     const struct aq_jinja_arguments *arguments, struct aq_jinja_value *ret)
{
    const struct method *m = &methods[method->which];
    struct aq_jinja_value p[AQ_JINJA_PARAMETERS_MAX];
    if (m->call_any)
        return m->call_any(r, method->self, arguments, ret);
    return aq_jinja_bind(r, m->name, m->parameters, m->required, arguments, p) &&
           m->call(r, method->self, p, ret);
}
