/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"
#include "tests/test.h"

#include <string.h>

static void every_mask_gives_a_complete_table(void **state)
{
    for (unsigned mask = 0; mask < 2 * AQ_ISA_AMX; mask++) {
        struct aq_kernels k;
        memset(&k, 0, sizeof(k));
        aq_kernels_cpu(&k, mask);
        assert_int_equal(k.isa, mask);
        assert_non_null(k.product_f32);
        assert_non_null(k.product_bf16);
        assert_non_null(k.product_codes);
        assert_non_null(k.pack_panel);
        assert_non_null(k.kv_encode);
        assert_non_null(k.kv_bounds);
        assert_non_null(k.kv_choose);
        assert_non_null(k.weigh);
        assert_non_null(k.weights_between);
        assert_non_null(k.unpack);
        assert_non_null(k.rotate);
        assert_non_null(k.attn_decode);
        assert_non_null(k.attn_prefill);
        assert_non_null(k.attn_stats);
        assert_non_null(k.kv_append);
        assert_non_null(k.kv_victim);
        assert_non_null(k.kv_value);
        assert_non_null(k.kv_key_value);
        assert_non_null(k.kv_select);
        assert_non_null(k.kv_move);
    }
}

static void a_level_name_means_that_level_and_all_below_it(void **state)
{
    unsigned mask = 99;
    assert_true(aq_isa_parse("ref", &mask));
    assert_int_equal(mask, 0);
    assert_true(aq_isa_parse("avx2", &mask));
    assert_int_equal(mask, AQ_ISA_AVX2);
    assert_true(aq_isa_parse("AVX512", &mask));
    assert_int_equal(mask, AQ_ISA_AVX2 | AQ_ISA_AVX512);
    assert_true(aq_isa_parse("avx512vnni", &mask));
    unsigned vnni = AQ_ISA_AVX2 | AQ_ISA_AVX512 | AQ_ISA_AVX512VNNI;
    assert_int_equal(mask, vnni);
    assert_true(aq_isa_parse("avx512bf16", &mask));
    assert_int_equal(mask, vnni | AQ_ISA_AVX512BF16);
    assert_true(aq_isa_parse("amx", &mask));
    assert_int_equal(mask, vnni | AQ_ISA_AVX512BF16 | AQ_ISA_AMX);
}

static void an_unknown_level_is_refused_and_the_mask_untouched(void **state)
{
    unsigned mask = 99;
    assert_false(aq_isa_parse("avx", &mask));
    assert_false(aq_isa_parse("", &mask));
    assert_int_equal(mask, 99);
}

static void a_mask_is_named_after_its_highest_level(void **state)
{
    static const char *const names[] = {"ref", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        unsigned mask;
        assert_true(aq_isa_parse(names[i], &mask));
        assert_string_equal(aq_isa_name(mask), names[i]);
    }
}

static void detected_levels_have_no_gap_below_them(void **state)
{
    unsigned have = aq_isa_detect(), below = 0;
    assert_true(aq_isa_parse(aq_isa_name(have), &below));
    assert_int_equal(have & ~below, 0);
}

static void nobody_choosing_takes_all_but_a_slow_bf16(void **state)
{
    const char *why = NULL;
    unsigned have = aq_isa_detect();
    if (have & AQ_ISA_AMX) {
        assert_int_equal(aq_isa_auto(have, &why), have);
        assert_non_null(strstr(why, "AMX tiles"));
    }
    unsigned below = have & ~(unsigned)AQ_ISA_AMX, chosen = aq_isa_auto(below, &why);
    assert_non_null(why);
    assert_int_equal(chosen | (below & AQ_ISA_AVX512BF16), below);
    /* Measured anew each time, decided alike: bits rest on it. */
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(aq_isa_auto(below, &why), chosen);
    assert_int_equal(aq_isa_auto(0, &why), 0);
}

static void bf16_is_computed_in_where_the_cpu_can_whatever_is_chosen_for_it(void **state)
{
    bool bf16;
    unsigned have = AQ_ISA_AVX2 | AQ_ISA_AVX512 | AQ_ISA_AVX512BF16, low = AQ_ISA_AVX2;
    aq_isa_chosen(&(struct aq_isa_choice){.given = false}, have & aq_isa_detect(), &bf16);
    assert_int_equal(bf16, (have & aq_isa_detect() & AQ_ISA_AVX512BF16) != 0);
    assert_int_equal(
        aq_isa_chosen(&(struct aq_isa_choice){.given = true, .mask = low}, have, &bf16), low);
    assert_false(bf16);
    assert_int_equal(aq_isa_chosen(&(struct aq_isa_choice){.kept = true, .mask = low}, have, &bf16),
                     low);
    assert_true(bf16);
}

static void scratch_grows_with_need_and_keeps_alignment(void **state)
{
    const struct aq_scratch_need small = {.k_max = 64, .head_dim_max = 64, .context_max = 64};
    const struct aq_scratch_need large = {
        .k_max = 65536, .head_dim_max = 256, .context_max = 131072};
    assert_true(aq_kernels_scratch_bytes(&small) > 0);
    assert_true(aq_kernels_scratch_bytes(&large) >= aq_kernels_scratch_bytes(&small));
    assert_int_equal(aq_kernels_scratch_bytes(&small) % 64, 0);
    assert_int_equal(aq_kernels_scratch_bytes(&large) % 64, 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_mask_gives_a_complete_table),
    cmocka_unit_test(a_level_name_means_that_level_and_all_below_it),
    cmocka_unit_test(an_unknown_level_is_refused_and_the_mask_untouched),
    cmocka_unit_test(a_mask_is_named_after_its_highest_level),
    cmocka_unit_test(detected_levels_have_no_gap_below_them),
    cmocka_unit_test(nobody_choosing_takes_all_but_a_slow_bf16),
    cmocka_unit_test(bf16_is_computed_in_where_the_cpu_can_whatever_is_chosen_for_it),
    cmocka_unit_test(scratch_grows_with_need_and_keeps_alignment),
};

AQ_TEST_MAIN(tests)
