/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/drawn.h"

#include "base/prng.h"
#include "tests/choices.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* A stream of draws. */
struct dice {
    uint64_t seed, number, count;
};

static uint64_t roll(struct dice *d, uint64_t n)
{
    return aq_prng_below(d->seed, d->number, d->count++, n);
}

/* One of several, by name. */
#define PICK(dice, list) ((list)[roll(dice, AQ_ARRAY_LEN(list))])

/* ---- sequences --------------------------------------------------------------------------- */

static void draw_one(struct crowd_one *o, struct dice *d, uint32_t prompt_max, uint32_t tokens_max,
                     uint32_t vocab)
{
    struct aq_sequence *s = &o->s;
    s->prompt = o->prompt;
    s->prompt_count = 1 + (uint32_t)roll(d, prompt_max);
    for (uint32_t i = 0; i < s->prompt_count; i++)
        o->prompt[i] = 4 + (uint32_t)roll(d, vocab - 4);
    s->max_tokens = 1 + (uint32_t)roll(d, tokens_max);
    s->sampling.temperature = roll(d, 2) ? 1.0f : 0.0f;
    s->sampling.top_p = roll(d, 3) ? 1.0f : 0.9f;
    s->sampling.repetition_penalty = 1;
    s->sampling.record_hash = roll(d, UINT32_MAX);
    s->top_count = (int)roll(d, CROWD_TOPS + 2) - 1;
    s->prompt_logprobs = s->top_count >= 0 && roll(d, 4) == 0;
    s->tokens = o->tokens;
    s->logprobs = s->top_count >= 0 ? o->logprobs : NULL;
    s->tops = s->top_count > 0 ? o->tops : NULL;
    s->prompt_logprob = s->prompt_logprobs ? o->prompt_logprob : NULL;
    s->prompt_tops = s->prompt_logprobs && s->top_count > 0 ? o->prompt_tops : NULL;
}

/* Lets a sequence begin as an earlier one does, or as long as that is. */
static void begin_alike(struct crowd *c, uint32_t i, uint64_t seed)
{
    struct dice d = {seed, 0x616c696b65, i};
    const struct crowd_one *from = &c->one[i ? roll(&d, i) : 0];
    struct crowd_one *o = &c->one[i];
    uint32_t same = o->s.prompt_count - (uint32_t)roll(&d, 5) % o->s.prompt_count;
    same = same < from->s.prompt_count ? same : from->s.prompt_count;
    if (i && roll(&d, 3))
        memcpy(o->prompt, from->prompt, same * sizeof(*o->prompt));
    /* Log-probabilities from some token on, often from where pages end. */
    uint32_t run = roll(&d, 2) ? 32 : 1;
    if (o->s.prompt_logprobs && roll(&d, 3))
        o->s.prompt_from = (uint32_t)roll(&d, (o->s.prompt_count - 1) / run + 1) * run;
}

static void bound(struct crowd *c)
{
    c->work = (struct aq_workload){.sequences = c->count, .prompt_max = 1, .total_max = 1};
    for (uint32_t i = 0; i < c->count; i++) {
        const struct aq_sequence *s = &c->one[i].s;
        uint32_t total = s->prompt_count + s->max_tokens;
        struct aq_workload *w = &c->work;
        w->prompt_max = w->prompt_max > s->prompt_count ? w->prompt_max : s->prompt_count;
        w->total_max = w->total_max > total ? w->total_max : total;
        w->prompt_sum += s->prompt_count;
        w->total_sum += total;
        w->prompt_logprobs |= s->prompt_logprobs;
    }
}

void crowd_draw(struct crowd *c, uint64_t seed, uint32_t count, uint32_t prompt_max,
                uint32_t tokens_max, uint32_t vocab)
{
    struct dice d = {seed, 0x63726f7764, 0};
    memset(c, 0, sizeof(*c));
    c->count = count;
    for (uint32_t i = 0; i < count; i++) {
        draw_one(&c->one[i], &d, prompt_max, tokens_max, vocab);
        begin_alike(c, i, seed);
    }
    bound(c);
}

uint32_t crowd_alike(const struct crowd_one *a, const struct crowd_one *b)
{
    uint32_t n = 0;
    while (n < a->s.prompt_count && n < b->s.prompt_count && a->prompt[n] == b->prompt[n])
        n++;
    return n;
}

static bool stands_before(const struct crowd_one *a, const struct crowd_one *b)
{
    uint32_t n = crowd_alike(a, b);
    if (n == a->s.prompt_count || n == b->s.prompt_count)
        return a->s.prompt_count < b->s.prompt_count;
    return a->prompt[n] < b->prompt[n];
}

static void swap_prompts(struct crowd_one *a, struct crowd_one *b)
{
    uint32_t prompt[CROWD_PROMPT_MAX], count = a->s.prompt_count;
    memcpy(prompt, a->prompt, sizeof(prompt));
    memcpy(a->prompt, b->prompt, sizeof(prompt));
    memcpy(b->prompt, prompt, sizeof(prompt));
    a->s.prompt_count = b->s.prompt_count;
    b->s.prompt_count = count;
}

void crowd_sort(struct crowd *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        for (uint32_t at = i; at > 0 && stands_before(&c->one[at], &c->one[at - 1]); at--)
            swap_prompts(&c->one[at], &c->one[at - 1]);
        c->one[i].s.prompt_logprobs = false;
        c->one[i].s.prompt_from = 0;
        c->one[i].s.prompt_logprob = NULL;
        c->one[i].s.prompt_tops = NULL;
    }
    bound(c);
}

void crowd_give(struct crowd *c, const struct crowd *whole, uint64_t seed, uint64_t number)
{
    struct dice d = {seed, number, 0x67697665};
    for (uint32_t i = 0; i < c->count; i++) {
        struct crowd_one *o = &c->one[i];
        const struct crowd_one *from = &whole->one[i];
        uint32_t given = (uint32_t)roll(&d, from->s.token_count);
        if (roll(&d, 2))
            continue;
        o->s.given_count = given;
        memcpy(o->tokens, from->tokens, given * sizeof(*o->tokens));
        memcpy(o->logprobs, from->logprobs, given * sizeof(*o->logprobs));
        if (o->s.top_count > 0)
            memcpy(o->tops, from->tops, given * (size_t)o->s.top_count * sizeof(*o->tops));
    }
}

int crowd_run(struct crowd *c, struct aq_engine *e, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < c->count; i++)
        aq_engine_submit(e, &c->one[i].s);
    bool worked = true;
    int rc = 0;
    while (worked && rc == 0)
        rc = aq_engine_pass(e, &worked, reterr);
    return rc;
}

bool crowd_whole(const struct crowd *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        const struct aq_sequence *s = &c->one[i].s;
        if (s->finish != AQ_FINISH_LENGTH || s->token_count != s->max_tokens)
            return false;
    }
    return true;
}

static bool same_tops(const struct aq_top *a, const struct aq_top *b, uint32_t count)
{
    return memcmp(a, b, count * sizeof(*a)) == 0;
}

/* What of a sequence differs first, and where; NULL: nothing. */
static const char *first_difference(const struct crowd_one *a, const struct crowd_one *b,
                                    uint32_t *ret_at)
{
    uint32_t tops = CROWD_TOPS;
    *ret_at = 0;
    if (a->s.finish != b->s.finish || a->s.token_count != b->s.token_count)
        return "the end";
    for (uint32_t i = 0; i < a->s.token_count; i++) {
        *ret_at = i;
        if (a->tokens[i] != b->tokens[i])
            return "a token";
        if (memcmp(&a->logprobs[i], &b->logprobs[i], sizeof(float)))
            return "the log-probability of a token";
        if (!same_tops(a->tops + i * tops, b->tops + i * tops, tops))
            return "alternatives of a token";
    }
    for (uint32_t i = 0; i < a->s.prompt_count; i++) {
        *ret_at = i;
        if (memcmp(&a->prompt_logprob[i], &b->prompt_logprob[i], sizeof(float)))
            return "the log-probability of a prompt token";
        if (!same_tops(a->prompt_tops + i * tops, b->prompt_tops + i * tops, tops))
            return "alternatives of a prompt token";
    }
    return NULL;
}

bool crowd_same_ended(const struct crowd *want, const struct crowd *got, uint32_t *ret_ended,
                      char *text, size_t text_bytes)
{
    *ret_ended = 0;
    for (uint32_t i = 0; i < want->count; i++) {
        const struct crowd_one *a = &want->one[i], *b = &got->one[i];
        if (b->s.finish == AQ_FINISH_NONE)
            continue;
        uint32_t at;
        const char *what = first_difference(a, b, &at);
        if (what) {
            snprintf(text, text_bytes,
                     "sequence %u (prompt %u, %u of %u tokens): %s differs, number %u", i,
                     a->s.prompt_count, b->s.token_count, a->s.token_count, what, at);
            return false;
        }
        ++*ret_ended;
    }
    return true;
}

bool crowd_same(const struct crowd *want, const struct crowd *got, char *text, size_t text_bytes)
{
    uint32_t ended;
    if (!crowd_same_ended(want, got, &ended, text, text_bytes))
        return false;
    if (ended < want->count)
        snprintf(text, text_bytes, "%u of %u sequences ended", ended, want->count);
    return ended == want->count;
}

uint64_t crowd_hash(const struct crowd *c)
{
    uint64_t h = c->count;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct crowd_one *o = &c->one[i];
        uint64_t end[] = {h, o->s.token_count, o->s.finish};
        h = XXH3_64bits_withSeed(end, sizeof(end), h);
        h = XXH3_64bits_withSeed(o->tokens, sizeof(o->tokens), h);
        h = XXH3_64bits_withSeed(o->logprobs, sizeof(o->logprobs), h);
        h = XXH3_64bits_withSeed(o->prompt_logprob, sizeof(o->prompt_logprob), h);
    }
    return h;
}

/* ---- options ----------------------------------------------------------------------------- */

void drawn_formats(struct aq_engine_opts *opts, uint64_t seed, uint64_t number)
{
    static const int computes[] = {AQ_F32, AQ_BF16};
    static const int weights[] = {AQ_F16, AQ_BF16, AQ_Q8, AQ_Q4, AQ_F32};
    static const int kvs[] = {AQ_F16, AQ_Q8, AQ_Q4, AQ_BF16, AQ_F32};
    struct dice d = {seed, number, 1000};
    opts->compute = PICK(&d, computes);
    opts->weight_format = PICK(&d, weights);
    opts->kv_format = PICK(&d, kvs);
}

#define SLOTS(n)                                                                                   \
    {                                                                                              \
        .unit = AQ_KV_SLOTS, .slots = (n)                                                          \
    }
#define SHARE(s)                                                                                   \
    {                                                                                              \
        .unit = AQ_KV_SHARE, .share = (s)                                                          \
    }

/* Prompts that are cut and prompts that are not; one run of slots or two, whole or not; on disk
 * more rows than a delta takes. */
static const struct aq_kv_options kv_options[DRAWN_KV - 1] = {
    {.policy = "full"},
    {.policy = "h2o", .budget = SLOTS(6)},
    {.policy = "h2o", .budget = SLOTS(33)},
    {.policy = "h2o", .budget = SLOTS(64)},
    {.policy = "h2o", .budget = SHARE(0.4)},
    {.policy = "h2o", .budget = SHARE(1)},
    {.policy = "h2o",
     .heavy = SLOTS(12),
     .recent = SLOTS(24),
     .sinks_given = true,
     .sinks = 2,
     .grace = 29,
     .decay = 0.9,
     .group_given = true,
     .group = AQ_ATTN_MAX},
    {.policy = "h2o:flexgen", .budget = SHARE(0.3)},
    {.policy = "h2o:hf", .heavy = SLOTS(14), .recent = SLOTS(20)},
    {.policy = "window", .budget = SLOTS(40)},
    {.policy = "window", .recent = SLOTS(9), .sinks_given = true},
    {.policy = "heavy", .budget = SHARE(0.3)},
    {.policy = "adakv", .budget = SLOTS(6)},
    {.policy = "adakv", .budget = SLOTS(33), .heavy = SLOTS(24), .floor = SLOTS(0)},
    {.policy = "adakv", .budget = SHARE(0.4)},
    {.policy = "adakv",
     .heavy = SLOTS(40),
     .recent = SLOTS(8),
     .sinks_given = true,
     .sinks = 2,
     .grace = 11,
     .decay = 0.9},
    {.policy = "snapkv", .budget = SLOTS(33)},
    {.policy = "snapkv",
     .budget = SHARE(0.3),
     .observe_given = true,
     .observe = 5,
     .pool_given = true,
     .pool = AQ_KV_POOL_MAX,
     .pool_width = 7,
     .group_given = true,
     .group = AQ_ATTN_MAX_OF_SUMS},
    {.policy = "pyramidkv", .budget = SLOTS(36)},
    {.policy = "ada-snapkv", .budget = SLOTS(40), .observe_given = true, .observe = 4},
    {.policy = "ada-snapkv",
     .budget = SHARE(0.6),
     .observe_given = true,
     .observe = 3,
     .floor = SLOTS(0),
     .layers_given = true,
     .layers = AQ_KV_LAYERS_RISING,
     .beta = 3},
    {.policy = "ada-pyramid", .budget = SHARE(0.4), .observe_given = true, .observe = 9},
    {.policy = "keydiff", .budget = SLOTS(33), .heads_given = true, .heads = AQ_KV_HEADS_SHARED},
    {.policy = "tova", .budget = SLOTS(20)},
    {.policy = "tova", .budget = SHARE(0.4)},
    {.policy = "knorm", .budget = SLOTS(9)},
    {.policy = "keydiff", .budget = SHARE(0.5), .sinks_given = true, .sinks = 2},
    {.policy = "expected", .budget = SHARE(0.4), .ahead_given = true, .ahead = 40},
    {.policy = "expected", .budget = SLOTS(33)},
    {.policy = "scissorhands", .budget = SLOTS(30)},
    {.policy = "scissorhands",
     .budget = SLOTS(70),
     .drop = SLOTS(45),
     .layers_given = true,
     .layers = AQ_KV_LAYERS_RISING,
     .beta = 3},
    {.policy = "h2o",
     .budget = SLOTS(40),
     .decode_given = true,
     .decode = AQ_KV_DECODE_BULK,
     .drop = SLOTS(3)},
    {.policy = "h2o",
     .budget = SHARE(0.5),
     .decode_given = true,
     .decode = AQ_KV_DECODE_BULK,
     .history_given = true,
     .history = 7},
    {.policy = "snapkv",
     .budget = SLOTS(66),
     .decode_given = true,
     .decode = AQ_KV_DECODE_BULK,
     .drop = SLOTS(33),
     .observe_given = true,
     .observe = 6},
    {.policy = "snapkv",
     .budget = SLOTS(18),
     .decode_given = true,
     .decode = AQ_KV_DECODE_BULK,
     .observe_given = true,
     .observe = 4},
};

static struct aq_kv_amount draw_amount(struct dice *d, bool needed)
{
    struct aq_kv_amount a = {0};
    if (!needed && roll(d, 2))
        return a;
    a.unit = roll(d, 2) ? AQ_KV_SLOTS : AQ_KV_SHARE;
    a.slots = a.unit == AQ_KV_SLOTS ? 1 + (uint32_t)roll(d, 70) : 0;
    a.share = a.unit == AQ_KV_SHARE ? (double)(1 + roll(d, 100)) / 100 : 0;
    return a;
}

/* Of keys that are dropped many at a time; likewise. */
static void draw_bulk(struct aq_kv_options *o, struct dice *d)
{
    bool always = aq_kv_policy_find(o->policy)->bulk;
    o->decode_given = roll(d, always ? 2 : 3) == 0;
    o->decode = AQ_KV_DECODE_BULK;
    if (!o->decode_given && !always)
        return;
    o->drop = draw_amount(d, false);
    o->history_given = roll(d, 2);
    o->history = (uint32_t)roll(d, 40);
    if (o->history && roll(d, 8) == 0)
        o->history = 4000;
    if (always)
        o->low = roll(d, 2) ? 0 : (double)(1 + roll(d, 30)) / 10;
    if (always && roll(d, 2))
        o->recent = draw_amount(d, true);
}

/* Options of a policy that ranks prompts in a way of its own; likewise. */
static void draw_ranked(struct aq_kv_options *o, struct dice *d)
{
    o->budget = draw_amount(d, true);
    o->sinks_given = roll(d, 4) == 0;
    o->sinks = o->sinks_given ? (uint32_t)roll(d, 4) : 0;
    o->heads_given = roll(d, 2);
    o->heads = (enum aq_kv_heads)roll(d, 2);
    if (roll(d, 3) == 0)
        o->floor = draw_amount(d, true);
    o->floor_kind = (enum aq_kv_floor)roll(d, 2);
    o->layers_given = roll(d, 3) == 0;
    o->layers = (enum aq_kv_layers)roll(d, 3);
    o->beta = 1 + (uint32_t)roll(d, 20);
    draw_bulk(o, d);
    if (!aq_kv_policy_find(o->policy)->prompt.pool)
        return;
    o->observe_given = roll(d, 4) > 0;
    o->observe = (uint32_t)roll(d, 20);
    o->pool_given = roll(d, 2);
    o->pool = (enum aq_kv_pool)roll(d, 3);
    o->pool_width = 1 + 2 * (uint32_t)roll(d, 6);
    o->pool_order_given = roll(d, 2);
    o->pool_first = roll(d, 2);
    o->group_given = roll(d, 2);
    o->group = o->group_given ? (enum aq_attn_group)roll(d, 5) : AQ_ATTN_SUM;
}

/* Options of a policy that drops keys, of which some will not go together. */
static void draw_kv_options(struct aq_kv_options *o, struct dice *d)
{
    static const char *const names[] = {"h2o",         "h2o:flexgen", "h2o:hf",      "window",
                                        "heavy",       "adakv",       "snapkv",      "tova",
                                        "knorm",       "keydiff",     "pyramidkv",   "ada-snapkv",
                                        "ada-pyramid", "ada-snapkv",  "scissorhands"};
    bool hf = false;
    *o = (struct aq_kv_options){.policy = PICK(d, names)};
    const struct aq_kv_score *by = &aq_kv_policy_find(o->policy)->prompt;
    if (by->rows || by->source > AQ_KV_SOURCE_COLUMNS) {
        draw_ranked(o, d);
        return;
    }
    hf = strcmp(o->policy, "h2o:hf") == 0;
    if (!hf)
        o->budget = draw_amount(d, roll(d, 4) > 0);
    o->heavy = draw_amount(d, hf);
    o->recent = draw_amount(d, hf);
    if (strcmp(o->policy, "adakv") == 0)
        o->floor = draw_amount(d, false);
    o->sinks_given = roll(d, 2) == 0;
    o->sinks = o->sinks_given ? (uint32_t)roll(d, 7) : 0;
    o->grace = roll(d, 3) ? 0 : (uint32_t)roll(d, 40);
    o->decay = roll(d, 3) ? 0 : (double)(1 + roll(d, 100)) / 100;
    o->group_given = roll(d, 3) == 0;
    o->group = o->group_given ? (enum aq_attn_group)roll(d, 4) : AQ_ATTN_SUM;
    if (strcmp(o->policy, "h2o") == 0)
        draw_bulk(o, d);
}

uint32_t drawn_kv(struct aq_engine_opts *opts, uint64_t seed, uint64_t number)
{
    struct dice d = {seed, number, 2000};
    uint32_t which = (uint32_t)roll(&d, 2 * (DRAWN_KV - 1));
    struct aq_kv_options o;
    int rc = -EINVAL;
    if (which < DRAWN_KV - 1)
        rc = aq_kv_policy_resolve(&opts->kv, &kv_options[which], NULL);
    else
        which = DRAWN_KV - 1;
    for (int tries = 0; rc < 0 && tries < 10000; tries++) {
        draw_kv_options(&o, &d);
        rc = aq_kv_policy_resolve(&opts->kv, &o, NULL);
    }
    assert(rc == 0);
    return which;
}

struct aq_engine_opts drawn_reference(const struct aq_engine_opts *opts)
{
    struct aq_engine_opts o = {
        .model_dir = opts->model_dir,
        .shape = opts->shape,
        .random_weights = opts->random_weights,
        .random_seed = opts->random_seed,
        .compute = opts->compute,
        .weight_format = opts->weight_format,
        .kv_format = opts->kv_format,
        .kv = opts->kv,
        .classes = opts->classes,
        .threads = 1,
        .host_memory = 2 * AQ_GIB,
        .placement = placed("weights=0/100/0"),
        .serial = true,
        .refill = true,
    };
    return o;
}

/* One tier, two of them, or all three in tenths of a percent. */
static int draw_shares(char *text, size_t bytes, struct dice *d, const char *name)
{
    unsigned share[3] = {0};
    uint64_t how = roll(d, 4), tier = roll(d, 3);
    if (how == 0) {
        share[tier] = 1000;
    } else if (how < 3) {
        uint64_t cut = 1 + roll(d, 999);
        share[tier] = (unsigned)cut;
        share[(tier + 1) % 3] = 1000 - (unsigned)cut;
    } else {
        share[0] = (unsigned)roll(d, 1001);
        share[1] = (unsigned)roll(d, 1001 - share[0]);
        share[2] = 1000 - share[0] - share[1];
    }
    return snprintf(text, bytes, "%s=%u.%u/%u.%u/%u.%u ", name, share[0] / 10, share[0] % 10,
                    share[1] / 10, share[1] % 10, share[2] / 10, share[2] % 10);
}

static void draw_placement(struct drawn *d, struct dice *dice)
{
    static const char *const names[] = {"weights", "kv", "hidden"};
    size_t used = 0, size = sizeof(d->placement);
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(names); i++)
        used += (size_t)draw_shares(d->placement + used, size - used, dice, names[i]);
    snprintf(d->placement + used, size - used, "head=%s", roll(dice, 2) ? "device" : "host");
    d->opts.placement = placed(d->placement);
}

static void draw_ring(struct aq_engine_opts *o, struct dice *d, uint64_t pages)
{
    if (roll(d, 2))
        o->chunk = 4096 * (1 + pages / 8 + roll(d, roll(d, 2) ? pages : pages / 4));
    if (roll(d, 3) == 0)
        o->prefetch = (o->chunk ? o->chunk : AQ_MIB) * (2 + roll(d, 24));
}

/* Of what rests on the host of a separate device some, all or nothing is computed there.  By dice
 * of their own, which change no other draw. */
static void draw_host_products(struct drawn *d, bool separate, uint64_t seed, uint64_t number)
{
    struct dice dice = {seed, number, 3000};
    uint64_t how = roll(&dice, 4);
    unsigned share = how == 0 ? 0 : how == 1 ? 1000 : (unsigned)roll(&dice, 1001);
    snprintf(d->host_products, sizeof(d->host_products), "%u.%u%%", share / 10, share % 10);
    d->opts.host_products = multiplied(separate ? d->host_products : NULL);
}

void drawn_plan(struct drawn *d, uint64_t seed, uint64_t number, const struct drawn_place *place)
{
    static const char *const attention[] = {"auto", "device", "host", "split", "split:30%"};
    static const enum aq_io_kind io[] = {AQ_IO_AUTO, AQ_IO_URING, AQ_IO_THREADS};
    static const enum aq_direct direct[] = {AQ_DIRECT_AUTO, AQ_DIRECT_OFF, AQ_DIRECT_ON};
    struct dice dice = {seed, number, 0};
    struct aq_engine_opts *o = &d->opts;
    char policy[160];
    bool separate = roll(&dice, 3) > 0;
    draw_placement(d, &dice);
    draw_ring(o, &dice, place->chunk_pages);
    o->host_memory = 2 * AQ_GIB;
    o->emulate_device = separate ? AQ_MIB << (roll(&dice, 8) ? 6 : roll(&dice, 6)) : 0;
    if (separate && roll(&dice, 6) == 0) { /* chosen: for a device that may be too small */
        o->placement = placed(NULL);
        o->emulate_device = AQ_MIB + roll(&dice, 24 * AQ_MIB);
    }
    if (separate && roll(&dice, 4) == 0) {
        snprintf(d->link, sizeof(d->link), "%u/%u", 1 + (unsigned)roll(&dice, 20),
                 1 + (unsigned)roll(&dice, 20));
        o->emulate_link = linked(d->link);
    }
    const char *side = PICK(&dice, attention);
    o->attention = attended(side);
    o->threads = 1 + (uint32_t)roll(&dice, 3);
    o->micro_batch = roll(&dice, 6) ? 1 + (uint32_t)roll(&dice, 7) : 0;
    o->micro_batches = 1 + (uint32_t)roll(&dice, 4);
    o->micro_batch_tokens = roll(&dice, 2) ? 1 + (uint32_t)roll(&dice, 200) : 0;
    o->serial = roll(&dice, 4) == 0;
    o->refill = roll(&dice, 4) > 0;
    o->share_prefixes = (number / 3 + o->serial) % 4 > 0;
    o->fuse_layer = roll(&dice, 4) == 0;
    o->side_by_side = !separate && o->micro_batches > 1 && (number / 2 + o->serial) % 3 > 0
                          ? AQ_BESIDE_ON
                          : AQ_BESIDE_OFF;
    o->alternate = roll(&dice, 2) == 0;
    o->io = PICK(&dice, io);
    o->io_direct = direct[roll(&dice, place->direct ? 3 : 2)];
    o->disk_dir_count = 1 + (uint32_t)roll(&dice, place->dir_count);
    for (uint32_t i = 0; i < o->disk_dir_count; i++)
        d->dirs[i] = place->dirs[roll(&dice, place->dir_count)]; /* also twice the same */
    o->disk_dirs = d->dirs;
    draw_host_products(d, separate, seed, number);
    o->disk_dir_any = true;
    o->cache_dir = place->cache_dir;
    o->verify_store = (enum aq_verify)roll(&dice, 3);
    snprintf(
        d->text, sizeof(d->text),
        "compute %s, weights %s, kv %s, %s; %s; device %llu, link %s, attention %s; micro-batch "
        "%u x %u, tokens %u; host products %s; chunk %llu, prefetch %llu; %s, refill %d, fused %d, "
        "beside %d, alternate %d, threads %u; io %s, direct %u, %u dirs, verify %u",
        aq_dtype_name((enum aq_dtype)o->compute), aq_dtype_name((enum aq_dtype)o->weight_format),
        aq_dtype_name((enum aq_dtype)o->kv_format),
        aq_kv_policy_text(policy, sizeof(policy), &o->kv),
        o->placement.given ? d->placement : "placement auto", (unsigned long long)o->emulate_device,
        o->emulate_link.bytes_per_s[0] ? d->link : "free", side, o->micro_batch, o->micro_batches,
        o->micro_batch_tokens, o->host_products.given ? d->host_products : "auto",
        (unsigned long long)o->chunk, (unsigned long long)o->prefetch,
        o->serial ? "serial" : "overlapped", o->refill, o->fuse_layer,
        o->side_by_side == AQ_BESIDE_ON, o->alternate, o->threads, aq_io_kind_name(o->io),
        (unsigned)o->io_direct, o->disk_dir_count, (unsigned)o->verify_store);
}
