/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/checkpoint_files.h"
#include "tests/sha256.h"
#include "tests/test.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lists a file of this header and so many zero bytes of data; returns the error's text, or "". */
static const char *list_text(const char *header, size_t data_bytes, struct aq_tensor_list *list)
{
    static struct aq_err err;
    int fd = temporary_file();
    uint8_t *data = calloc(1, data_bytes + 1);
    safetensors_write(fd, header, data, data_bytes);
    free(data);
    struct aq_tensor_file f = tensor_file_of(fd, "test.safetensors");
    struct aq_tensor_list own = {0};
    uint64_t hash;
    err = (struct aq_err){0};
    int rc = aq_safetensors_list(list ? list : &own, &f, 0, &hash, &err);
    if (rc < 0)
        assert_int_equal(rc, -ENOEXEC);
    aq_tensor_list_clear(&own);
    close(fd);
    return rc < 0 ? err.text : "";
}

static void assert_refused(const char *header, size_t data_bytes, const char *why)
{
    const char *text = list_text(header, data_bytes, NULL);
    if (!strstr(text, why))
        fail_msg("'%s' gave '%s', expected '%s'", header, text, why);
}

static void recorded_files_give_their_recorded_tensors(void **state)
{
    static const char *const names[] = {"mnist.safetensors", "multi_layer.safetensors"};
    char path[PATH_MAX];
    json_t *expected;
    assert_int_equal(
        aq_json_read_file(&expected, test_data_path("torch-pt/expected.json"), 1 << 24, NULL), 0);
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", test_data_path("torch-pt"), names[i]);
        struct aq_tensor_file f = tensor_file_of(open(path, O_RDONLY | O_CLOEXEC), names[i]);
        struct aq_tensor_list list = {0};
        uint64_t hash;
        assert_int_equal(aq_safetensors_list(&list, &f, 0, &hash, NULL), 0);
        assert_int_equal(aq_tensor_list_sort(&list, 0, NULL), 0);
        const char *name;
        json_t *want, *tensors = json_object_get(json_object_get(expected, names[i]), "tensors");
        assert_int_equal(list.count, json_object_size(tensors));
        json_object_foreach(tensors, name, want)
        {
            const struct aq_tensor_info *t = aq_tensor_list_find(&list, name);
            assert_non_null(t);
            const json_t *shape = json_object_get(want, "shape");
            assert_string_equal(t->element->name,
                                json_string_value(json_object_get(want, "dtype")));
            assert_int_equal(t->rank, json_array_size(shape));
            for (uint32_t d = 0; d < t->rank; d++)
                assert_int_equal(t->shape[d], json_integer_value(json_array_get(shape, d)));
            char digest[65];
            void *data = tensor_contents(&f, t);
            sha256_hex(digest, data, t->bytes);
            free(data);
            assert_string_equal(digest, json_string_value(json_object_get(want, "sha256")));
        }
        aq_tensor_list_clear(&list);
        close(f.fd);
    }
    json_decref(expected);
}

static void scalars_empty_tensors_and_metadata_are_fine(void **state)
{
    struct aq_tensor_list list = {0};
    assert_string_equal(
        list_text("{\"__metadata__\":{\"format\":\"pt\"},"
                  "\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                  "\"e\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[8,8]},"
                  "\"v\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[8,12]}}     ",
                  12, &list),
        "");
    assert_int_equal(list.count, 3);
    aq_tensor_list_clear(&list);
    assert_string_equal(list_text("{}", 0, NULL), "");
}

static void a_type_that_cannot_be_read_is_still_listed(void **state)
{
    struct aq_tensor_list list = {0};
    assert_string_equal(
        list_text("{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[4],\"data_offsets\":[0,4]},"
                  "\"b\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[4,6]},"
                  "\"c\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[6,9]}}",
                  9, &list),
        "");
    assert_int_equal(list.count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(list.tensor[i].dtype, AQ_DTYPE_COUNT);
    aq_tensor_list_clear(&list);
    assert_refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1,
                   "tensor 'a': F4 values do not fill whole bytes");
    assert_refused("{\"a\":{\"dtype\":\"Q5\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                   "'dtype': expected a type such as F16, found 'Q5'");
}

static void offsets_must_cover_the_data_once(void **state)
{
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                   "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
                   5, "tensor 'b': leaves a gap: expected to begin at byte 2");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                   "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
                   3, "tensor 'b': overlaps another tensor");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                   "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
                   2, "overlaps another tensor");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3,
                   "its tensors end at byte 2 of the data, the file holds 3");
    assert_refused("{}", 1, "its tensors end at byte 0 of the data, the file holds 1");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3,
                   "leaves a gap");
}

static void offsets_outside_the_file_are_refused(void **state)
{
    assert_refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", 8,
        "ends at byte 9 of the data, but the file holds only 8; an incomplete download?");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9223372036854775807,"
                   "9223372036854775807]}}",
                   8, "tensor 'a': ends at byte 9223372036854775807");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,1]}}", 8,
                   "expected begin <= end, found [2, 1]");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,1]}}", 8,
                   "expected two offsets");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1e0]}}", 8,
                   "expected two offsets");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
                   "\"data_offsets\":[0,99999999999999999999]}}",
                   8, "header: line 1");
}

static void shapes_must_agree_with_the_offsets(void **state)
{
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
                   "tensor 'a'");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8,
                   "its shape needs 4 bytes, its offsets hold 8");
    assert_refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904,4],"
                   "\"data_offsets\":[0,0]}}",
                   0, "expected a product that fits 64 bits");
    assert_refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],"
                   "\"data_offsets\":[0,0]}}",
                   0, "the shape's size overflows");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
                   "'shape': expected sizes of 0 or more");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],"
                   "\"data_offsets\":[0,4]}}",
                   4, "'shape': expected a list of at most 8 sizes");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "'shape'");
}

static void entries_must_be_whole(void **state)
{
    assert_refused("{\"a\":3}", 0, "expected an object with dtype, shape and data_offsets");
    assert_refused("{\"a\":{}}", 0, "'dtype': expected a string");
    assert_refused("{\"a\":{\"dtype\":\"F32\"}}", 0, "'shape'");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "'data_offsets'");
    assert_refused("{\"a\":{\"dtype\":3,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "'dtype'");
    assert_refused("{\"a\":{\"dtype\":\"F32\\u0000\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
                   "'dtype'");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                   "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                   1, "duplicate");
    assert_refused("[]", 0, "header: expected '{', found byte 0x5b");
    assert_refused("{\"a\":", 0, "header: line 1");
    assert_refused("{} x", 0, "header: line 1");
    assert_refused("{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                   "expected 1 to 1023 bytes");
}

static void names_are_cleaned_in_messages(void **state)
{
    const char *text = list_text("{\"a\\n\\u001b[31mb\":{\"dtype\":\"U8\"}}", 0, NULL);
    assert_non_null(strstr(text, "tensor 'a??[31mb'"));
}

/* The header's length is the first thing that may lie. */
static void a_header_length_that_lies_is_refused(void **state)
{
    static const struct {
        uint64_t length;
        size_t bytes; /* of the file */
        const char *want;
    } table[] = {
        {2, 7, "at least 8 bytes, found 7"},
        {0, 100, "header length: expected 2 to"},
        {1, 100, "header length: expected 2 to"},
        {93, 100, "header of 93 bytes, but the file holds only 100"},
        {AQ_SAFETENSORS_HEADER_MAX, 100, "header of 100000000 bytes"},
        {AQ_SAFETENSORS_HEADER_MAX + 1, 100, "header length: expected 2 to"},
        {UINT64_MAX, 100, "header length: expected 2 to"},
        {UINT64_MAX - 7, 100, "header length: expected 2 to"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct bytes b = {0};
        bytes_le(&b, table[i].length, 8);
        while (b.count < 100)
            bytes_text(&b, " ");
        int fd = temporary_file();
        assert_int_equal(write(fd, b.data, table[i].bytes), table[i].bytes);
        struct aq_tensor_file f = tensor_file_of(fd, "lies");
        struct aq_tensor_list list = {0};
        struct aq_err err = {0};
        uint64_t hash;
        assert_int_equal(aq_safetensors_list(&list, &f, 0, &hash, &err), -ENOEXEC);
        if (!strstr(err.text, table[i].want))
            fail_msg("%s", err.text);
        bytes_free(&b);
        close(fd);
    }
}

static void a_header_of_too_many_values_is_refused_before_it_is_built(void **state)
{
    size_t n = AQ_SAFETENSORS_VALUES_MAX + 10;
    char *header = malloc(n + 16);
    strcpy(header, "{\"a\":[");
    memset(header + 6, ',', n);
    strcpy(header + 6 + n, "]}");
    assert_refused(header, 0, "expected at most 1048576 JSON values");
    free(header);
}

static void a_failure_leaves_the_list_as_it_was(void **state)
{
    struct aq_tensor_list list = {0};
    assert_string_equal(
        list_text("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, &list), "");
    const char *text = list_text("{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                                 1, &list);
    assert_true(text[0] != '\0');
    assert_int_equal(list.count, 1);
    assert_string_equal(list.tensor[0].name, "a");
    aq_tensor_list_clear(&list);
}

/* Every prefix of a real file is refused, none crashes. */
static void every_truncation_of_a_real_header_is_refused(void **state)
{
    uint8_t data[900];
    int fd = open(test_data_path("torch-pt/multi_layer.safetensors"), O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, data, sizeof(data)), sizeof(data));
    close(fd);
    fd = temporary_file();
    for (size_t n = 0; n < sizeof(data); n++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, data, n, 0), n);
        struct aq_tensor_file f = tensor_file_of(fd, "cut");
        struct aq_tensor_list list = {0};
        struct aq_err err = {0};
        uint64_t hash;
        assert_int_equal(aq_safetensors_list(&list, &f, 0, &hash, &err), -ENOEXEC);
        assert_true(err.text[0] != '\0' && list.count == 0);
        aq_tensor_list_clear(&list);
    }
    close(fd);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(recorded_files_give_their_recorded_tensors),
    cmocka_unit_test(scalars_empty_tensors_and_metadata_are_fine),
    cmocka_unit_test(a_type_that_cannot_be_read_is_still_listed),
    cmocka_unit_test(offsets_must_cover_the_data_once),
    cmocka_unit_test(offsets_outside_the_file_are_refused),
    cmocka_unit_test(shapes_must_agree_with_the_offsets),
    cmocka_unit_test(entries_must_be_whole),
    cmocka_unit_test(names_are_cleaned_in_messages),
    cmocka_unit_test(a_header_length_that_lies_is_refused),
    cmocka_unit_test(a_header_of_too_many_values_is_refused_before_it_is_built),
    cmocka_unit_test(a_failure_leaves_the_list_as_it_was),
    cmocka_unit_test(every_truncation_of_a_real_header_is_refused),
};
AQ_TEST_MAIN(tests)
