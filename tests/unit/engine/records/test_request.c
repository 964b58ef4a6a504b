/* SPDX-License-Identifier: Apache-2.0
 * Lines of prompts.jsonl: forms, parameters and their ranges, BOS, prompts that are too long, and
 * every way in which a line can be wrong. */
#include "engine/records/request.h"

#include "base/buf.h"
#include "base/types.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { VOCAB = 4096, CONTEXT = 64, BOS = 2 };

struct rig {
    struct aq_tokenizer *tokenizer;
    struct aq_request_rules rules;
    struct aq_unknown_fields unknown;
    struct aq_request *r; /* of the last read() */
};

static int setup(void **state)
{
    static struct rig rig;
    const char *dir = test_data_path("tiny-opt");
    rig = (struct rig){0};
    struct aq_tokenizer_defaults defaults = {BOS, BOS, 1, true};
    if (aq_tokenizer_open(&rig.tokenizer, dir, &defaults, NULL) < 0 ||
        aq_tok_state_open(&rig.rules.tok_state, rig.tokenizer, NULL) < 0)
        return -1;
    rig.rules.tokenizer = rig.tokenizer;
    rig.rules.vocab = VOCAB;
    rig.rules.context = CONTEXT;
    rig.rules.bos_id = BOS;
    rig.rules.adds_bos = true;
    rig.rules.unknown = &rig.unknown;
    rig.rules.defaults = (struct aq_params){
        .max_tokens = 16, .n = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    aq_request_close(rig->r);
    aq_tok_state_close(rig->rules.tok_state);
    aq_tokenizer_close(rig->tokenizer);
    return 0;
}

static struct aq_request *read_bytes(struct rig *rig, const char *text, size_t bytes)
{
    struct aq_line line = {text, bytes, .index = 4, .number = 9, .hash = XXH3_64bits(text, bytes)};
    aq_request_close(rig->r);
    rig->r = NULL;
    assert_int_equal(aq_request_open(&rig->r, &rig->rules, &line, NULL), 0);
    return rig->r;
}

static struct aq_request *read_line(struct rig *rig, const char *text)
{
    return read_bytes(rig, text, strlen(text));
}

static void assert_good(const struct aq_request *r)
{
    assert_string_equal(r->error.message, "");
    assert_int_equal(r->error.code, AQ_RECORD_OK);
}

static void assert_refused(struct rig *rig, const char *text, enum aq_record_code code,
                           const char *param)
{
    struct aq_request *r = read_line(rig, text);
    if (r->error.code != code || strcmp(r->error.param, param) != 0)
        print_error("%s\n  %s, param '%s': %s\n", text, aq_record_code_name(r->error.code),
                    r->error.param, r->error.message);
    assert_int_equal(r->error.code, code);
    assert_string_equal(r->error.param, param);
    assert_true(strlen(r->error.message) > 10);
    assert_int_equal(aq_request_sequences(r), 0);
}

/* ---- forms and ids ---- */

static void a_plain_record_has_its_id_and_defaults(void **state)
{
    struct aq_request *r = read_line(*state, "{\"id\": \"x\\ny\", \"prompt\": \"She said\"}");
    assert_good(r);
    assert_int_equal(r->form, AQ_FORM_PLAIN);
    assert_string_equal(r->id_json, "\"x\\ny\"");
    assert_string_equal(r->id_text.bytes, "x\ny");
    assert_int_equal(r->id_hash, XXH3_64bits("x\ny", 3));
    assert_int_equal(r->index, 4);
    assert_int_equal(r->line, 9);
    assert_int_equal(r->params.max_tokens, 16);
    assert_int_equal(r->prompt_count, 1);
    assert_int_equal(r->prompts[0].ids[0], BOS);
    assert_int_equal(r->prompts[0].count, 3); /* BOS, "She", " said" */
}

static void an_integer_id_keeps_its_type_and_compares_as_text(void **state)
{
    struct aq_request *r = read_line(*state, "{\"id\": 17, \"prompt\": \"a\"}");
    assert_string_equal(r->id_json, "17");
    assert_int_equal(r->id_hash, XXH3_64bits("17", 2));
}

static void an_integer_id_of_any_size_is_kept_exactly(void **state)
{
    static const char *const ids[] = {"9007199254740993", "-9223372036854775808",
                                      "9223372036854775808", "18446744073709551615",
                                      "-340282366920938463463374607431768211456"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(ids); i++) {
        char text[128];
        snprintf(text, sizeof(text), "{\"prompt\": \"a\", \"id\" : %s }", ids[i]);
        struct aq_request *r = read_line(*state, text);
        assert_good(r);
        assert_string_equal(r->id_json, ids[i]);
        assert_int_equal(r->id_hash, XXH3_64bits(ids[i], strlen(ids[i])));
    }
    assert_refused(*state, "{\"id\": 1e400, \"prompt\": \"a\"}", AQ_RECORD_INVALID_RECORD, "id");
}

static void a_record_without_id_is_known_by_its_index(void **state)
{
    assert_string_equal(read_line(*state, "{\"prompt\": \"a\"}")->id_json, "4");
    assert_string_equal(read_line(*state, "{\"prompt\": \"a\", \"id\": null}")->id_json, "4");
}

static void an_id_of_another_type_is_refused(void **state)
{
    assert_refused(*state, "{\"id\": 1.5, \"prompt\": \"a\"}", AQ_RECORD_INVALID_RECORD, "id");
    assert_refused(*state, "{\"id\": [1], \"prompt\": \"a\"}", AQ_RECORD_INVALID_RECORD, "id");
}

#define BATCH(id, body)                                                                            \
    "{\"custom_id\": " id ", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": " body  \
    "}"

static void a_batch_record_reads_its_body(void **state)
{
    struct aq_request *r = read_line(
        *state, BATCH("\"c-1\"", "{\"model\": \"m\", \"prompt\": \"a b\", \"max_tokens\": 3, "
                                 "\"metadata\": {\"k\" : [1.10, \"\\u00e9\"]}}"));
    assert_good(r);
    assert_int_equal(r->form, AQ_FORM_BATCH);
    assert_string_equal(r->id_json, "\"c-1\"");
    assert_int_equal(r->params.max_tokens, 3);
    assert_string_equal(r->label_model, "\"m\"");
    assert_string_equal(r->label_metadata, "{\"k\" : [1.10, \"\\u00e9\"]}"); /* as it stood */
    assert_int_equal(r->prompts[0].ids[0], BOS);
}

static void a_batch_frame_must_be_whole(void **state)
{
    assert_refused(*state, BATCH("7", "{\"prompt\": \"a\"}"), AQ_RECORD_INVALID_RECORD,
                   "custom_id");
    assert_refused(*state, "{\"url\": \"/v1/completions\", \"body\": {\"prompt\": \"a\"}}",
                   AQ_RECORD_INVALID_RECORD, "custom_id");
    assert_refused(*state, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {}}",
                   AQ_RECORD_INVALID_RECORD, "method");
    assert_refused(*state, "{\"custom_id\": \"a\", \"method\": \"POST\", \"body\": {}}",
                   AQ_RECORD_INVALID_RECORD, "url");
    assert_refused(*state, BATCH("\"a\"", "[]"), AQ_RECORD_INVALID_RECORD, "body");
}

static void other_endpoints_are_unsupported(void **state)
{
    assert_refused(*state,
                   "{\"custom_id\": \"request-1\", \"method\": \"POST\", \"url\": "
                   "\"/v1/responses\", \"body\": {\"messages\": []}}",
                   AQ_RECORD_UNSUPPORTED_ENDPOINT, "url");
    assert_refused(*state,
                   "{\"custom_id\": \"e\", \"method\": \"POST\", \"url\": \"/v1/embeddings\", "
                   "\"body\": {}}",
                   AQ_RECORD_UNSUPPORTED_ENDPOINT, "url");
}

static void a_harness_record_keeps_its_bytes_and_gets_no_bos(void **state)
{
    const char *text = "{\"best_of\": 1, \"echo\": true, \"logprobs\": 1, \"max_tokens\": 0, "
                       "\"model\": \"x\", \"n\": 1, \"prompt\": \"She said\", \"request_type\": "
                       "\"language-model-inference\", \"stop\": null, \"temperature\": 0, "
                       "\"top_p\": 1}";
    struct rig *rig = *state;
    struct aq_request *r = read_line(rig, text);
    assert_good(r);
    assert_int_equal(r->form, AQ_FORM_HARNESS);
    assert_string_equal(r->echo_request, text);
    assert_int_equal(r->prompts[0].count, 2);
    assert_string_equal(r->id_json, "4");
    assert_int_equal(rig->unknown.count, 0);
}

static void a_harness_record_may_hold_its_request_inside(void **state)
{
    struct rig *rig = *state;
    struct aq_request *r =
        read_line(rig, "{\"scenario\": \"xsum\", \"request\": {\"prompt\": \"a\",  \"n\": 1, "
                       "\"temperature\": 0.3, \"stop\": [\"###\"], \"max_tokens\": 6}}");
    assert_good(r);
    assert_int_equal(r->form, AQ_FORM_HARNESS);
    assert_string_equal(r->echo_request, "{\"prompt\": \"a\",  \"n\": 1, \"temperature\": 0.3, "
                                         "\"stop\": [\"###\"], \"max_tokens\": 6}");
    assert_string_equal(r->scenario, "\"xsum\"");
    assert_int_equal(r->params.stop_count, 1);
    assert_string_equal(r->params.stop[0].bytes, "###");
    assert_int_equal(rig->unknown.count, 0);
}

/* ---- lines that are not records ---- */

static void broken_lines_are_invalid_json(void **state)
{
    static const char *const lines[] = {
        "{\"prompt\": \"a\"",
        "{\"prompt\": \"a\"} x",
        "{\"prompt\": \"\\ud800\"}",      /* a surrogate without its partner */
        "{\"prompt\": \"a\xff\"}",        /* not UTF-8 */
        "{\"prompt\": \"\xed\xa0\x80\"}", /* a surrogate as UTF-8 */
        "{\"prompt\": NaN}",
        "{\"prompt\": \"a\", \"prompt\": \"b\"}", /* which one? */
        "{'prompt': 'a'}",
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(lines); i++) {
        assert_refused(*state, lines[i], AQ_RECORD_INVALID_JSON, "");
        struct rig *rig = *state;
        assert_int_equal(rig->r->form, AQ_FORM_NONE);
        assert_string_equal(rig->r->id_json, "null");
        assert_int_equal(rig->r->key, XXH3_64bits(lines[i], strlen(lines[i])));
    }
}

static void zero_bytes_outside_strings_are_invalid_json(void **state)
{
    struct aq_request *r = read_bytes(*state, "{\"prompt\":\0\"a\"}", 15);
    assert_int_equal(r->error.code, AQ_RECORD_INVALID_JSON);
}

static void zero_bytes_in_prompts_are_text(void **state)
{
    struct aq_request *r = read_line(*state, "{\"prompt\": \"a\\u0000b\"}");
    assert_good(r);
    assert_int_equal(r->prompts[0].count, 4);
}

/* A record whose brackets nest this deep, its own included. */
static struct aq_request *read_nested(struct rig *rig, const char *before, int depth)
{
    struct aq_buf b = {0};
    aq_buf_puts(&b, before);
    for (int i = 1; i < depth; i++)
        aq_buf_puts(&b, "[");
    for (int i = 1; i < depth; i++)
        aq_buf_puts(&b, "]");
    aq_buf_puts(&b, "}");
    struct aq_request *r = read_bytes(rig, b.data, b.count);
    aq_buf_close(&b);
    return r;
}

static void nesting_is_bounded(void **state)
{
    static const char plain[] = "{\"prompt\": \"a\", \"metadata\": ",
                      brackets[] = "{\"prompt\": \"[[[{{{\\\"[[[\", \"metadata\": ";
    assert_good(read_nested(*state, plain, AQ_LINE_DEPTH_MAX));
    assert_good(read_nested(*state, brackets, AQ_LINE_DEPTH_MAX));
    for (int depth = AQ_LINE_DEPTH_MAX + 1; depth < 300000; depth *= 5) {
        struct aq_request *r = read_nested(*state, plain, depth);
        assert_int_equal(r->error.code, AQ_RECORD_INVALID_RECORD);
        assert_non_null(strstr(r->error.message, "512"));
    }
    assert_refused(*state, "[[[[\"\\", AQ_RECORD_INVALID_JSON, "");
    assert_refused(*state, "]]]]}}}}", AQ_RECORD_INVALID_JSON, "");
}

static void messages_are_printable_whatever_they_quote(void **state)
{
    static const char *const lines[] = {
        "{\"custom_id\": \"c\", \"url\": \"u\", \"body\": {}, \"method\": \"%s\"}",
        "{\"custom_id\": \"c\", \"method\": \"POST\", \"body\": {}, \"url\": \"%s\"}",
        "{\"prompt\": \"a\", \"temperature\": \"%s\"}",
        "{\"prompt\": \"a\", \"guided_%s\": 1}",
        "{\"prompt\": \"a\", \"x%s\": 1}",
        "{\"prompt\": \"%s",
        "%s",
    };
    struct rig *rig = *state;
    char text[2000] = "\\u001b[2J\\n", line[2200]; /* and then what may be cut within a letter */
    for (int i = 0; i < 400; i++)
        strcat(text, "\xc3\xa9");
    rig->rules.unknown_is_error = true;
    for (size_t i = 0; i < AQ_ARRAY_LEN(lines); i++) {
        int n = snprintf(line, sizeof(line), lines[i], text);
        const struct aq_request *r = read_bytes(rig, line, (size_t)n);
        assert_true(r->error.code != AQ_RECORD_OK);
        for (const char *c = r->error.message; *c; c++)
            assert_true(*c >= ' ' && *c <= '~');
    }
}

static void values_that_are_not_objects_are_invalid_records(void **state)
{
    assert_refused(*state, "[1, 2]", AQ_RECORD_INVALID_RECORD, "");
    assert_refused(*state, "\"text\"", AQ_RECORD_INVALID_RECORD, "");
    assert_refused(*state, "7", AQ_RECORD_INVALID_RECORD, "");
}

static void a_line_that_is_too_long_says_so(void **state)
{
    struct rig *rig = *state;
    struct aq_line line = {.text = "", .number = 3, .too_long = true, .hash = 5};
    aq_request_close(rig->r);
    assert_int_equal(aq_request_open(&rig->r, &rig->rules, &line, NULL), 0);
    assert_int_equal(rig->r->error.code, AQ_RECORD_INVALID_RECORD);
    assert_int_equal(rig->r->key, 5);
}

/* ---- prompts ---- */

static void prompts_come_as_text_ids_and_lists_of_both(void **state)
{
    struct aq_request *r = read_line(*state, "{\"prompt\": [10, 20.0, 30]}");
    assert_int_equal(r->error.code, AQ_RECORD_INVALID_RECORD); /* 20.0 is no id */
    r = read_line(*state, "{\"prompt\": [10, 20, 30]}");
    assert_good(r);
    assert_int_equal(r->prompts[0].count, 3); /* as given: no BOS */
    assert_int_equal(r->prompts[0].ids[0], 10);
    r = read_line(*state, "{\"prompt\": [\"She said\", \"a\"]}");
    assert_good(r);
    assert_int_equal(r->prompt_count, 2);
    assert_int_equal(r->prompts[1].count, 2);
    r = read_line(*state, "{\"prompt\": [[1, 2], [3]], \"n\": 3, \"temperature\": 1}");
    assert_good(r);
    assert_int_equal(aq_request_sequences(r), 6);
    assert_int_equal(r->prompts[1].ids[0], 3);
}

static void prompts_that_are_nothing_are_empty(void **state)
{
    assert_refused(*state, "{\"prompt\": \"\"}", AQ_RECORD_EMPTY_PROMPT, "prompt");
    assert_refused(*state, "{\"prompt\": []}", AQ_RECORD_EMPTY_PROMPT, "prompt");
    assert_refused(*state, "{\"prompt\": [\"a\", \"\"]}", AQ_RECORD_EMPTY_PROMPT, "prompt");
    assert_refused(*state, "{\"prompt\": [[1], []]}", AQ_RECORD_EMPTY_PROMPT, "prompt");
}

static void prompts_of_the_wrong_kind_are_refused(void **state)
{
    assert_refused(*state, "{\"id\": 1}", AQ_RECORD_INVALID_RECORD, "prompt");
    assert_refused(*state, "{\"prompt\": null}", AQ_RECORD_INVALID_RECORD, "prompt");
    assert_refused(*state, "{\"prompt\": {\"a\": 1}}", AQ_RECORD_INVALID_RECORD, "prompt");
    assert_refused(*state, "{\"prompt\": 7}", AQ_RECORD_INVALID_RECORD, "prompt");
    assert_refused(*state, "{\"prompt\": [\"a\", 7]}", AQ_RECORD_INVALID_RECORD, "prompt");
    assert_refused(*state, "{\"prompt\": [7, \"a\"]}", AQ_RECORD_INVALID_RECORD, "prompt");
    assert_refused(*state, "{\"prompt\": [[7], [\"a\"]]}", AQ_RECORD_INVALID_RECORD, "prompt");
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    assert_refused(*state, "{\"prompt\": [4095, 4096]}", AQ_RECORD_TOKEN_OUT_OF_RANGE, "prompt");
    assert_refused(*state, "{\"prompt\": [-1]}", AQ_RECORD_TOKEN_OUT_OF_RANGE, "prompt");
    assert_refused(*state, "{\"prompt\": [9223372036854775807]}", AQ_RECORD_TOKEN_OUT_OF_RANGE,
                   "prompt");
    assert_refused(*state, "{\"prompt\": \"a\", \"stop_token_ids\": [4096]}",
                   AQ_RECORD_TOKEN_OUT_OF_RANGE, "stop_token_ids");
}

static void a_missing_prompt_names_the_field_that_may_be_meant(void **state)
{
    struct aq_request *r = read_line(*state, "{\"question\": \"why?\"}");
    assert_non_null(strstr(r->error.message, "--prompt-field question"));
    assert_refused(*state, "{\"messages\": [{\"role\": \"user\"}]}",
                   AQ_RECORD_UNSUPPORTED_PARAMETER, "messages");
}

static void another_field_can_hold_the_prompt(void **state)
{
    struct rig *rig = *state;
    rig->rules.prompt_field = "article";
    struct aq_request *r = read_line(rig, "{\"article\": \"She said\", \"summary_gt\": \"x\"}");
    assert_good(r);
    assert_int_equal(r->prompts[0].count, 3);
    assert_int_equal(rig->unknown.count, 1);
    assert_string_equal(rig->unknown.field[0].name, "summary_gt");
    assert_refused(rig, "{\"prompt\": \"a\"}", AQ_RECORD_INVALID_RECORD, "article");
}

static void a_template_is_filled_from_the_record(void **state)
{
    struct rig *rig = *state;
    struct aq_template *t;
    const char text[] = "{{Q{n1}}}: {question}?";
    assert_int_equal(aq_template_open(&t, text, strlen(text), NULL), 0);
    rig->rules.prompt_template = t;
    rig->rules.defaults.echo = true;
    struct aq_request *r =
        read_line(rig, "{\"question\": \"why\", \"n1\": 3, \"answer\": \"because\"}");
    assert_good(r);
    assert_string_equal(r->prompts[0].text.bytes, "{Q3}: why?");
    assert_string_equal(rig->unknown.field[0].name, "answer");
    assert_refused(rig, "{\"question\": \"why\"}", AQ_RECORD_INVALID_RECORD, "n1");
    assert_refused(rig, "{\"question\": \"why\", \"n1\": [1]}", AQ_RECORD_INVALID_RECORD, "n1");
    rig->rules.prompt_template = NULL;
    aq_template_close(t);
}

static void braces_without_their_partner_are_named(void **state)
{
    struct aq_template *t;
    struct aq_err err;
    static const char *const bad[] = {"{a", "a}", "{}", "{a{b}}", "no field"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(bad); i++) {
        assert_int_equal(aq_template_open(&t, bad[i], strlen(bad[i]), &err), -EINVAL);
        assert_non_null(strstr(err.text, "prompt template"));
    }
}

static void text_lines_are_prompts(void **state)
{
    struct rig *rig = *state;
    rig->rules.text_lines = true;
    struct aq_request *r = read_line(rig, "{\"not\": JSON");
    assert_good(r);
    assert_int_equal(r->form, AQ_FORM_PLAIN);
    assert_true(r->prompts[0].count > 3);
    assert_refused(rig, "caf\xe9", AQ_RECORD_INVALID_RECORD, "prompt");
}

/* ---- BOS ---- */

static void bos_always_stands_in_front_of_everything_once(void **state)
{
    struct rig *rig = *state;
    rig->rules.bos = AQ_BOS_ALWAYS;
    struct aq_request *r = read_line(rig, "{\"prompt\": [[7], [2, 7]]}");
    assert_good(r);
    assert_int_equal(r->prompts[0].count, 2);
    assert_int_equal(r->prompts[0].ids[0], BOS);
    assert_int_equal(r->prompts[1].count, 2); /* it brought its own */
    r = read_line(rig, "{\"prompt\": \"She said\", \"request_type\": \"x\"}");
    assert_int_equal(r->prompts[0].count, 3);
}

static void bos_never_stands_nowhere(void **state)
{
    struct rig *rig = *state;
    rig->rules.bos = AQ_BOS_NEVER;
    assert_int_equal(read_line(rig, "{\"prompt\": \"She said\"}")->prompts[0].count, 2);
}

static void a_text_that_begins_with_bos_already_is_noted(void **state)
{
    struct rig *rig = *state;
    struct aq_request *r = read_line(rig, "{\"prompt\": [\"She said\", \"</s>She said\"]}");
    assert_good(r);
    assert_false(r->prompts[0].bos_twice);
    assert_true(r->prompts[1].bos_twice);
    assert_int_equal(r->prompts[1].count, 4);
    assert_false(read_line(rig, "{\"prompt\": [2, 7]}")->prompts[0].bos_twice);
    rig->rules.bos = AQ_BOS_NEVER;
    assert_false(read_line(rig, "{\"prompt\": \"</s>She\"}")->prompts[0].bos_twice);
}

static void tokens_behind_the_models_last_are_refused(void **state)
{
    struct rig *rig = *state;
    struct aq_request *r = read_line(rig, "{\"prompt\": \"She\"}");
    assert_good(r);
    rig->rules.vocab = r->prompts[0].ids[1];
    assert_refused(rig, "{\"prompt\": \"She\"}", AQ_RECORD_TOKEN_OUT_OF_RANGE, "prompt");
    assert_non_null(strstr(rig->r->error.message, "'She'"));
    rig->rules.vocab++;
    assert_good(read_line(rig, "{\"prompt\": \"She\"}"));
}

/* ---- parameters ---- */

static void every_parameter_is_read(void **state)
{
    struct aq_request *r = read_line(
        *state,
        "{\"prompt\": \"a\", \"max_completion_tokens\": 9, \"min_tokens\": 2, \"temperature\": "
        "0.5, \"top_p\": 0.9, \"top_k\": 40, \"min_p\": 0.1, \"seed\": -3, \"stop\": [\"x\", "
        "\"\\u00e9\"], \"stop_token_ids\": [5, 6], \"include_stop_str_in_output\": true, "
        "\"ignore_eos\": true, \"logprobs\": 20, \"echo\": true, \"n\": 2, "
        "\"repetition_penalty\": 1.5, \"presence_penalty\": -2, \"frequency_penalty\": 2}");
    assert_good(r);
    const struct aq_params *p = &r->params;
    assert_int_equal(p->max_tokens, 9);
    assert_int_equal(p->min_tokens, 2);
    assert_true(p->temperature == 0.5f && p->top_p == 0.9f && p->min_p == 0.1f);
    assert_int_equal(p->top_k, 40);
    assert_int_equal(p->seed, -3);
    assert_int_equal(p->stop_count, 2);
    assert_int_equal(p->stop[1].count, 2);
    assert_int_equal(p->stop_id_count, 2);
    assert_int_equal(p->stop_ids[1], 6);
    assert_true(p->include_stop && p->ignore_eos && p->echo);
    assert_int_equal(p->logprobs, 20);
    assert_int_equal(p->n, 2);
    assert_true(p->repetition_penalty == 1.5f && p->presence_penalty == -2 &&
                p->frequency_penalty == 2);
}

static void null_means_the_default(void **state)
{
    struct aq_request *r =
        read_line(*state, "{\"prompt\": \"a\", \"max_tokens\": null, \"stop\": null, \"n\": null, "
                          "\"logprobs\": null, \"seed\": null, \"best_of\": null}");
    assert_good(r);
    assert_int_equal(r->params.max_tokens, 16);
    assert_int_equal(r->params.logprobs, -1);
}

static void values_out_of_range_are_invalid_parameters(void **state)
{
    static const char *const bad[][2] = {
        {"max_tokens", "-1"},
        {"max_tokens", "\"9\""},
        {"max_tokens", "1.5"},
        {"max_tokens", "0"},
        {"min_tokens", "17"},
        {"temperature", "-0.1"},
        {"temperature", "\"hot\""},
        {"temperature", "1e9"},
        {"top_p", "0"},
        {"top_p", "1.1"},
        {"top_k", "-2"},
        {"min_p", "-0.5"},
        {"min_p", "2"},
        {"seed", "1.5"},
        {"seed", "\"x\""},
        {"stop", "\"\""},
        {"stop", "[\"a\", 1]"},
        {"stop", "7"},
        {"stop_token_ids", "[1.5]"},
        {"stop_token_ids", "3"},
        {"logprobs", "21"},
        {"logprobs", "-1"},
        {"logprobs", "true"},
        {"echo", "1"},
        {"n", "0"},
        {"n", "129"},
        {"ignore_eos", "\"no\""},
        {"repetition_penalty", "0"},
        {"presence_penalty", "2.5"},
        {"frequency_penalty", "-3"},
        {"best_of", "0"},
        {"include_stop_str_in_output", "0"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(bad); i++) {
        char text[128];
        snprintf(text, sizeof(text), "{\"prompt\": \"a\", \"%s\": %s}", bad[i][0], bad[i][1]);
        assert_refused(*state, text, AQ_RECORD_INVALID_PARAMETER, bad[i][0]);
    }
}

/* A parser of 64 bits would lose the whole record. */
static void numbers_out_of_range_cost_their_parameter_only(void **state)
{
    struct rig *rig = *state;
    static const struct {
        const char *name, *value;
        enum aq_record_code code;
    } cases[] = {
        {"seed", "18446744073709551615", AQ_RECORD_INVALID_PARAMETER},
        {"seed", "-9223372036854775809", AQ_RECORD_INVALID_PARAMETER},
        {"max_tokens", "1000000000000000000000000000000", AQ_RECORD_INVALID_PARAMETER},
        {"temperature", "1e400", AQ_RECORD_INVALID_PARAMETER},
        {"stop_token_ids", "[18446744073709551615]", AQ_RECORD_INVALID_PARAMETER},
        {"logit_bias", "{\"5\": 18446744073709551615}", AQ_RECORD_UNSUPPORTED_PARAMETER},
        {"prompt", "[5, 18446744073709551615]", AQ_RECORD_INVALID_RECORD},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        char text[256];
        bool prompt = !strcmp(cases[i].name, "prompt");
        snprintf(text, sizeof(text), "{\"id\": \"x\", \"%s\": %s%s}", cases[i].name, cases[i].value,
                 prompt ? "" : ", \"prompt\": \"a\"");
        assert_refused(rig, text, cases[i].code, cases[i].name);
        assert_string_equal(rig->r->id_json, "\"x\"");
        if (cases[i].code == AQ_RECORD_INVALID_PARAMETER)
            assert_non_null(strstr(rig->r->error.message, cases[i].value));
    }
    char digits[400] = "{\"id\": \"x\", \"prompt\": \"a\", \"n\": ";
    size_t begin = strlen(digits);
    memset(digits + begin, '9', sizeof(digits) - begin - 2);
    digits[sizeof(digits) - 2] = '}';
    digits[sizeof(digits) - 1] = '\0';
    assert_refused(rig, digits, AQ_RECORD_INVALID_PARAMETER, "n");
    assert_good(read_line(rig, "{\"prompt\": \"a\", \"seed\": 9223372036854775807}"));
    assert_int_equal(rig->r->params.seed, INT64_MAX);
    assert_refused(rig, "{\"prompt\": \"a\", \"seed\": 18446744073709551615 \"n\": 1}",
                   AQ_RECORD_INVALID_JSON, "");
}

static void numbers_out_of_range_beside_the_parameters_do_no_harm(void **state)
{
    struct rig *rig = *state;
    assert_good(read_line(rig, "{\"prompt\": \"a\"}"));
    uint64_t key = rig->r->key;
    assert_good(read_line(rig, "{\"metadata\": {\"h\": 18446744073709551615}, \"prompt\": \"a\", "
                               "\"other\": -1e999}"));
    assert_int_equal(rig->r->key, key);
    assert_string_equal(rig->r->label_metadata, "{\"h\": 18446744073709551615}");
    struct aq_template *t;
    assert_int_equal(aq_template_open(&t, "{h} {x}", 7, NULL), 0);
    rig->rules.prompt_template = t;
    rig->rules.defaults.echo = true;
    assert_good(read_line(rig, "{\"h\": 18446744073709551615, \"x\": 0.5}"));
    assert_string_equal(rig->r->prompts[0].text.bytes, "18446744073709551615 0.5");
    rig->rules.prompt_template = NULL;
    aq_template_close(t);
}

static void parameters_that_contradict_each_other_are_invalid(void **state)
{
    assert_refused(*state, "{\"prompt\": \"a\", \"n\": 2}", AQ_RECORD_INVALID_PARAMETER, "n");
    assert_refused(*state, "{\"prompt\": \"a\", \"max_tokens\": 3, \"max_completion_tokens\": 4}",
                   AQ_RECORD_INVALID_PARAMETER, "max_completion_tokens");
    assert_refused(*state, "{\"prompt\": \"a\", \"best_of\": 2}", AQ_RECORD_UNSUPPORTED_PARAMETER,
                   "best_of");
}

static void no_tokens_at_all_need_echo(void **state)
{
    assert_refused(*state, "{\"prompt\": \"a\", \"max_tokens\": 0}", AQ_RECORD_INVALID_PARAMETER,
                   "max_tokens");
    assert_good(read_line(*state, "{\"prompt\": \"a\", \"max_tokens\": 0, \"echo\": true}"));
}

static void unsupported_fields_pass_with_a_neutral_value_only(void **state)
{
    static const char *const cases[][3] = {
        {"stream", "false", "true"},
        {"suffix", "\"\"", "\"end\""},
        {"logit_bias", "{}", "{\"50256\": -100}"},
        {"response_format", "{\"type\": \"text\"}", "{\"type\": \"json_object\"}"},
        {"tools", "[]", "[{}]"},
        {"tool_choice", "\"auto\"", "\"required\""},
        {"guided_json", "null", "{\"a\": 1}"},
        {"guided_regex", "\"\"", "\"a+\""},
        {"use_beam_search", "false", "true"},
        {"top_logprobs", "0", "5"},
        {"skip_special_tokens", "true", "false"},
        {"best_of", "1", "3"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        char text[128];
        snprintf(text, sizeof(text), "{\"prompt\": \"a\", \"%s\": %s}", cases[i][0], cases[i][1]);
        assert_good(read_line(*state, text));
        snprintf(text, sizeof(text), "{\"prompt\": \"a\", \"%s\": %s}", cases[i][0], cases[i][2]);
        assert_refused(*state, text, AQ_RECORD_UNSUPPORTED_PARAMETER, cases[i][0]);
    }
}

static void unknown_fields_are_collected_once_with_the_nearest_known(void **state)
{
    struct rig *rig = *state;
    assert_good(read_line(rig, "{\"prompt\": \"a\", \"tempreature\": 1, \"zzz\": 2}"));
    assert_good(read_line(rig, "{\"prompt\": \"a\", \"tempreature\": 1, \"max_new_tokens\": 1}"));
    assert_int_equal(rig->unknown.count, 3);
    assert_int_equal(rig->unknown.field[0].count, 2);
    assert_string_equal(rig->unknown.field[0].nearest, "temperature");
    assert_null(rig->unknown.field[1].nearest);
    assert_string_equal(rig->unknown.field[2].nearest, "max_tokens");
}

/* 63 bytes are kept: two letters, and 30 of two bytes; the 31st would be cut. */
static void a_long_unknown_field_is_cut_between_two_characters(void **state)
{
    struct rig *rig = *state;
    char name[82] = "a", text[128];
    for (int i = 0; i < 40; i++)
        memcpy(name + (1 + 2 * i), "\u00e9", 2);
    snprintf(text, sizeof(text), "{\"prompt\": \"a\", \"a%s\": 1}", name);
    assert_good(read_line(rig, text));
    assert_good(read_line(rig, text));
    assert_int_equal(rig->unknown.count, 1);
    assert_int_equal(rig->unknown.field[0].count, 2);
    size_t kept = strlen(rig->unknown.field[0].name);
    assert_int_equal(kept, 62);
    assert_memory_equal(rig->unknown.field[0].name, "a", 1);
    assert_memory_equal(rig->unknown.field[0].name + 1, name, kept - 1);
}

static void unknown_fields_are_errors_when_asked_for(void **state)
{
    struct rig *rig = *state;
    rig->rules.unknown_is_error = true;
    assert_refused(rig, "{\"prompt\": \"a\", \"tempreature\": 1}", AQ_RECORD_INVALID_PARAMETER,
                   "tempreature");
    assert_good(read_line(rig, BATCH("\"a\"", "{\"prompt\": \"a\", \"user\": \"u\"}")));
    assert_refused(rig, BATCH("\"a\", \"extra\": 1", "{\"prompt\": \"a\"}"),
                   AQ_RECORD_INVALID_PARAMETER, "extra");
}

/* ---- too long ---- */

/* 60 ids and 16 new tokens in a context of 64. */
static const char *long_ids(const char *rest)
{
    static char text[512];
    struct aq_buf b = {0};
    aq_buf_puts(&b, "{\"prompt\": [2");
    for (int i = 1; i < 60; i++)
        aq_buf_printf(&b, ",%d", 100 + i);
    aq_buf_printf(&b, "]%s}", rest);
    snprintf(text, sizeof(text), "%s", b.data);
    aq_buf_close(&b);
    return text;
}

static void too_long_is_an_error_with_all_three_numbers(void **state)
{
    struct rig *rig = *state;
    assert_refused(rig, long_ids(""), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, "prompt");
    assert_non_null(strstr(rig->r->error.message, "60"));
    assert_non_null(strstr(rig->r->error.message, "16"));
    assert_non_null(strstr(rig->r->error.message, "64"));
    assert_good(read_line(rig, long_ids(", \"max_tokens\": 4"))); /* just fits */
}

static void truncation_keeps_bos_and_counts_what_it_dropped(void **state)
{
    struct rig *rig = *state;
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_LEFT;
    struct aq_request *r = read_line(rig, long_ids(""));
    assert_good(r);
    assert_int_equal(r->prompts[0].count, 48);
    assert_int_equal(r->prompts[0].dropped, 12);
    assert_int_equal(r->prompts[0].ids[0], BOS);
    assert_int_equal(r->prompts[0].ids[1], 113);
    assert_int_equal(r->prompts[0].ids[47], 159);
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_RIGHT;
    r = read_line(rig, long_ids(""));
    assert_int_equal(r->prompts[0].ids[0], BOS);
    assert_int_equal(r->prompts[0].ids[47], 147);
    assert_int_equal(r->prompts[0].dropped, 12);
}

static void truncation_needs_room_for_a_prompt(void **state)
{
    struct rig *rig = *state;
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_LEFT;
    assert_refused(rig, long_ids(", \"max_tokens\": 63"), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED,
                   "prompt");
    assert_good(read_line(rig, long_ids(", \"max_tokens\": 62")));
    assert_int_equal(rig->r->prompts[0].count, 2);
}

static void clipping_lowers_max_tokens(void **state)
{
    struct rig *rig = *state;
    rig->rules.overlong = AQ_OVERLONG_CLIP;
    struct aq_request *r = read_line(rig, long_ids(""));
    assert_good(r);
    assert_int_equal(r->prompts[0].max_tokens, 4);
    assert_int_equal(r->prompts[0].dropped, 0);
    rig->rules.context = 60;
    assert_refused(rig, long_ids(""), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, "prompt");
}

/* A context that goes on behind what the model knows has room for new tokens there, and for no
 * prompt. */
static void a_prompt_may_have_less_room_than_the_context(void **state)
{
    struct rig *rig = *state;
    rig->rules.context = 1000;
    rig->rules.prompt_max = 60;
    assert_good(read_line(rig, long_ids(", \"max_tokens\": 940")));
    assert_refused(rig, long_ids(", \"max_tokens\": 941"), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED,
                   "prompt");
    rig->rules.prompt_max = 59;
    assert_refused(rig, long_ids(""), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, "prompt");
    assert_non_null(strstr(rig->r->error.message, "prompt 60 tokens, positions 59, context 1000"));
    rig->rules.overlong = AQ_OVERLONG_CLIP;
    assert_refused(rig, long_ids(""), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, "prompt");
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_LEFT;
    assert_good(read_line(rig, long_ids("")));
    assert_int_equal(rig->r->prompts[0].count, 59);
    assert_int_equal(rig->r->prompts[0].dropped, 1);
    assert_int_equal(rig->r->prompts[0].max_tokens, 16);
}

static void echo_shows_the_text_that_is_left(void **state)
{
    struct rig *rig = *state;
    struct aq_request *r = read_line(rig, "{\"prompt\": \"She said\", \"echo\": true}");
    assert_string_equal(r->prompts[0].text.bytes, "She said");
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_LEFT;
    r = read_line(rig, "{\"prompt\": \"She said\", \"echo\": true, \"max_tokens\": 62}");
    assert_string_equal(r->prompts[0].text.bytes, " said"); /* without BOS's own text */
}

/* ---- the key ---- */

static uint64_t key_of(struct rig *rig, const char *text)
{
    assert_good(read_line(rig, text));
    return rig->r->key;
}

static void the_key_depends_on_prompt_and_parameters_only(void **state)
{
    uint64_t key = key_of(*state, "{\"id\": 1, \"prompt\": \"a\", \"max_tokens\": 5}");
    assert_int_equal(
        key_of(*state, "{ \"max_tokens\" : 5.0, \"user\": \"u\", \"prompt\" : \"\\u0061\"}"), key);
    assert_int_equal(key_of(*state, "{\"prompt\": [\"a\"], \"max_tokens\": 5}"), key);
    assert_int_not_equal(key_of(*state, "{\"prompt\": \"a\"}"), key);
    assert_int_not_equal(key_of(*state, "{\"prompt\": \"b\", \"max_tokens\": 5}"), key);
    assert_int_not_equal(key_of(*state, "{\"prompt\": \"a\", \"max_tokens\": 5, \"stop\": \"x\"}"),
                         key);
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)

static const struct CMUnitTest tests[] = {
    T(a_plain_record_has_its_id_and_defaults),
    T(an_integer_id_keeps_its_type_and_compares_as_text),
    T(an_integer_id_of_any_size_is_kept_exactly),
    T(a_record_without_id_is_known_by_its_index),
    T(an_id_of_another_type_is_refused),
    T(a_batch_record_reads_its_body),
    T(a_batch_frame_must_be_whole),
    T(other_endpoints_are_unsupported),
    T(a_harness_record_keeps_its_bytes_and_gets_no_bos),
    T(a_harness_record_may_hold_its_request_inside),
    T(broken_lines_are_invalid_json),
    T(zero_bytes_outside_strings_are_invalid_json),
    T(zero_bytes_in_prompts_are_text),
    T(nesting_is_bounded),
    T(messages_are_printable_whatever_they_quote),
    T(values_that_are_not_objects_are_invalid_records),
    T(a_line_that_is_too_long_says_so),
    T(prompts_come_as_text_ids_and_lists_of_both),
    T(prompts_that_are_nothing_are_empty),
    T(prompts_of_the_wrong_kind_are_refused),
    T(ids_outside_the_vocabulary_are_refused),
    T(a_missing_prompt_names_the_field_that_may_be_meant),
    T(another_field_can_hold_the_prompt),
    T(a_template_is_filled_from_the_record),
    T(braces_without_their_partner_are_named),
    T(text_lines_are_prompts),
    T(bos_always_stands_in_front_of_everything_once),
    T(bos_never_stands_nowhere),
    T(a_text_that_begins_with_bos_already_is_noted),
    T(tokens_behind_the_models_last_are_refused),
    T(every_parameter_is_read),
    T(null_means_the_default),
    T(values_out_of_range_are_invalid_parameters),
    T(numbers_out_of_range_cost_their_parameter_only),
    T(numbers_out_of_range_beside_the_parameters_do_no_harm),
    T(parameters_that_contradict_each_other_are_invalid),
    T(no_tokens_at_all_need_echo),
    T(unsupported_fields_pass_with_a_neutral_value_only),
    T(unknown_fields_are_collected_once_with_the_nearest_known),
    T(a_long_unknown_field_is_cut_between_two_characters),
    T(unknown_fields_are_errors_when_asked_for),
    T(too_long_is_an_error_with_all_three_numbers),
    T(truncation_keeps_bos_and_counts_what_it_dropped),
    T(truncation_needs_room_for_a_prompt),
    T(clipping_lowers_max_tokens),
    T(a_prompt_may_have_less_room_than_the_context),
    T(echo_shows_the_text_that_is_left),
    T(the_key_depends_on_prompt_and_parameters_only),
};

AQ_TEST_MAIN(tests)
