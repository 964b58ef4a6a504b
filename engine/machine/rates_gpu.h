/* SPDX-License-Identifier: Apache-2.0
 * engine/machine/rates_gpu.h - what a GPU computes, measured through the module as a run computes
 * on it: copies inside its memory, products by cuBLASLt at shapes of models, attention over pages,
 * and what an op costs that does nothing.  Times are the GPU's own (events).  Sizes rise until a
 * measurement would take too long, so that a slow device is measured in about the same time.  Links
 * are those of engine/machine/rates_parts.h. */
#ifndef AQ_ENGINE_MACHINE_RATES_GPU_H
#define AQ_ENGINE_MACHINE_RATES_GPU_H

#include "engine/compute/cuda.h"
#include "engine/machine/rates_parts.h"

/* Rows of the products that are measured: up to a whole tile. */
enum { AQ_RATES_GPU_ROWS = 5, AQ_RATES_GPU_ROWS_MAX = 512 };
extern const uint32_t aq_rates_gpu_rows[AQ_RATES_GPU_ROWS];

/* Decode attention over KV in f16: bytes of it read per second, and of what. */
struct aq_rates_gpu_decode {
    struct aq_sample bytes;
    uint32_t sequences, keys;
};

struct aq_rates_gpu {
    struct aq_sample memory; /* bytes per second of a copy inside, read and written */
    /* Flops per second by compute type (f32, f16, bf16; median 0 where the GPU has no such
     * products) and rows. */
    struct aq_sample product[AQ_DTYPE_COUNT][AQ_RATES_GPU_ROWS];
    struct aq_sample product_bytes; /* f16 weights through a product of one row */
    /* With heads of AQ_HW_HEAD (0) and AQ_HW_HEAD_WIDE (1): one query head for each (0), then
     * groups of aq_hw_groups[]. */
    struct aq_rates_gpu_decode decode[2][1 + AQ_HW_GROUPS];
    struct aq_sample scored;    /* as the first of them, keeping scores */
    struct aq_sample prefill;   /* flops over KV in f16 */
    struct aq_sample unpack[2]; /* int8 and int4, packed bytes, to f16 */
    struct aq_sample launch_s;  /* of a kernel behind others */
    struct aq_sample op_s;      /* of an op of the compute lane behind others */
    uint32_t k, n;              /* of the products' matrix */
    uint32_t prefill_rows;
};

/* Takes at most `bytes` of the GPU's memory, and an eighth of what is free, for each of two
 * buffers, and less than 80 MiB beside them; -ENOMEM where that is too little. */
int aq_rates_gpu(struct aq_rates_gpu *ret, struct aq_rates_rig *r, const struct aq_cuda *cuda,
                 size_t bytes, struct aq_err *reterr);

#endif
