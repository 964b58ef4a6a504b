/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/quantised/groups.h"

#include <stdlib.h>
#include <string.h>

struct aq_word_order aq_words_in_order(uint32_t bits)
{
    struct aq_word_order order = {.codes = 32 / bits};
    for (uint32_t i = 0; i < order.codes; i++)
        order.shift[i] = (uint8_t)(i * bits);
    return order;
}

uint32_t aq_groups_count(const struct aq_quantised *q)
{
    return q->scheme.block_k ? (uint32_t)aq_div_up(q->k, q->scheme.block_k) : 1;
}

int aq_groups_check_even(const struct aq_quantised *q, struct aq_err *reterr)
{
    if (!q->scheme.block_k || q->k % q->scheme.block_k == 0)
        return 0;
    return aq_error(reterr, -ENOEXEC,
                    "tensor '%s': expected groups that divide its %u columns, found groups of %u "
                    "by config.json",
                    q->part[AQ_QUANTISED_CODES]->name, q->k, q->scheme.block_k);
}

int aq_groups_check_columns(const struct aq_quantised *q, uint32_t codes, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_SCALES];
    uint32_t groups = aq_groups_count(q);
    int rc = aq_quantised_check_words(q->part[AQ_QUANTISED_ZEROS], groups, q->rows / codes, reterr);
    if (rc < 0 || (aq_dtype_is_float(t->dtype) && t->rank == 2 && t->shape[0] == groups &&
                   t->shape[1] == q->rows))
        return rc;
    return aq_quantised_wrong_shape(t, reterr, "f16, bf16 or f32 [%u, %u]", groups, q->rows);
}

/* Runs of the columns, from the tensor that says the group of each. */
static int read_order(struct aq_groups *g, const struct aq_quantised *q, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_ORDER];
    uint32_t *of = malloc(q->k * sizeof(*of));
    int rc = of ? aq_checkpoint_read(q->checkpoint, t, 0, q->k, of, reterr)
                : aq_error_memory(reterr, "tensor '%s'", t->name);
    for (uint32_t k = 0; rc == 0 && k < q->k; k++) {
        if (of[k] >= g->count)
            rc = aq_error(reterr, -ENOEXEC,
                          "tensor '%s': expected groups from 0 to %u, found %d for column %u",
                          t->name, g->count - 1, (int)of[k], k);
        else if (k && of[k] == of[k - 1])
            g->run[g->run_count - 1].end = k + 1;
        else
            g->run[g->run_count++] = (struct aq_group_run){k, k + 1, of[k]};
    }
    free(of);
    return rc;
}

/* Groups one after the other. */
static void in_order(struct aq_groups *g, const struct aq_quantised *q)
{
    uint32_t size = q->scheme.block_k ? q->scheme.block_k : q->k;
    for (uint32_t first = 0; first < q->k; first += size, g->run_count++)
        g->run[g->run_count] = (struct aq_group_run){
            first, (uint32_t)aq_min_u64(q->k, (uint64_t)first + size), g->run_count};
}

int aq_groups_open(struct aq_groups *ret, const struct aq_quantised *q, uint32_t rows, size_t words,
                   struct aq_err *reterr)
{
    struct aq_groups g = {.rows = rows, .count = aq_groups_count(q)};
    size_t each = (size_t)rows * g.count, runs = q->part[AQ_QUANTISED_ORDER] ? q->k : g.count;
    int rc = 0;
    g.run = malloc(runs * sizeof(*g.run));
    g.scale = malloc(each * sizeof(*g.scale));
    g.zero = malloc(each * sizeof(*g.zero));
    g.words = malloc(words * sizeof(*g.words));
    if (!g.run || !g.scale || !g.zero || !g.words)
        rc = aq_error_memory(reterr, "%u rows of tensor '%s'", rows,
                             q->part[AQ_QUANTISED_CODES]->name);
    else if (q->part[AQ_QUANTISED_ORDER])
        rc = read_order(&g, q, reterr);
    else
        in_order(&g, q);
    if (rc < 0)
        aq_groups_close(&g);
    else
        *ret = g;
    return rc;
}

void aq_groups_close(struct aq_groups *g)
{
    free(g->run);
    free(g->scale);
    free(g->zero);
    free(g->words);
}

static int read_scales(struct aq_groups *g, const struct aq_quantised *q, uint32_t first,
                       struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_SCALES];
    size_t each = (size_t)g->rows * g->count;
    char *raw = malloc(each * aq_dtype_bytes(t->dtype));
    float *wide = malloc(each * sizeof(*wide));
    int rc = raw && wide ? aq_columns_read(q->columns, 1, t, first, g->rows, raw, reterr)
                         : aq_error_memory(reterr, "scales of tensor '%s'", t->name);
    if (rc == 0) {
        aq_convert(wide, AQ_F32, raw, t->dtype, each);
        rc = aq_quantised_check_scales(t, wide, each, reterr);
    }
    for (uint32_t row = 0; rc == 0 && row < g->rows; row++)
        for (uint32_t n = 0; n < g->count; n++)
            g->scale[(size_t)row * g->count + n] = wide[(size_t)n * g->rows + row];
    free(raw);
    free(wide);
    return rc;
}

/* Every code of 1 in a word of codes of these bits. */
static uint32_t ones(uint32_t bits)
{
    return bits == 4 ? 0x11111111u : 0x01010101u;
}

static int read_zeros(struct aq_groups *g, const struct aq_quantised *q, uint32_t first,
                      const struct aq_word_order *order, struct aq_err *reterr)
{
    const struct aq_tensor_info *t = q->part[AQ_QUANTISED_ZEROS];
    uint32_t from = first / order->codes, count = (first + g->rows - 1) / order->codes - from + 1;
    uint32_t mask = (1u << q->scheme.bits) - 1;
    uint32_t *words = malloc((size_t)g->count * count * sizeof(*words));
    int rc = words ? aq_columns_read(q->columns, 2, t, from, count, words, reterr)
                   : aq_error_memory(reterr, "zeros of tensor '%s'", t->name);
    for (uint32_t row = 0; rc == 0 && row < g->rows; row++) {
        uint32_t at = (first + row) / order->codes - from, in = (first + row) % order->codes;
        for (uint32_t n = 0; n < g->count; n++) {
            uint32_t word = words[(size_t)n * count + at];
            /* The whole word, as its writer took one away from each code of it: GPTQModel 7.7,
             * utils/model.py, convert_gptq_v1_to_v2_format_module. */
            word += q->scheme.zero_less_one ? ones(q->scheme.bits) : 0;
            g->zero[(size_t)row * g->count + n] = (float)(word >> order->shift[in] & mask);
        }
    }
    free(words);
    return rc;
}

int aq_groups_read_columns(struct aq_groups *g, const struct aq_quantised *q, uint32_t first,
                           const struct aq_word_order *order, struct aq_err *reterr)
{
    int rc = read_scales(g, q, first, reterr);
    return rc < 0 ? rc : read_zeros(g, q, first, order, reterr);
}
