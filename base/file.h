/* SPDX-License-Identifier: Apache-2.0
 * base/file.h - small files that are only ever seen whole: written beside their name and renamed
 * over it.  Knows bytes and paths. */
#ifndef AQ_BASE_FILE_H
#define AQ_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Replaces the file's content; with sync it has survived a power cut when this returns.  A symbolic
 * link stays and its target is replaced; a device or pipe is written to. */
int aq_file_replace(const char *path, const char *bytes, size_t count, bool sync,
                    struct aq_err *reterr);
/* The folder a path lies in, malloc'd; "." where it names none.  NULL when memory ran out. */
char *aq_file_folder(const char *path);
/* Where symbolic links at the path's end lead, the file there or not; malloc'd, NULL and errno when
 * they lead in a circle or memory ran out. */
char *aq_file_resolve(const char *path);
/* Whether two paths name one file, be it there or not. */
bool aq_file_same(const char *a, const char *b);
/* Makes names in the path's folder survive a power cut; not every file system can. */
void aq_file_sync_folder(const char *path);
/* a + b, malloc'd; NULL when memory ran out. */
char *aq_file_name(const char *a, const char *b);
/* Size of a file; -1 when there is none. */
int64_t aq_file_size(const char *path);
/* Writes all bytes; -errno. */
int aq_file_write(int fd, const char *bytes, size_t count);

#endif
