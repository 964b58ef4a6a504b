/* SPDX-License-Identifier: Apache-2.0
 * Values as text: str(), repr() and json.dumps() of Python. */
#include "base/characters.h"
#include "engine/chat/jinja_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shortest digits that read back as x, in Python's notation: an exponent below -4 and from 16 on.
 */
void aq_jinja_print_real(struct aq_buf *out, double x)
{
    char digits[40];
    if (isnan(x) || isinf(x)) {
        aq_buf_puts(out, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    int precision = 0;
    do
        snprintf(digits, sizeof(digits), "%.*e", precision, x);
    while (strtod(digits, NULL) != x && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        *strchr(digits, 'e') = '\0';
        aq_buf_printf(out, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - exponent;
    aq_buf_printf(out, "%.*f", decimals > 0 ? decimals : 1, x);
}

/* ---- repr ---- */

/* Characters that Python's repr writes as an escape, of those that are not ASCII: separators,
 * controls and formats.  Unassigned ones print here. */
static bool is_hidden(uint32_t c)
{
    return (c >= 0x7f && c <= 0xa0) || c == 0xad || (c >= 0x600 && c <= 0x605) || c == 0x61c ||
           c == 0x6dd || c == 0x70f || c == 0x1680 || c == 0x180e || (c >= 0x2000 && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202f) || (c >= 0x205f && c <= 0x206f) || c == 0x3000 ||
           (c >= 0xe000 && c <= 0xf8ff) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
           c >= 0xe0000;
}

static void repr_text(struct aq_buf *out, struct aq_text t)
{
    char quote = memchr(t.bytes, '\'', t.count) && !memchr(t.bytes, '"', t.count) ? '"' : '\'';
    aq_buf_put(out, &quote, 1);
    for (size_t at = 0; at < t.count;) {
        uint32_t c;
        size_t bytes = aq_character_read(t.bytes + at, &c);
        if (c == (uint32_t)quote || c == '\\')
            aq_buf_printf(out, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            aq_buf_puts(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (c < 0x20 || (is_hidden(c) && c < 0x100))
            aq_buf_printf(out, "\\x%02x", c);
        else if (is_hidden(c))
            aq_buf_printf(out, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        else
            aq_buf_put(out, t.bytes + at, bytes);
        at += bytes;
    }
    aq_buf_put(out, &quote, 1);
}

static bool repr(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v);

static bool repr_items(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v)
{
    const struct aq_jinja_list *l = v->list;
    static const char *const views[] = {"dict_items([", "dict_keys([", "dict_values(["};
    bool tuple = aq_jinja_is(v, AQ_JINJA_IS_TUPLE), view = aq_jinja_is(v, AQ_JINJA_IS_VIEW);
    aq_buf_puts(out, view ? views[v->which] : tuple ? "(" : "[");
    for (uint32_t i = 0; i < l->count; i++) {
        aq_buf_puts(out, i ? ", " : "");
        if (!repr(r, out, &l->item[i]))
            return false;
    }
    aq_buf_puts(out, view ? "])" : !tuple ? "]" : l->count == 1 ? ",)" : ")");
    return true;
}

static bool repr_range(struct aq_buf *out, const struct aq_jinja_list *l)
{
    /* how it was made is behind its items: from, to, step */
    aq_buf_printf(out, "range(%lld, %lld", (long long)l->item[l->count].integer,
                  (long long)l->item[l->count + 1].integer);
    if (l->item[l->count + 2].integer != 1)
        aq_buf_printf(out, ", %lld", (long long)l->item[l->count + 2].integer);
    aq_buf_puts(out, ")");
    return true;
}

static bool repr_dict(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_dict *d)
{
    aq_buf_puts(out, "{");
    for (uint32_t i = 0; i < d->count; i++) {
        aq_buf_puts(out, i ? ", " : "");
        repr_text(out, d->entry[i].key);
        aq_buf_puts(out, ": ");
        if (!repr(r, out, &d->entry[i].value))
            return false;
    }
    aq_buf_puts(out, "}");
    return true;
}

/* All but strings, whose str() and repr() differ. */
static bool put_plain(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v)
{
    switch ((enum aq_jinja_type)v->type) {
    case AQ_JINJA_IS_NONE: aq_buf_puts(out, "None"); return true;
    case AQ_JINJA_IS_BOOL: aq_buf_puts(out, v->integer ? "True" : "False"); return true;
    case AQ_JINJA_IS_INTEGER: aq_buf_printf(out, "%lld", (long long)v->integer); return true;
    case AQ_JINJA_IS_REAL: aq_jinja_print_real(out, v->real); return true;
    case AQ_JINJA_IS_LIST:
    case AQ_JINJA_IS_TUPLE:
    case AQ_JINJA_IS_VIEW: return repr_items(r, out, v);
    case AQ_JINJA_IS_RANGE: return repr_range(out, v->list);
    case AQ_JINJA_IS_DICT: return repr_dict(r, out, v->dict);
    default: return aq_jinja_fail(r, "a value of type '%s' has no text", aq_jinja_type_name(v));
    }
}

static bool repr(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v)
{
    if (!aq_jinja_step(r))
        return false;
    if (out->count > AQ_JINJA_OUTPUT_MAX)
        return aq_jinja_fail_bound(r, "a value's text is too long");
    if (r->depth++ >= AQ_JINJA_DEPTH_MAX)
        return aq_jinja_fail_bound(r, "values are nested too deep");
    bool good = true;
    if (aq_jinja_is(v, AQ_JINJA_IS_STRING))
        repr_text(out, aq_jinja_text(v));
    else if (aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED))
        aq_buf_puts(out, "Undefined");
    else
        good = put_plain(r, out, v);
    r->depth--;
    return good;
}

bool aq_jinja_print(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v)
{
    if (aq_jinja_is(v, AQ_JINJA_IS_UNDEFINED))
        return true;
    if (!aq_jinja_is(v, AQ_JINJA_IS_STRING))
        return repr(r, out, v);
    aq_buf_put(out, v->text, v->count);
    return aq_jinja_work(r, v->count);
}

bool aq_jinja_str(struct aq_jinja_run *r, const struct aq_jinja_value *v,
                  struct aq_jinja_value *ret)
{
    if (aq_jinja_is(v, AQ_JINJA_IS_STRING)) {
        *ret = *v;
        return true;
    }
    struct aq_buf b = {0};
    bool good = aq_jinja_print(r, &b, v) && aq_jinja_from_buf(r, &b, ret);
    aq_buf_close(&b);
    return good;
}

/* ---- json.dumps ---- */

static void json_text(struct aq_buf *out, struct aq_text t, bool ascii)
{
    aq_buf_puts(out, "\"");
    for (size_t at = 0; at < t.count;) {
        uint32_t c;
        size_t bytes = aq_character_read(t.bytes + at, &c);
        static const char from[] = "\"\\\n\r\t\b\f", is[] = "\"\\nrtbf";
        const char *known = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (known)
            aq_buf_printf(out, "\\%c", is[known - from]);
        else if (c < 0x20 || (ascii && c > 0x7e && c < 0x10000))
            aq_buf_printf(out, "\\u%04x", c);
        else if (ascii && c >= 0x10000)
            aq_buf_printf(out, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
        else
            aq_buf_put(out, t.bytes + at, bytes);
        at += bytes;
    }
    aq_buf_puts(out, "\"");
}

/* A new line in front of an item, or the separator's own blank. */
static void json_break(struct aq_buf *out, const struct aq_jinja_json_opts *o, uint32_t level)
{
    if (!o->indent.bytes)
        return;
    aq_buf_puts(out, "\n");
    for (uint32_t i = 0; i < level; i++)
        aq_buf_put(out, o->indent.bytes, o->indent.count);
}

static bool put_json(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v,
                     const struct aq_jinja_json_opts *o, uint32_t level);

static bool json_list(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_list *l,
                      const struct aq_jinja_json_opts *o, uint32_t level)
{
    aq_buf_puts(out, "[");
    for (uint32_t i = 0; i < l->count; i++) {
        if (i)
            aq_buf_put(out, o->item_separator.bytes, o->item_separator.count);
        json_break(out, o, level + 1);
        if (!put_json(r, out, &l->item[i], o, level + 1))
            return false;
    }
    if (l->count)
        json_break(out, o, level);
    aq_buf_puts(out, "]");
    return true;
}

static int compare_entries(const void *a, const void *b)
{
    const struct aq_text *x = &((const struct aq_jinja_entry *)a)->key;
    const struct aq_text *y = &((const struct aq_jinja_entry *)b)->key;
    int order = memcmp(x->bytes, y->bytes, x->count < y->count ? x->count : y->count);
    return order ? order : (x->count > y->count) - (x->count < y->count);
}

static bool json_dict(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_dict *d,
                      const struct aq_jinja_json_opts *o, uint32_t level)
{
    const struct aq_jinja_entry *entry = d->entry;
    if (o->sort && d->count) {
        struct aq_jinja_entry *sorted = aq_jinja_take(r, d->count * sizeof(*sorted));
        if (!sorted)
            return false;
        memcpy(sorted, d->entry, d->count * sizeof(*sorted));
        qsort(sorted, d->count, sizeof(*sorted), compare_entries);
        entry = sorted;
    }
    aq_buf_puts(out, "{");
    for (uint32_t i = 0; i < d->count; i++) {
        if (i)
            aq_buf_put(out, o->item_separator.bytes, o->item_separator.count);
        json_break(out, o, level + 1);
        json_text(out, entry[i].key, o->ascii);
        aq_buf_put(out, o->key_separator.bytes, o->key_separator.count);
        if (!put_json(r, out, &entry[i].value, o, level + 1))
            return false;
    }
    if (d->count)
        json_break(out, o, level);
    aq_buf_puts(out, "}");
    return true;
}

static bool put_json(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v,
                     const struct aq_jinja_json_opts *o, uint32_t level)
{
    if (!aq_jinja_work(r, aq_jinja_is(v, AQ_JINJA_IS_STRING) ? v->count : level * o->indent.count))
        return false;
    if (out->count > AQ_JINJA_OUTPUT_MAX)
        return aq_jinja_fail_bound(r, "a value's text is too long");
    if (level >= AQ_JINJA_DEPTH_MAX)
        return aq_jinja_fail_bound(r, "values are nested too deep");
    switch ((enum aq_jinja_type)v->type) {
    case AQ_JINJA_IS_NONE: aq_buf_puts(out, "null"); return true;
    case AQ_JINJA_IS_BOOL: aq_buf_puts(out, v->integer ? "true" : "false"); return true;
    case AQ_JINJA_IS_INTEGER: aq_buf_printf(out, "%lld", (long long)v->integer); return true;
    case AQ_JINJA_IS_REAL:
        if (isnan(v->real) || isinf(v->real))
            aq_buf_puts(out, isnan(v->real) ? "NaN" : v->real < 0 ? "-Infinity" : "Infinity");
        else
            aq_jinja_print_real(out, v->real);
        return true;
    case AQ_JINJA_IS_STRING: json_text(out, aq_jinja_text(v), o->ascii); return true;
    case AQ_JINJA_IS_LIST:
    case AQ_JINJA_IS_TUPLE: return json_list(r, out, v->list, o, level);
    case AQ_JINJA_IS_DICT: return json_dict(r, out, v->dict, o, level);
    case AQ_JINJA_IS_UNDEFINED: return aq_jinja_fail_undefined(r, v);
    default:
        return aq_jinja_fail(r, "tojson: a value of type '%s' is not JSON", aq_jinja_type_name(v));
    }
}

bool aq_jinja_print_json(struct aq_jinja_run *r, struct aq_buf *out, const struct aq_jinja_value *v,
                         const struct aq_jinja_json_opts *opts)
{
    return put_json(r, out, v, opts, 0);
}
