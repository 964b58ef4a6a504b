/* SPDX-License-Identifier: Apache-2.0
 * kernels/cuda/attn_tile.cuh - head-blocks as tensor cores take them: rows of 16-bit elements in
 * shared memory, whose 16-byte units are swapped about so that ldmatrix, which reads the same unit
 * of eight rows, finds them in different banks.  Head sizes 64, 80, 96 and 128. */
#ifndef AQ_KERNELS_CUDA_ATTN_TILE_CUH
#define AQ_KERNELS_CUDA_ATTN_TILE_CUH

#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/mma.cuh"

#define AQ_CU_LOG2E 1.44269504f
#define AQ_CU_LN2   0.69314718f

/* The type in which tensor cores see a cache: bf16 as it is, everything else in f16. */
static inline enum aq_dtype aq_cu_tile_dtype(enum aq_dtype kv_dtype)
{
    return kv_dtype == AQ_BF16 ? AQ_BF16 : AQ_F16;
}

/* Whether attention is for tensor cores: results in 16 bits say that the passes compute in 16
 * bits. */
static inline bool aq_cu_tile_takes(const struct aq_cuda_exec *ex, const struct aq_attn *a)
{
    bool dim = a->head_dim == 64 || a->head_dim == 80 || a->head_dim == 96 || a->head_dim == 128;
    return dim && a->kv_dtype != AQ_F32 && a->out_dtype != AQ_F32 &&
           aq_cu_has_mma(ex, aq_cu_tile_dtype(a->kv_dtype));
}

/* Where unit `unit` (8 elements) of a row lies, in units.  Eight rows begin in only 8 / spread
 * different places modulo 8 units: rows that begin alike get different units. */
template <uint32_t D> AQ_DEVICE_FN uint32_t aq_cu_tile_at(uint32_t row, uint32_t unit)
{
    static_assert(D % 16 == 0, "an even number of units");
    constexpr uint32_t units = D / 8, spread = units % 8 == 0 ? 8 : units % 4 == 0 ? 4 : 2;
    return row * units + (unit ^ (row / (8 / spread) % spread));
}

/* A code's value in f16; a value beyond f16 becomes its largest. */
AQ_DEVICE_FN float aq_cu_f16_value(uint32_t code, float scale, float minimum)
{
    float v = aq_cu_code_value(code, scale, minimum);
    return v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v;
}

/* Eight elements of a quantised row (0 to 31: K's, 32 to 63: V's) of a head-block. */
template <uint32_t D>
AQ_DEVICE_FN uint4 aq_cu_unit_of_codes(uint8_t *block, enum aq_dtype t, uint32_t row, uint32_t unit)
{
    const uint16_t *of = aq_cu_kv_scale(block, row);
    float scale = aq_cu_from_f16(of[0]), minimum = aq_cu_from_f16(of[AQ_HEAD_BLOCK_SLOTS]);
    uint32_t first = 8 * unit, shift = 0, mask = 255;
    if (t == AQ_Q4) { /* the first half of a row is in the low halves of its bytes */
        shift = first < D / 2 ? 0 : 4;
        first %= D / 2;
        mask = 15;
    }
    uint2 codes = *reinterpret_cast<const uint2 *>(aq_cu_kv_row(block, t, D, row) + first);
    uint32_t pair[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t two = (i < 2 ? codes.x : codes.y) >> (i % 2 * 16 + shift);
        pair[i] = aq_cu_pair<AQ_F16>(aq_cu_f16_value(two & mask, scale, minimum),
                                     aq_cu_f16_value(two >> 8 & mask, scale, minimum));
    }
    return {pair[0], pair[1], pair[2], pair[3]};
}

/* The first `rows` rows of a head-block (32: K alone, 64: V as well) into a tile, by `threads`
 * threads; slots from `slots` on are zeros.  Copies may be under way when it returns. */
template <uint32_t D>
AQ_DEVICE_FN void aq_cu_stage_block(uint4 *tile, uint8_t *block, enum aq_dtype t, uint32_t rows,
                                    uint32_t slots, uint32_t thread, uint32_t threads)
{
    constexpr uint32_t units = D / 8;
    bool codes = aq_cu_is_quantised(t);
    for (uint32_t u = thread; u < rows * units; u += threads) {
        uint32_t row = u / units;
        bool valid = row % AQ_HEAD_BLOCK_SLOTS < slots;
        uint4 *to = tile + aq_cu_tile_at<D>(row, u % units);
        if (!codes)
            aq_cu_copy16(to, reinterpret_cast<const uint4 *>(block) + u, valid);
        else
            *to = valid ? aq_cu_unit_of_codes<D>(block, t, row, u % units) : uint4{0, 0, 0, 0};
    }
}

#endif
