/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/codes.h - what products on codes work on: rows of x as signed codes, panels as their
 * unsigned ones, both in groups of 64 columns.  A code takes one byte, or two where the
 * instructions multiply 16-bit numbers.
 *
 *   x, a group   64 codes from -127 to 127, f32 scale, f32 scale * (sum of the codes)
 *   w, a group   codes [64 / n][64 rows][n], n = 4 bytes by their size, f32 scale [64], f32
 *                minimum [64]
 *
 * The last group of a row is filled up with zeros on both sides. */
#ifndef AQ_KERNELS_CPU_CODES_H
#define AQ_KERNELS_CPU_CODES_H

#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

enum {
    AQ_X_CODE_MAX = 127,
    AQ_CODES_ROWS = 512, /* rows that a product has as codes at a time, at most */
};

/* Groups whose largest magnitude is less than this count as zeros. */
#define AQ_X_CODES_LEAST 0x1p-100f

static inline size_t aq_codes_x_group(uint32_t code_bytes)
{
    return (size_t)AQ_GROUP_K * code_bytes + 2 * sizeof(float);
}

static inline size_t aq_codes_x_row(uint32_t code_bytes, uint32_t k)
{
    return aq_div_up(k, AQ_GROUP_K) * aq_codes_x_group(code_bytes);
}

static inline size_t aq_codes_w_group(uint32_t code_bytes)
{
    return AQ_PANEL_ROWS * (AQ_GROUP_K * (size_t)code_bytes + 2 * sizeof(float));
}

/* What a group of x becomes.  Each version does these operations in this order. */
struct aq_x_scale {
    float inverse; /* what a number times this, rounded to the nearest even, is its code */
    float scale;   /* NaN where a number is infinite or NaN: the codes are any then */
};

/* largest: the bits of the largest magnitude, which grow as it does. */
static inline struct aq_x_scale aq_x_scale_of(uint32_t largest)
{
    float amax;
    memcpy(&amax, &largest, sizeof(amax));
    if (!(amax < INFINITY))
        return (struct aq_x_scale){0, NAN};
    if (amax < AQ_X_CODES_LEAST)
        return (struct aq_x_scale){0, 0};
    return (struct aq_x_scale){AQ_X_CODE_MAX / amax, amax / AQ_X_CODE_MAX};
}

/* dst = the codes of rows of x, f32 or bf16, k of them a row. */
struct aq_codes_rows {
    void *dst;
    const struct aq_product *p;
    uint32_t first, rows;
};
typedef void aq_codes_rows_fn(const struct aq_codes_rows *c);

struct aq_gemm_ops;
/* The product, rows in parts of what the execution context has memory for. */
void aq_codes_run(struct aq_exec *ex, const struct aq_product *p, const struct aq_gemm_ops *ops,
                  aq_codes_rows_fn *rows);

#endif
