/* SPDX-License-Identifier: Apache-2.0
 * Put in front of the C library (LD_PRELOAD), makes one system call on some files fail, or be the
 * last that the process makes.  Set by the environment:
 *   AQ_FAULT_PATH   files whose path begins so, and their folder; others are left alone
 *   AQ_FAULT        CALL:K:WHAT - what happens at the K-th (from 1) such call of that name, or of
 *                   any name ("any": all that change something):
 *                     ERRNUM   a number: it fails, once, with this errno
 *                     always=ERRNUM  from there on
 *                     before, after, half   SIGKILL before it, after it, in the middle of a write
 *   AQ_FAULT_COUNT  a file that gets the number of calls when the process ends in good order
 * What the C library calls inside of itself (stdio) is not seen. */
#undef _FILE_OFFSET_BITS /* both names of a call are defined here */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum what { PASS, FAIL, AFTER, HALF };

static atomic_ulong calls;

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static bool is_watched(const char *path)
{
    const char *watched = getenv("AQ_FAULT_PATH"), *slash = watched ? strrchr(watched, '/') : NULL;
    if (!watched || !path)
        return false;
    bool folder = slash && strlen(path) == (size_t)(slash - watched) &&
                  !strncmp(path, watched, (size_t)(slash - watched));
    return folder || !strncmp(path, watched, strlen(watched));
}

/* What is to happen at this call, by name; `changes`: it is one of "any". */
static enum what fault(const char *name, bool changes, const char *path)
{
    const char *plan = getenv("AQ_FAULT");
    char call[32];
    unsigned long k;
    int at = 0, errnum;
    if (!plan || !is_watched(path) || sscanf(plan, "%31[^:]:%lu:%n", call, &k, &at) < 2 || !at)
        return PASS;
    if (strcmp(call, name) != 0 && (strcmp(call, "any") != 0 || !changes))
        return PASS;
    unsigned long count = ++calls;
    plan += at;
    bool always = sscanf(plan, "always=%d", &errnum) == 1;
    if ((always || sscanf(plan, "%d", &errnum) == 1) && (always ? count >= k : count == k)) {
        errno = errnum;
        return FAIL;
    }
    if (count != k)
        return PASS;
    if (!strcmp(plan, "before"))
        die();
    return !strcmp(plan, "after") ? AFTER : !strcmp(plan, "half") ? HALF : PASS;
}

static enum what fault_fd(const char *name, bool changes, int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n < 0)
        return PASS;
    path[n] = '\0';
    return fault(name, changes, path);
}

static __attribute__((destructor)) void report(void)
{
    const char *path = getenv("AQ_FAULT_COUNT");
    FILE *f = path ? fopen(path, "we") : NULL;
    if (!f)
        return;
    fprintf(f, "%lu\n", (unsigned long)calls);
    fclose(f);
}

#define NEXT(name, type, parameters) ((type(*) parameters)dlsym(RTLD_NEXT, name))

/* A call on a descriptor or path, twice: the name with 64 is that of programs with large files. */
#define WATCH(symbol, name, changes, type, parameters, fault_of, of, bytes, half, ...)             \
    type symbol parameters;                                                                        \
    type symbol parameters                                                                         \
    {                                                                                              \
        enum what what = fault_of(name, changes, of);                                              \
        if (what == FAIL)                                                                          \
            return -1;                                                                             \
        if (what == HALF) {                                                                        \
            half;                                                                                  \
            die();                                                                                 \
        }                                                                                          \
        type result = NEXT(#symbol, type, parameters)(__VA_ARGS__);                                \
        if (what == AFTER)                                                                         \
            die();                                                                                 \
        return result;                                                                             \
    }

#define WATCH_FD(symbol, name, changes, type, parameters, ...)                                     \
    WATCH(symbol, name, changes, type, parameters, fault_fd, fd, 0, (void)0, __VA_ARGS__)
#define WATCH_PATH(symbol, name, parameters, ...)                                                  \
    WATCH(symbol, name, true, int, parameters, fault, path, 0, (void)0, __VA_ARGS__)

#define WRITE_P  (int fd, const void *src, size_t n)
#define PWRITE_P (int fd, const void *src, size_t n, off_t at)
WATCH(write, "write", true, ssize_t, WRITE_P, fault_fd, fd, n,
      (void)!NEXT("write", ssize_t, WRITE_P)(fd, src, n / 2), fd, src, n)
WATCH(pwrite, "pwrite", true, ssize_t, PWRITE_P, fault_fd, fd, n,
      (void)!NEXT("pwrite", ssize_t, PWRITE_P)(fd, src, n / 2, at), fd, src, n, at)
WATCH(pwrite64, "pwrite", true, ssize_t, PWRITE_P, fault_fd, fd, n,
      (void)!NEXT("pwrite64", ssize_t, PWRITE_P)(fd, src, n / 2, at), fd, src, n, at)
WATCH_FD(read, "read", false, ssize_t, (int fd, void *dst, size_t n), fd, dst, n)
WATCH_FD(pread, "pread", false, ssize_t, (int fd, void *dst, size_t n, off_t at), fd, dst, n, at)
WATCH_FD(pread64, "pread", false, ssize_t, (int fd, void *dst, size_t n, off_t at), fd, dst, n, at)
WATCH_FD(ftruncate, "ftruncate", true, int, (int fd, off_t n), fd, n)
WATCH_FD(ftruncate64, "ftruncate", true, int, (int fd, off_t n), fd, n)
WATCH_FD(fallocate, "fallocate", true, int, (int fd, int m, off_t at, off_t n), fd, m, at, n)
WATCH_FD(fallocate64, "fallocate", true, int, (int fd, int m, off_t at, off_t n), fd, m, at, n)
WATCH_FD(fsync, "fsync", true, int, (int fd), fd)
WATCH_FD(fdatasync, "fdatasync", true, int, (int fd), fd)
WATCH_FD(flock, "flock", true, int, (int fd, int how), fd, how)
WATCH_PATH(rename, "rename", (const char *path, const char *to), path, to)
WATCH_PATH(unlink, "unlink", (const char *path), path)

#define OPEN(symbol)                                                                               \
    int symbol(const char *path, int flags, ...);                                                  \
    int symbol(const char *path, int flags, ...)                                                   \
    {                                                                                              \
        mode_t mode = 0;                                                                           \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                       \
            va_list args;                                                                          \
            va_start(args, flags);                                                                 \
            mode = va_arg(args, mode_t);                                                           \
            va_end(args);                                                                          \
        }                                                                                          \
        enum what what = fault("open", true, path);                                                \
        if (what == FAIL)                                                                          \
            return -1;                                                                             \
        int fd = NEXT(#symbol, int, (const char *, int, ...))(path, flags, mode);                  \
        if (what == AFTER || what == HALF)                                                         \
            die();                                                                                 \
        return fd;                                                                                 \
    }

OPEN(open)
OPEN(open64)
