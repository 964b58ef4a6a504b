/* SPDX-License-Identifier: Apache-2.0
 * Budgets of an emulated device, drawn at random: a plan that is called feasible runs to its end
 * within them; where none is, the least that there could be is forced upon a device of that size,
 * which then really has no room for it.
 *
 * AQ_BUDGET_DRAWS sets how many are drawn, AQ_BUDGET_SEED from which seed, AQ_BUDGET_FIRST the
 * number of the first. */
#include "base/json.h"
#include "base/mem.h"
#include "base/prng.h"
#include "engine/core/engine_state.h"
#include "tests/choices.h"
#include "tests/sim/drawn.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <string.h>
#include <sys/stat.h>

enum {
    DRAWS = TEST_SLOW ? 8 : 60,
    CROWD = TEST_SLOW ? 3 : 6,
    PROMPT = 75,
    TOKENS = TEST_SLOW ? 6 : 16,
    VOCAB = 4096,
};

static struct {
    char root[TEMP_PATH_MAX], model[4096];
    struct drawn_place place;
    struct crowd *crowd;
    uint64_t seed;
    unsigned ran, tight, forced;
} rig;

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static int set_up(void **state)
{
    (void)state;
    snprintf(rig.model, sizeof(rig.model), "%s", test_data_path("tiny-opt"));
    temp_dir(rig.root, "budget");
    rig.place = (struct drawn_place){
        .dirs = {rig.root}, .dir_count = 1, .cache_dir = rig.root, .chunk_pages = 200};
    rig.crowd = calloc(1, sizeof(*rig.crowd));
    rig.seed = setting("AQ_BUDGET_SEED", 77);
    return rig.crowd ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    free(rig.crowd);
    return temp_remove(rig.root);
}

static void fresh_crowd(void)
{
    crowd_draw(rig.crowd, rig.seed, CROWD, PROMPT, TOKENS, VOCAB);
}

/* Some of the choices fixed, others free; on a device of so many bytes. */
static void draw(struct drawn *d, uint64_t number, uint64_t device_bytes)
{
    static const char *const sides[] = {"auto", "device", "host", "split"};
    uint64_t free = aq_prng_below(rig.seed, number, 5, 3);
    *d = (struct drawn){.opts = {.model_dir = rig.model}};
    drawn_formats(&d->opts, rig.seed, number);
    drawn_kv(&d->opts, rig.seed, number);
    drawn_plan(d, rig.seed, number, &rig.place);
    struct aq_engine_opts *o = &d->opts;
    o->host_memory = 2 * AQ_GIB;
    o->emulate_device = device_bytes;
    o->emulate_link = (struct aq_link_choice){{0}};
    o->host_products = (struct aq_host_products_choice){0};
    o->side_by_side = AQ_BESIDE_OFF; /* for a CPU that computes all */
    o->attention = attended(sides[aq_prng_below(rig.seed, number, 6, AQ_ARRAY_LEN(sides))]);
    o->chunk = o->prefetch = 0;
    o->placement = placed(free ? NULL : d->placement);
    o->micro_batch = free == 2 ? 0 : o->micro_batch;
    o->predict = free == 2; /* the planner chooses, on a machine that is the same every time */
    o->hardware = free == 2 ? "epyc-zen5-2vcpu" : NULL;
}

static struct aq_engine *open_engine(const struct drawn *d)
{
    struct aq_engine *e;
    struct aq_err err;
    if (aq_engine_open(&e, &d->opts, &err) < 0)
        fail_msg("%s: open: %s", d->text, err.text);
    return e;
}

/* What a plan that nothing keeps small takes of the device. */
static uint64_t bytes_wished(uint64_t number)
{
    struct drawn d;
    struct aq_err err;
    draw(&d, number, AQ_GIB);
    fresh_crowd();
    struct aq_engine *e = open_engine(&d);
    if (aq_engine_plan(e, &rig.crowd->work, &err) < 0)
        fail_msg("%s: plan: %s", d.text, err.text);
    uint64_t bytes = aq_ledger_total(&aq_engine_block(e)->ledger, AQ_DEVICE);
    aq_engine_close(e);
    return bytes;
}

static void must_run(struct aq_engine *e, const struct drawn *d)
{
    struct aq_err err;
    if (aq_engine_load(e, &err) < 0)
        fail_msg("%s: load: %s", d->text, err.text);
    if (crowd_run(rig.crowd, e, &err) < 0)
        fail_msg("%s: %s", d->text, err.text);
    assert_true(crowd_whole(rig.crowd));
    assert_true(aq_mem_peak(aq_engine_mem(e), AQ_DEVICE) <= d->opts.emulate_device);
    assert_true(aq_mem_peak(aq_engine_mem(e), AQ_HOST) <=
                aq_ledger_total(&aq_engine_block(e)->ledger, AQ_HOST));
}

/* Takes a byte off the device's lines, as if the ledger had not asked for it. */
static void take_off_a_byte(struct aq_ledger *l)
{
    uint32_t i = 0;
    while (l->item[i].tier != AQ_DEVICE)
        assert_true(++i < l->count);
    l->item[i].bytes--;
}

/* One way to place a single seat, loaded on a device that has a byte less than the ledger says: so
 * the ledger asks for nothing that is not taken, and on the device as it is there is less room yet.
 */
static void must_not_fit(const struct drawn *d, const struct aq_placement *p,
                         enum aq_attention_side side)
{
    struct aq_engine *e = open_engine(d);
    struct aq_err err = {0};
    uint64_t budget = d->opts.emulate_device;
    assert_int_equal(aq_engine_plan(e, &rig.crowd->work, NULL), -ENOBUFS);
    struct aq_block_inputs in = e->inputs;
    in.placement = in.placement ? in.placement : p;
    if (in.attention_auto)
        in.attention = side;
    in.attention_auto = false;
    assert_int_equal(aq_block_least(&e->block, &in, &err), 0);
    uint64_t needed = aq_ledger_total(&e->block.ledger, AQ_DEVICE);
    if (needed <= budget)
        fail_msg("%s: refused, but %llu bytes of %llu would do for one seat", d->text,
                 (unsigned long long)needed, (unsigned long long)budget);
    take_off_a_byte(&e->block.ledger);
    e->planned = true;
    int rc = aq_engine_load(e, &err);
    if (rc != -ENOMEM || !strstr(err.text, "device memory"))
        fail_msg("%s: %llu bytes were said to be needed, but with one less loading gives %d, %s",
                 d->text, (unsigned long long)needed, rc, err.text);
    aq_engine_close(e);
    rig.forced++;
}

/* With all there is on the host or on disk, and attention on either side. */
static void nothing_must_fit(const struct drawn *d)
{
    static const struct aq_placement ways[] = {
        {{{0, 100, 0}}, {{0, 100, 0}}, {{100, 0, 0}}, AQ_HOST},
        {{{0, 0, 100}}, {{0, 100, 0}}, {{100, 0, 0}}, AQ_HOST},
        {{{0, 0, 100}}, {{0, 0, 100}}, {{100, 0, 0}}, AQ_HOST},
        {{{0, 100, 0}}, {{0, 100, 0}}, {{0, 100, 0}}, AQ_HOST},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(ways); i++) {
        must_not_fit(d, &ways[i], AQ_ATTEND_DEVICE);
        must_not_fit(d, &ways[i], AQ_ATTEND_HOST);
    }
}

static void run_draw(uint64_t number)
{
    struct drawn d;
    struct aq_err err;
    uint64_t wished = bytes_wished(number);
    draw(&d, number, wished / 10 + aq_prng_below(rig.seed, number, 7, wished));
    fresh_crowd();
    struct aq_engine *e = open_engine(&d);
    int rc = aq_engine_plan(e, &rig.crowd->work, &err);
    if (rc == 0) {
        rig.tight += aq_engine_block(e)->tight;
        must_run(e, &d);
        rig.ran++;
    } else if (rc != -ENOBUFS) {
        fail_msg("%s: plan: %d, %s", d.text, rc, err.text);
    }
    aq_engine_close(e);
    if (rc < 0 && strstr(err.text, "no block fits"))
        nothing_must_fit(&d);
}

static void what_is_feasible_runs_and_what_is_not_does_not_fit(void **state)
{
    (void)state;
    uint64_t draws = setting("AQ_BUDGET_DRAWS", DRAWS), first = setting("AQ_BUDGET_FIRST", 0);
    print_message("AQ_BUDGET_SEED=%llu, draws %llu to %llu\n", (unsigned long long)rig.seed,
                  (unsigned long long)first, (unsigned long long)(first + draws));
    for (uint64_t i = 0; i < draws; i++)
        run_draw(first + i);
    print_message("%u ran, %u of them with the smallest buffers; %u were forced\n", rig.ran,
                  rig.tight, rig.forced);
    if (draws >= DRAWS && !TEST_SLOW) /* or else nothing was tried */
        assert_true(4 * rig.ran >= draws && rig.tight > 0 && rig.forced > 8);
}

/* Neither biases nor norms with weights: the steps have no vectors. */
static void a_model_without_vectors_takes_what_its_ledger_says(void **state)
{
    (void)state;
    static const char *const products[] = {NULL, "30%"};
    char path[TEMP_PATH_MAX + 16], from[sizeof(rig.model) + 16];
    struct aq_err err;
    json_t *config = NULL;
    snprintf(from, sizeof(from), "%s/config.json", rig.model);
    snprintf(path, sizeof(path), "%s/config.json", rig.root);
    assert_int_equal(aq_json_read_file(&config, from, 1 << 20, &err), 0);
    json_object_set_new(config, "enable_bias", json_false());
    json_object_set_new(config, "layer_norm_elementwise_affine", json_false());
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    for (size_t i = 0; i < AQ_ARRAY_LEN(products); i++) {
        struct drawn d;
        draw(&d, 0, 64 * AQ_MIB);
        snprintf(d.text, sizeof(d.text), "without vectors, case %zu", i);
        d.opts.model_dir = NULL;
        d.opts.shape = path;
        d.opts.random_weights = true;
        d.opts.placement = placed("weights=40/60/0 kv=50/50/0");
        d.opts.host_products = multiplied(products[i]);
        d.opts.predict = false;
        fresh_crowd();
        struct aq_engine *e = open_engine(&d);
        if (aq_engine_plan(e, &rig.crowd->work, &err) < 0)
            fail_msg("%s: plan: %s", d.text, err.text);
        assert_int_equal(aq_ledger_line(&aq_engine_block(e)->ledger, AQ_DEVICE, "vectors"), 0);
        must_run(e, &d);
        aq_engine_close(e);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_model_without_vectors_takes_what_its_ledger_says),
    cmocka_unit_test(what_is_feasible_runs_and_what_is_not_does_not_fit),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
