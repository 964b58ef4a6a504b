/* SPDX-License-Identifier: Apache-2.0
 * What Python's operators do with values.  Integers have 64 bits; beyond them is an error. */
#include "base/characters.h"
#include "engine/chat/jinja_value.h"

#include <math.h>
#include <string.h>

static const char *const operator_sign[] = {"+", "-", "*", "/", "//", "%", "**"};

static bool refuse_types(struct aq_jinja_run *r, enum aq_jinja_operator which,
                         const struct aq_jinja_value *a, const struct aq_jinja_value *b)
{
    if (aq_jinja_is(a, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, a);
    if (aq_jinja_is(b, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, b);
    if (which == AQ_JINJA_MOD && aq_jinja_is(a, AQ_JINJA_IS_STRING))
        return aq_jinja_fail(r, "formatting a string by '%%' is not supported");
    return aq_jinja_fail(r, "'%s' does not go between '%s' and '%s'", operator_sign[which],
                         aq_jinja_type_name(a), aq_jinja_type_name(b));
}

/* ---- numbers ---- */

static bool overflow(struct aq_jinja_run *r)
{
    return aq_jinja_fail(r, "an integer beyond 64 bits");
}

static bool power(struct aq_jinja_run *r, int64_t base, int64_t exponent,
                  struct aq_jinja_value *ret)
{
    if (exponent < 0) {
        if (!base)
            return aq_jinja_fail(r, "0 to a negative power");
        *ret = aq_jinja_real(pow((double)base, (double)exponent));
        return true;
    }
    int64_t x = 1;
    if (base == 0 || base == 1 || base == -1)
        exponent = exponent ? 2 - (exponent & 1) : 0;
    for (; exponent; exponent--)
        if (__builtin_mul_overflow(x, base, &x))
            return overflow(r);
    *ret = aq_jinja_integer(x);
    return true;
}

static bool whole(struct aq_jinja_run *r, enum aq_jinja_operator which, int64_t a, int64_t b,
                  struct aq_jinja_value *ret)
{
    int64_t x = 0;
    bool over = false;
    if (!b && (which == AQ_JINJA_DIV || which == AQ_JINJA_FLOORDIV || which == AQ_JINJA_MOD))
        return aq_jinja_fail(r, "division by zero");
    switch (which) {
    case AQ_JINJA_ADD: over = __builtin_add_overflow(a, b, &x); break;
    case AQ_JINJA_SUB: over = __builtin_sub_overflow(a, b, &x); break;
    case AQ_JINJA_MUL: over = __builtin_mul_overflow(a, b, &x); break;
    case AQ_JINJA_DIV: *ret = aq_jinja_real((double)((long double)a / (long double)b)); return true;
    case AQ_JINJA_POW: return power(r, a, b, ret);
    default: /* towards minus infinity */
        if (a == INT64_MIN && b == -1) {
            over = which == AQ_JINJA_FLOORDIV;
            break;
        }
        x = which == AQ_JINJA_MOD ? a % b : a / b;
        if (a % b && (a < 0) != (b < 0))
            x += which == AQ_JINJA_MOD ? b : -1;
    }
    if (over)
        return overflow(r);
    *ret = aq_jinja_integer(x);
    return true;
}

static bool real(struct aq_jinja_run *r, enum aq_jinja_operator which, double a, double b,
                 struct aq_jinja_value *ret)
{
    double x = 0;
    if (b == 0 && (which == AQ_JINJA_DIV || which == AQ_JINJA_FLOORDIV || which == AQ_JINJA_MOD))
        return aq_jinja_fail(r, "division by zero");
    switch (which) {
    case AQ_JINJA_ADD: x = a + b; break;
    case AQ_JINJA_SUB: x = a - b; break;
    case AQ_JINJA_MUL: x = a * b; break;
    case AQ_JINJA_DIV: x = a / b; break;
    case AQ_JINJA_POW: x = pow(a, b); break;
    default: { /* as float.__divmod__ */
        double rest = fmod(a, b), quotient = (a - rest) / b;
        if (rest != 0 && (b < 0) != (rest < 0)) {
            rest += b;
            quotient -= 1;
        }
        double floored = floor(quotient);
        if (quotient - floored > 0.5)
            floored += 1;
        if (rest == 0)
            rest = copysign(0.0, b);
        x = which == AQ_JINJA_MOD ? rest : floored;
    }
    }
    if (which == AQ_JINJA_POW && (isnan(x) || isinf(x)) && isfinite(a) && isfinite(b))
        return aq_jinja_fail(r, "a power that is no real number");
    *ret = aq_jinja_real(x);
    return true;
}

/* ---- sequences ---- */

/* What filter `safe` made (markup) escapes what it is joined with, as markupsafe does. */
static bool escape(struct aq_jinja_run *r, struct aq_jinja_value *v)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct aq_buf b = {0};
    for (uint32_t i = 0; i < v->count; i++) {
        const char *special = memchr(from, v->text[i], sizeof(from) - 1);
        if (special)
            aq_buf_puts(&b, to[special - from]);
        else
            aq_buf_put(&b, &v->text[i], 1);
    }
    bool good = aq_jinja_from_buf(r, &b, v);
    aq_buf_close(&b);
    return good;
}

static bool add_texts(struct aq_jinja_run *r, struct aq_jinja_value a, struct aq_jinja_value b,
                      struct aq_jinja_value *ret)
{
    uint8_t markup = a.which | b.which;
    if (markup && ((!a.which && !escape(r, &a)) || (!b.which && !escape(r, &b))))
        return false;
    size_t count = (size_t)a.count + b.count;
    if (count > AQ_JINJA_OUTPUT_MAX)
        return aq_jinja_fail_bound(r, "a joined text is too long");
    char *text = aq_jinja_work(r, count) ? aq_jinja_take(r, count) : NULL;
    if (!text)
        return false;
    memcpy(text, a.text, a.count);
    memcpy(text + a.count, b.text, b.count);
    *ret = aq_jinja_string(text, count);
    ret->which = markup;
    return true;
}

static bool add_lists(struct aq_jinja_run *r, const struct aq_jinja_value *a,
                      const struct aq_jinja_value *b, struct aq_jinja_value *ret)
{
    uint64_t count = (uint64_t)a->list->count + b->list->count;
    if (!aq_jinja_work(r, count * 16) || count > UINT32_MAX ||
        !aq_jinja_new_list(r, (enum aq_jinja_type)a->type, (uint32_t)count, ret))
        return false;
    bool good = true;
    for (uint32_t i = 0; good && i < a->list->count; i++)
        good = aq_jinja_push(r, ret->list, a->list->item[i]);
    for (uint32_t i = 0; good && i < b->list->count; i++)
        good = aq_jinja_push(r, ret->list, b->list->item[i]);
    return good;
}

/* A string, list or tuple, `times` over. */
static bool repeat(struct aq_jinja_run *r, const struct aq_jinja_value *v, int64_t times,
                   struct aq_jinja_value *ret)
{
    bool string = aq_jinja_is(v, AQ_JINJA_IS_STRING);
    uint64_t one = string ? v->count : v->list->count, count;
    times = times < 0 || !one ? 0 : times;
    if (__builtin_mul_overflow(one, (uint64_t)times, &count) || count > AQ_JINJA_OUTPUT_MAX)
        return aq_jinja_fail_bound(r, "a repeated value is too long");
    if (!aq_jinja_work(r, string ? count : count * 16))
        return false;
    if (!string) {
        if (!aq_jinja_new_list(r, (enum aq_jinja_type)v->type, (uint32_t)count, ret))
            return false;
        for (uint64_t i = 0; i < count; i++)
            ret->list->item[ret->list->count++] = v->list->item[i % one];
        return true;
    }
    char *text = aq_jinja_take(r, count);
    if (!text)
        return false;
    for (int64_t i = 0; i < times; i++)
        memcpy(text + (uint64_t)i * one, v->text, one);
    *ret = aq_jinja_string(text, count);
    return true;
}

static bool is_repeatable(const struct aq_jinja_value *v)
{
    return aq_jinja_is(v, AQ_JINJA_IS_STRING) || aq_jinja_is(v, AQ_JINJA_IS_LIST) ||
           aq_jinja_is(v, AQ_JINJA_IS_TUPLE);
}

bool aq_jinja_operate(struct aq_jinja_run *r, enum aq_jinja_operator which,
                      const struct aq_jinja_value *a, const struct aq_jinja_value *b,
                      struct aq_jinja_value *ret)
{
    if (aq_jinja_is_whole(a) && aq_jinja_is_whole(b))
        return whole(r, which, a->integer, b->integer, ret);
    if (aq_jinja_is_number(a) && aq_jinja_is_number(b))
        return real(r, which, aq_jinja_as_real(a), aq_jinja_as_real(b), ret);
    if (which == AQ_JINJA_ADD && a->type == b->type && is_repeatable(a))
        return aq_jinja_is(a, AQ_JINJA_IS_STRING) ? add_texts(r, *a, *b, ret)
                                                  : add_lists(r, a, b, ret);
    if (which == AQ_JINJA_MUL && is_repeatable(a) && aq_jinja_is_whole(b))
        return repeat(r, a, b->integer, ret);
    if (which == AQ_JINJA_MUL && is_repeatable(b) && aq_jinja_is_whole(a))
        return repeat(r, b, a->integer, ret);
    return refuse_types(r, which, a, b);
}

bool aq_jinja_negate(struct aq_jinja_run *r, const struct aq_jinja_value *a, bool minus,
                     struct aq_jinja_value *ret)
{
    if (aq_jinja_is(a, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, a);
    if (!aq_jinja_is_number(a))
        return aq_jinja_fail(r, "'%c' does not go in front of '%s'", minus ? '-' : '+',
                             aq_jinja_type_name(a));
    if (aq_jinja_is(a, AQ_JINJA_IS_REAL)) {
        *ret = aq_jinja_real(minus ? -a->real : a->real);
        return true;
    }
    if (minus && a->integer == INT64_MIN)
        return overflow(r);
    *ret = aq_jinja_integer(minus ? -a->integer : a->integer);
    return true;
}

/* ---- attributes and items ---- */

static bool loop_attribute(const struct aq_jinja_loop *l, struct aq_text name,
                           struct aq_jinja_value *ret)
{
    const struct {
        const char *name;
        int64_t value;
        bool is_bool;
    } numbers[] = {
        {"index", (int64_t)l->index + 1, false},
        {"index0", l->index, false},
        {"revindex", (int64_t)l->items->count - l->index, false},
        {"revindex0", (int64_t)l->items->count - l->index - 1, false},
        {"length", l->items->count, false},
        {"depth", (int64_t)l->depth + 1, false},
        {"depth0", l->depth, false},
        {"first", l->index == 0, true},
        {"last", l->index + 1 >= l->items->count, true},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(numbers); i++)
        if (aq_text_is(name, numbers[i].name)) {
            *ret = numbers[i].is_bool ? aq_jinja_bool(numbers[i].value)
                                      : aq_jinja_integer(numbers[i].value);
            return true;
        }
    bool before = aq_text_is(name, "previtem");
    if (!before && !aq_text_is(name, "nextitem"))
        return false;
    bool have = before ? l->index > 0 : l->index + 1 < l->items->count;
    *ret = have ? l->items->item[before ? l->index - 1 : l->index + 1]
                : aq_jinja_undefined(name, NULL);
    return true;
}

/* What Python finds as an attribute, without looking at keys. */
static bool own_attribute(struct aq_jinja_run *r, const struct aq_jinja_value *object,
                          struct aq_text name, struct aq_jinja_value *ret)
{
    if (aq_jinja_is(object, AQ_JINJA_IS_NAMESPACE)) {
        const struct aq_jinja_value *have = aq_jinja_get(object->dict, name);
        if (have)
            *ret = *have;
        return have != NULL;
    }
    if (aq_jinja_is(object, AQ_JINJA_IS_LOOP) && loop_attribute(object->loop, name, ret))
        return true;
    return aq_jinja_method_of(r, object, name, ret);
}

static bool dict_item(const struct aq_jinja_value *object, struct aq_text key,
                      struct aq_jinja_value *ret)
{
    const struct aq_jinja_value *have =
        aq_jinja_is(object, AQ_JINJA_IS_DICT) ? aq_jinja_get(object->dict, key) : NULL;
    if (have)
        *ret = *have;
    return have != NULL;
}

bool aq_jinja_attribute(struct aq_jinja_run *r, const struct aq_jinja_value *object,
                        struct aq_text name, struct aq_jinja_value *ret)
{
    if (aq_jinja_is(object, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, object);
    if (!aq_jinja_work(r, aq_jinja_is(object, AQ_JINJA_IS_DICT) ? object->dict->count : 0))
        return false;
    if (!own_attribute(r, object, name, ret) && r->rc == 0 && !dict_item(object, name, ret))
        *ret = aq_jinja_undefined(name, object);
    return r->rc == 0;
}

static bool index_item(struct aq_jinja_run *r, const struct aq_jinja_value *object, int64_t index,
                       struct aq_jinja_value *ret)
{
    bool string = aq_jinja_is(object, AQ_JINJA_IS_STRING);
    int64_t count;
    if (!aq_jinja_length(r, object, &count))
        return false;
    index += index < 0 ? count : 0;
    if (index < 0 || index >= count) {
        *ret = aq_jinja_undefined((struct aq_text){"index", 5}, object);
        return true;
    }
    if (!string) {
        *ret = object->list->item[index];
        return true;
    }
    const char *at = object->text + aq_jinja_offset(aq_jinja_text(object), (size_t)index);
    *ret = aq_jinja_string(at, aq_character_bytes(*at));
    return true;
}

bool aq_jinja_item(struct aq_jinja_run *r, const struct aq_jinja_value *object,
                   const struct aq_jinja_value *key, struct aq_jinja_value *ret)
{
    if (aq_jinja_is(object, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, object);
    if (aq_jinja_is_whole(key) &&
        (aq_jinja_has_index(object) || aq_jinja_is(object, AQ_JINJA_IS_STRING)))
        return index_item(r, object, key->integer, ret);
    if (!aq_jinja_is(key, AQ_JINJA_IS_STRING)) {
        *ret = aq_jinja_undefined((struct aq_text){"item", 4}, object);
        return true;
    }
    struct aq_text name = aq_jinja_text(key);
    if (!aq_jinja_work(r, aq_jinja_is(object, AQ_JINJA_IS_DICT) ? object->dict->count : 0))
        return false;
    if (!dict_item(object, name, ret) && !own_attribute(r, object, name, ret))
        *ret = aq_jinja_undefined(name, object);
    return r->rc == 0;
}

/* ---- slices ---- */

/* One end of a slice, as slice.indices() has it. */
static bool slice_end(struct aq_jinja_run *r, const struct aq_jinja_value *part, int64_t count,
                      int64_t step, bool is_stop, int64_t *ret)
{
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? count - 1 : count;
    int64_t x = (step < 0) == is_stop ? low : high;
    bool none = aq_jinja_is(part, AQ_JINJA_IS_ABSENT) || aq_jinja_is(part, AQ_JINJA_IS_NONE);
    if (!none && !aq_jinja_want_integer(r, "a slice", part, 0, &x))
        return false;
    if (!none) {
        if (x < 0)
            x = x < -count ? low : x + count;
        x = x < low ? low : x > high ? high : x;
    }
    *ret = x;
    return true;
}

static bool slice_text(struct aq_jinja_run *r, struct aq_text t, int64_t from, int64_t to,
                       int64_t step, struct aq_jinja_value *ret)
{
    if (step == 1) {
        size_t begin = aq_jinja_offset(t, (size_t)from);
        size_t bytes = to > from
                           ? aq_jinja_offset((struct aq_text){t.bytes + begin, t.count - begin},
                                             (size_t)(to - from))
                           : 0;
        *ret = aq_jinja_string(t.bytes + begin, bytes);
        return true;
    }
    struct aq_jinja_value text = aq_jinja_string(t.bytes, t.count);
    struct aq_jinja_list characters;
    if (!aq_jinja_iterate(r, &text, &characters))
        return false;
    struct aq_buf b = {0};
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        aq_buf_put(&b, characters.item[i].text, characters.item[i].count);
    bool good = aq_jinja_from_buf(r, &b, ret);
    aq_buf_close(&b);
    return good;
}

bool aq_jinja_slice(struct aq_jinja_run *r, const struct aq_jinja_value *object,
                    const struct aq_jinja_value part[3], struct aq_jinja_value *ret)
{
    int64_t count, from, to, step;
    bool string = aq_jinja_is(object, AQ_JINJA_IS_STRING);
    if (aq_jinja_is(object, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, object);
    if (!string && !aq_jinja_is(object, AQ_JINJA_IS_LIST) &&
        !aq_jinja_is(object, AQ_JINJA_IS_TUPLE))
        return aq_jinja_fail(r, "a slice of '%s' is not supported", aq_jinja_type_name(object));
    if (!aq_jinja_length(r, object, &count) ||
        !aq_jinja_want_integer(r, "a slice", &part[2], 1, &step))
        return false;
    if (!step || step < INT32_MIN || step > INT32_MAX)
        return aq_jinja_fail(r, "a slice: its step is %lld", (long long)step);
    if (!slice_end(r, &part[0], count, step, false, &from) ||
        !slice_end(r, &part[1], count, step, true, &to))
        return false;
    if (string)
        return slice_text(r, aq_jinja_text(object), from, to, step, ret);
    if (!aq_jinja_new_list(r, (enum aq_jinja_type)object->type, 0, ret))
        return false;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        if (!aq_jinja_step(r) || !aq_jinja_push(r, ret->list, object->list->item[i]))
            return false;
    return true;
}
