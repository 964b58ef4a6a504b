/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/prng.h"
#include "tests/unit/engine/tokenizer/tok_rig.h"

#include <pthread.h>

static const struct aq_tokenizer_defaults opt_defaults = {
    .bos_id = 2, .eos_id = 2, .pad_id = 1, .add_bos = true};
static const struct aq_encode_opts plain = {.parse_special = true},
                                   with_bos = {.add_bos = true, .parse_special = true};

static void open_opt(struct rig *r)
{
    rig_begin(r);
    rig_open_data(r, "opt-tokenizer", &opt_defaults);
}

/* ---- published vectors ---- */

static void check_vector(void *arg, const json_t *line)
{
    struct rig *r = arg;
    const json_t *text = json_object_get(line, "text");
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text);
    rig_encode(r, bytes, n, plain);
    rig_assert_ids(r, json_object_get(line, "ids"), 0, bytes);
    rig_decode(r);
    assert_int_equal(r->text.count, n);
    assert_memory_equal(r->text.data, bytes, n);
}

static void opt_vectors_are_reproduced_and_decode_to_their_text(void **state)
{
    struct rig r;
    open_opt(&r);
    assert_int_equal(rig_lines("tokenizer-vectors/opt_mapped.jsonl", check_vector, &r), 546);
    rig_end(&r);
}

static void gpt2_vectors_come_from_its_own_two_files(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_copy(&r, "encoder.json", "gpt2-tokenizer/encoder.json");
    rig_copy(&r, "vocab.bpe", "opt-tokenizer/merges.txt");
    rig_open(&r, NULL);
    assert_int_equal(rig_lines("tokenizer-vectors/gpt2.jsonl", check_vector, &r), 549);
    rig_end(&r);
}

static void gpt2_vectors_come_from_tokenizer_json(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_open_data(&r, "gpt2-tokenizer", NULL);
    assert_int_equal(rig_lines("tokenizer-vectors/gpt2.jsonl", check_vector, &r), 549);
    rig_end(&r);
}

/* NFC may change the text, so decoding is not compared. */
static void check_ids(void *arg, const json_t *line)
{
    struct rig *r = arg;
    const json_t *text = json_object_get(line, "text");
    rig_encode(r, json_string_value(text), json_string_length(text), plain);
    rig_assert_ids(r, json_object_get(line, "ids"), 0, json_string_value(text));
}

static void open_neox(struct rig *r)
{
    rig_begin(r);
    rig_copy(r, "tokenizer.json", "gpt-neox-tokenizer/20B_tokenizer.json");
    rig_open(r, NULL);
}

static void gpt_neox_vectors_are_reproduced(void **state)
{
    struct rig r;
    open_neox(&r);
    assert_int_equal(rig_lines("tokenizer-vectors/gpt_neox.jsonl", check_ids, &r), 46);
    rig_end(&r);
}

/* ---- characters that are newer than some versions of PCRE2 and utf8proc ---- */

static void check_gpt2_newer(void *arg, const json_t *line)
{
    struct rig *r = arg;
    const json_t *text = json_object_get(line, "text");
    rig_encode(r, json_string_value(text), json_string_length(text), plain);
    rig_assert_ids(r, json_object_get(line, "gpt2"), 0, json_string_value(text));
}

static void check_neox_newer(void *arg, const json_t *line)
{
    struct rig *r = arg;
    const json_t *text = json_object_get(line, "text");
    rig_encode(r, json_string_value(text), json_string_length(text), plain);
    rig_assert_ids(r, json_object_get(line, "gpt_neox"), 0, json_string_value(text));
}

static void newer_letters_split_as_in_the_tokenizers_library(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_open_data(&r, "gpt2-tokenizer", NULL);
    assert_int_equal(rig_lines("tokenizer-vectors/unicode16.jsonl", check_gpt2_newer, &r), 132);
    rig_end(&r);
    open_neox(&r);
    assert_int_equal(rig_lines("tokenizer-vectors/unicode16.jsonl", check_neox_newer, &r), 132);
    rig_end(&r);
}

/* Lines published for OPT have its BOS; those for RoBERTa and BART, which share the vocabulary,
 * have <s> and </s> around the same ids. */
static void check_direct(void *arg, const json_t *line)
{
    struct rig *r = arg;
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    bool opt = strncmp(json_string_value(json_object_get(line, "special")), "bos=", 4) == 0;
    rig_encode(r, json_string_value(text), json_string_length(text), opt ? with_bos : plain);
    if (opt) {
        rig_assert_ids(r, ids, 0, json_string_value(text));
        return;
    }
    json_t *middle = json_copy((json_t *)ids);
    json_array_remove(middle, json_array_size(middle) - 1);
    json_array_remove(middle, 0);
    rig_assert_ids(r, middle, 0, json_string_value(text));
    json_decref(middle);
}

static void published_opt_ids_have_one_bos(void **state)
{
    struct rig r;
    open_opt(&r);
    assert_true(aq_tokenizer_info(r.t)->add_bos);
    assert_int_equal(rig_lines("tokenizer-vectors/opt_direct.jsonl", check_direct, &r), 6);
    rig_end(&r);
}

static void check_golden(void *arg, const json_t *line)
{
    struct rig *r = arg;
    const json_t *prompt = json_object_get(line, "prompt"), *tokens, *id;
    rig_encode(r, json_string_value(prompt), json_string_length(prompt), with_bos);
    rig_assert_ids(r, json_object_get(line, "prompt_ids"), 0, json_string_value(prompt));
    tokens = json_object_get(line, "tokens");
    r->ids.count = 0;
    aq_buf_clear(&r->text);
    assert_true(aq_ids_reserve(&r->ids, json_array_size(tokens)));
    size_t i;
    json_array_foreach(tokens, i, id) r->ids.item[r->ids.count++] =
        (uint32_t)json_integer_value(id);
    aq_tokenizer_decode(r->t, r->ids.item, r->ids.count, true, &r->text);
    assert_string_equal(r->text.data, json_string_value(json_object_get(line, "text")));
}

static void golden_prompts_and_texts_of_the_tiny_model_agree(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_open_data(&r, "tiny-opt", NULL);
    assert_true(aq_tokenizer_info(r.t)->add_bos);
    assert_int_equal(aq_tokenizer_info(r.t)->pad_id, 1);
    assert_true(rig_lines("tiny-opt/golden/greedy.jsonl", check_golden, &r) > 0);
    rig_end(&r);
}

/* ---- components of tokenizer.json, against the tokenizers library (see make.py beside the data)
 * ---- */

static void put_variant(struct rig *r, const json_t *all, const json_t *variant, bool pairs)
{
    json_t *tokenizer = json_deep_copy(json_object_get(variant, "tokenizer"));
    json_t *vocab = json_object(), *merges = json_array(), *model, *token, *merge;
    size_t i, first = (size_t)json_integer_value(json_object_get(variant, "merges_from"));
    json_array_foreach(json_object_get(all, "vocab"), i, token)
        json_object_set_new(vocab, json_string_value(token), json_integer((json_int_t)i));
    json_array_foreach(json_object_get(all, "merges"), i, merge)
    {
        if (i < first)
            continue;
        const char *left = json_string_value(json_array_get(merge, 0));
        const char *right = json_string_value(json_array_get(merge, 1));
        if (pairs)
            json_array_append(merges, merge);
        else
            json_array_append_new(merges, json_sprintf("%s %s", left, right));
    }
    model = json_object_get(tokenizer, "model");
    json_object_set_new(model, "vocab", vocab);
    json_object_set_new(model, "merges", merges);
    char *text = json_dumps(tokenizer, JSON_COMPACT);
    rig_puts(r, "tokenizer.json", text);
    free(text);
    json_decref(tokenizer);
}

static void check_variant(const json_t *all, const json_t *variant, bool pairs)
{
    struct rig r;
    const json_t *one;
    size_t i;
    rig_begin(&r);
    put_variant(&r, all, variant, pairs);
    rig_open(&r, NULL);
    const struct aq_tokenizer_info *info = aq_tokenizer_info(r.t);
    json_array_foreach(json_object_get(variant, "cases"), i, one)
    {
        const json_t *text = json_object_get(one, "text");
        rig_encode(&r, json_string_value(text), json_string_length(text),
                   (struct aq_encode_opts){info->add_bos, info->add_eos, true});
        char what[256];
        snprintf(what, sizeof(what), "%s: %s", json_string_value(json_object_get(variant, "name")),
                 json_string_value(text));
        rig_assert_ids(&r, json_object_get(one, "ids"), 0, what);
    }
    rig_end(&r);
}

static void variants_encode_as_the_tokenizers_library_does(void **state)
{
    struct aq_err err = {0};
    char path[PATH_MAX];
    json_t *all = NULL, *variant;
    size_t i;
    rig_data(path, "tokenizer-variants/variants.json");
    if (aq_json_read_file(&all, path, 1 << 24, &err) < 0)
        fail_msg("%s", err.text);
    json_array_foreach(json_object_get(all, "variants"), i, variant)
        check_variant(all, variant, i % 2);
    assert_true(i > 20);
    json_decref(all);
}

/* ---- exact round trips ---- */

static void assert_round_trip(struct rig *r, const char *bytes, size_t n)
{
    rig_encode(r, bytes, n, plain);
    rig_decode(r);
    assert_int_equal(r->text.count, n);
    assert_memory_equal(r->text.data, bytes, n);
}

static void every_byte_and_pair_of_bytes_comes_back(void **state)
{
    struct rig r;
    open_opt(&r);
    for (unsigned i = 0; i < 256; i++)
        assert_round_trip(&r, &(char){(char)i}, 1);
    for (unsigned i = 0; i < 65536; i++)
        assert_round_trip(&r, (char[]){(char)(i >> 8), (char)i}, 2);
    rig_end(&r);
}

/* Bytes of all kinds: anything, or characters of one to four bytes, some cut short. */
static size_t random_bytes(char *bytes, size_t max, uint64_t seed)
{
    size_t n = aq_prng_below(seed, 0, 0, max + 1);
    for (size_t i = 0; i < n; i++) {
        uint64_t kind = aq_prng_below(seed, i, 1, 8), x = aq_prng_u64(seed, i, 2);
        static const char starts[] = "\xc3\xe2\xed\xf0\xf4\xe0";
        if (kind == 0)
            bytes[i] = (char)x;
        else if (kind == 1)
            bytes[i] = starts[x % 6];
        else if (kind < 4)
            bytes[i] = (char)(0x80 | (x & 0x3f));
        else
            bytes[i] = " etaoin'sll\n<>"[x % 14];
    }
    return n;
}

static void random_bytes_come_back(void **state)
{
    struct rig r;
    char bytes[300];
    open_opt(&r);
    for (uint64_t seed = 0; seed < 5000; seed++)
        assert_round_trip(&r, bytes, random_bytes(bytes, sizeof(bytes), seed));
    rig_end(&r);
}

/* What decoding as UTF-8 with replacement makes of bytes, by way of base/buf's JSON strings, whose
 * escapes jansson undoes. */
static json_t *replaced(const char *bytes, size_t n)
{
    struct aq_buf b = {0};
    json_t *value = NULL;
    aq_buf_json_string(&b, bytes, n);
    assert_int_equal(aq_json_parse(&value, b.data, b.count, false, NULL), 0);
    aq_buf_close(&b);
    return value;
}

static void assert_stream_equals_whole(struct rig *r)
{
    size_t max = aq_detok_bytes_max(r->t);
    char *out = malloc(max);
    struct aq_buf stream = {0};
    struct aq_detok d;
    aq_detok_start(&d, r->t, false);
    for (size_t i = 0; i < r->ids.count; i++) {
        size_t n = aq_detok_push(&d, r->ids.item[i], out);
        assert_true(n <= max);
        aq_buf_put(&stream, out, n);
        assert_int_equal(aq_utf8_invalid_at(stream.data ? stream.data : "", stream.count),
                         stream.count);
    }
    aq_buf_put(&stream, out, aq_detok_flush(&d, out));
    rig_decode(r);
    json_t *want = replaced(r->text.data, r->text.count);
    assert_int_equal(stream.count, json_string_length(want));
    assert_memory_equal(stream.data, json_string_value(want), stream.count);
    json_decref(want);
    aq_buf_close(&stream);
    free(out);
}

static void streaming_equals_whole_decoding_on_random_bytes(void **state)
{
    struct rig r;
    char bytes[300];
    open_opt(&r);
    for (uint64_t seed = 0; seed < 3000; seed++) {
        rig_encode(&r, bytes, random_bytes(bytes, sizeof(bytes), seed), plain);
        assert_stream_equals_whole(&r);
    }
    rig_end(&r);
}

static void streaming_equals_whole_decoding_on_random_ids(void **state)
{
    struct rig r;
    open_opt(&r);
    for (uint64_t seed = 0; seed < 3000; seed++) {
        r.ids.count = 0;
        assert_true(aq_ids_reserve(&r.ids, 40));
        /* beyond the vocabulary too: the model has more rows than tokens */
        for (; r.ids.count < 40; r.ids.count++)
            r.ids.item[r.ids.count] = (uint32_t)aq_prng_below(seed, r.ids.count, 0, 50300);
        assert_stream_equals_whole(&r);
    }
    rig_end(&r);
}

static void an_unfinished_character_is_held_back_and_flushed_as_one_replacement(void **state)
{
    struct rig r;
    char out[64] = "";
    open_opt(&r);
    assert_true(aq_detok_bytes_max(r.t) >= sizeof(out));
    char *big = calloc(1, aq_detok_bytes_max(r.t));
    struct aq_detok d;
    aq_detok_start(&d, r.t, true);
    static const char smile[] = "\xf0\x9f\x98\x80";
    for (int i = 0; i < 4; i++) {
        rig_encode(&r, smile + i, 1, plain);
        size_t n = aq_detok_push(&d, r.ids.item[0], big);
        assert_int_equal(n, i == 3 ? 4 : 0);
    }
    assert_memory_equal(big, smile, 4);
    for (int i = 0; i < 3; i++) {
        rig_encode(&r, smile + i, 1, plain);
        assert_int_equal(aq_detok_push(&d, r.ids.item[0], big), 0);
    }
    rig_encode(&r, "\xff", 1, plain); /* breaks it, and needs no waiting itself */
    assert_int_equal(aq_detok_push(&d, r.ids.item[0], big), 6);
    for (int i = 0; i < 2; i++) {
        rig_encode(&r, smile + i, 1, plain);
        assert_int_equal(aq_detok_push(&d, r.ids.item[0], big), 0);
    }
    assert_int_equal(aq_detok_push(&d, 2, big), 0); /* special: skipped, nothing is broken by it */
    assert_int_equal(aq_detok_flush(&d, big), 3);
    assert_memory_equal(big, "\xef\xbf\xbd", 3);
    assert_int_equal(aq_detok_flush(&d, big), 0);
    free(big);
    rig_end(&r);
}

/* ---- special tokens ---- */

static void assert_encodes(struct rig *r, const char *text, struct aq_encode_opts opts,
                           const uint32_t *ids, size_t count)
{
    rig_encode(r, text, strlen(text), opts);
    assert_int_equal(r->ids.count, count);
    assert_memory_equal(r->ids.item, ids, count * sizeof(*ids));
}

static void only_the_models_special_tokens_are_special_in_text(void **state)
{
    struct rig r;
    open_opt(&r);
    uint32_t special[] = {2, 102, 1};
    assert_encodes(&r, "</s>a<pad>", plain, special, 3);
    struct aq_encode_opts text = {.parse_special = false};
    rig_encode(&r, "</s>a<pad>", 10, text);
    for (size_t i = 0; i < r.ids.count; i++)
        assert_true(r.ids.item[i] != 1 && r.ids.item[i] != 2);
    rig_encode(&r, "<s><unk><mask><|endoftext|>", 27, plain);
    for (size_t i = 0; i < r.ids.count; i++)
        assert_false(aq_tokenizer_is_special(r.t, r.ids.item[i]) || r.ids.item[i] < 4);
    assert_true(aq_tokenizer_is_special(r.t, 2));
    assert_false(aq_tokenizer_is_special(r.t, 0));
    rig_end(&r);
}

static void tokens_can_be_looked_up_both_ways(void **state)
{
    struct rig r;
    size_t n;
    open_opt(&r);
    assert_string_equal(aq_tokenizer_token_text(r.t, 5), "\xc4\xa0the");
    assert_memory_equal(aq_tokenizer_token_bytes(r.t, 5, &n), " the", 4);
    assert_int_equal(n, 4);
    assert_int_equal(aq_tokenizer_find(r.t, "\xc4\xa0the", 5), 5);
    assert_int_equal(aq_tokenizer_find(r.t, "no such token", 13), -1);
    const struct aq_tokenizer_info *info = aq_tokenizer_info(r.t);
    assert_int_equal(info->id_end, 50265);
    assert_int_equal(info->token_count, 50265);
    assert_null(aq_tokenizer_token_text(r.t, 50265)); /* a model row without token */
    assert_null(aq_tokenizer_token_bytes(r.t, UINT32_MAX, &n));
    assert_int_equal(n, 0);
    assert_int_equal(info->token_bytes_max, 128);
    rig_end(&r);
}

/* ---- hard texts ---- */

static void assert_fast(struct rig *r, const char *what, const char *text, size_t bytes)
{
    double begin = aq_clock_s();
    rig_encode(r, text, bytes, plain);
    double s = aq_clock_s() - begin;
    if (s > 30) /* below one second; a quadratic way takes hours */
        fail_msg("%s: %.1f s for %zu bytes", what, s, bytes);
}

static void a_megabyte_of_one_piece_takes_no_longer_than_its_size(void **state)
{
    enum { N = 1 << 20 };
    static const char *const units[] = {"a",
                                        " ",
                                        "!",
                                        "7",
                                        "\n \n",
                                        "ab",
                                        "\xe4\xbd\xa0",
                                        "\xff",
                                        "\xcc\x81\xcc\xa3" /* marks of two classes */};
    struct rig opt, neox;
    char *text = malloc(N);
    open_opt(&opt);
    open_neox(&neox);
    for (size_t u = 0; u < AQ_ARRAY_LEN(units); u++) {
        size_t n = strlen(units[u]), bytes = N / n * n;
        for (size_t i = 0; i < bytes; i++)
            text[i] = units[u][i % n];
        assert_fast(&opt, units[u], text, bytes);
        if (*units[u] != '\xff') /* the vocabulary has no token for it */
            assert_fast(&neox, units[u], text, bytes);
    }
    for (size_t i = 0; i < N; i++)
        text[i] = (char)('a' + aq_prng_below(1, i, 0, 26));
    assert_fast(&opt, "letters", text, N);
    free(text);
    rig_end(&opt);
    rig_end(&neox);
}

static void long_pieces_merge_like_short_ones(void **state)
{
    /* Up to 32 bytes are merged by scanning, more with a heap.  Byte 1 merges with nothing, so what
     * stands behind many of it must merge as if it were alone. */
    enum { PAD = 40 };
    struct rig r;
    uint32_t want[32];
    char text[PAD + 32];
    struct aq_err err = {0};
    char path[PATH_MAX];
    json_t *all = NULL, *variant;
    size_t i;
    rig_begin(&r);
    rig_data(path, "tokenizer-variants/variants.json");
    assert_int_equal(aq_json_read_file(&all, path, 1 << 24, &err), 0);
    json_array_foreach(json_object_get(all, "variants"), i,
                       variant) if (strcmp(json_string_value(json_object_get(variant, "name")),
                                           "no regex") == 0) put_variant(&r, all, variant, true);
    rig_open(&r, NULL);
    memset(text, 1, PAD);
    for (uint64_t seed = 0; seed < 2000; seed++) {
        size_t n = 1 + aq_prng_below(seed, 0, 0, 32);
        for (i = 0; i < n; i++)
            text[PAD + i] = "the and in, "[aq_prng_below(seed, i, 1, 12)];
        rig_encode(&r, text + PAD, n, plain);
        size_t count = r.ids.count;
        memcpy(want, r.ids.item, count * sizeof(*want));
        rig_encode(&r, text, PAD + n, plain);
        assert_int_equal(r.ids.count, PAD + count);
        assert_memory_equal(r.ids.item + PAD, want, count * sizeof(*want));
    }
    json_decref(all);
    rig_end(&r);
}

static void marks_are_ordered_in_long_runs_as_in_short_ones(void **state)
{
    /* Of two classes, 220 below comes before 230 above, whatever the order in the text. */
    enum { MARKS = 200 };
    struct rig r;
    struct aq_buf mixed = {0}, sorted = {0};
    open_neox(&r);
    aq_buf_puts(&mixed, "q");
    aq_buf_puts(&sorted, "q");
    for (int i = 0; i < MARKS; i++)
        aq_buf_puts(&mixed, i % 3 ? "\xcc\x81" : "\xcc\xa3");
    for (int i = 0; i < MARKS; i += 3)
        aq_buf_puts(&sorted, "\xcc\xa3");
    while (sorted.count < mixed.count)
        aq_buf_puts(&sorted, "\xcc\x81");
    rig_encode(&r, mixed.data, mixed.count, plain);
    rig_decode(&r);
    assert_int_equal(r.text.count, sorted.count);
    assert_memory_equal(r.text.data, sorted.data, sorted.count);
    aq_buf_close(&mixed);
    aq_buf_close(&sorted);
    rig_end(&r);
}

static void a_byte_without_token_is_an_error_and_adds_no_ids(void **state)
{
    struct rig r;
    open_neox(&r);
    rig_encode(&r, "abc", 3, plain);
    size_t had = r.ids.count;
    int rc = aq_tokenizer_encode(r.t, r.s, "abc \xff", 5, plain, &r.ids, &r.err);
    assert_int_equal(rc, -EINVAL);
    assert_non_null(strstr(r.err.text, "0xff"));
    assert_int_equal(r.ids.count, had);
    rig_end(&r);
}

static void a_runaway_pattern_is_an_error_not_a_hang(void **state)
{
    struct rig r;
    struct aq_buf b = {0};
    rig_begin(&r);
    aq_buf_puts(&b, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":");
    rig_put_bytes_vocab(&b, "");
    aq_buf_puts(&b, "},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                    "\"Split\",\"pattern\":{\"Regex\":\"(?:a+)+[bc]\"},\"behavior\":\"Isolated\","
                    "\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}}");
    rig_write(&r, "tokenizer.json", b.data, b.count);
    rig_open(&r, NULL);
    char text[4096];
    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = 'd';
    int rc = aq_tokenizer_encode(r.t, r.s, text, sizeof(text), plain, &r.ids, &r.err);
    assert_int_equal(rc, -EINVAL);
    assert_non_null(strstr(r.err.text, "split pattern"));
    aq_buf_close(&b);
    rig_end(&r);
}

/* ---- one tokenizer, many threads ---- */

struct worker {
    pthread_t thread;
    const struct aq_tokenizer *t;
    uint64_t sum;
};

static void *encode_much(void *arg)
{
    struct worker *w = arg;
    struct aq_tok_state *s = NULL;
    struct aq_ids ids = {0};
    char bytes[300];
    if (aq_tok_state_open(&s, w->t, NULL) < 0)
        return NULL;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        size_t n = random_bytes(bytes, sizeof(bytes), seed);
        ids.count = 0;
        if (aq_tokenizer_encode(w->t, s, bytes, n, plain, &ids, NULL) < 0)
            break;
        for (size_t i = 0; i < ids.count; i++)
            w->sum = w->sum * 31 + ids.item[i];
    }
    aq_ids_close(&ids);
    aq_tok_state_close(s);
    return NULL;
}

static void threads_with_their_own_state_agree(void **state)
{
    struct rig r;
    struct worker w[4];
    open_opt(&r);
    for (size_t i = 0; i < AQ_ARRAY_LEN(w); i++) {
        w[i] = (struct worker){.t = r.t};
        assert_int_equal(pthread_create(&w[i].thread, NULL, encode_much, &w[i]), 0);
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(w); i++)
        pthread_join(w[i].thread, NULL);
    assert_true(w[0].sum != 0);
    for (size_t i = 1; i < AQ_ARRAY_LEN(w); i++)
        assert_int_equal(w[i].sum, w[0].sum);
    rig_end(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(opt_vectors_are_reproduced_and_decode_to_their_text),
    cmocka_unit_test(gpt2_vectors_come_from_its_own_two_files),
    cmocka_unit_test(gpt2_vectors_come_from_tokenizer_json),
    cmocka_unit_test(gpt_neox_vectors_are_reproduced),
    cmocka_unit_test(newer_letters_split_as_in_the_tokenizers_library),
    cmocka_unit_test(published_opt_ids_have_one_bos),
    cmocka_unit_test(golden_prompts_and_texts_of_the_tiny_model_agree),
    cmocka_unit_test(variants_encode_as_the_tokenizers_library_does),
    cmocka_unit_test(every_byte_and_pair_of_bytes_comes_back),
    cmocka_unit_test(random_bytes_come_back),
    cmocka_unit_test(streaming_equals_whole_decoding_on_random_bytes),
    cmocka_unit_test(streaming_equals_whole_decoding_on_random_ids),
    cmocka_unit_test(an_unfinished_character_is_held_back_and_flushed_as_one_replacement),
    cmocka_unit_test(only_the_models_special_tokens_are_special_in_text),
    cmocka_unit_test(tokens_can_be_looked_up_both_ways),
    cmocka_unit_test(a_megabyte_of_one_piece_takes_no_longer_than_its_size),
    cmocka_unit_test(long_pieces_merge_like_short_ones),
    cmocka_unit_test(marks_are_ordered_in_long_runs_as_in_short_ones),
    cmocka_unit_test(a_byte_without_token_is_an_error_and_adds_no_ids),
    cmocka_unit_test(a_runaway_pattern_is_an_error_not_a_hang),
    cmocka_unit_test(threads_with_their_own_state_agree),
};

AQ_TEST_MAIN(tests)
