/* SPDX-License-Identifier: Apache-2.0
 * One product of tiles, compared with what the manual says it is. */
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/tiles_emulated.h"
#include "kernels/cpu/versions.h"

enum { ROWS = 4, WORDS = 32 };

/* Numbers of both signs around 1, whose sums round at every step. */
static uint16_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint16_t)(0x3f00 + (*state >> 24) + (*state >> 8 & 0x8000));
}

bool aq_tiles_sound(void)
{
    _Alignas(64) uint16_t a[AQ_TILE_ROWS][WORDS] = {{0}}, b[AQ_TILE_ROWS][WORDS];
    _Alignas(64) float sum[AQ_TILE_ROWS][16] = {{0}}, expected[AQ_TILE_ROWS][16] = {{0}};
    uint32_t state = 1;
    for (uint32_t i = 0; i < AQ_TILE_ROWS; i++) {
        for (uint32_t k = 0; k < WORDS; k++) {
            b[i][k] = draw(&state);
            a[i][k] = i < ROWS ? draw(&state) : 0;
        }
    }
    /* Rows that are zero stay so; of the others two products, so that sums are added to. */
    const struct aq_tile_shape whole = {AQ_TILE_ROWS, AQ_TILE_BYTES};
    aq_tiles_configure((const struct aq_tile_shape[]){whole, whole, whole}, 3);
    AQ_TILE_LOAD(1, a, AQ_TILE_BYTES);
    AQ_TILE_LOAD(2, b, AQ_TILE_BYTES);
    AQ_TILE_ZERO(0);
    AQ_TILE_DOT(0, 1, 2);
    AQ_TILE_DOT(0, 1, 2);
    AQ_TILE_STORE(0, sum, AQ_TILE_BYTES);
    aq_tiles_release();
    for (uint32_t i = 0; i < 2; i++)
        aq_tiles_dot(expected, (const uint16_t(*)[WORDS])a, (const uint16_t(*)[WORDS])b, ROWS, 16,
                     16);
    return memcmp(sum, expected, sizeof(sum)) == 0;
}
