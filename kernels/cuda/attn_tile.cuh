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

/* Eight elements of a row (0 to 31: K's, 32 to 63: V's) of a head-block, as they lie in memory. */
struct aq_cu_unit {
    uint4 whole; /* of 16-bit elements */
    uint2 codes;
    uint16_t scale, minimum;
};

template <uint32_t D, bool CODES>
AQ_DEVICE_FN struct aq_cu_unit aq_cu_load_unit(uint8_t *block, enum aq_dtype t, uint32_t row,
                                               uint32_t unit)
{
    struct aq_cu_unit u = {};
    if (!CODES) {
        u.whole = reinterpret_cast<const uint4 *>(block)[row * (D / 8) + unit];
        return u;
    }
    const uint16_t *of = aq_cu_kv_scale(block, row);
    u.scale = of[0];
    u.minimum = of[AQ_HEAD_BLOCK_SLOTS];
    /* The first half of a row of int4 is in the low halves of its bytes. */
    uint32_t first = t == AQ_Q4 ? 8 * unit % (D / 2) : 8 * unit;
    u.codes = *reinterpret_cast<const uint2 *>(aq_cu_kv_row(block, t, D, row) + first);
    return u;
}

/* The elements of codes, in f16. */
template <uint32_t D>
AQ_DEVICE_FN uint4 aq_cu_unit_of_codes(const struct aq_cu_unit *u, enum aq_dtype t, uint32_t unit)
{
    float scale = aq_cu_from_f16(u->scale), minimum = aq_cu_from_f16(u->minimum);
    uint32_t shift = t == AQ_Q4 && 8 * unit >= D / 2 ? 4 : 0, mask = t == AQ_Q4 ? 15 : 255;
    uint32_t pair[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t two = (i < 2 ? u->codes.x : u->codes.y) >> (i % 2 * 16 + shift);
        pair[i] = aq_cu_pair<AQ_F16>(aq_cu_f16_value(two & mask, scale, minimum),
                                     aq_cu_f16_value(two >> 8 & mask, scale, minimum));
    }
    return {pair[0], pair[1], pair[2], pair[3]};
}

/* Units that are on their way for a thread where registers are on the way. */
enum { AQ_CU_UNITS_AHEAD = 4 };

/* aq_cu_stage_block() by way of registers.  What is no slot or no unit is read like the rest, of
 * which there is enough in the block, and not stored: no load waits for a condition. */
template <uint32_t D, bool CODES>
AQ_DEVICE_FN void aq_cu_stage_units(uint4 *tile, uint8_t *block, enum aq_dtype t, uint32_t rows,
                                    uint32_t slots, uint32_t thread, uint32_t threads)
{
    constexpr uint32_t units = D / 8;
    uint32_t count = rows * units;
    for (uint32_t u = thread; u < count; u += AQ_CU_UNITS_AHEAD * threads) {
        struct aq_cu_unit ahead[AQ_CU_UNITS_AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AQ_CU_UNITS_AHEAD; k++) {
            uint32_t at = aq_cu_min(u + k * threads, count - 1);
            ahead[k] = aq_cu_load_unit<D, CODES>(block, t, at / units, at % units);
        }
#pragma unroll
        for (uint32_t k = 0; k < AQ_CU_UNITS_AHEAD; k++) {
            uint32_t at = u + k * threads, row = at / units;
            uint4 v = CODES ? aq_cu_unit_of_codes<D>(&ahead[k], t, at % units) : ahead[k].whole;
            if (at < count)
                tile[aq_cu_tile_at<D>(row, at % units)] =
                    row % AQ_HEAD_BLOCK_SLOTS < slots ? v : uint4{0, 0, 0, 0};
        }
    }
}

/* The first `rows` rows of a head-block (32: K alone, 64: V as well) into a tile, by `threads`
 * threads; slots from `slots` on are zeros.  Copies may be under way when it returns. */
template <uint32_t D>
AQ_DEVICE_FN void aq_cu_stage_block(uint4 *tile, uint8_t *block, enum aq_dtype t, uint32_t rows,
                                    uint32_t slots, uint32_t thread, uint32_t threads)
{
    constexpr uint32_t units = D / 8;
    if (aq_cu_is_quantised(t)) {
        aq_cu_stage_units<D, true>(tile, block, t, rows, slots, thread, threads);
        return;
    }
    if (!aq_cu_copies_alone()) {
        aq_cu_stage_units<D, false>(tile, block, t, rows, slots, thread, threads);
        return;
    }
    for (uint32_t u = thread; u < rows * units; u += threads) {
        uint32_t row = u / units;
        aq_cu_copy16(tile + aq_cu_tile_at<D>(row, u % units),
                     reinterpret_cast<const uint4 *>(block) + u, row % AQ_HEAD_BLOCK_SLOTS < slots);
    }
}

#endif
