/* SPDX-License-Identifier: Apache-2.0
 * Prefill attention where the compute type is bf16, by AMX tiles. */
#include "kernels/cpu/attn_bf16_simd.h"
#include "kernels/cpu/tiles.h"

static void products_begin(void)
{
    static const struct aq_tile_shape whole[AQ_TILES] = {{16, 64}, {16, 64}, {16, 64}, {16, 64},
                                                         {16, 64}, {16, 64}, {16, 64}, {16, 64}};
    aq_tiles_configure(whole, AQ_TILES);
}

static void products_end(void)
{
    aq_tiles_release();
}

static inline void multiply(const struct product *p)
{
    enum { ROW = AQ_TILE_BYTES };
    const uint16_t *a = p->a, *b = p->b;
    if (p->adds) {
        AQ_TILE_LOAD(0, p->c, ROW);
        AQ_TILE_LOAD(1, p->c + TILE_FLOATS, ROW);
        AQ_TILE_LOAD(2, p->c + 2 * TILE_FLOATS, ROW);
        AQ_TILE_LOAD(3, p->c + 3 * TILE_FLOATS, ROW);
    } else {
        AQ_TILE_ZERO(0);
        AQ_TILE_ZERO(1);
        AQ_TILE_ZERO(2);
        AQ_TILE_ZERO(3);
    }
    for (uint32_t steps = p->steps; steps; steps--, a += TILE_HALVES, b += TILE_HALVES) {
        AQ_TILE_LOAD(4, a, ROW);
        AQ_TILE_LOAD(6, b, ROW);
        AQ_TILE_DOT(0, 4, 6);
        AQ_TILE_LOAD(7, b + p->b_next, ROW);
        AQ_TILE_DOT(1, 4, 7);
        AQ_TILE_LOAD(5, a + p->a_next, ROW);
        AQ_TILE_DOT(2, 5, 6);
        AQ_TILE_DOT(3, 5, 7);
    }
    AQ_TILE_STORE(0, p->c, ROW);
    AQ_TILE_STORE(1, p->c + TILE_FLOATS, ROW);
    AQ_TILE_STORE(2, p->c + 2 * TILE_FLOATS, ROW);
    AQ_TILE_STORE(3, p->c + 3 * TILE_FLOATS, ROW);
}

void aq_attn_prefill_amx(struct aq_exec *ex, const struct aq_attn *a)
{
    attend_pairs(ex, a);
}
