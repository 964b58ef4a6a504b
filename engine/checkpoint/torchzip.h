/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/torchzip.h - the tensors of a file written by torch.save (.bin, .pt, .pth), as
 * a list. Two containers: the zip archive of PyTorch 1.6 and later (zip64 included; libzip reads
 * the central directory, the local headers are checked here, and tensors are read in place: the
 * archive stores, it does not compress), and the five pickles in a row of earlier versions.  Files
 * are untrusted; see engine/checkpoint/pickle.h for what a pickle may say. Nested dicts and lists
 * become dotted names: {"model": {"fc": [tensor]}} holds "model.fc.0". */
#ifndef AQ_ENGINE_CHECKPOINT_TORCHZIP_H
#define AQ_ENGINE_CHECKPOINT_TORCHZIP_H

#include "engine/checkpoint/tensor_file.h"

enum {
    AQ_TORCHZIP_ENTRIES_MAX = 1 << 20,     /* files in an archive */
    AQ_TORCHZIP_DIRECTORY_MAX = 256 << 20, /* bytes of its directory */
    AQ_TORCHZIP_DEPTH_MAX = 32,            /* dicts within dicts */
    AQ_TORCHZIP_VISITS_MAX = 1 << 22, /* values looked at when names are made: shared values count
                                         again each time */
};

/* Appends the file's tensors to the list with this file index, and hashes what describes them
 * (xxh3-64: the pickle and, in an archive, each used entry's name, size and CRC-32).  On failure
 * the list is as before. */
int aq_torchzip_list(struct aq_tensor_list *list, const struct aq_tensor_file *file,
                     uint32_t file_index, uint64_t *ret_header_hash, struct aq_err *reterr);

#endif
