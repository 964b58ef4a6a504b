/* SPDX-License-Identifier: Apache-2.0
 * aquifer eval: the mean loss of a text under the engine as it really decodes.  Windows of P + G
 * tokens are cut from the text; P tokens are prefilled, then the next G are fed one at a time and
 * scored. */
#include "engine/commands.h"

#include "base/clock.h"
#include "base/json.h"
#include "engine/checkpoint.h"
#include "engine/report.h"
#include "engine/tokenizer.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_FILE_MAX = 1 << 30, TEXT_FILE_MAX = 1 << 30 };

struct ids {
    uint32_t *id;
    size_t count;
};

/* Ids as decimal numbers between spaces, commas and brackets: a JSON list, or one a line. */
static int parse_ids(struct ids *ret, const char *text, const char *path, struct aq_err *reterr)
{
    size_t max = strlen(text) / 2 + 2, count = 0;
    uint32_t *id = malloc(max * sizeof(*id));
    if (!id)
        return aq_error(reterr, -ENOMEM, "'%s': %zu ids", path, max);
    for (const char *at = text; *at;) {
        if (isspace((unsigned char)*at) || *at == ',' || *at == '[' || *at == ']') {
            at++;
            continue;
        }
        char *end;
        unsigned long value = strtoul(at, &end, 10);
        if (end == at || !isdigit((unsigned char)*at) || value > UINT32_MAX) {
            free(id);
            return aq_error(reterr, -EINVAL, "'%s' byte %zu: expected a token id, found '%.16s'",
                            path, (size_t)(at - text), at);
        }
        id[count++] = (uint32_t)value;
        at = end;
    }
    *ret = (struct ids){id, count};
    return 0;
}

static int read_ids(struct ids *ret, const char *path, struct aq_err *reterr)
{
    char *text;
    size_t bytes, n = strlen(path);
    int rc = aq_read_file(&text, &bytes, path, IDS_FILE_MAX, reterr);
    if (rc < 0)
        return rc;
    if (n > 4 && strcmp(path + n - 4, ".u16") == 0) { /* little-endian 16-bit ids */
        ret->count = bytes / 2;
        ret->id = malloc((ret->count + 1) * sizeof(*ret->id));
        for (size_t i = 0; ret->id && i < ret->count; i++)
            ret->id[i] = (uint32_t)(uint8_t)text[2 * i] | (uint32_t)(uint8_t)text[2 * i + 1] << 8;
        rc = ret->id ? 0 : aq_error(reterr, -ENOMEM, "'%s': %zu ids", path, ret->count);
    } else {
        rc = parse_ids(ret, text, path, reterr);
    }
    free(text);
    return rc;
}

static int encode_text(struct ids *ret, const char *model_dir, const char *path,
                       struct aq_err *reterr)
{
    struct aq_tokenizer *t = NULL;
    struct aq_tok_state *state = NULL;
    struct aq_ids ids = {0};
    char *text = NULL, dir[4096];
    size_t bytes;
    int rc = aq_read_file(&text, &bytes, path, TEXT_FILE_MAX, reterr);
    if (rc == 0)
        rc = aq_checkpoint_resolve(model_dir, dir, sizeof(dir), reterr);
    if (rc == 0)
        rc = aq_tokenizer_open(&t, dir, NULL, reterr);
    if (rc == 0)
        rc = aq_tok_state_open(&state, t, reterr);
    if (rc == 0)
        rc = aq_tokenizer_encode(t, state, text, bytes,
                                 (struct aq_encode_opts){.parse_special = true}, &ids, reterr);
    if (rc == 0)
        *ret = (struct ids){ids.item, ids.count};
    else
        aq_ids_close(&ids);
    aq_tok_state_close(state);
    aq_tokenizer_close(t);
    free(text);
    return rc;
}

/* The windows as sequences over one copy of the ids. */
struct windows {
    uint32_t *ids; /* each window's tokens, its BOS in front where asked for */
    struct aq_sequence *sequence;
    uint32_t *tokens;
    float *logprobs; /* of the scored tokens, [count][G] */
    float *prompt_logprob;
    uint32_t count, prompt_tokens, score_tokens, stride;
    bool bos_each;
};

static void windows_close(struct windows *w)
{
    free(w->ids);
    free(w->sequence);
    free(w->tokens);
    free(w->logprobs);
    free(w->prompt_logprob);
}

static int windows_open(struct windows *w, const struct ids *text, const struct aq_options *o,
                        int32_t bos_id, struct aq_err *reterr)
{
    const char *mode = o->bos_mode ? o->bos_mode : "none";
    bool once = strcmp(mode, "once") == 0;
    w->bos_each = strcmp(mode, "each") == 0;
    if ((once || w->bos_each) && bos_id < 0)
        return aq_error(reterr, -EINVAL, "--bos %s: the model names no BOS token", mode);
    w->prompt_tokens = o->prompt_tokens;
    w->score_tokens = o->score_tokens;
    uint32_t length = w->prompt_tokens + w->score_tokens;
    size_t total = text->count + once, most = total / length;
    w->count = (uint32_t)(o->windows && o->windows < most ? o->windows : most);
    if (most < (o->windows ? o->windows : 1))
        return aq_error(
            reterr, -EINVAL,
            "eval: %u window(s) of %u + %u tokens were asked for, the text has %zu tokens",
            o->windows ? o->windows : 1, w->prompt_tokens, w->score_tokens, total);
    w->stride = length + w->bos_each;
    w->ids = malloc((size_t)w->count * w->stride * sizeof(*w->ids));
    w->sequence = calloc(w->count, sizeof(*w->sequence));
    w->tokens = calloc((size_t)w->count * w->score_tokens, sizeof(*w->tokens));
    w->logprobs = calloc((size_t)w->count * w->score_tokens, sizeof(*w->logprobs));
    w->prompt_logprob = calloc((size_t)w->count * w->stride, sizeof(*w->prompt_logprob));
    if (!w->ids || !w->sequence || !w->tokens || !w->logprobs || !w->prompt_logprob)
        return aq_error(reterr, -ENOMEM, "eval: %u windows of %u tokens", w->count, w->stride);
    for (uint32_t i = 0; i < w->count; i++) {
        uint32_t *at = w->ids + (size_t)i * w->stride;
        if (w->bos_each)
            *at++ = (uint32_t)bos_id;
        for (uint32_t t = 0; t < length; t++) {
            size_t from = (size_t)i * length + t;
            at[t] = once ? (from == 0 ? (uint32_t)bos_id : text->id[from - 1]) : text->id[from];
        }
    }
    return 0;
}

/* P > 0: prefill P, then G forced tokens.  P = 0: the window is one prefill whose prompt tokens are
 * scored. */
static void fill_sequences(struct windows *w)
{
    for (uint32_t i = 0; i < w->count; i++) {
        struct aq_sequence *s = &w->sequence[i];
        uint32_t prompt = w->prompt_tokens + w->bos_each;
        *s = (struct aq_sequence){
            .prompt = w->ids + (size_t)i * w->stride,
            .prompt_count = w->prompt_tokens ? prompt : w->stride,
            .sampling = {.top_p = 1, .repetition_penalty = 1},
            .top_count = 0,
            .tokens = w->tokens + (size_t)i * w->score_tokens,
            .logprobs = w->logprobs + (size_t)i * w->score_tokens,
        };
        if (w->prompt_tokens) {
            s->max_tokens = w->score_tokens;
            s->forced = s->prompt + prompt;
        } else {
            s->prompt_logprobs = true;
            s->prompt_logprob = w->prompt_logprob + (size_t)i * w->stride;
        }
    }
}

static int run_windows(struct aq_engine *e, struct windows *w, const struct aquifer_hooks *hooks,
                       struct aq_err *reterr)
{
    uint32_t next = 0, done = 0, seats = aq_engine_seats(e);
    double noted = aq_clock_s();
    bool worked = true;
    while (worked) {
        if (hooks && hooks->interrupted && hooks->interrupted(hooks->user))
            return aq_error(reterr, -EINTR, "eval: interrupted after %u of %u windows", done,
                            w->count);
        while (next < w->count && aq_engine_waiting(e) < seats)
            aq_engine_submit(e, &w->sequence[next++]);
        int rc = aq_engine_pass(e, &worked, reterr);
        if (rc < 0)
            return rc;
        const struct aq_sequence *s;
        while ((s = aq_engine_finished(e))) {
            if (s->finish == AQ_FINISH_ERROR)
                return aq_error(reterr, -ENOEXEC, "eval: logits are not finite");
            done++;
        }
        if (aq_clock_s() - noted > 10) {
            noted = aq_clock_s();
            aq_hooks_line(hooks, AQUIFER_PROGRESS, "eval: %u of %u windows", done, w->count);
        }
    }
    return 0;
}

struct score {
    double nll, nll_se;
    uint64_t tokens;
};

/* Mean over all scored tokens; its standard error from the spread of the windows' means, which,
 * unlike tokens, are nearly independent. */
static struct score score_windows(const struct windows *w)
{
    struct score r = {0};
    double sum = 0, square = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        const struct aq_sequence *s = &w->sequence[i];
        uint32_t first = w->prompt_tokens ? 0 : 1,
                 n = w->prompt_tokens ? w->score_tokens : w->stride;
        double window = 0;
        for (uint32_t t = first; t < n; t++)
            window -= w->prompt_tokens ? s->logprobs[t] : s->prompt_logprob[t];
        r.tokens += n - first;
        sum += window;
        window /= n - first;
        square += window * window;
    }
    r.nll = sum / (double)r.tokens;
    double mean = r.nll, n = w->count;
    r.nll_se = n > 1 ? sqrt(fmax(square / n - mean * mean, 0) / (n - 1)) : NAN;
    return r;
}

/* Keys a window comes to hold: the last token that is fed is never stored. */
static uint32_t keys_held(const struct windows *w)
{
    return w->prompt_tokens ? w->stride - 1 : w->stride;
}

static json_t *result_json(const struct aq_engine *e, const struct windows *w,
                           const struct aq_options *o, uint64_t kv_bytes, double seconds)
{
    const struct aq_engine_info *info = aq_engine_info(e);
    struct score s = score_windows(w);
    uint32_t keys = keys_held(w);
    json_t *lossy = json_array();
    for (uint32_t i = 0; i < info->lossy_count; i++)
        json_array_append_new(lossy, json_string(info->lossy[i]));
    return json_pack(
        "{s:i, s:s, s:I, s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:{s:s, s:i, s:i}, s:I, s:{s:s}, s:b, "
        "s:s, s:s, s:s, s:o, s:f}",
        "schema", 1, "model", info->name, "tokens_scored", (json_int_t)s.tokens, "windows",
        (int)w->count, "prompt_tokens", (int)w->prompt_tokens, "score_tokens", (int)w->score_tokens,
        "bos", o->bos_mode ? o->bos_mode : "none", "nll", aq_json_real(s.nll), "nll_se",
        aq_json_real(s.nll_se), "perplexity", aq_json_real(exp(s.nll)), "kept_slots", "nominal",
        "all", "mean", (int)keys, "max", (int)keys, "kv_bytes", (json_int_t)kv_bytes, "policy",
        "name", "full", "no_effect", 1, "compute", aq_dtype_name(info->compute), "weight_format",
        aq_dtype_name(info->weight_format), "kv_format", aq_dtype_name(info->kv_format), "lossy",
        lossy, "seconds", seconds);
}

static int check_options(const struct aq_options *o, struct aq_err *reterr)
{
    if (!o->model && !o->shape)
        return aq_error(reterr, -EINVAL, "eval: expected --model DIR");
    if (!o->text == !o->ids)
        return aq_error(reterr, -EINVAL, "eval: expected one of --text FILE and --ids FILE");
    if (o->text && !o->model)
        return aq_error(reterr, -EINVAL,
                        "eval: --text needs --model DIR for its tokenizer; use --ids with --shape");
    if (!o->prompt_tokens_given)
        return aq_error(reterr, -EINVAL,
                        "eval: expected --prompt-tokens P (0 scores each window in one prefill)");
    if (o->score_tokens < 1 || (o->prompt_tokens == 0 && o->score_tokens < 2))
        return aq_error(reterr, -EINVAL, "eval: --score-tokens: expected at least %d, found %u",
                        o->prompt_tokens ? 1 : 2, o->score_tokens);
    return 0;
}

static int plan_and_load(struct aq_engine *e, const struct windows *w, bool dry_run,
                         struct aq_err *reterr)
{
    const struct aq_engine_info *info = aq_engine_info(e);
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
    struct aq_workload work = {
        .sequences = w->count,
        .prompt_max = w->sequence[0].prompt_count,
        .total_max = w->stride,
        .prompt_logprobs = w->prompt_tokens == 0,
        .queue_bytes = (uint64_t)w->count *
                       (w->stride * 8ull + w->score_tokens * 8ull + sizeof(struct aq_sequence)),
    };
    int rc = aq_engine_plan(e, &work, reterr);
    return rc < 0 || dry_run ? rc : aq_engine_load(e, reterr);
}

/* A report that cannot be written does not spoil the result. */
static void write_report(const struct aq_options *o, const struct aq_engine *e,
                         const struct windows *w, double seconds, const struct aquifer_hooks *hooks)
{
    if (!o->report)
        return;
    struct aq_report_times t = {
        .total_s = seconds, .requests = w->count, .prompt_tokens = (uint64_t)w->count * w->stride};
    json_t *report = aq_report_build(e, &t, NULL);
    if (json_dump_file(report, o->report, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) < 0)
        aq_hooks_line(hooks, AQUIFER_WARNING, "report '%s' could not be written: %s", o->report,
                      strerror(errno));
    json_decref(report);
}

int aq_cmd_eval(const struct aq_options *o, const struct aquifer_hooks *hooks,
                struct aq_err *reterr)
{
    struct ids text = {0};
    struct windows w = {0};
    struct aq_engine *e = NULL;
    struct aq_log log = aq_log_from_hooks(hooks);
    struct aq_engine_opts opts;
    int rc = check_options(o, reterr);
    if (rc < 0)
        return rc;
    rc = aq_engine_opts_from(&opts, o, &log, reterr);
    rc = rc < 0 ? rc : aq_engine_open(&e, &opts, reterr);
    if (rc == 0)
        rc = o->text ? encode_text(&text, o->model, o->text, reterr)
                     : read_ids(&text, o->ids, reterr);
    if (rc == 0)
        rc = windows_open(&w, &text, o, aq_engine_info(e)->bos_id, reterr);
    if (rc == 0) {
        fill_sequences(&w);
        rc = plan_and_load(e, &w, o->dry_run, reterr);
    }
    if (rc == 0 && o->dry_run) {
        rc = aq_hooks_json(hooks, aq_engine_plan_json(e), reterr);
    } else if (rc == 0) {
        double start = aq_clock_s();
        rc = run_windows(e, &w, hooks, reterr);
        if (rc == 0)
            write_report(o, e, &w, aq_clock_s() - start, hooks);
        if (rc == 0)
            rc = aq_hooks_json(
                hooks,
                result_json(e, &w, o, aq_engine_kv_bytes(e, keys_held(&w)), aq_clock_s() - start),
                reterr);
    }
    aq_engine_close(e);
    windows_close(&w);
    free(text.id);
    return rc;
}
