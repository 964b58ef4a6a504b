/* SPDX-License-Identifier: Apache-2.0
 * Runs of the engine whose tokens and log-probabilities are the same to the bit, though a policy
 * has more to do in one of them: where it drops nothing, where heads share nothing, and beside
 * longer sequences. */
#include "tests/reference/asked.h"
#include "tests/reference/record.h"
#include "tests/test.h"

#include <string.h>

enum { WHOLE = 37, WHOLE_FED = 20 };

/* One run of a policy; the caller closes *ret. */
static void run_one(struct record *ret, enum aq_dtype format, const char *dir,
                    const struct ref_model *m, const struct asked *a)
{
    char text[128];
    struct aq_kv_policy kv = asked_resolve(a, text);
    record_open(ret, m, 5, WHOLE, WHOLE_FED);
    record_run_in(format, dir, &kv, ret, 1, 0);
}

static void expect_same(const struct record *found, const struct record *want)
{
    assert_memory_equal(found->tokens, want->tokens, WHOLE_FED * sizeof(*want->tokens));
    assert_memory_equal(found->logprobs, want->logprobs, WHOLE_FED * sizeof(*want->logprobs));
}

/* Room for everything that is ever held: the bits of the full cache. */
static void expect_whole(enum aq_dtype format, const char *dir, const struct ref_model *m,
                         const char *name, bool bulk, const struct record *want)
{
    struct asked a = {.options = {.policy = name}};
    struct record found;
    const struct aq_kv_policy_desc *desc = aq_kv_policy_find(name);
    uint32_t least = WHOLE + WHOLE_FED - 1; /* the last key is never computed */
    a.options.decode_given = bulk;
    a.options.decode = AQ_KV_DECODE_BULK;
    if (bulk) /* and with it the prompt's share of layers that differ */
        a.options.layers_given = desc->layers != AQ_KV_LAYERS_UNIFORM;
    else if (desc->decode.source == AQ_KV_SOURCE_NONE)
        least = WHOLE; /* the prompt alone is cut */
    else if (strcmp(name, "tova") == 0)
        least--; /* one more is attended */
    if (strcmp(name, "h2o:hf") == 0) {
        a.options.heavy = asked_slots(WHOLE);
        a.options.recent = asked_slots(WHOLE_FED - 2); /* one more is attended */
    } else if (strcmp(name, "h2o:flexgen") == 0) {
        a.options.heavy = asked_share(1.0);
    } else {
        a.options.budget = asked_slots(least);
    }
    if (desc->heads == AQ_KV_HEADS_GLOBAL)
        a.options.recent = asked_slots(20);
    run_one(&found, format, dir, m, &a);
    assert_false(found.dropped);
    expect_same(&found, want);
    record_close(&found);
    if (a.options.budget.unit != AQ_KV_SLOTS)
        return;
    a.options.budget = asked_slots(least - 1);
    run_one(&found, format, dir, m, &a);
    assert_true(found.dropped);
    record_close(&found);
}

/* The same of heads that must keep all attention. */
static void expect_all_mass(enum aq_dtype format, const char *dir, const struct ref_model *m,
                            const struct record *want)
{
    struct record found;
    struct asked a = {.options = {.policy = "fastgen", .mass_given = true, .mass = 1}};
    run_one(&found, format, dir, m, &a);
    assert_false(found.dropped);
    expect_same(&found, want);
    record_close(&found);
    a.options.budget = asked_slots(WHOLE);
    run_one(&found, format, dir, m, &a);
    assert_false(found.dropped);
    expect_same(&found, want);
    record_close(&found);
    a.options.budget = asked_slots(WHOLE - 1);
    run_one(&found, format, dir, m, &a);
    assert_true(found.dropped);
    record_close(&found);
    a.options.budget = (struct aq_kv_amount){0};
    a.options.mass = 0.4;
    run_one(&found, format, dir, m, &a);
    assert_true(found.dropped);
    record_close(&found);
}

static void budgets_of_the_whole_sequence_change_no_bit(void **state)
{
    static const char *const names[] = {
        "h2o",  "heavy", "window",  "h2o:hf",    "h2o:flexgen", "adakv",   "snapkv",
        "tova", "knorm", "keydiff", "pyramidkv", "kvcompress",  "expected"};
    static const char *const in_bulk[] = {"h2o", "snapkv", "pyramidkv", "scissorhands"};
    static const enum aq_dtype formats[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};
    struct random_model shape = {RANDOM_OPT, 2, 64, 4, 4, 16, 97, 80, 2};
    const char *dir = record_write_model(&shape, 21);
    struct ref_model *m = ref_model_open(dir);
    for (size_t f = 0; f < AQ_ARRAY_LEN(formats); f++) {
        struct record want;
        run_one(&want, formats[f], dir, m, &(struct asked){.options = {.policy = "full"}});
        for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++)
            expect_whole(formats[f], dir, m, names[i], false, &want);
        for (size_t i = 0; i < AQ_ARRAY_LEN(in_bulk); i++)
            expect_whole(formats[f], dir, m, in_bulk[i], true, &want);
        expect_all_mass(formats[f], dir, m, &want);
        record_close(&want);
    }
    ref_model_close(m);
}

/* A window that drops nothing has its sinks where the text has them. */
static void positions_in_a_cache_of_all_change_no_bit(void **state)
{
    static const enum aq_dtype formats[] = {AQ_F32, AQ_F16, AQ_BF16};
    struct random_model shape = {RANDOM_LLAMA, 2, 96, 6, 2, 16, 97, 80, 2};
    const char *dir = record_write_model(&shape, 24);
    struct ref_model *m = ref_model_open(dir);
    for (size_t f = 0; f < AQ_ARRAY_LEN(formats); f++) {
        struct record want, found;
        struct asked close = asked_close(4, WHOLE + WHOLE_FED - 1), less = asked_close(4, 20);
        run_one(&want, formats[f], dir, m, &(struct asked){.options = {.policy = "full"}});
        run_one(&found, formats[f], dir, m, &close);
        assert_false(found.dropped);
        expect_same(&found, &want);
        record_close(&found);
        record_close(&want);
        run_one(&found, formats[f], dir, m, &less);
        less.options.positions = AQ_KV_POSITIONS_TEXT;
        run_one(&want, formats[f], dir, m, &less);
        assert_true(found.dropped && want.dropped);
        assert_memory_not_equal(found.logprobs, want.logprobs, WHOLE_FED * sizeof(*want.logprobs));
        record_close(&found);
        record_close(&want);
    }
    ref_model_close(m);
}

/* Tables and lengths of their own, but all alike: the bits of one table for all heads. */
static void heads_that_share_nothing_are_those_of_one_table(void **state)
{
    static const struct asked alone[] = {
        {{.policy = "h2o", .budget = {AQ_KV_SLOTS, 20, 0}}, REF_H2O},
        {{.policy = "ada-snapkv",
          .budget = {AQ_KV_SLOTS, 20, 0},
          .observe_given = true,
          .observe = 5,
          .heads_given = true,
          .heads = AQ_KV_HEADS_UNIFORM},
         REF_SNAPKV},
    };
    static const enum aq_dtype formats[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};
    struct random_model shape = {RANDOM_OPT, 2, 64, 4, 4, 16, 97, 80, 2};
    const char *dir = record_write_model(&shape, 22);
    struct ref_model *m = ref_model_open(dir);
    for (size_t i = 0; i < AQ_ARRAY_LEN(formats) * AQ_ARRAY_LEN(alone); i++) {
        struct record want, found;
        struct asked a = alone[i % AQ_ARRAY_LEN(alone)];
        enum aq_dtype format = formats[i / AQ_ARRAY_LEN(alone)];
        run_one(&want, format, dir, m, &a);
        a.options.heads_given = true;
        a.options.heads = AQ_KV_HEADS_SHARED;
        a.options.floor = asked_share(1);
        a.options.floor_kind = a.variant == REF_H2O ? AQ_KV_FLOOR_RESERVE : AQ_KV_FLOOR_MIX;
        run_one(&found, format, dir, m, &a);
        expect_same(&found, &want);
        size_t all = record_at(&want, want.rows, 0, 0);
        assert_true(want.dropped && !found.uneven);
        assert_memory_equal(found.kept, want.kept, all * sizeof(*want.kept));
        assert_memory_equal(found.score, want.score, all * sizeof(*want.score));
        record_close(&found);
        a.options.floor = asked_share(0);
        run_one(&found, format, dir, m, &a);
        assert_true(found.uneven > 0);
        record_close(&found);
        record_close(&want);
    }
    ref_model_close(m);
}

/* The longest sequence of a run decides whether layers with a window ever drop a key, and so how
 * they keep them; a short one's bits do not tell. */
static void windows_of_others_change_no_bit(void **state)
{
    struct random_model shape = {RANDOM_MISTRAL,  3, 64, 4, 2, 16, 97, 160, 2, .window = 60,
                                 .full_layers = 2};
    const char *dir = record_write_model(&shape, 23);
    struct ref_model *m = ref_model_open(dir);
    static const char *const names[] = {"full", "h2o", "window", "adakv"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        struct record alone, beside[2];
        struct asked a = {.options = {.policy = names[i], .budget = asked_slots(16)}};
        char text[128];
        if (i == 0)
            a.options.budget = (struct aq_kv_amount){0};
        struct aq_kv_policy kv = asked_resolve(&a, text);
        record_open(&alone, m, 5, WHOLE, WHOLE_FED);
        record_open(&beside[0], m, 5, WHOLE, WHOLE_FED);
        record_open(&beside[1], m, 6, 100, 30);
        record_run(dir, &kv, &alone, 1, 0);
        record_run(dir, &kv, beside, 2, 4); /* two seats */
        assert_true(beside[1].dropped && alone.dropped == (i > 0));
        expect_same(&beside[0], &alone);
        record_close(&alone);
        record_close(&beside[0]);
        record_close(&beside[1]);
    }
    ref_model_close(m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(windows_of_others_change_no_bit),
    cmocka_unit_test(budgets_of_the_whole_sequence_change_no_bit),
    cmocka_unit_test(positions_in_a_cache_of_all_change_no_bit),
    cmocka_unit_test(heads_that_share_nothing_are_those_of_one_table),
};

int main(void)
{
    return cmocka_run_group_tests(tests, record_make_scratch, record_remove_scratch) ? 1 : 0;
}
