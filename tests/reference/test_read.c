/* SPDX-License-Identifier: Apache-2.0
 * Decoded rows that read a part of their keys, against the reference: with f32 arithmetic and an
 * f32 cache each head of each layer reads the same head-blocks for every token, on random small
 * models, and tokens have the same probabilities.
 *
 * Where f32 may see other bounds or near ties, the reference goes on with the engine's choice; that
 * is counted.  Everything else fails. */
#include "base/prng.h"
#include "engine/core/engine_seams.h"
#include "policy/kv_read.h"
#include "tests/choices.h"
#include "tests/random_model.h"
#include "tests/reference/asked.h"
#include "tests/reference/reference.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOGPROB_LIMIT 2e-4

enum { PAGE = 32, PAGES_MAX = 16, LAYERS_MAX = 4, HEADS_MAX = 4, ROWS_MAX = 96, ROOM = 400 };

static char scratch[TEMP_PATH_MAX];

static int make_scratch(void **state)
{
    (void)state;
    temp_dir(scratch, "read");
    return 0;
}

static int remove_scratch(void **state)
{
    (void)state;
    return temp_remove(scratch);
}

static const char *write_model(const struct random_model *m, uint64_t seed)
{
    static char path[TEMP_INSIDE_MAX];
    snprintf(path, sizeof(path), "%s/model", scratch);
    random_model_write(path, m, seed);
    return path;
}

/* ---- what the engine reads ---- */

struct record {
    uint32_t prompt, fed;
    struct aq_sequence s;
    uint32_t ids[ROOM], tokens[ROWS_MAX];
    float logprobs[ROWS_MAX];
    bool kept[LAYERS_MAX][HEADS_MAX][ROOM]; /* of the prompt */
    bool chose[ROWS_MAX][LAYERS_MAX];
    bool chosen[ROWS_MAX][LAYERS_MAX][HEADS_MAX][PAGES_MAX];
};

static void see(void *user, const struct aq_kv_seen *seen)
{
    struct record *r = seen->sequence->user;
    uint32_t row = seen->seen - r->prompt, layer = seen->layer;
    assert_true(row < ROWS_MAX && layer < LAYERS_MAX && seen->kv_heads <= HEADS_MAX);
    for (uint32_t h = 0; h < seen->kv_heads; h++) {
        for (uint32_t i = 0; i < seen->len[h * seen->len_step] && row == 0; i++) {
            const struct aq_attn_slots *s = &seen->slots;
            r->kept[layer][h][s->position ? s->position[h * s->stride + i] : i] = true;
        }
        for (uint32_t i = 0; seen->chosen && i < seen->chosen_count; i++) {
            uint32_t b = seen->chosen[h * seen->chosen_stride + i];
            assert_true(b < seen->held / PAGE && b < PAGES_MAX);
            assert_false(r->chosen[row][layer][h][b]);
            r->chosen[row][layer][h][b] = true;
        }
    }
    r->chose[row][layer] = seen->chosen != NULL;
}

static void record_open(struct record *r, const struct ref_model *m, uint64_t seed, uint32_t prompt,
                        uint32_t fed)
{
    memset(r, 0, sizeof(*r));
    r->prompt = prompt;
    r->fed = fed;
    assert_true(prompt + fed <= ROOM && fed <= ROWS_MAX);
    for (uint32_t i = 0; i < prompt; i++)
        r->ids[i] = (uint32_t)aq_prng_below(seed, i, 0, m->vocab);
}

struct how {
    enum aq_dtype kv_format;
    const char *isa;
    uint32_t threads, micro_batch;
    const char *placement, *attention;
    uint64_t device; /* bytes of an emulated one; 0: none */
};

static void run_engine(const struct how *how, const char *dir, const struct aq_kv_policy *kv,
                       struct record *r, uint32_t count)
{
    static const char *const disk[] = {scratch, NULL};
    struct aq_engine_opts opts = {.model_dir = dir,
                                  .compute = AQ_F32,
                                  .weight_format = AQ_F32,
                                  .kv_format = (int)how->kv_format,
                                  .kv = *kv,
                                  .threads = how->threads,
                                  .host_memory = AQ_GIB,
                                  .isa = using_isa(how->isa),
                                  .micro_batch = how->micro_batch,
                                  .micro_batches = 1,
                                  .placement = placed(how->placement),
                                  .attention = attended(how->attention),
                                  .emulate_device = how->device,
                                  .disk_dirs = disk,
                                  .disk_dir_count = 1,
                                  .disk_dir_any = true,
                                  .refill = true};
    struct aq_workload w = {.sequences = count};
    struct aq_engine *e;
    struct aq_err err = {0};
    for (uint32_t i = 0; i < count; i++) {
        w.prompt_max = (uint32_t)aq_max_u64(w.prompt_max, r[i].prompt);
        w.total_max = (uint32_t)aq_max_u64(w.total_max, r[i].prompt + r[i].fed);
    }
    int rc = aq_engine_open(&e, &opts, &err);
    rc = rc < 0 ? rc : aq_engine_plan(e, &w, &err);
    if (rc == 0) {
        aq_engine_set_seams(e, &(struct aq_engine_seams){.kv_seen = see});
        rc = aq_engine_load(e, &err);
    }
    if (rc < 0)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < count; i++) {
        r[i].s = (struct aq_sequence){.prompt = r[i].ids,
                                      .prompt_count = r[i].prompt,
                                      .max_tokens = r[i].fed,
                                      .sampling = {.top_p = 1, .repetition_penalty = 1},
                                      .tokens = r[i].tokens,
                                      .logprobs = r[i].logprobs,
                                      .user = &r[i]};
        aq_engine_submit(e, &r[i].s);
    }
    for (bool worked = true; worked;) {
        if (aq_engine_pass(e, &worked, &err) < 0)
            fail_msg("%s", err.text);
    }
    aq_engine_close(e);
}

/* ---- comparison ---- */

struct tally {
    const struct record *record;
    char what[200];
    uint64_t choices, pages_left, adopted;
    double worst_logprob;
};

/* The page of each kept key, in the order of positions; of the others UINT32_MAX. */
static uint32_t find_pages(const struct ref_head *h, uint32_t t, uint32_t page_of[ROOM])
{
    uint32_t count = 0;
    for (uint32_t j = 0; j <= t; j++)
        page_of[j] = h->kept[j] ? count++ / PAGE : UINT32_MAX;
    return count;
}

/* Another page than the reference's must be worth as much, as far as f32 can tell. */
static void expect_near(const struct tally *y, const struct ref_head *h, uint32_t in, uint32_t out)
{
    double apart = log(h->worth[out] + 1e-30) - log(h->worth[in] + 1e-30);
    if (apart > 1e-4 + 2 * h->doubt_of_worth)
        fail_msg("%s: the engine reads page %u (worth %.9g) and not %u (%.9g)", y->what, in,
                 h->worth[in], out, h->worth[out]);
}

static void attends(void *user, struct ref_run *r, uint32_t layer, uint32_t head, uint32_t t)
{
    struct tally *y = user;
    const struct record *record = y->record;
    struct ref_head *h = ref_head(r, layer, head);
    uint32_t page_of[ROOM], row = t + 1 - r->prompt, count = find_pages(h, t, page_of);
    const bool *chosen = record->chosen[row][layer][head];
    bool chooses = layer >= r->policy.read_dense && count > r->policy.read;
    assert_int_equal(record->chose[row][layer], chooses);
    if (!chooses)
        return;
    bool reads[PAGES_MAX] = {false};
    uint32_t full = count / PAGE, more = 0;
    for (uint32_t j = 0; j <= t; j++) {
        if (page_of[j] < full)
            reads[page_of[j]] = !h->left[j];
    }
    assert_true(chosen[0] && chosen[full - 1]);
    for (uint32_t b = 0; b < full; b++) {
        y->pages_left += !chosen[b];
        more += chosen[b];
        for (uint32_t other = 0; other < full && chosen[b] && !reads[b]; other++) {
            if (reads[other] && !chosen[other])
                expect_near(y, h, b, other);
        }
        y->adopted += chosen[b] && !reads[b];
    }
    assert_true(more * PAGE + count % PAGE <= r->policy.read);
    assert_true((more + 1) * PAGE + count % PAGE > r->policy.read);
    y->choices++;
    for (uint32_t j = 0; j <= t; j++)
        h->left[j] = page_of[j] < full && !chosen[page_of[j]];
}

static void compare(struct tally *y, const struct record *record, const struct ref_model *m,
                    const struct ref_policy *policy)
{
    double *logits = calloc(m->vocab, sizeof(*logits));
    struct ref_run *r =
        ref_run_open(m, policy, record->ids, record->prompt, record->prompt + record->fed, logits);
    y->record = record;
    /* What stays of a prompt is compared elsewhere (test_kept.c). */
    for (uint32_t i = 0; i < m->layers * m->kv_heads; i++)
        memcpy(r->head[i].kept, record->kept[i / m->kv_heads][i % m->kv_heads],
               record->prompt * sizeof(bool));
    for (uint32_t t = 0; t < record->fed; t++) {
        if (t)
            ref_run_step(r, record->tokens[t - 1], logits, attends, y);
        double error =
            fabs(ref_logprob(logits, m->vocab, record->tokens[t]) - (double)record->logprobs[t]);
        y->worst_logprob = fmax(y->worst_logprob, error);
        if (!(error <= LOGPROB_LIMIT))
            fail_msg("%s: the log-probability of token %u is off by %.2e", y->what, t, error);
    }
    ref_run_close(r);
    free(logits);
}

/* ---- tests ---- */

static const struct random_model shapes[] = {
    {RANDOM_OPT, 2, 64, 4, 4, 16, 97, ROOM, 2},
    {RANDOM_LLAMA, 2, 96, 6, 2, 16, 97, ROOM, 2},
    {RANDOM_NEOX, 3, 64, 4, 4, 16, 97, ROOM, 2},
    {RANDOM_LLAMA, 2, 64, 8, 1, 8, 97, ROOM, 3},
    {RANDOM_MISTRAL, 3, 64, 6, 2, 12, 97, ROOM, 2, .window = 40, .full_layers = 5},
};

/* The full cache, and prompts that are cut and then read in part. */
static struct asked draw(uint64_t seed, uint64_t i)
{
    struct asked a = {.options = {.policy = "full"}, .variant = REF_FULL};
    struct aq_kv_options *o = &a.options;
    if (aq_prng_below(seed, i, 1, 3) == 0) {
        o->policy = "snapkv";
        a.variant = REF_SNAPKV;
        o->budget = asked_slots(100 + (uint32_t)aq_prng_below(seed, i, 2, 60));
        o->observe_given = true;
        o->observe = 8;
    }
    o->read_given = o->read_dense_given = true;
    o->read = AQ_KV_READ_MIN + (uint32_t)aq_prng_below(seed, i, 3, 90);
    o->read_dense = (uint32_t)aq_prng_below(seed, i, 4, 2);
    return a;
}

static void rows_read_what_the_reference_reads(void **state)
{
    static const char *const isas[] = {"ref", "avx2", "avx512", NULL};
    enum { CROWD = 3 };
    static struct record record[CROWD];
    const char *draws = getenv("AQ_KEPT_DRAWS");
    uint32_t each = draws ? (uint32_t)atoi(draws) : TEST_SLOW ? 2 : 6;
    struct tally y = {0};
    for (uint32_t n = 0; n < AQ_ARRAY_LEN(shapes) * each; n++) {
        const char *dir = write_model(&shapes[n / each], 70 + n), *isa = isas[n % 4];
        struct ref_model *m = ref_model_open(dir);
        struct asked a = draw(5, n);
        unsigned mask;
        char text[128];
        if (isa && (!aq_isa_parse(isa, &mask) || (mask & ~aq_isa_detect())))
            isa = NULL;
        struct how how = {.kv_format = AQ_F32, .isa = isa, .threads = 1, .micro_batch = 1 + n % 3};
        struct aq_kv_policy kv = asked_resolve(&a, text);
        for (uint32_t i = 0; i < CROWD; i++)
            record_open(&record[i], m, 100 * n + i, 60 + (uint32_t)aq_prng_below(n, i, 1, 200),
                        2 + (uint32_t)aq_prng_below(n, i, 2, 70));
        run_engine(&how, dir, &kv, record, CROWD);
        for (uint32_t i = 0; i < CROWD; i++) {
            struct ref_policy p = asked_reference(&a, record[i].prompt, record[i].fed);
            p.read = kv.read;
            p.read_dense = kv.read_dense;
            snprintf(y.what, sizeof(y.what), "draw %u, %s, %u + %u tokens", n, text,
                     record[i].prompt, record[i].fed);
            compare(&y, &record[i], m, &p);
        }
        ref_model_close(m);
    }
    print_message("%llu choices, %llu pages not read, %llu near ties adopted; worst "
                  "log-probability %.1e\n",
                  (unsigned long long)y.choices, (unsigned long long)y.pages_left,
                  (unsigned long long)y.adopted, y.worst_logprob);
    assert_true(y.choices > 200 * each && y.pages_left > y.choices);
    assert_true(y.adopted * 50 < y.choices);
}

static struct aq_kv_policy reading(uint32_t read, uint32_t dense)
{
    struct aq_kv_options o = {
        .read_given = read > 0, .read = read, .read_dense_given = read > 0, .read_dense = dense};
    struct aq_kv_policy kv;
    struct aq_err err;
    if (aq_kv_policy_resolve(&kv, &o, &err) < 0)
        fail_msg("%s", err.text);
    return kv;
}

static void expect_same(const struct record *found, const struct record *want)
{
    assert_memory_equal(found->tokens, want->tokens, sizeof(want->tokens));
    assert_memory_equal(found->logprobs, want->logprobs, sizeof(want->logprobs));
}

enum { PROMPT = 170, FED = 60 };

static void reading_all_changes_no_bit(void **state)
{
    static const enum aq_dtype formats[] = {AQ_F32, AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4};
    static struct record want, found, part;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(formats); i++) {
        const char *dir = write_model(&shapes[i % 3], 5 + i);
        struct ref_model *m = ref_model_open(dir);
        struct how how = {.kv_format = formats[i], .threads = 1, .micro_batch = 1};
        struct aq_kv_policy full = reading(0, 0), all = reading(PROMPT + FED, 0);
        struct aq_kv_policy less = reading(PROMPT - 40, 0);
        record_open(&want, m, i, PROMPT, FED);
        record_open(&found, m, i, PROMPT, FED);
        record_open(&part, m, i, PROMPT, FED);
        run_engine(&how, dir, &full, &want, 1);
        run_engine(&how, dir, &all, &found, 1);
        run_engine(&how, dir, &less, &part, 1);
        expect_same(&found, &want);
        assert_memory_not_equal(part.logprobs, want.logprobs, sizeof(want.logprobs));
        ref_model_close(m);
    }
}

/* Batch mates, threads, the homes of KV and the side that attends change no bit, whatever the
 * format. */
static void nothing_beside_changes_a_bit(void **state)
{
    static const enum aq_dtype formats[] = {AQ_F16, AQ_F32, AQ_Q8, AQ_BF16, AQ_Q4};
    static const struct how others[] = {
        {.threads = 3, .micro_batch = 3},
        {.threads = 1,
         .micro_batch = 2,
         .placement = "weights=100/0/0 kv=0/0/100 hidden=100/0/0 head=host"},
        {.threads = 2,
         .micro_batch = 3,
         .placement = "weights=50/50/0 kv=0/100/0 hidden=100/0/0 head=host",
         .device = 64 * AQ_MIB},
        {.threads = 1,
         .micro_batch = 2,
         .placement = "weights=0/100/0 kv=0/50/50 hidden=100/0/0 head=host",
         .attention = "host",
         .device = 64 * AQ_MIB},
    };
    static struct record want, found[3];
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(others) * AQ_ARRAY_LEN(formats); i++) {
        const char *dir = write_model(&shapes[1 + i % 2], 40 + i);
        struct ref_model *m = ref_model_open(dir);
        struct how alone = {.kv_format = formats[i % 5], .threads = 1, .micro_batch = 1};
        struct how how = others[i % 4];
        struct aq_kv_policy kv = reading(AQ_KV_READ_MIN + 7 * i % 40, i % 2);
        how.kv_format = alone.kv_format;
        record_open(&want, m, i, PROMPT, FED);
        run_engine(&alone, dir, &kv, &want, 1);
        assert_true(want.chose[1][m->layers - 1] && !want.chose[0][m->layers - 1]);
        record_open(&found[0], m, i, PROMPT, FED);
        record_open(&found[1], m, i + 100, 90, 20);
        record_open(&found[2], m, i + 200, 210, 70);
        run_engine(&how, dir, &kv, found, 3);
        expect_same(&found[0], &want);
        ref_model_close(m);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rows_read_what_the_reference_reads),
    cmocka_unit_test(reading_all_changes_no_bit),
    cmocka_unit_test(nothing_beside_changes_a_bit),
};

int main(void)
{
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch) ? 1 : 0;
}
