/* SPDX-License-Identifier: Apache-2.0
 * One candidate of the search: shares rounded, the block made, its forecast compared with the
 * best. */
#include "policy/planner_search.h"

#include "base/mem.h"

#include <errno.h>
#include <math.h>

/* A candidate must be `faster` times as fast as the best before it, at first the plain rule's
 * block.  Within `tie` of the fastest so far the candidate that needs less of the disk is
 * preferred, then the one that needs less memory: memory within the budget costs nothing, while
 * the disk's rate is seldom measured. */
static const double faster = 1.02, tie = 0.995;
enum { SIMULATED_AS_BUILT = 2 };

bool aq_search_block_fits(const struct aq_block *b, const struct aq_block_inputs *in)
{
    double excess[AQ_TIER_COUNT];
    aq_block_excess(excess, b, in);
    return excess[AQ_DEVICE] <= 0 && excess[AQ_HOST] <= 0 && excess[AQ_DISK] <= 0;
}

bool aq_search_fits(const struct aq_search *s)
{
    return aq_search_block_fits(&s->now, s->given);
}

static uint64_t memory_of(const struct aq_block *b)
{
    return aq_ledger_total(&b->ledger, AQ_DEVICE) + aq_ledger_total(&b->ledger, AQ_HOST);
}

static uint64_t disk_of(const struct aq_block *b)
{
    return aq_ledger_total(&b->ledger, AQ_DISK) + b->stream.bytes[AQ_DISK];
}

uint32_t aq_search_kind(const struct aq_search *s, const struct aq_block_shape *b)
{
    uint64_t seats = (uint64_t)b->micro_batch * b->micro_batches;
    uint64_t blocks = s->given->sequences ? aq_div_up(s->given->sequences, seats) : 1;
    uint64_t batches = aq_min_u64(b->micro_batches, AQ_SEARCH_BATCHES_MAX);
    return (uint32_t)(AQ_SEARCH_BLOCKS_MAX * (batches - 1) +
                      aq_min_u64(blocks, AQ_SEARCH_BLOCKS_MAX) - 1);
}

/* Keeps s->now, of this rate, as the fastest of its kind, if it is. */
static void put_finalist(struct aq_search *s, int arm, double rate)
{
    const struct aq_block_shape *b = &s->now.plan.shape;
    struct aq_search_finalist *f = &s->finalist[aq_search_kind(s, b)];
    if (arm < 0 || rate <= f->rate)
        return;
    *f = (struct aq_search_finalist){s->arm[arm].shape, aq_search_shares(&s->now.plan), rate};
    f->shape.micro_batch = b->micro_batch;
}

int aq_search_judge(struct aq_search *s, int arm, struct aq_err *reterr)
{
    struct aq_forecast f;
    s->ops += (uint64_t)SIMULATED_AS_BUILT * s->now.program.op_count;
    int rc = aq_program_order(&s->now.program, reterr);
    rc = rc < 0 ? rc : aq_forecast_make(&f, &s->now, &s->work, s->given->hw, reterr);
    if (rc < 0)
        return rc == -ENOMEM ? rc : 0; /* the machine has no rate for an op */
    s->last = f.gen_tok_s;
    put_finalist(s, arm, f.gen_tok_s);
    s->fastest = fmax(s->fastest, f.gen_tok_s);
    bool ours = s->best_arm >= 0; /* among the search's own candidates any gain counts, */
    uint64_t disk = disk_of(&s->now), disk_before = disk_of(&s->best);
    double gain = !ours ? faster : disk > disk_before ? 1 / tie : 1; /* unless it takes disk */
    bool smaller =
        disk < disk_before || (disk == disk_before && memory_of(&s->now) < memory_of(&s->best));
    if (f.gen_tok_s > s->rate * gain || (f.gen_tok_s >= s->fastest * tie && smaller)) {
        struct aq_block better = s->now;
        s->now = s->best;
        s->best = better;
        s->rate = f.gen_tok_s;
        s->best_arm = arm;
    }
    return 0;
}

static double tenths(double percent, bool up)
{
    double n = up ? ceil(percent * 10 - 1e-4) : floor(percent * 10 + 1e-4);
    return fmax(0, n) / 10;
}

static void round_weights(struct aq_shares *w, bool separate)
{
    enum aq_tier near = separate ? AQ_DEVICE : AQ_HOST;
    double disk = tenths(w->percent[AQ_DISK], true);
    double at_near = fmin(tenths(w->percent[near], false), 100 - disk);
    *w = (struct aq_shares){{0}};
    if (separate) { /* the rest is the host's, or the disk's if the host had none */
        w->percent[AQ_HOST] = round(10 * (100 - at_near - disk)) / 10;
        w->percent[AQ_DISK] = disk;
    } else {
        w->percent[AQ_DISK] = round(10 * (100 - at_near)) / 10;
    }
    w->percent[near] = at_near;
}

/* Rounds to whole seats, written as percentages with few digits that mean these seats. */
static void round_kv(struct aq_shares *kv, bool separate, uint32_t seats)
{
    enum aq_tier near = separate ? AQ_DEVICE : AQ_HOST;
    uint32_t disk = (uint32_t)ceil(kv->percent[AQ_DISK] * seats / 100 - 1e-3);
    uint32_t at_near = (uint32_t)floor(kv->percent[near] * seats / 100 + 1e-3);
    disk = disk > seats ? seats : disk;
    at_near = at_near > seats - disk ? seats - disk : at_near;
    if (!separate)
        disk = seats - at_near;
    *kv = (struct aq_shares){{0}};
    kv->percent[near] = round(1e6 * at_near / seats) / 1e4;
    kv->percent[AQ_DISK] = round(1e6 * disk / seats) / 1e4;
    if (separate)
        kv->percent[AQ_HOST] =
            round(1e4 * (100 - kv->percent[AQ_DEVICE] - kv->percent[AQ_DISK])) / 1e4;
}

/* Rounds to whole seats of those outside the device's memory, at least one for each side, written
 * with the digits that are printed; these must not round up to one more seat. */
double aq_search_round_split(double percent, const struct aq_shares *kv, uint32_t seats)
{
    double away = round((100 - kv->percent[AQ_DEVICE]) * seats / 100);
    double host = fmin(fmax(1, round(percent * away / 100)), fmax(1, away - 1));
    return away < 1 ? percent : floor(1e5 * host / away) / 1e3;
}

void aq_search_round(struct aq_shares_found *f, const struct aq_shares_opts *o)
{
    const struct aq_block_inputs *in = o->in;
    uint32_t seats = o->shape.micro_batch;
    if (in->placement) {
        f->placement = *in->placement;
    } else {
        round_weights(&f->placement.weights, in->separate);
        round_kv(&f->placement.kv, in->separate, seats);
    }
    if (o->shape.side == AQ_ATTEND_SPLIT)
        f->split_host = o->shape.split_host > 0
                            ? o->shape.split_host
                            : aq_search_round_split(f->split_host, &f->placement.kv, seats);
    f->host_products = in->host_products_auto ? round(2 * f->host_products) / 2 : in->host_products;
}

int aq_search_make(struct aq_search *s, const struct aq_shares_opts *o,
                   const struct aq_shares_found *f)
{
    struct aq_block_inputs in = aq_shares_inputs(o);
    in.host_products = f->host_products;
    in.split_host = f->split_host;
    int rc = aq_block_make(&s->now, &in, &f->placement, o->shape.micro_batch, NULL);
    s->no_memory |= rc == -ENOMEM;
    s->ops += s->now.program.op_count;
    return rc;
}

bool aq_search_make_fits(struct aq_search *s, const struct aq_shares_opts *o,
                         const struct aq_shares_found *f)
{
    return aq_search_make(s, o, f) == 0 && aq_search_fits(s);
}

struct aq_shares_found aq_search_shares(const struct aq_plan *p)
{
    return (struct aq_shares_found){
        .placement = p->placement, .host_products = p->host_products, .split_host = p->split_host};
}
