/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkpoint_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- bytes ---- */

void bytes_add(struct bytes *b, const void *data, size_t count)
{
    if (b->count + count > b->capacity) {
        b->capacity = 2 * (b->count + count);
        b->data = realloc(b->data, b->capacity);
        if (!b->data)
            abort();
    }
    if (count)
        memcpy(b->data + b->count, data, count);
    b->count += count;
}

void bytes_text(struct bytes *b, const char *text)
{
    bytes_add(b, text, strlen(text));
}

void bytes_u8(struct bytes *b, unsigned value)
{
    uint8_t v = (uint8_t)value;
    bytes_add(b, &v, 1);
}

void bytes_le(struct bytes *b, uint64_t value, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        bytes_u8(b, i < 8 ? (unsigned)(value >> 8 * i & 0xff) : 0);
}

void bytes_free(struct bytes *b)
{
    free(b->data);
    *b = (struct bytes){0};
}

/* ---- pickles ---- */

void pickle_begin(struct bytes *b)
{
    bytes_add(b, "\x80\x02", 2);
}

void pickle_end(struct bytes *b)
{
    bytes_text(b, ".");
}

void pickle_string(struct bytes *b, const char *text)
{
    bytes_text(b, "X");
    bytes_le(b, strlen(text), 4);
    bytes_text(b, text);
}

void pickle_int(struct bytes *b, int64_t value)
{
    bytes_add(b, "\x8a\x08", 2);
    bytes_le(b, (uint64_t)value, 8);
}

void pickle_global(struct bytes *b, const char *module, const char *name)
{
    bytes_text(b, "c");
    bytes_text(b, module);
    bytes_text(b, "\n");
    bytes_text(b, name);
    bytes_text(b, "\n");
}

void pickle_tensor(struct bytes *b, const struct pickle_tensor *t)
{
    pickle_global(b, "torch._utils", "_rebuild_tensor_v2");
    bytes_text(b, "((");
    pickle_string(b, "storage");
    pickle_global(b, "torch", t->storage);
    pickle_string(b, t->key);
    pickle_string(b, "cpu");
    pickle_int(b, (int64_t)t->numel);
    bytes_text(b, "tQ");
    pickle_int(b, (int64_t)t->offset);
    bytes_text(b, "(");
    for (uint32_t i = 0; i < t->rank; i++)
        pickle_int(b, t->shape[i]);
    bytes_text(b, "t(");
    for (uint32_t i = 0; i < t->rank; i++)
        pickle_int(b, t->stride[i]);
    bytes_text(b, "t\x89");
    pickle_global(b, "collections", "OrderedDict");
    bytes_text(b, ")RtR");
}

/* ---- zip ---- */

static uint32_t crc32_of(const uint8_t *p, uint64_t n)
{
    uint32_t crc = ~0u;
    for (uint64_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static bool write_at(int fd, const struct bytes *b, uint64_t offset)
{
    return pwrite(fd, b->data, b->count, (off_t)offset) == (ssize_t)b->count;
}

enum { ZIP_FLAGS = 0x0808 };

/* Local header, padding to 64, data, data descriptor; returns the offset behind it, 0 on failure.
 */
static uint64_t zip_write_local(int fd, const struct zip_part *p, uint64_t at, uint32_t crc)
{
    const char *name = p->local_name ? p->local_name : p->name;
    struct bytes h = {0};
    size_t n = strlen(name);
    size_t padding = (64 - (at + 30 + n + 4) % 64) % 64;
    bytes_add(&h, "PK\3\4", 4);
    bytes_le(&h, 20, 2);
    bytes_le(&h, ZIP_FLAGS | p->flags, 2);
    bytes_le(&h, p->method, 2);
    bytes_le(&h, 0, 4 + 4 + 4 + 4); /* time, CRC, sizes: in the descriptor */
    bytes_le(&h, n, 2);
    bytes_le(&h, 4 + padding, 2);
    bytes_text(&h, name);
    bytes_text(&h, "FB");
    bytes_le(&h, padding, 2);
    for (size_t i = 0; i < padding; i++)
        bytes_text(&h, "Z");
    if (!p->sparse)
        bytes_add(&h, p->data, p->bytes);
    bool ok = write_at(fd, &h, at);
    at += h.count + (p->sparse ? p->bytes : 0);
    h.count = 0;
    bytes_add(&h, "PK\7\10", 4);
    bytes_le(&h, crc, 4);
    unsigned size_bytes = p->bytes > UINT32_MAX ? 8 : 4;
    bytes_le(&h, p->bytes, size_bytes);
    bytes_le(&h, p->bytes, size_bytes);
    ok = ok && write_at(fd, &h, at);
    at += h.count;
    bytes_free(&h);
    return ok ? at : 0;
}

static void zip_add_central(struct bytes *d, const struct zip_part *p, uint64_t offset,
                            uint32_t crc)
{
    uint64_t bytes = p->claim_bytes ? p->claim_bytes : p->bytes;
    if (p->claim_offset)
        offset = p->claim_offset;
    bool z = p->zip64;
    bytes_add(d, "PK\1\2", 4);
    bytes_le(d, 0, 2);
    bytes_le(d, z ? 45 : 20, 2);
    bytes_le(d, ZIP_FLAGS | p->flags, 2);
    bytes_le(d, p->method, 2);
    bytes_le(d, 0, 4);
    bytes_le(d, crc, 4);
    bytes_le(d, z ? UINT32_MAX : bytes, 4);
    bytes_le(d, z ? UINT32_MAX : bytes, 4);
    bytes_le(d, strlen(p->name), 2);
    bytes_le(d, z ? 28 : 0, 2);
    bytes_le(d, 0, 2 + 2 + 2 + 4);
    bytes_le(d, z ? UINT32_MAX : offset, 4);
    bytes_text(d, p->name);
    if (z) {
        bytes_le(d, 1, 2);
        bytes_le(d, 24, 2);
        bytes_le(d, bytes, 8);
        bytes_le(d, bytes, 8);
        bytes_le(d, offset, 8);
    }
}

static void zip_add_end(struct bytes *d, uint64_t count, uint64_t directory,
                        const struct zip_lie *lie)
{
    uint64_t bytes = d->count, claim = lie->entries ? lie->entries : count;
    if (!lie->no_zip64) {
        bytes_add(d, "PK\6\6", 4);
        bytes_le(d, 44, 8);
        bytes_le(d, 45, 2);
        bytes_le(d, 45, 2);
        bytes_le(d, 0, 8);
        bytes_le(d, claim, 8);
        bytes_le(d, claim, 8);
        bytes_le(d, bytes, 8);
        bytes_le(d, directory, 8);
        bytes_add(d, "PK\6\7", 4);
        bytes_le(d, 0, 4);
        bytes_le(d, directory + bytes, 8);
        bytes_le(d, 1, 4);
    }
    bytes_add(d, "PK\5\6", 4);
    bytes_le(d, 0, 4);
    bytes_le(d, count, 2);
    bytes_le(d, count, 2);
    bytes_le(d, bytes > UINT32_MAX ? UINT32_MAX : bytes, 4);
    bytes_le(d, directory > UINT32_MAX ? UINT32_MAX : directory, 4);
    bytes_le(d, 0, 2);
}

bool zip_write(int fd, const struct zip_part *parts, size_t count, const struct zip_lie *lie)
{
    static const struct zip_lie honest;
    struct bytes directory = {0};
    uint64_t at = 0;
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        uint32_t crc = parts[i].sparse ? 0 : crc32_of(parts[i].data, parts[i].bytes);
        zip_add_central(&directory, &parts[i], at, crc);
        at = zip_write_local(fd, &parts[i], at, crc);
        ok = at != 0;
    }
    zip_add_end(&directory, count, at, lie ? lie : &honest);
    ok = ok && write_at(fd, &directory, at);
    if (ok && lie && lie->cut)
        ok = ftruncate(fd, (off_t)(at + directory.count - lie->cut)) == 0;
    bytes_free(&directory);
    return ok;
}

bool torch_zip_write(int fd, const struct bytes *pickle, const struct torch_storage *storages,
                     size_t count)
{
    struct zip_part *parts = calloc(count + 3, sizeof(*parts));
    char(*names)[64] = calloc(count + 1, sizeof(*names));
    if (!parts || !names)
        abort();
    size_t n = 0;
    parts[n++] =
        (struct zip_part){.name = "archive/data.pkl", .data = pickle->data, .bytes = pickle->count};
    parts[n++] = (struct zip_part){.name = "archive/byteorder", .data = "little", .bytes = 6};
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof(names[i]), "archive/data/%s", storages[i].key);
        parts[n++] = (struct zip_part){
            .name = names[i], .data = storages[i].data, .bytes = storages[i].bytes};
    }
    parts[n++] = (struct zip_part){.name = "archive/version", .data = "3\n", .bytes = 2};
    bool ok = zip_write(fd, parts, n, NULL);
    free(names);
    free(parts);
    return ok;
}

/* ---- safetensors, and reading back ---- */

void safetensors_write(int fd, const char *header, const void *data, size_t bytes)
{
    struct bytes b = {0};
    bytes_le(&b, strlen(header), 8);
    bytes_text(&b, header);
    bytes_add(&b, data, bytes);
    if (!write_at(fd, &b, 0))
        abort();
    bytes_free(&b);
}

int temporary_file(void)
{
    char path[] = "/tmp/aq-test-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        abort();
    unlink(path);
    return fd;
}

struct aq_tensor_file tensor_file_of(int fd, const char *name)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        abort();
    return (struct aq_tensor_file){.fd = fd, .bytes = (uint64_t)st.st_size, .name = name};
}

void *tensor_contents(const struct aq_tensor_file *file, const struct aq_tensor_info *t)
{
    struct aq_err err;
    uint8_t *data = malloc(t->bytes + 1);
    if (!data)
        abort();
    if (aq_tensor_read(file, t, 0, aq_tensor_rows(t), data, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return data;
}
