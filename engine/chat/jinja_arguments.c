/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat/jinja_value.h"

#include <string.h>

/* Place of a name in a list that blanks separate; -1. */
static int place_of(const char *parameters, struct aq_text name)
{
    int place = 0;
    for (const char *at = parameters; *at; place++) {
        size_t bytes = strcspn(at, " ");
        if (bytes == name.count && !memcmp(at, name.bytes, bytes))
            return place;
        at += bytes;
        at += *at == ' ';
    }
    return -1;
}

static uint32_t parameter_count(const char *parameters)
{
    uint32_t count = *parameters != '\0';
    for (; *parameters; parameters++)
        count += *parameters == ' ';
    return count;
}

bool aq_jinja_bind(struct aq_jinja_run *r, const char *what, const char *parameters,
                   uint32_t required, const struct aq_jinja_arguments *a,
                   struct aq_jinja_value ret[AQ_JINJA_PARAMETERS_MAX])
{
    uint32_t count = parameter_count(parameters);
    for (uint32_t i = 0; i < AQ_JINJA_PARAMETERS_MAX; i++)
        ret[i] = aq_jinja_of_type(AQ_JINJA_IS_ABSENT);
    if (a->count > count)
        return aq_jinja_fail(r, "%s: expected at most %u arguments, found %u", what, count,
                             a->count);
    for (uint32_t i = 0; i < a->count; i++)
        ret[i] = a->item[i];
    for (uint32_t i = 0; i < a->named_count; i++) {
        struct aq_text name = a->named[i].name;
        int place = place_of(parameters, name);
        if (place < 0 || !aq_jinja_is(&ret[place], AQ_JINJA_IS_ABSENT))
            return aq_jinja_fail(r, "%s: argument '%.*s' is %s", what, (int)name.count, name.bytes,
                                 place < 0 ? "not supported" : "given twice");
        ret[place] = a->named[i].value;
    }
    for (uint32_t i = 0; i < required; i++)
        if (aq_jinja_is(&ret[i], AQ_JINJA_IS_ABSENT))
            return aq_jinja_fail(r, "%s: expected at least %u arguments", what, required);
    return true;
}

bool aq_jinja_want_integer(struct aq_jinja_run *r, const char *what, const struct aq_jinja_value *v,
                           int64_t deflt, int64_t *ret)
{
    *ret = deflt;
    if (aq_jinja_is(v, AQ_JINJA_IS_ABSENT) || aq_jinja_is(v, AQ_JINJA_IS_NONE))
        return true;
    if (aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, v);
    if (!aq_jinja_is_whole(v))
        return aq_jinja_fail(r, "%s: expected an integer, found '%s'", what, aq_jinja_type_name(v));
    *ret = v->integer;
    return true;
}

bool aq_jinja_want_string(struct aq_jinja_run *r, const char *what, const struct aq_jinja_value *v,
                          struct aq_text *ret)
{
    if (aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, v);
    if (!aq_jinja_is(v, AQ_JINJA_IS_STRING))
        return aq_jinja_fail(r, "%s: expected a string, found '%s'", what, aq_jinja_type_name(v));
    *ret = aq_jinja_text(v);
    return true;
}
