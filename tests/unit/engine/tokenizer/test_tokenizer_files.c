/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/tokenizer/tok_rig.h"

static const struct aq_encode_opts plain = {.parse_special = true};

/* Opening fails with this code, and the message has all these words (separated by '|'). */
static void assert_refused(struct rig *r, int code, const char *words)
{
    char copy[512], *rest = copy, *word;
    r->err.text[0] = '\0';
    int rc = rig_try_open(r, NULL);
    snprintf(copy, sizeof(copy), "%s", words);
    if (rc != code)
        fail_msg("expected %d (%s), found %d (%s)", code, words, rc, r->err.text);
    while ((word = strsep(&rest, "|")))
        if (!strstr(r->err.text, word))
            fail_msg("expected '%s' in: %s", word, r->err.text);
}

/* ---- which files there are ---- */

static void a_missing_tokenizer_names_the_files_looked_for(void **state)
{
    struct rig r;
    rig_begin(&r);
    assert_refused(&r, -ENOENT,
                   "tokenizer.json|tokenizer.model|vocab.json|merges.txt|encoder.json|vocab.bpe|"
                   "/tmp/aq_tok_");
    assert_null(strstr(r.err.text, "tekken"));
    rig_puts(&r, "tekken.json", "{}");
    assert_refused(&r, -ENOENT, "tokenizer.json|tekken.json is not read");
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/tekken.json", r.dir);
    unlink(path);
    rig_end(&r);
}

static void half_a_tokenizer_names_the_other_half(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_small(&r, "");
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/merges.txt", r.dir);
    unlink(path);
    assert_refused(&r, -ENOENT, "vocab.json|no merges.txt");
    rig_end(&r);
}

static void a_git_lfs_pointer_is_called_by_its_name(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_puts(&r, "tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    assert_refused(&r, -ENOEXEC, "tokenizer.json|git-LFS pointer");
    rig_end(&r);
}

static void tokenizer_json_wins_over_the_two_files(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_small(&r, "");
    rig_puts(&r, "tokenizer.json", "{}");
    assert_refused(&r, -ENOEXEC, "tokenizer.json|model");
    rig_end(&r);
}

static void the_hash_follows_the_bytes_of_every_file_read(void **state)
{
    uint64_t hash[4];
    static const char *const config[] = {NULL, "{}", "{ }", "{}"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(hash); i++) {
        struct rig r;
        rig_begin(&r);
        rig_small(&r, "");
        if (config[i])
            rig_puts(&r, "tokenizer_config.json", config[i]);
        rig_open(&r, NULL);
        hash[i] = aq_tokenizer_info(r.t)->hash;
        rig_end(&r);
    }
    assert_true(hash[0] != hash[1] && hash[1] != hash[2] && hash[0] != hash[2]);
    assert_int_equal(hash[1], hash[3]);
}

/* ---- vocab.json and merges.txt ---- */

static void a_vocabulary_is_checked_token_by_token(void **state)
{
    static const struct {
        const char *vocab, *words;
    } cases[] = {
        {"", "vocab.json"},
        {"[]", "vocab.json|an object"},
        {"{}", "vocab.json|empty object"},
        {"{\"a\":0,\"b\":0}", "vocab.json|id 0|'a' and 'b'"},
        {"{\"a\":0,\"a\":1}", "vocab.json|uplicate"},
        {"{\"a\":\"0\"}", "vocab.json|'a'|integer"},
        {"{\"a\":1.5}", "vocab.json|'a'|integer"},
        {"{\"a\":-1}", "vocab.json|'a'|-1"},
        {"{\"a\":16777216}", "vocab.json|'a'|16777215|16777216"},
        {"{\"\":3}", "vocab.json|id 3|empty"},
        {"{\"a\":0", "vocab.json|line 1"},
        {"{\"\xff\":0}", "vocab.json|line 1"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct rig r;
        rig_begin(&r);
        rig_puts(&r, "vocab.json", cases[i].vocab);
        rig_puts(&r, "merges.txt", "#version: 0.2\n");
        assert_refused(&r, -ENOEXEC, cases[i].words);
        rig_end(&r);
    }
}

static void merges_are_checked_line_by_line(void **state)
{
    static const struct {
        const char *merges, *words;
    } cases[] = {
        {"#version: 0.2\na b\nab x!y\n", "merges.txt|line 3|'x!y'"},
        {"#version: 0.2\na b\nb c\n", "merges.txt|line 3|'bc'|not in the vocabulary"},
        {"a b\n\nab\n", "merges.txt|line 3|one space|'ab'"},
        {"a b c\n", "merges.txt|line 1|one space"},
        {" a\n", "merges.txt|line 1|one space"},
        {"a \n", "merges.txt|line 1|one space"},
        {"a  b\n", "merges.txt|line 1|one space"},
        {"a b\n#version: 0.2\n", "merges.txt|line 2|'#version:'"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct rig r;
        rig_begin(&r);
        rig_small(&r, "");
        rig_puts(&r, "merges.txt", cases[i].merges);
        assert_refused(&r, -ENOEXEC, cases[i].words);
        rig_end(&r);
    }
}

static void merges_may_have_crlf_no_header_and_no_last_line_end(void **state)
{
    static const char *const files[] = {"a b\nab c", "#version: 0.2\r\na b\r\nab c\r\n\r\n"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(files); i++) {
        struct rig r;
        rig_begin(&r);
        rig_small(&r, "");
        rig_puts(&r, "merges.txt", files[i]);
        rig_open(&r, NULL);
        rig_encode(&r, "abcab", 5, plain);
        assert_int_equal(r.ids.count, 2);
        assert_int_equal(r.ids.item[0], 257);
        assert_int_equal(r.ids.item[1], 256);
        rig_end(&r);
    }
}

static void ids_may_have_holes(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_small(&r, ",\"far\":16777215");
    rig_open(&r, NULL);
    const struct aq_tokenizer_info *info = aq_tokenizer_info(r.t);
    assert_int_equal(info->id_end, 16777216);
    assert_int_equal(info->token_count, 259);
    assert_true(info->memory_bytes < 4 << 20);
    assert_null(aq_tokenizer_token_text(r.t, 258));
    assert_string_equal(aq_tokenizer_token_text(r.t, 16777215), "far");
    uint32_t ids[] = {'a', 258, 5000, 16777215};
    aq_tokenizer_decode(r.t, ids, 4, false, &r.text);
    assert_string_equal(r.text.data, "afar");
    rig_end(&r);
}

static void other_tokenizer_classes_are_refused_without_a_tokenizer_json(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_small(&r, "");
    rig_puts(&r, "tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\"}");
    assert_refused(&r, -ENOEXEC, "tokenizer_config.json|GPT2Tokenizer|Qwen2Tokenizer");
    rig_end(&r);
}

/* ---- tokenizer.json ---- */

/* A tokenizer.json of the bytes with these members beside or instead of the usual ones. */
static void put_json(struct rig *r, const char *model_more, const char *members)
{
    struct aq_buf b = {0};
    aq_buf_puts(&b, "{\"model\":{\"vocab\":");
    rig_put_bytes_vocab(&b, ",\"ab\":256");
    aq_buf_printf(&b, ",%s},%s}", model_more, members);
    rig_write(r, "tokenizer.json", b.data, b.count);
    aq_buf_close(&b);
}

#define MODEL         "\"type\":\"BPE\",\"merges\":[\"a b\"]"
#define PRE           "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define PRE_OF(steps) "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" steps "]}"
#define BYTE_LEVEL    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define SPLIT(pattern, behavior, invert)                                                           \
    PRE_OF("{\"type\":\"Split\",\"pattern\":{" pattern "},\"behavior\":\"" behavior                \
           "\",\"invert\":" invert "}," BYTE_LEVEL)
#define DECODER(steps)                                                                             \
    "\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" steps "]}"
#define STRIP(content, start, stop)                                                                \
    "{\"type\":\"Strip\",\"content\":\"" content "\",\"start\":" start ",\"stop\":" stop "}"
#define METASPACE(scheme)                                                                          \
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme \
    "\"}"
#define REGEX(pattern) SPLIT("\"Regex\":\"" pattern "\"", "Isolated", "false")

struct refused_json {
    const char *model, *members, *words;
};

static void assert_refused_json(const struct refused_json *c)
{
    struct rig r;
    rig_begin(&r);
    put_json(&r, c->model, c->members);
    assert_refused(&r, -ENOEXEC, c->words);
    assert_non_null(strstr(r.err.text, r.dir));
    rig_end(&r);
}

static void unsupported_components_of_models_of_characters_are_named(void **state)
{
    static const struct refused_json cases[] = {
        {MODEL, "\"pre_tokenizer\":null", "decoder|type"},
        {MODEL, PRE_OF(""), "decoder|type"},
        {MODEL, PRE_OF("") ",\"decoder\":{\"type\":\"ByteLevel\"}",
         "decoder|ByteFallback|no ByteLevel|'ByteLevel'"},
        {MODEL, PRE_OF("") ",\"decoder\":{\"type\":\"Metaspace\"}", "decoder|Fuse|'Metaspace'"},
        {MODEL, DECODER("{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}"),
         "decoder|in this order|ByteFallback behind Fuse"},
        {MODEL, DECODER(STRIP(" ", "1", "0")), "decoder|in this order|Strip behind Replace"},
        {MODEL, DECODER("{\"type\":\"Fuse\"}," STRIP(" ", "2", "0")), "decoder|Strip|one space"},
        {MODEL, DECODER("{\"type\":\"Fuse\"}," STRIP(" ", "1", "1")), "decoder|Strip|from the end"},
        {MODEL, DECODER("{\"type\":\"Fuse\"}," STRIP("x", "1", "0")), "decoder|Strip|one space"},
        {MODEL, "\"pre_tokenizer\":{\"type\":\"Metaspace\"}", "pre_tokenizer|replacement|text"},
        {MODEL, METASPACE("sometimes"), "Metaspace|prepend_scheme|'sometimes'"},
        {MODEL,
         PRE_OF("{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"Metaspace\","
                "\"replacement\":\"_\"}"),
         "Metaspace to be the first"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++)
        assert_refused_json(&cases[i]);
}

static void unsupported_components_are_named(void **state)
{
    static const struct refused_json cases[] = {
        {"\"type\":\"Unigram\"", PRE, "model|BPE|'Unigram'"},
        {"\"type\":\"WordPiece\"", PRE, "model|BPE|'WordPiece'"},
        {"\"unk_token\":null", PRE, "model|type"},
        {"\"type\":\"BPE\"", PRE, "merges|list"},
        {"\"type\":\"BPE\",\"merges\":[\"a b\",\"b c\"]", PRE, "merges[1]|'bc'|vocabulary"},
        {"\"type\":\"BPE\",\"merges\":[[\"a\"]]", PRE, "merges[0]|left right"},
        {"\"type\":\"BPE\",\"merges\":[\"a b c\"]", PRE, "merges[0]|left right"},
        {MODEL ",\"byte_fallback\":1", "\"decoder\":null", "model|byte_fallback"},
        {MODEL ",\"dropout\":0.1", PRE, "model|dropout"},
        {MODEL ",\"end_of_word_suffix\":\"</w>\"", PRE, "model|end_of_word_suffix"},
        {MODEL ",\"ignore_merges\":1", PRE, "ignore_merges|true or false"},
        {MODEL, PRE ",\"normalizer\":{\"type\":\"Lowercase\"}", "normalizer|NFC|'Lowercase'"},
        {MODEL,
         PRE ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
             "\"Prepend\"}]}",
         "normalizer|'prepend'|text"},
        {MODEL, PRE ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x\"}}",
         "normalizer|Replace|pattern|String"},
        {MODEL,
         PRE
         ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}",
         "normalizer|Replace|empty"},
        {MODEL, PRE_OF(BYTE_LEVEL ",{\"type\":\"Digits\",\"individual_digits\":true}"),
         "pre_tokenizer|ByteLevel to be the last"},
        {MODEL, "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}", "add_prefix_space|true or false"},
        {MODEL, SPLIT("\"Regex\":\"x\"", "Removed", "false"), "Split|behavior|'Removed'"},
        {MODEL, SPLIT("\"Regex\":\"x\"", "MergedWithNext", "true"), "Split|'MergedWithNext'"},
        {MODEL, SPLIT("\"Regex\":\"x\"", "Contiguous", "false"), "Split|'Contiguous'"},
        {MODEL, SPLIT("\"Rgex\":\"x\"", "Isolated", "false"), "Split|pattern|Regex|String"},
        {MODEL, REGEX("(x"), "Split|pattern|parenthes"},
        {MODEL, REGEX("\\\\w+"), "Split|byte 0|\\w"},
        {MODEL, REGEX("a\\\\b"), "byte 1|\\b"},
        {MODEL, REGEX("[\\\\S]"), "byte 1|\\S within a class"},
        {MODEL, REGEX("[a&&b]"), "byte 2|&&"},
        {MODEL, REGEX("[[:alpha:]]"), "byte 1|'['"},
        {MODEL, REGEX("x{1,3}+"), "byte 1|repeat of a repeat"},
        {MODEL, REGEX("x{,3}"), "byte 1|'{'"},
        {MODEL, REGEX("(?<n>x)"), "byte 0|group"},
        {MODEL, REGEX("(*LIMIT_MATCH=9)x"), "byte 0|group"},
        {MODEL, REGEX("\\\\p{L"), "byte 0|closing brace"},
        {MODEL, REGEX("\\\\pL"), "byte 0|without braces"},
        {MODEL, REGEX("\\\\p{NoSuch}"), "pattern|property"},
        {MODEL, REGEX("x\\\\"), "byte 1|backslash"},
        {MODEL, REGEX("\\\\xa0"), "byte 0|\\x"},
        {MODEL, REGEX("\\\\x{41"), "byte 0|\\x"},
        {MODEL, REGEX("(?i:a(b)\\\\p{Lu})"), "byte 8|case is ignored"},
        {MODEL, REGEX("(?i)(a)\\\\p{Ll}"), "byte 7|case is ignored"},
        {MODEL, REGEX("a\\u0000"), "Split|pattern"},
        {MODEL, REGEX("\\\\u12"), "byte 0|\\u"},
        {MODEL, PRE ",\"decoder\":{\"type\":\"Metaspace\"}", "decoder|ByteLevel|'Metaspace'"},
        {MODEL, PRE ",\"post_processor\":{\"type\":\"RobertaProcessing\"}",
         "post_processor|'RobertaProcessing'"},
        {MODEL, PRE ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}",
         "post_processor|single|the text"},
        {MODEL,
         PRE ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
             "\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}}",
         "post_processor|special_tokens"},
        {MODEL,
         PRE ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
             "\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"x\":{\"ids\":[999"
             "]}}}",
         "post_processor|999|not a token"},
        {MODEL, PRE ",\"added_tokens\":{}", "added_tokens|list"},
        {MODEL, PRE ",\"added_tokens\":[{\"content\":\"x\"}]", "added_tokens[0]|id"},
        {MODEL, PRE ",\"added_tokens\":[{\"id\":300}]", "added_tokens[0]|content"},
        {MODEL, PRE ",\"added_tokens\":[{\"id\":97,\"content\":\"<x>\"}]",
         "added_tokens[0]|id 97|'a' and '<x>'"},
        {MODEL, PRE ",\"added_tokens\":[{\"id\":300,\"content\":\"<x>\",\"lstrip\":1}]",
         "added_tokens[0]|lstrip"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++)
        assert_refused_json(&cases[i]);
}

static void a_plain_tokenizer_json_is_accepted(void **state)
{
    /* the cases above fail for what they change, not for what they share */
    static const char *const members[] = {
        PRE, PRE ",\"decoder\":null,\"normalizer\":null,\"post_processor\":null",
        REGEX("x{1,3}|\\\\p{L}+|[\\\\]a]|(?i:'s)\\\\p{Lu}"),
        SPLIT("\"String\":\"+\"", "Isolated", "true")};
    for (size_t i = 0; i < AQ_ARRAY_LEN(members); i++) {
        struct rig r;
        rig_begin(&r);
        put_json(&r, MODEL, members[i]);
        rig_open(&r, NULL);
        rig_encode(&r, "ab", 2, plain);
        assert_int_equal(r.ids.count, 1);
        assert_int_equal(r.ids.item[0], 256);
        rig_end(&r);
    }
}

static void white_space_is_unicodes_not_pcres(void **state)
{
    /* U+180E is a space to PCRE2's \s and not to Unicode: "\s+" must leave it to the gap. */
    struct rig r;
    rig_begin(&r);
    put_json(&r, MODEL, SPLIT("\"Regex\":\"\\\\s+\"", "Removed", "true"));
    rig_open(&r, NULL);
    rig_encode(&r, "a\xe1\xa0\x8e \xc2\x85", 7, plain);
    assert_int_equal(r.ids.count, 3); /* the space and two bytes of U+0085 */
    rig_end(&r);
}

/* ---- special tokens ---- */

struct special_case {
    const char *config, *map, *added;
    int bos, eos, pad, unk;
    bool add_bos;
};

static void check_special(const struct special_case *c, const struct aq_tokenizer_defaults *d)
{
    struct rig r;
    rig_begin(&r);
    rig_small(&r, ",\"<s>\":258,\"</s>\":259,\"<pad>\":260,\"<|endoftext|>\":261");
    if (c->config)
        rig_puts(&r, "tokenizer_config.json", c->config);
    if (c->map)
        rig_puts(&r, "special_tokens_map.json", c->map);
    if (c->added)
        rig_puts(&r, "added_tokens.json", c->added);
    rig_open(&r, d);
    const struct aq_tokenizer_info *info = aq_tokenizer_info(r.t);
    if (info->bos_id != c->bos || info->eos_id != c->eos || info->pad_id != c->pad ||
        info->unk_id != c->unk || info->add_bos != c->add_bos)
        fail_msg("config %s, map %s: bos %d eos %d pad %d unk %d add_bos %d", c->config, c->map,
                 info->bos_id, info->eos_id, info->pad_id, info->unk_id, info->add_bos);
    for (uint32_t id = 258; id < 262; id++) {
        bool role =
            (int)id == c->bos || (int)id == c->eos || (int)id == c->pad || (int)id == c->unk;
        assert_int_equal(aq_tokenizer_is_special(r.t, id), role);
        const char *text = aq_tokenizer_token_text(r.t, id);
        rig_encode(&r, text, strlen(text), plain);
        assert_int_equal(r.ids.count == 1 && r.ids.item[0] == id, role);
    }
    rig_end(&r);
}

static void roles_come_from_the_files(void **state)
{
    static const struct special_case cases[] = {
        /* as facebook/opt-125m has them */
        {"{\"bos_token\":\"</s>\",\"add_bos_token\":true}",
         "{\"bos_token\":\"</s>\",\"eos_token\":\"</s>\",\"unk_token\":\"</s>\",\"pad_token\":"
         "\"<pad>\"}",
         NULL, 259, 259, 260, 259, true},
        {"{\"bos_token\":{\"__type\":\"AddedToken\",\"content\":\"<s>\"},\"eos_token\":\"</s>\"}",
         NULL, NULL, 258, 259, -1, -1, false},
        /* the map wins, but not over the newer kind of config */
        {"{\"eos_token\":\"<s>\"}", "{\"eos_token\":\"</s>\"}", NULL, -1, 259, -1, -1, false},
        {"{\"eos_token\":\"<s>\",\"added_tokens_decoder\":{}}", "{\"eos_token\":\"</s>\"}", NULL,
         -1, 258, -1, -1, false},
        {"{\"eos_token\":\"<s>\",\"pad_token\":null}", "{\"pad_token\":\"<pad>\"}", NULL, -1, 258,
         260, -1, false},
        {"{\"eos_token\":{\"content\":\"</s>\",\"special\":false}}", NULL, NULL, -1, 259, -1, -1,
         false},
        /* a flag without a token, and tokens nobody has */
        {"{\"add_bos_token\":true,\"eos_token\":\"</s>\"}", NULL, NULL, -1, 259, -1, -1, false},
        {"{\"eos_token\":\"</s>\",\"pad_token\":\"<none>\"}", NULL, NULL, -1, 259, -1, -1, false},
        /* GPT-2's own files name no roles */
        {NULL, NULL, NULL, 261, 261, -1, 261, false},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++)
        check_special(&cases[i], NULL);
}

static void the_models_config_fills_in_where_the_files_are_silent(void **state)
{
    static const struct aq_tokenizer_defaults opt = {259, 259, 260, true},
                                              none = {-1, -1, -1, false},
                                              wrong = {9999, 9999, 9999, true};
    check_special(&(struct special_case){NULL, NULL, NULL, 259, 259, 260, -1, true}, &opt);
    check_special(&(struct special_case){"{\"bos_token\":\"<s>\",\"add_bos_token\":false}", NULL,
                                         NULL, 258, 259, 260, -1, false},
                  &opt);
    check_special(
        &(struct special_case){"{\"pad_token\":null}", NULL, NULL, 259, 259, -1, -1, true}, &opt);
    check_special(&(struct special_case){NULL, NULL, NULL, -1, -1, -1, -1, false}, &none);
    check_special(&(struct special_case){NULL, NULL, NULL, -1, -1, -1, -1, false}, &wrong);
}

static void a_bos_that_must_be_added_must_exist(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_small(&r, "");
    rig_puts(&r, "tokenizer_config.json", "{\"bos_token\":\"<s>\",\"add_bos_token\":true}");
    assert_refused(&r, -ENOEXEC, "add_bos_token|bos_token|not in the vocabulary");
    rig_end(&r);
}

static void broken_special_files_are_named(void **state)
{
    static const struct {
        const char *name, *text, *words;
    } cases[] = {
        {"tokenizer_config.json", "{", "tokenizer_config.json|line 1"},
        {"tokenizer_config.json", "{\"bos_token\":3}", "bos_token|content"},
        {"tokenizer_config.json", "{\"bos_token\":\"a\\u0000\"}", "bos_token|content"},
        {"tokenizer_config.json", "{\"add_bos_token\":1}", "add_bos_token|true or false"},
        {"tokenizer_config.json", "{\"add_prefix_space\":1}", "add_prefix_space|true or false"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":\"<x>\"}}",
         "tokenizer_config.json|added_tokens_decoder|'x'|an id"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"97\":\"<x>\"}}",
         "added_tokens_decoder|'97'|'a' and '<x>'"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":[]}", "added_tokens_decoder|object"},
        {"special_tokens_map.json", "[]", "special_tokens_map.json|object"},
        {"special_tokens_map.json", "{\"additional_special_tokens\":[7]}",
         "additional_special_tokens[0]|content"},
        {"added_tokens.json", "{\"<x>\":\"3\"}", "added_tokens.json|'<x>'|an id"},
        {"added_tokens.json", "{\"<x>\":99999999}", "added_tokens.json|99999999"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct rig r;
        rig_begin(&r);
        rig_small(&r, "");
        rig_puts(&r, cases[i].name, cases[i].text);
        assert_refused(&r, -ENOEXEC, cases[i].words);
        rig_end(&r);
    }
}

static void tokens_added_by_the_files_are_found_in_text_and_spelled_out(void **state)
{
    struct rig r;
    rig_begin(&r);
    rig_small(&r, "");
    rig_puts(&r, "tokenizer_config.json",
             "{\"added_tokens_decoder\":{\"300\":{\"content\":\"<caf\xc3\xa9>\",\"special\":true},"
             "\"301\":{\"content\":\"  \",\"special\":false,\"normalized\":false}},"
             "\"additional_special_tokens\":[\"abc\"]}");
    rig_puts(&r, "added_tokens.json", "{\"<y>\":302,\"ab\":256}");
    rig_open(&r, NULL);
    static const char text[] = "a<caf\xc3\xa9>  <y>abcab";
    static const uint32_t want[] = {'a', 300, 301, 302, 257, 256};
    rig_encode(&r, text, strlen(text), plain);
    assert_int_equal(r.ids.count, AQ_ARRAY_LEN(want));
    assert_memory_equal(r.ids.item, want, sizeof(want));
    rig_decode(&r);
    assert_string_equal(r.text.data, text);
    assert_true(aq_tokenizer_is_special(r.t, 300) && aq_tokenizer_is_special(r.t, 257));
    assert_false(aq_tokenizer_is_special(r.t, 301) || aq_tokenizer_is_special(r.t, 256));
    aq_buf_clear(&r.text);
    aq_tokenizer_decode(r.t, r.ids.item, r.ids.count, true, &r.text);
    assert_string_equal(r.text.data, "a  <y>ab");
    rig_end(&r);
}

static void the_configs_prefix_space_wins(void **state)
{
    static const struct {
        const char *config;
        bool in_json, want;
    } cases[] = {{"{}", true, true},
                 {"{}", false, false},
                 {"{\"add_prefix_space\":false}", true, false},
                 {"{\"add_prefix_space\":true}", false, true}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct rig r;
        rig_begin(&r);
        put_json(&r, MODEL,
                 cases[i].in_json
                     ? "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"
                     : PRE);
        rig_puts(&r, "tokenizer_config.json", cases[i].config);
        rig_open(&r, NULL);
        rig_encode(&r, "ab", 2, plain);
        assert_int_equal(r.ids.count, cases[i].want ? 2 : 1);
        rig_end(&r);
    }
}

#define TEMPLATE                                                                                   \
    ",\"added_tokens\":[{\"id\":258,\"content\":\"<s>\",\"special\":true}],\"post_processor\":{"   \
    "\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{"            \
    "\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[258]}}}"

static void a_flag_decides_about_bos_and_a_template_where_there_is_none(void **state)
{
    static const struct {
        const char *members, *config;
        bool add_bos;
        const char *notice;
    } cases[] = {
        {PRE TEMPLATE, "{}", true, ""},
        {PRE TEMPLATE, "{\"add_bos_token\":true,\"bos_token\":\"a\"}", true, ""},
        {PRE TEMPLATE, "{\"add_bos_token\":null}", true, ""},
        {PRE TEMPLATE, "{\"add_bos_token\":false,\"bos_token\":\"a\"}", false,
         "tokenizer_config.json has add_bos_token false: BOS does not stand in front of texts, "
         "though tokenizer.json puts one there"},
        {PRE TEMPLATE, "{\"add_eos_token\":true}", true, ""}, /* there is no EOS */
        {PRE TEMPLATE, "{\"add_eos_token\":true,\"eos_token\":\"b\"}", true,
         "tokenizer_config.json has add_eos_token true: EOS stands behind texts, though "
         "tokenizer.json puts none there"},
        {PRE ",\"post_processor\":{\"type\":\"ByteLevel\"}",
         "{\"add_bos_token\":true,\"bos_token\":\"a\"}", true, ""},
        {PRE ",\"post_processor\":{\"type\":\"ByteLevel\"}", "{\"bos_token\":\"a\"}", false, ""}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct rig r;
        rig_begin(&r);
        put_json(&r, MODEL, cases[i].members);
        rig_puts(&r, "tokenizer_config.json", cases[i].config);
        rig_open(&r, NULL);
        const struct aq_tokenizer_info *info = aq_tokenizer_info(r.t);
        assert_int_equal(info->add_bos, cases[i].add_bos);
        assert_int_equal(info->bos_id, i < 6 ? 258 : 'a');
        assert_int_equal(info->add_eos, info->eos_id == 'b');
        assert_string_equal(info->notice, cases[i].notice);
        assert_string_equal(info->source, "tokenizer.json");
        rig_end(&r);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_missing_tokenizer_names_the_files_looked_for),
    cmocka_unit_test(half_a_tokenizer_names_the_other_half),
    cmocka_unit_test(a_git_lfs_pointer_is_called_by_its_name),
    cmocka_unit_test(tokenizer_json_wins_over_the_two_files),
    cmocka_unit_test(the_hash_follows_the_bytes_of_every_file_read),
    cmocka_unit_test(a_vocabulary_is_checked_token_by_token),
    cmocka_unit_test(merges_are_checked_line_by_line),
    cmocka_unit_test(merges_may_have_crlf_no_header_and_no_last_line_end),
    cmocka_unit_test(ids_may_have_holes),
    cmocka_unit_test(other_tokenizer_classes_are_refused_without_a_tokenizer_json),
    cmocka_unit_test(unsupported_components_are_named),
    cmocka_unit_test(unsupported_components_of_models_of_characters_are_named),
    cmocka_unit_test(a_plain_tokenizer_json_is_accepted),
    cmocka_unit_test(white_space_is_unicodes_not_pcres),
    cmocka_unit_test(roles_come_from_the_files),
    cmocka_unit_test(the_models_config_fills_in_where_the_files_are_silent),
    cmocka_unit_test(a_bos_that_must_be_added_must_exist),
    cmocka_unit_test(broken_special_files_are_named),
    cmocka_unit_test(tokens_added_by_the_files_are_found_in_text_and_spelled_out),
    cmocka_unit_test(the_configs_prefix_space_wins),
    cmocka_unit_test(a_flag_decides_about_bos_and_a_template_where_there_is_none),
};

AQ_TEST_MAIN(tests)
