/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/e2e/gpu_rig.h"

#include "base/json.h"
#include "engine/core/engine_seams.h"
#include "tests/choices.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rig rig;

/* A real driver's context is of several hundred MiB. */
static uint64_t rig_device_bytes(void)
{
    return rig.order ? 160 * AQ_MIB : 2 * AQ_GIB;
}

const struct place rig_places[EVERYWHERE] = {
    {"device", "weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device", "device"},
    {"host", "weights=0/100/0 kv=0/100/0 hidden=0/100/0 head=host", "device"},
    {"disk", "weights=0/0/100 kv=0/0/100 hidden=0/0/100 head=host", "device"},
    {"mixed", "weights=40/30/30 kv=40/30/30 hidden=100/0/0 head=device", "device"},
    {"host, attended there", "weights=0/100/0 kv=0/100/0 hidden=100/0/0 head=device", "host"},
    {"disk, attended on the host", "weights=50/0/50 kv=0/0/100 hidden=0/0/100 head=host", "host"},
    {"host, shared", "weights=0/100/0 kv=0/100/0 hidden=100/0/0 head=device", "split"},
    {"resident, KV streams", "weights=100/0/0 kv=0/100/0 hidden=100/0/0 head=device", "device"},
};

/* ---- runs -------------------------------------------------------------------------------- */

static void watch(struct aq_sequence *s, uint32_t step, uint32_t worker, const float *logits,
                  const struct aq_logits_stat *stat)
{
    struct output *o = s->user;
    (void)worker;
    o->watched++;
    assert_int_equal(step, s->token_count);
    assert_true(logits[stat->argmax] == stat->max);
}

void rig_submit(struct aq_engine *e, struct output *o, uint32_t i, const struct setup *s, bool fed)
{
    memset(o, 0, sizeof(*o));
    o->s = (struct aq_sequence){
        .prompt = rig.golden[i].prompt,
        .prompt_count = rig.golden[i].count,
        .max_tokens = TOKENS,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .record_hash = i},
        .forced = fed ? rig.golden[i].tokens : NULL,
        .tokens = o->tokens,
        .logprobs = fed ? o->logprobs : NULL,
        .on_logits = s->watched >> i & 1 ? watch : NULL,
        .user = o,
    };
    if (s->ways)
        s->ways(o, i);
    aq_engine_submit(e, &o->s);
}

int rig_open_engine(struct aq_engine **ret, const struct setup *s, struct aq_err *reterr)
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
                                  .micro_batches = s->one_batch ? 1 : 2,
                                  .micro_batch = s->one_batch ? 4 : 2,
                                  .serial = s->serial,
                                  .deterministic = s->deterministic,
                                  .refill = true};
    if (s->place) {
        opts.device = computed_on("cuda");
        opts.cuda_module = rig.module;
        opts.device_memory = rig_device_bytes();
        opts.placement = placed(s->place->placement);
        opts.attention = attended(s->place->attention);
    }
    int rc = aq_engine_open(ret, &opts, reterr);
    if (rc == 0)
        aq_engine_set_seams(*ret, &(struct aq_engine_seams){.gpu_launches = s->launches});
    return rc;
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
    assert_true(aq_mem_peak(aq_engine_mem(e), AQ_DEVICE) <= rig_device_bytes());
    if (!rig.order)
        return;
    json_t *memory = aq_engine_memory_json(e);
    uint64_t driver =
        (uint64_t)json_integer_value(json_object_get(json_object_get(memory, "device"), "driver"));
    assert_in_range(driver, 1,
                    aq_ledger_line(l, AQ_DEVICE, "gpu driver") +
                        aq_ledger_line(l, AQ_DEVICE, "gpu graphs"));
    json_decref(memory);
}

void rig_run(struct output out[PROMPTS], const struct setup *s, bool fed)
{
    struct aq_workload w = {
        .sequences = PROMPTS, .prompt_max = PROMPT_MAX, .total_max = PROMPT_MAX + TOKENS};
    struct aq_engine *e = NULL;
    struct aq_err err = {0};
    const char *where = s->place ? s->place->name : "cpu";
    if (rig.order)
        rig.order(rig.seed++);
    int rc = rig_open_engine(&e, s, &err);
    rc = rc < 0 ? rc : aq_engine_plan(e, &w, &err);
    rc = rc < 0 ? rc : aq_engine_load(e, &err);
    for (uint32_t i = 0; rc == 0 && i < PROMPTS; i++)
        rig_submit(e, &out[i], i, s, fed);
    rig.passes = 0;
    if (rig.counted)
        rig.before = rig.counted();
    for (bool worked = true; rc == 0 && worked;) {
        rc = aq_engine_pass(e, &worked, &err);
        if (rig.counted && worked && rig.passes < PASSES)
            rig.after[rig.passes++] = rig.counted();
    }
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

void rig_expect_golden(const struct output out[PROMPTS], const char *what)
{
    for (uint32_t i = 0; i < PROMPTS; i++) {
        for (uint32_t n = 0; n < TOKENS; n++) {
            if (out[i].tokens[n] != rig.golden[i].tokens[n])
                fail_msg("%s, prompt %u, token %u: %u, expected %u", what, i, n, out[i].tokens[n],
                         rig.golden[i].tokens[n]);
        }
    }
}

void rig_expect_near(const struct output got[PROMPTS], const struct output want[PROMPTS],
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

int rig_set_up(void **state)
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
    rig.fail_capture = (__typeof__(rig.fail_capture))dlsym(module, "aq_emu_fail_capture");
    rig.recover = (__typeof__(rig.recover))dlsym(module, "aq_emu_recover");
    rig.gpus = (__typeof__(rig.gpus))dlsym(module, "aq_emu_gpus");
    rig.driver = (__typeof__(rig.driver))dlsym(module, "aq_emu_driver");
    rig.host_addresses = (__typeof__(rig.host_addresses))dlsym(module, "aq_emu_host_addresses");
    rig.bytes_home = (__typeof__(rig.bytes_home))dlsym(module, "aq_emu_bytes_home");
    rig.counted = (__typeof__(rig.counted))dlsym(module, "aq_emu_counted");
    rig.device_memory = (__typeof__(rig.device_memory))dlsym(module, "aq_emu_device_memory");
    rig.driver_takes = (__typeof__(rig.driver_takes))dlsym(module, "aq_emu_driver_takes");
    rig.blas = (__typeof__(rig.blas))dlsym(module, "aq_emu_blas");
    bool all = rig.counted && rig.device_memory && rig.driver_takes && rig.blas && rig.fail_after &&
               rig.fail_capture && rig.recover && rig.gpus && rig.driver && rig.host_addresses &&
               rig.bytes_home;
    return !rig.order || all ? 0 : -1;
}

int rig_tear_down(void **state)
{
    (void)state;
    return temp_remove(rig.root);
}
