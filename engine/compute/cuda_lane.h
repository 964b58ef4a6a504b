/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda_lane.h - a lane that computes on a GPU: each op puts launches on its stream.
 * The arrays that describe the work are copied to the op's desk, pinned host memory with a mirror
 * on the device, and go there ahead of the launches that read them.  Owns desks and workspaces;
 * borrows the GPU and the device. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_LANE_H
#define AQ_ENGINE_COMPUTE_CUDA_LANE_H

#include "engine/compute/compute.h"
#include "engine/compute/cuda.h"
#include "engine/compute/cuda_graph.h"
#include "engine/sequence.h"
#include "offload/device.h"
#include "policy/gpu_sizes.h"

struct aq_compute_cuda;

struct aq_compute_cuda_opts {
    const struct aq_cuda *cuda;
    struct aq_device *device;
    struct aq_gpu_sizes sizes;
    /* A row's bits do not depend on what is computed beside it: proved of the products of `steps`
     * in `compute`, or refused. */
    bool deterministic;
    const struct aq_model_steps *steps; /* outlives the lane */
    enum aq_dtype compute;
    uint32_t seats;        /* of a micro-batch, at most */
    uint32_t pass_ops;     /* of a pass, at most; 0: so many as is usual */
    uint32_t launches_max; /* tests: that are made together; 0: as many as is usual */
};

int aq_compute_cuda_open(struct aq_compute_cuda **ret, const struct aq_compute_cuda_opts *opts,
                         struct aq_err *reterr);
/* The model's vectors are there, in device memory: biases may be copied.  -EIO, -ENOMEM. */
int aq_compute_cuda_biases(struct aq_compute_cuda *c, float *const *vector, struct aq_err *reterr);
/* Nothing runs any more.  NULL is fine. */
void aq_compute_cuda_close(struct aq_compute_cuda *c);
struct aq_cuda_graphs aq_compute_cuda_graphs(const struct aq_compute_cuda *c);
const struct aq_compute *aq_compute_cuda_base(const struct aq_compute_cuda *c);

/* Ops are put on a stream between begin and end, with so many desks (1, or AQ_GPU_BUNDLE_DESKS); of
 * AQ_GPU_DESKS, as many as the last ones took may still be on their way.  `together`: their
 * launches are made at the end, behind one copy of all that describes them, and as one graph where
 * the same came before; such ops fetch and answer nothing.  Next tells whose launches follow.  What
 * changed of tables (aq_compute_cuda_changed) goes to the device in front of the ops: just that, or
 * all that lies between the first change and the last. */
enum aq_cuda_changes { AQ_CUDA_UNCHANGED, AQ_CUDA_CHANGED, AQ_CUDA_CHANGED_ALL };
enum aq_cuda_changes aq_compute_cuda_begin(struct aq_compute_cuda *c, void *stream, uint32_t desks,
                                           bool together);
void aq_compute_cuda_next(struct aq_compute_cuda *c, uint32_t op);
/* 0, or a code where something could not be launched; *ret_op is the op then, *ret_what names the
 * call, and *ret_why says what the driver said. */
int aq_compute_cuda_end(struct aq_compute_cuda *c, uint32_t *ret_op, const char **ret_what,
                        const char **ret_why);

/* ---- tables of pages ---- */

/* Tables of addresses in pinned memory, of as many bytes as the sizes say, which the device has a
 * copy of from now on: ops whose sequences have theirs among them read the copy.  NULL: none. */
void aq_compute_cuda_tables(struct aq_compute_cuda *c, uint8_t *const *tables);
/* From any thread: `bytes` of the tables at `at` are others now, and stay so until the ops that are
 * put on the stream next have finished. */
void aq_compute_cuda_changed(struct aq_compute_cuda *c, const void *at, size_t bytes);

/* ---- tokens ---- */

/* The choice that a row of logits asks for, by its sequence's sampling
 * (engine/compute/sample.h). */
struct aq_compute_cuda_row {
    const struct aq_sequence *sequence;
    uint32_t given;     /* a token that is only scored; AQ_CUDA_CHOOSE: the next one */
    uint32_t top_count; /* alternatives that are wanted */
    /* The row's token is id AQ_ID_CHOSEN + seat for the sequence's next row, before the host knows
     * it; UINT32_MAX: it has no next row. */
    uint32_t seat;
};
/* The most that a row takes of an op's room for choices; and that room. */
uint64_t aq_compute_cuda_row_bytes(const struct aq_compute_cuda_row *row);
uint64_t aq_compute_cuda_rows_room(const struct aq_compute_cuda *c);

/* Where answers will be when the op has finished, until its desks are taken again: one for each
 * row, and the alternatives of all rows one after the other. */
struct aq_compute_cuda_answers {
    const struct aq_cuda_choice *choice;
    const struct aq_cuda_top *top;
};
/* The op is one that answers for so many rows, with so many alternatives in all.  Comes first in
 * it; then choose, for some of the rows after the other; then one copy home. */
void aq_compute_cuda_expect(struct aq_compute_cuda *c, uint32_t rows, uint32_t tops,
                            struct aq_compute_cuda_answers *ret);
/* logits [rows][vocab] of a tile of the head; penalties change them. */
void aq_compute_cuda_choose(struct aq_compute_cuda *c, const struct aq_compute_cuda_row *row,
                            uint32_t rows, float *logits, uint32_t vocab);
void aq_compute_cuda_answer(struct aq_compute_cuda *c);

/* Instead: takes rows of logits and their statistics home, for somebody there to see; they are
 * there when the op has finished, until the next one of this kind begins. */
void aq_compute_cuda_fetch(struct aq_compute_cuda *c, const float *logits, uint32_t rows,
                           uint32_t vocab);
const struct aq_logits_stat *aq_compute_cuda_stats(const struct aq_compute_cuda *c);
float *aq_compute_cuda_logits(const struct aq_compute_cuda *c);

#endif
