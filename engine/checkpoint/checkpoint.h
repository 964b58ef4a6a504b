/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/checkpoint.h - a Hugging Face checkpoint directory as one list of tensors.
 * Owns the choice of files (safetensors before .bin, one file or shards with an index), their open
 * descriptors, and the complaint that names everything missing or broken at once.  Reads tensors by
 * rows; any number of threads may read.  Knows no architecture: names are as the files spell them.
 */
#ifndef AQ_ENGINE_CHECKPOINT_CHECKPOINT_H
#define AQ_ENGINE_CHECKPOINT_CHECKPOINT_H

#include "engine/checkpoint/tensor_file.h"

enum { AQ_CHECKPOINT_SHARDS_MAX = 4096 };

struct aq_checkpoint;

/* Weight files are looked for in this order: model.safetensors, model.safetensors.index.json,
 * pytorch_model.bin, pytorch_model.bin.index.json.  Every header is read and checked, no tensor.
 * -ENOENT when there is no weight file, or all that is wrong is missing files; -ENOEXEC otherwise.
 */
int aq_checkpoint_open(struct aq_checkpoint **ret, const char *dir, struct aq_err *reterr);
void aq_checkpoint_close(struct aq_checkpoint *c);

/* "safetensors" or "pytorch". */
const char *aq_checkpoint_format(const struct aq_checkpoint *c);

/* Tensors in the order of their names. */
size_t aq_checkpoint_count(const struct aq_checkpoint *c);
const struct aq_tensor_info *aq_checkpoint_tensor(const struct aq_checkpoint *c, size_t index);
/* NULL when there is none. */
const struct aq_tensor_info *aq_checkpoint_find(const struct aq_checkpoint *c, const char *name);
/* The file that holds a tensor, for messages: its name within the directory. */
const char *aq_checkpoint_file(const struct aq_checkpoint *c, const struct aq_tensor_info *t);

/* Rows [first_row, first_row + rows) of the tensor seen as [shape[0]][rest], into dst, contiguous
 * and in the tensor's own type. */
int aq_checkpoint_read(const struct aq_checkpoint *c, const struct aq_tensor_info *t,
                       uint64_t first_row, uint64_t rows, void *dst, struct aq_err *reterr);

/* Identity for resume manifests and caches, cheap: xxh3-64 over config.json and, for each weight
 * file in the order of names, its name, size, header or pickle, and 16 samples of 4 KiB of its
 * data, so that two trainings of one shape differ. */
uint64_t aq_checkpoint_hash(const struct aq_checkpoint *c);
/* Bytes of all tensors laid out contiguously, shared storages counted each time. */
uint64_t aq_checkpoint_bytes(const struct aq_checkpoint *c);

/* Turns what the user named into a path: an existing path as it is; else "org/name" (or "name") in
 * the local Hugging Face cache ($HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub,
 * ~/.cache/huggingface/hub), the snapshot that refs/main names.  -ENOENT says how to download it.
 */
int aq_checkpoint_resolve(const char *model, char *path, size_t path_bytes, struct aq_err *reterr);

#endif
