/* SPDX-License-Identifier: Apache-2.0
 * kernels/cpu/tiles.h - the few operations on AMX tiles that kernels need.  A thread has tiles 0
 * to 7 of at most 16 rows of 64 bytes.  Kernels that use them are compiled twice: with the
 * instructions, and for tests with AQ_TILES_EMULATED, where plain C gives the same bits on any CPU.
 *
 *     aq_tiles_configure(shapes, count)       before anything else; contents become zero
 *     AQ_TILE_ZERO(t)
 *     AQ_TILE_LOAD(t, base, stride_bytes)     rows of 64-byte aligned memory load fastest
 *     AQ_TILE_STORE(t, base, stride_bytes)
 *     AQ_TILE_DOT(sum, a, b)                  sum f32 [rows][columns] += a * b for bf16
 *                                             a [rows][pairs][2], b [pairs][columns][2]
 *     aq_tiles_release()                      a thread that keeps tiles is slower to switch
 *
 * The number of a tile is written out (0, not a constant's name): it is part of the instruction. */
#ifndef AQ_KERNELS_CPU_TILES_H
#define AQ_KERNELS_CPU_TILES_H

#include "base/types.h"

#include <string.h>

enum {
    AQ_TILE_ROWS = 16,
    AQ_TILE_BYTES = 64, /* of a row */
    AQ_TILE_K = 32,     /* bf16 of a row: what one dot product sums over */
    AQ_TILES = 8,
};

/* rows 1..16, row_bytes a multiple of 4 up to 64; both 0 where a tile is not used. */
struct aq_tile_shape {
    uint8_t rows, row_bytes;
};

#if defined(AQ_TILES_EMULATED)

#include "kernels/cpu/tiles_emulated.h"

static _Thread_local struct aq_tiles_emulated aq_tiles;

static inline void aq_tiles_configure(const struct aq_tile_shape *shape, uint32_t count)
{
    memset(&aq_tiles, 0, sizeof(aq_tiles));
    for (uint32_t i = 0; i < count; i++) {
        aq_tiles.tile[i].rows = shape[i].rows;
        aq_tiles.tile[i].row_bytes = shape[i].row_bytes;
    }
}

static inline void aq_tiles_release(void)
{
    memset(&aq_tiles, 0, sizeof(aq_tiles));
}

#define AQ_TILE_ZERO(t)                aq_tiles_emulated_zero(&aq_tiles, t)
#define AQ_TILE_LOAD(t, base, stride)  aq_tiles_emulated_load(&aq_tiles, t, base, stride)
#define AQ_TILE_STORE(t, base, stride) aq_tiles_emulated_store(&aq_tiles, t, base, stride)
#define AQ_TILE_DOT(sum, a, b)         aq_tiles_emulated_dot(&aq_tiles, sum, a, b)

#else

#include <immintrin.h>

/* As the instruction reads it: SDM, volume 2, LDTILECFG. */
static inline void aq_tiles_configure(const struct aq_tile_shape *shape, uint32_t count)
{
    _Alignas(64) struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (uint32_t i = 0; i < count; i++) {
        config.row_bytes[i] = shape[i].row_bytes;
        config.rows[i] = shape[i].rows;
    }
    /* Some compilers take the instruction to read eight bytes. */
    __asm__ volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
}

static inline void aq_tiles_release(void)
{
    _tile_release();
}

#define AQ_TILE_ZERO(t) _tile_zero(t)
/* GCC's intrinsic does not say that it reads memory: what was stored before stays before. */
#define AQ_TILE_LOAD(t, base, stride)                                                              \
    do {                                                                                           \
        __asm__ volatile("" ::: "memory");                                                         \
        _tile_loadd(t, base, stride);                                                              \
    } while (0)
#define AQ_TILE_STORE(t, base, stride) _tile_stored(t, base, stride)
#define AQ_TILE_DOT(sum, a, b)         _tile_dpbf16ps(sum, a, b)

#endif

#endif
