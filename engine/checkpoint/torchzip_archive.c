/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/torchzip_archive.h"

#include "engine/checkpoint/pickle.h"
#include "engine/checkpoint/torchzip.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

enum {
    ROOT_MAX = 256,
    KEY_MAX = 64,
    LOCAL_HEADER_BYTES = 30,
    END_BYTES = 22,   /* end of central directory */
    END64_BYTES = 56, /* its zip64 record */
    END64_LOCATOR_BYTES = 20,
    TAIL_BYTES = 65535 + END_BYTES + END64_LOCATOR_BYTES, /* an archive comment has at most 65535 */
};

struct aq_torchzip_archive {
    const struct aq_tensor_file *file;
    zip_t *zip;
    char root[ROOT_MAX]; /* "archive/"; empty when the entries have none */
    /* libzip has no call that tells where an entry lies, but it must read the entry's local header
     * to open it: the source below notes where its first read after zip_fopen_index went. */
    uint64_t position, first_seek;
    bool watching, io_failed;
};

static uint16_t le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t le32(const uint8_t *p)
{
    return le16(p) | (uint32_t)le16(p + 2) << 16;
}

static uint64_t le64(const uint8_t *p)
{
    return le32(p) | (uint64_t)le32(p + 4) << 32;
}

/* ---- a libzip source over pread ---- */

static zip_int64_t source_read(struct aq_torchzip_archive *a, void *data, zip_uint64_t bytes)
{
    uint64_t left = a->file->bytes - a->position;
    size_t want = aq_min_u64(bytes, left);
    if (aq_tensor_file_pread(a->file, data, want, a->position, NULL) < 0) {
        a->io_failed = true;
        return -1;
    }
    a->position += want;
    return (zip_int64_t)want;
}

static zip_int64_t source_seek(struct aq_torchzip_archive *a, void *data, zip_uint64_t bytes)
{
    zip_error_t error;
    zip_error_init(&error);
    zip_int64_t to =
        zip_source_seek_compute_offset(a->position, a->file->bytes, data, bytes, &error);
    zip_error_fini(&error);
    if (to < 0)
        return -1;
    a->position = (uint64_t)to;
    if (a->watching) {
        a->first_seek = a->position;
        a->watching = false;
    }
    return 0;
}

static zip_int64_t source_call(void *user, void *data, zip_uint64_t bytes, zip_source_cmd_t command)
{
    struct aq_torchzip_archive *a = user;
    switch (command) {
    case ZIP_SOURCE_OPEN: a->position = 0; return 0;
    case ZIP_SOURCE_READ: return source_read(a, data, bytes);
    case ZIP_SOURCE_SEEK: return source_seek(a, data, bytes);
    case ZIP_SOURCE_TELL: return (zip_int64_t)a->position;
    case ZIP_SOURCE_STAT: {
        zip_stat_t *st = data;
        zip_stat_init(st);
        st->size = a->file->bytes;
        st->valid = ZIP_STAT_SIZE;
        return sizeof(*st);
    }
    case ZIP_SOURCE_ERROR: {
        int *error = data;
        error[0] = a->io_failed ? ZIP_ER_READ : ZIP_ER_SEEK;
        error[1] = a->io_failed ? EIO : EINVAL;
        return 2 * sizeof(int);
    }
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE: return 0;
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
            ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_SUPPORTS, -1);
    default: return -1;
    }
}

/* ---- opening ---- */

/* The claims of one end record, at `end` in the file, and of the zip64 record before it. */
static int check_end_record(const struct aq_tensor_file *file, const uint8_t *end,
                            const uint8_t *locator, uint64_t position, struct aq_err *reterr)
{
    uint64_t entries = le16(end + 10), size = le32(end + 12), offset = le32(end + 16);
    if (locator && memcmp(locator, "PK\6\7", 4) == 0) {
        uint8_t record[END64_BYTES];
        uint64_t at = le64(locator + 8);
        if (file->bytes < END64_BYTES || at > file->bytes - END64_BYTES)
            return 0; /* libzip refuses it */
        int rc = aq_tensor_file_pread(file, record, sizeof(record), at, reterr);
        if (rc < 0)
            return rc;
        entries = aq_max_u64(le64(record + 24), le64(record + 32));
        size = le64(record + 40);
        offset = le64(record + 48);
    }
    if (entries > AQ_TORCHZIP_ENTRIES_MAX)
        return aq_error(reterr, -ENOEXEC, "zip archive: expected at most %d entries, found %llu",
                        AQ_TORCHZIP_ENTRIES_MAX, (unsigned long long)entries);
    /* A directory must fit in front of the record, or libzip will not read it. */
    if (size > AQ_TORCHZIP_DIRECTORY_MAX && size <= position && offset <= position - size)
        return aq_error(reterr, -ENOEXEC,
                        "zip archive: expected a directory of at most %d bytes, found %llu",
                        AQ_TORCHZIP_DIRECTORY_MAX, (unsigned long long)size);
    return 0;
}

/* libzip allocates as many entries as a zip64 end record claims before it has seen one, and reads a
 * directory of any size: refuse absurd claims first.  Looks at every end record in the tail, as
 * libzip does. */
static int check_end(const struct aq_tensor_file *file, struct aq_err *reterr)
{
    size_t n = aq_min_u64(file->bytes, TAIL_BYTES);
    uint64_t start = file->bytes - n;
    uint8_t *tail = malloc(n + 1);
    if (!tail)
        return aq_error_memory(reterr, "end of the archive");
    int rc = aq_tensor_file_pread(file, tail, n, start, reterr);
    bool found = false;
    for (size_t i = 0; rc == 0 && i + END_BYTES <= n; i++) {
        if (memcmp(tail + i, "PK\5\6", 4) != 0)
            continue;
        const uint8_t *locator = i < END64_LOCATOR_BYTES ? NULL : tail + i - END64_LOCATOR_BYTES;
        rc = check_end_record(file, tail + i, locator, start + i, reterr);
        found = true;
    }
    if (rc == 0 && !found)
        rc = aq_error(reterr, -ENOEXEC,
                      "zip archive of %llu bytes without its directory at the end; an incomplete "
                      "download?",
                      (unsigned long long)file->bytes);
    free(tail);
    return rc;
}

static int open_zip(struct aq_torchzip_archive *a, struct aq_err *reterr)
{
    zip_error_t error;
    zip_error_init(&error);
    zip_source_t *source = zip_source_function_create(source_call, a, &error);
    if (source)
        a->zip = zip_open_from_source(source, ZIP_RDONLY, &error);
    int rc = 0;
    if (!a->zip) {
        rc = aq_error(reterr, a->io_failed ? -EIO : -ENOEXEC, "zip archive: %s",
                      zip_error_strerror(&error));
        if (source)
            zip_source_free(source);
    }
    zip_error_fini(&error);
    return rc;
}

/* The root is what stands before "data.pkl" in the one entry of that name. */
static int find_root(struct aq_torchzip_archive *a, struct aq_err *reterr)
{
    static const char leaf[] = "data.pkl";
    zip_int64_t count = zip_get_num_entries(a->zip, 0);
    if (count > AQ_TORCHZIP_ENTRIES_MAX)
        return aq_error(reterr, -ENOEXEC, "zip archive: expected at most %d entries, found %lld",
                        AQ_TORCHZIP_ENTRIES_MAX, (long long)count);
    unsigned found = 0;
    for (zip_int64_t i = 0; i < count; i++) {
        const char *name = zip_get_name(a->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
        const char *slash = name ? strchr(name, '/') : NULL;
        const char *tail = slash ? slash + 1 : name;
        if (!name || strcmp(tail, leaf) != 0)
            continue;
        size_t n = (size_t)(tail - name);
        if (n >= ROOT_MAX)
            return aq_error(reterr, -ENOEXEC, "zip archive: a root name of %zu bytes", n);
        memcpy(a->root, name, n);
        a->root[n] = '\0';
        found++;
    }
    if (found != 1)
        return aq_error(reterr, -ENOEXEC,
                        "zip archive: expected one entry <name>/data.pkl as torch.save writes, "
                        "found %u",
                        found);
    return 0;
}

static int stat_entry(struct aq_torchzip_archive *a, const char *name, zip_stat_t *ret,
                      struct aq_err *reterr)
{
    const zip_uint64_t need = ZIP_STAT_NAME | ZIP_STAT_INDEX | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                              ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD | ZIP_STAT_CRC;
    char quoted[128];
    aq_quote(quoted, sizeof(quoted), name, strlen(name));
    zip_stat_init(ret);
    zip_int64_t index = zip_name_locate(a->zip, name, ZIP_FL_ENC_RAW);
    if (index < 0)
        return aq_error(reterr, -ENOEXEC, "zip archive: expected an entry '%s', found none",
                        quoted);
    if (zip_stat_index(a->zip, (zip_uint64_t)index, ZIP_FL_ENC_RAW, ret) < 0 ||
        (ret->valid & need) != need)
        return aq_error(reterr, -ENOEXEC, "zip archive: entry '%s' cannot be read: %s", quoted,
                        zip_strerror(a->zip));
    if (ret->encryption_method != ZIP_EM_NONE)
        return aq_error(reterr, -ENOEXEC, "zip archive: entry '%s' is encrypted", quoted);
    return 0;
}

/* A small entry through libzip, which checks its CRC; it may be compressed. */
static int read_entry(struct aq_torchzip_archive *a, const char *name, uint64_t bytes_max,
                      uint8_t **ret, size_t *ret_bytes, struct aq_err *reterr)
{
    zip_stat_t st;
    int rc = stat_entry(a, name, &st, reterr);
    if (rc < 0)
        return rc;
    char quoted[128];
    aq_quote(quoted, sizeof(quoted), name, strlen(name));
    if (st.size > bytes_max)
        return aq_error(reterr, -ENOEXEC,
                        "zip archive: entry '%s': expected at most %llu bytes, found %llu", quoted,
                        (unsigned long long)bytes_max, (unsigned long long)st.size);
    uint8_t *bytes = malloc(st.size + 1);
    if (!bytes)
        return aq_error_memory(reterr, "zip entry '%s' of %llu bytes", quoted,
                               (unsigned long long)st.size);
    zip_file_t *entry = zip_fopen_index(a->zip, st.index, 0);
    zip_int64_t n = entry ? zip_fread(entry, bytes, st.size) : -1;
    uint8_t one;
    bool whole = n == (zip_int64_t)st.size;
    if (whole) /* the end is where libzip compares the CRC */
        whole = zip_fread(entry, &one, 1) == 0;
    if (!whole) {
        rc = aq_error(reterr, a->io_failed ? -EIO : -ENOEXEC,
                      "zip archive: entry '%s' cannot be read: %s", quoted,
                      entry ? zip_file_strerror(entry) : zip_strerror(a->zip));
        free(bytes);
    } else {
        *ret = bytes;
        *ret_bytes = st.size;
    }
    if (entry)
        zip_fclose(entry);
    return rc;
}

/* torch.save writes "little" or "big" since 2.1, nothing before. */
static int check_byte_order(struct aq_torchzip_archive *a, struct aq_err *reterr)
{
    char name[ROOT_MAX + 16], quoted[32];
    snprintf(name, sizeof(name), "%sbyteorder", a->root);
    if (zip_name_locate(a->zip, name, ZIP_FL_ENC_RAW) < 0)
        return 0;
    uint8_t *bytes;
    size_t n;
    int rc = read_entry(a, name, 64, &bytes, &n, reterr);
    if (rc < 0)
        return rc;
    if (n != 6 || memcmp(bytes, "little", 6) != 0)
        rc = aq_error(reterr, -ENOEXEC, "byte order: expected 'little', found '%s'",
                      aq_quote(quoted, sizeof(quoted), bytes, n));
    free(bytes);
    return rc;
}

int aq_torchzip_archive_open(struct aq_torchzip_archive **ret, const struct aq_tensor_file *file,
                             struct aq_err *reterr)
{
    struct aq_torchzip_archive *a = calloc(1, sizeof(*a));
    if (!a)
        return aq_error_memory(reterr, "zip archive");
    a->file = file;
    int rc = check_end(file, reterr);
    if (rc == 0)
        rc = open_zip(a, reterr);
    if (rc == 0)
        rc = find_root(a, reterr);
    if (rc == 0)
        rc = check_byte_order(a, reterr);
    if (rc < 0) {
        aq_torchzip_archive_close(a);
        return rc;
    }
    *ret = a;
    return 0;
}

void aq_torchzip_archive_close(struct aq_torchzip_archive *a)
{
    if (!a)
        return;
    if (a->zip)
        zip_discard(a->zip);
    free(a);
}

int aq_torchzip_archive_pickle(struct aq_torchzip_archive *a, uint8_t **ret, size_t *ret_bytes,
                               struct aq_err *reterr)
{
    char name[ROOT_MAX + 16];
    snprintf(name, sizeof(name), "%sdata.pkl", a->root);
    return read_entry(a, name, AQ_PICKLE_BYTES_MAX, ret, ret_bytes, reterr);
}

/* Checks the local header at `at` against what the central directory says, and finds the data
 * behind it.  Sizes and CRC there may be 0 (written afterwards, flag bit 3) or 0xffffffff (zip64):
 * the central directory's are the ones that count (APPNOTE 4.3.7, 4.4.4). */
static int read_local_header(struct aq_torchzip_archive *a, const zip_stat_t *st, uint64_t at,
                             struct aq_torchzip_entry *ret, struct aq_err *reterr)
{
    enum { FLAG_ENCRYPTED = 1 };
    uint8_t h[LOCAL_HEADER_BYTES + ROOT_MAX + KEY_MAX + 16];
    size_t name_bytes = strlen(st->name), need = LOCAL_HEADER_BYTES + name_bytes;
    char quoted[128];
    aq_quote(quoted, sizeof(quoted), st->name, name_bytes);
    assert(need <= sizeof(h));
    if (a->file->bytes < need || at > a->file->bytes - need)
        return aq_error(reterr, -ENOEXEC,
                        "zip archive: the header of entry '%s' lies at %llu, the "
                        "file ends at %llu",
                        quoted, (unsigned long long)at, (unsigned long long)a->file->bytes);
    int rc = aq_tensor_file_pread(a->file, h, need, at, reterr);
    if (rc < 0)
        return rc;
    if (memcmp(h, "PK\3\4", 4) != 0 || le16(h + 26) != name_bytes ||
        memcmp(h + LOCAL_HEADER_BYTES, st->name, name_bytes) != 0 || le16(h + 8) != ZIP_CM_STORE ||
        (le16(h + 6) & FLAG_ENCRYPTED))
        return aq_error(reterr, -ENOEXEC,
                        "zip archive: entry '%s': its header at %llu contradicts the directory",
                        quoted, (unsigned long long)at);
    uint64_t offset = at + need + le16(h + 28);
    if (offset > a->file->bytes || st->size > a->file->bytes - offset)
        return aq_error(reterr, -ENOEXEC,
                        "zip archive: entry '%s': %llu bytes at %llu, the file ends at %llu",
                        quoted, (unsigned long long)st->size, (unsigned long long)offset,
                        (unsigned long long)a->file->bytes);
    *ret = (struct aq_torchzip_entry){.offset = offset, .bytes = st->size, .crc = st->crc};
    return 0;
}

int aq_torchzip_archive_storage(struct aq_torchzip_archive *a, const char *key, size_t key_bytes,
                                struct aq_torchzip_entry *ret, struct aq_err *reterr)
{
    char name[ROOT_MAX + KEY_MAX + 16], quoted[128];
    if (key_bytes == 0 || key_bytes >= KEY_MAX || memchr(key, '\0', key_bytes))
        return aq_error(reterr, -ENOEXEC, "storage key '%s': expected 1 to %d bytes without NUL",
                        aq_quote(quoted, sizeof(quoted), key, key_bytes), KEY_MAX - 1);
    snprintf(name, sizeof(name), "%sdata/%.*s", a->root, (int)key_bytes, key);
    zip_stat_t st;
    int rc = stat_entry(a, name, &st, reterr);
    if (rc < 0)
        return rc;
    aq_quote(quoted, sizeof(quoted), name, strlen(name));
    if (st.comp_method != ZIP_CM_STORE || st.comp_size != st.size)
        return aq_error(reterr, -ENOEXEC,
                        "zip archive: entry '%s' is compressed; torch.save stores tensors", quoted);
    if (st.size == 0) { /* libzip opens an empty entry without looking for it; it has no bytes */
        *ret = (struct aq_torchzip_entry){.crc = st.crc};
        return 0;
    }
    a->watching = true;
    a->first_seek = UINT64_MAX;
    zip_file_t *entry = zip_fopen_index(a->zip, st.index, 0);
    a->watching = false;
    if (!entry || a->first_seek == UINT64_MAX) {
        rc = aq_error(reterr, a->io_failed ? -EIO : -ENOEXEC,
                      "zip archive: entry '%s' cannot be read: %s", quoted, zip_strerror(a->zip));
        if (entry)
            zip_fclose(entry);
        return rc;
    }
    zip_fclose(entry);
    return read_local_header(a, &st, a->first_seek, ret, reterr);
}
