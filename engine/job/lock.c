/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job/lock.h"

#include "base/file.h"

#include <assert.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct aq_lock {
    int fd;
    char *path;
};

enum { ATTEMPTS_MAX = 100, HOST_BYTES = 256, HOLDER_BYTES = 300 };

/* The holder may remove the file between our open and our lock: then what we hold has no name. */
static bool still_named(int fd, const char *path)
{
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

/* "PID HOST\n"; the host is worth a word where several machines share a file system. */
static int refuse_held(int fd, const char *path, struct aq_err *reterr)
{
    char text[HOLDER_BYTES] = "", here[HOST_BYTES] = "", host[HOST_BYTES];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    char *rest = text + strspn(text, "0123456789");
    aq_quote(host, sizeof(host), rest, strlen(rest));
    *rest = '\0';
    gethostname(here, sizeof(here) - 1);
    bool elsewhere = host[0] == ' ' && strcmp(host + 1, here) != 0;
    return aq_error(reterr, -EINVAL, "'%s' is held by %s%s%s%s: another run is writing this output",
                    path, text[0] ? "process " : "another process", text, elsewhere ? " on" : "",
                    elsewhere ? host : "");
}

/* What a run has written there, or left there when it was killed or the power went: "PID HOST\n", a
 * beginning of it, or zeros.  Anything else is somebody's file of that name. */
static bool is_ours(int fd)
{
    char text[HOLDER_BYTES + 1];
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > HOLDER_BYTES)
        return false;
    ssize_t n = TEMP_FAILURE_RETRY(pread(fd, text, sizeof(text) - 1, 0));
    if (n < 0)
        return false;
    text[n] = '\0';
    size_t zeros = 0, digits = strspn(text, "0123456789");
    while (zeros < (size_t)n && !text[zeros])
        zeros++;
    if (zeros == (size_t)n)
        return true;
    const char *end = text + digits;
    if (digits && *end == ' ')
        for (end++; *end > ' ';)
            end++;
    return digits && end + (*end == '\n') == text + n;
}

static int refuse_foreign(const char *path, struct aq_err *reterr)
{
    return aq_error(reterr, -EINVAL,
                    "'%s' is not a lock that a run has left, and would be emptied: move it, or "
                    "give the output another name",
                    path);
}

static int lock_take(int *ret_fd, const char *path, struct aq_err *reterr)
{
    for (int attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
        int fd = aq_file_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return aq_error(reterr, aq_file_is_full(fd) ? fd : -EINVAL, "create '%s': %s", path,
                            strerror(-fd));
        int rc = aq_file_lock(fd);
        if (rc < 0) {
            rc = rc == -EWOULDBLOCK
                     ? refuse_held(fd, path, reterr)
                     : aq_error(reterr, -EINVAL, "lock '%s': %s", path, strerror(-rc));
            close(fd);
            return rc;
        }
        bool named = still_named(fd, path);
        if (named && is_ours(fd)) {
            *ret_fd = fd;
            return 0;
        }
        close(fd);
        if (named)
            return refuse_foreign(path, reterr);
    }
    return aq_error(reterr, -EINVAL, "'%s' is created and removed by others all the time", path);
}

int aq_lock_open(struct aq_lock **ret, const char *path, struct aq_err *reterr)
{
    assert(ret && path);
    struct aq_lock *l = calloc(1, sizeof(*l));
    if (!l)
        return aq_error_memory(reterr, "lock '%s'", path);
    l->path = strdup(path);
    int rc = l->path ? lock_take(&l->fd, path, reterr) : aq_error_memory(reterr, "lock '%s'", path);
    if (rc < 0) {
        free(l->path);
        free(l);
        return rc;
    }
    char text[HOLDER_BYTES], host[HOST_BYTES] = "";
    gethostname(host, sizeof(host) - 1);
    int n = snprintf(text, sizeof(text), "%ld %s\n", (long)getpid(), host);
    if (aq_file_truncate(l->fd, 0) < 0 || pwrite(l->fd, text, (size_t)n, 0) < 0)
        text[0] = '\0'; /* the id only helps people; the lock itself stands without it */
    *ret = l;
    return 0;
}

int aq_lock_check(const char *path, struct aq_err *reterr)
{
    int fd = aq_file_open(path, O_RDWR | O_CLOEXEC, 0); /* NFS locks only what may be written */
    if (fd < 0)
        fd = aq_file_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) /* there is none, or it is not ours to ask */
        return 0;
    int rc = aq_file_lock(fd) == -EWOULDBLOCK ? refuse_held(fd, path, reterr) : 0;
    close(fd);
    return rc;
}

void aq_lock_close(struct aq_lock *l)
{
    if (!l)
        return;
    unlink(l->path);
    close(l->fd);
    free(l->path);
    free(l);
}
