/* SPDX-License-Identifier: Apache-2.0
 * Layers that hold different numbers of slots: jobs of random sequences through models whose layers
 * have random windows, with the seats of policy/seats.h and the pages of engine/exec/kv_pages.h.
 * After every pass each sequence holds in each layer what that layer's rule says, in as few pages
 * as that takes, and no pool is asked for a page that it has not. */
#include "base/prng.h"
#include "engine/exec/kv_pages.h"
#include "policy/seats.h"
#include "tests/test.h"
#include "tests/unit/policy/plans.h"

#include <stdlib.h>
#include <string.h>

enum { DRAWS = TEST_SLOW ? 10 : 600, SEQUENCES = 40, LAYERS_MAX = 9, PROMPT = 100, TOTAL = 164 };

struct rig {
    uint64_t seed;
    struct aq_model_steps steps;
    struct aq_block block;
    struct aq_mem *mem;
    struct aq_device *device;
    struct aq_kv *kv;
    struct aq_seats seats;
    struct aq_seats_arrays at;
    struct aq_length length[SEQUENCES];
    uint32_t waiting, ended, now[SEQUENCES]; /* the next one; how many are over; by seat */
    uint32_t most_rows;                      /* of a seat that had decode rows */
    bool tight;                              /* not every seat can have its longest sequence */
    uint32_t cuts;                           /* prompts whose heads of all layers have shared */
    uint32_t found;                          /* or have found their rules */
};

static uint32_t roll(const struct rig *r, uint64_t what, uint64_t i, uint32_t below)
{
    return (uint32_t)aq_prng_below(r->seed, what, i, below);
}

static bool next_waiting(void *user, struct aq_sitter *ret)
{
    const struct rig *r = user;
    if (r->waiting == SEQUENCES)
        return false;
    uint32_t most = r->length[r->waiting].max_new;
    *ret = (struct aq_sitter){.prompt = r->length[r->waiting].prompt, .max_new = most};
    if (r->seed % 2 && roll(r, 10, r->waiting, 2)) /* it goes on from tokens of an earlier run */
        ret->given = roll(r, 11, r->waiting, most);
    return true;
}

static void has_sat(void *user, uint32_t seat)
{
    struct rig *r = user;
    r->now[seat] = r->waiting++;
}

/* Some end before their time. */
static bool has_ended(void *user, uint32_t seat)
{
    struct rig *r = user;
    const struct aq_seat *t = &r->seats.seat[seat];
    if (!t->seen || (t->seen < t->last && roll(r, 5, r->now[seat] * 1000ull + t->seen, 40)))
        return false;
    aq_kv_release(r->kv, seat);
    r->ended++;
    return true;
}

static void bound(void *user, uint32_t seat)
{
    struct rig *r = user;
    const struct aq_seat *t = &r->seats.seat[seat];
    const struct aq_plan *plan = &r->block.plan;
    for (uint32_t k = 0; k < plan->kinds.count; k++)
        aq_kv_grow(r->kv, seat, k, aq_seat_kv_runs(&t->kv[k], t->kv[k].most));
    if (t->seen > t->prompt && t->rows > r->most_rows)
        r->most_rows = t->rows;
    assert_true(t->rows <= 1 || t->seen == t->prompt || t->seen <= t->prompt + t->given);
    assert_true(r->seats.prompt_rows[seat / plan->shape.micro_batch] + plan->shape.micro_batch <=
                plan->shape.rows_max);
}

/* Heads keep as much of a prompt as their rules say: any number up to the cap. */
static uint64_t find_rules(struct rig *r, uint32_t seat, uint32_t kind)
{
    const struct aq_kv_kinds *kinds = &r->block.plan.kinds;
    const struct aq_seat *t = &r->seats.seat[seat];
    uint32_t most = t->kv[kind].limits.heavy_prompt;
    uint64_t packed = 0;
    for (uint32_t l = 0; l < kinds->layers; l++) {
        uint32_t blocks = 0;
        for (uint32_t h = 0; h < r->steps.kv_heads && kinds->of[l] == kind; h++) {
            uint64_t what = (t->prompt * 100ull + seat) * 100 + l;
            bool all = roll(r, 40 + h, what, 4) == 0;
            uint32_t len = all ? most : roll(r, 50 + h, what, most + 1);
            aq_kv_lens(r->kv, seat, l)[h] = len;
            blocks += len / 32;
        }
        packed += (blocks + r->steps.kv_heads - 1) / r->steps.kv_heads;
    }
    const struct aq_seat_kv *kv = &t->kv[kind];
    assert_int_equal(aq_kv_shrink(r->kv, seat, kind, aq_seat_kv_runs(kv, kv->held)), packed);
    r->found++;
    return packed;
}

/* Runs of a layer whose heads have rules: before these are known, and on disk, as if all heads kept
 * all, or the cap; then what they fill, and growth as if all went on. */
static uint32_t runs_by_rules(const struct rig *r, uint32_t seat, uint32_t layer,
                              const struct aq_seat_kv *kv)
{
    const struct aq_seat *t = &r->seats.seat[seat];
    uint32_t heads = r->steps.kv_heads, packed = 0, growth = (31 + t->seen - t->prompt + 31) / 32;
    if (!kv->apart)
        return kv->limits.heavy_prompt / 32 + growth;
    for (uint32_t h = 0; h < heads; h++)
        packed += aq_kv_lens(r->kv, seat, layer)[h] / 32;
    assert_true(packed <= heads * (kv->limits.heavy_prompt / 32));
    return (packed + heads - 1) / heads + growth;
}

/* Heads of all layers give up head-blocks, whose costs are drawn. */
static uint64_t cut(void *user, uint32_t seat, uint32_t kind)
{
    enum { HEADS = 8, COSTS = 8 };
    struct rig *r = user;
    const struct aq_kv_kinds *kinds = &r->block.plan.kinds;
    const struct aq_seat *t = &r->seats.seat[seat];
    const struct aq_seat_kv *kv = &t->kv[kind];
    uint32_t heads = r->steps.kv_heads, most;
    uint32_t cost[LAYERS_MAX][HEADS][COSTS], gone[LAYERS_MAX][HEADS], of[LAYERS_MAX], count = 0;
    const uint32_t *costs[LAYERS_MAX], *gones[LAYERS_MAX];
    uint32_t *freed[LAYERS_MAX];
    if (kv->limits.profiled)
        return find_rules(r, seat, kind);
    most = aq_kv_cross_most_freed(&kv->limits, t->prompt);
    assert_true(heads <= HEADS && most <= COSTS);
    for (uint32_t l = 0; l < kinds->layers; l++) {
        if (kinds->of[l] != kind)
            continue;
        for (uint32_t h = 0; h < heads; h++) {
            uint32_t sum = 0, above = 1 + roll(r, 30, l * 8ull + h, 100);
            for (uint32_t i = 0; i < most; i++)
                cost[count][h][i] = sum += roll(r, 31 + h, (l * 64ull + seat) * 8 + i, above);
        }
        of[count] = l;
        costs[count] = cost[count][0];
        gones[count] = gone[count];
        freed[count] = aq_kv_lens(r->kv, seat, l);
        aq_kv_cross_cut_layer(gone[count], costs[count], COSTS, heads, &kv->limits, t->prompt);
        count++;
    }
    struct aq_kv_cross_heads all = {count, heads, costs, COSTS, gones, freed};
    aq_kv_cross_cut(&all, &kv->limits, t->prompt);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t h = 0; h < heads; h++) {
            uint32_t *len = &aq_kv_lens(r->kv, seat, of[i])[h];
            *len = aq_kv_cross_left(t->prompt, *len);
        }
    }
    r->cuts++;
    return aq_kv_shrink(r->kv, seat, kind, aq_seat_kv_runs(kv, kv->held));
}

/* Runs of a layer whose heads share with those of all layers: all of the prompt until it is cut,
 * then what the heads fill, within two head-blocks of each, of which one is for growth. */
static uint32_t runs_of_all(const struct rig *r, uint32_t seat, uint32_t layer,
                            const struct aq_seat_kv *kv)
{
    const struct aq_seat *t = &r->seats.seat[seat];
    uint32_t heads = r->steps.kv_heads, packed = 0, blocks = 0, grown = t->seen - t->prompt;
    if (kv->whole) {
        assert_int_equal(t->seen, t->prompt);
        uint32_t whole = aq_kv_cross_whole(&kv->limits, heads, t->prompt);
        bool cut = t->prompt > kv->limits.layer_prompt;
        assert_true(cut ? whole <= kv->limits.layer_prompt / 32 + 2
                        : whole == (t->prompt + 31) / 32);
        return whole;
    }
    for (uint32_t h = 0; h < heads; h++) {
        uint32_t len = aq_kv_lens(r->kv, seat, layer)[h];
        packed += len / 32;
        blocks += (len + grown + 31) / 32;
    }
    uint32_t runs = (packed + heads - 1) / heads + (t->prompt % 32 + grown + 31) / 32;
    assert_true(runs * heads >= blocks && runs * heads < blocks + 2 * heads);
    return runs;
}

/* The slots of a sequence in a layer, from the rule of each policy. */
static uint32_t slots_by_rule(const struct rig *r, const struct aq_seat *t, uint32_t layer)
{
    uint32_t window = 0;
    for (uint32_t j = 0; j < r->steps.step_count; j++) {
        if (r->steps.step[j].kind == AQ_STEP_ATTENTION && r->steps.step[j].layer == layer)
            window = r->steps.step[j].window;
    }
    if (window)
        return t->seen < window ? t->seen : window;
    struct aq_kv_limits l;
    aq_kv_policy_limits(&l, &r->block.plan.kv, t->prompt, t->max_new, layer, r->steps.layers);
    return aq_kv_limits_held(&l, t->prompt, t->seen);
}

/* The pages that it has: of the most that it has held so far. */
static uint32_t slots_so_far(const struct rig *r, const struct aq_seat *t, uint32_t layer)
{
    struct aq_seat then = *t;
    uint32_t most = 0;
    for (then.seen = t->prompt; then.seen <= t->seen; then.seen++) {
        uint32_t held = slots_by_rule(r, &then, layer);
        most = held > most ? held : most;
    }
    return most;
}

/* Runs of a layer whose heads share at random what they may keep together: as many as the layout
 * takes, which never depends on how they share, and little more than the heads fill. */
static uint32_t runs_by_heads(const struct rig *r, const struct aq_seat *t, uint32_t layer,
                              const struct aq_seat_kv *kv)
{
    struct aq_kv_limits l;
    uint32_t heads = r->steps.kv_heads, blocks = 0, packed = 0, grown;
    aq_kv_policy_limits(&l, &r->block.plan.kv, t->prompt, t->max_new, layer, r->steps.layers);
    uint32_t kept = l.heavy_prompt + l.recent_prompt, left = heads * kept + (l.mix ? heads / 2 : 0);
    assert_true(l.shared && t->prompt > l.keep_prompt);
    grown = kv->held - kept;
    for (uint32_t h = 0; h < heads; h++) {
        uint32_t of_head =
            h + 1 < heads ? roll(r, 20 + h, t->seen * 100ull + layer, left + 1) : left;
        left -= of_head;
        packed += of_head / 32;
        blocks += (of_head + grown + 31) / 32;
    }
    uint32_t most = (uint32_t)aq_div_up((heads * kept + (l.mix ? heads / 2 : 0)) / 32, heads);
    uint32_t runs = most + (31 + grown + 31) / 32;
    assert_true(packed <= most * heads && blocks <= runs * heads);
    /* Of each head less than one head-block because packed runs are rounded up, one for growth that
     * is not begun, and less than one for slots that would fill head-blocks only together. */
    assert_true(runs * heads < blocks + 3 * heads);
    return runs;
}

/* The keys of each decode row of a seat, given tokens included, are what its layer held then. */
static void check_counted(const struct rig *r, uint32_t seat)
{
    const struct aq_plan *plan = &r->block.plan;
    struct aq_seat then = r->seats.seat[seat];
    if (!then.rows || then.seen == then.prompt || aq_kv_policy_cross(&plan->kv))
        return;
    struct aq_pass_shape *shape = aq_pass_shapes_new(plan);
    assert_non_null(shape);
    struct aq_part_shape *part = &shape->part[aq_seats_part(plan, seat)];
    aq_seats_count(&r->seats, seat, part);
    assert_int_equal(part->decode_rows, then.rows);
    for (uint32_t layer = 0; layer < r->steps.layers; layer++) {
        uint64_t keys = 0;
        for (then.seen = r->seats.seat[seat].seen - then.rows + 1;
             then.seen <= r->seats.seat[seat].seen; then.seen++)
            keys += slots_by_rule(r, &then, layer);
        assert_int_equal(part->kv[plan->kinds.of[layer]].decode_keys, keys);
    }
    free(shape);
}

static void check_pass(const struct rig *r)
{
    const struct aq_plan *plan = &r->block.plan;
    uint64_t pages[AQ_TIER_COUNT] = {0};
    for (uint32_t i = 0; i < r->seats.count; i++) {
        const struct aq_seat *t = &r->seats.seat[i];
        if (t->taken)
            check_counted(r, i);
        for (uint32_t layer = 0; layer < r->steps.layers && t->taken && t->seen; layer++) {
            const struct aq_seat_kv *kv = &t->kv[plan->kinds.of[layer]];
            uint64_t slots = slots_so_far(r, t, layer);
            assert_int_equal(kv->held, slots_by_rule(r, t, layer));
            if (kv->differ)
                slots = 32ull * (kv->limits.profiled ? runs_by_rules(r, i, layer, kv)
                                 : kv->limits.cross  ? runs_of_all(r, i, layer, kv)
                                                     : runs_by_heads(r, t, layer, kv));
            enum aq_tier tier = (enum aq_tier)plan->part[aq_seats_part(plan, i)].tier;
            pages[tier] += aq_div_up(slots, plan->shape.page_slots);
        }
    }
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++)
        assert_int_equal(plan->shape.page_count[t] - aq_kv_pages_free(r->kv, (enum aq_tier)t),
                         pages[t]);
}

static void draw_policy(const struct rig *r, struct aq_kv_policy *ret)
{
    static const char *const names[] = {
        "full",      "h2o",        "window",     "heavy",       "adakv",      "knorm",
        "pyramidkv", "keydiff",    "ada-snapkv", "ada-pyramid", "ada-snapkv", "scissorhands",
        "snapkv",    "kvcompress", "kvcompress", "fastgen",     "expected"};
    struct aq_kv_options o = {.policy = names[roll(r, 6, 0, AQ_ARRAY_LEN(names))]};
    bool capped = strcmp(o.policy, "fastgen") != 0 || roll(r, 6, 8, 2);
    bool budget = strcmp(o.policy, "full") != 0 && capped;
    if (budget)
        o.budget = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = 8 + roll(r, 6, 1, 90)};
    if (roll(r, 6, 2, 3) == 0 && budget)
        o.budget =
            (struct aq_kv_amount){.unit = AQ_KV_SHARE, .share = (1 + roll(r, 6, 3, 70)) / 100.};
    if (strcmp(o.policy, "kvcompress") == 0) {
        o.recent = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = 1 + roll(r, 6, 6, 32)};
        o.budget = (struct aq_kv_amount){.unit = AQ_KV_SLOTS, .slots = 32 + roll(r, 6, 1, 20)};
        o.cross_layer_given = true;
        o.cross_layer = roll(r, 6, 7, 3);
    }
    if (aq_kv_policy_find(o.policy)->prompt.pool) {
        o.observe_given = true;
        o.observe = 1 + roll(r, 6, 4, 7);
    }
    o.layers_given = strcmp(o.policy, "keydiff") == 0;
    if (aq_kv_policy_find(o.policy)->can_bulk && o.budget.unit != AQ_KV_UNSET) {
        bool hands = strcmp(o.policy, "scissorhands") == 0;
        o.decode_given = roll(r, 6, 6, 3) > 0;
        o.decode = AQ_KV_DECODE_BULK;
        o.layers_given = (o.decode_given || hands) && roll(r, 6, 7, 2);
        if ((o.decode_given || hands) && o.budget.unit == AQ_KV_SLOTS)
            o.budget.slots += 16; /* room for those that stay */
    }
    o.layers = AQ_KV_LAYERS_RISING;
    o.beta = 1 + roll(r, 6, 5, 20);
    assert_int_equal(aq_kv_policy_resolve(ret, &o, NULL), 0);
}

/* Windows of every length from one key to more than a sequence has; some layers have none. */
static void draw_model(struct rig *r)
{
    r->steps = plans_model(1 + roll(r, 7, 0, LAYERS_MAX), 64, 4, 128);
    uint32_t alike = roll(r, 7, 1, 3) ? 0 : 1 + roll(r, 7, 2, TOTAL + 20);
    for (uint32_t j = 0; j < r->steps.step_count; j++) {
        uint32_t own = 1 + roll(r, 8, j, TOTAL + 20);
        if (r->steps.step[j].kind == AQ_STEP_ATTENTION && roll(r, 9, j, 3))
            r->steps.step[j].window = alike ? alike : own;
    }
}

/* Fewer pages than all seats together may want, and enough for any one. */
static void take_pages_off(struct rig *r)
{
    struct aq_plan *plan = &r->block.plan;
    uint32_t seats[AQ_TIER_COUNT] = {0};
    for (uint32_t i = 0; i < plan->part_count; i++)
        seats[plan->part[i].tier] += plan->part[i].count * plan->shape.micro_batches;
    for (int t = AQ_DEVICE; t <= AQ_HOST; t++) {
        uint64_t all = plan->shape.page_count[t];
        uint64_t one = seats[t] ? aq_div_up(all, seats[t]) : 0,
                 some = all * (1 + roll(r, 12, 0, 5)) / 10;
        plan->shape.page_count[t] = some > one ? some : one;
    }
}

static void open_rig(struct rig *r, uint64_t seed)
{
    *r = (struct rig){.seed = seed};
    draw_model(r);
    struct aq_block_inputs in = plans_inputs(&r->steps);
    struct aq_placement place = {{{0, 100, 0}}, {{30, 40, 30}}, {{0, 100, 0}}, AQ_HOST};
    draw_policy(r, &in.kv);
    in.sequences = SEQUENCES;
    in.prompt_sum = in.total_sum = 0;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        bool brief = roll(r, 1, i, 3);
        r->length[i].prompt = 1 + roll(r, 2, i, brief ? 20 : PROMPT);
        r->length[i].max_new = 1 + roll(r, 3, i, brief ? 20 : TOTAL - PROMPT);
        in.prompt_sum += r->length[i].prompt;
        in.total_sum += r->length[i].prompt + r->length[i].max_new;
    }
    in.micro_batch = 10;
    in.micro_batches = 1 + roll(r, 4, 0, 3);
    in.separate = roll(r, 4, 1, 2);
    if (aq_kv_policy_profiled(&in.kv))
        in.separate = false;
    if (aq_kv_policy_cross(&in.kv)) {
        in.separate = false;
        place.kv = (struct aq_shares){{0, 100, 0}};
    }
    in.placement = &place;
    r->block = plans_choose(&in);
    /* Where heads of all layers share, a prompt needs more than its seat's part of the pool. */
    r->tight = seed % 4 && !in.separate && !aq_kv_policy_cross(&in.kv);
    if (r->tight)
        take_pages_off(r);
    uint64_t limit[AQ_TIER_COUNT] = {[AQ_HOST] = AQ_GIB, [AQ_DEVICE] = AQ_GIB};
    assert_int_equal(aq_mem_open(&r->mem, limit, NULL), 0);
    struct aq_device_opts device = {.kind = in.separate ? AQ_DEVICE_EMULATED : AQ_DEVICE_UNIFIED,
                                    .mem = r->mem};
    assert_int_equal(aq_device_open(&r->device, &device, NULL), 0);
    struct aq_kv_opts kv = {r->device, &r->block.plan, r->steps.kv_heads};
    assert_int_equal(aq_kv_open(&r->kv, &kv, NULL), 0);
    static const struct aq_seats_ops ops = {
        .next = next_waiting, .sat = has_sat, .ended = has_ended, .bound = bound, .cut = cut};
    const struct aq_block_shape *s = &r->block.plan.shape;
    size_t seats = (size_t)s->micro_batch * s->micro_batches, kinds = r->block.plan.kinds.count;
    r->at = (struct aq_seats_arrays){
        calloc(seats, sizeof(*r->at.seat)), calloc((seats + 1) * kinds, sizeof(*r->at.kv)),
        calloc((seats + 1) * kinds, sizeof(*r->at.lengths)),
        calloc(s->micro_batches, sizeof(*r->at.prompt_rows)), calloc(seats, sizeof(*r->at.order))};
    assert_true(r->at.seat && r->at.kv && r->at.lengths && r->at.prompt_rows && r->at.order);
    struct aq_seats_opts opts = {&r->steps, &r->block.plan, true, &ops, r};
    aq_seats_open(&r->seats, &opts, &r->at);
}

/* Every buffer has the bytes of its line of the ledger. */
static void check_memory(const struct rig *r)
{
    struct aq_mem_usage row[AQ_MEM_PURPOSE_MAX];
    unsigned count = aq_mem_usage(r->mem, row, AQ_MEM_PURPOSE_MAX);
    assert_true(count > 0);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(row[i].peak_bytes,
                         aq_ledger_line(&r->block.ledger, row[i].tier, row[i].purpose));
    assert_int_equal(aq_kv_disk_bytes(r->kv), aq_ledger_line(&r->block.ledger, AQ_DISK, "kv"));
}

static void close_rig(struct rig *r)
{
    aq_kv_close(r->kv);
    aq_device_close(r->device);
    aq_mem_close(r->mem);
    aq_block_close(&r->block);
    aq_steps_close(&r->steps);
    free(r->at.seat);
    free(r->at.kv);
    free(r->at.lengths);
    free(r->at.prompt_rows);
    free(r->at.order);
}

static void layers_hold_what_their_rules_say(void **state)
{
    uint64_t kinds = 0, passes = 0, cuts = 0, found = 0, several = 0;
    for (uint64_t seed = 1; seed <= DRAWS; seed++) {
        struct rig r;
        open_rig(&r, seed);
        for (bool begun = false; r.ended < SEQUENCES; begun = true, passes++) {
            for (uint32_t k = 0; begun && k < r.block.plan.shape.micro_batches; k++)
                aq_seats_turn(&r.seats, k);
            aq_seats_begin_pass(&r.seats);
            check_pass(&r);
            assert_true(r.seats.seated > 0 || r.ended == SEQUENCES);
        }
        if (!r.tight)
            check_memory(&r);
        kinds += r.block.plan.kinds.count;
        cuts += r.cuts;
        found += r.found;
        several += r.most_rows > 1;
        close_rig(&r);
    }
    print_message("%llu kinds of layers in %d models, %llu passes\n", (unsigned long long)kinds,
                  DRAWS, (unsigned long long)passes);
    assert_true(kinds > 2 * DRAWS && passes > 20 * DRAWS);
    /* Of a few, few are. */
    assert_true(TEST_SLOW || (3 * cuts > DRAWS && 3 * found > DRAWS && 10 * several > DRAWS));
}

/* A window that leaves nothing out changes nothing: not a number of the plan. */
static void windows_of_whole_sequences_are_none(void **state)
{
    for (int drops = 0; drops < 2; drops++) {
        struct aq_model_steps m = plans_model(4, 64, 4, 128), windowed = plans_model(4, 64, 4, 128);
        for (uint32_t j = 0; j < windowed.step_count; j++)
            windowed.step[j].window = windowed.step[j].kind == AQ_STEP_ATTENTION ? TOTAL : 0;
        struct aq_block_inputs in = plans_inputs(&m), other = plans_inputs(&windowed);
        struct aq_kv_options h2o = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 20, 0}};
        if (drops)
            assert_int_equal(aq_kv_policy_resolve(&other.kv, &h2o, NULL), 0);
        struct aq_block a = plans_choose(&in), b = plans_choose(&other);
        assert_int_equal(b.plan.kinds.count, 1);
        assert_int_equal(b.plan.kinds.kind[0].own, drops);
        assert_int_equal(b.plan.shape.keys_max, a.plan.shape.keys_max);
        assert_memory_equal(b.plan.shape.page_count, a.plan.shape.page_count,
                            sizeof(a.plan.shape.page_count));
        assert_int_equal(b.ledger.count, a.ledger.count);
        for (uint32_t i = 0; i < a.ledger.count; i++)
            assert_int_equal(b.ledger.item[i].bytes, a.ledger.item[i].bytes);
        aq_block_close(&a);
        aq_block_close(&b);
        aq_steps_close(&m);
        aq_steps_close(&windowed);
    }
}

/* Half the layers with a window of a sixteenth of the sequence: a little over half of the KV. */
static void windows_make_the_cache_smaller(void **state)
{
    struct aq_model_steps m = plans_model(8, 64, 4, 128), windowed = plans_model(8, 64, 4, 128);
    char text[80];
    for (uint32_t j = 0; j < windowed.step_count; j++) {
        bool has = windowed.step[j].kind == AQ_STEP_ATTENTION && windowed.step[j].layer % 2;
        windowed.step[j].window = has ? 1024 : 0;
    }
    struct aq_block_inputs in = plans_inputs(&m), other = plans_inputs(&windowed);
    in.prompt_max = other.prompt_max = 16000;
    in.total_max = other.total_max = 16384;
    in.micro_batch = other.micro_batch = 2;
    struct aq_block full = plans_choose(&in), less = plans_choose(&other);
    const struct aq_block_shape *s = &less.plan.shape;
    uint64_t seats = (uint64_t)s->micro_batch * s->micro_batches;
    uint64_t pages = aq_div_up(16384, s->page_slots) + aq_div_up(1024, s->page_slots);
    assert_int_equal(s->page_count[AQ_HOST], seats * 4 * pages);
    assert_true((double)aq_ledger_line(&less.ledger, AQ_HOST, "kv") <
                0.6 * (double)aq_ledger_line(&full.ledger, AQ_HOST, "kv"));
    assert_true(aq_kv_windows_text(text, sizeof(text), &windowed));
    assert_string_equal(text, "4 of 8 layers keep their own window of 1024");
    windowed.step[1].window = 64;
    assert_true(aq_kv_windows_text(text, sizeof(text), &windowed));
    assert_string_equal(text, "5 of 8 layers keep their own windows of 64 to 1024");
    assert_false(aq_kv_windows_text(text, sizeof(text), &m));
    assert_string_equal(text, "");
    aq_block_close(&full);
    aq_block_close(&less);
    aq_steps_close(&m);
    aq_steps_close(&windowed);
}

/* More windows than there are kinds: those left over keep all keys, which is never too few. */
static void layers_beyond_the_kinds_keep_everything(void **state)
{
    enum { LAYERS = 2 * AQ_KV_KINDS_MAX, LONGEST = 10000 };
    struct aq_step_desc *step = calloc(LAYERS, sizeof(*step));
    struct aq_kv_kinds *kinds = calloc(1, sizeof(*kinds));
    struct aq_model_steps m = {.step = step, .step_count = LAYERS, .layers = LAYERS, .kv_heads = 2};
    struct aq_kv_policy user = {0};
    struct aq_kv_options h2o = {.policy = "h2o", .budget = {AQ_KV_SLOTS, 20, 0}};
    uint32_t layers = 0, own = 0, whole = 0;
    assert_true(step && kinds);
    assert_int_equal(aq_kv_policy_resolve(&user, &h2o, NULL), 0);
    for (uint32_t i = 0; i < LAYERS; i++) /* the last layers have none */
        step[i] = (struct aq_step_desc){
            .kind = AQ_STEP_ATTENTION, .layer = i, .window = i < LAYERS - 9 ? i + 1 : 0};
    aq_kv_kinds_of(kinds, &user, &m, &(struct aq_kv_lengths){LONGEST - 1, LONGEST, 0});
    assert_int_equal(kinds->count, AQ_KV_KINDS_MAX);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const struct aq_kv_kind *k = aq_kv_kinds_at(kinds, i);
        uint32_t want = !step[i].window ? 20 : k->window ? step[i].window : LONGEST;
        assert_int_equal(k->slots, want);
        own += k->own && k->window;
        whole += k->own && !k->window;
    }
    for (uint32_t i = 0; i < kinds->count; i++)
        layers += kinds->kind[i].layers;
    assert_int_equal(layers, LAYERS);
    assert_int_equal(own, AQ_KV_KINDS_MAX - 2);
    assert_int_equal(own + whole, LAYERS - 9);
    free(step);
    free(kinds);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(layers_hold_what_their_rules_say),
    cmocka_unit_test(windows_of_whole_sequences_are_none),
    cmocka_unit_test(windows_make_the_cache_smaller),
    cmocka_unit_test(layers_beyond_the_kinds_keep_everything),
};

AQ_TEST_MAIN(tests)
