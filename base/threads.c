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

enum { FRONT_POOL, FRONT_ASIDE, FRONTS };

/* The workers, and the two pools that have grids for them.  A worker has the same number in both,
 * and an owner the last number where it helps the other one. */
struct crew;

struct aq_pool {
    struct crew *crew;
    unsigned generation; /* of the last grid; the owner's */
    /* Of the grid at hand.  A worker that comes late may read those of the next one, but then finds
     * that `claim` has changed. */
    _Atomic(aq_tile_fn *) fn;
    _Atomic(void *) arg;
    atomic_uint tiles;
    struct {
        _Alignas(64) _Atomic uint64_t next; /* generation, and the next tile to claim of it */
    } claim[AQ_GROUPS_MAX];
    _Alignas(64) atomic_uint done; /* tiles */
    atomic_bool waited_for;
    atomic_bool called; /* the owner, if it helps the other one */
};

struct crew {
    struct aq_pool front[FRONTS];
    uint32_t threads, started;
    int spin_max;
    bool bound;
    pthread_t *handle;
    struct worker {
        struct crew *crew;
        uint32_t index, group;
    } * worker;
    struct aq_groups groups;
    atomic_uint share; /* threads that serve the aside while both owners have work */
    _Alignas(64) atomic_bool works[FRONTS]; /* the owner has work (aq_pool_begin) */
    /* Rises with each grid, and when an owner has no more work: workers wait for it to change. */
    _Alignas(64) atomic_uint tick;
    atomic_uint sleepers;
    atomic_bool paired, stop;
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

/* Is a worker one of those that serve the aside while both owners work?  These are spread over all
 * workers, and so over their groups. */
static bool is_shared(struct crew *c, uint32_t worker)
{
    uint32_t others = c->threads - 2; /* beside both owners */
    uint32_t shared = atomic_load_explicit(&c->share, memory_order_relaxed) - 1;
    return worker * shared / others > (worker - 1) * shared / others;
}

/* Does the front's worker of this number serve it now? */
static bool serves(struct crew *c, uint32_t worker, uint32_t front)
{
    if (!worker)
        return true;
    if (worker == c->threads - 1)
        return !atomic_load_explicit(&c->front[1 - front].called, memory_order_relaxed);
    bool both = atomic_load_explicit(&c->works[FRONT_POOL], memory_order_relaxed) &&
                atomic_load_explicit(&c->works[FRONT_ASIDE], memory_order_relaxed);
    return !both || is_shared(c, worker) == (front == FRONT_ASIDE);
}

/* Works on a group's share of the front's grid as long as it has tiles and the worker serves this
 * front; how many tiles that were. */
static uint32_t claim_share(struct aq_pool *p, uint32_t group, uint32_t worker)
{
    struct crew *c = p->crew;
    uint32_t front = (uint32_t)(p - c->front), count = 0;
    _Atomic uint64_t *next = &p->claim[group].next;
    while (serves(c, worker, front)) {
        uint64_t claim = atomic_load_explicit(next, memory_order_acquire);
        uint32_t tiles = atomic_load_explicit(&p->tiles, memory_order_acquire);
        uint64_t end = aq_groups_first(&c->groups, group + 1, tiles);
        if ((uint32_t)claim >= end)
            break;
        if (!atomic_compare_exchange_weak_explicit(next, &claim, claim + 1, memory_order_acq_rel,
                                                   memory_order_relaxed))
            continue;
        aq_tile_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        fn(atomic_load_explicit(&p->arg, memory_order_relaxed), (uint32_t)claim, worker);
        count++;
    }
    return count;
}

/* The worker's own group's share first. */
static uint32_t claim_tiles(struct aq_pool *p, uint32_t worker)
{
    struct crew *c = p->crew;
    uint32_t count = 0, own = c->worker[worker].group, groups = c->groups.count;
    for (uint32_t i = 0; i < groups; i++)
        count += claim_share(p, (own + i) % groups, worker);
    return count;
}

/* As much as there is of a front's grid for the worker; whether there was any. */
static bool serve(struct aq_pool *p, uint32_t worker)
{
    uint32_t count = claim_tiles(p, worker);
    /* The grid, and so p->tiles, stays until what was claimed counts as done. */
    uint32_t tiles = count ? atomic_load_explicit(&p->tiles, memory_order_relaxed) : 0;
    if (count && atomic_fetch_add(&p->done, count) + count == tiles && atomic_load(&p->waited_for))
        futex_wake_all(&p->done);
    return count > 0;
}

/* Sleeps until the tick is another than `seen`. */
static void await_tick(struct crew *c, unsigned seen)
{
    unsigned now = atomic_load_explicit(&c->tick, memory_order_acquire);
    for (int spin = 0; now == seen && spin < c->spin_max; spin++) {
        relax();
        now = atomic_load_explicit(&c->tick, memory_order_acquire);
    }
    while (now == seen) {
        atomic_fetch_add(&c->sleepers, 1);
        futex_wait(&c->tick, seen);
        atomic_fetch_sub(&c->sleepers, 1);
        now = atomic_load_explicit(&c->tick, memory_order_acquire);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct crew *c = w->crew;
    await_tick(c, 0); /* before the first grid workers may yet be put in groups */
    for (;;) {
        unsigned seen = atomic_load_explicit(&c->tick, memory_order_acquire);
        bool left = atomic_load(&c->paired) && w->index == c->threads - 1;
        if (left || atomic_load_explicit(&c->stop, memory_order_relaxed))
            return NULL;
        bool worked = serve(&c->front[FRONT_POOL], w->index);
        worked |= serve(&c->front[FRONT_ASIDE], w->index);
        if (!worked)
            await_tick(c, seen);
    }
}

static void raise_tick(struct crew *c)
{
    atomic_fetch_add(&c->tick, 1);
    if (atomic_load(&c->sleepers) > 0)
        futex_wake_all(&c->tick);
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
    struct crew *c = aligned_alloc(64, (sizeof(*c) + 63) / 64 * 64);
    if (!c)
        return aq_error_memory(reterr, "worker pool");
    memset(c, 0, sizeof(*c));
    c->front[FRONT_POOL].crew = c->front[FRONT_ASIDE].crew = c;
    c->threads = threads;
    c->share = 1;
    c->spin_max = threads <= aq_threads_usable() ? SPIN_MAX : 0;
    c->groups = (struct aq_groups){.count = 1, .end = {threads}};
    c->handle = calloc(threads, sizeof(*c->handle));
    c->worker = calloc(threads, sizeof(*c->worker));
    if (!c->handle || !c->worker) {
        aq_pool_close(c->front);
        return aq_error_memory(reterr, "worker pool of %u threads", threads);
    }
    for (uint32_t i = 1; i < threads; i++) {
        c->worker[i] = (struct worker){.crew = c, .index = i};
        int rc = aq_thread_start(&c->handle[i], NULL, worker_main, &c->worker[i]);
        if (rc) {
            aq_pool_close(c->front);
            return aq_error(reterr, -rc,
                            "worker thread %u of %u: %s; lower --threads, or raise the limits of "
                            "memory and threads (ulimit -v, -u)",
                            i, threads, strerror(rc));
        }
        c->started = i;
    }
    *ret = c->front;
    return 0;
}

void aq_pool_close(struct aq_pool *p)
{
    if (!p)
        return;
    struct crew *c = p->crew;
    assert(p == c->front);
    atomic_store(&c->stop, true);
    raise_tick(c);
    for (uint32_t i = 1; i <= c->started; i++)
        pthread_join(c->handle[i], NULL);
    free(c->handle);
    free(c->worker);
    free(c);
}

uint32_t aq_pool_threads(const struct aq_pool *p)
{
    return p->crew->threads;
}

struct aq_pool *aq_pool_aside(struct aq_pool *p)
{
    return &p->crew->front[FRONT_ASIDE];
}

void aq_pool_pair(struct aq_pool *p, uint32_t share)
{
    struct crew *c = p->crew;
    assert(p == c->front && !c->paired && share >= 1 && (share < c->threads || share == 1));
    c->share = share;
    atomic_store(&c->paired, true);
    raise_tick(c);
    if (c->started)
        pthread_join(c->handle[c->started--], NULL);
}

void aq_pool_begin(struct aq_pool *p)
{
    atomic_store(&p->crew->works[p - p->crew->front], true);
}

void aq_pool_call(struct aq_pool *p)
{
    atomic_store(&p->called, true);
    raise_tick(p->crew);
}

void aq_pool_help(struct aq_pool *p)
{
    struct crew *c = p->crew;
    struct aq_pool *other = &c->front[1 - (p - c->front)];
    for (;;) {
        unsigned seen = atomic_load_explicit(&c->tick, memory_order_acquire);
        if (atomic_exchange(&p->called, false))
            return;
        if (c->threads == 1 || !serve(other, c->threads - 1))
            await_tick(c, seen);
    }
}

void aq_pool_end(struct aq_pool *p)
{
    atomic_store(&p->crew->works[p - p->crew->front], false);
    raise_tick(p->crew);
}

uint32_t aq_pool_bind(struct aq_pool *p)
{
    struct crew *c = p->crew;
    cpu_set_t all;
    if ((p != c->front && !c->bound) || c->groups.count > 1)
        return 0;
    if (sched_getaffinity(0, sizeof(all), &all) < 0 || (uint32_t)CPU_COUNT(&all) != c->threads)
        return 0;
    uint32_t cpu = 0, owner = 0, last = 0;
    for (uint32_t i = 0; i < c->threads; i++, cpu++) {
        cpu_set_t one;
        while (!CPU_ISSET(cpu, &all))
            cpu++;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        owner = i ? owner : 1 + cpu;
        last = 1 + cpu;
        if (i && i <= c->started && pthread_setaffinity_np(c->handle[i], sizeof(one), &one))
            return 0; /* the first of them: those of a process are all alike */
    }
    c->bound = true;
    return p == c->front ? owner : last;
}

bool aq_pool_spread(struct aq_pool *p, const struct aq_groups *groups,
                    const struct aq_cpus cpus[AQ_GROUPS_MAX])
{
    struct crew *c = p->crew;
    assert(groups->count <= AQ_GROUPS_MAX && groups->end[groups->count - 1] == c->threads);
    for (uint32_t i = 0, g = 0; i < c->threads; i++) {
        cpu_set_t set;
        g += i == groups->end[g];
        CPU_ZERO(&set);
        for (uint32_t cpu = 0; cpu < AQ_THREADS_MAX; cpu++) {
            if (cpus[g].bits[cpu / 64] >> cpu % 64 & 1)
                CPU_SET(cpu, &set);
        }
        if (i && pthread_setaffinity_np(c->handle[i], sizeof(set), &set))
            return false; /* the first of them: those of a process are all alike */
    }
    for (uint32_t i = 0, g = 0; i < c->threads; i++) {
        g += i == groups->end[g];
        c->worker[i].group = g;
    }
    c->groups = *groups;
    return true;
}

const struct aq_groups *aq_pool_groups(const struct aq_pool *p)
{
    return &p->crew->groups;
}

void aq_claims_open(struct aq_claims *c, const struct aq_pool *p, uint32_t units, uint32_t each)
{
    const struct aq_groups *groups = aq_pool_groups(p);
    for (uint32_t g = 0; g < groups->count; g++) {
        c->group[g].next = (uint32_t)aq_groups_first(groups, g, units) * each;
        c->group[g].end = (uint32_t)aq_groups_first(groups, g + 1, units) * each;
    }
}

uint32_t aq_claims_entries(const struct aq_pool *p, uint64_t tiles)
{
    enum { RETURNS = 3 };
    uint32_t threads = p->crew->threads, each = tiles < threads ? (uint32_t)tiles : threads;
    bool paired = atomic_load_explicit(&p->crew->paired, memory_order_relaxed);
    return paired && each > 1 ? (1 + RETURNS) * each : each;
}

uint32_t aq_claims_next(struct aq_claims *c, const struct aq_pool *p, uint32_t worker)
{
    uint32_t own = p->crew->worker[worker].group, groups = p->crew->groups.count;
    if (!serves(p->crew, worker, (uint32_t)(p - p->crew->front)))
        return AQ_NO_TILE;
    for (uint32_t i = 0; i < groups; i++) {
        uint32_t g = (own + i) % groups;
        uint32_t tile = __atomic_fetch_add(&c->group[g].next, 1, __ATOMIC_RELAXED);
        if (tile < c->group[g].end)
            return tile;
    }
    return AQ_NO_TILE;
}

void aq_pool_run(struct aq_pool *p, aq_tile_fn *fn, void *arg, uint32_t tiles)
{
    struct crew *c = p->crew;
    assert(tiles < CLOSED);
    if (c->threads == 1 || tiles <= 1) {
        for (uint32_t i = 0; i < tiles; i++)
            fn(arg, i, 0);
        return;
    }
    uint64_t generation = (uint64_t)++p->generation << 32;
    /* First nothing more can be claimed of the last grid, then the new one is written down. */
    for (uint32_t g = 0; g < c->groups.count; g++)
        atomic_store_explicit(&p->claim[g].next, generation | CLOSED, memory_order_relaxed);
    atomic_store_explicit(&p->tiles, tiles, memory_order_release);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    for (uint32_t g = 0; g < c->groups.count; g++) {
        uint64_t first = aq_groups_first(&c->groups, g, tiles);
        bool has_first = !first && aq_groups_first(&c->groups, g + 1, tiles) > 0;
        atomic_store_explicit(&p->claim[g].next, generation | (first + has_first),
                              memory_order_release);
    }
    raise_tick(c);
    fn(arg, 0, 0); /* the owner's: who else has claims (aq_claims_next) may leave them to it */
    uint32_t count = 1 + claim_tiles(p, 0);
    unsigned done = atomic_fetch_add(&p->done, count) + count;
    for (int spin = 0; done < tiles && spin < c->spin_max; spin++) {
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
