/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/quant.h - the definition of codes (int8, int4, kivi4, kivi2): how a group gets its
 * scale and minimum, how a value becomes a code and a code a value, and where a code lies in a
 * panel.  Scalar; the versions do the same operations, each rounded alike, so that their bits are
 * these. */
#ifndef AQ_KERNELS_CPU_QUANT_H
#define AQ_KERNELS_CPU_QUANT_H

#include "base/half.h"
#include "base/panel.h"
#include "base/types.h"

#include <assert.h>
#include <math.h>

/* The largest code. */
static inline float aq_code_max(enum aq_dtype t)
{
    return t == AQ_Q8 ? 255.0f : t == AQ_KIVI2 ? 3.0f : 15.0f;
}

/* The f16 next below (above) x, or x itself: rounding towards minus (plus) infinity as VCVTPS2PH
 * does it. */
static inline uint16_t aq_f16_down(float x)
{
    uint16_t h = aq_f16_from_f32(x);
    if (isnan(x) || aq_f32_from_f16(h) <= x)
        return h;
    if ((h & 0x7fff) == 0)
        return 0x8001; /* x is negative and tiny */
    return h & 0x8000 ? (uint16_t)(h + 1) : (uint16_t)(h - 1);
}

static inline uint16_t aq_f16_up(float x)
{
    return aq_f16_down(-x) ^ 0x8000;
}

/* The meaning of a group's codes: a value is code * scale + minimum. */
struct aq_quant {
    uint16_t scale, minimum; /* f16 */
};

/* The least normal f16. */
#define AQ_QUANT_NEAREST_MIN 0x1p-14f

/* The scale of all but int4 is rounded up, so that the last code reaches the largest value.  (The
 * program of KIVI's authors rounds the range of a group and its scale to the nearest f16: each time
 * less than an ulp below this.)  The scale of int4 is the nearest one: low by 2^-11 of itself at
 * most, so that the last code falls short of the largest value by 15 * 2^-11 of a scale.  Below
 * f16's normal numbers the nearest may be low by much of itself, and the last code short by many
 * scales: up, as for int8, of which docs/formats.md has what was measured. */
static inline uint16_t aq_quant_scale(float step, enum aq_dtype t)
{
    return t == AQ_Q4 && step >= AQ_QUANT_NEAREST_MIN ? aq_f16_from_f32(step) : aq_f16_up(step);
}

/* For a group whose smallest and largest value are lo and hi: the minimum is lo rounded down, the
 * scale a step of (hi - minimum) / codes, so that no value is below code 0 and every value within
 * half a scale of its code's.  `finite` is false when a value is infinite or NaN: then, or when
 * minimum or scale is beyond f16, both are NaN, and so is every value of the group. */
static inline struct aq_quant aq_quant_range(float lo, float hi, bool finite, enum aq_dtype t)
{
    struct aq_quant q;
    q.minimum = aq_f16_down(lo + 0.0f); /* there are two zeros: the positive one is taken */
    q.scale = aq_quant_scale((hi - aq_f32_from_f16(q.minimum) + 0.0f) / aq_code_max(t), t);
    bool sound =
        finite && isfinite(aq_f32_from_f16(q.minimum)) && isfinite(aq_f32_from_f16(q.scale));
    return sound ? q : (struct aq_quant){0x7e00, 0x7e00};
}

static inline struct aq_quant aq_quant_of(const float *v, uint32_t n, enum aq_dtype t)
{
    float lo = INFINITY, hi = -INFINITY;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        lo = v[i] < lo ? v[i] : lo;
        hi = v[i] > hi ? v[i] : hi;
        finite &= isfinite(v[i]);
    }
    return aq_quant_range(lo, hi, finite, t);
}

/* The nearest code, the even one of two; 0 in a group of one value and in one of NaN. */
static inline uint32_t aq_quant_code(struct aq_quant q, float v, enum aq_dtype t)
{
    float scale = aq_f32_from_f16(q.scale), minimum = aq_f32_from_f16(q.minimum);
    float code = rintf((v - minimum) / scale);
    if (!(scale > 0) || !(code > 0))
        return 0;
    return (uint32_t)fminf(code, aq_code_max(t));
}

/* A product of 8 bits and the 11 of an f16 is exact in f32: the sum alone rounds, as in an fma,
 * which would be a call for each code where there is no such instruction. */
static inline float aq_quant_value(struct aq_quant q, uint32_t code)
{
    return (float)(int32_t)code * aq_f32_from_f16(q.scale) + aq_f32_from_f16(q.minimum);
}

/* ---- panels in GROUP64 ---- */

struct aq_group {
    uint8_t *codes;
    uint16_t *scale, *minimum; /* [64] */
};

/* The group of column k of a panel whose rows are k_count long. */
static inline struct aq_group aq_group_at(const void *panel, enum aq_dtype t, uint32_t k_count,
                                          uint32_t k)
{
    uint32_t first = k / AQ_GROUP_K * AQ_GROUP_K;
    uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, k_count - first);
    struct aq_group g = {.codes = (uint8_t *)panel + aq_panel_offset(t, first)};
    g.scale = (uint16_t *)(void *)(g.codes + aq_group_code_bytes(t, n));
    g.minimum = g.scale + AQ_PANEL_ROWS;
    return g;
}

/* Column k of a row, k counted from the group's first. */
static inline uint32_t aq_group_code(const struct aq_group *g, enum aq_dtype t, uint32_t row,
                                     uint32_t k)
{
    if (t == AQ_Q8)
        return g->codes[((size_t)(k / 2) * AQ_PANEL_ROWS + row) * 2 + k % 2];
    /* Bits of u32 [k / 16][row][k % 2], little-endian: a byte is two of them. */
    size_t word = ((size_t)(k / 16) * AQ_PANEL_ROWS + row) * 2 + k % 2;
    return g->codes[4 * word + k % 16 / 4] >> (k % 4 / 2 * 4) & 15;
}

static inline void aq_group_set(const struct aq_group *g, enum aq_dtype t, uint32_t row, uint32_t k,
                                uint32_t code)
{
    if (t == AQ_Q8) {
        g->codes[((size_t)(k / 2) * AQ_PANEL_ROWS + row) * 2 + k % 2] = (uint8_t)code;
        return;
    }
    size_t word = ((size_t)(k / 16) * AQ_PANEL_ROWS + row) * 2 + k % 2;
    uint8_t *byte = &g->codes[4 * word + k % 16 / 4];
    uint32_t shift = k % 4 / 2 * 4;
    *byte = (uint8_t)((*byte & ~(15u << shift)) | code << shift);
}

/* Element (row, k) of a panel. */
static inline float aq_group_load(const void *panel, enum aq_dtype t, uint32_t k_count,
                                  uint32_t row, uint32_t k)
{
    struct aq_group g = aq_group_at(panel, t, k_count, k);
    return aq_quant_value((struct aq_quant){g.scale[row], g.minimum[row]},
                          aq_group_code(&g, t, row, k % AQ_GROUP_K));
}

#endif
