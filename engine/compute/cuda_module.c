/* SPDX-License-Identifier: Apache-2.0
 * The table that the module exports. */
#include "engine/compute/cuda_module.h"

#include "config.h"
#include "offload/gpu_cuda.h"

static const struct aq_cuda_kernels kernels = {
    .blas_open = aq_cuda_blas_open,
    .blas_close = aq_cuda_blas_close,
    .dense = aq_cuda_dense,
    .error_text = aq_cuda_error_text,
    .norm = aq_cuda_norm,
    .embed = aq_cuda_embed,
    .add_rows = aq_cuda_add_rows,
    .finish = aq_cuda_finish,
    .unpack = aq_cuda_unpack,
    .product_codes = aq_cuda_product_codes,
    .logits_stat = aq_cuda_logits_stat,
    .penalise = aq_cuda_penalise,
    .sample = aq_cuda_sample,
    .tops = aq_cuda_tops,
    .kv_append = aq_cuda_kv_append,
    .kv_victim = aq_cuda_kv_victim,
    .kv_select = aq_cuda_kv_select,
    .kv_move = aq_cuda_kv_move,
    .kv_note = aq_cuda_kv_note,
    .copy_pieces = aq_cuda_copy_pieces,
    .attn_decode_workspace = aq_cuda_attn_decode_workspace,
    .attn_decode = aq_cuda_attn_decode,
    .attn_prefill = aq_cuda_attn_prefill,
    .attn_prefill_plain = aq_cuda_attn_prefill_plain,
    .attn_stats = aq_cuda_attn_stats,
};

const struct aq_cuda_module aq_cuda_module = {
    .version = AQ_CUDA_MODULE_VERSION,
    .bytes = sizeof(struct aq_cuda_module),
    .build = AQ_VERSION,
    .gpu = &aq_gpu_cuda,
    .kernels = &kernels,
};
