/* SPDX-License-Identifier: Apache-2.0
 * The job from prompts to results, on an engine that only hashes: what is refused before anything
 * is written, what is written where, and what the user is told. */
#include "engine/job/job.h"
#include "tests/unit/engine/job/job_rig.h"

#include "base/clock.h"
#include "tests/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *get_string(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static json_t *read_json(const struct job_rig *rig, const char *name)
{
    json_t *v;
    assert_int_equal(aq_json_read_file(&v, job_rig_path(rig, name), 1 << 20, NULL), 0);
    return v;
}

static void assert_said(const struct job_rig *rig, const char *text)
{
    if (!rig->lines.data || !strstr(rig->lines.data, text))
        fail_msg("expected a line with '%s', found:\n%s", text, rig->lines.data);
}

static void assert_refused(struct job_rig *rig, const char *options, const char *text)
{
    assert_int_equal(job_rig_run(rig, options), -EINVAL);
    if (!strstr(rig->err.text, text))
        fail_msg("expected '%s', found '%s'", text, rig->err.text);
    assert_false(job_rig_exists(rig, "out.jsonl"));
    assert_false(job_rig_exists(rig, "out.jsonl.manifest.json"));
    assert_false(job_rig_exists(rig, "out.jsonl.lock"));
    assert_int_equal(fake_engine.loads, 0);
}

/* ---- before anything is written ---- */

static void no_valid_record_writes_nothing(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl", "{broken\n{\"prompt\": \"\"}\n");
    assert_refused(rig, "", "none of the 2 records is valid");
    job_rig_write(rig, "in.jsonl", "\n\n");
    assert_refused(rig, "", "no records");
}

static void more_than_half_invalid_needs_permission(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl", "{broken\n{\"prompt\": \"a\"}\n{\"prompt\": \"\"}\n");
    assert_refused(rig, "", "2 of 3 records are invalid");
    assert_int_equal(job_rig_run(rig, "\"allow_errors\": true"), 3);
}

static void strict_stops_at_the_first_invalid_record(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl",
                  "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\", \"n\": 0}\n");
    assert_refused(rig, "\"strict\": true", "Line 3: invalid_parameter");
}

static void duplicate_ids_name_both_lines(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl",
                  "{\"id\": 1, \"prompt\": \"a\"}\n\n{\"id\": \"1\", \"prompt\": \"b\"}\n");
    assert_refused(rig, "", "lines 1 and 3 have the same id '1'");
    job_rig_write(rig, "in.jsonl", "{\"prompt\": \"a\"}\n{\"id\": 0, \"prompt\": \"b\"}\n");
    assert_refused(rig, "", "lines 1 and 2 have the same id '0'");
}

static void a_missing_input_is_named(void **state)
{
    assert_refused(*state, "\"input\": \"/no/such/prompts.jsonl\"", "/no/such/prompts.jsonl");
}

static void a_dry_run_prints_preflight_plan_and_ledger_and_writes_nothing(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 10);
    assert_int_equal(job_rig_run(rig, "\"dry_run\": true"), 0);
    assert_non_null(strstr(rig->output.data, "records: 10 (10 valid, 0 invalid), plain 10"));
    assert_non_null(strstr(rig->output.data, "p50 3, p95 3, longest 3"));
    assert_non_null(strstr(rig->output.data, "plan: micro_batch 4"));
    assert_non_null(strstr(rig->output.data, "ledger: host"));
    assert_int_equal(fake_engine.loads, 0);
    assert_false(job_rig_exists(rig, "out.jsonl"));
    assert_false(job_rig_exists(rig, "out.jsonl.manifest.json"));
    assert_int_equal(job_rig_run(rig, "\"dry_run\": true, \"json\": true"), 0);
    json_t *doc;
    assert_int_equal(aq_json_parse(&doc, rig->output.data, rig->output.count, true, NULL), 0);
    assert_int_equal(json_integer_value(json_object_get(doc, "schema")), 1);
    json_decref(doc);
}

static void the_preflight_counts_by_form_and_code(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl",
                  "{\"prompt\": \"a\", \"colour\": 1}\n{\"prompt\": \"a\", \"max_tokens\": 5000}\n"
                  "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/completions\", "
                  "\"body\": {\"prompt\": \"b\"}}\n"
                  "{\"request_type\": \"x\", \"prompt\": \"c\"}\n{oops\n");
    assert_int_equal(job_rig_run(rig, ""), 3);
    assert_said(rig, "records: 5 (3 valid, 2 invalid), malformed 1, plain 2, batch 1, harness 1");
    assert_said(rig, "invalid_json: 1");
    assert_said(rig, "context_length_exceeded: 1");
    assert_said(rig, "unknown field 'colour' ignored in 1 records (first in line 1)");
}

/* ---- results ---- */

static void every_record_gets_one_line(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 200);
    assert_int_equal(job_rig_run(rig, ""), 0);
    json_t *results = job_rig_results(rig, "out.jsonl"), *o;
    assert_int_equal(json_array_size(results), 200);
    bool seen[200] = {false};
    size_t i;
    json_array_foreach(results, i, o)
    {
        json_int_t index = json_integer_value(json_object_get(o, "index"));
        assert_true(index >= 0 && index < 200 && !seen[index]);
        seen[index] = true;
        char id[16];
        snprintf(id, sizeof(id), "r%d", (int)index);
        assert_string_equal(get_string(o, "id"), id);
    }
    json_decref(results);
    assert_false(job_rig_exists(rig, "out.jsonl.lock"));
}

static void what_waits_for_a_seat_is_bounded(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 500);
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 500);
    /* Twice as many as there are seats, for when all of them end in one pass. */
    assert_true(fake_engine.waiting_max <= 2 * fake_engine.seats);
    assert_true(fake_engine.waiting_max > fake_engine.seats);
}

static void order_of_the_input_on_request(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 100);
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 0);
    json_t *results = job_rig_results(rig, "out.jsonl"), *o;
    size_t i;
    assert_int_equal(json_array_size(results), 100);
    json_array_foreach(results, i, o)
        assert_int_equal(json_integer_value(json_object_get(o, "index")), (json_int_t)i);
    json_decref(results);
    assert_false(job_rig_exists(rig, "out.jsonl.part"));
}

static void the_order_of_results_does_not_change_them(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 60);
    assert_int_equal(job_rig_run(rig, ""), 0);
    char *want = job_rig_sorted(rig, "out.jsonl");
    fake_engine.seats = 1;
    assert_int_equal(job_rig_run(rig, "\"ordered\": true, \"overwrite\": true"), 0);
    char *got = job_rig_sorted(rig, "out.jsonl");
    assert_string_equal(got, want);
    free(got);
    free(want);
}

static void standard_output_gets_lines_through_the_hook(void **state)
{
    struct job_rig *rig = *state;
    char want[8] = "";
    job_rig_records(rig, 20);
    assert_int_equal(job_rig_run(rig, "\"output\": \"-\", \"ordered\": true"), 0);
    char *rest = rig->output.data;
    for (int i = 0; i < 20; i++) {
        json_t *o;
        char *line = strsep(&rest, "\n");
        snprintf(want, sizeof(want), "r%d", i);
        assert_int_equal(aq_json_parse(&o, line, strlen(line), true, NULL), 0);
        assert_string_equal(get_string(o, "id"), want);
        json_decref(o);
    }
    assert_string_equal(rest, "");
    assert_false(job_rig_exists(rig, "-.manifest.json"));
}

static void prompts_on_the_command_line_print_text(void **state)
{
    struct job_rig *rig = *state;
    fake_engine.script[0] = 300;
    fake_engine.script[1] = 2; /* EOS */
    assert_int_equal(job_rig_run(rig, "\"prompt\": [\"She said\", \"a\"], \"echo\": true"), 0);
    assert_int_equal(strncmp(rig->output.data, "She said", 8), 0);
    assert_non_null(strstr(rig->output.data, "\na"));
    assert_null(strstr(rig->output.data, "{"));
    assert_int_equal(rig->output.data[rig->output.count - 1], '\n');
}

static void only_the_first_records_on_request(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 10);
    assert_int_equal(job_rig_run(rig, "\"limit\": 3"), 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 3);
    json_decref(results);
    assert_int_equal(job_rig_run(rig, ""), 0); /* the rest, later */
    results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 10);
    json_decref(results);
}

static void logits_that_are_not_finite_cost_one_error_record(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 10); /* prompts begin with 10, 11, ... */
    fake_engine.bad_token = 13;
    assert_int_equal(job_rig_run(rig, "\"ordered\": true"), 3);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 10);
    assert_string_equal(get_string(json_object_get(json_array_get(results, 3), "error"), "code"),
                        "internal_error");
    json_decref(results);
}

static void sequences_of_one_record_stay_together(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl",
                  "{\"prompt\": [[5], [6]], \"n\": 3, \"temperature\": 1, \"max_tokens\": 6}\n");
    assert_int_equal(job_rig_run(rig, ""), 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    const json_t *choices = json_object_get(json_array_get(results, 0), "choices");
    assert_int_equal(json_array_size(choices), 6);
    assert_false(json_equal(json_object_get(json_array_get(choices, 0), "tokens"),
                            json_object_get(json_array_get(choices, 1), "tokens")));
    json_decref(results);
}

static void a_stop_string_over_two_tokens_ends_the_sequence(void **state)
{
    struct job_rig *rig = *state;
    /* "She" and " said" as their ids, which the tokenizer tells. */
    assert_int_equal(job_rig_run(rig, "\"prompt\": [\"She said\"], \"output\": \"-\", "
                                      "\"max_tokens\": 1, \"no_bos\": true"),
                     0);
    job_rig_write(rig, "in.jsonl", "{\"prompt\": [9], \"stop\": \"e s\"}\n");
    json_t *o;
    job_rig_write(rig, "ids.jsonl",
                  "{\"prompt\": \"She said\", \"echo\": true, \"logprobs\": 0, \"max_tokens\": 0, "
                  "\"request_type\": \"x\"}\n");
    char options[512];
    snprintf(options, sizeof(options), "\"input\": \"%s\", \"output\": \"-\"",
             job_rig_path(rig, "ids.jsonl"));
    assert_int_equal(job_rig_run(rig, options), 0);
    assert_int_equal(aq_json_parse(&o, rig->output.data, rig->output.count, true, NULL), 0);
    const json_t *ids = json_object_get(
        json_object_get(json_array_get(json_object_get(json_object_get(o, "result"), "choices"), 0),
                        "logprobs"),
        "token_ids");
    assert_int_equal(json_array_size(ids), 2);
    fake_engine.script[0] = (uint32_t)json_integer_value(json_array_get(ids, 0));
    fake_engine.script[1] = (uint32_t)json_integer_value(json_array_get(ids, 1));
    json_decref(o);
    assert_int_equal(job_rig_run(rig, ""), 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    o = json_array_get(results, 0);
    assert_string_equal(get_string(o, "text"), "Sh");
    assert_string_equal(get_string(o, "stop_reason"), "e s");
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), 2);
    json_decref(results);
}

/* ---- telling ---- */

static void the_status_file_says_how_it_ended(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 30);
    assert_int_equal(job_rig_run(rig, ""), 0);
    json_t *status = read_json(rig, "out.jsonl.status.json");
    static const char *const keys[] = {"state",     "done",      "total",     "errors",
                                       "in_flight", "gen_tok_s", "eta_s",     "pass_s",
                                       "lanes",     "memory",    "last_error"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++)
        assert_non_null(json_object_get(status, keys[i]));
    assert_string_equal(get_string(status, "state"), "done");
    assert_int_equal(json_integer_value(json_object_get(status, "done")), 30);
    json_decref(status);
}

static void busy_shares_are_told_where_several_lanes_work(void **state)
{
    struct aq_job job = {.row_count = 10};
    struct aq_run_view view = {
        .loaded = true,
        .stats = {.passes = 4,
                  .prefill_s = 2,
                  .decode_s = 6,
                  .lane = {[AQ_LANE_COMPUTE] = {.busy_s = 6}, [AQ_LANE_CONTROL] = {.busy_s = 1}}}};
    struct aq_buf text = {0};
    aq_progress_text(&text, &job, &view, 1);
    assert_null(strstr(text.data, "busy"));
    aq_buf_clear(&text);
    view.stats.lane[AQ_LANE_READ_WEIGHTS].busy_s = 8;
    aq_progress_text(&text, &job, &view, 1);
    assert_non_null(strstr(text.data, ", busy: compute 75 %, disk_read_weights 100 %"));
    assert_null(strstr(text.data, "control"));
    aq_buf_close(&text);
}

static void progress_is_told_inside_the_first_pass(void **state)
{
    struct job_rig *rig = *state;
    job_rig_write(rig, "in.jsonl", "{\"prompt\": [9], \"max_tokens\": 1}\n");
    fake_engine.pass_s = 1.2;
    assert_int_equal(job_rig_run(rig, "\"progress\": 0.2"), 0);
    assert_said(rig, "in pass 1");
    assert_true(rig->progress_lines >= 2);
    assert_true(rig->first_progress_s < 1.0);
}

static struct job_rig *looking; /* the stand-in engine calls back without a user */
static bool was_null, was_known, was_over;

static void look_at_the_status(uint64_t pass)
{
    json_t *status;
    (void)pass;
    if (aq_json_read_file(&status, job_rig_path(looking, "out.jsonl.status.json"), 1 << 20, NULL) <
        0)
        return;
    const json_t *eta = json_object_get(status, "eta_s");
    was_null |= json_is_null(eta);
    was_known |= json_is_real(eta) && json_real_value(eta) > 0;
    was_over |= json_is_number(eta) && json_number_value(eta) <= 0;
    json_decref(status);
}

/* The first record to end once made the run look as if it was over. */
static void the_time_left_is_told_late_rather_than_wrong(void **state)
{
    struct job_rig *rig = looking = *state;
    struct aq_buf b = {0};
    for (unsigned i = 0; i < 120; i++)
        aq_buf_printf(&b, "{\"prompt\": [%u, 9], \"max_tokens\": 40}\n", 10 + i);
    job_rig_write(rig, "in.jsonl", b.data);
    aq_buf_close(&b);
    fake_engine.seats = 60;
    fake_engine.eos_every = 60;
    fake_engine.pass_s = 0.03;
    fake_engine.on_pass = look_at_the_status;
    was_null = was_known = was_over = false;
    assert_int_equal(job_rig_run(rig, "\"progress\": 0.1"), 0);
    assert_true(was_null && was_known && !was_over);
    assert_said(rig, " left");
    assert_null(strstr(rig->lines.data, "about 0:00:00 left"));
}

static json_t *read_report(struct job_rig *rig)
{
    static const char *const keys[] = {
        "schema",       "aquifer",       "model",    "device",      "plan",
        "requests",     "prompt_tokens", "load_s",   "pack_s",      "prefill_s",
        "decode_s",     "mixed_s",       "idle_s",   "total_s",     "gen_tok_s",
        "total_tok_s",  "decode_tok_s",  "lanes",    "memory",      "predicted",
        "lossy",        "weights",       "emulated", "environment", "generated_tokens",
        "prefill_tok_s"};
    json_t *r = read_json(rig, "report.json");
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++)
        if (!json_object_get(r, keys[i]))
            fail_msg("the report lacks '%s'", keys[i]);
    return r;
}

static void the_report_accounts_for_all_the_time(void **state)
{
    struct job_rig *rig = *state;
    char options[400];
    job_rig_records(rig, 40);
    snprintf(options, sizeof(options), "\"report\": \"%s\"", job_rig_path(rig, "report.json"));
    assert_int_equal(job_rig_run(rig, options), 0);
    json_t *r = read_report(rig);
    assert_int_equal(json_integer_value(json_object_get(r, "requests")), 40);
    assert_int_equal(json_integer_value(json_object_get(r, "prompt_tokens")), 120);
    json_decref(r);
    unlink(job_rig_path(rig, "report.json"));
    assert_int_equal(job_rig_run(rig, options), 0); /* nothing to do: told as fully */
    r = read_report(rig);
    assert_int_equal(json_integer_value(json_object_get(r, "requests")), 0);
    assert_int_equal(json_integer_value(json_object_get(r, "resumed")), 40);
    json_decref(r);
}

/* Who publishes these would say that the policy loses nothing. */
static void scores_of_prompts_are_said_not_to_be_the_policys(void **state)
{
    struct job_rig *rig = *state;
    static const char scored[] = "{\"prompt\": [5, 6], \"max_tokens\": 0, \"echo\": true, "
                                 "\"logprobs\": 0}\n{\"prompt\": [5, 6], \"echo\": true, "
                                 "\"logprobs\": 2}\n{\"prompt\": [5, 6]}\n";
    static const char h2o[] = "\"overwrite\": true, \"kv_policy\": \"h2o\", \"kv_budget\": \"20%\"";
    static const char said[] = "log-probabilities of prompts (echo with logprobs, 2 records) are "
                               "the full cache's, not those under kv policy h2o";
    char options[400];
    snprintf(options, sizeof(options), "%s, \"report\": \"%s\"", h2o,
             job_rig_path(rig, "report.json"));
    job_rig_write(rig, "in.jsonl", scored);
    assert_int_equal(job_rig_run(rig, options), 0);
    assert_said(rig, said);
    assert_said(rig, "aquifer eval --kv-policy h2o");
    assert_said(rig, "under it a record's 'continuation' is scored");
    json_t *r = read_report(rig), *lossy = json_object_get(r, "lossy");
    const char *last = json_string_value(json_array_get(lossy, json_array_size(lossy) - 1));
    assert_non_null(last);
    assert_int_equal(strncmp(last, said, strlen(said)), 0);
    json_decref(r);
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true"), 0); /* the full cache's they are */
    assert_null(strstr(rig->lines.data, "log-probabilities"));
    job_rig_write(rig, "in.jsonl",
                  "{\"prompt\": [5, 6], \"logprobs\": 2}\n{\"prompt\": [5], "
                  "\"echo\": true}\n");
    assert_int_equal(job_rig_run(rig, h2o), 0);
    assert_null(strstr(rig->lines.data, "log-probabilities"));
}

static void a_report_that_cannot_be_written_is_only_a_warning(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 4);
    assert_int_equal(job_rig_run(rig, "\"report\": \"/no/such/folder/report.json\""), 0);
    assert_said(rig, "report: write '/no/such/folder/report.json'");
}

/* ---- ends before the end ---- */

static struct job_rig *interrupted_rig;

static void interrupt_in_pass_7(uint64_t pass)
{
    interrupted_rig->interrupt = pass >= 7;
}

static void an_interrupted_run_keeps_what_was_done_and_goes_on(void **state)
{
    struct job_rig *rig = interrupted_rig = *state;
    job_rig_records(rig, 80);
    assert_int_equal(job_rig_run(rig, ""), 0);
    char *want = job_rig_sorted(rig, "out.jsonl");
    fake_engine.on_pass = interrupt_in_pass_7;
    fake_engine.passes = 0;
    fake_engine.pass_s = 0.03;
    assert_int_equal(job_rig_run(rig, "\"overwrite\": true"), -EINTR);
    json_t *results = job_rig_results(rig, "out.jsonl");
    size_t done = json_array_size(results);
    assert_true(done > 0 && done < 80);
    json_decref(results);
    json_t *status = read_json(rig, "out.jsonl.status.json");
    assert_string_equal(get_string(status, "state"), "interrupted");
    assert_int_equal(json_integer_value(json_object_get(status, "done")), (json_int_t)done);
    json_decref(status);
    fake_engine.on_pass = NULL;
    fake_engine.pass_s = 0;
    fake_engine.submitted = 0;
    rig->interrupt = false;
    assert_int_equal(job_rig_run(rig, ""), 0);
    assert_int_equal(fake_engine.submitted, 80 - done);
    char *got = job_rig_sorted(rig, "out.jsonl");
    assert_string_equal(got, want);
    free(got);
    free(want);
}

static void a_failing_engine_leaves_what_was_done(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 80);
    fake_engine.fail_pass = 9;
    assert_int_equal(job_rig_run(rig, ""), -EIO);
    assert_non_null(strstr(rig->err.text, "pass 9"));
    json_t *status = read_json(rig, "out.jsonl.status.json");
    assert_string_equal(get_string(status, "state"), "failed");
    assert_non_null(strstr(get_string(status, "last_error"), "pass 9"));
    json_decref(status);
    assert_int_equal(job_rig_run(rig, ""), 0);
    json_t *results = job_rig_results(rig, "out.jsonl");
    assert_int_equal(json_array_size(results), 80);
    json_decref(results);
}

static void a_full_device_ends_with_an_io_error(void **state)
{
    struct job_rig *rig = *state;
    job_rig_records(rig, 4);
    double begin_s = aq_clock_s();
    assert_int_equal(job_rig_run(rig, "\"output\": \"/dev/full\""), -ENOSPC);
    assert_true(aq_clock_s() - begin_s <
                60); /* nobody can make space there: no wait of 10 minutes */
}

#define T(claim) cmocka_unit_test_setup_teardown(claim, job_rig_setup, job_rig_teardown)

static const struct CMUnitTest tests[] = {
    T(no_valid_record_writes_nothing),
    T(more_than_half_invalid_needs_permission),
    T(strict_stops_at_the_first_invalid_record),
    T(duplicate_ids_name_both_lines),
    T(a_missing_input_is_named),
    T(a_dry_run_prints_preflight_plan_and_ledger_and_writes_nothing),
    T(the_preflight_counts_by_form_and_code),
    T(every_record_gets_one_line),
    T(what_waits_for_a_seat_is_bounded),
    T(order_of_the_input_on_request),
    T(the_order_of_results_does_not_change_them),
    T(standard_output_gets_lines_through_the_hook),
    T(prompts_on_the_command_line_print_text),
    T(only_the_first_records_on_request),
    T(logits_that_are_not_finite_cost_one_error_record),
    T(sequences_of_one_record_stay_together),
    T(a_stop_string_over_two_tokens_ends_the_sequence),
    T(the_status_file_says_how_it_ended),
    T(busy_shares_are_told_where_several_lanes_work),
    T(the_time_left_is_told_late_rather_than_wrong),
    T(progress_is_told_inside_the_first_pass),
    T(the_report_accounts_for_all_the_time),
    T(scores_of_prompts_are_said_not_to_be_the_policys),
    T(a_report_that_cannot_be_written_is_only_a_warning),
    T(an_interrupted_run_keeps_what_was_done_and_goes_on),
    T(a_failing_engine_leaves_what_was_done),
    T(a_full_device_ends_with_an_io_error),
};

AQ_TEST_MAIN(tests)
