/* SPDX-License-Identifier: Apache-2.0
 * aquifer eval: the mean loss of a text under the engine as it really decodes.  Windows of P + G
 * tokens are cut from the text; P tokens are prefilled, then the next G are fed one at a time and
 * scored; once, or once for each combination of a sweep, and before that once more with the full
 * cache where it is to be compared. */
#include "engine/commands/commands.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/paths.h"
#include "engine/core/drive.h"
#include "engine/core/report.h"
#include "engine/measure/eval_compare.h"
#include "engine/measure/eval_sweep.h"
#include "engine/measure/eval_windows.h"
#include "engine/options/kv.h"
#include "policy/kv_policy.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct eval {
    const struct aq_options *o;
    const struct aquifer_hooks *hooks;
    struct aq_log log;
    struct aq_eval_windows w;
    struct eval_watch *watch;        /* [windows] */
    double *nll, *full_nll;          /* [windows] sums of this run, and of the full cache's */
    double *delta;                   /* workspace */
    struct aq_eval_compare *compare; /* NULL: nobody compares */
    uint64_t compare_bytes;
    json_t *head; /* what all runs have in common */
};

struct eval_watch {
    struct aq_eval_compare *compare;
    uint32_t window;
    bool keep;
};

static void on_logits(struct aq_sequence *s, uint32_t step, uint32_t worker, const float *logits,
                      const struct aq_logits_stat *stat)
{
    const struct eval_watch *w = s->user;
    if (w->keep)
        aq_eval_compare_keep(w->compare, w->window, step, logits, stat);
    else
        aq_eval_compare_row(w->compare, w->window, step, worker, logits, stat);
}

/* ---- one run ----------------------------------------------------------------------------- */

/* One run of all windows. */
struct windows_run {
    struct eval *v;
    struct aq_engine *engine;
    const char *what; /* which run, for lines of progress; "": the only one */
    uint32_t next, done;
    double noted_s; /* when progress was told last */
};

static int before_pass(void *user, struct aq_err *reterr)
{
    struct windows_run *run = user;
    struct eval *v = run->v;
    const struct aquifer_hooks *hooks = v->hooks;
    int rc = v->compare ? aq_eval_compare_check(v->compare, reterr) : 0;
    if (rc < 0)
        return rc;
    if (aq_hooks_interrupted((void *)hooks))
        return aq_error(reterr, -EINTR, "eval: interrupted after %u of %u windows", run->done,
                        v->w.count);
    if (aq_clock_s() - run->noted_s > 10) {
        run->noted_s = aq_clock_s();
        aq_hooks_line(hooks, AQUIFER_PROGRESS, "eval: %s%s%u of %u windows", run->what,
                      *run->what ? ": " : "", run->done, v->w.count);
    }
    while (run->next < v->w.count && aq_engine_waiting(run->engine) < aq_engine_seats(run->engine))
        aq_engine_submit(run->engine, &v->w.sequence[run->next++]);
    return 0;
}

static int window_ended(void *user, struct aq_sequence *s, struct aq_err *reterr)
{
    struct windows_run *run = user;
    run->done++;
    return s->finish == AQ_FINISH_ERROR ? aq_error(reterr, -ENOEXEC, "eval: logits are not finite")
                                        : 0;
}

static int run_windows(struct eval *v, struct aq_engine *e, const char *what, struct aq_err *reterr)
{
    struct windows_run run = {.v = v, .engine = e, .what = what, .noted_s = aq_clock_s()};
    const struct aq_drive drive = {e, &run, before_pass, window_ended};
    int rc = aq_drive_all(&drive, reterr);
    return rc < 0 || !v->compare ? rc : aq_eval_compare_check(v->compare, reterr);
}

static int plan_and_load(struct eval *v, struct aq_engine *e, bool dry_run, struct aq_err *reterr)
{
    const struct aq_eval_windows *w = &v->w;
    struct aq_workload work = {
        .sequences = w->count,
        .prompt_max = aq_eval_windows_prompt(w),
        .total_max = w->stride,
        .prompt_logprobs = w->prompt_tokens == 0,
        .queue_bytes = v->compare_bytes +
                       (uint64_t)w->count *
                           (w->stride * 8ull + w->score_tokens * 8ull + sizeof(struct aq_sequence)),
    };
    int rc = aq_engine_plan(e, &work, reterr);
    if (rc < 0 || dry_run)
        return rc;
    aq_engine_stop_when(e, aq_hooks_interrupted, (void *)v->hooks);
    return aq_engine_load(e, reterr);
}

/* The last token's key is never computed. */
static uint32_t new_tokens(const struct aq_eval_windows *w)
{
    return w->prompt_tokens ? w->score_tokens : 0;
}

static void set_mean(json_t **o, const char *name, struct aq_eval_mean m)
{
    char se[64];
    snprintf(se, sizeof(se), "%s_se", name);
    aq_json_put(o, name, aq_json_real(m.mean));
    aq_json_put(o, se, aq_json_real(m.se));
}

static void add_distances(const struct eval *v, json_t **o)
{
    const struct aq_eval_windows *w = &v->w;
    uint32_t n = aq_eval_windows_scored(w), agreed = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        v->delta[i] = v->nll[i] - v->full_nll[i];
        agreed += aq_eval_compare_agreed(v->compare)[i];
    }
    set_mean(o, "delta_nll", aq_eval_mean(v->delta, w->count, n));
    set_mean(o, "kl_to_full", aq_eval_mean(aq_eval_compare_kl(v->compare), w->count, n));
    aq_json_put(o, "top1_agreement", json_real((double)agreed / ((double)w->count * (double)n)));
}

/* What layers that differ keep of a window's prompt, from the first layer on. */
static json_t *kept_json(const struct aq_kv_policy *p, uint32_t prompt, uint32_t fed,
                         uint32_t layers)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < layers; i++) {
        struct aq_kv_limits l;
        aq_kv_policy_limits(&l, p, prompt, fed, i, layers);
        aq_json_add(&list, json_integer(aq_kv_limits_held(&l, prompt, prompt)));
    }
    return list;
}

/* The policy, and what it comes to in windows of this length. */
static json_t *policy_json(const struct aq_kv_policy *p, const struct aq_kv_limits *l)
{
    json_t *o = aq_kv_policy_json(p), *slots;
    if (!aq_kv_policy_drops(p))
        return o;
    slots = json_pack("{s:I, s:I, s:I, s:I}", "all", (json_int_t)l->slots, "heavy",
                      (json_int_t)l->heavy_prompt, "recent", (json_int_t)l->recent_prompt, "sinks",
                      (json_int_t)l->sinks);
    if (l->shared)
        aq_json_put(&slots, "floor", json_integer(l->floor_prompt));
    aq_json_put(&o, "slots", slots);
    return o;
}

/* Slots that decode rows attend, the same in all heads (or on average) and windows of text. */
static void add_slots(const struct eval *v, const struct aq_engine *e, json_t **o)
{
    const struct aq_kv_policy *p = &aq_engine_info(e)->kv;
    uint32_t prompt = aq_eval_windows_prompt(&v->w), fed = new_tokens(&v->w);
    uint32_t layers = aq_engine_info(e)->layers;
    struct aq_kv_policy even = *p; /* of the nominal budget, which layers may share unevenly */
    struct aq_kv_limits l;
    even.layers = AQ_KV_LAYERS_UNIFORM;
    aq_kv_policy_limits(&l, &even, prompt, fed, 0, layers);
    uint32_t first = fed > 1 ? prompt + 1 : prompt, end = prompt + (fed > 1 ? fed : 1);
    double sum = 0, read = 0;
    for (uint32_t seen = first; seen < end; seen++) {
        struct aq_engine_held held = aq_engine_held(e, prompt, fed, seen);
        sum += held.slots;
        read += held.read;
    }
    struct aq_engine_held last = aq_engine_held(e, prompt, fed, end - 1);
    json_t *nominal = aq_kv_policy_profiled(p) ? json_string("by head")
                      : aq_kv_policy_drops(p)  ? json_integer(l.slots)
                                               : json_string("all");
    aq_json_put(o, "kept_slots",
                json_pack("{s:o, s:f, s:i}", "nominal", nominal, "mean", sum / (end - first), "max",
                          (int)last.slots_max));
    /* Where each head has a rule, that is the most that heads may hold; what they held: */
    aq_report_add_rules(o, e);
    if (p->read)
        aq_json_put(o, "read_slots",
                    json_pack("{s:i, s:f}", "nominal", (int)p->read, "mean", read / (end - first)));
    aq_json_put(o, "kv_bytes", json_integer((json_int_t)last.bytes));
    json_t *policy = policy_json(p, &l);
    if (p->layers != AQ_KV_LAYERS_UNIFORM)
        aq_json_put(&policy, "kept_by_layer", kept_json(p, prompt, fed, layers));
    aq_json_put(o, "policy", policy);
    aq_json_put(o, "no_effect", json_boolean(!last.drops && !last.chooses));
}

static json_t *run_json(struct eval *v, const struct aq_engine *e, bool compared, double seconds)
{
    const struct aq_engine_info *info = aq_engine_info(e);
    struct aq_eval_mean nll = aq_eval_mean(v->nll, v->w.count, aq_eval_windows_scored(&v->w));
    json_t *o = json_object(), *lossy = json_array();
    for (uint32_t i = 0; i < info->lossy_count; i++)
        aq_json_add(&lossy, aq_json_string(info->lossy[i]));
    set_mean(&o, "nll", nll);
    aq_json_put(&o, "perplexity", aq_json_real(exp(nll.mean)));
    if (compared)
        add_distances(v, &o);
    add_slots(v, e, &o);
    aq_json_put(&o, "compute", json_string(aq_dtype_name(info->compute)));
    aq_json_put(&o, "weight_format", json_string(aq_dtype_name(info->weight_format)));
    aq_json_put(&o, "kv_format", json_string(aq_dtype_name(info->kv_format)));
    aq_json_put(&o, "lossy", lossy);
    aq_json_put(&o, "seconds", json_real(seconds));
    return o;
}

/* A report that cannot be written does not spoil the result. */
static void write_report(const struct eval *v, const struct aq_engine *e, double seconds)
{
    const struct aq_eval_windows *w = &v->w;
    if (!v->o->report)
        return;
    struct aq_report_times t = {
        .total_s = seconds, .requests = w->count, .prompt_tokens = (uint64_t)w->count * w->stride};
    json_t *report = aq_report_build(e, &t, NULL);
    aq_hooks_report(v->hooks, v->o->report, report);
    json_decref(report);
}

/* Sequences as new; with a comparison, who looks at their logits. */
static void prepare(struct eval *v, bool full)
{
    aq_eval_windows_reset(&v->w);
    if (!v->compare)
        return;
    aq_eval_compare_reset(v->compare);
    for (uint32_t i = 0; i < v->w.count; i++) {
        v->watch[i] = (struct eval_watch){v->compare, i, full};
        v->w.sequence[i].user = &v->watch[i];
        v->w.sequence[i].on_logits = on_logits;
    }
}

/* Opens an engine for options and runs all windows: *ret is the run as JSON, with --dry-run its
 * plan.  full: the run that the others are compared with. */
static int run_once(json_t **ret, struct eval *v, const struct aq_options *o, const char *what,
                    bool full, struct aq_err *reterr)
{
    struct aq_engine_opts opts;
    struct aq_engine *e = NULL;
    int rc = aq_engine_opts_from(&opts, o, &v->log, reterr);
    opts.attention_stats = rc == 0 && o->attention_stats && !full;
    if (rc == 0 && full)
        opts.trace = NULL; /* of the run that was asked for */
    rc = rc < 0 ? rc : aq_engine_open(&e, &opts, reterr);
    rc = rc < 0 ? rc : plan_and_load(v, e, o->dry_run, reterr);
    if (rc == 0 && o->dry_run) {
        *ret = aq_engine_plan_json(e);
    } else if (rc == 0) {
        double start = aq_clock_s();
        prepare(v, full);
        rc = run_windows(v, e, what, reterr);
        double seconds = aq_clock_s() - start;
        if (rc == 0) {
            aq_eval_windows_nll(&v->w, full ? v->full_nll : v->nll);
            if (full)
                memcpy(v->nll, v->full_nll, v->w.count * sizeof(*v->nll));
            else
                write_report(v, e, seconds);
            *ret = run_json(v, e, v->compare && !full, seconds);
            if (opts.attention_stats)
                aq_json_put(ret, "attention_stats", aq_engine_attention_json(e));
        }
    }
    aq_engine_close(e);
    return rc;
}

/* ---- what all runs share ----------------------------------------------------------------- */

static int check_windows(const struct eval *v, const struct aq_engine_info *info,
                         struct aq_err *reterr)
{
    const struct aq_eval_windows *w = &v->w;
    if (w->stride > info->context)
        return aq_error(reterr, -EINVAL,
                        "eval: windows of %u tokens do not fit the context of %u of %s", w->stride,
                        info->context, info->name);
    for (size_t i = 0; i < (size_t)w->count * w->stride; i++) {
        if (w->ids[i] >= info->vocab)
            return aq_error(reterr, -EINVAL,
                            "eval: token id %u is not below the vocabulary size %u of %s",
                            w->ids[i], info->vocab, info->name);
    }
    return 0;
}

static int open_compare(struct eval *v, const struct aq_engine_info *info, struct aq_err *reterr)
{
    const struct aq_options *o = v->o;
    char *cache = NULL;
    int rc = 0;
    struct aq_eval_compare_opts opts = {
        .directory = o->disk_dir.count ? o->disk_dir.item[0] : NULL,
        .disk_memory = o->disk_memory,
        .windows = v->w.count,
        .tokens = v->w.score_tokens,
        .vocab = info->vocab,
        .threads = info->threads,
    };
    if (!opts.directory) {
        opts.directory = cache = aq_path_cache(o->cache_dir, reterr);
        rc = cache ? aq_path_make(cache, reterr) : -EINVAL;
    }
    rc = rc < 0 ? rc : aq_eval_compare_open(&v->compare, &opts, reterr);
    v->compare_bytes = aq_eval_compare_bytes(&opts);
    free(cache);
    return rc;
}

static int take_sums(struct eval *v, struct aq_err *reterr)
{
    uint32_t n = v->w.count;
    v->nll = calloc(n, sizeof(*v->nll));
    v->full_nll = calloc(n, sizeof(*v->full_nll));
    v->delta = calloc(n, sizeof(*v->delta));
    v->watch = calloc(n, sizeof(*v->watch));
    return v->nll && v->full_nll && v->delta && v->watch
               ? 0
               : aq_error_memory(reterr, "eval: %u windows", n);
}

static int check_options(const struct aq_options *o, struct aq_err *reterr)
{
    int rc = aq_options_check(o, reterr);
    if (rc < 0)
        return rc;
    if (o->text && !o->model)
        return aq_error(reterr, -EINVAL,
                        "eval: --text needs --model DIR for its tokenizer; use --ids with --shape");
    if (o->prompt_tokens == 0 && o->score_tokens < 2)
        return aq_error(reterr, -EINVAL,
                        "eval: --score-tokens: expected at least 2 where --prompt-tokens is 0, "
                        "found %u",
                        o->score_tokens);
    return 0;
}

/* What is compared with has the options of the run but for the policy. */
static int check_compare(const struct eval *v, const struct aq_engine_info *info,
                         struct aq_err *reterr)
{
    if (!v->o->compare_full || info->context <= info->positions)
        return 0;
    return aq_error(
        reterr, -EINVAL,
        "--compare-full: the full cache has the positions of the text, of which %s knows "
        "%u, and the context is %u; expected --context %u or less, or no --compare-full",
        info->name, info->positions, info->context, info->positions);
}

/* The windows, checked against the model, from an engine that is only looked at. */
static int look(struct eval *v, const struct aq_options *first, struct aq_err *reterr)
{
    struct aq_engine_opts opts;
    struct aq_engine *e = NULL;
    struct aq_eval_ids text = {0};
    int rc = aq_engine_opts_from(&opts, first, NULL, reterr);
    rc = rc < 0 ? rc : aq_engine_open(&e, &opts, reterr);
    const struct aq_engine_info *info = rc == 0 ? aq_engine_info(e) : NULL;
    rc = rc < 0 ? rc : check_compare(v, info, reterr);
    rc = rc < 0 ? rc : aq_eval_ids_read(&text, v->o, reterr);
    rc = rc < 0 ? rc : aq_eval_windows_open(&v->w, &text, v->o, info->bos_id, reterr);
    rc = rc < 0 ? rc : check_windows(v, info, reterr);
    rc = rc < 0 ? rc : take_sums(v, reterr);
    if (rc == 0 && v->o->compare_full && !v->o->dry_run)
        rc = open_compare(v, info, reterr);
    if (rc == 0)
        v->head = json_pack(
            "{s:i, s:o, s:I, s:i, s:i, s:i, s:s}", "schema", 1, "model", aq_json_string(info->name),
            "tokens_scored", (json_int_t)v->w.count * aq_eval_windows_scored(&v->w), "windows",
            (int)v->w.count, "prompt_tokens", (int)v->w.prompt_tokens, "score_tokens",
            (int)v->w.score_tokens, "bos", v->o->bos_mode ? v->o->bos_mode : "none");
    aq_engine_close(e);
    aq_eval_ids_close(&text);
    return rc;
}

static void eval_close(struct eval *v)
{
    aq_eval_compare_close(v->compare);
    aq_eval_windows_close(&v->w);
    free(v->watch);
    free(v->nll);
    free(v->full_nll);
    free(v->delta);
    json_decref(v->head);
}

/* ---- results ----------------------------------------------------------------------------- */

static double real_of(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void table_line(FILE *f, const json_t *run, const char *what, bool compared)
{
    const json_t *kept = json_object_get(run, "kept_slots");
    fprintf(f, "| %s | %.1f | %lld | %.4f | %.4f | %.3f |", what, real_of(kept, "mean"),
            (long long)json_integer_value(json_object_get(run, "kv_bytes")), real_of(run, "nll"),
            real_of(run, "nll_se"), real_of(run, "perplexity"));
    if (compared && json_object_get(run, "delta_nll"))
        fprintf(f, " %+.4f | %.4f | %.4f | %.3f |", real_of(run, "delta_nll"),
                real_of(run, "delta_nll_se"), real_of(run, "kl_to_full"),
                real_of(run, "top1_agreement"));
    else if (compared)
        fprintf(f, " | | | |");
    fprintf(f, "\n");
}

static int deliver_table(const struct eval *v, const json_t *document, struct aq_err *reterr)
{
    const json_t *full = json_object_get(document, "full"), *run;
    char *text = NULL;
    size_t bytes, i;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return aq_error_memory(reterr, "eval table");
    fprintf(f,
            "| sweep | slots | KV bytes | nll | se | perplexity |%s\n|---|---|---|---|---|---|%s\n",
            full ? " delta | se | KL to full | top-1 |" : "", full ? "---|---|---|---|" : "");
    if (full)
        table_line(f, full, "full", true);
    json_array_foreach(json_object_get(document, "rows"), i, run)
    {
        table_line(f, run, json_string_value(json_object_get(run, "sweep")), full);
    }
    bool lost = ferror(f);
    lost |= fclose(f) != 0;
    if (lost) {
        free(text);
        return aq_error_memory(reterr, "eval table");
    }
    aq_hooks_output(v->hooks, text, bytes);
    free(text);
    return 0;
}

static int deliver(struct eval *v, json_t *rows, json_t *full, struct aq_err *reterr)
{
    json_t *o = v->o->dry_run ? json_pack("{s:i}", "schema", 1) : aq_json_copy(v->head);
    if (full)
        aq_json_put(&o, "full", json_incref(full));
    if (!v->o->sweep.count && json_object_update(o, json_array_get(rows, 0)) < 0)
        aq_json_put(&o, "", NULL);
    else if (v->o->sweep.count)
        aq_json_put(&o, "rows", json_incref(rows));
    if (!v->o->sweep.count || v->o->json || v->o->dry_run)
        return aq_hooks_json(v->hooks, o, reterr);
    int rc = o ? deliver_table(v, o, reterr) : aq_error_memory(reterr, "eval table");
    json_decref(o);
    return rc;
}

static int run_full(struct eval *v, json_t **ret, struct aq_err *reterr)
{
    struct aq_options *o;
    int rc = aq_eval_full_options(&o, v->o, reterr);
    if (rc < 0)
        return rc;
    rc = run_once(ret, v, o, "full", true, reterr);
    aq_options_close(o);
    return rc;
}

int aq_cmd_eval(const struct aq_options *o, const struct aquifer_hooks *hooks,
                struct aq_err *reterr)
{
    struct eval v = {.o = o, .hooks = hooks, .log = aq_log_from_hooks(hooks)};
    struct aq_eval_sweep sweep = {0};
    json_t *rows = json_array(), *full = NULL;
    int rc = check_options(o, reterr);
    rc = rc < 0 ? rc : aq_eval_sweep_open(&sweep, o, reterr);
    rc = rc < 0 ? rc : look(&v, sweep.run[0].options, reterr);
    if (rc == 0 && v.compare)
        rc = run_full(&v, &full, reterr);
    for (uint32_t i = 0; i < sweep.count && rc == 0; i++) {
        const struct aq_eval_run *r = &sweep.run[i];
        json_t *row = NULL;
        rc = run_once(&row, &v, r->options, r->text, false, reterr);
        if (rc == 0 && *r->text)
            aq_json_put(&row, "sweep", json_string(r->text));
        if (rc == 0)
            aq_json_add(&rows, row);
        if (rc == 0 && !rows)
            rc = aq_error_memory(reterr, "rows of the table");
        if (rc < 0 && *r->text)
            aq_error_prefix(reterr, "%s", r->text);
    }
    /* Rows that were finished are worth having, whatever came after. */
    if (json_array_size(rows)) {
        int rc2 = deliver(&v, rows, full, rc < 0 ? NULL : reterr);
        rc = rc < 0 ? rc : rc2;
    }
    json_decref(rows);
    json_decref(full);
    aq_eval_sweep_close(&sweep);
    eval_close(&v);
    return rc;
}
