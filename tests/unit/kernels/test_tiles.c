/* SPDX-License-Identifier: Apache-2.0
 * AMX tiles and their emulation: the same bits. */
#include "base/half.h"
#include "base/prng.h"
#include "kernels/kernels.h"
#include "tests/test.h"
#include "tests/unit/kernels/tiles_run.h"

#include <math.h>
#include <string.h>

enum { SEED = 20 };

enum draw {
    DRAW_ALIKE,   /* magnitudes around 1: every sum rounds */
    DRAW_ANY,     /* any finite number, subnormal ones too */
    DRAW_TINY,    /* products around the smallest normal number */
    DRAW_APART,   /* magnitudes around 1 and around the smallest normal number */
    DRAW_SPECIAL, /* infinities and NaN too */
    DRAW_COUNT,
};

static uint32_t below(uint64_t *counter, uint32_t n)
{
    return (uint32_t)aq_prng_below(SEED, (*counter)++, 0, n);
}

static uint16_t draw_bf16(uint64_t *counter, enum draw kind)
{
    uint16_t bits = (uint16_t)below(counter, 0x10000), rest = bits & 0x807f;
    uint32_t other = below(counter, 6);
    switch (kind) {
    case DRAW_ALIKE: return (uint16_t)(rest | (125 + other) << 7);
    case DRAW_TINY: return (uint16_t)(rest | (60 + other) << 7);
    case DRAW_APART: return (uint16_t)(rest | (other < 3 ? other : 123 + other) << 7);
    case DRAW_ANY: return (bits & 0x7f80) == 0x7f80 ? rest : bits;
    default: return other ? (uint16_t)(rest | 127 << 7) : (uint16_t)(rest | 255 << 7);
    }
}

static void draw_run(uint64_t *counter, struct tiles_run *t, enum draw kind)
{
    memset(t, 0, sizeof(*t));
    t->rows = (uint8_t)(1 + below(counter, 16));
    t->columns = (uint8_t)(1 + below(counter, 16));
    t->pairs = (uint8_t)(1 + below(counter, 16));
    t->stride = below(counter, 2) ? 64 : TILES_STRIDE_MAX;
    for (size_t i = 0; i + 2 <= sizeof(t->a); i += 2) {
        uint16_t a = draw_bf16(counter, kind), b = draw_bf16(counter, kind),
                 sum = draw_bf16(counter, kind);
        memcpy(t->a + i, &a, 2);
        memcpy(t->b + i, &b, 2);
        memcpy(t->sum + i, &sum, 2);
        if (i % 4 == 0 &&
            kind == DRAW_TINY) { /* the lower half; the upper one as small as it goes */
            sum = (uint16_t)((sum & 0x807f) | below(counter, 3) << 7);
            memcpy(t->sum + i + 2, &sum, 2);
        }
    }
}

/* NaN is NaN, whatever its bits say. */
static bool same(const char *a, const char *b)
{
    for (size_t i = 0; i < 16 * TILES_STRIDE_MAX; i += 4) {
        float x, y;
        memcpy(&x, a + i, 4);
        memcpy(&y, b + i, 4);
        if (memcmp(&x, &y, 4) && !(isnan(x) && isnan(y)))
            return false;
    }
    return true;
}

static bool same_runs(const struct tiles_run *a, const struct tiles_run *b)
{
    return same(a->sum, b->sum) && same(a->fresh, b->fresh) && same(a->again, b->again);
}

#if AQ_TEST_AMX

static void the_instructions_and_their_emulation_give_the_same_bits(void **state)
{
    if (!(aq_isa_offered() & AQ_ISA_AMX)) {
        print_message("no AMX here: only the emulation is tested\n");
        skip();
    }
    uint64_t counter = 0;
    for (uint32_t i = 0; i < (TEST_SLOW ? 100 : 2000); i++) {
        enum draw kind = i % DRAW_COUNT;
        static struct tiles_run first, second;
        draw_run(&counter, &first, kind);
        second = first;
        tiles_run_amx(&first);
        tiles_run_emulated(&second);
        if (!same_runs(&first, &second))
            fail_msg("draw %u of kind %d, %u rows, %u columns, %u pairs", i, (int)kind, first.rows,
                     first.columns, first.pairs);
    }
    assert_true(aq_isa_detect() & AQ_ISA_AMX);
}

#endif

/* ---- the emulation by itself, and the instructions where there are some ---- */

/* Row 0 of a, column 0 of b, and what is there before: bits of the sum. */
static uint32_t one_sum(void (*run)(struct tiles_run *), const uint16_t *a, const uint16_t *b,
                        uint8_t pairs, uint32_t before)
{
    static struct tiles_run t;
    memset(&t, 0, sizeof(t));
    t.rows = 1;
    t.columns = 1;
    t.pairs = pairs;
    t.stride = 64;
    memcpy(t.a, a, pairs * (size_t)4);
    for (uint32_t k = 0; k < pairs; k++)
        memcpy(t.b + 64 * k, b + 2 * k, 4);
    memcpy(t.sum, &before, 4);
    run(&t);
    memcpy(&before, t.sum, 4);
    return before;
}

static uint16_t bf16(float v)
{
    return aq_bf16_from_f32(v);
}

static uint32_t bits(float v)
{
    return aq_f32_bits(v);
}

static void expect_order_and_subnormals(void (*run)(struct tiles_run *))
{
    /* Even and odd apart: in any other order 1 would be lost beside 2^40. */
    const uint16_t a[] = {bf16(0x1p40f), bf16(1), bf16(-0x1p40f), bf16(1)};
    const uint16_t ones[] = {bf16(1), bf16(1), bf16(1), bf16(1)};
    assert_int_equal(one_sum(run, a, ones, 2, bits(0)), bits(2));
    /* Both sums before what was there: 2^24 + (1 + 1), not (2^24 + 1) + 1. */
    assert_int_equal(one_sum(run, ones, ones, 1, bits(0x1p24f)), bits(0x1p24f + 2));
    /* A subnormal factor or sum is zero, and so is a subnormal number that was there. */
    const uint16_t subnormal[] = {1, 0}, large[] = {bf16(0x1p100f), 0};
    assert_int_equal(one_sum(run, subnormal, large, 1, bits(0)), bits(0));
    const uint16_t small[] = {bf16(0x1p-70f), 0};
    assert_int_equal(one_sum(run, small, small, 1, bits(0)), bits(0));
    assert_int_equal(one_sum(run, subnormal, subnormal, 1, bits(0x1p-130f)), bits(0));
    /* 2^-126 - 2^-150.4 rounds to 2^-126 as a subnormal number would, but is less in 24 bits. */
    const uint16_t edge[] = {bf16(0x1p-63f), 0, bf16(-0x1.6p-75f), 0};
    const uint16_t other[] = {bf16(0x1p-63f), 0, bf16(0x1p-76f), 0};
    assert_int_equal(one_sum(run, edge, other, 2, bits(0)), bits(0));
    const uint16_t nearer[] = {bf16(0x1p-63f), 0, bf16(-0x1.6p-76f), 0};
    assert_int_equal(one_sum(run, nearer, other, 2, bits(0)), bits(0x1p-126f));
}

static void the_emulation_sums_as_the_manual_says(void **state)
{
    expect_order_and_subnormals(tiles_run_emulated);
}

#if AQ_TEST_AMX
static void the_instructions_sum_as_the_manual_says(void **state)
{
    if (!(aq_isa_offered() & AQ_ISA_AMX))
        skip();
    expect_order_and_subnormals(tiles_run_amx);
}
#endif

static const struct CMUnitTest tests[] = {
#if AQ_TEST_AMX
    cmocka_unit_test(the_instructions_and_their_emulation_give_the_same_bits),
    cmocka_unit_test(the_instructions_sum_as_the_manual_says),
#endif
    cmocka_unit_test(the_emulation_sums_as_the_manual_says),
};

AQ_TEST_MAIN(tests)
