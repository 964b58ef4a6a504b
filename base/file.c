/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include "base/durable.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MAX = 40 }; /* as in path_resolution(7) */

char *aq_file_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

char *aq_file_resolve(const char *path)
{
    char *name = strdup(path), target[PATH_MAX];
    for (int links = 0; name; links++) {
        ssize_t n = readlink(name, target, sizeof(target) - 1);
        if (n < 0)
            return name;
        target[n] = '\0';
        char *folder = target[0] == '/' ? strdup("") : aq_file_folder(name), *next = NULL;
        if (folder && links < LINKS_MAX && asprintf(&next, "%s/%s", folder, target) < 0)
            next = NULL;
        free(folder);
        free(name);
        name = next;
        errno = links < LINKS_MAX ? ENOMEM : ELOOP; /* unless the next turn goes well */
    }
    return NULL;
}

/* Folder and name in one way of writing; NULL where there is no such folder. */
static char *canonical(const char *path)
{
    char *name = aq_file_resolve(path), *folder = name ? aq_file_folder(name) : NULL;
    char *real = folder ? realpath(folder, NULL) : NULL, *whole = NULL;
    if (real) {
        const char *slash = strrchr(name, '/');
        if (asprintf(&whole, "%s/%s", real, slash ? slash + 1 : name) < 0)
            whole = NULL;
    }
    free(name);
    free(folder);
    free(real);
    return whole;
}

bool aq_file_same(const char *a, const char *b)
{
    struct stat x, y;
    if (stat(a, &x) == 0 && stat(b, &y) == 0)
        return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    char *first = canonical(a), *second = canonical(b);
    bool same = first && second && !strcmp(first, second);
    free(first);
    free(second);
    return same;
}

void aq_file_sync_folder(const char *path)
{
    char *folder = aq_file_folder(path);
    if (folder)
        aq_sync_dir(folder, NULL);
    free(folder);
}

char *aq_file_name(const char *a, const char *b)
{
    char *name;
    return asprintf(&name, "%s%s", a, b) < 0 ? NULL : name;
}

int64_t aq_file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

int aq_file_write(int fd, const char *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t n = write(fd, bytes + done, count - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

static int replace_by(const char *beside, const char *path, const char *bytes, size_t count,
                      bool sync)
{
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = fd < 0 ? -errno : aq_file_write(fd, bytes, count);
    if (rc == 0 && sync && fsync(fd) < 0)
        rc = -errno;
    if (fd >= 0 && close(fd) < 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(beside, path) < 0)
        rc = -errno;
    if (rc == 0 && sync)
        aq_file_sync_folder(path);
    if (rc < 0 && fd >= 0)
        unlink(beside);
    return rc;
}

/* A device or pipe is written to, never replaced; and never waited for. */
static int write_through(const char *path, mode_t mode, const char *bytes, size_t count)
{
    if (!S_ISCHR(mode) && !S_ISFIFO(mode))
        return S_ISDIR(mode) ? -EISDIR : -EINVAL;
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    int rc = fd < 0 ? -errno : aq_file_write(fd, bytes, count);
    if (fd >= 0 && close(fd) < 0 && rc == 0)
        rc = -errno;
    return rc;
}

int aq_file_replace(const char *path, const char *bytes, size_t count, bool sync,
                    struct aq_err *reterr)
{
    assert(path && bytes);
    struct stat st;
    int rc = -ENOMEM;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        rc = write_through(path, st.st_mode, bytes, count);
    } else {
        char *name = aq_file_resolve(path), *beside = name ? aq_file_name(name, ".tmp") : NULL;
        rc = beside ? replace_by(beside, name, bytes, count, sync) : -errno;
        free(name);
        free(beside);
    }
    return rc < 0 ? aq_error(reterr, rc, "write '%s': %s", path, strerror(-rc)) : 0;
}
