/* SPDX-License-Identifier: Apache-2.0
 * tests/checkpoint_files.h - builds small checkpoint files for tests, honest and lying ones: byte
 * buffers, pickles as torch.save writes them, zip archives written byte by byte so that every field
 * can be wrong, and safetensors.  Test code: out of memory ends the test. */
#ifndef AQ_TESTS_CHECKPOINT_FILES_H
#define AQ_TESTS_CHECKPOINT_FILES_H

#include "engine/checkpoint/tensor_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A growing buffer. */
struct bytes {
    uint8_t *data;
    size_t count, capacity;
};
void bytes_add(struct bytes *b, const void *data, size_t count);
void bytes_text(struct bytes *b, const char *text);
void bytes_u8(struct bytes *b, unsigned value);
void bytes_le(struct bytes *b, uint64_t value, unsigned count);
void bytes_free(struct bytes *b);

/* Pickle pieces, protocol 2. */
void pickle_begin(struct bytes *b);
void pickle_end(struct bytes *b);
void pickle_string(struct bytes *b, const char *text);
void pickle_int(struct bytes *b, int64_t value);
void pickle_global(struct bytes *b, const char *module, const char *name);

struct pickle_tensor {
    const char *storage; /* "FloatStorage" */
    const char *key;
    uint64_t numel, offset;
    uint32_t rank;
    int64_t shape[9], stride[9];
};
/* Pushes _rebuild_tensor_v2 over a storage. */
void pickle_tensor(struct bytes *b, const struct pickle_tensor *t);

/* One file of a zip archive, and how to lie about it. */
struct zip_part {
    const char *name;
    const void *data;
    uint64_t bytes;
    bool sparse;            /* leave a hole of `bytes` instead of data */
    bool zip64;             /* sizes and offset in the zip64 extra field */
    unsigned method;        /* 0: stored */
    unsigned flags;         /* or'ed into both headers */
    const char *local_name; /* NULL: the same */
    uint64_t claim_bytes;   /* in the directory; 0: the truth */
    uint64_t claim_offset;  /* of the local header; 0: the truth */
};
struct zip_lie {
    uint64_t entries; /* in the zip64 end record; 0: the truth */
    uint64_t cut;     /* drop this many bytes from the end */
    bool no_zip64;    /* leave the zip64 end records out */
};
/* Writes the archive as torch does: stored, local headers without sizes (flag 0x0808), data on
 * multiples of 64, zip64 end records.  False when the file system refuses (sparse files). */
bool zip_write(int fd, const struct zip_part *parts, size_t count, const struct zip_lie *lie);

/* data.pkl, version and one entry per storage. */
struct torch_storage {
    const char *key;
    const void *data;
    uint64_t bytes;
};
bool torch_zip_write(int fd, const struct bytes *pickle, const struct torch_storage *storages,
                     size_t count);

/* A safetensors file: header text as it is, then data. */
void safetensors_write(int fd, const char *header, const void *data, size_t bytes);

/* A temporary file without a name, deleted with its last descriptor. */
int temporary_file(void);
/* fd as a tensor file of its present size. */
struct aq_tensor_file tensor_file_of(int fd, const char *name);
/* Whole contents of a tensor, malloc'd. */
void *tensor_contents(const struct aq_tensor_file *file, const struct aq_tensor_info *t);

#endif
