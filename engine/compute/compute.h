/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/compute.h - where the ops of a lane compute: on the CPU, at once, by its table of
 * kernels, or on a GPU, by a table whose kernels put launches on the op's stream (cuda_lane.h).
 *
 * The arrays that describe the work are host memory, may change as soon as the call returns, and
 * mean the same to both: struct aq_norm and the like, arrays of sequences with their tables of
 * blocks and lengths, of moves and selections, ids, positions and row_index.  What is worked on is
 * memory of the lane's side: rows, weights, K and V, scores, positions, victims, and the lists of
 * slots that kernels write (keep, list, and count where count_step is 1). */
#ifndef AQ_ENGINE_COMPUTE_COMPUTE_H
#define AQ_ENGINE_COMPUTE_COMPUTE_H

#include "kernels/kernels.h"

/* Kernels, and what they are to be called with. */
struct aq_compute {
    const struct aq_kernels *kernels;
    struct aq_exec *exec;
    bool on_codes; /* products of quantised weights are those on codes */
};

static inline void aq_compute_product(const struct aq_compute *c, const struct aq_product *p)
{
    aq_product_fn *product = c->on_codes && aq_dtype_is_quantised(p->w_dtype)
                                 ? c->kernels->product_codes
                             : p->x_dtype == AQ_F32 ? c->kernels->product_f32
                                                    : c->kernels->product_bf16;
    product(c->exec, p);
}

#endif
