/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/search.h"

#include "policy/forecast.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* A candidate must be this much faster than those before it, the plain rule's first; within the
 * tie of the fastest so far the one that needs less memory is preferred. */
static const double faster = 1.02, tie = 0.995;
/* Ops built and simulated (which costs two buildings), all candidates together, before the search
 * ends with what it has: half a microsecond each keeps it below a second.  A count, so that equal
 * inputs give equal plans. */
enum { OPS_MAX = 1200 * 1000, SIMULATED_AS_BUILT = 2 };
enum { BATCHES_MAX = 3, SIDES = 3, STEPS_MAX = 6 };
/* Of the seats that fit.  The largest blocks come first: they are the likeliest. */
static const double fractions[] = {1, 0.5, 0.25, 0.75};

/* Where the KV lives and is attended. */
enum side {
    SIDE_HOST,   /* on a separate device's host, and attended there */
    SIDE_NEAR,   /* beside the products */
    SIDE_STAGED, /* on the host, brought to the device */
};

/* What is varied, in whole steps from 0 on: more of it needs more memory. */
enum axis { AXIS_SEATS, AXIS_HOST, AXIS_DEVICE };

struct point {
    uint32_t seats;
    double device, disk; /* percent of the layers' weights */
};

/* Bytes over the budgets; all 0 or less: it fits.  Infinite where there is no such program. */
struct excess {
    double tier[AQ_TIER_COUNT];
};

struct search {
    struct aq_block_inputs in; /* with the candidate's micro-batches and attention */
    struct aq_forecast_work work;
    enum aq_tier kv;
    uint64_t ops;
    struct aq_block now, best;
    struct point made; /* what `now` is, with this excess; seats 0: something else */
    struct excess made_excess;
    double rate, fastest; /* tokens per second generated: by the best, by any so far */
};

/* Percent of the layers' weights on each tier. */
static struct aq_placement placement_of(const struct search *s, double device, double disk)
{
    enum aq_tier near = s->in.separate ? AQ_DEVICE : AQ_HOST;
    struct aq_placement p = {.head = device < 100 ? AQ_HOST : AQ_DEVICE};
    p.weights.percent[AQ_DEVICE] = device;
    p.weights.percent[AQ_HOST] = 100 - device - disk;
    p.weights.percent[AQ_DISK] = disk;
    p.kv.percent[s->kv] = 100;
    p.hidden.percent[near] = 100;
    return p;
}

static enum aq_tier worst(const struct excess *e)
{
    enum aq_tier ret = AQ_HOST;
    for (int t = 0; t < AQ_TIER_COUNT; t++)
        ret = e->tier[t] > e->tier[ret] ? (enum aq_tier)t : ret;
    return ret;
}

static bool fits(const struct excess *e)
{
    return e->tier[worst(e)] <= 0;
}

/* Makes a candidate s->now. */
static struct excess excess(struct search *s, struct point at)
{
    struct aq_placement p = placement_of(s, at.device, at.disk);
    if (s->made.seats == at.seats && s->made.device == at.device && s->made.disk == at.disk)
        return s->made_excess;
    s->made.seats = 0;
    if (s->ops > OPS_MAX || aq_block_make(&s->now, &s->in, &p, at.seats, NULL) < 0)
        return (struct excess){{INFINITY, INFINITY, INFINITY}};
    s->ops += s->now.program.op_count;
    s->made = at;
    aq_block_excess(s->made_excess.tier, &s->now, &s->in);
    return s->made_excess;
}

/* The percentages in half percents. */
static struct point moved(struct point p, enum axis axis, uint32_t to)
{
    switch (axis) {
    case AXIS_SEATS: p.seats = to; break;
    case AXIS_HOST: p.disk = 100 - to / 2.0; break;
    case AXIS_DEVICE:
        p.device = to / 2.0;
        p.disk = fmin(p.disk, 100 - p.device); /* they leave the host first */
        break;
    }
    return p;
}

/* The largest value in [low, high] that fits, given that low does: ledgers are nearly straight
 * lines, so that a few steps find it.  Not always the very largest. */
static uint32_t most(struct search *s, struct point p, enum axis axis, uint32_t low, uint32_t high,
                     struct excess at_low)
{
    struct excess at_high = excess(s, moved(p, axis, high));
    if (fits(&at_high))
        return high;
    for (int i = 0; i < STEPS_MAX && high - low > 1; i++) {
        enum aq_tier t = worst(&at_high); /* it decides */
        double share = 0.5;
        if (isfinite(at_high.tier[t]) && i + 2 < STEPS_MAX)
            share = -at_low.tier[t] / (at_high.tier[t] - at_low.tier[t]);
        uint32_t next = low + (uint32_t)((high - low) * share);
        next = next <= low ? low + 1 : next >= high ? high - 1 : next;
        struct excess e = excess(s, moved(p, axis, next));
        if (fits(&e)) {
            low = next;
            at_low = e;
        } else {
            high = next;
            at_high = e;
        }
    }
    return low;
}

static uint64_t memory_of(const struct aq_block *b)
{
    return aq_ledger_total(&b->ledger, AQ_DEVICE) + aq_ledger_total(&b->ledger, AQ_HOST);
}

/* Rates s->now; keeps it if it is the best. */
static int judge(struct search *s, struct aq_err *reterr)
{
    struct aq_forecast f;
    s->ops += (uint64_t)SIMULATED_AS_BUILT * s->now.program.op_count;
    int rc = aq_forecast_make(&f, &s->now, &s->work, s->in.hw, reterr);
    if (rc < 0)
        return rc == -ENOMEM ? rc : 0; /* a machine that cannot do it */
    s->fastest = fmax(s->fastest, f.gen_tok_s);
    bool smaller = f.gen_tok_s >= s->fastest * tie && memory_of(&s->now) < memory_of(&s->best);
    if (f.gen_tok_s > s->rate * faster || smaller) {
        struct aq_block better = s->now;
        s->now = s->best;
        s->best = better;
        s->made.seats = 0;
        s->rate = f.gen_tok_s;
    }
    return 0;
}

/* With so many seats: as much of the weights in host memory, and then in the device's, as fits. */
static int try_seats(struct search *s, uint32_t seats, struct aq_err *reterr)
{
    struct point p = {.seats = seats, .disk = 100};
    struct excess e = excess(s, p);
    if (!fits(&e))
        return 0;
    p = moved(p, AXIS_HOST, most(s, p, AXIS_HOST, 0, 200, e));
    e = excess(s, p);
    if (s->in.separate && fits(&e))
        p = moved(p, AXIS_DEVICE, most(s, p, AXIS_DEVICE, 0, 200, e));
    e = excess(s, p);
    return fits(&e) ? judge(s, reterr) : 0;
}

/* Seats of a micro-batch that fit with all weights on disk; 0: not one. */
static uint32_t largest(struct search *s)
{
    struct point p = {.seats = 1, .disk = 100};
    struct excess e = excess(s, p);
    return !fits(&e) ? 0 : most(s, p, AXIS_SEATS, 1, aq_block_seats_wanted(&s->in), e);
}

/* Turns to a side and a number of micro-batches; false where the inputs leave no choice of it. */
static bool turn_to(struct search *s, const struct aq_block_inputs *given, enum side side,
                    uint32_t batches)
{
    bool on_device = given->attention == AQ_ATTEND_DEVICE;
    s->in.micro_batches = batches;
    s->in.attention_auto = false;
    s->in.attention = given->attention;
    s->made.seats = 0;
    s->kv = given->separate && side == SIDE_NEAR ? AQ_DEVICE : AQ_HOST;
    if (given->attention_auto)
        s->in.attention = side == SIDE_HOST ? AQ_ATTEND_HOST : AQ_ATTEND_DEVICE;
    else if (side != SIDE_NEAR && on_device != (side == SIDE_STAGED))
        return false;
    return (given->separate || side == SIDE_NEAR) &&
           (!given->micro_batches || batches == given->micro_batches);
}

static int try_all(struct search *s, const struct aq_block_inputs *given, struct aq_err *reterr)
{
    uint32_t first = given->micro_batches ? given->micro_batches : 1,
             most_seats[SIDES][BATCHES_MAX];
    uint32_t count = given->micro_batches ? 1 : given->separate ? BATCHES_MAX : 2;
    int rc = 0;
    for (uint32_t f = 0; f < AQ_ARRAY_LEN(fractions); f++) {
        for (int side = 0; side < SIDES; side++) {
            for (uint32_t i = 0; i < count && rc == 0; i++) {
                /* Two first where the host has to attend while the device computes. */
                uint32_t k = given->separate && count > 1 && i < 2 ? 1 - i : i;
                if (!turn_to(s, given, (enum side)side, first + k))
                    continue;
                if (f == 0)
                    most_seats[side][k] = given->micro_batch ? given->micro_batch : largest(s);
                uint32_t seats = (uint32_t)(most_seats[side][k] * fractions[f]);
                if (seats && (f == 0 || !given->micro_batch))
                    rc = try_seats(s, seats, reterr);
            }
        }
    }
    return rc;
}

int aq_block_search(struct aq_block *best, const struct aq_block_inputs *in, struct aq_err *reterr)
{
    struct search s = {.in = *in,
                       .work = {.steps = in->steps,
                                .sequences = in->sequences,
                                .refill = in->refill,
                                .serial = in->serial}};
    assert(in->hw && in->can_stream);
    aq_forecast_mean(&s.work, in);
    int rc = 0;
    if (best->program.op_count) { /* what the plain rule found is the first candidate */
        s.now = *best;
        *best = (struct aq_block){0};
        rc = judge(&s, reterr);
        if (rc == 0 && !s.best.program.op_count) {
            s.best = s.now;
            s.now = (struct aq_block){0};
        }
    }
    rc = rc < 0 ? rc : try_all(&s, in, reterr);
    aq_block_close(&s.now);
    if (rc < 0)
        aq_block_close(&s.best);
    else
        *best = s.best;
    return rc;
}
