/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda_module.h - the one thing that the module with the CUDA code exports: a table
 * of the runtime, of launchers and of products.  Program and module are built together; the version
 * says so. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_MODULE_H
#define AQ_ENGINE_COMPUTE_CUDA_MODULE_H

#include "kernels/cuda/dense.h"
#include "kernels/cuda/launch.h"
#include "offload/gpu.h"

enum { AQ_CUDA_MODULE_VERSION = 8 };
#define AQ_CUDA_MODULE_SYMBOL "aq_cuda_module"

struct aq_cuda_kernels {
    const uint32_t *made_for; /* aq_cuda_made_for */
    __typeof__(aq_cuda_blas_open) *blas_open;
    __typeof__(aq_cuda_blas_close) *blas_close;
    __typeof__(aq_cuda_dense_try) *dense_try;
    __typeof__(aq_cuda_dense_trust) *dense_trust;
    __typeof__(aq_cuda_error_text) *error_text;
    __typeof__(aq_cuda_copy_pieces) *copy_pieces;
    __typeof__(aq_cuda_attn_decode_workspace) *attn_decode_workspace;
#define AQ_CUDA_MEMBER(name, params) __typeof__(aq_cuda_##name) *name;
    AQ_CUDA_KERNELS(AQ_CUDA_MEMBER)
#undef AQ_CUDA_MEMBER
};

/* The same by number, for lists of launches: a kernel's name in messages, and the bytes of the
 * struct that it takes. */
enum aq_cuda_kernel {
#define AQ_CUDA_NUMBER(name, params) AQ_CUDA_KERNEL_##name,
    AQ_CUDA_KERNELS(AQ_CUDA_NUMBER)
#undef AQ_CUDA_NUMBER
};
const char *aq_cuda_kernel_name(enum aq_cuda_kernel kernel);
size_t aq_cuda_kernel_bytes(enum aq_cuda_kernel kernel);
int aq_cuda_launch(const struct aq_cuda_kernels *k, const struct aq_cuda_exec *ex,
                   enum aq_cuda_kernel kernel, const void *params);

struct aq_cuda_module {
    uint32_t version, bytes; /* of this struct */
    const char *build;       /* the version of the sources that it was built from */
    const struct aq_gpu_ops *gpu;
    const struct aq_cuda_kernels *kernels;
};

extern const struct aq_cuda_module aq_cuda_module;

#endif
