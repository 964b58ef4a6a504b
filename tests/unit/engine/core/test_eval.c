/* SPDX-License-Identifier: Apache-2.0
 * `aquifer eval` and its parts: the combinations of a sweep, distances between distributions, means
 * with their errors, attention statistics against a plain computation, and what the command says of
 * the small trained model. */
#include "base/json.h"
#include "base/prng.h"
#include "engine/commands/commands.h"
#include "engine/exec/attention_stats.h"
#include "engine/measure/eval_compare.h"
#include "engine/measure/eval_sweep.h"
#include "engine/measure/eval_windows.h"
#include "tests/random_model.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch[64]; /* for logits */

static int make_scratch(void **state)
{
    strcpy(scratch, "/tmp/aq-eval-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
    return rmdir(scratch); /* nothing may be left in it */
}

/* Words separated by '|'; NULL when they are refused. */
static struct aq_options *parse(const char *words, struct aq_err *err)
{
    char *text = strdup(words), *args[40], *save = NULL;
    int count = 0;
    bool help = false;
    struct aq_options *o = NULL;
    assert_non_null(text);
    for (char *w = strtok_r(text, "|", &save); w; w = strtok_r(NULL, "|", &save))
        args[count++] = w;
    int rc = aq_options_from_args(&o, "eval", count, args, &help, err);
    free(text);
    return rc < 0 ? NULL : o;
}

/* ---- sweeps ---- */

#define BASE "--model|m|--ids|i|--prompt-tokens|4|--score-tokens|2|"

static void a_sweep_is_all_combinations_of_its_lists(void **state)
{
    static const char *const want[] = {"kv-format=f32 kv-policy=full",
                                       "kv-format=int8 kv-policy=full", "kv-format=f16"};
    struct aq_options *o = parse(
        BASE "--threads|3|--kv-format|int4|--sweep|kv-format=f32,int8  kv-policy=full|--sweep|"
             "kv-format=f16",
        NULL);
    struct aq_eval_sweep s;
    struct aq_err err;
    assert_int_equal(aq_eval_sweep_open(&s, o, &err), 0);
    assert_int_equal(s.count, AQ_ARRAY_LEN(want));
    static const int formats[] = {AQ_F32, AQ_Q8, AQ_F16};
    for (uint32_t i = 0; i < s.count; i++) {
        assert_string_equal(s.run[i].text, want[i]);
        assert_int_equal(s.run[i].options->kv_format, formats[i]);
        assert_int_equal(s.run[i].options->threads, 3);
        assert_int_equal(s.run[i].options->sweep.count, 0);
    }
    aq_eval_sweep_close(&s);
    aq_options_close(o);
}

static void without_a_sweep_there_is_one_run(void **state)
{
    struct aq_options *o = parse(BASE "--kv-format|int4", NULL);
    struct aq_eval_sweep s;
    assert_int_equal(aq_eval_sweep_open(&s, o, NULL), 0);
    assert_int_equal(s.count, 1);
    assert_string_equal(s.run[0].text, "");
    assert_int_equal(s.run[0].options->kv_format, AQ_Q4);
    aq_eval_sweep_close(&s);
    aq_options_close(o);
}

/* What a policy is compared with differs from it by the policy alone. */
static void the_full_cache_has_the_other_options_of_the_run(void **state)
{
    struct aq_options *full = NULL,
                      *o = parse(BASE "--kv-format|int8|--kv-policy|h2o|--kv-budget|20%|--kv-sinks|"
                                      "2|--compare-full|--weight-format|int4",
                                 NULL);
    assert_non_null(o);
    assert_int_equal(aq_eval_full_options(&full, o, NULL), 0);
    assert_int_equal(full->kv_format, AQ_Q8);
    assert_int_equal(full->weight_format, AQ_Q4);
    assert_int_equal(full->prompt_tokens, 4);
    assert_true(!full->kv_policy || strcmp(full->kv_policy, "full") == 0);
    assert_int_equal(aq_options_check(full, NULL), 0); /* no budget is left behind */
    aq_options_close(full);
    aq_options_close(o);
}

static void sweeps_that_make_no_sense_are_refused(void **state)
{
    static const char *const cases[][2] = {
        {"kv-format", "key=value"},
        {"=f16", "key=value"},
        {"kv-format=", "key=value"},
        {" ", "found none"},
        {"threads=1,2", "found 'threads'"},
        {"kv-format=f16,f99", "'kv-format=f99'"},
        {"kv-fromat=f16", "nearest one is 'kv-format'"},
        {"kv-format=f16,", "'kv-format='"},
        {"kv-format=f16 kv-budget=2 kv-format=f32", "'kv-format' stands twice"},
        {"kv-format=f16 kv_format=f32", "'kv-format' stands twice"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        char words[256];
        struct aq_err err = {0};
        struct aq_eval_sweep s;
        snprintf(words, sizeof(words), BASE "--sweep|%s", cases[i][0]);
        struct aq_options *o = parse(words, &err);
        if (!o)
            fail_msg("%s", err.text);
        assert_int_equal(aq_eval_sweep_open(&s, o, &err), -EINVAL);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("'%s': expected '%s' in: %s", cases[i][0], cases[i][1], err.text);
        aq_options_close(o);
    }
}

/* ---- means and distances ---- */

static void a_mean_has_the_error_of_its_windows(void **state)
{
    /* Means of 1, 2 and 6 a token: deviation sqrt(7), error sqrt(7 / 3). */
    double sum[] = {4, 8, 24};
    struct aq_eval_mean m = aq_eval_mean(sum, 3, 4);
    assert_float_equal(m.mean, 3, 1e-12);
    assert_float_equal(m.se, sqrt(7.0 / 3), 1e-6);
    assert_true(isnan(aq_eval_mean(sum, 1, 4).se));
}

enum { VOCAB = 50, WINDOWS = 3, TOKENS = 2 };

static struct aq_logits_stat stat_of(const float *logits)
{
    struct aq_logits_stat s = {.max = -INFINITY};
    double sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        sum += exp((double)logits[i]);
        if (logits[i] > s.max) {
            s.max = logits[i];
            s.argmax = i;
        }
    }
    s.log_sum_exp = (float)log(sum);
    return s;
}

static void distances_are_those_of_the_distributions(void **state)
{
    struct aq_eval_compare_opts opts = {
        .directory = scratch, .windows = WINDOWS, .tokens = TOKENS, .vocab = VOCAB, .threads = 2};
    struct aq_eval_compare *c;
    struct aq_err err = {0};
    if (aq_eval_compare_open(&c, &opts, &err) < 0)
        fail_msg("%s", err.text);
    float p[WINDOWS][TOKENS][VOCAB], q[VOCAB];
    double want[WINDOWS] = {0};
    uint32_t agreed[WINDOWS] = {0};
    for (uint32_t w = 0; w < WINDOWS; w++) {
        for (uint32_t t = 0; t < TOKENS; t++) {
            for (uint32_t i = 0; i < VOCAB; i++)
                p[w][t][i] = 3 * aq_prng_normal(w, t, i);
            struct aq_logits_stat s = stat_of(p[w][t]);
            aq_eval_compare_keep(c, w, t, p[w][t], &s);
        }
    }
    for (uint32_t w = WINDOWS; w-- > 0;) {
        for (uint32_t t = 0; t < TOKENS; t++) {
            for (uint32_t i = 0; i < VOCAB; i++) /* window 0 is the same again */
                q[i] = p[w][t][i] + (float)w * aq_prng_normal(7 + w, t, i);
            struct aq_logits_stat sp = stat_of(p[w][t]), sq = stat_of(q);
            aq_eval_compare_row(c, w, t, w % 2, q, &sq);
            double zp = 0, zq = 0;
            for (uint32_t i = 0; i < VOCAB; i++) {
                zp += exp((double)p[w][t][i]);
                zq += exp((double)q[i]);
            }
            for (uint32_t i = 0; i < VOCAB; i++)
                want[w] += exp((double)p[w][t][i]) / zp *
                           log(exp((double)p[w][t][i]) / zp / (exp((double)q[i]) / zq));
            agreed[w] += sp.argmax == sq.argmax;
        }
    }
    for (uint32_t w = 0; w < WINDOWS; w++) {
        assert_float_equal(aq_eval_compare_kl(c)[w], want[w], 1e-5);
        assert_int_equal(aq_eval_compare_agreed(c)[w], agreed[w]);
        assert_true(w == 0 ? want[w] == 0 && agreed[w] == TOKENS : want[w] > 0.01);
    }
    assert_int_equal(aq_eval_compare_check(c, &err), 0);
    aq_eval_compare_reset(c);
    for (uint32_t w = 0; w < WINDOWS; w++) {
        assert_true(aq_eval_compare_kl(c)[w] == 0);
        assert_int_equal(aq_eval_compare_agreed(c)[w], 0);
    }
    aq_eval_compare_close(c);
}

static void logits_that_need_too_much_room_are_refused(void **state)
{
    struct aq_eval_compare_opts opts = {.directory = scratch,
                                        .disk_memory = 2 * 3 * 1000 * 4 - 1,
                                        .windows = 2,
                                        .tokens = 3,
                                        .vocab = 1000,
                                        .threads = 1};
    struct aq_eval_compare *c = NULL;
    struct aq_err err = {0};
    assert_int_equal(aq_eval_compare_open(&c, &opts, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "--windows"));
    opts.disk_memory++;
    assert_int_equal(aq_eval_compare_open(&c, &opts, &err), 0);
    aq_eval_compare_close(c);
}

/* ---- attention statistics ---- */

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 8, N_MAX = 45, IDS = 9 };

struct rows {
    uint32_t n, ids[N_MAX];
    float qk[N_MAX][(HEADS + KV_HEADS) * DIM];
};

static void draw_rows(struct rows *r, uint64_t seed, uint32_t n)
{
    r->n = n;
    for (uint32_t i = 0; i < n; i++) {
        r->ids[i] = (uint32_t)aq_prng_below(seed, i, 0, IDS);
        for (uint32_t c = 0; c < (HEADS + KV_HEADS) * DIM; c++)
            r->qk[i][c] = 2 * aq_prng_normal(seed, i, 1 + c);
    }
}

struct plain {
    double below[HEADS], entries[HEADS], token[IDS];
    double column[HEADS][N_MAX];
};

static void plain_stats(struct plain *p, const struct rows *r, float scale, uint32_t window)
{
    memset(p->column, 0, sizeof(p->column));
    for (uint32_t h = 0; h < HEADS; h++) {
        for (uint32_t i = 0; i < r->n; i++) {
            double e[N_MAX], sum = 0, max = 0;
            for (uint32_t j = 0; j <= i; j++) {
                double dot = 0;
                for (uint32_t d = 0; d < DIM; d++)
                    dot += (double)r->qk[i][h * DIM + d] *
                           (double)r->qk[j][(HEADS + h / (HEADS / KV_HEADS)) * DIM + d];
                e[j] = i - j < window ? exp(dot * (double)scale) : 0;
                sum += e[j];
                max = fmax(max, e[j]);
            }
            for (uint32_t j = i + 1 > window ? i + 1 - window : 0; j <= i; j++) {
                p->below[h] += e[j] < 0.01 * max;
                p->entries[h]++;
                p->column[h][j] += e[j] / sum;
                p->token[r->ids[j]] += e[j] / sum;
            }
        }
    }
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double real_at(const json_t *o, const char *key, size_t i)
{
    const json_t *list = json_object_get(o, key);
    assert_true(i < json_array_size(list));
    return json_number_value(json_array_get(list, i));
}

static void attention_statistics_equal_plain_ones(void **state)
{
    static struct rows r[2][LAYERS];
    static const uint32_t lengths[2] = {N_MAX, 31};
    struct aq_attention_stats_opts opts = {LAYERS, HEADS, KV_HEADS, DIM, IDS, N_MAX, 3, 0.3f};
    struct aq_attention_stats *s;
    struct aq_pool *pool;
    assert_int_equal(aq_pool_open(&pool, 3, NULL), 0);
    assert_int_equal(aq_attention_stats_open(&s, &opts, NULL), 0);
    struct plain p[LAYERS] = {0};
    double top[LAYERS] = {0}, first[LAYERS] = {0};
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        uint32_t prompt = i / LAYERS, layer = i % LAYERS;
        struct rows *at = &r[prompt][layer];
        draw_rows(at, 10 + i, lengths[prompt]);
        uint32_t window = layer ? 18 : 0; /* of the second layer */
        struct aq_attention_rows rows = {
            layer,   at->n, at->qk[0], at->qk[0] + HEADS * DIM, (HEADS + KV_HEADS) * DIM,
            at->ids, window};
        aq_attention_stats_add(s, pool, &rows);
        plain_stats(&p[layer], at, opts.scale, window ? window : N_MAX);
        for (uint32_t h = 0; h < HEADS; h++) {
            qsort(p[layer].column[h], at->n, sizeof(double), rising);
            first[layer] += p[layer].column[h][at->n - 1] / at->n / HEADS / 2;
            for (uint32_t n = 0; n < ceil(0.1 * at->n); n++) /* shares[3] */
                top[layer] += p[layer].column[h][at->n - 1 - n] / at->n / HEADS / 2;
        }
    }
    json_t *o = aq_attention_stats_json(s);
    assert_int_equal(json_integer_value(json_object_get(o, "prompts")), 2);
    assert_float_equal(real_at(o, "shares", 3), 0.1, 1e-12);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const json_t *layer = json_array_get(json_object_get(o, "layers"), l);
        double below = 0, entries = 0, largest = 0, tokens = 0;
        for (uint32_t h = 0; h < HEADS; h++) {
            below += p[l].below[h];
            entries += p[l].entries[h];
            assert_float_equal(real_at(layer, "sparsity_by_head", h),
                               p[l].below[h] / p[l].entries[h], 1e-6);
        }
        assert_in_range(below, 1, entries - 1);
        assert_float_equal(json_real_value(json_object_get(layer, "sparsity")), below / entries,
                           1e-6);
        assert_float_equal(real_at(layer, "top_share", 3), top[l], 1e-5);
        assert_float_equal(real_at(layer, "score_at_rank", 0), first[l], 1e-5);
        for (uint32_t i = 0; i < IDS; i++) {
            largest = fmax(largest, p[l].token[i]);
            tokens += p[l].token[i];
        }
        assert_float_equal(real_at(layer, "token_share_at_rank", 0), largest / tokens, 1e-5);
    }
    json_decref(o);
    aq_attention_stats_close(s);
    aq_pool_close(pool);
}

/* ---- the command ---- */

struct output {
    char *text;
    size_t bytes;
};

static void take_output(void *user, const char *bytes, size_t count)
{
    struct output *o = user;
    o->text = realloc(o->text, o->bytes + count + 1);
    assert_non_null(o->text);
    memcpy(o->text + o->bytes, bytes, count);
    o->bytes += count;
    o->text[o->bytes] = '\0';
}

/* What `eval` prints on the trained model with f32 arithmetic; as JSON, or in *ret_text. */
static json_t *evaluate(const char *more, char **ret_text)
{
    char *words, model[4096];
    struct aq_err err = {0};
    snprintf(model, sizeof(model), "%s", test_data_path("tiny-opt"));
    assert_true(asprintf(&words,
                         "--model|%s|--text|%s/golden/eval.txt|--compute|f32|--host-memory|1GiB|"
                         "--threads|2|--disk-dir|%s|%s",
                         model, model, scratch, more) > 0);
    struct aq_options *o = parse(words, &err);
    free(words);
    struct output out = {0};
    struct aquifer_hooks hooks = {.user = &out, .output = take_output};
    if (!o || aq_cmd_eval(o, &hooks, &err) < 0)
        fail_msg("%s", err.text);
    aq_options_close(o);
    json_t *document = NULL;
    if (ret_text) {
        *ret_text = out.text;
        return NULL;
    }
    if (aq_json_parse(&document, out.text, out.bytes, false, &err) < 0)
        fail_msg("%s", err.text);
    free(out.text);
    return document;
}

static double real_of(const json_t *o, const char *key)
{
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

static void the_full_cache_equals_the_golden_loss_and_itself(void **state)
{
    json_t *golden, *o = evaluate("--prompt-tokens|128|--score-tokens|64|--windows|8|"
                                  "--compare-full|--attention-stats",
                                  NULL);
    assert_int_equal(
        aq_json_read_file(&golden, test_data_path("tiny-opt/golden/eval.json"), 1 << 20, NULL), 0);
    const json_t *want = json_array_get(json_object_get(golden, "runs"), 0);
    assert_string_equal(json_string_value(json_object_get(want, "policy")), "full");
    assert_int_equal(json_integer_value(json_object_get(want, "P")), 128);
    assert_float_equal(real_of(o, "nll"), real_of(want, "nll"), 1e-4);
    assert_int_equal(json_integer_value(json_object_get(o, "tokens_scored")), 512);
    assert_true(real_of(o, "delta_nll") == 0 && real_of(o, "kl_to_full") == 0);
    assert_true(real_of(o, "top1_agreement") == 1);
    assert_true(json_is_true(json_object_get(o, "no_effect")));
    const json_t *kept = json_object_get(o, "kept_slots");
    assert_string_equal(json_string_value(json_object_get(kept, "nominal")), "all");
    assert_int_equal(json_integer_value(json_object_get(kept, "max")), 128 + 63);
    assert_float_equal(real_of(kept, "mean"), 128 + 32, 1e-9);
    const json_t *stats = json_object_get(o, "attention_stats");
    assert_int_equal(json_integer_value(json_object_get(stats, "prompts")), 8);
    assert_int_equal(json_array_size(json_object_get(stats, "layers")), 6);
    json_decref(o);
    json_decref(golden);
}

/* Of the golden program's losses under each policy.  Its sums are f32 in another order, which moves
 * means by up to 5e-7; another key dropped anywhere moves them by more. */
#define NLL_LIMIT 2e-5

static void check_golden_run(const json_t *want)
{
    const char *policy = json_string_value(json_object_get(want, "policy"));
    uint32_t heavy = (uint32_t)json_integer_value(json_object_get(want, "H")),
             recent = (uint32_t)json_integer_value(json_object_get(want, "R")),
             prompt = (uint32_t)json_integer_value(json_object_get(want, "P")),
             fed = (uint32_t)json_integer_value(json_object_get(want, "G")),
             windows = (uint32_t)json_integer_value(json_object_get(want, "windows"));
    bool window = strcmp(policy, "window") == 0;
    char words[256];
    snprintf(
        words, sizeof(words),
        "--prompt-tokens|%u|--score-tokens|%u|--windows|%u|--kv-policy|%s|--kv-budget|%u|%s|%u",
        prompt, fed, windows, policy, heavy + recent, window ? "--kv-sinks" : "--kv-heavy", heavy);
    json_t *o = evaluate(words, NULL);
    double error = real_of(o, "nll") - real_of(want, "nll");
    print_message("%u + %u, %s %u + %u: nll %.6f (%+.1e)\n", prompt, fed, policy, heavy, recent,
                  real_of(o, "nll"), error);
    assert_true(fabs(error) < NLL_LIMIT);
    assert_true(json_is_false(json_object_get(o, "no_effect")));
    const json_t *kept = json_object_get(o, "kept_slots");
    assert_int_equal(json_integer_value(json_object_get(kept, "nominal")), heavy + recent);
    assert_int_equal(json_integer_value(json_object_get(kept, "max")), heavy + recent);
    assert_float_equal(real_of(kept, "mean"), heavy + recent, 1e-9);
    json_decref(o);
}

static void policies_give_the_golden_losses(void **state)
{
    json_t *golden;
    const json_t *want;
    size_t i;
    unsigned checked = 0;
    assert_int_equal(
        aq_json_read_file(&golden, test_data_path("tiny-opt/golden/eval.json"), 1 << 20, NULL), 0);
    json_array_foreach(json_object_get(golden, "runs"), i, want)
    {
        bool full = json_is_null(json_object_get(want, "H"));
        if (full || (TEST_SLOW && json_integer_value(json_object_get(want, "P")) > 128))
            continue;
        check_golden_run(want);
        checked++;
    }
    assert_true(checked >= (TEST_SLOW ? 2 : 7));
    json_decref(golden);
}

static void a_policy_with_room_for_everything_is_the_full_cache(void **state)
{
    json_t *o =
        evaluate("--prompt-tokens|40|--score-tokens|20|--windows|3|--compare-full|--kv-policy|"
                 "h2o|--kv-budget|100%",
                 NULL);
    assert_true(json_is_true(json_object_get(o, "no_effect")));
    assert_true(real_of(o, "delta_nll") == 0 && real_of(o, "kl_to_full") == 0);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "kept_slots"), "max")),
                     40 + 19);
    json_decref(o);
    o = evaluate("--prompt-tokens|40|--score-tokens|20|--windows|3|--compare-full|--kv-policy|h2o|"
                 "--kv-budget|30%|--attention-stats",
                 NULL);
    assert_true(json_is_false(json_object_get(o, "no_effect")));
    assert_true(real_of(o, "kl_to_full") > 0.1 && real_of(o, "top1_agreement") < 1);
    json_decref(o);
}

/* The same slots on average, in room for what each head rounds up. */
static void heads_that_share_are_scored_too(void **state)
{
#define WORDS "--prompt-tokens|40|--score-tokens|20|--windows|3|--compare-full|--kv-policy|"
    json_t *h2o = evaluate(WORDS "h2o|--kv-budget|32", NULL);
    json_t *o = evaluate(WORDS "adakv|--kv-budget|32", NULL);
    const json_t *kept = json_object_get(o, "kept_slots"), *policy = json_object_get(o, "policy");
    assert_int_equal(json_integer_value(json_object_get(kept, "max")), 32);
    assert_float_equal(real_of(kept, "mean"), 32, 1e-9);
    assert_float_equal(real_of(o, "kv_bytes"), 2 * real_of(h2o, "kv_bytes"), 0.5);
    assert_string_equal(json_string_value(json_object_get(policy, "floor")), "20%");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(policy, "slots"), "floor")),
                     3);
    assert_true(json_is_false(json_object_get(o, "no_effect")));
    assert_true(real_of(o, "kl_to_full") > 0.01 && real_of(o, "nll") != real_of(h2o, "nll"));
    json_decref(o);
    json_decref(h2o);
    o = evaluate(WORDS "adakv|--kv-budget|100%", NULL);
    assert_true(json_is_true(json_object_get(o, "no_effect")));
    assert_true(real_of(o, "delta_nll") == 0 && real_of(o, "kl_to_full") == 0);
    json_decref(o);
#undef WORDS
}

static void a_sweep_compares_each_run_with_the_full_cache(void **state)
{
    json_t *o = evaluate("--prompt-tokens|40|--score-tokens|20|--windows|3|--compare-full|"
                         "--kv-format|f32|--json|--sweep|kv-format=f32,int4",
                         NULL);
    const json_t *rows = json_object_get(o, "rows"), *same = json_array_get(rows, 0),
                 *coarse = json_array_get(rows, 1), *full = json_object_get(o, "full");
    assert_int_equal(json_array_size(rows), 2);
    assert_string_equal(json_string_value(json_object_get(coarse, "sweep")), "kv-format=int4");
    assert_true(real_of(same, "kl_to_full") == 0 && real_of(same, "top1_agreement") == 1);
    assert_true(real_of(coarse, "kl_to_full") > 1e-4 && real_of(coarse, "kl_to_full") < 0.5);
    assert_true(real_of(coarse, "kl_to_full_se") > 0);
    assert_true(real_of(coarse, "delta_nll_se") > 0);
    assert_float_equal(real_of(coarse, "delta_nll"), real_of(coarse, "nll") - real_of(full, "nll"),
                       1e-6);
    assert_true(real_of(coarse, "kv_bytes") < real_of(full, "kv_bytes"));
    json_decref(o);
}

static void a_sweep_without_json_is_a_table(void **state)
{
    char *text;
    evaluate("--prompt-tokens|20|--score-tokens|5|--windows|2|--sweep|kv-format=f32,f16", &text);
    unsigned lines = 0;
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    assert_int_equal(lines, 4);
    assert_non_null(strstr(text, "\n| kv-format=f16 | 22.5 |"));
    free(text);
}

static void options_that_exclude_each_other_are_refused(void **state)
{
    static const char *const cases[][2] = {
        {"--sweep|kv-format=f16|--attention-stats", "--attention-stats"},
        {"--sweep|kv-format=f16|--report|r", "--report"},
        {"--prompt-tokens|0|--compare-full", "one prefill"},
        {"--prompt-tokens|0|--kv-policy|h2o|--kv-budget|4", "one prefill"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        char words[256];
        struct aq_err err = {0};
        snprintf(words, sizeof(words), BASE "%s", cases[i][0]);
        struct aq_options *o = parse(words, &err);
        assert_non_null(o);
        assert_int_equal(aq_options_check(o, &err), -EINVAL);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], err.text);
        aq_options_close(o);
    }
}

/* A command that is refused on a random model that turns its keys and knows 64 positions. */
static void expect_refusal(const char *words, const char *part)
{
    static const struct random_model shape = {RANDOM_LLAMA, 2, 32, 2, 1, 16, 97, 64, 1};
    char root[TEMP_PATH_MAX], dir[TEMP_INSIDE_MAX], ids[TEMP_INSIDE_MAX], line[4096];
    struct aq_err err = {0};
    temp_dir(root, "eval");
    snprintf(dir, sizeof(dir), "%s/turning", root);
    snprintf(ids, sizeof(ids), "%s/ids", root);
    random_model_write(dir, &shape, 7);
    FILE *f = fopen(ids, "w");
    assert_non_null(f);
    for (uint32_t i = 0; i < 200; i++)
        fprintf(f, "%u\n", i % 97);
    assert_int_equal(fclose(f), 0);
    snprintf(line, sizeof(line), "--model|%s|--ids|%s|--threads|1|--host-memory|1GiB|%s", dir, ids,
             words);
    struct aq_options *o = parse(line, &err);
    struct aquifer_hooks hooks = {0};
    if (!o)
        fail_msg("%s", err.text);
    assert_int_equal(aq_cmd_eval(o, &hooks, &err), -EINVAL);
    if (!strstr(err.text, part))
        fail_msg("%s: expected '%s' in: %s", words, part, err.text);
    assert_int_equal(temp_remove(root), 0);
    aq_options_close(o);
}

/* The full cache has no positions for what comes behind the model's. */
static void longer_contexts_have_no_full_cache_to_compare_with(void **state)
{
    static const char *const cases[] = {
        "--context|200",
        "--context|200|--dry-run",
        "--context|200|--sweep|kv-budget=8,16",
    };
    (void)state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        char words[512];
        snprintf(words, sizeof(words),
                 "--prompt-tokens|20|--score-tokens|20|--kv-policy|window|--kv-budget|16|"
                 "--kv-positions|cache|--compare-full|%s",
                 cases[i]);
        expect_refusal(words, "knows 64, and the context is 200; expected --context 64 or less, or "
                              "no --compare-full");
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_sweep_is_all_combinations_of_its_lists),
    cmocka_unit_test(without_a_sweep_there_is_one_run),
    cmocka_unit_test(the_full_cache_has_the_other_options_of_the_run),
    cmocka_unit_test(sweeps_that_make_no_sense_are_refused),
    cmocka_unit_test(a_mean_has_the_error_of_its_windows),
    cmocka_unit_test(distances_are_those_of_the_distributions),
    cmocka_unit_test(logits_that_need_too_much_room_are_refused),
    cmocka_unit_test(attention_statistics_equal_plain_ones),
    cmocka_unit_test(the_full_cache_equals_the_golden_loss_and_itself),
    cmocka_unit_test(policies_give_the_golden_losses),
    cmocka_unit_test(a_policy_with_room_for_everything_is_the_full_cache),
    cmocka_unit_test(heads_that_share_are_scored_too),
    cmocka_unit_test(a_sweep_compares_each_run_with_the_full_cache),
    cmocka_unit_test(a_sweep_without_json_is_a_table),
    cmocka_unit_test(options_that_exclude_each_other_are_refused),
    cmocka_unit_test(longer_contexts_have_no_full_cache_to_compare_with),
};

int main(void)
{
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch) ? 1 : 0;
}
