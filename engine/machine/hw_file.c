/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/hw_file.c - hardware profiles as YAML, read strictly and written for people. */
#include "engine/machine/hw_keys.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/units.h"
#include "base/yaml.h"
#include "engine/options/options.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { QUOTE_MAX = 80, NAMES_MAX = AQ_HW_KEYS_MAX + 1 };
/* Of a spread; what varied more is written as this much. */
#define SPREAD_MAX 10.0

/* What is text. */
static const struct {
    enum aq_hw_section section;
    const char *name;
    size_t offset, bytes;
} texts[] = {
#define TEXT(section, name, field)                                                                 \
    {                                                                                              \
        section, name, offsetof(struct aq_hw_profile, field),                                      \
            sizeof(((struct aq_hw_profile *)0)->field)                                             \
    }
    TEXT(AQ_HW_MACHINE, "name", name),  TEXT(AQ_HW_MACHINE, "description", description),
    TEXT(AQ_HW_MACHINE, "cpu", cpu),    TEXT(AQ_HW_MACHINE, "made_for", made_for),
    TEXT(AQ_HW_DEVICE, "name", device),
#undef TEXT
};

struct reader {
    const char *name; /* of the file */
    struct aq_hw_profile *p;
    uint32_t line[AQ_HW_KEYS_MAX];
};

/* ---- scalars ----------------------------------------------------------------------------- */

static int unexpected(const struct reader *r, const struct aq_yaml_node *node, const char *label,
                      const char *expected, struct aq_err *reterr)
{
    char quoted[QUOTE_MAX], text[QUOTE_MAX + 8];
    const char *found = text;
    if (node->kind == AQ_YAML_SCALAR)
        snprintf(text, sizeof(text), "'%s'",
                 aq_quote(quoted, sizeof(quoted), node->text, strlen(node->text)));
    else
        found = aq_yaml_describe(node, text, sizeof(text));
    return aq_error(reterr, -EINVAL, "%s:%u: %s: expected %s, found %s", r->name, node->line, label,
                    expected, found);
}

static int read_text(const struct reader *r, const struct aq_yaml_node *node, const char *label,
                     char *ret, size_t bytes, struct aq_err *reterr)
{
    char expected[64];
    bool ok = node->kind == AQ_YAML_SCALAR && strlen(node->text) < bytes;
    for (const char *at = ok ? node->text : ""; *at; at++)
        ok = ok && (unsigned char)*at >= 0x20 && *at != 0x7f;
    snprintf(expected, sizeof(expected), "one line of at most %zu bytes", bytes - 1);
    if (!ok || aq_utf8_invalid_at(node->text, strlen(node->text)) < strlen(node->text))
        return unexpected(r, node, label, expected, reterr);
    memcpy(ret, node->text, strlen(node->text) + 1);
    return 0;
}

static int read_number(struct reader *r, const struct aq_yaml_node *node, uint32_t key,
                       struct aq_err *reterr)
{
    const struct aq_hw_key *k = &aq_hw_key_table[key];
    char label[AQ_HW_KEY_TEXT_MAX], expected[96];
    double value = 0;
    uint64_t size = 0;
    bool ok = node->kind == AQ_YAML_SCALAR;
    aq_hw_key_name(label, key);
    if (k->kind == AQ_HW_SIZE) {
        ok = ok && aq_parse_size(node->text, &size, NULL) == 0;
        ok = ok && (double)size >= k->min && (double)size <= k->max;
        snprintf(expected, sizeof(expected), "a size such as 16GiB, from %g to %g bytes", k->min,
                 k->max);
    } else {
        ok = ok && aq_parse_real(node->text, &value) && value >= k->min && value <= k->max;
        ok = ok && (k->kind == AQ_HW_REAL || value == floor(value));
        snprintf(expected, sizeof(expected), "%s%s%s from %g to %g",
                 k->kind == AQ_HW_COUNT ? "a whole number" : "a number", k->unit ? " of " : "",
                 k->unit ? k->unit : "", k->min, k->max);
    }
    if (!ok)
        return unexpected(r, node, label, expected, reterr);
    if (k->kind == AQ_HW_SIZE)
        *(uint64_t *)(void *)((char *)r->p + k->offset) = size;
    else
        aq_hw_key_set(r->p, key, value);
    return 0;
}

/* ---- maps -------------------------------------------------------------------------------- */

static int unknown_key(const struct reader *r, const struct aq_yaml_node *node, const char *where,
                       const char *const *names, size_t count, struct aq_err *reterr)
{
    char quoted[QUOTE_MAX];
    const char *near = aq_nearest(node->key, names, count);
    return aq_error(reterr, -EINVAL, "%s:%u: %s: expected one of its keys, found '%s'; %s%s%s",
                    r->name, node->line, where,
                    aq_quote(quoted, sizeof(quoted), node->key, strlen(node->key)),
                    near ? "the nearest one is '" : "aquifer help hardware lists them",
                    near ? near : "", near ? "'" : "");
}

/* {value, spread, source}: the long form of a number. */
static int read_long(struct reader *r, const struct aq_yaml_node *node, uint32_t key,
                     struct aq_err *reterr)
{
    static const char *const names[] = {"value", "spread", "source"};
    struct aq_hw_note *note = &r->p->note[key];
    char label[AQ_HW_KEY_TEXT_MAX], text[AQ_HW_KEY_TEXT_MAX + 16];
    const struct aq_yaml_node *value = NULL;
    int rc = 0;
    aq_hw_key_name(label, key);
    for (const struct aq_yaml_node *n = node->first; n && rc == 0; n = n->next) {
        snprintf(text, sizeof(text), "%s: %s", label, n->key);
        if (strcmp(n->key, "value") == 0) {
            value = n;
            rc = read_number(r, n, key, reterr);
        } else if (strcmp(n->key, "source") == 0) {
            rc = read_text(r, n, text, note->source, sizeof(note->source), reterr);
        } else if (strcmp(n->key, "spread") == 0) {
            bool ok = n->kind == AQ_YAML_SCALAR && aq_parse_real(n->text, &note->spread) &&
                      note->spread >= 0 && note->spread <= SPREAD_MAX;
            if (!ok)
                rc = unexpected(r, n, text, "a share from 0 to 10, such as 0.05", reterr);
        } else {
            rc = unknown_key(r, n, label, names, AQ_ARRAY_LEN(names), reterr);
        }
    }
    if (rc == 0 && !value)
        rc = aq_error(reterr, -EINVAL, "%s:%u: %s: expected 'value', found a map without it",
                      r->name, node->line, label);
    return rc;
}

/* ---- the price --------------------------------------------------------------------------- */

static const char price_key[] = "price_per_hour";

static bool is_date(const char *text)
{
    unsigned year, month, day;
    int end = 0;
    return strlen(text) == AQ_HW_DATE_MAX - 1 && !strpbrk(text, " +") &&
           sscanf(text, "%4u-%2u-%2u%n", &year, &month, &day, &end) == 3 &&
           end == AQ_HW_DATE_MAX - 1 && month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

static int read_price_part(struct reader *r, const struct aq_yaml_node *n, struct aq_err *reterr)
{
    static const char *const names[] = {"value", "date", "source"};
    struct aq_hw_price *price = &r->p->price;
    char label[AQ_HW_KEY_TEXT_MAX];
    snprintf(label, sizeof(label), "machine.%s: %s", price_key, n->key);
    if (strcmp(n->key, "source") == 0)
        return read_text(r, n, label, price->source, sizeof(price->source), reterr);
    if (strcmp(n->key, "date") == 0) {
        bool ok = n->kind == AQ_YAML_SCALAR && is_date(n->text);
        if (ok)
            memcpy(price->date, n->text, AQ_HW_DATE_MAX);
        return ok ? 0 : unexpected(r, n, label, "a date such as 2026-01-31", reterr);
    }
    if (strcmp(n->key, "value") == 0) {
        bool ok = n->kind == AQ_YAML_SCALAR && aq_money_parse(&price->per_hour, n->text);
        return ok ? 0
                  : unexpected(r, n, label, "an amount such as 1.20 EUR, $1.20 or 1.20", reterr);
    }
    return unknown_key(r, n, label, names, AQ_ARRAY_LEN(names), reterr);
}

/* {value, date, source}: a price without its date would be believed for ever. */
static int read_price(struct reader *r, const struct aq_yaml_node *node, struct aq_err *reterr)
{
    static const char expected[] = "{value: 1.20 EUR, date: 2026-01-31}";
    char label[AQ_HW_KEY_TEXT_MAX];
    int rc = 0;
    snprintf(label, sizeof(label), "machine.%s", price_key);
    if (node->kind != AQ_YAML_MAP)
        return unexpected(r, node, label, expected, reterr);
    for (const struct aq_yaml_node *n = node->first; n && rc == 0; n = n->next)
        rc = read_price_part(r, n, reterr);
    bool value = aq_yaml_get(node, "value"), date = aq_yaml_get(node, "date");
    if (rc == 0 && (!value || !date))
        rc = aq_error(reterr, -EINVAL, "%s:%u: %s: expected %s, found no %s", r->name, node->line,
                      label, expected, value ? "date" : "value");
    r->p->price.given = true;
    return rc;
}

static void put_price(struct aq_buf *b, const struct aq_hw_price *p)
{
    char text[AQ_MONEY_TEXT_MAX];
    if (!p->given)
        return;
    aq_money_exact(text, &p->per_hour);
    aq_buf_printf(b, "  %s: {value: ", price_key);
    aq_buf_json_string(b, text, strlen(text));
    aq_buf_printf(b, ", date: %s", p->date);
    if (*p->source) {
        aq_buf_puts(b, ", source: ");
        aq_buf_json_string(b, p->source, strlen(p->source));
    }
    aq_buf_puts(b, "}\n");
}

/* ---- sections ---------------------------------------------------------------------------- */

static size_t names_of(enum aq_hw_section section, const char *names[NAMES_MAX])
{
    size_t count = 0;
    names[count++] = "source";
    for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
        if (texts[i].section == section)
            names[count++] = texts[i].name;
    }
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        if (aq_hw_key_table[i].section == section)
            names[count++] = aq_hw_key_table[i].name;
    }
    if (section == AQ_HW_MACHINE)
        names[count++] = price_key;
    assert(count <= NAMES_MAX);
    return count;
}

/* One line of a section; *ret_source holds what it says of all of them. */
static int read_entry(struct reader *r, const struct aq_yaml_node *n, enum aq_hw_section section,
                      char ret_source[AQ_HW_TEXT_MAX], struct aq_err *reterr)
{
    const char *names[NAMES_MAX], *where = aq_hw_section_name(section);
    char label[AQ_HW_KEY_TEXT_MAX];
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        const struct aq_hw_key *k = &aq_hw_key_table[i];
        if (k->section != section || strcmp(k->name, n->key) != 0)
            continue;
        r->line[i] = n->line;
        r->p->note[i].origin = AQ_HW_GIVEN;
        return n->kind == AQ_YAML_MAP ? read_long(r, n, i, reterr) : read_number(r, n, i, reterr);
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
        if (texts[i].section != section || strcmp(texts[i].name, n->key) != 0)
            continue;
        snprintf(label, sizeof(label), "%s.%s", where, texts[i].name);
        return read_text(r, n, label, (char *)r->p + texts[i].offset, texts[i].bytes, reterr);
    }
    if (section == AQ_HW_MACHINE && strcmp(n->key, price_key) == 0)
        return read_price(r, n, reterr);
    if (strcmp(n->key, "source") == 0) {
        snprintf(label, sizeof(label), "%s.source", where);
        return read_text(r, n, label, ret_source, AQ_HW_TEXT_MAX, reterr);
    }
    return unknown_key(r, n, where, names, names_of(section, names), reterr);
}

static int read_section(struct reader *r, const struct aq_yaml_node *node,
                        enum aq_hw_section section, struct aq_err *reterr)
{
    char source[AQ_HW_TEXT_MAX] = "";
    int rc = 0;
    if (node->kind != AQ_YAML_MAP)
        return unexpected(r, node, aq_hw_section_name(section), "a map", reterr);
    for (const struct aq_yaml_node *n = node->first; n && rc == 0; n = n->next)
        rc = read_entry(r, n, section, source, reterr);
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        struct aq_hw_note *note = &r->p->note[i];
        if (aq_hw_key_table[i].section == section && note->origin == AQ_HW_GIVEN && !*note->source)
            snprintf(note->source, sizeof(note->source), "%s", source);
    }
    /* Its size is what says that there is a device, or a disk: it is missing where the section
     * begins. */
    uint32_t first = 0;
    while (aq_hw_key_table[first].section != section)
        first++;
    if (!r->line[first])
        r->line[first] = node->line;
    return rc;
}

static int read_root(struct reader *r, const struct aq_yaml_node *root, struct aq_err *reterr)
{
    const char *names[AQ_HW_SECTION_COUNT];
    for (int s = 0; s < AQ_HW_SECTION_COUNT; s++)
        names[s] = aq_hw_section_name((enum aq_hw_section)s);
    if (root->kind != AQ_YAML_MAP)
        return unexpected(r, root, "hardware profile", "sections machine, host, ...", reterr);
    for (const struct aq_yaml_node *n = root->first; n; n = n->next) {
        int s = 0, rc;
        while (s < AQ_HW_SECTION_COUNT && strcmp(names[s], n->key) != 0)
            s++;
        if (s == AQ_HW_SECTION_COUNT)
            return unknown_key(r, n, "hardware profile", names, AQ_HW_SECTION_COUNT, reterr);
        rc = read_section(r, n, (enum aq_hw_section)s, reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* "rack7" of "machines/rack7.yaml". */
static void name_by_file(struct aq_hw_profile *p, const char *path)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    const char *dot = strrchr(file, '.');
    int bytes = (int)(dot && dot > file ? (size_t)(dot - file) : strlen(file));
    snprintf(p->name, sizeof(p->name), "%.*s", bytes, file);
    p->name[aq_utf8_invalid_at(p->name, strlen(p->name))] = '\0'; /* of a letter that was cut */
}

int aq_hw_file_parse(struct aq_hw_profile *ret, const char *name, const char *text, size_t bytes,
                     struct aq_err *reterr)
{
    struct aq_yaml *y;
    struct aq_hw_profile p;
    struct reader r = {.name = name, .p = &p};
    int rc = aq_yaml_parse(&y, name, text, bytes, reterr);
    if (rc < 0)
        return rc;
    memset(&p, 0, sizeof(p));
    for (uint32_t i = 0; i < AQ_HW_KEYS_MAX; i++)
        p.note[i].spread = NAN;
    rc = read_root(&r, aq_yaml_root(y), reterr);
    aq_yaml_close(y);
    rc = rc < 0 ? rc : aq_hw_complete(&p, name, r.line, reterr);
    if (rc == 0 && !*p.name)
        name_by_file(&p, name);
    if (rc == 0)
        *ret = p;
    return rc;
}

int aq_hw_file_read(struct aq_hw_profile *ret, const char *path, struct aq_err *reterr)
{
    char *text;
    size_t bytes;
    int rc = aq_read_file(&text, &bytes, path, AQ_YAML_BYTES_MAX, reterr);
    if (rc < 0)
        return rc;
    rc = aq_hw_file_parse(ret, path, text, bytes, reterr);
    free(text);
    return rc;
}

/* ---- writing ----------------------------------------------------------------------------- */

/* In the largest unit that says it exactly. */
static void put_size(struct aq_buf *b, uint64_t bytes)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {{"TB", 1000000000000}, {"TiB", AQ_GIB * 1024}, {"GB", 1000000000},
                 {"GiB", AQ_GIB},       {"MB", 1000000},        {"MiB", AQ_MIB}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(units); i++) {
        if (bytes % units[i].bytes == 0) {
            aq_buf_printf(b, "%llu%s", (unsigned long long)(bytes / units[i].bytes), units[i].name);
            return;
        }
    }
    aq_buf_printf(b, "%llu", (unsigned long long)bytes);
}

static void put_number(struct aq_buf *b, const struct aq_hw_profile *p, uint32_t key)
{
    const struct aq_hw_key *k = &aq_hw_key_table[key];
    if (k->kind == AQ_HW_SIZE)
        put_size(b, *(const uint64_t *)(const void *)((const char *)p + k->offset));
    else
        aq_buf_printf(b, "%.5g", aq_hw_key_value(p, key));
}

static void put_text(struct aq_buf *b, const char *name, const char *text)
{
    if (!*text)
        return;
    aq_buf_printf(b, "  %s: ", name);
    aq_buf_json_string(b, text, strlen(text));
    aq_buf_puts(b, "\n");
}

/* The source that all given numbers of a section share; "" where they do not. */
static const char *shared_source(const struct aq_hw_profile *p, enum aq_hw_section section)
{
    const char *source = NULL;
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        if (aq_hw_key_table[i].section != section || p->note[i].origin != AQ_HW_GIVEN)
            continue;
        if (source && strcmp(source, p->note[i].source) != 0)
            return "";
        source = p->note[i].source;
    }
    return source ? source : "";
}

static void put_entry(struct aq_buf *b, const struct aq_hw_profile *p, uint32_t key,
                      const char *shared)
{
    const struct aq_hw_note *n = &p->note[key];
    bool source = *n->source && strcmp(n->source, shared) != 0, spread = !isnan(n->spread);
    aq_buf_printf(b, "  %s: ", aq_hw_key_table[key].name);
    if (source || spread)
        aq_buf_puts(b, "{value: ");
    put_number(b, p, key);
    if (spread)
        aq_buf_printf(b, ", spread: %.2g", fmin(n->spread, SPREAD_MAX));
    if (source) {
        aq_buf_puts(b, ", source: ");
        aq_buf_json_string(b, n->source, strlen(n->source));
    }
    aq_buf_puts(b, source || spread ? "}\n" : "\n");
}

static bool has_given(const struct aq_hw_profile *p, enum aq_hw_section section)
{
    for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
        if (aq_hw_key_table[i].section == section && p->note[i].origin == AQ_HW_GIVEN)
            return true;
    }
    return false;
}

void aq_hw_file_text(struct aq_buf *ret, const struct aq_hw_profile *p)
{
    aq_buf_puts(ret, "# A hardware profile of aquifer. What is left out is derived.\n");
    for (int s = 0; s < AQ_HW_SECTION_COUNT; s++) {
        enum aq_hw_section section = (enum aq_hw_section)s;
        const char *shared = shared_source(p, section);
        if (!has_given(p, section))
            continue;
        aq_buf_printf(ret, "\n%s:\n", aq_hw_section_name(section));
        for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
            if (texts[i].section == section)
                put_text(ret, texts[i].name, (const char *)p + texts[i].offset);
        }
        put_text(ret, "source", shared);
        for (uint32_t i = 0; i < aq_hw_key_count(); i++) {
            if (aq_hw_key_table[i].section == section && p->note[i].origin == AQ_HW_GIVEN)
                put_entry(ret, p, i, shared);
        }
        if (section == AQ_HW_MACHINE)
            put_price(ret, &p->price);
    }
}

int aq_hw_file_write(const struct aq_hw_profile *p, const char *path, struct aq_err *reterr)
{
    struct aq_buf b = {0};
    int rc;
    aq_hw_file_text(&b, p);
    if (b.failed)
        rc = aq_error_memory(reterr, "hardware profile '%s'", path);
    else
        rc = aq_file_replace(path, b.data, b.count, false, reterr);
    aq_buf_close(&b);
    return rc;
}
