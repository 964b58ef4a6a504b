/* SPDX-License-Identifier: Apache-2.0
 * The passes that a forecast counts are those that the engine runs: random sequences on random
 * plans, their lengths through policy/seating.h beside the sequences through the executor, pass by
 * pass: rows, keys, the bytes of KV that every part moves, and the pages that prompts share.
 *
 * AQ_PASSES_DRAWS sets how many are drawn, AQ_PASSES_SEED from which seed. */
#include "engine/core/engine_state.h"
#include "engine/exec/exec.h"
#include "policy/seating.h"
#include "tests/random_model.h"
#include "tests/sim/drawn.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { DRAWS = TEST_SLOW ? 4 : 40, VOCAB = 4096 };

/* A run, and the forecast of its passes. */
struct watched {
    struct aq_engine *engine;
    struct aq_seating *seating;
    struct aq_pass_shape *want;
    uint64_t passes, moving, shared;
    char text[512]; /* the first difference; empty: none */
};

static void differ(struct watched *w, const char *what, uint64_t got, uint64_t want)
{
    if (!w->text[0])
        snprintf(w->text, sizeof(w->text), "pass %llu: %s: the engine %llu, the forecast %llu",
                 (unsigned long long)w->passes, what, (unsigned long long)got,
                 (unsigned long long)want);
}

#define COMPARE(got, want, field)                                                                  \
    do {                                                                                           \
        if ((got)->field != (want)->field)                                                         \
            differ(w, #field, (got)->field, (want)->field);                                        \
    } while (0)

static void compare_parts(struct watched *w, const struct aq_part_shape *got,
                          const struct aq_part_shape *want, uint32_t kinds)
{
    COMPARE(got, want, decode_rows);
    COMPARE(got, want, prefill_rows);
    for (uint32_t k = 0; k < kinds; k++) {
        const struct aq_kv_work *a = &got->kv[k], *b = &want->kv[k];
        COMPARE(a, b, decode_keys);
        COMPARE(a, b, decode_slots);
        COMPARE(a, b, decode_joint);
        COMPARE(a, b, prefill_key_pairs);
        COMPARE(a, b, stat_key_pairs);
        COMPARE(a, b, read_bytes);
        COMPARE(a, b, write_bytes);
        COMPARE(a, b, load_bytes);
        COMPARE(a, b, store_bytes);
        w->moving += a->read_bytes + a->write_bytes + a->load_bytes + a->store_bytes > 0;
    }
}

/* Pages that seats hold, each once.  Only of plans whose seats hold just the keys that they have
 * seen, in one pool. */
static uint64_t pages_of(const struct aq_seats *s)
{
    const struct aq_plan *plan = s->opts.plan;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < s->seated; i++) {
        const struct aq_seat *t = &s->seat[s->order[i].seat];
        pages += aq_div_up(t->seen, plan->shape.page_slots);
        pages -= s->order[i].prefix / plan->shape.page_slots;
    }
    return pages * plan->kinds.layers;
}

/* Is the engine's pool the only thing that seats hold, and all of it shared? */
static bool pages_tell(const struct aq_plan *plan)
{
    bool tell = !aq_kv_policy_lossy(&plan->kv) && !plan->kv.read;
    for (uint32_t i = 0; i < plan->part_count; i++)
        tell = tell && aq_seats_shares(plan, &plan->part[i]) && plan->part[i].tier != AQ_DISK;
    for (uint32_t k = 0; k < plan->kinds.count; k++)
        tell = tell && !plan->kinds.kind[k].window;
    return tell;
}

static void compare_seats(struct watched *w, const struct aq_plan *plan)
{
    const struct aq_seats *got = &w->engine->executor->seats, *want = aq_seating_seats(w->seating);
    uint64_t taken = 0;
    for (uint32_t i = 0; i < got->count; i++) {
        COMPARE(&got->seat[i], &want->seat[i], taken);
        COMPARE(&got->seat[i], &want->seat[i], prefix);
        COMPARE(&got->seat[i], &want->seat[i], from);
        COMPARE(&got->seat[i], &want->seat[i], copied);
        if (got->seat[i].seen == got->seat[i].prompt)
            w->shared += got->seat[i].prefix;
    }
    if (!pages_tell(plan))
        return;
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++)
        taken +=
            plan->shape.page_count[t] - aq_kv_pages_free(w->engine->executor->kv, (enum aq_tier)t);
    if (taken != pages_of(want))
        differ(w, "pages", taken, pages_of(want));
}

static void watch(void *user, bool running)
{
    struct watched *w = user;
    const struct aq_plan *plan = &aq_engine_block(w->engine)->plan;
    uint32_t prefill, decode;
    if (!running)
        return;
    if (!aq_seating_next(w->seating, &prefill, &decode))
        differ(w, "passes", 1, 0);
    aq_seating_shape(w->seating, w->want);
    for (uint32_t k = 0; k < plan->shape.micro_batches; k++) {
        const struct aq_pass_shape *got = &w->engine->executor->pass_shape[k];
        COMPARE(got, &w->want[k], decode_rows);
        COMPARE(got, &w->want[k], prefill_rows);
        for (uint32_t i = 0; i < plan->part_count; i++)
            compare_parts(w, &got->part[i], &w->want[k].part[i], plan->kinds.count);
    }
    compare_seats(w, plan);
    w->passes++;
}

static struct {
    char root[TEMP_PATH_MAX], cache[TEMP_INSIDE_MAX], scratch[TEMP_INSIDE_MAX], model[2][4096];
    struct drawn_place place;
    struct crowd crowd;
    uint64_t ran, moving, shared, both;
} rig;

/* Two layers of three hold less than what the policy says. */
static const struct random_model windows = {
    RANDOM_MISTRAL, 3, 192, 4, 2, 48, VOCAB, 128, 2, .window = 33, .full_layers = 2};

static int set_up(void **state)
{
    temp_dir(rig.root, "passes");
    snprintf(rig.model[0], sizeof(rig.model[0]), "%s", test_data_path("tiny-opt"));
    snprintf(rig.model[1], sizeof(rig.model[1]), "%s/windows", rig.root);
    random_model_write(rig.model[1], &windows, 1);
    snprintf(rig.cache, sizeof(rig.cache), "%s/cache", rig.root);
    snprintf(rig.scratch, sizeof(rig.scratch), "%s/scratch", rig.root);
    if (mkdir(rig.cache, 0700) < 0 || mkdir(rig.scratch, 0700) < 0)
        return -1;
    rig.place = (struct drawn_place){
        .dirs = {rig.scratch}, .dir_count = 1, .cache_dir = rig.cache, .chunk_pages = 400};
    return 0;
}

static int tear_down(void **state)
{
    return temp_remove(rig.root);
}

/* Nothing keeps sequences from sharing: all keys stay, in the memory that products run in, or where
 * they come from to be attended there: the disk, or the other side of a link.  Or they copy what
 * they do not compute, since some drop keys, or keys are KIVI's codes, or a host attends beside a
 * device. */
static void share_all(struct drawn *d, uint64_t number)
{
    uint64_t how = number / 4 % 6;
    if (how == 3)
        return;
    d->opts.kv = (struct aq_kv_policy){0};
    d->opts.kv_format = AQ_F16;
    d->opts.attention = (struct aq_attention_choice){.given = how > 0, .side = AQ_ATTEND_DEVICE};
    d->opts.share_prefixes = true;
    if (how == 4) {
        d->opts.kv_format = number % 8 < 4 ? AQ_KIVI4 : AQ_KIVI2;
        d->opts.kv.residual = (struct aq_kv_residual){.tokens = 32};
        d->opts.host_products = (struct aq_host_products_choice){0};
        d->opts.emulate_link = (struct aq_link_choice){0};
    }
    if (how == 5)
        d->opts.attention.side = AQ_ATTEND_HOST;
    if (how < 2 || how == 4)
        d->opts.emulate_device = 0;
    if (how == 0)
        d->opts.placement = (struct aq_placement_choice){0};
    else if (how == 1 && d->opts.placement.given)
        d->opts.placement.at.kv = (struct aq_shares){{0, 0, 100}};
}

static void run_draw(uint64_t seed, uint64_t number, bool share)
{
    struct drawn d = {0};
    struct aq_err err;
    struct aq_length length[CROWD_MAX];
    struct watched w = {0};
    crowd_draw(&rig.crowd, seed + number, share ? CROWD_MAX : 6 + (uint32_t)(number % 8),
               share ? CROWD_PROMPT_MAX : 75, 44, VOCAB);
    d.opts.model_dir = rig.model[!share && number % 3 == 2];
    drawn_formats(&d.opts, seed, number);
    drawn_kv(&d.opts, seed, number);
    drawn_plan(&d, seed, number, &rig.place);
    d.opts.share_prefixes |= share;
    if (share)
        share_all(&d, number);
    if (d.opts.share_prefixes)
        crowd_sort(&rig.crowd);
    for (uint32_t i = 0; i < rig.crowd.count; i++) {
        const struct crowd_one *one = &rig.crowd.one[i];
        bool alike = d.opts.share_prefixes && i;
        length[i] = (struct aq_length){one->s.prompt_count, one->s.max_tokens,
                                       alike ? crowd_alike(one, one - 1) : 0};
    }
    /* Nothing is computed but how many slots each head keeps, where that is for them to say. */
    d.opts.replay = !aq_kv_policy_ragged(&d.opts.kv);
    if (aq_engine_open(&w.engine, &d.opts, &err) < 0)
        fail_msg("draw %llu: %s", (unsigned long long)number, err.text);
    if (aq_engine_plan(w.engine, &rig.crowd.work, &err) == 0) {
        const struct aq_block *b = aq_engine_block(w.engine);
        struct aq_seating_opts o = {
            aq_engine_steps(w.engine), b, length, rig.crowd.count, rig.crowd.count,
            w.engine->opts.refill};
        assert_int_equal(aq_seating_open(&w.seating, &o, &err), 0);
        w.want = aq_pass_shapes_new(&b->plan);
        assert_non_null(w.want);
        aq_engine_observe(w.engine, watch, &w);
        if (aq_engine_load(w.engine, &err) < 0 || crowd_run(&rig.crowd, w.engine, &err) < 0)
            fail_msg("draw %llu, %s: %s", (unsigned long long)number, d.text, err.text);
        if (w.text[0])
            fail_msg("draw %llu, %s: %s", (unsigned long long)number, d.text, w.text);
        uint32_t prefill, decode;
        assert_false(aq_seating_next(w.seating, &prefill, &decode));
        rig.ran++;
        rig.moving += w.moving > 0;
        rig.shared += w.shared;
        rig.both += w.moving && w.shared;
    }
    aq_engine_close(w.engine);
    aq_seating_close(w.seating);
    free(w.want);
}

static void a_forecast_has_the_passes_of_the_engine(void **state)
{
    const char *draws_text = getenv("AQ_PASSES_DRAWS"), *seed_text = getenv("AQ_PASSES_SEED");
    uint64_t draws = draws_text ? strtoull(draws_text, NULL, 10) : DRAWS;
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 10) : 20261123;
    print_message("AQ_PASSES_SEED=%llu, %llu draws\n", (unsigned long long)seed,
                  (unsigned long long)draws);
    for (uint64_t i = 0; i < draws; i++)
        run_draw(seed, i, i % 4 == 3);
    print_message(
        "%llu ran, of which %llu moved KV; %llu tokens were shared, in %llu that moved it\n",
        (unsigned long long)rig.ran, (unsigned long long)rig.moving, (unsigned long long)rig.shared,
        (unsigned long long)rig.both);
    assert_true(rig.shared >= 20 * draws);
    assert_true(draws < 20 || 16 * rig.both >= draws);
    assert_true(2 * rig.ran >= draws);
    assert_true(draws < 20 || 4 * rig.moving >= rig.ran);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_forecast_has_the_passes_of_the_engine),
};

int main(void)
{
    return cmocka_run_group_tests(tests, set_up, tear_down) ? 1 : 0;
}
