/* SPDX-License-Identifier: Apache-2.0
 * The checker against programs that are right, programs broken on purpose, and an oracle that plays
 * them in legal orders. */
#include "base/prng.h"
#include "policy/checker.h"
#include "tests/test.h"
#include "tests/unit/policy/hand.h"
#include "tests/unit/policy/interleave.h"
#include "tests/unit/policy/mutate.h"

#include <stdio.h>
#include <string.h>

static const struct hand_model models[] = {
    {.layers = 1, .micro_batches = 1, .ring = 1},
    {.layers = 2, .micro_batches = 2, .ring = 1},
    {.layers = 3, .micro_batches = 2, .ring = 2},
    {.layers = 4, .micro_batches = 1, .ring = 2, .staged = true},
    {.layers = 3, .micro_batches = 2, .ring = 3, .staged = true},
};

static void expect_found(const struct aq_program *p, const struct aq_check_opts *opts,
                         const char *words)
{
    struct aq_err err = {0};
    assert_int_equal(aq_program_check(p, opts, &err), -EPROTO);
    if (!strstr(err.text, words))
        fail_msg("expected \"%s\" in \"%s\"", words, err.text);
}

static void programs_that_are_right_pass(void **state)
{
    for (uint32_t m = 0; m < AQ_ARRAY_LEN(models); m++) {
        struct aq_program p;
        struct aq_err err = {0};
        hand_build(&p, &models[m]);
        if (aq_program_check(&p, NULL, &err) < 0)
            fail_msg("%s", err.text);
        assert_true(interleave_all(&p, 1, 20));
        aq_program_close(&p);
    }
}

/* ---- sentences ---- */

static uint32_t find(const struct aq_program *p, enum aq_op_kind kind, uint32_t step, uint32_t k)
{
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (p->op[i].kind == kind && p->op[i].step == step && p->op[i].micro_batch == k)
            return i;
    }
    fail_msg("no such op");
    return 0;
}

static void order_faults_name_both_ops_and_the_slot(void **state)
{
    struct aq_program p;
    hand_build(&p, &models[3]);
    /* The read of chunk 2 takes the staging slot of chunk 0: without deps it starts at once. */
    p.op[find(&p, AQ_OP_READ, 3, 0)].dep_count = 0;
    expect_found(&p, NULL, "READ weights chunk 0 of step 1");
    expect_found(&p, NULL, "READ weights chunk 2 of step 3");
    expect_found(&p, NULL, "staging slot 0");
    aq_program_close(&p);
}

static void tag_faults_name_what_was_expected_and_what_was_found(void **state)
{
    struct aq_program p;
    hand_build(&p, &models[2]);
    struct aq_op *op = &p.op[find(&p, AQ_OP_ATTN_HOST, 2, 1)];
    for (uint32_t u = 0; u < op->use_count; u++) {
        struct aq_use *use = &p.use[op->use_first + u];
        if (use->need.object == AQ_OBJECT_KV)
            use->need.pass = 0;
    }
    expect_found(&p, NULL, "ATTN_HOST of step 2, micro-batch 1, part 0");
    expect_found(&p, NULL,
                 "in the first pass: expected kv of step 2, micro-batch 1, part 0, this "
                 "pass in kv slot 3, found kv of step 2, micro-batch 1, part 0, the pass "
                 "before");
    aq_program_close(&p);
}

/* The tail of a pass loads for the next one: right from the second pass on, empty in the first. */
static void weights_are_not_there_before_they_are_loaded(void **state)
{
    struct aq_program p;
    hand_build(&p, &(struct hand_model){.layers = 2, .micro_batches = 1, .ring = 2});
    mutate_move(&p, find(&p, AQ_OP_H2D, 1, 0), p.op_count - 1);
    hand_derive_deps(&p);
    expect_found(&p, NULL,
                 "PRE of step 1, micro-batch 0 (op 1), in the first pass: expected "
                 "weights 0 in ring slot 0, found nothing");
    aq_program_close(&p);
}

static void a_pass_loads_every_chunk_once(void **state)
{
    struct aq_program p;
    hand_build(&p, &models[2]);
    p.op[find(&p, AQ_OP_H2D, 2, 0)].chunk = 0;
    expect_found(&p, NULL, "the chunk it leaves is not the one it is named after");
    aq_program_close(&p);
    hand_build(&p, &models[2]);
    uint32_t load = find(&p, AQ_OP_H2D, 3, 0);
    p.op[load].kind = AQ_OP_UNPACK;
    p.op[load].lane = AQ_LANE_COMPUTE;
    expect_found(&p, NULL, "of step 3 (op");
    aq_program_close(&p);
}

static void bytes_are_compared(void **state)
{
    struct aq_program p;
    struct aq_err err = {0};
    hand_build(&p, &models[2]);
    uint64_t bytes[AQ_TIER_COUNT] = {
        [AQ_DEVICE] = 2 * 1000 + 10 * 10 + 50, [AQ_HOST] = 6 * 100 + 4 * 10};
    struct aq_check_opts opts = {.slot_bytes = bytes, .weight_bytes = 3000};
    assert_int_equal(aq_program_check(&p, &opts, &err), 0);
    opts.weight_bytes = 2999;
    expect_found(&p, &opts, "expected 2999 bytes of weights a pass, found loads of 3000");
    opts.weight_bytes = 0;
    bytes[AQ_HOST]++;
    expect_found(&p, &opts, "slots on the host tier: expected 641 bytes, found 640");
    aq_program_close(&p);
}

static void tables_are_not_believed(void **state)
{
    struct aq_program p;
    hand_build(&p, &models[2]);
    struct aq_op *op = &p.op[p.op_count - 1];
    op->use_first = p.use_count;
    expect_found(&p, NULL, "outside their tables");
    op->use_first = 0;
    op->dep_first = UINT32_MAX;
    expect_found(&p, NULL, "outside their tables");
    op->kind = 200;
    expect_found(&p, NULL, "has kind 200");
    aq_program_close(&p);
    hand_build(&p, &models[2]);
    p.use[0].slot = p.slot_count;
    expect_found(&p, NULL, "a slot that is not there");
    p.first[AQ_SLOT_KV] = p.slot_count + 1;
    expect_found(&p, NULL, "slots lie from");
    aq_program_close(&p);
}

/* ---- mutants ---- */

struct verdicts {
    uint32_t form, flow, harmless;
};

/* The checker's verdict must be the oracle's: what it lets pass plays right in every order tried,
 * what it says of order and tags shows in some order. */
static void judge(const struct aq_program *p, const struct aq_check_opts *opts, uint64_t seed,
                  enum mutation m, struct verdicts *v)
{
    struct aq_err err = {0};
    int rc = aq_program_check(p, opts, &err);
    if (aq_program_check_form(p, opts, &err) < 0) {
        assert_int_equal(rc, -EPROTO);
        assert_true(strlen(err.text) > 20);
        v->form++;
        return;
    }
    bool right = interleave_all(p, seed, 30);
    if (right != (rc == 0))
        fail_msg("%s, seed %llu: the checker says %s, orders that were tried %s", mutation_name(m),
                 (unsigned long long)seed, rc == 0 ? "right" : err.text,
                 right ? "play right" : "go wrong");
    *(right ? &v->harmless : &v->flow) += 1;
}

static void mutants_are_rejected_or_change_nothing(void **state)
{
    for (enum mutation m = 0; m < MUTATION_COUNT; m++) {
        struct verdicts v = {0};
        for (uint64_t seed = 0; seed < 150; seed++) {
            struct aq_program p, before;
            hand_build(&p, &models[seed % AQ_ARRAY_LEN(models)]);
            hand_copy(&before, &p);
            if (mutate(&p, m, seed) && !hand_equal(&p, &before))
                judge(&p, NULL, seed, m, &v);
            aq_program_close(&p);
            aq_program_close(&before);
        }
        print_message("%-16s form %3u, flow %3u, harmless %3u\n", mutation_name(m), v.form, v.flow,
                      v.harmless);
        assert_true(v.form + v.flow > 0);
    }
}

/* Two changes at once find programs a single one cannot reach. */
static void pairs_of_mutations_too(void **state)
{
    struct verdicts v = {0};
    for (uint64_t seed = 1000; seed < 2200; seed++) {
        struct aq_program p;
        hand_build(&p, &models[seed % AQ_ARRAY_LEN(models)]);
        enum mutation a = (enum mutation)(seed % MUTATION_COUNT);
        enum mutation b = (enum mutation)(seed / MUTATION_COUNT % MUTATION_COUNT);
        bool changed = mutate(&p, a, seed);
        changed |= mutate(&p, b, seed + 1);
        if (changed)
            judge(&p, NULL, seed, b, &v);
        aq_program_close(&p);
    }
    assert_true(v.form > 100 && v.flow > 50 && v.harmless > 20);
}

static void drop(struct aq_program *p, struct aq_op *op, uint32_t d)
{
    p->dep[op->dep_first + d] = p->dep[op->dep_first + op->dep_count - 1];
    op->dep_count--;
}

/* Deps are taken away as long as the checker lets it; of those that remain none is too much. */
static void a_dep_that_others_do_not_imply_is_missed(void **state)
{
    for (uint32_t m = 0; m < AQ_ARRAY_LEN(models); m++) {
        struct aq_program p;
        uint32_t implied = 0, missed = 0;
        hand_build(&p, &models[m]);
        for (uint32_t i = 0; i < p.op_count; i++) {
            for (uint32_t d = p.op[i].dep_count; d-- > 0;) {
                struct aq_program less;
                hand_copy(&less, &p);
                drop(&less, &less.op[i], d);
                bool right = aq_program_check(&less, NULL, NULL) == 0;
                if (right)
                    drop(&p, &p.op[i], d);
                *(right ? &implied : &missed) += 1;
                aq_program_close(&less);
            }
        }
        assert_true(interleave_all(&p, m, 30));
        for (uint32_t i = 0; i < p.op_count; i++) {
            for (uint32_t d = 0; d < p.op[i].dep_count; d++) {
                struct aq_program less;
                hand_copy(&less, &p);
                drop(&less, &less.op[i], d);
                assert_int_equal(aq_program_check(&less, NULL, NULL), -EPROTO);
                assert_false(interleave_all(&less, m, 30));
                aq_program_close(&less);
            }
        }
        assert_true(implied > 0 && missed > p.op_count / 2);
        aq_program_close(&p);
    }
}

/* ---- programs that mean nothing ---- */

/* A few ops on a few slots, deps at random: half of the programs are wrong.  Only order and tags
 * are judged.  Tags are those of the serial play, so that order decides, but for a few. */
static void draw_program(struct aq_program *ret, uint64_t seed)
{
    struct aq_program p = {.parts = 1, .micro_batches = 1};
    uint64_t n = 0;
    uint32_t slots = 1 + (uint32_t)aq_prng_below(seed, n++, 1, 4);
    uint32_t ops = 2 + (uint32_t)aq_prng_below(seed, n++, 1, 7);
    hand_slots(&p, AQ_SLOT_KV, slots, AQ_HOST, 1);
    uint32_t density = 1 + (uint32_t)aq_prng_below(seed, n++, 1, 4);
    for (uint32_t i = 0; i < ops; i++) {
        uint32_t lane = (uint32_t)aq_prng_below(seed, n++, 1, AQ_LANE_COUNT);
        hand_op(&p, AQ_OP_PRE, (enum aq_lane)lane, i, 0);
        for (uint32_t s = 0; s < slots; s++) {
            if (aq_prng_below(seed, n++, 1, 2))
                continue;
            uint32_t mode = (uint32_t)aq_prng_below(seed, n++, 1, 3);
            hand_use(&p, AQ_SLOT_KV, s, (enum aq_use_mode)mode, hand_tag(AQ_OBJECT_KV, 0, 0, 0),
                     hand_tag(AQ_OBJECT_KV, i, 0, 0));
        }
        for (uint32_t j = 0; j < ops; j++) {
            if (aq_prng_below(seed, n++, 1, density) == 0)
                hand_dep(&p, j, j >= i);
        }
    }
    *ret = p;
}

static void set_needs(struct aq_program *p, uint64_t seed)
{
    struct aq_tag held[4] = {0};
    bool unread[4] = {0}, careless = aq_prng_below(seed, 0, 3, 10) == 0;
    for (int pass = -1; pass < 1; pass++) {
        for (uint32_t i = 0; i < p->op_count; i++) {
            for (uint32_t u = 0; u < p->op[i].use_count; u++) {
                struct aq_use *use = &p->use[p->op[i].use_first + u];
                use->need = held[use->slot];
                use->need.pass = (int8_t)(use->need.pass - pass);
                if (use->mode == AQ_USE_WRITE && unread[use->slot] && !careless)
                    use->mode = AQ_USE_UPDATE;
                unread[use->slot] = use->mode != AQ_USE_READ;
                if (use->mode == AQ_USE_READ)
                    continue;
                held[use->slot] = use->leave;
                held[use->slot].pass = (int8_t)(use->leave.pass + pass);
            }
        }
    }
    if (aq_prng_below(seed, 0, 2, 10) == 0 && p->use_count)
        p->use[aq_prng_below(seed, 1, 2, p->use_count)].need.pass--;
}

static void random_programs_are_judged_as_the_oracle_judges_them(void **state)
{
    uint32_t right = 0, wrong = 0;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        struct aq_program p;
        struct aq_err err = {0};
        draw_program(&p, seed);
        set_needs(&p, seed);
        bool passed = aq_program_check_flow(&p, NULL, &err) == 0,
             plays = interleave_all(&p, seed, 5);
        if (passed != plays)
            fail_msg("seed %llu: the checker says %s, the oracle says %s", (unsigned long long)seed,
                     passed ? "right" : err.text, plays ? "right" : "wrong");
        *(plays ? &right : &wrong) += 1;
        aq_program_close(&p);
    }
    print_message("%u right, %u wrong\n", right, wrong);
    assert_true(right > 1000 && wrong > 1000);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(programs_that_are_right_pass),
    cmocka_unit_test(order_faults_name_both_ops_and_the_slot),
    cmocka_unit_test(tag_faults_name_what_was_expected_and_what_was_found),
    cmocka_unit_test(weights_are_not_there_before_they_are_loaded),
    cmocka_unit_test(a_pass_loads_every_chunk_once),
    cmocka_unit_test(bytes_are_compared),
    cmocka_unit_test(tables_are_not_believed),
    cmocka_unit_test(mutants_are_rejected_or_change_nothing),
    cmocka_unit_test(pairs_of_mutations_too),
    cmocka_unit_test(a_dep_that_others_do_not_imply_is_missed),
    cmocka_unit_test(random_programs_are_judged_as_the_oracle_judges_them),
};

AQ_TEST_MAIN(tests)
