/* SPDX-License-Identifier: Apache-2.0
 * The definition of int8 and int4 (kernels/cpu/quant.h), and that panels keep to it. */
#include "kernels/cpu/quant.h"

#include "base/kv_block.h"
#include "base/prng.h"
#include "base/threads.h"
#include "kernels/kernels.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum aq_dtype formats[] = {AQ_Q8, AQ_Q4};

/* Every f16, and the values half way and a quarter between neighbours: down is the largest f16 that
 * is not above, up the smallest that is not below. */
static void rounding_to_f16_goes_the_way_it_is_told(void **state)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float a = aq_f32_from_f16((uint16_t)h), b = aq_f32_from_f16((uint16_t)(h + 1));
        assert_int_equal(aq_f16_down(a), h);
        assert_int_equal(aq_f16_up(a), h);
        for (int part = 1; part < 4; part++) {
            float x = a + (b - a) * 0.25f * (float)part;
            assert_int_equal(aq_f16_down(x), h);
            assert_int_equal(aq_f16_up(x), h + 1);
            assert_int_equal(aq_f16_down(-x), (h + 1) | 0x8000);
            assert_int_equal(aq_f16_up(-x), h | 0x8000);
        }
    }
    assert_int_equal(aq_f16_down(70000), 0x7bff);
    assert_int_equal(aq_f16_up(70000), 0x7c00);
    assert_int_equal(aq_f16_down(-70000), 0xfc00);
    assert_int_equal(aq_f16_down(-1e-30f), 0x8001);
    assert_int_equal(aq_f16_up(1e-30f), 0x0001);
}

/* Draws of many sizes and offsets. */
static float draw(uint64_t round, uint64_t i)
{
    float size = ldexpf(1, (int)aq_prng_below(1, round, 0, 26) - 16);
    float offset = aq_prng_normal(2, round, 0) * (float)aq_prng_below(3, round, 0, 3);
    return size * (aq_prng_normal(4, round, i) + offset);
}

static void no_value_is_off_by_more_than_half_a_scale(void **state)
{
    for (uint64_t round = 0; round < 4000; round++) {
        enum aq_dtype t = formats[round % 2];
        float v[AQ_GROUP_K];
        uint32_t n = 1 + (uint32_t)aq_prng_below(5, round, 0, AQ_GROUP_K);
        for (uint32_t i = 0; i < n; i++)
            v[i] = draw(round, i);
        struct aq_quant q = aq_quant_of(v, n, t);
        double scale = aq_f32_from_f16(q.scale);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t code = aq_quant_code(q, v[i], t);
            assert_true(code <= (uint32_t)aq_code_max(t));
            double off = fabs((double)aq_quant_value(q, code) - v[i]);
            /* Also beyond the last code, which falls short by 15 * 2^-11 of a scale at most.
             * Finding the code and the value takes three roundings to f32. */
            assert_true(off <= scale / 2 + 3 * 0x1p-23 * (fabs(v[i]) + 16 * scale));
        }
    }
}

/* Of a group from 0 to the last code at this step. */
static struct aq_quant with_step(float step, enum aq_dtype t)
{
    const float ends[] = {0, step * aq_code_max(t)};
    return aq_quant_of(ends, 2, t);
}

/* Every normal f16 and the quarters up to the next; 15 and 255 of them are exact in f32. */
static void int4_scales_are_the_nearest_and_int8_scales_the_next_above(void **state)
{
    for (uint32_t h = 0x0400; h < 0x7bff; h++) {
        float a = aq_f32_from_f16((uint16_t)h), b = aq_f32_from_f16((uint16_t)(h + 1));
        for (uint32_t part = 0; part <= 4; part++) {
            float step = a + (b - a) * 0.25f * (float)part;
            uint32_t even = h % 2; /* of two as near */
            assert_int_equal(with_step(step, AQ_Q4).scale, h + (part == 2 ? even : part > 2));
            assert_int_equal(with_step(step, AQ_Q8).scale, h + (part > 0));
        }
    }
}

/* The nearest multiple of 2^-24 may be far below the step: 1.25 of it is rounded up to 2, or the
 * last of 15 codes would fall short by 3.75 scales, and 0.25 of it to 1, or all codes were 0. */
static void scales_below_the_normal_numbers_are_rounded_up(void **state)
{
    for (uint32_t h = 0; h < 0x0400; h++) {
        for (uint32_t part = 0; part < 4; part++) {
            float step = ldexpf((float)(4 * h + part), -26);
            for (size_t f = 0; f < AQ_ARRAY_LEN(formats); f++)
                assert_int_equal(with_step(step, formats[f]).scale, h + (part > 0));
        }
    }
}

/* By 2^-11 of the scale for each code where a scale is rounded to nearest; never short of the
 * largest value where it is rounded up. */
static void the_last_code_falls_short_by_no_more_than_the_scale_does(void **state)
{
    double found = 0;
    for (uint64_t round = 0; round < 4000; round++) {
        for (size_t f = 0; f < AQ_ARRAY_LEN(formats); f++) {
            float v[AQ_GROUP_K], hi = -INFINITY;
            for (uint32_t i = 0; i < AQ_GROUP_K; i++) {
                v[i] = draw(round, i);
                hi = fmaxf(hi, v[i]);
            }
            struct aq_quant q = aq_quant_of(v, AQ_GROUP_K, formats[f]);
            double scale = aq_f32_from_f16(q.scale), codes = aq_code_max(formats[f]);
            double last = codes * scale + aq_f32_from_f16(q.minimum);
            double roundings = 3 * 0x1p-24 * (fabs(hi) + codes * scale); /* of hi - minimum, / */
            double most = formats[f] == AQ_Q4 ? codes * 0x1p-11 * scale : 0;
            assert_true(hi - last <= most + roundings);
            if (formats[f] == AQ_Q4)
                found = fmax(found, (hi - last) / scale);
        }
    }
    assert_true(found > 0.9 * 15 * 0x1p-11); /* as much does occur */
}

static void a_group_of_one_f16_value_is_kept_exactly(void **state)
{
    static const float values[] = {0, -0.0f, 1, -1, 0.333251953125f, 65504, -65504, 0x1p-24f};
    for (size_t i = 0; i < AQ_ARRAY_LEN(values); i++) {
        for (size_t f = 0; f < AQ_ARRAY_LEN(formats); f++) {
            float v[3] = {values[i], values[i], values[i]};
            struct aq_quant q = aq_quant_of(v, 3, formats[f]);
            assert_int_equal(q.scale, 0);
            assert_int_equal(aq_quant_code(q, v[0], formats[f]), 0);
            assert_true(aq_quant_value(q, 0) == values[i]);
        }
    }
}

static void what_f16_cannot_reach_is_nan_throughout(void **state)
{
    const float bad[] = {INFINITY, -INFINITY, NAN, -70000, 3e38f};
    for (size_t i = 0; i < AQ_ARRAY_LEN(bad); i++) {
        for (size_t f = 0; f < AQ_ARRAY_LEN(formats); f++) {
            for (uint32_t at = 0; at < 3; at++) {
                float v[3] = {1, 2, 3};
                v[at] = bad[i];
                struct aq_quant q = aq_quant_of(v, 3, formats[f]);
                assert_true(isnan(aq_quant_value(q, aq_quant_code(q, 1, formats[f]))));
            }
        }
    }
}

/* Through a panel and back, every element, at sizes around the borders of pairs, sixteens and
 * groups. */
static void a_panel_holds_the_code_of_each_element(void **state)
{
    static const uint32_t k_values[] = {1, 2, 15, 16, 17, 63, 64, 65, 130, 191};
    struct aq_kernels kernels;
    aq_kernels_cpu(&kernels, 0);
    for (size_t c = 0; c < AQ_ARRAY_LEN(k_values) * AQ_ARRAY_LEN(formats); c++) {
        enum aq_dtype t = formats[c % 2];
        uint32_t k = k_values[c / 2], rows = 1 + (uint32_t)aq_prng_below(6, c, 0, AQ_PANEL_ROWS);
        float *v = malloc((size_t)rows * k * sizeof(*v));
        void *panel = aligned_alloc(4096, aq_panel_bytes(t, k));
        for (size_t i = 0; i < (size_t)rows * k; i++)
            v[i] = draw(c, i);
        kernels.pack_panel(panel, t, AQ_LAYOUT_GROUP64, v, AQ_F32, rows, k);
        for (uint32_t row = 0; row < AQ_PANEL_ROWS; row++) {
            for (uint32_t i = 0; i < k; i++) {
                float got = aq_group_load(panel, t, k, row, i), want = 0;
                if (row < rows) {
                    uint32_t first = i / AQ_GROUP_K * AQ_GROUP_K;
                    const float *group = v + (size_t)row * k + first;
                    uint32_t n = (uint32_t)aq_min_u64(AQ_GROUP_K, k - first);
                    struct aq_quant q = aq_quant_of(group, n, t);
                    want = aq_quant_value(q, aq_quant_code(q, group[i - first], t));
                }
                assert_true(got == want);
            }
        }
        free(panel);
        free(v);
    }
}

static void sizes_are_those_of_the_formats(void **state)
{
    assert_int_equal(aq_group_bytes(AQ_Q8, 64), 64 * 64 + 256);
    assert_int_equal(aq_group_bytes(AQ_Q4, 64), 64 * 32 + 256);
    assert_int_equal(aq_panel_offset(AQ_Q4, 4096), 64 * 2304);
    assert_int_equal(aq_panel_offset(AQ_Q8, 65), 4352 + 128 + 256);
    assert_int_equal(aq_panel_offset(AQ_Q4, 65), 2304 + 512 + 256);
    assert_int_equal(aq_panel_bytes(AQ_Q4, 1024), 16 * 2304);
    assert_int_equal(aq_panel_bytes(AQ_Q8, 1), 4096);
    assert_int_equal(aq_panel_bytes(AQ_BF16, 3), 4096);
    assert_int_equal(aq_panel_bytes(AQ_F32, 4096), 64 * 4096 * 4);
    assert_int_equal(aq_kv_block_bytes(AQ_F16, 64), 2 * 32 * 64 * 2);
    assert_int_equal(aq_kv_block_bytes(AQ_Q8, 64), 2 * 32 * 64 + 256);
    assert_int_equal(aq_kv_block_bytes(AQ_Q4, 7), 2 * 32 * 4 + 256);
    for (uint32_t dim = 1; dim < 200; dim++) {
        assert_int_equal(aq_kv_block_bytes(AQ_Q4, dim) % 64, 0);
        assert_int_equal(aq_kv_block_bytes(AQ_Q8, dim) % 64, 0);
    }
}

/* The quantiser of KIVI's program (quant/new_pack.py: quant_and_pack_kcache and _vcache),
 * literally: the group's minimum and a scale of its range; codes rounded after they are clamped. */
static float literal_scale(const float *v, uint32_t n, float codes, float *ret_minimum)
{
    float lo = v[0], hi = v[0];
    for (uint32_t i = 1; i < n; i++) {
        lo = fminf(lo, v[i]);
        hi = fmaxf(hi, v[i]);
    }
    *ret_minimum = lo;
    return (hi - lo) / codes;
}

/* Of values in f16, the group with this scale and minimum and codes from code(i) on. */
static void expect_literal_group(const float *v, uint32_t n, float codes, struct aq_quant q,
                                 const uint32_t *code)
{
    float minimum, scale = literal_scale(v, n, codes, &minimum);
    float ours = aq_f32_from_f16(q.scale);
    assert_true(aq_f32_from_f16(q.minimum) == minimum);
    assert_true(q.scale == aq_f16_up(scale)); /* less than one ulp above the literal one */
    for (uint32_t i = 0; i < n; i++) {
        float x = ours > 0 ? (v[i] - minimum) / ours : 0;
        assert_true(x >= 0 && rintf(x) <= codes); /* clamping never bites */
        assert_true((float)code[i] == rintf(fminf(fmaxf(x, 0), codes)));
    }
}

/* Of a run of n numbers, `each` of them in a byte: number i of one of its eight vectors. */
static uint32_t literal_code(const uint8_t *run, uint32_t each, uint32_t n, uint32_t vector,
                             uint32_t i)
{
    uint32_t words = (n + each - 1) / each, bits = 8 / each;
    return run[i % words * 8 + vector] >> (i / words * bits) & ((1u << bits) - 1);
}

static void expect_literal_block(enum aq_dtype t, uint32_t dim, const uint16_t *rows,
                                 const uint8_t *block)
{
    float codes = t == AQ_KIVI2 ? 3 : 15, v[32];
    uint32_t groups = (dim + 31) / 32, each = t == AQ_KIVI2 ? 4 : 2, code[32];
    const uint16_t *keys = (const uint16_t *)(const void *)block;
    const uint16_t *values = keys + (dim + 15) / 16 * 32;
    const uint8_t *k = (const uint8_t *)(values + 2 * groups * 32);
    const uint8_t *w = k + (dim + 7) / 8 * (256 / each);
    for (uint32_t d = 0; d < dim; d++) {
        for (uint32_t slot = 0; slot < 32; slot++) {
            v[slot] = aq_f32_from_f16(rows[slot * dim + d]);
            code[slot] = literal_code(k + d / 8 * (256 / each), each, 32, d % 8, slot);
        }
        expect_literal_group(v, 32, codes, (struct aq_quant){keys[d], keys[dim + d]}, code);
    }
    for (uint32_t slot = 0; slot < 32; slot++) {
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t n = dim - 32 * g < 32 ? dim - 32 * g : 32;
            for (uint32_t i = 0; i < n; i++) {
                uint32_t d = 32 * g + i;
                v[i] = aq_f32_from_f16(rows[(32 + slot) * dim + d]);
                uint32_t words = (n + each - 1) / each;
                const uint8_t *run = w + 32 * g / each * 32 + slot / 8 * words * 8;
                code[i] = literal_code(run, each, n, slot % 8, i);
            }
            expect_literal_group(
                v, n, codes,
                (struct aq_quant){values[g * 32 + slot], values[(groups + g) * 32 + slot]}, code);
        }
    }
}

static void a_block_of_kivi_is_the_literal_loop(void **state)
{
    static const uint32_t dims[] = {128, 64, 80, 7, 33};
    struct aq_kernels kernels;
    struct aq_pool *pool;
    struct aq_exec *ex;
    static uint8_t scratch[4096] __attribute__((aligned(64)));
    struct aq_err err = {0};
    aq_kernels_cpu(&kernels, 0);
    assert_int_equal(aq_pool_open(&pool, 1, &err), 0);
    assert_int_equal(aq_exec_open(&ex, pool, scratch, sizeof(scratch), &err), 0);
    for (size_t i = 0; i < AQ_ARRAY_LEN(dims); i++) {
        for (int t = AQ_KIVI4; t <= AQ_KIVI2; t++) {
            uint32_t dim = dims[i];
            uint16_t *rows = calloc(64u * dim, sizeof(*rows));
            uint8_t *block = malloc(aq_kv_block_bytes((enum aq_dtype)t, dim));
            for (uint32_t n = 0; n < 64 * dim; n++) /* channels of other sizes; one is constant */
                rows[n] = aq_f16_from_f32(
                    n % dim == 3 ? 1.25f : aq_prng_normal(9, dim, n) * (float)(1 + n % 5 * 7));
            struct aq_kv_encode run = {(const uint8_t *)rows, block};
            kernels.kv_encode(ex, &(struct aq_kv_encodes){&run, 1, (enum aq_dtype)t, 1, dim});
            expect_literal_block((enum aq_dtype)t, dim, rows, block);
            free(block);
            free(rows);
        }
    }
    aq_exec_close(ex);
    aq_pool_close(pool);
}

static void kivi_takes_the_bits_that_it_says(void **state)
{
    /* 32 tokens of a head of 128: 5 and 3 bits for each number. */
    assert_int_equal(aq_kv_block_bytes(AQ_KIVI4, 128) * 8, 5 * 2 * 32 * 128);
    assert_int_equal(aq_kv_block_bytes(AQ_KIVI2, 128) * 8, 3 * 2 * 32 * 128);
    for (uint32_t dim = 1; dim < 300; dim++) {
        assert_int_equal(aq_kv_block_bytes(AQ_KIVI4, dim) % 64, 0);
        assert_int_equal(aq_kv_block_bytes(AQ_KIVI2, dim) % 64, 0);
    }
}

static void formats_have_names_that_are_not_those_of_file_types(void **state)
{
    enum aq_dtype t;
    assert_string_equal(aq_dtype_name(AQ_Q8), "int8");
    assert_string_equal(aq_dtype_name(AQ_Q4), "int4");
    assert_string_equal(aq_dtype_name(AQ_I8), "i8");
    assert_true(aq_dtype_parse("INT4", &t) && t == AQ_Q4);
    assert_true(aq_dtype_parse("i8", &t) && t == AQ_I8);
    assert_true(aq_dtype_is_quantised(AQ_Q8) && !aq_dtype_is_quantised(AQ_I8));
    assert_int_equal(aq_layout_cpu(AQ_Q4), AQ_LAYOUT_GROUP64);
    assert_string_equal(aq_layout_name(AQ_LAYOUT_GROUP64), "group64");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rounding_to_f16_goes_the_way_it_is_told),
    cmocka_unit_test(no_value_is_off_by_more_than_half_a_scale),
    cmocka_unit_test(int4_scales_are_the_nearest_and_int8_scales_the_next_above),
    cmocka_unit_test(scales_below_the_normal_numbers_are_rounded_up),
    cmocka_unit_test(the_last_code_falls_short_by_no_more_than_the_scale_does),
    cmocka_unit_test(a_group_of_one_f16_value_is_kept_exactly),
    cmocka_unit_test(what_f16_cannot_reach_is_nan_throughout),
    cmocka_unit_test(a_panel_holds_the_code_of_each_element),
    cmocka_unit_test(sizes_are_those_of_the_formats),
    cmocka_unit_test(a_block_of_kivi_is_the_literal_loop),
    cmocka_unit_test(kivi_takes_the_bits_that_it_says),
    cmocka_unit_test(formats_have_names_that_are_not_those_of_file_types),
};

AQ_TEST_MAIN(tests)
