/* SPDX-License-Identifier: Apache-2.0
 * The builder's programs for many plans: they pass the checker and play right in every order tried;
 * broken on purpose they are rejected or still play right. */
#include "base/prng.h"
#include "policy/checker.h"
#include "policy/host_product.h"
#include "tests/test.h"
#include "tests/unit/policy/hand.h"
#include "tests/unit/policy/interleave.h"
#include "tests/unit/policy/mutate.h"
#include "tests/unit/policy/plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void programs_of_all_plans_pass(void **state)
{
    static const struct plan_limits limits = {
        .layers_max = 5, .micro_batches_max = 4, .parts_max = 6, .chunks_max = 6};
    uint32_t built = 0, host_products = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct planned p;
        struct aq_err err = {0};
        if (!plans_draw(&p, &limits, seed))
            continue;
        struct aq_check_opts opts = plans_check_opts(&p);
        if (aq_program_check(&p.program, &opts, &err) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        built++;
        host_products += aq_program_host_products(&p.program);
        plans_close(&p);
    }
    assert_true(built > 1000 && host_products > 200);
}

static void programs_of_small_plans_play_right_in_any_order(void **state)
{
    static const struct plan_limits limits = {
        .layers_max = 2, .micro_batches_max = 2, .parts_max = 3, .chunks_max = 2};
    uint32_t played = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct planned p;
        if (!plans_draw(&p, &limits, seed))
            continue;
        if (!interleave_all(&p.program, seed, 20))
            fail_msg("seed %llu goes wrong", (unsigned long long)seed);
        played++;
        plans_close(&p);
    }
    assert_true(played > 60);
}

/* ---- mutants ---- */

struct verdicts {
    uint32_t form, flow, harmless;
};

static void judge(const struct planned *p, enum mutation m, uint64_t seed, struct verdicts *v)
{
    struct aq_check_opts opts = plans_check_opts(p);
    struct aq_err err = {0};
    int rc = aq_program_check(&p->program, &opts, &err);
    if (aq_program_check_form(&p->program, &opts, &err) < 0) {
        assert_int_equal(rc, -EPROTO);
        v->form++;
        return;
    }
    bool right = interleave_all(&p->program, seed, 10);
    if (right != (rc == 0))
        fail_msg("%s, seed %llu: the checker says %s, orders that were tried %s", mutation_name(m),
                 (unsigned long long)seed, rc == 0 ? "right" : err.text,
                 right ? "play right" : "go wrong");
    *(right ? &v->harmless : &v->flow) += 1;
}

static void mutants_of_plans_are_rejected_or_change_nothing(void **state)
{
    static const struct plan_limits limits = {
        .layers_max = 2, .micro_batches_max = 2, .parts_max = 3, .chunks_max = 2};
    for (enum mutation m = 0; m < MUTATION_COUNT; m++) {
        struct verdicts v = {0};
        for (uint64_t seed = 0; seed < 120; seed++) {
            struct planned p;
            struct aq_program before;
            if (!plans_draw(&p, &limits, 1000 * m + seed))
                continue;
            hand_copy(&before, &p.program);
            if (mutate(&p.program, m, seed) && !hand_equal(&before, &p.program))
                judge(&p, m, seed, &v);
            aq_program_close(&before);
            plans_close(&p);
        }
        print_message("%-16s form %3u, flow %3u, harmless %3u\n", mutation_name(m), v.form, v.flow,
                      v.harmless);
        assert_true(v.form + v.flow > 0);
    }
}

static void a_use_of_weights_that_is_forgotten_is_missed(void **state)
{
    static const struct plan_limits limits = {
        .layers_max = 2, .micro_batches_max = 2, .parts_max = 2, .chunks_max = 3};
    uint32_t dropped = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct planned p;
        if (!plans_draw(&p, &limits, seed))
            continue;
        struct aq_check_opts opts = plans_check_opts(&p);
        for (uint32_t i = 0; i < p.program.op_count; i++) {
            struct aq_op *op = &p.program.op[i];
            struct aq_use *use = op->use_count ? &p.program.use[op->use_first] : NULL;
            if (!use || use->mode != AQ_USE_READ || use->need.object != AQ_OBJECT_WEIGHTS ||
                op->kind == AQ_OP_H2D)
                continue;
            op->use_first++;
            op->use_count--;
            assert_int_equal(aq_program_check(&p.program, &opts, NULL), -EPROTO);
            op->use_first--;
            op->use_count++;
            dropped++;
        }
        assert_int_equal(aq_program_check(&p.program, &opts, NULL), 0);
        plans_close(&p);
    }
    assert_true(dropped > 100);
}

/* A plan lends pages to higher micro-batches, unless it visits them up and down: then its program
 * may not be taken for one that ascends. */
static void pages_are_lent_by_prompts_that_are_computed_before(void **state)
{
    static const struct plan_limits limits = {
        .layers_max = 3, .micro_batches_max = 4, .parts_max = 2, .chunks_max = 3};
    uint32_t told = 0, ascending = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct planned p;
        struct aq_err err = {0};
        if (!plans_draw(&p, &limits, seed))
            continue;
        struct aq_check_opts opts = plans_check_opts(&p);
        bool up_and_down = p.plan.alternate;
        assert_int_equal(aq_program_check(&p.program, &opts, NULL), 0);
        p.plan.alternate = false;
        int rc = aq_program_check(&p.program, &opts, &err);
        assert_true(rc == 0 || up_and_down);
        assert_true(rc == 0 || strstr(err.text, "may begin with pages that ATTN_PREFILL of step"));
        told += rc < 0;
        ascending += rc == 0 && p.plan.shape.micro_batches > 1;
        plans_close(&p);
    }
    assert_true(told > 10 && ascending > 10);
}

/* ---- size ---- */

static void a_program_of_twenty_thousand_ops_is_checked(void **state)
{
    struct planned p = {.steps = plans_model(96, 256, 4, 500)};
    p.plan = (struct aq_plan){
        .shape = plans_shape(16, 8),
        .placement = {.weights = {{0, 50, 50}},
                      .kv = {{0, 50, 50}},
                      .hidden = {{0, 100, 0}},
                      .head = AQ_DEVICE},
        .separate = true,
        .chunk_bytes = 256 * 1024,
        .ring_chunks = 64,
        .staging_chunks = 8,
        .kv_stages = 4,
        .workspaces = 2,
        .hidden_slots = 3,
    };
    plans_build(&p, AQ_ATTEND_DEVICE, 4);
    assert_true(p.program.op_count > 20000);
    plans_check(&p);
    struct aq_check_opts opts = plans_check_opts(&p);
    /* One dep less, in the middle of it. */
    struct aq_op *op = &p.program.op[p.program.op_count / 2];
    while (op->kind != AQ_OP_H2D || op->object != AQ_OBJECT_WEIGHTS)
        op++;
    op->dep_count = 0;
    assert_int_equal(aq_program_check(&p.program, &opts, NULL), -EPROTO);
    plans_close(&p);
}

static struct aq_plan half_on_the_host(void)
{
    return (struct aq_plan){
        .shape = plans_shape(4, 2),
        .placement = {{{0, 100, 0}}, {{100, 0, 0}}, {{100, 0, 0}}, AQ_DEVICE},
        .separate = true,
        .chunk_bytes = AQ_MIB,
        .ring_chunks = 8,
        .workspaces = 2,
        .split_mlp = true,
        .host_products = 50,
    };
}

/* Panels of the attention steps and of the MLP steps that the host computes with. */
static void count_on_host(const struct planned *p, uint32_t ret[2])
{
    ret[0] = ret[1] = 0;
    for (uint32_t j = 1; j + 1 < p->steps.step_count; j++) {
        for (uint32_t i = 0; i < p->steps.step[j].matrix_count; i++)
            ret[p->steps.step[j].kind == AQ_STEP_MLP] +=
                p->stream.split[aq_matrix_index(&p->steps, j, i)].on_host;
    }
}

/* Two products in one half that are not of the same columns of one output are the device's. */
static void two_products_in_a_row_stay_with_the_device(void **state)
{
    for (int half = 0; half < 2; half++) {
        struct planned p = {.steps = plans_model(2, 128, 2, 200), .plan = half_on_the_host()};
        for (uint32_t layer = 0; layer < 2; layer++) {
            struct aq_prim_list *more = &p.steps.step[2 + 2 * layer].half[half];
            more->prim[more->count++] = more->prim[0]; /* takes the place of the first, or adds */
        }
        plans_build(&p, AQ_ATTEND_DEVICE, 4);
        plans_check(&p);
        uint32_t on_host[2];
        count_on_host(&p, on_host);
        assert_true(on_host[0] > 0 && aq_program_host_products(&p.program));
        /* Half of the panels of the other half: fc2's two a layer, or fc1's eight. */
        assert_int_equal(on_host[1], half ? 8 : 2);
        plans_close(&p);
    }
}

/* Of a gate and what it multiplies the host computes the same columns, whatever the shares. */
static void a_gate_and_what_it_multiplies_are_split_alike(void **state)
{
    for (uint32_t share = 1; share <= 100; share++) {
        struct planned p = {.steps = plans_gated_model(2, 128, 2, 200), .plan = half_on_the_host()};
        p.plan.host_products = share;
        p.plan.placement.weights = (struct aq_shares){{share % 7, 100 - share % 7, 0}};
        plans_build(&p, AQ_ATTEND_DEVICE, 4);
        plans_check(&p);
        uint32_t with = 0;
        for (uint32_t j = 2; j + 1 < p.steps.step_count; j += 2) {
            const struct aq_split *gate = &p.stream.split[aq_matrix_index(&p.steps, j, 0)];
            const struct aq_split *up = &p.stream.split[aq_matrix_index(&p.steps, j, 2)];
            assert_memory_equal(gate, up, sizeof(*gate));
            struct aq_host_product h;
            if (!aq_host_product_find(&h, &p.stream, &p.steps, &p.plan, AQ_OP_MLP_UP, j))
                continue;
            with++;
            assert_int_equal(h.products.count, 2);
            assert_int_equal(h.range_count, 1);
            assert_int_equal(h.columns, AQ_PANEL_ROWS * gate->on_host);
        }
        assert_true(with == 2 || share < 20);
        plans_close(&p);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(programs_of_all_plans_pass),
    cmocka_unit_test(programs_of_small_plans_play_right_in_any_order),
    cmocka_unit_test(mutants_of_plans_are_rejected_or_change_nothing),
    cmocka_unit_test(a_use_of_weights_that_is_forgotten_is_missed),
    cmocka_unit_test(pages_are_lent_by_prompts_that_are_computed_before),
    cmocka_unit_test(two_products_in_a_row_stay_with_the_device),
    cmocka_unit_test(a_gate_and_what_it_multiplies_are_split_alike),
    cmocka_unit_test(a_program_of_twenty_thousand_ops_is_checked),
};

AQ_TEST_MAIN(tests)
