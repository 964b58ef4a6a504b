/* SPDX-License-Identifier: Apache-2.0
 * An interrupted job whose pass takes minutes: its own program, as the engine's thread is left
 * behind in it. */
#include "tests/unit/engine/job/job_rig.h"

#include "base/clock.h"
#include "tests/test.h"

#include <errno.h>
#include <string.h>

static struct job_rig *slow_rig;

static void slow_from_pass_3(uint64_t pass)
{
    if (pass == 3) {
        fake_engine.pass_s = 120;
        slow_rig->interrupt = true;
    }
}

static void a_pass_of_minutes_does_not_hold_up_an_interruption(void **state)
{
    struct job_rig *rig = slow_rig = *state;
    job_rig_records(rig, 20);
    fake_engine.on_pass = slow_from_pass_3;
    fake_engine.eos_every = 1; /* every sequence ends in its first pass */
    double begin_s = aq_clock_s();
    assert_int_equal(job_rig_run(rig, ""), -EINTR);
    assert_true(aq_clock_s() - begin_s < 20);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 8); /* of two passes with four seats */
    json_decref(results);
    assert_false(job_rig_exists(rig, "out.jsonl.lock"));
    json_t *status;
    assert_int_equal(
        aq_json_read_file(&status, job_rig_path(rig, "out.jsonl.status.json"), 1 << 20, NULL), 0);
    assert_string_equal(json_string_value(json_object_get(status, "state")), "interrupted");
    json_decref(status);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(a_pass_of_minutes_does_not_hold_up_an_interruption,
                                    job_rig_setup, job_rig_teardown),
};

AQ_TEST_MAIN(tests)
