/* SPDX-License-Identifier: Apache-2.0
 * AWQ's layout for products of many rows ("gemm"): Lin et al., arXiv 2306.00978; AutoAWQ 0.2.9,
 * awq/modules/linear/gemm.py, WQLinear_GEMM, and awq/utils/packing_utils.py.
 *   qweight  i32 [k][rows / 8]    bits 4i .. 4i + 3 of word j are row 8j + order[i]
 *   qzeros   i32 [k / g][rows / 8]  the same
 *   scales       [k / g][rows]
 * A weight is (code - zero) * scale. */
#include "engine/model/quantised/groups.h"

/* Where order 0 2 4 6 1 3 5 7 puts each of eight rows. */
static const struct aq_word_order order = {8, {0, 16, 4, 20, 8, 24, 12, 28}};

static int check(const struct aq_quantised *q, struct aq_err *reterr)
{
    const struct aq_tensor_info *codes = q->part[AQ_QUANTISED_CODES];
    if (q->rows % order.codes)
        return aq_quantised_wrong_shape(
            codes, reterr, "a multiple of %u rows by config.json, not %u", order.codes, q->rows);
    int rc = aq_groups_check_even(q, reterr);
    if (rc == 0)
        rc = aq_quantised_check_words(codes, q->k, q->rows / order.codes, reterr);
    return rc < 0 ? rc : aq_groups_check_columns(q, order.codes, reterr);
}

static int read(const struct aq_quantised *q, uint32_t first, uint32_t rows, float *dst,
                struct aq_err *reterr)
{
    uint32_t from = first / order.codes, words = (first + rows - 1) / order.codes - from + 1;
    struct aq_groups g;
    int rc = aq_groups_open(&g, q, rows, (size_t)q->k * words, reterr);
    if (rc < 0)
        return rc;
    rc = aq_columns_read(q->columns, 0, q->part[AQ_QUANTISED_CODES], from, words, g.words, reterr);
    if (rc == 0)
        rc = aq_groups_read_columns(&g, q, first, &order, reterr);
    for (uint32_t row = 0; rc == 0 && row < rows; row++) {
        const uint32_t *word = g.words + (first + row) / order.codes - from;
        uint32_t shift = order.shift[(first + row) % order.codes];
        float *to = dst + (size_t)row * q->k;
        AQ_GROUPS_DECODE(to, &g, row, k, word[(size_t)k * words] >> shift & 15)
    }
    aq_groups_close(&g);
    return rc;
}

const struct aq_quantised_format aq_quantised_awq = {
    .name = "awq",
    .part = {[AQ_QUANTISED_CODES] = {.ending = ".qweight"},
             [AQ_QUANTISED_SCALES] = {.ending = ".scales"},
             [AQ_QUANTISED_ZEROS] = {.ending = ".qzeros"}},
    .columns = true,
    .check = check,
    .read = read,
};
