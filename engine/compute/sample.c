/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/compute/sample.h"

#include "base/prng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* a before b: higher logit, then lower id. */
static inline bool better(struct aq_candidate a, struct aq_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Heap with the worst candidate on top. */
static void sift_down(struct aq_candidate *heap, uint32_t count, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && better(heap[child], heap[child + 1]))
            child++;
        if (!better(heap[at], heap[child]))
            return;
        struct aq_candidate t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

/* The best `count` of the finite logits into out, best first; returns how many there were (-inf is
 * left out). */
static uint32_t select_best(struct aq_candidate *out, uint32_t count, const float *logits,
                            uint32_t vocab)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        struct aq_candidate c = {logits[i], i};
        if (!(c.logit > -INFINITY))
            continue;
        if (have < count) {
            out[have++] = c;
            if (have == count) {
                for (uint32_t n = count / 2; n-- > 0;)
                    sift_down(out, count, n);
            }
        } else if (c.logit > out[0].logit) { /* an equal logit has a higher id and loses */
            out[0] = c;
            sift_down(out, count, 0);
        }
    }
    if (have < count) {
        for (uint32_t n = have / 2; n-- > 0;)
            sift_down(out, have, n);
    }
    for (uint32_t n = have; n > 1; n--) { /* the worst goes last */
        struct aq_candidate t = out[0];
        out[0] = out[n - 1];
        out[n - 1] = t;
        sift_down(out, n - 1, 0);
    }
    return have;
}

void aq_sample_tops(struct aq_top *ret, uint32_t count, const float *logits,
                    const struct aq_logits_stat *stat, uint32_t vocab)
{
    struct aq_candidate best[AQ_TOP_MAX];
    assert(count <= AQ_TOP_MAX);
    uint32_t have = count ? select_best(best, count < vocab ? count : vocab, logits, vocab) : 0;
    for (uint32_t i = 0; i < count; i++)
        ret[i] = i < have ? (struct aq_top){best[i].id, best[i].logit - stat->log_sum_exp}
                          : (struct aq_top){0, -INFINITY};
}

static bool is_greedy(const struct aq_sampling *s)
{
    return s->temperature <= 0.0f;
}

bool aq_sample_has_penalties(const struct aq_sampling *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f ||
           s->frequency_penalty != 0.0f;
}

/* Repetition penalty (Keskar et al., CTRL, arXiv 1909.05858, section 4.1) once per distinct id of
 * prompt and output: positive logits are divided, others multiplied.  Presence and frequency
 * penalties are subtracted for generated ids, once and per occurrence.  work[i] counts id i: .id
 * says seen at all, .logit times generated. */
static void penalise(const struct aq_sequence *s, float *logits, struct aq_candidate *work,
                     uint32_t vocab)
{
    const struct aq_sampling *p = &s->sampling;
    for (uint32_t i = 0; i < vocab; i++)
        work[i] = (struct aq_candidate){0, 0};
    for (uint32_t i = 0; i < s->prompt_count; i++)
        work[s->prompt[i]].id = 1;
    for (uint32_t i = 0; i < s->token_count; i++) {
        work[s->tokens[i]].id = 1;
        work[s->tokens[i]].logit += 1.0f;
    }
    for (uint32_t i = 0; i < vocab; i++) {
        if (!work[i].id)
            continue;
        logits[i] =
            logits[i] > 0 ? logits[i] / p->repetition_penalty : logits[i] * p->repetition_penalty;
        if (work[i].logit > 0)
            logits[i] -= p->presence_penalty + p->frequency_penalty * work[i].logit;
    }
}

/* Keeps the shortest prefix of the candidates (best first) whose probability reaches top_p, then
 * those at least min_p times as likely as the best.  weight = exp((logit - best) / temperature);
 * total = sum over all that top_k left.  Returns how many stay. */
static uint32_t truncate_tail(const struct aq_sampling *s, const struct aq_candidate *c,
                              uint32_t count, double total)
{
    double sum = 0, inverse = 1.0 / s->temperature;
    uint32_t kept = 0;
    for (; kept < count; kept++) {
        double weight = exp((c[kept].logit - c[0].logit) * inverse);
        if (kept > 0 && (sum >= s->top_p * total || weight < s->min_p))
            break;
        sum += weight;
    }
    return kept;
}

/* The draw among c[count], in the order they stand. */
static uint32_t draw(const struct aq_sequence *s, const struct aq_candidate *c, uint32_t count,
                     float best)
{
    const struct aq_sampling *p = &s->sampling;
    double inverse = 1.0 / p->temperature, sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += exp((c[i].logit - best) * inverse);
    double u =
        aq_prng_uniform(p->seed, p->record_hash, (uint64_t)p->choice << 32 | s->token_count) * sum;
    uint32_t last = 0; /* rounding may leave u at zero: then the last that is possible at all */
    for (uint32_t i = 0; i < count; i++) {
        double weight = exp((c[i].logit - best) * inverse);
        u -= weight;
        if (u < 0)
            return c[i].id;
        last = weight > 0 ? i : last;
    }
    return c[last].id;
}

/* Only top_p or min_p: the candidates needed are few as a rule, so they are selected in growing
 * batches instead of sorting the vocabulary. */
static uint32_t sample_nucleus(const struct aq_sequence *s, const float *logits, uint32_t vocab,
                               float best, struct aq_candidate *work)
{
    const struct aq_sampling *p = &s->sampling;
    double total = 0, inverse = 1.0 / p->temperature;
    for (uint32_t i = 0; i < vocab; i++)
        total += exp((logits[i] - best) * inverse);
    for (uint32_t batch = 64;; batch = batch > vocab / 8 ? vocab : batch * 8) {
        uint32_t count = select_best(work, batch < vocab ? batch : vocab, logits, vocab);
        uint32_t kept = truncate_tail(p, work, count, total);
        if (kept < count || count < batch || batch >= vocab)
            return draw(s, work, kept, best);
    }
}

static uint32_t sample_top_k(const struct aq_sequence *s, const float *logits, uint32_t vocab,
                             struct aq_candidate *work)
{
    const struct aq_sampling *p = &s->sampling;
    uint32_t count = select_best(work, p->top_k < vocab ? p->top_k : vocab, logits, vocab);
    double total = 0, inverse = 1.0 / p->temperature;
    for (uint32_t i = 0; i < count; i++)
        total += exp((work[i].logit - work[0].logit) * inverse);
    return draw(s, work, truncate_tail(p, work, count, total), work[0].logit);
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
        penalise(s, work->logits, work->candidate, vocab);
    return work->logits;
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
    uint32_t best = stat->argmax;
    if (adjusted)
        logits = adjust(s, logits, vocab, work);
    vocab = aq_sample_id_end(s, vocab);
    if (adjusted || best >= vocab) {
        best = 0;
        for (uint32_t i = 1; i < vocab; i++)
            best = logits[i] > logits[best] ? i : best;
    }
    if (is_greedy(p) || !(logits[best] > -INFINITY))
        return best;
    struct aq_candidate *c = work->candidate;
    if (p->top_k > 0)
        return sample_top_k(s, logits, vocab, c);
    if (p->top_p < 1.0f || p->min_p > 0.0f)
        return sample_nucleus(s, logits, vocab, logits[best], c);
    for (uint32_t i = 0; i < vocab; i++)
        c[i] = (struct aq_candidate){logits[i], i};
    return draw(s, c, vocab, logits[best]);
}
