/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/attn_group.cuh - what attn_decode.cu leaves to tensor cores (attn_group.cu). */
#ifndef AQ_KERNELS_CUDA_ATTN_GROUP_CUH
#define AQ_KERNELS_CUDA_ATTN_GROUP_CUH

#include "kernels/cuda/attn_decode.cuh"
#include "kernels/cuda/attn_tile.cuh"

enum { AQ_CU_GROUP_QUERIES = 16 };

/* Shared memory of a block of threads. */
size_t aq_cuda_group_bytes(const struct aq_cu_decode *p, bool fused);
/* A grid of (batches of AQ_CU_GROUP_QUERIES, KV heads, sequences), where it is not fused with
 * p->splits times as many batches. */
int aq_cuda_group_launch(const struct aq_cuda_exec *ex, const struct aq_cu_decode &p, bool fused,
                         dim3 grid);

#endif
