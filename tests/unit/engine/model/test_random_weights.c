/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"

#include "engine/model/random_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { ROWS = 256, COLS = 1031 };

static const char *const writers[] = {".out_proj.weight", ".fc2.weight", NULL};

static float *draw(const char *name, uint64_t seed)
{
    float *values = malloc(sizeof(float) * ROWS * COLS);
    struct aq_random_tensor t = aq_random_tensor(seed, name, writers, 12);
    assert_non_null(values);
    aq_random_rows(values, &t, 0, ROWS, COLS);
    return values;
}

static void any_rows_can_be_made_alone(void **state)
{
    struct aq_random_tensor t = aq_random_tensor(3, "layers.1.fc1.weight", writers, 12);
    float *all = draw("layers.1.fc1.weight", 3), part[7 * COLS];
    for (uint32_t first = 0; first + 7 <= ROWS; first += 31) {
        aq_random_rows(part, &t, first, 7, COLS);
        assert_memory_equal(part, all + (size_t)first * COLS, sizeof(part));
    }
    free(all);
}

static void seed_and_name_choose_the_values(void **state)
{
    float *a = draw("layers.1.fc1.weight", 3), *b = draw("layers.1.fc1.weight", 4),
          *c = draw("layers.2.fc1.weight", 3), *again = draw("layers.1.fc1.weight", 3);
    size_t same_b = 0, same_c = 0;
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++) {
        same_b += a[i] == b[i];
        same_c += a[i] == c[i];
    }
    assert_memory_equal(a, again, sizeof(float) * ROWS * COLS);
    /* Two draws of 2^18 levels meet about once in 2^17 or 2^18. */
    assert_true(same_b < 30 && same_c < 30);
    free(a);
    free(b);
    free(c);
    free(again);
}

/* The bits are promised for every machine: a change here changes published benchmarks. */
static void the_bits_are_fixed(void **state)
{
    float *a = draw("layers.1.fc1.weight", 3);
    assert_int_equal(XXH3_64bits(a, sizeof(float) * ROWS * COLS), 0xc55d1ff9b8a28cefull);
    free(a);
}

static void must_be_normal(const char *name, double mean, double deviation)
{
    float *a = draw(name, 7);
    double n = (double)ROWS * COLS, sum = 0, square = 0;
    size_t within_1 = 0, within_2 = 0;
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++) {
        double x = (a[i] - mean) / deviation;
        sum += x;
        square += x * x;
        within_1 += fabs(x) < 1;
        within_2 += fabs(x) < 2;
        assert_true(fabs(x) < 3.47);
    }
    free(a);
    /* Five standard errors of mean and variance; the normal's 68.3 % and 95.4 % within 2 %. */
    assert_true(fabs(sum / n) < 5 / sqrt(n));
    assert_true(fabs(square / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs((double)within_1 / n - 0.683) < 0.02);
    assert_true(fabs((double)within_2 / n - 0.954) < 0.02);
}

static void values_are_nearly_normal_at_the_scale_of_their_kind(void **state)
{
    must_be_normal("embed_tokens.weight", 0, 0.02);
    must_be_normal("layers.0.self_attn.q_proj.weight", 0, 0.02);
    must_be_normal("layers.0.self_attn.out_proj.weight", 0, 0.02 / sqrt(24));
    must_be_normal("layers.0.fc2.weight", 0, 0.02 / sqrt(24));
    must_be_normal("layers.0.fc2.bias", 0, 0.01);
    must_be_normal("layers.0.self_attn_layer_norm.weight", 1, 0.02);
    must_be_normal("layers.0.self_attn_layer_norm.bias", 0, 0.01);
    must_be_normal("final_layer_norm.weight", 1, 0.02);
}

/* Matrices that are rows of one tensor are drawn each by its own name, at the tensor's scale. */
static void rows_of_a_tensor_have_its_scale(void **state)
{
    must_be_normal("layers.0.attention.query_key_value.weight#q", 0, 0.02);
    must_be_normal("layers.0.attention.query_key_value.bias#q", 0, 0.01);
    must_be_normal("layers.0.fc2.weight#half", 0, 0.02 / sqrt(24));
    struct aq_random_tensor q = aq_random_tensor(7, "a.weight#q", writers, 12),
                            k = aq_random_tensor(7, "a.weight#k", writers, 12);
    assert_true(q.key != k.key);
}

/* Correlation of the table's entries with those `rows` further down and `cols` to the right. */
static double correlation(const float *a, size_t rows, size_t cols)
{
    double sum = 0;
    size_t n = 0;
    for (size_t r = 0; r + rows < ROWS; r++) {
        for (size_t c = 0; c + cols < COLS; c++, n++)
            sum += (double)a[r * COLS + c] * a[(r + rows) * COLS + c + cols];
    }
    return sum / (double)n / (0.02 * 0.02) * sqrt((double)n);
}

static void neighbours_are_uncorrelated(void **state)
{
    float *a = draw("embed_tokens.weight", 1);
    for (size_t rows = 0; rows <= 4; rows++) {
        for (size_t cols = rows == 0; cols <= 4; cols++)
            assert_true(fabs(correlation(a, rows, cols)) < 5); /* standard errors */
    }
    for (size_t step = 8; step <= 128; step *= 2) {
        assert_true(fabs(correlation(a, step, 0)) < 5);
        assert_true(fabs(correlation(a, 0, step)) < 5);
    }
    free(a);
}

static void no_row_equals_another(void **state)
{
    float *a = draw("embed_tokens.weight", 1);
    for (size_t r = 1; r < ROWS; r++)
        assert_memory_not_equal(a + r * COLS, a + (r - 1) * COLS, sizeof(float) * COLS);
    free(a);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(any_rows_can_be_made_alone),
    cmocka_unit_test(seed_and_name_choose_the_values),
    cmocka_unit_test(the_bits_are_fixed),
    cmocka_unit_test(values_are_nearly_normal_at_the_scale_of_their_kind),
    cmocka_unit_test(rows_of_a_tensor_have_its_scale),
    cmocka_unit_test(neighbours_are_uncorrelated),
    cmocka_unit_test(no_row_equals_another),
};

AQ_TEST_MAIN(tests)
