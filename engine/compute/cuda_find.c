/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/compute/cuda_find.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEEDS_MAX = 8, NAME_BYTES = 128 };

/* Where a library may lie, behind the value of a variable if one is named; * as shells read it. */
static const struct {
    const char *variable, *folder;
} folders[] = {
    {"CUDA_HOME", "/lib64"},
    {"CUDA_PATH", "/lib64"},
    {NULL, "/usr/local/cuda/lib64"},
    {NULL, "/usr/local/cuda-*/lib64"},
    {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
    {"CONDA_PREFIX", "/lib"},
    {"CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/*/lib"},
    {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/usr/local/lib/python3*/*-packages/nvidia/*/lib"},
    {NULL, "/usr/lib/python3*/*-packages/nvidia/*/lib"},
    {NULL, "/opt/*/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib"},
};

/* Loads the library of this name from one folder; false where it is not there. */
static bool load_from(const char *variable, const char *folder, const char *name)
{
    const char *root = variable ? getenv(variable) : "";
    char pattern[PATH_MAX];
    if (!root || (variable && !*root) ||
        snprintf(pattern, sizeof(pattern), "%s%s/%s", root, folder, name) >= PATH_MAX)
        return false;
    glob_t found;
    bool loaded = false;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && !loaded; i++)
            loaded = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != NULL;
        globfree(&found);
    }
    return loaded;
}

static bool load_anywhere(const char *name)
{
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        if (load_from(folders[i].variable, folders[i].folder, name))
            return true;
    }
    return false;
}

/* The library that the loader says it does not find: glibc's sentence begins with its name. */
static bool missing_name(char name[NAME_BYTES], const char *said)
{
    const char *end = strstr(said, ": cannot open shared object file");
    if (!end || end == said || (size_t)(end - said) >= NAME_BYTES || memchr(said, '/', end - said))
        return false;
    memcpy(name, said, end - said);
    name[end - said] = '\0';
    return true;
}

void *aq_cuda_find_load(const char *path, struct aq_err *reterr)
{
    char name[NAME_BYTES] = "", before[NAME_BYTES];
    for (int i = 0; i < NEEDS_MAX; i++) {
        /* Once loaded it stays: a driver's runtime keeps state that outlives its users. */
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library)
            return library;
        const char *said = dlerror();
        memcpy(before, name, sizeof(before));
        if (!said || !missing_name(name, said) || strcmp(name, before) == 0) {
            aq_error(reterr, -ENODEV, "the CUDA backend cannot be loaded: %s",
                     said ? said : "the loader does not say why");
            return NULL;
        }
        if (!load_anywhere(name))
            break;
    }
    aq_error(reterr, -ENODEV,
             "the CUDA backend needs %s, which is neither where the loader looks nor in a CUDA "
             "toolkit or Python environment: install it (%s), or name its folder in "
             "LD_LIBRARY_PATH",
             name,
             strncmp(name, "libcublas", 9) == 0 ? "pip install nvidia-cublas, or the toolkit's "
                                                  "libcublas package"
                                                : "it comes with the CUDA toolkit");
    return NULL;
}
