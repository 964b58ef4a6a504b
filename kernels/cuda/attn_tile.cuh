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

/* Eight elements of a row (0 to 31: K's, 32 to 63: V's) of a head-block, as they lie in memory. */
struct aq_cu_unit {
    uint4 whole; /* of 16-bit elements */
    uint2 codes;
    uint16_t scale, minimum;
};

template <enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN struct aq_cu_unit aq_cu_load_unit(uint8_t *block, uint32_t row, uint32_t unit)
{
    struct aq_cu_unit u = {};
    if (T != AQ_Q8 && T != AQ_Q4) {
        u.whole = reinterpret_cast<const uint4 *>(block)[row * (D / 8) + unit];
        return u;
    }
    const uint16_t *of = aq_cu_kv_scale(block, row);
    u.scale = of[0];
    u.minimum = of[AQ_HEAD_BLOCK_SLOTS];
    /* The first half of a row of int4 is in the low halves of its bytes. */
    uint32_t first = T == AQ_Q4 ? 8 * unit % (D / 2) : 8 * unit;
    u.codes = *reinterpret_cast<const uint2 *>(aq_cu_kv_row(block, T, D, row) + first);
    return u;
}

/* Eight elements of codes, in f16; of int4 those of the upper halves of bytes or of the lower. */
template <enum aq_dtype T>
AQ_DEVICE_FN uint4 aq_cu_unit_of_codes(uint2 codes, bool high, uint16_t scale, uint16_t minimum)
{
    uint32_t first = aq_cu_codes_of<T>(codes.x, high), last = aq_cu_codes_of<T>(codes.y, high);
    uint32_t scales = scale * 0x10001u, minima = minimum * 0x10001u;
    return {aq_cu_pair_of_codes(aq_cu_two_codes(first, 0), scales, minima),
            aq_cu_pair_of_codes(aq_cu_two_codes(first, 2), scales, minima),
            aq_cu_pair_of_codes(aq_cu_two_codes(last, 0), scales, minima),
            aq_cu_pair_of_codes(aq_cu_two_codes(last, 2), scales, minima)};
}

/* A thread's part of a whole head-block, K's rows and V's, on its way through registers: loaded,
 * and stored when there has been something else to do.  There are two threads for each row.  Of
 * codes a thread has every other run of words, and of each half of a row the same ones: of int4
 * those are the same bytes, and neighbours store into different banks. */
template <enum aq_dtype T, uint32_t D> struct aq_cu_next_block {
    static constexpr bool codes = T == AQ_Q8 || T == AQ_Q4;
    static constexpr uint32_t threads = 2 * 2 * AQ_HEAD_BLOCK_SLOTS;
    static constexpr uint32_t half = D / 16;        /* units of half a row: a word of codes each */
    static constexpr uint32_t run = (half + 1) / 2; /* of a thread; the last may be there twice */
    static constexpr uint32_t words = T == AQ_Q8 ? 2 * run : run;
    uint4 whole[codes ? 1 : half] = {};
    uint2 code[codes ? words : 1] = {};
    uint16_t scale = 0, minimum = 0;

    static __device__ __forceinline__ uint32_t word_of(uint32_t i, uint32_t thread)
    {
        return i / run * half + aq_cu_min(thread % 2 * run + i % run, half - 1);
    }
    __device__ __forceinline__ void load(uint8_t *from, uint32_t thread)
    {
        uint8_t *block = aq_cu_global(from);
        uint32_t row = thread / 2;
        if constexpr (codes) {
            const uint8_t *data = aq_cu_kv_row(block, T, D, row);
            const uint16_t *of = aq_cu_kv_scale(block, row);
#pragma unroll
            for (uint32_t i = 0; i < words; i++)
                code[i] = reinterpret_cast<const uint2 *>(data)[word_of(i, thread)];
            scale = of[0];
            minimum = of[AQ_HEAD_BLOCK_SLOTS];
        } else {
#pragma unroll
            for (uint32_t i = 0; i < half; i++)
                whole[i] = reinterpret_cast<const uint4 *>(block)[i * threads + thread];
        }
    }

    /* Slots from `slots` on are zeros. */
    __device__ __forceinline__ void store(uint4 *tile, uint32_t slots, uint32_t thread) const
    {
        constexpr uint32_t units = D / 8;
        uint32_t row = thread / 2;
        bool there = row % AQ_HEAD_BLOCK_SLOTS < slots;
#pragma unroll
        for (uint32_t i = 0; i < (codes ? 2 * run : half); i++) {
            if constexpr (codes) {
                uint32_t unit = word_of(i, thread);
                uint4 v = aq_cu_unit_of_codes<T>(code[i % words], unit >= half, scale, minimum);
                tile[aq_cu_tile_at<D>(row, unit)] = there ? v : uint4{0, 0, 0, 0};
            } else {
                uint32_t at = i * threads + thread;
                there = at / units % AQ_HEAD_BLOCK_SLOTS < slots;
                tile[aq_cu_tile_at<D>(at / units, at % units)] =
                    there ? whole[i] : uint4{0, 0, 0, 0};
            }
        }
    }
};

/* Units that are on their way for a thread where registers are on the way. */
enum { AQ_CU_UNITS_AHEAD = 4 };

/* aq_cu_stage_block() by way of registers.  What is no slot or no unit is read like the rest, of
 * which there is enough in the block, and not stored: no load waits for a condition. */
template <enum aq_dtype T, uint32_t D>
AQ_DEVICE_FN void aq_cu_stage_units(uint4 *tile, uint8_t *block, uint32_t rows, uint32_t slots,
                                    uint32_t thread, uint32_t threads)
{
    constexpr uint32_t units = D / 8;
    uint32_t count = rows * units;
    for (uint32_t u = thread; u < count; u += AQ_CU_UNITS_AHEAD * threads) {
        struct aq_cu_unit ahead[AQ_CU_UNITS_AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AQ_CU_UNITS_AHEAD; k++) {
            uint32_t at = aq_cu_min(u + k * threads, count - 1);
            ahead[k] = aq_cu_load_unit<T, D>(block, at / units, at % units);
        }
#pragma unroll
        for (uint32_t k = 0; k < AQ_CU_UNITS_AHEAD; k++) {
            uint32_t at = u + k * threads, row = at / units;
            uint4 v = ahead[k].whole;
            if (T == AQ_Q8 || T == AQ_Q4)
                v = aq_cu_unit_of_codes<T>(ahead[k].codes, at % units >= units / 2, ahead[k].scale,
                                           ahead[k].minimum);
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
    if (t == AQ_Q8) {
        aq_cu_stage_units<AQ_Q8, D>(tile, block, rows, slots, thread, threads);
        return;
    }
    if (t == AQ_Q4) {
        aq_cu_stage_units<AQ_Q4, D>(tile, block, rows, slots, thread, threads);
        return;
    }
    if (!aq_cu_copies_alone()) {
        aq_cu_stage_units<AQ_F16, D>(tile, block, rows, slots, thread, threads);
        return;
    }
    for (uint32_t u = thread; u < rows * units; u += threads) {
        uint32_t row = u / units;
        aq_cu_copy16(tile + aq_cu_tile_at<D>(row, u % units),
                     reinterpret_cast<const uint4 *>(block) + u, row % AQ_HEAD_BLOCK_SLOTS < slots);
    }
}

#endif
