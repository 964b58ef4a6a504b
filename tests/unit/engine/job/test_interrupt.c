/* SPDX-License-Identifier: Apache-2.0
 * An interrupted job whose pass takes minutes: its own program, as the engine's thread is left
 * behind in it. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/clock.h"
#include "tests/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct job_rig *slow_rig;

static void slow_from_pass_6(uint64_t pass)
{
    if (pass == 6) {
        fake_engine.pass_s = 120;
        slow_rig->interrupt = true;
    }
}

static void a_pass_of_minutes_does_not_hold_up_an_interruption(void **state)
{
    struct job_rig *rig = slow_rig = *state;
    job_rig_records(rig, 20);
    fake_engine.on_pass = slow_from_pass_6;
    fake_engine.eos_every = 0;
    double begin_s = aq_clock_s();
    assert_int_equal(job_rig_run(rig, ""), -EINTR);
    assert_true(aq_clock_s() - begin_s < 20);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 1); /* in five passes: r0, of one token */
    json_decref(results);
    assert_false(job_rig_exists(rig, "out.jsonl.lock"));
    json_t *status;
    assert_int_equal(
        aq_json_read_file(&status, job_rig_path(rig, "out.jsonl.status.json"), 1 << 20, NULL), 0);
    assert_string_equal(json_string_value(json_object_get(status, "state")), "interrupted");
    json_decref(status);
    /* The engine's thread still has the four sequences, and what they had before its pass is
     * kept. */
    assert_true(job_rig_said(rig, "19 tokens of 4 records in flight are kept in"));
    fake_engine_passes(0, NULL);
    rig->interrupt = false;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.given_tokens, 19);
    char *want, other[128];
    snprintf(other, sizeof(other), "\"output\": \"%s\"", job_rig_path(rig, "whole.jsonl"));
    assert_int_equal(job_rig_run(rig, other), 0);
    want = job_rig_sorted(rig, "whole.jsonl");
    job_rig_assert_results(rig, want);
    free(want);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(a_pass_of_minutes_does_not_hold_up_an_interruption,
                                    job_rig_setup, job_rig_teardown),
};

AQ_TEST_MAIN(tests)
