/* SPDX-License-Identifier: Apache-2.0
 * engine/job/writer.h - appends result lines to a file on its own thread: whole lines only, on disk
 * at least once a second, their sums after them, and a full disk is waited for.  A compressed file
 * gets a member (base/compress.h) of all lines of that second, or of
 * fewer where they are many.  One thread puts; any may ask for the counts.  Knows bytes, not
 * results. */
#ifndef AQ_ENGINE_JOB_WRITER_H
#define AQ_ENGINE_JOB_WRITER_H

#include "base/compress.h"
#include "base/err.h"
#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct aq_writer;

/* A file is appended to; a pipe or device takes what it takes, and may have no reader yet. */
struct aq_writer_opts {
    const char *path;   /* appended to; created when it is not there */
    const char *errors; /* where lines of errors go, as `path`; NULL: to the others */
    const char *sums;   /* FILE.sums (engine/job/sums.h), which is there; NULL: none are kept */
    enum aq_compression compression, errors_compression; /* of `path` and `errors` */
    size_t queue_bytes; /* what may wait in memory; one line always may */
    double disk_full_wait_s;
    const struct aq_log *log;       /* called from the writer's thread */
    int (*interrupted)(void *user); /* polled while opening; NULL: never */
    void *user;
    /* For tests; NULL: the system's. */
    ssize_t (*write)(int fd, const void *bytes, size_t count);
    int (*sync)(int fd);
    double retry_s; /* between attempts on a full disk; 0: one second */
};

/* Waits for the reader of a named pipe; -EINTR: interrupted while waiting. */
int aq_writer_open(struct aq_writer **ret, const struct aq_writer_opts *opts,
                   struct aq_err *reterr);
/* Takes a malloc'd line without its newline, also on failure; waits while the queue is full.
 * `error`: it is one that goes to opts.errors.  The error returned is the one that ended the
 * writer: nothing more will be written. */
int aq_writer_put(struct aq_writer *w, char *line, size_t bytes, bool error, struct aq_err *reterr);
/* Waits for so long at most; true: all lines are in the file, or the writer has ended. */
bool aq_writer_idle(struct aq_writer *w, uint64_t ns);
/* Waits for so long at most; true: all lines that were put, and their sums, are on the disk.  False
 * at once where the disk is full, the writer has ended, or is told to hurry. */
bool aq_writer_make_safe(struct aq_writer *w, uint64_t ns);
/* Lines that are completely in the file. */
uint64_t aq_writer_lines(struct aq_writer *w);
/* While the disk is full: gives up at once instead of waiting on.  While a pipe is: after
 * AQ_WRITER_HURRY_S. */
enum { AQ_WRITER_HURRY_S = 3 };
void aq_writer_hurry(struct aq_writer *w);
/* Writes what waits, syncs, ends the thread.  The error says that lines are missing; the file ends
 * with a whole line all the same.  *ret_lines (NULL allowed): lines written.  NULL is fine. */
int aq_writer_close(struct aq_writer *w, uint64_t *ret_lines, struct aq_err *reterr);

#endif
