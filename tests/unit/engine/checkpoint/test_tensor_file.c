/* SPDX-License-Identifier: Apache-2.0 */
#include "base/prng.h"
#include "engine/checkpoint/tensor_file.h"
#include "tests/checkpoint_files.h"
#include "tests/sha256.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int add(struct aq_tensor_list *list, struct aq_tensor_info *t, uint64_t region_bytes,
               uint64_t first, const struct aq_tensor_file *f, struct aq_err *err)
{
    struct aq_tensor_place place = {.region_bytes = region_bytes, .first_element = first};
    return aq_tensor_list_add(list, t, &place, f, err);
}

/* FIPS 180-4's own example, and one whose padding needs a second block. */
static void sha256_gives_the_published_digests(void **state)
{
    char text[65];
    assert_string_equal(sha256_hex(text, "abc", 3),
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_string_equal(
        sha256_hex(text, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56),
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

/* A file of u16 values that hold their own index, so that what was read tells where from. */
static struct aq_tensor_file counting_file(uint32_t values)
{
    int fd = temporary_file();
    uint16_t *data = malloc(values * sizeof(*data));
    for (uint32_t i = 0; i < values; i++)
        data[i] = (uint16_t)i;
    assert_int_equal(write(fd, data, values * sizeof(*data)), values * sizeof(*data));
    free(data);
    return tensor_file_of(fd, "counting");
}

/* Reads rows [first, first + rows) and compares each value with the index its strides give. */
static void check_rows(const struct aq_tensor_file *f, const struct aq_tensor_info *t,
                       uint64_t first, uint64_t rows)
{
    uint64_t row_bytes = aq_tensor_row_bytes(t), n = rows * row_bytes / 2;
    uint16_t *got = malloc(n * 2 + 2);
    got[n] = 0xbeef;
    struct aq_err err;
    if (aq_tensor_read(f, t, first, rows, got, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(got[n], 0xbeef); /* nothing written behind the rows */
    for (uint64_t i = 0; i < n; i++) {
        uint64_t left = i + first * row_bytes / 2, at = t->offset / 2;
        for (uint32_t d = t->rank; d-- > 0; left /= t->shape[d])
            at += left % t->shape[d] * t->stride[d];
        if (got[i] != (uint16_t)at)
            fail_msg("value %llu of rows %llu+%llu: %u, expected %u", (unsigned long long)i,
                     (unsigned long long)first, (unsigned long long)rows, got[i], (uint16_t)at);
    }
    free(got);
}

static void any_strides_give_the_elements_they_name(void **state)
{
    struct aq_tensor_file f = counting_file(1 << 20);
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct aq_tensor_list list = {0};
        struct aq_tensor_info t = {.name = "t", .element = aq_element_find("I16")};
        t.rank = (uint32_t)aq_prng_below(seed, 0, 0, 5);
        for (uint32_t d = 0; d < t.rank; d++) {
            t.shape[d] = 1 + aq_prng_below(seed, 1, d, seed % 4 == 0 ? 40 : 7);
            t.stride[d] = aq_prng_below(seed, 2, d, seed % 3 == 0 ? 9000 : 60);
        }
        uint64_t first = aq_prng_below(seed, 3, 0, 1000);
        struct aq_err err;
        if (add(&list, &t, f.bytes, first, &f, &err) < 0)
            fail_msg("%s", err.text);
        const struct aq_tensor_info *got = &list.tensor[0];
        uint64_t rows = aq_tensor_rows(got), from = aq_prng_below(seed, 4, 0, rows);
        check_rows(&f, got, 0, rows);
        check_rows(&f, got, from, rows - from);
        check_rows(&f, got, from, 1);
        aq_tensor_list_clear(&list);
    }
    close(f.fd);
}

static void a_long_transposed_matrix_is_read_in_bounded_pieces(void **state)
{
    struct aq_tensor_file f = counting_file(1 << 20);
    static const uint64_t shapes[][2] = {{1 << 18, 4}, {4, 1 << 18}, {1024, 1024}, {3000, 300}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(shapes); i++) {
        struct aq_tensor_list list = {0};
        struct aq_tensor_info t = {.name = "t",
                                   .element = aq_element_find("I16"),
                                   .rank = 2,
                                   .shape = {shapes[i][0], shapes[i][1]},
                                   .stride = {1, shapes[i][0]}};
        assert_int_equal(add(&list, &t, f.bytes, 0, &f, NULL), 0);
        assert_false(list.tensor[0].contiguous);
        check_rows(&f, &list.tensor[0], 0, shapes[i][0]);
        check_rows(&f, &list.tensor[0], shapes[i][0] / 2, shapes[i][0] / 3);
        aq_tensor_list_clear(&list);
    }
    close(f.fd);
}

static void contiguity_ignores_dimensions_of_one(void **state)
{
    struct aq_tensor_file f = counting_file(100);
    struct aq_tensor_list list = {0};
    const struct aq_element *e = aq_element_find("I16");
    struct aq_tensor_info yes = {
        .name = "yes", .element = e, .rank = 3, .shape = {2, 1, 5}, .stride = {5, 77, 1}};
    struct aq_tensor_info no = {
        .name = "no", .element = e, .rank = 2, .shape = {2, 5}, .stride = {6, 1}};
    struct aq_tensor_info scalar = {.name = "scalar", .element = e};
    struct aq_tensor_info empty = {
        .name = "empty", .element = e, .rank = 2, .shape = {0, 5}, .stride = {5, 1}};
    assert_int_equal(add(&list, &yes, 200, 0, &f, NULL), 0);
    assert_int_equal(add(&list, &no, 200, 0, &f, NULL), 0);
    assert_int_equal(add(&list, &scalar, 2, 0, &f, NULL), 0);
    assert_int_equal(add(&list, &empty, 0, 0, &f, NULL), 0);
    assert_true(list.tensor[0].contiguous);
    assert_false(list.tensor[1].contiguous);
    assert_true(list.tensor[2].contiguous);
    assert_int_equal(list.tensor[2].elements, 1);
    assert_int_equal(aq_tensor_rows(&list.tensor[2]), 1);
    assert_int_equal(list.tensor[3].bytes, 0);
    uint8_t nothing;
    assert_int_equal(aq_tensor_read(&f, &list.tensor[3], 0, 0, &nothing, NULL), 0);
    aq_tensor_list_clear(&list);
    close(f.fd);
}

/* Each of these addresses something outside its region or file, some only after an overflow. */
static void what_lies_outside_the_file_is_refused(void **state)
{
    struct aq_tensor_file f = counting_file(100);
    static const struct {
        uint32_t rank;
        uint64_t shape[3], stride[3], region_offset, region_bytes, first;
    } table[] = {
        {1, {101}, {1}, 0, 200, 0},
        {1, {100}, {1}, 0, 200, 1},
        {1, {2}, {100}, 0, 200, 0},
        {2, {2, 3}, {1, 50}, 0, 200, 0},
        {1, {100}, {1}, 2, 200, 0},
        {1, {1}, {1}, UINT64_MAX, 2, 0},
        {1, {1}, {1}, 0, UINT64_MAX, 0},
        {1, {1}, {1}, 0, 200, UINT64_MAX},
        {1, {1}, {1}, 0, 200, 1ull << 63},
        {1, {1ull << 63}, {1}, 0, 200, 0},
        {2, {1ull << 32, 1ull << 32}, {0, 0}, 0, 200, 0},
        {2, {0, 1ull << 63}, {1, 1}, 0, 200, 0},
        {2, {3, 3}, {1ull << 63, 1}, 0, 200, 0},
        {3, {2, 2, 2}, {UINT64_MAX, 1, 1}, 0, 200, 0},
        {3, {2, 2, 2}, {1ull << 62, 1ull << 62, 1ull << 62}, 0, 200, 0},
        {0, {0}, {0}, 0, 1, 0},
        {0, {0}, {0}, 200, 0, 0},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct aq_tensor_list list = {0};
        struct aq_err err = {0};
        struct aq_tensor_info t = {
            .name = "outside", .element = aq_element_find("I16"), .rank = table[i].rank};
        memcpy(t.shape, table[i].shape, sizeof(table[i].shape));
        memcpy(t.stride, table[i].stride, sizeof(table[i].stride));
        struct aq_tensor_place place = {table[i].region_offset, table[i].region_bytes,
                                        table[i].first};
        if (aq_tensor_list_add(&list, &t, &place, &f, &err) != -ENOEXEC)
            fail_msg("row %zu was accepted", i);
        assert_non_null(strstr(err.text, "tensor 'outside'"));
        assert_int_equal(list.count, 0);
        aq_tensor_list_clear(&list);
    }
    close(f.fd);
}

static void the_last_byte_of_the_file_may_be_used(void **state)
{
    struct aq_tensor_file f = counting_file(100);
    struct aq_tensor_list list = {0};
    struct aq_tensor_info t = {.name = "t",
                               .element = aq_element_find("I16"),
                               .rank = 2,
                               .shape = {2, 3},
                               .stride = {1, 49}};
    assert_int_equal(add(&list, &t, 200, 0, &f, NULL), 0);
    check_rows(&f, &list.tensor[0], 0, 2);
    aq_tensor_list_clear(&list);
    close(f.fd);
}

static void a_type_that_cannot_be_read_is_listed_and_named(void **state)
{
    struct aq_tensor_file f = counting_file(10);
    struct aq_tensor_list list = {0};
    struct aq_tensor_info t = {.name = "w", .element = aq_element_find("F8_E5M2")};
    struct aq_err err;
    uint8_t byte;
    assert_int_equal(add(&list, &t, 1, 0, &f, NULL), 0);
    assert_int_equal(list.tensor[0].dtype, AQ_DTYPE_COUNT);
    assert_int_equal(aq_tensor_read(&f, &list.tensor[0], 0, 1, &byte, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "tensor 'w': values of type F8_E5M2 cannot be read"));
    aq_tensor_list_clear(&list);
    close(f.fd);
}

static void a_file_that_shrinks_is_an_io_error(void **state)
{
    struct aq_tensor_file f = counting_file(100);
    struct aq_tensor_list list = {0};
    struct aq_tensor_info t = {
        .name = "w", .element = aq_element_find("I16"), .rank = 1, .shape = {100}, .stride = {1}};
    struct aq_err err;
    uint16_t data[100];
    assert_int_equal(add(&list, &t, 200, 0, &f, NULL), 0);
    assert_int_equal(ftruncate(f.fd, 150), 0);
    assert_int_equal(aq_tensor_read(&f, &list.tensor[0], 0, 100, data, &err), -EIO);
    assert_non_null(strstr(err.text, "'counting': expected 200 bytes at 0, the file ends after "
                                     "150"));
    aq_tensor_list_clear(&list);
    close(f.fd);
}

static void names_are_unique_printable_and_bounded(void **state)
{
    struct aq_tensor_file f = counting_file(10);
    struct aq_tensor_list list = {0};
    struct aq_err err;
    char longest[AQ_TENSOR_NAME_MAX + 1];
    memset(longest, 'n', sizeof(longest));
    longest[AQ_TENSOR_NAME_MAX] = '\0';
    struct aq_tensor_info t = {.name = longest, .element = aq_element_find("U8")};
    assert_int_equal(add(&list, &t, 1, 0, &f, &err), -ENOEXEC);
    longest[AQ_TENSOR_NAME_MAX - 1] = '\0';
    assert_int_equal(add(&list, &t, 1, 0, &f, &err), 0);
    t.name = "";
    assert_int_equal(add(&list, &t, 1, 0, &f, &err), -ENOEXEC);
    t.name = "a\nb";
    assert_int_equal(add(&list, &t, 1, 0, &f, &err), -ENOEXEC);
    t.name = "b";
    assert_int_equal(add(&list, &t, 1, 0, &f, &err), 0);
    assert_int_equal(aq_tensor_list_sort(&list, 0, &err), 0);
    assert_string_equal(list.tensor[0].name, "b");
    assert_int_equal(add(&list, &t, 1, 0, &f, &err), 0);
    assert_int_equal(aq_tensor_list_sort(&list, 0, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "tensor 'b': the name appears twice"));
    aq_tensor_list_clear(&list);
    close(f.fd);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sha256_gives_the_published_digests),
    cmocka_unit_test(any_strides_give_the_elements_they_name),
    cmocka_unit_test(a_long_transposed_matrix_is_read_in_bounded_pieces),
    cmocka_unit_test(contiguity_ignores_dimensions_of_one),
    cmocka_unit_test(what_lies_outside_the_file_is_refused),
    cmocka_unit_test(the_last_byte_of_the_file_may_be_used),
    cmocka_unit_test(a_type_that_cannot_be_read_is_listed_and_named),
    cmocka_unit_test(a_file_that_shrinks_is_an_io_error),
    cmocka_unit_test(names_are_unique_printable_and_bounded),
};
AQ_TEST_MAIN(tests)
