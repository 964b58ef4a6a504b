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

struct aq_pool {
    uint32_t threads, started;
    int spin_max;
    pthread_t *handle;
    struct worker {
        struct aq_pool *pool;
        uint32_t index;
    } * worker;
    aq_tile_fn *fn;
    void *arg;
    uint32_t tiles;
    _Alignas(64) atomic_uint next;       /* next tile to claim */
    _Alignas(64) atomic_uint generation; /* rises with each grid; workers wait for it to change */
    _Alignas(64) atomic_uint running;    /* workers not yet through with this grid */
    atomic_uint sleepers;
    atomic_bool stop;
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

static void claim_tiles(struct aq_pool *p, uint32_t worker)
{
    for (;;) {
        uint32_t tile = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (tile >= p->tiles)
            return;
        p->fn(p->arg, tile, worker);
    }
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
        claim_tiles(p, w->index);
        if (atomic_fetch_sub_explicit(&p->running, 1, memory_order_acq_rel) == 1)
            futex_wake_all(&p->running);
    }
}

/* CPUs this process may run on; UINT32_MAX where that cannot be told. */
static uint32_t usable_cpus(void)
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

int aq_pool_open(struct aq_pool **ret, uint32_t threads, struct aq_err *reterr)
{
    assert(ret && threads >= 1);
    if (threads > AQ_THREADS_MAX)
        return aq_error(reterr, -EINVAL, "threads: expected 1 to %d, found %u", AQ_THREADS_MAX,
                        threads);
    struct aq_pool *p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
    if (!p)
        return aq_error(reterr, -ENOMEM, "worker pool");
    memset(p, 0, sizeof(*p));
    p->threads = threads;
    p->spin_max = threads <= usable_cpus() ? SPIN_MAX : 0;
    p->handle = calloc(threads, sizeof(*p->handle));
    p->worker = calloc(threads, sizeof(*p->worker));
    if (!p->handle || !p->worker) {
        aq_pool_close(p);
        return aq_error(reterr, -ENOMEM, "worker pool of %u threads", threads);
    }
    for (uint32_t i = 1; i < threads; i++) {
        p->worker[i] = (struct worker){p, i};
        int rc = aq_thread_start(&p->handle[i], NULL, worker_main, &p->worker[i]);
        if (rc) {
            aq_pool_close(p);
            return aq_error(reterr, -rc, "worker thread %u of %u: %s", i, threads, strerror(rc));
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

void aq_pool_run(struct aq_pool *p, aq_tile_fn *fn, void *arg, uint32_t tiles)
{
    if (p->threads == 1 || tiles <= 1) {
        for (uint32_t i = 0; i < tiles; i++)
            fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->tiles = tiles;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->running, p->threads - 1, memory_order_relaxed);
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleepers) > 0)
        futex_wake_all(&p->generation);
    claim_tiles(p, 0);
    unsigned left = atomic_load_explicit(&p->running, memory_order_acquire);
    for (int spin = 0; left && spin < p->spin_max; spin++) {
        relax();
        left = atomic_load_explicit(&p->running, memory_order_acquire);
    }
    while (left) {
        futex_wait(&p->running, left);
        left = atomic_load_explicit(&p->running, memory_order_acquire);
    }
}
