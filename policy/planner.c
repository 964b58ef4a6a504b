/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/planner.h"

#include "policy/planner_search.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Split attention takes more memory and more ops: its bound must be this many times that of either
 * side alone. */
static const double split_pays = 1.02;
/* Ops that the search may build, over all candidates; simulating an op counts as building two.  At
 * half a microsecond each this is a few seconds.  A count and not a time, so that equal inputs give
 * equal plans. */
enum { OPS_MAX = 4000 * 1000 };
enum { REPAIRS_MAX = 4, BETWEEN_STEPS = 4, REFINED_MAX = 3 };
/* Candidates are tried whose bound is so many times the best rate; beside the best block also with
 * less, because overheads change with the share of KV on disk, and the bound knows one of them. */
static const double promising = 1.001, refined = 0.95;
/* Of the fastest candidates of other kinds than the best one's so many are played whose rate is at
 * least this share of its rate; it gives way to one that is this many times as fast. */
enum { PLAYED_MAX = 3 };
static const double worth_playing = 0.8, clearly = 1.005;
/* An error of this share of the weights counts as none: the bytes are known. */
static const double known_bytes = 0.002;
/* Prompt tokens of a pass that are tried where the usual number (0) does not fit. */
static const uint32_t fewer_tokens[] = {0, 1024, 256};

/* ---- one candidate ---- */

/* The options with the overhead of the arm's last ledger, if there is one: that of fewer seats is a
 * lower bound, and of that of more seats at least the share of these seats is needed. */
static struct aq_shares_opts opts_for(const struct aq_search *s, const struct aq_search_arm *a,
                                      uint32_t seats)
{
    struct aq_shares_opts o = {
        .in = s->given, .sums = &s->sums, .work = &s->work, .shape = a->shape};
    o.shape.micro_batch = seats;
    double share = a->overhead_seats ? fmin(1, (double)seats / a->overhead_seats) : 0;
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        o.overhead[t] = share * a->overhead[t];
    return o;
}

/* Copies the overhead on the ledger of s->now into o->overhead; true: it was known before. */
static bool learn(struct aq_search *s, struct aq_search_arm *a, struct aq_shares_opts *o,
                  const struct aq_shares_found *f)
{
    double used[AQ_TIER_COUNT];
    bool known = true;
    aq_shares_used(used, o, f);
    for (int t = 0; t < AQ_TIER_COUNT; t++) {
        double overhead = (double)aq_ledger_total(&s->now.ledger, (enum aq_tier)t) - used[t];
        known &= fabs(overhead - o->overhead[t]) <= known_bytes * s->sums.matrices;
        o->overhead[t] = a->overhead[t] = overhead;
    }
    a->overhead_seats = o->shape.micro_batch;
    return known;
}

static struct aq_shares between(const struct aq_shares *a, const struct aq_shares *b, double t)
{
    struct aq_shares ret;
    for (int i = 0; i < AQ_TIER_COUNT; i++)
        ret.percent[i] = a->percent[i] + t * (b->percent[i] - a->percent[i]);
    return ret;
}

/* For shapes whose correction by the ledger does not converge: goes from the shares with the least
 * memory (all weights on disk, and KV where allowed) as far towards the wished shares as fits. */
static int fit_between(struct aq_search *s, struct aq_search_arm *a, const struct aq_shares_opts *o,
                       const struct aq_shares_found *wish)
{
    const struct aq_block_inputs *in = s->given;
    double disk = 100 * (a->shape.kv_disk < 0 ? 1 : a->shape.kv_disk), low = 0, high = 1;
    struct aq_shares_found far = *wish;
    if (in->placement || !in->can_stream)
        return -ERANGE;
    far.placement.head = AQ_HOST;
    far.placement.weights = (struct aq_shares){.percent = {[AQ_DISK] = 100}};
    far.placement.kv = (struct aq_shares){.percent = {[AQ_HOST] = 100 - disk, [AQ_DISK] = disk}};
    aq_search_round(&far, o);
    if (!aq_search_make_fits(s, o, &far))
        return -ERANGE;
    struct aq_shares_found good = far;
    for (int i = 0; i < BETWEEN_STEPS; i++) {
        struct aq_shares_found f = *wish;
        double t = (low + high) / 2;
        f.placement.weights = between(&far.placement.weights, &wish->placement.weights, t);
        f.placement.kv = between(&far.placement.kv, &wish->placement.kv, t);
        aq_search_round(&f, o);
        bool fitted = aq_search_make_fits(s, o, &f);
        *(fitted ? &low : &high) = t;
        good = fitted ? f : good;
    }
    return aq_search_make_fits(s, o, &good) ? 0 : -ERANGE;
}

/* Finds shares with this many seats that fit, and makes s->now with them; -ERANGE: there are
 * none. */
static int fit(struct aq_search *s, struct aq_search_arm *a, uint32_t seats, struct aq_err *reterr)
{
    struct aq_shares_opts o = opts_for(s, a, seats);
    struct aq_shares_found f, good = {0}, wish = {0};
    bool any = false, last = false, solved = false;
    for (int i = 0; i < REPAIRS_MAX && s->ops < s->ops_max; i++) {
        int rc = aq_shares_solve(&f, &o, NULL);
        if (rc == -ENOMEM)
            return aq_error(reterr, rc, "block: shares");
        if (rc < 0)
            break;
        aq_search_round(&f, &o);
        wish = f;
        solved = true;
        rc = aq_search_make(s, &o, &f);
        if (rc < 0)
            break; /* no program can be built */
        bool known = learn(s, a, &o, &f);
        last = aq_search_fits(s);
        if (last) {
            good = f;
            any = true;
            if (known || s->given->placement)
                break;
        }
        /* The overhead changes with the shares, and so does the rounding: reserve a little more in
         * each round. */
        double excess[AQ_TIER_COUNT];
        aq_block_excess(excess, &s->now, s->given);
        for (int t = 0; t < AQ_TIER_COUNT && !last; t++)
            o.overhead[t] += i * (0.1 * fmax(0, excess[t]) + 0.25 * known_bytes * s->sums.matrices);
    }
    if (!any)
        return solved ? fit_between(s, a, &o, &wish) : -ERANGE;
    return last || aq_search_make(s, &o, &good) == 0 ? 0 : -ERANGE;
}

static int try_seats(struct aq_search *s, int arm, uint32_t seats, struct aq_err *reterr)
{
    struct aq_search_arm *a = &s->arm[arm];
    int rc = fit(s, a, seats, reterr);
    if (rc == -ERANGE) {
        if (!s->now.program.op_count || s->ops < s->ops_max)
            a->unfit = seats < a->unfit ? seats : a->unfit;
        return 0;
    }
    return rc < 0 ? rc : aq_search_judge(s, arm, reterr);
}

/* ---- the candidates ---- */

static void put_seats(struct aq_search_arm *a, uint64_t seats, uint32_t most)
{
    if (seats < 1 || seats > most || a->count == AQ_SEARCH_SEATS_TRIED_MAX)
        return;
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->tried[i] == seats)
            return;
    }
    a->tried[a->count++] = (uint32_t)seats;
}

/* Numbers of seats to try: those that divide the requests evenly into blocks, and some between. */
static void fill_seats(const struct aq_search *s, struct aq_search_arm *a)
{
    uint32_t k = a->shape.micro_batches, most = AQ_SEARCH_SEATS_MAX;
    uint64_t requests = s->given->sequences;
    if (s->given->micro_batch) {
        put_seats(a, s->given->micro_batch, UINT32_MAX);
        return;
    }
    if (requests)
        most = (uint32_t)aq_min_u64(most, aq_div_up(requests, k));
    put_seats(a, most, most);
    for (uint64_t blocks = 1; blocks <= 16 && requests; blocks++)
        put_seats(a, aq_div_up(aq_div_up(requests, blocks), k), most);
    for (double seats = most * 0.8; seats >= 1; seats *= 0.8)
        put_seats(a, (uint64_t)seats, most);
}

/* Computes the bounds again, with the overhead known now. */
static int fill_bounds(struct aq_search *s, struct aq_search_arm *a, struct aq_err *reterr)
{
    for (uint32_t i = 0; i < a->count; i++) {
        struct aq_shares_opts o = opts_for(s, a, a->tried[i]);
        struct aq_shares_found f;
        int rc = aq_shares_solve(&f, &o, NULL);
        if (rc == -ENOMEM)
            return aq_error(reterr, rc, "block: shares");
        if (a->bound[i] >= 0)
            a->bound[i] = rc < 0 || a->tried[i] >= a->unfit ? 0 : f.gen_tok_s;
        a->disk[i] = rc < 0 ? -1 : f.placement.kv.percent[AQ_DISK] / 100;
    }
    return 0;
}

static void put_arm(struct aq_search *s, struct aq_shares_shape shape)
{
    assert(s->arm_count < AQ_SEARCH_ARMS_MAX);
    struct aq_search_arm *a = &s->arm[s->arm_count++];
    *a = (struct aq_search_arm){.shape = shape, .unfit = UINT32_MAX};
    fill_seats(s, a);
}

/* KV on disk costs ops and buffers that the linear program does not count, so arms without KV on
 * disk, and with all KV on disk, are added. */
static void put_homes(struct aq_search *s, struct aq_shares_shape shape)
{
    static const double disk[] = {-1, 0, 1};
    for (uint32_t i = 0; i < (s->given->placement ? 1 : AQ_ARRAY_LEN(disk)); i++) {
        shape.kv_disk = disk[i];
        put_arm(s, shape);
    }
}

static void put_sides(struct aq_search *s, struct aq_shares_shape shape)
{
    const struct aq_block_inputs *in = s->given;
    static const enum aq_attention_side sides[] = {AQ_ATTEND_HOST, AQ_ATTEND_DEVICE,
                                                   AQ_ATTEND_SPLIT};
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(sides) - in->one_side; i++) {
        shape.side = in->separate && in->attention_auto ? sides[i]
                     : in->separate                     ? in->attention
                                                        : AQ_ATTEND_DEVICE;
        shape.split_host = in->split_host;
        shape.host_products = in->separate && !in->host_products_auto && in->host_products > 0;
        put_homes(s, shape);
        shape.host_products = true;
        if (in->separate && in->host_products_auto)
            put_homes(s, shape);
        if (!in->separate || !in->attention_auto)
            break;
    }
}

static bool same_but_for_side(const struct aq_shares_shape *a, const struct aq_shares_shape *b)
{
    return a->micro_batches == b->micro_batches && a->host_products == b->host_products &&
           a->kv_disk == b->kv_disk;
}

/* Removes candidates with split attention whose bound is not clearly above that of either side
 * alone with the same seats. */
static void drop_pointless_splits(struct aq_search *s)
{
    for (uint32_t i = 0; i < s->arm_count; i++) {
        struct aq_search_arm *a = &s->arm[i];
        for (uint32_t j = 0; j < s->arm_count && a->shape.side == AQ_ATTEND_SPLIT; j++) {
            const struct aq_search_arm *pure = &s->arm[j];
            if (pure->shape.side == AQ_ATTEND_SPLIT || !same_but_for_side(&a->shape, &pure->shape))
                continue;
            for (uint32_t n = 0; n < a->count; n++) {
                if (a->bound[n] < split_pays * pure->bound[n])
                    a->bound[n] = -1;
            }
        }
    }
}

static int put_arms(struct aq_search *s, enum aq_tier hidden, uint32_t tokens,
                    struct aq_err *reterr)
{
    const struct aq_block_inputs *in = s->given;
    s->arm_count = 0;
    for (uint32_t k = 1; k <= AQ_SEARCH_BATCHES_MAX; k++) {
        struct aq_shares_shape shape = {
            .micro_batches = in->micro_batches ? in->micro_batches : k,
            .hidden = hidden,
            .prompt_tokens = tokens,
            .ring_steps = in->ring_steps,
        };
        if (!in->sequences || k <= in->sequences)
            put_sides(s, shape);
        if (in->micro_batches)
            break;
    }
    int rc = 0;
    struct aq_search_arm *chosen = s->arm; /* the arm before with a free share */
    for (uint32_t i = 0; i < s->arm_count && rc == 0; i++) {
        struct aq_search_arm *a = &s->arm[i];
        rc = fill_bounds(s, a, reterr);
        chosen = a->shape.kv_disk < 0 ? a : chosen;
        /* The share that the free arm has chosen need not be tried twice. */
        for (uint32_t n = 0; n < a->count && a != chosen; n++) {
            if (fabs(chosen->disk[n] - a->shape.kv_disk) * a->tried[n] < 0.5)
                a->bound[n] = -1;
        }
    }
    drop_pointless_splits(s);
    return rc;
}

/* The rate of candidate n of an arm: its bound, of which it should reach as much as the candidate
 * of the nearest number of seats, since what bounds leave out costs an arm's programs about
 * alike. */
static double expected(const struct aq_search_arm *a, uint32_t n)
{
    double share = 1, nearest = INFINITY;
    for (uint32_t i = 0; i < a->count; i++) {
        double far = fabs(log((double)a->tried[i] / a->tried[n]));
        if (a->reached[i] > 0 && far < nearest) {
            nearest = far;
            share = a->reached[i];
        }
    }
    return share * a->bound[n];
}

/* The most promising candidate, of an arm or (-1) of all; of equally promising ones that with the
 * fewest seats.  False: no bound is above the rate of the best block. */
static bool next(const struct aq_search *s, int of, int *ret_arm, uint32_t *ret_index)
{
    double most = 0;
    bool found = false;
    for (uint32_t i = 0; i < s->arm_count; i++) {
        const struct aq_search_arm *a = &s->arm[i];
        for (uint32_t n = 0; n < a->count && (of < 0 || of == (int)i); n++) {
            if (a->bound[n] <= s->rate * s->least)
                continue;
            double rate = expected(a, n);
            bool fewer =
                found && rate > most * 0.999 &&
                a->tried[n] * a->shape.micro_batches <
                    s->arm[*ret_arm].tried[*ret_index] * s->arm[*ret_arm].shape.micro_batches;
            if (found && rate <= most * 1.001 && !fewer)
                continue;
            most = fmax(most, rate);
            *ret_arm = (int)i;
            *ret_index = n;
            found = true;
        }
    }
    return found;
}

/* Tries candidates, the most promising first, until `most` of them have fitted.  Bounds fall as
 * overheads become known. */
static int try_best(struct aq_search *s, int of, uint32_t most, struct aq_err *reterr)
{
    int arm, rc = 0;
    uint32_t index;
    while (rc == 0 && most && s->ops < s->ops_max && next(s, of, &arm, &index)) {
        struct aq_search_arm *a = &s->arm[arm];
        bool first = !a->overhead_seats;
        s->last = 0;
        rc = try_seats(s, arm, a->tried[index], reterr);
        most -= a->tried[index] < a->unfit;
        if (rc == 0 && (first || a->tried[index] >= a->unfit))
            rc = fill_bounds(s, a, reterr);
        a->reached[index] = a->bound[index] > 0 ? s->last / a->bound[index] : 0;
        a->bound[index] = -1;
    }
    return rc;
}

/* Tries seats and shares of KV on disk next to those of the best block, whose bytes are now
 * known. */
static int refine(struct aq_search *s, struct aq_err *reterr)
{
    static const double disk[] = {-1, 0, 0.25, 0.5, 0.75, 1};
    if (s->best_arm < 0)
        return 0;
    struct aq_search_arm of = s->arm[s->best_arm];
    uint32_t seats = s->best.plan.shape.micro_batch, most = AQ_SEARCH_SEATS_MAX;
    uint32_t low = seats - seats / 4, high = seats + seats / 4 + 1;
    if (s->given->sequences)
        most = (uint32_t)aq_min_u64(most, aq_div_up(s->given->sequences, of.shape.micro_batches));
    if (s->given->micro_batch)
        low = high = most = s->given->micro_batch;
    uint32_t step = 1 + (high - low) / (AQ_SEARCH_SEATS_TRIED_MAX - 1);
    int rc = 0;
    s->arm_count = 0;
    for (uint32_t i = 0; i < (s->given->placement ? 1 : AQ_ARRAY_LEN(disk)) && rc == 0; i++) {
        struct aq_search_arm *a = &s->arm[s->arm_count++];
        *a = of;
        a->unfit = UINT32_MAX;
        a->count = 0;
        a->shape.kv_disk = disk[i];
        memset(a->bound, 0, sizeof(a->bound));
        memset(a->reached, 0, sizeof(a->reached));
        for (uint32_t n = low; n <= high; n += step)
            put_seats(a, n, most);
        rc = fill_bounds(s, a, reterr);
    }
    s->least = refined;
    for (uint32_t a = 0; a < s->arm_count && rc == 0; a++)
        rc = try_best(s, (int)a, REFINED_MAX, reterr);
    s->least = promising;
    return rc;
}

/* Moves `percent` of the weights to the nearer tier `to`, from the disk first. */
static bool nearer(struct aq_shares *w, enum aq_tier to, double percent)
{
    for (int from = AQ_DISK; from > (int)to && percent > 0; from--) {
        double moved = fmin(percent, w->percent[from]);
        w->percent[from] = round(10 * (w->percent[from] - moved)) / 10;
        w->percent[to] = round(10 * (w->percent[to] + moved)) / 10;
        percent -= moved;
    }
    return percent < 0.05;
}

/* Searches the split at which both sides end together: starts, ends and whole seats, which the
 * linear program does not count, move this point. */
static int refine_split(struct aq_search *s, struct aq_err *reterr)
{
    static const double steps[] = {10, 5, 2.5, 1};
    int rc = 0;
    if (s->best_arm < 0 || s->given->split_host > 0)
        return 0;
    for (uint32_t i = 0; i < 2 * AQ_ARRAY_LEN(steps) && rc == 0 && s->ops < s->ops_max; i++) {
        struct aq_shares_found f = aq_search_shares(&s->best.plan);
        struct aq_shares_opts o = opts_for(s, &s->arm[s->best_arm], s->best.plan.shape.micro_batch);
        if (o.shape.side != AQ_ATTEND_SPLIT)
            return 0;
        double wish = f.split_host + (i % 2 ? -1 : 1) * steps[i / 2];
        wish = aq_search_round_split(wish, &f.placement.kv, o.shape.micro_batch);
        if (wish == f.split_host)
            continue;
        f.split_host = wish;
        if (aq_search_make_fits(s, &o, &f))
            rc = aq_search_judge(s, s->best_arm, reterr);
    }
    return rc;
}

/* The ledger is not linear in the shares: buffers shrink as weights come nearer, so larger shares
 * can fit where smaller ones do not. */
static int fill_up(struct aq_search *s, struct aq_err *reterr)
{
    static const double steps[] = {20, 10, 5, 2.5, 1};
    int rc = 0;
    if (s->best_arm < 0 || s->given->placement)
        return 0;
    for (uint32_t i = 0; i < 2 * AQ_ARRAY_LEN(steps) && rc == 0 && s->ops < s->ops_max; i++) {
        enum aq_tier to = i % 2 ? AQ_HOST : AQ_DEVICE;
        struct aq_shares_found f = aq_search_shares(&s->best.plan);
        uint32_t seats = s->best.plan.shape.micro_batch;
        struct aq_search_arm *a = &s->arm[s->best_arm];
        struct aq_shares_opts o = opts_for(s, a, seats);
        if ((to == AQ_DEVICE && !s->given->separate) ||
            !nearer(&f.placement.weights, to, steps[i / 2]))
            continue;
        if (aq_search_make_fits(s, &o, &f))
            rc = aq_search_judge(s, s->best_arm, reterr);
    }
    return rc;
}

static int try_all(struct aq_search *s, struct aq_err *reterr)
{
    const struct aq_block_inputs *in = s->given;
    enum aq_tier near = in->separate ? AQ_DEVICE : AQ_HOST;
    uint64_t all = in->plan_ops ? in->plan_ops : OPS_MAX;
    int rc = 0;
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(fewer_tokens) && rc == 0; i++) {
        if (i && (s->best.program.op_count || in->prompt_tokens))
            break;
        rc = put_arms(s, near, fewer_tokens[i], reterr);
        /* First one candidate of each kind, because the costs that bounds leave out differ between
         * kinds.  Each stage leaves a part of the ops for the next. */
        s->ops_max = all / 2;
        for (uint32_t a = 0; a < s->arm_count && rc == 0; a++)
            rc = try_best(s, (int)a, 1, reterr);
        s->ops_max = all * 3 / 4;
        rc = rc < 0 ? rc : try_best(s, -1, UINT32_MAX, reterr);
        s->ops_max = all;
        rc = rc < 0 ? rc : refine(s, reterr);
        rc = rc < 0 ? rc : refine_split(s, reterr);
        rc = rc < 0 ? rc : fill_up(s, reterr);
    }
    s->ops_max = s->ops + all * 2 / 5;
    return rc < 0 ? rc : aq_search_few_seats(s, reterr);
}

/* Generated tokens per second of the whole work, played with the lengths of its sequences; 0: it is
 * too long for that. */
static int play(double *ret, const struct aq_search *s, struct aq_block *b, struct aq_err *reterr)
{
    struct aq_forecast f = {.gen_tok_s = 0};
    const struct aq_block_inputs *in = s->given;
    int rc = aq_program_order(&b->program, reterr);
    rc = rc < 0 ? rc
                : aq_forecast_job(&f, b, &s->work, in->length, in->length_count, in->hw, reterr);
    *ret = f.gen_tok_s;
    return rc == -ENOMEM ? rc : 0;
}

static struct aq_search_finalist *fastest(struct aq_search *s)
{
    struct aq_search_finalist *best = s->finalist;
    for (uint32_t i = 1; i < AQ_SEARCH_KINDS; i++)
        best = s->finalist[i].rate > best->rate ? &s->finalist[i] : best;
    return best;
}

/* Takes of the fastest of each kind the one that does the whole work in the least time.  Candidates
 * are ranked by blocks one after the other; where seats are refilled prompts share passes with rows
 * that decode, which is worth more in some kinds than in others. */
static int play_finalists(struct aq_search *s, struct aq_err *reterr)
{
    double most = 0, rate, least = s->rate * worth_playing;
    int rc = 0;
    if (!s->given->refill || !s->given->length || !s->best.program.op_count)
        return 0;
    s->finalist[aq_search_kind(s, &s->best.plan.shape)].rate = 0;
    for (uint32_t i = 0; rc == 0 && i < PLAYED_MAX; i++) {
        struct aq_search_finalist *f = fastest(s);
        if (f->rate < least || f->rate <= 0)
            break;
        rc = i ? 0 : play(&most, s, &s->best, reterr);
        if (rc < 0 || most <= 0)
            break;
        struct aq_shares_opts o = {
            .in = s->given, .sums = &s->sums, .work = &s->work, .shape = f->shape};
        bool fits = aq_search_make_fits(s, &o, &f->found);
        f->rate = 0;
        rc = fits ? play(&rate, s, &s->now, reterr) : 0;
        if (rc < 0 || !fits || rate < most * clearly)
            continue;
        aq_block_swap(&s->now, &s->best);
        most = rate;
    }
    return rc;
}

/* The first candidate is the caller's block. */
static int begin(struct aq_search *s, struct aq_block *best, const struct aq_block_inputs *in,
                 struct aq_err *reterr)
{
    *s = (struct aq_search){.given = in,
                            .work = {.steps = in->steps,
                                     .sequences = in->sequences,
                                     .refill = in->refill,
                                     .serial = in->serial},
                            .least = promising,
                            .best_arm = -1};
    aq_forecast_mean(&s->work, in);
    aq_shares_sum_up(&s->sums, in);
    if (!best->program.op_count)
        return 0;
    s->now = *best;
    *best = (struct aq_block){0};
    int rc = aq_search_judge(s, -1, reterr);
    if (!s->best.program.op_count) {
        s->best = s->now;
        s->now = (struct aq_block){0};
    }
    return rc;
}

int aq_planner_search(struct aq_block *best, const struct aq_block_inputs *in,
                      struct aq_err *reterr)
{
    struct aq_search *s = malloc(sizeof(*s));
    assert(in->hw);
    if (!s)
        return aq_error_memory(reterr, "block: search");
    int rc = begin(s, best, in, reterr);
    rc = rc < 0 ? rc : try_all(s, reterr);
    rc = rc < 0 ? rc : play_finalists(s, reterr);
    if (rc == 0 && s->no_memory)
        rc = aq_error_memory(reterr, "block: search");
    aq_block_close(&s->now);
    if (rc < 0)
        aq_block_close(&s->best);
    else
        *best = s->best;
    free(s);
    return rc;
}

/* Micro-batches that attention beside products is tried with, and how many times as fast it must
 * be: it takes memory, and rates are known to a few percent. */
static const uint32_t batches_beside[] = {2, 3, 4, 6, 8};
static const double beside_pays = 1.02;

int aq_planner_rate(struct aq_planner_rate *ret, struct aq_block *b,
                    const struct aq_block_inputs *in, struct aq_err *reterr)
{
    struct aq_forecast_work work = {
        .steps = in->steps, .sequences = in->sequences, .refill = in->refill, .serial = in->serial};
    struct aq_forecast f = {0};
    *ret = (struct aq_planner_rate){0};
    aq_forecast_mean(&work, in);
    int rc = aq_program_order(&b->program, reterr);
    rc = rc < 0 ? rc : aq_forecast_make(&f, b, &work, in->hw, reterr);
    if (rc < 0)
        return rc == -EINVAL ? 0 : rc;
    ret->mean = f.gen_tok_s;
    f = (struct aq_forecast){0}; /* too long a job leaves it so */
    if (in->refill && in->length)
        rc = aq_forecast_job(&f, b, &work, in->length, in->length_count, in->hw, reterr);
    ret->played = rc < 0 ? 0 : f.gen_tok_s;
    return rc == -ENOMEM ? rc : 0;
}

double aq_planner_gain(const struct aq_planner_rate *a, const struct aq_planner_rate *b)
{
    if (a->mean <= 0)
        return 0;
    return a->played > 0 && b->played > 0 ? a->played / b->played : a->mean / b->mean;
}

/* Makes a block of this placement for the inputs and finds its rate; none where it does not fit. */
static int make_rated(struct aq_planner_rate *ret, struct aq_block *b,
                      const struct aq_block_inputs *in, const struct aq_placement *placement,
                      struct aq_err *reterr)
{
    *ret = (struct aq_planner_rate){0};
    int rc = aq_block_make(b, in, placement, in->micro_batch, NULL);
    if (rc == -ENOMEM)
        return aq_error_memory(reterr, "block: search");
    return rc < 0 || !aq_search_block_fits(b, in) ? 0 : aq_planner_rate(ret, b, in, reterr);
}

int aq_planner_beside(struct aq_block *best, const struct aq_block_inputs *in,
                      struct aq_err *reterr)
{
    const struct aq_block_shape *shape = &best->plan.shape;
    struct aq_placement placement = best->plan.placement;
    uint32_t seats = shape->micro_batch * shape->micro_batches, batches = shape->micro_batches;
    struct aq_block_inputs made = *in;
    struct aq_block other = {0};
    struct aq_planner_rate rate, least;
    double pays = beside_pays;
    if (!in->side_by_side_auto || !in->hw || in->separate || in->serial || in->threads < 2 ||
        in->hw->device.attention_thread_bytes_per_s <= 0)
        return 0;
    int rc = aq_planner_rate(&least, best, in, reterr);
    made.placement = &placement;
    made.ring_steps = best->plan.ring_steps;
    made.prompt_tokens = shape->prompt_tokens;
    made.side_by_side = true;
    for (size_t i = 0; rc == 0 && i < AQ_ARRAY_LEN(batches_beside); i++) {
        made.micro_batches = batches_beside[i];
        made.micro_batch = (uint32_t)aq_div_up(seats, made.micro_batches);
        if (made.micro_batches < batches || (in->micro_batches && made.micro_batches != batches) ||
            (in->micro_batch && made.micro_batch != in->micro_batch))
            continue;
        rc = make_rated(&rate, &other, &made, &placement, reterr);
        if (rc == 0 && aq_planner_gain(&rate, &least) > pays) {
            aq_block_swap(best, &other);
            least = rate;
            pays = 1;
        }
    }
    aq_block_close(&other);
    return rc;
}

const uint64_t aq_planner_stages[AQ_PLANNER_STAGES] = {0, 256 * AQ_MIB, AQ_GIB};

bool aq_planner_tries_stages(const struct aq_block *b, const struct aq_block_inputs *in)
{
    enum { SHARE = 20 }; /* of the prompts' tokens: what --share-prefixes auto asks for */
    const struct aq_block_shape *shape = &b->plan.shape;
    bool all = (uint64_t)shape->micro_batch * shape->micro_batches >= in->sequences;
    bool staged = in->separate && !all; /* or might be, for more seats */
    for (uint32_t i = 0; i < b->plan.part_count; i++)
        staged |= b->plan.part[i].staged;
    return in->hw && !in->stage_bytes && staged && in->shared_sum * SHARE >= in->prompt_sum &&
           aq_block_shared_slots(in, shape, &b->plan.kinds) > 0;
}

int aq_planner_share_work(struct aq_block *best, const struct aq_block_inputs *in,
                          struct aq_err *reterr)
{
    struct aq_block_inputs made = *in;
    struct aq_placement placement = best->plan.placement;
    enum aq_attention_side side = AQ_ATTEND_DEVICE;
    aq_plan_attention(&side, &best->plan);
    /* The host can only keep panels of weights that otherwise stream from its memory. */
    bool products = in->host_products_auto && placement.weights.percent[AQ_HOST] > 0;
    bool split = !in->attention_auto && side == AQ_ATTEND_SPLIT && in->split_host <= 0;
    if (!in->hw || !in->separate || (!products && !split))
        return 0;
    made.placement = &placement;
    made.micro_batch = best->plan.shape.micro_batch;
    made.micro_batches = best->plan.shape.micro_batches;
    made.ring_steps = best->plan.ring_steps;
    if (in->attention_auto) {
        made.attention_auto = false;
        made.attention = side;
        made.split_host = best->plan.split_host;
    }
    return aq_planner_search(best, &made, reterr);
}
