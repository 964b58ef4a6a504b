/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/session.c - one engine, record by record: aquifer_open, submit, next, report,
 * close.  All of it runs on the caller's thread. */
#include "base/clock.h"
#include "base/json.h"
#include "engine/commands/commands.h"
#include "engine/core/drive.h"
#include "engine/core/report.h"
#include "engine/job/flight.h"
#include "engine/job/generator.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Planned for records that wait or are in flight; more may be submitted, at the caller's cost. */
#define HELD_BYTES (64 * AQ_MIB)

/* A result line that nobody has asked for yet. */
struct ready {
    struct ready *next;
    uint64_t number; /* of its record */
    char *line;
};

struct aquifer {
    struct aq_options *o;
    struct aquifer_hooks hooks;
    struct aq_log log;
    struct aq_generator g;
    uint32_t prompt_max, total_max; /* tokens: what was planned for */
    uint64_t submitted, done, errors, prompt_tokens;
    uint64_t scored; /* records that wanted log-probabilities of their prompts */
    double load_s, first_pass_s, last_result_s;
    struct aq_flight flight;
    struct ready *first, *last;
    uint64_t number; /* of the record of the last line that was asked for */
};

/* ---- open and close ---- */

static void session_close(struct aquifer *a)
{
    if (!a)
        return;
    aq_engine_close(a->g.engine);
    a->g.engine = NULL;
    aq_flight_close(&a->flight);
    for (struct ready *r = a->first, *next; r; r = next) {
        next = r->next;
        free(r->line);
        free(r);
    }
    aq_generator_close(&a->g);
    aq_options_close(a->o);
    free(a);
}

static int session_plan(struct aquifer *a, struct aq_err *reterr)
{
    uint32_t context = a->g.info->context, positions = a->g.info->positions;
    a->total_max = a->o->max_total_tokens ? a->o->max_total_tokens : context;
    a->prompt_max = a->o->max_prompt_tokens ? a->o->max_prompt_tokens
                                            : (uint32_t)aq_min_u64(a->total_max, positions);
    if (a->total_max > context || a->prompt_max > a->total_max)
        return aq_error(reterr, -EINVAL,
                        "expected max_prompt_tokens (%u) <= max_total_tokens (%u) <= context (%u)",
                        a->prompt_max, a->total_max, context);
    a->g.rules.window_max = a->prompt_max;
    const struct aq_workload w = {
        .prompt_max = a->prompt_max,
        .total_max = a->total_max + 1, /* of what is scored the last token is not computed with */
        .prompt_logprobs = true,
        .queue_bytes = HELD_BYTES,
    };
    return aq_engine_plan(a->g.engine, &w, reterr);
}

/* Options of a job over files, which a session has not: none of them would do anything. */
static int check_no_files(json_t *options, struct aq_err *reterr)
{
    static const char *const of_files[] = {
        "input",        "output",       "input_format",   "prompt",           "limit",
        "shard",        "ordered",      "overwrite",      "retry_errors",     "errors",
        "allow_change", "allow_errors", "disk_full_wait", "checkpoint_every", "report",
        "metrics_file", "dry_run"};
    const char *key;
    json_t *value;
    json_object_foreach(options, key, value)
    {
        char name[32];
        size_t length = strlen(key);
        if (length >= sizeof(name) || json_is_false(value) || json_is_null(value))
            continue;
        for (size_t i = 0; i <= length; i++)
            name[i] = key[i] == '-' ? '_' : key[i];
        for (size_t i = 0; i < AQ_ARRAY_LEN(of_files); i++) {
            if (strcmp(name, of_files[i]) == 0)
                return aq_error(reterr, -EINVAL,
                                "options: \"%s\": a session has no files: records come from its "
                                "caller, and results go there; leave it out, or run 'aquifer "
                                "generate'",
                                key);
        }
    }
    return 0;
}

static int session_open(struct aquifer *a, const char *options_json, struct aq_err *reterr)
{
    json_t *object;
    int rc = aq_json_parse(&object, options_json, strlen(options_json), true, reterr);
    if (rc == 0 && !json_is_object(object)) {
        rc = aq_error(reterr, -EINVAL, "options: expected a JSON object");
        json_decref(object);
    }
    if (rc < 0)
        return aq_error_prefix(reterr, "options") == -ENOEXEC ? -EINVAL : rc;
    rc = check_no_files(object, reterr);
    rc = rc < 0 ? rc : aq_options_from_json(&a->o, "generate", object, reterr);
    json_decref(object);
    if (rc == 0 && !a->o->model && !a->o->shape)
        rc = aq_error(reterr, -EINVAL, "options: expected \"model\" or \"shape\"");
    if (rc == 0)
        rc = aq_generator_open(&a->g, a->o, a->o->chat_time, NULL, &a->log, reterr);
    if (rc == 0)
        rc = session_plan(a, reterr);
    double begin_s = aq_clock_s();
    if (rc == 0)
        aq_engine_stop_when(a->g.engine, aq_hooks_interrupted, &a->hooks);
    if (rc == 0)
        rc = aq_engine_load(a->g.engine, reterr);
    a->load_s = aq_clock_s() - begin_s;
    return rc;
}

int aquifer_open(struct aquifer **ret, const char *options_json, const struct aquifer_hooks *hooks,
                 struct aquifer_error *reterr)
{
    assert(ret && options_json);
    struct aq_err err = {0};
    struct aquifer *a = calloc(1, sizeof(*a));
    int rc = a ? 0 : aq_error_memory(&err, "session");
    if (rc == 0) {
        if (hooks)
            a->hooks = *hooks;
        a->log = aq_log_from_hooks(&a->hooks);
        rc = session_open(a, options_json, &err);
    }
    if (rc < 0) {
        session_close(a);
        err.code = rc;
        aq_err_publish(reterr, &err);
        return rc;
    }
    *ret = a;
    return 0;
}

void aquifer_close(struct aquifer *a)
{
    session_close(a);
}

/* ---- records in, lines out ---- */

/* Takes the text. */
static int put_ready(struct aquifer *a, struct aq_buf *text, uint64_t number, struct aq_err *reterr)
{
    struct ready *r = calloc(1, sizeof(*r));
    char *line = aq_buf_take(text);
    if (!r || !line) {
        free(r);
        free(line);
        return aq_error_memory(reterr, "a result");
    }
    r->line = line;
    r->number = number;
    if (a->last)
        a->last->next = r;
    else
        a->first = r;
    a->last = r;
    return 0;
}

static int put_error(struct aquifer *a, const struct aq_request *r, struct aq_err *reterr)
{
    struct aq_buf text = {0};
    a->g.result_rules.created = aq_clock_unix_s();
    int rc = aq_result_format_error(&text, r, &a->g.result_rules, reterr);
    if (rc < 0) {
        aq_buf_close(&text);
        return rc;
    }
    a->done++;
    a->errors++;
    return put_ready(a, &text, r->index, reterr);
}

/* The engine only takes what lies within its plan. */
static void check_bounds(const struct aquifer *a, struct aq_request *r)
{
    for (uint32_t i = 0; i < r->prompt_count && !r->error.code; i++) {
        const struct aq_prompt *p = &r->prompts[i];
        uint64_t total = (uint64_t)p->count + p->max_tokens - (p->scored > 0);
        if (p->count > a->prompt_max || total > a->total_max)
            aq_request_refuse(r, AQ_RECORD_CONTEXT_LENGTH_EXCEEDED, "prompt",
                              "opened for prompts of %u and totals of %u tokens: prompt %u tokens, "
                              "max_tokens %u",
                              a->prompt_max, a->total_max, p->count, p->max_tokens);
    }
}

static int submit(struct aquifer *a, const char *record_json, struct aq_err *reterr)
{
    size_t bytes = strlen(record_json);
    struct aq_line line = {
        .text = record_json,
        .bytes = bytes,
        .index = a->submitted,
        .number = a->submitted + 1,
        .too_long = bytes > AQ_LINE_BYTES_MAX,
        .hash = XXH3_64bits(record_json, bytes),
    };
    struct aq_request *r;
    int rc = aq_request_open(&r, &a->g.rules, &line, reterr);
    if (rc < 0)
        return rc;
    a->submitted++;
    check_bounds(a, r);
    if (r->error.code) {
        rc = put_error(a, r, reterr);
        aq_request_close(r);
        return rc;
    }
    if (!a->g.result_rules.malformed)
        a->g.result_rules.malformed = r->form;
    char scores[AQ_SCORES_TEXT_MAX];
    bool scored = r->params.echo && r->params.logprobs >= 0;
    a->scored += scored;
    if (scored && a->scored == 1 && aq_generator_scores_text(scores, &a->g, 1)) /* once */
        aq_log_line(&a->log, AQ_LOG_WARNING, "lossy: %s", scores);
    return aq_flight_submit(&a->flight, a->g.engine, r, &a->g.record_rules, NULL, reterr);
}

static int put_result(struct aquifer *a, struct aq_record *rec, struct aq_err *reterr)
{
    struct aq_buf text = {0};
    bool error;
    a->g.result_rules.created = aq_clock_unix_s();
    int rc = aq_result_format(&text, rec, &a->g.result_rules, &error, reterr);
    if (rc < 0) {
        aq_buf_close(&text);
        return rc;
    }
    a->done++;
    a->errors += error;
    a->prompt_tokens += aq_record_prompt_tokens(rec);
    a->last_result_s = aq_clock_s();
    return put_ready(a, &text, rec->request->index, reterr);
}

static int before_pass(void *user, struct aq_err *reterr)
{
    struct aquifer *a = user;
    if (aq_hooks_interrupted(&a->hooks))
        return aq_error(reterr, -EINTR, "interrupted");
    if (a->first_pass_s <= 0)
        a->first_pass_s = aq_clock_s();
    return 0;
}

static int sequence_ended(void *user, struct aq_sequence *s, struct aq_err *reterr)
{
    struct aquifer *a = user;
    struct aq_record *rec = aq_flight_end(&a->flight, s);
    int rc = rec ? put_result(a, rec, reterr) : 0;
    aq_record_close(rec);
    return rc;
}

static int one_pass(struct aquifer *a, struct aq_err *reterr)
{
    const struct aq_drive drive = {a->g.engine, a, before_pass, sequence_ended};
    bool worked;
    int rc = aq_drive_pass(&drive, &worked, reterr);
    bool stuck = rc == 0 && !worked && !a->first && a->flight.count;
    return stuck ? aq_flight_stuck(&a->flight, reterr) : rc;
}

/* ---- the public functions ---- */

static int publish(struct aquifer_error *reterr, const struct aq_err *err, int rc)
{
    if (rc < 0)
        aq_err_publish(reterr, err);
    return rc;
}

int aquifer_submit(struct aquifer *a, const char *record_json, struct aquifer_error *reterr)
{
    assert(a && record_json);
    struct aq_err err = {0};
    return publish(reterr, &err, submit(a, record_json, &err));
}

int aquifer_next(struct aquifer *a, char **ret_result_json, struct aquifer_error *reterr)
{
    assert(a && ret_result_json);
    struct aq_err err = {0};
    int rc = 0;
    while (rc == 0 && !a->first && a->flight.count)
        rc = one_pass(a, &err);
    if (rc < 0)
        return publish(reterr, &err, rc);
    struct ready *r = a->first;
    *ret_result_json = r ? r->line : NULL;
    if (r) {
        a->number = r->number;
        a->first = r->next;
        if (!a->first)
            a->last = NULL;
        free(r);
    }
    return 0;
}

uint64_t aquifer_number(const struct aquifer *a)
{
    assert(a);
    return a->number;
}

int aquifer_report(struct aquifer *a, char **ret_json, struct aquifer_error *reterr)
{
    assert(a && ret_json);
    struct aq_err err = {0};
    const struct aq_report_times times = {
        .load_s = a->load_s,
        .total_s = a->last_result_s > a->first_pass_s ? a->last_result_s - a->first_pass_s : 0,
        .requests = a->done,
        .errors = a->errors,
        .prompt_tokens = a->prompt_tokens,
    };
    json_t *report = aq_report_build(a->g.engine, &times, NULL);
    char scores[AQ_SCORES_TEXT_MAX];
    if (report && aq_generator_scores_text(scores, &a->g, a->scored))
        aq_report_add_lossy(&report, scores);
    char *text = report ? aq_json_dump(report, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(report);
    if (!text)
        return publish(reterr, &err, aq_error_memory(&err, "report"));
    *ret_json = text;
    return 0;
}
