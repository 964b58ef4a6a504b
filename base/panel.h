/* SPDX-License-Identifier: Apache-2.0
 * base/panel.h - how weights lie: a matrix is panels of 64 rows, the same bytes on disk, in memory
 * and in front of the kernels.  Owns the layouts and their sizes; knows no file and no kernel. */
#ifndef AQ_BASE_PANEL_H
#define AQ_BASE_PANEL_H

#include "base/types.h"

/* How the 64 rows of a panel lie in memory.  K is the row length.
 *   ROWS    [64][K]                row-major
 *   PAIR64  [ceil(K/2)][64][2]     two neighbours along K together: bf16 dot products
 *   COL64   [K][64]                one k after the other: f32 and f16
 *   GROUP64                        groups of 64 k (the last one may be shorter), one after the
 *                                  other: the codes of its n columns, then f16 scale[64], then
 *                                  f16 minimum[64], one per row: Q8 and Q4
 *     codes of Q8   u8  [ceil(n/2)][64][2]    two neighbours along K together, as in PAIR64
 *     codes of Q4   u32 [ceil(n/16)][64][2]   bits 4i..4i+3 of [j][row][p] are k = 16j + 2i + p
 *   The number a code stands for is code * scale + minimum as one f32 fma; where the products
 *   compute in bf16, that is rounded to nearest even.  Codes past n are 0. */
enum aq_layout {
    AQ_LAYOUT_ROWS,
    AQ_LAYOUT_PAIR64,
    AQ_LAYOUT_COL64,
    AQ_LAYOUT_GROUP64,
    AQ_LAYOUT_COUNT
};

enum {
    AQ_PANEL_ROWS = 64,
    AQ_PANEL_ALIGN = 4096,
    AQ_GROUP_K = 64, /* columns of a group of a quantised panel */
};

const char *aq_layout_name(enum aq_layout l);

/* The layout the CPU kernels want for a weight dtype. */
static inline enum aq_layout aq_layout_cpu(enum aq_dtype t)
{
    if (aq_dtype_is_quantised(t))
        return AQ_LAYOUT_GROUP64;
    return t == AQ_BF16 ? AQ_LAYOUT_PAIR64 : AQ_LAYOUT_COL64;
}

/* Bytes of the codes of a group of n columns (1 to AQ_GROUP_K), where its scales begin. */
static inline size_t aq_group_code_bytes(enum aq_dtype t, uint32_t n)
{
    return t == AQ_Q8 ? 2 * AQ_PANEL_ROWS * aq_div_up(n, 2) : 8 * AQ_PANEL_ROWS * aq_div_up(n, 16);
}

/* Bytes of a group of n columns: its codes, a scale and a minimum per row. */
static inline size_t aq_group_bytes(enum aq_dtype t, uint32_t n)
{
    return aq_group_code_bytes(t, n) + 4 * AQ_PANEL_ROWS;
}

/* Bytes of the first k columns of a panel: where column k begins, a multiple of AQ_GROUP_K in
 * GROUP64 (a multiple of 2 in PAIR64), or all bytes without padding. */
static inline size_t aq_panel_offset(enum aq_dtype t, uint64_t k)
{
    if (!aq_dtype_is_quantised(t))
        return AQ_PANEL_ROWS * k * aq_dtype_bytes(t);
    uint32_t rest = k % AQ_GROUP_K;
    return k / AQ_GROUP_K * aq_group_bytes(t, AQ_GROUP_K) + (rest ? aq_group_bytes(t, rest) : 0);
}

/* Bytes of one panel: 64 rows of k elements, K padded to an even number, the whole padded to 4096.
 */
static inline size_t aq_panel_bytes(enum aq_dtype t, uint32_t k)
{
    uint64_t columns = aq_dtype_is_quantised(t) ? k : aq_align_up(k, 2);
    return aq_align_up(aq_panel_offset(t, columns), AQ_PANEL_ALIGN);
}

/* Panels of a matrix with this many rows. */
static inline uint32_t aq_panel_count(uint32_t rows)
{
    return (uint32_t)aq_div_up(rows, AQ_PANEL_ROWS);
}

/* Elements between rows of activations of k numbers, which a product reads many rows of at once: an
 * odd number of cache lines, so that rows lie in different sets of a cache.  Rows of 4096 bytes
 * would all want the same twelve lines of L1. */
static inline size_t aq_row_stride(uint32_t k, enum aq_dtype dtype)
{
    size_t lines = aq_div_up((uint64_t)k * aq_dtype_bytes(dtype), 64);
    return (lines | 1) * 64 / aq_dtype_bytes(dtype);
}

#endif
