/* SPDX-License-Identifier: Apache-2.0
 * base/threads.h - threads, and a worker pool for data-parallel grids of tiles.  Tiles are claimed
 * dynamically; a tile owns its outputs, so which worker runs it never changes a result.  One grid
 * runs at a time, started by the one thread that owns the pool; that thread works too.
 *
 * A second thread may have grids of its own at the same time, on the same workers: it owns the
 * pool's aside (aq_pool_aside).  While both owners have work a share of the workers serves the
 * aside and the others the pool; while one has work all serve it, and the other owner helps.
 *
 * Workers may stand in groups, each near memory of its own (a NUMA node).  Then every grid is cut
 * between the groups, from its first tile to its last, as the workers are; a group takes its own
 * tiles first, and those that others have left after that.  Who lays data that tiles read in parts
 * that are cut the same way (aq_groups_first) has them read nearby, whatever the kernel. */
#ifndef AQ_BASE_THREADS_H
#define AQ_BASE_THREADS_H

#include "base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { AQ_THREADS_MAX = 1024, AQ_GROUPS_MAX = 8 };

struct aq_pool;

/* Groups of workers: group g has those from end[g - 1] (0: from the first) to end[g]. */
struct aq_groups {
    uint32_t count, end[AQ_GROUPS_MAX];
};

/* Of `total` things that all workers share the first that is group g's; total for g = count. */
static inline uint64_t aq_groups_first(const struct aq_groups *s, uint32_t g, uint64_t total)
{
    return g ? total * s->end[g - 1] / s->end[s->count - 1] : 0;
}

/* CPUs by number. */
struct aq_cpus {
    uint64_t bits[AQ_THREADS_MAX / 64];
};

/* Runs tile `tile` on worker `worker` (0 <= worker < aq_pool_threads). */
typedef void aq_tile_fn(void *arg, uint32_t tile, uint32_t worker);

/* CPUs that this process may run on; UINT32_MAX where that cannot be told. */
uint32_t aq_threads_usable(void);
/* pthread_create (with its errno) of a thread that blocks all signals: these are delivered to the
 * threads of the program that handle them. */
int aq_thread_start(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
/* Says that a thread could not be started and which limits may be why; -ENOMEM. */
int aq_thread_error(struct aq_err *reterr, const char *what, int failed);

/* threads >= 1, the caller included: 1 starts no thread at all. */
int aq_pool_open(struct aq_pool **ret, uint32_t threads, struct aq_err *reterr);
void aq_pool_close(struct aq_pool *p);
uint32_t aq_pool_threads(const struct aq_pool *p);

/* For pools that take turns on the same CPUs: worker i stays on the i-th CPU that the process may
 * use.  Otherwise the system tends to wake a worker on the CPU of the thread that woke it, and
 * another CPU stays idle.  Returns 1 + the CPU for the thread that owns the pool, which must bind
 * itself; 0, and nothing changes, if there are not as many workers as CPUs, if they stand in
 * groups, or if the system forbids it.  Of a pool's aside, once the pool is bound: 1 + the CPU of
 * the last worker. */
uint32_t aq_pool_bind(struct aq_pool *p);

/* Puts the workers in groups, of at least one each, and group g's on cpus[g]; the thread that owns
 * the pool counts as the first, and stays where it is.  Before the first grid.  False, and there is
 * one group as before, where the system forbids it. */
bool aq_pool_spread(struct aq_pool *p, const struct aq_groups *groups,
                    const struct aq_cpus cpus[AQ_GROUPS_MAX]);
const struct aq_groups *aq_pool_groups(const struct aq_pool *p);

/* The pool's aside: a pool of the same workers, in the same groups, for grids of a second thread,
 * which owns it.  Closed with the pool. */
struct aq_pool *aq_pool_aside(struct aq_pool *p);
/* From now on each owner helps the other: as many threads run as the pool has, which the last
 * worker leaves.  While both have work, `share` of them serve the aside, the second owner among
 * them: at least 1, and less than all where there are several.  Once, while no grid runs. */
void aq_pool_pair(struct aq_pool *p, uint32_t share);
/* Around the work of an owner, of as many grids as there are in it: between them its workers
 * stay. */
void aq_pool_begin(struct aq_pool *p);
void aq_pool_end(struct aq_pool *p);
/* For the owner of one, which has no work: it serves the other one, or sleeps, until it is called.
 * From any thread; a call that comes first counts. */
void aq_pool_help(struct aq_pool *p);
void aq_pool_call(struct aq_pool *p);

/* Returns when all tiles are done; their outputs are visible to the caller.  Never allocates. */
void aq_pool_run(struct aq_pool *p, aq_tile_fn *fn, void *arg, uint32_t tiles);

/* A grid inside of a grid's tiles, for workers that want to know their next tile ahead: `units` of
 * `each` tiles, cut between groups where units end. */
struct aq_claims {
    struct {
        uint32_t next; /* atomically */
        uint32_t end;
        uint8_t apart[56]; /* a cache line for each group */
    } group[AQ_GROUPS_MAX];
};
#define AQ_NO_TILE UINT32_MAX
void aq_claims_open(struct aq_claims *c, const struct aq_pool *p, uint32_t units, uint32_t each);
/* Tiles of the outer grid for so many inner ones: one for each worker, and where an owner has an
 * aside several, because a worker that has left one to serve the other owner comes back by
 * another. */
uint32_t aq_claims_entries(const struct aq_pool *p, uint64_t tiles);
/* The next tile for this worker; AQ_NO_TILE: none is left, or the worker is to serve others: the
 * owner, whose tile is the first of the grid, gets those that are left. */
uint32_t aq_claims_next(struct aq_claims *c, const struct aq_pool *p, uint32_t worker);

#endif
