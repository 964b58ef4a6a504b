/* SPDX-License-Identifier: Apache-2.0
 * engine/exec/executor.h - runs the program: issues each op when its deps are done, lane by lane,
 * on kernels, streams and disks.  Owns seats, rows, slots and KV; borrows model, kernels, device
 * and disk.  All decisions that depend on data happen in TURN (ends, admission, refill) or in HEAD
 * (the choice of a token); the program never changes.  Nothing is allocated between open and close.
 *
 * Serial and overlapped execution run the same array: serial waits after each op; overlapped lets
 * lanes run side by side, and weights run ahead over the end of a pass.  The tokens are the same
 * bits. */
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
#include "policy/kv_profile.h"

struct aq_executor;

struct aq_executor_opts {
    struct aq_device *device;
    const struct aq_model *model;
    const struct aq_compute *compute; /* of the compute lane */
    struct aq_compute_cuda *cuda;     /* on a GPU: the object whose base is `compute`; or NULL */
    /* Of the host's lane, or of attention beside products, on the aside of the same pool; NULL
     * where the lane has no work. */
    const struct aq_compute *host_compute;
    struct aq_pool *pool;             /* chooses tokens, and serves the CPU's compute lane */
    const struct aq_kernels *kernels; /* of the CPU, for tokens that the host chooses */
    const struct aq_block *block;     /* plan, stream and program; outlives the executor */
    /* 1 + the CPU that the lane's thread stays on, its pool being bound (aq_pool_bind); 0: any. */
    uint32_t compute_cpu, host_compute_cpu;
    bool refill, serial;
    bool share_prefixes; /* prompts that begin alike are computed once (policy/seats.h) */
    bool replay;         /* ops that compute do nothing; every chosen token is 0 */
    /* Opens the disk over the engine's files, with the executor's completions; NULL without moves
     * to and from disk. */
    int (*open_disk)(void *user, struct aq_disk_lane **ret, const struct aq_io_region *regions,
                     uint32_t region_count, const struct aq_disk_check *check,
                     struct aq_completions *done, struct aq_err *reterr);
    /* Releases what open_disk took, after the lane is closed; called if open_disk was called. */
    void (*close_disk)(void *user);
    void *disk_user;
    uint32_t store_set, scratch_set; /* sets of the disk: weights, KV and hidden states */
    const struct aq_store *store;    /* weights stream from it; NULL: none do */
    enum aq_verify verify;           /* which reads are compared with checksums */
    /* Called with true before the first op of a pass and with false after the last: tests trap
     * allocation in between.  May be NULL. */
    void (*observe)(void *user, bool running);
    void *observe_user;
    /* Tests: virtual time of executor, device and disk, and the time of an op that computes. */
    struct aq_timeline *timeline;
    uint64_t (*cost_ns)(void *user, const struct aq_op *op, const struct aq_op_cost *cost);
    void *cost_user;
    struct aq_kv_classes classes; /* of tokens, for policies whose heads have rules; else empty */
    aq_kv_seen_fn *kv_seen;       /* tests; not on a GPU, whose memory the host cannot read */
    void *kv_user;
    struct aq_trace *trace;                     /* records every op with work; may be NULL */
    struct aq_attention_stats *attention_stats; /* records every prompt attended; may be NULL */
};

int aq_executor_open(struct aq_executor **ret, const struct aq_executor_opts *opts,
                     struct aq_err *reterr);
/* Waits for ops in flight. */
void aq_executor_close(struct aq_executor *x);

void aq_executor_submit(struct aq_executor *x, struct aq_sequence *s);
/* One pass; *ret_worked is false when no sequence is seated or waiting.  On a GPU its last tokens
 * may still be to come when it returns (early.c): they come with the next pass, and those of the
 * last pass with it.  After an error the executor can only be closed. */
int aq_executor_pass(struct aq_executor *x, bool *ret_worked, struct aq_err *reterr);
struct aq_sequence *aq_executor_finished(struct aq_executor *x);
struct aq_engine_stats aq_executor_stats(const struct aq_executor *x);
/* Between passes: [layers][kv_heads] of a policy whose heads have rules; else NULL. */
const struct aq_rule_stats *aq_executor_rules(const struct aq_executor *x);

/* Bytes that open takes as "rows and seats", the bookkeeping per row and seat: at most as many as
 * aq_block_rows_bytes() puts on the ledger. */
uint64_t aq_executor_rows_bytes(const struct aq_plan *plan);

#endif
