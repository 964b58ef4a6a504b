/* SPDX-License-Identifier: Apache-2.0
 * The reference in f64 against golden numbers of another plain program (torch, f32): losses of the
 * small trained model under h2o, window and heavy, and the tokens it chooses under h2o. */
#include "base/json.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/reference/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ref_model *model;

static int open_model(void **state)
{
    model = ref_model_open(test_data_path("tiny-opt"));
    return 0;
}

static int close_model(void **state)
{
    ref_model_close(model);
    return 0;
}

static struct aq_ids encode_text(const char *name)
{
    struct aq_tokenizer *t;
    struct aq_tok_state *state;
    struct aq_ids ids = {0};
    char *text;
    size_t bytes;
    assert_int_equal(aq_read_file(&text, &bytes, test_data_path(name), 1 << 24, NULL), 0);
    assert_int_equal(aq_tokenizer_open(&t, test_data_path("tiny-opt"), NULL, NULL), 0);
    assert_int_equal(aq_tok_state_open(&state, t, NULL), 0);
    assert_int_equal(
        aq_tokenizer_encode(t, state, text, bytes, (struct aq_encode_opts){0}, &ids, NULL), 0);
    aq_tok_state_close(state);
    aq_tokenizer_close(t);
    free(text);
    return ids;
}

/* ---- losses ---- */

enum { RUNS_MAX = 16, WINDOWS_MAX = 8 };

struct golden_run {
    struct ref_policy policy;
    const char *name;
    uint32_t prompt, fed, windows, tokens;
    double nll, sum;
};

static uint32_t integer_of(const json_t *o, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(o, key));
}

static void read_run(struct golden_run *r, const json_t *o)
{
    *r = (struct golden_run){
        .name = json_string_value(json_object_get(o, "policy")),
        .prompt = integer_of(o, "P"),
        .fed = integer_of(o, "G"),
        .windows = integer_of(o, "windows"),
        .tokens = integer_of(o, "tokens"),
        .nll = json_real_value(json_object_get(o, "nll")),
        .policy = {.heavy = integer_of(o, "H"), .recent = integer_of(o, "R")},
    };
    r->policy.variant = strcmp(r->name, "full") == 0     ? REF_FULL
                        : strcmp(r->name, "window") == 0 ? REF_WINDOW
                        : r->policy.recent == 1          ? REF_HEAVY
                                                         : REF_H2O;
    assert_int_equal(r->tokens, r->windows * r->fed);
    assert_in_range(r->windows, 1, WINDOWS_MAX);
}

/* The window's prompt is attended once for all runs of its length. */
static void feed_window(struct golden_run *run, uint32_t count, uint32_t prompt, uint32_t window,
                        const struct aq_ids *text)
{
    uint32_t fed = 0;
    for (uint32_t i = 0; i < count; i++)
        fed = run[i].prompt == prompt ? run[i].fed : fed;
    const uint32_t *ids = text->item + (size_t)window * (prompt + fed);
    assert_true((size_t)(window + 1) * (prompt + fed) <= text->count);
    double *first = calloc(model->vocab, sizeof(*first)), *logits = calloc(model->vocab, 8);
    struct ref_policy full = {.variant = REF_FULL};
    struct ref_run *base = ref_run_open(model, &full, ids, prompt, prompt + fed, first);
    for (uint32_t i = 0; i < count; i++) {
        if (run[i].prompt != prompt || window >= run[i].windows)
            continue;
        struct ref_run *r = ref_run_fork(base, &run[i].policy);
        run[i].sum -= ref_logprob(first, model->vocab, ids[prompt]);
        for (uint32_t t = prompt + 1; t < prompt + fed; t++) {
            ref_run_step(r, ids[t - 1], logits, NULL, NULL);
            run[i].sum -= ref_logprob(logits, model->vocab, ids[t]);
        }
        ref_run_close(r);
    }
    ref_run_close(base);
    free(first);
    free(logits);
}

/* The golden program adds up in f32; means over 256 tokens and more differ by up to 1e-6.  Another
 * victim anywhere would show: it moves a window's mean by some 1e-3. */
#define NLL_LIMIT 1e-5

static void losses_equal_the_golden_ones(void **state)
{
    struct aq_ids text = encode_text("tiny-opt/golden/eval.txt");
    struct golden_run run[RUNS_MAX];
    json_t *golden;
    assert_int_equal(
        aq_json_read_file(&golden, test_data_path("tiny-opt/golden/eval.json"), 1 << 20, NULL), 0);
    const json_t *list = json_object_get(golden, "runs");
    uint32_t count = 0;
    for (size_t i = 0; i < json_array_size(list) && count < RUNS_MAX; i++) {
        read_run(&run[count], json_array_get(list, i));
        count += !TEST_SLOW || (run[count].prompt == 128 && run[count].policy.variant != REF_FULL);
    }
    assert_true(count >= (TEST_SLOW ? 2 : 9));
    for (uint32_t i = 0; i < count; i++) {
        bool seen = false; /* a prompt length, at its first run */
        uint32_t windows = run[i].windows;
        for (uint32_t n = 0; n < i; n++)
            seen = seen || run[n].prompt == run[i].prompt;
        for (uint32_t n = i; n < count; n++)
            if (run[n].prompt == run[i].prompt && run[n].windows > windows)
                windows = run[n].windows;
        for (uint32_t w = 0; !seen && w < windows; w++)
            feed_window(run, count, run[i].prompt, w, &text);
    }
    double worst = 0;
    for (uint32_t i = 0; i < count; i++) {
        double nll = run[i].sum / run[i].tokens;
        print_message("%u + %u, %s %u + %u: nll %.6f, golden %.6f (%+.1e)\n", run[i].prompt,
                      run[i].fed, run[i].name, run[i].policy.heavy, run[i].policy.recent, nll,
                      run[i].nll, nll - run[i].nll);
        worst = fmax(worst, fabs(nll - run[i].nll));
    }
    assert_true(worst < NLL_LIMIT);
    aq_ids_close(&text);
    json_decref(golden);
}

/* ---- tokens ---- */

enum { PROMPT_MAX = 900, TOKENS = 64 };

static uint32_t read_ids(uint32_t *dst, uint32_t max, const json_t *list)
{
    assert_in_range(json_array_size(list), 1, max);
    for (size_t i = 0; i < json_array_size(list); i++)
        dst[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

static void tokens_under_h2o_equal_the_golden_ones(void **state)
{
    json_t *golden;
    assert_int_equal(aq_json_read_file(&golden, test_data_path("tiny-opt/golden/h2o_greedy.json"),
                                       1 << 20, NULL),
                     0);
    size_t count = json_array_size(golden), cut = 0;
    assert_true(count >= 10);
    double *logits = calloc(model->vocab, sizeof(*logits));
    for (size_t i = 0; i < (TEST_SLOW ? 2 : count); i++) {
        const json_t *o = json_array_get(golden, i);
        uint32_t prompt[PROMPT_MAX], tokens[TOKENS];
        uint32_t n = read_ids(prompt, PROMPT_MAX, json_object_get(o, "prompt_ids"));
        uint32_t g = read_ids(tokens, TOKENS, json_object_get(o, "tokens"));
        struct ref_policy p = {
            .variant = REF_H2O, .heavy = integer_of(o, "H"), .recent = integer_of(o, "R")};
        /* 20 % of all tokens, of which half are heavy. */
        assert_int_equal(p.heavy + p.recent, (n + g) / 5);
        assert_int_equal(p.heavy, (n + g) / 5 / 2);
        cut += n > p.heavy + p.recent;
        struct ref_run *r = ref_run_open(model, &p, prompt, n, n + g, logits);
        for (uint32_t t = 0; t < g; t++) {
            uint32_t token = ref_argmax(logits, model->vocab);
            if (token != tokens[t])
                fail_msg("prompt %zu, token %u: %u, golden %u (margin %.5f)", i, t, token,
                         tokens[t],
                         json_real_value(json_array_get(json_object_get(o, "margin"), t)));
            if (t + 1 < g)
                ref_run_step(r, token, logits, NULL, NULL);
        }
        ref_run_close(r);
    }
    assert_true(TEST_SLOW || cut >= 4); /* prompts that are cut; the others outgrow their budgets */
    free(logits);
    json_decref(golden);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(losses_equal_the_golden_ones),
    cmocka_unit_test(tokens_under_h2o_equal_the_golden_ones),
};

int main(void)
{
    return cmocka_run_group_tests(tests, open_model, close_model) ? 1 : 0;
}
