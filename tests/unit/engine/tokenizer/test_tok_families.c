/* SPDX-License-Identifier: Apache-2.0
 * The tokenizers of families of models, against sentencepiece and the tokenizers library:
 * tests/data/tokenizer-families has small ones in their forms, with what the libraries give. */
#include "base/prng.h"
#include "tests/unit/engine/tokenizer/tok_rig.h"

static const struct aq_encode_opts plain = {.parse_special = true};

static json_t *read_data(const char *name)
{
    struct aq_err err = {0};
    char path[PATH_MAX];
    json_t *value = NULL;
    if (aq_json_read_file(&value, rig_data(path, name), 1 << 24, &err) < 0)
        fail_msg("%s", err.text);
    return value;
}

static const char *member(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static void set_ids(struct rig *r, const json_t *list)
{
    size_t i;
    const json_t *id;
    r->ids.count = 0;
    assert_true(aq_ids_reserve(&r->ids, json_array_size(list)));
    json_array_foreach(list, i, id) r->ids.item[r->ids.count++] = (uint32_t)json_integer_value(id);
}

static void assert_text(const struct rig *r, const json_t *want, const char *what)
{
    if (r->text.count != json_string_length(want) ||
        memcmp(r->text.data, json_string_value(want), r->text.count) != 0)
        fail_msg("%s: expected '%s', found '%s'", what, json_string_value(want), r->text.data);
}

/* ---- tokenizer.model ---- */

static void open_model(struct rig *r, const char *name)
{
    char path[PATH_MAX];
    rig_begin(r);
    snprintf(path, sizeof(path), "tokenizer-families/%s.model", name);
    rig_copy(r, "tokenizer.model", path);
    rig_open(r, NULL);
}

static void check_model(const json_t *model)
{
    struct rig r;
    const char *name = member(model, "name");
    const json_t *c;
    size_t i;
    open_model(&r, name);
    const struct aq_tokenizer_info *info = aq_tokenizer_info(r.t);
    assert_string_equal(info->source, "tokenizer.model");
    assert_int_equal(info->bos_id, json_integer_value(json_object_get(model, "bos")));
    assert_int_equal(info->eos_id, json_integer_value(json_object_get(model, "eos")));
    assert_int_equal(info->pad_id, json_integer_value(json_object_get(model, "pad")));
    assert_int_equal(info->unk_id, json_integer_value(json_object_get(model, "unk")));
    assert_true(info->add_bos && !info->add_eos);
    json_array_foreach(json_object_get(model, "cases"), i, c)
    {
        const json_t *text = json_object_get(c, "text");
        rig_encode(&r, json_string_value(text), json_string_length(text), plain);
        rig_assert_ids(&r, json_object_get(c, "ids"), 0, json_string_value(text));
    }
    assert_true(i > 90);
    json_array_foreach(json_object_get(model, "decoded"), i, c)
    {
        set_ids(&r, json_object_get(c, "ids"));
        rig_decode(&r);
        assert_text(&r, json_object_get(c, "text"), name);
    }
    rig_end(&r);
}

static void models_encode_and_decode_as_sentencepiece_does(void **state)
{
    json_t *all = read_data("tokenizer-families/models.json"), *model;
    size_t i;
    json_array_foreach(all, i, model) check_model(model);
    assert_int_equal(i, 4);
    json_decref(all);
}

/* Bytes behind a sound model: of a message that comes twice, later fields count. */
static void assert_refused(const char *more, size_t bytes, const char *words)
{
    struct rig r;
    char path[PATH_MAX], *text, copy[256], *rest = copy, *word;
    size_t n;
    rig_begin(&r);
    rig_data(path, "tokenizer-families/llama.model");
    assert_int_equal(aq_read_file(&text, &n, path, 1 << 20, &r.err), 0);
    struct aq_buf b = {0};
    aq_buf_put(&b, text, n);
    aq_buf_put(&b, more, bytes);
    rig_write(&r, "tokenizer.model", b.data, b.count);
    int rc = rig_try_open(&r, NULL);
    snprintf(copy, sizeof(copy), "tokenizer.model|%s", words);
    if (rc != -ENOEXEC)
        fail_msg("%s: expected to be refused, found %d", words, rc);
    while ((word = strsep(&rest, "|")))
        if (!strstr(r.err.text, word))
            fail_msg("expected '%s' in: %s", word, r.err.text);
    aq_buf_close(&b);
    free(text);
    rig_end(&r);
}

#define REFUSED(more, words) assert_refused(more, sizeof(more) - 1, words)

static void models_that_would_encode_otherwise_are_refused_by_name(void **state)
{
    REFUSED("\x12\x02\x18\x01", "BPE|unigram|tokenizer.json");
    REFUSED("\x12\x02\x18\x04", "BPE|char");
    REFUSED("\x12\x02\x18\x63", "BPE|unknown");
    REFUSED("\x12\x03\xc0\x01\x01", "treat_whitespace_as_suffix");
    REFUSED("\x1a\x03\x12\x01x", "map of characters|identity|tokenizer.json");
    REFUSED("\x1a\x02\x28\x00", "escape_whitespaces");
    REFUSED("\x2a\x03\x12\x01x", "denormaliser");
    REFUSED("\x0a\x05\x0a\x01\x01\x18\x05", "piece 900|unused");
    REFUSED("\x0a\x05\x0a\x01\x01\x18\x07", "piece 900|unknown");
    REFUSED("\x0a\x05\x0a\x01\x01\x18\x02", "piece 900|one unknown piece");
    REFUSED("\x0a\x03\x0a\x01\xff", "piece 900|UTF-8");
    REFUSED("\x0a\x03\x0a\x01"
            "a",
            "piece 900|'a'|one id");
    REFUSED("\x0a\x02\x18\x01", "piece 900|empty");
    REFUSED("\x0a\x08\x0a\x01\x01\x15\x00\x00\x80\x7f", "piece 900|score");
    REFUSED("\x1a\x02\x20\x01\x0a\x07\x0a\x03"
            "a b\x18\x04",
            "piece 900|user-defined");
}

static void models_cut_off_or_of_other_fields_are_refused(void **state)
{
    REFUSED("\x0a", "field 1|ends within");
    REFUSED("\x0a\x7f", "field 1|ends within");
    REFUSED("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "field 1|ends within");
    REFUSED("\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "field 1|ends within");
    REFUSED("\x0b", "field 1|type 3");
    REFUSED("\x00", "a protobuf field");
    REFUSED("\x08\x01", "field 1|a message");
    REFUSED("\x0a\x02\x08\x01", "piece 900|field 1|expected text");
    REFUSED("\x12\x02\x1a\x00", "trainer_spec|field 3|expected a number");
    REFUSED("\x79\x01", "field 15|ends within");
    REFUSED("\x7d\x01", "field 15|ends within");
}

static void a_model_without_what_it_needs_is_refused(void **state)
{
    static const struct {
        const char *model, *words;
        size_t bytes;
    } cases[] = {
        {"", "no pieces", 0},
        {"\x12\x02\x18\x02", "no pieces", 4},
        {"\x12\x02\x18\x02\x0a\x03\x0a\x01"
         "a",
         "unknown piece, found none", 9},
        {"\x12\x05\x18\x02\x98\x02\x01\x0a\x05\x0a\x01"
         "a\x18\x02",
         "every byte|<0x00>", 14},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct rig r;
        rig_begin(&r);
        rig_write(&r, "tokenizer.model", cases[i].model, cases[i].bytes);
        assert_int_equal(rig_try_open(&r, NULL), -ENOEXEC);
        char words[64], *rest = words, *word;
        snprintf(words, sizeof(words), "%s", cases[i].words);
        while ((word = strsep(&rest, "|")))
            if (!strstr(r.err.text, word))
                fail_msg("expected '%s' in: %s", word, r.err.text);
        rig_end(&r);
    }
}

static void the_config_says_what_stands_around_the_text_of_a_model(void **state)
{
    static const struct {
        const char *config;
        bool bos, eos;
        int bos_id;
    } cases[] = {{"{}", true, false, 1},
                 {"{\"add_bos_token\":false,\"add_eos_token\":true}", false, true, 1},
                 {"{\"bos_token\":\"</s>\"}", true, false, 2},
                 {"{\"bos_token\":null}", false, false, -1}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct rig r;
        const struct aq_tokenizer_defaults defaults = {.bos_id = 7, .eos_id = 8, .pad_id = 9};
        rig_begin(&r);
        rig_copy(&r, "tokenizer.model", "tokenizer-families/llama.model");
        rig_puts(&r, "tokenizer_config.json", cases[i].config);
        rig_open(&r, &defaults); /* the model's own roles come before the architecture's */
        const struct aq_tokenizer_info *info = aq_tokenizer_info(r.t);
        assert_int_equal(info->add_bos, cases[i].bos);
        assert_int_equal(info->add_eos, cases[i].eos);
        assert_int_equal(info->bos_id, cases[i].bos_id);
        assert_int_equal(info->eos_id, 2);
        assert_string_equal(info->notice, "");
        rig_end(&r);
    }
}

static void tokens_added_to_a_model_are_found_in_the_text_as_it_is(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_copy(&r, "tokenizer.model", "tokenizer-families/llama.model");
    rig_puts(&r, "tokenizer_config.json",
             "{\"added_tokens_decoder\":{\"900\":{\"content\":\"<|end|>\",\"normalized\":true}}}");
    rig_open(&r, NULL);
    rig_encode(&r, "<|end|>the<|end|>", 17, plain);
    assert_int_equal(r.ids.count, 3);
    assert_int_equal(r.ids.item[0], 900);
    assert_int_equal(r.ids.item[2], 900);
    assert_int_equal(aq_tokenizer_find(r.t,
                                       "\xe2\x96\x81"
                                       "the",
                                       6),
                     r.ids.item[1]);
    rig_end(&r);
}

static void a_tokenizer_json_wins_over_a_model(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_copy(&r, "tokenizer.model", "tokenizer-families/llama.model");
    rig_small(&r, "");
    rig_open(&r, NULL); /* the model wins over vocab.json */
    assert_string_equal(aq_tokenizer_info(r.t)->source, "tokenizer.model");
    rig_close_tokenizer(&r);
    rig_puts(&r, "tokenizer.json", "{}");
    assert_int_equal(rig_try_open(&r, NULL), -ENOEXEC);
    assert_non_null(strstr(r.err.text, "tokenizer.json"));
    rig_end(&r);
}

/* ---- tokenizer.json ---- */

/* The form with the vocabulary and the merges of its base, as families.py puts it together. */
static void put_form(struct rig *r, const json_t *form, const json_t *bases)
{
    json_t *whole = json_deep_copy(form), *vocab = json_object(), *merges = json_array(), *item;
    json_t *base = json_object_get(bases, member(form, "base"));
    size_t i, first = (size_t)json_integer_value(json_object_get(form, "merges_from"));
    json_array_foreach(json_array_get(base, 0), i, item)
    {
        const char *token = json_string_value(item);
        char text[64];
        bool drop = json_is_true(json_object_get(form, "drop_bytes")) &&
                    (strncmp(token, "<0xE", 4) == 0 || strncmp(token, "<0x80", 5) == 0);
        snprintf(text, sizeof(text), "%s%s", drop ? "<no " : "", token + drop);
        json_object_set_new(vocab, text, json_integer((json_int_t)i));
    }
    json_array_foreach(json_array_get(base, 1), i, item) if (i >= first)
        json_array_append(merges, item);
    json_t *model = json_object_get(whole, "model");
    json_object_set_new(model, "type", json_string("BPE"));
    json_object_set_new(model, "vocab", vocab);
    json_object_set_new(model, "merges", merges);
    char *text = json_dumps(whole, JSON_COMPACT);
    rig_puts(r, "tokenizer.json", text);
    free(text);
    json_decref(whole);
}

static void check_form(const json_t *form, const json_t *bases)
{
    struct rig r;
    const json_t *c;
    size_t i;
    rig_begin(&r);
    put_form(&r, json_object_get(form, "form"), bases);
    rig_open(&r, NULL);
    const struct aq_tokenizer_info *info = aq_tokenizer_info(r.t);
    const struct aq_encode_opts opts = {
        .add_bos = info->add_bos, .add_eos = info->add_eos, .parse_special = true};
    json_array_foreach(json_object_get(form, "cases"), i, c)
    {
        const json_t *text = json_object_get(c, "text");
        char what[200];
        snprintf(what, sizeof(what), "%s: %s", member(form, "name"), json_string_value(text));
        rig_encode(&r, json_string_value(text), json_string_length(text), opts);
        rig_assert_ids(&r, json_object_get(c, "ids"), 0, what);
        rig_decode(&r);
        assert_text(&r, json_object_get(c, "decoded"), what);
    }
    assert_true(i > 70);
    rig_end(&r);
}

static void forms_encode_and_decode_as_the_tokenizers_library_does(void **state)
{
    json_t *all = read_data("tokenizer-families/forms.json"), *form;
    size_t i;
    json_array_foreach(json_object_get(all, "forms"), i, form)
        check_form(form, json_object_get(all, "bases"));
    assert_int_equal(i, 13);
    json_decref(all);
}

static void a_character_without_a_token_is_named(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_puts(&r, "tokenizer.json",
             "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":{"
             "\"type\":\"Fuse\"}}");
    rig_open(&r, NULL);
    rig_encode(&r, "aa", 2, plain);
    assert_int_equal(r.ids.count, 2);
    int rc = aq_tokenizer_encode(r.t, r.s, "a\xc3\xa9", 3, plain, &r.ids, &r.err);
    assert_int_equal(rc, -EINVAL);
    assert_int_equal(r.ids.count, 2);
    assert_non_null(strstr(r.err.text, "no token for character U+00e9"));
    rig_end(&r);
}

/* ---- bytes, streams ---- */

static void bytes_that_are_no_utf8_are_byte_tokens_and_decode_to_one_replacement_each(void **state)
{
    struct rig r;
    open_model(&r, "llama");
    rig_encode(&r,
               "\xe4\xbd"
               "a\xff",
               4, plain);
    static const uint32_t end[] = {3 + 0xe4, 3 + 0xbd};
    assert_int_equal(r.ids.count, 5); /* the space in front is a token of its own */
    assert_memory_equal(r.ids.item + 1, end, sizeof(end));
    assert_int_equal(r.ids.item[4], 3 + 0xff);
    rig_decode(&r);
    assert_string_equal(r.text.data, "\xef\xbf\xbd\xef\xbf\xbd"
                                     "a\xef\xbf\xbd");
    rig_end(&r);
}

/* Bytes of whole and of cut characters, words, spaces, special tokens. */
static void draw_ids(struct rig *r, uint64_t seed)
{
    static const char some[] = "\xe4\xbd\xa0\xf0\x9f\x99\x82 \xc3\xa9\xff";
    r->ids.count = 0;
    assert_true(aq_ids_reserve(&r->ids, 40));
    while (r->ids.count < 40) {
        uint64_t i = r->ids.count, x = aq_prng_below(seed, i, 0, 8);
        uint32_t id = (uint32_t)aq_prng_below(seed, i, 1, 920);
        if (x < 4)
            id = 3 + (unsigned char)some[aq_prng_below(seed, i, 2, sizeof(some) - 1)];
        r->ids.item[r->ids.count++] = id;
    }
}

static void assert_stream_equals_whole(struct rig *r, bool skip_special, bool begun)
{
    size_t max = aq_detok_bytes_max(r->t);
    char *out = malloc(max);
    struct aq_buf stream = {0}, whole = {0};
    struct aq_detok d;
    aq_detok_start(&d, r->t, skip_special);
    d.begun = begun;
    for (size_t i = 0; i < r->ids.count; i++) {
        size_t n = aq_detok_push(&d, r->ids.item[i], out);
        assert_true(n <= max);
        aq_buf_put(&stream, out, n);
        assert_int_equal(aq_utf8_invalid_at(stream.data, stream.count), stream.count);
    }
    aq_buf_put(&stream, out, aq_detok_flush(&d, out));
    aq_tokenizer_decode(r->t, r->ids.item, r->ids.count, skip_special, &whole);
    size_t cut = begun && whole.count != stream.count;
    assert_int_equal(stream.count, whole.count + cut);
    assert_memory_equal(stream.data + cut, whole.data, whole.count);
    if (cut)
        assert_int_equal(*stream.data, ' ');
    aq_buf_close(&stream);
    aq_buf_close(&whole);
    free(out);
}

static void streaming_equals_whole_decoding(void **state)
{
    static const char *const names[] = {"llama", "gemma", "squeezed"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        struct rig r;
        open_model(&r, names[i]);
        for (uint64_t seed = 0; seed < 2000; seed++) {
            draw_ids(&r, seed);
            assert_stream_equals_whole(&r, seed % 2, false);
            if (i == 0)
                assert_stream_equals_whole(&r, seed % 2, true);
        }
        rig_end(&r);
    }
}

static void only_a_text_that_begins_loses_its_first_space(void **state)
{
    struct rig r;
    char out[256];
    struct aq_detok d;
    open_model(&r, "llama");
    assert_true(aq_detok_bytes_max(r.t) <= sizeof(out));
    rig_encode(&r, "the", 3, plain);
    assert_int_equal(r.ids.count, 1);
    aq_detok_start(&d, r.t, true);
    assert_int_equal(aq_detok_push(&d, 1, out), 0); /* BOS, skipped: nothing has begun */
    assert_int_equal(aq_detok_push(&d, r.ids.item[0], out), 3);
    assert_int_equal(aq_detok_push(&d, r.ids.item[0], out), 4);
    assert_memory_equal(out, " the", 4);
    rig_end(&r);
}

static void a_long_text_is_one_piece_and_takes_little_time(void **state)
{
    enum { BYTES = 4 << 20 }; /* a second; merging in quadratic time, hours */
    struct rig r;
    open_model(&r, "llama");
    char *text = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = "ab the aa"[aq_prng_below(1, i / 8, 0, 2) ? i % 9 : 7];
    rig_encode(&r, text, BYTES, plain);
    rig_decode(&r);
    assert_int_equal(r.text.count, BYTES);
    assert_memory_equal(r.text.data, text, BYTES);
    free(text);
    rig_end(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(models_encode_and_decode_as_sentencepiece_does),
    cmocka_unit_test(models_that_would_encode_otherwise_are_refused_by_name),
    cmocka_unit_test(models_cut_off_or_of_other_fields_are_refused),
    cmocka_unit_test(a_model_without_what_it_needs_is_refused),
    cmocka_unit_test(the_config_says_what_stands_around_the_text_of_a_model),
    cmocka_unit_test(tokens_added_to_a_model_are_found_in_the_text_as_it_is),
    cmocka_unit_test(a_tokenizer_json_wins_over_a_model),
    cmocka_unit_test(forms_encode_and_decode_as_the_tokenizers_library_does),
    cmocka_unit_test(a_character_without_a_token_is_named),
    cmocka_unit_test(bytes_that_are_no_utf8_are_byte_tokens_and_decode_to_one_replacement_each),
    cmocka_unit_test(streaming_equals_whole_decoding),
    cmocka_unit_test(only_a_text_that_begins_loses_its_first_space),
    cmocka_unit_test(a_long_text_is_one_piece_and_takes_little_time),
};

AQ_TEST_MAIN(tests)
