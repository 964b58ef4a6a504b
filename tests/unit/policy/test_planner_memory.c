/* SPDX-License-Identifier: Apache-2.0
 * A planner for whom memory runs out says so, and not that nothing fits. */
#include "tests/test.h"
#include "tests/unit/policy/plans.h"
#include "tests/unit/policy/same_plans.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURES = TEST_SLOW ? 12 : 48 };

static uint64_t taken, refused_at; /* allocations so far; the one that fails, 0: none */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
    return ++taken == refused_at ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return ++taken == refused_at ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return ++taken == refused_at ? NULL : __real_realloc(p, n);
}

/* The inputs' own answer, and the same one or -ENOMEM with every allocation of some that fails. */
static void check(const struct aq_block_inputs *in, int want)
{
    struct aq_block whole = {0};
    struct aq_err err = {0};
    uint32_t failed = 0;
    taken = refused_at = 0;
    assert_int_equal(aq_block_choose(&whole, in, &err), want);
    uint64_t all = taken;
    for (uint64_t i = 0; i < FAILURES; i++) {
        struct aq_block b = {0};
        taken = 0;
        refused_at = 1 + i * (all - 1) / (FAILURES - 1);
        int rc = aq_block_choose(&b, in, &err);
        if (rc != want && (rc != -ENOMEM || !strstr(err.text, "memory")))
            fail_msg("allocation %llu of %llu failed: %d, %s", (unsigned long long)refused_at,
                     (unsigned long long)all, rc, err.text);
        if (rc == 0)
            assert_true(plans_are_same(&b.plan, &whole.plan));
        failed += rc == -ENOMEM;
        aq_block_close(&b);
    }
    refused_at = 0;
    assert_true(failed >
                FAILURES / 2); /* some are done without: candidates of the linear program */
    aq_block_close(&whole);
}

static void what_fits_is_not_said_not_to_fit(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 512);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 2, 2);
    for (int separate = 0; separate < 2; separate++) {
        in.separate = separate;
        in.budget[AQ_HOST] = 14 * AQ_MIB;
        in.budget[AQ_DEVICE] = separate ? 5 * AQ_MIB : 0;
        in.hw = NULL;
        check(&in, 0);
        in.hw = &hw;
        check(&in, 0);
    }
    aq_steps_close(&m);
}

static void what_does_not_fit_is_still_refused_for_that(void **state)
{
    struct aq_model_steps m = plans_model(4, 256, 4, 512);
    struct aq_block_inputs in = plans_inputs(&m);
    struct aq_hardware hw;
    aq_hardware_default(&hw, 2, 2, 2);
    in.hw = &hw;
    in.separate = true;
    in.budget[AQ_HOST] = AQ_MIB;
    in.budget[AQ_DEVICE] = AQ_MIB;
    check(&in, -ENOBUFS);
    in.micro_batch = 64;
    check(&in, -ENOBUFS);
    aq_steps_close(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_fits_is_not_said_not_to_fit),
    cmocka_unit_test(what_does_not_fit_is_still_refused_for_that),
};

AQ_TEST_MAIN(tests)
