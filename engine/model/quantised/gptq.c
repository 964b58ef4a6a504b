/* SPDX-License-Identifier: Apache-2.0
 * GPTQ's layout: Frantar et al., arXiv 2210.17323; GPTQModel 7.7, nn_modules/qlinear
 * (pack_original, BaseQuantLinear) and utils/model.py; b is 4 or 8 bits.
 *   qweight  i32 [k b / 32][rows]         bits b i .. of word j are column 32 / b * j + i
 *   qzeros   i32 [groups][rows b / 32]    row 32 / b * j + i; minus one, but not in format v2
 *   scales       [groups][rows]
 *   g_idx    i32 [k]                      the group of each column; without it, k / group size
 * A weight is (code - zero) * scale. */
#include "engine/model/quantised/groups.h"

static int check_order(const struct aq_quantised *q, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_ORDER];
    if (!t || (t->dtype == AQ_I32 && t->rank == 1 && t->shape[0] == q->k))
        return 0;
    return aq_quantised_wrong_shape(t, reterr, "i32 [%u]", q->k);
}

static int check(const struct aq_quantised *q, struct aq_err *reterr)
{
    const struct aq_tensor_info *codes = q->part[AQ_QUANTISED_CODES];
    uint32_t each = 32 / q->scheme.bits;
    if (q->rows % each || q->k % each)
        return aq_quantised_wrong_shape(
            codes, reterr, "multiples of %u rows and columns by config.json, not %u and %u", each,
            q->rows, q->k);
    int rc = aq_quantised_check_words(codes, q->k / each, q->rows, reterr);
    if (rc == 0)
        rc = aq_groups_check_columns(q, each, reterr);
    return rc < 0 ? rc : check_order(q, reterr);
}

static int read(const struct aq_quantised *q, uint32_t first, uint32_t rows, float *dst,
                struct aq_err *reterr)
{
    uint32_t bits = q->scheme.bits, each = 32 / bits;
    struct aq_word_order order = aq_words_in_order(bits);
    struct aq_groups g;
    int rc = aq_groups_open(&g, q, rows, (size_t)(q->k / each) * rows, reterr);
    if (rc < 0)
        return rc;
    rc = aq_columns_read(q->columns, 0, q->part[AQ_QUANTISED_CODES], first, rows, g.words, reterr);
    if (rc == 0)
        rc = aq_groups_read_columns(&g, q, first, &order, reterr);
    for (uint32_t row = 0; rc == 0 && row < rows; row++) {
        const uint32_t *word = g.words + row;
        float *to = dst + (size_t)row * q->k;
        if (bits == 4)
            AQ_GROUPS_DECODE(to, &g, row, k, word[(size_t)(k / 8) * rows] >> k % 8 * 4 & 15)
        else
            AQ_GROUPS_DECODE(to, &g, row, k, word[(size_t)(k / 4) * rows] >> k % 4 * 8 & 255)
    }
    aq_groups_close(&g);
    return rc;
}

const struct aq_quantised_format aq_quantised_gptq = {
    .name = "gptq",
    .part = {[AQ_QUANTISED_CODES] = {.ending = ".qweight"},
             [AQ_QUANTISED_SCALES] = {.ending = ".scales"},
             [AQ_QUANTISED_ZEROS] = {.ending = ".qzeros"},
             [AQ_QUANTISED_ORDER] = {.ending = ".g_idx", .optional = true}},
    .idle_biases = true,
    .columns = true,
    .check = check,
    .read = read,
};
