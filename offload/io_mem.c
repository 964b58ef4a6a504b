/* SPDX-License-Identifier: Apache-2.0
 * offload/io_mem.c - files in memory, with the contract of the real engines: a destination is
 * filled, and a source read, in the reap that returns the request and not before. */
#include "offload/io_engine.h"

#include "base/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct mem {
    struct aq_io io;
    struct aq_io_mem_file *data;
    bool null;
    struct aq_io_request *head, *tail; /* queued and in flight */
    struct aq_io_bell bell;
};

static struct mem *mem_of(struct aq_io *io)
{
    return (struct mem *)io;
}

static int mem_queue(struct aq_io *io, struct aq_io_request *r)
{
    struct mem *m = mem_of(io);
    if (m->tail)
        m->tail->next = r;
    else
        m->head = r;
    m->tail = r;
    return 0;
}

static int mem_commit(struct aq_io *io, struct aq_err *reterr)
{
    (void)io;
    (void)reterr;
    return 0;
}

static int32_t move(const struct mem *m, const struct aq_io_request *r)
{
    const struct aq_io_mem_file *file = &m->data[r->file];
    if (m->null)
        return (int32_t)r->bytes;
    uint64_t left = r->offset < file->bytes ? file->bytes - r->offset : 0;
    uint64_t bytes = aq_min_u64(r->bytes, left);
    if (r->op == AQ_IO_WRITE && bytes == 0)
        return -ENOSPC;
    if (bytes > 0) {
        char *at = (char *)file->data + r->offset;
        if (r->op == AQ_IO_READ)
            memcpy(r->buffer, at, bytes);
        else
            memcpy(at, r->buffer, bytes);
    }
    return (int32_t)bytes;
}

static int mem_reap(struct aq_io *io, uint32_t min, uint64_t timeout_ns, struct aq_io_reaped *ret,
                    struct aq_err *reterr)
{
    struct mem *m = mem_of(io);
    (void)reterr;
    while (m->head) {
        struct aq_io_request *r = m->head;
        m->head = r->next;
        aq_io_finish(io, ret, r, move(m, r));
    }
    m->tail = NULL;
    ret->woken = aq_io_bell_take(&m->bell);
    if (ret->count < min && !ret->woken) {
        bool quiet = aq_io_bell_wait(&m->bell, timeout_ns);
        aq_io_bell_quiet(&m->bell);
        ret->woken = atomic_exchange(&m->bell.rung, false) || !quiet;
    }
    return 0;
}

static void mem_wake(struct aq_io *io)
{
    aq_io_bell_ring(&mem_of(io)->bell);
}

static void mem_close(struct aq_io *io, bool abandon)
{
    struct mem *m = mem_of(io);
    assert(!abandon);
    aq_io_bell_close(&m->bell);
    aq_io_fini(io);
    free(m->data);
    free(m);
}

static const struct aq_io_ops mem_ops = {
    .queue = mem_queue,
    .commit = mem_commit,
    .reap = mem_reap,
    .wake = mem_wake,
    .close = mem_close,
};

int aq_io_open_mem(struct aq_io **ret, const struct aq_io_mem_opts *opts, struct aq_err *reterr)
{
    assert(ret && opts && opts->file_count >= 1 && opts->file_count <= AQ_IO_FILES_MAX);
    assert(opts->depth >= 1 && opts->depth <= AQ_IO_DEPTH_MAX);
    struct mem *m = calloc(1, sizeof(*m));
    if (!m)
        return aq_error_memory(reterr, "io engine 'mem'");
    m->bell.fd = -1;
    m->null = opts->null;
    int rc = -ENOMEM;
    m->data = calloc(opts->file_count, sizeof(*m->data));
    struct aq_io_file *files = calloc(opts->file_count, sizeof(*files));
    if (!m->data || !files) {
        aq_error(reterr, rc, "io engine 'mem': %u files", opts->file_count);
        goto fail;
    }
    memcpy(m->data, opts->files, opts->file_count * sizeof(*m->data));
    for (uint32_t i = 0; i < opts->file_count; i++)
        files[i] = (struct aq_io_file){.fd = -1,
                                       .name = m->data[i].name ? m->data[i].name : "memory",
                                       .direct = opts->align_bytes > 1};
    rc = aq_io_init(&m->io, &mem_ops, "mem", files, opts->file_count, opts->depth, reterr);
    if (rc < 0)
        goto fail;
    m->io.caps.align_bytes = opts->align_bytes ? opts->align_bytes : 1;
    assert((m->io.caps.align_bytes & (m->io.caps.align_bytes - 1)) == 0);
    m->io.caps.direct = true; /* no page cache is involved */
    rc = aq_io_bell_open(&m->bell, reterr);
    if (rc < 0)
        goto fail;
    free(files);
    *ret = &m->io;
    return 0;
fail:
    free(files);
    mem_close(&m->io, false);
    return rc;
}
