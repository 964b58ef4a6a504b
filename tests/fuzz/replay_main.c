/* SPDX-License-Identifier: Apache-2.0
 * Runs a fuzz target once on every file named on the command line, and on every file of every
 * folder named there, so that seeds and old findings are checked by builds without libFuzzer. Exits
 * 1 when there was no file to run: a lost corpus must not look like success. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static unsigned files_run;

static void fail(const char *path)
{
    perror(path);
    exit(1);
}

static void run_file(const char *path, size_t bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(bytes ? bytes : 1); /* exact, so that a sanitizer sees the end */
    if (!f || !data || fread(data, 1, bytes, f) != bytes)
        fail(path);
    fclose(f);
    LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    files_run++;
}

static void run_path(const char *path, int depth)
{
    struct stat st;
    if (stat(path, &st) < 0)
        fail(path);
    if (!S_ISDIR(st.st_mode)) {
        run_file(path, (size_t)st.st_size);
        return;
    }
    DIR *d = opendir(path);
    if (!d)
        fail(path);
    for (const struct dirent *e; depth > 0 && (e = readdir(d));) {
        char inner[PATH_MAX];
        if (e->d_name[0] != '.' &&
            snprintf(inner, sizeof(inner), "%s/%s", path, e->d_name) < (int)sizeof(inner))
            run_path(inner, depth - 1);
    }
    closedir(d);
}

int main(int argc, char **argv)
{
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        run_path(argv[i], 2);
    printf("%u files\n", files_run);
    return files_run == 0;
}
