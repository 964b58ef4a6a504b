/* SPDX-License-Identifier: Apache-2.0
 * Chooses the block of a run: the plain rule's or the planner's; or says what the least block
 * needs. */
#include "policy/planner.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

/* Ops that a search may build where probably no block fits. */
enum { SHORT_SEARCH_OPS = 1000 * 1000 };

/* All weights where products run, except `streamed` percent.  KV is there too if no weights stream;
 * else, beside a separate device, it is in host memory. */
static struct aq_placement in_memory(const struct aq_block_inputs *in, double streamed)
{
    enum aq_tier near = in->separate ? AQ_DEVICE : AQ_HOST;
    enum aq_tier far = in->separate ? AQ_HOST : AQ_DISK;
    struct aq_placement p = {.head = streamed > 0 ? AQ_HOST : near};
    p.weights.percent[near] = 100 - streamed;
    p.weights.percent[far] += streamed;
    p.kv.percent[streamed > 0 || !aq_block_kv_may(in, near) ? AQ_HOST : near] = 100;
    p.hidden.percent[near] = 100;
    return p;
}

static bool within(const struct aq_block *b, const struct aq_block_inputs *in)
{
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        if (aq_ledger_total(&b->ledger, (enum aq_tier)t) > in->budget[t])
            return false;
    }
    return true;
}

/* No block fits the budgets.  -ENOMEM means instead that this process ran out of memory in the
 * search, which then ends. */
enum { UNFIT = -ENOBUFS };

/* Largest number of seats per micro-batch, at most `most`, that fits; 0 when not even one does;
 * -EINVAL or -ENOMEM when there is no such program. */
static int largest(struct aq_block *b, const struct aq_block_inputs *in,
                   const struct aq_placement *placement, uint32_t most, struct aq_err *reterr)
{
    uint32_t good = 0, bad = most + 1;
    while (bad - good > 1) {
        uint32_t middle = good + (bad - good) / 2;
        int rc = aq_block_make(b, in, placement, middle, reterr);
        if (rc < 0)
            return rc;
        if (within(b, in))
            good = middle;
        else
            bad = middle;
    }
    return (int)good;
}

uint32_t aq_block_seats_wanted(const struct aq_block_inputs *in)
{
    if (in->micro_batch)
        return in->micro_batch;
    uint32_t k = in->micro_batches ? in->micro_batches : 1;
    uint64_t seats = in->gpu ? AQ_BLOCK_GPU_SEATS_CAP : AQ_BLOCK_SEATS_CAP;
    if (in->sequences)
        seats = aq_min_u64(seats, aq_div_up(in->sequences, k));
    return (uint32_t)aq_max_u64(seats, 1);
}

static void size_text(char *text, size_t size, uint64_t bytes)
{
    bool large = bytes >= AQ_GIB;
    if (bytes < AQ_MIB / 20)
        snprintf(text, size, "%llu bytes", (unsigned long long)bytes);
    else
        snprintf(text, size, "%.*f %s", large ? 2 : 1,
                 (double)bytes / (double)(large ? AQ_GIB : AQ_MIB), large ? "GiB" : "MiB");
}

/* The largest lines of a tier on the ledger, largest first, for a message. */
static void largest_lines(char *text, size_t size, const struct aq_ledger *l, enum aq_tier tier)
{
    enum { LINES = 3 };
    uint32_t told[LINES];
    size_t used = 0;
    *text = '\0';
    for (int n = 0; n < LINES; n++) {
        const struct aq_ledger_item *most = NULL;
        for (uint32_t i = 0; i < l->count; i++) {
            const struct aq_ledger_item *item = &l->item[i];
            bool seen = false;
            for (int before = 0; before < n; before++)
                seen |= told[before] == i;
            if (item->tier == tier && !seen && (!most || item->bytes > most->bytes))
                most = item;
        }
        if (!most)
            break;
        char bytes[32];
        told[n] = (uint32_t)(most - l->item);
        size_text(bytes, sizeof(bytes), most->bytes);
        int more =
            snprintf(text + used, size - used, "%s%s %s", n ? ", " : "", most->purpose, bytes);
        used = aq_min_u64(size - 1, used + (size_t)more);
    }
}

/* A tier whose budget the ledger exceeds. */
static enum aq_tier short_of(const struct aq_block *b, const struct aq_block_inputs *in)
{
    enum aq_tier tier = AQ_HOST;
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        if (aq_ledger_total(&b->ledger, (enum aq_tier)t) > in->budget[t])
            tier = (enum aq_tier)t;
    }
    return tier;
}

/* The message for a block that does not fit: of one seat, or, if `most` seats would fit, of the
 * number that the inputs fix. */
static void refuse(const struct aq_block *b, const struct aq_block_inputs *in, uint32_t most,
                   struct aq_err *reterr)
{
    enum aq_tier tier = short_of(b, in);
    const struct aq_block_shape *s = &b->plan.shape;
    char need[32], have[32], lines[160];
    size_text(have, sizeof(have), in->budget[tier]);
    size_text(need, sizeof(need), aq_ledger_total(&b->ledger, tier));
    if (most) {
        aq_error(reterr, UNFIT,
                 "%s memory: %u seats x %u micro-batches need %s, the budget is %s; the "
                 "largest block that fits is --micro-batch %u",
                 aq_tier_name(tier), s->micro_batch, s->micro_batches, need, have, most);
        return;
    }
    largest_lines(lines, sizeof(lines), &b->ledger, tier);
    aq_error(reterr, UNFIT,
             "%s memory: one seat needs %s (%s, ...), the budget is %s; no block fits",
             aq_tier_name(tier), need, lines, have);
}

/* The block with the most seats under this placement. */
static int choose_seats(struct aq_block *b, const struct aq_block_inputs *in,
                        const struct aq_placement *placement, struct aq_err *reterr)
{
    uint32_t wanted = aq_block_seats_wanted(in);
    int rc = aq_block_make(b, in, placement, wanted, reterr);
    if (rc < 0 || within(b, in))
        return rc;
    int most = largest(b, in, placement, wanted, reterr);
    if (most < 0)
        return most;
    bool refused = !most || in->micro_batch;
    uint32_t seats = !most ? 1 : refused ? wanted : (uint32_t)most;
    rc = aq_block_make(b, in, placement, seats, reterr);
    if (rc < 0 || !refused)
        return rc;
    refuse(b, in, (uint32_t)most, reterr);
    return UNFIT;
}

/* Weights that stream when they do not fit: memory goes to KV before weights, since throughput
 * rises with the block (research on offloading agrees: FlexGen, Sheng et al. 2023, section 4.3). */
static int choose_streamed(struct aq_block *b, const struct aq_block_inputs *in,
                           struct aq_err *reterr)
{
    struct aq_placement p = in_memory(in, 100);
    int rc = choose_seats(b, in, &p, reterr);
    if (rc < 0)
        return rc;
    uint32_t seats = b->plan.shape.micro_batch;
    /* In half percents: as much of the weights in memory as fits beside the seats. */
    int good = 200, bad = 0;
    while (good - bad > 1) {
        int middle = (good + bad) / 2;
        p = in_memory(in, middle / 2.0);
        rc = aq_block_make(b, in, &p, seats, reterr);
        if (rc < 0)
            return rc;
        if (within(b, in))
            good = middle;
        else
            bad = middle;
    }
    p = in_memory(in, good / 2.0);
    return aq_block_make(b, in, &p, seats, reterr);
}

/* ---- the least ---------------------------------------------------------------------------- */

/* For the least memory: with attention on the host, both halves of a layer are in the ring at once;
 * with attention on the device one after the other. */
static struct aq_block_inputs attended_on_the_device(const struct aq_block_inputs *in)
{
    struct aq_block_inputs ret = *in;
    if (in->separate && in->attention_auto) {
        ret.attention_auto = false;
        ret.attention = AQ_ATTEND_DEVICE;
    }
    return ret;
}

/* The kinds of bytes that the least block puts on one tier each. */
enum least_of { LEAST_HEAD, LEAST_HIDDEN, LEAST_KV, LEAST_WEIGHTS, LEAST_KINDS };

/* Bytes missing on all tiers together. */
static double lacking(const struct aq_block *b, const struct aq_block_inputs *in)
{
    double excess[AQ_TIER_COUNT], sum = 0;
    aq_block_excess(excess, b, in);
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        sum += excess[t] > 0 ? excess[t] : 0;
    return sum;
}

static bool may_lie(const struct aq_block_inputs *in, enum least_of what, enum aq_tier tier)
{
    if (what == LEAST_KV && !aq_block_kv_may(in, tier))
        return false;
    if (tier == AQ_DEVICE)
        return in->separate;
    return tier == AQ_HOST || (in->can_stream && what != LEAST_HEAD);
}

static int make_least(struct aq_block *b, const struct aq_block_inputs *in,
                      const enum aq_tier at[LEAST_KINDS], struct aq_err *reterr)
{
    struct aq_placement p = {.head = at[LEAST_HEAD]};
    p.hidden.percent[at[LEAST_HIDDEN]] = 100;
    p.kv.percent[at[LEAST_KV]] = 100;
    p.weights.percent[at[LEAST_WEIGHTS]] = 100;
    return aq_block_make(b, in, in->placement ? in->placement : &p,
                         in->micro_batch ? in->micro_batch : 1, reterr);
}

/* Moves one kind to the tier where the fewest bytes are missing; *b is the block of placement `at`
 * before and after, *other another one, whose arrays serve for those that are tried.  1: the kind
 * has moved; 0: it is on that tier already; -ENOMEM. */
static int try_tiers(struct aq_block *b, struct aq_block *other, const struct aq_block_inputs *in,
                     enum aq_tier at[LEAST_KINDS], enum least_of what)
{
    enum aq_tier was = at[what];
    for (int t = AQ_DEVICE; t < AQ_TIER_COUNT; t++) {
        enum aq_tier before = at[what];
        if ((enum aq_tier)t == was || !may_lie(in, what, (enum aq_tier)t))
            continue;
        at[what] = (enum aq_tier)t;
        int rc = make_least(other, in, at, NULL);
        if (rc == -ENOMEM)
            return rc;
        if (rc < 0 || lacking(other, in) >= lacking(b, in)) {
            at[what] = before;
            continue;
        }
        aq_block_swap(other, b);
    }
    return at[what] != was;
}

static int find_least(struct aq_block *ret, const struct aq_block_inputs *given,
                      struct aq_err *reterr)
{
    struct aq_block_inputs in = attended_on_the_device(given);
    enum aq_tier far = in.can_stream ? AQ_DISK : AQ_HOST;
    enum aq_tier at[LEAST_KINDS] = {[LEAST_HEAD] = AQ_HOST,
                                    [LEAST_HIDDEN] = in.separate ? AQ_DEVICE : AQ_HOST,
                                    [LEAST_KV] = AQ_HOST,
                                    [LEAST_WEIGHTS] = far};
    if (may_lie(&in, LEAST_KV, AQ_DISK))
        at[LEAST_KV] = AQ_DISK;
    in.tight = true;
    struct aq_block other = {0};
    int rc = make_least(ret, &in, at, reterr);
    /* Kinds move one after the other as long as any moves; each move leaves fewer bytes missing. */
    int same = rc == 0 && !in.placement ? 0 : LEAST_KINDS;
    for (int what = 0; same < LEAST_KINDS && lacking(ret, &in) > 0;
         what = (what + 1) % LEAST_KINDS) {
        int moved = try_tiers(ret, &other, &in, at, (enum least_of)what);
        if (moved < 0)
            rc = aq_error_memory(reterr, "block: least");
        same = moved < 0 ? LEAST_KINDS : moved ? 0 : same + 1;
    }
    aq_block_close(&other);
    return rc;
}

int aq_block_least(struct aq_block *ret, const struct aq_block_inputs *given, struct aq_err *reterr)
{
    int rc = find_least(ret, given, reterr);
    return rc < 0 ? rc : aq_program_order(&ret->program, reterr);
}

/* ---- the choice -------------------------------------------------------------------------- */

/* The choice without rates of the machine: everything near the products, if all wanted seats fit
 * there. */
static int choose_plainly(struct aq_block *b, const struct aq_block_inputs *in,
                          struct aq_err *reterr)
{
    struct aq_placement near = in_memory(in, 0);
    int rc = choose_seats(b, in, in->placement ? in->placement : &near, reterr);
    bool streams = rc == UNFIT && !in->placement && in->can_stream;
    return streams ? choose_streamed(b, in, reterr) : rc;
}

/* The plain rule's block, or, where the machine's rates are known, the fastest that the planner
 * finds (beside a separate device also where everything fits).  If the plain rule finds none, the
 * least block with the smallest buffers is tried.  If that does not fit either, only kinds shared
 * between tiers could fit, and the search for these is short. */
static int choose(struct aq_block *b, const struct aq_block_inputs *in, struct aq_err *reterr)
{
    struct aq_block_inputs search = *in, device = attended_on_the_device(in);
    bool ranked = in->hw && in->can_stream;
    int rc = choose_plainly(b, in, reterr);
    if (rc == UNFIT && in->tight && device.attention_auto != in->attention_auto)
        rc = choose_plainly(b, &device, reterr);
    if (in->placement || (rc < 0 && rc != UNFIT))
        return rc;
    if (rc == UNFIT) {
        int least = find_least(b, in, NULL);
        if (least == -ENOMEM)
            return aq_error_memory(reterr, "block: search");
        bool fits = least == 0 && within(b, in);
        search.plan_ops = fits || in->plan_ops ? in->plan_ops : SHORT_SEARCH_OPS;
        rc = fits && in->tight ? 0 : rc;
        ranked = ranked && (fits || in->tight);
        if (rc < 0)
            aq_block_close(b);
    } else if (!in->separate && !b->stream.chunk_count &&
               b->plan.shape.micro_batch == aq_block_seats_wanted(in)) {
        return 0; /* everything is near the products, for all seats */
    }
    if (!ranked)
        return rc;
    int found = aq_planner_search(b, &search, reterr);
    return found < 0 ? found : b->program.op_count ? 0 : rc;
}

/* How many times as fast a plan with larger stages must be: they take memory, and rates are known
 * to a few percent. */
static const double stage_pays = 1.005;

/* Where prompts begin alike: a choice with larger parts, if one is faster; and the size of a stage
 * is a choice like others, which the plan tells.  Only parts that the device attends gain from
 * being larger, so all are attended there. */
static int choose_stage(struct aq_block *b, struct aq_block_inputs *io, struct aq_err *reterr)
{
    struct aq_block_inputs in = attended_on_the_device(io);
    struct aq_block other = {0};
    struct aq_planner_rate rate, best = {0};
    if (!aq_planner_tries_stages(b, io))
        return 0;
    int rc = aq_planner_rate(&best, b, io, reterr);
    uint64_t found = aq_block_stage_bytes(io);
    for (uint32_t i = 1; rc == 0 && i < AQ_PLANNER_STAGES; i++) {
        in.stage_bytes = aq_planner_stages[i];
        rc = choose(&other, &in, reterr);
        if (rc == 0)
            rc = aq_planner_rate(&rate, &other, &in, reterr);
        if (rc == 0 && aq_planner_gain(&rate, &best) > stage_pays) {
            aq_block_swap(b, &other);
            best = rate;
            found = b->plan.stage_bytes;
        }
        rc = rc == UNFIT ? 0 : rc;
    }
    aq_block_close(&other);
    io->stage_bytes = b->plan.stage_bytes = found;
    return rc;
}

/* Most seats, fewer than the inputs fix, whose least block fits. */
static int most_of_least(uint32_t *ret, const struct aq_block_inputs *given, struct aq_err *reterr)
{
    struct aq_block b = {0};
    struct aq_block_inputs in = *given;
    uint32_t good = 0, bad = given->micro_batch;
    int rc = 0;
    while (bad > good + 1 && rc != -ENOMEM) {
        in.micro_batch = good + (bad - good) / 2;
        rc = find_least(&b, &in, reterr);
        *(rc == 0 && within(&b, &in) ? &good : &bad) = in.micro_batch;
    }
    aq_block_close(&b);
    *ret = good;
    return rc == -ENOMEM ? rc : 0;
}

/* No block fitted.  The message is about the least block, not about the one tried last, which may
 * be larger. */
static int refuse_least(const struct aq_block_inputs *given, struct aq_err *reterr)
{
    struct aq_block b = {0};
    struct aq_block_inputs in = *given;
    struct aq_err least;
    uint32_t most = 0;
    int rc = most_of_least(&most, given, &least);
    in.micro_batch = most || !given->micro_batch ? given->micro_batch : 1;
    rc = rc < 0 ? rc : find_least(&b, &in, &least);
    if (rc == 0 && !within(&b, &in))
        refuse(&b, &in, most, reterr);
    aq_block_close(&b);
    return rc == -ENOMEM ? aq_error(reterr, rc, "%s", least.text) : UNFIT;
}

int aq_block_choose(struct aq_block *ret, const struct aq_block_inputs *given,
                    struct aq_err *reterr)
{
    assert(given->prompt_max >= 1 && given->total_max >= given->prompt_max && given->threads >= 1);
    struct aq_block_inputs in = *given;
    struct aq_block b = {0};
    int rc = in.placement ? aq_placement_check(in.placement, reterr) : 0;
    rc = rc < 0 ? rc : choose(&b, &in, reterr);
    if (rc == UNFIT) {
        in.tight = true;
        rc = choose(&b, &in, reterr);
    }
    if (rc == UNFIT && !in.placement)
        rc = refuse_least(given, reterr);
    rc = rc < 0 ? rc : choose_stage(&b, &in, reterr);
    rc = rc < 0 ? rc : aq_planner_share_work(&b, &in, reterr);
    rc = rc < 0 ? rc : aq_planner_beside(&b, &in, reterr);
    rc = rc < 0 ? rc : aq_program_order(&b.program, reterr);
    if (rc < 0) {
        aq_block_close(&b);
        return rc;
    }
    aq_block_close(ret);
    *ret = b;
    return 0;
}
