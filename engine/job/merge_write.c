/* SPDX-License-Identifier: Apache-2.0
 * The output of a merge.  Results are written beside their name and renamed last: cut off before
 * that, a manifest and sums without results are there, which the next merge sets aside and a run
 * replaces. */
#include "engine/job/merge_state.h"

#include "base/file.h"
#include "base/json.h"
#include "engine/job/manifest_file.h"
#include "engine/job/sums.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More files than this are not open at a time; with --ordered lines come from all in turn. */
enum { OPEN_MAX_FILES = 200, INTERRUPT_LINES = 256 };

struct copy {
    struct aq_merge *m;
    struct aq_replacement to;
    int *fd; /* [shard_count]: descriptor + 1, 0: not open */
    uint32_t open;
    char *bytes;
    size_t capacity;
};

static void close_files(struct copy *c)
{
    for (uint32_t i = 0; i < c->m->shard_count; i++) {
        if (c->fd[i])
            close(c->fd[i] - 1);
        c->fd[i] = 0;
    }
    c->open = 0;
}

static int open_file(struct copy *c, uint32_t shard, struct aq_err *reterr)
{
    if (c->fd[shard])
        return 0;
    if (c->open == OPEN_MAX_FILES)
        close_files(c);
    const char *path = c->m->shard[shard].lines;
    int fd = aq_file_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return aq_error(reterr, aq_err_of_io(-fd), "open '%s': %s", path, strerror(-fd));
    c->fd[shard] = fd + 1;
    c->open++;
    return 0;
}

/* The line as it was when it was judged, or -EIO. */
static int copy_line(struct copy *c, const struct aq_merge_line *l, struct aq_err *reterr)
{
    const char *path = c->m->shard[l->shard].lines;
    int rc = open_file(c, l->shard, reterr);
    if (rc < 0)
        return rc;
    if (c->capacity < l->count + 1) {
        char *larger = realloc(c->bytes, l->count + 1);
        if (!larger)
            return aq_error_memory(reterr, "a line of %" PRIu64 " bytes", l->count);
        c->bytes = larger;
        c->capacity = l->count + 1;
    }
    rc = aq_file_read_at(c->fd[l->shard] - 1, c->bytes, l->count, l->offset);
    if (rc < 0 || aq_sums_of(c->bytes, l->count) != l->sum)
        return aq_error(reterr, -EIO,
                        "'%s' has changed while it was merged (%s); nothing was "
                        "written",
                        path, rc < 0 ? strerror(-rc) : "a line is another one");
    size_t count = l->count;
    if (c->bytes[count - 1] != '\n')
        c->bytes[count++] = '\n';
    c->m->result.bytes += count;
    return aq_replacement_put(&c->to, c->bytes, count, reterr);
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
static int write_beside(struct aq_merge *m, struct aq_err *reterr)
{
    json_t *values = aq_json_copy(m->first->values);
    aq_json_put(&values, "shard", json_null());
    int rc = aq_manifest_write(m->files.manifest, values, reterr);
    return rc < 0 ? rc : aq_sums_write_list(m->files.sums, m->line_count, sum_of, m, reterr);
}

int aq_merge_write(struct aq_merge *m, struct aq_err *reterr)
{
    struct copy c = {.m = m, .fd = calloc(m->shard_count, sizeof(*c.fd))};
    if (!c.fd)
        return aq_error_memory(reterr, "merge of %" PRIu32 " files", m->shard_count);
    int rc = aq_replacement_open(&c.to, m->files.output, m->first->lines, reterr);
    if (rc == 0) {
        rc = copy_lines(&c, reterr);
        rc = rc == 0 ? write_beside(m, reterr) : rc;
        rc = aq_replacement_close(&c.to, rc, true, reterr);
    }
    close_files(&c);
    free(c.fd);
    free(c.bytes);
    return rc;
}
