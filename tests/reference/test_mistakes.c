/* SPDX-License-Identifier: Apache-2.0
 * The goldens of model families see the mistakes that are easily made: the reference agrees with
 * every one of them, and with a mistake it agrees no longer.  A mistake is made by changing
 * config.json as it is read, the model that was read, or, where neither says it, the reference's
 * own way (enum ref_mistake). */
#include "tests/e2e/golden_rig.h"
#include "tests/reference/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the engine must keep to as well (golden_rig.h). */
#define LIMIT 1e-4

static const char *root(void)
{
    return test_data_path("../golden/families");
}

/* The largest difference of any logit of any prompt's position. */
static double difference(const struct golden *g, const struct ref_model *m)
{
    struct ref_policy full = {.variant = REF_FULL};
    double *logits = calloc(m->vocab, sizeof(*logits)), worst = 0;
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        const struct golden_prompt *p = &g->prompt[i];
        struct ref_run *r = ref_run_open(m, &full, p->ids, 1, p->count + p->greedy_count, logits);
        for (uint32_t t = 0; t < p->count; t++) {
            const float *golden = g->logits + (size_t)(p->first_row + t) * g->vocab;
            if (t > 0)
                ref_run_step(r, p->ids[t], logits, NULL, NULL);
            for (uint32_t n = 0; n < m->vocab; n++)
                worst = fmax(worst, fabs(logits[n] - (double)golden[n]));
        }
        ref_run_close(r);
    }
    free(logits);
    return worst;
}

static double largest;

static void agrees(const struct golden *g)
{
    struct ref_model *m = ref_model_open(g->dir);
    double found = difference(g, m);
    if (!(found < LIMIT))
        fail_msg("%s: logits are off by %.1e", g->dir, found);
    largest = fmax(largest, found);
    ref_model_close(m);
}

static void the_reference_agrees_with_every_golden(void **state)
{
    golden_for_each(root(), 24, agrees);
    print_message("largest difference %.1e\n", largest);
}

/* ---- mistakes of a model that was read ---- */

static void scale_by_hidden(struct ref_model *m)
{
    m->scale = 1 / sqrt((double)m->hidden / m->heads);
}

static void swap_gate(struct ref_model *m)
{
    for (uint32_t i = 0; i < m->layers; i++) {
        struct ref_linear up = m->layer[i].up;
        m->layer[i].up = m->layer[i].gate;
        m->layer[i].gate = up;
    }
}

static void forget_biases(struct ref_model *m)
{
    for (uint32_t i = 0; i < m->layers; i++) {
        struct ref_linear *const all[] = {&m->layer[i].q, &m->layer[i].k, &m->layer[i].v};
        for (int n = 0; n < 3; n++)
            memset(all[n]->b, 0, all[n]->out * sizeof(*all[n]->b));
    }
}

static void forget_head_norms(struct ref_model *m)
{
    for (uint32_t i = 0; i < m->layers; i++) {
        for (uint32_t d = 0; d < m->head_dim; d++)
            m->layer[i].norm_q.w[d] = m->layer[i].norm_k.w[d] = 1;
    }
}

static void always_short(struct ref_model *m)
{
    memcpy(m->rotary.frequency[1], m->rotary.frequency[0], sizeof(*m->rotary.frequency));
}

static void always_long(struct ref_model *m)
{
    memcpy(m->rotary.frequency[0], m->rotary.frequency[1], sizeof(*m->rotary.frequency));
}

#define YARN(more)                                                                                 \
    "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "                                    \
    "\"original_max_position_embeddings\": 32, " more "}}"

/* Between borders that are the same there is no band: frequencies of the middle are divided by the
 * factor like those below it. */
#define NO_MIDDLE                                                                                  \
    "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 4.0, "   \
    "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 32}}"

static const struct mistake {
    const char *what, *golden;
    const char *config;                /* changes to it */
    void (*model)(struct ref_model *); /* what is changed of it, once it is read */
    enum ref_mistake own;
} mistakes[] = {
    {.what = "interleaved rotation", .golden = "llama_1", .own = REF_INTERLEAVED},
    {.what = "rotation of all dims", .golden = "neox", .config = "{\"rotary_pct\": 1}"},
    {.what = "rotation of too few dims",
     .golden = "phi3_partial",
     .config = "{\"partial_rotary_factor\": 0.5}"},
    {.what = "linear scaling ignored",
     .golden = "llama_linear",
     .config = "{\"rope_scaling\": null}"},
    {.what = "llama3 scaling ignored", .golden = "llama_3", .config = "{\"rope_scaling\": null}"},
    {.what = "llama3 without its middle band", .golden = "llama_3", .config = NO_MIDDLE},
    {.what = "yarn without its factor",
     .golden = "llama_yarn_biased",
     .config = YARN("\"attention_factor\": 1.0")},
    {.what = "yarn not truncated",
     .golden = "llama_yarn_biased",
     .config = YARN("\"truncate\": false")},
    {.what = "yarn ignored", .golden = "llama_yarn_biased", .config = "{\"rope_scaling\": null}"},
    {.what = "longrope, short for long", .golden = "phi3_long", .model = always_short},
    {.what = "longrope, long for short", .golden = "phi3_long", .model = always_long},
    {.what = "window one too wide", .golden = "mistral", .config = "{\"sliding_window\": 10}"},
    {.what = "window one too narrow", .golden = "phi3", .config = "{\"sliding_window\": 9}"},
    {.what = "windows of every layer",
     .golden = "qwen2_windows",
     .config = "{\"max_window_layers\": 0}"},
    {.what = "a window that is not used",
     .golden = "qwen2",
     .config = "{\"use_sliding_window\": true, \"max_window_layers\": 0}"},
    {.what = "scale by hidden / heads", .golden = "qwen3", .model = scale_by_hidden},
    {.what = "query heads modulo key heads", .golden = "llama_tied", .own = REF_HEADS_MODULO},
    {.what = "biases of q, k and v left out", .golden = "qwen2", .model = forget_biases},
    {.what = "head norms behind the rotation", .golden = "qwen3", .own = REF_LATE_NORMS},
    {.what = "head norms without weights", .golden = "qwen3", .model = forget_head_norms},
    {.what = "gate and up swapped", .golden = "llama_1", .model = swap_gate},
    {.what = "fused gate and up swapped", .golden = "phi3", .model = swap_gate},
    {.what = "GPT-NeoX: q, k, v not by head", .golden = "neox", .own = REF_FUSED_BY_KIND},
    {.what = "GPT-NeoX: second norm behind attention",
     .golden = "neox",
     .config = "{\"use_parallel_residual\": false}"},
    {.what = "GPT-NeoX: parallel though sequential",
     .golden = "neox_sequential",
     .config = "{\"use_parallel_residual\": true}"},
    {.what = "tanh GELU for erf", .golden = "neox", .config = "{\"hidden_act\": \"gelu_new\"}"},
    {.what = "erf GELU for tanh", .golden = "neox_tanh", .config = "{\"hidden_act\": \"gelu\"}"},
    {.what = "epsilon 1e-5 for 1e-6",
     .golden = "llama_small",
     .config = "{\"rms_norm_eps\": 1e-5}"},
};

static void every_mistake_is_seen_by_a_golden(void **state)
{
    for (size_t i = 0; i < AQ_ARRAY_LEN(mistakes); i++) {
        const struct mistake *w = &mistakes[i];
        static struct golden g;
        golden_read(&g, root(), w->golden);
        struct ref_model *m = ref_model_open_wrong(g.dir, w->config, w->own);
        if (w->model)
            w->model(m);
        double found = difference(&g, m);
        print_message("%-40s %-18s %.1e\n", w->what, w->golden, found);
        if (!(found > LIMIT))
            fail_msg("%s: %s is off by %.1e only", w->what, w->golden, found);
        ref_model_close(m);
        golden_free(&g);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_reference_agrees_with_every_golden),
    cmocka_unit_test(every_mistake_is_seen_by_a_golden),
};
AQ_TEST_MAIN(tests)
