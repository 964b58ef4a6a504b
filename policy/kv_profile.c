/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv_profile.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- rules ------------------------------------------------------------------------------- */

const char *aq_kv_profile_name(enum aq_kv_profile rule)
{
    static const char *const names[] = {"special", "punct", "frequent", "local", "full"};
    assert((unsigned)rule < AQ_ARRAY_LEN(names));
    return names[rule];
}

bool aq_kv_profile_safe(enum aq_kv_profile rule, uint8_t classes)
{
    uint8_t kept = AQ_KV_CLASS_SPECIAL;
    if (rule == AQ_KV_PROFILE_FULL)
        return false; /* it needs none */
    if (rule > AQ_KV_PROFILE_SPECIAL)
        kept |= AQ_KV_CLASS_PUNCT;
    return classes & kept;
}

static uint32_t frequent_of(const struct aq_kv_limits *l, enum aq_kv_profile rule)
{
    return rule >= AQ_KV_PROFILE_FREQUENT ? l->frequent : 0;
}

static uint32_t local_of(const struct aq_kv_limits *l, enum aq_kv_profile rule)
{
    return rule >= AQ_KV_PROFILE_LOCAL ? l->local : 1;
}

/* ---- prompts ----------------------------------------------------------------------------- */

/* Where the frequent tokens of a prompt end: those of a higher rank stay, and of those of this one
 * all but the first `dropped`. */
struct border {
    uint32_t rank, dropped;
};

/* A whole number of the same order as the attention that a key got from each query that sees it, a
 * NaN being the largest. */
static uint32_t rank_of(const struct aq_kv_sums *s, uint32_t j)
{
    float each = s->all[j] / (float)(s->prompt - j);
    uint32_t rank;
    memcpy(&rank, &each, sizeof(rank));
    return rank & INT32_MAX;
}

/* Does key j stay, whatever its rank? */
static bool is_safe(const struct aq_kv_sums *s, const struct aq_kv_limits *l,
                    enum aq_kv_profile rule, uint32_t j)
{
    bool newest = rule == AQ_KV_PROFILE_LOCAL && (uint64_t)j + l->local >= s->prompt;
    return j < l->sinks || newest || rule == AQ_KV_PROFILE_FULL ||
           aq_kv_profile_safe(rule, s->classes[j]);
}

/* Of the keys that are not safe, how many have at least this rank. */
static uint32_t count_from(const struct aq_kv_sums *s, const struct aq_kv_limits *l,
                           enum aq_kv_profile rule, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t j = 0; j < s->prompt; j++)
        count += !is_safe(s, l, rule, j) && rank_of(s, j) >= rank;
    return count;
}

static struct border border_of(const struct aq_kv_sums *s, const struct aq_kv_limits *l,
                               enum aq_kv_profile rule)
{
    uint32_t want = frequent_of(l, rule), low = 0, high = UINT32_MAX / 2;
    if (!want)
        return (struct border){UINT32_MAX, 0};
    if (count_from(s, l, rule, 0) <= want)
        return (struct border){0, 0};
    /* The highest rank that enough keys have, or more than that. */
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (count_from(s, l, rule, middle) >= want)
            low = middle;
        else
            high = middle - 1;
    }
    return (struct border){low, count_from(s, l, rule, low) - want};
}

/* Does key j stay?  Asked in the order of positions. */
static bool stays(const struct aq_kv_sums *s, const struct aq_kv_limits *l, enum aq_kv_profile rule,
                  struct border *io, uint32_t j)
{
    if (is_safe(s, l, rule, j))
        return true;
    uint32_t rank = rank_of(s, j);
    if (rank == io->rank && io->dropped) {
        io->dropped--;
        return false;
    }
    return rank >= io->rank;
}

double aq_kv_profile_mass(const struct aq_kv_sums *s, const struct aq_kv_limits *l,
                          enum aq_kv_profile rule)
{
    struct border border = border_of(s, l, rule);
    double sum = 0;
    for (uint32_t j = 0; j < s->prompt; j++) {
        if (stays(s, l, rule, &border, j))
            sum += (double)s->all[j];
        else if (rule == AQ_KV_PROFILE_LOCAL)
            sum += (double)s->band[j];
    }
    return sum / s->prompt;
}

/* How much the rule would keep without a cap. */
static uint32_t wanted(const struct aq_kv_sums *s, const struct aq_kv_limits *l,
                       enum aq_kv_profile rule)
{
    uint32_t safe = 0;
    for (uint32_t j = 0; j < s->prompt; j++)
        safe += is_safe(s, l, rule, j);
    uint32_t others = s->prompt - safe, frequent = frequent_of(l, rule);
    return safe + (frequent < others ? frequent : others);
}

enum aq_kv_profile aq_kv_profile_choose(const struct aq_kv_sums *s, const struct aq_kv_limits *l)
{
    enum aq_kv_profile rule = AQ_KV_PROFILE_SPECIAL;
    assert(l->profiled && s->prompt);
    while (rule < AQ_KV_PROFILE_FULL && !(aq_kv_profile_mass(s, l, rule) >= l->mass))
        rule++;
    while (rule > AQ_KV_PROFILE_SPECIAL && wanted(s, l, rule) > l->heavy_prompt)
        rule--;
    return rule;
}

uint32_t aq_kv_profile_keep(uint32_t *keep, const struct aq_kv_sums *s,
                            const struct aq_kv_limits *l, enum aq_kv_profile rule)
{
    struct border border = border_of(s, l, rule);
    uint32_t want = wanted(s, l, rule), count = 0;
    uint32_t beyond = want > l->heavy_prompt ? want - l->heavy_prompt : 0;
    for (uint32_t j = 0; j < s->prompt; j++) {
        if (!stays(s, l, rule, &border, j))
            continue;
        if (beyond && j >= l->sinks)
            beyond--;
        else
            keep[count++] = j;
    }
    assert(count <= l->heavy_prompt);
    return count;
}

/* ---- rows -------------------------------------------------------------------------------- */

uint32_t aq_kv_profile_victim(const float *score, const uint32_t *position, uint32_t len,
                              const struct aq_kv_limits *l, enum aq_kv_profile rule, uint32_t next)
{
    uint32_t local = local_of(l, rule), end = next + 1 > local ? next + 1 - local : 0, count = 0;
    uint32_t victim = UINT32_MAX;
    if (rule == AQ_KV_PROFILE_FULL)
        return victim;
    for (uint32_t i = 0; i < len; i++) {
        if (position[i] < l->sinks || position[i] >= end || !isfinite(score[i]))
            continue;
        count++;
        if (victim == UINT32_MAX || score[i] < score[victim] ||
            (score[i] == score[victim] && position[i] < position[victim]))
            victim = i;
    }
    return count > frequent_of(l, rule) ? victim : UINT32_MAX;
}

/* ---- options ----------------------------------------------------------------------------- */

enum { FIRST_TOKENS = 4 }; /* as cold-compress has it */

static const double mass_of_paper = 0.95, share_of_paper = 0.3;

/* An option that another policy has, and that a rule found for each head leaves no room for. */
static const char *other_option(const struct aq_kv_options *o)
{
    const struct {
        bool given;
        const char *name;
    } options[] = {
        {o->heavy.unit != AQ_KV_UNSET, "--kv-heavy"},
        {o->recent.unit != AQ_KV_UNSET, "--kv-recent"},
        {o->grace > 0, "--kv-grace"},
        {o->decay > 0, "--kv-decay"},
        {o->group_given, "--kv-group"},
        {o->heads_given, "--kv-heads"},
        {o->floor.unit != AQ_KV_UNSET, "--kv-floor"},
        {o->layers_given, "--kv-layers"},
        {o->decode_given, "--kv-decode"},
    };
    for (size_t i = 0; i < AQ_ARRAY_LEN(options); i++) {
        if (options[i].given)
            return options[i].name;
    }
    return NULL;
}

int aq_kv_profile_check(const struct aq_kv_policy *p, const struct aq_kv_options *o,
                        struct aq_err *reterr)
{
    const char *option = other_option(o);
    return option ? aq_error(reterr, -EINVAL,
                             "--kv-policy %s: %s does not go with it: each head has the smallest "
                             "rule that keeps --kv-mass of its attention, and how much that is "
                             "comes out of the prompt",
                             p->desc->name, option)
                  : 0;
}

/* A part of the prompt, as it was given or as the paper's. */
static int take_part(struct aq_kv_amount *ret, const char *name, const struct aq_kv_amount *given,
                     struct aq_err *reterr)
{
    *ret = *given;
    if (given->unit == AQ_KV_UNSET)
        *ret = (struct aq_kv_amount){.unit = AQ_KV_SHARE, .share = share_of_paper};
    if (ret->share >= 0 && ret->share <= 1)
        return 0;
    return aq_error(reterr, -EINVAL, "%s: expected a share of at most 100%%, found %g%%", name,
                    100 * ret->share);
}

int aq_kv_profile_resolve(struct aq_kv_policy *p, const struct aq_kv_options *o,
                          struct aq_err *reterr)
{
    if (o->mass_given && !(o->mass > 0 && o->mass <= 1))
        return aq_error(reterr, -EINVAL,
                        "--kv-mass %g: expected the part of a head's attention that must be kept, "
                        "above 0 and at most 1 (1: all tokens)",
                        o->mass);
    p->mass = o->mass_given ? o->mass : mass_of_paper;
    if (!o->sinks_given)
        p->sinks = FIRST_TOKENS;
    if (p->budget.unit == AQ_KV_SHARE && p->budget.share >= 1) /* no cap */
        p->budget = (struct aq_kv_amount){0};
    if (p->budget.unit == AQ_KV_SLOTS && p->budget.slots <= p->sinks)
        return aq_error(reterr, -EINVAL,
                        "--kv-budget %u: each head keeps the first %u tokens, and nothing would be "
                        "left for its rule; expected a larger cap, or a smaller --kv-sinks",
                        p->budget.slots, p->sinks);
    int rc = take_part(&p->frequent, "--kv-frequent", &o->frequent, reterr);
    rc = rc < 0 ? rc : take_part(&p->local, "--kv-local", &o->local, reterr);
    bool none = p->local.unit == AQ_KV_SLOTS ? !p->local.slots : !(p->local.share > 0);
    if (rc == 0 && none)
        return aq_error(reterr, -EINVAL,
                        "--kv-local 0: the newest token attends itself, so it is always kept; "
                        "expected 1 or more");
    return rc;
}
