/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/store.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/store_manifest.h"
#include "offload/sum.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

struct aq_store {
    struct aq_store_manifest *m;
    char *dir; /* as given */
    struct stripe {
        char *path;
        int fd;
    } stripe[AQ_STORE_DIRS_MAX];
    const char *paths[AQ_STORE_DIRS_MAX]; /* the stripes' */
};

bool aq_store_present(const char *dir)
{
    char path[4096];
    struct stat st;
    int n = snprintf(path, sizeof(path), "%s/" AQ_STORE_MANIFEST_NAME, dir);
    return n > 0 && (size_t)n < sizeof(path) && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static const char *dir_path(const struct aq_store *s, uint32_t dir)
{
    return dir == 0 ? s->dir : s->m->dirs[dir];
}

/* A further directory must say that it belongs to this very store. */
static int check_stripe(const struct aq_store *s, uint32_t dir, struct aq_err *reterr)
{
    char *path;
    if (asprintf(&path, "%s/" AQ_STORE_STRIPE_NAME, dir_path(s, dir)) < 0)
        return aq_error_memory(reterr, "store '%s'", s->dir);
    struct aq_store_stripe stripe;
    int rc = aq_store_stripe_read(&stripe, path, reterr);
    if (rc == 0 && (stripe.plan != s->m->plan || stripe.id != s->m->id || stripe.index != dir ||
                    stripe.count != s->m->dir_count))
        rc = aq_error(reterr, -ENOEXEC,
                      "'%s': expected directory %u of %u of store %016llx, found %u of %u of "
                      "%016llx",
                      path, dir, s->m->dir_count, (unsigned long long)s->m->id, stripe.index,
                      stripe.count, (unsigned long long)stripe.id);
    free(path);
    return rc < 0 ? aq_error_prefix(reterr, "store '%s'", s->dir) : 0;
}

static int open_data(struct aq_store *s, uint32_t dir, struct aq_err *reterr)
{
    struct stripe *stripe = &s->stripe[dir];
    if (asprintf(&stripe->path, "%s/data.%u", dir_path(s, dir), dir) < 0) {
        stripe->path = NULL;
        return aq_error_memory(reterr, "store '%s'", s->dir);
    }
    s->paths[dir] = stripe->path;
    stripe->fd = aq_file_open(stripe->path, O_RDONLY | O_CLOEXEC, 0);
    if (stripe->fd < 0)
        return aq_error(reterr, stripe->fd, "store '%s': data file %u of %u: open '%s': %s", s->dir,
                        dir + 1, s->m->dir_count, stripe->path, strerror(-stripe->fd));
    struct stat st;
    uint64_t want = aq_stripe_file_bytes(s->m->bytes, s->m->dir_count, dir);
    if (fstat(stripe->fd, &st) < 0 || !S_ISREG(st.st_mode))
        return aq_error(reterr, -ENOEXEC, "store '%s': '%s': expected a regular file", s->dir,
                        stripe->path);
    if ((uint64_t)st.st_size != want)
        return aq_error(reterr, -ENOEXEC, "store '%s': '%s': expected %llu bytes, found %llu%s",
                        s->dir, stripe->path, (unsigned long long)want,
                        (unsigned long long)st.st_size,
                        (uint64_t)st.st_size < want ? " (truncated)" : "");
    return 0;
}

static int read_manifest(struct aq_store *s, struct aq_err *reterr)
{
    char *path, *text = NULL;
    size_t bytes = 0;
    if (asprintf(&path, "%s/" AQ_STORE_MANIFEST_NAME, s->dir) < 0)
        return aq_error_memory(reterr, "store '%s'", s->dir);
    int rc = aq_read_file(&text, &bytes, path, AQ_STORE_MANIFEST_BYTES_MAX, reterr);
    if (rc == 0) {
        rc = aq_store_manifest_parse(&s->m, text, bytes, reterr);
        free(text);
        if (rc < 0)
            aq_error_prefix(reterr, "'%s'", path);
    }
    free(path);
    return rc;
}

int aq_store_open(struct aq_store **ret, const char *dir, struct aq_err *reterr)
{
    assert(ret && dir);
    struct aq_store *s = calloc(1, sizeof(*s));
    if (!s)
        return aq_error_memory(reterr, "store '%s'", dir);
    for (uint32_t i = 0; i < AQ_STORE_DIRS_MAX; i++)
        s->stripe[i].fd = -1;
    s->dir = strdup(dir);
    int rc = s->dir ? read_manifest(s, reterr) : aq_error_memory(reterr, "store '%s'", dir);
    for (uint32_t i = 0; rc == 0 && i < s->m->dir_count; i++) {
        if (i > 0)
            rc = check_stripe(s, i, reterr);
        if (rc == 0)
            rc = open_data(s, i, reterr);
    }
    if (rc < 0) {
        aq_store_close(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void aq_store_close(struct aq_store *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < AQ_STORE_DIRS_MAX; i++) {
        if (s->stripe[i].fd >= 0)
            close(s->stripe[i].fd);
        free(s->stripe[i].path);
    }
    aq_store_manifest_close(s->m);
    free(s->dir);
    free(s);
}

uint64_t aq_store_identity(const struct aq_store *s)
{
    return s->m->id;
}
uint64_t aq_store_plan(const struct aq_store *s)
{
    return s->m->plan;
}
const json_t *aq_store_model(const struct aq_store *s)
{
    return s->m->model;
}
const char *aq_store_source(const struct aq_store *s)
{
    return s->m->source;
}
uint64_t aq_store_bytes(const struct aq_store *s)
{
    return s->m->bytes;
}
uint32_t aq_store_item_count(const struct aq_store *s)
{
    return s->m->item_count;
}
uint32_t aq_store_step_count(const struct aq_store *s)
{
    return s->m->step_count;
}
uint32_t aq_store_file_count(const struct aq_store *s)
{
    return s->m->file_count;
}
uint32_t aq_store_dir_count(const struct aq_store *s)
{
    return s->m->dir_count;
}
const struct aq_store_item *aq_store_item(const struct aq_store *s, uint32_t index)
{
    assert(index < s->m->item_count);
    return &s->m->items[index];
}
const struct aq_store_step *aq_store_step(const struct aq_store *s, uint32_t index)
{
    assert(index < s->m->step_count);
    return &s->m->steps[index];
}
const struct aq_store_file *aq_store_file(const struct aq_store *s, uint32_t index)
{
    assert(index < s->m->file_count);
    return &s->m->files[index];
}
const char *aq_store_dir(const struct aq_store *s, uint32_t index)
{
    assert(index < s->m->dir_count);
    return dir_path(s, index);
}
const char *const *aq_store_paths(const struct aq_store *s)
{
    return s->paths;
}
const char *aq_store_path(const struct aq_store *s, uint32_t dir)
{
    assert(dir < s->m->dir_count);
    return s->stripe[dir].path;
}

const struct aq_store_item *aq_store_find(const struct aq_store *s, const char *name)
{
    uint32_t index = aq_store_manifest_find(s->m, name);
    return index == UINT32_MAX ? NULL : &s->m->items[index];
}

static int read_at(int fd, const char *path, uint64_t offset, void *dst, size_t bytes,
                   struct aq_err *reterr)
{
    int rc = aq_file_read_at(fd, dst, bytes, offset);
    if (rc < 0)
        aq_error(reterr, rc, "read %zu bytes at %llu of '%s': %s", bytes,
                 (unsigned long long)offset, path,
                 rc == -EIO ? "the disk fails, or the file ends" : strerror(-rc));
    return rc;
}

int aq_store_read(const struct aq_store *s, const struct aq_store_item *item, uint64_t offset,
                  void *dst, size_t bytes, struct aq_err *reterr)
{
    assert(offset <= item->bytes && bytes <= item->bytes - offset);
    uint64_t at = item->offset + offset;
    for (size_t done = 0; done < bytes;) {
        struct aq_stripe_piece piece = aq_stripe_locate(s->m->dir_count, at + done, bytes - done);
        const struct stripe *stripe = &s->stripe[piece.file];
        int rc = read_at(stripe->fd, stripe->path, piece.offset, (char *)dst + done, piece.bytes,
                         reterr);
        if (rc < 0)
            return aq_error_prefix(reterr, "item '%s'", item->name);
        done += piece.bytes;
    }
    return 0;
}

/* ---- checksums of tiles ---- */

bool aq_store_has_tile_sums(const struct aq_store *s)
{
    return s->m->version >= 2;
}

/* An item of one tile has its sum in every version. */
static bool tile_sum(const struct aq_store_item *item, uint32_t tile, uint64_t *ret)
{
    if (!item->tile_xxh3 && aq_store_tile_count(item) > 1)
        return false;
    *ret = item->tile_xxh3 ? item->tile_xxh3[tile] : item->xxh3;
    return true;
}

static uint64_t tile_end(const struct aq_store_item *item, uint32_t tile)
{
    return aq_min_u64(item->bytes, (tile + 1ull) * aq_store_tile_bytes(item));
}

/* "rows 64 to 127 of 'x'", or "'x'" of what has no rows to speak of. */
static int tile_damaged(const struct aq_store *s, const struct aq_store_item *item, uint32_t tile,
                        uint64_t want, uint64_t found, struct aq_err *reterr)
{
    uint64_t begin = tile * aq_store_tile_bytes(item), first = (uint64_t)tile * AQ_PANEL_ROWS;
    struct aq_stripe_piece at =
        aq_stripe_locate(s->m->dir_count, item->offset + begin, tile_end(item, tile) - begin);
    char rows[64] = "";
    if (item->rows > 1)
        snprintf(rows, sizeof(rows), "rows %llu to %llu of ", (unsigned long long)first,
                 (unsigned long long)aq_min_u64(first + AQ_PANEL_ROWS, item->rows) - 1);
    return aq_error(reterr, -ENOEXEC,
                    "store '%s' is damaged: '%s', %llu bytes from %llu on, %s'%s' (step '%s'): "
                    "expected xxh3 %016llx, found %016llx; 'aquifer pack --model %s --verify' "
                    "lists all that is damaged; remove the store and pack the model again",
                    s->dir, s->stripe[at.file].path,
                    (unsigned long long)(tile_end(item, tile) - begin),
                    (unsigned long long)at.offset, rows, item->name, s->m->steps[item->step].name,
                    (unsigned long long)want, (unsigned long long)found, s->dir);
}

int aq_store_check_tiles(const struct aq_store *s, const struct aq_store_item *item, uint32_t first,
                         uint32_t count, const void *tiles, struct aq_err *reterr)
{
    assert(count <= aq_store_tile_count(item) && first <= aq_store_tile_count(item) - count);
    const char *at = tiles;
    for (uint32_t i = first; i < first + count; i++) {
        uint64_t want, bytes = tile_end(item, i) - i * aq_store_tile_bytes(item);
        if (!tile_sum(item, i, &want))
            return 0;
        uint64_t found = aq_sum(at, bytes);
        if (found != want)
            return tile_damaged(s, item, i, want, found, reterr);
        at += bytes;
    }
    return 0;
}

int aq_store_read_tile(const struct aq_store *s, const struct aq_store_item *item, uint32_t tile,
                       void *dst, size_t bytes, struct aq_err *reterr)
{
    uint64_t begin = tile * aq_store_tile_bytes(item), end = tile_end(item, tile), want = 0;
    assert(tile < aq_store_tile_count(item) && bytes <= end - begin);
    int rc = aq_store_read(s, item, begin, dst, bytes, reterr);
    if (rc < 0 || !tile_sum(item, tile, &want))
        return rc;
    if (bytes == end - begin)
        return aq_store_check_tiles(s, item, tile, 1, dst, reterr);
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return aq_error_memory(reterr, "item '%s'", item->name);
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, dst, bytes);
    char rest[4096]; /* what the caller has no room for is the padding behind a panel */
    for (uint64_t at = begin + bytes; rc == 0 && at < end;) {
        size_t n = (size_t)aq_min_u64(end - at, sizeof(rest));
        rc = aq_store_read(s, item, at, rest, n, reterr);
        if (rc == 0)
            XXH3_64bits_update(state, rest, n);
        at += n;
    }
    uint64_t found = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return rc < 0 || found == want ? rc : tile_damaged(s, item, tile, want, found, reterr);
}

/* Pages that were just written or read would otherwise be what is checked.  Advice only: where it
 * fails the check is of the page cache. */
static void forget_pages(const struct aq_store *s, const struct aq_store_item *item)
{
    for (uint64_t done = 0; done < item->bytes;) {
        struct aq_stripe_piece piece =
            aq_stripe_locate(s->m->dir_count, item->offset + done, item->bytes - done);
        (void)posix_fadvise(s->stripe[piece.file].fd, (off_t)piece.offset, (off_t)piece.bytes,
                            POSIX_FADV_DONTNEED);
        done += piece.bytes;
    }
}

int aq_store_verify_item(const struct aq_store *s, uint32_t index, void *buffer,
                         size_t buffer_bytes, struct aq_err *reterr)
{
    assert(index < s->m->item_count && buffer_bytes > 0);
    const struct aq_store_item *item = &s->m->items[index];
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return aq_error_memory(reterr, "item '%s'", item->name);
    XXH3_64bits_reset(state);
    forget_pages(s, item);
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < item->bytes;) {
        size_t n = (size_t)aq_min_u64(item->bytes - at, buffer_bytes);
        rc = aq_store_read(s, item, at, buffer, n, reterr);
        if (rc == 0)
            XXH3_64bits_update(state, buffer, n);
        at += n;
    }
    uint64_t found = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    if (rc == 0 && found != item->xxh3)
        rc =
            aq_error(reterr, -ENOEXEC,
                     "store '%s': item '%s' is damaged: expected xxh3 %016llx, found %016llx",
                     s->dir, item->name, (unsigned long long)item->xxh3, (unsigned long long)found);
    return rc;
}

static int hash_file(int fd, const char *path, uint64_t bytes, void *buffer, size_t buffer_bytes,
                     uint64_t *ret, struct aq_err *reterr)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return aq_error_memory(reterr, "'%s'", path);
    XXH3_64bits_reset(state);
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < bytes;) {
        size_t n = (size_t)aq_min_u64(bytes - at, buffer_bytes);
        rc = read_at(fd, path, at, buffer, n, reterr);
        if (rc == 0)
            XXH3_64bits_update(state, buffer, n);
        at += n;
    }
    *ret = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return rc;
}

int aq_store_verify_file(const struct aq_store *s, uint32_t index, void *buffer,
                         size_t buffer_bytes, struct aq_err *reterr)
{
    assert(index < s->m->file_count && buffer_bytes > 0);
    const struct aq_store_file *file = &s->m->files[index];
    char *path;
    if (asprintf(&path, "%s/%s", s->dir, file->name) < 0)
        return aq_error_memory(reterr, "store '%s'", s->dir);
    int rc = 0;
    uint64_t found = 0;
    struct stat st = {0};
    int fd = aq_file_open(path, O_RDONLY | O_CLOEXEC, 0);
    int code = fd < 0 ? fd : fstat(fd, &st) < 0 ? -errno : 0;
    if (code < 0)
        rc = aq_error(reterr, code, "store '%s': open '%s': %s", s->dir, path, strerror(-code));
    else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != file->bytes)
        rc = aq_error(reterr, -ENOEXEC,
                      "store '%s': file '%s' is damaged: expected %llu bytes, found %llu", s->dir,
                      file->name, (unsigned long long)file->bytes, (unsigned long long)st.st_size);
    else
        rc = hash_file(fd, path, file->bytes, buffer, buffer_bytes, &found, reterr);
    if (rc == 0 && found != file->xxh3)
        rc = aq_error(
            reterr, -ENOEXEC,
            "store '%s': file '%s' is damaged: expected xxh3 %016llx, found %016llx; remove "
            "the store and pack the model again",
            s->dir, file->name, (unsigned long long)file->xxh3, (unsigned long long)found);
    if (fd >= 0)
        close(fd);
    free(path);
    return rc;
}
