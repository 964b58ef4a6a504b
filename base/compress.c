/* SPDX-License-Identifier: Apache-2.0 */
#include "base/compress_codec.h"

#include "base/file.h"
#include "base/types.h"
#include "config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const struct {
    const char *name, *ending, *magic, *library;
    const struct aq_codec *codec; /* NULL: not in this build */
} table[AQ_COMPRESSION_COUNT] = {
    [AQ_PLAIN] = {.name = "none", .ending = "", .magic = ""},
    [AQ_GZIP] = {"gzip", ".gz", "\x1f\x8b\x08", "zlib",
#if AQ_HAVE_ZLIB
                 &aq_codec_gzip
#endif
    },
    [AQ_ZSTD] = {"zstd", ".zst", "\x28\xb5\x2f\xfd", "libzstd",
#if AQ_HAVE_ZSTD
                 &aq_codec_zstd
#endif
    },
};

/* ---- names ---- */

const char *aq_compression_name(enum aq_compression c)
{
    return table[c].name;
}

enum aq_compression aq_compression_of_name(const char *name)
{
    size_t bytes = strlen(name);
    for (int c = AQ_GZIP; c < AQ_COMPRESSION_COUNT; c++) {
        size_t n = strlen(table[c].ending);
        if (bytes > n && !strcasecmp(name + bytes - n, table[c].ending))
            return (enum aq_compression)c;
    }
    return AQ_PLAIN;
}

size_t aq_compression_ending(const char *name)
{
    return strlen(table[aq_compression_of_name(name)].ending);
}

/* A frame that is to be passed over, with 0x184D2A50 to 0x184D2A5F in front (RFC 8878, 3.1.2). */
static bool is_skippable(const unsigned char *head, size_t count)
{
    return count >= 4 && (head[0] & 0xf0) == 0x50 && !memcmp(head + 1, "\x2a\x4d\x18", 3);
}

enum aq_compression aq_compression_of_bytes(const void *head, size_t count)
{
    if (is_skippable(head, count))
        return AQ_ZSTD;
    for (int c = AQ_GZIP; c < AQ_COMPRESSION_COUNT; c++) {
        size_t n = strlen(table[c].magic);
        if (count >= n && !memcmp(head, table[c].magic, n))
            return (enum aq_compression)c;
    }
    return AQ_PLAIN;
}

int aq_compression_check(enum aq_compression c, const char *path, struct aq_err *reterr)
{
    return c == AQ_PLAIN || table[c].codec
               ? 0
               : aq_error(reterr, -EINVAL,
                          "'%s' is %s-compressed, and this build has no %s: install its "
                          "development files and build again (meson setup --reconfigure), or leave "
                          "the file uncompressed",
                          path, table[c].name, table[c].library);
}

/* ---- members ---- */

int aq_compress(struct aq_buf *dst, enum aq_compression c, const char *text, size_t bytes)
{
    assert(table[c].codec);
    return table[c].codec->compress(dst, text, bytes);
}

struct aq_expander {
    const struct aq_codec *codec;
    void *state;
};

int aq_expander_open(struct aq_expander **ret, enum aq_compression c, struct aq_err *reterr)
{
    assert(table[c].codec);
    struct aq_expander *e = calloc(1, sizeof(*e));
    void *state = e ? table[c].codec->open() : NULL;
    if (!state) {
        free(e);
        return aq_error_memory(reterr, "unpacking %s", table[c].name);
    }
    *e = (struct aq_expander){table[c].codec, state};
    *ret = e;
    return 0;
}

void aq_expander_close(struct aq_expander *e)
{
    if (!e)
        return;
    e->codec->close(e->state);
    free(e);
}

void aq_expander_begin(struct aq_expander *e)
{
    e->codec->begin(e->state);
}

int aq_expand(struct aq_expander *e, const char **in, size_t *in_bytes, char *dst, size_t capacity,
              size_t *ret_bytes)
{
    return e->codec->expand(e->state, in, in_bytes, dst, capacity, ret_bytes);
}

/* ---- files ---- */

enum {
    WINDOW_BYTES = 64 << 10,
    SALVAGE_BYTES = 1, /* at a time: of what libzstd gets at once it gives out nothing, where it
                        * finds a fault at the end of it */
};

struct aq_members {
    struct aq_expander *expander;
    const char *magic;
    int fd;
    void (*damaged)(void *user, uint64_t begin, uint64_t end, bool last);
    void *user;
    bool inside;  /* of a whole member, whose text is being given out */
    uint64_t end; /* of the last whole member */
    /* bytes of the file: [at, at + left) are those that come next */
    const char *next;
    size_t left, step; /* step: how many are unpacked at a time */
    uint64_t at;
    char window[WINDOW_BYTES], text[WINDOW_BYTES];
};

int aq_members_open(struct aq_members **ret, int fd, enum aq_compression c,
                    void (*damaged)(void *user, uint64_t begin, uint64_t end, bool last),
                    void *user, struct aq_err *reterr)
{
    struct aq_members *m = calloc(1, sizeof(*m));
    if (!m)
        return aq_error_memory(reterr, "unpacking %s", table[c].name);
    m->fd = fd;
    m->step = WINDOW_BYTES;
    m->magic = table[c].magic;
    m->damaged = damaged;
    m->user = user;
    int rc = aq_expander_open(&m->expander, c, reterr);
    if (rc < 0)
        free(m);
    else
        *ret = m;
    return rc;
}

void aq_members_close(struct aq_members *m)
{
    if (!m)
        return;
    aq_expander_close(m->expander);
    free(m);
}

uint64_t aq_members_end(const struct aq_members *m)
{
    return m->end;
}

static ssize_t read_at(int fd, void *dst, size_t count, uint64_t offset)
{
    ssize_t n = TEMP_FAILURE_RETRY(pread(fd, dst, count, (off_t)offset));
    return n < 0 ? -errno : n;
}

static void go_to(struct aq_members *m, uint64_t offset)
{
    m->at = offset;
    m->left = 0;
    aq_expander_begin(m->expander);
}

/* Some text of the member that begins where go_to went.  As aq_expand, and -ENODATA where the file
 * ends. */
static int expand_more(struct aq_members *m, char *dst, size_t capacity, size_t *ret_bytes)
{
    if (!m->left) {
        ssize_t n = read_at(m->fd, m->window, WINDOW_BYTES, m->at);
        if (n < 0)
            return (int)n;
        m->next = m->window;
        m->left = (size_t)n;
    }
    size_t given = aq_min_u64(m->left, m->step), left = given;
    int rc = aq_expand(m->expander, &m->next, &left, dst, capacity, ret_bytes);
    m->at += given - left;
    m->left -= given - left;
    if (rc == -EOVERFLOW) /* members are small: what says otherwise was changed */
        return -EBADMSG;
    return rc == 0 && !given && !*ret_bytes ? -ENODATA : rc;
}

/* Whether a whole member begins at `offset`; *ret_end is its end.  1, 0, or -errno. */
static int is_member(struct aq_members *m, uint64_t offset, uint64_t *ret_end)
{
    size_t bytes;
    int rc;
    go_to(m, offset);
    do {
        rc = expand_more(m, m->text, sizeof(m->text), &bytes);
    } while (rc == 0);
    *ret_end = m->at;
    return rc == -EBADMSG || rc == -ENODATA ? 0 : rc;
}

/* The next place from `offset` on where a member may begin; UINT64_MAX: there is none. */
static int find_magic(struct aq_members *m, uint64_t offset, uint64_t *ret)
{
    size_t magic = strlen(m->magic);
    for (;; offset += sizeof(m->text) - magic + 1) {
        ssize_t n = read_at(m->fd, m->text, sizeof(m->text), offset);
        if (n < 0)
            return (int)n;
        const char *found = memmem(m->text, (size_t)n, m->magic, magic);
        *ret = found ? offset + (uint64_t)(found - m->text) : UINT64_MAX;
        if (found || (size_t)n < sizeof(m->text))
            return 0;
    }
}

/* Goes to the next whole member.  1, 0 where there is none, or -errno. */
static int next_member(struct aq_members *m)
{
    uint64_t begin = m->end, at = begin, end;
    char one;
    ssize_t n = read_at(m->fd, &one, 1, begin);
    if (n <= 0)
        return (int)n;
    int found = is_member(m, at, &end);
    while (found == 0) {
        int rc = find_magic(m, at + 1, &at);
        if (rc < 0)
            return rc;
        if (at == UINT64_MAX)
            break;
        found = is_member(m, at, &end);
    }
    if (found < 0)
        return found;
    int64_t size = found ? 0 : lseek(m->fd, 0, SEEK_END);
    if (at != begin && m->damaged)
        m->damaged(m->user, begin, found ? at : (uint64_t)size, !found);
    if (!found)
        return 0;
    m->end = end;
    go_to(m, at);
    return 1;
}

ssize_t aq_members_read(void *members, void *dst, size_t count)
{
    struct aq_members *m = members;
    for (;;) {
        int rc = m->inside ? 1 : next_member(m);
        if (rc <= 0)
            return rc;
        m->inside = true;
        size_t bytes;
        rc = expand_more(m, dst, count, &bytes);
        if (rc < 0) /* it was whole a moment ago */
            return rc == -EBADMSG || rc == -ENODATA ? -EIO : rc;
        m->inside = rc == 0;
        if (bytes)
            return (ssize_t)bytes;
    }
}

/* Text that is handed on in pieces of this buffer. */
struct pieces {
    aq_members_text_fn *put;
    void *user;
    size_t held;
    char bytes[WINDOW_BYTES];
};

static int hand_on(struct pieces *p)
{
    int rc = p->held ? p->put(p->user, p->bytes, p->held) : 0;
    p->held = 0;
    return rc;
}

/* What can be unpacked from where go_to went, up to `end`.  0, what `put` returned, or -errno. */
static int salvage_member(struct aq_members *m, uint64_t end, struct pieces *p)
{
    for (size_t bytes = 0;; bytes = 0) {
        int rc = expand_more(m, p->bytes + p->held, sizeof(p->bytes) - p->held, &bytes);
        if (rc < 0 && rc != -EBADMSG && rc != -ENODATA)
            return rc;
        p->held += bytes;
        bool over = rc != 0 || (!bytes && m->at >= end);
        rc = p->held == sizeof(p->bytes) ? hand_on(p) : 0;
        if (rc != 0 || over)
            return rc;
    }
}

int aq_members_salvage(int fd, enum aq_compression c, uint64_t begin, uint64_t end,
                       aq_members_text_fn *put, void *user)
{
    struct aq_members *m = NULL;
    struct pieces *p = malloc(sizeof(*p));
    int rc = p ? aq_members_open(&m, fd, c, NULL, NULL, NULL) : -ENOMEM;
    if (rc == 0) {
        m->step = SALVAGE_BYTES;
        p->put = put;
        p->user = user;
        p->held = 0;
    }
    for (uint64_t at = begin; rc == 0 && at < end;) {
        go_to(m, at);
        rc = salvage_member(m, end, p);
        if (rc == 0)
            rc = find_magic(m, at + 1, &at);
    }
    if (rc == 0)
        rc = hand_on(p);
    aq_members_close(m);
    free(p);
    return rc;
}
