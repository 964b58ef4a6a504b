/* SPDX-License-Identifier: Apache-2.0
 * Wherever weights, KV cache and hidden states live, and however they get to where they are needed,
 * what comes out is the same bits: random plans on the small trained model and on random ones of
 * other families, each against the run of the same formats and KV policy with everything in memory,
 * one op after the other.  In every second draw sequences go on from tokens of that run, as after
 * a stop: a bit that differs in what they find in their cache shows in every later log-probability.
 *
 * AQ_PLACEMENT_DRAWS sets how many are drawn, AQ_PLACEMENT_SEED from which seed, and
 * AQ_PLACEMENT_FIRST the number of the first. */
#include "base/prng.h"
#include "offload/disk.h"
#include "policy/checker.h"
#include "tests/alloc_trap.h"
#include "tests/random_model.h"
#include "tests/sim/drawn.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DRAWS = TEST_SLOW ? 10 : 100,
    CROWD = TEST_SLOW ? 4 : 9,
    PROMPT = TEST_SLOW ? 70 : 75,
    TOKENS = TEST_SLOW ? 10 : 44,
};

enum { TRAINED_VOCAB = 4096, VOCAB = 512, CONTEXT = 128, DTYPES = AQ_DTYPE_COUNT };

/* Whose policies are drawn: any, those that go with KIVI's formats, those whose heads of all
 * layers share, those whose rows read a part of what is held, whose positions are those in the
 * cache, whose heads have rules, or none, where prompts that begin alike share; or any, with KV in
 * the memory of the products, where given tokens are taken in several at a time. */
enum drawing { ANY_POLICY, KIVI, CROSS, READING, CLOSING, PROFILED, SHARING, GOING_ON };

#define SLOTS(n)                                                                                   \
    {                                                                                              \
        .unit = AQ_KV_SLOTS, .slots = (n)                                                          \
    }
#define SHARE(x)                                                                                   \
    {                                                                                              \
        .unit = AQ_KV_SHARE, .share = (x)                                                          \
    }

/* Every second draw is of the trained model. */
static const struct random_model random_models[] = {
    {RANDOM_LLAMA, 3, 192, 6, 2, 32, VOCAB, CONTEXT, 2},
    {RANDOM_NEOX, 3, 192, 6, 6, 32, VOCAB, CONTEXT, 2},
    {RANDOM_QWEN3, 2, 192, 14, 2, 24, VOCAB, CONTEXT, 2}, /* heads wider than the stream */
    {RANDOM_MISTRAL, 2, 192, 4, 4, 48, VOCAB, CONTEXT, 2, .window = 40},
    {RANDOM_MISTRAL, 3, 192, 4, 2, 48, VOCAB, CONTEXT, 2, .window = 33, .full_layers = 2},
};
enum { MODELS = 1 + AQ_ARRAY_LEN(random_models) };

static struct {
    char root[TEMP_PATH_MAX], cache[TEMP_INSIDE_MAX], scratch[2][TEMP_INSIDE_MAX];
    char model[MODELS][4096];
    struct drawn_place place;
    /* By model, compute, weights, KV, policy. */
    struct crowd *reference[MODELS][DTYPES][DTYPES][DTYPES][DRAWN_KV];
    struct crowd *crowd;
    uint32_t now; /* the model drawn */
    uint64_t seed;
    unsigned ran, refused, dropped, host_products, beside, went_on, fed_many, lanes[AQ_LANE_COUNT];
    /* Runs that shared; did so with KV that moves; with KV that a host attends beside a device. */
    unsigned shared, shared_moving, shared_by_host;
} rig;

/* What was running, should the program not come back from it. */
static char running[1200];

static void tell_and_die(int sig)
{
    ssize_t n = write(STDERR_FILENO, running, strlen(running));
    (void)n;
    signal(sig, SIG_DFL);
    raise(sig);
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void make_dir(char *path, size_t bytes, const char *name)
{
    snprintf(path, bytes, "%s/%s", rig.root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static int set_up(void **state)
{
    (void)state;
    struct aq_disk_place look;
    snprintf(rig.model[0], sizeof(rig.model[0]), "%s", test_data_path("tiny-opt"));
    temp_dir(rig.root, "placement");
    for (uint32_t i = 1; i < MODELS; i++) {
        snprintf(rig.model[i], sizeof(rig.model[i]), "%s/model%u", rig.root, i);
        random_model_write(rig.model[i], &random_models[i - 1], i);
    }
    make_dir(rig.cache, sizeof(rig.cache), "cache");
    make_dir(rig.scratch[0], sizeof(rig.scratch[0]), "one");
    make_dir(rig.scratch[1], sizeof(rig.scratch[1]), "two");
    rig.place = (struct drawn_place){.dirs = {rig.scratch[0], rig.scratch[1]},
                                     .dir_count = 2,
                                     .cache_dir = rig.cache,
                                     .chunk_pages = 400};
    rig.place.direct = aq_disk_stat(&look, rig.root, NULL) == 0 && look.direct;
    rig.crowd = calloc(1, sizeof(*rig.crowd));
    rig.seed = setting("AQ_PLACEMENT_SEED", 20240229);
    int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGTERM, SIGALRM};
    for (size_t i = 0; i < AQ_ARRAY_LEN(signals); i++)
        signal(signals[i], tell_and_die);
    return rig.crowd ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    struct crowd **all = &rig.reference[0][0][0][0][0];
    for (size_t i = 0; i < sizeof(rig.reference) / sizeof(*all); i++)
        free(all[i]);
    free(rig.crowd);
    return temp_remove(rig.root);
}

/* The same sequences for every run. */
static void fresh_crowd(struct crowd *c)
{
    crowd_draw(c, rig.seed, CROWD, PROMPT, TOKENS, rig.now ? VOCAB : TRAINED_VOCAB);
}

static const struct crowd *reference(const struct aq_engine_opts *opts, uint32_t policy)
{
    struct crowd **c =
        &rig.reference[rig.now][opts->compute][opts->weight_format][opts->kv_format][policy];
    if (*c && policy < DRAWN_KV - 1)
        return *c;
    struct aq_engine_opts o = drawn_reference(opts);
    struct aq_engine *e;
    struct aq_err err;
    free(*c); /* of another policy without a number */
    *c = calloc(1, sizeof(**c));
    assert_non_null(*c);
    fresh_crowd(*c);
    if (aq_engine_open(&e, &o, &err) < 0 || aq_engine_plan(e, &(*c)->work, &err) < 0 ||
        aq_engine_load(e, &err) < 0 || crowd_run(*c, e, &err) < 0)
        fail_msg("reference of compute %d, weights %d, kv %d: %s", opts->compute,
                 opts->weight_format, opts->kv_format, err.text);
    assert_true(crowd_whole(*c));
    aq_engine_close(e);
    return *c;
}

/* Every buffer lies within its line of the ledger, and a device's within what it has. */
static void check_memory(const struct aq_engine *e, const struct drawn *d)
{
    struct aq_mem_usage row[AQ_MEM_PURPOSE_MAX];
    unsigned count = aq_mem_usage(aq_engine_mem(e), row, AQ_MEM_PURPOSE_MAX);
    const struct aq_ledger *l = &aq_engine_block(e)->ledger;
    assert_true(count > 0);
    for (unsigned i = 0; i < count; i++) {
        uint64_t line = aq_ledger_line(l, row[i].tier, row[i].purpose);
        if (row[i].peak_bytes > line)
            fail_msg("%s: '%s' on the %s took %llu bytes, its line of the ledger is %llu", d->text,
                     row[i].purpose, aq_tier_name(row[i].tier),
                     (unsigned long long)row[i].peak_bytes, (unsigned long long)line);
    }
    uint64_t device = aq_mem_peak(aq_engine_mem(e), AQ_DEVICE);
    assert_true(device <= d->opts.emulate_device);
}

static void check_program(const struct aq_engine *e, const struct drawn *d)
{
    const struct aq_block *b = aq_engine_block(e);
    struct aq_check_opts opts = {
        .stream = &b->stream, .steps = aq_engine_steps(e), .plan = &b->plan};
    struct aq_err err;
    if (aq_program_check(&b->program, &opts, &err) < 0)
        fail_msg("%s: %s", d->text, err.text);
}

/* One of KIVI's formats, with a policy that gives up no key after the prompt, and no device. */
static void draw_kivi(struct drawn *d, uint64_t number)
{
    static const struct aq_kv_options policies[] = {
        {.policy = "full"},
        {.policy = "full"},
        {.policy = "snapkv", .budget = {.unit = AQ_KV_SLOTS, .slots = 60}},
        {.policy = "keydiff", .budget = {.unit = AQ_KV_SHARE, .share = 0.5}},
        {.policy = "expected", .budget = {.unit = AQ_KV_SHARE, .share = 0.5}},
    };
    uint64_t which = aq_prng_below(rig.seed, number, 4000, AQ_ARRAY_LEN(policies));
    assert_int_equal(aq_kv_policy_resolve(&d->opts.kv, &policies[which], NULL), 0);
    d->opts.kv.residual = (struct aq_kv_residual){
        .tokens = 32 * (1 + (uint32_t)aq_prng_below(rig.seed, number, 4001, 2)),
        .flush = aq_prng_below(rig.seed, number, 4002, 2)};
    d->opts.kv_format = aq_prng_below(rig.seed, number, 4003, 2) ? AQ_KIVI2 : AQ_KIVI4;
    d->opts.emulate_device = 0;
    d->opts.host_products = (struct aq_host_products_choice){0};
    d->opts.emulate_link = (struct aq_link_choice){0};
}

/* No device of its own, and no KV on disk. */
static void bring_home(struct drawn *d)
{
    d->opts.emulate_device = 0;
    d->opts.host_products = (struct aq_host_products_choice){0};
    d->opts.emulate_link = (struct aq_link_choice){0};
    if (d->opts.placement.given) {
        double *kv = d->opts.placement.at.kv.percent;
        kv[AQ_HOST] += kv[AQ_DISK];
        kv[AQ_DISK] = 0;
    }
}

/* A budget that the heads of all layers share, which has no device and no KV on disk; draws of both
 * are left as they are, and refused. */
static void draw_cross(struct drawn *d, uint64_t number)
{
    static const struct aq_kv_options policies[] = {
        {.policy = "kvcompress", .budget = SLOTS(33), .recent = SLOTS(9)},
        {.policy = "kvcompress",
         .budget = SLOTS(40),
         .recent = SLOTS(32),
         .cross_layer_given = true,
         .cross_layer = 1.5},
        {.policy = "kvcompress",
         .budget = SLOTS(35),
         .recent = SLOTS(20),
         .cross_layer_given = true},
        {.policy = "kvcompress", .budget = SHARE(0.6), .recent = SLOTS(1)},
        {.policy = "kvcompress", .budget = SHARE(1), .recent = SLOTS(20)},
    };
    uint64_t which = aq_prng_below(rig.seed, number, 4100, AQ_ARRAY_LEN(policies));
    assert_int_equal(aq_kv_policy_resolve(&d->opts.kv, &policies[which], NULL), 0);
    if (aq_prng_below(rig.seed, number, 4101, 8))
        bring_home(d);
}

/* Rows that read a part, where the host attends; draws of a device that attends, or holds KV, are
 * mostly turned round, and else refused. */
static void draw_reading(struct drawn *d, uint64_t number)
{
    static const struct aq_kv_options policies[] = {
        {.read_given = true, .read = 96},
        {.read_given = true, .read = 103, .read_dense_given = true},
        {.read_given = true, .read = 96, .read_dense_given = true, .read_dense = 1},
        {.policy = "knorm",
         .budget = SHARE(0.9),
         .read_given = true,
         .read = 97,
         .read_dense_given = true},
    };
    uint64_t which = aq_prng_below(rig.seed, number, 4200, AQ_ARRAY_LEN(policies));
    assert_int_equal(aq_kv_policy_resolve(&d->opts.kv, &policies[which], NULL), 0);
    if (d->opts.kv.read_dense >= 2) /* of models of two layers none would be left */
        d->opts.kv.read_dense = rig.now ? 1 : 2;
    if (rig.now && random_models[rig.now - 1].window && !random_models[rig.now - 1].full_layers)
        d->opts.kv.read = d->opts.kv.read_dense = 0; /* read whole: it is refused */
    if (!d->opts.emulate_device || aq_prng_below(rig.seed, number, 4201, 8) == 0)
        return;
    d->opts.attention = (struct aq_attention_choice){.given = true, .side = AQ_ATTEND_HOST};
    if (d->opts.placement.given) {
        double *kv = d->opts.placement.at.kv.percent;
        kv[AQ_HOST] += kv[AQ_DEVICE];
        kv[AQ_DEVICE] = 0;
    }
}

/* Positions are those in the cache: of windows, in models that turn their keys. */
static void draw_closing(struct drawn *d, uint64_t number)
{
    static const struct aq_kv_options policies[] = {
        {.policy = "window", .budget = SLOTS(33)},
        {.policy = "window", .budget = SLOTS(50), .sinks_given = true, .sinks = 35},
        {.policy = "window", .budget = SHARE(0.3), .sinks_given = true, .sinks = 1},
        {.policy = "window", .recent = SLOTS(7)},
    };
    struct aq_kv_options o = policies[aq_prng_below(rig.seed, number, 4300, 4)];
    o.positions_given = true;
    o.positions = AQ_KV_POSITIONS_CACHE;
    assert_int_equal(aq_kv_policy_resolve(&d->opts.kv, &o, NULL), 0);
    if (!aq_dtype_is_float((enum aq_dtype)d->opts.kv_format))
        d->opts.kv_format = AQ_F16;
    if (!rig.now)
        d->opts.model_dir = rig.model[rig.now = 1 + (uint32_t)(number / 2 % (MODELS - 1))];
}

/* All keys: in the memory of the products, on disk, or wherever they are drawn, mostly attended by
 * the device. */
static void draw_sharing(struct drawn *d, uint64_t number)
{
    uint64_t how = aq_prng_below(rig.seed, number, 4300, 8);
    d->opts.kv = (struct aq_kv_policy){0};
    d->opts.share_prefixes = true;
    if (how < 5)
        bring_home(d);
    if (how >= 3 && how < 5 && d->opts.placement.given) {
        d->opts.placement.at.kv = (struct aq_shares){{0, 0, 100}};
        d->opts.micro_batch = 2 + (uint32_t)number % 2; /* few seats: many are taken again */
        d->opts.micro_batches = 1;
        d->opts.side_by_side = AQ_BESIDE_OFF;
        d->opts.refill = true;
    }
    if (how < 7)
        d->opts.attention = (struct aq_attention_choice){.given = true, .side = AQ_ATTEND_DEVICE};
    else if (d->opts.emulate_device)
        d->opts.attention = (struct aq_attention_choice){.given = true, .side = AQ_ATTEND_HOST};
}

/* Does KV of any part of the plan pass through a stage? */
static bool moves_kv(const struct aq_plan *plan)
{
    bool staged = false;
    for (uint32_t i = 0; i < plan->part_count; i++)
        staged |= plan->part[i].staged;
    return staged;
}

/* Heads that have rules: in memory and on disk; draws of a device are mostly left without, and else
 * refused. */
static void draw_profiled(struct drawn *d, uint64_t number)
{
    static const struct aq_kv_options policies[] = {
        {.policy = "fastgen"},
        {.policy = "fastgen", .mass_given = true, .mass = 0.8},
        {.policy = "fastgen", .mass_given = true, .mass = 0.6, .local = SLOTS(40)},
        {.policy = "fastgen", .mass_given = true, .mass = 0.4, .frequent = SHARE(0.1)},
        {.policy = "fastgen", .mass_given = true, .mass = 0.9, .sinks_given = true, .sinks = 1},
        {.policy = "fastgen", .mass_given = true, .mass = 1},
        {.policy = "fastgen", .budget = SHARE(0.4)},
        {.policy = "fastgen", .budget = SLOTS(40), .mass_given = true, .mass = 1},
    };
    static uint8_t classes[512];
    uint64_t which = aq_prng_below(rig.seed, number, 4400, AQ_ARRAY_LEN(policies));
    for (size_t i = 0; i < sizeof(classes); i++)
        classes[i] = i % 7 == 3 ? AQ_KV_CLASS_PUNCT : i % 31 == 5 ? AQ_KV_CLASS_SPECIAL : 0;
    assert_int_equal(aq_kv_policy_resolve(&d->opts.kv, &policies[which], NULL), 0);
    d->opts.classes = (struct aq_kv_classes){classes, sizeof(classes)};
    if (aq_prng_below(rig.seed, number, 4401, 8) == 0)
        return;
    d->opts.emulate_device = 0;
    d->opts.host_products = (struct aq_host_products_choice){0};
    d->opts.emulate_link = (struct aq_link_choice){0};
}

static void run_draw(uint64_t number, enum drawing what)
{
    rig.now = number % 2 ? 1 + (uint32_t)(number / 2 % (MODELS - 1)) : 0;
    struct drawn d = {.opts = {.model_dir = rig.model[rig.now]}};
    struct aq_engine *e;
    struct aq_err err = {0};
    char difference[256];
    drawn_formats(&d.opts, rig.seed, number);
    uint32_t policy = drawn_kv(&d.opts, rig.seed, number);
    drawn_plan(&d, rig.seed, number, &rig.place);
    if (what == GOING_ON) {
        bring_home(&d);
    } else if (what != ANY_POLICY) {
        static void (*const draw[])(struct drawn *, uint64_t) = {
            NULL, draw_kivi, draw_cross, draw_reading, draw_closing, draw_profiled, draw_sharing};
        draw[what](&d, number);
        policy = DRAWN_KV - 1;
    }
    snprintf(running, sizeof(running),
             "AQ_PLACEMENT_SEED=%llu AQ_PLACEMENT_FIRST=%llu AQ_PLACEMENT_DRAWS=1: model %u, %s\n",
             (unsigned long long)rig.seed, (unsigned long long)number, rig.now, d.text);
    const struct crowd *whole = reference(&d.opts, policy);
    fresh_crowd(rig.crowd);
    bool goes_on = what == GOING_ON || number / 2 % 2;
    if (goes_on)
        crowd_give(rig.crowd, whole, rig.seed, number);
    if (aq_engine_open(&e, &d.opts, &err) < 0)
        fail_msg("%s: open: %s", running, err.text);
    int rc = aq_engine_plan(e, &rig.crowd->work, &err);
    if (rc < 0) {
        if ((rc != -EINVAL && rc != -ENOBUFS) || strlen(err.text) < 20)
            fail_msg("%s: plan: %d, %s", running, rc, err.text);
        if (getenv("AQ_PLACEMENT_VERBOSE"))
            print_message("refused %llu: %s\n", (unsigned long long)number, err.text);
        aq_engine_close(e);
        rig.refused++;
        return;
    }
    check_program(e, &d);
    aq_engine_observe(e, alloc_trap_arm, NULL);
    if (aq_engine_load(e, &err) < 0)
        fail_msg("%s: load: %s", running, err.text);
    alloc_trap_take();
    if (crowd_run(rig.crowd, e, &err) < 0)
        fail_msg("%s: %s", running, err.text);
    unsigned allocations = alloc_trap_take();
    if (allocations)
        fail_msg("%s: %u allocations while passes ran", running, allocations);
    if (!crowd_same(whole, rig.crowd, difference, sizeof(difference)))
        fail_msg("%s: %s", running, difference);
    check_memory(e, &d);
    struct aq_engine_stats st;
    aq_engine_stats(e, &st);
    for (int l = 0; l < AQ_LANE_COUNT; l++) {
        rig.lanes[l] +=
            st.lane[l].bytes > 0 || (l == AQ_LANE_HOST_COMPUTE && st.lane[l].busy_s > 0);
        if (st.lane[l].bytes > 0 && !(st.lane[l].busy_s > 0))
            fail_msg("%s: lane %d moved %llu bytes and was never busy", running, l,
                     (unsigned long long)st.lane[l].bytes);
    }
    rig.went_on += goes_on;
    rig.fed_many += st.prefill_tokens + st.shared_tokens > rig.crowd->work.prompt_sum;
    rig.shared += st.shared_tokens > 0;
    rig.shared_moving += st.shared_tokens > 0 && moves_kv(&aq_engine_block(e)->plan);
    rig.shared_by_host += st.shared_tokens > 0 && st.lane[AQ_LANE_HOST_COMPUTE].busy_s > 0;
    rig.beside += aq_engine_block(e)->plan.side_by_side && st.lane[AQ_LANE_HOST_COMPUTE].busy_s > 0;
    rig.host_products += aq_program_host_products(&aq_engine_block(e)->program);
    aq_engine_close(e);
    rig.ran++;
    rig.dropped += policy > 0;
}

/* A part of the draws, counted from 0; returns how many. */
static uint64_t run_draws(enum drawing what, unsigned part)
{
    uint64_t draws = setting("AQ_PLACEMENT_DRAWS", DRAWS) / part;
    uint64_t first = setting("AQ_PLACEMENT_FIRST", 0);
    rig.ran = rig.refused = rig.fed_many = rig.shared = 0;
    rig.shared_moving = rig.shared_by_host = 0;
    memset(rig.lanes, 0, sizeof(rig.lanes));
    for (uint64_t i = 0; i < draws; i++)
        run_draw(first + i, what);
    return draws;
}

static void tokens_do_not_depend_on_where_things_live(void **state)
{
    (void)state;
    uint64_t draws = setting("AQ_PLACEMENT_DRAWS", DRAWS);
    uint64_t first = setting("AQ_PLACEMENT_FIRST", 0);
    print_message("AQ_PLACEMENT_SEED=%llu, draws %llu to %llu\n", (unsigned long long)rig.seed,
                  (unsigned long long)first, (unsigned long long)(first + draws));
    for (uint64_t i = 0; i < draws; i++)
        run_draw(first + i, ANY_POLICY);
    print_message("%u ran, %u were refused; of them used", rig.ran, rig.refused);
    for (int l = AQ_LANE_HOST_COMPUTE; l < AQ_LANE_CONTROL; l++)
        print_message(" %s %u", aq_lane_name((enum aq_lane)l), rig.lanes[l]);
    print_message("; products on the host %u; %u went on, %u of them with several tokens a pass; "
                  "%u shared prefixes; %u side by side\n",
                  rig.host_products, rig.went_on, rig.fed_many, rig.shared, rig.beside);
    if (draws < 30)
        return;
    /* Or else it is not placements that are tested here. */
    assert_true(3 * rig.ran >= 2 * draws);
    assert_true(3 * rig.dropped >= 2 * rig.ran);
    assert_true(16 * rig.host_products >= draws);
    assert_true(16 * rig.beside >= draws);
    assert_true(3 * rig.went_on >= draws);
    for (int l = AQ_LANE_HOST_COMPUTE; l < AQ_LANE_CONTROL; l++)
        assert_true(8 * rig.lanes[l] >= draws);
}

static void neither_do_they_where_keys_are_kivi_s_codes(void **state)
{
    (void)state;
    uint64_t draws = run_draws(KIVI, 3);
    print_message("%u of %u ran, %u wrote to disk, %u shared prefixes\n", rig.ran, (unsigned)draws,
                  rig.lanes[AQ_LANE_DISK_WRITE], rig.shared);
    assert_true(draws < 30 ||
                (3 * rig.ran >= 2 * draws && 8 * rig.lanes[AQ_LANE_DISK_WRITE] >= draws &&
                 4 * rig.shared >= draws));
}

static void neither_do_they_where_heads_of_all_layers_share(void **state)
{
    (void)state;
    uint64_t draws = run_draws(CROSS, 3);
    print_message("%u of %u ran\n", rig.ran, (unsigned)draws);
    assert_true(draws < 30 || (3 * rig.ran >= 2 * draws && rig.refused > 0));
}

static void neither_do_they_where_rows_read_a_part(void **state)
{
    (void)state;
    uint64_t draws = run_draws(READING, 3);
    print_message("%u of %u ran, %u attended on a host beside a device\n", rig.ran, (unsigned)draws,
                  rig.lanes[AQ_LANE_HOST_COMPUTE]);
    assert_true(draws < 30 || (2 * rig.ran >= draws && rig.refused > 0 &&
                               8 * rig.lanes[AQ_LANE_HOST_COMPUTE] >= draws));
}

static void neither_do_they_where_positions_are_those_in_the_cache(void **state)
{
    (void)state;
    uint64_t draws = run_draws(CLOSING, 3);
    print_message("%u of %u ran, %u attended on a host beside a device, %u wrote to disk\n",
                  rig.ran, (unsigned)draws, rig.lanes[AQ_LANE_HOST_COMPUTE],
                  rig.lanes[AQ_LANE_DISK_WRITE]);
    assert_true(draws < 30 || (2 * rig.ran >= draws && 8 * rig.lanes[AQ_LANE_DISK_WRITE] >= draws &&
                               8 * rig.lanes[AQ_LANE_HOST_COMPUTE] >= draws));
}

static void neither_do_they_where_prompts_share_what_they_begin_with(void **state)
{
    (void)state;
    uint64_t draws = run_draws(SHARING, 2);
    print_message("%u of %u ran, %u shared, %u of them KV that moves, %u KV that a host attends "
                  "beside a device\n",
                  rig.ran, (unsigned)draws, rig.shared, rig.shared_moving, rig.shared_by_host);
    assert_true(draws < 30 || (2 * rig.shared >= draws && 8 * rig.shared_moving >= draws &&
                               24 * rig.shared_by_host >= draws));
}

static void neither_do_they_where_heads_have_rules(void **state)
{
    (void)state;
    uint64_t draws = run_draws(PROFILED, 3);
    print_message("%u of %u ran, %u wrote to disk\n", rig.ran, (unsigned)draws,
                  rig.lanes[AQ_LANE_DISK_WRITE]);
    assert_true(draws < 30 || (3 * rig.ran >= 2 * draws && rig.refused > 0 &&
                               8 * rig.lanes[AQ_LANE_DISK_WRITE] >= draws));
}

static void going_on_from_given_tokens_gives_what_generating_them_gave(void **state)
{
    (void)state;
    uint64_t draws = run_draws(GOING_ON, 2);
    print_message("%u of %u ran, %u with several tokens a pass\n", rig.ran, (unsigned)draws,
                  rig.fed_many);
    assert_true(draws < 30 || 2 * rig.fed_many >= draws);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tokens_do_not_depend_on_where_things_live),
    cmocka_unit_test(neither_do_they_where_keys_are_kivi_s_codes),
    cmocka_unit_test(neither_do_they_where_heads_of_all_layers_share),
    cmocka_unit_test(neither_do_they_where_rows_read_a_part),
    cmocka_unit_test(neither_do_they_where_positions_are_those_in_the_cache),
    cmocka_unit_test(neither_do_they_where_prompts_share_what_they_begin_with),
    cmocka_unit_test(neither_do_they_where_heads_have_rules),
    cmocka_unit_test(going_on_from_given_tokens_gives_what_generating_them_gave),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
