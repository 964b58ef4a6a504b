/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/jinja_lists.h"

#include <stdlib.h>
#include <string.h>

/* ---- paths ---- */

static bool is_given(const struct aq_jinja_value *v)
{
    return !aq_jinja_is(v, AQ_JINJA_IS_ABSENT) && !aq_jinja_is(v, AQ_JINJA_IS_NONE);
}

bool aq_jinja_path(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                   const struct aq_jinja_value *path, struct aq_jinja_value *ret)
{
    struct aq_text rest;
    *ret = *v;
    if (aq_jinja_is_whole(path))
        return aq_jinja_item(r, v, path, ret);
    if (!aq_jinja_want_string(r, "an attribute", path, &rest))
        return false;
    for (bool more = true; more;) {
        const char *dot = rest.count ? memchr(rest.bytes, '.', rest.count) : NULL;
        size_t bytes = dot ? (size_t)(dot - rest.bytes) : rest.count;
        struct aq_jinja_value key = aq_jinja_string(rest.bytes, bytes);
        if (bytes && bytes < 10 && strspn(rest.bytes, "0123456789") >= bytes)
            key = aq_jinja_integer(atoi(rest.bytes));
        struct aq_jinja_value object = *ret;
        if (!aq_jinja_item(r, &object, &key, ret))
            return false;
        more = dot != NULL;
        rest = (struct aq_text){rest.bytes + bytes + more, rest.count - bytes - more};
    }
    return true;
}

bool aq_jinja_map_attribute(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                            const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    struct aq_jinja_value p[AQ_JINJA_PARAMETERS_MAX];
    struct aq_jinja_list items;
    if (!aq_jinja_bind(r, "map", "attribute default", 1, a, p) ||
        !aq_jinja_iterate(r, self, &items) ||
        !aq_jinja_new_list(r, AQ_JINJA_IS_ITERATOR, items.count, ret))
        return false;
    for (uint32_t i = 0; i < items.count; i++) {
        struct aq_jinja_value v;
        if (!aq_jinja_step(r) || !aq_jinja_path(r, &items.item[i], &p[0], &v))
            return false;
        if (aq_jinja_is(&v, AQ_JINJA_IS_UNDEFINED) && is_given(&p[1]))
            v = p[1];
        if (!aq_jinja_push(r, ret->list, v))
            return false;
    }
    return true;
}

/* ---- order ---- */

/* What an item is compared by: itself or an attribute, without its case where it is a string. */
static bool sort_key(struct aq_jinja_run *r, const struct aq_jinja_value *item,
                     const struct aq_jinja_value *attribute, bool with_case,
                     struct aq_jinja_value *ret)
{
    *ret = *item;
    if (is_given(attribute) && !aq_jinja_path(r, item, attribute, ret))
        return false;
    return with_case || !aq_jinja_is(ret, AQ_JINJA_IS_STRING) ||
           aq_jinja_change_case(r, aq_jinja_text(ret), AQ_JINJA_LOWER, ret);
}

struct sorted {
    struct aq_jinja_value key, item;
};

/* Merges the sorted halves of `from` into `to`; what is equal keeps its order. */
static bool merge(struct aq_jinja_run *r, struct sorted *to, const struct sorted *from, size_t half,
                  size_t count, bool down)
{
    size_t a = 0, b = half;
    for (size_t i = 0; i < count; i++) {
        int order = a == half ? 1 : b == count ? -1 : 0;
        if (!order) {
            if (!aq_jinja_compare(r, &from[b].key, &from[a].key, &order))
                return false;
            order = (down ? order > 0 : order < 0) ? 1 : -1;
        }
        to[i] = from[order > 0 ? b++ : a++];
    }
    return true;
}

static bool sort(struct aq_jinja_run *r, struct sorted *items, struct sorted *scratch, size_t count,
                 bool down)
{
    size_t half = count / 2;
    if (count < 2)
        return true;
    if (!aq_jinja_work(r, count * 64) || !sort(r, items, scratch, half, down) ||
        !sort(r, items + half, scratch + half, count - half, down))
        return false;
    memcpy(scratch, items, count * sizeof(*items));
    return merge(r, items, scratch, half, count, down);
}

/* The items by their keys, as a list. */
static bool sorted_list(struct aq_jinja_run *r, struct sorted *items, size_t count, bool down,
                        struct aq_jinja_value *ret)
{
    struct sorted *scratch = aq_jinja_take(r, count * sizeof(*scratch));
    if (!scratch || !sort(r, items, scratch, count, down) ||
        !aq_jinja_new_list(r, AQ_JINJA_IS_LIST, (uint32_t)count, ret))
        return false;
    for (size_t i = 0; i < count; i++)
        ret->list->item[ret->list->count++] = items[i].item;
    return true;
}

bool aq_jinja_sort(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                   const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    if (!aq_jinja_iterate(r, self, &items))
        return false;
    struct sorted *sorted = aq_jinja_take(r, items.count * sizeof(*sorted));
    if (!sorted)
        return false;
    if (is_given(&p[2]) && aq_jinja_is(&p[2], AQ_JINJA_IS_STRING) &&
        memchr(p[2].text, ',', p[2].count))
        return aq_jinja_fail(r, "sort: more than one attribute is not supported");
    for (uint32_t i = 0; i < items.count; i++) {
        sorted[i].item = items.item[i];
        if (!sort_key(r, &items.item[i], &p[2], aq_jinja_truth(&p[1]), &sorted[i].key))
            return false;
    }
    return sorted_list(r, sorted, items.count, aq_jinja_truth(&p[0]), ret);
}

bool aq_jinja_dictsort(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_text by = {"key", 3};
    if (is_given(&p[1]) && !aq_jinja_want_string(r, "dictsort", &p[1], &by))
        return false;
    bool value = aq_text_is(by, "value");
    if (!value && !aq_text_is(by, "key"))
        return aq_jinja_fail(r, "dictsort: expected 'key' or 'value'");
    struct aq_jinja_value pairs;
    const struct aq_jinja_value none = aq_jinja_of_type(AQ_JINJA_IS_NONE);
    if (!aq_jinja_items(r, self, p, &pairs))
        return false;
    struct sorted *sorted = aq_jinja_take(r, pairs.list->count * sizeof(*sorted));
    if (!sorted)
        return false;
    for (uint32_t i = 0; i < pairs.list->count; i++) {
        sorted[i].item = pairs.list->item[i];
        if (!sort_key(r, &sorted[i].item.list->item[value], &none, aq_jinja_truth(&p[0]),
                      &sorted[i].key))
            return false;
    }
    return sorted_list(r, sorted, pairs.list->count, aq_jinja_truth(&p[2]), ret);
}

static bool extreme(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                    const struct aq_jinja_value *p, bool largest, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    struct aq_jinja_value best = {0}, key;
    if (!aq_jinja_iterate(r, self, &items))
        return false;
    *ret = aq_jinja_undefined((struct aq_text){"No aggregated item", 18}, NULL);
    for (uint32_t i = 0; i < items.count; i++) {
        int order = 1;
        if (!sort_key(r, &items.item[i], &p[1], aq_jinja_truth(&p[0]), &key) ||
            (i && !aq_jinja_compare(r, &key, &best, &order)))
            return false;
        if (i && (largest ? order <= 0 : order >= 0))
            continue;
        best = key;
        *ret = items.item[i];
    }
    return true;
}

bool aq_jinja_max(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                  const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return extreme(r, self, p, true, ret);
}

bool aq_jinja_min(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                  const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    return extreme(r, self, p, false, ret);
}

/* ---- parts and wholes ---- */

bool aq_jinja_items(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                    const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_value method;
    const struct aq_jinja_arguments none = {0};
    if (aq_jinja_is(self, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_new_list(r, AQ_JINJA_IS_ITERATOR, 0, ret);
    if (!aq_jinja_is(self, AQ_JINJA_IS_DICT))
        return aq_jinja_fail(r, "expected a mapping, found '%s'", aq_jinja_type_name(self));
    if (!aq_jinja_method_of(r, self, (struct aq_text){"items", 5}, &method) ||
        !aq_jinja_method(r, &method, &none, ret))
        return false;
    ret->type = AQ_JINJA_IS_ITERATOR;
    return true;
}

bool aq_jinja_to_list(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                      const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    if (!aq_jinja_iterate(r, self, &items) || !aq_jinja_new_list(r, AQ_JINJA_IS_LIST, 0, ret))
        return false;
    *ret->list = items; /* shared: lists do not change */
    return true;
}

bool aq_jinja_first(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                    const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    uint32_t at = aq_jinja_is(self, AQ_JINJA_IS_ITERATOR) ? self->list->at : 0;
    if (!aq_jinja_iterate(r, self, &items))
        return false;
    *ret = items.count ? items.item[0] : aq_jinja_undefined((struct aq_text){"first", 5}, NULL);
    if (aq_jinja_is(self, AQ_JINJA_IS_ITERATOR) && items.count)
        self->list->at = at + 1; /* the others are still there */
    return true;
}

/* Only what Python's reversed() takes. */
static bool iterate_back(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                         struct aq_jinja_list *ret)
{
    if (aq_jinja_is(self, AQ_JINJA_IS_ITERATOR))
        return aq_jinja_fail(r, "a generator cannot be reversed: write |list in front");
    if (aq_jinja_is(self, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, self);
    return aq_jinja_iterate(r, self, ret);
}

bool aq_jinja_last(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                   const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    if (!iterate_back(r, self, &items))
        return false;
    *ret = items.count ? items.item[items.count - 1]
                       : aq_jinja_undefined((struct aq_text){"last", 4}, NULL);
    return true;
}

bool aq_jinja_reverse(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                      const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    bool string = aq_jinja_is(self, AQ_JINJA_IS_STRING);
    /* jinja2 makes a list of what has no reverse order of its own */
    bool good = aq_jinja_is(self, AQ_JINJA_IS_ITERATOR) ? aq_jinja_iterate(r, self, &items)
                                                        : iterate_back(r, self, &items);
    if (!good || !aq_jinja_new_list(r, AQ_JINJA_IS_ITERATOR, items.count, ret))
        return false;
    for (uint32_t i = items.count; i-- > 0;)
        ret->list->item[ret->list->count++] = items.item[i];
    return !string || aq_jinja_join(r, (struct aq_text){"", 0}, ret->list, true, ret);
}

bool aq_jinja_join_filter(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_value separator = aq_jinja_string("", 0);
    struct aq_jinja_list items;
    if (!aq_jinja_is(&p[0], AQ_JINJA_IS_ABSENT) && !aq_jinja_str(r, &p[0], &separator))
        return false;
    struct aq_jinja_value mapped = *self;
    const struct aq_jinja_arguments attribute = {&p[1], NULL, 1, 0};
    if (is_given(&p[1]) && !aq_jinja_map_attribute(r, self, &attribute, &mapped))
        return false;
    return aq_jinja_iterate(r, &mapped, &items) &&
           aq_jinja_join(r, aq_jinja_text(&separator), &items, false, ret);
}

bool aq_jinja_sum(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                  const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    if (!aq_jinja_iterate(r, self, &items))
        return false;
    *ret = is_given(&p[1]) ? p[1] : aq_jinja_integer(0);
    for (uint32_t i = 0; i < items.count; i++) {
        struct aq_jinja_value v = items.item[i], sum = *ret;
        if ((is_given(&p[0]) && !aq_jinja_path(r, &items.item[i], &p[0], &v)) ||
            !aq_jinja_operate(r, AQ_JINJA_ADD, &sum, &v, ret))
            return false;
    }
    return true;
}

bool aq_jinja_unique(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                     const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    struct aq_jinja_value keys, key;
    if (!aq_jinja_iterate(r, self, &items) || !aq_jinja_new_list(r, AQ_JINJA_IS_LIST, 0, &keys) ||
        !aq_jinja_new_list(r, AQ_JINJA_IS_ITERATOR, 0, ret))
        return false;
    for (uint32_t i = 0; i < items.count; i++) {
        bool seen;
        if (!sort_key(r, &items.item[i], &p[1], aq_jinja_truth(&p[0]), &key) ||
            !aq_jinja_contains(r, &keys, &key, &seen))
            return false;
        if (!seen &&
            (!aq_jinja_push(r, keys.list, key) || !aq_jinja_push(r, ret->list, items.item[i])))
            return false;
    }
    return true;
}
