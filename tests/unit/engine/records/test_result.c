/* SPDX-License-Identifier: Apache-2.0
 * Result lines in their four forms, and that they are recognised again. */
#include "engine/records/result.h"

#include "base/json.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { VOCAB = 4096, EOS = 2, SPECIAL = 1 };

struct rig {
    struct aq_tokenizer *tokenizer;
    struct aq_request_rules rules;
    struct aq_record_rules record_rules;
    struct aq_result_rules result_rules;
    struct aq_record *rec;
    struct aq_buf line;
    json_t *json; /* of the line */
};

static const uint32_t eos_ids[] = {EOS};

static int setup(void **state)
{
    static struct rig rig;
    const char *dir = test_data_path("tiny-opt");
    rig = (struct rig){0};
    struct aq_tokenizer_defaults defaults = {EOS, EOS, 1, true};
    if (aq_tokenizer_open(&rig.tokenizer, dir, &defaults, NULL) < 0 ||
        aq_tok_state_open(&rig.rules.tok_state, rig.tokenizer, NULL) < 0)
        return -1;
    rig.rules.tokenizer = rig.tokenizer;
    rig.rules.vocab = VOCAB;
    rig.rules.context = 64;
    rig.rules.bos_id = EOS;
    rig.rules.adds_bos = true;
    rig.rules.defaults = (struct aq_params){
        .max_tokens = 8, .n = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    rig.record_rules = (struct aq_record_rules){rig.tokenizer, eos_ids, 1};
    rig.result_rules = (struct aq_result_rules){rig.tokenizer, "tiny", AQ_FORM_NONE, 1700000000};
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    aq_record_close(rig->rec);
    aq_buf_close(&rig->line);
    json_decref(rig->json);
    aq_tok_state_close(rig->rules.tok_state);
    aq_tokenizer_close(rig->tokenizer);
    return 0;
}

static struct aq_request *read_line(struct rig *rig, const char *text)
{
    struct aq_request *r;
    struct aq_line line = {text, strlen(text), .index = 4, .number = 9,
                           .hash = XXH3_64bits(text, strlen(text))};
    assert_int_equal(aq_request_open(&r, &rig->rules, &line, NULL), 0);
    return r;
}

static void start(struct rig *rig, const char *text)
{
    struct aq_request *r = read_line(rig, text);
    assert_string_equal(r->error.message, "");
    aq_record_close(rig->rec);
    assert_int_equal(aq_record_open(&rig->rec, r, &rig->record_rules, NULL), 0);
}

/* What the engine does: one token after the other, until somebody says stop. */
static void give(struct rig *rig, uint32_t choice, const uint32_t *ids, uint32_t count)
{
    struct aq_sequence *s = &rig->rec->choices[choice].sequence;
    for (uint32_t i = 0; i < count && s->finish == AQ_FINISH_NONE; i++) {
        if (s->top_count >= 0)
            s->logprobs[i] = -0.5f * (float)(i + 1);
        for (int k = 0; k < s->top_count; k++)
            s->tops[(int)i * s->top_count + k] = (struct aq_top){ids[i] + (uint32_t)k, -1 - k};
        s->tokens[s->token_count++] = ids[i];
        if (s->on_token && s->on_token(s))
            s->finish = AQ_FINISH_CALLER;
        for (uint32_t k = 0; k < s->stop_id_count; k++) {
            if (ids[i] == s->stop_ids[k]) {
                s->finish = AQ_FINISH_STOP_ID;
                s->finish_id = ids[i];
            }
        }
    }
    if (s->finish == AQ_FINISH_NONE)
        s->finish = AQ_FINISH_LENGTH;
    assert_ptr_equal(aq_record_finish(s), &rig->rec->choices[choice]);
}

static void give_text(struct rig *rig, uint32_t choice, const char *text)
{
    struct aq_ids ids = {0};
    assert_int_equal(aq_tokenizer_encode(rig->tokenizer, rig->rules.tok_state, text, strlen(text),
                                         (struct aq_encode_opts){.parse_special = true}, &ids,
                                         NULL),
                     0);
    give(rig, choice, ids.item, (uint32_t)ids.count);
    aq_ids_close(&ids);
}

static const json_t *format(struct rig *rig)
{
    aq_buf_clear(&rig->line);
    json_decref(rig->json);
    assert_int_equal(aq_result_format(&rig->line, rig->rec, &rig->result_rules, NULL, NULL), 0);
    assert_null(strchr(rig->line.data, '\n'));
    bool wide;
    assert_int_equal(
        aq_json_parse_wide(&rig->json, &wide, rig->line.data, rig->line.count, true, NULL), 0);
    return rig->json;
}

static const char *get_string(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static json_int_t get_int(const json_t *o, const char *key)
{
    assert_true(json_is_integer(json_object_get(o, key)));
    return json_integer_value(json_object_get(o, key));
}

static const json_t *first_of(const json_t *o, const char *key)
{
    return json_array_get(json_object_get(o, key), 0);
}

/* ---- plain ---- */

static void a_plain_result_has_every_field(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": \"a\", \"prompt\": \"She said\", \"metadata\": {\"x\":  1.10}}");
    give_text(rig, 0, " nothing");
    format(rig);
    char want[512];
    snprintf(want, sizeof(want),
             "{\"id\":\"a\",\"index\":4,\"key\":\"%016llx\",\"text\":\" nothing\",\"tokens\":[%u],"
             "\"finish_reason\":\"length\",\"stop_reason\":null,\"usage\":{\"prompt_tokens\":3,"
             "\"completion_tokens\":1,\"total_tokens\":4},\"metadata\":{\"x\":  1.10}}",
             (unsigned long long)rig->rec->request->key, rig->rec->choices[0].sequence.tokens[0]);
    assert_string_equal(rig->line.data, want);
}

static void eos_ends_the_text_but_stays_among_the_tokens(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\"}");
    give_text(rig, 0, " nothing</s>");
    const json_t *o = format(rig);
    assert_string_equal(get_string(o, "text"), " nothing");
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), 2);
    assert_string_equal(get_string(o, "finish_reason"), "stop");
    assert_true(json_is_null(json_object_get(o, "stop_reason")));
}

static void special_tokens_leave_no_text(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"ignore_eos\": true}");
    give_text(rig, 0, " no<pad></s> more");
    const json_t *o = format(rig);
    assert_string_equal(get_string(o, "text"), " no more");
    assert_int_equal(get_int(json_object_get(o, "usage"), "completion_tokens"), 4);
}

static void a_stop_string_across_tokens_cuts_the_text(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"stop\": [\"zzz\", \"ng h\"]}");
    give_text(rig, 0, " nothing here");
    const json_t *o = format(rig);
    assert_string_equal(get_string(o, "text"), " nothi");
    assert_string_equal(get_string(o, "finish_reason"), "stop");
    assert_string_equal(get_string(o, "stop_reason"), "ng h");
    assert_true(json_array_size(json_object_get(o, "tokens")) >= 2); /* stop string included */
}

static void a_stop_string_stays_when_asked_for(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"stop\": \"ng h\", \"include_stop_str_in_output\": true}");
    give_text(rig, 0, " nothing here");
    assert_string_equal(get_string(format(rig), "text"), " nothing h");
}

static void a_stop_string_before_min_tokens_does_not_count(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"stop\": \" no\", \"min_tokens\": 1}");
    give_text(rig, 0, " no no");
    const json_t *o = format(rig);
    assert_string_equal(get_string(o, "text"), " no");
    assert_int_equal(get_int(json_object_get(o, "usage"), "completion_tokens"), 2);
}

static void a_stop_id_is_named(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"stop_token_ids\": [300]}");
    give(rig, 0, (uint32_t[]){400, 300, 500}, 3);
    const json_t *o = format(rig);
    assert_string_equal(get_string(o, "finish_reason"), "stop");
    assert_int_equal(get_int(o, "stop_reason"), 300);
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), 2);
}

static void bytes_that_are_no_text_become_replacement_characters(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\"}");
    give_text(rig, 0, " x\xe2\x82 y"); /* a cut-off euro sign */
    assert_string_equal(get_string(format(rig), "text"), " x\xef\xbf\xbd y");
}

static void several_choices_repeat_the_first_at_the_top(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": [\"a\", \"She said\"], \"n\": 2, \"temperature\": 1}");
    static const char *const text[] = {" no", " one", " of", " them"};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(rig->rec->choices[i].sequence.sampling.choice, i);
        give_text(rig, i, text[i]);
    }
    const json_t *o = format(rig), *choices = json_object_get(o, "choices");
    assert_int_equal(json_array_size(choices), 4);
    for (uint32_t i = 0; i < 4; i++) { /* prompt x n + sample */
        assert_int_equal(get_int(json_array_get(choices, i), "index"), i);
        assert_string_equal(get_string(json_array_get(choices, i), "text"), text[i]);
    }
    assert_string_equal(get_string(o, "text"), " no");
    assert_int_equal(get_int(json_object_get(o, "usage"), "prompt_tokens"), 2 + 3);
    assert_int_equal(get_int(json_object_get(o, "usage"), "completion_tokens"), 4);
}

static void one_choice_has_no_list(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": [\"a\"]}");
    give_text(rig, 0, " no");
    assert_null(json_object_get(format(rig), "choices"));
}

static void truncation_is_told(void **state)
{
    struct rig *rig = *state;
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_LEFT;
    start(rig, "{\"prompt\": \"She said\", \"max_tokens\": 62}");
    give_text(rig, 0, " no");
    assert_int_equal(get_int(format(rig), "truncated"), 1);
}

static void labels_come_back_as_they_were(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"user\": \"\\u0041\", \"model\": \"m\"}");
    give_text(rig, 0, " no");
    format(rig);
    assert_non_null(strstr(rig->line.data, "\"model\":\"m\",\"user\":\"\\u0041\""));
}

/* ---- log-probabilities and echo ---- */

static void logprobs_list_every_generated_token(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"logprobs\": 2}");
    give_text(rig, 0, " no one");
    const json_t *lp = json_object_get(format(rig), "logprobs");
    assert_int_equal(json_object_size(lp), 5);
    assert_string_equal(json_string_value(first_of(lp, "tokens")), " no");
    assert_true(json_real_value(first_of(lp, "token_logprobs")) == -0.5);
    assert_int_equal(json_object_size(first_of(lp, "top_logprobs")), 2);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(lp, "text_offset"), 1)), 3);
    assert_int_equal(json_array_size(json_object_get(lp, "token_ids")), 2);
}

static void logprobs_of_none_beside_the_token_are_empty_objects(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"logprobs\": 0}");
    give_text(rig, 0, " no");
    const json_t *lp = json_object_get(format(rig), "logprobs");
    assert_true(json_is_object(first_of(lp, "top_logprobs")));
    assert_int_equal(json_object_size(first_of(lp, "top_logprobs")), 0);
}

static void echo_puts_the_prompt_in_front_of_text_and_lists(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"She said\", \"echo\": true, \"logprobs\": 1, \"max_tokens\": 4}");
    struct aq_sequence *s = &rig->rec->choices[0].sequence;
    assert_true(s->prompt_logprobs);
    for (uint32_t i = 1; i < s->prompt_count; i++) {
        s->prompt_logprob[i] = -2;
        s->prompt_tops[i] = (struct aq_top){400, -1};
    }
    give_text(rig, 0, " no");
    const json_t *o = format(rig), *lp = json_object_get(o, "logprobs");
    assert_string_equal(get_string(o, "text"), "She said no");
    assert_int_equal(json_array_size(json_object_get(lp, "tokens")), 4);
    assert_string_equal(json_string_value(first_of(lp, "tokens")), "</s>");
    assert_true(json_is_null(first_of(lp, "token_logprobs")));
    assert_true(json_is_null(first_of(lp, "top_logprobs")));
    assert_true(json_real_value(json_array_get(json_object_get(lp, "token_logprobs"), 2)) == -2);
    static const int offsets[] = {0, 0, 3, 8};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(json_integer_value(json_array_get(json_object_get(lp, "text_offset"), i)),
                         offsets[i]);
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), 1); /* never the prompt's */
}

/* Another tokenizer: a SentencePiece model, whose texts begin with a space that is not theirs. */
static void take_model(struct rig *rig)
{
    char dir[TEMP_PATH_MAX], command[3 * PATH_MAX];
    temp_dir(dir, "result");
    snprintf(command, sizeof(command), "%s/tokenizer.model", dir);
    assert_int_equal(symlink(test_data_path("tokenizer-families/llama.model"), command), 0);
    aq_tok_state_close(rig->rules.tok_state);
    aq_tokenizer_close(rig->tokenizer);
    rig->tokenizer = NULL;
    rig->rules.tok_state = NULL;
    assert_int_equal(aq_tokenizer_open(&rig->tokenizer, dir, NULL, NULL), 0);
    assert_int_equal(aq_tok_state_open(&rig->rules.tok_state, rig->tokenizer, NULL), 0);
    temp_remove(dir);
    rig->rules.tokenizer = rig->record_rules.tokenizer = rig->result_rules.tokenizer =
        rig->tokenizer;
    rig->rules.bos_id = 1;
}

static void generated_text_keeps_the_space_behind_its_prompt(void **state)
{
    struct rig *rig = *state;
    take_model(rig);
    start(rig, "{\"prompt\": \"the work\", \"echo\": true, \"logprobs\": 0, \"max_tokens\": 8}");
    give_text(rig, 0, "the"); /* "\u2581the": a word of its own */
    const json_t *o = format(rig), *lp = json_object_get(o, "logprobs");
    assert_string_equal(get_string(o, "text"), "the work the");
    const json_t *offset = json_object_get(lp, "text_offset");
    size_t count = json_array_size(offset);
    assert_true(count >= 4);
    assert_int_equal(json_integer_value(json_array_get(offset, 1)), 0); /* behind BOS */
    assert_int_equal(json_integer_value(json_array_get(offset, 2)), 3);
    assert_int_equal(json_integer_value(json_array_get(offset, count - 1)), 8);
    start(rig, "{\"prompt\": \"the work\", \"max_tokens\": 8}");
    give_text(rig, 0, "the");
    assert_string_equal(get_string(format(rig), "text"), " the");
    start(rig, "{\"prompt\": [1, 261], \"echo\": true, \"max_tokens\": 0}");
    give(rig, 0, NULL, 0);
    assert_int_not_equal(*get_string(format(rig), "text"), ' ');
}

static void byte_tokens_that_are_no_text_become_one_replacement_each(void **state)
{
    struct rig *rig = *state;
    take_model(rig);
    start(rig, "{\"prompt\": \"the\", \"logprobs\": 0, \"max_tokens\": 8}");
    static const uint32_t ids[] = {3 + 0xe4, 3 + 0xbd, 3 + '!', 3 + 0xc3, 3 + 0xa9, 3 + 0xff};
    give(rig, 0, ids, AQ_ARRAY_LEN(ids));
    const json_t *o = format(rig);
    assert_string_equal(get_string(o, "text"), "\xef\xbf\xbd\xef\xbf\xbd!\xc3\xa9\xef\xbf\xbd");
    static const int offsets[] = {0, 1, 2, 3, 4, 4};
    const json_t *offset = json_object_get(json_object_get(o, "logprobs"), "text_offset");
    for (size_t i = 0; i < AQ_ARRAY_LEN(offsets); i++)
        assert_int_equal(json_integer_value(json_array_get(offset, i)), offsets[i]);
}

static void scoring_alone_generates_nothing(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"She said\", \"echo\": true, \"logprobs\": 0, \"max_tokens\": 0}");
    struct aq_sequence *s = &rig->rec->choices[0].sequence;
    s->prompt_logprob[1] = s->prompt_logprob[2] = -3;
    give(rig, 0, NULL, 0);
    const json_t *o = format(rig);
    assert_string_equal(get_string(o, "text"), "She said");
    assert_string_equal(get_string(o, "finish_reason"), "length");
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), 0);
}

static void parts_of_characters_have_names_of_their_own(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"logprobs\": 0}");
    give_text(rig, 0, "\xe2\x82\xac!"); /* a euro sign, in pieces */
    const json_t *lp = json_object_get(format(rig), "logprobs");
    const char *first = json_string_value(first_of(lp, "tokens"));
    assert_int_equal(strncmp(first, "bytes:\\xe2", 10), 0);
    const json_t *offsets = json_object_get(lp, "text_offset");
    size_t count = json_array_size(offsets);
    assert_int_equal(json_integer_value(json_array_get(offsets, 0)), 0);
    assert_int_equal(json_integer_value(json_array_get(offsets, count - 1)), 1); /* "!" */
}

static void a_zero_byte_can_be_a_key_for_every_reader(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"logprobs\": 1, \"max_tokens\": 1}");
    struct aq_ids ids = {0};
    assert_int_equal(aq_tokenizer_encode(rig->tokenizer, rig->rules.tok_state, "\0", 1,
                                         (struct aq_encode_opts){0}, &ids, NULL),
                     0);
    give(rig, 0, ids.item, 1);
    aq_ids_close(&ids);
    const json_t *lp = json_object_get(format(rig), "logprobs");
    assert_non_null(json_object_get(first_of(lp, "top_logprobs"), "bytes:\\x00"));
}

static void a_logprob_that_is_not_finite_is_null(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\", \"logprobs\": 0}");
    give_text(rig, 0, " no");
    rig->rec->choices[0].sequence.logprobs[0] = -INFINITY;
    assert_true(json_is_null(first_of(json_object_get(format(rig), "logprobs"), "token_logprobs")));
}

/* ---- the other forms ---- */

#define BATCH                                                                                      \
    "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "        \
    "{\"prompt\": \"a\", \"metadata\": [1]}}"

static void a_batch_result_has_the_completions_shape(void **state)
{
    struct rig *rig = *state;
    start(rig, BATCH);
    give_text(rig, 0, " no");
    const json_t *o = format(rig), *response = json_object_get(o, "response");
    const json_t *body = json_object_get(response, "body"), *choice = first_of(body, "choices");
    assert_string_equal(get_string(o, "custom_id"), "c");
    assert_true(json_is_null(json_object_get(o, "error")));
    assert_int_equal(get_int(response, "status_code"), 200);
    assert_non_null(get_string(response, "request_id"));
    assert_string_equal(get_string(body, "object"), "text_completion");
    assert_string_equal(get_string(body, "model"), "tiny");
    assert_int_equal(get_int(body, "created"), 1700000000);
    assert_int_equal(get_int(choice, "index"), 0);
    assert_string_equal(get_string(choice, "text"), " no");
    assert_true(json_is_null(json_object_get(choice, "logprobs")));
    assert_int_equal(get_int(json_object_get(body, "usage"), "total_tokens"), 3);
    assert_int_equal(json_array_size(json_object_get(body, "metadata")), 1);
}

static void a_harness_result_repeats_the_request_byte_by_byte(void **state)
{
    struct rig *rig = *state;
    const char *request = "{ \"prompt\":\"a\" ,\"request_type\": \"x\",  \"temperature\": 1e-7}";
    start(rig, request);
    give_text(rig, 0, " no");
    const json_t *o = format(rig);
    assert_int_equal(strncmp(rig->line.data, "{\"request\":", 11), 0);
    assert_int_equal(strncmp(rig->line.data + 11, request, strlen(request)), 0);
    const json_t *choice = first_of(json_object_get(o, "result"), "choices");
    assert_string_equal(get_string(choice, "text"), " no");
    assert_string_equal(get_string(choice, "finish_reason"), "length");
}

static void error_of(struct rig *rig, const char *text)
{
    struct aq_request *r = read_line(rig, text);
    assert_int_not_equal(r->error.code, 0);
    aq_buf_clear(&rig->line);
    json_decref(rig->json);
    assert_int_equal(aq_result_format_error(&rig->line, r, &rig->result_rules, NULL), 0);
    assert_int_equal(aq_json_parse(&rig->json, rig->line.data, rig->line.count, true, NULL), 0);
    aq_request_close(r);
}

static void a_plain_error_says_what_where_and_in_which_line(void **state)
{
    struct rig *rig = *state;
    error_of(rig, "{\"id\": \"a\", \"prompt\": \"a\", \"n\": 0}");
    const json_t *e = json_object_get(rig->json, "error");
    assert_string_equal(get_string(rig->json, "id"), "a");
    assert_int_equal(get_int(rig->json, "index"), 4);
    assert_string_equal(get_string(e, "code"), "invalid_parameter");
    assert_string_equal(get_string(e, "param"), "n");
    assert_int_equal(get_int(e, "line"), 9);
    assert_non_null(get_string(e, "message"));
}

static void a_batch_error_is_told_both_ways(void **state)
{
    struct rig *rig = *state;
    error_of(rig, "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/completions\", "
                  "\"body\": {\"prompt\": \"a\", \"stream\": true}}");
    const json_t *response = json_object_get(rig->json, "response");
    const json_t *inner = json_object_get(json_object_get(response, "body"), "error");
    assert_int_equal(get_int(response, "status_code"), 400);
    assert_string_equal(get_string(inner, "code"), "unsupported_parameter");
    assert_string_equal(get_string(inner, "param"), "stream");
    assert_string_equal(get_string(inner, "type"), "invalid_request_error");
    assert_string_equal(get_string(json_object_get(rig->json, "error"), "code"),
                        "unsupported_parameter");
}

static void assert_mark(struct rig *rig, enum aq_form form, const char *id, uint64_t key,
                        bool error)
{
    struct aq_result_mark m;
    assert_int_equal(aq_result_read(&m, rig->line.data, rig->line.count, NULL), 0);
    assert_int_equal(m.form, form);
    assert_int_equal(m.error, error);
    assert_int_equal(m.key, key);
    assert_int_equal(m.has_id, id != NULL);
    if (id)
        assert_string_equal(m.id, id);
    else if (m.has_index)
        assert_int_equal(m.index, 4);
    else
        assert_int_equal(m.line, 9);
    aq_result_mark_close(&m);
}

/* An index in its place would be joined with another record, or with none. */
static void a_batch_error_without_an_id_has_null_and_its_line(void **state)
{
    struct rig *rig = *state;
    static const char *const lines[] = {
        "{\"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"a\"}}",
        "{\"custom_id\": null, \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {}}",
        "{\"custom_id\": 7, \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {}}"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(lines); i++) {
        error_of(rig, lines[i]);
        const json_t *e = json_object_get(rig->json, "error");
        assert_true(json_is_null(json_object_get(rig->json, "custom_id")));
        assert_string_equal(get_string(e, "code"), "invalid_record");
        assert_string_equal(get_string(e, "param"), "custom_id");
        assert_int_equal(get_int(e, "line"), 9);
        assert_mark(rig, AQ_FORM_BATCH, NULL, XXH3_64bits(lines[i], strlen(lines[i])), true);
    }
}

static void malformed_lines_take_the_form_of_the_first_good_record(void **state)
{
    struct rig *rig = *state;
    error_of(rig, "{broken");
    assert_true(json_is_null(json_object_get(rig->json, "id")));
    rig->result_rules.malformed = AQ_FORM_BATCH;
    error_of(rig, "{broken");
    assert_true(json_is_null(json_object_get(rig->json, "custom_id")));
    assert_int_equal(get_int(json_object_get(rig->json, "error"), "line"), 9);
    rig->result_rules.malformed = AQ_FORM_HARNESS;
    error_of(rig, "{broken");
    assert_true(json_is_null(json_object_get(rig->json, "request")));
}

static void logits_that_are_not_finite_are_an_internal_error(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"a\"}");
    rig->rec->choices[0].sequence.finish = AQ_FINISH_ERROR;
    aq_record_finish(&rig->rec->choices[0].sequence);
    bool error = false;
    assert_int_equal(aq_result_format(&rig->line, rig->rec, &rig->result_rules, &error, NULL), 0);
    assert_true(error);
    assert_non_null(strstr(rig->line.data, "\"code\":\"internal_error\""));
}

/* ---- recognised again ---- */

static void every_form_is_recognised_with_its_key(void **state)
{
    struct rig *rig = *state;
    static const struct {
        const char *text, *id;
        enum aq_form form;
    } cases[] = {{"{\"id\": 17, \"prompt\": \"a\"}", "17", AQ_FORM_PLAIN},
                 {"{\"prompt\": \"a\"}", "4", AQ_FORM_PLAIN},
                 {BATCH, "c", AQ_FORM_BATCH},
                 {"{\"id\": 18446744073709551615, \"prompt\": \"a\"}", "18446744073709551615",
                  AQ_FORM_PLAIN},
                 {"{\"prompt\": \"a\", \"metadata\": [1e400]}", "4", AQ_FORM_PLAIN},
                 {"{\"prompt\": \"a\", \"request_type\": \"x\"}", NULL, AQ_FORM_HARNESS}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        start(rig, cases[i].text);
        give_text(rig, 0, " no");
        format(rig);
        assert_mark(rig, cases[i].form, cases[i].id, rig->rec->request->key, false);
    }
}

static void error_lines_are_recognised_in_every_form(void **state)
{
    struct rig *rig = *state;
    static const enum aq_form forms[] = {AQ_FORM_PLAIN, AQ_FORM_BATCH, AQ_FORM_HARNESS};
    for (size_t i = 0; i < AQ_ARRAY_LEN(forms); i++) {
        rig->result_rules.malformed = forms[i];
        error_of(rig, "{broken");
        assert_mark(rig, forms[i], NULL, XXH3_64bits("{broken", 7), true);
    }
}

static void lines_of_others_are_not_recognised(void **state)
{
    static const char *const lines[] = {
        "{\"id\": \"a\", \"text\": \"x\"}",
        "[]",
        "{\"id\": 1",
        "{\"custom_id\": \"a\", \"id\": 7}",
        "{\"id\": 1, \"index\": 0, \"key\": \"xyz\"}",
        "{\"id\": null, \"index\": 0, \"key\": \"0123456789abcdef\"}"};
    struct aq_result_mark m;
    for (size_t i = 0; i < AQ_ARRAY_LEN(lines); i++)
        assert_int_equal(aq_result_read(&m, lines[i], strlen(lines[i]), NULL), -ENOEXEC);
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)

static const struct CMUnitTest tests[] = {
    T(a_plain_result_has_every_field),
    T(eos_ends_the_text_but_stays_among_the_tokens),
    T(special_tokens_leave_no_text),
    T(a_stop_string_across_tokens_cuts_the_text),
    T(a_stop_string_stays_when_asked_for),
    T(a_stop_string_before_min_tokens_does_not_count),
    T(a_stop_id_is_named),
    T(bytes_that_are_no_text_become_replacement_characters),
    T(several_choices_repeat_the_first_at_the_top),
    T(one_choice_has_no_list),
    T(truncation_is_told),
    T(labels_come_back_as_they_were),
    T(logprobs_list_every_generated_token),
    T(logprobs_of_none_beside_the_token_are_empty_objects),
    T(echo_puts_the_prompt_in_front_of_text_and_lists),
    T(generated_text_keeps_the_space_behind_its_prompt),
    T(byte_tokens_that_are_no_text_become_one_replacement_each),
    T(scoring_alone_generates_nothing),
    T(parts_of_characters_have_names_of_their_own),
    T(a_zero_byte_can_be_a_key_for_every_reader),
    T(a_logprob_that_is_not_finite_is_null),
    T(a_batch_result_has_the_completions_shape),
    T(a_harness_result_repeats_the_request_byte_by_byte),
    T(a_plain_error_says_what_where_and_in_which_line),
    T(a_batch_error_is_told_both_ways),
    T(a_batch_error_without_an_id_has_null_and_its_line),
    T(malformed_lines_take_the_form_of_the_first_good_record),
    T(logits_that_are_not_finite_are_an_internal_error),
    T(every_form_is_recognised_with_its_key),
    T(error_lines_are_recognised_in_every_form),
    T(lines_of_others_are_not_recognised),
};

AQ_TEST_MAIN(tests)
