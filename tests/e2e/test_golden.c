/* SPDX-License-Identifier: Apache-2.0
 * Every OPT variant and file layout of tests/golden against transformers' numbers: greedy tokens
 * equal, log-probabilities of the best 20 tokens at every position within 1e-4, read from the
 * checkpoint and from a packed store of it, on every instruction set this machine has; and how far
 * bf16 arithmetic is from them. */
#include "base/json.h"
#include "engine/core/engine.h"
#include "engine/model/pack.h"
#include "tests/choices.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPTS_MAX = 4, PROMPT_MAX = 64, GREEDY_MAX = 32, TOPS = 20, VARIANTS_MAX = 64 };

/* f32 arithmetic against f64: 9e-6 was the largest difference seen, on logits that reach 20. */
#define F32_LIMIT 1e-4
/* bf16 rounds by up to 2^-9 of the value, at each of some ten places: as shares of the logits'
 * deviation, 0.032 was the largest difference seen and 0.008 the largest root mean square. */
#define BF16_LIMIT     0.06
#define BF16_RMS_LIMIT 0.012

struct golden {
    char dir[512];
    uint32_t vocab, logit_rows, prompt_count;
    float *logits;    /* [logit_rows][vocab] */
    double deviation; /* of all of them */
    struct golden_prompt {
        uint32_t ids[PROMPT_MAX], count, greedy[GREEDY_MAX], greedy_count;
        uint32_t first_row;
    } prompt[PROMPTS_MAX];
};

static char golden_dir[448];

static uint32_t read_ids(const json_t *list, uint32_t *ids, uint32_t max)
{
    size_t n = json_array_size(list);
    assert_in_range(n, 1, max);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

static void read_golden(struct golden *g, const char *variant)
{
    char path[600], *bytes;
    size_t count;
    json_t *root;
    memset(g, 0, sizeof(*g));
    snprintf(g->dir, sizeof(g->dir), "%s/%s", golden_dir, variant);
    snprintf(path, sizeof(path), "%s/expected.json", g->dir);
    assert_int_equal(aq_json_read_file(&root, path, AQ_MIB, NULL), 0);
    g->vocab = (uint32_t)json_integer_value(json_object_get(root, "vocab"));
    g->logit_rows = (uint32_t)json_integer_value(json_object_get(root, "logit_rows"));
    g->deviation = json_real_value(json_object_get(root, "logit_deviation"));
    assert_true(g->deviation > 0.5);
    const json_t *prompts = json_object_get(root, "prompts");
    uint32_t row = 0;
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *o = json_array_get(prompts, i);
        assert_in_range(i, 0, PROMPTS_MAX - 1);
        struct golden_prompt *p = &g->prompt[g->prompt_count++];
        p->count = read_ids(json_object_get(o, "ids"), p->ids, PROMPT_MAX);
        p->greedy_count = read_ids(json_object_get(o, "greedy"), p->greedy, GREEDY_MAX);
        p->first_row = row;
        row += p->count;
    }
    assert_true(row == g->logit_rows && row > 0);
    snprintf(path, sizeof(path), "%s/logits.f32", g->dir);
    assert_int_equal(aq_read_file(&bytes, &count, path, AQ_MIB, NULL), 0);
    assert_int_equal(count, 4ul * g->logit_rows * g->vocab);
    g->logits = (float *)(void *)bytes;
    json_decref(root);
}

/* ln softmax of a golden row at one token, in f64. */
static double golden_logprob(const struct golden *g, uint32_t row, uint32_t id)
{
    const float *logits = g->logits + (size_t)row * g->vocab;
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < g->vocab; i++)
        max = fmax(max, logits[i]);
    for (uint32_t i = 0; i < g->vocab; i++)
        sum += exp(logits[i] - max);
    return logits[id] - max - log(sum);
}

/* ---- one engine over all prompts of a variant ---- */

struct output {
    struct aq_sequence s;
    uint32_t tokens[GREEDY_MAX];
    float logprobs[GREEDY_MAX], prompt_logprob[PROMPT_MAX];
    struct aq_top tops[GREEDY_MAX * TOPS], prompt_tops[PROMPT_MAX * TOPS];
};

static void submit(struct aq_engine *e, struct output *o, const struct golden_prompt *p)
{
    memset(o, 0, sizeof(*o));
    o->s = (struct aq_sequence){
        .prompt = p->ids,
        .prompt_count = p->count,
        .max_tokens = p->greedy_count,
        .sampling = {.top_p = 1, .repetition_penalty = 1},
        .top_count = TOPS,
        .prompt_logprobs = true,
        .tokens = o->tokens,
        .logprobs = o->logprobs,
        .tops = o->tops,
        .prompt_logprob = o->prompt_logprob,
        .prompt_tops = o->prompt_tops,
    };
    aq_engine_submit(e, &o->s);
}

static void check_tops(const struct golden *g, uint32_t row, const struct aq_top *tops,
                       const char *what)
{
    for (uint32_t i = 0; i < TOPS; i++) {
        double want = golden_logprob(g, row, tops[i].id);
        if (!(fabs(tops[i].logprob - want) <= F32_LIMIT))
            fail_msg("%s, %s, row %u, token %u: log-probability %.6f, expected %.6f", g->dir, what,
                     row, tops[i].id, (double)tops[i].logprob, want);
    }
}

static void check(const struct golden *g, const struct golden_prompt *p, const struct output *o,
                  const char *what)
{
    assert_int_equal(o->s.finish, AQ_FINISH_LENGTH);
    assert_int_equal(o->s.token_count, p->greedy_count);
    for (uint32_t i = 0; i < p->greedy_count; i++) {
        if (o->tokens[i] != p->greedy[i])
            fail_msg("%s, %s: prompt of %u tokens, token %u: %u, expected %u", g->dir, what,
                     p->count, i, o->tokens[i], p->greedy[i]);
    }
    for (uint32_t i = 1; i < p->count; i++) {
        double want = golden_logprob(g, p->first_row + i - 1, p->ids[i]);
        if (!(fabs(o->prompt_logprob[i] - want) <= F32_LIMIT))
            fail_msg("%s, %s: prompt token %u: log-probability %.6f, expected %.6f", g->dir, what,
                     i, (double)o->prompt_logprob[i], want);
        check_tops(g, p->first_row + i - 1, o->prompt_tops + (size_t)i * TOPS, what);
    }
    check_tops(g, p->first_row + p->count - 1, o->tops, what);
}

struct setup {
    const char *dir, *isa, *what;
    enum aq_dtype compute, kv;
};

static void run_engine(const struct golden *g, const struct setup *s, struct output *output)
{
    struct aq_engine_opts opts = {.model_dir = s->dir,
                                  .compute = (int)s->compute,
                                  .weight_format = -1,
                                  .kv_format = (int)s->kv,
                                  .threads = 2,
                                  .isa = using_isa(s->isa),
                                  .host_memory = AQ_GIB,
                                  .refill = true};
    struct aq_workload w = {.sequences = g->prompt_count, .prompt_logprobs = true};
    struct aq_engine *e = NULL;
    struct aq_err err = {0};
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        const struct golden_prompt *p = &g->prompt[i];
        w.prompt_max = (uint32_t)aq_max_u64(w.prompt_max, p->count);
        w.total_max = (uint32_t)aq_max_u64(w.total_max, p->count + p->greedy_count);
        w.prompt_sum += p->count;
        w.total_sum += p->count + p->greedy_count;
    }
    int rc = aq_engine_open(&e, &opts, &err);
    if (rc == 0)
        rc = aq_engine_plan(e, &w, &err);
    if (rc == 0)
        rc = aq_engine_load(e, &err);
    for (uint32_t i = 0; rc == 0 && i < g->prompt_count; i++)
        submit(e, &output[i], &g->prompt[i]);
    for (bool worked = true; rc == 0 && worked;)
        rc = aq_engine_pass(e, &worked, &err);
    if (rc < 0)
        fail_msg("%s, %s: %s", g->dir, s->what, err.text);
    while (aq_engine_finished(e))
        ;
    aq_engine_close(e);
}

static void must_agree(const struct golden *g, const char *dir, const char *isa, const char *what)
{
    static struct output output[PROMPTS_MAX];
    const struct setup s = {dir, isa, what, AQ_F32, AQ_F32};
    run_engine(g, &s, output);
    for (uint32_t i = 0; i < g->prompt_count; i++)
        check(g, &g->prompt[i], &output[i], what);
}

/* ---- over all variants ---- */

static uint32_t list_variants(char names[VARIANTS_MAX][64])
{
    uint32_t count = 0;
    DIR *d = opendir(golden_dir);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        struct stat st;
        char path[800];
        snprintf(path, sizeof(path), "%s/%s/expected.json", golden_dir, entry->d_name);
        if (stat(path, &st) < 0)
            continue;
        assert_in_range(count, 0, VARIANTS_MAX - 1);
        snprintf(names[count++], 64, "%.63s", entry->d_name);
    }
    closedir(d);
    assert_in_range(count, 16, VARIANTS_MAX); /* a lost folder must not look like success */
    return count;
}

static void for_each(void (*fn)(const struct golden *))
{
    static char names[VARIANTS_MAX][64];
    uint32_t count = list_variants(names);
    for (uint32_t i = 0; i < count; i++) {
        static struct golden g;
        read_golden(&g, names[i]);
        fn(&g);
        free(g.logits);
    }
}

static void on_every_isa(const struct golden *g)
{
    static const char *const isas[] = {"ref", "avx2", "avx512", "avx512bf16", "amx"};
    unsigned have = aq_isa_detect();
    for (size_t i = 0; i < AQ_ARRAY_LEN(isas); i++) {
        unsigned mask;
        assert_true(aq_isa_parse(isas[i], &mask));
        if ((mask & have) == mask)
            must_agree(g, g->dir, isas[i], isas[i]);
    }
}

static void every_variant_agrees_with_transformers(void **state)
{
    for_each(on_every_isa);
}

static void pack(const struct golden *g, const char *store, enum aq_dtype format,
                 enum aq_layout layout)
{
    struct aq_model_opts model_opts = {.dir = g->dir};
    struct aq_pack_result result;
    struct aq_kernels kernels;
    struct aq_model *model;
    struct aq_pool *pool;
    struct aq_err err;
    aq_kernels_cpu(&kernels, aq_isa_detect());
    assert_int_equal(aq_pool_open(&pool, 2, NULL), 0);
    if (aq_model_open(&model, &model_opts, &err) < 0)
        fail_msg("%s", err.text);
    struct aq_pack_opts opts = {.model = model,
                                .model_dir = g->dir,
                                .dirs = &store,
                                .dir_count = 1,
                                .format = format,
                                .layout = layout};
    if (aq_pack_run(&result, &opts, &kernels, pool, &err) < 0)
        fail_msg("%s", err.text);
    aq_model_close(model);
    aq_pool_close(pool);
}

static void from_a_store(const struct golden *g)
{
    char scratch[TEMP_PATH_MAX], store[TEMP_INSIDE_MAX];
    struct aq_model_opts model_opts = {.dir = g->dir};
    struct aq_model *model;
    temp_dir(scratch, "golden");
    assert_int_equal(aq_model_open(&model, &model_opts, NULL), 0);
    enum aq_dtype dtype = model->checkpoint_dtype;
    aq_model_close(model);
    snprintf(store, sizeof(store), "%s/cpu", scratch);
    pack(g, store, dtype, aq_layout_cpu(dtype));
    must_agree(g, store, NULL, "packed");
    snprintf(store, sizeof(store), "%s/rows", scratch);
    pack(g, store, dtype, AQ_LAYOUT_ROWS);
    must_agree(g, store, NULL, "packed row-major");
    snprintf(store, sizeof(store), "%s/wide", scratch);
    pack(g, store, AQ_F32, AQ_LAYOUT_COL64); /* exact: f32 holds them all */
    must_agree(g, store, NULL, "packed as f32");
    assert_int_equal(temp_remove(scratch), 0);
}

static void every_variant_agrees_from_a_packed_store(void **state)
{
    for_each(from_a_store);
}

/* Prompts only: what follows depends on the tokens chosen before. */
static void in_bf16(const struct golden *g)
{
    static struct output output[PROMPTS_MAX];
    const struct setup s = {g->dir, NULL, "bf16", AQ_BF16, AQ_BF16};
    double square = 0, count = 0;
    run_engine(g, &s, output);
    for (uint32_t n = 0; n < g->prompt_count; n++) {
        const struct golden_prompt *p = &g->prompt[n];
        for (uint32_t i = TOPS; i < p->count * TOPS; i++, count++) {
            const struct aq_top *top = &output[n].prompt_tops[i];
            double off = top->logprob - golden_logprob(g, p->first_row + i / TOPS - 1, top->id);
            off /= g->deviation;
            if (!(fabs(off) <= BF16_LIMIT))
                fail_msg("%s: a log-probability is off by %.3f deviations", g->dir, off);
            square += off * off;
        }
    }
    if (!(sqrt(square / count) <= BF16_RMS_LIMIT))
        fail_msg("%s: log-probabilities are off by %.4f deviations rms", g->dir,
                 sqrt(square / count));
}

static void bf16_arithmetic_stays_within_its_bounds(void **state)
{
    for_each(in_bf16);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_variant_agrees_with_transformers),
    cmocka_unit_test(every_variant_agrees_from_a_packed_store),
    cmocka_unit_test(bf16_arithmetic_stays_within_its_bounds),
};

int main(void)
{
    const char *data = getenv("AQ_TEST_DATA");
    snprintf(golden_dir, sizeof(golden_dir), "%.400s/../golden/data", data ? data : "tests/data");
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
