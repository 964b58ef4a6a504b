/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/reference/asked.h"

#include "base/prng.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static uint32_t floor_share(double share, uint32_t tokens)
{
    uint32_t n = (uint32_t)floor(share * tokens + 1e-9);
    return n ? n : 1;
}

struct aq_kv_amount asked_slots(uint32_t n)
{
    return (struct aq_kv_amount){AQ_KV_SLOTS, n, 0};
}

struct aq_kv_amount asked_share(double x)
{
    return (struct aq_kv_amount){AQ_KV_SHARE, 0, x};
}

static uint32_t amount_of(const struct aq_kv_amount *a, uint32_t tokens)
{
    return a->unit == AQ_KV_SHARE ? floor_share(a->share, tokens) : a->slots;
}

/* Of adakv: 20 % of the heavy tokens, or what is said; no fewer than are sinks. */
static uint32_t floor_of(const struct aq_kv_options *o, uint32_t heavy)
{
    struct aq_kv_amount floor = o->floor.unit == AQ_KV_UNSET ? asked_share(0.2) : o->floor;
    bool none = floor.unit == AQ_KV_SHARE && floor.share == 0;
    uint32_t n = none ? 0 : amount_of(&floor, heavy);
    n = n < heavy ? n : heavy;
    return n > o->sinks ? n : o->sinks;
}

static enum ref_group group_of(const struct asked *a)
{
    const struct aq_kv_options *o = &a->options;
    bool snapkv = a->variant == REF_SNAPKV || a->variant == REF_BULK_SNAPKV;
    if (!o->group_given)
        return snapkv ? REF_MEAN : REF_SUM;
    switch (o->group) {
    case AQ_ATTN_MEAN: return REF_MEAN;
    case AQ_ATTN_MAX: return REF_MAX;
    case AQ_ATTN_FIRST: return REF_FIRST;
    case AQ_ATTN_MAX_OF_SUMS: return REF_MAX_OF_SUMS;
    default: return REF_SUM;
    }
}

/* Shares are of the prompt alone; of too small a budget the last tokens take all. */
static void tell_grow(struct ref_policy *p, const struct asked *a, uint32_t n)
{
    const struct aq_kv_options *o = &a->options;
    uint32_t budget = amount_of(&o->budget, n);
    p->recent = a->variant == REF_SNAPKV ? o->observe_given ? o->observe : 32 : 0;
    p->recent = p->recent < budget ? p->recent : budget;
    p->heavy = budget - p->recent;
    bool expected = a->variant == REF_EXPECTED;
    uint32_t sinks = expected && !o->sinks_given ? 4 : o->sinks;
    p->sinks = sinks < p->heavy ? sinks : p->heavy;
    p->ahead = !expected ? 0 : o->ahead_given ? o->ahead : 512;
    p->observe = p->recent;
    bool ada = strncmp(o->policy, "ada-", 4) == 0, pyramid = strstr(o->policy, "pyramid");
    p->pool = !o->pool_given ? ada ? 7 : 5 : o->pool ? o->pool_width : 1;
    p->pool_largest = o->pool_given ? o->pool == AQ_KV_POOL_MAX : ada;
    p->pool_each = o->pool_order_given ? o->pool_first : !ada;
    p->beta = o->layers_given ? o->beta : pyramid ? 20 : 0;
    p->rising = o->layers_given && o->layers == AQ_KV_LAYERS_RISING;
    p->shared = o->heads_given ? o->heads == AQ_KV_HEADS_SHARED : ada;
    bool given = o->floor.unit != AQ_KV_UNSET;
    if (p->shared && (!given || o->floor_kind == AQ_KV_FLOOR_MIX))
        p->mix = given ? (uint32_t)lround(100 * o->floor.share) : 20;
    else if (p->shared)
        p->floor_share = o->floor.share;
}

/* Shares are of the whole sequence, which `tokens` is. */
static void tell_bulk(struct ref_policy *p, const struct asked *a, uint32_t n, uint32_t tokens)
{
    const struct aq_kv_options *o = &a->options;
    bool hands = a->variant == REF_SCISSORHANDS;
    uint32_t observe = 0;
    if (a->variant == REF_BULK_SNAPKV) {
        tell_grow(p, a, n);
        observe = o->observe_given ? o->observe : 32;
        p->shared = false;
    }
    p->high = amount_of(&o->budget, tokens);
    p->high = p->high < 2 ? 2 : p->high;
    p->drop = o->drop.slots;
    p->drop_share = o->drop.unit == AQ_KV_SHARE ? o->drop.share : 0;
    if (o->drop.unit == AQ_KV_UNSET)
        p->drop_share = hands ? 0.5 : 0.25;
    p->asked_heavy = amount_of(&o->heavy, tokens);
    p->asked_recent = observe ? observe : amount_of(&o->recent, tokens);
    if (hands && !p->asked_recent)
        p->asked_recent = 10;
    p->asked_history = o->history_given ? o->history : hands ? 400 : observe;
    p->asked_sinks = o->sinks;
    p->observe = hands ? p->asked_history : observe;
    p->beta = o->layers_given ? o->beta : strcmp(o->policy, "pyramidkv") == 0 ? 20 : 0;
    p->rising = o->layers_given && o->layers == AQ_KV_LAYERS_RISING;
    p->decay = o->decay;
    p->low = !hands ? 0 : o->low > 0 ? o->low : 1;
    ref_divide(p);
}

/* Each head has room for its newest tokens, in whole blocks. */
static void tell_kvcompress(struct ref_policy *p, const struct asked *a, uint32_t n)
{
    const struct aq_kv_options *o = &a->options;
    uint32_t budget = amount_of(&o->budget, n);
    p->recent = o->recent.unit == AQ_KV_UNSET ? 64 : amount_of(&o->recent, n);
    uint32_t room = (p->recent + 31) / 32 * 32;
    budget = budget > room ? budget : room;
    p->heavy = budget - p->recent;
    p->observe = o->observe_given ? o->observe : 32;
    p->observe = p->observe < budget ? p->observe : budget;
    p->squares = true;
    p->cross_layer = o->cross_layer_given ? o->cross_layer : 2;
    p->pool = !o->pool_given ? 7 : o->pool ? o->pool_width : 1;
    p->pool_largest = !o->pool_given || o->pool == AQ_KV_POOL_MAX;
    p->pool_each = !o->pool_order_given || o->pool_first;
}

const uint8_t asked_classes[ASKED_VOCAB] = {
    [2] = 1,  [5] = 2,  [11] = 2, [13] = 3, [20] = 1,
    [31] = 2, [47] = 2, [60] = 2, [61] = 1, [77] = 2,
};

static void tell_fastgen(struct ref_policy *p, const struct asked *a, uint32_t n)
{
    const struct aq_kv_options *o = &a->options;
    p->group = REF_MEAN;
    p->mass = o->mass_given ? o->mass : 0.95;
    p->sinks = o->sinks_given ? o->sinks : 4;
    p->heavy = (uint32_t)ceil(0.3 * n - 1e-9);
    if (o->frequent.unit != AQ_KV_UNSET)
        p->heavy = o->frequent.unit == AQ_KV_SLOTS ? o->frequent.slots
                                                   : (uint32_t)ceil(o->frequent.share * n - 1e-9);
    p->recent = o->local.unit == AQ_KV_UNSET ? floor_share(0.3, n) : amount_of(&o->local, n);
    p->classes = asked_classes;
    if (o->budget.unit != AQ_KV_UNSET)
        p->cap = amount_of(&o->budget, n);
    p->sinks = p->cap && p->cap < p->sinks ? p->cap : p->sinks;
    if (p->mass >= 1 && (!p->cap || n <= p->cap))
        *p = (struct ref_policy){.variant = REF_FULL, .group = REF_MEAN};
}

struct ref_policy asked_reference(const struct asked *a, uint32_t n, uint32_t g)
{
    const struct aq_kv_options *o = &a->options;
    uint32_t budget = amount_of(&o->budget, n + g), heavy = amount_of(&o->heavy, n + g),
             recent = amount_of(&o->recent, n + g);
    struct ref_policy p = {
        .variant = a->variant, .group = group_of(a), .heavy = heavy, .recent = recent};
    switch (a->variant) {
    case REF_FULL: break;
    case REF_ADAKV:
    case REF_H2O:
        if (o->budget.unit != AQ_KV_UNSET) {
            p.heavy = o->heavy.unit == AQ_KV_UNSET ? budget / 2 : heavy;
            p.recent = budget - p.heavy;
        }
        p.sinks = o->sinks;
        p.grace = o->grace;
        p.decay = o->decay;
        p.floor = floor_of(o, p.heavy);
        break;
    case REF_HEAVY:
        p.heavy = budget - 1;
        p.recent = 1;
        break;
    case REF_WINDOW:
        p.heavy = o->sinks;
        p.recent = budget - o->sinks;
        p.in_cache = o->positions == AQ_KV_POSITIONS_CACHE;
        p.places = p.in_cache ? budget : 0;
        break;
    case REF_FLEXGEN:
        p.heavy = amount_of(&o->heavy, n);
        p.heavy = p.heavy < 2 ? 2 : p.heavy;
        break;
    case REF_HF: break;
    case REF_SNAPKV:
    case REF_EXPECTED:
    case REF_KNORM:
    case REF_KEYDIFF: tell_grow(&p, a, n); break;
    case REF_KVCOMPRESS: tell_kvcompress(&p, a, n); break;
    case REF_FASTGEN: tell_fastgen(&p, a, n); break;
    case REF_TOVA:
        p.heavy = budget;
        p.observe = 1;
        break;
    case REF_BULK_H2O:
    case REF_BULK_SNAPKV:
    case REF_SCISSORHANDS: tell_bulk(&p, a, n, n + g); break;
    }
    return p;
}

/* Both parts, and all that h2o lets one say of them.  own: of the heavy ones, those that every
 * head keeps for itself. */
static void draw_parts(struct aq_kv_options *o, uint64_t seed, uint32_t heavy, uint32_t recent,
                       uint32_t own)
{
    o->heavy = asked_slots(heavy);
    o->recent = asked_slots(recent);
    o->sinks_given = true;
    o->sinks = (uint32_t)aq_prng_below(seed, 1, 0, heavy);
    uint32_t rest = own > o->sinks ? own - o->sinks : 0;
    o->grace = (uint32_t)aq_prng_below(seed, 2, 0, (uint64_t)rest + recent + 1);
    o->decay = 1 - (double)aq_prng_below(seed, 3, 0, 5) / 10.0;
}

struct asked asked_draw_kvcompress(uint64_t seed, uint64_t i)
{
#define DRAW(n) ((uint32_t)aq_prng_below(seed, i, ++draw, (n)))
    uint64_t draw = 200;
    struct asked a = {.options = {.policy = "kvcompress"}, .variant = REF_KVCOMPRESS};
    struct aq_kv_options *o = &a.options;
    uint32_t recent = 1 + DRAW(40), room = (recent + 31) / 32 * 32;
    if (DRAW(4))
        o->recent = asked_slots(recent);
    else
        room = 64;
    o->budget = DRAW(3) ? asked_slots(room + DRAW(60)) : asked_share((1 + DRAW(100)) / 100.0);
    o->observe_given = DRAW(3) > 0;
    o->observe = 1 + DRAW(20);
    o->pool_given = DRAW(2);
    o->pool = (enum aq_kv_pool)DRAW(3);
    o->pool_width = 1 + 2 * DRAW(6);
    o->pool_order_given = o->pool_given && o->pool != AQ_KV_POOL_NONE;
    o->pool_first = DRAW(2);
    static const double shares[] = {0, 1, 1.25, 1.5, 2};
    o->cross_layer_given = DRAW(4) > 0;
    o->cross_layer = shares[DRAW(AQ_ARRAY_LEN(shares))];
    return a;
#undef DRAW
}

struct asked asked_draw_fastgen(uint64_t seed, uint64_t i)
{
#define DRAW(n) ((uint32_t)aq_prng_below(seed, i, ++draw, (n)))
    uint64_t draw = 300;
    struct asked a = {.options = {.policy = "fastgen"}, .variant = REF_FASTGEN};
    struct aq_kv_options *o = &a.options;
    o->mass_given = DRAW(8) > 0;
    o->mass = (20 + DRAW(81)) / 100.0;
    if (DRAW(4))
        o->frequent = DRAW(2) ? asked_share(DRAW(61) / 100.0) : asked_slots(DRAW(20));
    if (DRAW(4))
        o->local = DRAW(2) ? asked_share((1 + DRAW(60)) / 100.0) : asked_slots(1 + DRAW(40));
    o->sinks_given = DRAW(2);
    o->sinks = DRAW(7);
    if (DRAW(2))
        o->budget = DRAW(2) ? asked_share((1 + DRAW(100)) / 100.0) : asked_slots(8 + DRAW(50));
    return a;
#undef DRAW
}

/* Policies that cut prompts by ranks of their own. */
static struct asked draw_ranked(uint64_t seed, uint64_t i, uint32_t kind)
{
#define DRAW(n) ((uint32_t)aq_prng_below(seed, i, ++draw, (n)))
    static const char *const names[] = {
        "snapkv",     "snapkv",     "tova",        "knorm",  "keydiff", "pyramidkv", "pyramidkv",
        "ada-snapkv", "ada-snapkv", "ada-pyramid", "snapkv", "knorm",   "expected",  "expected"};
    static const enum ref_variant variants[] = {
        REF_SNAPKV, REF_SNAPKV, REF_TOVA,   REF_KNORM,  REF_KEYDIFF, REF_SNAPKV,   REF_SNAPKV,
        REF_SNAPKV, REF_SNAPKV, REF_SNAPKV, REF_SNAPKV, REF_KNORM,   REF_EXPECTED, REF_EXPECTED};
    uint64_t draw = 50;
    struct asked a = {.options = {.policy = names[kind]}, .variant = variants[kind]};
    struct aq_kv_options *o = &a.options;
    uint32_t observe = 1 + DRAW(12);
    o->budget = DRAW(2) ? asked_share((1 + DRAW(100)) / 100.0) : asked_slots(2 + DRAW(24));
    if (a.variant == REF_SNAPKV) {
        o->observe_given = true;
        o->observe = observe;
        if (o->budget.unit == AQ_KV_SLOTS)
            o->budget.slots += observe;
        o->pool_given = DRAW(4) > 0;
        o->pool = (enum aq_kv_pool)DRAW(3);
        o->pool_width = 1 + 2 * DRAW(6);
        o->pool_order_given = o->pool_given && o->pool != AQ_KV_POOL_NONE;
        o->pool_first = DRAW(2);
    }
    if (a.variant != REF_TOVA && DRAW(3) == 0) {
        o->sinks_given = true;
        o->sinks = DRAW(3);
    }
    if (a.variant != REF_TOVA && DRAW(2) == 0) {
        o->layers_given = true;
        o->layers = (enum aq_kv_layers)DRAW(3);
        o->beta = o->layers ? 1 + DRAW(24) : 0;
    }
    if (a.variant == REF_EXPECTED) {
        if (o->budget.unit == AQ_KV_SLOTS)
            o->budget.slots += 4; /* those that stay unless something else is said */
        o->ahead_given = DRAW(2);
        o->ahead = 1 + DRAW(700);
    }
    if (kind >= 7 && kind != 12 && DRAW(3)) {
        o->floor_kind = DRAW(2) ? AQ_KV_FLOOR_MIX : AQ_KV_FLOOR_RESERVE;
        o->floor = asked_share(DRAW(21) / 20.0);
    }
    o->heads_given = kind >= 10 && kind != 12;
    o->heads = AQ_KV_HEADS_SHARED;
    return a;
#undef DRAW
}

/* Policies that drop many tokens at a time. */
static struct asked draw_bulk(uint64_t seed, uint64_t i, uint32_t kind)
{
#define DRAW(n) ((uint32_t)aq_prng_below(seed, i, ++draw, (n)))
    static const char *const names[] = {"h2o", "snapkv", "scissorhands", "scissorhands",
                                        "pyramidkv"};
    static const enum ref_variant variants[] = {REF_BULK_H2O, REF_BULK_SNAPKV, REF_SCISSORHANDS,
                                                REF_SCISSORHANDS, REF_BULK_SNAPKV};
    uint64_t draw = 80;
    struct asked a = {.options = {.policy = names[kind]}, .variant = variants[kind]};
    struct aq_kv_options *o = &a.options;
    uint32_t recent = 1 + DRAW(6), drop = 1 + DRAW(12), rest = 1 + DRAW(12);
    o->decode_given = true;
    o->decode = AQ_KV_DECODE_BULK;
    o->budget = DRAW(2) ? asked_share((1 + DRAW(100)) / 100.0) : asked_slots(recent + drop + rest);
    if (DRAW(4) || o->budget.unit == AQ_KV_SLOTS)
        o->drop = DRAW(2) && o->budget.unit == AQ_KV_SHARE ? asked_share((1 + DRAW(99)) / 100.0)
                                                           : asked_slots(drop);
    if (a.variant == REF_BULK_SNAPKV) {
        o->observe_given = true;
        o->observe = recent;
        o->pool_given = DRAW(4) > 0;
        o->pool = (enum aq_kv_pool)DRAW(3);
        o->pool_width = 1 + 2 * DRAW(6);
        o->pool_order_given = o->pool_given && o->pool != AQ_KV_POOL_NONE;
        o->pool_first = DRAW(2);
    } else {
        o->recent = asked_slots(recent);
    }
    o->history_given = DRAW(2);
    o->history = 1 + DRAW(15);
    if (a.variant != REF_BULK_SNAPKV && DRAW(3) == 0)
        o->history = 0;
    o->sinks_given = DRAW(3) == 0;
    o->sinks = o->sinks_given ? DRAW(rest + 1) : 0;
    if (kind == 0)
        o->decay = DRAW(2) ? 0 : 1 - (double)DRAW(5) / 10.0;
    if (kind == 2)
        o->low = DRAW(2) ? 0 : (1 + DRAW(30)) / 10.0;
    if (kind >= 3) {
        o->layers_given = kind == 3 || DRAW(2);
        o->layers = kind == 3 ? AQ_KV_LAYERS_RISING : (enum aq_kv_layers)DRAW(3);
        o->beta = o->layers && o->layers_given ? 1 + DRAW(24) : 0;
    }
    return a;
#undef DRAW
}

struct asked asked_draw(uint64_t seed, uint64_t i)
{
#define DRAW(n) ((uint32_t)aq_prng_below(seed, i, ++draw, (n)))
    uint64_t draw = 0;
    uint32_t kind = (uint32_t)(i % ASKED_KINDS), heavy = DRAW(12), recent = 1 + DRAW(12);
    struct asked a = {0};
    struct aq_kv_options *o = &a.options;
    if (kind >= 24)
        return draw_bulk(seed, i, kind - 24);
    if (kind >= 10)
        return draw_ranked(seed, i, kind - 10);
    switch (kind) {
    case 0:
        o->policy = "h2o";
        o->budget = asked_share((1 + DRAW(100)) / 100.0);
        break;
    case 1:
        o->policy = "h2o";
        o->heavy = asked_slots(heavy + !heavy);
        o->budget = asked_slots(heavy + !heavy + recent);
        break;
    case 2:
        o->policy = "h2o";
        draw_parts(o, seed + i, heavy + 2, recent, heavy + 2);
        break;
    case 3:
        o->policy = "heavy";
        o->budget = asked_slots(2 + DRAW(20));
        break;
    case 4:
        o->policy = "window";
        o->sinks_given = true;
        o->sinks = DRAW(5);
        o->budget = asked_slots(o->sinks + recent + (o->sinks + recent < 2));
        break;
    case 5:
        o->policy = "h2o:flexgen";
        o->heavy = asked_share((1 + DRAW(50)) / 100.0);
        break;
    case 6:
        o->policy = "h2o:flexgen";
        o->heavy = asked_share((50 + DRAW(51)) / 100.0);
        break;
    case 7:
        o->policy = "h2o:hf";
        o->heavy = asked_slots(heavy + !heavy);
        o->recent = asked_slots(recent);
        break;
    case 8:
        o->policy = "adakv";
        o->budget = asked_share((1 + DRAW(100)) / 100.0);
        if (DRAW(2))
            o->floor = asked_share(DRAW(11) / 10.0);
        break;
    default:
        o->policy = "adakv";
        o->floor = asked_slots(DRAW(heavy + 3));
        draw_parts(o, seed + i, heavy + 2, recent, o->floor.slots);
        break;
    }
#undef DRAW
    static const enum ref_variant variants[] = {REF_H2O,    REF_H2O,     REF_H2O,     REF_HEAVY,
                                                REF_WINDOW, REF_FLEXGEN, REF_FLEXGEN, REF_HF,
                                                REF_ADAKV,  REF_ADAKV};
    a.variant = variants[kind];
    return a;
}

struct asked asked_close(uint32_t sinks, uint32_t slots)
{
    return (struct asked){{.policy = "window",
                           .sinks_given = true,
                           .sinks = sinks,
                           .budget = asked_slots(slots),
                           .positions_given = true,
                           .positions = AQ_KV_POSITIONS_CACHE},
                          REF_WINDOW};
}

void asked_group(struct asked *a, uint64_t draw)
{
    static const enum aq_attn_group groups[] = {AQ_ATTN_SUM, AQ_ATTN_MEAN, AQ_ATTN_MAX,
                                                AQ_ATTN_FIRST, AQ_ATTN_MAX_OF_SUMS};
    struct aq_kv_options *o = &a->options;
    bool snapkv = a->variant == REF_SNAPKV || a->variant == REF_BULK_SNAPKV;
    bool bulk = a->variant >= REF_BULK_H2O;
    if (a->variant == REF_FULL || a->variant == REF_WINDOW || (a->variant > REF_SNAPKV && !bulk))
        return;
    o->group_given = true;
    /* The kind is the remainder. */
    o->group = groups[draw / ASKED_KINDS % (snapkv && !bulk ? 5 : 4)];
    if (snapkv && o->group == AQ_ATTN_MAX) { /* of each query: in front of a pool */
        o->pool_order_given = !o->pool_given || o->pool != AQ_KV_POOL_NONE;
        o->pool_first = false;
    }
}

struct aq_kv_policy asked_resolve(const struct asked *a, char text[128])
{
    struct aq_kv_policy kv;
    struct aq_err err;
    if (aq_kv_policy_resolve(&kv, &a->options, &err) < 0)
        fail_msg("%s: %s", a->options.policy, err.text);
    aq_kv_policy_text(text, 128, &kv);
    return kv;
}
