/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/tensor_file.h - tensors as checkpoint files hold them: what a reader says of
 * one tensor, the list it fills, and the one way in which values are read.  Owns the bounds: an
 * entry is only accepted when every element it can address lies within its file, so that reading
 * never checks again. Knows no file format: safetensors.c and torchzip.c fill the list. */
#ifndef AQ_ENGINE_CHECKPOINT_TENSOR_FILE_H
#define AQ_ENGINE_CHECKPOINT_TENSOR_FILE_H

#include "base/err.h"
#include "base/types.h"

enum {
    AQ_TENSOR_RANK_MAX = 8,
    AQ_TENSOR_NAME_MAX = 1024, /* bytes, the NUL included */
    AQ_TENSOR_COUNT_MAX = 1 << 18,
};

/* An open regular file; `name` is for messages. */
struct aq_tensor_file {
    int fd;
    uint64_t bytes;
    const char *name;
};

/* An element type as files name it.  Those with dtype AQ_DTYPE_COUNT are listed and never read. */
struct aq_element {
    const char *name; /* as safetensors spells it: "BF16", "F8_E4M3" */
    enum aq_dtype dtype;
    uint32_t bits;
};

/* NULL when the name is not known. */
const struct aq_element *aq_element_find(const char *name);

struct aq_tensor_info {
    const char *name;
    const struct aq_element *element;
    enum aq_dtype dtype; /* the element's; AQ_DTYPE_COUNT: listed, but cannot be read */
    uint32_t rank, file; /* file: index into the checkpoint's files */
    uint64_t shape[AQ_TENSOR_RANK_MAX];
    uint64_t stride[AQ_TENSOR_RANK_MAX]; /* in elements; 0 repeats */
    uint64_t elements;                   /* product of the shape; 1 for a scalar */
    uint64_t bytes;                      /* laid out contiguously */
    uint64_t offset;                     /* of the first element in its file */
    bool contiguous; /* row-major without gaps: one run of `bytes` in the file */
};

/* Owns its names. */
struct aq_tensor_list {
    struct aq_tensor_info *tensor;
    size_t count, capacity;
};

/* Where a tensor's elements lie before they are checked. */
struct aq_tensor_place {
    uint64_t region_offset, region_bytes; /* the part of the file that holds its storage */
    uint64_t first_element;               /* within the region */
};

/* Checks `info` (name, element, rank, file, shape, stride are given) against the region and the
 * file, fills in the rest and appends a copy with its own name.  -ENOEXEC names the tensor. */
int aq_tensor_list_add(struct aq_tensor_list *list, const struct aq_tensor_info *info,
                       const struct aq_tensor_place *place, const struct aq_tensor_file *file,
                       struct aq_err *reterr);
/* Sorts by name from index `first` on; -ENOEXEC when two tensors there have one name. */
int aq_tensor_list_sort(struct aq_tensor_list *list, size_t first, struct aq_err *reterr);
/* In a list sorted from index 0. */
const struct aq_tensor_info *aq_tensor_list_find(const struct aq_tensor_list *list,
                                                 const char *name);
/* Frees the names and the array. */
void aq_tensor_list_clear(struct aq_tensor_list *list);
/* Drops the entries for which keep() is false. */
void aq_tensor_list_keep(struct aq_tensor_list *list,
                         bool (*keep)(const struct aq_tensor_info *t, void *user), void *user);
/* Drops the entries from index `count` on. */
void aq_tensor_list_truncate(struct aq_tensor_list *list, size_t count);

/* "bf16 [96, 48]", for messages.  Returns text. */
const char *aq_tensor_text(const struct aq_tensor_info *t, char *text, size_t bytes);

/* Row-major strides of a shape whose product fits 64 bits. */
void aq_tensor_default_strides(struct aq_tensor_info *info);

/* The tensor as a matrix [rows][elements per row]: rows = shape[0], or 1 for a scalar.  Bytes of a
 * row mean something for types that can be read. */
uint64_t aq_tensor_rows(const struct aq_tensor_info *t);
uint64_t aq_tensor_row_bytes(const struct aq_tensor_info *t);

/* Reads rows [first_row, first_row + rows) into dst, contiguous, in the file's own element type.
 * Contiguous tensors are read straight into dst; others through a bounded buffer.  Only pread: many
 * threads may read one file.  -ENOEXEC for an element type that cannot be read, -EIO or -errno with
 * file and position when reading fails. */
int aq_tensor_read(const struct aq_tensor_file *file, const struct aq_tensor_info *t,
                   uint64_t first_row, uint64_t rows, void *dst, struct aq_err *reterr);

/* Reads exactly `bytes` at `offset`. */
int aq_tensor_file_pread(const struct aq_tensor_file *file, void *dst, size_t bytes,
                         uint64_t offset, struct aq_err *reterr);

#endif
