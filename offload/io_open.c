/* SPDX-License-Identifier: Apache-2.0
 * Which io engine a run gets. */
#include "base/log.h"
#include "offload/io_engine.h"

#include <assert.h>
#include <errno.h>

int aq_io_open(struct aq_io **ret, const struct aq_io_opts *opts, struct aq_err *reterr)
{
    assert(ret && opts && opts->files && opts->kind < AQ_IO_KIND_COUNT);
    assert(opts->file_count >= 1 && opts->file_count <= AQ_IO_FILES_MAX);
    assert(opts->depth >= 1 && opts->depth <= AQ_IO_DEPTH_MAX);
    if (opts->kind == AQ_IO_THREADS)
        return aq_io_open_threads(ret, opts, reterr);
    struct aq_err why;
    int rc = aq_io_open_uring(ret, opts, &why);
    if (rc == 0)
        return 0;
    if (opts->kind == AQ_IO_URING)
        return aq_error(reterr, -ENODEV, "io engine 'uring': %s", why.text);
    aq_log_line(opts->log, AQ_LOG_WARNING,
                "io: %s; using a pool of threads, which costs more CPU per byte", why.text);
    return aq_io_open_threads(ret, opts, reterr);
}

void aq_io_describe(struct aq_io_description *ret)
{
    const char *reason = aq_io_uring_reason();
    *ret = (struct aq_io_description){
        .kind = reason ? AQ_IO_THREADS : AQ_IO_URING,
        .uring_reason = reason,
    };
}
