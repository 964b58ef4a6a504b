/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/attn_decode_tile.cuh - what attn_decode.cu leaves to tensor cores
 * (attn_decode_tile.cu). */
#ifndef AQ_KERNELS_CUDA_ATTN_DECODE_TILE_CUH
#define AQ_KERNELS_CUDA_ATTN_DECODE_TILE_CUH

#include "kernels/cuda/attn_decode.cuh"
#include "kernels/cuda/attn_tile.cuh"

enum { AQ_CU_DECODE_QUERIES = 16 };

/* Shared memory of a block of threads. */
size_t aq_cuda_decode_tile_bytes(const struct aq_cu_decode *p, bool fused);
/* A grid of (batches of AQ_CU_DECODE_QUERIES, KV heads, sequences), where it is not fused with
 * p->splits times as many batches. */
int aq_cuda_decode_tile_launch(const struct aq_cuda_exec *ex, const struct aq_cu_decode &p,
                               bool fused, dim3 grid);

#endif
