/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/store_manifest.h"

#include "base/buf.h"
#include "base/json.h"
#include "engine/checkpoint/store_tiles.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A logical space larger than this cannot be meant: it keeps every sum below within 64 bits. */
#define SPACE_BYTES_MAX (1ull << 56)

/* Plan and identity are those of the first version of the format, whatever the manifest's: later
 * ones add what follows from the same contents. */
enum { HASHED_VERSION = 1, TILES_VERSION = 2 };

static const char *const kind_names[AQ_STORE_KIND_COUNT] = {
    [AQ_STORE_MATRIX] = "matrix",
    [AQ_STORE_TABLE] = "table",
    [AQ_STORE_VECTOR] = "vector",
    [AQ_STORE_BLOB] = "blob",
};

const char *aq_store_kind_name(enum aq_store_kind k)
{
    return (unsigned)k < AQ_STORE_KIND_COUNT ? kind_names[k] : "?";
}

void aq_store_manifest_close(struct aq_store_manifest *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; m->items && i < m->item_count; i++) {
        free((char *)m->items[i].name);
        free(m->items[i].tile_xxh3);
    }
    for (uint32_t i = 0; m->steps && i < m->step_count; i++)
        free((char *)m->steps[i].name);
    for (uint32_t i = 0; m->files && i < m->file_count; i++)
        free((char *)m->files[i].name);
    for (uint32_t i = 0; m->dirs && i < m->dir_count; i++)
        free(m->dirs[i]);
    free(m->items);
    free(m->steps);
    free(m->files);
    free(m->dirs);
    free(m->source);
    free(m->by_name);
    json_decref(m->model);
    free(m);
}

/* Names appear in messages: printable ASCII only. */
static bool name_ok(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        if (name[i] < 0x20 || name[i] > 0x7e)
            return false;
    }
    return n >= 1 && n <= AQ_STORE_NAME_MAX;
}

bool aq_store_file_name_ok(const char *name)
{
    const char *slash = strchr(name, '/'), *base = slash ? slash + 1 : name;
    if (!name_ok(name) || *name == '.' || slash == name)
        return false;
    if (slash && (!*base || *base == '.' || strchr(base, '/')))
        return false;
    return strcmp(name, AQ_STORE_MANIFEST_NAME) != 0 && strcmp(name, AQ_STORE_STRIPE_NAME) != 0 &&
           strcmp(name, "journal") != 0 && strncmp(name, "data.", 5) != 0;
}

/* ---- shapes: one check for what is read and for what will be written ---- */

/* jansson makes strings of valid UTF-8 only. */
static bool is_utf8(const char *text)
{
    size_t bytes = strlen(text);
    return aq_utf8_invalid_at(text, bytes) == bytes;
}

/* Bytes that the item's kind, dtype and shape ask for; for a blob those it claims. */
static int item_bytes(uint64_t *ret, const struct aq_store_item *item, int code,
                      struct aq_err *reterr)
{
    const char *kind = aq_store_kind_name(item->kind);
    bool blob = item->kind == AQ_STORE_BLOB, matrix = item->kind == AQ_STORE_MATRIX;
    bool quantised = aq_dtype_is_quantised(item->dtype);
    if (blob ? item->dtype != AQ_U8 : !aq_dtype_is_float(item->dtype) && !(matrix && quantised))
        return aq_error(reterr, code, "item '%s': dtype: expected %s for a %s, found %s",
                        item->name,
                        blob     ? "u8"
                        : matrix ? "f32, f16, bf16, int8 or int4"
                                 : "f32, f16 or bf16",
                        kind, aq_dtype_name(item->dtype));
    if (item->kind != AQ_STORE_MATRIX && item->layout != AQ_LAYOUT_ROWS)
        return aq_error(reterr, code, "item '%s': layout: expected rows for a %s, found %s",
                        item->name, kind, aq_layout_name(item->layout));
    if (quantised != (item->layout == AQ_LAYOUT_GROUP64))
        return aq_error(reterr, code, "item '%s': layout: expected %s for %s, found %s", item->name,
                        quantised ? "group64" : "rows, pair64 or col64", aq_dtype_name(item->dtype),
                        aq_layout_name(item->layout));
    bool shape_ok = blob ? item->rows == 0 && item->cols == 0
                         : item->cols > 0 && item->rows > 0 &&
                               (item->kind != AQ_STORE_VECTOR || item->rows == 1);
    if (!shape_ok)
        return aq_error(reterr, code, "item '%s': rows %u, cols %u is no shape of a %s", item->name,
                        item->rows, item->cols, kind);
    uint64_t bytes = item->bytes, element = aq_dtype_bytes(item->dtype);
    if (matrix) {
        /* A panel has at most 2^40 bytes and there are at most 2^26 of them. */
        if (aq_mul_overflows((uint64_t)aq_panel_bytes(item->dtype, item->cols),
                             (uint64_t)aq_panel_count(item->rows), &bytes))
            bytes = UINT64_MAX;
    } else if (!blob) {
        if (aq_mul_overflows((uint64_t)item->rows * item->cols, element, &bytes))
            bytes = UINT64_MAX;
    }
    if (bytes == 0 || bytes > SPACE_BYTES_MAX)
        return aq_error(reterr, code, "item '%s': expected 1 to 2^56 bytes, found %llu", item->name,
                        (unsigned long long)bytes);
    *ret = bytes;
    return 0;
}

struct named {
    const char *name;
    uint32_t index;
};

static int compare_named(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* Sorts the items by name for aq_store_manifest_find; two of one name are an error. */
static int index_names(struct aq_store_manifest *m, int code, struct aq_err *reterr)
{
    struct named *sorted = calloc(m->item_count + 1ul, sizeof(*sorted));
    m->by_name = calloc(m->item_count + 1ul, sizeof(*m->by_name));
    if (!sorted || !m->by_name) {
        free(sorted);
        return aq_error_memory(reterr, "index of %u items", m->item_count);
    }
    for (uint32_t i = 0; i < m->item_count; i++)
        sorted[i] = (struct named){m->items[i].name, i};
    qsort(sorted, m->item_count, sizeof(*sorted), compare_named);
    int rc = 0;
    for (uint32_t i = 0; i < m->item_count; i++) {
        m->by_name[i] = sorted[i].index;
        if (i > 0 && strcmp(sorted[i - 1].name, sorted[i].name) == 0)
            rc = aq_error(reterr, code, "item '%s' is there twice", sorted[i].name);
    }
    free(sorted);
    return rc;
}

uint32_t aq_store_manifest_find(const struct aq_store_manifest *m, const char *name)
{
    uint32_t low = 0, high = m->item_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, m->items[m->by_name[middle]].name);
        if (order == 0)
            return m->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return UINT32_MAX;
}

/* ---- out: JSON and the hashes over it ---- */

static json_t *hash_json(uint64_t hash)
{
    char hex[17];
    snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)hash);
    return json_string(hex);
}

/* The purpose of a description: the plan leaves the checksums out, the identity those of tiles. */
enum detail { FOR_PLAN, FOR_IDENTITY, IN_FULL };

static int add_sums(json_t *o, const struct aq_store_item *item, enum detail detail)
{
    int rc = detail > FOR_PLAN ? json_object_set_new(o, "xxh3", hash_json(item->xxh3)) : 0;
    if (rc < 0 || detail < IN_FULL || !item->tile_xxh3)
        return rc;
    char *text = aq_store_tiles_text(item);
    rc = json_object_set_new(o, "tiles", text ? json_string(text) : NULL);
    free(text);
    return rc;
}

static json_t *item_json(const struct aq_store_item *item, enum detail detail)
{
    json_t *o = json_pack("{ss ss ss ss sI sI sI sI}", "name", item->name, "kind",
                          aq_store_kind_name(item->kind), "dtype", aq_dtype_name(item->dtype),
                          "layout", aq_layout_name(item->layout), "rows", (json_int_t)item->rows,
                          "cols", (json_int_t)item->cols, "offset", (json_int_t)item->offset,
                          "bytes", (json_int_t)item->bytes);
    if (o && json_object_set_new(o, "codec", json_string("none")) < 0) {
        json_decref(o);
        return NULL;
    }
    if (o && add_sums(o, item, detail) < 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *step_json(const struct aq_store_manifest *m, const struct aq_store_step *step,
                         enum detail detail)
{
    json_t *items = json_array();
    for (uint32_t i = 0; items && i < step->item_count; i++) {
        if (json_array_append_new(items, item_json(&m->items[step->first_item + i], detail)) < 0) {
            json_decref(items);
            return NULL;
        }
    }
    return json_pack("{ss sI sI so}", "name", step->name, "offset", (json_int_t)step->offset,
                     "bytes", (json_int_t)step->bytes, "items", items);
}

/* The part of the document that both hashes cover: all but directories and files. */
static json_t *body_json(const struct aq_store_manifest *m, enum detail detail)
{
    json_t *steps = json_array();
    for (uint32_t i = 0; steps && i < m->step_count; i++) {
        if (json_array_append_new(steps, step_json(m, &m->steps[i], detail)) < 0) {
            json_decref(steps);
            return NULL;
        }
    }
    return json_pack("{ss si si ss sO sI so}", "schema", "aquifer.store", "format_version",
                     detail == IN_FULL ? (int)m->version : HASHED_VERSION, "unit_bytes",
                     AQ_STORE_UNIT_BYTES, "source", m->source, "model", m->model, "bytes",
                     (json_int_t)m->bytes, "steps", steps);
}

static json_t *files_json(const struct aq_store_manifest *m)
{
    json_t *files = json_array();
    for (uint32_t i = 0; files && i < m->file_count; i++) {
        json_t *file =
            json_pack("{ss sI so}", "name", m->files[i].name, "bytes",
                      (json_int_t)m->files[i].bytes, "xxh3", hash_json(m->files[i].xxh3));
        if (json_array_append_new(files, file) < 0) {
            json_decref(files);
            return NULL;
        }
    }
    return files;
}

/* XXH3-64 of the compact, key-sorted text; steals the reference. */
static int hash_of_json(uint64_t *ret, json_t *value, struct aq_err *reterr)
{
    char *text = value ? aq_json_dump(value, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(value);
    if (!text)
        return aq_error_memory(reterr, "manifest of the store");
    *ret = XXH3_64bits(text, strlen(text));
    free(text);
    return 0;
}

static int plan_of(uint64_t *ret, const struct aq_store_manifest *m, struct aq_err *reterr)
{
    return hash_of_json(ret, body_json(m, FOR_PLAN), reterr);
}

int aq_store_manifest_identity(uint64_t *ret, const struct aq_store_manifest *m,
                               struct aq_err *reterr)
{
    json_t *body = body_json(m, FOR_IDENTITY);
    if (body && json_object_set_new(body, "files", files_json(m)) < 0) {
        json_decref(body);
        body = NULL;
    }
    return hash_of_json(ret, body, reterr);
}

/* One hash of the sums of all tiles. */
static uint64_t tiles_of(const struct aq_store_manifest *m)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < m->item_count; i++) {
        const struct aq_store_item *item = &m->items[i];
        if (item->tile_xxh3)
            hash = XXH3_64bits_withSeed(item->tile_xxh3,
                                        aq_store_tile_count(item) * sizeof(*item->tile_xxh3), hash);
    }
    return hash;
}

int aq_store_manifest_json(json_t **ret, const struct aq_store_manifest *m, struct aq_err *reterr)
{
    json_t *body = body_json(m, IN_FULL), *dirs = json_array();
    for (uint32_t i = 0; dirs && i < m->dir_count; i++) {
        if (json_array_append_new(dirs, json_string(m->dirs[i])) < 0) {
            json_decref(dirs);
            json_decref(body);
            return is_utf8(m->dirs[i])
                       ? aq_error_memory(reterr, "manifest of the store")
                       : aq_error(reterr, -EINVAL, "directory '%s': the path is not UTF-8",
                                  m->dirs[i]);
        }
    }
    json_t *head = json_pack("{so so so so}", "plan", hash_json(m->plan), "id", hash_json(m->id),
                             "directories", dirs, "files", files_json(m));
    if (!body || !head || json_object_update(body, head) < 0 ||
        (m->version >= TILES_VERSION &&
         json_object_set_new(body, "tiles", hash_json(tiles_of(m))) < 0)) {
        json_decref(body);
        json_decref(head);
        return aq_error_memory(reterr, "manifest of the store");
    }
    json_decref(head);
    *ret = body;
    return 0;
}

/* ---- laying out a new store ---- */

static int lay_out_step(struct aq_store_manifest *m, const struct aq_store_step_desc *desc,
                        uint32_t index, struct aq_err *reterr)
{
    struct aq_store_step *step = &m->steps[index];
    step->first_item = m->item_count;
    step->offset = m->bytes;
    if (!name_ok(desc->name))
        return aq_error(reterr, -EINVAL, "step %u: expected a name of 1 to %d printable characters",
                        index, AQ_STORE_NAME_MAX);
    step->name = strdup(desc->name);
    if (!step->name)
        return aq_error_memory(reterr, "step '%s'", desc->name);
    uint64_t at = m->bytes;
    for (uint32_t i = 0; i < desc->item_count; i++) {
        const struct aq_store_item_desc *d = &desc->items[i];
        if (!name_ok(d->name))
            return aq_error(reterr, -EINVAL,
                            "step '%s': item %u: expected a name of 1 to %d printable characters",
                            desc->name, i, AQ_STORE_NAME_MAX);
        struct aq_store_item *item = &m->items[m->item_count];
        *item = (struct aq_store_item){.kind = d->kind,
                                       .dtype = d->dtype,
                                       .layout = d->layout,
                                       .rows = d->rows,
                                       .cols = d->cols,
                                       .bytes = d->bytes,
                                       .step = index};
        item->name = strdup(d->name);
        if (!item->name)
            return aq_error_memory(reterr, "item '%s'", d->name);
        m->item_count++;
        item->offset = aq_align_up(at, AQ_STORE_ITEM_ALIGN);
        int rc = item_bytes(&item->bytes, item, -EINVAL, reterr);
        rc = rc < 0 ? rc : aq_store_tiles_open(item, reterr);
        if (rc < 0)
            return rc;
        at = item->offset + item->bytes;
        if (at > SPACE_BYTES_MAX)
            return aq_error(reterr, -EINVAL, "item '%s': the store exceeds 2^56 bytes", d->name);
        step->item_count++;
    }
    m->bytes = aq_align_up(at, AQ_STORE_STEP_ALIGN);
    step->bytes = m->bytes - step->offset;
    return 0;
}

int aq_store_manifest_lay_out(struct aq_store_manifest **ret,
                              const struct aq_store_writer_opts *opts, struct aq_err *reterr)
{
    assert(opts->source && json_is_object(opts->model) && opts->step_count > 0);
    uint64_t items = 0;
    for (uint32_t i = 0; i < opts->step_count; i++)
        items += opts->steps[i].item_count;
    if (items > AQ_STORE_ITEMS_MAX || opts->step_count > AQ_STORE_ITEMS_MAX)
        return aq_error(reterr, -EINVAL, "a store holds at most %d items, found %llu",
                        AQ_STORE_ITEMS_MAX, (unsigned long long)items);
    if (!is_utf8(opts->source))
        return aq_error(reterr, -EINVAL, "source '%s': expected UTF-8", opts->source);
    struct aq_store_manifest *m = calloc(1, sizeof(*m));
    if (!m)
        return aq_error_memory(reterr, "manifest of the store");
    int rc = 0;
    m->version = AQ_STORE_FORMAT_VERSION;
    m->items = calloc(items + 1, sizeof(*m->items));
    m->steps = calloc(opts->step_count, sizeof(*m->steps));
    m->source = strdup(opts->source);
    m->model = aq_json_copy(opts->model);
    if (!m->items || !m->steps || !m->source || !m->model)
        rc = aq_error_memory(reterr, "manifest of %llu items", (unsigned long long)items);
    m->step_count = m->steps ? opts->step_count : 0;
    for (uint32_t i = 0; i < opts->step_count && rc == 0; i++)
        rc = lay_out_step(m, &opts->steps[i], i, reterr);
    if (rc == 0)
        rc = index_names(m, -EINVAL, reterr);
    if (rc == 0)
        rc = plan_of(&m->plan, m, reterr);
    if (rc < 0) {
        aq_store_manifest_close(m);
        return rc;
    }
    *ret = m;
    return 0;
}

int aq_store_plan_hash(uint64_t *ret, const struct aq_store_writer_opts *opts,
                       struct aq_err *reterr)
{
    struct aq_store_manifest *m;
    int rc = aq_store_manifest_lay_out(&m, opts, reterr);
    if (rc < 0)
        return rc;
    *ret = m->plan;
    aq_store_manifest_close(m);
    return 0;
}

/* ---- in: nothing is trusted ---- */

/* A required string without NUL bytes, copied. */
static int get_string(const json_t *object, const char *key, const char *what, char **ret,
                      struct aq_err *reterr)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return aq_error(reterr, -ENOEXEC, "%s: '%s': expected a string", what, key);
    *ret = strdup(json_string_value(v));
    return *ret ? 0 : aq_error_memory(reterr, "%s", what);
}

static int get_name(const json_t *object, const char *what, const char **ret, struct aq_err *reterr)
{
    char *name;
    int rc = get_string(object, "name", what, &name, reterr);
    if (rc < 0)
        return rc;
    if (!name_ok(name)) {
        free(name);
        return aq_error(reterr, -ENOEXEC, "%s: expected a name of 1 to %d printable characters",
                        what, AQ_STORE_NAME_MAX);
    }
    *ret = name;
    return 0;
}

int aq_store_get_hash(const json_t *object, const char *key, const char *what, uint64_t *ret,
                      struct aq_err *reterr)
{
    const json_t *v = json_object_get(object, key);
    const char *hex = json_is_string(v) ? json_string_value(v) : "";
    if (strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16)
        return aq_error(reterr, -ENOEXEC, "%s: '%s': expected 16 hexadecimal digits", what, key);
    *ret = strtoull(hex, NULL, 16);
    return 0;
}

/* A required whole number of at most `max`. */
static int get_u64(const json_t *object, const char *key, uint64_t max, const char *what,
                   uint64_t *ret, struct aq_err *reterr)
{
    if (!json_object_get(object, key) || json_is_null(json_object_get(object, key)))
        return aq_error(reterr, -ENOEXEC, "%s: '%s' is missing", what, key);
    return aq_json_get_u64(object, key, 0, max, what, ret, reterr);
}

/* Which of `names` stands under `key`. */
static int get_choice(const json_t *object, const char *key, const char *what,
                      const char *(*name_of)(unsigned), unsigned count, unsigned *ret,
                      struct aq_err *reterr)
{
    const json_t *v = json_object_get(object, key);
    const char *text = json_is_string(v) ? json_string_value(v) : "";
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(text, name_of(i)) == 0) {
            *ret = i;
            return 0;
        }
    }
    char quoted[44];
    return aq_error(reterr, -ENOEXEC, "%s: unknown %s '%s'", what, key,
                    aq_quote(quoted, sizeof(quoted), text, strlen(text)));
}

static const char *kind_of(unsigned i)
{
    return aq_store_kind_name((enum aq_store_kind)i);
}
static const char *dtype_of(unsigned i)
{
    return aq_dtype_name((enum aq_dtype)i);
}
static const char *layout_of(unsigned i)
{
    return aq_layout_name((enum aq_layout)i);
}
static const char *codec_of(unsigned i)
{
    return "none";
}

static int parse_tiles(struct aq_store_item *item, const json_t *o, const char *what,
                       struct aq_err *reterr)
{
    const json_t *v = json_object_get(o, "tiles");
    uint32_t count = aq_store_tile_count(item);
    int rc = count == 1 ? 0
             : json_is_string(v)
                 ? aq_store_tiles_parse(item, json_string_value(v), json_string_length(v))
                 : -ENOEXEC;
    if (rc == 0)
        return 0;
    if (rc == -ENOMEM)
        return aq_error_memory(reterr, "checksums of %s", what);
    return aq_error(reterr, -ENOEXEC,
                    "%s: 'tiles': expected %u checksums of %d hexadecimal digits each", what, count,
                    AQ_STORE_SUM_DIGITS);
}

static int parse_item(struct aq_store_item *item, uint32_t version, const json_t *o,
                      const char *where, struct aq_err *reterr)
{
    int rc = get_name(o, where, &item->name, reterr);
    if (rc < 0)
        return rc;
    char what[AQ_STORE_NAME_MAX + 16];
    snprintf(what, sizeof(what), "item '%s'", item->name);
    unsigned kind = 0, dtype = 0, layout = 0, codec;
    uint64_t rows = 0, cols = 0, bytes;
    if ((rc = get_choice(o, "codec", what, codec_of, 1, &codec, reterr)) < 0 ||
        (rc = get_choice(o, "kind", what, kind_of, AQ_STORE_KIND_COUNT, &kind, reterr)) < 0 ||
        (rc = get_choice(o, "dtype", what, dtype_of, AQ_DTYPE_COUNT, &dtype, reterr)) < 0 ||
        (rc = get_choice(o, "layout", what, layout_of, AQ_LAYOUT_COUNT, &layout, reterr)) < 0 ||
        (rc = get_u64(o, "rows", UINT32_MAX, what, &rows, reterr)) < 0 ||
        (rc = get_u64(o, "cols", UINT32_MAX, what, &cols, reterr)) < 0 ||
        (rc = get_u64(o, "offset", SPACE_BYTES_MAX, what, &item->offset, reterr)) < 0 ||
        (rc = get_u64(o, "bytes", SPACE_BYTES_MAX, what, &item->bytes, reterr)) < 0 ||
        (rc = aq_store_get_hash(o, "xxh3", what, &item->xxh3, reterr)) < 0)
        return rc;
    item->kind = (enum aq_store_kind)kind;
    item->dtype = (enum aq_dtype)dtype;
    item->layout = (enum aq_layout)layout;
    item->rows = (uint32_t)rows;
    item->cols = (uint32_t)cols;
    rc = item_bytes(&bytes, item, -ENOEXEC, reterr);
    if (rc < 0)
        return rc;
    if (bytes != item->bytes)
        return aq_error(reterr, -ENOEXEC, "%s: expected %llu bytes for its shape, found %llu", what,
                        (unsigned long long)bytes, (unsigned long long)item->bytes);
    return version < TILES_VERSION ? 0 : parse_tiles(item, o, what, reterr);
}

/* Items lie one after the other in their step, steps one after the other in the space: then no two
 * can overlap and none can leave it. */
static int parse_step(struct aq_store_manifest *m, const json_t *o, uint32_t index,
                      struct aq_err *reterr)
{
    struct aq_store_step *step = &m->steps[index];
    char what[AQ_STORE_NAME_MAX + 16];
    snprintf(what, sizeof(what), "step %u", index);
    int rc = get_name(o, what, &step->name, reterr);
    if (rc < 0)
        return rc;
    snprintf(what, sizeof(what), "step '%s'", step->name);
    if ((rc = get_u64(o, "offset", SPACE_BYTES_MAX, what, &step->offset, reterr)) < 0 ||
        (rc = get_u64(o, "bytes", SPACE_BYTES_MAX, what, &step->bytes, reterr)) < 0)
        return rc;
    uint64_t begin = index ? m->steps[index - 1].offset + m->steps[index - 1].bytes : 0;
    uint64_t end = step->offset + step->bytes, at = step->offset;
    if (step->offset % AQ_STORE_STEP_ALIGN || step->bytes % AQ_STORE_STEP_ALIGN ||
        step->offset < begin || end > m->bytes)
        return aq_error(reterr, -ENOEXEC,
                        "%s: offset %llu, bytes %llu: expected multiples of %d from %llu to %llu",
                        what, (unsigned long long)step->offset, (unsigned long long)step->bytes,
                        AQ_STORE_STEP_ALIGN, (unsigned long long)begin,
                        (unsigned long long)m->bytes);
    const json_t *items = json_object_get(o, "items");
    if (!json_is_array(items))
        return aq_error(reterr, -ENOEXEC, "%s: 'items': expected an array", what);
    step->first_item = m->item_count;
    for (size_t i = 0; i < json_array_size(items); i++) {
        struct aq_store_item *item = &m->items[m->item_count++];
        item->step = index;
        rc = parse_item(item, m->version, json_array_get(items, i), what, reterr);
        if (rc < 0)
            return rc;
        if (item->offset % AQ_STORE_ITEM_ALIGN || item->offset < at ||
            item->offset + item->bytes > end)
            return aq_error(reterr, -ENOEXEC,
                            "item '%s': offset %llu, bytes %llu: expected a multiple of %d from "
                            "%llu, ending by %llu",
                            item->name, (unsigned long long)item->offset,
                            (unsigned long long)item->bytes, AQ_STORE_ITEM_ALIGN,
                            (unsigned long long)at, (unsigned long long)end);
        at = item->offset + item->bytes;
        step->item_count++;
    }
    return 0;
}

static int parse_steps(struct aq_store_manifest *m, const json_t *root, struct aq_err *reterr)
{
    const json_t *steps = json_object_get(root, "steps");
    size_t count = json_array_size(steps), items = 0;
    if (count == 0 || count > AQ_STORE_ITEMS_MAX)
        return aq_error(reterr, -ENOEXEC, "'steps': expected an array of 1 to %d steps",
                        AQ_STORE_ITEMS_MAX);
    for (size_t i = 0; i < count; i++)
        items += json_array_size(json_object_get(json_array_get(steps, i), "items"));
    if (items > AQ_STORE_ITEMS_MAX)
        return aq_error(reterr, -ENOEXEC, "expected at most %d items, found %zu",
                        AQ_STORE_ITEMS_MAX, items);
    m->steps = calloc(count, sizeof(*m->steps));
    m->items = calloc(items + 1, sizeof(*m->items));
    if (!m->steps || !m->items)
        return aq_error_memory(reterr, "manifest of %zu items", items);
    for (; m->step_count < count; m->step_count++) {
        int rc = parse_step(m, json_array_get(steps, m->step_count), m->step_count, reterr);
        if (rc < 0) {
            m->step_count++; /* its name is to be freed */
            return rc;
        }
    }
    return index_names(m, -ENOEXEC, reterr);
}

static int parse_files(struct aq_store_manifest *m, const json_t *root, struct aq_err *reterr)
{
    const json_t *files = json_object_get(root, "files");
    size_t count = json_array_size(files);
    if (!json_is_array(files) || count > AQ_STORE_FILES_MAX)
        return aq_error(reterr, -ENOEXEC, "'files': expected an array of at most %d files",
                        AQ_STORE_FILES_MAX);
    m->files = calloc(count + 1, sizeof(*m->files));
    if (!m->files)
        return aq_error_memory(reterr, "manifest of %zu files", count);
    for (size_t i = 0; i < count; i++) {
        const json_t *o = json_array_get(files, i);
        struct aq_store_file *f = &m->files[m->file_count];
        int rc = get_name(o, "files", &f->name, reterr);
        if (rc < 0)
            return rc;
        m->file_count++;
        if (!aq_store_file_name_ok(f->name))
            return aq_error(reterr, -ENOEXEC, "files: '%s' cannot be the name of a copied file",
                            f->name);
        if ((rc = get_u64(o, "bytes", SPACE_BYTES_MAX, f->name, &f->bytes, reterr)) < 0 ||
            (rc = aq_store_get_hash(o, "xxh3", f->name, &f->xxh3, reterr)) < 0)
            return rc;
    }
    return 0;
}

static int parse_dirs(struct aq_store_manifest *m, const json_t *root, struct aq_err *reterr)
{
    const json_t *dirs = json_object_get(root, "directories");
    size_t count = json_array_size(dirs);
    if (count == 0 || count > AQ_STORE_DIRS_MAX)
        return aq_error(reterr, -ENOEXEC, "'directories': expected an array of 1 to %d paths",
                        AQ_STORE_DIRS_MAX);
    m->dirs = calloc(count, sizeof(*m->dirs));
    if (!m->dirs)
        return aq_error_memory(reterr, "manifest of the store");
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(dirs, i);
        const char *path = json_is_string(v) ? json_string_value(v) : "";
        bool ok = i == 0 ? strcmp(path, ".") == 0 : *path == '/';
        if (!ok || strlen(path) != json_string_length(v) || strlen(path) >= 4096)
            return aq_error(reterr, -ENOEXEC, "directories[%zu]: expected %s", i,
                            i == 0 ? "\".\"" : "an absolute path");
        m->dirs[i] = strdup(path);
        if (!m->dirs[i])
            return aq_error_memory(reterr, "manifest of the store");
        m->dir_count++;
    }
    return 0;
}

/* Schema and version first: what else a future version holds is not ours to judge. */
static int parse_header(struct aq_store_manifest *m, const json_t *root, struct aq_err *reterr)
{
    const json_t *schema = json_object_get(root, "schema");
    if (!json_is_string(schema) || strcmp(json_string_value(schema), "aquifer.store") != 0)
        return aq_error(reterr, -ENOEXEC, "'schema': expected \"aquifer.store\"");
    uint64_t version = 0, unit = 0;
    int rc = get_u64(root, "format_version", UINT32_MAX, "manifest", &version, reterr);
    if (rc < 0)
        return rc;
    if (version < HASHED_VERSION || version > AQ_STORE_FORMAT_VERSION)
        return aq_error(reterr, -ENOEXEC,
                        "format version: expected %d to %d, found %llu; pack the model again with "
                        "this version",
                        HASHED_VERSION, AQ_STORE_FORMAT_VERSION, (unsigned long long)version);
    m->version = (uint32_t)version;
    if ((rc = get_u64(root, "unit_bytes", SPACE_BYTES_MAX, "manifest", &unit, reterr)) < 0 ||
        (rc = get_u64(root, "bytes", SPACE_BYTES_MAX, "manifest", &m->bytes, reterr)) < 0 ||
        (rc = aq_store_get_hash(root, "plan", "manifest", &m->plan, reterr)) < 0 ||
        (rc = aq_store_get_hash(root, "id", "manifest", &m->id, reterr)) < 0 ||
        (rc = get_string(root, "source", "manifest", &m->source, reterr)) < 0)
        return rc;
    if (unit != AQ_STORE_UNIT_BYTES)
        return aq_error(reterr, -ENOEXEC, "unit_bytes: expected %d, found %llu",
                        AQ_STORE_UNIT_BYTES, (unsigned long long)unit);
    json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return aq_error(reterr, -ENOEXEC, "'model': expected an object");
    m->model = json_incref(model);
    return 0;
}

/* The manifest's own hash and size must be right. */
static int check_hashes(const struct aq_store_manifest *m, const json_t *root,
                        struct aq_err *reterr)
{
    uint64_t plan, id, tiles = tiles_of(m), said = tiles;
    int rc;
    if ((m->version >= TILES_VERSION &&
         (rc = aq_store_get_hash(root, "tiles", "manifest", &said, reterr)) < 0) ||
        (rc = plan_of(&plan, m, reterr)) < 0 ||
        (rc = aq_store_manifest_identity(&id, m, reterr)) < 0)
        return rc;
    if (id == m->id && plan == m->plan && tiles == said)
        return 0;
    return aq_error(reterr, -ENOEXEC,
                    "the manifest was changed: it hashes to %016llx (plan %016llx, tiles "
                    "%016llx), and says %016llx (plan %016llx, tiles %016llx)",
                    (unsigned long long)id, (unsigned long long)plan, (unsigned long long)tiles,
                    (unsigned long long)m->id, (unsigned long long)m->plan,
                    (unsigned long long)said);
}

static int parse_root(struct aq_store_manifest *m, const json_t *root, struct aq_err *reterr)
{
    int rc;
    if ((rc = parse_header(m, root, reterr)) < 0 || (rc = parse_dirs(m, root, reterr)) < 0 ||
        (rc = parse_steps(m, root, reterr)) < 0 || (rc = parse_files(m, root, reterr)) < 0)
        return rc;
    const struct aq_store_step *last = &m->steps[m->step_count - 1];
    if (last->offset + last->bytes != m->bytes)
        return aq_error(reterr, -ENOEXEC,
                        "bytes: expected %llu, where the last step ends, "
                        "found %llu",
                        (unsigned long long)(last->offset + last->bytes),
                        (unsigned long long)m->bytes);
    return check_hashes(m, root, reterr);
}

int aq_store_manifest_parse(struct aq_store_manifest **ret, const char *text, size_t bytes,
                            struct aq_err *reterr)
{
    json_t *root;
    int rc = aq_json_parse(&root, text, bytes, true, reterr);
    if (rc < 0)
        return rc;
    struct aq_store_manifest *m = calloc(1, sizeof(*m));
    rc = m ? parse_root(m, root, reterr) : aq_error_memory(reterr, "manifest of the store");
    json_decref(root);
    if (rc < 0) {
        aq_store_manifest_close(m);
        return rc;
    }
    *ret = m;
    return 0;
}

/* ---- stripe.json ---- */

json_t *aq_store_stripe_json(const struct aq_store_stripe *s)
{
    return json_pack("{ss so so si si}", "schema", "aquifer.stripe", "plan", hash_json(s->plan),
                     "id", hash_json(s->id), "index", (int)s->index, "count", (int)s->count);
}

int aq_store_stripe_read(struct aq_store_stripe *ret, const char *path, struct aq_err *reterr)
{
    json_t *o;
    int rc = aq_json_read_file(&o, path, 65536, reterr);
    if (rc < 0)
        return rc;
    struct aq_store_stripe s = {0};
    uint64_t index = 0, count = 0;
    if ((rc = aq_store_get_hash(o, "plan", path, &s.plan, reterr)) == 0 &&
        (rc = aq_store_get_hash(o, "id", path, &s.id, reterr)) == 0 &&
        (rc = get_u64(o, "index", AQ_STORE_DIRS_MAX, path, &index, reterr)) == 0 &&
        (rc = get_u64(o, "count", AQ_STORE_DIRS_MAX, path, &count, reterr)) == 0) {
        s.index = (uint32_t)index;
        s.count = (uint32_t)count;
        *ret = s;
    }
    json_decref(o);
    return rc;
}
