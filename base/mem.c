/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"

#include "base/threads.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES (2 * AQ_MIB)
#define PAGE_BYTES 4096
/* A thread zeroes some GB a second, a memory takes several times as much: a large buffer is touched
 * by several threads, in pieces that are worth one. */
#define TOUCH_BYTES (128 * AQ_MIB)
enum { TOUCHERS_MAX = 16, TOUCHER_STACK_BYTES = 256 * 1024 };

struct aq_mem {
    pthread_mutex_t lock;
    uint64_t limit[AQ_TIER_COUNT], used[AQ_TIER_COUNT], peak[AQ_TIER_COUNT];
    struct aq_mem_usage row[AQ_MEM_PURPOSE_MAX];
    unsigned row_count;
};

int aq_mem_open(struct aq_mem **ret, const uint64_t limit_bytes[AQ_TIER_COUNT],
                struct aq_err *reterr)
{
    assert(ret);
    struct aq_mem *m = calloc(1, sizeof(*m));
    if (!m)
        return aq_error_memory(reterr, "memory account: %zu bytes", sizeof(*m));
    pthread_mutex_init(&m->lock, NULL);
    memcpy(m->limit, limit_bytes, sizeof(m->limit));
    *ret = m;
    return 0;
}

void aq_mem_close(struct aq_mem *m)
{
    if (!m)
        return;
    for (unsigned t = 0; t < AQ_TIER_COUNT; t++)
        assert(m->used[t] == 0);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

size_t aq_mem_rounded(size_t bytes)
{
    if (bytes >= HUGE_BYTES)
        return aq_align_up(bytes, HUGE_BYTES);
    /* Whole pages, so that a driver can pin a buffer without its neighbours. */
    return aq_align_up(bytes, bytes >= PAGE_BYTES ? PAGE_BYTES : 64);
}

static struct aq_mem_usage *find_row(struct aq_mem *m, enum aq_tier tier, const char *purpose)
{
    for (unsigned i = 0; i < m->row_count; i++) {
        if (m->row[i].tier == tier && strcmp(m->row[i].purpose, purpose) == 0)
            return &m->row[i];
    }
    assert(m->row_count < AQ_MEM_PURPOSE_MAX);
    struct aq_mem_usage *row = &m->row[m->row_count++];
    *row = (struct aq_mem_usage){.purpose = purpose, .tier = tier};
    return row;
}

struct piece {
    char *start;
    size_t bytes;
    pthread_t thread;
};

static void *touch(void *arg)
{
    const struct piece *p = arg;
    for (size_t at = 0; at < p->bytes; at += PAGE_BYTES)
        ((volatile char *)p->start)[at] = 0;
    return NULL;
}

/* The caller takes the first piece, and whatever no thread can be had for. */
static void touch_all(char *start, size_t bytes)
{
    struct piece piece[TOUCHERS_MAX];
    uint64_t most = aq_min_u64(aq_threads_usable(), TOUCHERS_MAX);
    uint32_t count = (uint32_t)aq_max_u64(1, aq_min_u64(most, bytes / TOUCH_BYTES));
    size_t each = aq_align_up(bytes / count, HUGE_BYTES);
    bool has[TOUCHERS_MAX] = {false};
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, TOUCHER_STACK_BYTES);
    for (uint32_t i = 0; i < count; i++) {
        size_t from = aq_min_u64(i * each, bytes);
        piece[i] =
            (struct piece){.start = start + from,
                           .bytes = i + 1 < count ? aq_min_u64(each, bytes - from) : bytes - from};
        has[i] = i && aq_thread_start(&piece[i].thread, &attr, touch, &piece[i]) == 0;
    }
    pthread_attr_destroy(&attr);
    for (uint32_t i = 0; i < count; i++) {
        if (has[i])
            pthread_join(piece[i].thread, NULL);
        else
            touch(&piece[i]);
    }
}

/* Maps bytes (a multiple of 2 MiB) on a 2 MiB boundary, so that every page can be a huge one, and
 * touches them: the kernel hands out zeroed pages once, here, and not in the middle of a pass. */
static void *map_huge(size_t bytes, aq_mem_place_fn *place, void *user)
{
    size_t with_slack = bytes + HUGE_BYTES;
    char *base = mmap(NULL, with_slack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    char *start = (char *)aq_align_up((uintptr_t)base, HUGE_BYTES);
    if (start > base)
        munmap(base, (size_t)(start - base));
    size_t tail = (size_t)(base + with_slack - (start + bytes));
    if (tail)
        munmap(start + bytes, tail);
    madvise(start, bytes, MADV_HUGEPAGE);
    if (place)
        place(user, start, bytes);
    touch_all(start, bytes);
    return start;
}

/* Buffers of a page and more may be read into past the page cache: they start on a page. */
static void *take_small(size_t bytes)
{
    void *p;
    return posix_memalign(&p, bytes >= PAGE_BYTES ? PAGE_BYTES : 64, bytes) == 0 ? p : NULL;
}

int aq_mem_count(struct aq_mem *m, enum aq_tier tier, const char *purpose, size_t bytes,
                 struct aq_err *reterr)
{
    assert(m && purpose && bytes > 0);
    size_t rounded = aq_mem_rounded(bytes);
    pthread_mutex_lock(&m->lock);
    if (rounded > m->limit[tier] || m->used[tier] > m->limit[tier] - rounded) {
        uint64_t used = m->used[tier], limit = m->limit[tier];
        pthread_mutex_unlock(&m->lock);
        return aq_error(reterr, -ENOMEM, "%s memory: %s needs %zu bytes, %llu of %llu are in use",
                        aq_tier_name(tier), purpose, rounded, (unsigned long long)used,
                        (unsigned long long)limit);
    }
    m->used[tier] += rounded;
    if (m->used[tier] > m->peak[tier])
        m->peak[tier] = m->used[tier];
    struct aq_mem_usage *row = find_row(m, tier, purpose);
    row->bytes += rounded;
    if (row->bytes > row->peak_bytes)
        row->peak_bytes = row->bytes;
    pthread_mutex_unlock(&m->lock);
    return 0;
}

void aq_mem_uncount(struct aq_mem *m, enum aq_tier tier, const char *purpose, size_t bytes)
{
    size_t rounded = aq_mem_rounded(bytes);
    pthread_mutex_lock(&m->lock);
    assert(m->used[tier] >= rounded);
    m->used[tier] -= rounded;
    struct aq_mem_usage *row = find_row(m, tier, purpose);
    assert(row->bytes >= rounded);
    row->bytes -= rounded;
    pthread_mutex_unlock(&m->lock);
}

int aq_mem_alloc(void **ret, struct aq_mem *m, enum aq_tier tier, const char *purpose, size_t bytes,
                 struct aq_err *reterr)
{
    return aq_mem_alloc_placed(ret, m, tier, purpose, bytes, NULL, NULL, reterr);
}

int aq_mem_alloc_placed(void **ret, struct aq_mem *m, enum aq_tier tier, const char *purpose,
                        size_t bytes, aq_mem_place_fn *place, void *user, struct aq_err *reterr)
{
    assert(ret);
    int rc = aq_mem_count(m, tier, purpose, bytes, reterr);
    if (rc < 0)
        return rc;
    size_t rounded = aq_mem_rounded(bytes);
    void *p = rounded >= HUGE_BYTES ? map_huge(rounded, place, user) : take_small(rounded);
    if (!p) {
        aq_mem_uncount(m, tier, purpose, bytes);
        return aq_error_memory(reterr, "%zu bytes for %s, which the operating system refused",
                               rounded, purpose);
    }
    if (rounded < HUGE_BYTES)
        memset(p, 0, rounded);
    *ret = p;
    return 0;
}

void aq_mem_free(struct aq_mem *m, enum aq_tier tier, const char *purpose, void *p, size_t bytes)
{
    if (!p)
        return;
    size_t rounded = aq_mem_rounded(bytes);
    if (rounded >= HUGE_BYTES)
        munmap(p, rounded);
    else
        free(p);
    aq_mem_uncount(m, tier, purpose, bytes);
}

uint64_t aq_mem_used(struct aq_mem *m, enum aq_tier tier)
{
    pthread_mutex_lock(&m->lock);
    uint64_t n = m->used[tier];
    pthread_mutex_unlock(&m->lock);
    return n;
}

uint64_t aq_mem_peak(struct aq_mem *m, enum aq_tier tier)
{
    pthread_mutex_lock(&m->lock);
    uint64_t n = m->peak[tier];
    pthread_mutex_unlock(&m->lock);
    return n;
}

unsigned aq_mem_usage(struct aq_mem *m, struct aq_mem_usage *rows, unsigned max)
{
    pthread_mutex_lock(&m->lock);
    unsigned n = m->row_count;
    for (unsigned i = 0; i < n && i < max; i++)
        rows[i] = m->row[i];
    pthread_mutex_unlock(&m->lock);
    return n;
}

/* Reads one "Name:  123 kB" line of /proc/self/status without allocating. */
static uint64_t status_kib(const char *name)
{
    char text[8192];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

uint64_t aq_mem_process_peak(void)
{
    return status_kib("VmHWM:");
}

void aq_mem_process_peak_reset(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "we"); /* 5: proc(5) */
    if (!f)
        return;
    fputs("5", f);
    fclose(f);
}

uint64_t aq_mem_process_now(void)
{
    return status_kib("VmRSS:");
}
