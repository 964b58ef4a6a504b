/* SPDX-License-Identifier: Apache-2.0
 * engine/job/job.h - one run of `generate`, shared by the files that make it up:
 *   generate.c   the phases, in order (engine/commands)
 *   preflight.c  every line parsed and counted before weights are read
 *   distinct.c   the order that they run in, and what their prompts have in common
 *   shard.c      the share of the records that this run has
 *   output.c     where results go
 *   files.c      what lies beside them
 *   lines.c      the lines of a result file
 *   resume.c     what an existing output already holds
 *   settle.c     repair, retries, what is set aside
 *   order.c      results in input order
 *   goes_on.c    records that were in flight when an earlier run ended
 *   rewritten.c  files of results that are written anew
 *   patience.c   steps of these two on a disk that is full
 *   manifest.c   the values a resumed run must agree with
 *   run.c        the engine's thread, and the caller's thread that watches it
 *   progress.c   what is told of the run, and when: status file, report
 *   progress_line.c  its lines
 *   metrics.c    the same for Prometheus
 *   eta.c        the time that is left
 * Nobody else includes it. */
#ifndef AQ_ENGINE_JOB_JOB_H
#define AQ_ENGINE_JOB_JOB_H

#include "engine/chat/chat.h"
#include "engine/core/opts_from.h"
#include "engine/hooks.h"
#include "engine/job/distinct.h"
#include "engine/job/eta.h"
#include "engine/job/files.h"
#include "engine/job/flight.h"
#include "engine/job/generator.h"
#include "engine/job/inflight.h"
#include "engine/job/line_walk.h"
#include "engine/job/lock.h"
#include "engine/job/record_list.h"
#include "engine/job/sums.h"
#include "engine/job/writer.h"
#include "engine/options/shard.h"
#include "engine/records/input.h"
#include "engine/records/record.h"
#include "engine/records/result.h"

/* The memory of a record between preflight and its turn. */
struct aq_row {
    struct aq_line_place place;
    uint32_t line, index; /* of the whole input, as in results */
    uint64_t id_hash;     /* of its id, or of its index where it has none */
    uint64_t key;
    uint32_t prompt_max, total_max, new_max; /* of its sequences, tokens */
    uint32_t prompt_sum, output_sum;
    uint32_t shared;   /* aq_distinct_within */
    uint32_t held_kib; /* memory while it is in flight */
    uint16_t sequences;
    uint8_t form, code; /* enum aq_form, enum aq_record_code */
    bool has_id;        /* false: not in the table of ids (engine/records/request.h) */
    bool done;          /* the output holds it already */
    bool retried;       /* the output holds an error of it, which is to be tried again */
    bool prompt_logprobs;
};

struct aq_job_counts {
    uint64_t records, valid;
    uint64_t form[AQ_FORM_COUNT], code[AQ_RECORD_CODE_COUNT];
    uint64_t sequences, prompt_tokens, output_tokens; /* of valid ones; output: at most */
    uint64_t scored;        /* valid ones that want log-probabilities of their prompts */
    uint64_t scoring;       /* valid ones that score what they give */
    uint64_t continuations; /* theirs, or windows of their texts */
    uint64_t fed;           /* continuations and windows that are fed token by token */
    uint64_t bos_twice;     /* prompts of valid ones that began with BOS and got another */
    uint64_t chats;         /* valid ones that are conversations */
    uint64_t other_models;  /* valid ones that name another model than the one that answers */
    uint32_t prompt_max;
    uint64_t output_bytes; /* of all results, about, at most */
};

/* The first bad record of each code, to show. */
enum { AQ_JOB_SHOWN_ERRORS = AQ_RECORD_CODE_COUNT };
struct aq_job_shown {
    uint64_t line;
    enum aq_record_code code;
    char message[200];
};

/* The files that have lines of results. */
enum aq_job_file {
    AQ_JOB_RESULTS, /* FILE, or FILE.part */
    AQ_JOB_ERRORS,  /* --errors */
    AQ_JOB_FILES
};

/* A line that will be set aside, to show. */
struct aq_job_suspect {
    const char *path;
    uint64_t number, offset, count;
    bool unread; /* it is no result */
    bool member; /* it is bytes of a compressed file that cannot be unpacked */
};
enum { AQ_JOB_SHOWN_SUSPECTS = 5 };

/* A file with lines that earlier runs left. */
struct aq_job_old_file {
    const char *path; /* NULL: there is none, or it is empty */
    struct aq_job_walk walk;
    uint64_t unread, suspects, retried, stale; /* lines that will be taken out, as below */
};

/* All of them. */
struct aq_job_old {
    bool found; /* there are any */
    struct aq_job_old_file file[AQ_JOB_FILES];
    bool both; /* FILE and FILE.part hold results, and the one of `file` has every record */
    struct aq_sums *sums; /* of all lines; NULL: not looked yet */
    bool manifest_anew;   /* the one that is there is not believed */
    bool manifest_behind; /* it tells of an input, or a file of errors, that was before */
    bool sums_expected;   /* the manifest says that FILE.sums is there */
    bool sums_there;
    uint64_t sums_damaged; /* lines of it */
    /* Results without a sum are new where every sum has its line, or theirs may have become
     * illegible: they are added to the sums.  Else they are suspect, and set aside; as are, where
     * there are sums, lines that cannot be read (unread). */
    bool suspicious;
    uint64_t added, suspects, unread; /* unread: damaged members of compressed files, too */
    uint64_t members;                 /* these alone */
    struct aq_job_suspect shown[AQ_JOB_SHOWN_SUSPECTS];
    uint32_t shown_count;
    bool input_changed; /* with the user's leave: lines of no record are stale, and taken out */
    uint64_t stale;
    uint64_t retried;  /* error records to be taken out and tried again */
    uint64_t next_row; /* behind the record of the last line */
    bool stray, mixed; /* a line of no record was seen; lines are not in input order */
};

/* An input as the manifest has it. */
struct aq_job_input {
    bool known;
    uint64_t bytes, hash;
};

struct aq_job {
    const struct aq_options *o;
    const struct aquifer_hooks *hooks;
    struct aq_log log;

    struct aq_generator g;
    struct {
        char chat_time[AQ_CHAT_TIME_BYTES], isa[16];
        struct aq_job_input input; /* with --limit, behind which nobody looks */
        struct {
            char hash[20], time[AQ_CHAT_TIME_BYTES];
        } chat_template; /* of results, while this run has no conversation */
    } kept;              /* of an earlier run that is gone on with; empty: nothing */

    struct aq_input *input;
    struct aq_row *rows;
    uint64_t row_count, row_capacity;
    struct aq_id_table ids; /* of the rows */
    struct aq_shard shard;  /* rows, counts and what follows from them are of its records */
    struct aq_job_counts counts;
    struct {
        uint64_t records, valid, chats;
        struct aq_job_shown first_bad;
    } whole;                    /* of the input before it is divided: every shard judges it alike */
    uint64_t *prompt_histogram; /* [context + 1]: valid prompts by tokens */
    struct aq_job_shown shown[AQ_JOB_SHOWN_ERRORS];
    uint32_t shown_count;
    struct {
        uint64_t line;
        char name[80];
    } other_model; /* the first of them */

    struct aq_output_files files; /* all NULL when results go to hooks->output */
    /* Of these; NULL for streams, but for output. */
    const char *output, *part, *manifest, *status, *sums, *damaged, *stale, *roster, *inflight;
    bool stream_output; /* a device or pipe: no resume, no status */
    char *errors;       /* --errors; NULL: error records are among the results */
    const char *lines;  /* where lines are appended: output or part */
    struct aq_lock *lock, *errors_lock;
    struct aq_writer *writer;
    struct aq_job_old old;
    uint64_t done_before, errors_before; /* records the output held at the start */
    uint64_t stray_lines;                /* lines that belong to no record of this input */
    uint64_t pending, pending_valid;     /* records still to do */
    struct aq_workload workload;         /* of the pending ones */
    struct aq_lengths lengths;           /* what the workload points to */
    struct aq_alike *alike;              /* of the rows; NULL: not asked for */
    uint64_t *turn;              /* [row_count] rows in the order they run; NULL: as they are */
    uint64_t alike_tokens;       /* of pending prompts: those that others begin with as well */
    uint64_t held_max, held_sum; /* bytes in flight: largest pending record, all of them */
    uint64_t held_limit;         /* bytes of records in flight and waiting */
    uint64_t line_max;           /* bytes of the longest input line */
    bool planned, abandoned;     /* abandoned: the engine's thread still uses all this */
    bool text_output;            /* --prompt without --output: texts, no JSON */

    struct aq_flight flight; /* closed after the engine */
    struct {
        uint64_t values;                /* aq_job_values_hash */
        struct aq_inflight *file;       /* of an earlier run; NULL: nothing to go on from */
        struct aq_inflight_count count; /* of records that are still to be done */
    } begun;

    struct aq_run *run; /* run.c; NULL when nothing runs */
};

enum { AQ_LAST_ERROR_BYTES = 256 };

/* The progress of the running job, as the watching thread sees it. */
struct aq_run_view {
    bool loaded, in_pass;
    double load_s;
    double begin_s, pass_begin_s, first_pass_s, last_result_s; /* clock; 0: not yet */
    struct aq_engine_stats stats;                              /* as of the last pass */
    uint64_t done, errors, in_flight;                          /* records of this run */
    uint64_t prompt_tokens;                                    /* of the records that are done */
    uint64_t taken_over; /* tokens of an earlier run that sequences went on from */
    uint32_t seats;
    struct aq_eta_seen seen; /* of its sequences */
    char last_error[AQ_LAST_ERROR_BYTES];
};

static inline bool aq_job_interrupted(const struct aq_job *j)
{
    return aq_hooks_interrupted((void *)j->hooks);
}
/* Whether this run has the record of a row; always, when it is no shard. */
static inline bool aq_job_has(const struct aq_job *j, const struct aq_row *row)
{
    return !j->shard.count || aq_shard_of(row->id_hash, row->key, j->shard.count) == j->shard.index;
}
/* The row whose turn comes at place i. */
static inline uint64_t aq_job_turn(const struct aq_job *j, uint64_t i)
{
    return j->turn ? j->turn[i] : i;
}
/* A word that goes with a number. */
static inline const char *aq_job_plural(uint64_t count, const char *one, const char *more)
{
    return count == 1 ? one : more;
}
/* A note for the user; quiet runs only hear warnings and errors. */
void aq_job_note(const struct aq_job *j, enum aquifer_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

const char *aq_job_bos_name(enum aq_bos bos);
const char *aq_job_overlong_name(enum aq_overlong overlong);
/* Why this device: what was asked for, or what `auto` found. */
const char *aq_job_device_reason(const struct aq_job *j);

/* ---- preflight.c ---- */
/* Reads the whole input into rows and counts. */
int aq_job_preflight(struct aq_job *j, struct aq_err *reterr);
/* The request of a row, read again. */
int aq_job_request(struct aq_request **ret, struct aq_job *j, uint64_t row, struct aq_err *reterr);
/* The rows, to look for one. */
struct aq_record_list aq_job_records(const struct aq_job *j);
/* -EINVAL when there is nothing valid, too much is invalid, or --strict meets an invalid record. */
int aq_job_check_counts(const struct aq_job *j, struct aq_err *reterr);
/* Bounds over the rows that are not done, into j->workload and j->pending. */
void aq_job_workload(struct aq_job *j);
/* Free space where the output lies; UINT64_MAX: unknown. */
uint64_t aq_job_free_bytes(const struct aq_job *j);
/* How many tokens of the pending prompts are distinct; false: all are, as far as is known. */
enum { AQ_JOB_DISTINCT_TEXT_MAX = 160 };
bool aq_job_distinct_text(char text[AQ_JOB_DISTINCT_TEXT_MAX], const struct aq_job *j);
json_t *aq_job_preflight_json(const struct aq_job *j);
void aq_job_preflight_lines(const struct aq_job *j, void (*line)(void *user, const char *text),
                            void *user);

/* ---- manifest.c ---- */
/* j->kept: what chat templates took for the present time in an earlier run, and its instruction
 * set, which a run that goes on takes, too: before the engine is opened and records are read. */
void aq_job_manifest_keep(struct aq_job *j);
/* The manifest of an earlier run must agree with this run; -EINVAL carries the table of
 * differences. */
int aq_job_manifest_check(struct aq_job *j, struct aq_err *reterr);
int aq_job_manifest_write(struct aq_job *j, struct aq_err *reterr);
/* A hash of the values that the tokens of a record depend on beside the record itself. */
int aq_job_values_hash(const struct aq_job *j, uint64_t *ret, struct aq_err *reterr);

/* ---- output.c ---- */
/* Names, checks and locks the output. */
int aq_job_open_output(struct aq_job *j, struct aq_err *reterr);
/* How a file of results is compressed: as its name says, or that of which it is the ".part". */
enum aq_compression aq_job_compression(const char *path);
/* The size of a file of results; 0 also for a compressed one without a line.  -errno. */
int64_t aq_job_file_bytes(const char *path);

/* ---- resume.c ---- */
/* Reads what earlier runs left, and marks its rows as done.  Changes nothing. */
int aq_job_resume(struct aq_job *j, struct aq_err *reterr);

/* ---- settle.c ---- */
/* Makes what earlier runs left ready to be gone on with: repaired, without the errors to be tried
 * again, at the place where lines are appended; or sets it aside for --overwrite. */
int aq_job_settle(struct aq_job *j, struct aq_err *reterr);
/* An empty FILE.sums, where no results are gone on with. */
int aq_job_begin_sums(struct aq_job *j, struct aq_err *reterr);

/* ---- shard.c ---- */
/* What a run of a shard must have beside the records: -EINVAL where shards would not fit together.
 * After the preflight. */
int aq_job_check_shard(const struct aq_job *j, struct aq_err *reterr);
/* FILE.records, by which merging knows what the shard's results must hold.  Nothing without a
 * shard, or without files. */
int aq_job_write_roster(const struct aq_job *j, struct aq_err *reterr);

/* ---- goes_on.c ---- */
/* Looks into FILE.inflight for records that are still to be done; what is wrong with it is a
 * warning.  After aq_job_resume. */
int aq_job_find_inflight(struct aq_job *j, struct aq_err *reterr);
/* The state that a row goes on from, if there is one; else `state` is empty.  Returns its
 * tokens. */
uint64_t aq_job_take_inflight(struct aq_job *j, const struct aq_request *r, struct aq_buf *state);
/* Writes FILE.inflight, or removes it (over: nothing is left to be done, and nothing behind a limit
 * is kept for later); a failure is a warning.
 * Returns what is kept.  On the engine's thread between passes, or when that has ended or is
 * abandoned. */
struct aq_inflight_count aq_job_keep_inflight(const struct aq_job *j, bool over);

/* ---- patience.c ---- */
/* A step that writes and can be begun again. */
typedef int aq_job_step_fn(struct aq_job *j, void *user, struct aq_err *reterr);
/* Does it; for --disk-full-wait again and again while the disk is full.  bytes: what it takes,
 * about. */
int aq_job_patiently(struct aq_job *j, aq_job_step_fn *step, void *user, uint64_t bytes,
                     struct aq_err *reterr);

/* ---- order.c ---- */
/* Puts FILE.part into input order as FILE. */
int aq_job_order(struct aq_job *j, struct aq_err *reterr);

/* ---- progress.c ---- */
struct aq_progress {
    double begin_s, next_line_s, next_bar_s, next_status_s, next_report_s;
    int64_t begin_unix_s;
    uint32_t lines;
    bool status_failed, metrics_failed; /* said once */
    json_t *memory;                     /* of the engine, once loaded */
};
void aq_progress_begin(struct aq_progress *p, const struct aq_job *j, double now_s);
/* Lines and status file as they fall due.  *ret_report: a report is due as well. */
void aq_progress_tick(struct aq_progress *p, const struct aq_job *j, const struct aq_run_view *view,
                      double now_s, bool *ret_report);
/* FILE.status.json and --metrics-file; a failure is a warning. */
void aq_progress_status(struct aq_progress *p, const struct aq_job *j,
                        const struct aq_run_view *view, const char *state);
/* The report of the run so far.  On the engine's thread, or when that has ended. */
json_t *aq_progress_report(const struct aq_job *j, const struct aq_run_view *view,
                           const char *state);
/* Writes --report; a failure is a warning.  Takes the reference. */
void aq_progress_write_report(const struct aq_job *j, json_t *report);

/* ---- metrics.c ---- */
/* Memory by tier, as of now: null before the engine is loaded, NULL: out of memory.  New
 * reference. */
json_t *aq_progress_memory(const struct aq_progress *p);
/* --metrics-file; a failure is a warning, once. */
void aq_progress_metrics(struct aq_progress *p, const struct aq_job *j,
                         const struct aq_run_view *view, const char *state);

/* ---- eta.c ---- */
double aq_view_gen_tok_s(const struct aq_run_view *view, double now_s);
double aq_view_pass_s(const struct aq_run_view *view); /* mean */
/* Seconds until the end; below 0 when nothing can be said yet. */
double aq_progress_eta_s(const struct aq_job *j, const struct aq_run_view *view, double now_s);

/* ---- progress_line.c ---- */
/* One line of text for the state of things. */
void aq_progress_text(struct aq_buf *out, const struct aq_job *j, const struct aq_run_view *view,
                      double now_s);
/* The same behind a bar, in so many columns. */
void aq_progress_bar(struct aq_buf *out, const struct aq_job *j, const struct aq_run_view *view,
                     double now_s, size_t columns);

/* ---- run.c ---- */
/* A log for the engine and the writer, whose lines reach hooks->line on the caller's thread. */
struct aq_log aq_job_log(struct aq_job *j);
/* Loads, runs all pending rows, writes their results.  Returns 0 or -Exxx; in both cases what was
 * finished is in the output. */
int aq_job_run(struct aq_job *j, struct aq_run_view *ret_view, struct aq_err *reterr);

#endif
