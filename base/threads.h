/* SPDX-License-Identifier: Apache-2.0
 * base/threads.h - threads, and a worker pool for data-parallel grids of tiles.  Tiles are claimed
 * dynamically; a tile owns its outputs, so which worker runs it never changes a result.  One grid
 * runs at a time, started by the one thread that owns the pool; that thread works too. */
#ifndef AQ_BASE_THREADS_H
#define AQ_BASE_THREADS_H

#include "base/err.h"

#include <pthread.h>
#include <stdint.h>

enum { AQ_THREADS_MAX = 1024 };

struct aq_pool;

/* Runs tile `tile` on worker `worker` (0 <= worker < aq_pool_threads). */
typedef void aq_tile_fn(void *arg, uint32_t tile, uint32_t worker);

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
 * itself; 0, and nothing changes, if there are not as many workers as CPUs or the system forbids
 * it. */
uint32_t aq_pool_bind(struct aq_pool *p);

/* Returns when all tiles are done; their outputs are visible to the caller.  Never allocates. */
void aq_pool_run(struct aq_pool *p, aq_tile_fn *fn, void *arg, uint32_t tiles);

#endif
