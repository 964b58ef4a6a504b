/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/torchzip_archive.h - the zip archive inside a torch.save file: <root>/data.pkl
 * and the stored entries <root>/data/<key>, each found as a byte range of the file.  libzip reads
 * the central directory; the local headers are checked here.  Only torchzip.c includes it. */
#ifndef AQ_ENGINE_CHECKPOINT_TORCHZIP_ARCHIVE_H
#define AQ_ENGINE_CHECKPOINT_TORCHZIP_ARCHIVE_H

#include "engine/checkpoint/tensor_file.h"

struct aq_torchzip_archive;

struct aq_torchzip_entry {
    uint64_t offset, bytes; /* of the data, uncompressed, in the file */
    uint32_t crc;
};

/* `file` must outlive the archive.  Finds the root and checks the byte order. */
int aq_torchzip_archive_open(struct aq_torchzip_archive **ret, const struct aq_tensor_file *file,
                             struct aq_err *reterr);
void aq_torchzip_archive_close(struct aq_torchzip_archive *a);

/* The bytes of data.pkl, malloc'd. */
int aq_torchzip_archive_pickle(struct aq_torchzip_archive *a, uint8_t **ret, size_t *ret_bytes,
                               struct aq_err *reterr);

/* Where the storage with this key lies.  -ENOEXEC when it is missing, compressed or not inside the
 * file. */
int aq_torchzip_archive_storage(struct aq_torchzip_archive *a, const char *key, size_t key_bytes,
                                struct aq_torchzip_entry *ret, struct aq_err *reterr);

#endif
