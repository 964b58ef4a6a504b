/* SPDX-License-Identifier: Apache-2.0
 * How long a running job will still take.
 *
 * Sequences end before their max_tokens, and nobody is told when.  What has been seen says how
 * likely a sequence that has reached a range of lengths is to stop within it: the number that did,
 * by the number that were in it, where those count half that were at their max_tokens there or are
 * still under way (the life table of actuaries).  Those in flight count as well, or else the first
 * to end, which are the short ones, would speak for all.  From that follow the mean of the tokens
 * that each sequence will still have, and the mean of the longest one, which decides once no
 * sequence waits for a seat. */
#include "engine/job/job.h"

#include <math.h>

/* ---- numbers ---- */

static double run_s(const struct aq_run_view *view, double now_s)
{
    return view->first_pass_s > 0 ? now_s - view->first_pass_s : 0;
}

double aq_view_gen_tok_s(const struct aq_run_view *view, double now_s)
{
    double s = run_s(view, now_s);
    return s > 0 ? (double)view->stats.generated_tokens / s : 0;
}

double aq_view_pass_s(const struct aq_run_view *view)
{
    const struct aq_engine_stats *s = &view->stats;
    return s->passes ? (s->prefill_s + s->decode_s + s->mixed_s) / (double)s->passes : 0;
}

/* Before this share of the seats has been given on, or of all tokens generated, nobody knows how
 * early sequences end. */
static const double known_seats = 0.1, known_tokens = 0.1;

/* ---- ranges of lengths: 0 to 7 one by one, then 8 and 9, 10 and 11, ..., 16 to 19, ... ---- */

static uint32_t range_of(uint32_t length)
{
    if (length < 8)
        return length;
    uint32_t power = 31 - (uint32_t)__builtin_clz(length);
    uint32_t range = 8 + 4 * (power - 3) + (length >> (power - 2) & 3);
    return range < AQ_ETA_RANGES ? range : AQ_ETA_RANGES - 1;
}

static double range_begin(uint32_t range)
{
    return range < 8 ? range : ldexp(1 + range % 4 / 4.0, (int)(range / 4 + 1));
}

/* ---- what is seen ---- */

void aq_eta_wait(struct aq_eta_seen *s, uint32_t max_tokens, int64_t count)
{
    uint32_t range = range_of(max_tokens);
    s->waiting.count[range] += (uint64_t)count;
    s->waiting.max[range] += (uint64_t)(count * max_tokens);
}

void aq_eta_end(struct aq_eta_seen *s, uint32_t tokens, uint32_t max_tokens, bool stopped)
{
    if (!tokens)
        return;
    s->tokens += tokens;
    (stopped ? s->stopped : s->full)[range_of(tokens - 1)]++;
}

void aq_eta_begin_flight(struct aq_eta_seen *s, uint64_t count)
{
    s->queued = (struct aq_eta_waiting){0};
    s->flight_count = 0;
    s->flight_each = aq_max_u64(1, aq_div_up(count, AQ_ETA_FLIGHT));
    s->flight_next = 0;
}

void aq_eta_fly(struct aq_eta_seen *s, uint32_t tokens, uint32_t max_tokens)
{
    if (!tokens) {
        uint32_t range = range_of(max_tokens);
        s->queued.count[range]++;
        s->queued.max[range] += max_tokens;
    } else if (s->flight_next++ % s->flight_each == 0) {
        s->flight[s->flight_count].tokens = tokens;
        s->flight[s->flight_count++].max = max_tokens;
    }
}

void aq_eta_look(struct aq_eta_seen *s, const struct aq_flight *flight)
{
    uint64_t count = 0;
    for (const struct aq_record *rec = flight->first; rec; rec = rec->next)
        for (uint32_t i = 0; i < rec->choice_count; i++)
            count += rec->choices[i].sequence.finish == AQ_FINISH_NONE &&
                     rec->choices[i].sequence.token_count;
    aq_eta_begin_flight(s, count);
    for (const struct aq_record *rec = flight->first; rec; rec = rec->next)
        for (uint32_t i = 0; i < rec->choice_count; i++) {
            const struct aq_sequence *q = &rec->choices[i].sequence;
            if (q->finish == AQ_FINISH_NONE)
                aq_eta_fly(s, q->token_count, q->max_tokens);
        }
}

/* ---- how long a sequence goes on ---- */

#define LEAST 1e-12 /* of what is divided by */

/* S(t), the share of sequences that go on beyond t tokens if nothing else stops them: its values
 * where ranges begin, between which it is a straight line, and its integral from 0 to there. */
struct survival {
    double share[AQ_ETA_RANGES + 1], integral[AQ_ETA_RANGES + 1];
};

/* In each range one sequence that stops as often as all do on the average counts beside those seen:
 * where few have been, nobody knows that none or all stop there. */
static void find_survival(struct survival *f, const struct aq_eta_seen *s)
{
    double at[AQ_ETA_RANGES] = {0}, reached = 0, tokens = (double)s->tokens, stopped = 0;
    for (uint32_t i = 0; i < s->flight_count; i++) {
        at[range_of(s->flight[i].tokens)] += (double)s->flight_each;
        tokens += (double)s->flight_each * s->flight[i].tokens;
    }
    for (uint32_t r = 0; r < AQ_ETA_RANGES; r++) {
        at[r] += (double)s->full[r];
        reached += at[r] + (double)s->stopped[r];
        stopped += (double)s->stopped[r];
    }
    double rate = stopped > 0 ? stopped / tokens : 0;
    f->share[0] = 1;
    f->integral[0] = 0;
    for (uint32_t r = 0; r < AQ_ETA_RANGES; r++) {
        double width = range_begin(r + 1) - range_begin(r), mean = -expm1(-rate * width);
        double stops = ((double)s->stopped[r] + mean) / (reached - at[r] / 2 + 1);
        f->share[r + 1] = f->share[r] * (1 - stops);
        f->integral[r + 1] = f->integral[r] + (f->share[r] + f->share[r + 1]) / 2 * width;
        reached -= at[r] + (double)s->stopped[r];
    }
}

static double share_beyond(const struct survival *f, double t)
{
    uint32_t r = range_of((uint32_t)t);
    double part = (t - range_begin(r)) / (range_begin(r + 1) - range_begin(r));
    return f->share[r] + (f->share[r + 1] - f->share[r]) * fmin(part, 1);
}

/* Of S from 0 to t. */
static double integral(const struct survival *f, double t)
{
    uint32_t r = range_of((uint32_t)t);
    return f->integral[r] + (f->share[r] + share_beyond(f, t)) / 2 * (t - range_begin(r));
}

/* The mean of the tokens that a sequence with `tokens` will still have. */
static double mean_left(const struct survival *f, double tokens, double max)
{
    return tokens < max
               ? (integral(f, max) - integral(f, tokens)) / fmax(share_beyond(f, tokens), LEAST)
               : 0;
}

/* How many wait in a range; *ret_max is their mean max_tokens. */
static double waiting_in(const struct aq_eta_seen *s, uint32_t range, double *ret_max)
{
    uint64_t count = s->waiting.count[range] + s->queued.count[range];
    *ret_max = count ? (double)(s->waiting.max[range] + s->queued.max[range]) / (double)count : 0;
    return (double)count;
}

/* ---- the longest of many ---- */

enum {
    STEPS = 256,
    STARTS = 32
}; /* of the integral below, and of the times when sequences begin */

/* Those that wait: G(t), the share of them that go on beyond t tokens, in the middle of steps. */
struct fresh {
    double on[STEPS], step, count;
    double tokens; /* of all of them */
    /* What a sequence has left, on the average, at a time that has nothing to do with its
     * beginning: the mean of the square of its length by twice its mean (renewal theory). */
    double rest;
};

static double most_tokens(const struct aq_eta_seen *s)
{
    double most = 1;
    for (uint32_t i = 0; i < s->flight_count; i++)
        most = fmax(most, s->flight[i].max);
    for (uint32_t r = 0; r < AQ_ETA_RANGES; r++) {
        double max;
        if (waiting_in(s, r, &max) > 0)
            most = fmax(most, max);
    }
    return most;
}

static void find_fresh(struct fresh *g, const struct survival *f, const struct aq_eta_seen *s)
{
    *g = (struct fresh){.step = most_tokens(s) / STEPS};
    for (uint32_t r = 0; r < AQ_ETA_RANGES; r++) {
        double max, count = waiting_in(s, r, &max);
        if (count <= 0)
            continue;
        g->count += count;
        g->tokens += count * mean_left(f, 0, max);
        for (int k = 0; k < STEPS && (k + 0.5) * g->step < max; k++)
            g->on[k] += count * share_beyond(f, (k + 0.5) * g->step);
    }
    double mean = 0, square = 0;
    for (int k = 0; k < STEPS && g->count > 0; k++) {
        g->on[k] /= g->count;
        mean += g->on[k] * g->step;
        square += 2 * (k + 0.5) * g->step * g->on[k] * g->step;
    }
    g->rest = mean > 0 ? square / (2 * mean) : 0;
}

/* The logarithm of the chance that `count` sequences have all ended, each of which goes on with
 * chance `on`. */
static double log_ended(double count, double on)
{
    return count * log1p(-fmin(on, 1 - LEAST));
}

/* Of sequences that began at even times from 0 to `last`, at time t. */
static double log_fresh_ended(const struct fresh *g, double last, double t)
{
    double sum = 0;
    for (int i = 0; i < STARTS; i++) {
        double age = t - last * (i + 0.5) / STARTS;
        uint32_t k = (uint32_t)(fmax(age, 0) / g->step);
        sum += log_ended(g->count / STARTS, age < 0 ? 1 : k < STEPS ? g->on[k] : 0);
    }
    return sum;
}

static double log_flight_ended(const struct survival *f, const struct aq_eta_seen *s, double t)
{
    double sum = 0;
    for (uint32_t i = 0; i < s->flight_count; i++) {
        double tokens = s->flight[i].tokens;
        if (tokens + t < s->flight[i].max)
            sum += log_ended((double)s->flight_each,
                             share_beyond(f, tokens + t) / fmax(share_beyond(f, tokens), LEAST));
    }
    return sum;
}

/* The mean of the passes until all sequences have ended, those in flight and those that wait and
 * begin until pass `last`: the integral of the chance that some have not. */
static double longest(const struct survival *f, const struct aq_eta_seen *s, const struct fresh *g,
                      double last)
{
    double step = (last + g->step * STEPS) / STEPS, sum = 0;
    for (int k = 0; k < STEPS; k++) {
        double t = (k + 0.5) * step, ended = log_flight_ended(f, s, t);
        if (g->count > 0)
            ended += log_fresh_ended(g, last, t);
        sum += -expm1(ended);
    }
    return sum * step;
}

/* ---- passes ---- */

/* The part of a pass that stays while its seats empty: the busiest lane that moves weights.  What
 * is computed becomes less. */
static double fixed_share(const struct aq_engine_stats *s)
{
    double passes_s = s->prefill_s + s->decode_s + s->mixed_s, busy_s = 0;
    for (int l = AQ_LANE_H2D; l <= AQ_LANE_READ_WEIGHTS; l++)
        busy_s = fmax(busy_s, s->lane[l].busy_s);
    return passes_s > 0 ? fmin(1, busy_s / passes_s) : 0;
}

/* Passes with all seats taken that take as long as what is left; below 0: not known yet.
 *
 * Seats are given on until no sequence waits; from then on, or in each block where they are not
 * given on, the longest one decides how many passes there are, of which only the fixed share goes
 * by their number and the rest by the sequences in them. */
static double passes_left(const struct aq_job *j, const struct aq_run_view *view)
{
    const struct aq_eta_seen *seen = &view->seen;
    double all = (double)(j->workload.total_sum - j->workload.prompt_sum);
    double seats = fmin(view->seats, (double)j->workload.sequences);
    if ((double)view->stats.finished < known_seats * seats &&
        (double)(view->stats.generated_tokens + view->taken_over) < known_tokens * all)
        return -1;
    struct survival f;
    find_survival(&f, seen);
    struct fresh g;
    find_fresh(&g, &f, seen);
    double tokens = g.tokens, passes;
    for (uint32_t i = 0; i < seen->flight_count; i++)
        tokens +=
            (double)seen->flight_each * mean_left(&f, seen->flight[i].tokens, seen->flight[i].max);
    double full = tokens / seats, fixed = fixed_share(&view->stats), blocks = ceil(g.count / seats);
    if (j->o->refill) {
        passes = longest(&f, seen, &g, fmax(0, full - g.rest));
    } else { /* each block is as long as its longest sequence */
        struct fresh none = {.step = g.step};
        struct aq_eta_seen nobody = {0};
        passes = longest(&f, seen, &none, 0);
        g.count = fmin(g.count, seats);
        passes += blocks * longest(&f, &nobody, &g, 0);
    }
    return (1 - fixed) * full + fixed * fmax(passes, full);
}

/* Prompts and tokens that are left, at what they took so far: passes that only read prompts tell
 * what a prompt's token takes, all others what is left for a pass that generates. */
double aq_progress_eta_s(const struct aq_job *j, const struct aq_run_view *view, double now_s)
{
    const struct aq_engine_stats *s = &view->stats;
    if (view->done >= j->pending)
        return 0;
    uint64_t tokens = s->prefill_tokens + s->shared_tokens;
    if (!s->passes || !tokens)
        return -1;
    double prompts = (double)j->workload.prompt_sum, read = (double)tokens;
    double begun_s = view->in_pass ? view->pass_begin_s : now_s; /* the end of the last pass */
    double passes_s = begun_s - view->first_pass_s;
    bool generates = j->workload.total_sum > j->workload.prompt_sum;
    double passes = generates ? passes_left(j, view) : 0;
    if (passes < 0 || (!generates && read < known_seats * prompts))
        return -1;
    double prompt_s = (generates ? s->prefill_s : passes_s) / read;
    double others = (double)(s->passes - s->prefill_passes);
    double pass_s = others > 0 ? fmax(0, passes_s - prompt_s * read) / others : 0;
    double left_s = fmax(0, prompts - read) * prompt_s + passes * pass_s - (now_s - begun_s);
    return fmax(left_s, aq_view_pass_s(view)); /* what is not done needs a pass, at the least */
}
