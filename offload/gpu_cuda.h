/* SPDX-License-Identifier: Apache-2.0
 * offload/gpu_cuda.h - a GPU by the CUDA runtime (offload/gpu_cuda.c): in the module alone, so that
 * the program itself neither links nor loads any of it. */
#ifndef AQ_OFFLOAD_GPU_CUDA_H
#define AQ_OFFLOAD_GPU_CUDA_H

#include "offload/gpu.h"

extern const struct aq_gpu_ops aq_gpu_cuda;

#endif
