/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/safetensors.h"

#include "base/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A tensor's bytes, relative to the start of the data. */
struct extent {
    uint64_t begin, end;
    const char *name;
};

struct reader {
    const struct aq_tensor_file *file;
    uint64_t data_offset, data_bytes;
    struct extent *extents;
    size_t count;
    struct aq_err *reterr;
};

static int malformed(const struct reader *r, const char *name, const char *key, const char *want)
{
    char quoted[128];
    return aq_error(r->reterr, -ENOEXEC, "tensor '%s': '%s': expected %s",
                    aq_quote(quoted, sizeof(quoted), name, strlen(name)), key, want);
}

static bool read_u64(const json_t *v, uint64_t *ret)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *ret = (uint64_t)json_integer_value(v);
    return true;
}

static int read_dtype(const struct reader *r, const char *name, const json_t *entry,
                      struct aq_tensor_info *t)
{
    const json_t *v = json_object_get(entry, "dtype");
    if (!json_is_string(v))
        return malformed(r, name, "dtype", "a string");
    const char *dtype = json_string_value(v);
    t->element = aq_element_find(dtype);
    if (!t->element || strlen(dtype) != json_string_length(v)) {
        char quoted[128], type[32];
        return aq_error(r->reterr, -ENOEXEC,
                        "tensor '%s': 'dtype': expected a type such as F16, found '%s'",
                        aq_quote(quoted, sizeof(quoted), name, strlen(name)),
                        aq_quote(type, sizeof(type), dtype, strlen(dtype)));
    }
    return 0;
}

static int read_shape(const struct reader *r, const char *name, const json_t *entry,
                      struct aq_tensor_info *t)
{
    const json_t *v = json_object_get(entry, "shape");
    if (!json_is_array(v) || json_array_size(v) > AQ_TENSOR_RANK_MAX)
        return malformed(r, name, "shape", "a list of at most 8 sizes");
    t->rank = (uint32_t)json_array_size(v);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (!read_u64(json_array_get(v, i), &t->shape[i]))
            return malformed(r, name, "shape", "sizes of 0 or more");
        if (aq_mul_overflows(elements, aq_max_u64(t->shape[i], 1), &elements))
            return malformed(r, name, "shape", "a product that fits 64 bits");
    }
    aq_tensor_default_strides(t);
    return 0;
}

static int read_extent(const struct reader *r, const char *name, const json_t *entry,
                       struct extent *ret)
{
    const json_t *v = json_object_get(entry, "data_offsets");
    if (!json_is_array(v) || json_array_size(v) != 2 ||
        !read_u64(json_array_get(v, 0), &ret->begin) || !read_u64(json_array_get(v, 1), &ret->end))
        return malformed(r, name, "data_offsets", "two offsets of 0 or more");
    char quoted[128];
    aq_quote(quoted, sizeof(quoted), name, strlen(name));
    if (ret->begin > ret->end)
        return aq_error(r->reterr, -ENOEXEC,
                        "tensor '%s': 'data_offsets': expected begin <= end, found [%llu, %llu]",
                        quoted, (unsigned long long)ret->begin, (unsigned long long)ret->end);
    if (ret->end > r->data_bytes)
        return aq_error(r->reterr, -ENOEXEC,
                        "tensor '%s': ends at byte %llu of the data, but the file holds only %llu; "
                        "an incomplete download?",
                        quoted, (unsigned long long)ret->end, (unsigned long long)r->data_bytes);
    ret->name = name;
    return 0;
}

static int read_tensor(struct reader *r, struct aq_tensor_list *list, const char *name,
                       const json_t *entry, uint32_t file_index)
{
    if (!json_is_object(entry))
        return malformed(r, name, "dtype", "an object with dtype, shape and data_offsets");
    struct aq_tensor_info t = {.name = name, .file = file_index};
    struct extent *e = &r->extents[r->count];
    int rc = read_dtype(r, name, entry, &t);
    if (rc == 0)
        rc = read_shape(r, name, entry, &t);
    if (rc == 0)
        rc = read_extent(r, name, entry, e);
    if (rc < 0)
        return rc;
    struct aq_tensor_place place = {
        .region_offset = r->data_offset + e->begin,
        .region_bytes = e->end - e->begin,
    };
    rc = aq_tensor_list_add(list, &t, &place, r->file, r->reterr);
    if (rc < 0)
        return rc;
    r->count++;
    uint64_t bytes = list->tensor[list->count - 1].bytes;
    char quoted[128];
    if (bytes != place.region_bytes)
        return aq_error(r->reterr, -ENOEXEC,
                        "tensor '%s': its shape needs %llu bytes, its offsets hold %llu",
                        aq_quote(quoted, sizeof(quoted), name, strlen(name)),
                        (unsigned long long)bytes, (unsigned long long)place.region_bytes);
    return 0;
}

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* The tensors must cover the data from its first to its last byte, once. */
static int check_cover(struct reader *r)
{
    if (r->count)
        qsort(r->extents, r->count, sizeof(*r->extents), compare_extents);
    uint64_t at = 0;
    for (size_t i = 0; i < r->count; i++) {
        const struct extent *e = &r->extents[i];
        char quoted[128];
        if (e->begin != at)
            return aq_error(r->reterr, -ENOEXEC,
                            "tensor '%s': %s: expected to begin at byte %llu "
                            "of the data, found %llu",
                            aq_quote(quoted, sizeof(quoted), e->name, strlen(e->name)),
                            e->begin < at ? "overlaps another tensor" : "leaves a gap",
                            (unsigned long long)at, (unsigned long long)e->begin);
        at = e->end;
    }
    if (at != r->data_bytes)
        return aq_error(r->reterr, -ENOEXEC,
                        "its tensors end at byte %llu of the data, the file holds %llu",
                        (unsigned long long)at, (unsigned long long)r->data_bytes);
    return 0;
}

static int read_entries(struct reader *r, struct aq_tensor_list *list, const json_t *root,
                        uint32_t file_index)
{
    if (!json_is_object(root))
        return aq_error(r->reterr, -ENOEXEC, "header: expected a JSON object");
    r->extents = calloc(json_object_size(root) + 1, sizeof(*r->extents));
    if (!r->extents)
        return aq_error_memory(r->reterr, "header of %zu tensors", json_object_size(root));
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        int rc = read_tensor(r, list, name, entry, file_index);
        if (rc < 0)
            return rc;
    }
    return check_cover(r);
}

/* An upper bound of the JSON values in the text, so that a hostile header is refused before the
 * parser builds it: the first member of a container follows its bracket, every other a comma. */
static size_t values_bound(const char *text, size_t bytes)
{
    size_t count = 1;
    for (size_t i = 0; i < bytes; i++)
        count += text[i] == '{' || text[i] == '[' || text[i] == ',';
    return count;
}

/* Reads and parses the header; *ret is the JSON object. */
static int read_header(struct reader *r, json_t **ret, uint64_t *ret_hash)
{
    uint8_t le[8];
    if (r->file->bytes < sizeof(le))
        return aq_error(r->reterr, -ENOEXEC,
                        "expected a safetensors file of at least 8 bytes, found %llu",
                        (unsigned long long)r->file->bytes);
    int rc = aq_tensor_file_pread(r->file, le, sizeof(le), 0, r->reterr);
    if (rc < 0)
        return rc;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | le[i];
    if (n < 2 || n > AQ_SAFETENSORS_HEADER_MAX)
        return aq_error(r->reterr, -ENOEXEC,
                        "header length: expected 2 to %d bytes, found %llu; not a safetensors file",
                        AQ_SAFETENSORS_HEADER_MAX, (unsigned long long)n);
    if (n > r->file->bytes - sizeof(le))
        return aq_error(r->reterr, -ENOEXEC,
                        "header of %llu bytes, but the file holds only %llu; an incomplete "
                        "download?",
                        (unsigned long long)n, (unsigned long long)r->file->bytes);
    char *text = malloc(n);
    if (!text)
        return aq_error_memory(r->reterr, "header of %llu bytes", (unsigned long long)n);
    rc = aq_tensor_file_pread(r->file, text, n, sizeof(le), r->reterr);
    if (rc == 0 && text[0] != '{')
        rc = aq_error(r->reterr, -ENOEXEC, "header: expected '{', found byte 0x%02x",
                      (unsigned char)text[0]);
    if (rc == 0 && values_bound(text, n) > AQ_SAFETENSORS_VALUES_MAX)
        rc = aq_error(r->reterr, -ENOEXEC, "header: expected at most %d JSON values",
                      AQ_SAFETENSORS_VALUES_MAX);
    if (rc == 0) {
        rc = aq_json_parse(ret, text, n, true, r->reterr);
        if (rc < 0)
            aq_error_prefix(r->reterr, "header");
    }
    if (rc == 0)
        *ret_hash = XXH3_64bits(text, n);
    free(text);
    r->data_offset = sizeof(le) + n;
    r->data_bytes = r->file->bytes - r->data_offset;
    return rc;
}

int aq_safetensors_list(struct aq_tensor_list *list, const struct aq_tensor_file *file,
                        uint32_t file_index, uint64_t *ret_header_hash, struct aq_err *reterr)
{
    assert(list && file && ret_header_hash);
    struct reader r = {.file = file, .reterr = reterr};
    size_t before = list->count;
    json_t *root = NULL;
    uint64_t hash = 0;
    int rc = read_header(&r, &root, &hash);
    if (rc == 0)
        rc = read_entries(&r, list, root, file_index);
    free(r.extents);
    json_decref(root);
    if (rc < 0)
        aq_tensor_list_truncate(list, before);
    else
        *ret_header_hash = hash;
    return rc;
}
