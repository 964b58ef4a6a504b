/* SPDX-License-Identifier: Apache-2.0
 * int8 and int4 weights and KV cache through the engine, on the small trained model: what they cost
 * in log-probability and in bytes, and that neither blocks nor threads, neither stores nor
 * placements change a bit. */
#include "base/json.h"
#include "base/prng.h"
#include "engine/core/engine.h"
#include "engine/model/pack.h"
#include "tests/choices.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char scratch[64]; /* for stores, caches and KV on disk */

static int make_scratch(void **state)
{
    strcpy(scratch, "/tmp/aq-formats-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", scratch);
    return system(command);
}

struct setup {
    int compute, weight, kv; /* enum aq_dtype or -1 */
    uint32_t threads, micro_batch, micro_batches;
    const char *isa, *model, *placement;
};

static struct aq_engine *open_engine(struct setup s, const struct aq_workload *w)
{
    const char *dirs[] = {scratch};
    struct aq_engine_opts opts = {
        .model_dir = s.model ? s.model : test_data_path("tiny-opt"),
        .compute = s.compute,
        .weight_format = s.weight,
        .kv_format = s.kv,
        .threads = s.threads ? s.threads : 2,
        .isa = using_isa(s.isa),
        .host_memory = AQ_GIB,
        .micro_batch = s.micro_batch,
        .micro_batches = s.micro_batches,
        .placement = placed(s.placement),
        .disk_dirs = dirs,
        .disk_dir_count = 1,
        .disk_dir_any = true,
        .cache_dir = scratch,
        .refill = true,
    };
    struct aq_engine *e = NULL;
    struct aq_err err = {0};
    int rc = aq_engine_open(&e, &opts, &err);
    if (rc == 0)
        rc = aq_engine_plan(e, w, &err);
    if (rc == 0)
        rc = aq_engine_load(e, &err);
    if (rc < 0)
        fail_msg("%s", err.text);
    return e;
}

static void run(struct aq_engine *e)
{
    for (bool worked = true; worked;) {
        struct aq_err err;
        if (aq_engine_pass(e, &worked, &err) < 0)
            fail_msg("%s", err.text);
    }
    while (aq_engine_finished(e))
        ;
}

enum { CROWD = TEST_SLOW ? 5 : 24, TOKENS = TEST_SLOW ? 4 : 16, PROMPT_MAX = TEST_SLOW ? 40 : 130 };

struct one {
    struct aq_sequence s;
    uint32_t prompt[PROMPT_MAX], tokens[TOKENS];
    float logprobs[TOKENS];
};

struct crowd {
    uint32_t tokens[CROWD][TOKENS];
    float logprobs[CROWD][TOKENS];
};

/* Sequences of random lengths, half of them sampled at temperature 1. */
static void run_crowd(struct setup setup, struct crowd *ret)
{
    struct one *o = calloc(CROWD, sizeof(*o));
    struct aq_workload w = {
        .sequences = CROWD, .prompt_max = PROMPT_MAX, .total_max = PROMPT_MAX + TOKENS};
    struct aq_engine *e = open_engine(setup, &w);
    for (uint32_t i = 0; i < CROWD; i++) {
        struct aq_sequence *s = &o[i].s;
        s->prompt = o[i].prompt;
        s->prompt_count = 1 + (uint32_t)aq_prng_below(1, i, 0, PROMPT_MAX);
        s->max_tokens = 1 + (i * 7) % TOKENS;
        s->sampling.top_p = 1;
        s->sampling.repetition_penalty = 1;
        s->sampling.temperature = i % 2 ? 1.0f : 0.0f;
        s->sampling.record_hash = i;
        s->tokens = o[i].tokens;
        s->logprobs = o[i].logprobs;
        for (uint32_t t = 0; t < s->prompt_count; t++)
            o[i].prompt[t] = 4 + (uint32_t)aq_prng_below(2, i, t, 4092);
        aq_engine_submit(e, s);
    }
    run(e);
    memset(ret, 0xff, sizeof(*ret));
    for (uint32_t i = 0; i < CROWD; i++) {
        assert_int_equal(o[i].s.token_count, o[i].s.max_tokens);
        memcpy(ret->tokens[i], o[i].tokens, o[i].s.token_count * sizeof(uint32_t));
        memcpy(ret->logprobs[i], o[i].logprobs, o[i].s.token_count * sizeof(float));
        for (uint32_t t = 0; t < o[i].s.token_count; t++)
            assert_true(isfinite(o[i].logprobs[t]));
    }
    aq_engine_close(e);
    free(o);
}

static void must_be_alike(const struct crowd *a, const struct crowd *b, const struct setup *s,
                          const char *what)
{
    if (memcmp(a, b, sizeof(*a)) != 0)
        fail_msg("weights %s, KV %s, compute %s: tokens or their log-probabilities differ %s",
                 aq_dtype_name((enum aq_dtype)s->weight), aq_dtype_name((enum aq_dtype)s->kv),
                 aq_dtype_name((enum aq_dtype)s->compute), what);
}

static const struct setup formats[] = {
    {.compute = AQ_F32, .weight = AQ_Q8, .kv = AQ_Q4},
    {.compute = AQ_F32, .weight = AQ_Q4, .kv = AQ_Q8},
    {.compute = AQ_BF16, .weight = AQ_Q8, .kv = AQ_Q8},
    {.compute = AQ_BF16, .weight = AQ_Q4, .kv = AQ_Q4},
    {.compute = AQ_Q8, .weight = AQ_Q8, .kv = AQ_F16},
    {.compute = AQ_Q8, .weight = AQ_Q4, .kv = AQ_Q8},
};

/* With several micro-batches weights are unpacked once a pass, with one they are converted inside
 * the products. */
static void bits_do_not_depend_on_neighbours_threads_or_blocks(void **state)
{
    static struct crowd want, got;
    static const struct {
        uint32_t threads, micro_batch, micro_batches;
    } others[] = {{2, 2, 1}, {2, CROWD, 1}, {1, 7, 3}, {3, 3, 2}};
    for (size_t i = 0; i < AQ_ARRAY_LEN(formats); i++) {
        struct setup s = formats[i];
        s.threads = s.micro_batch = s.micro_batches = 1;
        run_crowd(s, &want); /* alone */
        for (size_t n = 0; n < AQ_ARRAY_LEN(others); n++) {
            char what[64];
            s.threads = others[n].threads;
            s.micro_batch = others[n].micro_batch;
            s.micro_batches = others[n].micro_batches;
            snprintf(what, sizeof(what), "with %u threads, micro-batch %u x %u", s.threads,
                     s.micro_batch, s.micro_batches);
            run_crowd(s, &got);
            must_be_alike(&want, &got, &s, what);
        }
    }
}

static void bits_do_not_depend_on_the_placement(void **state)
{
    static const char *const placements[] = {
        "weights=0/0/100 kv=0/100/0 hidden=0/100/0 head=host",
        "weights=0/37/63 kv=0/40/60 hidden=0/0/100 head=host",
    };
    static struct crowd want, got;
    for (size_t i = 0; i < AQ_ARRAY_LEN(formats); i++) {
        struct setup s = formats[i];
        s.micro_batch = 4;
        s.micro_batches = 1 + (uint32_t)i % 2;
        run_crowd(s, &want);
        for (size_t n = 0; n < AQ_ARRAY_LEN(placements); n++) {
            s.placement = placements[n];
            run_crowd(s, &got);
            must_be_alike(&want, &got, &s, placements[n]);
        }
    }
}

static void pack(const char *dir, enum aq_dtype format)
{
    struct aq_model_opts model_opts = {.dir = test_data_path("tiny-opt")};
    struct aq_kernels kernels;
    struct aq_model *model;
    struct aq_pool *pool;
    struct aq_pack_result result;
    struct aq_err err;
    aq_kernels_cpu(&kernels, aq_isa_detect());
    assert_int_equal(aq_pool_open(&pool, 2, NULL), 0);
    if (aq_model_open(&model, &model_opts, &err) < 0)
        fail_msg("%s", err.text);
    struct aq_pack_opts opts = {.model = model,
                                .model_dir = model_opts.dir,
                                .dirs = &dir,
                                .dir_count = 1,
                                .format = format,
                                .layout = aq_layout_cpu(format)};
    if (aq_pack_run(&result, &opts, &kernels, pool, &err) < 0)
        fail_msg("%s", err.text);
    aq_model_close(model);
    aq_pool_close(pool);
}

/* Without formats on the command line a store decides; the KV cache is what it would be without
 * the store. */
static void a_store_gives_the_bits_of_its_checkpoint(void **state)
{
    static const enum aq_dtype both[] = {AQ_Q8, AQ_Q4};
    static struct crowd want, got;
    for (size_t i = 0; i < AQ_ARRAY_LEN(both); i++) {
        char store[96];
        snprintf(store, sizeof(store), "%s/store-%s", scratch, aq_dtype_name(both[i]));
        pack(store, both[i]);
        struct setup s = {.compute = AQ_BF16, .weight = (int)both[i], .kv = -1, .micro_batch = 8};
        run_crowd(s, &want);
        s.model = store;
        s.weight = -1;
        run_crowd(s, &got);
        s.weight = (int)both[i];
        s.kv = AQ_F16;
        must_be_alike(&want, &got, &s, "from a packed store");
    }
}

/* Packed with defaults a store holds f16, as the checkpoint does; run with defaults from the
 * checkpoint weights are rounded to the compute type.  The same options give the same bits. */
static void a_store_of_floats_gives_the_bits_of_its_checkpoint(void **state)
{
    static const struct {
        int compute, weight;
        const char *placement;
    } runs[] = {
        {AQ_BF16, -1, NULL},
        {AQ_BF16, -1, "weights=0/0/100 kv=0/100/0 hidden=0/100/0 head=host"},
        {AQ_BF16, AQ_F16, NULL},
        {AQ_F32, -1, NULL},
    };
    static struct crowd want, got;
    char store[96];
    snprintf(store, sizeof(store), "%s/store-f16", scratch);
    pack(store, AQ_F16);
    for (size_t i = 0; i < AQ_ARRAY_LEN(runs); i++) {
        struct setup s = {
            .compute = runs[i].compute, .weight = runs[i].weight, .kv = AQ_F16, .micro_batch = 8};
        run_crowd(s, &want);
        s.model = store;
        s.placement = runs[i].placement;
        run_crowd(s, &got);
        s.weight = AQ_F16;
        must_be_alike(&want, &got, &s, "from a packed store of f16");
    }
}

/* ---- what formats cost ---- */

enum { GOLDEN_TOKENS = TEST_SLOW ? 6 : 64, GOLDEN_PROMPT_MAX = 900 };

struct golden {
    struct aq_sequence s;
    uint32_t prompt[GOLDEN_PROMPT_MAX], tokens[GOLDEN_TOKENS], forced[64];
    float logprobs[GOLDEN_TOKENS];
};

static uint32_t read_ids(uint32_t *dst, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        dst[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

/* The lines of golden/greedy.jsonl. */
static json_t *golden_lines(void)
{
    char *text;
    size_t bytes;
    json_t *lines = json_array();
    assert_int_equal(
        aq_read_file(&text, &bytes, test_data_path("tiny-opt/golden/greedy.jsonl"), 1 << 24, NULL),
        0);
    for (char *at = text; *at;) {
        size_t n = strcspn(at, "\n");
        json_t *v;
        if (n) {
            assert_int_equal(aq_json_parse(&v, at, n, false, NULL), 0);
            json_array_append_new(lines, v);
        }
        at += n + (at[n] == '\n');
    }
    free(text);
    return lines;
}

/* Mean difference of the log-probabilities of the golden tokens, f32 arithmetic. */
static double mean_error(struct setup setup)
{
    json_t *lines = golden_lines();
    size_t count = TEST_SLOW ? 2 : json_array_size(lines);
    struct golden *g = calloc(count, sizeof(*g));
    struct aq_workload w = {.sequences = count,
                            .prompt_max = GOLDEN_PROMPT_MAX,
                            .total_max = GOLDEN_PROMPT_MAX + GOLDEN_TOKENS};
    struct aq_engine *e = open_engine(setup, &w);
    for (size_t i = 0; i < count; i++) {
        const json_t *line = json_array_get(lines, i);
        struct aq_sequence *s = &g[i].s;
        s->prompt = g[i].prompt;
        s->prompt_count = read_ids(g[i].prompt, json_object_get(line, "prompt_ids"));
        s->max_tokens = GOLDEN_TOKENS;
        s->sampling.top_p = 1;
        s->sampling.repetition_penalty = 1;
        s->tokens = g[i].tokens;
        s->logprobs = g[i].logprobs;
        assert_int_equal(read_ids(g[i].forced, json_object_get(line, "tokens")), 64);
        s->forced = g[i].forced;
        aq_engine_submit(e, s);
    }
    run(e);
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *logprobs = json_object_get(json_array_get(lines, i), "logprobs");
        for (uint32_t t = 0; t < GOLDEN_TOKENS; t++)
            sum += fabs(g[i].logprobs[t] - json_real_value(json_array_get(logprobs, t)));
    }
    aq_engine_close(e);
    free(g);
    json_decref(lines);
    return sum / (double)(count * GOLDEN_TOKENS);
}

/* Steps of 1/255 and 1/15 of a group's range; measured when this was written: see `found`.  The
 * limits leave a factor of two.  Three versions of the kernels make the same codes. */
static void log_probabilities_stay_within_what_each_format_costs(void **state)
{
    static const struct {
        enum aq_dtype compute, weight, kv;
        double found;
    } cases[] = {
        {AQ_F32, AQ_Q8, AQ_F32, 0.0072}, {AQ_F32, AQ_Q4, AQ_F32, 0.0939},
        {AQ_F32, AQ_F16, AQ_Q8, 0.0061}, {AQ_F32, AQ_F16, AQ_Q4, 0.1157},
        {AQ_F32, AQ_Q4, AQ_Q4, 0.1439},  {AQ_Q8, AQ_Q8, AQ_F32, 0.0288},
        {AQ_Q8, AQ_Q4, AQ_F32, 0.0977},
    };
    static const char *const isas[] = {"avx2", "avx512"};
    unsigned have = aq_isa_detect(), mask;
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        for (size_t n = 0; n < AQ_ARRAY_LEN(isas); n++) {
            assert_true(aq_isa_parse(isas[n], &mask));
            if ((mask & have) != mask)
                continue;
            double error = mean_error((struct setup){.compute = (int)cases[i].compute,
                                                     .weight = (int)cases[i].weight,
                                                     .kv = (int)cases[i].kv,
                                                     .isa = isas[n]});
            print_message("compute %s, weights %s, KV %s, %s: mean error %.4f (limit %.4f)\n",
                          aq_dtype_name(cases[i].compute), aq_dtype_name(cases[i].weight),
                          aq_dtype_name(cases[i].kv), isas[n], error, 2 * cases[i].found);
            assert_true(error < 2 * cases[i].found);
            assert_true(error > 0);
        }
    }
}

static uint64_t ledger_line(struct aq_engine *e, const char *purpose)
{
    json_t *plan = aq_engine_plan_json(e);
    const json_t *lines = json_object_get(plan, "ledger");
    uint64_t bytes = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        if (strcmp(json_string_value(json_object_get(line, "purpose")), purpose) == 0)
            bytes += (uint64_t)json_integer_value(json_object_get(line, "bytes"));
    }
    json_decref(plan);
    return bytes;
}

/* tiny-opt: 4096 tokens, 6 layers of width 256 with inner width 1024, heads of 32. */
static void the_ledger_counts_the_bytes_of_each_format(void **state)
{
    static const struct {
        enum aq_dtype format;
        uint64_t token_panel, panel, wide_panel; /* rows of 256, 256 and 1024 */
        uint64_t head_block;
    } cases[] = {
        {AQ_F16, 64 * 256 * 2, 64 * 256 * 2, 64 * 1024 * 2, 2 * 32 * 32 * 2},
        {AQ_Q8, 5 * 4096, 5 * 4096, 17 * 4096, 2 * 32 * 32 + 256},
        {AQ_Q4, 5 * 4096, 3 * 4096, 9 * 4096, 2 * 32 * 16 + 256},
    };
    struct aq_workload w = {.sequences = 4, .prompt_max = 32, .total_max = 64};
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct aq_engine *e = open_engine((struct setup){.compute = AQ_F32,
                                                         .weight = (int)cases[i].format,
                                                         .kv = (int)cases[i].format,
                                                         .micro_batch = 4},
                                          &w);
        uint64_t layer = (4 * 4 + 16) * cases[i].panel + 4 * cases[i].wide_panel;
        uint64_t positions = 1026 * 256 * 2;
        uint64_t exact = 64 * cases[i].token_panel + 6 * layer + positions;
        uint64_t found = ledger_line(e, "weights");
        assert_in_range(found, exact, exact + 2 * AQ_MIB); /* rounded up to a huge page */
        /* A page is a run of 32 slots of 8 heads, or several; a sequence takes whole pages. */
        uint64_t run_bytes = 8 * cases[i].head_block;
        assert_int_equal(aq_engine_held(e, 32, 32, 32).bytes % (6 * run_bytes), 0);
        assert_in_range(aq_engine_held(e, 32, 32, 64).bytes, 6 * 2 * run_bytes, 6 * 4 * run_bytes);
        assert_true(ledger_line(e, "kv") >= 4 * 6 * 2 * run_bytes);
        aq_engine_close(e);
    }
}

static bool says(const struct aq_engine_info *i, const char *text)
{
    for (uint32_t n = 0; n < i->lossy_count; n++) {
        if (strstr(i->lossy[n], text))
            return true;
    }
    return false;
}

static void what_is_lost_is_named(void **state)
{
    struct aq_workload w = {.sequences = 1, .prompt_max = 10, .total_max = 20};
    struct aq_engine *e =
        open_engine((struct setup){.compute = AQ_F32, .weight = AQ_Q4, .kv = AQ_Q8}, &w);
    const struct aq_engine_info *i = aq_engine_info(e);
    assert_int_equal(i->weight_format, AQ_Q4);
    assert_int_equal(i->kv_format, AQ_Q8);
    assert_true(says(i, "weights: f16 rounded to int4 in groups of 64"));
    assert_true(says(i, "token table and head to int8"));
    assert_true(says(i, "kv: keys and values rounded to int8"));
    aq_engine_close(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(bits_do_not_depend_on_neighbours_threads_or_blocks),
    cmocka_unit_test(bits_do_not_depend_on_the_placement),
    cmocka_unit_test(a_store_gives_the_bits_of_its_checkpoint),
    cmocka_unit_test(a_store_of_floats_gives_the_bits_of_its_checkpoint),
    cmocka_unit_test(log_probabilities_stay_within_what_each_format_costs),
    cmocka_unit_test(the_ledger_counts_the_bytes_of_each_format),
    cmocka_unit_test(what_is_lost_is_named),
};

int main(void)
{
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch) ? 1 : 0;
}
