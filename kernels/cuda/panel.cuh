/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/panel.cuh - elements of panels: row-major, or codes in groups (base/types.h). */
#ifndef AQ_KERNELS_CUDA_PANEL_CUH
#define AQ_KERNELS_CUDA_PANEL_CUH

#include "kernels/cuda/device.cuh"

/* Bytes of the codes of a group of n columns, and of the whole group: as aq_group_code_bytes(). */
AQ_DEVICE_FN uint32_t aq_cu_group_code_bytes(enum aq_dtype t, uint32_t n)
{
    return t == AQ_Q8 ? 2 * AQ_PANEL_ROWS * ((n + 1) / 2) : 8 * AQ_PANEL_ROWS * ((n + 15) / 16);
}

AQ_DEVICE_FN float aq_cu_group_load(const uint8_t *panel, enum aq_dtype t, uint32_t k_count,
                                    uint32_t row, uint32_t k)
{
    uint32_t group = k / AQ_GROUP_K, first = group * AQ_GROUP_K;
    uint32_t n = aq_cu_min(k_count - first, AQ_GROUP_K);
    size_t full = aq_cu_group_code_bytes(t, AQ_GROUP_K) + 4 * AQ_PANEL_ROWS;
    const uint8_t *codes = panel + group * full;
    const uint16_t *scale =
        reinterpret_cast<const uint16_t *>(codes + aq_cu_group_code_bytes(t, n));
    uint32_t i = k % AQ_GROUP_K, code;
    if (t == AQ_Q8) {
        code = codes[(i / 2 * AQ_PANEL_ROWS + row) * 2 + i % 2];
    } else {
        uint32_t word = (i / 16 * AQ_PANEL_ROWS + row) * 2 + i % 2;
        code = codes[4 * word + i % 16 / 4] >> (i % 4 / 2 * 4) & 15u;
    }
    return aq_cu_code_value(code, aq_cu_from_f16(scale[row]),
                            aq_cu_from_f16(scale[AQ_PANEL_ROWS + row]));
}

/* Byte i of four codes as a float: as the low bits of 2^23 it is itself what a subtraction leaves,
 * which takes a fourth of a conversion's time.  i: known to the compiler. */
AQ_DEVICE_FN float aq_cu_byte_float(uint32_t codes, uint32_t i)
{
    return __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440u + i)) - 8388608.0f;
}

/* One of four f16. */
AQ_DEVICE_FN float aq_cu_half_of(uint2 four, uint32_t i)
{
    return aq_cu_from_f16(static_cast<uint16_t>((i < 2 ? four.x : four.y) >> 16 * (i % 2)));
}

/* 16 int4 codes of a row, a byte each: those of columns 4 i + c are bytes i of at[c]. */
struct aq_cu_codes16 {
    uint32_t at[4];
};

/* Of a run as panels have them: columns 0, 2, ... in the first word, 1, 3, ... in the second. */
AQ_DEVICE_FN struct aq_cu_codes16 aq_cu_codes16_of(uint32_t even, uint32_t odd)
{
    const uint32_t mask = 0x0f0f0f0fu;
    return {{even & mask, odd & mask, even >> 4 & mask, odd >> 4 & mask}};
}

/* Element (row, k) of a panel whose rows are k_count long. */
AQ_DEVICE_FN float aq_cu_panel_load(const uint8_t *panel, enum aq_dtype t, uint32_t k_count,
                                    uint32_t row, uint32_t k)
{
    if (aq_cu_is_quantised(t))
        return aq_cu_group_load(panel, t, k_count, row, k);
    return aq_cu_load(panel, t, static_cast<size_t>(row) * k_count + k);
}

#endif
