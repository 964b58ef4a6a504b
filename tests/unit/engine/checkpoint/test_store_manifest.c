/* SPDX-License-Identifier: Apache-2.0
 * A manifest is a file from anywhere: every lie in it is refused with a message of its own. */
#include "tests/test.h"

#include "engine/checkpoint/store_manifest.h"

#include <stdlib.h>
#include <string.h>

/* A sound manifest of four items in two steps. */
static json_t *sound_manifest(void)
{
    static const struct aq_store_item_desc embed[] = {
        {"embed_tokens.weight", AQ_STORE_MATRIX, AQ_F16, AQ_LAYOUT_COL64, 100, 33, 0},
        {"embed_positions.weight", AQ_STORE_TABLE, AQ_F32, AQ_LAYOUT_ROWS, 10, 33, 0},
    };
    static const struct aq_store_item_desc mlp[] = {
        {"layers.0.fc1.bias", AQ_STORE_VECTOR, AQ_F32, AQ_LAYOUT_ROWS, 1, 128, 0},
        {"blob", AQ_STORE_BLOB, AQ_U8, AQ_LAYOUT_ROWS, 0, 0, 12345},
    };
    static const struct aq_store_step_desc steps[] = {{"embed", embed, 2}, {"layer.0.mlp", mlp, 2}};
    json_t *model = json_pack("{ss}", "name", "rig"), *root = NULL;
    struct aq_store_writer_opts opts = {
        .steps = steps, .step_count = 2, .source = "source", .model = model};
    struct aq_store_manifest *m;
    struct aq_store_file file = {"config.json", 22, 7};
    char *dirs[] = {".", "/mnt/second/store"};
    assert_int_equal(aq_store_manifest_lay_out(&m, &opts, NULL), 0);
    m->dirs = dirs;
    m->dir_count = AQ_ARRAY_LEN(dirs);
    m->files = &file;
    m->file_count = 1;
    assert_int_equal(aq_store_manifest_identity(&m->id, m, NULL), 0);
    assert_int_equal(aq_store_manifest_json(&root, m, NULL), 0);
    m->dirs = NULL;
    m->files = NULL;
    aq_store_manifest_close(m);
    json_decref(model);
    return root;
}

static int parse_json(json_t *root, struct aq_err *err)
{
    struct aq_store_manifest *m = NULL;
    char *text = json_dumps(root, JSON_ENCODE_ANY);
    int rc = aq_store_manifest_parse(&m, text, strlen(text), err);
    assert_true((rc == 0) == (m != NULL));
    aq_store_manifest_close(m);
    free(text);
    return rc;
}

static json_t *first_item(json_t *root)
{
    json_t *step = json_array_get(json_object_get(root, "steps"), 0);
    return json_array_get(json_object_get(step, "items"), 0);
}

static void every_lie_in_an_item_has_its_own_message(void **state)
{
    struct aq_err err;
    const struct {
        const char *key, *value, *text;
    } cases[] = {
        {"name", "\"\"", "name"},
        {"name", "7", "name"},
        {"name", "\"a\\u0000b\"", "string"},
        {"name", "\"embed_positions.weight\"", "twice"},
        {"kind", "\"tensor\"", "unknown kind 'tensor'"},
        {"dtype", "\"f8\"", "unknown dtype 'f8'"},
        {"dtype", "\"i64\"", "expected f32, f16, bf16"},
        {"dtype", "\"int8\"", "expected group64 for int8"},
        {"dtype", "\"i8\"", "expected f32, f16, bf16, int8 or int4"},
        {"layout", "\"tiles\"", "unknown layout 'tiles'"},
        {"layout", "\"group64\"", "expected rows, pair64 or col64 for f16"},
        {"codec", "\"zstd\"", "unknown codec 'zstd'"},
        {"codec", "null", "unknown codec"},
        {"rows", "-1", "rows"},
        {"rows", "\"100\"", "rows"},
        {"rows", "null", "'rows' is missing"},
        {"rows", "0", "shape"},
        {"rows", "4294967295", "bytes"},
        {"cols", "4294967296", "cols"},
        {"cols", "34.5", "cols"},
        {"cols", "100", "expected 32768 bytes"},
        {"bytes", "4096", "expected 16384"},
        {"bytes", "18446744073709551616", ""},
        {"offset", "1", "multiple of 4096"},
        {"offset", "65536", "ending by 65536"},
        {"offset", "72057594037927936", "ending by"},
        {"offset", "9223372036854775807", "offset"},
        {"offset", "-4096", "offset"},
        {"xxh3", "\"12\"", "hexadecimal"},
        {"xxh3", "\"ABCDEFABCDEFABCD\"", "hexadecimal"},
        {"xxh3", "\"0123456789abcdef\"", "the manifest was changed"},
        {"tiles", "\"0000000000000000000000000000000\"", "expected 2 checksums"},
        {"tiles", "\"000000000000000000000000000000000\"", "expected 2 checksums"},
        {"tiles", "\"0000000000000000000000000000000G\"", "expected 2 checksums"},
        {"tiles", "null", "expected 2 checksums"},
        {"tiles", "\"00000000000000000000000000000001\"", "the manifest was changed"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        json_t *root = sound_manifest();
        json_t *value = json_loads(cases[i].value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (value) /* numbers beyond 64 bits do not even parse */
            json_object_set_new(first_item(root), cases[i].key, value);
        else
            json_object_del(first_item(root), cases[i].key);
        assert_int_equal(parse_json(root, &err), -ENOEXEC);
        if (!strstr(err.text, cases[i].text))
            fail_msg("%s = %s: expected '%s' in: %s", cases[i].key, cases[i].value, cases[i].text,
                     err.text);
        json_decref(root);
    }
}

static void every_lie_in_the_head_has_its_own_message(void **state)
{
    struct aq_err err;
    const struct {
        const char *key, *value, *text;
    } cases[] = {
        {"schema", "\"something\"", "schema"},
        {"format_version", "3", "format version: expected 1 to 2, found 3"},
        {"format_version", "0", "format version: expected 1 to 2, found 0"},
        {"format_version", "null", "'format_version' is missing"},
        {"unit_bytes", "65536", "unit_bytes: expected 4194304, found 65536"},
        {"bytes", "0", "step 'embed'"},
        {"bytes", "1099511627776", "where the last step ends"},
        {"plan", "1", "hexadecimal"},
        {"id", "\"0000000000000000\"", "the manifest was changed"},
        {"plan", "\"0000000000000000\"", "the manifest was changed"},
        {"tiles", "\"0000000000000000\"", "the manifest was changed"},
        {"tiles", "7", "hexadecimal"},
        {"source", "3", "source"},
        {"source", "\"else\"", "the manifest was changed"},
        {"model", "[]", "model"},
        {"model", "{\"name\": \"else\"}", "the manifest was changed"},
        {"directories", "[]", "directories"},
        {"directories", "[\"/etc\"]", "directories[0]: expected \".\""},
        {"directories", "[\".\", \"../else\"]", "directories[1]: expected an absolute path"},
        {"directories", "[\".\", \"/a\\u0000b\"]", "directories[1]"},
        {"steps", "[]", "steps"},
        {"steps", "{}", "steps"},
        {"steps", "[7]", "step 0"},
        {"files", "7", "files"},
        {"files", "[{\"name\": \"../../etc/passwd\"}]", "cannot be the name"},
        {"files", "[{\"name\": \"a\"}]", "'bytes' is missing"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        json_t *root = sound_manifest();
        json_t *value = json_loads(cases[i].value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        json_object_set_new(root, cases[i].key, value);
        assert_int_equal(parse_json(root, &err), -ENOEXEC);
        if (!strstr(err.text, cases[i].text))
            fail_msg("%s = %s: expected '%s' in: %s", cases[i].key, cases[i].value, cases[i].text,
                     err.text);
        json_decref(root);
    }
}

/* What the first version of the format said, which knew no tiles: the same store. */
static void a_manifest_of_the_first_version_is_the_same_store(void **state)
{
    json_t *root = sound_manifest();
    struct aq_store_manifest *m, *old;
    char *text = json_dumps(root, 0);
    assert_int_equal(aq_store_manifest_parse(&m, text, strlen(text), NULL), 0);
    free(text);
    assert_non_null(m->items[0].tile_xxh3);
    json_object_set_new(root, "format_version", json_integer(1));
    assert_int_equal(json_object_del(root, "tiles"), 0);
    assert_int_equal(json_object_del(first_item(root), "tiles"), 0);
    text = json_dumps(root, 0);
    assert_int_equal(aq_store_manifest_parse(&old, text, strlen(text), NULL), 0);
    assert_null(old->items[0].tile_xxh3);
    assert_int_equal(old->version, 1);
    assert_true(old->id == m->id && old->plan == m->plan);
    free(text);
    aq_store_manifest_close(old);
    aq_store_manifest_close(m);
    json_decref(root);
}

static void overlapping_steps_and_items_are_refused(void **state)
{
    struct aq_err err;
    json_t *root = sound_manifest(), *all = json_object_get(root, "steps");
    json_t *items = json_object_get(json_array_get(all, 0), "items");
    json_object_set_new(json_array_get(items, 1), "offset", json_integer(4096));
    assert_int_equal(parse_json(root, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "item 'embed_positions.weight': offset 4096"));
    json_decref(root);
    root = sound_manifest();
    all = json_object_get(root, "steps");
    json_object_set_new(json_array_get(all, 1), "offset", json_integer(0));
    assert_int_equal(parse_json(root, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "step 'layer.0.mlp': offset 0"));
    json_decref(root);
}

static void text_that_is_no_manifest_is_refused(void **state)
{
    const char *const texts[] = {"",
                                 "{",
                                 "[]",
                                 "null",
                                 "7",
                                 "{}",
                                 "{\"schema\": 1}",
                                 "{\"schema\": \"aquifer.store\", \"schema\": \"x\"}"};
    struct aq_err err;
    for (size_t i = 0; i < AQ_ARRAY_LEN(texts); i++) {
        struct aq_store_manifest *m = NULL;
        assert_int_equal(aq_store_manifest_parse(&m, texts[i], strlen(texts[i]), &err), -ENOEXEC);
        assert_null(m);
    }
}

static void a_sound_manifest_says_the_same_after_a_round_trip(void **state)
{
    json_t *root = sound_manifest(), *again;
    char *text = json_dumps(root, 0);
    struct aq_store_manifest *m;
    assert_int_equal(aq_store_manifest_parse(&m, text, strlen(text), NULL), 0);
    assert_int_equal(aq_store_manifest_json(&again, m, NULL), 0);
    assert_true(json_equal(root, again));
    assert_string_equal(m->items[m->by_name[0]].name, "blob");
    assert_int_equal(aq_store_manifest_find(m, "layers.0.fc1.bias"), 2);
    assert_int_equal(aq_store_manifest_find(m, "layers.0.fc1"), UINT32_MAX);
    aq_store_manifest_close(m);
    json_decref(again);
    json_decref(root);
    free(text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_sound_manifest_says_the_same_after_a_round_trip),
    cmocka_unit_test(every_lie_in_an_item_has_its_own_message),
    cmocka_unit_test(every_lie_in_the_head_has_its_own_message),
    cmocka_unit_test(a_manifest_of_the_first_version_is_the_same_store),
    cmocka_unit_test(overlapping_steps_and_items_are_refused),
    cmocka_unit_test(text_that_is_no_manifest_is_refused),
};

AQ_TEST_MAIN(tests)
