/* SPDX-License-Identifier: Apache-2.0 */
#include "base/types.h"

#include "base/half.h"

#include <assert.h>
#include <strings.h>

static const char *const dtype_names[AQ_DTYPE_COUNT] = {
    [AQ_F32] = "f32", [AQ_F16] = "f16",     [AQ_BF16] = "bf16",       [AQ_F64] = "f64",
    [AQ_I64] = "i64", [AQ_I32] = "i32",     [AQ_I16] = "i16",         [AQ_I8] = "i8",
    [AQ_U8] = "u8",   [AQ_BOOL] = "bool",   [AQ_F8_E4M3] = "f8_e4m3", [AQ_Q8] = "int8",
    [AQ_Q4] = "int4", [AQ_KIVI4] = "kivi4", [AQ_KIVI2] = "kivi2",
};

const char *aq_dtype_name(enum aq_dtype t)
{
    return (unsigned)t < AQ_DTYPE_COUNT ? dtype_names[t] : "?";
}

bool aq_dtype_parse(const char *name, enum aq_dtype *ret)
{
    for (unsigned i = 0; i < AQ_DTYPE_COUNT; i++) {
        if (strcasecmp(name, dtype_names[i]) == 0) {
            *ret = (enum aq_dtype)i;
            return true;
        }
    }
    return false;
}

const char *aq_tier_name(enum aq_tier t)
{
    static const char *const names[AQ_TIER_COUNT] = {"device", "host", "disk"};
    return (unsigned)t < AQ_TIER_COUNT ? names[t] : "?";
}

static float load_f32(const void *src, enum aq_dtype t, size_t i)
{
    switch (t) {
    case AQ_F32: return ((const float *)src)[i];
    case AQ_F16: return aq_f32_from_f16(((const uint16_t *)src)[i]);
    case AQ_BF16: return aq_f32_from_bf16(((const uint16_t *)src)[i]);
    default: assert(!"dtype is f32, f16 or bf16"); return 0;
    }
}

void aq_convert(void *dst, enum aq_dtype dst_dtype, const void *src, enum aq_dtype src_dtype,
                size_t count)
{
    assert(dst_dtype == AQ_F32 || dst_dtype == AQ_F16 || dst_dtype == AQ_BF16);
    for (size_t i = 0; i < count; i++) {
        float x = load_f32(src, src_dtype, i);
        if (dst_dtype == AQ_F32)
            ((float *)dst)[i] = x;
        else
            ((uint16_t *)dst)[i] = dst_dtype == AQ_F16 ? aq_f16_from_f32(x) : aq_bf16_from_f32(x);
    }
}
