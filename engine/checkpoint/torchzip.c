/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/torchzip.h"

#include "engine/checkpoint/pickle.h"
#include "engine/checkpoint/torchzip_archive.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Where one storage lies in the file. */
struct place {
    const char *key; /* not NUL-terminated */
    size_t key_bytes;
    uint64_t offset, bytes;
    const struct aq_pickle_storage *storage;
};

struct reader {
    const struct aq_tensor_file *file;
    struct aq_tensor_list *list;
    uint32_t file_index;
    struct place *places; /* by key, each key once */
    size_t place_count;
    uint64_t visits;
    char name[AQ_TENSOR_NAME_MAX];
    struct aq_err *reterr;
};

/* ---- storages ---- */

static int compare_keys(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    size_t n = x->key_bytes < y->key_bytes ? x->key_bytes : y->key_bytes;
    int order = memcmp(x->key, y->key, n);
    return order ? order : x->key_bytes < y->key_bytes ? -1 : x->key_bytes > y->key_bytes;
}

/* One place for each storage key of the pickle, sorted by key; offsets are still to be found. */
static int collect_places(struct reader *r, const struct aq_pickle *pickle)
{
    size_t count = aq_pickle_storage_count(pickle);
    r->places = calloc(count + 1, sizeof(*r->places));
    if (!r->places)
        return aq_error_memory(r->reterr, "list of %zu storages", count);
    for (size_t i = 0; i < count; i++) {
        const struct aq_pickle_storage *s = aq_pickle_storage_at(pickle, i);
        r->places[i] = (struct place){.key = s->key, .key_bytes = s->key_bytes, .storage = s};
    }
    if (count)
        qsort(r->places, count, sizeof(*r->places), compare_keys);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || compare_keys(&r->places[r->place_count - 1], &r->places[i]) != 0)
            r->places[r->place_count++] = r->places[i];
    return 0;
}

static struct place *find_place(const struct reader *r, const char *key, size_t key_bytes)
{
    struct place want = {.key = key, .key_bytes = key_bytes};
    return r->place_count ? bsearch(&want, r->places, r->place_count, sizeof(want), compare_keys)
                          : NULL;
}

static uint64_t element_bytes(const struct aq_pickle_storage *s)
{
    return s->element ? s->element->bits / 8 : 1;
}

/* ---- names ---- */

static int add_tensor(struct reader *r, const struct aq_pickle_tensor *t)
{
    const struct aq_pickle_storage *s = t->storage;
    const struct place *p = find_place(r, s->key, s->key_bytes);
    assert(p); /* every storage of the pickle has one */
    struct aq_tensor_info info = {
        .name = r->name, .element = t->element, .rank = t->rank, .file = r->file_index};
    memcpy(info.shape, t->shape, sizeof(info.shape));
    memcpy(info.stride, t->stride, sizeof(info.stride));
    uint64_t size = element_bytes(s), whole, first;
    struct aq_tensor_place place = {.first_element = t->offset};
    bool over = aq_mul_overflows(s->numel, size, &whole) || whole > p->bytes;
    over |= aq_mul_overflows(s->view_first, size, &first);
    over |= aq_mul_overflows(s->view_numel, size, &place.region_bytes);
    over |= aq_add_overflows(p->offset, first, &place.region_offset);
    char quoted[128];
    if (over)
        return aq_error(r->reterr, -ENOEXEC,
                        "tensor '%s': its storage claims %llu values of %llu bytes, the file holds "
                        "%llu bytes",
                        aq_quote(quoted, sizeof(quoted), r->name, strlen(r->name)),
                        (unsigned long long)s->numel, (unsigned long long)size,
                        (unsigned long long)p->bytes);
    return aq_tensor_list_add(r->list, &info, &place, r->file, r->reterr);
}

static int walk(struct reader *r, const struct aq_pickle_value *v, size_t length, unsigned depth);

/* Visits a value under the name r->name[0..length) + "." + part. */
static int walk_part(struct reader *r, const struct aq_pickle_value *v, const char *part,
                     size_t part_bytes, size_t length, unsigned depth)
{
    if (v->kind < AQ_PICKLE_TUPLE || v->kind == AQ_PICKLE_GLOBAL || v->kind == AQ_PICKLE_STORAGE)
        return 0;
    size_t dot = length ? 1 : 0;
    if (part_bytes > sizeof(r->name) - 1 - dot - length || memchr(part, '\0', part_bytes)) {
        char quoted[64];
        return aq_error(r->reterr, -ENOEXEC,
                        "key '%s': expected a name without NUL, all keys together at most %d bytes",
                        aq_quote(quoted, sizeof(quoted), part, part_bytes), AQ_TENSOR_NAME_MAX - 1);
    }
    if (dot)
        r->name[length] = '.';
    memcpy(r->name + length + dot, part, part_bytes);
    r->name[length + dot + part_bytes] = '\0';
    return walk(r, v, length + dot + part_bytes, depth + 1);
}

static int walk_pair(struct reader *r, const struct aq_pickle_pair *pair, size_t length,
                     unsigned depth)
{
    char number[32];
    switch (pair->key->kind) {
    case AQ_PICKLE_STRING:
        return walk_part(r, pair->value, pair->key->as.text.bytes, pair->key->as.text.length,
                         length, depth);
    case AQ_PICKLE_INT: {
        int n = snprintf(number, sizeof(number), "%lld", (long long)pair->key->as.integer);
        return walk_part(r, pair->value, number, (size_t)n, length, depth);
    }
    default: return 0; /* no name: nothing a model could ask for */
    }
}

/* Names and adds the tensors below v.  Containers may be shared or hold themselves: depth and
 * visits end the walk. */
static int walk(struct reader *r, const struct aq_pickle_value *v, size_t length, unsigned depth)
{
    if (v->kind == AQ_PICKLE_TENSOR)
        return add_tensor(r, v->as.tensor);
    if (depth > AQ_TORCHZIP_DEPTH_MAX)
        return aq_error(r->reterr, -ENOEXEC, "expected dicts nested at most %d deep",
                        AQ_TORCHZIP_DEPTH_MAX);
    int rc = 0;
    for (uint32_t i = 0; i < v->count && rc == 0; i++) {
        if (++r->visits > AQ_TORCHZIP_VISITS_MAX)
            return aq_error(r->reterr, -ENOEXEC,
                            "expected at most %d values in all dicts and lists",
                            AQ_TORCHZIP_VISITS_MAX);
        char number[16];
        if (v->kind == AQ_PICKLE_DICT) {
            rc = walk_pair(r, &v->as.pairs[i], length, depth);
        } else {
            int n = snprintf(number, sizeof(number), "%u", i);
            rc = walk_part(r, v->as.items[i], number, (size_t)n, length, depth);
        }
    }
    return rc;
}

static int add_root(struct reader *r, const struct aq_pickle *pickle)
{
    const struct aq_pickle_value *root = aq_pickle_root(pickle);
    if (root->kind != AQ_PICKLE_DICT)
        return aq_error(r->reterr, -ENOEXEC, "expected a dict of tensors, found something else");
    size_t before = r->list->count;
    int rc = walk(r, root, 0, 0);
    /* Equal names would make it chance which tensor is found. */
    return rc < 0 ? rc : aq_tensor_list_sort(r->list, before, r->reterr);
}

/* ---- the zip archive ---- */

static int place_in_archive(struct reader *r, struct aq_torchzip_archive *archive,
                            XXH3_state_t *hash)
{
    for (size_t i = 0; i < r->place_count; i++) {
        struct place *p = &r->places[i];
        struct aq_torchzip_entry entry;
        int rc = aq_torchzip_archive_storage(archive, p->key, p->key_bytes, &entry, r->reterr);
        if (rc < 0)
            return rc;
        p->offset = entry.offset;
        p->bytes = entry.bytes;
        uint64_t says[2] = {entry.bytes, entry.crc};
        XXH3_64bits_update(hash, p->key, p->key_bytes);
        XXH3_64bits_update(hash, says, sizeof(says));
    }
    return 0;
}

static int list_archive(struct reader *r, XXH3_state_t *hash)
{
    struct aq_torchzip_archive *archive = NULL;
    struct aq_pickle *pickle = NULL;
    uint8_t *bytes = NULL;
    size_t size = 0, used;
    int rc = aq_torchzip_archive_open(&archive, r->file, r->reterr);
    if (rc == 0)
        rc = aq_torchzip_archive_pickle(archive, &bytes, &size, r->reterr);
    if (rc == 0)
        rc = aq_pickle_parse(&pickle, bytes, size, &used, r->reterr);
    if (rc == 0)
        rc = collect_places(r, pickle);
    if (rc == 0) {
        XXH3_64bits_update(hash, bytes, size);
        rc = place_in_archive(r, archive, hash);
    }
    if (rc == 0)
        rc = add_root(r, pickle);
    aq_pickle_close(pickle);
    free(bytes);
    aq_torchzip_archive_close(archive);
    return rc;
}

/* ---- the legacy container ---- */

/* The pickles at the front of a legacy file. */
struct legacy {
    uint8_t *bytes; /* the start of the file, at most AQ_PICKLE_BYTES_MAX */
    size_t size, at;
};

/* 0x1950a86a20f9469cfc6c, as LONG1 writes it (torch/serialization.py, MAGIC_NUMBER). */
static const uint8_t legacy_magic[] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

static int next_pickle(struct reader *r, struct legacy *l, struct aq_pickle **ret)
{
    size_t used;
    int rc = aq_pickle_parse(ret, l->bytes + l->at, l->size - l->at, &used, r->reterr);
    if (rc < 0) {
        aq_error_prefix(r->reterr, "at byte %zu", l->at);
        return rc;
    }
    l->at += used;
    return 0;
}

/* Magic number, protocol and sys_info: three pickles. */
static int check_legacy_header(struct reader *r, struct legacy *l)
{
    struct aq_pickle *p = NULL;
    int rc = next_pickle(r, l, &p);
    if (rc < 0)
        return rc;
    const struct aq_pickle_value *v = aq_pickle_root(p);
    if (v->kind != AQ_PICKLE_BIG || v->as.text.length != sizeof(legacy_magic) ||
        memcmp(v->as.text.bytes, legacy_magic, sizeof(legacy_magic)) != 0)
        rc = aq_error(r->reterr, -ENOEXEC, "expected PyTorch's magic number first");
    aq_pickle_close(p);
    p = NULL;
    if (rc == 0)
        rc = next_pickle(r, l, &p);
    if (rc < 0)
        return rc;
    v = aq_pickle_root(p);
    if (v->kind != AQ_PICKLE_INT || v->as.integer != 1001)
        rc = aq_error(r->reterr, -ENOEXEC, "expected the legacy protocol version 1001");
    aq_pickle_close(p);
    p = NULL;
    if (rc == 0)
        rc = next_pickle(r, l, &p);
    if (rc < 0)
        return rc;
    const struct aq_pickle_value *little = aq_pickle_get(aq_pickle_root(p), "little_endian");
    if (!little || little->kind != AQ_PICKLE_BOOL || !little->as.boolean)
        rc = aq_error(r->reterr, -ENOEXEC, "expected 'little_endian': True in its system info");
    aq_pickle_close(p);
    return rc;
}

/* Behind the key list, for each key in its order: the number of values, and their bytes. */
static int place_in_legacy(struct reader *r, const struct aq_pickle_value *keys, uint64_t at)
{
    if (keys->kind != AQ_PICKLE_LIST)
        return aq_error(r->reterr, -ENOEXEC, "expected a list of storage keys");
    for (uint32_t i = 0; i < keys->count; i++) {
        const struct aq_pickle_value *key = keys->as.items[i];
        struct place *p = key->kind == AQ_PICKLE_STRING
                              ? find_place(r, key->as.text.bytes, key->as.text.length)
                              : NULL;
        if (!p || p->offset)
            return aq_error(r->reterr, -ENOEXEC, "storage key %u: %s", i,
                            p ? "appears twice" : "no tensor uses it, so its size is not known");
        uint8_t le[8];
        if (r->file->bytes < sizeof(le) || at > r->file->bytes - sizeof(le))
            return aq_error(r->reterr, -ENOEXEC,
                            "the file ends at %llu, storage %u of %u begins at %llu; an incomplete "
                            "download?",
                            (unsigned long long)r->file->bytes, i, keys->count,
                            (unsigned long long)at);
        int rc = aq_tensor_file_pread(r->file, le, sizeof(le), at, r->reterr);
        if (rc < 0)
            return rc;
        uint64_t numel = 0, bytes;
        for (int j = 7; j >= 0; j--)
            numel = numel << 8 | le[j];
        at += sizeof(le);
        if (aq_mul_overflows(numel, element_bytes(p->storage), &bytes) ||
            bytes > r->file->bytes - at)
            return aq_error(r->reterr, -ENOEXEC,
                            "storage %u of %u: %llu values at byte %llu, the file ends at %llu; an "
                            "incomplete download?",
                            i, keys->count, (unsigned long long)numel, (unsigned long long)at,
                            (unsigned long long)r->file->bytes);
        p->offset = at;
        p->bytes = bytes;
        at += bytes;
    }
    return 0;
}

static int list_legacy(struct reader *r, XXH3_state_t *hash)
{
    struct legacy l = {.size = aq_min_u64(r->file->bytes, AQ_PICKLE_BYTES_MAX)};
    struct aq_pickle *pickle = NULL, *keys = NULL;
    l.bytes = malloc(l.size);
    if (!l.bytes)
        return aq_error_memory(r->reterr, "first %zu bytes of the file", l.size);
    int rc = aq_tensor_file_pread(r->file, l.bytes, l.size, 0, r->reterr);
    if (rc == 0)
        rc = check_legacy_header(r, &l);
    if (rc == 0)
        rc = next_pickle(r, &l, &pickle);
    if (rc == 0)
        rc = next_pickle(r, &l, &keys);
    if (rc == 0)
        rc = collect_places(r, pickle);
    if (rc == 0) {
        XXH3_64bits_update(hash, l.bytes, l.at);
        rc = place_in_legacy(r, aq_pickle_root(keys), l.at);
    }
    for (size_t i = 0; i < r->place_count && rc == 0; i++)
        if (r->places[i].offset == 0)
            rc = aq_error(r->reterr, -ENOEXEC, "a tensor's storage is not in the list of keys");
    if (rc == 0)
        rc = add_root(r, pickle);
    aq_pickle_close(keys);
    aq_pickle_close(pickle);
    free(l.bytes);
    return rc;
}

/* ---- which of the two ---- */

enum container { CONTAINER_ZIP, CONTAINER_LEGACY };

static int sniff(const struct reader *r, enum container *ret)
{
    uint8_t head[512];
    size_t n = aq_min_u64(r->file->bytes, sizeof(head));
    int rc = aq_tensor_file_pread(r->file, head, n, 0, r->reterr);
    if (rc < 0)
        return rc;
    if (n >= 4 && memcmp(head, "PK\3\4", 4) == 0) {
        *ret = CONTAINER_ZIP;
        return 0;
    }
    if (n >= 4 + sizeof(legacy_magic) && head[0] == 0x80 && head[2] == 0x8a &&
        memcmp(head + 4, legacy_magic, sizeof(legacy_magic)) == 0) {
        *ret = CONTAINER_LEGACY;
        return 0;
    }
    if (n == sizeof(head) && memcmp(head + 257, "ustar", 5) == 0)
        return aq_error(
            r->reterr, -ENOEXEC,
            "a tar archive, as PyTorch wrote before version 0.2: load and save it again");
    char quoted[16];
    return aq_error(r->reterr, -ENOEXEC,
                    "expected a file written by torch.save, found %llu bytes that begin with '%s'",
                    (unsigned long long)r->file->bytes,
                    aq_quote(quoted, sizeof(quoted), head, n < 8 ? n : 8));
}

int aq_torchzip_list(struct aq_tensor_list *list, const struct aq_tensor_file *file,
                     uint32_t file_index, uint64_t *ret_header_hash, struct aq_err *reterr)
{
    assert(list && file && ret_header_hash);
    struct reader r = {.file = file, .list = list, .file_index = file_index, .reterr = reterr};
    size_t before = list->count;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return aq_error_memory(reterr, "hash state");
    XXH3_64bits_reset(hash);
    enum container container;
    int rc = sniff(&r, &container);
    if (rc == 0)
        rc = container == CONTAINER_ZIP ? list_archive(&r, hash) : list_legacy(&r, hash);
    if (rc < 0)
        aq_tensor_list_truncate(list, before);
    else
        *ret_header_hash = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    free(r.places);
    return rc;
}
