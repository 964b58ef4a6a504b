/* SPDX-License-Identifier: Apache-2.0
 * engine/model/quantised/scheme.h - how a checkpoint's matrices were quantised, as its config.json
 * says it: read and checked once, refused by name where this engine has no decoder.  Knows no
 * tensor. */
#ifndef AQ_ENGINE_MODEL_QUANTISED_SCHEME_H
#define AQ_ENGINE_MODEL_QUANTISED_SCHEME_H

#include "base/err.h"
#include "base/types.h"

enum { AQ_QUANTISED_SCHEMES_MAX = 8 };

struct aq_quantised_format; /* engine/model/quantised/formats.h */
struct aq_config_keys;

/* Blocks of values share a scale (and a zero). */
struct aq_quantised_scheme {
    const struct aq_quantised_format *format;
    uint32_t bits; /* of a code */
    uint32_t
        block_rows;     /* of a block; 0: one scale for all rows, or one a row: the shape says it */
    uint32_t block_k;   /* columns of a block; 0: whole rows */
    bool zeros;         /* there are zeros; else it is the middle of the codes */
    bool zero_less_one; /* they are kept minus one */
    bool order;         /* a tensor says the group of each column */
};

/* A tensor has one of these schemes, or is kept as it is. */
struct aq_quantised_config {
    struct aq_quantised_scheme scheme[AQ_QUANTISED_SCHEMES_MAX];
    uint32_t count;   /* 0: not quantised */
    bool activations; /* it was made for rounded activations, keys or values as well */
};

/* 'quantization_config' of a config.json, where there is one.  -ENOEXEC with file, key, what was
 * expected and what was found. */
int aq_quantised_config_read(struct aq_quantised_config *ret, const struct aq_config_keys *keys);

#endif
