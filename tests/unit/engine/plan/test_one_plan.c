/* SPDX-License-Identifier: Apache-2.0
 * `plan` of a machine and a run on it are one: the same choices, workload, rates and budgets give
 * the same block, the same ledger and the same forecast, or the same refusal.  Options are drawn at
 * random.  Of every two machines one is this one, whose profile is kept, and one is a profile that
 * a run here is told to take; nothing is measured. */
#include "base/json.h"
#include "base/prng.h"
#include "engine/core/engine_state.h"
#include "engine/core/opts_from.h"
#include "engine/plan/planning.h"
#include "tests/temp.h"
#include "tests/test.h"
#include "tests/unit/policy/same_plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRAWS = TEST_SLOW ? 40 : 300, SEARCHED = 15 }; /* one in so many has all its seats open */

static const char profile[] = "machine: {name: Box, cores: 2}\n"
                              "host:\n  memory: 64GiB\n  memory_gb_s: 50\n"
                              "  product_f32_tflop_s: 0.2\n  product_bf16_tflop_s: 0.8\n"
                              "disk: {space: 100TB, read_gb_s: 2, write_gb_s: 1.5}\n"
                              "links: {h2d_gb_s: 4, d2h_gb_s: 3}\n";

static struct {
    char dir[TEMP_PATH_MAX], shape[TEMP_PATH_MAX + 16], hardware[TEMP_PATH_MAX + 16];
    uint64_t seed, number, roll, held;
    uint32_t feasible, refused;
} rig;

/* Both sides are in one process: what it holds is drawn with the machine; it never held more. */
uint64_t __wrap_aq_mem_process_now(void);
uint64_t __wrap_aq_mem_process_now(void)
{
    return rig.held;
}
uint64_t __wrap_aq_mem_process_peak(void);
uint64_t __wrap_aq_mem_process_peak(void)
{
    return rig.held;
}

static uint64_t roll(uint64_t below)
{
    return aq_prng_below(rig.seed, rig.number, rig.roll++, below);
}

#define PICK(list) ((list)[roll(AQ_ARRAY_LEN(list))])

static void put_text(json_t *o, const char *key, const char *text)
{
    if (text)
        assert_int_equal(json_object_set_new(o, key, json_string(text)), 0);
}

static void put_number(json_t *o, const char *key, uint64_t x)
{
    assert_int_equal(json_object_set_new(o, key, json_integer((json_int_t)x)), 0);
}

/* Heads, layers and width of a small model; wide enough that weights matter beside the process. */
static void write_shape(void)
{
    static const char *const types[] = {"float16", "bfloat16", "float32"};
    uint32_t heads = 2 + (uint32_t)roll(7);
    json_t *o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s}", "model_type", "opt",
                          "vocab_size", 512, "hidden_size", (int)heads * 64, "ffn_dim",
                          (int)heads * 256, "num_hidden_layers", 2 + (int)roll(6),
                          "num_attention_heads", (int)heads, "max_position_embeddings", 512,
                          "word_embed_proj_dim", (int)heads * 64, "torch_dtype", PICK(types));
    assert_int_equal(json_dump_file(o, rig.shape, 0), 0);
    json_decref(o);
}

static void draw_shares(char *text, size_t bytes, const char *name)
{
    unsigned device = (unsigned)roll(101), host = (unsigned)roll(101 - device);
    snprintf(text, bytes, "%s=%u/%u/%u", name, device, host, 100 - device - host);
}

static void draw_placement(json_t *o)
{
    char weights[48], kv[48], hidden[48], text[200];
    draw_shares(weights, sizeof(weights), "weights");
    draw_shares(kv, sizeof(kv), "kv");
    draw_shares(hidden, sizeof(hidden), "hidden");
    snprintf(text, sizeof(text), "%s %s %s head=%s", weights, kv, hidden,
             roll(2) ? "device" : "host");
    put_text(o, "placement", text);
}

static void draw_policy(json_t *o)
{
    if (roll(6) == 0) {
        json_object_set_new(o, "kv_read", json_integer(96 + (json_int_t)roll(100)));
        json_object_set_new(o, "kv_read_dense", json_integer((json_int_t)roll(2)));
        return;
    }
    static const char *const budgets[] = {"20%", "0.5", "48"};
    static const char *const policies[] = {
        "h2o",     "window",    "heavy",      "adakv",       "h2o:flexgen", "snapkv",  "tova",
        "keydiff", "pyramidkv", "ada-snapkv", "ada-pyramid", "kvcompress",  "fastgen", "expected"};
    const char *policy = PICK(policies);
    if (roll(3))
        return;
    put_text(o, "kv_policy", policy);
    if (strcmp(policy, "fastgen") == 0 && roll(2))
        return;
    put_text(o, "kv_budget", strcmp(policy, "h2o:flexgen") ? PICK(budgets) : "20%");
    if (strcmp(policy, "kvcompress") == 0)
        put_text(o, "kv_recent", "20");
}

/* A process of this machine counts as what it holds and 12 MiB, and one of another machine as 64
 * MiB; a run, which is here, has to hold as much as makes the two alike. */
static void draw_machine(json_t *o, uint32_t threads)
{
    static struct aq_hw_profile box;
    bool local = roll(2);
    struct aq_hw_local_opts opts = {.cache_dir = rig.dir, .threads = threads};
    rig.held = (local ? 14 + roll(16) : 52) * AQ_MIB;
    put_text(o, "cache_dir", rig.dir);
    put_text(o, "hardware", local ? "local" : rig.hardware);
    if (local) {
        assert_int_equal(aq_hw_file_read(&box, rig.hardware, NULL), 0);
        assert_int_equal(aq_hw_local_keep(&box, &opts, NULL), 0);
    }
}

/* Options that `plan` and `generate` share. */
static json_t *draw_options(void)
{
    static const char *const computes[] = {"f32", "bf16"};
    static const char *const formats[] = {NULL, "f16", "bf16", "f32", "int8", "int4"};
    static const char *const sides[] = {NULL, "auto", "device", "host", "split", "split:30%"};
    static const char *const products[] = {NULL, "auto", "0", "25%", "1.0"};
    static const char *const links[] = {NULL, "2/3", "12/12"};
    json_t *o = json_object();
    bool separate = roll(3) > 0, searched = roll(SEARCHED) == 0;
    uint32_t threads = 1 + (uint32_t)roll(4);
    draw_machine(o, threads);
    uint64_t process = rig.held + 12 * AQ_MIB;
    put_text(o, "shape", rig.shape);
    put_text(o, "compute", PICK(computes));
    put_text(o, "weight_format", PICK(formats));
    put_text(o, "kv_format", PICK(formats));
    put_number(o, "threads", threads);
    put_number(o, "host_memory", process + (separate ? 26 : 2) * AQ_MIB + roll(96 * AQ_MIB));
    if (separate) {
        put_number(o, "emulate_device", AQ_MIB + roll(24 * AQ_MIB));
        put_text(o, "emulate_link", PICK(links));
        put_text(o, "attention", PICK(sides));
        put_text(o, "host_products", PICK(products));
    }
    if (roll(2))
        put_number(o, "disk_memory", AQ_MIB + roll(64 * AQ_MIB));
    if (!searched && roll(4))
        draw_placement(o);
    if (!searched) {
        put_number(o, "micro_batch", 1 + roll(12));
        put_number(o, "micro_batches", 1 + roll(3));
    }
    static const char *const beside[] = {NULL, "auto", "off", "on"};
    put_text(o, "side_by_side", beside[roll(4)]);
    if (roll(3) == 0)
        put_number(o, "micro_batch_tokens", 1 + roll(300));
    if (roll(4) == 0)
        put_number(o, "context", 300 + roll(200));
    if (roll(4) == 0)
        put_number(o, "prefetch", AQ_MIB + roll(8 * AQ_MIB));
    if (roll(4) == 0)
        put_number(o, "chunk", 4096 * (16 + roll(256)));
    put_text(o, "executor", roll(4) ? NULL : "serial");
    json_object_set_new(o, "refill", json_boolean(roll(2)));
    json_object_set_new(o, "fuse_layer", json_boolean(roll(4) == 0));
    json_object_set_new(o, "alternate", json_boolean(roll(4) == 0));
    json_object_set_new(o, "deterministic", json_boolean(roll(4) == 0));
    draw_policy(o);
    return o;
}

static struct aq_planning *open_plan(json_t *shared, struct aq_planning_env *env,
                                     struct aq_options **ret_options, struct aq_err *err)
{
    struct aq_planning *p = NULL;
    char prompt[32], gen[32];
    json_t *o = json_deep_copy(shared);
    unsigned from = 1 + (unsigned)roll(200), gen_from = 1 + (unsigned)roll(60);
    snprintf(prompt, sizeof(prompt), "%u-%u", from, from + (roll(2) ? (unsigned)roll(30) : 0));
    snprintf(gen, sizeof(gen), "%u", gen_from);
    put_text(o, "prompt_len", prompt);
    put_text(o, "gen_len", gen);
    put_number(o, "requests", 36 + roll(100));
    put_text(o, "device",
             strcmp(json_string_value(json_object_get(o, "hardware")), "local") ? NULL : "cpu");
    int rc = aq_options_from_json(ret_options, "plan", o, err);
    rc = rc < 0 ? rc : aq_options_check(*ret_options, err);
    rc = rc < 0 ? rc : aq_planning_open(&p, *ret_options, env, err);
    if (rc == 0 && aq_planning_run(p, err) < 0)
        p->why_not = *err; /* its workload is still what the run is asked for */
    json_decref(o);
    return p;
}

static int open_run(struct aq_engine **ret, json_t *shared, const struct aq_workload *work,
                    struct aq_err *err)
{
    struct aq_options *o;
    struct aq_engine_opts opts;
    json_t *all = json_deep_copy(shared);
    put_number(all, "random_weights", 0);
    put_text(all, "device", "cpu");
    put_text(all, "prompt", "x");
    int rc = aq_options_from_json(&o, "generate", all, err);
    assert_int_equal(rc, 0);
    rc = aq_engine_opts_from(&opts, o, NULL, err);
    rc = rc < 0 ? rc : aq_engine_open(ret, &opts, err);
    if (rc == 0) {
        rc = aq_engine_plan(*ret, work, err);
        if (rc < 0) {
            aq_engine_close(*ret);
            *ret = NULL;
        }
    }
    aq_options_close(o);
    json_decref(all);
    return rc;
}

static void must_be_one(const struct aq_planning *p, const struct aq_engine *e, const char *drawn)
{
    const struct aq_block *b = aq_engine_block(e);
    const struct aq_ledger *want = &p->block.ledger, *found = &b->ledger;
    if (!plans_are_same(&p->block.plan, &b->plan))
        fail_msg("%s: plan and run have other plans", drawn);
    for (uint32_t i = 0; i < want->count && i < found->count; i++) {
        const struct aq_ledger_item *x = &want->item[i], *y = &found->item[i];
        if (x->tier != y->tier || strcmp(x->purpose, y->purpose) || x->bytes != y->bytes)
            fail_msg("%s: '%s' has %llu bytes, in a run '%s' %llu", drawn, x->purpose,
                     (unsigned long long)x->bytes, y->purpose, (unsigned long long)y->bytes);
    }
    assert_int_equal(want->count, found->count);
    assert_true(p->forecast.gen_tok_s == e->forecast.gen_tok_s);
    assert_true(p->forecast.all_decode_s == e->forecast.all_decode_s);
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++)
        assert_int_equal(p->in.budget[t], e->inputs.budget[t]);
}

/* What both documents say of the plan. */
static void must_read_alike(const struct aq_planning *p, const struct aq_engine *e)
{
    static const char *const keys[] = {
        "placement", "attention",     "micro_batch", "micro_batches", "micro_batch_tokens",
        "compute",   "weight_format", "kv_format",   "kv_policy",     "refill",
        "kv",        "kv_slots"};
    json_t *told = aq_planning_plan_json(p), *run = aq_engine_plan_json(e);
    assert_true(told && run);
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++) {
        json_t *x = json_object_get(told, keys[i]), *y = json_object_get(run, keys[i]);
        if (x ? !json_equal(x, y) : y != NULL)
            fail_msg("'%s' of plan and run differ", keys[i]);
    }
    json_decref(told);
    json_decref(run);
}

static void run_draw(void)
{
    struct aq_options *o = NULL;
    struct aq_engine *e = NULL;
    struct aq_err why = {0}, why_run = {0};
    struct aq_planning_env *env = calloc(1, sizeof(*env));
    struct aq_workload work = {.prompt_max = 1, .total_max = 2};
    assert_non_null(env);
    write_shape();
    json_t *shared = draw_options();
    char *drawn = json_dumps(shared, JSON_COMPACT);
    struct aq_planning *p = open_plan(shared, env, &o, &why);
    if (p) {
        work = p->workload;
        work.length = p->lengths.item;
        work.length_count = p->lengths.count;
    }
    int rc = open_run(&e, shared, &work, &why_run);
    bool fits = p && p->feasible;
    if (fits != (rc == 0))
        fail_msg("%s: planned %d (%s), run %d (%s)", drawn, fits, p ? p->why_not.text : why.text,
                 rc, why_run.text);
    if (fits) {
        must_be_one(p, e, drawn);
        must_read_alike(p, e);
    } else {
        assert_string_equal(p ? p->why_not.text : why.text, why_run.text);
    }
    rig.feasible += fits;
    rig.refused += !fits;
    aq_engine_close(e);
    aq_planning_close(p);
    aq_options_close(o);
    json_decref(shared);
    free(drawn);
    free(env);
}

static void a_plan_and_a_run_are_one(void **state)
{
    const char *seed = getenv("AQ_ONE_PLAN_SEED");
    rig.seed = seed ? strtoull(seed, NULL, 0) : 1;
    print_message("AQ_ONE_PLAN_SEED=%llu\n", (unsigned long long)rig.seed);
    for (rig.number = 0; rig.number < DRAWS; rig.number++) {
        rig.roll = 0;
        run_draw();
    }
    print_message("%u fitted, %u were refused\n", rig.feasible, rig.refused);
    assert_true(rig.feasible > DRAWS / 3 && rig.refused > DRAWS / 20); /* or little was compared */
}

static int set_up(void **state)
{
    temp_dir(rig.dir, "one-plan");
    snprintf(rig.shape, sizeof(rig.shape), "%s/config.json", rig.dir);
    snprintf(rig.hardware, sizeof(rig.hardware), "%s/box.yaml", rig.dir);
    FILE *f = fopen(rig.hardware, "w");
    assert_non_null(f);
    assert_true(fputs(profile, f) >= 0);
    return fclose(f);
}

static int tear_down(void **state)
{
    temp_remove(rig.dir);
    return 0;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(a_plan_and_a_run_are_one, set_up, tear_down),
};

AQ_TEST_MAIN(tests)
