/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/kv.h - where an element of a head-block lies, and scalar reads and writes of its
 * rows: 0 to 31 are K's, 32 to 63 V's.  A head-block of KIVI is written as a whole, and its codes
 * lie in no rows. */
#ifndef AQ_KERNELS_CPU_KV_H
#define AQ_KERNELS_CPU_KV_H

#include "base/kv_block.h"
#include "kernels/cpu/panel.h"

enum { AQ_KV_ROWS = 2 * AQ_HEAD_BLOCK_SLOTS };

/* The scales and minima of a quantised head-block: f16 [4][32], K's two, then V's two. */
static inline uint16_t *aq_kv_scales(const uint8_t *block, bool values)
{
    return (uint16_t *)(void *)block + (values ? AQ_KV_ROWS : 0);
}

static inline struct aq_quant aq_kv_quant(const uint8_t *block, uint32_t row)
{
    const uint16_t *scales = aq_kv_scales(block, row >= AQ_HEAD_BLOCK_SLOTS);
    uint32_t slot = row % AQ_HEAD_BLOCK_SLOTS;
    return (struct aq_quant){scales[slot], scales[AQ_HEAD_BLOCK_SLOTS + slot]};
}

static inline void aq_kv_quant_set(uint8_t *block, uint32_t row, struct aq_quant q)
{
    uint16_t *scales = aq_kv_scales(block, row >= AQ_HEAD_BLOCK_SLOTS);
    uint32_t slot = row % AQ_HEAD_BLOCK_SLOTS;
    scales[slot] = q.scale;
    scales[AQ_HEAD_BLOCK_SLOTS + slot] = q.minimum;
}

/* The elements or codes of a row; of KIVI, of row 0 all codes of K, of row 32 all of V. */
static inline uint8_t *aq_kv_row(const uint8_t *block, enum aq_dtype t, uint32_t dim, uint32_t row)
{
    return (uint8_t *)block + aq_kv_head_bytes(t, dim) + row * aq_kv_row_bytes(t, dim);
}

static inline uint32_t aq_kv_code(const uint8_t *block, enum aq_dtype t, uint32_t dim, uint32_t row,
                                  uint32_t d)
{
    const uint8_t *codes = aq_kv_row(block, t, dim, row);
    if (t == AQ_Q8)
        return codes[d];
    uint32_t units = (uint32_t)aq_kv_row_bytes(t, dim);
    return codes[d % units] >> (d / units * 4) & 15;
}

/* ---- KIVI ---- */

/* Scales of a block's keys, f16 [dim]; their minima follow.  Scales of its values, f16
 * [groups][32]; their minima follow. */
static inline uint16_t *aq_kivi_keys(const uint8_t *block)
{
    return (uint16_t *)(void *)block;
}
static inline uint16_t *aq_kivi_values(const uint8_t *block, uint32_t dim)
{
    return (uint16_t *)(void *)(block + aq_kivi_key_bytes(dim));
}

/* The group of channel d of a row: where its scale is, and how many f16 further its minimum. */
static inline uint16_t *aq_kivi_scale(const uint8_t *block, uint32_t dim, uint32_t row, uint32_t d,
                                      uint32_t *ret_apart)
{
    if (row < AQ_HEAD_BLOCK_SLOTS) {
        *ret_apart = dim;
        return aq_kivi_keys(block) + d;
    }
    *ret_apart = aq_kivi_groups(dim) * AQ_HEAD_BLOCK_SLOTS;
    return aq_kivi_values(block, dim) + d / AQ_KIVI_GROUP * AQ_HEAD_BLOCK_SLOTS + row -
           AQ_HEAD_BLOCK_SLOTS;
}

static inline struct aq_quant aq_kivi_quant(const uint8_t *block, uint32_t dim, uint32_t row,
                                            uint32_t d)
{
    uint32_t apart;
    const uint16_t *scale = aq_kivi_scale(block, dim, row, d, &apart);
    return (struct aq_quant){scale[0], scale[apart]};
}

static inline uint32_t aq_kivi_bits(enum aq_dtype t)
{
    return t == AQ_KIVI2 ? 2 : 4;
}

/* Numbers of a group of V. */
static inline uint32_t aq_kivi_width(uint32_t dim, uint32_t group)
{
    return (uint32_t)aq_min_u64(AQ_KIVI_GROUP, dim - group * AQ_KIVI_GROUP);
}

/* The runs of V's group: of tokens 0 to 7, 8 to 15, ... */
static inline uint8_t *aq_kivi_values_of(const uint8_t *block, enum aq_dtype t, uint32_t dim,
                                         uint32_t group)
{
    size_t words = (size_t)group * aq_kivi_words(t, AQ_KIVI_GROUP);
    return aq_kv_row(block, t, dim, AQ_HEAD_BLOCK_SLOTS) + words * AQ_HEAD_BLOCK_SLOTS;
}

/* The byte that has the code of channel d of a row, and which bit of it is the first. */
static inline uint8_t *aq_kivi_code_at(const uint8_t *block, enum aq_dtype t, uint32_t dim,
                                       uint32_t row, uint32_t d, uint32_t *ret_bit)
{
    uint8_t *runs = aq_kv_row(block, t, dim, 0);
    uint32_t vector = d, number = row, width = AQ_HEAD_BLOCK_SLOTS;
    if (row >= AQ_HEAD_BLOCK_SLOTS) {
        runs = aq_kivi_values_of(block, t, dim, d / AQ_KIVI_GROUP);
        vector = row - AQ_HEAD_BLOCK_SLOTS;
        number = d % AQ_KIVI_GROUP;
        width = aq_kivi_width(dim, d / AQ_KIVI_GROUP);
    }
    uint32_t words = aq_kivi_words(t, width);
    *ret_bit = number / words * aq_kivi_bits(t);
    return runs + (vector / AQ_KIVI_RUN * words + number % words) * AQ_KIVI_RUN +
           vector % AQ_KIVI_RUN;
}

static inline uint32_t aq_kivi_code(const uint8_t *block, enum aq_dtype t, uint32_t dim,
                                    uint32_t row, uint32_t d)
{
    uint32_t bit, byte = *aq_kivi_code_at(block, t, dim, row, d, &bit);
    return byte >> bit & ((1u << aq_kivi_bits(t)) - 1);
}

/* ---- elements ---- */

static inline float aq_kv_load(const uint8_t *block, enum aq_dtype t, uint32_t dim, uint32_t row,
                               uint32_t d)
{
    if (aq_dtype_is_quantised(t))
        return aq_quant_value(aq_kv_quant(block, row), aq_kv_code(block, t, dim, row, d));
    if (aq_dtype_is_kivi(t))
        return aq_quant_value(aq_kivi_quant(block, dim, row, d),
                              aq_kivi_code(block, t, dim, row, d));
    return aq_element_load(block, t, (size_t)row * dim + d);
}

/* A whole row.  One loop a dtype, in which the compiler knows it. */
static inline void aq_kv_load_row(float *to, const uint8_t *block, enum aq_dtype t, uint32_t dim,
                                  uint32_t row)
{
#define AQ_KV_LOAD_ROW(dtype)                                                                      \
    case dtype:                                                                                    \
        for (uint32_t d = 0; d < dim; d++)                                                         \
            to[d] = aq_kv_load(block, dtype, dim, row, d);                                         \
        break
    switch (t) {
        AQ_KV_LOAD_ROW(AQ_F32);
        AQ_KV_LOAD_ROW(AQ_F16);
        AQ_KV_LOAD_ROW(AQ_BF16);
        AQ_KV_LOAD_ROW(AQ_Q8);
        AQ_KV_LOAD_ROW(AQ_Q4);
        AQ_KV_LOAD_ROW(AQ_KIVI4);
        AQ_KV_LOAD_ROW(AQ_KIVI2);
    default: assert(!"a dtype of KV");
    }
#undef AQ_KV_LOAD_ROW
}

static inline void aq_kv_store_row(uint8_t *block, enum aq_dtype t, uint32_t dim, uint32_t row,
                                   const float *v)
{
    uint8_t *codes = aq_kv_row(block, t, dim, row);
    if (!aq_dtype_is_quantised(t)) {
        for (uint32_t d = 0; d < dim; d++)
            aq_element_store(codes, t, d, v[d]);
        return;
    }
    struct aq_quant q = aq_quant_of(v, dim, t);
    uint32_t half = (dim + 1) / 2;
    aq_kv_quant_set(block, row, q);
    for (uint32_t d = 0; d < (t == AQ_Q8 ? dim : half); d++) {
        uint32_t code = aq_quant_code(q, v[d], t);
        if (t == AQ_Q4 && half + d < dim)
            code |= aq_quant_code(q, v[half + d], t) << 4;
        codes[d] = (uint8_t)code;
    }
}

#endif
