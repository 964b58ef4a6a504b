/* SPDX-License-Identifier: Apache-2.0
 * Candidates are weighed by exp((logit - largest) / temperature) in f32, and weights are counted in
 * whole units (aq_weight_unit): their sums are exact in whatever order they are made, so that a
 * GPU, which finds tokens by sums alone (kernels/cuda/sample.cu), draws the same.
 *
 * Candidates stand in the order of their ids, with min_p those that it leaves.  With top_p or top_k
 * they stand best first, which takes no sorting of the vocabulary: their weights are summed by the
 * distance from the best, and only where a sum passes its limit are candidates of one distance,
 * about, put in order. */
#include "engine/compute/sample.h"

#include "base/prng.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* ---- the best by logit ---- */

/* Is a before b: by a higher logit, then by a lower id? */
static inline bool better(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Heap of ids with the worst on top. */
static void sift_down(const float *logits, uint32_t *heap, uint32_t count, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && better(logits, heap[child], heap[child + 1]))
            child++;
        if (!better(logits, heap[at], heap[child]))
            return;
        uint32_t t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

static void make_heap(const float *logits, uint32_t *id, uint32_t count)
{
    for (uint32_t n = count / 2; n-- > 0;)
        sift_down(logits, id, count, n);
}

static bool is_sorted(const float *logits, const uint32_t *id, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        if (better(logits, id[i], id[i - 1]))
            return false;
    }
    return true;
}

/* The first of the largest. */
static uint32_t largest(const float *logits, uint32_t count)
{
    float most = logits[0];
    uint32_t id = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (logits[i] > most) {
            most = logits[i];
            id = i;
        }
    }
    return id;
}

/* Puts ids in order, best first. */
static void sort_best(const float *logits, uint32_t *id, uint32_t count)
{
    if (is_sorted(logits, id, count))
        return;
    make_heap(logits, id, count);
    for (uint32_t n = count; n > 1; n--) { /* the worst goes last */
        uint32_t t = id[0];
        id[0] = id[n - 1];
        id[n - 1] = t;
        sift_down(logits, id, n - 1, 0);
    }
}

/* The best `count` of the finite logits into id, best first; returns how many there were (-inf is
 * left out). */
static uint32_t select_best(uint32_t *id, uint32_t count, const float *logits, uint32_t vocab)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (have == count && !(logits[i] > logits[id[0]])) /* an equal one has a higher id */
            continue;
        if (!(logits[i] > -INFINITY))
            continue;
        if (have < count) {
            id[have++] = i;
            if (have == count)
                make_heap(logits, id, count);
        } else {
            id[0] = i;
            sift_down(logits, id, count, 0);
        }
    }
    sort_best(logits, id, have);
    return have;
}

void aq_sample_tops(struct aq_top *ret, uint32_t count, const float *logits,
                    const struct aq_logits_stat *stat, uint32_t vocab)
{
    uint32_t best[AQ_TOP_MAX];
    assert(count <= AQ_TOP_MAX);
    uint32_t have = count ? select_best(best, count < vocab ? count : vocab, logits, vocab) : 0;
    for (uint32_t i = 0; i < count; i++)
        ret[i] = i < have ? (struct aq_top){best[i], logits[best[i]] - stat->log_sum_exp}
                          : (struct aq_top){0, -INFINITY};
}

/* ---- masks and penalties ---- */

static bool is_greedy(const struct aq_sampling *s)
{
    return s->temperature <= 0.0f;
}

bool aq_sample_has_penalties(const struct aq_sampling *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f ||
           s->frequency_penalty != 0.0f;
}

static void penalise_id(const struct aq_sampling *p, float *logits, uint32_t *seen, uint32_t id)
{
    if (!seen[id])
        return; /* done already */
    float times = (float)(seen[id] - 1);
    logits[id] =
        logits[id] > 0 ? logits[id] / p->repetition_penalty : logits[id] * p->repetition_penalty;
    if (times > 0)
        logits[id] -= p->presence_penalty + p->frequency_penalty * times;
    seen[id] = 0;
}

/* Repetition penalty (Keskar et al., CTRL, arXiv 1909.05858, section 4.1) once per distinct id of
 * prompt and output: positive logits are divided, others multiplied.  Presence and frequency
 * penalties are subtracted for generated ids, once and per occurrence.  seen [vocab] is scratch: 0,
 * or of a seen id 1 more than it was generated. */
static void penalise(const struct aq_sequence *s, float *logits, uint32_t *seen, uint32_t vocab)
{
    memset(seen, 0, vocab * sizeof(*seen));
    for (uint32_t i = 0; i < s->prompt_count; i++)
        seen[s->prompt[i]] = 1;
    for (uint32_t i = 0; i < s->token_count; i++)
        seen[s->tokens[i]] += seen[s->tokens[i]] ? 1 : 2;
    for (uint32_t i = 0; i < s->prompt_count; i++)
        penalise_id(&s->sampling, logits, seen, s->prompt[i]);
    for (uint32_t i = 0; i < s->token_count; i++)
        penalise_id(&s->sampling, logits, seen, s->tokens[i]);
}

uint32_t aq_sample_id_end(const struct aq_sequence *s, uint32_t vocab)
{
    return s->id_end && s->id_end < vocab ? s->id_end : vocab;
}

static bool masks_stops(const struct aq_sequence *s)
{
    return s->token_count < s->min_tokens && s->stop_id_count > 0;
}

uint32_t aq_sample_masked(const struct aq_sequence *s)
{
    return s->never_count + (masks_stops(s) ? s->stop_id_count : 0);
}

void aq_sample_masked_ids(const struct aq_sequence *s, uint32_t *ret)
{
    if (s->never_count)
        memcpy(ret, s->never, s->never_count * sizeof(*ret));
    if (masks_stops(s))
        memcpy(ret + s->never_count, s->stop_ids, s->stop_id_count * sizeof(*ret));
}

static void mask(float *logits, const uint32_t *ids, uint32_t count, uint32_t vocab)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] < vocab)
            logits[ids[i]] = -INFINITY;
    }
}

/* A copy of the logits with ids masked and penalties applied. */
static const float *adjust(const struct aq_sequence *s, const float *logits, uint32_t vocab,
                           const struct aq_sample_work *work)
{
    memcpy(work->logits, logits, vocab * sizeof(*logits));
    mask(work->logits, s->never, s->never_count, vocab);
    if (masks_stops(s))
        mask(work->logits, s->stop_ids, s->stop_id_count, vocab);
    if (aq_sample_has_penalties(&s->sampling))
        penalise(s, work->logits, work->id, vocab);
    return work->logits;
}

/* ---- the draw ---- */

float aq_sample_inverse(const struct aq_sampling *s)
{
    return fminf(1 / s->temperature, FLT_MAX); /* infinite times a distance of 0 is no number */
}

float aq_sample_reach(const struct aq_sampling *s)
{
    return s->min_p > 0 ? -logf(fminf(s->min_p, 1)) : INFINITY;
}

/* The least sum that is top_p's share of all. */
static uint64_t share_of(float top_p, uint64_t total)
{
    double share = ceil((double)top_p * (double)total);
    return share >= 1 ? (uint64_t)share : 1;
}

/* Below the total: the candidate is drawn up to and with which the sum is more. */
static uint64_t limit_of(double u, uint64_t total)
{
    uint64_t limit = (uint64_t)(u * (double)total);
    return limit < total ? limit : total - 1;
}

/* A draw among the ids below `count`. */
struct draw {
    const struct aq_sampling *p;
    const struct aq_sample_work *work;
    const float *logits;
    uint32_t count;
    float best, inverse, reach, unit;
    double u; /* uniform in [0, 1) */
};

/* How far a logit is from the best, in units of the temperature: weights are exp() of minus
 * that. */
static inline float distance(const struct draw *d, float logit)
{
    return (d->best - logit) * d->inverse;
}

static inline uint64_t units(const struct draw *d, float weight)
{
    return (uint64_t)(int64_t)(weight * d->unit);
}

/* Returns the sum of those within `reach` of the best. */
static uint64_t weigh(const struct draw *d, const float *logits, uint32_t count, float reach)
{
    const struct aq_candidates c = {.weight = d->work->weight,
                                    .logits = logits,
                                    .count = count,
                                    .best = d->best,
                                    .inverse = d->inverse,
                                    .reach = reach,
                                    .unit = d->unit};
    return d->work->kernels->weigh(&c);
}

/* Among all within reach, in the order of their ids. */
static uint32_t draw_near(const struct draw *d)
{
    uint64_t left = limit_of(d->u, weigh(d, d->logits, d->count, d->reach));
    uint32_t id = 0;
    for (;; id++) {
        /* no jump: which ones are near is hard to foretell */
        uint64_t near = distance(d, d->logits[id]) <= d->reach;
        uint64_t of = units(d, d->work->weight[id]) * near;
        if (left < of)
            return id;
        left -= of;
    }
}

/* Among the best `top_k`, best first: the sum that top_p keeps, then what min_p leaves of it. */
static uint32_t draw_of_best(const struct draw *d)
{
    uint32_t *id = d->work->id, count = d->p->top_k < d->count ? d->p->top_k : d->count;
    float *weight = d->work->weight;
    count = select_best(id, count, d->logits, d->count);
    for (uint32_t i = 0; i < count; i++)
        weight[i] = d->logits[id[i]];
    uint64_t total = weigh(d, weight, count, INFINITY), sum = 0;
    uint64_t share = d->p->top_p < 1 ? share_of(d->p->top_p, total) : total;
    uint32_t kept = 0;
    while (kept < count && sum < share && distance(d, d->logits[id[kept]]) <= d->reach)
        sum += units(d, weight[kept++]);
    uint64_t left = limit_of(d->u, sum);
    for (uint32_t i = 0;; i++) {
        uint64_t of = units(d, weight[i]);
        if (left < of)
            return id[i];
        left -= of;
    }
}

/* Sums of weights by distance: rings, so narrow that neighbours seldom wait for each other's
 * addition, and parts of one ring.  Beyond 35 nothing weighs a unit. */
enum { RINGS_A_UNIT = 256, RINGS = 36 * RINGS_A_UNIT, PARTS = 64, FLIGHT = 16 };
struct rings {
    uint64_t sum[RINGS];
};

/* Its distance in rings: exact, since what differs from distance() is a power of two. */
static inline float rings_to(const struct draw *d, float logit)
{
    return (d->best - logit) * (d->inverse * RINGS_A_UNIT);
}

static inline uint32_t ring_of(const struct draw *d, float logit)
{
    float ring = rings_to(d, logit);
    return (uint32_t)(int32_t)(ring < RINGS - 1 ? ring : RINGS - 1);
}

/* Which part of its ring. */
static inline uint32_t part_of(const struct draw *d, float logit, uint32_t ring)
{
    float part = (rings_to(d, logit) - (float)ring) * PARTS;
    return part < PARTS - 1 ? (uint32_t)part : PARTS - 1;
}

/* The ids of a ring, ascending; returns how many there are.  Weights tell most of the others. */
static uint32_t pick_ring(const struct draw *d, uint32_t ring)
{
    const float near = 1.0001f, *weight = d->work->weight;
    uint32_t *id = d->work->id, exact = 0;
    float most = near * expf(-(float)ring / RINGS_A_UNIT);
    float least = ring < RINGS - 1 ? expf(-(float)(ring + 1) / RINGS_A_UNIT) / near : FLT_MIN;
    uint32_t count = d->work->kernels->weights_between(id, weight, d->count, least, most);
    for (uint32_t i = 0; i < count; i++) {
        id[exact] = id[i];
        exact += ring_of(d, d->logits[id[i]]) == ring;
    }
    return exact;
}

/* Keeps of a ring's ids those of the part in which the sum, which the rings before it begin, passes
 * the limit. */
static uint32_t pick_part(const struct draw *d, uint32_t ring, uint32_t count, uint64_t limit,
                          uint64_t *sum)
{
    uint64_t sums[PARTS] = {0};
    uint32_t *id = d->work->id, part = 0, kept = 0;
    for (uint32_t i = 0; i < count; i++)
        sums[part_of(d, d->logits[id[i]], ring)] += units(d, d->work->weight[id[i]]);
    for (; *sum + sums[part] <= limit; part++)
        *sum += sums[part];
    for (uint32_t i = 0; i < count; i++) {
        id[kept] = id[i];
        kept += part_of(d, d->logits[id[i]], ring) == part;
    }
    return kept;
}

/* The first candidate, best first, up to and with which the sum is more than the limit; returns
 * that sum. */
static uint64_t pass(const struct draw *d, const struct rings *rings, uint64_t limit,
                     uint32_t *ret_id)
{
    uint32_t *id = d->work->id, ring = 0;
    uint64_t sum = 0;
    for (; sum + rings->sum[ring] <= limit; ring++)
        sum += rings->sum[ring];
    uint32_t count = pick_part(d, ring, pick_ring(d, ring), limit, &sum);
    sort_best(d->logits, id, count);
    for (uint32_t i = 0;; i++) {
        sum += units(d, d->work->weight[id[i]]);
        *ret_id = id[i];
        if (sum > limit)
            return sum;
    }
}

/* Sums the weights by ring; returns the sum of all. */
static uint64_t fill_rings(const struct draw *d, struct rings *ret)
{
    const float *weight = d->work->weight, *logits = d->logits;
    uint64_t total = 0;
    uint32_t i = 0, ring[FLIGHT];
    memset(ret, 0, sizeof(*ret));
    for (; i + FLIGHT <= d->count; i += FLIGHT) {
        for (uint32_t n = 0; n < FLIGHT; n++)
            ring[n] = ring_of(d, logits[i + n]);
        for (uint32_t n = 0; n < FLIGHT; n++)
            ret->sum[ring[n]] += units(d, weight[i + n]);
    }
    for (; i < d->count; i++)
        ret->sum[ring_of(d, logits[i])] += units(d, weight[i]);
    for (uint32_t r = 0; r < RINGS; r++)
        total += ret->sum[r];
    return total;
}

/* Among those that top_p keeps, best first: what min_p leaves of them, which are the first. */
static uint32_t draw_nearest(const struct draw *d)
{
    struct rings rings;
    uint64_t near = weigh(d, d->logits, d->count, d->reach), total = fill_rings(d, &rings);
    uint32_t id;
    total = pass(d, &rings, share_of(d->p->top_p, total) - 1, &id);
    pass(d, &rings, limit_of(d->u, near < total ? near : total), &id);
    return id;
}

uint32_t aq_sample_token(const struct aq_sequence *s, const float *logits,
                         const struct aq_logits_stat *stat, uint32_t vocab,
                         const struct aq_sample_work *work)
{
    const struct aq_sampling *p = &s->sampling;
    if (s->token_count < s->given_count)
        return s->tokens[s->token_count];
    if (s->forced)
        return s->forced[s->token_count];
    bool adjusted = aq_sample_masked(s) || aq_sample_has_penalties(p);
    uint32_t best = stat->argmax, count = aq_sample_id_end(s, vocab);
    if (adjusted)
        logits = adjust(s, logits, vocab, work);
    if (best >= count || aq_sample_has_penalties(p) || !(logits[best] > -INFINITY)) {
        best = largest(logits, count);
    }
    if (is_greedy(p) || !(logits[best] > -INFINITY))
        return best;
    struct draw d = {
        .p = p,
        .work = work,
        .logits = logits,
        .count = count,
        .best = logits[best],
        .inverse = aq_sample_inverse(p),
        .reach = aq_sample_reach(p),
        .unit = aq_weight_unit(vocab),
        .u = aq_prng_uniform(p->seed, p->record_hash, (uint64_t)p->choice << 32 | s->token_count)};
    if (p->top_k > 0)
        return draw_of_best(&d);
    return p->top_p < 1 ? draw_nearest(&d) : draw_near(&d);
}
