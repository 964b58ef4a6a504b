/* SPDX-License-Identifier: Apache-2.0
 * The planner's search where few seats fit.  Rounding to chunks and seats and the overhead of ops
 * then decide, which the linear program does not count.  So a local search: from the best block and
 * a few others, change one choice at a time, as long as a change makes the block faster. */
#include "policy/planner_search.h"

#include <assert.h>
#include <math.h>

/* Most seats of a small block; most steps from one point; starting points beside the best block. */
enum { FEW_SEATS = 16, STEPS_MAX = 192, STARTS = 4 };

struct point {
    struct aq_shares_shape shape;
    struct aq_shares_found f;
    double rate;
};

enum step_kind { STEP_SEATS, STEP_WEIGHTS, STEP_KV, STEP_RING, STEP_HIDDEN, STEP_SIDE, STEP_HEAD };

struct step {
    enum step_kind kind;
    int from, to; /* by kind: tiers; changes of seats and of micro-batches; sides */
    double much;  /* by kind: percent, groups of the ring; SEATS: percent of weights */
};

static bool shift(struct aq_shares *s, int from, int to, double percent)
{
    double moved = fmin(percent, s->percent[from]);
    s->percent[from] -= moved;
    s->percent[to] += moved;
    return moved > 1e-3;
}

static bool step_seats(struct point *p, const struct aq_block_inputs *in, const struct step *t)
{
    int64_t seats = (int64_t)p->shape.micro_batch + t->from;
    int64_t batches = (int64_t)p->shape.micro_batches + t->to;
    enum aq_tier near = in->separate ? AQ_DEVICE : AQ_HOST;
    if (seats < 1 || batches < 1 || batches > AQ_SEARCH_BATCHES_MAX ||
        (t->from && in->micro_batch) || (t->to && in->micro_batches) ||
        (in->sequences && (uint64_t)(seats * batches) > in->sequences))
        return false;
    p->shape.micro_batch = (uint32_t)seats;
    p->shape.micro_batches = (uint32_t)batches;
    struct aq_shares *w = &p->f.placement.weights;
    return t->much == 0 || (!in->placement && (t->much > 0 ? shift(w, AQ_DISK, near, t->much)
                                                           : shift(w, near, AQ_DISK, -t->much)));
}

/* Applies the step to the point; false: it cannot be applied here. */
static bool take(struct point *p, const struct aq_block_inputs *in, const struct step *t)
{
    struct aq_placement *to = &p->f.placement;
    bool tiers = t->kind == STEP_WEIGHTS || t->kind == STEP_KV || t->kind == STEP_HIDDEN;
    bool free_tier = in->can_stream || t->to != AQ_DISK;
    if (tiers && (in->placement || !free_tier))
        return false;
    if (tiers && !in->separate && (t->from == AQ_DEVICE || t->to == AQ_DEVICE))
        return false;
    switch (t->kind) {
    case STEP_SEATS: return step_seats(p, in, t);
    case STEP_WEIGHTS: return shift(&to->weights, t->from, t->to, t->much);
    case STEP_KV: return shift(&to->kv, t->from, t->to, 100 * t->much / p->shape.micro_batch);
    case STEP_HIDDEN:
        p->shape.hidden = (enum aq_tier)t->to;
        return shift(&to->hidden, t->from, t->to, 100);
    case STEP_RING:
        p->shape.ring_steps = t->much;
        return !in->prefetch_bytes && in->ring_steps <= 0;
    case STEP_SIDE:
        p->shape.side = (enum aq_attention_side)t->to;
        return in->separate && in->attention_auto && !(in->one_side && t->to == AQ_ATTEND_SPLIT);
    case STEP_HEAD:
        to->head = to->head == AQ_DEVICE ? AQ_HOST : AQ_DEVICE;
        return in->separate && !in->placement;
    }
    return false;
}

static uint32_t list_steps(struct step *ret)
{
    static const double weights[] = {50, 20, 10, 5, 2, 1}, rings[] = {0, 1.25, 1.5, 3};
    static const double nearer[] = {0, 25, 10, -10, -25};
    uint32_t n = 0;
    for (int seats = -2; seats <= 2; seats++) {
        for (int batches = -1; batches <= 1; batches++) {
            for (uint32_t i = 0; i < AQ_ARRAY_LEN(nearer) && (seats || batches); i++)
                ret[n++] = (struct step){STEP_SEATS, seats, batches, nearer[i]};
        }
    }
    for (int from = AQ_DEVICE; from <= AQ_DISK; from++) {
        for (int to = AQ_DEVICE; to <= AQ_DISK; to++) {
            for (uint32_t i = 0; i < AQ_ARRAY_LEN(weights) && from != to; i++)
                ret[n++] = (struct step){STEP_WEIGHTS, from, to, weights[i]};
            for (int seats = 1; seats <= 2 && from != to; seats++)
                ret[n++] = (struct step){STEP_KV, from, to, seats};
            if (from != to)
                ret[n++] = (struct step){STEP_HIDDEN, from, to, 100};
        }
    }
    for (uint32_t i = 0; i < AQ_ARRAY_LEN(rings); i++)
        ret[n++] = (struct step){STEP_RING, 0, 0, rings[i]};
    for (int side = AQ_ATTEND_DEVICE; side <= AQ_ATTEND_SPLIT; side++)
        ret[n++] = (struct step){STEP_SIDE, 0, side, 0};
    ret[n++] = (struct step){STEP_HEAD, 0, 0, 0};
    assert(n <= STEPS_MAX);
    return n;
}

/* Computes p->rate; 0: the point does not fit. */
static int rate_point(struct aq_search *s, struct point *p, struct aq_err *reterr)
{
    struct aq_shares_opts o = {
        .in = s->given, .sums = &s->sums, .work = &s->work, .shape = p->shape};
    int rc = 0;
    aq_search_round(&p->f, &o);
    s->last = 0;
    s->arm[0].shape = p->shape;
    if (aq_search_make_fits(s, &o, &p->f))
        rc = aq_search_judge(s, 0, reterr);
    p->rate = s->last;
    return rc;
}

/* Steps from *p on, as long as one is faster. */
static int climb(struct aq_search *s, struct point *p, struct aq_err *reterr)
{
    struct step step[STEPS_MAX];
    uint32_t count = list_steps(step), since = 0;
    int rc = 0;
    for (uint32_t i = 0; since < count && rc == 0 && s->ops < s->ops_max; i = (i + 1) % count) {
        struct point q = *p;
        since++;
        if (!take(&q, s->given, &step[i]))
            continue;
        rc = rate_point(s, &q, reterr);
        if (q.rate > p->rate * 1.0001) {
            *p = q;
            since = 0;
        }
    }
    return rc;
}

/* Keeps the fastest points, one of each shape. */
static void put_point(struct point best[STARTS], const struct point *p)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < STARTS; i++) {
        bool same = best[i].rate > 0 && best[i].shape.micro_batch == p->shape.micro_batch &&
                    best[i].shape.micro_batches == p->shape.micro_batches;
        at = same || (best[i].rate < best[at].rate) ? i : at;
        if (same)
            break;
    }
    if (p->rate > best[at].rate)
        best[at] = *p;
}

enum { START_KINDS = 3 * 3 * 3 * 2 }; /* micro-batches, seats, tiers, weights */

/* Starting points: few seats, none or half of the weights in host memory, and all KV on one
 * tier. */
static int put_starts(struct aq_search *s, struct point best[STARTS], const struct point *like,
                      struct aq_err *reterr)
{
    const struct aq_block_inputs *in = s->given;
    bool placed = in->placement || !in->can_stream;
    int rc = 0;
    for (uint32_t i = 0; i < START_KINDS && rc == 0 && s->ops < s->ops_max; i++) {
        struct point p = *like;
        if ((placed && i % 6) || (in->micro_batch && i / 6 % 3) || (in->micro_batches && i / 18))
            continue; /* the same point as another */
        double weights = i & 1 ? 50 : 0;
        enum aq_tier kv = (enum aq_tier)(AQ_DISK - i / 2 % 3);
        p.shape.micro_batch = in->micro_batch ? in->micro_batch : 1 + i / 6 % 3;
        p.shape.micro_batches = in->micro_batches ? in->micro_batches : 1 + i / 18;
        if (in->sequences && p.shape.micro_batch * p.shape.micro_batches > in->sequences)
            continue;
        if (!placed) {
            p.f.placement.weights = (struct aq_shares){{0, weights, 100 - weights}};
            p.f.placement.kv = (struct aq_shares){{0}};
            p.f.placement.kv.percent[kv == AQ_DEVICE && !in->separate ? AQ_HOST : kv] = 100;
        }
        rc = rate_point(s, &p, reterr);
        put_point(best, &p);
    }
    return rc;
}

int aq_search_few_seats(struct aq_search *s, struct aq_err *reterr)
{
    const struct aq_plan *b = &s->best.plan;
    const struct aq_block_inputs *in = s->given;
    struct point start[STARTS] = {{.rate = 0}}, p = {.f = aq_search_shares(b), .rate = s->rate};
    if (!s->best.program.op_count || b->shape.micro_batch * b->shape.micro_batches > FEW_SEATS)
        return 0;
    p.shape = (struct aq_shares_shape){
        .split_host = in->split_host,
        .host_products = in->host_products_auto || in->host_products > 0,
        .hidden = in->separate ? AQ_DEVICE : AQ_HOST,
        .side = in->attention,
        .ring_steps = in->ring_steps,
    };
    if (s->best_arm >= 0)
        p.shape = s->arm[s->best_arm].shape;
    p.shape.micro_batch = b->shape.micro_batch;
    p.shape.micro_batches = b->shape.micro_batches;
    aq_plan_attention(&p.shape.side, b);
    s->arm[0] = (struct aq_search_arm){.shape = p.shape};
    s->best_arm = s->best_arm < 0 ? -1 : 0;
    int rc = put_starts(s, start, &p, reterr);
    rc = rc < 0 ? rc : climb(s, &p, reterr);
    for (uint32_t i = 0; i < STARTS && rc == 0; i++) {
        if (start[i].rate > 0)
            rc = climb(s, &start[i], reterr);
    }
    return rc;
}
