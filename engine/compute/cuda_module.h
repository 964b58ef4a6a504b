/* SPDX-License-Identifier: Apache-2.0
 * engine/compute/cuda_module.h - the one thing that the module with the CUDA code exports: a table
 * of the runtime, of launchers and of products.  Program and module are built together; the version
 * says so. */
#ifndef AQ_ENGINE_COMPUTE_CUDA_MODULE_H
#define AQ_ENGINE_COMPUTE_CUDA_MODULE_H

#include "kernels/cuda/dense.h"
#include "kernels/cuda/launch.h"
#include "offload/gpu.h"

enum { AQ_CUDA_MODULE_VERSION = 3 };
#define AQ_CUDA_MODULE_SYMBOL "aq_cuda_module"

struct aq_cuda_kernels {
    __typeof__(aq_cuda_blas_open) *blas_open;
    __typeof__(aq_cuda_blas_close) *blas_close;
    __typeof__(aq_cuda_dense) *dense;
    __typeof__(aq_cuda_error_text) *error_text;
    __typeof__(aq_cuda_norm) *norm;
    __typeof__(aq_cuda_embed) *embed;
    __typeof__(aq_cuda_add_rows) *add_rows;
    __typeof__(aq_cuda_finish) *finish;
    __typeof__(aq_cuda_unpack) *unpack;
    __typeof__(aq_cuda_product_codes) *product_codes;
    __typeof__(aq_cuda_logits_stat) *logits_stat;
    __typeof__(aq_cuda_penalise) *penalise;
    __typeof__(aq_cuda_sample) *sample;
    __typeof__(aq_cuda_tops) *tops;
    __typeof__(aq_cuda_kv_append) *kv_append;
    __typeof__(aq_cuda_kv_victim) *kv_victim;
    __typeof__(aq_cuda_kv_select) *kv_select;
    __typeof__(aq_cuda_kv_move) *kv_move;
    __typeof__(aq_cuda_kv_note) *kv_note;
    __typeof__(aq_cuda_copy_pieces) *copy_pieces;
    __typeof__(aq_cuda_attn_decode_workspace) *attn_decode_workspace;
    __typeof__(aq_cuda_attn_decode) *attn_decode;
    __typeof__(aq_cuda_attn_prefill) *attn_prefill, *attn_prefill_plain;
    __typeof__(aq_cuda_attn_stats) *attn_stats;
};

struct aq_cuda_module {
    uint32_t version, bytes; /* of this struct */
    const char *build;       /* the version of the sources that it was built from */
    const struct aq_gpu_ops *gpu;
    const struct aq_cuda_kernels *kernels;
};

extern const struct aq_cuda_module aq_cuda_module;

#endif
