/* SPDX-License-Identifier: Apache-2.0
 * The view of a running job: progress lines, FILE.status.json, the report.  All of it
 * runs on the watching thread and from copies; none of it can stop the job. */
#include "engine/job/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/core/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_S = 600, BAR_WIDTH = 24, LINES_AT_FIRST = 2 };

static const double first_lines_s[LINES_AT_FIRST] = {10, 60};
static const double later_lines_s = 60, bar_s = 0.5;

/* ---- when ---- */

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
    *p = (struct aq_progress){.begin_s = now_s, .next_report_s = now_s + REPORT_S};
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
    aq_progress_text(&text, j, view, now_s, bar);
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
    if (now_s < p->next_line_s)
        return;
    if (!shows_bar(j) && !j->o->quiet)
        say(j, view, now_s, false);
    aq_progress_status(p, j, view, view->loaded ? "running" : "loading");
    while (p->next_line_s <= now_s) {
        p->lines++;
        p->next_line_s = next_line(p, j);
    }
}

/* ---- numbers ---- */

static double run_s(const struct aq_run_view *view, double now_s)
{
    return view->first_pass_s > 0 ? now_s - view->first_pass_s : 0;
}

static double gen_tok_s(const struct aq_run_view *view, double now_s)
{
    double s = run_s(view, now_s);
    return s > 0 ? (double)view->stats.generated_tokens / s : 0;
}

static double mean_pass_s(const struct aq_run_view *view)
{
    const struct aq_engine_stats *s = &view->stats;
    return s->passes ? (s->prefill_s + s->decode_s + s->mixed_s) / (double)s->passes : 0;
}

/* Before this share of the seats has been given on, or of all tokens generated, nobody knows how
 * early sequences end. */
static const double known_seats = 0.1, known_tokens = 0.25;

/* How many tokens the longest of `count` sequences will still have, each at most `most`, when one
 * token in 1 / rate ends its sequence: the mean of the largest of exponential variables, cut off
 * (the integral of 1 - (1 - exp(-rate t))^count from 0 to most). */
static double longest(double count, double most, double rate)
{
    if (rate <= 0)
        return most;
    double ends = -expm1(-rate * most), power = ends, sum = 0;
    for (double i = 1; i <= count; i++, power *= ends)
        sum += power / i;
    return sum / rate;
}

/* The part of a pass that stays while its seats empty: the busiest lane that moves weights.  What
 * is computed becomes less. */
static double fixed_share(const struct aq_engine_stats *s)
{
    double passes_s = s->prefill_s + s->decode_s + s->mixed_s, busy_s = 0;
    for (int l = AQ_LANE_H2D; l <= AQ_LANE_READ_WEIGHTS; l++)
        busy_s = fmax(busy_s, s->lane[l].busy_s);
    return passes_s > 0 ? fmin(1, busy_s / passes_s) : 0;
}

/* Passes with all seats taken that take as long as what is left; below 0: not known yet.
 *
 * Sequences end before their max_tokens, and those that ended so far tell how often: `stopped`
 * times in all tokens, with those of sequences in flight, which did not end.  Else the first to
 * end, which are the short ones, would speak for all.  Seats are given on until no sequence waits;
 * from then on, or in each block where they are not given on, the longest one decides. */
static double passes_left(const struct aq_job *j, const struct aq_run_view *view)
{
    const struct aq_engine_stats *s = &view->stats;
    double all = (double)(j->workload.total_sum - j->workload.prompt_sum);
    double sequences = (double)j->workload.sequences, ended = (double)s->finished;
    double generated = (double)(s->generated_tokens + view->taken_over),
           seats = fmin(view->seats, sequences);
    double at_most = all - (double)view->ended_max - (generated - (double)view->ended_tokens);
    if (ended < known_seats * seats && generated < known_tokens * all)
        return -1;
    double left = sequences - ended, seated = fmin(seats, left);
    if (at_most <= 0 || left <= 0 || generated <= 0)
        return 0;
    double most = at_most / left, rate = (double)view->stopped / generated;
    double each = longest(1, most, rate), last = longest(seated, most, rate);
    double ends = j->o->refill ? 1 : left / seated; /* times that seats stand empty */
    return left * each / seats + fixed_share(s) * ends * (last - seated * each / seats);
}

/* Prompts and tokens that are left, at what they took so far: passes that only read prompts tell
 * what a prompt's token takes, all others what is left for a pass that generates. */
double aq_progress_eta_s(const struct aq_job *j, const struct aq_run_view *view, double now_s)
{
    const struct aq_engine_stats *s = &view->stats;
    if (view->done >= j->pending)
        return 0;
    if (!s->passes || !s->prefill_tokens)
        return -1;
    double prompts = (double)j->workload.prompt_sum, read = (double)s->prefill_tokens;
    double begun_s = view->in_pass ? view->pass_begin_s : now_s; /* the end of the last pass */
    double passes_s = begun_s - view->first_pass_s;
    bool generates = j->workload.total_sum > j->workload.prompt_sum;
    double passes = generates ? passes_left(j, view) : 0;
    if (passes < 0 || (!generates && read < known_seats * prompts))
        return -1;
    double prompt_s = (generates ? s->prefill_s : passes_s) / read;
    double others = (double)(s->passes - s->prefill_passes);
    double pass_s = others > 0 ? fmax(0, passes_s - prompt_s * read) / others : 0;
    double left_s = fmax(0, prompts - read) * prompt_s + passes * pass_s - (now_s - begun_s);
    return fmax(left_s, mean_pass_s(view)); /* what is not done needs a pass, at the least */
}

/* ---- lines ---- */

/* Whole seconds, a part counting as one: what is not over takes some time. */
static void put_clock(struct aq_buf *out, double s)
{
    uint64_t all = (uint64_t)ceil(s);
    aq_buf_printf(out, "%" PRIu64 ":%02u:%02u", all / 3600, (unsigned)(all / 60 % 60),
                  (unsigned)(all % 60));
}

static void put_bar(struct aq_buf *out, double share)
{
    int full = (int)(share * BAR_WIDTH);
    aq_buf_puts(out, "[");
    for (int i = 0; i < BAR_WIDTH; i++)
        aq_buf_puts(out, i < full ? "#" : ".");
    aq_buf_puts(out, "] ");
}

/* How busy each lane has been, where more than one had work. */
static void put_lanes(struct aq_buf *out, const struct aq_engine_stats *s)
{
    double passes_s = s->prefill_s + s->decode_s + s->mixed_s;
    uint32_t busy = 0;
    for (int l = 0; l < AQ_LANE_CONTROL; l++)
        busy += s->lane[l].busy_s > 0;
    if (busy < 2 || passes_s <= 0)
        return;
    const char *before = ", busy:";
    for (int l = 0; l < AQ_LANE_CONTROL; l++) {
        if (s->lane[l].busy_s <= 0)
            continue;
        double share = s->lane[l].busy_s / passes_s;
        aq_buf_printf(out, "%s %s %.0f %%", before, aq_lane_name((enum aq_lane)l),
                      100 * (share < 1 ? share : 1));
        before = ",";
    }
}

void aq_progress_text(struct aq_buf *out, const struct aq_job *j, const struct aq_run_view *view,
                      double now_s, bool bar)
{
    uint64_t done = j->done_before + view->done;
    if (!view->loaded) {
        aq_buf_printf(out, "loading weights for %.0f s", now_s - view->begin_s);
        return;
    }
    if (bar)
        put_bar(out, j->row_count ? (double)done / (double)j->row_count : 1);
    aq_buf_printf(out, "%" PRIu64 "/%" PRIu64 " records", done, j->row_count);
    if (j->errors_before + view->errors)
        aq_buf_printf(out, " (%" PRIu64 " errors)", j->errors_before + view->errors);
    if (!view->stats.passes) {
        aq_buf_printf(out, ", in pass 1 for %.0f s, %" PRIu64 " in flight",
                      view->pass_begin_s > 0 ? now_s - view->pass_begin_s : 0, view->in_flight);
        return;
    }
    aq_buf_printf(out, ", %.1f tok/s generated, %.3g s a pass, %" PRIu64 " in flight",
                  gen_tok_s(view, now_s), mean_pass_s(view), view->in_flight);
    put_lanes(out, &view->stats);
    double eta_s = aq_progress_eta_s(j, view, now_s);
    if (eta_s < 0)
        return;
    aq_buf_puts(out, ", about ");
    put_clock(out, eta_s);
    aq_buf_puts(out, " left");
}

/* ---- status ---- */

static json_t *memory_now(const struct aq_progress *p)
{
    if (!p->memory)
        return json_null();
    json_t *memory = aq_json_copy(p->memory), *host = json_object_get(memory, "host");
    json_t *measured = json_integer((json_int_t)aq_mem_process_peak());
    if (!host || json_object_set_new(host, "measured", measured) == 0)
        return memory;
    json_decref(memory);
    return NULL;
}

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

void aq_progress_status(const struct aq_progress *p, const struct aq_job *j,
                        const struct aq_run_view *view, const char *state)
{
    if (!j->status)
        return;
    double now_s = aq_clock_s(), eta_s = aq_progress_eta_s(j, view, now_s);
    bool over = strcmp(state, "running") && strcmp(state, "loading");
    double until_s = over && view->last_result_s > 0 ? view->last_result_s : now_s;
    json_t *o =
        json_pack("{s:i, s:s, s:I, s:I, s:I, s:I}", "schema", 1, "state", state, "done",
                  (json_int_t)(j->done_before + view->done), "total", (json_int_t)j->row_count,
                  "errors", (json_int_t)(j->errors_before + view->errors), "in_flight",
                  (json_int_t)(over ? 0 : view->in_flight));
    aq_json_put(&o, "taken_over", json_integer((json_int_t)view->taken_over));
    aq_json_put(&o, "gen_tok_s", positive(gen_tok_s(view, until_s)));
    aq_json_put(&o, "eta_s", over || eta_s < 0 ? json_null() : aq_json_real(eta_s));
    aq_json_put(&o, "pass_s", positive(mean_pass_s(view)));
    aq_json_put(&o, "passes", json_integer((json_int_t)view->stats.passes));
    aq_json_put(&o, "elapsed_s", aq_json_real(now_s - view->begin_s));
    aq_json_put(&o, "lanes", aq_report_lanes(&view->stats));
    aq_json_put(&o, "memory", memory_now(p));
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
    if (text && aq_file_replace(j->status, text, strlen(text), false, &err) < 0)
        aq_job_note(j, AQUIFER_WARNING, "status: %s", err.text);
    free(text);
    json_decref(o);
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
