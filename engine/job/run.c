/* SPDX-License-Identifier: Apache-2.0
 * The run itself, on two threads: one drives the engine (load, feed, pass, collect), the caller's
 * own watches it (progress, interruption, hooks), so that a pass of minutes never keeps anybody
 * waiting.  A third, the writer's, appends. */
#include "engine/job/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/threads.h"
#include "engine/core/drive.h"
#include "engine/job/reorder.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WATCH_NS = 50 * 1000 * 1000, /* how often the watcher looks around */
    RELAY_BYTES_MAX = 16 << 20,  /* results waiting for hooks->output */
    RELAY_LINES_MAX = 1000,      /* log lines waiting for hooks->line */
};
#define SAFE_NS (5 * UINT64_C(1000000000)) /* that a checkpoint waits for results to be synced */
/* After this long an interrupted run no longer waits for its pass to end. */
static const double abandon_s = 15;

/* Something for the caller's thread to hand on. */
struct message {
    struct message *next;
    enum aquifer_level level;
    uint64_t row;
    size_t count;
    char bytes[];
};

struct messages {
    struct message *first, *last;
    size_t count, bytes;
};

struct aq_run {
    struct aq_job *job;
    pthread_t thread, caller;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    atomic_bool stop;

    /* under the mutex */
    struct aq_run_view view;
    struct messages lines, outputs;
    bool ended, abandoned, want_report;
    json_t *report, *memory; /* made by the engine's thread, taken by the watcher */
    int rc;
    struct aq_err err;

    /* the engine's thread */
    struct aq_run_view now; /* what it will show next */
    uint64_t next_row;      /* in turns */
    struct aq_buf state;    /* of the record that is being submitted */
    double next_keeping_s;  /* when records in flight are kept again */

    /* the watcher */
    struct aq_progress progress;
    struct aq_reorder *reorder; /* results in input order for hooks->output; NULL: as they come */
};

/* ---- messages between the threads ---- */

static bool push(struct messages *m, enum aquifer_level level, uint64_t row, const char *bytes,
                 size_t count)
{
    struct message *x = malloc(sizeof(*x) + count + 1);
    if (!x)
        return false;
    *x = (struct message){.level = level, .row = row, .count = count};
    memcpy(x->bytes, bytes, count);
    x->bytes[count] = '\0';
    if (m->last)
        m->last->next = x;
    else
        m->first = x;
    m->last = x;
    m->count++;
    m->bytes += count;
    return true;
}

static struct message *take_all(struct messages *m)
{
    struct message *first = m->first;
    *m = (struct messages){0};
    return first;
}

/* Lines of the caller's own thread go straight through. */
static void log_line(void *user, enum aq_log_level level, const char *text)
{
    static const enum aquifer_level map[] = {[AQ_LOG_WARNING] = AQUIFER_WARNING,
                                             [AQ_LOG_INFO] = AQUIFER_INFO,
                                             [AQ_LOG_DEBUG] = AQUIFER_DEBUG};
    struct aq_job *j = user;
    struct aq_run *run = j->run;
    if (!run || pthread_equal(pthread_self(), run->caller)) {
        aq_hooks_line(j->hooks, map[level], "%s", text);
        return;
    }
    pthread_mutex_lock(&run->mutex);
    if (run->lines.count < RELAY_LINES_MAX)
        push(&run->lines, map[level], 0, text, strlen(text));
    if (level == AQ_LOG_WARNING)
        snprintf(run->view.last_error, sizeof(run->view.last_error), "%s", text);
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->mutex);
}

struct aq_log aq_job_log(struct aq_job *j)
{
    return (struct aq_log){log_line, j};
}

/* ---- the engine's thread ---- */

/* Shows the watcher how things stand. */
static void publish(struct aq_run *run)
{
    run->now.in_flight = aq_flight_seated(&run->job->flight, run->now.seats);
    pthread_mutex_lock(&run->mutex);
    char last_error[sizeof(run->view.last_error)];
    memcpy(last_error, run->now.last_error[0] ? run->now.last_error : run->view.last_error,
           sizeof(last_error));
    run->view = run->now;
    memcpy(run->view.last_error, last_error, sizeof(last_error));
    run->now.last_error[0] = '\0';
    pthread_mutex_unlock(&run->mutex);
}

/* Brackets a stay in the engine.  False: the watcher has given up on it, and nothing but this run
 * may be touched any more. */
static void enter_engine(struct aq_run *run)
{
    run->now.in_pass = true;
    publish(run);
}

static bool leave_engine(struct aq_run *run)
{
    pthread_mutex_lock(&run->mutex);
    bool abandoned = run->abandoned;
    run->now.in_pass = run->view.in_pass = false;
    pthread_mutex_unlock(&run->mutex);
    return !abandoned;
}

/* Waits while much is waiting already, so that a slow reader bounds memory, too. */
static int put_output(struct aq_run *run, uint64_t row, const char *bytes, size_t count,
                      struct aq_err *reterr)
{
    pthread_mutex_lock(&run->mutex);
    while (run->outputs.bytes > RELAY_BYTES_MAX && !run->stop)
        pthread_cond_wait(&run->changed, &run->mutex);
    bool good = push(&run->outputs, AQUIFER_INFO, row, bytes, count);
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->mutex);
    return good ? 0 : aq_error_memory(reterr, "a result of %zu bytes", count);
}

/* A finished line goes to the file's writer or to the caller's thread; takes the text. */
static int put_line(struct aq_run *run, uint64_t row, struct aq_buf *text, bool error,
                    struct aq_err *reterr)
{
    size_t count = text->count;
    if (run->job->writer)
        return aq_writer_put(run->job->writer, aq_buf_take(text), count, error, reterr);
    aq_buf_put(text, "\n", 1);
    int rc = text->failed ? aq_error_memory(reterr, "a result")
                          : put_output(run, row, text->data, text->count, reterr);
    aq_buf_close(text);
    return rc;
}

static void note_error(struct aq_run *run, const struct aq_request *r)
{
    run->now.errors++;
    snprintf(run->now.last_error, sizeof(run->now.last_error), "line %" PRIu64 ": %s: %.180s",
             r->line, aq_record_code_name(r->error.code), r->error.message);
}

static int put_error(struct aq_run *run, uint64_t row, const struct aq_request *r,
                     struct aq_err *reterr)
{
    struct aq_buf text = {0};
    struct aq_job *j = run->job;
    note_error(run, r);
    run->now.done++;
    if (j->text_output) { /* nobody reads JSON there */
        aq_log_line(&j->log, AQ_LOG_WARNING, "prompt %" PRIu64 ": %s: %s", row + 1,
                    aq_record_code_name(r->error.code), r->error.message);
        return put_output(run, row, "", 0, reterr);
    }
    j->g.result_rules.created = aq_clock_unix_s();
    int rc = aq_result_format_error(&text, r, &j->g.result_rules, reterr);
    if (rc == 0)
        return put_line(run, row, &text, true, reterr);
    aq_buf_close(&text);
    return rc;
}

static int put_result(struct aq_run *run, struct aq_record *rec, struct aq_err *reterr)
{
    struct aq_buf text = {0};
    struct aq_job *j = run->job;
    const struct aq_record_list records = aq_job_records(j);
    uint64_t row = aq_record_list_index(&records, rec->request->index);
    bool error = false;
    int rc = 0;
    j->g.result_rules.created = aq_clock_unix_s();
    if (j->text_output) {
        for (uint32_t i = 0; i < rec->choice_count && rc == 0; i++) {
            aq_buf_puts(&text, i ? "\n" : "");
            rc = aq_result_text(&text, rec, i, reterr);
        }
    } else {
        rc = aq_result_format(&text, rec, &j->g.result_rules, &error, reterr);
    }
    if (error)
        note_error(run, rec->request);
    run->now.done++;
    run->now.prompt_tokens += aq_record_prompt_tokens(rec);
    if (rc == 0)
        return put_line(run, row, &text, error, reterr);
    aq_buf_close(&text);
    return rc;
}

/* The sequences of a row begin to wait (1), or no longer do (-1). */
static void wait_for(struct aq_eta_seen *s, const struct aq_row *row, int sign)
{
    if (row->sequences)
        aq_eta_wait(s, row->output_sum / row->sequences, (int64_t)sign * row->sequences);
}

static int submit_row(struct aq_run *run, uint64_t row, struct aq_err *reterr)
{
    struct aq_job *j = run->job;
    struct aq_request *r;
    int rc = aq_job_request(&r, j, row, reterr);
    if (rc < 0)
        return rc;
    if (r->error.code) {
        rc = put_error(run, row, r, reterr);
        aq_request_close(r);
        return rc;
    }
    wait_for(&run->now.seen, &j->rows[row], -1);
    uint64_t tokens = aq_job_take_inflight(j, r, &run->state);
    bool goes_on = run->state.count > 0;
    rc = aq_flight_submit(&j->flight, j->g.engine, r, &j->g.record_rules, &run->state, reterr);
    if (rc == 0 && run->state.count)
        run->now.taken_over += tokens;
    else if (rc == 0 && goes_on)
        aq_log_line(&j->log, AQ_LOG_WARNING,
                    "line %u: what '%s' kept of it does not fit the record: it begins again",
                    j->rows[row].line, j->inflight);
    return rc;
}

/* Keeps twice as many sequences waiting as a pass can seat, within the memory that was planned for:
 * where all end in one pass, those that take their seats as they turn are there already, and begin
 * with what these leave (aq_seats.left). */
static int feed(struct aq_run *run, struct aq_err *reterr)
{
    struct aq_job *j = run->job;
    while (run->next_row < j->row_count && !run->stop) {
        uint64_t at = aq_job_turn(j, run->next_row);
        const struct aq_row *row = &j->rows[at];
        bool busy = j->flight.count > 0;
        if (!row->done && !row->code && busy &&
            (aq_engine_waiting(j->g.engine) >= 2 * (uint64_t)aq_engine_seats(j->g.engine) ||
             j->flight.bytes + row->held_kib * AQ_KIB > j->held_limit))
            break;
        int rc = row->done ? 0 : submit_row(run, at, reterr);
        if (rc < 0)
            return rc;
        run->next_row++;
    }
    return 0;
}

static int sequence_ended(void *user, struct aq_sequence *s, struct aq_err *reterr)
{
    struct aq_run *run = user;
    aq_eta_end(&run->now.seen, s->token_count, s->max_tokens, s->finish != AQ_FINISH_LENGTH);
    struct aq_record *rec = aq_flight_end(&run->job->flight, s);
    if (!rec)
        return 0;
    int rc = put_result(run, rec, reterr);
    run->now.last_result_s = aq_clock_s();
    aq_record_close(rec);
    return rc;
}

/* One pass; -ECANCELED when the watcher has left in the meantime. */
static int pass(struct aq_run *run, struct aq_err *reterr)
{
    struct aq_job *j = run->job;
    const struct aq_drive drive = {.engine = j->g.engine, .user = run, .ended = sequence_ended};
    bool worked;
    run->now.pass_begin_s = aq_clock_s();
    if (run->now.first_pass_s <= 0)
        run->now.first_pass_s = run->now.pass_begin_s;
    enter_engine(run);
    int rc = aq_engine_pass(j->g.engine, &worked, reterr);
    if (!leave_engine(run))
        return -ECANCELED;
    aq_engine_stats(j->g.engine, &run->now.stats);
    if (rc < 0)
        return rc;
    rc = aq_drive_collect(&drive, reterr);
    aq_flight_know(&j->flight);
    aq_eta_look(&run->now.seen, &j->flight);
    return rc == 0 && !worked && j->flight.count ? aq_flight_stuck(&j->flight, reterr) : rc;
}

/* --checkpoint-every, between two passes.  Records that have ended leave the file, so their results
 * must be on the disk first; where they do not get there soon the file stays as it is. */
static void keep_inflight(struct aq_run *run)
{
    struct aq_writer *w = run->job->writer;
    double every_s = run->job->o->checkpoint_every_s;
    if (!run->job->inflight || every_s <= 0 || aq_clock_s() < run->next_keeping_s)
        return;
    if (!w || aq_writer_make_safe(w, SAFE_NS))
        aq_job_keep_inflight(run->job, false);
    run->next_keeping_s = aq_clock_s() + every_s;
}

static void hand_over_report(struct aq_run *run)
{
    pthread_mutex_lock(&run->mutex);
    bool want = run->want_report;
    run->want_report = false;
    pthread_mutex_unlock(&run->mutex);
    if (!want)
        return;
    json_t *report = aq_progress_report(run->job, &run->now, "running");
    pthread_mutex_lock(&run->mutex);
    json_decref(run->report);
    run->report = report;
    pthread_mutex_unlock(&run->mutex);
}

static bool is_stopped(void *user)
{
    return ((const struct aq_run *)user)->stop;
}

static int load(struct aq_run *run, struct aq_err *reterr)
{
    struct aq_job *j = run->job;
    double begin_s = aq_clock_s();
    if (j->pending_valid)
        aq_engine_stop_when(j->g.engine, is_stopped, run);
    enter_engine(run);
    int rc = j->pending_valid ? aq_engine_load(j->g.engine, reterr) : 0;
    if (!leave_engine(run))
        return -ECANCELED;
    run->now.load_s = aq_clock_s() - begin_s;
    run->now.loaded = rc == 0;
    run->now.seats = j->pending_valid ? aq_engine_seats(j->g.engine) : 0;
    if (rc < 0 || !j->pending_valid)
        return rc;
    json_t *memory = aq_engine_memory_json(j->g.engine);
    pthread_mutex_lock(&run->mutex);
    run->memory = memory;
    pthread_mutex_unlock(&run->mutex);
    return 0;
}

static int drive(struct aq_run *run, struct aq_err *reterr)
{
    int rc = load(run, reterr);
    run->next_keeping_s = aq_clock_s() + run->job->o->checkpoint_every_s;
    while (rc == 0 && !run->stop) {
        rc = feed(run, reterr);
        publish(run);
        if (rc < 0 || !run->job->flight.count)
            break;
        rc = pass(run, reterr);
        if (rc == 0) {
            hand_over_report(run);
            keep_inflight(run);
        }
    }
    return rc;
}

static void *engine_main(void *arg)
{
    struct aq_run *run = arg;
    struct aq_err err = {0};
    int rc = drive(run, &err);
    if (rc == -ECANCELED)
        return NULL;
    publish(run);
    pthread_mutex_lock(&run->mutex);
    run->ended = true;
    run->rc = rc;
    run->err = err;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->mutex);
    return NULL;
}

/* ---- the watcher ---- */

static int hand_on_outputs(struct aq_run *run, struct message *m, struct aq_err *reterr)
{
    const struct aquifer_hooks *hooks = run->job->hooks;
    int rc = 0;
    for (struct message *next; m; m = next) {
        next = m->next;
        if (run->reorder && rc == 0)
            rc = aq_reorder_put(run->reorder, m->row, m->bytes, m->count, reterr);
        else if (!run->reorder && hooks && hooks->output)
            hooks->output(hooks->user, m->bytes, m->count);
        free(m);
    }
    return rc;
}

/* Hands on what the other threads left; *ret_view is how things stand. */
static int hand_on(struct aq_run *run, struct aq_run_view *ret_view, struct aq_err *reterr)
{
    pthread_mutex_lock(&run->mutex);
    struct message *lines = take_all(&run->lines), *outputs = take_all(&run->outputs);
    json_t *report = run->report;
    run->report = NULL;
    if (run->memory) {
        json_decref(run->progress.memory);
        run->progress.memory = run->memory;
        run->memory = NULL;
    }
    *ret_view = run->view;
    if (run->job->writer) /* only what is in the file counts as done */
        ret_view->done = aq_writer_lines(run->job->writer);
    pthread_cond_broadcast(&run->changed); /* there is room for outputs again */
    pthread_mutex_unlock(&run->mutex);
    for (struct message *next; lines; lines = next) {
        next = lines->next;
        aq_hooks_line(run->job->hooks, lines->level, "%s", lines->bytes);
        free(lines);
    }
    if (report)
        aq_progress_write_report(run->job, report);
    return hand_on_outputs(run, outputs, reterr);
}

static void tick(struct aq_run *run, const struct aq_run_view *view)
{
    bool report;
    aq_progress_tick(&run->progress, run->job, view, aq_clock_s(), &report);
    if (report && run->job->o->report && run->job->planned) {
        pthread_mutex_lock(&run->mutex);
        run->want_report = true;
        pthread_mutex_unlock(&run->mutex);
    }
}

/* True when the engine's thread has ended; waits a moment for it. */
static bool wait_ended(struct aq_run *run)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += WATCH_NS;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&run->mutex);
    if (!run->ended && !run->lines.first && !run->outputs.first)
        pthread_cond_timedwait(&run->changed, &run->mutex, &t);
    bool ended = run->ended;
    pthread_mutex_unlock(&run->mutex);
    return ended;
}

static void stop(struct aq_run *run)
{
    run->stop = true;
    if (run->job->writer)
        aq_writer_hurry(run->job->writer);
    pthread_mutex_lock(&run->mutex);
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->mutex);
}

/* Leaves the engine's thread to itself if it is inside the engine right now. */
static bool abandon(struct aq_run *run)
{
    pthread_mutex_lock(&run->mutex);
    run->abandoned = run->view.in_pass && !run->ended;
    bool abandoned = run->abandoned;
    pthread_mutex_unlock(&run->mutex);
    return abandoned;
}

/* Until the engine's thread has ended or is abandoned. */
static int watch(struct aq_run *run, struct aq_run_view *ret_view, bool *ret_interrupted,
                 struct aq_err *reterr)
{
    double stopped_s = 0;
    int rc = 0;
    for (;;) {
        bool ended = wait_ended(run);
        int rc2 = hand_on(run, ret_view, rc < 0 ? NULL : reterr);
        rc = rc < 0 ? rc : rc2;
        if (ended)
            return rc;
        tick(run, ret_view);
        bool interrupted = aq_job_interrupted(run->job);
        if (!stopped_s && (interrupted || rc < 0)) {
            *ret_interrupted = interrupted;
            stopped_s = aq_clock_s();
            stop(run);
            if (interrupted)
                aq_job_note(run->job, AQUIFER_WARNING,
                            "interrupted: stopping after this pass, within 20 s");
        }
        if (stopped_s && aq_clock_s() - stopped_s > abandon_s && abandon(run)) {
            run->job->abandoned = true;
            return rc;
        }
    }
}

/* ---- begin and end ---- */

static void run_close(struct aq_run *run)
{
    if (!run)
        return;
    struct aq_run_view view;
    hand_on(run, &view, NULL);
    aq_reorder_close(run->reorder);
    aq_buf_close(&run->state);
    json_decref(run->progress.memory);
    pthread_mutex_destroy(&run->mutex);
    pthread_cond_destroy(&run->changed);
    free(run);
}

static void reordered_output(void *user, const char *bytes, size_t count)
{
    const struct aq_job *j = user;
    if (j->hooks && j->hooks->output)
        j->hooks->output(j->hooks->user, bytes, count);
}

static int run_open(struct aq_run **ret, struct aq_job *j, struct aq_err *reterr)
{
    struct aq_run *run = calloc(1, sizeof(*run));
    if (!run)
        return aq_error_memory(reterr, "run");
    run->job = j;
    run->caller = pthread_self();
    pthread_mutex_init(&run->mutex, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&run->changed, &attr);
    pthread_condattr_destroy(&attr);
    for (uint64_t i = 0; i < j->row_count; i++)
        if (!j->rows[i].done && !j->rows[i].code)
            wait_for(&run->now.seen, &j->rows[i], 1);
    run->now.begin_s = run->view.begin_s = aq_clock_s();
    aq_progress_begin(&run->progress, j, run->now.begin_s);
    int rc = 0;
    if (!j->writer && (j->text_output || j->o->ordered))
        rc = aq_reorder_open(&run->reorder, j->row_count, reordered_output, j, reterr);
    if (rc < 0)
        run_close(run);
    else
        *ret = run;
    return rc;
}

/* Until what is computed is written: a reader may take its time, but whoever interrupts does not
 * wait for it.  Returns whether somebody has interrupted. */
static bool write_out(struct aq_run *run, struct aq_run_view *view, bool interrupted)
{
    struct aq_writer *w = run->job->writer;
    while (w && !run->job->abandoned && !aq_writer_idle(w, WATCH_NS)) {
        hand_on(run, view, NULL);
        tick(run, view);
        if (!interrupted && aq_job_interrupted(run->job)) {
            interrupted = true;
            aq_writer_hurry(w);
            aq_job_note(run->job, AQUIFER_WARNING,
                        "interrupted: stopping with what is written within %d s",
                        AQ_WRITER_HURRY_S);
        }
    }
    return interrupted;
}

static void say_kept(const struct aq_job *j, struct aq_inflight_count kept)
{
    if (kept.records)
        aq_job_note(j, AQUIFER_INFO,
                    "%" PRIu64 " tokens of %" PRIu64 " records in flight are kept in '%s'",
                    kept.tokens, kept.records, j->inflight);
}

/* The end of the run as it will be told: how it went, and that lines are where they belong. */
static int finish(struct aq_run *run, struct aq_run_view *view, int rc, bool interrupted,
                  struct aq_err *reterr)
{
    struct aq_job *j = run->job;
    struct aq_err err = {0};
    if (rc == 0 && !j->abandoned && run->rc < 0) {
        rc = run->rc;
        if (reterr)
            *reterr = run->err;
    }
    interrupted = write_out(run, view, interrupted);
    int rc2 = aq_writer_close(j->writer, j->writer ? &view->done : NULL, &err);
    j->writer = NULL;
    if (rc2 < 0 && rc == 0) {
        rc = rc2;
        if (reterr)
            *reterr = err;
    }
    bool whole = view->done == j->pending;
    say_kept(j, aq_job_keep_inflight(j, whole));
    bool gave_up = aq_file_is_full(rc) || rc == -EINTR; /* told to wait no longer */
    if (interrupted && (rc == 0 || gave_up) && !whole)
        rc =
            aq_error(reterr, -EINTR, "interrupted: %" PRIu64 " of %" PRIu64 " records are done; %s",
                     j->done_before + view->done, j->row_count,
                     j->manifest ? "the same command goes on"
                                 : "without an output file nothing is kept to go on from");
    return rc;
}

int aq_job_run(struct aq_job *j, struct aq_run_view *ret_view, struct aq_err *reterr)
{
    struct aq_run *run;
    int rc = run_open(&run, j, reterr);
    if (rc < 0)
        return rc;
    j->run = run;
    aq_progress_status(&run->progress, j, &run->view, "loading");
    int failed = pthread_create(&run->thread, NULL, engine_main, run);
    if (failed) {
        j->run = NULL;
        run_close(run);
        return aq_thread_error(reterr, "the engine's thread", failed);
    }
    bool interrupted = false;
    rc = watch(run, ret_view, &interrupted, reterr);
    if (j->abandoned)
        pthread_detach(run->thread);
    else
        pthread_join(run->thread, NULL);
    rc = finish(run, ret_view, rc, interrupted, reterr);
    if (rc == 0 && !j->abandoned && j->output && j->o->ordered) /* before anyone hears "done" */
        rc = aq_job_order(j, reterr);
    const char *state = rc == 0 ? "done" : rc == -EINTR ? "interrupted" : "failed";
    if (rc < 0 && rc != -EINTR && reterr)
        snprintf(ret_view->last_error, sizeof(ret_view->last_error), "%.255s", reterr->text);
    aq_progress_status(&run->progress, j, ret_view, state);
    if (!j->abandoned) {
        if (j->o->report && ret_view->loaded)
            aq_progress_write_report(j, aq_progress_report(j, ret_view, state));
        j->run = NULL;
        run_close(run);
    }
    return rc;
}
