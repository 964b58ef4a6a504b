/* SPDX-License-Identifier: Apache-2.0
 * The engine on an emulated GPU: the module is loaded as the real one is, and the same sources
 * compute.  In f32 the golden tokens come out wherever weights, KV and hidden states live and
 * whichever side attends; in other formats, and where the KV policy drops keys, every
 * log-probability of tokens that are fed is near what the CPU computes.  AQ_CUDA_MODULE is the
 * module. */
#include "base/json.h"
#include "engine/cuda.h"
#include "engine/engine_seams.h"
#include "tests/cuda_emu/control.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPTS = 3, PROMPT_MAX = 64, TOKENS = TEST_SLOW ? 3 : 6, EVERYWHERE = 8 };

static struct {
    char model[4096], root[TEMP_PATH_MAX];
    const char *module;
    /* Of the module: in which order its streams are served, what fails, and
     * what it says of driver and GPUs (control.h). */
    __typeof__(aq_emu_order) *order;
    __typeof__(aq_emu_fail_after) *fail_after;
    __typeof__(aq_emu_recover) *recover;
    __typeof__(aq_emu_gpus) *gpus;
    __typeof__(aq_emu_driver) *driver;
    uint64_t seed;
    struct golden {
        uint32_t prompt[PROMPT_MAX], count, tokens[TOKENS];
    } golden[PROMPTS];
} rig;

#define DEVICE_BYTES (160 * AQ_MIB)

/* Where things live, and who attends. */
struct place {
    const char *name, *placement, *attention;
};
static const struct place places[EVERYWHERE] = {
    {"device", "weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device", "device"},
    {"host", "weights=0/100/0 kv=0/100/0 hidden=0/100/0 head=host", "device"},
    {"disk", "weights=0/0/100 kv=0/0/100 hidden=0/0/100 head=host", "device"},
    {"mixed", "weights=40/30/30 kv=40/30/30 hidden=100/0/0 head=device", "device"},
    {"host, attended there", "weights=0/100/0 kv=0/100/0 hidden=100/0/0 head=device", "host"},
    {"disk, attended on the host", "weights=50/0/50 kv=0/0/100 hidden=0/0/100 head=host", "host"},
    {"host, shared", "weights=0/100/0 kv=0/100/0 hidden=100/0/0 head=device", "split"},
    {"resident, KV streams", "weights=100/0/0 kv=0/100/0 hidden=100/0/0 head=device", "device"},
};

struct setup {
    const struct place *place; /* NULL: on the CPU, in memory */
    enum aq_dtype compute, weights, kv;
    struct aq_kv_policy policy;
    bool serial, deterministic, sampled;
};

struct output {
    struct aq_sequence s;
    uint32_t tokens[TOKENS];
    float logprobs[TOKENS];
};

/* ---- runs -------------------------------------------------------------------------------- */

static void submit(struct aq_engine *e, struct output *o, uint32_t i, const struct setup *s,
                   bool fed)
{
    memset(o, 0, sizeof(*o));
    o->s = (struct aq_sequence){
        .prompt = rig.golden[i].prompt,
        .prompt_count = rig.golden[i].count,
        .max_tokens = TOKENS,
        .sampling = {.temperature = s->sampled ? 1 : 0,
                     .top_p = 1,
                     .repetition_penalty = 1,
                     .record_hash = i},
        .forced = fed ? rig.golden[i].tokens : NULL,
        .tokens = o->tokens,
        .logprobs = fed ? o->logprobs : NULL,
    };
    aq_engine_submit(e, &o->s);
}

static int open_engine(struct aq_engine **ret, const struct setup *s, struct aq_err *reterr)
{
    struct aq_engine_opts opts = {.model_dir = rig.model,
                                  .compute = (int)s->compute,
                                  .weight_format = (int)s->weights,
                                  .kv_format = (int)s->kv,
                                  .kv = s->policy,
                                  .threads = 2,
                                  .host_memory = AQ_GIB,
                                  .cache_dir = rig.root,
                                  .disk_dir_any = true,
                                  .micro_batches = 2,
                                  .micro_batch = 2,
                                  .serial = s->serial,
                                  .deterministic = s->deterministic,
                                  .refill = true};
    if (s->place) {
        opts.device = "cuda";
        opts.cuda_module = rig.module;
        opts.device_memory = DEVICE_BYTES;
        opts.placement = s->place->placement;
        opts.attention = s->place->attention;
    }
    return aq_engine_open(ret, &opts, reterr);
}

/* Every buffer lies within its line of the ledger (or on one page, where it is pinned), and all of
 * the GPU's within what it may have. */
static void check_memory(const struct aq_engine *e)
{
    struct aq_mem_usage row[AQ_MEM_PURPOSE_MAX];
    unsigned count = aq_mem_usage(aq_engine_mem(e), row, AQ_MEM_PURPOSE_MAX);
    const struct aq_ledger *l = &aq_engine_block(e)->ledger;
    for (unsigned i = 0; i < count; i++) {
        uint64_t line = aq_ledger_line(l, row[i].tier, row[i].purpose);
        if (row[i].peak_bytes > aq_max_u64(line, 4096))
            fail_msg("'%s' on the %s took %llu bytes, its line of the ledger is %llu",
                     row[i].purpose, aq_tier_name(row[i].tier),
                     (unsigned long long)row[i].peak_bytes, (unsigned long long)line);
    }
    assert_true(aq_mem_peak(aq_engine_mem(e), AQ_DEVICE) <= DEVICE_BYTES);
}

static void run(struct output out[PROMPTS], const struct setup *s, bool fed)
{
    struct aq_workload w = {
        .sequences = PROMPTS, .prompt_max = PROMPT_MAX, .total_max = PROMPT_MAX + TOKENS};
    struct aq_engine *e = NULL;
    struct aq_err err = {0};
    const char *where = s->place ? s->place->name : "cpu";
    rig.order(rig.seed++);
    int rc = open_engine(&e, s, &err);
    rc = rc < 0 ? rc : aq_engine_plan(e, &w, &err);
    rc = rc < 0 ? rc : aq_engine_load(e, &err);
    for (uint32_t i = 0; rc == 0 && i < PROMPTS; i++)
        submit(e, &out[i], i, s, fed);
    for (bool worked = true; rc == 0 && worked;)
        rc = aq_engine_pass(e, &worked, &err);
    if (rc < 0)
        fail_msg("%s: %s", where, err.text);
    assert_string_equal(aq_engine_info(e)->backend, s->place ? "cuda" : "cpu");
    if (s->place)
        check_memory(e);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        assert_non_null(aq_engine_finished(e));
        assert_int_equal(out[i].s.token_count, TOKENS);
    }
    aq_engine_close(e);
}

/* What fails on the GPU ends the run, and the message says what the driver said. */
static void a_failure_of_the_gpu_ends_the_run(void **state)
{
    struct setup s = {.place = &places[3], .compute = AQ_F16, .weights = AQ_F16, .kv = AQ_F16};
    struct aq_workload w = {
        .sequences = PROMPTS, .prompt_max = PROMPT_MAX, .total_max = PROMPT_MAX + TOKENS};
    (void)state;
    for (uint64_t after = 1; after < 400; after = after * 3 + 1) {
        struct output out[PROMPTS];
        struct aq_engine *e = NULL;
        struct aq_err err = {0};
        int rc = open_engine(&e, &s, &err);
        rc = rc < 0 ? rc : aq_engine_plan(e, &w, &err);
        rc = rc < 0 ? rc : aq_engine_load(e, &err);
        assert_int_equal(rc, 0);
        for (uint32_t i = 0; i < PROMPTS; i++)
            submit(e, &out[i], i, &s, true);
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

static void expect_golden(const struct output out[PROMPTS], const char *what)
{
    for (uint32_t i = 0; i < PROMPTS; i++) {
        for (uint32_t n = 0; n < TOKENS; n++) {
            if (out[i].tokens[n] != rig.golden[i].tokens[n])
                fail_msg("%s, prompt %u, token %u: %u, expected %u", what, i, n, out[i].tokens[n],
                         rig.golden[i].tokens[n]);
        }
    }
}

static void expect_near(const struct output got[PROMPTS], const struct output want[PROMPTS],
                        float limit, const char *what)
{
    for (uint32_t i = 0; i < PROMPTS; i++) {
        for (uint32_t n = 0; n < TOKENS; n++) {
            float a = got[i].logprobs[n], b = want[i].logprobs[n];
            if (!(fabsf(a - b) <= limit))
                fail_msg("%s, prompt %u, token %u: log-probability %.5f, the CPU's is %.5f", what,
                         i, n, (double)a, (double)b);
        }
    }
}

/* ---- claims ------------------------------------------------------------------------------ */

static void golden_tokens_come_out_wherever_things_live(void **state)
{
    (void)state;
    for (int i = 0; i < EVERYWHERE; i++) {
        struct output out[PROMPTS];
        struct setup s = {.place = &places[i], .compute = AQ_F32, .weights = AQ_F16, .kv = AQ_F32};
        run(out, &s, false);
        expect_golden(out, places[i].name);
    }
}

/* One op after the other: then the host would be caught at touching the device's memory. */
static void one_op_after_the_other_gives_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < EVERYWHERE; i++) {
        struct output one[PROMPTS], two[PROMPTS];
        struct setup s = {.place = &places[i],
                          .compute = AQ_F16,
                          .weights = AQ_F16,
                          .kv = AQ_F16,
                          .deterministic = strcmp(places[i].attention, "split") != 0};
        run(one, &s, true);
        s.serial = true;
        run(two, &s, true);
        for (uint32_t n = 0; n < PROMPTS; n++)
            assert_memory_equal(one[n].logprobs, two[n].logprobs, sizeof(one[n].logprobs));
    }
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
        struct output cpu[PROMPTS], gpu[PROMPTS];
        struct setup s = {.compute = AQ_F32, .weights = formats[i].weights, .kv = formats[i].kv};
        char what[100];
        run(cpu, &s, true);
        s.compute = formats[i].compute;
        for (int p = (int)i % 2; p < EVERYWHERE; p += 4) {
            s.place = &places[p];
            snprintf(what, sizeof(what), "%s, compute %s, weights %s, kv %s", places[p].name,
                     aq_dtype_name(s.compute), aq_dtype_name(s.weights), aq_dtype_name(s.kv));
            run(gpu, &s, true);
            expect_near(gpu, cpu, formats[i].limit, what);
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
    run(cpu, &s, true);
    for (int p = 0; p < EVERYWHERE; p++) {
        s.place = &places[p];
        s.serial = p % 2;
        run(gpu, &s, true);
        expect_near(gpu, cpu, 1e-3f, places[p].name);
    }
}

/* With a temperature rows of logits come home, and the draws are the CPU's. */
static void sampled_tokens_are_the_cpus(void **state)
{
    struct output cpu[PROMPTS], gpu[PROMPTS];
    struct setup s = {.compute = AQ_F32, .weights = AQ_F16, .kv = AQ_F32, .sampled = true};
    (void)state;
    run(cpu, &s, false);
    s.place = &places[0];
    run(gpu, &s, false);
    for (uint32_t i = 0; i < PROMPTS; i++)
        assert_memory_equal(gpu[i].tokens, cpu[i].tokens, sizeof(cpu[i].tokens));
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
    o.device = "cuda:7";
    expect_refusal(&o, -ENODEV, "GPU 7: the NVIDIA driver offers 1");
    o.device = "cuda";
    rig.gpus(1, cudaErrorInsufficientDriver);
    rig.driver(12040);
    expect_refusal(&o, -ENODEV, "too old: it knows CUDA 12.4, needed is 13.0 or later");
    rig.driver(0);
    expect_refusal(&o, -ENODEV, "no NVIDIA driver is installed");
    rig.driver(13000);
    rig.gpus(0, cudaErrorNoDevice);
    expect_refusal(&o, -ENODEV, "finds no GPU: no CUDA-capable device is detected");
    rig.gpus(1, cudaSuccess);
    o.device_memory = 3 * AQ_GIB;
    expect_refusal(&o, -ENOMEM, "bytes, but of the");
    o.device_memory = 0;
    o.host_products = "20";
    expect_refusal(&o, -EINVAL, "--host-products");
    o.host_products = NULL;
    o.deterministic = true;
    o.attention = "split:20%";
    expect_refusal(&o, -EINVAL, "--attention split");
    o.deterministic = false;
    o.cuda_module = "/nonexistent/module.so";
    expect_refusal(&o, -ENODEV, "the CUDA backend cannot be loaded");
    o.device = "cpu";
    o.device_memory = AQ_GIB;
    expect_refusal(&o, -EINVAL, "--device-memory");
}

/* ---- set-up ------------------------------------------------------------------------------ */

static void read_golden(const char *path)
{
    char line[1 << 16];
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        struct golden *g = &rig.golden[i];
        json_t *o;
        assert_non_null(fgets(line, sizeof(line), f));
        assert_int_equal(aq_json_parse(&o, line, strlen(line), true, NULL), 0);
        const json_t *ids = json_object_get(o, "prompt_ids"),
                     *tokens = json_object_get(o, "tokens");
        g->count = (uint32_t)aq_min_u64(json_array_size(ids), PROMPT_MAX);
        assert_true(json_array_size(ids) <= PROMPT_MAX);
        for (uint32_t n = 0; n < g->count; n++)
            g->prompt[n] = (uint32_t)json_integer_value(json_array_get(ids, n));
        for (uint32_t n = 0; n < TOKENS; n++)
            g->tokens[n] = (uint32_t)json_integer_value(json_array_get(tokens, n));
        json_decref(o);
    }
    fclose(f);
}

static int set_up(void **state)
{
    (void)state;
    const char *data = getenv("AQ_TEST_DATA");
    char path[4200];
    rig.module = getenv("AQ_CUDA_MODULE");
    snprintf(rig.model, sizeof(rig.model), "%.4000s/tiny-opt", data ? data : "tests/data");
    snprintf(path, sizeof(path), "%s/golden/greedy.jsonl", rig.model);
    if (!rig.module)
        return -1;
    temp_dir(rig.root, "gpu");
    read_golden(path);
    void *module = dlopen(rig.module, RTLD_NOW);
    assert_non_null(module);
    rig.order = (__typeof__(rig.order))dlsym(module, "aq_emu_order");
    rig.fail_after = (__typeof__(rig.fail_after))dlsym(module, "aq_emu_fail_after");
    rig.recover = (__typeof__(rig.recover))dlsym(module, "aq_emu_recover");
    rig.gpus = (__typeof__(rig.gpus))dlsym(module, "aq_emu_gpus");
    rig.driver = (__typeof__(rig.driver))dlsym(module, "aq_emu_driver");
    return rig.order && rig.fail_after && rig.recover && rig.gpus && rig.driver ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return temp_remove(rig.root);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_cannot_be_had_is_said),
    cmocka_unit_test(golden_tokens_come_out_wherever_things_live),
    cmocka_unit_test(one_op_after_the_other_gives_the_same_bits),
    cmocka_unit_test(every_format_is_near_the_cpu),
    cmocka_unit_test(caches_that_shrink_are_near_the_cpu),
    cmocka_unit_test(sampled_tokens_are_the_cpus),
    cmocka_unit_test(a_failure_of_the_gpu_ends_the_run),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
