/* SPDX-License-Identifier: Apache-2.0
 * base/types.h - plain data that crosses folders: dtypes, tiers, small arithmetic.
 * Knows no layer, token, file or device. */
#ifndef AQ_BASE_TYPES_H
#define AQ_BASE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AQ_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define AQ_KIB          (1024ull)
#define AQ_MIB          (1024ull * 1024)
#define AQ_GIB          (1024ull * 1024 * 1024)

/* Element types of tensors in files, stores and buffers.  F32, F16 and BF16 are computed with; Q8
 * and Q4 are formats of weights and KV only, codes in groups that share a scale and a minimum; the
 * others are read from files and refused (or ignored) by name. */
enum aq_dtype {
    AQ_F32,
    AQ_F16,
    AQ_BF16,
    AQ_F64,
    AQ_I64,
    AQ_I32,
    AQ_I16,
    AQ_I8,
    AQ_U8,
    AQ_BOOL,
    AQ_Q8, /* "int8": unsigned codes of 8 bits, not to be confused with the element type I8 */
    AQ_Q4, /* "int4": unsigned codes of 4 bits */
    AQ_DTYPE_COUNT,
};

/* Text: may hold NULs; a NUL follows unless the text is part of a larger one. */
struct aq_text {
    const char *bytes;
    size_t count;
};

/* Bytes that are to be copied. */
struct aq_copy_piece {
    void *dst;
    const void *src;
    uint64_t bytes; /* 0 is fine */
};

enum aq_tier { AQ_DEVICE, AQ_HOST, AQ_DISK, AQ_TIER_COUNT };

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
    AQ_HEAD_BLOCK_SLOTS = 32,
    AQ_GROUP_K = 64, /* columns of a group of a quantised panel */
};

/* Bytes of one element; 0 for Q8 and Q4, whose bytes depend on their groups, and for an unknown
 * dtype. */
static inline size_t aq_dtype_bytes(enum aq_dtype t)
{
    switch (t) {
    case AQ_F64:
    case AQ_I64: return 8;
    case AQ_F32:
    case AQ_I32: return 4;
    case AQ_F16:
    case AQ_BF16:
    case AQ_I16: return 2;
    case AQ_I8:
    case AQ_U8:
    case AQ_BOOL: return 1;
    default: return 0;
    }
}

/* The dtypes that are computed with. */
static inline bool aq_dtype_is_float(enum aq_dtype t)
{
    return t == AQ_F32 || t == AQ_F16 || t == AQ_BF16;
}

/* Codes in groups. */
static inline bool aq_dtype_is_quantised(enum aq_dtype t)
{
    return t == AQ_Q8 || t == AQ_Q4;
}

/* Lower-case name ("f32", "bf16"); "?" for an unknown dtype. */
const char *aq_dtype_name(enum aq_dtype t);
/* Parses a name as aq_dtype_name() prints it, any case; false when unknown. */
bool aq_dtype_parse(const char *name, enum aq_dtype *ret);
/* dst[i] = src[i] between f32, f16 and bf16, rounding to nearest even; asserts other dtypes.  Plain
 * and slow: for vectors and tables at load, not for passes. */
void aq_convert(void *dst, enum aq_dtype dst_dtype, const void *src, enum aq_dtype src_dtype,
                size_t count);
const char *aq_tier_name(enum aq_tier t);
const char *aq_layout_name(enum aq_layout l);

static inline uint64_t aq_div_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}
static inline uint64_t aq_align_up(uint64_t a, uint64_t align)
{
    return aq_div_up(a, align) * align;
}
static inline uint64_t aq_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t aq_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Checked products and sums for sizes that come from outside.  True on overflow (as the builtins).
 */
#define aq_mul_overflows(a, b, ret) __builtin_mul_overflow(a, b, ret)
#define aq_add_overflows(a, b, ret) __builtin_add_overflow(a, b, ret)

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

/* A K or V row of a head-block: its elements, or its codes (Q4: d in the low half of byte d,
 * d + ceil(head_dim / 2) in the high half). */
static inline size_t aq_kv_row_bytes(enum aq_dtype t, uint32_t head_dim)
{
    if (t == AQ_Q8)
        return head_dim;
    return t == AQ_Q4 ? aq_div_up(head_dim, 2) : head_dim * aq_dtype_bytes(t);
}

/* Bytes in front of the K rows of a head-block: f16 [4][32] if it is quantised (scales of K, minima
 * of K, scales of V, minima of V), else 0. */
static inline size_t aq_kv_head_bytes(enum aq_dtype t)
{
    return aq_dtype_is_quantised(t) ? 8 * AQ_HEAD_BLOCK_SLOTS : 0;
}

/* A head-block: 32 slots of one KV head, K rows, then V rows.  A multiple of 64. */
static inline size_t aq_kv_block_bytes(enum aq_dtype t, uint32_t head_dim)
{
    return aq_kv_head_bytes(t) + 2 * AQ_HEAD_BLOCK_SLOTS * aq_kv_row_bytes(t, head_dim);
}

#endif
