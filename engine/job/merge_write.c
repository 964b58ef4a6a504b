/* SPDX-License-Identifier: Apache-2.0
 * The output of a merge.  Results are written beside their name and renamed last: cut off before
 * that, a manifest and sums without results are there, which the next merge sets aside and a run
 * replaces. */
#include "engine/job/merge_state.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/job/manifest_file.h"
#include "engine/job/rewritten.h"
#include "engine/job/sums.h"
#include "engine/records/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More files than this are not open at a time; with --ordered lines come from all in turn. */
enum { OPEN_MAX_FILES = 200, INTERRUPT_LINES = 256 };

struct copy {
    struct aq_merge *m;
    struct aq_rewritten to;
    int *fd; /* [sources]: descriptor + 1, 0: not open */
    uint32_t open;
    /* Lines of compressed files are read from a temporary file, where the whole text of a file is,
     * or with --ordered that of all. */
    int spool;            /* -1: not needed so far */
    uint64_t *unpacked;   /* [sources]: where the text begins there, and 1; 0: it is not there */
    uint32_t last, count; /* the source that was unpacked last; how many sources there are */
    char *bytes;
    size_t capacity;
};

static void close_files(struct copy *c)
{
    for (uint32_t i = 0; c->fd && i < c->count; i++) {
        if (c->fd[i])
            close(c->fd[i] - 1);
        c->fd[i] = 0;
    }
    c->open = 0;
}

static int open_file(struct copy *c, uint32_t source, struct aq_err *reterr)
{
    if (c->fd[source])
        return 0;
    if (c->open == OPEN_MAX_FILES)
        close_files(c);
    const char *path = aq_merge_source(c->m, source)->path;
    int fd = aq_file_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return aq_error(reterr, aq_err_of_io(-fd), "open '%s': %s", path, strerror(-fd));
    c->fd[source] = fd + 1;
    c->open++;
    return 0;
}

static int interrupted(void *user)
{
    return aq_merge_interrupted(user);
}

/* Lies beside the output, where there must be room for as much anyway unless that is compressed. */
static int open_spool(struct copy *c, struct aq_err *reterr)
{
    char *folder = aq_file_folder(c->m->files.output);
    int fd = folder ? aq_spool_open(folder, reterr) : aq_error_memory(reterr, "merge");
    free(folder);
    c->spool = fd < 0 ? -1 : fd;
    return fd < 0 ? fd : 0;
}

/* Lines that are not put in order come file by file: the text before is not needed any more. */
static int empty_spool(struct copy *c, struct aq_err *reterr)
{
    int rc = aq_file_truncate(c->spool, 0);
    if (rc < 0 || lseek(c->spool, 0, SEEK_SET) < 0)
        return aq_error(reterr, -EIO, "a temporary file: %s", strerror(rc < 0 ? -rc : errno));
    c->unpacked[c->last] = 0;
    return 0;
}

/* The text of a compressed file, which was found whole, into the temporary file. */
static int unpack(struct copy *c, uint32_t source, struct aq_err *reterr)
{
    if (c->unpacked[source])
        return 0;
    int rc = c->spool < 0 ? open_spool(c, reterr) : 0;
    if (rc == 0 && !c->m->o->ordered)
        rc = empty_spool(c, reterr);
    rc = rc < 0 ? rc : open_file(c, source, reterr);
    if (rc < 0)
        return rc;
    off_t begin = lseek(c->spool, 0, SEEK_CUR);
    rc = aq_spool_copy(&(struct aq_spool){.to = c->spool,
                                          .from = c->fd[source] - 1,
                                          .name = aq_merge_source(c->m, source)->path,
                                          .interrupted = interrupted,
                                          .user = c->m},
                       reterr);
    c->unpacked[source] = rc < 0 ? 0 : (uint64_t)begin + 1;
    c->last = source;
    return rc;
}

/* Where the line lies: a file, and the place in it. */
static int find_line(struct copy *c, const struct aq_merge_line *l, int *ret_fd, uint64_t *ret_at,
                     struct aq_err *reterr)
{
    bool plain = aq_merge_source(c->m, l->source)->compression == AQ_PLAIN;
    int rc = plain ? open_file(c, l->source, reterr) : unpack(c, l->source, reterr);
    if (rc < 0)
        return rc;
    *ret_fd = plain ? c->fd[l->source] - 1 : c->spool;
    *ret_at = l->offset + (plain ? 0 : c->unpacked[l->source] - 1);
    return 0;
}

/* The line as it was when it was judged, or -EIO. */
static int copy_line(struct copy *c, const struct aq_merge_line *l, struct aq_err *reterr)
{
    int fd;
    uint64_t at;
    int rc = find_line(c, l, &fd, &at, reterr);
    if (rc < 0)
        return rc;
    if (c->capacity < l->count + 1) {
        char *larger = realloc(c->bytes, l->count + 1);
        if (!larger)
            return aq_error_memory(reterr, "a line of %" PRIu64 " bytes", l->count);
        c->bytes = larger;
        c->capacity = l->count + 1;
    }
    rc = aq_file_read_at(fd, c->bytes, l->count, at);
    if (rc < 0 || aq_sums_of(c->bytes, l->count) != l->sum)
        return aq_error(reterr, -EIO,
                        "'%s' has changed while it was merged (%s); nothing was "
                        "written",
                        aq_merge_source(c->m, l->source)->path,
                        rc < 0 ? strerror(-rc) : "a line is another one");
    size_t count = l->count;
    if (c->bytes[count - 1] != '\n')
        c->bytes[count++] = '\n';
    c->m->result.bytes += count;
    return aq_rewritten_put(&c->to, c->bytes, count, reterr);
}

static int copy_lines(struct copy *c, struct aq_err *reterr)
{
    const struct aq_merge *m = c->m;
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < m->line_count; i++) {
        if (i % INTERRUPT_LINES == 0 && aq_merge_interrupted(m))
            return aq_error(reterr, -EINTR, "interrupted; nothing was written");
        rc = copy_line(c, &m->line[i], reterr);
    }
    return rc;
}

static uint64_t sum_of(const void *user, uint64_t i)
{
    return ((const struct aq_merge *)user)->line[i].sum;
}

/* The values of one run without shards; those that may differ are the first shard's. */
static int write_beside(struct aq_merge *m, enum aq_compression compression, struct aq_err *reterr)
{
    json_t *values = aq_json_copy(m->first->values);
    aq_json_put(&values, "shard", json_null());
    aq_json_put(&values, "compression", aq_manifest_compression(compression));
    aq_json_put(&values, "errors_file", json_null());
    int rc = aq_manifest_write(m->files.manifest, values, reterr);
    return rc < 0 ? rc : aq_sums_write_list(m->files.sums, m->line_count, sum_of, m, reterr);
}

static int write_lines(struct copy *c, struct aq_err *reterr)
{
    struct aq_merge *m = c->m;
    enum aq_compression compression = aq_compression_of_name(m->files.output);
    const char *like = m->first->source[AQ_MERGE_RESULTS].path;
    int rc = aq_rewritten_open(&c->to, m->files.output, like, compression, reterr);
    if (rc < 0)
        return rc;
    rc = copy_lines(c, reterr);
    rc = rc == 0 ? write_beside(m, compression, reterr) : rc;
    return aq_rewritten_close(&c->to, rc, reterr);
}

int aq_merge_write(struct aq_merge *m, struct aq_err *reterr)
{
    struct copy c = {.m = m, .count = AQ_MERGE_SOURCES * m->shard_count, .spool = -1};
    c.fd = calloc(c.count, sizeof(*c.fd));
    c.unpacked = calloc(c.count, sizeof(*c.unpacked));
    int rc = c.fd && c.unpacked
                 ? write_lines(&c, reterr)
                 : aq_error_memory(reterr, "merge of %" PRIu32 " files", m->shard_count);
    close_files(&c);
    if (c.spool >= 0)
        close(c.spool);
    free(c.fd);
    free(c.unpacked);
    free(c.bytes);
    return rc;
}
