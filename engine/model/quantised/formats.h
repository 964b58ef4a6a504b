/* SPDX-License-Identifier: Apache-2.0
 * engine/model/quantised/formats.h - the forms in which quantised checkpoints keep a matrix: a row
 * of a table each, with the tensors that it has and the decoder into rows of f32.  Private to
 * engine/model/quantised: nobody else knows a form by name. */
#ifndef AQ_ENGINE_MODEL_QUANTISED_FORMATS_H
#define AQ_ENGINE_MODEL_QUANTISED_FORMATS_H

#include "engine/model/quantised/quantised.h"

/* A matrix NAME.weight is kept as NAME followed by one of these. */
struct aq_quantised_part_name {
    const char *ending, *other; /* other: another spelling; NULL */
    bool optional;
};

struct aq_quantised_format {
    const char *name;  /* for people and stores */
    const char *bytes; /* what codes of one byte are, for people; NULL: of `bits` bits */
    struct aq_quantised_part_name part[AQ_QUANTISED_PARTS];
    bool columns;     /* its parts are read by columns */
    bool idle_biases; /* its writers add biases of zeros to matrices that have none */
    /* Are the parts that were found those of a matrix [rows][k] with this scheme?  -ENOEXEC. */
    int (*check)(const struct aq_quantised *q, struct aq_err *reterr);
    /* Rows [first, first + rows) as f32 [rows][k]. */
    int (*read)(const struct aq_quantised *q, uint32_t first, uint32_t rows, float *dst,
                struct aq_err *reterr);
};

/* Elements of one byte, and a scale for each block of them. */
extern const struct aq_quantised_format aq_quantised_fp8, aq_quantised_int8;
/* Codes of 4 bits in columns of 8 rows. */
extern const struct aq_quantised_format aq_quantised_awq;
/* Codes of 4 or 8 bits, words along the columns. */
extern const struct aq_quantised_format aq_quantised_gptq;
/* Codes of 4 or 8 bits, words along the rows. */
extern const struct aq_quantised_format aq_quantised_packed;

#endif
