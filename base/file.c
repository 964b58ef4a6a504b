/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    LINKS_MAX = 40, /* as in path_resolution(7) */
    BUFFER_BYTES = 64 << 10,
    NEW_MODE = 0666,
    PERMISSIONS = 0777,
};

static const char beside_ending[] = ".tmp"; /* of what will replace a file */

/* ---- system calls ---- */

static int negative_errno(int rc)
{
    return rc < 0 ? -errno : rc;
}

int aq_file_open(const char *path, int flags, mode_t mode)
{
    return negative_errno(TEMP_FAILURE_RETRY(open(path, flags, mode)));
}

int aq_file_open_like(const char *path, int flags, const char *like)
{
    struct stat st;
    if (stat(like, &st) < 0 || !S_ISREG(st.st_mode))
        return aq_file_open(path, flags, NEW_MODE);
    mode_t mode = st.st_mode & PERMISSIONS;
    int fd = aq_file_open(path, flags, mode); /* never more open than it will be */
    if (fd >= 0)
        (void)fchmod(fd, mode); /* beyond the umask; not every file system has permissions */
    return fd;
}

int aq_file_open_temp(char *name)
{
    size_t count = strlen(name);
    char *pattern = strdup(name); /* mkostemp fills the pattern in also when it fails */
    int fd = pattern ? -EINTR : -ENOMEM;
    while (fd == -EINTR) {
        memcpy(name, pattern, count + 1);
        fd = negative_errno(mkostemp(name, O_CLOEXEC));
    }
    free(pattern);
    return fd;
}

int aq_file_close(int fd)
{
    return close(fd) < 0 && errno != EINTR ? -errno : 0;
}

int aq_file_truncate(int fd, uint64_t bytes)
{
    return negative_errno(TEMP_FAILURE_RETRY(ftruncate(fd, (off_t)bytes)));
}

int aq_file_reserve(int fd, uint64_t bytes)
{
    return negative_errno(TEMP_FAILURE_RETRY(fallocate(fd, 0, 0, (off_t)bytes)));
}

int aq_file_lock(int fd)
{
    return negative_errno(TEMP_FAILURE_RETRY(flock(fd, LOCK_EX | LOCK_NB)));
}

int aq_file_rename(const char *from, const char *to)
{
    return negative_errno(TEMP_FAILURE_RETRY(rename(from, to)));
}

int aq_file_write(int fd, const char *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t n = TEMP_FAILURE_RETRY(write(fd, bytes + done, count - done));
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

ssize_t aq_file_read(int fd, void *dst, size_t count)
{
    ssize_t n = TEMP_FAILURE_RETRY(read(fd, dst, count));
    return n < 0 ? -errno : n;
}

int aq_file_read_at(int fd, void *dst, size_t count, uint64_t offset)
{
    for (size_t done = 0; done < count;) {
        ssize_t n =
            TEMP_FAILURE_RETRY(pread(fd, (char *)dst + done, count - done, (off_t)(offset + done)));
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

int aq_file_sync_by(int fd, int (*sync)(int fd))
{
    int rc = TEMP_FAILURE_RETRY(sync(fd));
    bool nothing_to_sync = errno == EINVAL || errno == ENOTSUP || errno == ENOSYS;
    return rc < 0 && !nothing_to_sync ? -errno : 0;
}

int aq_file_sync(int fd)
{
    return aq_file_sync_by(fd, fdatasync);
}

bool aq_file_is_full(int code)
{
    return code == -ENOSPC || code == -EDQUOT;
}

/* ---- writing ---- */

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

int aq_file_write_at(int fd, const char *path, uint64_t offset, const void *src, size_t bytes,
                     struct aq_err *reterr)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = TEMP_FAILURE_RETRY(
            pwrite(fd, (const char *)src + done, bytes - done, (off_t)(offset + done)));
        if (n <= 0)
            return write_error(n < 0 ? -errno : -EIO, path, offset + done, bytes - done, reterr);
        done += (size_t)n;
    }
    return 0;
}

int aq_file_sync_dir(const char *dir, struct aq_err *reterr)
{
    int fd = aq_file_open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd == -EACCES) /* one may make files in a directory that one may not read */
        return 0;
    if (fd < 0)
        return aq_error(reterr, fd, "open directory '%s': %s", dir, strerror(-fd));
    int rc = aq_file_sync_by(fd, fsync);
    aq_file_close(fd);
    return rc < 0 ? aq_error(reterr, rc, "fsync directory '%s': %s", dir, strerror(-rc)) : 0;
}

int aq_file_sync_folder(const char *path, struct aq_err *reterr)
{
    char *folder = aq_file_folder(path);
    int rc = folder ? aq_file_sync_dir(folder, reterr)
                    : aq_error_memory(reterr, "the folder of '%s'", path);
    free(folder);
    return rc;
}

/* ---- replacing ---- */

static void replacement_free(struct aq_replacement *r)
{
    free(r->path);
    free(r->beside);
    free(r->buffer);
    *r = (struct aq_replacement){.fd = -1};
}

int aq_replacement_open(struct aq_replacement *ret, const char *path, const char *like,
                        struct aq_err *reterr)
{
    assert(ret && path);
    struct aq_replacement r = {.path = strdup(path),
                               .beside = aq_file_name(path, beside_ending),
                               .buffer = malloc(BUFFER_BYTES)};
    like = like && aq_file_size(path) < 0 ? like : path;
    r.fd = r.path && r.beside && r.buffer
               ? aq_file_open_like(r.beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, like)
               : -ENOMEM;
    if (r.fd < 0) {
        int rc = aq_error(reterr, r.fd, "write '%s': %s", path, strerror(-r.fd));
        replacement_free(&r);
        return rc;
    }
    *ret = r;
    return 0;
}

static int flush(struct aq_replacement *r)
{
    int rc = aq_file_write(r->fd, r->buffer, r->held);
    r->held = 0;
    return rc;
}

int aq_replacement_put(struct aq_replacement *r, const char *bytes, size_t count,
                       struct aq_err *reterr)
{
    int rc = r->held + count > BUFFER_BYTES ? flush(r) : 0;
    if (rc == 0 && count > BUFFER_BYTES) {
        rc = aq_file_write(r->fd, bytes, count);
    } else if (rc == 0) {
        memcpy(r->buffer + r->held, bytes, count);
        r->held += count;
    }
    return rc < 0 ? aq_error(reterr, rc, "write '%s': %s", r->path, strerror(-rc)) : 0;
}

int aq_replacement_close(struct aq_replacement *r, int rc, bool sync, struct aq_err *reterr)
{
    int end = rc == 0 ? flush(r) : 0;
    if (rc == 0 && end == 0 && sync)
        end = aq_file_sync(r->fd);
    int closed = aq_file_close(r->fd);
    end = end < 0 ? end : closed;
    if (rc == 0 && end == 0)
        end = aq_file_rename(r->beside, r->path);
    if (rc == 0 && end < 0)
        rc = aq_error(reterr, end, "write '%s': %s", r->path, strerror(-end));
    if (rc < 0)
        unlink(r->beside);
    else if (sync)
        rc = aq_file_sync_folder(r->path, reterr);
    replacement_free(r);
    return rc;
}

/* A device or pipe is written to, never replaced; and never waited for. */
static int write_through(const char *path, mode_t mode, const char *bytes, size_t count)
{
    if (!S_ISCHR(mode) && !S_ISFIFO(mode))
        return S_ISDIR(mode) ? -EISDIR : -EINVAL;
    int fd = aq_file_open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    int rc = aq_file_write(fd, bytes, count), closed = aq_file_close(fd);
    return rc < 0 ? rc : closed;
}

int aq_file_replace(const char *path, const char *bytes, size_t count, bool sync,
                    struct aq_err *reterr)
{
    assert(path && bytes);
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        int rc = write_through(path, st.st_mode, bytes, count);
        return rc < 0 ? aq_error(reterr, rc, "write '%s': %s", path, strerror(-rc)) : 0;
    }
    struct aq_replacement r;
    char *name = aq_file_resolve(path);
    int rc = name ? aq_replacement_open(&r, name, NULL, reterr)
                  : aq_error(reterr, -errno, "write '%s': %s", path, strerror(errno));
    free(name);
    if (rc < 0)
        return rc;
    rc = aq_replacement_put(&r, bytes, count, reterr);
    return aq_replacement_close(&r, rc, sync, reterr);
}

char *aq_replacement_beside(const char *path)
{
    char *name = aq_file_resolve(path), *beside = name ? aq_file_name(name, beside_ending) : NULL;
    free(name);
    return beside;
}

/* ---- reading lines ---- */

/* Room for more bytes behind those that are held; makes it at the front first. */
static int make_room(struct aq_line_reader *r)
{
    if (r->begin) {
        memmove(r->bytes, r->bytes + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    if (r->capacity - r->end >= BUFFER_BYTES)
        return 0;
    size_t capacity = 2 * r->capacity + BUFFER_BYTES;
    char *larger = realloc(r->bytes, capacity);
    if (!larger)
        return -ENOMEM;
    r->bytes = larger;
    r->capacity = capacity;
    return 0;
}

static int read_more(struct aq_line_reader *r)
{
    int rc = r->bytes && r->end < r->capacity ? 0 : make_room(r);
    if (rc < 0)
        return rc;
    void *dst = r->bytes + r->end;
    size_t room = r->capacity - r->end;
    ssize_t n = r->read ? r->read(r->source, dst, room) : aq_file_read(r->fd, dst, room);
    if (n < 0)
        return (int)n;
    r->ended = n == 0;
    r->end += (size_t)n;
    return 0;
}

int aq_line_read(struct aq_line_reader *r, const char **ret, size_t *ret_count)
{
    for (size_t seen = 0;;) {
        const char *line = r->bytes ? r->bytes + r->begin : NULL;
        size_t held = r->end - r->begin;
        const char *newline = held > seen ? memchr(line + seen, '\n', held - seen) : NULL;
        size_t count = newline ? (size_t)(newline - line) + 1 : held;
        bool cut = r->line_max && count > r->line_max;
        if (newline || cut || (r->ended && held)) {
            *ret = line;
            *ret_count = cut ? r->line_max : count;
            r->begin += *ret_count;
            return 1;
        }
        if (r->ended)
            return 0;
        seen = held;
        int rc = read_more(r);
        if (rc < 0)
            return rc;
    }
}

void aq_line_reader_close(struct aq_line_reader *r)
{
    free(r->bytes);
    *r = (struct aq_line_reader){.fd = -1};
}

/* ---- names ---- */

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

char *aq_file_beside(const char *path, const char *other)
{
    char *whole = canonical(path), *folder = aq_file_folder(path);
    char *others = aq_file_folder(other), *name = NULL;
    const char *slash = whole ? strrchr(whole, '/') : NULL;
    if (slash && folder && others)
        name = strdup(aq_file_same(folder, others) ? slash + 1 : whole);
    free(whole);
    free(folder);
    free(others);
    return name;
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
