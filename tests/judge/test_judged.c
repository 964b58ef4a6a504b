/* SPDX-License-Identifier: Apache-2.0
 * The engine against other people's programs: of each prompt every KV policy keeps, in each head of
 * each layer, what the judge kept, as tests/judge/judge.py wrote it down (tests/judge/README.md).
 * AQ_JUDGED names another file than tests/data/judged.json.
 *
 * A set is a line of text with one character for each position: '#' is kept, '.' is not; of those
 * that are within a rounding of the last one kept, '+' was kept and '-' was not, and either is
 * right. */
#include "base/json.h"
#include "engine/core/engine_seams.h"
#include "engine/options/kv.h"
#include "tests/choices.h"
#include "tests/judge/judge_model.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <string.h>

enum { PROMPT_MAX = 512, HEADS_MAX = 16, LAYERS_MAX = 16, NEW_TOKENS = 2 };

static char scratch[TEMP_PATH_MAX];

static int make_scratch(void **state)
{
    temp_dir(scratch, "judged");
    return 0;
}

static int remove_scratch(void **state)
{
    return temp_remove(scratch);
}

/* ---- what the engine keeps ---- */

struct kept {
    uint32_t prompt, layers, heads;
    bool at[LAYERS_MAX][HEADS_MAX][PROMPT_MAX];
};

static void see(void *user, const struct aq_kv_seen *seen)
{
    struct kept *k = seen->sequence->user;
    if (seen->seen != k->prompt)
        return; /* tokens that were generated */
    assert_true(seen->layer < LAYERS_MAX && seen->kv_heads <= HEADS_MAX);
    k->layers = (uint32_t)aq_max_u64(k->layers, seen->layer + 1);
    k->heads = seen->kv_heads;
    for (uint32_t h = 0; h < seen->kv_heads; h++) {
        bool *at = k->at[seen->layer][h];
        for (uint32_t i = 0; i < seen->len[h * seen->len_step]; i++) {
            const struct aq_attn_slots *s = &seen->slots;
            uint32_t position = s->position ? s->position[h * s->stride + i] : i;
            assert_true(position < k->prompt && !at[position]);
            at[position] = true;
        }
    }
}

/* `options`: of the KV cache, as a configuration file has them. */
static struct aq_kv_policy policy_of(const json_t *options)
{
    struct aq_options *o;
    struct aq_kv_policy kv;
    struct aq_err err;
    must_parse(aq_options_from_json(&o, "generate", options, &err), &err);
    must_parse(aq_options_kv_policy(&kv, o, &err), &err);
    aq_options_close(o);
    return kv;
}

enum { VOCAB_MAX = 128 };

/* The classes of tokens that judges know, of models without a tokenizer. */
static void read_classes(uint8_t classes[VOCAB_MAX], const json_t *file)
{
    static const char *const names[] = {"special", "punct"};
    static const uint8_t bits[] = {AQ_KV_CLASS_SPECIAL, AQ_KV_CLASS_PUNCT};
    memset(classes, 0, VOCAB_MAX);
    for (size_t k = 0; k < AQ_ARRAY_LEN(names); k++) {
        const json_t *list = json_object_get(file, names[k]), *id;
        size_t i;
        assert_true(json_array_size(list) > 0);
        json_array_foreach(list, i, id)
        {
            assert_in_range(json_integer_value(id), 0, VOCAB_MAX - 1);
            classes[json_integer_value(id)] |= bits[k];
        }
    }
}

/* Opens an engine with f32 arithmetic and an f32 cache for sequences of up to `longest` tokens. */
static struct aq_engine *open_engine(const char *model, const json_t *options,
                                     const uint8_t classes[VOCAB_MAX], uint32_t longest)
{
    struct aq_engine_opts opts = {.model_dir = model,
                                  .compute = AQ_F32,
                                  .weight_format = AQ_F32,
                                  .kv_format = AQ_F32,
                                  .kv = policy_of(options),
                                  .classes = {classes, VOCAB_MAX},
                                  .isa = using_isa(NULL),
                                  .threads = 1,
                                  .host_memory = AQ_GIB,
                                  .micro_batch = 1,
                                  .micro_batches = 1,
                                  .serial = true,
                                  .refill = true};
    struct aq_workload w = {
        .sequences = 1, .prompt_max = longest, .total_max = longest + NEW_TOKENS};
    struct aq_engine *e;
    struct aq_err err = {0};
    must_parse(aq_engine_open(&e, &opts, &err), &err);
    must_parse(aq_engine_plan(e, &w, &err), &err);
    aq_engine_set_seams(e, &(struct aq_engine_seams){.kv_seen = see});
    must_parse(aq_engine_load(e, &err), &err);
    return e;
}

static void run_prompt(struct kept *ret, struct aq_engine *e, const json_t *ids)
{
    uint32_t prompt[PROMPT_MAX], tokens[NEW_TOKENS], count = (uint32_t)json_array_size(ids);
    float logprobs[NEW_TOKENS];
    assert_in_range(count, 1, PROMPT_MAX);
    for (uint32_t i = 0; i < count; i++)
        prompt[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    *ret = (struct kept){.prompt = count};
    struct aq_sequence s = {.prompt = prompt,
                            .prompt_count = count,
                            .max_tokens = NEW_TOKENS,
                            .sampling = {.top_p = 1, .repetition_penalty = 1},
                            .tokens = tokens,
                            .logprobs = logprobs,
                            .user = ret};
    struct aq_err err = {0};
    aq_engine_submit(e, &s);
    for (bool worked = true; worked;)
        must_parse(aq_engine_pass(e, &worked, &err), &err);
}

/* ---- comparison ---- */

struct tally {
    uint64_t sets, ties, dropped;
};

static void compare_head(struct tally *y, const char *what, const bool *kept, const char *judged,
                         uint32_t count)
{
    uint32_t found = 0, expected = 0;
    assert_int_equal(strlen(judged), count);
    for (uint32_t i = 0; i < count; i++) {
        char c = judged[i];
        assert_non_null(strchr("#.+-", c));
        if ((c == '#' && !kept[i]) || (c == '.' && kept[i]))
            fail_msg("%s: the engine %s position %u of %u, the judge does not", what,
                     kept[i] ? "keeps" : "drops", i, count);
        found += kept[i];
        expected += c == '#' || c == '+';
        y->ties += (c == '+') != kept[i] && (c == '+' || c == '-');
        y->dropped += !kept[i];
    }
    if (found != expected)
        fail_msg("%s: the engine keeps %u of %u keys, the judge %u", what, found, count, expected);
    y->sets++;
}

/* `judged`: [layers][heads] sets of one prompt. */
static void compare_prompt(struct tally *y, const char *name, const struct kept *k,
                           const json_t *judged)
{
    char what[128];
    assert_int_equal(json_array_size(judged), k->layers);
    for (uint32_t l = 0; l < k->layers; l++) {
        const json_t *heads = json_array_get(judged, l);
        assert_int_equal(json_array_size(heads), k->heads);
        for (uint32_t h = 0; h < k->heads; h++) {
            const char *set = json_string_value(json_array_get(heads, h));
            assert_non_null(set);
            snprintf(what, sizeof(what), "%s: layer %u, head %u", name, l, h);
            compare_head(y, what, k->at[l][h], set, k->prompt);
        }
    }
}

static uint32_t longest_of(const json_t *prompts)
{
    size_t i, most = 0;
    const json_t *ids;
    json_array_foreach(prompts, i, ids) most = aq_max_u64(most, json_array_size(ids));
    return (uint32_t)most;
}

static void every_policy_keeps_of_prompts_what_its_judge_keeps(void **state)
{
    const char *path = getenv("AQ_JUDGED");
    json_t *file, *row, *ids;
    struct aq_err err;
    must_parse(aq_json_read_file(&file, path ? path : test_data_path("judged.json"), 1 << 22, &err),
               &err);
    char model[TEMP_INSIDE_MAX];
    snprintf(model, sizeof(model), "%s/model", scratch);
    judge_model_write(model, json_object_get(file, "model"));
    uint8_t classes[VOCAB_MAX];
    read_classes(classes, file);
    const json_t *prompts = json_object_get(file, "prompts");
    const json_t *rows = json_object_get(file, "rows");
    assert_true(json_array_size(rows) >= 7 && json_array_size(prompts) >= 2);
    struct kept *k = malloc(sizeof(*k));
    assert_non_null(k);
    size_t r, p;
    json_array_foreach(rows, r, row)
    {
        struct tally y = {0};
        const char *name = json_string_value(json_object_get(row, "name"));
        const json_t *judged = json_object_get(row, "kept");
        struct aq_engine *e =
            open_engine(model, json_object_get(row, "options"), classes, longest_of(prompts));
        assert_int_equal(json_array_size(judged), json_array_size(prompts));
        json_array_foreach(prompts, p, ids)
        {
            run_prompt(k, e, ids);
            compare_prompt(&y, name, k, json_array_get(judged, p));
        }
        aq_engine_close(e);
        print_message("%s: %llu sets of keys as %s keeps them, %llu keys dropped, %llu at the "
                      "border chosen otherwise\n",
                      name, (unsigned long long)y.sets,
                      json_string_value(json_object_get(row, "judge")),
                      (unsigned long long)y.dropped, (unsigned long long)y.ties);
        assert_true(y.dropped > y.sets);
    }
    free(k);
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_keeps_of_prompts_what_its_judge_keeps),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch) ? 1 : 0;
}
