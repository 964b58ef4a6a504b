/* SPDX-License-Identifier: Apache-2.0
 * tests/temp.h - folders and files of a test's own below TMPDIR, and their end.  A name that does
 * not fit ends the test: a path cut short would be somebody else's. */
#ifndef AQ_TESTS_TEMP_H
#define AQ_TESTS_TEMP_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Of a folder or file made here, of what a test makes inside of one, and of what inside of that. */
enum {
    TEMP_PATH_MAX = 512,
    TEMP_INSIDE_MAX = TEMP_PATH_MAX + 64,
    TEMP_DEEP_MAX = TEMP_PATH_MAX + 128
};

static inline void temp_name(char path[TEMP_PATH_MAX], const char *name)
{
    const char *dir = getenv("TMPDIR");
    dir = dir && *dir ? dir : "/tmp";
    if (snprintf(path, TEMP_PATH_MAX, "%s/aq-%s-XXXXXX", dir, name) >= TEMP_PATH_MAX) {
        fprintf(stderr, "TMPDIR='%s' is too long for this test\n", dir);
        abort();
    }
}

/* A new folder. */
static inline void temp_dir(char path[TEMP_PATH_MAX], const char *name)
{
    temp_name(path, name);
    if (!mkdtemp(path)) {
        perror(path);
        abort();
    }
}

/* A new file, open for reading and writing. */
static inline int temp_file(char path[TEMP_PATH_MAX], const char *name)
{
    temp_name(path, name);
    int fd = mkstemp(path);
    if (fd < 0) {
        perror(path);
        abort();
    }
    return fd;
}

static inline int temp_remove_entry(const char *path, const struct stat *st, int type,
                                    struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

/* A folder and all that is in it; 0, or not all of it went. */
static inline int temp_remove(const char *path)
{
    return nftw(path, temp_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
