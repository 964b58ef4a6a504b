/* SPDX-License-Identifier: Apache-2.0
 * base/file.h - files on disk: system calls that no signal cuts short, writes that survive a power
 * cut once they have returned, and files that readers only ever see whole, because they are written
 * under another name and then renamed.  Knows bytes and paths. */
#ifndef AQ_BASE_FILE_H
#define AQ_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- system calls ----
 * A call is repeated while a signal interrupts it (EINTR), because only callers of
 * aquifer_hooks.interrupted decide that a signal ends a run.  Failure returns -errno. */

/* A descriptor.  With O_NONBLOCK the open of a pipe does not wait. */
int aq_file_open(const char *path, int flags, mode_t mode);
/* The same, of a file that gets the permissions of the regular file `like`, where there is one. */
int aq_file_open_like(const char *path, int flags, const char *like);
/* As mkostemp(3), close-on-exec. */
int aq_file_open_temp(char *name);
/* Not repeated on EINTR: close(2) has released the descriptor then, too. */
int aq_file_close(int fd);
int aq_file_truncate(int fd, uint64_t bytes);
/* Allocates bytes 0 to `bytes`, as fallocate(2). */
int aq_file_reserve(int fd, uint64_t bytes);
/* Takes the exclusive flock(2); does not wait. */
int aq_file_lock(int fd);
int aq_file_rename(const char *from, const char *to);
/* Writes all bytes at the descriptor's position. */
int aq_file_write(int fd, const char *bytes, size_t count);
/* Reads up to `count` bytes; their number, 0 at the end. */
ssize_t aq_file_read(int fd, void *dst, size_t count);
/* Reads all `count` bytes at `offset`; -EIO when the file ends before. */
int aq_file_read_at(int fd, void *dst, size_t count, uint64_t offset);
/* Content and size of a file survive a power cut once this has returned 0.  0 for a pipe or
 * /dev/null too, which have nothing to sync; an error on a file system that has become
 * read-only. */
int aq_file_sync(int fd);
/* The same by another function than fdatasync(2): for tests. */
int aq_file_sync_by(int fd, int (*sync)(int fd));
/* Whether a code (-errno) says that a disk or somebody's share of it is full. */
bool aq_file_is_full(int code);

/* ---- writing ---- */

/* Writes all of src at `offset`.  path is for the message, which gives the free space if the disk
 * is full. */
int aq_file_write_at(int fd, const char *path, uint64_t offset, const void *src, size_t bytes,
                     struct aq_err *reterr);
/* Makes renames and new files in a directory durable; aq_file_sync_folder: in the one of `path`. */
int aq_file_sync_dir(const char *dir, struct aq_err *reterr);
int aq_file_sync_folder(const char *path, struct aq_err *reterr);

/* A file under construction, which is renamed to its path once it is whole. */
struct aq_replacement {
    int fd;
    char *path, *beside; /* beside: "PATH.tmp", the name under construction */
    char *buffer;
    size_t held; /* bytes in the buffer */
};

/* It gets the permissions of the file that it replaces; where there is none, of `like` (NULL: those
 * of any new file). */
int aq_replacement_open(struct aq_replacement *ret, const char *path, const char *like,
                        struct aq_err *reterr);
int aq_replacement_put(struct aq_replacement *r, const char *bytes, size_t count,
                       struct aq_err *reterr);
/* Gives the file its name, or removes it if rc is the code of an earlier failure.  With sync the
 * file survives a power cut once this has returned.  Returns rc, or the code of a failure here. */
int aq_replacement_close(struct aq_replacement *r, int rc, bool sync, struct aq_err *reterr);
/* Where a file is written before it takes the place of `path`, or of what a link there leads to;
 * malloc'd, NULL and errno as aq_file_resolve. */
char *aq_replacement_beside(const char *path);

/* Replaces the file's content.  A symbolic link stays and its target is replaced; a device or pipe
 * is written to. */
int aq_file_replace(const char *path, const char *bytes, size_t count, bool sync,
                    struct aq_err *reterr);

/* ---- reading lines ---- */

/* Lines of any length.  With line_max, a longer line comes in parts of line_max bytes: for files
 * whose lines should be short. */
struct aq_line_reader {
    int fd;
    ssize_t (*read)(void *source, void *dst, size_t count); /* NULL: from fd; as aq_file_read */
    void *source;
    size_t line_max; /* 0: no limit */
    char *bytes;
    size_t begin, end, capacity;
    bool ended; /* the file has no more bytes */
};

/* The next line, with its newline if it has one, valid until the next call.  1: *ret is a line; 0:
 * no more lines; -errno. */
int aq_line_read(struct aq_line_reader *r, const char **ret, size_t *ret_count);
/* Frees the buffer; the descriptor stays open. */
void aq_line_reader_close(struct aq_line_reader *r);

/* ---- names ---- */

/* The folder a path lies in, malloc'd; "." where it names none.  NULL when memory ran out. */
char *aq_file_folder(const char *path);
/* The path behind symbolic links at the path's end, whether a file is there or not; malloc'd.  NULL
 * and errno when links form a circle or memory ran out. */
char *aq_file_resolve(const char *path);
/* Whether two paths name the same file, existing or not. */
bool aq_file_same(const char *a, const char *b);
/* A path as somebody beside `other` may call it, malloc'd: its name alone where both lie in one
 * folder, else from the root on; NULL when memory ran out or there is no such folder. */
char *aq_file_beside(const char *path, const char *other);
/* a + b, malloc'd; NULL when memory ran out. */
char *aq_file_name(const char *a, const char *b);
/* Size of a file; -1 when there is none. */
int64_t aq_file_size(const char *path);

#endif
