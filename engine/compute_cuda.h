/* SPDX-License-Identifier: Apache-2.0
 * engine/compute_cuda.h - a lane that computes on a GPU: each op puts launches on its stream.  What
 * describes the work is copied to the op's desk, pinned memory of the host with a mirror on the
 * device, and goes there ahead of the launches that read it.  Owns desks and workspaces; borrows
 * the GPU and the device. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_H
#define AQ_ENGINE_COMPUTE_CUDA_H

#include "engine/compute.h"
#include "engine/cuda.h"
#include "offload/device.h"
#include "policy/gpu_room.h"

struct aq_compute_cuda;

struct aq_compute_cuda_opts {
    const struct aq_cuda *cuda;
    struct aq_device *device;
    struct aq_gpu_room room;
    bool deterministic;
};

int aq_compute_cuda_open(struct aq_compute_cuda **ret, const struct aq_compute_cuda_opts *opts,
                         struct aq_err *reterr);
/* Nothing runs any more.  NULL is fine. */
void aq_compute_cuda_close(struct aq_compute_cuda *c);
struct aq_compute *aq_compute_cuda_base(struct aq_compute_cuda *c);

/* Every op begins on a stream and ends; at most AQ_GPU_DESKS of them are on their way at a time.
 * End returns 0, or a code where something could not be launched; *ret_what names the call then,
 * and *ret_why says what the driver said. */
void aq_compute_cuda_begin(struct aq_compute_cuda *c, void *stream);
int aq_compute_cuda_end(struct aq_compute_cuda *c, const char **ret_what, const char **ret_why);

/* Takes the statistics of rows of logits home, and where `whole` the rows too; they are there when
 * the op has finished, until the next one of this kind begins. */
void aq_compute_cuda_fetch(struct aq_compute_cuda *c, const float *logits, uint32_t rows,
                           uint32_t vocab, bool whole);
const struct aq_logits_stat *aq_compute_cuda_stats(const struct aq_compute_cuda *c);
float *aq_compute_cuda_logits(const struct aq_compute_cuda *c);

#endif
