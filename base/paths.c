/* SPDX-License-Identifier: Apache-2.0 */
#include "base/paths.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *aq_path_cache(const char *option, struct aq_err *reterr)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int n;
    if (option)
        n = asprintf(&path, "%s", option);
    else if (xdg && xdg[0] == '/') /* the XDG rules say: relative ones do not count */
        n = asprintf(&path, "%s/aquifer", xdg);
    else if (home && *home)
        n = asprintf(&path, "%s/.cache/aquifer", home);
    else {
        aq_error(reterr, -EINVAL,
                 "no cache directory: expected --cache-dir, or XDG_CACHE_HOME or HOME to be set");
        return NULL;
    }
    if (n < 0) {
        aq_error_memory(reterr, "cache directory");
        return NULL;
    }
    return path;
}

char *aq_path_existing(const char *path)
{
    assert(*path);
    char *at = strdup(path);
    while (at && access(at, F_OK) < 0) {
        char *slash = strrchr(at, '/');
        if (!slash || slash == at) {
            memcpy(at, slash ? "/" : ".", 2); /* there was at least one byte */
            break;
        }
        *slash = '\0';
    }
    return at;
}

int aq_path_make(const char *path, struct aq_err *reterr)
{
    char *copy = strdup(path);
    if (!copy)
        return aq_error_memory(reterr, "directory '%s'", path);
    int rc = 0;
    for (char *at = copy + 1; rc == 0; at++) {
        if (*at && *at != '/')
            continue;
        char c = *at;
        *at = '\0';
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            rc = aq_error(reterr, aq_err_of_place(errno),
                          "cannot make the directory '%s': %s; --cache-dir DIR names another one",
                          copy, strerror(errno));
        *at = c;
        if (!c)
            break;
    }
    free(copy);
    return rc;
}
