/* SPDX-License-Identifier: Apache-2.0
 * Makes a policy of the user's options; refuses, with a sentence, options that exclude each
 * other. */
#include "policy/kv_profile.h"
#include "policy/kv_read.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    SINKS_OF_WINDOW = 4,   /* as StreamingLLM has it */
    SINKS_OF_EXPECTED = 4, /* as kvpress has it */
    RECENT_OF_SCISSORHANDS = 10,
    RECENT_OF_KVCOMPRESS = 64 /* as its program's engine has it */
};
/* The value of Ada-KV's programs for grouped query heads, and of kvpress. */
static const double floor_of_adakv = 0.2;

static bool given(const struct aq_kv_amount *a)
{
    return a->unit != AQ_KV_UNSET;
}

static bool is_zero(const struct aq_kv_amount *a)
{
    return a->unit == AQ_KV_SLOTS ? a->slots == 0 : given(a) && !(a->share > 0);
}

static int refuse(struct aq_err *reterr, const char *policy, const char *option, const char *why)
{
    return aq_error(reterr, -EINVAL, "--kv-policy %s: %s does not go with it: %s", policy, option,
                    why);
}

/* The name of a given option that only policies with scores have; NULL: none is given. */
static const char *score_option(const struct aq_kv_options *o)
{
    if (o->decay > 0)
        return "--kv-decay";
    if (o->grace)
        return "--kv-grace";
    return o->group_given ? "--kv-group" : NULL;
}

/* The name of a given option that only drops of many keys have; NULL: none is given. */
static const char *bulk_option(const struct aq_kv_options *o)
{
    return given(&o->drop) ? "--kv-drop" : o->history_given ? "--kv-history" : NULL;
}

/* Amounts in the same unit can be compared before there is a sequence. */
static bool comparable(const struct aq_kv_amount *a, const struct aq_kv_amount *b)
{
    return given(a) && a->unit == b->unit;
}

/* a + b > limit, of one unit; shares to within their last digits. */
static bool above(const struct aq_kv_amount *a, const struct aq_kv_amount *b,
                  const struct aq_kv_amount *limit)
{
    if (limit->unit == AQ_KV_SLOTS)
        return (uint64_t)a->slots + b->slots > limit->slots;
    return a->share + b->share > limit->share + 1e-9;
}

static int check_amounts(const struct aq_kv_options *o, struct aq_err *reterr)
{
    const struct aq_kv_amount *const amount[] = {&o->budget, &o->heavy, &o->recent, &o->floor,
                                                 &o->drop};
    static const char *const name[] = {"--kv-budget", "--kv-heavy", "--kv-recent", "--kv-floor",
                                       "--kv-drop"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(amount); i++) {
        if (amount[i]->unit == AQ_KV_SHARE && !(amount[i]->share >= 0 && amount[i]->share <= 1))
            return aq_error(reterr, -EINVAL, "%s: expected a share of at most 100%%, found %g%%",
                            name[i], 100 * amount[i]->share);
    }
    if (is_zero(&o->budget))
        return aq_error(reterr, -EINVAL,
                        "--kv-budget 0: no token could be kept; expected a share such as 20%% or a "
                        "number of slots from 2 on");
    if (o->budget.unit == AQ_KV_SLOTS && o->budget.slots == 1)
        return aq_error(reterr, -EINVAL,
                        "--kv-budget 1: 100 %% or one token?  expected 100%% for the whole "
                        "sequence, or a number of slots from 2 on");
    if (is_zero(&o->recent))
        return aq_error(reterr, -EINVAL,
                        "--kv-recent 0: the newest token attends itself, so it is always kept; "
                        "expected 1 or more");
    if (o->decay < 0 || o->decay > 1)
        return aq_error(reterr, -EINVAL,
                        "--kv-decay %g: expected a factor above 0 and at most 1 (1: none)",
                        o->decay);
    return 0;
}

/* ---- policy by policy ---------------------------------------------------------------------- */

static int resolve_full(struct aq_kv_policy *p, const struct aq_kv_options *o,
                        struct aq_err *reterr)
{
    const char *option = given(&o->heavy)    ? "--kv-heavy"
                         : given(&o->recent) ? "--kv-recent"
                         : o->sinks_given    ? "--kv-sinks"
                                             : score_option(o);
    bool whole = o->budget.unit == AQ_KV_SHARE && o->budget.share >= 1;
    if (given(&o->budget) && !whole)
        option = "--kv-budget";
    *p = (struct aq_kv_policy){0};
    return option ? refuse(reterr, "full", option,
                           "it keeps every token; --kv-policy h2o (or window, heavy) keeps fewer")
                  : 0;
}

static int check_h2o_parts(const char *name, const struct aq_kv_options *o, struct aq_err *reterr)
{
    char b[32], h[32], r[32];
    static const struct aq_kv_amount nothing;
    aq_kv_amount_text(b, &o->budget);
    aq_kv_amount_text(h, &o->heavy);
    aq_kv_amount_text(r, &o->recent);
    if (!given(&o->budget) && !(given(&o->heavy) && given(&o->recent)))
        return aq_error(reterr, -EINVAL,
                        "--kv-policy %s: expected --kv-budget (such as 20%% or 256), or both "
                        "--kv-heavy and --kv-recent",
                        name);
    bool heavy = comparable(&o->heavy, &o->budget), recent = comparable(&o->recent, &o->budget);
    if (heavy && recent && above(&o->heavy, &o->recent, &o->budget))
        return aq_error(reterr, -EINVAL,
                        "--kv-heavy %s and --kv-recent %s together are above --kv-budget %s; leave "
                        "one of the three out, or make the budget their sum",
                        h, r, b);
    if (heavy && !given(&o->recent) && !above(&o->budget, &nothing, &o->heavy))
        return aq_error(reterr, -EINVAL,
                        "--kv-heavy %s leaves nothing of --kv-budget %s for recent tokens, of "
                        "which one at least is kept",
                        h, b);
    if (recent && above(&o->recent, &nothing, &o->budget))
        return aq_error(reterr, -EINVAL, "--kv-recent %s is above --kv-budget %s", r, b);
    return 0;
}

/* Sinks and grace against parts that are numbers of slots. */
static int check_h2o_slots(const struct aq_kv_policy *p, struct aq_err *reterr)
{
    uint32_t heavy, recent;
    if (!aq_kv_policy_in_slots(p))
        return 0; /* limits lower them for each sequence */
    aq_kv_policy_split(&heavy, &recent, p, 0);
    if (p->sinks > heavy)
        return aq_error(reterr, -EINVAL,
                        "--kv-sinks %u: sinks are among the heavy tokens, of which there are %u",
                        p->sinks, heavy);
    if ((uint64_t)p->sinks + p->grace > (uint64_t)heavy + recent)
        return aq_error(reterr, -EINVAL,
                        "--kv-grace %u: with %u sinks and %u slots no token could be dropped; "
                        "expected at most %u",
                        p->grace, p->sinks, heavy + recent, heavy + recent - p->sinks);
    return 0;
}

/* What each head keeps for itself, against what it is a part of. */
static int check_floor(const struct aq_kv_policy *p, const struct aq_kv_options *o,
                       struct aq_err *reterr)
{
    bool slots = p->floor.unit == AQ_KV_SLOTS && p->heavy.unit == AQ_KV_SLOTS;
    if (slots && p->floor.slots > p->heavy.slots)
        return aq_error(reterr, -EINVAL,
                        "--kv-floor %u is above --kv-heavy %u, of which it is the part that each "
                        "head keeps for itself",
                        p->floor.slots, p->heavy.slots);
    if (!aq_kv_policy_in_slots(p) || !p->grace)
        return 0;
    struct aq_kv_limits l;
    aq_kv_policy_limits(&l, p, 1, 1, 0, 1);
    return p->grace <= l.recent_decode
               ? 0
               : aq_error(reterr, -EINVAL,
                          "--kv-grace %u: a head may hold no more than its %u recent tokens and a "
                          "floor of %u; with %u sinks expected at most %u",
                          p->grace, l.recent_prompt, l.floor_prompt, l.sinks, l.recent_decode);
}

static int need_budget(const char *policy, const struct aq_kv_options *o, struct aq_err *reterr)
{
    return given(&o->budget)
               ? 0
               : aq_error(reterr, -EINVAL,
                          "--kv-policy %s: expected --kv-budget, such as 20%% or 256", policy);
}

/* Parts of the budget that a drop of many leaves. */
static int check_bulk_slots(const struct aq_kv_policy *p, struct aq_err *reterr)
{
    struct aq_kv_amount drop = p->drop;
    if (!aq_kv_policy_in_slots(p))
        return 0; /* limits lower them for each sequence */
    if (drop.unit == AQ_KV_SLOTS && drop.slots >= p->budget.slots)
        return aq_error(reterr, -EINVAL,
                        "--kv-drop %u: a drop of all of --kv-budget %u would leave nothing; "
                        "expected fewer slots, or a share such as 25%%",
                        drop.slots, p->budget.slots);
    struct aq_kv_limits l;
    struct aq_kv_policy even = *p;
    even.layers = AQ_KV_LAYERS_UNIFORM;
    aq_kv_policy_limits(&l, &even, 1, 1, 0, 1);
    if (!l.heavy_prompt)
        return aq_error(reterr, -EINVAL,
                        "--kv-drop: of --kv-budget %u a drop leaves %u, which are the newest "
                        "tokens, and nothing is left to choose; expected a smaller drop, fewer "
                        "recent tokens, or a larger budget",
                        p->budget.slots, l.recent_prompt);
    if (p->heavy.unit == AQ_KV_SLOTS && p->heavy.slots > l.heavy_prompt)
        return aq_error(reterr, -EINVAL,
                        "--kv-heavy %u: of --kv-budget %u a drop leaves %u, one of them a recent "
                        "token; expected at most %u, or a smaller --kv-drop",
                        p->heavy.slots, p->budget.slots, aq_kv_limits_cut(&l), l.heavy_prompt);
    return p->sinks <= l.heavy_prompt
               ? 0
               : aq_error(reterr, -EINVAL,
                          "--kv-sinks %u: sinks are among the heavy tokens, of which a drop "
                          "leaves %u",
                          p->sinks, l.heavy_prompt);
}

/* What a policy that drops keys in bulk may be given, whatever ranks them. */
static int check_bulk(const struct aq_kv_policy *p, const struct aq_kv_options *o,
                      struct aq_err *reterr)
{
    bool all = p->drop.unit == AQ_KV_SHARE && p->drop.share >= 1;
    if (is_zero(&p->drop) || all)
        return aq_error(reterr, -EINVAL,
                        "--kv-drop: expected a part of the budget such as 25%%, or a number of "
                        "slots; %s would be dropped",
                        all ? "everything" : "nothing");
    if (o->grace)
        return refuse(reterr, p->desc->name, "--kv-grace",
                      "keys are dropped in bulk, and the newest --kv-recent of them stay");
    if (given(&o->heavy) && given(&o->recent))
        return refuse(reterr, p->desc->name, "--kv-heavy with --kv-recent",
                      "keys are dropped in bulk, and of what a drop leaves one is the rest");
    if (p->prompt.group == AQ_ATTN_MAX_OF_SUMS)
        return refuse(reterr, p->desc->name, "--kv-group max-of-sums",
                      "keys are dropped in bulk by scores that go on after the prompt, one for all "
                      "query heads of a KV head; --kv-group max is of each query");
    if (p->prompt.pool && !p->history)
        return refuse(reterr, p->desc->name, "--kv-history 0",
                      "ranks of a prompt that are pooled cannot go on as sums; --kv-history 32, or "
                      "--kv-policy h2o");
    int rc = need_budget(p->desc->name, o, reterr);
    return rc < 0 ? rc : check_bulk_slots(p, reterr);
}

static int resolve_h2o(struct aq_kv_policy *p, const struct aq_kv_options *o, struct aq_err *reterr)
{
    if (p->bulk)
        return 0; /* check_bulk */
    int rc = check_h2o_parts(p->desc->name, o, reterr);
    rc = rc < 0 ? rc : check_h2o_slots(p, reterr);
    return rc < 0 || p->heads != AQ_KV_HEADS_SHARED ? rc : check_floor(p, o, reterr);
}

static int resolve_heavy(struct aq_kv_policy *p, const struct aq_kv_options *o,
                         struct aq_err *reterr)
{
    if (given(&o->heavy) || given(&o->recent))
        return refuse(reterr, "heavy", given(&o->heavy) ? "--kv-heavy" : "--kv-recent",
                      "it keeps the budget less one, and the newest token; --kv-policy h2o takes "
                      "both parts");
    if (!given(&o->budget))
        return aq_error(reterr, -EINVAL,
                        "--kv-policy heavy: expected --kv-budget, such as 20%% or 256");
    p->recent = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = 1};
    return check_h2o_slots(p, reterr);
}

static int resolve_window(struct aq_kv_policy *p, const struct aq_kv_options *o,
                          struct aq_err *reterr)
{
    const char *option = given(&o->heavy) ? "--kv-heavy" : score_option(o);
    char b[32], r[32];
    aq_kv_amount_text(b, &o->budget);
    aq_kv_amount_text(r, &o->recent);
    if (option)
        return refuse(reterr, "window", option,
                      "it keeps the first (--kv-sinks) and the newest tokens, whatever their "
                      "scores");
    if (!o->sinks_given)
        p->sinks = SINKS_OF_WINDOW;
    if (!given(&o->budget) && !given(&o->recent))
        return aq_error(reterr, -EINVAL,
                        "--kv-policy window: expected --kv-budget or --kv-recent, such as 20%% or "
                        "256");
    if (o->budget.unit == AQ_KV_SLOTS && o->budget.slots <= p->sinks)
        return aq_error(reterr, -EINVAL,
                        "--kv-budget %s: a window smaller than its %u sinks and one recent token; "
                        "expected %u or more, or a smaller --kv-sinks",
                        b, p->sinks, p->sinks + 1);
    if (comparable(&o->recent, &o->budget) &&
        (o->budget.unit == AQ_KV_SLOTS ? (uint64_t)p->sinks + o->recent.slots > o->budget.slots
                                       : o->recent.share > o->budget.share))
        return aq_error(reterr, -EINVAL,
                        "--kv-recent %s and %u sinks together are above --kv-budget %s", r,
                        p->sinks, b);
    return 0;
}

/* ---- prompts that are cut, and then grow ---- */

/* An option that says what h2o keeps beside its heavy tokens; NULL: none is given. */
static const char *h2o_option(const struct aq_kv_options *o)
{
    return given(&o->heavy)    ? "--kv-heavy"
           : given(&o->recent) ? "--kv-recent"
           : o->grace          ? "--kv-grace"
           : o->decay > 0      ? "--kv-decay"
                               : NULL;
}

/* Sinks are among the tokens that compete. */
static int check_grow_sinks(const struct aq_kv_policy *p, struct aq_err *reterr)
{
    uint32_t rows = p->prompt.rows;
    if (p->budget.unit != AQ_KV_SLOTS)
        return 0;
    if (rows >= p->budget.slots)
        return aq_error(reterr, -EINVAL,
                        "--kv-budget %u: the last %u tokens stay whatever they score, and nothing "
                        "is left to choose; expected a larger budget, or --kv-observe below it",
                        p->budget.slots, rows);
    if (p->sinks > p->budget.slots - rows)
        return aq_error(reterr, -EINVAL,
                        "--kv-sinks %u: sinks are among the tokens that compete for the budget, "
                        "of which there are %u",
                        p->sinks, p->budget.slots - rows);
    return 0;
}

/* How the last queries of a prompt rank its keys. */
static int take_ranks(struct aq_kv_policy *p, const struct aq_kv_options *o, struct aq_err *reterr)
{
    struct aq_kv_score *s = &p->prompt;
    if (o->observe_given)
        s->rows = o->observe;
    if (o->pool_given) {
        s->pool = o->pool;
        s->pool_width = o->pool_width;
    }
    if (o->pool_order_given && s->pool == AQ_KV_POOL_NONE)
        return aq_error(reterr, -EINVAL,
                        "--kv-pool-order: --kv-pool none leaves nothing to be ordered");
    if (o->pool_order_given)
        s->pool_first = o->pool_first;
    if (o->observe_given && !o->observe)
        return aq_error(reterr, -EINVAL,
                        "--kv-observe 0: no query would score the tokens; expected 1 or more");
    if (s->group == AQ_ATTN_MAX && s->pool && s->pool_first)
        return aq_error(reterr, -EINVAL,
                        "--kv-group max: the largest of each query, which is before pooling; "
                        "expected --kv-pool-order group-first, --kv-pool none, or --kv-group "
                        "max-of-sums");
    return need_budget(p->desc->name, o, reterr);
}

static int resolve_snapkv(struct aq_kv_policy *p, const struct aq_kv_options *o,
                          struct aq_err *reterr)
{
    const char *option = h2o_option(o);
    if (option)
        return refuse(reterr, p->desc->name, option,
                      "it chooses once, at the prompt's end, and keeps the tokens that chose "
                      "(--kv-observe)");
    int rc = take_ranks(p, o, reterr);
    return rc < 0 || p->bulk ? rc : check_grow_sinks(p, reterr);
}

static int resolve_scissorhands(struct aq_kv_policy *p, const struct aq_kv_options *o,
                                struct aq_err *reterr)
{
    const char *option = given(&o->heavy) ? "--kv-heavy" : o->decay > 0 ? "--kv-decay" : NULL;
    if (option)
        return refuse(reterr, "scissorhands", option,
                      "it counts how often a token got little attention (--kv-low) of the last "
                      "queries (--kv-history)");
    if (!given(&o->recent))
        p->recent = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = RECENT_OF_SCISSORHANDS};
    if (o->history_given)
        p->prompt.rows = o->history;
    return 0;
}

/* Heads of all layers share: the newest tokens stay in each of them, whole head-blocks at least. */
static int resolve_kvcompress(struct aq_kv_policy *p, const struct aq_kv_options *o,
                              struct aq_err *reterr)
{
    const char *option = given(&o->heavy) ? "--kv-heavy"
                         : o->sinks_given ? "--kv-sinks"
                         : o->grace       ? "--kv-grace"
                         : o->decay > 0   ? "--kv-decay"
                                          : NULL;
    if (option)
        return refuse(reterr, p->desc->name, option,
                      "it chooses once, among all tokens of all layers but the newest of each head "
                      "(--kv-recent)");
    if (p->layers != AQ_KV_LAYERS_UNIFORM)
        return refuse(reterr, p->desc->name, "--kv-layers",
                      "its layers share one budget, and each gets what its tokens are worth");
    if (o->cross_layer_given && o->cross_layer != 0 && o->cross_layer < 1)
        return aq_error(reterr, -EINVAL,
                        "--kv-cross-layer %g: even shares that a layer keeps until all are ranked; "
                        "expected 1 or more, or 0 for whole prompts",
                        o->cross_layer);
    p->cross_layer = o->cross_layer_given ? o->cross_layer : AQ_KV_CROSS_LAYER_DEFAULT;
    if (!given(&o->recent))
        p->recent = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = RECENT_OF_KVCOMPRESS};
    int rc = take_ranks(p, o, reterr);
    uint64_t room = aq_align_up(p->recent.slots, AQ_HEAD_BLOCK_SLOTS);
    if (rc == 0 && aq_kv_policy_in_slots(p) && p->budget.slots < room)
        return aq_error(reterr, -EINVAL,
                        "--kv-budget %u: each head keeps the newest %u tokens, in whole "
                        "head-blocks of 32; expected %llu or more, or a smaller --kv-recent",
                        p->budget.slots, p->recent.slots, (unsigned long long)room);
    return rc;
}

static int resolve_keys(struct aq_kv_policy *p, const struct aq_kv_options *o,
                        struct aq_err *reterr)
{
    const char *option = h2o_option(o);
    option = option ? option : score_option(o);
    if (option)
        return refuse(reterr, p->desc->name, option,
                      "it ranks the keys of a prompt by themselves, whatever attention they get");
    int rc = need_budget(p->desc->name, o, reterr);
    return rc < 0 ? rc : check_grow_sinks(p, reterr);
}

static int resolve_expected(struct aq_kv_policy *p, const struct aq_kv_options *o,
                            struct aq_err *reterr)
{
    const char *option = h2o_option(o);
    option = option ? option : score_option(o);
    if (option)
        return refuse(reterr, p->desc->name, option,
                      "it ranks a prompt by what queries to come may attend to (--kv-ahead), on "
                      "average over query heads");
    if (o->ahead_given && !(o->ahead >= 1 && o->ahead <= AQ_KV_AHEAD_MAX))
        return aq_error(reterr, -EINVAL,
                        "--kv-ahead %u: positions behind the prompt from which queries are "
                        "expected; expected 1 to %d",
                        o->ahead, AQ_KV_AHEAD_MAX);
    p->ahead = o->ahead_given ? o->ahead : AQ_KV_AHEAD_DEFAULT;
    if (!o->sinks_given)
        p->sinks = SINKS_OF_EXPECTED;
    int rc = need_budget(p->desc->name, o, reterr);
    return rc < 0 ? rc : check_grow_sinks(p, reterr);
}

static int resolve_tova(struct aq_kv_policy *p, const struct aq_kv_options *o,
                        struct aq_err *reterr)
{
    const char *option = h2o_option(o);
    option = option ? option : o->sinks_given ? "--kv-sinks" : score_option(o);
    if (option)
        return refuse(reterr, "tova", option,
                      "it keeps what the newest token attends to most, over all heads together");
    return need_budget("tova", o, reterr);
}

/* Options of one policy, given for another. */
static int check_prompt_options(const struct aq_kv_policy_desc *desc, const struct aq_kv_options *o,
                                struct aq_err *reterr)
{
    bool queries = desc->prompt.pool != AQ_KV_POOL_NONE;
    const char *option = o->observe_given      ? "--kv-observe"
                         : o->pool_given       ? "--kv-pool"
                         : o->pool_order_given ? "--kv-pool-order"
                                               : NULL;
    if (desc->bulk && option)
        return refuse(reterr, desc->name, option,
                      "each token is ranked by itself, by the last --kv-history queries");
    if (!queries && option)
        return refuse(reterr, desc->name, option,
                      "the last queries of a prompt do not rank its tokens; --kv-policy snapkv "
                      "lets them");
    if (o->cross_layer_given && desc->heads != AQ_KV_HEADS_GLOBAL)
        return refuse(reterr, desc->name, "--kv-cross-layer",
                      "its layers do not share a budget; --kv-policy kvcompress lets them");
    if (o->ahead_given && desc->prompt.source != AQ_KV_SOURCE_EXPECTED)
        return refuse(reterr, desc->name, "--kv-ahead",
                      "it expects no queries; --kv-policy expected does");
    option = o->mass_given         ? "--kv-mass"
             : given(&o->frequent) ? "--kv-frequent"
             : given(&o->local)    ? "--kv-local"
                                   : NULL;
    if (option && desc->heads != AQ_KV_HEADS_PROFILED)
        return refuse(reterr, desc->name, option,
                      "its heads have no rules of their own; --kv-policy fastgen finds them");
    if (!queries && o->group_given && o->group == AQ_ATTN_MAX_OF_SUMS)
        return refuse(reterr, desc->name, "--kv-group max-of-sums",
                      "scores go on after the prompt, one for all query heads of a KV head; "
                      "--kv-group max is of each query");
    if (o->pool_given && o->pool != AQ_KV_POOL_NONE &&
        (o->pool_width % 2 == 0 || o->pool_width > AQ_KV_POOL_MAX_WIDTH))
        return aq_error(
            reterr, -EINVAL,
            "--kv-pool: a token and as many on either side: expected an odd width of at "
            "most %d, found %u",
            AQ_KV_POOL_MAX_WIDTH, o->pool_width);
    return 0;
}

/* Heads that share, and what each has for itself. */
static int settle_heads(struct aq_kv_policy *p, const struct aq_kv_options *o,
                        struct aq_err *reterr)
{
    if (p->heads == AQ_KV_HEADS_SHARED && !p->desc->can_share)
        return refuse(reterr, p->desc->name, "--kv-heads shared",
                      "its heads keep the same number of tokens, or the same tokens; --kv-policy "
                      "h2o, snapkv, pyramidkv, knorm, keydiff and expected let them share");
    if (p->desc->heads == AQ_KV_HEADS_GLOBAL && (o->heads_given || given(&o->floor)))
        return refuse(reterr, p->desc->name, o->heads_given ? "--kv-heads" : "--kv-floor",
                      "the heads of all layers share one budget, of which each keeps its newest "
                      "tokens (--kv-recent)");
    if (p->heads != AQ_KV_HEADS_SHARED) {
        p->floor = (struct aq_kv_amount){0};
        return given(&o->floor) ? refuse(reterr, p->desc->name, "--kv-floor",
                                         "heads do not share their slots; --kv-policy adakv lets "
                                         "them, or --kv-heads shared")
                                : 0;
    }
    p->floor_kind = given(&o->floor) ? o->floor_kind : p->desc->floor;
    if (!given(&o->floor))
        p->floor = (struct aq_kv_amount){.unit = AQ_KV_SHARE, .share = floor_of_adakv};
    if (p->floor_kind == AQ_KV_FLOOR_MIX && p->floor.unit != AQ_KV_SHARE)
        return aq_error(reterr, -EINVAL,
                        "--kv-floor mix:%u: expected a share of the budget, such as mix:20%%; "
                        "reserve:%u is a number of slots",
                        p->floor.slots, p->floor.slots);
    return 0;
}

static int check_layers(const struct aq_kv_policy *p, struct aq_err *reterr)
{
    if (p->layers == AQ_KV_LAYERS_UNIFORM)
        return 0;
    if (!aq_kv_policy_grows(p) && !p->bulk)
        return refuse(reterr, p->desc->name, "--kv-layers",
                      "only a budget that a prompt is cut to once, or one of --kv-decode bulk, can "
                      "differ by layer: --kv-policy pyramidkv, snapkv, knorm, keydiff or "
                      "scissorhands");
    return p->beta ? 0
                   : aq_error(reterr, -EINVAL,
                              "--kv-layers: expected a number from 1 on behind the colon, such as "
                              "pyramid:20");
}

/* Whether keys are dropped in bulk, and how their scores go on then. */
static int settle_decode(struct aq_kv_policy *p, const struct aq_kv_options *o,
                         struct aq_err *reterr)
{
    const struct aq_kv_policy_desc *desc = p->desc;
    bool grows = desc->decode.source == AQ_KV_SOURCE_NONE;
    enum aq_kv_decode own = desc->bulk ? AQ_KV_DECODE_BULK
                            : grows    ? AQ_KV_DECODE_GROW
                                       : AQ_KV_DECODE_OVERWRITE;
    enum aq_kv_decode decode = o->decode_given ? o->decode : own;
    if (decode == AQ_KV_DECODE_BULK && !desc->can_bulk)
        return refuse(reterr, desc->name, "--kv-decode bulk",
                      "only scores of attention that go on after the prompt, in heads that keep as "
                      "many tokens, can choose many at a time: --kv-policy h2o, snapkv, pyramidkv "
                      "or scissorhands");
    if (decode != AQ_KV_DECODE_BULK && decode != own)
        return refuse(reterr, desc->name,
                      decode == AQ_KV_DECODE_GROW ? "--kv-decode grow" : "--kv-decode overwrite",
                      desc->bulk ? "it drops many tokens at a time (bulk)"
                      : grows    ? "it keeps what comes after the prompt (grow); --kv-decode bulk "
                                   "bounds that, where it can"
                                 : "it gives up one token for each new one (overwrite)");
    p->bulk = decode == AQ_KV_DECODE_BULK;
    if (!p->bulk && bulk_option(o))
        return refuse(reterr, desc->name, bulk_option(o),
                      "it is of --kv-decode bulk, which drops many tokens at a time");
    if (o->low > 0 && desc->prompt.stat != AQ_ATTN_LOW)
        return refuse(reterr, desc->name, "--kv-low",
                      "it does not count low attention; --kv-policy scissorhands does");
    if (!p->bulk)
        return 0;
    if (p->heads == AQ_KV_HEADS_SHARED)
        return refuse(reterr, desc->name, "--kv-heads shared",
                      "keys are dropped in bulk (--kv-decode), at the same step in all heads, "
                      "which then hold as many");
    p->drop =
        given(&o->drop) ? o->drop : (struct aq_kv_amount){.unit = AQ_KV_SHARE, .share = desc->drop};
    if (o->low > 0)
        p->prompt.threshold = (float)o->low;
    return 0;
}

/* Once the row's own options are known: what of a prompt's rules goes on after it. */
static void settle_history(struct aq_kv_policy *p, const struct aq_kv_options *o)
{
    if (!p->bulk)
        return;
    p->decode = p->prompt;
    p->history = o->history_given ? o->history : p->prompt.rows;
}

/* Whether decoded rows read a part of the keys. */
static int settle_read(struct aq_kv_policy *p, const struct aq_kv_options *o, struct aq_err *reterr)
{
    const struct aq_kv_policy_desc *desc = aq_kv_policy_desc(p);
    if (!o->read_given)
        return o->read_dense_given
                   ? aq_error(reterr, -EINVAL,
                              "--kv-read-dense: the first layers, in which --kv-read does not "
                              "apply; expected --kv-read beside it, such as --kv-read 2048")
                   : 0;
    if (o->read < AQ_KV_READ_MIN)
        return aq_error(reterr, -EINVAL,
                        "--kv-read %u: a row always reads the first, the last and the newest, open "
                        "head-block of 32; expected %d slots or more",
                        o->read, AQ_KV_READ_MIN);
    if (p->bulk)
        return refuse(reterr, desc->name, "--kv-read",
                      "keys are dropped in bulk (--kv-decode), and what is left moves to other "
                      "head-blocks, whose bounds would have to be made again; --kv-policy full, or "
                      "snapkv without bulk, keeps them where they are");
    if (p->decode.source != AQ_KV_SOURCE_NONE)
        return refuse(reterr, desc->name, "--kv-read",
                      "new keys take the places of dropped ones (overwrite), and head-blocks would "
                      "lose their order and their bounds; --kv-policy full, snapkv, pyramidkv, "
                      "knorm and keydiff give up none after the prompt");
    if (aq_kv_policy_ragged(p))
        return refuse(reterr, desc->name, "--kv-read",
                      "its heads hold different numbers of tokens, and a row reads as many of "
                      "each; --kv-policy full, snapkv, pyramidkv, knorm or keydiff");
    p->read = o->read;
    p->read_dense = o->read_dense_given ? o->read_dense : AQ_KV_READ_DENSE_DEFAULT;
    return 0;
}

/* Whether positions are those in the cache. */
static int settle_positions(struct aq_kv_policy *p, const struct aq_kv_options *o,
                            struct aq_err *reterr)
{
    const struct aq_kv_policy_desc *desc = aq_kv_policy_desc(p);
    if (!o->positions_given || o->positions == AQ_KV_POSITIONS_TEXT)
        return 0;
    const char *why =
        !aq_kv_policy_drops(p)
            ? "it keeps every token, whose position in the cache is that in the text"
        : p->bulk ? "keys are dropped in bulk (--kv-decode), and those that are left would have to "
                    "be turned again"
        : aq_kv_policy_grows(p)
            ? "it gives up none of the tokens that come after the prompt (grow), whose positions "
              "would pass the model's all the same"
            : "each new key takes the place of any dropped one (overwrite), and every newer key "
              "would move with it";
    p->positions = o->positions;
    return desc->can_close ? 0
                           : aq_error(reterr, -EINVAL,
                                      "--kv-policy %s: --kv-positions cache does not go with it: "
                                      "%s; --kv-policy window has it, or --kv-positions text",
                                      desc->name, why);
}

/* The variants restate other programs, so they take no further options. */
static int check_variant(const struct aq_kv_policy *p, const struct aq_kv_options *o,
                         struct aq_err *reterr)
{
    const char *option = o->sinks_given ? "--kv-sinks"
                         : o->decay > 0 ? "--kv-decay"
                         : o->grace     ? "--kv-grace"
                                        : NULL;
    return option ? refuse(reterr, p->desc->name, option,
                           "it repeats what another program does; --kv-policy h2o has this option")
                  : 0;
}

static int resolve_flexgen(struct aq_kv_policy *p, const struct aq_kv_options *o,
                           struct aq_err *reterr)
{
    int rc = check_variant(p, o, reterr);
    if (rc < 0)
        return rc;
    if (given(&o->recent))
        return refuse(reterr, "h2o:flexgen", "--kv-recent",
                      "as many tokens are recent as are heavy");
    if (given(&o->budget) == given(&o->heavy))
        return aq_error(
            reterr, -EINVAL,
            "--kv-policy h2o:flexgen: expected --kv-budget or --kv-heavy: F%% keeps F%% "
            "of the prompt as heavy tokens and as many recent ones");
    p->heavy = given(&o->heavy) ? o->heavy : o->budget;
    if (o->budget.unit == AQ_KV_SLOTS)
        p->heavy.slots /= 2;
    if (is_zero(&p->heavy) || (p->heavy.unit == AQ_KV_SLOTS && p->heavy.slots < 2))
        return aq_error(reterr, -EINVAL,
                        "--kv-policy h2o:flexgen: expected 2 heavy tokens or more (a budget of 4), "
                        "found %u",
                        p->heavy.slots);
    p->budget = (struct aq_kv_amount){0};
    return 0;
}

static int resolve_hf(struct aq_kv_policy *p, const struct aq_kv_options *o, struct aq_err *reterr)
{
    const struct aq_kv_amount *const amount[] = {&o->budget, &o->heavy, &o->recent};
    uint32_t heavy, recent;
    int rc = check_variant(p, o, reterr);
    for (size_t i = 0; i < AQ_ARRAY_LEN(amount) && rc == 0; i++) {
        if (amount[i]->unit == AQ_KV_SHARE)
            rc = aq_error(reterr, -EINVAL,
                          "--kv-policy h2o:hf counts in slots: expected --kv-budget 256, or "
                          "--kv-heavy 128 --kv-recent 128, found a share of %g%%",
                          100 * amount[i]->share);
    }
    rc = rc < 0 ? rc : check_h2o_parts("h2o:hf", o, reterr);
    if (rc < 0)
        return rc;
    aq_kv_policy_split(&heavy, &recent, p, 0);
    p->budget = (struct aq_kv_amount){0};
    p->heavy = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = heavy};
    p->recent = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = recent};
    return 0;
}

/* The score of a row with the options given. */
static struct aq_kv_score score_of(const struct aq_kv_score *row, const struct aq_kv_options *o)
{
    struct aq_kv_score s = *row;
    if (o->group_given)
        s.group = o->group;
    if (o->decay > 0)
        s.decay = (float)o->decay;
    return s;
}

int aq_kv_policy_resolve(struct aq_kv_policy *ret, const struct aq_kv_options *o,
                         struct aq_err *reterr)
{
    static int (*const resolve[])(struct aq_kv_policy *, const struct aq_kv_options *,
                                  struct aq_err *) = {
        resolve_full,       resolve_h2o,           resolve_flexgen,  resolve_hf,
        resolve_window,     resolve_heavy,         resolve_h2o,      resolve_snapkv,
        resolve_snapkv,     resolve_snapkv,        resolve_snapkv,   resolve_tova,
        resolve_keys,       resolve_keys,          resolve_expected, resolve_scissorhands,
        resolve_kvcompress, aq_kv_profile_resolve,
    };
    const struct aq_kv_policy_desc *first = aq_kv_policy_at(0);
    const struct aq_kv_policy_desc *desc = o->policy ? aq_kv_policy_find(o->policy) : first;
    if (!desc)
        return aq_error(reterr, -EINVAL,
                        "--kv-policy: expected full, h2o, h2o:flexgen, h2o:hf, window, heavy, "
                        "adakv, snapkv, pyramidkv, ada-snapkv, ada-pyramid, tova, knorm, "
                        "keydiff, expected, scissorhands, kvcompress or fastgen, found '%s'",
                        o->policy);
    struct aq_kv_policy p = {
        .desc = desc,
        .budget = o->budget,
        .heavy = o->heavy,
        .recent = o->recent,
        .sinks = o->sinks_given ? o->sinks : 0,
        .grace = o->grace,
        .prompt = score_of(&desc->prompt, o),
        .decode = score_of(&desc->decode, o),
        .layers = o->layers_given ? o->layers : desc->layers,
        .beta = o->layers_given ? o->beta : desc->beta,
        .heads = o->heads_given ? o->heads : desc->heads,
        .floor = o->floor,
    };
    assert((size_t)(desc - first) < AQ_ARRAY_LEN(resolve));
    int rc = check_amounts(o, reterr);
    if (rc == 0 && desc->heads == AQ_KV_HEADS_PROFILED)
        rc = aq_kv_profile_check(&p, o, reterr);
    rc = rc < 0 ? rc : settle_heads(&p, o, reterr);
    rc = rc < 0 ? rc : check_prompt_options(desc, o, reterr);
    rc = rc < 0 ? rc : settle_decode(&p, o, reterr);
    rc = rc < 0 ? rc : check_layers(&p, reterr);
    rc = rc < 0 ? rc : resolve[desc - first](&p, o, reterr);
    if (rc == 0)
        settle_history(&p, o);
    if (rc == 0 && p.bulk)
        rc = check_bulk(&p, o, reterr);
    rc = rc < 0 ? rc : settle_read(&p, o, reterr);
    rc = rc < 0 ? rc : settle_positions(&p, o, reterr);
    if (rc == 0)
        *ret = p;
    return rc;
}
