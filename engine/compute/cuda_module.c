/* SPDX-License-Identifier: Apache-2.0
 * The table that the module exports. */
#include "engine/compute/cuda_module.h"

#include "config.h"
#include "offload/gpu_cuda.h"

static const struct aq_cuda_kernels kernels = {.made_for = aq_cuda_made_for,
                                               .blas_open = aq_cuda_blas_open,
                                               .blas_close = aq_cuda_blas_close,
                                               .dense_try = aq_cuda_dense_try,
                                               .dense_trust = aq_cuda_dense_trust,
                                               .error_text = aq_cuda_error_text,
                                               .copy_pieces = aq_cuda_copy_pieces,
                                               .attn_decode_workspace =
                                                   aq_cuda_attn_decode_workspace,
#define MEMBER(name, params) .name = aq_cuda_##name,
                                               AQ_CUDA_KERNELS(MEMBER)
#undef MEMBER
};

const struct aq_cuda_module aq_cuda_module = {
    .version = AQ_CUDA_MODULE_VERSION,
    .bytes = sizeof(struct aq_cuda_module),
    .build = AQ_VERSION,
    .gpu = &aq_gpu_cuda,
    .kernels = &kernels,
};
