/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/safetensors.h - the header of a .safetensors file, as a list of tensors.
 * Format: huggingface/safetensors README, "Format": u64 little-endian header length, a JSON object
 * {name: {dtype, shape, data_offsets}}, then the data, covered by the tensors without gap or
 * overlap. Nothing in the file is taken on faith; only the header is read. */
#ifndef AQ_ENGINE_CHECKPOINT_SAFETENSORS_H
#define AQ_ENGINE_CHECKPOINT_SAFETENSORS_H

#include "engine/checkpoint/tensor_file.h"

enum {
    AQ_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000, /* bytes; the reference reader's limit */
    AQ_SAFETENSORS_VALUES_MAX = 1 << 20,           /* JSON values, so that memory stays bounded */
};

/* Appends the file's tensors to the list with this file index, and hashes the header (xxh3-64).  On
 * failure the list is as before. */
int aq_safetensors_list(struct aq_tensor_list *list, const struct aq_tensor_file *file,
                        uint32_t file_index, uint64_t *ret_header_hash, struct aq_err *reterr);

#endif
