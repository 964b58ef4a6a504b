/* SPDX-License-Identifier: Apache-2.0
 * The engine on an emulated GPU, or on a real one: the module is loaded as a user's is, and the
 * same sources compute.  In f32 the golden tokens come out wherever weights, KV and hidden states
 * live and whichever side attends; in other formats, and where the KV policy drops keys, every
 * log-probability of tokens that are fed is near what the CPU computes.  AQ_CUDA_MODULE is the
 * module; of a real one nothing can be made to fail. */
#include "base/json.h"
#include "engine/compute/cuda.h"
#include "engine/core/engine_seams.h"
#include "tests/choices.h"
#include "tests/e2e/gpu_rig.h"
#include "tests/random_model.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Calls of the last pass of the run, and how many of them launched a graph. */
static uint64_t calls_of_last_pass(uint64_t *ret_graphs)
{
    const struct aq_emu_counts *to = &rig.after[rig.passes - 1], *from = to - 1;
    assert_true(rig.passes > 3);
    *ret_graphs = to->graph_launches - from->graph_launches;
    return to->works - from->works + to->events - from->events + *ret_graphs;
}

/* Where all lives on the device, a decode pass is a few graphs, and the head. */
static void a_pass_without_edges_is_a_few_calls(void **state)
{
    struct setup s = {.place = &rig_places[0],
                      .compute = AQ_F16,
                      .weights = AQ_F16,
                      .kv = AQ_F16,
                      .deterministic = true};
    struct output one[PROMPTS], two[PROMPTS];
    uint64_t graphs, none;
    (void)state;
    if (TEST_SLOW || !rig.counted)
        skip();
    rig_run(one, &s, true);
    uint64_t calls = calls_of_last_pass(&graphs);
    struct aq_emu_counts *last = &rig.after[rig.passes - 1];
    assert_true(graphs > 0);
    assert_true(last->graphs == last[-1].graphs); /* none is made any more */
    s.serial = true;
    rig_run(two, &s, true);
    uint64_t apart = calls_of_last_pass(&none);
    print_message("calls of a decode pass: %llu, of which %llu launch graphs; op by op %llu\n",
                  (unsigned long long)calls, (unsigned long long)graphs, (unsigned long long)apart);
    assert_int_equal(none, 0);
    assert_true(calls * 5 < apart);
    for (uint32_t n = 0; n < PROMPTS; n++)
        assert_memory_equal(one[n].logprobs, two[n].logprobs, sizeof(one[n].logprobs));
}

/* Keys that go home by kernels do not wait for the blocks of a large product. */
static void copies_come_before_products(void **state)
{
    struct setup s = {.place = &rig_places[1], .compute = AQ_F16, .weights = AQ_F16, .kv = AQ_F16};
    struct output out[PROMPTS];
    (void)state;
    if (TEST_SLOW || !rig.counted)
        skip();
    struct aq_emu_counts before = rig.counted(), after;
    rig_run(out, &s, true);
    after = rig.counted();
    assert_int_equal(after.last_streams - before.last_streams, 2); /* products, and their trial */
    assert_in_range(after.first_streams - before.first_streams, 2, AQ_LANE_COUNT);
}

/* A layer's decode op by op: norm, q, k and v in one product, append, attention, two products with
 * the residual, norm, and the product with its activation; and its two desks, which a list of
 * launches sends once.  Beside the layers: rows and positions, and the head. */
static void a_layer_of_a_decode_pass_is_eight_kernels(void **state)
{
    enum { LAYERS = 6, KERNELS = 8, DESKS = 2, AROUND = 11 };
    struct setup s = {.place = &rig_places[0],
                      .compute = AQ_F16,
                      .weights = AQ_F16,
                      .kv = AQ_F16,
                      .serial = true,
                      .one_batch = true};
    struct output out[PROMPTS];
    (void)state;
    if (TEST_SLOW || !rig.counted)
        skip();
    rig_run(out, &s, true);
    const struct aq_emu_counts *last = &rig.after[rig.passes - 1];
    assert_in_range(last->works - last[-1].works, LAYERS * KERNELS,
                    LAYERS * (KERNELS + DESKS) + AROUND);
}

/* All prompts of a pass that give up keys are summed, selected from, moved and get a first victim
 * in one call each, as they are stored and attended in one; the bits are those of two batches. */
static void prompts_that_lose_keys_share_their_calls(void **state)
{
    enum { LAYERS = 6, CALLS = 4, DESKS = 4 }; /* a desk in front of each call */
    struct aq_kv_options options = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 10, 0}};
    struct setup s = {.place = &rig_places[0],
                      .compute = AQ_F16,
                      .weights = AQ_F16,
                      .kv = AQ_F16,
                      .serial = true,
                      .deterministic = true,
                      .one_batch = true};
    struct output out[PROMPTS], apart[PROMPTS];
    (void)state;
    if (TEST_SLOW || !rig.counted)
        skip();
    rig_run(out, &s, true);
    uint64_t kept = rig.after[0].works - rig.before.works;
    assert_int_equal(aq_kv_policy_resolve(&s.policy, &options, NULL), 0);
    rig_run(out, &s, true);
    uint64_t cut = rig.after[0].works - rig.before.works;
    print_message("works of a pass with %d prompts: %llu, where keys are given up %llu\n", PROMPTS,
                  (unsigned long long)kept, (unsigned long long)cut);
    assert_in_range(cut - kept, LAYERS * CALLS, LAYERS * (CALLS + DESKS));
    s.one_batch = false;
    rig_run(apart, &s, true);
    for (uint32_t n = 0; n < PROMPTS; n++)
        assert_memory_equal(out[n].logprobs, apart[n].logprobs, sizeof(apart[n].logprobs));
}

/* More launches than there is room for go on one by one in the middle of a bundle. */
static void what_does_not_fit_a_list_is_launched_at_once(void **state)
{
    struct aq_kv_options options = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 10, 0}};
    struct setup s = {.compute = AQ_F16, .weights = AQ_F16, .kv = AQ_F16, .deterministic = true};
    struct output one[PROMPTS], two[PROMPTS];
    (void)state;
    assert_int_equal(aq_kv_policy_resolve(&s.policy, &options, NULL), 0);
    for (int i = TEST_SLOW ? 3 : 0; i < 4; i += 3) { /* all on the device, and in three places */
        s.place = &rig_places[i];
        s.launches = 0;
        rig_run(one, &s, true);
        s.launches = 7;
        rig_run(two, &s, true);
        for (uint32_t n = 0; n < PROMPTS; n++)
            assert_memory_equal(one[n].logprobs, two[n].logprobs, sizeof(one[n].logprobs));
    }
}

/* Neither a capture that does not begin nor what is refused inside one reaches what is launched
 * then. */
static void what_cannot_be_captured_is_launched_as_ever(void **state)
{
    struct setup s = {.place = &rig_places[0],
                      .compute = AQ_F16,
                      .weights = AQ_F16,
                      .kv = AQ_F16,
                      .deterministic = true};
    static const enum aq_emu_capture_failure ways[] = {AQ_EMU_FAILS_AT_BEGIN, AQ_EMU_FAILS_INSIDE};
    struct output one[PROMPTS], two[PROMPTS];
    (void)state;
    if (!rig.fail_capture)
        skip();
    rig_run(one, &s, true);
    for (size_t i = 0; i < AQ_ARRAY_LEN(ways); i++) {
        struct aq_emu_counts before = rig.counted();
        rig.fail_capture(ways[i]);
        rig_run(two, &s, true);
        rig.fail_capture(AQ_EMU_CAPTURES);
        assert_int_equal(rig.counted().graph_launches, before.graph_launches);
        for (uint32_t n = 0; n < PROMPTS; n++)
            assert_memory_equal(one[n].logprobs, two[n].logprobs, sizeof(one[n].logprobs));
    }
}

/* What fails on the GPU ends the run, and the message says what the driver said. */
static void a_failure_of_the_gpu_ends_the_run(void **state)
{
    struct setup s = {.place = &rig_places[3], .compute = AQ_F16, .weights = AQ_F16, .kv = AQ_F16};
    struct aq_workload w = {
        .sequences = PROMPTS, .prompt_max = PROMPT_MAX, .total_max = PROMPT_MAX + TOKENS};
    (void)state;
    if (!rig.fail_after)
        skip();
    for (uint64_t after = 1; after < 400; after = after * 3 + 1) {
        struct output out[PROMPTS];
        struct aq_engine *e = NULL;
        struct aq_err err = {0};
        int rc = rig_open_engine(&e, &s, &err);
        rc = rc < 0 ? rc : aq_engine_plan(e, &w, &err);
        rc = rc < 0 ? rc : aq_engine_load(e, &err);
        assert_int_equal(rc, 0);
        for (uint32_t i = 0; i < PROMPTS; i++)
            rig_submit(e, &out[i], i, &s, true);
        rig.fail_after(after);
        for (bool worked = true; rc == 0 && worked;)
            rc = aq_engine_pass(e, &worked, &err);
        assert_int_equal(rc, -EIO);
        if (!strstr(err.text, "an illegal memory access was encountered"))
            fail_msg("after %llu: %s", (unsigned long long)after, err.text);
        rig.recover();
        aq_engine_close(e);
    }
}

/* Opens an engine, plans, and loads it after `between`: the code and the message are these. */
static void expect_no_load(const struct setup *s, void (*between)(void), int code,
                           const char *const *says, size_t count)
{
    struct aq_workload w = {
        .sequences = PROMPTS, .prompt_max = PROMPT_MAX, .total_max = PROMPT_MAX + TOKENS};
    struct aq_engine *e = NULL;
    struct aq_err err = {0};
    assert_int_equal(rig_open_engine(&e, s, &err), 0);
    assert_int_equal(aq_engine_plan(e, &w, &err), 0);
    between();
    assert_int_equal(aq_engine_load(e, &err), code);
    for (size_t i = 0; i < count; i++) {
        if (!strstr(err.text, says[i]))
            fail_msg("'%s' is not in: %s", says[i], err.text);
    }
    aq_engine_close(e);
}

static void take_memory(void)
{
    rig.device_memory(AQ_MIB);
}

static void memory_that_goes_between_plan_and_load_is_said_with_the_cure(void **state)
{
    struct setup s = {.place = &rig_places[0], .compute = AQ_F16, .weights = AQ_F16, .kv = AQ_F16};
    static const char *const says[] = {"are within the budget, but the GPU says 'out of memory'",
                                       "end it, or give a smaller --device-memory"};
    (void)state;
    if (!rig.device_memory)
        skip();
    expect_no_load(&s, take_memory, -ENOMEM, says, AQ_ARRAY_LEN(says));
    rig.device_memory(2 * AQ_GIB);
}

static void take_for_kernels(void)
{
    rig.driver_takes(512, 300 * AQ_MIB);
}

/* Page tables, and kernels that are loaded, are in the ledger as they should be; more than that,
 * and than there is room for, is told. */
static void memory_that_the_driver_takes_beside_the_ledger_is_told(void **state)
{
    struct setup s = {.place = &rig_places[1],
                      .compute = AQ_F16,
                      .weights = AQ_F16,
                      .kv = AQ_F16,
                      .deterministic = true};
    static const char *const says[] = {"beside what was asked for, ", "larger --device-memory"};
    struct output out[PROMPTS];
    (void)state;
    if (!rig.driver_takes)
        skip();
    rig_run(out, &s, true); /* as ever: nothing is refused */
    expect_no_load(&s, take_for_kernels, -ENOMEM, says, AQ_ARRAY_LEN(says));
    rig.driver_takes(512, 16 * AQ_KIB);
}

static void split(void)
{
    rig.blas(AQ_EMU_BLAS_SPLITS);
}

static void what_cannot_be_deterministic_is_refused(void **state)
{
    struct setup s = {.place = &rig_places[0],
                      .compute = AQ_F16,
                      .weights = AQ_F16,
                      .kv = AQ_F16,
                      .deterministic = true};
    static const char *const says[] = {"--deterministic: the GPU 'emulated GPU' does not keep it",
                                       "leave --deterministic out"};
    struct output out[PROMPTS];
    (void)state;
    if (!rig.blas)
        skip();
    expect_no_load(&s, split, -ENODEV, says, AQ_ARRAY_LEN(says));
    s.deterministic = false;
    rig_run(out, &s, true); /* which does not ask for it */
    rig.blas(AQ_EMU_BLAS_RIGHT);
}

/* ---- claims ------------------------------------------------------------------------------ */

static void golden_tokens_come_out_wherever_things_live(void **state)
{
    (void)state;
    for (int i = 0; i < EVERYWHERE; i += TEST_SLOW ? 3 : 1) {
        struct output out[PROMPTS];
        struct setup s = {
            .place = &rig_places[i], .compute = AQ_F32, .weights = AQ_F16, .kv = AQ_F32};
        rig_run(out, &s, false);
        rig_expect_golden(out, rig_places[i].name);
    }
}

/* One op after the other: then the host would be caught at touching the device's memory. */
static void one_op_after_the_other_gives_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < EVERYWHERE; i += TEST_SLOW ? 3 : 1) {
        struct output one[PROMPTS], two[PROMPTS];
        struct setup s = {.place = &rig_places[i],
                          .compute = AQ_F16,
                          .weights = AQ_F16,
                          .kv = AQ_F16,
                          .deterministic = strcmp(rig_places[i].attention, "split") != 0};
        rig_run(one, &s, true);
        s.serial = true;
        rig_run(two, &s, true);
        for (uint32_t n = 0; n < PROMPTS; n++)
            assert_memory_equal(one[n].logprobs, two[n].logprobs, sizeof(one[n].logprobs));
    }
}

/* Do this GPU's tensor cores multiply bf16? */
static bool has_bf16(void)
{
    struct aq_cuda cuda;
    struct aq_err err = {0};
    if (aq_cuda_open(&cuda, rig.module, 0, &err) < 0)
        fail_msg("%s", err.text);
    bool has = aq_gpu_has_bf16(&cuda.info);
    aq_cuda_close(&cuda);
    return has;
}

/* f16 rounds by 2^-11 at each of some ten places, on logits that reach 20. */
static void every_format_is_near_the_cpu(void **state)
{
    /* Where rounding moves a number over the middle between two codes of K or V, it is a step of
     * the codes off. */
    static const struct {
        enum aq_dtype compute, weights, kv;
        float limit;
    } formats[] = {
        {AQ_F32, AQ_F32, AQ_F32, 1e-3f},   {AQ_F16, AQ_F16, AQ_F16, 0.05f},
        {AQ_BF16, AQ_BF16, AQ_BF16, 0.3f}, {AQ_F16, AQ_Q8, AQ_Q8, 0.05f},
        {AQ_F16, AQ_Q4, AQ_Q4, 0.25f},     {AQ_F32, AQ_Q4, AQ_Q8, 0.02f},
    };
    (void)state;
    for (size_t i = 0; i < AQ_ARRAY_LEN(formats); i++) {
        if (formats[i].compute == AQ_BF16 && !has_bf16())
            continue;
        struct output cpu[PROMPTS], gpu[PROMPTS];
        struct setup s = {.compute = AQ_F32, .weights = formats[i].weights, .kv = formats[i].kv};
        char what[100];
        rig_run(cpu, &s, true);
        s.compute = formats[i].compute;
        int first = (int)i % 2 * (TEST_SLOW ? 5 : 1);
        for (int p = first; p < EVERYWHERE; p += TEST_SLOW ? EVERYWHERE : 4) {
            s.place = &rig_places[p];
            s.one_batch = p >= 4; /* its weights are not unpacked ahead of its products */
            snprintf(what, sizeof(what), "%s, compute %s, weights %s, kv %s", rig_places[p].name,
                     aq_dtype_name(s.compute), aq_dtype_name(s.weights), aq_dtype_name(s.kv));
            rig_run(gpu, &s, true);
            rig_expect_near(gpu, cpu, formats[i].limit, what);
        }
    }
}

/* Slots are given up from the first decoded token on, and prompts are cut. */
static void caches_that_shrink_are_near_the_cpu(void **state)
{
    struct aq_kv_options options = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 10, 0}};
    struct output cpu[PROMPTS], gpu[PROMPTS];
    struct setup s = {.compute = AQ_F32, .weights = AQ_F16, .kv = AQ_F32};
    (void)state;
    assert_int_equal(aq_kv_policy_resolve(&s.policy, &options, NULL), 0);
    rig_run(cpu, &s, true);
    for (int p = 0; p < EVERYWHERE; p += TEST_SLOW ? 3 : 1) {
        s.place = &rig_places[p];
        s.serial = p % 2;
        rig_run(gpu, &s, true);
        rig_expect_near(gpu, cpu, 1e-3f, rig_places[p].name);
    }
}

/* Prompts ranked by their last queries, apart and together, or by their keys; one victim for all
 * heads; and many that go at a time. */
static void prompts_ranked_otherwise_are_near_the_cpu(void **state)
{
    enum { VOCAB = 4096, CONTEXT = 128 };
    static const struct aq_kv_options options[] = {
        {.policy = "snapkv", .budget = {AQ_KV_SLOTS, 10, 0}, .observe_given = true, .observe = 4},
        {.policy = "snapkv",
         .budget = {AQ_KV_SLOTS, 10, 0},
         .observe_given = true,
         .observe = 4,
         .pool_given = true,
         .pool = AQ_KV_POOL_MAX,
         .pool_width = 3,
         .pool_order_given = true,
         .group_given = true,
         .group = AQ_ATTN_MAX_OF_SUMS},
        {.policy = "tova", .budget = {AQ_KV_SLOTS, 9, 0}},
        {.policy = "knorm", .budget = {AQ_KV_SLOTS, 7, 0}},
        {.policy = "keydiff", .budget = {AQ_KV_SHARE, 0, 0.5}},
        {.policy = "pyramidkv",
         .budget = {AQ_KV_SLOTS, 10, 0},
         .observe_given = true,
         .observe = 4},
        {.policy = "scissorhands", .budget = {AQ_KV_SLOTS, 12, 0}, .recent = {AQ_KV_SLOTS, 2, 0}},
        {.policy = "h2o",
         .budget = {AQ_KV_SLOTS, 36, 0},
         .decode_given = true,
         .decode = AQ_KV_DECODE_BULK,
         .drop = {AQ_KV_SLOTS, 5, 0}},
        {.policy = "snapkv",
         .budget = {AQ_KV_SLOTS, 14, 0},
         .observe_given = true,
         .observe = 4,
         .decode_given = true,
         .decode = AQ_KV_DECODE_BULK},
    };
    static const struct random_model model = {RANDOM_LLAMA, 2, 96, 6, 2, 16, VOCAB, CONTEXT, 2};
    char trained[sizeof(rig.model)];
    (void)state;
    memcpy(trained, rig.model, sizeof(trained));
    snprintf(rig.model, sizeof(rig.model), "%s/ranked", rig.root);
    random_model_write(rig.model, &model, 61);
    for (size_t i = 0; i < AQ_ARRAY_LEN(options); i++) {
        struct output cpu[PROMPTS], gpu[PROMPTS];
        struct setup s = {.compute = AQ_F32, .weights = AQ_F32, .kv = AQ_F32};
        assert_int_equal(aq_kv_policy_resolve(&s.policy, &options[i], NULL), 0);
        rig_run(cpu, &s, true);
        for (int p = (int)i % 2; p < EVERYWHERE; p += 2) {
            s.place = &rig_places[p];
            rig_run(gpu, &s, true);
            rig_expect_near(gpu, cpu, 1e-3f, options[i].policy);
        }
    }
    memcpy(rig.model, trained, sizeof(trained));
}

/* The module's kernels for rotary positions, norms of heads, gates, shared heads and windows. */
static void other_families_are_near_the_cpu(void **state)
{
    enum { VOCAB = 4096, CONTEXT = 128 };
    static const struct random_model models[] = {
        {RANDOM_LLAMA, 2, 96, 6, 2, 16, VOCAB, CONTEXT, 2},
        {RANDOM_NEOX, 2, 96, 6, 6, 16, VOCAB, CONTEXT, 2},
        {RANDOM_QWEN3, 2, 64, 14, 2, 16, VOCAB, CONTEXT, 2},
        {RANDOM_MISTRAL, 2, 96, 4, 4, 24, VOCAB, CONTEXT, 2, .window = 20},
        {RANDOM_MISTRAL, 3, 96, 4, 2, 24, VOCAB, CONTEXT, 2, .window = 13, .full_layers = 2},
    };
    char trained[sizeof(rig.model)];
    struct aq_kv_options options = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 10, 0}};
    (void)state;
    memcpy(trained, rig.model, sizeof(trained));
    snprintf(rig.model, sizeof(rig.model), "%s/family", rig.root);
    for (size_t i = 0; i < AQ_ARRAY_LEN(models); i++) {
        struct output cpu[PROMPTS], gpu[PROMPTS];
        struct setup s = {.compute = AQ_F32, .weights = AQ_F32, .kv = AQ_F32};
        random_model_write(rig.model, &models[i], 50 + i);
        if (i % 2 == 0)
            assert_int_equal(aq_kv_policy_resolve(&s.policy, &options, NULL), 0);
        rig_run(cpu, &s, true);
        for (int p = (int)i % 2; p < EVERYWHERE; p += TEST_SLOW ? 4 : 2) {
            s.place = &rig_places[p];
            s.serial = p % 4 < 2;
            rig_run(gpu, &s, true);
            rig_expect_near(gpu, cpu, 1e-3f, rig_places[p].name);
        }
    }
    memcpy(rig.model, trained, sizeof(trained));
}

/* Heads that share keys are attended on tensor cores: near the CPU, and the same bits wherever the
 * keys live and whoever is in the batch, with keys dropped too. */
static void groups_of_heads_have_the_same_bits_wherever_keys_live(void **state)
{
    enum { VOCAB = 4096, CONTEXT = 128 };
    /* Of tokens that are fed: with random weights their log-probabilities reach -40. */
    static const struct {
        struct random_model model;
        enum aq_dtype kv;
        bool drops;
        float limit;
    } cases[] = {
        {{RANDOM_QWEN3, 2, 64, 8, 2, 64, VOCAB, CONTEXT, 2}, AQ_F16, false, 0.15f},
        {{RANDOM_QWEN3, 2, 64, 8, 1, 80, VOCAB, CONTEXT, 2}, AQ_Q8, false, 0.15f},
        {{RANDOM_QWEN3, 2, 64, 10, 2, 64, VOCAB, CONTEXT, 2}, AQ_Q4, false, 0.75f},
        {{RANDOM_QWEN3, 2, 64, 8, 2, 64, VOCAB, CONTEXT, 2}, AQ_F16, true, INFINITY},
    };
    static const int where[] = {0, 3, 7}; /* the device multiplies with the head, and attends */
    char trained[sizeof(rig.model)];
    struct aq_kv_options options = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 10, 0}};
    (void)state;
    memcpy(trained, rig.model, sizeof(trained));
    snprintf(rig.model, sizeof(rig.model), "%s/groups", rig.root);
    for (size_t i = 0; i < AQ_ARRAY_LEN(cases); i++) {
        struct output cpu[PROMPTS], first[PROMPTS], gpu[PROMPTS];
        struct setup s = {.compute = AQ_F32, .weights = AQ_F16, .kv = cases[i].kv};
        random_model_write(rig.model, &cases[i].model, 70 + i);
        if (cases[i].drops)
            assert_int_equal(aq_kv_policy_resolve(&s.policy, &options, NULL), 0);
        rig_run(cpu, &s, true);
        s.compute = AQ_F16;
        s.deterministic = true;
        for (size_t p = 0; p < AQ_ARRAY_LEN(where); p++) {
            s.place = &rig_places[where[p]];
            s.one_batch = p % 2;
            rig_run(p ? gpu : first, &s, true);
            if (!p)
                rig_expect_near(first, cpu, cases[i].limit, "groups");
            for (uint32_t n = 0; p && n < PROMPTS; n++)
                assert_memory_equal(gpu[n].logprobs, first[n].logprobs, sizeof(first[n].logprobs));
        }
    }
    memcpy(rig.model, trained, sizeof(trained));
}

/* A golden of few tokens and positions (tests/golden/quantised), with as many positions as the
 * prompts here have. */
static void write_quantised(const char *dir, const char *name)
{
    static const char from[] = "\"max_position_embeddings\": 64";
    char path[4400], other[4400], *text;
    size_t bytes;
    const char *data = getenv("AQ_TEST_DATA");
    int at = snprintf(other, sizeof(other), "%.4000s/../golden/quantised/%s/",
                      data ? data : "tests/data", name);
    assert_true(mkdir(dir, 0700) == 0);
    snprintf(other + at, sizeof(other) - (size_t)at, "model.safetensors");
    char *real = realpath(other, NULL);
    snprintf(path, sizeof(path), "%.4000s/model.safetensors", dir);
    assert_true(real && symlink(real, path) == 0);
    free(real);
    snprintf(other + at, sizeof(other) - (size_t)at, "config.json");
    assert_int_equal(aq_read_file(&text, &bytes, other, AQ_MIB, NULL), 0);
    char *key = strstr(text, from);
    assert_non_null(key);
    snprintf(path, sizeof(path), "%.4000s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%.*s\"max_position_embeddings\": 128%s", (int)(key - text), text,
            key + sizeof(from) - 1);
    assert_int_equal(fclose(f), 0);
    free(text);
}

/* Their panels are made row by row for a GPU, from what was decoded. */
static void quantised_checkpoints_are_near_the_cpu(void **state)
{
    enum { VOCAB = 96 };
    static const char *const names[] = {"fp8_blocks", "gptq_8", "packed"};
    char trained[sizeof(rig.model)];
    struct golden kept[PROMPTS];
    (void)state;
    memcpy(trained, rig.model, sizeof(trained));
    memcpy(kept, rig.golden, sizeof(kept));
    for (int i = 0; i < PROMPTS; i++) {
        for (uint32_t n = 0; n < rig.golden[i].count; n++)
            rig.golden[i].prompt[n] %= VOCAB;
        for (uint32_t n = 0; n < TOKENS; n++)
            rig.golden[i].tokens[n] %= VOCAB;
    }
    for (size_t i = 0; i < AQ_ARRAY_LEN(names); i++) {
        struct output cpu[PROMPTS], gpu[PROMPTS];
        struct setup s = {.compute = AQ_F32, .weights = i ? AQ_BF16 : AQ_Q4, .kv = AQ_F32};
        snprintf(rig.model, sizeof(rig.model), "%s/%s", rig.root, names[i]);
        write_quantised(rig.model, names[i]);
        rig_run(cpu, &s, true);
        for (int p = (int)i % 3; p < EVERYWHERE; p += 3) {
            s.place = &rig_places[p];
            rig_run(gpu, &s, true);
            rig_expect_near(gpu, cpu, 1e-3f, rig_places[p].name);
        }
    }
    memcpy(rig.golden, kept, sizeof(kept));
    memcpy(rig.model, trained, sizeof(trained));
}

static void with_temperature(struct output *o, uint32_t i)
{
    (void)i;
    o->s.sampling.temperature = 1;
}

/* Each of the prompts another way, with penalties, masks, log-probabilities and alternatives. */
static void every_way(struct output *o, uint32_t i)
{
    static const struct aq_sampling ways[PROMPTS] = {
        {.top_p = 1, .repetition_penalty = 1},
        {.temperature = 0.8f,
         .top_p = 1,
         .top_k = 5,
         .repetition_penalty = 1.3f,
         .presence_penalty = 0.5f,
         .frequency_penalty = 0.25f,
         .record_hash = 7},
        {.temperature = 1.5f,
         .top_p = 0.9f,
         .min_p = 0.01f,
         .repetition_penalty = 1,
         .record_hash = 9,
         .choice = 1},
    };
    static const uint32_t stops[] = {2, 1u << 30, 2, 50, 51, 52, 53};
    struct aq_sequence *s = &o->s;
    s->sampling = ways[i];
    s->top_count = i == 0 ? 3 : i == 1 ? 0 : TOPS;
    s->logprobs = o->logprobs;
    s->tops = i == 1 ? NULL : o->tops;
    s->prompt_logprobs = i < 2;
    s->prompt_logprob = i < 2 ? o->prompt_logprob : NULL;
    s->prompt_tops = i == 0 ? o->prompt_tops : NULL;
    s->stop_ids = stops;
    s->stop_id_count = i ? AQ_ARRAY_LEN(stops) : 0;
    s->min_tokens = TOKENS;
}

/* The same draws and the same ties. */
static void sampled_tokens_are_the_cpus(void **state)
{
    void (*const ways[])(struct output *, uint32_t) = {with_temperature, every_way};
    (void)state;
    for (size_t w = 0; w < AQ_ARRAY_LEN(ways); w++) {
        struct output cpu[PROMPTS], gpu[PROMPTS];
        struct setup s = {.compute = AQ_F32, .weights = AQ_F16, .kv = AQ_F32, .ways = ways[w]};
        rig_run(cpu, &s, false);
        s.place = &rig_places[w];
        rig_run(gpu, &s, false);
        for (uint32_t i = 0; i < PROMPTS; i++)
            assert_memory_equal(gpu[i].tokens, cpu[i].tokens, sizeof(cpu[i].tokens));
        rig_expect_near(gpu, cpu, 1e-3f, ways[w] == every_way ? "every way" : "temperature");
    }
}

/* Most ids have no token, and those that would come have none either. */
static void with_holes(struct output *o, uint32_t i)
{
    o->s.id_end = 1000;
    o->s.never = rig.golden[i].tokens;
    o->s.never_count = TOKENS;
    o->s.sampling.temperature = i == 1 ? 1 : 0;
    o->s.top_count = 0;
    o->s.logprobs = o->logprobs;
}

static bool is_never(uint32_t id, uint32_t i)
{
    bool found = id >= 1000;
    for (uint32_t n = 0; n < TOKENS; n++)
        found = found || id == rig.golden[i].tokens[n];
    return found;
}

static void ids_without_a_token_are_never_chosen(void **state)
{
    struct output cpu[PROMPTS], gpu[PROMPTS];
    struct setup s = {.compute = AQ_F32, .weights = AQ_F16, .kv = AQ_F32, .ways = with_holes};
    uint32_t beyond = 0;
    (void)state;
    rig_run(cpu, &s, false);
    s.place = &rig_places[0];
    rig_run(gpu, &s, false);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        assert_memory_equal(gpu[i].tokens, cpu[i].tokens, sizeof(cpu[i].tokens));
        for (uint32_t n = 0; n < TOKENS; n++) {
            assert_false(is_never(cpu[i].tokens[n], i));
            beyond += rig.golden[i].tokens[n] >= 1000;
        }
    }
    assert_in_range(beyond, 1, PROMPTS * TOKENS - 1); /* both kinds would have come */
    rig_expect_near(gpu, cpu, 1e-3f, "holes");
}

/* Kernels choose, or the host where somebody looks at the logits: of all sequences, or of one that
 * sits among others. */
static void who_watches_changes_nothing(void **state)
{
    struct output want[PROMPTS], got[PROMPTS];
    struct setup s = {.place = &rig_places[1],
                      .compute = AQ_F16,
                      .weights = AQ_F16,
                      .kv = AQ_F16,
                      .ways = every_way,
                      .watched = 7,
                      .deterministic = true};
    (void)state;
    rig_run(want, &s, false);
    for (uint32_t watched = 0; watched < 4; watched += TEST_SLOW ? 2 : 1) {
        s.watched = watched;
        s.serial = watched == 2;
        s.place = &rig_places[watched % 2];
        rig_run(got, &s, false);
        for (uint32_t i = 0; i < PROMPTS; i++) {
            assert_int_equal(got[i].watched, watched >> i & 1 ? TOKENS : 0);
            assert_memory_equal(got[i].tokens, want[i].tokens, sizeof(want[i].tokens));
            assert_memory_equal(got[i].logprobs, want[i].logprobs, sizeof(want[i].logprobs));
            assert_memory_equal(got[i].tops, want[i].tops, sizeof(want[i].tops));
            assert_memory_equal(got[i].prompt_logprob, want[i].prompt_logprob,
                                sizeof(want[i].prompt_logprob));
            assert_memory_equal(got[i].prompt_tops, want[i].prompt_tops,
                                sizeof(want[i].prompt_tops));
        }
    }
    assert_true(want[0].prompt_tops[TOPS].logprob < 0);
}

/* Nothing but the choices does where everything lives on the device. */
static void a_chosen_token_comes_home_as_a_few_bytes(void **state)
{
    struct setup s = {.place = &rig_places[0], .compute = AQ_F16, .weights = AQ_F16, .kv = AQ_F16};
    struct output out[PROMPTS];
    (void)state;
    if (!rig.bytes_home)
        skip();
    for (int w = 0; w < 2; w++) {
        uint64_t before = rig.bytes_home();
        s.ways = w ? with_temperature : NULL;
        rig_run(out, &s, false);
        /* Rounded up to 16 for each micro-batch and pass: one token in it at least. */
        uint64_t bytes = rig.bytes_home() - before;
        assert_in_range(bytes, PROMPTS * TOKENS * 12, PROMPTS * TOKENS * 16);
    }
}

static void expect_refusal(const struct aq_engine_opts *opts, int code, const char *part)
{
    struct aq_engine *e;
    struct aq_err err = {0};
    assert_int_equal(aq_engine_open(&e, opts, &err), code);
    if (!strstr(err.text, part))
        fail_msg("expected '%s' in '%s'", part, err.text);
}

static void what_cannot_be_had_is_said(void **state)
{
    struct aq_engine_opts o = {.model_dir = rig.model,
                               .compute = -1,
                               .weight_format = -1,
                               .kv_format = -1,
                               .threads = 1,
                               .host_memory = AQ_GIB,
                               .cuda_module = rig.module};
    (void)state;
    if (!rig.gpus)
        skip();
    o.device = computed_on("cuda:7");
    expect_refusal(&o, -ENODEV, "GPU 7: the NVIDIA driver offers 1");
    o.device = computed_on("cuda");
    rig.gpus(1, cudaErrorInsufficientDriver);
    rig.driver(12040);
    expect_refusal(&o, -ENODEV, "too old: it knows CUDA 12.4, needed is 13.0 or later");
    rig.driver(0);
    expect_refusal(&o, -ENODEV, "no NVIDIA driver is installed");
    rig.driver(13000);
    rig.gpus(0, cudaErrorNoDevice);
    expect_refusal(&o, -ENODEV, "finds no GPU: no CUDA-capable device is detected");
    rig.gpus(1, cudaSuccess);
    rig.host_addresses(false);
    expect_refusal(&o, -ENODEV, "does not know pinned memory by the host's addresses");
    rig.host_addresses(true);
    o.device_memory = 3 * AQ_GIB;
    expect_refusal(&o, -ENOMEM, "bytes, but of the");
    o.device_memory = 0;
    o.host_products = multiplied("20%");
    expect_refusal(&o, -EINVAL, "--host-products");
    o.host_products = multiplied(NULL);
    struct aq_kv_options adakv = {.policy = "adakv", .budget = {AQ_KV_SHARE, 0, 0.5}};
    assert_int_equal(aq_kv_policy_resolve(&o.kv, &adakv, NULL), 0);
    expect_refusal(&o, -EINVAL, "--kv-policy adakv: heads that hold different numbers of tokens");
    struct aq_kv_options ada = {.policy = "ada-pyramid", .budget = {AQ_KV_SHARE, 0, 0.5}};
    assert_int_equal(aq_kv_policy_resolve(&o.kv, &ada, NULL), 0);
    expect_refusal(&o, -EINVAL, "--device cpu, or --kv-policy pyramidkv");
    o.kv = (struct aq_kv_policy){0};
    o.deterministic = true;
    o.attention = attended("split:20%");
    expect_refusal(&o, -EINVAL, "--attention split");
    o.deterministic = false;
    o.cuda_module = "/nonexistent/module.so";
    expect_refusal(&o, -ENODEV, "the CUDA backend cannot be loaded");
    o.device = computed_on("cpu");
    o.device_memory = AQ_GIB;
    expect_refusal(&o, -EINVAL, "--device-memory");
}

/* Asked of a model that turns its keys. */
static void positions_in_the_cache_are_refused(void **state)
{
    static const struct random_model model = {RANDOM_LLAMA, 2, 96, 6, 2, 16, 97, 80, 2};
    struct aq_kv_options window = {.policy = "window",
                                   .budget = {AQ_KV_SLOTS, 16, 0},
                                   .positions_given = true,
                                   .positions = AQ_KV_POSITIONS_CACHE};
    char dir[sizeof(rig.model)];
    struct aq_engine_opts o = {.model_dir = dir,
                               .compute = -1,
                               .weight_format = -1,
                               .kv_format = -1,
                               .threads = 1,
                               .host_memory = AQ_GIB,
                               .device = computed_on("cuda"),
                               .cuda_module = rig.module};
    (void)state;
    snprintf(dir, sizeof(dir), "%s/turning", rig.root);
    random_model_write(dir, &model, 62);
    assert_int_equal(aq_kv_policy_resolve(&o.kv, &window, NULL), 0);
    expect_refusal(&o, -EINVAL, "--kv-positions cache: queries are turned in front of sinks");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_cannot_be_had_is_said),
    cmocka_unit_test(positions_in_the_cache_are_refused),
    cmocka_unit_test(golden_tokens_come_out_wherever_things_live),
    cmocka_unit_test(one_op_after_the_other_gives_the_same_bits),
    cmocka_unit_test(a_pass_without_edges_is_a_few_calls),
    cmocka_unit_test(a_layer_of_a_decode_pass_is_eight_kernels),
    cmocka_unit_test(copies_come_before_products),
    cmocka_unit_test(prompts_that_lose_keys_share_their_calls),
    cmocka_unit_test(what_does_not_fit_a_list_is_launched_at_once),
    cmocka_unit_test(what_cannot_be_captured_is_launched_as_ever),
    cmocka_unit_test(every_format_is_near_the_cpu),
    cmocka_unit_test(caches_that_shrink_are_near_the_cpu),
    cmocka_unit_test(prompts_ranked_otherwise_are_near_the_cpu),
    cmocka_unit_test(other_families_are_near_the_cpu),
    cmocka_unit_test(groups_of_heads_have_the_same_bits_wherever_keys_live),
    cmocka_unit_test(quantised_checkpoints_are_near_the_cpu),
    cmocka_unit_test(sampled_tokens_are_the_cpus),
    cmocka_unit_test(ids_without_a_token_are_never_chosen),
    cmocka_unit_test(who_watches_changes_nothing),
    cmocka_unit_test(a_chosen_token_comes_home_as_a_few_bytes),
    cmocka_unit_test(a_failure_of_the_gpu_ends_the_run),
    cmocka_unit_test(memory_that_goes_between_plan_and_load_is_said_with_the_cure),
    cmocka_unit_test(memory_that_the_driver_takes_beside_the_ledger_is_told),
    cmocka_unit_test(what_cannot_be_deterministic_is_refused),
};

int main(void)
{
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down) ? 1 : 0;
}
