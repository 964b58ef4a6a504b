/* SPDX-License-Identifier: Apache-2.0
 * base/half.h - scalar conversions between f32 and the 16-bit floats, round to nearest even.
 * f16: overflow becomes infinity, subnormals are kept.  bf16: subnormals are kept, NaN stays NaN.
 */
#ifndef AQ_BASE_HALF_H
#define AQ_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float aq_f32_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint32_t aq_f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline float aq_f32_from_bf16(uint16_t h)
{
    return aq_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t aq_bf16_from_f32(float f)
{
    uint32_t bits = aq_f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* By masks, without branches, so that loops over it become vectors. */
static inline float aq_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t subnormal = 0u - (uint32_t)(magnitude < 0x00800000u);
    uint32_t special = 0u - (uint32_t)(magnitude >= 0x0f800000u); /* infinities and NaN */
    uint32_t small = aq_f32_bits((float)(int32_t)(h & 0x7fffu) * 0x1p-24f);
    uint32_t bits = magnitude + 0x38000000u + (0x38000000u & special);
    return aq_f32_from_bits(sign | (small & subnormal) | (bits & ~subnormal));
}

static inline uint16_t aq_f16_from_f32(float f)
{
    uint32_t bits = aq_f32_bits(f), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* subnormal or zero: adding 0.5 aligns and rounds */
        float shifted = aq_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (aq_f32_bits(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

#endif
