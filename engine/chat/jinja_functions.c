/* SPDX-License-Identifier: Apache-2.0
 * Functions that every template has: Jinja's and transformers' own. */
#include "engine/chat/jinja_value.h"

#include <string.h>
#include <time.h>

typedef bool function_fn(struct aq_jinja_run *r, const struct aq_jinja_arguments *a,
                         struct aq_jinja_value *ret);

static bool raise_exception(struct aq_jinja_run *r, const struct aq_jinja_arguments *a,
                            struct aq_jinja_value *ret)
{
    struct aq_jinja_value p[AQ_JINJA_PARAMETERS_MAX];
    if (!aq_jinja_bind(r, "raise_exception", "message", 1, a, p) || !aq_jinja_str(r, &p[0], ret))
        return false;
    return aq_jinja_fail(r, "the template says: %.*s", (int)(ret->count < 400 ? ret->count : 400),
                         ret->text);
}

/* What date and time look like does not depend on the machine: only conversions that C and Python
 * have alike, in their locale "C". */
static bool check_format(struct aq_jinja_run *r, struct aq_text format)
{
    for (size_t i = 0; i < format.count; i++) {
        if (format.bytes[i] != '%')
            continue;
        size_t flag = i + 1 < format.count && strchr("-_0^#", format.bytes[i + 1]);
        i += 1 + flag;
        if (i >= format.count || !format.bytes[i] ||
            !strchr("aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%", format.bytes[i]))
            return aq_jinja_fail(r, "strftime_now: the format '%.*s' is not supported",
                                 (int)format.count, format.bytes);
    }
    return true;
}

static bool strftime_now(struct aq_jinja_run *r, const struct aq_jinja_arguments *a,
                         struct aq_jinja_value *ret)
{
    enum { FORMAT_MAX = 200, DATE_BYTES = 8000 };
    struct aq_jinja_value p[AQ_JINJA_PARAMETERS_MAX];
    struct aq_text format;
    char text[FORMAT_MAX + 2];
    if (!aq_jinja_bind(r, "strftime_now", "format", 1, a, p) ||
        !aq_jinja_want_string(r, "strftime_now", &p[0], &format))
        return false;
    if (format.count > FORMAT_MAX)
        return aq_jinja_fail(r, "strftime_now: the format is too long");
    if (!check_format(r, format))
        return false;
    memcpy(text, format.bytes, format.count);
    memcpy(text + format.count, "", 1);
    char *date = aq_jinja_take(r, DATE_BYTES);
    if (!date)
        return false;
    size_t count = strftime(date, DATE_BYTES, text, &r->input->now);
    *ret = aq_jinja_string(date, count);
    return true;
}

static bool range(struct aq_jinja_run *r, const struct aq_jinja_arguments *a,
                  struct aq_jinja_value *ret)
{
    struct aq_jinja_value p[AQ_JINJA_PARAMETERS_MAX];
    int64_t from, to, step;
    if (!aq_jinja_bind(r, "range", "start stop step", 1, a, p) ||
        !aq_jinja_want_integer(r, "range", &p[0], 0, &from) ||
        !aq_jinja_want_integer(r, "range", &p[1], 0, &to) ||
        !aq_jinja_want_integer(r, "range", &p[2], 1, &step))
        return false;
    if (aq_jinja_is(&p[1], AQ_JINJA_IS_ABSENT)) {
        to = from;
        from = 0;
    }
    if (!step)
        return aq_jinja_fail(r, "range: the step is 0");
    uint64_t length = 0;
    if (step > 0 && to > from)
        length = ((uint64_t)to - (uint64_t)from - 1) / (uint64_t)step + 1;
    else if (step < 0 && to < from)
        length = ((uint64_t)from - (uint64_t)to - 1) / (0 - (uint64_t)step) + 1;
    if (length > AQ_JINJA_RANGE_MAX)
        return aq_jinja_fail_bound(r, "range: more than %d items", AQ_JINJA_RANGE_MAX);
    uint32_t count = (uint32_t)length;
    if (!aq_jinja_work(r, length * 16) || !aq_jinja_new_list(r, AQ_JINJA_IS_RANGE, count + 3, ret))
        return false;
    struct aq_jinja_value *item = ret->list->item;
    for (uint32_t i = 0; i < count; i++)
        item[i] = aq_jinja_integer(from + (int64_t)i * step);
    item[count] = aq_jinja_integer(from); /* how it was made: for its text */
    item[count + 1] = aq_jinja_integer(to);
    item[count + 2] = aq_jinja_integer(step);
    ret->list->count = count;
    return true;
}

/* dict(a=1) and namespace(a=1), both also of another dict. */
static bool make_dict(struct aq_jinja_run *r, enum aq_jinja_type type,
                      const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    if (a->count > 1 || (a->count && !aq_jinja_is(&a->item[0], AQ_JINJA_IS_DICT)))
        return aq_jinja_fail(r, "dict, namespace: expected one dict, or names with values");
    if (!aq_jinja_new_dict(r, type, ret))
        return false;
    const struct aq_jinja_dict *from = a->count ? a->item[0].dict : NULL;
    for (uint32_t i = 0; from && i < from->count; i++)
        if (!aq_jinja_put(r, ret->dict, from->entry[i].key, from->entry[i].value))
            return false;
    for (uint32_t i = 0; i < a->named_count; i++)
        if (!aq_jinja_put(r, ret->dict, a->named[i].name, a->named[i].value))
            return false;
    return true;
}

static bool dict(struct aq_jinja_run *r, const struct aq_jinja_arguments *a,
                 struct aq_jinja_value *ret)
{
    return make_dict(r, AQ_JINJA_IS_DICT, a, ret);
}

static bool namespace(struct aq_jinja_run *r, const struct aq_jinja_arguments *a,
                      struct aq_jinja_value *ret)
{
    return make_dict(r, AQ_JINJA_IS_NAMESPACE, a, ret);
}

static const struct {
    const char *name;
    function_fn *call;
} functions[] = {
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
    {"range", range},
    {"dict", dict},
    {"namespace", namespace},
};

bool aq_jinja_function_of(struct aq_text name, struct aq_jinja_value *ret)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(functions); i++)
        if (aq_text_is(name, functions[i].name)) {
            *ret = aq_jinja_of_type(AQ_JINJA_IS_FUNCTION);
            ret->which = (uint8_t)i;
            return true;
        }
    return false;
}

bool aq_jinja_function(struct aq_jinja_run *r, const struct aq_jinja_value *function,
                       const struct aq_jinja_arguments *arguments, struct aq_jinja_value *ret)
{
    return functions[function->which].call(r, arguments, ret);
}
