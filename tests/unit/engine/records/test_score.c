/* SPDX-License-Identifier: Apache-2.0
 * Records that score: how tokens are divided between prompt and continuation, windows of long
 * texts, what is refused, and scores in each form of results. */
#include "engine/records/result.h"

#include "base/json.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { VOCAB = 4096, CONTEXT = 16, BOS = 2, EOS = 3 };

struct rig {
    struct aq_tokenizer *tokenizer;
    struct aq_request_rules rules;
    struct aq_record_rules record_rules;
    struct aq_request *r; /* of the last read_line() */
    struct aq_record *rec;
    struct aq_buf line;
    struct aq_ids ids; /* of the last encode() */
};

static int setup(void **state)
{
    static struct rig rig;
    rig = (struct rig){0};
    struct aq_tokenizer_defaults defaults = {BOS, BOS, 1, true};
    if (aq_tokenizer_open(&rig.tokenizer, test_data_path("tiny-opt"), &defaults, NULL) < 0 ||
        aq_tok_state_open(&rig.rules.tok_state, rig.tokenizer, NULL) < 0)
        return -1;
    rig.rules.tokenizer = rig.tokenizer;
    rig.rules.vocab = VOCAB;
    rig.rules.context = CONTEXT;
    rig.rules.bos_id = rig.rules.prefix_id = BOS;
    rig.rules.adds_bos = true;
    rig.rules.defaults = (struct aq_params){
        .max_tokens = 16, .n = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    rig.record_rules = (struct aq_record_rules){.tokenizer = rig.tokenizer};
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    aq_request_close(rig->r);
    aq_record_close(rig->rec);
    aq_buf_close(&rig->line);
    aq_ids_close(&rig->ids);
    aq_tok_state_close(rig->rules.tok_state);
    aq_tokenizer_close(rig->tokenizer);
    return 0;
}

static struct aq_request *read_line(struct rig *rig, const char *text)
{
    struct aq_line line = {text, strlen(text), .index = 4, .number = 9};
    aq_request_close(rig->r);
    rig->r = NULL;
    assert_int_equal(aq_request_open(&rig->r, &rig->rules, &line, NULL), 0);
    return rig->r;
}

static struct aq_request *read_good(struct rig *rig, const char *text)
{
    struct aq_request *r = read_line(rig, text);
    assert_string_equal(r->error.message, "");
    assert_int_not_equal(r->scoring, AQ_SCORING_NONE);
    return r;
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
    assert_int_equal(aq_request_sequences(r), 0);
}

static const uint32_t *encode(struct rig *rig, const char *text)
{
    rig->ids.count = 0;
    assert_int_equal(aq_tokenizer_encode(rig->tokenizer, rig->rules.tok_state, text, strlen(text),
                                         (struct aq_encode_opts){.parse_special = true}, &rig->ids,
                                         NULL),
                     0);
    return rig->ids.item;
}

/* Its ids are `first` (-1: nothing), those of the context alone, and of the whole text those behind
 * as many; the last are scored. */
static void assert_divided(struct rig *rig, const struct aq_prompt *p, int first,
                           const char *context, const char *whole)
{
    uint32_t ids[64], count = 0, n;
    if (first >= 0)
        ids[count++] = (uint32_t)first;
    const uint32_t *of = encode(rig, context);
    for (n = 0; n < rig->ids.count; n++)
        ids[count++] = of[n];
    of = encode(rig, whole);
    assert_true(rig->ids.count > n);
    assert_int_equal(p->scored, rig->ids.count - n);
    for (; n < rig->ids.count; n++)
        ids[count++] = of[n];
    assert_int_equal(p->count + p->max_tokens, count);
    assert_memory_equal(p->ids, ids, count * sizeof(*ids));
}

/* ---- prompt and continuation ---- */

static void a_continuation_is_what_the_whole_text_has_behind_the_prompt(void **state)
{
    struct rig *rig = *state;
    struct aq_request *r =
        read_good(rig, "{\"id\": 1, \"prompt\": \"She said\", \"continuation\": \" nothing\"}");
    assert_int_equal(r->prompt_count, 1);
    assert_false(r->scores_list);
    assert_divided(rig, &r->prompts[0], BOS, "She said", "She said nothing");
    assert_int_equal(r->prompts[0].max_tokens, 1); /* the others are prefilled */
}

static void white_space_at_the_prompts_end_goes_with_the_continuation(void **state)
{
    struct rig *rig = *state;
    static const char *const lines[] = {
        "{\"prompt\": \"She said \", \"continuation\": \"nothing\"}",
        "{\"prompt\": \"She said\\n \\t\", \"continuation\": \"nothing\"}",
        "{\"prompt\": \"She said\\u00a0\\u2003\", \"continuation\": \"nothing\"}",
    };
    static const char *const whole[] = {"She said nothing", "She said\n \tnothing",
                                        "She said\xc2\xa0\xe2\x80\x83nothing"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(lines); i++)
        assert_divided(rig, &read_good(rig, lines[i])->prompts[0], BOS, "She said", whole[i]);
}

static void the_prompt_keeps_its_own_tokens_where_both_would_join(void **state)
{
    struct rig *rig = *state;
    struct aq_request *r =
        read_good(rig, "{\"prompt\": \"She sa\", \"continuation\": \"id nothing at all\"}");
    assert_divided(rig, &r->prompts[0], BOS, "She sa", "She said nothing at all");
    encode(rig, "She said nothing at all");
    assert_memory_not_equal(r->prompts[0].ids + 1, rig->ids.item,
                            (r->prompts[0].count - 1) * sizeof(uint32_t));
}

static void lists_and_choices_are_scored_one_by_one(void **state)
{
    struct rig *rig = *state;
    static const char *const names[] = {"continuation", "choices"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        char line[128];
        snprintf(line, sizeof(line), "{\"prompt\": \"She\", \"%s\": [\" said\", \" was gone\"]}",
                 names[i]);
        struct aq_request *r = read_good(rig, line);
        assert_true(r->scores_list);
        assert_int_equal(aq_request_sequences(r), 2);
        assert_divided(rig, &r->prompts[0], BOS, "She", "She said");
        assert_divided(rig, &r->prompts[1], BOS, "She", "She was gone");
    }
    assert_true(read_good(rig, "{\"prompt\": \"a\", \"choices\": [\" b\"]}")->scores_list);
}

static void ids_are_taken_as_they_are(void **state)
{
    struct rig *rig = *state;
    static const uint32_t first[] = {5, 6, 7, 8}, second[] = {5, 6, 9};
    struct aq_request *r = read_good(rig, "{\"prompt\": [5, 6], \"continuation\": [[7, 8], [9]]}");
    assert_int_equal(r->prompts[0].scored, 2);
    assert_memory_equal(r->prompts[0].ids, first, sizeof(first));
    assert_int_equal(r->prompts[1].scored, 1);
    assert_memory_equal(r->prompts[1].ids, second, sizeof(second));
    r = read_good(rig, "{\"prompt\": [5, 6], \"continuation\": [7, 8]}");
    assert_false(r->scores_list);
    assert_memory_equal(r->prompts[0].ids, first, sizeof(first));
}

static void arguments_are_context_and_continuation_without_bos(void **state)
{
    struct rig *rig = *state;
    static const char line[] = "{\"request_type\": \"loglikelihood\", \"arguments\": "
                               "[\"She said\", \" nothing\"], \"idx\": 0}";
    struct aq_request *r = read_good(rig, line);
    assert_int_equal(r->form, AQ_FORM_HARNESS);
    assert_string_equal(r->echo_request, line);
    assert_divided(rig, &r->prompts[0], -1, "She said", "She said nothing");
    rig->rules.bos = AQ_BOS_ALWAYS;
    assert_divided(rig, &read_good(rig, line)->prompts[0], BOS, "She said", "She said nothing");
}

static void an_empty_prompt_is_bos_or_eos(void **state)
{
    struct rig *rig = *state;
    static const char line[] =
        "{\"request_type\": \"loglikelihood\", \"arguments\": [\" \", \"She said\"]}";
    assert_divided(rig, &read_good(rig, line)->prompts[0], BOS, "", " She said");
    rig->rules.prefix_id = EOS;
    assert_int_equal(
        read_good(rig, "{\"prompt\": [], \"continuation\": [7, 8]}")->prompts[0].ids[0], EOS);
    struct aq_prompt *p = read_good(rig, "{\"prompt\": [], \"continuation\": [3, 8]}")->prompts;
    assert_int_equal(p->ids[0], EOS); /* which the continuation brings along */
    assert_int_equal(p->scored, 1);
    rig->rules.prefix_id = -1;
    assert_refused(rig, line, AQ_RECORD_EMPTY_PROMPT, "arguments");
}

/* ---- what is prefilled and what is fed ---- */

struct asked {
    uint32_t prompt, count;
    bool answer;
};

static bool feeds(const void *user, uint32_t prompt, uint32_t count)
{
    struct asked *asked = (struct asked *)user;
    asked->prompt = prompt;
    asked->count = count;
    return asked->answer;
}

static void what_the_cache_would_lose_is_fed_token_by_token(void **state)
{
    struct rig *rig = *state;
    struct asked asked = {.answer = true};
    static const char line[] = "{\"prompt\": [5, 6, 7], \"continuation\": [8, 9, 10, 11]}";
    rig->rules.feeds = feeds;
    rig->rules.feeds_user = &asked;
    const struct aq_prompt *p = read_good(rig, line)->prompts;
    assert_int_equal(asked.prompt, 3);
    assert_int_equal(asked.count, 4);
    assert_int_equal(p->count, 3);
    assert_int_equal(p->max_tokens, 4);
    asked.answer = false;
    p = read_good(rig, line)->prompts;
    assert_int_equal(p->count, 6); /* the last token is predicted, and no more */
    assert_int_equal(p->max_tokens, 1);
    assert_int_equal(p->scored, 4);
}

/* ---- texts ---- */

static void a_long_text_is_read_through_windows_of_the_context(void **state)
{
    struct rig *rig = *state;
    char line[512];
    int at = snprintf(line, sizeof(line),
                      "{\"request_type\": \"loglikelihood_rolling\", "
                      "\"arguments\": [[");
    for (int i = 0; i < 2 * CONTEXT + 3; i++)
        at += snprintf(line + at, sizeof(line) - (size_t)at, "%s%d", i ? "," : "", 100 + i);
    snprintf(line + at, sizeof(line) - (size_t)at, "]]}");
    struct aq_request *r = read_good(rig, line);
    assert_int_equal(r->prompt_count, 3);
    assert_int_equal(r->prompts[0].ids[0], BOS);
    for (uint32_t i = 0; i < 3; i++) {
        const struct aq_prompt *p = &r->prompts[i];
        uint32_t total = p->count + p->max_tokens;
        assert_int_equal(total, CONTEXT + 1);
        assert_int_equal(p->scored, i < 2 ? CONTEXT : 3);
        /* The windows' scored tokens follow one another. */
        assert_int_equal(p->ids[total - 1], i < 2 ? 100 + (i + 1) * CONTEXT - 1 : 100 + 34);
    }
    r = read_good(rig, "{\"request_type\": \"loglikelihood_rolling\", \"arguments\": [\"She\"]}");
    assert_int_equal(r->prompt_count, 1);
    assert_divided(rig, &r->prompts[0], BOS, "", "She");
}

/* ---- what is refused ---- */

static void records_that_cannot_be_scored_say_why(void **state)
{
    struct rig *rig = *state;
    static const struct {
        const char *line, *param;
        enum aq_record_code code;
    } bad[] = {
        {"{\"prompt\": \"a\", \"continuation\": \"\"}", "continuation",
         AQ_RECORD_EMPTY_CONTINUATION},
        {"{\"prompt\": \"a\", \"continuation\": [\" b\", \"\"]}", "continuation",
         AQ_RECORD_EMPTY_CONTINUATION},
        {"{\"prompt\": \"She sa\", \"continuation\": \"id\"}", "continuation",
         AQ_RECORD_EMPTY_CONTINUATION},
        {"{\"prompt\": [5], \"continuation\": [[]]}", "continuation", AQ_RECORD_EMPTY_CONTINUATION},
        {"{\"prompt\": \"a\", \"continuation\": []}", "continuation", AQ_RECORD_INVALID_RECORD},
        {"{\"prompt\": \"a\", \"continuation\": 7}", "continuation", AQ_RECORD_INVALID_RECORD},
        {"{\"prompt\": \"a\", \"continuation\": [7]}", "continuation", AQ_RECORD_INVALID_RECORD},
        {"{\"prompt\": [7], \"continuation\": \"a\"}", "continuation", AQ_RECORD_INVALID_RECORD},
        {"{\"prompt\": [7], \"continuation\": [4096]}", "continuation",
         AQ_RECORD_TOKEN_OUT_OF_RANGE},
        {"{\"prompt\": [4096], \"continuation\": [7]}", "prompt", AQ_RECORD_TOKEN_OUT_OF_RANGE},
        {"{\"prompt\": \"a\", \"choices\": \"b\"}", "choices", AQ_RECORD_INVALID_RECORD},
        {"{\"prompt\": \"a\", \"choices\": {\"text\": [\"b\"]}}", "choices",
         AQ_RECORD_INVALID_RECORD},
        {"{\"prompt\": \"a\", \"choices\": [\" b\"], \"continuation\": \" c\"}", "choices",
         AQ_RECORD_INVALID_RECORD},
        {"{\"prompt\": [\"a\", \"b\"], \"choices\": [\" b\"]}", "prompt", AQ_RECORD_INVALID_RECORD},
        {"{\"continuation\": \" b\"}", "prompt", AQ_RECORD_INVALID_RECORD},
        {"{\"prompt\": \"a\", \"continuation\": \" b\", \"max_tokens\": 5}", "max_tokens",
         AQ_RECORD_INVALID_PARAMETER},
        {"{\"messages\": [], \"continuation\": \" b\"}", "messages",
         AQ_RECORD_UNSUPPORTED_PARAMETER},
        {"{\"request_type\": \"loglikelihood\"}", "arguments", AQ_RECORD_INVALID_RECORD},
        {"{\"request_type\": \"loglikelihood\", \"arguments\": [\"a\"]}", "arguments",
         AQ_RECORD_INVALID_RECORD},
        {"{\"request_type\": \"loglikelihood\", \"arguments\": [\"a\", \"\"]}", "arguments",
         AQ_RECORD_EMPTY_CONTINUATION},
        {"{\"request_type\": \"loglikelihood_rolling\", \"arguments\": [\"\"]}", "arguments",
         AQ_RECORD_EMPTY_PROMPT},
        {"{\"request_type\": \"loglikelihood_rolling\", \"arguments\": [\"a\"], \"logprobs\": 1}",
         "logprobs", AQ_RECORD_UNSUPPORTED_PARAMETER},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(bad); i++)
        assert_refused(rig, bad[i].line, bad[i].code, bad[i].param);
}

/* `prompt` and `scored` ids. */
static const char *of_lengths(uint32_t prompt, uint32_t scored)
{
    static char line[1024];
    int at = snprintf(line, sizeof(line), "{\"prompt\": [%d", BOS);
    for (uint32_t i = 1; i < prompt; i++)
        at += snprintf(line + at, sizeof(line) - (size_t)at, ",%u", 100 + i);
    at += snprintf(line + at, sizeof(line) - (size_t)at, "], \"continuation\": [200");
    for (uint32_t i = 1; i < scored; i++)
        at += snprintf(line + at, sizeof(line) - (size_t)at, ",%u", 200 + i);
    snprintf(line + at, sizeof(line) - (size_t)at, "]}");
    return line;
}

static void one_token_more_than_the_context_can_be_scored(void **state)
{
    struct rig *rig = *state;
    read_good(rig, of_lengths(10, CONTEXT + 1 - 10));
    assert_refused(rig, of_lengths(11, CONTEXT + 1 - 10), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED,
                   "continuation");
    assert_non_null(strstr(rig->r->error.message, "prompt 11 tokens, continuation 7, context 16"));
    rig->rules.overlong = AQ_OVERLONG_CLIP; /* would be the score of something else */
    assert_refused(rig, of_lengths(11, CONTEXT + 1 - 10), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED,
                   "continuation");
}

static void a_prompt_is_cut_and_a_continuation_is_not(void **state)
{
    struct rig *rig = *state;
    static const uint32_t left[] = {BOS, 108, 109, 200, 201}, right[] = {BOS, 101, 102, 200, 201};
    rig->rules.context = 4;
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_LEFT;
    const struct aq_prompt *p = read_good(rig, of_lengths(10, 2))->prompts;
    assert_int_equal(p->dropped, 7);
    assert_int_equal(p->count + p->max_tokens, 5);
    assert_memory_equal(p->ids, left, sizeof(left));
    assert_refused(rig, of_lengths(10, 5), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, "continuation");
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_RIGHT;
    assert_memory_equal(read_good(rig, of_lengths(10, 2))->prompts[0].ids, right, sizeof(right));
}

/* Where a context goes on behind the positions of the model, a prompt does not, nor a window. */
static void what_is_attended_whole_has_room_for_itself(void **state)
{
    struct rig *rig = *state;
    rig->rules.prompt_max = 10;
    read_good(rig, of_lengths(10, CONTEXT + 1 - 10));
    rig->rules.prompt_max = 9;
    assert_refused(rig, of_lengths(10, 2), AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, "continuation");
    assert_non_null(strstr(rig->r->error.message, "exceeds the positions that the model knows"));
    rig->rules.overlong = AQ_OVERLONG_TRUNCATE_LEFT;
    assert_int_equal(read_good(rig, of_lengths(10, 2))->prompts[0].dropped, 1);
    rig->rules.prompt_max = 2;
    assert_int_equal(read_good(rig, "{\"request_type\": \"loglikelihood_rolling\", "
                                    "\"arguments\": [[7, 8, 9, 10]]}")
                         ->prompt_count,
                     2);
}

/* ---- the key ---- */

static uint64_t key_of(struct rig *rig, const char *text)
{
    return read_good(rig, text)->key;
}

static void the_key_depends_on_what_is_scored_only(void **state)
{
    struct rig *rig = *state;
    uint64_t key = key_of(rig, "{\"prompt\": \"a\", \"continuation\": \" b\"}");
    assert_int_equal(
        key_of(rig, "{\"prompt\": \"a\", \"continuation\": \" b\", \"temperature\": 0.5}"), key);
    rig->rules.defaults.seed = 5;
    assert_int_equal(key_of(rig, "{\"prompt\": \"a\", \"continuation\": \" b\"}"), key);
    static const char *const others[] = {
        "{\"prompt\": \"a\", \"continuation\": \" c\"}",
        "{\"prompt\": \"a\", \"continuation\": [\" b\"]}",
        "{\"prompt\": \"c\", \"continuation\": \" b\"}",
        "{\"prompt\": \"a\", \"continuation\": \" b\", \"logprobs\": 1}",
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(others); i++)
        assert_int_not_equal(key_of(rig, others[i]), key);
}

/* ---- results ---- */

/* What an engine does: the k-th scored token of a choice gets -(k + 1) / 2, and is the best one
 * where `greedy` says so. */
static void give(struct aq_choice *c, bool greedy)
{
    struct aq_sequence *s = &c->sequence;
    uint32_t k = 0;
    for (uint32_t i = s->prompt_from; s->prompt_logprobs && i < s->prompt_count; i++, k++) {
        s->prompt_logprob[k] = -0.5f * (float)(k + 1);
        for (int t = 0; t < s->top_count; t++)
            s->prompt_tops[k * (uint32_t)s->top_count + (uint32_t)t] =
                (struct aq_top){s->prompt[i] + (uint32_t)t, -1 - (float)t};
    }
    for (uint32_t i = 0; i < s->max_tokens; i++, k++) {
        s->logprobs[i] = -0.5f * (float)(k + 1);
        s->tokens[s->token_count++] = s->forced[i];
        for (int t = 0; t < s->top_count; t++)
            s->tops[i * (uint32_t)s->top_count + (uint32_t)t] =
                (struct aq_top){s->forced[i] + (uint32_t)t + !greedy, -1 - (float)t};
    }
    s->finish = AQ_FINISH_LENGTH;
    assert_ptr_equal(aq_record_finish(s), c);
}

static void start(struct rig *rig, const char *text)
{
    struct aq_request *r = read_good(rig, text);
    rig->r = NULL;
    aq_record_close(rig->rec);
    rig->rec = NULL;
    uint64_t most = aq_record_bytes(r);
    assert_int_equal(aq_record_open(&rig->rec, r, &rig->record_rules, NULL), 0);
    assert_true(rig->rec->bytes <= most);
}

static const char *format(struct rig *rig)
{
    const struct aq_result_rules rules = {
        .tokenizer = rig->tokenizer, .model = "tiny", .created = 1700000000};
    aq_buf_clear(&rig->line);
    assert_int_equal(aq_result_format(&rig->line, rig->rec, &rules, NULL, NULL), 0);
    struct aq_result_mark m;
    assert_int_equal(aq_result_read(&m, rig->line.data, rig->line.count, NULL), 0);
    assert_int_equal(m.key, rig->rec->request->key);
    aq_result_mark_close(&m);
    return rig->line.data;
}

static void assert_result(struct rig *rig, const char *head, const char *rest)
{
    char want[1024];
    snprintf(want, sizeof(want), "%s%016llx%s", head, (unsigned long long)rig->rec->request->key,
             rest);
    assert_string_equal(format(rig), want);
}

static void a_plain_score_has_its_sum_and_number(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": \"a\", \"prompt\": [5, 6, 7], \"continuation\": [8, 9, 10]}");
    give(&rig->rec->choices[0], true);
    assert_result(rig, "{\"id\":\"a\",\"index\":4,\"key\":\"",
                  "\",\"loglikelihood\":-3.0,\"is_greedy\":true,\"tokens\":3,\"usage\":{"
                  "\"prompt_tokens\":6,\"completion_tokens\":0,\"total_tokens\":6}}");
}

static void scores_are_the_same_however_tokens_were_read(void **state)
{
    struct rig *rig = *state;
    struct asked asked = {.answer = true};
    static const char line[] =
        "{\"prompt\": [5, 6, 7], \"continuation\": [8, 9, 10], \"logprobs\": 2}";
    start(rig, line);
    give(&rig->rec->choices[0], true);
    char *prefilled = strdup(format(rig));
    rig->rules.feeds = feeds;
    rig->rules.feeds_user = &asked;
    start(rig, line);
    assert_int_equal(rig->rec->choices[0].sequence.max_tokens, 3);
    give(&rig->rec->choices[0], true);
    assert_string_equal(format(rig), prefilled);
    free(prefilled);
}

static void a_list_repeats_its_first_score_at_the_top(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": [5, 6], \"continuation\": [[7, 8], [9]], \"metadata\": 1}");
    give(&rig->rec->choices[1], false);
    give(&rig->rec->choices[0], true);
    assert_result(
        rig, "{\"id\":4,\"index\":4,\"key\":\"",
        "\",\"loglikelihood\":-1.5,\"is_greedy\":true,\"tokens\":2,\"usage\":{"
        "\"prompt_tokens\":7,\"completion_tokens\":0,\"total_tokens\":7},\"choices\":["
        "{\"index\":0,\"loglikelihood\":-1.5,\"is_greedy\":true,\"tokens\":2},"
        "{\"index\":1,\"loglikelihood\":-0.5,\"is_greedy\":false,\"tokens\":1}],\"metadata\":1}");
}

static void logprobs_list_the_scored_tokens(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"prompt\": \"She\", \"continuation\": \" said nothing\", \"logprobs\": 1}");
    const struct aq_prompt *p = rig->rec->choices[0].prompt;
    uint32_t said = p->ids[2], nothing = p->ids[3];
    give(&rig->rec->choices[0], true);
    char want[512];
    snprintf(want, sizeof(want),
             ",\"logprobs\":{\"tokens\":[\" said\",\" nothing\"],\"token_ids\":[%u,%u],"
             "\"token_logprobs\":[-0.5,-1.0],\"top_logprobs\":[{\" said\":-1.0},{\" nothing\":"
             "-1.0}],\"text_offset\":[0,5]}",
             said, nothing);
    if (!strstr(format(rig), want))
        fail_msg("expected %s in %s", want, rig->line.data);
}

static void a_harness_score_repeats_its_request(void **state)
{
    struct rig *rig = *state;
    static const char line[] = "{\"request_type\": \"loglikelihood\",  \"arguments\": [\"She\", "
                               "\" said\"]}";
    start(rig, line);
    give(&rig->rec->choices[0], false);
    char head[512];
    snprintf(head, sizeof(head),
             "{\"request\":%s,\"result\":{\"loglikelihood\":-0.5,\"is_greedy\":false,\"tokens\":1,"
             "\"choices\":[{\"index\":0,\"loglikelihood\":-0.5,\"is_greedy\":false,"
             "\"tokens\":1}]},\"index\":4,\"key\":\"",
             line);
    assert_result(rig, head, "\"}");
}

static void a_rolling_score_is_the_sum_of_its_windows(void **state)
{
    struct rig *rig = *state;
    rig->rules.context = 2;
    start(rig, "{\"request_type\": \"loglikelihood_rolling\", \"arguments\": [[7, 8, 9]]}");
    assert_int_equal(rig->rec->choice_count, 2);
    give(&rig->rec->choices[0], true);
    give(&rig->rec->choices[1], true);
    const char *line = format(rig);
    assert_non_null(strstr(line, "\"result\":{\"loglikelihood\":-2.0,\"is_greedy\":true,"
                                 "\"tokens\":3,\"choices\":[{\"index\":0,\"loglikelihood\":-2.0,"
                                 "\"is_greedy\":true,\"tokens\":3}]}"));
}

static void a_batch_score_has_the_completions_shape(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/completions\", "
               "\"body\": {\"prompt\": \"She\", \"choices\": [\" said\", \" was\"]}}");
    give(&rig->rec->choices[0], true);
    give(&rig->rec->choices[1], false);
    const char *line = format(rig);
    assert_non_null(
        strstr(line, "\"choices\":[{\"index\":0,\"text\":\" said\",\"logprobs\":null,"
                     "\"finish_reason\":\"length\",\"stop_reason\":null,\"loglikelihood\":-0.5,"
                     "\"is_greedy\":true,\"tokens\":1},{\"index\":1,\"text\":\" was\","));
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)

static const struct CMUnitTest tests[] = {
    T(a_continuation_is_what_the_whole_text_has_behind_the_prompt),
    T(white_space_at_the_prompts_end_goes_with_the_continuation),
    T(the_prompt_keeps_its_own_tokens_where_both_would_join),
    T(lists_and_choices_are_scored_one_by_one),
    T(ids_are_taken_as_they_are),
    T(arguments_are_context_and_continuation_without_bos),
    T(an_empty_prompt_is_bos_or_eos),
    T(what_the_cache_would_lose_is_fed_token_by_token),
    T(a_long_text_is_read_through_windows_of_the_context),
    T(records_that_cannot_be_scored_say_why),
    T(one_token_more_than_the_context_can_be_scored),
    T(a_prompt_is_cut_and_a_continuation_is_not),
    T(what_is_attended_whole_has_room_for_itself),
    T(the_key_depends_on_what_is_scored_only),
    T(a_plain_score_has_its_sum_and_number),
    T(scores_are_the_same_however_tokens_were_read),
    T(a_list_repeats_its_first_score_at_the_top),
    T(logprobs_list_the_scored_tokens),
    T(a_harness_score_repeats_its_request),
    T(a_rolling_score_is_the_sum_of_its_windows),
    T(a_batch_score_has_the_completions_shape),
};

AQ_TEST_MAIN(tests)
