/* SPDX-License-Identifier: Apache-2.0
 * The library record by record, on the stand-in engine. */
#include "engine/aquifer.h"

#include "base/json.h"
#include "tests/fake_engine.h"
#include "tests/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct aquifer *session;

static int open_session(const char *more, struct aquifer_error *err)
{
    char options[4200];
    fake_engine_reset();
    snprintf(options, sizeof(options), "{\"model\": \"%s\", \"max_tokens\": 6%s}",
             test_data_path("tiny-opt"), more);
    session = NULL;
    return aquifer_open(&session, options, NULL, err);
}

static int setup(void **state)
{
    return open_session("", NULL);
}

static int teardown(void **state)
{
    aquifer_close(session);
    return 0;
}

/* The next line, parsed; NULL when nothing is left. */
static json_t *next(void)
{
    char *line;
    json_t *v = NULL;
    assert_int_equal(aquifer_next(session, &line, NULL), 0);
    if (line)
        assert_int_equal(aq_json_parse(&v, line, strlen(line), true, NULL), 0);
    aquifer_free(line);
    return v;
}

static void records_come_back_with_their_ids(void **state)
{
    bool seen[20] = {false};
    for (int i = 0; i < 20; i++) {
        char record[64];
        snprintf(record, sizeof(record), "{\"id\": %d, \"prompt\": \"She said\"}", i);
        assert_int_equal(aquifer_submit(session, record, NULL), 0);
    }
    for (int i = 0; i < 20; i++) {
        json_t *o = next();
        json_int_t id = json_integer_value(json_object_get(o, "id"));
        assert_int_equal(aquifer_number(session), id);
        assert_true(id >= 0 && id < 20 && !seen[id]);
        seen[id] = true;
        assert_non_null(json_object_get(o, "text"));
        json_decref(o);
    }
    assert_null(next());
}

static void a_bad_record_is_a_result_not_an_error(void **state)
{
    assert_int_equal(aquifer_submit(session, "{\"prompt\"", NULL), 0);
    json_t *o = next();
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "error"), "code")),
                        "invalid_json");
    json_decref(o);
    assert_null(next());
}

static void records_may_follow_at_any_time(void **state)
{
    for (int i = 0; i < 3; i++) {
        assert_int_equal(aquifer_submit(session, "{\"prompt\": \"a\"}", NULL), 0);
        json_t *o = next();
        assert_int_equal(json_integer_value(json_object_get(o, "index")), i);
        json_decref(o);
        assert_null(next());
    }
}

static void the_report_counts_records(void **state)
{
    char *text;
    json_t *o;
    assert_int_equal(aquifer_submit(session, "{\"prompt\": [5, 6]}", NULL), 0);
    assert_int_equal(aquifer_submit(session, "{\"prompt\": 5}", NULL), 0);
    for (int i = 0; i < 2; i++)
        json_decref(next());
    assert_int_equal(aquifer_report(session, &text, NULL), 0);
    assert_int_equal(aq_json_parse(&o, text, strlen(text), true, NULL), 0);
    assert_int_equal(json_integer_value(json_object_get(o, "requests")), 2);
    assert_int_equal(json_integer_value(json_object_get(o, "errors")), 1);
    assert_int_equal(json_integer_value(json_object_get(o, "prompt_tokens")), 2);
    json_decref(o);
    aquifer_free(text);
}

static void count_scores_lines(void *user, enum aquifer_level level, const char *text)
{
    *(int *)user += level == AQUIFER_WARNING && strstr(text, "log-probabilities of prompts");
}

static void scores_of_prompts_are_said_once_not_to_be_the_policys(void **state)
{
    int told = 0;
    const struct aquifer_hooks hooks = {.user = &told, .line = count_scores_lines};
    char options[4200], *text;
    aquifer_close(session);
    snprintf(options, sizeof(options),
             "{\"model\": \"%s\", \"kv_policy\": \"h2o\", \"kv_budget\": \"20%%\"}",
             test_data_path("tiny-opt"));
    assert_int_equal(aquifer_open(&session, options, &hooks, NULL), 0);
    assert_int_equal(aquifer_submit(session, "{\"prompt\": [5], \"logprobs\": 1}", NULL), 0);
    assert_int_equal(told, 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(aquifer_submit(session,
                                        "{\"prompt\": [5, 6], \"echo\": true, "
                                        "\"logprobs\": 1}",
                                        NULL),
                         0);
    assert_int_equal(told, 1);
    assert_int_equal(aquifer_report(session, &text, NULL), 0);
    assert_non_null(strstr(text, "log-probabilities of prompts (echo with logprobs, 2 records)"));
    aquifer_free(text);
}

static void closing_with_records_in_flight_loses_only_those(void **state)
{
    for (int i = 0; i < 10; i++)
        assert_int_equal(
            aquifer_submit(session, "{\"prompt\": \"a\", \"n\": 3, \"temperature\": 1}", NULL), 0);
    json_t *o = next();
    assert_non_null(o);
    json_decref(o);
    /* teardown closes; leaks would be seen under the sanitizer */
}

static void records_beyond_the_planned_bounds_are_refused(void **state)
{
    aquifer_close(session);
    assert_int_equal(open_session(", \"max_prompt_tokens\": 4, \"max_total_tokens\": 10", NULL), 0);
    assert_int_equal(aquifer_submit(session, "{\"prompt\": [5, 6, 7, 8]}", NULL), 0);
    assert_int_equal(aquifer_submit(session, "{\"prompt\": [5, 6, 7, 8, 9]}", NULL), 0);
    assert_int_equal(aquifer_submit(session, "{\"prompt\": [5, 6, 7, 8], \"max_tokens\": 7}", NULL),
                     0);
    int errors = 0;
    for (int i = 0; i < 3; i++) {
        json_t *o = next();
        const char *code = json_string_value(json_object_get(json_object_get(o, "error"), "code"));
        errors += code && strcmp(code, "context_length_exceeded") == 0;
        json_decref(o);
    }
    assert_int_equal(errors, 2);
}

static void what_is_scored_may_be_one_token_more_than_the_bounds(void **state)
{
    static const char *const lines[] = {
        "{\"prompt\": [5, 6, 7], \"continuation\": [8, 9]}",
        "{\"prompt\": [5, 6, 7], \"continuation\": [8, 9, 10]}",
    };
    aquifer_close(session);
    assert_int_equal(open_session(", \"max_total_tokens\": 4", NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(aquifer_submit(session, lines[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        json_t *o = next();
        bool first = json_integer_value(json_object_get(o, "index")) == 0;
        assert_int_equal(json_is_real(json_object_get(o, "loglikelihood")), first);
        assert_int_equal(json_is_object(json_object_get(o, "error")), !first);
        json_decref(o);
    }
}

static void bad_options_name_what_is_wrong(void **state)
{
    struct aquifer *a = NULL;
    struct aquifer_error err;
    assert_int_equal(aquifer_open(&a, "{\"model\"", NULL, &err), -EINVAL);
    assert_int_equal(err.exit_status, 1);
    assert_int_equal(aquifer_open(&a, "[]", NULL, &err), -EINVAL);
    assert_int_equal(aquifer_open(&a, "{}", NULL, &err), -EINVAL);
    assert_non_null(strstr(err.text, "model"));
    assert_int_equal(aquifer_open(&a, "{\"model\": \"x\", \"tempreature\": 1}", NULL, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "temperature"));
    assert_int_equal(aquifer_open(&a, "{\"model\": \"x\", \"output\": \"y.jsonl\"}", NULL, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "\"output\": a session has no files"));
    assert_int_equal(aquifer_open(&a, "{\"model\": \"x\", \"retry-errors\": true}", NULL, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "\"retry-errors\""));
    aquifer_close(session);
    assert_int_equal(open_session(", \"max_total_tokens\": 100000", &err), -EINVAL);
    assert_non_null(strstr(err.text, "max_total_tokens"));
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, setup, teardown)

static const struct CMUnitTest tests[] = {
    T(records_come_back_with_their_ids),
    T(a_bad_record_is_a_result_not_an_error),
    T(records_may_follow_at_any_time),
    T(the_report_counts_records),
    T(scores_of_prompts_are_said_once_not_to_be_the_policys),
    T(closing_with_records_in_flight_loses_only_those),
    T(records_beyond_the_planned_bounds_are_refused),
    T(what_is_scored_may_be_one_token_more_than_the_bounds),
    T(bad_options_name_what_is_wrong),
};

AQ_TEST_MAIN(tests)
