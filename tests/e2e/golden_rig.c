/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/e2e/golden_rig.h"
#include "tests/choices.h"

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

enum { TOPS = 20, VARIANTS_MAX = 64 };

/* f32 arithmetic against f64: 9e-6 was the largest difference seen, on logits that reach 20. */
#define F32_LIMIT 1e-4

static uint32_t read_ids(const json_t *list, uint32_t *ids, uint32_t max)
{
    size_t n = json_array_size(list);
    assert_in_range(n, 1, max);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

void golden_read(struct golden *g, const char *root, const char *variant)
{
    char path[600], *bytes;
    size_t count;
    json_t *expected;
    *g = (struct golden){.weights = -1};
    snprintf(g->dir, sizeof(g->dir), "%s/%s", root, variant);
    snprintf(path, sizeof(path), "%s/expected.json", g->dir);
    assert_int_equal(aq_json_read_file(&expected, path, AQ_MIB, NULL), 0);
    g->vocab = (uint32_t)json_integer_value(json_object_get(expected, "vocab"));
    g->logit_rows = (uint32_t)json_integer_value(json_object_get(expected, "logit_rows"));
    g->deviation = json_real_value(json_object_get(expected, "logit_deviation"));
    assert_true(g->deviation > 0.5);
    const json_t *prompts = json_object_get(expected, "prompts");
    uint32_t row = 0;
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *o = json_array_get(prompts, i);
        assert_in_range(i, 0, GOLDEN_PROMPTS_MAX - 1);
        struct golden_prompt *p = &g->prompt[g->prompt_count++];
        p->count = read_ids(json_object_get(o, "ids"), p->ids, GOLDEN_PROMPT_MAX);
        p->greedy_count = read_ids(json_object_get(o, "greedy"), p->greedy, GOLDEN_GREEDY_MAX);
        p->first_row = row;
        row += p->count;
    }
    assert_true(row == g->logit_rows && row > 0);
    snprintf(path, sizeof(path), "%s/logits.f32", g->dir);
    assert_int_equal(aq_read_file(&bytes, &count, path, AQ_MIB, NULL), 0);
    assert_int_equal(count, 4ul * g->logit_rows * g->vocab);
    g->logits = (float *)(void *)bytes;
    json_decref(expected);
}

void golden_free(struct golden *g)
{
    free(g->logits);
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
    uint32_t tokens[GOLDEN_GREEDY_MAX];
    float logprobs[GOLDEN_GREEDY_MAX], prompt_logprob[GOLDEN_PROMPT_MAX];
    struct aq_top tops[GOLDEN_GREEDY_MAX * TOPS], prompt_tops[GOLDEN_PROMPT_MAX * TOPS];
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
    int weights;
    /* NULL: all in memory; else beside an emulated device. */
    const char *placement, *attention, *cache;
};

static void run_engine(const struct golden *g, const struct setup *s, struct output *output)
{
    struct aq_engine_opts opts = {.model_dir = s->dir,
                                  .compute = (int)s->compute,
                                  .weight_format = s->weights,
                                  .kv_format = (int)s->kv,
                                  .threads = 2,
                                  .isa = using_isa(s->isa),
                                  .host_memory = AQ_GIB,
                                  .refill = true};
    if (s->placement) {
        opts.emulate_device = 64 * AQ_MIB;
        opts.placement = placed(s->placement);
        if (s->attention)
            opts.attention = attended(s->attention);
        opts.cache_dir = s->cache;
        opts.disk_dir_any = true;
    }
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

static void must_agree_in(const struct golden *g, const struct setup *s)
{
    static struct output output[GOLDEN_PROMPTS_MAX];
    run_engine(g, s, output);
    for (uint32_t i = 0; i < g->prompt_count; i++)
        check(g, &g->prompt[i], &output[i], s->what);
}

static void must_agree(const struct golden *g, const char *dir, const char *isa, const char *what)
{
    must_agree_in(g, &(struct setup){dir, isa, what, AQ_F32, AQ_F32, .weights = g->weights});
}

/* ---- over all variants ---- */

static uint32_t list_variants(char names[VARIANTS_MAX][64], const char *root, uint32_t least)
{
    uint32_t count = 0;
    DIR *d = opendir(root);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        struct stat st;
        char path[800];
        snprintf(path, sizeof(path), "%s/%s/expected.json", root, entry->d_name);
        if (stat(path, &st) < 0)
            continue;
        assert_in_range(count, 0, VARIANTS_MAX - 1);
        snprintf(names[count++], 64, "%.63s", entry->d_name);
    }
    closedir(d);
    assert_in_range(count, least, VARIANTS_MAX);
    return count;
}

void golden_for_each(const char *root, uint32_t least, void (*fn)(const struct golden *))
{
    static char names[VARIANTS_MAX][64];
    uint32_t count = list_variants(names, root, least);
    for (uint32_t i = 0; i < count; i++) {
        static struct golden g;
        golden_read(&g, root, names[i]);
        fn(&g);
        golden_free(&g);
    }
}

void golden_on_every_isa(const struct golden *g)
{
    static const char *const isas[] = {"ref", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
    unsigned have = aq_isa_detect();
    for (size_t i = 0; i < AQ_ARRAY_LEN(isas); i++) {
        unsigned mask;
        assert_true(aq_isa_parse(isas[i], &mask));
        if ((mask & have) == mask)
            must_agree(g, g->dir, isas[i], isas[i]);
    }
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

void golden_from_a_store(const struct golden *g)
{
    char scratch[TEMP_PATH_MAX], store[TEMP_INSIDE_MAX];
    struct aq_model_opts model_opts = {.dir = g->dir};
    struct aq_model *model;
    temp_dir(scratch, "golden");
    assert_int_equal(aq_model_open(&model, &model_opts, NULL), 0);
    enum aq_dtype dtype = g->weights < 0 ? model->checkpoint_dtype : (enum aq_dtype)g->weights;
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

static void must_be_the_same(const struct golden *g, const struct output *a, const struct output *b,
                             const char *what)
{
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        size_t prompt = g->prompt[i].count;
        bool same = memcmp(a[i].tokens, b[i].tokens, sizeof(a[i].tokens)) == 0 &&
                    memcmp(a[i].tops, b[i].tops,
                           sizeof(a[i].tops[0]) * TOPS * g->prompt[i].greedy_count) == 0 &&
                    memcmp(a[i].prompt_tops + TOPS, b[i].prompt_tops + TOPS,
                           sizeof(a[i].tops[0]) * TOPS * (prompt - 1)) == 0;
        if (!same)
            fail_msg("%s, %s: other bits than from memory", g->dir, what);
    }
}

void golden_wherever_weights_live(const struct golden *g, enum aq_dtype compute, int weights)
{
    static struct output want[GOLDEN_PROMPTS_MAX], output[GOLDEN_PROMPTS_MAX];
    static const char *const places[] = {
        "weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device",
        "weights=0/100/0 kv=0/100/0 hidden=0/100/0 head=host",
        "weights=0/0/100 kv=0/0/100 hidden=0/0/100 head=host",
    };
    char root[TEMP_PATH_MAX], store[TEMP_INSIDE_MAX];
    struct aq_model_opts model_opts = {.dir = g->dir};
    struct aq_model *model;
    struct setup s = {.dir = g->dir,
                      .what = "in memory",
                      .compute = compute,
                      .kv = AQ_F32,
                      .weights = weights,
                      .cache = root};
    temp_dir(root, "golden");
    run_engine(g, &s, want);
    for (size_t i = 0; i < AQ_ARRAY_LEN(places); i++) {
        s.what = s.placement = places[i];
        run_engine(g, &s, output);
        must_be_the_same(g, want, output, s.what);
    }
    assert_int_equal(aq_model_open(&model, &model_opts, NULL), 0);
    enum aq_dtype dtype = weights < 0 ? model->checkpoint_dtype : (enum aq_dtype)weights;
    aq_model_close(model);
    snprintf(store, sizeof(store), "%s/store", root);
    pack(g, store, dtype, aq_layout_cpu(dtype));
    s = (struct setup){
        .dir = store, .what = "a store", .compute = compute, .kv = AQ_F32, .weights = -1};
    run_engine(g, &s, output);
    must_be_the_same(g, want, output, s.what);
    assert_int_equal(temp_remove(root), 0);
}

static bool has_windows(const struct golden *g)
{
    struct aq_model_opts opts = {.dir = g->dir};
    struct aq_model *model;
    char text[80];
    assert_int_equal(aq_model_open(&model, &opts, NULL), 0);
    bool has = aq_kv_windows_text(text, sizeof(text), &model->steps);
    aq_model_close(model);
    return has;
}

bool golden_with_windows_in_every_place(const struct golden *g)
{
    static const struct {
        const char *placement, *attention;
    } places[] = {
        {"weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device", "device"},
        {"weights=0/100/0 kv=0/100/0 hidden=100/0/0 head=device", "device"},
        {"weights=0/100/0 kv=0/100/0 hidden=0/100/0 head=host", "host"},
        {"weights=0/100/0 kv=0/100/0 hidden=100/0/0 head=device", "split"},
        {"weights=0/0/100 kv=0/0/100 hidden=0/0/100 head=host", "device"},
        {"weights=50/0/50 kv=0/0/100 hidden=100/0/0 head=host", "host"},
        {"weights=40/30/30 kv=25/25/50 hidden=100/0/0 head=device", "split"},
    };
    char cache[TEMP_PATH_MAX];
    if (!has_windows(g))
        return false;
    temp_dir(cache, "golden");
    for (size_t i = 0; i < AQ_ARRAY_LEN(places); i++)
        must_agree_in(g,
                      &(struct setup){g->dir, NULL, places[i].placement, AQ_F32, AQ_F32, g->weights,
                                      places[i].placement, places[i].attention, cache});
    assert_int_equal(temp_remove(cache), 0);
    return true;
}

void golden_in_bf16(const struct golden *g, const struct golden_limits *limits)
{
    static struct output output[GOLDEN_PROMPTS_MAX];
    const struct setup s = {g->dir, NULL, "bf16", AQ_BF16, AQ_BF16, .weights = g->weights};
    double square = 0, count = 0;
    run_engine(g, &s, output);
    for (uint32_t n = 0; n < g->prompt_count; n++) {
        const struct golden_prompt *p = &g->prompt[n];
        for (uint32_t i = TOPS; i < p->count * TOPS; i++, count++) {
            const struct aq_top *top = &output[n].prompt_tops[i];
            double off = top->logprob - golden_logprob(g, p->first_row + i / TOPS - 1, top->id);
            off /= g->deviation;
            if (!(fabs(off) <= limits->one))
                fail_msg("%s: a log-probability is off by %.3f deviations", g->dir, off);
            square += off * off;
        }
    }
    if (!(sqrt(square / count) <= limits->rms))
        fail_msg("%s: log-probabilities are off by %.4f deviations rms", g->dir,
                 sqrt(square / count));
}
