/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/inflight.h"

#include "base/file.h"
#include "engine/records/record_state.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { MAGIC_BYTES = 24, READ_BYTES = 64 << 10 };
static const char magic[MAGIC_BYTES] = "aquifer-inflight 1\n";
static const size_t magic_name = sizeof("aquifer-inflight") - 1;

struct head {
    char magic[MAGIC_BYTES];
    uint64_t values;
};

struct tail {
    uint64_t records;
    uint64_t sum; /* XXH3 of all bytes before */
};

struct entry_head {
    uint64_t id_hash, key, tokens, bytes;
};

struct entry {
    struct entry_head head;
    uint64_t offset;    /* of the state in the file */
    bool known, wanted; /* known: somebody has said whether it is wanted */
};

struct aq_inflight {
    int fd;
    struct entry *entry; /* [count], by id_hash and key */
    uint64_t count;
    bool keeps_unknown;
};

/* ---- reading ----------------------------------------------------------------------------- */

static int read_failed(const char *path, int rc, struct aq_err *reterr)
{
    return aq_error(reterr, aq_err_of_io(-rc), "read '%s': %s", path, strerror(-rc));
}

/* Whether the file's last 8 bytes are the sum of the others. */
static int check_sum(int fd, const char *path, uint64_t size, struct aq_err *reterr)
{
    XXH3_state_t *sum = XXH3_createState();
    char *bytes = malloc(READ_BYTES);
    uint64_t end = size - sizeof(uint64_t), kept = 0;
    int rc = sum && bytes ? 0 : aq_error_memory(reterr, "'%s'", path);
    if (rc == 0)
        XXH3_64bits_reset(sum);
    for (uint64_t at = 0; rc == 0 && at < end;) {
        size_t count = (size_t)aq_min_u64(READ_BYTES, end - at);
        rc = aq_file_read_at(fd, bytes, count, at);
        if (rc < 0)
            rc = read_failed(path, rc, reterr);
        else
            XXH3_64bits_update(sum, bytes, count);
        at += count;
    }
    if (rc == 0 && (rc = aq_file_read_at(fd, &kept, sizeof(kept), end)) < 0)
        rc = read_failed(path, rc, reterr);
    if (rc == 0 && kept != XXH3_64bits_digest(sum))
        rc = aq_error(reterr, -EINVAL,
                      "'%s' is damaged or was cut off (its own checksum does not agree)", path);
    free(bytes);
    XXH3_freeState(sum);
    return rc;
}

static int check_head(const struct head *h, const char *path, uint64_t values,
                      struct aq_err *reterr)
{
    if (memcmp(h->magic, magic, magic_name) != 0)
        return aq_error(reterr, -EINVAL, "'%s' is not a file of records in flight", path);
    if (memcmp(h->magic, magic, MAGIC_BYTES) != 0)
        return aq_error(reterr, -EINVAL, "'%s' was written by another version", path);
    if (h->values != values)
        return aq_error(reterr, -EINVAL,
                        "'%s' was written with other values (another version, instruction set, "
                        "model, format or parameter), which give other tokens",
                        path);
    return 0;
}

static int by_record(const void *a, const void *b)
{
    const struct entry_head *x = &((const struct entry *)a)->head;
    const struct entry_head *y = &((const struct entry *)b)->head;
    if (x->id_hash != y->id_hash)
        return x->id_hash < y->id_hash ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

static int read_entries(struct aq_inflight *f, const char *path, uint64_t count, uint64_t end,
                        struct aq_err *reterr)
{
    uint64_t at = sizeof(struct head);
    bool fits = count <= (end - at) / sizeof(struct entry_head);
    f->entry = fits ? calloc(count + 1, sizeof(*f->entry)) : NULL;
    if (fits && !f->entry)
        return aq_error_memory(reterr, "%llu records in flight", (unsigned long long)count);
    for (; fits && f->count < count; f->count++) {
        struct entry *e = &f->entry[f->count];
        int rc = end - at < sizeof(e->head) ? -EIO
                                            : aq_file_read_at(f->fd, &e->head, sizeof(e->head), at);
        if (rc < 0)
            return read_failed(path, rc, reterr);
        e->offset = at + sizeof(e->head);
        fits = e->head.bytes <= end - e->offset && e->head.bytes <= SIZE_MAX / 2;
        at = e->offset + e->head.bytes;
    }
    if (!fits || at != end)
        return aq_error(reterr, -EINVAL, "'%s': its records do not fill it", path);
    qsort(f->entry, f->count, sizeof(*f->entry), by_record);
    return 0;
}

static int read_file(struct aq_inflight *f, const char *path, uint64_t values,
                     struct aq_err *reterr)
{
    struct stat st;
    struct head h;
    struct tail t;
    if (fstat(f->fd, &st) < 0)
        return read_failed(path, -errno, reterr);
    uint64_t size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    if (size < sizeof(h) + sizeof(t))
        return aq_error(reterr, -EINVAL, "'%s' is too short for a file of records in flight", path);
    int rc = aq_file_read_at(f->fd, &h, sizeof(h), 0);
    if (rc < 0)
        return read_failed(path, rc, reterr);
    rc = check_head(&h, path, values, reterr);
    rc = rc < 0 ? rc : check_sum(f->fd, path, size, reterr);
    if (rc < 0)
        return rc;
    rc = aq_file_read_at(f->fd, &t, sizeof(t), size - sizeof(t));
    return rc < 0 ? read_failed(path, rc, reterr)
                  : read_entries(f, path, t.records, size - sizeof(t), reterr);
}

int aq_inflight_open(struct aq_inflight **ret, const char *path, uint64_t values,
                     struct aq_err *reterr)
{
    assert(ret && path);
    int fd = aq_file_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return aq_error(reterr, fd == -ENOENT ? -ENOENT : aq_err_of_io(-fd), "open '%s': %s", path,
                        strerror(-fd));
    struct aq_inflight *f = calloc(1, sizeof(*f));
    if (!f) {
        close(fd);
        return aq_error_memory(reterr, "'%s'", path);
    }
    f->fd = fd;
    int rc = read_file(f, path, values, reterr);
    if (rc < 0)
        aq_inflight_close(f);
    else
        *ret = f;
    return rc;
}

void aq_inflight_close(struct aq_inflight *f)
{
    if (!f)
        return;
    close(f->fd);
    free(f->entry);
    free(f);
}

/* ---- entries ----------------------------------------------------------------------------- */

static struct entry *find(const struct aq_inflight *f, uint64_t id_hash, uint64_t key)
{
    const struct entry want = {.head = {.id_hash = id_hash, .key = key}};
    return bsearch(&want, f->entry, f->count, sizeof(want), by_record);
}

void aq_inflight_want(struct aq_inflight *f, uint64_t id_hash, uint64_t key, bool wanted)
{
    struct entry *e = find(f, id_hash, key);
    if (!e)
        return;
    e->known = true;
    e->wanted = wanted;
}

void aq_inflight_keep_unknown(struct aq_inflight *f)
{
    f->keeps_unknown = true;
}

static bool is_left(const struct aq_inflight *f, const struct entry *e)
{
    return e->wanted || (!e->known && f->keeps_unknown);
}

bool aq_inflight_is_used_up(const struct aq_inflight *f)
{
    for (uint64_t i = 0; i < f->count; i++)
        if (is_left(f, &f->entry[i]))
            return false;
    return true;
}

struct aq_inflight_count aq_inflight_wanted(const struct aq_inflight *f)
{
    struct aq_inflight_count c = {0};
    for (uint64_t i = 0; i < f->count; i++) {
        c.records += f->entry[i].wanted;
        c.tokens += f->entry[i].wanted ? f->entry[i].head.tokens : 0;
    }
    return c;
}

static bool read_state(const struct aq_inflight *f, const struct entry *e, struct aq_buf *state)
{
    char *bytes = malloc(e->head.bytes + 1);
    bool good = bytes && aq_file_read_at(f->fd, bytes, e->head.bytes, e->offset) == 0;
    aq_buf_clear(state);
    if (good)
        aq_buf_put(state, bytes, e->head.bytes);
    free(bytes);
    return good && !state->failed;
}

uint64_t aq_inflight_take(struct aq_inflight *f, uint64_t id_hash, uint64_t key,
                          struct aq_buf *state)
{
    struct entry *e = find(f, id_hash, key);
    aq_buf_clear(state);
    if (!e || !e->wanted)
        return 0;
    e->wanted = false;
    return read_state(f, e, state) ? e->head.tokens : 0;
}

/* ---- writing ----------------------------------------------------------------------------- */

struct writing {
    struct aq_replacement to;
    XXH3_state_t *sum;
    struct aq_inflight_count count;
};

static int put(struct writing *w, const void *bytes, size_t count, struct aq_err *reterr)
{
    XXH3_64bits_update(w->sum, bytes, count);
    return aq_replacement_put(&w->to, bytes, count, reterr);
}

static int put_entry(struct writing *w, const struct entry_head *h, const struct aq_buf *state,
                     struct aq_err *reterr)
{
    if (state->failed)
        return aq_error_memory(reterr, "%llu bytes of a record in flight",
                               (unsigned long long)h->bytes);
    w->count.records++;
    w->count.tokens += h->tokens;
    int rc = put(w, h, sizeof(*h), reterr);
    return rc < 0 ? rc : put(w, state->data, state->count, reterr);
}

static int put_flight(struct writing *w, const struct aq_flight *flight, struct aq_buf *state,
                      struct aq_err *reterr)
{
    int rc = 0;
    for (const struct aq_record *rec = flight->first; rec && rc == 0; rec = rec->next) {
        aq_buf_clear(state);
        struct entry_head h = {.id_hash = rec->request->id_hash, .key = rec->request->key};
        h.tokens = aq_record_state_put(state, rec);
        h.bytes = state->count;
        if (h.tokens)
            rc = put_entry(w, &h, state, reterr);
    }
    return rc;
}

static int put_old(struct writing *w, const struct aq_inflight *old, struct aq_buf *state,
                   struct aq_err *reterr)
{
    int rc = 0;
    for (uint64_t i = 0; old && i < old->count && rc == 0; i++) {
        const struct entry *e = &old->entry[i];
        if (is_left(old, e) && read_state(old, e, state))
            rc = put_entry(w, &e->head, state, reterr);
    }
    return rc;
}

static int write_all(struct writing *w, uint64_t values, const struct aq_flight *flight,
                     const struct aq_inflight *old, struct aq_err *reterr)
{
    struct aq_buf state = {0};
    struct head h = {.values = values};
    memcpy(h.magic, magic, MAGIC_BYTES);
    int rc = put(w, &h, sizeof(h), reterr);
    rc = rc < 0 ? rc : put_flight(w, flight, &state, reterr);
    rc = rc < 0 ? rc : put_old(w, old, &state, reterr);
    aq_buf_close(&state);
    rc = rc < 0 ? rc : put(w, &w->count.records, sizeof(w->count.records), reterr);
    uint64_t sum = XXH3_64bits_digest(w->sum);
    return rc < 0 ? rc : aq_replacement_put(&w->to, (const char *)&sum, sizeof(sum), reterr);
}

int aq_inflight_write(const char *path, uint64_t values, const struct aq_flight *flight,
                      const struct aq_inflight *old, struct aq_inflight_count *ret,
                      struct aq_err *reterr)
{
    struct writing w = {.sum = XXH3_createState()};
    if (!w.sum)
        return aq_error_memory(reterr, "'%s'", path);
    XXH3_64bits_reset(w.sum);
    int rc = aq_replacement_open(&w.to, path, NULL, reterr);
    if (rc == 0) {
        rc = write_all(&w, values, flight, old, reterr);
        bool empty = rc == 0 && !w.count.records;
        rc = aq_replacement_close(&w.to, empty ? -ENODATA : rc, true, reterr);
        if (empty)
            aq_inflight_remove(path);
        rc = empty ? 0 : rc;
    }
    XXH3_freeState(w.sum);
    if (rc == 0)
        *ret = w.count;
    return rc;
}

void aq_inflight_remove(const char *path)
{
    char *beside = aq_replacement_beside(path);
    unlink(path);
    if (beside)
        unlink(beside);
    free(beside);
}
