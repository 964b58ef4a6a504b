/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/executor.h - runs the program: issues each op when what it waits for is done, lane by
 * lane, on kernels, streams and disks.  Owns seats, rows, slots and KV; borrows model, kernels,
 * device and disk.  Everything that depends on data happens in TURN (ends, admission, refill) or in
 * HEAD (the choice of a token); the program never changes.  Nothing is allocated between open and
 * close.
 *
 * serial and overlapped run the same array: one waits after each op, the other lets lanes run side
 * by side, and weights run ahead over the end of a pass.  Their tokens are the same bits. */
#ifndef AQ_ENGINE_EXEC_EXECUTOR_H
#define AQ_ENGINE_EXEC_EXECUTOR_H

#include "engine/compute/cuda_lane.h"
#include "engine/exec/attention_stats.h"
#include "engine/exec/kv_pages.h"
#include "engine/exec/stats.h"
#include "engine/exec/trace.h"
#include "engine/model/model.h"
#include "kernels/kernels.h"
#include "offload/device.h"
#include "offload/disk_lane.h"
#include "offload/sum.h"
#include "policy/block.h"

struct aq_executor;

struct aq_executor_opts {
    struct aq_device *device;
    const struct aq_model *model;
    struct aq_compute *compute;      /* of the compute lane */
    struct aq_compute_cuda *cuda;    /* of which it is the base, on a GPU; else NULL */
    struct aq_compute *host_compute; /* of the host lane; NULL where it computes nothing */
    struct aq_pool *pool;            /* where tokens are chosen, and what the CPU's lane uses */
    const struct aq_block *block;    /* plan, stream and program; outlives the executor */
    /* 1 + the CPU that the lane's thread stays on, its pool being bound (aq_pool_bind); 0: any. */
    uint32_t compute_cpu, host_compute_cpu;
    bool refill, serial;
    bool replay; /* ops that compute do nothing; every chosen token is 0 */
    /* Opens the disk over the engine's files once its completions are there; NULL without moves to
     * and from disk. */
    int (*open_disk)(void *user, struct aq_disk_lane **ret, const struct aq_io_region *regions,
                     uint32_t region_count, const struct aq_disk_check *check,
                     struct aq_completions *done, struct aq_err *reterr);
    /* Ends what open_disk began beside the lane, once that is closed; called if open_disk was. */
    void (*close_disk)(void *user);
    void *disk_user;
    uint32_t store_set, scratch_set; /* sets of the disk: weights, KV and hidden states */
    const struct aq_store *store;    /* that weights stream from; NULL: none do */
    enum aq_verify verify;           /* what of it is compared with its checksums, and when */
    /* Called with true before the first op of a pass and with false after the last: tests trap
     * allocation in between.  NULL: nobody watches. */
    void (*observe)(void *user, bool running);
    void *observe_user;
    /* Tests: virtual time, as the device's and the disk's, and what an op that computes takes. */
    struct aq_timeline *timeline;
    uint64_t (*cost_ns)(void *user, const struct aq_op *op, const struct aq_op_cost *cost);
    void *cost_user;
    aq_kv_seen_fn *kv_seen; /* not on a GPU, whose memory nobody can look into */
    void *kv_user;
    struct aq_trace *trace; /* told of every op with work; NULL: nobody listens */
    struct aq_attention_stats *attention_stats; /* told of every prompt attended; NULL: nobody */
};

int aq_executor_open(struct aq_executor **ret, const struct aq_executor_opts *opts,
                     struct aq_err *reterr);
/* Waits for what is in flight. */
void aq_executor_close(struct aq_executor *x);

void aq_executor_submit(struct aq_executor *x, struct aq_sequence *s);
/* One pass; *ret_worked false when nobody is seated or waiting.  After an error only close. */
int aq_executor_pass(struct aq_executor *x, bool *ret_worked, struct aq_err *reterr);
struct aq_sequence *aq_executor_finished(struct aq_executor *x);
struct aq_engine_stats aq_executor_stats(const struct aq_executor *x);

/* Bytes of the bookkeeping per row and seat that open takes as "rows and seats": at most what
 * aq_block_rows_bytes() puts on the ledger. */
uint64_t aq_executor_rows_bytes(const struct aq_plan *plan);

#endif
