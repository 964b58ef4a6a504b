/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/reorder.h"

#include "base/file.h"
#include "engine/records/spool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct piece {
    uint64_t offset;
    uint64_t count; /* UINT64_MAX: not here yet */
};

struct aq_reorder {
    int fd; /* -1 until something has to wait */
    uint64_t next, count, end;
    void (*output)(void *user, const char *bytes, size_t count);
    void *user;
    struct piece piece[];
};

int aq_reorder_open(struct aq_reorder **ret, uint64_t count,
                    void (*output)(void *user, const char *bytes, size_t count), void *user,
                    struct aq_err *reterr)
{
    struct aq_reorder *r = malloc(sizeof(*r) + count * sizeof(r->piece[0]));
    if (!r)
        return aq_error_memory(reterr, "order of the output");
    *r = (struct aq_reorder){.fd = -1, .count = count, .output = output, .user = user};
    for (uint64_t i = 0; i < count; i++)
        r->piece[i] = (struct piece){0, UINT64_MAX};
    *ret = r;
    return 0;
}

void aq_reorder_close(struct aq_reorder *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}

static int keep(struct aq_reorder *r, uint64_t index, const char *bytes, size_t count,
                struct aq_err *reterr)
{
    if (r->fd < 0)
        r->fd = aq_spool_open(NULL, reterr);
    if (r->fd < 0)
        return r->fd;
    if (lseek(r->fd, (off_t)r->end, SEEK_SET) < 0)
        return aq_error(reterr, -errno, "order of the output: %s", strerror(errno));
    int rc = aq_file_write(r->fd, bytes, count);
    if (rc < 0)
        return aq_error(reterr, rc, "order of the output: write a temporary file: %s",
                        strerror(-rc));
    r->piece[index] = (struct piece){r->end, count};
    r->end += count;
    return 0;
}

static int emit(struct aq_reorder *r, const struct piece *p, struct aq_err *reterr)
{
    char *bytes = malloc(p->count + 1);
    if (!bytes)
        return aq_error_memory(reterr, "order of the output");
    int rc = aq_file_read_at(r->fd, bytes, p->count, p->offset);
    if (rc < 0)
        aq_error(reterr, rc, "order of the output: read a temporary file: %s", strerror(-rc));
    else
        r->output(r->user, bytes, p->count);
    free(bytes);
    return rc;
}

int aq_reorder_put(struct aq_reorder *r, uint64_t index, const char *bytes, size_t count,
                   struct aq_err *reterr)
{
    assert(index < r->count && r->piece[index].count == UINT64_MAX);
    if (index != r->next)
        return keep(r, index, bytes, count, reterr);
    r->piece[index].count = count;
    r->output(r->user, bytes, count);
    r->next++;
    int rc = 0;
    for (; rc == 0 && r->next < r->count && r->piece[r->next].count != UINT64_MAX; r->next++)
        rc = emit(r, &r->piece[r->next], reterr);
    return rc;
}
