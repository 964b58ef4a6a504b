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
 * KIVI formats are of whole head-blocks of KV; the others are read from files and refused (or
 * ignored) by name. */
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
    AQ_F8_E4M3, /* of quantised checkpoints: sign, 4 bits of exponent, 3 of fraction */
    AQ_Q8,      /* "int8": unsigned codes of 8 bits, not to be confused with the element type I8 */
    AQ_Q4,      /* "int4": unsigned codes of 4 bits */
    AQ_KIVI4,   /* "kivi4": of KV, codes of 4 bits whose groups differ for keys and values */
    AQ_KIVI2,   /* "kivi2": the same of 2 bits */
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

/* Bytes of one element; 0 for codes, whose bytes depend on their groups, and for an unknown
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
    case AQ_BOOL:
    case AQ_F8_E4M3: return 1;
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

/* Codes of KV in head-blocks that are made at once, since a group of keys is of many tokens (KIVI,
 * arXiv 2402.02750). */
static inline bool aq_dtype_is_kivi(enum aq_dtype t)
{
    return t == AQ_KIVI4 || t == AQ_KIVI2;
}

/* The type of the rows that products take and ops hand on, of a compute type: bf16 for AQ_Q8, whose
 * products make codes of them. */
static inline enum aq_dtype aq_compute_rows(enum aq_dtype compute)
{
    return compute == AQ_Q8 ? AQ_BF16 : compute;
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

#endif
