/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/pickle.h"
#include "tests/checkpoint_files.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static struct aq_pickle *parse(const void *bytes, size_t size)
{
    struct aq_pickle *p = NULL;
    struct aq_err err;
    size_t used;
    if (aq_pickle_parse(&p, bytes, size, &used, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(used, size);
    return p;
}
#define PARSE(literal) parse(literal, sizeof(literal) - 1)

static void refused(const void *bytes, size_t size, const char *why)
{
    struct aq_pickle *p = NULL;
    struct aq_err err = {0};
    size_t used;
    assert_int_equal(aq_pickle_parse(&p, bytes, size, &used, &err), -ENOEXEC);
    assert_null(p);
    if (!strstr(err.text, why) || strncmp(err.text, "pickle, byte ", 13) != 0)
        fail_msg("'%s' does not contain '%s'", err.text, why);
}
#define REFUSED(literal, why) refused(literal, sizeof(literal) - 1, why)

/* ---- values ---- */

static void numbers_of_every_width_keep_their_value(void **state)
{
    struct aq_pickle *p =
        PARSE("\x80\x02(K\xffM\xff\xffJ\xfe\xff\xff\xff\x8a\x00\x8a\x01\x80\x8a\x02\xff\x7f"
              "\x8b\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80t.");
    static const int64_t want[] = {255, 65535, -2, 0, -128, 32767, INT64_MIN};
    const struct aq_pickle_value *v = aq_pickle_root(p);
    assert_int_equal(v->kind, AQ_PICKLE_TUPLE);
    assert_int_equal(v->count, AQ_ARRAY_LEN(want));
    for (uint32_t i = 0; i < v->count; i++) {
        assert_int_equal(v->as.items[i]->kind, AQ_PICKLE_INT);
        assert_true(v->as.items[i]->as.integer == want[i]);
    }
    aq_pickle_close(p);
}

static void integers_beyond_64_bits_keep_their_bytes(void **state)
{
    struct aq_pickle *p = PARSE("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");
    const struct aq_pickle_value *v = aq_pickle_root(p);
    assert_int_equal(v->kind, AQ_PICKLE_BIG);
    assert_int_equal(v->as.text.length, 10);
    assert_memory_equal(v->as.text.bytes, "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
    aq_pickle_close(p);
}

static void floats_booleans_and_none_are_read(void **state)
{
    struct aq_pickle *p = PARSE("\x80\x02(G\xbf\xf8\x00\x00\x00\x00\x00\x00\x88\x89Nt.");
    const struct aq_pickle_value *v = aq_pickle_root(p);
    assert_true(v->as.items[0]->kind == AQ_PICKLE_FLOAT && v->as.items[0]->as.real == -1.5);
    assert_true(v->as.items[1]->kind == AQ_PICKLE_BOOL && v->as.items[1]->as.boolean);
    assert_true(v->as.items[2]->kind == AQ_PICKLE_BOOL && !v->as.items[2]->as.boolean);
    assert_int_equal(v->as.items[3]->kind, AQ_PICKLE_NONE);
    aq_pickle_close(p);
}

static void strings_of_every_opcode_are_read(void **state)
{
    struct aq_pickle *p = PARSE("\x80\x05(X\x02\x00\x00\x00"
                                "abU\x02"
                                "abT\x02\x00\x00\x00"
                                "ab\x8c\x02"
                                "ab\x8d\x02\x00\x00\x00\x00\x00\x00\x00"
                                "abt.");
    const struct aq_pickle_value *v = aq_pickle_root(p);
    assert_int_equal(v->count, 5);
    for (uint32_t i = 0; i < v->count; i++)
        assert_true(aq_pickle_is_string(v->as.items[i], "ab"));
    assert_false(aq_pickle_is_string(v->as.items[0], "abc"));
    aq_pickle_close(p);
}

static void lists_and_dicts_grow_by_every_opcode(void **state)
{
    struct bytes b = {0};
    pickle_begin(&b);
    bytes_text(&b, "](");
    for (int i = 0; i < 1000; i++)
        pickle_int(&b, i);
    bytes_text(&b, "e");
    pickle_int(&b, 1000);
    bytes_text(&b, "a(");
    pickle_int(&b, 0);
    pickle_int(&b, 1);
    bytes_text(&b, "l\x86");
    pickle_end(&b);
    struct aq_pickle *p = parse(b.data, b.count);
    const struct aq_pickle_value *v = aq_pickle_root(p);
    assert_int_equal(v->as.items[0]->count, 1001);
    for (uint32_t i = 0; i < 1001; i++)
        assert_int_equal(v->as.items[0]->as.items[i]->as.integer, i);
    assert_int_equal(v->as.items[1]->count, 2);
    aq_pickle_close(p);
    bytes_free(&b);
    p = PARSE("\x80\x02}(U\x01"
              "aK\x01U\x01"
              "bK\x02uU\x01"
              "cK\x03s(U\x01"
              "dK\x04"
              "d\x86.");
    v = aq_pickle_root(p)->as.items[0];
    assert_int_equal(v->count, 3);
    assert_int_equal(aq_pickle_get(v, "b")->as.integer, 2);
    assert_int_equal(aq_pickle_get(v, "c")->as.integer, 3);
    assert_null(aq_pickle_get(v, "d"));
    assert_int_equal(aq_pickle_get(aq_pickle_root(p)->as.items[1], "d")->as.integer, 4);
    aq_pickle_close(p);
}

static void the_last_of_equal_keys_counts(void **state)
{
    struct aq_pickle *p = PARSE("\x80\x02}(U\x01"
                                "aK\x01U\x01"
                                "aK\x02u.");
    assert_int_equal(aq_pickle_get(aq_pickle_root(p), "a")->as.integer, 2);
    aq_pickle_close(p);
}

static void memo_entries_are_the_same_value(void **state)
{
    struct aq_pickle *p = PARSE("\x80\x04]\x94]q\x07h\x00h\x07j\x00\x00\x00\x00\x87\x86\x86.");
    const struct aq_pickle_value *v = aq_pickle_root(p);
    const struct aq_pickle_value *tail = v->as.items[1];
    assert_ptr_equal(v->as.items[0], tail->as.items[1]->as.items[0]);
    assert_ptr_equal(v->as.items[0], tail->as.items[1]->as.items[2]);
    assert_ptr_equal(tail->as.items[0], tail->as.items[1]->as.items[1]);
    aq_pickle_close(p);
}

static void an_ordered_dict_is_a_dict_and_its_attributes_are_dropped(void **state)
{
    struct aq_pickle *p = PARSE("\x80\x02"
                                "ccollections\nOrderedDict\n)R(U\x01"
                                "aK\x01u}U\x09_metadataK\x02sb.");
    assert_int_equal(aq_pickle_root(p)->kind, AQ_PICKLE_DICT);
    assert_int_equal(aq_pickle_root(p)->count, 1);
    aq_pickle_close(p);
    p = PARSE("\x80\x02"
              "ccollections\nOrderedDict\n](]U\x01"
              "aaK\x01"
              "ae\x85R."); /* Python 2: one list of [key, value] lists */
    aq_pickle_close(p);
}

static void a_pickle_ends_at_stop_and_says_where(void **state)
{
    struct aq_pickle *p;
    size_t used = 0;
    assert_int_equal(aq_pickle_parse(&p, (const uint8_t *)"\x80\x02N.more", 8, &used, NULL), 0);
    assert_int_equal(used, 4);
    aq_pickle_close(p);
}

static void a_tensor_of_version_3_takes_its_dtype_from_the_arguments(void **state)
{
    struct bytes b = {0};
    pickle_begin(&b);
    pickle_global(&b, "torch._utils", "_rebuild_tensor_v3");
    bytes_text(&b, "((");
    pickle_string(&b, "storage");
    pickle_global(&b, "torch.storage", "UntypedStorage");
    pickle_string(&b, "0");
    pickle_string(&b, "cpu");
    pickle_int(&b, 16);
    bytes_add(&b, "tQK\x00K\x04\x85K\x01\x85\x89", 11);
    pickle_global(&b, "collections", "OrderedDict");
    bytes_text(&b, ")R");
    pickle_global(&b, "torch", "float8_e5m2");
    bytes_text(&b, "tR");
    pickle_end(&b);
    struct aq_pickle *p = parse(b.data, b.count);
    assert_int_equal(aq_pickle_root(p)->kind, AQ_PICKLE_TENSOR);
    assert_string_equal(aq_pickle_root(p)->as.tensor->element->name, "F8_E5M2");
    assert_int_equal(aq_pickle_storage_count(p), 1);
    assert_null(aq_pickle_storage_at(p, 0)->element);
    aq_pickle_close(p);
    bytes_free(&b);
}

/* ---- what must never work ---- */

static void code_is_refused_by_name(void **state)
{
    REFUSED("\x80\x02"
            "cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
            "refers to 'os.system'");
    REFUSED("\x80\x02"
            "cposix\nsystem\n.",
            "refers to 'posix.system'");
    REFUSED("\x80\x04\x8c\x08"
            "builtins\x8c\x04"
            "eval\x93.",
            "refers to 'builtins.eval'");
    REFUSED("\x80\x02"
            "c__builtin__\neval\n.",
            "refers to '__builtin__.eval'");
    REFUSED("\x80\x02"
            "ctorch\nload\n.",
            "refers to 'torch.load'");
    REFUSED("\x80\x02"
            "ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
            "refers to 'torch._utils._rebuild_tensor_v2.__globals__'");
    REFUSED("\x80\x02"
            "c\x1b[31m\nx\n.",
            "refers to '?[31m.x'");
    REFUSED("\x80\x02"
            "cnumpy.core.multiarray\n_reconstruct\n.",
            "nothing in a checkpoint is run");
}

static void opcodes_that_build_objects_are_refused(void **state)
{
    REFUSED("\x80\x02(ios\nsystem\n.", "opcode 0x69");    /* INST */
    REFUSED("\x80\x02(cos\nsystem\no.", "refers to 'os"); /* OBJ */
    REFUSED("\x80\x02\x82\x01.", "opcode 0x82");          /* EXT1 */
    REFUSED("\x80\x04)}\x92.", "opcode 0x92");            /* NEWOBJ_EX */
    REFUSED("\x80\x04\x8f.", "opcode 0x8f");              /* EMPTY_SET */
    REFUSED("\x80\x05\x97.", "opcode 0x97");              /* NEXT_BUFFER */
    REFUSED("\x80\x02Pkey\n.", "opcode 0x50");            /* PERSID */
    REFUSED("I1\n.", "opcode 0x49");                      /* protocol 0 */
}

static void only_names_can_be_called_and_only_as_they_are_meant(void **state)
{
    REFUSED("\x80\x02N)R.", "calls something that is no name");
    REFUSED("\x80\x02"
            "ccollections\nOrderedDict\nNR.",
            "something that is no tuple");
    REFUSED("\x80\x02"
            "ctorch\nFloatStorage\n)R.",
            "calls 'torch.FloatStorage', which is no function here");
    REFUSED("\x80\x02"
            "ccollections\nOrderedDict\nK\x01\x85R.",
            "expected no argument or one list");
    REFUSED("\x80\x02"
            "ctorch._utils\n_rebuild_tensor_v2\n)R.",
            "a tensor of 0 arguments");
    REFUSED("\x80\x02"
            "ctorch._utils\n_rebuild_parameter\nN\x85R.",
            "a parameter: expected a tensor");
    REFUSED("\x80\x02"
            "ctorch._utils\n_rebuild_tensor\n(NNNNtR.",
            "a tensor without a storage");
    REFUSED("\x80\x02]}b.", "sets attributes of something");
    REFUSED("\x80\x04"
            "K\x01K\x02\x93.",
            "a global whose name is no string");
}

static void tensor_arguments_are_checked(void **state)
{
    static const struct {
        int64_t shape, stride;
        uint64_t numel, offset;
        uint32_t rank;
        const char *want;
    } table[] = {
        {-1, 1, 4, 0, 1, "a tensor's shape and stride"},
        {1, -1, 4, 0, 1, "a tensor's shape and stride"},
        {1, 1, UINT64_MAX, 0, 1, "a persistent id"},
        {1, 1, 4, UINT64_MAX, 1, "a tensor without a storage and an offset"},
        {1, 1, 4, 0, 9, "at most 8 sizes"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(table); i++) {
        struct bytes b = {0};
        struct pickle_tensor t = {.storage = "FloatStorage",
                                  .key = "0",
                                  .numel = table[i].numel,
                                  .offset = table[i].offset,
                                  .rank = table[i].rank};
        for (int d = 0; d < 9; d++) {
            t.shape[d] = table[i].shape;
            t.stride[d] = table[i].stride;
        }
        pickle_begin(&b);
        pickle_tensor(&b, &t);
        pickle_end(&b);
        refused(b.data, b.count, table[i].want);
        bytes_free(&b);
    }
}

static void persistent_ids_are_checked(void **state)
{
    REFUSED("\x80\x02NQ.", "a persistent id");
    REFUSED("\x80\x02)Q.", "a persistent id");
    REFUSED("\x80\x02(U\x05modelNNNNtQ.", "a persistent id");
    REFUSED("\x80\x02(U\x07storageNU\x01"
            "0NK\x01tQ.",
            "a persistent id");
    REFUSED("\x80\x02(U\x07storagectorch\nfloat16\nU\x01"
            "0NK\x01tQ.",
            "a persistent id");
    REFUSED("\x80\x02(U\x07storagectorch\nFloatStorage\nK\x00NK\x01tQ.", "a persistent id");
    REFUSED("\x80\x02(U\x07storagectorch\nFloatStorage\nU\x01"
            "0NK\x04(U\x01vK\x03K\x02ttQ.",
            "a storage view of 2 values at 3 in a storage of 4");
}

static void a_broken_stack_is_refused(void **state)
{
    REFUSED("\x80\x02.", "the stack is empty");
    REFUSED("\x80\x02"
            "0.",
            "the stack is empty");
    REFUSED("\x80\x02t.", "no mark");
    REFUSED("\x80\x02N\x86.", "a tuple of 2 values, but the stack holds 1");
    REFUSED("\x80\x02N(\x85.", "a tuple of 1 values, but the stack holds 0");
    REFUSED("\x80\x02N(NR.", "the stack is empty");
    REFUSED("\x80\x02(N.", "ends inside a tuple");
    REFUSED("\x80\x02Na.", "no list");
    REFUSED("\x80\x02NNa.", "no list");
    REFUSED("\x80\x02](N(Ne.", "no list");
    REFUSED("\x80\x02(Ne.", "no list");
    REFUSED("\x80\x02}(Nu.", "a key without a value");
    REFUSED("\x80\x02](NNu.", "no dict");
    REFUSED("\x80\x02(q\x00.", "where a value is remembered");
    REFUSED("\x80\x02h\x00.", "memo index 0 was never set");
    REFUSED("\x80\x02Nr\xff\xff\xff\xff.", "memo index 4294967295");
    REFUSED("\x80\x01N.", "pickle protocol: expected 2 to 5, found 1");
    REFUSED("\x80\x06N.", "pickle protocol: expected 2 to 5, found 6");
}

static void every_truncation_is_refused(void **state)
{
    struct bytes b = {0};
    pickle_begin(&b);
    bytes_text(&b, "}(");
    pickle_string(&b, "w");
    pickle_tensor(&b, &(struct pickle_tensor){.storage = "HalfStorage",
                                              .key = "0",
                                              .numel = 4,
                                              .rank = 1,
                                              .shape = {4},
                                              .stride = {1}});
    bytes_text(&b, "u");
    pickle_end(&b);
    for (size_t n = 0; n < b.count; n++) {
        uint8_t *exact = malloc(n ? n : 1);
        memcpy(exact, b.data, n);
        refused(exact, n, "pickle, byte ");
        free(exact);
    }
    aq_pickle_close(parse(b.data, b.count));
    bytes_free(&b);
}

static void lengths_that_lie_are_refused(void **state)
{
    REFUSED("\x80\x02X\xff\xff\xff\xff"
            "a.",
            "the pickle ends early: expected 4294967295");
    REFUSED("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
            "a.",
            "the pickle ends early");
    REFUSED("\x80\x02\x8b\xff\xff\xff\xff.", "the pickle ends early");
    REFUSED("\x80\x02\x8a\xff.", "the pickle ends early");
    REFUSED("\x80\x02"
            "cos",
            "expected the name of a global");
    REFUSED("\x80\x02"
            "cos\nsystem",
            "expected the name of a global");
}

/* ---- bombs ---- */

/* Each list holds the one before twice: 2^200 items when expanded, 201 here. */
static void shared_values_are_not_expanded(void **state)
{
    struct bytes b = {0};
    pickle_begin(&b);
    bytes_add(&b, "]q\0", 3);
    for (unsigned i = 0; i < 200; i++) {
        bytes_text(&b, "(h");
        bytes_u8(&b, i);
        bytes_text(&b, "h");
        bytes_u8(&b, i);
        bytes_text(&b, "lq");
        bytes_u8(&b, i + 1);
    }
    pickle_end(&b);
    struct aq_pickle *p = parse(b.data, b.count);
    const struct aq_pickle_value *v = aq_pickle_root(p);
    unsigned depth = 0;
    for (; v->count == 2; v = v->as.items[0])
        depth++;
    assert_int_equal(depth, 200);
    aq_pickle_close(p);
    bytes_free(&b);
}

static void deep_nesting_needs_no_recursion(void **state)
{
    enum { DEPTH = 500000 };
    uint8_t *bytes = malloc(3 + 2 * DEPTH);
    memcpy(bytes, "\x80\x02N", 3);
    memset(bytes + 3, 0x85, DEPTH); /* TUPLE1 */
    bytes[3 + DEPTH] = '.';
    aq_pickle_close(parse(bytes, 4 + DEPTH));
    memset(bytes + 2, '(', DEPTH);
    memset(bytes + 2 + DEPTH, 't', DEPTH);
    bytes[2 + 2 * DEPTH] = '.';
    aq_pickle_close(parse(bytes, 3 + 2 * DEPTH));
    free(bytes);
}

static void the_stack_is_bounded(void **state)
{
    size_t n = AQ_PICKLE_STACK_MAX + 2;
    uint8_t *bytes = malloc(n + 3);
    memcpy(bytes, "\x80\x02", 2);
    memset(bytes + 2, 'N', n);
    bytes[n + 2] = '.';
    refused(bytes, n + 3, "expected a stack of at most 1048576 values");
    memset(bytes + 2, '(', n);
    refused(bytes, n + 3, "expected at most 1048576 marks");
    free(bytes);
}

static void memory_is_bounded(void **state)
{
    size_t n = AQ_PICKLE_BYTES_MAX - 8;
    uint8_t *bytes = malloc(n);
    memcpy(bytes, "\x80\x02]", 3);
    for (size_t i = 3; i + 1 < n; i += 2)
        memcpy(bytes + i, "]a", 2); /* 32 million empty lists in a list */
    bytes[n - 1] = '.';
    refused(bytes, n, "its values need more than 512 MiB");
    free(bytes);
}

static void a_pickle_may_hold_itself(void **state)
{
    struct aq_pickle *p = PARSE("\x80\x02]q\x00h\x00"
                                "a.");
    assert_ptr_equal(aq_pickle_root(p), aq_pickle_root(p)->as.items[0]);
    aq_pickle_close(p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(numbers_of_every_width_keep_their_value),
    cmocka_unit_test(integers_beyond_64_bits_keep_their_bytes),
    cmocka_unit_test(floats_booleans_and_none_are_read),
    cmocka_unit_test(strings_of_every_opcode_are_read),
    cmocka_unit_test(lists_and_dicts_grow_by_every_opcode),
    cmocka_unit_test(the_last_of_equal_keys_counts),
    cmocka_unit_test(memo_entries_are_the_same_value),
    cmocka_unit_test(an_ordered_dict_is_a_dict_and_its_attributes_are_dropped),
    cmocka_unit_test(a_pickle_ends_at_stop_and_says_where),
    cmocka_unit_test(a_tensor_of_version_3_takes_its_dtype_from_the_arguments),
    cmocka_unit_test(code_is_refused_by_name),
    cmocka_unit_test(opcodes_that_build_objects_are_refused),
    cmocka_unit_test(only_names_can_be_called_and_only_as_they_are_meant),
    cmocka_unit_test(tensor_arguments_are_checked),
    cmocka_unit_test(persistent_ids_are_checked),
    cmocka_unit_test(a_broken_stack_is_refused),
    cmocka_unit_test(every_truncation_is_refused),
    cmocka_unit_test(lengths_that_lie_are_refused),
    cmocka_unit_test(shared_values_are_not_expanded),
    cmocka_unit_test(deep_nesting_needs_no_recursion),
    cmocka_unit_test(the_stack_is_bounded),
    cmocka_unit_test(memory_is_bounded),
    cmocka_unit_test(a_pickle_may_hold_itself),
};
AQ_TEST_MAIN(tests)
