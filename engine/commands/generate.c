/* SPDX-License-Identifier: Apache-2.0
 * engine/commands/generate.c - `aquifer generate`: the phases of a job, in order.  Open (nothing
 * large), lock, preflight, resume, plan, and then the run, which is job_run.c's. */
#include "engine/commands/commands.h"
#include "engine/job/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "engine/core/forecast_json.h"
#include "engine/options/notation.h"

#include <assert.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that may wait between the engine and the disk. */
#define WRITER_QUEUE_BYTES (2 * AQ_MIB)
/* In flight before it is known how many seats there are. */
#define HELD_GUESS_BYTES (4 * AQ_MIB)
/* From here on a line's share of the memory is worth a word. */
#define LONG_LINE_BYTES (1 * AQ_MIB)
/* JSON in memory is larger than its text: a list of short ids about eight times.  A conversation is
 * copied while it is rendered, about as often. */
enum { PARSED_PER_TEXT = 8, RENDERED_PER_TEXT = 8, EXIT_ERROR_RECORDS = 3 };

/* ---- open ---- */

static int poll_interrupted(void *user)
{
    return aq_job_interrupted(user);
}

static int open_input(struct aq_job *j, struct aq_err *reterr)
{
    char *folder = j->output && !j->stream_output ? aq_file_folder(j->output) : NULL;
    const struct aq_input_opts opts = {
        .path = j->o->prompt.count ? NULL : j->o->input,
        .prompts = &j->o->prompt,
        .format = j->o->input_format,
        .spool_dir = folder,
        .interrupted = poll_interrupted,
        .user = j,
    };
    int rc = aq_input_open(&j->input, &opts, reterr);
    if (rc == 0)
        j->g.rules.text_lines = aq_input_is_text(j->input);
    if (j->o->prompt.count)
        j->g.rules.prompt_field = NULL; /* the input is not the user's: it has a "prompt" */
    free(folder);
    return rc;
}

static void job_close(struct aq_job *j)
{
    aq_writer_close(j->writer, NULL, NULL);
    aq_engine_close(j->g.engine);
    j->g.engine = NULL;
    aq_flight_close(&j->flight);
    aq_input_close(j->input);
    aq_generator_close(&j->g);
    free(j->rows);
    free(j->turn);
    aq_alike_close(j->alike);
    aq_lengths_close(&j->lengths);
    aq_id_table_close(&j->ids);
    free(j->prompt_histogram);
    aq_output_files_close(&j->files);
    free(j->errors);
    aq_inflight_close(j->begun.file);
    aq_sums_close(j->old.sums);
    aq_lock_close(j->lock);
    aq_lock_close(j->errors_lock);
    free(j);
}

static int job_open(struct aq_job **ret, const struct aq_options *o,
                    const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    struct aq_job *j = calloc(1, sizeof(*j));
    if (!j)
        return aq_error_memory(reterr, "job");
    j->o = o;
    j->hooks = hooks;
    j->log = aq_job_log(j);
    int rc = aq_shard_find(&j->shard, o->shard, reterr);
    if (rc == 0)
        rc = aq_job_open_output(j, reterr);
    if (rc == 0)
        aq_job_manifest_keep(j);
    const char *chat_time =
        o->chat_time || !j->kept.chat_time[0] ? o->chat_time : j->kept.chat_time;
    const char *isa = j->kept.isa[0] ? j->kept.isa : NULL;
    if (rc == 0)
        rc = aq_generator_open(&j->g, o, chat_time, isa, &j->log, reterr);
    if (rc == 0)
        rc = open_input(j, reterr);
    if (rc < 0)
        job_close(j);
    else
        *ret = j;
    return rc;
}

/* ---- plan ---- */

/* What the longest line takes while it is read. */
static uint64_t reading_bytes(const struct aq_job *j)
{
    return j->line_max * (PARSED_PER_TEXT + (j->counts.chats ? RENDERED_PER_TEXT : 0));
}

/* What packing results takes: the lines of a member, that member, and the library's tables, which
 * for texts of this size are less than 2 MiB. */
static uint64_t compressing_bytes(const struct aq_job *j)
{
    bool packed = j->output && aq_job_compression(j->output) != AQ_PLAIN;
    bool errors = j->errors && aq_job_compression(j->errors) != AQ_PLAIN;
    return (packed + errors) * (2ull * AQ_MEMBER_BYTES + 2 * AQ_MIB);
}

/* Memory for records in flight depends on the number of seats, and that on the memory that is left:
 * a first plan with a guess tells the seats, a second one holds what two records a seat need. */
static int plan_seats(struct aq_job *j, struct aq_err *reterr)
{
    uint64_t results = aq_min_u64(WRITER_QUEUE_BYTES, j->counts.output_bytes + AQ_MIB);
    uint64_t fixed = 2 * results + reading_bytes(j) + compressing_bytes(j);
    j->held_limit = aq_max_u64(aq_min_u64(j->held_sum, HELD_GUESS_BYTES), j->held_max);
    uint64_t guess = j->held_limit;
    j->workload.queue_bytes = fixed + guess;
    int rc = aq_engine_plan(j->g.engine, &j->workload, reterr);
    if (rc < 0)
        return rc;
    uint64_t mean = aq_div_up(j->held_sum, j->pending_valid);
    uint64_t want = aq_max_u64(2 * mean * aq_engine_seats(j->g.engine), 2 * j->held_max);
    want = aq_min_u64(want, j->held_sum);
    if (want > j->held_limit) {
        j->held_limit = want;
        j->workload.queue_bytes = fixed + want;
        rc = aq_engine_plan(j->g.engine, &j->workload, reterr);
    }
    if (rc == -ENOBUFS && j->held_limit > guess) { /* the guess fitted: fewer in flight, then */
        j->held_limit = guess;
        j->workload.queue_bytes = fixed + guess;
        rc = aq_engine_plan(j->g.engine, &j->workload, reterr);
    }
    return rc;
}

static int plan(struct aq_job *j, struct aq_err *reterr)
{
    malloc_trim(0); /* what the preflight used counts as this process's memory otherwise */
    int rc = plan_seats(j, reterr);
    j->planned = rc == 0;
    if (rc == -ENOBUFS && j->line_max > LONG_LINE_BYTES)
        aq_job_note(j, AQUIFER_WARNING,
                    "the longest input line has %.1f MB; %.1f MB of memory are kept for reading it",
                    1e-6 * (double)j->line_max, 1e-6 * (double)reading_bytes(j));
    return rc;
}

static void say(void *user, const char *text)
{
    const struct aq_job *j = user;
    aq_hooks_line(j->hooks, AQUIFER_INFO, "%s", text);
}

static void print(void *user, const char *text)
{
    const struct aq_job *j = user;
    aq_hooks_output(j->hooks, text, strlen(text));
    aq_hooks_output(j->hooks, "\n", 1);
}

/* Where the cpu has no separate device there is one side to attend on, and no word for it. */
static bool says_nothing(const struct aq_job *j, const char *key, const json_t *v)
{
    bool one_memory = strcmp(j->g.info->backend, "cpu") == 0 && !j->o->emulate_device;
    return json_is_object(v) || json_is_array(v) || (one_memory && strcmp(key, "attention") == 0);
}

static void plan_line(struct aq_buf *out, const struct aq_job *j, const json_t *plan_json)
{
    const char *key;
    char shown[160];
    json_t *v;
    aq_buf_puts(out, "plan:");
    json_object_foreach((json_t *)plan_json, key, v)
    {
        if (says_nothing(j, key, v))
            continue;
        bool placement = strcmp(key, "placement") == 0 && json_is_string(v);
        if (placement)
            aq_placement_shown(shown, json_string_value(v));
        char *text = placement ? strdup(shown)
                     : json_is_string(v)
                         ? strdup(json_string_value(v))
                         : aq_json_dump(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        aq_buf_printf(out, "%s %s %s", out->count > 5 ? "," : "", key, text ? text : "?");
        free(text);
    }
}

static void plan_lines(const struct aq_job *j, void (*line)(void *user, const char *text),
                       bool with_ledger)
{
    json_t *p = aq_engine_plan_json(j->g.engine), *item;
    size_t i;
    struct aq_buf text = {0};
    plan_line(&text, j, p);
    line((void *)j, text.data ? text.data : "");
    json_array_foreach(json_object_get(p, "ledger"), i, item)
    {
        const char *tier = json_string_value(json_object_get(item, "tier"));
        const char *purpose = json_string_value(json_object_get(item, "purpose"));
        if (!with_ledger)
            break;
        aq_buf_clear(&text);
        char size[AQ_SIZE_TEXT_MAX];
        aq_format_size(size, (uint64_t)json_integer_value(json_object_get(item, "bytes")));
        aq_buf_printf(&text, "ledger: %-8s %-24s %11s", tier ? tier : "?", purpose ? purpose : "?",
                      size);
        line((void *)j, text.data ? text.data : "");
    }
    aq_buf_close(&text);
    json_decref(p);
    p = aq_engine_predicted_json(j->g.engine);
    aq_predict_lines(p, line, (void *)j);
    json_decref(p);
}

static int dry_run(struct aq_job *j, struct aq_err *reterr)
{
    int rc = j->pending_valid ? plan(j, reterr) : 0;
    if (rc == 0 && j->planned)
        rc = aq_engine_check(j->g.engine, reterr);
    if (rc < 0)
        return rc;
    if (j->o->json) {
        json_t *doc = json_pack("{s:i, s:s, s:o, s:I, s:I, s:I}", "schema", 1, "command",
                                "generate", "preflight", aq_job_preflight_json(j), "resumed",
                                (json_int_t)j->done_before, "pending", (json_int_t)j->pending,
                                "taken_over", (json_int_t)j->begun.count.tokens);
        aq_json_put(&doc, "plan", j->planned ? aq_engine_plan_json(j->g.engine) : json_null());
        aq_json_put(&doc, "predicted",
                    j->planned ? aq_engine_predicted_json(j->g.engine) : json_null());
        return aq_hooks_json(j->hooks, doc, reterr);
    }
    aq_job_preflight_lines(j, print, j);
    char distinct[AQ_JOB_DISTINCT_TEXT_MAX];
    if (aq_job_distinct_text(distinct, j))
        print(j, distinct);
    if (j->planned)
        plan_lines(j, print, true);
    return 0;
}

/* ---- the whole ---- */

/* What lies beside the results before the first of them. */
static int begin_files(struct aq_job *j, struct aq_err *reterr)
{
    int rc = j->manifest ? aq_job_manifest_write(j, reterr) : 0;
    if (rc == 0)
        rc = aq_job_write_roster(j, reterr);
    return rc == 0 && j->sums && !j->old.found ? aq_job_begin_sums(j, reterr) : rc;
}

static int prepare_output(struct aq_job *j, struct aq_err *reterr)
{
    if (!j->output)
        return 0;
    int rc = begin_files(j, reterr);
    if (rc < 0)
        return rc;
    const struct aq_writer_opts opts = {
        .path = j->lines,
        .errors = j->errors,
        .compression = aq_job_compression(j->lines),
        .errors_compression = j->errors ? aq_job_compression(j->errors) : AQ_PLAIN,
        .sums = j->sums,
        .queue_bytes = aq_min_u64(WRITER_QUEUE_BYTES, j->counts.output_bytes + AQ_MIB),
        .disk_full_wait_s = j->o->disk_full_wait_s,
        .log = &j->log,
        .interrupted = poll_interrupted,
        .user = j,
    };
    return aq_writer_open(&j->writer, &opts, reterr);
}

/* A report may be another job's, under a name that is used again. */
static bool counts_agree(const struct aq_job *j, const json_t *preflight)
{
    static const char *const keys[] = {"records",           "valid", "sequences", "prompt_tokens",
                                       "output_tokens_max", "shard"};
    json_t *now = aq_job_preflight_json(j);
    bool agree = true;
    for (size_t i = 0; i < AQ_ARRAY_LEN(keys); i++) {
        const json_t *was = json_object_get(preflight, keys[i]),
                     *is = json_object_get(now, keys[i]);
        agree &= was ? json_equal(was, is) != 0 : !is;
    }
    json_decref(now);
    return agree;
}

/* Whether a status file is of as many records of the whole input: others may have come to it, and
 * all of them to other shards. */
static bool shard_agrees(const struct aq_job *j, const json_t *status)
{
    char text[AQ_SHARD_TEXT_MAX];
    const char *shard = json_string_value(json_object_get(status, "shard"));
    json_int_t of_records = json_integer_value(json_object_get(status, "of_records"));
    return j->shard.count ? shard && !strcmp(shard, aq_shard_text(text, j->shard)) &&
                                of_records == (json_int_t)j->whole.records
                          : !shard;
}

/* Whether a status file or report is the one of the run that finished all this: its numbers are
 * worth more than those of a run that did nothing. */
static bool tells_of_the_end(const struct aq_job *j, const char *path)
{
    json_t *o;
    if (!path || aq_json_read_file(&o, path, AQ_MIB, NULL) < 0)
        return false;
    const char *state = json_string_value(json_object_get(o, "state"));
    const json_t *total = json_object_get(o, "total");
    const json_t *preflight = json_object_get(o, "preflight");
    bool tells = state && !strcmp(state, "done") &&
                 json_integer_value(total) == (json_int_t)j->row_count &&
                 (preflight ? counts_agree(j, preflight) : shard_agrees(j, o));
    json_decref(o);
    return tells;
}

/* A shard without records: whole from the start, so that merging has something of it. */
static int empty_output(struct aq_job *j, struct aq_err *reterr)
{
    int rc = begin_files(j, reterr);
    return rc < 0 ? rc : aq_file_replace(j->output, "", 0, true, reterr);
}

static int nothing_to_do(struct aq_job *j, struct aq_err *reterr)
{
    int rc = aq_job_settle(j, reterr);
    if (rc == 0 && (j->old.manifest_anew || j->old.manifest_behind))
        rc = aq_job_manifest_write(j, reterr);
    if (rc == 0) /* --limit or a changed input may have taken records away */
        rc = aq_job_write_roster(j, reterr);
    if (rc == 0 && j->manifest && !j->old.file[AQ_JOB_RESULTS].path)
        rc = empty_output(j, reterr);
    if (rc == 0 && j->o->ordered && aq_file_size(j->part) > 0) /* all there, not yet in order */
        rc = aq_job_order(j, reterr);
    if (rc < 0)
        return rc;
    aq_job_keep_inflight(j, true);
    if (!j->row_count)
        aq_job_note(j, AQUIFER_INFO, "nothing to do: no record of the input is in this shard");
    else
        aq_job_note(j, AQUIFER_INFO, "nothing to do: all %" PRIu64 " records are in '%s'",
                    j->row_count, j->output);
    struct aq_progress progress;
    struct aq_run_view view = {.begin_s = aq_clock_s()};
    aq_progress_begin(&progress, j, view.begin_s);
    if (!tells_of_the_end(j, j->status))
        aq_progress_status(&progress, j, &view, "done");
    else if (j->o->metrics_file)
        aq_progress_metrics(&progress, j, &view, "done");
    if (j->o->report && !tells_of_the_end(j, j->o->report))
        aq_progress_write_report(j, aq_progress_report(j, &view, "done"));
    return j->o->json ? aq_hooks_json(j->hooks, aq_progress_report(j, &view, "done"), reterr) : 0;
}

static void say_end(const struct aq_job *j, const struct aq_run_view *view)
{
    double s = view->last_result_s - view->first_pass_s;
    char what[96] = "scored"; /* what is drawn then is nothing that anybody asked for */
    char more[48] = "";
    if (view->taken_over)
        snprintf(more, sizeof(more), " (and %" PRIu64 " taken over)", view->taken_over);
    if (!j->counts.scoring || j->counts.scoring < j->counts.valid)
        snprintf(what, sizeof(what), "%" PRIu64 " tokens generated%s", view->stats.generated_tokens,
                 more);
    aq_job_note(j, AQUIFER_INFO, "done: %" PRIu64 " records (%" PRIu64 " errors), %s in %.1f s%s%s",
                view->done, view->errors, what, s > 0 ? s : 0, j->output ? ", in " : "",
                j->output ? j->output : "");
}

static int run(struct aq_job *j, struct aq_err *reterr)
{
    struct aq_run_view view = {0};
    int rc = j->pending_valid ? plan(j, reterr) : 0;
    if (rc == 0)
        rc = aq_job_settle(j, reterr);
    if (rc == 0)
        rc = prepare_output(j, reterr);
    if (rc < 0)
        return rc;
    if (j->planned)
        plan_lines(j, say, false);
    rc = aq_job_run(j, &view, reterr);
    if (rc < 0)
        return rc;
    say_end(j, &view);
    if (j->o->json && j->output)
        rc = aq_hooks_json(j->hooks, aq_progress_report(j, &view, "done"), reterr);
    return rc < 0 ? rc : j->errors_before + view.errors ? EXIT_ERROR_RECORDS : 0;
}

static int phases(struct aq_job *j, struct aq_err *reterr)
{
    int rc = aq_job_preflight(j, reterr);
    if (rc < 0)
        return rc;
    j->g.rules.unknown = NULL; /* each field was counted once; records are read again later */
    if (!j->o->dry_run)
        aq_job_preflight_lines(j, say, j);
    rc = aq_job_check_counts(j, reterr);
    if (rc == 0)
        rc = aq_job_check_shard(j, reterr);
    if (rc == 0 && j->manifest)
        rc = aq_job_resume(j, reterr);
    if (rc == 0)
        rc = aq_job_find_inflight(j, reterr);
    if (rc < 0)
        return rc;
    aq_job_workload(j);
    if (j->alike_tokens)
        aq_job_note(j, AQUIFER_INFO,
                    "prompts begin alike in %" PRIu64 " of %" PRIu64 " tokens: such records run "
                    "together, and what they begin with is computed once where they meet",
                    j->alike_tokens, j->workload.prompt_sum);
    if (j->o->dry_run)
        return dry_run(j, reterr);
    char distinct[AQ_JOB_DISTINCT_TEXT_MAX];
    if (!j->text_output && aq_job_distinct_text(distinct, j))
        aq_job_note(j, AQUIFER_INFO, "%s", distinct);
    return j->pending ? run(j, reterr) : nothing_to_do(j, reterr);
}

int aq_cmd_generate(const struct aq_options *o, const struct aquifer_hooks *hooks,
                    struct aq_err *reterr)
{
    struct aq_job *j;
    int rc = job_open(&j, o, hooks, reterr);
    if (rc < 0)
        return rc;
    rc = phases(j, reterr);
    if (!j->abandoned) {
        job_close(j);
    } else { /* the engine's thread still works on it, until the process ends */
        aq_lock_close(j->lock);
        aq_lock_close(j->errors_lock);
        j->lock = j->errors_lock = NULL;
    }
    return rc;
}
