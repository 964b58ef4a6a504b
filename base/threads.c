/* SPDX-License-Identifier: Apache-2.0 */
#include "base/threads.h"

#include <assert.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Workers spin this long for the next grid before they sleep: kernels of one pass follow each other
 * within microseconds, while a pool that has nothing to do must not burn cores.  Where there are
 * more threads than CPUs, who spins keeps another from working: there they sleep at once. */
enum { SPIN_MAX = 4000 };

/* Nobody claims anything. */
#define CLOSED UINT32_MAX

struct aq_pool {
    uint32_t threads, started;
    int spin_max;
    pthread_t *handle;
    struct worker {
        struct aq_pool *pool;
        uint32_t index, group;
    } * worker;
    struct aq_groups groups;
    /* Of the grid at hand.  A worker that comes late may read those of the next one, but then finds
     * that `claim` has changed. */
    _Atomic(aq_tile_fn *) fn;
    _Atomic(void *) arg;
    atomic_uint tiles;
    struct {
        _Alignas(64) _Atomic uint64_t next; /* generation, and the next tile to claim of it */
    } claim[AQ_GROUPS_MAX];
    _Alignas(64) atomic_uint generation; /* rises with each grid; workers wait for it to change */
    _Alignas(64) atomic_uint done;       /* tiles */
    atomic_uint sleepers;
    atomic_bool waited_for, stop;
};

static void futex_wait(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Works on a group's share of the grid of this generation as long as it has tiles; how many that
 * were. */
static uint32_t claim_share(struct aq_pool *p, uint32_t generation, uint32_t group, uint32_t worker)
{
    _Atomic uint64_t *next = &p->claim[group].next;
    uint64_t claim = atomic_load_explicit(next, memory_order_acquire);
    uint32_t tiles = atomic_load_explicit(&p->tiles, memory_order_acquire), count = 0;
    uint64_t end = aq_groups_first(&p->groups, group + 1, tiles);
    while (claim >> 32 == generation && (uint32_t)claim < end) {
        if (!atomic_compare_exchange_weak_explicit(next, &claim, claim + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        aq_tile_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        fn(atomic_load_explicit(&p->arg, memory_order_relaxed), (uint32_t)claim, worker);
        count++;
        claim = atomic_load_explicit(next, memory_order_acquire);
    }
    return count;
}

/* The worker's own group's share first. */
static uint32_t claim_tiles(struct aq_pool *p, uint32_t generation, uint32_t worker)
{
    uint32_t count = 0, own = p->worker[worker].group, groups = p->groups.count;
    for (uint32_t i = 0; i < groups; i++)
        count += claim_share(p, generation, (own + i) % groups, worker);
    return count;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct aq_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        unsigned now = atomic_load_explicit(&p->generation, memory_order_acquire);
        for (int spin = 0; now == seen && spin < p->spin_max; spin++) {
            relax();
            now = atomic_load_explicit(&p->generation, memory_order_acquire);
        }
        while (now == seen) {
            atomic_fetch_add(&p->sleepers, 1);
            futex_wait(&p->generation, seen);
            atomic_fetch_sub(&p->sleepers, 1);
            now = atomic_load_explicit(&p->generation, memory_order_acquire);
        }
        seen = now;
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return NULL;
        uint32_t count = claim_tiles(p, now, w->index);
        /* The grid, and so p->tiles, stays until what was claimed counts as done. */
        uint32_t tiles = count ? atomic_load_explicit(&p->tiles, memory_order_relaxed) : 0;
        if (count && atomic_fetch_add(&p->done, count) + count == tiles &&
            atomic_load(&p->waited_for))
            futex_wake_all(&p->done);
    }
}

uint32_t aq_threads_usable(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : UINT32_MAX;
}

int aq_thread_start(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(ret, attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int aq_thread_error(struct aq_err *reterr, const char *what, int failed)
{
    return aq_error(reterr, -ENOMEM,
                    "start %s: %s; a limit on processes or memory (ulimit -u, ulimit -v, the "
                    "container's) leaves no room for it: raise it",
                    what, strerror(failed));
}

int aq_pool_open(struct aq_pool **ret, uint32_t threads, struct aq_err *reterr)
{
    assert(ret && threads >= 1);
    if (threads > AQ_THREADS_MAX)
        return aq_error(reterr, -EINVAL, "threads: expected 1 to %d, found %u", AQ_THREADS_MAX,
                        threads);
    struct aq_pool *p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
    if (!p)
        return aq_error_memory(reterr, "worker pool");
    memset(p, 0, sizeof(*p));
    p->threads = threads;
    p->spin_max = threads <= aq_threads_usable() ? SPIN_MAX : 0;
    p->groups = (struct aq_groups){.count = 1, .end = {threads}};
    p->handle = calloc(threads, sizeof(*p->handle));
    p->worker = calloc(threads, sizeof(*p->worker));
    if (!p->handle || !p->worker) {
        aq_pool_close(p);
        return aq_error_memory(reterr, "worker pool of %u threads", threads);
    }
    for (uint32_t i = 1; i < threads; i++) {
        p->worker[i] = (struct worker){.pool = p, .index = i};
        int rc = aq_thread_start(&p->handle[i], NULL, worker_main, &p->worker[i]);
        if (rc) {
            aq_pool_close(p);
            return aq_error(reterr, -rc,
                            "worker thread %u of %u: %s; lower --threads, or raise the limits of "
                            "memory and threads (ulimit -v, -u)",
                            i, threads, strerror(rc));
        }
        p->started = i;
    }
    *ret = p;
    return 0;
}

void aq_pool_close(struct aq_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->generation, 1);
    futex_wake_all(&p->generation);
    for (uint32_t i = 1; i <= p->started; i++)
        pthread_join(p->handle[i], NULL);
    free(p->handle);
    free(p->worker);
    free(p);
}

uint32_t aq_pool_threads(const struct aq_pool *p)
{
    return p->threads;
}

uint32_t aq_pool_bind(struct aq_pool *p)
{
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof(all), &all) < 0 || (uint32_t)CPU_COUNT(&all) != p->threads)
        return 0;
    uint32_t cpu = 0, owner = 0;
    for (uint32_t i = 0; i < p->threads; i++, cpu++) {
        cpu_set_t one;
        while (!CPU_ISSET(cpu, &all))
            cpu++;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        owner = i ? owner : 1 + cpu;
        if (i && pthread_setaffinity_np(p->handle[i], sizeof(one), &one))
            return 0; /* the first of them: those of a process are all alike */
    }
    return owner;
}

bool aq_pool_spread(struct aq_pool *p, const struct aq_groups *groups,
                    const struct aq_cpus cpus[AQ_GROUPS_MAX])
{
    assert(groups->count <= AQ_GROUPS_MAX && groups->end[groups->count - 1] == p->threads);
    for (uint32_t i = 0, g = 0; i < p->threads; i++) {
        cpu_set_t set;
        g += i == groups->end[g];
        CPU_ZERO(&set);
        for (uint32_t cpu = 0; cpu < AQ_THREADS_MAX; cpu++) {
            if (cpus[g].bits[cpu / 64] >> cpu % 64 & 1)
                CPU_SET(cpu, &set);
        }
        if (i && pthread_setaffinity_np(p->handle[i], sizeof(set), &set))
            return false; /* the first of them: those of a process are all alike */
    }
    for (uint32_t i = 0, g = 0; i < p->threads; i++) {
        g += i == groups->end[g];
        p->worker[i].group = g;
    }
    p->groups = *groups;
    return true;
}

const struct aq_groups *aq_pool_groups(const struct aq_pool *p)
{
    return &p->groups;
}

void aq_claims_open(struct aq_claims *c, const struct aq_pool *p, uint32_t units, uint32_t each)
{
    for (uint32_t g = 0; g < p->groups.count; g++) {
        c->group[g].next = (uint32_t)aq_groups_first(&p->groups, g, units) * each;
        c->group[g].end = (uint32_t)aq_groups_first(&p->groups, g + 1, units) * each;
    }
}

uint32_t aq_claims_next(struct aq_claims *c, const struct aq_pool *p, uint32_t worker)
{
    uint32_t own = p->worker[worker].group;
    for (uint32_t i = 0; i < p->groups.count; i++) {
        uint32_t g = (own + i) % p->groups.count;
        uint32_t tile = __atomic_fetch_add(&c->group[g].next, 1, __ATOMIC_RELAXED);
        if (tile < c->group[g].end)
            return tile;
    }
    return AQ_NO_TILE;
}

void aq_pool_run(struct aq_pool *p, aq_tile_fn *fn, void *arg, uint32_t tiles)
{
    assert(tiles < CLOSED);
    if (p->threads == 1 || tiles <= 1) {
        for (uint32_t i = 0; i < tiles; i++)
            fn(arg, i, 0);
        return;
    }
    unsigned generation = atomic_load_explicit(&p->generation, memory_order_relaxed) + 1;
    /* First nothing more can be claimed of the last grid, then the new one is written down. */
    for (uint32_t g = 0; g < p->groups.count; g++)
        atomic_store_explicit(&p->claim[g].next, (uint64_t)generation << 32 | CLOSED,
                              memory_order_relaxed);
    atomic_store_explicit(&p->tiles, tiles, memory_order_release);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    for (uint32_t g = 0; g < p->groups.count; g++)
        atomic_store_explicit(&p->claim[g].next,
                              (uint64_t)generation << 32 | aq_groups_first(&p->groups, g, tiles),
                              memory_order_release);
    atomic_store(&p->generation, generation);
    if (atomic_load(&p->sleepers) > 0)
        futex_wake_all(&p->generation);
    uint32_t count = claim_tiles(p, generation, 0);
    unsigned done = atomic_fetch_add(&p->done, count) + count;
    for (int spin = 0; done < tiles && spin < p->spin_max; spin++) {
        relax();
        done = atomic_load_explicit(&p->done, memory_order_acquire);
    }
    if (done == tiles)
        return;
    atomic_store(&p->waited_for, true);
    for (done = atomic_load(&p->done); done < tiles; done = atomic_load(&p->done))
        futex_wait(&p->done, done);
    atomic_store(&p->waited_for, false);
}
