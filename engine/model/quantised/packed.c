/* SPDX-License-Identifier: Apache-2.0
 * The "pack-quantized" layout of compressed-tensors (0.20, compressors/pack_quantized); b is 4 or 8
 * bits.
 *   weight_packed      i32 [rows][k b / 32]     bits b i .. of word j are column 32 / b * j + i
 *   weight_scale           [rows][groups]
 *   weight_zero_point  i32 [rows b / 32][groups]  row 32 / b * j + i; symmetric ones have none
 *   weight_shape       i64 [2]                  rows, k
 *   weight_g_idx       i32 [k]                  the group of each column, of older versions
 * Codes and zeros are kept with 2^(b - 1) added.  A weight is (code - zero) * scale. */
#include "engine/model/quantised/groups.h"

#include <stdlib.h>

/* What the tensor says of the shape, which was known. */
static int check_shape(const struct aq_quantised *q, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_SHAPE];
    union {
        int64_t wide[2];
        int32_t narrow[2];
    } says;
    bool wide = t->dtype == AQ_I64;
    if ((!wide && t->dtype != AQ_I32) || t->rank != 1 || t->shape[0] != 2)
        return aq_quantised_wrong_shape(t, reterr, "i64 [2]");
    int rc = aq_checkpoint_read(q->checkpoint, t, 0, 2, &says, reterr);
    if (rc < 0)
        return rc;
    int64_t rows = wide ? says.wide[0] : says.narrow[0], k = wide ? says.wide[1] : says.narrow[1];
    if (rows == q->rows && k == q->k)
        return 0;
    return aq_error(reterr, -ENOEXEC,
                    "tensor '%s': expected [%u, %u] by config.json, found [%lld, %lld]", t->name,
                    q->rows, q->k, (long long)rows, (long long)k);
}

static int check_zeros(const struct aq_quantised *q, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_ZEROS];
    if (!t)
        return 0;
    return aq_quantised_check_words(t, aq_div_up((uint64_t)q->rows * q->scheme.bits, 32),
                                    aq_groups_count(q), reterr);
}

static int check(const struct aq_quantised *q, struct aq_err *reterr)
{
    const struct aq_tensor_info *scales = q->part[AQ_QUANTISED_SCALES],
                                *order = q->part[AQ_QUANTISED_ORDER];
    uint32_t groups = aq_groups_count(q);
    int rc = check_shape(q, reterr);
    if (rc == 0)
        rc = aq_groups_check_even(q, reterr);
    if (rc == 0)
        rc = aq_quantised_check_words(q->part[AQ_QUANTISED_CODES], q->rows,
                                      aq_div_up((uint64_t)q->k * q->scheme.bits, 32), reterr);
    if (rc == 0 && (!aq_dtype_is_float(scales->dtype) || scales->rank != 2 ||
                    scales->shape[0] != q->rows || scales->shape[1] != groups))
        rc = aq_quantised_wrong_shape(scales, reterr, "f16, bf16 or f32 [%u, %u]", q->rows, groups);
    if (rc == 0)
        rc = check_zeros(q, reterr);
    if (rc == 0 && order && (order->dtype != AQ_I32 || order->rank != 1 || order->shape[0] != q->k))
        rc = aq_quantised_wrong_shape(order, reterr, "i32 [%u]", q->k);
    return rc;
}

static int read_scales(struct aq_groups *g, const struct aq_quantised *q, uint32_t first,
                       struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_SCALES];
    size_t each = (size_t)g->rows * g->count;
    char *raw = malloc(each * aq_dtype_bytes(t->dtype));
    int rc = raw ? aq_checkpoint_read(q->checkpoint, t, first, g->rows, raw, reterr)
                 : aq_error_memory(reterr, "scales of tensor '%s'", t->name);
    if (rc == 0) {
        aq_convert(g->scale, AQ_F32, raw, t->dtype, each);
        rc = aq_quantised_check_scales(t, g->scale, each, reterr);
    }
    free(raw);
    return rc;
}

static int read_zeros(struct aq_groups *g, const struct aq_quantised *q, uint32_t first,
                      struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_ZEROS];
    uint32_t bits = q->scheme.bits, each = 32 / bits, mask = (1u << bits) - 1;
    uint32_t from = first / each, count = (first + g->rows - 1) / each - from + 1;
    for (size_t i = 0; !t && i < (size_t)g->rows * g->count; i++)
        g->zero[i] = (float)(1u << (bits - 1));
    if (!t)
        return 0;
    uint32_t *words = malloc((size_t)count * g->count * sizeof(*words));
    int rc = words ? aq_checkpoint_read(q->checkpoint, t, from, count, words, reterr)
                   : aq_error_memory(reterr, "zeros of tensor '%s'", t->name);
    for (uint32_t row = 0; rc == 0 && row < g->rows; row++) {
        uint32_t at = (first + row) / each - from, shift = (first + row) % each * bits;
        for (uint32_t n = 0; n < g->count; n++)
            g->zero[(size_t)row * g->count + n] =
                (float)(words[(size_t)at * g->count + n] >> shift & mask);
    }
    free(words);
    return rc;
}

static int read(const struct aq_quantised *q, uint32_t first, uint32_t rows, float *dst,
                struct aq_err *reterr)
{
    uint32_t words = (uint32_t)aq_div_up(q->k, 32 / q->scheme.bits);
    struct aq_groups g;
    int rc = aq_groups_open(&g, q, rows, (size_t)rows * words, reterr);
    if (rc < 0)
        return rc;
    rc = aq_checkpoint_read(q->checkpoint, q->part[AQ_QUANTISED_CODES], first, rows, g.words,
                            reterr);
    if (rc == 0)
        rc = read_scales(&g, q, first, reterr);
    if (rc == 0)
        rc = read_zeros(&g, q, first, reterr);
    for (uint32_t row = 0; rc == 0 && row < rows; row++) {
        const uint32_t *word = g.words + (size_t)row * words;
        float *to = dst + (size_t)row * q->k;
        if (q->scheme.bits == 4)
            AQ_GROUPS_DECODE(to, &g, row, k, word[k / 8] >> k % 8 * 4 & 15)
        else
            AQ_GROUPS_DECODE(to, &g, row, k, word[k / 4] >> k % 4 * 8 & 255)
    }
    aq_groups_close(&g);
    return rc;
}

const struct aq_quantised_format aq_quantised_packed = {
    .name = "pack-quantized",
    .part = {[AQ_QUANTISED_CODES] = {.ending = ".weight_packed"},
             [AQ_QUANTISED_SCALES] = {.ending = ".weight_scale"},
             [AQ_QUANTISED_ZEROS] = {.ending = ".weight_zero_point", .optional = true},
             [AQ_QUANTISED_ORDER] = {.ending = ".weight_g_idx", .optional = true},
             [AQ_QUANTISED_SHAPE] = {.ending = ".weight_shape"}},
    .check = check,
    .read = read,
};
