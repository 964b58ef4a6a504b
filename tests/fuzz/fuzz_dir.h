/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/fuzz_dir.h - folders for targets whose input is a set of files, and the sections such
 * an input is made of: each begins with a line "@@ NAME" and ends before the next one. */
#ifndef AQ_TESTS_FUZZ_DIR_H
#define AQ_TESTS_FUZZ_DIR_H

#include "tests/fuzz/fuzz.h"
#include "tests/temp.h"

#include <sys/stat.h>

/* A folder of the target's own, in memory where there is a file system of that kind: thousands of
 * inputs a second make and remove files in it. */
static inline void fuzz_dir(char path[TEMP_PATH_MAX], const char *name)
{
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    temp_dir(path, name);
}

static inline void fuzz_write_file(const char *path, const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");
    fuzz_check(f && fwrite(bytes, 1, count, f) == count && fclose(f) == 0);
}

struct fuzz_section {
    const char *name; /* not terminated */
    size_t name_bytes;
    const uint8_t *data;
    size_t bytes; /* without the line end before the next section */
};

/* The section at *at, which moves behind it; false at the end.  The first line is a name whatever
 * it begins with. */
static inline bool fuzz_next_section(struct fuzz_section *ret, const uint8_t **at,
                                     const uint8_t *end)
{
    if (*at == end)
        return false;
    const uint8_t *line_end = memchr(*at, '\n', (size_t)(end - *at));
    size_t line = (size_t)((line_end ? line_end : end) - *at);
    const uint8_t *begin = line_end ? line_end + 1 : end;
    const uint8_t *next = memmem(begin, (size_t)(end - begin), "\n@@ ", 4);
    *ret = (struct fuzz_section){.name = (const char *)*at + (line < 3 ? line : 3),
                                 .name_bytes = line < 3 ? 0 : line - 3,
                                 .data = begin,
                                 .bytes = (size_t)((next ? next : end) - begin)};
    *at = next ? next + 1 : end;
    return true;
}

#endif
