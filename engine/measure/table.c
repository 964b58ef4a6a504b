/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/table.h"

#include "base/json.h"
#include "base/nearest.h"
#include "base/yaml.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum field_kind {
    FIELD_TEXT,    /* char * */
    FIELD_COUNT,   /* uint32_t */
    FIELD_NUMBER,  /* double */
    FIELD_FLAG,    /* bool: on, off */
    FIELD_RATE,    /* double: {value, source}, times scale */
    FIELD_PERCENT, /* double[6] */
    FIELD_ENGINE,  /* uint32_t: name of one of the table's */
    FIELD_STEPS,   /* bool: first | all */
};

struct field {
    const char *name;
    enum field_kind kind;
    size_t offset;
    double min, max; /* of numbers */
    double scale;    /* of rates: from the unit of the name */
    bool required;
};

struct reader {
    const char *path;
    struct aq_table *table;
};

static int wrong(const struct reader *r, const struct aq_yaml_node *node, const char *expected,
                 struct aq_err *reterr)
{
    char found[128];
    return aq_error(reterr, -EINVAL, "%s:%u: %s: expected %s, found %s", r->path, node->line,
                    node->key ? node->key : "row", expected,
                    aq_yaml_describe(node, found, sizeof(found)));
}

static int read_text(const struct reader *r, const struct aq_yaml_node *node, char **ret,
                     struct aq_err *reterr)
{
    if (node->kind != AQ_YAML_SCALAR || !*node->text)
        return wrong(r, node, "text", reterr);
    *ret = strdup(node->text);
    return *ret ? 0 : aq_error_memory(reterr, "'%s'", r->path);
}

static int read_number(const struct reader *r, const struct aq_yaml_node *node, double min,
                       double max, double *ret, struct aq_err *reterr)
{
    char expected[96], *end = NULL;
    double x = node->kind == AQ_YAML_SCALAR ? strtod(node->text, &end) : NAN;
    snprintf(expected, sizeof(expected), "a number from %g to %g", min, max);
    if (!end || end == node->text || *end || node->quoted || !(x >= min && x <= max))
        return wrong(r, node, expected, reterr);
    *ret = x;
    return 0;
}

static int read_flag(const struct reader *r, const struct aq_yaml_node *node, const char *on,
                     const char *off, bool *ret, struct aq_err *reterr)
{
    char expected[64];
    const char *text = node->kind == AQ_YAML_SCALAR ? node->text : "";
    snprintf(expected, sizeof(expected), "%s or %s", on, off);
    if (strcasecmp(text, on) != 0 && strcasecmp(text, off) != 0)
        return wrong(r, node, expected, reterr);
    *ret = strcasecmp(text, on) == 0;
    return 0;
}

/* "20 80 0 100 0 100": what is left of each pair is on disk. */
static int read_percent(const struct reader *r, const struct aq_yaml_node *node, double ret[6],
                        struct aq_err *reterr)
{
    static const char *const expected = "six percentages, each pair adding up to at most 100";
    const char *at = node->kind == AQ_YAML_SCALAR ? node->text : "";
    for (int i = 0; i < 6; i++) {
        char *end = NULL;
        double x = strtod(at, &end);
        bool second = i % 2, fits = x >= 0 && x <= 100 - (second ? ret[i - 1] : 0);
        if (end == at || !fits)
            return wrong(r, node, expected, reterr);
        ret[i] = x;
        at = end;
    }
    return *at ? wrong(r, node, expected, reterr) : 0;
}

static int read_engine_name(const struct reader *r, const struct aq_yaml_node *node, uint32_t *ret,
                            struct aq_err *reterr)
{
    const struct aq_table *t = r->table;
    for (uint32_t i = 0; node->kind == AQ_YAML_SCALAR && i < t->engine_count; i++) {
        if (strcmp(t->engine[i].name, node->text) == 0) {
            *ret = i;
            return 0;
        }
    }
    return wrong(r, node, "the name of one of the table's engines", reterr);
}

static int read_fields(const struct reader *r, const struct aq_yaml_node *map,
                       const struct field *field, size_t count, void *base, struct aq_err *reterr);

static int read_rate(const struct reader *r, const struct aq_yaml_node *node, const struct field *f,
                     double *ret, struct aq_err *reterr)
{
    struct rate {
        double value;
        char *source;
    } rate = {0};
    const struct field fields[] = {
        {"value", FIELD_NUMBER, offsetof(struct rate, value), f->min, f->max, .required = true},
        {"source", FIELD_TEXT, offsetof(struct rate, source), .required = true},
    };
    int rc = read_fields(r, node, fields, AQ_ARRAY_LEN(fields), &rate, reterr);
    free(rate.source);
    if (rc == 0)
        *ret = rate.value * f->scale;
    return rc;
}

static int read_field(const struct reader *r, const struct aq_yaml_node *node,
                      const struct field *f, void *at, struct aq_err *reterr)
{
    double x = 0;
    int rc;
    switch (f->kind) {
    case FIELD_TEXT: return read_text(r, node, at, reterr);
    case FIELD_NUMBER: return read_number(r, node, f->min, f->max, at, reterr);
    case FIELD_FLAG: return read_flag(r, node, "on", "off", at, reterr);
    case FIELD_STEPS: return read_flag(r, node, "first", "all", at, reterr);
    case FIELD_RATE: return read_rate(r, node, f, at, reterr);
    case FIELD_PERCENT: return read_percent(r, node, at, reterr);
    case FIELD_ENGINE: return read_engine_name(r, node, at, reterr);
    case FIELD_COUNT:
        rc = read_number(r, node, f->min, f->max, &x, reterr);
        if (rc == 0 && x != floor(x))
            return wrong(r, node, "a whole number", reterr);
        if (rc == 0)
            *(uint32_t *)at = (uint32_t)x;
        return rc;
    }
    assert(!"a kind of field");
    return -EINVAL;
}

static int unknown_key(const struct reader *r, const struct aq_yaml_node *node,
                       const struct field *field, size_t count, struct aq_err *reterr)
{
    const char *names[24];
    assert(count <= AQ_ARRAY_LEN(names));
    for (size_t i = 0; i < count; i++)
        names[i] = field[i].name;
    const char *near = aq_nearest(node->key, names, count);
    return aq_error(reterr, -EINVAL, "%s:%u: unknown key '%s'%s%s%s", r->path, node->line,
                    node->key, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int read_fields(const struct reader *r, const struct aq_yaml_node *map,
                       const struct field *field, size_t count, void *base, struct aq_err *reterr)
{
    if (map->kind != AQ_YAML_MAP)
        return wrong(r, map, "a map", reterr);
    for (const struct aq_yaml_node *n = map->first; n; n = n->next) {
        size_t i = 0;
        while (i < count && strcmp(field[i].name, n->key) != 0)
            i++;
        if (i == count)
            return unknown_key(r, n, field, count, reterr);
        int rc = read_field(r, n, &field[i], (char *)base + field[i].offset, reterr);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < count; i++) {
        if (field[i].required && !aq_yaml_get(map, field[i].name))
            return aq_error(reterr, -EINVAL, "%s:%u: expected the key '%s', found none", r->path,
                            map->line, field[i].name);
    }
    return 0;
}

/* ---- engines and policies ---------------------------------------------------------------- */

#define ENGINE(field) offsetof(struct aq_table_engine, field)
#define RATE(name, field, unit)                                                                    \
    {                                                                                              \
        name, FIELD_RATE, ENGINE(field), 1e-6, 1e6, unit                                           \
    }

static int read_engine(struct reader *r, const struct aq_yaml_node *node, struct aq_err *reterr)
{
    static const struct field fields[] = {
        {"hardware", FIELD_TEXT, ENGINE(hardware), .required = true},
        RATE("prefill-tflop-s", rates.prefill_flops_per_s, 1e12),
        RATE("decode-tflop-s", rates.decode_flops_per_s, 1e12),
        RATE("prefill-attention-tflop-s", rates.prefill_attention_flops_per_s, 1e12),
        RATE("decode-attention-gb-s", rates.decode_attention_bytes_per_s, 1e9),
        RATE("host-attention-gb-s", rates.host_attention_bytes_per_s, 1e9),
        RATE("kv-store-gb-s", rates.kv_store_bytes_per_s, 1e9),
        RATE("pageable-gb-s", rates.pageable_bytes_per_s, 1e9),
        RATE("unpack-gb-s", rates.unpack_bytes_per_s, 1e9),
        RATE("link-gb-s", link_bytes_per_s, 1e9),
        RATE("disk-read-gb-s", disk_read_bytes_per_s, 1e9),
        RATE("disk-write-gb-s", disk_write_bytes_per_s, 1e9),
    };
    if (r->table->engine_count == AQ_TABLE_ENGINES_MAX)
        return aq_error(reterr, -EINVAL, "%s:%u: expected at most %d engines", r->path, node->line,
                        AQ_TABLE_ENGINES_MAX);
    struct aq_table_engine *e = &r->table->engine[r->table->engine_count++];
    e->name = strdup(node->key);
    if (!e->name)
        return aq_error_memory(reterr, "'%s'", r->path);
    return read_fields(r, node, fields, AQ_ARRAY_LEN(fields), e, reterr);
}

#define POLICY(field) offsetof(struct aq_table_policy, field)

static int read_policy(const struct reader *r, const struct aq_yaml_node *node,
                       struct aq_table_policy *ret, struct aq_err *reterr)
{
    static const struct field fields[] = {
        {"engine", FIELD_ENGINE, POLICY(engine), .required = true},
        {"gpu-batch-size", FIELD_COUNT, POLICY(gpu_batch_size), 1, 65535, .required = true},
        {"num-gpu-batches", FIELD_COUNT, POLICY(num_gpu_batches), 1, 256, .required = true},
        {"percent", FIELD_PERCENT, POLICY(percent), .required = true},
        {"cpu-cache-compute", FIELD_FLAG, POLICY(cpu_cache_compute)},
        {"pin-weight", FIELD_FLAG, POLICY(pin_weight)},
        {"compress-weight", FIELD_FLAG, POLICY(compress_weight)},
        {"compress-cache", FIELD_FLAG, POLICY(compress_cache)},
        {"overlap", FIELD_FLAG, POLICY(overlap)},
        {"hh-ratio", FIELD_NUMBER, POLICY(hh_ratio), 0, 0.5},
        {"prompt-mean", FIELD_NUMBER, POLICY(prompt_mean), 1, 1e6},
        {"decode-steps", FIELD_STEPS, POLICY(first_step)},
    };
    *ret = (struct aq_table_policy){.pin_weight = true, .overlap = true};
    return read_fields(r, node, fields, AQ_ARRAY_LEN(fields), ret, reterr);
}

/* ---- rows -------------------------------------------------------------------------------- */

/* Options that tell of a whole command rather than of one run. */
static const char *const not_of_a_row[] = {"table", "config", "format", "output",  "report",
                                           "json",  "trace",  "quiet",  "progress"};

/* An option goes on as text, as on a command line; '-' and '_' are the same in its name. */
static int read_option(const struct reader *r, const struct aq_yaml_node *node, json_t *options,
                       struct aq_err *reterr)
{
    char key[64];
    snprintf(key, sizeof(key), "%s", node->key);
    for (char *c = key; *c; c++)
        *c = *c == '-' ? '_' : *c;
    for (size_t i = 0; i < AQ_ARRAY_LEN(not_of_a_row); i++) {
        if (strcmp(not_of_a_row[i], key) == 0)
            return aq_error(reterr, -EINVAL,
                            "%s:%u: '%s' is an option of the whole table, not of a row", r->path,
                            node->line, node->key);
    }
    if (node->kind != AQ_YAML_SCALAR)
        return wrong(r, node, "one value", reterr);
    return json_object_set_new(options, key, json_string(node->text)) < 0
               ? aq_error(reterr, -EINVAL, "%s:%u: %s: expected UTF-8 text", r->path, node->line,
                          node->key)
               : 0;
}

static int read_published(const struct reader *r, const struct aq_yaml_node *node,
                          struct aq_table_row *row, struct aq_err *reterr)
{
    static const struct field fields[] = {
        {"tok-s", FIELD_NUMBER, offsetof(struct aq_table_row, published), 1e-6, 1e9,
         .required = true},
        {"source", FIELD_TEXT, offsetof(struct aq_table_row, source), .required = true},
    };
    return read_fields(r, node, fields, AQ_ARRAY_LEN(fields), row, reterr);
}

static int read_row_key(const struct reader *r, const struct aq_yaml_node *n,
                        struct aq_table_row *row, struct aq_err *reterr)
{
    if (strcmp(n->key, "name") == 0)
        return read_text(r, n, &row->name, reterr);
    if (strcmp(n->key, "note") == 0)
        return read_text(r, n, &row->note, reterr);
    if (strcmp(n->key, "machine") == 0)
        return read_text(r, n, &row->machine, reterr);
    if (strcmp(n->key, "published") == 0)
        return read_published(r, n, row, reterr);
    if (strcmp(n->key, "policy") == 0) {
        row->has_policy = true;
        return read_policy(r, n, &row->policy, reterr);
    }
    return read_option(r, n, row->options, reterr);
}

static int read_row(struct reader *r, const struct aq_yaml_node *node, const json_t *defaults,
                    struct aq_err *reterr)
{
    struct aq_table *t = r->table;
    struct aq_table_row *row = &t->row[t->row_count++];
    if (node->kind != AQ_YAML_MAP)
        return wrong(r, node, "a map", reterr);
    row->line = node->line;
    row->options = aq_json_copy(defaults);
    if (!row->options)
        return aq_error_memory(reterr, "'%s'", r->path);
    for (const struct aq_yaml_node *n = node->first; n; n = n->next) {
        int rc = read_row_key(r, n, row, reterr);
        if (rc < 0)
            return rc;
    }
    if (!row->name)
        return aq_error(reterr, -EINVAL, "%s:%u: expected the key 'name', found none", r->path,
                        node->line);
    for (uint32_t i = 0; i + 1 < t->row_count; i++) {
        if (strcmp(t->row[i].name, row->name) == 0)
            return aq_error(reterr, -EINVAL, "%s:%u: the row '%s' was already given in line %u",
                            r->path, node->line, row->name, t->row[i].line);
    }
    return 0;
}

static int read_rows(struct reader *r, const struct aq_yaml_node *rows, const json_t *defaults,
                     struct aq_err *reterr)
{
    if (rows->kind != AQ_YAML_LIST || !rows->count)
        return wrong(r, rows, "a list of rows", reterr);
    if (rows->count > AQ_TABLE_ROWS_MAX)
        return aq_error(reterr, -EINVAL, "%s:%u: expected at most %d rows, found %u", r->path,
                        rows->line, AQ_TABLE_ROWS_MAX, rows->count);
    r->table->row = calloc(rows->count, sizeof(*r->table->row));
    if (!r->table->row)
        return aq_error_memory(reterr, "'%s'", r->path);
    for (const struct aq_yaml_node *n = rows->first; n; n = n->next) {
        int rc = read_row(r, n, defaults, reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_maps(struct reader *r, const struct aq_yaml_node *root, json_t *defaults,
                     struct aq_err *reterr)
{
    const struct aq_yaml_node *n = aq_yaml_get(root, "defaults");
    if (n && n->kind != AQ_YAML_MAP)
        return wrong(r, n, "a map of options", reterr);
    for (n = n ? n->first : NULL; n; n = n->next) {
        int rc = read_option(r, n, defaults, reterr);
        if (rc < 0)
            return rc;
    }
    n = aq_yaml_get(root, "engines");
    if (n && n->kind != AQ_YAML_MAP)
        return wrong(r, n, "a map of engines", reterr);
    for (n = n ? n->first : NULL; n; n = n->next) {
        int rc = read_engine(r, n, reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_root(struct reader *r, const struct aq_yaml_node *root, struct aq_err *reterr)
{
    static const char *const known[] = {"table", "about", "defaults", "engines", "rows"};
    if (root->kind != AQ_YAML_MAP)
        return wrong(r, root, "a map with the keys table and rows", reterr);
    for (const struct aq_yaml_node *n = root->first; n; n = n->next) {
        size_t i = 0;
        while (i < AQ_ARRAY_LEN(known) && strcmp(known[i], n->key) != 0)
            i++;
        if (i == AQ_ARRAY_LEN(known))
            return aq_error(reterr, -EINVAL,
                            "%s:%u: unknown key '%s'; a table has table, about, defaults, engines "
                            "and rows",
                            r->path, n->line, n->key);
    }
    const struct aq_yaml_node *name = aq_yaml_get(root, "table"), *rows = aq_yaml_get(root, "rows");
    const struct aq_yaml_node *about = aq_yaml_get(root, "about");
    if (!name || !rows)
        return aq_error(reterr, -EINVAL, "%s: expected the key '%s', found none", r->path,
                        name ? "rows" : "table");
    json_t *defaults = json_object();
    int rc = defaults ? read_text(r, name, &r->table->name, reterr)
                      : aq_error_memory(reterr, "'%s'", r->path);
    rc = rc < 0 || !about ? rc : read_text(r, about, &r->table->about, reterr);
    rc = rc < 0 ? rc : read_maps(r, root, defaults, reterr);
    rc = rc < 0 ? rc : read_rows(r, rows, defaults, reterr);
    json_decref(defaults);
    return rc;
}

int aq_table_read(struct aq_table **ret, const char *path, struct aq_err *reterr)
{
    struct aq_yaml *yaml;
    int rc = aq_yaml_read_file(&yaml, path, reterr);
    if (rc < 0)
        return rc;
    struct reader r = {.path = path, .table = calloc(1, sizeof(*r.table))};
    rc =
        r.table ? read_root(&r, aq_yaml_root(yaml), reterr) : aq_error_memory(reterr, "'%s'", path);
    aq_yaml_close(yaml);
    if (rc < 0)
        aq_table_close(r.table);
    else
        *ret = r.table;
    return rc;
}

void aq_table_close(struct aq_table *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->engine_count; i++) {
        free(t->engine[i].name);
        free(t->engine[i].hardware);
    }
    for (uint32_t i = 0; i < t->row_count; i++) {
        free(t->row[i].name);
        free(t->row[i].source);
        free(t->row[i].note);
        free(t->row[i].machine);
        json_decref(t->row[i].options);
    }
    free(t->row);
    free(t->name);
    free(t->about);
    free(t);
}
