/* SPDX-License-Identifier: Apache-2.0
 * engine/core/engine_seams.h - what tests put in the machine's place under an engine, and what they
 * look at inside: virtual time instead of threads, disks that fail, the plan's program and the
 * account of memory.  For tests/ alone; a run has no seams. */
#ifndef AQ_ENGINE_CORE_ENGINE_SEAMS_H
#define AQ_ENGINE_CORE_ENGINE_SEAMS_H

#include "base/mem.h"
#include "engine/core/engine.h"
#include "engine/exec/kv_pages.h"
#include "offload/io.h"
#include "offload/timeline.h"
#include "policy/block.h"

struct aq_engine_seams {
    /* NULL: real time.  Else streams and disks are played on it, in the thread that calls pass, and
     * open_io must give an engine of this timeline.  Outlives the engine. */
    struct aq_timeline *timeline;
    /* Virtual time only: as struct aq_device_opts. */
    bool poison, eager;
    uint32_t jitter_permille;
    uint64_t link_latency_ns;
    /* The time that an op that computes takes in virtual time; NULL: none. */
    uint64_t (*cost_ns)(void *user, const struct aq_op *op, const struct aq_op_cost *cost);
    /* Instead of aq_io_open; the engine closes what it gets. */
    int (*open_io)(void *user, struct aq_io **ret, const struct aq_io_opts *opts,
                   struct aq_err *reterr);
    void *user;
    uint64_t disk_deadline_ns; /* of one request; 0: as ever */
    /* After every attention of a sequence's rows in a layer: what its slots hold
     * (engine/exec/kv_pages.h). Called on the threads that attend; sides may be at work at the same
     * time. */
    aq_kv_seen_fn *kv_seen;
    void *kv_user;
    uint32_t gpu_launches; /* as struct aq_compute_cuda_opts */
    /* Memory nodes in the machine's place, and who is told which bytes are for which of them
     * instead of the kernel.  NULL: the machine's. */
    const struct aq_numa_topology *topology;
    void (*bind)(void *user, void *p, size_t bytes, uint32_t node);
    void *bind_user;
};

/* Before load; copied. */
void aq_engine_set_seams(struct aq_engine *e, const struct aq_engine_seams *seams);

/* The plan with everything that follows from it; after plan. */
const struct aq_block *aq_engine_block(const struct aq_engine *e);
const struct aq_model_steps *aq_engine_steps(const struct aq_engine *e);
/* The account of memory; NULL before load. */
struct aq_mem *aq_engine_mem(const struct aq_engine *e);

#endif
