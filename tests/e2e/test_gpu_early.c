/* SPDX-License-Identifier: Apache-2.0
 * Passes that begin before the tokens of the last are here (engine/exec/early.c): random jobs on
 * the emulated GPU, beside the same executed op by op, where every pass waits. */
#include "base/prng.h"
#include "engine/core/engine_seams.h"
#include "tests/choices.h"
#include "tests/cuda_emu/control.h"
#include "tests/random_model.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VOCAB = 97,
    BAD = 96, /* what is computed with this token is not finite */
    CONTEXT = 80,
    SEQUENCES = 12,
    PROMPT = 24,
    TOKENS = 16,
    TOPS = 3,
    STOPS = 6,
    FIRST = 142,               /* which has rare ways among the first */
    JOBS = TEST_SLOW ? 8 : 24, /* AQ_EARLY_DRAWS: others */
};

static struct {
    char model[TEMP_PATH_MAX + 16], root[TEMP_PATH_MAX];
    __typeof__(aq_emu_order) *order;
    __typeof__(aq_emu_hold) *hold;
    __typeof__(aq_emu_pauses) *pauses;
} rig;

/* One job, drawn from its seed. */
struct job {
    uint64_t seed;
    uint32_t sequences, micro_batches, micro_batch;
    uint32_t pauses; /* aq_emu_pauses */
    bool refill, share, drops;
    bool few, watched; /* tokens of each; some show their logits */
};

struct record {
    struct aq_sequence s;
    uint32_t prompt[PROMPT], tokens[TOKENS], stops[STOPS], forced[TOKENS];
    float logprobs[TOKENS], prompt_logprob[PROMPT];
    struct aq_top tops[TOKENS * TOPS];
    uint32_t looked_at;      /* rows of logits, by on_logits */
    uint32_t shown, ends_at; /* tokens that on_token has seen, and after which it says no */
    bool came_back;
};

static uint32_t below(uint64_t seed, uint64_t of, uint64_t what, uint32_t n)
{
    return (uint32_t)aq_prng_below(seed, of, what, n);
}

/* Each token is shown once, in order. */
static bool show(struct aq_sequence *s)
{
    struct record *r = s->user;
    assert_int_equal(s->token_count, s->given_count + ++r->shown);
    return s->token_count == r->ends_at;
}

static void look(struct aq_sequence *s, uint32_t step, uint32_t worker, const float *logits,
                 const struct aq_logits_stat *stat)
{
    struct record *r = s->user;
    assert_int_equal(step, s->token_count);
    r->looked_at++;
}

static void draw_record(struct record *r, const struct job *j, uint32_t i)
{
    uint64_t seed = j->seed;
    struct aq_sequence *s = &r->s;
    uint32_t alike = j->share && below(seed, i, 1, 2) ? 18 : 0, count = 1 + below(seed, i, 2, 5);
    memset(r, 0, sizeof(*r));
    for (uint32_t n = 0; n < TOKENS; n++)
        r->tokens[n] = INT32_MAX; /* no id */
    for (uint32_t n = 0; n < alike + count; n++)
        r->prompt[n] = n < alike ? n + 3 : below(seed, i, 100 + n, BAD);
    if (!below(seed, i, 3, 6))
        r->prompt[alike] = BAD;
    for (uint32_t n = 0; n < STOPS; n++)
        r->stops[n] = below(seed, i, 200 + n, VOCAB);
    for (uint32_t n = 0; n < TOKENS; n++)
        r->forced[n] = below(seed, i, 300 + n, VOCAB);
    bool scores = !below(seed, i, 4, 10), shown = below(seed, i, 5, 3) > 0;
    *s = (struct aq_sequence){
        .prompt = r->prompt,
        .prompt_count = alike + count,
        .max_tokens = scores ? 0 : 1 + below(seed, i, 6, j->few ? 2 : TOKENS),
        .min_tokens = below(seed, i, 7, 4),
        .sampling = {.temperature = below(seed, i, 8, 2) ? 0.9f : 0,
                     .top_p = 1,
                     .repetition_penalty = below(seed, i, 9, 3) ? 1 : 1.5f,
                     .seed = seed,
                     .record_hash = i},
        .stop_ids = r->stops,
        .stop_id_count = below(seed, i, 10, 2) ? STOPS : 0,
        .forced = below(seed, i, 11, 8) ? NULL : r->forced,
        .top_count = below(seed, i, 12, 2) ? 0 : TOPS,
        .on_token = shown ? show : NULL,
        .tokens = r->tokens,
        .logprobs = r->logprobs,
        .tops = r->tops,
        .user = r,
    };
    s->on_logits = j->watched && !below(seed, i, 16, 3) ? look : NULL;
    s->prompt_logprobs = scores || !below(seed, i, 13, 8);
    s->prompt_logprob = s->prompt_logprobs ? r->prompt_logprob : NULL;
    r->ends_at = below(seed, i, 14, 2 * TOKENS);
    s->given_count = s->max_tokens > 3 && !s->forced && !below(seed, i, 15, 6) ? 2 : 0;
    for (uint32_t n = 0; n < s->given_count; n++)
        r->tokens[n] = below(seed, i, 400 + n, BAD);
}

static void draw_job(struct job *j, uint64_t seed)
{
    *j = (struct job){.seed = seed,
                      .sequences = 1 + below(seed, 1000, 0, SEQUENCES),
                      .micro_batches = 1 + below(seed, 1000, 1, 3),
                      .micro_batch = 1 + below(seed, 1000, 2, 3),
                      .refill = below(seed, 1000, 3, 2) > 0,
                      .share = below(seed, 1000, 4, 2) > 0,
                      .drops = below(seed, 1000, 5, 3) == 0,
                      .few = below(seed, 1000, 6, 3) == 0,
                      .watched = below(seed, 1000, 8, 4) == 0,
                      .pauses = below(seed, 1000, 7, 2) * 40};
}

static void open_engine(struct aq_engine **ret, const struct job *j, bool serial)
{
    struct aq_workload w = {
        .sequences = j->sequences, .prompt_max = PROMPT, .total_max = PROMPT + TOKENS};
    struct aq_engine_opts opts = {
        .model_dir = rig.model,
        .compute = AQ_F32,
        .weight_format = AQ_F32,
        .kv_format = AQ_F32,
        .threads = 1,
        .host_memory = AQ_GIB,
        .cache_dir = rig.root,
        .device = computed_on("cuda"),
        .cuda_module = getenv("AQ_CUDA_MODULE"),
        .device_memory = 160 * AQ_MIB,
        .placement = placed("weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device"),
        .attention = attended("device"),
        .micro_batches = j->micro_batches,
        .micro_batch = j->micro_batch,
        .refill = j->refill,
        .share_prefixes = j->share,
        .serial = serial,
        .deterministic = true,
    };
    struct aq_kv_options h2o = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 10, 0}};
    struct aq_err err = {0};
    if (j->drops)
        assert_int_equal(aq_kv_policy_resolve(&opts.kv, &h2o, NULL), 0);
    int rc = aq_engine_open(ret, &opts, &err);
    rc = rc < 0 ? rc : aq_engine_plan(*ret, &w, &err);
    rc = rc < 0 ? rc : aq_engine_load(*ret, &err);
    if (rc < 0)
        fail_msg("%s", err.text);
}

static void take_finished(struct aq_engine *e)
{
    struct aq_sequence *s;
    while ((s = aq_engine_finished(e))) {
        struct record *r = s->user;
        assert_false(r->came_back);
        r->came_back = true;
    }
}

/* Some of the records come later than the others. */
static struct aq_engine_stats run(struct record *r, const struct job *j, bool serial)
{
    struct aq_engine *e;
    struct aq_engine_stats st;
    struct aq_err err = {0};
    uint32_t sent = 0;
    rig.order(serial ? 0 : j->seed);
    rig.pauses(serial ? 0 : j->pauses);
    open_engine(&e, j, serial);
    for (bool worked = true; worked || sent < j->sequences;) {
        for (uint32_t n = 0; n < 4 && sent < j->sequences; n++)
            draw_record(&r[sent], j, sent), aq_engine_submit(e, &r[sent].s), sent++;
        if (aq_engine_pass(e, &worked, &err) < 0)
            fail_msg("job %llu: %s", (unsigned long long)j->seed, err.text);
        take_finished(e);
    }
    aq_engine_stats(e, &st);
    assert_int_equal(st.finished, j->sequences);
    aq_engine_close(e);
    return st;
}

static void expect_same(const struct record *got, const struct record *want, const struct job *j,
                        uint32_t i)
{
    const struct aq_sequence *g = &got->s, *w = &want->s;
    uint32_t n = w->token_count;
    /* Nothing is written behind the last token either. */
    bool same = got->came_back && want->came_back && g->token_count == n && g->seat == -1 &&
                g->finish == w->finish && g->finish_id == w->finish_id &&
                got->shown == want->shown && got->looked_at == want->looked_at &&
                memcmp(got->tokens, want->tokens, sizeof(got->tokens)) == 0 &&
                memcmp(got->logprobs, want->logprobs, sizeof(got->logprobs)) == 0 &&
                memcmp(got->tops, want->tops, sizeof(got->tops)) == 0 &&
                memcmp(got->prompt_logprob, want->prompt_logprob, sizeof(got->prompt_logprob)) == 0;
    if (!same)
        fail_msg("job %llu, sequence %u: %u tokens, finish %d, shown %u; expected %u, %d, %u",
                 (unsigned long long)j->seed, i, g->token_count, (int)g->finish, got->shown, n,
                 (int)w->finish, want->shown);
}

static void tokens_are_those_of_passes_that_wait(void **state)
{
    static struct record got[SEQUENCES], want[SEQUENCES];
    uint64_t early = 0;
    uint32_t ends[AQ_FINISH_ERROR + 1] = {0};
    const char *given = getenv("AQ_EARLY_DRAWS");
    uint64_t jobs = given ? strtoull(given, NULL, 10) : JOBS;
    (void)state;
    for (uint64_t seed = FIRST; seed < FIRST + jobs; seed++) {
        struct job j;
        draw_job(&j, seed);
        assert_int_equal(run(want, &j, true).early_passes, 0);
        struct aq_engine_stats one = run(got, &j, false), two;
        early += one.early_passes;
        for (uint32_t i = 0; i < j.sequences; i++) {
            expect_same(&got[i], &want[i], &j, i);
            ends[want[i].s.finish]++;
        }
        /* Who sits beside whom does not depend on when tokens come. */
        j.pauses = j.pauses ? 0 : 40;
        two = run(got, &j, false);
        assert_int_equal(two.passes, one.passes);
        assert_int_equal(two.decode_tokens, one.decode_tokens);
    }
    print_message("%llu passes began early; ends: length %u, stop %u, caller %u, error %u\n",
                  (unsigned long long)early, ends[AQ_FINISH_LENGTH], ends[AQ_FINISH_STOP_ID],
                  ends[AQ_FINISH_CALLER], ends[AQ_FINISH_ERROR]);
    assert_true(early > jobs);
    for (int how = AQ_FINISH_LENGTH; how <= AQ_FINISH_ERROR; how++)
        assert_true(ends[how] > 0);
}

/* Seats change hands in every turn, and their pages with them, before a slow device has read what
 * the turn before said of its tables. */
static void tables_change_behind_what_reads_them(void **state)
{
    static struct record got[SEQUENCES], want[SEQUENCES];
    struct job j = {.sequences = SEQUENCES,
                    .micro_batches = 1,
                    .micro_batch = 3,
                    .refill = true,
                    .few = true,
                    .pauses = 1000};
    (void)state;
    for (j.seed = 1; j.seed <= 3; j.seed++) {
        run(want, &j, true);
        run(got, &j, false);
        for (uint32_t i = 0; i < j.sequences; i++)
            expect_same(&got[i], &want[i], &j, i);
    }
}

static bool hold_at_second(struct aq_sequence *s)
{
    if (s->token_count == 2)
        rig.hold(true);
    return false;
}

/* From the second pass's tokens on the device stands still, and the third is over for the host. */
static void a_pass_does_not_wait_for_its_tokens(void **state)
{
    static struct record r[2];
    struct job j = {
        .seed = 5, .sequences = 2, .micro_batches = 1, .micro_batch = 2, .refill = true};
    struct aq_engine *e;
    struct aq_engine_stats st;
    struct aq_err err = {0};
    bool worked = true;
    (void)state;
    rig.order(0);
    open_engine(&e, &j, false);
    for (uint32_t i = 0; i < 2; i++) {
        draw_record(&r[i], &j, i);
        r[i].prompt[0] = 3;
        r[i].s.prompt_count = 1;
        r[i].s.max_tokens = 4 + 2 * i;
        r[i].s.given_count = r[i].s.stop_id_count = 0;
        r[i].s.prompt_logprobs = false;
        r[i].s.on_token = i ? NULL : hold_at_second;
        aq_engine_submit(e, &r[i].s);
    }
    for (uint32_t pass = 0; pass < 3; pass++)
        assert_int_equal(aq_engine_pass(e, &worked, &err), 0);
    assert_int_equal(r[0].s.token_count, 2); /* those of the third are still to come */
    assert_int_equal(r[1].s.token_count, 2);
    rig.hold(false);
    while (worked)
        assert_int_equal(aq_engine_pass(e, &worked, &err), 0);
    take_finished(e);
    assert_true(r[0].came_back && r[1].came_back);
    assert_int_equal(r[0].s.token_count, 4);
    assert_int_equal(r[1].s.token_count, 6);
    aq_engine_stats(e, &st);
    assert_int_equal(st.passes, 6); /* a sequence leaves as soon as it is known to */
    aq_engine_close(e);
}

/* ---- set-up ------------------------------------------------------------------------------ */

/* Makes the embedding of token BAD NaNs; the head has a matrix of its own. */
static void spoil(const char *path)
{
    static const char name[] = "\"model.embed_tokens.weight\"", key[] = "\"data_offsets\":";
    char header[1 << 16];
    uint64_t bytes = 0;
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fread(&bytes, sizeof(bytes), 1, f), 1);
    assert_true(bytes < sizeof(header));
    assert_int_equal(fread(header, 1, bytes, f), bytes);
    header[bytes] = 0;
    const char *at = strstr(header, name);
    assert_non_null(at);
    at = strstr(at, key);
    assert_non_null(at);
    at = strchr(at, '[') + 1;
    char *end;
    unsigned long long first = strtoull(at, &end, 10), last = strtoull(end + 1, NULL, 10);
    unsigned long long row = (last - first) / VOCAB;
    assert_int_equal(fseek(f, (long)(8 + bytes + first + BAD * row), SEEK_SET), 0);
    for (unsigned long long i = 0; i < row; i += sizeof(float))
        assert_int_equal(fwrite(&(float){NAN}, sizeof(float), 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

static int set_up(void **state)
{
    static const struct random_model model = {RANDOM_LLAMA, 2, 96, 6, 2, 16, VOCAB, CONTEXT, 2};
    char path[TEMP_PATH_MAX + 64];
    (void)state;
    void *module = dlopen(getenv("AQ_CUDA_MODULE"), RTLD_NOW);
    assert_non_null(module);
    rig.order = (__typeof__(rig.order))dlsym(module, "aq_emu_order");
    rig.hold = (__typeof__(rig.hold))dlsym(module, "aq_emu_hold");
    rig.pauses = (__typeof__(rig.pauses))dlsym(module, "aq_emu_pauses");
    assert_true(rig.order && rig.hold && rig.pauses);
    temp_dir(rig.root, "gpu-early");
    snprintf(rig.model, sizeof(rig.model), "%s/model", rig.root);
    random_model_write(rig.model, &model, 7);
    snprintf(path, sizeof(path), "%s/model.safetensors", rig.model);
    spoil(path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    temp_remove(rig.root);
    return 0;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_pass_does_not_wait_for_its_tokens),
    cmocka_unit_test(tables_change_behind_what_reads_them),
    cmocka_unit_test(tokens_are_those_of_passes_that_wait),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
