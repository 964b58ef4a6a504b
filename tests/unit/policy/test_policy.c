/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "base/prng.h"
#include "policy/admit.h"
#include "policy/block.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- admission ---- */

/* Plays the passes one by one: obviously right, slow. */
static uint64_t peak_by_playing(const struct aq_admit_length *s, uint32_t count,
                                uint32_t page_slots)
{
    uint64_t peak = 0;
    for (uint32_t pass = 0; pass <= 400; pass++) {
        uint64_t pages = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (s[i].now + pass <= s[i].last)
                pages += aq_div_up(s[i].now + pass, page_slots);
        }
        peak = aq_max_u64(peak, pages);
    }
    return peak;
}

static void the_peak_equals_playing_the_passes(void **state)
{
    for (uint64_t round = 0; round < 300; round++) {
        struct aq_admit_length s[20];
        uint32_t count = 1 + (uint32_t)aq_prng_below(1, round, 0, 20);
        for (uint32_t i = 0; i < count; i++) {
            s[i].now = 1 + (uint32_t)aq_prng_below(2, round, i, 100);
            s[i].last = s[i].now + (uint32_t)aq_prng_below(3, round, i, 300);
        }
        uint32_t slots = 32 * (1 + (uint32_t)(round % 3));
        assert_int_equal(aq_admit_peak_pages(s, count, slots), peak_by_playing(s, count, slots));
    }
}

/* A pool run at its limit by random admissions never needs more pages than it has. */
static void admission_never_exceeds_the_pool(void **state)
{
    struct aq_admit_length seated[65];
    uint32_t count = 0, admitted = 0;
    struct aq_admit_limits limits = {
        .pages = 60, .page_slots = 32, .seats_free = 1, .prompt_tokens = 4096};
    for (uint64_t pass = 0; pass < 3000; pass++) {
        for (int attempt = 0; attempt < 4 && count < 64; attempt++) {
            uint32_t prompt = 1 + (uint32_t)aq_prng_below(7, pass, (uint64_t)attempt, 200);
            uint32_t last = prompt + (uint32_t)aq_prng_below(8, pass, (uint64_t)attempt, 200);
            if (aq_admit_one(&limits, seated, count, 0, prompt, last)) {
                count++;
                admitted++;
            }
        }
        uint64_t pages = 0;
        for (uint32_t i = 0; i < count; i++)
            pages += aq_div_up(seated[i].now, 32);
        assert_true(pages <= limits.pages);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < count; i++) { /* some end early, all end at `last` */
            bool early = aq_prng_below(9, pass, i, 50) == 0;
            if (seated[i].now < seated[i].last && !early) {
                seated[kept] = seated[i];
                seated[kept++].now++;
            }
        }
        count = kept;
    }
    assert_true(admitted > 300);
}

static void a_long_prompt_is_admitted_alone(void **state)
{
    struct aq_admit_length seated[4];
    struct aq_admit_limits limits = {
        .pages = 1000, .page_slots = 32, .seats_free = 1, .prompt_tokens = 100};
    assert_true(aq_admit_one(&limits, seated, 0, 0, 500, 510));
    assert_false(aq_admit_one(&limits, seated, 0, 60, 50, 60));
    assert_true(aq_admit_one(&limits, seated, 0, 50, 50, 60));
    limits.seats_free = 0;
    assert_false(aq_admit_one(&limits, seated, 0, 0, 1, 1));
}

/* ---- program ---- */

static struct aq_model_steps little_model(uint32_t layers)
{
    struct aq_model_steps m = {.step_count = 2 * layers + 2,
                               .layers = layers,
                               .hidden = 64,
                               .inner = 256,
                               .embed_width = 64,
                               .vocab = 1000,
                               .heads = 4,
                               .kv_heads = 4,
                               .head_dim = 16,
                               .context = 256};
    m.step = calloc(m.step_count, sizeof(*m.step));
    for (uint32_t j = 0; j < m.step_count; j++) {
        struct aq_step_desc *s = &m.step[j];
        s->kind = j == 0                  ? AQ_STEP_EMBED
                  : j == m.step_count - 1 ? AQ_STEP_HEAD
                  : j % 2                 ? AQ_STEP_ATTENTION
                                          : AQ_STEP_MLP;
        s->layer = (j - 1) / 2;
        snprintf(s->matrix[0].name, AQ_NAME_MAX, j == 0 || j == m.step_count - 1 ? "tokens" : "w%u",
                 j);
        s->matrix[0].rows = j == 0 || j == m.step_count - 1 ? 1000 : 256;
        s->matrix[0].k = 64;
        s->matrix_count = 1;
        s->main.count = 1;
        s->main.prim[0] =
            (struct aq_prim){.kind = j ? AQ_PRIM_PRODUCT : AQ_PRIM_GATHER, .matrix_count = 1};
    }
    aq_steps_finish(&m);
    return m;
}

static void tied_matrices_are_counted_once(void **state)
{
    struct aq_model_steps m = little_model(2);
    assert_int_equal(m.parameters, 1000 * 64 + 4 * 256 * 64);
    struct aq_block_inputs in = {.steps = &m, .weight_format = AQ_BF16, .table_format = AQ_F16};
    uint64_t matrices, vectors;
    aq_block_weight_bytes(&in, &matrices, &vectors);
    assert_int_equal(matrices, 16 * 8192 + 4 * 4 * 8192);
    free(m.step);
}

static void a_program_is_ordered_by_its_dependencies(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_block_shape shape = {.micro_batch = 4,
                                   .micro_batches = 3,
                                   .rows_max = 100,
                                   .tile_rows = 100,
                                   .head_tile_rows = 8,
                                   .page_slots = 32,
                                   .page_bytes = 4096,
                                   .page_count = 12,
                                   .compute = AQ_F32,
                                   .kv_format = AQ_F16};
    struct aq_program p;
    assert_int_equal(aq_program_build(&p, &m, &shape, NULL), 0);
    assert_int_equal(p.op_count, 3 * (3 * 5 + 3));
    uint32_t turns = 0, back = 0;
    for (uint32_t i = 0; i < p.op_count; i++) {
        const struct aq_op *op = &p.op[i];
        turns += op->kind == AQ_OP_TURN;
        assert_int_equal(op->lane, op->kind == AQ_OP_TURN ? AQ_LANE_CONTROL : AQ_LANE_COMPUTE);
        assert_true(op->dep_count > 0);
        for (uint32_t d = 0; d < op->dep_count; d++) {
            assert_int_equal(p.op[op->dep[d].op].micro_batch, op->micro_batch);
            if (op->dep[d].back) {
                assert_int_equal(op->kind, AQ_OP_EMBED);
                assert_int_equal(p.op[op->dep[d].op].kind, AQ_OP_TURN);
                back++;
            } else {
                assert_true(op->dep[d].op < i);
            }
        }
        for (uint32_t u = 0; u < op->use_count; u++)
            assert_true(op->use[u].slot < p.slot_count);
    }
    assert_int_equal(turns, 3);
    assert_int_equal(back, 3);
    aq_program_close(&p);
    free(m.step);
}

/* Each product's flops appear in exactly one op, whatever the kind of pass. */
static void annotation_adds_up_to_the_model(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_block_shape shape = {.micro_batch = 4,
                                   .micro_batches = 1,
                                   .rows_max = 100,
                                   .tile_rows = 100,
                                   .head_tile_rows = 8,
                                   .page_slots = 32,
                                   .page_bytes = 4096,
                                   .page_count = 12,
                                   .compute = AQ_F32,
                                   .kv_format = AQ_F16};
    struct aq_program p;
    assert_int_equal(aq_program_build(&p, &m, &shape, NULL), 0);
    struct aq_op_cost *cost = calloc(p.op_count, sizeof(*cost));
    struct aq_pass_shape pass = {.decode_rows = 3,
                                 .prefill_rows = 20,
                                 .logit_rows = 5,
                                 .decode_keys = 70,
                                 .prefill_key_pairs = 210};
    aq_program_annotate(cost, &p, &m, &shape, &pass);
    uint64_t products = 0, attention = 0, want = 0;
    for (uint32_t i = 0; i < p.op_count; i++) {
        bool attends = p.op[i].kind == AQ_OP_ATTN_PREFILL || p.op[i].kind == AQ_OP_ATTN_DEVICE;
        *(attends ? &attention : &products) += cost[i].flops;
    }
    for (uint32_t j = 0; j < m.step_count; j++)
        want += m.step[j].flops_per_row * (m.step[j].kind == AQ_STEP_HEAD ? 5 : 23);
    assert_int_equal(products, want);
    assert_int_equal(attention, 3 * 4 * (70 + 210) * 64);
    free(cost);
    aq_program_close(&p);
    free(m.step);
}

/* ---- block ---- */

static struct aq_block_inputs block_inputs(const struct aq_model_steps *m)
{
    return (struct aq_block_inputs){.steps = m,
                                    .compute = AQ_F32,
                                    .weight_format = AQ_F16,
                                    .kv_format = AQ_F16,
                                    .table_format = AQ_F16,
                                    .threads = 2,
                                    .sequences = 1000,
                                    .prompt_max = 100,
                                    .total_max = 200,
                                    .scratch_bytes_per_thread = 1000,
                                    .queue_bytes = 1000,
                                    .process_bytes = 1000,
                                    .host_budget = AQ_GIB};
}

static void the_block_takes_what_fits(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_block_inputs in = block_inputs(&m);
    struct aq_block_shape s;
    struct aq_ledger l;
    assert_int_equal(aq_block_choose(&s, &l, &in, NULL), 0);
    assert_int_equal(s.micro_batch, AQ_BLOCK_SEATS_CAP);
    uint64_t most = aq_ledger_total(&l, AQ_HOST);
    in.host_budget = most - 1;
    assert_int_equal(aq_block_choose(&s, &l, &in, NULL), 0);
    assert_true(s.micro_batch < AQ_BLOCK_SEATS_CAP && s.micro_batch > AQ_BLOCK_SEATS_CAP / 2);
    assert_true(aq_ledger_total(&l, AQ_HOST) <= in.host_budget);
    assert_true(s.page_count >= aq_block_pages(&s, m.layers, in.total_max));
    free(m.step);
}

static void what_does_not_fit_is_refused_with_the_largest_block(void **state)
{
    struct aq_model_steps m = little_model(3);
    struct aq_block_inputs in = block_inputs(&m);
    struct aq_block_shape s;
    struct aq_ledger l;
    struct aq_err err;
    in.micro_batch = 200;
    assert_int_equal(aq_block_choose(&s, &l, &in, &err), 0);
    in.host_budget = aq_ledger_total(&l, AQ_HOST) - 1;
    assert_int_equal(aq_block_choose(&s, &l, &in, &err), -ENOMEM);
    const char *at = strstr(err.text, "--micro-batch ");
    assert_non_null(at);
    in.micro_batch = (uint32_t)atoi(at + strlen("--micro-batch "));
    assert_int_equal(aq_block_choose(&s, &l, &in, &err), 0); /* what it said does fit ... */
    in.micro_batch++;
    assert_int_equal(aq_block_choose(&s, &l, &in, &err), -ENOMEM); /* ... and one more does not */
    in.host_budget = 1 * AQ_MIB / 2;
    in.micro_batch = 0;
    assert_int_equal(aq_block_choose(&s, &l, &in, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "no block fits"));
    free(m.step);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_peak_equals_playing_the_passes),
    cmocka_unit_test(admission_never_exceeds_the_pool),
    cmocka_unit_test(a_long_prompt_is_admitted_alone),
    cmocka_unit_test(tied_matrices_are_counted_once),
    cmocka_unit_test(a_program_is_ordered_by_its_dependencies),
    cmocka_unit_test(annotation_adds_up_to_the_model),
    cmocka_unit_test(the_block_takes_what_fits),
    cmocka_unit_test(what_does_not_fit_is_refused_with_the_largest_block),
};

AQ_TEST_MAIN(tests)
