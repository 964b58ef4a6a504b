/* SPDX-License-Identifier: Apache-2.0
 * The view of a running job: when its lines, FILE.status.json and metrics are due, the status file
 * and the report.  All of it runs on the watching thread and from copies; none of it can stop the
 * job. */
#include "engine/job/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/core/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_S = 600, COLUMNS = 80, LINES_AT_FIRST = 2 };

static const double first_lines_s[LINES_AT_FIRST] = {10, 60};
static const double later_lines_s = 60, bar_s = 0.5, status_s = 5;

/* ---- when ---- */

/* Nobody who asks for a line each second wants to read a status that is older. */
static double next_status(const struct aq_job *j, double now_s)
{
    return now_s + (j->o->progress_s > 0 ? fmin(j->o->progress_s, status_s) : status_s);
}

static double next_line(const struct aq_progress *p, const struct aq_job *j)
{
    if (j->o->progress_s > 0)
        return p->begin_s + (p->lines + 1) * j->o->progress_s;
    if (p->lines < LINES_AT_FIRST)
        return p->begin_s + first_lines_s[p->lines];
    return p->begin_s + (p->lines - LINES_AT_FIRST + 2) * later_lines_s;
}

void aq_progress_begin(struct aq_progress *p, const struct aq_job *j, double now_s)
{
    *p = (struct aq_progress){.begin_s = now_s,
                              .begin_unix_s = aq_clock_unix_s(),
                              .next_status_s = next_status(j, now_s),
                              .next_report_s = now_s + REPORT_S};
    p->next_line_s = next_line(p, j);
    p->next_bar_s = now_s + bar_s;
}

static bool shows_bar(const struct aq_job *j)
{
    return j->hooks && j->hooks->lines_are_terminal && !j->o->quiet;
}

static void say(const struct aq_job *j, const struct aq_run_view *view, double now_s, bool bar)
{
    struct aq_buf text = {0};
    int columns = bar && j->hooks->line_columns > 0 ? j->hooks->line_columns : COLUMNS - 1;
    if (bar)
        aq_progress_bar(&text, j, view, now_s, (size_t)columns);
    else
        aq_progress_text(&text, j, view, now_s);
    if (text.data)
        aq_hooks_line(j->hooks, AQUIFER_PROGRESS, "%s", text.data);
    aq_buf_close(&text);
}

void aq_progress_tick(struct aq_progress *p, const struct aq_job *j, const struct aq_run_view *view,
                      double now_s, bool *ret_report)
{
    *ret_report = now_s >= p->next_report_s;
    if (*ret_report)
        p->next_report_s = now_s + REPORT_S;
    if (shows_bar(j) && now_s >= p->next_bar_s) {
        say(j, view, now_s, true);
        p->next_bar_s = now_s + bar_s;
    }
    if (now_s >= p->next_status_s) {
        aq_progress_status(p, j, view, view->loaded ? "running" : "loading");
        p->next_status_s = next_status(j, now_s);
    }
    if (now_s < p->next_line_s)
        return;
    if (!shows_bar(j) && !j->o->quiet)
        say(j, view, now_s, false);
    while (p->next_line_s <= now_s) {
        p->lines++;
        p->next_line_s = next_line(p, j);
    }
}

/* ---- status ---- */

static json_t *positive(double x)
{
    return x > 0 ? aq_json_real(x) : json_null();
}

/* Messages name files, and a name may be any bytes; JSON may not. */
static json_t *safe_text(const char *text)
{
    char quoted[AQ_LAST_ERROR_BYTES];
    return aq_json_string(aq_quote(quoted, sizeof(quoted), text, strlen(text)));
}

static void write_status(struct aq_progress *p, const struct aq_job *j,
                         const struct aq_run_view *view, const char *state)
{
    double now_s = aq_clock_s(), eta_s = aq_progress_eta_s(j, view, now_s);
    bool over = strcmp(state, "running") && strcmp(state, "loading");
    double until_s = over && view->last_result_s > 0 ? view->last_result_s : now_s;
    json_t *o =
        json_pack("{s:i, s:s, s:I, s:I, s:I, s:I}", "schema", 1, "state", state, "done",
                  (json_int_t)(j->done_before + view->done), "total", (json_int_t)j->row_count,
                  "errors", (json_int_t)(j->errors_before + view->errors), "in_flight",
                  (json_int_t)(over ? 0 : view->in_flight));
    aq_json_put(&o, "taken_over", json_integer((json_int_t)view->taken_over));
    aq_json_put(&o, "gen_tok_s", positive(aq_view_gen_tok_s(view, until_s)));
    aq_json_put(&o, "eta_s", over || eta_s < 0 ? json_null() : aq_json_real(eta_s));
    aq_json_put(&o, "pass_s", positive(aq_view_pass_s(view)));
    aq_json_put(&o, "passes", json_integer((json_int_t)view->stats.passes));
    aq_json_put(&o, "elapsed_s", aq_json_real(now_s - view->begin_s));
    aq_json_put(&o, "lanes", aq_report_lanes(&view->stats));
    aq_json_put(&o, "memory", aq_progress_memory(p));
    aq_json_put(&o, "last_error", view->last_error[0] ? safe_text(view->last_error) : json_null());
    char shard[AQ_SHARD_TEXT_MAX], host[256] = "";
    if (j->shard.count)
        aq_json_put(&o, "shard", json_string(aq_shard_text(shard, j->shard)));
    if (j->shard.count)
        aq_json_put(&o, "of_records", json_integer((json_int_t)j->whole.records));
    gethostname(host, sizeof(host) - 1);
    aq_json_put(&o, "host", aq_json_string(host));
    aq_json_put(&o, "pid", json_integer((json_int_t)getpid()));
    aq_json_put(&o, "updated", json_integer((json_int_t)aq_clock_unix_s()));
    char *text = aq_json_dump(o, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    struct aq_err err;
    bool failed = text && aq_file_replace(j->status, text, strlen(text), false, &err) < 0;
    if (failed && !p->status_failed)
        aq_job_note(j, AQUIFER_WARNING, "status: %s", err.text);
    p->status_failed = failed;
    free(text);
    json_decref(o);
}

void aq_progress_status(struct aq_progress *p, const struct aq_job *j,
                        const struct aq_run_view *view, const char *state)
{
    if (j->status)
        write_status(p, j, view, state);
    if (j->o->metrics_file)
        aq_progress_metrics(p, j, view, state);
}

/* ---- report ---- */

json_t *aq_progress_report(const struct aq_job *j, const struct aq_run_view *view,
                           const char *state)
{
    struct aq_report_times times = {
        .load_s = view->load_s,
        .total_s = view->last_result_s > view->first_pass_s && view->first_pass_s > 0
                       ? view->last_result_s - view->first_pass_s
                       : 0,
        .requests = view->done,
        .errors = view->errors,
        .prompt_tokens = view->prompt_tokens,
    };
    json_t *r = aq_report_build(j->g.engine, &times, NULL);
    if (!r)
        return NULL;
    char scores[AQ_SCORES_TEXT_MAX];
    if (aq_generator_scores_text(scores, &j->g, j->counts.scored))
        aq_report_add_lossy(&r, scores);
    aq_json_put(&r, "command", json_string("generate"));
    aq_json_put(&r, "state", json_string(state));
    aq_json_put(&r, "resumed", json_integer((json_int_t)j->done_before));
    aq_json_put(&r, "taken_over", json_integer((json_int_t)view->taken_over));
    aq_json_put(&r, "total", json_integer((json_int_t)j->row_count));
    aq_json_put(&r, "preflight", aq_job_preflight_json(j));
    return r;
}

void aq_progress_write_report(const struct aq_job *j, json_t *report)
{
    char *text = report ? aq_json_dump(report, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(report);
    struct aq_err err = {.text = "out of memory"};
    if (!text || aq_file_replace(j->o->report, text, strlen(text), false, &err) < 0)
        aq_job_note(j, AQUIFER_WARNING, "report: %s", err.text);
    free(text);
}
