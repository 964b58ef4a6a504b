/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_engine.h"

#include "base/prng.h"
#include "engine/core/engine.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEATS_MAX = 256, EOS = 2 };

struct fake_engine fake_engine;

void fake_engine_reset(void)
{
    fake_engine = (struct fake_engine){.vocab = 4096,
                                       .context = 256,
                                       .seats = 4,
                                       .eos_every = 40,
                                       .model_hash = 77,
                                       .bad_token = UINT64_MAX};
}

struct aq_engine {
    struct aq_engine_info info;
    struct aq_sequence *waiting, *waiting_last, *finished, *finished_last;
    uint32_t waiting_count;
    struct aq_sequence *seat[SEATS_MAX];
    uint64_t hash[SEATS_MAX];
    struct aq_workload workload;
    struct aq_engine_stats stats;
    bool planned, loaded;
};

int aq_engine_open(struct aq_engine **ret, const struct aq_engine_opts *opts, struct aq_err *reterr)
{
    struct aq_engine *e = calloc(1, sizeof(*e));
    assert(e && fake_engine.seats <= SEATS_MAX);
    e->info = (struct aq_engine_info){
        .name = "fake",
        .vocab = fake_engine.vocab,
        .context = opts->context ? opts->context : fake_engine.context,
        .positions = fake_engine.context,
        .layers = 1,
        .hidden = 1,
        .bos_id = EOS,
        .pad_id = 1,
        .add_bos = true,
        .eos_id = {EOS},
        .eos_count = 1,
        .compute = opts->compute >= 0 ? (enum aq_dtype)opts->compute : AQ_F32,
        .weight_format = opts->weight_format >= 0 ? (enum aq_dtype)opts->weight_format : AQ_F32,
        .kv_format = opts->kv_format >= 0 ? (enum aq_dtype)opts->kv_format : AQ_F32,
        .kv = opts->kv,
        .packed = fake_engine.packed,
        .isa = "none",
        .backend = "fake",
        .threads = 1,
        .model_hash = fake_engine.model_hash,
        .host_limited_by = "option",
    };
    *ret = e;
    return 0;
}

void aq_engine_close(struct aq_engine *e)
{
    free(e);
}

const struct aq_engine_info *aq_engine_info(const struct aq_engine *e)
{
    return &e->info;
}

const struct aq_rule_stats *aq_engine_rules(const struct aq_engine *e, uint32_t *ret_heads)
{
    *ret_heads = 0;
    return NULL;
}

int aq_engine_plan(struct aq_engine *e, const struct aq_workload *w, struct aq_err *reterr)
{
    assert(!e->loaded && w->total_max <= e->info.context + 1 && w->prompt_max >= 1);
    assert(w->prompt_max <= e->info.context);
    if (fake_engine.refuse_plan)
        return aq_error(reterr, -ENOBUFS, "nothing fits");
    e->workload = *w;
    e->planned = true;
    fake_engine.queue_bytes = w->queue_bytes;
    return 0;
}

json_t *aq_engine_plan_json(const struct aq_engine *e)
{
    return json_pack("{s:i, s:[{s:s, s:s, s:i}]}", "micro_batch", (int)fake_engine.seats, "ledger",
                     "tier", "host", "purpose", "nothing", "bytes", 1);
}

json_t *aq_engine_memory_json(const struct aq_engine *e)
{
    return json_pack("{s:{s:i, s:i, s:i}}", "host", "budget", 1, "ledger", 1, "measured", 1);
}

void aq_engine_stop_when(struct aq_engine *e, bool (*stop)(void *user), void *user) {}

int aq_engine_load(struct aq_engine *e, struct aq_err *reterr)
{
    assert(e->planned && !e->loaded);
    e->loaded = true;
    fake_engine.loads++;
    return 0;
}

void aq_engine_submit(struct aq_engine *e, struct aq_sequence *s)
{
    assert(e->loaded && s->prompt_count >= 1 && s->prompt_count <= e->workload.prompt_max);
    assert(s->prompt_count + s->max_tokens <= e->workload.total_max);
    assert(!s->given_count || s->given_count < s->max_tokens);
    fake_engine.given_tokens += s->given_count;
    s->next = NULL;
    if (e->waiting_last)
        e->waiting_last->next = s;
    else
        e->waiting = s;
    e->waiting_last = s;
    e->waiting_count++;
    fake_engine.submitted++;
    if (e->waiting_count > fake_engine.waiting_max)
        fake_engine.waiting_max = e->waiting_count;
}

uint32_t aq_engine_waiting(const struct aq_engine *e)
{
    return e->waiting_count;
}

uint32_t aq_engine_seats(const struct aq_engine *e)
{
    return fake_engine.seats;
}

static void finish(struct aq_engine *e, uint32_t seat, enum aq_finish how)
{
    struct aq_sequence *s = e->seat[seat];
    s->finish = how;
    s->next = NULL;
    if (e->finished_last)
        e->finished_last->next = s;
    else
        e->finished = s;
    e->finished_last = s;
    e->seat[seat] = NULL;
    e->stats.finished++;
    e->stats.seated--;
}

/* Ids 4 and up are ordinary text; a value for sampling and one for its probability come out of the
 * hash of all that stood before. */
static uint32_t choose(const struct aq_engine *e, const struct aq_sequence *s, uint64_t hash)
{
    const struct aq_sampling *p = &s->sampling;
    uint64_t key = hash;
    if (s->forced)
        return s->forced[s->token_count];
    if (s->token_count < 64 && fake_engine.script[s->token_count])
        return fake_engine.script[s->token_count];
    if (p->temperature > 0)
        key ^= aq_prng_u64(p->seed, p->record_hash, (uint64_t)p->choice << 32 | s->token_count);
    if (fake_engine.eos_every && aq_prng_below(key, 1, 0, fake_engine.eos_every) == 0)
        return EOS;
    return 4 + (uint32_t)aq_prng_below(key, 2, 0, e->info.vocab - 4);
}

static float logprob_of(uint32_t id, uint32_t rank)
{
    return -0.25f * (float)(id % 7) - (float)rank;
}

static void fill_tops(struct aq_top *tops, int count, uint32_t id)
{
    for (int k = 0; k < count; k++)
        tops[k] = (struct aq_top){id + (uint32_t)k, logprob_of(id, (uint32_t)k)};
}

static bool is_stop(const struct aq_sequence *s, uint32_t id)
{
    for (uint32_t i = 0; i < s->stop_id_count; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

static void score_prompt(struct aq_sequence *s)
{
    uint32_t from = s->prompt_from > 1 ? s->prompt_from : 1;
    for (uint32_t i = from; s->prompt_logprobs && i < s->prompt_count; i++) {
        size_t at = i - s->prompt_from;
        s->prompt_logprob[at] = logprob_of(s->prompt[i], 0);
        if (s->top_count > 0)
            fill_tops(s->prompt_tops + at * (size_t)s->top_count, s->top_count, s->prompt[i]);
    }
}

static void seat_waiting(struct aq_engine *e)
{
    for (uint32_t i = 0; i < fake_engine.seats && e->waiting; i++) {
        if (e->seat[i])
            continue;
        struct aq_sequence *s = e->waiting;
        e->waiting = s->next;
        if (!e->waiting)
            e->waiting_last = NULL;
        e->waiting_count--;
        e->seat[i] = s;
        e->hash[i] = 1;
        for (uint32_t k = 0; k < s->prompt_count; k++)
            e->hash[i] = aq_prng_u64(e->hash[i], s->prompt[k], 0);
        for (s->token_count = 0; s->token_count < s->given_count; s->token_count++)
            e->hash[i] = aq_prng_u64(e->hash[i], s->tokens[s->token_count], 0);
        e->stats.seated++;
        e->stats.prefill_tokens += s->prompt_count;
        score_prompt(s);
    }
}

static void advance(struct aq_engine *e, uint32_t seat)
{
    struct aq_sequence *s = e->seat[seat];
    if (s->prompt[0] == fake_engine.bad_token) {
        finish(e, seat, AQ_FINISH_ERROR);
        return;
    }
    if (s->token_count == s->max_tokens) {
        finish(e, seat, AQ_FINISH_LENGTH);
        return;
    }
    uint32_t id = choose(e, s, e->hash[seat]);
    if (s->token_count < s->min_tokens && is_stop(s, id))
        id = 5;
    if (s->top_count >= 0)
        s->logprobs[s->token_count] = logprob_of(id, 0);
    if (s->top_count > 0)
        fill_tops(s->tops + (size_t)s->token_count * (size_t)s->top_count, s->top_count, id);
    s->tokens[s->token_count++] = id;
    e->hash[seat] = aq_prng_u64(e->hash[seat], id, 0);
    e->stats.generated_tokens++;
    bool stopped = s->on_token && s->on_token(s);
    if (is_stop(s, id)) {
        s->finish_id = id;
        finish(e, seat, AQ_FINISH_STOP_ID);
    } else if (stopped) {
        finish(e, seat, AQ_FINISH_CALLER);
    } else if (s->token_count == s->max_tokens) {
        finish(e, seat, AQ_FINISH_LENGTH);
    }
}

/* Of what a pass begins with, which a test may change while an abandoned pass sleeps. */
static pthread_mutex_t begin_lock = PTHREAD_MUTEX_INITIALIZER;

void fake_engine_passes(double pass_s, void (*on_pass)(uint64_t pass))
{
    pthread_mutex_lock(&begin_lock);
    fake_engine.pass_s = pass_s;
    fake_engine.on_pass = on_pass;
    pthread_mutex_unlock(&begin_lock);
}

/* The number of the pass; *ret_s is how long it takes. */
static uint64_t begin_pass(double *ret_s)
{
    pthread_mutex_lock(&begin_lock);
    uint64_t pass = ++fake_engine.passes;
    if (fake_engine.on_pass)
        fake_engine.on_pass(pass);
    *ret_s = fake_engine.pass_s;
    pthread_mutex_unlock(&begin_lock);
    return pass;
}

int aq_engine_pass(struct aq_engine *e, bool *ret_worked, struct aq_err *reterr)
{
    double pass_s;
    uint64_t pass = begin_pass(&pass_s);
    if (pass == fake_engine.fail_pass)
        return aq_error(reterr, -EIO, "the fake engine fails in pass %llu as told",
                        (unsigned long long)pass);
    if (pass_s > 0) {
        struct timespec t = {(time_t)pass_s, (long)(fmod(pass_s, 1.0) * 1e9)};
        nanosleep(&t, NULL);
    }
    seat_waiting(e);
    *ret_worked = false;
    for (uint32_t i = 0; i < fake_engine.seats; i++) {
        if (e->seat[i]) {
            *ret_worked = true;
            advance(e, i);
        }
    }
    e->stats.passes++;
    e->stats.mixed_passes++;
    e->stats.mixed_s += 1e-4 + pass_s;
    e->stats.last_pass_s = pass_s;
    return 0;
}

struct aq_sequence *aq_engine_finished(struct aq_engine *e)
{
    struct aq_sequence *s = e->finished;
    if (s) {
        e->finished = s->next;
        if (!e->finished)
            e->finished_last = NULL;
        s->next = NULL;
    }
    return s;
}

void aq_engine_stats(const struct aq_engine *e, struct aq_engine_stats *ret)
{
    *ret = e->stats;
    ret->waiting = e->waiting_count;
}

struct aq_engine_held aq_engine_held(const struct aq_engine *e, uint32_t prompt, uint32_t max_new,
                                     uint32_t seen)
{
    return (struct aq_engine_held){.slots = seen, .slots_max = seen, .read = seen, .bytes = seen};
}

void aq_engine_observe(struct aq_engine *e, void (*observe)(void *user, bool running), void *user)
{
    assert(!e->loaded && !observe); /* nothing here looks at allocations */
}

bool aq_engine_emulated(const struct aq_engine *e)
{
    return false;
}

int aq_engine_check(const struct aq_engine *e, struct aq_err *reterr)
{
    return 0;
}

json_t *aq_engine_predicted_json(const struct aq_engine *e)
{
    return json_null();
}

json_t *aq_engine_attention_json(const struct aq_engine *e)
{
    return json_null();
}
