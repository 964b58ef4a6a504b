/* SPDX-License-Identifier: Apache-2.0
 * Products of tiles, compiled for the instructions and for their emulation. */
#include "tests/unit/kernels/tiles_run.h"
#include "kernels/cpu/tiles.h"

void TILES_RUN(struct tiles_run *t)
{
    const struct aq_tile_shape shapes[] = {
        {t->rows, (uint8_t)(t->columns * 4)},
        {t->rows, (uint8_t)(t->pairs * 4)},
        {t->pairs, (uint8_t)(t->columns * 4)},
        {t->rows, (uint8_t)(t->columns * 4)},
    };
    aq_tiles_configure(shapes, AQ_ARRAY_LEN(shapes));
    AQ_TILE_LOAD(0, t->sum, t->stride);
    AQ_TILE_LOAD(1, t->a, t->stride);
    AQ_TILE_LOAD(2, t->b, t->stride);
    AQ_TILE_DOT(0, 1, 2);
    AQ_TILE_DOT(3, 1, 2);
    AQ_TILE_STORE(0, t->sum, t->stride);
    AQ_TILE_STORE(3, t->fresh, t->stride);
    AQ_TILE_ZERO(3);
    AQ_TILE_DOT(3, 1, 2);
    AQ_TILE_STORE(3, t->again, t->stride);
    aq_tiles_release();
}
