/* SPDX-License-Identifier: Apache-2.0
 * Elements of one byte and a scale for each block of them, of the whole matrix, or of each row:
 * e4m3 (Micikevicius et al., arXiv 2209.05433: no infinities, NaN is 0x7f and 0xff) as in
 * transformers' integrations/finegrained_fp8.py and fbgemm_fp8.py, e4m3 and i8 as in
 * compressed-tensors (0.20, compressors/naive_quantized).
 *   weight            e4m3 or i8 [rows][k]
 *   weight_scale_inv,            [rows / block_rows][k / block_k], both rounded up;
 *   weight_scale                 or one; or [rows], [rows][1]
 * A weight is element * scale, whichever of the names the scale has. */
#include "engine/model/quantised/check.h"
#include "engine/model/quantised/formats.h"

#include <math.h>
#include <stdlib.h>

/* Sign, exponent with bias 7, fraction of 3 bits; 0 is for numbers below the normal ones. */
static float e4m3(uint32_t code)
{
    uint32_t exponent = code >> 3 & 15, fraction = code & 7;
    float value =
        exponent ? ldexpf((float)(8 + fraction), (int)exponent - 10) : ldexpf((float)fraction, -9);
    if ((code & 127) == 127)
        value = NAN;
    return code & 128 ? -value : value;
}

/* Blocks of the rows and of the columns that have a scale of their own. */
struct grid {
    uint64_t rows, columns, block_rows, block_k;
};

static struct grid grid_of(const struct aq_quantised *q)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_SCALES];
    struct grid g = {1, 1, q->rows, q->k};
    if (q->scheme.block_k) {
        g.block_k = q->scheme.block_k;
        g.columns = aq_div_up(q->k, g.block_k);
    }
    if (q->scheme.block_rows || t->elements != 1) {
        g.block_rows = aq_max_u64(1, q->scheme.block_rows);
        g.rows = aq_div_up(q->rows, g.block_rows);
    }
    return g;
}

static int check(const struct aq_quantised *q, enum aq_dtype dtype, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_CODES],
                                *scales = q->part[AQ_QUANTISED_SCALES];
    struct grid g = grid_of(q);
    if (t->dtype != dtype || t->rank != 2 || t->shape[0] != q->rows || t->shape[1] != q->k)
        return aq_quantised_wrong_shape(t, reterr, "%s [%u, %u] by config.json",
                                        aq_dtype_name(dtype), q->rows, q->k);
    bool fits = aq_dtype_is_float(scales->dtype) && scales->elements == g.rows * g.columns;
    if (g.columns > 1 || scales->rank > 1) /* one a row may be [rows] or [rows, 1] */
        fits &= scales->rank == 2 && scales->shape[0] == g.rows && scales->shape[1] == g.columns;
    if (fits)
        return 0;
    return aq_quantised_wrong_shape(scales, reterr, "f32, bf16 or f16 [%llu, %llu]%s",
                                    (unsigned long long)g.rows, (unsigned long long)g.columns,
                                    q->scheme.block_rows || q->scheme.block_k ? "" : " or one");
}

/* The scales of rows [first, first + rows), as f32 [blocks of rows][columns]. */
static int read_scales(const struct aq_quantised *q, const struct grid *g, uint64_t first,
                       uint64_t count, float *scale, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_SCALES];
    char *raw = malloc(count * g->columns * aq_dtype_bytes(t->dtype));
    int rc = raw ? aq_checkpoint_read(q->checkpoint, t, first, count, raw, reterr)
                 : aq_error_memory(reterr, "scales of tensor '%s'", t->name);
    if (rc == 0) {
        aq_convert(scale, AQ_F32, raw, t->dtype, count * g->columns);
        rc = aq_quantised_check_scales(t, scale, count * g->columns, reterr);
    }
    free(raw);
    return rc;
}

static void decode(const struct aq_quantised *q, const struct grid *g, const float *value,
                   const uint8_t *codes, const float *scale, float *dst)
{
    for (uint64_t n = 0; n < g->columns; n++) {
        uint64_t end = aq_min_u64(q->k, (n + 1) * g->block_k);
        for (uint64_t k = n * g->block_k; k < end; k++)
            dst[k] = value[codes[k]] * scale[n];
    }
}

/* Without a branch, so that it is one wide loop. */
static bool has_nan(const uint8_t *codes, size_t count)
{
    unsigned found = 0;
    for (size_t i = 0; i < count; i++)
        found |= (codes[i] & 127u) == 127u;
    return found;
}

static int read(const struct aq_quantised *q, const float *value, uint32_t first, uint32_t rows,
                float *dst, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_CODES];
    struct grid g = grid_of(q);
    uint64_t block = first / g.block_rows, blocks = (first + rows - 1) / g.block_rows - block + 1;
    float *scale = malloc(blocks * g.columns * sizeof(*scale));
    uint8_t *codes = malloc((size_t)rows * q->k);
    int rc = scale && codes ? aq_checkpoint_read(q->checkpoint, t, first, rows, codes, reterr)
                            : aq_error_memory(reterr, "%u rows of tensor '%s'", rows, t->name);
    if (rc == 0)
        rc = read_scales(q, &g, block, blocks, scale, reterr);
    if (rc == 0 && t->dtype == AQ_F8_E4M3 && has_nan(codes, (size_t)rows * q->k))
        rc = aq_error(reterr, -ENOEXEC, "tensor '%s': expected numbers, found NaN in rows %u to %u",
                      t->name, first, first + rows - 1);
    for (uint32_t row = 0; rc == 0 && row < rows; row++)
        decode(q, &g, value, codes + (size_t)row * q->k,
               scale + ((first + row) / g.block_rows - block) * g.columns,
               dst + (size_t)row * q->k);
    free(scale);
    free(codes);
    return rc;
}

static int check_fp8(const struct aq_quantised *q, struct aq_err *reterr)
{
    return check(q, AQ_F8_E4M3, reterr);
}

static int read_fp8(const struct aq_quantised *q, uint32_t first, uint32_t rows, float *dst,
                    struct aq_err *reterr)
{
    float value[256];
    for (uint32_t i = 0; i < 256; i++)
        value[i] = e4m3(i);
    return read(q, value, first, rows, dst, reterr);
}

static int check_int8(const struct aq_quantised *q, struct aq_err *reterr)
{
    return check(q, AQ_I8, reterr);
}

static int read_int8(const struct aq_quantised *q, uint32_t first, uint32_t rows, float *dst,
                     struct aq_err *reterr)
{
    float value[256];
    for (int i = 0; i < 256; i++)
        value[i] = (float)(i < 128 ? i : i - 256);
    return read(q, value, first, rows, dst, reterr);
}

const struct aq_quantised_format aq_quantised_fp8 = {
    .name = "fp8",
    .bytes = "e4m3",
    .part = {[AQ_QUANTISED_CODES] = {.ending = ".weight"},
             [AQ_QUANTISED_SCALES] = {.ending = ".weight_scale_inv", .other = ".weight_scale"}},
    .check = check_fp8,
    .read = read_fp8,
};

const struct aq_quantised_format aq_quantised_int8 = {
    .name = "int-quantized",
    .bytes = "i8",
    .part = {[AQ_QUANTISED_CODES] = {.ending = ".weight"},
             [AQ_QUANTISED_SCALES] = {.ending = ".weight_scale"}},
    .check = check_int8,
    .read = read_int8,
};
