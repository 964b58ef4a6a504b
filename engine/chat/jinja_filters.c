/* SPDX-License-Identifier: Apache-2.0
 * Filters of one value: texts, numbers, JSON.  Those of lists are in jinja_lists.c. */
#include "engine/chat/jinja_lists.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_given(const struct aq_jinja_value *v)
{
    return !aq_jinja_is(v, AQ_JINJA_IS_ABSENT);
}

/* ---- texts ---- */

#define CASE_FILTER(name, to)                                                                      \
    static bool name(struct aq_jinja_run *r, const struct aq_jinja_value *self,                    \
                     const struct aq_jinja_value *p, struct aq_jinja_value *ret)                   \
    {                                                                                              \
        (void)p;                                                                                   \
        struct aq_jinja_value text;                                                                \
        return aq_jinja_str(r, self, &text) &&                                                     \
               aq_jinja_change_case(r, aq_jinja_text(&text), to, ret);                             \
    }

CASE_FILTER(filter_upper, AQ_JINJA_UPPER)
CASE_FILTER(filter_lower, AQ_JINJA_LOWER)
CASE_FILTER(filter_capitalize, AQ_JINJA_CAPITAL)
CASE_FILTER(filter_title, AQ_JINJA_TITLE_FILTER)

static bool filter_string(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    if (!aq_jinja_is(self, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_str(r, self, ret);
    *ret = aq_jinja_string("", 0);
    return true;
}

static bool filter_safe(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                        const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    bool good = filter_string(r, self, p, ret);
    ret->which = 1;
    return good;
}

static bool filter_trim(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                        const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_value text;
    struct aq_text characters;
    bool all = !is_given(&p[0]) || aq_jinja_is(&p[0], AQ_JINJA_IS_NONE);
    if (!filter_string(r, self, p, &text) ||
        (!all && !aq_jinja_want_string(r, "trim", &p[0], &characters)))
        return false;
    struct aq_text t = aq_jinja_strip(aq_jinja_text(&text), all ? NULL : &characters, true, true);
    *ret = aq_jinja_string(t.bytes, t.count);
    return aq_jinja_work(r, text.count);
}

static bool filter_replace(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                           const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_value text, old, with;
    int64_t count;
    return filter_string(r, self, p, &text) && filter_string(r, &p[0], p, &old) &&
           filter_string(r, &p[1], p, &with) &&
           aq_jinja_want_integer(r, "replace", &p[2], -1, &count) &&
           aq_jinja_replace(r, aq_jinja_text(&text), aq_jinja_text(&old), aq_jinja_text(&with),
                            count, ret);
}

/* The indention: blanks by their number, or a text. */
static bool indention(struct aq_jinja_run *r, const struct aq_jinja_value *width,
                      struct aq_jinja_value *ret)
{
    int64_t blanks;
    if (is_given(width) && aq_jinja_is(width, AQ_JINJA_IS_STRING)) {
        *ret = *width;
        return true;
    }
    if (!aq_jinja_want_integer(r, "indent", width, 4, &blanks))
        return false;
    const struct aq_jinja_value blank = aq_jinja_string(" ", 1), count = aq_jinja_integer(blanks);
    return aq_jinja_operate(r, AQ_JINJA_MUL, &blank, &count, ret);
}

static bool filter_indent(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    const struct aq_jinja_value newline = aq_jinja_string("\n", 1);
    struct aq_jinja_value text, lines, indent;
    bool first = aq_jinja_truth(&p[1]), blank = aq_jinja_truth(&p[2]);
    if (!aq_jinja_operate(r, AQ_JINJA_ADD, self, &newline, &text) ||
        !indention(r, &p[0], &indent) ||
        !aq_jinja_split_lines(r, aq_jinja_text(&text), false, &lines))
        return false;
    struct aq_buf b = {0};
    for (uint32_t i = 0; i < lines.list->count && b.count <= AQ_JINJA_OUTPUT_MAX; i++) {
        const struct aq_jinja_value *line = &lines.list->item[i];
        if (i)
            aq_buf_puts(&b, "\n");
        if (i ? blank || line->count : first)
            aq_buf_put(&b, indent.text, indent.count);
        aq_buf_put(&b, line->text, line->count);
    }
    bool good = b.count <= AQ_JINJA_OUTPUT_MAX
                    ? aq_jinja_from_buf(r, &b, ret)
                    : aq_jinja_fail_bound(r, "indent: the text becomes too long");
    aq_buf_close(&b);
    return good;
}

/* ---- JSON ---- */

/* (item, key) of separators, or what json.dumps takes by itself. */
static bool read_separators(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                            struct aq_jinja_json_opts *o)
{
    o->item_separator = o->indent.bytes ? (struct aq_text){",", 1} : (struct aq_text){", ", 2};
    o->key_separator = (struct aq_text){": ", 2};
    if (!is_given(v) || aq_jinja_is(v, AQ_JINJA_IS_NONE))
        return true;
    if (!aq_jinja_has_index(v) || v->list->count != 2)
        return aq_jinja_fail(r, "tojson: expected two separators");
    return aq_jinja_want_string(r, "tojson", &v->list->item[0], &o->item_separator) &&
           aq_jinja_want_string(r, "tojson", &v->list->item[1], &o->key_separator);
}

static bool filter_tojson(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    struct aq_jinja_json_opts o = {.ascii = aq_jinja_truth(&p[0]), .sort = aq_jinja_truth(&p[3])};
    if (is_given(&p[1]) && !aq_jinja_is(&p[1], AQ_JINJA_IS_NONE)) {
        struct aq_jinja_value indent;
        if (!indention(r, &p[1], &indent))
            return false;
        o.indent = (struct aq_text){indent.count ? indent.text : "", indent.count};
    }
    struct aq_buf b = {0};
    bool good = read_separators(r, &p[2], &o) && aq_jinja_print_json(r, &b, self, &o) &&
                aq_jinja_from_buf(r, &b, ret);
    aq_buf_close(&b);
    return good;
}

/* ---- numbers ---- */

/* A string as a number, as Python's float() reads it; false: it is none. */
static bool read_real(struct aq_text t, double *ret)
{
    char digits[64], *end;
    t = aq_jinja_strip(t, NULL, true, true);
    if (!t.count || t.count >= sizeof(digits) || strspn(t.bytes, "+-.0123456789eE") < t.count)
        return false;
    memcpy(digits, t.bytes, t.count);
    digits[t.count] = '\0';
    *ret = strtod(digits, &end);
    return !*end;
}

static bool filter_float(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                         const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    double x;
    if (aq_jinja_is(self, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, self);
    if (aq_jinja_is_number(self))
        *ret = aq_jinja_real(aq_jinja_as_real(self));
    else if (aq_jinja_is(self, AQ_JINJA_IS_STRING) && read_real(aq_jinja_text(self), &x))
        *ret = aq_jinja_real(x);
    else
        *ret = is_given(&p[0]) ? p[0] : aq_jinja_real(0);
    return true;
}

/* Digits with a sign in front, as Python's int() reads them. */
static bool read_whole(struct aq_text t, int64_t *ret)
{
    char digits[64], *end;
    t = aq_jinja_strip(t, NULL, true, true);
    if (!t.count || t.count >= sizeof(digits))
        return false;
    memcpy(digits, t.bytes, t.count);
    digits[t.count] = '\0';
    if (!isdigit((unsigned char)digits[strspn(digits, "+-")]))
        return false;
    errno = 0;
    *ret = strtoll(digits, &end, 10);
    return !*end && !errno;
}

static bool filter_int(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    double x = aq_jinja_is(self, AQ_JINJA_IS_REAL) ? self->real : NAN;
    int64_t whole;
    if (aq_jinja_is(self, AQ_JINJA_IS_UNDEFINED))
        return aq_jinja_fail_undefined(r, self);
    bool string = aq_jinja_is(self, AQ_JINJA_IS_STRING);
    if (aq_jinja_is_whole(self))
        *ret = aq_jinja_integer(self->integer);
    else if (string && read_whole(aq_jinja_text(self), &whole))
        *ret = aq_jinja_integer(whole);
    else if ((!string || read_real(aq_jinja_text(self), &x)) && x >= -0x1p63 && x < 0x1p63)
        *ret = aq_jinja_integer((int64_t)x);
    else if (x >= 0x1p63 || x < -0x1p63)
        return aq_jinja_fail(r, "int: an integer beyond 64 bits");
    else
        *ret = is_given(&p[0]) ? p[0] : aq_jinja_integer(0);
    return true;
}

static bool filter_abs(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    bool negative = aq_jinja_is_whole(self)
                        ? self->integer < 0
                        : aq_jinja_is(self, AQ_JINJA_IS_REAL) && signbit(self->real);
    return aq_jinja_negate(r, self, negative, ret);
}

static bool filter_round(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                         const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    int64_t precision;
    struct aq_text method = {"common", 6};
    if (!aq_jinja_is_number(self))
        return aq_jinja_fail(r, "round: expected a number, found '%s'", aq_jinja_type_name(self));
    if (!aq_jinja_want_integer(r, "round", &p[0], 0, &precision) ||
        (is_given(&p[1]) && !aq_jinja_want_string(r, "round", &p[1], &method)))
        return false;
    bool up = aq_text_is(method, "ceil");
    if (precision < 0 || precision > 15 ||
        (!up && !aq_text_is(method, "floor") && !aq_text_is(method, "common")))
        return aq_jinja_fail(r, "round: expected 0 to 15 digits, and 'common', 'ceil' or 'floor'");
    if (aq_text_is(method, "common")) { /* the exact value, ties to even, as printf has it */
        char digits[400];
        snprintf(digits, sizeof(digits), "%.*f", (int)precision, aq_jinja_as_real(self));
        *ret = aq_jinja_is_whole(self) ? aq_jinja_integer(self->integer)
                                       : aq_jinja_real(strtod(digits, NULL));
        return true;
    }
    double scale = pow(10, (double)precision), x = aq_jinja_as_real(self) * scale;
    *ret = aq_jinja_real((up ? ceil(x) : floor(x)) / scale);
    return true;
}

/* ---- any value ---- */

static bool filter_default(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                           const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    bool missing = aq_jinja_is(self, AQ_JINJA_IS_UNDEFINED) ||
                   (aq_jinja_truth(&p[1]) && !aq_jinja_truth(self));
    *ret = !missing ? *self : is_given(&p[0]) ? p[0] : aq_jinja_string("", 0);
    return true;
}

static bool filter_length(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_value *p, struct aq_jinja_value *ret)
{
    int64_t count;
    if (!aq_jinja_length(r, self, &count))
        return false;
    *ret = aq_jinja_integer(count);
    return true;
}

/* ---- by name ---- */

typedef bool filter_fn(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_value *p, struct aq_jinja_value *ret);

static bool choose_by_test(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                           const struct aq_jinja_arguments *a, bool keep, bool attribute,
                           struct aq_jinja_value *ret);

static bool filter_map(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                       const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    struct aq_text name;
    if (!aq_jinja_truth(self)) /* None, too */
        return aq_jinja_new_list(r, AQ_JINJA_IS_ITERATOR, 0, ret);
    if (!a->count)
        return aq_jinja_map_attribute(r, self, a, ret);
    if (!aq_jinja_want_string(r, "map", &a->item[0], &name) || !aq_jinja_iterate(r, self, &items) ||
        !aq_jinja_new_list(r, AQ_JINJA_IS_ITERATOR, items.count, ret))
        return false;
    const struct aq_jinja_arguments rest = {a->item + 1, a->named, a->count - 1, a->named_count};
    int filter = aq_jinja_filter_find(name);
    if (filter < 0)
        return aq_jinja_fail(r, "map: filter '%.*s' is not supported", (int)name.count, name.bytes);
    if (r->depth++ >= AQ_JINJA_DEPTH_MAX)
        return aq_jinja_fail_bound(r, "filters are nested too deep");
    bool good = true;
    for (uint32_t i = 0; good && i < items.count; i++) {
        struct aq_jinja_value v;
        good = aq_jinja_step(r) && aq_jinja_filter(r, filter, &items.item[i], &rest, &v) &&
               aq_jinja_push(r, ret->list, v);
    }
    r->depth--;
    return good;
}

static bool filter_select(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    return choose_by_test(r, self, a, true, false, ret);
}

static bool filter_reject(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                          const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    return choose_by_test(r, self, a, false, false, ret);
}

static bool filter_selectattr(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                              const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    return choose_by_test(r, self, a, true, true, ret);
}

static bool filter_rejectattr(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                              const struct aq_jinja_arguments *a, struct aq_jinja_value *ret)
{
    return choose_by_test(r, self, a, false, true, ret);
}

static const struct filter {
    const char *name;
    filter_fn *call;
    const char *parameters;
    uint32_t required;
    /* instead of call: takes arguments as they come */
    bool (*call_any)(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                     const struct aq_jinja_arguments *a, struct aq_jinja_value *ret);
} filters[] = {
    {"abs", filter_abs, "", 0, NULL},
    {"capitalize", filter_capitalize, "", 0, NULL},
    {"count", filter_length, "", 0, NULL},
    {"d", filter_default, "default_value boolean", 0, NULL},
    {"default", filter_default, "default_value boolean", 0, NULL},
    {"dictsort", aq_jinja_dictsort, "case_sensitive by reverse", 0, NULL},
    {"first", aq_jinja_first, "", 0, NULL},
    {"float", filter_float, "default", 0, NULL},
    {"indent", filter_indent, "width first blank", 0, NULL},
    {"int", filter_int, "default", 0, NULL},
    {"items", aq_jinja_items, "", 0, NULL},
    {"join", aq_jinja_join_filter, "d attribute", 0, NULL},
    {"last", aq_jinja_last, "", 0, NULL},
    {"length", filter_length, "", 0, NULL},
    {"list", aq_jinja_to_list, "", 0, NULL},
    {"lower", filter_lower, "", 0, NULL},
    {"map", NULL, "", 0, filter_map},
    {"max", aq_jinja_max, "case_sensitive attribute", 0, NULL},
    {"min", aq_jinja_min, "case_sensitive attribute", 0, NULL},
    {"reject", NULL, "", 0, filter_reject},
    {"rejectattr", NULL, "", 0, filter_rejectattr},
    {"replace", filter_replace, "old new count", 2, NULL},
    {"reverse", aq_jinja_reverse, "", 0, NULL},
    {"round", filter_round, "precision method", 0, NULL},
    {"safe", filter_safe, "", 0, NULL},
    {"select", NULL, "", 0, filter_select},
    {"selectattr", NULL, "", 0, filter_selectattr},
    {"sort", aq_jinja_sort, "reverse case_sensitive attribute", 0, NULL},
    {"string", filter_string, "", 0, NULL},
    {"sum", aq_jinja_sum, "attribute start", 0, NULL},
    {"title", filter_title, "", 0, NULL},
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0, NULL},
    {"trim", filter_trim, "chars", 0, NULL},
    {"unique", aq_jinja_unique, "case_sensitive attribute", 0, NULL},
    {"upper", filter_upper, "", 0, NULL},
};

int aq_jinja_filter_find(struct aq_text name)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(filters); i++)
        if (aq_text_is(name, filters[i].name))
            return (int)i;
    return -1;
}

bool aq_jinja_filter(struct aq_jinja_run *r, int filter, const struct aq_jinja_value *self,
                     const struct aq_jinja_arguments *arguments, struct aq_jinja_value *ret)
{
    const struct filter *f = &filters[filter];
    struct aq_jinja_value p[AQ_JINJA_PARAMETERS_MAX];
    if (f->call_any)
        return f->call_any(r, self, arguments, ret);
    return aq_jinja_bind(r, f->name, f->parameters, f->required, arguments, p) &&
           f->call(r, self, p, ret);
}

/* select, reject, selectattr, rejectattr: by a test that is named, or by truth. */
static bool choose_by_test(struct aq_jinja_run *r, const struct aq_jinja_value *self,
                           const struct aq_jinja_arguments *a, bool keep, bool attribute,
                           struct aq_jinja_value *ret)
{
    struct aq_jinja_list items;
    struct aq_text name;
    uint32_t off = attribute;
    int test = -1;
    if (!aq_jinja_truth(self)) /* None, too */
        return aq_jinja_new_list(r, AQ_JINJA_IS_ITERATOR, 0, ret);
    if (a->count < off)
        return aq_jinja_fail(r, "selectattr, rejectattr: expected an attribute");
    if (!aq_jinja_iterate(r, self, &items) || !aq_jinja_new_list(r, AQ_JINJA_IS_ITERATOR, 0, ret))
        return false;
    if (a->count > off && !aq_jinja_want_string(r, "select, reject", &a->item[off], &name))
        return false;
    if (a->count > off && (test = aq_jinja_test_find(name)) < 0)
        return aq_jinja_fail(r, "select, reject: test '%.*s' is not supported", (int)name.count,
                             name.bytes);
    const struct aq_jinja_arguments rest = {test >= 0 ? a->item + off + 1 : NULL, a->named,
                                            test >= 0 ? a->count - off - 1 : 0, a->named_count};
    for (uint32_t i = 0; i < items.count; i++) {
        struct aq_jinja_value v = items.item[i];
        bool is;
        if (!aq_jinja_step(r) || (attribute && !aq_jinja_path(r, &v, &a->item[0], &v)))
            return false;
        is = aq_jinja_truth(&v);
        if (test >= 0 && !aq_jinja_test(r, test, &v, &rest, &is))
            return false;
        if (is == keep && !aq_jinja_push(r, ret->list, items.item[i]))
            return false;
    }
    return true;
}
