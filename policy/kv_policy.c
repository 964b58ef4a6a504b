/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv_policy.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { PARTLY = AQ_HEAD_BLOCK_SLOTS - 1 }; /* most slots of a head-block that is not full */

/* ---- amounts ----------------------------------------------------------------------------- */

/* Slots of an amount; a share above 0 gives at least one. */
static uint32_t slots_of(const struct aq_kv_amount *a, uint64_t tokens)
{
    assert(a->unit != AQ_KV_UNSET);
    if (a->unit == AQ_KV_SLOTS)
        return a->slots;
    /* 29 % of 100 is 29, though 0.29 * 100 falls just short of it. */
    double exact = floor(a->share * (double)tokens + 1e-9);
    if (exact >= INT32_MAX)
        return INT32_MAX;
    return a->share > 0 && exact < 1 ? 1 : (uint32_t)exact;
}

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)aq_min_u64(aq_min_u64(a, b), INT32_MAX);
}

bool aq_kv_policy_in_slots(const struct aq_kv_policy *p)
{
    const struct aq_kv_amount *const amount[] = {&p->budget, &p->heavy, &p->recent};
    for (size_t i = 0; i < AQ_ARRAY_LEN(amount); i++) {
        if (amount[i]->unit == AQ_KV_SHARE)
            return false;
    }
    return true;
}

void aq_kv_policy_split(uint32_t *ret_heavy, uint32_t *ret_recent, const struct aq_kv_policy *p,
                        uint64_t tokens)
{
    bool heavy_given = p->heavy.unit != AQ_KV_UNSET, recent_given = p->recent.unit != AQ_KV_UNSET;
    uint32_t heavy = heavy_given ? slots_of(&p->heavy, tokens) : 0;
    uint32_t recent =
        recent_given ? least(aq_max_u64(1, slots_of(&p->recent, tokens)), INT32_MAX) : 0;
    if (p->budget.unit != AQ_KV_UNSET) {
        uint32_t budget = (uint32_t)aq_max_u64(1, slots_of(&p->budget, tokens));
        if (!heavy_given)
            heavy = recent_given ? budget - least(recent, budget) : budget / 2;
        if (!recent_given)
            recent = budget - least(heavy, budget - 1);
        recent = least(recent, budget);
        heavy = least(heavy, budget - recent);
    }
    *ret_heavy = heavy;
    *ret_recent = recent;
}

/* ---- limits ------------------------------------------------------------------------------ */

static void limits_full(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                        uint32_t max_new)
{
    (void)p;
    (void)prompt;
    (void)max_new;
    *ret = (struct aq_kv_limits){.slots = UINT32_MAX, .keep_prompt = UINT32_MAX};
}

static void limits_h2o(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                       uint32_t max_new)
{
    uint32_t heavy, recent;
    aq_kv_policy_split(&heavy, &recent, p, (uint64_t)prompt + max_new);
    uint32_t slots = least((uint64_t)heavy + recent, INT32_MAX);
    uint32_t sinks = least(p->sinks, heavy); /* they are among the heavy ones */
    *ret = (struct aq_kv_limits){
        .slots = slots,
        .keep_prompt = slots,
        .heavy_prompt = heavy,
        .recent_prompt = recent,
        .recent_decode = least(aq_max_u64(recent, p->grace), slots - sinks),
        .sinks = sinks,
    };
}

/* The first tokens and the newest ones. */
static void limits_window(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                          uint32_t max_new)
{
    uint64_t tokens = (uint64_t)prompt + max_new;
    uint32_t sinks = p->sinks, recent = 0;
    if (p->recent.unit != AQ_KV_UNSET)
        recent = (uint32_t)aq_max_u64(1, slots_of(&p->recent, tokens));
    if (p->budget.unit != AQ_KV_UNSET) {
        uint32_t budget = (uint32_t)aq_max_u64(1, slots_of(&p->budget, tokens));
        sinks = least(sinks, budget - 1);
        recent = recent ? least(recent, budget - sinks) : budget - sinks;
    }
    uint32_t slots = least((uint64_t)sinks + recent, INT32_MAX);
    *ret = (struct aq_kv_limits){
        .slots = slots,
        .keep_prompt = slots,
        .heavy_prompt = sinks,
        .recent_prompt = recent,
        .recent_decode = recent,
        .sinks = sinks,
    };
}

/* K heavy slots, K - 1 of the prompt's newest, and one for the row's own key.  The oldest recent
 * key becomes heavy at the end of a step, and is safe from that step's drop. */
static void limits_flexgen(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                           uint32_t max_new)
{
    (void)max_new;
    uint32_t k = least(aq_max_u64(2, slots_of(&p->heavy, prompt)), INT32_MAX / 2);
    *ret = (struct aq_kv_limits){
        .slots = 2 * k,
        .keep_prompt = 2 * k - 1,
        .heavy_prompt = k,
        .recent_prompt = k - 1,
        .recent_decode = k + 1,
    };
}

/* A row attends one key more than the policy keeps after the step. */
static void limits_hf(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                      uint32_t max_new)
{
    uint64_t tokens = (uint64_t)prompt + max_new;
    uint32_t heavy = slots_of(&p->heavy, tokens), recent = slots_of(&p->recent, tokens);
    uint32_t kept = least((uint64_t)heavy + recent, INT32_MAX - 1);
    *ret = (struct aq_kv_limits){
        .slots = kept + 1,
        .keep_prompt = kept,
        .heavy_prompt = heavy,
        .recent_prompt = recent,
        .recent_decode = recent + 1,
    };
}

/* The budget of a prompt, where new tokens come on top. */
static uint32_t budget_of(const struct aq_kv_policy *p, uint32_t prompt)
{
    return (uint32_t)aq_max_u64(1, slots_of(&p->budget, prompt));
}

/* The prompt is cut, to a budget of which a share is of the prompt alone; then each new token has a
 * slot, and one is left: nothing is ever given up. */
static void limits_grow(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                        uint32_t max_new)
{
    uint32_t budget = budget_of(p, prompt), window = least(p->prompt.rows, budget);
    uint32_t slots = least(least(prompt, budget) + aq_max_u64(1, max_new), INT32_MAX);
    *ret = (struct aq_kv_limits){
        .slots = slots,
        .keep_prompt = budget,
        .heavy_prompt = budget - window,
        .recent_prompt = window,
        .sinks = least(least(p->sinks, budget - window), slots),
    };
}

/* The same of heads that share with those of all layers.  None gives up its newest tokens, for
 * which a budget always has room, in whole head-blocks. */
static void limits_cross(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                         uint32_t max_new)
{
    uint32_t recent = (uint32_t)aq_max_u64(1, slots_of(&p->recent, prompt));
    uint64_t room = aq_align_up(recent, AQ_HEAD_BLOCK_SLOTS);
    uint32_t budget = least(aq_max_u64(budget_of(p, prompt), room), INT32_MAX);
    *ret = (struct aq_kv_limits){
        .slots = least(least(prompt, budget) + aq_max_u64(1, max_new), INT32_MAX),
        .keep_prompt = budget,
        .heavy_prompt = budget - recent,
        .recent_prompt = recent,
        .cross = true,
        .layer_prompt =
            (uint32_t)(p->cross_layer > 0 ? fmin(p->cross_layer * budget, INT32_MAX) : INT32_MAX),
    };
}

/* What a head whose rule is found from a prompt may keep of it. */
static uint32_t cap_of(const struct aq_kv_policy *p, uint32_t prompt)
{
    return p->budget.unit == AQ_KV_UNSET ? INT32_MAX : budget_of(p, prompt);
}

/* Each head keeps what its rule says, which may be all, or up to the cap. */
static void limits_profiled(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                            uint32_t max_new)
{
    uint32_t frequent = p->frequent.slots, cap = cap_of(p, prompt);
    uint32_t kept = least(prompt, cap);
    if (p->mass >= 1 && kept == prompt) {
        limits_full(ret, p, prompt, max_new);
        return;
    }
    if (p->frequent.unit == AQ_KV_SHARE)
        frequent = least((uint64_t)ceil(p->frequent.share * prompt - 1e-9), prompt);
    uint32_t slots = least((uint64_t)kept + aq_max_u64(1, max_new), INT32_MAX);
    *ret = (struct aq_kv_limits){
        .slots = slots,
        .heavy_prompt = kept,
        .sinks = least(least(p->sinks, cap), slots),
        .profiled = true,
        .frequent = frequent,
        .local = (uint32_t)aq_max_u64(1, slots_of(&p->local, prompt)),
        .mass = p->mass,
    };
}

/* After each row the budget is kept, so that a row attends one key more; the newest one may go,
 * too, once it has been attended. */
static void limits_tova(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                        uint32_t max_new)
{
    uint64_t tokens = (uint64_t)prompt + max_new;
    uint32_t budget = least(aq_max_u64(1, slots_of(&p->budget, tokens)), INT32_MAX - 1);
    *ret = (struct aq_kv_limits){
        .slots = budget + 1,
        .keep_prompt = budget,
        .heavy_prompt = budget,
        .recent_decode = 1,
    };
}

/* A sequence that comes to hold `high` slots in a layer, and drops many of them then. */
static void drop_many(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t high,
                      uint64_t tokens)
{
    uint32_t drop = least(aq_max_u64(1, slots_of(&p->drop, high)), high - 1), heavy, recent;
    struct aq_kv_policy left = *p;
    left.budget = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = high - drop};
    if (left.recent.unit == AQ_KV_UNSET && p->prompt.rows) /* those that choose stay */
        left.recent = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = p->prompt.rows};
    aq_kv_policy_split(&heavy, &recent, &left, tokens);
    *ret = (struct aq_kv_limits){
        .slots = high,
        .keep_prompt = high,
        .heavy_prompt = heavy,
        .recent_prompt = recent,
        .sinks = least(p->sinks, heavy),
        .bulk = true,
        .history = least(p->history, drop),
    };
    assert(heavy + recent == high - drop);
}

/* Two slots at least: one that is kept, and one that is dropped. */
static void limits_bulk(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                        uint32_t max_new)
{
    uint64_t tokens = (uint64_t)prompt + max_new;
    drop_many(ret, p, (uint32_t)aq_max_u64(2, slots_of(&p->budget, tokens)), tokens);
}

/* Those of a layer that has the budget as it is. */
static void limits_even(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                        uint32_t max_new)
{
    (p->bulk ? limits_bulk : aq_kv_policy_desc(p)->limits)(ret, p, prompt, max_new);
}

/* ---- the table ----------------------------------------------------------------------------- */

#define BY_POSITION                                                                                \
    {                                                                                              \
        .source = AQ_KV_SOURCE_POSITION, .decay = 1                                                \
    }
#define BY_ATTENTION                                                                               \
    {                                                                                              \
        .source = AQ_KV_SOURCE_COLUMNS, .stat = AQ_ATTN_PROB, .decay = 1                           \
    }
/* Of all query heads of a KV head on average, so that a query's sum over keys is 1. */
#define BY_MEAN_ATTENTION                                                                          \
    {                                                                                              \
        .source = AQ_KV_SOURCE_COLUMNS, .stat = AQ_ATTN_PROB, .group = AQ_ATTN_MEAN, .decay = 1    \
    }

/* Of the last 32 queries, averaged with two neighbours on either side, then over query heads: as
 * SnapKV's program has it by default. */
#define BY_LAST_QUERIES                                                                            \
    {                                                                                              \
        .source = AQ_KV_SOURCE_COLUMNS, .stat = AQ_ATTN_PROB, .group = AQ_ATTN_MEAN, .decay = 1,   \
        .rows = 32, .pool = AQ_KV_POOL_AVG, .pool_width = 5, .pool_first = true                    \
    }
/* The same, taken together over query heads, and then the largest of a key and three neighbours on
 * either side: as Ada-KV's program has it. */
#define BY_LAST_QUERIES_TOGETHER                                                                   \
    {                                                                                              \
        .source = AQ_KV_SOURCE_COLUMNS, .stat = AQ_ATTN_PROB, .group = AQ_ATTN_MEAN, .decay = 1,   \
        .rows = 32, .pool = AQ_KV_POOL_MAX, .pool_width = 7, .pool_first = false                   \
    }
/* How many of the last 400 queries gave a key less than if all were alike: as Scissorhands' paper
 * has it. */
#define BY_LOW_ATTENTION                                                                           \
    {                                                                                              \
        .source = AQ_KV_SOURCE_COLUMNS, .stat = AQ_ATTN_LOW, .decay = 1, .rows = 400,              \
        .threshold = 1                                                                             \
    }
/* Squares, and the largest of a key and three neighbours of each query head, summed over these: as
 * KV-Compress's program has it. */
#define BY_LAST_SQUARES                                                                            \
    {                                                                                              \
        .source = AQ_KV_SOURCE_COLUMNS, .stat = AQ_ATTN_PROB_SQUARED, .decay = 1, .rows = 32,      \
        .pool = AQ_KV_POOL_MAX, .pool_width = 7, .pool_first = true                                \
    }
#define BY_LAST_QUERY(factor)                                                                      \
    {                                                                                              \
        .source = AQ_KV_SOURCE_COLUMNS, .stat = AQ_ATTN_PROB, .decay = factor, .rows = 1,          \
        .together = true                                                                           \
    }

static const struct aq_kv_policy_desc policies[] = {
    {.name = "full", .limits = limits_full},
    {.name = "h2o",
     .prompt = BY_ATTENTION,
     .decode = BY_ATTENTION,
     .can_share = true,
     .can_bulk = true,
     .drop = 0.25,
     .limits = limits_h2o},
    {.name = "h2o:flexgen",
     .prompt = BY_ATTENTION,
     .decode = BY_ATTENTION,
     .limits = limits_flexgen},
    {.name = "h2o:hf", .prompt = BY_ATTENTION, .decode = BY_ATTENTION, .limits = limits_hf},
    {.name = "window",
     .prompt = BY_POSITION,
     .decode = BY_POSITION,
     .can_close = true,
     .limits = limits_window},
    {.name = "heavy", .prompt = BY_ATTENTION, .decode = BY_ATTENTION, .limits = limits_h2o},
    {.name = "adakv",
     .prompt = BY_ATTENTION,
     .decode = BY_ATTENTION,
     .heads = AQ_KV_HEADS_SHARED,
     .can_share = true,
     .limits = limits_h2o},
    {.name = "snapkv",
     .prompt = BY_LAST_QUERIES,
     .can_share = true,
     .can_bulk = true,
     .drop = 0.25,
     .floor = AQ_KV_FLOOR_MIX,
     .limits = limits_grow},
    {.name = "pyramidkv",
     .prompt = BY_LAST_QUERIES,
     .layers = AQ_KV_LAYERS_PYRAMID,
     .beta = 20,
     .can_share = true,
     .can_bulk = true,
     .drop = 0.25,
     .floor = AQ_KV_FLOOR_MIX,
     .limits = limits_grow},
    {.name = "ada-snapkv",
     .prompt = BY_LAST_QUERIES_TOGETHER,
     .heads = AQ_KV_HEADS_SHARED,
     .can_share = true,
     .floor = AQ_KV_FLOOR_MIX,
     .limits = limits_grow},
    {.name = "ada-pyramid",
     .prompt = BY_LAST_QUERIES_TOGETHER,
     .layers = AQ_KV_LAYERS_PYRAMID,
     .beta = 20,
     .heads = AQ_KV_HEADS_SHARED,
     .can_share = true,
     .floor = AQ_KV_FLOOR_MIX,
     .limits = limits_grow},
    {.name = "tova", .prompt = BY_LAST_QUERY(1), .decode = BY_LAST_QUERY(0), .limits = limits_tova},
    {.name = "knorm",
     .prompt = {.source = AQ_KV_SOURCE_KEY_NORM},
     .can_share = true,
     .floor = AQ_KV_FLOOR_MIX,
     .limits = limits_grow},
    {.name = "keydiff",
     .prompt = {.source = AQ_KV_SOURCE_KEY_DIFF},
     .can_share = true,
     .floor = AQ_KV_FLOOR_MIX,
     .limits = limits_grow},
    {.name = "expected",
     .prompt = {.source = AQ_KV_SOURCE_EXPECTED},
     .can_share = true,
     .floor = AQ_KV_FLOOR_MIX,
     .limits = limits_grow},
    {.name = "scissorhands",
     .prompt = BY_LOW_ATTENTION,
     .decode = BY_LOW_ATTENTION,
     .can_bulk = true,
     .bulk = true,
     .drop = 0.5,
     .limits = limits_bulk},
    {.name = "kvcompress",
     .prompt = BY_LAST_SQUARES,
     .heads = AQ_KV_HEADS_GLOBAL,
     .limits = limits_cross},
    {.name = "fastgen",
     .prompt = BY_MEAN_ATTENTION,
     .decode = BY_MEAN_ATTENTION,
     .heads = AQ_KV_HEADS_PROFILED,
     .limits = limits_profiled},
};

const struct aq_kv_policy_desc *aq_kv_policy_at(uint32_t index)
{
    return index < AQ_ARRAY_LEN(policies) ? &policies[index] : NULL;
}

const struct aq_kv_policy_desc *aq_kv_policy_find(const char *name)
{
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(policies); i++) {
        if (strcmp(policies[i].name, name) == 0)
            return &policies[i];
    }
    return NULL;
}

const struct aq_kv_policy_desc *aq_kv_policy_desc(const struct aq_kv_policy *p)
{
    return p->desc ? p->desc : &policies[0];
}

struct aq_kv_policy aq_kv_policy_window(uint32_t slots)
{
    const struct aq_kv_policy_desc *desc = aq_kv_policy_find("window");
    return (struct aq_kv_policy){
        .desc = desc,
        .recent = {.unit = AQ_KV_SLOTS, .slots = slots},
        .prompt = desc->prompt,
        .decode = desc->decode,
    };
}

/* ---- layers that differ ------------------------------------------------------------------ */

/* A prompt's slots by layer: `first` of the layer that has most, and each `step` less than the one
 * before it. */
struct slope {
    uint32_t first, step;
};

/* As kv_policy.h has it; `window` of the budget's slots are the same in every layer: one at least,
 * so that no layer is left without any. */
static struct slope slope_of(uint32_t budget, uint32_t window, uint32_t beta, uint32_t prompt,
                             uint32_t layers)
{
    window = window ? window : 1;
    uint64_t rest = budget - window, low = rest / beta, high = 2 * rest - low;
    if (prompt <= budget)
        return (struct slope){prompt, 0};
    if (prompt < 2 * rest)
        return (struct slope){budget, 0};
    if (high >= prompt - window) {
        high = prompt - window;
        low = 2 * rest - high;
    }
    uint64_t step = layers > 1 ? (high - low) / (layers - 1) : 0;
    return (struct slope){(uint32_t)(window + high), (uint32_t)step};
}

static uint32_t kept_at(struct slope s, const struct aq_kv_policy *p, uint32_t layer,
                        uint32_t layers)
{
    return s.first - s.step * (p->layers == AQ_KV_LAYERS_RISING ? layers - 1 - layer : layer);
}

/* The same of slots that are dropped in bulk, which follow from the budget alone. */
static struct slope slope_of_bulk(const struct aq_kv_limits *even, const struct aq_kv_policy *p,
                                  uint32_t layers)
{
    return slope_of(even->slots, even->recent_prompt, p->beta, UINT32_MAX, layers);
}

/* The limits of one layer, made of those of a layer that has the budget as it is. */
static void lean(struct aq_kv_limits *io, const struct aq_kv_policy *p, uint32_t prompt,
                 uint32_t max_new, uint32_t layer, uint32_t layers)
{
    uint32_t budget = io->keep_prompt, window = io->recent_prompt;
    if (io->bulk) {
        uint32_t high = kept_at(slope_of_bulk(io, p, layers), p, layer, layers);
        drop_many(io, p, high > 2 ? high : 2, (uint64_t)prompt + max_new);
        return;
    }
    if (prompt <= budget)
        return;
    uint32_t kept = kept_at(slope_of(budget, window, p->beta, prompt, layers), p, layer, layers);
    io->slots = least((uint64_t)io->slots - budget + kept, INT32_MAX);
    io->keep_prompt = kept;
    io->heavy_prompt = kept - window;
    io->sinks = least(io->sinks, io->heavy_prompt);
}

/* Where slopes are to be looked for: prompts of `longest` tokens and fewer, as long as one of them
 * may leave more in a layer than a longer one does.  Of a budget in slots all prompts above a
 * length have one slope.  Of shares up to a half the slope follows from the budget alone, and with
 * each beta * (layers - 1) slots less of it every layer has fewer. */
struct search {
    uint32_t longest, least_budget;
    bool to_the_end; /* of a share above a half layers may differ in short prompts alone */
};

static struct search search_of(const struct aq_kv_policy *p, uint32_t longest, uint32_t layers)
{
    struct search s = {.longest = longest};
    uint32_t budget = budget_of(p, longest);
    uint64_t period = (uint64_t)p->beta * layers;
    if (p->bulk && (p->recent.unit == AQ_KV_SHARE || p->heavy.unit == AQ_KV_SHARE))
        s.to_the_end = true; /* the slope follows the recent tokens, and these the length */
    else if (p->budget.unit == AQ_KV_SLOTS)
        s.longest = least(longest, 2ull * budget);
    else if (p->budget.share <= 0.5)
        s.least_budget = budget - least(period, budget);
    else
        s.to_the_end = true;
    return s;
}

/* Of a prompt of n tokens, or of a sequence of n tokens that drops keys in bulk. */
static struct slope slope_at(const struct aq_kv_policy *p, uint32_t n, uint32_t layers)
{
    uint32_t budget = budget_of(p, n);
    struct aq_kv_limits even;
    if (!p->bulk)
        return slope_of(budget, least(p->prompt.rows, budget), p->beta, n, layers);
    limits_bulk(&even, p, n, 0);
    return slope_of_bulk(&even, p, layers);
}

/* Into most[].kept what each layer keeps at most of a prompt, or where keys are dropped in bulk of
 * a sequence; do layers differ? */
static bool most_kept(struct aq_kv_most *most, const struct aq_kv_policy *p,
                      const struct aq_kv_lengths *lengths, uint32_t layers)
{
    uint32_t longest = p->bulk ? lengths->total_max : lengths->prompt_max;
    struct search search = search_of(p, longest, layers);
    uint32_t shortest = least(lengths->prompt_min, search.longest);
    bool differ = false;
    uint32_t before = 0;
    struct slope last = {0};
    for (uint32_t n = search.longest; n > 0 && n >= shortest; n--) {
        uint32_t budget = budget_of(p, n);
        if (budget < search.least_budget)
            break;
        struct slope s = slope_at(p, n, layers);
        if ((search.least_budget || p->bulk) && budget == before && s.first == last.first &&
            s.step == last.step)
            continue;
        before = budget;
        last = s;
        uint32_t lowest = UINT32_MAX;
        differ |= s.step > 0;
        for (uint32_t l = 0; l < layers; l++) {
            uint32_t kept = kept_at(s, p, l, layers);
            kept = p->bulk && kept < 2 ? 2 : kept;
            most[l].kept = kept > most[l].kept ? kept : most[l].kept;
            lowest = most[l].kept < lowest ? most[l].kept : lowest;
        }
        /* No shorter prompt has more tokens. */
        if (lowest >= n && (differ || !search.to_the_end))
            break;
    }
    return differ;
}

/* ---- heads that share -------------------------------------------------------------------- */

/* The heads of a layer share the heavy slots of a prompt.  A head has at least its recent slots and
 * the floor, or its sinks, so at most so many positions may be safe from a step's drop. */
static void share_slots(struct aq_kv_limits *io, const struct aq_kv_policy *p)
{
    bool mixed = p->floor_kind == AQ_KV_FLOOR_MIX;
    uint32_t heavy = io->heavy_prompt, own = 0;
    if (mixed)
        own = (uint32_t)floor(p->floor.share * heavy + 1e-9);
    else
        own = (uint32_t)aq_max_u64(least(slots_of(&p->floor, heavy), heavy), io->sinks);
    uint32_t of_head = (uint32_t)aq_max_u64(own, io->sinks);
    io->shared = true;
    io->floor_prompt = own;
    io->mix = mixed ? (uint32_t)lround(p->floor.share * 1e9) : 0;
    io->recent_decode = least(io->recent_decode, io->recent_prompt + of_head - io->sinks);
}

void aq_kv_policy_limits(struct aq_kv_limits *ret, const struct aq_kv_policy *p, uint32_t prompt,
                         uint32_t max_new, uint32_t layer, uint32_t layers)
{
    assert(layer < layers);
    limits_even(ret, p, prompt, max_new);
    if (p->layers != AQ_KV_LAYERS_UNIFORM)
        lean(ret, p, prompt, max_new, layer, layers);
    if (p->heads == AQ_KV_HEADS_SHARED)
        share_slots(ret, p);
    assert(!(ret->bulk && ret->cross)); /* a row that is cross has no .can_bulk */
    assert((uint64_t)ret->sinks + ret->recent_decode <= ret->slots);
}

/* Slots held if none were given up after the prompt. */
static uint64_t held_without(const struct aq_kv_limits *l, uint32_t prompt, uint32_t seen)
{
    assert(seen >= prompt);
    return (uint64_t)(prompt <= l->keep_prompt ? prompt : aq_kv_limits_cut(l)) + (seen - prompt);
}

uint32_t aq_kv_limits_held(const struct aq_kv_limits *l, uint32_t prompt, uint32_t seen)
{
    uint64_t held = held_without(l, prompt, seen);
    uint32_t left = aq_kv_limits_cut(l);
    if (l->bulk && held > l->slots) /* a drop with each (slots - left)th row, its own included */
        return left + 1 + (uint32_t)((held - l->slots - 1) % (l->slots - left));
    return aq_kv_limits_most(l, prompt, seen);
}

uint32_t aq_kv_limits_most(const struct aq_kv_limits *l, uint32_t prompt, uint32_t seen)
{
    if (l->cross && seen == prompt) /* it is cut over all layers after this */
        return prompt <= l->keep_prompt ? prompt : least(prompt, l->layer_prompt);
    return (uint32_t)aq_min_u64(held_without(l, prompt, seen), l->slots);
}

enum aq_kv_counts aq_kv_limits_counts(const struct aq_kv_limits *l, uint32_t held)
{
    uint32_t later = l->slots - held; /* rows in front of the drop */
    assert(l->bulk && held <= l->slots);
    if (!l->history || later + 1 < l->history)
        return AQ_KV_COUNTS;
    return later + 1 == l->history ? AQ_KV_COUNTS_FIRST : AQ_KV_COUNTS_NOT;
}

bool aq_kv_limits_drop(const struct aq_kv_limits *l, uint32_t prompt, uint32_t max_new)
{
    return prompt > l->keep_prompt || (uint64_t)prompt + max_new > (uint64_t)l->slots + 1;
}

uint64_t aq_kv_policy_positions(const struct aq_kv_policy *p, uint32_t prompt, uint32_t max_new)
{
    struct aq_kv_limits l;
    uint64_t tokens = (uint64_t)prompt + max_new;
    if (p->positions != AQ_KV_POSITIONS_CACHE)
        return tokens;
    aq_kv_policy_limits(&l, p, prompt, max_new, 0, 1);
    return aq_kv_limits_drop(&l, prompt, max_new) ? aq_max_u64(prompt, l.slots) : tokens;
}

/* Most slots of a prompt that each layer keeps, where all layers keep as many. */
static uint32_t most_even(const struct aq_kv_policy *p, uint32_t prompt_max, uint32_t max_new)
{
    struct aq_kv_limits l;
    limits_even(&l, p, prompt_max, max_new);
    if (aq_kv_policy_grows(p))
        return least(prompt_max, l.keep_prompt);
    return l.slots; /* UINT32_MAX: all */
}

bool aq_kv_policy_most(struct aq_kv_most *most, const struct aq_kv_policy *p,
                       const struct aq_kv_lengths *lengths, uint32_t layers, uint32_t kv_heads)
{
    uint32_t prompt_max = lengths->prompt_max, total = lengths->total_max;
    bool grows = aq_kv_policy_grows(p), differ = false;
    assert(prompt_max <= total);
    /* Where the cache grows, a short prompt with many new tokens can come to hold most. */
    uint32_t max_new = total - prompt_max;
    if (grows)
        max_new = (uint32_t)aq_max_u64(1, lengths->new_max ? lengths->new_max : total);
    memset(most, 0, layers * sizeof(*most));
    if (p->layers != AQ_KV_LAYERS_UNIFORM)
        differ = most_kept(most, p, lengths, layers);
    uint32_t even = most_even(p, prompt_max, max_new);
    for (uint32_t i = 0; i < layers; i++) {
        struct aq_kv_most *m = &most[i];
        uint64_t kept = p->layers == AQ_KV_LAYERS_UNIFORM ? even : m->kept;
        uint64_t slots = kept + (grows ? max_new : 0);
        m->kept = (uint32_t)aq_min_u64(kept, total);
        m->slots = (uint32_t)aq_min_u64(slots, total);
        m->whole = slots > total;
        m->head = m->slots;
        if (aq_kv_policy_ragged(p)) {
            uint64_t of_head = aq_min_u64(prompt_max, ((uint64_t)m->kept + 1) * kv_heads);
            uint64_t head = m->whole && grows ? total : of_head + (m->slots - m->kept);
            m->head = (uint32_t)aq_max_u64(head, m->slots);
        }
        /* Prompts are held whole for a pass, and a head may be left whole. */
        if (aq_kv_policy_cross(p)) {
            m->slots = (uint32_t)aq_max_u64(m->slots, prompt_max);
            m->head = total;
        }
        if (aq_kv_policy_profiled(p)) {
            uint64_t new_max = aq_max_u64(1, lengths->new_max ? lengths->new_max : total);
            m->kept = least(prompt_max, cap_of(p, prompt_max));
            m->slots = m->head = (uint32_t)aq_min_u64(m->kept + new_max, total);
        }
    }
    return differ;
}

uint32_t aq_kv_policy_prompt_rows(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                                  uint32_t prompt)
{
    uint32_t rows = p->prompt.rows ? p->prompt.rows : prompt;
    if (l->bulk && l->history && prompt <= l->keep_prompt) {
        uint32_t to_come = l->slots - prompt; /* rows in front of the first drop */
        rows = l->history > to_come ? l->history - to_come : 0;
    } else if (!l->bulk && p->prompt.rows) {
        rows = least(rows, l->keep_prompt);
    }
    return least(rows, prompt);
}

uint64_t aq_kv_policy_stat_pairs(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                                 uint32_t prompt)
{
    /* Scores go on from those of the prompt, even where it stays whole. */
    bool goes_on = aq_kv_policy_scores(p) && p->decode.decay > 0;
    if (p->prompt.source != AQ_KV_SOURCE_COLUMNS || !(goes_on || prompt > l->keep_prompt))
        return 0;
    uint64_t rows = aq_kv_policy_prompt_rows(p, l, prompt);
    uint64_t pairs = rows * prompt - rows * (rows - 1) / 2, near = least(l->local, prompt);
    if (l->profiled) /* those near each other once more */
        pairs += near * prompt - near * (near - 1) / 2;
    return pairs;
}

uint64_t aq_kv_policy_rank_pairs(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                                 uint32_t prompt, uint32_t head_dim)
{
    if (p->prompt.source == AQ_KV_SOURCE_EXPECTED && prompt > l->keep_prompt)
        return 3ull * head_dim * prompt;
    return aq_kv_policy_stat_pairs(p, l, prompt);
}

bool aq_kv_policy_sums_all(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                           uint32_t prompt)
{
    return !l->cross && !l->profiled && aq_kv_policy_stat_pairs(p, l, prompt) &&
           aq_kv_policy_prompt_rows(p, l, prompt) == prompt;
}

bool aq_kv_policy_keeps_begun(const struct aq_kv_policy *p)
{
    return p->prompt.source == AQ_KV_SOURCE_COLUMNS && !p->prompt.rows && !aq_kv_policy_cross(p) &&
           !aq_kv_policy_profiled(p);
}

uint32_t aq_kv_policy_copies_most(const struct aq_kv_policy *p, const struct aq_kv_limits *l,
                                  uint32_t prompt, bool drops)
{
    enum aq_kv_source source = p->prompt.source;
    bool cut = prompt > l->keep_prompt;
    if (l->cross || l->profiled)
        return 0;
    if (!drops)
        return prompt - 1;
    if (cut && (source == AQ_KV_SOURCE_KEY_DIFF || source == AQ_KV_SOURCE_EXPECTED))
        return 0;
    if (aq_kv_policy_sums_all(p, l, prompt))
        return aq_kv_policy_keeps_begun(p) ? prompt - 1 : 0;
    if (aq_kv_policy_stat_pairs(p, l, prompt))
        return prompt - aq_kv_policy_prompt_rows(p, l, prompt);
    /* Scores that begin with the prompt begin with its rows. */
    return !cut && aq_kv_policy_scores(p) ? 0 : prompt - 1;
}

/* ---- head-blocks --------------------------------------------------------------------------- */

static uint32_t runs_of(uint64_t slots)
{
    return (uint32_t)aq_div_up(slots, AQ_HEAD_BLOCK_SLOTS);
}

uint32_t aq_kv_packed_runs(uint32_t kept, bool mixed, uint32_t kv_heads)
{
    uint64_t all = (uint64_t)kv_heads * kept + (mixed ? kv_heads / 2 : 0);
    return (uint32_t)aq_div_up(all / AQ_HEAD_BLOCK_SLOTS, kv_heads);
}

uint32_t aq_kv_limits_spare(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t prompt)
{
    uint32_t kept = l->heavy_prompt + l->recent_prompt;
    if (!aq_kv_limits_differ(l, prompt) || l->cross)
        return 0;
    if (l->profiled) /* no head fills more head-blocks than the prompt */
        return kept / AQ_HEAD_BLOCK_SLOTS * AQ_HEAD_BLOCK_SLOTS + PARTLY - kept;
    return AQ_HEAD_BLOCK_SLOTS * aq_kv_packed_runs(kept, l->mix, kv_heads) + PARTLY - kept;
}

uint32_t aq_kv_limits_runs(const struct aq_kv_limits *l, uint32_t kv_heads, uint32_t prompt,
                           uint32_t seen)
{
    return runs_of((uint64_t)aq_kv_limits_most(l, prompt, seen) +
                   aq_kv_limits_spare(l, kv_heads, prompt));
}

uint32_t aq_kv_policy_runs(const struct aq_kv_policy *p, const struct aq_kv_most *most,
                           uint32_t kv_heads)
{
    if (!aq_kv_policy_ragged(p))
        return runs_of(most->slots);
    if (aq_kv_policy_cross(p))
        return runs_of(most->head);
    /* All positions of a prompt of 32 k + 31, and growth that begins with one head-block. */
    if (aq_kv_policy_profiled(p))
        return (most->slots + PARTLY - 1) / AQ_HEAD_BLOCK_SLOTS + 1;
    /* A sequence that keeps fewer may grow by as many more, which can take one run more. */
    bool mixed = p->floor_kind == AQ_KV_FLOOR_MIX;
    return aq_kv_packed_runs(most->kept, mixed, kv_heads) +
           runs_of((uint64_t)PARTLY + most->slots - most->kept) +
           (most->whole && aq_kv_policy_grows(p));
}

uint32_t aq_kv_policy_tail_runs(const struct aq_kv_policy *p)
{
    return aq_kv_policy_profiled(p) || (aq_kv_policy_ragged(p) && aq_kv_policy_grows(p)) ? 2 : 1;
}
