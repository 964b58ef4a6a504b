/* SPDX-License-Identifier: Apache-2.0
 * Products on AMX tiles: the instructions give the bits of the same source on emulated tiles, which
 * tests/kcheck compares with the reference. */
#include "base/half.h"
#include "base/prng.h"
#include "kernels/cpu/versions.h"
#include "tests/amx_emu/amx_emu.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

enum { SEED = 5, K_MAX = 4200, N_MAX = 1100, M_MAX = 300 };

struct rig {
    struct aq_pool *pool;
    struct aq_exec *exec;
    void *scratch;
    uint16_t *x;
    char *panels;
    float *one, *two;
};

static const struct shape {
    uint32_t m, k, n;
} shapes[] = {{1, 32, 64},   {1, 1, 1},      {2, 4200, 130},  {16, 95, 64},
              {17, 64, 63},  {31, 300, 70},  {33, 1030, 64},  {64, 33, 65},
              {70, 130, 64}, {300, 70, 200}, {70, 2100, 1100}};

static void *taken(size_t bytes)
{
    void *p = aligned_alloc(4096, aq_align_up(bytes, 4096));
    assert_non_null(p);
    return p;
}

static int open_rig(void **state)
{
    static struct rig r;
    const struct aq_scratch_need need = {.k_max = K_MAX, .head_dim_max = 64, .context_max = 64};
    size_t bytes = aq_kernels_scratch_bytes(&need);
    r.scratch = taken(2 * bytes);
    r.x = taken((size_t)M_MAX * (K_MAX + 1) * 2);
    r.panels = taken(aq_panel_count(N_MAX) * aq_panel_bytes(AQ_BF16, K_MAX));
    r.one = taken((size_t)M_MAX * N_MAX * 4);
    r.two = taken((size_t)M_MAX * N_MAX * 4);
    assert_int_equal(aq_pool_open(&r.pool, 2, NULL), 0);
    assert_int_equal(aq_exec_open(&r.exec, r.pool, r.scratch, bytes, NULL), 0);
    *state = &r;
    return 0;
}

static int close_rig(void **state)
{
    struct rig *r = *state;
    aq_exec_close(r->exec);
    aq_pool_close(r->pool);
    free(r->scratch);
    free(r->x);
    free(r->panels);
    free(r->one);
    free(r->two);
    return 0;
}

/* Some of them so small that products and sums are subnormal, or are so themselves. */
static uint16_t drawn(uint64_t stream, uint64_t i)
{
    float small = stream % 3 == 0 && i % 7 < 3 ? 0x1p-70f : stream % 3 == 1 ? 0x1p-60f : 1;
    uint16_t v = aq_bf16_from_f32(aq_prng_normal(SEED, i, stream) * small);
    return i % 61 == 9 ? (uint16_t)(v & 0x807f) : v;
}

static void must_agree(struct rig *r, const struct shape *s, uint32_t x_pad)
{
    size_t x_stride = s->k + x_pad, even = aq_align_up(s->k, 2);
    for (size_t i = 0; i < s->m * x_stride; i++)
        r->x[i] = drawn(0, i);
    size_t panel_bytes = aq_panel_bytes(AQ_BF16, s->k);
    for (uint32_t p = 0; p < aq_panel_count(s->n); p++) {
        uint16_t *w = (uint16_t *)(void *)(r->panels + p * panel_bytes);
        for (size_t i = 0; i < even * AQ_PANEL_ROWS; i++)
            w[i] = s->k % 2 && i >= (even - 2) * AQ_PANEL_ROWS && i % 2 ? 0 : drawn(1 + p, i);
    }
    const struct aq_segment segment = {.panels = r->panels, .rows = s->n};
    struct aq_product p = {.x = r->x,
                           .x_dtype = AQ_BF16,
                           .m = s->m,
                           .k = s->k,
                           .x_stride = x_stride,
                           .segments = &segment,
                           .segment_count = 1,
                           .w_dtype = AQ_BF16,
                           .w_layout = aq_layout_cpu(AQ_BF16),
                           .y = r->one,
                           .y_dtype = AQ_F32,
                           .y_stride = s->n};
    aq_product_bf16_amx(r->exec, &p);
    p.y = r->two;
    aq_product_bf16_amx_emulated(r->exec, &p);
    assert_memory_equal(r->one, r->two, (size_t)s->m * s->n * sizeof(float));
    /* And the last row alone those of the batch. */
    p.x = r->x + (s->m - 1) * x_stride;
    p.m = 1;
    aq_product_bf16_amx(r->exec, &p);
    assert_memory_equal(r->one + (size_t)(s->m - 1) * s->n, r->two, s->n * sizeof(float));
}

static void products_give_the_bits_of_emulated_tiles(void **state)
{
    if (!(aq_isa_detect() & AQ_ISA_AMX)) {
        print_message("no AMX here: nothing to compare the emulation with\n");
        skip();
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        must_agree(*state, &shapes[i], 0);
        must_agree(*state, &shapes[i], 1);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(products_give_the_bits_of_emulated_tiles),
};

int main(void)
{
    return cmocka_run_group_tests(tests, open_rig, close_rig) ? 1 : 0;
}
