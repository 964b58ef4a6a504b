/* SPDX-License-Identifier: Apache-2.0
 * Makes a policy of the user's options; refuses, with a sentence, options that exclude each
 * other. */
#include "policy/kv_policy.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { SINKS_OF_WINDOW = 4 }; /* as StreamingLLM has it */
/* The value of Ada-KV's programs for grouped query heads, and of kvpress. */
static const double floor_of_adakv = 0.2;

static const char *const group_names[] = {"sum", "mean", "max", "first", "max-of-sums"};

const char *aq_kv_group_name(enum aq_attn_group g)
{
    assert((unsigned)g < AQ_ARRAY_LEN(group_names));
    return group_names[g];
}

static bool given(const struct aq_kv_amount *a)
{
    return a->unit != AQ_KV_UNSET;
}

static bool is_zero(const struct aq_kv_amount *a)
{
    return a->unit == AQ_KV_SLOTS ? a->slots == 0 : given(a) && !(a->share > 0);
}

static const char *amount_text(char dst[32], const struct aq_kv_amount *a)
{
    if (a->unit == AQ_KV_SHARE)
        snprintf(dst, 32, "%.6g%%", 100 * a->share);
    else
        snprintf(dst, 32, "%u", a->slots);
    return dst;
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
    const struct aq_kv_amount *const amount[] = {&o->budget, &o->heavy, &o->recent, &o->floor};
    static const char *const name[] = {"--kv-budget", "--kv-heavy", "--kv-recent", "--kv-floor"};
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
    amount_text(b, &o->budget);
    amount_text(h, &o->heavy);
    amount_text(r, &o->recent);
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

/* Are the parts numbers of slots, the same for each sequence? */
static bool in_slots(const struct aq_kv_policy *p)
{
    const struct aq_kv_amount *const amount[] = {&p->budget, &p->heavy, &p->recent};
    for (size_t i = 0; i < AQ_ARRAY_LEN(amount); i++) {
        if (amount[i]->unit == AQ_KV_SHARE)
            return false;
    }
    return true;
}

/* Sinks and grace against parts that are numbers of slots. */
static int check_h2o_slots(const struct aq_kv_policy *p, struct aq_err *reterr)
{
    uint32_t heavy, recent;
    if (!in_slots(p))
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
    if (!in_slots(p) || !p->grace)
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

static int resolve_h2o(struct aq_kv_policy *p, const struct aq_kv_options *o, struct aq_err *reterr)
{
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
    amount_text(b, &o->budget);
    amount_text(r, &o->recent);
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

static int need_budget(const char *policy, const struct aq_kv_options *o, struct aq_err *reterr)
{
    return given(&o->budget)
               ? 0
               : aq_error(reterr, -EINVAL,
                          "--kv-policy %s: expected --kv-budget, such as 20%% or 256", policy);
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

static int resolve_snapkv(struct aq_kv_policy *p, const struct aq_kv_options *o,
                          struct aq_err *reterr)
{
    struct aq_kv_score *s = &p->prompt;
    const char *option = h2o_option(o);
    if (option)
        return refuse(reterr, p->desc->name, option,
                      "it chooses once, at the prompt's end, and keeps the tokens that chose "
                      "(--kv-observe)");
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
    int rc = need_budget(p->desc->name, o, reterr);
    return rc < 0 ? rc : check_grow_sinks(p, reterr);
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
    if (!queries && option)
        return refuse(reterr, desc->name, option,
                      "the last queries of a prompt do not rank its tokens; --kv-policy snapkv "
                      "lets them");
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
                      "h2o, snapkv, pyramidkv, knorm and keydiff let them share");
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
    if (!aq_kv_policy_grows(p))
        return refuse(reterr, p->desc->name, "--kv-layers",
                      "only a budget that a prompt is cut to once can differ by layer: --kv-policy "
                      "pyramidkv, snapkv, knorm or keydiff");
    return p->beta ? 0
                   : aq_error(reterr, -EINVAL,
                              "--kv-layers: expected a number from 1 on behind the colon, such as "
                              "pyramid:20");
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
        resolve_full,   resolve_h2o,  resolve_flexgen, resolve_hf,     resolve_window,
        resolve_heavy,  resolve_h2o,  resolve_snapkv,  resolve_snapkv, resolve_snapkv,
        resolve_snapkv, resolve_tova, resolve_keys,    resolve_keys,
    };
    const struct aq_kv_policy_desc *first = aq_kv_policy_at(0);
    const struct aq_kv_policy_desc *desc = o->policy ? aq_kv_policy_find(o->policy) : first;
    if (!desc)
        return aq_error(reterr, -EINVAL,
                        "--kv-policy: expected full, h2o, h2o:flexgen, h2o:hf, window, heavy, "
                        "adakv, snapkv, pyramidkv, ada-snapkv, ada-pyramid, tova, knorm or "
                        "keydiff, found '%s'",
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
    rc = rc < 0 ? rc : settle_heads(&p, o, reterr);
    rc = rc < 0 ? rc : check_prompt_options(desc, o, reterr);
    rc = rc < 0 ? rc : check_layers(&p, reterr);
    rc = rc < 0 ? rc : resolve[desc - first](&p, o, reterr);
    if (rc == 0)
        *ret = p;
    return rc;
}

int aq_kv_policy_check_context(const struct aq_kv_policy *p, uint32_t context,
                               struct aq_err *reterr)
{
    const struct aq_kv_amount *const amount[] = {&p->budget, &p->heavy, &p->recent, &p->floor};
    static const char *const name[] = {"--kv-budget", "--kv-heavy", "--kv-recent", "--kv-floor"};
    for (size_t i = 0; i < AQ_ARRAY_LEN(amount); i++) {
        if (amount[i]->unit == AQ_KV_SLOTS && amount[i]->slots > context)
            return aq_error(reterr, -EINVAL,
                            "%s %u: above the %u tokens of the model's context; 100%% keeps all",
                            name[i], amount[i]->slots, context);
    }
    uint32_t heavy = 0, recent = 0;
    bool slots = p->heavy.unit == AQ_KV_SLOTS && p->recent.unit == AQ_KV_SLOTS;
    if (slots && !given(&p->budget))
        aq_kv_policy_split(&heavy, &recent, p, 0);
    if ((uint64_t)heavy + recent > context)
        return aq_error(reterr, -EINVAL,
                        "--kv-heavy %u and --kv-recent %u together are above the %u tokens of the "
                        "model's context; --kv-budget 100%% keeps all",
                        heavy, recent, context);
    if (p->sinks > context || p->grace > context)
        return aq_error(reterr, -EINVAL, "%s %u: above the %u tokens of the model's context",
                        p->sinks > context ? "--kv-sinks" : "--kv-grace",
                        p->sinks > context ? p->sinks : p->grace, context);
    return 0;
}

const char *aq_kv_policy_text(char *dst, size_t dst_bytes, const struct aq_kv_policy *p)
{
    const struct aq_kv_amount *const amount[] = {&p->budget, &p->heavy, &p->recent, &p->floor};
    static const char *const name[] = {"budget", "heavy", "recent", "floor"};
    size_t used = 0;
    char text[32];
    bool any = false;
    used += (size_t)snprintf(dst, dst_bytes, "%s", aq_kv_policy_desc(p)->name);
    for (size_t i = 0; i < AQ_ARRAY_LEN(amount) && used < dst_bytes; i++) {
        if (!given(amount[i]))
            continue;
        bool mixed = amount[i] == &p->floor && p->floor_kind == AQ_KV_FLOOR_MIX;
        used += (size_t)snprintf(dst + used, dst_bytes - used, "%s %s %s%s", any ? "," : ":",
                                 name[i], mixed ? "mix:" : "", amount_text(text, amount[i]));
        any = true;
    }
    if (p->sinks && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", sinks %u", p->sinks);
    if (p->grace && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", grace %u", p->grace);
    if (p->decode.decay > 0 && p->decode.decay < 1 && used < dst_bytes)
        used +=
            (size_t)snprintf(dst + used, dst_bytes - used, ", decay %g", (double)p->decode.decay);
    const struct aq_kv_score *row = &aq_kv_policy_desc(p)->prompt;
    if (row->pool && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", observe %u", p->prompt.rows);
    if (row->pool && used < dst_bytes) {
        char pool[32];
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", pool %s%s",
                                 aq_kv_pool_text(pool, &p->prompt),
                                 p->prompt.pool && !p->prompt.pool_first ? " group-first" : "");
    }
    if (p->prompt.group != row->group && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", group %s",
                                 aq_kv_group_name(p->prompt.group));
    if ((p->layers || aq_kv_policy_desc(p)->layers) && used < dst_bytes)
        used += (size_t)snprintf(dst + used, dst_bytes - used, ", layers %s",
                                 aq_kv_layers_text(text, p));
    if (p->heads != aq_kv_policy_desc(p)->heads && used < dst_bytes)
        snprintf(dst + used, dst_bytes - used, ", heads %s", aq_kv_heads_name(p->heads));
    return dst;
}

const char *aq_kv_heads_name(enum aq_kv_heads heads)
{
    return heads == AQ_KV_HEADS_SHARED ? "shared" : "uniform";
}

const char *aq_kv_layers_text(char dst[32], const struct aq_kv_policy *p)
{
    if (p->layers == AQ_KV_LAYERS_UNIFORM)
        snprintf(dst, 32, "uniform");
    else
        snprintf(dst, 32, "%s:%u", p->layers == AQ_KV_LAYERS_PYRAMID ? "pyramid" : "rising",
                 p->beta);
    return dst;
}

const char *aq_kv_pool_text(char dst[32], const struct aq_kv_score *s)
{
    if (s->pool == AQ_KV_POOL_NONE)
        snprintf(dst, 32, "none");
    else
        snprintf(dst, 32, "%s:%u", s->pool == AQ_KV_POOL_AVG ? "avg" : "max", s->pool_width);
    return dst;
}
