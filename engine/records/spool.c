/* SPDX-License-Identifier: Apache-2.0
 * Input that cannot be read twice, as it comes from a pipe or is compressed, goes to an unlinked
 * temporary file first. */
#include "engine/records/spool.h"

#include "base/compress.h"
#include "base/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20, HEAD_BYTES = 4 /* they tell a compression */ };

int aq_spool_open(const char *dir, struct aq_err *reterr)
{
    const char *tmp = getenv("TMPDIR");
    if (!dir)
        dir = tmp && *tmp ? tmp : "/tmp";
    int fd = aq_file_open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/.aquifer-XXXXXX", dir);
    if (n < 0 || (size_t)n >= sizeof(path))
        return aq_error(reterr, -EINVAL, "temporary directory '%s': the path is too long", dir);
    fd = aq_file_open_temp(path);
    if (fd < 0)
        return aq_error(reterr, fd, "create a temporary file in '%s': %s", dir, strerror(-fd));
    unlink(path);
    return fd;
}

int aq_spool_write(int fd, const char *bytes, size_t count, struct aq_err *reterr)
{
    int rc = aq_file_write(fd, bytes, count);
    if (rc < 0)
        aq_error(reterr, rc, "write the input to a temporary file: %s", strerror(-rc));
    return rc;
}

/* ---- copying ---- */

struct copy {
    const struct aq_spool *s;
    uint64_t bytes; /* taken from the input */
    char *in, *text;
    enum aq_compression compression;
    struct aq_expander *expander; /* NULL: the input is copied as it is */
    bool inside;                  /* of a member */
};

/* Reads at least HEAD_BYTES, unless the input ends; their number, or an error. */
static ssize_t read_some(struct copy *c, struct aq_err *reterr)
{
    const struct aq_spool *s = c->s;
    size_t count = 0;
    while (count < HEAD_BYTES) {
        ssize_t n = read(s->from, c->in + count, READ_BYTES - count);
        if (s->interrupted && s->interrupted(s->user))
            return aq_error(reterr, -EINTR, "interrupted while reading '%s'", s->name);
        if (n < 0 && errno != EINTR)
            return aq_error(reterr, -EIO, "read '%s': %s", s->name, strerror(errno));
        if (n == 0)
            break;
        count += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)count;
}

/* What the name promises must be there, unless nothing is; what has no name is known by its first
 * bytes. */
static int begin(struct copy *c, size_t count, struct aq_err *reterr)
{
    enum aq_compression named = aq_compression_of_name(c->s->name);
    c->compression = aq_compression_of_bytes(c->in, count);
    if (count && named != AQ_PLAIN && named != c->compression)
        return aq_error(reterr, -EINVAL,
                        "'%s': by its name it is %s-compressed, but it does not begin so; expected "
                        "the name to say what the file is",
                        c->s->name, aq_compression_name(named));
    int rc = aq_compression_check(c->compression, c->s->name, reterr);
    if (rc == 0 && c->compression != AQ_PLAIN)
        rc = aq_expander_open(&c->expander, c->compression, reterr);
    return rc;
}

static int refuse_member(const struct copy *c, int code, uint64_t at, struct aq_err *reterr)
{
    const char *name = aq_compression_name(c->compression);
    if (code == -ENOMEM)
        return aq_error_memory(reterr, "unpacking '%s'", c->s->name);
    if (code == -EOVERFLOW)
        return aq_error(reterr, -EINVAL,
                        "'%s' was compressed with a window of more than 128 MiB (--long), which "
                        "unpacking it would take as memory; expected a smaller one: zstd -dc "
                        "--long=31 FILE | zstd >NEW makes it",
                        c->s->name);
    return aq_error(reterr, -EINVAL,
                    "'%s' is damaged: what stands before byte %" PRIu64
                    " cannot be unpacked as %s; expected what `%s -t` finds no fault with",
                    c->s->name, at, name, name);
}

/* Unpacks all of some bytes.  Zeros behind a member are padding, as tapes and some tools leave. */
static int unpack(struct copy *c, size_t count, struct aq_err *reterr)
{
    const char *at = c->in;
    size_t made = 0;
    int rc = 0;
    while (rc == 0 && (count || made == READ_BYTES)) {
        if (!c->inside && *at == '\0') {
            at++;
            count--;
            made = 0;
            continue;
        }
        if (!c->inside)
            aq_expander_begin(c->expander);
        int ended = aq_expand(c->expander, &at, &count, c->text, READ_BYTES, &made);
        if (ended < 0)
            return refuse_member(c, ended, c->bytes + (uint64_t)(at - c->in), reterr);
        c->inside = !ended;
        rc = aq_spool_write(c->s->to, c->text, made, reterr);
        made = ended ? 0 : made; /* nothing of an ended member is left inside */
    }
    return rc;
}

static int copy_all(struct copy *c, struct aq_err *reterr)
{
    int rc = 0;
    for (bool first = true; rc == 0; first = false) {
        ssize_t n = read_some(c, reterr);
        if (n < 0)
            return (int)n;
        if (first)
            rc = begin(c, (size_t)n, reterr);
        if (rc == 0 && n == 0)
            break;
        if (rc == 0)
            rc = c->expander ? unpack(c, (size_t)n, reterr)
                             : aq_spool_write(c->s->to, c->in, (size_t)n, reterr);
        c->bytes += (uint64_t)n;
    }
    if (rc == 0 && c->inside)
        rc = aq_error(reterr, -EINVAL,
                      "'%s' ends in the middle of its %s data, after %" PRIu64
                      " bytes: it was cut off; expected the whole file",
                      c->s->name, aq_compression_name(c->compression), c->bytes);
    return rc;
}

int aq_spool_copy(const struct aq_spool *s, struct aq_err *reterr)
{
    struct copy c = {.s = s, .in = malloc(READ_BYTES), .text = malloc(READ_BYTES)};
    int rc = c.in && c.text ? copy_all(&c, reterr) : aq_error_memory(reterr, "'%s'", s->name);
    aq_expander_close(c.expander);
    free(c.in);
    free(c.text);
    return rc;
}

bool aq_spool_wanted(int fd, const char *name)
{
    char head[HEAD_BYTES];
    ssize_t n = TEMP_FAILURE_RETRY(pread(fd, head, sizeof(head), 0));
    return aq_compression_of_name(name) != AQ_PLAIN ||
           (n > 0 && aq_compression_of_bytes(head, (size_t)n) != AQ_PLAIN);
}
