/* SPDX-License-Identifier: Apache-2.0
 * policy/gpu_sizes.h - sizes of what computing on a GPU needs beside the buffers of a program, so
 * that the ledger and the engine count the same.  Pure. */
#ifndef AQ_POLICY_GPU_SIZES_H
#define AQ_POLICY_GPU_SIZES_H

#include "policy/plan.h"
#include "policy/steps.h"

/* Desks of pinned memory for ops of the compute lane that are on their way; so many are one
 * bundle's, which is sent as a whole.  On the device there is room for one bundle. */
enum { AQ_GPU_DESKS = 16, AQ_GPU_BUNDLE_DESKS = 4 };
/* At most what a sequence, and a move with its two tables, take on a desk beside the tables. */
enum { AQ_GPU_SEQ_BYTES = 192, AQ_GPU_MOVE_BYTES = 320 };
/* Likewise of a row that a token is chosen for, beside the ids that penalties and masks look at. */
enum { AQ_GPU_ROW_BYTES = 384 };

struct aq_gpu_sizes {
    uint64_t desk_bytes;     /* of one desk: arrays that describe an op's work */
    uint64_t sums_bytes;     /* products before bias and activation */
    uint64_t unpacked_bytes; /* weights in the compute type, of some rows */
    /* A copy of the seats' tables of pages, where KV lives on the device (struct
     * aq_kv_table_layout); else 0. */
    uint64_t tables_bytes;
    uint64_t workspace_bytes;
    uint64_t biases_bytes; /* in 16 bits, of products with an activation */
    uint64_t chosen_bytes; /* the token that each seat has chosen last */
    /* Of a tile of the head: statistics, on the device twice, before penalties and after; logits
     * that somebody on the host looks at. */
    uint64_t stats_bytes, logits_bytes;
    uint64_t graphs_bytes; /* what the driver may take for graphs: then no more are made */
};

/* context_bytes: what the driver took at the start (see below). */
void aq_gpu_sizes_count(struct aq_gpu_sizes *r, const struct aq_model_steps *m,
                        const struct aq_plan *p, uint64_t context_bytes);
/* Is vector i of a step the bias of a product that is written in 16 bits with an activation that
 * the library has, so
 * that there is a copy of it in those; and what a copy of so many numbers takes. */
bool aq_gpu_sizes_is_copied(const struct aq_step_desc *d, uint32_t i, enum aq_dtype compute);
uint64_t aq_gpu_sizes_copy(uint32_t count);
/* Device memory, under the purpose "gpu work" (graphs_bytes beside it, under "gpu graphs"); and
 * pinned host memory, under "gpu desks". */
uint64_t aq_gpu_sizes_device(const struct aq_gpu_sizes *r);
uint64_t aq_gpu_sizes_host(const struct aq_gpu_sizes *r);
/* Device memory that the driver takes for itself while the engine runs, under "gpu driver": page
 * tables of pinned memory, of which there is at most so much, and kernels that are loaded when they
 * are launched first.  context_bytes: what it took at the start. */
uint64_t aq_gpu_driver_bytes(uint64_t pinned_bytes, uint64_t context_bytes);

#endif
