/* SPDX-License-Identifier: Apache-2.0
 * What stands behind `is`. */
#include "engine/chat/jinja_value.h"

#include <string.h>

typedef bool test_fn(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                     const struct aq_jinja_value *p, bool *ret);

#define TYPE_TEST(name, condition)                                                                 \
    static bool name(struct aq_jinja_run *r, const struct aq_jinja_value *v,                       \
                     const struct aq_jinja_value *p, bool *ret)                                    \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)p;                                                                                   \
        *ret = (condition);                                                                        \
        return true;                                                                               \
    }

TYPE_TEST(is_defined, !aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED))
TYPE_TEST(is_undefined, aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED))
TYPE_TEST(is_none, aq_jinja_is(v, AQ_JINJA_IS_NONE))
TYPE_TEST(is_boolean, aq_jinja_is(v, AQ_JINJA_IS_BOOL))
TYPE_TEST(is_true, aq_jinja_is(v, AQ_JINJA_IS_BOOL) && v->integer)
TYPE_TEST(is_false, aq_jinja_is(v, AQ_JINJA_IS_BOOL) && !v->integer)
TYPE_TEST(is_integer, aq_jinja_is(v, AQ_JINJA_IS_INTEGER))
TYPE_TEST(is_float, aq_jinja_is(v, AQ_JINJA_IS_REAL))
TYPE_TEST(is_number, aq_jinja_is_number(v))
TYPE_TEST(is_string, aq_jinja_is(v, AQ_JINJA_IS_STRING))
TYPE_TEST(is_mapping, aq_jinja_is(v, AQ_JINJA_IS_DICT))
TYPE_TEST(is_iterable, aq_jinja_is(v, AQ_JINJA_IS_STRING) || aq_jinja_is(v, AQ_JINJA_IS_DICT) ||
                           aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED) ||
                           aq_jinja_is(v, AQ_JINJA_IS_LOOP) || aq_jinja_has_items(v))
/* What has a length and items: in jinja2 that is true of what is undefined, too. */
TYPE_TEST(is_sequence, aq_jinja_is(v, AQ_JINJA_IS_STRING) || aq_jinja_is(v, AQ_JINJA_IS_DICT) ||
                           aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED) || aq_jinja_has_index(v))
/* Python's Undefined has a __call__ that fails. */
TYPE_TEST(is_callable, v->type >= AQ_JINJA_IS_LOOP || aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED))

static bool is_in(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                  const struct aq_jinja_value *p, bool *ret)
{
    return aq_jinja_contains(r, &p[0], v, ret);
}

static bool is_equal(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                     const struct aq_jinja_value *p, bool *ret)
{
    return aq_jinja_equal(r, v, &p[0], ret);
}

static bool is_unequal(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                       const struct aq_jinja_value *p, bool *ret)
{
    bool good = aq_jinja_equal(r, v, &p[0], ret);
    *ret = !*ret;
    return good;
}

#define ORDER_TEST(name, sign)                                                                     \
    static bool name(struct aq_jinja_run *r, const struct aq_jinja_value *v,                       \
                     const struct aq_jinja_value *p, bool *ret)                                    \
    {                                                                                              \
        int order = 0;                                                                             \
        bool good = aq_jinja_compare(r, v, &p[0], &order);                                         \
        *ret = order sign 0;                                                                       \
        return good;                                                                               \
    }

ORDER_TEST(is_less, <)
ORDER_TEST(is_less_or_equal, <=)
ORDER_TEST(is_greater, >)
ORDER_TEST(is_greater_or_equal, >=)

/* v % by == rest */
static bool has_rest(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                     const struct aq_jinja_value *by, int64_t rest, bool *ret)
{
    const struct aq_jinja_value want = aq_jinja_integer(rest);
    struct aq_jinja_value found;
    return aq_jinja_operate(r, AQ_JINJA_MOD, v, by, &found) &&
           aq_jinja_equal(r, &found, &want, ret);
}

static bool is_odd(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                   const struct aq_jinja_value *p, bool *ret)
{
    const struct aq_jinja_value two = aq_jinja_integer(2);
    return has_rest(r, v, &two, 1, ret);
}

static bool is_even(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                    const struct aq_jinja_value *p, bool *ret)
{
    const struct aq_jinja_value two = aq_jinja_integer(2);
    return has_rest(r, v, &two, 0, ret);
}

static bool is_divisible(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                         const struct aq_jinja_value *p, bool *ret)
{
    return has_rest(r, v, &p[0], 0, ret);
}

/* Identity, which only what has no parts is known to have. */
static bool is_same(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                    const struct aq_jinja_value *p, bool *ret)
{
    *ret = false;
    if (v->type != p[0].type)
        return true;
    if (!aq_jinja_is(v, AQ_JINJA_IS_BOOL) && !aq_jinja_is(v, AQ_JINJA_IS_NONE))
        return aq_jinja_fail(r, "sameas: only none, true and false are supported, found '%s'",
                             aq_jinja_type_name(v));
    *ret = aq_jinja_is(v, AQ_JINJA_IS_NONE) || v->integer == p[0].integer;
    return true;
}

/* str.islower, str.isupper of the value's text: some letter, and none of the other case. */
static bool has_case(struct aq_jinja_run *r, const struct aq_jinja_value *v, bool upper, bool *ret)
{
    struct aq_jinja_value text;
    if (!aq_jinja_str(r, v, &text))
        return false;
    bool some = false, other = false;
    for (uint32_t i = 0; i < text.count; i++) {
        char c = text.text[i];
        bool is_upper = c >= 'A' && c <= 'Z', is_lower = c >= 'a' && c <= 'z';
        if ((unsigned char)c >= 0x80)
            return aq_jinja_fail(r, "upper and lower case of letters that are not ASCII is not "
                                    "supported");
        some |= upper ? is_upper : is_lower;
        other |= upper ? is_lower : is_upper;
    }
    *ret = some && !other;
    return true;
}

static bool is_lower(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                     const struct aq_jinja_value *p, bool *ret)
{
    return has_case(r, v, false, ret);
}

static bool is_upper(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                     const struct aq_jinja_value *p, bool *ret)
{
    return has_case(r, v, true, ret);
}

static const struct {
    const char *name;
    test_fn *test;
    uint32_t arguments;
} tests[] = {
    {"defined", is_defined, 0},
    {"undefined", is_undefined, 0},
    {"none", is_none, 0},
    {"boolean", is_boolean, 0},
    {"true", is_true, 0},
    {"false", is_false, 0},
    {"integer", is_integer, 0},
    {"float", is_float, 0},
    {"number", is_number, 0},
    {"string", is_string, 0},
    {"mapping", is_mapping, 0},
    {"iterable", is_iterable, 0},
    {"sequence", is_sequence, 0},
    {"callable", is_callable, 0},
    {"odd", is_odd, 0},
    {"even", is_even, 0},
    {"lower", is_lower, 0},
    {"upper", is_upper, 0},
    {"in", is_in, 1},
    {"sameas", is_same, 1},
    {"divisibleby", is_divisible, 1},
    {"eq", is_equal, 1},
    {"equalto", is_equal, 1},
    {"==", is_equal, 1},
    {"ne", is_unequal, 1},
    {"!=", is_unequal, 1},
    {"lt", is_less, 1},
    {"lessthan", is_less, 1},
    {"<", is_less, 1},
    {"le", is_less_or_equal, 1},
    {"<=", is_less_or_equal, 1},
    {"gt", is_greater, 1},
    {"greaterthan", is_greater, 1},
    {">", is_greater, 1},
    {"ge", is_greater_or_equal, 1},
    {">=", is_greater_or_equal, 1},
};

int aq_jinja_test_find(struct aq_text name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(tests); i++)
        if (aq_text_is(name, tests[i].name))
            return (int)i;
    return -1;
}

bool aq_jinja_test(struct aq_jinja_run *r, int test, const struct aq_jinja_value *self,
                   const struct aq_jinja_arguments *arguments, bool *ret)
{
    struct aq_jinja_value p[AQ_JINJA_PARAMETERS_MAX];
    uint32_t count = tests[test].arguments;
    *ret = false;
    return aq_jinja_bind(r, tests[test].name, count ? "other" : "", count, arguments, p) &&
           tests[test].test(r, self, p, ret);
}
