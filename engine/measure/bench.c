/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure/bench.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/prng.h"
#include "engine/core/drive.h"
#include "engine/core/opts_from.h"
#include "engine/core/report.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The requests of one run and everything they write to. */
struct batch {
    struct aq_sequence *sequence;
    uint32_t *prompts, *tokens;
    uint64_t count;
    uint32_t prompt_len, gen_len;
};

static void batch_close(struct batch *b)
{
    free(b->sequence);
    free(b->prompts);
    free(b->tokens);
    *b = (struct batch){0};
}

/* Distinct prompts of random ids, the same for the same seed; ids below 4 are special in the known
 * tokenizers and are left out. */
static int batch_open(struct batch *b, uint64_t count, uint32_t prompt_len, uint32_t gen_len,
                      uint32_t vocab, uint64_t seed, struct aq_err *reterr)
{
    *b = (struct batch){.count = count, .prompt_len = prompt_len, .gen_len = gen_len};
    b->sequence = calloc(count, sizeof(*b->sequence));
    b->prompts = calloc(count * prompt_len, sizeof(*b->prompts));
    b->tokens = calloc(count * gen_len, sizeof(*b->tokens));
    if (!b->sequence || !b->prompts || !b->tokens) {
        batch_close(b);
        return aq_error_memory(reterr, "bench: %llu prompts of %u tokens",
                               (unsigned long long)count, prompt_len);
    }
    uint32_t first = vocab > 8 ? 4 : 0;
    for (uint64_t i = 0; i < count; i++) {
        for (uint32_t t = 0; t < prompt_len; t++)
            b->prompts[i * prompt_len + t] =
                first + (uint32_t)aq_prng_below(seed, i, t, vocab - first);
        b->sequence[i] = (struct aq_sequence){
            .prompt = b->prompts + i * prompt_len,
            .prompt_count = prompt_len,
            .max_tokens = gen_len,
            .sampling = {.top_p = 1, .repetition_penalty = 1},
            .top_count = -1,
            .tokens = b->tokens + i * gen_len,
        };
    }
    return 0;
}

/* The KV policy keeps as many of their keys as of the row's sequences. */
static void batch_stands_for(struct batch *b, const struct aq_bench_row *row)
{
    for (uint64_t i = 0; i < b->count; i++) {
        b->sequence[i].kv_prompt = row->prompt_len;
        b->sequence[i].kv_new = row->gen_len;
    }
}

static int check_interrupted(void *user, struct aq_err *reterr)
{
    return aq_hooks_interrupted(user) ? aq_error(reterr, -EINTR, "bench: interrupted") : 0;
}

static int check_finite(void *user, struct aq_sequence *s, struct aq_err *reterr)
{
    return s->finish == AQ_FINISH_ERROR ? aq_error(reterr, -ENOEXEC, "bench: logits are not finite")
                                        : 0;
}

/* Runs all requests to their end; -EINTR when the caller wants to stop. */
static int batch_run(struct aq_engine *e, struct batch *b, const struct aquifer_hooks *hooks,
                     struct aq_err *reterr)
{
    const struct aq_drive drive = {e, (void *)hooks, check_interrupted, check_finite};
    for (uint64_t i = 0; i < b->count; i++)
        aq_engine_submit(e, &b->sequence[i]);
    return aq_drive_all(&drive, reterr);
}

struct samples {
    double gen_tok_s[64], prefill_tok_s[64], decode_tok_s[64];
    uint32_t count;
};

static double mean(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i];
    return n ? sum / n : NAN;
}

static double deviation(const double *x, uint32_t n)
{
    double m = mean(x, n), sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (x[i] - m) * (x[i] - m);
    return n > 1 ? sqrt(sum / (n - 1)) : NAN;
}

static json_t *list(const double *x, uint32_t n)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < n; i++)
        aq_json_add(&a, aq_json_real(x[i]));
    return a;
}

static double json_number(const json_t *report, const char *key)
{
    const json_t *v = json_object_get(report, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static json_t *measure(struct aq_engine *e, struct batch *b, double load_s,
                       const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    struct aq_engine_stats before;
    aq_engine_stats(e, &before);
    double start = aq_clock_s();
    if (batch_run(e, b, hooks, reterr) < 0)
        return NULL;
    struct aq_report_times t = {
        .load_s = load_s,
        .total_s = aq_clock_s() - start,
        .requests = b->count,
        .prompt_tokens = b->count * b->prompt_len,
    };
    json_t *report = aq_report_build(e, &t, &before);
    if (!report)
        aq_error_memory(reterr, "report of a row");
    return report;
}

/* A real prefill, and `passes` decode passes at each of three lengths spread evenly over the
 * generation, with the cache really filled to that length by a prefill: the run's times are their
 * extrapolation. */
static json_t *measure_projected(struct aq_engine *e, const struct aq_bench_row *row,
                                 uint64_t requests, uint32_t passes, uint64_t seed, double load_s,
                                 const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    double pass_s = 0;
    json_t *r = NULL;
    for (uint32_t i = 0; i <= 3; i++) { /* the prefill is the last */
        uint32_t at = row->prompt_len + (2 * i + 1) * row->gen_len / 6;
        uint32_t most = row->prompt_len + row->gen_len - passes; /* passes < gen_len */
        uint32_t length = at > passes ? at - passes / 2 : 1;
        bool prefill = i == 3;
        struct batch b;
        length = prefill ? row->prompt_len : (uint32_t)aq_min_u64(length, most);
        if (batch_open(&b, requests, length, prefill ? 1 : passes + 1, aq_engine_info(e)->vocab,
                       prefill ? seed : seed + i, reterr) < 0)
            goto fail;
        batch_stands_for(&b, row);
        json_decref(r);
        r = measure(e, &b, load_s, hooks, reterr);
        batch_close(&b);
        if (!r)
            goto fail;
        if (!prefill)
            pass_s += json_number(r, "decode_s") / passes / 3;
    }
    double prefill_s = json_number(r, "prefill_s");
    double decode_s = pass_s * (row->gen_len - 1), total_s = prefill_s + decode_s;
    double generated = (double)requests * row->gen_len;
    aq_json_put(&r, "decode_s", aq_json_real(decode_s));
    aq_json_put(&r, "idle_s", json_real(0));
    aq_json_put(&r, "total_s", aq_json_real(total_s));
    aq_json_put(&r, "generated_tokens", json_integer((json_int_t)generated));
    aq_json_put(&r, "decode_tok_s", aq_json_real((double)requests / pass_s));
    aq_json_put(&r, "gen_tok_s", aq_json_real(generated / total_s));
    aq_json_put(&r, "total_tok_s",
                aq_json_real((generated + (double)requests * row->prompt_len) / total_s));
    if (!r)
        aq_error_memory(reterr, "report of a row");
    return r;
fail:
    json_decref(r);
    return NULL;
}

static bool is_projected(const struct aq_options *o, const struct aq_bench_row *row)
{
    return o->decode_passes > 0 && o->decode_passes < row->gen_len;
}

static int open_engine(struct aq_engine **ret, const struct aq_options *o,
                       const struct aq_bench_row *row, uint64_t requests, double *ret_load_s,
                       const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    struct aq_log log = aq_log_from_hooks(hooks);
    struct aq_engine_opts opts;
    struct aq_engine *e = NULL;
    int rc = aq_engine_opts_from(&opts, o, &log, reterr);
    if (rc < 0)
        return rc;
    opts.micro_batch = row->micro_batch;
    opts.refill = false;
    rc = aq_engine_open(&e, &opts, reterr);
    if (rc < 0)
        return rc;
    uint32_t total = row->prompt_len + row->gen_len;
    if (total > aq_engine_info(e)->context) {
        rc = aq_error(
            reterr, -EINVAL, "--prompt-len %u + --gen-len %u: %s has a context of %u tokens",
            row->prompt_len, row->gen_len, aq_engine_info(e)->name, aq_engine_info(e)->context);
        goto fail;
    }
    if (is_projected(o, row) && total - 1 > aq_engine_info(e)->positions) {
        rc = aq_error(
            reterr, -EINVAL,
            "--decode-passes %u: the cache is filled by prompts of up to %u tokens, and %s "
            "knows %u positions; expected a smaller --gen-len, or no --decode-passes",
            o->decode_passes, total - 1, aq_engine_info(e)->name, aq_engine_info(e)->positions);
        goto fail;
    }
    struct aq_length length = {row->prompt_len, row->gen_len};
    struct aq_workload w = {
        .sequences = requests,
        .prompt_max = is_projected(o, row) ? total - 1 : row->prompt_len,
        .total_max = total,
        .new_max = is_projected(o, row) ? 0 : row->gen_len,
        .queue_bytes = requests * (sizeof(struct aq_sequence) + 4ull * 2 * total),
    };
    if (!is_projected(o, row)) {
        w.length = &length;
        w.length_count = 1;
        w.prompt_sum = requests * row->prompt_len;
        w.total_sum = requests * total;
    }
    rc = aq_engine_plan(e, &w, reterr);
    double start = aq_clock_s();
    aq_engine_stop_when(e, aq_hooks_interrupted, (void *)hooks);
    if (rc == 0 && !o->dry_run)
        rc = aq_engine_load(e, reterr);
    if (rc < 0)
        goto fail;
    *ret_load_s = aq_clock_s() - start;
    *ret = e;
    return 0;
fail:
    aq_engine_close(e);
    return rc;
}

static void keep_sample(struct samples *s, const json_t *r)
{
    s->gen_tok_s[s->count] = json_number(r, "gen_tok_s");
    s->prefill_tok_s[s->count] = json_number(r, "prefill_tok_s");
    s->decode_tok_s[s->count++] = json_number(r, "decode_tok_s");
}

static void finish_row(json_t **r, const struct aq_bench_row *row, uint64_t requests,
                       const struct samples *s, const char *hash, bool projected,
                       uint32_t micro_batch, uint32_t micro_batches)
{
    aq_json_put(r, "row",
                json_pack("{s:i, s:i, s:I, s:i, s:i}", "prompt_len", (int)row->prompt_len,
                          "gen_len", (int)row->gen_len, "requests", (json_int_t)requests,
                          "micro_batch", (int)micro_batch, "micro_batches", (int)micro_batches));
    aq_json_put(r, "repeats", json_integer(s->count));
    aq_json_put(r, "gen_tok_s", aq_json_real(mean(s->gen_tok_s, s->count)));
    aq_json_put(r, "gen_tok_s_sd", aq_json_real(deviation(s->gen_tok_s, s->count)));
    aq_json_put(r, "prefill_tok_s", aq_json_real(mean(s->prefill_tok_s, s->count)));
    aq_json_put(r, "decode_tok_s", aq_json_real(mean(s->decode_tok_s, s->count)));
    aq_json_put(r, "samples",
                json_pack("{s:o, s:o, s:o}", "gen_tok_s", list(s->gen_tok_s, s->count),
                          "prefill_tok_s", list(s->prefill_tok_s, s->count), "decode_tok_s",
                          list(s->decode_tok_s, s->count)));
    aq_json_put(r, "output_xxh3", hash ? json_string(hash) : json_null());
    aq_json_put(r, "projected", json_boolean(projected));
    double predicted = json_number(json_object_get(*r, "predicted"), "gen_tok_s");
    aq_json_put(r, "published", json_null());
    aq_json_put(r, "prediction_error", aq_json_real(predicted / mean(s->gen_tok_s, s->count) - 1));
}

int aq_bench_run_row(json_t **ret, const struct aq_options *o, const struct aq_bench_row *row,
                     const struct aquifer_hooks *hooks, struct aq_err *reterr)
{
    uint64_t requests = row->requests;
    if (!requests)
        requests = (uint64_t)(row->micro_batch ? row->micro_batch : 32) *
                   (o->micro_batches ? o->micro_batches : 1);
    struct aq_engine *e = NULL;
    struct batch b = {0};
    struct samples s = {0};
    double load_s = 0;
    json_t *r = NULL;
    char hash[24] = "";
    aq_mem_process_peak_reset(); /* of the row before */
    int rc = open_engine(&e, o, row, requests, &load_s, hooks, reterr);
    if (rc < 0)
        return rc;
    if (o->dry_run) {
        rc = aq_engine_check(e, reterr);
        if (rc == 0) {
            *ret = aq_engine_plan_json(e);
            aq_json_put(ret, "schema", json_integer(1));
            aq_json_put(ret, "predicted", aq_engine_predicted_json(e));
            rc = *ret ? 0 : aq_error_memory(reterr, "plan");
        }
        aq_engine_close(e);
        return rc;
    }
    bool projected = is_projected(o, row);
    if (!projected)
        rc = batch_open(&b, requests, row->prompt_len, row->gen_len, aq_engine_info(e)->vocab,
                        o->seed, reterr);
    uint32_t runs = o->warmup + o->repeats;
    for (uint32_t i = 0; i < runs && rc == 0; i++) {
        json_decref(r);
        r = projected ? measure_projected(e, row, requests, o->decode_passes, o->seed, load_s,
                                          hooks, reterr)
                      : measure(e, &b, load_s, hooks, reterr);
        if (!r) {
            rc = reterr && reterr->code ? reterr->code : -EIO;
            break;
        }
        bool counts = i >= o->warmup && s.count < AQ_ARRAY_LEN(s.gen_tok_s);
        if (counts)
            keep_sample(&s, r);
        aq_hooks_line(hooks, AQUIFER_INFO,
                      "%s %u of %u: %u + %u tokens x %llu: %.2f generated tok/s",
                      counts ? "run" : "warm-up", counts ? i - o->warmup + 1 : i + 1,
                      counts ? o->repeats : o->warmup, row->prompt_len, row->gen_len,
                      (unsigned long long)requests, json_number(r, "gen_tok_s"));
    }
    if (rc == 0) {
        if (!projected)
            snprintf(
                hash, sizeof(hash), "%016llx",
                (unsigned long long)XXH3_64bits(b.tokens, b.count * b.gen_len * sizeof(*b.tokens)));
        const json_t *plan = json_object_get(r, "plan");
        finish_row(&r, row, requests, &s, projected ? NULL : hash, projected,
                   (uint32_t)json_number(plan, "micro_batch"),
                   (uint32_t)json_number(plan, "micro_batches"));
        if (o->replay) /* rates of the transfers: no token means anything */
            aq_json_put(&r, "replay", json_true());
        if (r)
            *ret = r;
        else
            rc = aq_error_memory(reterr, "report of a row");
        r = NULL;
    }
    json_decref(r);
    batch_close(&b);
    aq_engine_close(e);
    return rc;
}
