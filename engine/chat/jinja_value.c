/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/jinja_value.h"

#include "base/characters.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES_A_STEP = 64 };

/* ---- failing ---- */

static bool fail(struct aq_jinja_run *r, int code, const char *format, va_list args)
{
    if (r->rc < 0)
        return false;
    char text[600], shown[600];
    vsnprintf(text, sizeof(text), format, args);
    r->rc = aq_error(r->err, code, "line %u: %s", r->line,
                     aq_quote(shown, sizeof(shown), text, strlen(text)));
    return false;
}

bool aq_jinja_fail(struct aq_jinja_run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail(r, -EBADMSG, format, args);
    va_end(args);
    return false;
}

bool aq_jinja_fail_bound(struct aq_jinja_run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail(r, -E2BIG, format, args);
    va_end(args);
    return false;
}

bool aq_jinja_fail_memory(struct aq_jinja_run *r)
{
    if (r->rc == 0)
        r->rc = aq_error_memory(r->err, "rendering a chat template");
    return false;
}

bool aq_jinja_fail_undefined(struct aq_jinja_run *r, const struct aq_jinja_value *v)
{
    int count = (int)(v->count < 100 ? v->count : 100);
    if (v->which == AQ_JINJA_IS_ABSENT)
        return aq_jinja_fail(r, "'%.*s' is undefined", count, v->text);
    struct aq_jinja_value owner = {.type = v->which};
    if (v->which == AQ_JINJA_IS_NONE)
        return aq_jinja_fail(r, "'None' has no attribute '%.*s'", count, v->text);
    return aq_jinja_fail(r, "'%s object' has no attribute '%.*s'", aq_jinja_type_name(&owner),
                         count, v->text);
}

bool aq_jinja_step(struct aq_jinja_run *r)
{
    if (++r->steps > AQ_JINJA_STEPS_MAX)
        return aq_jinja_fail_bound(r, "the template takes more than %d steps", AQ_JINJA_STEPS_MAX);
    return true;
}

bool aq_jinja_work(struct aq_jinja_run *r, uint64_t bytes)
{
    r->steps += bytes / TEXT_BYTES_A_STEP;
    return aq_jinja_step(r);
}

/* ---- making ---- */

void *aq_jinja_take(struct aq_jinja_run *r, size_t bytes)
{
    void *memory = aq_arena_take(&r->arena, bytes);
    if (!memory && r->arena.over)
        aq_jinja_fail_bound(r, "the template takes more than %llu MiB of memory",
                            (unsigned long long)(r->arena.bytes_max >> 20));
    else if (!memory)
        aq_jinja_fail_memory(r);
    return memory;
}

struct aq_jinja_value aq_jinja_undefined(struct aq_text name, const struct aq_jinja_value *owner)
{
    return (struct aq_jinja_value){.type = AQ_JINJA_IS_UNDEFINED,
                                   .which = owner ? owner->type : AQ_JINJA_IS_ABSENT,
                                   .count = (uint32_t)name.count,
                                   .text = name.bytes};
}

bool aq_jinja_from_buf(struct aq_jinja_run *r, struct aq_buf *b, struct aq_jinja_value *ret)
{
    if (b->failed)
        return aq_jinja_fail_memory(r);
    char *text = aq_jinja_work(r, b->count) ? aq_jinja_take(r, b->count + 1) : NULL;
    if (text) {
        memcpy(text, b->count ? b->data : "", b->count);
        text[b->count] = '\0';
        *ret = aq_jinja_string(text, b->count);
    }
    aq_buf_clear(b);
    return text != NULL;
}

bool aq_jinja_new_list(struct aq_jinja_run *r, enum aq_jinja_type type, uint32_t capacity,
                       struct aq_jinja_value *ret)
{
    struct aq_jinja_list *l = aq_jinja_take(r, sizeof(*l));
    if (!l)
        return false;
    *l = (struct aq_jinja_list){.capacity = capacity};
    if (capacity && !(l->item = aq_jinja_take(r, capacity * sizeof(*l->item))))
        return false;
    *ret = (struct aq_jinja_value){.type = (uint8_t)type, .list = l};
    return true;
}

bool aq_jinja_push(struct aq_jinja_run *r, struct aq_jinja_list *l, struct aq_jinja_value v)
{
    if (l->count == l->capacity) {
        uint32_t capacity = l->capacity ? 2 * l->capacity : 4;
        struct aq_jinja_value *item = aq_jinja_take(r, capacity * sizeof(*item));
        if (!item)
            return false;
        if (l->count)
            memcpy(item, l->item, l->count * sizeof(*item));
        l->item = item;
        l->capacity = capacity;
    }
    l->item[l->count++] = v;
    return true;
}

bool aq_jinja_new_dict(struct aq_jinja_run *r, enum aq_jinja_type type, struct aq_jinja_value *ret)
{
    struct aq_jinja_dict *d = aq_jinja_take(r, sizeof(*d));
    if (!d)
        return false;
    *d = (struct aq_jinja_dict){0};
    *ret = (struct aq_jinja_value){.type = (uint8_t)type, .dict = d};
    return true;
}

struct aq_jinja_value *aq_jinja_get(const struct aq_jinja_dict *d, struct aq_text key)
{
    for (uint32_t i = 0; i < d->count; i++) {
        struct aq_jinja_entry *e = &d->entry[i];
        if (e->key.count == key.count && !memcmp(e->key.bytes, key.bytes, key.count))
            return &e->value;
    }
    return NULL;
}

/* A new key at the end, without looking for it. */
static bool add_entry(struct aq_jinja_run *r, struct aq_jinja_dict *d, struct aq_text key,
                      struct aq_jinja_value v)
{
    if (d->count == d->capacity) {
        uint32_t capacity = d->capacity ? 2 * d->capacity : 4;
        struct aq_jinja_entry *entry = aq_jinja_take(r, capacity * sizeof(*entry));
        if (!entry)
            return false;
        if (d->count)
            memcpy(entry, d->entry, d->count * sizeof(*entry));
        d->entry = entry;
        d->capacity = capacity;
    }
    d->entry[d->count++] = (struct aq_jinja_entry){key, v};
    return true;
}

bool aq_jinja_put(struct aq_jinja_run *r, struct aq_jinja_dict *d, struct aq_text key,
                  struct aq_jinja_value v)
{
    struct aq_jinja_value *have = aq_jinja_get(d, key);
    if (!aq_jinja_work(r, d->count))
        return false;
    if (!have)
        return add_entry(r, d, key, v);
    *have = v;
    return true;
}

/* Depth: the reader of the JSON bounds it. */
bool aq_jinja_from_json(struct aq_jinja_run *r, const json_t *json, struct aq_jinja_value *ret)
{
    struct aq_jinja_value v;
    const char *key;
    json_t *item;
    size_t i;
    bool good = aq_jinja_step(r);
    switch (json_typeof(json)) {
    case JSON_STRING:
        *ret = aq_jinja_string(json_string_value(json), json_string_length(json));
        return good;
    case JSON_INTEGER: *ret = aq_jinja_integer(json_integer_value(json)); return good;
    case JSON_REAL: *ret = aq_jinja_real(json_real_value(json)); return good;
    case JSON_ARRAY:
        good = good && aq_jinja_new_list(r, AQ_JINJA_IS_LIST, (uint32_t)json_array_size(json), ret);
        json_array_foreach(json, i, item) good =
            good && aq_jinja_from_json(r, item, &v) && aq_jinja_push(r, ret->list, v);
        return good;
    case JSON_OBJECT:
        good = good && aq_jinja_new_dict(r, AQ_JINJA_IS_DICT, ret);
        json_object_foreach((json_t *)json, key, item) good =
            good && aq_jinja_from_json(r, item, &v) &&
            add_entry(r, ret->dict, (struct aq_text){key, strlen(key)}, v);
        return good;
    case JSON_NULL: *ret = aq_jinja_of_type(AQ_JINJA_IS_NONE); return good;
    default: *ret = aq_jinja_bool(json_is_true(json)); return good;
    }
}

/* ---- looking ---- */

const char *aq_jinja_type_name(const struct aq_jinja_value *v)
{
    static const char *const name[] = {
        [AQ_JINJA_IS_ABSENT] = "nothing",    [AQ_JINJA_IS_UNDEFINED] = "Undefined",
        [AQ_JINJA_IS_NONE] = "NoneType",     [AQ_JINJA_IS_BOOL] = "bool",
        [AQ_JINJA_IS_INTEGER] = "int",       [AQ_JINJA_IS_REAL] = "float",
        [AQ_JINJA_IS_STRING] = "str",        [AQ_JINJA_IS_LIST] = "list",
        [AQ_JINJA_IS_TUPLE] = "tuple",       [AQ_JINJA_IS_RANGE] = "range",
        [AQ_JINJA_IS_VIEW] = "dict_items",   [AQ_JINJA_IS_ITERATOR] = "generator",
        [AQ_JINJA_IS_DICT] = "dict",         [AQ_JINJA_IS_NAMESPACE] = "Namespace",
        [AQ_JINJA_IS_LOOP] = "LoopContext",  [AQ_JINJA_IS_MACRO] = "Macro",
        [AQ_JINJA_IS_FUNCTION] = "function", [AQ_JINJA_IS_METHOD] = "builtin_function_or_method",
    };
    return name[v->type];
}

bool aq_jinja_truth(const struct aq_jinja_value *v)
{
    switch ((enum aq_jinja_type)v->type) {
    case AQ_JINJA_IS_ABSENT:
    case AQ_JINJA_IS_UNDEFINED:
    case AQ_JINJA_IS_NONE: return false;
    case AQ_JINJA_IS_BOOL:
    case AQ_JINJA_IS_INTEGER: return v->integer != 0;
    case AQ_JINJA_IS_REAL: return v->real != 0;
    case AQ_JINJA_IS_STRING: return v->count != 0;
    case AQ_JINJA_IS_LIST:
    case AQ_JINJA_IS_TUPLE:
    case AQ_JINJA_IS_RANGE:
    case AQ_JINJA_IS_VIEW: return v->list->count != 0;
    case AQ_JINJA_IS_DICT: return v->dict->count != 0;
    default: return true;
    }
}

static int sign_of(double x)
{
    return x < 0 ? -1 : x > 0;
}

/* Exact, also of an integer beyond 53 bits and a real. */
static int compare_numbers(const struct aq_jinja_value *a, const struct aq_jinja_value *b)
{
    if (aq_jinja_is_whole(a) && aq_jinja_is_whole(b))
        return (a->integer > b->integer) - (a->integer < b->integer);
    if (aq_jinja_is(a, AQ_JINJA_IS_REAL) && aq_jinja_is(b, AQ_JINJA_IS_REAL))
        return (a->real > b->real) - (a->real < b->real);
    bool real_first = aq_jinja_is(a, AQ_JINJA_IS_REAL);
    double real = real_first ? a->real : b->real;
    int64_t whole = real_first ? b->integer : a->integer;
    int order; /* of the whole one against the real one */
    if (real >= 0x1p63 || real < -0x1p63)
        order = real > 0 ? -1 : 1;
    else if (whole != (int64_t)floor(real))
        order = whole < (int64_t)floor(real) ? -1 : 1;
    else
        order = sign_of(floor(real) - real);
    return real_first ? -order : order;
}

static bool is_nan(const struct aq_jinja_value *v)
{
    return aq_jinja_is(v, AQ_JINJA_IS_REAL) && isnan(v->real);
}

static int compare_texts(const struct aq_jinja_value *a, const struct aq_jinja_value *b)
{
    int order = memcmp(a->text, b->text, a->count < b->count ? a->count : b->count);
    return order ? order : (a->count > b->count) - (a->count < b->count);
}

static bool equal_lists(struct aq_jinja_run *r, const struct aq_jinja_list *a,
                        const struct aq_jinja_list *b, bool *ret)
{
    *ret = a->count == b->count;
    for (uint32_t i = 0; i < a->count && *ret; i++)
        if (!aq_jinja_equal(r, &a->item[i], &b->item[i], ret))
            return false;
    return true;
}

static bool equal_dicts(struct aq_jinja_run *r, const struct aq_jinja_dict *a,
                        const struct aq_jinja_dict *b, bool *ret)
{
    *ret = a->count == b->count;
    for (uint32_t i = 0; i < a->count && *ret; i++) {
        const struct aq_jinja_value *other = aq_jinja_get(b, a->entry[i].key);
        *ret = other != NULL;
        if (!aq_jinja_work(r, b->count) ||
            (other && !aq_jinja_equal(r, &a->entry[i].value, other, ret)))
            return false;
    }
    return true;
}

bool aq_jinja_equal(struct aq_jinja_run *r, const struct aq_jinja_value *a,
                    const struct aq_jinja_value *b, bool *ret)
{
    if (!aq_jinja_step(r))
        return false;
    if (aq_jinja_is_number(a) && aq_jinja_is_number(b)) {
        *ret = !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
        return true;
    }
    *ret = false;
    if (a->type != b->type)
        return true;
    switch ((enum aq_jinja_type)a->type) {
    case AQ_JINJA_IS_STRING: *ret = compare_texts(a, b) == 0; return aq_jinja_work(r, a->count);
    case AQ_JINJA_IS_LIST:
    case AQ_JINJA_IS_TUPLE:
    case AQ_JINJA_IS_RANGE: {
        if (r->depth++ >= AQ_JINJA_DEPTH_MAX)
            return aq_jinja_fail_bound(r, "values are nested too deep");
        bool good = equal_lists(r, a->list, b->list, ret);
        r->depth--;
        return good;
    }
    case AQ_JINJA_IS_DICT: {
        if (r->depth++ >= AQ_JINJA_DEPTH_MAX)
            return aq_jinja_fail_bound(r, "values are nested too deep");
        bool good = equal_dicts(r, a->dict, b->dict, ret);
        r->depth--;
        return good;
    }
    case AQ_JINJA_IS_UNDEFINED:
    case AQ_JINJA_IS_NONE: *ret = true; return true;
    case AQ_JINJA_IS_FUNCTION: *ret = a->which == b->which; return true;
    default: *ret = a->list == b->list; return true; /* the same thing */
    }
}

bool aq_jinja_compare(struct aq_jinja_run *r, const struct aq_jinja_value *a,
                      const struct aq_jinja_value *b, int *ret)
{
    if (aq_jinja_is(a, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, a);
    if (aq_jinja_is(b, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, b);
    if (aq_jinja_is_number(a) && aq_jinja_is_number(b) && !is_nan(a) && !is_nan(b)) {
        *ret = compare_numbers(a, b);
        return true;
    }
    if (aq_jinja_is(a, AQ_JINJA_IS_STRING) && aq_jinja_is(b, AQ_JINJA_IS_STRING)) {
        *ret = compare_texts(a, b);
        return aq_jinja_work(r, a->count);
    }
    return aq_jinja_fail(r, "'%s' and '%s' have no order", aq_jinja_type_name(a),
                         aq_jinja_type_name(b));
}

static bool text_contains(struct aq_jinja_run *r, const struct aq_jinja_value *text,
                          const struct aq_jinja_value *item, bool *ret)
{
    if (aq_jinja_is(item, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, item);
    if (!aq_jinja_is(item, AQ_JINJA_IS_STRING))
        return aq_jinja_fail(r, "in: expected a string to look for in a string, found '%s'",
                             aq_jinja_type_name(item));
    *ret = !item->count || memmem(text->text, text->count, item->text, item->count) != NULL;
    return aq_jinja_work(r, text->count);
}

bool aq_jinja_contains(struct aq_jinja_run *r, const struct aq_jinja_value *container,
                       const struct aq_jinja_value *item, bool *ret)
{
    *ret = false;
    if (aq_jinja_is(container, AQ_JINJA_IS_STRING))
        return text_contains(r, container, item, ret);
    if (aq_jinja_is(container, AQ_JINJA_IS_DICT)) {
        *ret = aq_jinja_is(item, AQ_JINJA_IS_STRING) &&
               aq_jinja_get(container->dict, aq_jinja_text(item)) != NULL;
        return aq_jinja_work(r, container->dict->count);
    }
    struct aq_jinja_list items;
    if (!aq_jinja_iterate(r, container, &items))
        return false;
    for (uint32_t i = 0; i < items.count && !*ret; i++)
        if (!aq_jinja_equal(r, &items.item[i], item, ret))
            return false;
    return true;
}

size_t aq_jinja_characters(struct aq_text t)
{
    size_t n = 0;
    for (size_t i = 0; i < t.count; i++)
        n += ((unsigned char)t.bytes[i] & 0xc0) != 0x80;
    return n;
}

size_t aq_jinja_offset(struct aq_text t, size_t character)
{
    size_t at = 0;
    while (character-- && at < t.count)
        at += aq_character_bytes(t.bytes[at]);
    return at;
}

static bool iterate_text(struct aq_jinja_run *r, struct aq_text t, struct aq_jinja_list *ret)
{
    for (size_t at = 0; at < t.count;) {
        size_t bytes = aq_character_bytes(t.bytes[at]);
        if (!aq_jinja_step(r) || !aq_jinja_push(r, ret, aq_jinja_string(t.bytes + at, bytes)))
            return false;
        at += bytes;
    }
    return true;
}

bool aq_jinja_iterate(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                      struct aq_jinja_list *ret)
{
    *ret = (struct aq_jinja_list){0};
    if (aq_jinja_is(v, AQ_JINJA_IS_ITERATOR)) {
        ret->count = ret->capacity = v->list->count - v->list->at;
        ret->item = ret->count ? v->list->item + v->list->at : NULL;
        v->list->at = v->list->count;
        return true;
    }
    if (aq_jinja_has_items(v)) {
        *ret = *v->list;
        ret->capacity = ret->count; /* a push would make a copy */
        return true;
    }
    if (aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED))
        return true;
    if (aq_jinja_is(v, AQ_JINJA_IS_STRING))
        return iterate_text(r, aq_jinja_text(v), ret);
    if (!aq_jinja_is(v, AQ_JINJA_IS_DICT))
        return aq_jinja_fail(r, "'%s' cannot be iterated over", aq_jinja_type_name(v));
    for (uint32_t i = 0; i < v->dict->count; i++) {
        struct aq_text key = v->dict->entry[i].key;
        if (!aq_jinja_push(r, ret, aq_jinja_string(key.bytes, key.count)))
            return false;
    }
    return true;
}

bool aq_jinja_length(struct aq_jinja_run *r, const struct aq_jinja_value *v, int64_t *ret)
{
    switch ((enum aq_jinja_type)v->type) {
    case AQ_JINJA_IS_STRING:
        *ret = (int64_t)aq_jinja_characters(aq_jinja_text(v));
        return aq_jinja_work(r, v->count);
    case AQ_JINJA_IS_LIST:
    case AQ_JINJA_IS_TUPLE:
    case AQ_JINJA_IS_RANGE:
    case AQ_JINJA_IS_VIEW: *ret = v->list->count; return true;
    case AQ_JINJA_IS_DICT: *ret = v->dict->count; return true;
    case AQ_JINJA_IS_LOOP: *ret = v->loop->items->count; return true;
    case AQ_JINJA_IS_UNDEFINED: *ret = 0; return true;
    default: return aq_jinja_fail(r, "'%s' has no length", aq_jinja_type_name(v));
    }
}
