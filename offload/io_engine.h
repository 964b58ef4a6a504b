/* SPDX-License-Identifier: Apache-2.0
 * offload/io_engine.h - the functions that an io engine implements, and those that all engines
 * share.  For io*.c only.  io.c keeps the counts and checks every request, so that engines need
 * not. */
#ifndef AQ_OFFLOAD_IO_ENGINE_H
#define AQ_OFFLOAD_IO_ENGINE_H

#include "offload/io.h"

#include <stdatomic.h>

struct aq_io_ops {
    /* Called with fewer than depth_max requests out.  0, or -EAGAIN for reasons of the engine. */
    int (*queue)(struct aq_io *io, struct aq_io_request *request);
    int (*commit)(struct aq_io *io, struct aq_err *reterr);
    /* Commits first.  `min` is at most the number of requests in flight, except that 1 with none in
     * flight means: wait for a wake.  Appends to ret with aq_io_finish. */
    int (*reap)(struct aq_io *io, uint32_t min, uint64_t timeout_ns, struct aq_io_reaped *ret,
                struct aq_err *reterr);
    void (*wake)(struct aq_io *io);
    uint64_t (*now)(const struct aq_io *io);  /* NULL: the monotonic clock */
    uint64_t (*next)(const struct aq_io *io); /* NULL: time is real */
    /* Frees the engine.  `abandon`: requests stay in flight; the memory that they use must be
     * leaked. */
    void (*close)(struct aq_io *io, bool abandon);
};

/* The head of every engine's struct. */
struct aq_io {
    const struct aq_io_ops *ops;
    struct aq_io_caps caps;
    struct aq_io_file *files; /* owned copy; the names are not */
    uint32_t file_count;
    struct aq_log log;
    uint32_t queued, in_flight;
    uint64_t done;
    struct aq_io_request *tail; /* of the list being reaped */
};

/* Fills the head; copies the files.  -ENOMEM. */
int aq_io_init(struct aq_io *io, const struct aq_io_ops *ops, const char *name,
               const struct aq_io_file *files, uint32_t file_count, uint32_t depth,
               struct aq_err *reterr);
/* Frees the fields that aq_io_init filled. */
void aq_io_fini(struct aq_io *io);
/* Appends a request with its result to the list being reaped. */
void aq_io_finish(struct aq_io *io, struct aq_io_reaped *ret, struct aq_io_request *request,
                  int32_t result);
/* Drops the pages of a request from the page cache, if its file has `forget` set.  Advice only. */
void aq_io_forget(const struct aq_io_file *file, uint64_t offset, uint64_t bytes);

int aq_io_open_uring(struct aq_io **ret, const struct aq_io_opts *opts, struct aq_err *reterr);
int aq_io_open_threads(struct aq_io **ret, const struct aq_io_opts *opts, struct aq_err *reterr);
/* Why no ring can be set up; NULL: it can. */
const char *aq_io_uring_reason(void);

/* A bell that any thread may ring and one thread waits for. */
struct aq_io_bell {
    int fd; /* eventfd, non-blocking; -1: not open */
    atomic_bool rung;
};
int aq_io_bell_open(struct aq_io_bell *bell, struct aq_err *reterr);
void aq_io_bell_close(struct aq_io_bell *bell);
void aq_io_bell_ring(struct aq_io_bell *bell);
/* Was the bell rung since the last take?  Quiets the bell. */
bool aq_io_bell_take(struct aq_io_bell *bell);
/* Makes the descriptor unreadable again, whether or not the bell was rung. */
void aq_io_bell_quiet(struct aq_io_bell *bell);
/* Waits for the descriptor, or the timeout; false when a signal came first. */
bool aq_io_bell_wait(struct aq_io_bell *bell, uint64_t timeout_ns);

#endif
