/* SPDX-License-Identifier: Apache-2.0
 * engine/model/quantised/groups.h - codes in groups along K, in words of 32 bits: the scale and the
 * zero of each group, and (code - zero) * scale, one f32 product, which is exact but for its own
 * rounding.  Private to engine/model/quantised. */
#ifndef AQ_ENGINE_MODEL_QUANTISED_GROUPS_H
#define AQ_ENGINE_MODEL_QUANTISED_GROUPS_H

#include "engine/model/quantised/check.h"
#include "engine/model/quantised/formats.h"

/* Neighbouring columns of one group. */
struct aq_group_run {
    uint32_t first, end, group;
};

/* Of some rows of a matrix; scale, zero: [rows][count]. */
struct aq_groups {
    uint32_t rows, count;
    struct aq_group_run *run; /* of all columns, in order; at most one a column */
    uint32_t run_count;
    float *scale, *zero;
    uint32_t *words; /* the rows' codes, as their format has them */
};

/* How the codes of 32 bits lie in a word: code i of it begins at bit shift[i]. */
struct aq_word_order {
    uint32_t codes; /* a word */
    uint8_t shift[8];
};
struct aq_word_order aq_words_in_order(uint32_t bits);

/* Groups in a row: the columns of the scales. */
uint32_t aq_groups_count(const struct aq_quantised *q);
/* Do groups divide the columns?  -ENOEXEC names the matrix. */
int aq_groups_check_even(const struct aq_quantised *q, struct aq_err *reterr);

/* Are zeros i32 [groups][rows / codes of a word], and scales [groups][rows]?  -ENOEXEC. */
int aq_groups_check_columns(const struct aq_quantised *q, uint32_t codes, struct aq_err *reterr);

/* Room for `rows` rows and `words` words of codes; the group of each column is known. */
int aq_groups_open(struct aq_groups *ret, const struct aq_quantised *q, uint32_t rows, size_t words,
                   struct aq_err *reterr);
void aq_groups_close(struct aq_groups *g);

/* Scales [count][rows of the matrix] and zeros [count][words of rows], as columns. */
int aq_groups_read_columns(struct aq_groups *g, const struct aq_quantised *q, uint32_t first,
                           const struct aq_word_order *order, struct aq_err *reterr);

/* dst[k] = (code - zero) * scale for the columns k of the row's runs; CODE says a column's code. */
#define AQ_GROUPS_DECODE(dst, groups, row, k, CODE)                                                \
    for (uint32_t run_ = 0; run_ < (groups)->run_count; run_++) {                                  \
        const struct aq_group_run *r_ = &(groups)->run[run_];                                      \
        size_t at_ = (size_t)(row) * (groups)->count + r_->group;                                  \
        float zero_ = (groups)->zero[at_], scale_ = (groups)->scale[at_];                          \
        for (uint32_t k = r_->first; k < r_->end; k++)                                             \
            (dst)[k] = ((float)(int32_t)(CODE)-zero_) * scale_;                                    \
    }

#endif
