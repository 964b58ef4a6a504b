/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "engine/checkpoint/torchzip.h"
#include "tests/checkpoint_files.h"
#include "tests/sha256.h"
#include "tests/test.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lists the file behind fd, which is closed by opened_close. */
struct opened {
    struct aq_tensor_file file;
    struct aq_tensor_list list;
    uint64_t hash;
    struct aq_err err;
    int rc;
};

static struct opened open_fd(int fd)
{
    struct opened o = {.file = tensor_file_of(fd, "test.bin")};
    o.rc = aq_torchzip_list(&o.list, &o.file, 0, &o.hash, &o.err);
    return o;
}

static void opened_close(struct opened *o)
{
    aq_tensor_list_clear(&o->list);
    close(o->file.fd);
}

static int fixture(const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", test_data_path("torch-pt"), name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* ---- real files ---- */

static void check_tensor(const char *file, struct opened *o, const json_t *want)
{
    const char *name = json_string_value(json_object_get(want, "name"));
    const struct aq_tensor_info *t = aq_tensor_list_find(&o->list, name);
    if (!t)
        fail_msg("%s: no tensor '%s'", file, name);
    assert_string_equal(t->element->name, json_string_value(json_object_get(want, "dtype")));
    const json_t *shape = json_object_get(want, "shape");
    assert_int_equal(t->rank, json_array_size(shape));
    for (uint32_t i = 0; i < t->rank; i++)
        assert_int_equal(t->shape[i], json_integer_value(json_array_get(shape, i)));
    void *data = tensor_contents(&o->file, t);
    char text[65];
    sha256_hex(text, data, t->bytes);
    free(data);
    assert_string_equal(text, json_string_value(json_object_get(want, "sha256_contiguous")));
}

static void every_real_file_gives_its_recorded_tensors(void **state)
{
    json_t *expected, *entry;
    const char *name;
    unsigned files = 0, tensors = 0;
    const char *path = test_data_path("torch-pt/expected.json");
    assert_int_equal(aq_json_read_file(&expected, path, 1 << 24, NULL), 0);
    json_object_foreach(expected, name, entry)
    {
        const json_t *list = json_object_get(entry, "tensors");
        if (!json_is_array(list))
            continue;
        struct opened o = open_fd(fixture(name));
        if (o.rc < 0)
            fail_msg("%s: %s", name, o.err.text);
        assert_int_equal(o.list.count, json_array_size(list));
        for (size_t i = 0; i < json_array_size(list); i++, tensors++)
            check_tensor(name, &o, json_array_get(list, i));
        opened_close(&o);
        files++;
    }
    json_decref(expected);
    assert_int_equal(files, 39);
    assert_true(tensors > 90);
}

static void a_broken_real_file_gives_one_error(void **state)
{
    struct opened o = open_fd(fixture("broken.pt"));
    assert_int_equal(o.rc, -ENOEXEC);
    assert_non_null(strstr(o.err.text, "expected a file written by torch.save, found 3 bytes"));
    opened_close(&o);
}

/* ---- files built here ---- */

enum { VALUES = 12 };

/* {"w": tensor t over storage "0" of VALUES f32 that count up} in an archive. */
static struct opened open_tensor(const struct pickle_tensor *t)
{
    float data[VALUES];
    for (int i = 0; i < VALUES; i++)
        data[i] = (float)i;
    struct bytes p = {0};
    pickle_begin(&p);
    bytes_text(&p, "}");
    pickle_string(&p, "w");
    pickle_tensor(&p, t);
    bytes_text(&p, "s");
    pickle_end(&p);
    int fd = temporary_file();
    assert_true(torch_zip_write(fd, &p, &(struct torch_storage){"0", data, sizeof(data)}, 1));
    bytes_free(&p);
    return open_fd(fd);
}

static const struct pickle_tensor plain = {
    .storage = "FloatStorage", .key = "0", .numel = VALUES, .rank = 1, .shape = {4}, .stride = {1}};

/* A pickle of {"w": plain}. */
static void plain_pickle(struct bytes *p)
{
    pickle_begin(p);
    bytes_text(p, "}");
    pickle_string(p, "w");
    pickle_tensor(p, &plain);
    bytes_text(p, "s");
    pickle_end(p);
}

static void assert_refused(struct opened o, const char *want)
{
    assert_int_equal(o.rc, -ENOEXEC);
    if (!strstr(o.err.text, want))
        fail_msg("'%s' does not contain '%s'", o.err.text, want);
    assert_int_equal(o.list.count, 0);
    opened_close(&o);
}

/* An archive of a pickle alone. */
static struct opened open_pickle(const struct bytes *p)
{
    int fd = temporary_file();
    assert_true(torch_zip_write(fd, p, NULL, 0));
    return open_fd(fd);
}

static void strides_and_offsets_are_in_elements_of_the_storage(void **state)
{
    struct pickle_tensor t = plain;
    t.rank = 2;
    t.shape[0] = 2, t.shape[1] = 3, t.stride[0] = 1, t.stride[1] = 4, t.offset = 2;
    struct opened o = open_tensor(&t);
    assert_int_equal(o.rc, 0);
    float *got = tensor_contents(&o.file, &o.list.tensor[0]);
    static const float want[] = {2, 6, 10, 3, 7, 11};
    assert_memory_equal(got, want, sizeof(want));
    free(got);
    opened_close(&o);
}

static void tensors_outside_their_storage_are_refused(void **state)
{
    static const struct {
        uint64_t numel, offset;
        int64_t shape, stride;
    } table[] = {
        {VALUES, 0, VALUES + 1, 1},
        {VALUES, 1, VALUES, 1},
        {VALUES, 0, 2, VALUES},
        {VALUES, INT64_MAX, 1, 1},
        {VALUES, 0, INT64_MAX, 1},
        {VALUES, 0, 2, INT64_MAX},
        {VALUES, 0, INT64_MAX, INT64_MAX},
        {VALUES + 1, 0, 1, 1},
        {INT64_MAX, 0, 1, 1},
        {4, 0, 5, 1}, /* the file holds it, the storage says it does not */
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct pickle_tensor t = plain;
        t.numel = table[i].numel;
        t.offset = table[i].offset;
        t.shape[0] = table[i].shape;
        t.stride[0] = table[i].stride;
        assert_refused(open_tensor(&t), "tensor 'w': ");
    }
}

static void a_type_wider_than_the_storage_is_refused(void **state)
{
    struct pickle_tensor t = plain;
    t.storage = "DoubleStorage";
    assert_refused(open_tensor(&t), "tensor 'w': its storage claims 12 values of 8 bytes");
}

static void nested_keys_become_dotted_names(void **state)
{
    struct bytes p = {0};
    pickle_begin(&p);
    bytes_text(&p, "}(");
    pickle_string(&p, "model");
    bytes_text(&p, "}(");
    pickle_int(&p, -7);
    bytes_text(&p, "]");
    pickle_tensor(&p, &plain);
    bytes_text(&p, "a");
    pickle_string(&p, "x.y");
    pickle_tensor(&p, &plain);
    bytes_text(&p, "N"); /* a key that is no name: left out */
    pickle_tensor(&p, &plain);
    bytes_text(&p, "u");
    pickle_string(&p, "epoch");
    pickle_int(&p, 3);
    bytes_text(&p, "u");
    pickle_end(&p);
    int fd = temporary_file();
    float data[VALUES] = {0};
    assert_true(torch_zip_write(fd, &p, &(struct torch_storage){"0", data, sizeof(data)}, 1));
    struct opened o = open_fd(fd);
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.list.count, 2);
    assert_non_null(aq_tensor_list_find(&o.list, "model.-7.0"));
    assert_non_null(aq_tensor_list_find(&o.list, "model.x.y"));
    opened_close(&o);
    bytes_free(&p);
}

static void names_that_meet_are_refused(void **state)
{
    struct bytes p = {0};
    pickle_begin(&p);
    bytes_text(&p, "}(");
    pickle_string(&p, "a.b");
    pickle_tensor(&p, &plain);
    pickle_string(&p, "a");
    bytes_text(&p, "}");
    pickle_string(&p, "b");
    pickle_tensor(&p, &plain);
    bytes_text(&p, "su");
    pickle_end(&p);
    int fd = temporary_file();
    float data[VALUES] = {0};
    assert_true(torch_zip_write(fd, &p, &(struct torch_storage){"0", data, sizeof(data)}, 1));
    assert_refused(open_fd(fd), "tensor 'a.b': the name appears twice");
    bytes_free(&p);
}

static void a_dict_that_holds_itself_ends(void **state)
{
    struct bytes p = {0};
    pickle_begin(&p);
    bytes_add(&p, "}q\0X\1\0\0\0ah\0s", 12);
    pickle_end(&p);
    assert_refused(open_pickle(&p), "expected dicts nested at most 32 deep");
    bytes_free(&p);
}

/* {"a": a tuple of 30 lists}, each of which holds the one before twice: 2^30 paths. */
static void a_bomb_of_shared_lists_ends(void **state)
{
    struct bytes p = {0};
    pickle_begin(&p);
    bytes_text(&p, "}");
    pickle_string(&p, "a");
    bytes_add(&p, "(]q\0", 4);
    for (unsigned i = 0; i < 29; i++) {
        const uint8_t op[] = {'(', 'h', (uint8_t)i, 'h', (uint8_t)i, 'l', 'q', (uint8_t)(i + 1)};
        bytes_add(&p, op, sizeof(op));
    }
    bytes_text(&p, "ts");
    pickle_end(&p);
    assert_refused(open_pickle(&p), "expected at most 4194304 values");
    bytes_free(&p);
}

static void a_key_with_a_nul_or_too_long_is_refused(void **state)
{
    struct bytes p = {0};
    pickle_begin(&p);
    bytes_add(&p, "}X\3\0\0\0a\0b}s.", 12);
    assert_refused(open_pickle(&p), "key 'a?b': expected a name without NUL");
    p.count = 0;
    pickle_begin(&p);
    bytes_text(&p, "}X");
    bytes_le(&p, 2000, 4);
    for (int i = 0; i < 2000; i++)
        bytes_text(&p, "k");
    bytes_text(&p, "}s.");
    assert_refused(open_pickle(&p), "all keys together at most 1023 bytes");
    bytes_free(&p);
}

static void code_in_a_file_is_named_and_not_run(void **state)
{
    struct bytes p = {0};
    pickle_begin(&p);
    pickle_global(&p, "os", "system");
    pickle_string(&p, "touch /tmp/aq-must-not-exist");
    bytes_text(&p, "\x85R");
    pickle_end(&p);
    assert_refused(open_pickle(&p), "pickle, byte 2: refers to 'os.system'");
    bytes_free(&p);
}

static void a_file_whose_object_is_no_dict_is_refused(void **state)
{
    struct bytes p = {0};
    pickle_begin(&p);
    bytes_text(&p, "].");
    assert_refused(open_pickle(&p), "expected a dict of tensors");
    bytes_free(&p);
}

/* ---- archives that lie ---- */

static struct opened open_parts(const struct zip_part *parts, size_t count,
                                const struct zip_lie *lie)
{
    int fd = temporary_file();
    assert_true(zip_write(fd, parts, count, lie));
    return open_fd(fd);
}

/* The honest archive of plain_pickle(), for one thing to be changed. */
struct archive {
    struct bytes pickle;
    float data[VALUES];
    struct zip_part part[2];
};

static void archive_begin(struct archive *a)
{
    *a = (struct archive){0};
    plain_pickle(&a->pickle);
    a->part[0] =
        (struct zip_part){.name = "x/data.pkl", .data = a->pickle.data, .bytes = a->pickle.count};
    a->part[1] = (struct zip_part){.name = "x/data/0", .data = a->data, .bytes = sizeof(a->data)};
}

static void zip64_fields_are_honoured_in_small_files(void **state)
{
    struct archive a;
    archive_begin(&a);
    a.part[0].zip64 = a.part[1].zip64 = true;
    struct opened o = open_parts(a.part, 2, NULL);
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.list.count, 1);
    opened_close(&o);
    o = open_parts(a.part, 2, &(struct zip_lie){.no_zip64 = true});
    assert_int_equal(o.rc, 0);
    opened_close(&o);
    bytes_free(&a.pickle);
}

/* A hole of 5 GiB in front of the storage that is used: offset and sizes need 64 bits. */
static void storages_beyond_4_gib_are_found(void **state)
{
    struct archive a;
    archive_begin(&a);
    for (int i = 0; i < VALUES; i++)
        a.data[i] = (float)i + 0.5f;
    struct zip_part parts[] = {
        a.part[0],
        {.name = "x/data/big", .bytes = 5 * AQ_GIB, .sparse = true, .zip64 = true},
        a.part[1],
    };
    parts[2].zip64 = true;
    int fd = temporary_file();
    if (!zip_write(fd, parts, 3, NULL)) { /* no sparse files, or a limit on their size */
        close(fd);
        bytes_free(&a.pickle);
        skip();
    }
    struct opened o = open_fd(fd);
    if (o.rc < 0)
        fail_msg("%s", o.err.text);
    assert_true(o.list.tensor[0].offset > 5 * AQ_GIB);
    float *got = tensor_contents(&o.file, &o.list.tensor[0]);
    assert_memory_equal(got, a.data, 4 * sizeof(*got));
    free(got);
    opened_close(&o);
    bytes_free(&a.pickle);
}

static void directories_that_lie_are_refused(void **state)
{
    static const struct {
        struct zip_part change; /* nonzero members replace those of x/data/0 */
        const char *want;
    } table[] = {
        {{.local_name = "x/data/1"}, "contradicts the directory"},
        {{.local_name = "x/data/00"}, "contradicts the directory"},
        {{.claim_offset = 7}, "contradicts the directory"},
        {{.claim_offset = 0x7fffffff}, "zip archive: "},
        {{.claim_bytes = 1 << 30}, "entry 'x/data/0'"},
        {{.claim_bytes = 1ull << 62, .zip64 = true}, "zip archive: "},
        {{.claim_offset = 1ull << 62, .zip64 = true}, "zip archive: "},
        {{.claim_offset = UINT64_MAX, .zip64 = true}, "zip archive: "},
        {{.method = 8}, "is compressed; torch.save stores tensors"},
        {{.method = 99}, "zip archive: "},
        {{.flags = 1}, "is encrypted"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct archive a;
        archive_begin(&a);
        a.part[1].local_name = table[i].change.local_name;
        a.part[1].claim_bytes = table[i].change.claim_bytes;
        a.part[1].claim_offset = table[i].change.claim_offset;
        a.part[1].zip64 = table[i].change.zip64;
        a.part[1].method = table[i].change.method;
        a.part[1].flags = table[i].change.flags;
        assert_refused(open_parts(a.part, 2, NULL), table[i].want);
        bytes_free(&a.pickle);
    }
}

static void an_absurd_number_of_entries_is_refused_before_it_is_allocated(void **state)
{
    struct archive a;
    archive_begin(&a);
    assert_refused(open_parts(a.part, 2, &(struct zip_lie){.entries = 1ull << 40}),
                   "expected at most 1048576 entries, found 1099511627776");
    bytes_free(&a.pickle);
}

static void a_truncated_archive_is_refused_at_every_length(void **state)
{
    struct archive a;
    archive_begin(&a);
    int fd = temporary_file();
    assert_true(zip_write(fd, a.part, 2, NULL));
    uint64_t bytes = tensor_file_of(fd, "").bytes;
    close(fd);
    for (uint64_t cut = 1; cut <= bytes; cut++) {
        struct opened o = open_parts(a.part, 2, &(struct zip_lie){.cut = cut});
        assert_int_equal(o.rc, -ENOEXEC);
        assert_true(o.err.text[0] != '\0');
        opened_close(&o);
    }
    assert_refused(open_parts(a.part, 2, &(struct zip_lie){.cut = 300}),
                   "without its directory at the end; an incomplete download?");
    bytes_free(&a.pickle);
}

static void the_root_must_be_one(void **state)
{
    struct archive a;
    archive_begin(&a);
    struct zip_part two[] = {a.part[0], a.part[0], a.part[1]};
    two[1].name = "y/data.pkl";
    assert_refused(open_parts(two, 3, NULL), "expected one entry <name>/data.pkl");
    a.part[0].name = "x/y/data.pkl";
    assert_refused(open_parts(a.part, 2, NULL), "found 0");
    a.part[0].name = "data.pkl"; /* some writers have no root at all */
    a.part[1].name = "data/0";
    struct opened o = open_parts(a.part, 2, NULL);
    assert_int_equal(o.rc, 0);
    opened_close(&o);
    bytes_free(&a.pickle);
}

static void a_missing_storage_is_named(void **state)
{
    struct archive a;
    archive_begin(&a);
    assert_refused(open_parts(a.part, 1, NULL), "expected an entry 'x/data/0', found none");
    bytes_free(&a.pickle);
}

static void a_damaged_pickle_fails_its_crc(void **state)
{
    struct archive a;
    archive_begin(&a);
    int fd = temporary_file();
    assert_true(zip_write(fd, a.part, 2, NULL));
    assert_int_equal(pwrite(fd, "\xff", 1, 64 + 20), 1); /* data begins at 64 */
    assert_refused(open_fd(fd), "entry 'x/data.pkl' cannot be read: CRC error");
    bytes_free(&a.pickle);
}

static void big_endian_files_are_refused(void **state)
{
    struct archive a;
    archive_begin(&a);
    struct zip_part parts[] = {
        a.part[0], a.part[1], {.name = "x/byteorder", .data = "big", .bytes = 3}};
    assert_refused(open_parts(parts, 3, NULL), "byte order: expected 'little', found 'big'");
    bytes_free(&a.pickle);
}

/* ---- the legacy container ---- */

struct legacy_lie {
    uint64_t numel;    /* written in front of the values */
    unsigned protocol; /* 1001 */
    bool big_endian, other_key, no_key, twice;
    unsigned cut;
};

static struct opened open_legacy(const struct legacy_lie *lie)
{
    struct bytes b = {0};
    float data[VALUES] = {1, 2, 3, 4};
    bytes_add(&b, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
    pickle_begin(&b);
    pickle_int(&b, lie->protocol);
    pickle_end(&b);
    pickle_begin(&b);
    bytes_text(&b, "}");
    pickle_string(&b, "little_endian");
    bytes_text(&b, lie->big_endian ? "\x89s" : "\x88s");
    pickle_end(&b);
    plain_pickle(&b);
    pickle_begin(&b);
    bytes_text(&b, "]");
    for (int i = 0; i < (lie->no_key ? 0 : lie->twice ? 2 : 1); i++) {
        pickle_string(&b, lie->other_key ? "1" : "0");
        bytes_text(&b, "a");
    }
    pickle_end(&b);
    bytes_le(&b, lie->numel, 8);
    bytes_add(&b, data, sizeof(data));
    int fd = temporary_file();
    assert_int_equal(write(fd, b.data, b.count - lie->cut), b.count - lie->cut);
    bytes_free(&b);
    return open_fd(fd);
}

static void an_honest_legacy_file_is_read(void **state)
{
    struct opened o = open_legacy(&(struct legacy_lie){.numel = VALUES, .protocol = 1001});
    assert_int_equal(o.rc, 0);
    float *got = tensor_contents(&o.file, &o.list.tensor[0]);
    assert_true(got[0] == 1 && got[3] == 4);
    free(got);
    opened_close(&o);
}

static void legacy_files_that_lie_are_refused(void **state)
{
    static const struct {
        struct legacy_lie lie;
        const char *want;
    } table[] = {
        {{.numel = VALUES + 1, .protocol = 1001}, "storage 0 of 1: 13 values"},
        {{.numel = UINT64_MAX, .protocol = 1001}, "storage 0 of 1"},
        {{.numel = 1ull << 62, .protocol = 1001}, "storage 0 of 1"},
        {{.numel = 2, .protocol = 1001}, "tensor 'w': its storage claims 12 values"},
        {{.numel = VALUES, .protocol = 1000}, "expected the legacy protocol version 1001"},
        {{.numel = VALUES, .protocol = 1001, .big_endian = true}, "'little_endian': True"},
        {{.numel = VALUES, .protocol = 1001, .other_key = true}, "no tensor uses it"},
        {{.numel = VALUES, .protocol = 1001, .no_key = true}, "not in the list of keys"},
        {{.numel = VALUES, .protocol = 1001, .twice = true}, "storage key 1: appears twice"},
        {{.numel = VALUES, .protocol = 1001, .cut = 1}, "an incomplete download?"},
        {{.numel = VALUES, .protocol = 1001, .cut = 4 * VALUES + 1}, "an incomplete download?"},
        {{.numel = VALUES, .protocol = 1001, .cut = 4 * VALUES + 10}, "at byte "},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++)
        assert_refused(open_legacy(&table[i].lie), table[i].want);
}

static void other_files_are_named_for_what_they_are(void **state)
{
    int fd = temporary_file();
    assert_int_equal(ftruncate(fd, 1024), 0);
    assert_int_equal(pwrite(fd, "ustar", 5, 257), 5);
    assert_refused(open_fd(fd), "a tar archive, as PyTorch wrote before version 0.2");
    fd = temporary_file();
    assert_int_equal(pwrite(fd, "GGUF\3\0\0\0", 8, 0), 8);
    assert_refused(open_fd(fd), "found 8 bytes that begin with 'GGUF");
    assert_refused(open_fd(temporary_file()), "found 0 bytes");
}

static void the_hash_tells_contents_apart(void **state)
{
    struct archive a;
    archive_begin(&a);
    struct opened one = open_parts(a.part, 2, NULL), same = open_parts(a.part, 2, NULL);
    a.data[VALUES - 1] = 1.0f;
    struct opened other = open_parts(a.part, 2, NULL);
    assert_true(one.rc == 0 && same.rc == 0 && other.rc == 0);
    assert_true(one.hash == same.hash);
    assert_true(one.hash != other.hash); /* by the CRC in the directory */
    opened_close(&one);
    opened_close(&same);
    opened_close(&other);
    bytes_free(&a.pickle);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_real_file_gives_its_recorded_tensors),
    cmocka_unit_test(a_broken_real_file_gives_one_error),
    cmocka_unit_test(strides_and_offsets_are_in_elements_of_the_storage),
    cmocka_unit_test(tensors_outside_their_storage_are_refused),
    cmocka_unit_test(a_type_wider_than_the_storage_is_refused),
    cmocka_unit_test(nested_keys_become_dotted_names),
    cmocka_unit_test(names_that_meet_are_refused),
    cmocka_unit_test(a_dict_that_holds_itself_ends),
    cmocka_unit_test(a_bomb_of_shared_lists_ends),
    cmocka_unit_test(a_key_with_a_nul_or_too_long_is_refused),
    cmocka_unit_test(code_in_a_file_is_named_and_not_run),
    cmocka_unit_test(a_file_whose_object_is_no_dict_is_refused),
    cmocka_unit_test(zip64_fields_are_honoured_in_small_files),
    cmocka_unit_test(storages_beyond_4_gib_are_found),
    cmocka_unit_test(directories_that_lie_are_refused),
    cmocka_unit_test(an_absurd_number_of_entries_is_refused_before_it_is_allocated),
    cmocka_unit_test(a_truncated_archive_is_refused_at_every_length),
    cmocka_unit_test(the_root_must_be_one),
    cmocka_unit_test(a_missing_storage_is_named),
    cmocka_unit_test(a_damaged_pickle_fails_its_crc),
    cmocka_unit_test(big_endian_files_are_refused),
    cmocka_unit_test(an_honest_legacy_file_is_read),
    cmocka_unit_test(legacy_files_that_lie_are_refused),
    cmocka_unit_test(other_files_are_named_for_what_they_are),
    cmocka_unit_test(the_hash_tells_contents_apart),
};
AQ_TEST_MAIN(tests)
