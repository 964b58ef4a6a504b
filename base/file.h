/* SPDX-License-Identifier: Apache-2.0
 * base/file.h - files on disk: system calls that no signal cuts short, writing that has survived a
 * power cut when it returns, and files that are only ever seen whole: written beside their name and
 * renamed over it.  Knows bytes and paths. */
#ifndef AQ_BASE_FILE_H
#define AQ_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- system calls ----
 * Each is repeated while a signal interrupts it (EINTR): to end a run because of a signal is for
 * those to decide who ask aquifer_hooks.interrupted.  They return -errno on failure. */

/* A descriptor.  With O_NONBLOCK the open of a pipe does not wait. */
int aq_file_open(const char *path, int flags, mode_t mode);
/* As mkostemp(3), close-on-exec. */
int aq_file_open_temp(char *name);
/* Never repeated: the descriptor is gone whatever close(2) says. */
int aq_file_close(int fd);
int aq_file_truncate(int fd, uint64_t bytes);
/* Allocates bytes 0 to `bytes`, as fallocate(2). */
int aq_file_reserve(int fd, uint64_t bytes);
/* The exclusive flock(2), not waited for. */
int aq_file_lock(int fd);
int aq_file_rename(const char *from, const char *to);
/* Writes all bytes where the descriptor stands. */
int aq_file_write(int fd, const char *bytes, size_t count);
/* Reads up to `count` bytes; their number, 0 at the end. */
ssize_t aq_file_read(int fd, void *dst, size_t count);
/* Reads all `count` bytes at `offset`; -EIO when the file ends before. */
int aq_file_read_at(int fd, void *dst, size_t count, uint64_t offset);
/* Content and size of a file survive a power cut when this returns 0.  What has nothing to sync (a
 * pipe, /dev/null) is fine; a file system that has become read-only is not. */
int aq_file_sync(int fd);
/* The same by another function than fdatasync(2): for tests. */
int aq_file_sync_by(int fd, int (*sync)(int fd));

/* ---- writing ---- */

/* All of src at `offset`.  path is for the message, which says how much space is free when that is
 * the reason. */
int aq_file_write_at(int fd, const char *path, uint64_t offset, const void *src, size_t bytes,
                     struct aq_err *reterr);
/* Makes renames and new files in a directory durable; and in the one that holds `path`. */
int aq_file_sync_dir(const char *dir, struct aq_err *reterr);
int aq_file_sync_folder(const char *path, struct aq_err *reterr);

/* A file that will take the place of another, or of none, once it is whole. */
struct aq_replacement {
    int fd;
    char *path, *beside; /* beside: "PATH.tmp", where it is written */
    char *buffer;
    size_t held; /* bytes in the buffer */
};

int aq_replacement_open(struct aq_replacement *ret, const char *path, struct aq_err *reterr);
int aq_replacement_put(struct aq_replacement *r, const char *bytes, size_t count,
                       struct aq_err *reterr);
/* Gives the file its name, or removes it when rc says that something failed before.  With sync it
 * has survived a power cut when this returns.  Returns rc or what failed here. */
int aq_replacement_close(struct aq_replacement *r, int rc, bool sync, struct aq_err *reterr);

/* Replaces the file's content.  A symbolic link stays and its target is replaced; a device or pipe
 * is written to. */
int aq_file_replace(const char *path, const char *bytes, size_t count, bool sync,
                    struct aq_err *reterr);

/* ---- reading lines ---- */

/* Lines of any length.  With line_max a longer one comes in parts of that many bytes: for files
 * whose lines are known to be short. */
struct aq_line_reader {
    int fd;
    size_t line_max; /* 0: none */
    char *bytes;
    size_t begin, end, capacity;
    bool ended; /* the file */
};

/* The next line, its newline included where it has one, good until the next call.  1: there is one,
 * 0: there are no more, -errno. */
int aq_line_read(struct aq_line_reader *r, const char **ret, size_t *ret_count);
/* The buffer; the descriptor is the caller's. */
void aq_line_reader_close(struct aq_line_reader *r);

/* ---- names ---- */

/* The folder a path lies in, malloc'd; "." where it names none.  NULL when memory ran out. */
char *aq_file_folder(const char *path);
/* Where symbolic links at the path's end lead, the file there or not; malloc'd, NULL and errno when
 * they lead in a circle or memory ran out. */
char *aq_file_resolve(const char *path);
/* Whether two paths name one file, be it there or not. */
bool aq_file_same(const char *a, const char *b);
/* a + b, malloc'd; NULL when memory ran out. */
char *aq_file_name(const char *a, const char *b);
/* Size of a file; -1 when there is none. */
int64_t aq_file_size(const char *path);

#endif
