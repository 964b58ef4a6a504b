/* SPDX-License-Identifier: Apache-2.0
 * An LD_PRELOAD library that lets allocations fail by count.
 *
 *     AQ_FAIL=KIND:K     the K-th call (from 1) of that kind fails
 *     AQ_FAIL=KIND:K+    and every later one does
 *     AQ_FAIL=KIND:0     none fails, and where each call of that kind comes from goes to the file
 *                        AQ_FAIL_STACKS: its number and the hash of its return addresses, 64 bits
 *                        each
 *     AQ_FAIL_LOG=FILE   calls of each kind are written there at exit, and at once where the first
 *                        failed call came from
 *
 * KIND is heap (malloc, calloc, realloc, aligned memory, and what calls them, as strdup), map
 * (anonymous mmap) or thread (pthread_create).  Counted are calls of this process from its
 * constructors on.  Needs glibc, whose allocator has names to go on by. */
#undef _FILE_OFFSET_BITS /* or mmap and mmap64 were one name */
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <dlfcn.h>

enum kind { HEAP, MAP, THREAD, KIND_COUNT };
enum { FRAMES_MAX = 48 };

static const char *const kind_names[KIND_COUNT] = {"heap", "map", "thread"};
static atomic_ulong calls[KIND_COUNT];
static unsigned long fail_at; /* 0: none fails */
static enum kind fail_kind;
static bool fail_on, armed; /* armed: from the constructor on */
static atomic_bool told;
static int log_fd = -1, stacks_fd = -1;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

/* Descriptors of the program keep the numbers that they have without this library. */
static int far_from_others(int fd)
{
    int far = fcntl(fd, F_DUPFD_CLOEXEC, 200);
    close(fd);
    return far;
}

__attribute__((constructor)) static void start(void)
{
    const char *want = getenv("AQ_FAIL"), *path = getenv("AQ_FAIL_LOG");
    const char *colon = want ? strchr(want, ':') : NULL;
    for (enum kind k = 0; colon && k < KIND_COUNT; k++) {
        if (strncmp(want, kind_names[k], (size_t)(colon - want)) == 0)
            fail_kind = k;
    }
    char *end = NULL;
    fail_at = colon ? strtoul(colon + 1, &end, 10) : 0;
    fail_on = end && *end == '+';
    if (path && getenv("AQ_FAIL_STACKS"))
        stacks_fd = far_from_others(
            open(getenv("AQ_FAIL_STACKS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (path)
        log_fd = far_from_others(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    void *frame[2];
    backtrace(frame, 2); /* the first call loads a library, and so allocates */
    armed = true;
}

__attribute__((destructor)) static void end(void)
{
    char text[128];
    int n =
        snprintf(text, sizeof(text), "calls heap %lu map %lu thread %lu\n",
                 atomic_load(&calls[HEAP]), atomic_load(&calls[MAP]), atomic_load(&calls[THREAD]));
    if (log_fd >= 0 && write(log_fd, text, (size_t)n) < 0)
        _exit(99);
}

static void tell(void)
{
    void *frame[FRAMES_MAX];
    armed = false; /* whatever the unwinder wants now is not what is tested */
    int count = backtrace(frame, FRAMES_MAX);
    backtrace_symbols_fd(frame + 2, count - 2, log_fd); /* without this library's own frames */
    armed = true;
}

/* FNV-1a over the return addresses, which are the same all through one run. */
static void note_stack(unsigned long n)
{
    void *frame[FRAMES_MAX];
    uint64_t row[2] = {n, 14695981039346656037u};
    int count = backtrace(frame, FRAMES_MAX);
    for (int i = 0; i < count; i++)
        row[1] = (row[1] ^ (uintptr_t)frame[i]) * 1099511628211u;
    if (write(stacks_fd, row, sizeof(row)) < 0)
        _exit(99);
}

static bool fails(enum kind kind)
{
    if (!armed)
        return false;
    unsigned long n = atomic_fetch_add(&calls[kind], 1) + 1;
    if (stacks_fd >= 0 && kind == fail_kind)
        note_stack(n);
    if (!fail_at || kind != fail_kind || (fail_on ? n < fail_at : n != fail_at))
        return false;
    if (log_fd >= 0 && !atomic_exchange(&told, true))
        tell();
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return fails(HEAP) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails(HEAP) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *p, size_t bytes)
{
    return fails(HEAP) ? NULL : __libc_realloc(p, bytes);
}

void *reallocarray(void *p, size_t count, size_t bytes)
{
    size_t whole;
    if (__builtin_mul_overflow(count, bytes, &whole)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(p, whole);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails(HEAP) ? NULL : __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    return aligned_alloc(alignment, bytes);
}

int posix_memalign(void **ret, size_t alignment, size_t bytes)
{
    void *p = aligned_alloc(alignment, bytes);
    if (!p)
        return ENOMEM;
    *ret = p;
    return 0;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if ((flags & MAP_ANONYMOUS) && fails(MAP))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

/* What programs built for large files call; the same where addresses have 64 bits. */
void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
    return mmap(address, bytes, protection, flags, fd, offset);
}

int pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    return fails(THREAD) ? EAGAIN : next(ret, attr, fn, arg);
}
