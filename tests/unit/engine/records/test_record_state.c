/* SPDX-License-Identifier: Apache-2.0
 * How far a record has come, out as bytes and into a fresh record of the same request. */
#include "engine/records/record_state.h"

#include "engine/records/result.h"
#include "engine/tokenizer/token_text.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { VOCAB = 4096, EOS = 2 };

struct rig {
    struct aq_tokenizer *tokenizer;
    struct aq_request_rules rules;
    struct aq_record_rules record_rules;
    struct aq_result_rules result_rules;
    struct aq_record *was, *now;
    struct aq_buf state;
};

static const uint32_t eos_ids[] = {EOS};

static int setup(void **state)
{
    static struct rig rig;
    rig = (struct rig){0};
    struct aq_tokenizer_defaults defaults = {EOS, EOS, 1, true};
    if (aq_tokenizer_open(&rig.tokenizer, test_data_path("tiny-opt"), &defaults, NULL) < 0 ||
        aq_tok_state_open(&rig.rules.tok_state, rig.tokenizer, NULL) < 0)
        return -1;
    rig.rules.tokenizer = rig.tokenizer;
    rig.rules.vocab = VOCAB;
    rig.rules.context = 64;
    rig.rules.bos_id = EOS;
    rig.rules.adds_bos = true;
    rig.rules.defaults = (struct aq_params){
        .max_tokens = 8, .n = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    rig.record_rules =
        (struct aq_record_rules){rig.tokenizer, eos_ids, 1, .id_end = VOCAB, .vocab = VOCAB + 8};
    rig.result_rules = (struct aq_result_rules){rig.tokenizer, "tiny", AQ_FORM_NONE, 1700000000};
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    aq_record_close(rig->was);
    aq_record_close(rig->now);
    aq_buf_close(&rig->state);
    aq_tok_state_close(rig->rules.tok_state);
    aq_tokenizer_close(rig->tokenizer);
    return 0;
}

static struct aq_record *open_record(struct rig *rig, const char *text)
{
    struct aq_request *r;
    struct aq_record *rec;
    struct aq_line line = {text, strlen(text), .index = 4, .number = 9,
                           .hash = XXH3_64bits(text, strlen(text))};
    assert_int_equal(aq_request_open(&r, &rig->rules, &line, NULL), 0);
    assert_string_equal(r->error.message, "");
    assert_int_equal(aq_record_open(&rec, r, &rig->record_rules, NULL), 0);
    return rec;
}

static void start(struct rig *rig, const char *text)
{
    aq_record_close(rig->was);
    aq_record_close(rig->now);
    rig->was = open_record(rig, text);
    rig->now = open_record(rig, text);
    aq_buf_clear(&rig->state);
}

static void score_prompt(struct aq_sequence *s)
{
    for (uint32_t i = s->prompt_from; s->prompt_logprobs && i < s->prompt_count; i++) {
        uint32_t at = i - s->prompt_from;
        s->prompt_logprob[at] = -0.125f * (float)i;
        for (int k = 0; k < s->top_count; k++)
            s->prompt_tops[(int)at * s->top_count + k] = (struct aq_top){i + (uint32_t)k, -1 - k};
    }
}

/* What the engine does with a choice: given tokens, then these, until somebody says stop. */
static void give(struct aq_record *rec, uint32_t choice, const uint32_t *ids, uint32_t count)
{
    struct aq_sequence *s = &rec->choices[choice].sequence;
    if (!s->token_count) {
        score_prompt(s);
        s->token_count = s->given_count;
    }
    for (uint32_t i = 0; i < count && s->finish == AQ_FINISH_NONE; i++) {
        uint32_t at = s->token_count;
        if (s->top_count >= 0)
            s->logprobs[at] = -0.5f * (float)(at + 1);
        for (int k = 0; k < s->top_count; k++)
            s->tops[(int)at * s->top_count + k] = (struct aq_top){ids[i] + (uint32_t)k, -1 - k};
        s->tokens[s->token_count++] = ids[i];
        if (ids[i] == EOS) {
            s->finish = AQ_FINISH_STOP_ID;
            s->finish_id = EOS;
        } else if (s->on_token && s->on_token(s)) {
            s->finish = AQ_FINISH_CALLER;
        } else if (s->token_count == s->max_tokens) {
            s->finish = AQ_FINISH_LENGTH;
        }
    }
    if (s->finish != AQ_FINISH_NONE)
        aq_record_finish(s);
}

/* A token of some letters, to make a stop string of; its text goes behind `text`. */
static uint32_t letters(const struct rig *rig, uint32_t from, char *text)
{
    for (uint32_t id = from;; id++) {
        size_t bytes;
        const char *piece = aq_token_text(rig->tokenizer, id, &bytes);
        bool plain = bytes > 1 && bytes < 16;
        for (size_t i = 0; plain && i < bytes; i++)
            plain = piece[i] >= 'a' && piece[i] <= 'z';
        if (plain) {
            strncat(text, piece, bytes);
            return id;
        }
    }
}

static uint64_t keep(struct rig *rig)
{
    aq_record_know(rig->was);
    return aq_record_state_put(&rig->state, rig->was);
}

static bool take(struct rig *rig)
{
    return aq_record_state_take(rig->now, rig->state.data, rig->state.count);
}

static void assert_same_results(struct rig *rig)
{
    struct aq_buf a = {0}, b = {0};
    assert_true(aq_record_done(rig->was) && aq_record_done(rig->now));
    assert_int_equal(aq_result_format(&a, rig->was, &rig->result_rules, NULL, NULL), 0);
    assert_int_equal(aq_result_format(&b, rig->now, &rig->result_rules, NULL, NULL), 0);
    assert_string_equal(a.data, b.data);
    aq_buf_close(&a);
    aq_buf_close(&b);
}

static void a_record_goes_on_from_its_tokens(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 5, \"logprobs\": 2}");
    give(rig->was, 0, (const uint32_t[]){100, 200, 300}, 3);
    assert_int_equal(keep(rig), 3);
    assert_true(take(rig));
    struct aq_sequence *s = &rig->now->choices[0].sequence;
    assert_int_equal(s->given_count, 3);
    assert_int_equal(s->token_count, 0); /* the engine counts them as they are fed */
    assert_int_equal(s->finish, AQ_FINISH_NONE);
    give(rig->was, 0, (const uint32_t[]){400, 500}, 2);
    give(rig->now, 0, (const uint32_t[]){400, 500}, 2);
    assert_same_results(rig);
}

static void what_is_not_fed_yet_is_kept_again(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 5}");
    give(rig->was, 0, (const uint32_t[]){100, 200, 300}, 3);
    assert_int_equal(keep(rig), 3);
    assert_true(take(rig));
    struct aq_buf again = {0};
    assert_int_equal(aq_record_state_put(&again, rig->now), 3); /* no pass has run */
    aq_record_know(rig->now);
    assert_int_equal(aq_record_state_put(&again, rig->now), 3);
    assert_int_equal(again.count, 2 * rig->state.count);
    assert_memory_equal(again.data, rig->state.data, rig->state.count);
    aq_buf_close(&again);
}

static void tokens_of_a_pass_that_runs_are_left_out(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 5}");
    give(rig->was, 0, (const uint32_t[]){100, 200}, 2);
    aq_record_know(rig->was);
    give(rig->was, 0, (const uint32_t[]){300}, 1);
    assert_int_equal(aq_record_state_put(&rig->state, rig->was), 2);
}

static void a_record_without_tokens_is_not_worth_keeping(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 5}");
    assert_int_equal(keep(rig), 0);
    assert_int_equal(rig->state.count, 0);
}

static void choices_that_have_ended_are_not_done_again(void **state)
{
    struct rig *rig = *state;
    char stop[64] = "", line[256];
    uint32_t sea = letters(rig, 1000, stop), house = letters(rig, 1500, stop);
    snprintf(line, sizeof(line),
             "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 6, \"n\": 4, \"logprobs\": 1, "
             "\"temperature\": 1, \"echo\": true, \"stop\": \"%s\"}",
             stop);
    start(rig, line);
    give(rig->was, 0, (const uint32_t[]){100, sea, house}, 3); /* the stop string */
    give(rig->was, 1, (const uint32_t[]){100, 101, EOS}, 3);
    give(rig->was, 2, (const uint32_t[]){1, 3, 5, 7, 9, 11}, 6);
    give(rig->was, 3, (const uint32_t[]){100, sea}, 2);
    assert_int_equal(keep(rig), 3 + 3 + 6 + 2);
    assert_true(take(rig));
    for (uint32_t i = 0; i < 3; i++)
        assert_true(rig->now->choices[i].ended);
    assert_false(rig->now->choices[3].ended);
    /* The stop string goes on over the stop. */
    give(rig->was, 3, &house, 1);
    give(rig->now, 3, &house, 1);
    assert_int_equal(rig->now->choices[3].sequence.finish, AQ_FINISH_CALLER);
    assert_same_results(rig);
}

static void a_choice_that_failed_makes_its_record_begin_again(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": 1, \"prompt\": \"The old\", \"n\": 2, \"temperature\": 1}");
    give(rig->was, 0, (const uint32_t[]){100}, 1);
    rig->was->choices[1].sequence.finish = AQ_FINISH_ERROR;
    aq_record_finish(&rig->was->choices[1].sequence);
    assert_int_equal(keep(rig), 0);
}

/* The record is as if nothing had been tried. */
static void assert_fresh(struct rig *rig)
{
    for (uint32_t i = 0; i < rig->now->choice_count; i++) {
        const struct aq_choice *c = &rig->now->choices[i];
        assert_int_equal(c->sequence.given_count, 0);
        assert_int_equal(c->sequence.finish, AQ_FINISH_NONE);
        assert_int_equal(c->stop.bytes, 0);
        assert_false(c->ended || c->known);
    }
    assert_int_equal(rig->now->finished_count, 0);
}

static void bytes_that_are_no_state_of_the_record_are_refused(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 6, \"n\": 2, \"logprobs\": 1, "
               "\"temperature\": 1, \"stop\": \" sea house\"}");
    give(rig->was, 0, (const uint32_t[]){100, 101, EOS}, 3);
    give(rig->was, 1, (const uint32_t[]){102, 103}, 2);
    assert_int_equal(keep(rig), 5);
    size_t whole = rig->state.count;
    for (rig->state.count = 0; rig->state.count < whole; rig->state.count++) {
        assert_false(take(rig));
        assert_fresh(rig);
    }
    unsigned refused = 0;
    for (size_t i = 0; i < 8 * whole; i++) { /* every bit; probabilities may be any */
        char *byte = &rig->state.data[i / 8];
        *byte ^= (char)(1 << i % 8);
        if (take(rig)) {
            aq_record_close(rig->now);
            rig->now = open_record(rig, "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 6, "
                                        "\"n\": 2, \"logprobs\": 1, \"temperature\": 1, "
                                        "\"stop\": \" sea house\"}");
        } else {
            refused++;
            assert_fresh(rig);
        }
        *byte ^= (char)(1 << i % 8);
    }
    assert_true(refused > 300); /* the heads, but for ids that are others' */
    assert_true(take(rig));
}

/* Keeps the record as it is now, and opens a fresh one. */
static void start_again(struct rig *rig)
{
    static const char line[] = "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 2, \"n\": 2, "
                               "\"logprobs\": 2, \"temperature\": 1, \"echo\": true}";
    aq_record_close(rig->now);
    rig->now = open_record(rig, line);
    aq_buf_clear(&rig->state);
    assert_int_equal(aq_record_state_put(&rig->state, rig->was), 3);
}

static void tokens_that_end_a_choice_are_not_gone_on_from(void **state)
{
    struct rig *rig = *state;
    static const char line[] = "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 6}";
    start(rig, line);
    give(rig->was, 0, (const uint32_t[]){100, 101}, 2);
    struct aq_sequence *s = &rig->was->choices[0].sequence;
    aq_record_know(rig->was);
    const uint32_t wrong[] = {EOS, VOCAB, UINT32_MAX};
    for (size_t i = 0; i < AQ_ARRAY_LEN(wrong); i++) {
        aq_buf_clear(&rig->state);
        s->tokens[0] = wrong[i];
        assert_int_equal(aq_record_state_put(&rig->state, rig->was), 2);
        assert_false(take(rig));
        assert_fresh(rig);
    }
    aq_buf_clear(&rig->state);
    s->tokens[0] = 100;
    s->tokens[1] = EOS; /* it would be done */
    assert_int_equal(aq_record_state_put(&rig->state, rig->was), 2);
    assert_false(take(rig));
}

static void numbers_that_no_model_gives_are_refused(void **state)
{
    struct rig *rig = *state;
    start(rig, "{\"id\": 1, \"prompt\": \"The old\", \"max_tokens\": 2, \"n\": 2, \"logprobs\": 2, "
               "\"temperature\": 1, \"echo\": true}");
    give(rig->was, 0, (const uint32_t[]){100, 101}, 2);
    give(rig->was, 1, (const uint32_t[]){102}, 1);
    struct aq_sequence *s = &rig->was->choices[0].sequence;
    assert_true(s->prompt_logprobs && s->prompt_count > 1);
    /* Ids behind the tokenizer's last one have probabilities, too. */
    s->tops[3].id = s->prompt_tops[3].id = VOCAB + 7;
    assert_int_equal(keep(rig), 3);
    assert_true(take(rig));
    uint32_t *const ids[] = {&s->tops[3].id, &s->prompt_tops[3].id};
    for (size_t i = 0; i < AQ_ARRAY_LEN(ids); i++) {
        static const uint32_t wrong[] = {VOCAB + 8, UINT32_MAX};
        for (size_t k = 0; k < AQ_ARRAY_LEN(wrong); k++) {
            uint32_t good = *ids[i];
            *ids[i] = wrong[k];
            start_again(rig);
            assert_false(take(rig));
            assert_fresh(rig);
            *ids[i] = good;
        }
    }
    float *const chances[] = {&s->logprobs[1], &s->tops[2].logprob, &s->prompt_logprob[1],
                              &s->prompt_tops[2].logprob};
    for (size_t i = 0; i < AQ_ARRAY_LEN(chances); i++) {
        const float wrong[] = {NAN, INFINITY, 1};
        for (size_t k = 0; k < AQ_ARRAY_LEN(wrong); k++) {
            float good = *chances[i];
            *chances[i] = wrong[k];
            start_again(rig);
            assert_false(take(rig));
            assert_fresh(rig);
            *chances[i] = good;
        }
    }
    start_again(rig);
    assert_true(take(rig));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
    TEST(a_record_goes_on_from_its_tokens),
    TEST(what_is_not_fed_yet_is_kept_again),
    TEST(tokens_of_a_pass_that_runs_are_left_out),
    TEST(a_record_without_tokens_is_not_worth_keeping),
    TEST(choices_that_have_ended_are_not_done_again),
    TEST(a_choice_that_failed_makes_its_record_begin_again),
    TEST(bytes_that_are_no_state_of_the_record_are_refused),
    TEST(numbers_that_no_model_gives_are_refused),
    TEST(tokens_that_end_a_choice_are_not_gone_on_from),
};

AQ_TEST_MAIN(tests)
