/* SPDX-License-Identifier: Apache-2.0
 * engine/model/quantised/quantised.h - matrices that a checkpoint keeps as codes and scales: found
 * by their tensors, checked against config.json, and decoded to rows of f32, a few at a time.  Used
 * by engine/model/source.c.  Knows no architecture. */
#ifndef AQ_ENGINE_MODEL_QUANTISED_QUANTISED_H
#define AQ_ENGINE_MODEL_QUANTISED_QUANTISED_H

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/quantised/columns.h"
#include "engine/model/quantised/scheme.h"

enum aq_quantised_part {
    AQ_QUANTISED_CODES,
    AQ_QUANTISED_SCALES,
    AQ_QUANTISED_ZEROS,
    AQ_QUANTISED_ORDER, /* the group of each column */
    AQ_QUANTISED_SHAPE, /* rows and columns, as a tensor */
    AQ_QUANTISED_PARTS
};

struct aq_quantised {
    const struct aq_checkpoint *checkpoint;
    struct aq_columns *columns;
    struct aq_quantised_scheme scheme;
    const struct aq_tensor_info *part[AQ_QUANTISED_PARTS]; /* NULL: it has none */
    uint32_t rows, k;
};

/* The matrix [rows][k] that a checkpoint calls `name`: 1 when it is there as codes, 0 when it is
 * not.  -ENOEXEC names the tensor. */
int aq_quantised_find(struct aq_quantised *ret, const struct aq_quantised_config *config,
                      const struct aq_checkpoint *checkpoint, const char *name, uint32_t rows,
                      uint32_t k, struct aq_err *reterr);
/* Rows [first, first + rows) as f32 [rows][k]; any number of threads may read.  -ENOEXEC where
 * scales or codes are no numbers. */
int aq_quantised_read(const struct aq_quantised *q, uint32_t first, uint32_t rows, float *dst,
                      struct aq_err *reterr);

/* Memory that it takes to read `once` rows of the matrix in each of these threads. */
uint64_t aq_quantised_memory(const struct aq_quantised *q, uint32_t once, uint32_t threads);
/* Bytes of codes, scales and zeros in the files. */
uint64_t aq_quantised_bytes(const struct aq_quantised *q);
/* "fp8"; and what a matrix of it is, in words: "fp8 (e4m3, a scale for 128 x 128)".  Returns text.
 */
const char *aq_quantised_name(const struct aq_quantised *q);
const char *aq_quantised_words(const struct aq_quantised *q, char *text, size_t bytes);

/* Some form's tensor for the codes of the matrix `name`, whatever config.json says; NULL. */
const struct aq_tensor_info *aq_quantised_stray(const struct aq_checkpoint *checkpoint,
                                                const char *name);
/* Is this a tensor that the writers of these forms leave beside the weights, and that means nothing
 * where activations, keys and values are not rounded as they would be there?  -ENOMEM, -EIO. */
int aq_quantised_is_idle(const struct aq_quantised_config *config,
                         const struct aq_checkpoint *checkpoint, const struct aq_tensor_info *t,
                         struct aq_err *reterr);

#endif
