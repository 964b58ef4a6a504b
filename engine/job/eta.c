/* SPDX-License-Identifier: Apache-2.0
 * How long a running job will still take. */
#include "engine/job/job.h"

#include <math.h>

/* Before this share of the seats has been given on, or of all tokens generated, nobody knows how
 * early sequences end. */
static const double known_seats = 0.1, known_tokens = 0.25;

/* How many tokens the longest of `count` sequences will still have, each at most `most`, when one
 * token in 1 / rate ends its sequence: the mean of the largest of exponential variables, cut off
 * (the integral of 1 - (1 - exp(-rate t))^count from 0 to most). */
static double longest(double count, double most, double rate)
{
    if (rate <= 0)
        return most;
    double ends = -expm1(-rate * most), power = ends, sum = 0;
    for (double i = 1; i <= count; i++, power *= ends)
        sum += power / i;
    return sum / rate;
}

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
 * Sequences end before their max_tokens, and those that ended so far tell how often: `stopped`
 * times in all tokens, with those of sequences in flight, which did not end.  Else the first to
 * end, which are the short ones, would speak for all.  Seats are given on until no sequence waits;
 * from then on, or in each block where they are not given on, the longest one decides. */
static double passes_left(const struct aq_job *j, const struct aq_run_view *view)
{
    const struct aq_engine_stats *s = &view->stats;
    double all = (double)(j->workload.total_sum - j->workload.prompt_sum);
    double sequences = (double)j->workload.sequences, ended = (double)s->finished;
    double generated = (double)s->generated_tokens, seats = fmin(view->seats, sequences);
    double at_most = all - (double)view->ended_max - (generated - (double)view->ended_tokens);
    if (ended < known_seats * seats && generated < known_tokens * all)
        return -1;
    double left = sequences - ended, seated = fmin(seats, left);
    if (at_most <= 0 || left <= 0 || generated <= 0)
        return 0;
    double most = at_most / left, rate = (double)view->stopped / generated;
    double each = longest(1, most, rate), last = longest(seated, most, rate);
    double ends = j->o->refill ? 1 : left / seated; /* times that seats stand empty */
    return left * each / seats + fixed_share(s) * ends * (last - seated * each / seats);
}

/* Prompts and tokens that are left, at what they took so far: passes that only read prompts tell
 * what a prompt's token takes, all others what is left for a pass that generates. */
double aq_progress_eta_s(const struct aq_job *j, const struct aq_run_view *view, double now_s)
{
    const struct aq_engine_stats *s = &view->stats;
    if (view->done >= j->pending)
        return 0;
    if (!s->passes || !s->prefill_tokens)
        return -1;
    double prompts = (double)j->workload.prompt_sum, read = (double)s->prefill_tokens;
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
