/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/durable.h"

#include "base/json.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

int aq_sync_dir(const char *path, struct aq_err *reterr)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return aq_error(reterr, -errno, "open directory '%s': %s", path, strerror(errno));
    int rc = 0;
    /* EINVAL: a file system that has nothing to sync here */
    if (fsync(fd) < 0 && errno != EINVAL)
        rc = aq_error(reterr, -errno, "fsync directory '%s': %s", path, strerror(errno));
    close(fd);
    return rc;
}

/* -errno of a failed write, with the free space where that is the reason. */
static int write_error(int code, const char *path, uint64_t offset, size_t bytes,
                       struct aq_err *reterr)
{
    struct statvfs fs;
    if (code == -ENOSPC && statvfs(path, &fs) == 0)
        return aq_error(reterr, code, "write %zu bytes at %llu of '%s': %s, %llu bytes are free",
                        bytes, (unsigned long long)offset, path, strerror(-code),
                        (unsigned long long)fs.f_bavail * fs.f_frsize);
    return aq_error(reterr, code, "write %zu bytes at %llu of '%s': %s", bytes,
                    (unsigned long long)offset, path, strerror(-code));
}

int aq_write_fully(int fd, const char *path, uint64_t offset, const void *src, size_t bytes,
                   struct aq_err *reterr)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pwrite(fd, (const char *)src + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return write_error(n < 0 ? -errno : -EIO, path, offset + done, bytes - done, reterr);
        done += (size_t)n;
    }
    return 0;
}

int aq_write_json(const char *dir, const char *name, json_t *value, struct aq_err *reterr)
{
    char *path = NULL, *temp = NULL;
    char *text = value ? aq_json_dump(value, JSON_INDENT(1)) : NULL;
    json_decref(value);
    int rc = 0, fd = -1;
    if (!text || asprintf(&path, "%s/%s", dir, name) < 0 ||
        asprintf(&temp, "%s/%s.tmp", dir, name) < 0) {
        rc = aq_error_memory(reterr, "'%s/%s'", dir, name);
        goto out;
    }
    fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = aq_error(reterr, -errno, "create '%s': %s", temp, strerror(errno));
        goto out;
    }
    rc = aq_write_fully(fd, temp, 0, text, strlen(text), reterr);
    if (rc == 0 && fsync(fd) < 0)
        rc = aq_error(reterr, -errno, "fsync '%s': %s", temp, strerror(errno));
    if (rc == 0 && rename(temp, path) < 0)
        rc = aq_error(reterr, -errno, "rename '%s' to '%s': %s", temp, path, strerror(errno));
    if (rc == 0)
        rc = aq_sync_dir(dir, reterr);
out:
    if (fd >= 0)
        close(fd);
    free(text);
    free(path);
    free(temp);
    return rc;
}
