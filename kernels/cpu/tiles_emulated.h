/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/tiles_emulated.h - AMX tiles in plain C, to the bit: what tests compare the
 * instructions with, and what stands in for them where a CPU has none.  Arithmetic from the Intel
 * SDM, volume 2, TDPBF16PS. */
#ifndef AQ_KERNELS_CPU_TILES_EMULATED_H
#define AQ_KERNELS_CPU_TILES_EMULATED_H

#include "base/half.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* Subnormal factors and sums count as zero of their sign (DAZ and FTZ). */
static inline float aq_tiles_flush(float v)
{
    return fabsf(v) < FLT_MIN ? copysignf(0, v) : v;
}

/* a * b + c, rounded once.  Of results that round to the smallest normal number those count as
 * subnormal that 24 bits without a least exponent would keep below it: tininess is seen after
 * rounding (SDM, volume 1, 4.9.1.5).  There the sum in f64 is exact enough to tell. */
static inline float aq_tiles_fma(float a, float b, float c)
{
    float v = fmaf(a, b, c);
    if (fabsf(v) == FLT_MIN && fabs((double)a * b + c) < (1 - 0x1p-25) * FLT_MIN)
        return copysignf(0, v);
    return aq_tiles_flush(v);
}

static inline float aq_tiles_widen(uint16_t bf16)
{
    return aq_tiles_flush(aq_f32_from_bf16(bf16));
}

/* sum[r][c] += sum over k of a[r][k] * b[k / 2][c][k % 2], all three with rows of 64 bytes: one
 * TDPBF16PS.  The even and the odd k are summed apart, then together, then onto what was there. */
static inline void aq_tiles_dot(float sum[][16], const uint16_t a[][32], const uint16_t b[][32],
                                uint32_t rows, uint32_t columns, uint32_t pairs)
{
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < columns; c++) {
            float even = 0, odd = 0;
            for (uint32_t k = 0; k < pairs; k++) {
                even = aq_tiles_fma(aq_tiles_widen(a[r][2 * k]), aq_tiles_widen(b[k][2 * c]), even);
                odd = aq_tiles_fma(aq_tiles_widen(a[r][2 * k + 1]), aq_tiles_widen(b[k][2 * c + 1]),
                                   odd);
            }
            float both = aq_tiles_flush(even + odd);
            sum[r][c] = aq_tiles_flush(aq_tiles_flush(sum[r][c]) + both);
        }
    }
}

/* A thread's eight tiles. */
struct aq_tiles_emulated {
    struct {
        uint16_t row_bytes;
        uint8_t rows;
        union {
            uint8_t bytes[16][64];
            float f32[16][16];
            uint16_t bf16[16][32];
        };
    } tile[8];
};

static inline void aq_tiles_emulated_zero(struct aq_tiles_emulated *t, uint32_t i)
{
    memset(t->tile[i].bytes, 0, sizeof(t->tile[i].bytes));
}

/* Rows and columns past those that are configured read as zero. */
static inline void aq_tiles_emulated_load(struct aq_tiles_emulated *t, uint32_t i, const void *base,
                                          size_t stride)
{
    assert(t->tile[i].rows);
    aq_tiles_emulated_zero(t, i);
    for (uint32_t r = 0; r < t->tile[i].rows; r++)
        memcpy(t->tile[i].bytes[r], (const char *)base + r * stride, t->tile[i].row_bytes);
}

static inline void aq_tiles_emulated_store(const struct aq_tiles_emulated *t, uint32_t i,
                                           void *base, size_t stride)
{
    assert(t->tile[i].rows);
    for (uint32_t r = 0; r < t->tile[i].rows; r++)
        memcpy((char *)base + r * stride, t->tile[i].bytes[r], t->tile[i].row_bytes);
}

static inline void aq_tiles_emulated_dot(struct aq_tiles_emulated *t, uint32_t sum, uint32_t a,
                                         uint32_t b)
{
    assert(t->tile[sum].rows == t->tile[a].rows);           /* or the instruction faults */
    assert(t->tile[sum].row_bytes == t->tile[b].row_bytes); /* likewise */
    assert(t->tile[a].row_bytes == 4 * t->tile[b].rows);    /* likewise */
    aq_tiles_dot(t->tile[sum].f32, (const uint16_t(*)[32])t->tile[a].bf16,
                 (const uint16_t(*)[32])t->tile[b].bf16, t->tile[sum].rows,
                 t->tile[sum].row_bytes / 4, t->tile[b].rows);
}

#endif
