/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/files.h"

#include "offload/durable.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *aq_file_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
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

int aq_file_replace(const char *path, const char *bytes, size_t count, bool sync,
                    struct aq_err *reterr)
{
    assert(path && bytes);
    char *beside = aq_file_name(path, ".tmp");
    if (!beside)
        return aq_error(reterr, -ENOMEM, "write '%s'", path);
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
    if (rc < 0) {
        if (fd >= 0)
            unlink(beside);
        aq_error(reterr, rc, "write '%s': %s", path, strerror(-rc));
    }
    free(beside);
    return rc;
}
